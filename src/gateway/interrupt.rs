//! Why an operation has no answer.

use std::sync::Arc;

use rmcp::model::ErrorData;

use crate::{fault::Fault, jobs::Job};

/// Why an operation has no answer yet.
#[derive(Debug)]
pub enum Interrupt {
    /// It failed.
    Fault(Box<Fault>),
    /// It goes on as a task of the protocol, which the client follows.
    Task(Arc<Job>),
    /// The server refused a verbatim call with this error.
    Refused(Box<ErrorData>),
}

impl From<Fault> for Interrupt {
    fn from(fault: Fault) -> Self {
        Interrupt::Fault(Box::new(fault))
    }
}
