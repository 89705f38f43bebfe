//! TypeScript declarations of tools, made from their JSON Schemas: an editor completes from them, and a model
//! reads them in one compact form.
//!
//! Names, descriptions and schemas come from outside. Whatever they contain, the text stays valid TypeScript
//! and within its bounds. This file knows JSON Schema and TypeScript only.

mod types;

use serde_json::Value;

use self::types::Writer;

/// The longest declaration of one tool; what of it is kept for syntax and notes, in bytes.
const MAX_TOOL_TEXT: usize = 16 << 10;
const RESERVED: usize = 1 << 10;
/// The longest name of a tool or a server, in bytes. A name cannot be cut: the tool would not be found.
const MAX_NAME: usize = 256;
/// The longest descriptions of a tool, and of a property or the notes, in characters.
const MAX_TOOL_DOC: usize = 300;
const MAX_PROPERTY_DOC: usize = 160;
/// How deep schemas are followed, not counting references; then counting them.
const MAX_DEPTH: usize = 12;
const MAX_PATH: usize = 48;
/// The most properties of an object, and the most alternatives of a type or places of a tuple.
const MAX_PROPERTIES: usize = 200;
const MAX_ALTERNATIVES: usize = 30;
/// The most combinations of alternatives in an intersection. The compiler refuses 100,000.
const MAX_COMBINATIONS: usize = 1_000;
/// How much of a text and of a list is read, and the longest reference.
const MAX_TEXT_READ: usize = 4 << 10;
const MAX_LIST: usize = 1_000;
const MAX_REFERENCE: usize = 512;

/// The globals of a script, as declarations.
pub const SCRIPT_GLOBALS: &str = "\
/** Calls a tool by its full name. */
declare function call(name: string, args?: object): Promise<any>;
/** Runs `fn` for each item, several at a time, and returns the results in order. */
declare function all<T, R>(list: Iterable<T>, fn: (item: T, index: number) => Promise<R> | R, \
options?: { max?: number }): Promise<R[]>;
/** Finds tools by what they do. */
declare function search(query: string, options?: { limit?: number, category?: string, \
max_risk?: \"low\"|\"medium\"|\"high\" }): Promise<{ name: string, description: string, signature: string, \
risk: string, state?: string }[]>;
/** Returns the definition of a tool. */
declare function describe(name: string): Promise<{ name: string, description: string, signature: string, \
risk: string, input_schema: any, output_schema?: any }>;
/** Opens a kept result by its reference. */
declare function result(ref: string): { json(): Promise<any>; text(): Promise<string>; \
lines(): AsyncIterable<string>; jq(filter: string): Promise<any> };
/** The input of the script. */
declare const input: any;
/** Writes to the log of the script. */
declare function log(...values: any[]): void;
/** Reports progress to the caller. */
declare function progress(done: number, total?: number, message?: string): void;
/** Waits. */
declare function sleep(ms: number): Promise<void>;
/** Asks the user, and returns the answer. */
declare function ask(question: string, choices?: string[]): Promise<string>;
/** Reads text as data. */
declare const parse: { csv(text: string, separator?: string): Record<string, string | null>[]; \
jsonl(text: string): any[] };
/** Writes data as text. */
declare const format: { csv(rows: object[] | any[][]): string; markdown(rows: object[] | any[][]): string };
/** What a failed call throws. */
declare class ToolError extends Error { code: string; retryable: boolean; details?: any }
";

/// A tool to declare.
#[derive(Clone, Debug)]
pub struct DeclaredTool<'a> {
    /// The server's name.
    pub server: &'a str,
    /// The tool's name on its server.
    pub name: &'a str,
    /// The tool's description. Only the first paragraph is shown.
    pub description: &'a str,
    /// The schema of the arguments.
    pub input: &'a Value,
    /// The schema of the result.
    pub output: Option<&'a Value>,
    /// What else to know about the tool, such as "read-only".
    pub notes: Vec<&'a str>,
}

/// How much declarations say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everything, one property per line, for editors.
    Full,
    /// One line per tool without descriptions of properties, for models.
    Compact,
}

/// Returns the text of a `.d.ts` file that declares the tools, grouped by server in order of first
/// appearance.
pub fn declarations(tools: &[DeclaredTool<'_>], scope: Scope) -> String {
    let mut servers: Vec<(&str, String)> = Vec::new();
    let mut left_out = 0;
    for tool in tools {
        if tool.server.len() > MAX_NAME || tool.name.len() > MAX_NAME {
            left_out += 1;
            continue;
        }
        let text = declaration(tool, scope);
        match servers.iter_mut().find(|(name, _)| *name == tool.server) {
            Some((_, texts)) => texts.push_str(&text),
            None => servers.push((tool.server, text)),
        }
    }
    let mut out = String::from("declare const tools: {\n");
    for (name, texts) in servers {
        out.push_str(&format!("  {}: {{\n{texts}  }};\n", property_name(name)));
    }
    out.push_str("};\n");
    if left_out > 0 {
        out.push_str(&format!("// Tools left out because of their long names: {left_out}\n"));
    }
    out
}

/// Declares one tool as a method, with its comment.
fn declaration(tool: &DeclaredTool<'_>, scope: Scope) -> String {
    let name = property_name(tool.name);
    let mut comment = prose(tool.description, MAX_TOOL_DOC);
    let mut notes = vec![prose(&tool.notes.join(", "), MAX_PROPERTY_DOC)];
    let mut left = MAX_TOOL_TEXT.saturating_sub(RESERVED + name.len() + comment.len());
    let mut typed = |schema, too_large: &str| {
        let text = Writer::new(schema, scope, left).text().unwrap_or_else(|| {
            notes.push(too_large.to_owned());
            "any".into()
        });
        left = left.saturating_sub(text.len());
        text
    };
    let input = typed(tool.input, "arguments too large to declare");
    let output = tool.output.map_or("any".into(), |output| typed(output, "result too large to declare"));
    let optional = if needs_arguments(tool.input) { "" } else { "?" };
    notes.retain(|note| !note.is_empty());
    if !notes.is_empty() {
        let space = if comment.is_empty() { "" } else { " " };
        comment.push_str(&format!("{space}[{}]", notes.join(", ")));
    }
    if !comment.is_empty() {
        let end = if scope == Scope::Full { "\n    " } else { " " };
        comment = format!("/** {comment} */{end}");
    }
    format!("    {comment}{name}(args{optional}: {input}): Promise<{output}>;\n")
}

/// Returns whether a tool cannot be called without arguments.
fn needs_arguments(root: &Value) -> bool {
    let demanding = |schema: &Value| list(schema.get("required")).next().is_some();
    let mut waiting = vec![root];
    for _ in 0..MAX_PATH {
        let Some(schema) = waiting.pop() else { return false };
        let target = schema.get("$ref").and_then(|reference| local(root, reference));
        let mut choices = ["anyOf", "oneOf"].into_iter().filter_map(|key| schema.get(key));
        if demanding(schema)
            || choices
                .any(|choices| list(Some(choices)).next().is_some() && list(Some(choices)).all(demanding))
        {
            return true;
        }
        waiting.extend(target);
        waiting.extend(list(schema.get("allOf")).take(MAX_ALTERNATIVES));
    }
    false
}

/// Returns the first entries of a list in a schema.
fn list(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten().take(MAX_LIST)
}

/// Returns what a reference into the same schema points to.
fn local<'a>(root: &'a Value, reference: &Value) -> Option<&'a Value> {
    let pointer = reference.as_str()?.strip_prefix('#').filter(|pointer| pointer.len() <= MAX_REFERENCE)?;
    root.pointer(pointer)
}

/// Returns the first paragraph on one line, as it may stand in a comment.
fn prose(text: &str, most: usize) -> String {
    let start = text.get(..text.floor_char_boundary(MAX_TEXT_READ)).unwrap_or_default().trim_start();
    let lines = start.lines().take_while(|line| !line.trim().is_empty());
    let words = lines.flat_map(str::split_whitespace);
    let mut chars =
        words.flat_map(|word| [" ", word]).flat_map(str::chars).filter(|c| !is_hidden(*c)).skip(1);
    let mut out: String = chars.by_ref().take(most).collect();
    if chars.next().is_some() {
        out.push_str("...");
    }
    let out = out.trim().replace("*/", "*\\/");
    // `@ts-expect-error` and `@deprecated` would speak to the compiler and the editor.
    if out.starts_with('@') { format!("\\{out}") } else { out }
}

/// Returns a name as a key. `new` would declare a constructor.
fn property_name(name: &str) -> String {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    let plain = name.chars().all(word) && !name.starts_with(|c: char| c.is_ascii_digit());
    if plain && !name.is_empty() && name != "new" { name.into() } else { quoted(name) }
}

/// Returns a string literal that cannot end early, not even inside a comment.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '/' if out.ends_with('*') => out.push_str("\\/"),
            c if is_hidden(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Returns whether a character is a control, ends a line, or changes text without being seen.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
        || ('\u{e0000}'..='\u{e0fff}').contains(&c)
}

#[cfg(test)]
mod tests;
