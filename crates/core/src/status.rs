//! The status of the servers and of the gateway: one source for `gateway.status`, `nonet status`, the live
//! page and `/metrics`.

use std::sync::Arc;

use nonet_api::{
    notice::Notice,
    status::{GatewayStatus, LiveStatus, MeanTimes, SearchStatus, ServerState, ServerStatus, ToolMark},
};
use nonet_base::clock::millis;
use nonet_servers::downstream::{Connection, ConnectionState, Remedy, likely_cause};

use super::Gateway;
use crate::{gate::Gate, inquiry};
use nonet_state::{
    placing::runs_at,
    session::{Caller, Session},
};

/// How many marked tools of one server the live page shows.
const MOST_MARKED: usize = 20;

/// Returns the status of a server as far as its connection knows it.
fn status_of(connection: &Connection) -> ServerStatus {
    let state = connection.state();
    let status = ServerStatus {
        state: Some(state.shown()),
        calls_running: connection.in_flight() as u64,
        of: connection.settings().session.map(|_| "session".into()),
        sandboxed: connection.settings().is_sandboxed(),
        breaker: connection.resting(),
        ..ServerStatus::new(connection.name.clone())
    };
    match state {
        ConnectionState::Ready { version, era, took, .. } => {
            ServerStatus { version: Some(version), era, started_ms: Some(millis(took)), ..status }
        }
        ConnectionState::AuthRequired { remedy: Remedy::Page(page), .. } => {
            ServerStatus { last_error: Some(sign_in_at(&page)), ..status }
        }
        ConnectionState::AuthRequired { remedy, .. } if connection.settings().credentials.are_personal() => {
            let known =
                remedy.command().map(|login| format!(", or with a sign-in of the gateway itself: `{login}`"));
            let told = format!(
                "people sign in with their own accounts; its tools are known once the first of them has{}",
                known.unwrap_or_default()
            );
            ServerStatus { last_error: Some(told), ..status }
        }
        ConnectionState::AuthRequired { error, remedy } => {
            let needs_token = matches!(remedy, Remedy::Headers);
            let advice = format!("put a token into `headers` of [servers.{}]", connection.name);
            let last_error = if needs_token { format!("{error}: {advice}") } else { error };
            let login = remedy.command().map(String::from);
            ServerStatus { login, needs_token, last_error: Some(last_error), ..status }
        }
        ConnectionState::Down { error, .. } => {
            let likely_cause = likely_cause(&error).map(Into::into);
            ServerStatus { likely_cause, last_error: Some(error), ..status }
        }
        ConnectionState::Starting | ConnectionState::Stopped => status,
    }
}

fn sign_in_at(page: &str) -> String {
    format!("the user has to sign in with their own account, at this link: {page}")
}

/// Who reads a status.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StatusView {
    /// A caller, who sees its own servers.
    Caller,
    /// The live page, which shows all servers, including those of sessions, and more about each.
    Live,
}

impl Gateway {
    /// Returns the status of all connected servers.
    pub fn all_servers(&self) -> Vec<ServerStatus> {
        let gate = Gate::of(&self.publisher, &Caller::default().session);
        self.server_statuses(&gate, StatusView::Caller)
    }

    /// Returns what `gateway.status` and `nonet check` show.
    pub fn status(&self, caller: &Caller) -> GatewayStatus {
        self.status_for(caller, StatusView::Caller)
    }

    /// Returns what the live page shows.
    pub fn live_status(&self) -> GatewayStatus {
        self.status_for(&Caller::default(), StatusView::Live)
    }

    /// Tells the session of a client that shows user interfaces, once, that it gets none.
    pub fn tell_of_ui(&self, gate: &Gate, session: &Session) {
        let with_ui =
            gate.catalog().servers().iter().filter(|(name, entry)| entry.uis > 0 && gate.sees(name));
        let servers: Vec<String> = with_ui.map(|(name, _)| name.to_string()).take(MOST_MARKED).collect();
        if !servers.is_empty() && session.hears_of_ui() {
            let hint = "This client could show the user interfaces of these servers' tools. The user can write `ui = true` into [gateway] of servers.toml.";
            session.notify(Notice::UiLeftOut { servers, hint: hint.into() });
        }
    }

    /// Checks all definitions once, on a thread for blocking work: thousands take a while.
    pub async fn look_at_definitions(&self) {
        let snapshot = self.publisher.snapshot();
        let look = move || snapshot.tools.iter().for_each(|tool| _ = tool.marks());
        let _ = tokio::task::spawn_blocking(look).await;
    }

    /// Returns the status of the connected servers of a view, by name.
    fn server_statuses(&self, gate: &Gate, view: StatusView) -> Vec<ServerStatus> {
        let is_live = view == StatusView::Live;
        let world = if is_live { self.servers.world() } else { gate.world.clone() };
        let visible = world
            .connections
            .iter()
            .filter(|(name, _)| gate.sees(name) || is_live && world.owners.contains_key(*name));
        let status = |(name, connection): (&Arc<str>, &Arc<Connection>)| {
            let entry = gate.catalog().servers().get(name).filter(|_| !gate.config().has_ui());
            let mut status = ServerStatus {
                uis_left_out: entry.map_or(0, |entry| entry.uis as u64),
                tools: Some(gate.catalog().servers().get(name).map_or(0, |entry| entry.tools.len())),
                restarts: self.observing.metrics.restarts(name),
                runs_at: runs_at(self.keeping.cluster.as_deref(), connection),
                live: is_live.then(|| self.live_status_of(gate, connection)),
                ..self.status_for_person(gate, connection).unwrap_or_else(|| status_of(connection))
            };
            if is_live && connection.is_held() {
                status.state = Some(ServerState::Held);
            }
            status
        };
        visible.map(status).collect()
    }

    /// Returns the status of a person's own connection to a server, if they have an account there of their own.
    fn status_for_person(&self, gate: &Gate, connection: &Connection) -> Option<ServerStatus> {
        let page = gate.account_page(connection)?;
        let own = gate.own_connection(&connection.name);
        let unsigned = || ServerStatus {
            state: Some(ServerState::AuthRequired),
            last_error: Some(sign_in_at(&page)),
            ..ServerStatus::new(connection.name.clone())
        };
        Some(own.map_or_else(unsigned, |own| status_of(&own)))
    }

    fn live_status_of(&self, gate: &Gate, connection: &Connection) -> LiveStatus {
        let entry = gate.catalog().servers().get(&connection.name);
        let tools = || entry.into_iter().flat_map(|entry| &entry.tools);
        let counts = tools().map(|tool| self.observing.metrics.of(tool));
        let (calls, failures) = counts.fold((0, 0), |sum, tool| (sum.0 + tool.0, sum.1 + tool.1));
        let marked = tools().filter_map(|full| {
            let tool = gate.catalog().get(full)?;
            let first = tool.marks().marks.first()?;
            Some(ToolMark { tool: tool.full.clone(), what: first.what.into(), place: first.place.clone() })
        });
        LiveStatus {
            stderr: connection.stderr_tail(),
            marks: marked.take(MOST_MARKED).collect(),
            calls,
            failures,
            uptime_s: connection.ready_for().map(|time| time.as_secs()),
        }
    }

    fn status_for(&self, caller: &Caller, view: StatusView) -> GatewayStatus {
        let gate = &Gate::of(&self.publisher, &caller.session);
        let mut servers = self.server_statuses(gate, view);
        servers.extend(gate.left_out_status());
        servers.sort_by(|a, b| a.name.cmp(&b.name));
        let (profile, token) =
            (caller.session.profile.as_deref(), caller.token.as_ref().map(|token| token.token));
        let snapshot = &gate.snapshot;
        let indexing = *self.publisher.indexing().borrow();
        let (calls, failures) = self.observing.metrics.total();
        GatewayStatus {
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_s: self.servers.uptime().as_secs(),
            config_refused: if gate.is_limited() { None } else { self.texts.refused() },
            servers,
            tools: match gate.is_limited() {
                true => gate.count_tools(),
                false => snapshot.of_servers().filter(|tool| !gate.hides(tool)).count(),
            },
            search: SearchStatus {
                by_meaning: snapshot.index.has_vectors()
                    && self.publisher.embedder().is_some_and(|embedder| !embedder.has_failed()),
                model_loaded: self.publisher.embedder().is_some_and(|embedder| embedder.is_loaded()),
                // They count what a limited caller may not know of.
                indexed: (!gate.is_limited()).then_some(indexing.done),
                of: (!gate.is_limited()).then_some(indexing.total),
            },
            calls,
            failures,
            outcomes: self
                .observing
                .metrics
                .outcomes()
                .into_iter()
                .map(|(of, count)| (of.into(), count))
                .collect(),
            tasks_running: self.keeping.jobs.running(),
            rates: self.calls.rates.load().shown(profile, token, |server| gate.sees(server)),
            // The location of the file is only for callers that may see everything.
            audit: self.observing.audit_status().filter(|_| profile.is_none()),
            cluster: self.keeping.store.shared().filter(|_| profile.is_none()),
            latency: self.observing.metrics.latency(),
            mean_us: self.observing.metrics.mean_us().map(|(gateway, server)| MeanTimes { gateway, server }),
            protocols: match profile {
                None => self.sessions.protocols_but(inquiry::CLIENT),
                Some(_) => Vec::new(),
            },
            kept: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;
    use crate::GatewayOptions;
    use nonet_api::status::Era;
    use nonet_config::{self as config, ValueSources};
    use nonet_parts::jobs::JobOwner;
    use nonet_testing::RedisServer;

    #[tokio::test]
    async fn replicas_share_what_they_keep_and_say_where() {
        let Some(redis) = RedisServer::start() else { return };
        let text = format!("[cluster]\nredis = 'redis://127.0.0.1:{}'\nname = 'one'\n", redis.port);
        let open = || {
            let config = config::parse(&text, Path::new("f"), ValueSources::NONE).expect("usable").config;
            Gateway::new(config, GatewayOptions::default())
        };
        let (one, other) = (open(), open());
        let owner = JobOwner::default();
        let kept = one.keeping.kept.keep(&owner, Arc::new(json!("shared"))).await.expect("kept");
        let query = json!({ "ref": kept.reference }).as_object().cloned().expect("an object");
        let found = other.keeping.kept.fetch(&owner, query, 1_000).await.expect("found");
        assert!(found.to_string().contains("shared"), "{found}");
        let caller = Caller { session: other.sessions.open(None), ..Caller::default() };
        let cluster = json!(other.status(&caller).cluster);
        let at = format!("127.0.0.1:{}", redis.port);
        assert_eq!(cluster, json!({ "engine": "redis", "at": at, "prefix": "nonet", "name": "one" }));
        drop(redis);
        assert!(other.keeping.kept.counts().await.is_none());
        let trouble = other.status(&caller).cluster.and_then(|cluster| cluster.trouble);
        assert!(
            trouble.as_deref().is_some_and(|trouble| trouble.starts_with("does not answer")),
            "{trouble:?}"
        );
    }

    #[test]
    fn only_known_figures_are_in_a_status() {
        let check = |status: ServerStatus, expected: Value| assert_eq!(json!(status), expected);
        let named = || ServerStatus::new("a".into());
        check(named(), json!({ "name": "a" }));
        check(
            ServerStatus {
                state: Some(ServerState::Ready),
                tools: Some(0),
                restarts: 2,
                era: Some(Era::Session),
                ..named()
            },
            json!({ "name": "a", "state": "ready", "tools": 0, "restarts": 2, "era": "legacy" }),
        );
        let live = LiveStatus { calls: 3, uptime_s: Some(4), ..LiveStatus::default() };
        check(
            ServerStatus { live: Some(live), ..named() },
            json!({ "name": "a", "calls": 3, "failures": 0, "uptime_s": 4 }),
        );
    }
}
