//! The one gateway that all clients of a configuration share on this machine: its place, its owner, and its
//! start.
//!
//! Each configuration has a [`SharedPlace`]: a socket and two locks. The holder of the lock `owner` may
//! listen on the socket; the system releases the lock however the process ends, so a socket without an owner
//! is known to be stale. A process that wants to start a gateway holds the lock `start` meanwhile, so that of
//! two such processes one starts the gateway and the other finds it. Each side first sends one line
//! ([`Hello`], [`Welcome`]); after that they speak MCP as over stdio.

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
use nonet_base::{files, text::hex};
use nonet_wire::{Limits, Line, LineReader};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;

/// The argument that runs the binary as the shared gateway.
pub const SHARED_COMMAND: &str = "__shared";
/// The argument that makes the binary start the shared gateway and exit, so that the gateway does not end
/// with its parent.
pub const START_COMMAND: &str = "__start_shared";
/// The option of both for a configuration that is used only as long as the user trusts its text.
pub const BY_TRUST: &str = "by-trust";
/// How long a new gateway may take until it listens.
pub const START_LIMIT: Duration = Duration::from_secs(15);
/// The delay before another start, if the new gateway does not listen.
const START_AGAIN: Duration = Duration::from_secs(2);
/// How long to wait for the previous gateway to exit.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);
/// The poll interval of every wait here.
const LOOK: Duration = Duration::from_millis(5);
/// The longest socket path that every system accepts, in bytes (`sun_path` on macOS).
const MAX_SOCKET_PATH: usize = 103;
/// The size of an answer without its result, in bytes.
#[cfg(unix)]
const ENVELOPE: usize = 1 << 20;
/// The longest line of a greeting, in bytes.
const MAX_GREETING: usize = 64 << 10;
/// How long a greeting may take.
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
    /// Whether the sender is not a client, and only requests the page.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub page: bool,
}

impl Hello {
    /// Returns this program's first line, under a profile.
    pub fn new(profile: Option<String>) -> Self {
        Self { profile, version: env!("CARGO_PKG_VERSION").into(), page: false }
    }

    /// Returns the first line of a program that requests the page.
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
    /// The page, if the other end requested it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<PageLink>,
}

/// The gateway user's way to its page.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageLink {
    /// The address with its token.
    pub link: String,
    /// A file readable only by the user that leads a browser there. It is deleted after a minute.
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
    /// The page's last port.
    pub port: PathBuf,
    /// The file that a browser opens.
    pub link: PathBuf,
}

/// The place of the shared gateway of one configuration.
#[derive(Clone, Debug)]
pub struct SharedPlace {
    config: PathBuf,
    /// This program's file, which an update may replace while the program runs.
    program: PathBuf,
    folder: PathBuf,
    name: String,
    socket: PathBuf,
    /// Whether a gateway that is started here may use the file only as long as the user trusts its text.
    by_trust: bool,
}

impl SharedPlace {
    /// Returns the place for a configuration file. Creates the folder, readable only by its user.
    pub fn of(config: &Path) -> anyhow::Result<Self> {
        let whole = match (config.exists(), config.parent(), config.file_name()) {
            // The file comes with the first server.
            (false, Some(folder), Some(name)) => fs::canonicalize(folder).map(|folder| folder.join(name)),
            _ => fs::canonicalize(config),
        };
        let config = whole.with_context(|| format!("`{}`", config.display()))?;
        let folder = crate::folder().context("there is no home folder for the shared gateway's socket")?;
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
        Ok(Self { config, program, folder, name, socket, by_trust: false })
    }

    /// Returns the place for a file that may be used only as long as the user trusts its text, if `by_trust`.
    pub fn by_trust(self, by_trust: bool) -> Self {
        Self { by_trust, ..self }
    }

    fn file(&self, suffix: &str) -> PathBuf {
        self.folder.join(format!("{}.{suffix}", self.name))
    }

    /// Returns the log of a gateway that is started on demand; each day has a separate one.
    pub fn log(&self) -> PathBuf {
        self.file("log")
    }

    /// Returns the files of the page; `before` prefixes their suffix, so that two gateways have separate
    /// files.
    pub fn page_files(&self, before: &str) -> PageFiles {
        PageFiles { port: self.file(&format!("{before}port")), link: self.file(&format!("{before}html")) }
    }

    fn lock_file(&self, suffix: &str) -> anyhow::Result<File> {
        let path = self.file(suffix);
        files::private(OpenOptions::new().create(true).truncate(false).write(true))
            .open(&path)
            .with_context(|| format!("`{}` cannot be opened", path.display()))
    }

    /// Acquires the right to be the shared gateway, unless another process has it.
    pub fn try_own(&self) -> anyhow::Result<Option<SharedOwner>> {
        let file = self.lock_file("owner")?;
        match file.try_lock() {
            Ok(()) => {
                let (place, page) = (self.clone(), self.page_files(""));
                Ok(Some(SharedOwner { lock: file, place, page }))
            }
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error).context("the shared gateway's lock"),
        }
    }

    /// Acquires that right as soon as an exiting gateway has released it. Returns `None` if that takes too
    /// long.
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
    lock: File,
    place: SharedPlace,
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
    /// The writing end of a connection.
    pub type SocketWriter = OwnedWriteHalf;

    /// A connection to a gateway, after the greetings.
    pub struct JoinedGateway {
        /// Reads from the gateway.
        pub reader: SocketReader,
        /// Writes to the gateway.
        pub writer: SocketWriter,
        /// The page, if it was requested and the gateway supports that.
        pub page: Option<PageLink>,
        /// The gateway's version.
        pub version: String,
    }

    /// Returns whether the other end belongs to the same user.
    pub(super) fn is_own(stream: &UnixStream) -> bool {
        stream.peer_cred().is_ok_and(|peer| peer.uid() == nix::unistd::geteuid().as_raw())
    }

    /// Refuses a folder in which others could create a socket.
    pub(super) fn own(folder: &Path) -> anyhow::Result<()> {
        use std::os::unix::fs::MetadataExt;
        let meta = fs::symlink_metadata(folder)?;
        anyhow::ensure!(
            meta.is_dir() && meta.uid() == nix::unistd::geteuid().as_raw() && meta.mode() & 0o022 == 0,
            "`{}` belongs to another user, or others may write to it: remove their access, or set XDG_STATE_HOME to your own folder",
            folder.display()
        );
        Ok(())
    }

    impl SharedOwner {
        /// Listens. Removes what a killed gateway left behind.
        pub fn listen(&self) -> io::Result<UnixListener> {
            match fs::remove_file(&self.place.socket) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            UnixListener::bind(&self.place.socket)
        }

        /// Listens again if the socket was removed, with its folder perhaps, unless another gateway has taken
        /// the place since.
        pub fn listen_again(&mut self) -> anyhow::Result<Option<UnixListener>> {
            let owns = self.owns();
            if owns && self.place.socket.exists() {
                return Ok(None);
            }
            if !owns {
                files::private_folder(&self.place.folder)?;
                let Some(mut again) = self.place.try_own()? else { return Ok(None) };
                std::mem::swap(&mut self.lock, &mut again.lock);
            }
            Ok(Some(self.listen()?))
        }

        /// Returns whether the lock is still the one that others see.
        fn owns(&self) -> bool {
            use std::os::unix::fs::MetadataExt;
            let seen = fs::metadata(self.place.file("owner")).map(|found| (found.dev(), found.ino()));
            let held = self.lock.metadata().map(|held| (held.dev(), held.ino()));
            matches!((seen, held), (Ok(seen), Ok(held)) if seen == held)
        }
    }

    impl Drop for SharedOwner {
        fn drop(&mut self) {
            // Without the place, the socket is another gateway's.
            if self.owns() {
                let _ = fs::remove_file(&self.place.socket);
            }
        }
    }

    impl SharedPlace {
        /// Connects to the running gateway, and starts one if there is none.
        pub async fn join(&self, hello: &Hello) -> anyhow::Result<JoinedGateway> {
            if let Some(joined) = self.find(hello).await? {
                return Ok(joined);
            }
            let lock = self.lock_file("start")?;
            let began = Instant::now();
            let mut started: Option<Instant> = None;
            loop {
                // Another process may be starting one; the first wins.
                let mine = started.is_some() || lock.try_lock().is_ok();
                if let Some(joined) = self.find(hello).await? {
                    return Ok(joined);
                }
                // If the gateway ended before it listened, start it again; of two gateways, the second exits.
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

        /// Connects to a running gateway that is not about to exit. Starts none.
        pub async fn find(&self, hello: &Hello) -> anyhow::Result<Option<JoinedGateway>> {
            let Ok(stream) = UnixStream::connect(&self.socket).await else { return Ok(None) };
            anyhow::ensure!(is_own(&stream), "`{}` belongs to another user", self.socket.display());
            let (reader, mut writer) = stream.into_split();
            // Answers may be as long as servers' answers.
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
                        tracing::warn!(%version, own = env!("CARGO_PKG_VERSION"), "the shared gateway has another version; `nonet restart` replaces it, or it is replaced when all its clients have left");
                    }
                    Ok(Some(JoinedGateway { reader, writer, page, version }))
                }
                Ok(Some(Welcome { refused: Some(why), .. })) => anyhow::bail!(why),
                // The gateway was exiting.
                Ok(None) => Ok(None),
                Err(_) => anyhow::bail!(
                    "the shared gateway at `{}` does not answer; end it, and the next client starts another",
                    self.socket.display()
                ),
            }
        }

        /// Starts a gateway as nobody's child.
        fn start(&self) -> anyhow::Result<()> {
            let stderr = files::private(OpenOptions::new().create(true).truncate(true).write(true))
                .open(self.file("stderr"))?;
            let started = Command::new(&self.program)
                .arg("--config")
                .arg(&self.config)
                .arg("--log-file")
                .arg(self.log())
                .arg(START_COMMAND)
                .args(self.by_trust.then(|| format!("--{BY_TRUST}")))
                .envs(nonet_base::variables::all())
                .env_remove(nonet_base::variables::STARTED_BY)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(stderr)
                .status()
                .context("the shared gateway cannot be started")?;
            anyhow::ensure!(started.success(), "the shared gateway could not be started ({started})");
            Ok(())
        }
    }

    /// Starts this program again, as the gateway itself, for [`START_COMMAND`] and for a gateway that leaves
    /// work to the next one. After an update, this starts the new program.
    pub fn start_detached() -> anyhow::Result<()> {
        let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
        for argument in &mut arguments {
            if argument == START_COMMAND {
                *argument = SHARED_COMMAND.into();
            }
        }
        let mut program = std::env::current_exe()?;
        // Linux adds this to the path of a program whose file was replaced.
        if let Some(replaced) = program.to_str().and_then(|path| path.strip_suffix(" (deleted)")) {
            program = replaced.into();
        }
        // Include the variables that this process hides from its children.
        Command::new(program).args(arguments).envs(nonet_base::variables::all()).spawn()?;
        Ok(())
    }

    /// Leaves the starter's session and folder, so that no terminal or host ends the gateway with itself.
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

    /// Reads a client's first line, and answers with the result of `welcome`. Further messages have at most
    /// `longest` bytes.
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
