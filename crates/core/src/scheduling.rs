//! Schedules and reminders: creates appointments, runs them when they are due, and reports the results.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use nonet_api::{
    notice::{Notice, ReminderNotice, RunNotice, RunOutcome},
    schedules::{CancelledSchedule, NewSchedule, RunView, ScheduleList, ScheduleSubject, ScheduleView},
    work::{TaskState, wait_call},
};
use nonet_base::text::{clip, hex};
use nonet_config::{AppKind, AppModel, Config, ModelApp, StepKind};
use nonet_parts::{
    jobs::{JobStart, Jobs},
    timetable::{TimeFault, Timetable, Zone},
};
use nonet_servers::catalog::{EntryKind, GATEWAY, Tool};
use nonet_store::{NewRecord, Record, RecordKind, RecordQuota, StoreError};
use nonet_text::{
    fault::{Fault, FaultCode, NextStep},
    name::{self, meta_tool},
    results::{is_error, json_len, value_of},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    apps::AppArguments,
    builtin::run_graph,
    errands::{ErrandError, FAR_BACK_MS, SMALL, bounded, failure, not_kept, unattended},
    interrupt::Interrupt,
};
use crate::{apps, errands::Errands, gate::Gate};
use nonet_state::session::Caller;

/// How many schedules and reminders one owner may have.
const MOST_SCHEDULES: usize = 100;
/// The minimum delay, in milliseconds, for `late_ms` in a notice although a gateway was running.
const LATE_MS: u64 = 5_000;
/// The maximum length of a reminder, in characters.
const MAX_MESSAGE: usize = 2_000;
/// What the notice of a run says that was repeated, or cut off.
const REPEATED: &str = "The gateway ended during this run, so the run was repeated.";
const CUT_OFF: &str = "The gateway ended during this run, so it is unknown whether the run took effect. It was not repeated, because not everything that it calls is read-only or idempotent. Check what it has done before you run it again.";
/// How long one wait for the end of a run lasts.
const WAIT: Duration = Duration::from_secs(3_600);

/// What is scheduled, and when.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ScheduleArguments {
    when: String,
    name: Option<String>,
    #[serde(default)]
    params: Map<String, Value>,
    app_id: Option<String>,
    #[serde(default)]
    input: Value,
    message: Option<String>,
    label: Option<String>,
    #[serde(default)]
    max_runs: u64,
    timezone: Option<String>,
}

/// Something to do later, once or repeatedly.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ScheduleEntry {
    /// The time as written.
    when: String,
    /// Whether `when` is a cron expression, or words for one.
    repeats: bool,
    /// The time zone; `None` for the machine's zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timezone: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    what: ScheduledWork,
    /// How often it runs; 0 for no limit.
    max_runs: u64,
    #[serde(default)]
    runs: u64,
    /// When it last ran, in milliseconds since 1970.
    #[serde(default)]
    kept_ms: u64,
    /// A started run whose result was not reported yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    begun: Option<RunRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<LastRun>,
}

/// The subject of an appointment.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ScheduledWork {
    Tool { name: String, params: Map<String, Value> },
    App { app_id: String, input: Value },
    Reminder { message: String },
}

/// A run, recorded before it begins: a gateway that takes over sees from its task whether it has ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RunRecord {
    task_id: String,
    /// Whether an earlier gateway started this run but ended before it did.
    #[serde(default)]
    again: bool,
    late_ms: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct LastRun {
    at_ms: u64,
    /// `None` if the run was cut off and not repeated, so that its outcome is unknown.
    success: Option<bool>,
    task_id: String,
}

impl ScheduleEntry {
    fn zone(&self) -> Zone {
        // The machine may no longer know the zone.
        Zone::of(self.timezone.as_deref()).unwrap_or_else(|_| Zone::machine())
    }

    /// Returns the next due time after `now_ms`, if the appointment runs again.
    fn next_ms(&self, now_ms: u64) -> Option<u64> {
        let goes_on = self.repeats && (self.max_runs == 0 || self.runs < self.max_runs);
        goes_on.then(|| Timetable::of_cron(&self.when)?.after(now_ms, &self.zone())).flatten()
    }

    /// Returns the subject for a notice or a list.
    fn subject(&self) -> ScheduleSubject {
        let label = self.label.clone();
        let subject = ScheduleSubject { label, ..ScheduleSubject::default() };
        match &self.what {
            ScheduledWork::Tool { name, .. } => ScheduleSubject { tool: Some(name.clone()), ..subject },
            ScheduledWork::App { app_id, .. } => ScheduleSubject { app_id: Some(app_id.clone()), ..subject },
            ScheduledWork::Reminder { message } => {
                ScheduleSubject { message: Some(message.clone()), ..subject }
            }
        }
    }
}

/// The params of `gateway.run_graph` for a schedule, and a note if another name stood for it.
type GraphToSchedule = (Map<String, Value>, Option<String>);

impl Errands {
    /// Schedules a call or an app.
    pub(super) async fn schedule(
        &self,
        caller: &Caller,
        mut arguments: ScheduleArguments,
    ) -> Result<NewSchedule, Fault> {
        let owner = caller.owner().key().to_string();
        let own = self.errand_caller(&owner, "schedule").await;
        let mut changes = Vec::new();
        // An app under its name, or called through the meta-tool, means the app itself.
        if let (Some(name), None) = (&arguments.name, &arguments.app_id) {
            let id = match meta_tool(name) {
                Some("call_app") => arguments.params.get("app_id").and_then(Value::as_str).map(String::from),
                _ => {
                    Some(name.trim().to_string()).filter(|name| self.servers.config().apps.contains_key(name))
                }
            };
            let meant = || {
                Gate::of(&self.publisher, &own.session)
                    .tool(name)
                    .ok()
                    .filter(|tool| tool.kind == EntryKind::App)
            };
            let is_by_name = id.is_none().then(meant).flatten();
            if let Some(app) = &is_by_name
                && !arguments.params.is_empty()
            {
                arguments.input = app.app_input(std::mem::take(&mut arguments.params));
            }
            let id = id.or_else(|| is_by_name.map(|app| app.name.to_string()));
            if let Some(id) = id {
                if meta_tool(name) == Some("call_app") {
                    arguments.input = arguments.params.get("input").cloned().unwrap_or_default();
                    arguments.params.clear();
                }
                changes.push(format!("`{}` was taken as the app `{}`", clip(name, 100), clip(&id, 100)));
                (arguments.name, arguments.app_id) = (None, Some(id));
            }
        }
        if let (Some(name), None) = (&arguments.name, &arguments.app_id)
            && let Some((mut graph, note)) = self.graph_to_schedule(caller, name, &arguments.params)?
        {
            if !arguments.input.is_null() {
                graph.insert("input".into(), std::mem::take(&mut arguments.input));
            }
            (arguments.name, arguments.params) = (Some(name::full_name(GATEWAY, "run_graph")), graph);
            changes.extend(note);
        }
        // An app takes its values as its input, a tool as its params.
        if arguments.app_id.is_some() && arguments.input.is_null() && !arguments.params.is_empty() {
            arguments.input = Value::Object(std::mem::take(&mut arguments.params));
            changes.push("`params` was taken as `input`".into());
        }
        if arguments.name.is_some()
            && arguments.params.is_empty()
            && let Value::Object(input) = &mut arguments.input
        {
            arguments.params = std::mem::take(input);
            changes.push("`input` was taken as `params`".into());
        }
        let (what, repaired) = match (&arguments.name, &arguments.app_id) {
            (Some(name), None) => {
                self.not_of_session(caller, name)?;
                self.scheduled_tool(&own, name, &arguments.params).await?
            }
            (None, Some(id)) => {
                let id = apps::own_id(&self.servers.config(), id);
                (self.scheduled_app(&own, &id, &arguments.input).await?, Vec::new())
            }
            _ => {
                let message = "Give either `name` and `params` for a tool, or `app_id` and `input` for an app; gateway.remind leaves a message.";
                return Err(Fault::new(FaultCode::InvalidParams, message));
            }
        };
        changes.extend(repaired);
        Ok(NewSchedule { repaired: changes, ..self.appoint(caller, what, arguments).await? })
    }

    /// Creates a reminder.
    pub(super) async fn remind(
        &self,
        caller: &Caller,
        mut arguments: ScheduleArguments,
    ) -> Result<NewSchedule, Fault> {
        let message = arguments.message.take().unwrap_or_default();
        let length = message.chars().count();
        if message.trim().is_empty() || length > MAX_MESSAGE {
            let message = format!("`message` has {length} characters; give 1 to {MAX_MESSAGE}.");
            return Err(Fault::new(FaultCode::InvalidParams, message));
        }
        self.appoint(caller, ScheduledWork::Reminder { message }, arguments).await
    }

    /// Checks that a tool may run unattended with these params. Returns the tool and the repairs to its
    /// params.
    async fn scheduled_tool(
        &self,
        own: &Caller,
        name: &str,
        params: &Map<String, Value>,
    ) -> Result<(ScheduledWork, Vec<String>), Fault> {
        let written = Value::Object(params.clone());
        bounded("params", &written)?;
        let (gate, tool) = self.errand_tool(own, name).await?;
        unattended(&gate, &tool)?;
        if tool.kind == EntryKind::Skill {
            let message = format!(
                "`{}` is text for a model to follow, and no model reads it at that time. Schedule the tools that it names, or gateway.remind to use it.",
                tool.full
            );
            return Err(Fault::new(FaultCode::InvalidParams, message));
        }
        if &*tool.full == "gateway.background_run" {
            let message =
                "A scheduled run is in the background anyway: schedule the tool itself, with its params.";
            return Err(Fault::new(FaultCode::InvalidParams, message));
        }
        if run_graph::is_graph(&tool) {
            self.scheduled_graph(own, params).await?;
        }
        let full = tool.full.to_string();
        let prepared = self.prepare_errand(own, (gate, tool), written).await?;
        Ok((ScheduledWork::Tool { name: full, params: params.clone() }, prepared.repaired))
    }

    /// Returns the params of `gateway.run_graph` if a name means a graph: that tool, `run_parallel`, or the
    /// name of a graph that the session keeps. A schedule outlives the session, so the actions go with it.
    fn graph_to_schedule(
        &self,
        caller: &Caller,
        name: &str,
        params: &Map<String, Value>,
    ) -> Result<Option<GraphToSchedule>, Fault> {
        let (mut params, tool) = (params.clone(), Gate::of(&self.publisher, &caller.session).tool(name));
        let note = || Some(format!("`{}` was taken as a graph for `gateway.run_graph`", clip(name, 100)));
        if tool.as_ref().is_ok_and(|tool| run_graph::is_graph(tool)) {
            let kept = params.shift_remove("name");
            return Ok(Some((
                run_graph::kept_graph(caller, kept.as_ref().and_then(Value::as_str), params)?,
                None,
            )));
        }
        if meta_tool(name) == Some("run_parallel") {
            return Ok(Some((params, note())));
        }
        match tool.is_err() && caller.session.graph(name.trim()).is_some() {
            true => Ok(Some((run_graph::kept_graph(caller, Some(name), params)?, note()))),
            false => Ok(None),
        }
    }

    /// Checks that the tools of a graph may run unattended.
    async fn scheduled_graph(&self, own: &Caller, params: &Map<String, Value>) -> Result<(), Fault> {
        let graph = run_graph::graph_of(params.clone())?;
        let tools: BTreeSet<String> = graph.actions.iter().map(|action| action.name.clone()).collect();
        self.apps.check_graph(own, graph).await?;
        for name in tools.iter().filter(|name| !name.is_empty()) {
            self.not_of_session(own, name)?;
            let (gate, tool) = self.errand_tool(own, name).await?;
            unattended(&gate, &tool)?;
        }
        Ok(())
    }

    /// Checks that an app's tools may run unattended and that the input fits.
    async fn scheduled_app(&self, own: &Caller, id: &str, input: &Value) -> Result<ScheduledWork, Fault> {
        bounded("input", input)?;
        let config = self.servers.config();
        let Some(app) = config.apps.get(id) else {
            return Err(apps::unknown_app(&config, id, input.clone()));
        };
        if let Some(schema) = &app.input_schema {
            apps::read_input(own, id, schema, input.clone())?;
        }
        let mut tools = BTreeSet::new();
        tools_of(&config, id, &mut BTreeSet::new(), &mut tools)?;
        for name in tools {
            let (gate, tool): (_, Arc<Tool>) = self.errand_tool(own, name).await?;
            unattended(&gate, &tool)?;
        }
        Ok(ScheduledWork::App { app_id: id.into(), input: input.clone() })
    }

    /// Stores an appointment. Overwrites an appointment with the same label.
    async fn appoint(
        &self,
        caller: &Caller,
        what: ScheduledWork,
        arguments: ScheduleArguments,
    ) -> Result<NewSchedule, Fault> {
        let ScheduleArguments { when, label, max_runs, timezone, .. } = arguments;
        let unreadable =
            |fault: TimeFault| Fault::new(FaultCode::InvalidParams, fault.message).suggest(fault.near);
        let zone = Zone::of(timezone.as_deref()).map_err(unreadable)?;
        let now_ms = self.keeping.clock.unix_ms();
        let timetable = Timetable::read(&when, &zone, now_ms).map_err(unreadable)?;
        let due_ms = timetable.after(now_ms, &zone);
        let owner = caller.owner().key().to_string();
        let label = label.map(|label| label.trim().to_string()).filter(|label| !label.is_empty());
        // A label always gets the same id, so that gateways overwrite each other's appointments with that
        // label.
        let id = match &label {
            Some(label) => format!("schedule-{}", hex(&Sha256::digest(label)[..6])),
            None => format!("schedule-{}", &uuid::Uuid::new_v4().simple().to_string()[..12]),
        };
        let repeats = matches!(timetable, Timetable::Cron(_));
        let (when, timezone) = (when.trim().to_string(), timezone.and(zone.name().map(String::from)));
        let appointment = ScheduleEntry {
            when,
            repeats,
            timezone,
            label,
            what,
            max_runs,
            runs: 0,
            kept_ms: 0,
            begun: None,
            last: None,
        };
        let kind = RecordKind::Schedule;
        let before = self.keeping.records.get(kind, &owner, &id).await.map_err(|error| not_kept(&error))?;
        let record = NewRecord {
            owner: owner.clone(),
            id: id.clone(),
            due_ms,
            of_config: !matches!(appointment.what, ScheduledWork::Reminder { .. }),
            ..NewRecord::new(kind, json!(appointment))
        };
        let put = self.keeping.records.put(record, RecordQuota::Refuse(MOST_SCHEDULES)).await;
        if put.map_err(|error| not_kept(&error))?.is_none() {
            let message = format!(
                "There are already {MOST_SCHEDULES} schedules and reminders, which is the maximum. Cancel one with gateway.cancel_schedule."
            );
            return Err(Fault::new(FaultCode::RateLimited, message).then(schedule_list()));
        }
        self.table.asked_by(&owner, &id, &caller.session);
        Ok(NewSchedule {
            job_id: id,
            next_run: due_ms.map(|due| zone.show(due)),
            subject: appointment.subject(),
            timezone: zone.name().map(String::from),
            overwritten: before.is_some(),
            note: self.end_note(),
            next_step: schedule_list(),
            repaired: Vec::new(),
        })
    }

    /// Returns all schedules and reminders of an owner.
    pub(super) async fn schedules(&self, owner: &str) -> Result<ScheduleList, Fault> {
        let all =
            self.keeping.records.all(RecordKind::Schedule, owner).await.map_err(|error| not_kept(&error))?;
        let schedules: Vec<ScheduleView> = all.iter().filter_map(schedule_in_list).collect();
        Ok(ScheduleList { total: schedules.len(), schedules })
    }

    /// Cancels a schedule or a reminder by its id or its label. A run in progress continues.
    pub(super) async fn cancel_schedule(&self, owner: &str, id: &str) -> Result<CancelledSchedule, Fault> {
        let kind = RecordKind::Schedule;
        let mut taken = self.keeping.records.take(kind, owner, id).await.map_err(|error| not_kept(&error))?;
        if taken.is_none() {
            let all = self.keeping.records.all(kind, owner).await.map_err(|error| not_kept(&error))?;
            let has_label = |record: &&Record| record.body["label"] == id;
            if let Some(record) = all.iter().find(has_label) {
                taken = self
                    .keeping
                    .records
                    .take(kind, owner, &record.id)
                    .await
                    .map_err(|error| not_kept(&error))?;
            }
        }
        let Some(record) = taken else {
            let message =
                format!("There is no schedule `{}`: the id is wrong, or it has ended.", clip(id, 100));
            return Err(Fault::new(FaultCode::NotFound, message).then(schedule_list()));
        };
        self.table.is_over(owner, &record.id);
        let appointment = read(&record);
        let subject = appointment.as_ref().map(ScheduleEntry::subject).unwrap_or_default();
        let running = appointment.and_then(|appointment| appointment.begun).map(|run| run.task_id);
        Ok(CancelledSchedule {
            job_id: record.id,
            state: "cancelled".into(),
            subject,
            next_step: running.as_deref().map(wait_call),
            running,
        })
    }

    /// Runs a due appointment.
    pub(super) async fn run_appointment(self: &Arc<Self>, record: Record) -> Result<(), ErrandError> {
        let appointment = read(&record).ok_or(ErrandError::Unreadable)?;
        match &appointment.what {
            ScheduledWork::Reminder { .. } => Ok(self.tell_reminder(&record, &appointment).await?),
            _ => self.run_scheduled(record, appointment).await,
        }
    }

    /// Reschedules a schedule that is due too late, because it was set while the clock was far ahead.
    pub(super) async fn pull_in_schedule(&self, record: Record, now_ms: u64) -> Result<(), StoreError> {
        let Some(appointment) = read(&record).filter(|appointment| appointment.begun.is_none()) else {
            return Ok(());
        };
        if record.put_ms.max(appointment.kept_ms) <= now_ms.saturating_add(FAR_BACK_MS) {
            return Ok(());
        }
        match appointment.next_ms(now_ms).filter(|next_ms| record.due_ms.is_some_and(|due| *next_ms < due)) {
            Some(next_ms) => {
                self.keeping.records.change(Record { due_ms: Some(next_ms), ..record }).await.map(drop)
            }
            None => Ok(()),
        }
    }

    async fn tell_reminder(&self, record: &Record, appointment: &ScheduleEntry) -> Result<(), StoreError> {
        let (now_ms, due_ms) = (self.keeping.clock.unix_ms(), record.due_ms.unwrap_or_default());
        let kept = ScheduleEntry { runs: appointment.runs + 1, kept_ms: now_ms, ..appointment.clone() };
        let next_ms = kept.next_ms(now_ms.max(due_ms));
        let notice = Notice::Reminder(Box::new(ReminderNotice {
            subject: appointment.subject(),
            due: appointment.zone().show(due_ms),
            late_ms: self.lateness(due_ms, now_ms),
            next_run: next_ms.map(|next| kept.zone().show(next)),
        }));
        self.tell_of_errand(record, &format!("{}-{due_ms}", record.id), notice).await;
        self.put_off(record.clone(), &kept, next_ms).await.map(drop)
    }

    /// Returns the lateness in milliseconds; 0 if it is too small to report. Work that was due before this
    /// gateway first checked was missed, so its lateness always counts.
    fn lateness(&self, due_ms: u64, now_ms: u64) -> u64 {
        let late_ms = now_ms.saturating_sub(due_ms);
        if late_ms >= LATE_MS || due_ms < self.table.began_ms(now_ms) { late_ms } else { 0 }
    }

    /// Runs scheduled work as a task. A run that ended under an earlier gateway is only reported; a run that
    /// was cut off is repeated only where a second run does no harm.
    async fn run_scheduled(
        self: &Arc<Self>,
        mut record: Record,
        mut appointment: ScheduleEntry,
    ) -> Result<(), ErrandError> {
        let caller = self.errand_caller(&record.owner, "schedule").await;
        let mut again = false;
        if let Some(run) = &appointment.begun {
            match self.keeping.jobs.find(&run.task_id, &caller.owner()).await?.map(|task| task.state) {
                Some(TaskState::Completed | TaskState::Failed | TaskState::Cancelled) => {
                    return Ok(self.ended_run(&caller, &record, appointment).await?);
                }
                // Another gateway is still running it.
                Some(TaskState::Running) => return Ok(()),
                Some(TaskState::Lost) | None if self.is_repeatable(&caller, &appointment.what).await => {
                    again = true
                }
                Some(TaskState::Lost) | None => {
                    return Ok(self.cut_off_run(&caller, &record, appointment).await?);
                }
            }
        }
        self.keeping.jobs.has_room()?;
        let now_ms = self.keeping.clock.unix_ms();
        let late_ms = self.lateness(record.due_ms.unwrap_or(now_ms), now_ms);
        let run = RunRecord { task_id: Jobs::new_id(), again, late_ms };
        appointment.begun = Some(run.clone());
        record.body = json!(appointment);
        if !self.keeping.records.change(record.clone()).await? {
            // Cancelled or overwritten: the next check sees the new state.
            return Ok(());
        }
        record.revision += 1;
        self.as_task(&caller, &run.task_id, &appointment).await;
        Ok(self.ended_run(&caller, &record, appointment).await?)
    }

    /// Runs the work as a task with this handle, and waits for its end.
    async fn as_task(self: &Arc<Self>, caller: &Caller, task_id: &str, appointment: &ScheduleEntry) {
        let cancel = CancellationToken::new();
        let own = Caller { cancel: cancel.clone(), ..caller.clone() };
        let (errands, what) = (self.clone(), appointment.what.clone());
        let label = match &what {
            ScheduledWork::Tool { name, .. } => name.clone(),
            ScheduledWork::App { app_id, .. } => format!("app {app_id}"),
            ScheduledWork::Reminder { .. } => String::new(),
        };
        let running = tokio::spawn(async move { errands.scheduled_call(&own, what).await.into() });
        let progress = Arc::new(|| None);
        let (owner, began) = (caller.owner(), Instant::now());
        let start = JobStart { label, owner, began, cancel, progress, place: None };
        let job = self.keeping.jobs.adopt_as(task_id.into(), start, running, |_| ());
        while job.wait(WAIT).await.is_none() {}
    }

    /// Does the work of a schedule. Returns the result.
    pub(super) async fn scheduled_call(self: &Arc<Self>, caller: &Caller, what: ScheduledWork) -> Value {
        let ended = match what {
            ScheduledWork::Tool { name, params } => {
                let called = self.errand_call(caller, &name, &params).await;
                called.map(|called| called.result).map_err(Interrupt::from)
            }
            ScheduledWork::App { app_id, input } => {
                self.apps.run_app(caller, AppArguments::new(app_id, input)).await
            }
            ScheduledWork::Reminder { .. } => Ok(Value::Null),
        };
        match ended {
            Ok(result) => result,
            Err(Interrupt::Fault(fault)) => fault.to_result(),
            Err(Interrupt::Task(_) | Interrupt::Refused(_)) => {
                Fault::new(FaultCode::Internal, "The run was not made; make it with execute_tool.")
                    .to_result()
            }
        }
    }

    /// Whether a second run does no harm: every tool that it calls is read-only or idempotent.
    async fn is_repeatable(&self, caller: &Caller, what: &ScheduledWork) -> bool {
        let config = self.servers.config();
        let (mut apps, mut tools) = (BTreeSet::new(), BTreeSet::new());
        match what {
            ScheduledWork::Tool { name, .. } => drop(tools.insert(name.as_str())),
            ScheduledWork::App { app_id, .. } => {
                // Nobody knows what a model or a script will call.
                let is_open = |id: &&str| {
                    let kind = config.apps.get(*id).map(|app| &app.kind);
                    kind.is_none_or(|kind| matches!(kind, AppKind::Model(_) | AppKind::Script { .. }))
                };
                if tools_of(&config, app_id, &mut apps, &mut tools).is_err()
                    || !config.apps.contains_key(app_id)
                    || apps.iter().any(is_open)
                {
                    return false;
                }
            }
            ScheduledWork::Reminder { .. } => {}
        }
        for name in tools {
            if !self.errand_tool(caller, name).await.is_ok_and(|(_, tool)| tool.is_repeatable()) {
                return false;
            }
        }
        true
    }

    /// Reports the result of a run, and moves the appointment to its next due time.
    async fn ended_run(
        &self,
        caller: &Caller,
        record: &Record,
        appointment: ScheduleEntry,
    ) -> Result<(), StoreError> {
        let Some(run) = appointment.begun.clone() else { return Ok(()) };
        let result = self.keeping.kept.of_task(&caller.owner(), &run.task_id, usize::MAX).await;
        let result = result.unwrap_or_else(|fault| fault.to_result());
        let success = !is_error(&result);
        let told = RunOutcome {
            success: Some(success),
            result: success.then(|| value_of(&result)).filter(|value| json_len(value) <= SMALL),
            error: (!success).then(|| failure(&result)),
            again: run.again,
            message: run.again.then_some(REPEATED.into()),
            ..RunOutcome::default()
        };
        self.close_run(record, appointment, told, wait_call(&run.task_id)).await
    }

    /// Reports a run that was cut off and is not repeated, with what it was to do.
    async fn cut_off_run(
        &self,
        caller: &Caller,
        record: &Record,
        appointment: ScheduleEntry,
    ) -> Result<(), StoreError> {
        let (outcome, message) = (Some("unknown".into()), Some(CUT_OFF.into()));
        let mut told = RunOutcome { outcome, message, ..RunOutcome::default() };
        let mut next = schedule_list();
        match &appointment.what {
            ScheduledWork::Tool { name, params } => {
                told.params = Some(params.clone()).filter(|params| json_len(&json!(params)) <= SMALL);
                if let Ok((_, tool)) = self.errand_tool(caller, name).await {
                    next = NextStep::new("browse_category", json!({ "category": &*tool.server }));
                }
            }
            ScheduledWork::App { input, .. } => {
                told.input = Some(input.clone()).filter(|input| json_len(input) <= SMALL);
            }
            ScheduledWork::Reminder { .. } => {}
        }
        self.close_run(record, appointment, told, next).await
    }

    /// Sends the notice of a run, and moves the appointment to its next due time.
    async fn close_run(
        &self,
        record: &Record,
        appointment: ScheduleEntry,
        outcome: RunOutcome,
        next_step: NextStep,
    ) -> Result<(), StoreError> {
        let Some(run) = appointment.begun.clone() else { return Ok(()) };
        let now_ms = self.keeping.clock.unix_ms();
        let last = Some(LastRun { at_ms: now_ms, success: outcome.success, task_id: run.task_id.clone() });
        let runs = appointment.runs + 1;
        let kept = ScheduleEntry { runs, kept_ms: now_ms, begun: None, last, ..appointment };
        let still_there = self.keeping.records.get(record.kind, &record.owner, &record.id).await?;
        let is_still_it = still_there.is_some_and(|there| there.revision == record.revision);
        // The clock may have gone back since, but the due run is done.
        let after_ms = now_ms.max(record.due_ms.unwrap_or_default());
        let next_ms = kept.next_ms(after_ms).filter(|_| is_still_it);
        let notice = Notice::ScheduledRun(Box::new(RunNotice {
            job_id: record.id.clone(),
            subject: kept.subject(),
            outcome,
            late_ms: run.late_ms,
            task_id: run.task_id.clone(),
            next_run: next_ms.map(|next| kept.zone().show(next)),
            next_step,
        }));
        self.tell_of_errand(record, &run.task_id, notice).await;
        self.put_off(record.clone(), &kept, next_ms).await.map(drop)
    }

    /// Stores the next due time of an appointment, or removes the appointment. Returns `false` if it was
    /// cancelled or overwritten meanwhile.
    async fn put_off(
        &self,
        record: Record,
        kept: &ScheduleEntry,
        next_ms: Option<u64>,
    ) -> Result<bool, StoreError> {
        match next_ms {
            Some(_) => {
                self.keeping.records.change(Record { body: json!(kept), due_ms: next_ms, ..record }).await
            }
            None => {
                let (owner, id) = (record.owner.clone(), record.id.clone());
                let is_removed = self.keeping.records.remove(record).await?;
                if is_removed {
                    self.table.is_over(&owner, &id);
                }
                Ok(is_removed)
            }
        }
    }
}

/// Returns the call that lists schedules and reminders.
fn schedule_list() -> NextStep {
    NextStep::own("schedule_list", json!({}))
}

/// Collects the tools that an app and its inner apps name. Tools of a model are refused individually when the
/// model calls them.
fn tools_of<'a>(
    config: &'a Config,
    id: &'a str,
    seen: &mut BTreeSet<&'a str>,
    tools: &mut BTreeSet<&'a str>,
) -> Result<(), Fault> {
    let Some(app) = config.apps.get(id).filter(|_| seen.insert(id)) else { return Ok(()) };
    match &app.kind {
        AppKind::Tool { tool } => drop(tools.insert(tool)),
        AppKind::Workflow { steps, .. } => {
            for step in steps {
                match &step.kind {
                    StepKind::Tool { tool, .. } => drop(tools.insert(tool)),
                    StepKind::App { app, .. } => tools_of(config, app, seen, tools)?,
                    // The run is parked until the user has answered.
                    StepKind::Ask(_) | StepKind::Filter(_) => {}
                }
            }
        }
        AppKind::Model(ModelApp { model: AppModel::Client(_), .. }) => {
            let message = format!(
                "The app `{id}` asks the model of the client that calls it, and there is no client when it runs by itself."
            );
            return Err(Fault::new(FaultCode::InvalidParams, message));
        }
        AppKind::Model(_) | AppKind::Script { .. } => {}
    }
    Ok(())
}

fn read(record: &Record) -> Option<ScheduleEntry> {
    let appointment = ScheduleEntry::deserialize(&record.body);
    appointment.inspect_err(|error| tracing::warn!(%error, id = record.id, "a schedule cannot be read")).ok()
}

/// Describes a record for the list; `None` if it is not a schedule.
pub(super) fn schedule_in_list(record: &Record) -> Option<ScheduleView> {
    Some(listed(record, &read(record)?))
}

/// Describes a schedule with its params, input or message.
pub(super) fn schedule_in_full(record: &Record) -> Option<ScheduleView> {
    let appointment = read(record)?;
    let shown = listed(record, &appointment);
    Some(match appointment.what {
        ScheduledWork::Tool { params, .. } => ScheduleView { params: Some(params), ..shown },
        ScheduledWork::App { input, .. } => ScheduleView { input: Some(input), ..shown },
        ScheduledWork::Reminder { .. } => shown,
    })
}

fn listed(record: &Record, appointment: &ScheduleEntry) -> ScheduleView {
    let zone = appointment.zone();
    let run = |last: &LastRun| RunView {
        at: zone.show(last.at_ms),
        success: last.success,
        outcome: last.success.is_none().then_some("unknown".into()),
        task_id: last.task_id.clone(),
    };
    ScheduleView {
        job_id: record.id.clone(),
        subject: appointment.subject(),
        when: appointment.when.clone(),
        timezone: zone.name().map(String::from),
        next_run: record.due_ms.map(|due| zone.show(due)),
        runs: appointment.runs,
        max_runs: appointment.max_runs,
        running: appointment.begun.as_ref().map(|run| run.task_id.clone()),
        last_run: appointment.last.as_ref().map(run),
        params: None,
        input: None,
    }
}
