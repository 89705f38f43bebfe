//! The changes of a setup: files, secrets, and the check of every server.

use std::collections::{BTreeMap, BTreeSet};

use nonet_config::keyring::Keyring;
use nonet_hosts::{FileScope, ImportPlan, KnownServer, SetupUndo};
use nonet_servers::downstream::{ConnectionState, Remedy};

use super::{
    super::{
        FAILED, OK, gateway,
        hosts::{self as commands},
        load, show,
    },
    Setup,
};

/// Applies what the user agreed to.
pub(super) async fn apply(
    setup: &Setup,
    imported: &ImportPlan,
    keyring: Option<&Keyring>,
    chosen: &BTreeSet<&str>,
) -> anyhow::Result<u8> {
    let applied = imported.apply()?;
    if applied.file.is_some() {
        say!("written: {}", setup.target.display());
    }
    if let Some(backup) = &applied.backup {
        say!("backup:  {}", backup.display());
    }
    let broken = match broken(setup).await? {
        Ok(broken) => broken,
        Err(code) => {
            let file = setup.target.display();
            let written =
                if applied.file.is_some() { format!("{file} was written, and ") } else { String::new() };
            show::complain(format_args!("interrupted: {written}no client was changed"));
            tell_undo(setup, &setup.undo(imported, &applied, &[]));
            return Ok(code);
        }
    };
    let now = setup.import_again(keyring, &[])?;
    let (mut code, mut installed) = (OK, Vec::new());
    let mut stayed = false;
    for client in setup.clients.iter().filter(|client| chosen.contains(client.host.name)) {
        let host = client.host;
        say!("\n{}", host.title);
        let (carried, stay) = setup.carried(client, &now, &broken);
        commands::tell_staying(&now.staying(host, FileScope::User, &setup.machine));
        for KnownServer { name, server } in stay {
            let why = broken.get(&server).map(String::as_str).unwrap_or_default();
            say!("`{name}` stays in its file because Nonet cannot run it: {why}");
            stayed = true;
        }
        let done = setup.change(client, &carried).and_then(|change| {
            let applied = commands::apply(&change, false)?;
            commands::finish(&change, applied);
            Ok(!change.is_nothing())
        });
        match done {
            Ok(true) => installed.push(host),
            Ok(false) => {}
            Err(error) => {
                eprintln!("nonet: {}: {error:#}", host.title);
                code = FAILED;
            }
        }
        commands::tell_of_this_shell(&now, &carried, host, &setup.target);
    }
    if stayed {
        say!("\nOnce Nonet can run the remaining servers, `nonet setup` moves them too.");
    }
    tell_undo(setup, &setup.undo(imported, &applied, &installed));
    tell_broken(&broken);
    Ok(code)
}

/// Starts every server. Returns those that do not work, each with the reason and the remedy; the exit code if
/// the user interrupts it.
async fn broken(setup: &Setup) -> anyhow::Result<Result<BTreeMap<String, String>, u8>> {
    let loaded = load(&setup.target)?;
    let left_out = &loaded.config.left_out;
    let mut broken: BTreeMap<String, String> =
        left_out.iter().map(|(name, left_out)| (name.clone(), left_out.brief())).collect();
    let left_out = left_out.len();
    let gateway = gateway(loaded, false);
    if let Err(code) = show::all_started(&gateway).await {
        return Ok(Err(code));
    }
    let connections = gateway.servers.connections();
    for (name, connection) in connections.iter() {
        let why = match connection.state() {
            ConnectionState::Ready { .. } => continue,
            ConnectionState::AuthRequired { remedy: Remedy::Login(login), .. } => {
                format!("it requires sign-in; run `{login}`")
            }
            ConnectionState::AuthRequired { error, .. } | ConnectionState::Down { error, .. } => {
                show::failure(&error, false)
            }
            ConnectionState::Starting => "it is still starting".into(),
            ConnectionState::Stopped => "it was stopped".into(),
        };
        broken.insert(name.to_string(), why);
    }
    let works = connections.keys().filter(|name| !broken.contains_key(&***name)).count();
    let tools = gateway.publisher.snapshot().of_servers().count();
    let all = connections.len() + left_out;
    gateway.stop().await;
    let work = if works == 1 || all == 1 { "works" } else { "work" };
    let [servers, tools] = [(all, "server"), (tools, "tool")].map(|(n, thing)| show::count(n as u64, thing));
    say!("{works} of {servers} {work}, with {tools}.");
    Ok(Ok(broken))
}

fn tell_undo(setup: &Setup, undo: &SetupUndo) {
    let commands = undo.commands(|command| commands::command(command, &setup.target));
    if commands.is_empty() {
        say!("\nNothing was changed.");
        return;
    }
    say!("\nTo undo the setup:");
    commands.iter().for_each(|line| raw!("  {line}"));
    let check = commands::command("check", &setup.target);
    say!("\n`{check}` checks everything at any time; `nonet search \"...\"` finds tools as a model does.");
}

/// Prints what does not work, each with the reason: the last thing that the user reads.
fn tell_broken(broken: &BTreeMap<String, String>) {
    if !broken.is_empty() {
        say!("\nThis does not work yet:");
    }
    broken.iter().for_each(|(name, why)| say!("  {name}: {why}"));
}
