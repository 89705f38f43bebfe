//! TOML: read as JSON, and edited by table entries, so that comments and all other lines stay.
//!
//! An entry owns the comments directly above its header and directly below its last key. Comments that a
//! blank line separates stay where they are. The dotted keys of a table are written together.

use std::{collections::BTreeMap, path::Path};

use nonet_config::toml_value;
use serde_json::{Map, Value};
use toml_edit::{
    Document, DocumentMut, InlineTable, Item, Table, TableLike, Value as Toml,
    visit::{self, Visit},
    visit_mut::{self, VisitMut},
};

use super::{HostFault, edit::ADDRESS, read::KEEP_OFF, text::position};

/// Parses a text, for reading and editing.
pub(super) fn parse(text: &str, file: &Path) -> Result<Document<String>, HostFault> {
    Document::parse(text.to_string()).map_err(|error| {
        let (line, column) = position(text, error.span().unwrap_or_default().start);
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        HostFault::new(format!("this is not TOML: {message}"), KEEP_OFF).within(file).at(line, column)
    })
}

/// Converts TOML to JSON; dates become strings.
pub(super) fn value(item: &Item) -> Value {
    fn table(table: &dyn TableLike) -> Value {
        Value::Object(table.iter().map(|(key, item)| (key.to_string(), value(item))).collect())
    }
    match item {
        Item::None => Value::Null,
        Item::Table(inner) => table(inner),
        Item::ArrayOfTables(tables) => tables.iter().map(|inner| table(inner)).collect(),
        Item::Value(plain) => match plain {
            Toml::String(text) => text.value().as_str().into(),
            Toml::Integer(number) => (*number.value()).into(),
            Toml::Float(number) => (*number.value()).into(),
            Toml::Boolean(truth) => (*truth.value()).into(),
            Toml::Datetime(date) => date.value().to_string().into(),
            Toml::Array(items) => items.iter().map(|item| value(&Item::Value(item.clone()))).collect(),
            Toml::InlineTable(inner) => table(inner),
        },
    }
}

/// Returns the text of an edited document. A last line that stays ends as it did before.
pub(super) fn written(document: &DocumentMut, before: &str) -> String {
    let mut after = document.to_string();
    if !before.ends_with('\n') && after.lines().next_back() == before.lines().next_back() {
        after.truncate(after.trim_end_matches('\n').len());
    }
    after
}

/// Adds an entry at the end of its table, or sets keys of an existing one.
pub(super) fn put(
    document: &mut DocumentMut,
    table: &str,
    (name, entry): (&str, &Map<String, Value>),
    there: Option<&Map<String, Value>>,
) {
    let Some(known) = entry_mut(document, table, name) else {
        let items = entry.iter().map(|(key, value)| (key.as_str(), Item::Value(toml_value(value))));
        return add(document, table, name, items.collect(), "");
    };
    ADDRESS.into_iter().for_each(|key| drop(known.remove(key)));
    for (key, value) in entry.iter().filter(|(key, value)| there.and_then(|it| it.get(*key)) != Some(value)) {
        known.insert(key, Item::Value(toml_value(value)));
    }
}

/// Returns an entry of a table.
pub(super) fn entry_mut<'d>(
    document: &'d mut DocumentMut,
    table: &str,
    name: &str,
) -> Option<&'d mut dyn TableLike> {
    document.get_mut(table)?.as_table_like_mut()?.get_mut(name)?.as_table_like_mut()
}

/// Adds an entry after the last one of its table, below a comment, and creates a missing table.
pub(super) fn add(document: &mut DocumentMut, table: &str, name: &str, mut entry: Table, comment: &str) {
    let is_first = document.as_table().is_empty();
    let there = document.entry(table).or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    // An inline table, `{...}`, cannot contain tables.
    if let Some(there) = there.as_inline_table_mut() {
        there.insert(name, Toml::InlineTable(entry.into_inline_table()));
        return tidy(there);
    }
    let last = headers(there).into_keys().next_back();
    let position = last.or_else(|| Some(headers(document.as_item()).into_keys().next_back()? + 1));
    let (next, gap) = gap_after(document, last);
    let (above, below) = match last {
        Some(_) => below_comments(&gap, next.is_none()),
        None => (&*gap, ""),
    };
    let end = if above.is_empty() || above.ends_with('\n') { "" } else { "\n" };
    let blank =
        if above.is_empty() && is_first || !above.is_empty() && ends_blank(above) { "" } else { "\n" };
    entry.decor_mut().set_prefix(format!("{above}{end}{blank}{comment}"));
    entry.set_position(position);
    let separator = if next.is_some() && !below.lines().next().is_some_and(is_blank) { "\n" } else { "" };
    set_gap(document, next, format!("{separator}{below}"));
    if let Some(there) = document.get_mut(table).and_then(Item::as_table_like_mut) {
        there.insert(name, Item::Table(entry));
    }
}

/// Removes an entry with its sub-tables and its comments, and the blank lines that only separated it.
pub(super) fn remove(document: &mut DocumentMut, table: &str, name: &str) {
    let all = headers(document.as_item());
    let is_headless = document.as_table().get_values().is_empty();
    let Some(there) = document.get_mut(table) else { return };
    let from = there.as_table().and_then(Table::position);
    let Some(entries) = there.as_table_like_mut() else { return };
    let above = above_key(entries, name).to_string();
    let Some(removed) = entries.remove(name) else { return };
    let is_written =
        !there.as_table().is_some_and(|it| it.is_empty() && (it.is_implicit() || it.is_dotted()));
    match there.as_inline_table_mut() {
        Some(inline) => tidy(inline),
        None if is_written => {}
        None => drop(document.remove(table)),
    }
    let own = headers(&removed);
    let (separated, _) = above_comments(&above);
    if own.is_empty() && separated.contains('#') {
        let (next, gap) = gap_after(document, from.or(Some(0)));
        return set_gap(document, next, format!("{separated}{gap}"));
    }
    let is_at_start = |position: &isize| is_headless && all.keys().next() == Some(position);
    // What stays of the lines above a run of the entry's tables, and whether the run begins the file.
    let mut above_run: Option<(&str, bool)> = None;
    for (position, gap) in &all {
        if own.contains_key(position) {
            above_run.get_or_insert_with(|| (above_comments(gap).0, is_at_start(position)));
        } else if let Some((kept, is_first)) = above_run.take() {
            let (_, rest) = below_comments(gap, false);
            set_gap(document, Some(*position), joined(kept, rest, is_first));
        }
    }
    if let Some((kept, is_first)) = above_run {
        let trailing = document.trailing().as_str().unwrap_or_default();
        let (_, rest) = below_comments(trailing, true);
        let text = joined(kept, rest, is_first);
        let text = if is_blank(rest) { kept.trim_end() } else { &text };
        let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        document.set_trailing(format!("{text}{end}"));
    }
}

/// Returns an entry with its comments as a document. None if its tables are not one run of lines.
pub(super) fn extract(document: &DocumentMut, table: &str, name: &str) -> Option<DocumentMut> {
    let entry = document.get(table)?.as_table()?.get(name)?;
    let own = run(document, entry)?;
    let mut part = DocumentMut::new();
    let mut entries = Table::new();
    entries.set_implicit(true);
    entries.insert(name, entry.clone());
    part.insert(table, Item::Table(entries));
    let (first, last) = (*own.keys().next()?, *own.keys().next_back()?);
    set_gap(&mut part, Some(first), above_comments(own.get(&first)?).1.into());
    let (next, gap) = gap_after(document, Some(last));
    part.set_trailing(below_comments(&gap, next.is_none()).0);
    Some(part)
}

/// Replaces an entry with that of another document.
pub(super) fn replace(document: &mut DocumentMut, table: &str, name: &str, part: &DocumentMut) -> Option<()> {
    let own = run(document, document.get(table)?.as_table()?.get(name)?)?;
    let (first, last) = (*own.keys().next()?, *own.keys().next_back()?);
    let mut entry = part.get(table)?.get(name)?.clone();
    let (kept, _) = above_comments(own.get(&first)?);
    let new_first = headers(&entry).into_iter().next();
    let (next, gap) = gap_after(document, Some(last));
    let below = part.trailing().as_str().unwrap_or_default().trim_matches('\n');
    let end = if below.is_empty() { "" } else { "\n" };
    let (_, rest) = below_comments(&gap, next.is_none());
    set_gap(document, next, format!("{below}{end}{rest}"));
    if let Some((position, above)) = new_first {
        let text = Some(format!("{kept}{}", above.trim_start_matches('\n')));
        SetPrefix { position, text }.visit_item_mut(&mut entry);
    }
    SetPosition(first).visit_item_mut(&mut entry);
    *document.get_mut(table)?.get_mut(name)? = entry;
    Some(())
}

/// Returns the line of an entry's first header, from 1.
pub(super) fn line_of(text: &str, table: &str, name: &str) -> Option<usize> {
    let document = Document::parse(text).ok()?;
    let mut starts = Starts(Vec::new());
    starts.visit_item(document.get(table)?.get(name)?);
    Some(position(text, starts.0.into_iter().min()?).0)
}

/// Sets a value; a new one comes first.
pub(super) fn set_first(entry: &mut Item, key: &str, value: Toml) {
    let Some(there) = entry.as_table_like_mut() else { return };
    if let Some(old) = there.get_mut(key).and_then(Item::as_value_mut) {
        let decor = old.decor().clone();
        *old = value;
        *old.decor_mut() = decor;
        return;
    }
    let first = there.iter().next().map(|(first, _)| above_key(there, first)).unwrap_or_default();
    let indent = first.rsplit('\n').next().unwrap_or_default().to_string();
    there.insert(key, Item::Value(value));
    match entry {
        Item::Table(table) => {
            if let Some(mut key) = table.key_mut(key) {
                key.leaf_decor_mut().set_prefix(indent);
            }
            table.sort_values_by(|a, _, b, _| (a.get() != key).cmp(&(b.get() != key)));
        }
        Item::Value(Toml::InlineTable(table)) => {
            table.sort_values_by(|a, _, b, _| (a.get() != key).cmp(&(b.get() != key)));
            tidy(table);
        }
        _ => {}
    }
}

/// Formats an inline table. One with line breaks stays as it is, because it may have comments.
fn tidy(table: &mut InlineTable) {
    if !table.to_string().contains('\n') {
        table.fmt();
    }
}

/// Returns the byte offset of a table's value.
pub(super) fn place(text: &str, table: &str) -> Option<usize> {
    Some(Document::parse(text).ok()?.as_table().get(table)?.span()?.start)
}

/// Returns the headers of an entry by position, if they are one run of lines and nothing of the entry is
/// elsewhere.
fn run(document: &DocumentMut, entry: &Item) -> Option<BTreeMap<isize, String>> {
    let own = headers(entry);
    let (first, last) = (*own.keys().next()?, *own.keys().next_back()?);
    let all = headers(document.as_item());
    let is_whole = !entry.as_table()?.is_dotted() && all.range(first..=last).count() == own.len();
    is_whole.then_some(own)
}

/// Returns the positions of the tables with a header, each with the lines above the header.
fn headers(item: &Item) -> BTreeMap<isize, String> {
    let mut found = Headers(BTreeMap::new());
    found.visit_item(item);
    found.0
}

struct Headers(BTreeMap<isize, String>);

impl<'d> Visit<'d> for Headers {
    fn visit_table(&mut self, table: &'d Table) {
        if let Some(position) = table.position() {
            let above = table.decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default();
            self.0.entry(position).or_insert_with(|| above.into());
        }
        visit::visit_table(self, table);
    }
}

/// The byte offsets of headers.
struct Starts(Vec<usize>);

impl<'d> Visit<'d> for Starts {
    fn visit_table(&mut self, table: &'d Table) {
        self.0.extend(table.position().and(table.span()).map(|span| span.start));
        visit::visit_table(self, table);
    }
}

/// Sets the lines above the first header at a position.
struct SetPrefix {
    position: isize,
    text: Option<String>,
}

impl VisitMut for SetPrefix {
    fn visit_table_mut(&mut self, table: &mut Table) {
        if table.position() == Some(self.position)
            && let Some(text) = self.text.take()
        {
            table.decor_mut().set_prefix(text);
        }
        visit_mut::visit_table_mut(self, table);
    }
}

/// Moves every table to one position, where they keep their order.
struct SetPosition(isize);

impl VisitMut for SetPosition {
    fn visit_table_mut(&mut self, table: &mut Table) {
        if table.position().is_some() {
            table.set_position(Some(self.0));
        }
        visit_mut::visit_table_mut(self, table);
    }
}

/// Returns the first header after a position, or none at the end of the file, and the lines above it.
fn gap_after(document: &DocumentMut, position: Option<isize>) -> (Option<isize>, String) {
    let next =
        headers(document.as_item()).into_iter().find(|(next, _)| position.is_some_and(|it| *next > it));
    match next {
        Some((next, gap)) => (Some(next), gap),
        None => (None, document.trailing().as_str().unwrap_or_default().into()),
    }
}

fn set_gap(document: &mut DocumentMut, next: Option<isize>, text: String) {
    match next {
        Some(position) => SetPrefix { position, text: Some(text) }.visit_document_mut(document),
        None => document.set_trailing(text),
    }
}

/// Returns the lines above the first key of an entry that is a value or has dotted keys.
fn above_key<'t>(table: &'t dyn TableLike, name: &str) -> &'t str {
    let dotted = table.get(name).and_then(Item::as_table_like).filter(|inner| inner.is_dotted());
    if let Some((inner, (first, _))) = dotted.and_then(|inner| Some((inner, inner.iter().next()?))) {
        return above_key(inner, first);
    }
    let decor = table.key(name).map(|key| key.leaf_decor());
    decor.and_then(|decor| decor.prefix()?.as_str()).unwrap_or_default()
}

/// Splits the lines above a header: the comments directly above it are the second part.
fn above_comments(gap: &str) -> (&str, &str) {
    let lines = gap.trim_end_matches([' ', '\t']).split_inclusive('\n').rev();
    let own: usize = lines.take_while(|line| is_comment(line)).map(str::len).sum();
    let indent = gap.len() - gap.trim_end_matches([' ', '\t']).len();
    gap.split_at(gap.len() - indent - own)
}

/// Splits the lines below a key: the comments directly below it are the first part, unless a header follows
/// them directly.
fn below_comments(gap: &str, is_at_end: bool) -> (&str, &str) {
    let own: usize = gap.split_inclusive('\n').take_while(|line| is_comment(line)).map(str::len).sum();
    gap.split_at(if own < gap.len() || is_at_end { own } else { 0 })
}

/// Joins the lines around what was removed. One of two runs of blank lines goes.
fn joined(above: &str, below: &str, is_first: bool) -> String {
    let blank = below.split_inclusive('\n').take_while(|line| is_blank(line)).map(str::len).sum();
    let skipped = if is_first || !above.is_empty() { blank } else { 0 };
    format!("{above}{}", below.get(skipped..).unwrap_or_default())
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with('#')
}

fn is_blank(line: &str) -> bool {
    line.trim().is_empty()
}

fn ends_blank(text: &str) -> bool {
    text.lines().next_back().is_none_or(is_blank)
}

#[cfg(test)]
mod tests;
