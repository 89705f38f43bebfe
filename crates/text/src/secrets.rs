//! Recognises secrets: by the name of their place, by a known prefix, or by length and randomness.
//!
//! This room knows only text. The caller decides what to do about a secret: `hosts` moves it to another file,
//! `memory` drops it ([`without_secrets`]), and a form that asks for one is not shown ([`asked_in`]).

mod forms;
mod names;
mod prose;

use std::ops::Range;

pub use forms::asked_in;
pub use names::{is_harmless, is_secret_header, is_secret_name, kind};
pub use prose::without_secrets;

/// The prefixes of well-known services' tokens, with the name of each.
const BEGINNINGS: [(&str, &str); 36] = [
    ("ghp_", "TOKEN"),
    ("gho_", "TOKEN"),
    ("ghu_", "TOKEN"),
    ("ghs_", "TOKEN"),
    ("ghr_", "TOKEN"),
    ("github_pat_", "TOKEN"),
    ("glpat-", "TOKEN"),
    ("glsa_", "TOKEN"),
    ("sk-", "API_KEY"),
    ("sk_live_", "API_KEY"),
    ("sk_test_", "API_KEY"),
    ("rk_live_", "API_KEY"),
    ("xoxa-", "TOKEN"),
    ("xoxb-", "TOKEN"),
    ("xoxp-", "TOKEN"),
    ("xoxr-", "TOKEN"),
    ("xoxs-", "TOKEN"),
    ("xapp-", "TOKEN"),
    ("AKIA", "ACCESS_KEY"),
    ("ASIA", "ACCESS_KEY"),
    ("AIza", "API_KEY"),
    ("ya29.", "TOKEN"),
    ("eyJ", "TOKEN"),
    ("ntn_", "TOKEN"),
    ("secret_", "TOKEN"),
    ("hf_", "TOKEN"),
    ("npm_", "TOKEN"),
    ("pypi-", "TOKEN"),
    ("dop_v1_", "TOKEN"),
    ("dckr_pat_", "TOKEN"),
    ("lin_api_", "API_KEY"),
    ("figd_", "TOKEN"),
    ("shpat_", "TOKEN"),
    ("ATATT", "TOKEN"),
    ("gsk_", "API_KEY"),
    ("pplx-", "API_KEY"),
];
/// The shortest token: no service issues shorter ones, and words with the same prefix are shorter.
pub const MIN_TOKEN: usize = 16;
/// The length from which randomness alone indicates a secret.
pub const MIN_RANDOM: usize = 32;
/// The bits per character that words, paths and package names of that length do not reach.
const RANDOM_BITS: f64 = 4.2;

/// Returns the kind of token, if a text has a well-known service's prefix.
pub fn beginning(text: &str) -> Option<&'static str> {
    let begins = |(beginning, _): &&(&str, &str)| text.starts_with(beginning) && text.len() >= MIN_TOKEN;
    BEGINNINGS.iter().find(begins).map(|(_, kind)| *kind)
}

/// Returns the passwords and secret parameters of the addresses in a text, each with its kind.
pub fn in_addresses(text: &str) -> Vec<(Range<usize>, String)> {
    let mut found = Vec::new();
    // `//user:password@host`
    for (at, _) in text.match_indices("://") {
        let start = at + 3;
        let authority =
            &text[start..start + until(&text[start..], |c| c.is_whitespace() || "/?#\"'".contains(c))];
        if let Some((user, _)) = authority.rsplit_once('@')
            && let Some((name, password)) = user.split_once(':')
        {
            let start = start + name.len() + 1;
            found.push((start..start + password.len(), "PASSWORD".into()));
        }
    }
    // `?token=x&key=y`
    if text.contains("://") {
        for (at, mark) in text.char_indices().filter(|(_, c)| matches!(c, '?' | '&')) {
            let start = at + mark.len_utf8();
            let pair =
                &text[start..start + until(&text[start..], |c| c.is_whitespace() || "&#\"'".contains(c))];
            if let Some((name, value)) = pair.split_once('=')
                && (is_secret_name(name) || matches!(name, "sig" | "signature"))
                && !is_harmless(value, name)
            {
                let end = start + pair.len();
                found.push((end - value.len()..end, kind(name)));
            }
        }
    }
    found
}

/// Returns the length of a text before the first character that matches.
pub fn until(text: &str, stop: impl Fn(char) -> bool) -> usize {
    text.find(stop).unwrap_or(text.len())
}

/// Returns whether a text looks random: long, with both cases and several digits, and no letter much more
/// frequent than the others.
pub fn is_random(text: &str) -> bool {
    let digits = text.chars().filter(char::is_ascii_digit).count();
    let both =
        text.contains(|c: char| c.is_ascii_lowercase()) && text.contains(|c: char| c.is_ascii_uppercase());
    if text.len() < MIN_RANDOM || digits < 3 || !both {
        return false;
    }
    bits_per_character(text) > RANDOM_BITS
}

/// Returns the entropy of the bytes, in bits per character.
fn bits_per_character(text: &str) -> f64 {
    let mut counts = [0usize; 256];
    text.bytes().for_each(|byte| counts[usize::from(byte)] += 1);
    let share = |count: &usize| *count as f64 / text.len() as f64;
    counts.iter().filter(|count| **count > 0).map(share).map(|share| -share * share.log2()).sum()
}
