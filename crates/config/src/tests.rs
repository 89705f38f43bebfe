//! End-to-end tests: a text in, a config or faults out.

mod apps;
mod faults;
mod files;
mod rest;
mod secrets;
mod values;

use std::path::Path;

use insta::{assert_debug_snapshot, assert_snapshot};

use super::*;
use crate::keyring;

const FILE: &str = "/etc/nonet/servers.toml";

fn env(name: &str) -> Option<String> {
    match name {
        "HOME" => Some("/home/ann".into()),
        "TOKEN" => Some("s3cr3t".into()),
        "BAD_TOKEN" => Some("s3cr3t\nline".into()),
        "BAD_URL" => Some("ftp://ann:s3cr3t@example.com".into()),
        _ => None,
    }
}

fn keyring(name: &str) -> Result<String, keyring::Error> {
    match name {
        "TOKEN" => Ok("k3yr1ng".into()),
        "SHUT" => Err(keyring::Error::Locked("asleep".into())),
        "NOWHERE" => Err(keyring::Error::Missing("no bus".into())),
        name => Err(keyring::Error::NoSecret(name.into())),
    }
}

fn here() -> ValueSources<'static> {
    ValueSources { env: &env, keyring: &keyring, ..ValueSources::NONE }
}

fn loaded(text: &str) -> LoadedConfig {
    parse(text, Path::new(FILE), here()).unwrap_or_else(|unusable| panic!("{unusable}"))
}

/// Returns every fault of a text, as `line: key: message`.
fn faults(text: &str) -> Vec<String> {
    let faults = match parse(text, Path::new("f"), here()) {
        Ok(loaded) => loaded.faults,
        Err(unusable) => unusable.faults().to_vec(),
    };
    faults.iter().map(|fault| format!("{}: {}: {}", fault.line, fault.key, fault.message)).collect()
}

fn keys<T>(map: &BTreeMap<String, T>) -> Vec<&str> {
    map.keys().map(String::as_str).collect()
}

fn check(text: &str, expected: &[&str]) {
    assert_eq!(faults(text), expected, "{text}");
}
