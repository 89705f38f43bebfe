//! Tables: calls as models send them, dialects as servers write them, and hostile schemas.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::*;

mod calls;
mod dialects;
mod hostile;

fn schema() -> Schema {
    Schema::new(json!({
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Where"},
            "maxDepth": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "deep": {"type": "boolean", "default": false},
            "mode": {"enum": ["r", "w"]},
        },
        "required": ["path"],
        "additionalProperties": false,
    }))
}

/// `None`: refused. Otherwise the params and the number of notes.
fn check(given: Value, expected: Option<(Value, usize)>) {
    match (schema().read(given.clone()), expected) {
        (Ok(reading), Some((params, repairs))) => {
            assert_eq!(Value::Object(reading.params), params, "{given}");
            assert_eq!(reading.repaired.len(), repairs, "{given}: {:?}", reading.repaired);
        }
        (Err(_), None) => {}
        (got, _) => panic!("{given}: {got:?}"),
    }
}

#[test]
fn one_reading_is_found_or_none_is_taken() {
    let plain = json!({"path": "a"});
    check(plain.clone(), Some((plain.clone(), 0)));
    check(json!("{\"path\": \"a\"}"), Some((plain.clone(), 1)));
    check(json!({"arguments": {"path": "a"}}), Some((plain.clone(), 1)));
    check(json!({"params": {"arguments": "{\"path\":\"a\"}"}}), Some((plain.clone(), 3)));
    check(json!({"Path": "a"}), Some((plain.clone(), 1)));
    check(json!({"path": "a", "max_depth": "3"}), Some((json!({"path": "a", "maxDepth": 3}), 2)));
    check(json!({"path": "a", "maxDepth": 3.0}), Some((json!({"path": "a", "maxDepth": 3.0}), 0)));
    check(json!({"path": "a", "tags": "x"}), Some((json!({"path": "a", "tags": ["x"]}), 1)));
    check(json!({"path": "a", "tags": "[\"x\"]"}), Some((json!({"path": "a", "tags": ["x"]}), 1)));
    check(json!({"path": "a", "deep": "True"}), Some((json!({"path": "a", "deep": true}), 1)));
    check(json!({"path": "a", "mode": null}), Some((plain, 1)));
    check(json!({"path": 5}), Some((json!({"path": "5"}), 1)));
    check(json!({}), None);
    check(json!({"path": "a", "other": 1}), None);
    check(json!({"path": "a", "maxDepth": "deep"}), None);
    check(json!([1]), None);
    check(json!("not json"), None);
}

#[test]
fn references_to_definitions_are_followed() {
    let schema = Schema::new(json!({
        "type": "object",
        "$defs": {"Mode": {"enum": ["r", "w"]}},
        "properties": {"mode": {"$ref": "#/$defs/Mode"}},
        "required": ["mode"],
    }));
    assert!(schema.read(json!({"mode": "r"})).is_ok());
    let misfit = schema.read(json!({"mode": "zzz"})).unwrap_err();
    assert!(misfit.faults[0].contains("zzz"), "{misfit:?}");
}

#[test]
fn a_misfit_teaches() {
    let misfit = schema().read(json!({"maxDepth": "deep", "other": 1})).unwrap_err();
    assert!(misfit.faults.iter().any(|fault| fault.contains("path")), "{:?}", misfit.faults);
    assert_eq!(Value::Object(misfit.example), json!({"path": "<string>"}));
    assert!(!misfit.example_fits);
    let misfit = schema().read(json!({"path": "a", "other": 1})).unwrap_err();
    assert!(misfit.example_fits);
    let misfit = schema().read(json!({"path": "a", "maxDepth": "deep"})).unwrap_err();
    assert!(!misfit.example_fits, "without the depth it is another call: {misfit:?}");
}

#[test]
fn every_fault_is_told() {
    let schema = Schema::new(json!({
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "maxDepth": {"type": "integer", "minimum": 0},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["path"],
        "additionalProperties": false,
    }));
    let misfit = schema.read(json!({"maxDepth": -1, "tags": "[", "pth": 1})).unwrap_err();
    assert_eq!(
        misfit.faults,
        [
            "params/maxDepth: -1 is less than the minimum of 0",
            "params/tags: \"[\" is not of type \"array\"",
            "params: Additional properties are not allowed ('pth' was unexpected)",
            "params: \"path\" is a required property",
        ]
    );
    assert_eq!(Value::Object(misfit.example), json!({"path": "<string>"}));
}

#[test]
fn a_misfit_teaches_about_what_is_inside() {
    let schema = Schema::new(json!({
        "type": "object",
        "properties": {"to": {"type": "array", "items": {
            "type": "object",
            "properties": {"address": {"type": "string", "pattern": "@"}, "name": {"type": "string"}},
            "required": ["address"],
            "additionalProperties": false,
        }}},
        "required": ["to"],
    }));
    let misfit = schema.read(json!({"to": [{"name": "Ada", "mail": 5}]})).unwrap_err();
    assert!(misfit.faults.iter().any(|fault| fault.starts_with("params/to/0: ")), "{:?}", misfit.faults);
    assert_eq!(Value::Object(misfit.example), json!({"to": [{"name": "Ada", "address": "<string>"}]}));
    assert!(!misfit.example_fits, "it has a placeholder");
}

#[test]
fn a_missing_choice_is_not_made_for_the_model() {
    let schema = Schema::new(json!({
        "properties": {"mode": {"enum": ["drop", "keep"]}}, "required": ["mode"],
    }));
    let misfit = schema.read(json!({"mode": "delete"})).unwrap_err();
    assert!(!misfit.example_fits, "{misfit:?}");
}

#[test]
fn faults_do_not_repeat_a_huge_value() {
    let huge = "x".repeat(100_000);
    let misfit = schema().read(json!({"path": "a", "maxDepth": huge, huge.clone(): 1})).unwrap_err();
    assert!(misfit.faults.iter().all(|fault| fault.len() < 400), "{:?}", misfit.faults);
    let misfit = schema().read(json!(huge)).unwrap_err();
    assert!(misfit.faults[0].len() < 400, "{:?}", misfit.faults);
}

#[test]
fn many_repairs_are_told_in_short() {
    let schema = Schema::new(json!({"properties": {"n": {"items": {"type": "integer"}}}}));
    let given: Vec<String> = (0..1_000).map(|n| n.to_string()).collect();
    let reading = schema.read(json!({"n": given})).unwrap();
    assert_eq!(reading.params["n"][999], 999);
    assert_eq!(reading.repaired.len(), 21);
    assert_eq!(reading.repaired[20], "and 980 more changes of this kind");
}

#[test]
fn a_signature_is_short() {
    assert_eq!(
        schema().signature("ls"),
        r#"ls(path: string, maxDepth?: integer, tags?: string[], deep?: boolean, mode?: "r"|"w")"#
    );
}

#[test]
fn a_broken_schema_lets_everything_through() {
    for broken in [
        json!(null),
        json!({"type": 5}),
        json!({"$ref": "https://example.com/schema.json"}),
        json!({"$ref": "#/definitions/nowhere"}),
    ] {
        let schema = Schema::new(broken);
        assert!(schema.broken().is_some(), "{:?}", schema.raw());
        assert!(schema.read(json!({"any": 1})).is_ok());
        assert!(schema.read(json!("{\"any\": 1}")).is_ok_and(|reading| reading.repaired.len() == 1));
        assert!(schema.read(json!([1])).is_err());
    }
}

/// Not a test: run `cargo test --release -- --ignored --nocapture strict_reading` to measure.
#[test]
#[ignore = "prints how long the strict reading takes"]
fn strict_reading_is_cheap() {
    let schema = schema();
    let given = json!({"path": "a/b/c", "maxDepth": 3, "tags": ["x", "y"], "deep": true, "mode": "r"});
    assert!(schema.read(given.clone()).is_ok());
    let copies: Vec<Value> = (0..100_000).map(|_| given.clone()).collect();
    let began = Instant::now();
    let readings: Vec<ValidParams> = copies.into_iter().filter_map(|copy| schema.read(copy).ok()).collect();
    println!("strict: {:?} each", began.elapsed() / u32::try_from(readings.len()).unwrap());
    let began = Instant::now();
    for _ in 0..1_000 {
        assert!(schema.read(json!({"arguments": {"path": "a", "max_depth": "3"}})).is_ok());
    }
    println!("repaired: {:?} each", began.elapsed() / 1_000);
    let tree = Schema::new(
        json!({"$defs": {"n": {"properties": {"a": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}),
    );
    assert!(tree.broken().is_none());
    let began = Instant::now();
    for _ in 0..1_000 {
        assert!(tree.read(json!({"a": {"a": {}}})).is_ok());
    }
    println!("watched: {:?} each", began.elapsed() / 1_000);
}

#[test]
fn a_list_that_is_too_long_is_shown_cut() {
    let schema = Schema::new(json!({
        "type": "object",
        "properties": {"names": {"type": "array", "items": {"type": "string"}, "maxItems": 2}},
    }));
    let misfit = schema.read(json!({"names": ["a", "b", "c"]})).expect_err("one too many");
    assert_eq!(Value::Object(misfit.example), json!({"names": ["a", "b"]}));
    assert!(!misfit.example_fits, "the rest was meant too");
}
