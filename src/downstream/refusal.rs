//! What a server says when it refuses a request for want of a sign-in, or of one that allows more.

use rmcp::transport::{
    auth::AuthError,
    streamable_http_client::{AuthRequiredError, InsufficientScopeError},
};

use crate::oauth::RenewError;

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

/// Whether an error says that a request was not sent, because its token could not be renewed just now.
pub fn is_unsent(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut at = Some(error);
    while let Some(error) = at {
        let renewal = matches!(error.downcast_ref::<AuthError>(), Some(AuthError::TokenRefreshFailed(_)));
        if renewal || error.is::<RenewError>() {
            return true;
        }
        at = error.source();
    }
    false
}

impl From<String> for Refusal {
    fn from(challenge: String) -> Self {
        Self { challenge, scope: None }
    }
}
