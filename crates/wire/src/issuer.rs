//! Requests to an issuer of tokens: its metadata, its keys, and forms to its endpoints.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{
    RequestBuilder, StatusCode, Url,
    header::{ACCEPT, CONTENT_TYPE},
};
use serde_json::Value;

use crate::{
    reach::PrivateHosts,
    web::{self, cause},
};

/// The largest document of an issuer, in bytes.
const MAX_BYTES: usize = 512 << 10;
/// How long one request to an issuer may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How long metadata counts.
const FRESH: Duration = Duration::from_secs(600);
/// How long a failure to read metadata counts.
const PAUSE: Duration = Duration::from_secs(5);
/// How much of an issuer's own words an error has, in characters.
const MAX_SAID: usize = 300;
/// The metadata of an issuer: OpenID Connect Discovery, section 4, and RFC 8414, section 3.
const OPENID: &str = "/.well-known/openid-configuration";
const OAUTH: &str = "/.well-known/oauth-authorization-server";

/// The requests to one issuer.
#[derive(Clone)]
pub struct IssuerClient {
    client: reqwest::Client,
    reach: PrivateHosts,
    /// The metadata documents that were read last.
    known: Arc<Mutex<Option<Aged<Vec<Value>>>>>,
    /// Locked while they are fetched, with the last failure.
    fetching: Arc<tokio::sync::Mutex<Option<Aged<String>>>>,
}

/// Something, and since when it is known.
type Aged<T> = (Instant, T);

/// The answer to a form.
#[derive(Debug)]
pub struct FormAnswer {
    /// Whether the endpoint accepted it.
    pub is_success: bool,
    /// The status.
    pub status: StatusCode,
    /// Its JSON; null for anything else.
    pub body: Value,
}

impl FormAnswer {
    /// Returns what an endpoint said about a refusal (RFC 6749, section 5.2), in one line.
    pub fn refusal(&self) -> String {
        let text = |name: &str| self.body[name].as_str().filter(|text| !text.is_empty());
        let said = match (text("error"), text("error_description")) {
            (Some(error), Some(more)) => format!("{error} ({more})"),
            (Some(error), None) => error.into(),
            _ => format!("it answered HTTP {}", self.status.as_u16()),
        };
        nonet_base::text::line(&said, MAX_SAID)
    }

    /// Whether the endpoint refused for good, so that the same form will never be accepted.
    pub fn is_final(&self) -> bool {
        self.status.is_client_error() && !matches!(self.status.as_u16(), 408 | 429)
    }
}

impl IssuerClient {
    /// Returns a client that reaches private addresses only where `named` has them: what an issuer's metadata
    /// says must not lead into the own network.
    ///
    /// # Errors
    ///
    /// If there is no TLS.
    pub fn new<'a>(named: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let reach = PrivateHosts::of(None, None, false);
        named.into_iter().for_each(|url| reach.allow(url));
        let builder = web::builder().timeout(LIMIT).dns_resolver(Arc::new(reach.clone()));
        Ok(Self {
            client: builder.build().map_err(cause)?,
            reach,
            known: Arc::default(),
            fetching: Arc::default(),
        })
    }

    /// Sends a request, and returns its JSON.
    ///
    /// # Errors
    ///
    /// Why there is none, with the place of the address.
    pub async fn json(
        &self,
        url: &str,
        request: impl FnOnce(Url) -> RequestBuilder,
    ) -> Result<Value, String> {
        let (status, body) = self.answer(url, request).await?;
        let failed = |why: String| format!("{}: {why}", web::place(url));
        if !status.is_success() {
            return Err(failed(format!("it answered HTTP {}", status.as_u16())));
        }
        serde_json::from_slice(&body).map_err(|_| failed("its answer is not JSON".into()))
    }

    /// Sends a form.
    ///
    /// # Errors
    ///
    /// Why there is no answer.
    pub async fn form(
        &self,
        url: &str,
        fields: &[(&str, &str)],
        client: ClientSecret<'_>,
    ) -> Result<FormAnswer, String> {
        let mut fields = fields.to_vec();
        let basic = match (client.secret, client.is_in_body) {
            (Some(secret), false) => Some((client.id, secret)),
            (Some(secret), true) => {
                fields.extend([("client_id", client.id), ("client_secret", secret)]);
                None
            }
            (None, _) => {
                fields.extend((!client.id.is_empty()).then_some(("client_id", client.id)));
                None
            }
        };
        let pairs: Vec<String> =
            fields.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        let send = |url: Url| {
            let request = self.client.post(url).header(ACCEPT, "application/json");
            let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
            let request = request.body(pairs.join("&"));
            match basic {
                // Encoded first (RFC 6749, section 2.3.1).
                Some((id, secret)) => request.basic_auth(encoded(id), Some(encoded(secret))),
                None => request,
            }
        };
        let (status, body) = self.answer(url, send).await?;
        let body = serde_json::from_slice::<Value>(&body).unwrap_or_default();
        Ok(FormAnswer { is_success: status.is_success(), status, body })
    }

    async fn answer(
        &self,
        url: &str,
        request: impl FnOnce(Url) -> RequestBuilder,
    ) -> Result<(StatusCode, Vec<u8>), String> {
        let at = web::place(url);
        let failed = |why: String| format!("{at}: {why}");
        let url = Url::parse(url).map_err(|error| failed(error.to_string()))?;
        self.reach.check(&url).map_err(|private| failed(private.to_string()))?;
        let mut reply = request(url).send().await.map_err(|error| failed(cause(error)))?;
        let status = reply.status();
        let mut body = Vec::new();
        while let Some(chunk) = reply.chunk().await.map_err(|error| failed(cause(error)))? {
            if body.len() + chunk.len() > MAX_BYTES {
                return Err(failed(format!("its answer has more than {MAX_BYTES} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        Ok((status, body))
    }

    /// Returns the builder of requests.
    pub fn client(&self) -> &reqwest::Client {
        &self.client
    }

    /// Sends a GET request, and returns its JSON.
    ///
    /// # Errors
    ///
    /// As for [`IssuerClient::json`].
    pub async fn get(&self, url: &str) -> Result<Value, String> {
        self.json(url, |url| self.client.get(url)).await
    }

    /// Returns the metadata of an issuer that has an address as this member: OpenID Connect's or OAuth's.
    ///
    /// # Errors
    ///
    /// Why there is none, for each place where it may be.
    pub async fn metadata(&self, issuer: &str, member: &str) -> Result<Value, String> {
        let found = match self.remembered(issuer, member) {
            Some(found) => found,
            None => {
                let mut failed = self.fetching.lock().await;
                match (self.remembered(issuer, member), &*failed) {
                    (Some(found), _) => found,
                    (None, Some((at, why))) if at.elapsed() < PAUSE => return Err(why.clone()),
                    (None, _) => match self.fetched(issuer, member).await {
                        Ok(found) => {
                            *failed = None;
                            found
                        }
                        Err(why) => {
                            *failed = Some((Instant::now(), why.clone()));
                            return Err(why);
                        }
                    },
                }
            }
        };
        address_in(&found, issuer, member)?;
        Ok(found)
    }

    fn remembered(&self, issuer: &str, member: &str) -> Option<Value> {
        let known = self.known.lock();
        let (_, documents) = known.as_ref().filter(|(at, _)| at.elapsed() < FRESH)?;
        documents.iter().find(|known| known[member].is_string() && known["issuer"] == issuer).cloned()
    }

    async fn fetched(&self, issuer: &str, member: &str) -> Result<Value, String> {
        let mut whys = Vec::new();
        for url in metadata_urls(issuer)? {
            let metadata = match self.get(&url).await {
                Ok(metadata) => metadata,
                Err(why) => {
                    whys.push(why);
                    continue;
                }
            };
            // RFC 8414, section 3.3: else one issuer could speak for another.
            if metadata["issuer"] != issuer {
                let said = metadata["issuer"].as_str().unwrap_or("nobody");
                whys.push(format!("{}: it says that it is `{said}`", web::place(&url)));
                continue;
            }
            if !metadata[member].is_string() {
                whys.push(format!("{}: it has no `{member}`", web::place(&url)));
                continue;
            }
            let mut known = self.known.lock();
            let (at, documents) = known.get_or_insert_with(|| (Instant::now(), Vec::new()));
            if at.elapsed() >= FRESH {
                (*at, *documents) = (Instant::now(), Vec::new());
            }
            documents.retain(|known| *known != metadata);
            documents.truncate(2);
            documents.push(metadata.clone());
            return Ok(metadata);
        }
        Err(whys.join("; "))
    }

    /// Returns an address that an issuer's metadata names.
    ///
    /// # Errors
    ///
    /// As for [`IssuerClient::metadata`].
    pub async fn endpoint(&self, issuer: &str, member: &str) -> Result<String, String> {
        let metadata = self.metadata(issuer, member).await?;
        Ok(address_in(&metadata, issuer, member)?.to_owned())
    }

    /// Forgets the metadata, so that it is read again.
    pub async fn forget(&self) {
        *self.fetching.lock().await = None;
        *self.known.lock() = None;
    }
}

/// Returns an address of an issuer's metadata. That of an issuer with TLS has TLS as well: codes, secrets and
/// tokens go there, and claims come from there.
///
/// # Errors
///
/// If there is none, or one without TLS.
pub fn address_in<'a>(metadata: &'a Value, issuer: &str, member: &str) -> Result<&'a str, String> {
    let address = metadata[member].as_str().ok_or_else(|| format!("it has no `{member}`"))?;
    match issuer.starts_with("https://") && !address.starts_with("https://") {
        true => Err(format!("its `{member}` is at {}, without TLS", web::place(address))),
        false => Ok(address),
    }
}

/// Nonet as a client of an issuer.
#[derive(Clone, Copy)]
pub struct ClientSecret<'a> {
    /// Its id there; empty for none.
    pub id: &'a str,
    /// Its secret, if it has one.
    pub secret: Option<&'a str>,
    /// Whether the secret is in the form, for endpoints that take no `Authorization`.
    pub is_in_body: bool,
}

impl<'a> ClientSecret<'a> {
    /// Returns a client as the metadata of its issuer wants it (RFC 8414, section 2).
    pub fn of(metadata: &Value, id: &'a str, secret: Option<&'a str>) -> Self {
        let methods = metadata["token_endpoint_auth_methods_supported"].as_array();
        let takes = |method: &str| methods.is_some_and(|all| all.iter().any(|one| one == method));
        Self { id, secret, is_in_body: takes("client_secret_post") && !takes("client_secret_basic") }
    }
}

/// The characters that `application/x-www-form-urlencoded` leaves as they are.
const FORM: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'*');

/// Returns a text as a form or a query has it.
pub fn encoded(text: &str) -> String {
    utf8_percent_encode(text, FORM).to_string()
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
