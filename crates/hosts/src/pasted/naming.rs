//! Names for servers that a text does not name: from their package, image, script or address.

use std::path::Path;

use serde_json::{Map, Value};

use super::OF_ENTRY;
use crate::launchers::is_launcher;

/// The name if nothing tells one.
const UNNAMED: &str = "server";
/// Words that say that something is an MCP server, and nothing else.
const GENERIC: [&str; 7] = ["mcp", "server", "servers", "modelcontextprotocol", "index", "main", "cli"];
/// Folders of a program's files.
const FOLDERS: [&str; 6] = ["dist", "build", "src", "lib", "bin", "out"];
/// Parts of an address that name nobody.
const COMMON_LABELS: [&str; 5] = ["www", "mcp", "api", "server", "app"];
/// Words between a launcher and what it starts.
const BETWEEN: [&str; 7] = ["run", "exec", "dlx", "x", "tool", "container", "tsx"];

/// Whether an option of a launcher is followed by a value.
pub(super) fn takes_value(option: &str) -> bool {
    matches!(
        option,
        "-e" | "--env"
            | "-v"
            | "--volume"
            | "--mount"
            | "--name"
            | "-p"
            | "--publish"
            | "--network"
            | "-u"
            | "--user"
            | "-w"
            | "--workdir"
            | "--entrypoint"
            | "--env-file"
            | "--platform"
            | "--pull"
            | "--add-host"
            | "--memory"
            | "--cpus"
            | "--gpus"
            | "-l"
            | "--label"
            | "-h"
            | "--hostname"
            | "--net"
            | "--restart"
            | "--cap-add"
            | "--cap-drop"
            | "--security-opt"
            | "--device"
            | "--tmpfs"
            | "--with"
            | "--python"
            | "--directory"
            | "--project"
            | "--index-url"
            | "--extra-index-url"
            | "--with-editable"
            | "--loader"
    )
}

/// Returns a name for an entry.
pub(super) fn name_of(entry: &Map<String, Value>) -> String {
    let text = |key: &&str| entry.get(*key).and_then(Value::as_str);
    if let Some(url) = OF_ENTRY.iter().skip(2).find_map(text) {
        return of_address(url);
    }
    let mut words: Vec<&str> = match entry.get("command").or_else(|| entry.get("cmd")) {
        Some(Value::Array(words)) => words.iter().filter_map(Value::as_str).collect(),
        Some(Value::String(line)) => line.split_whitespace().collect(),
        _ => Vec::new(),
    };
    words.extend(entry.get("args").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str));
    of_command(&words)
}

/// Returns a name for what a command starts.
fn of_command(words: &[&str]) -> String {
    let Some((program, arguments)) = words.split_first() else { return UNNAMED.into() };
    if !is_launcher(program) || arguments.is_empty() {
        return of_package(program);
    }
    let mut rest = arguments.iter().copied();
    while let Some(word) = rest.next() {
        // What is named here decides, not the command that it brings.
        if ["-m", "--from", "--package"].contains(&word) {
            return rest.next().map_or_else(|| UNNAMED.into(), of_package);
        }
        if takes_value(word) {
            rest.next();
        } else if !word.starts_with('-') && !BETWEEN.contains(&word) && !is_launcher(word) {
            return of_package(word);
        }
    }
    UNNAMED.into()
}

/// Returns a name for a package, an image, a module or a file.
fn of_package(word: &str) -> String {
    let word = word.split(['#', '?']).next().unwrap_or_default().trim_end_matches('/').replace('\\', "/");
    let parts: Vec<&str> = word.split('/').collect();
    let last = parts.last().copied().unwrap_or_default();
    let scope = parts.iter().rev().nth(1).copied().unwrap_or_default();
    // A version after `@`, a tag after `:`.
    let last = last.split('@').find(|part| !part.is_empty()).unwrap_or_default();
    let last = last.split(':').next().unwrap_or_default();
    let stem = match Path::new(last).extension().and_then(|extension| extension.to_str()) {
        Some("js" | "mjs" | "cjs" | "ts" | "py" | "jar" | "exe" | "git" | "cmd") => {
            last.rsplit_once('.').map_or(last, |(stem, _)| stem)
        }
        _ => last,
    };
    let above = parts.iter().rev().skip(1).map(|part| part.trim_start_matches('@'));
    let above = above.filter(|part| !FOLDERS.contains(part) && !part.ends_with(':'));
    let scope = scope.trim_start_matches('@');
    [telling(stem), telling(scope)]
        .into_iter()
        .chain(above.map(telling))
        .find(|name| !name.is_empty())
        .unwrap_or_else(|| UNNAMED.into())
}

/// Returns the words of a name that tell something, joined by `-`.
fn telling(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let words = words.map(str::to_ascii_lowercase);
    let words: Vec<String> =
        words.filter(|word| !GENERIC.contains(&&**word) && !FOLDERS.contains(&&**word)).collect();
    words.join("-")
}

fn of_address(url: &str) -> String {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = host.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let host = host.split(':').next().unwrap_or_default().to_ascii_lowercase();
    let labels: Vec<&str> = host.split('.').collect();
    let named = labels.len().saturating_sub(1).max(1);
    let telling = labels.iter().take(named).find(|label| !COMMON_LABELS.contains(label));
    let name: String = telling.unwrap_or(&UNNAMED).chars().filter(char::is_ascii_alphanumeric).collect();
    if name.is_empty() { UNNAMED.into() } else { name }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_server_without_a_name_is_called_by_what_it_is() {
        let check = |line: &str, expected: &str| {
            let entry = json!({ "command": line });
            assert_eq!(name_of(entry.as_object().unwrap()), expected, "{line}");
        };
        check("npx -y @modelcontextprotocol/server-memory", "memory");
        check("npx @playwright/mcp@latest --headless", "playwright");
        check("npx -y @upstash/context7-mcp@1.0.0", "context7");
        check("npx -y firecrawl-mcp", "firecrawl");
        check("uvx mcp-server-git --repository /home/me/x", "git");
        check("uvx --from git+https://github.com/oraios/serena serena start-mcp-server", "serena");
        check("python3 -m mcp_server_time", "time");
        check("uv run --directory /opt/weather server.py", "server");
        check("node /home/me/weather-server/dist/index.js", "weather");
        check("docker run -i --rm -e TOKEN ghcr.io/github/github-mcp-server", "github");
        check("docker run --rm -i mcp/time:1.2", "time");
        check("/opt/tools/notes-mcp", "notes");
        check("", "server");
        let check = |url: &str, expected: &str| {
            let entry = json!({ "url": url });
            assert_eq!(name_of(entry.as_object().unwrap()), expected, "{url}");
        };
        check("https://mcp.context7.com/mcp", "context7");
        check("https://api.githubcopilot.com/mcp/", "githubcopilot");
        check("http://localhost:3000/mcp", "localhost");
        check("http://127.0.0.1:3000/mcp", "127");
        check("https://mcp.dev", "server");
    }
}
