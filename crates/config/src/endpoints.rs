//! `[servers.NAME.endpoints.X]`: one request of a REST service, written by hand.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// One request of a REST service as a tool.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// The HTTP method. Default: `GET`.
    #[serde(default)]
    #[schemars(extend("format" = "http-method"), example = &"GET")]
    pub method: Option<String>,
    /// The path after `base_url`. What is in braces is a param.
    #[schemars(extend("format" = "endpoint-path"), example = &"/users/{id}/posts")]
    pub path: String,
    /// What the request does.
    #[serde(default)]
    #[schemars(example = &"The posts of a user")]
    pub description: Option<String>,
    /// The input schema of the tool. Default: the params of `path`, `query`, `header` and `body`, as strings.
    #[serde(default)]
    #[schemars(example = json!({ "type": "object", "properties": { "id": { "type": "integer" } } }))]
    pub input_schema: Option<Map<String, Value>>,
    /// Params that go into the query.
    #[serde(default)]
    #[schemars(example = json!(["page"]))]
    pub query: Vec<String>,
    /// Params that go into headers of their name.
    #[serde(default)]
    #[schemars(schema_with = "header_schema")]
    pub header: Vec<String>,
    /// Params that make the JSON body. Other params of `input_schema` go there too, with GET, HEAD and DELETE
    /// into the query.
    #[serde(default)]
    #[schemars(example = json!(["title"]))]
    pub body: Vec<String>,
}

fn header_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": { "type": "string", "format": "param-header", "examples": ["X-Request-Id"] },
        "examples": [["X-Request-Id"]],
    })
}
