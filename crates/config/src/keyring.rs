//! Secrets in the keyring of the user's system: macOS's Keychain, Windows's Credential Manager, elsewhere a
//! Secret Service such as GNOME Keyring or KWallet.
//!
//! Knows names and texts, not their purpose. A locked keyring asks its user, who may be absent, so every
//! access runs on its own thread, within a time limit.

use std::{
    env,
    sync::{Arc, LazyLock, OnceLock, mpsc},
    thread,
    time::{Duration, Instant},
};

use keyring_core::{CredentialStore, Entry};
use parking_lot::Mutex;
use tokio::sync::Notify;
use uuid::Uuid;

/// The service of every secret; the secret's name is the user.
pub const SERVICE: &str = "nonet";
/// The variable that switches the keyring off, with the value `off`.
pub const SWITCH: &str = "NONET_KEYRING";
/// The time limit of an access if the user may be absent.
pub const UNATTENDED: Duration = Duration::from_secs(3);
/// The time limit of an access on behalf of a user who has just typed a command.
pub const ATTENDED: Duration = Duration::from_secs(120);

/// The longest text of an entry, in UTF-16 units. Windows allows 2,560 bytes.
const LONGEST: usize = if cfg!(windows) { 1_200 } else { usize::MAX };
/// The start of an entry whose text is split over other entries.
const PARTS: &str = "\u{1}parts ";

/// Why a secret cannot be read or stored.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// There is no keyring, or it is unreachable.
    #[error("there is no keyring here ({0})")]
    Missing(String),
    /// The keyring is locked, did not answer in time, or denies Nonet access.
    #[error("the keyring is locked or denies access ({0})")]
    Locked(String),
    /// The keyring has no secret of that name.
    #[error("the keyring has no secret `{0}`")]
    NoSecret(String),
    /// Something else went wrong.
    #[error("the keyring failed ({0})")]
    Failed(String),
}

impl Error {
    /// Returns the remedy.
    pub fn remedy(&self) -> String {
        match self {
            Self::Missing(_) => {
                "On Linux, run a Secret Service such as gnome-keyring in Nonet's session.".into()
            }
            Self::Locked(_) => "Unlock it, allow Nonet, and try again.".into(),
            Self::NoSecret(name) => format!("Store it with `nonet secret set {name}`."),
            Self::Failed(_) => "Check the entries of the service `nonet` in your system's keyring.".into(),
        }
    }
}

/// Access to a keyring for one task, such as reading a configuration. The time limit covers all accesses
/// together.
#[derive(Clone)]
pub struct Keyring {
    shared: Arc<KeyringState>,
    longest: usize,
}

struct KeyringState {
    open: Box<OpenStore>,
    store: OnceLock<Arc<CredentialStore>>,
    /// The remaining time, or why the keyring is no longer asked.
    left: Mutex<Result<Duration, Error>>,
}

type OpenStore = dyn Fn() -> keyring_core::Result<Arc<CredentialStore>> + Send + Sync;

impl Keyring {
    /// Returns this system's keyring, which the first access opens.
    pub fn system(limit: Duration) -> Self {
        Self::new(open, limit)
    }

    /// Wraps another keyring.
    pub fn new(
        open: impl Fn() -> keyring_core::Result<Arc<CredentialStore>> + Send + Sync + 'static,
        limit: Duration,
    ) -> Self {
        let shared =
            KeyringState { open: Box::new(open), store: OnceLock::new(), left: Mutex::new(Ok(limit)) };
        Self { shared: Arc::new(shared), longest: LONGEST }
    }

    /// Returns a secret.
    pub fn get(&self, name: &str) -> Result<String, Error> {
        self.run(name, read)
    }

    /// Stores a secret, replacing any existing one of that name.
    pub fn set(&self, name: &str, value: &str) -> Result<(), Error> {
        let (value, longest) = (value.to_string(), self.longest);
        self.run(name, move |store, name| write(store, name, &value, longest))
    }

    /// Removes a secret.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        self.run(name, remove)
    }

    fn run<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce(&CredentialStore, &str) -> keyring_core::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let mut left = self.shared.left.lock();
        let limit = left.clone()?;
        let (sender, answer) = mpsc::sync_channel(1);
        let (shared, name, begun) = (self.shared.clone(), name.to_string(), Instant::now());
        let worker = thread::Builder::new().name("keyring".into()).spawn(move || {
            let result = shared
                .store()
                .and_then(|store| work(&**store, &name).map_err(|error| explained(error, &name)));
            let works = matches!(result, Ok(_) | Err(Error::NoSecret(_)));
            if sender.send(result).is_err() && works {
                LATE.notify_one();
            }
        });
        worker.map_err(|error| Error::Failed(format!("cannot start a thread: {error}")))?;
        let late = || Error::Locked("it did not answer in time; it may be asking you".into());
        let result = answer.recv_timeout(limit).unwrap_or_else(|error| match error {
            mpsc::RecvTimeoutError::Timeout => Err(late()),
            mpsc::RecvTimeoutError::Disconnected => Err(Error::Failed("it crashed".into())),
        });
        let rest = limit.checked_sub(begun.elapsed()).ok_or_else(late);
        *left = match &result {
            // Ask the user once, not for each secret. macOS asks for each, and the user may refuse a single
            // one.
            Err(error @ Error::Locked(_)) if cfg!(not(target_os = "macos")) => Err(error.clone()),
            _ => rest,
        };
        result
    }
}

impl KeyringState {
    fn store(&self) -> Result<&Arc<CredentialStore>, Error> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let store = (self.open)().map_err(|error| Error::Missing(detail(&error)))?;
        Ok(self.store.get_or_init(|| store))
    }
}

/// Signals an answer of a keyring after the time limit: the user has unlocked it.
static LATE: LazyLock<Notify> = LazyLock::new(Notify::new);

/// Waits for the late answer of a keyring.
pub async fn answered_late() {
    LATE.notified().await;
}

/// Whether a secret can have this name: the rule for variables applies.
pub fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn open() -> keyring_core::Result<Arc<CredentialStore>> {
    if env::var_os(SWITCH).is_some_and(|value| value == "off") {
        return Err(unsupported("it is switched off by NONET_KEYRING=off"));
    }
    #[cfg(all(feature = "keyring", target_os = "macos"))]
    let store = apple_native_keyring_store::keychain::Store::new()?;
    #[cfg(all(feature = "keyring", windows))]
    let store = windows_native_keyring_store::Store::new()?;
    #[cfg(all(feature = "keyring", unix, not(target_os = "macos")))]
    let store = zbus_secret_service_keyring_store::Store::new()?;
    #[cfg(not(feature = "keyring"))]
    let store = Err(unsupported("this Nonet was built without the feature `keyring`"))?;
    Ok(store)
}

fn unsupported(why: &str) -> keyring_core::Error {
    keyring_core::Error::NotSupportedByStore(why.into())
}

fn entry(store: &CredentialStore, name: &str) -> keyring_core::Result<Entry> {
    store.build(SERVICE, name, None)
}

fn read(store: &CredentialStore, name: &str) -> keyring_core::Result<String> {
    let text = entry(store, name)?.get_password()?;
    match parts(&text, name) {
        None => Ok(text),
        Some(names) => names.iter().map(|part| entry(store, part)?.get_password()).collect(),
    }
}

/// Writes the parts first, so that an entry never names missing parts.
fn write(store: &CredentialStore, name: &str, value: &str, longest: usize) -> keyring_core::Result<()> {
    let own = entry(store, name)?;
    let before = match own.get_password() {
        Ok(text) => parts(&text, name),
        Err(keyring_core::Error::NoEntry | keyring_core::Error::BadEncoding(_)) => None,
        Err(error) => return Err(error),
    };
    if value.encode_utf16().count() <= longest && !value.starts_with(PARTS) {
        own.set_password(value)?;
    } else {
        let pieces = pieces(value, longest);
        let head = format!("{PARTS}{} {}", pieces.len(), Uuid::new_v4().simple());
        let names = parts(&head, name).unwrap_or_default();
        for (part, piece) in names.iter().zip(pieces) {
            entry(store, part)?.set_password(&piece)?;
        }
        own.set_password(&head)?;
    }
    before
        .iter()
        .flatten()
        .for_each(|part| drop(entry(store, part).and_then(|part| part.delete_credential())));
    Ok(())
}

fn remove(store: &CredentialStore, name: &str) -> keyring_core::Result<()> {
    let own = entry(store, name)?;
    let parts = own.get_password().ok().and_then(|text| parts(&text, name));
    own.delete_credential()?;
    parts
        .iter()
        .flatten()
        .for_each(|part| drop(entry(store, part).and_then(|part| part.delete_credential())));
    Ok(())
}

/// Returns the names of the entries that hold a split text; none for a whole text.
fn parts(text: &str, name: &str) -> Option<Vec<String>> {
    let (count, tag) = text.strip_prefix(PARTS)?.split_once(' ')?;
    let count: usize = count.parse().ok()?;
    Some((1..=count).map(|number| format!("{name}/{tag}/{number}")).collect())
}

/// Splits a text into pieces that each fit into an entry.
fn pieces(text: &str, longest: usize) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut units = 0;
    for c in text.chars() {
        units += c.len_utf16();
        if units > longest {
            pieces.push(String::new());
            units = c.len_utf16();
        }
        if let Some(piece) = pieces.last_mut() {
            piece.push(c);
        }
    }
    pieces
}

/// Translates a keyring's error, without secret content.
fn explained(error: keyring_core::Error, name: &str) -> Error {
    use keyring_core::Error as Cause;
    match &error {
        Cause::NoEntry => Error::NoSecret(name.into()),
        Cause::NoStorageAccess(_) => Error::Locked(detail(&error)),
        // macOS has many errors for a refusal by the user, and next to no other errors.
        Cause::PlatformFailure(_) if cfg!(target_os = "macos") => Error::Locked(detail(&error)),
        // A refused prompt while storing a secret.
        Cause::PlatformFailure(cause) if is_refusal(&cause.to_string()) => Error::Locked(detail(&error)),
        Cause::Ambiguous(_) => Error::Failed(format!("it has more than one secret `{name}`")),
        Cause::BadEncoding(_) | Cause::BadDataFormat(..) => Error::Failed(format!("`{name}` is not text")),
        _ => Error::Failed(detail(&error)),
    }
}

fn is_refusal(cause: &str) -> bool {
    ["prompt dismissed", "object locked", "IsLocked"].iter().any(|word| cause.contains(word))
}

fn detail(error: &keyring_core::Error) -> String {
    use keyring_core::Error as Cause;
    match error {
        Cause::PlatformFailure(cause) | Cause::NoStorageAccess(cause) => match cause.to_string() {
            // The Secret Service's error for a session without a login.
            text if text.contains("result not returned") => "it has no default keyring yet".into(),
            text => text,
        },
        Cause::NotSupportedByStore(why) => why.clone(),
        error => error.to_string(),
    }
}

/// Keyrings of tests.
impl Keyring {
    /// Returns a keyring in memory with these secrets.
    pub fn in_memory(secrets: &[(&str, &str)]) -> Self {
        let store: Arc<CredentialStore> = keyring_core::mock::Store::new().expect("memory needs nothing");
        let keyring = Self::new(move || Ok(store.clone()), Duration::from_secs(60));
        for (name, value) in secrets {
            keyring.set(name, value).expect("memory takes it");
        }
        keyring
    }

    /// Returns a keyring that does not exist.
    pub fn absent() -> Self {
        Self::new(|| Err(unsupported("no bus")), Duration::from_secs(60))
    }
}

#[cfg(test)]
mod tests {
    use keyring_core::mock;

    use super::*;

    #[test]
    fn secrets_are_set_read_and_removed() {
        let keyring = Keyring::in_memory(&[]);
        let none = Error::NoSecret("A".into());
        assert_eq!(keyring.get("A"), Err(none.clone()));
        assert_eq!(keyring.remove("A"), Err(none.clone()));
        assert_eq!((keyring.set("A", "1"), keyring.set("B", "2")), (Ok(()), Ok(())));
        assert_eq!((keyring.get("A"), keyring.get("B")), (Ok("1".into()), Ok("2".into())));
        assert_eq!((keyring.set("A", "ü\n"), keyring.get("A")), (Ok(()), Ok("ü\n".into())));
        assert_eq!((keyring.remove("A"), keyring.get("A")), (Ok(()), Err(none)));
        assert_eq!(Keyring::absent().get("A"), Err(Error::Missing("no bus".into())));
    }

    #[test]
    fn what_is_too_long_for_an_entry_goes_in_parts() {
        let store = mock::Store::new().expect("a store");
        let opened: Arc<CredentialStore> = store.clone();
        let mut keyring = Keyring::new(move || Ok(opened.clone()), Duration::from_secs(60));
        keyring.longest = 50;
        let entries = || {
            let all = store.inner.lock().expect("nobody panicked");
            let held = |cred: &&Arc<mock::Cred>| {
                cred.inner.lock().expect("nobody panicked").borrow().secret.is_some()
            };
            let all = all.borrow();
            all.iter().filter(held).count()
        };
        let long = "0123456789é\u{1f600}".repeat(40);
        for (value, expected) in
            [(long.as_str(), 12), ("short", 1), (&long[..12], 1), (&long, 12), ("\u{1}parts x", 2)]
        {
            assert_eq!(keyring.set("A", value), Ok(()));
            assert_eq!(keyring.get("A").as_deref(), Ok(value));
            assert_eq!(entries(), expected, "{value}");
        }
        assert_eq!((keyring.remove("A"), entries()), (Ok(()), 0));
    }

    #[test]
    fn a_keyring_that_hangs_is_given_up_and_told_of_when_it_answers() {
        let (go, waits) = mpsc::sync_channel::<()>(1);
        let waits = Mutex::new(waits);
        let open = move || {
            let _ = waits.lock().recv();
            Ok(mock::Store::new()? as Arc<CredentialStore>)
        };
        let keyring = Keyring::new(open, Duration::from_millis(20));
        assert!(matches!(keyring.get("A"), Err(Error::Locked(_))));
        let begun = Instant::now();
        assert!(matches!(keyring.get("B"), Err(Error::Locked(_))));
        assert!(begun.elapsed() < Duration::from_millis(20), "the limit is for all together");
        drop(go);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let told =
            runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), answered_late()).await });
        assert!(told.is_ok());
    }

    #[cfg(not(target_os = "macos"))]
    #[test]
    fn a_locked_keyring_is_asked_once() {
        let store: Arc<CredentialStore> = mock::Store::new().expect("a store");
        let first = entry(&*store, "A").expect("an entry");
        let first: &mock::Cred = first.as_any().downcast_ref().expect("a mock");
        first.set_error(keyring_core::Error::NoStorageAccess("asleep".into()));
        let keyring = Keyring::new(move || Ok(store.clone()), Duration::from_secs(60));
        let locked = Err(Error::Locked("asleep".into()));
        assert_eq!((keyring.get("A"), keyring.get("B")), (locked.clone(), locked));
    }

    #[test]
    fn what_a_keyring_says_is_sorted() {
        use keyring_core::Error as Cause;
        let platform = |text: &str| Cause::PlatformFailure(text.into());
        assert_eq!(explained(Cause::NoEntry, "A"), Error::NoSecret("A".into()));
        assert!(matches!(explained(Cause::NoStorageAccess("x".into()), "A"), Error::Locked(_)));
        assert!(matches!(explained(platform("SS error: prompt dismissed"), "A"), Error::Locked(_)));
        assert!(matches!(explained(Cause::Ambiguous(Vec::new()), "A"), Error::Failed(_)));
        let bytes = explained(Cause::BadEncoding(b"s3cr3t\xff".to_vec()), "A").to_string();
        assert!(!bytes.contains("s3cr3t"), "{bytes}");
    }

    #[test]
    fn names_are_those_of_variables() {
        assert!(["A", "_a1", "GITHUB_TOKEN"].into_iter().all(is_name));
        assert!(!["", "1A", "a-b", "a b", "é", "a.b"].into_iter().any(is_name));
    }
}
