//! Edits of servers.toml that wait until they are in use.

use std::{sync::Arc, time::Duration};

use nonet_config::{Config, losses, shell};
use nonet_hosts::FileChange;
use nonet_store::reloads::{ReloadDesk, ReloadRequest, text_hash};

use super::{Gateway, reload::TextState};

/// How long the gateway may take to apply a changed file.
const TAKE_UP: Duration = Duration::from_secs(10);
/// The interval between checks.
const LOOK: Duration = Duration::from_millis(30);

impl Gateway {
    /// Returns why servers.toml cannot be edited from here; `None` if it can.
    pub fn uneditable(&self) -> Option<String> {
        let config = self.servers.config();
        let file = &config.file;
        if !file.exists() {
            // The first server makes the file. One that went away is not begun anew: its other servers would
            // be lost.
            return (!config.servers.is_empty()).then(|| {
                format!(
                    "{} no longer exists. Restore it, or start Nonet with `--config FILE`.",
                    file.display()
                )
            });
        }
        if std::fs::OpenOptions::new().append(true).open(file).is_err() {
            return Some(format!(
                "Nonet cannot write to {}. Make it writable, or edit it at its source.",
                file.display()
            ));
        }
        self.texts.refused().map(|lost| {
            format!(
                "servers.toml has changes that this gateway refuses, because they lose {}. Undo them, or \
                 accept them with `{}`; then try again.",
                lost.join("; "),
                shell::nonet("reload --accept", file)
            )
        })
    }

    /// Refuses a configuration that loses protection.
    pub fn refuse_losses(&self, new: &Config) -> Result<(), String> {
        let lost = losses(&self.servers.config(), new);
        if lost.is_empty() {
            return Ok(());
        }
        Err(format!(
            "Nothing was written, because this would lose {}. If you mean it, edit {} and run `{}`.",
            lost.join("; "),
            self.servers.config().file.display(),
            shell::nonet("reload --accept", &self.servers.config().file)
        ))
    }

    /// Accepts the user's change of the text in use, even if the change removes the only server.
    pub async fn accept_edit(&self, change: &FileChange) {
        let Some((before, after)) = change.texts() else { return };
        self.texts.accept_edit(&text_hash(before), text_hash(after));
        // The other gateways of the file have to take it, too.
        let desk =
            self.keeping.folder.as_deref().map(|state| ReloadDesk::of(state, &self.servers.config().file));
        if let Some(desk) = desk.filter(|desk| desk.folder().exists()) {
            let request = ReloadRequest::of_edit(before, after);
            let asked = tokio::task::spawn_blocking(move || desk.ask(&request)).await;
            if let Ok(Err(error)) = asked {
                tracing::warn!(%error, "other gateways of this servers.toml may refuse the change");
            }
        }
    }

    /// Waits until a written change is in use. Fails with the reason if it is not.
    pub async fn taken_up(&self, change: &FileChange) -> Result<(), String> {
        let Some((_, after)) = change.texts() else { return Ok(()) };
        let hash = text_hash(after);
        let look = async {
            loop {
                match self.texts.state_of(&hash) {
                    TextState::Used => return Ok(()),
                    TextState::Refused(lost) => return Err(lost),
                    TextState::Unread => tokio::time::sleep(LOOK).await,
                }
            }
        };
        match tokio::time::timeout(TAKE_UP, look).await {
            Ok(Ok(())) => {
                self.publisher.published().await;
                Ok(())
            }
            Ok(Err(lost)) => {
                Err(format!("The file is written, but refused, because it loses {}.", lost.join("; ")))
            }
            Err(_) => Err(format!(
                "The file is written, but the gateway has not loaded it yet; `{}` reports why.",
                shell::nonet("logs", &self.servers.config().file)
            )),
        }
    }

    /// Reads the configuration again, in every gateway of the file, with a value that the user has just
    /// stored. Waits until the server no longer misses the value. Fails with the reason if it still does.
    pub async fn retry_with_value(&self, server: &str, name: &str) -> Result<(), String> {
        let file = self.servers.config().file.clone();
        if let Some(desk) = self.keeping.folder.as_deref().map(|state| ReloadDesk::of(state, &file)) {
            let asked = tokio::task::spawn_blocking(move || desk.ask(&ReloadRequest::new(None))).await;
            if let Ok(Err(error)) = asked {
                tracing::warn!(%error, "other gateways of this servers.toml may not see the new value");
            }
        }
        let misses = |config: &Config| {
            config.left_out.get(server).is_some_and(|left_out| left_out.missing().contains_key(name))
        };
        let look = async {
            while misses(&self.servers.config()) {
                tokio::time::sleep(LOOK).await;
            }
        };
        if tokio::time::timeout(TAKE_UP, look).await.is_err() {
            return Err(format!(
                "The value is stored, but the gateway has not loaded it yet; `{}` reports why.",
                shell::nonet("logs", &file)
            ));
        }
        self.publisher.published().await;
        Ok(())
    }

    /// Returns the names of the servers that servers.toml disables.
    pub fn switched_off(&self) -> Vec<Arc<str>> {
        let config = self.servers.config();
        let off = config.servers.iter().filter(|(_, settings)| !settings.enabled);
        off.map(|(name, _)| name.as_str().into()).collect()
    }
}
