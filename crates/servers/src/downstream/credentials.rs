//! Signs the requests to one server, and masks its secrets in every text about it.

use std::sync::Arc;

use nonet_base::text::clip;
use nonet_config::{Grant, ServerCredentials, ServerSettings, Transport};

use super::{
    ConnectionContext, PersonAccess, Remedy, environment,
    link::{LinkError, SignInNeeded},
    refusal::Refusal,
};
use crate::oauth::{PersonExchange, TokenAccount};

/// The shortest value of `env`, `headers` or the keyring that is masked: shorter ones are words, not secrets.
const MASKED: usize = 8;
/// The most scopes in a suggested command.
const MAX_SCOPES: usize = 20;

pub(super) struct Credentials {
    server: Arc<str>,
    /// The command that signs in to a server, up to its name.
    login: String,
    /// Values of `env` and `headers`, and secrets of the keyring.
    pub secrets: Arc<[String]>,
    /// The sign-in, for a server without authorization in its `headers`.
    pub account: Option<Arc<TokenAccount>>,
    /// The person whose account it is, if it is one's own.
    person: Option<PersonAccess>,
}

impl Credentials {
    pub(super) fn new(
        server: &Arc<str>,
        settings: &ServerSettings,
        context: &ConnectionContext,
        person: Option<&PersonAccess>,
    ) -> Self {
        let (hidden, inherited) = match &settings.transport {
            Transport::Stdio { env, inherit_env, .. } => {
                (env, Some(environment::named_variables(inherit_env)))
            }
            Transport::Http { headers, .. } => (headers, None),
            Transport::Rest(rest) => (&rest.headers, None),
        };
        let configured = hidden.values().chain(&settings.secrets);
        let configured = configured.map(|value| without_scheme(value.expose()).to_string());
        let secrets = configured
            .chain(inherited.into_iter().flatten().map(|(_, value)| value))
            .chain(in_query(&settings.transport));
        let account = settings.transport.sign_in().map(|(url, _, oauth)| {
            let oauth = oauth.clone();
            Arc::new(match (person, &settings.credentials, &context.people) {
                (Some(person), ServerCredentials::Exchange(exchange), _) => {
                    let (settings, subject) = (exchange.clone(), person.subject.clone());
                    TokenAccount::exchanging(url, oauth, PersonExchange::new(settings, subject))
                }
                (Some(person), _, Some(people)) => {
                    TokenAccount::of_person(url, oauth, people.account(&person.person, server, url))
                }
                // Never another account for a person: without a place for theirs, they have none.
                (Some(_), _, None) => TokenAccount::new(server, url, oauth, None),
                (None, ..) => TokenAccount::new(server, url, oauth, context.vault.as_ref()),
            })
        });
        Self {
            server: server.clone(),
            login: context.login.clone(),
            secrets: secrets.filter(|value| value.len() >= MASKED).collect(),
            account,
            person: person.cloned(),
        }
    }

    /// Returns a text with secrets and access tokens masked.
    pub(super) fn mask(&self, text: &str) -> String {
        let text = mask(&self.secrets, text);
        match &self.account {
            Some(account) => account.mask(text),
            None => text,
        }
    }

    pub(super) fn mask_lost(&self, lost: LinkError) -> LinkError {
        match lost {
            LinkError::Failed(reason) => LinkError::Failed(self.mask(&reason)),
            other @ (LinkError::SignIn(_) | LinkError::Moved { .. }) => other,
        }
    }

    /// Returns what the user has to do after a refusal.
    pub(super) fn sign_in(&self, refusal: &Refusal) -> SignInNeeded {
        let account = self.account.as_ref();
        let remedy = match account.map(|account| account.grant()) {
            None => Remedy::Headers,
            Some(_) if account.is_some_and(|account| account.is_exchanged()) => Remedy::Exchange,
            Some(Grant::ClientCredentials) => Remedy::Client,
            Some(Grant::AuthorizationCode) => {
                let scopes = refusal.scope.iter().flat_map(|scope| scope.split_whitespace());
                // The server chooses the scopes, but the user runs the command.
                let scopes: Vec<&str> = scopes.filter(|scope| is_plain(scope)).take(MAX_SCOPES).collect();
                if let Some(person) = &self.person {
                    return self.needed(refusal, Remedy::Page(person.page_for(&scopes)));
                }
                let scopes: String = scopes.iter().map(|scope| format!(" --scope {scope}")).collect();
                Remedy::Login(format!("{} {}{scopes}", self.login, self.server))
            }
        };
        self.needed(refusal, remedy)
    }

    fn needed(&self, refusal: &Refusal, remedy: Remedy) -> SignInNeeded {
        let said = in_words(&refusal.challenge.replace(char::is_control, " "));
        SignInNeeded { error: self.mask(&clip(&said, 400)), remedy }
    }

    /// Returns the same. Where nothing offers a sign-in, the user has to give the server a token.
    pub(super) async fn sign_in_or_token(&self, refusal: &Refusal) -> SignInNeeded {
        let mut needed = self.sign_in(refusal);
        if let (Remedy::Login(_), Some(account)) = (&needed.remedy, &self.account)
            && !account.is_offered(&refusal.challenge).await
        {
            needed.remedy = Remedy::Headers;
        }
        needed
    }

    /// Resolves once a person has signed in or out who may be somebody else at the server now.
    pub(super) async fn replaced(&self) {
        match self.account.as_ref().filter(|_| self.person.is_some()) {
            Some(account) => account.replaced().await,
            None => std::future::pending().await,
        }
    }

    /// Resolves once the user has signed in or out.
    pub(super) async fn changed(&self) {
        match &self.account {
            Some(account) => account.changed().await,
            None => std::future::pending().await,
        }
    }
}

/// Returns a refusal in words: a `WWW-Authenticate` header is for programs. Anything else is for people
/// already.
fn in_words(challenge: &str) -> String {
    let (scheme, rest) = challenge.split_once([' ', ',']).unwrap_or((challenge, ""));
    let schemes = ["bearer", "basic", "digest", "negotiate", "dpop", "token", "apikey"];
    let has_scheme = schemes.iter().any(|known| known.eq_ignore_ascii_case(scheme));
    if !has_scheme || !(rest.trim().is_empty() || rest.contains('=')) {
        return challenge.into();
    }
    let value = |name: &str| {
        let (_, rest) = challenge.split_once(&format!("{name}=\""))?;
        rest.split('"').next().map(str::trim).filter(|value| !value.is_empty())
    };
    match (value("error_description"), value("error")) {
        (Some(said), _) => format!("it refuses the request: {said}"),
        (None, Some("insufficient_scope")) => "it requires a sign-in with more scopes".into(),
        (None, Some("invalid_token")) => "it does not accept the token".into(),
        _ => "it requires a sign-in or a token".into(),
    }
}

/// Returns the query values of a REST service's address, which may be keys, both plain and as encoded there.
fn in_query(transport: &Transport) -> Vec<String> {
    let Transport::Rest(rest) = transport else { return Vec::new() };
    let query = rest.base_url.as_ref().and_then(|url| url.split_once('?')).map_or("", |(_, query)| query);
    let written =
        query.split('&').filter_map(|pair| pair.split_once('=')).map(|(_, value)| value.to_string());
    let read = reqwest::Url::parse(&format!("http://a/?{query}")).ok();
    let read = read.iter().flat_map(|url| url.query_pairs()).map(|(_, value)| value.into_owned());
    read.chain(written).collect()
}

/// Returns the secret of an `Authorization` header, which servers repeat without its scheme.
fn without_scheme(value: &str) -> &str {
    let (scheme, secret) = value.split_once(' ').unwrap_or_default();
    let is_scheme = ["bearer", "basic", "token"].iter().any(|known| known.eq_ignore_ascii_case(scheme));
    if is_scheme { secret.trim_start() } else { value }
}

/// Replaces each of `secrets` in a text.
pub(super) fn mask(secrets: &[String], text: &str) -> String {
    secrets.iter().fold(text.to_string(), |text, secret| text.replace(secret.as_str(), "***"))
}

/// Returns whether a scope contains no character with a special meaning in any shell.
fn is_plain(scope: &str) -> bool {
    !scope.starts_with('-') && scope.chars().all(|c| c.is_ascii_alphanumeric() || "._:/@+=*-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::{in_words, is_plain};

    #[test]
    fn a_refusal_is_told_in_words() {
        let check = |challenge: &str, expected: &str| assert_eq!(in_words(challenge), expected);
        check("Bearer", "it requires a sign-in or a token");
        check("Bearer realm=\"x\", resource_metadata=\"https://a/b\"", "it requires a sign-in or a token");
        check("Bearer error=\"invalid_token\"", "it does not accept the token");
        check("Bearer error=\"insufficient_scope\", scope=\"a\"", "it requires a sign-in with more scopes");
        check(
            "bearer error=\"invalid_token\", error_description=\"The token has expired\"",
            "it refuses the request: The token has expired",
        );
        check("HTTP 401 Unauthorized", "HTTP 401 Unauthorized");
        check("admins only", "admins only");
        check("Token expired, sign in again", "Token expired, sign in again");
        check("Basic plan does not include this", "Basic plan does not include this");
    }

    #[test]
    fn a_scope_is_part_of_a_command_only_without_a_meaning_to_a_shell() {
        let check = |scope: &str, expected: bool| assert_eq!(is_plain(scope), expected, "{scope}");
        check("files:read", true);
        check("https://www.example.com/auth/drive.readonly", true);
        check("x&calc&", false);
        check("$(id)", false);
        check("--keyring", false);
        check("it's", false);
    }
}
