//! The help of `nonet` itself: its commands in groups.

use clap::CommandFactory;

use super::{super::fitting::broken, Cli};

/// The commands by what they are for, in the order of the help.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Use", &["search", "tools", "get", "call", "run", "types", "status", "ui", "logs"]),
    (
        "Set up",
        &["setup", "import", "install", "uninstall", "check", "doctor", "export", "completions", "man"],
    ),
    (
        "Servers",
        &["find", "add", "update", "remove", "enable", "disable", "login", "logout", "secret", "reload"],
    ),
    ("Safety", &["approve", "trust", "audit", "forget"]),
    ("Run", &["serve", "connect", "stop", "restart"]),
    ("Develop", &["schema"]),
];
/// The width of the help where there is no terminal, and at most.
const HELP_WIDTH: usize = 100;

/// Returns the command line, with its commands in groups.
pub(in super::super) fn command(width: Option<usize>) -> clap::Command {
    let width = width.unwrap_or(HELP_WIDTH).clamp(40, HELP_WIDTH);
    let command = Cli::command().term_width(width);
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    let names = shown.map(|command| command.get_name().len());
    let column = names.max().unwrap_or_default() + 4;
    let mut groups = String::new();
    for (title, names) in GROUPS {
        groups.push_str(&format!("{title}:\n"));
        for command in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let aliases: Vec<&str> = command.get_visible_aliases().collect();
            let mut about = command.get_about().map(ToString::to_string).unwrap_or_default();
            if !aliases.is_empty() {
                about.push_str(&format!(" [alias: {}]", aliases.join(", ")));
            }
            let line = format!("  {:1$}{about}", command.get_name(), column - 2);
            groups.push_str(&broken(&line, width, column));
            groups.push('\n');
        }
        groups.push('\n');
    }
    command.help_template(format!(
        "{{about-section}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}{{after-help}}"
    ))
}
