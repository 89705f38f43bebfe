//! Vectors on disk, so that only the first start pays for embedding.
//!
//! One append-only file per model: a header, then records of equal size. Truncated or damaged records are
//! skipped, never trusted. Knows keys and vectors, not texts or models.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File, OpenOptions},
    io::{self, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use sha2::{Digest, Sha256};

/// The key of a content.
pub type ContentKey = [u8; 16];

/// Returns the key of a content: the first sixteen bytes of the SHA-256 over its parts.
pub(super) fn key<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> ContentKey {
    let mut hash = Sha256::new();
    parts.into_iter().for_each(|part| hash.update(part));
    let hash: [u8; 32] = hash.finalize().into();
    hash.first_chunk::<16>().copied().unwrap_or_default()
}

/// The start of each file; the digit is the format version.
const MAGIC: [u8; 8] = *b"nonetvc1";
/// Magic, then the vector length as u32.
const HEADER: usize = MAGIC.len() + 4;
const CHECKSUM: usize = 8;
/// The most records in a file before it is compacted: about 300 MB at 384 numbers each.
const MOST_RECORDS: usize = 200_000;
/// A model's file is deleted after this time without use.
const UNUSED: Duration = Duration::from_secs(90 * 24 * 60 * 60);
/// Longer vectors mean a damaged header: no model produces them.
const LONGEST_VECTOR: usize = 65_536;

/// The vectors of one model. Cheap to create. Each operation reopens the file, so several processes can share
/// it, and one of them can replace it.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    file: PathBuf,
    most: usize,
}

impl Cache {
    pub(super) fn new(folder: &Path, fingerprint: &str) -> Cache {
        Cache { file: folder.join(format!("vectors-{fingerprint}.bin")), most: MOST_RECORDS }
    }

    pub(super) fn path(&self) -> &Path {
        &self.file
    }

    /// Marks the file as used today and deletes files of models that were not used for a long time.
    pub(super) fn tidy(&self) {
        let now = nonet_base::clock::system_time();
        if let Ok(file) = File::options().append(true).open(&self.file) {
            let _ = file.set_modified(now);
        }
        let Some(entries) = self.file.parent().and_then(|folder| fs::read_dir(folder).ok()) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let is_cache = name.to_str().is_some_and(|name| name.starts_with("vectors-"));
            let modified = entry.metadata().and_then(|data| data.modified());
            let unused = modified.is_ok_and(|at| now.duration_since(at).is_ok_and(|age| age > UNUSED));
            if is_cache && unused && entry.path() != self.file {
                tracing::info!(file = %entry.path().display(), "removed the vectors of a model that is no longer used");
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Returns the vectors of those keys that the file holds.
    pub(super) fn read(&self, wanted: &HashSet<ContentKey>) -> io::Result<HashMap<ContentKey, Arc<[f32]>>> {
        let mut found = HashMap::new();
        let file = match File::open(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
            opened => opened?,
        };
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let Some(length) = read_header(&mut reader)? else { return Ok(found) };
        let mut record = vec![0; record_size(length)];
        let mut damaged = 0;
        while read_record(&mut reader, &mut record)? {
            match parse_record(&record) {
                Some((key, vector)) if wanted.contains(&key) => {
                    found.insert(key, vector.collect());
                }
                Some(_) => {}
                None => damaged += 1,
            }
        }
        if damaged > 0 {
            tracing::warn!(file = %self.file.display(), damaged, "skipped damaged records of the vector cache");
        }
        Ok(found)
    }

    /// Appends vectors of equal length. `in_use` says which records to keep if the file is compacted.
    pub(super) fn append(
        &self,
        new: &[(ContentKey, Arc<[f32]>)],
        in_use: &dyn Fn(&ContentKey) -> bool,
    ) -> io::Result<()> {
        let Some((_, first)) = new.first() else { return Ok(()) };
        if let Some(folder) = self.file.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(&self.file)?;
        // Held until `file` is closed: one writer among all processes.
        file.lock()?;
        let size = self.repair(&mut file, first.len())?;

        let mut bytes = Vec::with_capacity(new.len() * record_size(first.len()));
        for (key, vector) in new.iter().filter(|(_, vector)| vector.len() == first.len()) {
            write_record(&mut bytes, key, vector);
        }
        file.write_all(&bytes)?;
        if (size + bytes.len()) / record_size(first.len()) > self.most {
            self.compact(&mut file, in_use)?;
        }
        Ok(())
    }

    /// Truncates the file after the last whole record and returns its size in bytes.
    fn repair(&self, file: &mut File, length: usize) -> io::Result<usize> {
        let size = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        file.seek(SeekFrom::Start(0))?;
        if size < HEADER || read_header(file)? != Some(length) {
            if size > 0 {
                tracing::warn!(file = %self.file.display(), "not a vector cache of this model; starting a new one");
            }
            file.set_len(0)?;
            file.write_all(&MAGIC)?;
            file.write_all(&u32::try_from(length).unwrap_or(0).to_le_bytes())?;
            return Ok(HEADER);
        }
        let torn = (size - HEADER) % record_size(length);
        if torn > 0 {
            tracing::warn!(file = %self.file.display(), bytes = torn, "dropped a truncated record of the vector cache");
            file.set_len((size - torn) as u64)?;
        }
        Ok(size - torn)
    }

    /// Replaces the file with a smaller one: the records in use and the newest others, half of what fits. A
    /// process that is still appending to the old file only loses what it appended.
    fn compact(&self, file: &mut File, in_use: &dyn Fn(&ContentKey) -> bool) -> io::Result<()> {
        file.seek(SeekFrom::Start(0))?;
        let mut reader = BufReader::with_capacity(1 << 20, &*file);
        let Some(length) = read_header(&mut reader)? else { return Ok(()) };
        let mut record = vec![0; record_size(length)];
        let mut keys = Vec::new();
        while read_record(&mut reader, &mut record)? {
            keys.push(parse_record(&record).map(|(key, _)| key));
        }
        let mut kept: HashSet<ContentKey> =
            keys.iter().flatten().filter(|key| in_use(key)).copied().collect();
        for key in keys.iter().rev().flatten() {
            if kept.len() >= self.most / 2 {
                break;
            }
            kept.insert(*key);
        }

        let mut target = io::BufWriter::new(nonet_base::files::beside(&self.file)?);
        reader.seek(SeekFrom::Start(0))?;
        let mut header = [0; HEADER];
        reader.read_exact(&mut header)?;
        target.write_all(&header)?;
        while read_record(&mut reader, &mut record)? {
            // Removed once written, so each key occurs once in the new file.
            if parse_record(&record).is_some_and(|(key, _)| kept.remove(&key)) {
                target.write_all(&record)?;
            }
        }
        let written = target.into_inner().map_err(io::IntoInnerError::into_error)?;
        nonet_base::files::persist(written, &self.file, None)
    }
}

fn record_size(length: usize) -> usize {
    size_of::<ContentKey>() + length * size_of::<f32>() + CHECKSUM
}

/// Returns the vector length, or `None` if this is not a cache file.
fn read_header(reader: &mut impl Read) -> io::Result<Option<usize>> {
    let mut header = [0; HEADER];
    match reader.read_exact(&mut header) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = header.last_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes)) as usize;
    Ok((header.starts_with(&MAGIC) && (1..=LONGEST_VECTOR).contains(&length)).then_some(length))
}

/// Fills the record; `false` at the end of the file, also after a partial record.
fn read_record(reader: &mut impl Read, record: &mut [u8]) -> io::Result<bool> {
    match reader.read_exact(record) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}

fn parse_record(record: &[u8]) -> Option<(ContentKey, impl Iterator<Item = f32>)> {
    let (body, sum) = record.split_last_chunk::<CHECKSUM>()?;
    if checksum(body) != u64::from_le_bytes(*sum) {
        return None;
    }
    let (key, values) = body.split_first_chunk::<16>()?;
    let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap_or_default());
    Some((*key, values.chunks_exact(4).map(number)))
}

fn write_record(bytes: &mut Vec<u8>, key: &ContentKey, vector: &[f32]) {
    let start = bytes.len();
    bytes.extend_from_slice(key);
    vector.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
    let sum = checksum(&bytes[start..]);
    bytes.extend_from_slice(&sum.to_le_bytes());
}

/// FNV-1a (Fowler, Noll, Vo), eight bytes at a time: only meant to detect torn and zeroed blocks.
fn checksum(bytes: &[u8]) -> u64 {
    let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(0xcbf2_9ce4_8422_2325 ^ bytes.len() as u64, mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u8) -> (ContentKey, Arc<[f32]>) {
        ([number; 16], vec![f32::from(number); 8].into())
    }

    fn cache(folder: &Path) -> Cache {
        Cache::new(folder, "test")
    }

    fn keys(cache: &Cache) -> Vec<u8> {
        let wanted = (0..=255).map(|number| [number; 16]).collect();
        let found = cache.read(&wanted).expect("readable");
        for (key, vector) in &found {
            assert_eq!(**vector, [f32::from(key[0]); 8]);
        }
        let mut keys: Vec<u8> = found.keys().map(|key| key[0]).collect();
        keys.sort_unstable();
        keys
    }

    #[test]
    fn what_was_appended_is_read() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let cache = cache(&folder.path().join("made/when/needed"));
        assert!(keys(&cache).is_empty());
        cache.append(&[record(1), record(2)], &|_| true).expect("written");
        cache.append(&[record(3)], &|_| true).expect("written");
        assert_eq!(keys(&cache), [1, 2, 3]);
    }

    #[test]
    fn a_torn_or_damaged_file_loses_only_what_is_damaged() {
        let check = |damage: &dyn Fn(&mut Vec<u8>), expected: &[u8]| {
            let folder = tempfile::tempdir().expect("temporary folder");
            let cache = cache(folder.path());
            cache.append(&[record(1), record(2)], &|_| true).expect("written");
            let mut bytes = fs::read(cache.path()).expect("readable");
            damage(&mut bytes);
            fs::write(cache.path(), bytes).expect("writable");
            assert_eq!(keys(&cache), expected);
            cache.append(&[record(3)], &|_| true).expect("written");
            assert_eq!(keys(&cache), [expected, &[3]].concat());
        };
        check(&|_| {}, &[1, 2]);
        check(&|bytes| bytes.truncate(bytes.len() - 5), &[1]);
        check(&|bytes| bytes[HEADER + 20] ^= 1, &[2]);
        check(&|bytes| bytes[0] = b'x', &[]);
        check(&|bytes| bytes.truncate(3), &[]);
        check(&|bytes| bytes.clear(), &[]);
    }

    #[test]
    fn a_file_cut_at_any_byte_keeps_every_whole_record_and_can_be_written() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let cache = cache(folder.path());
        cache.append(&[record(1), record(2)], &|_| true).expect("written");
        let whole = fs::read(cache.path()).expect("readable");
        for length in 0..=whole.len() {
            fs::write(cache.path(), &whole[..length]).expect("writable");
            let left: Vec<u8> = (1..=2).take(length.saturating_sub(HEADER) / record_size(8)).collect();
            assert_eq!(keys(&cache), left, "{length} bytes");
            cache.append(&[record(3)], &|_| true).expect("written");
            assert_eq!(keys(&cache), [&left[..], &[3]].concat(), "{length} bytes");
        }
    }

    #[test]
    fn several_writers_lose_nothing() {
        let folder = tempfile::tempdir().expect("temporary folder");
        std::thread::scope(|scope| {
            for writer in 0..4u8 {
                let cache = cache(folder.path());
                scope.spawn(move || {
                    for number in 0..25 {
                        cache.append(&[record(writer * 25 + number)], &|_| true).expect("written");
                    }
                });
            }
        });
        assert_eq!(keys(&cache(folder.path())), (0..100).collect::<Vec<u8>>());
    }

    #[test]
    fn files_of_unused_models_are_removed() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let caches = ["own", "old", "other"].map(|name| Cache::new(folder.path(), name));
        for (cache, days) in caches.iter().zip([200, 100, 10]) {
            cache.append(&[record(1)], &|_| true).expect("written");
            let file = File::options().append(true).open(cache.path()).expect("there");
            file.set_modified(nonet_base::clock::system_time() - Duration::from_secs(days * 86_400))
                .expect("a time");
        }
        caches[0].tidy();
        assert_eq!(caches.each_ref().map(|cache| cache.path().exists()), [true, false, true]);
        let age = fs::metadata(caches[0].path()).and_then(|data| data.modified()).expect("a time").elapsed();
        assert!(age.is_ok_and(|age| age < Duration::from_secs(60)));
    }

    #[test]
    fn a_full_file_keeps_what_is_in_use_and_the_newest() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let cache = Cache { most: 6, ..cache(folder.path()) };
        for number in 1..=7 {
            cache.append(&[record(number)], &|key| key[0] == 2).expect("written");
        }
        assert_eq!(keys(&cache), [2, 6, 7]);
    }
}
