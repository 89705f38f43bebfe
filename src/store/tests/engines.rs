//! The store's engines, for tests of their common behaviour.

use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use ::redis::IntoConnectionInfo;
use tempfile::TempDir;

use super::{super::*, folder, until_ended};

/// Long and large enough for every test that does not care.
pub const ROOMY: Retention = Retention { bytes: 1 << 30, age: HOUR };
pub const HOUR: Duration = Duration::from_secs(3_600);

/// Runs functions as tests, each with both engines.
macro_rules! with_both_engines {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            use crate::store::tests::engines::Engine;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(&Engine::sqlite()).await;
            })*
        }
        mod redis {
            use crate::store::tests::engines::Engine;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                if let Some(engine) = Engine::redis() {
                    super::$name(&engine).await;
                }
            })*
        }
    };
}
pub(crate) use with_both_engines;

/// An empty engine.
pub enum Engine {
    Sqlite(TempDir),
    Redis(RedisServer),
}

/// A gateway as the store sees it.
pub struct Here {
    pub store: Arc<dyn Store>,
    pub records: Arc<dyn Records>,
    pub clock: Clock,
    number: u32,
}

impl Engine {
    pub fn sqlite() -> Self {
        Self::Sqlite(folder())
    }

    /// Returns an engine; `None` without a `redis-server`, unless NONET_REDIS requires one.
    pub fn redis() -> Option<Self> {
        RedisServer::start().map(Self::Redis)
    }

    /// Returns another gateway with the same store.
    pub fn gateway(&self) -> Here {
        self.gateway_with(ROOMY, &Clock::default())
    }

    pub fn gateway_with(&self, retention: Retention, clock: &Clock) -> Here {
        let clock = clock.clone();
        match self {
            Self::Sqlite(folder) => {
                let folder = Some(folder.path().to_owned());
                let store = Arc::new(SqliteStore::new(folder, retention, clock.clone()));
                let number = store.holder.number;
                Here { store: store.clone(), records: store, clock, number }
            }
            Self::Redis(server) => {
                let store = Arc::new(server.store(retention, &clock));
                Here { store: store.clone(), records: store, clock, number: 0 }
            }
        }
    }

    /// Ends a gateway, which releases everything that it held.
    pub async fn end(&self, gateway: Here) {
        gateway.store.leave().await.expect("left");
        let number = gateway.number;
        drop(gateway);
        if let Self::Sqlite(folder) = self {
            until_ended(folder, number);
        }
    }
}

/// A separate Redis, which ends with the test.
pub struct RedisServer {
    process: Child,
    pub port: u16,
}

impl RedisServer {
    /// Starts Redis; `None` without a `redis-server`, unless NONET_REDIS requires one.
    pub fn start() -> Option<Self> {
        (0..20).find_map(|_| Self::start_at(free_port())).or_else(|| {
            let must = std::env::var_os("NONET_REDIS").is_some();
            assert!(!must, "`redis-server` did not start, and NONET_REDIS says that it has to");
            eprintln!("SKIPPED: there is no `redis-server`");
            None
        })
    }

    /// Starts Redis at a port; `None` if it does not start, such as when another test has taken the port.
    pub fn start_at(port: u16) -> Option<Self> {
        Self::start_with(port, &["--save", "", "--appendonly", "no"])
    }

    /// Starts Redis with other settings.
    pub fn start_with(port: u16, settings: &[&str]) -> Option<Self> {
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]).args(settings);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
        let output = BufReader::new(process.stdout.take().expect("piped"));
        let mut lines = output.lines().map_while(Result::ok);
        let is_ready = lines.any(|line| line.contains("Ready to accept connections"));
        // Further output is read and dropped, so that Redis does not block on it.
        std::thread::spawn(move || lines.for_each(drop));
        let server = Self { process, port };
        is_ready.then_some(server)
    }

    pub fn address(&self) -> ::redis::ConnectionInfo {
        format!("redis://127.0.0.1:{}", self.port).into_connection_info().expect("an address")
    }

    pub fn store(&self, retention: Retention, clock: &Clock) -> RedisStore {
        let mut store = RedisStore::new(self.address(), "nonet", Some("here"), retention, clock.clone());
        store.wait_for_rates(Duration::from_secs(10));
        store
    }

    /// Returns a connection that bypasses the store.
    pub fn raw(&self) -> ::redis::Connection {
        ::redis::Client::open(self.address()).and_then(|client| client.get_connection()).expect("connects")
    }

    /// Stops Redis, or lets it continue.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let process = nix::unistd::Pid::from_raw(self.process.id() as i32);
        nix::sys::signal::kill(process, signal).expect("signalled");
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns a port that nobody listens on at the moment.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    listener.local_addr().expect("bound").port()
}
