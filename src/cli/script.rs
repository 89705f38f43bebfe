//! `nonet run` and `nonet types`: a script from a file, its questions at the terminal, and what it returns.

use std::io::{BufRead, Read, Write};

use anyhow::Context;
use nonet_base::json::take_member;
use nonet_core::inquiry::Inquiry;
use nonet_servers::pins::plain;
use serde_json::{Value, json};

use super::{
    FAILED,
    args::RunArgs,
    ask::{AskFailure, InquiryAnswer},
    found, show,
};

/// The tools behind the commands.
pub(super) const RUN: &str = "gateway.run_script";
pub(super) const TYPES: &str = "gateway.describe_api";
/// The longest script and the longest answer that are read, in bytes.
const LONGEST: u64 = 1 << 20;
const LONGEST_ANSWER: u64 = 4 << 10;

/// Reads the params of `gateway.run_script`.
pub(super) fn params(run: RunArgs) -> anyhow::Result<Value> {
    let RunArgs { file, input, timeout, .. } = run;
    let is_stdin = file.as_os_str() == "-";
    let mut text = String::new();
    let read = match is_stdin {
        true => std::io::stdin().lock().take(LONGEST).read_to_string(&mut text),
        false => std::fs::File::open(&file).and_then(|open| open.take(LONGEST).read_to_string(&mut text)),
    };
    read.with_context(|| format!("cannot read the script {}", file.display()))?;
    let mut params = json!({ "script": text });
    if let Some(input) = input {
        params["input"] = serde_json::from_str(&input).context("`--input` is not JSON")?;
    }
    if let Some(timeout) = timeout {
        params["timeout"] = json!(timeout);
    }
    if let Some(name) = file.file_name().filter(|_| !is_stdin) {
        params["label"] = json!(nonet_base::text::clip(&name.to_string_lossy(), 80));
    }
    Ok(params)
}

/// Returns the JSON in the first text of a result.
fn told(result: &Value) -> Option<Value> {
    serde_json::from_str(result["content"][0]["text"].as_str()?).ok()
}

/// Asks the user at the terminal what a run waits for, until it waits for nothing more.
pub(super) async fn answered(
    mut answer: InquiryAnswer,
    ask: impl AsyncFn(Inquiry) -> Result<InquiryAnswer, AskFailure>,
) -> Result<InquiryAnswer, AskFailure> {
    while found::is_at_terminal() {
        let Ok(result) = &answer else { break };
        let Some(asked) = told(result).filter(|told| told["status"] == "needs_user") else { break };
        // With a hint, the user answers elsewhere.
        let (Some(token), None) = (asked["token"].as_str(), asked.get("hint")) else { break };
        let question = asked["question"].as_str().unwrap_or_default().to_string();
        let read = tokio::task::spawn_blocking(move || said(&question));
        let said = tokio::select! {
            said = read => said.ok().and_then(Result::ok).filter(|said| !said.is_empty()),
            code = super::signal::stopped() => return Err(AskFailure::Stopped(code)),
        };
        let Some(said) = said else { break };
        answer = ask(Inquiry::Answer { token: token.into(), answer: json!(said) }).await?;
    }
    Ok(answer)
}

fn said(question: &str) -> std::io::Result<String> {
    let mut out = std::io::stderr();
    question.lines().try_for_each(|line| writeln!(out, "{}", plain(line)))?;
    write!(out, "> ")?;
    out.flush()?;
    let mut line = String::new();
    std::io::stdin().lock().take(LONGEST_ANSWER).read_line(&mut line)?;
    Ok(line.trim().into())
}

/// Prints what a script returned on stdout, and what it logged on stderr. Returns the exit code.
pub(super) fn show(answer: InquiryAnswer, manner: show::OutputStyle) -> anyhow::Result<u8> {
    let Some(mut told) = answer.as_ref().ok().and_then(told).filter(|told| told.get("output").is_some())
    else {
        let asked = answer.as_ref().ok().and_then(told).filter(|told| told["status"] == "needs_user");
        let error = answer.as_ref().ok().and_then(told).map(|mut told| take_member(&mut told, "error"));
        let code = show::result(answer, manner)?;
        if let Some(details) = error.as_ref().map(|error| &error["details"]) {
            for line in details["log"].as_str().unwrap_or_default().lines() {
                eprintln!("{}", plain(line));
            }
            if details["done"].is_array() {
                eprintln!("{}", plain(&details["done"].to_string()));
            }
        }
        // A question that nobody has answered is no success.
        return Ok(if asked.is_some() { FAILED } else { code });
    };
    for line in told["log"].as_str().unwrap_or_default().lines() {
        eprintln!("{}", plain(line));
    }
    match take_member(&mut told, "output") {
        Value::String(text) => show::raw(&show::for_terminal(&text)),
        Value::Null => {}
        output => show::whole(&output)?,
    }
    Ok(0)
}
