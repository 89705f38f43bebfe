//! The content of `tools/list`: the nine, and the tools that the configuration adds.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use nonet_base::{json::set_member, text::clip};
use nonet_config::{ClientLimits, Expose, ToolInjection};
use nonet_servers::catalog::{Tool, set_ui_uri};
use nonet_text::results::json_len;
use serde_json::{Map, Value, json};

use super::definitions;
use nonet_core::Gate;

/// The share of the context window that tool definitions may take, as a divisor: 20 %.
const BUDGET_DIVISOR: u64 = 5;
/// The tokens of a tool of which a client that searches by itself loads only the name, `mcp__nonet__server__tool`.
const NAME_TOKENS: u64 = 20;
/// The tokens of a tool listed by name and one line.
const COMPACT_TOKENS: u64 = 30;

/// Returns the definitions in this session's `tools/list`: those of verbatim servers unchanged, the nine,
/// then others by wire name. Nonet's own tools, skills and apps are found by search, so only pinned ones are
/// listed. Descriptions of the others are shortened where `limits` says that the client would cut them, and
/// say so. With `shows_ui`, tools that belong to user interfaces follow.
pub fn listed_tools(gate: &Gate, limits: &ClientLimits, shows_ui: bool) -> Vec<Value> {
    let gateway = &gate.config().gateway;
    let profile = gate.profile();
    let (seen, own_entries): (Vec<_>, Vec<_>) = gate.tools().partition(|tool| tool.is_of_server());
    let own = profile.and_then(|profile| profile.tool_injection);
    let window = profile.and_then(|profile| profile.context_window).unwrap_or(gateway.context_window);
    let mode = match own.unwrap_or(gateway.tool_injection) {
        ToolInjection::Auto if limits.tool_search => choose_for_search(seen.len() as u64, window),
        ToolInjection::Auto => choose(seen.iter().map(|tool| json_len(&tool.listed)), window),
        mode => mode,
    };
    let (verbatim, others): (Vec<_>, Vec<_>) = seen.iter().copied().partition(|tool| tool.verbatim);
    let mut listed: Vec<Value> =
        verbatim.into_iter().map(|tool| whole(tool, gate.catalog().listed_name(tool))).collect();
    listed.extend(definitions());
    let pinned = [Some(&gateway.pinned), profile.map(|profile| &profile.pinned)];
    let pinned = || pinned.iter().flatten();
    let names = pinned().flat_map(|globs| globs.patterns());
    let named: HashSet<&Arc<str>> =
        names.filter_map(|name| Some(&gate.catalog().resolve(name).ok()?.full)).collect();
    let is_pinned =
        |tool: &Tool| named.contains(&tool.full) || pinned().any(|globs| globs.matches(&tool.full));
    match mode {
        ToolInjection::Direct => listed.extend(others.into_iter().map(|tool| direct(tool, limits))),
        ToolInjection::CompactDirect => listed.extend(others.into_iter().map(|tool| compact(tool))),
        ToolInjection::Discovery | ToolInjection::Auto => {
            let chosen = others.into_iter().filter(|tool| is_pinned(tool));
            listed.extend(chosen.map(|tool| direct(tool, limits)));
        }
    }
    let pinned_entries = own_entries.into_iter().filter(|entry| is_pinned(entry));
    listed.extend(pinned_entries.map(|entry| direct(entry, limits)));
    if shows_ui {
        add_ui(&mut listed, gate, limits);
    }
    listed
}

/// Adds the tools that belong to user interfaces, with URIs that lead to their servers. A tool that only interfaces
/// call has its own name, by which its interface calls it, if no other listed tool has the name.
fn add_ui(listed: &mut Vec<Value>, gate: &Gate, limits: &ClientLimits) {
    let name_of = |definition: &Value| definition["name"].as_str().unwrap_or_default().to_owned();
    let mut names: HashMap<String, usize> =
        listed.iter().enumerate().map(|(at, definition)| (name_of(definition), at)).collect();
    let tools: Vec<&Arc<Tool>> = gate.tools_with_ui().filter(|tool| !tool.verbatim).collect();
    let mut own = HashMap::<&str, usize>::new();
    for tool in tools.iter().filter(|tool| tool.is_for_apps_only()) {
        *own.entry(&tool.own).or_default() += 1;
    }
    for tool in tools {
        let is_own = tool.is_for_apps_only() && own[&*tool.own] == 1 && !names.contains_key(&*tool.own);
        let name = if is_own { &tool.own } else { &tool.wire };
        let at = *names.entry(name.to_string()).or_insert_with(|| {
            let mut definition = direct(tool, limits);
            set_member(&mut definition, "name", &**name);
            listed.push(definition);
            listed.len() - 1
        });
        if let (Some(uri), Some(definition)) = (tool.ui_resource(), listed.get_mut(at)) {
            let shown = gate.catalog().passed().ui_uri(&tool.server, uri);
            if shown != uri {
                set_ui_uri(definition, &shown);
            }
        }
    }
}

/// Returns the schema of a verbatim tool whose params are repeated in HTTP headers, which have to match the
/// body.
pub fn mirrored_schema(gate: &Gate, name: &str) -> Option<Map<String, Value>> {
    let tool = gate.verbatim_tool(name).filter(|tool| gate.allows(tool))?;
    tool.mirrored.then(|| tool.visible.get("inputSchema")?.as_object().cloned())?
}

/// Whether `tools/list` can change while Nonet runs.
pub fn list_can_change(gate: &Gate) -> bool {
    let gateway = &gate.config().gateway;
    let profile = gate.profile();
    let shows_ui = profile.and_then(|profile| profile.ui).unwrap_or(gateway.ui);
    let mode = profile.and_then(|profile| profile.tool_injection).unwrap_or(gateway.tool_injection);
    let pinned = !gateway.pinned.is_empty() || profile.is_some_and(|p| !p.pinned.is_empty());
    let verbatim = gate.config().servers.values().any(|s| s.enabled && s.expose == Expose::Verbatim);
    mode != ToolInjection::Discovery || pinned || verbatim || shows_ui
}

/// Returns the mode whose cost fits into a fifth of the window, at four bytes per token.
fn choose(sizes: impl ExactSizeIterator<Item = usize>, window: u64) -> ToolInjection {
    let budget = window / BUDGET_DIVISOR;
    let tools = sizes.len() as u64;
    let whole: u64 = sizes.map(|size| (size / 4) as u64).sum();
    if whole <= budget {
        ToolInjection::Direct
    } else if tools * COMPACT_TOKENS <= budget {
        ToolInjection::CompactDirect
    } else {
        ToolInjection::Discovery
    }
}

/// Returns the mode for a client that searches tools by itself: every tool, if the names fit into a fifth of the
/// window.
fn choose_for_search(tools: u64, window: u64) -> ToolInjection {
    match tools * NAME_TOKENS <= window / BUDGET_DIVISOR {
        true => ToolInjection::Direct,
        false => ToolInjection::Discovery,
    }
}

/// Returns the definition under this name.
fn whole(tool: &Tool, name: &str) -> Value {
    let mut definition = Value::clone(&tool.listed);
    definition["name"] = json!(name);
    if let Some(fields) = definition.as_object_mut().filter(|_| tool.of.is_some()) {
        // The server of the prompt.
        fields.shift_remove("server");
    }
    if definition.get("inputSchema").is_none() {
        definition["inputSchema"] = json!({ "type": "object" });
    }
    definition
}

fn direct(tool: &Tool, limits: &ClientLimits) -> Value {
    let mut definition = whole(tool, &tool.wire);
    if !tool.description.is_empty() {
        definition["description"] = json!(tool.description);
    }
    if definition.get("title").is_some() {
        definition["title"] = json!(tool.title);
    }
    if tool.description.chars().count() > limits.max_description {
        let more = format!(" [more: get_tool {}]", tool.full);
        let most = limits.max_description.saturating_sub(more.chars().count());
        definition["description"] = json!(clip(&tool.description, most) + &more);
    }
    definition
}

fn compact(tool: &Tool) -> Value {
    json!({ "name": &*tool.wire, "description": tool.summary(80), "inputSchema": { "type": "object" } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_lists_everything_for_a_client_that_searches_by_itself() {
        for (tools, window, expected) in [
            (0, 8_000, ToolInjection::Direct),
            (80, 8_000, ToolInjection::Direct),
            (81, 8_000, ToolInjection::Discovery),
            (2_000, 200_000, ToolInjection::Direct),
            (2_001, 200_000, ToolInjection::Discovery),
        ] {
            assert_eq!(choose_for_search(tools, window), expected, "{tools} in {window}");
        }
    }

    #[test]
    fn auto_takes_the_richest_list_that_fits_a_fifth_of_the_window() {
        // Each tool takes 200 tokens (800 bytes).
        let check = |tools: usize, window, expected| {
            assert_eq!(choose(vec![800; tools].into_iter(), window), expected, "{tools} in {window}");
        };
        // The largest number of tools listed directly, and the largest number listed in one line each.
        for (window, direct, compact) in [
            (8_000, 8, 53),
            (16_000, 16, 106),
            (32_000, 32, 213),
            (64_000, 64, 426),
            (128_000, 128, 853),
            (200_000, 200, 1_333),
        ] {
            check(1, window, ToolInjection::Direct);
            check(direct, window, ToolInjection::Direct);
            check(direct + 1, window, ToolInjection::CompactDirect);
            check(compact, window, ToolInjection::CompactDirect);
            check(compact + 1, window, ToolInjection::Discovery);
            check(10 * compact, window, ToolInjection::Discovery);
        }
        check(0, 8_000, ToolInjection::Direct);
    }
}
