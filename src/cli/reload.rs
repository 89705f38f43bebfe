//! `nonet reload`: asks the running gateways of a servers.toml to read it now, and reports the result.

use std::{path::Path, time::Duration};

use nonet_api::notice::{Notice, WorldChanges};
use nonet_config::{self as config, shell};
use nonet_store::{
    self as store,
    reloads::{ReloadAnswer, ReloadDesk, ReloadRequest},
    trusted_files::TrustedFiles,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{FAILED, OK, found, show, signal::stopped};

/// How long the gateways may take.
const LIMIT: Duration = Duration::from_secs(20);
/// How often to look for their answers.
const EVERY: Duration = Duration::from_millis(50);

/// Asks, waits and reports. Exit code 1: no gateway runs, or one has refused the file.
pub(super) async fn run(accept: bool, as_json: bool, config: Option<&Path>) -> anyhow::Result<u8> {
    let file = found::path(config)?;
    let text = match accept {
        true => Some(config::read_text(&file)?),
        false => None,
    };
    let Some(desk) = desk(&file) else {
        anyhow::bail!("there is no home folder, which `nonet reload` needs to reach gateways");
    };
    // What a person accepts is trusted from now on, if it was trusted before.
    if let (Some(text), Some(files)) = (&text, TrustedFiles::of_user())
        && files.knows(&file)
        && found::is_at_terminal()
    {
        found::record(&files, &file, text)?;
    }
    let before = desk.answers();
    let request = ReloadRequest::new(text.as_deref());
    if !before.is_empty() {
        desk.ask(&request)?;
    }
    let answers = tokio::select! {
        answers = answers(&desk, &request, before) => answers,
        code = stopped() => return Ok(code),
    };
    let is_taken = |outcome: &Value| {
        matches!(outcome["kind"].as_str(), Some("config_changed" | "config_unchanged"))
            && outcome.get("faults").is_none()
    };
    let taken = answers.iter().filter(|answer| is_taken(&answer.outcome)).count();
    if as_json {
        let all: Vec<Value> =
            answers.iter().map(|answer| json!({ "pid": answer.pid, "outcome": answer.outcome })).collect();
        show::whole(&json!({ "file": file, "gateways": all }))?;
    } else if answers.is_empty() {
        say!("No gateway is running for {}.", file.display());
    } else {
        answers.iter().for_each(|answer| tell(answer, &file));
    }
    Ok(if taken > 0 && taken == answers.len() { OK } else { FAILED })
}

/// Returns the reload desk of a file's gateways; none without a state folder.
pub(super) fn desk(file: &Path) -> Option<ReloadDesk> {
    Some(ReloadDesk::of(&store::folder()?, file))
}

/// Tells the running gateways to accept an upcoming change of the file by a command: one edit, from one text
/// to another.
pub(super) fn accept_edit(file: &Path, before: &str, after: &str) {
    if let Some(desk) = desk(file).filter(|desk| desk.folder().exists())
        && let Err(error) = desk.ask(&ReloadRequest::of_edit(before, after))
    {
        tracing::debug!(%error, "cannot notify the running gateways of the edit");
    }
}

/// Waits until each gateway in `before` has answered the request or has ended.
async fn answers(desk: &ReloadDesk, request: &ReloadRequest, before: Vec<ReloadAnswer>) -> Vec<ReloadAnswer> {
    let began = Instant::now();
    loop {
        let mut now = desk.answers();
        // A gateway started since then has already read the file.
        now.retain(|answer| before.iter().any(|known| known.pid == answer.pid));
        let is_answered = |answer: &ReloadAnswer| answer.request.as_ref() == Some(&request.id);
        if now.iter().all(is_answered) {
            return now;
        }
        if began.elapsed() > LIMIT {
            for answer in now.iter_mut().filter(|answer| !is_answered(answer)) {
                answer.outcome = json!({ "kind": "no_answer", "message": "It does not answer." });
            }
            return now;
        }
        sleep(EVERY).await;
    }
}

fn tell(answer: &ReloadAnswer, file: &Path) {
    let notice = Notice::deserialize(&answer.outcome);
    let said = match &notice {
        Ok(Notice::ConfigChanged { changes, .. }) => changed(changes),
        Ok(Notice::ConfigUnchanged) => "nothing changed".into(),
        _ => answer.outcome["message"].as_str().unwrap_or("it gave no reason").to_string(),
    };
    say!("Process {}: {said}", answer.pid);
    match notice {
        Ok(Notice::ConfigChanged { faults, .. }) => faults.iter().for_each(|fault| say!("  {fault}")),
        Ok(Notice::ConfigRefused { .. }) => {
            say!("  If this is intended, run `{}`.", shell::nonet("reload --accept", file));
        }
        _ => {}
    }
}

/// Says what a reload changed.
fn changed(changes: &WorldChanges) -> String {
    let WorldChanges { started, restarted, stopped, changed, needs_restart } = changes;
    let needs_restart: Vec<String> = needs_restart.iter().map(ToString::to_string).collect();
    let lists = [
        ("started", started),
        ("restarted", restarted),
        ("stopped", stopped),
        ("changed", changed),
        ("needs restart", &needs_restart),
    ];
    let done = lists.into_iter().filter(|(_, names)| !names.is_empty());
    let done: Vec<String> = done.map(|(what, names)| format!("{what} {}", names.join(", "))).collect();
    if done.is_empty() { "applied".into() } else { done.join("; ") }
}

/// Prints which gateways refuse the file as it is.
pub(super) fn tell_refused(file: &Path) {
    let answers = desk(file).map(|desk| desk.answers()).unwrap_or_default();
    answers
        .iter()
        .filter(|answer| answer.outcome["kind"] == "config_refused")
        .for_each(|answer| tell(answer, file));
}
