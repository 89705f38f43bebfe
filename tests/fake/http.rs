//! The server behind a URL: streamable HTTP, or the older HTTP+SSE.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, BufReader},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
};

use super::{
    CRASH_CODE, VERSION_KEY,
    http_wire::{Request, closed, read_request, write_chunk, write_json, write_status, write_stream_head},
    out::{Item, Out, failure, rpc_error},
    script::{Era, Script},
    server::Server,
    session::Session,
};

/// Serves streamable HTTP at `/mcp` and `/sse` (or the older HTTP+SSE at `/sse`) until a scripted crash.
/// Returns the exit code for a program.
pub async fn serve_http(script: Script, listener: TcpListener) -> i32 {
    let server = Server::new(script);
    if let Some(code) = server.start().await {
        return code;
    }
    let site = Arc::new(Site { server: server.clone(), hits: AtomicU64::new(0), sessions: Mutex::default() });
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = server.gone.notified() => return CRASH_CODE,
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    connections.spawn(site.clone().connection(stream));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

struct Site {
    server: Arc<Server>,
    hits: AtomicU64,
    /// Legacy sessions by id.
    sessions: Mutex<HashMap<String, HttpSession>>,
}

/// Sessions of HTTP+SSE also have a stream for all answers.
type HttpSession = (Arc<Session>, Option<Out>);

impl Site {
    async fn connection(self: Arc<Self>, stream: TcpStream) -> io::Result<()> {
        let (reader, mut writer) = stream.into_split();
        let mut reader = BufReader::new(reader);
        while let Some(request) = read_request(&mut reader).await? {
            self.respond(request, &mut reader, &mut writer).await?;
        }
        Ok(())
    }

    async fn respond(
        &self,
        request: Request,
        reader: &mut (impl AsyncBufRead + Unpin),
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let script = &self.server.script;
        let hits = self.hits.fetch_add(1, SeqCst) + 1;
        let line = json!({ "method": request.method, "path": request.path });
        self.server.log(script.request_log.as_deref(), &line);
        if let Some(status) = script.http_status
            && script.http_status_times.is_none_or(|times| hits <= times)
        {
            return write_status(writer, status, "scripted").await;
        }
        if let Some(token) = &script.require_bearer
            && request.headers.get("authorization") != Some(&format!("Bearer {token}"))
        {
            return write_status(writer, 401, "a bearer token is needed").await;
        }
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        match (request.method.as_str(), path) {
            ("POST", "/mcp" | "/sse") if !script.legacy_sse => self.post(request, reader, writer).await,
            ("DELETE", "/mcp" | "/sse") if !script.legacy_sse => {
                let id = request.headers.get("mcp-session-id").map(String::as_str).unwrap_or_default();
                let known = self.sessions.lock().unwrap().remove(id).is_some();
                write_status(writer, if known { 200 } else { 404 }, "session").await
            }
            ("GET", "/sse") if script.legacy_sse => self.old_stream(reader, writer).await,
            ("POST", "/messages") if script.legacy_sse => {
                let session = self.sessions.lock().unwrap().get(query).cloned();
                match (session, serde_json::from_slice(&request.body)) {
                    (None, _) => write_status(writer, 404, "unknown session").await,
                    (_, Err(_)) => write_status(writer, 400, "not JSON").await,
                    (Some((session, out)), Ok(message)) => {
                        let requests = session.requests.fetch_add(1, SeqCst);
                        if script.session_expires_after.is_some_and(|most| requests >= most) {
                            return write_status(writer, 404, "expired session").await;
                        }
                        let out = out.expect("old sessions have a stream");
                        let out = Out { headers: Arc::new(request.headers), ..out };
                        session.receive(message, &out).await;
                        write_status(writer, 202, "").await
                    }
                }
            }
            (_, "/mcp" | "/sse") => write_status(writer, 405, "method not allowed").await,
            _ => write_status(writer, 404, "not found").await,
        }
    }

    async fn post(
        &self,
        request: Request,
        reader: &mut (impl AsyncBufRead + Unpin),
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let message: Value = match serde_json::from_slice(&request.body) {
            Ok(message) => message,
            Err(error) => {
                let answer = failure(Value::Null, rpc_error(-32700, &error.to_string()));
                return write_json(writer, 400, "", &answer).await;
            }
        };
        let script = &self.server.script;
        let id = message.get("id").cloned().filter(|_| message.get("method").is_some());
        let method = message["method"].as_str().unwrap_or_default().to_owned();
        let modern = script.era == Era::Modern
            || script.era == Era::Dual && message["params"]["_meta"].get(VERSION_KEY).is_some();

        let mut new_session = String::new();
        let session = if modern {
            if let Some(fault) = header_fault(&request.headers, &message) {
                let answer = failure(id.unwrap_or_default(), rpc_error(-32020, &fault));
                return write_json(writer, 400, "", &answer).await;
            }
            Session::new(self.server.clone())
        } else if method == "initialize" || method == "server/discover" {
            let session = Session::new(self.server.clone());
            if method == "initialize" {
                let mut sessions = self.sessions.lock().unwrap();
                new_session = format!("session-{}-{}", std::process::id(), self.hits.load(SeqCst));
                sessions.insert(new_session.clone(), (session.clone(), None));
            }
            session
        } else {
            match self.legacy_session(request.headers.get("mcp-session-id")) {
                Ok(session) => session,
                Err((status, why)) => return write_status(writer, status, why).await,
            }
        };

        let (out, items) = Out::with_headers(request.headers);
        session.receive(message, &out).await;
        drop(out);
        let Some(id) = id else { return write_status(writer, 202, "").await };
        if script.never_answer {
            return closed(reader).await;
        }
        let header =
            if new_session.is_empty() { String::new() } else { format!("Mcp-Session-Id: {new_session}\r\n") };
        let sse = script.sse || method == "subscriptions/listen";
        let answered = self.write_answer(items, &id, &header, sse, modern, reader, writer).await;
        if modern {
            // Hanging up is the only way to cancel in this era.
            if answered.is_err() && session.running.lock().unwrap().contains_key(&id.to_string()) {
                self.server.log_cancelled(&id);
            }
            self.server.listeners.lock().unwrap().retain(|(out, _)| !out.items.is_closed());
            session.stop().await;
        }
        answered
    }

    fn legacy_session(&self, id: Option<&String>) -> Result<Arc<Session>, (u16, &'static str)> {
        let id = id.ok_or((400, "no session"))?;
        let mut sessions = self.sessions.lock().unwrap();
        let (session, _) = sessions.get(id).cloned().ok_or((404, "unknown session"))?;
        let requests = session.requests.fetch_add(1, SeqCst);
        if self.server.script.session_expires_after.is_some_and(|most| requests >= most) {
            sessions.remove(id);
            return Err((404, "expired session"));
        }
        Ok(session)
    }

    /// Writes a request's messages, up to its answer.
    #[expect(clippy::too_many_arguments, reason = "one caller; they have nothing in common but this")]
    async fn write_answer(
        &self,
        mut items: mpsc::Receiver<Item>,
        id: &Value,
        header: &str,
        sse: bool,
        modern: bool,
        reader: &mut (impl AsyncBufRead + Unpin),
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let gone = || io::Error::from(io::ErrorKind::ConnectionAborted);
        let mut streaming = sse;
        if sse {
            write_stream_head(writer, "text/event-stream", header).await?;
        }
        let mut watching = true;
        loop {
            let item = tokio::select! {
                // The queue ends without an answer if the call was cancelled.
                item = items.recv() => item,
                more = reader.fill_buf(), if watching => {
                    if more?.is_empty() {
                        return Err(gone());
                    }
                    // The next request has arrived already; it can wait.
                    watching = false;
                    continue;
                }
            };
            match item {
                None if streaming => return write_chunk(writer, b"").await,
                None => {
                    return write_json(
                        writer,
                        200,
                        header,
                        &failure(id.clone(), rpc_error(-32800, "cancelled")),
                    )
                    .await;
                }
                Some(Item::Crash) => {
                    self.server.gone.notify_one();
                    return Err(gone());
                }
                Some(Item::Raw(bytes)) => {
                    if !streaming {
                        write_stream_head(writer, "application/json", header).await?;
                        streaming = true;
                    }
                    write_chunk(writer, &bytes).await?;
                }
                Some(Item::Message(message)) => {
                    let last = message.get("method").is_none();
                    if sse {
                        write_chunk(writer, format!("event: message\ndata: {message}\n\n").as_bytes())
                            .await?;
                    } else if last && streaming {
                        write_chunk(writer, message.to_string().as_bytes()).await?;
                    } else if last {
                        let status = match message["error"]["code"].as_i64() {
                            Some(-32601) if modern => 404,
                            Some(-32099..=-32020) => 400,
                            _ => 200,
                        };
                        return write_json(writer, status, header, &message).await;
                    }
                    if last && (message["id"] == *id || streaming) {
                        return write_chunk(writer, b"").await;
                    }
                }
            }
        }
    }

    /// The HTTP+SSE transport: one stream for all answers, requests by POST.
    async fn old_stream(
        &self,
        reader: &mut (impl AsyncBufRead + Unpin),
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let (out, mut items) = Out::new();
        let id = format!("session-{}-{}", std::process::id(), self.hits.load(SeqCst));
        let session = Session::new(self.server.clone());
        self.sessions.lock().unwrap().insert(id.clone(), (session, Some(out)));
        write_stream_head(writer, "text/event-stream", "").await?;
        let endpoint = self.server.script.sse_endpoint.as_deref().unwrap_or("/messages");
        write_chunk(writer, format!("event: endpoint\ndata: {endpoint}?{id}\n\n").as_bytes()).await?;
        let mut messages = 0;
        loop {
            let item = tokio::select! {
                item = items.recv() => item,
                _ = reader.fill_buf() => None,
            };
            let item =
                item.filter(|_| self.server.script.sse_breaks_after.is_none_or(|most| messages < most));
            messages += 1;
            let written = match item {
                Some(Item::Message(message)) => {
                    write_chunk(writer, format!("event: message\ndata: {message}\n\n").as_bytes()).await
                }
                Some(Item::Raw(bytes)) => write_chunk(writer, &bytes).await,
                Some(Item::Crash) => {
                    self.server.gone.notify_one();
                    Ok(())
                }
                None => Err(io::ErrorKind::ConnectionAborted.into()),
            };
            if written.is_err() {
                self.sessions.lock().unwrap().remove(&id);
                return written;
            }
        }
    }
}

/// Returns what is wrong with the headers of a modern request, which repeat parts of its body.
fn header_fault(headers: &BTreeMap<String, String>, message: &Value) -> Option<String> {
    let params = &message["params"];
    let name = match message["method"].as_str()? {
        // A legacy client at the wrong endpoint; the answer says so.
        "initialize" => return None,
        "tools/call" | "prompts/get" => &params["name"],
        "resources/read" => &params["uri"],
        _ => &Value::Null,
    };
    let version = &params["_meta"][VERSION_KEY];
    [("mcp-protocol-version", version), ("mcp-method", &message["method"]), ("mcp-name", name)]
        .into_iter()
        .filter_map(|(header, body)| Some((header, body.as_str()?)))
        .find(|(header, body)| {
            headers.get(*header).is_none_or(|value| value != body && !value.starts_with("=?"))
        })
        .map(|(header, body)| format!("the header {header} is not {body}"))
}
