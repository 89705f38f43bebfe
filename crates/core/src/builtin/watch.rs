//! `gateway.watch_*`: watches, which repeat a call and report changes.

use std::sync::Arc;

use futures::FutureExt;
use nonet_api::work::{CheckView, StoppedWatch, WatchHistory, WatchList, WatchState, WatchView};
use nonet_base::text::clip;
use nonet_parts::{
    timetable::{self, Zone},
    watches::Watch,
};
use nonet_store::Record;
use nonet_text::{aliases::Aliases, fault::Fault};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Access, OwnTool, read};
use crate::{
    Gateway,
    call::answer_of,
    errands::for_later,
    watching::{WatchStart, watch_call},
};
use nonet_state::session::Caller;

/// The aliases of a watch's id.
const ID: Aliases = Aliases(&[("watcher_id", &["id", "watchid", "watch", "watcher", "label"])]);

pub(super) const START: OwnTool = OwnTool {
    name: "watch_start",
    title: "Watch a tool's result",
    description: "Tells you when something changes, such as a file, a page, an issue or a status: calls a tool every interval seconds without you and adds a notice to a later answer. The first check is made at once, and its value is in the answer. notify_when: on_change (the value, or what `select` takes of it, is another one), on_error (the tool begins to fail, or works again), on_threshold (`notify_config.expression` becomes true), summary (every `notify_config.batch_size` checks), always. A tool that fails at the moment can be watched: on_error tells when it works again. Five failures in a row pause any other watch that has seen a value.",
    properties: || {
        json!({
            "name": { "type": "string", "description": "Tool to call" },
            "params": { "type": "object", "description": "Its params" },
            "interval": { "type": "integer", "minimum": 5, "maximum": 3600, "description": "Seconds from check to check, 30 if absent; `30s`, `5m` and `every two minutes` are read too" },
            "label": { "type": "string", "maxLength": 256, "description": "Name of the watch in notices" },
            "max_checks": { "type": "integer", "minimum": 0, "maximum": 10000, "description": "Checks until it finishes, 0 (the default) for no end" },
            "notify_when": { "type": "string", "enum": ["on_change", "on_error", "on_threshold", "summary", "always"], "description": "on_change if absent" },
            "notify_config": {
                "type": "object",
                "properties": {
                    "expression": { "type": "string", "maxLength": 2000, "description": "For on_threshold: jq filter over {result} such as `.result.count > 10`; told when it becomes true" },
                    "batch_size": { "type": "integer", "minimum": 1, "maximum": 1000, "description": "For summary: checks per notice, 10 if absent" },
                },
                "additionalProperties": false,
            },
            "select": { "type": "string", "maxLength": 2000, "description": "jq filter: what of the result is compared, such as `.items[].id`" },
        })
    },
    required: &["name"],
    access: Access::Reversible,
    aliases: Aliases(&[
        ("name", &["tool", "toolname"]),
        ("params", &["arguments", "args", "parameters", "input", "toolinput"]),
        ("interval", &["every", "seconds", "intervals", "intervalseconds"]),
        ("notify_when", &["notify", "when", "notifyon"]),
        ("notify_config", &["config", "notifyconfiguration"]),
        ("max_checks", &["checks", "maxruns"]),
        ("select", &["jq", "filter"]),
    ]),
    run: |gateway, caller, params| {
        async move {
            let written = params.clone();
            let started = gateway.errands.start_watch(caller, read(params)?).await;
            Ok(match started.map_err(|fault| for_later(fault, "watch_start", &written))? {
                WatchStart::Started(watch) => answer_of(&watch),
                WatchStart::Failed(result) => result,
            })
        }
        .boxed()
    },
};

pub(super) const STOP: OwnTool = OwnTool {
    name: "watch_stop",
    title: "Stop a watch",
    description: "Ends a watch and removes it with its history.",
    properties: id,
    required: &["watcher_id"],
    access: Access::Reversible,
    aliases: ID,
    run: |gateway, caller, params| {
        async move {
            let (record, watch) = gateway.errands.stop_watch(caller.owner().key(), &given(params)?).await?;
            let (watcher_id, tool, counts) = (record.id, watch.tool, watch.counts);
            Ok(answer_of(&StoppedWatch { watcher_id, state: WatchState::Stopped, tool, counts }))
        }
        .boxed()
    },
};

pub(super) const PAUSE: OwnTool = OwnTool {
    name: "watch_pause",
    title: "Pause a watch",
    description: "Makes no more checks of a watch until it is resumed.",
    properties: id,
    required: &["watcher_id"],
    access: Access::Reversible,
    aliases: ID,
    run: |gateway, caller, params| {
        async move {
            let (record, watch) = pause(gateway, caller.owner().key(), &given(params)?).await?;
            let next_step = (watch.state == WatchState::Paused).then(|| watch_call("resume", &record.id));
            Ok(answer_of(&WatchView { next_step, ..summary(&record, &watch) }))
        }
        .boxed()
    },
};

pub(super) const RESUME: OwnTool = OwnTool {
    name: "watch_resume",
    title: "Resume a watch",
    description: "Goes on with a watch that was paused, by you or by five failures in a row.",
    properties: id,
    required: &["watcher_id"],
    access: Access::Reversible,
    aliases: ID,
    run: |gateway, caller, params| async move { resumed(gateway, caller, &given(params)?).await }.boxed(),
};

pub(super) const STATUS: OwnTool = OwnTool {
    name: "watch_status",
    title: "State of a watch",
    description: "Shows one watch: its state, its next check, how many checks, changes and errors there were, the last value and the last error.",
    properties: id,
    required: &["watcher_id"],
    access: Access::ReadOnly,
    aliases: ID,
    run: |gateway, caller, params| {
        async move {
            let (record, watch) = gateway.errands.watch_of(caller.owner().key(), &given(params)?).await?;
            Ok(answer_of(&in_full(&record, &watch)))
        }
        .boxed()
    },
};

pub(super) const LIST: OwnTool = OwnTool {
    name: "watch_list",
    title: "List watches",
    description: "Lists all watches with their state, their next check and their counts.",
    properties: || json!({}),
    required: &[],
    access: Access::ReadOnly,
    aliases: Aliases::NONE,
    run: |gateway, caller, _| {
        async move {
            let all = gateway.errands.watches(caller.owner().key()).await?;
            let watches = all.iter().map(|(record, watch)| summary(record, watch)).collect();
            Ok(answer_of(&WatchList { watches, total: all.len() }))
        }
        .boxed()
    },
};

pub(super) const HISTORY: OwnTool = OwnTool {
    name: "watch_history",
    title: "Checks of a watch",
    description: "Shows the last checks of a watch, newest first: when, whether the value changed, the code of an error, how long the check took.",
    properties: || {
        json!({
            "watcher_id": { "type": "string", "description": "Watch, as watch_start gave it" },
            "last_n": { "type": "integer", "minimum": 1, "maximum": 100, "description": "How many checks, 10 if absent" },
        })
    },
    required: &["watcher_id"],
    access: Access::ReadOnly,
    aliases: Aliases(&[
        ("watcher_id", &["id", "watchid", "watch", "watcher", "label"]),
        ("last_n", &["last", "limit", "n", "count"]),
    ]),
    run: |gateway, caller, params| async move { history(gateway, caller, read(params)?).await }.boxed(),
};

/// Reads an interval in words. Returns the change.
pub(super) fn interval_in_seconds(params: &mut Map<String, Value>) -> Option<String> {
    let given = params.get("interval")?.as_str()?;
    let seconds = timetable::seconds(given)?;
    let change = format!("`interval` `{}` was taken as {seconds} seconds", clip(given, 40));
    params.insert("interval".into(), json!(seconds));
    Some(change)
}

#[derive(serde::Deserialize)]
struct HistoryArguments {
    watcher_id: String,
    last_n: Option<usize>,
}

fn id() -> Value {
    json!({ "watcher_id": { "type": "string", "description": "Watch, as watch_start gave it" } })
}

/// Returns the id of the watch from the params.
fn given(params: serde_json::Map<String, Value>) -> Result<String, Fault> {
    Ok(read::<HistoryArguments>(params)?.watcher_id.trim().to_string())
}

/// Stops the checks until the watch is resumed.
pub(crate) async fn pause(gateway: &Gateway, owner: &str, id: &str) -> Result<(Record, Watch), Fault> {
    let pause = |watch: &mut Watch, due: Option<u64>| {
        watch.pause();
        due.filter(|_| watch.state == WatchState::Active)
    };
    gateway.errands.change_watch(owner, id, pause).await
}

/// Continues the checks.
pub(crate) async fn resume(gateway: &Gateway, owner: &str, id: &str) -> Result<(Record, Watch), Fault> {
    let now_ms = gateway.keeping.clock.unix_ms();
    let resume = |watch: &mut Watch, due: Option<u64>| {
        if !watch.resume() {
            return due;
        }
        // Keeps the rhythm as if there had been no pause, unless that time has passed.
        let last = watch.history.back().map_or(now_ms, |check| check.at_ms);
        Some((last + watch.interval_s * 1_000).clamp(now_ms, now_ms + watch.interval_s * 1_000))
    };
    gateway.errands.change_watch(owner, id, resume).await
}

async fn resumed(gateway: &Gateway, caller: &Caller, id: &str) -> Result<Value, Fault> {
    let (record, watch) = resume(gateway, caller.owner().key(), id).await?;
    let (note, next_step) = (gateway.errands.end_note(), Some(watch_call("status", &record.id)));
    Ok(answer_of(&WatchView { note, next_step, ..summary(&record, &watch) }))
}

async fn history(
    gateway: &Arc<Gateway>,
    caller: &Caller,
    arguments: HistoryArguments,
) -> Result<Value, Fault> {
    let (record, watch) = gateway.errands.watch_of(caller.owner().key(), arguments.watcher_id.trim()).await?;
    let zone = Zone::machine();
    let last = watch.history.iter().rev().take(arguments.last_n.unwrap_or(10));
    let checks = last.map(|check| CheckView {
        at: zone.show(check.at_ms),
        success: check.error.is_none(),
        changed: check.changed,
        elapsed_ms: check.elapsed_ms,
        error: check.error.clone(),
    });
    let (checks, total) = (checks.collect(), watch.counts.checks);
    Ok(answer_of(&WatchHistory { watcher_id: record.id, checks, total }))
}

/// Describes a record for the list; `None` if it is not a watch.
pub(crate) fn in_list(record: &Record) -> Option<WatchView> {
    Some(summary(record, &Watch::deserialize(&record.body).ok()?))
}

/// Describes a watch for the list.
fn summary(record: &Record, watch: &Watch) -> WatchView {
    WatchView {
        watcher_id: record.id.clone(),
        label: watch.label.clone(),
        tool: watch.tool.clone(),
        state: watch.state,
        notify_when: watch.notify_when,
        interval: watch.interval_s,
        next_check_at: record.due_ms.map(|due| Zone::machine().show(due)),
        counts: watch.counts,
        error: watch.error.clone(),
        params: None,
        max_checks: 0,
        select: None,
        expression: None,
        last_value_at: None,
        last_value: None,
        note: None,
        next_step: None,
    }
}

/// Describes a watch for its status.
pub(crate) fn in_full(record: &Record, watch: &Watch) -> WatchView {
    let next = match watch.state {
        WatchState::Active => "history",
        WatchState::Paused => "resume",
        WatchState::Finished | WatchState::Stopped => "stop",
    };
    let too_large = || json!("too large to keep; call the tool itself");
    WatchView {
        params: Some(watch.params.clone()),
        max_checks: watch.max_checks,
        select: watch.select.clone(),
        expression: watch.expression.clone(),
        last_value_at: watch.last.as_ref().map(|last| Zone::machine().show(last.at_ms)),
        last_value: watch.last.as_ref().map(|last| last.value.clone().unwrap_or_else(too_large)),
        next_step: Some(watch_call(next, &record.id)),
        ..summary(record, watch)
    }
}
