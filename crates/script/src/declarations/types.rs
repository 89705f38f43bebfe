//! Types as TypeScript: what a JSON Schema says, as far as TypeScript can say it.

use std::{collections::HashSet, ptr};

use serde_json::{Map, Value};

use super::{
    MAX_ALTERNATIVES, MAX_COMBINATIONS, MAX_DEPTH, MAX_LIST, MAX_PATH, MAX_PROPERTIES, MAX_PROPERTY_DOC,
    Scope, list, local, property_name, prose, quoted,
};

/// A type as its alternatives, none of which is a union itself.
#[derive(Debug)]
struct Type {
    alternatives: Vec<String>,
    /// Whether an alternative is an intersection.
    joined: bool,
    /// The most alternatives that the compiler sees, once intersections are multiplied out.
    combinations: usize,
}

impl Type {
    fn of(text: impl Into<String>) -> Self {
        Self { alternatives: vec![text.into()], joined: false, combinations: 1 }
    }

    fn any() -> Self {
        Self::of("any")
    }

    fn is_any(&self) -> bool {
        self.alternatives.iter().any(|text| text == "any")
    }

    /// Returns whether the type says no more than a name in a schema's `type`.
    fn is_bare(&self) -> bool {
        let bare = ["any", "string", "number", "boolean", "null", "any[]", "{}", "Record<string, any>"];
        self.alternatives.iter().all(|text| bare.contains(&text.as_str()))
    }

    /// Returns what satisfies one of the types. With too many alternatives, literals become their base types.
    fn union(types: Vec<Self>) -> Self {
        let joined = types.iter().any(|one| one.joined);
        let all = types.iter().fold(0, |sum, one| one.combinations.saturating_add(sum));
        let mut alternatives: Vec<String> = types.into_iter().flat_map(|one| one.alternatives).collect();
        alternatives.retain(|text| text != "never");
        keep_first(&mut alternatives);
        if alternatives.len() > MAX_ALTERNATIVES {
            alternatives = alternatives.iter().map(|text| base(text).to_owned()).collect();
            keep_first(&mut alternatives);
        }
        let combinations = if joined { all } else { alternatives.len() };
        let union = Self { alternatives, joined, combinations };
        match union.alternatives.len() {
            0 => Self::of("never"),
            1..=MAX_ALTERNATIVES if !union.is_any() => union,
            _ => Self::any(),
        }
    }

    /// Returns what satisfies all of the types. Types that make too many combinations are left out.
    fn intersection(types: Vec<Self>) -> Self {
        let mut parts: Vec<(String, Self)> = Vec::new();
        let mut combinations = 1;
        for one in types {
            let text = if one.alternatives.len() > 1 { format!("({})", one.text()) } else { one.text() };
            let product = one.combinations.saturating_mul(combinations);
            if parts.is_empty() || (product <= MAX_COMBINATIONS && parts.iter().all(|part| part.0 != text)) {
                combinations = product;
                parts.push((text, one));
            }
        }
        if parts.len() < 2 {
            return parts.pop().map_or_else(Self::any, |(_, only)| only);
        }
        let texts: Vec<String> = parts.into_iter().map(|(text, _)| text).collect();
        Self { alternatives: vec![texts.join(" & ")], joined: true, combinations }
    }

    fn array(&self) -> String {
        let text = self.text();
        if self.joined || self.alternatives.len() > 1 { format!("({text})[]") } else { format!("{text}[]") }
    }

    fn text(&self) -> String {
        self.alternatives.join(" | ")
    }
}

/// Removes repeated texts.
fn keep_first(texts: &mut Vec<String>) {
    let mut known = HashSet::new();
    texts.retain(|text| known.insert(text.clone()));
}

/// Returns the base type of a literal. Any other type stays as it is.
fn base(text: &str) -> &str {
    match text.as_bytes() {
        [b'"', .., b'"'] => "string",
        [b'-' | b'0'..=b'9', .., b'0'..=b'9'] | [b'0'..=b'9'] => "number",
        b"true" | b"false" => "boolean",
        _ => text,
    }
}

/// Writes the types of one schema.
pub(super) struct Writer<'a> {
    root: &'a Value,
    scope: Scope,
    /// The schemas in progress, from the root inwards.
    path: Vec<&'a Map<String, Value>>,
    depth: usize,
    indent: usize,
    /// How many bytes may still be written. Zero once something did not fit.
    left: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(root: &'a Value, scope: Scope, left: usize) -> Self {
        Self { root, scope, path: Vec::new(), depth: 0, indent: 4, left }
    }

    /// Returns the type of the whole schema, or nothing if the text is too long.
    pub(super) fn text(mut self) -> Option<String> {
        let most = self.left;
        let text = self.type_of(self.root).text();
        (self.left > 0 && text.len() <= most).then_some(text)
    }

    /// Takes bytes from what may be written. Text that is dropped later counts too: it takes time as well.
    fn spend(&mut self, bytes: usize) -> bool {
        self.left = self.left.saturating_sub(bytes);
        self.left > 0
    }

    fn type_of(&mut self, schema: &'a Value) -> Type {
        let fits = self.spend(4);
        let schema = match schema {
            Value::Object(schema) if fits => schema,
            Value::Bool(false) => return Type::of("never"),
            _ => return Type::any(),
        };
        let cyclic = self.path.iter().any(|above| ptr::eq(*above, schema));
        if cyclic || self.depth >= MAX_DEPTH || self.path.len() >= MAX_PATH {
            return Type::any();
        }
        self.path.push(schema);
        let found = self.combined(schema);
        self.path.pop();
        found
    }

    fn below(&mut self, schema: &'a Value) -> Type {
        self.depth += 1;
        let found = self.type_of(schema);
        self.depth -= 1;
        found
    }

    /// Returns the type of a schema together with the schemas that it combines or refers to.
    fn combined(&mut self, schema: &'a Map<String, Value>) -> Type {
        let own = self.own(schema);
        let mut parts = Vec::new();
        if let Some(target) = schema.get("$ref").and_then(|reference| local(self.root, reference)) {
            parts.push(self.type_of(target));
        }
        for branches in ["anyOf", "oneOf"].into_iter().filter_map(|key| schema.get(key)) {
            let types: Vec<Type> = list(Some(branches)).map(|branch| self.below(branch)).collect();
            parts.extend((!types.is_empty()).then(|| Type::union(types)));
        }
        parts.extend(list(schema.get("allOf")).take(MAX_ALTERNATIVES).map(|part| self.below(part)));
        parts.retain(|part| !part.is_any());
        if parts.is_empty() || !own.is_bare() {
            parts.insert(0, own);
        }
        let found = Type::intersection(parts);
        match schema.get("nullable") {
            Some(Value::Bool(true)) => Type::union(vec![found, Type::of("null")]),
            _ => found,
        }
    }

    /// Returns the type that a schema states itself.
    fn own(&mut self, schema: &'a Map<String, Value>) -> Type {
        let options: Vec<&Value> = match schema.get("const") {
            Some(only) => vec![only],
            None => list(schema.get("enum")).collect(),
        };
        let names: Vec<&str> = match schema.get("type") {
            Some(Value::String(name)) => vec![name],
            names => list(names).filter_map(Value::as_str).take(MAX_ALTERNATIVES).collect(),
        };
        let has = |keys: &[&str]| keys.iter().any(|key| schema.contains_key(*key));
        let many = options.len() > MAX_ALTERNATIVES;
        self.spend(options.len() + names.len());
        if !options.is_empty() && (!many || names.is_empty()) {
            Type::union(options.into_iter().map(|option| self.literal(option, many)).collect())
        } else if !names.is_empty() {
            Type::union(names.into_iter().map(|name| self.named(name, schema)).collect())
        } else if has(&["properties", "additionalProperties", "patternProperties"]) {
            self.object(schema)
        } else if has(&["items", "prefixItems"]) {
            self.array(schema)
        } else {
            Type::any()
        }
    }

    /// Returns the type of one value; of one among many, the base type.
    fn literal(&mut self, value: &Value, many: bool) -> Type {
        Type::of(match value {
            Value::String(text) if !many && self.spend(text.len()) => quoted(text),
            Value::String(_) => "string".into(),
            Value::Array(_) => "any[]".into(),
            Value::Object(_) => "Record<string, any>".into(),
            plain => plain.to_string(),
        })
    }

    fn named(&mut self, name: &str, schema: &'a Map<String, Value>) -> Type {
        match name {
            "string" | "number" | "boolean" | "null" => Type::of(name),
            "integer" => Type::of("number"),
            "array" => self.array(schema),
            "object" => self.object(schema),
            _ => Type::any(),
        }
    }

    fn array(&mut self, schema: &'a Map<String, Value>) -> Type {
        let (places, others) = match (schema.get("prefixItems"), schema.get("items")) {
            (None, Some(places @ Value::Array(_))) => (Some(places), schema.get("additionalItems")),
            (places, items) => (places, items),
        };
        let mut places = list(places).peekable();
        if places.peek().is_none() {
            return Type::of(others.map_or_else(Type::any, |items| self.below(items)).array());
        }
        let mut texts: Vec<String> =
            places.by_ref().take(MAX_ALTERNATIVES).map(|place| self.below(place).text()).collect();
        if places.next().is_some() {
            texts.push("...any[]".into());
        } else if let Some(others) = others.filter(|others| **others != Value::Bool(false)) {
            texts.push(format!("...{}", self.below(others).array()));
        }
        Type::of(format!("[{}]", texts.join(", ")))
    }

    fn object(&mut self, schema: &'a Map<String, Value>) -> Type {
        let properties = schema.get("properties").and_then(Value::as_object);
        let (others, closed): (Vec<&Value>, bool) = match schema.get("additionalProperties") {
            Some(others) if *others != Value::Bool(false) => (vec![others], false),
            closed => {
                let patterns = schema.get("patternProperties").and_then(Value::as_object);
                (patterns.into_iter().flat_map(Map::values).take(MAX_LIST).collect(), closed.is_some())
            }
        };
        match properties {
            Some(properties) if !properties.is_empty() => {
                self.members(schema, properties, !others.is_empty())
            }
            _ if !others.is_empty() => {
                let others = Type::union(others.into_iter().map(|other| self.below(other)).collect());
                Type::of(format!("Record<string, {}>", others.text()))
            }
            // An empty list of arguments means none; an empty object inside may hold anything.
            Some(_) if self.depth == 0 => Type::of("{}"),
            _ => Type::of(if closed { "{}" } else { "Record<string, any>" }),
        }
    }

    /// Writes an object with properties. An index signature other than `any` would have to fit all of them.
    fn members(&mut self, schema: &'a Map<String, Value>, all: &'a Map<String, Value>, open: bool) -> Type {
        let required: HashSet<&str> = list(schema.get("required")).filter_map(Value::as_str).collect();
        let mut members = Vec::new();
        self.spend(required.len());
        self.indent += 2;
        for (name, property) in all.iter().take(MAX_PROPERTIES) {
            if !self.spend(name.len() + self.indent) {
                break;
            }
            let optional = if required.contains(name.as_str()) { "" } else { "?" };
            let comment = self.comment(property);
            let kind = self.below(property).text();
            members.push(format!("{comment}{}{optional}: {kind}", property_name(name)));
        }
        self.indent -= 2;
        match all.len().saturating_sub(MAX_PROPERTIES) {
            0 if open => members.push("[key: string]: any".into()),
            0 => {}
            more => members.push(format!("[key: string]: any /* {more} properties left out */")),
        }
        Type::of(match self.scope {
            Scope::Compact => format!("{{ {} }}", members.join("; ")),
            Scope::Full => {
                let pad = " ".repeat(self.indent);
                let lines: String = members.iter().map(|member| format!("\n{pad}  {member};")).collect();
                format!("{{{lines}\n{pad}}}")
            }
        })
    }

    /// Returns the comment of a property with the line break after it.
    fn comment(&mut self, property: &Value) -> String {
        let description = property.get("description").and_then(Value::as_str);
        match description.map(|text| prose(text, MAX_PROPERTY_DOC)) {
            Some(text) if self.scope == Scope::Full && !text.is_empty() => {
                self.spend(text.len() + self.indent);
                format!("/** {text} */\n{}", " ".repeat(self.indent))
            }
            _ => String::new(),
        }
    }
}
