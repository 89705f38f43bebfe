//! The sockets over which the gateways of this user answer each other's page: one file for each gateway, in
//! the state folder.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::Context;
use nonet_base::files;
use tokio::net::{UnixListener, UnixStream};

use super::{MAX_SOCKET_PATH, is_own, own};

/// How the name of a socket ends.
const SUFFIX: &str = ".page";
/// How the name of a socket ends until the gateway listens.
const NEW: &str = "new";
/// The most gateways on one page, and the most sockets that are looked at to find those of ended gateways.
const MOST: usize = 100;
const MOST_PRUNED: usize = 10_000;

/// The folder of the sockets.
#[derive(Clone, Debug)]
pub struct PageSockets {
    folder: PathBuf,
}

/// The socket of a gateway; its file is removed when dropped.
#[derive(Debug)]
pub struct PageSocket {
    path: PathBuf,
    listener: UnixListener,
}

impl PageSockets {
    /// Returns the sockets below a state folder. Makes their folder, which only its user can look into.
    ///
    /// # Errors
    ///
    /// If the folder is of another user or cannot be made.
    pub fn of(state: &Path) -> anyhow::Result<Self> {
        let folder = state.join("shared");
        files::private_folder(&folder).with_context(|| format!("`{}` cannot be made", folder.display()))?;
        own(&folder)?;
        Ok(Self { folder })
    }

    /// Listens for the page of other gateways. `id` becomes the gateway's name among them.
    ///
    /// # Errors
    ///
    /// If the socket cannot be made, or its path is longer than a socket's path may be.
    pub fn listen(&self, id: &str) -> io::Result<PageSocket> {
        let path = self.path(id)?;
        if path.as_os_str().len() > MAX_SOCKET_PATH {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        Ok(PageSocket { listener: bind(&path)?, path })
    }

    /// Listens again if a socket was removed, with its folder perhaps.
    ///
    /// # Errors
    ///
    /// If the socket cannot be made.
    pub fn listen_again(&self, socket: &mut PageSocket) -> io::Result<()> {
        if !socket.path.exists() {
            files::private_folder(&self.folder)?;
            socket.listener = bind(&socket.path)?;
        }
        Ok(())
    }

    /// Returns the gateways that have a socket, some of which may have ended.
    pub fn ids(&self) -> Vec<String> {
        self.all().take(MOST).collect()
    }

    fn all(&self) -> impl Iterator<Item = String> + use<> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| Some(name.strip_suffix(SUFFIX)?.to_string()))
    }

    /// Removes the sockets of gateways that have ended. Blocks.
    pub fn prune(&self) {
        for id in self.all().take(MOST_PRUNED) {
            let Ok(path) = self.path(&id) else { continue };
            if std::os::unix::net::UnixStream::connect(&path).is_err_and(|error| has_ended(&error)) {
                let _ = fs::remove_file(&path);
            }
        }
    }

    /// Connects to a gateway. The file of one that has ended is removed.
    ///
    /// # Errors
    ///
    /// If no gateway of this user listens there.
    pub async fn connect(&self, id: &str) -> io::Result<UnixStream> {
        let path = self.path(id)?;
        match UnixStream::connect(&path).await {
            Ok(stream) if is_own(&stream) => Ok(stream),
            Ok(_) => Err(io::ErrorKind::PermissionDenied.into()),
            Err(error) => {
                if has_ended(&error) {
                    let _ = fs::remove_file(&path);
                }
                Err(error)
            }
        }
    }

    /// Returns the path of a gateway's socket. An id leads nowhere else.
    fn path(&self, id: &str) -> io::Result<PathBuf> {
        let is_id = (1..=40).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_id {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(self.folder.join(format!("{id}{SUFFIX}")))
    }
}

/// Listens at a path.
fn bind(path: &Path) -> io::Result<UnixListener> {
    // Under its name only once it listens: a socket that refuses is taken for that of a gateway that has
    // ended.
    let new = path.with_extension(NEW);
    let listener = UnixListener::bind(&new)?;
    fs::rename(&new, path)?;
    Ok(listener)
}

/// Whether nobody listens at a socket any more.
fn has_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}

impl PageSocket {
    /// Returns the next connection of this user.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            if is_own(&stream) {
                return Ok(stream);
            }
        }
    }
}

impl Drop for PageSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
