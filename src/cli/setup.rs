//! `nonet setup`: puts Nonet in front of this machine's clients, in one guided command.
//!
//! The steps are those of `import`, `secret`, `check` and `install`. All questions come before the first
//! change (`apply`). A server that Nonet cannot run stays with its client.

mod apply;

use std::{
    collections::BTreeSet,
    io::{self, BufRead, IsTerminal, Read, Write},
    path::Path,
};

use anyhow::Context;
use clap::Args;
use nonet_config::{
    ToolInjection, ValueSources,
    secrets_file::{self, SecretsFile},
};
use nonet_hosts::{
    self as hosts, ClientPlan, Defaults, FileScope, Host, ImportPlan, Machine, Setup, SetupClient,
};

use super::{OK, UNUSABLE, hosts as commands, show};

/// The longest answer to a question, in bytes.
const LONGEST_ANSWER: u64 = 1 << 10;
const EXAMPLE: &str = r#"  [servers.memory]
  command = "npx"
  args = ["-y", "@modelcontextprotocol/server-memory"]"#;

/// The arguments of a setup.
#[derive(Debug, Args)]
pub(super) struct SetupArgs {
    /// Clients (claude-desktop, claude-code, cursor, vscode, zed, windsurf, codex, gemini-cli, cline,
    /// roo-code, continue, goose, lm-studio, copilot-cli, amazon-q, warp, kiro) (default: all with a
    /// configuration on this machine)
    pub clients: Vec<String>,
    /// Agree to everything without asking
    #[arg(long, short)]
    pub yes: bool,
    /// Show the changes without writing them
    #[arg(long)]
    pub dry_run: bool,
}

/// Sets up clients. Exit code 1: a client's file could not be written.
pub(super) async fn run(
    wishes: &SetupArgs,
    config: Option<&Path>,
    profile: Option<&str>,
) -> anyhow::Result<u8> {
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
    let is_named = !named.is_empty();
    let setup = Setup::find(named, &target, profile, machine)?;
    tell_skipped(&setup, is_named)?;
    let (mut imported, keyring) = setup.import(commands::keyring_patience(), &[])?;
    if !setup.had_config && imported.change.is_nothing() {
        if !imported.rows.is_empty() {
            commands::tell(&imported, &target, wishes.dry_run);
        }
        anyhow::bail!(
            "there is nothing to set up: no client has a server that Nonet can run. Write {} first, such as\n\n\
             {EXAMPLE}\n\nand run `nonet setup` again",
            target.display()
        );
    }
    let planned = setup.planned(&imported)?;
    tell_clients(&setup, &imported);
    tell_lists(&setup, profile);
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
    tell_of_always(&setup);
    let mut defaults = if is_done { Defaults::default() } else { imported.missing_defaults()? };
    if wishes.dry_run {
        defaults.shared &= setup.is_shared(&planned);
        imported.add_defaults(defaults)?;
        tell_defaults(defaults);
        show_changes(&setup, &imported)?;
        return Ok(OK);
    }
    if is_done && !asks {
        say!("Nothing was changed.");
        return Ok(OK);
    }
    let planned = match asks {
        false => planned,
        true => match ask(&setup, &mut imported, &mut defaults)? {
            Some(planned) => planned,
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
    apply::apply(&setup, &imported, keyring.as_ref(), &chosen).await
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

/// Prints the clients that are skipped. Fails if none is left.
fn tell_skipped(setup: &Setup, is_named: bool) -> anyhow::Result<()> {
    for client in &setup.skipped {
        eprintln!("nonet: skipping {}: {}", client.host.title, client.why);
    }
    let none_left = setup.clients.is_empty();
    anyhow::ensure!(!none_left || setup.skipped.is_empty(), "nothing was changed: no client can be set up");
    let looked_at: String = setup.looked_at.iter().map(|file| format!("\n  {}", file.display())).collect();
    anyhow::ensure!(
        !none_left || is_named,
        "no MCP client found on this machine; looked for{looked_at}\n\
         Name a client to create its file: `nonet setup cursor`"
    );
    Ok(())
}

/// The question about a client.
fn question(plan: &ClientPlan) -> String {
    let title = plan.host.title;
    match plan.moves {
        0 => format!("Add Nonet to {title}?"),
        1 => format!("Replace 1 server of {title} with Nonet? A backup of the file is kept."),
        moves => format!("Replace {moves} servers of {title} with Nonet? A backup of the file is kept."),
    }
}

fn tell_clients(setup: &Setup, imported: &ImportPlan) {
    let mut table = show::plain_table(&["CLIENT", "SERVERS", "FILE"]);
    for SetupClient { host, file, .. } in &setup.clients {
        let servers =
            imported.rows.iter().filter(|row| row.from.file == *file && row.done.server().is_some());
        table.add_row([host.title.into(), servers.count().to_string(), file.display().to_string()]);
    }
    say!("{table}\n");
    if commands::is_passed_over(&setup.target) {
        say!("The servers.toml in this folder is not changed; to set it up, add `--config servers.toml`.\n");
    }
}

/// Tells which tools the clients that search by themselves get, and why.
fn tell_lists(setup: &Setup, profile: Option<&str>) {
    let written = setup.had_config.then(|| super::load(&setup.target).ok()).flatten();
    let loaded = written.or_else(|| nonet_config::parse("", &setup.target, ValueSources::NONE).ok());
    let Some(config) = loaded.map(|loaded| loaded.config) else { return };
    let own = profile.and_then(|profile| config.profiles.get(profile)?.tool_injection);
    let mode = own.unwrap_or(config.gateway.tool_injection);
    let searches = |client: &&SetupClient| {
        config.clients.get(client.host.name).is_some_and(|known| known.tool_search == Some(true))
    };
    let titles: Vec<&str> = setup.clients.iter().filter(searches).map(|client| client.host.title).collect();
    if titles.is_empty() {
        return;
    }
    let titles = titles.join(", ");
    match mode {
        ToolInjection::Discovery => say!(
            "Every client gets the nine tools (`tool_injection`). With `\"auto\"`, clients that search by themselves get every \
             tool, of which they load only the names: {titles}."
        ),
        ToolInjection::Auto => say!(
            "`tool_injection` is `auto`: clients that search by themselves ({titles}) get every tool, because they load only \
             the names; others get the fullest list that fits into a fifth of `context_window`."
        ),
        ToolInjection::Direct | ToolInjection::CompactDirect => {
            say!("Every client gets every tool, as `tool_injection` says.")
        }
    }
}

/// Tells what it means to allow Nonet's tools for good.
fn tell_of_always(setup: &Setup) {
    let titles: Vec<&str> = setup.clients.iter().map(|client| client.host.title).collect();
    say!(
        "Always allowing `execute_tool` in a client ({}) allows every tool behind Nonet there: from then on, only the \
         rules in servers.toml ask or refuse.",
        titles.join(", ")
    );
}

/// Asks all questions, and adds what the user types. Returns the changes that the user agrees to; none if the
/// user refuses.
fn ask(
    setup: &Setup,
    imported: &mut ImportPlan,
    defaults: &mut Defaults,
) -> anyhow::Result<Option<Vec<ClientPlan>>> {
    let agree = |question: &str| agree(question, true, &mut io::stdin().lock(), &mut io::stderr());
    let secrets =
        if imported.secrets.iter().all(|kept| kept.there) { "" } else { ", and store their secrets" };
    let write = format!("Write these servers to {}{secrets}?", setup.target.display());
    if !imported.is_nothing() && !agree(&write)? {
        return Ok(None);
    }
    let high = "Ask you before tools of high risk run, such as those that delete things or run programs?";
    defaults.ask_by_risk = defaults.ask_by_risk && agree(high)?;
    let typed = ask_for_variables(imported)?;
    imported.add_values(typed);
    let mut planned = setup.planned(imported)?;
    for plan in planned.iter_mut().filter(|plan| !plan.is_nothing) {
        plan.is_nothing = !agree(&question(plan))?;
    }
    Ok(Some(planned))
}

/// Prints the changes of every file.
fn show_changes(setup: &Setup, imported: &ImportPlan) -> anyhow::Result<()> {
    if !imported.change.is_nothing() {
        raw!("{}", imported.change.diff());
    }
    for client in &setup.clients {
        let change = setup.change(client, &setup.movable(client.host, imported))?;
        say!("{}: {}", client.host.title, change.told.join(" "));
        commands::tell_staying(&imported.will_stay(client.host, FileScope::User, &setup.machine));
        if !change.is_nothing() {
            raw!("{}", change.diff());
        }
    }
    say!("Setup would start every server first; a server that does not work would stay with its client.");
    say!("Nothing was written (--dry-run).");
    Ok(())
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
fn ask_for_variables(imported: &ImportPlan) -> anyhow::Result<Vec<(String, String)>> {
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

/// Asks a question at the terminal, while Ctrl-C ends the command. `Err`: the exit code for that.
pub(super) async fn asked(question: String, usual: bool) -> anyhow::Result<Result<bool, u8>> {
    let asking = tokio::task::spawn_blocking(move || {
        agree(&question, usual, &mut io::stdin().lock(), &mut io::stderr())
    });
    tokio::select! {
        answer = asking => Ok(Ok(answer??)),
        code = super::signal::stopped() => Ok(Err(code)),
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
