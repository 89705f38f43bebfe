//! Finds the local sockets of other programs in folders that a sandbox shows. Who may use a socket is up to
//! the program behind it, which takes a sandboxed program for its user.

use std::{
    collections::{BTreeSet, VecDeque},
    fs,
    path::{Path, PathBuf},
};

/// How many entries of the folders are looked at. The system's list of sockets has no such bound, but lacks
/// those that were bound by a relative path or in a container.
const MOST_ENTRIES: usize = 20_000;
/// The most sockets.
const MOST: usize = 1_000;

/// Returns the sockets in these folders by their real paths, except those that `is_named`.
pub(super) fn below<'a>(
    shown: impl Iterator<Item = &'a PathBuf>,
    is_named: impl Fn(&Path) -> bool,
) -> BTreeSet<PathBuf> {
    let shown: BTreeSet<PathBuf> = shown.filter_map(|path| fs::canonicalize(path).ok()).collect();
    if shown.is_empty() {
        return BTreeSet::new();
    }
    let listed = fs::read("/proc/net/unix").unwrap_or_default();
    let listed = String::from_utf8_lossy(&listed);
    let paths = listed.lines().filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..])));
    let live = paths.filter_map(|path| fs::canonicalize(path).ok());
    let live = live.filter(|path| path.ancestors().any(|folder| shown.contains(folder)));
    let mut found: BTreeSet<PathBuf> = live.filter(|path| is_socket(path)).collect();
    let mut folders: VecDeque<PathBuf> = shown.into_iter().collect();
    let mut left = MOST_ENTRIES;
    while let Some(folder) = folders.pop_front() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if left == 0 {
                folders.clear();
                break;
            }
            left -= 1;
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push_back(entry.path()),
                Ok(kind) if !kind.is_file() && !kind.is_symlink() && is_socket(&entry.path()) => {
                    found.insert(entry.path());
                }
                _ => {}
            }
        }
    }
    found.into_iter().filter(|path| !is_named(path)).take(MOST).collect()
}

fn is_socket(path: &Path) -> bool {
    #[cfg(unix)]
    return fs::symlink_metadata(path)
        .is_ok_and(|found| std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()));
    #[cfg(not(unix))]
    {
        let _ = path;
        false
    }
}
