//! The answers of `nonet search` and `nonet tools` as tables.

use nonet_base::text::clip;
use serde_json::Value;

use super::{
    show::{WordStyle, count, field, for_people, names, paint, plain_table},
    table::PlainTable,
};

/// Prints the answer of `search_tools`.
pub(super) fn search_table(answer: &Value) {
    if was_without_query(answer) {
        return;
    }
    let mut table = plain_table(&["SCORE", "TOOL", "RISK", "DESCRIPTION"]);
    for hit in answer["results"].as_array().into_iter().flatten() {
        let state = field(hit, "state");
        let name = if state.is_empty() {
            field(hit, "name").into()
        } else {
            format!("{} ({state})", field(hit, "name"))
        };
        let score = hit["score"].as_f64().unwrap_or(0.0);
        // The same tool on other servers.
        let also: Vec<&str> =
            hit["also"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let about = match &also[..] {
            [] => field(hit, "description").to_owned(),
            also => format!("(also {}) {}", names(also), field(hit, "description")),
        };
        table.add_row([format!("{score:.3}"), name, risk(hit), about]);
    }
    say!("{}", table.clipped(2));
    tell_confidence(answer);
}

/// Prints the answer to a search without words, which lists the categories or one category's tools. Returns
/// false, printing nothing, for any other answer.
fn was_without_query(answer: &Value) -> bool {
    if let Some(categories) = answer["categories"].as_array() {
        let mut table = plain_table(&["CATEGORY", "TOOLS", "DESCRIPTION"]);
        for category in categories {
            let about = [field(category, "description"), field(category, "hint")];
            let about = about.into_iter().find(|text| !text.is_empty()).unwrap_or_default();
            let tools = category["tool_count"].as_u64().unwrap_or(0);
            table.add_row([field(category, "name").to_owned(), tools.to_string(), about.to_owned()]);
        }
        say!("{}", table.clipped(2));
        return true;
    }
    let is_list = answer["tools"].is_array();
    if is_list {
        tools_table(answer);
    }
    is_list
}

/// Returns the worst effect of a call, in its colour.
fn risk(tool: &Value) -> String {
    match field(tool, "risk") {
        "high" => paint(WordStyle::Bad, "high"),
        "medium" => paint(WordStyle::Warn, "medium"),
        other => other.into(),
    }
}

fn tell_confidence(answer: &Value) {
    eprintln!("confidence: {}", field(answer, "confidence"));
    let hint = field(answer, "hint");
    if !hint.is_empty() {
        eprintln!("{}", for_people(hint));
    }
}

/// Prints the answer of `search_tools`, with each signal's share of the scores.
pub(super) fn explained_table(answer: &Value) {
    if was_without_query(answer) {
        return;
    }
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
            because.push("name".to_owned());
        }
        if !field(why, "part").is_empty() {
            because.push(format!("the part `{}`", field(why, "part")));
        }
        if let Some(learned) = why["learned_from"].as_array() {
            let learned: Vec<&str> = learned.iter().filter_map(Value::as_str).collect();
            because.push(format!("called after a search for `{}`", learned.join(" ")));
        }
        for (signal, gained, lost) in [
            ("action", "its action matches", "its action differs"),
            ("product", "its product was named", "its product was not named"),
            ("deprecated", "", "it is deprecated"),
        ] {
            match why["signals"][signal].as_f64().unwrap_or(0.0) {
                worth if worth > 0.0 => because.push(format!("{gained} ({worth:+.3})")),
                worth if worth < 0.0 => because.push(format!("{lost} ({worth:+.3})")),
                _ => {}
            }
        }
        let worth = why["signals"]["priority"].as_f64().unwrap_or(0.0);
        match why["priority"].as_f64() {
            Some(priority) => because.push(format!("its priority of {priority} ({worth:+.3})")),
            None if worth < 0.0 => because.push(format!("it ranks below servers' tools ({worth:+.3})")),
            None => {}
        }
        match field(why, "tie") {
            "state" => because.push("tie: its server is ready".to_owned()),
            "cost" => because.push("tie: its calls cost less".to_owned()),
            _ => {}
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

/// Prints every tool, one per line.
pub(super) fn tools_table(answer: &Value) {
    let mut table = plain_table(&["TOOL", "RISK", "DESCRIPTION"]);
    let add = |table: &mut PlainTable, tool: &Value| {
        let description = field(tool, "description").split_whitespace().collect::<Vec<_>>().join(" ");
        table.add_row([field(tool, "name").to_owned(), risk(tool), clip(&description, 100)]);
    };
    for tool in answer["tools"].as_array().into_iter().flatten() {
        add(&mut table, tool);
    }
    let thing = match field(answer, "category") {
        "skills" => "skill",
        "apps" => "app",
        _ => "tool",
    };
    let mut counted = vec![count(answer["total"].as_u64().unwrap_or(0), thing)];
    for (key, thing) in [("skills", "skill"), ("apps", "app")] {
        let Some(others) = answer[key].as_array() else { continue };
        others.iter().for_each(|other| add(&mut table, other));
        counted.push(count(others.len() as u64, thing));
    }
    say!("{}", table.clipped(1));
    eprintln!("{}", counted.join(", "));
}
