//! The MCP endpoint of one profile over HTTP: its sessions, and requests of both eras.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use axum::response::Response;
use dashmap::DashMap;
use http::{Extensions, Method, StatusCode, header::RETRY_AFTER, request::Parts};
use nonet_core::{Gate, Gateway};
use nonet_meta as meta;
use nonet_parts::quotas::{Account, QuotaExceeded, RETRY_SESSION};
use nonet_peer::{
    Handler,
    client::{ClientPeer, ClientWay},
    eras, headers, reply,
    request::{ClientMessage, ClientRequest, RequestContext},
    session::{HttpSession, answer_stateless},
    streams::EventStream,
};
use nonet_text::fault::Fault;
use nonet_wire::{Message, off_thread};
use rmcp::{
    ErrorData,
    model::{ProtocolVersion, RequestId, RequestMetaObject},
};
use serde_json::{Map, Value};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{
    NonetServer, RATE_LIMITED, RequestAccount,
    carried::{CarriedSessions, GoesOn},
    elsewhere, person_of,
    unused_sessions::UnusedSessions,
};

/// How often idle sessions and old streams are looked for.
const LOOK: Duration = Duration::from_secs(30);
const METHODS: &str = "GET, POST, DELETE";

/// A refusal is large, and rare.
type Refusal = Box<Response>;
type ClientSession = HttpSession<NonetServer>;

/// The MCP endpoint of one profile.
pub(super) struct Door {
    gateway: Arc<Gateway>,
    profile: Option<String>,
    sessions: DashMap<Box<str>, Arc<ClientSession>>,
    unused: UnusedSessions,
    /// The account of requests without a token.
    strangers: Arc<Account>,
    /// The records of the sessions for the other replicas.
    pub(super) carried: Option<Arc<CarriedSessions>>,
    /// Sessions of other replicas that are being continued here.
    restoring: DashMap<Box<str>, Arc<tokio::sync::Mutex<()>>>,
    /// Ends all of its sessions.
    pub(super) end: CancellationToken,
}

impl Door {
    pub(super) fn new(
        gateway: &Arc<Gateway>,
        profile: Option<String>,
        ending: &CancellationToken,
    ) -> Arc<Self> {
        let cluster = gateway.keeping.cluster.as_ref();
        let carried = cluster.map(|cluster| CarriedSessions::new(cluster.clone(), profile.clone()));
        let door = Arc::new(Self {
            sessions: DashMap::new(),
            unused: UnusedSessions::default(),
            strangers: gateway.sessions.account_of_strangers(profile.as_deref()),
            carried,
            restoring: DashMap::new(),
            end: ending.child_token(),
            gateway: gateway.clone(),
            profile,
        });
        if let Some(carried) = &door.carried {
            tokio::spawn(carried.clone().keep(door.end.clone()));
        }
        tokio::spawn(door.end.clone().run_until_cancelled_owned(look_for_idle(Arc::downgrade(&door))));
        door
    }

    /// Returns a handler with a new session, for the person of a request.
    fn server(&self, beside: &Extensions) -> NonetServer {
        let (strangers, person) = (Some(self.strangers.clone()), person_of(beside).cloned());
        let end = Some(self.end.clone());
        NonetServer::new(self.gateway.clone(), self.profile.clone(), person, strangers, end)
    }

    /// Answers a request other than a POST.
    pub(super) async fn answer(self: &Arc<Self>, parts: Parts) -> Response {
        let answered = match parts.method {
            Method::GET => self.listen(&parts).await,
            Method::DELETE => self.leave(&parts).await,
            _ => Ok(headers::method_not_allowed(METHODS)),
        };
        answered.unwrap_or_else(|refusal| *refusal)
    }

    /// Opens the stream of a session, or resumes one.
    async fn listen(self: &Arc<Self>, parts: &Parts) -> Result<Response, Refusal> {
        if let Some(refusal) = headers::unsuitable_get(&parts.headers) {
            return Ok(refusal);
        }
        if !headers::is_of_session(&parts.headers, None)? {
            return Ok(headers::method_not_allowed("POST"));
        }
        let session = self.session(parts).await?;
        session.use_now();
        Ok(session.listen(&parts.headers))
    }

    /// Ends a session for its client.
    async fn leave(self: &Arc<Self>, parts: &Parts) -> Result<Response, Refusal> {
        if !headers::is_of_session(&parts.headers, None)? {
            return Ok(headers::method_not_allowed("POST"));
        }
        let id = headers::session_id(&parts.headers).ok_or_else(no_session_id)?;
        // Nobody ends another's session, nor learns from the answer that there is one.
        let here = self.sessions.get(id).map(|session| session.clone());
        let is_theirs = match here {
            Some(session) => is_of(session.handler.session.owner.person(), &parts.extensions),
            // Its record says whose it is.
            None if self.carried.is_some() && self.gateway.servers.config().auth.is_some() => {
                Box::pin(self.session_elsewhere(id, parts)).await.is_ok()
            }
            None => true,
        };
        if is_theirs {
            self.end_session(id).await;
        }
        // Some clients take a 202 for a failure here.
        Ok(headers::empty(StatusCode::NO_CONTENT))
    }

    /// Answers the message of a POST.
    pub(super) async fn post(self: &Arc<Self>, parts: Parts, message: Message) -> Response {
        // Large arguments are parsed on another thread.
        let (read, _share) = off_thread(message.weight(), move || {
            ClientMessage::of(&message).map_err(|why| (message.id(), why))
        })
        .await;
        let answered = match read {
            Ok(ClientMessage::Request(request)) => self.request(parts, *request).await,
            Ok(message) => Box::pin(self.take(&parts, message)).await,
            Err((id, why)) => {
                let error = ErrorData::invalid_request(format!("Invalid Request: {why}"), None);
                Ok(headers::failed(StatusCode::BAD_REQUEST, id.as_ref(), &error))
            }
        };
        answered.unwrap_or_else(|refusal| *refusal)
    }

    /// Takes a message that gets no answer.
    async fn take(self: &Arc<Self>, parts: &Parts, message: ClientMessage) -> Result<Response, Refusal> {
        if !headers::is_of_session(&parts.headers, None)? {
            if let ClientMessage::Answer(..) = message {
                let why = "stateless server does not accept JSON-RPC responses";
                let error = ErrorData::invalid_request(why, None);
                return Ok(headers::failed(StatusCode::BAD_REQUEST, None, &error));
            }
            return Ok(headers::empty(StatusCode::ACCEPTED));
        }
        let session = self.session(parts).await?;
        session.use_now();
        session.take(message);
        Ok(headers::empty(StatusCode::ACCEPTED))
    }

    async fn request(self: &Arc<Self>, parts: Parts, request: ClientRequest) -> Result<Response, Refusal> {
        let method = request.body.method();
        let has_session = headers::names_session(&parts.headers);
        if !headers::is_of_session(&parts.headers, Some(&request))?
            || !has_session && method == "server/discover"
        {
            return Box::pin(self.stateless(parts, request)).await;
        }
        if !has_session {
            if method != "initialize" {
                return Err(no_session_id());
            }
            headers::check_repeated(&parts.headers, &request, |_| None)?;
            return Ok(Box::pin(self.open(parts, request)).await);
        }
        let session = self.session(&parts).await?;
        session.use_now();
        if let Some(id) = headers::session_id(&parts.headers) {
            self.unused.used(id);
        }
        headers::check_repeated(&parts.headers, &request, |tool| {
            self.repeated_params(tool, &session.handler)
        })?;
        Ok(session.request(parts.extensions, request).await)
    }

    /// Returns the schema of a tool whose params are repeated in headers.
    fn repeated_params(&self, tool: &str, server: &NonetServer) -> Option<Map<String, Value>> {
        meta::mirrored_schema(&Gate::of(&self.gateway.publisher, &server.session), tool)
    }

    /// Answers a request of the stateless era.
    async fn stateless(self: &Arc<Self>, parts: Parts, request: ClientRequest) -> Result<Response, Refusal> {
        let server = self.server(&parts.extensions);
        headers::check_repeated(&parts.headers, &request, |tool| self.repeated_params(tool, &server))?;
        let (stream, cancel) = (EventStream::of_request(0), self.end.child_token());
        let ClientRequest { id, meta, body } = request;
        let is_malformed = !meta.missing_required_keys(&ProtocolVersion::V_2026_07_28).is_empty();
        let way = ClientWay { peer: ClientPeer::new(stream.clone()), stream: Some(stream.clone()) };
        let context = RequestContext { id, meta, beside: parts.extensions, way, cancel, is_inline: true };
        if let Err(error) = eras::check(&body, &context) {
            let status = headers::status_of(&error, is_malformed);
            return Ok(headers::failed(status, Some(&context.id), &error));
        }
        let status = |error: &ErrorData| headers::status_of(error, is_malformed);
        Ok(answer_stateless(Arc::new(server), body, context, stream, self.end.clone(), status).await)
    }

    /// Opens a session.
    async fn open(self: &Arc<Self>, mut parts: Parts, request: ClientRequest) -> Response {
        let account =
            parts.extensions.get().map_or(&self.strangers, |RequestAccount(account)| account).clone();
        let place = match self.unused.place(&account) {
            Ok((place, ended)) => {
                if let Some(ended) = ended {
                    tracing::debug!("an unused session over HTTP makes room for a new one");
                    let door = self.clone();
                    tokio::spawn(async move { door.end_session(&ended).await });
                }
                place
            }
            Err(full) => return no_room(&request.id, full),
        };
        parts.extensions.insert(place.clone());
        let session = HttpSession::new(self.server(&parts.extensions), &self.end);
        let (request, answered) = session.open(parts.extensions, request).await;
        let is_open = answered.is_ok();
        let answer = reply::message(&request, answered, false).concat();
        let mut response = headers::in_json(StatusCode::OK, answer);
        if !is_open {
            return response;
        }
        let id = uuid::Uuid::new_v4().simple().to_string();
        // In a cluster, the id names the replica that has the session.
        let id =
            self.gateway.keeping.cluster.as_ref().map_or_else(|| id.clone(), |cluster| cluster.handle(&id));
        self.sessions.insert(id.as_str().into(), session.clone());
        self.unused.opened(&id, account, &place);
        if let (Some(carried), Some(info)) = (&self.carried, session.peer.info()) {
            carried.opened(&id, (*info).clone(), &session.handler).await;
        }
        headers::set_session_id(response.headers_mut(), &id);
        response
    }

    /// Returns the session of a request.
    async fn session(self: &Arc<Self>, parts: &Parts) -> Result<Arc<ClientSession>, Refusal> {
        let id = headers::session_id(&parts.headers).ok_or_else(no_session_id)?;
        let session = match self.sessions.get(id).map(|session| session.clone()) {
            Some(session) => session,
            None => Box::pin(self.session_elsewhere(id, parts)).await?,
        };
        // A session's id opens it for its person alone.
        match is_of(session.handler.session.owner.person(), &parts.extensions) {
            true => Ok(session),
            false => Err(no_session()),
        }
    }

    /// Returns the session of a request that is not here: another replica may have begun it.
    async fn session_elsewhere(
        self: &Arc<Self>,
        id: &str,
        parts: &Parts,
    ) -> Result<Arc<ClientSession>, Refusal> {
        let Some(carried) = &self.carried else { return Err(no_session()) };
        let alone = self.restoring.entry(id.into()).or_default().clone();
        let _alone = alone.lock().await;
        if let Some(session) = self.sessions.get(id) {
            return Ok(session.clone());
        }
        let restored = self.restore(carried, id, parts).await;
        self.restoring.remove(id);
        match restored {
            Ok(session) => session.ok_or_else(no_session),
            Err(why) => {
                tracing::debug!(why, "a session of another replica was not taken over");
                Err(Box::new(elsewhere::unavailable("the record of the session cannot be read now")))
            }
        }
    }

    /// Continues a session of another replica here, if there is one.
    async fn restore(
        self: &Arc<Self>,
        carried: &Arc<CarriedSessions>,
        id: &str,
        parts: &Parts,
    ) -> Result<Option<Arc<ClientSession>>, String> {
        let Some(record) = carried.claim(id).await.map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        if !is_of(record.person.as_deref(), &parts.extensions) {
            return Ok(None);
        }
        let session = HttpSession::new(self.server(&parts.extensions), &self.end);
        let mut beside = parts.extensions.clone();
        beside.insert(GoesOn);
        let context = session.context(RequestId::Number(0), RequestMetaObject::default(), beside, None);
        let handshake = session.handler.initialize(record.initialize.clone(), &context).await;
        handshake.map_err(|error| error.to_string())?;
        carried.restore(id, record, &session.handler, &context);
        session.handler.initialized(&session.peer);
        self.sessions.insert(id.into(), session.clone());
        Ok(Some(session))
    }

    /// Ends a session, for its client or to make room.
    async fn end_session(&self, id: &str) {
        if let Some((_, session)) = self.sessions.remove(id) {
            session.end();
        }
        if let Some(carried) = &self.carried
            && let Err(error) = carried.delete(id).await
        {
            tracing::debug!(%error, "the record of an ended session expires later");
        }
    }

    /// Gives up a session, which another replica continues.
    pub(super) fn give_up(&self, id: &str) {
        if let Some((_, session)) = self.sessions.remove(id) {
            session.end();
        }
    }

    /// Ends the sessions that nobody has used for a while.
    fn end_idle(&self) {
        self.sessions.retain(|_, session| {
            session.forget_streams();
            let stays = !session.is_idle();
            if !stays {
                tracing::debug!("an idle session over HTTP ends");
                session.end();
            }
            stays
        });
    }
}

async fn look_for_idle(door: Weak<Door>) {
    loop {
        sleep(LOOK).await;
        let Some(door) = door.upgrade() else { return };
        door.end_idle();
    }
}

/// Whether a session of this person, by their key, or of nobody in particular is that of a request.
fn is_of(person: Option<&str>, beside: &Extensions) -> bool {
    person == person_of(beside).map(|person| &*person.key)
}

fn no_session() -> Refusal {
    Box::new(headers::refused(StatusCode::NOT_FOUND, "Not Found: Session not found"))
}

fn no_session_id() -> Refusal {
    Box::new(headers::refused(StatusCode::BAD_REQUEST, "Bad Request: Session ID is required"))
}

/// Returns the refusal of a new session.
fn no_room(id: &RequestId, full: QuotaExceeded) -> Response {
    let fault = Fault::from(full);
    let error = ErrorData::new(RATE_LIMITED, fault.message.clone(), Some(fault.to_value()));
    let mut response = headers::failed(StatusCode::SERVICE_UNAVAILABLE, Some(id), &error);
    response.headers_mut().insert(RETRY_AFTER, RETRY_SESSION.as_secs().into());
    response
}
