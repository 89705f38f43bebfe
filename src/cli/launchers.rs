//! The programs that start servers, and this machine's version of each.

use std::{collections::BTreeMap, path::Path, process::Stdio, time::Duration};

use tokio::{process::Command, time::timeout};

use crate::config::{Config, Transport};

/// How long a program may take to report its version.
const LIMIT: Duration = Duration::from_secs(5);
/// The launchers of servers, each with the program that determines compatibility.
const KNOWN: &[(&str, &str)] = &[
    ("npx", "node"),
    ("node", "node"),
    ("bunx", "bun"),
    ("bun", "bun"),
    ("deno", "deno"),
    ("uvx", "uv"),
    ("uv", "uv"),
    ("python", "python"),
    ("python3", "python3"),
    ("docker", "docker"),
];

/// Returns the versions of a configuration's launchers, by program; none if unknown.
pub(super) async fn versions(config: &Config) -> BTreeMap<&'static str, Option<String>> {
    let programs: BTreeMap<&str, ()> = config
        .servers
        .values()
        .filter(|server| server.enabled)
        .filter_map(|server| match &server.transport {
            Transport::Stdio { command, .. } => program(command),
            Transport::Http { .. } | Transport::Rest(_) => None,
        })
        .map(|program| (program, ()))
        .collect();
    let asked = programs.into_keys().map(async |program| (program, version(program).await));
    futures::future::join_all(asked).await.into_iter().collect()
}

/// Returns the program that determines compatibility for the `command` of a server.
fn program(command: &str) -> Option<&'static str> {
    let name = Path::new(command).file_stem()?.to_str()?;
    KNOWN.iter().find(|(launcher, _)| *launcher == name).map(|(_, program)| *program)
}

async fn version(program: &str) -> Option<String> {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let told = timeout(LIMIT, command.output()).await.ok()?.ok()?;
    let text = String::from_utf8_lossy(&told.stdout);
    let line = text.lines().next()?.trim();
    // Some programs print their name first.
    let line = line.split_whitespace().find(|word| word.contains(|c: char| c.is_ascii_digit()))?;
    Some(line.trim_end_matches(',').to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_known_by_name() {
        let check = |command, expected| assert_eq!(program(command), expected, "{command}");
        check("npx", Some("node"));
        check("npx.cmd", Some("node"));
        check("/opt/homebrew/bin/uvx", Some("uv"));
        check("my-server", None);
    }
}
