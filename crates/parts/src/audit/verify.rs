//! Verifies chains, and reads their lines.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
};

use memchr::memmem;
use nonet_base::files::open_file;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    files::{ChainFile, chain_files},
    line::{self, ChainHead, ChainKey, LineFlaw},
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
    /// Lines that were written before there was a key: only the later lines vouch for them.
    #[serde(skip_serializing_if = "is_zero")]
    pub unkeyed: u64,
    /// Calls without a line, because the log could not be written for too long.
    #[serde(skip_serializing_if = "is_zero")]
    pub lost: u64,
    /// Where the chain is broken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broken: Option<ChainBreak>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The first place where a chain is broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChainBreak {
    /// The file.
    pub file: PathBuf,
    /// The line in the file, from 1.
    pub line: usize,
    /// What is wrong there.
    pub why: String,
}

/// The head of a chain, as a line of another chain has recorded it.
#[derive(Debug)]
struct Sighting {
    head: ChainHead,
    /// Whether the other line has the key.
    is_keyed: bool,
    /// The chain and the number of the other line.
    by: (u32, u64),
}

impl Sighting {
    fn by(&self) -> String {
        format!("line {} of chain {}", self.by.1, self.by.0)
    }
}

/// Reads every chain in a folder, or one file. `key` is the key of the settings.
///
/// # Errors
///
/// If a file cannot be read.
pub fn verify(place: &Path, key: &ChainKey) -> io::Result<Vec<ChainReport>> {
    let mut chains: BTreeMap<u32, Vec<ChainFile>> = BTreeMap::new();
    let mut sightings = BTreeMap::new();
    if place.is_dir() {
        for file in chain_files(place)? {
            chains.entry(file.chain).or_default().push(file);
        }
        for file in chains.values().flatten() {
            find_sightings(file, &mut sightings)?;
        }
        // A chain without any file, which another chain has seen.
        for chain in sightings.keys() {
            chains.entry(*chain).or_default();
        }
    } else {
        let file = ChainFile { chain: 0, first: 0, path: place.into() };
        chains.insert(0, vec![file]);
    }
    let mut seen = |chain| sightings.remove(&chain).unwrap_or_default();
    let report = |(chain, files): (u32, Vec<ChainFile>)| match files.is_empty() {
        true => Ok(gone(place, chain, &seen(chain))),
        false => verify_chain(chain, &files, key, seen(chain)),
    };
    chains.into_iter().map(report).collect()
}

/// Collects the heads of other chains that the lines of a file have recorded, each by its chain. Whether
/// those lines are as they were written is found when their own chain is read.
fn find_sightings(file: &ChainFile, into: &mut BTreeMap<u32, Vec<Sighting>>) -> io::Result<()> {
    #[derive(Deserialize)]
    struct ChainAnchor {
        chain: u32,
        last: u64,
        hash: String,
    }
    let finder = memmem::Finder::new(b"\"chains\":[{");
    // The chain's own report says what is wrong with the file.
    let Ok(open) = open_file(&file.path) else { return Ok(()) };
    let mut lines = BufReader::new(open);
    let mut bytes = Vec::new();
    while io::Read::take(&mut lines, MAX_LINE).read_until(b'\n', &mut bytes)? > 0 {
        if finder.find(&bytes).is_some()
            && let Ok(place) = serde_json::from_slice::<line::ChainPlace>(&bytes)
            && matches!(place.event.as_str(), "start" | "file" | "file_missing")
        {
            let seen = place.about.as_ref().and_then(|about| about.get("chains")).unwrap_or(&Value::Null);
            for seen in Vec::<ChainAnchor>::deserialize(seen).unwrap_or_default() {
                let head = ChainHead { seq: seen.last, hash: seen.hash };
                let sighting = Sighting { head, is_keyed: place.keyed, by: (file.chain, place.seq) };
                into.entry(seen.chain).or_default().push(sighting);
            }
        }
        bytes.clear();
    }
    Ok(())
}

/// Reports a chain whose files are all gone.
fn gone(folder: &Path, chain: u32, sightings: &[Sighting]) -> ChainReport {
    let by = sightings.first().map(Sighting::by).unwrap_or_default();
    let why = format!("it has no file any more, but {by} saw it");
    let broken = Some(ChainBreak { file: folder.into(), line: 0, why });
    ChainReport { chain, broken, ..ChainReport::default() }
}

/// The reader of a chain.
struct Reader<'a> {
    key: &'a ChainKey,
    report: ChainReport,
    head: Option<ChainHead>,
    /// The number of the last line with the key, or for which a line with the key vouches.
    vouched: u64,
    /// What other chains have seen of this one, and has not been found yet.
    sightings: Vec<Sighting>,
    /// The lines that the first line follows; a later line must record their removal.
    begins_after: Option<ChainHead>,
    /// Whether the line before has the key.
    last_is_keyed: bool,
    at: (PathBuf, usize),
    /// The length of the torn line at the end of the previous file.
    rest: Option<usize>,
}

fn verify_chain(
    chain: u32,
    files: &[ChainFile],
    key: &ChainKey,
    sightings: Vec<Sighting>,
) -> io::Result<ChainReport> {
    let report = ChainReport { chain, files: files.len(), ..ChainReport::default() };
    let vouched = sightings.iter().filter(|seen| seen.is_keyed).map(|seen| seen.head.seq).max().unwrap_or(0);
    let at = (PathBuf::new(), 0);
    let mut reader = Reader {
        key,
        report,
        head: None,
        vouched,
        sightings,
        begins_after: None,
        last_is_keyed: false,
        at,
        rest: None,
    };
    for file in files {
        if let Err(why) = reader.file(file)? {
            let (file, line) = reader.at;
            reader.report.broken = Some(ChainBreak { file, line, why });
            return Ok(reader.report);
        }
    }
    if let Some(head) = &reader.head {
        (reader.report.last, reader.report.hash) = (head.seq, head.hash.clone());
        if reader.rest.is_some() {
            reader.report.torn.push(head.seq + 1);
        }
    }
    reader.report.broken = reader.end(files);
    Ok(reader.report)
}

impl Reader<'_> {
    /// Returns what is broken about a chain whose lines are all intact.
    fn end(&self, files: &[ChainFile]) -> Option<ChainBreak> {
        let last = self.report.last;
        let at_end = |why| Some(ChainBreak { file: self.at.0.clone(), line: self.at.1, why });
        let removed = self.begins_after.as_ref().filter(|before| self.report.chain > 0 && before.seq > 0);
        if let Some(before) = removed {
            let why = format!(
                "the lines up to {} are missing, and no later line says that they were removed",
                before.seq
            );
            return Some(ChainBreak { file: files.first()?.path.clone(), line: 1, why });
        }
        if let Some(seen) = self.sightings.iter().find(|seen| seen.head.seq > last) {
            return at_end(format!(
                "the chain ends with line {last}, but {} saw its line {}",
                seen.by(),
                seen.head.seq
            ));
        }
        if self.key.is_set() && last > self.vouched {
            return at_end(format!(
                "no line with the key vouches for line {last}: it was written without the key"
            ));
        }
        None
    }

    /// Reads a file. The inner error says what is broken at the reader's position.
    fn file(&mut self, file: &ChainFile) -> io::Result<Result<(), String>> {
        self.at = (file.path.clone(), 0);
        let mut lines = match open_file(&file.path) {
            Ok(open) => BufReader::new(open),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(Err(error.to_string())),
            Err(error) => return Err(error),
        };
        loop {
            let mut bytes = Vec::new();
            let read = io::Read::take(&mut lines, MAX_LINE).read_until(b'\n', &mut bytes)?;
            if read == 0 {
                return Ok(Ok(()));
            }
            self.at.1 += 1;
            let is_whole = bytes.pop_if(|last| *last == b'\n').is_some();
            let place = match line::read(&bytes, self.key) {
                Ok(place) => place,
                // A torn line comes from a crash if the next line says so.
                Err(_) if !is_whole && bytes.len() as u64 + 1 < MAX_LINE => {
                    if self.rest.is_some() {
                        return Ok(Err("the line before it is incomplete".into()));
                    }
                    self.rest = Some(bytes.len());
                    continue;
                }
                Err(LineFlaw::Unreadable) => return Ok(Err("it is not a line of an audit log".into())),
                Err(LineFlaw::Edited) => {
                    return Ok(Err("it was edited: its hash does not match its content".into()));
                }
                Err(LineFlaw::OtherKey) => {
                    return Ok(Err("it was edited, or written with another key".into()));
                }
                Err(LineFlaw::NeedsKey) => {
                    let why = "it was written with a key: name the servers.toml that has `key` in [audit]";
                    return Ok(Err(why.into()));
                }
            };
            if let Err(why) = self.line(place) {
                return Ok(Err(why));
            }
        }
    }

    fn line(&mut self, place: line::ChainPlace) -> Result<(), String> {
        let about = |key: &str| place.about.as_ref().and_then(|about| about.get(key));
        let number = |key: &str| about(key).and_then(Value::as_u64);
        match &self.head {
            None => {
                self.report.first = place.seq;
                let hash = place.prev.clone();
                self.begins_after = Some(ChainHead { seq: place.seq.saturating_sub(1), hash });
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
        match place.keyed {
            true => self.vouched = self.vouched.max(place.seq),
            false if self.last_is_keyed => {
                return Err("it was written without the key, after a line with it".into());
            }
            false => self.report.unkeyed += u64::from(self.key.is_set()),
        }
        self.last_is_keyed = place.keyed;
        while let Some(at) = self.sightings.iter().position(|seen| seen.head.seq == place.seq) {
            let seen = self.sightings.swap_remove(at);
            if seen.head.hash != place.hash {
                return Err(format!("it is not the line {} that {} saw", place.seq, seen.by()));
            }
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
        self.head = Some(ChainHead { seq: place.seq, hash: place.hash });
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
        let mut lines = BufReader::new(open_file(&file)?);
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
