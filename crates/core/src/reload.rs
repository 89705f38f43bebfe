//! Applying a changed configuration while clients are connected.
//!
//! Only changed servers are touched. A server with the same command or address keeps its connection and gets
//! its new settings. A server with another command or address, or one that was removed, is retired once its
//! calls in flight have ended; its replacement starts at once. An unusable file changes nothing. A file that
//! loses protection (`losses`) changes nothing until the user accepts it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use nonet_api::notice::Notice;
use nonet_base::text::clip;
use nonet_config::{
    self as config, BearerToken, Config, FileTrust, LoadError, LoadedConfig, keyring, losses, secrets_file,
    shell,
};
use nonet_parts::rates::Rates;
use nonet_servers::downstream::ServerUpdate;
use nonet_store::reloads::{self, ReloadDesk, ReloadPost, text_hash};
use notify::{RecursiveMode, Watcher};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::mpsc;

use super::{Gateway, WorldChanges};

/// How long a file must stay unchanged before it is read: editors write in several steps.
const QUIET: Duration = Duration::from_millis(200);
/// How long the user's acceptance of a text is valid before the text is in the file.
const ACCEPTED: Duration = Duration::from_secs(60);

/// The texts of servers.toml: the text in use, and the refused one.
#[derive(Debug, Default)]
pub(super) struct Texts(Mutex<KnownTexts>);

#[derive(Debug, Default)]
struct KnownTexts {
    /// The hash of the text in use.
    used: Option<String>,
    /// Texts that the user has accepted, by hash.
    accepted: Vec<(String, Instant)>,
    /// The hash of the refused text, and what it would lose.
    refused: Option<(String, Vec<String>)>,
}

/// The state of a text of the file.
pub(super) enum TextState {
    /// The text is in use.
    Used,
    /// The text was refused, because it would lose this.
    Refused(Vec<String>),
    /// The text was not read, or a different one has been read since.
    Unread,
}

impl Texts {
    /// Accepts a text, whatever it loses.
    pub(super) fn accept(&self, hash: String) {
        let mut known = self.0.lock();
        known.accepted.retain(|(other, at)| *other != hash && at.elapsed() < ACCEPTED);
        known.accepted.push((hash, Instant::now()));
    }

    /// Returns what the refused text in the file would lose.
    pub(super) fn refused(&self) -> Option<Vec<String>> {
        self.0.lock().refused.as_ref().map(|(_, lost)| lost.clone())
    }

    /// Accepts a text as an edit of the text in use, but of no other text.
    pub(super) fn accept_edit(&self, before: &str, after: String) {
        if self.0.lock().used.as_deref() == Some(before) {
            self.accept(after);
        }
    }

    /// Returns the state of a text.
    pub(super) fn state_of(&self, hash: &str) -> TextState {
        let known = self.0.lock();
        match &known.refused {
            Some((refused, lost)) if refused == hash => TextState::Refused(lost.clone()),
            _ if known.used.as_deref() == Some(hash) => TextState::Used,
            _ => TextState::Unread,
        }
    }

    /// Whether the user has accepted a text. An acceptance works once.
    fn takes(&self, hash: &str) -> bool {
        let mut known = self.0.lock();
        known.accepted.retain(|(_, at)| at.elapsed() < ACCEPTED);
        let at = known.accepted.iter().position(|(accepted, _)| accepted == hash);
        at.map(|at| known.accepted.swap_remove(at)).is_some()
    }

    /// Whether a text is in use.
    fn uses(&self, hash: &str) -> bool {
        self.0.lock().used.as_deref() == Some(hash)
    }

    /// Records the text in use.
    fn use_it(&self, hash: String) {
        let mut known = self.0.lock();
        known.used = Some(hash);
        known.refused = None;
    }

    /// Records a refused text. Returns whether the refusal is new.
    fn refuse(&self, hash: String, lost: Vec<String>) -> bool {
        let mut known = self.0.lock();
        let refused = Some((hash, lost));
        let is_news = known.refused != refused;
        known.refused = refused;
        is_news
    }
}

impl Gateway {
    /// Applies a configuration. Returns what it changed.
    pub async fn reload(self: &Arc<Self>, config: Config) -> WorldChanges {
        let updates = self.publisher.updates();
        self.errands.outward.aim(config.gateway.notify.as_ref(), &config.gateway.inherit_env);
        self.calls.rates.store(Arc::new(Rates::new(&config, &self.calls.rates.load())));
        let digest = config.digest.clone();
        self.observing.hide_from_audit(&config);
        let keeps_calls = config.gateway.keep_calls;
        let (changes, ended) = self.servers.reload(config, updates.as_ref());
        if !keeps_calls {
            self.observing.calls.forget_contents();
        }
        self.observing.audit_reload(&digest, &changes);
        self.tell_of_ended(&ended);
        if let Some(updates) = updates {
            let _ = updates.send(ServerUpdate::Reconfigured).await;
        }
        changes
    }

    /// Reloads the file until the gateway stops: when the file or `secrets.env` beside it changes, when a
    /// required keyring is unlocked, or when `nonet reload` asks for it at the `desk`. `read` checks the text
    /// of the file. Watching starts with the call, before the future is first polled.
    pub fn watch(
        self: Arc<Self>,
        file: PathBuf,
        desk: Option<ReloadDesk>,
        read: impl Fn(&str) -> Result<LoadedConfig, LoadError> + Send + Sync + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (sender, mut events) = mpsc::channel(16);
        let target = file.file_name().map(|name| name.to_os_string());
        let seen = move |event: notify::Result<notify::Event>| {
            let of_file = |event: &notify::Event| {
                !event.kind.is_access()
                    && event.paths.iter().filter_map(|path| path.file_name()).any(|name| {
                        Some(name) == target.as_deref()
                            || name == secrets_file::NAME
                            || name == reloads::REQUEST
                            || name == nonet_config::LOCK_FILE
                    })
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
            let mut watcher = match watcher {
                Ok(watcher) => watcher,
                Err(error) => {
                    tracing::warn!(file = %file.display(), %error, "cannot watch the configuration file; restart Nonet to apply changes");
                    return;
                }
            };
            let (mut post, mut answered) = open_post(desk.clone(), &mut watcher).await;
            let begun = self.servers.config().digest.clone();
            let current = file.clone();
            let current = tokio::task::spawn_blocking(move || config::read_text(&current)).await;
            // The file may have changed between its first reading and the watch.
            let mut is_changed = matches!(&current, Ok(Ok(text)) if text_hash(text) != begun);
            if !begun.is_empty() {
                self.texts.use_it(begun);
            }
            let read = Arc::new(read);
            loop {
                if !std::mem::take(&mut is_changed) {
                    tokio::select! {
                        event = events.recv() => if event.is_none() { return },
                        // The secret may complete a left-out server.
                        () = keyring::answered_late() => {}
                        () = config::secrets_changed() => {}
                        () = removed(post.as_deref()) => {
                            post = open_post(desk.clone(), &mut watcher).await.0;
                            // A request may have been made before the folder was watched again, so it is read
                            // now.
                        }
                        () = self.servers.life.stop.cancelled() => return,
                    }
                }
                while let Ok(Some(())) = tokio::time::timeout(QUIET, events.recv()).await {}
                let (read, file, asked) = (read.clone(), file.clone(), post.clone());
                let looked = tokio::task::spawn_blocking(move || {
                    let request = asked.and_then(|post| post.request());
                    let text =
                        config::read_text(&file).map_err(|source| LoadError::Unreadable { file, source });
                    let hash = text.as_ref().map(|text| text_hash(text)).unwrap_or_default();
                    (request, hash, text.and_then(|text| read(&text)))
                });
                let Ok((request, hash, loaded)) = looked.await else { return };
                let request = request.filter(|request| answered.as_ref() != Some(&request.id));
                if let Some(request) = &request {
                    let is_of_this =
                        |from: &String| self.texts.0.lock().used.as_ref().is_none_or(|used| used == from);
                    if let Some(accept) =
                        request.accept.as_ref().filter(|_| request.from.iter().all(is_of_this))
                    {
                        self.texts.accept(accept.clone());
                    }
                    answered = Some(request.id.clone());
                }
                let outcome = match loaded {
                    Ok(loaded) => Box::pin(self.apply(loaded, hash)).await,
                    Err(error) => {
                        let notice = Notice::ConfigFaulty {
                            message: clip(&error.to_string(), 1_000),
                            hint: "Nothing was changed. Run `nonet check` to see all faults.".into(),
                        };
                        self.announce(notice)
                    }
                };
                if let Some(post) = post.clone() {
                    let request = answered.clone();
                    let told = tokio::task::spawn_blocking(move || post.answer(request, outcome));
                    if let Ok(Err(error)) = told.await {
                        tracing::warn!(%error, "`nonet reload` cannot learn the outcome of this reload");
                    }
                }
            }
        }
    }

    /// Applies a readable file, unless it loses protection. Returns the notice about it.
    async fn apply(self: &Arc<Self>, mut loaded: LoadedConfig, hash: String) -> Value {
        let now = self.servers.config();
        keep_faulty(&mut loaded, &now);
        let mut lost = losses(&now, &loaded.config);
        let is_untrusted = loaded.trust == FileTrust::Lost && !self.texts.uses(&hash);
        if is_untrusted {
            lost.push("your trust, which you gave to its text before the change".into());
        }
        if !lost.is_empty() && !self.texts.takes(&hash) {
            let accept = shell::nonet("reload --accept", &now.file);
            let or = match is_untrusted {
                true => format!(
                    "trust it at a terminal: `nonet trust {}`",
                    shell::word(&now.file.to_string_lossy())
                ),
                false => "restart Nonet".into(),
            };
            let notice = Notice::ConfigRefused {
                message: format!(
                    "The changed servers.toml is refused, because it loses {}. The configuration stays as it was.",
                    lost.join("; ")
                ),
                lost: lost.clone(),
                hint: format!("If this is intended, the user can run `{accept}` or {or}."),
            };
            return match self.texts.refuse(hash, lost) {
                true => self.announce(notice),
                false => notice.into(),
            };
        }
        let faults: Vec<String> = loaded.faults.iter().map(ToString::to_string).collect();
        let changes = self.reload(loaded.config).await;
        self.texts.use_it(hash);
        if changes == WorldChanges::default() && faults.is_empty() {
            tracing::info!("configuration reloaded; nothing changed");
            return Notice::ConfigUnchanged.into();
        }
        let hint = "Entries with a fault keep their old version; new ones are left out.";
        let hint = (!faults.is_empty()).then_some(hint.into());
        self.announce(Notice::ConfigChanged { changes, faults, hint })
    }

    /// Logs the outcome of a changed file and notifies every session that sees all servers. Returns the
    /// notice.
    fn announce(&self, notice: Notice) -> Value {
        let is_clean = matches!(&notice, Notice::ConfigChanged { faults, .. } if faults.is_empty());
        let notice = Value::from(notice);
        match is_clean {
            true => tracing::info!("{notice}"),
            false => tracing::warn!("{notice}"),
        }
        self.sessions.notify_unrestricted(&notice);
        notice
    }
}

/// How often a gateway checks that `nonet reload` still finds it.
const LOOK: Duration = Duration::from_secs(2);

/// Returns once a gateway's place at the desk was removed.
async fn removed(post: Option<&ReloadPost>) {
    let Some(post) = post else { return std::future::pending().await };
    while !post.is_gone() {
        tokio::time::sleep(LOOK).await;
    }
}

/// Takes a place at the desk and watches for requests. Also returns the latest request, which was meant for
/// others.
async fn open_post(
    desk: Option<ReloadDesk>,
    watcher: &mut notify::RecommendedWatcher,
) -> (Option<Arc<ReloadPost>>, Option<String>) {
    let Some(desk) = desk else { return (None, None) };
    let opened = tokio::task::spawn_blocking(move || {
        let before = desk.request().map(|request| request.id);
        desk.open().map(|post| (post, before))
    });
    match opened.await {
        Ok(Ok((post, before))) => {
            if let Err(error) = watcher.watch(post.folder(), RecursiveMode::NonRecursive) {
                tracing::warn!(%error, "`nonet reload` cannot reach this gateway");
            }
            (Some(Arc::new(post)), before)
        }
        Ok(Err(error)) => {
            tracing::warn!(%error, "`nonet reload` cannot reach this gateway");
            (None, None)
        }
        Err(_) => (None, None),
    }
}

/// Keeps the old version of entries that have become faulty: a typo must not stop a running server.
fn keep_faulty(loaded: &mut LoadedConfig, old: &Config) {
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
            config::parse(text, Path::new("/etc/servers.toml"), config::ValueSources::NONE)
                .expect("it is usable")
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
