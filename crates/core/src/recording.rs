//! What is recorded when a call has ended: counts, figures, the live page, the log, its span, the audit log.

use std::time::Duration;

use nonet_api::page::FinishedCall;
use nonet_base::{
    clock::unix_ms,
    text::{clip, name as shown_name},
};
use nonet_parts::{figures::EndedCall, kept::settle_memory, metrics::CallRecord};
use nonet_servers::catalog::Tool;
use nonet_text::{
    fault::{Fault, FaultCode},
    results::json_start,
    secrets::without_secrets,
};

use super::call::{CallInFlight, CallOutcome, OF_SESSIONS};
use crate::observing::Observing;
use nonet_state::{
    feed::{CallContent, MOST_OF_CALL},
    session::Caller,
};

/// The longest fault on the page, in characters.
const MAX_FAULT: usize = 600;

impl Observing {
    /// Returns how many bytes of the params and of the result of a call stay in memory for the page.
    pub(super) fn most_kept_of_calls(&self) -> usize {
        if self.calls.is_on() && self.servers.config().gateway.keep_calls { MOST_OF_CALL } else { 0 }
    }

    /// Counts a call, logs it and exports its span. On disk, only an audit log with `params = true` records
    /// params, without secrets, and nothing records content. A result whose line must be in the audit log and
    /// cannot be becomes a fault; results of own tools stay.
    pub(super) async fn record(
        &self,
        caller: &Caller,
        tool: &Tool,
        begun: &CallInFlight,
        bytes_out: usize,
        made: &mut CallOutcome,
    ) {
        let bytes_in = begun.bytes_in;
        let in_gateway = begun.at.elapsed().saturating_sub(made.in_server);
        let call = CallRecord {
            server: &tool.server,
            tool: &tool.name,
            outcome: made.outcome,
            bytes_in,
            bytes_out,
            in_gateway,
            in_server: made.in_server,
        };
        match tool.session {
            None => self.metrics.record(&tool.full, &call),
            // The number of names of sessions' servers is unlimited.
            Some(_) => {
                let call = CallRecord { server: &OF_SESSIONS, tool: &OF_SESSIONS, ..call };
                self.metrics.record(&OF_SESSIONS, &call);
            }
        }
        if made.counts && tool.is_of_server() && tool.session.is_none() {
            let error = made.error();
            // Figures are those of a profile, not of each person.
            let owner = caller.session.profile.as_deref().unwrap_or_default();
            let version = &*tool.version;
            let ended = EndedCall { owner, version, in_server: made.in_server, error };
            self.figures.record(&tool.own_full(), &ended);
        }
        if self.calls.is_on() {
            let call = FinishedCall {
                tool: tool.full.clone(),
                server: Some(tool.server.clone()),
                version: Some(tool.version.as_str().into()),
                outcome: made.outcome.into(),
                approver: made.approved.as_ref().map(|approval| approval.by),
                fault: made.error().and_then(|error| fault_words(error.code, error.message)),
                bytes_out: Some(bytes_out),
                gateway_us: micros(in_gateway),
                server_us: Some(micros(made.in_server)),
                ..ended_call(caller, begun)
            };
            let result = made.result.start(self.most_kept_of_calls());
            self.calls.push(call, CallContent { params: begun.params.clone(), result });
        }
        settle_memory(bytes_out);
        tracing::info!(
            target: "nonet::call",
            client = %caller.client,
            session = caller.session.id,
            tool = %tool.full,
            server = %tool.server,
            bytes_in,
            bytes_out,
            gateway_us = micros(in_gateway),
            server_us = micros(made.in_server),
            outcome = made.outcome,
            "call"
        );
        begun.span.called(&tool.full, &call);
        let audited = begun.audited.lock().take();
        if let Some(mut audited) = audited {
            if let Some(entry) = audited.entry() {
                entry.tool = tool.full.clone();
                entry.version = Some(tool.version.as_str().into());
                let (verdict, rule) = match &made.approved {
                    Some(approval) => ("approve", Some(approval.rule.clone())),
                    None => ("allow", Some(tool.policy_rule.clone()).filter(|rule| !rule.is_empty())),
                };
                (entry.verdict, entry.rule) = (Some(verdict), rule);
                entry.approver = made.approved.as_ref().map(|approval| approval.by);
                entry.bytes_out = Some(bytes_out);
                entry.gateway_us = Some(micros(in_gateway));
                entry.server_us = Some(micros(made.in_server));
            }
            let ended = Self::end_audited(audited, made.outcome).await;
            if let (Err(fault), true) = (ended, tool.is_of_server()) {
                made.result = fault.to_result().into();
            }
        }
    }

    /// Records a call that failed before it reached a tool.
    pub(super) async fn refused(&self, caller: &Caller, name: &str, begun: &CallInFlight, fault: &Fault) {
        self.metrics.refused(fault.code.as_str());
        let name = &*shown_name(name);
        let tool = name;
        if self.calls.is_on() {
            let call = FinishedCall {
                tool: tool.into(),
                outcome: fault.code.as_str().into(),
                fault: fault_words(fault.code.as_str(), &fault.message),
                gateway_us: micros(begun.at.elapsed()),
                ..ended_call(caller, begun)
            };
            let result = json_start(&fault.to_result(), self.most_kept_of_calls()).1.into();
            self.calls.push(call, CallContent { params: begun.params.clone(), result });
        }
        tracing::info!(
            target: "nonet::call",
            client = %caller.client,
            session = caller.session.id,
            %tool,
            bytes_in = begun.bytes_in,
            gateway_us = micros(begun.at.elapsed()),
            outcome = fault.code.as_str(),
            "call"
        );
        begun.span.refused(name, fault.code.as_str());
        self.audit_refused(caller, name, begun, fault).await;
    }
}

/// Returns the part of a finished call that is known when it begins, and the time.
fn ended_call(caller: &Caller, begun: &CallInFlight) -> FinishedCall {
    FinishedCall {
        at: unix_ms(nonet_base::clock::system_time()),
        client: caller.client.to_string(),
        session: caller.session.id,
        profile: caller.session.profile.clone(),
        within: caller.within.clone(),
        bytes_in: begun.bytes_in,
        ..FinishedCall::default()
    }
}

/// Returns what the page shows about a failure. Faults about params quote the params, so only their code is
/// shown.
fn fault_words(code: &str, message: &str) -> Option<String> {
    let is_of_params = code == FaultCode::InvalidParams.as_str();
    (!is_of_params && !message.is_empty()).then(|| clip(&without_secrets(message).0, MAX_FAULT))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
