//! Converts TOML text to JSON with `${VAR}` and `${keyring:NAME}` expanded; records the position of each key
//! and value.
//!
//! Knows nothing about servers; places are named by JSON pointers.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Range,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};
use toml_edit::{Document, Item, TableLike, Value as Toml};

use super::{
    ConfigFault, LoadError,
    expand::{ExpandError, TextSources, ValueSources, expand},
    explain::quoted,
};
use crate::{keyring, secret_commands::SecretCommand, secrets_file::SecretsFile};

/// The tables whose entries can be left out one by one. Policies are not among them: without a policy, the
/// calls that it should stop would go through.
const TABLES_OF_ENTRIES: [&str; 5] = ["servers", "categories", "profiles", "clients", "apps"];

/// A file as written.
pub(super) struct ConfigSource {
    file: PathBuf,
    /// The whole file, as JSON.
    pub value: Value,
    /// The faults of single values, such as unset variables.
    pub faults: Vec<ConfigFault>,
    /// The secrets from the keyring or `secrets.env`, by the pointer of their entry.
    secrets: BTreeMap<String, BTreeSet<String>>,
    spots: HashMap<String, Spot>,
}

/// The position of a value.
#[derive(Clone)]
struct Spot {
    /// The full dotted key.
    key: String,
    key_at: TextRange,
    value_at: TextRange,
    state: TextState,
}

/// Line and column, from 1.
type TextRange = (usize, usize);

#[derive(Clone, Copy, PartialEq, Eq)]
enum TextState {
    /// Exactly as in the file.
    Plain,
    /// Partly from the environment or the keyring, so possibly a secret.
    Expanded,
    /// Unreadable: gets no further faults.
    Unknown,
}

/// Which part of a spot a fault points to.
#[derive(Clone, Copy)]
pub(super) enum FaultSide {
    Key,
    Value,
}

/// Parses a text; `Err` if it is not TOML. `kept` has the variables that the environment lacks.
pub(super) fn read(
    text: &str,
    file: &Path,
    sources: ValueSources,
    kept: &SecretsFile,
) -> Result<ConfigSource, LoadError> {
    let lines = LineStarts::new(text);
    let document = Document::parse(text).map_err(|error| {
        let span = error.span().unwrap_or_default();
        let (line, column) = lines.at(span.start);
        let mut message = error.message().lines().collect::<Vec<_>>().join(", ");
        let remedy = match text.get(span) {
            Some(key) if message == "duplicate key" => {
                message = format!("duplicate key {}", quoted(key));
                "Remove one of them; the rest of the file was not checked."
            }
            _ => "The file is not valid TOML (are all strings in quotes?); the rest of the file was not checked.",
        };
        let remedy = remedy.into();
        let (file, key) = (file.into(), String::new());
        LoadError::Faults(vec![ConfigFault { file, line, column, key, message, remedy, entry: None }])
    })?;
    let written = ConfigSource {
        file: file.into(),
        value: Value::Null,
        faults: Vec::new(),
        secrets: BTreeMap::new(),
        spots: HashMap::new(),
    };
    let commands = secret_commands_of(document.as_table(), sources, kept);
    let mut walk = Walk { written, lines, sources, kept, commands, is_off: false };
    let root = Spot { key: String::new(), key_at: (1, 1), value_at: (1, 1), state: TextState::Plain };
    walk.written.spots.insert(String::new(), root);
    walk.written.value = walk.table("", document.as_table());
    Ok(walk.written)
}

/// Returns the programs of `[secrets]`. Their texts may have variables, but no secrets of each other. A faulty
/// one is told where the schema is checked.
fn secret_commands_of(
    file: &dyn TableLike,
    sources: ValueSources<'_>,
    kept: &SecretsFile,
) -> BTreeMap<String, SecretCommand> {
    let env = |name: &str| (sources.env)(name).or_else(|| kept.get(name).map(Into::into));
    let texts = TextSources { env: &env, keyring: sources.keyring, secret: &|_, _| None };
    let secrets = file.get("secrets").and_then(Item::as_table_like);
    let entries = secrets.into_iter().flat_map(|secrets| secrets.iter());
    let entries = entries.filter_map(|(name, item)| {
        let table = item.as_table_like()?;
        let mut plain = Map::new();
        for (key, item) in table.iter() {
            let value = match item.as_value()? {
                Toml::String(text) => expand(text.value(), texts).ok()?.into(),
                Toml::Array(words) => {
                    let words = words.iter().map(|word| expand(word.as_str()?, texts).ok().map(Value::from));
                    words.collect::<Option<Vec<_>>>()?.into()
                }
                _ => return None,
            };
            plain.insert(key.into(), value);
        }
        Some((name.to_owned(), serde_json::from_value(plain.into()).ok()?))
    });
    entries.collect()
}

impl ConfigSource {
    /// Creates a fault at the value with this pointer.
    pub(crate) fn fault(
        &self,
        pointer: &str,
        place: FaultSide,
        message: String,
        remedy: String,
    ) -> ConfigFault {
        let (line, column) = self.spots.get(pointer).map_or((1, 1), |spot| match place {
            FaultSide::Key => spot.key_at,
            FaultSide::Value => spot.value_at,
        });
        let key = self.key(pointer).to_string();
        ConfigFault {
            file: self.file.clone(),
            line,
            column,
            key,
            message,
            remedy,
            entry: self.entry(pointer),
        }
    }

    /// Returns the dotted key of a value.
    pub(crate) fn key(&self, pointer: &str) -> &str {
        self.spots.get(pointer).map_or("", |spot| &spot.key)
    }

    /// Returns a table without the keys that faults leave out, such as `gateway.colour`.
    pub(crate) fn without_left_out(&self, table: &str, faults: &[ConfigFault]) -> Option<Value> {
        let mut value = self.value.get(table)?.clone();
        let left_out = |key: &str| {
            faults.iter().any(|fault| fault.key == key && fault.entry.as_ref() == Some(&fault.key))
        };
        let root = join("", table);
        for (pointer, _) in self.spots.iter().filter(|(_, spot)| left_out(&spot.key)) {
            let Some((parent, key)) = pointer.strip_prefix(&root).and_then(|rest| rest.rsplit_once('/'))
            else {
                continue;
            };
            if let Some(fields) = value.pointer_mut(parent).and_then(Value::as_object_mut) {
                fields.shift_remove(&key.replace("~1", "/").replace("~0", "~"));
            }
        }
        Some(value)
    }

    /// Takes a value out of the file.
    pub(crate) fn take(&mut self, pointer: &str) -> Option<Value> {
        let (parent, key) = pointer.rsplit_once('/')?;
        let parent = self.value.pointer_mut(parent)?.as_object_mut()?;
        parent.shift_remove(&key.replace("~1", "/").replace("~0", "~"))
    }

    /// Changes a value, with all tables around it. If the file does not have it, its faults point to
    /// `origin`.
    pub(crate) fn put(
        &mut self,
        pointer: &str,
        origin: &str,
        change: impl FnOnce(Option<Value>) -> Option<Value>,
    ) {
        let Some(value) = change(self.take(pointer)) else { return };
        let mut place = &mut self.value;
        for key in pointer.split('/').skip(1) {
            // A table that is none has a fault of its own.
            let Some(table) = place.as_object_mut() else { return };
            let key = key.replace("~1", "/").replace("~0", "~");
            place = table.entry(key).or_insert_with(|| Map::new().into());
        }
        *place = value;
        if let Some(spot) = self.spots.get(origin).cloned() {
            self.spots.entry(pointer.into()).or_insert(spot);
        }
    }

    /// Returns the entry that contains a pointer, such as `servers.files`, if the entry can be left out.
    pub(crate) fn entry(&self, pointer: &str) -> Option<String> {
        self.entry_pointer(pointer).map(|entry| self.key(entry).to_string())
    }

    /// Whether the value may be shown: it is exactly as in the file, and its key does not usually hold
    /// secrets.
    pub(crate) fn is_showable(&self, pointer: &str) -> bool {
        let mut parts = pointer.split('/').skip(1);
        let secret = match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some("servers"), _, Some("oauth"), key) => key == Some("client_secret"),
            (Some("servers"), _, Some("credentials"), _) => pointer.ends_with("/client_secret"),
            (Some("servers"), _, key, _) => {
                matches!(key, Some("env" | "headers" | "args" | "url" | "openapi" | "base_url" | "setup"))
            }
            (Some("profiles"), _, Some("tokens"), _)
            | (Some("gateway"), Some("tokens" | "notify" | "approve_webhook"), ..) => true,
            (Some("cluster"), Some("redis"), ..) => true,
            (Some("audit"), Some("export"), _, Some("webhook" | "headers")) => true,
            (Some("auth"), key, ..) => key == Some("key") || pointer.ends_with("/client_secret"),
            (Some("secrets"), ..) => true,
            (Some("apps"), _, Some("model"), key) => matches!(key, Some("api_key" | "base_url")),
            _ => false,
        };
        !secret && self.spots.get(pointer).is_some_and(|spot| spot.state == TextState::Plain)
    }

    /// Returns an entry's secrets from the keyring or `secrets.env`.
    pub(crate) fn secrets(&self, entry: &str) -> impl Iterator<Item = &str> {
        self.secrets.get(entry).into_iter().flatten().map(String::as_str)
    }

    /// Whether the value already has a fault that makes further ones pointless.
    pub(crate) fn is_unknown(&self, pointer: &str) -> bool {
        self.spots.get(pointer).is_some_and(|spot| spot.state == TextState::Unknown)
    }

    fn entry_pointer<'a>(&self, pointer: &'a str) -> Option<&'a str> {
        let mut parts = pointer.split('/');
        let (_, table, name) = (parts.next()?, parts.next()?, parts.next()?);
        TABLES_OF_ENTRIES.contains(&table).then(|| &pointer[..table.len() + name.len() + 2])
    }
}

/// Returns the pointer of a member.
pub(super) fn join(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// Formats a key as in TOML: bare if possible.
pub fn written_key(key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !key.is_empty() && key.chars().all(bare) { key.into() } else { Value::from(key).to_string() }
}

struct Walk<'a> {
    written: ConfigSource,
    lines: LineStarts<'a>,
    sources: ValueSources<'a>,
    kept: &'a SecretsFile,
    /// The programs of `[secrets]`.
    commands: BTreeMap<String, SecretCommand>,
    /// Whether the current value is in a disabled entry, whose secrets are not requested and may be missing.
    is_off: bool,
}

impl Walk<'_> {
    fn table(&mut self, pointer: &str, table: &dyn TableLike) -> Value {
        let mut members = Map::new();
        let path = self.written.key(pointer).to_string();
        let outside = self.is_off;
        if self.written.entry_pointer(pointer) == Some(pointer) {
            self.is_off = table.get("enabled").and_then(Item::as_bool) == Some(false);
        }
        for (name, item) in table.iter() {
            let dot = if path.is_empty() { "" } else { "." };
            let key = format!("{path}{dot}{}", written_key(name));
            let at = table.key(name).and_then(|key| key.span());
            members.insert(name.into(), self.item(join(pointer, name), key, at, item));
        }
        self.is_off = outside;
        Value::Object(members)
    }

    fn item(&mut self, pointer: String, key: String, at: Option<Range<usize>>, item: &Item) -> Value {
        self.note(&pointer, key, at, item.span());
        match item {
            Item::None => Value::Null,
            Item::Value(value) => self.value(&pointer, value),
            Item::Table(table) => self.table(&pointer, table),
            Item::ArrayOfTables(tables) => {
                let path = self.written.key(&pointer).to_string();
                let mut items = Vec::new();
                for (index, table) in tables.iter().enumerate() {
                    let element = join(&pointer, &index.to_string());
                    self.note(&element, format!("{path}[{index}]"), table.span(), table.span());
                    items.push(self.table(&element, table));
                }
                Value::Array(items)
            }
        }
    }

    fn value(&mut self, pointer: &str, value: &Toml) -> Value {
        match value {
            Toml::String(text) => self.text(pointer, text.value()),
            Toml::Integer(number) => (*number.value()).into(),
            Toml::Boolean(truth) => (*truth.value()).into(),
            // JSON has no dates; an unquoted one counts as text.
            Toml::Datetime(date) => date.value().to_string().into(),
            Toml::Float(number) => match serde_json::Number::from_f64(*number.value()) {
                Some(number) => number.into(),
                None => {
                    let remedy = "Write a number in digits.".into();
                    self.unreadable(pointer, "must be a finite number".into(), remedy);
                    Value::Null
                }
            },
            Toml::InlineTable(table) => self.table(pointer, table),
            Toml::Array(array) => {
                let path = self.written.key(pointer).to_string();
                let mut items = Vec::new();
                for (index, item) in array.iter().enumerate() {
                    let element = join(pointer, &index.to_string());
                    self.note(&element, format!("{path}[{index}]"), item.span(), item.span());
                    items.push(self.value(&element, item));
                }
                Value::Array(items)
            }
        }
    }

    fn text(&mut self, pointer: &str, text: &str) -> Value {
        let found = RefCell::new(BTreeSet::new());
        let keyring = |name: &str| {
            if self.is_off {
                return Err(keyring::Error::NoSecret(name.into()));
            }
            (self.sources.keyring)(name).inspect(|value| {
                found.borrow_mut().insert(value.clone());
            })
        };
        let env = |name: &str| {
            (self.sources.env)(name).or_else(|| {
                let value = self.kept.get(name)?;
                found.borrow_mut().insert(value.into());
                Some(value.into())
            })
        };
        let folder = self.written.file.parent().unwrap_or(Path::new("")).to_path_buf();
        let secret = |name: &str, path: Option<&str>| {
            let command = self.commands.get(name)?;
            if self.is_off {
                return Some(Err("its entry is off".into()));
            }
            Some((self.sources.program)(command, &folder, path).inspect(|value| {
                found.borrow_mut().insert(value.clone());
            }))
        };
        // A program must not need itself.
        let secret: &dyn Fn(&str, Option<&str>) -> _ =
            if pointer.starts_with("/secrets/") { &|_, _| None } else { &secret };
        let expanded = expand(text, TextSources { env: &env, keyring: &keyring, secret });
        if let Some(entry) = self.written.entry_pointer(pointer) {
            self.written.secrets.entry(entry.into()).or_default().append(&mut found.borrow_mut());
        }
        match expanded {
            Ok(expanded) => {
                if expanded != text {
                    self.mark(pointer, TextState::Expanded);
                }
                expanded.into()
            }
            Err(troubles) => {
                self.mark(pointer, TextState::Unknown);
                for trouble in troubles {
                    // A disabled server need not have its token.
                    if !self.is_off || trouble == ExpandError::Malformed {
                        let remedy = match &trouble {
                            ExpandError::Unset(name) => format!(
                                "Set the variable, store it with `nonet secret set {name} --file`, or give a default: \
                                 `${{{name}:-default}}`."
                            ),
                            trouble => trouble.remedy(),
                        };
                        self.unreadable(pointer, trouble.to_string(), remedy);
                    }
                }
                text.into()
            }
        }
    }

    fn note(
        &mut self,
        pointer: &str,
        key: String,
        key_at: Option<Range<usize>>,
        value_at: Option<Range<usize>>,
    ) {
        let key_at = key_at.or_else(|| value_at.clone()).map_or((1, 1), |span| self.lines.at(span.start));
        let value_at = value_at.map_or(key_at, |span| self.lines.at(span.start));
        self.written.spots.insert(pointer.into(), Spot { key, key_at, value_at, state: TextState::Plain });
    }

    fn mark(&mut self, pointer: &str, state: TextState) {
        if let Some(spot) = self.written.spots.get_mut(pointer) {
            spot.state = state;
        }
    }

    fn unreadable(&mut self, pointer: &str, message: String, remedy: String) {
        self.mark(pointer, TextState::Unknown);
        let fault = self.written.fault(pointer, FaultSide::Value, message, remedy);
        self.written.faults.push(fault);
    }
}

/// Where each line of a text starts.
struct LineStarts<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> LineStarts<'a> {
    fn new(text: &'a str) -> Self {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { text, starts }
    }

    /// Returns the line and column, in characters, of a byte offset, both from 1.
    fn at(&self, offset: usize) -> TextRange {
        let line = self.starts.partition_point(|start| *start <= offset).max(1);
        let start = self.starts[line - 1];
        let before = self.text.get(start..offset.min(self.text.len())).unwrap_or("");
        (line, before.trim_start_matches('\u{feff}').chars().count() + 1)
    }
}
