//! A server's refusal of a request that lacks a sign-in, or lacks a scope.

use http::StatusCode;
use nonet_wire::{http::HttpFault, rmcp::http_fault};

/// A refusal for want of a sign-in or a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// Its `WWW-Authenticate` header, or else the status.
    pub challenge: String,
    /// The additional scopes that the server requires, separated by spaces; `None` if there is no sign-in or it has expired.
    pub scope: Option<String>,
}

impl Refusal {
    /// Returns the refusal that caused an error, if one did.
    pub(super) fn of(error: &(dyn std::error::Error + 'static)) -> Option<Self> {
        match http_fault(error)? {
            HttpFault::AuthRequired(challenge) => Some(Self { challenge, scope: None }),
            HttpFault::Narrow { challenge, scope } => {
                Some(Self { challenge, scope: Some(scope.unwrap_or_default()) })
            }
            _ => None,
        }
    }
}

/// Returns whether an error means that a request was not sent because its token could not be renewed.
pub(super) fn is_unsent(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(http_fault(error), Some(HttpFault::Unsent(_)))
}

/// Returns whether an error means that a replica could not pass a request on to a server's program: the replica is gone, or
/// does not run the program.
pub(super) fn is_not_there(error: &(dyn std::error::Error + 'static)) -> bool {
    match http_fault(error) {
        Some(HttpFault::Status { status, .. }) => {
            matches!(status, StatusCode::MISDIRECTED_REQUEST | StatusCode::SERVICE_UNAVAILABLE)
        }
        Some(HttpFault::Broken(error)) => error.is_connect(),
        _ => false,
    }
}
