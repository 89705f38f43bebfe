//! A `redis-server` for one test.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use redis::IntoConnectionInfo;
use tempfile::TempDir;

/// A separate Redis, which ends with the test.
pub struct RedisServer {
    process: Child,
    /// Its port on 127.0.0.1.
    pub port: u16,
    /// The folder of its data, if persistent.
    folder: Option<TempDir>,
}

impl RedisServer {
    /// Starts a Redis; `None` without a `redis-server`, unless NONET_REDIS requires one.
    pub fn start() -> Option<Self> {
        (0..20).find_map(|_| Self::start_at(free_port())).or_else(|| {
            let must = env::var_os("NONET_REDIS").is_some();
            assert!(!must, "`redis-server` did not start, and NONET_REDIS says that it has to");
            eprintln!("SKIPPED: there is no `redis-server`");
            None
        })
    }

    /// Starts a Redis that keeps its data across restarts.
    pub fn start_lasting() -> Option<Self> {
        let port = Self::start()?.port;
        Self::start_in(port, Some(tempfile::tempdir().expect("a folder")))
    }

    /// Starts a Redis at a port; `None` if it does not start, such as when another test has taken the port.
    pub fn start_at(port: u16) -> Option<Self> {
        Self::start_in(port, None)
    }

    /// Starts a Redis with other settings.
    pub fn start_with(port: u16, settings: &[&str]) -> Option<Self> {
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]).args(settings);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
        let output = BufReader::new(process.stdout.take().expect("piped"));
        let mut lines = output.lines().map_while(Result::ok);
        let is_ready = lines.any(|line| line.contains("Ready to accept connections"));
        // Further output is read and dropped, so that Redis does not block on it.
        thread::spawn(move || lines.for_each(drop));
        let server = Self { process, port, folder: None };
        is_ready.then_some(server)
    }

    fn start_in(port: u16, folder: Option<TempDir>) -> Option<Self> {
        let mut settings = vec!["--save", "", "--appendonly"];
        match &folder {
            Some(folder) => {
                let path = folder.path().to_str().expect("a path in UTF-8");
                settings.extend(["yes", "--appendfsync", "always", "--dir", path]);
            }
            None => settings.push("no"),
        }
        let mut server = Self::start_with(port, &settings)?;
        server.folder = folder;
        Some(server)
    }

    /// Kills the server and restarts it after a while.
    pub fn restart(&mut self, away: Duration) {
        self.stop();
        thread::sleep(away);
        let folder = self.folder.take();
        *self = Self::start_in(self.port, folder).expect("Redis starts again");
    }

    /// Sends it a signal: stops it, or lets it continue.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().cast_signed()), signal).expect("signalled");
    }

    /// Returns its address.
    pub fn address(&self) -> redis::ConnectionInfo {
        format!("redis://127.0.0.1:{}", self.port).into_connection_info().expect("an address")
    }

    /// Returns a connection of the test's own.
    pub fn connect(&self) -> redis::Connection {
        redis::Client::open(self.address()).and_then(|client| client.get_connection()).expect("connects")
    }

    /// Returns the keys that match a pattern.
    pub fn keys(&self, pattern: &str) -> Vec<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("connects");
        write!(stream, "KEYS {pattern}\r\nQUIT\r\n").expect("sent");
        let answer = std::io::read_to_string(stream).expect("readable");
        answer
            .lines()
            .filter(|line| line.contains(':') && !line.starts_with(['*', '$', '+']))
            .map(Into::into)
            .collect()
    }

    /// Returns the table of servers.toml that names it, for a replica.
    pub fn toml(&self, name: &str) -> String {
        format!("[cluster]\nredis = \"redis://127.0.0.1:{}\"\nname = \"{name}\"\n", self.port)
    }

    fn stop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns a port that nobody listens on at the moment.
///
/// # Panics
///
/// If the system has none.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    listener.local_addr().expect("bound").port()
}
