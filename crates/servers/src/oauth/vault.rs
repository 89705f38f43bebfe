//! The store of sign-ins: a file that only its owner can read, or a keyring entry with a file that names it.

use std::{
    fmt,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use nonet_base::{
    files::{self, FileStamp},
    text::hex,
};
use nonet_config::keyring::{self, Keyring};
use oauth2::TokenResponse;
use rmcp::transport::auth::StoredCredentials;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// How often the vault is checked for a sign-in.
pub(super) const LOOK: Duration = Duration::from_millis(500);
/// The longest wait for a renewal in another process.
const LOCK_LIMIT: Duration = Duration::from_secs(30);

/// Why a sign-in cannot be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    /// The file cannot be read or written.
    #[error("`{}`: {source}; make it readable and writable for this user, or sign in again", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The content of the file is not a sign-in.
    #[error("`{}` is damaged ({why}); sign in again", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The place of the damage.
        why: String,
    },
    /// The accounts of people cannot be read or written.
    #[error("the accounts of people: {0}")]
    Store(String),
    /// The keyring failed.
    #[error("{error}. {}", error.remedy())]
    Keyring {
        /// The keyring's error.
        #[from]
        error: keyring::Error,
    },
}

/// The outcome of one sign-in.
#[derive(Clone, Serialize, Deserialize)]
pub struct SignInRecord {
    /// The id of the sign-in, which renewals keep.
    pub id: String,
    /// The server's address.
    pub url: String,
    /// The client, its tokens, and their issuer.
    pub credentials: StoredCredentials,
    /// The client's secret, if registration gave one. A configured secret is not stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<String>,
    /// The address that the browser came back to.
    pub redirect_uri: String,
    /// The challenge of the server, which leads to the sign-in server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub challenge: Option<String>,
}

impl fmt::Debug for SignInRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignInRecord").field("url", &self.url).finish_non_exhaustive()
    }
}

impl SignInRecord {
    /// Returns the record of a client that signs in by itself.
    pub fn of_client(url: &str, credentials: StoredCredentials) -> Self {
        let (id, redirect_uri) = (String::new(), String::new());
        Self { id, url: url.into(), credentials, client_secret: None, redirect_uri, challenge: None }
    }

    /// Returns the tokens and secrets in the record.
    pub fn secrets(&self) -> Vec<String> {
        let token = self.credentials.token_response.as_ref();
        let refresh = token.and_then(|token| token.refresh_token()).map(|token| token.secret().clone());
        refresh.into_iter().chain(self.client_secret.clone()).chain(self.token()).collect()
    }

    /// Returns the access token, unless the sign-in has ended.
    pub fn token(&self) -> Option<String> {
        Some(self.credentials.token_response.as_ref()?.access_token().secret().clone())
    }

    /// Returns whether the token is valid after this moment, given since 1970. A token without a known expiry
    /// is.
    pub fn ends_after(&self, moment: Duration) -> bool {
        let ends = || {
            let lasts = self.credentials.token_response.as_ref()?.expires_in()?;
            Some(Duration::from_secs(self.credentials.token_received_at?) + lasts)
        };
        self.credentials.token_response.is_some() && ends().is_none_or(|ends| ends > moment)
    }

    /// Returns whether the token can be renewed.
    pub fn renews(&self) -> bool {
        self.credentials.token_response.as_ref().is_some_and(|token| token.refresh_token().is_some())
    }
}

/// A record and its place.
#[derive(Clone, Debug)]
pub struct KeptRecord {
    /// The record.
    pub record: SignInRecord,
    /// Whether the record is in the keyring; else it is in the file.
    pub in_keyring: bool,
}

/// The content of the file.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Contents {
    /// The whole record.
    Here(Box<SignInRecord>),
    /// The name of the keyring's entry, and the id of the sign-in.
    Keyring { keyring: String, id: String },
}

/// The folder of all sign-ins of this user.
#[derive(Clone, Debug)]
pub struct Vault {
    folder: PathBuf,
}

impl Vault {
    /// Returns the vault in Nonet's state folder.
    pub fn in_state(state: &Path) -> Self {
        Self { folder: state.join("oauth") }
    }

    /// Returns the entry of a server. A different address is a different server: no token goes there.
    pub fn entry(&self, server: &str, url: &str) -> VaultEntry {
        self.entry_at(server, &hex(&Sha256::digest(url)[..8]))
    }

    fn entry_at(&self, server: &str, digest: &str) -> VaultEntry {
        VaultEntry {
            file: self.folder.join(format!("{server}-{digest}.json")),
            secret: format!("OAUTH_{}_{digest}", server.replace('-', "_")).to_uppercase(),
        }
    }

    /// Returns the stored sign-ins of every server that has had this name.
    pub fn entries_of(&self, server: &str) -> Vec<VaultEntry> {
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let entries = files.filter_map(|file| {
            let name = file.file_name().into_string().ok()?;
            let digest = name.strip_prefix(server)?.strip_prefix('-')?.strip_suffix(".json")?;
            let is_digest = digest.len() == 16 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_digest.then(|| self.entry_at(server, digest))
        });
        entries.collect()
    }
}

/// The place of the sign-in to one server.
#[derive(Clone, Debug)]
pub struct VaultEntry {
    file: PathBuf,
    /// The name in the keyring.
    secret: String,
}

impl VaultEntry {
    /// Returns the file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the stamp of the file, if the file exists.
    pub fn stamp(&self) -> Option<FileStamp> {
        FileStamp::of(&self.file)
    }

    /// Returns the id of the stored sign-in, if there is one.
    pub fn sign_in(&self) -> Option<String> {
        Some(match self.parse(&fs::read(&self.file).ok()?).ok()? {
            Contents::Here(record) => record.id,
            Contents::Keyring { id, .. } => id,
        })
    }

    /// Checks that a sign-in can be stored, in the keyring or in the file.
    pub fn check(&self, in_keyring: bool) -> Result<(), VaultError> {
        self.folder().map_err(|error| self.failed(error))?;
        if !in_keyring {
            return Ok(());
        }
        match Keyring::system(keyring::ATTENDED).get(&self.secret) {
            Ok(_) | Err(keyring::Error::NoSecret(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the stored sign-in, if there is one.
    pub fn read(&self) -> Result<Option<KeptRecord>, VaultError> {
        let Some(text) = self.text()? else { return Ok(None) };
        Ok(Some(match self.parse(&text)? {
            Contents::Here(record) => KeptRecord { record: *record, in_keyring: false },
            Contents::Keyring { keyring: name, .. } => {
                let text = Keyring::system(keyring::UNATTENDED).get(&name)?;
                let record = serde_json::from_str(&text).map_err(|error| self.unreadable(&error))?;
                KeptRecord { record, in_keyring: true }
            }
        }))
    }

    /// Replaces the stored sign-in. Waits for a keyring at most `limit`.
    pub fn write(&self, kept: &KeptRecord, limit: Duration) -> Result<(), VaultError> {
        let contents = if kept.in_keyring {
            let text = serde_json::to_string(&kept.record).map_err(|error| self.failed(error.into()))?;
            Keyring::system(limit).set(&self.secret, &text)?;
            Contents::Keyring { keyring: self.secret.clone(), id: kept.record.id.clone() }
        } else {
            Contents::Here(Box::new(kept.record.clone()))
        };
        let text = serde_json::to_vec(&contents).map_err(|error| self.failed(error.into()))?;
        files::replace_private(&self.file, &text).map_err(|error| self.failed(error))
    }

    /// Removes the stored sign-in. Returns whether there was one.
    pub fn remove(&self) -> Result<bool, VaultError> {
        let Some(text) = self.text()? else { return Ok(false) };
        if let Ok(Contents::Keyring { keyring: name, .. }) = self.parse(&text) {
            match Keyring::system(keyring::ATTENDED).remove(&name) {
                Ok(()) | Err(keyring::Error::NoSecret(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        fs::remove_file(&self.file).map_err(|error| self.failed(error))?;
        Ok(true)
    }

    /// Locks the entry for a renewal, against other processes.
    pub async fn lock(&self) -> Result<File, VaultError> {
        let entry = self.clone();
        self.apart(move || entry.locked().map_err(|error| entry.failed(error))).await
    }

    /// Runs blocking work, which may wait for a keyring or another process, on a separate thread.
    pub async fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, VaultError> + Send + 'static,
    ) -> Result<T, VaultError> {
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|error| Err(self.failed(io::Error::other(error))))
    }

    fn locked(&self) -> io::Result<File> {
        self.folder()?;
        let file = files::lock_file(&self.file.with_extension("lock"))?;
        files::lock_within(file, LOCK_LIMIT).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => {
                io::Error::new(error.kind(), "another process holds its lock for a renewal")
            }
            _ => error,
        })
    }

    fn folder(&self) -> io::Result<()> {
        self.file.parent().map_or(Ok(()), files::private_folder)
    }

    /// Returns the content of the file, if the file exists.
    fn text(&self) -> Result<Option<Vec<u8>>, VaultError> {
        match fs::read(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            text => text.map(Some).map_err(|error| self.failed(error)),
        }
    }

    fn parse(&self, text: &[u8]) -> Result<Contents, VaultError> {
        serde_json::from_slice(text).map_err(|error| self.unreadable(&error))
    }

    fn failed(&self, source: io::Error) -> VaultError {
        VaultError::File { path: self.file.clone(), source }
    }

    /// Returns the fault with the position of the damage, not the content.
    fn unreadable(&self, error: &serde_json::Error) -> VaultError {
        let why = format!("line {}, column {}", error.line(), error.column());
        VaultError::Unreadable { path: self.file.clone(), why }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(token: &str, expires_in: u64, received_at: u64) -> SignInRecord {
        let credentials = json!({
            "client_id": "c", "granted_scopes": [], "token_received_at": received_at,
            "token_response": { "access_token": token, "token_type": "bearer", "expires_in": expires_in },
        });
        SignInRecord {
            id: "1".into(),
            url: "https://a/mcp".into(),
            credentials: serde_json::from_value(credentials).expect("it can be read"),
            client_secret: Some("s3cret".into()),
            redirect_uri: "http://127.0.0.1:1/callback".into(),
            challenge: None,
        }
    }

    #[test]
    fn each_address_has_a_sign_in_of_its_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let vault = Vault::in_state(folder.path());
        let entry = vault.entry("docs", "https://a/mcp");
        let stamp = entry.stamp();
        entry
            .write(&KeptRecord { record: record("t0k3n", 60, 0), in_keyring: false }, Duration::ZERO)
            .expect("kept");
        assert_ne!(entry.stamp(), stamp);
        let read =
            |entry: &VaultEntry| entry.read().expect("it can be read").and_then(|kept| kept.record.token());
        assert_eq!(read(&vault.entry("docs", "https://a/mcp")).as_deref(), Some("t0k3n"));
        assert_eq!(read(&vault.entry("docs", "https://b/mcp")), None);
        assert_eq!(read(&vault.entry("other", "https://a/mcp")), None);
        let of = |server: &str| vault.entries_of(server).iter().map(read).collect::<Vec<_>>();
        assert_eq!((of("docs"), of("doc")), (vec![Some("t0k3n".into())], vec![]));
        assert_eq!((entry.remove().ok(), entry.remove().ok(), read(&entry)), (Some(true), Some(false), None));
    }

    #[test]
    fn the_error_of_a_damaged_file_has_nothing_of_its_content() {
        let folder = tempfile::tempdir().expect("a folder");
        let entry = Vault::in_state(folder.path()).entry("docs", "https://a/mcp");
        files::replace_private(&entry.file, b"{\"url\": \"s3cret\", \"credentials\": 7}")
            .expect("it can be written");
        let error = entry.read().expect_err("it is none").to_string();
        assert!(error.contains("sign in again") && !error.contains("s3cret"), "{error}");
        assert_eq!(entry.remove().ok(), Some(true));
    }

    #[test]
    fn a_token_is_good_until_its_end() {
        let good = |record: &SignInRecord, at: u64| record.ends_after(Duration::from_secs(at));
        let mut token = record("t", 60, 1_000);
        assert!(good(&token, 1_059) && !good(&token, 1_060));
        token.credentials.token_received_at = None;
        assert!(good(&token, 5_000), "its end is not known");
        token.credentials.token_response = None;
        assert!(!good(&token, 0) && token.token().is_none(), "the sign-in is over");
        assert!(!format!("{:?}", record("t0k3n", 1, 1)).contains("t0k3n"));
    }
}
