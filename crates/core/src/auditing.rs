//! What goes into the audit log: calls with their caller and rule, reloads, and servers that are added or
//! removed.

use std::path::Path;

use nonet_api::status::AuditStatus;
use nonet_auth::PersonName;
use nonet_base::text::clip;
use nonet_config::{Config, Transport};
use nonet_parts::audit::{Audit, AuditEntry, AuditedCall, MaskRules, masked};
use nonet_servers::policy::PolicyVerdict;
use nonet_text::{
    fault::{Fault, FaultCode},
    results::json_len,
};
use serde_json::{Map, Value, json};

use super::{WorldChanges, call::CallInFlight};
use crate::{gate::Gate, observing::Observing};
use nonet_state::{known_secrets::secret_values, session::Caller, world::Connections};

/// The longest name of a tool or client in a line, in characters.
const MAX_NAME: usize = 200;
/// The longest masked text that the page shows, in characters.
const MAX_SHOWN: usize = 60_000;
/// The shortest configured value that is masked in params: shorter values occur in many words.
const MIN_SECRET: usize = 6;

/// Opens the audit log of a configuration, if it has one.
pub(super) fn open(config: &Config, state: Option<&Path>) -> Option<Audit> {
    let settings = config.audit.clone()?;
    let about = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "config": config.file.display().to_string(),
        "config_sha256": config.digest,
    });
    let about = about.as_object().cloned().unwrap_or_default();
    // Fails only if the system cannot create a thread.
    let audit = Audit::open(settings, state, about)
        .inspect_err(|error| tracing::error!(%error, "there is no audit log"))
        .ok()?;
    audit.hide(secrets(config));
    Some(audit)
}

/// Returns the configured values that must not be shown.
fn secrets(config: &Config) -> Vec<String> {
    let mut found = Vec::new();
    for server in config.servers.values() {
        found.extend(server.secrets.iter());
        match &server.transport {
            Transport::Stdio { env, .. } => found.extend(env.values()),
            Transport::Http { headers, oauth, .. } => {
                found.extend(headers.values().chain(&oauth.client_secret));
            }
            Transport::Rest(rest) => found.extend(rest.headers.values().chain(&rest.oauth.client_secret)),
        }
    }
    let mut found: Vec<String> = found
        .into_iter()
        .map(|secret| secret.expose().to_owned())
        .chain(secret_values(config, &Connections::new()).into_iter().map(|(_, value)| value))
        .filter(|text| text.len() >= MIN_SECRET)
        .collect();
    // Longest first, because one value may be part of another.
    found.sort_by_key(|text| std::cmp::Reverse(text.len()));
    found.dedup();
    found
}

/// Describes a caller for a line.
fn who(caller: &Caller) -> AuditEntry {
    AuditEntry {
        client: clip(&caller.client, MAX_NAME).into(),
        session: caller.lasting.then_some(caller.session.id),
        profile: caller.session.profile.clone(),
        token: caller.token.as_ref().map(|token| token.place.clone()),
        person: caller.person.as_ref().map(|person| PersonName::of(person)),
        within: caller.within.clone(),
        ..AuditEntry::default()
    }
}

impl Observing {
    /// Begins a call. Its line in the audit log is written however the call ends.
    pub(super) fn begin(&self, caller: &Caller, name: &str, params: &Value) -> CallInFlight {
        let begun = CallInFlight::keeping(caller, params, self.most_kept_of_calls());
        if let Some(audit) = &self.audit {
            let entry = AuditEntry {
                tool: clip(name, MAX_NAME).into(),
                bytes_in: Some(begun.bytes_in),
                ..who(caller)
            };
            *begun.audited.lock() = Some(audit.call(entry, params));
        }
        begun
    }

    /// Begins the line of an app.
    pub(super) fn audit_app(&self, caller: &Caller, name: &str, input: &Value) -> Option<AuditedCall> {
        let audit = self.audit.as_ref()?;
        let entry =
            AuditEntry { tool: clip(name, MAX_NAME).into(), bytes_in: Some(json_len(input)), ..who(caller) };
        Some(audit.call(entry, input))
    }

    /// Whether the audit log allows calls to be sent.
    pub(super) fn audit_admits(&self) -> Result<(), Fault> {
        let Some(Err(why)) = self.audit.as_ref().map(Audit::admits) else { return Ok(()) };
        let message = format!(
            "Not called: the audit log cannot be written ({why}), and `on_failure = \"refuse\"` of [audit] allows no call without a line. The user must free space or repair the folder."
        );
        Err(Fault::new(FaultCode::Internal, message).retry_after(std::time::Duration::from_secs(5)))
    }

    /// Ends the line of a call of a server. Returns the fault that takes the place of the answer, if the line
    /// cannot be written and the settings allow no call without a line.
    pub(super) async fn end_audited(call: AuditedCall, outcome: &'static str) -> Result<(), Fault> {
        call.end(outcome).await.map_err(|why| {
            let message = format!(
                "The call was made, but its answer is withheld: the audit log cannot be written ({why}), and `on_failure = \"refuse\"` of [audit] allows no answer without a line. Do not repeat a call that changes something; the user must free space or repair the folder first."
            );
            Fault::new(FaultCode::Internal, message)
        })
    }

    /// Replaces the params in a call's line with the params that were sent.
    pub(super) fn audit_params(&self, begun: &CallInFlight, params: &Map<String, Value>) {
        let Some(audit) = &self.audit else { return };
        if let Some(call) = begun.audited.lock().as_mut()
            && let Some(entry) = call.entry()
        {
            entry.params = Some(audit.params(&Value::Object(params.clone())));
        }
    }

    /// Writes the line of a call that was refused before it reached a tool.
    pub(super) async fn audit_refused(
        &self,
        caller: &Caller,
        name: &str,
        begun: &CallInFlight,
        fault: &Fault,
    ) {
        let Some(audit) = &self.audit else { return };
        let own = begun.audited.lock().take();
        // An action of a failed plan has no line yet.
        let mut call = own.unwrap_or_else(|| {
            let tool = clip(name, MAX_NAME).into();
            audit.call(AuditEntry { tool, bytes_in: Some(begun.bytes_in), ..who(caller) }, &Value::Null)
        });
        if let Some(entry) = call.entry() {
            self.say_why(entry, &Gate::of(&self.publisher, &caller.session), name, fault);
        }
        // The call is answered with a fault already.
        let _ = call.end(fault.code.as_str()).await;
    }

    /// Adds the rule that refused a call to the entry.
    fn say_why(&self, entry: &mut AuditEntry, gate: &Gate, name: &str, fault: &Fault) {
        let code = fault.code;
        let Some(tool) = gate.named(name) else { return };
        entry.tool = tool.full.clone();
        entry.version = Some(tool.version.as_str().into());
        if let Some(change) = tool.held().filter(|_| code == FaultCode::NeedsApproval) {
            (entry.verdict, entry.rule) = (Some("approve"), Some(change.rule.clone()));
        } else if matches!(code, FaultCode::Forbidden | FaultCode::NeedsApproval) {
            (entry.verdict, entry.rule) = match gate.verdict(tool) {
                PolicyVerdict::Deny(rule) => (Some("deny"), Some(rule)),
                PolicyVerdict::Approve(rule) => (Some("approve"), Some(rule)),
                // A condition is about one call.
                PolicyVerdict::Allow => {
                    match fault.details.as_ref().and_then(|details| details["rule"].as_str()) {
                        Some(rule) if code == FaultCode::NeedsApproval => {
                            (Some("approve"), Some(rule.into()))
                        }
                        Some(rule) => (Some("deny"), Some(rule.into())),
                        None => (Some("allow"), None),
                    }
                }
            };
        }
    }

    /// Writes that a configuration was loaded.
    pub(super) fn audit_reload(&self, digest: &str, changes: &WorldChanges) {
        self.audit_event("reload", || {
            let mut about = json!(changes);
            about["config_sha256"] = digest.into();
            about
        });
    }

    /// Makes the audit log mask the secrets of a configuration, in addition to the secrets masked so far.
    pub(super) fn hide_from_audit(&self, config: &Config) {
        if let Some(audit) = &self.audit {
            let mut hidden = secrets(config);
            hidden.extend(secrets(&self.servers.config()));
            hidden.sort_by_key(|text| std::cmp::Reverse(text.len()));
            hidden.dedup();
            audit.hide(hidden);
        }
    }

    /// Returns what masks a text, which may be JSON, for the user of the page.
    pub fn mask_for_user(&self) -> impl Fn(&str) -> String + use<> {
        let hidden = MaskRules::new(secrets(&self.servers.config()));
        move |text| masked(text, &hidden, MAX_SHOWN)
    }

    /// Writes an event that changes trust.
    pub fn audit_event(&self, event: &'static str, about: impl FnOnce() -> Value) {
        if let Some(audit) = &self.audit {
            audit.event(event, about());
        }
    }

    /// Returns the state of the audit log, if there is one.
    pub(super) fn audit_status(&self) -> Option<AuditStatus> {
        self.audit.as_ref().map(Audit::status)
    }
}
