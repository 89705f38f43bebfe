//! The small values of a config: times, secrets, globs. Each defines its text form and its JSON Schema, so
//! that a bad value is a fault with a line long before it is used.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use nonet_base::text::hex;
use nonet_text::name::{self, Spellings};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::schema::with_keys;

/// A text that is never shown: `Debug` and `Display` print `***`.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text that must stay hidden.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text itself, for the only place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A bearer token. Only its digest is kept: nothing can show it, and comparing two tells nothing of either by
/// its time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "String")]
pub struct BearerToken([u8; 32]);

impl BearerToken {
    /// The minimum length, against guessing.
    const SHORTEST: usize = 16;

    /// Hashes a token.
    pub fn new(text: &str) -> Self {
        Self(Sha256::digest(text).into())
    }

    /// Returns a name for the token in the store, which does not reveal the token.
    pub fn alias(&self) -> String {
        format!("token-{}", hex(&Sha256::digest(self.0)[..8]))
    }

    /// Checks that a text can be a token: long enough, and of characters that are valid in a header.
    pub(super) fn check(text: &str) -> Result<(), String> {
        if text.chars().count() < Self::SHORTEST {
            return Err(format!(
                "must have at least {} characters; generate one with `openssl rand -hex 32`",
                Self::SHORTEST
            ));
        }
        match text.chars().all(|c| c.is_ascii_graphic()) {
            true => Ok(()),
            false => Err("contains white space or non-ASCII characters".into()),
        }
    }
}

impl From<String> for BearerToken {
    fn from(text: String) -> Self {
        Self::new(&text)
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl JsonSchema for BearerToken {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Token".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "bearer-token", "examples": ["${READER_TOKEN}"] })
    }
}

/// Patterns on a name: `*`, `?`, `[a-z]` and `{a,b}`. The default has none and matches nothing.
#[derive(Clone, Default, Deserialize)]
#[serde(try_from = "Vec<String>")]
pub struct Globs {
    patterns: Vec<String>,
    set: GlobSet,
    /// The patterns as they match spellings, where they differ.
    spelled: Option<Box<GlobSet>>,
}

impl Globs {
    /// Compiles the patterns.
    pub fn new(patterns: Vec<String>) -> Result<Self, globset::Error> {
        let set = compiled(&patterns)?;
        let spelled: Vec<String> =
            patterns.iter().flat_map(|pattern| name::pattern_spellings(pattern)).collect();
        let spelled = match spelled == patterns {
            true => None,
            false => compiled(&spelled).ok().map(Box::new),
        };
        Ok(Self { patterns, set, spelled })
    }

    /// Whether any pattern matches the whole name or one of its spellings. For rules that forbid something or
    /// ask.
    pub fn catches(&self, name: &str, spellings: &Spellings) -> bool {
        let spelled = self.spelled.as_deref().unwrap_or(&self.set);
        self.matches(name) || !self.is_empty() && spellings.any(|spelling| spelled.is_match(spelling))
    }

    /// Whether any pattern on names without a server matches one or one of its spellings.
    pub fn catches_own(&self, name: &str) -> bool {
        !self.is_empty() && self.catches(name, &Spellings::of_own(name))
    }

    /// Whether a name is among the patterns as it is.
    pub fn names(&self, name: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern == name)
    }

    /// Whether any pattern matches the whole name.
    pub fn matches(&self, name: &str) -> bool {
        self.set.is_match(name)
    }

    /// Whether there is no pattern at all.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Returns the patterns as written.
    pub fn patterns(&self) -> &[String] {
        &self.patterns
    }

    /// Returns these patterns and more.
    pub fn with(&self, more: &Self) -> Self {
        let missing = more.patterns.iter().filter(|pattern| !self.patterns.contains(pattern));
        let patterns: Vec<String> = self.patterns.iter().chain(missing).cloned().collect();
        Self::new(patterns).expect("each of them was compiled before")
    }
}

fn compiled(patterns: &[String]) -> Result<GlobSet, globset::Error> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(GlobBuilder::new(pattern).backslash_escape(true).build()?);
    }
    set.build()
}

impl TryFrom<Vec<String>> for Globs {
    type Error = globset::Error;
    fn try_from(patterns: Vec<String>) -> Result<Self, globset::Error> {
        Self::new(patterns)
    }
}

impl fmt::Debug for Globs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.patterns).finish()
    }
}

impl PartialEq for Globs {
    fn eq(&self, other: &Self) -> bool {
        self.patterns == other.patterns
    }
}

impl Serialize for Globs {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.patterns.serialize(serializer)
    }
}

impl JsonSchema for Globs {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Globs".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "array",
            "items": { "type": "string", "format": "glob", "examples": ["read_*"] },
            "examples": [["read_*", "list_*"]],
        })
    }
}

/// Numbers from -10 to 10 for names, by pattern. Of several patterns that match a name the longest holds.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(try_from = "BTreeMap<String, f32>")]
pub struct Priorities {
    /// The longest pattern first.
    globs: Globs,
    numbers: Vec<f32>,
}

impl Priorities {
    /// Returns the number for a name, if a pattern matches it.
    pub fn of(&self, name: &str) -> Option<f32> {
        let first = self.globs.set.matches(name).into_iter().min()?;
        self.numbers.get(first).copied()
    }

    /// Returns the patterns, longest first.
    pub fn patterns(&self) -> &[String] {
        self.globs.patterns()
    }
}

impl TryFrom<BTreeMap<String, f32>> for Priorities {
    type Error = globset::Error;
    fn try_from(written: BTreeMap<String, f32>) -> Result<Self, globset::Error> {
        let mut all: Vec<(String, f32)> = written.into_iter().collect();
        all.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.chars().count()));
        let (patterns, numbers) = all.into_iter().unzip();
        Ok(Self { globs: Globs::new(patterns)?, numbers })
    }
}

impl fmt::Debug for Priorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.globs.patterns.iter().zip(&self.numbers)).finish()
    }
}

impl JsonSchema for Priorities {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Priorities".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let number = json_schema!({ "type": "number", "minimum": -10, "maximum": 10, "examples": [2] });
        with_keys("glob", number, serde_json::json!({ "files.*": 2, "legacy.*": -1 }))
    }
}

/// A human-readable time: `"45s"`, `"1m 30s"`. For `#[serde(with)]` and `#[schemars(schema_with)]`.
pub(super) mod time {
    use std::time::Duration;

    use schemars::{Schema, SchemaGenerator, json_schema};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// The longest time accepted: 30 days. A longer one could overflow a clock.
    pub const LONGEST: Duration = Duration::from_secs(30 * 24 * 60 * 60);

    /// Parses a time, which must be positive and at most [`LONGEST`].
    pub(crate) fn parse(text: &str) -> Result<Duration, &'static str> {
        match humantime::parse_duration(text) {
            Err(_) => Err("must be a time with a unit"),
            Ok(Duration::ZERO) => Err("must be greater than zero"),
            Ok(time) if time > LONGEST => Err("must be at most 30 days"),
            Ok(time) => Ok(time),
        }
    }

    pub(crate) fn schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "time-span", "examples": ["45s"] })
    }

    pub(crate) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_duration(*time))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }

    /// An optional time.
    pub(crate) mod option {
        use super::*;

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<Option<Duration>, D::Error> {
            super::deserialize(deserializer).map(Some)
        }
    }
}
