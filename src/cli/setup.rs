//! `nonet setup`: from the clients of this machine to Nonet in front of them, in one guided command.
//!
//! The steps are those of `import`, `secret`, `check` and `install`. All questions come before the first change. A server
//! that Nonet cannot run stays where it is: nothing that worked is taken away.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, BufRead, IsTerminal, Read, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Args;

use super::{
    FAILED, OK, UNUSABLE,
    hosts::{self as commands, Faulty, Secrets},
    show,
};
use crate::{
    config,
    downstream::{Remedy, State},
    hosts::{
        self, Carried, FileScope, Host, ImportOptions, ImportSource, Imported, Launch, Machine, Present,
        SecretStore, Variable,
    },
    keyring::Keyring,
    secrets_file::{self, SecretsFile},
    shell,
};

/// The longest answer to a question, in bytes.
const LONGEST_ANSWER: u64 = 1 << 10;

/// What a user wants of a setup.
#[derive(Debug, Args)]
pub struct Wishes {
    /// The clients (claude-desktop, claude-code, cursor, vscode, zed, windsurf, codex, gemini-cli); all that have a
    /// configuration on this machine if left out
    pub clients: Vec<String>,
    /// Ask nothing and do everything
    #[arg(long, short)]
    pub yes: bool,
    /// Show what would be done, and write nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// One client that is set up.
struct SetupClient {
    host: &'static Host,
    file: PathBuf,
    /// How it is to start Nonet.
    launch: Launch,
}

/// Sets clients up. Exit code 1: the file of a client could not be written.
pub async fn run(wishes: &Wishes, config: Option<&Path>, profile: Option<&str>) -> anyhow::Result<u8> {
    let named: Vec<&'static Host> =
        wishes.clients.iter().map(|name| hosts::find(name)).collect::<Result<_, _>>()?;
    let asks = !wishes.yes && !wishes.dry_run;
    anyhow::ensure!(
        !asks || io::stdin().is_terminal(),
        "`nonet setup` asks before it changes anything, and there is no terminal to answer on: add `--yes` to agree to \
         everything, or `--dry-run` to see what it would do"
    );
    let machine = Machine::this()?;
    let target = commands::target(config)?;
    match (target.exists(), profile) {
        (true, _) => match super::load(&target) {
            Ok(loaded) => super::has_profile(&loaded, profile)?,
            Err(unusable) => {
                eprintln!("nonet: {unusable}");
                return Ok(UNUSABLE);
            }
        },
        (false, Some(profile)) => anyhow::bail!(
            "there is no [profiles.{profile}]: {} does not exist yet. Run `nonet setup` without `--profile` first",
            target.display()
        ),
        (false, None) => {}
    }
    let secrets = secrets_file::beside(&target);
    SecretsFile::read(&secrets).with_context(|| format!("{} cannot be used", secrets.display()))?;
    let clients = clients(named, &target, profile, &machine)?;
    let all: Vec<&'static Host> = clients.iter().map(|client| client.host).collect();
    let (mut imported, keyring) =
        commands::take_over(ImportSource::Users(&all), &target, false, Secrets::Kept, &machine)?;
    imported.keep_backup();
    let had_config = target.exists();
    if !had_config && imported.change.is_nothing() {
        let example = "command = \"npx\"\n  args = [\"-y\", \"@modelcontextprotocol/server-memory\"]";
        anyhow::bail!(
            "there is nothing to set up: no client has a server that Nonet could run. Write {} first, such as\n\n  \
             [servers.memory]\n  {example}\n\nand run `nonet setup` again",
            target.display()
        );
    }
    let setup = Setup { machine, target, clients, had_config };
    let mut planned = setup.planned(&imported, &[])?;
    setup.tell_clients(&imported);
    let is_done = imported.is_nothing() && planned.iter().all(|plan| plan.is_nothing);
    let is_asked_for = imported.variables.iter().any(|variable| !variable.set);
    if is_done && !is_asked_for {
        for client in &setup.clients {
            commands::tell_staying(&imported.will_stay(client.host, FileScope::User, &setup.machine));
        }
        say!("Everything is set up: nothing was changed.");
        return Ok(OK);
    }
    commands::tell(&imported, &setup.target, wishes.dry_run);
    if wishes.dry_run {
        setup.show(&imported)?;
        return Ok(OK);
    }
    if is_done && !asks {
        say!("Nothing was changed.");
        return Ok(OK);
    }
    let mut typed = Vec::new();
    if asks {
        let agree = |question: &str| agree(question, &mut io::stdin().lock(), &mut io::stderr());
        let secrets =
            if imported.secrets.iter().all(|kept| kept.there) { "" } else { ", and keep their secrets" };
        let question = format!("Write these servers to {}{secrets}?", setup.target.display());
        let takes_over = imported.is_nothing() || agree(&question)?;
        if !takes_over {
            say!("Nothing was changed.");
            return Ok(OK);
        }
        typed = ask_for_variables(&imported)?;
        planned = setup.planned(&imported, &typed)?;
        for plan in planned.iter_mut().filter(|plan| !plan.is_nothing) {
            plan.is_nothing = !agree(&plan.question())?;
        }
    }
    let wanted = planned.iter().filter(|plan| !plan.is_nothing);
    let chosen: BTreeSet<&str> = wanted.map(|plan| plan.host.name).collect();
    setup.go_on(&imported, keyring.as_ref(), &chosen, typed).await
}

/// The clients that are named, else those that have a configuration. One whose file cannot be read, or that has another
/// Nonet, is left alone; if it was named, that is an error.
fn clients(
    named: Vec<&'static Host>,
    target: &Path,
    profile: Option<&str>,
    machine: &Machine,
) -> anyhow::Result<Vec<SetupClient>> {
    let all = named.is_empty();
    let hosts = if all { hosts::HOSTS.iter().collect() } else { named };
    let mut clients: Vec<SetupClient> = Vec::new();
    let (mut looked_at, mut left_alone) = (String::new(), false);
    for host in hosts {
        let Some(file) = host.file(FileScope::User, machine) else { continue };
        looked_at.push_str(&format!("\n  {}", file.display()));
        if clients.iter().any(|client| client.host.name == host.name) || all && !file.exists() {
            continue;
        }
        match launch(host, target, profile, machine) {
            Ok(launch) => clients.push(SetupClient { host, file, launch }),
            Err(why) if all => {
                left_alone = true;
                eprintln!("nonet: {} is left alone: {why:#}", host.title);
            }
            Err(why) => return Err(why),
        }
    }
    anyhow::ensure!(!clients.is_empty() || !left_alone, "nothing was changed: no client can be set up");
    anyhow::ensure!(
        !clients.is_empty(),
        "no MCP client was found on this machine; looked for{looked_at}\n\
         Name one to have its file made: `nonet setup cursor`"
    );
    Ok(clients)
}

/// How a client is to start Nonet: as it does now, if that is the same configuration.
fn launch(
    host: &'static Host,
    target: &Path,
    profile: Option<&str>,
    machine: &Machine,
) -> anyhow::Result<Launch> {
    hosts::import(ImportSource::Users(&[host]), target, ImportOptions::default(), machine)?;
    let wanted = commands::launch(target, profile)?;
    let (now, config) = match hosts::present(host, FileScope::User, machine)? {
        Present::Absent => return Ok(wanted),
        Present::Program { launch, config } => (launch, config),
        Present::Elsewhere => anyhow::bail!("its `nonet` joins a gateway elsewhere"),
    };
    let config = match &config {
        Some(file) => Some(std::path::absolute(file)?),
        None => config::user_file(),
    };
    anyhow::ensure!(
        config.as_deref() == Some(target),
        "its `nonet` has another configuration; `nonet install {}` would change that",
        host.name
    );
    let is_gone = |command: &str| Path::new(command).is_absolute() && !Path::new(command).exists();
    match profile {
        None if !is_gone(&now.command) => Ok(now),
        None => Ok(Launch { command: wanted.command, args: now.args }),
        Some(_) => Ok(wanted),
    }
}

/// What is meant to become of a client's file, if every server works and the user agrees.
struct ClientPlan {
    host: &'static Host,
    moves: usize,
    is_nothing: bool,
}

impl ClientPlan {
    fn question(&self) -> String {
        let title = self.host.title;
        match self.moves {
            0 => format!("Add Nonet to {title}?"),
            1 => format!("Put Nonet in the place of a server of {title}? A backup of its file is kept."),
            moves => {
                format!("Put Nonet in the place of {moves} servers of {title}? A backup of its file is kept.")
            }
        }
    }
}

struct Setup {
    machine: Machine,
    target: PathBuf,
    clients: Vec<SetupClient>,
    /// Whether servers.toml was there before.
    had_config: bool,
}

impl Setup {
    fn tell_clients(&self, imported: &Imported) {
        let mut table = show::plain_table(&["CLIENT", "SERVERS", "FILE"]);
        for SetupClient { host, file, .. } in &self.clients {
            let servers =
                imported.rows.iter().filter(|row| row.from.file == *file && row.done.server().is_some());
            table.add_row([host.title.into(), servers.count().to_string(), file.display().to_string()]);
        }
        say!("{table}\n");
        if commands::is_passed_over(&self.target) {
            say!(
                "The servers.toml of this folder is left alone; `--config servers.toml` sets it up instead.\n"
            );
        }
    }

    /// The servers that can move behind Nonet, as far as that is known before they are started. `typed` has the
    /// variables that will be set.
    fn movable(&self, host: &Host, imported: &Imported, typed: &[(String, String)]) -> Vec<Carried> {
        let is_typed = |variable: &&Variable| typed.iter().any(|(name, _)| *name == variable.name);
        let unset = imported.variables.iter().filter(|variable| !variable.set && !is_typed(variable));
        let unset: BTreeSet<&String> = unset.flat_map(|variable| &variable.servers).collect();
        let mut carried = imported.will_be_carried(host, FileScope::User, &self.machine);
        carried.retain(|carried| !unset.contains(&carried.server));
        carried
    }

    fn planned(&self, imported: &Imported, typed: &[(String, String)]) -> anyhow::Result<Vec<ClientPlan>> {
        let plan = |client: &SetupClient| {
            let carried = self.movable(client.host, imported, typed);
            let change = self.change(client, &carried)?;
            Ok(ClientPlan { host: client.host, moves: carried.len(), is_nothing: change.is_nothing() })
        };
        self.clients.iter().map(plan).collect()
    }

    fn change(&self, client: &SetupClient, carried: &[Carried]) -> anyhow::Result<hosts::Change> {
        let names: Vec<String> = carried.iter().map(|carried| carried.name.clone()).collect();
        Ok(hosts::install(client.host, FileScope::User, &client.launch, &names, &self.machine)?)
    }

    /// Shows every file as it would become.
    fn show(&self, imported: &Imported) -> anyhow::Result<()> {
        if !imported.change.is_nothing() {
            say!("{}", imported.change.diff());
        }
        for client in &self.clients {
            let change = self.change(client, &self.movable(client.host, imported, &[]))?;
            say!("{}: {}", client.host.title, change.told.join(" "));
            commands::tell_staying(&imported.will_stay(client.host, FileScope::User, &self.machine));
            if !change.is_nothing() {
                say!("{}", change.diff());
            }
        }
        say!("Every server would be started first; one that does not work would stay with its client.");
        say!("Nothing was written (--dry-run).");
        Ok(())
    }

    /// Does what was agreed to.
    async fn go_on(
        &self,
        imported: &Imported,
        keyring: Option<&Keyring>,
        chosen: &BTreeSet<&str>,
        typed: Vec<(String, String)>,
    ) -> anyhow::Result<u8> {
        let applied = imported.apply()?;
        if applied.file.is_some() {
            say!("written: {}", self.target.display());
        }
        if let Some(backup) = &applied.backup {
            say!("backup:  {}", backup.display());
        }
        self.keep_typed(&typed)?;

        let broken = match self.broken().await? {
            Ok(broken) => broken,
            Err(code) => {
                let file = self.target.display();
                let written =
                    if applied.file.is_some() { format!("{file} was written, and ") } else { String::new() };
                show::complain(format_args!("interrupted: {written}no client was changed"));
                self.tell_undo(imported, &applied, &[], &typed);
                return Ok(code);
            }
        };
        // As servers.toml is now.
        let hosts: Vec<&'static Host> = self.clients.iter().map(|client| client.host).collect();
        let manner = ImportOptions { replace: false, keyring, file: true };
        let now = hosts::import(ImportSource::Users(&hosts), &self.target, manner, &self.machine)?;
        let (mut code, mut installed) = (OK, Vec::new());
        let mut stayed = false;
        for client in self.clients.iter().filter(|client| chosen.contains(client.host.name)) {
            let host = client.host;
            say!("\n{}", host.title);
            let (stay, carried): (Vec<_>, Vec<_>) = now
                .carried(host, FileScope::User, &self.machine)
                .into_iter()
                .partition(|carried| broken.contains_key(&carried.server));
            commands::tell_staying(&now.staying(host, FileScope::User, &self.machine));
            for Carried { name, server } in stay {
                let why = broken.get(&server).map(String::as_str).unwrap_or_default();
                say!("`{name}` stays in its file, because Nonet cannot run it: {why}");
                stayed = true;
            }
            let done = self.change(client, &carried).and_then(|change| {
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
            commands::tell_of_this_shell(&now, &carried, host, &self.target);
        }
        if stayed {
            say!("\nOnce Nonet can run what stays, `nonet setup` moves it too.");
        }
        self.tell_undo(imported, &applied, &installed, &typed);
        Ok(code)
    }

    /// Keeps the values that the user has typed for variables.
    fn keep_typed(&self, typed: &[(String, String)]) -> anyhow::Result<()> {
        if typed.is_empty() {
            return Ok(());
        }
        let path = secrets_file::beside(&self.target);
        let unusable = || format!("{} cannot be used", path.display());
        let mut file = SecretsFile::read(&path).with_context(unusable)?;
        typed.iter().for_each(|(name, value)| file.set(name, value));
        file.write().with_context(unusable)
    }

    /// Starts every server. Returns those that do not work, each with the reason and the remedy; the exit code if the
    /// user interrupts it.
    async fn broken(&self) -> anyhow::Result<Result<BTreeMap<String, String>, u8>> {
        let loaded = super::load(&self.target)?;
        let left_out = Faulty::of_faults(loaded.faults.clone());
        let limit =
            loaded.config.servers.values().map(|server| server.start_timeout).max().unwrap_or_default();
        let mut broken: BTreeMap<String, String> = left_out
            .servers()
            .into_iter()
            .filter_map(|entry| {
                let server = entry.strip_prefix("servers.")?;
                Some((server.to_string(), left_out.why(server)?))
            })
            .collect();
        let gateway = super::gateway(loaded, false);
        gateway.connect();
        let servers: Vec<_> = gateway.connections().keys().cloned().collect();
        let stopped = tokio::select! {
            () = show::starting(&gateway, &servers, limit) => None,
            code = super::signal::stopped() => Some(code),
        };
        if let Some(code) = stopped {
            gateway.stop().await;
            return Ok(Err(code));
        }
        gateway.published().await;
        let connections = gateway.connections();
        for (name, connection) in connections.iter() {
            let why = match connection.state() {
                State::Ready { .. } => continue,
                State::AuthRequired { remedy: Remedy::Login(login), .. } => {
                    format!("it wants a sign-in; run `{login}`")
                }
                State::AuthRequired { error, .. } | State::Down { error, .. } => show::failure(&error, false),
                State::Starting => "it is still starting".into(),
                State::Stopped => "it was stopped".into(),
            };
            broken.insert(name.to_string(), why);
        }
        let works = connections.keys().filter(|name| !broken.contains_key(&***name)).count();
        let tools = gateway.snapshot().of_servers().count();
        let all = connections.len() + left_out.servers().len();
        gateway.stop().await;
        let work = if works == 1 || all == 1 { "works" } else { "work" };
        let [servers, tools] =
            [(all, "server"), (tools, "tool")].map(|(n, thing)| show::count(n as u64, thing));
        say!("{works} of {servers} {work}, with {tools}.");
        Ok(Ok(broken))
    }

    fn tell_undo(
        &self,
        imported: &Imported,
        applied: &hosts::Applied,
        installed: &[&Host],
        typed: &[(String, String)],
    ) {
        let stored = |store: SecretStore| {
            let new = imported.secrets.iter().filter(move |kept| kept.store == store && !kept.there);
            new.map(|kept| kept.name.as_str())
        };
        let word = |path: &Path| shell::word(&path.to_string_lossy());
        let remove = if cfg!(windows) { "del" } else { "rm" };
        let mut undo: Vec<String> =
            installed.iter().map(|host| format!("nonet uninstall {}", host.name)).collect();
        undo.extend(stored(SecretStore::Keyring).map(|name| format!("nonet secret remove {name}")));
        let in_file: Vec<&str> =
            stored(SecretStore::File).chain(typed.iter().map(|(name, _)| name.as_str())).collect();
        match (imported.had_secrets_file(), in_file.is_empty()) {
            (_, true) => {}
            (false, false) => undo.push(format!("{remove} {}", word(imported.secrets_file()))),
            (true, false) => undo.extend(
                in_file
                    .iter()
                    .map(|name| commands::command(&format!("secret remove {name} --file"), &self.target)),
            ),
        }
        match (&applied.file, &applied.backup) {
            (Some(file), Some(backup)) => {
                let copy = if cfg!(windows) { "copy" } else { "cp" };
                undo.push(format!("{copy} {} {}", word(backup), word(file)));
            }
            (Some(file), None) if !self.had_config => undo.push(format!("{remove} {}", word(file))),
            _ => {}
        }
        if undo.is_empty() {
            say!("\nNothing was changed.");
            return;
        }
        say!("\nTo undo it:");
        undo.iter().for_each(|line| say!("  {line}"));
        let check = commands::command("check", &self.target);
        say!(
            "\n`{check}` looks everything over at any time; `nonet search \"...\"` finds tools as a model does."
        );
    }
}

/// Asks for the variables that nobody has set. An empty answer leaves one unset.
fn ask_for_variables(imported: &Imported) -> anyhow::Result<Vec<(String, String)>> {
    let mut typed = Vec::new();
    for variable in imported.variables.iter().filter(|variable| !variable.set) {
        let (servers, what) = (variable.servers.join(", "), &variable.what);
        let question =
            format!("{} for {servers} ({what}); it is not shown, and Enter leaves it out: ", variable.name);
        let value = rpassword::prompt_password(question).context("the answer could not be read")?;
        let value = value.trim();
        if !value.is_empty() {
            typed.push((variable.name.clone(), value.to_string()));
        }
    }
    Ok(typed)
}

/// Asks a question until it is answered by yes, which Enter means too, or no. An input that ends is an error.
fn agree(question: &str, input: &mut impl BufRead, output: &mut impl Write) -> anyhow::Result<bool> {
    loop {
        write!(output, "{question} [Y/n] ")?;
        output.flush()?;
        let mut line = String::new();
        let read = input.take(LONGEST_ANSWER).read_line(&mut line).context("the answer could not be read")?;
        anyhow::ensure!(read > 0, "there is no answer; nothing was changed");
        match line.trim().to_lowercase().as_str() {
            "" | "y" | "yes" => return Ok(true),
            "n" | "no" => return Ok(false),
            _ => writeln!(output, "Please answer with y or n.")?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_asked_until_it_is_answered() {
        let check = |typed: &str, expected: Option<bool>, asked: usize| {
            let mut output = Vec::new();
            let answer = agree("Go on?", &mut typed.as_bytes(), &mut output);
            assert_eq!(answer.ok(), expected, "{typed}");
            let output = String::from_utf8(output).unwrap();
            assert_eq!(output.matches("Go on? [Y/n]").count(), asked, "{output}");
        };
        check("\n", Some(true), 1);
        check(" Yes \n", Some(true), 1);
        check("n\ny\n", Some(false), 1);
        check("hm\nno", Some(false), 2);
        check("", None, 1);
        check("hm", None, 2);
    }
}
