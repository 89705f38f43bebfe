//! A file's bytes as text with `\n` line ends, and back to bytes without touching unedited lines.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use similar::{ChangeTag, TextDiff};

use super::HostFault;

/// The largest configuration file, in bytes.
const MAX_BYTES: u64 = 64 << 20;
const BOM: &str = "\u{feff}";

/// A file's text.
pub(super) struct Text {
    bom: bool,
    /// With the file's line ends, without the byte order mark.
    written: String,
    /// With `\n` line ends.
    plain: String,
}

impl Text {
    /// Decodes a file's bytes; a missing file counts as empty.
    pub(crate) fn new(bytes: Option<&[u8]>, file: &Path) -> Result<Self, HostFault> {
        let text = std::str::from_utf8(bytes.unwrap_or_default()).map_err(|error| {
            let before = bytes.unwrap_or_default().get(..error.valid_up_to()).unwrap_or_default();
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
            let remedy = "Save the file as UTF-8 in your editor and try again.";
            HostFault::new("this is not UTF-8 text", remedy).within(file).at(line, column)
        })?;
        let (bom, written) = match text.strip_prefix(BOM) {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        Ok(Self { bom, written: written.into(), plain: written.replace("\r\n", "\n") })
    }

    /// Reads a file; a missing file counts as empty.
    pub(crate) fn read(file: &Path) -> Result<Self, HostFault> {
        Self::new(bytes(file)?.as_deref(), file)
    }

    /// Returns the text with `\n` line ends.
    pub(crate) fn plain(&self) -> &str {
        &self.plain
    }

    /// Returns the bytes to write after an edit: unchanged lines keep their line ends, new ones get the
    /// file's prevailing one.
    pub(crate) fn with(&self, edited: &str) -> Vec<u8> {
        let crlf = self.written.matches("\r\n").count();
        let lf = self.plain.matches('\n').count() - crlf;
        let body = if crlf == 0 {
            edited.to_string()
        } else if lf == 0 {
            edited.replace('\n', "\r\n")
        } else {
            self.mixed(edited, if crlf > lf { "\r\n" } else { "\n" })
        };
        let bom = if self.bom { BOM } else { "" };
        [bom.as_bytes(), body.as_bytes()].concat()
    }

    fn mixed(&self, edited: &str, usual: &str) -> String {
        let written: Vec<_> = self.written.split_inclusive('\n').collect();
        let mut body = String::new();
        for change in TextDiff::from_lines(self.plain.as_str(), edited).iter_all_changes() {
            let line = change.value();
            let kept = change.old_index().and_then(|index| written.get(index));
            match (change.tag(), kept, line.strip_suffix('\n')) {
                (ChangeTag::Delete, _, _) => {}
                (ChangeTag::Equal, Some(kept), _) => body.push_str(kept),
                (_, _, Some(line)) => body.extend([line, usual]),
                (_, _, None) => body.push_str(line),
            }
        }
        body
    }
}

/// Returns the line and column, from 1, of a position in a text.
pub(super) fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}

/// Returns the bytes of a file; none if the file does not exist.
pub(super) fn bytes(file: &Path) -> Result<Option<Vec<u8>>, HostFault> {
    let unreadable = |source| {
        let remedy = "Check the file and its permissions.";
        HostFault::new(format!("cannot read the file: {source}"), remedy).within(file).because(source)
    };
    match fs::metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(error)),
        Ok(data) if data.is_file() && data.len() <= MAX_BYTES => fs::read(file).map(Some).map_err(unreadable),
        Ok(_) => {
            let remedy = "Name the file that holds the servers.";
            Err(HostFault::new("this is not a configuration file (a folder, or too long)", remedy)
                .within(file))
        }
    }
}

/// Returns the target of a link, so that the link stays a link.
pub(super) fn behind_links(file: &Path) -> Result<PathBuf, HostFault> {
    match (fs::canonicalize(file), fs::symlink_metadata(file)) {
        (Ok(real), Ok(data)) if data.is_symlink() => Ok(real),
        (Err(source), Ok(_)) => {
            let remedy = "Create the target file, or remove the link.";
            Err(HostFault::new("the link has no target", remedy).within(file).because(source))
        }
        _ => Ok(file.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(before: &str, edit: fn(&str) -> String, expected: &str) {
        let text = Text::new(Some(before.as_bytes()), Path::new("f")).unwrap();
        let after = text.with(&edit(text.plain()));
        assert_eq!(String::from_utf8(after).unwrap(), expected);
    }

    #[test]
    fn lines_that_stay_keep_their_ends() {
        let add = |text: &str| text.replace("b\n", "b\nnew\n");
        check("a\nb\nc", add, "a\nb\nnew\nc");
        check("a\r\nb\r\nc\r\n", add, "a\r\nb\r\nnew\r\nc\r\n");
        check("a\nb\r\nc\r\n", add, "a\nb\r\nnew\r\nc\r\n");
        check("a\r\nb\nc\nd\n", add, "a\r\nb\nnew\nc\nd\n");
        check("\u{feff}a\nb\r\n", |text| text.into(), "\u{feff}a\nb\r\n");
    }

    #[test]
    fn what_is_no_text_is_told_with_its_place() {
        let fault = Text::new(Some(b"{}\n \xff"), Path::new("f")).err().unwrap();
        assert_eq!(
            fault.to_string(),
            "f:2:2: this is not UTF-8 text. Save the file as UTF-8 in your editor and try again."
        );
    }
}
