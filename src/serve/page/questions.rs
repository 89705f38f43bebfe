//! Questions of servers during a call that the page's user makes: the page shows a question, and the call
//! waits for the answer.

use std::sync::Arc;

use axum::{
    Router,
    extract::{DefaultBodyLimit, Path, State},
    response::Response,
    routing::post,
};
use bytes::Bytes;
use futures::future::join_all;
use http::StatusCode;
use nonet_core::Gateway;
use nonet_parts::approvals::AnswerError;
use nonet_servers::downstream::{ClientChannel, ClientMessage, InputReplies, InputRequests};
use nonet_state::{questions::Room, session::Session, waiting_room::ServerQuestion};
use serde_json::json;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use super::{
    done,
    servers::{MAX_BODY, read, unfit, wrong},
};

/// How many messages of servers wait for one call.
const QUEUE: usize = 32;

pub(super) fn routes() -> Router<Arc<Gateway>> {
    Router::new().route("/ui/api/questions/{id}", post(give)).layer(DefaultBodyLimit::max(MAX_BODY))
}

async fn give(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<u64>,
    body: Bytes,
) -> Result<Response, Response> {
    match gateway.asking.room.answer_on_page(id, read(&body)?) {
        Ok(()) => {
            super::audit(&gateway, || json!({ "action": "answer", "question": id }));
            Ok(done())
        }
        Err(AnswerError::Unfit(faults)) => Err(unfit(format!("This does not fit the form: {faults}."))),
        Err(_) => Err(wrong(StatusCode::NOT_FOUND, "The call of this question has ended.")),
    }
}

/// Returns a channel by which servers ask the user of the page during a call of `tool`, and the work that
/// serves the channel as long as it is polled.
pub(super) fn channel(
    room: Arc<Room>,
    session: &Session,
    tool: &str,
) -> (ClientChannel, impl Future<Output = ()> + Send + 'static) {
    let (to, mut toward) = mpsc::channel(QUEUE);
    let can = json!({ "elicitation": { "form": {}, "url": {} } });
    let channel = ClientChannel {
        session: session.id,
        to,
        can: Arc::new(can.as_object().cloned().unwrap_or_default()),
        turns: session.turns.clone(),
        parks: false,
        waits: Arc::default(),
        log: None,
    };
    let tool = tool.to_string();
    let serve = async move {
        // Dropping the set drops the questions.
        let mut asked = JoinSet::new();
        while let Some(message) = toward.recv().await {
            if let ClientMessage::Ask(requests, reply) = message {
                let (room, tool) = (room.clone(), tool.clone());
                asked.spawn(async move {
                    let _ = reply.send(ask(&room, &tool, *requests).await);
                });
            }
            while asked.try_join_next().is_some() {}
        }
        asked.join_all().await;
    };
    (channel, serve)
}

/// Asks, and waits for the answers.
async fn ask(room: &Room, tool: &str, requests: InputRequests) -> InputReplies {
    let answers = requests.into_iter().map(async |one| {
        let (reply, answered) = oneshot::channel();
        room.ask_on_page(tool, ServerQuestion::new(InputRequests::from_iter([one]), reply));
        answered.await.unwrap_or_default()
    });
    join_all(answers).await.into_iter().flatten().collect()
}
