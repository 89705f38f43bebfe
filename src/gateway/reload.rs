//! Applying a changed configuration while clients are connected.
//!
//! Only changed servers are touched. A server with the same command or address keeps its connection and gets
//! its new settings. A server with another command or address, or one that was removed, is retired once its
//! calls in flight have ended; its replacement starts at once. An unusable file changes nothing.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use notify::{RecursiveMode, Watcher};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Changes, Gateway};
use crate::{
    config::{self, BearerToken, Config, Loaded},
    downstream::Update,
    keyring, secrets_file,
    text::clip,
};

/// How long a file must stay unchanged before it is read: editors write in several steps.
const QUIET: Duration = Duration::from_millis(200);

impl Gateway {
    /// Applies a configuration. Returns what it changed.
    pub async fn reload(self: &Arc<Self>, config: Config) -> Changes {
        let updates = self.publisher.updates();
        self.outward.aim(config.gateway.notify.as_ref(), &config.gateway.inherit_env);
        let (changes, ended) = self.servers.reload(config, updates.as_ref());
        self.tell_of_ended(&ended);
        if let Some(updates) = updates {
            let _ = updates.send(Update::Reconfigured).await;
        }
        changes
    }

    /// Reloads the file whenever the file or `secrets.env` beside it changes, or a keyring it needs is
    /// unlocked, until the gateway stops. `read` loads the file. Watching starts with the call, before the
    /// future is first polled.
    pub fn watch(
        self: Arc<Self>,
        file: PathBuf,
        read: impl Fn() -> Result<Loaded, config::Unusable> + Send + Sync + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (sender, mut events) = mpsc::channel(16);
        let target = file.file_name().map(|name| name.to_os_string());
        let seen = move |event: notify::Result<notify::Event>| {
            let of_file = |event: &notify::Event| {
                !event.kind.is_access()
                    && event
                        .paths
                        .iter()
                        .filter_map(|path| path.file_name())
                        .any(|name| Some(name) == target.as_deref() || name == secrets_file::NAME)
            };
            if event.as_ref().is_ok_and(of_file) {
                // If the queue is full, a reload is already pending.
                let _ = sender.try_send(());
            }
        };
        // Watch the folder, because editors replace files.
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let watcher = notify::recommended_watcher(seen).and_then(|mut watcher| {
            watcher.watch(folder, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        async move {
            let _watcher = match watcher {
                Ok(watcher) => watcher,
                Err(error) => {
                    tracing::warn!(file = %file.display(), %error, "cannot watch the configuration file; restart Nonet to apply changes");
                    return;
                }
            };
            let read = Arc::new(read);
            loop {
                tokio::select! {
                    event = events.recv() => if event.is_none() { return },
                    // The secret may complete a left-out server.
                    () = keyring::answered_late() => {}
                    () = self.servers.life.stop.cancelled() => return,
                }
                while let Ok(Some(())) = tokio::time::timeout(QUIET, events.recv()).await {}
                let read = read.clone();
                match tokio::task::spawn_blocking(move || read()).await {
                    Ok(Ok(loaded)) => self.apply(loaded).await,
                    Ok(Err(error)) => self.announce(json!({
                        "kind": "config_faulty",
                        "message": clip(&error.to_string(), 1_000),
                        "hint": "Nothing was changed. Run `nonet check` to see all faults.",
                    })),
                    Err(_) => return,
                }
            }
        }
    }

    async fn apply(self: &Arc<Self>, mut loaded: Loaded) {
        keep_faulty(&mut loaded, &self.config());
        let faults: Vec<String> = loaded.faults.iter().map(ToString::to_string).collect();
        let changes = self.reload(loaded.config).await;
        if changes == Changes::default() && faults.is_empty() {
            tracing::info!("configuration reloaded; nothing changed");
            return;
        }
        let mut notice = json!({ "kind": "config_changed" });
        if let (Some(notice), Ok(Value::Object(changes))) =
            (notice.as_object_mut(), serde_json::to_value(&changes))
        {
            notice.extend(changes);
        }
        if !faults.is_empty() {
            notice["faults"] = json!(faults);
            notice["hint"] = json!("Entries with a fault keep their old version; new ones are left out.");
        }
        self.announce(notice);
    }

    /// Logs the outcome of a changed file and notifies every session that sees all servers.
    fn announce(&self, notice: Value) {
        match notice["kind"] == "config_faulty" || notice.get("faults").is_some() {
            true => tracing::warn!("{notice}"),
            false => tracing::info!("{notice}"),
        }
        self.sessions.notify_unrestricted(&notice);
    }
}

/// Keeps the old version of entries that have become faulty: a typo must not stop a running server.
fn keep_faulty(loaded: &mut Loaded, old: &Config) {
    fn keep<K: Ord + Clone, V: Clone>(
        new: &mut BTreeMap<K, V>,
        old: &BTreeMap<K, V>,
        name: impl Fn(&K) -> bool,
    ) {
        let before = old.iter().find(|(key, _)| name(key));
        if let Some((key, value)) = before.filter(|(key, _)| !new.contains_key(*key)) {
            new.insert(key.clone(), value.clone());
        }
    }
    for entry in loaded.faults.iter().filter_map(|fault| fault.entry.as_deref()) {
        let Some((table, name)) = entry.split_once('.') else { continue };
        let new = &mut loaded.config;
        match table {
            "servers" => keep(&mut new.servers, &old.servers, |key| key.as_str() == name),
            "categories" => keep(&mut new.categories, &old.categories, |key| key == name),
            "profiles" => {
                keep(&mut new.profiles, &old.profiles, |key| key == name);
                keep_tokens_apart(new, name);
            }
            // The new configuration has the built-in entry of that name instead.
            "clients" => {
                let before = old.clients.get_key_value(name);
                new.clients.extend(before.map(|(name, client)| (name.clone(), client.clone())));
            }
            "apps" => keep(&mut new.apps, &old.apps, |key| key == name),
            _ => {}
        }
    }
    let new = &mut loaded.config;
    new.left_out_apps.retain(|id, _| !new.apps.contains_key(id));
    new.left_out.retain(|name, _| !new.servers.keys().any(|kept| kept.as_str() == name));
}

/// Removes from a kept profile the tokens that the new configuration uses elsewhere.
fn keep_tokens_apart(config: &mut Config, kept: &str) {
    let of_others =
        config.profiles.iter().filter(|(name, _)| *name != kept).flat_map(|(_, other)| &other.tokens);
    let taken: Vec<BearerToken> = config.gateway.tokens.iter().chain(of_others).copied().collect();
    if let Some(profile) = config.profiles.get_mut(kept) {
        config.guarded |= !profile.tokens.is_empty();
        profile.tokens.retain(|token| !taken.contains(token));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_a_client_stays_while_its_entry_has_a_fault() {
        let parse = |text| {
            config::parse(text, Path::new("/etc/servers.toml"), config::Sources::NONE).expect("it is usable")
        };
        let old = parse(
            "[clients.claude-code]\nmax_result_bytes = 5_000\n[clients.mine]\nmatch = ['my-*']\nmax_result_bytes = 6_000\n",
        );
        let mut new = parse(
            "[clients.claude-code]\nmax_result_bytes = 'few'\n[clients.mine]\nmatch = ['my-*']\nmax_results = 1\n",
        );
        assert_eq!(new.faults.len(), 2, "{:?}", new.faults);
        keep_faulty(&mut new, &old.config);
        let known = |client: &str| new.config.limits(client).max_result_bytes;
        assert_eq!((known("claude-code"), known("my-agent")), (5_000, 6_000));
    }
}
