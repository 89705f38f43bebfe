//! Hostile schemas. No test may take long; the deadlines leave room for slow machines.

use super::*;

const DEADLINE: Duration = Duration::from_secs(20);

/// Runs on a small stack, like the gateway's workers, within the deadline.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().stack_size(2 << 20);
    let thread = thread.spawn(move || send.send(work()).unwrap()).unwrap();
    let done = receive.recv_timeout(DEADLINE).expect("it ends in time");
    thread.join().unwrap();
    done
}

/// Such a schema is detected statically; the tool stays callable.
fn check_broken(schema: Value, why: &str) {
    in_time({
        let (schema, why) = (schema.clone(), why.to_string());
        move || {
            let shown = nonet_base::text::clip(&schema.to_string(), 200);
            let schema = Schema::new(schema);
            let broken = schema.broken().unwrap_or_else(|| panic!("not broken: {shown}"));
            assert!(broken.contains(&why), "{shown}: {broken}");
            assert!(schema.read(json!({"a": 1})).is_ok_and(|reading| reading.repaired.is_empty()));
        }
    });
}

fn chain(length: usize, link: impl Fn(Value) -> Value) -> Value {
    let mut schema = json!({"$defs": {}, "$ref": "#/$defs/a0"});
    for n in 0..length {
        schema["$defs"][format!("a{n}")] = link(json!({"$ref": format!("#/$defs/a{}", n + 1)}));
    }
    schema["$defs"][format!("a{length}")] = json!({"required": ["zz"]});
    schema
}

fn nested(levels: usize, key: &str) -> Value {
    (0..levels).fold(json!({}), |inner, _| json!({ key: inner }))
}

#[test]
fn a_reference_that_goes_in_a_circle_is_found() {
    let why = "leads back to itself";
    check_broken(json!({"$ref": "#"}), why);
    check_broken(json!({"allOf": [{"$ref": "#"}]}), why);
    check_broken(json!({"not": {"$ref": "#"}}), why);
    check_broken(json!({"if": {"$ref": "#"}}), why);
    check_broken(json!({"dependentSchemas": {"a": {"$ref": "#"}}}), why);
    check_broken(
        json!({"properties": {"a": {"$ref": "#/properties/b"}, "b": {"$ref": "#/properties/a"}}}),
        why,
    );
    check_broken(
        json!({
            "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"anyOf": [{"$ref": "#/%24defs/a"}]}},
            "properties": {"x": {"$ref": "#/$defs/a"}},
        }),
        why,
    );
    check_broken(json!({"$anchor": "top", "oneOf": [{"$ref": "#top"}]}), why);
    check_broken(json!({"$id": "https://example.com/a", "anyOf": [{"$ref": "https://example.com/a"}]}), why);
}

#[test]
fn a_schema_that_unfolds_without_end_is_found() {
    for keyword in ["anyOf", "oneOf", "allOf"] {
        let schema = chain(40, |next| json!({ keyword: [next.clone(), next] }));
        check_broken(schema, "expands to more than");
    }
    check_broken(chain(5_000, |next| next), "subschemas form a chain of");
    check_broken(chain(1_500, |next| json!({"properties": {"a": next}})), "chain of references is too long");
}

#[test]
fn a_schema_that_is_too_large_is_found() {
    check_broken((0..150).fold(json!({}), |inner, _| json!({"not": inner})), "nests deeper");
    check_broken(json!({"description": "x".repeat(1_100_000)}), "longer than");
    let patterns: Map<String, Value> =
        (0..100).map(|n| (format!("p{n}"), json!({"pattern": format!("^{n}(\\w{{500}}){{20}}$")}))).collect();
    check_broken(json!({"properties": patterns}), "patterns");
    check_broken(json!({"properties": {"a": {"pattern": "((a{1000}){1000}){1000}"}}}), "regex");
}

#[test]
fn references_that_depend_on_the_way_are_not_followed() {
    check_broken(json!({"$dynamicAnchor": "n", "properties": {"a": {"$dynamicRef": "#n"}}}), "$dynamicRef");
    check_broken(
        json!({
            "$schema": "https://json-schema.org/draft/2019-09/schema",
            "$recursiveAnchor": true,
            "properties": {"a": {"$recursiveRef": "#"}},
        }),
        "$recursiveRef",
    );
    check_broken(
        json!({
            "properties": {"a": {"$ref": "#/$defs/a"}},
            "$defs": {"a": {"$id": "https://example.com/", "properties": {"b": {"$ref": "#/x"}}, "x": {}}},
        }),
        "$id",
    );
}

#[test]
fn an_honest_recursive_schema_works() {
    in_time(|| {
        let schema = Schema::new(json!({
            "$defs": {"Filter": {
                "type": "object",
                "properties": {
                    "and": {"type": "array", "items": {"$ref": "#/$defs/Filter"}},
                    "limit": {"type": "integer"},
                },
                "additionalProperties": false,
            }},
            "properties": {"filter": {"$ref": "#/$defs/Filter"}},
            "required": ["filter"],
        }));
        assert_eq!(schema.broken(), None);
        let reading = schema.read(json!({"filter": {"and": [{"limit": 1}]}})).unwrap();
        assert!(reading.repaired.is_empty());
        let reading = schema.read(json!({"filter": {"and": [{"limit": "1"}]}})).unwrap();
        assert_eq!(reading.repaired, ["`filter.and[0].limit`: text was taken as a number"]);
        let misfit = schema.read(json!({"filter": {"and": 1}})).unwrap_err();
        assert!(misfit.faults[0].contains("params/filter"), "{misfit:?}");
        assert!(schema.read(nested(400, "filter")).is_err_and(|misfit| misfit.faults[0].contains("deeper")));
    });
}

/// Checking one value takes as many visits as there are paths through the schema.
#[test]
fn recursion_with_branches_ends() {
    in_time(|| {
        let node = json!({"$ref": "#/$defs/n"});
        let branch = |name: &str| json!({"properties": {"a": {"anyOf": [node]}}, "required": [name]});
        let schema = Schema::new(json!({
            "$defs": {"n": {"anyOf": [branch("q"), branch("r"), branch("s"), branch("t")]}},
            "properties": {"a": node},
        }));
        assert_eq!(schema.broken(), None);
        // Refused or passed: the call returns, and so does the next.
        let _ = schema.read(nested(100, "a"));
        let _ = schema.read(nested(100, "a"));
    });
}

#[test]
fn alternatives_without_a_reference_end() {
    in_time(|| {
        let mut schema = json!({"type": "string"});
        for _ in 0..12 {
            schema =
                json!({"properties": {"a": schema}, "anyOf": [{"required": ["q"]}, {"required": ["r"]}]});
        }
        let schema = Schema::new(schema);
        assert!(schema.read(nested(100, "a")).is_err());
    });
}

#[test]
fn patterns_that_track_back_end() {
    for pattern in ["^(a+)+$", "^(?=x?)(a+)+\\1$", "(((((?=a)b){0,999}){0,999}){0,999}){0,999}"] {
        in_time(move || {
            let schema = Schema::new(json!({"properties": {"a": {"type": "string", "pattern": pattern}}}));
            assert_eq!(schema.broken(), None, "{pattern}");
            let _ = schema.read(json!({"a": format!("{}!", "a".repeat(5_000))}));
        });
    }
}

#[test]
fn a_look_ahead_works() {
    let schema = Schema::new(json!({
        "properties": {"password": {"type": "string", "pattern": "^(?=.*[0-9])(?=.*[a-z]).{8,}$"}},
    }));
    assert!(schema.read(json!({"password": "abcdefg1"})).is_ok_and(|reading| reading.repaired.is_empty()));
    assert!(schema.read(json!({"password": "abcdefgh"})).is_err());
}

#[test]
fn what_runs_over_is_not_checked_again() {
    in_time(|| {
        // A loop around nothing, which no backtracking limit counts.
        let pattern = "((((?=a)){1000}){1000}){1000}";
        let schema = Schema::new(json!({"properties": {"a": {"pattern": pattern}}}));
        assert_eq!(schema.broken(), None);
        let reading = schema.read(json!({"a": "aaaaaaaaaaaaaaaaaaaa!"})).unwrap();
        assert_eq!(reading.params["a"], "aaaaaaaaaaaaaaaaaaaa!");
        assert!(schema.broken().is_some_and(|why| why.contains("too long")), "{:?}", schema.broken());
        assert!(schema.accepts(&json!({"a": "a"})));
    });
}

#[test]
fn a_deep_schema_fits_on_the_stack() {
    in_time(|| {
        let schema = Schema::new((0..48).fold(
            json!({"type": "string"}),
            |inner, _| json!({"properties": {"a": inner}, "required": ["a"]}),
        ));
        assert_eq!(schema.broken(), None);
        let value = (0..48).fold(json!(5), |inner, _| json!({"a": inner}));
        let _ = schema.read(value);
        let schema = Schema::new((0..98).fold(json!({}), |inner, _| json!({"not": inner})));
        assert_eq!(schema.broken(), None);
        let _ = schema.read(nested(120, "a"));
        let schema = Schema::new(chain(90, |next| next));
        assert_eq!(schema.broken(), None);
        assert!(schema.read(nested(120, "a")).is_err());
    });
}

#[test]
fn recursion_fits_on_the_stack() {
    in_time(|| {
        // Many steps per level of the value.
        let mut schema = chain(45, |next| json!({"allOf": [next]}));
        schema["$defs"]["a45"] = json!({"properties": {"a": {"$ref": "#/$defs/a0"}}});
        let schema = Schema::new(schema);
        assert_eq!(schema.broken(), None);
        assert!(schema.read(nested(150, "a")).is_ok());
        assert_eq!(schema.broken(), None);
    });
}

#[test]
fn many_alternatives_for_large_params_end() {
    in_time(|| {
        let branches: Vec<Value> = (0..1_500)
            .map(|n| json!({"type": "object", "properties": {"a": {"const": n}}, "required": [format!("k{n}")]}))
            .collect();
        let schema = Schema::new(json!({"properties": {"x": {"anyOf": branches}}, "required": ["x"]}));
        assert_eq!(schema.broken(), None);
        let large: Map<String, Value> = (0..50_000).map(|n| (format!("f{n}"), json!(n))).collect();
        // On a slow machine, the check runs out of time and the tool goes unchecked.
        assert!(schema.read(json!({"x": large})).is_err() || schema.broken().is_some());
    });
}

#[test]
fn nearly_all_schemas_are_simple() {
    for schema in [
        json!({"type": "object"}),
        json!({"properties": {"a": {"type": "string", "pattern": "^[0-9a-f]{8}-[0-9a-f]{4}$", "format": "uuid"}}}),
        json!({"$defs": {"A": {"enum": [1]}}, "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#/$defs/A"}}}),
        json!({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, "additionalProperties": false}),
    ] {
        assert!(matches!(limits::examine(&schema), Ok(CheckCost::Simple(_))), "{schema}");
    }
}

/// Callers choose their params, but a repair must not outlast the call.
#[test]
fn large_params_are_read_in_time() {
    in_time(|| {
        let item = json!({"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]});
        let schema = Schema::new(json!({
            "properties": {"items": {"type": "array", "items": {"anyOf": [item, {"type": "string"}]}}},
            "required": ["items"],
        }));
        let items: Vec<Value> = (0..50_000).map(|n| json!({"id": format!("x{n}")})).collect();
        assert!(schema.read(json!({"items": items})).is_err());
        let texts = vec!["[\"{\\\"id\\\": 1}\"]".repeat(50_000); 4];
        assert!(schema.read(json!({"items": {"items": texts}})).is_err());
        let unknown: Map<String, Value> = (0..50_000).map(|n| (format!("k{n}"), json!(null))).collect();
        let closed = Schema::new(json!({"properties": {"a": {}}, "additionalProperties": false}));
        assert!(closed.read(Value::Object(unknown)).is_ok_and(|reading| reading.params.is_empty()));
    });
}
