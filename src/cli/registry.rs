//! `nonet find` and `nonet update --servers`, and servers of a registry for `nonet add`.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, IsTerminal, Read, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Args;
use nonet_config::{self as config, LoadedConfig, RegistrySettings, ServerSettings, Transport, shell};
use nonet_hosts::{self as hosts, Machine};
use nonet_registry::{
    AskedValue, FoundServer, Given, LaunchWay, Outdated, Registry, ServerEntry, ServerReference,
    ServerStatus, UnpackedBundle,
};
use nonet_servers::pins;
use nonet_store as store;
use serde_json::{Value, json};

use super::{FAILED, OK, add::Definitions, found, hosts as commands, load, setup, show};

/// The longest typed answer, in bytes.
const LONGEST_ANSWER: u64 = 4 << 10;
/// The folder for unpacked bundles, below the state folder.
const BUNDLES: &str = "bundles";

/// The words to find servers by.
#[derive(Debug, Args)]
pub(super) struct FindArgs {
    /// Words of the name or the description
    #[arg(required = true)]
    pub words: Vec<String>,
    /// How many servers are shown at most
    #[arg(long, short, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub limit: u16,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The servers to update.
#[derive(Debug, Args)]
pub(super) struct UpdateArgs {
    /// Update servers that came from a registry. Nonet itself is updated by the package manager that installed it
    #[arg(long)]
    pub servers: bool,
    /// Names of servers in servers.toml (default: all that came from a registry)
    #[arg(requires = "servers")]
    pub names: Vec<String>,
    /// Agree to every update without asking
    #[arg(long, short)]
    pub yes: bool,
    /// Show what is newer without changing anything
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON; without --yes, nothing is changed
    #[arg(long)]
    pub json: bool,
}

/// Returns the configuration in use, if there is one that can be read.
fn loaded(config: Option<&Path>) -> anyhow::Result<Option<(PathBuf, LoadedConfig)>> {
    match found::path(config) {
        Ok(file) => {
            let loaded = load(&file)?;
            Ok(Some((file, loaded)))
        }
        Err(error) if error.is::<config::ConfigNotFound>() => Ok(None),
        Err(error) => Err(error),
    }
}

fn settings(loaded: Option<&LoadedConfig>) -> RegistrySettings {
    loaded.map(|loaded| loaded.config.registry.clone()).unwrap_or_default()
}

/// Finds servers in the registry. Exit code 1: there is none.
pub(super) async fn find(args: &FindArgs, config: Option<&Path>) -> anyhow::Result<u8> {
    let loaded = loaded(config)?;
    let settings = settings(loaded.as_ref().map(|(_, loaded)| loaded));
    let registry = Registry::new(&settings)?;
    let words = args.words.join(" ");
    let servers = registry.find(&words, usize::from(args.limit)).await?;
    if args.json {
        let all: Vec<Value> = servers.iter().map(shown).collect();
        raw!("{}", serde_json::to_string_pretty(&json!({ "registry": registry.place(), "servers": all }))?);
        return Ok(if servers.is_empty() { FAILED } else { OK });
    }
    if servers.is_empty() {
        say!(
            "{} has no server with `{}`. Try another word, or a part of one.",
            registry.place(),
            nonet_base::text::line(&words, 100)
        );
        return Ok(FAILED);
    }
    let mut table = show::plain_table(&["SERVER", "VERSION", "RUNS AS", "WHAT IT DOES"]);
    for server in &servers {
        let kinds = nonet_registry::ways(server, None).map_or_else(|_| "-".into(), |ways| kinds(&ways));
        let detail = &server.detail;
        let mark = if server.status == ServerStatus::Deprecated { " (deprecated)" } else { "" };
        let version = nonet_base::text::line(&detail.version, 20);
        table.add_row([
            detail.name.clone(),
            format!("{version}{mark}"),
            kinds,
            nonet_base::text::line(&detail.description, 100),
        ]);
    }
    say!("{table}\n\nAdd one: nonet add {}", servers[0].detail.name);
    Ok(OK)
}

fn kinds(ways: &[LaunchWay<'_>]) -> String {
    let mut kinds: Vec<&str> = ways.iter().map(LaunchWay::kind).collect();
    kinds.dedup();
    kinds.join(", ")
}

/// Returns a server as `--json` shows it.
fn shown(server: &FoundServer) -> Value {
    let detail = &server.detail;
    let ways = nonet_registry::ways(server, None).unwrap_or_default();
    let mut shown = json!({
        "name": detail.name,
        "title": detail.shown(),
        "version": detail.version,
        "description": detail.description,
        "runs_as": ways.iter().map(LaunchWay::kind).collect::<Vec<_>>(),
        "add": format!("nonet add {}", detail.name),
    });
    let more = [
        ("website", detail.website_url.clone()),
        ("repository", detail.repository.as_ref().map(|repository| repository.url.clone())),
        ("status", (server.status == ServerStatus::Deprecated).then(|| "deprecated".into())),
        ("status_message", server.status_message.clone()),
    ];
    for (key, value) in more {
        if let Some(value) = value {
            shown[key] = json!(value);
        }
    }
    shown
}

/// A server of a registry, ready to be added.
pub(super) struct RegistryServer {
    /// Its name in servers.toml.
    pub name: String,
    /// Its keys, and the values that they need.
    pub entry: ServerEntry,
    /// What there is to know about it.
    pub notes: Vec<String>,
}

/// What a user says about a server of a registry.
pub(super) struct Wishes<'a> {
    /// The name in servers.toml.
    pub name: Option<&'a str>,
    /// The kind of package.
    pub package: Option<&'a str>,
    /// Values as `KEY=VALUE`.
    pub values: &'a [String],
    /// Whether required values may be asked for at the terminal.
    pub asks: bool,
}

/// Gets a server from the registry of a configuration, and asks for the values that it needs.
pub(super) async fn get(
    reference: &ServerReference,
    wishes: &Wishes<'_>,
    config: Option<&Path>,
) -> anyhow::Result<RegistryServer> {
    let loaded = loaded(config)?;
    let registry = Registry::new(&settings(loaded.as_ref().map(|(_, loaded)| loaded)))?;
    let server = registry.server(reference).await?;
    let mut notes = Vec::new();
    let told = server.status_message.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
    match server.status {
        ServerStatus::Active => {}
        ServerStatus::Deprecated => notes.push(format!("`{}` is deprecated{told}", server.detail.name)),
        ServerStatus::Deleted => {
            anyhow::bail!(
                "`{}` has been withdrawn from the registry{told}. Find another one: nonet find ...",
                server.detail.name
            )
        }
    }
    let name = wishes.name.map_or_else(|| reference.short(), String::from);
    let way = nonet_registry::ways(&server, wishes.package)?[0];
    let bundle = unpacked(way, &name).await?;
    let mut given = Given::new();
    for value in wishes.values {
        let (key, value) = value.split_once('=').context("`--set` needs `KEY=VALUE`")?;
        given.entry(key.into()).or_default().push(value.into());
    }
    let mut entry = nonet_registry::entry(&server, way, bundle.as_ref(), &name, &given)?;
    if wishes.asks && io::stdin().is_terminal() {
        for asked in entry.asked.iter().filter(|asked| asked.value.is_none()) {
            if let Some(value) = ask(asked)? {
                given.entry(asked.key.clone()).or_default().push(value);
            }
        }
        entry = nonet_registry::entry(&server, way, bundle.as_ref(), &name, &given)?;
    }
    let optional: Vec<String> = entry.optional.iter().map(told_optional).collect();
    if !optional.is_empty() {
        notes.push(format!("it also takes, with `--set KEY=VALUE`: {}", optional.join("; ")));
    }
    Ok(RegistryServer { name, entry, notes })
}

/// Unpacks the bundle of a package, if it is one.
async fn unpacked(way: LaunchWay<'_>, name: &str) -> anyhow::Result<Option<UnpackedBundle>> {
    let LaunchWay::Package(package) = way else { return Ok(None) };
    if package.registry_type != "mcpb" {
        return Ok(None);
    }
    let state =
        store::folder().context("there is no folder to unpack the bundle into; set XDG_STATE_HOME")?;
    Ok(Some(nonet_registry::unpack(package, &state.join(BUNDLES), name).await?))
}

fn told_optional(asked: &AskedValue) -> String {
    let default = asked.value.as_deref().map(|value| format!(" [{value}]")).unwrap_or_default();
    let what = if asked.what.is_empty() { String::new() } else { format!(" ({})", asked.what) };
    format!("{}{default}{what}", asked.key)
}

/// Asks for a value at the terminal. Enter leaves it open.
fn ask(asked: &AskedValue) -> anyhow::Result<Option<String>> {
    let what = if asked.what.is_empty() { String::new() } else { format!(" ({})", asked.what) };
    let choices = match asked.choices.is_empty() {
        true => String::new(),
        false => format!(", one of {}", asked.choices.join(", ")),
    };
    let typed = if asked.is_secret {
        rpassword::prompt_password(format!("{}{what}; not shown, Enter to skip: ", asked.key))?
    } else {
        let mut errors = io::stderr();
        write!(errors, "{}{what}{choices}; Enter to skip: ", asked.key)?;
        errors.flush()?;
        let mut line = String::new();
        io::stdin().lock().take(LONGEST_ANSWER).read_line(&mut line).context("cannot read the answer")?;
        line
    };
    let typed = typed.trim();
    Ok((!typed.is_empty()).then(|| typed.to_owned()))
}

/// What an update would do to a server.
struct Update {
    name: String,
    outdated: Outdated,
    /// The texts that change, each with the new one; none if the user has written the entry anew.
    replaced: Option<Vec<(String, String)>>,
}

/// Updates servers that came from a registry. Exit code 1: an update failed, or a newer version cannot be taken.
pub(super) async fn update(args: &UpdateArgs, config: Option<&Path>) -> anyhow::Result<u8> {
    if !args.servers {
        anyhow::bail!(
            "the package manager that installed Nonet updates it; docs/upgrade.md has the commands. For servers that came \
             from a registry: nonet update --servers"
        );
    }
    let file = found::path(config)?;
    let loaded = load(&file)?;
    let registry = Registry::new(&loaded.config.registry)?;
    let mut wanted: BTreeMap<String, ServerReference> = BTreeMap::new();
    let mut known: BTreeMap<String, &ServerSettings> = BTreeMap::new();
    for (name, settings) in &loaded.config.servers {
        let reference = settings.registry.as_deref().and_then(ServerReference::read);
        let is_named = args.names.is_empty() || args.names.iter().any(|named| named == name.as_str());
        if let Some(reference) = reference.filter(|reference| reference.version.is_some() && is_named) {
            wanted.insert(name.to_string(), reference);
            known.insert(name.to_string(), settings);
        }
    }
    for name in &args.names {
        anyhow::ensure!(
            wanted.contains_key(name),
            "`{name}` in {} did not come from a registry: it has no key `registry`",
            file.display()
        );
    }
    let (mut updates, mut failed) = (Vec::new(), Vec::new());
    for (name, reference) in &wanted {
        match newer(&registry, known[name], name, reference).await {
            Ok(Some(update)) => updates.push(update),
            Ok(None) => {}
            Err(error) => failed.push((name.clone(), format!("{error:#}"))),
        }
    }
    if args.json && !args.yes {
        raw!("{}", serde_json::to_string_pretty(&report(&wanted, &updates, &failed))?);
        return Ok(if failed.is_empty() { OK } else { FAILED });
    }
    if !args.json {
        for (name, error) in &failed {
            show::complain(format_args!("{name}: {error}"));
        }
        match (wanted.is_empty(), updates.is_empty()) {
            (true, _) => say!("No server of {} came from a registry.", file.display()),
            (_, true) => {
                say!("{} up to date.", show::count(wanted.len() as u64 - failed.len() as u64, "server"))
            }
            _ => {}
        }
    }
    let mut done = Vec::new();
    for update in &updates {
        match Box::pin(take(update, args, &file)).await {
            Ok(true) => done.push(update.name.clone()),
            Ok(false) => {}
            Err(error) => {
                if !args.json {
                    show::complain(format_args!("{}: {error:#}", update.name));
                }
                failed.push((update.name.clone(), format!("{error:#}")));
            }
        }
    }
    if args.json {
        let mut report = report(&wanted, &updates, &failed);
        report["updated"] = json!(done);
        raw!("{}", serde_json::to_string_pretty(&report)?);
    }
    Ok(if failed.is_empty() { OK } else { FAILED })
}

fn report(
    wanted: &BTreeMap<String, ServerReference>,
    updates: &[Update],
    failed: &[(String, String)],
) -> Value {
    let servers = wanted.iter().map(|(name, reference)| {
        let mut one = json!({ "server": name, "registry": reference.name, "installed": reference.version });
        if let Some(update) = updates.iter().find(|update| update.name == *name) {
            one["latest"] = json!(update.outdated.latest.detail.version);
            one["can_be_taken"] = json!(update.replaced.is_some());
            one["new_values"] = json!(update.outdated.new_values());
        }
        if let Some((_, error)) = failed.iter().find(|(failed, _)| failed == name) {
            one["error"] = json!(error);
        }
        one
    });
    json!({ "servers": servers.collect::<Vec<_>>() })
}

/// Returns the update of a server, if there is a newer version.
async fn newer(
    registry: &Registry,
    settings: &ServerSettings,
    name: &str,
    reference: &ServerReference,
) -> anyhow::Result<Option<Update>> {
    let latest = registry.server(&ServerReference { version: None, ..reference.clone() }).await?;
    if latest.status == ServerStatus::Deleted {
        let why = latest.status_message.map(|why| format!(": {why}")).unwrap_or_default();
        anyhow::bail!("it has been withdrawn from the registry{why}. Remove it: nonet remove {name}");
    }
    if reference.version.as_deref() == Some(&*latest.detail.version) {
        return Ok(None);
    }
    let installed = registry.server(reference).await?;
    let Some(outdated) = Outdated::of(installed, latest) else { return Ok(None) };
    let (args, url): (&[String], _) = match &settings.transport {
        Transport::Stdio { args, .. } => (args, None),
        Transport::Http { url, .. } => (&[], Some(url.as_str())),
        Transport::Rest(_) => (&[], None),
    };
    let replaced = nonet_registry::replaced(args, url, &outdated);
    Ok(Some(Update { name: name.into(), outdated, replaced }))
}

/// Shows one update, and writes it if the user agrees and the new version starts.
async fn take(update: &Update, args: &UpdateArgs, file: &Path) -> anyhow::Result<bool> {
    let Update { name, outdated, replaced } = update;
    let Outdated { installed, latest } = outdated;
    if !args.json {
        say!("{name}: {} -> {}", installed.detail.version, latest.detail.version);
        if latest.status == ServerStatus::Deprecated {
            say!(
                "  deprecated{}",
                latest.status_message.as_deref().map(|why| format!(": {why}")).unwrap_or_default()
            );
        }
        for value in outdated.new_values() {
            say!("  it needs a new value, `{value}`: add it to [servers.{name}] after the update");
        }
    }
    let Some(replaced) = replaced else {
        anyhow::bail!(
            "[servers.{name}] does not name {} {} as the registry does, so it is yours to edit; `registry` then says \
             \"{}@{}\"",
            installed.detail.name,
            installed.detail.version,
            latest.detail.name,
            latest.detail.version
        );
    };
    let mut edit = edited(file, name, replaced)?;
    if args.dry_run {
        if !args.json {
            raw!("{}", edit.imported.change.diff());
        }
        return Ok(false);
    }
    let before = super::add::definitions(load(file)?, name).await.unwrap_or_default();
    let after = super::add::definitions(edit.loaded, name).await?;
    let differences = differences(&before, &after);
    if !args.json {
        differences.iter().for_each(|line| say!("  {line}"));
        if differences.is_empty() {
            say!("  it starts, and its definitions are the same");
        }
    }
    let question = format!("Update `{name}` to {}?", latest.detail.version);
    if !args.yes && !setup::agree(&question, true, &mut io::stdin().lock(), &mut io::stderr())? {
        return Ok(false);
    }
    edit.imported.keep_backup();
    let applied = edit.imported.apply()?;
    if !args.json {
        commands::finish(&edit.imported.change, Some(applied));
        if !differences.is_empty() {
            say!("Changed definitions are told or held as `on_change` says: {}", shell::nonet("trust", file));
        }
    }
    Ok(true)
}

/// Works out the file with these texts of a server replaced.
fn edited(file: &Path, name: &str, replaced: &[(String, String)]) -> anyhow::Result<hosts::TableEdit> {
    let mut text = hosts::server_table(file, name)?.text;
    for (was, is) in replaced {
        for quote in ['"', '\''] {
            text = text.replace(&format!("{quote}{was}{quote}"), &format!("{quote}{is}{quote}"));
        }
    }
    let machine = Machine::this()?;
    let edit = super::load_sources(|sources| {
        hosts::edit_table(file, name, &text, |_| true, hosts::ImportOptions::default(), sources, &machine)
    });
    edit.map_err(|error| anyhow::anyhow!("{error}"))
}

/// Returns how definitions differ, in lines for people.
fn differences(before: &Definitions, after: &Definitions) -> Vec<String> {
    let mut lines = Vec::new();
    for name in before.keys().filter(|name| !after.contains_key(*name)) {
        lines.push(format!("- {name} is gone"));
    }
    for (name, definition) in after {
        match before.get(name) {
            None => lines.push(format!("+ {name} is new")),
            Some(was) if was != definition => {
                lines.push(format!("~ {name}"));
                let told = pins::difference_of(was, definition);
                lines.extend(told.lines().map(|line| format!("    {line}")));
            }
            Some(_) => {}
        }
    }
    lines
}
