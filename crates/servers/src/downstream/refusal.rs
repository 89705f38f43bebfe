//! A server's refusal of a request that lacks a sign-in, or lacks a scope.

use http::StatusCode;
use nonet_wire::http::HttpFault;

/// A refusal for want of a sign-in or a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// Its `WWW-Authenticate` header, or else the status.
    pub challenge: String,
    /// The additional scopes that the server requires, separated by spaces; `None` if there is no sign-in or
    /// it has expired.
    pub scope: Option<String>,
}

impl Refusal {
    /// Returns the refusal that a fault is, if it is one.
    pub(super) fn of(fault: &HttpFault) -> Option<Self> {
        match fault {
            HttpFault::AuthRequired(challenge) => Some(Self { challenge: challenge.clone(), scope: None }),
            HttpFault::Narrow { challenge, scope } => {
                Some(Self { challenge: challenge.clone(), scope: Some(scope.clone().unwrap_or_default()) })
            }
            _ => None,
        }
    }
}

/// Returns whether a replica could not pass a request on to a server's program: the replica is gone, or does
/// not run the program.
pub(super) fn is_not_there(fault: &HttpFault) -> bool {
    match fault {
        HttpFault::Status { status, .. } => {
            matches!(*status, StatusCode::MISDIRECTED_REQUEST | StatusCode::SERVICE_UNAVAILABLE)
        }
        HttpFault::Broken(error) => error.is_connect(),
        _ => false,
    }
}
