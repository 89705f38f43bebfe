//! Where clients keep their rules: in the file of their servers, or in other files.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    super::{FileScope, Host, HostFault, Machine, Os, read, text},
    ClientRule, ClientRules, RuleEffect, RuleList, Scope, ToolNames, ToolNaming, at, clean, items, members,
    texts,
};

/// The most other projects whose settings are read.
const MOST_PROJECTS: usize = 500;

/// Reads the rules of a client. `root` is the content of `file`, which has the servers. Other files of the
/// client are read too if `is_installed`.
pub(in super::super) fn of_client(
    host: &Host,
    root: &Value,
    file: &Path,
    is_installed: bool,
    machine: &Machine,
) -> ClientRules {
    let mut rules = ClientRules::default();
    let mut trouble = None;
    let mut others =
        |paths: Vec<PathBuf>| if is_installed { contents(paths, &mut trouble) } else { Vec::new() };
    let mut files = vec![(file.to_path_buf(), root.clone())];
    let scopes =
        [FileScope::User, FileScope::Project].into_iter().filter_map(|scope| host.file(scope, machine));
    let scopes: Vec<PathBuf> = scopes.filter(|other| other != file).collect();
    let home = &machine.home;
    match host.name {
        "claude-code" => {
            rules.naming = ToolNaming::Claude;
            claude_code(&mut rules, &files, others(scopes), machine, &mut others);
        }
        "cursor" => {
            rules.naming = ToolNaming::Cursor;
            let paths = vec![home.join(".cursor/cli-config.json"), machine.current.join(".cursor/cli.json")];
            for (file, settings) in others(paths) {
                let denied = ["permissions", "deny"];
                rules.listed(&file, &settings, &denied, RuleEffect::Deny, |rule| {
                    let inner = rule.trim().strip_prefix("Mcp(")?.strip_suffix(')')?;
                    Some((inner.into(), Scope::Every))
                });
            }
        }
        "vscode" => {
            rules.naming = ToolNaming::VsCode;
            let users = (host.user)(machine).with_file_name("settings.json");
            for (file, settings) in others(vec![users, machine.current.join(".vscode/settings.json")]) {
                let key = "chat.tools.eligibleForAutoApproval";
                let nested = at(&settings, &["chat", "tools", "eligibleForAutoApproval"]);
                let table = settings.get(key).or(nested).unwrap_or(&Value::Null);
                let asked = members(table, &[]).filter(|(_, eligible)| **eligible == Value::Bool(false));
                let asked =
                    asked.map(|(name, _)| (name.clone(), RuleEffect::Ask, Scope::Every, key.to_string()));
                rules.add(&file, asked);
            }
        }
        "zed" => {
            rules.naming = ToolNaming::Zed;
            files.extend(others(scopes));
            for (file, settings) in &files {
                rules.zed(file, settings);
            }
        }
        "gemini-cli" => {
            rules.naming = ToolNaming::Gemini;
            files.extend(others(scopes));
            for (file, settings) in &files {
                rules.gemini(file, settings);
            }
            let mut folders = vec![home.join(".gemini/policies"), machine.current.join(".gemini/policies")];
            folders.dedup();
            let mut policies: Vec<PathBuf> = folders.iter().flat_map(|folder| files_in(folder)).collect();
            policies.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
            rules.gemini_policies(&others(policies));
        }
        "continue" => {
            rules.naming = ToolNaming::Bare;
            for (file, settings) in others(vec![home.join(".continue/permissions.yaml")]) {
                // `Bash`, `Write` and the like are Continue's own.
                let named = |rule: &str| {
                    let is_own = rule.starts_with(|c: char| c.is_ascii_uppercase());
                    (!is_own).then(|| with_params(rule))
                };
                rules.listed(&file, &settings, &["ask"], RuleEffect::Ask, named);
                rules.listed(&file, &settings, &["exclude"], RuleEffect::Deny, named);
            }
        }
        "goose" => {
            rules.naming = ToolNaming::Goose;
            let beside = (host.user)(machine).with_file_name("permission.yaml");
            for (file, settings) in others(vec![beside]) {
                for kind in ["smart_approve", "user"] {
                    let whole = |rule: &str| Some((rule.into(), Scope::Every));
                    rules.listed(&file, &settings, &[kind, "ask_before"], RuleEffect::Ask, whole);
                    rules.listed(&file, &settings, &[kind, "never_allow"], RuleEffect::Deny, whole);
                }
            }
        }
        "opencode" => {
            rules.naming = ToolNaming::Opencode;
            let beside = |file: &Path| [file.with_extension("json"), file.with_extension("jsonc")];
            let mut paths: Vec<PathBuf> =
                scopes.iter().flat_map(|file| beside(file)).chain(beside(file)).collect();
            paths.retain(|path| path != file);
            files.extend(others(paths));
            for (file, settings) in &files {
                rules.opencode(file, settings);
            }
        }
        _ => {}
    }
    rules.unreadable = rules.unreadable.or(trouble);
    rules
}

/// Reads the rules of Claude Code: `files` has the servers, `users` the user's settings if `files` is a
/// project's. `read` returns the content of other files.
fn claude_code(
    rules: &mut ClientRules,
    files: &[(PathBuf, Value)],
    mut users: Vec<(PathBuf, Value)>,
    machine: &Machine,
    read: &mut impl FnMut(Vec<PathBuf>) -> Vec<(PathBuf, Value)>,
) {
    let own = claude_files(machine);
    for (file, settings) in read(own.clone()) {
        rules.claude(&file, &settings, None);
    }
    users.retain(|(_, settings)| settings.get("projects").is_some());
    let is_shared = files.iter().any(|(file, _)| file.ends_with(".mcp.json"));
    for (file, settings) in if is_shared { &users } else { files } {
        for (path, project) in members(settings, &["projects"]).take(MOST_PROJECTS) {
            let path = Path::new(path);
            if path == machine.current && is_shared {
                rules.refused(project);
            }
            if !is_shared {
                rules.switched_off_in(path, project, file);
            }
            let mut settings = if path.is_absolute() { claude_settings(path) } else { Vec::new() };
            settings.retain(|file| !own.contains(file));
            for (file, settings) in read(settings) {
                rules.claude(&file, &settings, Some(path));
            }
        }
    }
    if is_shared {
        read(own).iter().for_each(|(_, settings)| rules.refused(settings));
    }
}

/// Returns Claude Code's settings of every scope, in the current folder.
fn claude_files(machine: &Machine) -> Vec<PathBuf> {
    let managed = match machine.os {
        Os::Linux => "/etc/claude-code",
        Os::MacOs => "/Library/Application Support/ClaudeCode",
        Os::Windows => "C:/Program Files/ClaudeCode",
    };
    let users = machine.folder("CLAUDE_CONFIG_DIR").unwrap_or(machine.home.join(".claude"));
    let mut files = vec![
        Path::new(managed).join("managed-settings.json"),
        users.join("settings.json"),
        users.join("settings.local.json"),
    ];
    files.extend(claude_settings(&machine.current).into_iter().filter(|file| !file.starts_with(&users)));
    files
}

fn claude_settings(project: &Path) -> Vec<PathBuf> {
    let folder = project.join(".claude");
    vec![folder.join("settings.json"), folder.join("settings.local.json")]
}

/// Reads the files that exist. `trouble` becomes the reason to move no server, if a file cannot be read.
fn contents(paths: Vec<PathBuf>, trouble: &mut Option<String>) -> Vec<(PathBuf, Value)> {
    let content = |path: &Path| -> Result<Option<Value>, HostFault> {
        text::bytes(path)?.map(|bytes| read::content(&bytes, path)).transpose()
    };
    let mut found = Vec::new();
    for path in paths {
        match content(&path) {
            Ok(value) => found.extend(value.map(|value| (path, value))),
            Err(fault) => {
                let why = format!("the client's rules cannot be read: {}: {}", path.display(), fault.message);
                trouble.get_or_insert(why);
            }
        }
    }
    found
}

/// Returns the files of a folder, by name.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files
}

/// Whether a tool is Gemini CLI's own; a rule for it concerns no server.
fn is_of_gemini(tool: &str) -> bool {
    matches!(
        tool,
        "run_shell_command"
            | "read_file"
            | "read_many_files"
            | "write_file"
            | "replace"
            | "glob"
            | "list_directory"
            | "search_file_content"
            | "grep_search"
            | "web_fetch"
            | "google_web_search"
            | "save_memory"
            | "write_todos"
            | "activate_skill"
    )
}

/// Splits `NAME(params)`; `(*)` matches every call.
fn with_params(rule: &str) -> (String, Scope) {
    match rule.trim().split_once('(') {
        Some((name, rest)) if !["*)", ")"].contains(&rest.trim()) => (name.trim().into(), Scope::Params),
        Some((name, _)) => (name.trim().into(), Scope::Every),
        None => (rule.trim().into(), Scope::Every),
    }
}

impl ClientRules {
    /// Adds rules of a file: the client's names, with the keys that the names are under. Of these, the last
    /// one counts.
    fn add(&mut self, file: &Path, rules: impl IntoIterator<Item = NamedRule>) {
        let mut list = RuleList { file: file.into(), rules: Vec::new() };
        for (name, effect, scope, key) in rules {
            let names = match self.naming {
                ToolNaming::Opencode | ToolNaming::Gemini => ToolNames::wild(&name),
                _ => ToolNames::starred(&name),
            };
            let written = format!("{key}: {name}");
            match names {
                Some(names) => list.rules.push(ClientRule { effect, names, scope, written }),
                None => self.unreadable(file, &format!("a rule of `{key}` is too long")),
            }
        }
        if !list.rules.is_empty() {
            self.lists.push(list);
        }
    }

    /// Adds a list of rules under a key. `named` splits a rule into the name of a tool and what else it
    /// depends on; it returns none for a rule that concerns no server.
    fn listed(
        &mut self,
        file: &Path,
        settings: &Value,
        path: &[&str],
        effect: RuleEffect,
        named: impl Fn(&str) -> Option<(String, Scope)>,
    ) {
        let key = path.join(".");
        let Some(listed) = at(settings, path).filter(|listed| !listed.is_null()) else { return };
        let Some(listed) = listed.as_array() else {
            return self.unreadable(file, &format!("`{key}` is not a list"));
        };
        let texts = listed.iter().filter_map(Value::as_str);
        let rules: Vec<(&str, String, Scope)> =
            texts.filter_map(|text| named(text).map(|(name, scope)| (text, name, scope))).collect();
        for (text, name, scope) in rules {
            let Some(names) = ToolNames::starred(&name) else {
                self.unreadable(file, &format!("a rule of `{key}` is too long"));
                continue;
            };
            let rule = ClientRule { effect, names, scope, written: format!("{key}: {text}") };
            // Each is a list of its own: the strictest counts.
            self.lists.push(RuleList { file: file.into(), rules: vec![rule] });
        }
    }

    fn unreadable(&mut self, file: &Path, what: &str) {
        self.unreadable.get_or_insert_with(|| {
            format!("the client has rules that Nonet cannot read: {}: {what}", file.display())
        });
    }

    fn claude(&mut self, file: &Path, settings: &Value, project: Option<&Path>) {
        let part = project.map(|project| Scope::Part(format!("for the project {} only", project.display())));
        let named = |rule: &str| {
            let (name, scope) = with_params(rule);
            let concerns = name.starts_with("mcp__") || name.contains('*');
            concerns.then(|| (name, part.clone().unwrap_or(scope)))
        };
        self.listed(file, settings, &["permissions", "ask"], RuleEffect::Ask, named);
        self.listed(file, settings, &["permissions", "deny"], RuleEffect::Deny, named);
        // A hook can refuse calls by their names, which change behind Nonet.
        let hooks = items(settings, &["hooks", "PreToolUse"]);
        let matchers = hooks.filter_map(|hook| hook.get("matcher")?.as_str());
        let names = matchers.flat_map(|matcher| matcher.split('|')).filter(|name| name.contains("mcp__"));
        for name in names {
            // What follows the first special character of the regular expression may be anything.
            let name = name.trim_start_matches(['^', '(']);
            let end = name.find(|c: char| !c.is_alphanumeric() && !"_-".contains(c)).unwrap_or(name.len());
            let (stem, rest) = name.split_at(end);
            if stem == "mcp__" && !rest.is_empty() && !rest.starts_with(".*") {
                self.unreadable(file, &format!("the hook for `{name}`"));
                continue;
            }
            let key = "hooks.PreToolUse".to_string();
            self.add(file, [(format!("{stem}*"), RuleEffect::Ask, Scope::Part("a hook".into()), key)]);
        }
        let denied = items(settings, &["deniedMcpServers"]);
        let denied = denied.filter_map(|server| server.get("serverName")?.as_str());
        self.switch_off("deniedMcpServers", denied);
    }

    /// Adds the servers of a project's `.mcp.json` that the user has refused.
    fn refused(&mut self, settings: &Value) {
        let key = "disabledMcpjsonServers";
        self.switch_off(key, texts(settings, &[key]));
    }

    /// Adds servers that the client does not start because of a key.
    fn switch_off<'n>(&mut self, key: &str, names: impl Iterator<Item = &'n str>) {
        self.off.extend(names.map(|name| (name.to_string(), format!("{key}: {name}"))));
    }

    /// Adds the servers that Claude Code does not start in one project.
    fn switched_off_in(&mut self, path: &Path, project: &Value, file: &Path) {
        let key = "disabledMcpServers";
        for name in texts(project, &[key]) {
            let scope = Scope::Part(format!("for the project {} only", path.display()));
            self.add(file, [(format!("mcp__{}", clean(name)), RuleEffect::Hide, scope, key.to_string())]);
        }
    }

    fn zed(&mut self, file: &Path, settings: &Value) {
        let effect = |table: &Value| match table.get("default").and_then(Value::as_str) {
            Some("deny") => RuleEffect::Deny,
            Some("confirm") => RuleEffect::Ask,
            _ => RuleEffect::Allow,
        };
        let key = "agent.tool_permissions";
        if let Some(permissions) = at(settings, &["agent", "tool_permissions"]) {
            let mut rules =
                vec![("*".to_string(), effect(permissions), Scope::Every, format!("{key}.default"))];
            for (name, table) in members(permissions, &["tools"]) {
                let is_set = |key: &&str| items(table, &[key]).next().is_some();
                let scope = if ["always_deny", "always_confirm"].iter().any(is_set) {
                    Scope::Params
                } else {
                    Scope::Every
                };
                let effect = match (&scope, table.get("default")) {
                    (Scope::Params, _) => RuleEffect::Deny,
                    // Without a default, the general one holds.
                    (_, None) => continue,
                    _ => effect(table),
                };
                rules.push((name.clone(), effect, scope, format!("{key}.tools")));
            }
            self.add(file, rules);
        }
        for (profile, table) in members(settings, &["agent", "profiles"]) {
            for (server, table) in members(table, &["context_servers"]) {
                let tools = members(table, &["tools"]);
                for (tool, _) in tools.filter(|(_, shown)| **shown == Value::Bool(false)) {
                    let name = format!("mcp:{server}:{tool}");
                    let scope = Scope::Part(format!("for the profile `{profile}` only"));
                    self.add(file, [(name, RuleEffect::Hide, scope, format!("agent.profiles.{profile}"))]);
                }
            }
        }
    }

    fn gemini(&mut self, file: &Path, settings: &Value) {
        for path in [&["tools", "exclude"][..], &["excludeTools"]] {
            self.listed(file, settings, path, RuleEffect::Deny, |rule| {
                let (name, scope) = with_params(rule);
                let is_own = is_of_gemini(&name) || name.starts_with(|c: char| c.is_ascii_uppercase());
                (!is_own).then_some((name, scope))
            });
        }
        self.switch_off("mcp.excluded", texts(settings, &["mcp", "excluded"]));
        let allowed: Vec<&str> = texts(settings, &["mcp", "allowed"]).collect();
        if !allowed.is_empty() {
            let others =
                members(settings, &["mcpServers"]).filter(|(name, _)| !allowed.contains(&name.as_str()));
            let rule = format!("mcp.allowed: {}", allowed.join(", "));
            self.off.extend(others.map(|(name, _)| (name.clone(), rule.clone())));
        }
    }

    /// Reads the files of Gemini CLI's policy engine. The rule with the highest priority counts.
    fn gemini_policies(&mut self, files: &[(PathBuf, Value)]) {
        let mut found: Vec<(f64, &Path, String, RuleEffect, Scope)> = Vec::new();
        for (file, policies) in files {
            for rule in items(policies, &["rule"]) {
                let effect = match rule.get("decision").and_then(Value::as_str) {
                    Some("deny") => RuleEffect::Deny,
                    Some("ask_user") => RuleEffect::Ask,
                    _ => RuleEffect::Allow,
                };
                let depends = ["argsPattern", "commandPrefix", "commandRegex", "toolAnnotations"];
                let is_part = rule.get("modes").is_some() || rule.get("interactive").is_some();
                let scope = match depends.iter().any(|key| rule.get(*key).is_some()) {
                    true => Scope::Params,
                    false if is_part => Scope::Part("for some modes only".into()),
                    false => Scope::Every,
                };
                let names = match rule.get("toolName") {
                    Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
                    Some(Value::String(name)) => vec![name.as_str()],
                    _ => vec!["*"],
                };
                let priority = rule.get("priority").and_then(Value::as_f64).unwrap_or_default();
                for name in names.into_iter().filter(|name| !is_of_gemini(name)) {
                    let name = match rule.get("mcpName").and_then(Value::as_str) {
                        Some(server) => format!("{server}__{name}"),
                        None => name.to_string(),
                    };
                    found.push((priority, file, name, effect, scope.clone()));
                }
            }
        }
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        let file = found.iter().map(|(_, file, ..)| *file).next_back();
        let rules = found.iter().map(|(_, _, name, effect, scope)| {
            (name.clone(), *effect, scope.clone(), "policies.rule.toolName".to_string())
        });
        if let Some(file) = file {
            self.add(file, rules);
        }
    }

    fn opencode(&mut self, file: &Path, settings: &Value) {
        if settings.get("permissions").is_some_and(|permissions| !permissions.is_null()) {
            self.unreadable(file, "`permissions` has a format of another version");
        }
        self.add(file, opencode_rules(settings, "", &Scope::Every));
        for table in ["agent", "mode"] {
            for (agent, settings) in members(settings, &[table]) {
                let scope = Scope::Part(format!("for the agent `{agent}` only"));
                self.add(file, opencode_rules(settings, &format!("{table}.{agent}."), &scope));
            }
        }
    }
}

/// A rule: the client's names, what the rule does and when, and the key that it is under.
type NamedRule = (String, RuleEffect, Scope, String);

/// Returns opencode's rules in their order: first `tools`, then `permission`.
fn opencode_rules(settings: &Value, key: &str, scope: &Scope) -> Vec<NamedRule> {
    let mut rules = Vec::new();
    for (name, shown) in members(settings, &["tools"]) {
        let effect = if *shown == Value::Bool(false) { RuleEffect::Hide } else { RuleEffect::Allow };
        rules.push((name.clone(), effect, scope.clone(), format!("{key}tools")));
    }
    let effect = |word: &Value| match word.as_str() {
        Some("allow") => RuleEffect::Allow,
        Some("ask") => RuleEffect::Ask,
        // Unknown words may be strict.
        _ => RuleEffect::Deny,
    };
    let written = format!("{key}permission");
    match settings.get("permission") {
        None | Some(Value::Null) => {}
        Some(Value::Object(permissions)) => {
            for (name, permission) in permissions {
                let Value::Object(patterns) = permission else {
                    rules.push((name.clone(), effect(permission), scope.clone(), written.clone()));
                    continue;
                };
                let is_plain = patterns.keys().all(|pattern| pattern == "*");
                let scope = if is_plain { scope.clone() } else { Scope::Params };
                let strictest = patterns.values().map(effect).max().unwrap_or(RuleEffect::Allow);
                rules.push((name.clone(), strictest, scope, written.clone()));
            }
        }
        Some(word) => rules.push(("*".into(), effect(word), scope.clone(), written)),
    }
    rules
}
