//! How a REST service is reached, and which of its operations become tools.

use std::{collections::BTreeMap, path::PathBuf};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::json;

use super::{Endpoint, Globs, OAuth, Secret, paths::Paths, schema::with_keys};

/// A REST service: its document, its endpoints written by hand, or both.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
pub struct RestSettings {
    /// The OpenAPI document (3.0 or 3.1) of a REST service, whose operations become tools: a file (absolute,
    /// with `~/`, or relative to this file) or an address.
    #[schemars(with = "Option<String>", extend("format" = "openapi"))]
    #[schemars(example = &"https://api.example.com/openapi.json")]
    pub openapi: Option<OpenApi>,
    /// Requests of a REST service, written by hand, by the names of their tools.
    #[serde(default)]
    #[schemars(schema_with = "endpoints_schema")]
    pub endpoints: BTreeMap<String, Endpoint>,
    /// The address of a REST service, which paths are appended to. Its query, if it has one, is part of each
    /// request. Default: the address in the document.
    #[schemars(extend("format" = "base-url"), example = &"https://api.example.com/v1")]
    pub base_url: Option<String>,
    /// Only operations with these names become tools.
    #[schemars(example = json!(["get_*", "list_*"]))]
    pub operations: Option<Globs>,
    /// Headers of a REST service's responses that are shown with its answers.
    #[serde(default)]
    #[schemars(schema_with = "headers_out_schema")]
    pub headers_out: Vec<String>,
    /// `true`: allows a private address, such as 10.0.0.9, behind a public host name of a REST service.
    #[serde(default)]
    pub private_addresses: bool,
    /// Headers of each request; names and values are well-formed.
    #[serde(skip)]
    pub headers: BTreeMap<String, Secret>,
    /// How Nonet signs in, if the service requests it.
    #[serde(skip)]
    pub oauth: OAuth,
    /// Whether the configuration has OAuth settings.
    #[serde(skip)]
    pub has_oauth: bool,
}

fn headers_out_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": { "type": "string", "format": "response-header", "examples": ["X-Total-Count"] },
        "examples": [["X-Total-Count"]],
    })
}

fn endpoints_schema(generator: &mut SchemaGenerator) -> Schema {
    let endpoint = generator.subschema_for::<Endpoint>();
    with_keys("plain-name", endpoint, json!({ "get_user": { "path": "/users/{id}" } }))
}

/// Where an OpenAPI document is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub enum OpenApi {
    /// A file, by its absolute path.
    File(PathBuf),
    /// An `http` or `https` address; checked.
    Url(String),
}

impl From<String> for OpenApi {
    fn from(written: String) -> Self {
        if is_url(&written) { Self::Url(written) } else { Self::File(written.into()) }
    }
}

impl OpenApi {
    /// Returns the place with an absolute path.
    pub(super) fn located(self, paths: &Paths) -> Self {
        match self {
            Self::File(file) => Self::File(paths.resolve(&file)),
            url @ Self::Url(_) => url,
        }
    }
}

/// Whether a document is at an address; otherwise it is a file.
pub(super) fn is_url(written: &str) -> bool {
    written.starts_with("http://") || written.starts_with("https://")
}
