//! The command line of this process, and advice on one that cannot be used.

use std::ffi::OsString;

use clap::{
    CommandFactory, FromArgMatches,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::{
    super::{table, version},
    Cli,
};

/// Returns the command line of this process. An unusable command line ends the process with a message and
/// exit code 2.
pub(in super::super) fn read() -> Cli {
    let mut command = super::command(table::terminal_width().map(usize::from));
    let parsed = command.try_get_matches_from_mut(std::env::args_os());
    let parsed = parsed.and_then(|mut matches| {
        Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
    });
    let cli = parsed.unwrap_or_else(|error| {
        // Finding the engine takes a while, so the long form is made only when asked for.
        if error.kind() == ErrorKind::DisplayVersion && std::env::args_os().any(|word| word == "--version") {
            say!("{}", version::long());
            std::process::exit(0);
        }
        advised(error, std::env::args_os()).exit()
    });
    if let Some(option) = cli.idle() {
        let message = format!("{option} has no effect on this command");
        Cli::command().error(ErrorKind::ArgumentConflict, message).exit();
    }
    cli
}

/// Adds advice to the error of `nonet add NAME COMMAND -y`, where `--` is missing before the command.
fn advised(mut error: clap::Error, words: impl Iterator<Item = OsString>) -> clap::Error {
    let words: Vec<OsString> = words.skip(1).collect();
    let commands = Cli::command();
    let adds =
        words.iter().find(|word| commands.find_subcommand(word).is_some()).is_some_and(|word| word == "add");
    let mistyped = error.get(ContextKind::SuggestedArg).is_some();
    if adds
        && !mistyped
        && error.kind() == ErrorKind::UnknownArgument
        && words.iter().all(|word| word != "--")
    {
        let advice = "write `--` before the command: `nonet add NAME -- COMMAND ARGS`";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
    }
    error
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn a_command_without_dashes_is_advised_to_have_them() {
        let check = |line: &str, advice: bool| {
            let words = || line.split_whitespace();
            let error = advised(Cli::try_parse_from(words()).unwrap_err(), words().map(OsString::from));
            let said = error.to_string();
            assert_eq!(said.contains("nonet add NAME -- COMMAND ARGS"), advice, "{said}");
        };
        check("nonet add notes npx -y notes", true);
        check("nonet --config a.toml add notes node server.js", true);
        check("nonet add notes --tagg x https://a.example", false);
        check("nonet add notes -y -- npx", false);
        check("nonet search a b", false);
    }
}
