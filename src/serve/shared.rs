//! Clients of the shared gateway: each connection of its socket is one client, with the protocol of stdio.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::{UnixListener, UnixStream},
    sync::watch,
};
use tokio_util::task::TaskTracker;

use super::{NonetServer, connect_soon, in_flight::Parkings, stdio};
use crate::{
    gateway::Gateway,
    shared::{self, Hello, START_LIMIT, SharedOwner},
};

/// How often a gateway without clients checks whether its jobs have ended and nothing is left to run later.
const LOOK: Duration = Duration::from_secs(1);
/// The longest time for clients to disconnect when the gateway stops.
const GRACE: Duration = Duration::from_secs(2);

/// Serves the clients of this machine until `stop` ends, or until there was no client for the grace time of the configuration
/// and no job runs and nothing is to run later.
pub async fn serve_shared(
    gateway: Arc<Gateway>,
    owner: SharedOwner,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let listener = owner.listen()?;
    tracing::info!(pid = std::process::id(), "the shared gateway is ready");
    connect_soon(&gateway);
    let clients = Arc::new(Clients::default());
    let (mut count, tasks) = (clients.count.subscribe(), TaskTracker::new());
    let left = async {
        // The client that started this gateway is about to connect.
        let _ = tokio::time::timeout(START_LIMIT, count.wait_for(|count| *count > 0)).await;
        loop {
            let _ = count.wait_for(|count| *count == 0).await;
            let grace = gateway.config().gateway.shared_grace;
            if tokio::time::timeout(grace, count.wait_for(|count| *count > 0)).await.is_ok() {
                continue;
            }
            // A gateway of the newer version, which is started below, does what is left.
            let is_replaced = clients.of_another_version.load(Ordering::Relaxed);
            if gateway.jobs.running() == 0 && (is_replaced || !gateway.has_errands().await) {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    let has_left = tokio::select! {
        () = accept(&gateway, &listener, &clients, &tasks) => false,
        () = left => true,
        () = stop => false,
    };
    if has_left {
        tracing::info!("the last client has left; the shared gateway ends");
    }
    let has_successor = has_left && gateway.has_errands().await;
    // From now on, clients start the next gateway.
    drop(listener);
    drop(owner);
    if has_successor && let Err(error) = shared::start_detached() {
        tracing::warn!(%error, "what is left to run waits for the next client: no gateway of the newer version started");
    }
    gateway.stop().await;
    tasks.close();
    let _ = tokio::time::timeout(GRACE, tasks.wait()).await;
    Ok(())
}

/// Serves the clients of this machine beside others, until the gateway stops.
pub async fn accept_shared(gateway: Arc<Gateway>, owner: SharedOwner) {
    let listener = match owner.listen() {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(%error, "no socket for the clients of this machine");
            return;
        }
    };
    let (clients, tasks) = (Arc::default(), TaskTracker::new());
    tokio::select! {
        () = accept(&gateway, &listener, &clients, &tasks) => {}
        () = gateway.stopping().cancelled() => {}
    }
}

/// The clients of the socket.
#[derive(Default)]
struct Clients {
    /// How many are connected.
    count: watch::Sender<usize>,
    /// Whether one was of another version of Nonet.
    of_another_version: AtomicBool,
}

/// Counts one connected client until dropped.
struct ConnectedClient(Arc<Clients>);

impl ConnectedClient {
    fn new(clients: &Arc<Clients>) -> Self {
        clients.count.send_modify(|count| *count += 1);
        Self(clients.clone())
    }

    fn is_of(&self, version: &str) {
        // The first versions did not say theirs.
        if !version.is_empty() && version != env!("CARGO_PKG_VERSION") {
            self.0.of_another_version.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for ConnectedClient {
    fn drop(&mut self) {
        self.0.count.send_modify(|count| *count -= 1);
    }
}

async fn accept(
    gateway: &Arc<Gateway>,
    listener: &UnixListener,
    clients: &Arc<Clients>,
    tasks: &TaskTracker,
) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let here = ConnectedClient::new(clients);
                let gateway = gateway.clone();
                tasks.spawn(async move { serve_one(gateway, stream, here).await });
            }
            Err(error) => {
                // Too many open files, most likely: other clients may leave.
                tracing::warn!(%error, "a client of this machine was not accepted");
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

async fn serve_one(gateway: Arc<Gateway>, stream: UnixStream, here: ConnectedClient) {
    let config = gateway.config();
    let limits = config.limits.messages();
    let known = |hello: &Hello| match &hello.profile {
        Some(name) if !config.profiles.contains_key(name) => {
            Some(format!("there is no [profiles.{name}] in {}", config.file.display()))
        }
        _ => None,
    };
    let (hello, reader, writer) = match shared::greet(stream, limits.of_client.bytes, known).await {
        Ok(Some(greeted)) => greeted,
        Ok(None) => return,
        Err(error) => {
            tracing::debug!(%error, "a client of this machine did not greet");
            return;
        }
    };
    here.is_of(&hello.version);
    let server = NonetServer::new(gateway.clone(), hello.profile, None, Parkings::default());
    let serving = async {
        match stdio::serve(server, reader, writer, limits).await {
            Ok(running) => drop(running.waiting().await),
            Err(error) => tracing::debug!(%error, "a client of this machine left before its handshake"),
        }
    };
    tokio::select! {
        () = serving => {}
        () = gateway.stopping().cancelled() => {}
    }
}
