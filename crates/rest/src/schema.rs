//! Converts OpenAPI schemas to JSON Schema 2020-12. Documentation-only keywords are dropped, keywords unknown to JSON Schema
//! are translated, and a tool's schema includes its referenced parts, as far as its size allows.
//!
//! A component is converted once. A tool's schema is assembled from such parts by their sizes, so thousands of operations
//! over the same components cost only what their final schemas do.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    rc::Rc,
};

use regex::RegexBuilder;
use serde_json::{Map, Value, json};

use super::{document::ApiDocument, prose};

/// The longest description of a param or property, in characters.
pub(super) const MAX_DESCRIPTION: usize = 600;
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
    /// Data that comes back. Services do not follow their documents strictly, and clients may reject a result that does not
    /// match, so keywords that only restrict are dropped.
    Output,
}

/// A piece of a converted schema.
#[derive(Clone, Debug)]
pub(super) enum SchemaNode {
    /// A value as it is.
    Plain(Value),
    Object(Vec<(String, SchemaNode)>),
    List(Vec<SchemaNode>),
    /// A reference to a component, with annotations next to it.
    Reference {
        to: Rc<str>,
        beside: Vec<(String, SchemaNode)>,
    },
}

impl SchemaNode {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Plain(Value::String(text.into()))
    }

    pub(crate) fn any() -> Self {
        Self::Object(Vec::new())
    }

    /// Sets an annotation.
    pub(crate) fn set(&mut self, key: &str, value: SchemaNode) {
        if let Self::Plain(Value::Bool(true)) = self {
            *self = Self::any();
        }
        let (Self::Object(members) | Self::Reference { beside: members, .. }) = self else { return };
        match members.iter_mut().find(|(name, _)| name == key) {
            Some((_, old)) => *old = value,
            None => members.push((key.into(), value)),
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&SchemaNode> {
        let (Self::Object(members) | Self::Reference { beside: members, .. }) = self else { return None };
        members.iter().find(|(name, _)| name == key).map(|(_, node)| node)
    }

    /// Returns the approximate length of the JSON text.
    pub(crate) fn bytes(&self) -> usize {
        let members = |all: &[(String, SchemaNode)]| -> usize {
            all.iter().map(|(name, node)| name.len() + 4 + node.bytes()).sum()
        };
        match self {
            Self::Plain(value) => bytes(value),
            Self::Object(all) => 2 + members(all),
            Self::List(all) => 2 + all.iter().map(|node| 1 + node.bytes()).sum::<usize>(),
            // As long as the text that replaces a part without room.
            Self::Reference { to, beside } => 55 + last_word(to).len() + members(beside),
        }
    }
}

/// Returns the approximate length of a value's JSON text.
fn bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|item| 1 + bytes(item)).sum::<usize>(),
        Value::Object(members) => {
            2 + members.iter().map(|(name, value)| name.len() + 4 + bytes(value)).sum::<usize>()
        }
        Value::Number(_) => 6,
        Value::Null | Value::Bool(_) => 5,
    }
}

/// A converted schema and its references.
#[derive(Debug)]
pub(super) struct SchemaPart {
    pub node: SchemaNode,
    pub bytes: usize,
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

    /// Converts what `build` produces, with less and less detail until it has at most `limit` bytes. `None` if it cannot be
    /// made small enough.
    pub(crate) fn converted(
        &mut self,
        side: SchemaSide,
        limit: usize,
        build: impl Fn(&mut Converter) -> SchemaNode,
    ) -> Option<SchemaPart> {
        self.converted_from(0, side, limit, build)
    }

    fn converted_from(
        &mut self,
        first: usize,
        side: SchemaSide,
        limit: usize,
        build: impl Fn(&mut Converter) -> SchemaNode,
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
            let node = build(&mut converter);
            let (mut refs, over) = (converter.refs, converter.bytes > limit);
            refs.sort_by_key(|reference| reference.optional);
            let bytes = node.bytes();
            (!over && bytes <= limit).then_some(SchemaPart { node, bytes, refs })
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
                let node = stub(raw, "");
                SchemaPart { bytes: node.bytes(), node, refs: Vec::new() }
            }))
        });
        self.parts.insert(key, part.clone());
        part
    }

    /// Returns a tool's complete schema: `root` and its references, nearest and required parts first, in at most about
    /// `limit` bytes. If not everything fits, descriptions are shortened to make room for more parts.
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
        let mut schema = match writer.write(&root.node) {
            Value::Object(schema) => schema,
            _ => Map::new(),
        };
        let mut defs = Map::new();
        while let Some((to, part)) = writer.wanted.pop_front() {
            writer.from = Some(to.clone());
            writer.inlined = 0;
            let written = writer.write(&part.node);
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

/// Returns the references that lead back to their own part for the same value. They add nothing, and a validator would follow
/// them for ever: a pet is one of cat and dog, and each of them is all of a pet and more.
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
    fn write(&mut self, node: &SchemaNode) -> Value {
        match node {
            SchemaNode::Plain(value) => value.clone(),
            SchemaNode::List(all) => all.iter().map(|node| self.write(node)).collect(),
            SchemaNode::Object(all) => Value::Object(self.members(all)),
            SchemaNode::Reference { to, beside } => self.reference(to, beside),
        }
    }

    fn members(&mut self, all: &[(String, SchemaNode)]) -> Map<String, Value> {
        all.iter().map(|(name, node)| (name.clone(), self.write(node))).collect()
    }

    fn reference(&mut self, to: &Rc<str>, beside: &[(String, SchemaNode)]) -> Value {
        let beside = self.members(beside);
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
                    let written = self.write(&part.node);
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
    if let Some(SchemaNode::Plain(kind)) = part.node.get("type") {
        schema.insert("type".into(), kind.clone());
    }
    schema.insert("description".into(), json!(format!("{} (members not shown)", last_word(to))));
    schema
}

/// Returns the stub of a schema that is too large or too deep.
fn stub(raw: &Value, description: &str) -> SchemaNode {
    let mut members = Vec::new();
    if let Some(kind) = raw.get("type").and_then(kind) {
        members.push(("type".into(), SchemaNode::Plain(kind)));
    }
    let text = format!("{description} (members not shown)");
    members.push(("description".into(), SchemaNode::text(text.trim_start())));
    SchemaNode::Object(members)
}

/// Returns the schema with its alternatives: those of one keyword as `anyOf`, those of several as parts of `allOf`.
fn with_alternatives(mut out: Vec<(String, SchemaNode)>, mut either: Vec<SchemaNode>) -> SchemaNode {
    match either.len() {
        0 => SchemaNode::Object(out),
        1 => {
            out.push(("anyOf".into(), either.remove(0)));
            SchemaNode::Object(out)
        }
        _ => {
            let mut parts: Vec<SchemaNode> =
                either.into_iter().map(|all| SchemaNode::Object(vec![("anyOf".into(), all)])).collect();
            if let Some(at) = out.iter().position(|(key, _)| key == "allOf")
                && let (_, SchemaNode::List(all)) = out.remove(at)
            {
                parts.extend(all);
            }
            out.push(("allOf".into(), SchemaNode::List(parts)));
            SchemaNode::Object(out)
        }
    }
}

/// Returns a nullable schema. Without a type, `nullable` refers to the alternatives.
fn or_null(mut node: SchemaNode) -> SchemaNode {
    let has = |key: &str| node.get(key).is_some();
    if has("type") || !(has("allOf") || has("anyOf")) {
        return node;
    }
    let null = SchemaNode::Plain(json!({ "type": "null" }));
    if let SchemaNode::Object(members) = &mut node
        && members.iter().all(|(key, _)| key != "allOf")
        && let Some((_, SchemaNode::List(all))) = members.iter_mut().find(|(key, _)| key == "anyOf")
    {
        all.push(null);
        return node;
    }
    SchemaNode::Object(vec![("anyOf".into(), SchemaNode::List(vec![node, null]))])
}

/// Converts the schemas of one part or tool.
pub(super) struct Converter<'s, 'a> {
    pub schemas: &'s mut Schemas<'a>,
    side: SchemaSide,
    detail: Detail,
    /// The approximate size converted so far; beyond the limit the result is discarded.
    bytes: usize,
    limit: usize,
    refs: Vec<Reference>,
    /// Whether the current schema is below an optional member.
    optional: bool,
}

impl Converter<'_, '_> {
    /// Returns whether the limit is exceeded, so that the rest can be skipped.
    fn is_over(&self) -> bool {
        self.bytes > self.limit
    }

    /// Converts a schema. `same`: whether it applies to the same value as its parent.
    pub(crate) fn schema(&mut self, raw: &Value, depth: usize, same: bool) -> SchemaNode {
        let raw = match raw {
            Value::Bool(value) => return SchemaNode::Plain(Value::Bool(*value)),
            Value::Object(raw) if !self.is_over() => raw,
            _ => return SchemaNode::any(),
        };
        self.bytes += 8;
        if let Some(reference) = raw.get("$ref").and_then(Value::as_str) {
            return self.reference(raw, reference, depth, same);
        }
        let holds = |key: &str| raw.contains_key(key);
        let nests =
            ["properties", "items", "allOf", "anyOf", "oneOf", "additionalProperties"].into_iter().any(holds);
        if depth >= self.detail.depth && nests {
            return stub(&Value::Object(raw.clone()), &self.description(raw).unwrap_or_default());
        }
        self.members(raw, depth, same)
    }

    fn reference(
        &mut self,
        raw: &Map<String, Value>,
        reference: &str,
        depth: usize,
        same: bool,
    ) -> SchemaNode {
        let mut annotations = Vec::new();
        self.annotations(raw, &mut annotations);
        let to: Rc<str> = reference.into();
        self.refs.push(Reference { to: to.clone(), same, optional: self.optional });
        self.bytes += 30;
        let narrows = |key: &str| {
            !matches!(
                key,
                "$ref"
                    | "description"
                    | "title"
                    | "summary"
                    | "default"
                    | "example"
                    | "examples"
                    | "deprecated"
                    | "nullable"
                    | "readOnly"
                    | "writeOnly"
                    | "discriminator"
                    | "xml"
                    | "externalDocs"
            ) && !key.starts_with("x-")
        };
        let more = !self.schemas.document.is_3_0 && raw.keys().any(|key| narrows(key));
        let nullable = raw.get("nullable") == Some(&Value::Bool(true));
        if more {
            let mut beside = raw.clone();
            beside.remove("$ref");
            beside.remove("allOf");
            let mut node = self.members(&beside, depth, same);
            let all = raw.get("allOf").and_then(Value::as_array).into_iter().flatten();
            let mut parts = vec![SchemaNode::Reference { to, beside: Vec::new() }];
            parts.extend(all.map(|part| self.schema(part, depth + 1, same)));
            node.set("allOf", SchemaNode::List(parts));
            return node;
        }
        if nullable {
            let either = vec![
                SchemaNode::Reference { to, beside: Vec::new() },
                SchemaNode::Plain(json!({ "type": "null" })),
            ];
            annotations.insert(0, ("anyOf".into(), SchemaNode::List(either)));
            return SchemaNode::Object(annotations);
        }
        SchemaNode::Reference { to, beside: annotations }
    }

    /// Converts the keywords of a schema without `$ref`.
    fn members(&mut self, raw: &Map<String, Value>, depth: usize, same: bool) -> SchemaNode {
        let mut out: Vec<(String, SchemaNode)> = Vec::new();
        let mut words = self.types_and_values(raw, &mut out);
        self.annotations(raw, &mut out);
        let mut either: Vec<SchemaNode> = Vec::new();
        for (key, value) in raw {
            match (key.as_str(), value) {
                // Documents' alternatives overlap, and then a strict `oneOf` would reject what the service accepts.
                ("anyOf" | "oneOf", Value::Array(all)) if !all.is_empty() => {
                    let all = all.iter().map(|raw| self.schema(raw, depth + 1, same)).collect();
                    either.push(SchemaNode::List(all));
                }
                _ => {
                    self.nested(raw, key, value, depth, same, &mut out);
                    words.extend(self.limit(raw, key, value, &mut out));
                }
            }
        }
        let mut node = with_alternatives(out, either);
        if !words.is_empty() {
            let said = match node.get("description") {
                Some(SchemaNode::Plain(Value::String(said))) => format!("{said} "),
                _ => String::new(),
            };
            node.set("description", SchemaNode::text(format!("{said}{}", words.join(" "))));
        }
        if raw.get("nullable") == Some(&Value::Bool(true)) { or_null(node) } else { node }
    }

    /// Adds `type` and `enum`. Returns what a long enumeration says instead.
    fn types_and_values(
        &mut self,
        raw: &Map<String, Value>,
        out: &mut Vec<(String, SchemaNode)>,
    ) -> Vec<String> {
        let mut kinds = raw.get("type").and_then(kind);
        let mut values = raw.get("enum").and_then(Value::as_array).filter(|all| !all.is_empty()).cloned();
        if let (Some(Value::String(kind)), Some(all)) = (&kinds, &values)
            && !all.iter().any(|value| is_a(value, kind))
        {
            // `type: string` on an enumeration of numbers: the values are right.
            kinds = None;
        }
        let nullable = raw.get("nullable") == Some(&Value::Bool(true));
        if nullable && let Some(Value::String(kind)) = &kinds {
            kinds = Some(json!([kind, "null"]));
        }
        let holds_null = |kinds: &Option<Value>| {
            kinds.as_ref().and_then(Value::as_array).is_some_and(|all| all.iter().any(|kind| kind == "null"))
        };
        if let Some(all) = &mut values
            && (nullable || holds_null(&kinds))
            && !all.contains(&Value::Null)
        {
            all.push(Value::Null);
        }
        if let Some(kinds) = kinds {
            out.push(("type".into(), SchemaNode::Plain(kinds)));
        }
        let mut words = Vec::new();
        if let Some(all) = values {
            if all.len() <= self.detail.values {
                self.plain(out, "enum", Value::Array(all));
            } else {
                let few: Vec<String> = all.iter().take(5).map(Value::to_string).collect();
                words.push(format!("One of {} values, such as {}.", all.len(), few.join(", ")));
            }
        }
        words
    }

    /// Adds a keyword that holds schemas, or names of members.
    fn nested(
        &mut self,
        raw: &Map<String, Value>,
        key: &str,
        value: &Value,
        depth: usize,
        same: bool,
        out: &mut Vec<(String, SchemaNode)>,
    ) {
        let narrows = self.side == SchemaSide::Input;
        match (key, value) {
            ("properties", Value::Object(all)) => {
                let required = raw.get("required").and_then(Value::as_array);
                let outer = self.optional;
                let mut shown = Vec::new();
                for (name, raw) in all {
                    if !self.hides(raw) {
                        self.bytes += name.len();
                        self.optional =
                            outer || !required.is_some_and(|all| all.iter().any(|own| own == name));
                        shown.push((name.clone(), self.schema(raw, depth + 1, false)));
                    }
                }
                self.optional = outer;
                out.push((key.into(), SchemaNode::Object(shown)));
            }
            ("patternProperties", Value::Object(all)) => {
                let mut checked = Vec::new();
                for (pattern, raw) in all {
                    if self.schemas.compiles(pattern) {
                        checked.push((pattern.clone(), self.schema(raw, depth + 1, false)));
                    }
                }
                out.push((key.into(), SchemaNode::Object(checked)));
            }
            ("required", Value::Array(all)) if narrows => {
                let members = raw.get("properties");
                let shown = |name: &&Value| {
                    name.as_str().is_some_and(|name| {
                        members.and_then(|all| all.get(name)).is_none_or(|member| !self.hides(member))
                    })
                };
                let mut names: Vec<Value> = all.iter().filter(shown).cloned().collect();
                let mut seen = HashSet::new();
                names.retain(|name| seen.insert(name.to_string()));
                if !names.is_empty() {
                    self.plain(out, key, Value::Array(names));
                }
            }
            ("items", Value::Array(all)) | ("prefixItems", Value::Array(all)) if !all.is_empty() => {
                let all = all.iter().map(|raw| self.schema(raw, depth + 1, false)).collect();
                out.push(("prefixItems".into(), SchemaNode::List(all)));
            }
            ("items" | "contains", Value::Object(_)) => {
                let node = self.schema(value, depth + 1, false);
                out.push((key.into(), node));
            }
            ("propertyNames", Value::Object(_)) if narrows => {
                let node = self.schema(value, depth + 1, false);
                out.push((key.into(), node));
            }
            ("additionalProperties", Value::Object(members)) if !members.is_empty() => {
                let node = self.schema(value, depth + 1, false);
                out.push((key.into(), node));
            }
            ("additionalProperties", Value::Bool(false)) if narrows => {
                self.plain(out, key, value.clone());
            }
            ("allOf", Value::Array(all)) if !all.is_empty() => {
                let all = all.iter().map(|raw| self.schema(raw, depth + 1, same)).collect();
                out.push((key.into(), SchemaNode::List(all)));
            }
            ("not" | "if" | "then" | "else", Value::Object(_)) if narrows => {
                let node = self.schema(value, depth + 1, same);
                out.push((key.into(), node));
            }
            ("dependentSchemas", Value::Object(all)) if narrows => {
                let all = all.iter().map(|(name, raw)| (name.clone(), self.schema(raw, depth + 1, same)));
                let all = all.collect();
                out.push((key.into(), SchemaNode::Object(all)));
            }
            ("dependentRequired", Value::Object(all)) if narrows => {
                let is_list =
                    |value: &Value| value.as_array().is_some_and(|names| names.iter().all(Value::is_string));
                if all.values().all(is_list) {
                    self.plain(out, key, value.clone());
                }
            }
            _ => {}
        }
    }

    /// Adds a keyword that limits a single value. Returns what is said instead of a pattern that is not supported.
    fn limit(
        &mut self,
        raw: &Map<String, Value>,
        key: &str,
        value: &Value,
        out: &mut Vec<(String, SchemaNode)>,
    ) -> Option<String> {
        let narrows = self.side == SchemaSide::Input;
        match (key, value) {
            ("const", value) if bytes(value) <= MAX_EXAMPLE => self.plain(out, key, value.clone()),
            ("format" | "contentEncoding" | "contentMediaType", Value::String(_)) => {
                self.plain(out, key, value.clone());
            }
            ("pattern", Value::String(pattern)) if narrows => {
                if self.schemas.compiles(pattern) {
                    self.plain(out, key, value.clone());
                } else if pattern.len() <= 100 {
                    return Some(format!("Pattern: `{pattern}`."));
                }
            }
            (
                "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties"
                | "minContains" | "maxContains",
                Value::Number(_),
            ) if narrows && value.is_u64() => self.plain(out, key, value.clone()),
            ("uniqueItems", Value::Bool(true)) if narrows => self.plain(out, key, value.clone()),
            ("multipleOf", Value::Number(number)) if narrows && number.as_f64().is_some_and(|n| n > 0.0) => {
                self.plain(out, key, value.clone());
            }
            ("minimum", Value::Number(_))
                if narrows && raw.get("exclusiveMinimum") == Some(&Value::Bool(true)) =>
            {
                self.plain(out, "exclusiveMinimum", value.clone());
            }
            ("maximum", Value::Number(_))
                if narrows && raw.get("exclusiveMaximum") == Some(&Value::Bool(true)) =>
            {
                self.plain(out, "exclusiveMaximum", value.clone());
            }
            ("minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum", Value::Number(_))
                if narrows =>
            {
                self.plain(out, key, value.clone());
            }
            _ => {}
        }
        None
    }

    /// Adds a keyword unchanged.
    fn plain(&mut self, out: &mut Vec<(String, SchemaNode)>, key: &str, value: Value) {
        self.bytes += key.len() + bytes(&value);
        out.push((key.into(), SchemaNode::Plain(value)));
    }

    /// Adds annotations for readers: description, default, examples.
    fn annotations(&mut self, raw: &Map<String, Value>, out: &mut Vec<(String, SchemaNode)>) {
        if let Some(description) = self.description(raw) {
            self.plain(out, "description", Value::String(description));
        }
        if raw.get("deprecated") == Some(&Value::Bool(true)) {
            self.plain(out, "deprecated", Value::Bool(true));
        }
        if let Some(default) =
            raw.get("default").filter(|value| !value.is_null() && bytes(value) <= MAX_EXAMPLE)
        {
            self.plain(out, "default", default.clone());
        }
        let examples = examples_of(raw, None);
        if !examples.is_empty() && self.detail.description > 0 && self.side == SchemaSide::Input {
            self.plain(out, "examples", Value::Array(examples));
        }
    }

    fn description(&self, raw: &Map<String, Value>) -> Option<String> {
        let text = |key: &str| raw.get(key).and_then(Value::as_str).filter(|text| !text.trim().is_empty());
        let text = text("description").or_else(|| text("title")).filter(|_| self.detail.description > 0);
        text.map(|text| prose::plain(text, self.detail.description))
    }

    /// Returns a param's description at the current length.
    pub(crate) fn words(&self, text: &str) -> String {
        prose::plain(text, self.detail.description.max(SHORTEST))
    }

    /// Returns whether a property belongs to the other side only.
    pub(crate) fn hides(&self, raw: &Value) -> bool {
        let key = match self.side {
            SchemaSide::Input => "readOnly",
            SchemaSide::Output => "writeOnly",
        };
        let says = |raw: &Value| raw.get(key) == Some(&Value::Bool(true));
        says(raw) || self.schemas.document.resolved(raw).is_ok_and(says)
    }
}

/// Returns the examples of a schema, a param or a media type, or of a member of theirs, in document order.
pub(super) fn examples_of(raw: &Map<String, Value>, member: Option<&str>) -> Vec<Value> {
    let several: Vec<&Value> = match raw.get("examples") {
        Some(Value::Array(all)) => all.iter().collect(),
        Some(Value::Object(all)) => all.values().filter_map(|example| example.get("value")).collect(),
        _ => Vec::new(),
    };
    let all = raw.get("example").into_iter().chain(several).filter_map(|example| match member {
        Some(member) => example.get(member),
        None => Some(example),
    });
    let mut examples: Vec<Value> = Vec::new();
    for example in
        all.take(MAX_EXAMPLES).filter(|example| !example.is_null() && bytes(example) <= MAX_EXAMPLE)
    {
        if !examples.contains(example) {
            examples.push(example.clone());
        }
    }
    examples
}

/// Returns the type or types that a schema names, in JSON Schema's terms. Documents also use type names of programming
/// languages.
fn kind(given: &Value) -> Option<Value> {
    let one = |name: &str| {
        Some(match name.trim().to_ascii_lowercase().as_str() {
            "string" | "file" | "binary" | "byte" | "date" | "datetime" | "date-time" | "uuid" | "uri"
            | "text" | "str" => "string",
            "integer" | "int" | "int32" | "int64" | "long" => "integer",
            "number" | "float" | "double" | "decimal" => "number",
            "boolean" | "bool" => "boolean",
            "object" | "map" | "dict" => "object",
            "array" | "list" => "array",
            "null" => "null",
            _ => return None,
        })
    };
    match given {
        Value::String(name) => one(name).map(Value::from),
        Value::Array(names) => {
            let mut all: Vec<&str> = Vec::new();
            for name in names {
                let name = one(name.as_str()?)?;
                if !all.contains(&name) {
                    all.push(name);
                }
            }
            match all[..] {
                [] => None,
                [only] => Some(only.into()),
                _ => Some(json!(all)),
            }
        }
        _ => None,
    }
}

fn is_a(value: &Value, kind: &str) -> bool {
    match kind {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        _ => value.is_null(),
    }
}
