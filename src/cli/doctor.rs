//! `nonet doctor`, also known as `nonet check --fix`: offers to fix what a check found, one by one.
//!
//! Each fix runs the code of another command: `secret set`, `secret move`, `login`, `trust`, `install`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io::{self, IsTerminal},
    path::Path,
    process::Stdio,
    time::Duration,
};

use anyhow::Context;
use nonet_config::{Config, ConfigFault, Transport, ValueSources, shell};
use nonet_core::Gateway;
use nonet_hosts::{self as hosts, FileScope, Host, LaunchCommand, Machine, OwnEntry};
use nonet_servers::downstream::{ConnectionState, Remedy, missing_launcher};
use tokio::process::Command;

use super::{
    OK,
    found::{self, FoundFile},
    load, login, secret,
    setup::asked,
    show, trust,
};

/// How long a sign-in may take.
const SIGN_IN: Duration = Duration::from_secs(300);

/// A problem that can be fixed.
pub(super) enum Offer {
    /// A launcher of servers is missing; `install` is the command that installs it.
    Launcher { program: String, servers: Vec<String>, install: Option<Vec<String>> },
    /// A variable of servers.toml is not set.
    Variable { name: String, entries: BTreeSet<String> },
    /// A server's stderr names a variable that it lacks.
    Missing { server: String, variable: String },
    /// servers.toml contains secrets, at these keys.
    PlainSecrets { keys: Vec<String> },
    /// A server requires a sign-in.
    SignIn { server: String },
    /// A client's entry names a Nonet, or a configuration, that does not exist.
    Client { host: &'static Host, launch: LaunchCommand, why: String },
    /// A server's definitions wait to be trusted.
    Trust { name: String },
}

/// Whether a user can be asked, and whether to accept offers that need no input.
#[derive(Clone, Copy)]
pub(super) struct OfferMode {
    pub terminal: bool,
    pub yes: bool,
}

impl OfferMode {
    pub(super) fn here(yes: bool) -> Self {
        Self { terminal: io::stdin().is_terminal(), yes }
    }
}

/// Finds what can be fixed.
pub(super) async fn offers(gateway: &Gateway, faults: &[ConfigFault]) -> anyhow::Result<Vec<Offer>> {
    let config = gateway.servers.config();
    let mut offers = launchers(&config);
    let mut unset: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for fault in faults {
        for name in fault.unset_variables() {
            unset.entry(name).or_default().extend(fault.entry.clone());
        }
    }
    offers.extend(unset.into_iter().map(|(name, entries)| Offer::Variable { name: name.into(), entries }));
    let plain: Vec<String> =
        hosts::plain_secrets(&config.file)?.into_iter().map(|secret| secret.key).collect();
    if !plain.is_empty() {
        offers.push(Offer::PlainSecrets { keys: plain });
    }
    for (server, connection) in gateway.servers.connections().iter() {
        if let ConnectionState::Down { error, .. } = connection.state() {
            let missing = show::missing_variables(&error).into_iter();
            offers.extend(missing.map(|variable| Offer::Missing { server: server.to_string(), variable }));
        }
        if let ConnectionState::AuthRequired { remedy: Remedy::Login(_), .. } = connection.state() {
            offers.push(Offer::SignIn { server: server.to_string() });
        }
    }
    offers.extend(clients(&config.file, &Machine::this()?)?);
    // Without a store for pins, nothing is pinned.
    let waiting = trust::waiting(&config.file).await.unwrap_or_default();
    offers.extend(waiting.into_iter().map(|name| Offer::Trust { name }));
    Ok(offers)
}

/// Finds missing launchers of servers.
fn launchers(config: &Config) -> Vec<Offer> {
    let mut missing: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (name, server) in config.servers.iter().filter(|(_, server)| server.enabled) {
        let Transport::Stdio { command, env, .. } = &server.transport else { continue };
        let is_name = !command.contains(['/', '\\']) && !env.contains_key("PATH");
        if is_name && hosts::on_path(command).is_none() {
            missing.entry(command).or_default().push(name.to_string());
        }
    }
    let offer = |(program, servers): (&str, Vec<String>)| Offer::Launcher {
        program: program.into(),
        servers,
        install: matches!(program, "uvx" | "uv").then(pip).flatten(),
    };
    missing.into_iter().map(offer).collect()
}

/// Returns the command that installs uv, if there is a pip.
fn pip() -> Option<Vec<String>> {
    let of = |words: &[&str]| -> Vec<String> { words.iter().map(ToString::to_string).collect() };
    let pips: [&[&str]; 3] = [&["pip"], &["pip3"], &["python3", "-m", "pip"]];
    let found = pips.into_iter().find(|words| hosts::on_path(words[0]).is_some())?;
    Some([of(found), of(&["install", "uv"])].concat())
}

/// Finds the clients with a broken entry.
fn clients(file: &Path, machine: &Machine) -> anyhow::Result<Vec<Offer>> {
    let file = std::path::absolute(file)?;
    let wanted = LaunchCommand::of(&file, None, machine)?;
    let mut offers = Vec::new();
    for host in hosts::HOSTS.iter().filter(|host| !host.is_by_hand()) {
        let is_there = host.file(FileScope::User, machine).is_some_and(|file| file.exists());
        // An unreadable file is reported by `setup` and `install`.
        let Some(Ok(OwnEntry::Program { launch: now, config })) =
            is_there.then(|| hosts::present(host, FileScope::User, machine))
        else {
            continue;
        };
        let gone = config.filter(|config| Path::new(config).is_absolute() && !Path::new(config).exists());
        let (launch, what) = match (hosts::is_lost(&now.command), gone) {
            (_, Some(config)) => (wanted.clone(), config),
            (true, None) => (wanted.clone().with_options_of(now.args), now.command),
            (false, None) => continue,
        };
        let fate =
            if Path::new(&what).exists() { "is in a cache that may be cleared" } else { "does not exist" };
        let why = format!("{} starts Nonet with {what}, which {fate}", host.title);
        offers.push(Offer::Client { host, launch, why });
    }
    Ok(offers)
}

impl Offer {
    /// Describes the problem.
    fn problem(&self) -> String {
        match self {
            Self::Launcher { program, servers, .. } => {
                format!("{} (for {})", missing_launcher(program), servers.join(", "))
            }
            Self::Variable { name, entries } => {
                let entries: Vec<_> = entries.iter().map(|entry| format!("[{entry}]")).collect();
                format!("`{name}` is not set (for {})", entries.join(", "))
            }
            Self::Missing { server, variable } => {
                format!("`{server}` does not start, and its stderr names `{variable}`")
            }
            Self::PlainSecrets { keys } => {
                let keys: Vec<_> = keys.iter().map(|key| format!("`{key}`")).collect();
                format!("secrets are in plain text at {}", keys.join(", "))
            }
            Self::SignIn { server } => format!("`{server}` requires sign-in"),
            Self::Client { why, .. } => why.clone(),
            Self::Trust { name } => format!("definitions of `{name}` are waiting for your trust"),
        }
    }

    /// Describes the fix; none if only the user can fix it.
    fn remedy(&self, file: &Path) -> Option<String> {
        Some(match self {
            Self::Launcher { install, .. } => install.as_ref()?.join(" "),
            Self::Variable { name, .. } | Self::Missing { variable: name, .. } => {
                shell::nonet(&format!("secret set {name} --file"), file)
            }
            Self::PlainSecrets { .. } => shell::nonet("secret move", file),
            Self::SignIn { server } => shell::nonet(&format!("login {server}"), file),
            Self::Client { host, .. } => shell::nonet(&format!("install {}", host.name), file),
            Self::Trust { name } => shell::nonet(&format!("trust {name}"), file),
        })
    }

    fn line(&self, file: &Path) -> String {
        let mut line = format!("  {}", self.problem());
        if let Some(remedy) = self.remedy(file) {
            let _ = write!(line, ": `{remedy}`");
        }
        line
    }

    /// Whether the fix needs more than a yes from the user.
    fn needs_a_person(&self) -> bool {
        matches!(
            self,
            Self::Variable { .. } | Self::Missing { .. } | Self::SignIn { .. } | Self::Trust { .. }
        )
    }
}

/// Offers the fixes, and applies the accepted ones. Returns whether anything was fixed.
pub(super) async fn run(offers: Vec<Offer>, file: &Path, asking: OfferMode) -> anyhow::Result<bool> {
    if offers.is_empty() {
        say!("\nNonet found nothing to fix.");
        return Ok(false);
    }
    if !asking.terminal && !asking.yes {
        say!("\n`{}` would offer this in a terminal:", shell::nonet("doctor", file));
        offers.iter().for_each(|offer| say!("{}", offer.line(file)));
        return Ok(false);
    }
    let mut mended = false;
    for offer in &offers {
        let Some(remedy) = offer.remedy(file) else {
            say!("\n{}.", offer.problem());
            continue;
        };
        if offer.needs_a_person() && !asking.terminal {
            say!("\n{}; run this yourself: `{remedy}`", offer.problem());
            continue;
        }
        say!("\n{}.", offer.problem());
        // These two ask for themselves: for a value, and whether to trust what is shown.
        let asks = matches!(offer, Offer::Variable { .. } | Offer::Missing { .. } | Offer::Trust { .. });
        let agreed = match asks || asking.yes {
            true => true,
            false => match asked(format!("Run `{remedy}`?"), false).await? {
                Ok(agreed) => agreed,
                Err(_) => return Ok(mended),
            },
        };
        if agreed {
            match Box::pin(offer.mend(file)).await {
                Ok(done) => mended |= done,
                Err(error) => show::complain(show::causes(&error)),
            }
        }
    }
    Ok(mended)
}

impl Offer {
    async fn mend(&self, file: &Path) -> anyhow::Result<bool> {
        match self {
            Self::Launcher { install: None, .. } => Ok(false),
            Self::Launcher { install: Some(words), .. } => {
                let mut command = Command::new(&words[0]);
                let done = command.args(&words[1..]).stdin(Stdio::null()).status().await;
                let done = done.with_context(|| format!("`{}` does not start", words[0]))?;
                anyhow::ensure!(done.success(), "`{}` failed ({done})", words.join(" "));
                Ok(true)
            }
            Self::Variable { name, .. } => keep_typed(name, file),
            Self::Missing { server, variable } => {
                if !keep_typed(variable, file)? {
                    return Ok(false);
                }
                let machine = Machine::this()?;
                let edit = ValueSources::of_this_machine(|sources| {
                    hosts::pass_variable(file, server, variable, sources, &machine)
                });
                let change = edit.map_err(|why| anyhow::anyhow!("{why}"))?.imported.change;
                if !change.is_nothing() {
                    super::hosts::finish(&change, super::hosts::apply(&change, false)?);
                }
                Ok(true)
            }
            Self::PlainSecrets { .. } => Ok(secret::move_out(file, false)? == OK),
            Self::SignIn { server } => {
                let args = login::LoginArgs {
                    server: server.clone(),
                    scopes: Vec::new(),
                    no_browser: false,
                    keyring: false,
                    timeout: SIGN_IN,
                };
                Ok(login::login(&load(file)?.config, &args).await? == OK)
            }
            Self::Client { host, launch, .. } => {
                let change = hosts::install(host, FileScope::User, launch, &[], &Machine::this()?)?;
                super::hosts::finish(&change, super::hosts::apply(&change, false)?);
                Ok(!change.is_nothing())
            }
            Self::Trust { name } => {
                let names = vec![name.clone()];
                let args = trust::TrustArgs { names, ..trust::TrustArgs::default() };
                Ok(trust::run(args, Some(file)).await? == OK)
            }
        }
    }
}

/// Asks for a value and stores it. Returns whether the user gave one.
fn keep_typed(name: &str, file: &Path) -> anyhow::Result<bool> {
    let value = rpassword::prompt_password(format!("{name} (not shown, Enter to skip): "))
        .context("cannot read the value")?;
    match value.trim() {
        "" => Ok(false),
        value => secret::keep(name, value, file).map(|()| true),
    }
}

/// Checks again after a fix. Returns the exit code.
pub(super) async fn again(found: &FoundFile, verbose: bool) -> anyhow::Result<u8> {
    say!("");
    let loaded = found.load()?;
    found::ensure_trusted(&loaded)?;
    super::check::run(loaded, false, verbose, None).await
}
