//! HTTP as a client: the one way to build it, and what may be shown of addresses and errors.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, header::WWW_AUTHENTICATE};

pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
pub(crate) const USER_AGENT: HeaderValue =
    HeaderValue::from_static(concat!("nonet/", env!("CARGO_PKG_VERSION")));

/// Returns a client that follows no redirect, because headers contain secrets and would be sent to the
/// redirect's target.
pub fn client() -> Result<reqwest::Client, reqwest::Error> {
    builder().build()
}

/// Returns the builder of such a client.
pub fn builder() -> reqwest::ClientBuilder {
    crypto();
    reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .tcp_nodelay(true)
        .user_agent(USER_AGENT)
}

/// Installs the TLS provider for the process. To be called before any client is built.
pub fn crypto() {
    // Fails only if another provider was installed first, which works as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Returns the challenge of an answer that wants a sign-in: the bearer challenge, or else the first.
pub fn challenge(headers: &HeaderMap) -> Option<String> {
    let all =
        || headers.get_all(WWW_AUTHENTICATE).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    let bearer = all().find(|challenge| challenge.to_ascii_lowercase().starts_with("bearer"));
    bearer.or_else(|| all().next()).map(|challenge| challenge.into_owned())
}

/// Returns an address in a form that may be shown: keys are in queries and before an `@`.
pub fn place(url: &str) -> String {
    let place = url.split(['?', '#']).next().unwrap_or_default();
    match (place.split_once("://"), place.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => place.to_string(),
    }
}

/// Returns why a request failed: the innermost cause, without the address.
pub fn cause(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut at: &dyn std::error::Error = &error;
    while let Some(source) = at.source() {
        at = source;
    }
    at.to_string()
}
