//! Which keys of a table go together: one row for each key, or for several keys of the same kind.
//!
//! What depends on values, or on other tables, is in `check`.

use serde_json::{Map, Value};

/// How keys go with the other keys of their table.
pub(super) enum Rule {
    /// Only an entry with one of these keys has them.
    OnlyWith(&'static [&'static str]),
    /// They cannot stand beside any of these keys.
    Excludes(&'static [&'static str]),
    /// They need this key beside them.
    Needs(&'static str),
}
use Rule::{Excludes, Needs, OnlyWith};

/// The keys of a rule, the rule, and the remedy of a fault.
type Row = (&'static [&'static str], Rule, &'static str);

/// The rules of one kind of table.
pub(super) struct TableRules {
    /// What such a table is called in a fault.
    what: &'static str,
    /// The keys that say what the table is, in the order in which a fault names two of them.
    kinds: &'static [&'static str],
    /// The fault of a table without any of `kinds`, and its remedy.
    missing: Option<(&'static str, &'static str)>,
    rows: &'static [Row],
}

/// The keys that only a REST service (a server with `openapi` or `endpoints`) may have.
pub const OF_REST: [&str; 3] = ["base_url", "headers_out", "private_addresses"];
const REMOVE: &str = "Remove it.";
const BOTH: &str = "Set both or neither.";
const SEPARATE: &str = "Make each a separate step.";
const ONE_SERVER: &str = "Keep the one that reaches the server, or make two servers.";

pub(super) const SERVER: TableRules = TableRules {
    what: "a server",
    kinds: &["command", "url", "endpoints", "openapi"],
    missing: Some((
        "a server needs `command`, `url` or `openapi`",
        "Set `command = \"npx\"` and `args` for a local program, `url` for a remote server, or `openapi` for a REST \
         service.",
    )),
    rows: &[
        (
            &["url"],
            Excludes(&["command"]),
            "Keep `command` for a local program, or `url` for a remote server.",
        ),
        (&["openapi", "endpoints"], Excludes(&["command", "url"]), ONE_SERVER),
        (&["args", "env", "inherit_env", "cwd", "sandbox"], OnlyWith(&["command"]), REMOVE),
        (
            &["placement"],
            OnlyWith(&["command"]),
            "Remove it: each replica of a cluster reaches a remote server by itself.",
        ),
        (&["headers", "oauth"], OnlyWith(&["url", "openapi", "endpoints"]), REMOVE),
        (
            &["credentials"],
            OnlyWith(&["url", "openapi", "endpoints"]),
            "Remove it: a program takes its credentials from `env`.",
        ),
        (&["operations"], OnlyWith(&["openapi"]), REMOVE),
        (&OF_REST, OnlyWith(&["openapi", "endpoints"]), REMOVE),
    ],
};

pub(super) const CLUSTER: TableRules = TableRules {
    what: "a cluster",
    kinds: &[],
    missing: None,
    rows: &[(
        &["sentinel_password"],
        Needs("sentinel"),
        "Set `sentinel` to the name by which the Sentinels know the node, or remove `sentinel_password`.",
    )],
};

/// The keys about the issuer in `[auth]` itself.
const OF_ISSUER: [&str; 6] =
    ["audience", "jwks", "introspection", "client_id", "client_secret", "algorithms"];

pub(super) const AUTH: TableRules = TableRules {
    what: "`[auth]`",
    kinds: &["issuer", "issuers"],
    missing: Some((
        "`[auth]` needs an `issuer`",
        "Set `issuer = \"https://login.example.com\"`, as the metadata of your sign-in service says it.",
    )),
    rows: &[
        (&OF_ISSUER, Needs("issuer"), "Move it to the issuer in [auth.issuers.NAME] that it belongs to."),
        (&["client_id", "client_secret"], Needs("introspection"), REMOVE),
        (&["client_secret"], Needs("client_id"), BOTH),
    ],
};

pub(super) const ISSUER: TableRules = TableRules {
    what: "an issuer",
    kinds: &[],
    missing: None,
    rows: &[
        (&["client_id", "client_secret"], Needs("introspection"), REMOVE),
        (&["client_secret"], Needs("client_id"), BOTH),
    ],
};

pub(super) const EXPORT: TableRules = TableRules {
    what: "an export",
    kinds: &["file", "webhook", "syslog"],
    missing: Some((
        "an export needs `file`, `webhook` or `syslog`",
        "Set `file` for a file, `webhook = \"https://…\"` for a service, or `syslog = \"tcp://HOST:PORT\"` for a syslog server.",
    )),
    rows: &[
        (&["file"], Excludes(&["webhook", "syslog"]), "Make two exports."),
        (&["webhook"], Excludes(&["syslog"]), "Make two exports."),
        (&["headers"], OnlyWith(&["webhook"]), REMOVE),
    ],
};

pub(super) const NOTIFY: TableRules = TableRules {
    what: "`notify`",
    kinds: &["webhook", "command"],
    missing: Some((
        "needs `webhook` or `command`",
        "Set `webhook = \"https://…\"` or `command = [\"program\", \"argument\"]`.",
    )),
    rows: &[(&["headers"], OnlyWith(&["webhook"]), REMOVE)],
};

pub(super) const POLICY: TableRules = TableRules {
    what: "a policy",
    kinds: &["tools", "risk"],
    missing: Some((
        "a policy needs `tools` or `risk` to select tools",
        "Set `tools = [\"server.*\"]`, `risk = \"high\"`, or both.",
    )),
    rows: &[],
};

pub(super) const APP: TableRules = TableRules {
    what: "an app",
    kinds: &["tool", "steps", "script", "model"],
    missing: Some((
        "an app needs `tool`, `steps`, `script` or `model`",
        "Set `tool = \"server.tool\"` for a single tool, `script = \"file.js\"` for a script, `model` for a model with tools, or \
         add a `[[…steps]]` for each step of a workflow.",
    )),
    rows: &[
        (&["tool"], Excludes(&["steps"]), "Make the tool one of the steps."),
        (
            &["tool", "steps"],
            Excludes(&["model"]),
            "Name the tools that the model may call in `allowed_tools`, or make two apps.",
        ),
        (
            &["tool", "steps", "model"],
            Excludes(&["script"]),
            "Call the tools and apps from the script, or make two apps.",
        ),
        (&["output"], OnlyWith(&["steps"]), REMOVE),
        (&["system", "allowed_tools", "max_turns", "max_tokens"], OnlyWith(&["model"]), REMOVE),
    ],
};

pub(super) const STEP: TableRules = TableRules {
    what: "a step",
    kinds: &["tool", "app", "ask", "filter"],
    missing: Some((
        "a step needs `tool`, `app`, `ask` or `filter`",
        "Set `tool = \"server.tool\"`, `app = \"ID\"`, `ask = { question = \"...\" }`, or `filter = \"...\"`.",
    )),
    rows: &[
        (&["app"], Excludes(&["tool"]), SEPARATE),
        (&["ask"], Excludes(&["tool", "app"]), SEPARATE),
        (&["filter"], Excludes(&["tool", "app", "ask"]), SEPARATE),
        (&["params", "retry"], OnlyWith(&["tool"]), REMOVE),
        (&["input"], OnlyWith(&["app"]), REMOVE),
        (&["for_each"], OnlyWith(&["tool", "app"]), REMOVE),
        (&["max_concurrency", "on_error"], Needs("for_each"), BOTH),
    ],
};

pub(super) const ASK: TableRules = TableRules {
    what: "a question",
    kinds: &["choices", "form", "content"],
    missing: None,
    rows: &[
        (&["form"], Excludes(&["choices"]), SEPARATE),
        (&["content"], Excludes(&["choices", "form"]), SEPARATE),
        (&["allow_multiple"], Needs("choices"), BOTH),
    ],
};

/// What is wrong with the keys of a table.
pub(super) enum RuleFault {
    /// The table lacks a key: message and remedy.
    Missing(&'static str, &'static str),
    /// A key is in the wrong table, or beside the wrong key: the key, message and remedy.
    Key(&'static str, String, &'static str),
}

impl TableRules {
    /// Returns the keys of a table that say what it is. If there are several, the last one counts.
    pub(super) fn kinds(&self, table: &Map<String, Value>) -> Vec<&'static str> {
        self.kinds.iter().copied().filter(|kind| table.contains_key(*kind)).collect()
    }

    /// Returns what is wrong with the keys of a table.
    pub(super) fn faults(&self, table: &Map<String, Value>) -> Vec<RuleFault> {
        let kinds = self.kinds(table);
        let missing = self.missing.filter(|_| kinds.is_empty());
        let missing = missing.map(|(message, remedy)| RuleFault::Missing(message, remedy));
        let keys = self.rows.iter().flat_map(|row| row.0.iter().map(move |key| (*key, row)));
        let wrong =
            keys.filter(|(key, _)| table.contains_key(*key)).filter_map(|(key, (_, rule, remedy))| {
                let message = match rule {
                    OnlyWith(owners) => match kinds.last() {
                        Some(kind) if !owners.iter().any(|owner| kinds.contains(owner)) => {
                            format!("`{key}` belongs to `{}`, not to `{kind}`", owners[0])
                        }
                        _ => return None,
                    },
                    Excludes(others) => {
                        let mut both = [key, others.iter().find(|other| table.contains_key(**other))?];
                        both.sort_by_key(|key| self.kinds.iter().position(|kind| kind == key));
                        format!("{} cannot have both `{}` and `{}`", self.what, both[0], both[1])
                    }
                    Needs(other) if table.contains_key(*other) => return None,
                    Needs(other) => format!("`{key}` needs `{other}`"),
                };
                Some(RuleFault::Key(key, message, remedy))
            });
        missing.into_iter().chain(wrong).collect()
    }
}
