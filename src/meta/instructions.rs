//! What a client's model reads of Nonet when it connects.

use serde_json::Value;

use crate::{
    gateway::{Gateway, NEEDS_CONFIG, session::Caller},
    text::clip,
};

/// How many left-out servers the instructions name.
const LEFT_OUT: usize = 5;

/// What `initialize` and `server/discover` say of Nonet: at most 2,000 characters.
pub fn instructions(gateway: &Gateway, caller: &Caller) -> String {
    let gate = gateway.gate(&caller.session);
    let categories = gate.categories();
    let (left_out, there): (Vec<&Value>, Vec<&Value>) = categories["categories"]
        .as_array()
        .into_iter()
        .flatten()
        .partition(|category| category["state"] == NEEDS_CONFIG);
    let left_out = left_out_notice(&left_out);
    let names: Vec<String> = there
        .into_iter()
        .map(|category| {
            let name = category["name"].as_str().unwrap_or_default();
            let about = category["description"].as_str().unwrap_or_default();
            if about.is_empty() { name.to_string() } else { format!("{name} ({})", clip(about, 60)) }
        })
        .collect();
    let mut text = String::from(
        "Nonet is one door to all of the user's MCP servers. Their tools are not listed: find them. \
         Whenever a task needs something outside of this chat (files, web, code hosts, databases, mail, \
         calendars, time, memory, any product or API), call search_tools with what the step should do, \
         naming the product if there is one; then execute_tool with the name found. Search once per \
         step, not for the whole task. get_tool gives a full schema when the signature is not enough.",
    );
    if !names.is_empty() {
        text.push_str("\n\n");
        match gate.count_tools() {
            0 => {}
            1 => text.push_str("One tool by now. "),
            count => text.push_str(&format!("{count} tools by now. ")),
        }
        text.push_str("Categories: ");
        for (n, name) in names.iter().enumerate() {
            if text.len() + name.len() + left_out.len() + 100 > caller.limits.max_instructions {
                text.push_str(&format!(" and {} more", names.len() - n));
                break;
            }
            if n > 0 {
                text.push_str(", ");
            }
            text.push_str(name);
        }
        text.push('.');
    }
    text.push_str(&left_out);
    clip(&text, caller.limits.max_instructions.saturating_sub(10))
}

/// Names the servers that cannot be used; empty if there is none.
fn left_out_notice(categories: &[&Value]) -> String {
    if categories.is_empty() {
        return String::new();
    }
    let names = categories.iter().take(LEFT_OUT).filter_map(|category| category["name"].as_str());
    let names: Vec<String> = names.map(|name| clip(name, 40)).collect();
    let more = match categories.len().saturating_sub(LEFT_OUT) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let names = names.join(", ");
    format!(
        "\n\nLeft out until the user puts the configuration right (list_categories says how): {names}{more}."
    )
}
