//! The worker: runs one script, and asks the gateway for everything that is not computing.
//!
//! The script is compiled in one realm and runs in another, which has no compiler: `eval` and the constructor
//! `Function` fail there, so no text that a tool returns ever becomes code.

use std::{
    cell::{Cell, RefCell},
    io::{self, BufRead, BufReader, Read, Write},
    rc::Rc,
    time::Duration,
};

use rquickjs::{
    CatchResultExt, CaughtError, Context, Ctx, Function, Module, Object, Persistent, Promise, Runtime, Type,
    Value,
    context::intrinsic,
    module::{Declared, WriteOptions},
    promise::PromiseState,
};
use serde_json::value::RawValue;

use crate::frames::{Failure, FailureKind, FromWorker, LOG_BYTES, MAX_LINE, Start, ToWorker};

/// The name of the script in places of errors.
const SCRIPT: &str = "script.js";
/// The lines before the first one of the script, which is the body of a function.
const BEFORE: &str = "export default async () => {\n";
const LINES_BEFORE: u32 = 1;
/// The stack of the interpreter, in bytes, and the stack of its thread.
const STACK: usize = 1 << 20;
const THREAD_STACK: usize = 8 << 20;
/// The memory of the process beside that of the script, in bytes: the stacks, messages, the interpreter.
const BESIDE: u64 = 128 << 20;
/// The address space, which also has the program, where the system cannot tell them apart.
const ADDRESS_LIMIT: u64 = 2 << 30;
/// How much longer than the interpreter the system lets the process compute.
const CPU_GRACE_S: u64 = 2;
/// What the interpreter says without memory.
const OUT_OF_MEMORY: &str = "out of memory";
/// How many errors that the script has not waited for are remembered.
const MOST_LOST: usize = 100;
/// The longest message of an error that is passed on, in characters.
const MESSAGE: usize = 2_000;

/// Realms that run scripts: everything but a compiler and a clock.
type Realm = (
    intrinsic::Date,
    intrinsic::RegExpCompiler,
    intrinsic::RegExp,
    intrinsic::Json,
    intrinsic::Proxy,
    intrinsic::MapSet,
    intrinsic::TypedArrays,
    intrinsic::Promise,
    intrinsic::WeakRef,
);

/// Runs the script that comes over stdin, in a process that this shuts in first.
pub fn run_child() -> io::Result<()> {
    let work = std::thread::Builder::new().stack_size(THREAD_STACK).spawn(|| {
        run(io::stdin(), io::stdout(), |start| {
            limit(start);
            shut_in();
        })
    })?;
    work.join().map_err(|_| io::Error::other("the worker panicked"))?
}

/// Limits memory and CPU time by the system, in case the interpreter fails to.
fn limit(start: &Start) {
    #[cfg(unix)]
    {
        use nix::sys::resource::{Resource, setrlimit};
        let memory = start.memory as u64 + BESIDE;
        let cpu = Duration::from_millis(start.cpu_ms).as_secs() + 1 + CPU_GRACE_S;
        for (resource, most) in [
            (Resource::RLIMIT_DATA, memory),
            (Resource::RLIMIT_AS, ADDRESS_LIMIT),
            (Resource::RLIMIT_CPU, cpu),
            (Resource::RLIMIT_FSIZE, 0),
            (Resource::RLIMIT_CORE, 0),
        ] {
            if let Err(error) = setrlimit(resource, most, most) {
                tracing::debug!(%error, ?resource, "no limit");
            }
        }
    }
    #[cfg(not(unix))]
    let _ = (start, BESIDE, ADDRESS_LIMIT, CPU_GRACE_S, Duration::ZERO);
}

/// Leaves the process no system calls but those of computing and of its two pipes.
#[cfg(target_os = "linux")]
fn shut_in() {
    use std::collections::BTreeMap;

    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
    /// Memory, threads, clocks, signals to itself, and the pipes, which are open already.
    const ALLOWED: &[libc::c_long] = &[
        libc::SYS_brk,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_futex,
        libc::SYS_getpid,
        libc::SYS_getrandom,
        libc::SYS_getrusage,
        libc::SYS_gettid,
        libc::SYS_madvise,
        libc::SYS_membarrier,
        libc::SYS_mmap,
        libc::SYS_mprotect,
        libc::SYS_mremap,
        libc::SYS_munmap,
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_restart_syscall,
        libc::SYS_rseq,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_sched_yield,
        libc::SYS_set_robust_list,
        libc::SYS_sigaltstack,
        libc::SYS_tgkill,
        libc::SYS_write,
        libc::SYS_writev,
    ];
    let architecture = std::env::consts::ARCH.try_into();
    let Ok(architecture) = architecture else { return };
    let rules: BTreeMap<i64, Vec<_>> = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, architecture);
    let program = filter.and_then(BpfProgram::try_from);
    let applied = program.map(|program| seccompiler::apply_filter_all_threads(&program));
    if !matches!(applied, Ok(Ok(()))) {
        // The interpreter has no functions for files or the network; this is a second wall.
        tracing::debug!("no filter for system calls");
    }
}

#[cfg(not(target_os = "linux"))]
fn shut_in() {}

/// Runs a script between two pipes, until it has ended or the gateway has hung up. `ready` gets the limits
/// before anything of the script is read as code.
pub fn run(input: impl Read, output: impl Write + 'static, ready: impl FnOnce(&Start)) -> io::Result<()> {
    let mut input = BufReader::new(input);
    let mut line = String::new();
    input.read_line(&mut line)?;
    let start: Start = serde_json::from_str(&line)?;
    ready(&start);
    let engine = |error: rquickjs::Error| io::Error::other(error.to_string());
    let runtime = Runtime::new().map_err(engine)?;
    runtime.set_memory_limit(start.memory);
    runtime.set_max_stack_size(STACK);
    let clock = Rc::new(CpuClock::new(Duration::from_millis(start.cpu_ms)));
    let ticking = clock.clone();
    runtime.set_interrupt_handler(Some(Box::new(move || ticking.is_over())));
    let console = Rc::new(Console::new(output));
    let ended = match compiled(&runtime, &start.script) {
        Ok(code) => execute(&runtime, &start, code, &console, &mut input),
        Err(failure) => Err(Stop::Failed(failure)),
    };
    let last = match ended {
        Ok(value) => FromWorker::Done { value, log: console.log() },
        Err(Stop::Failed(mut failure)) => {
            if clock.ran_out.get() {
                failure.kind = FailureKind::Cpu;
            }
            failure.column = failure.column.map(|column| in_characters(&start.script, failure.line, column));
            FromWorker::Failed { failure, log: console.log() }
        }
        Err(Stop::Lost(error)) => return Err(error),
    };
    console.write(&last)
}

/// Why a script does not return.
enum Stop {
    Failed(Failure),
    /// The gateway has hung up, or cannot be understood.
    Lost(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Lost(error)
    }
}

/// The CPU time of a script.
struct CpuClock {
    limit: Duration,
    ran_out: Cell<bool>,
    #[cfg(not(unix))]
    began: std::time::Instant,
}

impl CpuClock {
    fn new(limit: Duration) -> Self {
        Self {
            limit,
            ran_out: Cell::new(false),
            #[cfg(not(unix))]
            began: std::time::Instant::now(),
        }
    }

    #[cfg(unix)]
    fn used(&self) -> Duration {
        use nix::sys::resource::{UsageWho, getrusage};
        // The interpreter has one thread.
        #[cfg(target_os = "linux")]
        let who = UsageWho::RUSAGE_THREAD;
        #[cfg(not(target_os = "linux"))]
        let who = UsageWho::RUSAGE_SELF;
        let Ok(usage) = getrusage(who) else { return Duration::ZERO };
        let micros = [usage.user_time(), usage.system_time()].map(|time| {
            // On macOS this is an `i32`.
            #[allow(clippy::useless_conversion)]
            let part = i64::from(time.tv_usec());
            time.tv_sec().saturating_mul(1_000_000).saturating_add(part)
        });
        let micros = micros.into_iter().fold(0, i64::saturating_add);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }

    #[cfg(not(unix))]
    fn used(&self) -> Duration {
        self.began.elapsed()
    }

    fn is_over(&self) -> bool {
        if !self.ran_out.get() && self.used() > self.limit {
            self.ran_out.set(true);
        }
        self.ran_out.get()
    }
}

/// The way out of the worker, and the end of what the script logs.
struct Console {
    output: RefCell<Box<dyn Write>>,
    log: RefCell<String>,
    has_news: Cell<bool>,
}

impl Console {
    fn new(output: impl Write + 'static) -> Self {
        let output: Box<dyn Write> = Box::new(io::BufWriter::with_capacity(64 << 10, output));
        Self { output: RefCell::new(output), log: RefCell::default(), has_news: Cell::new(false) }
    }

    fn note(&self, line: &str) {
        let mut log = self.log.borrow_mut();
        log.push_str(end_of(line, LOG_BYTES));
        log.push('\n');
        // Shortened now and then, not at each line.
        if log.len() > 4 * LOG_BYTES {
            *log = end_of(&log, LOG_BYTES).into();
        }
        self.has_news.set(true);
    }

    fn log(&self) -> String {
        self.has_news.set(false);
        end_of(&self.log.borrow(), LOG_BYTES).trim_end().into()
    }

    /// Passes a message of the script on, written by the prelude.
    fn send(&self, line: &str) -> io::Result<()> {
        let mut output = self.output.borrow_mut();
        output.write_all(line.as_bytes())?;
        output.write_all(b"\n")
    }

    fn write(&self, frame: &FromWorker) -> io::Result<()> {
        self.send(&serde_json::to_string(frame)?)?;
        self.output.borrow_mut().flush()
    }
}

/// Returns the last bytes of a text, from a character on.
fn end_of(text: &str, most: usize) -> &str {
    let mut at = text.len().saturating_sub(most);
    while !text.is_char_boundary(at) {
        at += 1;
    }
    text.get(at..).unwrap_or_default()
}

/// The compiled prelude and script.
struct Code {
    prelude: Vec<u8>,
    script: Vec<u8>,
}

fn compiled(runtime: &Runtime, script: &str) -> Result<Code, Failure> {
    let context = Context::full(runtime).map_err(|error| internal(&error.to_string()))?;
    context.with(|ctx| {
        let compile = |name: &str, text: String| -> rquickjs::Result<Vec<u8>> {
            Module::declare(ctx.clone(), name, text)?.write(WriteOptions::default())
        };
        let wrong = |error| Failure { kind: FailureKind::Syntax, ..failure_of(error) };
        let prelude = compile("nonet.js", include_str!("prelude.js").into()).catch(&ctx).map_err(wrong)?;
        let script = compile(SCRIPT, format!("{BEFORE}{script}\n}}")).catch(&ctx);
        Ok(Code { prelude, script: script.map_err(|error| without_types(wrong(error)))? })
    })
}

/// Says what TypeScript needs, where a text is not JavaScript.
fn without_types(mut failure: Failure) -> Failure {
    failure.message.push_str(". Scripts are JavaScript (ES2023), without TypeScript's annotations");
    failure
}

fn execute(
    runtime: &Runtime,
    start: &Start,
    code: Code,
    console: &Rc<Console>,
    input: &mut impl BufRead,
) -> Result<Box<RawValue>, Stop> {
    let stopped = |error: rquickjs::Error| Stop::Failed(internal(&error.to_string()));
    let context = Context::custom::<Realm>(runtime).map_err(stopped)?;
    let lost: Rc<RefCell<Vec<LostError>>> = Rc::default();
    let losses = lost.clone();
    runtime.set_host_promise_rejection_tracker(Some(Box::new(
        move |ctx, promise: Value<'_>, reason, is_handled| {
            let mut losses = losses.borrow_mut();
            let is_same = |one: &LostError| one.0.clone().restore(&ctx).is_ok_and(|one| one == promise);
            match is_handled {
                true => losses.retain(|one| !is_same(one)),
                false if losses.len() < MOST_LOST => {
                    losses.push((Persistent::save(&ctx, promise), failure_of_value(reason)));
                }
                false => {}
            }
        },
    )));
    let begun = context.with(|ctx| {
        let (script, hooks) = prepare(&ctx, start, code, console).catch(&ctx).map_err(failed)?;
        let main = script.call::<_, Promise<'_>>(()).catch(&ctx).map_err(failed)?;
        Ok(Running { main: Persistent::save(&ctx, main), hooks: Persistent::save(&ctx, hooks) })
    });
    let ended = begun.and_then(|running| wait(runtime, &context, &running, console, input, &lost));
    runtime.set_host_promise_rejection_tracker(None);
    ended
}

/// A promise that was rejected and has no handler, and why. It is held, so that no other one gets its place.
type LostError = (Persistent<Value<'static>>, Failure);

/// A script under way.
struct Running {
    main: Persistent<Promise<'static>>,
    /// The functions of the prelude that the worker calls.
    hooks: Persistent<Object<'static>>,
}

fn prepare<'js>(
    ctx: &Ctx<'js>,
    start: &Start,
    code: Code,
    console: &Rc<Console>,
) -> rquickjs::Result<(Function<'js>, Object<'js>)> {
    let native = Object::new(ctx.clone())?;
    let out = console.clone();
    native.set(
        "send",
        Function::new(ctx.clone(), move |line: String| {
            // One message each, whatever a script has made of the functions that write it. A gateway that has
            // hung up is noticed at the next read.
            if !line.contains('\n') {
                let _ = out.send(&line);
            }
        })?,
    )?;
    let log = console.clone();
    native.set("log", Function::new(ctx.clone(), move |line: String| log.note(&line))?)?;
    let state = Cell::new(start.seed);
    native.set(
        "random",
        Function::new(ctx.clone(), move || {
            let (next, number) = random(state.get());
            state.set(next);
            number
        })?,
    )?;
    let given = Object::new(ctx.clone())?;
    given.set("now_ms", start.now_ms as f64)?;
    given.set("max_calls", start.max_calls)?;
    // A message has more than what is sent.
    given.set("max_bytes", MAX_LINE / 2)?;
    given.set("input", ctx.json_parse(start.input.get())?)?;
    let prelude: Function<'js> = evaluated(ctx, code.prelude)?.get("default")?;
    let hooks: Object<'js> = prelude.call((native, given))?;
    let script: Function<'js> = evaluated(ctx, code.script)?.get("default")?;
    Ok((script, hooks))
}

/// Loads compiled code, and evaluates it.
#[expect(unsafe_code, reason = "loading compiled code, with its reason")]
fn evaluated<'js>(
    ctx: &Ctx<'js>,
    code: Vec<u8>,
) -> rquickjs::Result<Module<'js, rquickjs::module::Evaluated>> {
    // SAFETY: the same library has compiled this code in this process; it comes from nowhere else.
    let module: Module<'js, Declared> = unsafe { Module::load(ctx.clone(), &code)? };
    let (module, promise) = module.eval()?;
    promise.finish::<()>()?;
    Ok(module)
}

/// Returns the next state and a number from 0 to 1, by SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn random(state: u64) -> (u64, f64) {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    (state, (mixed >> 11) as f64 / (1_u64 << 53) as f64)
}

/// What the worker does next.
enum Next {
    Returned(Box<RawValue>),
    Wait,
}

/// Runs everything that can run, and passes answers on, until the script has ended.
fn wait(
    runtime: &Runtime,
    context: &Context,
    running: &Running,
    console: &Console,
    input: &mut impl BufRead,
    lost: &RefCell<Vec<LostError>>,
) -> Result<Box<RawValue>, Stop> {
    let mut line = String::new();
    loop {
        while runtime.is_job_pending() {
            // Only what nobody may catch ends a job: the limits.
            if let Err(ended) = runtime.execute_pending_job() {
                return Err(ended
                    .0
                    .with(|ctx| failed(CaughtError::from_error(&ctx, rquickjs::Error::Exception))));
            }
        }
        if let Next::Returned(value) = context.with(|ctx| next(&ctx, running, lost))? {
            return Ok(value);
        }
        let log = console.has_news.get().then(|| console.log());
        console.write(&FromWorker::Idle { log })?;
        line.clear();
        if input.read_line(&mut line)? == 0 {
            return Err(Stop::Lost(io::ErrorKind::UnexpectedEof.into()));
        }
        let frame = serde_json::from_str(&line).map_err(io::Error::other)?;
        context.with(|ctx| passed_on(&ctx, running, frame).catch(&ctx).map_err(failed))?;
    }
}

/// Returns what a script returns, once it has ended and every call of it has.
fn next(ctx: &Ctx<'_>, running: &Running, lost: &RefCell<Vec<LostError>>) -> Result<Next, Stop> {
    let broken = |error: rquickjs::Error| Stop::Failed(internal(&error.to_string()));
    let main = running.main.clone().restore(ctx).map_err(broken)?;
    let hooks = running.hooks.clone().restore(ctx).map_err(broken)?;
    let hook = |name: &str| hooks.get::<_, Function<'_>>(name).map_err(broken);
    let open: usize = hook("open")?.call(()).catch(ctx).map_err(failed)?;
    let calls: usize = hook("calls")?.call(()).catch(ctx).map_err(failed)?;
    match main.state() {
        // A timer that is left does not hold the answer back.
        PromiseState::Resolved if calls == 0 => {}
        PromiseState::Rejected => {}
        PromiseState::Pending if open == 0 => {
            let message = "the script waits for something that never comes: no call is in flight";
            return Err(Stop::Failed(Failure { kind: FailureKind::Stuck, ..internal(message) }));
        }
        PromiseState::Resolved | PromiseState::Pending => return Ok(Next::Wait),
    }
    let value = main.finish::<Value<'_>>().catch(ctx).map_err(failed)?;
    // The error of a call that the script did not wait for is no less an error.
    if let Some((_, failure)) = lost.borrow_mut().pop() {
        return Err(Stop::Failed(failure));
    }
    let written: String = hook("written")?.call((value,)).catch(ctx).map_err(failed)?;
    let written = RawValue::from_string(written).map_err(|error| Stop::Failed(internal(&error.to_string())));
    written.map(Next::Returned)
}

fn passed_on(ctx: &Ctx<'_>, running: &Running, frame: ToWorker) -> rquickjs::Result<()> {
    let hooks = running.hooks.clone().restore(ctx)?;
    match frame {
        ToWorker::Settle { id, ok, value, at_ms } => {
            let value = ctx.json_parse(value.get())?;
            hooks.get::<_, Function<'_>>("settle")?.call((id as f64, ok, value, at_ms as f64))
        }
        ToWorker::Held { id } => hooks.get::<_, Function<'_>>("held")?.call((id as f64,)),
    }
}

fn failed(error: CaughtError<'_>) -> Stop {
    Stop::Failed(failure_of(error))
}

fn internal(why: &str) -> Failure {
    Failure { kind: FailureKind::Uncaught, message: why.into(), line: None, column: None, code: None }
}

fn failure_of(error: CaughtError<'_>) -> Failure {
    match error {
        CaughtError::Exception(exception) => failure_of_value(exception.into_value()),
        // There was no memory left for an error.
        CaughtError::Value(value) if value.is_null() || value.type_of() == Type::Uninitialized => {
            Failure { kind: FailureKind::Memory, ..internal(OUT_OF_MEMORY) }
        }
        CaughtError::Value(value) => failure_of_value(value),
        CaughtError::Error(error) => internal(&error.to_string()),
    }
}

/// Describes what was thrown: its name, its message, and where.
fn failure_of_value(thrown: Value<'_>) -> Failure {
    let text =
        |key: &str| thrown.as_object().and_then(|object| object.get::<_, Option<String>>(key).ok().flatten());
    let (name, message) = (text("name"), text("message"));
    let is_of_engine = name.as_deref() == Some("InternalError");
    let kind = match is_of_engine && message.as_deref() == Some(OUT_OF_MEMORY) {
        true => FailureKind::Memory,
        false => FailureKind::Uncaught,
    };
    let said = match (name, message) {
        (Some(name), Some(message)) => format!("{name}: {message}"),
        (None, Some(message)) => message,
        (_, None) => {
            let json = thrown.ctx().json_stringify(&thrown).ok().flatten();
            let json = json.and_then(|json| json.to_string().ok());
            format!("the script threw {}", json.as_deref().unwrap_or("undefined"))
        }
    };
    let (line, column) = text("stack").as_deref().and_then(place_in).unzip();
    Failure { kind, message: clip(&said), line, column, code: text("code").map(|code| clip(&code)) }
}

/// Finds the first place in the script in the stack of an error: `at name (script.js:LINE:COLUMN)`.
fn place_in(stack: &str) -> Option<(u32, u32)> {
    let (_, rest) = stack.split_once(SCRIPT)?;
    let mut numbers = rest.trim_start_matches(':').splitn(2, ':');
    let number = |text: &str| -> Option<u32> {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    let line = number(numbers.next()?)?;
    let column = numbers.next().and_then(number).unwrap_or(1);
    Some((line.saturating_sub(LINES_BEFORE).max(1), column))
}

/// Turns a column in bytes, as the interpreter has it, into one in characters.
fn in_characters(script: &str, line: Option<u32>, column: u32) -> u32 {
    let at = |number: u32| usize::try_from(number.saturating_sub(1)).unwrap_or(usize::MAX);
    let line = script.lines().nth(at(line.unwrap_or(1))).unwrap_or_default();
    let before = line.get(..at(column)).map(|before| before.chars().count() + 1);
    before.and_then(|column| u32::try_from(column).ok()).unwrap_or(column)
}

fn clip(text: &str) -> String {
    match text.char_indices().nth(MESSAGE) {
        Some((at, _)) => format!("{}...", text.get(..at).unwrap_or_default()),
        None => text.into(),
    }
}
