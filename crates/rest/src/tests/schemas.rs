//! Schemas of params and answers.

use super::*;

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
