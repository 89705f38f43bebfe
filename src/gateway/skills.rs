//! `use_skill`: SKILL.md folders of the configuration, and every server's prompts.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{Gateway, Snapshot, call::text_result, interrupt::Interrupt, session::Caller};
use crate::{
    downstream::{CallError, Control, State},
    fault::{Code, Fault},
    name,
    search::{Boosts, Document, Index},
    skills::{self, Skill},
};

/// How many skills a list shows.
const LISTED: usize = 50;
/// How many skills a query finds.
const FOUND: usize = 5;
/// How long a skill's description is in a list, in characters.
const SUMMARY: usize = 200;

/// The arguments of `use_skill`.
#[derive(Debug, Default, serde::Deserialize)]
pub struct SkillArguments {
    command: Option<String>,
    query: Option<String>,
    file: Option<String>,
    arguments: Option<Value>,
}

/// A skill of either kind, as lists show it.
struct Entry {
    name: String,
    description: String,
    arguments: Option<Value>,
}

impl Gateway {
    /// The `use_skill` meta-tool.
    pub async fn use_skill(
        self: &Arc<Self>,
        caller: &Caller,
        arguments: SkillArguments,
    ) -> Result<Value, Interrupt> {
        let folders = self.config().gateway.skills.clone();
        let local = tokio::task::spawn_blocking(move || skills::load(&folders)).await.unwrap_or_default();
        let snapshot = self.snapshot();
        let command = arguments.command.as_deref().map(|command| command.trim().trim_start_matches('/'));
        let Some(command) = command.filter(|command| !command.is_empty()) else {
            let all = entries(&local, &snapshot, &|server| self.gate(&caller.session).sees(server));
            return Ok(text_result(
                match arguments.query.as_deref().map(str::trim) {
                    Some(query) if !query.is_empty() => best(all, query),
                    _ => list(all),
                }
                .to_string(),
            ));
        };
        if let Some(skill) = local.iter().find(|skill| name::fold(&skill.name) == name::fold(command)) {
            return Ok(local_skill(skill, &arguments)?);
        }
        for (server, entry) in snapshot.catalog.servers() {
            for prompt in &entry.prompts {
                let own = prompt.get("name").and_then(Value::as_str).unwrap_or_default();
                if name::fold(&format!("{server}/{own}")) == name::fold(command)
                    && self.gate(&caller.session).sees(server)
                {
                    let first = prompt.get("arguments").and_then(|all| all.get(0)?.get("name")?.as_str());
                    let lacking = lacking(prompt, arguments.arguments.as_ref());
                    if !lacking.is_empty() {
                        let mut given =
                            arguments.arguments.clone().filter(Value::is_object).unwrap_or(json!({}));
                        for name in &lacking {
                            given[*name] = json!(format!("<{name}>"));
                        }
                        let call = json!({ "command": command, "arguments": given });
                        return Err(Fault::new(
                            Code::InvalidParams,
                            format!("The prompt `{command}` needs `arguments` with: {}.", lacking.join(", ")),
                        )
                        .details(json!({ "corrected_call": { "tool": "use_skill", "arguments": call } }))
                        .into());
                    }
                    return self
                        .prompt(caller, server, own, first.map(String::from), arguments.arguments)
                        .await;
                }
            }
        }
        let all = entries(&local, &snapshot, &|server| self.gate(&caller.session).sees(server));
        let near = name::nearest(command, all.iter().map(|entry| entry.name.as_str()), 3);
        let fault = Fault::new(
            Code::NotFound,
            format!("There is no skill `{command}`. use_skill without `command` lists them."),
        );
        let next = match near.first() {
            Some(first) => json!({ "command": first }),
            None => json!({ "query": command }),
        };
        Err(fault.next("use_skill", next).suggest(near).into())
    }

    /// A server's prompt, as text to follow.
    async fn prompt(
        self: &Arc<Self>,
        caller: &Caller,
        server: &Arc<str>,
        prompt: &str,
        first: Option<String>,
        arguments: Option<Value>,
    ) -> Result<Value, Interrupt> {
        let Some(connection) = self.connection_for(caller, server) else {
            return Err(
                Fault::new(Code::ServerDown, format!("`{server}` is not configured any more.")).into()
            );
        };
        // Prompts take strings alone; numbers and flags are written out.
        let arguments: Map<String, Value> = match arguments {
            Some(Value::Object(map)) => map
                .into_iter()
                .map(|(key, value)| match value {
                    Value::String(_) => (key, value),
                    other => (key, json!(other.to_string())),
                })
                .collect(),
            // Text goes to the one argument that a prompt takes, or to its first.
            Some(Value::String(text)) => match first {
                Some(first) => Map::from_iter([(first, json!(text))]),
                None => Map::new(),
            },
            _ => Map::new(),
        };
        // Both waits together end before the soft deadline: a prompt does not become a task.
        let patience = caller.limits.soft_deadline / 2;
        let control = Control {
            timeout: connection.settings().timeout.min(patience),
            cancel: CancellationToken::clone(&caller.cancel),
            progress: None,
            meta: Map::new(),
            asker: caller.asker.clone(),
        };
        let answer = connection.get_prompt(prompt, arguments, control, patience).await.map_err(|error| {
            let code = match &error {
                CallError::NotReady(State::Starting) => Code::ServerStarting,
                CallError::NotReady(State::AuthRequired { .. }) => Code::AuthRequired,
                CallError::NotReady(_) | CallError::Closed(_) => Code::ServerDown,
                CallError::TimedOut(_) => Code::Timeout,
                CallError::Busy(_) => Code::RateLimited,
                CallError::Cancelled => Code::Cancelled,
                CallError::Rpc(_) | CallError::Unreadable(_) => Code::UpstreamError,
            };
            Fault::new(code, format!("`{server}` did not give the prompt `{prompt}`: {error}"))
                .next("use_skill", json!({ "query": prompt }))
        })?;
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
        let mut result = text_result(follow(&format!("{server}/{prompt}"), &text, &[]));
        if let Some(content) = result["content"].as_array_mut() {
            content.extend(others);
        }
        Ok(result)
    }
}

fn local_skill(skill: &Skill, arguments: &SkillArguments) -> Result<Value, Fault> {
    let fault = |error: skills::SkillError| {
        Fault::new(Code::NotFound, format!("The skill `{}`: {error}.", skill.name))
            .next("use_skill", json!({ "command": skill.name }))
    };
    if let Some(file) = &arguments.file {
        return Ok(text_result(skill.file(file).map_err(fault)?));
    }
    let mut text = skill.text().map_err(fault)?;
    if let Some(given) = &arguments.arguments {
        let given = given.as_str().map_or_else(|| given.to_string(), String::from);
        if text.contains("$ARGUMENTS") {
            text = text.replace("$ARGUMENTS", &given);
        } else {
            text.push_str(&format!("\n\nArguments: {given}\n"));
        }
    }
    Ok(text_result(follow(&skill.name, &text, &skill.files())))
}

/// A skill's text with the note to follow it.
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

fn entries(local: &[Skill], snapshot: &Snapshot, seen: &dyn Fn(&str) -> bool) -> Vec<Entry> {
    let mut all: Vec<Entry> = local
        .iter()
        .map(|skill| Entry {
            name: skill.name.clone(),
            description: skill.description.clone(),
            arguments: None,
        })
        .collect();
    for (server, entry) in snapshot.catalog.servers().iter().filter(|(server, _)| seen(server)) {
        for prompt in &entry.prompts {
            let text = |key: &str| prompt.get(key).and_then(Value::as_str).unwrap_or_default();
            let description =
                if text("description").is_empty() { text("title") } else { text("description") };
            let arguments: Vec<String> = prompt
                .get("arguments")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(|argument| {
                    let required = argument.get("required") == Some(&Value::Bool(true));
                    Some(format!("{}{}", argument.get("name")?.as_str()?, if required { "" } else { "?" }))
                })
                .collect();
            all.push(Entry {
                name: format!("{server}/{}", text("name")),
                description: description.into(),
                arguments: (!arguments.is_empty()).then(|| json!(arguments)),
            });
        }
    }
    all
}

/// The arguments that a prompt needs and was not given. Text stands for the first.
fn lacking<'a>(prompt: &'a Value, given: Option<&Value>) -> Vec<&'a str> {
    let all = prompt.get("arguments").and_then(Value::as_array).into_iter().flatten();
    let needed = all.enumerate().filter(|(_, one)| one.get("required") == Some(&Value::Bool(true)));
    let is_given = |at: usize, name: &str| match given {
        Some(Value::Object(fields)) => fields.get(name).is_some_and(|value| !value.is_null()),
        Some(Value::String(text)) => at == 0 && !text.is_empty(),
        _ => false,
    };
    let names = needed.filter_map(|(at, one)| Some((at, one.get("name")?.as_str()?)));
    names.filter(|(at, name)| !is_given(*at, name)).map(|(_, name)| name).collect()
}

fn line(entry: &Entry) -> Value {
    let mut line = json!({ "name": entry.name });
    if !entry.description.is_empty() {
        line["description"] = json!(crate::text::clip(&entry.description, SUMMARY));
    }
    if let Some(arguments) = &entry.arguments {
        line["arguments"] = arguments.clone();
    }
    line
}

fn list(all: Vec<Entry>) -> Value {
    let mut answer =
        json!({ "skills": all.iter().take(LISTED).map(line).collect::<Vec<_>>(), "total": all.len() });
    if all.is_empty() {
        answer["hint"] =
            json!("There are no skills: no `skills` folder is configured and no server has prompts.");
    }
    answer
}

/// The skills that fit a query best, by their words.
fn best(all: Vec<Entry>, query: &str) -> Value {
    let documents = all
        .iter()
        .map(|entry| Document {
            id: entry.name.as_str().into(),
            group: "skills".into(),
            name: entry.name.as_str().into(),
            title: String::new(),
            description: entry.description.clone(),
            terms: Vec::new(),
            parameters: Vec::new(),
            group_description: String::new(),
        })
        .collect();
    let index = Index::new(documents, &crate::search::Settings::default());
    let found = index.search(&index.parse(query), FOUND, &|_| true, &Boosts::new());
    let mut answer = json!({ "skills": found.hits.iter().map(|hit| line(&all[hit.document])).collect::<Vec<_>>(), "total": all.len() });
    if found.hits.is_empty() {
        answer["hint"] = json!("No skill fits these words; use_skill without arguments lists all.");
    }
    answer
}
