//! Clients of the shared gateway: each connection to its socket is one client, speaking the stdio protocol.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nonet_api::status::ServeMode;
use nonet_core::Gateway;
use nonet_peer::lines;
use nonet_store::shared::{self, Hello, START_LIMIT, SharedOwner, Welcome};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::task::TaskTracker;

use super::{
    NonetServer, connect_soon, offer_page,
    user_page::{PresenceCount, PresenceGuard, UserPage},
};

/// How often a gateway without clients checks whether its jobs have ended and nothing is scheduled.
const LOOK: Duration = Duration::from_secs(1);
/// The longest time for clients to disconnect when the gateway stops.
const GRACE: Duration = Duration::from_secs(2);

/// Serves this machine's clients until `stop` resolves, or until there has been no client for the configured
/// grace time, no job is running, and nothing is scheduled. An open page counts as a client.
pub async fn serve_shared(
    gateway: Arc<Gateway>,
    mut owner: SharedOwner,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let mut listener = owner.listen()?;
    tracing::info!(pid = std::process::id(), "the shared gateway is ready");
    connect_soon(&gateway);
    offer_page(&gateway, ServeMode::Shared);
    // A page opened later also shows earlier calls.
    if gateway.servers.config().gateway.page {
        gateway.observing.calls.switch_on();
    }
    let clients = Arc::new(Clients::new(UserPage::new(gateway.clone(), owner.page.clone())));
    let (mut count, tasks) = (clients.presence.count(), TaskTracker::new());
    let left = async {
        // The client that started this gateway is about to connect.
        let _ = tokio::time::timeout(START_LIMIT, count.wait_for(|count| *count > 0)).await;
        loop {
            let _ = count.wait_for(|count| *count == 0).await;
            let grace = gateway.servers.config().gateway.shared_grace;
            if tokio::time::timeout(grace, count.wait_for(|count| *count > 0)).await.is_ok() {
                continue;
            }
            // The remaining work goes to a gateway of the newer version, started below.
            let is_replaced = clients.of_another_version.load(Ordering::Relaxed);
            if gateway.keeping.jobs.running() == 0 && (is_replaced || !gateway.errands.has_errands().await) {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    let has_left = tokio::select! {
        () = accept(&gateway, &mut listener, &mut owner, &clients, &tasks) => false,
        () = left => true,
        () = stop => false,
    };
    if has_left {
        tracing::info!("the last client has left; the shared gateway ends");
    }
    let has_successor = has_left && gateway.errands.has_errands().await;
    // From now on, clients start the next gateway.
    drop(listener);
    drop(owner);
    if has_successor && let Err(error) = shared::start_detached() {
        tracing::warn!(%error, "the remaining work waits for the next client: the gateway of the newer version did not start");
    }
    gateway.stop().await;
    tasks.close();
    let _ = tokio::time::timeout(GRACE, tasks.wait()).await;
    Ok(())
}

/// Serves this machine's clients besides others, until the gateway stops. `page` is the address of its live
/// page, with the token.
pub async fn accept_shared(gateway: Arc<Gateway>, mut owner: SharedOwner, page: Option<String>) {
    let mut listener = match owner.listen() {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(%error, "no socket for local clients");
            return;
        }
    };
    let page = UserPage::beside_http(gateway.clone(), owner.page.clone(), page);
    let (clients, tasks) = (Arc::new(Clients::new(page)), TaskTracker::new());
    tokio::select! {
        () = accept(&gateway, &mut listener, &mut owner, &clients, &tasks) => {}
        () = gateway.servers.stopping().cancelled() => {}
    }
}

/// The clients of the socket.
struct Clients {
    /// Connected clients, and open pages.
    presence: PresenceCount,
    page: UserPage,
    /// Whether a client was of another version of Nonet.
    of_another_version: AtomicBool,
}

impl Clients {
    fn new(page: UserPage) -> Self {
        let presence = PresenceCount::default();
        Self { page: page.with(presence.clone()), presence, of_another_version: AtomicBool::default() }
    }

    fn has_one_of(&self, version: &str) {
        // The first versions did not send their version.
        if !version.is_empty() && version != env!("CARGO_PKG_VERSION") {
            self.of_another_version.store(true, Ordering::Relaxed);
        }
    }
}

async fn accept(
    gateway: &Arc<Gateway>,
    listener: &mut UnixListener,
    owner: &mut SharedOwner,
    clients: &Arc<Clients>,
    tasks: &TaskTracker,
) {
    let mut looks = tokio::time::interval(LOOK);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = looks.tick() => {
                match owner.listen_again() {
                    Ok(Some(again)) => {
                        tracing::warn!("the socket of the shared gateway was removed; it is made again");
                        *listener = again;
                    }
                    Ok(None) => {}
                    Err(error) => tracing::debug!(%error, "the socket of the shared gateway cannot be made again"),
                }
                continue;
            }
        };
        match accepted {
            Ok((stream, _)) => {
                let here = clients.presence.enter();
                let (gateway, clients) = (gateway.clone(), clients.clone());
                tasks.spawn(async move { serve_one(gateway, stream, &clients, here).await });
            }
            Err(error) => {
                // Most likely too many open files: other clients may leave.
                tracing::warn!(%error, "a local client was not accepted");
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

/// Answers the first line of a client.
async fn welcome(gateway: &Gateway, clients: &Clients, hello: &Hello) -> Welcome {
    let config = gateway.servers.config();
    let mut welcome = Welcome { version: env!("CARGO_PKG_VERSION").into(), ..Welcome::default() };
    match &hello.profile {
        _ if hello.page => match clients.page.open().await {
            Ok(page) => welcome.page = Some(page),
            Err(why) => welcome.refused = Some(why),
        },
        Some(name) if !config.profiles.contains_key(name) => {
            let file = config.file.display();
            welcome.refused = Some(format!("there is no [profiles.{name}] in {file}"));
        }
        _ => {}
    }
    welcome
}

async fn serve_one(gateway: Arc<Gateway>, stream: UnixStream, clients: &Clients, _here: PresenceGuard) {
    let config = gateway.servers.config();
    let limits = config.limits.messages();
    let welcome = async |hello: &Hello| welcome(&gateway, clients, hello).await;
    let (hello, reader, writer) = match shared::greet(stream, limits.of_client.bytes, welcome).await {
        Ok(Some(greeted)) => greeted,
        Ok(None) => return,
        Err(error) => {
            tracing::debug!(%error, "the handshake with a local client failed");
            return;
        }
    };
    clients.has_one_of(&hello.version);
    // The other end only wants the page, which it now has.
    if hello.page {
        return;
    }
    let server = NonetServer::new(gateway.clone(), hello.profile, None, None, None);
    lines::serve(server, reader, writer, limits, gateway.servers.stopping().clone(), || {}).await;
}
