//! REST services as tools: the operations of an OpenAPI document, or endpoints written by hand, each with one
//! input schema, and the request that a call makes. This room does no IO.

mod document;
mod endpoints;
mod names;
mod operations;
mod plan;
mod prose;
mod request;
mod schema;
mod servers;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use document::ApiDocument;
use nonet_config::{Endpoint, Globs};
use plan::RequestPlan;
use serde_json::{Map, Value};

/// The largest document, in bytes.
pub const MAX_DOCUMENT: usize = 32 << 20;
/// The maximum number of operations of a service.
pub const MAX_OPERATIONS: usize = 10_000;

/// A REST service, as its document or the configuration describes it.
#[derive(Debug, Default)]
pub struct Service {
    /// The version of OpenAPI that the document is written in.
    pub version: String,
    /// The service's description of itself.
    pub about: String,
    /// The address that paths are appended to, if the document names one: absolute, `http` or `https`.
    pub base_url: Option<String>,
    /// The ways to sign in that the document names, as text: `a key in the header "X-Api-Key"`.
    pub sign_in: Vec<String>,
    /// The operations, by name.
    pub operations: BTreeMap<String, Operation>,
    /// Operations that did not become tools, each with the reason: `GET /files: ...`.
    pub left_out: Vec<String>,
    /// The patterns of wanted operations that match none, each with the names that exist.
    pub unmatched: Vec<String>,
}

/// One operation of a service.
#[derive(Debug)]
pub struct Operation {
    /// The tool definition: name, title, description, inputSchema, outputSchema, annotations, `_meta`.
    pub definition: Arc<Value>,
    /// The HTTP method.
    pub method: http::Method,
    plan: RequestPlan,
}

/// A request to send.
#[derive(Clone, Debug, PartialEq)]
pub struct RestRequest {
    /// The HTTP method.
    pub method: http::Method,
    /// The complete address, with its query.
    pub url: String,
    /// Headers besides the configured ones, already checked, including `Accept`.
    pub headers: http::HeaderMap,
    /// The body with its `Content-Type`.
    pub body: Option<(String, Vec<u8>)>,
}

impl Service {
    /// Reads an OpenAPI document, 3.0 or 3.1, as JSON or YAML. `came_from` is the address that it was read
    /// from, the base of relative server addresses. Only operations whose name matches `wanted` become tools;
    /// `None`: all.
    ///
    /// # Errors
    ///
    /// Why the document cannot be used, and what to do.
    pub fn read(document: &[u8], came_from: Option<&str>, wanted: Option<&Globs>) -> Result<Self, String> {
        operations::service(&ApiDocument::read(document)?, came_from, wanted)
    }

    /// Returns a service of endpoints written by hand, at the address `base_url`. An unusable endpoint is
    /// left out, with the reason; the configuration has already refused it, with its line.
    pub fn by_hand(endpoints: &BTreeMap<String, Endpoint>, base_url: Option<&str>) -> Self {
        endpoints::service(endpoints, base_url)
    }
}

impl Operation {
    /// Returns the name of its tool.
    pub fn name(&self) -> &str {
        self.definition["name"].as_str().unwrap_or_default()
    }

    /// Returns the address that its path is appended to, unless the configuration names one for the whole
    /// service.
    pub fn address(&self) -> Option<&str> {
        self.plan.base.as_deref()
    }

    /// Builds the request of a call. `base_url` is the configured one: absolute, and used instead of
    /// [`Self::address`]. Its query, if any, is part of every request.
    ///
    /// # Errors
    ///
    /// Which param cannot be sent, and why.
    pub fn request(
        &self,
        base_url: Option<&str>,
        params: &Map<String, Value>,
    ) -> Result<RestRequest, String> {
        request::make(&self.plan, &self.method, base_url, params)
    }
}
