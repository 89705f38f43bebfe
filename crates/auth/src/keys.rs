//! The keys of an issuer: found by its metadata, kept, and fetched again when a token names a new one.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use nonet_config::Issuer;
use nonet_wire::{issuer::IssuerClient, web};
use parking_lot::Mutex;
use serde_json::Value;

use crate::jwt::SigningKey;

/// The most keys of an issuer that are looked at.
const MAX_KEYS: usize = 100;
/// When keys are fetched again without a reason: a key that was withdrawn stays valid here until then.
const FRESH: Duration = Duration::from_secs(600);
/// How long keys count while their issuer cannot be reached.
const LASTS: Duration = Duration::from_secs(24 * 3_600);
/// The pause between two requests for keys, whatever tokens say. A token with an invented key is not worth one
/// request to the issuer.
const PAUSE: Duration = Duration::from_secs(10);
/// The keys of one issuer, and the way to them.
pub(crate) struct IssuerKeys {
    issuer: Issuer,
    pub(super) client: IssuerClient,
    held: ArcSwapOption<KeySet>,
    /// Locked while keys are fetched, so that all requests wait for one.
    fetching: tokio::sync::Mutex<()>,
    /// The last request for keys, and why it failed.
    tried: Mutex<Option<(Instant, Option<String>)>>,
}

/// A set of keys as fetched.
pub(crate) struct KeySet {
    pub(super) keys: Vec<SigningKey>,
    /// How many keys it has that cannot be used here.
    pub(super) unused: usize,
    set: Value,
    at: Instant,
}

impl KeySet {
    fn of(set: Value) -> Self {
        let all = set["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
        let keys: Vec<_> = all.iter().take(MAX_KEYS).filter_map(SigningKey::of).collect();
        let unused = all.len() - keys.len();
        Self { keys, unused, set, at: Instant::now() }
    }
}

impl IssuerKeys {
    pub(super) fn new(issuer: Issuer) -> Result<Self, String> {
        let named = [Some(&issuer.issuer), issuer.jwks.as_ref(), issuer.introspection.as_ref()];
        let client = IssuerClient::new(named.into_iter().flatten().map(String::as_str))?;
        let (held, fetching, tried) = (ArcSwapOption::empty(), Default::default(), Mutex::default());
        Ok(Self { issuer, client, held, fetching, tried })
    }

    async fn key_set(&self) -> Result<Value, String> {
        let url = match &self.issuer.jwks {
            Some(jwks) => jwks.clone(),
            None => {
                // Keys that are fetched again may be at another place.
                self.client.forget().await;
                self.client.endpoint(&self.issuer.issuer, "jwks_uri").await?
            }
        };
        let set = self.client.get(&url).await?;
        match set.get("keys") {
            Some(Value::Array(_)) => Ok(set),
            _ => Err(format!("{}: it is no set of keys", web::place(&url))),
        }
    }

    /// Returns the issuer.
    pub(super) fn issuer(&self) -> &Issuer {
        &self.issuer
    }

    /// Returns the keys. The first call fetches them; later ones have them fetched again when they are old, and
    /// do not wait for that.
    pub(super) async fn current(self: &Arc<Self>) -> Result<Arc<KeySet>, String> {
        let held = self.held.load_full().filter(|held| held.at.elapsed() < LASTS);
        let Some(held) = held else {
            return self.fetched(None).await?.ok_or_else(|| "it was asked just now".into());
        };
        if held.at.elapsed() >= FRESH && self.fetching.try_lock().is_ok() {
            let (keys, known) = (self.clone(), held.clone());
            tokio::spawn(async move { keys.fetched(Some(&known)).await });
        }
        Ok(held)
    }

    /// Returns other keys than `known`, after a token with a key that is not among them. `None`: the issuer has
    /// no others, or had none just now. `Err`: it cannot be asked.
    pub(super) async fn newer(&self, known: &Arc<KeySet>) -> Result<Option<Arc<KeySet>>, String> {
        let newer = self.fetched(Some(known)).await?;
        Ok(newer.filter(|newer| !newer.is_same(known)))
    }

    /// Fetches keys, unless somebody else has fetched others than `known` meanwhile, or the last attempt was
    /// just now and got what is known.
    async fn fetched(&self, known: Option<&Arc<KeySet>>) -> Result<Option<Arc<KeySet>>, String> {
        let _alone = self.fetching.lock().await;
        let held = self.held.load_full().filter(|held| held.at.elapsed() < LASTS);
        if let Some(held) = &held
            && known.is_none_or(|known| !Arc::ptr_eq(held, known))
        {
            return Ok(Some(held.clone()));
        }
        if let Some((at, why)) = &*self.tried.lock()
            && at.elapsed() < PAUSE
        {
            return why.clone().map_or(Ok(None), Err);
        }
        let fetched = self.key_set().await;
        *self.tried.lock() = Some((Instant::now(), fetched.as_ref().err().cloned()));
        let set = fetched.inspect_err(|why| {
            tracing::warn!(issuer = self.issuer.issuer, why, "the keys of an issuer cannot be fetched");
        })?;
        let new = Arc::new(KeySet::of(set));
        if new.keys.is_empty() {
            tracing::warn!(issuer = self.issuer.issuer, "an issuer has no keys that could be used here");
        }
        self.held.store(Some(new.clone()));
        Ok(Some(new))
    }

    /// Whether these are the keys that count now.
    pub(super) fn holds(&self, set: &Arc<KeySet>) -> bool {
        self.held.load().as_ref().is_some_and(|held| Arc::ptr_eq(held, set) || held.is_same(set))
    }
}

impl KeySet {
    /// Whether two sets have the same keys.
    pub(super) fn is_same(&self, other: &KeySet) -> bool {
        self.set == other.set
    }
}
