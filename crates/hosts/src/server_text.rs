//! One server in the text of servers.toml: removed, enabled, disabled, or added.
//!
//! Edits are cuts and insertions at the parser's positions, so every other byte stays. Texts have their file's line ends.

use std::ops::Range;

use nonet_config::written_key;
use toml_edit::{Document, Item, TableLike, Value};

/// The key of the table of servers.
pub(super) const TABLE: &str = "servers";

/// Removes a server, its sub-tables and the comments directly above it. Comments separated by a blank line stay.
pub(super) fn without(text: &str, name: &str) -> Option<String> {
    let layout = Layout::of(text)?;
    let servers = layout.document.get(TABLE)?;
    if let Some(server) = servers.as_table_like()?.get(name)
        && servers.is_inline_table()
    {
        return without_member(text, servers, name, server);
    }
    let mut left = text.to_string();
    // From last to first, so that earlier positions stay valid.
    for block in layout.blocks(name).into_iter().rev() {
        cut(&mut left, block);
    }
    Some(left)
}

/// Returns the contiguous lines of a server: its table, its sub-tables and the comments directly above it. None if its lines are
/// scattered, or if it is an inline value.
pub(super) fn lines_of(text: &str, name: &str) -> Option<Range<usize>> {
    let mut blocks = Layout::of(text)?.blocks(name);
    blocks.pop().filter(|_| blocks.is_empty())
}

/// Replaces a run of lines, using the text's line ends.
pub(super) fn with_lines(text: &str, lines: Range<usize>, new: &str) -> String {
    let end = line_ends(text);
    let mut new = new.replace("\r\n", "\n").trim_matches('\n').replace('\n', end);
    if lines.end < text.len() || text.ends_with('\n') {
        new.push_str(end);
    }
    replaced(text, lines, &new)
}

/// Sets `enabled` of a server.
pub(super) fn switched(text: &str, name: &str, enabled: bool) -> Option<String> {
    let layout = Layout::of(text)?;
    let item = layout.document.get(TABLE)?.as_table_like()?.get(name)?;
    let server = item.as_table_like()?;
    if let Some(there) = server.get("enabled") {
        return Some(replaced(text, there.span()?, &enabled.to_string()));
    }
    let line = format!("enabled = {enabled}");
    if let Some(header) = layout.headers.iter().find(|header| header.path == [TABLE, name]) {
        let first = text.get(line_end(text, header.at)..).unwrap_or_default();
        let indent = first.lines().next().filter(|line| !line.trim().is_empty()).map_or("", indent_of);
        return Some(insert_line(text, line_end(text, header.at), &format!("{indent}{line}")));
    }
    if item.is_inline_table() && !is_dotted(item) {
        let at = item.span()?.start + 1;
        let rest = text.get(at..)?;
        let end = if rest.starts_with(char::is_whitespace) { "" } else { " " };
        let comma = if server.is_empty() { "" } else { "," };
        return Some(replaced(text, at..at, &format!(" {line}{comma}{end}")));
    }
    // Dotted keys: one more of them, before the first.
    let first = server.iter().filter_map(|(key, _)| server.key(key)?.span()).min_by_key(|span| span.start)?;
    let start = member_start(text, first.start);
    let prefix = text.get(start..first.start)?;
    if text.get(..start)?.trim_end_matches([' ', '\t']).ends_with(['{', ',']) {
        return Some(replaced(text, start..start, &format!("{prefix}{line}, ")));
    }
    let from = line_start(text, start);
    Some(insert_line(text, from, &format!("{}{prefix}{line}", text.get(from..start)?)))
}

/// Adds a server after the last one. `block` is its own table with its header, `member` the same as an inline value.
pub(super) fn with(text: &str, name: &str, block: &str, member: &str) -> Option<String> {
    let layout = Layout::of(text)?;
    let servers = layout.document.get(TABLE);
    if let Some(servers) = servers.filter(|servers| servers.is_inline_table() && !is_dotted(servers)) {
        let end = servers.span()?.end - 1;
        let at = text.get(..end)?.trim_end().len();
        let before = text.get(..at)?;
        let comma = if before.ends_with(['{', ',']) { "" } else { "," };
        let gap = if at == end { " " } else { "" };
        return Some(replaced(text, at..at, &format!("{comma} {} = {member}{gap}", written_key(name))));
    }
    let last = layout.headers.iter().rposition(|header| header.path.first().is_some_and(|key| key == TABLE));
    let at = match last {
        Some(last) => layout.end_with_comments(last),
        None => text.len(),
    };
    let end = line_ends(text);
    let (before, after) = text.split_at(at);
    let mut new = before.to_string();
    if !new.is_empty() && !new.ends_with('\n') {
        new.push_str(end);
    }
    if !new.is_empty() && !is_blank(last_line(&new)) {
        new.push_str(end);
    }
    new.push_str(&block.replace('\n', end));
    if !after.is_empty() && !is_blank(after.lines().next().unwrap_or_default()) {
        new.push_str(end);
    }
    new.push_str(after);
    Some(new)
}

/// A text with the places of its tables and keys.
struct Layout<'a> {
    text: &'a str,
    document: Document<&'a str>,
    headers: Vec<Header>,
    keys: Vec<KeyLine>,
}

/// A line such as `[servers.files]`.
struct Header {
    at: usize,
    path: Vec<String>,
}

/// A key with its value, outside of inline tables.
struct KeyLine {
    path: Vec<String>,
    /// From the start of the last part of the key to the end of the value.
    span: Range<usize>,
}

impl<'a> Layout<'a> {
    fn of(text: &'a str) -> Option<Self> {
        let document = Document::parse(text).ok()?;
        let mut keys = Vec::new();
        key_lines(document.as_table(), &mut Vec::new(), &mut keys);
        keys.sort_by_key(|key| key.span.start);
        let is_inside = |at: usize| {
            let next = keys.partition_point(|key| key.span.start <= at);
            next.checked_sub(1).and_then(|last| keys.get(last)).is_some_and(|key| at < key.span.end)
        };
        let mut headers = Vec::new();
        let mut at = 0;
        for line in text.split_inclusive('\n') {
            if line.trim_start().starts_with('[') && !is_inside(at) {
                headers.push(Header { at, path: path_of(line)? });
            }
            at += line.len();
        }
        Some(Self { text, document, headers, keys })
    }

    /// Returns the lines of a server as runs, each from its first line to the end of its last.
    fn blocks(&self, name: &str) -> Vec<Range<usize>> {
        let is_of = |path: &[String]| matches!(path, [table, server, ..] if table == TABLE && server == name);
        let mut blocks: Vec<Range<usize>> = Vec::new();
        let mut last_header = None;
        for (index, header) in self.headers.iter().enumerate().filter(|(_, header)| is_of(&header.path)) {
            let end = self.end_with_comments(index);
            match blocks.last_mut().filter(|_| last_header == index.checked_sub(1)) {
                // Text between tables of the same server belongs to it.
                Some(block) => block.end = end,
                _ => blocks.push(self.above(header.at)..end),
            }
            last_header = Some(index);
        }
        let of_others =
            self.keys.iter().filter(|key| is_of(&key.path) && !is_of(self.table_at(key.span.start)));
        for key in of_others {
            let from = self.above(line_start(self.text, key.span.start));
            let to = line_end(self.text, key.span.end);
            match blocks.last_mut().filter(|block| block.end == from) {
                Some(block) => block.end = to,
                None => blocks.push(from..to),
            }
        }
        blocks.sort_by_key(|block| block.start);
        blocks
    }

    /// Returns the path of the table at a position.
    fn table_at(&self, at: usize) -> &[String] {
        let next = self.headers.partition_point(|header| header.at <= at);
        next.checked_sub(1).and_then(|last| self.headers.get(last)).map_or(&[], |header| &header.path)
    }

    /// Returns the end of a table's last key, plus the comments directly below it unless something follows them directly.
    fn end_with_comments(&self, header: usize) -> usize {
        let at = self.headers.get(header).map_or(0, |header| header.at);
        let next = self.headers.get(header + 1).map_or(self.text.len(), |next| next.at);
        let keys = self.keys.iter().filter(|key| (at..next).contains(&key.span.start));
        let end = line_end(self.text, keys.map(|key| key.span.end).max().unwrap_or(at));
        let mut below = end;
        for line in self.text.get(end..).unwrap_or_default().split_inclusive('\n') {
            match line.trim_start() {
                comment if comment.starts_with('#') => below += line.len(),
                blank if is_blank(blank) => break,
                _ => return end,
            }
        }
        below
    }

    /// Returns the start of the comment lines directly above a line.
    fn above(&self, line: usize) -> usize {
        let mut from = line;
        while let Some(before) = self.text.get(..from).filter(|before| !before.is_empty()) {
            let start = line_start(self.text, before.len() - 1);
            if !before.get(start..).unwrap_or_default().trim_start().starts_with('#') {
                break;
            }
            from = start;
        }
        from
    }
}

fn key_lines(table: &dyn TableLike, path: &mut Vec<String>, found: &mut Vec<KeyLine>) {
    for (name, item) in table.iter() {
        path.push(name.into());
        match item {
            Item::Table(table) => key_lines(table, path, found),
            Item::ArrayOfTables(tables) => tables.iter().for_each(|table| key_lines(table, path, found)),
            item => {
                let key = table.key(name).and_then(|key| key.span());
                if let (Some(key), Some(value)) = (key, item.span()) {
                    found.push(KeyLine { path: path.clone(), span: key.start..value.end });
                }
            }
        }
        path.pop();
    }
}

/// Returns the keys in a header.
fn path_of(line: &str) -> Option<Vec<String>> {
    let document = Document::parse(line).ok()?;
    let mut path = Vec::new();
    let mut table = document.as_table();
    while let Some((name, item)) = table.iter().next() {
        path.push(name.to_string());
        table = match item {
            Item::Table(table) => table,
            Item::ArrayOfTables(tables) => tables.get(0)?,
            _ => return None,
        };
    }
    Some(path)
}

/// Removes lines and the blank lines that only separated them.
fn cut(text: &mut String, block: Range<usize>) {
    let Range { start: mut from, end: mut to } = block;
    let blank: usize = text
        .get(to..)
        .unwrap_or_default()
        .split_inclusive('\n')
        .take_while(|line| is_blank(line))
        .map(str::len)
        .sum();
    let before = text.get(..from).unwrap_or_default();
    if to + blank == text.len() {
        to += blank;
        from = before.trim_end().len();
        from = if from == 0 { 0 } else { line_end(text, from) };
    } else if from == 0 || is_blank(last_line(before)) {
        to += blank;
    }
    text.replace_range(from..to, "");
}

/// Removes a server from `servers = { ... }`.
fn without_member(text: &str, servers: &Item, name: &str, server: &Item) -> Option<String> {
    let mut spans = Vec::new();
    match is_dotted(server) {
        false => spans.push(servers.as_table_like()?.key(name)?.span()?.start..server.span()?.end),
        true => members(server.as_table_like()?, &mut spans),
    }
    spans.sort_by_key(|span| span.start);
    let mut left = text.to_string();
    for span in spans.into_iter().rev() {
        let from = member_start(&left, span.start);
        let rest = left.get(span.end..)?;
        let behind = rest.trim_start();
        if let Some(next) = behind.strip_prefix(',') {
            let to = left.len() - next.trim_start().len();
            left.replace_range(from..to, "");
        } else {
            // The last member: the comma before it goes too.
            let before = left.get(..from)?.trim_end();
            let start = before.strip_suffix(',').map_or(from, |before| before.trim_end().len());
            left.replace_range(start..span.end, "");
        }
    }
    Some(left)
}

/// Collects the values of an inline table with dotted keys.
fn members(table: &dyn TableLike, found: &mut Vec<Range<usize>>) {
    for (name, item) in table.iter() {
        match item.as_table_like().filter(|_| is_dotted(item)) {
            Some(table) => members(table, found),
            None => {
                let key = table.key(name).and_then(|key| key.span());
                found.extend(key.zip(item.span()).map(|(key, value)| key.start..value.end));
            }
        }
    }
}

fn is_dotted(item: &Item) -> bool {
    match item {
        Item::Table(table) => table.is_dotted(),
        Item::Value(Value::InlineTable(table)) => table.is_dotted(),
        _ => false,
    }
}

/// Returns the start of the whole key that contains a part.
fn member_start(text: &str, part: usize) -> usize {
    let before = text.get(..part).unwrap_or_default();
    let start = before.rfind(['\n', '{', ',']).map_or(0, |at| at + 1);
    let gap = before.get(start..).unwrap_or_default();
    start + gap.len() - gap.trim_start().len()
}

fn replaced(text: &str, range: Range<usize>, new: &str) -> String {
    let mut text = text.to_string();
    text.replace_range(range, new);
    text
}

/// Inserts a line at the start of another, or at the end of the text.
fn insert_line(text: &str, at: usize, line: &str) -> String {
    let end = line_ends(text);
    let start = if text.get(..at).is_some_and(|before| before.ends_with('\n') || before.is_empty()) {
        ""
    } else {
        end
    };
    replaced(text, at..at, &format!("{start}{line}{end}"))
}

/// Returns the prevailing line end of a text.
fn line_ends(text: &str) -> &'static str {
    let crlf = text.matches("\r\n").count();
    if crlf * 2 > text.matches('\n').count() { "\r\n" } else { "\n" }
}

fn line_start(text: &str, at: usize) -> usize {
    text.get(..at).and_then(|before| before.rfind('\n')).map_or(0, |at| at + 1)
}

/// Returns the start of the next line, or the end of the text.
fn line_end(text: &str, at: usize) -> usize {
    text.get(at..).and_then(|rest| rest.find('\n')).map_or(text.len(), |end| at + end + 1)
}

fn last_line(text: &str) -> &str {
    text.lines().next_back().unwrap_or_default()
}

fn is_blank(line: &str) -> bool {
    line.trim().is_empty()
}

fn indent_of(line: &str) -> &str {
    line.get(..line.len() - line.trim_start().len()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
