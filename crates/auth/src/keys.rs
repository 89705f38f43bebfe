//! The keys of an issuer: found by its metadata, kept, and fetched again when a token names a new one.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use nonet_config::Issuer;
use nonet_wire::{
    reach::PrivateHosts,
    web::{self, cause},
};
use parking_lot::Mutex;
use reqwest::{RequestBuilder, Url};
use serde_json::Value;

use crate::jwt::SigningKey;

/// The largest document of an issuer, in bytes.
const MAX_BYTES: usize = 512 << 10;
/// The most keys of an issuer that are looked at.
const MAX_KEYS: usize = 100;
/// How long one request to an issuer may take.
const LIMIT: Duration = Duration::from_secs(10);
/// When keys are fetched again without a reason: a key that was withdrawn stays valid here until then.
const FRESH: Duration = Duration::from_secs(600);
/// How long keys count while their issuer cannot be reached.
const LASTS: Duration = Duration::from_secs(24 * 3_600);
/// The pause between two requests for keys, whatever tokens say. A token with an invented key is not worth one
/// request to the issuer.
const PAUSE: Duration = Duration::from_secs(10);
/// The metadata of an issuer: OpenID Connect Discovery, section 4, and RFC 8414, section 3.
const OPENID: &str = "/.well-known/openid-configuration";
const OAUTH: &str = "/.well-known/oauth-authorization-server";

/// The requests to one issuer.
#[derive(Clone)]
pub(crate) struct IssuerClient {
    client: reqwest::Client,
    reach: PrivateHosts,
}

impl IssuerClient {
    /// Returns a client that reaches private addresses only where the configuration names them: what an issuer's
    /// metadata says must not lead into the own network.
    pub(super) fn new(issuer: &Issuer) -> Result<Self, String> {
        let reach = PrivateHosts::of(None, None, false);
        let named = [Some(&issuer.issuer), issuer.jwks.as_ref(), issuer.introspection.as_ref()];
        named.into_iter().flatten().for_each(|url| reach.allow(url));
        let builder = web::builder().timeout(LIMIT).dns_resolver(Arc::new(reach.clone()));
        Ok(Self { client: builder.build().map_err(cause)?, reach })
    }

    /// Sends a request, and returns its JSON.
    pub(super) async fn json(
        &self,
        url: &str,
        request: impl FnOnce(Url) -> RequestBuilder,
    ) -> Result<Value, String> {
        let at = web::place(url);
        let failed = |why: String| format!("{at}: {why}");
        let url = Url::parse(url).map_err(|error| failed(error.to_string()))?;
        self.reach.check(&url).map_err(|private| failed(private.to_string()))?;
        let mut reply = request(url).send().await.map_err(|error| failed(cause(error)))?;
        if !reply.status().is_success() {
            return Err(failed(format!("it answered HTTP {}", reply.status().as_u16())));
        }
        let mut body = Vec::new();
        while let Some(chunk) = reply.chunk().await.map_err(|error| failed(cause(error)))? {
            if body.len() + chunk.len() > MAX_BYTES {
                return Err(failed(format!("its answer has more than {MAX_BYTES} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        serde_json::from_slice(&body).map_err(|_| failed("its answer is not JSON".into()))
    }

    /// Returns the builder of requests.
    pub(super) fn client(&self) -> &reqwest::Client {
        &self.client
    }

    async fn get(&self, url: &str) -> Result<Value, String> {
        self.json(url, |url| self.client.get(url)).await
    }

    /// Returns the address of an issuer's keys.
    async fn address_of_keys(&self, issuer: &Issuer) -> Result<String, String> {
        if let Some(jwks) = &issuer.jwks {
            return Ok(jwks.clone());
        }
        let mut whys = Vec::new();
        for url in metadata_urls(&issuer.issuer)? {
            let metadata = match self.get(&url).await {
                Ok(metadata) => metadata,
                Err(why) => {
                    whys.push(why);
                    continue;
                }
            };
            // RFC 8414, section 3.3: else one issuer could speak for another.
            if metadata["issuer"] != issuer.issuer {
                let said = metadata["issuer"].as_str().unwrap_or("nobody");
                whys.push(format!("{}: it says that it is `{said}`", web::place(&url)));
                continue;
            }
            let Some(keys) = metadata["jwks_uri"].as_str() else {
                whys.push(format!("{}: it has no `jwks_uri`", web::place(&url)));
                continue;
            };
            if issuer.issuer.starts_with("https://") && !keys.starts_with("https://") {
                return Err(format!("its keys are at {}, without TLS", web::place(keys)));
            }
            return Ok(keys.into());
        }
        Err(whys.join("; "))
    }

    /// Fetches the keys of an issuer.
    async fn keys(&self, issuer: &Issuer) -> Result<Value, String> {
        let url = self.address_of_keys(issuer).await?;
        let set = self.get(&url).await?;
        match set.get("keys") {
            Some(Value::Array(_)) => Ok(set),
            _ => Err(format!("{}: it is no set of keys", web::place(&url))),
        }
    }
}

/// Returns where the metadata of an issuer may be.
fn metadata_urls(issuer: &str) -> Result<Vec<String>, String> {
    let url = Url::parse(issuer).map_err(|error| format!("`{issuer}` is not an address ({error})"))?;
    let path = url.path().trim_end_matches('/').to_string();
    let mut origin = url.clone();
    origin.set_path("");
    origin.set_query(None);
    origin.set_fragment(None);
    let origin = origin.as_str().trim_end_matches('/').to_string();
    let mut urls = vec![format!("{origin}{path}{OPENID}"), format!("{origin}{OAUTH}{path}")];
    if !path.is_empty() {
        urls.push(format!("{origin}{OPENID}{path}"));
    }
    Ok(urls)
}

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
        let client = IssuerClient::new(&issuer)?;
        let (held, fetching, tried) = (ArcSwapOption::empty(), Default::default(), Mutex::default());
        Ok(Self { issuer, client, held, fetching, tried })
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
        let fetched = self.client.keys(&self.issuer).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_where_the_specifications_put_it() {
        let check = |issuer: &str, expected: &[&str]| {
            assert_eq!(metadata_urls(issuer).expect("an address"), expected, "{issuer}");
        };
        let plain = [
            "https://id/.well-known/openid-configuration",
            "https://id/.well-known/oauth-authorization-server",
        ];
        check("https://id", &plain);
        check("https://id/", &plain);
        check(
            "https://id:8443/realms/a",
            &[
                "https://id:8443/realms/a/.well-known/openid-configuration",
                "https://id:8443/.well-known/oauth-authorization-server/realms/a",
                "https://id:8443/.well-known/openid-configuration/realms/a",
            ],
        );
    }
}
