//! `nonet logs`: the last lines of Nonet's log files, and the lines that follow.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{self, IsTerminal, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use nonet_store::shared::SharedPlace;
use nonet_text::fault::FaultCode;
use serde_json::{Value, json};

use super::{FAILED, OK, found, log::Files, show, signal::stopped};

/// How much of a file's end to read, in bytes.
const READ: u64 = 16 << 20;
/// The interval between checks for new lines.
const LOOK: Duration = Duration::from_millis(200);
const LEVELS: [&str; 5] = ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"];

/// Which lines to show, and how.
pub(super) struct LogsArgs {
    pub server: Option<String>,
    pub lines: usize,
    pub follow: bool,
    pub json: bool,
}

/// Shows the log. Exit code 1: there is no log, or it is empty.
pub(super) async fn run(file: Option<&Path>, config: Option<&Path>, wanted: LogsArgs) -> anyhow::Result<u8> {
    let file = match file {
        Some(file) => file.to_path_buf(),
        None => SharedPlace::of(&found::path(config)?)?.log(),
    };
    let files = Files::of(&file);
    let days = days(&files).with_context(|| format!("cannot read `{}`", files.folder.display()))?;
    if days.is_empty() && !wanted.follow {
        let message = format_args!(
            "there is no log at `{}`. A shared gateway writes one (`shared = true` in [gateway], or `nonet connect`); any \
             other gateway writes one with `--log-file FILE`, an option of `nonet logs` too",
            file.display()
        );
        show::refuse(FaultCode::NotFound, message, wanted.json);
        return Ok(FAILED);
    }
    let shown = EntryFilter::new(&wanted);
    let last = last_entries(&days, &shown)?;
    if last.is_empty() && !wanted.follow {
        match &wanted.server {
            Some(server) => {
                let message = format_args!("the log has no entries for server `{server}`");
                show::refuse(FaultCode::NotFound, message, wanted.json);
            }
            None => show::refuse(FaultCode::NotFound, "the log is empty", wanted.json),
        }
        return Ok(FAILED);
    }
    last.iter().for_each(|entry| shown.print(entry));
    if !wanted.follow {
        return Ok(OK);
    }
    tokio::select! {
        followed = follow(&files, days.last(), &shown) => followed.map(|()| OK),
        code = stopped() => Ok(code),
    }
}

/// Returns the files of all days, in order.
fn days(files: &Files) -> io::Result<Vec<PathBuf>> {
    let of_a_day = |name: &str| {
        let rest = name.strip_prefix(&*files.prefix)?.strip_prefix('.')?;
        let day = rest.strip_suffix(&*files.suffix)?.strip_suffix('.')?;
        let day = day.len() == 10 && day.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        day.then_some(())
    };
    let entries = match fs::read_dir(&files.folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut days: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().and_then(of_a_day).is_some())
        .map(|entry| entry.path())
        .collect();
    days.sort();
    Ok(days)
}

/// Returns the last requested entries of the log, in order.
fn last_entries(days: &[PathBuf], shown: &EntryFilter) -> anyhow::Result<VecDeque<String>> {
    let mut last: VecDeque<String> = VecDeque::new();
    for day in days.iter().rev() {
        let text = end_of(day).with_context(|| format!("cannot read `{}`", day.display()))?;
        let mut entries = Entries::default();
        let mut of_day: VecDeque<String> = text.lines().filter_map(|line| entries.push(line)).collect();
        of_day.extend(entries.finish());
        of_day.retain(|entry| shown.wants(entry));
        of_day.append(&mut last);
        last = of_day.split_off(of_day.len().saturating_sub(shown.most));
        if last.len() >= shown.most {
            break;
        }
    }
    Ok(last)
}

/// Returns the end of a file, from the start of a line.
fn end_of(file: &Path) -> io::Result<String> {
    let mut file = File::open(file)?;
    let skipped = file.metadata()?.len().saturating_sub(READ);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    file.take(READ).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(match text.split_once('\n') {
        Some((_, rest)) if skipped > 0 => rest.to_owned(),
        _ => text,
    })
}

/// Prints new entries, of this file and of later days.
async fn follow(files: &Files, last: Option<&PathBuf>, shown: &EntryFilter) -> anyhow::Result<()> {
    let mut at = last.map(|file| (file.clone(), fs::metadata(file).map_or(0, |file| file.len())));
    let mut begun = Vec::new();
    let mut entries = Entries::default();
    loop {
        let mut new = 0;
        if let Some((file, read)) = &mut at {
            let mut open = File::open(&*file).with_context(|| format!("cannot read `{}`", file.display()))?;
            open.seek(SeekFrom::Start(*read))?;
            new = open.take(READ).read_to_end(&mut begun)? as u64;
            *read += new;
            while let Some(end) = begun.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = begun.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                entries.push(line.trim_end_matches('\n')).into_iter().for_each(|entry| shown.follow(&entry));
            }
        }
        if new > 0 {
            tokio::task::yield_now().await;
            continue;
        }
        // No more lines have arrived, so the entry is complete.
        entries.finish().into_iter().for_each(|entry| shown.follow(&entry));
        let next = days(files)?.into_iter().find(|day| at.as_ref().is_none_or(|(file, _)| day > file));
        match next {
            Some(next) => at = Some((next, 0)),
            None => tokio::time::sleep(LOOK).await,
        }
    }
}

/// Joins the lines of an entry.
#[derive(Default)]
struct Entries {
    open: Option<String>,
}

impl Entries {
    /// Adds a line; returns the previous entry if the line begins another.
    fn push(&mut self, line: &str) -> Option<String> {
        let begins = LineHead::of(line).is_some() || object(line).is_some();
        match &mut self.open {
            Some(entry) if !begins => {
                entry.push('\n');
                entry.push_str(line);
                None
            }
            _ => self.open.replace(line.to_owned()),
        }
    }

    fn finish(&mut self) -> Option<String> {
        self.open.take()
    }
}

/// Which entries to show, and how.
struct EntryFilter {
    server: Option<String>,
    most: usize,
    json: bool,
    colours: bool,
}

impl EntryFilter {
    fn new(wanted: &LogsArgs) -> Self {
        let colours = std::io::stdout().is_terminal() && console::colors_enabled();
        Self { server: wanted.server.clone(), most: wanted.lines, json: wanted.json, colours }
    }

    fn wants(&self, entry: &str) -> bool {
        let Some(server) = &self.server else { return true };
        match object(entry) {
            Some(object) => object["fields"]["server"] == **server,
            None => names(entry, server),
        }
    }

    fn follow(&self, entry: &str) {
        if self.wants(entry) {
            self.print(entry);
        }
    }

    fn print(&self, entry: &str) {
        if self.json {
            show::raw(&as_json(entry).to_string());
            return;
        }
        let entry = show::clean(entry);
        match LineHead::of(&entry).filter(|_| self.colours) {
            Some(head) => {
                let level = console::style(head.level);
                let level = match head.level {
                    "ERROR" => level.red(),
                    "WARN" => level.yellow(),
                    "INFO" => level.green(),
                    _ => level.dim(),
                };
                show::raw(&format!("{} {level} {}", console::style(head.time).dim(), head.rest));
            }
            None => show::raw(&entry),
        }
    }
}

/// An entry, split by the format of its first line.
struct LineHead<'a> {
    time: &'a str,
    level: &'a str,
    /// The target and what follows.
    rest: &'a str,
}

impl<'a> LineHead<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let (time, rest) = line.split_once(' ')?;
        let is_time =
            time.starts_with(|c: char| c.is_ascii_digit()) && time.contains('T') && time.ends_with('Z');
        let (level, rest) = rest.trim_start().split_once(' ')?;
        (is_time && LEVELS.contains(&level)).then_some(Self { time, level, rest })
    }
}

fn object(line: &str) -> Option<Value> {
    let object: Value = serde_json::from_str(line).ok()?;
    object.is_object().then_some(object)
}

/// Whether an entry has the field `server` with this value.
fn names(line: &str, server: &str) -> bool {
    line.split_whitespace()
        .filter_map(|word| word.strip_prefix("server="))
        .any(|value| value.trim_matches('"') == server)
}

fn as_json(line: &str) -> Value {
    if let Some(object) = object(line) {
        return object;
    }
    match LineHead::of(line) {
        Some(LineHead { time, level, rest }) => {
            let (target, text) = rest.split_once(": ").unwrap_or(("", rest));
            json!({ "timestamp": time, "level": level, "target": target, "text": text })
        }
        None => json!({ "text": line }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
2026-01-31T10:00:00.000001Z  INFO nonet::downstream: ready server=shop tools=2
2026-01-31T10:00:01.000001Z  WARN nonet::downstream: down: it ended (exit code 1); its stderr ends with: one
two server=bank
2026-01-31T10:00:02.000001Z  INFO nonet::call: call client=x tool=shop.buy server=shop outcome=\"ok\"
2026-01-31T10:00:03.000001Z  INFO nonet: of nobody
{\"timestamp\":\"2026-01-31T10:00:04Z\",\"level\":\"WARN\",\"fields\":{\"message\":\"down\",\"server\":\"bank\"}}";

    fn wanted(server: Option<&str>, lines: usize) -> LogsArgs {
        LogsArgs { server: server.map(String::from), lines, follow: false, json: false }
    }

    fn check(server: Option<&str>, most: usize, expected: &[usize]) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let files = Files::of(&folder.path().join("nonet.log"));
        let (first, second) = LOG.split_at(LOG.find("2026-01-31T10:00:02").expect("it is there"));
        for (day, text) in [("2026-01-30", first), ("2026-01-31", second), ("later", "no day\n")] {
            fs::write(folder.path().join(format!("nonet.{day}.log")), text).expect("writable");
        }
        let days = days(&files).expect("readable");
        assert_eq!(days.len(), 2, "{days:?}");
        let found = last_entries(&days, &EntryFilter::new(&wanted(server, most))).expect("readable");
        let found: Vec<&str> = found.iter().flat_map(|entry| entry.lines()).collect();
        let expected: Vec<&str> = expected.iter().filter_map(|at| LOG.lines().nth(*at)).collect();
        assert_eq!(found, expected, "{server:?} {most}");
    }

    #[test]
    fn the_last_entries_of_a_server_are_found_over_days() {
        check(None, 100, &[0, 1, 2, 3, 4, 5]);
        check(None, 2, &[4, 5]);
        check(Some("shop"), 100, &[0, 3]);
        check(Some("shop"), 1, &[3]);
        // In a multi-line entry, the field is at the end.
        check(Some("bank"), 100, &[1, 2, 5]);
        check(Some("nobody"), 100, &[]);
    }

    #[test]
    fn entries_become_objects() {
        let first = as_json(LOG.lines().next().expect("a line"));
        assert_eq!(first["level"], "INFO");
        assert_eq!(
            (&first["target"], &first["text"]),
            (&json!("nonet::downstream"), &json!("ready server=shop tools=2"))
        );
        assert_eq!(as_json("two server=bank"), json!({ "text": "two server=bank" }));
        assert_eq!(as_json(LOG.lines().last().expect("a line"))["fields"]["server"], "bank");
    }
}
