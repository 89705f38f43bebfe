//! Questions that servers ask during a call that the user of the live page makes. The page shows a question, and the call waits
//! for the answer.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use futures::future::join_all;
use nonet_base::json::take_member;
use nonet_schema::Schema;
use nonet_servers::downstream::{ClientChannel, ClientMessage, InputReplies, InputRequests};
use parking_lot::Mutex;
use rmcp::ErrorData;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use crate::session::Session;

/// How many messages of servers wait for one call.
const QUEUE: usize = 32;

/// The open questions of the page's calls.
#[derive(Debug, Default)]
pub struct OpenQuestions {
    open: Mutex<BTreeMap<u64, OpenPageQuestion>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct OpenPageQuestion {
    /// The full name of the tool that was called.
    tool: String,
    /// The params of the `elicitation/create` request.
    params: Value,
    asked: Instant,
    reply: oneshot::Sender<Value>,
}

/// Removes a question when its call has ended.
struct QuestionGuard<'a>(&'a OpenQuestions, u64);

impl Drop for QuestionGuard<'_> {
    fn drop(&mut self) {
        self.0.open.lock().remove(&self.1);
    }
}

/// What the user of the page says: the result of `elicitation/create`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageAnswer {
    action: Action,
    #[serde(default)]
    content: Option<Map<String, Value>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Accept,
    Decline,
    Cancel,
}

/// Why an answer was not passed on.
#[derive(Debug)]
pub enum AnswerError {
    /// The call of the question has ended.
    Ended,
    /// The answer does not fit the form, for these reasons.
    Unfit(String),
}

impl OpenQuestions {
    /// Returns the open questions for the page, oldest first.
    pub fn waiting(&self) -> Vec<Value> {
        let open = self.open.lock();
        open.iter()
            .map(|(id, one)| {
                json!({
                    "id": id,
                    "for": one.tool,
                    "age_s": one.asked.elapsed().as_secs(),
                    "message": one.params["message"],
                    "url": one.params.get("url").filter(|_| one.params["mode"] == "url"),
                    "form": one.params.get("requestedSchema"),
                })
            })
            .collect()
    }

    /// Returns a channel by which servers ask the user of the page during a call of `tool`, and the work that serves the channel
    /// as long as it is polled.
    pub fn channel(
        self: &Arc<Self>,
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
        let (questions, tool) = (self.clone(), tool.to_string());
        let serve = async move {
            // Dropping the set drops the questions.
            let mut asked = JoinSet::new();
            while let Some(message) = toward.recv().await {
                if let ClientMessage::Ask(requests, reply) = message {
                    let (questions, tool) = (questions.clone(), tool.clone());
                    asked.spawn(async move {
                        let _ = reply.send(questions.ask(&tool, *requests).await);
                    });
                }
                while asked.try_join_next().is_some() {}
            }
            asked.join_all().await;
        };
        (channel, serve)
    }

    /// Asks, and waits for the answers.
    async fn ask(&self, tool: &str, requests: InputRequests) -> InputReplies {
        let answers = requests.into_iter().map(async |(key, mut request)| {
            let (reply, answered) = oneshot::channel();
            let id = self.next.fetch_add(1, Ordering::Relaxed);
            let params = take_member(&mut request, "params");
            let open = OpenPageQuestion { tool: tool.into(), params, asked: Instant::now(), reply };
            self.open.lock().insert(id, open);
            let _listed = QuestionGuard(self, id);
            let answer: Result<Value, ErrorData> =
                Ok(answered.await.unwrap_or_else(|_| json!({ "action": Action::Cancel })));
            (key, answer)
        });
        join_all(answers).await.into_iter().collect()
    }

    /// Passes an answer on. An answer that does not fit the form leaves the question open.
    ///
    /// # Errors
    ///
    /// If the question is no longer open, or the answer does not fit its form.
    pub fn answer(&self, id: u64, given: PageAnswer) -> Result<(), AnswerError> {
        let PageAnswer { action, content } = given;
        let mut open = self.open.lock();
        let one = open.get(&id).ok_or(AnswerError::Ended)?;
        let mut answer = json!({ "action": action });
        if action == Action::Accept
            && let Some(form) = one.params.get("requestedSchema")
        {
            let content = Value::Object(content.unwrap_or_default());
            let form = Schema::new(form.clone());
            if !form.accepts(&content) {
                let faults = form.read(content).err().map(|misfit| misfit.faults.join("; "));
                return Err(AnswerError::Unfit(faults.unwrap_or_default()));
            }
            answer["content"] = content;
        }
        let one = open.remove(&id).ok_or(AnswerError::Ended)?;
        let _ = one.reply.send(answer);
        Ok(())
    }
}
