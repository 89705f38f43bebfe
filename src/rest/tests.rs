//! Tests: documents and calls in, definitions and requests out.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use nonet_schema::Schema;
use serde_json::json;

use super::*;

fn read(document: Value) -> Service {
    Service::read(document.to_string().as_bytes(), None, None).expect("a document")
}

/// Returns a document with one operation, by default `POST /x/{id}`.
fn with(operation: Value) -> Value {
    json!({
        "openapi": "3.0.3",
        "info": { "title": "T" },
        "servers": [{ "url": "https://api.test/v1/" }],
        "paths": { "/x": { "post": operation } },
    })
}

/// Returns the only operation of a document.
fn only(document: Value) -> Operation {
    let service = read(document);
    assert_eq!(service.left_out, Vec::<String>::new());
    assert_eq!(service.operations.len(), 1);
    service.operations.into_values().next().expect("one")
}

fn input(document: Value) -> Value {
    let definition = only(document).definition;
    assert_eq!(Schema::new(definition["inputSchema"].clone()).broken(), None);
    definition["inputSchema"].clone()
}

/// Returns the converted schema of the param `p`, whose schema in the document is `raw`.
fn of_schema(raw: Value) -> Value {
    let parameter = json!({ "name": "p", "in": "query", "schema": raw });
    input(with(json!({ "operationId": "o", "parameters": [parameter] })))["properties"]["p"].clone()
}

fn call(operation: &Operation, params: Value) -> Result<RestRequest, String> {
    operation.request(None, params.as_object().expect("an object"))
}

/// Returns the address, the headers except `Accept`, and the body, as one text.
fn sent(operation: &Operation, params: Value) -> String {
    let request = match call(operation, params) {
        Ok(request) => request,
        Err(why) => return format!("! {why}"),
    };
    let mut text = format!("{} {}", request.method, request.url);
    for (name, value) in request.headers.iter().filter(|(name, _)| *name != "accept") {
        text += &format!("\n{name}: {}", value.to_str().expect("text"));
    }
    if let Some((kind, body)) = request.body {
        text += &format!("\n{kind}\n{}", String::from_utf8(body).expect("text"));
    }
    text
}

#[test]
fn a_document_that_cannot_be_used_says_what_to_do() {
    let check = |document: &str, expected: &str| {
        let why = Service::read(document.as_bytes(), None, None).expect_err(document);
        assert!(why.contains(expected), "{why}");
    };
    check("", "the document is empty");
    check("<!DOCTYPE html>", "is a web page or XML: name the address of the OpenAPI document itself");
    check("{\"openapi\": \"3.0.0\"", "not valid JSON");
    check("openapi: [3.0", "neither JSON nor valid YAML");
    check(
        r#"{"swagger": "2.0", "paths": {}}"#,
        "OpenAPI 2.0 (Swagger), and only 3.0 and later are read: convert it",
    );
    check("swagger: '2.0'", "npx swagger2openapi");
    check(r#"{"openapi": "4.0.0", "paths": {}}"#, "OpenAPI 4.0.0, and only 3.x is read");
    check("name: x", "not an OpenAPI document");
    check(r#"{"openapi": "3.1.0", "webhooks": {}}"#, "no `paths`");
    check(r#"{"openapi": "3.1.0", "paths": {}}"#, "describes no operation");
    check(&"[".repeat(100_000), "document");
    check(&format!("{{\"a\":{}", "[".repeat(100_000)), "not valid JSON: recursion limit");
    check("a: &a [x, x, x, x]\nb: &b [*a, *a, *a, *a]\nc: [*b, *b]", "not an OpenAPI document");
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_string();
    for n in 1..9 {
        bomb += &format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(", "));
    }
    check(&bomb, "budget breached");
    let large = Service::read(&vec![b' '; MAX_DOCUMENT + 1], None, None).expect_err("too large");
    assert!(large.contains("at most 33554432 are read"), "{large}");
}

#[test]
fn yaml_is_read_as_json_is() {
    let yaml = "
openapi: 3.1
info: { title: Notes, description: 'Keeps notes.' }
servers: [{ url: 'https://notes.test' }]
paths:
  /notes:
    get:
      operationId: list
      parameters:
        - &page { name: page, in: query, schema: { type: integer } }
        - { name: state, in: query, schema: { type: string, enum: [on, off, yes] } }
      responses:
        200: { description: fine, content: { application/json: { schema: { type: object } } } }
    post:
      operationId: more
      parameters: [*page]
";
    let service = Service::read(yaml.as_bytes(), None, None).expect("a document");
    assert_eq!(service.about, "Notes: Keeps notes.");
    let list = &service.operations["list"].definition;
    assert_eq!(list["inputSchema"]["properties"]["state"]["enum"], json!(["on", "off", "yes"]));
    assert_eq!(list["outputSchema"], json!({ "type": "object" }));
    assert_eq!(
        service.operations["more"].definition["inputSchema"]["properties"]["page"],
        json!({ "type": "integer" })
    );
}

#[test]
fn a_definition_has_all_that_the_document_says() {
    let definition = only(with(json!({
        "operationId": "notes/add",
        "summary": "Add a <b>note</b>",
        "description": "<p>Adds a note, see [the guide](https://guide.test/x).</p>",
        "deprecated": true,
        "tags": ["Notes", "Notes", "x"],
        "parameters": [{ "name": "q", "in": "query", "description": "What", "example": "a" }],
        "requestBody": { "required": true, "content": { "application/json": {
            "schema": { "type": "object", "required": ["text", "id"], "properties": {
                "id": { "type": "integer", "readOnly": true },
                "text": { "type": "string" }
            } },
            "example": { "text": "Buy milk" }
        } } },
        "responses": {
            "201": { "description": "x", "content": { "application/json": { "schema": {
                "type": "object", "required": ["id"], "additionalProperties": false,
                "properties": { "id": { "type": "integer", "minimum": 1 }, "secret": { "type": "string", "writeOnly": true } }
            } } } }
        }
    })))
    .definition;
    insta::assert_json_snapshot!(*definition);
}

#[test]
fn names_depend_on_nothing_but_the_operations_that_share_them() {
    let operation = |id: Option<&str>| id.map_or_else(|| json!({}), |id| json!({ "operationId": id }));
    let names = |paths: &[(&str, &str, Option<&str>)]| -> Vec<String> {
        let mut all = Map::new();
        for (path, method, id) in paths {
            let item = all.entry(*path).or_insert_with(|| json!({}));
            item[*method] = operation(*id);
        }
        let service = read(json!({ "openapi": "3.0.0", "paths": all }));
        service.operations.into_keys().collect()
    };
    assert_eq!(names(&[("/users/{id}/posts", "get", None)]), ["get_users_id_posts"]);
    assert_eq!(names(&[("/", "get", None)]), ["get"]);
    assert_eq!(names(&[("/a", "get", Some("repos/get-content"))]), ["repos/get-content"]);
    assert_eq!(names(&[("/a", "get", Some(" "))]), ["get_a"]);
    let (one, two) = (("/a", "get", Some("list")), ("/b", "post", Some("list")));
    assert_eq!(names(&[one, two]), ["list_get_a", "list_post_b"]);
    assert_eq!(names(&[one, two]), names(&[two, one]));
    assert_eq!(names(&[one]), ["list"]);
    let (one, two) = (("/a/{b}", "get", None), ("/a/b", "get", None));
    assert_eq!(names(&[one, two]), ["get_a_b_840b7118", "get_a_b_a5c38ae4"]);
    assert_eq!(names(&[one, two]), names(&[two, one]));
    let long = "x".repeat(300);
    assert_eq!(names(&[("/a", "get", Some(&long))])[0].len(), 128);
}

#[test]
fn only_wanted_operations_become_tools() {
    let document = json!({ "openapi": "3.0.0", "paths": {
        "/a": { "get": { "operationId": "list" }, "post": { "operationId": "add" }, "options": {}, "trace": {} },
        "/b": { "get": { "operationId": "list" } },
    } });
    let wanted = Globs::new(vec!["list*".into()]).expect("a glob");
    let service = Service::read(document.to_string().as_bytes(), None, Some(&wanted)).expect("a document");
    assert_eq!(service.operations.keys().collect::<Vec<_>>(), ["list_get_a", "list_get_b"]);
    assert_eq!(
        service.left_out,
        ["OPTIONS /a: it is for clients, not for models", "TRACE /a: it is for clients, not for models"]
    );
    assert!(service.unmatched.is_empty());
    let typo = Globs::new(vec!["list*".into(), "ad".into()]).expect("globs");
    let service = Service::read(document.to_string().as_bytes(), None, Some(&typo)).expect("a document");
    let there_are = "there are `list_get_a`, `add`, `list_get_b`";
    assert_eq!(service.unmatched, [format!("`ad` matches no operation; {there_are}")]);
}

#[test]
fn one_bad_operation_costs_no_other() {
    let service = read(json!({ "openapi": "3.0.0", "paths": {
        "/a": { "get": { "parameters": [{ "$ref": "other.yaml#/x" }] } },
        "/b": { "get": { "parameters": [{ "$ref": "#/components/parameters/gone" }] } },
        "/c": { "get": { "parameters": [{ "name": "q", "in": "formData" }] } },
        "/d/{x": { "get": {} },
        "/e": 7,
        "/f": { "get": 7 },
        "/g": { "$ref": "g.yaml" },
        "/h": { "post": { "requestBody": { "$ref": "h.yaml" } } },
        "/i": { "get": {
            "operationId": "fine",
            "parameters": [7, { "name": "s", "in": "query", "schema": { "$ref": "s.yaml#/S" } }],
            "responses": { "200": { "$ref": "r.yaml" } }
        } },
        "/j": { "$ref": "#/components/pathItems/J" },
        "/k": { "get": { "parameters": [{ "$ref": "#/components/parameters/loop" }] } },
    }, "components": {
        "parameters": { "loop": { "$ref": "#/components/parameters/loop" } },
        "pathItems": { "J": { "get": { "operationId": "also" } } },
    } }));
    insta::assert_snapshot!(service.left_out.join("\n"));
    assert_eq!(service.operations.keys().collect::<Vec<_>>(), ["also", "fine"]);
    let schema = &service.operations["fine"].definition["inputSchema"]["properties"]["s"];
    assert_eq!(schema["description"], "Described by `s.yaml#/S`, in another file, which is not read.");
}

#[test]
fn params_of_all_places_share_one_schema() {
    let schema = input(json!({
        "openapi": "3.0.0",
        "components": { "securitySchemes": { "key": { "type": "apiKey", "in": "query", "name": "Key" } } },
        "paths": { "/a/{id}/{Part}": {
            "parameters": [
                { "name": "id", "in": "path", "required": true, "schema": { "type": "string" } },
                { "name": "page", "in": "query", "schema": { "type": "string" } },
            ],
            "put": {
                "parameters": [
                    { "name": "page", "in": "query", "schema": { "type": "integer" } },
                    { "name": "id", "in": "query", "type": "integer" },
                    { "name": "id", "in": "header" },
                    { "name": "$filter", "in": "query", "required": true },
                    { "name": "page[size]", "in": "query" },
                    { "name": "session", "in": "cookie" },
                    { "name": "key", "in": "query", "required": true },
                    { "name": "X-API-Key", "in": "header", "required": true },
                    { "name": "Accept", "in": "header" },
                    { "name": "bad name", "in": "header" },
                ],
                "requestBody": { "content": { "application/json": { "schema": {
                    "type": "object", "required": ["id"], "properties": { "id": {}, "text": { "type": "string" } }
                } } } }
            }
        } }
    }));
    insta::assert_json_snapshot!(schema);
}

#[test]
fn keys_are_told_but_not_asked_for() {
    let service = read(json!({
        "openapi": "3.0.0",
        "components": { "securitySchemes": {
            "a": { "type": "http", "scheme": "bearer" },
            "b": { "type": "apiKey", "in": "header", "name": "X-Key" },
            "c": { "type": "oauth2", "flows": {} },
            "d": { "type": "http", "scheme": "basic" },
        } },
        "paths": { "/a": { "get": { "parameters": [{ "name": "api_key", "in": "query", "required": true }] } } }
    }));
    assert_eq!(
        service.sign_in,
        [
            "a bearer token in the header `Authorization`",
            "a key in the header `X-Key`",
            "an OAuth access token in the header `Authorization`",
            "name and password (Basic) in the header `Authorization`",
            "a key in the query `api_key`",
        ]
    );
}

#[test]
fn schemas_of_openapi_become_json_schema() {
    let check = |raw: Value, expected: Value| assert_eq!(of_schema(raw.clone()), expected, "{raw}");
    check(json!({ "type": "string", "nullable": true }), json!({ "type": ["string", "null"] }));
    check(
        json!({ "type": "string", "nullable": true, "enum": ["a"] }),
        json!({ "type": ["string", "null"], "enum": ["a", null] }),
    );
    check(
        json!({ "nullable": true, "allOf": [{ "type": "string" }] }),
        json!({ "anyOf": [{ "allOf": [{ "type": "string" }] }, { "type": "null" }] }),
    );
    check(
        json!({ "type": "number", "minimum": 1, "exclusiveMinimum": true, "maximum": 5, "exclusiveMaximum": false }),
        json!({ "type": "number", "exclusiveMinimum": 1, "maximum": 5 }),
    );
    check(json!({ "type": "string", "example": "x" }), json!({ "type": "string", "examples": ["x"] }));
    check(
        json!({ "oneOf": [{ "type": "string" }, { "type": "integer" }], "discriminator": { "propertyName": "t" } }),
        json!({ "anyOf": [{ "type": "string" }, { "type": "integer" }] }),
    );
    // Errors in a document do not make the schema invalid.
    check(json!({ "type": "int64", "minLength": -1, "required": true }), json!({ "type": "integer" }));
    check(json!({ "type": "anything", "properties": [], "enum": [] }), json!({}));
    check(json!({ "type": "string", "enum": [1, 2] }), json!({ "enum": [1, 2] }));
    check(json!({ "type": "string", "pattern": "^a+$" }), json!({ "type": "string", "pattern": "^a+$" }));
    check(
        json!({ "type": "string", "pattern": "^(?!a)[" }),
        json!({ "type": "string", "description": "Pattern: `^(?!a)[`." }),
    );
    check(
        json!({ "type": "array", "items": [{ "type": "string" }], "xml": {}, "x-own": 1 }),
        json!({ "type": "array", "prefixItems": [{ "type": "string" }] }),
    );
    check(json!(true), json!(true));
    check(json!("text"), json!({}));
    let many: Vec<u32> = (0..400).collect();
    check(json!({ "enum": many }), json!({ "description": "One of 400 values, such as 0, 1, 2, 3, 4." }));
    let mut deep = json!({ "type": "string" });
    for _ in 0..50 {
        deep = json!({ "type": "array", "items": deep });
    }
    assert!(of_schema(deep).to_string().contains("members not shown"));
}

#[test]
fn references_are_written_out_once_or_named() {
    let schema = input(json!({
        "openapi": "3.1.0",
        "paths": { "/a": { "post": { "requestBody": { "content": { "application/json": { "schema": {
            "properties": {
                "tree": { "$ref": "#/components/schemas/Tree", "description": "The root." },
                "first": { "$ref": "#/components/schemas/Large" },
                "second": { "$ref": "#/components/schemas/Large" },
                "once": { "$ref": "#/components/schemas/Once", "minLength": 2 },
                "odd": { "$ref": "#/paths/~1a/x~0%79" },
                "gone": { "$ref": "#/components/schemas/Gone" },
            }
        } } } } }, "x~y": { "type": "boolean" } } },
        "components": { "schemas": {
            "Tree": { "type": "object", "properties": {
                "value": { "$ref": "#/components/schemas/Once" },
                "children": { "type": "array", "items": { "$ref": "#/components/schemas/Tree" } },
            } },
            "Once": { "type": "string", "maxLength": 9 },
            "Large": { "type": "object", "description": "Long. ".repeat(40), "properties": { "a": {} } },
        } }
    }));
    insta::assert_json_snapshot!(schema);
}

/// A pet is one of cat and dog, and each is all of a pet: read strictly, no value would ever be valid.
#[test]
fn schemas_that_contain_themselves_for_the_same_value_are_cut() {
    let schema = input(json!({
        "openapi": "3.0.0",
        "paths": { "/a": { "post": { "requestBody": { "required": true, "content": { "application/json": {
            "schema": { "type": "array", "items": { "$ref": "#/components/schemas/Pet" } } } } } } } },
        "components": { "schemas": {
            "Pet": {
                "type": "object",
                "properties": { "kind": { "type": "string" } },
                "oneOf": [{ "$ref": "#/components/schemas/Cat" }, { "$ref": "#/components/schemas/Dog" }],
            },
            "Cat": { "allOf": [{ "$ref": "#/components/schemas/Pet" }, { "properties": { "lives": { "type": "integer" } } }] },
            "Dog": { "allOf": [{ "$ref": "#/components/schemas/Pet" }, { "properties": { "legs": { "type": "integer" } } }] },
            "Self": { "$ref": "#/components/schemas/Self" },
        } }
    }));
    let schema = Schema::new(schema);
    assert_eq!(schema.broken(), None);
    assert!(schema.accepts(&json!({ "body": [{ "kind": "cat", "lives": 9 }] })));
    assert!(!schema.accepts(&json!({ "body": [{ "kind": 1 }] })));
}

#[test]
fn large_schemas_are_shortened_and_stay_valid() {
    let mut schemas = Map::new();
    for n in 0..400 {
        let mut properties = Map::new();
        for m in 0..20 {
            let next = format!("#/components/schemas/S{}", (n * 7 + m * 13 + 1) % 400);
            properties.insert(format!("p{m}"), json!({ "$ref": next }));
        }
        properties.insert("text".into(), json!({ "type": "string", "description": "Words. ".repeat(100) }));
        schemas.insert(
            format!("S{n}"),
            json!({ "type": "object", "required": ["text"], "properties": properties }),
        );
    }
    let root = json!({ "$ref": "#/components/schemas/S0" });
    let content = json!({ "application/json": { "schema": root } });
    let operation = only(json!({
        "openapi": "3.0.0",
        "paths": { "/a": { "post": {
            "requestBody": { "content": content },
            "responses": { "200": { "content": content } }
        } } },
        "components": { "schemas": schemas }
    }));
    for (key, limit) in [("inputSchema", 36_000), ("outputSchema", 12_000)] {
        let schema = &operation.definition[key];
        let bytes = schema.to_string().len();
        assert!(bytes < limit, "{key}: {bytes}");
        assert!(schema.to_string().contains("members not shown"), "{key}");
        assert_eq!(Schema::new(schema.clone()).broken(), None, "{key}");
    }
    // Deeply nested parts, each with many parts of its own, are not followed to the end.
    let mut schemas = Map::new();
    for n in 0..20 {
        let part = json!({ "$ref": format!("#/components/schemas/P{}", n + 1) });
        schemas.insert(format!("P{n}"), json!({ "allOf": vec![part; 50] }));
    }
    let content = json!({ "application/json": { "schema": { "$ref": "#/components/schemas/P0" } } });
    let document = json!({
        "openapi": "3.0.0",
        "paths": { "/a": { "post": {
            "requestBody": { "content": content },
            "responses": { "200": { "content": content } }
        } } },
        "components": { "schemas": schemas }
    });
    assert!(only(document).definition["inputSchema"]["properties"]["body"].is_object());
    // A body with more members than fit becomes one param.
    let wide: Map<String, Value> = (0..2_000)
        .map(|n| (format!("member_{n}"), json!({ "type": "string", "description": "Words. ".repeat(30) })))
        .collect();
    let schema = input(with(json!({ "requestBody": { "content": { "application/json": {
        "schema": { "type": "object", "properties": wide } } } } })));
    assert_eq!(schema["properties"].as_object().expect("an object").keys().collect::<Vec<_>>(), ["body"]);
}

#[test]
fn output_schemas_promise_objects_only() {
    let check = |responses: Value, expected: bool| {
        let operation = only(with(json!({ "operationId": "o", "responses": responses })));
        assert_eq!(operation.definition.get("outputSchema").is_some(), expected, "{responses}");
    };
    let json = |schema: Value| json!({ "content": { "application/json": { "schema": schema } } });
    let object = || json!({ "properties": { "a": {} } });
    check(json!({ "200": json(object()) }), true);
    check(json!({ "200": json(object()), "404": json(json!({ "type": "string" })) }), true);
    check(json!({ "200": json(json!({ "type": "array" })) }), false);
    check(json!({ "200": json(json!({ "oneOf": [object(), object()] })) }), true);
    check(json!({ "200": json(json!({ "oneOf": [object(), { "type": "string" }] })) }), false);
    check(json!({ "200": json(json!({ "type": "object", "nullable": true })) }), false);
    check(json!({ "200": json(object()), "204": {} }), false);
    check(json!({ "204": {} }), false);
    check(json!({ "200": { "content": { "text/csv": { "schema": object() } } } }), false);
}

#[test]
fn hints_follow_the_method() {
    let check = |method: &str, expected: Value| {
        let service = read(json!({ "openapi": "3.0.0", "paths": { "/a": { method: {} } } }));
        let operation = service.operations.values().next().expect("one");
        assert_eq!(operation.definition["annotations"], expected, "{method}");
        assert_eq!(operation.method.as_str().to_lowercase(), method);
    };
    let reads = json!({ "readOnlyHint": true, "idempotentHint": true, "openWorldHint": true });
    let writes = |idempotent: bool, destroys: bool| {
        json!({
            "readOnlyHint": false, "destructiveHint": destroys, "idempotentHint": idempotent, "openWorldHint": true
        })
    };
    check("get", reads.clone());
    check("head", reads);
    check("post", writes(false, false));
    check("patch", writes(false, false));
    check("put", writes(true, false));
    check("delete", writes(true, true));
}

#[test]
fn the_address_comes_from_the_nearest_place() {
    let check = |servers: Value, from: Option<&str>, base: Option<&str>, expected: &str| {
        let mut document =
            json!({ "openapi": "3.0.0", "paths": { "/x": { "get": { "operationId": "o" } } } });
        for (place, value) in servers.as_object().expect("an object") {
            *document.pointer_mut(place).expect("a place") =
                json!({ "servers": value, "operationId": "o", "get": { "operationId": "o" } });
        }
        if let Some(own) = servers.get("") {
            document = json!({ "openapi": "3.0.0", "servers": own, "paths": { "/x": { "get": {} } } });
        }
        let service = Service::read(document.to_string().as_bytes(), from, None).expect("a document");
        let operation = service.operations.values().next().expect("one");
        let found = operation.request(base, &Map::new()).map_or_else(|why| why, |request| request.url);
        assert_eq!(found, expected);
    };
    let absolute = json!({ "": [{ "url": "ftp://no.test" }, { "url": "https://a.test/v1/" }] });
    check(absolute.clone(), None, None, "https://a.test/v1/x");
    check(absolute, None, Some("http://localhost:8080/base?key=1#f"), "http://localhost:8080/base/x?key=1");
    check(
        json!({ "": [{ "url": "/api" }] }),
        Some("https://b.test/docs/openapi.json"),
        None,
        "https://b.test/api/x",
    );
    check(
        json!({ "": [{ "url": "api" }] }),
        Some("https://b.test/docs/openapi.json"),
        None,
        "https://b.test/docs/api/x",
    );
    check(json!({}), Some("https://b.test/docs/openapi.json"), None, "https://b.test/x");
    let missing = "the document names no address of the service: set `base_url` of the server";
    check(json!({ "": [{ "url": "/api" }] }), Some("/home/me/openapi.json"), None, missing);
    check(json!({ "": [{ "url": "//c.test/api" }] }), None, None, "https://c.test/api/x");
    check(
        json!({ "": [{ "url": "https://{region}.d.test/{v}", "variables": {
            "region": { "default": "eu" }, "v": { "default": 2 } } }] }),
        None,
        None,
        "https://eu.d.test/2/x",
    );
    check(json!({ "": [{ "url": "https://{tenant}.d.test" }] }), None, None, missing);
    let own = json!([{ "url": "https://own.test" }]);
    check(json!({ "/paths/~1x/get": own }), Some("https://b.test/y"), None, "https://own.test/x");
    check(json!({ "/paths/~1x": own }), Some("https://b.test/y"), None, "https://own.test/x");
    check(json!({ "/paths/~1x": own }), None, Some("https://set.test"), "https://set.test/x");
    check(json!({}), None, Some("file:///etc"), "the address of the service is not an http or https one");
}

/// Returns `GET /x/{p}/y` with one param.
fn get(parameter: Value) -> Operation {
    let path = if parameter["in"] == "path" { "/x/{p}/y" } else { "/x" };
    only(json!({
        "openapi": "3.0.0",
        "servers": [{ "url": "https://a.test" }],
        "paths": { path: { "get": { "operationId": "o", "parameters": [parameter] } } },
    }))
}

#[test]
fn params_of_the_path_stay_in_their_segment() {
    let check = |more: Value, value: Value, expected: &str| {
        let mut parameter = json!({ "name": "p", "in": "path", "required": true });
        parameter.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let text = sent(&get(parameter), json!({ "p": value }));
        assert_eq!(text.strip_prefix("GET https://a.test").unwrap_or(&text), expected, "{more} {value}");
    };
    let plain = || json!({});
    check(plain(), json!("a b"), "/x/a%20b/y");
    check(plain(), json!(5), "/x/5/y");
    check(plain(), json!("a/b?c#d%2e"), "/x/a%2Fb%3Fc%23d%252e/y");
    check(plain(), json!("é{}"), "/x/%C3%A9%7B%7D/y");
    check(plain(), json!(["a", "b,c"]), "/x/a,b%2Cc/y");
    check(plain(), json!({ "R": 1, "G": 2 }), "/x/R,1,G,2/y");
    check(json!({ "explode": true }), json!({ "R": 1, "G": 2 }), "/x/R=1,G=2/y");
    check(json!({ "style": "label" }), json!(["a", "b"]), "/x/.a,b/y");
    check(json!({ "style": "label", "explode": true }), json!(["a", "b"]), "/x/.a.b/y");
    check(json!({ "style": "matrix" }), json!(["a", "b"]), "/x/;p=a,b/y");
    check(json!({ "style": "matrix", "explode": true }), json!(["a", "b"]), "/x/;p=a;p=b/y");
    check(json!({ "style": "matrix", "explode": true }), json!({ "R": 1 }), "/x/;R=1/y");
    check(json!({ "allowReserved": true }), json!("a/b?c"), "/x/a/b?c/y".replace("b?c", "b%3Fc").as_str());
    for out in ["..", ".", "../admin", "a/../../b", "a\\..\\b", "a\nb"] {
        let expected = format!("! `p` is part of the path, and {} would lead out of it", json!(out));
        check(plain(), json!(out), &expected);
        check(json!({ "allowReserved": true }), json!(out), &expected);
    }
    let dots = json!({ "style": "label", "explode": true });
    check(dots, json!(["", ""]), "! the params of the path would lead out of it");
    check(plain(), json!(""), "! `p` is part of the path and cannot be empty");
    check(plain(), json!([]), "! `p` is part of the path and cannot be empty");
    check(plain(), json!(null), "! `p` is part of the path, and is missing");
    check(
        json!({ "allowReserved": true }),
        json!("/etc"),
        "! `p` is part of the path and cannot begin or end with a slash or have two in a row",
    );
}

#[test]
fn params_of_the_query_are_written_in_their_style() {
    let check = |more: Value, value: Value, expected: &str| {
        let mut parameter = json!({ "name": "p", "in": "query" });
        parameter.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let text = sent(&get(parameter), json!({ "p": value }));
        assert_eq!(text.strip_prefix("GET https://a.test/x").unwrap_or(&text), expected, "{more} {value}");
    };
    let list = || json!(["a", "b&c"]);
    let object = || json!({ "R": 1, "G": "x y" });
    check(json!({}), json!("a&b=c+d"), "?p=a%26b%3Dc%2Bd");
    check(json!({}), json!(true), "?p=true");
    check(json!({}), json!(""), "?p=");
    check(json!({}), json!(null), "");
    check(json!({}), list(), "?p=a&p=b%26c");
    check(json!({}), json!([]), "");
    check(json!({}), object(), "?R=1&G=x%20y");
    check(json!({ "explode": false }), list(), "?p=a,b%26c");
    check(json!({ "explode": false }), object(), "?p=R,1,G,x%20y");
    check(json!({ "style": "spaceDelimited" }), list(), "?p=a%20b%26c");
    check(json!({ "style": "pipeDelimited" }), list(), "?p=a%7Cb%26c");
    check(json!({ "style": "deepObject" }), object(), "?p%5BR%5D=1&p%5BG%5D=x%20y");
    check(
        json!({ "style": "deepObject" }),
        json!({ "a": { "b": [1, 2] }, "c": [{ "d": 3 }] }),
        "?p%5Ba%5D%5Bb%5D%5B%5D=1&p%5Ba%5D%5Bb%5D%5B%5D=2&p%5Bc%5D%5B0%5D%5Bd%5D=3",
    );
    check(json!({ "style": "deepObject" }), list(), "?p%5B%5D=a&p%5B%5D=b%26c");
    check(json!({ "allowReserved": true }), json!("a/b:c&d"), "?p=a/b:c%26d");
    check(
        json!({ "content": { "application/json": {} } }),
        json!({ "a": [1] }),
        "?p=%7B%22a%22%3A%5B1%5D%7D",
    );
    check(
        json!({}),
        json!("x".repeat(70_000)),
        "! the address would have 70019 bytes; at most 65536 can be sent: shorten the params",
    );
}

#[test]
fn headers_and_cookies_take_no_second_line() {
    let check = |place: &str, value: Value, expected: &str| {
        let operation = get(json!({ "name": "X-P", "in": place }));
        let text = sent(&operation, json!({ "X-P": value }));
        assert_eq!(text.strip_prefix("GET https://a.test/x").unwrap_or(&text), expected, "{place} {value}");
    };
    let refused = "! `X-P` goes into a header, which accepts only visible ASCII characters on one line";
    check("header", json!("a b"), "\nx-p: a b");
    check("header", json!([1, 2]), "\nx-p: 1,2");
    check("header", json!("a\r\nHost: evil"), refused);
    check("header", json!("ü"), refused);
    check("cookie", json!("a;b\r\n"), "\ncookie: X-P=a%3Bb%0D%0A");
    check("cookie", json!(["a", "b"]), "\ncookie: X-P=a; X-P=b");
}

/// Returns an operation with one body, whose media type has these members.
fn post(media_type: &str, content: Value) -> Operation {
    only(with(json!({ "operationId": "o", "requestBody": { "content": { media_type: content } } })))
}

#[test]
fn bodies_are_sent_as_their_media_type_says() {
    let check = |media_type: &str, content: Value, params: Value, expected: &str| {
        let text = sent(&post(media_type, content), params.clone());
        let text = text.strip_prefix("POST https://api.test/v1/x").unwrap_or(&text).trim_start().to_string();
        assert_eq!(text, expected, "{media_type} {params}");
    };
    let object = |members: Value| json!({ "schema": { "type": "object", "properties": members } });
    let two = || object(json!({ "a": { "type": "integer" }, "b": { "type": "array" } }));
    check(
        "application/json",
        two(),
        json!({ "a": 1, "b": ["x"] }),
        "application/json\n{\"a\":1,\"b\":[\"x\"]}",
    );
    check("application/json", two(), json!({}), "");
    check("application/json", two(), json!({ "c": 1 }), "! `POST /x` has no param `c`");
    let open =
        json!({ "schema": { "properties": { "a": {} }, "additionalProperties": { "type": "integer" } } });
    check("application/json", open, json!({ "a": 1, "c": 2 }), "application/json\n{\"a\":1,\"c\":2}");
    let list = || json!({ "schema": { "type": "array", "items": { "type": "integer" } } });
    check("application/json", list(), json!({ "body": [1] }), "application/json\n[1]");
    check("application/vnd.api+json", list(), json!({ "body": [1] }), "application/vnd.api+json\n[1]");
    check("application/*+json", list(), json!({ "body": null }), "application/json\nnull");
    check("*/*", json!({}), json!({ "body": 1 }), "application/json\n1");
    check("text/csv", json!({}), json!({ "body": "a,b" }), "text/csv\na,b");
    check("application/xml", two(), json!({ "body": "<a/>" }), "application/xml\n<a/>");
    check("image/png", json!({}), json!({ "body": "aGk=" }), "image/png\nhi");
    check(
        "image/*",
        json!({}),
        json!({ "body": "data:image/png;base64,aGk=" }),
        "application/octet-stream\nhi",
    );
    check("image/png", json!({}), json!({ "body": "?" }), "! `body` is not base64");
    let form = "application/x-www-form-urlencoded";
    check(form, two(), json!({ "a": 1, "b": ["x y", "z"] }), &format!("{form}\na=1&b=x%20y&b=z"));
    check(
        form,
        two(),
        json!({ "a": null, "b": [{ "c": 1 }] }),
        &format!("{form}\nb=%5B%7B%22c%22%3A1%7D%5D"),
    );
    let mut styled = two();
    styled["encoding"] = json!({ "b": { "style": "deepObject" } });
    check(form, styled, json!({ "b": ["x"] }), &format!("{form}\nb%5B%5D=x"));
    check(
        form,
        json!({ "schema": { "type": "object" } }),
        json!({ "body": { "k": "v" } }),
        &format!("{form}\nk=v"),
    );
}

#[test]
fn json_is_preferred_among_media_types() {
    let schema = || json!({ "schema": { "type": "object", "properties": { "a": { "type": "string" } } } });
    let content = json!({
        "application/octet-stream": {}, "multipart/form-data": schema(), "application/json-patch+json": schema(),
        "application/merge-patch+json": schema(), "text/plain": {}
    });
    let operation = only(with(json!({ "operationId": "o", "requestBody": { "content": content } })));
    let (kind, _) = call(&operation, json!({ "a": "x" })).expect("a request").body.expect("a body");
    assert_eq!(kind, "application/merge-patch+json");
}

#[test]
fn forms_carry_files() {
    let content = json!({ "schema": { "type": "object", "required": ["file"], "properties": {
        "file": { "type": "string", "format": "binary", "description": "The picture." },
        "more": { "type": "array", "items": { "type": "string", "format": "binary" } },
        "note": { "type": "string" },
        "meta": { "type": "object" },
    } } });
    let operation = post("multipart/form-data", content);
    insta::assert_json_snapshot!(operation.definition["inputSchema"]);
    let params = json!({
        "file": { "base64": STANDARD.encode("PNG"), "file_name": "a\"b\r\n.png", "content_type": "image/png" },
        "more": ["one", { "text": "two", "file_name": "2.txt" }],
        "note": "n",
        "meta": { "k": 1 },
    });
    insta::assert_snapshot!(sent(&operation, params.clone()).replace('\r', ""));
    assert_eq!(sent(&operation, params.clone()), sent(&operation, params));
    let check = |file: Value, expected: &str| assert_eq!(sent(&operation, json!({ "file": file })), expected);
    check(json!({}), "! `file` is a file: it needs `text`, or `base64` of its bytes");
    check(json!({ "base64": "?" }), "! `file.base64` is not base64");
    check(json!({ "text": "x", "content_type": "a\r\nb: c" }), "! `file.content_type` must be a media type");
}

#[test]
fn answers_are_asked_for_in_the_types_of_the_document() {
    let check = |types: &[&str], expected: &str| {
        let content: Map<String, Value> = types.iter().map(|kind| ((*kind).to_string(), json!({}))).collect();
        let operation =
            only(with(json!({ "operationId": "o", "responses": { "200": { "content": content } } })));
        assert_eq!(call(&operation, json!({})).expect("a request").headers["accept"], expected);
    };
    check(&[], "application/json, */*;q=0.5");
    check(&["text/csv", "application/vnd.api+json"], "application/vnd.api+json, text/csv;q=0.8, */*;q=0.5");
    check(&["*/*"], "application/json, */*;q=0.5");
}

fn endpoint(value: Value) -> Endpoint {
    serde_json::from_value(value).expect("an endpoint")
}

#[test]
fn endpoints_put_params_where_they_say() {
    let check = |given: Value, params: Value, expected: &str| {
        let endpoints = BTreeMap::from([("own".to_string(), endpoint(given))]);
        let service = Service::by_hand(&endpoints, Some("https://a.test/v1"));
        assert_eq!(service.left_out, Vec::<String>::new());
        let operation = &service.operations["own"];
        assert_eq!(Schema::new(operation.definition["inputSchema"].clone()).broken(), None);
        let made = operation.request(None, params.as_object().expect("an object"));
        let text = made.map_or_else(
            |why| format!("! {why}"),
            |request| {
                let headers = request.headers.iter().filter(|(name, _)| *name != "accept");
                let headers: String = headers.map(|(name, value)| format!(" {name}={value:?}")).collect();
                let body = request.body.map_or_else(String::new, |(_, body)| {
                    format!(" {}", String::from_utf8(body).expect("text"))
                });
                format!("{} {}{headers}{body}", request.method, request.url)
            },
        );
        assert_eq!(text, expected);
    };
    check(
        json!({ "path": "/u/{id}", "query": ["page"] }),
        json!({ "id": 7, "page": 2 }),
        "GET https://a.test/v1/u/7?page=2",
    );
    check(json!({ "path": "/u/{id}" }), json!({}), "! `id` is part of the path, and is missing");
    check(json!({ "path": "/u/{+file}" }), json!({ "file": "a/b c" }), "GET https://a.test/v1/u/a/b%20c");
    check(
        json!({ "path": "/u?fixed=1&q={q}" }),
        json!({ "q": "a/b" }),
        "GET https://a.test/v1/u?fixed=1&q=a%2Fb",
    );
    check(
        json!({ "method": "post", "path": "/u", "header": ["X-Id"], "query": ["dry"], "body": ["name"] }),
        json!({ "X-Id": "1", "dry": true, "name": "n" }),
        "POST https://a.test/v1/u?dry=true x-id=\"1\" {\"name\":\"n\"}",
    );
    let schema = json!({ "properties": { "id": { "type": "integer" }, "rest": { "type": "array" } } });
    let by = |method: &str| json!({ "method": method, "path": "/u/{id}", "input_schema": schema });
    let params = json!({ "id": 1, "rest": [2] });
    check(by("PUT"), params.clone(), "PUT https://a.test/v1/u/1 {\"rest\":[2]}");
    check(by("DELETE"), params, "DELETE https://a.test/v1/u/1?rest=2");
}

#[test]
fn the_definition_of_an_endpoint() {
    let given =
        json!({ "method": "DELETE", "path": "/u/{id}", "description": "Removes a user", "query": ["force"] });
    let service = Service::by_hand(&BTreeMap::from([("remove".to_string(), endpoint(given))]), None);
    insta::assert_json_snapshot!(*service.operations["remove"].definition);
}

#[test]
fn endpoints_that_cannot_work_are_refused() {
    let check = |given: Value, expected: &[&str]| {
        assert_eq!(super::endpoints::check(&endpoint(given.clone())), expected, "{given}");
        let service = Service::by_hand(&BTreeMap::from([("own".to_string(), endpoint(given))]), None);
        assert_eq!(service.left_out.is_empty(), expected.is_empty());
        assert_eq!(service.operations.is_empty(), !expected.is_empty());
    };
    check(json!({ "path": "/a/{b}", "query": ["c"] }), &[]);
    check(json!({ "path": "a" }), &["`path` is `a`; it must begin with a slash"]);
    check(
        json!({ "path": "/a b" }),
        &["`path` has a space or `#`, which a request cannot have there: percent-encode it"],
    );
    check(json!({ "path": "/a/{b" }), &["`path` is `/a/{b`: the braces of its path do not match"]);
    check(json!({ "path": "/a/b}" }), &["`path` is `/a/b}`: the braces of its path do not match"]);
    check(json!({ "path": "/{}" }), &["`path` is `/{}`: its path has a param without a name"]);
    check(
        json!({ "path": "/a", "method": "TRACE" }),
        &["`method` is `TRACE`; it must be GET, HEAD, POST, PUT, PATCH or DELETE"],
    );
    check(
        json!({ "path": "/{a}", "query": ["a", "b", "b"] }),
        &[
            "the param `a` is in `path` and again in `query`; name it once",
            "the param `b` is in `query` and again in `query`; name it once",
        ],
    );
    check(
        json!({ "path": "/a", "body": ["b"] }),
        &["`body` is set, but a GET request has none: use `query`"],
    );
    check(
        json!({ "path": "/a", "header": ["X Y"] }),
        &["`header` has `X Y`, which cannot be the name of a header"],
    );
    check(
        json!({ "path": "/a", "header": ["Authorization"] }),
        &[
            "`header` has `Authorization`, which is not for models to set: put it into `headers` of the server",
        ],
    );
    check(
        json!({ "path": "/{a}", "input_schema": { "type": "array", "properties": {} } }),
        &[
            "`input_schema.type` must be `object`",
            "the param `a` of `path` is not in `input_schema.properties`",
        ],
    );
}

/// Whatever the errors in a document, it is either refused or read into valid definitions.
#[test]
fn no_place_of_a_document_has_to_be_right() {
    let document = json!({
        "openapi": "3.1.0",
        "info": { "title": "T", "description": "D" },
        "servers": [{ "url": "https://{a}.test", "variables": { "a": { "default": "b" } } }],
        "paths": { "/x/{id}": {
            "parameters": [{ "name": "id", "in": "path", "required": true, "style": "label", "schema": { "type": "string" } }],
            "post": {
                "operationId": "o",
                "summary": "S",
                "tags": ["t"],
                "parameters": [{ "$ref": "#/components/parameters/q" }],
                "requestBody": { "required": true, "content": { "multipart/form-data": {
                    "schema": { "$ref": "#/components/schemas/Node" },
                    "encoding": { "file": { "contentType": "image/png", "style": "form", "explode": true } },
                    "example": { "text": "x" },
                } } },
                "responses": { "200": { "content": { "application/json": {
                    "schema": { "allOf": [{ "$ref": "#/components/schemas/Node" }] } } } } },
                "servers": [{ "url": "/own" }],
                "deprecated": true
            }
        } },
        "components": {
            "parameters": { "q": {
                "name": "q", "in": "query", "explode": false,
                "content": { "application/json": { "schema": { "type": "object" } } }, "examples": { "a": { "value": 1 } }
            } },
            "schemas": { "Node": {
                "type": "object",
                "required": ["text"],
                "properties": {
                    "text": { "type": ["string", "null"], "enum": ["x"], "minLength": 1, "pattern": "x", "default": "x" },
                    "file": { "type": "string", "format": "binary" },
                    "next": { "$ref": "#/components/schemas/Node", "readOnly": false },
                    "any": { "oneOf": [{ "not": {} }, { "items": [{}], "minimum": 1, "exclusiveMinimum": true }] },
                },
                "additionalProperties": { "type": "integer" },
            } },
            "securitySchemes": { "key": { "type": "apiKey", "in": "header", "name": "K" } }
        }
    });
    let mut places = Vec::new();
    let mut next = vec![(String::new(), &document)];
    while let Some((place, value)) = next.pop() {
        let below: Vec<(String, &Value)> = match value {
            Value::Object(members) => {
                members.iter().map(|(key, value)| (key.replace('/', "~1"), value)).collect()
            }
            Value::Array(items) => {
                items.iter().enumerate().map(|(at, value)| (at.to_string(), value)).collect()
            }
            _ => Vec::new(),
        };
        next.extend(below.into_iter().map(|(key, value)| (format!("{place}/{key}"), value)));
        places.push(place);
    }
    let wrong = [
        json!(null),
        json!(true),
        json!(-1.5),
        json!("#"),
        json!("a b\r\n{"),
        json!([]),
        json!([{ "": 1 }]),
        json!({}),
        json!({ "": "" }),
        json!({ "$ref": "#" }),
        json!({ "$ref": "#/components/schemas/Node" }),
        json!({ "$ref": "#/paths" }),
        json!({ "$ref": "a.json", "type": "object" }),
        json!({ "allOf": [{ "$ref": "#/components/schemas/Node" }, { "$ref": "#/components/schemas/Node" }] }),
    ];
    let mut read = 0;
    for place in &places {
        for wrong in &wrong {
            let mut document = document.clone();
            *document.pointer_mut(place).expect("a place") = wrong.clone();
            let Ok(service) = Service::read(document.to_string().as_bytes(), None, None) else { continue };
            for operation in service.operations.values() {
                read += 1;
                for key in ["inputSchema", "outputSchema"] {
                    if let Some(schema) = operation.definition.get(key) {
                        let broken = Schema::new(schema.clone()).broken().map(str::to_string);
                        assert_eq!(broken, None, "{place} {wrong}: {schema}");
                    }
                }
                let properties =
                    operation.definition["inputSchema"]["properties"].as_object().expect("an object");
                for value in &wrong_params() {
                    let params = properties.keys().map(|name| (name.clone(), value.clone())).collect();
                    let _ = operation.request(Some("https://a.test"), &params);
                }
            }
        }
    }
    assert!(read > 1_000, "{read}");
}

fn wrong_params() -> [Value; 5] {
    [json!(null), json!("a\r\n"), json!(["..", []]), json!({ "a": { "b": [1] } }), json!(1)]
}

/// Documents of public services, cut to a few operations.
#[test]
fn real_documents() {
    let check = |document: &str, came_from: Option<&str>| {
        let service = Service::read(document.as_bytes(), came_from, None).expect("a document");
        for operation in service.operations.values() {
            for key in ["inputSchema", "outputSchema"] {
                if let Some(schema) = operation.definition.get(key) {
                    let schema = Schema::new(schema.clone());
                    assert_eq!(schema.broken(), None, "{} {key}", operation.definition["name"]);
                }
            }
        }
        service
    };
    let shown = |service: &Service| {
        let lines = service.operations.iter().map(|(name, operation)| {
            let schema = Schema::new(operation.definition["inputSchema"].clone());
            let description = operation.definition["description"].as_str().unwrap_or_default();
            let output = if operation.definition.get("outputSchema").is_some() { " -> object" } else { "" };
            format!("{}{output}\n    {}\n", schema.signature(name), nonet_base::text::clip(description, 150))
        });
        format!(
            "{}\n{:?} {:?}\n{:#?}\n\n{}",
            nonet_base::text::clip(&service.about, 120),
            service.base_url,
            service.sign_in,
            service.left_out,
            lines.collect::<String>()
        )
    };

    let github = check(include_str!("../../tests/data/openapi/github.json"), None);
    insta::assert_snapshot!("github", shown(&github));
    let params = json!({ "owner": "o", "repo": "r", "path": "src/main.rs", "ref": "v1.0" });
    assert_eq!(
        sent(&github.operations["repos/get-content"], params),
        "GET https://api.github.com/repos/o/r/contents/src%2Fmain.rs?ref=v1.0"
    );
    let params = json!({ "owner": "o", "repo": "r", "release_id": 1, "name": "a.zip", "body": "aGk=" });
    assert_eq!(
        sent(&github.operations["repos/upload-release-asset"], params),
        "POST https://uploads.github.com/repos/o/r/releases/1/assets?name=a.zip\napplication/octet-stream\nhi"
    );
    assert_eq!(
        sent(&github.operations["markdown/render-raw"], json!({ "body": "*x*" })),
        "POST https://api.github.com/markdown/raw\ntext/plain\n*x*"
    );

    let stripe = check(include_str!("../../tests/data/openapi/stripe.json"), None);
    insta::assert_snapshot!("stripe", shown(&stripe));
    let params = json!({ "charge": "ch_1", "amount": 5, "expand": ["charge"], "metadata": { "order": "7" } });
    assert_eq!(
        sent(&stripe.operations["PostRefunds"], params),
        "POST https://api.stripe.com/v1/refunds\napplication/x-www-form-urlencoded\n\
         amount=5&charge=ch_1&expand%5B%5D=charge&metadata%5Border%5D=7"
    );
    let file = call(&stripe.operations["PostFiles"], json!({ "file": "x", "purpose": "business_logo" }));
    assert_eq!(file.expect("a request").url, "https://files.stripe.com/v1/files");

    let discourse = check(include_str!("../../tests/data/openapi/discourse.yaml"), None);
    insta::assert_snapshot!("discourse", shown(&discourse));

    let kubernetes = check(
        include_str!("../../tests/data/openapi/kubernetes.json"),
        Some("https://cluster.test/openapi/v3"),
    );
    insta::assert_snapshot!("kubernetes", shown(&kubernetes));
    let params = json!({ "name": "n", "namespace": "default", "body": { "data": { "k": "v" } } });
    assert_eq!(
        sent(&kubernetes.operations["patchCoreV1NamespacedConfigMap"], params),
        "PATCH https://kubernetes.local/api/v1/namespaces/default/configmaps/n\n\
         application/merge-patch+json\n{\"data\":{\"k\":\"v\"}}"
    );
}
