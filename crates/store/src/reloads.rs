//! The files in the state folder through which `nonet reload` and the running gateways of a servers.toml
//! communicate.
//!
//! A gateway that a client has started over stdio has no socket, but it has its state folder. There, each
//! gateway of a servers.toml has a file that it locks while it runs, and a file with the result of its last
//! reload. A request is a single file, replaced whole. This room knows files, not the contents of a
//! servers.toml.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

use nonet_base::{files, text::hex};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The name of the file with the request.
pub const REQUEST: &str = "request.json";
/// The largest file accepted, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// The most gateways considered.
const MAX_GATEWAYS: usize = 1_000;

/// The reload files of one servers.toml.
#[derive(Clone, Debug)]
pub struct ReloadDesk {
    folder: PathBuf,
}

/// A request to read the servers.toml now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadRequest {
    /// Distinguishes the request from others.
    pub id: String,
    /// The hash of the text that the user accepts, whatever it loses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept: Option<String>,
    /// The hash of the text that the gateway must be using for `accept` to count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

impl ReloadRequest {
    /// Creates a request; `accept` is the text that the user accepts.
    pub fn new(accept: Option<&str>) -> Self {
        let id = uuid::Uuid::new_v4().simple().to_string();
        Self { id, accept: accept.map(text_hash), from: None }
    }

    /// Creates a request for an edit of a known text, on behalf of the user.
    pub fn of_edit(before: &str, after: &str) -> Self {
        Self { from: Some(text_hash(before)), ..Self::new(Some(after)) }
    }
}

/// The result of a gateway's last reload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReloadAnswer {
    /// The gateway's process.
    pub pid: u32,
    /// The last request that the gateway has read.
    pub request: Option<String>,
    /// The report to its clients; null before the first reload.
    pub outcome: Value,
}

/// Returns the hash by which a text is accepted.
pub fn text_hash(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

impl ReloadDesk {
    /// Returns the desk of a servers.toml in a state folder.
    pub fn of(state: &Path, config: &Path) -> Self {
        let config = fs::canonicalize(config).unwrap_or_else(|_| config.into());
        let digest = Sha256::digest(config.as_os_str().as_encoded_bytes());
        Self { folder: state.join("reloads").join(hex(&digest[..8])) }
    }

    /// Returns the folder of the files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Registers a gateway of this process. Blocks.
    ///
    /// # Errors
    ///
    /// If the folder cannot be written to.
    pub fn open(&self) -> io::Result<ReloadPost> {
        files::private_folder(&self.folder)?;
        let name = format!("{}-{}", std::process::id(), uuid::Uuid::new_v4().simple());
        let lock = self.folder.join(format!("{name}.lock"));
        // Renamed only once locked: an unlocked file counts as a leftover of an ended gateway.
        let unlocked = lock.with_extension("new");
        let file = files::lock_file(&unlocked)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::ErrorKind::WouldBlock.into(),
            TryLockError::Error(error) => error,
        })?;
        fs::rename(&unlocked, &lock)?;
        let post = ReloadPost {
            desk: self.clone(),
            lock,
            answer: self.folder.join(format!("{name}.json")),
            _file: file,
        };
        post.answer(None, Value::Null)?;
        Ok(post)
    }

    /// Asks all gateways. Blocks.
    ///
    /// # Errors
    ///
    /// If the folder cannot be written to.
    pub fn ask(&self, request: &ReloadRequest) -> io::Result<()> {
        files::replace_private(&self.folder.join(REQUEST), &serde_json::to_vec(request)?)
    }

    /// Returns the last request. Blocks.
    pub fn request(&self) -> Option<ReloadRequest> {
        let bytes = files::read_at_most(&self.folder.join(REQUEST), MAX_BYTES).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Returns the result of each running gateway's last reload, and removes the files of ended gateways.
    /// Blocks.
    pub fn answers(&self) -> Vec<ReloadAnswer> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return Vec::new() };
        let locks = entries.flatten().map(|entry| entry.path());
        let locks = locks.filter(|path| path.extension().is_some_and(|end| end == "lock")).take(MAX_GATEWAYS);
        let mut answers: Vec<ReloadAnswer> = locks.filter_map(|lock| answer_of(&lock)).collect();
        answers.sort_by_key(|answer| answer.pid);
        answers
    }
}

fn answer_of(lock: &Path) -> Option<ReloadAnswer> {
    let answer = lock.with_extension("json");
    let held = match files::open_file(lock).map(|file| file.try_lock()) {
        Ok(Err(TryLockError::WouldBlock)) => true,
        Ok(Ok(())) => false,
        Ok(Err(TryLockError::Error(_))) | Err(_) => return None,
    };
    if !held {
        let _ = fs::remove_file(&answer);
        let _ = fs::remove_file(lock);
        return None;
    }
    serde_json::from_slice(&files::read_at_most(&answer, MAX_BYTES).ok()?).ok()
}

/// A running gateway's registration, until dropped.
#[derive(Debug)]
pub struct ReloadPost {
    desk: ReloadDesk,
    lock: PathBuf,
    answer: PathBuf,
    _file: File,
}

impl ReloadPost {
    /// Returns the last request. Blocks.
    pub fn request(&self) -> Option<ReloadRequest> {
        self.desk.request()
    }

    /// Returns the folder of the files.
    pub fn folder(&self) -> &Path {
        self.desk.folder()
    }

    /// Whether the registration was removed, with its folder perhaps. Blocks.
    pub fn is_gone(&self) -> bool {
        !self.lock.exists()
    }

    /// Records the result of a reload, and the request that was read. Blocks.
    ///
    /// # Errors
    ///
    /// If the folder cannot be written to.
    pub fn answer(&self, request: Option<String>, outcome: Value) -> io::Result<()> {
        let answer = ReloadAnswer { pid: std::process::id(), request, outcome };
        files::replace_private(&self.answer, &serde_json::to_vec(&answer)?)
    }
}

impl Drop for ReloadPost {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.answer);
        let _ = fs::remove_file(&self.lock);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn gateways_answer_as_long_as_they_run() {
        let state = tempfile::tempdir().expect("a folder");
        let config = state.path().join("servers.toml");
        fs::write(&config, "").expect("written");
        let desk = ReloadDesk::of(state.path(), &config);
        assert_eq!((desk.request(), desk.answers()), (None, Vec::new()));
        let post = desk.open().expect("a place");
        let request = ReloadRequest::of_edit("a", "b");
        desk.ask(&request).expect("written");
        assert_eq!(post.request().as_ref(), Some(&request));
        post.answer(Some(request.id.clone()), json!({ "kind": "x" })).expect("written");
        let [answer] = &desk.answers()[..] else { panic!("one gateway") };
        assert_eq!((answer.request.as_ref(), &answer.outcome["kind"]), (Some(&request.id), &json!("x")));
        drop(post);
        assert_eq!(desk.answers(), Vec::new());
        // Leftovers of a killed gateway are removed.
        fs::write(desk.folder().join("1-a.lock"), "").expect("written");
        fs::write(desk.folder().join("1-a.json"), "{}").expect("written");
        assert_eq!(desk.answers(), Vec::new());
        assert_eq!(fs::read_dir(desk.folder()).expect("readable").count(), 1, "the request is left");
    }
}
