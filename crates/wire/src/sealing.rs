//! Seals: texts that only the holder of a key can read or make. Cookies of browsers and people's tokens for
//! servers are sealed.
//!
//! ChaCha20-Poly1305 (RFC 8439) with a random nonce for each text, under a key for each purpose, which
//! HKDF-SHA256 (RFC 5869) makes from the one secret.

use std::{
    fmt, fs,
    io::{self, Write},
    num::NonZeroU32,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use nonet_base::{files, text::hex};
use parking_lot::Mutex;
use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, Salt},
    pbkdf2,
    rand::{SecureRandom, SystemRandom},
};
use serde::{Deserialize, Serialize};

/// The file of the secret in the state folder.
const FILE_NAME: &str = "auth.key";
/// The length of a random secret, in bytes, and of the longest file with one.
const SECRET: usize = 32;
const LONGEST: usize = 4 << 10;
/// The longest text that is opened, in bytes.
const MAX_SEALED: usize = 256 << 10;
/// The salt of the derivation, which separates these keys from those of other programs with the same secret.
const SALT: &[u8] = b"nonet sealing 1";

/// The secret from which the keys of all purposes are made.
#[derive(Clone)]
pub struct SealSecret(Vec<u8>);

impl fmt::Debug for SealSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealSecret")
    }
}

impl SealSecret {
    /// Returns the secret with these bytes.
    pub fn new(secret: &str) -> Self {
        Self(secret.as_bytes().to_vec())
    }

    /// Returns a secret that ends with the process.
    ///
    /// # Errors
    ///
    /// If the system has no random numbers.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; SECRET];
        SystemRandom::new().fill(&mut bytes).map_err(|_| io::Error::other("no random numbers"))?;
        Ok(Self(hex(&bytes).into_bytes()))
    }

    /// Returns the secret of a state folder. Makes one if there is none. Blocks.
    ///
    /// # Errors
    ///
    /// If the file can be neither read nor written, or is damaged: a new secret would make all that was sealed
    /// unreadable.
    pub fn in_state(folder: &Path) -> io::Result<Self> {
        let file = folder.join(FILE_NAME);
        if !file.exists() {
            files::private_folder(folder)?;
            // Complete before it has its name.
            let mut new = files::beside(&file)?;
            new.write_all(&Self::random()?.0)?;
            match new.persist_noclobber(&file) {
                Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => return Err(error.error),
                // Another process was faster, and its secret counts.
                _ => {}
            }
        }
        let text = files::read_at_most(&file, LONGEST)?;
        if text.trim_ascii().len() < SECRET {
            return Err(io::Error::other(
                "it is damaged; restore it, or remove it, and everybody signs in again",
            ));
        }
        only_ours(&file)?;
        Ok(Self(text.trim_ascii().to_vec()))
    }

    /// Returns what seals for one purpose.
    pub fn sealer(&self, purpose: &'static str) -> Sealer {
        let derived = Salt::new(HKDF_SHA256, SALT).extract(&self.0);
        let purpose = [purpose.as_bytes()];
        let key = derived.expand(&purpose, &CHACHA20_POLY1305).map(UnboundKey::from);
        // Fails only for keys that are longer than 255 hashes.
        let key = key.unwrap_or_else(|_| unreachable!("a key has 32 bytes"));
        Sealer { key: LessSafeKey::new(key), random: SystemRandom::new() }
    }
}

/// Where the secret comes from: read or made at the first use, so that nobody has a key who needs none.
#[derive(Debug, Default)]
pub struct SealSource {
    configured: Option<SealSecret>,
    folder: Option<PathBuf>,
    secret: Mutex<Option<SealSecret>>,
}

impl SealSource {
    /// Returns the source of a secret: the configured one, else that of a state folder, else one that ends with
    /// the process.
    pub fn new(configured: Option<&str>, folder: Option<&Path>) -> Self {
        let configured = configured.map(SealSecret::new);
        Self { configured, folder: folder.map(Into::into), secret: Mutex::default() }
    }

    /// Returns what seals for one purpose. May block at the first call.
    ///
    /// # Errors
    ///
    /// As for [`SealSecret::in_state`].
    pub fn sealer(&self, purpose: &'static str) -> io::Result<Sealer> {
        let mut secret = self.secret.lock();
        let known = match (&*secret, &self.configured, &self.folder) {
            (Some(known), ..) => known.clone(),
            (None, Some(configured), _) => configured.clone(),
            (None, None, Some(folder)) => SealSecret::in_state(folder).map_err(|error| {
                io::Error::new(error.kind(), format!("`{}`: {error}", folder.join(FILE_NAME).display()))
            })?,
            (None, None, None) => SealSecret::random()?,
        };
        *secret = Some(known.clone());
        Ok(known.sealer(purpose))
    }
}

/// Makes a file readable for its owner only.
#[cfg(unix)]
fn only_ours(file: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let others = fs::metadata(file)?.permissions().mode() & 0o077;
    if others != 0 {
        tracing::warn!(file = %file.display(), "others could read the key that seals people's tokens");
        fs::set_permissions(file, fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}

#[cfg(not(unix))]
fn only_ours(file: &Path) -> io::Result<()> {
    fs::metadata(file).map(drop)
}

/// Seals texts for one purpose, and opens them.
pub struct Sealer {
    key: LessSafeKey,
    random: SystemRandom,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer")
    }
}

impl Sealer {
    /// Seals a text, which can be opened only with the same `about`: the place that it belongs to. The result
    /// has letters, digits, `-` and `_`.
    ///
    /// # Errors
    ///
    /// If the system has no random numbers.
    pub fn seal(&self, about: &str, text: &[u8]) -> io::Result<String> {
        let failed = |_| io::Error::other("no random numbers");
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).map_err(failed)?;
        let mut sealed = text.to_vec();
        let unique = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(unique, Aad::from(about), &mut sealed).map_err(failed)?;
        Ok(URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat()))
    }

    /// Opens a sealed text. `None`: it was sealed with another key or for another place, or somebody changed it.
    pub fn open(&self, about: &str, sealed: &str) -> Option<Vec<u8>> {
        self.open_within(about, sealed, MAX_SEALED)
    }

    fn open_within(&self, about: &str, sealed: &str, most: usize) -> Option<Vec<u8>> {
        if sealed.len() > most {
            return None;
        }
        let mut bytes = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let nonce: [u8; NONCE_LEN] = bytes.get(..NONCE_LEN)?.try_into().ok()?;
        let unique = Nonce::assume_unique_for_key(nonce);
        let opened = self.key.open_within(unique, Aad::from(about), &mut bytes, NONCE_LEN..).ok()?;
        Some(opened.to_vec())
    }

    /// Returns random text: 43 letters, digits, `-` and `_`, from 32 bytes.
    ///
    /// # Errors
    ///
    /// If the system has no random numbers.
    pub fn random(&self) -> io::Result<String> {
        let mut bytes = [0; 32];
        self.random.fill(&mut bytes).map_err(|_| io::Error::other("no random numbers"))?;
        Ok(URL_SAFE_NO_PAD.encode(bytes))
    }
}

/// How often a passphrase is hashed (PBKDF2-HMAC-SHA256; OWASP Password Storage Cheat Sheet, 2023), and at most when
/// it is read.
const ROUNDS: u32 = 600_000;
const MOST_ROUNDS: u32 = 10_000_000;
/// What a passphrase seals.
const EXPORT: &str = "export";

/// A text that is sealed with a passphrase.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SealedByPassphrase {
    /// Random, for each text.
    salt: String,
    /// How often the passphrase is hashed.
    rounds: u32,
    /// The text.
    sealed: String,
}

impl SealedByPassphrase {
    /// Seals a text. Takes a moment, because guessing has to.
    ///
    /// # Errors
    ///
    /// If the system has no random numbers.
    pub fn seal(passphrase: &str, about: &str, text: &[u8]) -> io::Result<Self> {
        let salt = SealSecret::random()?.sealer(EXPORT).random()?;
        let sealed = by_passphrase(passphrase, &salt, ROUNDS).seal(about, text)?;
        Ok(Self { salt, rounds: ROUNDS, sealed })
    }

    /// Opens it. `None`: the passphrase is another one, or somebody changed the text.
    pub fn open(&self, passphrase: &str, about: &str) -> Option<Vec<u8>> {
        let rounds = Some(self.rounds).filter(|rounds| (1..=MOST_ROUNDS).contains(rounds))?;
        by_passphrase(passphrase, &self.salt, rounds).open_within(about, &self.sealed, usize::MAX)
    }
}

fn by_passphrase(passphrase: &str, salt: &str, rounds: u32) -> Sealer {
    let mut secret = vec![0; SECRET];
    let rounds = NonZeroU32::new(rounds).unwrap_or(NonZeroU32::MIN);
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, rounds, salt.as_bytes(), passphrase.as_bytes(), &mut secret);
    SealSecret(secret).sealer(EXPORT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_passphrase_opens_what_it_sealed() {
        let mut sealed = SealedByPassphrase::seal("correct horse", "a", b"all of it").expect("sealed");
        assert_eq!(sealed.open("correct horse", "a").as_deref(), Some(&b"all of it"[..]));
        assert_eq!(sealed.open("correct horse", "b"), None);
        assert_eq!(sealed.open("wrong", "a"), None);
        sealed.rounds = u32::MAX;
        assert_eq!(sealed.open("correct horse", "a"), None, "it would take hours");
    }

    #[test]
    fn only_the_same_key_purpose_and_place_open_a_seal() {
        let secret = SealSecret::new("a secret of at least 32 characters");
        let sealer = secret.sealer("tokens");
        let sealed = sealer.seal("ann/github", b"t0k3n").expect("sealed");
        assert!(!sealed.contains("t0k3n") && sealed != sealer.seal("ann/github", b"t0k3n").expect("sealed"));
        let open = |sealer: Sealer, about: &str, text: &str| sealer.open(about, text);
        assert_eq!(open(secret.sealer("tokens"), "ann/github", &sealed).as_deref(), Some(&b"t0k3n"[..]));
        assert_eq!(open(secret.sealer("tokens"), "bob/github", &sealed), None);
        assert_eq!(open(secret.sealer("cookies"), "ann/github", &sealed), None);
        let other = SealSecret::new("another secret of at least 32 chars");
        assert_eq!(open(other.sealer("tokens"), "ann/github", &sealed), None);
        for place in [0, sealed.len() / 2, sealed.len() - 2] {
            let mut changed = sealed.clone().into_bytes();
            changed[place] = if changed[place] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("text");
            assert_eq!(open(secret.sealer("tokens"), "ann/github", &changed), None, "{place}");
        }
        for none in ["", "A", "%%%", &sealed[..20]] {
            assert_eq!(open(secret.sealer("tokens"), "ann/github", none), None, "{none}");
        }
    }

    #[test]
    fn the_secret_of_a_state_folder_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let sealed = SealSecret::in_state(folder.path()).expect("made").sealer("x").seal("", b"1");
        let again = SealSecret::in_state(folder.path()).expect("there").sealer("x");
        assert_eq!(again.open("", &sealed.expect("sealed")).as_deref(), Some(&b"1"[..]));
        fs::write(folder.path().join(FILE_NAME), "short").expect("written");
        let error = SealSecret::in_state(folder.path()).expect_err("damaged").to_string();
        assert!(error.contains("restore it"), "{error}");
    }
}
