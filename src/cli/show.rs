//! What people see: tables, progress bars, results.

use std::{io::IsTerminal, sync::Arc, time::Duration};

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use super::{FAILED, OK};
use crate::{
    downstream::{Remedy, State},
    fault::Fault,
    gateway::{Gateway, session::Caller},
    policy::Verdict,
    results::text_of,
};

/// Prints a line on stdout. A reader that has left, as `head` does, ends the program without a word.
pub fn line(text: &str) {
    use std::io::Write;
    if let Err(error) = writeln!(std::io::stdout(), "{text}") {
        std::process::exit(if error.kind() == std::io::ErrorKind::BrokenPipe {
            0
        } else {
            i32::from(FAILED)
        });
    }
}

/// A progress bar on stderr; invisible where stderr is no terminal.
pub fn bar(what: &'static str) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(None, target).with_style(style).with_prefix(what)
}

/// Waits until every server is ready or has failed, and shows how far that has come.
pub async fn starting(gateway: &Arc<Gateway>, limit: Duration) {
    let bar = bar("starting servers");
    bar.set_length(gateway.connections().len() as u64);
    let watch = async {
        loop {
            let connections = gateway.connections();
            let left: Vec<&str> = connections
                .iter()
                .filter(|(_, connection)| !connection.state().settled())
                .map(|(name, _)| &**name)
                .collect();
            bar.set_position((connections.len() - left.len()) as u64);
            bar.set_message(left.join(", "));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        () = gateway.settled(limit) => {}
        () = watch => {}
    }
    bar.finish_and_clear();
    for (name, connection) in gateway.connections().iter() {
        match connection.state() {
            State::AuthRequired { remedy: Remedy::Login(login), .. } => {
                eprintln!("nonet: `{name}` wants a sign-in: run `{login}`");
            }
            State::Down { error, .. } | State::AuthRequired { error, .. } => {
                eprintln!("nonet: `{name}` is not available: {error}");
            }
            State::Starting => eprintln!("nonet: `{name}` is still starting"),
            _ => {}
        }
    }
}

/// Waits until the tools are indexed by meaning, and shows how far that has come.
pub async fn indexing(gateway: &Arc<Gateway>, limit: Duration) {
    let bar = bar("indexing tools");
    let mut progress = gateway.indexing();
    let watch = async {
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
        () = gateway.indexed(limit) => {}
        () = watch => {}
    }
    bar.finish_and_clear();
}

/// Prints an answer as JSON or as a table; gives the exit code.
pub fn answer(answer: Result<Value, Fault>, as_json: bool, table: fn(&Value)) -> anyhow::Result<u8> {
    match answer {
        Ok(answer) if as_json => say!("{}", serde_json::to_string_pretty(&answer)?),
        Ok(answer) => table(&answer),
        Err(fault) => {
            if as_json {
                say!("{}", serde_json::to_string_pretty(&fault.to_value())?);
            } else {
                print_fault(&fault);
            }
            return Ok(FAILED);
        }
    }
    Ok(OK)
}

fn print_fault(fault: &Fault) {
    eprintln!("nonet: {fault}");
    if !fault.did_you_mean.is_empty() {
        eprintln!("  did you mean: {}", fault.did_you_mean.join(", "));
    }
}

/// A table that fits the terminal, without borders.
pub fn plain_table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_header(head);
    if !std::io::stdout().is_terminal() {
        // Whoever reads a pipe wants whole lines.
        table.set_content_arrangement(ContentArrangement::Disabled);
    }
    table
}

fn field<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The answer of `search_tools`.
pub fn search_table(answer: &Value) {
    let mut table = plain_table(&["SCORE", "TOOL", "RISK", "DESCRIPTION"]);
    for hit in answer["results"].as_array().into_iter().flatten() {
        let state = field(hit, "state");
        let name = if state.is_empty() {
            field(hit, "name").into()
        } else {
            format!("{} ({state})", field(hit, "name"))
        };
        let score = hit["score"].as_f64().unwrap_or(0.0);
        table.add_row([
            format!("{score:.3}"),
            name,
            field(hit, "risk").into(),
            field(hit, "description").into(),
        ]);
    }
    say!("{table}");
    tell_confidence(answer);
}

fn tell_confidence(answer: &Value) {
    eprintln!("confidence: {}", field(answer, "confidence"));
    let hint = field(answer, "hint");
    if !hint.is_empty() {
        eprintln!("{hint}");
    }
}

/// The same with what each signal adds to each score.
pub fn explained_table(answer: &Value) {
    let mut table =
        plain_table(&["SCORE", "TOOL", "MEANING", "KEYWORDS", "LETTERS", "LEARNED", "WORDS", "BECAUSE"]);
    for hit in answer["results"].as_array().into_iter().flatten() {
        let why = &hit["explain"];
        let share = |of: &Value| format!("{:.3}", of.as_f64().unwrap_or(0.0));
        let word = |word: &Value| match field(word, "for") {
            "" => format!("{} {}", field(word, "word"), share(&word["share"])),
            said => format!("{} (for {said}) {}", field(word, "word"), share(&word["share"])),
        };
        let words: Vec<String> = why["words"].as_array().into_iter().flatten().map(word).collect();
        let mut because = Vec::new();
        if why["name"] == true {
            because.push("its name".to_owned());
        }
        if !field(why, "part").is_empty() {
            because.push(format!("the part `{}`", field(why, "part")));
        }
        if let Some(learned) = why["learned_from"].as_array() {
            let learned: Vec<&str> = learned.iter().filter_map(Value::as_str).collect();
            because.push(format!("called after a search for `{}`", learned.join(" ")));
        }
        for (signal, gained, lost) in [
            ("action", "it does what is wanted", "it does something else"),
            ("product", "its product was named", "it is bound to a product that was not named"),
            ("deprecated", "", "it is deprecated"),
        ] {
            match why["signals"][signal].as_f64().unwrap_or(0.0) {
                worth if worth > 0.0 => because.push(format!("{gained} ({worth:+.3})")),
                worth if worth < 0.0 => because.push(format!("{lost} ({worth:+.3})")),
                _ => {}
            }
        }
        if let Some(priority) = why["priority"].as_f64() {
            let worth = why["signals"]["priority"].as_f64().unwrap_or(0.0);
            because.push(format!("its priority of {priority} ({worth:+.3})"));
        }
        table.add_row([
            share(&hit["score"]),
            field(hit, "name").to_owned(),
            share(&why["signals"]["meaning"]),
            share(&why["signals"]["keywords"]),
            share(&why["signals"]["letters"]),
            share(&why["signals"]["learned"]),
            words.join(", "),
            because.join(", "),
        ]);
    }
    say!("{table}");
    tell_confidence(answer);
}

/// Every tool that the caller may see.
pub fn all_tools(gateway: &Gateway, caller: &Caller) -> Value {
    let snapshot = gateway.snapshot();
    let tools: Vec<Value> = snapshot
        .catalog
        .visible()
        .filter(|tool| !matches!(gateway.verdict(caller, tool), Verdict::Deny(_)))
        .map(|tool| {
            json!({
                "name": &*tool.full,
                "wire_name": &*tool.wire,
                "server": &*tool.server,
                "description": tool.description,
                "signature": tool.signature,
                "risk": tool.risk,
                "version": tool.version,
            })
        })
        .collect();
    json!({ "total": tools.len(), "tools": tools })
}

/// The answer of [`all_tools`].
pub fn tools_table(answer: &Value) {
    let mut table = plain_table(&["TOOL", "RISK", "DESCRIPTION"]);
    for tool in answer["tools"].as_array().into_iter().flatten() {
        let description = field(tool, "description").split_whitespace().collect::<Vec<_>>().join(" ");
        table.add_row([field(tool, "name"), field(tool, "risk"), &crate::schema::clip(&description, 100)]);
    }
    say!("{table}");
    eprintln!("{} tools", answer["total"]);
}

/// The result of a call: its text, or everything as JSON.
pub fn result(result: &Value, as_json: bool) {
    if as_json {
        line(&serde_json::to_string_pretty(result).unwrap_or_default());
        return;
    }
    let text = text_of(result);
    if crate::results::is_error(result) {
        eprintln!("nonet: {text}");
    } else if text.is_empty() {
        line(&serde_json::to_string_pretty(result).unwrap_or_default());
    } else {
        say!("{text}");
        let others = result["content"].as_array().into_iter().flatten();
        let others = others.filter(|block| block["type"] != "text").count();
        if others > 0 {
            eprintln!("{others} more content blocks that are no text; --json shows them");
        }
    }
}
