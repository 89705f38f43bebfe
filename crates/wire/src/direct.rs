//! Addresses without TLS, proxy or user name, such as servers on this machine: requests go through hyper's
//! own client. What `reqwest` does beside that, for redirects, retries and cookies, takes more instructions
//! than the rest of such a request.

use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http_body_util::Full;
use hyper_util::{
    client::{
        legacy::{Client, connect::HttpConnector},
        proxy::matcher::Matcher,
    },
    rt::{TokioExecutor, TokioTimer},
};
use reqwest::Url;

use super::web::CONNECT_TIMEOUT;

/// As in `reqwest`: a dead peer is noticed after about a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const KEEP_ALIVE_RETRIES: u32 = 3;

/// Sends requests to direct addresses, and keeps their connections open.
pub(crate) type DirectClient = Client<HttpConnector, Full<Bytes>>;

/// Returns a client without connections.
pub(crate) fn client() -> DirectClient {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_nodelay(true);
    connector.set_keepalive(Some(KEEP_ALIVE));
    connector.set_keepalive_interval(Some(KEEP_ALIVE));
    connector.set_keepalive_retries(Some(KEEP_ALIVE_RETRIES));
    #[cfg(target_os = "linux")]
    connector.set_tcp_user_timeout(Some(2 * KEEP_ALIVE));
    Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector)
}

/// Returns an address as hyper wants it. `None` if it needs TLS, a user name, or a proxy of the environment.
pub(crate) fn direct(url: &Url) -> Option<Uri> {
    if url.scheme() != "http" || !url.username().is_empty() || url.password().is_some() {
        return None;
    }
    let uri = url.as_str().parse().ok()?;
    Matcher::from_system().intercept(&uri).is_none().then_some(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_more_than_a_connection_is_not_reached_directly() {
        for (url, expected) in [
            ("http://127.0.0.1:80/mcp?a=b#c", Some("http://127.0.0.1/mcp?a=b")),
            ("http://[::1]:8080", Some("http://[::1]:8080/")),
            ("https://127.0.0.1/mcp", None),
            ("http://ann:secret@127.0.0.1/mcp", None),
            ("http://ann@127.0.0.1/mcp", None),
        ] {
            let found = direct(&Url::parse(url).expect("an address"));
            assert_eq!(found.map(|uri| uri.to_string()).as_deref(), expected, "{url}");
        }
    }
}
