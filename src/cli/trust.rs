//! `nonet trust`: shows what servers changed, and records the user's trust in it, or in a servers.toml.

mod files;
mod lock;

use std::{
    collections::BTreeSet,
    io::{BufRead, IsTerminal, Read, Write},
    path::Path,
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use nonet_api::question::DefinitionView;
use nonet_base::clock::Clock;
use nonet_config::shell;
use nonet_core as gateway;
use nonet_servers::pins::{Pins, WaitingPin, plain};
use nonet_store::{self as store, Pin, Retention, Store};
use serde_json::json;

pub(super) use self::lock::run as lock;
use super::{FAILED, OK, found, show};

/// The longest answer that is read, in bytes.
const LONGEST_ANSWER: u64 = 100;

/// What to trust.
#[derive(Debug, Default, Args)]
pub(super) struct TrustArgs {
    /// Server or tool, such as `files` or `files.read_file`, or the path of a servers.toml (default: list
    /// what waits)
    pub names: Vec<String>,
    /// List what waits, with what changed, and trust nothing
    #[arg(long)]
    pub list: bool,
    /// List the trusted servers.toml files of projects' folders
    #[arg(long, conflicts_with = "names")]
    pub files: bool,
    /// Take back the trust in a servers.toml
    #[arg(long, requires = "names", conflicts_with_all = ["list", "yes"])]
    pub revoke: bool,
    /// Write servers.lock, the hashes of every server's definitions, to commit beside servers.toml
    #[arg(long, conflicts_with_all = ["names", "list", "files", "revoke", "yes"])]
    pub lock: bool,
    /// Write nothing: report what differs from servers.lock, and exit with 1 if anything does
    #[arg(long, requires = "lock")]
    pub check: bool,
    /// Trust without asking. A servers.toml needs a terminal nevertheless
    #[arg(long, short, conflicts_with_all = ["list", "files"])]
    pub yes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Lists what waits, or trusts it. A running gateway sees the change within a second.
pub(super) async fn run(args: TrustArgs, config: Option<&Path>) -> anyhow::Result<u8> {
    if args.files || args.revoke || args.names.iter().any(|name| files::is_file(name)) {
        return files::run(&args);
    }
    let file = found::path(config)?;
    let named = file.clone();
    with_pins(&file, move |pins| list_or_trust(pins, &args, &named)).await
}

/// Returns the names of servers with definitions that wait to be trusted.
pub(super) async fn waiting(file: &Path) -> anyhow::Result<BTreeSet<String>> {
    let of_server = |one: &WaitingPin| one.name().split('.').next().unwrap_or_default().to_string();
    with_pins(file, move |pins| Ok(pins.waiting(usize::MAX)?.iter().map(of_server).collect())).await
}

async fn with_pins<T: Send + 'static>(
    file: &Path,
    work: impl FnOnce(&Pins) -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let cluster = super::cluster_of(file)?;
    let (state, place) = (store::folder(), gateway::place_of(file));
    let pins = Pins::new(state.clone(), &place, Clock::default());
    // This command does not touch results.
    let retention = Retention { bytes: u64::MAX, age: Duration::MAX };
    let store = gateway::open_store(cluster.as_ref(), state, retention, &Clock::default(), &place);
    let pins = pins.sharing(store.shared_pins());
    // Access to pins blocks.
    let done = tokio::task::spawn_blocking(move || work(&pins)).await?;
    let _ = store.leave().await;
    done
}

fn list_or_trust(pins: &Pins, args: &TrustArgs, file: &Path) -> anyhow::Result<u8> {
    let waiting = pins.waiting(usize::MAX)?;
    if args.list || args.names.is_empty() {
        let named =
            |one: &&WaitingPin| args.names.is_empty() || args.names.iter().any(|name| one.is_named(name));
        let shown: Vec<&WaitingPin> = waiting.iter().filter(named).collect();
        list(&shown, args.json, file);
        return Ok(OK);
    }
    let mut seen: Vec<&WaitingPin> = Vec::new();
    let mut unknown = Vec::new();
    for name in &args.names {
        let found: Vec<&WaitingPin> = waiting.iter().filter(|one| one.is_named(name)).collect();
        if found.is_empty() {
            unknown.push(name.as_str());
        }
        let new = found.into_iter().filter(|one| seen.iter().all(|known| known.pin != one.pin));
        seen.extend(new.collect::<Vec<_>>());
    }
    if !unknown.is_empty() {
        let message = format!(
            "nothing of {} is waiting to be trusted; run `{}` to list what is",
            show::names(&unknown),
            shell::nonet("trust --list", file)
        );
        show::refuse(nonet_text::fault::FaultCode::NotFound, message, args.json);
        return Ok(FAILED);
    }
    if !args.json {
        seen.iter().for_each(|one| show_one(one));
    }
    if !args.yes && !agreed(seen.len())? {
        return Ok(FAILED);
    }
    let wanted: Vec<Pin> = seen.iter().map(|one| one.pin.clone()).collect();
    let trusted = pins.trust(&wanted)?;
    match args.json {
        true => raw!("{}", json!({ "trusted": trusted, "definitions": all(&seen) })),
        false => say!(
            "Trusted {}. A running gateway applies it within a second.",
            show::count(trusted as u64, "definition")
        ),
    }
    if trusted < wanted.len() {
        show::complain("some definitions changed meanwhile and are not trusted; run the command again");
        return Ok(FAILED);
    }
    Ok(OK)
}

fn all(pins: &[&WaitingPin]) -> Vec<DefinitionView> {
    pins.iter().map(|one| one.view()).collect()
}

fn list(waiting: &[&WaitingPin], as_json: bool, file: &Path) {
    if as_json {
        return show::raw(&json!({ "waiting": all(waiting) }).to_string());
    }
    if waiting.is_empty() {
        return say!("Nothing is waiting to be trusted.");
    }
    waiting.iter().for_each(|one| show_one(one));
    say!(
        "\nRun `{}` to trust a server's definitions, or one of them.",
        shell::nonet("trust SERVER[.TOOL]", file)
    );
}

/// Prints the differences, with the servers' text escaped.
fn show_one(one: &WaitingPin) {
    let now = Clock::default().unix_ms();
    let age = show::age(Duration::from_millis(now.saturating_sub(one.pin.since_ms)));
    say!("{} ({}, since {age})", plain(&one.name()), one.standing.as_str());
    one.difference.lines().for_each(|line| raw!("    {line}"));
}

/// Asks for agreement on the terminal; without one, the answer is no.
fn agreed(count: usize) -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() {
        show::complain(
            "nothing was trusted: there is no terminal to ask on; add `--yes` to trust without a question",
        );
        return Ok(false);
    }
    eprint!("Trust {}? [y/N] ", if count == 1 { "it".into() } else { format!("these {count}") });
    std::io::stderr().flush()?;
    let mut line = String::new();
    std::io::stdin().lock().take(LONGEST_ANSWER).read_line(&mut line).context("cannot read the answer")?;
    Ok(matches!(line.trim().to_lowercase().as_str(), "y" | "yes"))
}
