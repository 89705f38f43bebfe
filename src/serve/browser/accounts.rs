//! The accounts of a person at servers: `/accounts`, and the sign-in to each. Only the person who has signed in
//! with this browser gets the tokens, whoever sent the link.

// An answer that refuses is made once for each request of a person; nothing is gained by boxing it.
#![allow(clippy::result_large_err)]

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Path, Query, Request, State},
    response::Response,
    routing::{get, post},
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use nonet_auth::cookies::{BrowserSession, OpenSignIn, SignInKind};
use nonet_config::{Config, ServerCredentials, ServerSettings};
use nonet_servers::oauth::{
    PendingSignIn, PeopleClient, PersonEntry, SignIn, SignInError, SignInRequest, header_map,
};
use nonet_wire::{html, issuer::encoded};
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use super::{Browsers, FormOrder, Now, away, busy, failure, redirect};

/// Where sign-in servers send browsers back to.
const CALLBACK: &str = "/accounts/callback";
/// The metadata document of the gateway as a client.
const DOCUMENT: &str = "/oauth/client.json";
/// How long a sign-in server may take for one step.
const LIMIT: Duration = Duration::from_secs(30);
/// The most scopes that a link may ask for besides the usual ones.
const MAX_SCOPES: usize = 20;

pub(super) fn routes() -> Router<Arc<Browsers>> {
    Router::new()
        .route("/accounts", get(all))
        .route(CALLBACK, get(came_back))
        .route("/accounts/{server}", get(one))
        .route("/accounts/{server}/sign-in", post(sign_in))
        .route("/accounts/{server}/sign-out", post(sign_out))
        .route(DOCUMENT, get(document))
}

/// The addresses under which the gateway is known as a client.
struct ClientAddresses {
    redirect_uri: String,
    /// Only over TLS: sign-in servers fetch it from there.
    document: Option<String>,
}

impl ClientAddresses {
    fn of(now: &Now) -> Result<Self, Response> {
        let public = &now.auth()?.public_url;
        let document = public.starts_with("https://").then(|| format!("{public}{DOCUMENT}"));
        Ok(Self { redirect_uri: format!("{public}{CALLBACK}"), document })
    }
}

/// Returns the metadata document of the gateway as a client (OAuth client ID metadata documents).
async fn document(State(browsers): State<Arc<Browsers>>) -> Result<Response, Response> {
    let now = browsers.now()?;
    let addresses = ClientAddresses::of(&now)?;
    let Some(id) = addresses.document else {
        let told = "A gateway without TLS has no metadata document: nobody would trust it.";
        return Err(failure(StatusCode::NOT_FOUND, told, None));
    };
    let document = json!({
        "client_id": id,
        "client_name": "Nonet",
        "client_uri": now.auth()?.public_url,
        "redirect_uris": [addresses.redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "web",
    });
    let mut response = Response::new(Body::from(document.to_string()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Returns the servers at which each person has their own account.
fn personal(config: &Config) -> impl Iterator<Item = (&str, &ServerSettings)> {
    let servers = config.servers.iter().map(|(name, settings)| (name.as_str(), settings));
    servers.filter(|(_, settings)| settings.enabled && settings.credentials == ServerCredentials::User)
}

/// One server with a person's account.
struct Account<'a> {
    name: &'a str,
    settings: &'a ServerSettings,
    url: &'a str,
    entry: PersonEntry,
}

impl<'a> Account<'a> {
    fn of(
        browsers: &Browsers,
        config: &'a Config,
        session: &BrowserSession,
        name: &str,
    ) -> Result<Self, Response> {
        let unknown = || {
            let told = "No server of this name has accounts of people here.";
            failure(StatusCode::NOT_FOUND, told, None)
        };
        let (name, settings) = personal(config).find(|(known, _)| *known == name).ok_or_else(unknown)?;
        let (url, ..) = settings.transport.sign_in().ok_or_else(unknown)?;
        let entry = browsers.people()?.account(&session.key, name, url);
        Ok(Self { name, settings, url, entry })
    }

    async fn is_signed_in(&self) -> Result<bool, Response> {
        let kept = self.entry.read().await.map_err(|error| away(&error.to_string()))?;
        Ok(kept.is_some_and(|record| record.token().is_some()))
    }

    /// Returns the line about the account, as HTML.
    async fn line(&self, session: &BrowserSession, scope: &str) -> Result<String, Response> {
        let (name, csrf) = (html::escaped(self.name), html::escaped(&session.csrf));
        let about = self.settings.description.as_deref().unwrap_or_default();
        let form = |action: &str, label: &str| {
            format!(
                "<form method=\"post\" action=\"/accounts/{name}/{action}\"><input type=\"hidden\" name=\"csrf\" value=\"{csrf}\">\
                 <input type=\"hidden\" name=\"scope\" value=\"{}\"><button>{label}</button></form>",
                html::escaped(scope)
            )
        };
        let (state, forms) = match self.is_signed_in().await? {
            true => ("signed in", form("sign-in", "Sign in again") + &form("sign-out", "Sign out")),
            false => ("not signed in", form("sign-in", "Sign in")),
        };
        Ok(format!(
            "<li><span><a href=\"/accounts/{name}\">{name}</a> <span class=\"soft\">{} ({state})</span></span>{forms}</li>",
            html::escaped(about)
        ))
    }
}

/// Returns the session of a browser, or sends the browser to sign in first.
fn signed_in(
    browsers: &Browsers,
    now: &Now,
    request: (&HeaderMap, &str),
) -> Result<BrowserSession, Response> {
    let (headers, to) = request;
    match browsers.session(now, headers) {
        Some(session) => Ok(session),
        None => Err(redirect(&format!("/ui/login?to={}", encoded(to)))?),
    }
}

fn shown(session: &BrowserSession, lines: &str, note: &str) -> Response {
    let name = html::escaped(&session.person.name);
    let csrf = html::escaped(&session.csrf);
    let body = format!(
        "<p>{name}, these servers use your own account. Only your calls use it.</p>{note}<ul>{lines}</ul>\
         <form method=\"post\" action=\"/ui/logout\"><input type=\"hidden\" name=\"csrf\" value=\"{csrf}\">\
         <button>Sign out of Nonet</button></form>"
    );
    html::page(StatusCode::OK, "Your accounts", "", &body)
}

async fn all(State(browsers): State<Arc<Browsers>>, request: Request) -> Result<Response, Response> {
    let now = browsers.now()?;
    let session = signed_in(&browsers, &now, (request.headers(), "/accounts"))?;
    let mut lines = String::new();
    for (name, _) in personal(&now.config) {
        lines += &Account::of(&browsers, &now.config, &session, name)?.line(&session, "").await?;
    }
    if lines.is_empty() {
        lines = "<li>No server here uses accounts of people.</li>".into();
    }
    Ok(shown(&session, &lines, ""))
}

#[derive(Deserialize)]
struct AccountQuery {
    #[serde(default)]
    scope: String,
    done: Option<String>,
}

async fn one(
    State(browsers): State<Arc<Browsers>>,
    Path(server): Path<String>,
    Query(query): Query<AccountQuery>,
    request: Request,
) -> Result<Response, Response> {
    let now = browsers.now()?;
    let to = request.uri().path_and_query().map_or("/accounts", |to| to.as_str());
    let session = signed_in(&browsers, &now, (request.headers(), to))?;
    let account = Account::of(&browsers, &now.config, &session, &server)?;
    let lines = account.line(&session, &query.scope).await?;
    let note = match query.done.is_some() && account.is_signed_in().await? {
        true => "<p><strong>Done: go back to where you were, and go on.</strong></p>",
        false => "",
    };
    Ok(shown(&session, &lines, note))
}

/// Checks that a form was sent from a page of this gateway, by a browser that has signed in.
fn order(
    browsers: &Browsers,
    headers: &HeaderMap,
    form: &FormOrder,
) -> Result<(Now, BrowserSession), Response> {
    let now = browsers.now()?;
    let session = signed_in(browsers, &now, (headers, "/accounts"))?;
    match session.sent(&now.auth()?.public_url, headers, Some(&form.csrf)) {
        true => Ok((now, session)),
        false => Err(failure(
            StatusCode::FORBIDDEN,
            "This request does not come from a page of this gateway.",
            Some("/accounts"),
        )),
    }
}

/// Sends a browser to the sign-in server of a server.
async fn sign_in(
    State(browsers): State<Arc<Browsers>>,
    Path(server): Path<String>,
    headers: HeaderMap,
    axum::Form(form): axum::Form<FormOrder>,
) -> Result<Response, Response> {
    let (now, session) = order(&browsers, &headers, &form)?;
    let account = Account::of(&browsers, &now.config, &session, &server)?;
    let _turn = browsers.finishing.try_acquire().map_err(|_| busy())?;
    let addresses = ClientAddresses::of(&now)?;
    let people = browsers.people()?;
    let before = account.entry.read().await.map_err(|error| away(&error.to_string()))?;
    let Some((url, own_headers, oauth)) = account.settings.transport.sign_in() else { return Err(busy()) };
    let scopes: Vec<String> = form.scope.split_whitespace().take(MAX_SCOPES).map(String::from).collect();
    let request = SignInRequest {
        url,
        headers: header_map(own_headers),
        settings: oauth,
        redirect_uri: addresses.redirect_uri.clone(),
        scopes: &scopes,
        before: before.as_ref(),
        people: Some(PeopleClient {
            document: addresses.document,
            registered: people.client(url, &addresses.redirect_uri).await,
        }),
    };
    let begun = timeout(LIMIT, Box::pin(SignIn::begin(request))).await;
    let begun = begun.unwrap_or_else(|_| Err(SignInError::Unreachable("it did not answer in time".into())));
    let begun = begun.map_err(|error| failed(&account, &error))?;
    if let Some(client) = &begun.registered {
        people.keep_client(url, &addresses.redirect_uri, Some(client)).await;
    }
    let pending = begun.pending().await.map_err(|error| failed(&account, &error))?;
    let open = OpenSignIn::Account {
        server: account.name.into(),
        url: url.into(),
        person: session.key.clone(),
        pending: json!(pending),
    };
    let mut response = redirect(&begun.address)?;
    now.cookies.set_sign_in(response.headers_mut(), &open).map_err(|error| away(&error.to_string()))?;
    Ok(response)
}

/// Takes a browser that comes back from a sign-in server.
async fn came_back(State(browsers): State<Arc<Browsers>>, request: Request) -> Result<Response, Response> {
    let now = browsers.now()?;
    let session = signed_in(&browsers, &now, (request.headers(), "/accounts"))?;
    let open = now.cookies.sign_in(request.headers(), SignInKind::Account);
    let Some(OpenSignIn::Account { server, url, person, pending }) = open else {
        let told = "This browser has begun no sign-in, or too long ago. Begin again.";
        return Err(failure(StatusCode::BAD_REQUEST, told, Some("/accounts")));
    };
    let account = Account::of(&browsers, &now.config, &session, &server)?;
    if person != session.key || url != account.url {
        let told = "This sign-in was begun by somebody else, or for another server. Begin again.";
        return Err(failure(StatusCode::BAD_REQUEST, told, Some("/accounts")));
    }
    let _turn = browsers.finishing.try_acquire().map_err(|_| busy())?;
    let Some((_, _, oauth)) = account.settings.transport.sign_in() else { return Err(busy()) };
    let query = request.uri().query().unwrap_or_default();
    let addresses = ClientAddresses::of(&now)?;
    let address = format!("{}?{query}", addresses.redirect_uri);
    let finished = timeout(LIMIT, async {
        let unread = |_| SignInError::Failed("it was begun by another version of the gateway".into());
        let pending: PendingSignIn = serde_json::from_value(pending).map_err(unread)?;
        Box::pin(SignIn::resume(account.url, oauth, pending)).await?.finish(&address).await
    });
    let finished = Box::pin(finished).await;
    let finished =
        finished.unwrap_or_else(|_| Err(SignInError::Unreachable("it did not answer in time".into())));
    let record = match finished {
        Ok(record) => record,
        Err(error) => {
            // The sign-in server may have forgotten a client that was registered for all.
            let said = error.to_string();
            if ["invalid_client", "unauthorized_client"].iter().any(|code| said.contains(code)) {
                browsers.people()?.keep_client(account.url, &addresses.redirect_uri, None).await;
            }
            let mut response = failed(&account, &error);
            now.cookies.drop_sign_in(response.headers_mut(), SignInKind::Account);
            return Err(response);
        }
    };
    account.entry.keep(&record).await.map_err(|error| away(&error.to_string()))?;
    tell(&browsers, &session, "account_signed_in", account.name);
    browsers.gateway.servers.signed_in(&session.key, account.name);
    let mut response = redirect(&format!("/accounts/{}?done", account.name))?;
    now.cookies.drop_sign_in(response.headers_mut(), SignInKind::Account);
    Ok(response)
}

/// Forgets the tokens of an account.
async fn sign_out(
    State(browsers): State<Arc<Browsers>>,
    Path(server): Path<String>,
    headers: HeaderMap,
    axum::Form(form): axum::Form<FormOrder>,
) -> Result<Response, Response> {
    let (now, session) = order(&browsers, &headers, &form)?;
    let account = Account::of(&browsers, &now.config, &session, &server)?;
    if account.entry.remove().await.map_err(|error| away(&error.to_string()))? {
        tell(&browsers, &session, "account_signed_out", account.name);
        browsers.gateway.servers.signed_out(&session.key, account.name);
    }
    redirect("/accounts")
}

fn tell(browsers: &Browsers, session: &BrowserSession, action: &str, server: &str) {
    tracing::info!(server, subject = %session.person.subject, action, "in a browser");
    let about = || json!({ "action": action, "server": server, "person": session.person });
    browsers.gateway.observing.audit_event("page", about);
}

fn failed(account: &Account<'_>, error: &SignInError) -> Response {
    tracing::warn!(server = account.name, %error, "a person was not signed in to a server");
    let told = format!("You are not signed in to {}: {error}.", account.name);
    failure(StatusCode::BAD_GATEWAY, &told, Some(&format!("/accounts/{}", account.name)))
}
