//! Hosts' YAML: parsed whole, edited by lines, so that comments and all other lines stay. Only block style is
//! edited. `edit` verifies each result by reading it again.

use std::{ops::Range, path::Path};

use serde_json::{Map, Value};

use super::{HostFault, YamlServers, edit::ADDRESS};

const STEP: usize = 2;

/// Parses a text as JSON; an empty text is an empty object.
pub(super) fn value(text: &str, file: &Path) -> Result<Value, HostFault> {
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    let read: Result<Value, _> = serde_saphyr::from_str_with_options(text, options);
    match read {
        Ok(Value::Null) => Ok(Value::Object(Map::new())),
        Ok(root @ Value::Object(_)) => Ok(root),
        Ok(_) => {
            let remedy = "A configuration file is one table, `key: value`; nothing was changed.";
            Err(HostFault::new("expected a table", remedy).within(file).at(1, 1))
        }
        Err(_) if text.trim().is_empty() => Ok(Value::Object(Map::new())),
        Err(error) => {
            let message = error.to_string();
            let message = format!("this is not YAML: {}", nonet_base::text::clip(&message, 200));
            let remedy = "Fix the syntax; nothing was changed.";
            let fault = HostFault::new(message, remedy).within(file);
            let place = error.location().and_then(|place| {
                Some((usize::try_from(place.line()).ok()?, usize::try_from(place.column()).ok()?))
            });
            let (line, column) = place.unwrap_or((1, 1));
            Err(fault.at(line, column))
        }
    }
}

/// Returns the byte offset of a top-level key.
pub(super) fn place(text: &str, key: &str) -> Option<usize> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let at = lines
        .iter()
        .position(|line| indent(line) == Some(0) && key_of(line).is_some_and(|it| it.0 == key))?;
    Some(lines[..at].iter().map(|line| line.len()).sum())
}

/// Adds an entry at the end of its table, or sets keys of an existing one. None if the table is not in block
/// style.
pub(super) fn put(
    text: &str,
    table: &str,
    servers: YamlServers,
    (name, entry): (&str, &Map<String, Value>),
    there: Option<&Map<String, Value>>,
) -> Option<String> {
    let mut lines = Lines::of(text);
    let Some(at) = lines.top(table) else {
        lines.0.push(format!("{table}:\n"));
        let end = lines.0.len();
        lines.insert(end, written(STEP, servers, name, entry));
        return Some(lines.0.concat());
    };
    let block = lines.opened(at)?;
    let servers = match lines.0.get(block.start).filter(|_| !block.is_empty()) {
        Some(first) if first.trim_start().starts_with('-') => YamlServers::Listed,
        Some(_) => YamlServers::Named,
        None => servers,
    };
    let inner = lines.0.get(block.start).filter(|_| !block.is_empty()).and_then(|line| indent(line));
    let inner = inner.unwrap_or(STEP);
    let Some(there) = there else {
        lines.insert(block.end, written(inner, servers, name, entry));
        return Some(lines.0.concat());
    };
    let found = lines.entries(&block, inner).into_iter().find(|(known, _)| known == name)?.1;
    lines.set(found, inner, servers, entry, there)?;
    Some(lines.0.concat())
}

/// Removes entries. None if the table is not in block style.
pub(super) fn take(text: &str, table: &str, names: &[&str]) -> Option<String> {
    let mut lines = Lines::of(text);
    let at = lines.top(table)?;
    let block = lines.opened(at)?;
    let inner = indent(lines.0.get(block.start)?)?;
    let is_list = lines.0.get(block.start)?.trim_start().starts_with('-');
    let entries = lines.entries(&block, inner);
    let taken: Vec<_> = entries.iter().filter(|(name, _)| names.contains(&name.as_str())).collect();
    if taken.len() == lines.starts(&block, inner).len() {
        let empty = if is_list { "[]" } else { "{}" };
        lines.0[at] = lines.0[at].replacen(&format!("{table}:"), &format!("{table}: {empty}"), 1);
    }
    for (_, range) in taken.into_iter().rev() {
        lines.0.drain(range.clone());
    }
    Some(lines.0.concat())
}

/// A text as lines, line ends included.
struct Lines(Vec<String>);

impl Lines {
    fn of(text: &str) -> Self {
        let mut lines: Vec<String> = text.split_inclusive('\n').map(Into::into).collect();
        if let Some(last) = lines.last_mut().filter(|last| !last.ends_with('\n')) {
            last.push('\n');
        }
        Self(lines)
    }

    fn insert(&mut self, at: usize, text: String) {
        self.0.splice(at..at, text.split_inclusive('\n').map(String::from));
    }

    /// Returns the line of a top-level key.
    fn top(&self, key: &str) -> Option<usize> {
        let is_it = |line: &String| indent(line) == Some(0) && key_of(line).is_some_and(|it| it.0 == key);
        self.0.iter().position(is_it)
    }

    /// Returns the lines below a top-level key, without trailing blank lines and comments. Removes an empty
    /// value.
    fn opened(&mut self, at: usize) -> Option<Range<usize>> {
        let (key, value) = key_of(&self.0[at])?;
        let (value, comment) = apart(&value);
        match value {
            "" => {}
            "{}" | "[]" | "null" | "~" => {
                let comment = if comment.is_empty() { String::new() } else { format!(" {comment}") };
                self.0[at] = format!("{key}:{comment}\n");
            }
            _ => return None,
        }
        let below = &self.0[at + 1..];
        let is_out = |line: &String| indent(line) == Some(0) && !line.starts_with("- ");
        let length = below.iter().position(is_out).unwrap_or(below.len());
        // Comments above the first entry apply to every entry.
        let first = below[..length].iter().position(|line| indent(line).is_some()).unwrap_or(0);
        let length = if below[..length].iter().all(|line| indent(line).is_none()) { 0 } else { length };
        Some(self.trimmed(at + 1 + first..at + 1 + length.max(first)))
    }

    /// Returns a range without trailing blank lines and comments.
    fn trimmed(&self, mut range: Range<usize>) -> Range<usize> {
        while !range.is_empty() && indent(&self.0[range.end - 1]).is_none() {
            range.end -= 1;
        }
        range
    }

    fn starts(&self, block: &Range<usize>, inner: usize) -> Vec<usize> {
        block.clone().filter(|at| indent(&self.0[*at]) == Some(inner)).collect()
    }

    /// Returns the lines of each member of a block.
    fn members(&self, block: &Range<usize>, inner: usize) -> Vec<Range<usize>> {
        let starts = self.starts(block, inner);
        let ends = starts.iter().skip(1).copied().chain([block.end]);
        starts.iter().zip(ends).map(|(start, end)| self.trimmed(*start..end)).collect()
    }

    /// Returns every named entry.
    fn entries(&self, block: &Range<usize>, inner: usize) -> Vec<(String, Range<usize>)> {
        let name = |range: &Range<usize>| -> Option<String> {
            let first = &self.0[range.start];
            if !first.trim_start().starts_with('-') {
                return Some(key_of(first)?.0);
            }
            let lines = Self(self.0[range.clone()].to_vec()).undashed(inner);
            let inner = indent(&lines.0[0])?;
            let keys = lines.starts(&(0..lines.0.len()), inner);
            let name =
                keys.into_iter().filter_map(|at| key_of(&lines.0[at])).find(|(key, _)| key == "name")?.1;
            match name.starts_with(['"', '\'']) {
                true => Some(scalar(&name)),
                false => Some(apart(&name).0.into()),
            }
        };
        self.members(block, inner).into_iter().filter_map(|range| Some((name(&range)?, range))).collect()
    }

    /// Converts a list item to a table: replaces its `-` with a space.
    fn undashed(mut self, inner: usize) -> Self {
        self.0[0].replace_range(inner..=inner, " ");
        self
    }

    /// Sets keys of an entry.
    fn set(
        &mut self,
        range: Range<usize>,
        inner: usize,
        servers: YamlServers,
        entry: &Map<String, Value>,
        there: &Map<String, Value>,
    ) -> Option<()> {
        let listed = servers == YamlServers::Listed;
        let own = Self(self.0[range.clone()].to_vec());
        let mut own = if listed { own.undashed(inner) } else { own };
        let head = usize::from(!listed);
        if !listed && !apart(&key_of(&own.0[0])?.1).0.is_empty() {
            return None;
        }
        let deeper = own.0[head..].iter().find_map(|line| indent(line))?;
        let member = |own: &Self, key: &str| {
            let members = own.members(&(head..own.0.len()), deeper);
            members.into_iter().find(|range| key_of(&own.0[range.start]).is_some_and(|it| it.0 == key))
        };
        for key in ADDRESS {
            if let Some(range) = member(&own, key) {
                own.0.drain(range);
            }
        }
        for (key, value) in entry.iter().filter(|(key, value)| there.get(*key) != Some(value)) {
            let line = format!("{}{key}: {}\n", " ".repeat(deeper), flow(value));
            let range = member(&own, key).unwrap_or(own.0.len()..own.0.len());
            own.0.splice(range, [line]);
        }
        if listed {
            own.0.first_mut()?.replace_range(inner..=inner, "-");
        }
        self.0.splice(range, own.0);
        Some(())
    }
}

/// Returns an entry as lines.
fn written(inner: usize, servers: YamlServers, name: &str, entry: &Map<String, Value>) -> String {
    let (outer, deeper) = (" ".repeat(inner), " ".repeat(inner + STEP));
    let name = flow(&Value::from(name));
    let mut text = match servers {
        YamlServers::Named => format!("{outer}{name}:\n"),
        YamlServers::Listed => format!("{outer}- name: {name}\n"),
    };
    let is_told = |key: &str| servers == YamlServers::Listed && key == "name";
    for (key, value) in entry.iter().filter(|(key, _)| !is_told(key)) {
        text.push_str(&format!("{deeper}{key}: {}\n", flow(value)));
    }
    text
}

/// Formats a value on one line: as JSON, which is valid YAML, but with plain words unquoted.
fn flow(value: &Value) -> String {
    let is_plain = |text: &str| {
        let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
        text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
            && !words.contains(&text.to_lowercase().as_str())
    };
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(ToString::to_string).collect();
            format!("[{}]", items.join(", "))
        }
        value => value.to_string(),
    }
}

/// Quotes a text.
fn scalar(text: &str) -> String {
    let read: Result<String, _> = serde_saphyr::from_str(text);
    read.unwrap_or_default()
}

/// Splits an unquoted value from its trailing comment.
fn apart(value: &str) -> (&str, &str) {
    let comment = if value.starts_with('#') { Some(0) } else { value.find(" #") };
    let (value, comment) = value.split_at(comment.unwrap_or(value.len()));
    (value.trim(), comment.trim())
}

/// Returns the indentation of a line; none if it is blank or a comment.
fn indent(line: &str) -> Option<usize> {
    let content = line.trim_start_matches(' ');
    (!content.trim().is_empty() && !content.starts_with('#')).then(|| line.len() - content.len())
}

/// Returns the key of a line, and what follows its colon.
fn key_of(line: &str) -> Option<(String, String)> {
    let line = line.trim();
    if let Some(quote) = line.chars().next().filter(|c| *c == '"' || *c == '\'') {
        let end = line[1..].find(quote)? + 1;
        let rest = line[end + 1..].trim_start().strip_prefix(':')?;
        return Some((scalar(&line[..=end]), rest.trim().into()));
    }
    let (key, rest) = match line.strip_suffix(':').filter(|key| !key.contains(": ")) {
        Some(key) => (key, ""),
        None => line.split_once(": ")?,
    };
    Some((key.trim().into(), rest.trim().into()))
}
