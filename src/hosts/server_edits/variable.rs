//! A variable that a server gets: `env.NAME = "${NAME}"`, in a file that is otherwise left as it is.

use std::path::Path;

use serde_json::json;
use toml_edit::{DocumentMut, InlineTable, Item};

use super::{ServersFile, server_text};
use crate::{
    hosts::{Change, HostFault, Machine, import::secrets_beside, server_text::TABLE},
    json::set_member,
};

/// Works out a servers.toml in which a server gets a variable under its own name. The change is empty if the server has it.
pub fn pass_variable(
    servers_toml: &Path,
    server: &str,
    variable: &str,
    machine: &Machine,
) -> Result<Change, HostFault> {
    let toml = ServersFile::read(servers_toml)?;
    let mut wanted = toml.known(server)?;
    let text = toml.text.written();
    let reference = format!("${{{variable}}}");
    let has_it = wanted.pointer("/env").and_then(|env| env.get(variable)).is_some();
    let after = match has_it {
        true => text.to_string(),
        false => {
            let edited = with_variable(text, server, variable, &reference);
            let after = edited.ok_or_else(|| toml.unsafe_edit(server))?;
            let mut env = wanted.get("env").cloned().unwrap_or_else(|| json!({}));
            set_member(&mut env, variable, reference);
            set_member(&mut wanted, "env", env);
            toml.verified(after, server, Some(&wanted))?
        }
    };
    if let Some(fault) = toml.new_faults(&after, machine, &secrets_beside(servers_toml)?).into_iter().next() {
        return Err(fault.into());
    }
    let mut change = toml.change(&after, machine);
    change.backup = false;
    change.told = vec![format!("[{TABLE}.{server}] gets `{variable}` in {}.", servers_toml.display())];
    Ok(change)
}

fn with_variable(text: &str, server: &str, variable: &str, reference: &str) -> Option<String> {
    let lines = server_text::lines_of(text, server)?;
    let mut block: DocumentMut = text.get(lines.clone())?.replace("\r\n", "\n").parse().ok()?;
    let table = block.get_mut(TABLE)?.as_table_like_mut()?.get_mut(server)?.as_table_like_mut()?;
    let env = table.entry("env").or_insert_with(|| Item::Value(InlineTable::new().into()));
    env.as_table_like_mut()?.insert(variable, Item::Value(reference.into()));
    Some(server_text::with_lines(text, lines, &block.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_added_and_nothing_else_changes() {
        let check = |text: &str, expected: &str| {
            assert_eq!(with_variable(text, "brave", "KEY", "${KEY}").as_deref(), Some(expected), "{text}");
        };
        check(
            "# Mine.\n[servers.brave]\ncommand = 'x' # why\n\n[servers.other]\nurl = 'y'\n",
            "# Mine.\n[servers.brave]\ncommand = 'x' # why\nenv = { KEY = \"${KEY}\" }\n\n[servers.other]\nurl = 'y'\n",
        );
        check(
            "[servers.brave]\nenv = { A = 'b' }\ntags = []\n",
            "[servers.brave]\nenv = { A = 'b' , KEY = \"${KEY}\" }\ntags = []\n",
        );
        check(
            "[servers.brave]\ncommand = 'x'\n[servers.brave.env]\nA = 'b'\n",
            "[servers.brave]\ncommand = 'x'\n[servers.brave.env]\nA = 'b'\nKEY = \"${KEY}\"\n",
        );
    }
}
