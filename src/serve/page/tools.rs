//! The tools of a server on the page: lists, one tool, and a call of it by the user of the page.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Path, Query, State},
    response::Response,
    routing::{get, post},
};
use bytes::Bytes;
use http::StatusCode;
use nonet_api::{
    page::{PageCall, UserCall},
    servers::PolicyRequest,
};
use nonet_base::text::clip;
use nonet_config::ValueSources;
use nonet_core::{Gateway, Interrupt, call::CallRequest};
use nonet_hosts::{self as hosts, Machine};
use nonet_state::session::Session;
use nonet_text::fault::{Fault, FaultCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::{
    answer, questions,
    servers::{MAX_BODY, blocking, editable, not_edited, read, write, wrong},
};

/// The name of the page's user among the clients.
const CLIENT: &str = "live page";
/// How long a call may take before it goes on as a task, and how long it waits for an approval.
const PATIENCE: Duration = Duration::from_secs(120);
const APPROVAL: Duration = Duration::from_secs(900);
/// The longest answer that is shown, in characters.
const MOST_SHOWN: usize = 60_000;

pub(super) fn routes() -> Router<Arc<Gateway>> {
    Router::new()
        .route("/ui/api/servers/{name}/tools", get(list))
        .route("/ui/api/tools/{full}", get(card))
        .route("/ui/api/tools/{full}/call", post(call))
        .route("/ui/api/tools/{full}/policy", post(set_policy))
        .layer(DefaultBodyLimit::max(MAX_BODY))
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct ListRequest {
    q: String,
    from: usize,
}

async fn list(
    State(gateway): State<Arc<Gateway>>,
    Path(name): Path<String>,
    Query(wanted): Query<ListRequest>,
) -> Response {
    match gateway.find.tools_of(&name, &wanted.q, wanted.from).await {
        Some(tools) => answer(StatusCode::OK, &tools),
        None => wrong(StatusCode::NOT_FOUND, format!("no server `{name}` has listed tools")),
    }
}

async fn card(State(gateway): State<Arc<Gateway>>, Path(full): Path<String>) -> Response {
    match gateway.find.tool_card(&full).await {
        Some(card) => answer(StatusCode::OK, &card),
        None => wrong(StatusCode::NOT_FOUND, format!("there is no tool `{full}`")),
    }
}

/// Sets the policy of one tool in servers.toml. The user of the page means it, even where it makes a rule
/// less strict.
async fn set_policy(
    State(gateway): State<Arc<Gateway>>,
    Path(full): Path<String>,
    body: Bytes,
) -> Result<Response, Response> {
    let PolicyRequest { policy } = read(&body)?;
    let unset = || wrong(StatusCode::NOT_FOUND, format!("no server in servers.toml has the tool `{full}`"));
    let (server, tool) = gateway.find.tool_in_config(&full).ok_or_else(unset)?;
    let file = editable(&gateway)?;
    let named = server.clone();
    let edited = blocking(move || {
        let machine = Machine::this()?;
        let edit = |sources: ValueSources<'_>| {
            hosts::set_tool_policy(&file, &named, &tool, policy, sources, &machine)
        };
        Ok(ValueSources::of_this_machine(edit))
    });
    let edit = edited.await?.map_err(|unedited| not_edited(&unedited))?.imported;
    gateway.accept_edit(&edit.change).await;
    write(&gateway, edit, "policy", &server, Vec::new()).await
}

async fn call(
    State(gateway): State<Arc<Gateway>>,
    Path(full): Path<String>,
    body: Bytes,
) -> Result<Response, Response> {
    let PageCall { params } = read(&body)?;
    super::audit(&gateway, || json!({ "action": "call", "tool": full }));
    Ok(call_as_user(&gateway, &full, params).await)
}

/// Calls a tool as any client does. What the rules want approved waits on the page itself; the call waits
/// with it.
pub(super) async fn call_as_user(gateway: &Arc<Gateway>, full: &str, params: Map<String, Value>) -> Response {
    let session = Session::new(None);
    let (asker, asking) = questions::channel(gateway.asking.room.clone(), &session, full);
    let _asking = AbortOnDropHandle::new(tokio::spawn(asking));
    let mut caller = gateway.sessions.caller(session, CLIENT);
    caller.asker = Some(asker);
    // Approvals wait on the page as those of every client do.
    caller.unasked = true;
    caller.limits.soft_deadline = PATIENCE;
    caller.limits.max_result_bytes = MOST_SHOWN;
    caller.local = true;
    caller.approved_elsewhere = true;
    // The call ends with the request.
    let _end = caller.cancel.clone().drop_guard();
    let began = Instant::now();
    loop {
        let request = CallRequest { name: full.into(), params: json!(params), ..CallRequest::default() };
        let ended = gateway.calls.execute(&caller, request).await;
        let told = match ended {
            Ok(result) => {
                let failed = result.is_error();
                let text = shown(&result.into_tree().await, &|text| text.into());
                UserCall { failed, code: None, text }
            }
            Err(Interrupt::Fault(fault)) if waits(&fault) && began.elapsed() < APPROVAL => continue,
            Err(Interrupt::Fault(fault)) => {
                UserCall { failed: true, code: Some(fault.code), text: words(&fault) }
            }
            Err(Interrupt::Refused(error)) => {
                UserCall { failed: true, code: None, text: error.message.into() }
            }
            Err(Interrupt::Task(job)) => {
                UserCall { failed: false, code: None, text: format!("{:#}", json!(job.summary())) }
            }
        };
        return answer(StatusCode::OK, &told);
    }
}

/// Whether the user has yet to decide. The same call, made again, waits for that.
fn waits(fault: &Fault) -> bool {
    fault.code == FaultCode::NeedsApproval
        && fault.details.as_ref().is_some_and(|details| details.get("approval").is_some())
}

fn words(fault: &Fault) -> String {
    let details = fault.details.as_ref().map(|details| format!("\n\n{details:#}")).unwrap_or_default();
    clip(&format!("{}{details}", fault.message), MOST_SHOWN)
}

/// A result for a person: JSON laid out, other blocks in a word, each text as `mask` returns it.
pub(super) fn shown(result: &Value, mask: &dyn Fn(&str) -> String) -> String {
    let laid_out = |text: &str| match serde_json::from_str::<Value>(text) {
        Ok(value @ (Value::Object(_) | Value::Array(_))) => format!("{value:#}"),
        _ => text.to_string(),
    };
    let block = |block: &Value| match (block["type"].as_str(), block["text"].as_str()) {
        (_, Some(text)) => laid_out(&mask(text)),
        (Some(kind @ ("image" | "audio")), None) => {
            let bytes = block["data"].as_str().map_or(0, |data| data.len() * 3 / 4);
            format!("({kind}, {}, {bytes} bytes)", block["mimeType"].as_str().unwrap_or("of an unknown type"))
        }
        _ => laid_out(&mask(&block.to_string())),
    };
    let mut parts: Vec<String> = result["content"].as_array().into_iter().flatten().map(block).collect();
    if parts.is_empty()
        && let Some(value) = result.get("structuredContent")
    {
        parts.push(laid_out(&mask(&value.to_string())));
    }
    let text = parts.join("\n\n");
    let count = text.chars().count();
    match count > MOST_SHOWN {
        true => format!("{}\n\n({count} characters in all)", clip(&text, MOST_SHOWN)),
        false => text,
    }
}
