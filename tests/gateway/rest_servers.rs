//! REST services as servers: requests from the service's view, answers by type, and all kinds of HTTP
//! failures.

use std::{
    fs,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    client::command,
    inside::{Inside, eventually},
    setup::{Setup, json_of, notices_of, text_of},
};

/// A request as received by the service.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    method: Method,
    /// The path with its query.
    pub target: String,
    headers: HeaderMap,
    body: String,
    /// How many earlier requests had this target.
    before: usize,
}

impl ReceivedRequest {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// A service over HTTP.
#[derive(Clone)]
pub struct Service {
    pub base: String,
    seen: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl Service {
    /// Returns the requests whose target has this prefix.
    fn seen(&self, target: &str) -> Vec<ReceivedRequest> {
        let seen = self.seen.lock().expect("nobody panicked");
        seen.iter().filter(|one| one.target.starts_with(target)).cloned().collect()
    }
}

type Answers = dyn Fn(&ReceivedRequest) -> Response + Send + Sync;

/// Serves answers. Requests to `/slow` get none.
pub async fn serve(answers: impl Fn(&ReceivedRequest) -> Response + Send + Sync + 'static) -> Service {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let base = format!("http://{}", listener.local_addr().expect("it is bound"));
    let service = Service { base, seen: Arc::default() };
    let state = (service.clone(), Arc::new(answers) as Arc<Answers>);
    tokio::spawn(async move {
        axum::serve(listener, Router::new().fallback(answer).with_state(state)).await.expect("it serves");
    });
    service
}

async fn answer(
    State((service, answers)): State<(Service, Arc<Answers>)>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let target = uri.to_string();
    let before = service.seen(&target).len();
    let body = String::from_utf8_lossy(&body).into_owned();
    let seen = ReceivedRequest { method, target, headers, body, before };
    service.seen.lock().expect("nobody panicked").push(seen.clone());
    if seen.target.starts_with("/slow") {
        return std::future::pending().await;
    }
    answers(&seen)
}

fn typed(kind: &'static str, body: impl Into<Body>) -> Response {
    ([(header::CONTENT_TYPE, kind)], body.into()).into_response()
}

pub fn json_answer(value: Value) -> Response {
    typed("application/json; charset=utf-8", value.to_string())
}

/// Returns the keys of a server whose endpoints are the paths of `GET` requests, by name, with further keys.
fn endpoints(service: &Service, keys: &str, endpoints: &[(&str, &str)]) -> String {
    let mut text = format!("base_url = '{}'\n{keys}\n", service.base);
    for (name, rest) in endpoints {
        text.push_str(&format!("[servers.shop.endpoints.{name}]\n{rest}\n"));
    }
    text
}

/// Opens a gateway with such a server.
async fn open(service: &Service, keys: &str, all: &[(&str, &str)]) -> Inside {
    Setup::new().server_of("shop", &endpoints(service, keys, all)).open().await
}

/// Returns the fault of a call of this server's tool.
async fn fault(inside: &Inside, tool: &str, params: Value) -> Value {
    inside.fault("execute_tool", json!({ "name": format!("shop.{tool}"), "params": params })).await
}

#[tokio::test]
async fn endpoints_written_by_hand_are_requests() {
    let service = serve(|seen| json_answer(json!({ "path": seen.target }))).await;
    let inside = open(
        &service,
        "headers = { Authorization = 'Bearer s3cr3t-t0ken' }\ntools.add_post = { risk = 'low', tags = ['writing'] }",
        &[
            (
                "list_posts",
                "path = '/users/{id}/posts'\nquery = ['page']\nheader = ['X-Team']\ndescription = 'The posts of a user'",
            ),
            ("add_post", "method = 'post'\npath = '/posts'\nbody = ['title']"),
            ("drop_post", "method = 'DELETE'\npath = '/posts/{id}'"),
        ],
    )
    .await;
    let params = json!({ "id": "a/b", "page": "2", "X-Team": "blue" });
    let result = inside.execute("shop.list_posts", params).await;
    assert_eq!(result["structuredContent"]["path"], "/users/a%2Fb/posts?page=2", "{result}");
    let seen = &service.seen("/users")[0];
    assert_eq!(
        (&seen.method, seen.header("x-team"), seen.header("authorization")),
        (&Method::GET, Some("blue"), Some("Bearer s3cr3t-t0ken"))
    );
    inside.execute("shop.add_post", json!({ "title": "News" })).await;
    let seen = &service.seen("/posts")[0];
    assert_eq!((&seen.method, seen.header("content-type")), (&Method::POST, Some("application/json")));
    assert_eq!(serde_json::from_str::<Value>(&seen.body).expect("JSON"), json!({ "title": "News" }));
    let risk = async |tool: &str| inside.answer("get_tool", json!({ "name": tool })).await["risk"].clone();
    assert_eq!(risk("shop.list_posts").await, "low");
    assert_eq!(risk("shop.add_post").await, "low", "the configuration says so");
    assert_eq!(risk("shop.drop_post").await, "high");
    let found = inside.answer("search_tools", json!({ "query": "posts of a user" })).await;
    assert_eq!(found["results"][0]["name"], "shop.list_posts", "{found}");
}

#[tokio::test]
async fn answers_are_read_by_their_types() {
    let service = serve(|seen| match seen.target.as_str() {
        "/object" => json_answer(json!({ "a": 1 })),
        "/list" => json_answer(json!([1, 2])),
        "/latin" => typed("text/html; charset=iso-8859-1", &b"caf\xe9"[..]),
        "/image" => typed("image/png", &b"\x89PNG"[..]),
        "/sound" => typed("audio/mpeg", &b"ID3"[..]),
        "/file" => typed("application/pdf", &b"%PDF"[..]),
        "/broken" => typed("application/json", "{\"a\":"),
        "/created" => StatusCode::CREATED.into_response(),
        "/zipped" => ([("content-type", "text/plain"), ("content-encoding", "gzip")], "zip").into_response(),
        _ => StatusCode::NO_CONTENT.into_response(),
    })
    .await;
    let paths = ["object", "list", "latin", "image", "sound", "file", "broken", "created", "zipped", "none"];
    let all: Vec<(&str, String)> = paths.map(|path| (path, format!("path = '/{path}'"))).into();
    let all: Vec<(&str, &str)> = all.iter().map(|(name, rest)| (*name, rest.as_str())).collect();
    let inside = open(&service, "", &all).await;
    let check = async |path: &str, content: Value, structured: Value| {
        let result = inside.execute(&format!("shop.{path}"), json!({})).await;
        assert_eq!(result["content"], json!([content]), "{path}");
        assert_eq!(result["structuredContent"], structured, "{path}");
    };
    let text = |text: &str| json!({ "type": "text", "text": text });
    check("object", text("{\"a\":1}"), json!({ "a": 1 })).await;
    check("list", text("[1,2]"), json!({ "result": [1, 2] })).await;
    for filter in [".[1]", ".result[1]"] {
        let selected = inside.call("execute_tool", json!({ "name": "shop.list", "select": filter })).await;
        assert_eq!(text_of(&selected), "2", "{filter}");
    }
    check("latin", text("café"), Value::Null).await;
    let image = json!({ "type": "image", "data": "iVBORw==", "mimeType": "image/png" });
    check("image", image, Value::Null).await;
    check("sound", json!({ "type": "audio", "data": "SUQz", "mimeType": "audio/mpeg" }), Value::Null).await;
    let uri = format!("{}/file", service.base);
    let file = json!({ "uri": uri, "mimeType": "application/pdf", "blob": "JVBERg==" });
    check("file", json!({ "type": "resource", "resource": file }), Value::Null).await;
    check("broken", text("{\"a\":"), Value::Null).await;
    check("created", text("HTTP 201 Created"), Value::Null).await;
    check("none", text("HTTP 204 No Content"), Value::Null).await;
    let zipped = fault(&inside, "zipped", json!({})).await;
    assert!(zipped["message"].as_str().expect("a message").contains("`gzip`"), "{zipped}");
}

#[tokio::test]
async fn headers_and_the_next_page_are_shown_where_they_are_there() {
    let base = Arc::new(Mutex::new(String::new()));
    let known = base.clone();
    let service = serve(move |seen| {
        let base = known.lock().expect("nobody panicked").clone();
        match seen.target.as_str() {
            "/linked?page=1&tag=a" => (
                [
                    ("link", format!("<{base}/linked?page=2&tag=a>; rel=\"next\"")),
                    ("x-total-count", "42".into()),
                    ("x-other", "no".into()),
                ],
                "rows",
            )
                .into_response(),
            "/cursor" => json_answer(json!({ "rows": [], "next_cursor": "c2" })),
            "/elsewhere" => json_answer(json!({ "rows": [], "next": "/other?x=1" })),
            _ => json_answer(json!({ "rows": [], "next_cursor": null })),
        }
    })
    .await;
    base.lock().expect("nobody panicked").clone_from(&service.base);
    let inside = open(
        &service,
        "headers_out = ['X-Total-Count', 'X-Absent']",
        &[
            (
                "linked",
                "path = '/linked'\nquery = ['page', 'tag']\n[servers.shop.endpoints.linked.input_schema.properties]\n\
                 page = { type = 'integer' }\ntag = { type = 'string' }",
            ),
            ("cursor", "path = '/cursor'\nquery = ['cursor']"),
            ("elsewhere", "path = '/elsewhere'"),
        ],
    )
    .await;
    let more = |result: &Value| notices_of(result).into_iter().find(|notice| notice["kind"] == "response");
    let linked = more(&inside.execute("shop.linked", json!({ "page": 1, "tag": "a" })).await).expect("more");
    let call = |tool: &str, params: Value| json!({ "tool": "execute_tool", "arguments": { "name": tool, "params": params } });
    assert_eq!(linked["headers"], json!({ "X-Total-Count": "42" }));
    assert_eq!(linked["next_step"], call("shop.linked", json!({ "page": 2, "tag": "a" })));
    let next = inside.call("execute_tool", linked["next_step"]["arguments"].clone()).await;
    assert_eq!(more(&next), None, "the last page leads nowhere: {next}");
    let cursor = more(&inside.execute("shop.cursor", json!({})).await).expect("more");
    assert_eq!(cursor["next_step"], call("shop.cursor", json!({ "cursor": "c2" })));
    let elsewhere = more(&inside.execute("shop.elsewhere", json!({})).await).expect("more");
    assert_eq!(elsewhere["next_step"], format!("More follows at {}/other?x=1", service.base));
}

#[tokio::test]
async fn a_refusal_is_the_answer_to_its_call_and_says_what_to_do() {
    let service = serve(|seen| match seen.target.as_str() {
        "/private" => {
            (StatusCode::UNAUTHORIZED, format!("bad key {:?}", seen.header("x-key"))).into_response()
        }
        "/admin" => (StatusCode::FORBIDDEN, "admins only").into_response(),
        "/busy" => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "7")], "slow down").into_response(),
        "/spent" => {
            let headers = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "9")];
            (StatusCode::FORBIDDEN, headers, "spent").into_response()
        }
        "/absent" => (StatusCode::NOT_FOUND, [("content-type", "application/json")], "{\"no\":\"such\"}")
            .into_response(),
        _ => "open to all".into_response(),
    })
    .await;
    let inside = open(
        &service,
        "headers = { X-Key = 's3cr3t-key' }",
        &[
            ("private", "path = '/private'"),
            ("admin", "path = '/admin'"),
            ("busy", "path = '/busy'"),
            ("spent", "path = '/spent'"),
            ("absent", "path = '/absent'"),
            ("public", "path = '/public'"),
        ],
    )
    .await;
    let private = fault(&inside, "private", json!({})).await;
    let message = private["message"].as_str().expect("a message");
    assert_eq!(private["code"], "auth_required", "{private}");
    for part in ["HTTP 401", "`headers` of [servers.shop]", "nonet secret set SHOP_TOKEN"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(!message.contains("s3cr3t"), "{message}");
    // No other sign-in helps with this one.
    let admin = inside.execute("shop.admin", json!({})).await;
    let texts = (&admin["content"][0]["text"], &admin["content"][1]["text"], &admin["isError"]);
    assert_eq!(texts, (&json!("HTTP 403 Forbidden"), &json!("admins only"), &json!(true)), "{admin}");
    // The others still work.
    assert_eq!(text_of(&inside.execute("shop.public", json!({})).await), "open to all");
    for (tool, wait) in [("busy", 7_000), ("spent", 9_000)] {
        let fault = fault(&inside, tool, json!({})).await;
        assert_eq!(
            (&fault["code"], &fault["retryable"], &fault["retry_after_ms"]),
            (&json!("rate_limited"), &json!(true), &json!(wait)),
            "{fault}"
        );
        assert_eq!(service.seen(&format!("/{tool}")).len(), 1, "it is not repeated");
    }
    let absent = inside.execute("shop.absent", json!({})).await;
    assert_eq!(absent["isError"], true);
    let texts: Vec<&str> = absent["content"]
        .as_array()
        .expect("blocks")
        .iter()
        .filter_map(|block| block["text"].as_str())
        .collect();
    assert_eq!(texts, ["HTTP 404 Not Found", "{\"no\":\"such\"}"]);
    assert_eq!(absent.get("structuredContent"), None);
}

#[tokio::test]
async fn a_failure_is_repeated_once_where_that_changes_nothing() {
    let service = serve(|seen| match (seen.target.as_str(), seen.before) {
        ("/once", 0) => (StatusCode::INTERNAL_SERVER_ERROR, "oops").into_response(),
        ("/later", 0) => (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "0")], "").into_response(),
        ("/once" | "/later", _) => "fine".into_response(),
        ("/long", _) => (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "60")], "").into_response(),
        _ => (StatusCode::BAD_GATEWAY, "down").into_response(),
    })
    .await;
    let inside = open(
        &service,
        "",
        &[
            ("once", "path = '/once'"),
            ("later", "path = '/later'"),
            ("long", "path = '/long'"),
            ("always", "method = 'PUT'\npath = '/always'"),
            ("post", "method = 'POST'\npath = '/post'"),
        ],
    )
    .await;
    for tool in ["once", "later"] {
        assert_eq!(text_of(&inside.execute(&format!("shop.{tool}"), json!({})).await), "fine");
        assert_eq!(service.seen(&format!("/{tool}")).len(), 2);
    }
    for (tool, times, retryable, said) in [
        ("always", 2, true, "HTTP 502 Bad Gateway: down. Call it again later, or use another tool."),
        ("post", 1, false, "may or may not have taken effect"),
    ] {
        let fault = fault(&inside, tool, json!({})).await;
        assert_eq!(
            (&fault["code"], &fault["retryable"]),
            (&json!("upstream_error"), &json!(retryable)),
            "{fault}"
        );
        assert!(fault["message"].as_str().expect("a message").contains(said), "{fault}");
        assert_eq!(service.seen(&format!("/{tool}")).len(), times, "{tool}");
    }
    // A wait that is too long is left to the caller.
    let fault = fault(&inside, "long", json!({})).await;
    assert_eq!((&fault["code"], &fault["retry_after_ms"]), (&json!("upstream_error"), &json!(60_000)));
    assert_eq!(service.seen("/long").len(), 1);
}

#[tokio::test]
async fn a_service_that_is_gone_slow_or_long_winded_is_told() {
    let service = serve(|_| typed("text/plain", "x".repeat(1_100_000))).await;
    let all = [
        ("slow", "path = '/slow'"),
        ("change", "method = 'POST'\npath = '/slow'"),
        ("long", "path = '/long'"),
    ];
    let setup = Setup::new().server_of("shop", &endpoints(&service, "timeout = '1s'", &all));
    let inside = setup.toml("[limits]\nresult_bytes = 1_048_576").open().await;
    for (tool, retryable) in [("slow", true), ("change", false)] {
        let fault = fault(&inside, tool, json!({})).await;
        assert_eq!((&fault["code"], &fault["retryable"]), (&json!("timeout"), &json!(retryable)), "{fault}");
        let message = fault["message"].as_str().expect("a message");
        assert_eq!(message.contains("may or may not have taken effect"), !retryable, "{message}");
    }
    let long = fault(&inside, "long", json!({})).await;
    assert_eq!(long["code"], "upstream_error");
    let message = long["message"].as_str().expect("a message");
    assert!(message.contains("result_bytes") && message.ends_with("or use another tool."), "{message}");
    let free = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let gone =
        Service { base: format!("http://{}", free.local_addr().expect("bound")), seen: Arc::default() };
    drop(free);
    let all = [("look", "path = '/look'"), ("post", "method = 'POST'\npath = '/post'")];
    let inside = open(&gone, "", &all).await;
    let post = fault(&inside, "post", json!({})).await;
    assert!(!post.to_string().contains("may have taken effect"), "nothing was sent: {post}");
    let fault = fault(&inside, "look", json!({})).await;
    assert_eq!((&fault["code"], &fault["retryable"]), (&json!("upstream_error"), &json!(true)));
    assert!(fault["message"].as_str().expect("a message").contains("Connection refused"), "{fault}");
}

#[tokio::test]
async fn a_call_that_is_cancelled_lets_go_of_its_request() {
    let service = serve(|_| "here".into_response()).await;
    let inside =
        open(&service, "max_concurrency = 1", &[("slow", "path = '/slow'"), ("look", "path = '/look'")])
            .await;
    let cancel = inside.caller.cancel.clone();
    let (result, ()) = tokio::join!(inside.execute("shop.slow", json!({})), async {
        eventually("the request is there", async || (!service.seen("/slow").is_empty()).then_some(())).await;
        cancel.cancel();
    });
    assert_eq!(json_of(&result)["error"]["code"], "cancelled", "{result}");
    // The one slot is free again.
    let look = json!({ "name": "shop.look", "params": {} });
    let other = inside.gateway.sessions.caller(inside.gateway.sessions.open(None), "test");
    assert_eq!(text_of(&inside.call_as(&other, "execute_tool", look).await), "here");
}

#[tokio::test]
async fn credentials_never_leave_the_host_of_the_service() {
    let other = serve(|seen| json_answer(json!({ "method": seen.method.as_str() }))).await;
    let to = other.base.clone();
    let service = serve(move |seen| {
        let redirect = |status: StatusCode, to: String| (status, [(header::LOCATION, to)]).into_response();
        match seen.target.as_str() {
            "/away" => redirect(StatusCode::FOUND, format!("{to}/there")),
            "/send" => redirect(StatusCode::TEMPORARY_REDIRECT, format!("{to}/sent")),
            "/see" => redirect(StatusCode::SEE_OTHER, "/here".into()),
            "/keep" => redirect(StatusCode::PERMANENT_REDIRECT, "/kept".into()),
            "/round" => redirect(StatusCode::FOUND, "/round".into()),
            "/into" => redirect(StatusCode::SEE_OTHER, "http://10.9.8.7/".into()),
            "/dead" => redirect(StatusCode::SEE_OTHER, "http://127.0.0.1:1/".into()),
            "/inward" => redirect(StatusCode::FOUND, "http://169.254.169.254/latest".into()),
            "/local" => redirect(StatusCode::FOUND, "http://localhost:1/x".into()),
            _ => json_answer(json!({ "method": seen.method.as_str(), "body": seen.body })),
        }
    })
    .await;
    let inside = open(
        &service,
        "headers = { Authorization = 'Bearer s3cr3t-t0ken', X-Key = 's3cr3t-key' }",
        &[
            ("away", "path = '/away'\nheader = ['X-Team']"),
            ("send", "method = 'POST'\npath = '/send'\nbody = ['a']"),
            ("see", "method = 'POST'\npath = '/see'\nbody = ['a']"),
            ("keep", "method = 'POST'\npath = '/keep'\nbody = ['a']"),
            ("round", "path = '/round'"),
            ("into", "method = 'POST'\npath = '/into'"),
            ("dead", "method = 'POST'\npath = '/dead'"),
            ("inward", "path = '/inward'"),
            ("local", "path = '/local'"),
        ],
    )
    .await;
    let away = inside.execute("shop.away", json!({ "X-Team": "blue" })).await;
    assert_eq!(away["structuredContent"]["method"], "GET", "{away}");
    let there = &other.seen("/there")[0];
    for name in ["authorization", "x-key", "x-team"] {
        assert_eq!(there.header(name), None, "{name}");
    }
    let sent = inside.execute("shop.send", json!({ "a": "1" })).await;
    assert_eq!(sent["isError"], true);
    assert!(text_of(&sent).contains(&format!("redirects the request to {}/sent", other.base)), "{sent}");
    assert!(other.seen("/sent").is_empty());
    let seen = inside.execute("shop.see", json!({ "a": "1" })).await;
    assert_eq!(seen["structuredContent"], json!({ "method": "GET", "body": "" }));
    let kept = inside.execute("shop.keep", json!({ "a": "1" })).await;
    assert_eq!(kept["structuredContent"], json!({ "method": "POST", "body": "{\"a\":\"1\"}" }));
    assert_eq!(service.seen("/kept")[0].header("authorization"), Some("Bearer s3cr3t-t0ken"));
    assert_eq!(inside.execute("shop.round", json!({})).await["isError"], true);
    for tool in ["inward", "local"] {
        let fault = fault(&inside, tool, json!({})).await;
        assert_eq!(
            (&fault["code"], &fault["retryable"]),
            (&json!("upstream_error"), &json!(false)),
            "{fault}"
        );
        let message = fault["message"].as_str().expect("a message");
        assert!(message.contains("private address") && message.contains("private_addresses"), "{message}");
        assert!(message.ends_with("or use another tool."), "{message}");
    }
    // The first request was sent, whatever happens to the redirect.
    for tool in ["into", "dead"] {
        let fault = fault(&inside, tool, json!({})).await;
        assert_eq!(
            (&fault["code"], &fault["retryable"]),
            (&json!("upstream_error"), &json!(false)),
            "{fault}"
        );
        let message = fault["message"].as_str().expect("a message");
        assert!(message.contains("may or may not have taken effect"), "{message}");
    }
}

#[tokio::test]
async fn an_operation_on_another_host_gets_no_credentials() {
    let other = serve(|_| (StatusCode::UNAUTHORIZED, "who are you").into_response()).await;
    let service = serve({
        let to = other.base.clone();
        move |seen| match seen.target.as_str() {
            "/away" => {
                (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, format!("{to}/there"))]).into_response()
            }
            _ => "here".into_response(),
        }
    })
    .await;
    let setup = Setup::new();
    let upload = json!({ "operationId": "upload", "servers": [{ "url": other.base }] });
    let body = json!({ "content": { "application/json": { "schema": {
        "type": "object", "properties": { "q": { "type": "string" } },
    } } } });
    let paths = json!({
        "/upload": { "post": upload },
        "/look": { "get": { "operationId": "look", "servers": [{ "url": service.base }] } },
        "/away": { "get": { "operationId": "away", "requestBody": body } },
        "/lost": { "get": { "operationId": "lost", "servers": [{ "url": "https://{tenant}.test" }] } },
    });
    let write = |name: &str, servers: Value| {
        let document = json!({ "openapi": "3.0.3", "info": {}, "servers": servers, "paths": paths });
        fs::write(setup.path(name), document.to_string()).expect("written");
    };
    write("shop.json", json!([{ "url": service.base }]));
    write("torn.json", json!([]));
    let keys = "headers = { Authorization = 'Bearer s3cr3t-t0ken' }\nopenapi =";
    let inside = setup
        .server_of(
            "shop",
            &format!("{keys} 'shop.json'\n[servers.shop.endpoints.by_hand]\npath = '/by-hand'"),
        )
        .server_of("torn", &format!("{keys} 'torn.json'"))
        .server_of("one", &format!("{keys} 'torn.json'\noperations = ['look']"))
        .open()
        .await;
    let refused = fault(&inside, "upload", json!({})).await;
    let message = refused["message"].as_str().expect("a message");
    assert_eq!(refused["code"], "auth_required", "{refused}");
    assert!(message.contains(&format!("`base_url = \"{}\"", other.base)), "{message}");
    assert_eq!(other.seen("/upload")[0].header("authorization"), None);
    // Nor is a body sent, wherever a redirect leads.
    inside.execute("shop.away", json!({ "q": "x" })).await;
    assert_eq!((&*other.seen("/there")[0].body, service.seen("/away")[0].body.is_empty()), ("", false));
    // Without an address for the whole service, its host is the one shared by all operations, if any.
    for (tool, expected) in [("torn.look", None), ("one.look", Some("Bearer s3cr3t-t0ken"))] {
        assert_eq!(text_of(&inside.execute(tool, json!({})).await), "here");
        assert_eq!(
            service.seen("/look").last().expect("it was sent").header("authorization"),
            expected,
            "{tool}"
        );
    }
    for tool in ["torn.away", "torn.lost", "shop.lost"] {
        let unknown = json_of(&inside.execute(tool, json!({})).await);
        assert_eq!(unknown["error"]["code"], "unknown_tool", "{tool} has no address: {unknown}");
    }
    // A hand-written endpoint uses the document's address.
    assert_eq!(text_of(&inside.execute("shop.by_hand", json!({})).await), "here");
    assert_eq!(service.seen("/by-hand")[0].header("authorization"), Some("Bearer s3cr3t-t0ken"));
}

#[tokio::test]
async fn a_secret_that_a_service_repeats_is_masked() {
    let service = serve(|seen| json_answer(json!({ "you_sent": seen.header("authorization") }))).await;
    let inside =
        open(&service, "headers = { Authorization = 'Bearer s3cr3t-t0ken' }", &[("echo", "path = '/echo'")])
            .await;
    let result = inside.execute("shop.echo", json!({})).await;
    assert_eq!(result["structuredContent"]["you_sent"], "Bearer ***", "{result}");
    assert!(!result.to_string().contains("s3cr3t"), "{result}");
}

#[tokio::test]
async fn a_key_in_the_query_goes_along_and_is_masked() {
    let service = serve(|seen| json_answer(json!({ "asked": seen.target }))).await;
    let keys = format!(
        "base_url = '{}/v1?key=s3cr3t%20key'\n[servers.shop.endpoints.look]\npath = '/look'\nquery = ['q']",
        service.base
    );
    let inside = Setup::new().server_of("shop", &keys).open().await;
    let result = inside.execute("shop.look", json!({ "q": "x" })).await;
    assert_eq!(service.seen("/v1/look")[0].target, "/v1/look?key=s3cr3t%20key&q=x");
    assert_eq!(result["structuredContent"]["asked"], "/v1/look?key=***&q=x");
}

#[tokio::test]
async fn a_large_answer_is_a_preview_that_can_be_read_on() {
    let rows: Vec<Value> = (0..5_000).map(|id| json!({ "id": id, "name": "x".repeat(40) })).collect();
    let service = serve(move |seen| match seen.target.as_str() {
        "/list" => json_answer(json!(rows)),
        _ => json_answer(json!({ "rows": rows })),
    })
    .await;
    let inside = open(&service, "", &[("list", "path = '/list'"), ("object", "path = '/object'")]).await;
    for tool in ["list", "object"] {
        let result = inside.execute(&format!("shop.{tool}"), json!({})).await;
        assert!(result.to_string().len() < 10_000, "{tool}: {} bytes", result.to_string().len());
        assert_eq!(result.get("structuredContent"), None, "{tool}");
    }
    // A list stays a list, short or long, with or without the member in which MCP wraps it.
    for filter in [".[7].id", "length"] {
        let request = json!({ "name": "shop.list", "select": filter });
        let selected = inside.call("execute_tool", request).await;
        assert!(["7", "5000"].contains(&text_of(&selected)), "{filter}: {selected}");
    }
}

/// Returns a small document of a service at `base`.
fn document(base: &str) -> Value {
    json!({
        "openapi": "3.0.3",
        "info": { "title": "Shop", "version": "1", "description": "Orders of the shop." },
        "servers": [{ "url": base }],
        "tags": [{ "name": "orders", "description": "Everything about orders" }],
        "paths": {
            "/orders": {
                "get": {
                    "operationId": "listOrders",
                    "summary": "Lists orders",
                    "tags": ["zirconium"],
                    "parameters": [{ "name": "limit", "in": "query", "schema": { "type": "integer" } }],
                    "responses": { "200": { "description": "ok", "content": { "application/json": {
                        "schema": { "type": "array", "items": { "type": "object" } },
                    } } } },
                },
                "post": {
                    "operationId": "addOrder",
                    "summary": "Adds an order",
                    "requestBody": { "content": { "application/json": { "schema": {
                        "type": "object", "properties": { "item": { "type": "string" } }, "required": ["item"],
                    } } } },
                    "responses": { "201": { "description": "created" } },
                },
            },
            "/refunds": {
                "get": {
                    "operationId": "listRefunds",
                    "tags": ["money"],
                    "responses": { "200": { "description": "ok", "content": { "application/json": {
                        "schema": { "type": "object", "properties": { "rows": { "type": "array", "items": {} } } },
                    } } } },
                },
            },
            "/orders/{id}": {
                "get": {
                    "operationId": "getOrder",
                    "summary": "Reads an order",
                    "parameters": [{ "name": "id", "in": "path", "required": true, "schema": { "type": "string" } }],
                    "responses": { "200": { "description": "ok" } },
                },
            },
        },
    })
}

async fn shop() -> Service {
    serve(|seen| match seen.target.as_str() {
        "/orders?limit=2" => json_answer(json!([{ "id": 1 }, { "id": 2 }])),
        "/orders" if seen.method == Method::POST => (StatusCode::CREATED, seen.body.clone()).into_response(),
        "/orders/7" => json_answer(json!({ "id": 7 })),
        _ => StatusCode::NOT_FOUND.into_response(),
    })
    .await
}

#[tokio::test]
async fn the_operations_of_a_document_are_tools() {
    let service = shop().await;
    let setup = Setup::new();
    fs::write(setup.path("shop.json"), document(&service.base).to_string()).expect("written");
    let keys = "openapi = 'shop.json'\noperations = ['*Order', '*Orders']\nblocked_tools = ['add*']\ntags = ['sales']";
    let inside = setup.server_of("shop", keys).open().await;
    let listed = inside.answer("browse_category", json!({ "category": "shop" })).await;
    assert_eq!(listed["total"], 2, "{listed}");
    let orders = inside.execute("shop.listOrders", json!({ "limit": 2 })).await;
    assert_eq!(orders["structuredContent"], json!({ "result": [{ "id": 1 }, { "id": 2 }] }), "{orders}");
    let order = inside.execute("shop.getOrder", json!({ "id": "7" })).await;
    assert_eq!(order["structuredContent"], json!({ "id": 7 }));
    let found = inside.answer("search_tools", json!({ "query": "zirconium" })).await;
    assert_eq!(found["results"][0]["name"], "shop.listOrders", "tags of the document find: {found}");
    let tool = inside.answer("get_tool", json!({ "name": "shop.getOrder" })).await;
    assert!(!tool.to_string().contains("nonet/tags"), "{tool}");
    let tool = inside.answer("get_tool", json!({ "name": "shop.listOrders" })).await;
    assert_eq!(
        (&tool["title"], &tool["tags"]),
        (&json!("Lists orders"), &json!(["sales", "zirconium"])),
        "{tool}"
    );
    let status = json_of(&inside.execute("gateway.status", json!({})).await);
    let server = &status["servers"][0];
    assert_eq!(
        (&server["version"], server.get("era"), &server["tools"]),
        (&json!("OpenAPI 3.0.3"), None, &json!(2)),
        "{server}"
    );
    let refused = fault(&inside, "getOrder", json!({})).await;
    assert_eq!(refused["code"], "invalid_params", "{refused}");
}

#[tokio::test]
async fn a_document_that_changes_is_taken_up_and_one_that_breaks_is_not() {
    let service = shop().await;
    let setup = Setup::new();
    let file = setup.path("shop.json");
    fs::write(&file, document(&service.base).to_string()).expect("written");
    let inside = setup.server_of("shop", "openapi = 'shop.json'").open().await;
    let total =
        async || inside.answer("browse_category", json!({ "category": "shop" })).await["total"].clone();
    assert_eq!(total().await, 4);
    // Neither a broken nor a missing document loses known operations.
    fs::write(&file, "{ \"openapi\": ").expect("written");
    assert_eq!(inside.execute("shop.getOrder", json!({ "id": "7" })).await["structuredContent"]["id"], 7);
    let mut changed = document(&service.base);
    changed["paths"].as_object_mut().expect("paths").remove("/orders");
    fs::write(&file, changed.to_string()).expect("written");
    eventually("the new document counts", async || (total().await == 2).then_some(())).await;
    let gone = fault(&inside, "listOrders", json!({})).await;
    assert_eq!(gone["code"], "unknown_tool", "{gone}");
    for (lost, said) in [(false, "cannot be used"), (true, "cannot be read")] {
        match lost {
            true => fs::remove_file(&file).expect("removed"),
            false => fs::write(&file, "{ \"openapi\": ").expect("written"),
        }
        inside.gateway.servers.connections()["shop"].restart();
        eventually("it is down", async || {
            let down = inside.execute("shop.getOrder", json!({ "id": "7" })).await;
            let down = json_of(&down)["error"].clone();
            let message = down["message"].as_str()?;
            (down["code"] == "server_down" && message.contains("shop.json") && message.contains(said))
                .then_some(())
        })
        .await;
    }
    fs::write(&file, document(&service.base).to_string()).expect("written");
    // A call cuts short the wait for the next attempt.
    eventually("it works again", async || {
        inside.execute("shop.getOrder", json!({ "id": "7" })).await.get("structuredContent").map(drop)
    })
    .await;
    eventually("its tools are back", async || (total().await == 4).then_some(())).await;
}

#[tokio::test]
async fn a_document_is_read_from_an_address_without_credentials_for_another_host() {
    let service = shop().await;
    let base = service.base.clone();
    let documents = serve(move |seen| match seen.target.as_str() {
        "/shop.json" => json_answer(document(&base)),
        "/moved.json" => (StatusCode::FOUND, [(header::LOCATION, "/shop.json")]).into_response(),
        "/broken.json" => "no document".into_response(),
        "/closed.json" if seen.header("authorization") == Some("Bearer s3cr3t-t0ken") => {
            json_answer(document("http://127.0.0.1:1"))
        }
        "/closed.json" => StatusCode::UNAUTHORIZED.into_response(),
        _ => StatusCode::NOT_FOUND.into_response(),
    })
    .await;
    let keys = |path: &str| {
        format!(
            "openapi = '{}/{path}'\nheaders = {{ Authorization = 'Bearer s3cr3t-t0ken' }}",
            documents.base
        )
    };
    let inside = Setup::new()
        .server_of("shop", &keys("moved.json"))
        .server_of("open", &format!("openapi = '{}/shop.json'", documents.base))
        .server_of("broken", &keys("broken.json"))
        .server_of("gone", &keys("gone.json"))
        .server_of("closed", &keys("closed.json"))
        .server_of("own", &format!("{}\nbase_url = '{}/v1'", keys("closed.json"), documents.base))
        .open_at_once();
    inside.until_listed("shop").await;
    inside.until_listed("own").await;
    inside.until_listed("open").await;
    // The document decides neither where credentials go nor, unseen, where params go.
    let held = fault(&inside, "getOrder", json!({ "id": "7" })).await;
    assert_eq!(held["code"], "needs_approval", "{held}");
    assert!(service.seen("/orders/7").is_empty());
    let (waiting, _) = inside.gateway.waiting_definitions(10).await.expect("readable");
    let waiting = waiting.into_iter().find(|one| one.pin.name == "getOrder").expect("it waits");
    assert!(
        waiting.difference.contains(&format!("Requests go to {}", service.base)),
        "{}",
        waiting.difference
    );
    assert!(waiting.difference.contains("set `base_url` in [servers.shop]"), "{}", waiting.difference);
    inside.gateway.calls.trust(vec![waiting.pin]).await.expect("trusted");
    let order = inside.execute("shop.getOrder", json!({ "id": "7" })).await;
    assert_eq!(order["structuredContent"], json!({ "id": 7 }), "{order}");
    assert_eq!(service.seen("/orders/7")[0].header("authorization"), None);
    // Without credentials, there is nothing to direct.
    let order = inside.execute("open.getOrder", json!({ "id": "7" })).await;
    assert_eq!(order["structuredContent"], json!({ "id": 7 }), "{order}");
    let moved = [documents.seen("/moved.json"), documents.seen("/shop.json")].concat();
    assert!(moved.len() == 3 && moved.iter().all(|seen| seen.header("authorization").is_none()), "{moved:?}");
    for (server, state, said) in [
        ("broken", "down", "document"),
        ("gone", "down", "HTTP 404"),
        ("closed", "down", "host of `base_url`"),
    ] {
        inside.until(server, state).await;
        let status = json_of(&inside.execute("gateway.status", json!({})).await);
        let servers = status["servers"].as_array().expect("a list");
        let entry = servers.iter().find(|entry| entry["name"] == server).expect("it is there");
        assert!(entry["last_error"].as_str().expect("an error").contains(said), "{entry}");
    }
}

#[tokio::test]
async fn a_document_that_names_no_address_wants_one() {
    let setup = Setup::new();
    let mut homeless = document("");
    homeless["servers"] = json!([]);
    fs::write(setup.path("shop.json"), homeless.to_string()).expect("written");
    let inside = setup.server_of("shop", "openapi = 'shop.json'").open_at_once();
    inside.until("shop", "down").await;
    let status = json_of(&inside.execute("gateway.status", json!({})).await);
    let error = status["servers"][0]["last_error"].as_str().expect("an error");
    assert!(error.contains("`base_url` in [servers.shop]"), "{error}");
}

#[test]
fn the_list_of_the_last_run_is_known_at_once_and_works_after_a_restart() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let service = runtime.block_on(shop());
    let setup = Setup::new();
    fs::write(setup.path("shop.json"), document(&service.base).to_string()).expect("written");
    let mut client = setup.server_of("shop", "openapi = 'shop.json'\nexpose = 'verbatim'").start_program();
    client.until_ready("shop");
    // A client would take a schema of the responses as a guarantee.
    let listed = client.request("tools/list", json!({}))["result"]["tools"].clone();
    let listed = listed.as_array().expect("a list").iter().find(|tool| tool["name"] == "listRefunds");
    let listed = listed.expect("it is listed");
    assert_eq!((listed.get("outputSchema"), listed.get("_meta")), (None, None), "{listed}");
    let whole = client.answer("get_tool", json!({ "name": "shop.listRefunds" }));
    assert_eq!(whole["output_schema"]["type"], "object", "{whole}");
    let mut client = client.restart();
    client.initialize("2025-06-18", json!({}));
    let found = client.answer("get_tool", json!({ "name": "shop.getOrder" }));
    assert_eq!(found["name"], "shop.getOrder", "{found}");
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let call = json!({ "name": "shop.getOrder", "params": { "id": "7" } });
    let params = json!({ "name": "execute_tool", "arguments": call, "_meta": { "traceparent": trace } });
    let order = client.request("tools/call", params)["result"].clone();
    assert_eq!(order["structuredContent"], json!({ "id": 7 }), "{order}");
    let seen = service.seen("/orders/7");
    assert_eq!(seen.last().and_then(|seen| seen.header("traceparent")), Some(trace), "{seen:?}");
}

#[test]
fn check_says_what_became_of_a_document() {
    let setup = Setup::new();
    let mut shop = document("http://127.0.0.1:1");
    shop["paths"]["/files"] = json!({ "post": {
        "operationId": "upload",
        "requestBody": { "content": { "application/x-strange": { "schema": { "type": "object" } } } },
        "responses": { "200": { "description": "ok" } },
    } });
    fs::write(setup.path("shop.json"), shop.to_string()).expect("written");
    let setup = setup
        .server_of("shop", "openapi = 'shop.json'")
        .server_of("part", "openapi = 'shop.json'\noperations = ['getOrder', 'lst*']");
    setup.write();
    let output = command(setup.folder.path()).arg("check").output().expect("nonet runs");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("OpenAPI 3.0.3"), "{told}");
    assert!(told.contains("servers.part.operations: `lst*` matches no operation; there are "), "{told}");
    assert!(told.contains(&format!("operations of {}", setup.path("shop.json").display())), "{told}");
    let output = command(setup.folder.path()).args(["check", "--json"]).output().expect("nonet runs");
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(told["documents"]["shop"]["operations"].as_u64().is_some_and(|count| count >= 3), "{told}");
}
