//! The last known lists on disk, so that tools can be found before their servers have started, and
//! while they are down.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use nonet_base::{files, text::hex};
use nonet_config::{RestSettings, ServerSettings, Transport};
use nonet_servers::catalog::Listing;
use sha2::{Digest, Sha256};

/// The longest list that is kept, in bytes.
const MAX_BYTES: u64 = 64 << 20;
/// How many lists are kept; beyond that, the oldest are removed.
const MOST_LISTS: usize = 500;

/// Returns the path of a server's list. The path depends on the server's command or address, so a different
/// server under the same name never shows the old server's tools.
pub fn path(folder: &Path, name: &str, settings: &ServerSettings) -> PathBuf {
    let mut hash = Sha256::new();
    match &settings.transport {
        Transport::Stdio { command, args, cwd, .. } => {
            hash.update(format!("{command}\0{args:?}\0{cwd:?}"));
        }
        Transport::Http { url, .. } => hash.update(url),
        Transport::Rest(rest) => {
            let RestSettings { openapi, base_url, operations, endpoints, .. } = &**rest;
            hash.update(format!("{openapi:?}\0{base_url:?}\0{operations:?}\0{endpoints:?}"));
        }
    }
    let digest = hex(&hash.finalize()[..6]);
    folder.join("lists").join(format!("{name}-{digest}.json"))
}

/// Reads the last known list of a server.
pub fn read(folder: &Path, name: &str, settings: &ServerSettings) -> Option<Listing> {
    let path = path(folder, name, settings);
    if fs::metadata(&path).ok()?.len() > MAX_BYTES {
        return None;
    }
    let bytes = fs::read(&path).ok()?;
    match serde_json::from_slice(&bytes) {
        Ok(listing) => Some(listing),
        Err(error) => {
            tracing::warn!(server = name, %error, "the kept list cannot be read and is not used");
            None
        }
    }
}

/// Stores a list. Writes a separate file and renames it, so that no reader sees a partial list.
pub fn write(folder: &Path, name: &str, settings: &ServerSettings, listing: &Listing) -> io::Result<()> {
    let path = path(folder, name, settings);
    files::replace_private(&path, &serde_json::to_vec(listing)?)?;
    prune(path.parent().unwrap_or(folder), MOST_LISTS)
}

/// Replaces a list that was read, and keeps the time at which its server returned it.
pub fn correct(folder: &Path, name: &str, settings: &ServerSettings, listing: &Listing) -> io::Result<()> {
    let path = path(folder, name, settings);
    let listed = fs::metadata(&path)?.modified()?;
    files::replace_private(&path, &serde_json::to_vec(listing)?)?;
    fs::File::options().append(true).open(path)?.set_modified(listed)
}

/// Removes all but the newest files of a folder. A file that another gateway has just removed is not an
/// error.
fn prune(folder: &Path, most: usize) -> io::Result<()> {
    let mut files: Vec<(SystemTime, PathBuf)> = fs::read_dir(folder)?
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    if files.len() > most {
        files.sort_unstable_by(|a, b| b.cmp(a));
        for (_, file) in files.drain(most..) {
            let _ = fs::remove_file(file);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_oldest_lists_go_when_there_are_too_many() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for age in 0..6 {
            let file = fs::File::create(folder.path().join(format!("{age}.json"))).expect("writable");
            file.set_modified(nonet_base::clock::system_time() - Duration::from_secs(age * 60))
                .expect("a time");
        }
        prune(folder.path(), 4).expect("readable");
        let mut left: Vec<String> = fs::read_dir(folder.path())
            .expect("readable")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        left.sort();
        assert_eq!(left, ["0.json", "1.json", "2.json", "3.json"]);
    }
}
