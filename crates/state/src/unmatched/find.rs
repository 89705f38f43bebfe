//! Finds the rules that match no tool, with the nearest name.

use std::{collections::HashSet, sync::Arc};

use nonet_config::{AppKind, Config, Globs, StepKind, ToolOverride, written_key};
use nonet_servers::{
    catalog::{APPS, Catalog, GATEWAY, SKILLS, Tool},
    policy::RESOURCES,
};
use nonet_text::{
    fault::FaultCode,
    name::{self, RESERVED},
};
use serde_json::Value;

use super::UnmatchedRule;

/// The categories of Nonet's own whose names are always known.
const OWN: [&str; 2] = [GATEWAY, APPS];

/// Returns the rules that match no tool of the catalogue. `is_known` says whether it has a server's tools.
pub fn unmatched_rules(
    config: &Config,
    catalog: &Catalog,
    is_known: &dyn Fn(&str) -> bool,
) -> Vec<UnmatchedRule> {
    let enabled = config.servers.iter().filter(|(_, server)| server.enabled).map(|(name, _)| name.as_str());
    let mut finder = Finder {
        config,
        catalog,
        enabled: enabled.chain(OWN).collect(),
        known: HashSet::new(),
        tools: catalog.tools().filter(|tool| tool.session.is_none()).collect(),
        found: Vec::new(),
    };
    let known = finder.enabled.iter().copied().filter(|server| OWN.contains(server) || is_known(server));
    finder.known = known.collect();
    finder.servers();
    let gateway = &config.gateway;
    finder.names_or_patterns("gateway.pinned", &gateway.pinned);
    finder.patterns("gateway.priorities", gateway.priorities.patterns());
    for (name, category) in &config.categories {
        finder.patterns(&format!("categories.{name}.tools"), category.tools.patterns());
    }
    for (name, profile) in &config.profiles {
        let key = |key: &str| format!("profiles.{name}.{key}");
        finder.patterns(&key("allow"), profile.allow.patterns());
        finder.against(&key("deny"), profile.deny.patterns());
        finder.patterns(&key("only"), profile.only.as_ref().map_or(&[], Globs::patterns));
        finder.names_or_patterns(&key("pinned"), &profile.pinned);
        finder.patterns(&key("priorities"), profile.priorities.patterns());
    }
    for (name, rule) in &config.policies {
        finder.policy(&format!("policies.{name}.tools"), rule.tools.patterns());
    }
    for (id, app) in &config.apps {
        match &app.kind {
            AppKind::Tool { tool } => finder.name(&format!("apps.{id}.tool"), tool),
            // What a script names is checked before it runs.
            AppKind::Script { .. } => {}
            AppKind::Model(app) => {
                finder.patterns(&format!("apps.{id}.allowed_tools"), app.allowed_tools.patterns());
            }
            AppKind::Workflow { steps, .. } => {
                for step in steps {
                    let StepKind::Tool { tool, retry, .. } = &step.kind else { continue };
                    let key = format!("apps.{id}.steps.{}", written_key(&step.id));
                    finder.name(&key, tool);
                    if retry.is_some() {
                        finder.repeatable(&key, tool);
                    }
                }
            }
        }
    }
    finder.found
}

struct Finder<'a> {
    config: &'a Config,
    catalog: &'a Catalog,
    /// The enabled servers, Nonet itself and the apps.
    enabled: Vec<&'a str>,
    /// The enabled servers whose tools are known.
    known: HashSet<&'a str>,
    /// All tools, including hidden ones: the rule may be what hides them.
    tools: Vec<&'a Arc<Tool>>,
    found: Vec<UnmatchedRule>,
}

impl<'a> Finder<'a> {
    /// Checks the settings of each server against the server's own tool names.
    fn servers(&mut self) {
        for (server, settings) in &self.config.servers {
            let server = server.as_str();
            if !self.known.contains(server) {
                continue;
            }
            let tools: Vec<&'a Arc<Tool>> =
                self.tools.iter().copied().filter(|tool| *tool.server == *server).collect();
            let own: Vec<&str> = tools.iter().map(|tool| &*tool.own).collect();
            let allowed = settings.allowed_tools.iter().flat_map(Globs::patterns);
            let lists = [
                ("allowed_tools", allowed.collect::<Vec<_>>()),
                ("blocked_tools", settings.blocked_tools.patterns().iter().collect()),
            ];
            for (key, patterns) in lists {
                let is_caught = |pattern: &str| {
                    key == "blocked_tools"
                        && Globs::new(vec![pattern.into()])
                            .is_ok_and(|globs| own.iter().any(|name| globs.catches_own(name)))
                };
                let unmatched =
                    patterns.into_iter().filter(|pattern| !matches_any(pattern, own.iter().copied()));
                for pattern in unmatched.filter(|pattern| !is_caught(pattern)) {
                    let near = nearest(pattern, own.iter().copied());
                    self.report(
                        &format!("servers.{server}.{key}"),
                        pattern,
                        &format!("no tool of `{server}`"),
                        near,
                    );
                }
            }
            for tool in settings.tools.keys().filter(|tool| !own.contains(&tool.as_str())) {
                let key = format!("servers.{server}.tools.{}", written_key(tool));
                let near = nearest(tool, own.iter().copied());
                self.report(&key, tool, &format!("no tool of `{server}`"), near);
            }
            for tool in tools {
                if let Some(settings) = settings.tools.get(&*tool.own) {
                    self.of_tool(tool, settings, &own);
                }
            }
        }
    }

    /// Checks the new name and the examples of a tool. `own` are the names that its server gives.
    fn of_tool(&mut self, tool: &Tool, settings: &ToolOverride, own: &[&str]) {
        let table = format!("servers.{}.tools.{}", tool.server, written_key(&tool.own));
        if let Some(new) = settings.rename.as_deref().filter(|new| **new != *tool.name) {
            let fold = name::fold(new);
            let why = match own.iter().find(|other| ***other != *tool.own && name::fold(other) == fold) {
                Some(other) => format!("is taken by the tool `{other}`"),
                None => "is the new name of several tools of this server".into(),
            };
            let message = format!("`{new}` {why}, so `{}` keeps its name", tool.own);
            self.found.push(UnmatchedRule { key: format!("{table}.rename"), message });
        }
        for (at, why) in &tool.misfits {
            let message = format!(
                "the example does not fit the input schema of `{}` and is left out: {why}",
                tool.full
            );
            self.found.push(UnmatchedRule { key: format!("{table}.examples[{at}]"), message });
        }
    }

    /// Checks patterns on full names.
    fn patterns(&mut self, key: &str, patterns: &[String]) {
        for pattern in patterns {
            self.pattern(key, pattern);
        }
    }

    /// Checks patterns of a rule against tools, which match every spelling of a name.
    fn against(&mut self, key: &str, patterns: &[String]) {
        for pattern in patterns {
            let globs = Globs::new(vec![pattern.clone()]);
            if !globs.is_ok_and(|globs| self.tools.iter().any(|tool| tool.is_caught_by(&globs))) {
                self.pattern(key, pattern);
            }
        }
    }

    /// Checks the patterns of a policy, which is a rule on servers' tools.
    fn policy(&mut self, key: &str, patterns: &[String]) {
        for pattern in patterns {
            match split(pattern)
                .filter(|(category, rest)| *category == APPS || *category == SKILLS && !rest.contains('/'))
            {
                Some((category, _)) => {
                    let message = format!(
                        "`{pattern}` matches no tool: policies are for tools; a profile hides {category} with `deny`"
                    );
                    self.found.push(UnmatchedRule { key: key.into(), message });
                }
                None => self.against(key, std::slice::from_ref(pattern)),
            }
        }
    }

    /// Checks entries that are tool names, in any accepted form, or patterns.
    fn names_or_patterns(&mut self, key: &str, globs: &Globs) {
        for pattern in globs.patterns() {
            if !self.is_name(key, pattern) {
                self.pattern(key, pattern);
            }
        }
    }

    /// Whether a text names a tool. Reports an ambiguous name.
    fn is_name(&mut self, key: &str, given: &str) -> bool {
        match self.catalog.resolve(given) {
            Ok(_) => true,
            Err(fault) if fault.code == FaultCode::AmbiguousTool => {
                let message = format!("`{given}` may be any of {}", fault.did_you_mean.join(", "));
                self.found.push(UnmatchedRule { key: key.into(), message });
                true
            }
            Err(_) => false,
        }
    }

    /// Whether a pattern matches a server's prompt or resource.
    fn matches_item(&self, pattern: &str) -> bool {
        let Ok(globs) = Globs::new(vec![pattern.into()]) else { return false };
        let servers = self.catalog.servers().iter().filter(|(_, entry)| entry.session.is_none());
        let mut items = servers.flat_map(|(server, entry)| {
            let of = |items: &'a [Value], key: &'static str| {
                let owns = items.iter().filter_map(move |one| one.get(key)?.as_str());
                owns.map(|own| name::full_name(server, own))
            };
            let listing = &entry.listing;
            let uris = of(&listing.resources, "uri").chain(of(&listing.templates, "uriTemplate"));
            of(&listing.prompts, "name").chain(uris)
        });
        items.any(|item| globs.matches(&item))
    }

    fn pattern(&mut self, key: &str, pattern: &str) {
        // Links in results may lead to unlisted resources.
        if split(pattern).is_some_and(|(category, _)| category == RESOURCES) || self.matches_item(pattern) {
            return;
        }
        let all: Vec<&'a Arc<Tool>> = self.tools.clone();
        let names = || all.iter().map(|tool| &*tool.full);
        let Some((server, rest)) = split(pattern) else {
            if self.all_known() && !matches_any(pattern, names()) {
                self.report(key, pattern, "no tool", nearest(pattern, names()));
            }
            return;
        };
        if !is_literal(server) {
            // The pattern may mean a left-out server.
            let mut meant = self.enabled.iter().filter(|name| matches_any(server, [**name].into_iter()));
            let judged = meant.all(|name| self.known.contains(name)) && self.config.left_out.is_empty();
            if judged && !matches_any(pattern, names()) {
                self.report(key, pattern, "no tool", nearest(pattern, names()));
            }
        } else if self.known.contains(server) {
            if !matches_any(pattern, names()) {
                let own = all.iter().filter(|tool| *tool.server == *server).map(|tool| &*tool.name);
                let near = nearest(rest, own).map(|near| name::full_name(server, &near));
                self.report(key, pattern, "no tool", near);
            }
        } else if !self.is_configured(server) {
            let near = name::nearest(server, self.configured(), 1);
            let near = near.first().map(|near| format!("{near}.{rest}"));
            self.report(key, pattern, "no server", near);
        }
    }

    fn name(&mut self, key: &str, given: &str) {
        if self.is_name(key, given) {
            return;
        }
        let folded = name::fold(given);
        let is_of = |server: &str| {
            folded.strip_prefix(&*name::fold(server)).is_some_and(|rest| rest.starts_with('_'))
        };
        let judged = match self.configured().filter(|server| is_of(server)).max_by_key(|server| server.len())
        {
            Some(server) => self.known.contains(server),
            None => self.all_known(),
        };
        if judged {
            let near = nearest(given, self.tools.iter().map(|tool| &*tool.full));
            self.report(key, given, "no tool", near);
        }
    }

    /// Checks that a tool with retries allows repeated calls.
    fn repeatable(&mut self, key: &str, given: &str) {
        if let Ok(tool) = self.catalog.resolve(given)
            && !tool.is_repeatable()
        {
            let message = format!(
                "`retry` needs a tool that its server marks read-only or idempotent, and `{}` is neither",
                tool.full
            );
            self.found.push(UnmatchedRule { key: format!("{key}.retry"), message });
        }
    }

    fn report(&mut self, key: &str, pattern: &str, what: &str, near: Option<String>) {
        let now = self.tools.iter().find(|tool| {
            tool.is_renamed()
                && matches_any(pattern, [name::full_name(&tool.server, &tool.own).as_str()].into_iter())
        });
        let near = match (now, near) {
            (Some(tool), _) => format!("; `{}` is renamed to `{}`", tool.own, tool.full),
            (None, Some(near)) => format!("; the nearest is `{near}`"),
            (None, None) => String::new(),
        };
        let message = format!("`{pattern}` matches {what}{near}");
        self.found.push(UnmatchedRule { key: key.into(), message });
    }

    fn all_known(&self) -> bool {
        self.config.left_out.is_empty() && self.enabled.iter().all(|server| self.known.contains(server))
    }

    /// Returns every server of the file, including disabled and left-out ones, and Nonet's own categories.
    /// Names of skills are never checked, because folders and servers' prompts change at any time.
    fn configured(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let servers = self.config.servers.keys().map(name::ServerName::as_str);
        servers.chain(self.config.left_out.keys().map(String::as_str)).chain(RESERVED)
    }

    fn is_configured(&self, server: &str) -> bool {
        self.configured().any(|name| name == server)
    }
}

/// Splits a pattern on full names at the dot after the server's name.
fn split(pattern: &str) -> Option<(&str, &str)> {
    let (mut depth, mut escaped) = (0_usize, false);
    for (at, c) in pattern.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            '.' if depth == 0 => return Some((&pattern[..at], &pattern[at + 1..])),
            _ => {}
        }
    }
    None
}

fn is_literal(pattern: &str) -> bool {
    !pattern.contains(['*', '?', '[', ']', '{', '}', '\\'])
}

fn matches_any<'n>(pattern: &str, mut names: impl Iterator<Item = &'n str>) -> bool {
    // Patterns were parsed with the file, so this cannot fail.
    Globs::new(vec![pattern.into()]).is_ok_and(|globs| names.any(|name| globs.matches(name)))
}

/// Returns the name most similar to the literal characters of a pattern.
fn nearest<'n>(pattern: &str, names: impl Iterator<Item = &'n str>) -> Option<String> {
    let spelled = pattern.replace(['*', '?', '[', ']', '{', '}', '\\'], "");
    // `*.a*` has too few to guess from.
    let letters = spelled.chars().filter(|c| c.is_alphanumeric()).count();
    if letters < 3 && !is_literal(pattern) {
        return None;
    }
    name::nearest(&spelled, names, 1).first().map(ToString::to_string)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, path::Path};

    use serde_json::json;

    use super::*;
    use nonet_config as config;
    use nonet_servers::catalog::{CatalogSource, Listing};

    /// Returns the reports on a file with the server `files`, which lists two tools. `gamma` and `docs` list
    /// theirs if the file has them; `slow` has not listed any.
    fn reports(text: &str) -> Vec<String> {
        let text = format!("[servers.files]\ncommand = 'x'\n{text}");
        let config =
            config::parse(&text, Path::new("f"), config::ValueSources::NONE).expect("it is usable").config;
        let listing = |tools: &[&str]| Listing {
            tools: tools.iter().map(|name| Arc::new(json!({ "name": name }))).collect(),
            ..Listing::default()
        };
        let status = json!({ "name": "status", "annotations": { "readOnlyHint": true } });
        let own = Listing { tools: vec![Arc::new(status)], ..Listing::default() };
        let lists = BTreeMap::from([
            (GATEWAY, own),
            ("files", listing(&["read_file", "write_file"])),
            ("gamma", listing(&["look", "ray"])),
            ("docs", listing(&["look"])),
        ]);
        let settings = |name: &str| config.servers.iter().find(|(key, _)| key.as_str() == name);
        let listings = lists.iter().filter(|(name, _)| **name == GATEWAY || settings(name).is_some());
        let sources = listings.map(|(name, list)| CatalogSource {
            server: (*name).into(),
            listing: Arc::new(list.clone()),
            settings: settings(name).map(|(_, server)| Arc::new(server.clone())),
        });
        let catalog = Catalog::new(sources, &config.policies);
        let is_known = |server: &str| server != "slow" && lists.contains_key(server);
        unmatched_rules(&config, &catalog, &is_known).iter().map(ToString::to_string).collect()
    }

    fn check(text: &str, expected: &[&str]) {
        assert_eq!(reports(text), expected, "{text}");
    }

    #[test]
    fn a_rule_that_matches_nothing_is_named_with_the_nearest() {
        // Rules against tools match every spelling.
        check(
            "blocked_tools = ['Read-*']\n[profiles.p]\ndeny = ['files.writeFile']\n[policies.p]\ntools = ['Files.WRITE_*', 'files.readFile']\npolicy = 'deny'\n",
            &[],
        );
        check(
            "allowed_tools = ['read_*', 'wirte_*']\nblocked_tools = ['delete_*']\n[servers.files.tools.write_fiel]\npolicy = 'approve'\n[servers.files.tools.'a.b']\n",
            &[
                "servers.files.allowed_tools: `wirte_*` matches no tool of `files`; the nearest is `write_file`",
                "servers.files.blocked_tools: `delete_*` matches no tool of `files`",
                "servers.files.tools.\"a.b\": `a.b` matches no tool of `files`",
                "servers.files.tools.write_fiel: `write_fiel` matches no tool of `files`; the nearest is `write_file`",
            ],
        );
        check(
            "[servers.gamma]\ncommand = 'x'\n[profiles.p]\ndeny = ['gama.*']\nallow = ['gamma.*', 'files.raed_file']\nonly = ['*.wirte_file']\npinned = ['files__write_file', 'ray', 'gamma.rya', 'g*.ray']\npriorities = { 'files.*' = 1, 'fils.*' = 2 }\n",
            &[
                "profiles.p.allow: `files.raed_file` matches no tool; the nearest is `files.read_file`",
                "profiles.p.deny: `gama.*` matches no server; the nearest is `gamma.*`",
                "profiles.p.only: `*.wirte_file` matches no tool; the nearest is `files.write_file`",
                "profiles.p.pinned: `gamma.rya` matches no tool; the nearest is `gamma.ray`",
                "profiles.p.priorities: `fils.*` matches no server; the nearest is `files.*`",
            ],
        );
        check(
            "[gateway]\npinned = ['files.write_*', 'files.wr']\npriorities = { 'x.y' = 1 }\n[categories.c]\ntools = ['files.*', 'gateway.stauts']\n[policies.p]\ntools = ['write_fiel', 'write_file']\npolicy = 'approve'\n",
            &[
                "gateway.pinned: `files.wr` matches no tool; the nearest is `files.write_file`",
                "gateway.priorities: `x.y` matches no server",
                "categories.c.tools: `gateway.stauts` matches no tool; the nearest is `gateway.status`",
                "policies.p.tools: `write_fiel` matches no tool; the nearest is `files.write_file`",
                "policies.p.tools: `write_file` matches no tool; the nearest is `files.write_file`",
            ],
        );
        check(
            "[policies.p]\ntools = ['apps.one', 'skills.*']\npolicy = 'deny'\n[profiles.p]\ndeny = ['apps.on', 'skills.gone']\n",
            &[
                "profiles.p.deny: `apps.on` matches no tool",
                "policies.p.tools: `apps.one` matches no tool: policies are for tools; a profile hides apps with `deny`",
                "policies.p.tools: `skills.*` matches no tool: policies are for tools; a profile hides skills with `deny`",
            ],
        );
        check(
            "[policies.p]\ntools = ['gateway.st*']\npolicy = 'approve'\n[profiles.p]\ndeny = ['gateway.status']\n",
            &[],
        );
        check(
            "[servers.gamma]\ncommand = 'x'\n[servers.docs]\ncommand = 'x'\n[gateway]\npinned = ['look', 'l*']\n[apps.one]\ntool = 'look'\n",
            &[
                "gateway.pinned: `look` may be any of docs.look, gamma.look",
                "gateway.pinned: `l*` matches no tool",
                "apps.one.tool: `look` may be any of docs.look, gamma.look",
            ],
        );
        check(
            "[apps.one]\ntool = 'files.wirte_file'\n[apps.two]\nsteps = [{ tool = 'read_file' }, { tool = 'files__raed_file' }]\n[apps.three]\nmodel = 'client'\nallowed_tools = ['files.read_*', 'files.raed_*']\n",
            &[
                "apps.one.tool: `files.wirte_file` matches no tool; the nearest is `files.write_file`",
                "apps.three.allowed_tools: `files.raed_*` matches no tool; the nearest is `files.read_file`",
                "apps.two.steps.step2: `files__raed_file` matches no tool; the nearest is `files.read_file`",
            ],
        );
    }

    #[test]
    fn a_new_name_that_cannot_be_given_is_named() {
        let rename = |tool: &str, new: &str| format!("[servers.files.tools.{tool}]\nrename = '{new}'\n");
        check(&rename("read_file", "look"), &[]);
        check(&rename("read_file", "read_file"), &[]);
        let clash = "servers.files.tools.read_file.rename: `write_file` is taken by the tool `write_file`, so `read_file` keeps its name";
        check(&rename("read_file", "write_file"), &[clash]);
        check(
            &rename("read_file", "Write-File"),
            &[&clash.replace("rename: `write_file`", "rename: `Write-File`")],
        );
        check(&rename("read_file", "Read-File"), &[]);
        // The other tool's own name still leads to that tool, whatever its current name is.
        check(&(rename("read_file", "write_file") + &rename("write_file", "save")), &[clash]);
        check(
            &(rename("read_file", "file") + &rename("write_file", "file")),
            &[
                "servers.files.tools.read_file.rename: `file` is the new name of several tools of this server, so `read_file` keeps its name",
                "servers.files.tools.write_file.rename: `file` is the new name of several tools of this server, so `write_file` keeps its name",
            ],
        );
        // Rules apply to the new name. Where a name is expected, the old name leads to the new one.
        check(
            &format!(
                "allowed_tools = ['read_*']\n{}[profiles.p]\nallow = ['files.look']\ndeny = ['files.read_file']\npinned = ['files.read_file']\n",
                rename("read_file", "look")
            ),
            &["profiles.p.deny: `files.read_file` matches no tool; `read_file` is renamed to `files.look`"],
        );
    }

    #[test]
    fn a_rule_for_a_server_whose_tools_are_not_known_is_not_judged() {
        let rules = "[servers.slow]\ncommand = 'x'\nblocked_tools = ['a']\n[servers.slow.tools.a]\n[servers.off]\ncommand = 'x'\nenabled = false\n[servers.bad]\ncomand = 'x'\n\
                     [policies.p]\ntools = ['slow.x', 'off.*', 'bad.x', 's*.x', '*.x', 'x']\npolicy = 'deny'\n\
                     [apps.a]\nsteps = [{ tool = 'slow.x' }, { tool = 'bad__x' }, { tool = 'off.x' }, { tool = 'x' }]\n";
        check(rules, &[]);
        // Known servers are still checked.
        check(
            &format!("{rules}[profiles.p]\ndeny = ['files.x', 'fo?.*']\n"),
            &["profiles.p.deny: `files.x` matches no tool"],
        );
        // A disabled server has no tools that a pattern for several servers could mean.
        check(
            "[servers.off]\ncommand = 'x'\nenabled = false\n[policies.p]\ntools = ['*.drop_*']\npolicy = 'deny'\n",
            &["policies.p.tools: `*.drop_*` matches no tool"],
        );
    }

    #[test]
    fn patterns_are_split_where_the_servers_name_ends() {
        let check = |pattern, expected| assert_eq!(split(pattern), expected, "{pattern}");
        check("files.read.*", Some(("files", "read.*")));
        check("{a.b,c}.d", Some(("{a.b,c}", "d")));
        check("[a.]*.x", Some(("[a.]*", "x")));
        check("a\\.b.c", Some(("a\\.b", "c")));
        check("read_*", None);
    }
}
