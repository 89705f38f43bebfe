//! The SDKs' own sign-ins, with a certified issuer: they find it, sign in, are refused with too few scopes, ask
//! for more, renew, and meet new keys.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{HttpGateway, chromium, installed};

/// A program that answers lines with lines.
struct Program {
    process: Child,
    input: ChildStdin,
    lines: Box<dyn Iterator<Item = String>>,
}

impl Program {
    fn start(command: &mut Command) -> Self {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = process.stdin.take().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        Self { process, input, lines: Box::new(lines) }
    }

    fn answer(&mut self, command: &str) -> Value {
        writeln!(self.input, "{command}").unwrap();
        let line = self.lines.next().unwrap_or_else(|| panic!("no answer to {command}"));
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("{command}: {line}"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A gateway whose people sign in with an issuer.
struct Company {
    issuer: Program,
    address: String,
    gateway: HttpGateway,
    real: PathBuf,
    _folder: tempfile::TempDir,
}

impl Company {
    fn start(real: PathBuf) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Tokens are for an address, so it has to be known before.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let public = format!("http://127.0.0.1:{port}");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real/issuer.mjs");
        let mut issuer = Program::start(
            Command::new("node").arg(script).arg(format!("{public}/mcp")).env("NONET_REAL", &real),
        );
        let address = issuer.lines.next().unwrap();
        let config = format!(
            "[gateway]\npublic_url = '{public}'\n[embedder]\ncache = {cache:?}\n\
             [auth]\nissuer = '{address}'\nscopes = ['mcp']\nskew = '1s'\n\
             [profiles.analyst]\nclaims = {{ groups = 'analysts' }}\n\
             [profiles.writer]\nclaims = {{ groups = 'writers' }}\nscopes = ['files:write']\n",
            cache = folder.path().join("cache"),
        );
        fs::write(folder.path().join("servers.toml"), config).unwrap();
        let gateway = HttpGateway::start_at(folder.path(), &format!("127.0.0.1:{port}"));
        Self { issuer, address, gateway, real, _folder: folder }
    }

    /// Makes a request to the issuer of the tests.
    fn put(&self, path: &str, body: &Value) {
        let host = self.address.trim_start_matches("http://");
        let mut stream = TcpStream::connect(host).unwrap();
        let body = body.to_string();
        let length = body.len();
        write!(stream, "PUT {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
            .unwrap();
        let first = BufReader::new(stream).lines().next().unwrap().unwrap();
        assert!(first.contains("204"), "{first}");
    }

    fn client(&self, sdk: &str, more: Option<&str>) -> Program {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real");
        let mut command = match sdk {
            "python" => {
                let mut command = Command::new(self.real.join("venv/bin/python"));
                command.arg(folder.join("signing_in.py"));
                command
            }
            sdk => {
                let mut command = Command::new("node");
                command.arg(folder.join("signing_in.mjs")).arg(sdk);
                command
            }
        };
        Program::start(command.arg(&self.gateway.url).args(more).env("NONET_REAL", &self.real))
    }
}

/// Goes through the life of a sign-in with an SDK.
fn signs_in(sdk: &str) {
    let Some(real) = installed() else { return };
    let company = Company::start(real);
    // Somebody signs in, and nothing else is needed.
    company.put("/person", &json!({ "sub": "ann", "groups": ["analysts"], "seconds": 4 }));
    let mut client = company.client(sdk, None);
    assert_eq!(client.answer("connect"), json!({ "tools": 9, "signed_in": 1 }));
    let first = client.answer("token");
    assert!(first["scope"].as_str().is_some_and(|scope| scope.contains("mcp")), "{first}");
    // The token ends in mid-session: the SDK renews it, and nobody sees a page.
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(client.answer("list"), json!({ "tools": 9, "signed_in": 1 }));
    assert_ne!(client.answer("token")["token"], first["token"]);
    // Another person, who needs one more scope: the SDK asks for it.
    company.put("/person", &json!({ "sub": "bob", "groups": ["writers"] }));
    // The first SDK renews its token instead, where it can, and gives up.
    let mut client = company.client(sdk, (sdk == "v1").then_some("once"));
    let connected = client.answer("connect");
    assert_eq!(connected["tools"], 9, "{connected}");
    let scope = client.answer("token")["scope"].clone();
    assert!(
        scope.as_str().is_some_and(|scope| scope.contains("mcp") && scope.contains("files:write")),
        "{scope}"
    );
    // Somebody for whom there is nothing.
    company.put("/person", &json!({ "sub": "eve", "groups": ["others"] }));
    let refused = company.client(sdk, None).answer("connect");
    assert!(refused["error"].is_string(), "{refused}");
    // New keys at the issuer. Those of before are gone, and so is what they signed.
    company.put("/person", &json!({ "sub": "ann", "groups": ["analysts"] }));
    company.put("/keys", &json!({}));
    std::thread::sleep(Duration::from_secs(11));
    let mut client = company.client(sdk, None);
    assert_eq!(client.answer("connect")["tools"], 9);
    assert!(company.issuer.process.id() > 0);
}

#[test]
fn the_typescript_sdk_v1_signs_in() {
    signs_in("v1");
}

#[test]
fn the_typescript_sdk_v2_signs_in() {
    signs_in("v2");
}

#[test]
fn the_python_sdk_signs_in() {
    signs_in("python");
}

#[test]
fn people_sign_in_with_a_real_browser_at_the_page_and_at_a_server() {
    let Some(real) = installed() else { return };
    let Some(chromium) = chromium() else { return };
    // A gateway that wants a sign-in is the server of another gateway, where each person has their own account.
    let inner = Company::start(real.clone());
    let folder = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let public = format!("http://127.0.0.1:{port}");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real");
    let mut issuer = Program::start(
        Command::new("node")
            .arg(script.join("issuer.mjs"))
            .arg(format!("{public}/mcp"))
            .env("NONET_REAL", &real),
    );
    let address = issuer.lines.next().unwrap();
    let config = format!(
        "[gateway]\npublic_url = '{public}'\n[embedder]\ncache = {cache:?}\n[auth]\nissuer = '{address}'\n\
         [auth.page]\nclient_id = 'page'\noperate = {{ claims = {{ groups = 'sre' }} }}\n\
         [servers.inner]\nurl = '{url}'\ncredentials = 'user'\n",
        cache = folder.path().join("cache"),
        url = inner.gateway.url,
    );
    fs::write(folder.path().join("servers.toml"), config).unwrap();
    let _outer = HttpGateway::start_at(folder.path(), &format!("127.0.0.1:{port}"));
    let done = Command::new("node")
        .arg(script.join("browser.mjs"))
        .args([public.as_str(), &address, &inner.address])
        .arg(chromium)
        .env("NONET_REAL", &real)
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
}
