//! HTTP as a client: one way to make it, and answers and event streams of bounded length.

use std::{io, time::Duration};

use bytes::Bytes;
use futures::{Stream, StreamExt, stream::BoxStream};
use http::{HeaderMap, header::WWW_AUTHENTICATE};
use sse_stream::{Sse, SseStream};

/// The longest answer of a server, event of a stream, or line of a child process, in bytes.
pub const MAX_ANSWER: usize = 256 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// What goes wrong in the middle of a stream.
pub type EventError = sse_stream::Error;

/// A client that follows no redirect: headers hold secrets, and would go along to wherever it leads.
pub fn client() -> Result<reqwest::Client, reqwest::Error> {
    crypto();
    reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .tcp_nodelay(true)
        .user_agent(concat!("nonet/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// Gives the process what TLS needs. Before any client is made.
pub fn crypto() {
    // Fails only if another provider was installed first, which then serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// What an answer says of the sign-in that it wants: the bearer challenge, or else the first.
pub fn challenge(headers: &HeaderMap) -> Option<String> {
    let all =
        || headers.get_all(WWW_AUTHENTICATE).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    let bearer = all().find(|challenge| challenge.to_ascii_lowercase().starts_with("bearer"));
    bearer.or_else(|| all().next()).map(|challenge| challenge.into_owned())
}

/// An address as it may be shown: keys stand in queries and before an `@`.
pub fn place(url: &str) -> String {
    let place = url.split(['?', '#']).next().unwrap_or_default();
    match (place.split_once("://"), place.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => place.to_string(),
    }
}

/// Why a request failed: the innermost cause, without the address.
pub fn cause(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut at: &dyn std::error::Error = &error;
    while let Some(source) = at.source() {
        at = source;
    }
    at.to_string()
}

/// The events of a `text/event-stream`. One longer than [`MAX_ANSWER`] breaks the stream.
pub fn events(response: reqwest::Response) -> BoxStream<'static, Result<Sse, EventError>> {
    SseStream::from_bytes_stream(bounded(response.bytes_stream(), MAX_ANSWER)).boxed()
}

/// Breaks a stream of events off where one is longer than `limit` bytes: one without end must not fill the memory.
fn bounded<E: std::error::Error + Send + Sync + 'static>(
    chunks: impl Stream<Item = Result<Bytes, E>>,
    limit: usize,
) -> impl Stream<Item = io::Result<Bytes>> {
    let mut open = 0;
    chunks.map(move |chunk| {
        let chunk = chunk.map_err(io::Error::other)?;
        // An event ends at a blank line.
        let ends = |pair: &[u8]| matches!(pair, b"\n\n" | b"\n\r");
        let ended = chunk.windows(2).any(ends) || chunk.starts_with(b"\n") || chunk.starts_with(b"\r\n");
        open = if ended { 0 } else { open + chunk.len() };
        if open > limit {
            return Err(io::Error::other(format!("an event is longer than {limit} bytes")));
        }
        Ok(chunk)
    })
}

/// Why a body was not read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// It broke off.
    #[error(transparent)]
    Broken(#[from] reqwest::Error),
    /// It is longer than [`MAX_ANSWER`].
    #[error("the answer is longer than {MAX_ANSWER} bytes")]
    TooLong,
}

/// The whole body of an answer, at most [`MAX_ANSWER`] bytes.
pub async fn body(response: reqwest::Response) -> Result<Vec<u8>, BodyError> {
    let mut body = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        body.extend_from_slice(&chunk?);
        if body.len() > MAX_ANSWER {
            return Err(BodyError::TooLong);
        }
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stream_ends_where_an_event_is_too_long() {
        let check = async |chunks: &[&'static str], expected: usize| {
            let chunks = chunks.iter().map(|chunk| Ok::<_, io::Error>(Bytes::from_static(chunk.as_bytes())));
            let read = bounded(futures::stream::iter(chunks.collect::<Vec<_>>()), 10);
            let good = read.take_while(|chunk| std::future::ready(chunk.is_ok())).count().await;
            assert_eq!(good, expected);
        };
        check(&["data: 1\n\n", "data: 2\n\n", "data: 3\n\n"], 3).await;
        check(&["data: ", "12", "34\n\n", "data: "], 4).await;
        check(&["data: ", "1234", "5678"], 2).await;
    }
}
