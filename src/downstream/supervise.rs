//! The life of a connection: reached, listed, lost, reached again, until it is not wanted any more.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use backon::BackoffBuilder;
use rmcp::{RoleClient, model::ServerPeerInfo, service::RunningService};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Connection, Era, State, Update,
    child::Child,
    connect::with_tail,
    handler::Handler,
    list::{Subscribed, list},
    refusal::Refusal,
};

/// The first wait before a lost server is tried again, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));
/// A connection that held this long starts its backoff anew.
const STEADY: Duration = Duration::from_secs(30);
/// How long until a server is tried again that wants a sign-in, if nobody signs in: some say so by mistake.
const UNSIGNED: Duration = Duration::from_secs(600);
/// How long changes are gathered before the lists are read again.
const SETTLE: Duration = Duration::from_millis(50);

/// What is held while a server is connected.
pub(super) struct Link {
    pub running: RunningService<RoleClient, Handler>,
    pub child: Option<Child>,
    pub era: Era,
    pub info: ServerPeerInfo,
    pub changed: Arc<Notify>,
    /// Cancelled when the transport is gone.
    pub closed: CancellationToken,
}

/// Why a server was not reached, or is not connected any more.
pub(super) enum End {
    /// This happened.
    Failed(String),
    /// It wants a sign-in.
    Unsigned(Refusal),
}

impl From<String> for End {
    fn from(what: String) -> Self {
        Self::Failed(what)
    }
}

impl From<&str> for End {
    fn from(what: &str) -> Self {
        Self::Failed(what.into())
    }
}

impl Connection {
    /// Keeps the server connected until `stop`; then ends it.
    pub async fn supervise(&self, updates: mpsc::Sender<Update>, stop: CancellationToken) {
        let new_backoff = || {
            backon::ExponentialBuilder::default()
                .with_min_delay(BACKOFF.0)
                .with_max_delay(BACKOFF.1)
                .without_max_times()
                .with_jitter()
                .build()
        };
        let mut backoff = new_backoff();
        loop {
            let mut enabled = self.enabled.subscribe();
            if !*enabled.borrow_and_update() {
                self.state.send_replace(State::Stopped);
                tokio::select! {
                    _ = enabled.wait_for(|enabled| *enabled) => {}
                    () = stop.cancelled() => break,
                }
                self.state.send_replace(State::Starting);
            }
            let started = Instant::now();
            // Not raced against `stop`: what is live ends itself then, and takes its time to do so.
            let end = self.live(&updates, started, &stop).await;
            self.peer.store(None);
            if stop.is_cancelled() {
                break;
            }
            if started.elapsed() > STEADY {
                backoff = new_backoff();
            }
            let wait = backoff.next().unwrap_or(BACKOFF.1);
            let state = match end {
                End::Failed(error) => {
                    State::Down { error: self.mask(&error), retry_at: Instant::now() + wait }
                }
                End::Unsigned(refusal) => self.wants_sign_in(&refusal),
            };
            // Told when the state changes, not at each try.
            let before = self.state();
            match (&before, &state) {
                (State::Down { error: old, .. }, State::Down { error, .. }) if old == error => {}
                (_, State::Down { error, .. }) => tracing::warn!(server = %self.name, "down: {error}"),
                (State::AuthRequired { .. }, State::AuthRequired { .. }) => {}
                (_, State::AuthRequired { error, remedy }) => {
                    tracing::warn!(server = %self.name, "a sign-in is needed: {error}");
                    let (server, login) = (self.name.clone(), remedy.command().map(String::from));
                    let _ = updates.send(Update::SignInNeeded { server, login }).await;
                }
                _ => {}
            }
            let unsigned = matches!(state, State::AuthRequired { .. });
            let wait = if unsigned { UNSIGNED } else { wait };
            self.state.send_replace(state);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.signs_in(), if unsigned => {}
                () = self.kick.notified() => {}
                () = stop.cancelled() => break,
            }
        }
        self.state.send_replace(State::Stopped);
    }

    /// One life of the connection, from connecting to its end. Says why it ended.
    async fn live(&self, updates: &mpsc::Sender<Update>, started: Instant, stop: &CancellationToken) -> End {
        let limit = self.settings().start_timeout;
        self.signed_out.send_replace(None);
        let connected = tokio::select! {
            connected = timeout(limit, self.connect()) => connected,
            () = stop.cancelled() => return "stopped".into(),
        };
        let mut link = match connected {
            Ok(Ok(link)) => link,
            Ok(Err(error)) => return error,
            Err(_) => {
                return End::Failed(format!(
                    "no handshake within {limit:?}; if it only starts slowly, raise `start_timeout` in [servers.{}]",
                    self.name
                ));
            }
        };
        let end = self.serve(&mut link, updates, started, stop).await;
        self.peer.store(None);
        let _ = link.running.close_with_timeout(Duration::from_secs(1)).await;
        // What the child said last is part of the reason.
        let mut reason = match end {
            End::Failed(reason) => reason,
            unsigned => return unsigned,
        };
        if let Some(mut child) = link.child {
            if let Some(status) = child.exit_status().await
                && !stop.is_cancelled()
            {
                reason = with_tail(&format!("{reason} ({status})"), child.tail());
            }
            child.stop().await;
        }
        if let Ok(mut last) = self.last_end.lock() {
            *last = self.mask(&reason);
        }
        End::Failed(reason)
    }

    /// Lists, announces, and waits for changes until the connection ends.
    async fn serve(
        &self,
        link: &mut Link,
        updates: &mpsc::Sender<Update>,
        started: Instant,
        stop: &CancellationToken,
    ) -> End {
        let peer = link.running.peer().clone();
        if let Ok(mut era) = self.era.lock() {
            *era = Some(link.era);
        }
        // rmcp's own cache would serve old lists; the catalogue is ours.
        peer.set_response_cache_config(rmcp::service::ClientCacheConfig::disabled()).await;
        let mut subscription = Subscribed::default();
        let mut first = true;
        loop {
            let listing = tokio::select! {
                listing = list(&peer, &link.info, &self.name) => listing,
                () = stop.cancelled() => return "stopped".into(),
            };
            let update = match listing {
                Ok(listing) => Some(listing),
                Err(error) if peer.is_transport_closed() => {
                    return format!("it left while listing its tools: {error}").into();
                }
                Err(error) if first => {
                    let error = format!("its tools could not be listed: {error}");
                    return match &*self.signed_out.borrow() {
                        Some(refusal) => End::Unsigned(refusal.clone()),
                        None => error.into(),
                    };
                }
                Err(error) => {
                    tracing::warn!(server = %self.name, "its tools could not be listed again; the old list stays: {error}");
                    None
                }
            };
            let tools = update.as_ref().map_or(0, |listing| listing.tools.len());
            let (published, in_catalogue) = oneshot::channel();
            let server = self.name.clone();
            let _ = updates.send(Update::Listed { server, listing: update, published }).await;
            if std::mem::take(&mut first) {
                // Tools that were known before can be called while the list is on its way.
                self.peer.store(Some(Arc::new(peer.clone())));
                tokio::select! {
                    // An error: nobody publishes the lists of this connection.
                    _ = in_catalogue => {}
                    () = stop.cancelled() => return "stopped".into(),
                    () = link.closed.cancelled() => return "it closed the connection".into(),
                }
                let version = link.info.protocol_version.to_string();
                let took = started.elapsed();
                tracing::info!(server = %self.name, tools, %version, ?took, "ready");
                let since = Instant::now();
                self.state.send_replace(State::Ready { version, era: link.era, took, since });
                if self.was_ready.swap(true, Ordering::Relaxed) {
                    let _ = updates.send(Update::Reconnected { server: self.name.clone() }).await;
                }
                if link.era == Era::Legacy {
                    self.tell_wishes(&peer, link.closed.clone());
                }
            }
            tokio::select! {
                () = stop.cancelled() => return "stopped".into(),
                () = link.closed.cancelled() => return "it closed the connection".into(),
                () = self.restart.notified() => return "it was restarted on request".into(),
                () = held(&self.enabled) => return "it was disabled on request".into(),
                refusal = refused(&self.signed_out) => return End::Unsigned(refusal),
                () = link.changed.notified() => {}
                () = subscription.changed(&peer, link, &self.followed) => {}
            }
            // Servers tell of many changes at once; one new list answers them all.
            tokio::time::sleep(SETTLE).await;
        }
    }
}

/// Ends when the server is not to be connected any more.
async fn held(enabled: &watch::Sender<bool>) {
    let mut enabled = enabled.subscribe();
    if enabled.wait_for(|enabled| !enabled).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// What the server says when it refuses a request for want of a sign-in.
async fn refused(signed_out: &watch::Sender<Option<Refusal>>) -> Refusal {
    let mut signed_out = signed_out.subscribe();
    match signed_out.wait_for(Option::is_some).await.ok().and_then(|said| said.clone()) {
        Some(said) => said,
        None => std::future::pending().await,
    }
}
