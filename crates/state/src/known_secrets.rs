//! The secrets that a gateway knows: those of its configuration and of its connections.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use nonet_config::{AppKind, AppModel, Config, ModelApp, Secret, ServerSettings, Transport};
use nonet_servers::downstream::named_variables;
use nonet_text::{
    leaks::KnownSecrets,
    secrets::{beginning, in_addresses, is_harmless, is_secret_header, is_secret_name},
};

use crate::world::Connections;

/// The owner of secrets that belong to no server.
pub const OF_NONET: &str = "gateway";

/// Returns the secrets of a configuration and of its connections, with their servers.
pub fn secrets_of(config: &Config, connections: &Connections) -> KnownSecrets {
    KnownSecrets::new(secret_values(config, connections))
}

/// Returns the same secrets as values, with their owners.
pub fn secret_values(config: &Config, connections: &Connections) -> Vec<(Arc<str>, String)> {
    let mut all: Vec<(Arc<str>, String)> = Vec::new();
    for (name, settings) in &config.servers {
        of_server(&name.as_str().into(), settings, &mut all);
    }
    for (name, connection) in connections {
        let settings = connection.settings();
        if settings.session.is_some() {
            of_server(name, &settings, &mut all);
        }
    }
    let of_nonet: Arc<str> = OF_NONET.into();
    for app in config.apps.values() {
        if let AppKind::Model(ModelApp { model: AppModel::Endpoint(model), .. }) = &app.kind
            && let Some(key) = &model.api_key
        {
            all.push((of_nonet.clone(), key.expose().into()));
        }
    }
    if let Some(outlet) = &config.gateway.notify {
        all.extend(of_headers(&outlet.headers).map(|value| (of_nonet.clone(), value)));
        // The address of a webhook is a secret: whoever knows it can post to it.
        let paths = outlet
            .webhook
            .iter()
            .filter_map(|url| Some(url.expose().split_once("://")?.1.split_once('/')?.1.to_owned()));
        all.extend(paths.map(|value| (of_nonet.clone(), value)));
    }
    let of_issuers = config.auth.iter().flat_map(|auth| &auth.issuers);
    let of_issuers = of_issuers.filter_map(|issuer| issuer.client_secret.as_ref());
    all.extend(of_issuers.map(|secret| (of_nonet.clone(), secret.expose().to_owned())));
    let audit_key = config.audit.as_ref().and_then(|audit| audit.key.as_ref());
    all.extend(audit_key.map(|key| (of_nonet.clone(), key.expose().to_owned())));
    if let Some(cluster) = &config.cluster {
        let of_sentinels = cluster.sentinel_password.iter().map(|password| password.expose().to_owned());
        all.extend(
            cluster.redis.passwords().chain(of_sentinels).map(|password| (of_nonet.clone(), password)),
        );
    }
    if let Some(hook) = &config.gateway.approve_webhook {
        all.extend(of_headers(&hook.headers).map(|value| (of_nonet.clone(), value)));
        let path = hook.url.expose().split_once("://").and_then(|(_, rest)| rest.split_once('/'));
        all.extend(path.map(|(_, path)| (of_nonet.clone(), path.to_owned())));
    }
    all
}

fn of_server(name: &Arc<str>, settings: &ServerSettings, all: &mut Vec<(Arc<str>, String)>) {
    let mut put = |value: String| all.push((name.clone(), value));
    settings.secrets.iter().map(Secret::expose).filter(|value| !is_public(value)).for_each(|value| {
        in_url(value).for_each(&mut put);
        if !value.contains("://") {
            put(value.into());
        }
    });
    match &settings.transport {
        Transport::Stdio { env, inherit_env, args, .. } => {
            let written = env.iter().map(|(name, value)| (name.clone(), value.expose().to_owned()));
            for (name, value) in written.chain(named_variables(inherit_env)) {
                in_url(&value).for_each(&mut put);
                let is_secret =
                    is_secret_name(&name) && !is_harmless(&value, &name) || beginning(&value).is_some();
                if is_secret && !value.contains("://") {
                    put(value);
                }
            }
            for (at, value) in args.iter().enumerate() {
                in_url(value).for_each(&mut put);
                // `--api-key x` and `--api-key=x`.
                let (flag, value) = match value.split_once('=') {
                    Some((flag, value)) if flag.starts_with('-') => (flag, value),
                    _ => (at.checked_sub(1).map_or("", |before| args[before].as_str()), value.as_str()),
                };
                let is_named = flag.starts_with('-')
                    && !flag.contains('=')
                    && is_secret_name(flag.trim_start_matches('-'));
                if !value.starts_with('-')
                    && (is_named && !is_harmless(value, flag) || beginning(value).is_some())
                {
                    put(value.into());
                }
            }
        }
        Transport::Http { url, headers, oauth, .. } => {
            of_headers(headers).chain(in_url(url)).for_each(&mut put);
            oauth.client_secret.iter().for_each(|value| put(value.expose().into()));
        }
        Transport::Rest(rest) => {
            of_headers(&rest.headers).for_each(&mut put);
            rest.base_url.iter().flat_map(|url| in_url(url).collect::<Vec<_>>()).for_each(&mut put);
            rest.oauth.client_secret.iter().for_each(|value| put(value.expose().into()));
        }
    }
}

/// Returns the secrets in an address.
fn in_url(text: &str) -> impl Iterator<Item = String> + use<> {
    let found = if text.contains("://") { in_addresses(text) } else { Vec::new() };
    found.into_iter().map(|(range, _)| text[range].to_owned()).collect::<Vec<_>>().into_iter()
}

/// Returns the secrets in headers, without the scheme of an `Authorization`; for a Basic one, also the
/// password.
fn of_headers(headers: &std::collections::BTreeMap<String, Secret>) -> impl Iterator<Item = String> + '_ {
    let secret =
        headers.iter().filter(|(name, value)| is_secret_header(name) && !is_harmless(value.expose(), name));
    secret.flat_map(|(_, value)| {
        let value = value.expose();
        let (scheme, rest) = value.split_once(' ').unwrap_or(("", value));
        let decoded =
            scheme.eq_ignore_ascii_case("basic").then(|| STANDARD.decode(rest.trim()).ok()).flatten();
        let decoded = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
        let password = decoded.and_then(|pair| Some(pair.split_once(':')?.1.to_owned()));
        [Some(rest.trim().to_owned()), password].into_iter().flatten()
    })
}

/// Whether a value stored as a secret is public: a mail address, or an address without credentials.
fn is_public(value: &str) -> bool {
    let is_mail = value.split_once('@').is_some_and(|(name, host)| {
        host.contains('.')
            && !host.contains(['@', ':', '/'])
            && name.chars().all(|c| c.is_alphanumeric() || ".-_+".contains(c))
    });
    is_mail || value.contains("://") && in_addresses(value).is_empty()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nonet_config as config;

    use super::*;

    /// Returns the servers whose secrets a text contains.
    fn owners(toml: &str, text: &str) -> Vec<String> {
        let config =
            config::parse(toml, Path::new("f"), config::ValueSources::NONE).expect("it is usable").config;
        let known = secrets_of(&config, &Connections::new());
        known
            .find(text)
            .flat_map(|(_, of)| of.iter().map(|name| name.to_string()).collect::<Vec<_>>())
            .collect()
    }

    #[test]
    fn secrets_are_known_wherever_they_are_written() {
        let check = |toml: &str, text: &str| assert_eq!(owners(toml, text), ["a"], "{toml}");
        check("[servers.a]\ncommand = 'x'\nenv = { API_KEY = 'k3y-0f-a-server' }", "k3y-0f-a-server");
        check("[servers.a]\ncommand = 'x'\nenv = { DB = 'postgres://u:Sw0rdfish@h/db' }", "pw Sw0rdfish");
        check("[servers.a]\ncommand = 'x'\nargs = ['--api-key', 'k3y-0f-a-server']", "k3y-0f-a-server");
        check("[servers.a]\ncommand = 'x'\nargs = ['--token=k3y-0f-a-server']", "k3y-0f-a-server");
        check(
            "[servers.a]\nurl = 'http://x'\nheaders = { Authorization = 'Bearer k3y-0f-a-server' }",
            "k3y-0f-a-server",
        );
        check(
            "[servers.a]\nurl = 'http://x'\nheaders = { Authorization = 'Basic YW5uOlN3MHJkZmlzaA==' }",
            "Sw0rdfish",
        );
        check("[servers.a]\nurl = 'http://x/?token=k3y-0f-a-server'", "k3y-0f-a-server");
        check(
            "[servers.a]\nurl = 'http://x'\n[servers.a.oauth]\nclient_id = 'id'\nclient_secret = 'k3y-0f-a-server'",
            "k3y-0f-a-server",
        );
        check(
            "[servers.a]\nopenapi = 'x.json'\nheaders = { X-Api-Key = 'k3y-0f-a-server' }",
            "k3y-0f-a-server",
        );
        let notify = "[gateway.notify]\nwebhook = 'https://hooks.example/T0/B1/s3cr3tp4th'";
        assert_eq!(owners(notify, "T0/B1/s3cr3tp4th"), ["gateway"]);
        let both = "[servers.a]\ncommand = 'x'\nenv = { TOKEN = 'sh4red-v4lue' }\n[servers.b]\ncommand = 'x'\nenv = { TOKEN = 'sh4red-v4lue' }";
        assert_eq!(owners(both, "sh4red-v4lue"), ["a", "b"]);
    }

    #[test]
    fn settings_are_no_secrets() {
        let toml = "[servers.a]\ncommand = 'x'\nargs = ['--root', '/home/ann/projects', '--port', '8931-tcp']\n\
                    env = { LOG_LEVEL = 'debug-2026', DB = 'postgres://host-1/db', TOKEN_FILE = '/run/token-1', PASSWORD = 'postgres' }";
        for text in ["/home/ann/projects", "8931-tcp", "debug-2026", "host-1/db", "/run/token-1", "postgres"]
        {
            assert!(owners(toml, text).is_empty(), "{text}");
        }
    }
}
