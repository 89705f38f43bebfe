//! The API of a registry: `GET /v0.1/servers` and the versions of one server, else the same under `/v0`.

use std::{sync::OnceLock, time::Duration};

use nonet_base::text::{clip, line};
use nonet_config::RegistrySettings;
use nonet_wire::web;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{StatusCode, redirect};
use serde::Deserialize;
use serde_json::Value;

use crate::{ServerDetail, ServerReference};

/// How long a request may take.
const TIME: Duration = Duration::from_secs(15);
/// The most bytes of an answer, and the most servers of one page.
const MOST_BYTES: usize = 4 << 20;
const PAGE: usize = 50;
/// How many words of a request are asked for one by one, if nothing has all of them.
const WORDS: usize = 3;
/// The key of what the official registry adds to a server.
const OFFICIAL: &str = "io.modelcontextprotocol.registry/official";
/// The versions of the API, the stable one first.
const VERSIONS: [&str; 2] = ["v0.1", "v0"];
/// What a path segment keeps.
const SEGMENT: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A registry.
pub struct Registry {
    client: reqwest::Client,
    /// Without a slash at its end, and without a version of the API.
    base: String,
    /// The version of the API, if the address names one or it has answered.
    version: OnceLock<&'static str>,
    settings: RegistrySettings,
}

/// Why a registry did not answer.
#[derive(Debug, thiserror::Error)]
pub enum RegistryFault {
    /// It cannot be asked.
    #[error("the registry at {0} cannot be asked: {1}")]
    Unreached(String, String),
    /// It refused.
    #[error("the registry at {0} refused the request ({1}): {2}")]
    Refused(String, StatusCode, String),
    /// Its answer makes no sense.
    #[error("the registry at {0} sent something else than servers: {1}")]
    Unreadable(String, String),
    /// It has no such server.
    #[error("the registry at {0} has no server `{1}`")]
    Unknown(String, String),
}

/// Whether a server may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerStatus {
    /// It may.
    #[default]
    Active,
    /// Its author advises against it.
    Deprecated,
    /// It is withdrawn.
    Deleted,
}

/// A server in a registry.
#[derive(Clone, Debug, Default)]
pub struct FoundServer {
    /// What is said of it.
    pub detail: ServerDetail,
    /// Whether it may be used.
    pub status: ServerStatus,
    /// Why not.
    pub status_message: Option<String>,
    /// Whether it is the latest version.
    pub is_latest: bool,
}

#[derive(Deserialize)]
struct Page {
    servers: Vec<Value>,
}

impl Registry {
    /// Returns the registry of a configuration. Fails if there is no HTTP client.
    pub fn new(settings: &RegistrySettings) -> Result<Self, RegistryFault> {
        let given = settings.url.trim_end_matches('/').trim_end_matches("/servers");
        let named = VERSIONS.into_iter().find(|version| given.ends_with(&format!("/{version}")));
        let base = named.map_or(given, |version| given[..given.len() - version.len()].trim_end_matches('/'));
        web::crypto();
        // A token goes to no other host.
        let stays = redirect::Policy::custom(|attempt| match attempt.previous().first() {
            Some(first) if first.origin() == attempt.url().origin() && attempt.previous().len() < 5 => {
                attempt.follow()
            }
            _ => attempt.stop(),
        });
        let client = web::builder().redirect(stays).timeout(TIME).build();
        let client = client.map_err(|error| RegistryFault::Unreached(web::place(base), web::cause(error)))?;
        let version = named.map(OnceLock::from).unwrap_or_default();
        Ok(Self { client, base: base.into(), version, settings: settings.clone() })
    }

    /// Returns where it is, for people.
    pub fn place(&self) -> String {
        web::place(&self.base)
    }

    /// Finds servers: those whose name or description has the text, else those with most of its words.
    ///
    /// # Errors
    ///
    /// If the registry does not answer.
    pub async fn find(&self, text: &str, most: usize) -> Result<Vec<FoundServer>, RegistryFault> {
        let text = line(text, 200);
        let mut found = self.listed(&text).await?;
        let words: Vec<&str> = text.split_whitespace().filter(|word| word.chars().count() > 2).collect();
        if found.is_empty() && words.len() > 1 {
            let mut longest = words.clone();
            longest.sort_by_key(|word| std::cmp::Reverse(word.chars().count()));
            for word in longest.into_iter().take(WORDS) {
                for server in self.listed(word).await? {
                    if !found.iter().any(|known| known.detail.name == server.detail.name) {
                        found.push(server);
                    }
                }
            }
        }
        let fitting = |server: &FoundServer| {
            let detail = &server.detail;
            let all = format!("{} {} {}", detail.name, detail.shown(), detail.description).to_lowercase();
            let in_name = |word: &&&str| detail.name.to_lowercase().contains(&word.to_lowercase());
            let count = words.iter().filter(|word| all.contains(&word.to_lowercase())).count();
            (count, words.iter().filter(in_name).count())
        };
        found.sort_by_key(|server| std::cmp::Reverse(fitting(server)));
        found.truncate(most);
        Ok(found)
    }

    async fn listed(&self, text: &str) -> Result<Vec<FoundServer>, RegistryFault> {
        let text = utf8_percent_encode(text, &SEGMENT);
        let page = self.get(&format!("servers?version=latest&limit={PAGE}&search={text}"), None).await?;
        let page: Page = serde_json::from_value(page).map_err(|error| self.unreadable(&error.to_string()))?;
        let found = page.servers.into_iter().take(PAGE).filter_map(read);
        // A registry may ignore `version`.
        Ok(found.filter(|server| server.is_latest && server.status != ServerStatus::Deleted).collect())
    }

    /// Returns a server: a version of it, or the latest.
    ///
    /// # Errors
    ///
    /// If the registry does not answer, or does not have it.
    pub async fn server(&self, wanted: &ServerReference) -> Result<FoundServer, RegistryFault> {
        let name = utf8_percent_encode(&wanted.name, &SEGMENT);
        let version = utf8_percent_encode(wanted.version.as_deref().unwrap_or("latest"), &SEGMENT);
        let path = format!("servers/{name}/versions/{version}");
        let answer = self.get(&path, Some(wanted)).await?;
        let found = read(answer).ok_or_else(|| self.unreadable("it has no name or no version"))?;
        match found.detail.name == wanted.name {
            true => Ok(found),
            false => {
                Err(self.unreadable(&format!("it has `{}` under this name", line(&found.detail.name, 80))))
            }
        }
    }

    async fn get(&self, path: &str, wanted: Option<&ServerReference>) -> Result<Value, RegistryFault> {
        if let Some(version) = self.version.get() {
            return self.get_at(version, path, wanted).await;
        }
        let mut missing = None;
        for version in VERSIONS {
            match self.get_at(version, path, wanted).await {
                Err(
                    fault
                    @ (RegistryFault::Unknown(..) | RegistryFault::Refused(_, StatusCode::NOT_FOUND, _)),
                ) => {
                    missing.get_or_insert(fault);
                }
                answer => {
                    let _ = self.version.set(version);
                    return answer;
                }
            }
        }
        Err(missing.unwrap_or_else(|| self.unreadable("nothing")))
    }

    async fn get_at(
        &self,
        version: &str,
        path: &str,
        wanted: Option<&ServerReference>,
    ) -> Result<Value, RegistryFault> {
        let unreached = |error: reqwest::Error| RegistryFault::Unreached(self.place(), web::cause(error));
        let mut request = self.client.get(format!("{}/{version}/{path}", self.base));
        if let Some(token) = &self.settings.token {
            request = request.bearer_auth(token.expose());
        }
        let mut answer = request.header("accept", "application/json").send().await.map_err(unreached)?;
        let status = answer.status();
        let mut body = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(unreached)? {
            if body.len() + piece.len() > MOST_BYTES {
                return Err(self.unreadable(&format!("more than {MOST_BYTES} bytes")));
            }
            body.extend_from_slice(&piece);
        }
        let told = serde_json::from_slice::<Value>(&body);
        if status.is_success() {
            return told.map_err(|error| self.unreadable(&error.to_string()));
        }
        match wanted {
            Some(wanted) if status == StatusCode::NOT_FOUND => {
                Err(RegistryFault::Unknown(self.place(), wanted.to_string()))
            }
            _ => Err(RegistryFault::Refused(self.place(), status, why(told.ok()))),
        }
    }

    fn unreadable(&self, why: &str) -> RegistryFault {
        RegistryFault::Unreadable(self.place(), clip(why, 200))
    }
}

/// Returns the reason in a refusal, in either of the forms that registries have: RFC 9457, or `error`.
fn why(told: Option<Value>) -> String {
    let told = told.unwrap_or_default();
    let texts = ["/detail", "/error", "/error/message", "/message", "/title"];
    let found = texts.iter().find_map(|place| told.pointer(place)?.as_str());
    line(found.unwrap_or("no reason given"), 300)
}

/// Reads a server, of the official registry or of one that adds nothing to it.
fn read(mut answer: Value) -> Option<FoundServer> {
    let official =
        answer.pointer(&format!("/_meta/{}", OFFICIAL.replace('/', "~1"))).cloned().unwrap_or_default();
    let server = match answer.get_mut("server") {
        Some(server) => server.take(),
        None => answer,
    };
    let detail: ServerDetail = serde_json::from_value(server).ok()?;
    if detail.name.is_empty() || detail.version.is_empty() || ServerReference::read(&detail.name).is_none() {
        return None;
    }
    let status = match official.get("status").and_then(Value::as_str) {
        Some("deleted") => ServerStatus::Deleted,
        Some("deprecated") => ServerStatus::Deprecated,
        _ => ServerStatus::Active,
    };
    let status_message = official.get("statusMessage").and_then(Value::as_str).map(|text| line(text, 500));
    let is_latest = official.get("isLatest").and_then(Value::as_bool).unwrap_or(true);
    Some(FoundServer { detail, status, status_message, is_latest })
}
