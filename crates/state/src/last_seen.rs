//! What is known about servers without starting them: when each one last listed its tools, or why it failed.
//!
//! A list file's modification time is the last time its server returned that list. Beside it,
//! `NAME-DIGEST.failed` holds why the command line could not reach a server, so that each command does not
//! wait for a broken server again.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use nonet_base::text::clip;
use nonet_config::ServerSettings;
use nonet_servers::downstream::{ConnectionState, Remedy};
use serde_json::Value;

use crate::{lists, publisher::Publisher};

/// How long a failure counts. Until then, a server without a list is not retried.
const FAILURE_AGE: Duration = Duration::from_secs(600);
/// The longest reason kept, in characters.
const MAX_REASON: usize = 2_000;

/// What is known about one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastSeen {
    /// Time since the server last listed its tools.
    pub listed: Option<Duration>,
    /// Time since the last failure, and the reason, if the server was not reached since.
    pub failed: Option<(Duration, String)>,
}

impl Publisher {
    /// Returns what is known about each enabled server.
    pub fn last_seen(&self) -> BTreeMap<Arc<str>, LastSeen> {
        let now = nonet_base::clock::system_time();
        let age = |time: SystemTime| now.duration_since(time).unwrap_or_default();
        // An edit of the file may have fixed the server.
        let edited = fs::metadata(&self.servers.config().file).and_then(|file| file.modified()).ok();
        let seen = |name: &Arc<str>, settings: &ServerSettings| {
            let Some(folder) = self.folder() else { return LastSeen::default() };
            let list = lists::path(folder, name, settings);
            let listed = modified(&list);
            let failed = modified(&failure_of(&list))
                .filter(|at| age(*at) < FAILURE_AGE && listed.is_none_or(|listed| listed < *at))
                .filter(|at| edited.is_none_or(|edited| edited < *at));
            let failed = failed.and_then(|at| Some((age(at), read_failure(&list)?)));
            LastSeen { listed: listed.map(age), failed }
        };
        let connections = self.servers.connections();
        connections
            .iter()
            .map(|(name, connection)| (name.clone(), seen(name, &connection.settings())))
            .collect()
    }

    /// Counts the tools that each enabled server listed last.
    pub fn last_counts(&self) -> BTreeMap<Arc<str>, usize> {
        let Some(folder) = self.folder() else { return BTreeMap::new() };
        let connections = self.servers.connections();
        let counts = connections.iter().filter_map(|(name, connection)| {
            Some((name.clone(), lists::read(folder, name, &connection.settings())?.tools.len()))
        });
        counts.collect()
    }

    /// Records why a server could not be reached, if it failed.
    pub fn note_failure(&self, server: &str) {
        let Some(connection) = self.servers.connections().get(server).cloned() else { return };
        let reason = match connection.state() {
            ConnectionState::AuthRequired { remedy: Remedy::Login(login), .. } => {
                format!("it requires sign-in: run `{login}`")
            }
            ConnectionState::Down { error, .. } | ConnectionState::AuthRequired { error, .. } => error,
            ConnectionState::Starting => "it did not start in time".into(),
            ConnectionState::Ready { .. } | ConnectionState::Stopped => return,
        };
        let Some(folder) = self.folder() else { return };
        let file = failure_of(&lists::path(folder, server, &connection.settings()));
        let kept = file.parent().map_or(Ok(()), fs::create_dir_all);
        if let Err(error) = kept.and_then(|()| fs::write(&file, clip(&reason, MAX_REASON))) {
            tracing::debug!(server, %error, "could not record the failure");
        }
    }

    /// Marks the kept list of a server as current.
    pub fn note_listed(&self, server: &str) {
        let (Some(folder), Some(connection)) =
            (self.folder(), self.servers.connections().get(server).cloned())
        else {
            return;
        };
        let list = lists::path(folder, server, &connection.settings());
        let touched = fs::File::options().append(true).open(list);
        if let Err(error) = touched.and_then(|list| list.set_modified(nonet_base::clock::system_time())) {
            tracing::debug!(server, %error, "could not update the time of the list");
        }
    }
}

/// Deletes a recorded failure after the user acted on it.
pub fn forget_failure(folder: &Path, server: &str, settings: &ServerSettings) {
    let _ = fs::remove_file(failure_of(&lists::path(folder, server, settings)));
}

fn modified(file: &Path) -> Option<SystemTime> {
    fs::metadata(file).ok()?.modified().ok()
}

fn failure_of(list: &Path) -> PathBuf {
    list.with_extension("failed")
}

fn read_failure(list: &Path) -> Option<String> {
    let file = failure_of(list);
    // A character takes up to four bytes.
    let fits = fs::metadata(&file).ok()?.len() <= 4 * MAX_REASON as u64 + 16;
    fits.then(|| fs::read(&file).ok())?.map(|text| String::from_utf8_lossy(&text).into_owned())
}

/// Returns names and descriptions of the tools that a server listed last, filtered by its settings.
pub fn last_tools(folder: &Path, server: &str, settings: &ServerSettings) -> Vec<(String, String)> {
    let tools = lists::read(folder, server, settings).map(|listing| listing.tools).unwrap_or_default();
    let text = |tool: &Value, key: &str| tool.get(key).and_then(Value::as_str).map(String::from);
    let shown = |name: &str| {
        let allowed = settings.allowed_tools.as_ref().is_none_or(|allowed| allowed.matches(name));
        allowed && !settings.blocked_tools.catches_own(name)
    };
    let named = tools.iter().filter_map(|tool| {
        let name = text(tool, "name").filter(|name| shown(name))?;
        Some((name, text(tool, "description").unwrap_or_default()))
    });
    named.collect()
}
