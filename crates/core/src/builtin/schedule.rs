//! `gateway.schedule`, `schedule_list`, `cancel_schedule` and `remind`: calls and reminders for later.

use futures::FutureExt;
use nonet_text::aliases::Aliases;
use serde_json::{Value, json};

use super::{Access, OwnTool, read};
use crate::{call::answer_of, errands::for_later};

/// The aliases of `when`.
const WHEN: (&str, &[&str]) = ("when", &["at", "cron", "time", "date", "schedule", "runat", "remindat"]);
const TIMEZONE: (&str, &[&str]) = ("timezone", &["tz", "zone"]);

pub(super) const SCHEDULE: OwnTool = OwnTool {
    name: "schedule",
    title: "Schedule a call",
    description: "Runs a tool, an app or a graph of gateway.run_graph later or regularly, such as every weekday at 9: give `when`, and either name and params of a tool, app_id and input of an app, or the name of a kept graph. The result is a task, and a notice tells of each run. A schedule survives restarts; runs that were missed are made up for once. The same label overwrites.",
    properties: || {
        json!({
            "when": when(),
            "name": { "type": "string", "description": "Tool to call, or kept graph" },
            "params": { "type": "object", "description": "Its params" },
            "app_id": { "type": "string", "description": "App to run instead of a tool" },
            "input": { "description": "Its input" },
            "label": label(),
            "max_runs": { "type": "integer", "minimum": 0, "description": "Runs until it ends, 0 (the default) for no end" },
            "timezone": timezone(),
        })
    },
    required: &["when"],
    access: Access::Reversible,
    aliases: Aliases(&[
        WHEN,
        TIMEZONE,
        ("name", &["tool", "toolname"]),
        ("params", &["arguments", "args", "parameters"]),
        ("app_id", &["app", "appname"]),
        ("max_runs", &["runs", "times"]),
    ]),
    run: |gateway, caller, params| {
        async move {
            let written = params.clone();
            let scheduled = gateway.errands.schedule(caller, read(params)?).await;
            Ok(answer_of(&scheduled.map_err(|fault| for_later(fault, "schedule", &written))?))
        }
        .boxed()
    },
};

pub(super) const LIST: OwnTool = OwnTool {
    name: "schedule_list",
    title: "List schedules",
    description: "Lists schedules and reminders: what is to happen, when next, and how the last run ended.",
    properties: || json!({}),
    required: &[],
    access: Access::ReadOnly,
    aliases: Aliases::NONE,
    run: |gateway, caller, _| {
        async move { Ok(answer_of(&gateway.errands.schedules(caller.owner().key()).await?)) }.boxed()
    },
};

pub(super) const CANCEL: OwnTool = OwnTool {
    name: "cancel_schedule",
    title: "Cancel a schedule",
    description: "Removes a schedule or a reminder by its job_id. A run that has begun goes on.",
    properties: || json!({ "job_id": { "type": "string", "description": "Schedule, as schedule or remind gave it" } }),
    required: &["job_id"],
    access: Access::Reversible,
    aliases: Aliases(&[("job_id", &["id", "job", "schedule", "scheduleid", "label"])]),
    run: |gateway, caller, params| {
        async move {
            let arguments: CancelArguments = read(params)?;
            Ok(answer_of(
                &gateway.errands.cancel_schedule(caller.owner().key(), arguments.job_id.trim()).await?,
            ))
        }
        .boxed()
    },
};

pub(super) const REMIND: OwnTool = OwnTool {
    name: "remind",
    title: "Set a reminder",
    description: "Reminds of something later or regularly, such as tomorrow: the message comes back as a notice with the first answer after that time.",
    properties: || {
        json!({
            "when": when(),
            "message": { "type": "string", "minLength": 1, "maxLength": 2000, "description": "What to be reminded of" },
            "label": label(),
            "timezone": timezone(),
        })
    },
    required: &["when", "message"],
    access: Access::Reversible,
    aliases: Aliases(&[WHEN, TIMEZONE, ("message", &["text", "content", "note", "what", "reminder"])]),
    run: |gateway, caller, params| {
        async move { Ok(answer_of(&gateway.errands.remind(caller, read(params)?).await?)) }.boxed()
    },
};

#[derive(serde::Deserialize)]
struct CancelArguments {
    job_id: String,
}

fn when() -> Value {
    json!({ "type": "string", "description": "`in 5m`, `tomorrow at 9`, `friday at 17:30`; `every weekday at 9`, `every 15 minutes`; ISO 8601 such as 2027-03-01T09:00; or five fields of cron such as `0 9 * * 1-5` (0 = Sunday)" })
}

fn label() -> Value {
    json!({ "type": "string", "maxLength": 256, "description": "Name in notices; the same label overwrites" })
}

fn timezone() -> Value {
    json!({ "type": "string", "description": "IANA name such as Europe/Berlin, the machine's zone if absent" })
}
