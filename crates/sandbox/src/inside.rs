//! Which processes of this machine are inside a sandbox: the descendants of a helper's first process. A
//! process cannot leave them, because an orphan becomes a child of that first process.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    path::Path,
};

use super::SANDBOX_COMMAND;

/// Returns whether a sandboxed process holds a socket, or one that hides its open files may. Blocks.
pub(super) fn holds_socket(inode: u64) -> bool {
    let parents: HashMap<u32, u32> = processes().filter_map(|id| Some((id, parent(id)?))).collect();
    let helpers: HashSet<u32> = parents.keys().copied().filter(|id| is_helper(*id)).collect();
    if helpers.is_empty() {
        return false;
    }
    let is_inside = |id: &u32| {
        let mut above = std::iter::successors(Some(*id), |id| parents.get(id).copied().filter(|id| *id > 1));
        // The helper and the first process inside are Nonet's own.
        above.by_ref().take(2).all(|id| !helpers.contains(&id)) && above.any(|id| helpers.contains(&id))
    };
    let wanted = format!("socket:[{inode}]");
    parents.keys().filter(|id| is_inside(id)).any(|id| holds(*id, &wanted).unwrap_or(true))
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the parent of a process; none if the process has ended.
fn parent(id: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name before may contain anything, brackets and spaces included.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(1)?.parse().ok()
}

fn is_helper(id: u32) -> bool {
    let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(1) == Some(SANDBOX_COMMAND.as_bytes())
}

/// Returns whether a process has an open file of this name; false for a process that has ended.
fn holds(id: u32, wanted: &str) -> io::Result<bool> {
    let ended = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let files = match fs::read_dir(format!("/proc/{id}/fd")) {
        Err(error) if ended(&error) => return Ok(false),
        files => files?,
    };
    for file in files {
        match file.and_then(|file| fs::read_link(file.path())) {
            Ok(name) if name == Path::new(wanted) => return Ok(true),
            Err(error) if !ended(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(false)
}
