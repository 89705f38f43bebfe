//! Output for people: progress bars, results, failures in one line.

use std::{borrow::Cow, io::IsTerminal, sync::Arc, time::Duration};

use anyhow::Context;
use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use nonet_api::{
    fault::{Fault, FaultCode, NextStep},
    notice::{FoundInAnswer, NextPage, Notice},
};
use nonet_base::{json::take_member, text};
use nonet_core::Gateway;
use nonet_servers::downstream::{ConnectionState, Remedy, likely_cause};
use nonet_text::results::{is_error, is_fault, is_notices, text_of};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{FAILED, OK, ask::InquiryAnswer, found, signal::stopped, table};
pub(super) use super::{
    failure::{brief, failure, missing_variables},
    fitting::fitted,
    table::{WordStyle, clean, paint, plain_table},
};

/// The length of a wait before a progress bar appears, or a line without a terminal.
const SILENCE: Duration = Duration::from_millis(200);
/// The interval between checks of progress.
const LOOK: Duration = Duration::from_millis(10);
/// How many servers a line names.
const NAMED: usize = 5;

/// Prints prose on stdout: at a terminal, its lines break at words.
pub(super) fn line(text: &str) {
    raw(&fitted(text, table::terminal_width()));
}

/// Prints a text on stdout as it is. A closed pipe, as by `head`, ends the program silently.
pub(super) fn raw(text: &str) {
    use std::io::Write;
    if let Err(error) = writeln!(std::io::stdout(), "{text}") {
        std::process::exit(if error.kind() == std::io::ErrorKind::BrokenPipe {
            0
        } else {
            i32::from(FAILED)
        });
    }
}

/// Formats a number of things, such as `1 tool` and `2 tools`.
pub(super) fn count(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// Formats a duration for people, in one unit.
pub(super) fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..172_800 => format!("{} h", seconds / 3_600),
        _ => count(seconds / 86_400, "day"),
    }
}

/// Prints an error on stderr.
pub(super) fn complain(what: impl std::fmt::Display) {
    let text = format!("nonet: {}", text::clean(&what.to_string()));
    let width = std::io::stderr()
        .is_terminal()
        .then(|| Term::stderr().size_checked().map_or(80, |(_, columns)| columns.max(20)));
    let fitted = fitted(&text, width);
    let said = fitted.strip_prefix("nonet:").unwrap_or(&fitted);
    eprintln!("{}{said}", console::style("nonet:").for_stderr().red().bold());
}

/// Formats an error with its causes, each once: many errors repeat their cause.
pub(super) fn causes(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if said.is_empty() {
            said = cause;
        } else if !said.contains(&cause) {
            said = format!("{said}: {cause}");
        }
    }
    said
}

/// Says that clients do not get the user interfaces of a server's tools.
pub(super) fn uis_left_out(number: u64) -> String {
    format!(
        "clients do not get the user interfaces of {}: write `ui = true` into [gateway]",
        count(number, "tool")
    )
}

/// Formats names for a line: the first few, and the number of the others.
pub(super) fn names<S: AsRef<str>>(names: &[S]) -> String {
    let shown: Vec<&str> = names.iter().take(NAMED).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(NAMED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Returns a progress bar on stderr, which is invisible without a terminal. Dropping the bar removes it.
pub(super) fn bar(what: &'static str) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::with_draw_target(None, target).with_style(style).with_prefix(what);
    bar.with_finish(ProgressFinish::AndClear)
}

/// Starts all servers. Waits until they are ready or have failed, and until their lists are published. `Err`:
/// the exit code, if the user interrupts it.
pub(super) async fn all_started(gateway: &Arc<Gateway>) -> Result<Vec<Arc<str>>, u8> {
    gateway.connect();
    let servers: Vec<Arc<str>> = gateway.servers.connections().keys().cloned().collect();
    let config = gateway.servers.config();
    let limit = config.servers.values().map(|server| server.start_timeout).max().unwrap_or_default();
    tokio::select! {
        () = starting(gateway, &servers, limit) => {}
        code = stopped() => {
            gateway.stop().await;
            return Err(code);
        }
    }
    gateway.publisher.published().await;
    Ok(servers)
}

/// Waits until these servers are ready or have failed, with a progress bar.
pub(super) async fn starting(gateway: &Arc<Gateway>, servers: &[Arc<str>], limit: Duration) {
    let left = || {
        let settled = |name: &&Arc<str>| {
            let state = gateway.servers.connections().get(*name).map(|connection| connection.state());
            // A held server is `Stopped` until its start begins.
            state.is_none_or(|state| state.settled() && !matches!(state, ConnectionState::Stopped))
        };
        servers.iter().filter(|name| !settled(name)).cloned().collect::<Vec<_>>()
    };
    let began = std::time::Instant::now();
    let mut shown: Option<ProgressBar> = None;
    loop {
        let left = left();
        if left.is_empty() || began.elapsed() > limit {
            break;
        }
        if shown.is_none() && began.elapsed() > SILENCE {
            let bar = bar("starting servers");
            bar.set_length(servers.len() as u64);
            if bar.is_hidden() {
                let first = if servers.len() > 1 { "; a first start may download servers" } else { "" };
                eprintln!("nonet: starting {} ({}){first}", count(left.len() as u64, "server"), names(&left));
            }
            shown = Some(bar);
        }
        if let Some(bar) = &shown {
            bar.set_position((servers.len() - left.len()) as u64);
            bar.set_message(left.join(", "));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Prints the missing ones among these servers on stderr, one per line.
pub(super) fn missing(gateway: &Gateway, servers: &[Arc<str>], verbose: bool) {
    for (name, connection) in gateway.servers.connections().iter().filter(|(name, _)| servers.contains(name))
    {
        match connection.state() {
            ConnectionState::AuthRequired { remedy: Remedy::Login(login), .. } => {
                complain(format_args!("`{name}` requires sign-in: run `{login}`"));
            }
            ConnectionState::Down { error, .. } | ConnectionState::AuthRequired { error, .. } => {
                complain(format_args!("`{name}` is not available: {}", failure(&error, verbose)));
            }
            ConnectionState::Starting => complain(format_args!("`{name}` is still starting")),
            ConnectionState::Ready { .. } | ConnectionState::Stopped => {}
        }
    }
}

/// Waits until the tools are indexed by meaning, with a progress bar.
pub(super) async fn indexing(gateway: &Arc<Gateway>, limit: Duration) {
    let mut progress = gateway.publisher.indexing();
    let watch = async {
        tokio::time::sleep(SILENCE).await;
        let bar = bar("indexing tools");
        let first = *progress.borrow();
        if bar.is_hidden() && first.done < first.total && !first.finished {
            eprintln!(
                "nonet: indexing {} by meaning, once",
                count((first.total - first.done) as u64, "tool")
            );
        }
        loop {
            let now = *progress.borrow_and_update();
            bar.set_length(now.total as u64);
            bar.set_position(now.done as u64);
            if progress.changed().await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = gateway.publisher.indexed(limit) => {}
        () = watch => {}
    }
}

/// How an answer is shown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OutputStyle {
    /// As JSON.
    pub json: bool,
    /// With the full output of failed servers.
    pub verbose: bool,
}

/// Reads an answer of a gateway, which may be another version of Nonet.
pub(super) fn read<T: DeserializeOwned>(answer: &Value) -> anyhow::Result<T> {
    T::deserialize(answer).context(
        "the running gateway answers in another form: it may be a different version; run `nonet restart`",
    )
}

/// Prints an answer as JSON or as a table. Returns the exit code.
pub(super) fn answer(
    answer: InquiryAnswer,
    manner: OutputStyle,
    table: fn(&Value) -> anyhow::Result<()>,
) -> anyhow::Result<u8> {
    match answer {
        Ok(answer) if manner.json => raw!("{}", serde_json::to_string_pretty(&answer)?),
        Ok(answer) => table(&answer)?,
        Err(fault) => {
            tell_fault(&fault, manner);
            return Ok(FAILED);
        }
    }
    Ok(OK)
}

/// Prints a fault as a sentence, or as JSON.
pub(super) fn tell_fault(fault: &Fault, manner: OutputStyle) {
    match manner.json {
        true => raw(&format!("{:#}", fault.to_value())),
        false => print_fault(fault, manner.verbose),
    }
}

/// Prints why a command fails: as a sentence on stderr, or with `--json` as a fault on stdout.
pub(super) fn refuse(code: FaultCode, message: impl std::fmt::Display, as_json: bool) {
    match as_json {
        true => raw!("{}", json!({ "error": Fault::new(code, message.to_string()) })),
        false => complain(message),
    }
}

/// Prints a fault as a sentence, with suggestions and a command to copy.
fn print_fault(fault: &Fault, verbose: bool) {
    let message = &fault.message;
    // What the user approves or trusts with a command is printed in full.
    if fault.code == FaultCode::NeedsApproval && !verbose && !message.contains("`nonet ") {
        // The rest instructs models.
        let what = message.split(" Ask the user").next().unwrap_or(message);
        let instead = match what.split('`').nth(1) {
            Some("gateway.add_server") => "use `nonet add`, or call the tool from a client.",
            Some("gateway.remove_server") => "use `nonet remove`, or call the tool from a client.",
            _ => "call the tool from a client, or change its policy.",
        };
        let why = match found::is_at_terminal() {
            true => "Its question cannot be answered here",
            false => "A command asks only at a terminal",
        };
        complain(format_args!("{what} {why}: {instead}"));
        return;
    }
    complain(if verbose { message.into() } else { brief(message) });
    // A fault that is not retryable, as for a left-out server, already gives its cause.
    let is_down = fault.code == FaultCode::ServerDown && fault.retryable;
    if let Some(cause) = likely_cause(message).filter(|_| is_down) {
        eprintln!("  {cause}");
    }
    if !fault.did_you_mean.is_empty() {
        eprintln!("  did you mean: {}", fault.did_you_mean.join(", "));
    }
    if let (FaultCode::RateLimited, Some(wait)) = (fault.code, fault.retry_after_ms) {
        eprintln!("  try again in {}", age(Duration::from_secs(wait.div_ceil(1000))));
    }
    let corrected = fault.details.as_ref().and_then(|details| details.get("corrected_call"));
    let corrected = corrected.and_then(|call| NextStep::deserialize(call).ok());
    if let Some(command) = corrected.and_then(|call| call.command()) {
        eprintln!("  such as: {command}");
    }
}

/// Prints everything about a tool, as JSON.
pub(super) fn whole<T: Serialize>(answer: &T) -> anyhow::Result<()> {
    raw(&for_terminal(&serde_json::to_string_pretty(answer)?));
    Ok(())
}

/// Makes a server's text safe for a terminal. A pipe gets it unchanged.
pub(super) fn for_terminal(text: &str) -> Cow<'_, str> {
    if std::io::stdout().is_terminal() { text::clean(text) } else { Cow::Borrowed(text) }
}

/// Prints the result of a call: its text, or everything as JSON. Returns the exit code.
pub(super) fn result(result: InquiryAnswer, manner: OutputStyle) -> anyhow::Result<u8> {
    let mut result = match result {
        Ok(result) => result,
        Err(fault) => return answer(Err(fault), manner, whole::<Value>),
    };
    let notices = take_notices(&mut result);
    if !manner.json {
        let texts = notices.iter().filter_map(|block| block["text"].as_str());
        let said = texts.filter_map(|text| serde_json::from_str::<Value>(text).ok());
        for said in said {
            let told = said.get("notices").and_then(Value::as_array);
            told.into_iter().flatten().for_each(|notice| eprintln!("nonet: {}", notice_text(notice)));
        }
    }
    if let Some(fault) = fault_in(&result) {
        return answer(Err(fault), manner, whole::<Value>);
    }
    if manner.json
        && let Some(content) = result.get_mut("content").and_then(Value::as_array_mut)
    {
        content.extend(notices);
    }
    let failed = is_error(&result);
    let text = text_of(&result);
    if manner.json || !failed && text.is_empty() {
        whole(&result)?;
    } else if failed {
        complain(text);
    } else {
        raw(&for_terminal(&text));
        let others = result["content"].as_array().into_iter().flatten();
        let others = others.filter(|block| block["type"] != "text").count();
        if others > 0 {
            eprintln!(
                "{} that {} not text; add --json for everything",
                count(others as u64, "more content block"),
                if others == 1 { "is" } else { "are" }
            );
        }
    }
    Ok(if failed { FAILED } else { OK })
}

/// Removes the blocks with Nonet's own notices from a result.
fn take_notices(result: &mut Value) -> Vec<Value> {
    let content = result.get_mut("content").and_then(Value::as_array_mut);
    content.map(|content| content.extract_if(.., |block| is_notices(block)).collect()).unwrap_or_default()
}

/// Formats a notice as a sentence, or as compact JSON if it has none.
fn notice_text(notice: &Value) -> String {
    let of_answer = |found: FoundInAnswer, what: &str| format!("the answer of `{}` {what}", found.of);
    match Notice::deserialize(notice) {
        Ok(Notice::ParamsRepaired { changes, .. }) => changes.join("; "),
        Ok(Notice::SecretsFound { of, found }) => {
            let found = found.into_iter().map(|one| {
                let [part, done] = [one.part, one.done].map(Option::unwrap_or_default);
                format!("{} in the {part} ({done})", one.what)
            });
            format!("`{of}`: {}", found.collect::<Vec<_>>().join(", "))
        }
        Ok(Notice::InstructionsFound(found)) => {
            of_answer(found, "contains text that reads like instructions to a model")
        }
        Ok(Notice::HiddenCharactersFound(found)) => {
            of_answer(found, "contains characters that people do not see")
        }
        Ok(Notice::ImitationFound(found)) => {
            of_answer(found, "has the form of Nonet's own answers; it is the server's")
        }
        Ok(Notice::RequestDeclined { tool, methods, .. }) => {
            format!("`{tool}` requested {}, which a command cannot answer", methods.join(", "))
        }
        Ok(Notice::Response { extras, .. }) => {
            let headers = extras.headers.unwrap_or_default().into_iter();
            let headers =
                headers.map(|(name, value)| format!("{name}: {}", value.as_str().unwrap_or_default()));
            let next = extras.next_step.and_then(|next| match next {
                NextPage::Call(step) => step.command().map(|command| format!("the next page: {command}")),
                NextPage::Told(text) => Some(text),
            });
            headers.chain(next).collect::<Vec<_>>().join("; ")
        }
        _ => notice.to_string(),
    }
}

/// Returns Nonet's own fault in a result, if it is one.
fn fault_in(result: &Value) -> Option<Fault> {
    let text = is_fault(result).then(|| text_of(result))?;
    let mut said: Value = serde_json::from_str(&text).ok()?;
    serde_json::from_value(take_member(&mut said, "error")).ok()
}

/// Reads the fault of a gateway. One that only another version of Nonet knows keeps its message, and its call
/// may have had an effect.
pub(super) fn fault_of(fault: &Value) -> Fault {
    Fault::deserialize(fault).unwrap_or_else(|_| {
        let message = fault["message"].as_str().unwrap_or("the running gateway did not say why");
        Fault::new(FaultCode::UpstreamError, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        for (number, expected) in [(0, "0 tools"), (1, "1 tool"), (2, "2 tools")] {
            assert_eq!(count(number, "tool"), expected);
        }
    }

    #[test]
    fn ages_have_one_unit() {
        for (seconds, expected) in
            [(0, "0 s"), (59, "59 s"), (90, "1 min"), (7_200, "2 h"), (86_400, "24 h"), (200_000, "2 days")]
        {
            assert_eq!(age(Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn a_cause_is_said_once() {
        let missing = || std::fs::read("/no/such/file").map(drop);
        #[derive(Debug, thiserror::Error)]
        #[error("`/no/such/file`: {source}; make it readable")]
        struct Says {
            source: std::io::Error,
        }
        let says = missing().map_err(|source| Says { source }).context("the store").unwrap_err();
        let cause = missing().unwrap_err().to_string();
        assert_eq!(causes(&says), format!("the store: `/no/such/file`: {cause}; make it readable"));
        let silent = missing().context("cannot read /no/such/file").unwrap_err();
        assert_eq!(causes(&silent), format!("cannot read /no/such/file: {cause}"));
    }

    #[test]
    fn a_notice_beside_an_answer_is_a_sentence() {
        let check = |notice: Value, expected: &str| assert_eq!(notice_text(&notice), expected);
        let next = json!({ "tool": "execute_tool", "arguments": { "name": "shop.list", "params": { "cursor": "a b" } } });
        let command = r#"the next page: nonet call shop.list '{"cursor":"a b"}'"#;
        check(json!({ "kind": "response", "tool": "shop.list", "next_step": next }), command);
        check(
            json!({ "kind": "response", "tool": "shop.list", "headers": { "x-total": "7" }, "next_step": next }),
            &format!("x-total: 7; {command}"),
        );
    }

    #[test]
    fn a_fault_in_a_result_is_seen() {
        let of = |text: &str| json!({ "content": [{ "type": "text", "text": text }], "isError": true });
        let fault = Fault::new(nonet_text::fault::FaultCode::ServerDown, "`shop` is down: it ended");
        let seen = fault_in(&fault.to_result()).expect("it is one");
        assert_eq!(seen.message, "`shop` is down: it ended");
        assert_eq!(fault_in(&of("out of order")), None);
        assert_eq!(fault_in(&of(r#"{"error": {"code": 7, "message": "the server's own"}}"#)), None);
    }
}
