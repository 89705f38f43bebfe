//! `nonet add`: adds a server to servers.toml once it has started.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use clap::{ArgGroup, Args, ValueEnum};
use nonet_config::{self as config, LoadedConfig, shell};
use nonet_hosts::{
    self as hosts, ImportOutcome, ImportPlan, ImportSource, Machine, SecretStore, TypedLabels, TypedServer,
};
use nonet_registry::ServerReference;
use nonet_servers::downstream::ConnectionState;
use nonet_state::trying::TrialResult;
use serde_json::{Map, Value, json};

use super::{
    FAILED, OK, UNUSABLE, found, hosts as commands, load_sources,
    local::LocalGateway,
    registry::{self, RegistryServer, Wishes},
    show,
    signal::stopped,
    take_up::{self, ObservedState},
};

const EXAMPLES: &str = "\
Examples:
  nonet add memory -- npx -y @modelcontextprotocol/server-memory
  nonet add docs https://example.com/mcp --header 'Authorization: Bearer ${DOCS_TOKEN}'
  nonet add io.github.owner/name --set API_KEY=...
  nonet add petstore --openapi https://petstore.example/openapi.json
  nonet add 'claude mcp add git -- uvx mcp-server-git'
  nonet add git '\"git\": {\"command\": \"uvx\", \"args\": [\"mcp-server-git\"]}'

What a README offers can be pasted in quotes: JSON with or without its outer braces, a command, an
install link, Codex's TOML, with or without fences. `-` reads it from stdin.
A name such as `io.github.owner/name`, with `@VERSION` or without, is a server of the registry
(`nonet find`).
Values that look like secrets go into the keyring or secrets.env, not into servers.toml.";

/// The server to add.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("server").args(["url", "openapi", "command"]),
    override_usage = "nonet add [OPTIONS] <NAME> <URL>\n       nonet add [OPTIONS] <NAME> --openapi <FILE>\n       \
                      nonet add [OPTIONS] <NAME> -- <COMMAND>...\n       nonet add [OPTIONS] [NAME] <TEXT>",
    after_help = EXAMPLES,
)]
pub(super) struct AddArgs {
    /// Name for the server: a-z, 0-9 and single `-` or `_` between them. A pasted text may have its own
    pub name: String,
    /// Address of a server that is reached over HTTP, or a pasted text
    pub url: Option<String>,
    /// Program to start and its arguments, after `--`
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    /// OpenAPI document of a REST service: a file or an address
    #[arg(long, value_name = "FILE")]
    pub openapi: Option<String>,
    /// Address of the REST service (default: the address in its document)
    #[arg(long, value_name = "URL", requires = "openapi")]
    pub base_url: Option<String>,
    /// Variable for the program, as `NAME=value`; `${VAR}` stays a variable (repeatable)
    #[arg(long, value_name = "NAME=VALUE", conflicts_with_all = ["url", "openapi"])]
    pub env: Vec<String>,
    /// Header for each request, as `Name: value`; `${VAR}` stays a variable (repeatable)
    #[arg(long, value_name = "HEADER", conflicts_with = "command")]
    pub header: Vec<String>,
    /// Transport of the address: `sse` is the legacy transport, which `http` also detects
    #[arg(long, conflicts_with_all = ["openapi", "command"])]
    pub transport: Option<TransportKind>,
    /// Word for search and for profiles (repeatable)
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// Purpose of the server in a few words; helps search
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    /// Value for a server of a registry, as `KEY=VALUE` (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Kind of package of a server of a registry (npm, pypi, oci, nuget, mcpb, remote) (default: the first)
    #[arg(long, value_name = "KIND")]
    pub package: Option<String>,
    /// Add the server without starting it first
    #[arg(long)]
    pub no_check: bool,
    /// Start the server and show the changes, without writing them
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How an address is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum TransportKind {
    Http,
    Sse,
}

/// Adds a server. Exit code 1: the server does not start, and nothing was written.
pub(super) async fn run(args: &AddArgs, config: Option<&Path>) -> anyhow::Result<u8> {
    let machine = Machine::this()?;
    let file = match found::path(config) {
        Ok(file) => std::path::absolute(&file).unwrap_or(file),
        // `import` creates the file there too.
        Err(error) if error.is::<config::ConfigNotFound>() => commands::target(config)?,
        Err(error) => return Err(error),
    };
    let mut notes = Vec::new();
    let offered = offered(args, config).await?;
    let pasted = match &offered {
        Some(_) => None,
        None => pasted(args, &mut notes)?,
    };
    let own_name = offered.as_ref().map_or(args.name.as_str(), |offered| offered.name.as_str());
    let entry = match (&offered, &pasted) {
        (Some(offered), _) => {
            notes.extend(offered.notes.iter().cloned());
            offered.entry.keys.clone()
        }
        (None, Some(_)) => Map::new(),
        (None, None) => entry(args, &machine.current, &mut notes)?,
    };
    let work = |options: hosts::ImportOptions<'_>| match &pasted {
        Some(text) => hosts::import(ImportSource::Text(text, &[]), &file, options, &machine),
        None => hosts::add_server(&file, own_name, &entry, options, &machine),
    };
    let has_secrets = if pasted.is_some() { ImportPlan::has_secrets } else { ImportPlan::stores_secrets };
    let (mut added, _) = commands::with_secrets(commands::Secrets::Kept, false, work, has_secrets)?;
    let name = match &pasted {
        Some(_) => match pasted_name(args, &mut added)? {
            Some(name) => name,
            None => return tell_nothing_new(args, &added, &file),
        },
        None => own_name.to_owned(),
    };
    if let Some(offered) = offered {
        let asked = offered.entry.asked.into_iter();
        added.add_values(asked.filter_map(|asked| Some((asked.variable?, asked.value?))));
    }
    let started = match args.no_check {
        true => None,
        false => {
            let loaded = match load_sources(|sources| added.preview(sources)) {
                Ok(loaded) => loaded,
                Err(unusable) => {
                    show::refuse(
                        nonet_text::fault::FaultCode::InvalidParams,
                        show::causes(&unusable.into()),
                        args.json,
                    );
                    return Ok(UNUSABLE);
                }
            };
            match start(loaded, &name, args.dry_run).await {
                Ok((started, _)) => Some(started),
                Err(code) => return Ok(code),
            }
        }
    };
    let failed = matches!(started, Some(TrialResult::Failed(_) | TrialResult::LeftOut(_)));
    let applied = if args.dry_run || failed { None } else { Some(added.apply()?) };
    let report = Report { args, name: &name, file: &file, added: &added, started, notes };
    let Some(applied) = applied else {
        report.tell_unwritten()?;
        return Ok(if failed { FAILED } else { OK });
    };
    if !args.json {
        report.tell_start();
        commands::finish(&added.change, Some(applied));
        report.tell_needs();
    }
    let taken_up = take_up::wait(&file, &name, take_up::ExpectedState::Present).await;
    match args.json {
        true => raw!("{}", serde_json::to_string_pretty(&report.json(Some(&taken_up)))?),
        false => taken_up.tell(&name, &file),
    }
    Ok(taken_up.code())
}

/// Returns the server of a registry, if that is what the arguments name.
async fn offered(args: &AddArgs, config: Option<&Path>) -> anyhow::Result<Option<RegistryServer>> {
    let named = if args.openapi.is_some() || !args.command.is_empty() {
        None
    } else {
        match &args.url {
            Some(url) => ServerReference::read(url).map(|reference| (reference, Some(args.name.as_str()))),
            None => ServerReference::read(&args.name).map(|reference| (reference, None)),
        }
    };
    let Some((reference, name)) = named.filter(|_| !Path::new(&args.name).exists()) else {
        let of_registry = [(!args.set.is_empty(), "--set"), (args.package.is_some(), "--package")];
        if let Some((_, option)) = of_registry.iter().find(|(given, _)| *given) {
            anyhow::bail!(
                "`{option}` is for a server of a registry, such as `nonet add io.github.owner/name {option} ...`"
            );
        }
        return Ok(None);
    };
    let asks = !args.json && !args.dry_run;
    let wishes = Wishes { name, package: args.package.as_deref(), values: &args.set, asks };
    registry::get(&reference, &wishes, config).await.map(Some)
}

/// Returns the pasted text with the one server to add, if that is what the arguments are.
fn pasted(args: &AddArgs, notes: &mut Vec<String>) -> anyhow::Result<Option<String>> {
    if args.openapi.is_some() || !args.command.is_empty() {
        return Ok(None);
    }
    let is_address = |url: &str| {
        let scheme = url.split_once("://").map(|(scheme, _)| scheme).unwrap_or_default();
        let has_scheme =
            !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        (has_scheme || url.starts_with("${")) && !hosts::is_install_link(url)
    };
    let (text, name) = match &args.url {
        Some(url) if is_address(url) => return Ok(None),
        Some(text) => (commands::pasted(text)?, Some(args.name.as_str())),
        None => (commands::pasted(&args.name)?, None),
    };
    let Some(text) = text else {
        let word = shell::word(&args.name);
        anyhow::ensure!(
            args.url.is_some(),
            "what should be added? Name a command, `nonet add {word} -- COMMAND`, or an address, `nonet add {word} URL`; or \
             paste what a README offers in quotes, `nonet add 'TEXT'`"
        );
        return Ok(None);
    };
    let of_typed = [
        (!args.env.is_empty(), "--env"),
        (!args.header.is_empty(), "--header"),
        (args.transport.is_some(), "--transport"),
        (!args.tags.is_empty(), "--tag"),
        (args.description.is_some(), "--description"),
    ];
    if let Some((_, option)) = of_typed.iter().find(|(given, _)| *given) {
        anyhow::bail!("`{option}` belongs to a command or an address; write it into the pasted text");
    }
    let (text, passed_over) = hosts::one_server(&text, name)?;
    notes.extend(passed_over);
    Ok(Some(text))
}

/// Returns the name under which a pasted server is added; none if servers.toml has the server.
fn pasted_name(args: &AddArgs, added: &mut ImportPlan) -> anyhow::Result<Option<String>> {
    let row = added.rows.first().context("the text has no server")?;
    let name = match &row.done {
        ImportOutcome::AlreadyThere { .. } => return Ok(None),
        ImportOutcome::Nonet => {
            anyhow::bail!("this is Nonet itself. Name the program or the address of another server")
        }
        ImportOutcome::Skipped { why } => anyhow::bail!("`{}` cannot be added: {why}", row.name),
        // The user has chosen this name.
        ImportOutcome::AddedAs { server } if args.url.is_some() => anyhow::bail!(
            "the name `{}` cannot be used: it is invalid or taken. Choose another one, such as `{server}`",
            row.name
        ),
        ImportOutcome::Added { server }
        | ImportOutcome::AddedAs { server }
        | ImportOutcome::Replaced { server } => server.clone(),
    };
    added.change.told.push(format!("[servers.{name}] is added to {}.", added.change.file.display()));
    Ok(Some(name))
}

/// Tells that servers.toml has a pasted server.
fn tell_nothing_new(args: &AddArgs, added: &ImportPlan, file: &Path) -> anyhow::Result<u8> {
    let name = added.rows.first().and_then(|row| row.done.server()).unwrap_or_default();
    match args.json {
        true => raw!("{}", json!({ "server": name, "file": file, "written": false, "already_there": true })),
        false => say!("{} has this server already, as `{name}`; nothing was changed.", file.display()),
    }
    Ok(OK)
}

/// Returns the entry for servers.toml, with relative paths of this folder made absolute.
fn entry(args: &AddArgs, folder: &Path, notes: &mut Vec<String>) -> anyhow::Result<Map<String, Value>> {
    if let Some(url) = &args.url {
        // The address may contain a password, so only a placeholder is shown.
        let is_address = url.starts_with("http://") || url.starts_with("https://") || url.starts_with("${");
        anyhow::ensure!(
            is_address || url.contains("://"),
            "`{}` is not an address. Write a command after `--`: `nonet add {} -- {} ...`",
            nonet_base::text::clip(url, 60),
            shell::word(&args.name),
            shell::word(&nonet_base::text::clip(url, 60))
        );
    }
    let typed = TypedServer {
        description: args.description.as_deref(),
        url: args.url.as_deref(),
        transport: args.transport.map(|kind| if kind == TransportKind::Sse { "sse" } else { "http" }),
        openapi: args.openapi.as_deref(),
        base_url: args.base_url.as_deref(),
        command: &args.command,
        env: &args.env,
        headers: &args.header,
        tags: &args.tags,
    };
    typed.entry(folder, TypedLabels { env: "--env", headers: "--header" }, notes).map_err(anyhow::Error::msg)
}

/// The definitions of a server's tools, by name.
pub(super) type Definitions = BTreeMap<Arc<str>, Arc<Value>>;

/// Starts one server of a configuration and returns the definitions of its tools; it leaves nothing behind.
pub(super) async fn definitions(loaded: LoadedConfig, name: &str) -> anyhow::Result<Definitions> {
    match start(loaded, name, true).await {
        Ok((TrialResult::Ready(_), definitions)) => Ok(definitions),
        Ok((tried, _)) => {
            anyhow::bail!("it does not start: {}", tried.trouble().unwrap_or_default())
        }
        Err(_) => anyhow::bail!("interrupted"),
    }
}

/// Starts one server of a configuration. `Err`: the exit code, if the user interrupts it.
async fn start(loaded: LoadedConfig, name: &str, dry_run: bool) -> Result<(TrialResult, Definitions), u8> {
    if let Some(tried) = TrialResult::left_out(&loaded.config, name) {
        return Ok((tried, Definitions::new()));
    }
    let gateway = match dry_run {
        true => super::gateway_of_trial(loaded),
        false => super::gateway(loaded, false),
    };
    gateway.errands.ends_with_client();
    let here = LocalGateway { gateway: &gateway, seen: gateway.publisher.last_seen() };
    let server: Arc<str> = name.into();
    let started = tokio::select! {
        () = here.connect(std::slice::from_ref(&server)) => Ok(()),
        code = stopped() => Err(code),
    };
    let state = gateway.servers.connections().get(name).map(|connection| connection.state());
    let started = started.map(|()| {
        let listed =
            || gateway.publisher.snapshot().catalog.servers().get(name).map_or(0, |entry| entry.tools.len());
        let snapshot = gateway.publisher.snapshot();
        let tools = snapshot.tools.iter().filter(|tool| &*tool.server == name);
        let definitions = tools.map(|tool| (tool.own.clone(), tool.definition.clone())).collect();
        (TrialResult::of(state.unwrap_or(ConnectionState::Stopped), listed), definitions)
    });
    tokio::select! {
        () = gateway.stop() => started,
        code = stopped() => Err(code),
    }
}

/// The report of an addition.
struct Report<'a> {
    args: &'a AddArgs,
    name: &'a str,
    file: &'a PathBuf,
    added: &'a ImportPlan,
    /// None if the server was not started.
    started: Option<TrialResult>,
    notes: Vec<String>,
}

impl Report<'_> {
    fn tell_start(&self) {
        let name = self.name;
        match &self.started {
            Some(TrialResult::Ready(tools)) => {
                say!("`{name}` starts and has {}.", show::count(*tools as u64, "tool"))
            }
            Some(TrialResult::SignIn(login)) => {
                let run = login.as_ref().map(|login| format!(": run `{login}`")).unwrap_or_default();
                say!("`{name}` answers and requires sign-in{run}");
            }
            Some(TrialResult::Failed(error)) => {
                show::complain(format_args!("`{name}` does not start: {}", show::failure(error, true)));
            }
            Some(TrialResult::LeftOut(why)) => {
                show::complain(format_args!("`{name}` cannot start: {why}"));
            }
            None => say!("`{name}` was not started (--no-check)."),
        }
    }

    /// Prints an addition that was not written.
    fn tell_unwritten(&self) -> anyhow::Result<()> {
        if self.args.json {
            raw!("{}", serde_json::to_string_pretty(&self.json(None))?);
            return Ok(());
        }
        self.tell_start();
        if self.args.dry_run {
            commands::finish(&self.added.change, None);
            self.tell_needs();
        } else {
            eprintln!(
                "Nothing was written. Correct the options (`--base-url` is the key `base_url`), or add `--no-check` to skip \
                 the start."
            );
        }
        Ok(())
    }

    fn tell_needs(&self) {
        commands::tell_secrets(self.added, self.args.dry_run);
        let of_row = self.added.rows.iter().flat_map(|row| &row.notes);
        self.notes.iter().chain(of_row).chain(&self.added.notes).for_each(|note| say!("{note}"));
        for variable in self.added.variables.iter().filter(|variable| !variable.set) {
            let set = shell::nonet(&format!("secret set {} --file", variable.name), self.file);
            say!("`{}` is left out until `{}` is set: run `{set}`", self.name, variable.name);
        }
    }

    fn json(&self, taken_up: Option<&ObservedState>) -> Value {
        let variables = self.added.variables.iter();
        let variables: Vec<Value> =
            variables.map(|variable| json!({ "name": variable.name, "set": variable.set })).collect();
        let mut answer = json!({
            "server": self.name,
            "file": self.file,
            "written": taken_up.is_some(),
            "secrets": self.added.secrets,
            "variables": variables,
        });
        if let (Some(fields), Some(Value::Object(started))) =
            (answer.as_object_mut(), self.started.as_ref().map(|started| json!(started.view())))
        {
            fields.extend(started);
        }
        if self.added.secrets.iter().any(|kept| kept.store == SecretStore::File) {
            answer["secrets_file"] = json!(self.added.secrets_file());
        }
        if self.args.dry_run {
            answer["dry_run"] = json!(true);
            answer["diff"] = json!(self.added.change.diff());
        }
        if let Some(taken_up) = taken_up {
            answer["gateway"] = taken_up.json();
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &[&str]) -> AddArgs {
        use clap::Parser;
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: AddArgs,
        }
        Line::parse_from([&["add"], words].concat()).args
    }

    #[test]
    fn what_is_typed_is_an_entry_of_servers_toml() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("server.js"), "").unwrap();
        let here = folder.path().display().to_string();
        let check = |words: &[&str], expected: Value| {
            let entry = entry(&args(words), folder.path(), &mut Vec::new()).unwrap();
            assert_eq!(json!(entry), expected, "{words:?}");
        };
        check(&["a", "--", "npx", "-y", "a"], json!({ "command": "npx", "args": ["-y", "a"] }));
        check(&["a", "--", "./run"], json!({ "command": format!("{here}/run") }));
        check(
            &["a", "--env", "A=b=c", "--env", "E=", "--", "node", "server.js"],
            json!({ "command": "node", "args": ["server.js"], "cwd": here, "env": { "A": "b=c", "E": "" } }),
        );
        check(
            &["a", "https://a.example/mcp", "--header", "A:  b: c ", "--tag", "t", "--transport", "sse"],
            json!({ "url": "https://a.example/mcp", "transport": "sse", "headers": { "A": "b: c" }, "tags": ["t"] }),
        );
        check(
            &["a", "--openapi", "api.json", "--base-url", "https://a.example", "--description", "A"],
            json!({ "description": "A", "openapi": format!("{here}/api.json"), "base_url": "https://a.example" }),
        );
        check(
            &["a", "--openapi", "https://a.example/api.json"],
            json!({ "openapi": "https://a.example/api.json" }),
        );
    }

    #[test]
    fn no_message_holds_a_value() {
        let check = |words: &[&str], expected: &str| {
            let error = entry(&args(words), Path::new("/"), &mut Vec::new()).unwrap_err();
            assert_eq!(error.to_string(), expected);
        };
        check(&["a", "--env", "s3cret", "--", "x"], "`--env` needs `NAME=value`");
        check(&["a", "--env", "A=s3cret", "--env", "A=b", "--", "x"], "`--env A` is given twice");
        check(&["a", "--header", "s3cret", "https://a"], "`--header` needs `Name: value`");
        check(
            &["a", "--header", "A: s3cret", "--header", "a: b", "https://a"],
            "`--header a` is given twice",
        );
        check(&["a", "npx"], "`npx` is not an address. Write a command after `--`: `nonet add a -- npx ...`");
    }
}
