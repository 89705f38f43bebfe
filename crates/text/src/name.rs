//! Names: `server.tool` in full, `server__tool` on the wire.
//!
//! A name is looked up, never split: [`WireName`] makes the wire form once, and the catalogue keeps both.
//! This module knows characters and hashes, not servers or tools.

use std::{collections::HashMap, fmt, sync::Arc};

use nonet_base::text::{HiddenChar, fold_confusables};
use nonet_search as search;
use sha2::{Digest, Sha256};

/// The longest wire name: the limit of the strictest model API (`^[a-zA-Z0-9_-]{1,64}$`).
pub const MAX_WIRE: usize = 64;
/// The longest server name, in characters.
pub const MAX_SERVER: usize = 32;
/// The meta-tools, in the order of `tools/list`. No tool may have one of these names.
pub const META_TOOLS: [&str; 9] = [
    "search_tools",
    "get_tool",
    "execute_tool",
    "list_categories",
    "browse_category",
    "run_parallel",
    "use_skill",
    "call_app",
    "ask_user",
];
/// Names reserved for Nonet's own categories.
pub const RESERVED: [&str; 3] = ["gateway", "skills", "apps"];

/// A server's name: `^[a-z0-9]+([_-][a-z0-9]+)*$`, at most [`MAX_SERVER`] characters, not in [`RESERVED`]. It
/// never contains a dot or two consecutive underscores.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServerName(Arc<str>);

/// Why a string is not a server name, with the nearest valid one.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{given}` is not a valid server name ({why}); try `{nearest}`")]
pub struct BadServerName {
    /// The rejected name.
    pub given: String,
    /// The rule that it breaks.
    pub why: &'static str,
    /// The nearest valid name.
    pub nearest: String,
}

impl ServerName {
    /// Checks and wraps a name.
    pub fn new(name: &str) -> Result<Self, BadServerName> {
        let why = if name.is_empty() {
            "it is empty"
        } else if RESERVED.contains(&name) {
            "the name is reserved by Nonet"
        } else if name.len() > MAX_SERVER {
            "it is longer than 32 characters"
        } else if !well_formed(name) {
            "only a-z, 0-9 and single `-` or `_` between them are allowed"
        } else {
            return Ok(Self(name.into()));
        };
        Err(BadServerName { given: name.into(), why, nearest: nearest_server_name(name) })
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ServerName {
    type Error = BadServerName;
    fn try_from(name: String) -> Result<Self, BadServerName> {
        Self::new(&name)
    }
}

impl From<ServerName> for String {
    fn from(name: ServerName) -> String {
        name.0.as_ref().into()
    }
}

fn well_formed(name: &str) -> bool {
    name.split(['_', '-'])
        .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()))
}

/// Returns the nearest name that [`ServerName::new`] accepts.
fn nearest_server_name(name: &str) -> String {
    let mut out = String::new();
    let mut separator = None;
    for c in name.chars() {
        match c.to_ascii_lowercase() {
            c @ ('a'..='z' | '0'..='9') => {
                if let Some(s) = separator.take().filter(|_| !out.is_empty()) {
                    out.push(s);
                }
                out.push(c);
            }
            '_' => separator = separator.or(Some('_')),
            _ => separator = separator.or(Some('-')),
        }
    }
    out.truncate(MAX_SERVER);
    let mut out = out.trim_end_matches(['_', '-']).to_string();
    if out.is_empty() {
        out = "server".into();
    }
    if RESERVED.contains(&out.as_str()) {
        out.push_str("-server");
    }
    out
}

/// Joins a server and a tool's own name into a full name: `server.tool`.
pub fn full_name(server: &str, tool: &str) -> String {
    format!("{server}.{tool}")
}

/// The wire forms of one `server.tool`, before clashes are resolved.
pub struct WireName {
    /// `server__tool` with each character outside `[a-zA-Z0-9_-]` replaced by `_`, truncated to [`MAX_WIRE`].
    pub plain: String,
    /// The same, ending in `_` and eight hex digits of the full name's SHA-256.
    pub hashed: String,
}

impl WireName {
    /// Makes both wire forms. They depend only on the two names.
    pub fn new(server: &str, tool: &str) -> Self {
        let mut clean = String::with_capacity(server.len() + tool.len() + 2);
        clean.push_str(server);
        clean.push_str("__");
        clean.extend(tool.chars().map(|c| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' => c,
            _ => '_',
        }));
        let digest = Sha256::digest(full_name(server, tool).as_bytes());
        let hash: String = nonet_base::text::hex(&digest[..4]);
        let keep = clean.len().min(MAX_WIRE - hash.len() - 1);
        let hashed = format!("{}_{hash}", &clean[..keep]);
        let plain = if clean.len() > MAX_WIRE { hashed.clone() } else { clean };
        Self { plain, hashed }
    }
}

/// Prefixes that clients put before a server's tools for the model: `mcp__<server>__<tool>`, here with Nonet
/// as the server.
const CLIENT_PREFIXES: [&str; 2] = ["mcp__nonet__", "mcp_nonet_"];

/// What clients put before the names of another server's tools: `mcp__files__read`, `functions.files.read`.
const OTHER_PREFIXES: [&str; 3] = ["mcp", "functions", "default_api"];

/// Strips a prefix that clients put before the tools of any server; `None` without such a prefix.
fn without_other_prefix(name: &str) -> Option<&str> {
    if without_client_prefix(name).is_some() {
        return None;
    }
    OTHER_PREFIXES.iter().find_map(|prefix| {
        let head = name.get(..prefix.len())?;
        let rest = &name[prefix.len()..];
        let inner = rest.trim_start_matches(['_', '.', ':', '/']);
        (head.eq_ignore_ascii_case(prefix) && inner.len() < rest.len() && !inner.is_empty()).then_some(inner)
    })
}

/// Strips the prefix that a client puts before Nonet's tool names; `None` without such a prefix.
pub fn without_client_prefix(name: &str) -> Option<&str> {
    CLIENT_PREFIXES.iter().find_map(|prefix| {
        let head = name.get(..prefix.len())?;
        head.eq_ignore_ascii_case(prefix).then(|| &name[prefix.len()..])
    })
}

/// Folds a name so that spellings a model confuses become equal: ignores case, `-` versus `_`, and the
/// separators `.`, `__`, `:` and `/` between server and tool.
pub fn fold(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.trim().chars() {
        let c = match c {
            '.' | ':' | '/' | '-' | ' ' => '_',
            c => c,
        };
        if c == '_' && out.ends_with('_') {
            continue;
        }
        out.extend(c.to_lowercase());
    }
    out
}

/// Returns the lower-case words of an identifier: `listOpenIssues`, `list_open_issues` and `List open-issues`
/// have the same three.
pub fn words(identifier: &str) -> Vec<String> {
    let chars: Vec<char> = identifier.chars().collect();
    let mut words = vec![String::new()];
    for (at, c) in chars.iter().enumerate() {
        if begins_word(&chars, at) || !c.is_alphanumeric() {
            words.push(String::new());
        }
        if c.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Whether a word begins at a capital inside an identifier: `readFile`, and `HTMLFile` before its last
/// capital.
fn begins_word(chars: &[char], at: usize) -> bool {
    let before = at.checked_sub(1).and_then(|at| chars.get(at));
    let after = chars.get(at + 1);
    chars.get(at).is_some_and(|c| c.is_uppercase())
        && before.is_some_and(|before| {
            before.is_lowercase()
                || before.is_numeric()
                || before.is_uppercase() && after.is_some_and(|after| after.is_lowercase())
        })
}

/// The longest name whose spellings are told apart, in characters.
const MOST_SPELLED: usize = 512;

/// The spellings of a name that are the same to a strict rule: `delete_all` for `Delete_All`, `deleteAll`,
/// `delete.all` and full-width or look-alike letters. Made once, with the catalogue; rules that permit
/// something compare exact names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spellings(Box<[Box<str>]>);

impl Spellings {
    /// Returns the spellings of a full name, whose first dot ends the server's name.
    pub fn of(full: &str) -> Self {
        match full.split_once('.') {
            Some((server, own)) => Self::new(&format!("{}.", simplified(server, false, true)), own),
            None => Self::new("", full),
        }
    }

    /// Returns the spellings of a name without a server. Patterns on such names may contain dots themselves.
    pub fn of_own(own: &str) -> Self {
        let (all, dotted) = (Self::new("", own), Self::of(own));
        let more = dotted.0.into_iter().filter(|spelling| !all.0.contains(spelling));
        Self(all.0.iter().cloned().chain(more).collect())
    }

    fn new(server: &str, own: &str) -> Self {
        let is_simple = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
        let is_plain = own.len() <= MOST_SPELLED && own.bytes().all(is_simple);
        if is_plain && !own.contains("__") && own.trim_matches('_') == own {
            return Self(Box::new([format!("{server}{own}").into()]));
        }
        let mut all: Vec<Box<str>> = Vec::with_capacity(2);
        // `GitHub` may be one word or two, and `/` may separate words or be a part of an address.
        for (splits, slashes) in [(false, true), (true, true), (false, false), (true, false)] {
            let spelling = format!("{server}{}", simplified(own, splits, slashes)).into_boxed_str();
            if !all.contains(&spelling) {
                all.push(spelling);
            }
        }
        Self(all.into())
    }

    /// Whether any spelling fulfils a condition.
    pub fn any(&self, is_so: impl Fn(&str) -> bool) -> bool {
        self.0.iter().any(|spelling| is_so(spelling))
    }
}

/// Returns a part of a name in lower case, with one `_` between its words, without hidden characters and
/// accents, and with look-alike letters as Latin ones. `splits`: at capitals too; `slashes`: a `/` stays.
fn simplified(part: &str, splits: bool, slashes: bool) -> String {
    let head: String = part.chars().take(MOST_SPELLED).filter(|c| !is_unseen(*c)).collect();
    let chars: Vec<char> = fold_confusables(&head).chars().collect();
    let mut out = String::with_capacity(head.len());
    for (at, c) in chars.iter().enumerate() {
        let separates = !(c.is_alphanumeric() || *c == '/' && slashes);
        if (separates || splits && begins_word(&chars, at)) && !out.is_empty() && !out.ends_with(['_', '/']) {
            out.push('_');
        }
        match c {
            '/' if slashes => out.push('/'),
            c if c.is_alphanumeric() => out.extend(c.to_lowercase()),
            _ => {}
        }
    }
    out.truncate(out.trim_end_matches('_').len());
    out
}

/// Whether a character adds nothing that tells names apart: a hidden one, or an accent of its own.
fn is_unseen(c: char) -> bool {
    HiddenChar::of(c).is_some_and(|kind| kind != HiddenChar::Control) || ('\u{300}'..='\u{36f}').contains(&c)
}

/// Returns a pattern in the forms that match [`Spellings`]: wildcards stay, and what is between them is
/// simplified like a name.
pub fn pattern_spellings(pattern: &str) -> Vec<String> {
    let mut all = Vec::with_capacity(1);
    for (splits, dots) in [(false, true), (true, true), (false, false), (true, false)] {
        let spelling = simplified_pattern(pattern, splits, dots);
        if !all.contains(&spelling) {
            all.push(spelling);
        }
    }
    all
}

/// `dots`: dots after the first stay.
fn simplified_pattern(pattern: &str, splits: bool, dots: bool) -> String {
    let mut plain = String::with_capacity(pattern.len());
    for c in pattern.chars().filter(|c| !is_unseen(*c)) {
        match c.is_ascii() {
            true => plain.push(c),
            // What looks like a wildcard is none.
            false => fold_confusables(c.encode_utf8(&mut [0; 4])).chars().for_each(|c| {
                plain.extend(is_wild(c).then_some('\\'));
                plain.push(c);
            }),
        }
    }
    let chars: Vec<char> = plain.chars().collect();
    let mut out = String::with_capacity(plain.len());
    let (mut at, mut dotted) = (0, false);
    while let Some(c) = chars.get(at).copied() {
        let begins = splits && begins_word(&chars, at);
        at += 1;
        match c {
            '\\' => match chars.get(at).copied() {
                // Only what has a meaning needs the backslash.
                Some(meant) if !is_wild(meant) => {}
                meant => {
                    out.extend([c, meant.unwrap_or(c)]);
                    at += 1;
                }
            },
            '[' => {
                // A class ends at the first `]` that is not its first member.
                let rest = chars.get(at..).unwrap_or_default();
                let first = usize::from(matches!(rest.first(), Some('!' | '^')));
                let end = rest
                    .iter()
                    .skip(first + 1)
                    .position(|c| *c == ']')
                    .map_or(rest.len(), |end| end + first + 2);
                out.push('[');
                match first {
                    0 => rest.iter().take(end).for_each(|c| out.extend(c.to_lowercase())),
                    _ => out.extend(rest.iter().take(end)),
                }
                at += end;
            }
            c if is_wild(c) => out.push(c),
            '.' if !dotted || dots => {
                out.push('.');
                dotted = true;
            }
            '/' => out.push('/'),
            c if c.is_alphanumeric() => {
                out.extend(begins.then_some('_'));
                out.extend(c.to_lowercase());
            }
            _ => out.push('_'),
        }
    }
    out
}

/// Whether a character has a meaning in patterns.
fn is_wild(c: char) -> bool {
    matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | ',' | '\\')
}

/// Returns up to `limit` candidates similar to `name`, best first.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>, limit: usize) -> Vec<&'a str> {
    // A name of a megabyte is not a typo.
    let wanted: String = fold(name).chars().take(200).collect();
    let mut scored: Vec<(f64, &str)> = candidates
        .map(|candidate| {
            let folded = fold(candidate);
            let own = folded.split_once('_').map_or(folded.as_str(), |(_, own)| own);
            let mut near =
                strsim::jaro_winkler(&wanted, &folded).max(strsim::jaro_winkler(&wanted, own) * 0.99);
            // Jaro's window vanishes on very short names, so one typo counts as near there.
            if wanted.len() <= 5 && strsim::damerau_levenshtein(&wanted, own) <= 1 {
                near = near.max(0.8);
            }
            let inside = wanted.len() >= 3 && folded.contains(&wanted);
            (if inside { near.max(0.9) } else { near }, candidate)
        })
        .filter(|(score, _)| *score >= 0.75)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    scored.into_iter().take(limit).map(|(_, candidate)| candidate).collect()
}

/// Returns up to `limit` candidates similar to `name`; if there are none, those that spell out an
/// abbreviation, or that abbreviate it: `k8s` for `kubernetes`.
pub fn nearest_in_meaning<'a>(
    name: &str,
    candidates: impl Iterator<Item = &'a str>,
    limit: usize,
) -> Vec<&'a str> {
    let candidates: Vec<&str> = candidates.collect();
    let near = nearest(name, candidates.iter().copied(), limit);
    if !near.is_empty() {
        return near;
    }
    let spelled = |name: &str| -> Vec<String> {
        let name: String = name.chars().take(MAX_WIRE).collect();
        words(&name).into_iter().map(|word| search::abbreviation(&word).map_or(word, str::to_owned)).collect()
    };
    let wanted = spelled(name);
    let is_near = |other: &&str| {
        let other = spelled(other);
        !other.is_empty()
            && (other.iter().all(|word| wanted.contains(word))
                || wanted.iter().all(|word| other.contains(word)))
    };
    if wanted.is_empty() { Vec::new() } else { candidates.into_iter().filter(is_near).take(limit).collect() }
}

/// Splits a name into server and tool at its first separator (`.`, `:`, `/` or `__`), if it has one.
pub fn split_given(given: &str) -> Option<(&str, &str)> {
    let (at, length) = match (given.find("__"), given.find(['.', ':', '/'])) {
        (Some(long), Some(short)) if short < long => (short, 1),
        (Some(long), _) => (long, 2),
        (None, Some(short)) => (short, 1),
        (None, None) => return None,
    };
    Some((&given[..at], &given[at + length..]))
}

/// Resolves the name of a meta-tool in any case and with any separators.
pub fn meta_tool(name: &str) -> Option<&'static str> {
    let name = name.trim();
    let own = without_other_prefix(name).unwrap_or(name);
    let own = without_client_prefix(own).unwrap_or(own);
    // No spelling of a meta-tool's name is longer.
    if own.len() > MAX_WIRE {
        return None;
    }
    let plain = fold(own).replace('_', "");
    let plain = plain.strip_prefix("nonet").unwrap_or(&plain);
    META_TOOLS.into_iter().find(|meta_tool| meta_tool.replace('_', "") == plain)
}

/// Separators between the parts of a name, and before a name that a model has cut from a longer one.
const SEPARATORS: [char; 5] = ['_', '.', ':', '/', ' '];
/// The maximum number of client prefixes on a name.
const MOST_PREFIXES: usize = 4;

/// The names of servers, by the spellings that a name may begin with. A server's tool never takes a name that
/// begins with another server's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces(HashMap<String, Vec<Arc<str>>>);

impl Namespaces {
    /// Returns the namespaces of these servers and of Nonet itself.
    pub fn new<'a>(servers: impl IntoIterator<Item = &'a str>) -> Self {
        let mut spelled: HashMap<String, Vec<Arc<str>>> = HashMap::new();
        for server in servers.into_iter().chain(RESERVED) {
            let known = spelled.entry(fold(server)).or_default();
            if !known.iter().any(|known| **known == *server) {
                known.push(server.into());
            }
        }
        Self(spelled)
    }

    /// Returns the servers that a name gives before a separator: `good` for `good.echo`, `Good/echo` and
    /// `mcp__nonet__good__echo`. Returns several if their names differ only in punctuation and none matches
    /// exactly; empty if the name gives no server.
    pub fn named(&self, given: &str) -> &[Arc<str>] {
        let mut rest = given.trim();
        // Prefixes may be nested, up to a limit.
        for _ in 0..MOST_PREFIXES {
            let found = self.behind_prefix(rest, MOST_PREFIXES);
            if !found.is_empty() {
                return found;
            }
            // `nonet.good.echo`.
            rest = without_client_prefix(rest).unwrap_or(rest).trim_start_matches(SEPARATORS);
            match split_given(rest).filter(|(first, _)| fold(first) == "nonet") {
                Some((_, beyond)) => rest = beyond,
                None => break,
            }
        }
        &[]
    }

    /// Returns the servers that a name gives after a client prefix, else in the name as it is.
    fn behind_prefix(&self, given: &str, most: usize) -> &[Arc<str>] {
        let given = given.trim_start_matches(SEPARATORS);
        let inner = without_client_prefix(given).filter(|_| most > 0);
        let found = inner.map_or(&[][..], |inner| self.behind_prefix(inner, most - 1));
        if found.is_empty() { self.named_at_once(given) } else { found }
    }

    fn named_at_once(&self, given: &str) -> &[Arc<str>] {
        let Some((server, _)) = split_given(given) else { return &[] };
        if server.len() > MAX_SERVER * 4 {
            return &[];
        }
        let Some(known) = self.0.get(fold(server).trim_matches('_')) else { return &[] };
        let exact = known.iter().position(|known| **known == *server);
        exact.map_or(&known[..], |at| &known[at..=at])
    }

    /// Returns a name without what another client puts before it, unless it begins with the name of a server.
    pub fn behind_other_client<'a>(&self, given: &'a str) -> Option<&'a str> {
        let inner = without_other_prefix(given.trim())?;
        self.implied(&fold(given)).next().is_none().then_some(inner)
    }

    /// Returns the servers spelled like this.
    pub fn spelled(&self, server: &str) -> &[Arc<str>] {
        self.0.get(&fold(server)).map_or(&[], Vec::as_slice)
    }

    /// Returns the servers that a folded name may give, whatever the original separators: `good` and
    /// `good_one` for `good_one_echo`.
    pub fn implied<'a>(&'a self, folded: &'a str) -> impl Iterator<Item = &'a Arc<str>> {
        let folded = folded.trim_start_matches('_');
        let inside = folded.match_indices('_').map(|(at, _)| &folded[..at]);
        inside.take_while(|part| part.len() <= MAX_SERVER).filter_map(|part| self.0.get(part)).flatten()
    }
}

/// Returns the full names of up to `limit` tools similar to `given`, best first. `tools` are (server, own
/// name, full name). A two-part name must be near in both parts, or exact in the second; no suggestion is
/// better than a far-fetched one.
pub fn nearest_tools<'a>(
    given: &str,
    tools: impl Iterator<Item = (&'a str, &'a str, &'a str)>,
    limit: usize,
) -> Vec<&'a str> {
    let given: String = given.chars().take(200).collect();
    let parts = split_given(&given).map(|(server, tool)| (fold(server), fold(tool)));
    let whole = fold(&given);
    let mut scored: Vec<(f64, &str)> = tools
        .filter_map(|(server, tool, full)| {
            let (server, tool) = (fold(server), fold(tool));
            let score = match &parts {
                Some((given_server, given_tool)) => {
                    let (servers, mut tools) = (likeness(given_server, &server), likeness(given_tool, &tool));
                    // If the server exists, one of its tools is meant.
                    let letters = strsim::jaro_winkler(given_tool, &tool);
                    let short = given_tool.len() <= 5 && given_tool.chars().next() == tool.chars().next();
                    let few = || strsim::damerau_levenshtein(given_tool, &tool) <= 2;
                    if *given_server == server && (letters >= SIMILAR || short && few()) {
                        tools = tools.max(letters).max(SIMILAR);
                    }
                    match (servers >= NEAR, tools) {
                        (true, tools) if tools >= NEAR => (servers + 2.0 * tools) / 3.0,
                        (false, tools) if tools >= RIGHT => 0.6 * tools,
                        _ => return None,
                    }
                }
                None => likeness(&whole, &tool).max(likeness(&whole, &fold(full))),
            };
            (score >= 0.6 * RIGHT).then_some((score, full))
        })
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    scored.into_iter().take(limit).map(|(_, full)| full).collect()
}

/// Names with at least this likeness may be typos of each other; from `RIGHT` on they surely are.
const NEAR: f64 = 0.65;
const RIGHT: f64 = 0.9;
/// The minimum Jaro-Winkler similarity for two tools of one server to be near.
const SIMILAR: f64 = 0.8;

/// Returns how alike two folded names are, from 0 to 1: by edit distance, or because one has all words of the
/// other.
fn likeness(a: &str, b: &str) -> f64 {
    let slips = strsim::normalized_damerau_levenshtein(a, b);
    let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
    let words: Vec<&str> = long.split('_').collect();
    let all_in = short.len() >= 3 && short.split('_').all(|word| words.contains(&word));
    // A shared prefix is weaker evidence than edit distance, and hardly any for short names.
    let begins = if slips >= 0.5 && short.len() > 5 { strsim::jaro_winkler(a, b) - 0.15 } else { 0.0 };
    slips.max(begins).max(if all_in { 0.85 } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_names_are_checked_and_the_nearest_is_named() {
        for good in ["files", "my-files", "a_b", "a1", "0"] {
            assert_eq!(ServerName::new(good).unwrap().as_str(), good);
        }
        for (bad, nearest) in [
            ("", "server"),
            ("Files", "files"),
            ("my files", "my-files"),
            ("a__b", "a_b"),
            ("a.b", "a-b"),
            ("-a-", "a"),
            ("gateway", "gateway-server"),
            ("日本", "server"),
            ("x".repeat(40).as_str(), "x".repeat(32).as_str()),
        ] {
            let fault = ServerName::new(bad).unwrap_err();
            assert_eq!(fault.nearest, nearest, "{bad}");
            assert!(ServerName::new(&fault.nearest).is_ok());
        }
    }

    #[test]
    fn spellings_of_one_name_are_the_same() {
        let is_same = |name: &str, spelling: &str| Spellings::of(name).any(|one| one == spelling);
        for name in [
            "s.delete_all",
            "s.Delete_All",
            "s.deleteAll",
            "s.DeleteAll",
            "s.delete-all",
            "s.delete.all",
            "s.delete all",
            "s.delete/all",
            "s.delete:all",
            "s.DELETE_ALL",
            "s.__delete__all__",
            "s.ｄｅｌｅｔｅ＿ａｌｌ",
            "s.dеlеtе_аll",
            "s.del\u{200b}ete_all",
            "s.d\u{301}elete_all",
            "s.𝐝𝐞𝐥𝐞𝐭𝐞_all",
        ] {
            assert!(is_same(name, "s.delete_all"), "{name:?}: {:?}", Spellings::of(name));
        }
        assert_eq!(Spellings::of("my-s.delete_all"), Spellings::of("my_s.delete_all"));
        assert_eq!(Spellings::of("s.delete_all").0.len(), 1);
        for other in ["s.deleted_all", "s.undelete_all", "t.delete_all", "s.x.delete_all"] {
            assert!(!is_same(other, "s.delete_all"), "{other:?}");
        }
        assert!(Spellings::of_own("Delete.All").any(|one| one == "delete_all"));
        assert!(Spellings::of("s.GitHub_x").any(|one| one == "s.github_x"));
        assert!(
            is_same("resources.docs/file:///A", "resources.docs/file_///a"),
            "{:?}",
            Spellings::of("resources.docs/file:///A")
        );
        assert!(Spellings::of(&"x".repeat(1_000_000)).any(|one| one.len() == MOST_SPELLED));
    }

    #[test]
    fn patterns_are_spelled_like_names() {
        let check =
            |pattern: &str, expected: &[&str]| assert_eq!(pattern_spellings(pattern), expected, "{pattern}");
        check("*.delete_*", &["*.delete_*"]);
        check("*.Delete-*", &["*.delete_*"]);
        check("s.deleteAll", &["s.deleteall", "s.delete_all"]);
        check("s.delete.all", &["s.delete.all", "s.delete_all"]);
        check("{files,Mail}.{drop,RM}_[A-Z]?", &["{files,mail}.{drop,rm}_[a-z]?"]);
        check("s.[!A-Z]*", &["s.[!A-Z]*"]);
        check("s.[]A]x[", &["s.[]a]x["]);
        check(r"s.a\*\-b\", &[r"s.a\*_b\\"]);
        check("s.＊", &[r"s.\*"]);
        check("resources.docs/File:*", &["resources.docs/file_*"]);
    }

    #[test]
    fn wire_names_are_clean_cut_and_hashed() {
        let wire = WireName::new("files", "read_file");
        assert_eq!(wire.plain, "files__read_file");
        assert_eq!(WireName::new("s", "a b/c.d").plain, "s__a_b_c_d");
        let long = WireName::new("server", &"x".repeat(100));
        assert_eq!(long.plain.len(), MAX_WIRE);
        assert_eq!(long.plain, long.hashed);
        assert_ne!(WireName::new("s", "a b").hashed, WireName::new("s", "a_b").hashed);
    }

    #[test]
    fn a_name_names_a_server_in_any_spelling() {
        let names = Namespaces::new(["good", "git", "git_hub", "web-search", "web_search", "mcp"]);
        let check = |given: &str, expected: &[&str]| {
            let named: Vec<&str> = names.named(given).iter().map(|server| &**server).collect();
            assert_eq!(named, expected, "{given}");
        };
        for given in [
            "good.echo",
            "good:echo",
            "good/echo",
            "Good.Echo",
            "good__echo",
            " GOOD__echo ",
            "mcp__nonet__good__echo",
            "mcp__nonet__mcp__nonet__good.echo",
            "mcp_nonet_good/echo",
            "nonet.good.echo",
            "/good/echo",
            "good_.echo",
            "good :echo",
            "good.",
        ] {
            check(given, &["good"]);
        }
        check("git.hub.create_issue", &["git"]);
        check("Git-Hub.create_issue", &["git_hub"]);
        check("web-search.find", &["web-search"]);
        check("Web_Search.find", &["web-search", "web_search"]);
        check("mcp__nonet__other", &["mcp"]);
        check("skills/good", &["skills"]);
        for given in ["echo", "good_echo", "goods.echo", "", "__", "nonet.", "mcp__nonet__"] {
            check(given, if given.starts_with("mcp") { &["mcp"] } else { &[] });
        }
        check(&"mcp__nonet__".repeat(100_000), &["mcp"]);
        for given in ["_".repeat(100_000), "nonet.".repeat(100_000)] {
            check(&given, &[]);
        }
        let implied =
            |folded: &str| names.implied(folded).map(|server| server.to_string()).collect::<Vec<_>>();
        assert_eq!(implied("git_hub_create"), ["git", "git_hub"]);
        assert_eq!(implied("good"), Vec::<String>::new());
    }

    #[test]
    fn what_other_clients_put_before_a_name_goes() {
        let names = Namespaces::new(["files", "functions"]);
        let check = |given: &str, expected: Option<&str>| {
            assert_eq!(names.behind_other_client(given), expected, "{given}")
        };
        check("mcp__files__read", Some("files__read"));
        check("mcp_files_read", Some("files_read"));
        check("default_api.files.read", Some("files.read"));
        check("functions.files.read", None);
        check("files.read", None);
        check("mcpfiles.read", None);
        check("mcp__", None);
        let names = Namespaces::new(["mcp_files", "files"]);
        assert_eq!(names.behind_other_client("mcp_files_read"), None);
        assert_eq!(meta_tool("functions.search_tools"), Some("search_tools"));
        assert_eq!(meta_tool("functions.mcp__nonet__search_tools"), Some("search_tools"));
    }

    #[test]
    fn an_abbreviation_is_near_what_it_means() {
        let known = ["k8s", "files", "pg-main", "mail"];
        let check = |given: &str, expected: &[&str]| {
            assert_eq!(nearest_in_meaning(given, known.into_iter(), 2), expected, "{given}")
        };
        check("kubernetes", &["k8s"]);
        check("postgres", &["pg-main"]);
        check("flies", &["files"]);
        check("zebra", &[]);
        check("", &[]);
    }

    #[test]
    fn folding_makes_one_of_what_models_write() {
        for same in ["git.git_status", "git__git_status", "Git:Git-Status", "git/git_status"] {
            assert_eq!(fold(same), "git_git_status");
        }
    }

    #[test]
    fn identifiers_are_split_at_case_and_punctuation() {
        for (identifier, expected) in [
            ("listOpenIssues", "list open issues"),
            ("API-get-user", "api get user"),
            ("readHTMLFile", "read html file"),
            ("getS3Object", "get s3 object"),
            ("  a__b.c ", "a b c"),
            ("日本", "日本"),
            ("", ""),
        ] {
            assert_eq!(words(identifier).join(" "), expected, "{identifier}");
        }
    }

    #[test]
    fn nearest_finds_typos_and_bare_names() {
        let names = ["git.git_status", "files.read_file", "files.write_file"];
        assert_eq!(nearest("git.git_statsu", names.into_iter(), 1), ["git.git_status"]);
        assert_eq!(nearest("raed_file", names.into_iter(), 1), ["files.read_file"]);
        assert!(nearest("zzzz", names.into_iter(), 3).is_empty());
    }

    #[test]
    fn the_nearest_tools_are_near() {
        let tools = [
            ("git", "git_status"),
            ("git", "git_log"),
            ("files", "read_file"),
            ("files", "write_file"),
            ("notes", "note"),
            ("memory", "open_nodes"),
        ];
        let full: Vec<String> = tools.iter().map(|(server, tool)| format!("{server}.{tool}")).collect();
        let check = |given: &str, expected: &[&str]| {
            let all = tools.iter().zip(&full).map(|((server, tool), full)| (*server, *tool, full.as_str()));
            assert_eq!(nearest_tools(given, all, 2), expected, "{given}");
        };
        check("git.git_statsu", &["git.git_status"]);
        check("git.status", &["git.git_status"]);
        check("file.read_file", &["files.read_file"]);
        check("raed_file", &["files.read_file", "files.write_file"]);
        check("github.git_status", &["git.git_status"]);
        check("files.readfile", &["files.read_file"]);
        check("git.gti_status", &["git.git_status"]);
        check("memory.open_node", &["memory.open_nodes"]);
        check("git.git_lgo", &["git.git_log"]);
        check("notes.ntoe", &["notes.note"]);
        check("nope.nope", &[]);
        check("weather.forecast", &[]);
        check("files.teleport", &[]);
        check("zzzz", &[]);
    }
}
