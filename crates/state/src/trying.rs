//! Servers that are tried out before they are written to servers.toml.

use std::time::Duration;

use futures::future::join_all;
use nonet_api::{servers::TrialView, status::ServerState};
use nonet_base::text::clip;
use nonet_config::{Config, ServerSettings};
use nonet_servers::downstream::{ConnectionState, Remedy, ServerUpdate, likely_cause};
use tokio::sync::mpsc;

use crate::servers::Servers;

/// The maximum time for a server to start, and for it to stop.
const LONGEST_START: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// How many lines of stderr are reported, and how long they may be.
const STDERR_LINES: usize = 12;
const STDERR_LINE: usize = 300;

/// The result of trying out a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrialResult {
    /// The server has listed this many tools.
    Ready(usize),
    /// The server responds but requires a sign-in with this command.
    SignIn(Option<String>),
    /// The server does not work, for this reason.
    Failed(String),
    /// The configuration would leave the server out: why, and the remedy.
    LeftOut(String),
}

impl TrialResult {
    /// Returns the result for a state; `listed` counts the tools of a ready server.
    pub fn of(state: ConnectionState, listed: impl FnOnce() -> usize) -> Self {
        match state {
            ConnectionState::Ready { .. } => Self::Ready(listed()),
            ConnectionState::AuthRequired { remedy: Remedy::Login(login), .. } => Self::SignIn(Some(login)),
            ConnectionState::AuthRequired { error, .. } | ConnectionState::Down { error, .. } => {
                Self::Failed(error)
            }
            ConnectionState::Starting => Self::Failed("it did not start in time".into()),
            ConnectionState::Stopped => Self::Failed("it was not started".into()),
        }
    }

    /// Returns the result for a server that a configuration leaves out.
    pub fn left_out(config: &Config, name: &str) -> Option<Self> {
        let left_out = config.left_out.get(name)?;
        let faults = left_out.faults.iter().map(|fault| format!("{}. {}", fault.message, fault.remedy));
        Some(Self::LeftOut(faults.collect::<Vec<_>>().join(" ")))
    }

    /// Whether the server is unusable in this state.
    pub fn has_failed(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::LeftOut(_))
    }

    /// Returns why the server cannot be used yet, if so.
    pub fn trouble(&self) -> Option<String> {
        match self {
            Self::Ready(_) => None,
            Self::SignIn(Some(login)) => Some(format!("it requires sign-in; run `{login}`")),
            Self::SignIn(None) => Some("it requires sign-in".into()),
            Self::Failed(why) | Self::LeftOut(why) => Some(why.clone()),
        }
    }

    /// Returns the result as answers show it.
    pub fn view(&self) -> TrialView {
        let (state, tools, login, last_error) = match self {
            Self::Ready(tools) => (ServerState::Ready, Some(*tools), None, None),
            Self::SignIn(login) => (ServerState::AuthRequired, None, login.clone(), None),
            Self::Failed(error) => (ServerState::Down, None, None, Some(error.clone())),
            Self::LeftOut(why) => (ServerState::NeedsConfig, None, None, Some(why.clone())),
        };
        let (likely_cause, stderr) = (None, Vec::new());
        TrialView { state: Some(state), tools, login, last_error, likely_cause, stderr }
    }
}

/// A server that was tried out, for its user.
#[derive(Clone, Debug)]
pub struct ServerTrial {
    /// The server.
    pub name: String,
    /// How it did; none if it is disabled.
    pub tried: Option<TrialResult>,
    likely_cause: Option<&'static str>,
    /// The last lines of stderr of a failed server.
    stderr: Vec<String>,
}

impl ServerTrial {
    fn of(name: &str, tried: Option<TrialResult>) -> Self {
        Self { name: name.into(), tried, likely_cause: None, stderr: Vec::new() }
    }

    /// Returns the trial as answers show it.
    pub fn view(&self) -> TrialView {
        let likely_cause = self.likely_cause.map(Into::into);
        let tried = self.tried.as_ref().map(TrialResult::view).unwrap_or_default();
        TrialView { likely_cause, stderr: self.stderr.clone(), ..tried }
    }

    /// Whether the server is unusable in this state.
    pub fn has_failed(&self) -> bool {
        self.tried.as_ref().is_some_and(TrialResult::has_failed)
    }
}

impl Servers {
    /// Starts servers of a configuration that is not in use, all at once, and stops them again. No client
    /// sees these servers. Returns the result of each; for a failed server, with its last lines of stderr.
    pub async fn try_servers(&self, config: &Config, names: &[String]) -> Vec<ServerTrial> {
        self.mask_by(config);
        join_all(names.iter().map(async |name| {
            let settings = config.servers.iter().find(|(known, _)| known.as_str() == name);
            match (TrialResult::left_out(config, name), settings) {
                (Some(left_out), _) => ServerTrial::of(name, Some(left_out)),
                (None, Some((_, settings))) if !settings.enabled => ServerTrial::of(name, None),
                (None, Some((_, settings))) => self.try_server(name, settings).await,
                (None, None) => {
                    ServerTrial::of(name, Some(TrialResult::Failed("it is not in the configuration".into())))
                }
            }
        }))
        .await
    }

    async fn try_server(&self, name: &str, settings: &ServerSettings) -> ServerTrial {
        let (updates, mut listed) = mpsc::channel(8);
        let connection = self.trial(name.into(), settings, &updates);
        drop(updates);
        let counted = tokio::spawn(async move {
            let mut tools = 0;
            while let Some(update) = listed.recv().await {
                if let ServerUpdate::Listed { listing: Some(listing), published, .. } = update {
                    tools = listing.tools.len();
                    let _ = published.send(());
                }
            }
            tools
        });
        let mut states = connection.watch();
        let limit = settings.start_timeout.min(LONGEST_START);
        let settled = tokio::time::timeout(limit, states.wait_for(ConnectionState::settled)).await.is_ok();
        let state = if settled { connection.state() } else { ConnectionState::Starting };
        let stderr = connection.stderr_tail();
        connection.retired().cancel();
        let stopped = states.wait_for(|state| matches!(state, ConnectionState::Stopped));
        let _ = tokio::time::timeout(STOP_LIMIT, stopped).await;
        let tools = match tokio::time::timeout(STOP_LIMIT, counted).await {
            Ok(Ok(tools)) => tools,
            _ => 0,
        };
        let tried = TrialResult::of(state, || tools);
        let mut trial = ServerTrial::of(name, Some(tried.clone()));
        if let TrialResult::Failed(error) = &tried {
            trial.likely_cause = likely_cause(error);
            let tail = stderr.iter().rev().take(STDERR_LINES).rev().map(|line| clip(line, STDERR_LINE));
            trial.stderr = tail.collect();
        }
        trial
    }
}
