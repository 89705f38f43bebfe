//! Paths in a config: `~/` is the home folder; other paths are relative to the file's folder.

use std::path::{Path, PathBuf};

use super::expand::Env;

/// The name of the lock file.
pub const LOCK_FILE: &str = "servers.lock";

/// Returns the path of the `servers.lock` that belongs to a servers.toml.
pub fn lock_file_beside(servers_toml: &Path) -> PathBuf {
    servers_toml.with_file_name(LOCK_FILE)
}

/// The base of relative paths.
pub(super) struct Paths {
    folder: PathBuf,
    home: Option<PathBuf>,
}

impl Paths {
    /// Accepts a file path relative to the working directory.
    pub(crate) fn new(file: &Path, env: Env) -> Self {
        let file = std::path::absolute(file).unwrap_or_else(|_| file.into());
        let folder = file.parent().map(Path::to_path_buf).unwrap_or_default();
        Self { folder, home: home(env) }
    }

    /// Returns the absolute path.
    pub(crate) fn resolve(&self, path: &Path) -> PathBuf {
        let path = match (path.strip_prefix("~"), &self.home) {
            (Ok(rest), Some(home)) => home.join(rest),
            _ => self.folder.join(path),
        };
        // Drops `./` and a trailing slash.
        path.components().collect()
    }

    /// Resolves a program: a path becomes absolute, a bare name is left to `PATH`.
    pub(crate) fn program(&self, command: &str) -> String {
        if command.contains(std::path::is_separator) {
            self.resolve(command.as_ref()).to_string_lossy().into_owned()
        } else {
            command.into()
        }
    }
}

/// Returns the user's home folder.
pub(super) fn home(env: Env) -> Option<PathBuf> {
    env("HOME").or_else(|| env("USERPROFILE")).filter(|home| !home.is_empty()).map(PathBuf::from)
}
