//! What is measured: the same work on each side, alternating.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    figures::{Row, Side},
    gateway::{Folder, OverHttp, Redis, entry, fastmcp, memory, server, until_ready},
    options::Options,
    stdio::Peer,
};

/// The rows, in the order of the table.
pub const KEYS: [&str; 9] =
    ["stdio", "stdio-16", "http", "http-16", "cluster", "large", "huge", "handshake", "memory"];

/// Bytes of text in a small call.
const SMALL: usize = 200;
/// Concurrent calls in the rows that count calls per second.
const IN_FLIGHT: usize = 16;
/// Consecutive calls of one side before the next side's turn, with several in flight.
const TURN: usize = 250;
const LARGE: usize = 1_000_000;
const HUGE: usize = 60_000_000;
/// Small calls for each call of 1 MB, and calls of 60 MB.
const SMALL_PER_LARGE: usize = 25;
const HUGE_CALLS: usize = 5;
const STARTS: usize = 21;
/// The first id of a call. All ids have the same number of digits, so that a request is serialized once.
const FIRST_ID: u64 = 1_000_000;

/// A call that is serialized once; only its id changes.
#[derive(Clone, Default)]
pub struct Request {
    /// The id of the next call.
    pub next: u64,
    /// The whole message.
    pub bytes: Vec<u8>,
    /// The minimum length of a good answer, in bytes.
    pub answer: usize,
}

impl Request {
    /// Creates a `tools/call` request whose answer has at least this many bytes.
    fn new(params: &Value, answer: usize) -> Self {
        let text = format!(r#"{{"jsonrpc":"2.0","method":"tools/call","params":{params},"id":{FIRST_ID}}}"#);
        Self { next: FIRST_ID, bytes: text.into_bytes(), answer }
    }

    /// Writes the next id at the end of a message, before its closing brace and the end of its line.
    pub fn number(&mut self, bytes: &mut [u8]) {
        let mut left = self.next;
        let digits = bytes.iter_mut().rev().skip_while(|byte| !byte.is_ascii_digit());
        for digit in digits.take_while(|byte| byte.is_ascii_digit()) {
            *digit = b'0' + (left % 10) as u8;
            left /= 10;
        }
        self.next += 1;
    }
}

/// Whether an answer is a result of the expected length.
pub fn is_good(answer: &[u8], request: &Request) -> bool {
    let start = &answer[..answer.len().min(1_000)];
    let has = |text: &[u8]| memchr::memmem::find(start, text).is_some();
    answer.len() >= request.answer && has(b"\"result\"") && !has(b"\"isError\":true")
}

/// Returns the params of the handshake.
pub fn initialize() -> Value {
    json!({
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": { "name": "roundtrip", "version": "1" },
    })
}

/// The other end of a session, direct or through a gateway.
pub trait Server {
    /// Sends a request and returns its answer, read as JSON.
    fn ask(&mut self, method: &str, params: Value) -> Value;
    /// Sets the call made by `calls`.
    fn prepare(&mut self, request: Request);
    /// Makes calls with this concurrency, and appends how long each took.
    fn calls(&mut self, calls: usize, in_flight: usize, took: &mut Vec<Duration>);
}

/// One side of a row.
struct Contender<'a> {
    name: &'static str,
    server: &'a mut dyn Server,
    took: Vec<Duration>,
    busy: Duration,
}

impl<'a> Contender<'a> {
    /// Prepares a side for calls of a tool.
    fn new(name: &'static str, server: &'a mut dyn Server, call: &Call) -> Self {
        if name == "gateway" {
            return Self::through(name, server, call);
        }
        let params = json!({ "name": call.tool, "arguments": call.arguments });
        server.prepare(Request::new(&params, call.bytes));
        Self { name, server, took: Vec::new(), busy: Duration::ZERO }
    }

    /// Prepares a side behind a gateway, which takes the tool's arguments as `params` of `execute_tool`.
    fn through(name: &'static str, server: &'a mut dyn Server, call: &Call) -> Self {
        let arguments = json!({ "name": format!("echo.{}", call.tool), "params": call.arguments });
        let params = json!({ "name": "execute_tool", "arguments": arguments });
        server.prepare(Request::new(&params, call.bytes));
        Self { name, server, took: Vec::new(), busy: Duration::ZERO }
    }
}

/// A call that a row repeats.
struct Call {
    tool: &'static str,
    arguments: Value,
    /// The minimum length of its result, in bytes.
    bytes: usize,
    /// How many calls are measured, and how many of them are in flight.
    count: usize,
    in_flight: usize,
}

impl Call {
    fn small(options: &Options, in_flight: usize) -> Self {
        let count = options.calls.max(in_flight);
        Self { tool: "echo", arguments: json!({ "text": "x".repeat(SMALL) }), bytes: SMALL, count, in_flight }
    }

    fn sized(tool: &'static str, bytes: usize, count: usize) -> Self {
        Self { tool, arguments: json!({ "bytes": bytes }), bytes: bytes / 10 * 9, count, in_flight: 1 }
    }
}

/// Measures a row; prints a note and returns `None` if it cannot be measured here.
pub fn measure(key: &'static str, options: &Options) -> Option<Row> {
    let row = match key {
        "stdio" => small_on_stdio(key, "200-byte echo, stdio", options, 1),
        "stdio-16" => small_on_stdio(key, "the same, 16 in flight", options, IN_FLIGHT),
        "http" => small_over_http(key, "200-byte echo, HTTP", options, 1),
        "http-16" => small_over_http(key, "the same, 16 in flight", options, IN_FLIGHT),
        "cluster" => return in_cluster(key, options),
        "large" => {
            let count = (options.calls / SMALL_PER_LARGE).max(5);
            sized(key, "1 MB of text, stdio", options, &Call::sized("text", LARGE, count))
        }
        "huge" => huge(key, options),
        "handshake" => handshake(key, options),
        _ => return idle_memory(key, options),
    };
    Some(row)
}

/// Makes the calls of all sides in turns. A first tenth of them is not counted.
fn in_turns(mut sides: Vec<Contender<'_>>, call: &Call) -> Vec<Side> {
    let turn = if call.in_flight == 1 { 1 } else { TURN.min(call.count) };
    for round in 0..(call.count + call.count.div_ceil(10)).div_ceil(turn) {
        for side in &mut sides {
            let began = Instant::now();
            side.server.calls(turn, call.in_flight, &mut side.took);
            side.busy += began.elapsed();
            if round * turn < call.count.div_ceil(10) {
                side.took.clear();
                side.busy = Duration::ZERO;
            }
        }
    }
    sides.iter_mut().map(|side| Side::new(side.name, &mut side.took, side.busy)).collect()
}

fn row(key: &'static str, what: &str, sides: Vec<Side>) -> Row {
    Row { key, what: what.to_owned(), by_rate: false, sides, notes: Vec::new() }
}

/// Starts Nonet on stdio with the echo server behind it.
fn nonet_on_stdio(folder: &Folder) -> Peer {
    let mut gateway = Peer::start(&mut folder.nonet());
    until_ready(&mut gateway);
    gateway
}

fn small_on_stdio(key: &'static str, what: &str, options: &Options, in_flight: usize) -> Row {
    let folder = Folder::with(&entry("echo", "--echo-server"), options);
    let call = Call::small(options, in_flight);
    let mut direct = Peer::start(&mut server("--echo-server"));
    let mut gateway = nonet_on_stdio(&folder);
    let mut peer = if options.peers { fastmcp() } else { None };
    let mut sides =
        vec![Contender::new("direct", &mut direct, &call), Contender::new("gateway", &mut gateway, &call)];
    sides.extend(peer.as_mut().map(|peer| Contender::new("FastMCP's proxy", peer, &call)));
    Row { by_rate: in_flight > 1, ..row(key, what, in_turns(sides, &call)) }
}

fn small_over_http(key: &'static str, what: &str, options: &Options, in_flight: usize) -> Row {
    let call = Call::small(options, in_flight);
    let mut direct = OverHttp::echo();
    let folder = Folder::with(&direct.entry("echo"), options);
    let mut gateway = OverHttp::nonet(&folder);
    until_ready(&mut gateway.session);
    let sides = vec![
        Contender::new("direct", &mut direct.session, &call),
        Contender::new("gateway", &mut gateway.session, &call),
    ];
    Row { by_rate: in_flight > 1, ..row(key, what, in_turns(sides, &call)) }
}

/// Measures the cost of a cluster: the same call at a standalone gateway, at the replica that holds the
/// session, and at one that forwards it there.
fn in_cluster(key: &'static str, options: &Options) -> Option<Row> {
    let redis = Redis::start()?;
    let call = Call::small(options, 1);
    let direct = OverHttp::echo();
    let servers = direct.entry("echo");
    let replica = |name| Folder::with(&format!("{}{servers}", redis.table(name)), options);
    let (alone, one, two) = (Folder::with(&servers, options), replica("one"), replica("two"));
    let [mut alone, mut one, two] = [alone, one, two].each_ref().map(OverHttp::nonet);
    let mut forwarded = one.session.at(two.session.port());
    for session in [&mut alone.session, &mut one.session, &mut forwarded] {
        until_ready(session);
    }
    let sides = vec![
        Contender::through("alone", &mut alone.session, &call),
        Contender::through("in a cluster", &mut one.session, &call),
        Contender::through("forwarded", &mut forwarded, &call),
    ];
    Some(row(key, "200-byte echo through Nonet, HTTP", in_turns(sides, &call)))
}

fn sized(key: &'static str, what: &str, options: &Options, call: &Call) -> Row {
    let folder = Folder::with(&entry("echo", "--echo-server"), options);
    let mut direct = Peer::start(&mut server("--echo-server"));
    let mut gateway = nonet_on_stdio(&folder);
    let sides =
        vec![Contender::new("direct", &mut direct, call), Contender::new("gateway", &mut gateway, call)];
    row(key, what, in_turns(sides, call))
}

fn huge(key: &'static str, options: &Options) -> Row {
    let call = Call::sized("structured", HUGE, HUGE_CALLS);
    let folder = Folder::with(&entry("echo", "--echo-server"), options);
    let mut direct = Peer::start(&mut server("--echo-server"));
    let mut gateway = nonet_on_stdio(&folder);
    let sides =
        vec![Contender::new("direct", &mut direct, &call), Contender::new("gateway", &mut gateway, &call)];
    let mut row = row(key, "60 MB of structuredContent, stdio", in_turns(sides, &call));
    if let Some(peak) = memory(&gateway.child, "VmHWM") {
        row.notes.push(("the gateway's peak memory, as a multiple of 60 MB".to_owned(), peak / HUGE as f64));
    }
    row
}

fn handshake(key: &'static str, options: &Options) -> Row {
    let servers: String = ["one", "two", "three"].iter().map(|name| entry(name, "--silent-server")).collect();
    let folder = Folder::with(&servers, options);
    let time = |command: &mut std::process::Command| {
        let began = Instant::now();
        let peer = Peer::start(command);
        let took = began.elapsed();
        drop(peer);
        took
    };
    let (mut direct, mut gateway) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        direct.push(time(&mut server("--echo-server")));
        gateway.push(time(&mut folder.nonet()));
    }
    let side = |name, mut took: Vec<Duration>| Side::new(name, &mut took, Duration::MAX);
    let sides = vec![side("direct", direct), side("gateway", gateway)];
    row(key, "process start to handshake, three servers that never answer", sides)
}

/// Measures the memory of an idle gateway, before and after its first search.
fn idle_memory(key: &'static str, options: &Options) -> Option<Row> {
    let folder = Folder::with(&entry("echo", "--echo-server"), options);
    let mut gateway = Peer::start(&mut folder.nonet());
    let mut row = row(key, "resident memory", Vec::new());
    let mut note = |gateway: &Peer, when: &str| {
        let resident = memory(&gateway.child, "VmRSS");
        row.notes.extend(resident.map(|bytes| (format!("MB {when}"), bytes / 1e6)));
    };
    // By now, everything that starts after the handshake has started, and unused memory has been given back.
    std::thread::sleep(Duration::from_secs(10));
    note(&gateway, "before the first search");
    let search = json!({ "name": "search_tools", "arguments": { "query": "say something twice" } });
    gateway.ask("tools/call", search);
    note(&gateway, "after it");
    std::thread::sleep(Duration::from_secs(10));
    note(&gateway, "ten seconds later");
    (!row.notes.is_empty()).then_some(row)
}
