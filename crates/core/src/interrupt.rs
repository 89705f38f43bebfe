//! Why an operation has no result yet.

use std::sync::Arc;

use nonet_parts::jobs::Job;
use nonet_text::fault::Fault;
use rmcp::model::ErrorData;

/// Why an operation has no result yet.
#[derive(Debug)]
pub enum Interrupt {
    /// The operation failed.
    Fault(Box<Fault>),
    /// The operation continues as a protocol task, which the client polls.
    Task(Arc<Job>),
    /// The server refused a verbatim call with this error.
    Refused(Box<ErrorData>),
}

impl From<Fault> for Interrupt {
    fn from(fault: Fault) -> Self {
        Interrupt::Fault(Box::new(fault))
    }
}
