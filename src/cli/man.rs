//! `nonet man`: the man pages of the program and its commands.

use std::path::Path;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_mangen::Man;

use super::{OK, args::Cli};

/// Prints a command's page, or writes all pages to a folder.
pub(super) fn run(path: &[String], folder: Option<&Path>) -> anyhow::Result<u8> {
    let mut whole = Cli::command().disable_help_subcommand(true);
    whole.build();
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder)
            .and_then(|()| clap_mangen::generate_to(whole, folder))
            .with_context(|| format!("cannot write the pages into `{}`", folder.display()))?;
        say!("wrote the man pages into {}", folder.display());
        return Ok(OK);
    }
    let mut page = Vec::new();
    Man::new(of(&whole, path)?.clone()).render(&mut page)?;
    raw!("{}", String::from_utf8_lossy(&page).trim_end());
    Ok(OK)
}

/// Returns the command at a path of names.
fn of<'a>(whole: &'a Command, path: &[String]) -> anyhow::Result<&'a Command> {
    path.iter().try_fold(whole, |command, name| {
        command.find_subcommand(name).filter(|found| !found.is_hide_set()).with_context(|| {
            let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
            let known: Vec<&str> = shown.map(Command::get_name).collect();
            format!("unknown command `{name}`; commands: {}", super::or_none(&known))
        })
    })
}
