//! The programs that start servers, and this machine's version of each.

use std::{collections::BTreeMap, process::Stdio, time::Duration};

use nonet_config::{Config, Transport};
use nonet_hosts as hosts;
use tokio::{process::Command, time::timeout};

/// How long a program may take to report its version.
const LIMIT: Duration = Duration::from_secs(5);

/// Returns the versions of a configuration's launchers, by program; none if unknown.
pub(super) async fn versions(config: &Config) -> BTreeMap<&'static str, Option<String>> {
    let programs: BTreeMap<&str, ()> = config
        .servers
        .values()
        .filter(|server| server.enabled)
        .filter_map(|server| match &server.transport {
            Transport::Stdio { command, .. } => hosts::runtime_of(command),
            Transport::Http { .. } | Transport::Rest(_) => None,
        })
        .map(|program| (program, ()))
        .collect();
    let asked = programs.into_keys().map(async |program| (program, version(program).await));
    futures::future::join_all(asked).await.into_iter().collect()
}

async fn version(program: &str) -> Option<String> {
    let mut command = Command::new(program);
    let question = if program == "go" { "version" } else { "--version" };
    command.arg(question).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let told = timeout(LIMIT, command.output()).await.ok()?.ok()?;
    let text = String::from_utf8_lossy(&told.stdout);
    let line = text.lines().next()?.trim();
    // Some programs print their name first.
    let line = line.split_whitespace().find(|word| word.contains(|c: char| c.is_ascii_digit()))?;
    Some(line.trim_end_matches(',').to_string())
}
