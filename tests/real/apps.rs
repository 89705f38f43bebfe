//! User interfaces of servers (MCP Apps) in a browser: the SDKs' servers behind Nonet, and a host with the SDK's bridge.

use std::{fs, net::TcpListener, path::Path, process::Command};

use crate::{HttpGateway, chromium, installed};

#[test]
fn interfaces_of_servers_work_in_a_browser() {
    let Some(real) = installed() else { return };
    let Some(chromium) = chromium() else { return };
    let folder = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real");
    let server = |name: &str| {
        format!(
            "[servers.{name}]\ncommand = 'node'\nargs = [{script:?}, '{name}']\nenv = {{ NONET_REAL = {real:?} }}\n",
            script = scripts.join("apps_server.mjs"),
        )
    };
    let config = format!(
        "[gateway]\nui = true\nallow_without_tokens = true\nallowed_origins = ['http://127.0.0.1:{port}']\n\
         [embedder]\ncache = {cache:?}\n{}{}",
        server("clock"),
        server("board"),
        cache = folder.path().join("cache"),
    );
    fs::write(folder.path().join("servers.toml"), config).unwrap();
    let gateway = HttpGateway::start(folder.path());
    let done = Command::new("node")
        .arg(scripts.join("apps.mjs"))
        .args([&gateway.url, &port.to_string()])
        .arg(chromium)
        .env("NONET_REAL", &real)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
}
