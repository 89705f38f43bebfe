//! The part of a call at its server: sends it to the server, a built-in tool or a skill, and reads the
//! answer.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use nonet_base::text::clip;
use nonet_config::ServerCredentials;
use nonet_parts::{figures::CallFailure, trace::Span};
use nonet_servers::{
    catalog::{EntryKind, GATEWAY, Tool},
    downstream::{CallControl, CallError, Connection, ConnectionState, ProgressSink, Remedy},
};
use nonet_state::{
    faults::call_fault,
    session::Caller,
    signing_in::{ask_to_sign_in, asker_of_links},
};
use nonet_text::{
    fault::{Fault, FaultCode},
    results::CallResult,
};
use rmcp::model::ErrorData;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::{PreparedCall, prepare::Approval};
use crate::{calls::Calls, gate::Gate, inspect::ContentInTransit};

/// How long a call waits for a server that is starting or reconnecting.
const READY_WAIT: Duration = Duration::from_secs(20);

/// How a call is sent.
pub(crate) struct Sending {
    /// The hard limit, if the server's own does not apply.
    pub timeout: Option<Duration>,
    pub cancel: CancellationToken,
    pub progress: ProgressSink,
    /// Whether the server's result stays unchanged.
    pub is_verbatim: bool,
}

#[derive(Debug)]
pub(crate) struct CallOutcome {
    /// Always a `CallToolResult`.
    pub result: CallResult,
    /// `ok`, `tool_error`, or a fault code.
    pub outcome: &'static str,
    /// Time spent in the server.
    pub in_server: Duration,
    /// Whether the outcome counts for the tool's figures: the call reached its server and was not cancelled.
    pub counts: bool,
    /// The message of the fault, if there is one.
    pub fault: Option<String>,
    /// The server's own error, if it refused the call.
    pub refusal: Option<Box<ErrorData>>,
    /// Who approved the call, and the rule that required it.
    pub approved: Option<Approval>,
}

impl CallOutcome {
    /// Returns how the call failed, if it did.
    pub(crate) fn error(&self) -> Option<CallFailure<'_>> {
        let message = match &self.fault {
            Some(message) => message,
            None if self.outcome == "ok" => return None,
            None => self.result.as_tree().map_or("", first_text),
        };
        let has_words = |line: &&str| line.contains(char::is_alphanumeric);
        let message = message.lines().map(str::trim).find(has_words).unwrap_or_default();
        Some(CallFailure { code: self.outcome, message })
    }
}

/// Why a call has no result.
struct FailedCall {
    fault: Fault,
    /// Whether the call reached its server and was not cancelled.
    reached: bool,
}

impl FailedCall {
    fn unreached(fault: Fault) -> Self {
        Self { fault, reached: false }
    }
}

impl Calls {
    /// Calls the tool and always returns a `CallToolResult`. `call` is the parent span of the request to the
    /// server.
    pub(super) async fn invoke(
        self: &Arc<Self>,
        caller: &Caller,
        mut prepared: PreparedCall,
        sending: Sending,
        call: &Span,
    ) -> CallOutcome {
        let approved = prepared.approved.take();
        let made = self.invoke_tool(caller, prepared, sending, call).await;
        CallOutcome { approved, ..made }
    }

    async fn invoke_tool(
        self: &Arc<Self>,
        caller: &Caller,
        prepared: PreparedCall,
        sending: Sending,
        call: &Span,
    ) -> CallOutcome {
        let tool = prepared.tool.clone();
        // Nonet's own tools answer in any case: they show why calls are refused.
        let is_own = &*tool.server == GATEWAY && tool.kind == EntryKind::Tool;
        let admitted = if is_own { Ok(()) } else { self.observing.audit_admits() };
        if let Err(fault) = admitted {
            return self.made(caller, &tool, Err(FailedCall::unreached(fault)), Duration::ZERO);
        }
        if is_own || tool.kind != EntryKind::Tool {
            let caller = &Caller { cancel: sending.cancel, sink: Some(sending.progress), ..caller.clone() };
            let limit = sending.timeout.unwrap_or(Duration::MAX);
            let answer = if is_own {
                let work = async { self.gateway()?.own_tool(caller, &tool.name, prepared.params).await };
                let late = |_| Err(call_fault(&tool, CallError::TimedOut(limit)));
                tokio::time::timeout(limit, work).await.unwrap_or_else(late)
            } else {
                Box::pin(self.guide(caller, &tool, &prepared.params, limit)).await
            };
            let answer = answer.map(CallResult::from).map_err(FailedCall::unreached);
            return self.made(caller, &tool, answer, Duration::ZERO);
        }
        let began = Instant::now();
        let span = Span::request(call, &tool.server, &tool.name);
        let answer = self.call_server(caller, prepared, sending, &span).await;
        let made = self.made(caller, &tool, answer, began.elapsed());
        span.ended(made.outcome);
        made
    }

    fn made(
        &self,
        caller: &Caller,
        tool: &Tool,
        answer: Result<CallResult, FailedCall>,
        in_server: Duration,
    ) -> CallOutcome {
        match answer {
            Ok(result) => {
                let outcome = if result.is_error() { "tool_error" } else { "ok" };
                if outcome == "ok" {
                    self.observing.succeeded(caller, tool);
                }
                CallOutcome {
                    result,
                    outcome,
                    in_server,
                    counts: true,
                    fault: None,
                    refusal: None,
                    approved: None,
                }
            }
            Err(FailedCall { fault, reached }) => CallOutcome {
                result: fault.to_result().into(),
                outcome: fault.code.as_str(),
                in_server,
                counts: reached,
                fault: Some(fault.message),
                refusal: fault.refusal,
                approved: None,
            },
        }
    }

    /// Asks the person to sign in to the server, and makes the call again once they have.
    async fn once_signed_in(
        &self,
        (caller, gate, tool): (&Caller, &Gate, &Arc<Tool>),
        connection: &Arc<Connection>,
        refused: Result<CallResult, CallError>,
        later: Box<(Map<String, Value>, CallControl)>,
    ) -> Result<CallResult, CallError> {
        let link = match &refused {
            Err(CallError::NotReady(ConnectionState::AuthRequired { remedy, .. })) => match remedy {
                Remedy::Page(page) => Some(page.clone()),
                Remedy::Login(_) => self.servers.sign_in_link(&connection.name).await,
                _ => None,
            },
            _ => None,
        };
        let Some(link) = link else { return refused };
        if !ask_to_sign_in(caller, connection, &link).await {
            return refused;
        }
        // Another one may have taken its place.
        let again = gate.connection_for(&self.servers, caller, &tool.server);
        let (params, control) = *later;
        let again = again.unwrap_or_else(|| connection.clone());
        again.call_tool(&tool.own, params, tool.as_task, control, READY_WAIT).await
    }

    async fn call_server(
        &self,
        caller: &Caller,
        prepared: PreparedCall,
        Sending { timeout, cancel, progress, .. }: Sending,
        span: &Span,
    ) -> Result<CallResult, FailedCall> {
        let PreparedCall { gate, tool, params, is_rated, .. } = prepared;
        let (gate, tool) = (&gate, &tool);
        let connection = gate.connection_for(&self.servers, caller, &tool.server);
        let Some(connection) = connection else {
            let message = format!(
                "`{}` is no longer configured, so nothing was called. Search for another tool.",
                tool.server
            );
            return Err(FailedCall::unreached(Fault::new(FaultCode::ServerDown, message)));
        };
        let settings = connection.settings();
        let passing =
            ContentInTransit { gate, caller, server: &tool.server, settings: &settings, label: &tool.full };
        self.may_leave(passing, &params).map_err(FailedCall::unreached)?;
        if !is_rated {
            self.take_rate(caller, tool).await.map_err(FailedCall::unreached)?;
        }
        let timeout = timeout.unwrap_or(settings.timeout);
        let mut meta = caller.meta.clone();
        span.pass_on(&mut meta);
        let (asker, owner) = (caller.asker.clone(), caller.account.id);
        let control = CallControl { timeout, cancel, progress: Some(progress), meta, asker, owner };
        let wait = READY_WAIT.min(caller.limits.soft_deadline / 2);
        let as_task = tool.as_task;
        // Who has yet to sign in may do so now: a person, or the user of this machine.
        let is_unsigned = || caller.local && connection.needs_sign_in();
        let may_sign_in = (settings.credentials == ServerCredentials::User || is_unsigned())
            && asker_of_links(caller).is_some();
        let later = may_sign_in.then(|| Box::new((params.clone(), control.clone())));
        let mut answer = connection.call_tool(&tool.own, params, as_task, control, wait).await;
        if let (Some(later), true) = (later, answer.as_ref().is_err_and(needs_person)) {
            answer = Box::pin(self.once_signed_in((caller, gate, tool), &connection, answer, later)).await;
        }
        self.tell_of_breaker(caller, gate, &connection);
        match answer {
            Ok(mut result) => {
                match result.as_tree_mut() {
                    // Answers of a verbatim server stay unchanged.
                    Some(Value::Object(members)) if caller.lasting || !tool.verbatim => {
                        let blocks = members.get_mut("content").and_then(Value::as_array_mut);
                        self.note_links(caller, &tool.server, blocks.into_iter().flatten());
                    }
                    Some(Value::Object(_)) | None => {}
                    Some(other) => {
                        let message = format!(
                            "`{}` answered with something that is not a result: {}",
                            tool.server,
                            clip(&other.to_string(), 200)
                        );
                        let fault =
                            self.inspected_fault(passing, Fault::new(FaultCode::UpstreamError, message));
                        return Err(FailedCall { fault, reached: true });
                    }
                }
                self.inspected_result(passing, result)
                    .await
                    .map_err(|fault| FailedCall { fault, reached: true })
            }
            Err(error) => {
                let reached = !matches!(
                    error,
                    CallError::NotReady(_)
                        | CallError::Busy(_)
                        | CallError::Resting(_)
                        | CallError::Cancelled
                );
                let fault = self.inspected_fault(passing, call_fault(tool, error));
                let fault = match fault.sign_in {
                    Some(_) => Box::pin(self.with_sign_in_link(caller, fault)).await,
                    None => fault,
                };
                Err(FailedCall { fault, reached })
            }
        }
    }
}

impl Calls {
    /// Adds the link of the sign-in to a fault, if its caller is a client of this machine's user.
    pub(super) async fn with_sign_in_link(&self, caller: &Caller, mut fault: Fault) -> Fault {
        let is_users = caller.local && caller.asker.is_some() && !caller.session.unattended;
        let Some(server) = fault.sign_in.take().filter(|_| is_users) else { return fault };
        if let Some(link) = self.servers.sign_in_link(&server).await {
            fault.message.push_str(&format!(" Or give the user this link, open for five minutes: {link}"));
        }
        fault
    }
}

/// Whether a call failed because its person has yet to sign in to the server.
fn needs_person(error: &CallError) -> bool {
    let CallError::NotReady(ConnectionState::AuthRequired { remedy, .. }) = error else { return false };
    matches!(remedy, Remedy::Page(_) | Remedy::Login(_))
}

/// Returns the first text of a result.
fn first_text(result: &Value) -> &str {
    let mut blocks = result["content"].as_array().into_iter().flatten();
    blocks.find_map(|block| block.get("text")?.as_str()).unwrap_or_default()
}
