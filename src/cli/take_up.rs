//! Waits until the running gateway, which reads a changed servers.toml by itself, has applied the change.

use std::{path::Path, time::Duration};

use nonet_api::status::{ProcessStatus, ServerState, ServerStatus};
use nonet_config::shell;
use nonet_core::inquiry::Inquiry;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    FAILED, OK,
    ask::{self, AskFailure},
    show,
    signal::stopped,
};

/// How long the gateway may take to read the file.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// The additional time for a new server to start.
const START_LIMIT: Duration = Duration::from_secs(20);
/// The interval between status requests.
const EVERY: Duration = Duration::from_millis(100);

/// The expected state of a server in the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpectedState {
    /// The server is there, and its start has finished or failed.
    Present,
    /// The server is gone.
    Absent,
}

/// What the running gateway shows.
#[derive(Debug)]
pub(super) enum ObservedState {
    /// No gateway is running for this file.
    NotRunning,
    /// The gateway is running, but does not show the change.
    Unseen,
    /// The user interrupted the wait.
    Stopped(u8),
    /// The gateway has the server, in this state.
    Present(Box<ServerStatus>),
    /// The gateway no longer has the server.
    Absent,
}

/// Waits until the running gateway has applied the change of a server.
pub(super) async fn wait(file: &Path, server: &str, wanted: ExpectedState) -> ObservedState {
    tokio::select! {
        taken_up = watch(file, server, wanted) => taken_up,
        code = stopped() => ObservedState::Stopped(code),
    }
}

async fn watch(file: &Path, server: &str, wanted: ExpectedState) -> ObservedState {
    let began = Instant::now();
    loop {
        let Some(running) = ask::running(file, None).await else { return ObservedState::NotRunning };
        let status = match ask::inquire(running, &Inquiry::Status).await {
            Ok(Ok(status)) => status,
            Ok(Err(_)) | Err(AskFailure::Unanswered(_) | AskFailure::Denied) => return ObservedState::Unseen,
            Err(AskFailure::Stopped(code)) => return ObservedState::Stopped(code),
        };
        let Ok(status) = show::read::<ProcessStatus>(&status) else { return ObservedState::Unseen };
        let seen = status.gateway.servers.into_iter().find(|known| *known.name == *server);
        let elapsed = began.elapsed();
        match (wanted, seen) {
            (ExpectedState::Absent, None) => return ObservedState::Absent,
            (ExpectedState::Present, Some(seen)) => {
                let is_starting = matches!(seen.state, Some(ServerState::Starting | ServerState::Stopped));
                if !is_starting || elapsed > READ_LIMIT + START_LIMIT {
                    return ObservedState::Present(Box::new(seen));
                }
            }
            _ if elapsed > READ_LIMIT => return ObservedState::Unseen,
            _ => {}
        }
        sleep(EVERY).await;
    }
}

impl ObservedState {
    /// Returns the exit code: a server that fails in the gateway is a failure.
    pub(super) fn code(&self) -> u8 {
        match self {
            Self::Stopped(code) => *code,
            Self::Present(server)
                if matches!(server.state, Some(ServerState::Down | ServerState::NeedsConfig)) =>
            {
                FAILED
            }
            _ => OK,
        }
    }

    pub(super) fn tell(&self, server: &str, file: &Path) {
        match self {
            Self::NotRunning => say!(
                "No shared gateway is running. A gateway that a client started applies the change by itself."
            ),
            Self::Unseen => show::complain(format_args!(
                "the running gateway does not show the change yet; `{}` reports why",
                shell::nonet("logs", file)
            )),
            Self::Stopped(_) => {}
            Self::Absent => say!("The running gateway no longer has `{server}`."),
            Self::Present(status) => {
                let error = status.last_error.as_deref().unwrap_or_default();
                match status.state {
                    Some(ServerState::Ready) => {
                        let tools = show::count(status.tools.unwrap_or_default() as u64, "tool");
                        say!("The running gateway has `{server}`: ready, {tools}.");
                    }
                    Some(ServerState::AuthRequired) => {
                        say!("The running gateway has `{server}`, which requires sign-in.")
                    }
                    Some(ServerState::Starting) => {
                        say!("The running gateway has `{server}` and is still starting it.")
                    }
                    Some(ServerState::NeedsConfig) => {
                        show::complain(format_args!("the running gateway leaves `{server}` out: {error}"));
                    }
                    _ => show::complain(format_args!(
                        "`{server}` does not start in the running gateway: {}",
                        show::failure(error, false)
                    )),
                }
            }
        }
    }

    pub(super) fn json(&self) -> Value {
        match self {
            Self::NotRunning => json!({ "running": false }),
            Self::Unseen | Self::Stopped(_) => json!({ "running": true, "taken_up": false }),
            Self::Absent => json!({ "running": true, "taken_up": true }),
            Self::Present(server) => json!({ "running": true, "taken_up": true, "server": server }),
        }
    }
}
