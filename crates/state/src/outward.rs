//! Sends notices to people: posted to an address, or written to a program.
//!
//! Senders do not wait: notices go into a bounded queue, and one task delivers them in order. This room knows
//! the configured outlet, not what notices say or who else gets them.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use backon::{BackoffBuilder, ExponentialBuilder};
use futures::StreamExt;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use nonet_config::{ApprovalHook, Globs, Outlet, Secret};
use nonet_servers::downstream::{ConnectionContext, run_program};
use nonet_wire::web;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

#[cfg(test)]
mod tests;

/// How many notices may wait; the oldest are dropped first.
const MAX_WAITING: usize = 100;
/// The longest notice, in bytes, and the longest member that stays in an overlong one.
const MAX_NOTICE: usize = 100_000;
const MAX_MEMBER: usize = 2_000;
/// The longest answer to a question, in bytes.
const MAX_ANSWER: usize = 64 << 10;
/// The time limit of one delivery.
const LIMIT: Duration = Duration::from_secs(10);
/// The number of attempts per notice, and the waits in between: the first and the longest.
const TRIES: usize = 3;
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));
/// How long deliveries continue after the gateway stops.
const GRACE: Duration = Duration::from_secs(2);

/// The delivery of notices to people. Clones share it.
#[derive(Clone, Debug)]
pub struct NoticeDelivery(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    way: Mutex<OutletRoute>,
    queue: Mutex<Queue>,
    context: Arc<ConnectionContext>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// The outlet, and the variables that its program gets in addition to the usual ones.
#[derive(Clone, Debug, Default)]
struct OutletRoute {
    /// Whether deliveries are enabled.
    is_open: bool,
    outlet: Option<Outlet>,
    inherit_env: Globs,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<String>,
    /// How many notices were dropped since the last delivery.
    lost: usize,
    is_running: bool,
}

impl Queue {
    fn push(&mut self, notice: String) {
        if self.waiting.len() == MAX_WAITING {
            self.waiting.pop_front();
            self.lost += 1;
        }
        self.waiting.push_back(notice);
    }
}

impl NoticeDelivery {
    /// Creates a closed way. Deliveries run in `tasks`, and end soon after `stop`.
    pub fn new(context: Arc<ConnectionContext>, tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self(Arc::new(Inner { way: Mutex::default(), queue: Mutex::default(), context, tasks, stop }))
    }

    /// Creates a way that stays closed.
    #[cfg(test)]
    pub fn closed() -> Self {
        let context = ConnectionContext::without_guard();
        Self::new(Arc::new(context), TaskTracker::new(), CancellationToken::new())
    }

    /// Enables deliveries from now on, to the target of [`Self::aim`].
    pub fn open(&self, outlet: Option<&Outlet>, inherit_env: &Globs) {
        self.0.way.lock().is_open = true;
        self.aim(outlet, inherit_env);
    }

    /// Sets where notices go, including waiting ones. `inherit_env`: the variables that a program gets in
    /// addition to the usual ones.
    pub fn aim(&self, outlet: Option<&Outlet>, inherit_env: &Globs) {
        let mut way = self.0.way.lock();
        *way =
            OutletRoute { is_open: way.is_open, outlet: outlet.cloned(), inherit_env: inherit_env.clone() };
    }

    /// Returns the outlet, if deliveries are enabled.
    fn outlet(&self) -> Option<(Outlet, Globs)> {
        let way = self.0.way.lock();
        way.outlet.clone().filter(|_| way.is_open).map(|outlet| (outlet, way.inherit_env.clone()))
    }

    /// Queues a notice and returns at once.
    pub fn tell(&self, notice: &Value) {
        if self.outlet().is_none() {
            return;
        }
        let mut queue = self.0.queue.lock();
        queue.push(written(notice));
        if !std::mem::replace(&mut queue.is_running, true) {
            let own = self.clone();
            self.0.tasks.spawn(async move { own.deliver_all().await });
        }
    }

    /// Delivers until the queue is empty.
    async fn deliver_all(&self) {
        let end = async {
            self.0.stop.cancelled().await;
            sleep(GRACE).await;
        };
        tokio::pin!(end);
        while let Some((notice, lost)) = self.next() {
            if lost > 0 {
                tracing::warn!("{lost} notices for people were dropped: `[gateway] notify` is too slow");
            }
            let Some((outlet, inherit_env)) = self.outlet() else { continue };
            tokio::select! {
                biased;
                () = self.deliver(&outlet, &inherit_env, &notice) => {}
                () = &mut end => {
                    let waiting = self.0.queue.lock().waiting.len();
                    tracing::warn!("{} notices for people were not delivered: Nonet stops", waiting + 1);
                    return;
                }
            }
        }
    }

    /// Returns the next notice, and how many were dropped before it. None: this task is done.
    fn next(&self) -> Option<(String, usize)> {
        let mut queue = self.0.queue.lock();
        let next = queue.waiting.pop_front();
        queue.is_running = next.is_some();
        Some((next?, std::mem::take(&mut queue.lost)))
    }

    async fn deliver(&self, outlet: &Outlet, inherit_env: &Globs, notice: &str) {
        let mut waits = ExponentialBuilder::default()
            .with_min_delay(BACKOFF.0)
            .with_max_delay(BACKOFF.1)
            .with_max_times(TRIES - 1)
            .with_jitter()
            .build();
        loop {
            let tried = timeout(LIMIT, self.send(outlet, inherit_env, notice)).await;
            let why = match tried.unwrap_or_else(|_| Err(format!("it took longer than {LIMIT:?}"))) {
                Ok(()) => return,
                Err(why) => why,
            };
            match waits.next() {
                Some(wait) => {
                    tracing::debug!("a notice for people was not delivered: {why}; next try in {wait:?}");
                    sleep(wait).await;
                }
                None => {
                    tracing::warn!("a notice for people was not delivered: {why}. Check `[gateway] notify`.");
                    return;
                }
            }
        }
    }

    async fn send(&self, outlet: &Outlet, inherit_env: &Globs, notice: &str) -> Result<(), String> {
        match &outlet.webhook {
            Some(url) => post(url.expose(), outlet, notice).await,
            None => {
                let command: Vec<String> =
                    outlet.command.iter().map(|part| part.expose().to_string()).collect();
                run_program(&self.0.context, "notify", &command, inherit_env, notice.as_bytes()).await
            }
        }
    }
}

/// Posts a question, once, and returns the answer's JSON; null for an answer without JSON. Errors never
/// contain the address.
///
/// # Errors
///
/// Returns why there is no answer.
pub async fn consult(hook: &ApprovalHook, question: &Value) -> Result<Value, String> {
    let asked = async {
        let reply = send(hook.url.expose(), &hook.headers, question.to_string()).await?;
        let mut body = Vec::new();
        let mut chunks = reply.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            body.extend_from_slice(&chunk.map_err(web::cause)?);
            if body.len() > MAX_ANSWER {
                return Err(format!("the answer has more than {MAX_ANSWER} bytes"));
            }
        }
        Ok(serde_json::from_slice(&body).unwrap_or_default())
    };
    timeout(LIMIT, asked).await.unwrap_or_else(|_| Err(format!("it took longer than {LIMIT:?}")))
}

/// Posts a notice.
async fn post(url: &str, outlet: &Outlet, notice: &str) -> Result<(), String> {
    send(url, &outlet.headers, notice.to_string()).await.map(drop)
}

/// Posts JSON. Errors never contain the address: many addresses are secrets.
async fn send(url: &str, own: &BTreeMap<String, Secret>, body: String) -> Result<reqwest::Response, String> {
    let mut headers =
        HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
    for (name, value) in own {
        let name = HeaderName::try_from(name).map_err(|error| error.to_string())?;
        let mut value = HeaderValue::try_from(value.expose()).map_err(|error| error.to_string())?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    let client = web::client().map_err(web::cause)?;
    let reply = client.post(url).headers(headers).body(body).send().await.map_err(web::cause)?;
    match reply.status() {
        status if status.is_success() => Ok(reply),
        status => Err(format!("the webhook answered HTTP {status}")),
    }
}

/// Serializes a notice. An overlong one loses its long members.
fn written(notice: &Value) -> String {
    let text = notice.to_string();
    if text.len() <= MAX_NOTICE {
        return text;
    }
    let mut short = json!({ "shortened": true });
    if let (Some(short), Some(fields)) = (short.as_object_mut(), notice.as_object()) {
        let few = fields.iter().take(MAX_NOTICE / MAX_MEMBER / 2);
        let small = few.filter(|(key, value)| key.len() + value.to_string().len() <= MAX_MEMBER);
        short.extend(small.map(|(key, value)| (key.clone(), value.clone())));
    }
    short.to_string()
}
