//! Wrong calls as models make them, each with its meaning or its fault.

use super::*;

/// Params and all notes, or part of a fault.
enum Expectation {
    Read(Value, &'static [&'static str]),
    Refused(&'static str),
}
use Expectation::{Read, Refused};

fn check(tool: &str, given: Value, expected: Expectation) {
    let schema = Schema::of_tool(tool, schema_of(tool));
    assert_eq!(schema.broken(), None, "{tool}");
    match (schema.read(given.clone()), expected) {
        (Ok(reading), Read(params, notes)) => {
            assert_eq!(Value::Object(reading.params), params, "{tool} {given}");
            assert_eq!(reading.repaired, notes, "{tool} {given}");
        }
        (Err(misfit), Refused(part)) => {
            let told = misfit.faults.join("; ");
            assert!(told.contains(part), "{tool} {given}: {told}");
        }
        (got, _) => panic!("{tool} {given}: {got:?}"),
    }
}

fn schema_of(tool: &str) -> Value {
    match tool {
        "read_file" => json!({
            "type": "object",
            "properties": {
                "file_path": {"type": "string", "minLength": 1},
                "offset": {"type": "integer", "minimum": 0},
                "limit": {"type": "integer", "minimum": 1, "maximum": 2000},
                "encoding": {"enum": ["utf-8", "latin-1"]},
            },
            "required": ["file_path"],
            "additionalProperties": false,
        }),
        // In zod's style.
        "list_issues" => json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {
                "owner": {"type": "string"},
                "repo": {"type": "string"},
                "state": {"type": "string", "enum": ["open", "closed", "all"], "default": "open"},
                "labels": {"type": "array", "items": {"type": "string"}},
                "assignees": {"type": "array", "items": {"enum": ["ada", "bob", "eve"]}},
                "perPage": {"type": "number", "minimum": 1, "maximum": 100},
                "includeDrafts": {"type": "boolean"},
            },
            "required": ["owner", "repo"],
            "additionalProperties": false,
        }),
        "send_mail" => json!({
            "type": "object",
            "properties": {
                "to": {"type": "array", "minItems": 1, "items": {
                    "type": "object",
                    "properties": {"emailAddress": {"type": "string"}, "displayName": {"type": "string"}},
                    "required": ["emailAddress"],
                    "additionalProperties": false,
                }},
                "subject": {"type": "string"},
                "body": {"type": "string"},
                "headers": {"type": "object", "additionalProperties": {"type": "string"}},
                "urgent": {"type": "boolean"},
            },
            "required": ["to", "subject"],
            "additionalProperties": false,
        }),
        "search" => json!({
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "filter": {
                    "type": "object",
                    "properties": {
                        "limit": {"type": "integer", "minimum": 1},
                        "sort_order": {"enum": ["asc", "desc"]},
                        "tags": {"type": "array", "items": {"type": "string"}},
                        "archived": {"type": ["boolean", "null"]},
                        "score": {"type": "number"},
                    },
                    "additionalProperties": false,
                },
            },
            "required": ["query"],
            "additionalProperties": false,
        }),
        "run_sql" => json!({
            "type": "object",
            "properties": {
                "sql": {"type": "string"},
                "params": {"type": "array", "items": {"type": ["string", "number", "boolean", "null"]}},
                "timeout_ms": {"type": "integer"},
            },
            "required": ["sql"],
        }),
        "report" => json!({
            "type": "object",
            "properties": {
                "range": {
                    "type": "object",
                    "properties": {
                        "from": {"type": "string", "pattern": "^\\d{4}-\\d{2}-\\d{2}$"},
                        "to": {"type": "string", "pattern": "^\\d{4}-\\d{2}-\\d{2}$"},
                        "unit": {"enum": ["DAY", "WEEK", "MONTH"]},
                    },
                    "required": ["from", "to"],
                    "additionalProperties": false,
                },
                "format": {"const": "pdf"},
            },
            "required": ["range"],
            "additionalProperties": false,
        }),
        // In pydantic's style.
        "create_task" => json!({
            "$defs": {
                "Priority": {"enum": ["low", "high"], "title": "Priority", "type": "string"},
                "Item": {
                    "properties": {
                        "name": {"title": "Name", "type": "string"},
                        "qty": {"default": 1, "title": "Qty", "type": "integer"},
                        "priority": {"allOf": [{"$ref": "#/$defs/Priority"}], "default": "low"},
                    },
                    "required": ["name"], "title": "Item", "type": "object",
                },
            },
            "properties": {
                "title": {"title": "Title", "type": "string"},
                "items": {"items": {"$ref": "#/$defs/Item"}, "title": "Items", "type": "array"},
                "due": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": null, "title": "Due"},
                "priority": {"$ref": "#/$defs/Priority"},
                "either": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
                "ids": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
            },
            "required": ["title"], "title": "createArguments", "type": "object",
        }),
        "get_time" => json!({"type": "object", "properties": {}, "additionalProperties": false}),
        "place" => json!({
            "type": "object",
            "properties": {"place": {"oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": "point"}, "lat": {"type": "number"}, "lon": {"type": "number"}},
                    "required": ["kind", "lat", "lon"],
                    "additionalProperties": false,
                },
                {
                    "type": "object",
                    "properties": {"kind": {"const": "name"}, "zip_code": {"type": "string"}},
                    "required": ["kind", "zip_code"],
                    "additionalProperties": false,
                },
            ]}},
            "required": ["place"],
            "additionalProperties": false,
        }),
        // One object around everything, as some frameworks write it.
        "fetch" => json!({
            "type": "object",
            "properties": {"input": {
                "type": "object",
                "properties": {"url": {"type": "string"}, "maxBytes": {"type": "integer"}, "raw": {"type": "boolean"}},
                "required": ["url"],
                "additionalProperties": false,
            }},
            "required": ["input"],
            "additionalProperties": false,
        }),
        "merge" => json!({
            "type": "object",
            "properties": {
                "user_id": {"type": "string"},
                "userId": {"type": "string"},
                "when": {"type": ["integer", "boolean"]},
                "many": {"type": ["integer", "array"]},
            },
            "additionalProperties": false,
        }),
        _ => panic!("no schema for {tool}"),
    }
}

#[test]
fn wrapped() {
    let plain = || json!({"file_path": "a.txt"});
    let read = |note| Read(plain(), note);
    check("read_file", json!({"file_path": "a.txt"}), read(&[]));
    check(
        "read_file",
        json!({"arguments": {"file_path": "a.txt"}}),
        read(&["params were wrapped in `arguments`"]),
    );
    check("read_file", json!({"Args": {"file_path": "a.txt"}}), read(&["params were wrapped in `Args`"]));
    check(
        "read_file",
        json!({"tool_input": {"file_path": "a.txt"}}),
        read(&["params were wrapped in `tool_input`"]),
    );
    check(
        "read_file",
        json!({"toolInput": {"file_path": "a.txt"}}),
        read(&["params were wrapped in `toolInput`"]),
    );
    check(
        "read_file",
        json!({"read_file": {"file_path": "a.txt"}}),
        read(&["params were wrapped in `read_file`"]),
    );
    check(
        "read_file",
        json!({"fs.readFile": {"file_path": "a.txt"}}),
        read(&["params were wrapped in `fs.readFile`"]),
    );
    check(
        "read_file",
        json!({"params": {"params": {"input": {"file_path": "a.txt"}}}}),
        read(&[
            "params were wrapped in `params`",
            "params were wrapped in `params`",
            "params were wrapped in `input`",
        ]),
    );
    check("read_file", json!([{"file_path": "a.txt"}]), read(&["params were a list of one object"]));
    check("read_file", json!(r#"{"file_path": "a.txt"}"#), read(&["params were JSON in a string"]));
    check(
        "read_file",
        json!("```json\n{\"file_path\": \"a.txt\"}\n```"),
        read(&["params were JSON in a code fence"]),
    );
    check(
        "read_file",
        json!(r#""{\"file_path\": \"a.txt\"}""#),
        read(&["params were JSON in a string", "params were JSON in a string"]),
    );
    check(
        "read_file",
        json!({"kwargs": "{\"file_path\": \"a.txt\"}"}),
        read(&["params were wrapped in `kwargs`", "params were JSON in a string"]),
    );
    check(
        "read_file",
        json!({"name": "read_file", "arguments": {"file_path": "a.txt"}}),
        read(&["params were wrapped in `arguments`; `name` beside it left out"]),
    );
    check(
        "read_file",
        json!({"type": "function", "id": "call_1", "function": {"name": "fs__read_file", "arguments": "{\"file_path\": \"a.txt\"}"}}),
        read(&[
            "params were wrapped in `function`; `type`, `id` beside it left out",
            "params were wrapped in `arguments`; `name` beside it left out",
            "params were JSON in a string",
        ]),
    );
    check(
        "read_file",
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "read_file", "arguments": {"file_path": "a.txt"}}}),
        read(&[
            "params were wrapped in `params`; `jsonrpc`, `id`, `method` beside it left out",
            "params were wrapped in `arguments`; `name` beside it left out",
        ]),
    );
    check(
        "get_time",
        json!({"arguments": {}}),
        Read(json!({}), &["`arguments`: not a param of the tool; {} was left out"]),
    );
    check(
        "get_time",
        json!({"params": ""}),
        Read(json!({}), &["params were wrapped in `params`", "empty text was taken as no params"]),
    );
    check("get_time", json!(""), Read(json!({}), &["empty text was taken as no params"]));
    check("get_time", json!("{}"), Read(json!({}), &["params were JSON in a string"]));
    check("get_time", json!(null), Read(json!({}), &[]));
    // A wrapper named like one of the tool's fields, and a real one.
    check(
        "fetch",
        json!({"input": {"input": {"url": "u"}}}),
        Read(json!({"input": {"url": "u"}}), &["params were wrapped in `input`"]),
    );
    check("fetch", json!({"input": {"url": "u"}}), Read(json!({"input": {"url": "u"}}), &[]));
}

#[test]
fn wrapped_in_what_is_no_wrapper() {
    check("read_file", json!({"name": "write_file", "arguments": {"file_path": "a"}}), Refused("required"));
    check("read_file", json!({"args": {"file_path": "a"}, "input": {"file_path": "b"}}), Refused("required"));
    check("read_file", json!({"arguments": {"file_path": "a"}, "dry_run": true}), Refused("dry_run"));
    check("read_file", json!([{"file_path": "a"}, {"file_path": "b"}]), Refused("is not an object"));
    check("read_file", json!("a.txt"), Refused("is not an object"));
    check("read_file", json!("{'file_path': 'a.txt'}"), Refused("is not an object"));
    check("read_file", json!(["a.txt"]), Refused("is not an object"));
    check("read_file", json!({"arguments": {"colour": "a", "size": "b"}}), Refused("required"));
    check(
        "run_sql",
        json!({"params": {"sql": "select 1"}}),
        Read(json!({"sql": "select 1"}), &["params were wrapped in `params`"]),
    );
    check("run_sql", json!({"params": {"query": "select 1"}}), Refused("required"));
    check("get_time", json!({"zone": "UTC"}), Refused("zone"));
}

#[test]
fn laid_out_otherwise() {
    check(
        "fetch",
        json!({"url": "u"}),
        Read(json!({"input": {"url": "u"}}), &["fields of `input` were given at the top level"]),
    );
    check(
        "fetch",
        json!({"url": "u", "max_bytes": "10"}),
        Read(
            json!({"input": {"url": "u", "maxBytes": 10}}),
            &[
                "fields of `input` were given at the top level",
                "`input.max_bytes` was taken as `input.maxBytes`",
                "`input.maxBytes`: text was taken as a number",
            ],
        ),
    );
    check(
        "fetch",
        json!({"arguments": {"url": "u"}}),
        Read(
            json!({"input": {"url": "u"}}),
            &["params were wrapped in `arguments`", "fields of `input` were given at the top level"],
        ),
    );
    check(
        "fetch",
        json!({"input": "{\"url\": \"u\"}"}),
        Read(json!({"input": {"url": "u"}}), &["`input`: JSON in a string was read"]),
    );
    check("fetch", json!({"url": "u", "depth": 1}), Refused("required"));
    check(
        "report",
        json!({"from": "2026-01-01", "to": "2026-02-01", "format": "pdf"}),
        Read(
            json!({"format": "pdf", "range": {"from": "2026-01-01", "to": "2026-02-01"}}),
            &["fields of `range` were given at the top level"],
        ),
    );
    check(
        "report",
        json!({"range.from": "2026-01-01", "range.to": "2026-02-01"}),
        Read(
            json!({"range": {"from": "2026-01-01", "to": "2026-02-01"}}),
            &["`range.from`, `range.to` taken as a path to a field inside"],
        ),
    );
    check(
        "search",
        json!({"query": "q", "filter": {"score": 1}, "filter.limit": "5"}),
        Read(
            json!({"query": "q", "filter": {"score": 1, "limit": 5}}),
            &[
                "`filter.limit` taken as a path to a field inside",
                "`filter.limit`: text was taken as a number",
            ],
        ),
    );
    check(
        "search",
        json!({"query": "q", "filter": {"limit": 1}, "filter.limit": 5}),
        Refused("filter.limit"),
    );
    // No field matches, so the intended object would be a guess.
    check("search", json!({"query": "q", "limit": 5}), Refused("limit"));
}

#[test]
fn named_otherwise() {
    for key in ["filePath", "file-path", "FILE_PATH", "File Path", "filepath"] {
        let reading = Schema::of_tool("read_file", schema_of("read_file")).read(json!({ key: "a" })).unwrap();
        assert_eq!(Value::Object(reading.params), json!({"file_path": "a"}), "{key}");
        assert_eq!(reading.repaired, [format!("`{key}` was taken as `file_path`")]);
    }
    check(
        "list_issues",
        json!({"Owner": "o", "repo": "r", "per_page": 10, "include_drafts": true}),
        Read(
            json!({"owner": "o", "repo": "r", "perPage": 10, "includeDrafts": true}),
            &[
                "`Owner` was taken as `owner`",
                "`per_page` was taken as `perPage`",
                "`include_drafts` was taken as `includeDrafts`",
            ],
        ),
    );
    check(
        "send_mail",
        json!({"to": [{"email_address": "a@b", "display_name": "A"}], "subject": "s"}),
        Read(
            json!({"to": [{"emailAddress": "a@b", "displayName": "A"}], "subject": "s"}),
            &[
                "`to[0].email_address` was taken as `to[0].emailAddress`",
                "`to[0].display_name` was taken as `to[0].displayName`",
            ],
        ),
    );
    check(
        "search",
        json!({"query": "q", "filter": {"sortOrder": "DESC"}}),
        Read(
            json!({"query": "q", "filter": {"sort_order": "desc"}}),
            &[
                "`filter.sortOrder` was taken as `filter.sort_order`",
                "`filter.sort_order`: `DESC` was taken as `desc`",
            ],
        ),
    );
    check("merge", json!({"USER_ID": "a"}), Refused("USER_ID"));
    check("read_file", json!({"filePath": "a", "FilePath": "b"}), Refused("required"));
    check("read_file", json!({"file_path": "a", "filePath": "b"}), Refused("filePath"));
}

#[test]
fn the_one_that_is_missing_under_another_name() {
    let path = |note| Read(json!({"file_path": "a"}), note);
    check("read_file", json!({"path": "a"}), path(&["`path` was taken as `file_path`"]));
    check("read_file", json!({"file": "a"}), path(&["`file` was taken as `file_path`"]));
    check("read_file", json!({"filename": "a"}), path(&["`filename` was taken as `file_path`"]));
    check("read_file", json!({"fle_path": "a"}), path(&["`fle_path` was taken as `file_path`"]));
    check(
        "read_file",
        json!({"arguments": {"path": "a", "limit": "5"}}),
        Read(
            json!({"file_path": "a", "limit": 5}),
            &[
                "params were wrapped in `arguments`",
                "`path` was taken as `file_path`",
                "`limit`: text was taken as a number",
            ],
        ),
    );
    check("run_sql", json!({"query": "s"}), Read(json!({"sql": "s"}), &["`query` was taken as `sql`"]));
    check(
        "run_sql",
        json!({"statement": "s", "why": "so"}),
        Read(json!({"why": "so", "sql": "s"}), &["`statement` was taken as `sql`"]),
    );
    check(
        "list_issues",
        json!({"owner": "o", "repository": "r"}),
        Read(json!({"owner": "o", "repo": "r"}), &["`repository` was taken as `repo`"]),
    );
    check(
        "list_issues",
        json!({"owner": "o", "repo_name": "r", "state": "OPEN"}),
        Read(
            json!({"owner": "o", "repo": "r", "state": "open"}),
            &["`repo_name` was taken as `repo`", "`state`: `OPEN` was taken as `open`"],
        ),
    );
    check(
        "send_mail",
        json!({"to": [{"email": "a@b"}], "subject": "s"}),
        Read(
            json!({"to": [{"emailAddress": "a@b"}], "subject": "s"}),
            &["`to[0].email` was taken as `to[0].emailAddress`"],
        ),
    );
    check(
        "place",
        json!({"place": {"kind": "point", "lat": 1.5, "long": 2}}),
        Read(
            json!({"place": {"kind": "point", "lat": 1.5, "lon": 2}}),
            &["`place.long` was taken as `place.lon`"],
        ),
    );
}

#[test]
fn what_may_be_something_else_is_not_taken_for_the_one_that_is_missing() {
    // Another type, or empty.
    check("read_file", json!({"path": 7}), Refused("required"));
    check("read_file", json!({"path": null}), Refused("required"));
    check("read_file", json!({"path": ""}), Refused("required"));
    // Two candidates, and two missing fields.
    check("read_file", json!({"path": "a", "file": "b"}), Refused("required"));
    check("list_issues", json!({"repository": "r"}), Refused("required"));
    check("list_issues", json!({"user": "o", "repository": "r"}), Refused("required"));
    // Nothing suggests it, and the tool has several params.
    check("list_issues", json!({"owner": "o", "explanation": "to see"}), Refused("required"));
    check("list_issues", json!({"owner": "o", "colour": "red"}), Refused("required"));
    // Another word, and an opposite.
    check("read_file", json!({"document": "a"}), Refused("required"));
    let rm = Schema::new(json!({"properties": {"path": {"type": "string"}}, "required": ["path"]}));
    for key in [
        "exclude",
        "keep",
        "except_path",
        "not_path",
        "exclude_path",
        "skipPath",
        "old_path",
        "no-path",
        "ignore",
    ] {
        assert!(rm.read(json!({ key: "/etc" })).is_err(), "{key}");
    }
    for (needed, key) in
        [("source", "target"), ("from", "dest_from"), ("new_name", "old_name"), ("to", "from")]
    {
        let copy = Schema::new(json!({"properties": {needed: {"type": "string"}}, "required": [needed]}));
        assert!(copy.read(json!({ key: "a" })).is_err(), "{key} for {needed}");
    }
    // Siblings of any tool's params.
    check("read_file", json!({"explanation": "to see"}), Refused("required"));
    check("read_file", json!({"encodng": "utf-8"}), Refused("required"));
    check("run_sql", json!({"timeout": "5s"}), Refused("required"));
    check("run_sql", json!({"reason": "so"}), Refused("required"));
    // Another unit.
    let wait = Schema::new(json!({"properties": {"timeout": {"type": "integer"}}, "required": ["timeout"]}));
    assert!(wait.read(json!({"timeout_ms": 5_000})).is_err());
    let job = Schema::new(json!({"properties": {"id": {"type": "string"}}, "required": ["id"]}));
    assert!(job.read(json!({"toolcall_id": "call_1"})).is_err());
    // A whole call in a string.
    check("run_sql", json!({"wrapped": "{\"sql\": \"s\"}"}), Refused("required"));
    // Nothing is missing.
    check("read_file", json!({"file_path": "a", "path": "b"}), Refused("'path' was unexpected"));
}

#[test]
fn a_listed_value_in_other_letters() {
    let state = |given: &str, expected: Expectation| {
        check("list_issues", json!({"owner": "o", "repo": "r", "state": given}), expected);
    };
    let open = |note| Read(json!({"owner": "o", "repo": "r", "state": "open"}), note);
    state("Open.", open(&["`state`: `Open.` was taken as `open`"]));
    state("opens", open(&["`state`: `opens` was taken as `open`"]));
    state(" open ", open(&["`state`: ` open ` was taken as `open`"]));
    // Another word, even if by one letter, is for the model to correct.
    state("opne", Refused("\"opne\" is not one of"));
    state("opened", Refused("\"opened\" is not one of"));
    check(
        "read_file",
        json!({"file_path": "a", "encoding": "UTF8"}),
        Read(json!({"file_path": "a", "encoding": "utf-8"}), &["`encoding`: `UTF8` was taken as `utf-8`"]),
    );
    check(
        "read_file",
        json!({"file_path": "a", "encoding": "Latin_1"}),
        Read(
            json!({"file_path": "a", "encoding": "latin-1"}),
            &["`encoding`: `Latin_1` was taken as `latin-1`"],
        ),
    );
    let odd = Schema::new(json!({"properties": {
        "order": {"enum": ["asc", "desc"]},
        "code": {"enum": ["1-0", "1.0", "C", "c++"]},
        "both": {"enum": ["a-b", "a_b"]},
        "kind": {"enum": ["box", "boxes", "tag"]},
    }}));
    for params in [
        json!({"order": "-asc"}),
        json!({"code": "10"}),
        json!({"code": "c#"}),
        json!({"both": "ab"}),
        json!({"order": "ascs and descs"}),
    ] {
        assert!(odd.read(params.clone()).is_err(), "{params}");
    }
    for (given, expected) in [
        (json!({"kind": "BOXES"}), json!({"kind": "boxes"})),
        (json!({"kind": "tags"}), json!({"kind": "tag"})),
        (json!({"both": "A-B"}), json!({"both": "a-b"})),
        (json!({"code": "C++"}), json!({"code": "c++"})),
    ] {
        assert_eq!(odd.read(given).map(|reading| Value::Object(reading.params)), Ok(expected));
    }
}

#[test]
fn a_misspelt_listed_value_is_corrected_where_it_is_told() {
    let corrected = |tool: &str, given: Value, expected: Value| {
        let misfit = Schema::of_tool(tool, schema_of(tool)).read(given.clone()).unwrap_err();
        assert_eq!(Value::Object(misfit.example), expected, "{given}");
        assert!(!misfit.example_fits, "{given}: it is for the model to say");
    };
    corrected(
        "list_issues",
        json!({"owner": "o", "repo": "r", "state": "opne"}),
        json!({"owner": "o", "repo": "r", "state": "open"}),
    );
    corrected(
        "list_issues",
        json!({"owner": "o", "repo": "r", "assignees": ["ada", "eva"]}),
        json!({"owner": "o", "repo": "r", "assignees": ["ada", "eve"]}),
    );
    corrected(
        "create_task",
        json!({"title": "t", "items": [{"name": "n", "priority": "hihg"}]}),
        json!({"title": "t", "items": [{"name": "n", "priority": "high"}]}),
    );
    corrected(
        "list_issues",
        json!({"owner": "o", "repo": "r", "state": "merged"}),
        json!({"owner": "o", "repo": "r"}),
    );
}

/// The call to copy equals the correction of empty params.
#[test]
fn a_call_is_filled_in_as_the_schema_says() {
    let filled = |tool: &str, expected: Value| {
        let schema = Schema::of_tool(tool, schema_of(tool));
        assert_eq!(Value::Object(schema.example()), expected, "{tool}");
        if let Err(misfit) = schema.read(json!({})) {
            assert_eq!(Value::Object(misfit.example), expected, "{tool}");
        }
    };
    filled("read_file", json!({"file_path": "<string>"}));
    filled("send_mail", json!({"to": [{"emailAddress": "<string>"}], "subject": "<string>"}));
    filled("report", json!({"range": {"from": "<string>", "to": "<string>"}}));
    filled("create_task", json!({"title": "<string>"}));
    filled("place", json!({"place": {"kind": "point", "lat": "<number>", "lon": "<number>"}}));
    filled("fetch", json!({"input": {"url": "<string>"}}));
    filled("get_time", json!({}));
    filled("search", json!({"query": "<string>"}));
}

#[test]
fn a_filled_in_call_uses_what_the_schema_offers() {
    let filled = |part: Value, expected: Value| {
        let schema = Schema::new(json!({
            "$defs": {
                "Point": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number", "default": 0}}, "required": ["x", "y"]},
                "Node": {"type": "object", "properties": {"name": {"type": "string"}, "next": {"$ref": "#/$defs/Node"}}, "required": ["name", "next"]},
            },
            "type": "object",
            "properties": {"a": part.clone()},
            "required": ["a"],
        }));
        assert_eq!(Value::Object(schema.example()), json!({"a": expected}), "{part}");
    };
    filled(json!({"type": "string", "default": "x"}), json!("x"));
    filled(json!({"type": "string", "examples": ["notes/a.txt", "b"]}), json!("notes/a.txt"));
    filled(json!({"type": "string", "example": "b"}), json!("b"));
    filled(json!({"enum": ["r", "w"]}), json!("r"));
    filled(json!({"const": 5}), json!(5));
    filled(json!({"type": "integer"}), json!("<integer>"));
    filled(json!({"$ref": "#/$defs/Point"}), json!({"x": "<number>", "y": 0}));
    filled(json!({"type": "array", "items": {"$ref": "#/$defs/Point"}}), json!([{"x": "<number>", "y": 0}]));
    filled(
        json!({"type": "array", "minItems": 2, "items": {"type": "string"}}),
        json!(["<string>", "<string>"]),
    );
    filled(json!({"type": "array"}), json!("<array>"));
    filled(
        json!({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "minItems": 2}),
        json!(["<string>", "<integer>"]),
    );
    filled(json!({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/Point"}]}), json!({"x": "<number>", "y": 0}));
    filled(json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}), json!("<integer|null>"));
    filled(json!({"allOf": [{"$ref": "#/$defs/Point"}]}), json!({"x": "<number>", "y": 0}));
    filled(json!({"type": "object", "properties": {"b": {}}}), json!("<{b}>"));
    filled(json!({"type": "string", "default": "x".repeat(5_000)}), json!("<string>"));
    // A cycle ends.
    let mut circle = json!("<{name, next}>");
    for _ in 0..5 {
        circle = json!({"name": "<string>", "next": circle});
    }
    filled(json!({"$ref": "#/$defs/Node"}), circle);
    let wide: Map<String, Value> = (0..200).map(|n| (format!("f{n}"), json!({"type": "string"}))).collect();
    let names: Vec<&String> = wide.keys().collect();
    let schema = Schema::new(
        json!({"properties": {"a": {"type": "object", "properties": wide, "required": names}}, "required": ["a"]}),
    );
    assert!(json!(schema.example()).to_string().len() < 5_000);
    let own = Schema::new(json!({
        "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}, "required": ["q"],
        "examples": [{"q": "weather in Bern", "n": 3}],
    }));
    assert_eq!(Value::Object(own.example()), json!({"q": "weather in Bern", "n": 3}));
    let wrong = Schema::new(json!({
        "properties": {"q": {"type": "string"}}, "required": ["q"], "examples": [{"q": 5}],
    }));
    assert_eq!(Value::Object(wrong.example()), json!({"q": "<string>"}));
}

#[test]
fn params_that_a_schema_does_not_name_are_found() {
    let check = |schema: Value, expected: &[&str]| {
        let Value::Object(params) = json!({"a": 1, "b": 2}) else { panic!("an object") };
        assert_eq!(Schema::new(schema.clone()).unknown(&params), expected, "{schema}");
    };
    let a = || json!({"a": {"type": "integer"}});
    check(json!({"properties": a()}), &["b"]);
    check(json!({"properties": {"c": {}}}), &["a", "b"]);
    check(json!({"properties": {"a": {}, "b": {}}}), &[]);
    check(json!({"type": "object"}), &[]);
    check(json!({"properties": {}}), &[]);
    check(json!({"properties": a(), "additionalProperties": true}), &[]);
    check(json!({"properties": a(), "additionalProperties": {}}), &[]);
    check(json!({"properties": a(), "additionalProperties": {"type": "integer"}}), &[]);
    check(json!({"properties": a(), "patternProperties": {"^b": {}}}), &[]);
    check(json!({"properties": a(), "unevaluatedProperties": true}), &[]);
    check(json!({"properties": a(), "allOf": [{"properties": {"b": {}}}]}), &[]);
    check(json!({"properties": a(), "anyOf": [{"properties": {"b": {}}}, {"properties": {"c": {}}}]}), &[]);
    check(json!({"properties": a(), "if": {"required": ["a"]}, "then": {"properties": {"b": {}}}}), &[]);
    check(
        json!({"$defs": {"P": {"properties": {"b": {}}}}, "allOf": [{"$ref": "#/$defs/P"}], "properties": a()}),
        &[],
    );
    check(json!({"properties": a(), "dependentSchemas": {"a": {"properties": {"b": {}}}}}), &[]);
    check(json!({"properties": {"a": {"type": 5}}}), &[]);
}

#[test]
fn of_another_type() {
    check(
        "read_file",
        json!({"file_path": "a", "offset": "0", "limit": " 50 "}),
        Read(
            json!({"file_path": "a", "offset": 0, "limit": 50}),
            &["`offset`: text was taken as a number", "`limit`: text was taken as a number"],
        ),
    );
    check(
        "read_file",
        json!({"file_path": "a", "limit": 50.0}),
        Read(json!({"file_path": "a", "limit": 50.0}), &[]),
    );
    check(
        "read_file",
        json!({"file_path": "a", "limit": "50.0"}),
        Read(json!({"file_path": "a", "limit": 50}), &["`limit`: text was taken as a number"]),
    );
    check(
        "read_file",
        json!({"file_path": 7}),
        Read(json!({"file_path": "7"}), &["`file_path`: the value was taken as text"]),
    );
    check(
        "read_file",
        json!({"file_path": "a", "limit": null, "offset": "null"}),
        Read(
            json!({"file_path": "a"}),
            &["`limit`: null was left out", "`offset`: text `null` was left out"],
        ),
    );
    check(
        "read_file",
        json!({"file_path": "a", "encoding": "UTF-8"}),
        Read(json!({"file_path": "a", "encoding": "utf-8"}), &["`encoding`: `UTF-8` was taken as `utf-8`"]),
    );
    check(
        "list_issues",
        json!({"owner": "o", "repo": "r", "includeDrafts": "true", "labels": "bug"}),
        Read(
            json!({"owner": "o", "repo": "r", "includeDrafts": true, "labels": ["bug"]}),
            &[
                "`includeDrafts`: text was taken as a boolean",
                "`labels`: one value was taken as a list of one",
            ],
        ),
    );
    check(
        "list_issues",
        json!({"owner": "o", "repo": "r", "labels": "[\"bug\", \"ui\"]"}),
        Read(
            json!({"owner": "o", "repo": "r", "labels": ["bug", "ui"]}),
            &["`labels`: JSON in a string was read"],
        ),
    );
    // A label may contain a comma; an option may not.
    check(
        "list_issues",
        json!({"owner": "o", "repo": "r", "labels": "bug,ui"}),
        Read(
            json!({"owner": "o", "repo": "r", "labels": ["bug,ui"]}),
            &["`labels`: one value was taken as a list of one"],
        ),
    );
    check(
        "list_issues",
        json!({"owner": "o", "repo": "r", "assignees": "ada, eve"}),
        Read(
            json!({"owner": "o", "repo": "r", "assignees": ["ada", "eve"]}),
            &["`assignees`: text was split at its commas"],
        ),
    );
    check(
        "list_issues",
        json!({"owner": "o", "repo": "r", "state": "OPEN", "perPage": "30"}),
        Read(
            json!({"owner": "o", "repo": "r", "state": "open", "perPage": 30}),
            &["`state`: `OPEN` was taken as `open`", "`perPage`: text was taken as a number"],
        ),
    );
    check("list_issues", json!({"owner": "o", "repo": "r", "assignees": "ada, zoe"}), Refused("ada, zoe"));
    check("list_issues", json!({"owner": "o"}), Refused("\"repo\" is a required property"));
    check(
        "list_issues",
        json!({"owner": null, "repo": "r"}),
        Refused("params/owner: null is not of type \"string\""),
    );
    check(
        "list_issues",
        json!({"owner": "o", "repo": "r", "perPage": 500}),
        Refused("500 is greater than the maximum of 100"),
    );
    check("list_issues", json!({"owner": "o", "repo": "r", "perPage": "500"}), Refused("perPage"));
    check(
        "list_issues",
        json!({"owner": "o", "repo": "r", "state": "merged"}),
        Refused("\"merged\" is not one of"),
    );
    check(
        "list_issues",
        json!({"owner": "o", "repo": "r", "includeDrafts": "yes"}),
        Refused("includeDrafts"),
    );
    check("list_issues", json!({"owner": "o", "repo": "r", "includeDrafts": 1}), Refused("includeDrafts"));
    check(
        "read_file",
        json!({"file_path": "a", "limit": "ten"}),
        Refused("params/limit: \"ten\" is not of type \"integer\""),
    );
    check("read_file", json!({"file_path": "a", "limit": 2.5}), Refused("limit"));
    check("read_file", json!({"file_path": "a", "limit": "1,000"}), Refused("limit"));
    check("read_file", json!({"file_path": ""}), Refused("file_path"));
    check("read_file", json!({"file_path": ["a"]}), Refused("file_path"));
}

#[test]
fn a_structure_where_only_text_goes_is_put_in_as_text() {
    let schema = Schema::new(json!({
        "properties": {
            "content": {"type": "string"},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "either": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]},
            "short": {"type": "string", "maxLength": 4},
        },
    }));
    let check = |given: Value, expected: Option<Value>| {
        let read = schema.read(given.clone());
        let params = read.as_ref().ok().map(|reading| Value::Object(reading.params.clone()));
        assert_eq!(params, expected, "{given}: {read:?}");
        assert!(read.is_err() || read.is_ok_and(|reading| reading.repaired.len() == 1), "{given}");
    };
    check(json!({"content": {"a": 1}}), Some(json!({"content": "{\"a\":1}"})));
    check(json!({"content": [1, {"b": "c"}]}), Some(json!({"content": "[1,{\"b\":\"c\"}]"})));
    check(json!({"maybe": {"a": 1}}), Some(json!({"maybe": "{\"a\":1}"})));
    // Either the item or the other alternative may be meant.
    check(json!({"content": ["a"]}), None);
    check(json!({"either": ["a", "b"]}), None);
    check(json!({"short": {"a": 1}}), None);
}

#[test]
fn of_another_type_inside() {
    check(
        "search",
        json!({"query": "q", "filter": {"limit": "5", "archived": "null", "score": "0.5", "tags": "a"}}),
        Read(
            json!({"query": "q", "filter": {"limit": 5, "archived": null, "score": 0.5, "tags": ["a"]}}),
            &[
                "`filter.limit`: text was taken as a number",
                "`filter.archived`: text was taken as null",
                "`filter.score`: text was taken as a number",
                "`filter.tags`: one value was taken as a list of one",
            ],
        ),
    );
    check(
        "search",
        json!({"query": "q", "filter": "{\"limit\": \"5\"}"}),
        Read(
            json!({"query": "q", "filter": {"limit": 5}}),
            &["`filter`: JSON in a string was read", "`filter.limit`: text was taken as a number"],
        ),
    );
    check("search", json!({"query": "q", "filter": {"limit": "0"}}), Refused("params/filter/limit"));
    check(
        "search",
        json!({"query": "q", "filter": "recent"}),
        Refused("\"recent\" is not of type \"object\""),
    );
    check(
        "send_mail",
        json!({"to": {"emailAddress": "a@b"}, "subject": "s", "urgent": "False"}),
        Read(
            json!({"to": [{"emailAddress": "a@b"}], "subject": "s", "urgent": false}),
            &["`to`: one value was taken as a list of one", "`urgent`: text was taken as a boolean"],
        ),
    );
    check(
        "send_mail",
        json!({"to": "[{\"email_address\": \"a@b\"}]", "subject": 5}),
        Read(
            json!({"to": [{"emailAddress": "a@b"}], "subject": "5"}),
            &[
                "`to`: JSON in a string was read",
                "`to[0].email_address` was taken as `to[0].emailAddress`",
                "`subject`: the value was taken as text",
            ],
        ),
    );
    check(
        "send_mail",
        json!({"to": [{"emailAddress": "a@b"}], "subject": "s", "headers": {"X-Retries": 3}}),
        Read(
            json!({"to": [{"emailAddress": "a@b"}], "subject": "s", "headers": {"X-Retries": "3"}}),
            &["`headers.X-Retries`: the value was taken as text"],
        ),
    );
    check(
        "send_mail",
        json!({"to": ["a@b"], "subject": "s"}),
        Refused("params/to/0: \"a@b\" is not of type \"object\""),
    );
    check("send_mail", json!({"to": [], "subject": "s"}), Refused("params/to"));
    check(
        "send_mail",
        json!({"to": [{"emailAddress": "a@b", "cc": true}], "subject": "s"}),
        Refused("'cc' was unexpected"),
    );
    check(
        "run_sql",
        json!({"sql": "s", "params": [1, "1", null]}),
        Read(json!({"sql": "s", "params": [1, "1", null]}), &[]),
    );
    check(
        "run_sql",
        json!({"SQL": "s", "params": "[1]", "timeoutMs": "100"}),
        Read(
            json!({"sql": "s", "params": [1], "timeout_ms": 100}),
            &[
                "`SQL` was taken as `sql`",
                "`params`: JSON in a string was read",
                "`timeoutMs` was taken as `timeout_ms`",
                "`timeout_ms`: text was taken as a number",
            ],
        ),
    );
    check("run_sql", json!({"sql": "s", "params": [[1]]}), Refused("params/params/0"));
    check(
        "report",
        json!({"range": {"from": "2026-01-01", "to": "2026-02-01", "unit": "week"}, "format": "PDF"}),
        Read(
            json!({"range": {"from": "2026-01-01", "to": "2026-02-01", "unit": "WEEK"}, "format": "pdf"}),
            &["`range.unit`: `week` was taken as `WEEK`", "`format`: `PDF` was taken as `pdf`"],
        ),
    );
    check("report", json!({"range": {"from": "01.01.2026", "to": "2026-02-01"}}), Refused("does not match"));
    check(
        "report",
        json!({"range": {"from": "2026-01-01"}}),
        Refused("params/range: \"to\" is a required property"),
    );
    check("report", json!({"range": "last week"}), Refused("params/range"));
}

#[test]
fn behind_references_and_alternatives() {
    check(
        "create_task",
        json!({"title": "t", "items": [{"Name": "n", "qty": "2", "priority": "HIGH"}], "due": "7"}),
        Read(
            json!({"title": "t", "items": [{"name": "n", "qty": 2, "priority": "high"}], "due": 7}),
            &[
                "`items[0].Name` was taken as `items[0].name`",
                "`items[0].qty`: text was taken as a number",
                "`items[0].priority`: `HIGH` was taken as `high`",
                "`due`: text was taken as a number",
            ],
        ),
    );
    check(
        "create_task",
        json!({"title": "t", "due": "null"}),
        Read(json!({"title": "t", "due": null}), &["`due`: text was taken as null"]),
    );
    check("create_task", json!({"title": "t", "due": null}), Read(json!({"title": "t", "due": null}), &[]));
    check(
        "create_task",
        json!({"title": "t", "either": "true"}),
        Read(json!({"title": "t", "either": true}), &["`either`: text was taken as a boolean"]),
    );
    check(
        "create_task",
        json!({"title": "t", "priority": null}),
        Read(json!({"title": "t"}), &["`priority`: null was left out"]),
    );
    check(
        "create_task",
        json!({"title": "t", "due": "soon"}),
        Refused("params/due: \"soon\" does not fit any of integer|null"),
    );
    check("create_task", json!({"title": "t", "priority": "urgent"}), Refused("\"urgent\" is not one of"));
    // Text, or a list with one text.
    check("create_task", json!({"title": "t", "ids": 5}), Refused("params/ids"));
    check(
        "create_task",
        json!({"title": "t", "items": [{"qty": 1}]}),
        Refused("\"name\" is a required property"),
    );
    check(
        "place",
        json!({"place": {"kind": "point", "lat": "1.5", "lon": 2}}),
        Read(
            json!({"place": {"kind": "point", "lat": 1.5, "lon": 2}}),
            &["`place.lat`: text was taken as a number"],
        ),
    );
    check(
        "place",
        json!({"place": {"kind": "NAME", "zipCode": 8001}}),
        Read(
            json!({"place": {"kind": "name", "zip_code": "8001"}}),
            &[
                "`place.kind`: `NAME` was taken as `name`",
                "`place.zipCode` was taken as `place.zip_code`",
                "`place.zip_code`: the value was taken as text",
            ],
        ),
    );
    check(
        "place",
        json!({"place": {"kind": "point", "lat": 1.5}}),
        Refused("params/place: \"lon\" is a required property"),
    );
    check("place", json!({"place": {"lat": 1.5, "lon": 2}}), Refused("params/place"));
    check("merge", json!({"when": "soon"}), Refused("when"));
    check("merge", json!({"many": "5"}), Refused("many"));
}

#[test]
fn with_more_than_the_tool_takes() {
    check(
        "read_file",
        json!({"file_path": "a", "extra": null, "options": {}}),
        Read(
            json!({"file_path": "a"}),
            &[
                "`extra`: not a param of the tool; null was left out",
                "`options`: not a param of the tool; {} was left out",
            ],
        ),
    );
    check(
        "search",
        json!({"query": "q", "filter": {"limit": 1, "after": null}}),
        Read(
            json!({"query": "q", "filter": {"limit": 1}}),
            &["`filter.after`: not a param of the tool; null was left out"],
        ),
    );
    check("read_file", json!({"file_path": "a", "extra": ""}), Refused("'extra' was unexpected"));
    check("read_file", json!({"file_path": "a", "extra": []}), Refused("'extra' was unexpected"));
    check("read_file", json!({"file_path": "a", "extra": false}), Refused("'extra' was unexpected"));
    check(
        "read_file",
        json!({"file_path": "a", "extra": null, "other": 1}),
        Refused("'other' was unexpected"),
    );
}
