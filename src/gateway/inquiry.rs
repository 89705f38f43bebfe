//! What the command line asks a gateway, in the same process or in another one.
//!
//! One type for both, so that a person reads the same whoever answers. It travels as a request of its own
//! ([`METHOD`]), which only Nonet sends: models have the meta-tools.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    Gateway, SearchArguments, call::Request, faults::not_ready, interrupt::Interrupt, session::Caller,
};
use crate::{
    downstream::State,
    fault::{Code, Fault},
};

/// The method of a request that holds an [`Inquiry`].
pub const METHOD: &str = "nonet/inquire";
/// What the command line calls itself (`clientInfo.name`).
pub const CLIENT: &str = "command line";
/// How long a call may take: whoever sits at a shell waits, and has Ctrl-C.
const PATIENCE: Duration = Duration::from_secs(24 * 3_600);

/// One question of the command line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Inquiry {
    /// The tools that do something.
    Search {
        /// What they should do.
        query: String,
        /// Only tools of this category.
        category: Option<String>,
        /// How many results, at most.
        limit: usize,
        /// Whether each result says why it stands where it stands.
        explain: bool,
    },
    /// Every tool that the caller may see.
    Tools,
    /// Everything about one tool.
    Describe {
        /// The tool, under any of its names.
        name: String,
    },
    /// The result of a call.
    Call {
        /// The tool, under any of its names.
        name: String,
        /// Its params.
        params: Value,
        /// A jq filter on the result.
        select: Option<String>,
    },
    /// The state of the gateway, its servers and its jobs.
    Status,
}

impl Gateway {
    /// Answers the command line. Results are whole.
    pub async fn inquire(self: &Arc<Self>, mut caller: Caller, inquiry: Inquiry) -> Result<Value, Fault> {
        caller.limits.soft_deadline = PATIENCE;
        caller.limits.max_result_bytes = usize::MAX;
        match inquiry {
            Inquiry::Search { query, category, limit, explain } => {
                let arguments = SearchArguments {
                    query,
                    category,
                    limit: Some(limit),
                    explain,
                    ..SearchArguments::default()
                };
                let mut answer = self.search(&caller, arguments).await?;
                // A person asked for that many.
                if let Some(results) = answer.get_mut("results").and_then(Value::as_array_mut) {
                    results.truncate(limit);
                }
                Ok(answer)
            }
            Inquiry::Tools => Ok(self.all_tools(&caller)),
            Inquiry::Describe { name } => self.describe(&caller, &[name], false).await,
            Inquiry::Call { name, params, select } => {
                let request = Request { name, params, select, ..Request::default() };
                match self.execute(&caller, request).await {
                    Ok(result) => Ok(result),
                    Err(Interrupt::Fault(fault)) => Err(*fault),
                    Err(Interrupt::Task(job)) => Ok(json!(job.summary())),
                    Err(Interrupt::Refused(error)) => {
                        Err(Fault::new(Code::UpstreamError, error.message.to_string()))
                    }
                }
            }
            Inquiry::Status => Ok(self.state_for_people(&caller)),
        }
    }

    /// The server that has the tool of this name, or why there is none.
    pub fn server_of(&self, caller: &Caller, name: &str) -> Result<Arc<str>, Fault> {
        self.gate(&caller.session).tool(name).map(|tool| tool.server.clone())
    }

    /// Why a server takes no call now, if it does not.
    pub fn out_of_order(&self, server: &str) -> Option<Fault> {
        match self.connections().get(server)?.state() {
            State::Ready { .. } | State::Starting => None,
            state => Some(not_ready(server, state)),
        }
    }

    /// Every tool that the caller may see.
    fn all_tools(&self, caller: &Caller) -> Value {
        let gate = self.gate(&caller.session);
        let tools: Vec<Value> = gate
            .tools()
            .map(|tool| {
                json!({
                    "name": &*tool.full,
                    "wire_name": &*tool.wire,
                    "server": &*tool.server,
                    "description": tool.description,
                    "signature": tool.signature,
                    "risk": tool.risk,
                    "version": tool.version,
                })
            })
            .collect();
        json!({ "total": tools.len(), "tools": tools })
    }

    /// What `nonet status` shows: `gateway.status`, and for the user of this machine whose process it is and what runs for
    /// all clients.
    fn state_for_people(&self, caller: &Caller) -> Value {
        let mut report = self.status(caller);
        let of_servers = self.snapshot().of_servers().count();
        report["tools"] = json!(of_servers);
        if caller.local && caller.session.profile.is_none() {
            report["pid"] = json!(std::process::id());
            report["file"] = json!(self.config().file);
            let clients = self.clients().into_iter().filter(|(_, client, _)| client != CLIENT);
            report["clients"] = json!(clients.count());
            let running = self.jobs.all().into_iter().filter(|job| job.end().is_none());
            report["tasks"] = json!(running.map(|job| job.summary()).collect::<Vec<_>>());
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inquiry_travels_as_json() {
        let call = Inquiry::Call { name: "a.b".into(), params: json!({ "x": 1 }), select: None };
        for inquiry in [call, Inquiry::Tools, Inquiry::Status] {
            let mut sent = json!(inquiry);
            // What the protocol adds to every request.
            sent["_meta"] = json!({});
            assert_eq!(serde_json::from_value::<Inquiry>(sent).expect("it is one"), inquiry);
        }
    }
}
