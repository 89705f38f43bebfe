//! `gateway.save_script`: a script that worked becomes an app.

use std::{path::PathBuf, sync::Arc};

use futures::FutureExt;
use nonet_base::files;
use nonet_hosts::{self as hosts, FileChange, HostFault, Machine};
use nonet_schema::Schema;
use nonet_state::session::Caller;
use nonet_text::{
    aliases::Aliases,
    fault::{Fault, FaultCode, NextStep},
    results::value_of,
};
use serde_json::{Map, Value, json};

use super::{Access, OwnTool, read};
use crate::{Gateway, call::text_result};

/// The folder of saved scripts, beside servers.toml.
const FOLDER: &str = "scripts";
/// The longest name of an app, in characters.
const MAX_NAME: usize = 50;

pub(super) const TOOL: OwnTool = OwnTool {
    name: "save_script",
    title: "Save a script as an app",
    description: "Saves a script that worked as an app: found by search, run by call_app, watches and schedules. Writes scripts/NAME.js beside servers.toml, and an entry [apps.NAME]. The user reads the text and approves it. Give the task_id of the run, or the script.",
    properties: || {
        json!({
            "name": { "type": "string", "minLength": 1, "maxLength": MAX_NAME, "description": "Name of the app: a-z, 0-9, single - or _" },
            "description": { "type": "string", "minLength": 1, "maxLength": 1000, "description": "What it does, so that search finds it" },
            "task_id": { "type": "string", "description": "task_id in the answer of the run" },
            "script": { "type": "string", "description": "The text, if there is no task_id" },
            "input_schema": { "type": "object", "description": "JSON Schema of `input`" },
        })
    },
    required: &["name", "description"],
    access: Access::Destructive(|gateway, caller, params| {
        let plan = plan(gateway, caller, read(params.clone())?)?;
        Ok(format!(
            "Save this script as the app `{}`, in {} and {}?\nIt does: {}\n\n{}",
            plan.name,
            plan.file.display(),
            gateway.servers.config().file.display(),
            plan.description,
            plan.script
        ))
    }),
    aliases: Aliases(&[
        ("name", &["appid", "app", "id"]),
        ("task_id", &["task", "scriptid", "token"]),
        ("script", &["code", "javascript", "js", "source"]),
        ("input_schema", &["schema", "inputschema"]),
    ]),
    run: |gateway, caller, params| {
        async move {
            let plan = plan(gateway, caller, read(params)?)?;
            save(gateway, plan).await
        }
        .boxed()
    },
};

#[derive(serde::Deserialize)]
struct SaveArguments {
    name: String,
    description: String,
    task_id: Option<String>,
    script: Option<String>,
    input_schema: Option<Value>,
}

/// What is to be written.
struct SavePlan {
    name: String,
    description: String,
    script: String,
    /// The script's file.
    file: PathBuf,
    change: FileChange,
}

fn not_saved(fault: &HostFault) -> Fault {
    Fault::new(FaultCode::InvalidParams, format!("The script was not saved: {fault}"))
}

/// Works out what a call would write, or why it cannot.
fn plan(gateway: &Gateway, caller: &Caller, arguments: SaveArguments) -> Result<SavePlan, Fault> {
    let SaveArguments { name, description, task_id, script, input_schema } = arguments;
    let wrong = |message: String| Fault::new(FaultCode::InvalidParams, message);
    let name = name.trim().to_string();
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    if name.is_empty() || !name.chars().all(is_plain) {
        return Err(wrong("`name` has only the characters a-z, 0-9, - and _.".into()));
    }
    let script = match (script.filter(|script| !script.trim().is_empty()), task_id) {
        (Some(script), _) => script,
        (None, Some(id)) => text_of(gateway, caller, id.trim())?,
        (None, None) => return Err(wrong("Give the `task_id` of a run, or the `script`.".into())),
    };
    if let Some(schema) = &input_schema
        && Schema::new(schema.clone()).parameters().is_empty()
        && schema.get("type").is_none()
    {
        return Err(wrong("`input_schema` is not a JSON Schema of an object.".into()));
    }
    let config = gateway.servers.config();
    let folder = config.file.parent().map(|folder| folder.join(FOLDER)).unwrap_or_default();
    let file = folder.join(format!("{name}.js"));
    if file.exists() {
        return Err(wrong(format!("There is a file {} already. Use another name.", file.display())));
    }
    let mut entry = Map::new();
    entry.insert("description".into(), json!(description.trim()));
    entry.insert("script".into(), json!(format!("{FOLDER}/{name}.js")));
    if let Some(schema) = input_schema {
        entry.insert("input_schema".into(), schema);
    }
    let machine = Machine::this().map_err(|fault| not_saved(&fault))?;
    let change = hosts::add_app(&config.file, &name, &entry, &machine).map_err(|fault| not_saved(&fault))?;
    Ok(SavePlan { name, description: description.trim().into(), script, file, change })
}

/// Returns the text of a run, by its id or by the task that it became.
fn text_of(gateway: &Gateway, caller: &Caller, id: &str) -> Result<String, Fault> {
    let mut found = gateway.apps.ended_scripts.text(caller, id);
    if found.is_none()
        && let Some(job) = gateway.keeping.jobs.get(id, &caller.owner())
        && let Some(result) = job.end().and_then(|end| end.value)
        && let Some(id) = value_of(&result)["task_id"].as_str()
    {
        found = gateway.apps.ended_scripts.text(caller, id);
    }
    found.ok_or_else(|| {
        let message = "No script with this `task_id` has ended in this gateway. Give its text as `script`.";
        Fault::new(FaultCode::NotFound, message)
    })
}

async fn save(gateway: &Arc<Gateway>, plan: SavePlan) -> Result<Value, Fault> {
    let SavePlan { name, script, file, change, .. } = plan;
    let written = file.clone();
    let write = move || -> Result<(), Fault> {
        let failed = |error: std::io::Error| {
            Fault::new(FaultCode::Internal, format!("{} cannot be written: {error}.", written.display()))
        };
        if let Some(folder) = written.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        files::replace_private(&written, script.as_bytes()).map_err(failed)?;
        change.apply().map(drop).map_err(|fault| {
            let _ = std::fs::remove_file(&written);
            not_saved(&fault)
        })
    };
    let ended = tokio::task::spawn_blocking(write).await;
    ended.map_err(|error| Fault::new(FaultCode::Internal, error.to_string()))??;
    gateway.observing.audit_event("script_saved", || json!({ "app": name }));
    let next = NextStep::new("call_app", json!({ "app_id": name, "input": {} }));
    let answer =
        json!({ "app_id": name, "file": file, "hint": "Nonet loads it at once.", "next_step": next });
    Ok(text_result(answer.to_string()))
}
