//! Converts OpenAPI schemas to JSON Schema 2020-12. Documentation-only keywords are dropped, keywords unknown
//! to JSON Schema are translated, and a tool's schema includes its referenced parts, as far as its size
//! allows.
//!
//! A component is converted once. A tool's schema is assembled from such parts by their sizes, so thousands
//! of operations over the same components cost only what their final schemas do.

mod convert;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    rc::Rc,
};

use nonet_base::json::set_member;
use regex::RegexBuilder;
use serde_json::{Map, Value, json};

use self::convert::stub;
pub(super) use self::convert::{Converter, examples_of};
use super::document::ApiDocument;

/// The longest description of a param or property, in characters.
const MAX_DESCRIPTION: usize = 600;
/// The minimum length of a param's description, even where nothing else is described, in characters.
const SHORTEST: usize = 60;
/// The approximate maximum size of a default or example, in bytes.
const MAX_EXAMPLE: usize = 500;
/// The maximum number of a schema's examples.
const MAX_EXAMPLES: usize = 3;
/// Levels of detail: first everything, then less and less until the schema is small enough.
const DETAILS: [Detail; 7] = [
    Detail { depth: 24, values: 300, description: MAX_DESCRIPTION },
    Detail { depth: 24, values: 60, description: 120 },
    Detail { depth: 6, values: 30, description: 80 },
    Detail { depth: 4, values: 20, description: 60 },
    Detail { depth: 3, values: 10, description: 60 },
    Detail { depth: 2, values: 10, description: 40 },
    Detail { depth: 1, values: 5, description: 0 },
];
/// The approximate maximum size of a part, in bytes.
const MAX_PART: usize = 24 << 10;
/// The largest schema that is inlined at its references, even if there are several.
const SMALL: usize = 160;
/// The maximum nesting of inlined parts.
const MAX_INLINED: usize = 8;
/// The memory limit of a compiled pattern, in bytes.
const PATTERN_BYTES: usize = 256 << 10;

/// The level of detail of a schema.
#[derive(Clone, Copy, Debug)]
struct Detail {
    /// The maximum nesting.
    depth: usize,
    /// The maximum number of values of an enumeration. Longer ones are described by a few of their values.
    values: usize,
    /// The longest description, in characters.
    description: usize,
}

/// The direction that a schema describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SchemaSide {
    /// Data that is sent.
    Input,
    /// Data that comes back. Services do not follow their documents strictly, and clients may reject a result
    /// that does not match, so keywords that only restrict are dropped.
    Output,
}

/// The member of a converted schema that names the component it refers to; the other members are annotations
/// next to the reference. A document's own `$ref` may also be data, as in an example.
const REFERENCE: &str = "\u{0}reference";

/// Returns the component that a converted schema refers to, if it is a reference.
fn target_of(schema: &Map<String, Value>) -> Option<&str> {
    schema.get(REFERENCE)?.as_str()
}

/// Sets an annotation of a converted schema.
pub(super) fn annotate(schema: &mut Value, key: &str, annotation: impl Into<Value>) {
    if *schema == Value::Bool(true) {
        *schema = json!({});
    }
    set_member(schema, key, annotation);
}

/// Returns the approximate length of a schema's or value's JSON text.
fn bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|item| 1 + bytes(item)).sum::<usize>(),
        Value::Object(members) => {
            let own = members.iter().filter(|(name, _)| *name != REFERENCE);
            let own: usize = own.map(|(name, value)| name.len() + 4 + bytes(value)).sum();
            // A reference is as long as the text that replaces a part without room.
            own + target_of(members).map_or(2, |to| 55 + last_word(to).len())
        }
        Value::Number(_) => 6,
        Value::Null | Value::Bool(_) => 5,
    }
}

/// A converted schema and its references.
#[derive(Debug)]
pub(super) struct SchemaPart {
    pub schema: Value,
    bytes: usize,
    refs: Vec<Reference>,
}

impl SchemaPart {
    /// Returns whether it is as small as a reference to it.
    fn is_small(&self) -> bool {
        self.bytes <= SMALL && self.refs.is_empty()
    }
}

/// A reference to a part.
#[derive(Clone, Debug)]
struct Reference {
    to: Rc<str>,
    /// Whether it applies to the same value.
    same: bool,
    /// Whether it is below an optional member.
    optional: bool,
}

/// The schemas of a document.
pub(super) struct Schemas<'a> {
    pub document: &'a ApiDocument,
    /// By reference, side and first level of detail. `None`: not in the document.
    parts: HashMap<(Rc<str>, SchemaSide, usize), Option<Rc<SchemaPart>>>,
    patterns: HashMap<String, bool>,
}

impl<'a> Schemas<'a> {
    pub(crate) fn new(document: &'a ApiDocument) -> Self {
        Self { document, parts: HashMap::new(), patterns: HashMap::new() }
    }

    /// Converts what `build` produces, with less and less detail until it has at most `limit` bytes. `None`
    /// if it cannot be made small enough.
    pub(crate) fn converted(
        &mut self,
        side: SchemaSide,
        limit: usize,
        build: impl Fn(&mut Converter) -> Value,
    ) -> Option<SchemaPart> {
        self.converted_from(0, side, limit, build)
    }

    fn converted_from(
        &mut self,
        first: usize,
        side: SchemaSide,
        limit: usize,
        build: impl Fn(&mut Converter) -> Value,
    ) -> Option<SchemaPart> {
        DETAILS[first..].iter().find_map(|detail| {
            let mut converter = Converter {
                schemas: self,
                side,
                detail: *detail,
                bytes: 0,
                limit,
                refs: Vec::new(),
                optional: false,
            };
            let schema = build(&mut converter);
            let (mut refs, over) = (converter.refs, converter.bytes > limit);
            refs.sort_by_key(|reference| reference.optional);
            let bytes = bytes(&schema);
            (!over && bytes <= limit).then_some(SchemaPart { schema, bytes, refs })
        })
    }

    fn part(&mut self, reference: &Rc<str>, side: SchemaSide, first: usize) -> Option<Rc<SchemaPart>> {
        let key = (reference.clone(), side, first);
        if let Some(known) = self.parts.get(&key) {
            return known.clone();
        }
        let document = self.document;
        let part = document.target(reference).ok().map(|raw| {
            let part = self.converted_from(first, side, MAX_PART, |converter| converter.schema(raw, 0, true));
            Rc::new(part.unwrap_or_else(|| {
                let schema = stub(raw.get("type"), "");
                SchemaPart { bytes: bytes(&schema), schema, refs: Vec::new() }
            }))
        });
        self.parts.insert(key, part.clone());
        part
    }

    /// Returns a tool's complete schema: `root` and its references, nearest and required parts first, in at
    /// most about `limit` bytes. If not everything fits, descriptions are shortened to make room for more
    /// parts.
    pub(crate) fn whole(&mut self, root: &SchemaPart, side: SchemaSide, limit: usize) -> Map<String, Value> {
        let mut choice = self.choice(root, side, limit, 0);
        if choice.shortened > 0 {
            let terse = self.choice(root, side, limit, 1);
            if terse.shortened < choice.shortened || terse.chosen.len() > choice.chosen.len() {
                choice = terse;
            }
        }
        let mut writer = Writer {
            cut: circles(&choice.chosen),
            names: names(&choice.chosen),
            fates: choice.fates,
            uses: choice.uses,
            written: HashSet::new(),
            wanted: VecDeque::new(),
            from: None,
            inlined: 0,
        };
        let mut schema = match writer.write(&root.schema) {
            Value::Object(schema) => schema,
            _ => Map::new(),
        };
        let mut defs = Map::new();
        while let Some((to, part)) = writer.wanted.pop_front() {
            writer.from = Some(to.clone());
            writer.inlined = 0;
            let written = writer.write(&part.schema);
            defs.insert(writer.names[&to].clone(), written);
        }
        if !defs.is_empty() {
            schema.insert("$defs".into(), Value::Object(defs));
        }
        schema
    }

    /// Selects the parts of a tool's schema.
    fn choice(&mut self, root: &SchemaPart, side: SchemaSide, limit: usize, first: usize) -> Choice {
        let mut choice = Choice::default();
        let mut bytes = root.bytes;
        let mut next: VecDeque<Rc<str>> = choice.refer(&root.refs);
        while let Some(to) = next.pop_front() {
            if choice.fates.contains_key(&to) {
                continue;
            }
            let fate = match self.part(&to, side, first) {
                None => Fate::Missing,
                Some(part) if bytes + part.bytes > limit && !part.is_small() => {
                    choice.shortened += 1;
                    Fate::Shortened(part)
                }
                Some(part) => {
                    bytes += part.bytes;
                    next.extend(choice.refer(&part.refs));
                    choice.chosen.push((to.clone(), part.clone()));
                    Fate::Chosen(part)
                }
            };
            choice.fates.insert(to, fate);
        }
        choice
    }

    /// Returns whether a property belongs to the other side only.
    pub(crate) fn hides(&self, raw: &Value, side: SchemaSide) -> bool {
        let key = match side {
            SchemaSide::Input => "readOnly",
            SchemaSide::Output => "writeOnly",
        };
        let says = |raw: &Value| raw.get(key) == Some(&Value::Bool(true));
        says(raw) || self.document.resolved(raw).is_ok_and(says)
    }

    /// Returns whether a pattern can be checked in reasonable time.
    fn compiles(&mut self, pattern: &str) -> bool {
        if let Some(known) = self.patterns.get(pattern) {
            return *known;
        }
        let compiles =
            pattern.len() <= 500 && RegexBuilder::new(pattern).size_limit(PATTERN_BYTES).build().is_ok();
        self.patterns.insert(pattern.into(), compiles);
        compiles
    }
}

/// The parts of one tool's schema.
#[derive(Default)]
struct Choice {
    chosen: Vec<(Rc<str>, Rc<SchemaPart>)>,
    fates: HashMap<Rc<str>, Fate>,
    /// The number of references to each part.
    uses: HashMap<Rc<str>, usize>,
    /// The number of parts without room.
    shortened: usize,
}

impl Choice {
    fn refer(&mut self, refs: &[Reference]) -> VecDeque<Rc<str>> {
        for reference in refs {
            *self.uses.entry(reference.to.clone()).or_default() += 1;
        }
        refs.iter().map(|reference| reference.to.clone()).collect()
    }
}

/// What happens to a component in one tool's schema.
enum Fate {
    Chosen(Rc<SchemaPart>),
    Shortened(Rc<SchemaPart>),
    Missing,
}

/// Returns a unique name for each part, based on the last word of its reference.
fn names(chosen: &[(Rc<str>, Rc<SchemaPart>)]) -> HashMap<Rc<str>, String> {
    let mut taken = HashSet::new();
    chosen
        .iter()
        .map(|(to, _)| {
            let word = last_word(to);
            let mut name = word.clone();
            let mut number = 1;
            while !taken.insert(name.clone()) {
                number += 1;
                name = format!("{word}_{number}");
            }
            (to.clone(), name)
        })
        .collect()
}

/// Returns `User` for `#/components/schemas/User`, in characters that need no escaping in a reference.
fn last_word(reference: &str) -> String {
    let last = reference.rsplit('/').find(|word| !word.is_empty()).unwrap_or_default();
    let word: String = last
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '_' })
        .take(80)
        .collect();
    if word.is_empty() || word == "#" { "part".into() } else { word }
}

/// Returns the references that lead back to their own part for the same value. They add nothing, and a
/// validator would follow them for ever: a pet is one of cat and dog, and each of them is all of a pet and
/// more.
fn circles(chosen: &[(Rc<str>, Rc<SchemaPart>)]) -> HashSet<(Rc<str>, Rc<str>)> {
    let edges: HashMap<&str, Vec<&Rc<str>>> = chosen
        .iter()
        .map(|(from, part)| {
            (
                &**from,
                part.refs.iter().filter(|reference| reference.same).map(|reference| &reference.to).collect(),
            )
        })
        .collect();
    let mut cut = HashSet::new();
    let mut done: HashSet<&str> = HashSet::new();
    for (start, _) in chosen {
        // The current path: each part, and how many of its references have been followed.
        let mut way: Vec<(&Rc<str>, usize)> = vec![(start, 0)];
        while let Some((from, at)) = way.last().copied() {
            let next = edges.get(&**from).and_then(|all| all.get(at)).copied();
            let Some(to) = next.filter(|_| !done.contains(&**from)) else {
                done.insert(from);
                way.pop();
                continue;
            };
            way.last_mut().expect("it was looked at above").1 += 1;
            if way.iter().any(|(earlier, _)| *earlier == to) {
                cut.insert((from.clone(), to.clone()));
            } else if edges.contains_key(&**to) && !done.contains(&**to) {
                way.push((to, 0));
            }
        }
    }
    cut
}

/// Writes the parts of a tool's schema.
struct Writer {
    fates: HashMap<Rc<str>, Fate>,
    uses: HashMap<Rc<str>, usize>,
    cut: HashSet<(Rc<str>, Rc<str>)>,
    names: HashMap<Rc<str>, String>,
    /// Parts that are in `$defs` or will be.
    written: HashSet<Rc<str>>,
    wanted: VecDeque<(Rc<str>, Rc<SchemaPart>)>,
    /// The part being written.
    from: Option<Rc<str>>,
    inlined: usize,
}

impl Writer {
    fn write(&mut self, schema: &Value) -> Value {
        match schema {
            Value::Array(all) => all.iter().map(|part| self.write(part)).collect(),
            Value::Object(members) => {
                let beside = members.iter().filter(|(name, _)| *name != REFERENCE);
                let beside = beside.map(|(name, part)| (name.clone(), self.write(part))).collect();
                match target_of(members) {
                    Some(to) => self.reference(&to.into(), beside),
                    None => Value::Object(beside),
                }
            }
            other => other.clone(),
        }
    }

    fn reference(&mut self, to: &Rc<str>, beside: Map<String, Value>) -> Value {
        let mut schema = match self.fates.get(to) {
            None | Some(Fate::Missing) => missing(to),
            Some(Fate::Shortened(part)) => shortened(to, part),
            Some(Fate::Chosen(part)) => {
                let part = part.clone();
                let in_circle =
                    self.from.as_ref().is_some_and(|from| self.cut.contains(&(from.clone(), to.clone())));
                let once = self.uses.get(to) == Some(&1);
                if in_circle {
                    Map::new()
                } else if (once || part.is_small()) && self.inlined < MAX_INLINED {
                    let from = self.from.replace(to.clone());
                    self.inlined += 1;
                    let written = self.write(&part.schema);
                    self.inlined -= 1;
                    self.from = from;
                    match written {
                        Value::Object(schema) => schema,
                        Value::Bool(false) => Map::from_iter([("not".into(), json!({}))]),
                        _ => Map::new(),
                    }
                } else {
                    if self.written.insert(to.clone()) {
                        self.wanted.push_back((to.clone(), part));
                    }
                    Map::from_iter([("$ref".into(), json!(format!("#/$defs/{}", self.names[to])))])
                }
            }
        };
        schema.extend(beside);
        Value::Object(schema)
    }
}

fn missing(to: &str) -> Map<String, Value> {
    let why = if to.starts_with('#') {
        "which the document does not have"
    } else {
        "in another file, which is not read"
    };
    let text = format!("Described by `{}`, {why}.", nonet_base::text::clip(to, 120));
    Map::from_iter([("description".into(), Value::String(text))])
}

fn shortened(to: &str, part: &SchemaPart) -> Map<String, Value> {
    let mut schema = Map::new();
    if let Some(kind) = part.schema.get("type") {
        schema.insert("type".into(), kind.clone());
    }
    schema.insert("description".into(), json!(format!("{} (members not shown)", last_word(to))));
    schema
}
