//! The text of one server in servers.toml, shown for manual editing and checked before it is written.

use std::{fmt, path::Path};

use nonet_config::{self as config, ConfigFault, LoadError, LoadedConfig, Policy, ValueSources, written_key};

use super::{ServersFile, server_text};
use crate::{
    HostFault, ImportOptions, ImportPlan, Machine,
    import::{assembled, secrets_beside},
    join::ImportMerge,
    literals,
    server_text::TABLE,
    servers::ServersToml,
    text::position,
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

/// A fault of an edited text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableFault {
    /// The line in the edited text, from 1; none if the fault has no line there.
    pub line: Option<usize>,
    /// The fault and its remedy.
    pub message: String,
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

/// Returns the text of a server.
pub fn server_table(servers_toml: &Path, name: &str) -> Result<TableText, HostFault> {
    let toml = ServersFile::read(servers_toml)?;
    toml.known(name)?;
    let written = toml.text.written();
    let lines = server_text::lines_of(written, name).ok_or_else(|| by_hand(name, servers_toml))?;
    let line = line_at(written, lines.start);
    let text = written.get(lines).unwrap_or_default().replace("\r\n", "\n");
    Ok(TableText { text, line, whole: written.into() })
}

/// Works out a servers.toml in which a server has another text. `whole` is the file's text as shown: if the file has
/// changed since, that is a fault. So is a text that affects anything but the server, or that needs a variable which is not
/// set, unless the server needed it before. With a store in `options`, the secrets of the text go there.
pub fn edit_table(
    servers_toml: &Path,
    name: &str,
    text: &str,
    is_shown: impl Fn(&str) -> bool,
    options: ImportOptions,
    sources: ValueSources,
    machine: &Machine,
) -> Result<TableEdit, EditError> {
    let one = |fault: HostFault| EditError::Faults(vec![TableFault::from(fault)]);
    let toml = ServersFile::read(servers_toml).map_err(one)?;
    toml.known(name).map_err(one)?;
    let written = toml.text.written();
    if !is_shown(written) {
        let remedy = "Nothing was written. Open the editor again to see the text as it is now.";
        let fault = HostFault::new("the file has changed since its text was shown".into(), remedy.into());
        return Err(EditError::Stale(fault.within(servers_toml)));
    }
    let lines = server_text::lines_of(written, name).ok_or_else(|| one(by_hand(name, servers_toml)))?;
    let first = line_at(written, lines.start);
    let count = text.replace("\r\n", "\n").trim_matches('\n').lines().count();
    let here = |line: usize| line.checked_sub(first).map(|line| line + 1).filter(|line| *line <= count);
    let after = server_text::with_lines(written, lines, text);
    if let Err(fault) = toml_edit::Document::parse(after.as_str()) {
        let (line, _) = position(&after, fault.span().unwrap_or_default().start);
        let message = fault.message().lines().collect::<Vec<_>>().join(", ");
        let message = format!("this is not TOML: {message}. Nothing was written.");
        return Err(EditError::Faults(vec![TableFault { line: here(line), message }]));
    }
    let entries = toml.table().entries(&after).map_err(one)?;
    let wanted = entries.get(name).ok_or_else(|| {
        let message = format!("the text has no `[{TABLE}.{}]`", written_key(name));
        let remedy = "A server keeps its name; to rename it, add another one and remove this one.";
        one(HostFault::new(message, remedy.into()))
    })?;
    let after = toml.verified(after.clone(), name, Some(wanted)).map_err(|_| {
        let message = format!("the text changes more than `[{TABLE}.{}]`", written_key(name));
        one(HostFault::new(message, "Nothing was written; edit other parts in the file.".into()))
    })?;
    let secrets = secrets_beside(servers_toml).map_err(one)?;
    let doc = ServersToml::new(&after, servers_toml).map_err(one)?;
    let mut joining = ImportMerge::new(doc, &[], options, &secrets, machine);
    let after = match options.file || options.keyring.is_some() {
        true => literals::referring(&after, Some(name), servers_toml, &mut joining).map_err(one)?,
        false => after,
    };
    let entry = format!("{TABLE}.{}", written_key(name));
    let mut change = toml.change(&after, machine);
    change.told = vec![format!("[{entry}] is changed in {}.", servers_toml.display())];
    // A diff masks what the text had, too.
    change.secrets.extend(joining.secrets.iter().map(|kept| kept.value.expose().to_string()));
    let (variables, kept) = (joining.variables, joining.secrets);
    let imported = assembled(variables, kept, Vec::new(), Vec::new(), change, options, secrets.clone());
    let told = |fault: &ConfigFault| {
        let key = fault.key.strip_prefix(&entry).map_or(&*fault.key, |key| key.trim_start_matches('.'));
        let key = if key.is_empty() { String::new() } else { format!("`{key}`: ") };
        TableFault { line: here(fault.line), message: format!("{key}{}. {}", fault.message, fault.remedy) }
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
        let before = config::load_text(written, servers_toml, sources);
        let before = before.as_ref().map_or_else(LoadError::faults, |loaded| loaded.faults.as_slice());
        let before: Vec<&ConfigFault> = before.iter().filter(is_of_it).collect();
        faults.retain(|fault| !fault.is_lacking_like(&before));
    }
    if !faults.is_empty() {
        return Err(EditError::Faults(faults.into_iter().map(told).collect()));
    }
    Ok(TableEdit { imported, loaded })
}

fn line_at(text: &str, at: usize) -> usize {
    position(text, at).0
}

fn by_hand(name: &str, file: &Path) -> HostFault {
    let message = format!("the entry of `{name}` is spread over the file, or written on one line");
    HostFault::new(message, format!("Edit `{TABLE}.{}` in the file.", written_key(name))).within(file)
}

/// Works out a servers.toml in which a tool of a server has this policy in `[servers.SERVER.tools.TOOL]`; with none, other rules
/// decide. The change is nothing if the tool's policy is as wanted.
pub fn set_tool_policy(
    servers_toml: &Path,
    server: &str,
    tool: &str,
    policy: Option<Policy>,
    sources: ValueSources,
    machine: &Machine,
) -> Result<TableEdit, EditError> {
    let one = |fault: HostFault| EditError::Faults(vec![TableFault::from(fault)]);
    let table = server_table(servers_toml, server).map_err(one)?;
    let text =
        with_policy(&table.text, server, tool, policy).ok_or_else(|| one(by_hand(server, servers_toml)))?;
    let options = ImportOptions::default();
    edit_table(servers_toml, server, &text, |whole| whole == table.whole, options, sources, machine)
}

/// Returns the text of a server with a policy of one tool; none if the text is not that of a server's tables.
fn with_policy(text: &str, server: &str, tool: &str, policy: Option<Policy>) -> Option<String> {
    let policy = policy.map(|policy| match policy {
        Policy::Allow => "allow",
        Policy::Approve => "approve",
        Policy::Deny => "deny",
    });
    let mut doc: toml_edit::DocumentMut = text.parse().ok()?;
    let server = doc.get_mut(TABLE)?.get_mut(server)?.as_table_like_mut()?;
    let is_inline = server.get("tools").is_some_and(toml_edit::Item::is_value);
    if let Some(policy) = policy {
        let mut tools = toml_edit::Table::new();
        tools.set_implicit(true);
        let tools = server.entry("tools").or_insert(toml_edit::Item::Table(tools));
        let new = match is_inline {
            true => toml_edit::value(toml_edit::InlineTable::new()),
            false => toml_edit::table(),
        };
        let own = tools.as_table_like_mut()?.entry(tool).or_insert(new);
        own.as_table_like_mut()?.insert("policy", toml_edit::value(policy));
        if let Some(inline) = tools.as_inline_table_mut() {
            inline.fmt();
        }
    } else if let Some(tools) = server.get_mut("tools").and_then(toml_edit::Item::as_table_like_mut)
        && let Some(own) = tools.get_mut(tool).and_then(toml_edit::Item::as_table_like_mut)
    {
        own.remove("policy");
        if own.is_empty() {
            tools.remove(tool);
        }
        if tools.is_empty() {
            server.remove("tools");
        }
    }
    Some(doc.to_string())
}

/// Works out a servers.toml in which requests to a server carry this token, as `Authorization` in its `headers`. The token goes
/// to a store in `options`.
pub fn give_token(
    servers_toml: &Path,
    server: &str,
    token: &str,
    options: ImportOptions,
    sources: ValueSources,
    machine: &Machine,
) -> Result<TableEdit, EditError> {
    let one = |fault: HostFault| EditError::Faults(vec![TableFault::from(fault)]);
    if token.is_empty() || token.contains(char::is_control) {
        let fault = HostFault::new("there is no token".into(), "Enter one on a single line.".into());
        return Err(one(fault));
    }
    let table = server_table(servers_toml, server).map_err(one)?;
    let text = with_token(&table.text, server, token).ok_or_else(|| one(by_hand(server, servers_toml)))?;
    edit_table(servers_toml, server, &text, |whole| whole == table.whole, options, sources, machine)
}

/// Returns the text of a server with a token; none if the text is not that of a server's tables.
fn with_token(text: &str, server: &str, token: &str) -> Option<String> {
    let mut doc: toml_edit::DocumentMut = text.parse().ok()?;
    let server = doc.get_mut(TABLE)?.get_mut(server)?.as_table_like_mut()?;
    let new = toml_edit::value(toml_edit::InlineTable::new());
    let headers = server.entry("headers").or_insert(new).as_table_like_mut()?;
    let names = headers.iter().map(|(name, _)| name.to_string());
    let known = names.into_iter().find(|name| name.eq_ignore_ascii_case("authorization"));
    // A token may be typed with its scheme.
    let value = if token.contains(' ') { token.to_string() } else { format!("Bearer {token}") };
    let value = value.replace("${", "$${");
    headers.insert(known.as_deref().unwrap_or("Authorization"), toml_edit::value(value));
    Some(doc.to_string())
}

/// Works out a servers.toml in which a server gets a variable under its own name: `env.NAME = "${NAME}"`. The change
/// is nothing if the server has that; another value is a fault.
pub fn pass_variable(
    servers_toml: &Path,
    server: &str,
    variable: &str,
    sources: ValueSources,
    machine: &Machine,
) -> Result<TableEdit, EditError> {
    let one = |fault: HostFault| EditError::Faults(vec![TableFault::from(fault)]);
    let table = server_table(servers_toml, server).map_err(one)?;
    let edited = with_variable(&table.text, server, variable).ok_or_else(|| by_hand(server, servers_toml));
    let text = edited.and_then(|edited| edited).map_err(one)?;
    let options = ImportOptions::default();
    edit_table(servers_toml, server, &text, |whole| whole == table.whole, options, sources, machine)
}

/// Returns the text of a server with a variable; none if the text is not that of a server's tables.
fn with_variable(text: &str, server: &str, variable: &str) -> Option<Result<String, HostFault>> {
    let mut doc: toml_edit::DocumentMut = text.parse().ok()?;
    let table = doc.get_mut(TABLE)?.get_mut(server)?.as_table_like_mut()?;
    let new = toml_edit::value(toml_edit::InlineTable::new());
    let env = table.entry("env").or_insert(new).as_table_like_mut()?;
    let reference = format!("${{{variable}}}");
    match env.get(variable) {
        None => drop(env.insert(variable, toml_edit::value(reference))),
        Some(now) if now.as_str() == Some(&reference) => {}
        Some(_) => {
            let remedy = format!("Correct it in [{TABLE}.{}].", written_key(server));
            return Some(Err(HostFault::new(format!("`env.{variable}` is set already"), remedy)));
        }
    }
    Some(Ok(doc.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_gets_a_variable_once() {
        let with = |text: &str| with_variable(text, "brave", "KEY").expect("its tables");
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
            assert_eq!(with_token(text, "api", token).as_deref(), Some(expected));
        };
        let plain = "# Ours.\n[servers.api]\nurl = \"https://a.example\" # here\n";
        let given = format!("{plain}headers = {{ Authorization = \"Bearer t0\" }}\n");
        check(plain, "t0", &given);
        check(&given, "Basic eA==", &given.replace("Bearer t0", "Basic eA=="));
        let table = format!("{plain}[servers.api.headers]\nauthorization = \"x\"\nX-Team = \"blue\"\n");
        check(&table, "t0", &table.replace("\"x\"", "\"Bearer t0\""));
    }

    fn check(text: &str, policy: Option<Policy>, expected: &str) {
        assert_eq!(with_policy(text, "files", "write_file", policy).as_deref(), Some(expected));
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
