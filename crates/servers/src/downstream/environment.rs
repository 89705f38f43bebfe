//! The part of Nonet's own environment that a child-process server gets.
//!
//! It gets what programs expect in any session: paths, locale, display, agents, proxies, certificates, and
//! the settings of package managers. Tokens are withheld; a server that needs one gets it through `env` or
//! `inherit_env`.

use std::{collections::BTreeMap, ffi::OsString};

use nonet_base::variables;
use nonet_config::{Globs, SandboxSettings};
use nonet_sandbox as sandbox;

/// The variables that every child gets. A trailing `*` matches anything. Case does not matter: proxies and
/// npm's settings occur in both cases, and Windows has `Path`.
const INHERITED: &[&str] = &[
    // The user and the session.
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TEMP",
    "TMP",
    "XDG_*",
    // Language and time.
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "TZDIR",
    // The display, for browsers and windows.
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "DBUS_SESSION_BUS_ADDRESS",
    "BROWSER",
    // Agents that hold keys, so that the keys themselves stay out of the server.
    "SSH_AUTH_SOCK",
    "SSH_AGENT_PID",
    "GPG_AGENT_INFO",
    "GNUPGHOME",
    // Proxies, including any password in them: nothing works without it.
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "FTP_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    // CA certificates.
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    // Launchers and package managers.
    "NPM_CONFIG_*",
    "UV_*",
    "PIP_*",
    "BUN_*",
    "DENO_*",
    "NVM_*",
    "FNM_*",
    "ASDF_*",
    "MISE_*",
    "PYENV_*",
    "VOLTA_HOME",
    "JAVA_HOME",
    "DOTNET_ROOT",
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
    "DOCKER_CONFIG",
    "DOCKER_CERT_PATH",
    "DOCKER_TLS_VERIFY",
    // Windows.
    "ALLUSERSPROFILE",
    "APPDATA",
    "COMMONPROGRAMFILES*",
    "COMPUTERNAME",
    "COMSPEC",
    "HOMEDRIVE",
    "HOMEPATH",
    "LOCALAPPDATA",
    "NUMBER_OF_PROCESSORS",
    "PATHEXT",
    "PROCESSOR_ARCHITECTURE",
    "PROGRAMDATA",
    "PROGRAMFILES*",
    "PROGRAMW6432",
    "PUBLIC",
    "SYSTEMDRIVE",
    "SYSTEMROOT",
    "USERDOMAIN",
    "USERNAME",
    "USERPROFILE",
    "WINDIR",
];

/// Words in a variable's name that mark it as a secret, if it matches only a `*`. `AUTH` also covers npm's
/// `_auth`, and `KEY` covers its certificate key.
const SECRET: [&str; 7] = ["AUTH", "TOKEN", "PASS", "SECRET", "CREDENTIAL", "KEY", "OTP"];

/// Returns all variables of a program: those that it inherits, and its own, which count more.
pub(super) fn of_program<'a>(
    more: &Globs,
    sandbox: Option<&SandboxSettings>,
    own: impl Iterator<Item = (&'a str, &'a str)>,
) -> BTreeMap<OsString, OsString> {
    inherited(more, sandbox).chain(own.map(|(name, value)| (name.into(), value.into()))).collect()
}

/// Returns the variables of Nonet's own environment that a child gets: the usual ones, and the ones that
/// match `more`. A sandbox excludes the variables that lead to the user's agents and, if it names variables,
/// allows only those.
fn inherited(more: &Globs, sandbox: Option<&SandboxSettings>) -> impl Iterator<Item = (OsString, OsString)> {
    variables::all().into_iter().filter(move |(name, value)| {
        let Some(name) = name.to_str() else { return false };
        let is_usual = match sandbox.map(|sandbox| &sandbox.env) {
            None => is_usual(name, &value.to_string_lossy()),
            Some(None) => is_usual(name, &value.to_string_lossy()) && !sandbox::leaves_out(name),
            Some(Some(named)) => named.matches(name) || ["PATH", "HOME"].contains(&name),
        };
        is_usual || more.matches(name)
    })
}

/// Returns the variables that a child gets only because the configuration names them. They may be secrets.
pub fn named_variables(more: &Globs) -> impl Iterator<Item = (String, String)> {
    let all = if more.is_empty() { Vec::new() } else { variables::all() };
    all.into_iter().filter_map(|(name, value)| {
        let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
        (more.matches(&name) && !is_usual(&name, &value)).then_some((name, value))
    })
}

/// Variables that Nonet and its libraries read themselves, besides the ones that every child gets.
const OWN: [&str; 12] = [
    "NONET_*",
    "OTEL_*",
    "RUST_*",
    "ORT_*",
    "NO_COLOR",
    "CLICOLOR*",
    "COLORTERM",
    "COLUMNS",
    "LINES",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "DYLD_*",
];

/// Returns whether a variable stays in the gateway's own environment. Servers get the others from a copy.
pub fn is_own_variable(name: &str, value: &str) -> bool {
    let is = |pattern: &&str| match pattern.strip_suffix('*') {
        Some(head) => name.starts_with(head),
        None => name == *pattern,
    };
    OWN.iter().any(is) || is_usual(name, value)
}

/// Returns whether every child gets a variable of this name and value.
pub fn is_usual(name: &str, value: &str) -> bool {
    let name = name.to_ascii_uppercase();
    INHERITED.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(head) => name.strip_prefix(head).is_some_and(|rest| !is_secret(rest, value)),
        None => name == *pattern,
    })
}

/// Returns whether a setting holds a token or a password. `rest` is its name without the program's name.
fn is_secret(rest: &str, value: &str) -> bool {
    if rest.ends_with("PROXY") {
        return false;
    }
    let has_password = value.split("://").skip(1).any(|address| {
        let authority = address.split(['/', '?', '#', ' ']).next().unwrap_or_default();
        authority.contains('@')
    });
    // The choice of keyring is not a secret.
    let rest = rest.replace("KEYRING", "");
    has_password || SECRET.iter().any(|word| rest.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, value: &str, expected: bool) {
        assert_eq!(is_usual(name, value), expected, "{name}={value}");
    }

    #[test]
    fn programs_get_what_they_expect() {
        for name in [
            "PATH",
            "Path",
            "HTTPS_PROXY",
            "https_proxy",
            "no_proxy",
            "DISPLAY",
            "WAYLAND_DISPLAY",
            "XAUTHORITY",
            "XDG_RUNTIME_DIR",
            "XDG_SESSION_TYPE",
            "SSH_AUTH_SOCK",
            "LANG",
            "LC_ALL",
            "TZ",
            "SSL_CERT_FILE",
            "npm_config_registry",
            "NPM_CONFIG_PREFIX",
            "UV_CACHE_DIR",
            "PIP_INDEX_URL",
            "UV_KEYRING_PROVIDER",
            "ProgramFiles(x86)",
        ] {
            check(name, "x", true);
        }
        check("HTTPS_PROXY", "http://ann:s3cr3t@proxy:3128", true);
        check("npm_config_https_proxy", "http://ann:s3cr3t@proxy:3128", true);
    }

    #[test]
    fn tokens_stay_behind() {
        for name in [
            "GITHUB_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "OPENAI_API_KEY",
            "NPM_TOKEN",
            "NODE_AUTH_TOKEN",
            "npm_config__auth",
            "npm_config__authToken",
            "npm_config_//registry.example/:_authToken",
            "NPM_CONFIG__PASSWORD",
            "npm_config_otp",
            "npm_config_key",
            "UV_PUBLISH_TOKEN",
            "UV_INDEX_OWN_PASSWORD",
            "DENO_AUTH_TOKENS",
            "MISE_GITHUB_TOKEN",
            "BUN_CONFIG_TOKEN",
            "PATHS",
            "NONET_TOKEN",
        ] {
            check(name, "x", false);
        }
        check("UV_INDEX_URL", "https://ann:s3cr3t@pypi.example/simple", false);
        check("npm_config_registry", "https://s3cr3t@npm.example/", false);
        check("npm_config_registry", "https://npm.example/@scope", true);
    }
}
