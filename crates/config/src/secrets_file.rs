//! The file `secrets.env` beside servers.toml: one `NAME=value` per line, readable only by its owner.
//!
//! This room knows names, values and their notation, but not their purpose. `config` reads the file for
//! `${VAR}`; `hosts` and `cli` add to it. The file is replaced in one step and is never readable by others in
//! between.

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::{Path, PathBuf},
};

use nonet_base::files;

use crate::keyring::is_name;

/// The name of the file.
pub const NAME: &str = "secrets.env";

/// The maximum size of the file, in bytes.
const MAX_BYTES: usize = 1 << 20;
const HEADER: &str = "\
# Secrets for `${NAME}` in the servers.toml of this folder: one NAME=value a line, never expanded again.
# A value in double quotes is read as JSON, a value in single quotes literally. Keep this file private.
";

/// A `secrets.env` as read, with later changes.
#[derive(Clone, Default)]
pub struct SecretsFile {
    path: PathBuf,
    /// The file's content when it was read; `None` if there was no file.
    before: Option<String>,
    text: String,
    values: BTreeMap<String, String>,
    /// The unreadable lines, which are kept unchanged.
    pub faults: Vec<LineFault>,
    /// Whether anyone but the owner may read or write the file.
    pub is_open: bool,
}

/// An unreadable line. Contains nothing of the line itself, which may be a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineFault {
    /// The line's number, from 1.
    pub line: usize,
    /// What is wrong with it, without a full stop.
    pub message: String,
    /// What to do.
    pub remedy: &'static str,
}

/// Returns the path of the `secrets.env` that belongs to a servers.toml.
pub fn beside(servers_toml: &Path) -> PathBuf {
    servers_toml.with_file_name(NAME)
}

impl SecretsFile {
    /// Reads a file. A missing file counts as empty.
    pub fn read(path: &Path) -> io::Result<Self> {
        let empty = Self { path: path.into(), ..Self::default() };
        let data = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(empty),
            data => data?,
        };
        let text = whole(path)?;
        let mut read = Self { before: Some(text.clone()), text, is_open: is_open(&data), ..empty };
        read.parse();
        Ok(read)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// Returns every name with its value.
    pub fn values(&self) -> &BTreeMap<String, String> {
        &self.values
    }

    /// Sets a name, replacing an earlier value. Nothing is written before [`SecretsFile::write`].
    pub fn set(&mut self, name: &str, value: &str) {
        let line = format!("{name}={}\n", written(value));
        if self.text.trim().is_empty() {
            self.text = HEADER.into();
        }
        let last = self.lines_of(name).into_iter().next_back();
        let mut text = String::new();
        for (index, old) in self.text.split_inclusive('\n').enumerate() {
            match last {
                Some(last) if index == last => text.push_str(&line),
                _ if is_line_of(old, name) => {}
                _ => text.push_str(old),
            }
        }
        if last.is_none() {
            if !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(&line);
        }
        self.text = text;
        self.parse();
    }

    /// Removes a name. Returns whether the name existed.
    pub fn remove(&mut self, name: &str) -> bool {
        let was_there = !self.lines_of(name).is_empty();
        self.text = self.text.split_inclusive('\n').filter(|line| !is_line_of(line, name)).collect();
        self.parse();
        was_there
    }

    /// Writes the file in one step, readable only by its owner, unless another program has changed it since
    /// it was read.
    pub fn write(&self) -> io::Result<()> {
        let now = match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            _ => Some(whole(&self.path)?),
        };
        if now != self.before {
            return Err(io::Error::other("another program has just changed it; try again"));
        }
        files::ensure_writable(&self.path)?;
        replace(&self.path, Some(&self.text))
    }

    /// Restores the file's content as it was read.
    pub fn restore(&self) -> io::Result<()> {
        replace(&self.path, self.before.as_deref())
    }

    /// Returns whether the file existed when it was read.
    pub fn was_there(&self) -> bool {
        self.before.is_some()
    }

    fn lines_of(&self, name: &str) -> Vec<usize> {
        let lines = self.text.split_inclusive('\n').enumerate();
        lines.filter(|(_, line)| is_line_of(line, name)).map(|(index, _)| index).collect()
    }

    fn parse(&mut self) {
        self.values.clear();
        self.faults.clear();
        for (index, line) in self.text.trim_start_matches('\u{feff}').lines().enumerate() {
            match entry(line) {
                Ok(None) => {}
                Ok(Some((name, value))) => {
                    if self.values.insert(name.into(), value).is_some() {
                        let message = format!("`{name}` is set twice; this line wins");
                        let remedy = "Remove one of the lines.";
                        self.faults.push(LineFault { line: index + 1, message, remedy });
                    }
                }
                Err((message, remedy)) => {
                    self.faults.push(LineFault { line: index + 1, message: message.into(), remedy });
                }
            }
        }
    }
}

/// Shows only the names.
impl fmt::Debug for SecretsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.values.keys().collect();
        f.debug_struct("SecretsFile").field("path", &self.path).field("names", &names).finish_non_exhaustive()
    }
}

/// Returns the name and value of a line, or its fault and the remedy.
fn entry(line: &str) -> Result<Option<(&str, String)>, (&'static str, &'static str)> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let line = line.strip_prefix("export ").unwrap_or(line);
    let Some((name, value)) = line.split_once('=') else {
        return Err((
            "this line is not `NAME=value`",
            "Write one NAME=value per line; comments start with `#`.",
        ));
    };
    let name = name.trim();
    if !is_name(name) {
        let remedy = "A name may contain only letters, digits and `_`, and must not start with a digit.";
        return Err(("the text before `=` is not a name", remedy));
    }
    let value = value.trim();
    let quoted = match value.chars().next() {
        Some('"') => serde_json::from_str(value).ok(),
        Some('\'') => value[1..].strip_suffix('\'').map(Into::into),
        _ => Some(value.to_string()),
    };
    match quoted {
        Some(value) if !value.contains('\0') => Ok(Some((name, value))),
        _ => {
            let remedy = "Close the quotes; in double quotes escape as in JSON: `\\\"`, `\\n`.";
            Err(("the quoted value is invalid", remedy))
        }
    }
}

fn is_line_of(line: &str, name: &str) -> bool {
    let line = line.trim_start_matches('\u{feff}');
    matches!(entry(line), Ok(Some((own, _))) if own == name)
}

/// Returns a value in the notation that [`entry`] reads back.
fn written(value: &str) -> String {
    let plain = !value.is_empty()
        && value.trim() == value
        && !value.starts_with(['"', '\''])
        && !value.contains(char::is_control);
    if plain { value.into() } else { serde_json::Value::from(value).to_string() }
}

fn whole(path: &Path) -> io::Result<String> {
    let bytes = files::read_at_most(path, MAX_BYTES).map_err(|error| match error.kind() {
        io::ErrorKind::FileTooLarge => io::Error::new(io::ErrorKind::FileTooLarge, "it is longer than 1 MiB"),
        _ => error,
    })?;
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not text in UTF-8"))
}

fn replace(path: &Path, text: Option<&str>) -> io::Result<()> {
    let Some(text) = text else { return fs::remove_file(path) };
    // A link stays a link.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    files::replace_private(&path, text.as_bytes())
}

#[cfg(unix)]
fn is_open(data: &fs::Metadata) -> bool {
    std::os::unix::fs::MetadataExt::mode(data) & 0o077 != 0
}

/// Returns false, because a Windows user's profile folder is closed to others.
#[cfg(not(unix))]
fn is_open(_: &fs::Metadata) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> SecretsFile {
        let mut file = SecretsFile { text: text.into(), ..SecretsFile::default() };
        file.parse();
        file
    }

    #[test]
    fn lines_are_read_as_they_are_meant() {
        let check = |line: &str, expected: Option<&str>| {
            let file = of(line);
            assert_eq!(file.get("A"), expected, "{line}");
            assert_eq!(file.faults, [], "{line}");
        };
        check("A=b", Some("b"));
        check("\u{feff}A = b c # d \r\n", Some("b c # d"));
        check("export A=b=c", Some("b=c"));
        check("A=", Some(""));
        check("A=${B}$C", Some("${B}$C"));
        check(r#"A="b\n\"c\" ""#, Some("b\n\"c\" "));
        check(r"A='b\n'", Some(r"b\n"));
        check("# A=b\n\n  ", None);
    }

    #[test]
    fn what_cannot_be_read_is_reported_with_its_line_and_without_the_value() {
        let file = of("A=1\nsk-s3cr3t\n\nB C=s3cr3t\nD=\"s3cr3t\nE='s3cr3t\nA=2\n1F=s3cr3t\n=s3cr3t");
        let lines: Vec<_> = file.faults.iter().map(|fault| fault.line).collect();
        assert_eq!(lines, [2, 4, 5, 6, 7, 8, 9]);
        assert!(!format!("{:?}{file:?}", file.faults).contains("s3cr3t"));
        assert_eq!(file.get("A"), Some("2"));
    }

    #[test]
    fn every_value_is_read_back() {
        let mut file = of("# mine\nODD LINE\nA=old\nB=b");
        for value in ["x", "", " x", "'x'", "\"x", "a\nb\tc", "#x", "${A}", "é\u{1f600}", "a=b", "\\n"] {
            file.set("A", value);
            assert_eq!((file.get("A"), file.get("B")), (Some(value), Some("b")), "{}", file.text);
            file.set("NEW", value);
            assert_eq!(file.get("NEW"), Some(value), "{}", file.text);
            assert!(file.text.starts_with("# mine\nODD LINE\nA="), "{}", file.text);
        }
        assert!(file.remove("A") && !file.remove("A"));
        assert_eq!(file.get("A"), None);
        let mut twice = of("A=1\nA=2\n");
        twice.set("A", "3");
        assert_eq!(twice.text, "A=3\n");
    }

    #[test]
    fn a_file_is_its_owners_and_is_not_overwritten_unseen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new").join(NAME);
        let mut file = SecretsFile::read(&path).unwrap();
        file.set("A", "1");
        file.write().unwrap();
        assert_eq!(SecretsFile::read(&path).unwrap().get("A"), Some("1"));
        // This copy was read before another program changed the file.
        assert!(file.write().unwrap_err().to_string().contains("another program"));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            let mut open = SecretsFile::read(&path).unwrap();
            assert!(open.is_open);
            open.set("B", "2");
            open.write().unwrap();
            assert_eq!(mode(&path), 0o600);
        }
        file.restore().unwrap();
        assert!(!path.exists());
        let left: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn what_is_no_small_text_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        assert!(SecretsFile::read(folder.path()).is_err());
        fs::write(&path, vec![b'#'; 2 << 20]).unwrap();
        assert!(SecretsFile::read(&path).unwrap_err().to_string().contains("1 MiB"));
        fs::write(&path, [0xff]).unwrap();
        assert!(SecretsFile::read(&path).unwrap_err().to_string().contains("UTF-8"));
    }
}
