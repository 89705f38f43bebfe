//! jq filters over JSON values, through jaq. Bounded in number, time, memory and output; never run on an
//! async thread.

mod tables;

use std::{
    borrow::Cow,
    cell::RefCell,
    collections::HashMap,
    io::{self, Read},
    path::{Path, PathBuf},
    process::Stdio,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use jaq_core::{
    Compiler, Ctx, Vars,
    compile::Undefined,
    data,
    load::{self, Arena, File, Loader},
    native, unwrap_valr,
};
use jaq_json::{Val, read};
use nonet_base::{text::clip, turns::Turns};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Semaphore,
};

/// How many values a filter may output.
const MAX_OUTPUTS: usize = 10_000;
/// The most bytes and JSON values that a filter may output: the gateway parses them into a tree.
const MAX_OUTPUT: usize = 64 << 20;
const MAX_VALUES: usize = 2_000_000;
/// How long a filter may run.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// How many filters run at the same time, over all clients.
const AT_ONCE: usize = 2;
/// How many filters may wait for their turn, and for how long.
const LONGEST_QUEUE: usize = 256;
const PATIENCE: Duration = Duration::from_secs(30);
/// jq functions that would access the environment or the process, with their number of arguments. They fail
/// here.
const OUTSIDE: [(&str, usize); 2] = [("env", 0), ("halt", 1)];
/// The own name of jq's `fromjson`, which takes only text.
const OF_TEXT: &str = "fromjson_of_text";
/// `fromjson` as here: JSON in a result is already parsed, so a value that is not text stays as it is.
const FROM_JSON: &str = "def fromjson: if isstring then fromjson_of_text else . end;";
/// The longest filter of a caller, in bytes, and a stack for the deepest filter of this length. Only what is
/// used of it takes memory.
const LONGEST: usize = 8 << 10;
const CHECK_STACK: usize = 256 << 20;
/// Limits how many threads check filters at the same time.
const CHECKS_AT_ONCE: u32 = 4;
static CHECKS: Semaphore = Semaphore::const_new(CHECKS_AT_ONCE as usize);

/// Why a filter failed.
#[derive(Debug, thiserror::Error, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum SelectError {
    /// The text is not a jq filter. Holds the text and the reason.
    #[error("`{}` is not a jq filter: {}", clip(.0, MAX_HEAD), .1)]
    Syntax(String, String),
    /// The filter failed on this value, or exceeded a limit on memory or output. Holds the filter and the
    /// reason.
    #[error("the jq filter `{}` failed: {}", clip(.0, MAX_HEAD), .1)]
    Failed(String, String),
    /// The filter exceeded its time limit. Holds the filter.
    #[error("the jq filter `{}` did not end within {TIME_LIMIT:?}", clip(.0, MAX_HEAD))]
    TooSlow(String),
    /// Too many filters are running or waiting, so this one was not run; a retry may succeed. Holds the
    /// filter.
    #[error("the jq filter `{}` was not run: too many filters are running or waiting", clip(.0, MAX_HEAD))]
    Busy(String),
}

impl SelectError {
    /// Returns the error as one of this filter, from which the filter that ran was made.
    pub fn about(self, filter: &str) -> Self {
        let filter = filter.into();
        match self {
            Self::Syntax(_, why) => Self::Syntax(filter, why),
            Self::Failed(_, why) => Self::Failed(filter, why),
            Self::TooSlow(_) => Self::TooSlow(filter),
            Self::Busy(_) => Self::Busy(filter),
        }
    }
}

/// The argument that makes the binary run one filter: the filter follows, the value comes on stdin.
pub const SELECT_COMMAND: &str = "__select";
/// How much of a long message is shown, in characters.
const MAX_HEAD: usize = 160;
const MAX_TAIL: usize = 80;
/// The memory limit of a filter, in bytes.
const MEMORY_LIMIT: u64 = 512 << 20;
/// The same limit including the program and merely reserved memory, where the system cannot tell them apart.
const ADDRESS_LIMIT: u64 = 2 << 30;
/// The stack limit of a filter, in bytes, as part of its memory.
const STACK: usize = 64 << 20;

/// Runs filters, each in its own process if there is an executable: endless recursion or memory use then ends
/// only that process.
#[derive(Clone, Debug)]
pub struct Selector {
    executable: Option<PathBuf>,
    turns: Arc<Turns>,
}

impl Default for Selector {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Selector {
    /// Runs filters as `executable` with [`SELECT_COMMAND`], or in this process without one.
    pub fn new(executable: Option<PathBuf>) -> Self {
        Self { executable, turns: Turns::new(AT_ONCE, LONGEST_QUEUE) }
    }

    /// Runs a filter on JSON text. One output is the value itself, several are an array.
    pub async fn select(&self, owner: u64, filter: &str, json: Cow<'_, str>) -> Result<Value, SelectError> {
        let mut outputs = self.outputs(owner, filter, json).await?;
        Ok(if outputs.len() == 1 { outputs.remove(0) } else { Value::Array(outputs) })
    }

    /// Runs a filter on JSON text when it is the owner's turn. Returns all outputs in order.
    pub async fn outputs(
        &self,
        owner: u64,
        filter: &str,
        json: Cow<'_, str>,
    ) -> Result<Vec<Value>, SelectError> {
        let slot = tokio::time::timeout(PATIENCE, self.turns.take(owner)).await;
        let Ok(Ok(slot)) = slot else { return Err(SelectError::Busy(filter.into())) };
        let outcome = match &self.executable {
            Some(executable) => tokio::time::timeout(TIME_LIMIT, in_child(executable, filter, &json)).await,
            None => {
                let (text, json) = (filter.to_string(), json.into_owned());
                let work = tokio::task::spawn_blocking(move || {
                    // Held because the work may continue past its time limit.
                    let _slot = slot;
                    run(&text, &json)
                });
                let failed = |_| Err(SelectError::Failed(filter.into(), "it could not be evaluated".into()));
                tokio::time::timeout(TIME_LIMIT, async { work.await.unwrap_or_else(failed) }).await
            }
        };
        outcome.unwrap_or_else(|_| Err(SelectError::TooSlow(filter.into())))
    }
}

/// Whether a filter's outputs mean yes: a single truthy output suffices. `false` and `null` mean no, as in
/// jq, and here so does an empty list: `.rows` asks whether there are any.
pub fn holds(outputs: &[Value]) -> bool {
    outputs.iter().any(|output| match output {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) => !items.is_empty(),
        _ => true,
    })
}

async fn in_child(executable: &Path, filter: &str, json: &str) -> Result<Vec<Value>, SelectError> {
    let failed = |why: &str| SelectError::Failed(filter.into(), why.into());
    let broken = |error: io::Error| failed(&error.to_string());
    let mut command = tokio::process::Command::new(executable);
    // Windows needs some variables to start a program; a filter needs none.
    #[cfg(unix)]
    command.env_clear();
    let mut child = command
        .args([SELECT_COMMAND, filter])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(broken)?;
    let mut input = child.stdin.take().ok_or_else(|| failed("no stdin"))?;
    let feed = async move {
        // A refused filter does not read its input.
        let _ = input.write_all(json.as_bytes()).await;
    };
    let output = child.stdout.take().ok_or_else(|| failed("no stdout"))?;
    let read = async {
        let mut bytes = Vec::new();
        output.take(MAX_OUTPUT as u64 + 1).read_to_end(&mut bytes).await.map(|_| bytes)
    };
    let ((), bytes) = tokio::join!(feed, read);
    let bytes = bytes.map_err(broken)?;
    if bytes.len() > MAX_OUTPUT {
        return Err(failed(&format!("its output has more than {MAX_OUTPUT} bytes")));
    }
    if !child.wait().await.map_err(broken)?.success() {
        return Err(failed("it needs more memory or deeper recursion than is allowed"));
    }
    if values(&bytes) > MAX_VALUES {
        return Err(failed(&format!("its output has more than {MAX_VALUES} values")));
    }
    let work = tokio::task::spawn_blocking(move || serde_json::from_slice::<FilterOutcome>(&bytes));
    let outcome = work.await.map_err(|error| failed(&error.to_string()))?;
    outcome.map_err(|error| failed(&error.to_string()))?.into()
}

/// Counts the values in a JSON text; may overestimate slightly.
fn values(json: &[u8]) -> usize {
    let (mut count, mut in_string, mut escaped) = (1, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

/// The child's output.
#[derive(serde::Serialize, serde::Deserialize)]
enum FilterOutcome {
    Outputs(Vec<Value>),
    Error(SelectError),
}

impl From<FilterOutcome> for Result<Vec<Value>, SelectError> {
    fn from(outcome: FilterOutcome) -> Self {
        match outcome {
            FilterOutcome::Outputs(outputs) => Ok(outputs),
            FilterOutcome::Error(error) => Err(error),
        }
    }
}

/// Runs in the child: reads a value from stdin and writes the outcome to stdout.
pub fn run_child(filter: &str) -> io::Result<()> {
    #[cfg(unix)]
    {
        use nix::sys::resource::{Resource, setrlimit};
        // Of the mapped memory, the program itself and merely reserved memory do not count.
        for (resource, most) in [(Resource::RLIMIT_DATA, MEMORY_LIMIT), (Resource::RLIMIT_AS, ADDRESS_LIMIT)]
        {
            if let Err(error) = setrlimit(resource, most, most) {
                tracing::debug!(%error, "no limit on memory");
            }
        }
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let filter = filter.to_string();
    let work = std::thread::Builder::new().stack_size(STACK).spawn(move || match run(&filter, &text) {
        Ok(outputs) => FilterOutcome::Outputs(outputs),
        Err(error) => FilterOutcome::Error(error),
    })?;
    let outcome = work.join().map_err(|_| io::Error::other("the filter panicked"))?;
    let out = io::stdout().lock();
    serde_json::to_writer(out, &outcome)?;
    Ok(())
}

/// Checks that a text is a jq filter.
pub fn check(filter: &str) -> Result<(), SelectError> {
    compile(filter).map(drop)
}

/// Returns a filter that was given; a blank one was not.
pub fn given(filter: Option<String>) -> Option<String> {
    filter.filter(|filter| !filter.trim().is_empty())
}

/// Checks callers' filters before anything runs. The error has the position of the first wrong filter.
/// Parsing one takes less than a process for it would; a thread with a stack for the deepest filter keeps the
/// gateway safe.
pub async fn check_all(filters: Vec<String>) -> Result<(), (usize, SelectError)> {
    let (done, outcome) = tokio::sync::oneshot::channel();
    let first = filters.first().cloned().unwrap_or_default();
    // Never closed. Held by the thread, because the caller may give up meanwhile.
    let turn = CHECKS.acquire().await.ok();
    let work = move || {
        let _turn = turn;
        let mut checked = filters.iter().enumerate().map(|(at, filter)| match filter.len() > LONGEST {
            true => Err((at, too_long(filter))),
            false => check(filter).map_err(|error| (at, error)),
        });
        let _ = done.send(checked.find(Result::is_err).unwrap_or(Ok(())));
    };
    let thread = std::thread::Builder::new().stack_size(CHECK_STACK).spawn(work);
    thread.map_err(|_| (0, SelectError::Busy(first.clone())))?;
    outcome.await.map_err(|_| (0, SelectError::Syntax(first, "it could not be checked".into())))?
}

fn too_long(filter: &str) -> SelectError {
    let why = format!("it has {} bytes, and the most are {LONGEST}", filter.len());
    SelectError::Syntax(filter.into(), why)
}

/// Functions that a condition must not use, because they may never end, or make a value of any size: it runs in the
/// gateway itself.
const ENDLESS: [&str; 15] = [
    "combinations",
    "def",
    "getpath",
    "input",
    "inputs",
    "limit",
    "nth",
    "range",
    "recurse",
    "recurse_down",
    "repeat",
    "setpath",
    "skip",
    "until",
    "while",
];
/// How many conditions a thread keeps compiled. No configuration has more.
const MAX_COMPILED: usize = 256;

/// Checks that a text is a filter that ends soon on every value of a bounded size.
pub fn check_condition(filter: &str) -> Result<(), SelectError> {
    compile(filter)?;
    let wrong = |why: String| Err(SelectError::Syntax(filter.into(), why));
    let bare = without_names(filter);
    if let Some(word) = words(&bare).find(|word| ENDLESS.contains(word)) {
        return wrong(format!("`{word}` is not for conditions, which have to end at once"));
    }
    if bare.contains('*') {
        return wrong("`*` is not for conditions, because it repeats texts; compare, add or divide".into());
    }
    let compared = ["==", "!=", "<=", ">="].iter().fold(bare, |text, sign| text.replace(sign, " "));
    match compared.contains('=') {
        true => wrong("a condition changes nothing: compare with `==`".into()),
        false => Ok(()),
    }
}

/// Returns a filter without its texts, comments, and the names of members after a dot: what is left is functions and
/// signs. What is inserted into texts stays.
fn without_names(filter: &str) -> String {
    let mut left = String::new();
    let mut chars = filter.chars().peekable();
    // How many parentheses are open, for each text that they are inserted into.
    let mut texts: Vec<usize> = Vec::new();
    let mut in_text = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' if in_text => {
                if chars.next() == Some('(') {
                    texts.push(0);
                    in_text = false;
                    left.push('(');
                }
            }
            '"' if in_text => in_text = false,
            _ if in_text => {}
            '"' => {
                in_text = true;
                left.push(' ');
            }
            '#' => while chars.next_if(|c| *c != '\n').is_some() {},
            '.' => {
                left.push(' ');
                while chars.next_if(|c| c.is_ascii_alphanumeric() || *c == '_').is_some() {}
            }
            '(' => {
                texts.iter_mut().next_back().into_iter().for_each(|open| *open += 1);
                left.push(c);
            }
            ')' => {
                left.push(c);
                match texts.last_mut() {
                    Some(0) => {
                        texts.pop();
                        in_text = true;
                    }
                    Some(open) => *open -= 1,
                    None => {}
                }
            }
            _ => left.push(c),
        }
    }
    left
}

/// Returns the words of a filter.
fn words(filter: &str) -> impl Iterator<Item = &str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    filter.split(move |c: char| !is_word(c)).filter(|word| !word.is_empty())
}

/// Returns whether a condition holds for a JSON text, on this thread. Each thread compiles a condition once. For
/// conditions that [`check_condition`] allows.
pub fn condition(filter: &str, json: &str) -> Result<bool, SelectError> {
    thread_local! {
        static COMPILED: RefCell<HashMap<String, Rc<Program>>> = RefCell::default();
    }
    let known = COMPILED.with_borrow(|compiled| compiled.get(filter).cloned());
    let program = match known {
        Some(program) => program,
        None => {
            let program = Rc::new(compile(filter)?);
            COMPILED.with_borrow_mut(|compiled| {
                if compiled.len() >= MAX_COMPILED {
                    compiled.clear();
                }
                compiled.insert(filter.into(), program.clone());
            });
            program
        }
    };
    Ok(holds(&outputs_of(&program, filter, json)?))
}

type Program = jaq_core::compile::Filter<jaq_core::Native<data::JustLut<Val>>>;

/// Runs a filter on JSON text without building a second tree: the text may be large.
fn run(filter: &str, json: &str) -> Result<Vec<Value>, SelectError> {
    outputs_of(&compile(filter)?, filter, json)
}

fn outputs_of(program: &Program, filter: &str, json: &str) -> Result<Vec<Value>, SelectError> {
    let failed = |why: String| SelectError::Failed(filter.into(), shorten(&why));
    let input = read::parse_single(json.as_bytes()).map_err(|e| failed(e.to_string()))?;
    let context = Ctx::<data::JustLut<Val>>::new(&program.lut, Vars::new([]));
    let mut outputs = Vec::new();
    for output in program.id.run((context, input)).map(unwrap_valr) {
        let output = output.map_err(|error| failed(error.to_string()))?;
        outputs.push(serde_json::from_str(&output.to_string()).map_err(|e| failed(e.to_string()))?);
        if outputs.len() >= MAX_OUTPUTS {
            return Err(failed(format!("its output has more than {MAX_OUTPUTS} values")));
        }
    }
    Ok(outputs)
}

fn compile(filter: &str) -> Result<Program, SelectError> {
    let own = load::parse(FROM_JSON, |parser| parser.defs()).unwrap_or_default();
    let defs =
        jaq_core::defs().chain(jaq_std::defs()).chain(own).chain(jaq_json::defs()).chain(tables::defs());
    let funs = jaq_core::funs().chain(jaq_std::funs()).chain(jaq_json::funs()).chain(tables::funs());
    let refused = OUTSIDE.map(|(name, arguments)| {
        native::run::<data::JustLut<Val>>((name, native::v(arguments), |_| {
            native::bome(Err(jaq_core::Error::str("not available here")))
        }))
    });
    let funs = funs.filter(|(name, ..)| OUTSIDE.iter().all(|(out, _)| out != name)).chain(refused);
    let funs = funs.map(|(name, arguments, run)| match name {
        "fromjson" => (OF_TEXT, arguments, run),
        _ => (name, arguments, run),
    });
    let arena = Arena::default();
    let wrong = |why: String| SelectError::Syntax(filter.into(), why);
    let modules = Loader::new(defs).load(&arena, File { code: filter, path: () }).map_err(|errors| {
        wrong(errors.first().map_or_else(String::new, |(_, error)| misread(filter, error)))
    })?;
    Compiler::default().with_funs(funs).compile(modules).map_err(|errors| {
        let unknown = errors.iter().flat_map(|(_, errors)| errors).take(3);
        wrong(unknown.map(|(name, kind)| undefined(name, kind)).collect::<Vec<_>>().join("; "))
    })
}

/// Says what the parser expected, and where.
fn misread(filter: &str, error: &load::Error<&str>) -> String {
    let (expected, rest) = match error {
        load::Error::Io(_) => return "modules are not available here".into(),
        load::Error::Lex(errors) => match errors.first() {
            // Whatever is open is closed in the reverse order.
            Some((load::lex::Expect::Delim(open), rest)) => {
                let close = match *open {
                    "(" => ")",
                    "[" => "]",
                    "{" => "}",
                    other => other,
                };
                (format!("`{close}` for `{open}`"), *rest)
            }
            Some((expected, rest)) => (expected.as_str().to_string(), *rest),
            None => return "it does not parse".into(),
        },
        load::Error::Parse(errors) => match errors.first() {
            Some((expected, rest)) => {
                let expected = match expected {
                    load::parse::Expect::Just(token) => format!("`{token}`"),
                    load::parse::Expect::Nothing => "an operator such as `|`, or its end".into(),
                    load::parse::Expect::Term => "a path such as `.a`, or a value".into(),
                    other => other.as_str().to_string(),
                };
                (expected, *rest)
            }
            None => return "it does not parse".into(),
        },
    };
    // The rest is a part of the filter.
    let at = (rest.as_ptr() as usize).saturating_sub(filter.as_ptr() as usize).min(filter.len());
    let rest = filter.get(at..).unwrap_or_default();
    match rest.is_empty() {
        true => format!("expected {expected} at its end"),
        false => {
            let place = filter.get(..at).unwrap_or_default().chars().count() + 1;
            format!("expected {expected} at character {place}, before `{}`", clip(rest, 30))
        }
    }
}

/// Says what is not known, and what was probably meant.
fn undefined(name: &str, kind: &Undefined) -> String {
    match kind {
        Undefined::Filter(0) => format!("`{name}` is not known; a member is `.{name}`, a text `\"{name}\"`"),
        Undefined::Filter(1) => format!("`{name}` with 1 argument is not known"),
        Undefined::Filter(arguments) => format!("`{name}` with {arguments} arguments is not known"),
        _ => format!("`{name}` is not known"),
    }
}

/// Cuts the middle of a long message: jq quotes the whole value, and ends with the actual error.
fn shorten(why: &str) -> String {
    let length = why.chars().count();
    if length <= MAX_HEAD + MAX_TAIL {
        return why.into();
    }
    let head: String = why.chars().take(MAX_HEAD).collect();
    let tail: String = why.chars().skip(length - MAX_TAIL).collect();
    format!("{head} [...] {tail}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(filter: &str, expected: Result<Value, &str>) {
        let value = json!({"items": [{"n": 1, "t": "a"}, {"n": 2, "t": "b"}]});
        match (run(filter, &value.to_string()), expected) {
            (Ok(got), Ok(wanted)) => assert_eq!(json!(got), wanted, "{filter}"),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (got, _) => panic!("{filter}: {got:?}"),
        }
    }

    #[test]
    fn a_condition_ends_at_once_and_changes_nothing() {
        let good = [
            ".params.limit > 100",
            ".params[\"range\"] == 3",
            ".params.input and (.params.until | not)",
            ".caller.claims.groups // [] | any(. == \"def while *\")",
            "\"a\\(.params.skip)b\" != \"\" # = * def",
            ".params.a + 1 >= .params.b / 2",
            "[.params | .. | strings] | any(test(\"x\"))",
        ];
        for filter in good {
            assert_eq!(check_condition(filter), Ok(()), "{filter}");
        }
        let bad = [
            "def f: f; f",
            "[range(10)] | length > 3",
            "[limit(3; repeat(1))]",
            ".params.a * .params.b > 3",
            "\"\\(.a * 3)\" == \"\"",
            ".params.a = 3",
            ".params.a |= 3",
            "setpath([3]; 1)",
            "until(true; .)",
        ];
        for filter in bad {
            let found = check_condition(filter);
            assert!(
                found.as_ref().is_err_and(|error| error.to_string().contains("condition")),
                "{filter}: {found:?}"
            );
        }
        assert!(check_condition(".a ==").is_err_and(|error| error.to_string().contains("jq filter")));
        assert_eq!(condition(".params.count > 10", "{\"params\":{\"count\":11}}"), Ok(true));
        assert_eq!(condition(".params.count > 10", "{\"params\":{\"count\":10}}"), Ok(false));
        assert!(condition(".params.count | tonumber", "{\"params\":{\"count\":\"x\"}}").is_err());
    }

    #[test]
    fn one_yes_is_enough() {
        let check =
            |outputs: &[serde_json::Value], expected| assert_eq!(holds(outputs), expected, "{outputs:?}");
        for yes in [json!(true), json!(0), json!("no"), json!({}), json!([false])] {
            check(std::slice::from_ref(&yes), true);
            check(&[json!(false), yes], true);
        }
        check(&[], false);
        check(&[json!(false), json!(null), json!([])], false);
    }

    #[test]
    fn filters_run() {
        check(".items | fromjson | .[0].n", Ok(json!([1])));
        check("\"[7]\" | fromjson", Ok(json!([[7]])));
        check("try (\"{\" | fromjson) catch \"no\"", Ok(json!(["no"])));
        check(".items[0].t", Ok(json!(["a"])));
        check(".items[].n", Ok(json!([1, 2])));
        check("[.items[] | select(.n > 1) | .t]", Ok(json!([["b"]])));
        check(".items | length", Ok(json!([2])));
        check("empty", Ok(json!([])));
        check(".items | map(.t | test(\"a\"))", Ok(json!([[true, false]])));
        check(".items[", Err("not a jq filter"));
        check("nosuch(1)", Err("not known"));
        check("env", Err("not available"));
        check("halt", Err("not available"));
        check("$ENV", Err("not a jq filter"));
        check(".items.t", Err("failed"));
        check("range(100000)", Err("more than"));
    }

    #[test]
    fn what_is_wrong_with_a_filter_is_said_with_its_place() {
        let check = |filter: &str, expected: &str| {
            let error = super::check(filter).expect_err(filter).to_string();
            assert!(error.ends_with(expected), "{error}");
        };
        check(".items[", "expected `]` for `[` at its end");
        check("\"é\" | {a: (1}", "expected `)` for `(` at character 13, before `}`");
        check(".a b", "expected an operator such as `|`, or its end at character 4, before `b`");
        check(".a |", "expected a path such as `.a`, or a value at its end");
        check(".a & .b", "expected token at character 4, before `& .b`");
        check("if .a then 1", "expected else or end at its end");
        check("items[0]", "`items` is not known; a member is `.items`, a text `\"items\"`");
        check("pick(.a; .b)", "`pick` with 2 arguments is not known");
        check("$x", "`$x` is not known");
        check("import \"a\" as a; .", "modules are not available here");
    }

    #[tokio::test]
    async fn callers_filters_are_checked_on_a_stack_of_their_own() {
        let deep = |open: &str, inside: &str, close: &str| {
            let times = (LONGEST - inside.len()) / (open.len() + close.len());
            [&open.repeat(times), inside, &close.repeat(times)].concat()
        };
        for filter in [
            deep("(", ".", ")"),
            deep("[", ".", "]"),
            deep("{a:", ".", "}"),
            deep("-", "1", ""),
            deep("1|", "1", ""),
            deep("try ", "1", ""),
            deep("1 as $x|", "1", ""),
            deep("def f:", "1", ";1"),
            deep("if ", "1", " then 1 end"),
            deep("\"\\(", "1", ")\""),
            deep(".[", "1", "]"),
            deep("map(", "1", ")"),
            deep("reduce ", ".", " as $x (1;1)"),
        ] {
            let checked = check_all(vec![filter.clone()]).await;
            assert!(!matches!(checked, Err((_, SelectError::Busy(_)))), "{}", clip(&filter, 20));
        }
        let wrong = check_all(vec![".".into(), ".[".into(), ".{".into()]).await.expect_err("it is wrong");
        assert_eq!(wrong.0, 1);
        let long = check_all(vec!["1|".repeat(LONGEST)]).await.expect_err("it is long").1.to_string();
        assert!(long.contains("the most are") && long.len() < 400, "{long}");
    }

    #[tokio::test]
    async fn few_filters_are_checked_at_the_same_time() {
        let others = CHECKS.acquire_many(CHECKS_AT_ONCE).await;
        let mut checked = Box::pin(check_all(vec![".a".into()]));
        assert_eq!(futures::poll!(&mut checked), std::task::Poll::Pending);
        tokio::task::yield_now().await;
        assert_eq!(futures::poll!(&mut checked), std::task::Poll::Pending);
        drop(others);
        assert_eq!(checked.await, Ok(()));
    }

    #[tokio::test]
    async fn one_output_is_the_value_itself() {
        for (filter, expected) in [(".[0]", json!([1])), (".[]", json!([[1], 2])), ("empty", json!([]))] {
            let got = Selector::default().select(1, filter, "[[1],2]".into()).await;
            assert_eq!(got, Ok(expected), "{filter}");
        }
    }

    #[test]
    fn a_fault_does_not_repeat_a_large_value() {
        let long = json!("é".repeat(1_000_000)).to_string();
        for filter in [".a", ".[] | .a", "error"] {
            let fault = run(filter, &long).expect_err("it fails").to_string();
            assert!(fault.len() < 1_000, "{filter}: {} bytes", fault.len());
        }
        let fault = run(".a", &long).expect_err("it fails").to_string();
        assert!(fault.contains("cannot index") && fault.ends_with("with \"a\""), "{fault}");
    }

    #[test]
    fn values_are_counted_outside_of_texts() {
        let check = |json: &str, least: usize| {
            let count = values(json.as_bytes());
            assert!((least..=least + 3).contains(&count), "{json}: {count}");
        };
        check("[1,2,3]", 4);
        check(r#"{"a":"x,y,z,[[[[","b":[1,"\\",2]}"#, 6);
        check(r#""a \" , , , , , , , , b""#, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn clients_take_turns_and_the_queue_has_an_end() {
        let selector = Selector::default();
        let running: Vec<_> = [selector.turns.take(1).await, selector.turns.take(1).await].into();
        let busy = selector.outputs(2, ".", "1".into()).await;
        assert_eq!(busy, Err(SelectError::Busy(".".into())), "nobody waits for ever");
        drop(running);
        assert_eq!(selector.outputs(2, ".", "1".into()).await, Ok(vec![json!(1)]));
    }
}
