//! A build without traces: nothing is recorded.

use serde_json::{Map, Value};

use crate::metrics::CallRecord;

/// The parent of spans.
#[derive(Clone, Debug, Default)]
pub struct Parent;

impl Parent {
    /// Returns the client's span, from its request's `_meta`.
    #[inline]
    pub fn of(_meta: &Map<String, Value>) -> Self {
        Self
    }
}

/// A span that runs until it is dropped.
#[derive(Debug)]
pub struct Span;

impl Span {
    /// Starts the span of a client's call, with the client's name and, if any, the number of its session.
    #[inline]
    pub fn call(_parent: &Parent, _client: &str, _session: Option<u64>) -> Self {
        Self
    }

    /// Starts the span of the request to a server that a call causes.
    #[inline]
    pub fn request(_call: &Span, _server: &str, _tool: &str) -> Self {
        Self
    }

    /// Returns this span as a parent.
    #[inline]
    pub fn parent(&self) -> Parent {
        Parent
    }

    /// Names this span in `_meta` as the parent of what follows.
    #[inline]
    pub fn pass_on(&self, _meta: &mut Map<String, Value>) {}

    /// Records which tool is called; the span is named after it.
    #[inline]
    pub fn of_tool(&self, _name: &str) {}

    /// Records a finished call of the tool with this full name.
    #[inline]
    pub fn called(&self, _tool: &str, _call: &CallRecord<'_>) {}

    /// Records a call that was refused before a tool was found. `name` is the client's own text.
    #[inline]
    pub fn refused(&self, _name: &str, _outcome: &'static str) {}

    /// Records the results of a search.
    #[inline]
    pub fn found(&self, _shown: usize, _total: usize, _confidence: &'static str) {}

    /// Records the outcome: `ok`, `tool_error`, or the code of a fault.
    #[inline]
    pub fn ended(&self, _outcome: &'static str) {}
}

/// The export of audit lines, which does not exist in this build.
#[derive(Debug)]
pub struct AuditExport;

impl AuditExport {
    /// Starts no export.
    pub fn start() -> Option<Self> {
        None
    }

    /// Sends nothing.
    pub fn emit(&self, _line: &str) {}
}
