//! Turns for questions: a user reads one question at a time, whoever asks. Also prepares servers' questions
//! for people.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use nonet_base::{
    json::set_member,
    text::{clip, escaped, hidden, line},
};
use nonet_text::secrets::asked_in;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::OwnedMutexGuard;

use super::server_requests::ELICITATION;

/// The maximum number of questions waiting in a session, from one server and from all servers, including the
/// one shown.
const OF_SERVER: usize = 8;
const OF_ALL: usize = 32;
/// The longest text of a question, a field's title or its description, in characters.
const MAX_MESSAGE: usize = 4_000;
const MAX_TITLE: usize = 200;
const MAX_DESCRIPTION: usize = 1_000;

/// The questions of one session. Servers' questions wait for each other first, so that a question of Nonet's
/// own waits for at most one of them.
#[derive(Debug, Default)]
pub struct QuestionTurns {
    servers: Arc<tokio::sync::Mutex<()>>,
    one: Arc<tokio::sync::Mutex<()>>,
    /// The number of waiting questions, by server.
    waiting: Mutex<BTreeMap<Box<str>, usize>>,
}

/// A question's turn, held until it is answered.
#[derive(Debug)]
pub(super) struct Turn {
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

    /// Waits for the turn of a server's question; `None` if too many are waiting. `at_once`: the client is
    /// asked in the answer to its own request, so the question does not wait.
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
pub(super) fn prepared(server: &str, method: &str, request: &mut Value) -> Result<(), String> {
    match method {
        ELICITATION => {
            let Some(params) = request.get_mut("params").filter(|params| params.is_object()) else {
                return Err("its `params` are not an object".into());
            };
            let is_of = |key: &str, fits: fn(&Value) -> bool| params.get(key).is_none_or(fits);
            if !is_of("message", Value::is_string) || !is_of("requestedSchema", Value::is_object) {
                return Err("its `message` is not text, or its `requestedSchema` is not an object".into());
            }
            let message = params["message"].as_str().unwrap_or_default().to_owned();
            if params["mode"] == "url" {
                check_address(params["url"].as_str().unwrap_or_default())?;
            } else if hidden_key(&params["requestedSchema"]) {
                return Err("its form has a field whose name contains hidden characters".into());
            } else if let Some(field) = asked_in(&params["requestedSchema"], &message) {
                let field = line(&field, 60);
                return Err(format!(
                    "it asks for a secret (`{field}`), and what is typed into a form is read by models and logs; the user sets \
                     secrets in servers.toml, or signs in at an address (mode `url`)"
                ));
            }
            let message = clip(&format!("`{server}` asks: {}", escaped(&message)), MAX_MESSAGE);
            set_member(params, "message", message);
            let fields = params.get_mut("requestedSchema").and_then(|form| form.get_mut("properties"));
            for field in fields.and_then(Value::as_object_mut).into_iter().flatten().map(|(_, field)| field) {
                for (key, most) in [("title", MAX_TITLE), ("description", MAX_DESCRIPTION)] {
                    if let Some(text) = field.get(key).and_then(Value::as_str) {
                        let text = clip(&escaped(text), most);
                        set_member(field, key, text);
                    }
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Whether a value has a member whose name contains hidden characters.
fn hidden_key(value: &Value) -> bool {
    match value {
        Value::Object(members) => {
            members.iter().any(|(key, member)| hidden(key).next().is_some() || hidden_key(member))
        }
        Value::Array(items) => items.iter().any(hidden_key),
        _ => false,
    }
}

/// The texts of a form that people see with hidden characters escaped: what they see, and what is meant.
#[derive(Debug, Default)]
pub struct EscapedTexts(Vec<(String, String)>);

impl EscapedTexts {
    /// Escapes all texts of a value.
    pub fn of(request: &mut Value) -> Self {
        let mut texts = Self::default();
        texts.escape(request);
        texts
    }

    fn escape(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Cow::Owned(shown) = escaped(text) {
                    let meant = std::mem::replace(text, shown.clone());
                    self.0.push((shown, meant));
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.escape(item)),
            Value::Object(members) => members.values_mut().for_each(|member| self.escape(member)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Puts what is meant into an answer that repeats a text of the form, such as a choice or a default.
    pub fn restore(&self, answer: &mut Value) {
        match answer {
            Value::String(text) => {
                if let Some((_, meant)) = self.0.iter().find(|(shown, _)| shown == text) {
                    text.clone_from(meant);
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.restore(item)),
            Value::Object(members) => members.values_mut().for_each(|member| self.restore(member)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// Checks whether people may be sent to an address.
fn check_address(address: &str) -> Result<(), String> {
    let shown = || line(address, 200);
    if hidden(address).next().is_some() {
        return Err(format!("`{}` contains hidden characters", shown()));
    }
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
    use serde_json::json;

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
            let mut request = json!({ "method": method, "params": params });
            let prepared = prepared("bad", method, &mut request);
            let text = request.pointer("/params/message").and_then(Value::as_str);
            match (prepared, expected) {
                (Ok(()), Ok(expected)) => assert_eq!(text, Some(expected)),
                (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
                (other, expected) => panic!("{other:?} {expected:?}"),
            }
        };
        let form = |field: &str| json!({ "type": "object", "properties": { field: { "type": "string" } } });
        let asked = json!({ "message": "Which city?\u{202e}", "requestedSchema": form("city") });
        check(ELICITATION, asked, Ok("`bad` asks: Which city?\\u{202e}"));
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
        check(ELICITATION, url("https://example.org/\u{202e}"), Err("hidden characters"));
        check(
            ELICITATION,
            json!({ "message": "Which city?", "requestedSchema": form("ci\u{200b}ty") }),
            Err("hidden characters"),
        );
        for params in [json!(5), json!([]), json!("Which city?"), Value::Null] {
            check(ELICITATION, params, Err("not an object"));
        }
        check(ELICITATION, json!({ "message": 5, "requestedSchema": [5] }), Err("is not text"));
    }

    #[test]
    fn what_is_hidden_in_a_form_is_seen_and_the_answer_means_what_the_server_wrote() {
        let form =
            json!({ "properties": { "to": { "enum": ["Ann", "Bob\u{202e}"], "default": "a\u{200b}b" } } });
        let mut asked =
            json!({ "method": ELICITATION, "params": { "message": "Whom?", "requestedSchema": form } });
        let texts = EscapedTexts::of(&mut asked);
        let field = &asked["params"]["requestedSchema"]["properties"]["to"];
        assert_eq!(field, &json!({ "enum": ["Ann", "Bob\\u{202e}"], "default": "a\\u{200b}b" }));
        let mut answer = json!({ "action": "accept", "content": { "to": ["Bob\\u{202e}", "Ann"], "more": "a\\u{200b}b" } });
        texts.restore(&mut answer);
        assert_eq!(answer["content"], json!({ "to": ["Bob\u{202e}", "Ann"], "more": "a\u{200b}b" }));
    }
}
