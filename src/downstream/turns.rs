//! Turns for questions: a user reads one question at a time, whoever asks. Also prepares servers' questions for people.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::OwnedMutexGuard;

use super::server_requests::ELICITATION;
use crate::{
    secrets::asked_in,
    text::{clean, clip, line},
};

/// The maximum number of questions waiting in a session, from one server and from all servers, including the one shown.
const OF_SERVER: usize = 8;
const OF_ALL: usize = 32;
/// The longest text of a question, a field's title or its description, in characters.
const MAX_MESSAGE: usize = 4_000;
const MAX_TITLE: usize = 200;
const MAX_DESCRIPTION: usize = 1_000;

/// The questions of one session. Servers' questions wait for each other first, so that a question of Nonet's own waits for at
/// most one of them.
#[derive(Debug, Default)]
pub struct QuestionTurns {
    servers: Arc<tokio::sync::Mutex<()>>,
    one: Arc<tokio::sync::Mutex<()>>,
    /// The number of waiting questions, by server.
    waiting: Mutex<BTreeMap<Box<str>, usize>>,
}

/// A question's turn, held until it is answered.
#[derive(Debug)]
pub struct Turn {
    _place: Option<Place>,
    _turn: Option<(Option<OwnedMutexGuard<()>>, OwnedMutexGuard<()>)>,
}

/// A server's place in the queue.
#[derive(Debug)]
struct Place {
    turns: Arc<QuestionTurns>,
    server: Box<str>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut waiting = self.turns.waiting.lock();
        if let Some(count) = waiting.get_mut(&self.server) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&self.server);
            }
        }
    }
}

impl QuestionTurns {
    /// Takes a place in the queue; `None` if the queue is full.
    fn place(self: &Arc<Self>, server: &str) -> Option<Place> {
        let mut waiting = self.waiting.lock();
        let all: usize = waiting.values().sum();
        let own = waiting.entry(server.into()).or_default();
        if *own >= OF_SERVER || all >= OF_ALL {
            if *own == 0 {
                waiting.remove(server);
            }
            return None;
        }
        *own += 1;
        Some(Place { turns: self.clone(), server: server.into() })
    }

    /// Waits for the turn of a server's question; `None` if too many are waiting. `at_once`: the client is asked in the
    /// answer to its own request, so the question does not wait.
    pub(super) async fn of_server(self: &Arc<Self>, server: &str, at_once: bool) -> Option<Turn> {
        let place = self.place(server)?;
        let turn = match at_once {
            true => None,
            false => {
                let first = self.servers.clone().lock_owned().await;
                Some((Some(first), self.one.clone().lock_owned().await))
            }
        };
        Some(Turn { _place: Some(place), _turn: turn })
    }

    /// Waits for the turn of one of Nonet's own questions.
    pub(super) async fn own(&self) -> Turn {
        Turn { _place: None, _turn: Some((None, self.one.clone().lock_owned().await)) }
    }
}

/// Prepares a server's request for people: adds who is asking. `Err` says why the request is refused.
pub(super) fn prepared(server: &str, method: &str, params: &mut Value) -> Result<(), String> {
    match method {
        ELICITATION => {
            let message = params["message"].as_str().unwrap_or_default().to_owned();
            if params["mode"] == "url" {
                check_address(params["url"].as_str().unwrap_or_default())?;
            } else if let Some(field) = asked_in(&params["requestedSchema"], &message) {
                let field = line(&field, 60);
                return Err(format!(
                    "it asks for a secret (`{field}`), and what is typed into a form is read by models and logs; the user sets \
                     secrets in servers.toml, or signs in at an address (mode `url`)"
                ));
            }
            params["message"] = json!(clip(&format!("`{server}` asks: {}", clean(&message)), MAX_MESSAGE));
            let fields = params.get_mut("requestedSchema").and_then(|form| form.get_mut("properties"));
            for field in fields.and_then(Value::as_object_mut).into_iter().flatten().map(|(_, field)| field) {
                for (key, most) in [("title", MAX_TITLE), ("description", MAX_DESCRIPTION)] {
                    if let Some(text) = field.get(key).and_then(Value::as_str) {
                        field[key] = json!(clip(&clean(text), most));
                    }
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Checks whether people may be sent to an address.
fn check_address(address: &str) -> Result<(), String> {
    let shown = || line(address, 200);
    let url = reqwest::Url::parse(address).map_err(|_| format!("`{}` is not an address", shown()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("`{}` is not a web address", shown()));
    }
    // `https://bank.example@other.example` leads to `other.example`.
    match url.username().is_empty() && url.password().is_none() {
        true => Ok(()),
        false => {
            Err(format!("`{}` has a user name in front of its host, which hides where it leads", shown()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::{FutureExt, future::join_all};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn questions_take_turns_and_the_queue_has_an_end() {
        let turns = Arc::new(QuestionTurns::default());
        let first = turns.of_server("a", false).await.expect("a turn");
        let ask = |server: &'static str| {
            let turns = turns.clone();
            tokio::spawn(
                async move { turns.of_server(server, false).await.map(|_| tokio::time::Instant::now()) },
            )
        };
        let waiting: Vec<_> = (1..OF_SERVER).map(|_| ask("a")).collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(waiting.iter().all(|one| !one.is_finished()), "one at a time");
        assert!(turns.of_server("a", false).now_or_never().is_some_and(|turn| turn.is_none()), "full");
        assert!(turns.of_server("b", false).now_or_never().is_none(), "another server waits");
        // Abandoned questions leave the queue.
        waiting[0].abort();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let late = ask("a");
        // Nonet's own question comes after the one shown, and before the ones that wait.
        let own = tokio::spawn({
            let turns = turns.clone();
            async move {
                let _turn = turns.own().await;
                tokio::time::sleep(Duration::from_secs(60)).await;
                tokio::time::Instant::now()
            }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(first);
        let own = own.await.expect("it ends");
        let ends = join_all(waiting.into_iter().skip(1).chain([late])).await;
        let ends: Vec<_> =
            ends.into_iter().map(|end| end.expect("it ends").expect("it had a place")).collect();
        assert!(ends.iter().skip(1).all(|end| *end >= own), "{ends:?} {own:?}");
        assert!(turns.waiting.lock().is_empty());
    }

    #[tokio::test]
    async fn all_servers_together_have_an_end_too() {
        let turns = Arc::new(QuestionTurns::default());
        let names: Vec<String> = (0..OF_ALL).map(|number| format!("s{number}")).collect();
        let mut held = Vec::new();
        for name in &names {
            held.push(turns.of_server(name, true).await.expect("a place"));
        }
        assert!(turns.of_server("more", true).await.is_none());
        held.pop();
        assert!(turns.of_server("more", true).await.is_some());
    }

    #[test]
    fn a_question_says_who_asks() {
        let check = |method: &str, params: Value, expected: Result<&str, &str>| {
            let mut params = params;
            let prepared = prepared("bad", method, &mut params);
            let text = params.get("message").or(params.get("systemPrompt")).and_then(Value::as_str);
            match (prepared, expected) {
                (Ok(()), Ok(expected)) => assert_eq!(text, Some(expected)),
                (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
                (other, expected) => panic!("{other:?} {expected:?}"),
            }
        };
        let form = |field: &str| json!({ "type": "object", "properties": { field: { "type": "string" } } });
        let asked = json!({ "message": "Which city?\u{202e}", "requestedSchema": form("city") });
        check(ELICITATION, asked, Ok("`bad` asks: Which city?"));
        check(
            ELICITATION,
            json!({ "message": "Sign in", "requestedSchema": form("password") }),
            Err("(`password`)"),
        );
        let asked = json!({ "message": "Enter your API key", "requestedSchema": form("value") });
        check(ELICITATION, asked, Err("(`message`)"));
        let url =
            |url: &str| json!({ "mode": "url", "message": "Sign in", "url": url, "elicitationId": "1" });
        check(ELICITATION, url("https://example.org/login"), Ok("`bad` asks: Sign in"));
        check(ELICITATION, url("javascript:alert(1)"), Err("not a web address"));
        check(ELICITATION, url("https://bank.example@evil.example/"), Err("hides where it leads"));
        check(ELICITATION, url("no address"), Err("is not an address"));
    }
}
