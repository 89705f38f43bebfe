//! One session with the Python SDK that uses tools from everywhere: a REST service, a real server that the
//! session adds, a skill and an app.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::Path,
};

use serde_json::json;

use crate::{NONET, at_home, clients::printed, installed};

/// Answers each request with JSON that contains its target.
fn answer(stream: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let target = first.split(' ').nth(1).unwrap_or_default();
    let body = json!({ "asked": target, "sky": "a blue sky" }).to_string();
    write!(
        &stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[test]
fn the_python_sdk_finds_and_runs_what_is_no_server_of_the_file() {
    let Some(real) = installed() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = answer(stream);
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::create_dir_all(at.join("skills/changelog")).unwrap();
    let skill = "---\nname: changelog\ndescription: Writes the notes of a release for its users\n---\nSort the changes of $ARGUMENTS.\n";
    fs::write(at.join("skills/changelog/SKILL.md"), skill).unwrap();
    let document = json!({
        "openapi": "3.1.0",
        "info": { "title": "Weather", "version": "1" },
        "servers": [{ "url": base }],
        "paths": { "/forecast/{city}": { "get": {
            "operationId": "getForecast",
            "summary": "Temperature and rain of the coming days",
            "parameters": [{ "name": "city", "in": "path", "required": true, "schema": { "type": "string" } }],
            "responses": { "200": { "description": "The forecast" } },
        } } },
    });
    fs::write(at.join("weather.json"), document.to_string()).unwrap();
    let config = format!(
        "[gateway]\nskills = ['skills']\nallow_runtime_servers = true\n\
         [embedder]\ncache = {:?}\n\
         [servers.weather]\nopenapi = 'weather.json'\n\
         [apps.morning]\ndescription = 'Tells a person what the day will be like'\noutput = '{{{{sky.sky}}}}'\n\
         [[apps.morning.steps]]\nid = 'sky'\ntool = 'weather.getForecast'\nparams = {{ city = '{{{{input.city}}}}' }}\n",
        at.join("cache")
    );
    let file = at.join("servers.toml");
    fs::write(&file, config).unwrap();

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real/python_session.py");
    let mut client = at_home(real.join("venv/bin/python"), at);
    let server = real.join("node/node_modules/.bin/mcp-server-memory");
    client.arg(script).arg(&server).args([NONET, "--config"]).arg(&file);
    let report = printed(&mut client);

    assert_eq!(
        report["found"],
        json!({
            "how warm will it be tomorrow in Bergen": "weather.getForecast",
            "build a graph of people and how they are related": "notes.create_relations",
            "draft a summary of what changed in this version": "skills.changelog",
            "start my day with a briefing": "apps.morning",
        }),
        "{report}"
    );
    assert!(report["rest"].as_str().unwrap().contains("/forecast/Bergen"), "{report}");
    assert_eq!(report["added"]["state"], "ready", "{report}");
    assert!(report["asked"][0].as_str().unwrap().contains(server.to_str().unwrap()), "{report}");
    assert!(report["called"].as_str().unwrap().contains("entities"), "{report}");
    assert!(report["skill"].as_str().unwrap().contains("Sort the changes of 2.0."), "{report}");
    assert_eq!(report["app"], "a blue sky", "{report}");
}
