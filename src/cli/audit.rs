//! `nonet audit`: verifies the audit log, and searches it.

use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use clap::Subcommand;
use nonet_base::{clock::unix_ms, text::clip};
use nonet_config::{self as config, Globs, Secret};
use nonet_parts::audit::{self, ChainBreak, ChainKey, ChainReport};
use nonet_store as store;
use nonet_text::fault::FaultCode;
use serde_json::{Value, json};

use super::{
    FAILED, OK, found, load, show,
    table::{WordStyle, paint, plain_table},
};

/// What to do with the audit log.
#[derive(Debug, Subcommand)]
pub(super) enum AuditAction {
    /// Check that no line was edited, removed or moved; exit code 1 at the first that was
    Verify {
        /// File, or folder of files (default: that of the configuration)
        path: Option<PathBuf>,
        /// Hash of a line that must be there, as an earlier `verify` has printed it
        #[arg(long, value_name = "HASH")]
        expect: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the last lines, or those that fit
    Query {
        /// File, or folder of files (default: that of the configuration)
        path: Option<PathBuf>,
        /// Only tools of this full name or pattern, such as 'files.*'
        #[arg(long, value_name = "PATTERN")]
        tool: Option<String>,
        /// Only clients, profiles, tokens and sessions of this name
        #[arg(long, visible_alias = "client", value_name = "NAME")]
        who: Option<String>,
        /// Only this outcome, such as ok, tool_error or forbidden
        #[arg(long, value_name = "OUTCOME")]
        outcome: Option<String>,
        /// Only from this time on: 2026-01-31, 2026-01-31T10:00, or an age such as 2h
        #[arg(long, value_name = "TIME", value_parser = time)]
        since: Option<String>,
        /// Only up to this time
        #[arg(long, value_name = "TIME", value_parser = time)]
        until: Option<String>,
        /// Number of lines to show, from the end
        #[arg(long, short = 'n', value_name = "N", default_value_t = 50)]
        limit: usize,
        /// Print the lines themselves
        #[arg(long)]
        json: bool,
    },
}

/// Converts a time to the lines' format: UTC, with milliseconds.
fn time(text: &str) -> Result<String, String> {
    let now = unix_ms(nonet_base::clock::system_time());
    let ago = |age: Duration| {
        let ms = i64::try_from(now).ok()?.checked_sub(i64::try_from(age.as_millis()).ok()?)?;
        jiff::Timestamp::from_millisecond(ms).ok()
    };
    let local = |text: &str| {
        let time: jiff::civil::DateTime = text.parse().ok()?;
        Some(time.to_zoned(jiff::tz::TimeZone::system()).ok()?.timestamp())
    };
    let time = match humantime::parse_duration(text) {
        Ok(age) => ago(age),
        Err(_) => text.parse().ok().or_else(|| local(text)),
    };
    let time =
        time.ok_or("it is neither a time, such as 2026-01-31 or 2026-01-31T10:00, nor an age, such as 2h")?;
    Ok(format!("{time:.3}"))
}

/// Runs the action. Exit code 1: the log is broken or gone, or no line matches.
pub(super) fn run(action: AuditAction, config: Option<&Path>) -> anyhow::Result<u8> {
    match action {
        AuditAction::Verify { path, expect, json } => {
            verify(&Log::find(path, config)?, expect.as_deref(), json)
        }
        AuditAction::Query { path, tool, who, outcome, since, until, limit, json } => {
            let tool =
                tool.map(|tool| Globs::new(vec![tool])).transpose().context("`--tool` is not a pattern")?;
            let wanted = LineFilter { tool, who: who.map(|who| who.to_lowercase()), outcome, since, until };
            query(&Log::find(path, config)?.place, &wanted, limit, json)
        }
    }
}

/// A log, and what the configuration says about it.
struct Log {
    place: PathBuf,
    key: ChainKey,
    /// Why there must be a log.
    expected: Option<String>,
}

impl Log {
    fn find(given: Option<PathBuf>, config: Option<&Path>) -> anyhow::Result<Self> {
        // An invalid or missing file has no other folder.
        let file = match config {
            Some(file) => Some(config::find(Some(file))?),
            None => found::path(None).ok(),
        };
        let set = file.as_ref().and_then(|file| load(file).ok()).and_then(|loaded| loaded.config.audit);
        let expected = match (&given, &set, &file) {
            (Some(_), _, _) => Some("it was named".into()),
            (None, Some(_), Some(file)) => Some(format!("[audit] is on in {}", file.display())),
            _ => None,
        };
        let key = ChainKey::new(set.as_ref().and_then(|audit| audit.key.as_ref()).map(Secret::expose));
        let place = match given.or_else(|| set.and_then(|audit| audit.folder)) {
            Some(place) => place,
            None => store::folder()
                .context("there is no home folder, so name the folder of the log")?
                .join(audit::FOLDER),
        };
        Ok(Self { place, key, expected })
    }
}

fn verify(log: &Log, expect: Option<&str>, as_json: bool) -> anyhow::Result<u8> {
    let Log { place, key, expected } = log;
    let reports = match audit::verify(place, key) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        reports => reports.with_context(|| format!("cannot read `{}`", place.display()))?,
    };
    let missing = match expect {
        Some(hash) if !reports.is_empty() => !audit::has_line(place, hash)?,
        Some(_) => true,
        None => false,
    };
    let is_gone = reports.is_empty() && expected.is_some();
    let is_broken = missing || is_gone || reports.iter().any(|report| report.broken.is_some());
    let code = if is_broken { FAILED } else { OK };
    if as_json {
        let report =
            json!({ "whole": !is_broken, "place": place, "chains": reports, "expected_is_missing": missing });
        raw!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(code);
    }
    match expected {
        Some(why) if is_gone => say!(
            "there is no audit log in {}, although {why}: it was removed, or no gateway has run with it yet",
            place.display()
        ),
        _ if reports.is_empty() => say!("there is no audit log in {}", place.display()),
        _ => {}
    }
    reports.iter().for_each(tell);
    if missing {
        say!("no line has the hash {}: lines were removed or rewritten", expect.unwrap_or_default());
    }
    Ok(code)
}

fn tell(report: &ChainReport) {
    let ChainReport { chain, files, lines, first, last, hash, torn, unkeyed, lost, broken } = report;
    let name = if *chain == 0 { "the file".into() } else { format!("chain {chain}") };
    if let Some(ChainBreak { file, line, why }) = broken {
        match line {
            0 => say!("{name} is gone from {}: {why}", file.display()),
            _ => say!("{name} is broken at {}:{line}: {why}", file.display()),
        }
    }
    match broken.is_some() {
        true => say!("  {} before that", show::count(*lines, "intact line")),
        false => say!(
            "{name} is intact: {} in {}, numbers {first} to {last}, last hash {hash}",
            show::count(*lines, "line"),
            show::count(*files as u64, "file")
        ),
    }
    if !torn.is_empty() {
        let at: Vec<String> = torn.iter().map(u64::to_string).collect();
        say!("  an incomplete line before number {}: left by a crash, not by an edit", at.join(", "));
    }
    if *unkeyed > 0 {
        say!(
            "  {} before there was a key: only the later lines vouch for them",
            show::count(*unkeyed, "line")
        );
    }
    if *lost > 0 {
        say!("  {} without a line, because the log could not be written", show::count(*lost, "call"));
    }
}

/// Which lines to show.
struct LineFilter {
    tool: Option<Globs>,
    who: Option<String>,
    outcome: Option<String>,
    since: Option<String>,
    until: Option<String>,
}

impl LineFilter {
    fn fits(&self, line: &Value) -> bool {
        let text = |key: &str| line[key].as_str().unwrap_or_default();
        let is_of = |who: &String| {
            let session = line["session"].as_u64().map(|session| session.to_string());
            ["client", "profile", "token"].into_iter().any(|key| text(key).to_lowercase().contains(&**who))
                || session.as_ref() == Some(who)
        };
        // Times in this format sort as text.
        self.since.as_ref().is_none_or(|since| text("at") >= &**since)
            && self.until.as_ref().is_none_or(|until| text("at") <= &**until)
            && self.outcome.as_ref().is_none_or(|outcome| text("outcome") == outcome)
            && self.tool.as_ref().is_none_or(|tool| tool.matches(text("tool")))
            && self.who.as_ref().is_none_or(is_of)
    }
}

fn query(place: &Path, wanted: &LineFilter, limit: usize, as_json: bool) -> anyhow::Result<u8> {
    let mut found: VecDeque<Value> = VecDeque::new();
    let mut total = 0_u64;
    // Chains are read one after the other; the last lines of each are enough.
    let mut chain: VecDeque<Value> = VecDeque::new();
    let mut last = 0;
    audit::each_line(place, |line| {
        let seq = line["seq"].as_u64().unwrap_or_default();
        if seq < last {
            found.append(&mut chain);
        }
        last = seq;
        if wanted.fits(&line) {
            total += 1;
            chain.push_back(line);
            if chain.len() > limit {
                chain.pop_front();
            }
        }
    })
    .with_context(|| format!("cannot read `{}`", place.display()))?;
    found.append(&mut chain);
    let mut found = Vec::from(found);
    found.sort_by(|a, b| a["at"].as_str().cmp(&b["at"].as_str()));
    let shown = &found[found.len().saturating_sub(limit)..];
    if as_json {
        shown.iter().for_each(|line| show::raw(&line.to_string()));
        return Ok(if shown.is_empty() { FAILED } else { OK });
    }
    if shown.is_empty() {
        show::refuse(FaultCode::NotFound, format_args!("no matching line in {}", place.display()), false);
        return Ok(FAILED);
    }
    let mut table = plain_table(&["TIME", "WHO", "TOOL", "OUTCOME", "MS", "RULE"]);
    for line in shown {
        table.add_row(row(line));
    }
    say!("{table}");
    if total > shown.len() as u64 {
        say!("\n{} of {total}; --limit shows more", shown.len());
    }
    Ok(OK)
}

fn row(line: &Value) -> [String; 6] {
    let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
    let at = text("at").parse::<jiff::Timestamp>().ok();
    let at = at.map(|at| at.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string());
    let profile = Some(text("profile")).filter(|profile| !profile.is_empty());
    let who = profile.iter().fold(text("client"), |who, profile| format!("{who} ({profile})"));
    let (tool, outcome) = match line["event"].as_str() {
        Some("call") => (text("tool"), text("outcome")),
        event => (event.unwrap_or_default().to_owned(), String::new()),
    };
    let look = match &*outcome {
        "ok" | "" => None,
        "tool_error" | "forbidden" | "needs_approval" | "cancelled" => Some(WordStyle::Warn),
        _ => Some(WordStyle::Bad),
    };
    let outcome = look.map_or_else(|| outcome.clone(), |look| paint(look, &outcome));
    let ms = line["elapsed_us"].as_u64().map(|us| format!("{:.1}", us as f64 / 1_000.0)).unwrap_or_default();
    let approver = line["approver"].as_str().map(|approver| format!(" ({approver})")).unwrap_or_default();
    let rule = match line["verdict"].as_str() {
        Some(verdict) => format!("{verdict} {}{approver}", text("rule")),
        None if line["event"] == "call" => String::new(),
        None => clip(&line["about"].to_string(), 200),
    };
    [at.unwrap_or_default(), who, tool, outcome, ms, rule.trim_end().to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_days_moments_and_ages() {
        let check = |text: &str, expected: bool| assert_eq!(time(text).is_ok(), expected, "{text}");
        assert_eq!(time("2026-01-31T10:00:00Z").as_deref(), Ok("2026-01-31T10:00:00.000Z"));
        for good in ["2026-01-31", "2026-01-31T10:00", "2h", "30d", "2026-01-31T10:00:00+02:00"] {
            check(good, true);
        }
        for bad in ["", "yesterday", "2026-13-01", "999999999999y"] {
            check(bad, false);
        }
        assert!(time("1h").expect("a time") < time("1m").expect("a time"));
    }

    #[test]
    fn lines_are_chosen_by_what_they_say() {
        let line = json!({
            "at": "2026-01-31T10:00:00.000Z", "event": "call", "client": "Claude", "session": 3, "profile": "reader",
            "tool": "files.read", "outcome": "ok",
        });
        let check = |wanted: LineFilter, expected: bool| assert_eq!(wanted.fits(&line), expected);
        let any = || LineFilter { tool: None, who: None, outcome: None, since: None, until: None };
        let globs = |pattern: &str| Globs::new(vec![pattern.into()]).ok();
        check(any(), true);
        check(LineFilter { tool: globs("files.*"), ..any() }, true);
        check(LineFilter { tool: globs("git.*"), ..any() }, false);
        check(LineFilter { who: Some("claude".into()), ..any() }, true);
        check(LineFilter { who: Some("read".into()), ..any() }, true);
        check(LineFilter { who: Some("3".into()), ..any() }, true);
        check(LineFilter { who: Some("cursor".into()), ..any() }, false);
        check(LineFilter { outcome: Some("timeout".into()), ..any() }, false);
        check(LineFilter { since: Some("2026-01-31T10:00:00.001Z".into()), ..any() }, false);
        check(LineFilter { until: Some("2026-01-31T10:00:00.000Z".into()), ..any() }, true);
    }
}
