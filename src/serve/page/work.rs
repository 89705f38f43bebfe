//! What the page shows of the work of all clients, and what its user does about it.

use std::sync::Arc;

use axum::{
    Router,
    extract::{DefaultBodyLimit, Path, Query, State},
    response::Response,
    routing::{get, post},
};
use bytes::Bytes;
use http::StatusCode;
use nonet_api::{
    page::AnswerRequest,
    work::{WorkAction, WorkKind},
};
use nonet_core::{Gateway, user_work::WorkItem};
use nonet_text::fault::{Fault, FaultCode};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    answer, done,
    servers::{MAX_BODY, read},
};

/// The routes of the view.
pub(super) fn routes() -> Router<Arc<Gateway>> {
    Router::new()
        .route("/ui/api/work", get(work))
        .route("/ui/api/facts", get(facts))
        .route("/ui/api/work/{kind}/{id}", get(one))
        .route("/ui/api/work/{kind}/{id}/{action}", post(act))
        .route(
            "/ui/api/client-questions/{token}",
            post(answer_question).layer(DefaultBodyLimit::max(MAX_BODY)),
        )
}

#[derive(Deserialize)]
struct WorkQuery {
    #[serde(default)]
    q: String,
    /// The profile of the clients that it belongs to.
    #[serde(default)]
    owner: String,
    /// Where to read on in a kept result: a row of an array, else a byte of the text.
    #[serde(default)]
    offset: u64,
}

async fn work(State(gateway): State<Arc<Gateway>>) -> Response {
    told(gateway.user_work().await)
}

async fn facts(State(gateway): State<Arc<Gateway>>, Query(asked): Query<WorkQuery>) -> Response {
    told(gateway.user_facts(&asked.q).await)
}

async fn one(
    State(gateway): State<Arc<Gateway>>,
    Path((kind, id)): Path<(WorkKind, String)>,
    Query(asked): Query<WorkQuery>,
) -> Response {
    told(gateway.work_in_full(WorkItem { kind, owner: &asked.owner, id: &id }, asked.offset).await)
}

async fn act(
    State(gateway): State<Arc<Gateway>>,
    Path((kind, id, action)): Path<(WorkKind, String, WorkAction)>,
    Query(asked): Query<WorkQuery>,
) -> Response {
    match gateway.act_on_work(WorkItem { kind, owner: &asked.owner, id: &id }, action).await {
        Ok(()) => {
            let about = json!({ "action": action, "kind": kind, "id": id, "owner": asked.owner });
            tracing::info!(%about, "requested on the live page");
            super::audit(&gateway, || about);
            done()
        }
        Err(fault) => refused(&fault),
    }
}

/// Answers a question that a client has put to its user.
async fn answer_question(
    State(gateway): State<Arc<Gateway>>,
    Path(token): Path<String>,
    body: Bytes,
) -> Result<Response, Response> {
    let AnswerRequest { answer } = read(&body)?;
    match gateway.answer_question(&token, &answer).await {
        Ok(settled) => {
            let about = json!({ "action": "answer", "client": settled.client, "tool": settled.tool });
            super::audit(&gateway, || about);
            Ok(done())
        }
        Err(fault) => Err(refused(&fault)),
    }
}

fn told(found: Result<impl Serialize, Fault>) -> Response {
    match found {
        Ok(found) => answer(StatusCode::OK, &found),
        Err(fault) => refused(&fault),
    }
}

fn refused(fault: &Fault) -> Response {
    let status = match fault.code {
        FaultCode::NotFound => StatusCode::NOT_FOUND,
        FaultCode::InvalidParams => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    answer(status, &fault.to_value())
}
