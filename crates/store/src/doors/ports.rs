//! The ports at which this user's gateways listen: each has a file in the state folder that its gateway
//! locks, so that the system frees the port however the gateway ends.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use nonet_base::files;

/// How long another process may hold the lock: one that asks whether the port is a door.
const PATIENCE: Duration = Duration::from_millis(500);

/// The port of a door, until dropped.
#[derive(Debug)]
pub struct DoorPort(#[expect(dead_code, reason = "it holds the lock")] File);

fn file(state: &Path, port: u16) -> PathBuf {
    state.join("ports").join(port.to_string())
}

/// Makes a port known as a gateway's, so that no sandbox's proxy connects to it. Blocks.
///
/// # Errors
///
/// If the state folder cannot be written to.
pub fn take_port(state: &Path, port: u16) -> io::Result<DoorPort> {
    let file = file(state, port);
    if let Some(folder) = file.parent() {
        files::private_folder(folder)?;
    }
    files::lock_within(files::lock_file(&file)?, PATIENCE).map(DoorPort)
}

/// Whether a gateway of this user listens at a port of this machine. Blocks.
#[cfg(target_os = "linux")]
pub fn is_door(state: &Path, port: u16) -> bool {
    let open = files::open_file(&file(state, port));
    open.is_ok_and(|open| matches!(open.try_lock_shared(), Err(std::fs::TryLockError::WouldBlock)))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_a_door_while_its_gateway_holds_it() {
        let state = tempfile::tempdir().expect("a folder");
        assert!(!is_door(state.path(), 8931));
        let port = take_port(state.path(), 8931).expect("it is free");
        assert!(is_door(state.path(), 8931) && !is_door(state.path(), 8930));
        drop(port);
        assert!(!is_door(state.path(), 8931));
    }
}
