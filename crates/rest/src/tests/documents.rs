//! Documents: what becomes a tool, under which name and address, and what cannot be used.

use super::*;

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

    let github = check(include_str!("../../../../tests/data/openapi/github.json"), None);
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

    let stripe = check(include_str!("../../../../tests/data/openapi/stripe.json"), None);
    insta::assert_snapshot!("stripe", shown(&stripe));
    let params = json!({ "charge": "ch_1", "amount": 5, "expand": ["charge"], "metadata": { "order": "7" } });
    assert_eq!(
        sent(&stripe.operations["PostRefunds"], params),
        "POST https://api.stripe.com/v1/refunds\napplication/x-www-form-urlencoded\n\
         amount=5&charge=ch_1&expand%5B%5D=charge&metadata%5Border%5D=7"
    );
    let file = call(&stripe.operations["PostFiles"], json!({ "file": "x", "purpose": "business_logo" }));
    assert_eq!(file.expect("a request").url, "https://files.stripe.com/v1/files");

    let discourse = check(include_str!("../../../../tests/data/openapi/discourse.yaml"), None);
    insta::assert_snapshot!("discourse", shown(&discourse));

    let kubernetes = check(
        include_str!("../../../../tests/data/openapi/kubernetes.json"),
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
