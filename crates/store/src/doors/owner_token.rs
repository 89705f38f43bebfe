//! The token of this machine's user: it opens the user's gateways over HTTP whose configuration has no
//! tokens. The only place that knows where it is kept.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use nonet_base::files;
use parking_lot::Mutex;

use super::{PortListener, listens};

/// The token's file in the state folder.
const FILE_NAME: &str = "http.token";
/// How long a token that was read counts: from then on, a file that the user removed or replaced has its
/// effect.
const COUNTS: Duration = Duration::from_secs(1);
/// The lengths of a token.
const SHORTEST: usize = 32;
const LONGEST: u64 = 256;
/// How many times the file is looked at while other processes change it.
const TRIES: usize = 5;

/// The token's file, and what was last read from it.
#[derive(Debug)]
pub struct OwnerToken {
    file: PathBuf,
    last: Mutex<Option<(Instant, Arc<str>)>>,
}

impl OwnerToken {
    /// Returns the token of a state folder. Reads nothing yet.
    pub fn of(state: &Path) -> Self {
        Self { file: state.join(FILE_NAME), last: Mutex::default() }
    }

    /// Returns the token's file, which only its user can read.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the token. Makes one if there is none, or if others can read it. Blocks.
    ///
    /// # Errors
    ///
    /// If the file can be neither read nor written.
    pub fn current(&self) -> io::Result<Arc<str>> {
        let mut last = self.last.lock();
        if let Some((at, token)) = &*last
            && at.elapsed() < COUNTS
        {
            return Ok(token.clone());
        }
        let token: Arc<str> = self.read_or_make()?.into();
        *last = Some((Instant::now(), token.clone()));
        Ok(token)
    }

    fn read_or_make(&self) -> io::Result<String> {
        for _ in 0..TRIES {
            let found = match files::open_file(&self.file) {
                Ok(open) => Some(open),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            if let Some(token) = found.as_ref().map(read).transpose()?.flatten() {
                return Ok(token);
            }
            // Complete before it has its name, and never readable for others.
            if let Some(folder) = self.file.parent() {
                files::private_folder(folder)?;
            }
            let mut new = files::beside(&self.file)?;
            new.write_all(uuid::Uuid::new_v4().simple().to_string().as_bytes())?;
            if found.is_some() {
                tracing::warn!(file = %self.file.display(), "others could read the token for HTTP, or it was damaged: there is a new one");
                files::persist(new, &self.file, None)?;
            } else if let Err(error) = new.persist_noclobber(&self.file)
                && error.error.kind() != io::ErrorKind::AlreadyExists
            {
                return Err(error.error);
            }
        }
        Err(io::Error::other("the file is replaced again and again"))
    }
}

/// Returns the token in a file; none if it is damaged, or if others could have read it.
fn read(file: &File) -> io::Result<Option<String>> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let meta = file.metadata()?;
        if meta.uid() != nix::unistd::geteuid().as_raw() || meta.mode() & 0o077 != 0 {
            return Ok(None);
        }
    }
    let mut text = String::new();
    match Read::take(file, LONGEST + 1).read_to_string(&mut text) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(None),
        read => read?,
    };
    let token = text.trim();
    let is_token = token.len() >= SHORTEST
        && text.len() as u64 <= LONGEST
        && token.bytes().all(|byte| byte.is_ascii_graphic());
    Ok(is_token.then(|| token.into()))
}

/// What a gateway is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PresentedToken {
    /// The token.
    Token(Arc<str>),
    /// Nothing yet: nobody listens at the port, so nobody knows who will.
    NotYet,
    /// Nothing: another user's program listens there, or the token cannot be read.
    Nothing,
}

/// The owner's token for a gateway at a port of this machine. It is shown to nobody else's program.
#[derive(Debug)]
pub struct OwnerKey {
    token: OwnerToken,
    port: u16,
    /// When the port was last seen to be the user's own.
    seen: Mutex<Option<Instant>>,
}

impl OwnerKey {
    /// Returns the key for a port; none without a state folder.
    pub fn of_port(port: u16) -> Option<Self> {
        Some(Self { token: OwnerToken::of(&crate::folder()?), port, seen: Mutex::default() })
    }

    /// Returns what to show to the gateway. Blocks.
    pub fn shown(&self) -> PresentedToken {
        let mut seen = self.seen.lock();
        if seen.is_none_or(|at| at.elapsed() > COUNTS) {
            match listens(self.port) {
                Some(PortListener::Own) | None => *seen = Some(Instant::now()),
                Some(PortListener::Another) => {
                    tracing::debug!(
                        port = self.port,
                        "another user's program listens there: it gets no token"
                    );
                    return PresentedToken::Nothing;
                }
                Some(PortListener::Nobody) => return PresentedToken::NotYet,
            }
        }
        match self.token.current() {
            Ok(token) => PresentedToken::Token(token),
            Err(error) => {
                tracing::debug!(%error, "the token for HTTP cannot be read");
                PresentedToken::Nothing
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_made_once_and_only_its_user_can_read_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = folder.path().join("state");
        let made: Vec<_> = std::thread::scope(|scope| {
            let one = || scope.spawn(|| OwnerToken::of(&state).current().expect("a token"));
            let all: Vec<_> = std::iter::repeat_with(one).take(8).collect();
            all.into_iter().map(|one| one.join().expect("it ends")).collect()
        });
        assert!(made.iter().all(|token| token == &made[0] && token.len() == 32), "{made:?}");
        assert_eq!(std::fs::read_dir(&state).expect("a folder").count(), 1);
        #[cfg(unix)]
        {
            use std::os::unix::fs::{MetadataExt, PermissionsExt};
            let file = state.join(FILE_NAME);
            let mode = |path: &Path| std::fs::metadata(path).expect("it is there").mode() & 0o777;
            assert_eq!((mode(&file), mode(&state)), (0o600, 0o700));
            // What others could read is not used any more.
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("its owner may");
            let again = OwnerToken::of(&state).current().expect("a token");
            assert!(again != made[0] && mode(&file) == 0o600);
        }
    }

    #[test]
    fn a_damaged_token_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        for text in [&b""[..], b"short", &[0xff; 40], &[b'x'; 300], b"two words of thirty-two characters"] {
            files::replace_private(&folder.path().join(FILE_NAME), text).expect("written");
            let token = OwnerToken::of(folder.path()).current().expect("a token");
            assert_eq!((token.len(), token.contains(' ')), (32, false), "{text:?}");
        }
    }
}
