//! Where a sign-in is kept: the vault of this machine's user, or the account of a person.

use std::fs::File;

use nonet_base::files::FileStamp;
use nonet_config::keyring;

use super::{KeptRecord, PersonEntry, VaultEntry, VaultError, people::PersonLock, vault::LOOK};

/// The place of one sign-in.
#[derive(Clone, Debug)]
pub(super) enum SignInStore {
    /// In the vault.
    Machine(VaultEntry),
    /// In the accounts of people.
    Person(PersonEntry),
}

/// Differs when the sign-in may have changed.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum StoreStamp {
    File(Option<FileStamp>),
    Person((u64, u64)),
}

/// Held during a renewal.
#[expect(dead_code, reason = "they are only to be dropped")]
pub(super) enum RenewalLock {
    Machine(File),
    Person(PersonLock),
}

impl SignInStore {
    pub(super) fn stamp(&self) -> StoreStamp {
        match self {
            Self::Machine(entry) => StoreStamp::File(entry.stamp()),
            Self::Person(entry) => StoreStamp::Person(entry.stamp()),
        }
    }

    pub(super) async fn read(&self) -> Result<Option<KeptRecord>, VaultError> {
        match self {
            Self::Machine(entry) => {
                let from = entry.clone();
                entry.apart(move || from.read()).await
            }
            Self::Person(entry) => {
                let record = entry.read().await?;
                Ok(record.map(|record| KeptRecord { record, in_keyring: false }))
            }
        }
    }

    /// Returns the id of the stored sign-in, if there is one.
    pub(super) async fn sign_in(&self) -> Option<String> {
        match self {
            Self::Machine(entry) => entry.sign_in(),
            Self::Person(entry) => entry.read().await.ok().flatten().map(|record| record.id),
        }
    }

    /// Replaces the sign-in that was renewed.
    pub(super) async fn replace(&self, kept: KeptRecord) -> Result<(), VaultError> {
        match self {
            Self::Machine(entry) => {
                let to = entry.clone();
                entry.apart(move || to.write(&kept, keyring::UNATTENDED)).await
            }
            Self::Person(entry) => entry.replace(&kept.record).await,
        }
    }

    /// Locks the sign-in for a renewal, against other processes.
    pub(super) async fn lock(&self) -> Result<RenewalLock, VaultError> {
        match self {
            Self::Machine(entry) => Ok(RenewalLock::Machine(entry.lock().await?)),
            Self::Person(entry) => Ok(RenewalLock::Person(entry.lock().await?)),
        }
    }

    /// Resolves when the sign-in may have changed.
    pub(super) async fn changed(&self) {
        match self {
            Self::Machine(_) => tokio::time::sleep(LOOK).await,
            Self::Person(entry) => entry.changed().await,
        }
    }
}
