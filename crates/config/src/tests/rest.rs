//! REST services.

use super::*;

#[test]
fn a_rest_service_has_a_document_endpoints_or_both() {
    let settings = |text: &str| {
        let config = loaded(text).config;
        config.servers.values().next().expect("it has no fault").clone()
    };
    let by_document = settings("[servers.a]\nopenapi = 'api.yaml'\noperations = ['get_*']\n");
    assert_eq!(by_document.timeout.as_secs(), 30);
    let Transport::Rest(rest) = &by_document.transport else { panic!("{by_document:?}") };
    assert_eq!(rest.openapi, Some(OpenApi::File("/etc/nonet/api.yaml".into())));
    assert!(!rest.private_addresses);
    assert_eq!(by_document.transport.sign_in(), None, "no document decides where tokens go");
    let by_hand = settings(
        "[servers.a]\nbase_url = 'https://api.example.com'\ntimeout = '2m'\n\
         [servers.a.endpoints.look]\npath = '/x/{id}'\n\
         [servers.a.tools.look]\nrisk = 'low'\ntags = ['x']\n",
    );
    assert_eq!((by_hand.timeout.as_secs(), by_hand.tools["look"].risk), (120, Some(Risk::Low)));
    assert_eq!(by_hand.tools["look"].tags, ["x"]);
    assert_eq!(by_hand.transport.sign_in().map(|(url, ..)| url), Some("https://api.example.com"));
    let both = settings(
        "[servers.a]\nopenapi = 'https://api.example.com/openapi.json'\n\
         [servers.a.endpoints.look]\npath = '/x'\n",
    );
    let Transport::Rest(rest) = &both.transport else { panic!("{both:?}") };
    assert_eq!(rest.openapi, Some(OpenApi::Url("https://api.example.com/openapi.json".into())));
    assert_eq!(rest.endpoints.len(), 1);
}

#[test]
fn every_fault_of_a_rest_service_is_told() {
    let text = r#"
[servers.both]
openapi = "x.json"
url = "https://example.com/mcp"

[servers.program]
command = "x"
base_url = "https://api.example.com"
headers_out = ["X"]

[servers.transport]
openapi = "x.json"
transport = "http"
args = ["x"]

[servers.values]
openapi = "ftp://example.com/x.json"
base_url = "https://example.com/?key=s3cr3t#x"
operations = ["x["]
headers_out = ["a b"]
private_addresses = 1

[servers.sign_in]
openapi = "x.json"
oauth = {}

[servers.homeless]
operations = ["x"]
[servers.homeless.endpoints.look]
path = "/x"

[servers.empty]
base_url = "https://api.example.com"
endpoints = {}

[servers.hand]
base_url = "https://api.example.com"
[servers.hand.endpoints."a b"]
path = "/x"
[servers.hand.endpoints.paths]
path = "x"
method = "FETCH"
[servers.hand.endpoints.braces]
path = "/x/{id"
[servers.hand.endpoints.twice]
path = "/x/{id}"
query = ["id"]
body = ["a"]
header = ["Content-Type", "Authorization"]
[servers.hand.endpoints.schema]
path = "/x/{id}"
input_schema = { properties = { other = { type = "string" } } }
[servers.hand.endpoints.kind]
path = "/x"
input_schema = { type = "array" }
[servers.hand.endpoints.bad]
path = "/x"
input_schema = { properties = { a = { type = "text" } } }
[servers.hand.endpoints.pathless]
methd = "GET"
"#;
    let told: Vec<String> = loaded(text).faults.iter().map(ToString::to_string).collect();
    let told = told.join("\n").replace("/etc/nonet/", "");
    assert!(!told.contains("s3cr3t"), "{told}");
    assert_snapshot!(told);
}
