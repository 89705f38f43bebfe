//! Failed calls as the model reads them: what happened, where, and what to do next.

use std::{borrow::Cow, sync::LazyLock, time::Duration};

use nonet_base::{json::take_member, text::clip};
use nonet_config::select::SelectError;
use nonet_parts::kept;
use nonet_schema::ParamsMismatch;
use nonet_servers::{
    catalog::Tool,
    downstream::{BreakerRefusal, CallError, ConnectionState, Remedy},
};
use nonet_store::StoreError;
use nonet_text::{
    fault::{Fault, FaultCode},
    results::{is_fault, text_of, without_repeats},
};
use regex::Regex;
use rmcp::model::{ErrorCode, ErrorData};
use serde_json::{Map, Value, json};

/// How much of an error a sentence quotes, in characters.
const MAX_WHY: usize = 2_000;
/// How many unknown params a note lists.
const MAX_NAMES: usize = 20;
/// When to retry a call of a server that accepts no calls and does not say for how long.
const UNSAID: Duration = Duration::from_secs(30);
/// When to retry work that needs Redis.
const AWAY: Duration = Duration::from_secs(2);

/// Explains what a failed store means for a call. Once Redis is back, the call can be repeated.
pub fn of_store(what: &str, error: &StoreError) -> Fault {
    let fault = Fault::new(FaultCode::Internal, format!("{what}: {error}."));
    match error {
        StoreError::Away { .. } => fault.retry_after(AWAY),
        _ => fault,
    }
}

/// Explains why nothing was called: a filter cannot be used.
pub fn wrong_filter(whose: &str, error: &SelectError) -> Fault {
    match error {
        SelectError::Busy(_) => kept::busy(error),
        error => Fault::new(FaultCode::InvalidParams, format!("{whose}: {error}. Nothing was called.")),
    }
}

/// Explains why a server accepts no calls.
pub fn not_ready(server: &str, state: ConnectionState) -> Fault {
    match state {
        ConnectionState::Starting => Fault::new(
            FaultCode::ServerStarting,
            format!("`{server}` has not finished starting. Call again in a few seconds."),
        )
        .retry_after(Duration::from_secs(5)),
        ConnectionState::Down { error, retry_at } => {
            let wait = retry_at.saturating_duration_since(tokio::time::Instant::now());
            Fault::new(FaultCode::ServerDown, format!("`{server}` is down: {error}"))
                .retry_after(wait.max(Duration::from_millis(500)))
        }
        ConnectionState::AuthRequired { error, remedy } => {
            let sign_in = matches!(remedy, Remedy::Login(_)).then(|| server.into());
            let text = match remedy {
                Remedy::Login(login) => {
                    let more = if login.contains(" --scope ") { " with more scopes" } else { "" };
                    format!(
                        "`{server}` requires sign-in{more}. The user must run `{login}` in a terminal, which opens a browser; Nonet connects as soon as that is done."
                    )
                }
                Remedy::Page(page) => sign_in_at(server, &page),
                Remedy::Exchange => format!(
                    "`{server}` gives no access for the token of this person ({error}). The person must sign in again with their \
                     client, or ask whoever runs this gateway about `credentials` of [servers.{server}]."
                ),
                Remedy::Client => format!(
                    "`{server}` rejects Nonet's OAuth client ({error}). The user must check `client_id`, `client_secret` and `scopes` in `oauth` of [servers.{server}]; Nonet reloads the changed file at once."
                ),
                Remedy::Headers | Remedy::AsDocumented | Remedy::OtherHost(_) => format!(
                    "`{server}` requires sign-in ({error}). The user must put valid credentials into `headers` of [servers.{server}]; Nonet reloads the changed file at once."
                ),
            };
            Fault { sign_in, ..Fault::new(FaultCode::AuthRequired, text) }
        }
        ConnectionState::Stopped | ConnectionState::Ready { .. } => Fault::new(
            FaultCode::ServerDown,
            format!(
                "`{server}` is stopped: the user has disabled it on the live page, or Nonet is shutting down."
            ),
        ),
    }
}

/// Says where a person signs in to a server.
fn sign_in_at(server: &str, page: &str) -> String {
    format!(
        "`{server}` requires sign-in with the user's own account. Give the user this link to open in a browser, and call again \
         once they have signed in there: {page}"
    )
}

/// The warning for a call that a second call might repeat.
const OPEN: &str = " The call may or may not have taken effect: check before you call again.";

/// Turns a failed call into a fault.
pub fn call_fault(tool: &Tool, error: CallError) -> Fault {
    let mut fault = fault_of(tool, error);
    if let Cow::Owned(shorter) = without_repeats(&fault.message) {
        fault.message = shorter;
    }
    fault
}

fn fault_of(tool: &Tool, error: CallError) -> Fault {
    let server = &tool.server;
    match error {
        CallError::NotReady(state) => not_ready(server, state),
        CallError::Resting(resting) => is_resting(tool, &resting),
        CallError::Busy(1) => Fault::new(
            FaultCode::RateLimited,
            format!("`{server}` accepts one call at a time, and earlier calls are still in flight."),
        )
        .retry_after(Duration::from_secs(1)),
        CallError::Busy(most) => Fault::new(
            FaultCode::RateLimited,
            format!("`{server}` already has {most} calls in flight (its `max_concurrency`), and none finished in time."),
        )
        .retry_after(Duration::from_secs(1)),
        CallError::Closed(why) => Fault::new(
            FaultCode::ServerDown,
            format!("`{server}` disconnected during the call to `{}`: {why}. Nonet is restarting the server. The call may or may not have taken effect.", tool.name),
        )
        .retry_after(Duration::from_secs(1)),
        CallError::TimedOut(limit) => {
            // The tool declares that a second call has a further effect.
            let is_open = !tool.is_repeatable() && tool.definition["annotations"]["idempotentHint"] == false;
            let effect = if is_open { OPEN } else { "" };
            let message = format!(
                "`{}` did not answer within {}, so the call was cancelled. Set a longer `timeout_ms`, or use `background`.{effect}",
                tool.full,
                humantime::format_duration(limit)
            );
            Fault { retryable: !is_open, ..Fault::new(FaultCode::Timeout, message) }
        }
        CallError::Cancelled => {
            Fault::new(FaultCode::Cancelled, format!("The call to `{}` was cancelled.", tool.full))
        }
        CallError::Rpc(error) => rpc_fault(tool, &error),
        CallError::Params(why) => {
            let message = format!("The params do not fit `{}`: {why}.", tool.full);
            Fault::new(FaultCode::InvalidParams, message).next("get_tool", json!({ "name": &*tool.full }))
        }
        CallError::NotSent(why) => {
            let message =
                format!("`{}` was not called: {why}. Tell the user, or use another tool.", tool.full);
            Fault::new(FaultCode::UpstreamError, message)
        }
        CallError::NotAllowed { error, remedy } => not_allowed(tool, &error, remedy),
        CallError::RateLimited { error, wait } => {
            let message = format!("`{server}` accepts no more calls for now ({error}). Wait before the next call of any of its tools.");
            Fault::new(FaultCode::RateLimited, message).retry_after(wait.unwrap_or(UNSAID))
        }
        CallError::Upstream { error, wait, is_open, .. } => {
            let next = if is_open { OPEN } else { " Call it again later, or use another tool." };
            let message = format!("`{}` failed: {error}.{next}", tool.full);
            let fault = Fault::new(FaultCode::UpstreamError, message);
            let fault = wait.into_iter().fold(fault, Fault::retry_after);
            Fault { retryable: !is_open, ..fault }
        }
        CallError::Unreadable(why) => {
            let why = why.trim_end_matches('.');
            let message =
                format!("`{server}` sent an unusable answer: {why}. Tell the user, or use another tool.");
            Fault::new(FaultCode::UpstreamError, message)
        }
    }
}

/// Builds the fault for a call of a resting tool or server.
fn is_resting(tool: &Tool, resting: &BreakerRefusal) -> Fault {
    let BreakerRefusal { is_server, failures, error, wait } = resting;
    let (code, name) = if *is_server {
        (FaultCode::ServerDown, &tool.server)
    } else {
        (FaultCode::UpstreamError, &tool.full)
    };
    let wait_shown = humantime::format_duration(Duration::from_secs(wait.as_secs().max(1)));
    let message = format!(
        "Calls to `{name}` are paused: {failures} calls in a row got no answer ({error}). One call may try again in {wait_shown}."
    );
    Fault::new(code, message).retry_after(*wait)
}

/// Builds the fault for a call that the given credentials do not allow. Other calls continue.
fn not_allowed(tool: &Tool, error: &str, remedy: Remedy) -> Fault {
    let Tool { server, full, .. } = tool;
    let task = match remedy {
        Remedy::Login(login) => format!("run `{login}` in a terminal, which opens a browser"),
        Remedy::Page(page) => format!("sign in with their own account, at this link in a browser: {page}"),
        Remedy::Exchange => {
            format!(
                "ask whoever runs this gateway for a token with more scopes (`credentials` of [servers.{server}])"
            )
        }
        Remedy::Client => {
            format!("check `client_id`, `client_secret` and `scopes` in `oauth` of [servers.{server}]")
        }
        Remedy::OtherHost(base_url) => format!(
            "add a server with the same `openapi`, `base_url = \"{base_url}\"`, `operations = [\"{}\"]` and \
             `headers`, because those of [servers.{server}] are sent only to the service's host",
            tool.own
        ),
        Remedy::Headers => {
            let variable = variable_for(server);
            format!(
                "put credentials that allow it into `headers` of [servers.{server}], such as \
                 `Authorization = \"Bearer ${{keyring:{variable}}}\"` after `nonet secret set {variable}`"
            )
        }
        Remedy::AsDocumented => {
            let variable = variable_for(server);
            format!(
                "put that into `headers` of [servers.{server}], or a key of the query into its `base_url`, as \
                 `${{keyring:{variable}}}` after `nonet secret set {variable}`"
            )
        }
    };
    let message = format!(
        "`{server}` does not allow the call to `{full}`: {error}. The user must {task}; other tools of `{server}` may work."
    );
    Fault::new(FaultCode::AuthRequired, message)
}

/// Returns the name of a variable for a server's secret.
fn variable_for(server: &str) -> String {
    format!("{}_TOKEN", server.replace('-', "_").to_uppercase())
}

/// Words of tools for an error that passes, with the code that Nonet's own fault would have.
static PASSING: LazyLock<[(Regex, FaultCode); 3]> = LazyLock::new(|| {
    let words = |pattern: &str| Regex::new(&format!("(?i){pattern}")).expect("the pattern is constant");
    // A number of lines or of a port is no status.
    let status = |code: &str| {
        format!(
            r"(?:^|[(\[]|\b(?:status|https?|http/[\d.]+|code|error|returned)\W{{0,3}})(?:{code})(?:\W*$|\W\D)"
        )
    };
    let again = r"try again(?: in\b| later| shortly| soon|\W*$)|retry(?:[ -]after| later| in\b)";
    let down = r"temporarily|temporary (?:failure|error|outage|problem)|(?:service|server|currently) (?:is )?unavailable";
    let down = format!("{down}|overloaded|bad gateway|{again}|{}", status("502|503"));
    let late = format!("timed out|(?:request|gateway) time-?out|{}", status("504"));
    [
        (
            words(&format!("rate.?limit|too many requests|throttl|quota exceeded|{}", status("429"))),
            FaultCode::RateLimited,
        ),
        (words(&late), FaultCode::Timeout),
        (words(&down), FaultCode::ServerDown),
    ]
});

/// Returns the code of Nonet's that an error of a tool means by its words, if the error passes.
fn passing(message: &str) -> Option<FaultCode> {
    let message = clip(message, MAX_WHY);
    PASSING.iter().find(|(words, _)| words.is_match(&message)).map(|(_, code)| *code)
}

/// Whether a call may be made again after an error with one of these codes, or with any retryable code if
/// there are none. The words of a tool's own error count like a code.
pub fn passes(error: &Value, codes: &[String]) -> bool {
    let code = error["code"].as_str().and_then(FaultCode::of);
    let meant = match code {
        Some(FaultCode::UpstreamError) => error["message"].as_str().and_then(passing),
        _ => None,
    };
    [code, meant].into_iter().flatten().any(|code| match codes {
        [] => code.retryable(),
        codes => codes.iter().any(|other| other == code.as_str()),
    })
}

/// Extracts the error of a call for a larger answer: the fault's own object, or the server's text. Such a
/// text is retryable if its words say so.
pub fn error_of(result: &Value) -> Value {
    let text = text_of(result);
    match is_fault(result).then(|| serde_json::from_str::<Value>(&text)) {
        Some(Ok(mut object)) if object.get("error").is_some_and(Value::is_object) => {
            take_member(&mut object, "error")
        }
        _ => {
            let retryable = passing(&text).is_some();
            json!({ "code": FaultCode::UpstreamError, "message": text, "retryable": retryable })
        }
    }
}

/// Returns the message of such an error for a sentence. A larger answer also holds the whole error.
pub fn why(error: &Value) -> String {
    clip(error["message"].as_str().unwrap_or("it failed"), MAX_WHY)
}

/// Builds the fault for invalid params, with the parameter list and a corrected call.
pub fn invalid_params(tool: &Tool, misfit: &ParamsMismatch) -> Fault {
    let parameters: Vec<Value> = tool
        .schema
        .parameters()
        .iter()
        .map(|parameter| {
            let mut entry = json!({ "name": parameter.name, "type": parameter.kind });
            if parameter.required {
                entry["required"] = json!(true);
            }
            if !parameter.description.is_empty() {
                entry["description"] = json!(clip(parameter.description, 120));
            }
            entry
        })
        .collect();
    let message = format!("The params do not fit `{}`: {}.", tool.full, misfit.faults.join("; "));
    let corrected = json!({ "name": &*tool.full, "params": misfit.example });
    let fault = Fault::new(FaultCode::InvalidParams, message);
    let fault = if misfit.example_fits {
        fault.next("execute_tool", corrected.clone())
    } else {
        fault.next("get_tool", json!({ "name": &*tool.full }))
    };
    fault.details(json!({ "parameters": parameters, "corrected_call": { "tool": "execute_tool", "arguments": corrected } }))
}

/// Lists the undeclared params of a call, which go to the server anyway.
pub fn passed_on(tool: &Tool, params: &Map<String, Value>) -> Option<String> {
    let unknown = tool.schema.unknown(params);
    let shown = |names: &[&str]| {
        let shown: Vec<String> = names.iter().take(MAX_NAMES).map(|name| clip(name, 60)).collect();
        shown.join(", ") + if names.len() > MAX_NAMES { ", ..." } else { "" }
    };
    let were = match unknown.len() {
        0 => return None,
        1 => "it was",
        _ => "they were",
    };
    let parameters = tool.schema.parameters();
    let takes: Vec<&str> = parameters.iter().map(|parameter| parameter.name).collect();
    let takes = if takes.is_empty() { String::new() } else { format!(". It accepts: {}", shown(&takes)) };
    Some(format!(
        "`{}` does not declare `{}`; {were} passed on{takes}",
        tool.name,
        shown(&unknown).replace(", ", "`, `")
    ))
}

fn rpc_fault(tool: &Tool, error: &ErrorData) -> Fault {
    let mut details = json!({ "server": &*tool.server, "rpc_code": error.code.0 });
    if let Some(data) = &error.data {
        details["data"] = data.clone();
    }
    let message = format!("`{}` refused the call to `{}`: {}", tool.server, tool.name, error.message);
    let fault = Fault::new(FaultCode::UpstreamError, message).details(details);
    // The definition helps only against wrong params.
    let fault = match error.code {
        ErrorCode::INVALID_PARAMS => fault.next("get_tool", json!({ "name": &*tool.full })),
        _ => fault,
    };
    Fault { refusal: Some(Box::new(error.clone())), ..fault }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_tool_is_retryable_by_its_words() {
        let check = |text: &str, expected: Option<FaultCode>| {
            let error = error_of(&json!({ "content": [{ "type": "text", "text": text }], "isError": true }));
            assert_eq!(error["retryable"], expected.is_some(), "{text}");
            assert_eq!(passing(text), expected, "{text}");
            assert_eq!(passes(&error, &[]), expected.is_some(), "{text}");
            let other = expected.map_or(FaultCode::ServerDown, |code| match code {
                FaultCode::Timeout => FaultCode::RateLimited,
                _ => FaultCode::Timeout,
            });
            assert!(!passes(&error, &[other.as_str().into()]), "{text}");
            assert!(passes(&error, &["upstream_error".into()]), "{text}");
        };
        for text in [
            "503",
            "HTTP 503",
            "Error: 503 Service Unavailable",
            "status code: 503.",
            "The service is temporarily down",
            "Busy, try again",
            "Please try again in 5 seconds",
            "API returned 502",
        ] {
            check(text, Some(FaultCode::ServerDown));
        }
        for text in ["429", "HTTP/1.1 429", "Rate limit reached", "rate_limited", "Too many requests"] {
            check(text, Some(FaultCode::RateLimited));
        }
        check("Request timed out", Some(FaultCode::Timeout));
        for text in [
            "out of order",
            "File not found: 503.txt",
            "syntax error in line 503: x",
            "port 5033 is taken",
            "14290 rows",
            "found 503 rows",
            "`timeout` must be a number",
            "no temporary file",
            "Try again with a valid path",
            "no such issue: 1503",
        ] {
            check(text, None);
        }
    }
}
