//! The files: one chain of files for each gateway running at the same time, and where a chain continues after a
//! restart.
//!
//! A gateway takes the first chain with a free lock. The system releases a lock when its process ends, so the next
//! gateway continues the chain of a killed one. A file is named after its chain and its first line:
//! `audit-1-000000000001.jsonl`.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use super::line::{self, Head};
use crate::files::{lock_file, private, private_folder};

/// How many gateways can write at the same time.
const MAX_CHAINS: u32 = 256;
/// The file with the key for hashes of params.
const KEY_FILE: &str = "params.key";
/// The length of that key in bytes.
pub(super) const KEY: usize = 32;

/// A file of a chain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainFile {
    /// The number of the chain.
    pub chain: u32,
    /// The number of its first line.
    pub first: u64,
    /// Where it is.
    pub path: PathBuf,
}

/// Returns the files of all chains in a folder, in order.
pub fn chain_files(folder: &Path) -> io::Result<Vec<ChainFile>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let numbers = name.strip_prefix("audit-").and_then(|name| name.strip_suffix(".jsonl"));
        if let Some((chain, first)) = numbers.and_then(|numbers| numbers.split_once('-'))
            && let (Ok(chain), Ok(first)) = (chain.parse(), first.parse())
        {
            files.push(ChainFile { chain, first, path });
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the path of a chain's file that begins with this line.
pub(super) fn path_of(folder: &Path, chain: u32, first: u64) -> PathBuf {
    folder.join(format!("audit-{chain}-{first:012}.jsonl"))
}

/// Takes a chain that no other gateway writes. Returns the chain and its lock.
pub(super) fn take_chain(folder: &Path) -> io::Result<(u32, File)> {
    private_folder(folder)?;
    for chain in 1..=MAX_CHAINS {
        let lock = lock_file(&folder.join(format!("audit-{chain}.lock")))?;
        match lock.try_lock() {
            Ok(()) => return Ok((chain, lock)),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::other(format!("{MAX_CHAINS} gateways write to it already")))
}

/// The end of a chain.
#[derive(Debug, Default)]
pub(super) struct End {
    pub head: Head,
    /// The last file, and the length of its whole lines.
    pub file: Option<(PathBuf, u64)>,
    /// The torn last line of the file, if a crash has left one.
    pub torn: Option<Vec<u8>>,
    /// Whether the last line lacks only its newline.
    pub lacks_newline: bool,
    /// Whether the last whole line is not as it was written.
    pub is_damaged: bool,
}

/// Finds the end of a chain.
pub(super) fn end_of(folder: &Path, chain: u32) -> io::Result<End> {
    let mut files = chain_files(folder)?;
    files.retain(|file| file.chain == chain);
    let mut end = End::default();
    for (at, file) in files.iter().rev().enumerate() {
        let bytes = fs::read(&file.path)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let rest = &bytes[whole..];
        if at == 0 {
            let length = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
            if let Ok(place) = line::read(rest) {
                end.lacks_newline = true;
                end.head = Head { seq: place.seq, hash: place.hash };
                end.file = Some((file.path.clone(), length(bytes.len())));
                return Ok(end);
            }
            end.torn = (!rest.is_empty()).then(|| rest.to_vec());
            end.file = Some((file.path.clone(), length(whole)));
        }
        for line in bytes[..whole].split(|byte| *byte == b'\n').rev().filter(|line| !line.is_empty()) {
            if let Ok(place) = line::read(line) {
                end.head = Head { seq: place.seq, hash: place.hash };
                return Ok(end);
            }
            end.is_damaged = true;
        }
    }
    Ok(end)
}

/// Returns the key for hashes of params, and creates it if there is none.
pub(super) fn key(folder: &Path) -> io::Result<[u8; KEY]> {
    private_folder(folder)?;
    let path = folder.join(KEY_FILE);
    let read = || {
        let mut key = [0; KEY];
        File::open(&path)?.read_exact(&mut key).map(|()| key)
    };
    match read() {
        Ok(key) => return Ok(key),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut made = tempfile::NamedTempFile::new_in(folder)?;
    let halves = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()];
    halves.iter().try_for_each(|half| made.write_all(half.as_bytes()))?;
    made.as_file().sync_all()?;
    // Of two gateways that start at once, only one creates the key.
    match made.persist_noclobber(&path) {
        Ok(_) => read(),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => read(),
        Err(error) => Err(error.error),
    }
}

/// Opens a file for appending.
pub(super) fn open(path: &Path) -> io::Result<File> {
    private(OpenOptions::new().append(true).create(true)).open(path)
}

/// Makes the names in a folder survive a loss of power. Some systems cannot do that, and do not need to.
pub(super) fn sync_folder(folder: &Path) {
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}
