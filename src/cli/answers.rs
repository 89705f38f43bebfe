//! The answers of `nonet search` and `nonet tools` as tables.

use nonet_api::tools::{
    Found, ListedTool, RankExplanation, Risk, SearchAnswer, TieBreak, ToolList, ToolPage,
};
use nonet_base::text::clip;
use nonet_search::Confidence;
use serde_json::Value;

use super::show::{self, WordStyle, count, names, paint, plain_table};

/// Prints the answer of `search_tools`.
pub(super) fn search_table(answer: &Value) -> anyhow::Result<()> {
    let Some(found) = hits(answer)? else { return Ok(()) };
    let mut table = plain_table(&["SCORE", "TOOL", "RISK", "DESCRIPTION"]);
    for hit in &found.results {
        let name = match hit.state {
            Some(state) => format!("{} ({})", hit.name, state.as_str()),
            None => hit.name.clone(),
        };
        // The same tool on other servers.
        let about = match &hit.also[..] {
            [] => hit.description.clone(),
            also => format!("(also {}) {}", names(also), hit.description),
        };
        table.add_row([format!("{:.3}", hit.score.unwrap_or(0.0)), name, risk(hit.risk), about]);
    }
    say!("{}", table.clipped(2));
    tell_confidence(&found);
    Ok(())
}

/// Returns the hits of a search. Prints any other answer: that to a search without words, which lists the
/// categories or one category's tools.
fn hits(answer: &Value) -> anyhow::Result<Option<SearchAnswer>> {
    match show::read(answer)? {
        Found::Hits(found) => return Ok(Some(found)),
        Found::Categories(list) => {
            let mut table = plain_table(&["CATEGORY", "TOOLS", "DESCRIPTION"]);
            for category in list.categories {
                let about = match category.description.is_empty() {
                    true => category.hint.unwrap_or_default(),
                    false => category.description,
                };
                table.add_row([category.name, category.tool_count.to_string(), about]);
            }
            say!("{}", table.clipped(2));
        }
        Found::Page(ToolPage { category, total, tools, .. }) => {
            let thing = match category.as_deref() {
                Some("skills") => "skill",
                Some("apps") => "app",
                _ => "tool",
            };
            print_tools(tools.into_iter().map(|tool| (tool.name, tool.risk, tool.description)));
            eprintln!("{}", count(total as u64, thing));
        }
    }
    Ok(None)
}

/// Returns the worst effect of a call, in its colour.
fn risk(risk: Option<Risk>) -> String {
    match risk {
        Some(Risk::High) => paint(WordStyle::Bad, "high"),
        Some(Risk::Medium) => paint(WordStyle::Warn, "medium"),
        Some(Risk::Low) => "low".into(),
        None => String::new(),
    }
}

fn tell_confidence(answer: &SearchAnswer) {
    eprintln!("confidence: {}", answer.confidence.map_or("", Confidence::as_str));
    if let Some(hint) = &answer.hint {
        eprintln!("{hint}");
    }
}

/// Prints the answer of `search_tools`, with each signal's share of the scores.
pub(super) fn explained_table(answer: &Value) -> anyhow::Result<()> {
    let Some(found) = hits(answer)? else { return Ok(()) };
    let mut table =
        plain_table(&["SCORE", "TOOL", "MEANING", "KEYWORDS", "LETTERS", "LEARNED", "WORDS", "BECAUSE"]);
    for hit in &found.results {
        let Some(why) = &hit.explain else { continue };
        let signals = &why.search.signals;
        let share = |share: f32| format!("{share:.3}");
        let words = why.search.words.iter().map(|word| match &word.by {
            None => format!("{} {}", word.word, share(word.share)),
            Some(said) => format!("{} (for {said}) {}", word.word, share(word.share)),
        });
        table.add_row([
            format!("{:.3}", hit.score.unwrap_or(0.0)),
            hit.name.clone(),
            share(signals.meaning),
            share(signals.keywords),
            share(signals.letters),
            share(signals.learned),
            words.collect::<Vec<_>>().join(", "),
            because(why).join(", "),
        ]);
    }
    say!("{table}");
    tell_confidence(&found);
    Ok(())
}

/// Says what else moved a hit.
fn because(why: &RankExplanation) -> Vec<String> {
    let (mut because, signals) = (Vec::new(), &why.search.signals);
    if why.search.name {
        because.push("name".to_owned());
    }
    if let Some(part) = &why.search.part {
        because.push(format!("the part `{part}`"));
    }
    if !why.learned_from.is_empty() {
        because.push(format!("called after a search for `{}`", why.learned_from.join(" ")));
    }
    for (worth, gained, lost) in [
        (signals.action, "its action matches", "its action differs"),
        (signals.product, "its product was named", "its product was not named"),
        (signals.deprecated, "", "it is deprecated"),
    ] {
        match worth {
            worth if worth > 0.0 => because.push(format!("{gained} ({worth:+.3})")),
            worth if worth < 0.0 => because.push(format!("{lost} ({worth:+.3})")),
            _ => {}
        }
    }
    let worth = signals.priority;
    match why.priority {
        Some(priority) => because.push(format!("its priority of {priority} ({worth:+.3})")),
        None if worth < 0.0 => because.push(format!("it ranks below servers' tools ({worth:+.3})")),
        None => {}
    }
    match why.tie {
        Some(TieBreak::State) => because.push("tie: its server is ready".to_owned()),
        Some(TieBreak::Cost) => because.push("tie: its calls cost less".to_owned()),
        None => {}
    }
    because
}

/// Prints every tool, one per line.
pub(super) fn tools_table(answer: &Value) -> anyhow::Result<()> {
    let ToolList { total, tools, skills, apps } = show::read(answer)?;
    let mut counted = vec![count(total as u64, "tool")];
    for (others, thing) in [(&skills, "skill"), (&apps, "app")] {
        if !others.is_empty() {
            counted.push(count(others.len() as u64, thing));
        }
    }
    let row = |tool: ListedTool| (tool.name.to_string(), Some(tool.risk), tool.description);
    print_tools(tools.into_iter().chain(skills).chain(apps).map(row));
    eprintln!("{}", counted.join(", "));
    Ok(())
}

/// Prints tools with name, risk and description.
fn print_tools(tools: impl Iterator<Item = (String, Option<Risk>, String)>) {
    let mut table = plain_table(&["TOOL", "RISK", "DESCRIPTION"]);
    for (name, of, description) in tools {
        let description = description.split_whitespace().collect::<Vec<_>>().join(" ");
        table.add_row([name, risk(of), clip(&description, 100)]);
    }
    say!("{}", table.clipped(1));
}
