//! Servers that clients add while the gateway runs.
//!
//! A server belongs to the session that added it: only that session and its apps see it, and it ends with the
//! session. A permanent server first starts as the session's server, so that only a working server is written
//! to servers.toml; then servers.toml takes it over.

mod file;

use std::{sync::Arc, time::Duration};

use nonet_api::notice::Notice;
use nonet_base::text::clip;
use nonet_config::{self as config, OneServer, ServerSettings, Transport, shell};
use nonet_servers::{
    catalog::Tool,
    downstream::{ConnectionState, Remedy, ServerUpdate},
};
use nonet_store::reloads::text_hash;
use nonet_text::{
    fault::{Fault, FaultCode, NextStep},
    name::{self, ServerName},
};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::Gateway;
use crate::gate::Gate;
use nonet_state::{
    added_servers::{Refusal, bytes, does_not_start, free_name, has_room, question, told, wants_sign_in},
    session::Caller,
    world::World,
};

/// How long an answer waits for a new server.
const WAIT: Duration = Duration::from_secs(20);
/// How long calls in flight to a removed server may continue, and how long it may take to stop.
const RETIRE_LIMIT: Duration = Duration::from_secs(5);
const STOP_LIMIT: Duration = Duration::from_secs(8);
/// How long the gateway may take to apply a changed file.
const RELOAD_LIMIT: Duration = Duration::from_secs(10);
/// The maximum size of one text of a server, and of all its texts together, because the user has to read
/// them. In bytes.
pub(super) const MAX_TEXT: usize = 4_000;
const MAX_TEXTS: usize = 16_000;

/// A server that could be added.
struct ServerCandidate {
    name: Arc<str>,
    server: OneServer,
    persist: bool,
}

/// A server that is being tried out. Ends if it is dropped before it is kept.
struct Trial {
    gateway: Arc<Gateway>,
    session: u64,
    name: Arc<str>,
    is_kept: bool,
}

impl Drop for Trial {
    fn drop(&mut self) {
        if !self.is_kept {
            self.gateway.end_servers(self.session, Some(&self.name));
        }
    }
}

impl Gateway {
    /// Builds the question to the user whether a server may be added.
    pub(super) fn question_of_adding(
        &self,
        caller: &Caller,
        params: &Map<String, Value>,
    ) -> Result<String, Fault> {
        let ServerCandidate { name, server, persist } = self.plan(caller, params)?;
        let file = self.servers.config().file.display().to_string();
        Ok(question(&name, &server.settings, params, persist.then_some(&*file)))
    }

    /// Adds a server, and waits until its tools can be found.
    pub(super) async fn add_server(
        self: &Arc<Self>,
        caller: &Caller,
        params: &Map<String, Value>,
    ) -> Result<Value, Fault> {
        let ServerCandidate { name, server: OneServer { settings, keys }, persist } =
            self.plan(caller, params)?;
        let Some(updates) = self.publisher.updates() else {
            return Err(Fault::new(
                FaultCode::Internal,
                "The gateway has not started its servers yet; try again.",
            ));
        };
        let session = caller.session.of_client();
        let settings = ServerSettings { session: Some(session.id), ..settings };
        let connection =
            self.servers.add(&name, &settings, &updates, |world| has_room(world, &name, session.id))?;
        self.observing.audit_event("server_added", || json!({ "server": &*name, "session": session.id }));
        let mut trial =
            Trial { gateway: self.clone(), session: session.id, name: name.clone(), is_kept: false };
        let mut states = connection.watch();
        let settled = tokio::select! {
            settled = tokio::time::timeout(WAIT, states.wait_for(ConnectionState::settled)) => settled.is_ok(),
            () = caller.cancel.cancelled() => return Err(Fault::new(FaultCode::Cancelled, "The server was not added.")),
        };
        let state = if settled { connection.state() } else { ConnectionState::Starting };
        match &state {
            ConnectionState::Ready { .. } | ConnectionState::Starting => {}
            ConnectionState::AuthRequired { remedy: Remedy::Login(_), .. } if persist => {}
            ConnectionState::AuthRequired { error, .. } => return Err(wants_sign_in(&name, error)),
            ConnectionState::Down { error, .. } => return Err(does_not_start(&connection, error, persist)),
            ConnectionState::Stopped => {
                return Err(Fault::new(
                    FaultCode::Internal,
                    format!("`{name}` was removed in the meantime."),
                ));
            }
        }
        let mut taken_up = true;
        if persist {
            taken_up = self.keep_in_file(&name, keys, &state).await?;
        } else {
            let gateway = self.clone();
            session.until_end(|| gateway.guard_of(session.id));
        }
        trial.is_kept = !persist || taken_up;
        drop(trial);
        Ok(self.added(caller, &name, &state, persist, taken_up))
    }

    /// Builds the answer for an added server.
    fn added(
        &self,
        caller: &Caller,
        name: &str,
        state: &ConnectionState,
        persist: bool,
        taken_up: bool,
    ) -> Value {
        let gate = Gate::of(&self.publisher, &caller.session);
        let all = gate.server(name).map_or(0, |entry| entry.tools.len());
        let visible = gate.tools().filter(|tool| *tool.server == *name).count();
        let mut answer = json!({ "name": name, "state": state.shown(), "tools": visible });
        if persist {
            answer["file"] = json!(self.servers.config().file);
        }
        let status = NextStep::own("status", json!({}));
        let hint = match state {
            _ if !taken_up => Some(
                "servers.toml has the server, but the gateway has not loaded it yet: the user may need to restart Nonet.".into(),
            ),
            ConnectionState::Starting => Some(format!(
                "It has not started within {} s and is still starting; its tools can be found as soon as it is ready.",
                WAIT.as_secs()
            )),
            ConnectionState::AuthRequired { remedy, .. } => {
                remedy.command().map(|login| format!("It requires sign-in: the user must run `{login}`."))
            }
            _ if visible == 0 && all > 0 => Some(format!(
                "None of its {all} tools is visible: this client's profile does not allow it. The user can change the profile."
            )),
            _ if all == 0 => Some("It has no tools.".into()),
            _ => None,
        };
        let next = match hint.is_some() {
            true => status,
            false => NextStep::new("browse_category", json!({ "category": name })),
        };
        if let Some(hint) = hint {
            answer["hint"] = json!(hint);
        }
        answer["next_step"] = json!(next);
        answer
    }

    /// Builds the question to the user whether a server may be removed.
    pub(super) fn question_of_removing(&self, caller: &Caller, name: &str) -> Result<String, Fault> {
        match self.removable(caller, name)? {
            RemovalPlace::OfSession => {
                Ok(format!("Remove the server `{name}`, which this session has added?"))
            }
            RemovalPlace::OfFile => Ok(format!(
                "Remove the server `{name}` from {}, for all clients? It was added with gateway.add_server.",
                self.servers.config().file.display()
            )),
        }
    }

    /// Removes a server that was added here, and waits until it has stopped.
    pub(super) async fn remove_server(self: &Arc<Self>, caller: &Caller, name: &str) -> Result<Value, Fault> {
        let mut answer = json!({ "name": name, "state": "removed" });
        match self.removable(caller, name)? {
            RemovalPlace::OfSession => {
                let (gateway, session) = (self.clone(), caller.session.of_client().id);
                let name = name.to_string();
                // Runs to its end even if the call is cut off: nothing else would stop the process.
                let removal = async move { gateway.retire_servers(session, &name).await };
                let _ = self.servers.life.tasks.spawn(removal).await;
            }
            RemovalPlace::OfFile => {
                if let Some(hint) = self.take_from_file(name).await? {
                    answer["hint"] = json!(hint);
                }
            }
        }
        Ok(answer)
    }

    /// Removes a session's server from the world, and waits until it has stopped and is no longer published.
    async fn retire_servers(&self, session: u64, name: &str) {
        for connection in self.servers.remove(session, Some(name)) {
            self.observing.audit_event("server_removed", || json!({ "server": name, "session": session }));
            let mut states = connection.watch();
            connection.retire(RETIRE_LIMIT).await;
            let stopped = states.wait_for(|state| matches!(state, ConnectionState::Stopped));
            let _ = tokio::time::timeout(STOP_LIMIT, stopped).await;
        }
        if let Some(updates) = self.publisher.updates() {
            let _ = updates.send(ServerUpdate::Reconfigured).await;
        }
        self.publisher.published().await;
    }

    /// Writes a server to the file, and waits until it has replaced the session's server. Returns whether it
    /// has.
    async fn keep_in_file(
        &self,
        name: &Arc<str>,
        keys: Map<String, Value>,
        state: &ConnectionState,
    ) -> Result<bool, Fault> {
        self.servers.persisting.insert(name.clone());
        let (file, server) = (self.servers.config().file.clone(), name.clone());
        let written = tokio::task::spawn_blocking(move || file::add(&file, &server, &keys)).await;
        let taken_up = match written {
            Ok(Ok(())) => Ok(self
                .until_published(
                    |world, published| {
                        let is_published = published.is_some_and(|session| session.is_none());
                        let is_there =
                            world.connections.contains_key(name) && !world.owners.contains_key(name);
                        is_there && (is_published || !matches!(state, ConnectionState::Ready { .. }))
                    },
                    name,
                )
                .await),
            Ok(Err(why)) => Err(Fault::new(
                FaultCode::Internal,
                format!("`{name}` works, but could not be written: {why}"),
            )),
            Err(_) => {
                Err(Fault::new(FaultCode::Internal, format!("`{name}` works, but could not be written.")))
            }
        };
        self.servers.persisting.remove(name);
        taken_up
    }

    /// Removes a server from the file, and waits until it is gone. Returns a hint for the user.
    async fn take_from_file(&self, name: &str) -> Result<Option<String>, Fault> {
        let (file, server) = (self.servers.config().file.clone(), name.to_string());
        let removed = tokio::task::spawn_blocking(move || {
            let unused = file::remove(&file, &server)?;
            Ok::<_, file::FileEditError>((unused, config::read_text(&file)))
        });
        let unused = match removed.await {
            Ok(Ok((unused, text))) => {
                // It may have been the only server. A text refused earlier stays refused.
                if let Ok(text) = text
                    && self.texts.refused().is_none()
                {
                    self.texts.accept(text_hash(&text));
                }
                unused
            }
            Ok(Err(why)) => {
                return Err(Fault::new(FaultCode::Internal, format!("`{name}` was not removed: {why}")));
            }
            Err(_) => return Err(Fault::new(FaultCode::Internal, format!("`{name}` was not removed."))),
        };
        let is_gone = |world: &World, published: Option<Option<u64>>| {
            !world.connections.contains_key(name) && published.is_none()
        };
        if !self.until_published(is_gone, name).await {
            return Ok(Some(
                "The gateway has not applied the change yet: the user may need to restart Nonet.".into(),
            ));
        }
        let unused = unused.join(", ");
        Ok((!unused.is_empty())
            .then(|| format!("Secrets that are no longer used are still stored: {unused}. The user can delete each with `nonet secret remove NAME --file`.")))
    }

    /// Waits until `is_wanted` accepts the world and the published server: `None` if it is gone, else the
    /// session that owns it. Returns whether that happened in time.
    async fn until_published(
        &self,
        is_wanted: impl Fn(&World, Option<Option<u64>>) -> bool,
        server: &str,
    ) -> bool {
        let (mut reloads, mut indexing) = (self.servers.reloads(), self.publisher.indexing());
        let wanted = async {
            loop {
                let published =
                    self.publisher.snapshot().catalog.servers().get(server).map(|entry| entry.session);
                if is_wanted(&self.servers.world(), published) {
                    return true;
                }
                let changed = tokio::select! {
                    changed = reloads.changed() => changed,
                    changed = indexing.changed() => changed,
                };
                if changed.is_err() {
                    return false;
                }
            }
        };
        tokio::time::timeout(RELOAD_LIMIT, wanted).await.unwrap_or(false)
    }

    /// Whether a caller may remove a server, and from where.
    fn removable(&self, caller: &Caller, name: &str) -> Result<RemovalPlace, Fault> {
        let gate = Gate::of(&self.publisher, &caller.session);
        if gate.world.owners.get(name) == Some(&caller.session.of_client().id) {
            return Ok(RemovalPlace::OfSession);
        }
        let config = gate.config();
        let is_of_file =
            config.servers.keys().any(|server| server.as_str() == name) || config.left_out.contains_key(name);
        if is_of_file && gate.may_concern(name) {
            if file::was_added(&config.file, name) && !gate.is_limited() {
                return Ok(RemovalPlace::OfFile);
            }
            let message = format!(
                "`{name}` is a server of {}, and was not added by this client. The user can run `{} {name}`.",
                config.file.display(),
                shell::nonet("remove", &config.file)
            );
            return Err(Fault::new(FaultCode::Forbidden, message));
        }
        let own = gate.world.owners.keys().filter(|server| !gate.is_foreign(server)).map(|server| &**server);
        let near = name::nearest(name, own, 3);
        let message = format!("There is no server `{}` that this session has added.", clip(name, 80));
        let fault = Fault::new(FaultCode::NotFound, message).suggest(&near);
        Err(match near.first() {
            Some(near) => fault.then(NextStep::own("remove_server", json!({ "name": near }))),
            None => fault.then(NextStep::own("status", json!({}))),
        })
    }

    /// Checks whether a server may be added, as far as possible before it is started.
    fn plan(&self, caller: &Caller, params: &Map<String, Value>) -> Result<ServerCandidate, Fault> {
        let given = params.get("name").and_then(Value::as_str).unwrap_or_default().trim();
        let again = |key: &str, value: Value| {
            let mut params = params.clone();
            params.insert(key.into(), value);
            NextStep::own("add_server", Value::Object(params))
        };
        let invalid = |message: String| Fault::new(FaultCode::InvalidParams, message);
        let name: Arc<str> = match ServerName::new(given) {
            Ok(name) => name.as_str().into(),
            Err(bad) => {
                let message = format!("`{}` is not a server name: {}.", clip(given, 80), bad.why);
                return Err(invalid(message).then(again("name", json!(bad.nearest))));
            }
        };
        let persist = params.get("persist") == Some(&Value::Bool(true));
        if persist && caller.session.profile.is_some() {
            let message = "A client with a profile cannot add servers for all clients. Leave `persist` out: the server is there for this session.";
            return Err(Fault::new(FaultCode::Forbidden, message).then(again("persist", json!(false))));
        }
        if !persist && !caller.lasting {
            let message = "This client has no session that lasts, so a server of the session would end with this call. With `persist`, the server goes into servers.toml and stays.";
            return Err(Fault::new(FaultCode::Forbidden, message).then(again("persist", json!(true))));
        }
        let keys = params.iter().filter(|(key, _)| !["name", "persist"].contains(&key.as_str()));
        let keys: Map<String, Value> = keys.map(|(key, value)| (key.clone(), value.clone())).collect();
        let size: usize = keys.values().map(bytes).sum();
        if size > MAX_TEXTS {
            return Err(invalid(format!(
                "The server's texts have {size} bytes; the user can review at most {MAX_TEXTS}. Put long texts into a file."
            )));
        }
        let world = self.servers.world();
        if let Err(refusal) = has_room(&world, &name, caller.session.of_client().id) {
            return Err(match refusal {
                Refusal::Taken => {
                    let free = free_name(&world, &name);
                    Fault::from(refusal).then(again("name", json!(free)))
                }
                _ => refusal.into(),
            });
        }
        let env = nonet_base::variables::var;
        let mut server = config::server_of(&name, &keys, &world.config.file, &env)
            .map_err(|faults| invalid(told(&name, &faults)))?;
        // The same limits as for every server of the file.
        server.settings.limits = world.config.limits.messages();
        if let Transport::Stdio { inherit_env, sandbox, .. } = &mut server.settings.transport {
            *inherit_env = inherit_env.with(&world.config.gateway.inherit_env);
            if let Some(of_gateway) = &world.config.sandbox {
                if keys.contains_key("sandbox") {
                    let message =
                        "The `sandbox` of servers that a client adds is that of `[gateway]` in servers.toml.";
                    let mut params = params.clone();
                    params.remove("sandbox");
                    let step = NextStep::own("add_server", Value::Object(params));
                    return Err(Fault::new(FaultCode::Forbidden, message).then(step));
                }
                *sandbox = Some(Box::new(of_gateway.clone()));
            }
        }
        Ok(ServerCandidate { name, server, persist })
    }

    /// Returns a guard that ends the servers of a session when it is dropped.
    fn guard_of(self: Arc<Self>, session: u64) -> tokio_util::sync::DropGuard {
        let end = CancellationToken::new();
        let (ended, stop) = (end.clone(), self.servers.stopping().clone());
        self.servers.life.tasks.clone().spawn(async move {
            tokio::select! {
                () = ended.cancelled() => self.end_servers(session, None),
                () = stop.cancelled() => {}
            }
        });
        end.drop_guard()
    }

    /// Ends the servers of a session, or only the server with this name.
    fn end_servers(self: &Arc<Self>, session: u64, name: Option<&str>) {
        let gone = self.servers.remove(session, name);
        for connection in &gone {
            self.observing
                .audit_event("server_removed", || json!({ "server": &*connection.name, "session": session }));
        }
        if gone.is_empty() {
            return;
        }
        for connection in &gone {
            tracing::info!(server = %connection.name, session, "a server of a session has ended");
            connection.retired().cancel();
        }
        let Some(updates) = self.publisher.updates() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            self.servers
                .life
                .tasks
                .spawn_on(async move { drop(updates.send(ServerUpdate::Reconfigured).await) }, &runtime);
        }
    }

    /// Notifies sessions that a changed file has ended their servers.
    pub(super) fn tell_of_ended(&self, servers: &[(Arc<str>, u64)]) {
        let config = self.servers.config();
        for (server, session) in servers {
            let Some(session) = self.sessions.get(*session) else { continue };
            let name = server.to_string();
            session.notify(match config.gateway.allow_runtime_servers {
                true => Notice::ServerReplaced {
                    server: name,
                    message: format!(
                        "servers.toml now has a server `{server}`, which replaces the one that this session added."
                    ),
                },
                false => Notice::ServerRemoved {
                    server: name,
                    message: format!(
                        "servers.toml no longer has `allow_runtime_servers = true`, so the server `{server}` that this session added has ended."
                    ),
                },
            });
        }
    }
}

/// Where a server can be removed.
enum RemovalPlace {
    OfSession,
    OfFile,
}

pub(super) fn ends_with_session(tool: &Tool) -> Fault {
    let message = format!(
        "`{}` belongs to this session and ends with it, so it cannot run later by itself. The server must be in servers.toml: remove it and add it again with `persist`.",
        tool.full
    );
    let step = NextStep::own("remove_server", json!({ "name": &*tool.server }));
    Fault::new(FaultCode::Forbidden, message).then(step)
}
