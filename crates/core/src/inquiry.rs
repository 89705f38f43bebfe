//! Questions of the command line to a gateway, in the same process or in another.
//!
//! Both cases share one type, so the output does not depend on which process answers. An inquiry is a request
//! of its own ([`METHOD`]) that only Nonet sends: models have the meta-tools.

use std::{sync::Arc, time::Duration};

use nonet_api::{
    fault::Reader,
    status::{GatewayStatus, ProcessStatus, ProcessWork},
    tools::{Found, ListedTool, ToolList},
};
use nonet_servers::{catalog::EntryKind, downstream::ConnectionState};
use nonet_text::fault::{Fault, FaultCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{AskArguments, Gateway, SearchArguments, call::CallRequest, interrupt::Interrupt};
use crate::gate::Gate;
use nonet_state::{faults::not_ready, session::Caller};

/// The method of a request with an [`Inquiry`].
pub const METHOD: &str = "nonet/inquire";
/// The client name of the command line (`clientInfo.name`).
pub const CLIENT: &str = "command line";
/// The time limit of a call: a person at a shell waits, and can press Ctrl-C.
const PATIENCE: Duration = Duration::from_secs(24 * 3_600);

/// A request of the command line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Inquiry {
    /// A search for tools.
    Search {
        /// What the tools should do.
        query: String,
        /// Limits the search to this category.
        category: Option<String>,
        /// The maximum number of results.
        limit: usize,
        /// Whether to explain each result's rank.
        explain: bool,
    },
    /// All tools visible to the caller.
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
        /// The tool's params.
        params: Value,
        /// A jq filter for the result.
        select: Option<String>,
    },
    /// What follows a question to the user: of a script or a workflow.
    Answer {
        /// The token of the question.
        token: String,
        /// What the user said.
        answer: Value,
    },
    /// The state of the gateway, its servers and its jobs.
    Status,
}

impl Gateway {
    /// Answers the command line. Results are not shortened.
    pub async fn inquire(self: &Arc<Self>, mut caller: Caller, inquiry: Inquiry) -> Result<Value, Fault> {
        caller.limits.soft_deadline = PATIENCE;
        caller.limits.max_result_bytes = usize::MAX;
        match inquiry {
            Inquiry::Search { query, category, limit, explain } => {
                let arguments = SearchArguments {
                    query,
                    category,
                    limit: Some(limit),
                    reader: Reader::Shell,
                    explain,
                    ..SearchArguments::default()
                };
                let mut answer = self.find.search(&caller, arguments).await?;
                // A person asked for this number, so none are dropped.
                if let Found::Hits(found) = &mut answer {
                    found.results.truncate(limit);
                }
                Ok(json!(answer))
            }
            Inquiry::Tools => {
                self.calls.fresh_skills().await;
                Ok(json!(self.all_tools(&caller)))
            }
            Inquiry::Describe { name } => {
                self.find.describe(&caller, &[name], false).await.map(|tool| json!(tool))
            }
            Inquiry::Call { name, params, select } => {
                let request = CallRequest { name, params, select, ..CallRequest::default() };
                match self.calls.execute(&caller, request).await {
                    Ok(mut result) => {
                        // Nothing here was in the store, so nothing has to be removed from it.
                        drop(caller.session.mailbox.attach(&mut result, Vec::new()));
                        Ok(result.into_tree().await)
                    }
                    Err(interrupt) => unended(interrupt),
                }
            }
            Inquiry::Answer { token, answer } => {
                let asked = AskArguments::answered(token, answer);
                match self.apps.ask_user(&caller, asked).await {
                    Ok(result) => Ok(result.into_tree().await),
                    Err(interrupt) => unended(interrupt),
                }
            }
            Inquiry::Status => Ok(json!(self.process_status(&caller))),
        }
    }

    /// Returns the server of a tool or a prompt, or the category of another skill or an app; a fault for an
    /// unknown name.
    pub fn server_of(&self, caller: &Caller, name: &str) -> Result<Arc<str>, Fault> {
        Gate::of(&self.publisher, &caller.session).tool(name).map(|tool| tool.at().clone())
    }

    /// Returns why a server accepts no calls; `None` if it accepts calls.
    pub fn out_of_order(&self, server: &str) -> Option<Fault> {
        match self.servers.connections().get(server)?.state() {
            ConnectionState::Ready { .. } | ConnectionState::Starting => None,
            state => Some(not_ready(server, state)),
        }
    }

    /// Lists all tools visible to the caller, including skills and apps.
    fn all_tools(&self, caller: &Caller) -> ToolList {
        let gate = Gate::of(&self.publisher, &caller.session);
        let all = |kind: EntryKind| -> Vec<ListedTool> {
            let of_kind = gate.tools().filter(|tool| tool.kind == kind);
            let listed = of_kind.map(|tool| ListedTool {
                name: tool.full.clone(),
                wire_name: tool.wire.clone(),
                server: tool.at().clone(),
                description: tool.description.clone(),
                signature: tool.signature.clone(),
                risk: tool.risk,
                version: tool.version.clone(),
            });
            listed.collect()
        };
        let tools = all(EntryKind::Tool);
        ToolList { total: tools.len(), tools, skills: all(EntryKind::Skill), apps: all(EntryKind::App) }
    }

    /// Returns what `nonet status` shows: `gateway.status`; for the user of this machine also the process and
    /// the work of all clients.
    fn process_status(&self, caller: &Caller) -> ProcessStatus {
        let tools = self.publisher.snapshot().of_servers().count();
        let is_user = caller.local && caller.session.profile.is_none();
        let process = || {
            let clients = self.sessions.clients().into_iter().filter(|(_, client, _)| client != CLIENT);
            let running = self.keeping.jobs.all().into_iter().filter(|job| job.end().is_none());
            ProcessWork {
                pid: std::process::id(),
                serves: self.serves.get().copied(),
                file: self.servers.config().file.clone(),
                clients: clients.count(),
                tasks: running.map(|job| job.summary()).collect(),
            }
        };
        ProcessStatus {
            gateway: GatewayStatus { tools, ..self.status(caller) },
            process: is_user.then(process),
        }
    }
}

/// Returns what the command line gets of a call without a result.
fn unended(interrupt: Interrupt) -> Result<Value, Fault> {
    match interrupt {
        Interrupt::Fault(fault) => Err(*fault),
        Interrupt::Task(job) => Ok(json!(job.summary())),
        Interrupt::Refused(error) => Err(Fault::new(FaultCode::UpstreamError, error.message.to_string())),
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
            // The protocol adds this to each request.
            sent["_meta"] = json!({});
            assert_eq!(serde_json::from_value::<Inquiry>(sent).expect("it is one"), inquiry);
        }
    }
}
