//! The one gateway that all clients of a configuration share on this machine: where it is, who runs it, how it is started.
//!
//! Each configuration has a [`SharedPlace`]: a socket, and two locks. Whoever holds the lock `owner` may listen on the socket; the
//! system takes it back however the process ends, so that a socket without an owner is known to be stale. Whoever wants to
//! start a gateway holds the lock `start` meanwhile, so that of two who want it at once one starts it and the other finds it.
//! What both ends say first is one line each ([`Hello`], [`Welcome`]); after it they speak MCP as over stdio.

#[cfg(unix)]
mod page_sockets;

use std::{
    fmt::{self, Debug, Formatter},
    fs::{self, File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;

use crate::{
    files, store,
    text::hex,
    wire::{Limits, Line, LineReader},
};

/// The argument that runs the binary as the shared gateway.
pub const SHARED_COMMAND: &str = "__shared";
/// The argument that makes the binary start the shared gateway and exit, so that the gateway has no parent to end with.
pub const START_COMMAND: &str = "__start_shared";
/// The longest time until a new gateway listens.
pub const START_LIMIT: Duration = Duration::from_secs(15);
/// The pause before another start, if the new gateway does not listen.
const START_AGAIN: Duration = Duration::from_secs(2);
/// The longest wait for the previous gateway to exit.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);
/// The poll interval of every wait here.
const LOOK: Duration = Duration::from_millis(5);
/// The longest path of a socket that every system takes, in bytes (`sun_path` of macOS).
const MAX_SOCKET_PATH: usize = 103;
/// The size of an answer without its result, in bytes.
#[cfg(unix)]
const ENVELOPE: usize = 1 << 20;
/// The longest line of a greeting, in bytes.
const MAX_GREETING: usize = 64 << 10;
/// The longest time for a greeting.
const GREETING_LIMIT: Duration = Duration::from_secs(10);

/// The first line of a client.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The client's profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The client's version.
    #[serde(default)]
    pub version: String,
    /// Whether it is no client, and only asks for the page.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub page: bool,
}

impl Hello {
    /// The first line of this program, under a profile.
    pub fn new(profile: Option<String>) -> Self {
        Self { profile, version: env!("CARGO_PKG_VERSION").into(), page: false }
    }

    /// The first line of a program that asks for the page.
    pub fn for_page() -> Self {
        Self { page: true, ..Self::new(None) }
    }
}

/// The first line of the gateway.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The gateway's version.
    pub version: String,
    /// Why the client is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The page, if the other end asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<PageLink>,
}

/// How the user of the gateway gets to its page.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageLink {
    /// The address with its token.
    pub link: String,
    /// A file of the user's alone that leads a browser there. It is gone after a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Whether the gateway serves clients over HTTP.
    #[serde(default)]
    pub over_http: bool,
}

impl Debug for PageLink {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageLink").field("over_http", &self.over_http).finish_non_exhaustive()
    }
}

/// The files of the page beside the socket.
#[derive(Clone, Debug)]
pub struct PageFiles {
    /// The port that the page had last.
    pub port: PathBuf,
    /// What a browser opens.
    pub link: PathBuf,
}

/// The place of the shared gateway of one configuration.
#[derive(Clone, Debug)]
pub struct SharedPlace {
    config: PathBuf,
    /// This program, which may be replaced by a newer one while it runs.
    program: PathBuf,
    folder: PathBuf,
    name: String,
    socket: PathBuf,
}

impl SharedPlace {
    /// The place for a configuration file. Makes the folder, which only its user can look into.
    pub fn of(config: &Path) -> anyhow::Result<Self> {
        let whole = match (config.exists(), config.parent(), config.file_name()) {
            // The file comes with the first server.
            (false, Some(folder), Some(name)) => fs::canonicalize(folder).map(|folder| folder.join(name)),
            _ => fs::canonicalize(config),
        };
        let config = whole.with_context(|| format!("`{}`", config.display()))?;
        let folder = store::folder().context("there is no home folder for the shared gateway's socket")?;
        let folder = folder.join("shared");
        files::private_folder(&folder)
            .with_context(|| format!("`{}` cannot be made for the shared gateway", folder.display()))?;
        #[cfg(unix)]
        own(&folder)?;
        let program = std::env::current_exe().context("the path of this program is not known")?;
        let digest = Sha256::digest(config.as_os_str().as_encoded_bytes());
        let name: String = hex(&digest[..8]);
        let socket = folder.join(format!("{name}.sock"));
        anyhow::ensure!(
            socket.as_os_str().len() <= MAX_SOCKET_PATH,
            "`{}` is too long for a socket (at most {MAX_SOCKET_PATH} bytes): set XDG_STATE_HOME to a shorter path",
            socket.display()
        );
        Ok(Self { config, program, folder, name, socket })
    }

    fn file(&self, suffix: &str) -> PathBuf {
        self.folder.join(format!("{}.{suffix}", self.name))
    }

    /// The log of a gateway that is started on demand; each day has one of its own.
    pub fn log(&self) -> PathBuf {
        self.file("log")
    }

    /// The files of the page; `before` is what their suffix begins with, so that two gateways have files of their own.
    pub fn page_files(&self, before: &str) -> PageFiles {
        PageFiles { port: self.file(&format!("{before}port")), link: self.file(&format!("{before}html")) }
    }

    fn lock_file(&self, suffix: &str) -> anyhow::Result<File> {
        let path = self.file(suffix);
        files::private(OpenOptions::new().create(true).truncate(false).write(true))
            .open(&path)
            .with_context(|| format!("`{}` cannot be opened", path.display()))
    }

    /// Takes the right to be the shared gateway, unless another process has it.
    pub fn try_own(&self) -> anyhow::Result<Option<SharedOwner>> {
        let file = self.lock_file("owner")?;
        match file.try_lock() {
            Ok(()) => {
                let (socket, page) = (self.socket.clone(), self.page_files(""));
                Ok(Some(SharedOwner { _lock: file, socket, page }))
            }
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error).context("the shared gateway's lock"),
        }
    }

    /// Takes that right as soon as an exiting gateway has given it back. Returns `None` if that takes too long.
    pub async fn own(&self) -> anyhow::Result<Option<SharedOwner>> {
        let began = Instant::now();
        loop {
            if let Some(owner) = self.try_own()? {
                return Ok(Some(owner));
            }
            if began.elapsed() > LEAVE_LIMIT {
                return Ok(None);
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// The right to be the shared gateway of a place, until dropped.
#[derive(Debug)]
pub struct SharedOwner {
    _lock: File,
    socket: PathBuf,
    /// The files of its page.
    pub page: PageFiles,
}

#[cfg(unix)]
mod unix {
    use tokio::net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    };

    use super::*;

    /// The gateway's end of a connection.
    pub type SocketReader = LineReader<OwnedReadHalf>;
    /// The other end for writing.
    pub type SocketWriter = OwnedWriteHalf;

    /// A connection to a gateway, after the first lines.
    pub struct JoinedGateway {
        /// What it says.
        pub reader: SocketReader,
        /// What is said to it.
        pub writer: SocketWriter,
        /// The page, if it was asked for and the gateway knows of such questions.
        pub page: Option<PageLink>,
    }

    /// Whether the other end is of the same user.
    pub(super) fn is_own(stream: &UnixStream) -> bool {
        stream.peer_cred().is_ok_and(|peer| peer.uid() == nix::unistd::geteuid().as_raw())
    }

    /// Refuses a folder that somebody else could put a socket into.
    pub(super) fn own(folder: &Path) -> anyhow::Result<()> {
        use std::os::unix::fs::MetadataExt;
        let meta = fs::symlink_metadata(folder)?;
        anyhow::ensure!(
            meta.is_dir() && meta.uid() == nix::unistd::geteuid().as_raw() && meta.mode() & 0o022 == 0,
            "`{}` is of another user, or others may write to it: take that away, or set XDG_STATE_HOME to a folder of your own",
            folder.display()
        );
        Ok(())
    }

    impl SharedOwner {
        /// Listens. What a killed gateway left behind is taken away.
        pub fn listen(&self) -> io::Result<UnixListener> {
            match fs::remove_file(&self.socket) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            UnixListener::bind(&self.socket)
        }
    }

    impl Drop for SharedOwner {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.socket);
        }
    }

    impl SharedPlace {
        /// Connects to the gateway that is there, and starts one if there is none.
        pub async fn join(&self, hello: &Hello) -> anyhow::Result<JoinedGateway> {
            if let Some(joined) = self.find(hello).await? {
                return Ok(joined);
            }
            let lock = self.lock_file("start")?;
            let began = Instant::now();
            let mut started: Option<Instant> = None;
            loop {
                // Somebody else may be starting one; whoever comes first.
                let mine = started.is_some() || lock.try_lock().is_ok();
                if let Some(joined) = self.find(hello).await? {
                    return Ok(joined);
                }
                // One that has ended before it listened is started again; of two the second leaves.
                if mine && started.is_none_or(|at| at.elapsed() > START_AGAIN) {
                    self.start()?;
                    started = Some(Instant::now());
                }
                if began.elapsed() > START_LIMIT {
                    let said = fs::read_to_string(self.file("stderr")).unwrap_or_default();
                    let said = said.trim().lines().last().unwrap_or("nothing on stderr").to_string();
                    anyhow::bail!(
                        "the shared gateway did not start within {}: {said}; its log is beside `{}`",
                        humantime::format_duration(START_LIMIT),
                        self.log().display()
                    );
                }
                tokio::time::sleep(LOOK).await;
            }
        }

        /// Connects to a gateway that is there and not just leaving. Starts none.
        pub async fn find(&self, hello: &Hello) -> anyhow::Result<Option<JoinedGateway>> {
            let Ok(stream) = UnixStream::connect(&self.socket).await else { return Ok(None) };
            anyhow::ensure!(is_own(&stream), "`{}` is of another user", self.socket.display());
            let (reader, mut writer) = stream.into_split();
            // Answers may be as long as those of servers.
            let mut reader = LineReader::new(reader, Limits::HIGHEST.answer.bytes + ENVELOPE);
            let greeted = async {
                let mut line = serde_json::to_vec(hello).ok()?;
                line.push(b'\n');
                writer.write_all(&line).await.ok()?;
                match reader.next().await? {
                    Line::Whole(line) => serde_json::from_slice::<Welcome>(&line).ok(),
                    _ => None,
                }
            };
            match tokio::time::timeout(GREETING_LIMIT, greeted).await {
                Ok(Some(Welcome { refused: None, version, page })) => {
                    if version != env!("CARGO_PKG_VERSION") {
                        tracing::warn!(%version, own = env!("CARGO_PKG_VERSION"), "the shared gateway is of another version; it is replaced when all its clients have left");
                    }
                    Ok(Some(JoinedGateway { reader, writer, page }))
                }
                Ok(Some(Welcome { refused: Some(why), .. })) => anyhow::bail!(why),
                // It was leaving.
                Ok(None) => Ok(None),
                Err(_) => anyhow::bail!(
                    "the shared gateway at `{}` does not answer; end it, and the next client starts another",
                    self.socket.display()
                ),
            }
        }

        /// Starts a gateway that is nobody's child.
        fn start(&self) -> anyhow::Result<()> {
            let stderr = files::private(OpenOptions::new().create(true).truncate(true).write(true))
                .open(self.file("stderr"))?;
            let started = Command::new(&self.program)
                .arg("--config")
                .arg(&self.config)
                .arg("--log-file")
                .arg(self.log())
                .arg(START_COMMAND)
                .envs(crate::variables::all())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(stderr)
                .status()
                .context("the shared gateway cannot be started")?;
            anyhow::ensure!(started.success(), "the shared gateway could not be started ({started})");
            Ok(())
        }
    }

    /// Starts this program again, as the gateway itself: what [`START_COMMAND`] does, and a gateway that leaves work to the
    /// next one. After an update, the program is the new one.
    pub fn start_detached() -> anyhow::Result<()> {
        let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
        for argument in &mut arguments {
            if argument == START_COMMAND {
                *argument = SHARED_COMMAND.into();
            }
        }
        let mut program = std::env::current_exe()?;
        // Linux says so of a program whose file was replaced.
        if let Some(replaced) = program.to_str().and_then(|path| path.strip_suffix(" (deleted)")) {
            program = replaced.into();
        }
        // With the variables that this process has hidden from what it starts.
        Command::new(program).args(arguments).envs(crate::variables::all()).spawn()?;
        Ok(())
    }

    /// Leaves the session of whoever started it, and its folder: no terminal and no host ends it with its own.
    pub fn settle(config: &Path) {
        if let Err(error) = nix::unistd::setsid() {
            tracing::debug!(%error, "no session of its own");
        }
        if let Some(folder) = config.parent()
            && let Err(error) = std::env::set_current_dir(folder)
        {
            tracing::warn!(%error, folder = %folder.display(), "the folder of the configuration cannot be entered");
        }
    }

    /// Reads what a client says first, and answers with what `welcome` gives. Its messages have at most `longest` bytes.
    pub async fn greet(
        stream: UnixStream,
        longest: usize,
        welcome: impl AsyncFnOnce(&Hello) -> Welcome,
    ) -> io::Result<Option<(Hello, SocketReader, SocketWriter)>> {
        if !is_own(&stream) {
            return Ok(None);
        }
        let (reader, mut writer) = stream.into_split();
        let mut reader = LineReader::new(reader, MAX_GREETING);
        let Ok(Some(Line::Whole(line))) = tokio::time::timeout(GREETING_LIMIT, reader.next()).await else {
            return Ok(None);
        };
        let hello: Hello = serde_json::from_slice(&line)?;
        let welcome = welcome(&hello).await;
        let mut line = serde_json::to_vec(&welcome)?;
        line.push(b'\n');
        writer.write_all(&line).await?;
        reader.allow(longest);
        Ok(welcome.refused.is_none().then_some((hello, reader, writer)))
    }
}

#[cfg(unix)]
pub use page_sockets::{PageSocket, PageSockets};
#[cfg(unix)]
pub use unix::{JoinedGateway, SocketReader, SocketWriter, greet, settle, start_detached};
#[cfg(unix)]
use unix::{is_own, own};
