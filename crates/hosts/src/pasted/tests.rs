//! What READMEs offer, and the entries that it becomes.

use base64::{Engine, engine::general_purpose::STANDARD};

use super::*;

/// Returns the servers of a text, as one object by name, or the fault.
fn servers(text: &str) -> Result<(Value, Vec<String>), String> {
    let pasted = read(text).map_err(|fault| fault.to_string())?;
    let mut all = Map::new();
    for root in &pasted.roots {
        for table in read::servers(root, Path::new("")).0 {
            all.extend(table.entries.into_owned());
        }
    }
    Ok((Value::Object(all), pasted.notes))
}

fn check(text: &str, expected: Value) {
    assert_eq!(servers(text).map(|(servers, _)| servers), Ok(expected), "{text}");
}

/// What every way of writing it must become.
fn github() -> Value {
    json!({ "github": { "command": "npx", "args": ["-y", "@modelcontextprotocol/server-github"] } })
}

#[test]
fn json_is_read_with_and_without_its_outer_braces() {
    let entry = r#"{"command": "npx", "args": ["-y", "@modelcontextprotocol/server-github"]}"#;
    for text in [
        format!(r#"{{"mcpServers": {{"github": {entry}}}}}"#),
        format!(r#"{{"servers": {{"github": {entry}}}}}"#),
        format!(r#"{{"github": {entry}}}"#),
        format!(r#""github": {entry}"#),
        format!("  \"github\": {entry},\n"),
        format!("\"mcpServers\": {{ // servers\n \"github\": {entry}, }}"),
        entry.to_string(),
        entry.trim_matches(['{', '}']).to_string(),
        entry.replace('\n', "\r\n"),
        format!("\u{feff}{entry}"),
    ] {
        check(&text, github());
    }
    check(r#"{"name": "gh", "command": "gh"}"#, json!({ "gh": { "name": "gh", "command": "gh" } }));
    check(
        r#"{"url": "https://mcp.linear.app/sse"}"#,
        json!({ "linear": { "url": "https://mcp.linear.app/sse" } }),
    );
    check(
        "[mcp_servers.github]\ncommand = \"npx\"\nargs = [\"-y\", \"@modelcontextprotocol/server-github\"]\n",
        github(),
    );
    check("command = \"gh-mcp\"", json!({ "gh": { "command": "gh-mcp" } }));
    check("extensions:\n  gh:\n    cmd: gh-mcp\n", json!({ "gh": { "cmd": "gh-mcp" } }));
}

#[test]
fn commands_are_read_as_people_print_them() {
    for text in [
        "npx -y @modelcontextprotocol/server-github",
        "$ npx -y \\\n    @modelcontextprotocol/server-github",
        "# first\n\nnpx -y '@modelcontextprotocol/server-github'",
        "`npx -y @modelcontextprotocol/server-github`",
        "claude mcp add github -- npx -y @modelcontextprotocol/server-github",
        "claude mcp add github npx -y @modelcontextprotocol/server-github",
        "claude mcp add -s user --transport stdio github -- npx -y @modelcontextprotocol/server-github",
        "codex mcp add github -- npx -y @modelcontextprotocol/server-github",
        r#"claude mcp add-json github '{"command": "npx", "args": ["-y", "@modelcontextprotocol/server-github"]}'"#,
        r#"code --add-mcp '{"name": "github", "command": "npx", "args": ["-y", "@modelcontextprotocol/server-github"]}'"#,
    ] {
        check(text, github());
    }
    check(
        "claude mcp add airtable --env AIRTABLE_API_KEY=k BASE=b -e MORE=m -- npx -y airtable-mcp-server --env x",
        json!({ "airtable": {
            "command": "npx", "args": ["-y", "airtable-mcp-server", "--env", "x"],
            "env": { "AIRTABLE_API_KEY": "k", "BASE": "b", "MORE": "m" },
        } }),
    );
    check(
        "claude mcp add --transport http github https://api.githubcopilot.com/mcp -H 'Authorization: Bearer t' -H \"X-A: b: c\"",
        json!({ "github": {
            "url": "https://api.githubcopilot.com/mcp", "headers": { "Authorization": "Bearer t", "X-A": "b: c" },
        } }),
    );
    check(
        "claude mcp add --transport=sse asana https://mcp.asana.com/sse",
        json!({ "asana": { "url": "https://mcp.asana.com/sse", "type": "sse" } }),
    );
    check(
        "codex mcp add gh --url https://gh.example/mcp --bearer-token-env-var GH_TOKEN",
        json!({ "gh": { "url": "https://gh.example/mcp", "headers": { "Authorization": "Bearer ${GH_TOKEN}" } } }),
    );
    check(
        "API_KEY=k uvx mcp-server-git --repository .",
        json!({ "git": { "command": "uvx", "args": ["mcp-server-git", "--repository", "."], "env": { "API_KEY": "k" } } }),
    );
    check("https://mcp.context7.com/mcp", json!({ "context7": { "url": "https://mcp.context7.com/mcp" } }));
    check("/opt/notes/run --all", json!({ "run": { "command": "/opt/notes/run", "args": ["--all"] } }));
}

#[test]
fn a_container_can_be_spoken_to_and_gets_the_variables_that_it_is_promised() {
    let text =
        "docker run -it --rm -e GITHUB_TOKEN -e MODE=full --env=REGION ghcr.io/github/github-mcp-server";
    let (found, notes) = servers(text).expect("a server");
    assert_eq!(
        found,
        json!({ "github": {
            "command": "docker",
            "args": ["run", "-i", "--rm", "-e", "GITHUB_TOKEN", "-e", "MODE=full", "--env=REGION", "ghcr.io/github/github-mcp-server"],
            "env": { "GITHUB_TOKEN": "${GITHUB_TOKEN}", "REGION": "${REGION}" },
        } })
    );
    assert_eq!(notes, ["github: `-t` was left out: a server has no terminal"]);
    let (found, notes) = servers("docker run --rm mcp/time").expect("a server");
    assert_eq!(found["time"]["args"], json!(["run", "-i", "--rm", "mcp/time"]));
    assert!(notes[0].contains("`-i` was added"), "{notes:?}");
}

#[test]
fn what_follows_the_image_is_the_servers_own() {
    let check = |line: &str, args: &str, told: &[&str]| {
        let (found, notes) = servers(line).expect("a server");
        let server = found.as_object().and_then(|found| found.values().next()).expect("one");
        let words: Vec<&str> = args.split(' ').collect();
        assert_eq!(server["args"], json!(words), "{line}");
        assert!(server.get("env").is_none(), "{line}: {server}");
        assert_eq!(notes.len(), told.len(), "{line}: {notes:?}");
        assert!(notes.iter().zip(told).all(|(note, told)| note.contains(told)), "{line}: {notes:?}");
    };
    let plain = "run -i --rm img/srv -t stdio";
    check(&format!("docker {plain}"), plain, &[]);
    check("docker run -it --rm img/srv -e NAME -d", "run -i --rm img/srv -e NAME -d", &["`-t` was left out"]);
    check("podman run -dit --name x img/srv -it", "run -i --name x img/srv -it", &["`-t`", "`-d`"]);
    check("docker run -d --memory 512m img/srv", "run -i --memory 512m img/srv", &["`-d`", "`-i` was added"]);
    check("docker run --detach -ti img/srv --tty", "run -i img/srv --tty", &["`-t`", "`-d`"]);
}

#[test]
fn install_links_hold_their_server() {
    let entry = r#"{"command":"npx","args":["-y","@modelcontextprotocol/server-github"]}"#;
    let line = STANDARD.encode(r#"{"command":"npx -y @modelcontextprotocol/server-github"}"#);
    let (config, encoded) = (STANDARD.encode(entry), percent(entry));
    let with_name = percent(&entry.replacen('{', r#"{"name":"github","#, 1));
    let inner = percent(&format!("vscode:mcp/install?{with_name}"));
    let named = json!({ "github": {
        "name": "github", "command": "npx", "args": ["-y", "@modelcontextprotocol/server-github"],
    } });
    for text in [
        format!("cursor://anysphere.cursor-deeplink/mcp/install?name=github&config={config}"),
        format!("cursor://anysphere.cursor-deeplink/mcp/install?name=github&config={}", percent(&config)),
        format!("cursor://anysphere.cursor-deeplink/mcp/install?name=github&config={line}"),
        format!(
            "[![Add](https://cursor.com/deeplink/x.svg)](https://cursor.com/en/install-mcp?name=github&config={config})"
        ),
        format!(
            "<a href=\"https://cursor.com/install-mcp?name=github&amp;config={}\">",
            config.trim_end_matches('=')
        ),
        format!("https://insiders.vscode.dev/redirect/mcp/install?name=github&config={encoded}"),
        format!("lmstudio://add_mcp?name=github&config={config}"),
    ] {
        check(&text, github());
    }
    for text in [
        format!("vscode:mcp/install?{with_name}"),
        format!("vscode-insiders:mcp/install?{}", entry.replacen('{', r#"{"name":"github","#, 1)),
        format!("https://vscode.dev/redirect?url={inner}"),
    ] {
        check(&text, named.clone());
    }
    let inputs = json!([{ "id": "token", "type": "promptString", "password": true }]);
    let link = format!(
        "https://vscode.dev/redirect/mcp/install?name=github&inputs={}&config={encoded}",
        percent(&inputs.to_string())
    );
    assert_eq!(read(&link).ok().map(|pasted| pasted.roots[0]["inputs"].clone()), Some(inputs));
    for broken in [
        "cursor://anysphere.cursor-deeplink/mcp/install?name=x&config=%%%",
        "vscode:mcp/install?",
        "vscode:mcp/install?%7B",
    ] {
        let fault = servers(broken).unwrap_err();
        assert!(fault.contains("has no server that can be read"), "{broken}: {fault}");
    }
}

fn percent(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

#[test]
fn of_a_readme_the_fences_count() {
    let readme = "# GitHub\nInstall it:\n```sh\nnpm install -g x\n```\nthen\n\n   ```json\n   \"github\": {\"command\": \"npx\", \
                  \"args\": [\"-y\", \"@modelcontextprotocol/server-github\"]}\n   ```\nor\n~~~\nuvx mcp-server-git\n~~~\n";
    let git = json!({ "command": "uvx", "args": ["mcp-server-git"] });
    check(readme, json!({ "github": github()["github"], "git": git }));
    check("```\nnpx -y @modelcontextprotocol/server-github", github());
    let (_, notes) = servers("```\nuvx mcp-server-git\n```\n```json\n{\"a\": }\n```").expect("a server");
    assert!(notes.len() == 1 && notes[0].contains("this is not JSON"), "a faulty piece is told: {notes:?}");
    let (_, notes) = servers("cd here\nnpx -y x-mcp").expect("a server");
    assert_eq!(notes, ["passed over: `cd here`"]);
}

#[test]
fn what_is_no_server_is_told_and_shows_no_secret() {
    let told = |text: &str| servers(text).unwrap_err();
    for text in ["", "   ", "```\n```", "{}", "hello world", "make install", "{\"a\": 1}", "[x]\ny = 1"] {
        assert!(
            told(text).starts_with("the text has no server. Paste what a README offers: "),
            "{text}: {}",
            told(text)
        );
    }
    assert!(told("{\"mcpServers\": {").starts_with("the text:1:"), "{}", told("{\"mcpServers\": {"));
    assert!(told("claude mcp add").contains("the name of the server is missing"));
    assert!(told("claude mcp add x").contains("neither a command nor an address"));
    assert!(told("claude mcp add --what x -- y").contains("`--what`: this option"));
    let fault = told("claude mcp add x -e s3cret -- y");
    assert!(fault.contains("`--env` needs `NAME=value`") && !fault.contains("s3cret"), "{fault}");
    let fault = told("claude mcp add x https://a.example -H s3cret");
    assert!(fault.contains("`--header` needs `Name: value`") && !fault.contains("s3cret"), "{fault}");
    assert!(told(&"x".repeat(LONGEST + 1)).contains("at most"));
    // No text is a fault of the program.
    let whole = "```\nclaude mcp add x -e A=b -H 'C: d' -- docker run -t -e \"$É\" https://x \\\n``` vscode:mcp/install?{%7B cursor://";
    for end in (0..=whole.len()).filter(|end| whole.is_char_boundary(*end)) {
        let _ = (read(&whole[..end]), read(&whole[end..]), one_server(&whole[..end], None));
    }
}

#[test]
fn one_server_gets_the_name_that_the_user_gives_it() {
    let (one, _) = one_server("npx -y @modelcontextprotocol/server-github", Some("gh")).expect("one");
    check(&one, json!({ "gh": github()["github"] }));
    let (codex, _) =
        one_server("[mcp_servers.a]\ncommand = 'x'\ntool_timeout_sec = 5", Some("b")).expect("one");
    assert!(codex.starts_with(r#"{"mcp_servers":{"b":"#), "its dialect stays: {codex}");
    let (_, notes) = one_server("docker run mcp/time", None).expect("one");
    assert_eq!(notes.len(), 1, "{notes:?}");
    let fault = one_server(r#"{"a": {"command": "x"}, "b": {"command": "y"}}"#, None).unwrap_err();
    assert!(
        fault.to_string().starts_with("the text has 2 servers. Add them with `nonet import TEXT`"),
        "{fault}"
    );
}

#[test]
fn placeholders_are_not_secrets() {
    for value in [
        "YOUR_API_KEY",
        "<your-token>",
        "your-api-key-here",
        "ghp_xxxxxxxx",
        "sk-...",
        "[token]",
        "INSERT_KEY",
    ] {
        assert!(is_placeholder(value), "{value}");
    }
    for value in ["ghp_0123456789abcdefghijABCDEFGHIJ456789", "hunter2", "yourself", ""] {
        assert!(!is_placeholder(value), "{value}");
    }
}
