//! Calls as requests: paths, queries, headers, bodies.

use super::*;

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
