//! The text of one server in servers.toml, shown for manual editing and checked before it is written.

use std::{fmt, path::Path};

pub use nonet_api::servers::TableFault;
use nonet_config::{self as config, ConfigFault, LoadError, LoadedConfig, Policy, ValueSources, written_key};

use toml_edit::{InlineTable, Item, Table, TableLike};

use crate::{
    HostFault, ImportOptions, ImportPlan, Machine,
    edit::without_entries,
    join::ImportMerge,
    literals,
    servers::{ServersToml, TABLE},
    toml,
};

/// The text of one server: its table, its sub-tables and the comments directly above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableText {
    /// The text, with `\n` line ends.
    pub text: String,
    /// The text's first line in the file, from 1.
    pub line: usize,
    /// The file's whole text.
    pub whole: String,
}

/// A usable edited servers.toml.
pub struct TableEdit {
    /// The new servers.toml, and the secrets that the text had.
    pub imported: ImportPlan,
    /// The parsed content.
    pub loaded: LoadedConfig,
}

impl AsMut<ImportPlan> for TableEdit {
    fn as_mut(&mut self) -> &mut ImportPlan {
        &mut self.imported
    }
}

/// Why a text was refused.
#[derive(Debug)]
pub enum EditError {
    /// The file has changed since the text was shown.
    Stale(HostFault),
    /// It has faults.
    Faults(Vec<TableFault>),
}

impl fmt::Display for EditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale(fault) => write!(f, "{fault}"),
            Self::Faults(faults) => {
                let all: Vec<&str> = faults.iter().map(|fault| &*fault.message).collect();
                f.write_str(&all.join(" "))
            }
        }
    }
}

impl From<HostFault> for TableFault {
    fn from(fault: HostFault) -> Self {
        Self { line: None, message: fault.to_string() }
    }
}

impl From<HostFault> for EditError {
    fn from(fault: HostFault) -> Self {
        Self::Faults(vec![TableFault::from(fault)])
    }
}

/// Returns the text of a server.
pub fn server_table(servers_toml: &Path, name: &str) -> Result<TableText, HostFault> {
    let servers = ServersToml::read(servers_toml)?;
    servers.known(name)?;
    let whole = servers.text.plain();
    let text = toml::written(&servers.part(name)?, whole);
    let line = 1 + lines_above(whole, name, &text).unwrap_or_default();
    Ok(TableText { text, line, whole: whole.into() })
}

/// Returns the number of lines above a server's text in its file.
fn lines_above(whole: &str, name: &str, text: &str) -> Option<usize> {
    toml::line_of(whole, TABLE, name)?.checked_sub(toml::line_of(text, TABLE, name)?)
}

/// Works out a servers.toml in which a server has another text. `whole` is the file's text as shown: if the
/// file has changed since, that is a fault. So is a text that affects anything but the server, or that needs
/// a variable which is not set, unless the server needed it before. With a store in `options`, the secrets of
/// the text go there.
pub fn edit_table(
    servers_toml: &Path,
    name: &str,
    text: &str,
    is_shown: impl Fn(&str) -> bool,
    options: ImportOptions,
    sources: ValueSources,
    machine: &Machine,
) -> Result<TableEdit, EditError> {
    let servers = ServersToml::read(servers_toml)?;
    servers.known(name)?;
    if !is_shown(servers.text.plain()) {
        let remedy = "Nothing was written. Open the editor again to see the text as it is now.";
        let fault = HostFault::new("the file has changed since its text was shown", remedy);
        return Err(EditError::Stale(fault.within(servers_toml)));
    }
    servers.part(name)?;
    let before = servers.text.plain().to_string();
    let text = text.replace("\r\n", "\n");
    only_server(&text, name, servers_toml)?;
    let mut joining = ImportMerge::new(servers, &[], options, machine)?;
    let text = match options.file || options.keyring.is_some() {
        true => literals::referring(&text, servers_toml, &mut joining),
        false => text,
    };
    joining.doc.set_part(name, &toml::parse(&text, servers_toml)?.into_mut());
    let entry = format!("{TABLE}.{}", written_key(name));
    let after = joining.doc.edited_text()?;
    let mut change = joining.doc.change_to(&after, machine);
    change.told = vec![format!("[{entry}] is changed in {}.", servers_toml.display())];
    // A diff masks what the text had, too.
    change.secrets.extend(joining.secrets.iter().map(|kept| kept.value.expose().to_string()));
    let imported = joining.plan(Vec::new(), change)?;
    let above = lines_above(&after, name, &text);
    let told = |fault: &ConfigFault| {
        let key = fault.key.strip_prefix(&entry).map_or(&*fault.key, |key| key.trim_start_matches('.'));
        let key = if key.is_empty() { String::new() } else { format!("`{key}`: ") };
        let line = above.and_then(|above| fault.line.checked_sub(above));
        TableFault {
            line: line.filter(|line| (1..=text.lines().count()).contains(line)),
            message: format!("{key}{}. {}", fault.message, fault.remedy),
        }
    };
    let is_of_it = |fault: &&ConfigFault| {
        fault.entry.as_ref().is_none_or(|of| *of == entry || *of == format!("{TABLE}.{name}"))
            && fault.file == servers_toml
    };
    let loaded = match imported.preview(sources) {
        Ok(loaded) => loaded,
        Err(unusable @ LoadError::Unreadable { .. }) => {
            return Err(EditError::Faults(vec![TableFault { line: None, message: unusable.to_string() }]));
        }
        Err(LoadError::Faults(faults)) => {
            let fatal = faults.iter().filter(|fault| fault.entry.is_none());
            return Err(EditError::Faults(fatal.map(told).collect()));
        }
    };
    let mut faults: Vec<&ConfigFault> = loaded.faults.iter().filter(is_of_it).collect();
    if !faults.is_empty() {
        // What the server lacked before the edit does not stand in the way of the edit.
        let before = config::load_text(&before, servers_toml, sources);
        let before = before.as_ref().map_or_else(LoadError::faults, |loaded| loaded.faults.as_slice());
        let before: Vec<&ConfigFault> = before.iter().filter(is_of_it).collect();
        faults.retain(|fault| !fault.is_lacking_like(&before));
    }
    if !faults.is_empty() {
        return Err(EditError::Faults(faults.into_iter().map(told).collect()));
    }
    Ok(TableEdit { imported, loaded })
}

/// Fails for a text that is more or less than one server.
fn only_server(text: &str, name: &str, file: &Path) -> Result<(), EditError> {
    let root = match toml::parse(text, file) {
        Ok(document) => toml::value(document.as_item()),
        Err(fault) => {
            let message = format!("{}. Nothing was written.", fault.message);
            return Err(EditError::Faults(vec![TableFault {
                line: fault.at.map(|(line, _)| line),
                message,
            }]));
        }
    };
    let header = format!("`[{TABLE}.{}]`", written_key(name));
    if root.get(TABLE).and_then(|servers| servers.get(name)).is_none() {
        let remedy = "A server keeps its name; to rename it, add another one and remove this one.";
        return Err(HostFault::new(format!("the text has no {header}"), remedy).into());
    }
    if without_entries(root, std::iter::once((TABLE, name))).as_object().is_some_and(|rest| !rest.is_empty())
    {
        let remedy = "Nothing was written; edit other parts in the file.";
        return Err(HostFault::new(format!("the text changes more than {header}"), remedy).into());
    }
    Ok(())
}

/// Works out a servers.toml in which the tables of a server are edited.
fn edit_server(
    servers_toml: &Path,
    name: &str,
    edit: impl FnOnce(&mut dyn TableLike) -> Result<(), HostFault>,
    options: ImportOptions,
    sources: ValueSources,
    machine: &Machine,
) -> Result<TableEdit, EditError> {
    let servers = ServersToml::read(servers_toml)?;
    servers.known(name)?;
    let mut part = servers.part(name)?;
    toml::entry_mut(&mut part, TABLE, name).map_or(Ok(()), edit)?;
    edit_table(servers_toml, name, &part.to_string(), |_| true, options, sources, machine)
}

/// Works out a servers.toml in which a tool of a server has this policy in `[servers.SERVER.tools.TOOL]`;
/// with none, other rules decide. The change is nothing if the tool's policy is as wanted.
pub fn set_tool_policy(
    servers_toml: &Path,
    server: &str,
    tool: &str,
    policy: Option<Policy>,
    sources: ValueSources,
    machine: &Machine,
) -> Result<TableEdit, EditError> {
    let edit = |server: &mut dyn TableLike| {
        put_policy(server, tool, policy);
        Ok(())
    };
    edit_server(servers_toml, server, edit, ImportOptions::default(), sources, machine)
}

/// Sets or removes the policy of a tool.
fn put_policy(server: &mut dyn TableLike, tool: &str, policy: Option<Policy>) {
    let word = policy.map(|policy| match policy {
        Policy::Allow => "allow",
        Policy::Approve => "approve",
        Policy::Deny => "deny",
    });
    let is_inline = server.get("tools").is_some_and(Item::is_value);
    let mut tables = Table::new();
    tables.set_implicit(true);
    let Some(tools) = server.entry("tools").or_insert(Item::Table(tables)).as_table_like_mut() else {
        return;
    };
    let new = if is_inline { toml_edit::value(InlineTable::new()) } else { toml_edit::table() };
    let Some(own) = tools.entry(tool).or_insert(new).as_table_like_mut() else { return };
    match word {
        Some(word) => drop(own.insert("policy", toml_edit::value(word))),
        None => drop(own.remove("policy")),
    }
    if own.is_empty() {
        tools.remove(tool);
    }
    if is_inline {
        tools.fmt();
    }
    if tools.is_empty() {
        server.remove("tools");
    }
}

/// Works out a servers.toml in which requests to a server carry this token, as `Authorization` in its
/// `headers`. The token goes to a store in `options`.
pub fn give_token(
    servers_toml: &Path,
    server: &str,
    token: &str,
    options: ImportOptions,
    sources: ValueSources,
    machine: &Machine,
) -> Result<TableEdit, EditError> {
    if token.is_empty() || token.contains(char::is_control) {
        return Err(HostFault::new("there is no token", "Enter one on a single line.").into());
    }
    let edit = |server: &mut dyn TableLike| {
        put_token(server, token);
        Ok(())
    };
    edit_server(servers_toml, server, edit, options, sources, machine)
}

/// Sets the token of a server.
fn put_token(server: &mut dyn TableLike, token: &str) {
    let new = toml_edit::value(InlineTable::new());
    let Some(headers) = server.entry("headers").or_insert(new).as_table_like_mut() else { return };
    let names = headers.iter().map(|(name, _)| name.to_string());
    let known = names.into_iter().find(|name| name.eq_ignore_ascii_case("authorization"));
    // A token may be typed with its scheme.
    let value = if token.contains(' ') { token.to_string() } else { format!("Bearer {token}") };
    let value = value.replace("${", "$${");
    headers.insert(known.as_deref().unwrap_or("Authorization"), toml_edit::value(value));
}

/// Works out a servers.toml in which a server gets a variable under its own name: `env.NAME = "${NAME}"`. The
/// change is nothing if the server has that; another value is a fault.
pub fn pass_variable(
    servers_toml: &Path,
    server: &str,
    variable: &str,
    sources: ValueSources,
    machine: &Machine,
) -> Result<TableEdit, EditError> {
    let edit = |table: &mut dyn TableLike| put_variable(table, server, variable);
    edit_server(servers_toml, server, edit, ImportOptions::default(), sources, machine)
}

/// Gives a server a variable.
fn put_variable(table: &mut dyn TableLike, server: &str, variable: &str) -> Result<(), HostFault> {
    let new = toml_edit::value(InlineTable::new());
    let Some(env) = table.entry("env").or_insert(new).as_table_like_mut() else { return Ok(()) };
    let reference = format!("${{{variable}}}");
    match env.get(variable) {
        None => drop(env.insert(variable, toml_edit::value(reference))),
        Some(now) if now.as_str() == Some(&reference) => {}
        Some(_) => {
            let remedy = format!("Correct it in [{TABLE}.{}].", written_key(server));
            return Err(HostFault::new(format!("`env.{variable}` is set already"), remedy));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(
        text: &str,
        server: &str,
        edit: impl FnOnce(&mut dyn TableLike) -> Result<(), HostFault>,
    ) -> Result<String, HostFault> {
        let mut document: toml_edit::DocumentMut = text.parse().expect("it is TOML");
        edit(toml::entry_mut(&mut document, TABLE, server).expect("its tables"))?;
        Ok(document.to_string())
    }

    #[test]
    fn a_server_gets_a_variable_once() {
        let with = |text: &str| edited(text, "brave", |table| put_variable(table, "brave", "KEY"));
        let check = |text: &str, expected: &str| assert_eq!(with(text).expect("it is edited"), expected);
        let plain = "# Mine.\n[servers.brave]\ncommand = 'x' # why\n";
        let given = format!("{plain}env = {{ KEY = \"${{KEY}}\" }}\n");
        check(plain, &given);
        check(&given, &given);
        check(
            "[servers.brave]\ncommand = 'x'\n[servers.brave.env]\nA = 'b'\n",
            "[servers.brave]\ncommand = 'x'\n[servers.brave.env]\nA = 'b'\nKEY = \"${KEY}\"\n",
        );
        let fault = with(&given.replace("${KEY}", "mine")).expect_err("it has one").to_string();
        assert_eq!(fault, "`env.KEY` is set already. Correct it in [servers.brave].");
    }

    #[test]
    fn a_server_gets_a_token() {
        let check = |text: &str, token: &str, expected: &str| {
            let put = |table: &mut dyn TableLike| {
                put_token(table, token);
                Ok(())
            };
            assert_eq!(edited(text, "api", put).expect("it is edited"), expected);
        };
        let plain = "# Ours.\n[servers.api]\nurl = \"https://a.example\" # here\n";
        let given = format!("{plain}headers = {{ Authorization = \"Bearer t0\" }}\n");
        check(plain, "t0", &given);
        check(&given, "Basic eA==", &given.replace("Bearer t0", "Basic eA=="));
        let table = format!("{plain}[servers.api.headers]\nauthorization = \"x\"\nX-Team = \"blue\"\n");
        check(&table, "t0", &table.replace("\"x\"", "\"Bearer t0\""));
    }

    fn check(text: &str, policy: Option<Policy>, expected: &str) {
        let put = |table: &mut dyn TableLike| {
            put_policy(table, "write_file", policy);
            Ok(())
        };
        assert_eq!(edited(text, "files", put).expect("it is edited"), expected);
    }

    #[test]
    fn a_tool_gets_a_policy_and_loses_it_again() {
        let plain = "# The project.\n[servers.files]\ncommand = \"files\" # here\n";
        let approved = "# The project.\n[servers.files]\ncommand = \"files\" # here\n\n[servers.files.tools.write_file]\npolicy = \"approve\"\n";
        check(plain, Some(Policy::Approve), approved);
        check(approved, Some(Policy::Deny), &approved.replace("approve\"", "deny\""));
        check(approved, None, plain);
        check(plain, None, plain);
    }

    #[test]
    fn what_else_is_said_of_the_tool_stays() {
        let text = "[servers.files]\ncommand = \"files\"\n[servers.files.tools.write_file]\naliases = [\"save\"] # ours\npolicy = \"deny\"\n[servers.files.tools.read_file]\nrisk = \"low\"\n";
        check(text, Some(Policy::Allow), &text.replace("deny", "allow"));
        check(text, None, &text.replace("policy = \"deny\"\n", ""));
    }

    #[test]
    fn inline_tables_stay_inline() {
        check(
            "[servers.files]\ntools = { read_file = { risk = \"low\" } }\n",
            Some(Policy::Deny),
            "[servers.files]\ntools = { read_file = { risk = \"low\" }, write_file = { policy = \"deny\" } }\n",
        );
    }
}
