//! Errands: watches and schedules, which the gateway runs when they are due, without a request.
//!
//! An errand is a record in the store, held by one of the user's gateways at a time. Within that gateway,
//! this module tracks errands in flight, so that none runs twice at once.

use std::{
    borrow::Cow,
    future::ready,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use dashmap::{DashMap, DashSet};
use futures::FutureExt;
use nonet_api::{
    notice::Notice,
    work::{CheckError, ShownValue},
};
use nonet_auth::Owner;
use nonet_base::{clock::millis, text::clip};
use nonet_config::ClientLimits;
use nonet_parts::quotas::{Account, QuotaExceeded};
use nonet_servers::{
    catalog::{GATEWAY, Tool},
    policy::PolicyVerdict,
};
use nonet_store::{Record, RecordKind, StoreError};
use nonet_text::{
    fault::{Fault, FaultCode, NextStep},
    results::{json_len, text_of_value},
};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::{sync::Semaphore, time::Instant};

use super::call::{
    CallParams, CallPlan, PrepareError, PreparedCall, RecordedCall, Unready, needs_user, text_result,
};
use crate::{Apps, Calls, Keeping, Observing, gate::Gate, runtime_servers};
use nonet_state::{
    outward::NoticeDelivery,
    publisher::Publisher,
    questions::ApprovalRequest,
    servers::Servers,
    session::{Caller, Session, TaskMode},
    sessions::Sessions,
};

/// How many checks may call one server at the same time.
const PER_SERVER: usize = 8;
/// How long an errand waits for servers that are starting for the first time.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long one of Nonet's own tools may run in an errand.
const OWN_LIMIT: Duration = Duration::from_secs(300);
/// No errand becomes a task midway: it already is one, or nobody waits for it.
const SOFT_DEADLINE: Duration = Duration::from_secs(30 * 24 * 3_600);
/// How far the clock may seem to go back, in milliseconds, before due times are corrected.
const SLACK_MS: u64 = 2_000;
/// How far the clock has to go back, in milliseconds, before schedules repeat due times of the past. They
/// have run at these times already, unless the clock was wrong.
pub(super) const FAR_BACK_MS: u64 = 7 * 24 * 3_600_000;
/// How long an errand pauses if its record cannot be read or written.
const REST: Duration = Duration::from_secs(60);
/// The longest interval of a watch, in milliseconds.
const LONGEST_MS: u64 = 3_600_000;
/// How many bytes of params an errand may keep.
pub(super) const MAX_PARAMS: usize = 64 << 10;
/// Values up to this size in bytes of JSON appear whole in an answer or a notice.
pub(super) const SMALL: usize = 2_000;
/// How much of a larger value is shown, in bytes.
const PREVIEW: usize = 500;

/// What an answer says where the gateway ends with its client.
const ENDS: &str = "This gateway ends with its client, and missed runs are made up for once when the next one starts. `shared = true` in [gateway] of servers.toml, or `nonet serve --http 127.0.0.1:8931`, keeps it running.";

type Key = (RecordKind, String, String);

#[derive(Debug, Default)]
pub(super) struct ErrandTable {
    in_flight: Arc<DashSet<Key>>,
    /// The sessions in this process that asked for errands, by the errand's owner and id.
    asked_by: DashMap<(String, String), Weak<Session>>,
    lanes: DashMap<Arc<str>, Arc<Semaphore>>,
    ends_with_client: AtomicBool,
    /// When this gateway checked for due errands for the first time, in milliseconds since 1970.
    began_ms: OnceLock<u64>,
    /// When the clock was last read, and what it showed.
    clock: Mutex<Option<(Instant, u64)>>,
}

/// Watches and schedules.
pub struct Errands {
    pub(crate) servers: Arc<Servers>,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) keeping: Arc<Keeping>,
    pub(crate) observing: Arc<Observing>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) apps: Arc<Apps>,
    /// Sends notices to people.
    pub(crate) outward: NoticeDelivery,
    /// Those in flight, and their sessions.
    pub(crate) table: ErrandTable,
    /// Set once due records are handled.
    pub(crate) keeps_time: OnceLock<()>,
}

/// An errand in flight, until dropped.
#[derive(Debug)]
struct Turn {
    in_flight: Arc<DashSet<Key>>,
    key: Key,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.in_flight.remove(&self.key);
    }
}

impl ErrandTable {
    /// Begins an errand; `None` if it is in flight already.
    fn begin(&self, record: &Record) -> Option<Turn> {
        let key = (record.kind, record.owner.clone(), record.id.clone());
        let in_flight = self.in_flight.clone();
        self.in_flight.insert(key.clone()).then_some(Turn { in_flight, key })
    }

    /// Records which session gets the notices of an errand.
    pub(super) fn asked_by(&self, owner: &str, id: &str, session: &Arc<Session>) {
        self.asked_by.retain(|_, session| session.strong_count() > 0);
        self.asked_by.insert((owner.into(), id.into()), Arc::downgrade(session));
    }

    /// Removes the session of a finished errand.
    pub(super) fn is_over(&self, owner: &str, id: &str) {
        self.asked_by.remove(&(owner.to_owned(), id.to_owned()));
    }

    /// Returns the session that asked for an errand, if it belongs to this process.
    fn session_of(&self, record: &Record) -> Option<Weak<Session>> {
        self.asked_by.get(&(record.owner.clone(), record.id.clone())).map(|session| session.clone())
    }

    /// Returns when this gateway checked for due errands for the first time. The first call sets that time to
    /// now.
    pub(super) fn began_ms(&self, now_ms: u64) -> u64 {
        *self.began_ms.get_or_init(|| now_ms)
    }

    fn lane(&self, server: &Arc<str>) -> Arc<Semaphore> {
        self.lanes.entry(server.clone()).or_insert_with(|| Arc::new(Semaphore::new(PER_SERVER))).clone()
    }

    /// Returns the latest time at which an errand may be due too late, if the clock went back since the last
    /// call. On the first call, it is unknown how far the clock went back.
    fn went_back(&self, now_ms: u64) -> Option<u64> {
        let now = Instant::now();
        let Some((then, then_ms)) = self.clock.lock().replace((now, now_ms)) else { return Some(u64::MAX) };
        let expected_ms = then_ms.saturating_add(millis(now - then));
        if expected_ms > now_ms.saturating_add(FAR_BACK_MS) {
            return Some(u64::MAX);
        }
        (expected_ms > now_ms.saturating_add(SLACK_MS))
            .then(|| expected_ms.saturating_add(LONGEST_MS + SLACK_MS))
    }
}

/// Why an errand could not continue.
#[derive(Debug, thiserror::Error)]
pub(super) enum ErrandError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("its record cannot be read")]
    Unreadable,
    #[error("{0}")]
    Full(#[from] QuotaExceeded),
}

/// The result of an errand's call.
#[derive(Debug)]
pub(super) struct ErrandResult {
    /// Always a `CallToolResult`.
    pub result: Value,
    /// Repairs made to its params.
    pub repaired: Vec<String>,
}

impl Errands {
    /// Records that this gateway ends with its client.
    pub fn ends_with_client(&self) {
        self.table.ends_with_client.store(true, Ordering::Relaxed);
    }

    /// Returns the note that the gateway ends with its client, if it does.
    pub(super) fn end_note(&self) -> Option<Cow<'static, str>> {
        self.table.ends_with_client.load(Ordering::Relaxed).then_some(ENDS.into())
    }

    /// Returns the kinds of errands that the configuration lets run.
    pub(super) fn errands_that_run(&self) -> Vec<RecordKind> {
        let settings = &self.servers.config().gateway;
        let kinds = [(RecordKind::Watch, settings.watchers), (RecordKind::Schedule, settings.scheduler)];
        kinds.into_iter().filter(|(_, runs)| *runs).map(|(kind, _)| kind).collect()
    }

    /// Whether this gateway has errands to run later.
    pub async fn has_errands(&self) -> bool {
        let agenda = self.keeping.records.agenda(&self.errands_that_run()).await;
        matches!(agenda, Ok(Some(agenda)) if agenda.next_due_ms.is_some())
    }

    /// Runs the due errands of these kinds, each in its own task.
    pub(super) async fn run_due(self: &Arc<Self>, kinds: &[RecordKind], next_due_ms: Option<u64>) {
        let now_ms = self.keeping.clock.unix_ms();
        if let Some(horizon_ms) = self.table.went_back(now_ms)
            && let Err(error) = self.pull_in(now_ms, horizon_ms).await
        {
            tracing::warn!(%error, "watches may be late: the clock went back");
        }
        if next_due_ms.is_none_or(|due| due > now_ms) {
            return;
        }
        let due = match self.keeping.records.due(now_ms, kinds).await {
            Ok(due) => due,
            Err(error) => return tracing::warn!(%error, "what is due cannot be read"),
        };
        for record in due {
            self.run_errand(record);
        }
    }

    fn run_errand(self: &Arc<Self>, record: Record) {
        let Some(turn) = self.table.begin(&record) else { return };
        let (errands, stop) = (self.clone(), self.servers.stopping().clone());
        self.servers.life.tasks.spawn(async move {
            let _turn = turn;
            let work = async {
                if let Err(why) = errands.run_in_turn(record).await {
                    tracing::warn!("an errand is paused: {why}");
                    // Keeps its turn, so that the errand does not restart at once.
                    tokio::time::sleep(REST).await;
                }
            };
            tokio::select! {
                () = work => {}
                () = stop.cancelled() => {}
            }
        });
    }

    /// Runs an errand if it is still due.
    async fn run_in_turn(self: &Arc<Self>, record: Record) -> Result<(), ErrandError> {
        // It may have run and been rescheduled before it got its turn.
        let now = self.keeping.records.get(record.kind, &record.owner, &record.id).await?;
        if now.is_none_or(|now| now.revision != record.revision) {
            return Ok(());
        }
        match record.kind {
            RecordKind::Watch => self.check_watch(record).await,
            RecordKind::Schedule => self.run_appointment(record).await,
            _ => Ok(()),
        }
    }

    /// Reschedules errands that are due too late. Checks everything due until `horizon_ms`.
    async fn pull_in(&self, now_ms: u64, horizon_ms: u64) -> Result<(), StoreError> {
        for record in self.keeping.records.due(horizon_ms, &[RecordKind::Watch, RecordKind::Schedule]).await?
        {
            match record.kind {
                RecordKind::Watch => self.pull_in_watch(record, now_ms).await?,
                RecordKind::Schedule => self.pull_in_schedule(record, now_ms).await?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Creates the caller for an errand of this owner. Policies and the profile apply as usual, but nobody
    /// can be asked.
    pub(super) async fn errand_caller(&self, owner: &str, client: &str) -> Caller {
        let owner = Owner::of(owner);
        let person = self.sessions.people.of(&owner).await;
        let limits = ClientLimits {
            soft_deadline: SOFT_DEADLINE,
            max_result_bytes: usize::MAX,
            ..self.servers.config().limits(client)
        };
        let account = Account::of_errands(owner.as_str(), self.servers.config().quotas(owner.profile()));
        Caller {
            session: Session::unattended(owner, person.clone()),
            account,
            person,
            // Due errands have their own limits.
            is_admitted: true,
            client: client.into(),
            // Results of errands are kept for their owner, as for a client of this machine.
            local: true,
            limits,
            unasked: true,
            as_task: TaskMode::Never,
            ..Caller::default()
        }
    }

    /// Resolves the tool of an errand. Waits for servers that are starting for the first time.
    pub(super) async fn errand_tool(&self, caller: &Caller, name: &str) -> Result<(Gate, Arc<Tool>), Fault> {
        let until = Instant::now() + START_LIMIT;
        loop {
            match self.calls.find_tool(caller, name).await {
                Err(fault)
                    if fault.code == FaultCode::ServerStarting
                        && Instant::now() < until
                        && !caller.cancel.is_cancelled() => {}
                found => return found,
            }
        }
    }

    /// Makes a call for which nobody waits. Waits for servers that are starting for the first time.
    pub(super) async fn errand_call(
        self: &Arc<Self>,
        caller: &Caller,
        name: &str,
        params: &Map<String, Value>,
    ) -> Result<ErrandResult, Fault> {
        let until = Instant::now() + START_LIMIT;
        loop {
            let (called, outcome) = self.try_errand_call(caller, name, params).await?;
            // A call to a server that is still starting was not made.
            let is_starting = outcome == FaultCode::ServerStarting.as_str();
            if !is_starting || Instant::now() >= until || caller.cancel.is_cancelled() {
                return Ok(called);
            }
        }
    }

    async fn try_errand_call(
        self: &Arc<Self>,
        caller: &Caller,
        name: &str,
        params: &Map<String, Value>,
    ) -> Result<(ErrandResult, &'static str), Fault> {
        let params = Value::Object(params.clone());
        let begun = self.observing.begin(caller, name, &params);
        let found = self.errand_tool(caller, name).await;
        let found = found.and_then(|(gate, tool)| unattended(&gate, &tool).map(|()| (gate, tool)));
        let found = Some(found.map_err(Unready::from));
        let asks = |asked: ApprovalRequest, _| ready(Err(nobody_to_ask(&asked).into())).boxed();
        let (in_flight, params) = (Some(&begun), CallParams::Literal(&params));
        let mut plan = CallPlan { begun: in_flight, name, found, params, select: None, asks: &asks };
        let turn = async |prepared: &PreparedCall| {
            let server = &prepared.tool.server;
            let lane = self.table.lane(server);
            let place = tokio::select! {
                slot = lane.acquire_owned() => slot.ok(),
                // The call itself reports its cancellation.
                () = caller.cancel.cancelled() => None,
            };
            Ok((place, (**server == *GATEWAY).then_some(OWN_LIMIT), caller.cancel.clone()))
        };
        let ended = Box::pin(self.calls.run(caller, &begun, &mut plan, turn)).await;
        let RecordedCall { made, repaired, .. } = ended.map_err(Fault::from)?;
        Ok((ErrandResult { result: made.result.into_tree().await, repaired }, made.outcome))
    }

    /// Reads the params of an errand's tool.
    pub(super) async fn prepare_errand(
        &self,
        caller: &Caller,
        found: (Gate, Arc<Tool>),
        params: Value,
    ) -> Result<PreparedCall, Fault> {
        match self.calls.prepare_tool(caller, found, params, None).await {
            Ok(prepared) => Ok(prepared),
            Err(PrepareError::Fault(fault)) => Err(*fault),
            Err(PrepareError::Asks(asked)) => Err(nobody_to_ask(&asked)),
        }
    }

    /// Refuses a tool that ends with the session, because later work cannot use it.
    pub(super) fn not_of_session(&self, caller: &Caller, name: &str) -> Result<(), Fault> {
        let gate = Gate::of(&self.publisher, &caller.session);
        match gate.tool(name) {
            Ok(tool) if tool.session.is_some() => Err(runtime_servers::ends_with_session(&tool)),
            _ => Ok(()),
        }
    }

    /// Notifies the session that asked for an errand, or else the next session of its owner. Returns when the
    /// notice is in the store. The notice replaces an undelivered notice with the same id.
    pub(super) async fn tell_of_errand(&self, record: &Record, id: &str, notice: Notice) {
        let session = self.table.session_of(record);
        self.sessions.mail.post_for_certain(id, &record.owner, session.as_ref(), notice.into()).await;
    }

    /// Shows a value in an answer or a notice: the whole value if it is small, else its beginning and a
    /// reference to `result`.
    pub(super) async fn shown_value(
        &self,
        caller: &Caller,
        value: &Value,
        result: &Value,
        is_whole: bool,
    ) -> ShownValue {
        let size = json_len(value);
        if size <= SMALL {
            return ShownValue { value: Some(value.clone()), ..ShownValue::default() };
        }
        let text = match value {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        let shown =
            ShownValue { bytes: Some(size), preview: Some(clip(&text, PREVIEW)), ..ShownValue::default() };
        let kept = if is_whole { result.clone() } else { text_result(text) };
        match self.keeping.kept.keep(&caller.owner(), Arc::new(kept)).await {
            Ok(kept) => {
                let lasts = kept.passing().map(Into::into);
                ShownValue { reference: Some(kept.reference), lasts, ..shown }
            }
            Err(error) => {
                tracing::warn!(%error, "a large result was not kept");
                shown
            }
        }
    }
}

/// Adapts the fault of a call that was to run later: the corrected call in the fault runs later too, by
/// `gateway.<tool>`, with the other params as `written`.
pub(super) fn for_later(mut fault: Fault, tool: &str, written: &Map<String, Value>) -> Fault {
    let later = |call: &Value| {
        let mut params = written.clone();
        // The call runs either a tool or an app, not both.
        let others = if call.get("app_id").is_some() { ["name", "params"] } else { ["app_id", "input"] };
        others.into_iter().for_each(|key| drop(params.shift_remove(key)));
        let given = ["name", "params", "app_id", "input"].into_iter();
        params.extend(given.filter_map(|key| Some((key.to_string(), call.get(key)?.clone()))));
        NextStep::own(tool, Value::Object(params))
    };
    if let Some(corrected) = fault.details.as_mut().and_then(|details| details.get_mut("corrected_call")) {
        *corrected = json!(later(&corrected["arguments"]));
    }
    if let Some(step) = fault.next_step.take() {
        let runs_an_app = step.tool == "call_app" && step.arguments.get("app_id").is_some();
        fault = fault.then(if runs_an_app { later(&step.arguments) } else { *step });
    }
    fault
}

/// Refuses a call that would ask the user. An errand is refused before.
fn nobody_to_ask(asked: &ApprovalRequest) -> Fault {
    needs_user(asked.approval.tool(), &asked.rule)
}

/// Refuses a tool that requires asking the user.
pub(super) fn unattended(gate: &Gate, tool: &Tool) -> Result<(), Fault> {
    match gate.verdict(tool) {
        PolicyVerdict::Approve(rule) => Err(Fault::new(
            FaultCode::NeedsApproval,
            format!(
                "`{}` runs only if the user agrees to each call ({rule}), and nobody can be asked when it runs by itself. Choose a tool without this rule, or ask the user to change it.",
                tool.full
            ),
        )
        .next("get_tool", json!({ "name": &*tool.full }))),
        _ => Ok(()),
    }
}

/// Refuses params that are too large to keep.
pub(super) fn bounded(what: &str, params: &Value) -> Result<(), Fault> {
    let size = json_len(params);
    if size <= MAX_PARAMS {
        return Ok(());
    }
    let message = format!("`{what}` has {size} bytes; the maximum for later runs is {MAX_PARAMS}.");
    Err(Fault::new(FaultCode::InvalidParams, message))
}

/// Builds the fault for a store that failed.
pub(super) fn not_kept(error: &StoreError) -> Fault {
    nonet_state::faults::of_store("Nothing was changed", error)
}

/// Returns the code and the message of an error result.
pub(super) fn failure(result: &Value) -> CheckError {
    let error = nonet_state::faults::error_of(result);
    let code = error["code"].as_str().unwrap_or("upstream_error").to_string();
    let message = error["message"].as_str().map_or_else(|| text_of_value(result), String::from);
    CheckError { code, message: clip(&message, PREVIEW) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_called_instead_names_a_tool_or_an_app() {
        let check = |written: Value, instead: Value, expected: Value| {
            let fault = Fault::new(FaultCode::InvalidParams, "The input does not fit.")
                .details(json!({ "corrected_call": { "tool": "any", "arguments": instead } }));
            let written = written.as_object().expect("it is an object");
            let fault = for_later(fault, "schedule", written);
            let details = fault.details.expect("it has a corrected call");
            assert_eq!(details["corrected_call"]["arguments"]["params"], expected);
        };
        let note = json!({ "app_id": "note", "input": { "title": "a" } });
        check(
            json!({ "when": "in 1h", "name": "apps.note", "params": {} }),
            note,
            json!({ "when": "in 1h", "app_id": "note", "input": { "title": "a" } }),
        );
        check(
            json!({ "when": "in 1h", "app_id": "files.read", "input": {} }),
            json!({ "name": "files.read", "params": { "path": "a" } }),
            json!({ "when": "in 1h", "name": "files.read", "params": { "path": "a" } }),
        );
    }
}
