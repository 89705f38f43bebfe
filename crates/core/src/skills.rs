//! `use_skill`: SKILL.md folders of the configuration, and every server's prompts.

use std::{sync::Arc, time::Duration};

use nonet_api::notice::Notice;
use nonet_base::text::{clean, clip};
use nonet_parts::skills::{Skill, served::OfferedSkill};
use nonet_schema::ValidParams;
use nonet_search::{Boosts, Document, Index};
use nonet_servers::{
    catalog::{EntryKind, SKILLS, guide::is_named},
    downstream::{CallControl, CallError, ConnectionState},
    policy::{ItemKind, PolicyVerdict},
};
use nonet_text::{
    fault::{Fault, FaultCode},
    name,
};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{call::text_result, inspect::ContentInTransit, interrupt::Interrupt};
use crate::{
    calls::Calls,
    gate::{Gate, may_not_be_used},
};
use nonet_state::{conditions::stricter, session::Caller};

/// How many skills a list shows.
const LISTED: usize = 50;
/// How many skills a query finds.
const FOUND: usize = 5;
/// How long reading the files of a skill may take.
const READING: Duration = Duration::from_secs(5);
/// The maximum length of a skill's description in a list, in characters.
const SUMMARY: usize = 200;

/// The arguments of `use_skill`.
#[derive(Debug, Default, serde::Deserialize)]
pub struct SkillArguments {
    command: Option<String>,
    query: Option<String>,
    file: Option<String>,
    arguments: Option<Value>,
}

impl SkillArguments {
    /// Takes what follows a skill's name as its arguments: `/release-note 2024-03`.
    fn split_command(&mut self, is_known: impl Fn(&str) -> bool) {
        let command = self.command.as_deref().unwrap_or_default().trim().trim_start_matches('/');
        let Some((name, rest)) = command.split_once(char::is_whitespace) else { return };
        if self.arguments.is_none() && !is_known(command) && is_known(name) {
            let rest = json!(rest.trim());
            (self.command, self.arguments) = (Some(name.into()), Some(rest));
        }
    }
}

/// A skill of the configuration or a server's prompt, as lists show it.
#[derive(Debug, Serialize)]
struct ListedSkill {
    /// A prompt has the name `server/prompt`.
    name: String,
    #[serde(skip_serializing_if = "String::is_empty", serialize_with = "summary")]
    description: String,
    /// The arguments of a prompt; a name that ends with `?` is optional.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    arguments: Vec<String>,
}

fn summary<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&clip(text, SUMMARY))
}

/// A prompt as its server lists it.
struct Prompt<'a> {
    name: &'a str,
    description: &'a str,
    /// Each argument's name, and whether it is required.
    arguments: Vec<(&'a str, bool)>,
}

impl<'a> Prompt<'a> {
    fn of(listed: &'a Value) -> Self {
        let text = |key: &str| listed.get(key).and_then(Value::as_str).unwrap_or_default();
        let description = if text("description").is_empty() { text("title") } else { text("description") };
        let arguments = listed.get("arguments").and_then(Value::as_array).into_iter().flatten();
        let argument = |one: &'a Value| {
            Some((one.get("name")?.as_str()?, one.get("required") == Some(&Value::Bool(true))))
        };
        Self { name: text("name"), description, arguments: arguments.filter_map(argument).collect() }
    }

    /// Returns the required arguments that are missing. Text counts as the first argument.
    fn lacking(&self, given: Option<&Value>) -> Vec<&'a str> {
        let is_given = |at: usize, name: &str| match given {
            Some(Value::Object(fields)) => fields.get(name).is_some_and(|value| !value.is_null()),
            Some(Value::String(text)) => at == 0 && !text.is_empty(),
            _ => false,
        };
        let needed = self.arguments.iter().enumerate().filter(|(_, (_, required))| *required);
        needed.filter(|(at, (name, _))| !is_given(*at, name)).map(|(_, (name, _))| *name).collect()
    }

    /// Returns the arguments in the form that `prompts/get` requires: only strings, so numbers and flags
    /// become text.
    fn arguments(&self, given: Option<Value>) -> Map<String, Value> {
        let in_text = |value: Value| match value {
            Value::String(_) => value,
            other => json!(other.to_string()),
        };
        match (given, self.arguments.first()) {
            (Some(Value::Object(map)), _) => {
                map.into_iter().map(|(key, value)| (key, in_text(value))).collect()
            }
            (Some(Value::String(text)), Some((first, _))) => Map::from_iter([((*first).into(), json!(text))]),
            _ => Map::new(),
        }
    }
}

/// Returns all skills that a caller may see: the skills in folders, then the prompts of servers.
fn listed(local: &[Skill], gate: &Gate) -> Vec<ListedSkill> {
    let local = local.iter().map(|skill| ListedSkill {
        name: skill.name.clone(),
        description: skill.description.clone(),
        arguments: Vec::new(),
    });
    let servers = gate.catalog().servers().iter().filter(|(server, _)| gate.sees(server));
    let prompts =
        servers.flat_map(|(server, entry)| entry.listing.prompts.iter().map(move |prompt| (server, prompt)));
    let prompts = prompts.map(|(server, prompt)| (server, Prompt::of(prompt)));
    let is_shown =
        |server: &str, own: &str| !matches!(gate.verdict_on_prompt(server, own), PolicyVerdict::Deny(_));
    let offered = gate.catalog().servers().iter().filter(|(server, _)| gate.sees(server));
    let offered = offered.flat_map(|(server, entry)| {
        let skills = entry.listing.skills.iter().filter_map(OfferedSkill::of);
        skills.filter(|skill| is_shown(server, skill.name)).map(move |skill| ListedSkill {
            name: format!("{server}/{}", skill.name),
            description: clean(skill.description).into_owned(),
            arguments: Vec::new(),
        })
    });
    let prompts = prompts.filter(|(server, prompt)| is_shown(server, prompt.name)).map(|(server, prompt)| {
        let shown = |(name, required): &(&str, bool)| format!("{name}{}", if *required { "" } else { "?" });
        ListedSkill {
            name: format!("{server}/{}", prompt.name),
            description: clean(prompt.description).into_owned(),
            arguments: prompt.arguments.iter().map(shown).collect(),
        }
    });
    local
        .chain(prompts)
        .chain(offered)
        .filter(|skill| gate.kept_from(EntryKind::Skill, &skill.name).is_none())
        .collect()
}

impl Calls {
    /// Implements the `use_skill` meta-tool.
    pub async fn use_skill(
        self: &Arc<Self>,
        caller: &Caller,
        arguments: SkillArguments,
    ) -> Result<Value, Interrupt> {
        self.follow_skill(caller, arguments, false).await
    }

    /// Does the same for a skill that the user may have `approved` already.
    pub(super) async fn follow_skill(
        self: &Arc<Self>,
        caller: &Caller,
        mut arguments: SkillArguments,
        approved: bool,
    ) -> Result<Value, Interrupt> {
        let gate = Gate::of(&self.publisher, &caller.session);
        self.guides.read(&gate.config().gateway.skills, Duration::ZERO).await;
        let local = self.guides.skills();
        let all = || listed(&local, &gate);
        arguments
            .split_command(|name| all().iter().any(|skill| is_named(EntryKind::Skill, &skill.name, name)));
        let command = arguments.command.as_deref().map(|command| command.trim().trim_start_matches('/'));
        let Some(command) = command.filter(|command| !command.is_empty()) else {
            let query = arguments.query.as_deref().map(str::trim).filter(|query| !query.is_empty());
            let answer = query.map_or_else(|| list(&all()), |query| best(&all(), query));
            return Ok(text_result(answer.to_string()));
        };
        let named = gate.servers_of_skill(command);
        // An exact name comes before similar names.
        for exactly in [true, false] {
            let is_meant = |name: &str| match exactly {
                true => name == command || name::full_name(SKILLS, name) == command,
                false => is_named(EntryKind::Skill, name, command),
            };
            let is_local = |skill: &&Skill| is_meant(&skill.name) && (exactly || named.is_empty());
            if let Some(skill) = local.iter().find(is_local) {
                may_use(&gate, &skill.name)?;
                let result = local_skill(skill.clone(), arguments).await?;
                self.observing.guided(caller, EntryKind::Skill, &skill.name);
                return Ok(result);
            }
            for (server, entry) in gate.catalog().servers() {
                // The server in the name comes first.
                if !named.is_empty() && !named.contains(server) {
                    continue;
                }
                let is_it = |own: &Prompt<'_>| is_meant(&format!("{server}/{}", own.name));
                if let Some(prompt) = entry.listing.prompts.iter().map(Prompt::of).find(is_it)
                    && gate.sees(server)
                {
                    let name = format!("{server}/{}", prompt.name);
                    may_use(&gate, &name)?;
                    let given = arguments.arguments.map(|given| read_arguments(caller, &gate, &name, given));
                    let params = prompt.arguments(given.clone());
                    let asked = (server.as_ref(), prompt.name);
                    let verdict = gate.verdict_on_use(caller, ItemKind::Prompt, asked, &params);
                    may_get(&gate, server, prompt.name, verdict, approved)?;
                    let result = self.prompt(caller, &gate, server, command, &prompt, given).await?;
                    self.observing.guided(caller, EntryKind::Skill, &name);
                    return Ok(result);
                }
                let is_it = |skill: &OfferedSkill<'_>| is_meant(&format!("{server}/{}", skill.name));
                if let Some(skill) = entry.listing.skills.iter().filter_map(OfferedSkill::of).find(is_it)
                    && gate.sees(server)
                {
                    let name = format!("{server}/{}", skill.name);
                    may_use(&gate, &name)?;
                    let asked = (server.as_ref(), skill.name);
                    let verdict = gate.verdict_on_use(caller, ItemKind::Prompt, asked, &Map::new());
                    may_get(&gate, server, skill.name, verdict, approved)?;
                    let result = self.offered_skill(caller, &gate, server, &skill, arguments).await?;
                    self.observing.guided(caller, EntryKind::Skill, &name);
                    return Ok(result);
                }
            }
        }
        Err(unknown_skill(command, &all()).into())
    }

    /// Returns a server's prompt as text to follow.
    async fn prompt(
        self: &Arc<Self>,
        caller: &Caller,
        gate: &Gate,
        server: &Arc<str>,
        command: &str,
        prompt: &Prompt<'_>,
        given: Option<Value>,
    ) -> Result<Value, Interrupt> {
        let lacking = prompt.lacking(given.as_ref());
        if !lacking.is_empty() {
            return Err(lacks_arguments(command, &lacking, given).into());
        }
        let name = prompt.name;
        let Some(connection) = gate.connection_for(&self.servers, caller, server) else {
            let message = format!("`{server}` is no longer configured.");
            return Err(Fault::new(FaultCode::ServerDown, message).into());
        };
        // Both waits together end before the soft deadline, so that a prompt does not become a task.
        let patience = caller.limits.soft_deadline / 2;
        let settings = connection.settings();
        let label = format!("{server}/{name}");
        let passing = ContentInTransit { gate, caller, server, settings: &settings, label: &label };
        let arguments = prompt.arguments(given);
        self.may_leave(passing, &arguments)?;
        let control = CallControl {
            timeout: settings.timeout.min(patience),
            cancel: CancellationToken::clone(&caller.cancel),
            progress: None,
            meta: Map::new(),
            asker: caller.asker.clone(),
            owner: caller.account.id,
        };
        let answer = connection.get_prompt(name, arguments, control, patience).await;
        let answer = answer.map_err(|error| {
            let message = format!("`{server}` did not return the prompt `{name}`: {error}");
            let fault = Fault::new(prompt_code(&error), message).next("use_skill", json!({ "query": name }));
            self.inspected_fault(passing, fault)
        })?;
        let mut answer = self.inspected(passing, answer).await?;
        let messages = answer.get_mut("messages").and_then(Value::as_array_mut).into_iter().flatten();
        self.note_links(caller, server, messages.filter_map(|message| message.get_mut("content")));
        Ok(messages_as_result(&label, &answer))
    }
}

impl Calls {
    /// Returns a skill that a server offers, or a file of it, as its entry announces it. Nothing else of the server's
    /// is used.
    async fn offered_skill(
        &self,
        caller: &Caller,
        gate: &Gate,
        server: &Arc<str>,
        skill: &OfferedSkill<'_>,
        arguments: SkillArguments,
    ) -> Result<Value, Interrupt> {
        let label = format!("{server}/{}", skill.name);
        let SkillArguments { file, arguments: given, .. } = arguments;
        let uri = match &file {
            None => Some(skill.uri.to_owned()),
            Some(file) => skill.uri_of(file),
        };
        let Some(uri) = uri else {
            let has = skill.files().join(", ");
            let message =
                format!("The skill `{label}` has no file `{}`; it has: {has}.", file.unwrap_or_default());
            let fault = Fault::new(FaultCode::NotFound, message);
            return Err(fault.next("use_skill", json!({ "command": label })).into());
        };
        let refused = |why: String| {
            let message = format!(
                "The skill `{label}` is not used: {why}. Tell the user that `{server}` may have changed it."
            );
            Fault::new(FaultCode::UpstreamError, message)
        };
        let result =
            self.read_of_server(caller, server, &uri).await.map_err(|error| refused(error.message.into()))?;
        let text = skill.checked(&uri, &result).map_err(|why| refused(format!("`{uri}`: {why}")))?;
        let Some(settings) = gate.connection(server).map(|connection| connection.settings()) else {
            return Err(refused(format!("`{server}` is no longer configured")).into());
        };
        let passing = ContentInTransit { gate, caller, server, settings: &settings, label: &label };
        let block = match file.is_some() {
            true => text_result(text),
            false => {
                let files: Vec<String> = skill.files().into_iter().map(String::from).collect();
                text_result(follow(&label, &with_arguments(text, given), &files))
            }
        };
        Ok(self.inspected(passing, block).await?)
    }
}

/// Puts what follows a skill's name into its text.
fn with_arguments(mut text: String, given: Option<Value>) -> String {
    let given = match &given {
        None => String::new(),
        Some(given) => given.as_str().map_or_else(|| given.to_string(), String::from),
    };
    if text.contains("$ARGUMENTS") {
        text = text.replace("$ARGUMENTS", &given);
    } else if !given.is_empty() {
        text.push_str(&format!("\n\nArguments: {given}\n"));
    }
    text
}

/// Reads the arguments of a prompt as leniently as a tool's params. Plain text, and what does not fit, stays
/// as it is.
fn read_arguments(caller: &Caller, gate: &Gate, skill: &str, given: Value) -> Value {
    let is_text = given.as_str().is_some_and(|text| !text.trim_start().starts_with('{'));
    let tool = gate.catalog().get(&name::full_name(SKILLS, skill)).filter(|_| !is_text);
    match tool.and_then(|tool| tool.schema.read(given.clone()).ok()) {
        Some(ValidParams { params, repaired }) => {
            if !repaired.is_empty() {
                let notice =
                    Notice::InputRepaired { app: None, skill: Some(skill.to_string()), changes: repaired };
                caller.session.notify(notice);
            }
            Value::Object(params)
        }
        None => given,
    }
}

fn may_use(gate: &Gate, skill: &str) -> Result<(), Fault> {
    match gate.kept_from(EntryKind::Skill, skill) {
        Some(rule) => {
            Err(may_not_be_used(&name::full_name(SKILLS, skill), &rule).next("use_skill", json!({})))
        }
        None => Ok(()),
    }
}

/// Checks the rules for a server's prompt. A prompt that needs approval at each use has to be called like a
/// tool, because that call asks the user.
fn may_get(gate: &Gate, server: &str, own: &str, on_use: PolicyVerdict, approved: bool) -> Result<(), Fault> {
    let full = name::full_name(SKILLS, &format!("{server}/{own}"));
    match stricter(gate.verdict_on_prompt(server, own), on_use) {
        PolicyVerdict::Allow => Ok(()),
        PolicyVerdict::Approve(_) if approved => Ok(()),
        PolicyVerdict::Approve(rule) => {
            let message =
                format!("`{full}` is used only if the user agrees (`{rule}`). execute_tool asks the user.");
            Err(Fault::new(FaultCode::NeedsApproval, message)
                .next("execute_tool", json!({ "name": full, "params": {} })))
        }
        PolicyVerdict::Deny(rule) => Err(may_not_be_used(&full, &rule).next("use_skill", json!({}))),
    }
}

fn unknown_skill(command: &str, all: &[ListedSkill]) -> Fault {
    let near = name::nearest(command, all.iter().map(|skill| skill.name.as_str()), 3);
    let message = format!("There is no skill `{command}`. use_skill without `command` lists them.");
    let next = match near.first() {
        Some(first) => json!({ "command": first }),
        None => json!({ "query": command }),
    };
    Fault::new(FaultCode::NotFound, message).next("use_skill", next).suggest(near)
}

fn lacks_arguments(command: &str, lacking: &[&str], given: Option<Value>) -> Fault {
    let mut given = given.filter(Value::is_object).unwrap_or(json!({}));
    for name in lacking {
        given[*name] = json!(format!("<{name}>"));
    }
    let call = json!({ "command": command, "arguments": given });
    let message = format!("The prompt `{command}` needs `arguments` with: {}.", lacking.join(", "));
    Fault::new(FaultCode::InvalidParams, message)
        .details(json!({ "corrected_call": { "tool": "use_skill", "arguments": call } }))
}

fn prompt_code(error: &CallError) -> FaultCode {
    match error {
        CallError::NotReady(ConnectionState::Starting) => FaultCode::ServerStarting,
        CallError::NotReady(ConnectionState::AuthRequired { .. }) => FaultCode::AuthRequired,
        CallError::NotReady(_) | CallError::Closed(_) => FaultCode::ServerDown,
        CallError::TimedOut(_) => FaultCode::Timeout,
        CallError::Busy(_) | CallError::RateLimited { .. } => FaultCode::RateLimited,
        CallError::Resting(_) => FaultCode::ServerDown,
        CallError::Cancelled => FaultCode::Cancelled,
        CallError::NotAllowed { .. } => FaultCode::AuthRequired,
        CallError::Params(_) => FaultCode::InvalidParams,
        CallError::Rpc(_) | CallError::Unreadable(_) | CallError::NotSent(_) | CallError::Upstream { .. } => {
            FaultCode::UpstreamError
        }
    }
}

/// Turns the messages of a prompt into one text block to follow, and the rest of their content.
fn messages_as_result(skill: &str, answer: &Value) -> Value {
    let mut text = String::new();
    let mut others = Vec::new();
    for message in answer.get("messages").and_then(Value::as_array).into_iter().flatten() {
        let content = message.get("content").cloned().unwrap_or_default();
        match content.get("text").and_then(Value::as_str) {
            Some(part) => {
                if message.get("role").and_then(Value::as_str) == Some("assistant") {
                    text.push_str("(assistant) ");
                }
                text.push_str(part);
                text.push('\n');
            }
            None => others.push(content),
        }
    }
    let mut result = text_result(follow(skill, &text, &[]));
    if let Some(content) = result["content"].as_array_mut() {
        content.extend(others);
    }
    result
}

/// Reads a skill of a folder, or a file beside it, within a time limit.
async fn local_skill(skill: Skill, arguments: SkillArguments) -> Result<Value, Fault> {
    let SkillArguments { file, arguments: given, .. } = arguments;
    let name = skill.name.clone();
    let again = json!({ "command": name });
    let wanted = file.clone();
    let reading = tokio::task::spawn_blocking(move || match &wanted {
        Some(file) => skill.file(file).map(|text| (text, Vec::new())),
        None => skill.text().map(|text| (text, skill.files())),
    });
    let (text, files) = match timeout(READING, reading).await {
        Ok(Ok(read)) => read.map_err(|error| {
            Fault::new(FaultCode::NotFound, format!("The skill `{name}`: {error}.")).next("use_skill", again)
        })?,
        Ok(Err(_)) => return Err(Fault::new(FaultCode::Internal, "The skill could not be read.")),
        Err(_) => {
            let message = format!("The folder of the skill `{name}` does not respond. Continue without it.");
            return Err(Fault::new(FaultCode::Timeout, message));
        }
    };
    if file.is_some() {
        return Ok(text_result(text));
    }
    let text = with_arguments(text, given);
    Ok(text_result(follow(&name, &text, &files)))
}

/// Adds to a skill's text the note to follow it.
fn follow(skill: &str, text: &str, files: &[String]) -> String {
    let mut out = format!("Follow these instructions of the skill `{skill}` now.\n\n{}\n", text.trim());
    if !files.is_empty() {
        out.push_str(&format!(
            "\nFiles beside the skill, each read with use_skill {{\"command\": \"{skill}\", \"file\": \"...\"}}: {}\n",
            files.join(", ")
        ));
    }
    out
}

fn list(all: &[ListedSkill]) -> Value {
    let mut answer = json!({ "skills": &all[..all.len().min(LISTED)], "total": all.len() });
    if all.is_empty() {
        answer["hint"] =
            json!("There are no skills: no `skills` folder is configured and no server has prompts.");
    }
    answer
}

/// Returns the skills that fit a query best, by words.
fn best(all: &[ListedSkill], query: &str) -> Value {
    let document = |skill: &ListedSkill| Document {
        id: skill.name.as_str().into(),
        group: "skills".into(),
        name: skill.name.as_str().into(),
        title: String::new(),
        description: skill.description.clone(),
        terms: Vec::new(),
        parameters: Vec::new(),
        group_description: String::new(),
    };
    let documents = all.iter().map(document).collect();
    let index = Index::new(documents, &nonet_search::Settings::default());
    let found = index.search(&index.parse(query), FOUND, &|_| true, &Boosts::new());
    let hits: Vec<&ListedSkill> = found.hits.iter().map(|hit| &all[hit.document]).collect();
    let mut answer = json!({ "skills": hits, "total": all.len() });
    if hits.is_empty() {
        answer["hint"] = json!("No skill fits these words; use_skill without arguments lists all.");
    }
    answer
}
