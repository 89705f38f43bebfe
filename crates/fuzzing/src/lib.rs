//! Invariants for arbitrary outside bytes: the fuzz targets in `fuzz/` and the property tests at the end
//! share these checks; the program does not contain them.
//!
//! A check panics if an invariant is violated.

use std::{collections::BTreeMap, io, path::Path, sync::Arc};

use bytes::Bytes;
use futures::FutureExt;
use nonet_config as config;
use nonet_schema::Schema;
use nonet_script::{
    frames::{FromWorker, Start},
    ledger::Ledger,
    names as script_names, worker,
};
use nonet_servers::catalog::{Catalog, CatalogSource, Listing};
use nonet_text::{
    name::{self, ServerName},
    template::{self, NameLookup},
};
use nonet_wire::{
    EventData, EventReader, Expectations, Inbox, Limits, Line, LineReader, Message, MessageHead, SizeLimit,
    scan,
};
use rmcp::model::RequestId;
use serde_json::{Value, json, value::RawValue};
use tokio::io::AsyncReadExt;

/// The length limit of a line or an event here, in bytes: short, so that overlong input is covered too.
const SHORT: usize = 64;

const LIMITS: Limits = Limits::HIGHEST;

/// Requests whose answers are awaited: 1 and 2.
struct AwaitedIds;

impl Expectations for AwaitedIds {
    fn limits(&self) -> &Limits {
        &LIMITS
    }

    fn bound(&self, id: &RequestId) -> Option<SizeLimit> {
        ["1", "2"].contains(&id.to_string().as_str()).then_some(LIMITS.answer)
    }
}

/// Checks that a message matches what a JSON parser finds in it, and that reading it never fails.
pub fn envelope(bytes: &[u8]) {
    let _ = MessageHead::of(bytes);
    let Ok(message) = Message::within(Bytes::copy_from_slice(bytes), LIMITS.of_server) else {
        return inbox(bytes);
    };
    let _ = (message.kind(), message.about(), message.cancels(), message.version(), message.agreed_version());
    // The scan accepts invalid JSON inside a member; whoever parses the member finds out.
    if let Ok(Value::Object(parsed)) = serde_json::from_slice::<Value>(bytes) {
        let part =
            |part: Option<&[u8]>| part.map(|part| serde_json::from_slice::<Value>(part).expect("JSON"));
        assert_eq!(part(message.params()).as_ref(), parsed.get("params"));
        assert_eq!(part(message.result()).as_ref(), parsed.get("result"));
        assert_eq!(part(message.error()).as_ref(), parsed.get("error"));
        assert_eq!(message.method().as_deref(), parsed.get("method").and_then(Value::as_str));
        // Numbers that fit no integer stay as written.
        if !parsed.get("id").is_some_and(Value::is_f64) {
            let id = parsed.get("id").filter(|id| !id.is_null()).map(Value::to_string);
            assert_eq!(message.id_text(), id);
        }
        if let Some(renamed) = message.with_id("\"other\"") {
            let mut expected = parsed.clone();
            expected.insert("id".into(), json!("other"));
            assert_eq!(serde_json::from_slice::<Value>(&renamed).expect("JSON"), Value::Object(expected));
        }
    }
    inbox(bytes);
}

fn inbox(bytes: &[u8]) {
    let mut inbox = Inbox::new("server".into(), "a line");
    inbox.take(scan(Bytes::copy_from_slice(bytes), LIMITS.answer.values), &AwaitedIds);
    inbox.too_long(bytes, &AwaitedIds);
    inbox.too_long_end(&String::from_utf8_lossy(bytes));
    let all = std::iter::from_fn(|| inbox.pop()).collect::<Vec<_>>();
    assert!(all.len() <= 1_002, "a batch has an end");
    for refusal in inbox.refusals() {
        assert!(serde_json::from_slice::<Value>(&refusal).is_ok(), "a refusal is JSON");
    }
}

/// Checks that lines and events do not depend on how the bytes arrive, and that none exceeds its limit.
pub fn events(bytes: &[u8]) {
    let Some((first, bytes)) = bytes.split_first() else { return };
    let cut = usize::from(*first).min(bytes.len());
    let (head, tail) = bytes.split_at(cut);
    let judge = |data: &[u8]| if data.starts_with(b" long") { 4 * SHORT } else { 0 };
    let read = |from: Parts| {
        let mut events = EventReader::new(from, SHORT);
        let mut all = Vec::new();
        while let Some(event) = events.next(judge).now_or_never().expect("all bytes are there") {
            // The start of overlong data depends on how it arrived.
            let data = match event.data {
                EventData::Whole(data) => {
                    // Data that arrived at once is accepted as it is.
                    assert!(data.len() <= bytes.len());
                    Some(data)
                }
                EventData::None | EventData::TooLong(..) => None,
            };
            all.push((event.kind, event.id, event.retry, data));
        }
        all
    };
    let whole = read(Box::new(bytes));
    // An overlong event is cut off if it arrives in pieces, so only the others can be compared.
    if bytes.len() <= SHORT {
        assert_eq!(read(Box::new(head.chain(tail))), whole);
    }
    let mut lines = LineReader::new(head.chain(tail), SHORT);
    let mut count = 0;
    while let Some(line) = lines.next_within(judge).now_or_never().expect("all bytes are there") {
        if let Line::Whole(line) = line {
            assert!(!line.is_empty() && !line.contains(&b'\n'));
            count += line.len();
        }
    }
    assert!(count <= bytes.len());
}

type Parts<'a> = Box<dyn tokio::io::AsyncRead + Unpin + 'a>;

/// Checks that templates are filled exactly once, and never from text within a value.
pub fn templates(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let value = serde_json::from_str(&text).unwrap_or_else(|_| Value::String(text.into_owned()));
    let names = template::names(&value);
    let Ok(references) = template::references([&value]) else {
        let filled = template::fill(&value, &|_| NameLookup::Foreign);
        assert!(
            filled.is_err() && template::check(&value).is_err(),
            "a reference that cannot be read is a fault"
        );
        return;
    };
    let has_any = !names.is_empty() || !references.kept.is_empty();
    let foreign = template::fill(&value, &|_| NameLookup::Foreign).expect("nobody is asked for a value");
    if !references.has_literals {
        assert_eq!(foreign.value, value, "the templates of somebody else stay");
    }
    let unknown = template::fill(&value, &|_| NameLookup::Unknown(String::new()));
    assert_eq!(unknown.is_err(), has_any, "each template is looked up: {names:?} {references:?}");
    let source =
        Arc::new(template::TemplateSource::from(json!({ "a": ["{{b}}", { "c": "{{ref:r}}" }], "n": 1 })));
    let filled = template::fill(&value, &|_| NameLookup::Value(source.clone()));
    assert!(filled.is_err() || template::check(&value).is_ok(), "what is filled can be read");
    if let Ok(filled) = filled
        && !has_any
    {
        assert_eq!(filled.value, foreign.value);
    }
    let gone = Arc::new(template::TemplateSource::absent());
    template::fill(&value, &|_| NameLookup::Value(gone.clone()))
        .expect("every path in an absent value leads to null");
}

/// Checks that each tool is found by its names, that no two share a name, and that no name makes a lookup
/// fail.
pub fn names(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    let given = lines.next().unwrap_or_default();
    let _ =
        (name::fold(given), name::words(given), name::without_client_prefix(given), name::split_given(given));
    if let Err(bad) = ServerName::new(given) {
        assert!(ServerName::new(&bad.nearest).is_ok(), "`{}` is no server name either", bad.nearest);
    }
    let mut servers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in lines.take(64) {
        if let Some((server, tool)) = line.split_once(' ')
            && ServerName::new(server).is_ok()
            && !tool.is_empty()
        {
            servers.entry(server).or_default().push(tool);
        }
    }
    let sources = servers.iter().map(|(server, tools)| {
        let tools =
            tools.iter().map(|tool| Arc::new(json!({ "name": tool, "inputSchema": { "type": "object" } })));
        let listing = Listing { tools: tools.collect(), ..Listing::default() };
        CatalogSource { server: (*server).into(), listing: Arc::new(listing), settings: None }
    });
    let catalog = Catalog::new(sources, &BTreeMap::new());
    for tool in catalog.visible() {
        let is_wire = |c: u8| c.is_ascii_alphanumeric() || c == b'_' || c == b'-';
        assert!(tool.wire.len() <= name::MAX_WIRE && tool.wire.bytes().all(is_wire), "`{}`", tool.wire);
        let by_wire = catalog.by_wire(&tool.wire).expect("it is there by its wire name");
        assert_eq!(by_wire.full, tool.full, "two tools share the wire name `{}`", tool.wire);
        for name in [&tool.full, &tool.wire] {
            let found = catalog.resolve(name).unwrap_or_else(|fault| panic!("`{name}`: {}", fault.message));
            assert_eq!(found.full, tool.full, "`{name}` leads to another tool");
        }
    }
    // A name that begins with a server's own leads to that server or to nothing.
    if let Ok(found) = catalog.resolve(given)
        && let Some((server, _)) = given.split_once('.')
        && servers.contains_key(server)
    {
        assert_eq!(&*found.server, server, "`{given}` leads to `{}`", found.full);
    }
}

/// Checks that accepted params fit their schema, and so does a corrected call that claims to.
pub fn schema(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Some((schema, params)) = text.split_once('\n') else { return };
    let (Ok(schema), Ok(params)) =
        (serde_json::from_str::<Value>(schema), serde_json::from_str::<Value>(params))
    else {
        return;
    };
    let schema = Schema::of_tool("tool", schema);
    let _ = (schema.signature("tool"), schema.parameters(), schema.example(), schema.is_quick());
    let known = params.as_object().cloned().unwrap_or_default();
    let _ = (schema.unknown(&known), schema.takes_only_text(&["a".into(), "0".into()]));
    let fits = schema.accepts(&params);
    let read = schema.read(params.clone());
    if schema.broken().is_some() {
        return;
    }
    match read {
        Ok(reading) => {
            let taken = Value::Object(reading.params);
            assert!(schema.accepts(&taken), "it takes {taken} of {params}");
            if fits && params.is_object() {
                assert_eq!((&taken, reading.repaired), (&params, Vec::<String>::new()), "it fits as it is");
            }
        }
        Err(misfit) => {
            assert!(!misfit.faults.is_empty(), "a refusal says why");
            assert!(!(fits && params.is_object()), "{params} fits and is refused: {:?}", misfit.faults);
            if misfit.example_fits {
                let example = Value::Object(misfit.example);
                assert!(schema.accepts(&example), "the corrected call does not fit: {example}");
            }
        }
    }
}

/// Checks the bridge to a script, from both ends: a text of any kind with answers of any kind ends with one
/// last message, and no message of a worker makes the gateway's reading fail otherwise than with a fault.
pub fn scripts(bytes: &[u8]) {
    let (script, answers) = match bytes.iter().position(|byte| *byte == 0) {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &bytes[..0]),
    };
    let script = String::from_utf8_lossy(script);
    for named in script_names::named_tools(&script) {
        assert!(script.lines().nth(named.line.saturating_sub(1)).is_some() && !named.name.is_empty());
    }
    let start = Start {
        script: script.into_owned(),
        input: RawValue::NULL.to_owned(),
        seed: 1,
        now_ms: 1,
        max_calls: 50,
        cpu_ms: 200,
        memory: 16 << 20,
    };
    let mut input = serde_json::to_vec(&start).expect("JSON");
    input.push(b'\n');
    input.extend_from_slice(answers);
    let output = SharedOutput::default();
    // An answer that is none, or that is missing, ends the worker without a last message.
    let is_over = worker::run(&input[..], output.clone(), |_| {}).is_ok();
    let written = output.0.lock().clone();
    let mut ledger = Ledger::new([("call a".to_string(), 0)]);
    let mut last = 0;
    for line in written.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match serde_json::from_slice(line).expect("the worker writes what the gateway reads") {
            FromWorker::Request(request) => {
                let place = ledger.place(&json!(request.op).to_string());
                ledger.ask(request.id, &place);
            }
            FromWorker::Done { .. } | FromWorker::Failed { .. } => last += 1,
            FromWorker::Idle { .. } => while ledger.next(true).is_some() {},
            FromWorker::Progress(_) => {}
        }
    }
    assert_eq!(last, usize::from(is_over), "one last message");
    let _ = serde_json::from_slice::<FromWorker>(answers);
}

/// What a worker writes.
#[derive(Clone, Default)]
struct SharedOutput(Arc<parking_lot::Mutex<Vec<u8>>>);

impl io::Write for SharedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Checks that a file is read, or refused with faults that can be shown.
pub fn config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let env = |name: &str| (name == "HOME").then(|| "/home/ann".to_string());
    let sources = config::ValueSources { env: &env, ..config::ValueSources::NONE };
    let _ = config::expand(&text, sources);
    match config::parse(&text, Path::new("/etc/nonet/servers.toml"), sources) {
        Ok(loaded) => {
            let left_out = loaded.left_out();
            for name in loaded.config.servers.keys() {
                assert!(
                    !left_out.contains(format!("servers.{name}").as_str()),
                    "`{name}` is there and left out"
                );
            }
            for fault in &loaded.faults {
                assert!(!fault.to_string().is_empty() && fault.line <= text.lines().count() + 1);
            }
        }
        Err(unusable) => assert!(!unusable.to_string().is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, sample::select};

    use super::*;

    /// Generates JSON whose texts are likely to mean something.
    fn json(words: &'static [&'static str]) -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-3i64..1_000).prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            select(words).prop_map(Value::from),
            "[ -~\u{e9}]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((select(words), inner), 0..5).prop_map(|members| members
                    .into_iter()
                    .map(|(key, value)| (key.to_string(), value))
                    .collect()),
            ]
        })
    }

    /// Encodes a schema and params as input for `schema`.
    fn lines(schema: &Value, params: &Value) -> Vec<u8> {
        format!("{schema}\n{params}").into_bytes()
    }

    /// Generates bytes from pieces that the readers look for.
    fn pieces(words: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            4 => select(words).prop_map(|word| word.as_bytes().to_vec()),
            1 => prop::collection::vec(any::<u8>(), 0..6),
        ];
        prop::collection::vec(piece, 0..24).prop_map(|all| all.concat())
    }

    const ENVELOPE: &[&str] = &[
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\",
        "\"id\"",
        "\"method\"",
        "\"params\"",
        "\"result\"",
        "\"error\"",
        "\"jsonrpc\":\"2.0\"",
        "\"_meta\"",
        "\"m\\u0065thod\"",
        "1",
        "\"a\"",
        "null",
        "true",
        "1e400",
        " ",
        "\n",
    ];
    const MEMBERS: &[&str] =
        &["id", "method", "params", "result", "error", "jsonrpc", "name", "uri", "_meta", "requestId"];
    const EVENTS: &[&str] = &[
        "data:",
        "data: {}",
        "event: message",
        "event: endpoint",
        "id: 1",
        "retry: 10",
        "retry: -1",
        "\n",
        "\n\n",
        "\r\n",
        "\r",
        ":",
        ": ping",
        "\u{feff}",
        " long",
        "0123456789012345678901234567890123456789",
    ];
    const TEMPLATES: &[&str] = &[
        "{{",
        "}}",
        "{",
        "}",
        "a",
        "ref:",
        "ref:r1",
        ".",
        "[0]",
        "[\"k\"]",
        " ",
        "{{a.b}}",
        "{{ ref:x }}",
        "\n",
        "{{a}}",
        "{{a[0].c}}",
        "{{.}}",
        "\"",
    ];
    const NAMES: &[&str] = &[
        "good",
        "bad",
        "a-b",
        "x_y",
        " ",
        ".",
        "__",
        "/",
        ":",
        "-",
        "_",
        "\n",
        "\ngood ",
        "\nbad ",
        "\ngood echo",
        "\nbad good.echo",
        "\nbad good__echo",
        "good.echo",
        "Good/Echo",
        "mcp__nonet__",
        "echo",
        "\u{130}",
        "\u{df}",
    ];
    const SCHEMA: &[&str] = &[
        "type",
        "object",
        "string",
        "integer",
        "number",
        "boolean",
        "array",
        "null",
        "properties",
        "required",
        "items",
        "enum",
        "const",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "$ref",
        "#",
        "#/properties/a",
        "default",
        "pattern",
        "^a+$",
        "additionalProperties",
        "patternProperties",
        "minimum",
        "maxLength",
        "format",
        "date",
        "a",
        "b",
        "1",
        "true",
    ];
    const CONFIG: &[&str] = &[
        "[servers.a]\n",
        "[gateway]\n",
        "[profiles.p]\n",
        "[policies.x]\n",
        "[apps.w]\n",
        "[[apps.w.steps]]\n",
        "command = \"x\"\n",
        "url = \"http://localhost/mcp\"\n",
        "args = [\"-y\"]\n",
        "env = { A = \"${B:-c}\" }\n",
        "tokens = [\"${T}\"]\n",
        "timeout = \"5s\"\n",
        "policy = \"deny\"\n",
        "tools = [\"a.*\"]\n",
        "max_risk = \"low\"\n",
        "commnd = 1\n",
        "=",
        "\"",
        "[",
        "]",
        "{",
        "}",
        "\n",
        "${",
        "$${",
        "'''",
        "9",
        ".",
        "openapi = \"x.json\"\n",
        "[servers.a.tools.b]\n",
        "kind = \"workflow\"\n",
        "tool = \"a.b\"\n",
    ];
    const SCRIPTS: &[&str] = &[
        "await ",
        "return ",
        "tools.shop.say",
        "call('a.b'",
        "all([1, 2], ",
        "search('x'",
        "result('r')",
        ".lines()",
        ".jq('.')",
        "ask('?')",
        "sleep(1)",
        "log(",
        "progress(1, 2)",
        "parse.csv('a\n1')",
        "format.csv([{}])",
        "Object.prototype.then = ",
        "JSON.stringify = ",
        "globalThis.",
        "(x) => ",
        "async () => ",
        "for (;;) ",
        "try {",
        "} catch (e) {",
        "}",
        "{",
        "(",
        ")",
        ";",
        "\n",
        "'",
        "`${",
        "\0",
        "{\"settle\":{\"id\":1,\"ok\":true,\"value\":[1],\"at_ms\":2}}\n",
        "{\"settle\":{\"id\":2,\"ok\":false,\"value\":{\"code\":\"x\"},\"at_ms\":1}}\n",
        "{\"settle\":{\"id\":18446744073709551615,\"ok\":true,\"value\":null,\"at_ms\":0}}\n",
        "{\"held\":{\"id\":1}}\n",
    ];

    /// The corpus of the fuzz target: scripts with answers.
    #[test]
    fn of_the_corpus_of_scripts() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/scripts");
        let files: Vec<_> = std::fs::read_dir(folder).expect("a folder").flatten().collect();
        assert!(files.len() >= 9);
        for file in files {
            scripts(&std::fs::read(file.path()).expect("readable"));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn of_messages(bytes in pieces(ENVELOPE), value in json(MEMBERS)) {
            envelope(&bytes);
            envelope(value.to_string().as_bytes());
            envelope(json!({ "jsonrpc": "2.0", "id": 1, "method": "x", "params": value }).to_string().as_bytes());
        }

        #[test]
        fn of_events(bytes in pieces(EVENTS)) {
            events(&bytes);
        }

        #[test]
        fn of_templates(bytes in pieces(TEMPLATES), value in json(TEMPLATES)) {
            templates(&bytes);
            templates(value.to_string().as_bytes());
        }

        #[test]
        fn of_names(bytes in pieces(NAMES)) {
            names(&bytes);
        }

        #[test]
        fn of_schemas(schema in json(SCHEMA), params in json(SCHEMA)) {
            let of_object = json!({ "type": "object", "properties": { "a": schema, "b": { "type": "integer" } } });
            let params = json!({ "a": params, "b": "7" });
            super::schema(&lines(&of_object, &params));
            super::schema(&lines(&schema, &params));
        }

        #[test]
        fn of_scripts(bytes in pieces(SCRIPTS)) {
            scripts(&bytes);
        }

        #[test]
        fn of_files(bytes in pieces(CONFIG)) {
            config(&bytes);
        }
    }
}
