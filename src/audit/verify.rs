//! Verifies chains, and reads their lines.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
};

use serde::Serialize;
use serde_json::Value;

use super::{
    files::{ChainFile, chain_files},
    line::{self, Broken, Head},
};

/// The longest line that is read, in bytes. Written lines are always shorter.
const MAX_LINE: u64 = 4 << 20;
/// How many torn lines a report lists.
const MAX_TORN: usize = 20;

/// The verification result of one chain.
#[derive(Debug, Default, Serialize)]
pub struct ChainReport {
    /// The number of the chain.
    pub chain: u32,
    /// Its files.
    pub files: usize,
    /// Its lines.
    pub lines: u64,
    /// The number of the first remaining line.
    pub first: u64,
    /// The number of its last line.
    pub last: u64,
    /// The hash of the last line.
    pub hash: String,
    /// Torn lines left by a crash, each by the number of the line that follows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub torn: Vec<u64>,
    /// Calls without a line, because the log could not be written for too long.
    #[serde(skip_serializing_if = "is_zero")]
    pub lost: u64,
    /// Where the chain is broken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broken: Option<Break>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The first place where a chain is broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Break {
    /// The file.
    pub file: PathBuf,
    /// The line in the file, from 1.
    pub line: usize,
    /// What is wrong there.
    pub why: String,
}

/// Reads every chain in a folder, or one file.
///
/// # Errors
///
/// If a file cannot be read.
pub fn verify(place: &Path) -> io::Result<Vec<ChainReport>> {
    let mut chains: BTreeMap<u32, Vec<ChainFile>> = BTreeMap::new();
    if place.is_dir() {
        for file in chain_files(place)? {
            chains.entry(file.chain).or_default().push(file);
        }
    } else {
        let file = ChainFile { chain: 0, first: 0, path: place.into() };
        chains.insert(0, vec![file]);
    }
    chains.into_iter().map(|(chain, files)| verify_chain(chain, &files)).collect()
}

/// The reader of a chain.
struct Reader {
    report: ChainReport,
    head: Option<Head>,
    /// The lines that the first line follows; a later line must record their removal.
    begins_after: Option<Head>,
    at: (PathBuf, usize),
    /// The length of the torn line at the end of the previous file.
    rest: Option<usize>,
}

fn verify_chain(chain: u32, files: &[ChainFile]) -> io::Result<ChainReport> {
    let report = ChainReport { chain, files: files.len(), ..ChainReport::default() };
    let mut reader = Reader { report, head: None, begins_after: None, at: (PathBuf::new(), 0), rest: None };
    for file in files {
        if let Err(why) = reader.file(file)? {
            let (file, line) = reader.at;
            reader.report.broken = Some(Break { file, line, why });
            return Ok(reader.report);
        }
    }
    if let Some(head) = reader.head {
        (reader.report.last, reader.report.hash) = (head.seq, head.hash);
        if reader.rest.is_some() {
            reader.report.torn.push(head.seq + 1);
        }
    }
    if let Some(before) = reader.begins_after.filter(|before| chain > 0 && before.seq > 0) {
        let why = format!(
            "the lines up to {} are missing, and no later line says that they were removed",
            before.seq
        );
        let file = files.first().map(|file| file.path.clone()).unwrap_or_default();
        reader.report.broken = Some(Break { file, line: 1, why });
    }
    Ok(reader.report)
}

impl Reader {
    /// Reads a file. The inner error says what is broken at the reader's position.
    fn file(&mut self, file: &ChainFile) -> io::Result<Result<(), String>> {
        let mut lines = BufReader::new(File::open(&file.path)?);
        self.at = (file.path.clone(), 0);
        loop {
            let mut bytes = Vec::new();
            let read = io::Read::take(&mut lines, MAX_LINE).read_until(b'\n', &mut bytes)?;
            if read == 0 {
                return Ok(Ok(()));
            }
            self.at.1 += 1;
            let is_whole = bytes.pop_if(|last| *last == b'\n').is_some();
            let place = match line::read(&bytes) {
                Ok(place) => place,
                // A torn line comes from a crash if the next line says so.
                Err(_) if !is_whole && bytes.len() as u64 + 1 < MAX_LINE => {
                    if self.rest.is_some() {
                        return Ok(Err("the line before it is incomplete".into()));
                    }
                    self.rest = Some(bytes.len());
                    continue;
                }
                Err(Broken::Unreadable) => return Ok(Err("it is not a line of an audit log".into())),
                Err(Broken::Edited) => {
                    return Ok(Err("it was edited: its hash does not match its content".into()));
                }
            };
            if let Err(why) = self.line(place) {
                return Ok(Err(why));
            }
        }
    }

    fn line(&mut self, place: line::Place) -> Result<(), String> {
        let about = |key: &str| place.about.as_ref().and_then(|about| about.get(key));
        let number = |key: &str| about(key).and_then(Value::as_u64);
        match &self.head {
            None => {
                self.report.first = place.seq;
                let hash = place.prev.clone();
                self.begins_after = Some(Head { seq: place.seq.saturating_sub(1), hash });
            }
            Some(head) if place.seq != head.seq + 1 => {
                return Err(format!(
                    "it is line {} of the chain, but follows line {}: lines are missing, duplicated or out of order",
                    place.seq, head.seq
                ));
            }
            Some(head) if place.prev != head.hash => {
                return Err(format!("it does not follow line {} in its current form", head.seq));
            }
            Some(_) => {}
        }
        let torn = about("torn").and_then(|torn| torn.get("bytes")).and_then(Value::as_u64);
        if let Some(rest) = self.rest.take()
            && torn != u64::try_from(rest).ok()
        {
            return Err("the line before it is incomplete, and it does not say so".into());
        }
        if torn.is_some() && self.report.torn.len() < MAX_TORN {
            self.report.torn.push(place.seq);
        }
        if place.event == "lost" {
            self.report.lost += number("lines").unwrap_or(0);
        }
        if place.event == "removed"
            && let Some(before) = &self.begins_after
            && number("last") >= Some(before.seq)
            && (number("last") != Some(before.seq)
                || about("hash").and_then(Value::as_str) == Some(&before.hash))
        {
            self.begins_after = None;
        }
        self.report.lines += 1;
        self.head = Some(Head { seq: place.seq, hash: place.hash });
        Ok(())
    }
}

/// Whether a chain in a folder, or a file, has a line with this hash.
///
/// # Errors
///
/// If a file cannot be read.
pub fn has_line(place: &Path, hash: &str) -> io::Result<bool> {
    let mut found = false;
    each_line(place, |line| found |= line["hash"] == hash)?;
    Ok(found)
}

/// Passes every line in a folder or in one file to `each`, chain by chain. Skips text that is not a line.
///
/// # Errors
///
/// If a file cannot be read.
pub fn each_line(place: &Path, mut each: impl FnMut(Value)) -> io::Result<()> {
    let files = match place.is_dir() {
        true => chain_files(place)?.into_iter().map(|file| file.path).collect(),
        false => vec![place.to_path_buf()],
    };
    for file in files {
        let mut lines = BufReader::new(File::open(file)?);
        let mut bytes = Vec::new();
        while io::Read::take(&mut lines, MAX_LINE).read_until(b'\n', &mut bytes)? > 0 {
            if let Ok(line) = serde_json::from_slice(&bytes) {
                each(line);
            }
            bytes.clear();
        }
    }
    Ok(())
}
