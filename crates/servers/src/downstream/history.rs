//! What happened to a server lately: its states and the lines of its stderr, with their times.

use std::collections::VecDeque;

use nonet_api::servers::{HistoryEntry, HistoryKind};
use nonet_base::{clock::unix_ms, text::clip};
use nonet_text::secrets::without_secrets;
use parking_lot::Mutex;

use super::ConnectionState;

/// The most entries of one server, and the most bytes of their texts.
const MAX_ENTRIES: usize = 200;
const MAX_BYTES: usize = 32 << 10;
/// The longest text of an entry, in characters.
const LONGEST: usize = 500;
/// Lines of stderr within this time are shown as one entry.
const TOGETHER_MS: u64 = 1_000;
/// The most lines of a private key: more lines without its end are not part of it.
const KEY_LINES: usize = 200;
/// How many lines of stderr explain the end of a process, and the most characters of them.
const TAIL_LINES: usize = 12;
const TAIL_CHARS: usize = 1_200;

/// The latest entries of one server. The oldest ones make room for new ones.
#[derive(Debug, Default)]
pub(super) struct History(Mutex<HistoryEntries>);

#[derive(Debug, Default)]
struct HistoryEntries {
    entries: VecDeque<HistoryEntry>,
    bytes: usize,
    /// How many entries were added since the last process started.
    of_process: usize,
    /// How many lines of a private key have come, while its end has not.
    key_lines: Option<usize>,
}

impl History {
    /// Adds a state, unless it is the last one that was added.
    pub(super) fn entered(&self, state: &ConnectionState) {
        let text = match state {
            ConnectionState::Down { error, .. } | ConnectionState::AuthRequired { error, .. } => {
                format!("{}: {error}", state.shown().as_str())
            }
            _ => state.shown().as_str().to_string(),
        };
        let text = clip(&without_secrets(&text).0, LONGEST);
        let mut kept = self.0.lock();
        let last = kept.entries.iter().rev().find(|entry| entry.kind == HistoryKind::State);
        if last.is_none_or(|last| last.text != text) {
            kept.push(now(), HistoryKind::State, text);
        }
    }

    /// Adds a line of stderr, whose known secrets are masked already.
    pub(super) fn wrote(&self, line: &str) {
        let mut kept = self.0.lock();
        // The only secret that has several lines: without its first line, nothing would show what the others
        // are.
        if line.contains("-----BEGIN ") && line.contains("PRIVATE KEY") {
            kept.key_lines = Some(0);
            kept.push(now(), HistoryKind::Stderr, "(a private key)".into());
        }
        if let Some(lines) = kept.key_lines {
            let is_over = line.contains("-----END ") || lines >= KEY_LINES;
            kept.key_lines = (!is_over).then_some(lines + 1);
            return;
        }
        kept.push(now(), HistoryKind::Stderr, clip(&without_secrets(line).0, LONGEST));
    }

    /// Notes that a new process writes from now on.
    pub(super) fn process_starts(&self) {
        self.0.lock().of_process = 0;
    }

    /// Returns the last lines of the last process, oldest first, without what looks like a secret.
    pub(super) fn tail(&self) -> String {
        let kept = self.0.lock();
        let own = kept.entries.iter().rev().take(kept.of_process);
        let lines = own.filter(|entry| entry.kind == HistoryKind::Stderr).take(TAIL_LINES);
        let mut lines: Vec<&str> = lines.map(|entry| entry.text.as_str()).collect();
        lines.reverse();
        // A secret may span several lines.
        without_secrets(&lines.join("\n")).0
    }

    /// Returns a reason followed by the last lines of the last process.
    pub(super) fn with_tail(&self, reason: &str) -> String {
        match self.tail() {
            tail if tail.is_empty() => reason.to_string(),
            tail => format!("{reason}; its stderr ends with: {}", clip(&tail, TAIL_CHARS)),
        }
    }

    /// Returns the entries, oldest first, without what looks like a secret.
    pub(super) fn entries(&self) -> Vec<HistoryEntry> {
        let mut shown: Vec<HistoryEntry> = Vec::new();
        for entry in &self.0.lock().entries {
            match shown.last_mut() {
                Some(last)
                    if (last.kind, entry.kind) == (HistoryKind::Stderr, HistoryKind::Stderr)
                        && entry.at_ms.saturating_sub(last.at_ms) < TOGETHER_MS =>
                {
                    last.text.push('\n');
                    last.text.push_str(&entry.text);
                }
                _ => shown.push(entry.clone()),
            }
        }
        shown
    }
}

impl HistoryEntries {
    fn push(&mut self, at_ms: u64, kind: HistoryKind, text: String) {
        self.bytes += text.len();
        self.of_process += 1;
        self.entries.push_back(HistoryEntry { at_ms, kind, text });
        while self.entries.len() > MAX_ENTRIES || self.bytes > MAX_BYTES {
            let Some(oldest) = self.entries.pop_front() else { break };
            self.bytes -= oldest.text.len();
        }
    }
}

fn now() -> u64 {
    unix_ms(nonet_base::clock::system_time())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(history: &History) -> Vec<String> {
        history.entries().into_iter().map(|entry| entry.text).collect()
    }

    fn down(error: &str) -> ConnectionState {
        ConnectionState::Down { error: error.into(), retry_at: tokio::time::Instant::now() }
    }

    #[test]
    fn states_are_added_when_they_change() {
        let history = History::default();
        for state in [
            ConnectionState::Starting,
            down("exit code 3"),
            down("exit code 3"),
            down("killed"),
            ConnectionState::Starting,
        ] {
            history.entered(&state);
        }
        assert_eq!(texts(&history), ["starting", "down: exit code 3", "down: killed", "starting"]);
    }

    #[test]
    fn a_flood_of_stderr_stays_bounded() {
        let history = History::default();
        history.entered(&ConnectionState::Starting);
        for _ in 0..10_000 {
            history.wrote(&"x".repeat(10_000));
        }
        history.entered(&ConnectionState::Stopped);
        let kept = texts(&history);
        assert!(kept.iter().map(String::len).sum::<usize>() < MAX_BYTES + 2 * MAX_ENTRIES);
        assert_eq!(kept.last().map(String::as_str), Some("stopped"));
    }

    #[test]
    fn a_key_of_several_lines_is_hidden_whatever_comes_between() {
        let history = History::default();
        let key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7\n-----END PRIVATE KEY-----";
        history.wrote("reading the key");
        for line in key.lines() {
            history.wrote(line);
            history.entered(&down(line));
        }
        history.wrote("the key is read");
        let entries = history.entries().into_iter().filter(|entry| entry.kind == HistoryKind::Stderr);
        let shown = entries.map(|entry| entry.text).collect::<Vec<_>>().join("\n");
        assert_eq!(shown, "reading the key\n(a private key)\nthe key is read");
    }
}
