//! `nonet setup`: puts Nonet in front of this machine's clients, in one guided command.
//!
//! The steps are those of `import`, `secret`, `check` and `install`. All questions come before the first change (`apply`). A
//! server that Nonet cannot run stays with its client.

mod apply;

use std::{
    collections::BTreeSet,
    io::{self, BufRead, IsTerminal, Read, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Args;

use super::{
    OK, UNUSABLE,
    hosts::{self as commands, Secrets},
    show,
};
use crate::{
    config,
    hosts::{
        self, Carried, Defaults, FileScope, Host, ImportOptions, ImportSource, Imported, Launch, Machine, Os,
        Present, Variable,
    },
    secrets_file::{self, SecretsFile},
};

/// The longest answer to a question, in bytes.
const LONGEST_ANSWER: u64 = 1 << 10;
const EXAMPLE: &str = r#"  [servers.memory]
  command = "npx"
  args = ["-y", "@modelcontextprotocol/server-memory"]"#;

/// The arguments of a setup.
#[derive(Debug, Args)]
pub(super) struct Wishes {
    /// Clients (claude-desktop, claude-code, cursor, vscode, zed, windsurf, codex, gemini-cli, cline, roo-code, continue,
    /// goose, lm-studio, copilot-cli, amazon-q, warp, kiro) (default: all with a configuration on this machine)
    pub clients: Vec<String>,
    /// Agree to everything without asking
    #[arg(long, short)]
    pub yes: bool,
    /// Show the changes without writing them
    #[arg(long)]
    pub dry_run: bool,
}

/// The names and values of variables that the user typed.
type Typed = Vec<(String, String)>;

/// A client to set up.
struct SetupClient {
    host: &'static Host,
    file: PathBuf,
    /// How the client should start Nonet.
    launch: Launch,
}

/// Sets up clients. Exit code 1: a client's file could not be written.
pub(super) async fn run(wishes: &Wishes, config: Option<&Path>, profile: Option<&str>) -> anyhow::Result<u8> {
    let named: Vec<&'static Host> =
        wishes.clients.iter().map(|name| hosts::find(name)).collect::<Result<_, _>>()?;
    let asks = !wishes.yes && !wishes.dry_run;
    anyhow::ensure!(
        !asks || io::stdin().is_terminal(),
        "`nonet setup` asks before it changes anything, but there is no terminal for your answers: add `--yes` to agree \
         to everything, or `--dry-run` to see the changes"
    );
    let machine = Machine::this()?;
    let target = commands::target(config)?;
    if !is_usable(&target, profile)? {
        return Ok(UNUSABLE);
    }
    let clients = clients(named, &target, profile, &machine)?;
    let all: Vec<&'static Host> = clients.iter().map(|client| client.host).collect();
    let (mut imported, keyring) =
        commands::take_over(ImportSource::Users(&all), &target, false, Secrets::Kept, &machine)?;
    imported.keep_backup();
    let had_config = target.exists();
    if !had_config && imported.change.is_nothing() {
        if !imported.rows.is_empty() {
            commands::tell(&imported, &target, wishes.dry_run);
        }
        anyhow::bail!(
            "there is nothing to set up: no client has a server that Nonet can run. Write {} first, such as\n\n\
             {EXAMPLE}\n\nand run `nonet setup` again",
            target.display()
        );
    }
    let setup = Setup { machine, target, clients, had_config };
    let planned = setup.planned(&imported, &[])?;
    setup.tell_clients(&imported);
    let is_done = imported.is_nothing() && planned.iter().all(|plan| plan.is_nothing);
    let is_asked_for = imported.variables.iter().any(|variable| !variable.set);
    if is_done && !is_asked_for {
        for client in &setup.clients {
            commands::tell_staying(&imported.will_stay(client.host, FileScope::User, &setup.machine));
        }
        say!("Everything is already set up; nothing was changed.");
        return Ok(OK);
    }
    commands::tell(&imported, &setup.target, wishes.dry_run);
    setup.tell_of_always();
    let mut defaults = if is_done { Defaults::default() } else { imported.missing_defaults()? };
    if wishes.dry_run {
        defaults.shared &= setup.is_shared(&planned);
        imported.add_defaults(defaults)?;
        tell_defaults(defaults);
        setup.show(&imported)?;
        return Ok(OK);
    }
    if is_done && !asks {
        say!("Nothing was changed.");
        return Ok(OK);
    }
    let (planned, typed) = match asks {
        false => (planned, Vec::new()),
        true => match setup.ask(&imported, &mut defaults)? {
            Some(answers) => answers,
            None => {
                say!("Nothing was changed.");
                return Ok(OK);
            }
        },
    };
    defaults.shared &= setup.is_shared(&planned);
    imported.add_defaults(defaults)?;
    tell_defaults(defaults);
    let wanted = planned.iter().filter(|plan| !plan.is_nothing);
    let chosen: BTreeSet<&str> = wanted.map(|plan| plan.host.name).collect();
    setup.apply(&imported, keyring.as_ref(), &chosen, typed).await
}

/// Checks the files that a setup writes to. Prints the faults of an unusable servers.toml.
fn is_usable(target: &Path, profile: Option<&str>) -> anyhow::Result<bool> {
    match (target.exists(), profile) {
        (true, _) => match super::load(target) {
            Ok(loaded) => super::has_profile(&loaded, profile)?,
            Err(unusable) => {
                show::complain(show::causes(&unusable.into()));
                return Ok(false);
            }
        },
        (false, Some(profile)) => anyhow::bail!(
            "there is no [profiles.{profile}]: {} does not exist yet. Run `nonet setup` without `--profile` first",
            target.display()
        ),
        (false, None) => {}
    }
    let secrets = secrets_file::beside(target);
    SecretsFile::read(&secrets).with_context(|| format!("cannot use {}", secrets.display()))?;
    Ok(true)
}

/// Returns the named clients, else the clients with a configuration. A client with an unreadable file or another Nonet is
/// skipped, or is an error if it was named.
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
        // A file that cannot be edited, such as flow-style YAML, must not stop the other clients.
        let editable = |launch: Launch| {
            hosts::install(host, FileScope::User, &launch, &[], machine)?;
            Ok(launch)
        };
        match launch(host, target, profile, machine).and_then(editable) {
            Ok(launch) => clients.push(SetupClient { host, file, launch }),
            Err(why) if all => {
                left_alone = true;
                eprintln!("nonet: skipping {}: {why:#}", host.title);
            }
            Err(why) => return Err(why),
        }
    }
    anyhow::ensure!(!clients.is_empty() || !left_alone, "nothing was changed: no client can be set up");
    anyhow::ensure!(
        !clients.is_empty(),
        "no MCP client found on this machine; looked for{looked_at}\n\
         Name a client to create its file: `nonet setup cursor`"
    );
    Ok(clients)
}

/// Returns how a client should start Nonet: unchanged, if the configuration is the same.
fn launch(
    host: &'static Host,
    target: &Path,
    profile: Option<&str>,
    machine: &Machine,
) -> anyhow::Result<Launch> {
    hosts::import(ImportSource::Users(&[host]), target, ImportOptions::default(), machine)?;
    let wanted = Launch::of(target, profile, machine)?;
    let (now, config) = match hosts::present(host, FileScope::User, machine)? {
        Present::Absent => return Ok(wanted),
        Present::Program { launch, config } => (launch, config),
        Present::Elsewhere => anyhow::bail!("its `nonet` connects to a gateway elsewhere"),
    };
    anyhow::ensure!(
        is_target(config.as_deref(), target),
        "its `nonet` uses another configuration; run `nonet install {}` to change that",
        host.name
    );
    match profile {
        None if !hosts::is_lost(&now.command) => Ok(now),
        None => Ok(mended(wanted, now.args)),
        Some(_) => Ok(wanted),
    }
}

/// Whether the configuration that an entry names is this file; without a name, the user's own counts.
fn is_target(config: Option<&str>, target: &Path) -> bool {
    let file = config.map_or_else(config::user_file, |file| std::path::absolute(file).ok());
    file.as_deref() == Some(target)
}

/// Returns the launch of a client whose program is gone: the wanted one, with the client's current options.
pub(super) fn mended(wanted: Launch, now: Vec<String>) -> Launch {
    let is_option = |arg: &String| arg.starts_with("--");
    let mut args: Vec<String> = wanted.args.into_iter().take_while(|arg| !is_option(arg)).collect();
    args.extend(now.into_iter().skip_while(|arg| !is_option(arg)));
    Launch { command: wanted.command, args }
}

/// The change of a client's file, if every server works and the user agrees.
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
            1 => format!("Replace 1 server of {title} with Nonet? A backup of the file is kept."),
            moves => {
                format!("Replace {moves} servers of {title} with Nonet? A backup of the file is kept.")
            }
        }
    }
}

/// Everything that a setup knows before it asks questions.
struct Setup {
    machine: Machine,
    target: PathBuf,
    clients: Vec<SetupClient>,
    /// Whether servers.toml existed before.
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
                "The servers.toml in this folder is not changed; to set it up, add `--config servers.toml`.\n"
            );
        }
    }

    /// Returns the servers that can probably move behind Nonet; none has been started yet. `typed` are the variables that
    /// will be set.
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

    /// Whether at least two clients start Nonet with this configuration after the changes, and can share a gateway.
    fn is_shared(&self, planned: &[ClientPlan]) -> bool {
        let is_planned =
            |host: &Host| planned.iter().any(|plan| plan.host.name == host.name && !plan.is_nothing);
        let is_there = |host: &Host| match hosts::present(host, FileScope::User, &self.machine) {
            Ok(Present::Program { config, .. }) => is_target(config.as_deref(), &self.target),
            _ => false,
        };
        let clients = hosts::HOSTS.iter().filter(|host| is_planned(host) || is_there(host));
        self.machine.os != Os::Windows && clients.count() > 1
    }

    /// Tells what it means to allow Nonet's tools for good.
    fn tell_of_always(&self) {
        let titles: Vec<&str> = self.clients.iter().map(|client| client.host.title).collect();
        say!(
            "Always allowing `execute_tool` in a client ({}) allows every tool behind Nonet there: from then on, only the \
             rules in servers.toml ask or refuse.",
            titles.join(", ")
        );
    }

    /// Asks all questions. Returns the changes that the user agrees to and the typed variables; none if the user refuses.
    fn ask(
        &self,
        imported: &Imported,
        defaults: &mut Defaults,
    ) -> anyhow::Result<Option<(Vec<ClientPlan>, Typed)>> {
        let agree = |question: &str| agree(question, true, &mut io::stdin().lock(), &mut io::stderr());
        let secrets =
            if imported.secrets.iter().all(|kept| kept.there) { "" } else { ", and store their secrets" };
        let question = format!("Write these servers to {}{secrets}?", self.target.display());
        if !imported.is_nothing() && !agree(&question)? {
            return Ok(None);
        }
        let question =
            "Ask you before tools of high risk run, such as those that delete things or run programs?";
        defaults.ask_by_risk = defaults.ask_by_risk && agree(question)?;
        let typed = ask_for_variables(imported)?;
        let mut planned = self.planned(imported, &typed)?;
        for plan in planned.iter_mut().filter(|plan| !plan.is_nothing) {
            plan.is_nothing = !agree(&plan.question())?;
        }
        Ok(Some((planned, typed)))
    }

    fn change(&self, client: &SetupClient, carried: &[Carried]) -> anyhow::Result<hosts::Change> {
        let names: Vec<String> = carried.iter().map(|carried| carried.name.clone()).collect();
        Ok(hosts::install(client.host, FileScope::User, &client.launch, &names, &self.machine)?)
    }

    /// Prints the changes of every file.
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
        say!("Setup would start every server first; a server that does not work would stay with its client.");
        say!("Nothing was written (--dry-run).");
        Ok(())
    }
}

/// Tells what servers.toml gets besides servers.
fn tell_defaults(defaults: Defaults) {
    if defaults.ask_by_risk {
        say!("Nonet asks you before tools of high risk run: `[policies.careful]` in servers.toml.");
    }
    if defaults.shared {
        say!("The clients share one gateway with one set of servers: `shared = true` in servers.toml.");
    }
}

/// Asks for the values of unset variables. An empty answer skips a variable.
fn ask_for_variables(imported: &Imported) -> anyhow::Result<Typed> {
    let mut typed = Vec::new();
    for variable in imported.variables.iter().filter(|variable| !variable.set) {
        let (servers, what) = (variable.servers.join(", "), &variable.what);
        let question = format!("{} for {servers} ({what}); not shown, Enter to skip: ", variable.name);
        let value = rpassword::prompt_password(question).context("cannot read the answer")?;
        let value = value.trim();
        if !value.is_empty() {
            typed.push((variable.name.clone(), value.to_string()));
        }
    }
    Ok(typed)
}

/// Asks a question until the answer is yes or no; Enter is `usual`. The end of the input is an error.
pub(super) fn agree(
    question: &str,
    usual: bool,
    input: &mut impl BufRead,
    output: &mut impl Write,
) -> anyhow::Result<bool> {
    let choices = if usual { "[Y/n]" } else { "[y/N]" };
    loop {
        write!(output, "{question} {choices} ")?;
        output.flush()?;
        let mut line = String::new();
        let read = input.take(LONGEST_ANSWER).read_line(&mut line).context("cannot read the answer")?;
        anyhow::ensure!(read > 0, "no answer; nothing was changed");
        match line.trim().to_lowercase().as_str() {
            "" => return Ok(usual),
            "y" | "yes" => return Ok(true),
            "n" | "no" => return Ok(false),
            _ => writeln!(output, "Answer with y or n.")?,
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
            let answer = agree("Go on?", true, &mut typed.as_bytes(), &mut output);
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
