//! Names of tools and of their params.

use std::collections::{HashMap, HashSet};

use sha2::{Digest, Sha256};

/// The longest name of a tool, in characters.
const MAX_NAME: usize = 128;
/// The longest name of a param. Model APIs accept no longer one.
const MAX_PARAM: usize = 64;

/// An operation, as far as its name depends on it.
pub(super) struct OperationKey<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub id: Option<&'a str>,
}

/// Returns a name for each operation, in order. The name depends neither on the order nor on the selection of
/// operations: all operations that share a name get the same kind of suffix.
pub(super) fn of_operations(all: &[OperationKey]) -> Vec<String> {
    let first = |called: &OperationKey| own_id(called).map_or_else(|| of_path(called), str::to_string);
    let mut names: Vec<String> = all.iter().map(first).collect();
    separate(&mut names, all, |called| own_id(called).map(|_| of_path(called)));
    separate(&mut names, all, |called| Some(digest(called)));
    for (name, called) in names.iter_mut().zip(all) {
        if name.chars().count() > MAX_NAME {
            let kept: String = name.chars().take(MAX_NAME - 9).collect();
            *name = format!("{kept}_{}", digest(called));
        }
    }
    names
}

/// Adds a suffix to every name that several operations have.
fn separate(names: &mut [String], all: &[OperationKey], suffix: impl Fn(&OperationKey) -> Option<String>) {
    let mut count: HashMap<String, usize> = HashMap::new();
    for name in names.iter() {
        *count.entry(name.clone()).or_default() += 1;
    }
    for (name, called) in names.iter_mut().zip(all) {
        if count[name.as_str()] > 1
            && let Some(suffix) = suffix(called)
        {
            *name = format!("{name}_{suffix}");
        }
    }
}

fn own_id<'a>(called: &OperationKey<'a>) -> Option<&'a str> {
    called.id.map(str::trim).filter(|id| !id.is_empty() && !id.chars().any(char::is_control))
}

/// Returns a name such as `get_users_id_posts`.
fn of_path(called: &OperationKey) -> String {
    let mut name = called.method.to_lowercase();
    for word in called.path.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        name.push('_');
        name.push_str(word);
    }
    name
}

fn digest(called: &OperationKey) -> String {
    let digest = Sha256::digest(format!("{} {}", called.method, called.path));
    nonet_base::text::hex(&digest[..4])
}

/// Returns a param for each name, in order: unique, and in characters that model APIs accept. `places` are
/// the prefixes for repeated names, such as `query`; `None` for a name that stays as it is.
pub(super) fn of_params(all: &[(&str, Option<&str>)]) -> Vec<String> {
    let plain: Vec<String> = all.iter().map(|(name, _)| param(name)).collect();
    let mut count: HashMap<&str, usize> = HashMap::new();
    for name in &plain {
        *count.entry(name).or_default() += 1;
    }
    let mut taken: HashSet<String> = plain.iter().filter(|name| count[name.as_str()] == 1).cloned().collect();
    let mut names = Vec::with_capacity(all.len());
    for (name, (_, place)) in plain.iter().zip(all) {
        if count[name.as_str()] == 1 {
            names.push(name.clone());
            continue;
        }
        let mut unique = place.map_or_else(|| name.clone(), |place| format!("{place}_{name}"));
        while !taken.insert(unique.clone()) {
            unique.push('_');
        }
        names.push(unique);
    }
    names
}

/// Returns a param's name: `filter[name]` becomes `filter_name`, and `$top` becomes `top`.
fn param(name: &str) -> String {
    let mut out = String::new();
    for char in name.chars() {
        match char {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '.' | '-' => out.push(char),
            _ if out.is_empty() || out.ends_with('_') => {}
            _ => out.push('_'),
        }
    }
    if out != name {
        out.truncate(out.trim_end_matches('_').len());
    }
    if out.is_empty() {
        out.push_str("param");
    }
    out.truncate(MAX_PARAM);
    out
}
