//! Every answer, notice and fault of the gateway as a type. The gateway fills the types; the model, the
//! shell, the live page and the tests read them.
//!
//! A field that is not known is absent, unless its comment says `null`. [`mod@reference`] describes what the
//! live page's HTTP API returns; other programs can rely on that description.

pub mod fault;
pub mod notice;
pub mod page;
pub mod question;
pub mod reference;
pub mod schedules;
pub mod script;
pub mod servers;
pub mod setup;
pub mod status;
pub mod tools;
pub mod work;

use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

/// Reads a value that another version of Nonet may have written; `None` if this version does not know it.
fn known<'de, T: DeserializeOwned, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(from)?).ok())
}

/// Reads a list that another version of Nonet may have written, without the entries that this version does not
/// know.
fn all_known<'de, T: DeserializeOwned, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let all = Vec::<Value>::deserialize(from)?;
    Ok(all.into_iter().filter_map(|one| serde_json::from_value(one).ok()).collect())
}

/// Whether a count is left out.
fn is_zero<T: Default + PartialEq>(count: &T) -> bool {
    *count == T::default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::{page::GatewayAbout, question::WaitingForUser, status::ProcessStatus};

    #[test]
    fn the_answers_of_another_version_are_read_as_far_as_they_are_known() {
        let server =
            |name: &str, state: &str| json!({ "name": name, "state": state, "tools": 1, "new": { "a": 1 } });
        let told = json!({
            "version": "9.0.0",
            "servers": [server("shop", "ready"), server("mail", "hibernating"), { "tools": 2 }],
            "tasks_running": 2,
            "pid": 77,
            "serves": "telepathy",
            "tasks": [{ "task_id": "job-1" }],
        });
        let status: ProcessStatus = serde_json::from_value(told).expect("readable");
        let servers: Vec<(&str, bool)> =
            status.gateway.servers.iter().map(|server| (&*server.name, server.state.is_some())).collect();
        assert_eq!(servers, [("shop", true), ("mail", false)]);
        let process = status.process.expect("it names its process");
        assert_eq!((process.pid, process.serves, process.clients, process.tasks.len()), (77, None, 0, 0));

        let about: GatewayAbout =
            serde_json::from_value(json!({ "id": "a", "serves": 7 })).expect("readable");
        assert_eq!((about.id.as_str(), about.serves), ("a", None));

        let question = |kind: &str| json!({ "token": kind, "client": "c", "message": "?", "age_s": 1, "left_s": 2, "kind": kind });
        let waiting = json!({ "total": 3, "client_questions": [question("hologram"), question("free")] });
        let waiting: WaitingForUser = serde_json::from_value(waiting).expect("readable");
        assert_eq!((waiting.total, waiting.client_questions.len()), (3, 1));
    }

    #[test]
    fn a_status_of_a_caller_names_no_process() {
        let status: ProcessStatus = serde_json::from_value(json!({ "version": "0.1.0" })).expect("readable");
        assert_eq!(status.process, None);
    }
}
