//! Signatures, risks and descriptions for the tools of thirty public servers (`tests/data/catalogue.jsonl`).

use std::{collections::BTreeMap, fmt::Write as _, iter::Peekable, str::Chars};

use nonet_schema::Schema;
use serde_json::{Value, json};

use crate::{inside::Inside, setup::Setup};

const CATALOGUE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/catalogue.jsonl");
/// Words in a tool's name that mark a changing call.
const CHANGES: &str = "add append apply assign cancel clear convert create delete drop edit insert install kill merge \
                       modify move patch post put remove rename reset send set stop truncate uninstall update upload \
                       upsert write";

/// Returns the recorded definitions of each server, in order.
fn recorded() -> BTreeMap<String, Vec<Value>> {
    let text = std::fs::read_to_string(CATALOGUE).expect("the recorded tools");
    let mut servers: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for line in text.lines() {
        let mut tool: Value = serde_json::from_str(line).expect("JSON");
        let server = tool["server"].take();
        let fields = tool.as_object_mut().expect("an object");
        fields.remove("server");
        servers.entry(server.as_str().expect("a name").into()).or_default().push(tool);
    }
    servers
}

/// Opens a gateway with all of them.
async fn open(servers: &BTreeMap<String, Vec<Value>>) -> Inside {
    let add =
        |setup: Setup, (name, tools): (&String, &Vec<Value>)| setup.server(name, json!({ "tools": tools }));
    servers.iter().fold(Setup::new(), add).open().await
}

/// Returns each tool as recorded, with its line in `browse_category`.
async fn lines(inside: &Inside, servers: &BTreeMap<String, Vec<Value>>) -> Vec<(Value, Value)> {
    let mut all = Vec::new();
    for (server, tools) in servers {
        let page = inside.answer("browse_category", json!({ "category": server, "page_size": 100 })).await;
        assert_eq!(page["total"], tools.len(), "{server}");
        for line in page["tools"].as_array().expect("a list") {
            let full = line["name"].as_str().expect("a name");
            let own = |tool: &&Value| full == format!("{server}.{}", tool["name"].as_str().expect("a name"));
            let tool = tools.iter().find(own).unwrap_or_else(|| panic!("{full} was not recorded"));
            all.push((tool.clone(), line.clone()));
        }
    }
    all
}

#[tokio::test]
async fn signatures_of_recorded_tools_can_be_read_and_hide_nothing() {
    let servers = recorded();
    let inside = open(&servers).await;
    let mut faults = Vec::new();
    for (tool, line) in lines(&inside, &servers).await {
        let signature = line["signature"].as_str().expect("a signature");
        let Some(parameters) = Signature::read(signature) else {
            faults.push(format!("cannot be read: {signature}"));
            continue;
        };
        let root = &tool["inputSchema"];
        for (name, kind) in &parameters {
            let Some(schema) = root["properties"].get(name) else {
                faults.push(format!("`{name}` is not in the schema: {signature}"));
                continue;
            };
            let alternatives = alternatives(kind, false);
            if alternatives.iter().any(|(kind, _)| kind == "any") && refers_to_kinds_alone(root, schema, 0) {
                faults.push(format!("`{name}` refers to types that are there: {signature}"));
            }
            if kind.contains("object[]") && branches(root, schema).any(|branch| has_typed_items(root, branch))
            {
                faults.push(format!("the items of `{name}` have properties: {signature}"));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[tokio::test]
async fn risks_of_recorded_tools() {
    let servers = recorded();
    let inside = open(&servers).await;
    let mut golden = String::new();
    let mut faults = Vec::new();
    for (tool, line) in lines(&inside, &servers).await {
        let (name, risk) = (line["name"].as_str().expect("a name"), line["risk"].as_str().expect("a risk"));
        let _ = writeln!(golden, "{name} {risk}");
        let reads = tool["annotations"]["readOnlyHint"] == true;
        let own = tool["name"].as_str().expect("a name").to_lowercase().replace('-', "_");
        let change = own.split('_').find(|word| CHANGES.split_whitespace().any(|change| change == *word));
        if let Some(change) = change.filter(|_| !reads && risk == "low") {
            faults.push(format!("{name} is low and {change}s"));
        }
        if reads && risk != "low" {
            faults.push(format!("{name} is {risk}, though its server says that it only reads"));
        }
        if tool["annotations"]["destructiveHint"] == true && !reads && risk != "high" {
            faults.push(format!("{name} is {risk}, though its server says that it destroys"));
        }
    }
    insta::assert_snapshot!(golden);
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// The example call has all required params, with placeholders for missing values.
#[test]
fn calls_of_recorded_tools_are_filled_in() {
    let mut faults = Vec::new();
    for (server, tools) in recorded() {
        for tool in tools {
            let schema = Schema::new(tool["inputSchema"].clone());
            let example = Value::Object(schema.example());
            if example.to_string().len() > 2_000 {
                faults.push(format!("{server}.{} has a long call: {example}", tool["name"]));
            }
            let Err(misfit) = schema.read(example.clone()) else { continue };
            // A placeholder is text where a number is required; everything else must fit.
            let wrong: Vec<&String> = misfit.faults.iter().filter(|fault| !fault.contains("\"<")).collect();
            if !wrong.is_empty() {
                faults.push(format!("{server}.{} {example}: {wrong:?}", tool["name"]));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// Extra params that models add to any call are never mistaken for a missing param.
#[test]
fn what_stands_beside_the_params_of_recorded_tools_is_none_of_them() {
    let mut faults = Vec::new();
    for (server, tools) in recorded() {
        for tool in tools {
            let schema = Schema::new(tool["inputSchema"].clone());
            for missing in tool["inputSchema"]["required"].as_array().into_iter().flatten() {
                let missing = missing.as_str().expect("a name");
                for beside in ["explanation", "reason", "thought", "toolcall_id", "dry_run"] {
                    let mut params = schema.example();
                    params.shift_remove(missing);
                    params.insert(beside.into(), json!("to see what is there"));
                    let known = tool["inputSchema"]["properties"].get(beside).is_some();
                    if let (Ok(reading), false) = (schema.read(Value::Object(params)), known) {
                        faults.push(format!("{server}.{}: {:?}", tool["name"], reading.repaired));
                    }
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[tokio::test]
async fn descriptions_of_recorded_tools_have_no_indentation_of_source_code() {
    let servers = recorded();
    let inside = open(&servers).await;
    let lines = lines(&inside, &servers).await;
    let mut faults = Vec::new();
    for (_, line) in &lines {
        let text = line["description"].as_str().unwrap_or_default();
        if text.is_empty() || text.contains('\n') || text.contains("  ") {
            faults.push(format!("the line of {}: {text:?}", line["name"]));
        }
    }
    let names: Vec<&Value> = lines.iter().map(|(_, line)| &line["name"]).collect();
    for names in names.chunks(5) {
        let answer = inside.answer("get_tool", json!({ "names": names })).await;
        for tool in answer["tools"].as_array().expect("a list") {
            let text = tool["description"].as_str().unwrap_or_default();
            let indent = |line: &str| line.len() - line.trim_start().len();
            let later = text.lines().skip(1).filter(|line| !line.trim().is_empty());
            if text.trim() != text
                || text.is_empty()
                || later.map(indent).min().is_some_and(|least| least > 0)
            {
                faults.push(format!(
                    "get_tool of {}: {}",
                    tool["name"],
                    nonet_base::text::clip(&format!("{text:?}"), 200)
                ));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// Counts the tools that wrap a text: an output schema with exactly one member, a string.
#[test]
fn outputs_of_recorded_tools_that_are_wrapped_texts() {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (server, tools) in &recorded() {
        for tool in tools {
            let Some(members) = tool["outputSchema"]["properties"].as_object() else { continue };
            if let (1, Some((member, schema))) = (members.len(), members.iter().next())
                && schema["type"] == "string"
            {
                *counts.entry(format!("{server}: {member}")).or_default() += 1;
            }
        }
    }
    let expected = [
        ("atlassian: result", 93),
        ("calculator: result", 1),
        ("duckdb: result", 4),
        ("filesystem: content", 13),
        ("markitdown: result", 1),
    ];
    assert_eq!(counts, expected.map(|(member, count)| (member.to_owned(), count)).into());
}

/// Resolves a schema's reference within its document; returns other schemas as they are.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> Option<&'a Value> {
    let mut schema = schema;
    for _ in 0..8 {
        let Some(pointer) = schema.get("$ref").and_then(Value::as_str) else { return Some(schema) };
        schema = root.pointer(pointer.strip_prefix('#')?)?;
    }
    None
}

/// Whether each alternative of a schema or of its items has a type or constant, and one of them by a `$ref`.
fn refers_to_kinds_alone(root: &Value, schema: &Value, depth: usize) -> bool {
    let is_reference = |schema: &Value| schema.get("$ref").is_some();
    let mut refers = is_reference(schema);
    for branch in branches(root, schema) {
        refers |= is_reference(branch);
        match resolved(root, branch) {
            Some(branch) if branch.get("items").is_some() && depth < 3 => {
                refers |= refers_to_kinds_alone(root, &branch["items"], depth + 1);
            }
            Some(branch) if ["type", "enum", "const"].iter().any(|key| branch.get(key).is_some()) => {}
            _ => return false,
        }
    }
    refers
}

/// Returns the alternatives of a rendered type, each with whether it is a list item. Skips the inside of
/// braces.
fn alternatives(kind: &str, is_list: bool) -> Vec<(String, bool)> {
    let (mut parts, mut depth, mut in_text) = (vec![String::new()], 0, false);
    for c in kind.chars() {
        match c {
            '"' => in_text = !in_text,
            '{' | '(' if !in_text => depth += 1,
            '}' | ')' if !in_text => depth -= 1,
            '|' if !in_text && depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    let flat = parts.into_iter().flat_map(|part| {
        let item = part.trim_end_matches("[]");
        let is_list = is_list || item.len() < part.len();
        match item.strip_prefix('(').and_then(|item| item.strip_suffix(')')) {
            Some(inner) => alternatives(inner, is_list),
            None => vec![(item.to_owned(), is_list)],
        }
    });
    flat.collect()
}

/// Returns the alternatives of a schema, or the schema itself.
fn branches<'a>(root: &'a Value, schema: &'a Value) -> impl Iterator<Item = &'a Value> {
    let schema = resolved(root, schema).unwrap_or(schema);
    let choices = ["anyOf", "oneOf"].iter().find_map(|key| schema.get(key)?.as_array());
    choices.map_or(std::slice::from_ref(schema), Vec::as_slice).iter()
}

fn has_typed_items(root: &Value, schema: &Value) -> bool {
    let items = schema.get("items").and_then(|items| resolved(root, items));
    items.and_then(|items| items["properties"].as_object()).is_some_and(|properties| !properties.is_empty())
}

/// A parser of signatures: `name(a: string, b?: {c: integer, d?: "x"|"y"}[], ...)`.
struct Signature<'a> {
    rest: Peekable<Chars<'a>>,
    /// The text of the current parameter read so far.
    seen: String,
}

impl Signature<'_> {
    /// Returns the parameters with their rendered types, if the whole text can be parsed.
    fn read(text: &str) -> Option<Vec<(String, String)>> {
        let (_, rest) = text.split_once('(')?;
        let mut reader = Signature { rest: rest.chars().peekable(), seen: String::new() };
        let mut parameters = Vec::new();
        while reader.peek() != Some(')') {
            if !parameters.is_empty() {
                reader.take_all(", ")?;
            }
            reader.seen.clear();
            let name = reader.name()?;
            if name == "..." {
                break;
            }
            reader.take_all(": ")?;
            reader.seen.clear();
            reader.kind(0)?;
            parameters.push((name, reader.seen.clone()));
        }
        reader.take(')')?;
        reader.rest.next().is_none().then_some(parameters)
    }

    fn peek(&mut self) -> Option<char> {
        self.rest.peek().copied()
    }

    fn take(&mut self, wanted: char) -> Option<()> {
        self.rest.next_if_eq(&wanted).map(|c| self.seen.push(c))
    }

    fn take_all(&mut self, wanted: &str) -> Option<()> {
        wanted.chars().try_for_each(|c| self.take(c))
    }

    /// Reads a name without the `?` of an optional parameter.
    fn name(&mut self) -> Option<String> {
        let name = self.word()?;
        let _ = self.take('?');
        Some(name)
    }

    fn word(&mut self) -> Option<String> {
        let mut word = String::new();
        while let Some(c) = self.rest.next_if(|c| !" ,:?|(){}[]\"".contains(*c)) {
            word.push(c);
        }
        self.seen.push_str(&word);
        (!word.is_empty()).then_some(word)
    }

    /// Reads alternatives, each of which may be a list.
    fn kind(&mut self, depth: usize) -> Option<()> {
        if depth > 8 {
            return None;
        }
        loop {
            match self.peek()? {
                '{' => self.fields(depth)?,
                '(' => {
                    self.take('(')?;
                    self.kind(depth + 1)?;
                    self.take(')')?;
                }
                '"' => self.text()?,
                _ => drop(self.word()?),
            }
            while self.take('[').is_some() {
                self.take(']')?;
            }
            if self.take('|').is_none() {
                return Some(());
            }
        }
    }

    fn fields(&mut self, depth: usize) -> Option<()> {
        self.take('{')?;
        // A map with arbitrary names.
        if self.peek() == Some('[') {
            self.take_all("[key]: ")?;
            self.kind(depth + 1)?;
            return self.take('}');
        }
        while self.name()?.as_str() != "..." {
            if self.take(':').is_some() {
                self.take(' ')?;
                self.kind(depth + 1)?;
            }
            if self.take(',').is_none() {
                break;
            }
            self.take(' ')?;
        }
        self.take('}')
    }

    fn text(&mut self) -> Option<()> {
        self.take('"')?;
        loop {
            let c = self.rest.next()?;
            self.seen.push(c);
            match c {
                '"' => return Some(()),
                '\\' => self.seen.push(self.rest.next()?),
                _ => {}
            }
        }
    }
}

#[test]
fn signatures_are_read_as_they_are_written() {
    for (signature, expected) in [
        ("t()", Some(vec![])),
        ("t(m?: {[key]: integer}|null)", Some(vec![("m", "{[key]: integer}|null")])),
        ("t(a: string, b?: \"x, y\"|null|..., ...)", Some(vec![("a", "string"), ("b", "\"x, y\"|null|...")])),
        ("t(a: {b: integer, c?: string[]}[])", Some(vec![("a", "{b: integer, c?: string[]}[]")])),
        ("t(a?: {b, c, ...}, d: (string|-1)[])", Some(vec![("a", "{b, c, ...}"), ("d", "(string|-1)[]")])),
        ("t(a: {b: string)", None),
        ("t(a)", None),
    ] {
        let read = Signature::read(signature);
        let expected: Option<Vec<(String, String)>> = expected.map(|all: Vec<(&str, &str)>| {
            all.into_iter().map(|(a, b)| (a.to_string(), b.to_string())).collect()
        });
        assert_eq!(read, expected, "{signature}");
    }
}
