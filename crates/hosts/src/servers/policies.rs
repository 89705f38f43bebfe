//! The rules in servers.toml: which tools are refused, asked about, or hidden.

use nonet_config::Policy;
use toml_edit::{Array, Item, Table, TableLike, Value};

use super::{
    super::{
        rules::{ToolNames, narrowed},
        toml,
    },
    MAX_LINE, ServersToml, array, own_text, pattern,
};

const POLICIES: &str = "policies";
const GATEWAY: &str = "gateway";
/// The comment above the first policy that an import adds.
const FROM_CLIENTS: &str =
    "# Rules of the clients that had these servers before; add or remove tools as you like.\n";

impl ServersToml<'_> {
    /// Whether a policy for this risk alone refuses tools. A policy for names would precede it.
    pub(crate) fn denies_by_risk(&self) -> bool {
        self.policies().any(|policy| !names_tools(policy) && policy_of(policy) == Some(Policy::Deny))
    }

    /// Whether tools of high risk are asked about or refused, whatever their names.
    pub(crate) fn has_policy_for_risk(&self) -> bool {
        self.policies().any(|policy| !names_tools(policy) && policy.contains_key("risk"))
    }

    /// Whether the file says if clients share a gateway.
    pub(crate) fn has_shared(&self) -> bool {
        let gateway = self.document.get(GATEWAY).and_then(Item::as_table_like);
        gateway.is_some_and(|gateway| gateway.contains_key("shared"))
    }

    /// Lets all clients share one gateway.
    pub(crate) fn share(&mut self) {
        let is_new = !self.document.contains_key(GATEWAY);
        let gateway = self.document.entry(GATEWAY).or_insert_with(|| Item::Table(Table::new()));
        if is_new && let Some(table) = gateway.as_table_mut() {
            table.decor_mut().set_prefix("\n");
        }
        if let Some(gateway) = gateway.as_table_like_mut() {
            gateway.insert("shared", Item::Value(Value::from(true)));
            self.edited.insert((GATEWAY, "shared".into()));
        }
    }

    /// Asks before tools of high risk.
    pub(crate) fn ask_by_risk(&mut self) {
        let policy = [("risk", "high"), ("policy", "approve")];
        let policy: Table =
            policy.map(|(key, text)| (key, Item::Value(Value::from(text)))).into_iter().collect();
        let name = self.free_policy("careful");
        toml::add(&mut self.document, POLICIES, &name, policy, "");
        self.edited.insert((POLICIES, name));
    }

    /// Returns the tool of a server whose own policy is weaker than this one, if its name is among these.
    pub(crate) fn weaker_tool(&self, server: &str, tools: &ToolNames, policy: Policy) -> Option<String> {
        let own = self.server(server)?.get("tools")?.as_table_like()?;
        let weaker = own.iter().find(|(tool, settings)| {
            let settings = settings.as_table_like().and_then(policy_of);
            settings.is_some_and(|own| own < policy) && tools.overlaps(&ToolNames::exact(tool))
        });
        weaker.map(|(tool, _)| tool.to_string())
    }

    /// Whether a rule for these tools of a server is there already.
    pub(crate) fn has_rule(&self, server: &str, tools: &ToolNames, policy: Policy) -> bool {
        let blocks = || self.patterns(server, "blocked_tools").unwrap_or_default();
        if policy == Policy::Deny && blocks().iter().any(|there| there.covers(tools)) {
            return true;
        }
        // Everything is refused already, and a policy for names would precede that.
        let of_server = self.server(server).and_then(policy_of);
        if of_server == Some(Policy::Deny) && policy < Policy::Deny {
            return true;
        }
        let full = tools.of_server(server);
        self.policies().any(|there| {
            policy_of(there) >= Some(policy)
                && !there.contains_key("risk")
                && listed(there, "tools").unwrap_or_default().iter().any(|there| there.covers(&full))
        })
    }

    /// Adds a rule for tools of a server. Returns the pattern.
    pub(crate) fn add_rule(&mut self, server: &str, tools: &ToolNames, policy: Policy) -> String {
        let full = pattern(&tools.of_server(server));
        let (wanted, word) = match policy {
            Policy::Deny => ("clients-deny", "deny"),
            _ => ("clients-ask", "approve"),
        };
        let fits = |there: &dyn TableLike| {
            policy_of(there) == Some(policy)
                && !there.contains_key("risk")
                && there.get("tools").is_some_and(Item::is_array)
        };
        let known = |name: &str, there: &dyn TableLike| name.starts_with(wanted) && fits(there);
        let table = self.document.get_mut(POLICIES).and_then(Item::as_table_like_mut);
        let there = table.and_then(|table| {
            table.iter_mut().find_map(|(name, item)| {
                let there = item.as_table_like_mut()?;
                known(name.get(), there).then(|| (name.get().to_string(), there))
            })
        });
        match there {
            Some((name, there)) => {
                if let Some(array) = there.get_mut("tools").and_then(Item::as_array_mut) {
                    push(array, &full);
                }
                self.edited.insert((POLICIES, name));
            }
            None => {
                let comment = if self.policies().next().is_some() { "" } else { FROM_CLIENTS };
                let tools = array("tools", std::iter::once(full.clone()));
                let policy: Table =
                    [("tools", tools), ("policy", Item::Value(Value::from(word)))].into_iter().collect();
                let name = self.free_policy(wanted);
                toml::add(&mut self.document, POLICIES, &name, policy, comment);
                self.edited.insert((POLICIES, name));
            }
        }
        full
    }

    /// Returns the names that the file gives to these tools of a server, if it renames some.
    pub(crate) fn renamed(&self, server: &str, tools: &ToolNames) -> Vec<ToolNames> {
        let own = self.server(server).and_then(|server| server.get("tools")?.as_table_like());
        let renamed = own.into_iter().flat_map(|own| own.iter()).filter_map(|(tool, settings)| {
            let name = settings.as_table_like()?.get("rename")?.as_str()?;
            tools.overlaps(&ToolNames::exact(tool)).then(|| ToolNames::exact(name))
        });
        renamed.filter(|name| !tools.covers(name)).collect()
    }

    /// Whether a server shows no more than these tools.
    pub(crate) fn shows_only(&self, server: &str, tools: &[ToolNames]) -> bool {
        let allowed = self.server(server).and_then(|server| server.get("allowed_tools")?.as_array());
        let Some(shown) = self.patterns(server, "allowed_tools") else { return false };
        // A pattern that cannot be compared may show more.
        allowed.is_some_and(|allowed| allowed.len() == shown.len())
            && shown.iter().all(|shown| tools.iter().any(|tools| tools.covers(shown)))
    }

    /// Restricts a server to these tools, besides the restriction that it has.
    pub(crate) fn show_only(&mut self, server: &str, tools: &[ToolNames]) {
        let shown = match self.patterns(server, "allowed_tools") {
            Some(shown) => narrowed(&shown, tools),
            None => tools.to_vec(),
        };
        let servers = self.document.get_mut(super::TABLE).and_then(Item::as_table_like_mut);
        if let Some(there) = servers.and_then(|servers| servers.get_mut(server)?.as_table_like_mut()) {
            there.insert("allowed_tools", array("allowed_tools", shown.iter().map(pattern)));
        }
    }

    fn patterns(&self, server: &str, key: &str) -> Option<Vec<ToolNames>> {
        listed(self.server(server)?, key)
    }

    fn server(&self, name: &str) -> Option<&dyn TableLike> {
        self.servers()?.get(name)?.as_table_like()
    }

    fn policies(&self) -> impl Iterator<Item = &dyn TableLike> {
        let table = self.document.get(POLICIES).and_then(Item::as_table_like);
        table.into_iter().flat_map(|table| table.iter()).filter_map(|(_, policy)| policy.as_table_like())
    }

    fn free_policy(&self, wanted: &str) -> String {
        let there = self.document.get(POLICIES).and_then(Item::as_table_like);
        let is_free = |name: &String| there.is_none_or(|there| !there.contains_key(name));
        let numbered = (2..).map(|number| format!("{wanted}-{number}"));
        std::iter::once(wanted.to_string()).chain(numbered).find(is_free).unwrap_or_default()
    }
}

/// Returns the patterns of a list; ones with alternatives or classes are left out.
fn listed(table: &dyn TableLike, key: &str) -> Option<Vec<ToolNames>> {
    let texts = table.get(key)?.as_array()?.iter().filter_map(Value::as_str);
    Some(texts.filter_map(|text| ToolNames::of_servers_toml(&own_text(text))).collect())
}

fn names_tools(policy: &dyn TableLike) -> bool {
    policy.get("tools").and_then(Item::as_array).is_some_and(|tools| !tools.is_empty())
}

fn policy_of(table: &dyn TableLike) -> Option<Policy> {
    match table.get("policy")?.as_str()? {
        "deny" => Some(Policy::Deny),
        "approve" => Some(Policy::Approve),
        _ => Some(Policy::Allow),
    }
}

/// Adds a text to a list, and breaks a long line.
fn push(texts: &mut Array, text: &str) {
    let is_broken = texts.to_string().contains('\n');
    texts.push(text);
    if is_broken || texts.to_string().len() + 8 > MAX_LINE {
        let last = texts.len().saturating_sub(1);
        for (at, item) in texts.iter_mut().enumerate() {
            if !is_broken || at == last {
                item.decor_mut().set_prefix("\n    ");
            }
        }
        texts.set_trailing("\n");
        texts.set_trailing_comma(true);
    }
}
