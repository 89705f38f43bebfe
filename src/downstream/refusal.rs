//! What a server says when it refuses a request for want of a sign-in, or of one that allows more.

use http::StatusCode;

use crate::wire::{http::HttpFault, rmcp::http_fault};

/// Such a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its `WWW-Authenticate`, or else the status.
    pub challenge: String,
    /// What it wants to be allowed besides, separated by spaces; none if there is no sign-in at all, or it is over.
    pub scope: Option<String>,
}

impl Refusal {
    /// The refusal that an error comes of, if it does.
    pub fn of(error: &(dyn std::error::Error + 'static)) -> Option<Self> {
        match http_fault(error)? {
            HttpFault::AuthRequired(challenge) => Some(Self { challenge, scope: None }),
            HttpFault::Narrow { challenge, scope } => {
                Some(Self { challenge, scope: Some(scope.unwrap_or_default()) })
            }
            _ => None,
        }
    }
}

/// Whether an error says that a request was not sent, because its token could not be renewed just now.
pub fn is_unsent(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(http_fault(error), Some(HttpFault::Unsent(_)))
}

/// Whether an error says that a replica which was to pass a request on to a server's program has not done so: it is gone, or does
/// not run the program.
pub fn is_not_there(error: &(dyn std::error::Error + 'static)) -> bool {
    match http_fault(error) {
        Some(HttpFault::Status { status, .. }) => {
            matches!(status, StatusCode::MISDIRECTED_REQUEST | StatusCode::SERVICE_UNAVAILABLE)
        }
        Some(HttpFault::Broken(error)) => error.is_connect(),
        _ => false,
    }
}
