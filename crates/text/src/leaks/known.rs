//! Secrets known by their value, in every encoding that may leak.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    ops::Range,
    sync::Arc,
};

use aho_corasick::{AhoCorasick, MatchKind};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use nonet_base::text::{clean, hex};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use serde_json::{Map, Value};

use super::MASK;
use crate::secrets::{MIN_TOKEN, is_harmless};

/// The shortest secret and the shortest encoding that are searched for, in bytes: shorter ones are words.
const SHORTEST: usize = 8;

/// Secrets by their value, each with its owners.
#[derive(Default)]
pub struct KnownSecrets {
    automaton: Option<AhoCorasick>,
    /// The owners, by the number of the pattern.
    owners: Vec<Arc<[Arc<str>]>>,
}

impl fmt::Debug for KnownSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets and their encodings", self.owners.len())
    }
}

/// Returns whether a value is distinguishable from words: long enough, and not of one kind of character.
pub fn is_strong(value: &str) -> bool {
    let kinds: [fn(char) -> bool; 4] =
        [|c| c.is_lowercase(), |c| c.is_uppercase(), |c| c.is_ascii_digit(), |c| !c.is_alphanumeric()];
    let count = kinds.iter().filter(|is| value.contains(**is)).count();
    value.len() >= SHORTEST && (count >= 2 || value.len() >= MIN_TOKEN) && !is_harmless(value, "PASSWORD")
}

impl KnownSecrets {
    /// Takes the values with their owners. A value that is not strong is ignored.
    pub fn new(secrets: impl IntoIterator<Item = (Arc<str>, String)>) -> Self {
        let mut owners: BTreeMap<String, BTreeSet<Arc<str>>> = BTreeMap::new();
        for (owner, value) in secrets {
            let value = value.trim();
            if is_strong(value) {
                owners.entry(value.into()).or_default().insert(owner);
            }
        }
        let mut patterns: BTreeMap<Vec<u8>, BTreeSet<Arc<str>>> = BTreeMap::new();
        for (value, of) in owners {
            for encoded in encodings(&value) {
                patterns.entry(encoded).or_default().extend(of.iter().cloned());
            }
        }
        if patterns.is_empty() {
            return Self::default();
        }
        let automaton =
            AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(patterns.keys()).ok();
        let owners = patterns.into_values().map(|of| of.into_iter().collect()).collect();
        Self { automaton, owners }
    }

    /// Returns the secrets in a text, in order.
    pub fn find<'a>(
        &'a self,
        text: &'a str,
    ) -> impl Iterator<Item = (Range<usize>, Arc<[Arc<str>]>)> + use<'a> {
        let found = self.automaton.iter().flat_map(move |automaton| automaton.find_iter(text));
        found.map(|hit| (hit.range(), self.owners[hit.pattern().as_usize()].clone()))
    }

    /// Returns a text with the secrets masked. Hidden characters inside of a secret do not hide it: such a
    /// text is returned without its hidden characters.
    pub fn mask<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let Some(automaton) = &self.automaton else { return Cow::Borrowed(text) };
        let masked = |text: &str| {
            automaton
                .is_match(text)
                .then(|| automaton.replace_all(text, &vec![MASK; automaton.patterns_len()]))
        };
        let as_written = masked(text);
        let shown = as_written.as_deref().unwrap_or(text);
        match clean(shown) {
            Cow::Owned(clean) => masked(&clean).or(as_written),
            Cow::Borrowed(_) => as_written,
        }
        .map_or(Cow::Borrowed(text), Cow::Owned)
    }

    /// Returns a text with the secrets masked; `None` if it has none.
    fn masked(&self, text: &str) -> Option<String> {
        match self.mask(text) {
            Cow::Owned(masked) => Some(masked),
            Cow::Borrowed(_) => None,
        }
    }

    /// Returns whether a text of a value has a secret, object keys included.
    pub fn is_in(&self, value: &Value) -> bool {
        self.automaton.is_some()
            && match value {
                Value::String(text) => self.masked(text).is_some(),
                Value::Array(items) => items.iter().any(|item| self.is_in(item)),
                Value::Object(fields) => {
                    fields.iter().any(|(key, item)| self.masked(key).is_some() || self.is_in(item))
                }
                Value::Null | Value::Bool(_) | Value::Number(_) => false,
            }
    }

    /// Masks the secrets in every text of a value, object keys included. Returns whether there were any.
    pub fn mask_in(&self, value: &mut Value) -> bool {
        if self.automaton.is_none() {
            return false;
        }
        match value {
            Value::String(text) => self.mask_text(text),
            // No short circuit: all of them are masked.
            Value::Array(items) => items.iter_mut().fold(false, |any, item| self.mask_in(item) | any),
            Value::Object(fields) => {
                let any = fields.values_mut().fold(false, |any, item| self.mask_in(item) | any);
                rename_keys(fields, |key| self.masked(key)) | any
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }

    /// Masks the secrets of a definition, except in the fields `names`, by which others call it. Returns
    /// whether there were any.
    pub fn mask_definition(&self, definition: &mut Value, names: &[&str]) -> bool {
        let Value::Object(fields) = definition else { return self.mask_in(definition) };
        let texts = fields.iter_mut().filter(|(key, _)| !names.contains(&key.as_str()));
        texts.fold(false, |any, (_, item)| self.mask_in(item) | any)
    }

    /// Masks the secrets of a text in place. Returns whether there were any.
    pub fn mask_text(&self, text: &mut String) -> bool {
        self.masked(text).map(|masked| *text = masked).is_some()
    }
}

/// Gives the keys of an object the names that `renamed` returns. A name that is taken gets a number, so that
/// no field is lost. Returns whether any key has another name now.
pub fn rename_keys(fields: &mut Map<String, Value>, renamed: impl Fn(&str) -> Option<String>) -> bool {
    if fields.keys().all(|key| renamed(key).is_none()) {
        return false;
    }
    let mut uses: HashMap<String, usize> = HashMap::new();
    for (key, item) in std::mem::take(fields) {
        let mut name = renamed(&key).unwrap_or(key);
        while fields.contains_key(&name) {
            let uses = uses.entry(name.clone()).or_insert(1);
            *uses += 1;
            name = format!("{name} ({uses})");
        }
        fields.insert(name, item);
    }
    true
}

/// Returns the forms in which a value may be written: plain, in a JSON text, percent-encoded, hexadecimal,
/// and Base64.
fn encodings(value: &str) -> BTreeSet<Vec<u8>> {
    let mut all = BTreeSet::from([value.as_bytes().to_vec()]);
    let json = serde_json::Value::from(value).to_string();
    all.insert(json.trim_matches('"').as_bytes().to_vec());
    let percent = utf8_percent_encode(value, NON_ALPHANUMERIC).to_string();
    // Characters that most libraries leave unescaped.
    let usual = ["%2D", "%5F", "%2E", "%7E"].into_iter().zip(["-", "_", ".", "~"]);
    all.insert(usual.fold(percent.clone(), |text, (code, plain)| text.replace(code, plain)).into_bytes());
    all.insert(percent.into_bytes());
    let digits = hex(value.as_bytes());
    all.insert(digits.to_ascii_uppercase().into_bytes());
    all.insert(digits.into_bytes());
    for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
        // Preceding text shifts the letters: there are three ways, whose first and last letters depend on the
        // surroundings.
        for shift in 0..3 {
            let shifted = [vec![0; shift], value.as_bytes().to_vec()].concat();
            let encoded = engine.encode(&shifted);
            let (from, to) = ((shift * 8).div_ceil(6), shifted.len() * 8 / 6);
            all.extend(encoded.get(from..to).map(|stable| stable.as_bytes().to_vec()));
        }
    }
    all.retain(|encoded| encoded.len() >= SHORTEST);
    all
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::{STANDARD, URL_SAFE};
    use serde_json::json;

    use super::*;

    const SECRET: &str = "pa\"ss?w>rd/1ß";

    fn known() -> KnownSecrets {
        KnownSecrets::new([("a".into(), SECRET.to_string()), ("b".into(), SECRET.to_string())])
    }

    #[test]
    fn a_secret_is_found_in_every_encoding() {
        let known = known();
        let check = |text: &str| {
            let found: Vec<_> = known.find(text).collect();
            assert_eq!(found.len(), 1, "{text}");
            assert_eq!(found[0].1.iter().map(|of| &**of).collect::<Vec<_>>(), ["a", "b"]);
            assert!(known.mask(text).contains(MASK));
        };
        check(SECRET);
        check(&format!("before {SECRET}, after"));
        check(&serde_json::json!({ "key": SECRET }).to_string());
        check(&utf8_percent_encode(SECRET, NON_ALPHANUMERIC).to_string());
        check("pa%22ss%3Fw%3Erd%2F1%C3%9F");
        check(&hex(SECRET.as_bytes()));
        check(&hex(SECRET.as_bytes()).to_uppercase());
        for before in ["", "a", "ab", "abc", "user:"] {
            for after in ["", "z", "zz"] {
                let text = format!("{before}{SECRET}{after}");
                check(&STANDARD.encode(&text));
                check(&URL_SAFE.encode(&text));
            }
        }
        assert_eq!(known.find("pa\"ss?w>rd/2ß").count(), 0);
        assert_eq!(KnownSecrets::default().find(SECRET).count(), 0);
    }

    #[test]
    fn every_text_of_a_value_is_masked_and_no_field_is_lost() {
        let known = KnownSecrets::new([("a".into(), "k3y-0f-a-server".to_string())]);
        let hidden = "k3y-0f\u{200b}-a-server";
        let mut value = json!({
            "k3y-0f-a-server": 1, "azN5LTBmLWEtc2VydmVy": 2, hidden: 3, "rest": ["it is k3y-0f-a-server", 4, null],
        });
        assert!(known.mask_in(&mut value));
        assert_eq!(value, json!({ "***": 1, "*** (2)": 2, "*** (3)": 3, "rest": ["it is ***", 4, null] }));
        assert!(!known.mask_in(&mut value));
        let mut tool = json!({ "name": "k3y-0f-a-server", "description": format!("Uses {hidden}.\u{200b}") });
        assert!(known.mask_definition(&mut tool, &["name"]));
        assert_eq!(tool, json!({ "name": "k3y-0f-a-server", "description": "Uses ***." }));
        assert_eq!(known.mask("no\u{200b}thing"), "no\u{200b}thing");
    }

    #[test]
    fn a_word_is_no_secret() {
        let check = |value: &str, expected: bool| assert_eq!(is_strong(value), expected, "{value}");
        check("postgres", false);
        check("changeme", false);
        check("12345678", false);
        check("a1", false);
        check("/home/ann/notes", false);
        check("hunter22", true);
        check("s3cr3t-kept", true);
        check("correcthorsebatterystaple", true);
    }
}
