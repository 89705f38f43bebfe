//! Secrets written out in servers.toml: where they are, and the text with references in their place.

use std::{ops::Range, path::Path};

use nonet_config::{ConfigFault, written_key};
use toml_edit::{Document, Item, TableLike, Value};

use super::{
    HostFault, ImportOptions, Machine,
    imported::ImportPlan,
    join::ImportMerge,
    parts::{TextParts, own, secrets_in},
    secrets::{TextPlace, mark},
    servers::{ServersToml, TABLE},
    text::{Text, position},
    toml,
};

/// Keys outside of `env` and `headers` whose values are secrets.
const SECRET_KEYS: [&str; 4] = ["tokens", "client_secret", "api_key", "sentinel_password"];

/// A text of servers.toml with a secret in it.
pub(super) struct Literal {
    /// The dotted key, such as `servers.files.args[1]`.
    key: String,
    /// The entry that has it: the server, or the table.
    owner: String,
    /// The quoted text in the file.
    span: Range<usize>,
    parts: TextParts,
}

/// Returns the secrets of servers.toml that are not references; none of a text that is not TOML.
pub(super) fn secrets(text: &str) -> Vec<String> {
    literals(text).iter().flat_map(|literal| secrets_in(&literal.parts).cloned()).collect()
}

/// Returns a warning for each secret that servers.toml has in plain text, without the secret.
pub fn plain_secrets(servers_toml: &Path) -> Result<Vec<ConfigFault>, HostFault> {
    let text = Text::read(servers_toml)?;
    toml::parse(text.plain(), servers_toml)?;
    let warning = |literal: Literal| {
        let (line, column) = position(text.plain(), literal.span.start);
        ConfigFault {
            file: servers_toml.into(),
            line,
            column,
            key: literal.key,
            message: "this looks like a secret in plain text".into(),
            remedy: "`nonet secret move` moves it to the keyring or secrets.env.".into(),
            entry: None,
        }
    };
    Ok(literals(text.plain()).into_iter().map(warning).collect())
}

/// Works out a servers.toml that names its secrets instead of containing them. The secrets are stored
/// according to `options`.
pub fn move_secrets(
    servers_toml: &Path,
    options: ImportOptions,
    machine: &Machine,
) -> Result<ImportPlan, HostFault> {
    let mut joining = ImportMerge::new(ServersToml::read(servers_toml)?, &[], options, machine)?;
    let before = joining.doc.text.plain().to_string();
    let after = referring(&before, servers_toml, &mut joining);
    let mut change = joining.doc.change_to(&after, machine);
    let moved = secrets(&before).len();
    let what = if moved == 1 { "1 secret is".into() } else { format!("{moved} secrets are") };
    if moved > 0 {
        change.told = vec![format!("{what} moved out of {}.", servers_toml.display())];
    }
    joining.plan(Vec::new(), change)
}

/// Returns a text of servers.toml with a reference in the place of each secret. The secrets are noted in
/// `joining`.
pub(super) fn referring(text: &str, servers_toml: &Path, joining: &mut ImportMerge) -> String {
    let mut after = text.to_string();
    let mut found = literals(text);
    // Names are given in the order of the text; edits go from last to first, so that earlier positions stay
    // valid.
    found.sort_by_key(|literal| literal.span.start);
    let new: Vec<String> = found
        .iter()
        .map(|literal| joining.without_secrets(&literal.parts, &literal.owner, servers_toml))
        .collect();
    for (literal, new) in found.iter().zip(new).rev() {
        after.replace_range(literal.span.clone(), &Value::from(new).to_string());
    }
    after
}

fn literals(text: &str) -> Vec<Literal> {
    let mut found = Vec::new();
    if let Ok(document) = Document::parse(text) {
        Walk { names: Vec::new(), key: String::new(), found: &mut found }.table(document.as_table());
    }
    found
}

/// A walk through the texts of a document.
struct Walk<'a> {
    /// The keys on the way, without positions in lists.
    names: Vec<String>,
    key: String,
    found: &'a mut Vec<Literal>,
}

impl Walk<'_> {
    fn table(&mut self, table: &dyn TableLike) {
        for (name, item) in table.iter() {
            let length = self.key.len();
            if length > 0 {
                self.key.push('.');
            }
            self.key.push_str(&written_key(name));
            self.names.push(name.into());
            match item {
                Item::ArrayOfTables(tables) => tables.iter().for_each(|table| self.table(table)),
                item => match (item.as_table_like(), item.as_value()) {
                    (Some(table), _) => self.table(table),
                    (None, Some(value)) => self.value(value, None),
                    (None, None) => {}
                },
            }
            self.names.pop();
            self.key.truncate(length);
        }
    }

    /// `before` is the text before this one in a list.
    fn value(&mut self, value: &Value, before: Option<&str>) {
        match value {
            Value::InlineTable(table) => self.table(table),
            Value::Array(items) => {
                let mut before = None;
                for (index, item) in items.iter().enumerate() {
                    let length = self.key.len();
                    self.key.push_str(&format!("[{index}]"));
                    self.value(item, before.or(Some("")));
                    self.key.truncate(length);
                    before = item.as_str();
                }
            }
            Value::String(text) => {
                let parts = mark(own(text.value()), self.place(before));
                let is_secret = secrets_in(&parts).next().is_some();
                if let Some(span) = value.span().filter(|_| is_secret) {
                    let owner = match self.names.as_slice() {
                        [table, server, ..] if table == TABLE => server,
                        [table, ..] => table,
                        [] => return,
                    };
                    let (key, owner) = (self.key.clone(), owner.clone());
                    self.found.push(Literal { key, owner, span, parts });
                }
            }
            _ => {}
        }
    }

    fn place<'p>(&'p self, before: Option<&'p str>) -> TextPlace<'p> {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        match names.as_slice() {
            [.., "env", name] => TextPlace::Env(name),
            [.., "headers", name] => TextPlace::Header(name),
            [.., name] if SECRET_KEYS.contains(name) => TextPlace::Header(name),
            ["audit", "key"] => TextPlace::Header("api_key"),
            [.., "args" | "command"] if before.is_some() => TextPlace::Argument(before),
            _ => TextPlace::Url,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "sk_live_0123456789abcdefghij";

    fn check(text: &str, expected: &[(&str, &str)]) {
        let text = text.replace("KEY", KEY);
        let found = literals(&text);
        let found: Vec<(&str, &str)> = found
            .iter()
            .map(|one| (one.key.as_str(), secrets_in(&one.parts).next().expect("one").as_str()))
            .collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn secrets_are_found_wherever_a_server_takes_them() {
        check(
            "[servers.a]\ncommand = 'a'\nenv = { X = 'KEY', API_TOKEN = 'hunter' }",
            &[("servers.a.env.X", KEY), ("servers.a.env.API_TOKEN", "hunter")],
        );
        check(
            "[servers.a.headers]\nAuthorization = 'Bearer hunter'",
            &[("servers.a.headers.Authorization", "hunter")],
        );
        check(
            "[servers.a]\nargs = ['--token', 'hunter', '--key=hunter2', '-v']",
            &[("servers.a.args[1]", "hunter"), ("servers.a.args[2]", "hunter2")],
        );
        check("[servers.a]\nurl = 'https://ann:hunter@h/mcp?token=hunter2'", &[("servers.a.url", "hunter")]);
        check("[servers.\"a b\"]\nopenapi = 'https://h/KEY/api.json'", &[("servers.\"a b\".openapi", KEY)]);
        check(
            "[servers.a]\noauth = { client_id = 'x', client_secret = 'hunter' }",
            &[("servers.a.oauth.client_secret", "hunter")],
        );
        check("[gateway]\ntokens = ['hunter', '${TOKEN}']", &[("gateway.tokens[0]", "hunter")]);
        check("[cluster]\nredis = 'redis://:hunter@h'", &[("cluster.redis", "hunter")]);
        check("[servers.a]\ndescription = 'Use KEY'", &[("servers.a.description", KEY)]);
    }

    #[test]
    fn references_and_plain_words_are_no_secrets() {
        check("[servers.a]\nenv = { API_TOKEN = '${API_TOKEN}', B = '${keyring:B}', C = 'info' }", &[]);
        check("[servers.a]\nargs = ['--token', '${T}', '--max-tokens=400']\ncwd = '/home/ann/Projects'", &[]);
        check("[servers.a]\nauth = 'none'\n[servers.a.tools.get_token]\npolicy = 'deny'", &[]);
        check("[profiles.work]\ntokens = ['${WORK_TOKEN}']\n# KEY", &[]);
    }
}
