//! The last known lists on disk, so that tools can be found before their servers have started, and
//! while they are down.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use crate::{
    catalog::Listing,
    config::{Server, Transport},
};

/// The longest list that is kept, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// Where a server's list is kept: it depends on what is run, so that another server under the same
/// name never shows the tools of the old one.
fn path(folder: &Path, name: &str, settings: &Server) -> PathBuf {
    let mut hash = Sha256::new();
    match &settings.transport {
        Transport::Stdio { command, args, cwd, .. } => {
            hash.update(format!("{command}\0{args:?}\0{cwd:?}"));
        }
        Transport::Http { url, .. } => hash.update(url),
    }
    let digest: String = hash.finalize()[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    folder.join("lists").join(format!("{name}-{digest}.json"))
}

/// The list of a server as it was last seen.
pub fn read(folder: &Path, name: &str, settings: &Server) -> Option<Listing> {
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

/// Keeps a list. Written beside and renamed, so that no reader ever sees a part of it.
pub fn write(folder: &Path, name: &str, settings: &Server, listing: &Listing) -> io::Result<()> {
    let path = path(folder, name, settings);
    let parent = path.parent().unwrap_or(folder);
    fs::create_dir_all(parent)?;
    let beside = path.with_extension(format!("{}.tmp", std::process::id()));
    fs::write(&beside, serde_json::to_vec(listing)?)?;
    fs::rename(&beside, &path)
}
