//! A tool's JSON Schema: what it accepts, how it reads on one line, and what an invalid call may have meant.
//!
//! The strict reading comes first. If it fails and exactly one other reading fits, that one is used, and the
//! caller gets a note per repair. Neither callers nor servers may waste our time: `limits` bounds the cost of
//! a schema in advance, and reading is watched where no bound is known. This crate knows JSON and JSON Schema
//! only.

mod alike;
mod example;
mod faults;
mod judge;
mod limits;
mod places;
mod readings;
mod repair;
mod signature;
#[cfg(test)]
mod tests;
mod unknown;

use std::{
    ops::Deref,
    sync::{
        Arc, LazyLock, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use jsonschema::{PatternOptions, Validator};
use limits::CheckCost;
pub use readings::from_text;
pub use repair::bare;
use serde_json::{Map, Value, json};
pub use signature::Parameter;

/// The time limit of a schema with unknown cost, for reading params and for compiling (once).
const READ_LIMIT: Duration = Duration::from_secs(1);
const COMPILE_LIMIT: Duration = Duration::from_secs(5);
/// The most watched threads, including those that never return.
const MAX_THREADS: usize = 16;
/// The stack of a watched thread: a recursive schema descends as deep as the value. Only the used part takes
/// memory.
const STACK: usize = 64 << 20;
/// The deepest value accepted by a recursive schema.
const MAX_VALUE_DEPTH: usize = 160;
/// How often a pattern may backtrack before it counts as undecided.
const BACKTRACK_LIMIT: usize = 100_000;
/// The memory limit of a compiled pattern, and of matching it, in bytes.
const PATTERN_BYTES: usize = 4 << 20;
const PATTERN_CACHE_BYTES: usize = 1 << 20;

/// An input schema, compiled on first use.
#[derive(Clone, Debug)]
pub struct Schema {
    inner: Arc<Inner>,
}

/// The state shared with watched threads.
#[derive(Debug)]
struct Inner {
    raw: Raw,
    tool: String,
    compiled: OnceLock<Result<CompiledSchema, String>>,
    /// Set once reading took too long: from then on the schema counts as broken.
    overran: AtomicBool,
    /// Held while a thread is watched, so at most one thread per definition can hang.
    turn: Mutex<()>,
}

/// A schema as sent by a server.
#[derive(Debug)]
enum Raw {
    Own(Value),
    /// The `inputSchema` of a shared tool definition.
    Input(Arc<Value>),
}

impl Deref for Raw {
    type Target = Value;

    fn deref(&self) -> &Value {
        static ANY: LazyLock<Value> = LazyLock::new(|| json!({ "type": "object" }));
        match self {
            Raw::Own(schema) => schema,
            Raw::Input(definition) => definition.get("inputSchema").unwrap_or(&ANY),
        }
    }
}

#[derive(Debug)]
struct CompiledSchema {
    validator: Validator,
    cost: CheckCost,
    /// The params that the schema itself declares, outside of its subschemas; sorted.
    on_top: Box<[Box<str>]>,
}

/// Valid params, ready for the server.
#[derive(Debug, PartialEq)]
pub struct ValidParams {
    /// The params object.
    pub params: Map<String, Value>,
    /// A short note per repair; empty for the strict reading.
    pub repaired: Vec<String>,
}

/// Why params do not fit.
#[derive(Debug, PartialEq)]
pub struct ParamsMismatch {
    /// Each fault with its path, the value found and what was expected.
    pub faults: Vec<String>,
    /// A params object of the right shape: the given values as far as possible, with `<type>` placeholders
    /// for missing ones.
    pub example: Map<String, Value>,
    /// Whether `example` fits as it is, without placeholders.
    pub example_fits: bool,
}

impl Schema {
    /// Wraps a schema from a server. Anything but an object means "any object".
    pub fn new(raw: Value) -> Self {
        Self::made("", Raw::Own(raw))
    }

    /// Wraps the schema of a named tool: models may wrap params in the tool's name.
    pub fn of_tool(tool: &str, raw: Value) -> Self {
        Self::made(tool, Raw::Own(raw))
    }

    /// Wraps the input schema of a shared tool definition. Without one, the schema means "any object".
    pub fn of_definition(tool: &str, definition: Arc<Value>) -> Self {
        Self::made(tool, Raw::Input(definition))
    }

    fn made(tool: &str, raw: Raw) -> Self {
        let inner = Inner {
            raw,
            tool: tool.into(),
            compiled: OnceLock::new(),
            overran: AtomicBool::new(false),
            turn: Mutex::new(()),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Returns the schema, verbatim.
    pub fn raw(&self) -> &Value {
        &self.inner.raw
    }

    /// Returns why the schema cannot check params; `None` if it can. A tool with a broken schema stays
    /// callable; its params go through unchecked.
    pub fn broken(&self) -> Option<&str> {
        self.compiled().err()
    }

    /// Whether reading takes microseconds, as it nearly always does. Otherwise it may take up to a second,
    /// and longer the first time.
    pub fn is_quick(&self) -> bool {
        match self.inner.compiled.get() {
            Some(Ok(compiled)) => matches!(compiled.cost, CheckCost::Simple(_)),
            Some(Err(_)) => true,
            None => !matches!(limits::examine(&self.inner.raw), Ok(CheckCost::Open)),
        }
    }

    /// Whether `value` fits.
    pub fn accepts(&self, value: &Value) -> bool {
        match self.compiled() {
            Err(_) => true,
            Ok(CompiledSchema { validator, cost: CheckCost::Simple(_), .. }) => validator.is_valid(value),
            Ok(_) if too_deep(value, MAX_VALUE_DEPTH) => false,
            Ok(_) => {
                let value = value.clone();
                self.watched(move |inner| inner.fits(&value)).unwrap_or(true)
            }
        }
    }

    /// Returns the first fault of a value that does not fit, with its JSON Pointer. A schema of unknown cost is not
    /// asked.
    pub fn first_fault(&self, value: &Value) -> Option<String> {
        let Ok(CompiledSchema { validator, cost: CheckCost::Simple(_), .. }) = self.compiled() else {
            return None;
        };
        let error = validator.iter_errors(value).next()?;
        Some(faults::told(&error))
    }

    /// Reads params as a caller sent them.
    ///
    /// # Errors
    ///
    /// The faults, with a corrected example.
    pub fn read(&self, given: Value) -> Result<ValidParams, ParamsMismatch> {
        let given = match given {
            Value::Null => Value::Object(Map::new()),
            other => other,
        };
        match self.compiled() {
            Ok(CompiledSchema { cost: CheckCost::Simple(_), .. }) => self.inner.read(given),
            Ok(_) if too_deep(&given, MAX_VALUE_DEPTH) => Err(ParamsMismatch {
                faults: vec![format!("params: nested deeper than {MAX_VALUE_DEPTH} levels")],
                example: self.example(),
                example_fits: false,
            }),
            Ok(_) => {
                let kept = given.clone();
                self.watched(move |inner| inner.read(given)).unwrap_or_else(|| readings::unchecked(kept))
            }
            Err(_) => readings::unchecked(given),
        }
    }

    /// Compiles the schema once. References to other documents are never fetched; they make the schema
    /// broken.
    fn compiled(&self) -> Result<&CompiledSchema, &str> {
        if self.inner.overran.load(Ordering::Relaxed) {
            return Err("checking params against the schema took too long, or failed");
        }
        let compiled = self.inner.compiled.get_or_init(|| {
            if !self.inner.raw.is_object() {
                return Err("the schema is not an object".into());
            }
            let cost = limits::examine(&self.inner.raw)?;
            let built = match cost {
                CheckCost::Simple(_) => build(&self.inner.raw),
                CheckCost::Open => spawn(&self.inner, COMPILE_LIMIT, |inner| build(&inner.raw))
                    .unwrap_or_else(|_| Err("the schema could not be compiled in time".into())),
            };
            let names = signature::properties(&self.inner.raw).into_iter().flatten();
            let mut on_top: Box<[Box<str>]> = names.map(|(name, _)| name.as_str().into()).collect();
            on_top.sort_unstable();
            Ok(CompiledSchema { validator: built?, cost, on_top })
        });
        compiled.as_ref().map_err(String::as_str)
    }

    /// Runs `work` on a watched thread. `None`: the thread ran out of time, so the schema counts as broken
    /// from now on; or too many threads are already hanging.
    fn watched<T: Send + 'static>(&self, work: impl FnOnce(&Inner) -> T + Send + 'static) -> Option<T> {
        let _turn = self.inner.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.inner.overran.load(Ordering::Relaxed) {
            return None;
        }
        let done = spawn(&self.inner, READ_LIMIT, work);
        if let Err(WatchedWorkError::Late) = done {
            self.inner.overran.store(true, Ordering::Relaxed);
            let tool = &self.inner.tool;
            tracing::warn!(tool, "checking params took too long; they now go through unchecked");
        }
        done.ok()
    }
}

/// Why work on a watched thread has no result.
enum WatchedWorkError {
    /// The work took too long, or panicked.
    Late,
    /// No thread was available.
    NotBegun,
}

/// Runs `work` on a thread of its own and returns its result, if in time. A thread cannot be killed: a late
/// one keeps running.
fn spawn<T: Send + 'static>(
    inner: &Arc<Inner>,
    limit: Duration,
    work: impl FnOnce(&Inner) -> T + Send + 'static,
) -> Result<T, WatchedWorkError> {
    static RUNNING: AtomicUsize = AtomicUsize::new(0);
    struct Running;
    impl Drop for Running {
        fn drop(&mut self) {
            RUNNING.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let others = RUNNING.fetch_add(1, Ordering::Relaxed);
    let running = Running;
    if others >= MAX_THREADS {
        return Err(WatchedWorkError::NotBegun);
    }
    let (send, receive) = mpsc::sync_channel(1);
    let inner = inner.clone();
    let thread = move || {
        let _running = running;
        // The receiver is gone if the work took too long.
        let _ = send.send(work(&inner));
    };
    let thread = std::thread::Builder::new().name("schema".into()).stack_size(STACK).spawn(thread);
    thread.map_err(|_| WatchedWorkError::NotBegun)?;
    receive.recv_timeout(limit).map_err(|_| WatchedWorkError::Late)
}

fn build(raw: &Value) -> Result<Validator, String> {
    let patterns = PatternOptions::fancy_regex()
        .backtrack_limit(BACKTRACK_LIMIT)
        .size_limit(PATTERN_BYTES)
        .dfa_size_limit(PATTERN_CACHE_BYTES);
    jsonschema::options()
        .with_draft(limits::draft(raw))
        .with_pattern_options(patterns)
        .offline()
        .build(raw)
        .map_err(|error| nonet_base::text::clip(&error.to_string(), faults::MAX_MESSAGE))
}

fn too_deep(value: &Value, left: usize) -> bool {
    match value {
        Value::Object(fields) => left == 0 || fields.values().any(|field| too_deep(field, left - 1)),
        Value::Array(items) => left == 0 || items.iter().any(|item| too_deep(item, left - 1)),
        _ => false,
    }
}
