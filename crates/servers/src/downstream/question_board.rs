//! Questions of calls that go on as tasks. They wait here until their client comes back: with another request of its session,
//! or by its task.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, oneshot};

use super::{ClientChannel, InputReplies, InputRequests};

/// The questions of one session that wait for its client.
#[derive(Debug, Default)]
pub struct QuestionBoard {
    open: Mutex<BTreeMap<u64, BoardRequests>>,
    next: AtomicU64,
    posted: Notify,
}

/// Where requests were on the board.
#[derive(Clone, Copy, Debug)]
pub struct BoardPlace {
    number: u64,
    call: u64,
}

/// Requests that were taken from the board.
pub type TakenRequests = (BoardPlace, InputRequests, oneshot::Sender<InputReplies>);

/// Requests of one server, some of which may be answered.
#[derive(Debug)]
struct BoardRequests {
    /// The call that goes on.
    call: u64,
    /// Whether the client asks for them by the task.
    by_task: bool,
    requests: InputRequests,
    replies: InputReplies,
    reply: oneshot::Sender<InputReplies>,
}

impl QuestionBoard {
    /// Returns a number for a call that goes on as a task, or for its questions.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds requests of a call. Returns their number.
    pub fn post(
        &self,
        call: u64,
        by_task: bool,
        requests: InputRequests,
        reply: oneshot::Sender<InputReplies>,
    ) -> u64 {
        let place = BoardPlace { number: self.number(), call };
        self.add(place, by_task, requests, reply);
        place.number
    }

    /// Puts back requests that could not be brought to the client.
    pub fn put_back(&self, (place, requests, reply): TakenRequests) {
        self.add(place, false, requests, reply);
    }

    fn add(
        &self,
        BoardPlace { number, call }: BoardPlace,
        by_task: bool,
        requests: InputRequests,
        reply: oneshot::Sender<InputReplies>,
    ) {
        let mut open = self.open.lock();
        open.retain(|_, posted| !posted.reply.is_closed());
        open.insert(number, BoardRequests { call, by_task, requests, replies: InputReplies::new(), reply });
        drop(open);
        self.posted.notify_waiters();
    }

    /// Removes requests that nobody has answered.
    pub fn withdraw(&self, number: u64) {
        self.open.lock().remove(&number);
    }

    /// Waits for requests that another request of the session may bring to the client, and removes them.
    pub async fn next(&self, asker: &ClientChannel) -> TakenRequests {
        loop {
            let posted = self.posted.notified();
            tokio::pin!(posted);
            // Before the look, so that nothing is missed.
            posted.as_mut().enable();
            if let Some(taken) = self.take(asker) {
                return taken;
            }
            posted.await;
        }
    }

    /// Removes the oldest requests that another request of the session may bring to the client, whose channel is `asker`.
    pub fn take(&self, asker: &ClientChannel) -> Option<TakenRequests> {
        let mut open = self.open.lock();
        if open.is_empty() {
            return None;
        }
        let can = |request: &Value| {
            asker.can_answer(request["method"].as_str().unwrap_or_default(), &request["params"])
        };
        let is_free = |posted: &BoardRequests| {
            !posted.by_task && !posted.reply.is_closed() && posted.requests.values().all(can)
        };
        let number = *open.iter().find(|(_, posted)| is_free(posted))?.0;
        let posted = open.remove(&number)?;
        Some((BoardPlace { number, call: posted.call }, posted.requests, posted.reply))
    }

    /// Returns the unanswered requests of a call, under keys that are unique for the call.
    pub fn of_call(&self, call: u64) -> InputRequests {
        let open = self.open.lock();
        let own = open.iter().filter(|(_, posted)| posted.call == call && !posted.reply.is_closed());
        let keyed = own.flat_map(|(number, posted)| {
            posted.requests.iter().map(move |(key, request)| (format!("{number}-{key}"), request.clone()))
        });
        keyed.collect()
    }

    /// Takes the answers to requests of a call. Once all requests of a server are answered, the server gets the answers.
    pub fn answer(&self, call: u64, given: &BTreeMap<String, Value>) {
        let mut open = self.open.lock();
        let mut whole = Vec::new();
        for (number, posted) in open.iter_mut().filter(|(_, posted)| posted.call == call) {
            let keys: Vec<String> = posted.requests.keys().cloned().collect();
            for key in keys {
                if let Some(answer) = given.get(&format!("{number}-{key}")) {
                    posted.requests.remove(&key);
                    posted.replies.insert(key, Ok(answer.clone()));
                }
            }
            if posted.requests.is_empty() {
                whole.push(*number);
            }
        }
        for posted in whole.iter().filter_map(|number| open.remove(number)) {
            let _ = posted.reply.send(posted.replies);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_server_gets_its_answers_once_all_are_there() {
        let board = QuestionBoard::default();
        let call = board.number();
        let (reply, mut answered) = oneshot::channel();
        let two = InputRequests::from_iter([("a".into(), json!(1)), ("b".into(), json!(2))]);
        board.post(call, true, two, reply);
        assert!(board.of_call(call + 1).is_empty());
        let keys: Vec<String> = board.of_call(call).keys().cloned().collect();
        board.answer(call, &BTreeMap::from([(keys[0].clone(), json!("x")), ("other".into(), json!(0))]));
        assert!(answered.try_recv().is_err(), "one is open");
        assert_eq!(board.of_call(call).keys().collect::<Vec<_>>(), [&keys[1]]);
        board.answer(call, &BTreeMap::from([(keys[1].clone(), json!("y"))]));
        let replies = answered.try_recv().expect("answered");
        assert_eq!(replies.into_values().collect::<Vec<_>>(), [Ok(json!("x")), Ok(json!("y"))]);
        assert!(board.of_call(call).is_empty());
    }
}
