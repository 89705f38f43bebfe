//! What a script can do, and what stops it. Workers run in threads here, without the limits of the system.

use serde_json::{Value, json, value::to_raw_value};

use crate::{
    frames::{Failure, FailureKind, FromWorker, LOG_BYTES, Op, Start, ToWorker},
    process::{WorkerError, tests::in_thread},
};

/// How a script ended, and what it logged.
type End = (Result<Value, Failure>, String);

fn start(script: &str) -> Start {
    Start {
        script: script.into(),
        input: to_raw_value(&json!({ "n": 2 })).expect("JSON"),
        seed: 7,
        now_ms: 1_700_000_000_000,
        max_calls: 500,
        cpu_ms: 1_000,
        memory: 32 << 20,
    }
}

/// Answers every request with `answer`, in the order of the requests. Sleeps and calls take no time.
async fn run_with(start: Start, answer: impl Fn(&Op) -> Result<Value, Value>) -> Result<End, WorkerError> {
    let mut worker = in_thread(&start).await;
    let mut open = Vec::new();
    loop {
        match worker.read().await? {
            FromWorker::Request(request) => open.push(request),
            FromWorker::Progress(_) => {}
            FromWorker::Idle { .. } => {
                let request = open.remove(0);
                let (ok, value) = match answer(&request.op) {
                    Ok(value) => (true, value),
                    Err(fault) => (false, fault),
                };
                let value = to_raw_value(&value).expect("JSON");
                let at_ms = start.now_ms + 1_000 * request.id;
                worker.send(&ToWorker::Settle { id: request.id, ok, value, at_ms }).await?;
            }
            FromWorker::Done { value, log } => {
                return Ok((Ok(serde_json::from_str(value.get()).expect("JSON")), log));
            }
            FromWorker::Failed { failure, log } => return Ok((Err(failure), log)),
        }
    }
}

/// `echo.*` returns its params, `bad.*` fails.
fn echo(op: &Op) -> Result<Value, Value> {
    match op {
        Op::Call { name, params } if name.starts_with("echo") => Ok(params.clone()),
        Op::Call { name, .. } => {
            Err(json!({ "code": "not_found", "message": format!("no {name}"), "retryable": true }))
        }
        Op::Result { from, .. } => {
            Ok(json!({ "lines": ["x"], "next": if *from < 2 { json!(from + 1) } else { Value::Null } }))
        }
        _ => Ok(Value::Null),
    }
}

async fn run(script: &str) -> End {
    run_with(start(script), echo).await.expect("a worker that ends by itself")
}

#[tokio::test]
async fn a_script_returns_what_it_makes_of_calls() {
    let table = [
        ("return 1 + 1", json!(2)),
        ("", json!(null)),
        ("return input.n", json!(2)),
        ("return (await tools.echo.a({ x: [1] })).x[0]", json!(1)),
        ("return await tools['echo']['a.b']({ y: 1 })", json!({ "y": 1 })),
        ("return await tools.echo({ y: 1 })", json!({ "y": 1 })),
        ("return await call('echo.a', { z: input.n })", json!({ "z": 2 })),
        ("return await call('echo.a')", json!({})),
        (
            "return await all([1, 2, 3], (n, at) => call('echo.a', { n, at }), { max: 2 })",
            json!([{ "n": 1, "at": 0 }, { "n": 2, "at": 1 }, { "n": 3, "at": 2 }]),
        ),
        ("return await all([], x => x)", json!([])),
        ("return await Promise.all([1, 2].map(n => tools.echo.a({ n })))", json!([{ "n": 1 }, { "n": 2 }])),
        (
            "try { await tools.bad.x() } catch (e) { return [e instanceof ToolError, e.code, e.message, e.retryable] }",
            json!([true, "not_found", "no bad.x", true]),
        ),
        (
            "const out = []; for await (const line of result('r-1').lines()) out.push(line); return out",
            json!(["x", "x", "x"]),
        ),
        // A call that nobody waits for still ends before the script has.
        (
            "const out = []; [1, 2].forEach(async n => { await call('echo.a'); out.push(n) }); return out",
            json!([1, 2]),
        ),
        ("let x; setTimeout(() => { x = 1 }, 5); await sleep(10); return x", json!(1)),
        (
            "return Object.keys(parse.csv('a,b\\n1,\"x, \"\"y\"\"\\nz\"\\n')[0]).concat(parse.csv('a,b\\n1,\"x, \"\"y\"\"\"')[0].b)",
            json!(["a", "b", "x, \"y\""]),
        ),
        ("return parse.csv('a;b\\n1;2', ';')", json!([{ "a": "1", "b": "2" }])),
        ("return parse.jsonl('{\"a\":1}\\n\\n2\\n')", json!([{ "a": 1 }, 2])),
        (
            "return format.csv([{ a: 1, b: 'x,y' }, { a: null, c: true }])",
            json!("a,b,c\n1,\"x,y\",\n,,true\n"),
        ),
        ("return format.markdown([{ a: 'x|y', b: 2 }])", json!("| a | b |\n| --- | --- |\n| x\\|y | 2 |\n")),
        (
            "return [typeof process, typeof require, typeof fetch, typeof Deno, typeof std, typeof os]",
            json!(vec!["undefined"; 6]),
        ),
    ];
    for (script, expected) in table {
        let (ended, _) = run(script).await;
        assert_eq!(ended, Ok(expected), "{script}");
    }
}

#[tokio::test]
async fn time_and_chance_are_the_gateways() {
    let script = "const a = Date.now(); await call('echo.a'); return [a, Date.now() - a, new Date().getTime() - a, \
                  new Date(5).getTime(), typeof Date(), new Date() instanceof Date, new Date(0).constructor === Date, Math.random()]";
    let (first, _) = run(script).await;
    let first = first.expect("it ends");
    assert_eq!(first[0], json!(1_700_000_000_000_u64));
    assert_eq!(
        first.as_array().expect("a list")[1..7],
        [json!(1_000), json!(1_000), json!(5), json!("string"), json!(true), json!(true)]
    );
    assert_eq!(run(script).await.0, Ok(first.clone()), "the same again");
    let (other, _) = run_with(Start { seed: 8, ..start(script) }, echo).await.expect("it ends");
    assert_ne!(other.expect("it ends")[7], first[7]);
}

#[tokio::test]
async fn a_failure_has_its_place() {
    let check = async |script: &str, kind: FailureKind, message: &str, place: Option<(u32, u32)>| {
        let (ended, _) = run(script).await;
        let failure = ended.expect_err(script);
        assert!(failure.kind == kind && failure.message.contains(message), "{script}: {failure:?}");
        assert_eq!(failure.line.zip(failure.column), place, "{script}: {failure:?}");
    };
    use FailureKind::{Stuck, Syntax, Uncaught};
    check("let a = 1\nlet b: number = 2", Syntax, "without TypeScript", Some((2, 6))).await;
    check("return (", Syntax, "SyntaxError", Some((2, 1))).await;
    check("\n  nothing.at.all", Uncaught, "nothing is not defined", Some((2, 3))).await;
    check("const f = () => { throw new Error('no') }\nf()", Uncaught, "Error: no", Some((1, 29))).await;
    check("let x = 1\n  await tools.bad.y({})", Uncaught, "no bad.y", Some((2, 19))).await;
    check("throw { a: 1 }", Uncaught, "the script threw {\"a\":1}", None).await;
    check("throw undefined", Uncaught, "the script threw undefined", None).await;
    check("[1].forEach(async () => { await tools.bad.z() }); return 1", Uncaught, "no bad.z", Some((1, 43)))
        .await;
    check("await new Promise(() => {})", Stuck, "never comes", None).await;
    check("/* äöü */ nothing", Uncaught, "nothing is not defined", Some((1, 11))).await;
    check("const f = async n => { throw new Error('lost ' + n) }; f(0); for (let n = 1; n < 6; n++) { try { await f(n) } catch {} } return 1", Uncaught, "lost 0", Some((1, 50))).await;
    check("return 'x'.repeat(9e6)", Uncaught, "more than", None).await;
    check("return 1n", Uncaught, "BigInt", None).await;
    check("return () => 1", Uncaught, "cannot be a function", None).await;
    check("const a = {}; a.a = a; return a", Uncaught, "circular", None).await;
    check("for (let n = 0; n < 501; n++) await call('echo.a')", Uncaught, "at most 500 calls", Some((1, 37)))
        .await;
    let (ended, _) = run("await tools.bad.y({})").await;
    assert_eq!(ended.expect_err("it fails").code.as_deref(), Some("not_found"));
}

#[tokio::test]
async fn hostile_scripts_end() {
    let check = async |script: &str, kind: FailureKind, message: &str| {
        let (ended, _) = run(script).await;
        let failure = ended.expect_err(script);
        assert!(failure.kind == kind && failure.message.contains(message), "{script}: {failure:?}");
    };
    use FailureKind::{Cpu, Memory, Uncaught};
    check("for (;;) {}", Cpu, "").await;
    check("await call('echo.a');\nfor (;;) {}", Cpu, "").await;
    check("try { for (;;) {} } catch { } finally { for (;;) {} }", Cpu, "").await;
    check("for (;;) await null", Cpu, "").await;
    check("const spin = () => Promise.resolve().then(spin); await spin()", Memory, "").await;
    check("return /^(a+)+$/.test('a'.repeat(40) + 'b')", Cpu, "").await;
    check("const f = () => f() + 1; f()", Uncaught, "call stack").await;
    check("return JSON.parse('['.repeat(1e6))", Uncaught, "").await;
    check("const a = []; for (;;) a.push('x'.repeat(1e6) + a.length)", Memory, "out of memory").await;
    check("return new Uint8Array(2 ** 31).length", Uncaught, "array buffer length").await;
    check("return new Array(2 ** 28).fill(0).length", Memory, "").await;
    check("return 'x'.repeat(2 ** 29)", Memory, "").await;
    for code in [
        "eval('1')",
        "Function('return 1')()",
        "(() => {}).constructor('return 1')()",
        "(async () => {}).constructor('return 1')",
        "(function* () {}).constructor('1')",
        "new (Object.getPrototypeOf(async function* () {}).constructor)('1')",
    ] {
        check(&format!("return {code}"), Uncaught, "eval is not supported").await;
    }
    check("return await import('x')", Uncaught, "").await;
    check("tools.fs = 1", Uncaught, "cannot be changed").await;
    check("Object.setPrototypeOf(tools, {})", Uncaught, "cannot be changed").await;
}

#[tokio::test]
async fn a_script_that_changes_the_language_harms_itself_only() {
    let table = [
        "Object.prototype.op = 'sleep'; Object.prototype.name = 'x'; return (await tools.echo.a({ n: 1 })).n",
        "JSON.stringify = () => 'x'; JSON.parse = () => 7; return (await tools.echo.a({ n: 1 })).n",
        "Promise.prototype.then = undefined; Map.prototype.get = () => 1; return 1",
        "Array.prototype.map = () => []; Date = undefined; Math = undefined; return 1",
        "globalThis.call = globalThis.tools = undefined; return 1",
        "const p = Object.getPrototypeOf(async () => {}); try { p.constructor = 1 } catch (e) { return Number(e instanceof TypeError) }",
    ];
    for script in table {
        let ended = tokio::time::timeout(std::time::Duration::from_secs(10), run(script)).await;
        assert_eq!(ended.expect("no script makes the gateway wait").0, Ok(json!(1)), "{script}");
    }
}

#[tokio::test]
async fn the_end_of_a_log_is_kept() {
    let (ended, log) =
        run("for (let n = 0; n < 1e5; n++) log('line', n, { n }); console.log(new Error('e'))").await;
    assert_eq!(ended, Ok(Value::Null));
    assert!(log.ends_with("line 99999 {\"n\":99999}\nError: e") && log.len() <= LOG_BYTES, "{log}");
    let (_, log) = run("log('ä'.repeat(1e6))").await;
    assert!(log.len() <= LOG_BYTES && log.starts_with('ä'));
}

#[tokio::test]
async fn calls_that_wait_leave_their_places_in_all() {
    let script = "return (await all([1, 2, 3, 4], n => tools.echo.a({ n }), { max: 2 })).length";
    let mut worker = in_thread(&start(script)).await;
    let mut asked = Vec::new();
    loop {
        match worker.read().await.expect("a message") {
            FromWorker::Request(request) => asked.push(request.id),
            FromWorker::Idle { .. } if asked.len() < 4 => {
                let id = asked[asked.len() - 1];
                worker.send(&ToWorker::Held { id }).await.expect("sent");
            }
            FromWorker::Idle { .. } => break,
            other => panic!("{other:?}"),
        }
    }
    for id in asked {
        let value = to_raw_value(&id).expect("JSON");
        worker.send(&ToWorker::Settle { id, ok: true, value, at_ms: 0 }).await.expect("sent");
    }
    let ended = loop {
        if let FromWorker::Done { value, .. } = worker.read().await.expect("a message") {
            break value;
        }
    };
    assert_eq!(ended.get(), "4");
}
