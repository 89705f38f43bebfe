//! Workarounds for rmcp and oauth2: errors that only the wording or nesting distinguishes. Each wording has a test with the
//! real error, which fails when a new version changes it.

use std::error::Error;

use http::StatusCode;
use reqwest::Url;
use rmcp::{
    model::{ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage},
    transport::{
        auth::{AuthError, WWWAuthenticateParams},
        streamable_http_client::{AuthRequiredError, InsufficientScopeError, StreamableHttpError},
    },
};

use super::http::{HttpFault, said};

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

/// The error type of rmcp's HTTP transport.
pub type TransportFault = StreamableHttpError<HttpFault>;

/// Converts an HTTP fault to the error type of rmcp's transport.
pub fn transport_fault(fault: HttpFault) -> TransportFault {
    match fault {
        HttpFault::AuthRequired(challenge) => {
            StreamableHttpError::AuthRequired(AuthRequiredError::new(challenge))
        }
        HttpFault::Narrow { challenge, scope } => {
            StreamableHttpError::InsufficientScope(InsufficientScopeError::new(challenge, scope))
        }
        HttpFault::SessionExpired => StreamableHttpError::SessionExpired,
        other => StreamableHttpError::Client(other),
    }
}

/// Returns the cause of an error. rmcp does not report its HTTP client's error as a source, nor does an IO error report what
/// it wraps.
pub fn source<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    if let Some(StreamableHttpError::Client(fault)) = error.downcast_ref::<TransportFault>() {
        return Some(fault);
    }
    match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}

/// Returns the HTTP fault that caused an error, if one did.
pub fn http_fault(error: &(dyn Error + 'static)) -> Option<HttpFault> {
    let mut at = Some(error);
    while let Some(error) = at {
        if let Some(fault) = error.downcast_ref::<HttpFault>() {
            return Some(fault.clone());
        }
        if let Some(unsigned) = error.downcast_ref::<AuthRequiredError>() {
            return Some(HttpFault::AuthRequired(unsigned.www_authenticate_header.clone()));
        }
        if let Some(narrow) = error.downcast_ref::<InsufficientScopeError>() {
            let (challenge, scope) = (narrow.www_authenticate_header.clone(), narrow.required_scope.clone());
            return Some(HttpFault::Narrow { challenge, scope });
        }
        at = source(error);
    }
    None
}

/// Returns the scope that a challenge requires.
pub fn scope_of(challenge: &str, url: &Url) -> Option<String> {
    WWWAuthenticateParams::parse(challenge, url).scope
}

/// Returns what rmcp's lifecycle accepts as the refusal of a `server/discover`: an error under the request's id, which
/// servers without that method often leave out. `None` if the status means something else.
pub fn discover_refused(status: StatusCode, body: &[u8], id: RequestId) -> Option<ServerJsonRpcMessage> {
    if !status.is_client_error() || matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return None;
    }
    let error = match serde_json::from_slice(body) {
        Ok(ServerJsonRpcMessage::Error(error)) => error.error,
        _ => ErrorData::invalid_request(
            format!("server/discover was refused with {}", said(status, body)),
            None,
        ),
    };
    Some(JsonRpcMessage::error(error, Some(id)))
}

#[cfg(test)]
mod tests {
    use axum::{Router, http::header::CONTENT_TYPE, routing::any};
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

    #[test]
    fn rmcp_does_not_say_what_its_http_client_failed_with() {
        let fault = transport_fault(HttpFault::Wrong("the cause".into()));
        assert!(fault.source().is_none(), "then `source` need not look into it");
        assert_eq!(source(&fault).map(ToString::to_string).as_deref(), Some("the cause"));
    }

    #[test]
    fn faults_are_found_again_behind_rmcp() {
        let check = |fault: HttpFault| {
            let text = fault.to_string();
            let found = http_fault(&transport_fault(fault)).map(|fault| fault.to_string());
            assert_eq!(found, Some(text));
        };
        check(HttpFault::AuthRequired("Bearer x".into()));
        check(HttpFault::Narrow { challenge: "Bearer x".into(), scope: Some("a b".into()) });
        check(HttpFault::Unsent("later".into()));
        check(HttpFault::Status { status: StatusCode::NOT_FOUND, text: "HTTP 404".into() });
    }

    #[test]
    fn a_refused_discovery_is_an_error_of_its_request() {
        let id = || RequestId::Number(7);
        let check = |status: StatusCode, body: &str, expected: Option<(i32, &str)>| {
            let refused = discover_refused(status, body.as_bytes(), id());
            let found = refused.map(|refused| match refused {
                JsonRpcMessage::Error(error) if error.id == Some(id()) => error.error,
                other => panic!("{other:?}"),
            });
            match (found, expected) {
                (None, None) => {}
                (Some(found), Some((code, part))) => {
                    assert!(found.code.0 == code && found.message.contains(part), "{found:?}");
                }
                (found, _) => panic!("{status} {body}: {found:?}"),
            }
        };
        let error =
            "{\"jsonrpc\":\"2.0\",\"id\":\"server-error\",\"error\":{\"code\":-32601,\"message\":\"no\"}}";
        check(StatusCode::NOT_FOUND, error, Some((-32601, "no")));
        check(StatusCode::BAD_REQUEST, "no session", Some((-32600, "HTTP 400 Bad Request: no session")));
        check(StatusCode::UNAUTHORIZED, error, None);
        check(StatusCode::BAD_GATEWAY, error, None);
    }
}
