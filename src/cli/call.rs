//! `nonet call`: params typed as `key=value`, and approvals at the terminal.

use std::path::Path;

use anyhow::Context;
use nonet_api::{
    fault::{Fault, FaultCode},
    question::UserVerdict,
};
use nonet_base::json::take_member;
use nonet_core::{Gateway, inquiry::Inquiry};
use nonet_parts::approvals::ApprovalDecision;
use nonet_schema::Schema;
use nonet_servers::pins::plain;
use serde_json::{Map, Value, json};

use super::{
    approve::approvals,
    ask::{AskFailure, InquiryAnswer},
    elsewhere::OtherGateways,
    found, setup, show,
};

/// The params of a call as they are on the command line.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CommandParams {
    /// One JSON object.
    Json(Value),
    /// Keys with values whose types the tool's schema decides.
    Words(Vec<(String, String)>),
}

impl CommandParams {
    /// Reads the words after the tool's name.
    pub(super) fn read(words: &[String]) -> anyhow::Result<Self> {
        match words {
            [] => return Ok(Self::Json(json!({}))),
            [json] if !is_pair(json) => {
                let params = serde_json::from_str(json).with_context(|| {
                    format!(
                        "the params are neither JSON nor `KEY=VALUE`: {}",
                        nonet_base::text::clip(json, 200)
                    )
                })?;
                return Ok(Self::Json(params));
            }
            _ => {}
        }
        let pair = |word: &String| {
            let pair = word.split_once('=').filter(|_| is_pair(word));
            let (key, value) = pair.with_context(|| {
                format!(
                    "`{}` is not `KEY=VALUE`; write the params as such words, or as one JSON object",
                    nonet_base::text::clip(word, 200)
                )
            })?;
            Ok((key.to_string(), value.to_string()))
        };
        Ok(Self::Words(words.iter().map(pair).collect::<anyhow::Result<_>>()?))
    }
}

/// Whether a word is `KEY=VALUE`: JSON begins otherwise.
fn is_pair(word: &str) -> bool {
    let key = word.split_once('=').map(|(key, _)| key).unwrap_or_default();
    !key.is_empty() && !key.starts_with(|c: char| c.is_whitespace() || "{[\"'".contains(c))
}

/// Returns params with the types of a tool's schema: a value is JSON if the schema takes it as JSON and not
/// as text. A key that is given twice is a list.
fn typed(words: &[(String, String)], schema: &Value) -> Value {
    let mut params = Map::new();
    for (key, text) in words {
        let mut of_key = schema["properties"].get(key).cloned().unwrap_or_else(|| json!({}));
        // References lead into the whole schema.
        if let Some(of_key) = of_key.as_object_mut() {
            let shared = ["$defs", "definitions"].iter();
            of_key.extend(shared.filter_map(|name| Some(((*name).to_string(), schema.get(*name)?.clone()))));
        }
        let count = words.iter().filter(|(known, _)| known == key).count();
        let of_key = match count {
            1 => of_key,
            _ => of_key.get("items").cloned().unwrap_or_else(|| json!({})),
        };
        let value = value_of(text, of_key);
        match params.get_mut(key) {
            _ if count == 1 => drop(params.insert(key.clone(), value)),
            Some(Value::Array(list)) => list.push(value),
            _ => drop(params.insert(key.clone(), json!([value]))),
        }
    }
    Value::Object(params)
}

fn value_of(text: &str, schema: Value) -> Value {
    let plain = Value::from(text);
    let Ok(value) = serde_json::from_str::<Value>(text) else { return plain };
    let schema = Schema::new(schema);
    let names_text = matches!(&schema.raw()["type"], Value::String(name) if name == "string");
    match schema.accepts(&value) {
        // A schema that takes both says nothing, unless it says `string`.
        true if !names_text => value,
        _ if schema.accepts(&plain) => plain,
        _ => value,
    }
}

/// Where the questions of a call wait.
pub(super) enum QuestionDesk<'a> {
    /// In the gateway of this process, for a file.
    Here(&'a Gateway, &'a Path),
    /// In the running gateways of a file.
    Running(&'a Path),
    /// Out of reach.
    Away,
}

/// Makes a call. `ask` sends an inquiry to the gateway that answers.
pub(super) async fn make(
    mut inquiry: Inquiry,
    params: &CommandParams,
    desk: QuestionDesk<'_>,
    ask: impl AsyncFn(Inquiry) -> Result<InquiryAnswer, AskFailure>,
) -> Result<InquiryAnswer, AskFailure> {
    if let (Inquiry::Call { name, params: typed_params, .. }, CommandParams::Words(words)) =
        (&mut inquiry, params)
    {
        match ask(Inquiry::Describe { name: name.clone() }).await? {
            Ok(mut tool) => *typed_params = typed(words, &take_member(&mut tool, "input_schema")),
            Err(fault) => return Ok(Err(fault)),
        }
    }
    let answer = ask(inquiry.clone()).await?;
    let Err(fault) = &answer else { return Ok(answer) };
    if fault.code != FaultCode::NeedsApproval || !found::is_at_terminal() {
        return Ok(answer);
    }
    match is_approved(fault, &desk).await {
        Ok(Some(true)) => ask(inquiry).await,
        Ok(Some(false)) => Err(AskFailure::Denied),
        Ok(None) => Ok(answer),
        Err(AnswerFailure::Stopped(code)) => Err(AskFailure::Stopped(code)),
        Err(AnswerFailure::Failed(error)) => {
            show::complain(show::causes(&error));
            Ok(answer)
        }
    }
}

/// Why there is no answer of the user.
enum AnswerFailure {
    Stopped(u8),
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for AnswerFailure {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

/// Asks the user at the terminal whether a call may run, and passes the answer on. None if the question is
/// not found.
async fn is_approved(fault: &Fault, desk: &QuestionDesk<'_>) -> Result<Option<bool>, AnswerFailure> {
    let (gateway, file) = match desk {
        QuestionDesk::Here(gateway, file) => (Some(*gateway), *file),
        QuestionDesk::Running(file) => (None, *file),
        QuestionDesk::Away => return Ok(None),
    };
    let verdict = |yes| if yes { UserVerdict::Allow } else { UserVerdict::Deny };
    let detail = |key: &str| fault.details.as_ref().and_then(|details| details.get(key)?.as_str());
    if let Some(id) = detail("approval") {
        let approvals = approvals(file)?;
        let waiting = approvals.waiting().await.map_err(anyhow::Error::from)?;
        let Some(one) = waiting.iter().find(|one| one.id() == id) else { return Ok(None) };
        let yes = agreed(&one.asked.question).await?;
        let decision = ApprovalDecision { verdict: verdict(yes), answer: None, by: "command".into() };
        approvals.decide(id, decision).await.map_err(|why| anyhow::anyhow!("{why}"))?;
        return Ok(Some(yes));
    }
    let Some(token) = fault.next_step.as_ref().and_then(|step| step.arguments["token"].as_str()) else {
        return Ok(None);
    };
    let elsewhere = match gateway {
        Some(_) => None,
        None => OtherGateways::look(file).await,
    };
    let question = match (gateway, &elsewhere) {
        (Some(gateway), _) => gateway.asking.questions.open_ones().into_iter().find(|one| one.token == token),
        (None, Some(elsewhere)) => elsewhere.question(token).cloned(),
        (None, None) => None,
    };
    let Some(question) = question else {
        elsewhere.iter().for_each(OtherGateways::tell_unasked);
        return Ok(None);
    };
    let yes = agreed(&question.message).await?;
    let said = json!(verdict(yes));
    match (gateway, elsewhere) {
        (Some(gateway), _) => {
            let settled = gateway.answer_question(token, &said).await;
            settled.map_err(|fault| anyhow::anyhow!("{}", fault.message))?;
        }
        (None, Some(elsewhere)) => elsewhere.answer(token, &said).await?,
        (None, None) => {}
    }
    Ok(Some(yes))
}

async fn agreed(question: &str) -> Result<bool, AnswerFailure> {
    question.lines().for_each(|line| eprintln!("{}", plain(line)));
    match setup::asked("Run it?".into(), false).await? {
        Ok(yes) => Ok(yes),
        Err(code) => Err(AnswerFailure::Stopped(code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_what_the_schema_takes() {
        let schema = json!({
            "properties": {
                "text": { "type": "string" }, "count": { "type": "integer" }, "deep": { "type": "boolean" },
                "tags": { "type": "array", "items": { "type": "string" } }, "at": { "$ref": "#/$defs/place" },
                "any": {}, "either": { "type": ["string", "null"] }, "none": { "type": "number" },
            },
            "$defs": { "place": { "type": "object", "properties": { "x": { "type": "number" } } } },
        });
        let check = |words: &[&str], expected: Value| {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            let Ok(CommandParams::Words(words)) = CommandParams::read(&words) else { panic!("{words:?}") };
            assert_eq!(typed(&words, &schema), expected, "{words:?}");
        };
        check(&["text=5"], json!({ "text": "5" }));
        check(&["text="], json!({ "text": "" }));
        check(&["text=a=b c"], json!({ "text": "a=b c" }));
        check(&["text=true", "deep=true", "count=7"], json!({ "text": "true", "deep": true, "count": 7 }));
        check(&["tags=[\"a\", \"b\"]"], json!({ "tags": ["a", "b"] }));
        check(&["tags=1", "tags=b"], json!({ "tags": ["1", "b"] }));
        check(&["at={\"x\": 1}"], json!({ "at": { "x": 1 } }));
        check(
            &["any=5", "new={\"a\": 1}", "other=word"],
            json!({ "any": 5, "new": { "a": 1 }, "other": "word" }),
        );
        check(&["either=null", "none=word"], json!({ "either": null, "none": "word" }));
    }

    #[test]
    fn one_object_stays_json() {
        let read =
            |words: &[&str]| CommandParams::read(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(read(&[]).unwrap(), CommandParams::Json(json!({})));
        assert_eq!(read(&["{\"a\": \"b=c\"}"]).unwrap(), CommandParams::Json(json!({ "a": "b=c" })));
        let fault = read(&["not json"]).unwrap_err().to_string();
        assert!(fault.contains("neither JSON nor `KEY=VALUE`"), "{fault}");
        let fault = read(&["a=b", "c"]).unwrap_err().to_string();
        assert!(fault.contains("`c` is not `KEY=VALUE`"), "{fault}");
    }
}
