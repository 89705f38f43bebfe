//! A build without traces: nothing is kept and nothing is done.

use serde_json::{Map, Value};

use crate::metrics::CallRecord;

/// What spans hang under.
#[derive(Clone, Debug, Default)]
pub struct Parent;

impl Parent {
    /// The client's span, by `_meta` of its request.
    #[inline]
    pub fn of(_meta: &Map<String, Value>) -> Self {
        Self
    }
}

/// A span that runs until it is dropped.
#[derive(Debug)]
pub struct Span;

impl Span {
    /// A call, as a client makes it: the client's name, and the number of its session if it has one.
    #[inline]
    pub fn call(_parent: &Parent, _client: &str, _session: Option<u64>) -> Self {
        Self
    }

    /// The request to a server that a call comes to.
    #[inline]
    pub fn request(_call: &Span, _server: &str, _tool: &str) -> Self {
        Self
    }

    /// This span as the parent of others.
    #[inline]
    pub fn parent(&self) -> Parent {
        Parent
    }

    /// Names this span in `_meta` as the one that what follows belongs to.
    #[inline]
    pub fn pass_on(&self, _meta: &mut Map<String, Value>) {}

    /// Tells which tool is called; the span is named after it.
    #[inline]
    pub fn of_tool(&self, _name: &str) {}

    /// Tells of a call that was made of the tool of this full name.
    #[inline]
    pub fn called(&self, _tool: &str, _call: &CallRecord<'_>) {}

    /// Tells of a call that no tool was called for. `name` is the client's word.
    #[inline]
    pub fn refused(&self, _name: &str, _outcome: &'static str) {}

    /// Tells what a search found.
    #[inline]
    pub fn found(&self, _shown: usize, _total: usize, _confidence: &'static str) {}

    /// Tells how it went: `ok`, `tool_error`, or the code of a fault.
    #[inline]
    pub fn ended(&self, _outcome: &'static str) {}
}

/// The way of audit lines to a collector: there is none.
#[derive(Debug)]
pub struct AuditExport;

impl AuditExport {
    /// Opens no way.
    pub fn start() -> Option<Self> {
        None
    }

    /// Sends nothing.
    pub fn emit(&self, _line: &str) {}
}
