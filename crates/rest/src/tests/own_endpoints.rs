//! Endpoints that servers.toml declares itself.

use super::*;

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
