//! What a server says when it refuses a request for want of a sign-in, or of one that allows more.

use super::{Connection, Remedy, State};
use crate::{
    config::Grant,
    text::clip,
    wire::{http::HttpFault, rmcp::http_fault},
};

/// The most scopes that a command is told with.
const MAX_SCOPES: usize = 20;

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

impl Connection {
    /// The state of a server that wants a sign-in, or one that allows more.
    pub(super) fn wants_sign_in(&self, refusal: &Refusal) -> State {
        let remedy = match self.account.as_ref().map(|account| account.grant()) {
            None => Remedy::Headers,
            Some(Grant::ClientCredentials) => Remedy::Client,
            Some(Grant::AuthorizationCode) => {
                let scopes = refusal.scope.iter().flat_map(|scope| scope.split_whitespace());
                // The server chooses them, and the user runs the command.
                let scopes = scopes.filter(|scope| is_plain(scope)).take(MAX_SCOPES);
                let scopes: String = scopes.map(|scope| format!(" --scope {scope}")).collect();
                Remedy::Login(format!("{} {}{scopes}", self.around.login, self.name))
            }
        };
        let said = refusal.challenge.replace(char::is_control, " ");
        State::AuthRequired { error: self.mask(&clip(&said, 400)), remedy }
    }

    /// Ends when somebody has signed in or out.
    pub(super) async fn signs_in(&self) {
        match &self.account {
            Some(account) => account.changed().await,
            None => std::future::pending().await,
        }
    }
}

/// Whether a scope is made of characters that mean nothing to any shell.
fn is_plain(scope: &str) -> bool {
    !scope.starts_with('-') && scope.chars().all(|c| c.is_ascii_alphanumeric() || "._:/@+=*-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::is_plain;

    #[test]
    fn a_scope_is_told_in_a_command_where_it_means_nothing_to_a_shell() {
        let check = |scope: &str, expected: bool| assert_eq!(is_plain(scope), expected, "{scope}");
        check("files:read", true);
        check("https://www.example.com/auth/drive.readonly", true);
        check("x&calc&", false);
        check("$(id)", false);
        check("--keyring", false);
        check("it's", false);
    }
}
