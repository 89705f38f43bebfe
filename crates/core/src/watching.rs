//! Watches: starts them, makes their checks, and reports the findings.

use std::{sync::Arc, time::Instant};

use nonet_api::{
    notice::{Notice, NoticeReason, WatchNotice},
    work::{CheckError, NotifyWhen, ShownValue, StartedWatch, WatchState},
};
use nonet_base::{clock::millis, text::clip};
use nonet_config::{AppKind, select};
use nonet_parts::{
    jobs::JobOwner,
    timetable::Zone,
    watches::{SeenValue, Watch, WatchFinding, WatchNews},
};
use nonet_servers::catalog::{EntryKind, GATEWAY, Tool};
use nonet_store::{NewRecord, Record, RecordKind, RecordQuota, StoreError};
use nonet_text::{
    fault::{Fault, FaultCode, NextStep},
    results::{ResultValue, is_error, json_len, value_of},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::errands::{ErrandError, ErrandResult, SMALL, bounded, failure, not_kept, unattended};
use crate::{call::text_result, errands::Errands, gate::Gate, scheduling::ScheduledWork};
use nonet_state::{faults::wrong_filter, session::Caller};

/// How many watches one owner may have.
const MOST_WATCHES: usize = 100;
/// How often a change is retried after another gateway was faster.
const TRIES: usize = 20;
/// How many URIs are checked to find a resource that can be followed.
const MAX_URIS: usize = 20;

/// The arguments that start a watch.
#[derive(Debug, Deserialize)]
pub(super) struct WatchArguments {
    name: String,
    #[serde(default)]
    params: serde_json::Map<String, Value>,
    interval: Option<u64>,
    label: Option<String>,
    #[serde(default)]
    max_checks: u64,
    notify_when: Option<NotifyWhen>,
    #[serde(default)]
    notify_config: NotifyConfig,
    select: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct NotifyConfig {
    expression: Option<String>,
    batch_size: Option<u64>,
}

/// What an answer says if the first check failed.
const FAILS_NOW: &str = "The first check failed with this error. The watch goes on until the tool works; stop it if its params are wrong.";
/// The codes of faults that may pass: a watch can begin with one of them.
const PASSING: [FaultCode; 6] = [
    FaultCode::ServerStarting,
    FaultCode::ServerDown,
    FaultCode::AuthRequired,
    FaultCode::Timeout,
    FaultCode::RateLimited,
    FaultCode::UpstreamError,
];

impl WatchArguments {
    /// Returns the watch before its first check.
    fn into_watch(self) -> Result<Watch, Fault> {
        let NotifyConfig { expression, batch_size } = self.notify_config;
        let expression = select::given(expression);
        let told_by_expression =
            if expression.is_some() { NotifyWhen::OnThreshold } else { NotifyWhen::OnChange };
        let notify_when = self.notify_when.unwrap_or(told_by_expression);
        if notify_when == NotifyWhen::OnThreshold && expression.is_none() {
            let message = "`on_threshold` needs `notify_config.expression`: a jq filter over {result} that says when it is reached, such as `.result.count > 10`.";
            return Err(Fault::new(FaultCode::InvalidParams, message));
        }
        Ok(Watch {
            tool: self.name.trim().into(),
            params: self.params,
            label: self.label.filter(|label| !label.trim().is_empty()),
            interval_s: self.interval.unwrap_or(30),
            max_checks: self.max_checks,
            notify_when,
            select: select::given(self.select),
            expression: expression.filter(|_| notify_when == NotifyWhen::OnThreshold),
            batch_size: batch_size.unwrap_or(10),
            ..Watch::default()
        })
    }
}

/// What starting a watch answers.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum WatchStart {
    /// The watch.
    Started(Box<StartedWatch>),
    /// The result of its first check, which failed: there is no watch.
    Failed(Value),
}

/// The finding of a check, and its source.
struct CheckOutcome {
    finding: WatchFinding,
    /// The compared value, if there is one.
    value: Value,
    /// The result of the call.
    result: Value,
    /// Why the `select` probably does not find what it is for.
    note: Option<String>,
}

impl Errands {
    /// Starts a watch with its first check. A tool that fails at the moment can be watched; if its failure
    /// cannot pass, returns the failed result and starts no watch.
    pub(super) async fn start_watch(
        self: &Arc<Self>,
        caller: &Caller,
        arguments: WatchArguments,
    ) -> Result<WatchStart, Fault> {
        let mut watch = arguments.into_watch()?;
        bounded("params", &Value::Object(watch.params.clone()))?;
        for (whose, filter) in
            [("`select`", &watch.select), ("`notify_config.expression`", &watch.expression)]
        {
            if let Some(filter) = filter {
                let checked = select::check_all(vec![filter.clone()]).await;
                checked.map_err(|(_, error)| wrong_filter(whose, &error))?;
            }
        }
        let owner = caller.owner().key().to_string();
        self.room_for_watch(&owner).await?;
        let own = Caller { cancel: caller.cancel.clone(), ..self.errand_caller(&owner, "watch").await };
        self.not_of_session(caller, &watch.tool)?;
        let (at_ms, timer) = (self.keeping.clock.unix_ms(), Instant::now());
        let found = self.watched_tool(&own, &watch.tool).await;
        let called = match &found {
            Ok(tool) => {
                watch.tool = tool.full.to_string();
                self.watched_call(&own, &watch).await
            }
            Err(fault) => Err(fault.clone()),
        };
        let ErrandResult { result, repaired } = match called {
            Err(fault) if PASSING.contains(&fault.code) => {
                ErrandResult { result: fault.to_result(), repaired: Vec::new() }
            }
            called => called?,
        };
        let looked = self.finding(&own.owner(), &watch, result, at_ms).await;
        if let WatchFinding::Error(error) = &looked.finding {
            if !is_error(&looked.result) {
                return Err(not_readable(&error.message));
            }
            if !PASSING.iter().any(|code| code.as_str() == error.code) {
                return Ok(WatchStart::Failed(not_started(looked.result)));
            }
        }
        watch.take(looked.finding.clone(), at_ms, millis(timer.elapsed()));
        let (id, due_ms) = self.put_watch(caller, &watch, at_ms).await?;
        let note = looked.note.as_ref().map(|note| format!("`select`: {note}"));
        let resource = match &found {
            Ok(tool) => self.followable(&own, tool, &watch, &looked.result),
            Err(_) => None,
        };
        let fails_now = watch.error.as_ref().map(|_| FAILS_NOW.to_string());
        let hint = resource.as_ref().map(|uri| {
            format!(
                "The server itself reports changes of `{uri}`: a client that supports resource subscriptions gets them at once by resources/subscribe, without checks."
            )
        });
        let value = match &watch.error {
            Some(_) => ShownValue::default(),
            None => self.shown_value(&own, &looked.value, &looked.result, watch.select.is_none()).await,
        };
        Ok(WatchStart::Started(Box::new(StartedWatch {
            next_step: watch_call("status", &id),
            watcher_id: id,
            state: watch.state,
            next_check_at: due_ms.map(|due| Zone::machine().show(due)),
            tool: watch.tool,
            repaired: repaired.into_iter().chain(note).collect(),
            error: watch.error,
            value,
            is_met: watch.is_met,
            resource,
            hint: hint.or(fails_now),
            note: self.end_note(),
        })))
    }

    /// Stores a new watch. Returns its id, and when its next check is due.
    async fn put_watch(
        &self,
        caller: &Caller,
        watch: &Watch,
        at_ms: u64,
    ) -> Result<(String, Option<u64>), Fault> {
        let id = format!("watch-{}", &uuid::Uuid::new_v4().simple().to_string()[..12]);
        let due_ms =
            (watch.state == WatchState::Active).then(|| watch.next_ms(at_ms, self.keeping.clock.unix_ms()));
        let owner = caller.owner().key().to_string();
        let record = NewRecord {
            owner: owner.clone(),
            id: id.clone(),
            due_ms,
            of_config: true,
            ..NewRecord::new(RecordKind::Watch, json!(watch))
        };
        let put = self.keeping.records.put(record, RecordQuota::Refuse(MOST_WATCHES)).await;
        if put.map_err(|error| not_kept(&error))?.is_none() {
            return Err(too_many());
        }
        self.table.asked_by(&owner, &id, &caller.session);
        Ok((id, due_ms))
    }

    /// Whether this is an app with a script.
    fn is_script(&self, tool: &Tool) -> bool {
        let config = self.servers.config();
        let app = config.apps.get(&*tool.name).filter(|_| tool.kind == EntryKind::App);
        app.is_some_and(|app| matches!(app.kind, AppKind::Script { .. }))
    }

    /// Calls what a watch looks at. Of a script, the result is what it returns.
    async fn watched_call(self: &Arc<Self>, caller: &Caller, watch: &Watch) -> Result<ErrandResult, Fault> {
        let found = self.errand_tool(caller, &watch.tool).await;
        let Some((_, app)) = found.ok().filter(|(_, tool)| self.is_script(tool)) else {
            return self.errand_call(caller, &watch.tool, &watch.params).await;
        };
        let input = Value::Object(watch.params.clone());
        let what = ScheduledWork::App { app_id: app.name.to_string(), input };
        let result = self.scheduled_call(caller, what).await;
        let output = value_of(&result).get_mut("output").map(Value::take);
        let result = output.map_or(result, |output| text_result(output.to_string()));
        Ok(ErrandResult { result, repaired: Vec::new() })
    }

    /// Resolves a tool to watch, and checks that it may be watched.
    async fn watched_tool(&self, own: &Caller, name: &str) -> Result<Arc<Tool>, Fault> {
        let (gate, tool) = self.errand_tool(own, name).await?;
        unattended(&gate, &tool)?;
        if tool.kind != EntryKind::Tool && !self.is_script(&tool) {
            let message = format!(
                "`{}` cannot be watched: only a tool or a script can. Watch a tool that it calls; gateway.schedule runs an app at a time.",
                tool.full
            );
            return Err(Fault::new(FaultCode::InvalidParams, message)
                .next("get_tool", json!({ "name": &*tool.full })));
        }
        if &*tool.server == GATEWAY && !tool.read_only {
            let message =
                format!("`{}` cannot be watched: of Nonet's own tools, only read-only ones can.", tool.full);
            return Err(Fault::new(FaultCode::InvalidParams, message));
        }
        Ok(tool)
    }

    /// Makes room for one more watch by removing the oldest finished one, if necessary.
    async fn room_for_watch(&self, owner: &str) -> Result<(), Fault> {
        let all = self.watches(owner).await?;
        if all.len() < MOST_WATCHES {
            return Ok(());
        }
        let finished = all.into_iter().find(|(_, watch)| watch.state == WatchState::Finished);
        let (record, _) = finished.ok_or_else(too_many)?;
        self.keeping.records.remove(record).await.map(drop).map_err(|error| not_kept(&error))
    }

    /// Returns all watches of an owner, oldest first.
    pub(super) async fn watches(&self, owner: &str) -> Result<Vec<(Record, Watch)>, Fault> {
        let all =
            self.keeping.records.all(RecordKind::Watch, owner).await.map_err(|error| not_kept(&error))?;
        Ok(all
            .into_iter()
            .filter_map(|record| Some((read(&record)?, record)))
            .map(|(watch, record)| (record, watch))
            .collect())
    }

    /// Returns the watch with this id, or with this label if the label is unique.
    pub(super) async fn watch_of(&self, owner: &str, id: &str) -> Result<(Record, Watch), Fault> {
        let found =
            self.keeping.records.get(RecordKind::Watch, owner, id).await.map_err(|error| not_kept(&error))?;
        if let Some(record) = found
            && let Some(watch) = read(&record)
        {
            return Ok((record, watch));
        }
        let mut labelled =
            self.watches(owner).await?.into_iter().filter(|(_, watch)| watch.label.as_deref() == Some(id));
        match (labelled.next(), labelled.next()) {
            (Some(found), None) => Ok(found),
            _ => {
                let message = format!(
                    "There is no watch `{}`: the id is wrong, or the watch was stopped.",
                    clip(id, 100)
                );
                Err(Fault::new(FaultCode::NotFound, message).then(NextStep::own("watch_list", json!({}))))
            }
        }
    }

    /// Changes a watch and the time of its next check. If another gateway's change comes first, retries on
    /// top of that change.
    pub(super) async fn change_watch(
        &self,
        owner: &str,
        id: &str,
        mut change: impl FnMut(&mut Watch, Option<u64>) -> Option<u64>,
    ) -> Result<(Record, Watch), Fault> {
        for _ in 0..TRIES {
            let (mut record, mut watch) = self.watch_of(owner, id).await?;
            record.due_ms = change(&mut watch, record.due_ms);
            record.body = json!(watch);
            if self.keeping.records.change(record.clone()).await.map_err(|error| not_kept(&error))? {
                return Ok((record, watch));
            }
        }
        Err(Fault::new(FaultCode::Internal, format!("The watch `{id}` keeps changing; try again.")))
    }

    pub(super) async fn stop_watch(&self, owner: &str, id: &str) -> Result<(Record, Watch), Fault> {
        let (record, watch) = self.watch_of(owner, id).await?;
        let taken = self.keeping.records.take(RecordKind::Watch, owner, &record.id).await;
        let taken = taken.map_err(|error| not_kept(&error))?;
        self.table.is_over(owner, &record.id);
        let watch = taken.as_ref().and_then(read).unwrap_or(watch);
        Ok((record, watch))
    }

    /// Makes the due check.
    pub(super) async fn check_watch(self: &Arc<Self>, record: Record) -> Result<(), ErrandError> {
        let watch = read(&record).ok_or(ErrandError::Unreadable)?;
        if watch.state != WatchState::Active {
            // Nothing is due for it.
            self.keeping.records.change(Record { due_ms: None, ..record }).await?;
            return Ok(());
        }
        let caller = self.errand_caller(&record.owner, "watch").await;
        let (at_ms, timer) = (self.keeping.clock.unix_ms(), Instant::now());
        let looked = match self.watched_call(&caller, &watch).await {
            Ok(ErrandResult { result, .. }) => self.finding(&caller.owner(), &watch, result, at_ms).await,
            Err(fault) => self.finding(&caller.owner(), &watch, fault.to_result(), at_ms).await,
        };
        let elapsed_ms = millis(timer.elapsed());
        Ok(self.took_check(&caller, record, &looked, at_ms, elapsed_ms).await?)
    }

    /// Stores the finding of a check, and posts its news. A watch stopped meanwhile has no news; a watch
    /// paused meanwhile stays paused.
    async fn took_check(
        &self,
        caller: &Caller,
        due: Record,
        looked: &CheckOutcome,
        at_ms: u64,
        elapsed_ms: u64,
    ) -> Result<(), StoreError> {
        for _ in 0..TRIES {
            let Some(mut record) = self.keeping.records.get(RecordKind::Watch, &due.owner, &due.id).await?
            else {
                return Ok(());
            };
            let Some(mut watch) = read(&record) else { return Ok(()) };
            let news = watch.take(looked.finding.clone(), at_ms, elapsed_ms);
            let was_due = due.due_ms.unwrap_or(at_ms);
            record.due_ms = (watch.state == WatchState::Active)
                .then(|| watch.next_ms(was_due, self.keeping.clock.unix_ms()));
            record.body = json!(watch);
            // The notice comes first: if the gateway is killed in between, the notice is repeated rather than
            // lost.
            if let Some(news) = news {
                let notice = self.watch_notice(caller, &record.id, &watch, &news, looked).await;
                let id = format!("{}-{}", record.id, watch.counts.checks);
                self.tell_of_errand(&record, &id, notice).await;
            }
            if self.keeping.records.change(record).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn watch_notice(
        &self,
        caller: &Caller,
        id: &str,
        watch: &Watch,
        news: &WatchNews,
        looked: &CheckOutcome,
    ) -> Notice {
        let value = match &watch.error {
            Some(_) => ShownValue::default(),
            None => self.shown_value(caller, &looked.value, &looked.result, watch.select.is_none()).await,
        };
        let is_small = |before: &&Value| watch.error.is_none() && json_len(before) <= SMALL / 2;
        let next_step = match &value.reference {
            _ if watch.state == WatchState::Paused => watch_call("resume", id),
            Some(reference) => NextStep::own("fetch_result", json!({ "ref": reference })),
            None => watch_call("status", id),
        };
        Notice::Watch(Box::new(WatchNotice {
            watcher_id: id.into(),
            tool: watch.tool.clone(),
            why: news.why,
            label: watch.label.clone(),
            message: message(watch, news),
            error: watch.error.clone(),
            value,
            before: news.before.as_ref().filter(is_small).cloned(),
            checks: watch.counts.checks,
            summary: news.counts,
            state: Some(watch.state).filter(|state| *state != WatchState::Active),
            next_step,
        }))
    }

    /// Evaluates a result for a watch.
    async fn finding(&self, owner: &JobOwner, watch: &Watch, result: Value, at_ms: u64) -> CheckOutcome {
        let failed = |error: CheckError, result: Value| {
            let finding = WatchFinding::Error(error);
            CheckOutcome { finding, value: Value::Null, result, note: None }
        };
        let unfit = |message: String| CheckError { code: FaultCode::InvalidParams.as_str().into(), message };
        if is_error(&result) {
            return failed(failure(&result), result);
        }
        let mut note = None;
        let value = match &watch.select {
            None => value_of(&result),
            Some(filter) => match self.keeping.kept.select(owner, filter, ResultValue::of(&result)).await {
                Ok(selected) => {
                    note = selected.note;
                    selected.value
                }
                Err(error) => {
                    return failed(unfit(error.to_string()), result);
                }
            },
        };
        let is_met = match &watch.expression {
            None => false,
            Some(expression) => {
                match self.keeping.kept.holds(owner, expression, json!({ "result": value }).to_string()).await
                {
                    Ok(holds) => holds,
                    Err(error) => {
                        return failed(unfit(error.to_string()), result);
                    }
                }
            }
        };
        let seen = SeenValue::new(&value, json_len(&value) <= SMALL, at_ms);
        CheckOutcome { finding: WatchFinding::Value { seen, is_met }, value, result, note }
    }

    /// Reschedules a watch that is due later than its interval.
    pub(super) async fn pull_in_watch(&self, record: Record, now_ms: u64) -> Result<(), StoreError> {
        let nearer = read(&record).and_then(|watch| watch.pulled_in(record.due_ms?, now_ms));
        match nearer {
            // A change by another gateway or by a check sets its own time.
            Some(due_ms) => {
                self.keeping.records.change(Record { due_ms: Some(due_ms), ..record }).await.map(drop)
            }
            None => Ok(()),
        }
    }

    /// Returns the resource that a watch reads, if the server reports its changes.
    fn followable(&self, caller: &Caller, tool: &Tool, watch: &Watch, result: &Value) -> Option<String> {
        let blocks = result.get("content").and_then(Value::as_array).into_iter().flatten();
        let linked =
            blocks.filter_map(|block| block.get("uri").or_else(|| block.get("resource")?.get("uri")));
        let uris = watch.params.values().chain(linked).filter_map(Value::as_str);
        let follows = |uri: &&str| match self.calls.resource(caller, uri) {
            Ok((server, _)) => {
                let is_its = server == tool.server || &*tool.server == GATEWAY;
                let connection =
                    Gate::of(&self.publisher, &caller.session).connection_for(&self.servers, caller, &server);
                is_its && connection.is_some_and(|connection| connection.follows_resources())
            }
            Err(_) => false,
        };
        uris.filter(|uri| uri.contains(':')).take(MAX_URIS).find(follows).map(String::from)
    }
}

/// Returns a call of `gateway.watch_<what>`.
pub(super) fn watch_call(what: &str, id: &str) -> NextStep {
    NextStep::own(&format!("watch_{what}"), json!({ "watcher_id": id }))
}

fn read(record: &Record) -> Option<Watch> {
    let watch = Watch::deserialize(&record.body);
    watch.inspect_err(|error| tracing::warn!(%error, id = record.id, "a watch cannot be read")).ok()
}

fn too_many() -> Fault {
    let message = format!(
        "There are already {MOST_WATCHES} watches, which is the maximum. Stop one with gateway.watch_stop."
    );
    Fault::new(FaultCode::RateLimited, message).then(NextStep::own("watch_list", json!({})))
}

fn not_readable(why: &str) -> Fault {
    Fault::new(FaultCode::InvalidParams, format!("No watch was started: {why}."))
}

/// Adapts the result of a failed first check.
fn not_started(mut result: Value) -> Value {
    if let Some(content) = result.get_mut("content").and_then(Value::as_array_mut) {
        content.push(json!({ "type": "text", "text": "No watch was started, because its first check failed with this error." }));
    }
    result
}

/// Summarises a notice in one sentence.
fn message(watch: &Watch, news: &WatchNews) -> String {
    let tool = &watch.tool;
    match news.why {
        NoticeReason::Changed => format!("`{tool}` returns a different value than before."),
        NoticeReason::Failed => format!("`{tool}` began to fail at this check."),
        NoticeReason::Recovered => format!("`{tool}` works again."),
        NoticeReason::ThresholdReached => {
            format!(
                "`{}` has become true for the result of `{tool}`.",
                watch.expression.as_deref().unwrap_or_default()
            )
        }
        NoticeReason::Summary => {
            let counts = news.counts.unwrap_or_default();
            format!(
                "The last {} checks of `{tool}`: {} changes, {} errors.",
                counts.checks, counts.changes, counts.errors
            )
        }
        NoticeReason::Checked if news.changed => {
            format!("`{tool}` was checked, and returns a different value than before.")
        }
        NoticeReason::Checked => format!("`{tool}` was checked."),
        NoticeReason::Paused => {
            format!("`{tool}` failed {} times in a row, so the watch is paused.", watch.failures_in_a_row)
        }
        NoticeReason::Finished => format!(
            "`{tool}` was checked {} times, as requested; the watch has finished.",
            watch.counts.checks
        ),
    }
}
