//! `nonet connect`, and the shared gateway behind it.

use std::{net::IpAddr, path::Path, sync::Arc};

use anyhow::Context;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use nonet_config::{
    self as config, LoadedConfig, ValueSources,
    keyring::{self, Keyring},
};
use nonet_store::doors::OwnerKey;

use super::{FAILED, OK, serve, show};
use nonet_bridge::{FarSide, Target};

/// The variable with the bearer token for a gateway at a URL.
const TOKEN_VARIABLE: &str = "NONET_TOKEN";

/// Connects the client to a gateway at a URL.
pub(super) async fn to_url(url: &str, headers: &[String], profile: Option<&str>) -> anyhow::Result<u8> {
    let target = target(url, headers, profile)?;
    Ok(joined(nonet_bridge::run(FarSide::Http(target), serve::stop_signal()).await))
}

/// Returns the gateway at a URL, with the headers to send.
pub(super) fn target(url: &str, headers: &[String], profile: Option<&str>) -> anyhow::Result<Target> {
    let keyring = Keyring::system(keyring::UNATTENDED);
    let sources = ValueSources {
        env: &nonet_base::variables::var,
        keyring: &|name| keyring.get(name),
        ..ValueSources::NONE
    };
    let (url, headers) = (endpoint(url, profile)?, read_headers(headers, sources)?);
    let local = local_port(&url).filter(|_| !headers.contains_key(header::AUTHORIZATION));
    let owner = local.and_then(OwnerKey::of_port).map(Arc::new);
    Ok(Target { url, headers, owner })
}

/// Returns the port of an address on this machine, without TLS.
fn local_port(url: &str) -> Option<u16> {
    let url: http::Uri = url.parse().ok()?;
    let host = url.host()?.trim_matches(['[', ']']);
    let is_local = host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    (is_local && url.scheme_str() == Some("http")).then(|| url.port_u16().unwrap_or(80))
}

/// Returns the exit code. An unreachable gateway is not an error in the command line.
fn joined(joined: anyhow::Result<()>) -> u8 {
    match joined {
        Ok(()) => OK,
        Err(error) => {
            show::complain(show::causes(&error));
            FAILED
        }
    }
}

/// Connects the client to this machine's shared gateway.
#[cfg(unix)]
pub(super) async fn to_shared(config: &Path, profile: Option<String>, by_trust: bool) -> anyhow::Result<u8> {
    use nonet_store::shared::{Hello, SharedPlace};
    let far = FarSide::Shared(SharedPlace::of(config)?.by_trust(by_trust), Hello::new(profile));
    Ok(joined(nonet_bridge::run(far, serve::stop_signal()).await))
}

/// Runs as the shared gateway.
#[cfg(unix)]
pub(super) async fn be_shared(loaded: LoadedConfig) -> anyhow::Result<u8> {
    let (file, by_trust) = (loaded.config.file.clone(), loaded.trust != config::FileTrust::NotNeeded);
    let Some(owner) = nonet_store::shared::SharedPlace::of(&file)?.own().await? else {
        // Another process was faster and serves the client.
        return Ok(OK);
    };
    let gateway = super::gateway(loaded, true);
    serve::watch(&gateway, &file, by_trust);
    crate::serve::serve_shared(gateway, owner, serve::stop_signal()).await?;
    Ok(OK)
}

#[cfg(not(unix))]
const NOT_HERE: &str = "a shared gateway is not supported on this system yet: run `nonet serve --http 127.0.0.1:8931`, and \
                        `nonet connect http://127.0.0.1:8931/mcp` in each client";

#[cfg(not(unix))]
pub(super) async fn to_shared(
    _config: &Path,
    _profile: Option<String>,
    _by_trust: bool,
) -> anyhow::Result<u8> {
    anyhow::bail!(NOT_HERE)
}

#[cfg(not(unix))]
pub(super) async fn be_shared(_loaded: LoadedConfig) -> anyhow::Result<u8> {
    anyhow::bail!(NOT_HERE)
}

/// Returns the address of the MCP endpoint: `/mcp` or the profile's, unless the URL already has a path.
fn endpoint(url: &str, profile: Option<&str>) -> anyhow::Result<String> {
    let faulty = || format!("`{url}` is not a gateway address; use one such as http://127.0.0.1:8931/mcp");
    let parsed: http::Uri = url.parse().with_context(faulty)?;
    anyhow::ensure!(matches!(parsed.scheme_str(), Some("http" | "https")), faulty());
    anyhow::ensure!(
        profile.is_none() || !url.contains(['?', '#']),
        "the profile becomes part of the path: use `{url}` without a query, or the profile's own address"
    );
    let base = url.trim_end_matches('/');
    let base = if parsed.path().trim_matches('/').is_empty() { format!("{base}/mcp") } else { base.into() };
    Ok(match profile {
        Some(profile) => format!("{base}/{profile}"),
        None => base,
    })
}

fn read_headers(given: &[String], sources: ValueSources) -> anyhow::Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    if let Some(token) = (sources.env)(TOKEN_VARIABLE) {
        let value = HeaderValue::try_from(format!("Bearer {token}"))
            .with_context(|| format!("the value of {TOKEN_VARIABLE} is not a valid header value"))?;
        headers.insert(header::AUTHORIZATION, value);
    }
    for given in given {
        // The value may be a secret, so no message contains it.
        let (name, value) = given.split_once(':').context("`--header` needs `Name: value`")?;
        let value = config::expand(value.trim(), sources)
            .map_err(|why| anyhow::anyhow!("`--header {name}`: {why}"))?;
        let name: HeaderName =
            name.trim().parse().with_context(|| format!("`{name}` is not a valid header name"))?;
        let value = HeaderValue::try_from(value)
            .with_context(|| format!("the value of `{name}` is not a valid header value"))?;
        headers.insert(name, value);
    }
    for value in headers.values_mut() {
        value.set_sensitive(true);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_completed() {
        let check = |url, profile, expected: &str| assert_eq!(endpoint(url, profile).unwrap(), expected);
        check("http://localhost:8931", None, "http://localhost:8931/mcp");
        check("http://localhost:8931/", Some("reader"), "http://localhost:8931/mcp/reader");
        check("https://team.example/tools/mcp", None, "https://team.example/tools/mcp");
        for faulty in ["localhost:8931", "ftp://x", "", "http://"] {
            assert!(endpoint(faulty, None).is_err(), "{faulty}");
        }
    }

    #[test]
    fn only_this_machines_own_address_gets_the_users_token() {
        let check = |url, expected| assert_eq!(local_port(url), expected, "{url}");
        check("http://127.0.0.1:8931/mcp", Some(8931));
        check("http://LOCALHOST/mcp", Some(80));
        check("http://[::1]:8931/mcp/reader", Some(8931));
        check("http://[::ffff:127.0.0.1]:8931/mcp", Some(8931));
        for other in [
            "https://127.0.0.1:8931/mcp",
            "http://127.0.0.1.example.com/mcp",
            "http://localhost.example.com/mcp",
            "http://127.0.0.1@example.com/mcp",
            "http://192.0.2.1:8931/mcp",
        ] {
            check(other, None);
        }
    }

    #[test]
    fn headers_come_from_arguments_and_the_environment() {
        let env = |name: &str| match name {
            "NONET_TOKEN" => Some("t0".to_string()),
            "KEY" => Some("k1".to_string()),
            _ => None,
        };
        let sources = ValueSources { env: &env, ..ValueSources::NONE };
        let read = |given: &[&str]| {
            read_headers(&given.iter().map(ToString::to_string).collect::<Vec<_>>(), sources)
        };
        assert_eq!(read(&[]).unwrap()["authorization"], "Bearer t0");
        let headers = read(&["X-Key: ${KEY}", "Authorization: Basic x"]).unwrap();
        assert_eq!(
            (headers["x-key"].as_bytes(), headers["authorization"].as_bytes()),
            (&b"k1"[..], &b"Basic x"[..])
        );
        for faulty in ["no-colon", "X: ${UNSET}", "a b: c"] {
            assert!(read(&[faulty]).is_err(), "{faulty}");
        }
    }
}
