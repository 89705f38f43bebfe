//! `servers.lock`: the hashes that a team has agreed on, beside servers.toml.

use std::{collections::BTreeMap, fmt::Write as _, fs, io, path::Path};

use nonet_base::files;
use nonet_store::PinKind;
use serde::Deserialize;
use serde_json::{Map, Value};
use toml_edit::{Document, Item, Key, TableLike};

/// The longest file, in bytes.
const MAX_BYTES: u64 = 32 << 20;
/// The prefix of hashes in the file.
const PREFIX: &str = "sha256:";

/// The hashes of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LockedServer {
    /// The hash of the instructions.
    pub instructions: Option<String>,
    /// The hashes of the tools, by the names that the server gives.
    pub tools: BTreeMap<String, String>,
    /// The hashes of the prompts.
    pub prompts: BTreeMap<String, String>,
}

/// A whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LockFile {
    /// The format: 1.
    pub version: u32,
    /// The servers by name.
    pub servers: BTreeMap<String, LockedServer>,
}

impl LockedServer {
    /// Returns the hashes of a kind, by name.
    fn of(&self, kind: PinKind) -> Option<&BTreeMap<String, String>> {
        match kind {
            PinKind::Instructions => None,
            PinKind::Tool => Some(&self.tools),
            PinKind::Prompt => Some(&self.prompts),
        }
    }

    /// Returns the hash of an entry.
    pub fn hash(&self, kind: PinKind, name: &str) -> Option<&str> {
        let hash = match self.of(kind) {
            Some(entries) => entries.get(name),
            None => self.instructions.as_ref(),
        };
        hash.map(|hash| hash.strip_prefix(PREFIX).unwrap_or(hash))
    }

    /// Sets the hash of an entry.
    pub fn set(&mut self, kind: PinKind, name: &str, hash: &str) {
        let hash = format!("{PREFIX}{hash}");
        match kind {
            PinKind::Instructions => self.instructions = Some(hash),
            PinKind::Tool => drop(self.tools.insert(name.into(), hash)),
            PinKind::Prompt => drop(self.prompts.insert(name.into(), hash)),
        }
    }

    /// Returns every entry: its kind and its name.
    pub fn entries(&self) -> impl Iterator<Item = (PinKind, &str)> {
        let named = |kind| self.of(kind).into_iter().flatten().map(move |(name, _)| (kind, name.as_str()));
        let own = self.instructions.iter().map(|_| (PinKind::Instructions, ""));
        own.chain(named(PinKind::Tool)).chain(named(PinKind::Prompt))
    }
}

impl LockFile {
    /// Reads a file; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// Why it cannot be read, in a sentence.
    pub fn read(file: &Path) -> Result<Option<Self>, String> {
        let length = match fs::metadata(file) {
            Ok(data) if data.is_file() => data.len(),
            Ok(_) => return Err("it is not a file".into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        if length > MAX_BYTES {
            return Err(format!("it has {length} bytes; the maximum is {MAX_BYTES}"));
        }
        let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
        let document =
            Document::parse(&text).map_err(|error| error.message().lines().collect::<Vec<_>>().join(", "))?;
        let lock: Self =
            serde_json::from_value(json_of(document.as_table())).map_err(|error| error.to_string())?;
        match lock.version {
            1 => Ok(Some(lock)),
            other => Err(format!("its format is {other}, but this Nonet supports 1")),
        }
    }

    /// Writes the complete file.
    pub fn write(&self, file: &Path) -> io::Result<()> {
        files::replace_as_it_was(file, self.text().as_bytes())
    }

    /// Returns the text of the file: one line per entry, in order.
    fn text(&self) -> String {
        let key = |name: &str| Key::new(name).to_string();
        let mut text =
            String::from("# Written by `nonet trust --lock`. Commit it beside servers.toml.\nversion = 1\n");
        for (name, server) in &self.servers {
            let name = key(name);
            let _ = writeln!(text, "\n[servers.{name}]");
            if let Some(hash) = &server.instructions {
                let _ = writeln!(text, "instructions = \"{hash}\"");
            }
            for (table, entries) in [("tools", &server.tools), ("prompts", &server.prompts)] {
                if !entries.is_empty() {
                    let _ = writeln!(text, "\n[servers.{name}.{table}]");
                }
                for (entry, hash) in entries {
                    let _ = writeln!(text, "{} = \"{hash}\"", key(entry));
                }
            }
        }
        text
    }
}

/// Returns a table as JSON; types that the file never contains become null.
fn json_of(table: &dyn TableLike) -> Value {
    let value = |item: &Item| match (item.as_table_like(), item.as_str(), item.as_integer()) {
        (Some(table), ..) => json_of(table),
        (_, Some(text), _) => text.into(),
        (.., Some(number)) => number.into(),
        _ => Value::Null,
    };
    table.iter().map(|(key, item)| (key.to_string(), value(item))).collect::<Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_reads_as_it_was_written() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join(nonet_config::LOCK_FILE);
        assert_eq!(LockFile::read(&file), Ok(None));
        let mut lock = LockFile { version: 1, ..LockFile::default() };
        let server = lock.servers.entry("my.notes".into()).or_default();
        server.set(PinKind::Tool, "read", "aa");
        server.set(PinKind::Tool, "a \"tool\"\n", "bb");
        server.set(PinKind::Instructions, "", "cc");
        server.set(PinKind::Prompt, "sum", "dd");
        lock.write(&file).expect("writable");
        insta::assert_snapshot!(fs::read_to_string(&file).expect("readable"));
        let read = LockFile::read(&file).expect("readable").expect("there");
        assert_eq!(read, lock);
        assert_eq!(read.servers["my.notes"].hash(PinKind::Tool, "read"), Some("aa"));
        assert_eq!(read.servers["my.notes"].entries().count(), 4);
        for bad in ["version = 2\n", "<<<<<<< ours\n", "version = 1\n[servers.a]\ntool = 1\n", ""] {
            fs::write(&file, bad).expect("writable");
            assert!(LockFile::read(&file).is_err(), "{bad}");
        }
    }
}
