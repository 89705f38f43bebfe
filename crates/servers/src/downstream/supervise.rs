//! The life of a connection: connect, list, announce, wait, back off, until the server is no longer wanted.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use nonet_base::text::clean;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Connection, ConnectionState, ProgramPlace, ServerUpdate,
    link::{Link, LinkError, SignInNeeded},
};

/// The first and the longest delay before a lost server is retried.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));
/// A link that lasted this long resets the backoff.
const STEADY: Duration = Duration::from_secs(30);
/// How long to wait before retrying a server without the sign-in that it requires: some servers require one
/// by mistake.
const UNSIGNED: Duration = Duration::from_secs(600);
/// How long the requests in flight may take before a program moves to another replica, and how often they are
/// checked.
const DRAIN: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(20);
/// How long changes are gathered before the lists are read again.
const SETTLE: Duration = Duration::from_millis(50);

impl From<SignInNeeded> for ConnectionState {
    fn from(needed: SignInNeeded) -> Self {
        Self::AuthRequired { error: needed.error, remedy: needed.remedy }
    }
}

fn backoff() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(BACKOFF.0)
        .with_max_delay(BACKOFF.1)
        .without_max_times()
        .with_jitter()
        .build()
}

impl Connection {
    /// Keeps the server connected until `stop`.
    pub async fn supervise(&self, updates: mpsc::Sender<ServerUpdate>, stop: CancellationToken) {
        let mut waits = backoff();
        loop {
            let mut enabled = self.enabled.subscribe();
            if !*enabled.borrow_and_update() {
                self.enter(ConnectionState::Stopped);
                tokio::select! {
                    _ = enabled.wait_for(|enabled| *enabled) => {}
                    () = stop.cancelled() => break,
                }
                self.enter(ConnectionState::Starting);
            }
            if let Some(placed) = &self.placed {
                if !matches!(placed.get(), ProgramPlace::Here | ProgramPlace::At(_)) {
                    self.enter(ConnectionState::Starting);
                }
                tokio::select! {
                    () = placed.known() => {}
                    () = held(&self.enabled) => continue,
                    () = stop.cancelled() => break,
                }
            }
            let place = self.placed.as_ref().map(|placed| (placed, placed.get()));
            let in_place = self.placed.as_ref().map(|placed| placed.link());
            let started = Instant::now();
            // Not raced against `stop`, because a live link needs time to close.
            let lost = self.live(&updates, started, &stop).await;
            drop(in_place);
            if stop.is_cancelled() {
                break;
            }
            if started.elapsed() > STEADY {
                waits = backoff();
            }
            let wait = waits.next().unwrap_or(BACKOFF.1);
            let (state, wait) = match lost {
                LinkError::Failed(error) => {
                    // The error quotes the server.
                    let error = self.masked(&clean(&error));
                    (ConnectionState::Down { error, retry_at: Instant::now() + wait }, wait)
                }
                LinkError::SignIn(needed) => (needed.into(), UNSIGNED),
                LinkError::Moved { .. } => {
                    waits = backoff();
                    // The failures were at another place.
                    self.breaker.reset();
                    self.enter(ConnectionState::Starting);
                    continue;
                }
            };
            if let Some((placed, ProgramPlace::At(_))) = &place {
                placed.report_trouble();
            }
            let is_unsigned = matches!(state, ConnectionState::AuthRequired { .. });
            self.report(&state, &updates).await;
            self.enter(state);
            tokio::select! {
                () = sleep(wait) => {}
                () = self.connector.sign_in_changed(), if is_unsigned => {}
                () = self.kick.notified() => {}
                () = async {
                    match &place {
                        Some((placed, place)) => drop(placed.left(place).await),
                        None => std::future::pending().await,
                    }
                } => {}
                () = stop.cancelled() => break,
            }
        }
        self.enter(ConnectionState::Stopped);
    }

    /// Waits until no request is in flight.
    async fn answered(&self) {
        while self.sent.load(Ordering::Acquire) > 0 {
            sleep(LOOK).await;
        }
    }

    /// Reports a state if it differs from the current one.
    async fn report(&self, state: &ConnectionState, updates: &mpsc::Sender<ServerUpdate>) {
        match (&self.state(), state) {
            (ConnectionState::Down { error: old, .. }, ConnectionState::Down { error, .. })
                if old == error => {}
            (_, ConnectionState::Down { error, .. }) => tracing::warn!(server = %self.name, "down: {error}"),
            (ConnectionState::AuthRequired { .. }, ConnectionState::AuthRequired { .. }) => {}
            // People learn it from their own calls.
            (_, ConnectionState::AuthRequired { error, .. })
                if self.settings().credentials.are_personal() =>
            {
                let whose = if self.person.is_some() { "a person" } else { "the gateway itself" };
                tracing::info!(server = %self.name, "no account of {whose}: {error}");
            }
            (_, ConnectionState::AuthRequired { error, remedy }) => {
                tracing::warn!(server = %self.name, "a sign-in is needed: {error}");
                let (server, login) = (self.name.clone(), remedy.command().map(String::from));
                let _ = updates.send(ServerUpdate::SignInNeeded { server, login }).await;
            }
            _ => {}
        }
    }

    /// Runs one link from connecting to its end. Returns why it ended.
    async fn live(
        &self,
        updates: &mpsc::Sender<ServerUpdate>,
        started: Instant,
        stop: &CancellationToken,
    ) -> LinkError {
        let limit = self.settings().start_timeout;
        let connected = tokio::select! {
            connected = timeout(limit, self.connector.connect(limit)) => connected,
            () = stop.cancelled() => return "stopped".into(),
        };
        let link = match connected {
            Ok(Ok(link)) => link,
            Ok(Err(lost)) => return lost,
            Err(_) => {
                return LinkError::Failed(format!(
                    "no handshake within {limit:?}; if it is only slow to start, raise `start_timeout` in [servers.{}]",
                    self.name
                ));
            }
        };
        if let Some(why) = self.too_old(&*link) {
            link.close(why.clone()).await;
            return LinkError::Failed(why);
        }
        let over = CancellationToken::new();
        let _over = over.clone().drop_guard();
        // The replica with the program has already made the setup calls.
        let set_up = match link.is_relayed() {
            true => Ok(()),
            false => self.set_up(&link, started + limit, stop).await,
        };
        let (lost, is_ended_here) = match set_up {
            Ok(()) => (self.serve(&link, updates, started, stop, &over).await, false),
            Err(lost) => (lost, !link.is_closed()),
        };
        self.link.store(None);
        match lost {
            LinkError::Failed(reason) => {
                let closed = link.close(reason.clone()).await;
                // The exit of a server that was ended for a failed setup call explains nothing.
                let reason = if is_ended_here { reason } else { closed };
                *self.last_end.lock() = self.masked(&reason);
                LinkError::Failed(reason)
            }
            sign_in @ LinkError::SignIn(_) => {
                link.close(String::new()).await;
                sign_in
            }
            LinkError::Moved { drains } => {
                self.enter(ConnectionState::Starting);
                if drains {
                    tokio::select! {
                        _ = timeout(DRAIN, self.answered()) => {}
                        () = stop.cancelled() => {}
                    }
                }
                link.close("it runs on another replica now".into()).await;
                LinkError::Moved { drains }
            }
        }
    }

    /// Returns why the revision that the server speaks is too old, if it is.
    fn too_old(&self, link: &dyn Link) -> Option<String> {
        let oldest = self.settings().min_protocol?;
        let version = link.version();
        let is_known = link.era().is_some() && !link.is_relayed();
        (is_known && *version < *oldest.as_str()).then(|| {
            let (version, name) = (self.masked(&version), &self.name);
            format!(
                "it speaks MCP {version}, and `min_protocol` requires {}: update the server, or set `min_protocol` in [servers.{name}]",
                oldest.as_str()
            )
        })
    }

    /// Lists, announces, and waits for changes until the link ends. `over` is cancelled afterwards.
    async fn serve(
        &self,
        link: &Arc<dyn Link>,
        updates: &mpsc::Sender<ServerUpdate>,
        started: Instant,
        stop: &CancellationToken,
        over: &CancellationToken,
    ) -> LinkError {
        let mut first = true;
        loop {
            let listing = tokio::select! {
                listing = link.list() => listing,
                () = stop.cancelled() => return "stopped".into(),
            };
            let listing = match listing {
                Ok(mut listing) => {
                    // Here, so that nothing behind this place has them: not the pins, not the list on disk,
                    // no replica.
                    listing.mask(&self.calls.secrets.load());
                    Some(listing)
                }
                Err(lost @ (LinkError::SignIn(_) | LinkError::Moved { .. })) => return lost,
                Err(LinkError::Failed(error)) if link.is_closed() => {
                    return format!("it disconnected while listing its tools: {error}").into();
                }
                Err(LinkError::Failed(error)) if first => {
                    return format!("its tools could not be listed: {error}").into();
                }
                Err(LinkError::Failed(error)) => {
                    let error = self.masked(&error);
                    tracing::warn!(server = %self.name, "its tools could not be listed again; the old list stays: {error}");
                    None
                }
            };
            let tools = listing.as_ref().map_or(0, |listing| listing.tools.len());
            if let (Some(_), Some(listing)) = (&self.placed, &listing) {
                self.listed.send_replace(Some(Arc::new(listing.clone())));
            }
            let (published, in_catalogue) = oneshot::channel();
            let (server, session) = (self.name.clone(), self.settings().session);
            let person = self.person.clone();
            let listed =
                ServerUpdate::Listed { server, connection: self.id, session, person, listing, published };
            let _ = updates.send(listed).await;
            if std::mem::take(&mut first) {
                // Tools that were known before can be called while the list is being published.
                self.link.store(Some(Arc::new(link.clone())));
                tokio::select! {
                    // Fails if nobody publishes this connection's lists.
                    _ = in_catalogue => {}
                    () = stop.cancelled() => return "stopped".into(),
                    lost = link.lost() => return lost,
                }
                let (version, era) = (self.masked(&link.version()), link.era());
                let (took, since) = (started.elapsed(), Instant::now());
                tracing::info!(server = %self.name, tools, %version, ?took, "ready");
                self.enter(ConnectionState::Ready { version, era, took, since });
                if self.was_ready.swap(true, Ordering::Relaxed) {
                    let _ = updates.send(ServerUpdate::Reconnected { server: self.name.clone() }).await;
                }
                self.restore(link.clone(), over);
            }
            tokio::select! {
                () = stop.cancelled() => return "stopped".into(),
                lost = link.lost() => return lost,
                () = self.restart.notified() => return "it was restarted on request".into(),
                () = held(&self.enabled) => return "it was disabled on request".into(),
                // Whoever signs in anew may be somebody else there.
                () = self.connector.account_replaced(), if self.person.is_some() => {
                    return "its person has signed in or out".into();
                }
                () = link.changed() => {}
            }
            // Servers announce many changes at once; one new list covers them all.
            sleep(SETTLE).await;
        }
    }
}

/// Resolves when the user puts the server on hold.
async fn held(enabled: &watch::Sender<bool>) {
    let mut enabled = enabled.subscribe();
    if enabled.wait_for(|enabled| !enabled).await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests;
