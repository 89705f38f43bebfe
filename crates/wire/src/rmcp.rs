//! Workarounds for rmcp's and oauth2's sign-in: errors that only the wording distinguishes. Each wording has
//! a test with the real error, which fails when a new version changes it.

use std::error::Error;

use reqwest::Url;
use rmcp::transport::auth::{AuthError, WWWAuthenticateParams};

/// The text of oauth2 for an error from the sign-in server (RFC 6749, section 5.2).
const OAUTH_ANSWER: &str = "Server returned error response";
/// Such errors that are temporary.
const PASSING: [&str; 3] = ["temporarily_unavailable", "server_error", "slow_down"];
/// The text of rmcp for an address that it refuses to send to.
const PRIVATE_ADDRESS: &str = "address not allowed";

/// Returns whether a failure is an answer of the sign-in server that a retry does not change.
pub fn is_refused_for_good(error: &AuthError) -> bool {
    let text = chain(error);
    text.contains(OAUTH_ANSWER) && !PASSING.iter().any(|code| text.contains(code))
}

/// Returns whether a request was not sent because a public server leads to a private address.
pub fn is_private_address(error: &AuthError) -> bool {
    chain(error).contains(PRIVATE_ADDRESS)
}

/// Returns an error with its causes, each named once.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut at = error.source();
    while let Some(source) = at {
        let said = source.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        at = source.source();
    }
    text
}

/// Returns the scope that a challenge requires.
pub fn scope_of(challenge: &str) -> Option<String> {
    // Only the address of the metadata would be relative to it.
    let base = Url::parse("http://localhost/").ok()?;
    WWWAuthenticateParams::parse(challenge, &base).scope
}

#[cfg(test)]
mod tests {
    use axum::{Router, http::header::CONTENT_TYPE, routing::any};
    use http::StatusCode;
    use rmcp::transport::auth::{
        AuthorizationManager, AuthorizationMetadata, CredentialStore, InMemoryCredentialStore,
        OAuthClientConfig, StoredCredentials,
    };
    use serde_json::{Value, json};

    use super::*;

    /// Returns the error for a renewal that the sign-in server answers like this.
    async fn renewal(status: StatusCode, answer: Value) -> AuthError {
        super::super::web::crypto();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let answer = async move || (status, [(CONTENT_TYPE, "application/json")], answer.to_string());
        let service = axum::serve(listener, Router::new().route("/token", any(answer)));
        tokio::spawn(service.into_future());
        let site = format!("http://{address}");
        let metadata: AuthorizationMetadata = serde_json::from_value(json!({
            "issuer": site,
            "authorization_endpoint": format!("{site}/authorize"),
            "token_endpoint": format!("{site}/token"),
        }))
        .expect("metadata");
        let token = json!({ "access_token": "a", "token_type": "bearer", "refresh_token": "b" });
        let token = serde_json::from_value(token).expect("a token");
        let store = InMemoryCredentialStore::new();
        let credentials = StoredCredentials::new("me".into(), Some(token), vec![], Some(0));
        store.save(credentials).await.expect("it is in memory");
        let resource = format!("{site}/mcp");
        let mut manager =
            AuthorizationManager::new_allowing_private_addresses(&resource).await.expect("a manager");
        manager.set_metadata(metadata);
        manager.set_credential_store(store);
        manager.configure_client(OAuthClientConfig::new("me", format!("{site}/back"))).expect("a client");
        manager.refresh_token().await.expect_err("the sign-in server refuses")
    }

    #[tokio::test]
    async fn a_refusal_of_the_sign_in_server_is_told_from_a_failure() {
        let check = async |status: StatusCode, answer: Value, for_good: bool| {
            let error = renewal(status, answer.clone()).await;
            assert_eq!(is_refused_for_good(&error), for_good, "{answer}: {}", chain(&error));
        };
        let bad = StatusCode::BAD_REQUEST;
        check(bad, json!({ "error": "invalid_client", "error_description": "unknown" }), true).await;
        check(bad, json!({ "error": "unauthorized_client" }), true).await;
        check(bad, json!({ "error": "temporarily_unavailable" }), false).await;
        check(StatusCode::BAD_GATEWAY, json!("<html>"), false).await;
        check(StatusCode::OK, json!({}), false).await;
        let error = renewal(bad, json!({ "error": "invalid_grant" })).await;
        assert!(matches!(error, AuthError::TokenRefreshRejected(_)), "{error:?}");
    }

    #[tokio::test]
    async fn an_address_that_is_not_asked_is_told_from_a_failure() {
        super::super::web::crypto();
        let mut manager = AuthorizationManager::new("https://mcp.example.com/mcp").await.expect("a manager");
        let site = "http://10.0.0.1";
        let metadata = json!({
            "issuer": site,
            "authorization_endpoint": format!("{site}/authorize"),
            "token_endpoint": format!("{site}/token"),
            "registration_endpoint": format!("{site}/register"),
        });
        manager.set_metadata(serde_json::from_value(metadata).expect("metadata"));
        let registered = manager.register_client("me", "http://127.0.0.1/back", &[]).await;
        let error = registered.map(drop).expect_err("it asks nobody");
        assert!(is_private_address(&error), "{}", chain(&error));
    }
}
