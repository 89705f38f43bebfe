//! How a REST service is reached, and which of its operations become tools.

use std::{collections::BTreeMap, path::PathBuf};

use super::{Endpoint, Globs, OAuth, Secret, paths::Paths};

/// The longest answer, in bytes, unless configured otherwise.
pub(super) const MAX_RESPONSE_BYTES: usize = 10_000_000;

/// A REST service: its document, its endpoints written by hand, or both.
#[derive(Clone, Debug, PartialEq)]
pub struct RestSettings {
    /// The document whose operations become tools.
    pub openapi: Option<OpenApi>,
    /// Requests written by hand, by tool name.
    pub endpoints: BTreeMap<String, Endpoint>,
    /// The base address that replaces the document's; checked.
    pub base_url: Option<String>,
    /// If given, only operations with these names become tools.
    pub operations: Option<Globs>,
    /// Headers of each request; names and values are well-formed.
    pub headers: BTreeMap<String, Secret>,
    /// Response headers shown with the answers; well-formed.
    pub headers_out: Vec<String>,
    /// The longest answer, in bytes.
    pub max_response_bytes: usize,
    /// Whether every host may be at a private address.
    pub private_addresses: bool,
    /// How Nonet signs in, if the service requests it.
    pub oauth: OAuth,
    /// Whether the configuration has OAuth settings.
    pub has_oauth: bool,
}

/// Where an OpenAPI document is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenApi {
    /// A file, by its absolute path.
    File(PathBuf),
    /// An `http` or `https` address; checked.
    Url(String),
}

impl OpenApi {
    /// Parses the place of a document.
    pub(super) fn new(written: &str, paths: &Paths) -> Self {
        match is_url(written) {
            true => Self::Url(written.into()),
            false => Self::File(paths.resolve(written.as_ref())),
        }
    }
}

/// Whether a document is at an address; otherwise it is a file.
pub(super) fn is_url(written: &str) -> bool {
    written.starts_with("http://") || written.starts_with("https://")
}
