//! Completions: the scripts of `nonet completions` run this program, which knows the names of clients,
//! servers and tools.
//!
//! The names come from files: `servers.toml` and the last lists. Completing starts no server and asks no
//! keyring.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Arg, Command, CommandFactory};
use clap_complete::{
    CompleteEnv,
    engine::{ArgValueCandidates, CompletionCandidate},
    env::Shells,
};
use nonet_base::text::clip;
use nonet_config::{self as config, Config, ValueSources};
use nonet_hosts::HOSTS;
use nonet_state::last_seen;
use nonet_text::name;

use super::{
    OK,
    args::Cli,
    found,
    show::{self, causes},
};

/// The variable with which a script requests completions.
const VARIABLE: &str = "NONET_COMPLETE";
/// The placeholder for secrets and unset variables: names do not depend on them.
const UNKNOWN: &str = "-";

/// Answers a completion script, if it started this program.
pub(super) fn answered() -> bool {
    let completing = CompleteEnv::with_factory(command).var(VARIABLE);
    let folder = std::env::current_dir().ok();
    completing.try_complete(std::env::args_os(), folder.as_deref()).unwrap_or_else(|error| error.exit())
}

/// Prints the script for a shell.
pub(super) fn print(shell: clap_complete::Shell) -> anyhow::Result<u8> {
    let known = Shells::builtins();
    let completer = known.completer(&shell.to_string()).context("there are no completions for this shell")?;
    let program = std::env::args_os().next().map_or_else(|| "nonet".into(), PathBuf::from);
    // If the shell found the program by name, it will find it again.
    let program = match program.components().count() {
        0 | 1 => program,
        _ => std::env::current_exe().unwrap_or(program),
    };
    let mut script = Vec::new();
    completer
        .write_registration(VARIABLE, "nonet", "nonet", &program.to_string_lossy(), &mut script)
        .map_err(|error| anyhow::anyhow!(causes(&error.into())))?;
    show::raw(String::from_utf8_lossy(&script).trim_end());
    Ok(OK)
}

/// Returns the command line with candidates for its arguments.
fn command() -> Command {
    with_candidates(Cli::command())
}

fn with_candidates(command: Command) -> Command {
    let of_a_tool = ["call", "get"].contains(&command.get_name());
    let command = command.mut_args(|arg| match candidates(&arg, of_a_tool) {
        Some(candidates) => arg.add(ArgValueCandidates::new(candidates)),
        None => arg,
    });
    command.mut_subcommands(with_candidates)
}

/// Returns the source of an argument's values, by the argument's name.
fn candidates(arg: &Arg, of_a_tool: bool) -> Option<fn() -> Vec<CompletionCandidate>> {
    Some(match arg.get_id().as_str() {
        "name" if of_a_tool => tools,
        "server" => servers,
        "category" => categories,
        "profile" if arg.get_long().is_some() => profiles,
        "client" | "clients" | "source" => clients,
        _ => return None,
    })
}

fn clients() -> Vec<CompletionCandidate> {
    HOSTS.iter().map(|host| CompletionCandidate::new(host.name).help(Some(host.title.into()))).collect()
}

fn servers() -> Vec<CompletionCandidate> {
    let Some(config) = known() else { return Vec::new() };
    // A server with a fault can still be removed or disabled.
    let left_out = config.left_out.keys().map(CompletionCandidate::new);
    config.servers.keys().map(|name| CompletionCandidate::new(name.as_str())).chain(left_out).collect()
}

fn categories() -> Vec<CompletionCandidate> {
    let Some(config) = known() else { return Vec::new() };
    let groups = config.categories.keys().map(CompletionCandidate::new);
    config.servers.keys().map(|name| CompletionCandidate::new(name.as_str())).chain(groups).collect()
}

fn profiles() -> Vec<CompletionCandidate> {
    let Some(config) = known() else { return Vec::new() };
    config.profiles.keys().map(CompletionCandidate::new).collect()
}

fn tools() -> Vec<CompletionCandidate> {
    let Some(config) = known() else { return Vec::new() };
    let Some(folder) = config.embedder.cache_folder() else { return Vec::new() };
    let mut all = Vec::new();
    for (server, settings) in config.servers.iter().filter(|(_, settings)| settings.enabled) {
        for (tool, about) in last_seen::last_tools(&folder, server.as_str(), settings) {
            let candidate = CompletionCandidate::new(name::full_name(server.as_str(), &tool));
            let about = about.lines().next().map(|line| clip(line.trim(), 60));
            all.push(candidate.help(about.map(|about| show::clean(&about).into())));
        }
    }
    all
}

/// Returns the configuration that the command line being completed would use.
fn known() -> Option<Config> {
    let words: Vec<String> = std::env::args().collect();
    read(&found::silently(named(&words).as_deref())?)
}

/// Returns the configuration file: from `--config`, or else from the environment.
fn named(words: &[String]) -> Option<PathBuf> {
    let after = words.iter().zip(words.iter().skip(1)).find(|(option, _)| *option == "--config");
    let joined = || words.iter().find_map(|word| word.strip_prefix("--config="));
    let word = after.map(|(_, file)| file.as_str()).or_else(joined);
    word.map(PathBuf::from).or_else(|| std::env::var_os("NONET_CONFIG").map(PathBuf::from))
}

fn read(file: &Path) -> Option<Config> {
    let env = |name: &str| Some(std::env::var(name).unwrap_or_else(|_| UNKNOWN.into()));
    let sources =
        ValueSources { env: &env, keyring: &|_| Ok(UNKNOWN.into()), program: &|_, _, _| Ok(UNKNOWN.into()) };
    Some(config::load(file, sources).ok()?.config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_that_is_known_has_candidates() {
        let mut command = command();
        command.build();
        let with = |path: &[&str], arg: &str| {
            let command =
                path.iter().fold(&command, |command, name| command.find_subcommand(name).expect(name));
            let arg = command.get_arguments().find(|known| known.get_id() == arg).expect(arg);
            assert!(arg.get::<ArgValueCandidates>().is_some(), "{path:?} {arg}");
        };
        with(&["setup"], "clients");
        with(&["install"], "client");
        with(&["uninstall"], "client");
        with(&["import"], "source");
        with(&["call"], "name");
        with(&["get"], "name");
        with(&["search"], "category");
        with(&["logs"], "server");
        with(&["login"], "server");
        with(&["remove"], "server");
        with(&["enable"], "server");
        with(&["disable"], "server");
        with(&["call"], "profile");
    }

    #[test]
    fn the_configuration_is_that_of_the_words() {
        let check = |words: &str, expected: &str| {
            let words: Vec<String> = words.split(' ').map(String::from).collect();
            assert_eq!(named(&words).as_deref(), Some(Path::new(expected)));
        };
        check("nonet -- nonet --config a.toml call ", "a.toml");
        check("nonet -- nonet --config=b.toml call ", "b.toml");
    }
}
