//! The link to Redis: one connection shared by all calls, opened when needed, and again after trouble.
//!
//! No call waits for an unavailable Redis: one call finds out, and for a moment the others fail at once.

use std::{
    fmt,
    sync::{LazyLock, Once},
    time::{Duration, Instant},
};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use nonet_base::text;
use parking_lot::Mutex;
use redis::{
    Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult, Script, ScriptInvocation,
    ServerErrorKind, Value, cmd, from_redis_value,
};

use super::{
    super::StoreError,
    way::{RedisConnection, RedisNode, RedisTopology},
};

/// The format of the values that this Nonet writes, as the scripts have it.
pub(super) const VERSION: &str = "1";
/// How long a call may take that connects and loads a script.
const LONGEST: Duration = Duration::from_secs(2);
/// How long no call is tried after trouble, the first time. The time doubles with each further failure.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// How long Redis counts as full after it lacked memory.
const FULL_FOR: Duration = Duration::from_secs(10);
/// How many characters of a Redis error are passed on.
const MOST_ERROR: usize = 200;

/// The methods for one kind of value, as a script.
pub(super) struct Methods(LazyLock<Script>);

impl Methods {
    /// Takes the function that makes the script.
    pub(super) const fn new(make: fn() -> Script) -> Self {
        Self(LazyLock::new(make))
    }

    /// Returns a call of a method. `base` is the prefix of every key that the method touches.
    pub(super) fn call(&'static self, base: &str, method: &str) -> ScriptInvocation<'static> {
        let mut call = self.0.prepare_invoke();
        call.key(base).arg(method);
        call
    }
}

/// Returns the script of these methods.
pub(super) fn script(methods: &str) -> Script {
    Script::new(&[include_str!("common.lua"), methods].join("\n"))
}

/// Returns the script of these methods with a Redis 7 flag.
pub(super) fn script_that_may(flag: &str, methods: &str) -> Script {
    Script::new(&[&format!("#!lua flags={flag}"), include_str!("common.lua"), methods].join("\n"))
}

/// Warns once that there are a newer Nonet's values.
pub(super) fn newer_is_there() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            "some values in Redis were written by a newer Nonet and are left alone: update this one"
        );
    });
}

/// A connection being opened, or open.
type SharedDial = Shared<BoxFuture<'static, RedisResult<RedisConnection>>>;

pub(super) struct RedisLink {
    way: RedisTopology,
    /// Where it is, for people.
    pub place: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connection: Option<SharedDial>,
    /// How many connections were opened or attempted.
    dialled: usize,
    trouble: Option<Trouble>,
    /// When Redis last lacked memory, and its message.
    full: Option<(Instant, String)>,
}

struct Trouble {
    what: String,
    pause: Duration,
    until: Instant,
}

impl fmt::Debug for RedisLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLink").field("place", &self.place).finish_non_exhaustive()
    }
}

impl RedisLink {
    /// Returns a link. Does not connect yet.
    pub(super) fn new(way: impl Into<RedisTopology>) -> Self {
        let way = way.into();
        Self { place: way.to_string(), way, state: Mutex::default() }
    }

    /// Returns the host and port of a Redis, or of a Sentinel.
    pub(super) fn first(&self) -> String {
        self.way.first()
    }

    /// Returns why Redis cannot be used at the moment.
    pub(super) fn trouble(&self) -> Option<String> {
        let state = self.state.lock();
        let full = state.full.as_ref().filter(|(at, _)| at.elapsed() < FULL_FOR);
        state.trouble.as_ref().map(|trouble| &trouble.what).or(full.map(|(_, what)| what)).cloned()
    }

    /// Returns whether the link has been used.
    pub(super) fn is_used(&self) -> bool {
        let state = self.state.lock();
        state.connection.is_some() || state.trouble.is_some()
    }

    /// Runs a method of a script.
    pub(super) async fn run<T: FromRedisValue>(&self, call: &ScriptInvocation<'_>) -> Result<T, StoreError> {
        self.on(async |connection| match connection {
            RedisConnection::Node(mut node) => call.invoke_async(&mut node).await,
            RedisConnection::Cluster(mut cluster) => call.invoke_async(&mut cluster).await,
        })
        .await
    }

    /// Sends commands together. Their keys must be in one slot.
    pub(super) async fn send<T: FromRedisValue>(&self, commands: &Pipeline) -> Result<T, StoreError> {
        self.on(async |connection| match connection {
            RedisConnection::Node(mut node) => commands.query_async(&mut node).await,
            RedisConnection::Cluster(mut cluster) => commands.query_async(&mut cluster).await,
        })
        .await
    }

    /// Removes keys, which may be in several slots. Returns how many existed.
    pub(super) async fn unlink(&self, keys: &[&[u8]]) -> Result<usize, StoreError> {
        let mut unlink = cmd("UNLINK");
        unlink.arg(keys);
        self.on(async |connection| match connection {
            RedisConnection::Node(mut node) => unlink.query_async(&mut node).await,
            RedisConnection::Cluster(mut cluster) => unlink.query_async(&mut cluster).await,
        })
        .await
    }

    /// Returns the nodes that hold keys.
    pub(super) async fn nodes(&self) -> Result<Vec<RedisNode>, StoreError> {
        self.on(async |connection| match connection {
            RedisConnection::Node(_) => Ok(vec![RedisNode::Only]),
            RedisConnection::Cluster(cluster) => super::way::nodes(cluster).await,
        })
        .await
    }

    /// Sends a request to one node.
    pub(super) async fn ask<T: FromRedisValue>(
        &self,
        node: &RedisNode,
        question: &Cmd,
    ) -> Result<T, StoreError> {
        self.on(async |connection| match connection {
            RedisConnection::Node(mut only) => question.query_async(&mut only).await,
            RedisConnection::Cluster(mut cluster) => {
                let answer: Value = cluster.route_command(question.clone(), node.route()).await?;
                from_redis_value(answer).map_err(Into::into)
            }
        })
        .await
    }

    /// Uses the connection, and records the outcome.
    async fn on<T>(&self, act: impl AsyncFnOnce(RedisConnection) -> RedisResult<T>) -> Result<T, StoreError> {
        let connection = self.connection()?;
        let whole = async move {
            match connection.await {
                Ok(connection) => act(connection).await.map_err(Failure::Answer),
                Err(error) => Err(Failure::Connection(error)),
            }
        };
        self.judge(tokio::time::timeout(LONGEST, whole).await)
    }

    fn connection(&self) -> Result<SharedDial, StoreError> {
        let mut state = self.state.lock();
        if let Some(trouble) = state.trouble.as_ref().filter(|trouble| Instant::now() < trouble.until) {
            return Err(self.away(trouble.what.clone()));
        }
        if let Some(connection) = &state.connection {
            return Ok(connection.clone());
        }
        let dial = self.way.clone().dial(state.dialled);
        state.dialled += 1;
        // In a separate task: the caller may give up, and the next one finds the connection.
        let dialling = tokio::spawn(dial);
        let dialled = async move {
            dialling
                .await
                .unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::Interrupted).into()))
        };
        Ok(state.connection.insert(dialled.boxed().shared()).clone())
    }

    /// Accepts an answer, or records the trouble.
    fn judge<T>(
        &self,
        answer: Result<Result<T, Failure>, tokio::time::error::Elapsed>,
    ) -> Result<T, StoreError> {
        let (error, is_connected) = match answer {
            Ok(Ok(answer)) => {
                if self.state.lock().trouble.take().is_some() {
                    tracing::info!(redis = %self.place, "Redis answers again");
                }
                return Ok(answer);
            }
            Ok(Err(Failure::Answer(error))) => (error, true),
            Ok(Err(Failure::Connection(error))) => (error, false),
            Err(_) => (std::io::Error::from(std::io::ErrorKind::TimedOut).into(), false),
        };
        if error.code() == Some("NEWER") {
            return Err(StoreError::NewerValue {
                what: text::line(error.detail().unwrap_or_default(), MOST_ERROR),
            });
        }
        let what = told(&error);
        if error.code() == Some("OOM") {
            self.state.lock().full = Some((Instant::now(), what.clone()));
        }
        if !is_connected || is_away(&error) {
            let now = Instant::now();
            let mut state = self.state.lock();
            state.connection = None;
            let pause = match &state.trouble {
                None => {
                    tracing::warn!(redis = %self.place, %error, "Redis is away; calls and searches continue");
                    FIRST_PAUSE
                }
                // Of several calls that fail together, the first one counts.
                Some(trouble) if now < trouble.until => return Err(self.away(what)),
                Some(trouble) => (trouble.pause * 2).min(LONGEST_PAUSE),
            };
            state.trouble = Some(Trouble { what: what.clone(), pause, until: now + pause });
        }
        Err(self.away(what))
    }

    fn away(&self, what: String) -> StoreError {
        StoreError::Away { place: self.place.clone(), what }
    }
}

/// What failed.
enum Failure {
    /// No connection was made: whatever Redis said, it cannot serve anybody.
    Connection(RedisError),
    Answer(RedisError),
}

/// Returns whether Redis cannot serve anybody, as opposed to this request only.
fn is_away(error: &RedisError) -> bool {
    use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, Moved, ReadOnly};
    match error.kind() {
        ErrorKind::Server(kind) => matches!(kind, BusyLoading | ClusterDown | MasterDown | Moved | ReadOnly),
        ErrorKind::Extension | ErrorKind::UnexpectedReturnType => false,
        _ => true,
    }
}

fn told(error: &RedisError) -> String {
    if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) {
        return "is a node of a Redis Cluster: write `redis` in [cluster] as a list of addresses".into();
    }
    let verb = match error.kind() {
        ErrorKind::Io => "does not answer",
        _ => "refuses",
    };
    let why = match (error.code(), error.detail()) {
        // Leaves out the script and the line.
        (Some(code), Some(detail)) => {
            format!("{code} {}", detail.split(" script: ").next().unwrap_or_default())
        }
        _ => error.to_string(),
    };
    format!("{verb} ({})", text::line(&why, MOST_ERROR))
}
