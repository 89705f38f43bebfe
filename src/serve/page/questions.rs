//! The answers of the page's user to questions of servers, during a call that the user makes on the page.

use std::sync::Arc;

use axum::{
    Router,
    extract::{DefaultBodyLimit, Path, State},
    response::Response,
    routing::post,
};
use bytes::Bytes;
use http::StatusCode;
use nonet_core::Gateway;
use nonet_state::page_questions::AnswerError;

use super::{
    done,
    servers::{MAX_BODY, read, unfit, wrong},
};

pub(super) fn routes() -> Router<Arc<Gateway>> {
    Router::new().route("/ui/api/questions/{id}", post(give)).layer(DefaultBodyLimit::max(MAX_BODY))
}

async fn give(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<u64>,
    body: Bytes,
) -> Result<Response, Response> {
    match gateway.asking.page_questions.answer(id, read(&body)?) {
        Ok(()) => Ok(done()),
        Err(AnswerError::Ended) => Err(wrong(StatusCode::NOT_FOUND, "The call of this question has ended.")),
        Err(AnswerError::Unfit(faults)) => Err(unfit(format!("This does not fit the form: {faults}."))),
    }
}
