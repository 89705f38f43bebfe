//! What a schema means depends on its draft.

use super::*;

fn check(schema: Value, fits: Value, misfits: Value) {
    let compiled = Schema::new(schema.clone());
    assert_eq!(compiled.broken(), None, "{schema}");
    assert!(compiled.accepts(&fits), "{schema} {fits}");
    assert!(!compiled.accepts(&misfits), "{schema} {misfits}");
}

#[test]
fn every_draft_is_read_as_what_it_is() {
    for uri in ["http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-06/schema#"] {
        check(
            json!({
                "$schema": uri,
                "definitions": {"Id": {"type": "integer", "exclusiveMinimum": 0}},
                "properties": {"id": {"$ref": "#/definitions/Id"}},
                "dependencies": {"id": ["kind"], "kind": {"required": ["id"]}},
            }),
            json!({"id": 1, "kind": "a"}),
            json!({"id": 1}),
        );
        // A tuple; siblings of a reference are ignored.
        check(
            json!({
                "$schema": uri,
                "definitions": {"Text": {"type": "string"}},
                "properties": {
                    "pair": {"items": [{"type": "integer"}, {"type": "string"}], "additionalItems": false},
                    "text": {"$ref": "#/definitions/Text", "minLength": 5},
                },
            }),
            json!({"pair": [1, "a"], "text": "abc"}),
            json!({"pair": [1, "a", 2]}),
        );
    }
    check(
        json!({
            "$schema": "http://json-schema.org/draft-04/schema#",
            "properties": {"n": {"type": "integer", "minimum": 0, "exclusiveMinimum": true}},
        }),
        json!({"n": 1}),
        json!({"n": 0}),
    );
    check(
        json!({
            "$schema": "https://json-schema.org/draft/2019-09/schema",
            "$defs": {"Id": {"type": "integer"}},
            "properties": {"id": {"$ref": "#/$defs/Id", "minimum": 3}, "pair": {"items": [{"type": "null"}]}},
            "dependentRequired": {"id": ["pair"]},
        }),
        json!({"id": 3, "pair": [null]}),
        json!({"id": 2, "pair": [null]}),
    );
    for named in [json!(null), json!("https://json-schema.org/draft/2020-12/schema")] {
        let mut schema = json!({
            "$defs": {"Id": {"$anchor": "id", "type": "integer"}},
            "properties": {
                "id": {"$ref": "#id", "minimum": 3},
                "pair": {"prefixItems": [{"type": "integer"}], "items": {"type": "string"}},
            },
        });
        if named.is_string() {
            schema["$schema"] = named;
        }
        check(schema, json!({"id": 3, "pair": [1, "a"]}), json!({"id": 3, "pair": [1, 2]}));
    }
}

#[test]
fn an_unknown_dialect_is_the_default_one() {
    for uri in ["https://example.com/my-schema", "http://json-schema.org/draft-99/schema#", ""] {
        check(
            json!({"$schema": uri, "properties": {"pair": {"prefixItems": [{"type": "integer"}]}}}),
            json!({"pair": [1]}),
            json!({"pair": ["a"]}),
        );
    }
}

#[test]
fn five_point_nought_is_no_integer_in_draft_4() {
    let schema = Schema::new(json!({
        "$schema": "http://json-schema.org/draft-04/schema#",
        "properties": {"n": {"type": "integer"}},
    }));
    let reading = schema.read(json!({"n": 5.0})).unwrap();
    assert_eq!(reading.params["n"], json!(5));
    assert_eq!(reading.repaired, ["`n`: the number was taken as an integer"]);
}

/// Repairs follow the draft too: ignored keywords are no reason to change a value.
#[test]
fn a_repair_keeps_to_the_dialect() {
    let schema = |uri: &str| {
        Schema::new(json!({
            "$schema": uri,
            "definitions": {"Text": {"type": ["string", "integer"]}},
            "properties": {"a": {"$ref": "#/definitions/Text", "type": "integer"}, "n": {"type": "integer"}},
        }))
    };
    let given = || json!({"a": "5", "n": "5"});
    let old = schema("http://json-schema.org/draft-07/schema#").read(given()).unwrap();
    assert_eq!(Value::Object(old.params), json!({"a": "5", "n": 5}));
    let new = schema("https://json-schema.org/draft/2020-12/schema").read(given()).unwrap();
    assert_eq!(Value::Object(new.params), json!({"a": 5, "n": 5}));
    let tuple = Schema::new(json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {"pair": {"items": [{"type": "integer"}, {"type": "string"}]}},
    }));
    assert_eq!(tuple.read(json!({"pair": ["1", "1"]})).unwrap().params["pair"], json!([1, "1"]));
}

#[test]
fn a_reference_that_leads_out_is_never_followed() {
    for reference in [
        "https://example.com/a.json",
        "http://127.0.0.1:1/a.json#/x",
        "file:///etc/passwd",
        "other.json",
        "other.json#/definitions/a",
        "//example.com/a",
        "urn:example:a",
        "#nowhere",
        "http://json-schema.org/draft-07/schema#",
    ] {
        let schema = Schema::new(json!({"properties": {"a": {"$ref": reference}}}));
        assert!(schema.broken().is_some(), "{reference}");
        assert_eq!(schema.read(json!({"a": 1})).map(|reading| reading.repaired), Ok(Vec::new()));
    }
    let schema = Schema::new(json!({
        "$id": "https://example.com/tool.json",
        "$defs": {"a": {"type": "string"}},
        "properties": {"a": {"$ref": "https://example.com/tool.json#/$defs/a"}},
    }));
    assert_eq!(schema.broken(), None, "its own name leads to itself");
    assert!(!schema.accepts(&json!({"a": 1})));
}
