//! The part of a call before it is sent: resolves the name, fills references, asks the policy, reads the
//! params.

use std::{sync::Arc, time::Duration};

use nonet_api::question::Approver;
use nonet_config::ApproveBy;
use nonet_parts::kept;
use nonet_schema::Schema;
use nonet_servers::{
    catalog::{GATEWAY, SKILLS, Tool},
    policy::{ItemKind, PolicyVerdict},
};
use nonet_state::{
    conditions::{ConditionInput, Conditions, stricter},
    faults::{invalid_params, passed_on},
    grants::RequiredApproval,
    questions::{ApprovalOutcome, ApprovalRequest},
    servers::settled,
    session::{Caller, Session},
};
use nonet_text::{
    fault::{Fault, FaultCode},
    name::{fold, split_given, without_client_prefix},
    template::{self, FilledTemplate, NameLookup},
};
use serde_json::{Map, Value, json};

use crate::{
    builtin,
    calls::Calls,
    gate::{Gate, always_asks, may_not_be_used},
    graph::TemplateValues,
};

/// How long a call with an unknown name waits while servers start for the first time.
const LIST_WAIT: Duration = Duration::from_secs(3);

/// A call ready to be made: known tool, allowed, valid params.
pub(crate) struct PreparedCall {
    pub gate: Gate,
    pub tool: Arc<Tool>,
    pub params: Map<String, Value>,
    /// Repairs made to the params, and params unknown to the tool.
    pub repaired: Vec<String>,
    /// Who approved the call, and the rule that required it.
    pub approved: Option<Approval>,
    /// Whether the rates have counted the call.
    pub is_rated: bool,
    /// The filter for the result.
    pub select: Option<String>,
    /// Whether the filter is part of the params, because a kept result is read.
    pub has_page: bool,
}

/// An approval that a call has.
#[derive(Debug)]
pub(crate) struct Approval {
    pub by: Approver,
    /// The rule that required it.
    pub rule: String,
}

/// Why a call was not prepared.
#[derive(Debug)]
pub(crate) enum PrepareError {
    Fault(Box<Fault>),
    /// The user has to agree first.
    Asks(Box<ApprovalRequest>),
}

impl From<Fault> for PrepareError {
    fn from(fault: Fault) -> Self {
        Self::Fault(Box::new(fault))
    }
}

impl Calls {
    /// Does everything for a resolved tool before the server call. `written` are the params as received;
    /// `filled` are the same params with kept results and other actions' results inserted, if there are any.
    pub(crate) async fn prepare_tool(
        &self,
        caller: &Caller,
        (mut gate, tool): (Gate, Arc<Tool>),
        written: Value,
        filled: Option<FilledTemplate>,
    ) -> Result<PreparedCall, PrepareError> {
        if tool.held().is_some() {
            return Box::pin(self.prepare_held(caller, tool, written, filled)).await;
        }
        let (verdict, conditions) = (gate.verdict(&tool), Conditions::of_tool(gate.config(), &tool));
        let may_ask =
            matches!(verdict, PolicyVerdict::Approve(_)) || !conditions.is_empty() || tool.of.is_some();
        let as_written = may_ask.then(|| written.clone());
        let (mut params, mut notes) = match filled {
            Some(filled) => in_text(&tool.schema, filled),
            None => (written, Vec::new()),
        };
        if &*tool.server == GATEWAY {
            notes.extend(builtin::under_own_names(&tool.name, &mut params));
        }
        let reading = if tool.schema.is_quick() {
            tool.schema.read(params)
        } else {
            // Validation may take a second and must not block other calls.
            let schema = tool.schema.clone();
            let read = tokio::task::spawn_blocking(move || schema.read(params)).await;
            read.map_err(|_| Fault::new(FaultCode::Internal, "The params could not be checked."))?
        };
        let mut reading = reading.map_err(|misfit| invalid_params(&tool, &misfit))?;
        reading.repaired.splice(0..0, notes);
        let on_call = match conditions.is_empty() {
            true => PolicyVerdict::Allow,
            false => conditions.verdict(ConditionInput::new(caller, &tool.full, &reading.params)).await,
        };
        // A prompt is also what policies about its server select.
        let on_call = match &tool.of {
            Some(server) => {
                let of = (&**server, tool.name_at_server());
                stricter(on_call, gate.verdict_on_use(caller, ItemKind::Prompt, of, &reading.params))
            }
            None => on_call,
        };
        // An answer about one call is none about another.
        let is_of_call = on_call != PolicyVerdict::Allow;
        let verdict = stricter(verdict, on_call);
        let asked = match (verdict, as_written) {
            (PolicyVerdict::Deny(rule), _) => {
                let fault = may_not_be_used(&tool.full, &rule);
                return Err(fault.details(json!({ "rule": rule })).into());
            }
            (PolicyVerdict::Approve(rule), _)
                if caller.session.app.is_some() || caller.session.unattended =>
            {
                let fault = needs_user(&tool.full, &rule);
                return Err(if is_of_call { fault.details(json!({ "rule": rule })) } else { fault }.into());
            }
            (PolicyVerdict::Approve(rule), Some(written)) => Some((rule, written)),
            _ => None,
        };
        let mut approved = None;
        let is_rated = asked.is_some() && caller.run.is_none();
        if let Some((rule, written)) = asked {
            // The user is not asked about a call that would be refused.
            // No word of the model approves a server that it wants to add.
            let by = match caller.approved_elsewhere || always_asks(&tool) {
                true => ApproveBy::User,
                false => gate.approve_by(tool.at()),
            };
            // In a run the user may answer later, and the call is prepared again.
            if caller.run.is_none() && !self.asking.was_rated(caller, &tool, &reading.params, by).await {
                self.take_rate(caller, &tool).await?;
            }
            let own = builtin::question(&*self.gateway()?, caller, &tool, &reading.params).transpose()?;
            let required = rule.clone();
            let asked = RequiredApproval { rule, written, own, by, is_of_call };
            approved = match Box::pin(self.asking.approve(caller, &tool, &reading.params, asked)).await? {
                ApprovalOutcome::By(by) => Some(Approval { by, rule: required }),
                ApprovalOutcome::Unasked(unasked) => return Err(PrepareError::Asks(unasked)),
            };
            // The user may have taken minutes; the configuration and the tool may have changed since.
            gate = Gate::of(&self.publisher, &caller.session);
            still_the_same(&gate, &tool)?;
            let input = ConditionInput::new(caller, &tool.full, &reading.params);
            if let PolicyVerdict::Deny(rule) = Conditions::of_tool(gate.config(), &tool).verdict(input).await
            {
                let fault = may_not_be_used(&tool.full, &rule);
                return Err(fault.details(json!({ "rule": rule })).into());
            }
        }
        let mut repaired = reading.repaired;
        if !repaired.is_empty() {
            self.observing.metrics.repaired();
        }
        repaired.extend(passed_on(&tool, &reading.params));
        Ok(PreparedCall {
            gate,
            tool,
            params: reading.params,
            repaired,
            approved,
            is_rated,
            select: None,
            has_page: false,
        })
    }

    /// Resolves a name to a tool that the caller may use, and returns the gate that resolved it. An unknown
    /// name waits while a server that may have the tool starts for the first time.
    pub(crate) async fn find_tool(&self, caller: &Caller, name: &str) -> Result<(Gate, Arc<Tool>), Fault> {
        let mut gate = Gate::of(&self.publisher, &caller.session);
        let mut found = gate.tool(name);
        if found.is_err() && is_skill(name) {
            // The skill may be new in its folder.
            self.skills_of_now().await;
            gate = Gate::of(&self.publisher, &caller.session);
            found = gate.tool(name);
        }
        let unknown = match found {
            Err(fault) if fault.code == FaultCode::UnknownTool => fault,
            known => return known.map(|tool| (gate, tool)),
        };
        if let Some(fault) = gate.out_of_reach(name) {
            return Err(Box::pin(self.with_sign_in_link(caller, fault)).await);
        }
        let mut unlisted = gate.unlisted();
        if let Some(server) = gate.named_server(name) {
            unlisted.retain(|one| *one == server);
        }
        if unlisted.is_empty() {
            return Err(unknown);
        }
        let in_time = tokio::select! {
            in_time = Box::pin(self.have_listed(&gate, &unlisted, caller.limits.soft_deadline / 2)) => in_time,
            () = caller.cancel.cancelled() => false,
        };
        let gate = Gate::of(&self.publisher, &caller.session);
        match gate.tool(name) {
            Err(fault) if fault.code == FaultCode::UnknownTool && !in_time => {
                Err(still_starting(name, &unlisted.join(", ")))
            }
            Err(fault) if fault.code == FaultCode::UnknownTool => {
                Err(gate.out_of_reach(name).unwrap_or(fault))
            }
            known => known.map(|tool| (gate, tool)),
        }
    }

    /// Waits until these servers, which are starting for the first time, have listed their tools or have
    /// failed. Returns whether that was in time.
    async fn have_listed(&self, gate: &Gate, servers: &[Arc<str>], most: Duration) -> bool {
        let listed = async {
            settled(servers.iter().filter_map(|server| gate.connection(server))).await;
            self.publisher.published().await;
        };
        tokio::time::timeout(LIST_WAIT.min(most), listed).await.is_ok()
    }

    /// Waits a moment for the first lists of all servers that may concern a session.
    pub async fn first_lists(&self, session: &Arc<Session>) {
        self.publisher.listed().await;
        let gate = Gate::of(&self.publisher, session);
        let unlisted = gate.unlisted();
        if !unlisted.is_empty() {
            self.have_listed(&gate, &unlisted, LIST_WAIT).await;
        }
    }

    /// Fills the templates in JSON with values of calls and with kept results.
    pub(crate) async fn filled(
        &self,
        caller: &Caller,
        json: &Value,
        values: &TemplateValues,
    ) -> Result<FilledTemplate, Fault> {
        let mut uses = template::references([json]).map_err(|error| kept::unread_template(&error))?;
        uses.kept.retain(|id, _| !values.contains_key(&kept::kept_name(id)));
        let references = self.keeping.kept.references(&caller.owner(), uses.kept).await?;
        let lookup = |name: &str| match values.get(name) {
            Some(value) => NameLookup::Value(value.clone()),
            None if name.starts_with("ref:") => references.named(name),
            None => unknown(values),
        };
        let filled = template::fill(json, &lookup);
        filled.map_err(|error| Fault::new(FaultCode::InvalidParams, format!("{error}.")))
    }
}

/// Builds the error for a template that names none of these values.
pub(crate) fn unknown(values: &TemplateValues) -> NameLookup {
    NameLookup::Unknown(values.keys().cloned().collect::<Vec<_>>().join(", "))
}

/// Turns inserted values into text where the tool accepts only text. Returns the params and a note per
/// change.
pub(crate) fn in_text(schema: &Schema, filled: FilledTemplate) -> (Value, Vec<String>) {
    let FilledTemplate { mut value, inserted } = filled;
    let mut notes = Vec::new();
    for one in inserted {
        if !schema.takes_only_text(&one.path) {
            continue;
        }
        let place = one.path.iter().try_fold(&mut value, |at, step| match at {
            Value::Object(fields) => fields.get_mut(step),
            Value::Array(items) => items.get_mut(step.parse::<usize>().ok()?),
            _ => None,
        });
        if let Some(place) = place {
            *place = Value::String(one.text);
            notes.push(format!("{}: expects text, so the result was inserted as text", one.path.join(".")));
        }
    }
    (value, notes)
}

/// Whether a name is a skill's name, in any form, known or not.
fn is_skill(name: &str) -> bool {
    let name = without_client_prefix(name.trim()).unwrap_or(name.trim());
    split_given(name).is_some_and(|(category, _)| fold(category) == SKILLS)
}

/// Builds the fault for an app's call of a tool that needs the user's approval.
pub(crate) fn needs_user(tool: &str, rule: &str) -> Fault {
    let message = format!(
        "`{tool}` runs only if the user agrees (`{rule}`), and nobody can be asked here. Continue without it, and say what is left to do."
    );
    Fault::new(FaultCode::NeedsApproval, message)
}

/// Checks that a tool has not changed since its call began to wait.
pub(crate) fn still_the_same(gate: &Gate, tool: &Tool) -> Result<(), Fault> {
    let now = match tool.is_for_apps_only() {
        true => gate.ui_tool(&tool.wire).unwrap_or_else(|| gate.tool(&tool.full))?,
        false => gate.tool(&tool.full)?,
    };
    if now.hash != tool.hash || now.held().is_some() {
        return Err(redefined(tool));
    }
    Ok(())
}

/// Builds the fault for a call whose tool changed while the call waited.
fn redefined(tool: &Tool) -> Fault {
    let message = format!(
        "The server changed `{}` while the call waited. Read the new definition, then make the call again.",
        tool.full
    );
    Fault::new(FaultCode::NeedsApproval, message).next("get_tool", json!({ "name": &*tool.full }))
}

/// Builds the fault for a name that may belong to a server without a list.
fn still_starting(name: &str, servers: &str) -> Fault {
    let message = format!(
        "`{name}` is not known yet: {servers} has not finished starting. Call again in a few seconds."
    );
    Fault::new(FaultCode::ServerStarting, message).retry_after(Duration::from_secs(5))
}
