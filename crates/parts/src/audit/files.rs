//! The files: one chain of files for each gateway running at the same time, and where a chain continues after
//! a restart.
//!
//! A gateway takes the first chain with a free lock. The system releases a lock when its process ends, so the
//! next gateway continues the chain of a killed one. A file is named after its chain and its first line:
//! `audit-1-000000000001.jsonl`.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use nonet_base::files::{append_file, lock_file, open_file, private_folder};
use serde_json::{Value, json};

use super::line::{self, ChainHead, ChainKey, LineFlaw};

/// How many gateways can write at the same time.
const MAX_CHAINS: u32 = 256;
/// The file with the key for hashes of params.
const KEY_FILE: &str = "params.key";
/// The length of that key in bytes.
pub(super) const KEY: usize = 32;

/// How much of a file is read to find its end, in bytes. Lines are far shorter.
const TAIL: u64 = 1 << 20;

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

/// Takes a chain that no other gateway writes and whose end this key fits. Returns the chain, its lock and
/// its end.
pub(super) fn take_chain(folder: &Path, key: &ChainKey) -> io::Result<(u32, File, ChainEnd)> {
    private_folder(folder)?;
    for chain in 1..=MAX_CHAINS {
        let lock = lock_file(&folder.join(format!("audit-{chain}.lock")))?;
        match lock.try_lock() {
            Ok(()) => {
                let end = end_of(folder, chain, key)?;
                if !end.needs_other_key {
                    return Ok((chain, lock, end));
                }
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::other(format!("{MAX_CHAINS} gateways write to it already")))
}

/// Takes the lock of an own chain again, if its file was removed.
pub(super) fn lock_again(folder: &Path, chain: u32) -> Option<File> {
    let lock = lock_file(&folder.join(format!("audit-{chain}.lock"))).ok()?;
    lock.try_lock().is_ok().then_some(lock)
}

#[derive(Debug, Default)]
pub(super) struct ChainEnd {
    pub head: ChainHead,
    /// The last file, and the length of its whole lines.
    pub file: Option<(PathBuf, u64)>,
    /// The torn last line of the file, if a crash has left one.
    pub torn: Option<Vec<u8>>,
    /// Whether the last line lacks only its newline.
    pub lacks_newline: bool,
    /// Whether the last whole line is not as it was written.
    pub is_damaged: bool,
    /// Whether the last whole line was written with a key that this gateway does not have.
    pub needs_other_key: bool,
}

/// The end of a file: the offset of its first whole line, and the lines.
fn tail(path: &Path) -> io::Result<(u64, Vec<u8>)> {
    let mut file = open_file(path)?;
    let begin = file.metadata()?.len().saturating_sub(TAIL);
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = Vec::new();
    file.take(2 * TAIL).read_to_end(&mut bytes)?;
    let torn = match begin {
        0 => 0,
        _ => bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |first| first + 1),
    };
    Ok((begin + torn as u64, bytes.split_off(torn)))
}

/// Returns the heads of all chains but one, as a line of that one records them: [`super::verify()`] misses a
/// chain, or an end of a chain, that another chain has seen.
pub(super) fn heads(folder: &Path, own: u32, key: &ChainKey) -> Value {
    let mut chains: Vec<u32> = chain_files(folder)
        .unwrap_or_default()
        .into_iter()
        .map(|file| file.chain)
        .filter(|chain| *chain != own)
        .collect();
    chains.dedup();
    let head = |chain: u32| {
        let head = end_of(folder, chain, key).ok()?.head;
        (head.seq > 0).then(|| json!({ "chain": chain, "last": head.seq, "hash": head.hash }))
    };
    chains.into_iter().filter_map(head).collect()
}

/// Finds the end of a chain.
pub(super) fn end_of(folder: &Path, chain: u32, key: &ChainKey) -> io::Result<ChainEnd> {
    let mut files = chain_files(folder)?;
    files.retain(|file| file.chain == chain);
    let mut end = ChainEnd::default();
    for (at, file) in files.iter().rev().enumerate() {
        let (begin, bytes) = tail(&file.path)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let rest = &bytes[whole..];
        if at == 0 {
            let length = |bytes: usize| begin + bytes as u64;
            if let Ok(place) = line::read(rest, key) {
                end.lacks_newline = true;
                end.head = ChainHead { seq: place.seq, hash: place.hash };
                end.file = Some((file.path.clone(), length(bytes.len())));
                return Ok(end);
            }
            end.torn = (!rest.is_empty()).then(|| rest.to_vec());
            end.file = Some((file.path.clone(), length(whole)));
        }
        for line in bytes[..whole].split(|byte| *byte == b'\n').rev().filter(|line| !line.is_empty()) {
            match line::read(line, key) {
                Ok(place) => {
                    end.head = ChainHead { seq: place.seq, hash: place.hash };
                    return Ok(end);
                }
                Err(why) => {
                    end.needs_other_key |=
                        !end.is_damaged && matches!(why, LineFlaw::NeedsKey | LineFlaw::OtherKey);
                }
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
        open_file(&path)?.read_exact(&mut key).map(|()| key)
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
    append_file(path)
}

/// Makes the names in a folder survive a loss of power. Some systems cannot do that, and do not need to.
pub(super) fn sync_folder(folder: &Path) {
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}
