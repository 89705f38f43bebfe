//! What a bridge remembers of its client's messages so that it can reconnect after a lost gateway.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use nonet_wire::Message;
use serde_json::{Value, json};

/// The state of one client. It outlives a gateway.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Ids of requests that await an answer.
    pub awaited: BTreeSet<String>,
    /// Ids of the gateway's own requests that await the client's answer, each with the gateway's own id for
    /// the request.
    pub asked: BTreeMap<String, String>,
    /// How many links were lost. Each gateway counts its requests from 0, and an answer to a lost gateway's
    /// request must not reach another one, so from the second link on the ids name the link.
    pub losses: u64,
    /// Whether the link has brought an answer.
    pub answered: bool,
    /// The handshake of the session era, its id, and whether it was answered.
    pub initialize: Option<(Bytes, String, bool)>,
    /// The client's `notifications/initialized`, which ends the handshake.
    pub initialized: Option<Bytes>,
    /// The session's requests that a new gateway needs too: the log level, and each subscription to a
    /// resource.
    wanted: BTreeMap<String, Bytes>,
    /// Ids of repeated requests: the client already has their answers.
    repeated: BTreeSet<String>,
}

impl Ledger {
    /// Returns a client's line as it is to be sent; `None` if it answers a request of a lost gateway.
    pub(super) fn sent(&mut self, line: Bytes) -> Option<Bytes> {
        let Some(message) = Message::of(line.clone()) else { return Some(line) };
        match (message.method().as_deref(), message.id_text()) {
            (Some("initialize"), Some(id)) => {
                self.initialize = Some((line.clone(), id, false));
                self.initialized = None;
            }
            (Some(method), Some(id)) => {
                if message.version().is_none() {
                    self.note_wanted(method, message.about(), &line);
                }
                self.awaited.insert(id);
            }
            (Some("notifications/initialized"), None) => self.initialized = Some(line.clone()),
            (Some("notifications/cancelled"), None) => {
                if let Some(id) = message.cancels() {
                    self.awaited.remove(&id);
                }
            }
            (None, Some(id)) => {
                let own = self.asked.remove(&id)?;
                return if own == id { Some(line.clone()) } else { message.with_id(&own) };
            }
            _ => {}
        }
        Some(line)
    }

    fn note_wanted(&mut self, method: &str, about: Option<String>, line: &Bytes) {
        match (method, about) {
            ("logging/setLevel", _) => drop(self.wanted.insert(method.into(), line.clone())),
            ("resources/subscribe", Some(uri)) => drop(self.wanted.insert(uri, line.clone())),
            ("resources/unsubscribe", Some(uri)) => drop(self.wanted.remove(&uri)),
            _ => {}
        }
    }

    /// Returns the requests that a new gateway needs too, under the bridge's own ids.
    pub(super) fn subscriptions(&mut self) -> Vec<Bytes> {
        let ids = (0..).map(|n| json!(format!("nonet-again-{n}")).to_string());
        let lines: Vec<(String, Bytes)> = ids
            .zip(self.wanted.values())
            .filter_map(|(id, line)| Some((id.clone(), Message::of(line.clone())?.with_id(&id)?)))
            .collect();
        self.repeated = lines.iter().map(|(id, _)| id.clone()).collect();
        lines.into_iter().map(|(_, line)| line).collect()
    }

    /// Returns a gateway's line as the client gets it; `None` if it is not for the client.
    pub(super) fn came(&mut self, line: Bytes) -> Option<Bytes> {
        let Some(message) = Message::of(line.clone()) else { return Some(line) };
        match (message.method().as_deref(), message.id_text()) {
            (None, Some(id)) if self.repeated.remove(&id) => {
                if message.result().is_none() {
                    tracing::warn!(answer = %String::from_utf8_lossy(&line), "the new gateway refused a subscription of the client");
                }
                return None;
            }
            (None, Some(id)) => {
                self.answered = true;
                self.awaited.remove(&id);
                if let Some((_, of, answered)) = &mut self.initialize
                    && *of == id
                {
                    *answered = true;
                }
            }
            (Some(_), Some(own)) => {
                let id = self.id_of(&own);
                self.asked.insert(id.clone(), own.clone());
                if id != own {
                    return message.with_id(&id);
                }
            }
            (Some("notifications/cancelled"), None) => {
                if let Some(own) = message.cancels() {
                    let id = self.id_of(&own);
                    self.asked.remove(&id);
                    if id != own {
                        return Some(cancel(&id));
                    }
                }
            }
            _ => {}
        }
        Some(line)
    }

    fn id_of(&self, own: &str) -> String {
        match self.losses {
            0 => own.into(),
            losses => json!(format!("nonet-{losses}-{own}")).to_string(),
        }
    }
}

/// Returns the notification that withdraws a request to the client.
pub(super) fn cancel(id: &str) -> Bytes {
    let id: Value = serde_json::from_str(id).unwrap_or_default();
    let params = json!({ "requestId": id, "reason": "the gateway that asked has ended" });
    let message = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
    format!("{message}\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Bytes {
        Bytes::from(text.to_string())
    }

    #[test]
    fn an_answer_to_a_gateway_that_is_gone_reaches_no_other() {
        let question = || line(r#"{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{}}"#);
        let answer = |id: &str| line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
        let mut ledger = Ledger::default();
        assert_eq!(
            ledger.came(question()),
            Some(question()),
            "the first gateway's questions stay as they are"
        );
        ledger.losses += 1;
        ledger.asked.clear();
        let again = ledger.came(question()).expect("it is for the client");
        assert!(
            Message::of(again.clone()).and_then(|message| message.id_text()).as_deref()
                == Some(r#""nonet-1-0""#),
            "{again:?}"
        );
        assert_eq!(ledger.sent(answer("0")), None, "the question of the first one");
        let given = ledger.sent(answer(r#""nonet-1-0""#)).expect("the question of the second one");
        assert!(Message::of(given.clone()).is_some_and(|message| message.answers("0")), "{given:?}");
        assert_eq!(ledger.sent(answer(r#""nonet-1-0""#)), None, "once");
    }

    #[test]
    fn what_awaits_an_answer_is_known() {
        let mut ledger = Ledger::default();
        ledger.sent(line(r#"{"id":"caf\u00e9","method":"tools/list"}"#));
        ledger.sent(line(r#"{"id":2,"method":"tools/call","params":{}}"#));
        ledger.sent(line(r#"{"method":"notifications/cancelled","params":{"requestId":2}}"#));
        assert_eq!(ledger.awaited.len(), 1, "{:?}", ledger.awaited);
        ledger.came(line("{\"id\":\"caf\u{e9}\",\"result\":{}}"));
        assert!(ledger.awaited.is_empty() && ledger.answered);
    }

    #[test]
    fn a_new_gateway_hears_what_the_client_wants_to_hear_of() {
        let mut ledger = Ledger::default();
        let mut send = |id: u8, method: &str, params: Value| {
            let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
            ledger.sent(line(&message.to_string()));
        };
        send(1, "logging/setLevel", json!({ "level": "debug" }));
        send(2, "logging/setLevel", json!({ "level": "error" }));
        send(3, "resources/subscribe", json!({ "uri": "note://a" }));
        send(4, "resources/subscribe", json!({ "uri": "note://b" }));
        send(5, "resources/unsubscribe", json!({ "uri": "note://a" }));
        send(6, "tools/call", json!({ "name": "x" }));
        let again: Vec<Value> =
            ledger.subscriptions().iter().filter_map(|line| serde_json::from_slice(line).ok()).collect();
        let told: Vec<_> = again.iter().map(|line| (&line["method"], &line["params"])).collect();
        assert_eq!(
            told,
            [
                (&json!("logging/setLevel"), &json!({ "level": "error" })),
                (&json!("resources/subscribe"), &json!({ "uri": "note://b" })),
            ]
        );
        let answer = line(&format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, again[0]["id"]));
        assert_eq!(ledger.came(answer.clone()), None, "the client has its answer");
        assert_eq!(ledger.came(answer.clone()), Some(answer));
    }
}
