//! What schemas become, hostile ones too.

use serde_json::{Map, json};

use super::*;

fn check(schema: &str, expected: &str) {
    let schema = serde_json::from_str(schema).unwrap();
    let text = Writer::new(&schema, Scope::Compact, MAX_TOOL_TEXT).text();
    assert_eq!(text.as_deref(), Some(expected), "{schema}");
}

fn tool<'a>(name: &'a str, description: &'a str, input: &'a Value) -> DeclaredTool<'a> {
    DeclaredTool { server: "s", name, description, input, output: None, notes: Vec::new() }
}

fn check_line(tool: DeclaredTool<'_>, expected: &str) {
    assert_eq!(declaration(&tool, Scope::Compact), format!("    {expected}\n"));
}

/// Returns `[made(0), made(1), ..]` as JSON.
fn many(count: usize, made: impl Fn(usize) -> Value) -> Value {
    (0..count).map(made).collect()
}

#[test]
fn plain_types_and_literals() {
    check("true", "any");
    check("false", "never");
    check("\"no\"", "any");
    check(r#"{ "type": "integer", "format": "int64" }"#, "number");
    check(r#"{ "type": ["string", "null"] }"#, "string | null");
    check(r#"{ "type": "string", "nullable": true }"#, "string | null");
    check(r#"{ "type": "file" }"#, "any");
    check(r#"{ "type": "string", "enum": ["a\"", null, -1, true] }"#, r#""a\"" | null | -1 | true"#);
    check(r#"{ "enum": [[1], { "a": 1 }] }"#, "any[] | Record<string, any>");
    check(&json!({ "type": "string", "enum": many(31, |n| json!(format!("{n}"))) }).to_string(), "string");
    check(&json!({ "enum": many(9_000, |n| json!(n)) }).to_string(), "number");
    check(&json!({ "oneOf": many(31, |n| json!({ "const": n })) }).to_string(), "number");
    check(&json!({ "oneOf": many(31, |n| json!({ "items": { "const": n } })) }).to_string(), "any");
}

#[test]
fn arrays_and_tuples() {
    check(r#"{ "type": "array" }"#, "any[]");
    check(r#"{ "items": { "type": ["string", "null"] } }"#, "(string | null)[]");
    check(r#"{ "items": { "const": "a" } }"#, r#""a"[]"#);
    check(r#"{ "prefixItems": [{ "type": "string" }, { "const": 1 }] }"#, "[string, 1]");
    check(r#"{ "items": [{ "type": "string" }], "additionalItems": false }"#, "[string]");
    check(r#"{ "prefixItems": [{}], "items": { "enum": [1, 2] } }"#, "[any, ...(1 | 2)[]]");
    let long = json!({ "prefixItems": many(31, |_| json!(true)) });
    check(&long.to_string(), &format!("[{}...any[]]", "any, ".repeat(30)));
}

#[test]
fn objects_and_maps() {
    check(
        r#"{ "properties": { "a": { "type": "string" }, "b-c": { "properties": {} }, "__proto__": true },
            "required": ["a"] }"#,
        r#"{ a: string; "b-c"?: Record<string, any>; __proto__?: any }"#,
    );
    check(
        r#"{ "properties": { "a": false }, "additionalProperties": { "type": "number" } }"#,
        "{ a?: never; [key: string]: any }",
    );
    check(r#"{ "type": "object" }"#, "Record<string, any>");
    check(r#"{ "type": "object", "properties": {} }"#, "{}");
    check(r#"{ "type": "object", "additionalProperties": false }"#, "{}");
    check(r#"{ "additionalProperties": { "enum": [1, 2] } }"#, "Record<string, 1 | 2>");
    check(r#"{ "patternProperties": { "^x": { "type": "string" } } }"#, "Record<string, string>");
}

#[test]
fn combined_schemas() {
    check(r#"{ "anyOf": [{ "const": 1 }, { "type": "null" }, { "const": 1 }] }"#, "1 | null");
    check(r#"{ "type": "string", "anyOf": [{ "const": "a" }, { "minLength": 2 }] }"#, "string");
    let parts = r#"[{ "properties": { "a": {} } }, { "required": ["a"] }, { "properties": { "b": {} } }]"#;
    check(&format!(r#"{{ "type": "object", "allOf": {parts} }}"#), "{ a?: any } & { b?: any }");
    check(&format!(r#"{{ "items": {{ "allOf": {parts} }} }}"#), "({ a?: any } & { b?: any })[]");
    check(
        r#"{ "properties": { "b": {} }, "oneOf": [{ "properties": { "a": {} } }, { "type": "null" }] }"#,
        "{ b?: any } & ({ a?: any } | null)",
    );
    let choice = |n| json!({ "oneOf": many(30, |m| json!({ "properties": { format!("{n}_{m}"): {} } })) });
    let schema = json!({ "allOf": many(4, choice) });
    let text = Writer::new(&schema, Scope::Compact, MAX_TOOL_TEXT).text().unwrap();
    assert_eq!(text.matches(" & ").count(), 1, "810,000 combinations are too many");
}

#[test]
fn references() {
    check(r##"{ "$ref": "#/$defs/A", "$defs": { "A": { "type": "string" } } }"##, "string");
    check(r##"{ "$ref": "#/definitions/a~1b", "definitions": { "a/b": { "const": 1 } } }"##, "1");
    check(
        r##"{ "properties": { "m": { "const": 1 }, "n": { "$ref": "#/properties/m" } } }"##,
        "{ m?: 1; n?: 1 }",
    );
    check(r##"{ "properties": { "self": { "$ref": "#" } } }"##, "{ self?: any }");
    check(r##"{ "$ref": "https://example.com/schema" }"##, "any");
    let tree = r##"{ "items": { "$ref": "#/$defs/Tree" } }"##;
    check(&format!(r##"{{ "$ref": "#/$defs/Tree", "$defs": {{ "Tree": {tree} }} }}"##), "any[]");
    let chain = many(500, |n| json!({ "$ref": format!("#/$defs/{}", n + 1) }));
    check(&json!({ "$ref": "#/$defs/0", "$defs": chain }).to_string(), "any");
}

#[test]
fn a_tool_is_one_line_for_models() {
    let input = json!({ "properties": { "q": { "description": "Words." } }, "required": ["q"] });
    let (empty, output) = (json!({}), json!({ "type": "array" }));
    check_line(
        tool("find", "Finds\n  things.\n \nMore.", &input),
        "/** Finds things. */ find(args: { q: any }): Promise<any>;",
    );
    let noted =
        DeclaredTool { output: Some(&output), notes: vec!["read-only", "asks"], ..tool("a.b", "", &empty) };
    check_line(noted, r#"/** [read-only, asks] */ "a.b"(args?: any): Promise<any[]>;"#);
    check_line(tool("new", "", &Value::Null), r#""new"(args?: any): Promise<any>;"#);
    let elsewhere = json!({ "allOf": [{ "$ref": "#/$defs/A" }], "$defs": { "A": input } });
    check_line(tool("t", "", &elsewhere), "t(args: { q: any }): Promise<any>;");
}

#[test]
fn an_editor_sees_descriptions_grouped_by_server() {
    let input =
        json!({ "properties": { "q": { "description": "a\nb" }, "o": { "properties": { "x": {} } } } });
    let none = json!({ "properties": {} });
    let other = DeclaredTool { server: "my-server", ..tool("u", "", &none) };
    let expected = [
        "declare const tools: {\n  s: {\n    /** Does. */\n    t(args?: {\n      /** a b */\n",
        "      q?: any;\n      o?: {\n        x?: any;\n      };\n    }): Promise<any>;\n",
        "    v(args?: {}): Promise<any>;\n  };\n",
        "  \"my-server\": {\n    u(args?: {}): Promise<any>;\n  };\n};\n",
    ];
    let tools = [tool("t", "Does.", &input), other, tool("v", "", &none)];
    assert_eq!(declarations(&tools, Scope::Full), expected.concat());
    assert_eq!(declarations(&[], Scope::Full), "declare const tools: {\n};\n");
}

#[test]
fn nothing_breaks_out_of_a_string_or_a_comment() {
    let input = json!({ "properties": { "a\"; }\n\u{2028}*/\\": { "const": "*/\u{202e}\u{e0041}\u{85}" } } });
    let args = r#"{ "a\"; }\n\u{2028}*\/\\"?: "*\/\u{202e}\u{e0041}\u{85}" }"#;
    check_line(tool("x\"y*/", "", &input), &format!(r#""x\"y*\/"(args?: {args}): Promise<any>;"#));
    for (description, comment) in [
        ("a */ b *\u{200b}/ c **//", r"a *\/ b *\/ c **\//"),
        ("\u{feff}@ts-expect-error\u{2028}evil()", r"\@ts-expect-error evil()"),
        ("a\0\u{1b}[31m\rb\u{2029}c", "a[31m b c"),
    ] {
        assert_eq!(prose(description, 99), comment);
    }
    assert_eq!(prose(&"é".repeat(9_000), 160), format!("{}...", "é".repeat(160)));
}

#[test]
fn everything_has_a_bound() {
    let deep = (0..99).fold(json!({}), |inner, _| json!({ "items": inner }));
    check(&deep.to_string(), &format!("any{}", "[]".repeat(12)));
    let object = |count, property: Value| {
        let all: Map<String, Value> = (0..count).map(|n| (format!("p{n}"), property.clone())).collect();
        json!({ "properties": all })
    };
    let text = declaration(&tool("t", "", &object(240, json!({}))), Scope::Compact);
    assert!(text.contains("p199?: any; [key: string]: any /* 40 properties left out */ })"), "{text}");

    let fan = many(12, |n| object(200, json!({ "$ref": format!("#/$defs/{}", n + 1) })));
    let huge = json!({ "$ref": "#/$defs/0", "required": ["p0"], "$defs": fan });
    check_line(tool("t", "", &huge), "/** [arguments too large to declare] */ t(args: any): Promise<any>;");
    let long = "\u{1b}*/".repeat(85);
    let (fits, grows) = (json!({ "const": "x".repeat(15_000) }), json!({ "const": "\0".repeat(15_000) }));
    for input in [&huge, &fits, &grows] {
        let tool = DeclaredTool { output: Some(&huge), notes: vec![&long; 9], ..tool(&long, &long, input) };
        assert!(declaration(&tool, Scope::Full).len() <= MAX_TOOL_TEXT);
    }
    let text = declarations(&[tool(&"n".repeat(257), "", &huge)], Scope::Full);
    assert_eq!(text, "declare const tools: {\n};\n// Tools left out because of their long names: 1\n");
}
