//! Due work: acts on records when they are due, and finds the notices of other gateways.

use std::{sync::Arc, time::Duration};

use nonet_base::allocator;
use nonet_hosts as hosts;
use nonet_store::StoreError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Errands;

/// How often the store is checked. Records that the user's other gateways add or leave behind are found
/// within this time.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// How often unused memory is looked for, and how much of it is worth the look.
const TIDY: Duration = Duration::from_secs(10);
const UNUSED: u64 = 8 << 20;

/// How often expired results are removed.
const SWEEP: Duration = Duration::from_secs(600);

/// Returns the memory of a flood to the system once the flood is over: many results, notices or sessions that
/// are each small. Whoever handles something large returns its memory at once.
async fn tidy(stop: CancellationToken) {
    let mut least = u64::MAX;
    while stop.run_until_cancelled(tokio::time::sleep(TIDY)).await.is_some() {
        let Some(resident) = allocator::resident() else { return };
        least = least.min(resident);
        if resident > least.saturating_add(UNUSED) {
            let _ = tokio::task::spawn_blocking(allocator::give_back).await;
        }
    }
}

impl Errands {
    /// Handles due records and sends notices to people, until the gateway stops. Only for a gateway that
    /// serves clients: the gateway of a command has its user at the terminal. A second call does nothing.
    pub fn keep_time(self: &Arc<Self>) {
        if self.keeps_time.set(()).is_err() {
            return;
        }
        self.table.began_ms(self.keeping.clock.unix_ms());
        let config = self.servers.config();
        self.outward.open(config.gateway.notify.as_ref(), &config.gateway.inherit_env);
        self.servers.life.tasks.spawn(tidy(self.servers.stopping().clone()));
        let errands = self.clone();
        self.servers.life.tasks.spawn(async move {
            let stop = errands.servers.stopping().clone();
            let mut swept = Instant::now();
            drop(tokio::task::spawn_blocking(hosts::sweep_backups));
            loop {
                errands.look_ahead().await;
                errands.keeping.jobs.cancel_for_others().await;
                if swept.elapsed() >= SWEEP {
                    swept = Instant::now();
                    errands.keeping.kept.sweep().await;
                    drop(tokio::task::spawn_blocking(hosts::sweep_backups));
                }
                tokio::select! {
                    () = tokio::time::sleep(LOOK) => {}
                    () = stop.cancelled() => return,
                }
            }
        });
    }

    async fn look_ahead(self: &Arc<Self>) {
        let kinds = self.errands_that_run();
        match self.keeping.records.agenda(&kinds).await {
            Ok(Some(agenda)) => {
                self.sessions.mail.note(&agenda);
                self.run_due(&kinds, agenda.next_due_ms).await;
            }
            // The warning came when Redis went away.
            Ok(None) | Err(StoreError::Away { .. }) => {}
            Err(error) => tracing::warn!(%error, "what is due cannot be read from the store"),
        }
    }
}
