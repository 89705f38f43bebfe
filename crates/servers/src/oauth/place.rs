//! The data for a sign-in to a server: its address, its settings, and the place of its tokens.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};
use nonet_config::{OAuth, Secret, ServerSettings, Transport, keyring};

use super::{KeptRecord, SignInRecord, Vault, VaultEntry, VaultError};

/// What is needed to sign in to a server.
pub struct SignInPlace<'a> {
    /// The server's address.
    pub url: &'a str,
    /// The headers of requests to it.
    pub headers: HeaderMap,
    /// How Nonet signs in.
    pub oauth: &'a OAuth,
    /// The place of its tokens.
    pub entry: VaultEntry,
}

impl<'a> SignInPlace<'a> {
    /// Returns the place for a configured server, or why that server has no sign-in.
    pub fn of(server: &str, settings: &'a ServerSettings, vault: &Vault) -> Result<Self, String> {
        let Some((url, headers, oauth)) = settings.transport.sign_in() else {
            return Err(match &settings.transport {
                Transport::Stdio { .. } => format!(
                    "`{server}` is a program and takes its credentials from `env`; only servers with a `url` have a sign-in"
                ),
                Transport::Rest(rest) if rest.base_url.is_none() => format!(
                    "`{server}` has no `base_url`; a REST service needs one for a sign-in, so that no document decides where \
                     tokens go"
                ),
                _ => format!(
                    "`{server}` sends the `Authorization` of its `headers`; remove that header to sign in"
                ),
            });
        };
        Ok(Self { url, headers: header_map(headers), oauth, entry: vault.entry(server, url) })
    }
}

/// Returns configured headers as they are sent.
pub fn header_map(headers: &BTreeMap<String, Secret>) -> HeaderMap {
    let headers = headers.iter().filter_map(|(name, value)| {
        let mut value = HeaderValue::try_from(value.expose()).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::try_from(name).ok()?, value))
    });
    headers.collect()
}

impl VaultEntry {
    /// Stores a new sign-in. A gateway that is renewing the old tokens does not overwrite it.
    pub async fn keep(&self, record: SignInRecord, in_keyring: bool) -> Result<(), VaultError> {
        let lock = self.lock().await?;
        self.write(&KeptRecord { record, in_keyring }, keyring::ATTENDED)?;
        drop(lock);
        Ok(())
    }
}
