//! Servers in command lines: what starts a server, and what adds one to a client.

use nonet_config::shell;
use serde_json::{Map, Value, json};

use super::{
    CORRECT_IT, HostFault, PastedServer,
    naming::{name_of, takes_value},
    nothing, shortened, unread,
};
use crate::{
    launchers::{is_launcher, program_of},
    typed::pairs,
};

/// Programs with a command `mcp add`.
const CLIENTS: [&str; 9] =
    ["claude", "codex", "gemini", "qwen", "copilot", "droid", "amp", "opencode", "kiro-cli"];

/// Reads command lines; lines that are no server are passed over if another is.
pub(super) fn servers(text: &str, notes: &mut Vec<String>) -> Result<Vec<PastedServer>, HostFault> {
    let (mut servers, mut others) = (Vec::new(), Vec::new());
    for line in lines(text) {
        let words = shell::words(&line).map_err(|why| unread(&line, why))?;
        match server(&words)? {
            Some(server) => servers.push(server),
            None => others.push(line),
        }
    }
    if servers.is_empty() {
        return Err(nothing());
    }
    notes.extend(others.iter().map(|line| format!("passed over: `{}`", shortened(line))));
    Ok(servers)
}

/// Returns the command lines of a text, without prompts and comments; a `\` at the end continues a line.
fn lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut continues = false;
    for line in text.lines().map(str::trim) {
        let prompts = ["$ ", "> ", "% ", "PS> "];
        let line = prompts.iter().find_map(|prompt| line.strip_prefix(prompt)).unwrap_or(line);
        let (line, goes_on) = match line.strip_suffix(['\\', '^']) {
            Some(line) => (line.trim_end(), true),
            None => (line, false),
        };
        match lines.last_mut() {
            Some(last) if continues => {
                last.push(' ');
                last.push_str(line);
            }
            _ if line.is_empty() || line.starts_with('#') => {}
            _ => lines.push(line.into()),
        }
        continues = goes_on;
    }
    lines
}

/// Reads the words of one line; none if they are no server.
fn server(words: &[String]) -> Result<Option<PastedServer>, HostFault> {
    let set = words.iter().take_while(|word| is_assignment(word)).count();
    let (env, rest) = words.split_at(set);
    let Some(program) = rest.first() else { return Ok(None) };
    let name = program_of(program);
    let word = |at: usize| rest.get(at).map(String::as_str);
    if let Some(at) = rest.iter().position(|word| word == "--add-mcp") {
        let given = rest.get(at + 1).and_then(|given| serde_json::from_str::<Value>(given).ok());
        let Some(Value::Object(mut entry)) = given else {
            return Err(unread(program, "`--add-mcp` needs an object in quotes"));
        };
        let own = entry.shift_remove("name").and_then(|name| name.as_str().map(ToString::to_string));
        return Ok(Some(PastedServer {
            name: own.unwrap_or_else(|| name_of(&entry)),
            entry,
            notes: Vec::new(),
        }));
    }
    match (word(1), word(2)) {
        (Some("mcp"), Some("add-json")) if CLIENTS.contains(&&*name) => {
            let given = rest.iter().skip(3).filter(|word| !word.starts_with('-')).collect::<Vec<_>>();
            let json = given.iter().find_map(|word| serde_json::from_str::<Value>(word).ok());
            match (given.first(), json) {
                (Some(name), Some(Value::Object(entry))) => {
                    Ok(Some(PastedServer { name: (*name).clone(), entry, notes: Vec::new() }))
                }
                _ => Err(unread("mcp add-json", "it needs a name and an object in quotes")),
            }
        }
        (Some("mcp"), Some("add")) if CLIENTS.contains(&&*name) => {
            added(rest.get(3..).unwrap_or_default()).map(Some)
        }
        _ if is_launcher(program) || program.contains(['/', '\\']) && !program.contains("://") => {
            let mut server = started(rest, env)?;
            server.name = name_of(&server.entry);
            Ok(Some(server))
        }
        _ if rest.len() == 1 && (program.starts_with("http://") || program.starts_with("https://")) => {
            let entry = Map::from_iter([("url".into(), json!(program))]);
            Ok(Some(PastedServer { name: name_of(&entry), entry, notes: Vec::new() }))
        }
        _ => Ok(None),
    }
}

/// Returns the server that a command starts, without a name.
fn started(words: &[String], env: &[String]) -> Result<PastedServer, HostFault> {
    let Some((program, args)) = words.split_first() else { return Err(nothing()) };
    let (mut args, mut notes) = (args.to_vec(), Vec::new());
    let mut variables = variables(env)?;
    if ["docker", "podman"].contains(&&*program_of(program)) {
        of_container(&mut args, &mut variables, &mut notes);
    }
    let mut entry = Map::from_iter([("command".into(), json!(program))]);
    if !args.is_empty() {
        entry.insert("args".into(), json!(args));
    }
    if !variables.is_empty() {
        entry.insert("env".into(), Value::Object(variables));
    }
    Ok(PastedServer { name: String::new(), entry, notes })
}

/// Makes `docker run` work without a shell: variables that it passes on are the server's, its input stays
/// open, and it runs neither at a terminal nor in the background. What follows the image is the server's own.
fn of_container(args: &mut Vec<String>, env: &mut Map<String, Value>, notes: &mut Vec<String>) {
    let Some(run) = args.iter().position(|word| word == "run") else { return };
    let mut words = args.split_off(run + 1).into_iter();
    let is_flags = |word: &str| {
        word.strip_prefix('-')
            .is_some_and(|flags| !flags.is_empty() && flags.chars().all(|c| "itd".contains(c)))
    };
    let [mut reads, mut has_terminal, mut is_detached] = [false; 3];
    while let Some(word) = words.next() {
        let value = takes_value(&word).then(|| words.next()).flatten();
        let passed = match (word.as_str(), &value) {
            ("-e" | "--env", Some(value)) => Some(value.as_str()),
            (word, _) => word
                .strip_prefix("--env=")
                .or_else(|| word.strip_prefix("-e").filter(|rest| !rest.is_empty())),
        };
        if let Some(name) = passed.filter(|passed| !passed.contains('=') && !passed.is_empty()) {
            env.entry(name).or_insert_with(|| json!(format!("${{{name}}}")));
        }
        let is_image = !word.starts_with('-');
        match word.as_str() {
            "--tty" | "--tty=true" => has_terminal = true,
            "--detach" | "--detach=true" => is_detached = true,
            flags if is_flags(flags) => {
                has_terminal |= flags.contains('t');
                is_detached |= flags.contains('d');
                if flags.contains('i') {
                    reads = true;
                    args.push("-i".into());
                }
            }
            _ => {
                reads |= word.starts_with("--interactive");
                args.push(word);
            }
        }
        args.extend(value);
        if is_image {
            break;
        }
    }
    args.extend(words);
    if has_terminal {
        notes.push("`-t` was left out: a server has no terminal".into());
    }
    if is_detached {
        notes.push("`-d` was left out: a server in the background reads nothing".into());
    }
    if !reads {
        args.insert(run + 1, "-i".into());
        notes.push("`-i` was added: without it the container reads nothing".into());
    }
}

/// Reads `NAME=value` words.
fn variables(given: &[String]) -> Result<Map<String, Value>, HostFault> {
    pairs("--env", "NAME=value", '=', given, str::eq).map_err(unpaired)
}

/// A fault of pairs, which has no value: it may be a secret.
fn unpaired(why: String) -> HostFault {
    HostFault::new(why, CORRECT_IT)
}

/// What the options of `mcp add` say.
#[derive(Default)]
struct AddOptions {
    env: Vec<String>,
    headers: Vec<String>,
    transport: Option<String>,
    url: Option<String>,
    token_variable: Option<String>,
    left: Vec<String>,
}

impl AddOptions {
    /// Takes an option and its value from the words. Returns whether the option is known.
    fn take(&mut self, option: &str, value: Option<&str>, rest: &mut std::slice::Iter<'_, String>) -> bool {
        let mut one = || match value {
            Some(value) => Some(value.to_string()),
            None => rest.next().cloned(),
        };
        match option {
            "-e" | "--env" => {
                self.env.extend(one());
                // Several may follow one option.
                let is_more = |word: &String| !word.starts_with('-') && is_assignment(word);
                while let Some(more) = rest.as_slice().first().filter(|word| is_more(word)) {
                    self.env.push(more.clone());
                    rest.next();
                }
            }
            "-H" | "--header" => self.headers.extend(one()),
            "-t" | "--transport" | "--type" => self.transport = one(),
            "--url" => self.url = one(),
            "--bearer-token-env-var" => self.token_variable = one(),
            // Where the client keeps the server.
            "-s" | "--scope" => drop(one()),
            "--global" | "-g" => {}
            "--trust" | "--client-secret" => self.left.push(option.into()),
            "--client-id" | "--callback-port" | "--timeout" | "--description" | "--include-tools"
            | "--exclude-tools" => {
                one();
                self.left.push(option.into());
            }
            _ => return false,
        }
        true
    }
}

/// Whether a word is `NAME=value`.
fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    })
}

/// Reads what follows `mcp add`: options, a name, and a command or an address.
fn added(words: &[String]) -> Result<PastedServer, HostFault> {
    let mut options = AddOptions::default();
    let (mut name, mut command): (Option<String>, Vec<String>) = (None, Vec::new());
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let (option, value) = match word.strip_prefix("--").and_then(|word| word.split_once('=')) {
            Some((option, value)) => (format!("--{option}"), Some(value)),
            None => (word.clone(), None),
        };
        if word == "--" {
            command.extend(rest.by_ref().cloned());
        } else if word.starts_with('-') {
            if !options.take(&option, value, &mut rest) {
                return Err(unread(word, "this option of `mcp add` is not understood"));
            }
        } else if name.is_none() {
            name = Some(word.clone());
        } else if word.contains("://") {
            options.url = Some(word.clone());
        } else {
            command.push(word.clone());
            // The options from here on are the program's.
            let own = rest.by_ref().filter(|word| *word != "--").cloned();
            command.extend(own);
        }
    }
    // An address after `--`.
    if let [only] = command.as_slice()
        && only.contains("://")
        && options.url.is_none()
    {
        options.url = command.pop();
    }
    let name = name.ok_or_else(|| unread("mcp add", "the name of the server is missing"))?;
    let mut server = match (options.url, command.is_empty()) {
        (Some(url), _) => {
            let mut entry = Map::from_iter([("url".into(), json!(url))]);
            if options.transport.as_deref() == Some("sse") {
                entry.insert("type".into(), json!("sse"));
            }
            let mut headers =
                pairs("--header", "Name: value", ':', &options.headers, str::eq_ignore_ascii_case)
                    .map_err(unpaired)?;
            if let Some(variable) = &options.token_variable {
                headers.insert("Authorization".into(), json!(format!("Bearer ${{{variable}}}")));
            }
            if !headers.is_empty() {
                entry.insert("headers".into(), Value::Object(headers));
            }
            PastedServer { name: String::new(), entry, notes: Vec::new() }
        }
        (None, false) => started(&command, &options.env)?,
        (None, true) => return Err(unread("mcp add", "it has neither a command nor an address")),
    };
    server.name = name;
    server.notes.extend(options.left.iter().map(|option| format!("`{option}` was left out")));
    Ok(server)
}
