//! What a server says when it refuses a request for want of a sign-in, or of one that allows more.

use rmcp::transport::streamable_http_client::{AuthRequiredError, InsufficientScopeError};

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
        let mut at = Some(error);
        while let Some(error) = at {
            if let Some(unsigned) = error.downcast_ref::<AuthRequiredError>() {
                return Some(unsigned.www_authenticate_header.clone().into());
            }
            if let Some(narrow) = error.downcast_ref::<InsufficientScopeError>() {
                let challenge = narrow.www_authenticate_header.clone();
                return Some(Self {
                    challenge,
                    scope: Some(narrow.required_scope.clone().unwrap_or_default()),
                });
            }
            at = error.source();
        }
        None
    }
}

impl From<String> for Refusal {
    fn from(challenge: String) -> Self {
        Self { challenge, scope: None }
    }
}
