//! The page's view of calls: each as it ends, one of the latest with its params and its result, and the same
//! call again.

// An answer that refuses is made once for each request of a person; nothing is gained by boxing it.
#![allow(clippy::result_large_err)]

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    response::Response,
    routing::{get, post},
};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use nonet_api::page::{CallView, FinishedCall};
use nonet_config::shell;
use nonet_core::Gateway;
use nonet_state::feed::CallContent;
use serde_json::{Map, Value, json};
use tokio::sync::broadcast::error::RecvError;

use super::{
    answer,
    servers::wrong,
    tools::{call_as_user, shown},
};

/// The longest silence of a stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) fn routes() -> Router<Arc<Gateway>> {
    Router::new()
        .route("/ui/api/calls", get(stream))
        .route("/ui/api/calls/{id}", get(open))
        .route("/ui/api/calls/{id}/repeat", post(repeat))
}

/// Streams finished calls: the last ones, then each one as it ends.
async fn stream(State(gateway): State<Arc<Gateway>>) -> Response {
    gateway.observing.calls.switch_on();
    let (latest, coming) = gateway.observing.calls.follow();
    let stop = gateway.servers.stopping().clone();
    let first = (latest.into_iter(), coming, stop);
    let events = futures::stream::unfold(first, async |(mut latest, mut coming, stop)| {
        if let Some(call) = latest.next() {
            return Some((event(&call), (latest, coming, stop)));
        }
        let next = tokio::select! {
            next = coming.recv() => match next {
                Ok(call) => event(&call),
                // A slow reader misses some calls.
                Err(RecvError::Lagged(_)) => Ok(Bytes::from_static(b": \n\n")),
                Err(RecvError::Closed) => return None,
            },
            () = tokio::time::sleep(KEEP_ALIVE) => Ok(Bytes::from_static(b": \n\n")),
            () = stop.cancelled() => return None,
        };
        Some((next, (latest, coming, stop)))
    });
    let mut response = Response::new(Body::from_stream(events));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}

fn event(call: &FinishedCall) -> Result<Bytes, Infallible> {
    Ok(Bytes::from(format!("data: {}\n\n", json!(call))))
}

fn gone() -> Response {
    wrong(StatusCode::NOT_FOUND, "This call is no longer among the latest 200.")
}

/// Shows one call, without secrets.
async fn open(State(gateway): State<Arc<Gateway>>, Path(id): Path<u64>) -> Result<Response, Response> {
    let (call, content) = gateway.observing.calls.find(id).ok_or_else(gone)?;
    let mut opened = CallView { kept: gateway.servers.config().gateway.keep_calls, ..CallView::default() };
    if opened.kept {
        let mask = gateway.observing.mask_for_user();
        let CallContent { params, result } = &content;
        opened.params_cut = params.len() < call.bytes_in;
        opened.result_cut = call.bytes_out.is_some_and(|all| result.len() < all);
        if !params.is_empty() {
            let text = if opened.params_cut {
                beginning(params, &mask)
            } else {
                mask(&String::from_utf8_lossy(params))
            };
            if !opened.params_cut && call.server.is_some() {
                let line = format!("call {} {}", shell::word(&call.tool), shell::word(&text));
                opened.command = Some(shell::nonet(&line, &gateway.servers.config().file));
            }
            opened.params = Some(text);
        }
        if !result.is_empty() {
            opened.result = Some(match serde_json::from_slice::<Value>(result) {
                Ok(result) => shown(&result, &mask),
                Err(_) => beginning(result, &mask),
            });
        }
    }
    Ok(answer(StatusCode::OK, &opened))
}

/// Returns the beginning of a JSON text, masked. Texts in it may be JSON, too, with escaped quotes; the last
/// one has no end.
fn beginning(cut: &[u8], mask: &dyn Fn(&str) -> String) -> String {
    let text = mask(&String::from_utf8_lossy(cut)).replace(r#"\\\""#, "'").replace(r#"\""#, "\"");
    let text = mask(&format!("{text}\""));
    text.strip_suffix('"').unwrap_or(&text).into()
}

/// Makes one of the latest calls again, as the user of the page.
async fn repeat(State(gateway): State<Arc<Gateway>>, Path(id): Path<u64>) -> Result<Response, Response> {
    let (call, content) = gateway.observing.calls.find(id).ok_or_else(gone)?;
    let params = serde_json::from_slice::<Map<String, Value>>(&content.params).map_err(|_| {
        let message = "The params of this call are no longer in memory, or are too large to be kept.";
        wrong(StatusCode::CONFLICT, message)
    })?;
    super::audit(&gateway, || json!({ "action": "repeat", "tool": &*call.tool }));
    Ok(call_as_user(&gateway, &call.tool, params).await)
}
