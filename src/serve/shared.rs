//! Clients of the shared gateway: each connection of its socket is one, and speaks as over stdio.

use std::{future::Future, sync::Arc, time::Duration};

use rmcp::service::serve_server;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::watch,
};
use tokio_util::task::TaskTracker;

use super::{Handler, connect_soon, open::Parkings, stdio::ClientLines, verbatim::Verbatim};
use crate::{
    gateway::Gateway,
    shared::{self, Hello, Owner, START_LIMIT},
};

/// How often a gateway without clients looks whether its jobs have ended.
const LOOK: Duration = Duration::from_secs(1);
/// How long clients may take to leave when the gateway stops.
const GRACE: Duration = Duration::from_secs(2);

/// Serves the clients of this machine until `stop` ends, or until there was none for the grace time of the configuration and
/// no job runs.
pub async fn serve_shared(
    gateway: Arc<Gateway>,
    owner: Owner,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let listener = owner.listen()?;
    tracing::info!(pid = std::process::id(), "the shared gateway is ready");
    connect_soon(&gateway);
    let (clients, mut count) = watch::channel(0_usize);
    let tasks = TaskTracker::new();
    let left = async {
        // Whoever started it is on the way.
        let _ = tokio::time::timeout(START_LIMIT, count.wait_for(|count| *count > 0)).await;
        loop {
            let _ = count.wait_for(|count| *count == 0).await;
            let grace = gateway.config().gateway.shared_grace;
            if tokio::time::timeout(grace, count.wait_for(|count| *count > 0)).await.is_ok() {
                continue;
            }
            if gateway.jobs.running() == 0 {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! {
        () = accept(&gateway, &listener, &clients, &tasks) => {}
        () = left => tracing::info!("the last client has left; so does the shared gateway"),
        () = stop => {}
    }
    // Nobody finds this one from now on; who comes now starts the next.
    drop(listener);
    drop(owner);
    gateway.stop().await;
    tasks.close();
    let _ = tokio::time::timeout(GRACE, tasks.wait()).await;
    Ok(())
}

/// Serves the clients of this machine beside others, until the gateway stops.
pub async fn accept_shared(gateway: Arc<Gateway>, owner: Owner) {
    let listener = match owner.listen() {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(%error, "no socket for the clients of this machine");
            return;
        }
    };
    let (clients, tasks) = (watch::Sender::new(0), TaskTracker::new());
    tokio::select! {
        () = accept(&gateway, &listener, &clients, &tasks) => {}
        () = gateway.stopping().cancelled() => {}
    }
}

/// One client that is here.
struct Here(watch::Sender<usize>);

impl Here {
    fn new(clients: &watch::Sender<usize>) -> Self {
        clients.send_modify(|count| *count += 1);
        Self(clients.clone())
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

async fn accept(
    gateway: &Arc<Gateway>,
    listener: &UnixListener,
    clients: &watch::Sender<usize>,
    tasks: &TaskTracker,
) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let here = Here::new(clients);
                let gateway = gateway.clone();
                tasks.spawn(async move {
                    serve_one(gateway, stream).await;
                    drop(here);
                });
            }
            Err(error) => {
                // Too many open files, most likely: others may leave.
                tracing::warn!(%error, "a client of this machine was not taken");
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

async fn serve_one(gateway: Arc<Gateway>, stream: UnixStream) {
    let config = gateway.config();
    let known = |hello: &Hello| match &hello.profile {
        Some(name) if !config.profiles.contains_key(name) => {
            Some(format!("there is no [profiles.{name}] in {}", config.file.display()))
        }
        _ => None,
    };
    let (hello, reader, writer) = match shared::greet(stream, known).await {
        Ok(Some(greeted)) => greeted,
        Ok(None) => return,
        Err(error) => {
            tracing::debug!(%error, "a client of this machine did not greet");
            return;
        }
    };
    let handler = Verbatim(Handler::new(gateway.clone(), hello.profile, false, Parkings::default()));
    let serving = async {
        match serve_server(handler, ClientLines::new(reader, writer)).await {
            Ok(running) => drop(running.waiting().await),
            Err(error) => tracing::debug!(%error, "a client of this machine left before its handshake"),
        }
    };
    tokio::select! {
        () = serving => {}
        () = gateway.stopping().cancelled() => {}
    }
}
