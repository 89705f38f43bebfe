//! A tool's JSON Schema: what it accepts, how it reads on one line, and what a call that does not
//! fit may have meant.
//!
//! The strict reading comes first. Only when it fails, and exactly one other reading fits, is that
//! one taken, and the caller is told what was repaired. Neither callers nor servers are trusted with
//! our time: `limits` says what a schema may cost, and what it cannot say is watched here. This room
//! knows JSON and JSON Schema alone.

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
use limits::Cost;
pub use readings::from_text;
pub use repair::bare;
use serde_json::{Map, Value, json};
pub use signature::Parameter;

/// How long a schema of unknown cost may take to read params, and to compile, which is done once.
const READ_LIMIT: Duration = Duration::from_secs(1);
const COMPILE_LIMIT: Duration = Duration::from_secs(5);
/// How many watched threads there are at most, those that never come back included.
const MAX_THREADS: usize = 16;
/// The stack of a watched thread: a recursive schema follows the value as deep as it goes. Only what
/// is used of it takes memory.
const STACK: usize = 64 << 20;
/// The deepest value that a recursive schema follows.
const MAX_VALUE_DEPTH: usize = 160;
/// How often a pattern may try another way before it counts as undecided.
const BACKTRACK_LIMIT: usize = 100_000;
/// The most memory that one compiled pattern takes, in bytes, and that matching it takes.
const PATTERN_BYTES: usize = 4 << 20;
const PATTERN_CACHE_BYTES: usize = 1 << 20;

/// An input schema, compiled when it is first needed.
#[derive(Clone, Debug)]
pub struct Schema {
    inner: Arc<Inner>,
}

/// What a watched thread shares with the schema.
#[derive(Debug)]
struct Inner {
    raw: Raw,
    tool: String,
    compiled: OnceLock<Result<Compiled, String>>,
    /// Set once reading took too long: the schema counts as broken from then on.
    overran: AtomicBool,
    /// Held while a thread is watched, so that a definition has one that never comes back at most.
    turn: Mutex<()>,
}

/// A schema as a server gave it.
#[derive(Debug)]
enum Raw {
    Own(Value),
    /// The `inputSchema` of a tool's definition, which others have too.
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
struct Compiled {
    validator: Validator,
    cost: Cost,
}

/// Params as they go to the server.
#[derive(Debug, PartialEq)]
pub struct Reading {
    /// The params object.
    pub params: Map<String, Value>,
    /// What was changed to make it fit, each in a few words; empty for the strict reading.
    pub repaired: Vec<String>,
}

/// Why params do not fit.
#[derive(Debug, PartialEq)]
pub struct Misfit {
    /// Each with its path, what was found and what was expected.
    pub faults: Vec<String>,
    /// A params object of the right shape: what was given, as far as it can be kept, with
    /// `<type>` placeholders for what is missing.
    pub example: Map<String, Value>,
    /// Whether `example` fits as it stands, with nothing made up.
    pub example_fits: bool,
}

impl Schema {
    /// Takes a schema as a server gave it. Anything but an object counts as "any object".
    pub fn new(raw: Value) -> Self {
        Self::made("", Raw::Own(raw))
    }

    /// The same for the tool of this name, which models may wrap its params in.
    pub fn of_tool(tool: &str, raw: Value) -> Self {
        Self::made(tool, Raw::Own(raw))
    }

    /// The input schema of a tool's definition, which is shared. Without one it is "any object".
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

    /// The schema, verbatim.
    pub fn raw(&self) -> &Value {
        &self.inner.raw
    }

    /// Why the schema cannot be used to check params, if so. Such a tool stays callable; its params
    /// go through unchecked.
    pub fn broken(&self) -> Option<&str> {
        self.compiled().err()
    }

    /// Whether params are read in microseconds: nearly always. If not, reading may take up to a second, and the first time
    /// some more.
    pub fn is_quick(&self) -> bool {
        match self.inner.compiled.get() {
            Some(Ok(compiled)) => matches!(compiled.cost, Cost::Simple(_)),
            Some(Err(_)) => true,
            None => !matches!(limits::examine(&self.inner.raw), Ok(Cost::Open)),
        }
    }

    /// Whether `value` fits.
    pub fn accepts(&self, value: &Value) -> bool {
        match self.compiled() {
            Err(_) => true,
            Ok(Compiled { validator, cost: Cost::Simple(_) }) => validator.is_valid(value),
            Ok(_) if too_deep(value, MAX_VALUE_DEPTH) => false,
            Ok(_) => {
                let value = value.clone();
                self.watched(move |inner| inner.fits(&value)).unwrap_or(true)
            }
        }
    }

    /// Reads what a caller sent as params.
    pub fn read(&self, given: Value) -> Result<Reading, Misfit> {
        let given = match given {
            Value::Null => Value::Object(Map::new()),
            other => other,
        };
        match self.compiled() {
            Ok(Compiled { cost: Cost::Simple(_), .. }) => self.inner.read(given),
            Ok(_) if too_deep(&given, MAX_VALUE_DEPTH) => Err(Misfit {
                faults: vec![format!("params: they nest deeper than {MAX_VALUE_DEPTH} levels")],
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

    /// Compiled once. A reference to another document is never fetched: it makes the schema broken.
    fn compiled(&self) -> Result<&Compiled, &str> {
        if self.inner.overran.load(Ordering::Relaxed) {
            return Err("checking params against the schema took too long, or failed");
        }
        let compiled = self.inner.compiled.get_or_init(|| {
            if !self.inner.raw.is_object() {
                return Err("the schema is not an object".into());
            }
            let cost = limits::examine(&self.inner.raw)?;
            let built = match cost {
                Cost::Simple(_) => build(&self.inner.raw),
                Cost::Open => spawn(&self.inner, COMPILE_LIMIT, |inner| build(&inner.raw))
                    .unwrap_or_else(|_| Err("the schema could not be compiled in time".into())),
            };
            Ok(Compiled { validator: built?, cost })
        });
        compiled.as_ref().map_err(String::as_str)
    }

    /// Runs `work` on a thread of its own for as long as the limit allows. `None`: it ran over, and
    /// the schema counts as broken from now on; or too many others have.
    fn watched<T: Send + 'static>(&self, work: impl FnOnce(&Inner) -> T + Send + 'static) -> Option<T> {
        let _turn = self.inner.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.inner.overran.load(Ordering::Relaxed) {
            return None;
        }
        let done = spawn(&self.inner, READ_LIMIT, work);
        if let Err(Undone::Late) = done {
            self.inner.overran.store(true, Ordering::Relaxed);
            let tool = &self.inner.tool;
            tracing::warn!(tool, "checking params took too long; from now on they go through unchecked");
        }
        done.ok()
    }
}

/// Why work on a thread of its own gave nothing.
enum Undone {
    /// It did not end in time, or it panicked.
    Late,
    /// There was no thread for it.
    NotBegun,
}

/// What `work` gives on a thread of its own, if it ends in time. A thread cannot be ended from
/// outside: one that is late goes on.
fn spawn<T: Send + 'static>(
    inner: &Arc<Inner>,
    limit: Duration,
    work: impl FnOnce(&Inner) -> T + Send + 'static,
) -> Result<T, Undone> {
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
        return Err(Undone::NotBegun);
    }
    let (send, receive) = mpsc::sync_channel(1);
    let inner = inner.clone();
    let thread = move || {
        let _running = running;
        // Nobody listens any more if it took too long.
        let _ = send.send(work(&inner));
    };
    let thread = std::thread::Builder::new().name("schema".into()).stack_size(STACK).spawn(thread);
    thread.map_err(|_| Undone::NotBegun)?;
    receive.recv_timeout(limit).map_err(|_| Undone::Late)
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
