//! The breaker of a connection: after several failures in a row, a tool or server gets no calls for a while.
//!
//! Failures are counted per tool, so that one slow or crashing tool is cut off by itself. The server is cut
//! off once the failures in a row come from several tools. Failures that overlap count as one: a server that
//! goes away takes all calls in flight with it. After the wait, one call probes.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use nonet_api::status::{BreakerScope, BreakerStatus};
use nonet_base::{clock::millis, text::clip};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::CallError;

/// How many failures in a row cut off a tool, or the server if they are of several of its tools.
const FAILURES: u32 = 5;
/// How long until one call may try again. Doubles with each try that fails.
const WAIT: Duration = Duration::from_secs(10);
/// The longest wait before the next probe.
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// How long calls wait while another one probes.
const TRIED: Duration = Duration::from_secs(1);
/// How many tools of one server are counted.
const MAX_TOOLS: usize = 1_000;
/// How many characters of an error are kept.
const MAX_ERROR: usize = 300;
/// How many changes are kept until they are read.
const MAX_NEWS: usize = 32;

/// The breaker; see the top of the file.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Whether anything has failed since its last success. If not, this flag is all that a call checks.
    troubled: AtomicBool,
    has_news: AtomicBool,
    state: Mutex<Circuits>,
}

#[derive(Debug, Default)]
struct Circuits {
    /// Those with failures since their own last success: of tools, and without a name the server's.
    all: HashMap<Option<Box<str>>, Circuit>,
    /// The tools that failed since any tool last succeeded: one of them, and whether there are more.
    one: Option<Box<str>>,
    several: bool,
    news: Vec<BreakerNews>,
}

#[derive(Debug, Default)]
struct Circuit {
    /// Failures in a row.
    failures: u32,
    /// When the last failure ended.
    last: Option<Instant>,
    error: String,
    open: Option<OpenCircuit>,
}

#[derive(Debug)]
struct OpenCircuit {
    until: Instant,
    wait: Duration,
    /// Whether a call is probing at the moment.
    tried: bool,
}

/// A call that the breaker lets through. [`Trial::ended`] reports its outcome.
#[derive(Debug)]
pub(super) struct Trial<'a> {
    breaker: Option<&'a Breaker>,
    tool: &'a str,
    began: Instant,
    tries: bool,
}

/// Why a call is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerRefusal {
    /// Whether the whole server is cut off, rather than only the tool that was called.
    pub is_server: bool,
    /// The failures in a row.
    pub failures: u32,
    /// The last failure's error.
    pub error: String,
    /// When a call may try again.
    pub wait: Duration,
}

/// A change for the calls to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BreakerNews {
    /// The tool is cut off; `None`: the whole server is.
    Rests(Option<Box<str>>, BreakerRefusal),
    /// The tool or the server gets calls again.
    Answers(Option<Box<str>>),
}

impl Circuit {
    /// Returns whether a call may go through; marks the circuit as probed if this call is the probe.
    fn admit(&mut self, now: Instant, is_server: bool) -> Result<bool, BreakerRefusal> {
        let Some(open) = &mut self.open else { return Ok(false) };
        let wait = match open.until.checked_duration_since(now) {
            Some(left) if !left.is_zero() => left,
            _ if open.tried => TRIED,
            _ => {
                open.tried = true;
                return Ok(true);
            }
        };
        Err(self.refusal(is_server, wait))
    }

    fn refusal(&self, is_server: bool, wait: Duration) -> BreakerRefusal {
        BreakerRefusal { is_server, failures: self.failures, error: self.error.clone(), wait }
    }

    /// Counts a failure of a call that began at that time. Returns the reason if the circuit opens by it.
    fn fail(
        &mut self,
        (began, now): (Instant, Instant),
        error: &str,
        tries: bool,
        may_open: bool,
    ) -> Option<Duration> {
        if self.last.is_some_and(|last| began < last) && !tries {
            return None;
        }
        self.failures = self.failures.saturating_add(1);
        self.last = Some(now);
        self.error = clip(error, MAX_ERROR);
        let wait = match &self.open {
            Some(open) if tries && open.tried => (open.wait * 2).min(LONGEST_WAIT),
            Some(_) => return None,
            None if may_open && self.failures >= FAILURES => WAIT,
            None => return None,
        };
        self.open = Some(OpenCircuit { until: now + wait, wait, tried: false });
        Some(wait)
    }
}

impl Breaker {
    /// Lets a call of a tool through, or returns the reason for refusing it.
    pub(super) fn admit<'a>(&'a self, tool: &'a str, is_on: bool) -> Result<Trial<'a>, BreakerRefusal> {
        let began = Instant::now();
        let breaker = is_on.then_some(self);
        let mut trial = Trial { breaker, tool, began, tries: false };
        if breaker.is_none() || !self.troubled.load(Ordering::Acquire) {
            return Ok(trial);
        }
        let mut state = self.state.lock();
        let mut admit = |tool: Option<Box<str>>| {
            let is_server = tool.is_none();
            state.all.get_mut(&tool).map_or(Ok(false), |circuit| circuit.admit(began, is_server))
        };
        // Check the tool first: a tool that is cut off must not use up its server's probe.
        let of_tool = admit(Some(tool.into()))?;
        match admit(None) {
            Ok(of_server) => trial.tries = of_tool || of_server,
            Err(refusal) => {
                if of_tool {
                    state.untried(Some(tool.into()));
                }
                return Err(refusal);
            }
        }
        Ok(trial)
    }

    /// Forgets every failure: the server has restarted, or the user wants it to be called.
    pub(super) fn reset(&self) {
        let mut state = self.state.lock();
        *state = Circuits { news: std::mem::take(&mut state.news), ..Circuits::default() };
        self.troubled.store(false, Ordering::Release);
    }

    /// Returns what is cut off, if anything.
    pub(super) fn status(&self) -> Option<BreakerStatus> {
        if !self.troubled.load(Ordering::Acquire) {
            return None;
        }
        let state = self.state.lock();
        let now = Instant::now();
        let left = |open: &OpenCircuit| millis(open.until.saturating_duration_since(now));
        let open = state.all.iter().filter_map(|(tool, circuit)| {
            Some((tool.as_deref(), left(circuit.open.as_ref()?), circuit.error.as_str()))
        });
        let mut open: Vec<(Option<&str>, u64, &str)> = open.collect();
        // The server, without a name, comes before tools, and counts for all of them.
        open.sort_unstable();
        if open.first()?.0.is_none() {
            open.truncate(1);
        }
        Some(BreakerStatus {
            open: if open[0].0.is_none() { BreakerScope::Server } else { BreakerScope::Tools },
            tools: open.iter().filter_map(|(tool, ..)| tool.map(String::from)).collect(),
            retry_after_ms: open.iter().map(|(_, left, _)| *left).min()?,
            last_error: open[0].2.to_owned(),
        })
    }

    /// Returns whether anything has changed since the last query.
    pub(super) fn has_news(&self) -> bool {
        self.has_news.load(Ordering::Acquire)
    }

    /// Takes the changes since the last query.
    pub(super) fn news(&self) -> Vec<BreakerNews> {
        let mut state = self.state.lock();
        self.has_news.store(false, Ordering::Release);
        std::mem::take(&mut state.news)
    }

    fn answered(&self, tool: &str) {
        if !self.troubled.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state.lock();
        (state.one, state.several) = (None, false);
        for tool in [None, Some(Box::from(tool))] {
            if state.all.remove(&tool).is_some_and(|circuit| circuit.open.is_some()) {
                state.tell(BreakerNews::Answers(tool));
            }
        }
        self.has_news.store(!state.news.is_empty(), Ordering::Release);
        self.troubled.store(!state.all.is_empty(), Ordering::Release);
    }

    fn failed(&self, trial: &Trial<'_>, error: &str) {
        let tool = trial.tool;
        let mut state = self.state.lock();
        let state = &mut *state;
        self.troubled.store(true, Ordering::Release);
        match &state.one {
            None => state.one = Some(tool.into()),
            Some(one) => state.several |= **one != *tool,
        }
        let times = (trial.began, Instant::now());
        for (tool, may_open) in [(None, state.several), (Some(Box::from(tool)), true)] {
            if state.all.len() > MAX_TOOLS && !state.all.contains_key(&tool) {
                continue;
            }
            let circuit = state.all.entry(tool.clone()).or_default();
            if let Some(wait) = circuit.fail(times, error, trial.tries, may_open) {
                let refusal = circuit.refusal(tool.is_none(), wait);
                state.tell(BreakerNews::Rests(tool, refusal));
            }
        }
        self.has_news.store(!state.news.is_empty(), Ordering::Release);
    }

    fn untried(&self, tool: &str) {
        let mut state = self.state.lock();
        state.untried(None);
        state.untried(Some(tool.into()));
    }
}

impl Circuits {
    /// Lets the next call probe, because the last probe was inconclusive.
    fn untried(&mut self, tool: Option<Box<str>>) {
        if let Some(open) = self.all.get_mut(&tool).and_then(|circuit| circuit.open.as_mut()) {
            open.tried = false;
        }
    }

    fn tell(&mut self, news: BreakerNews) {
        if self.news.len() < MAX_NEWS {
            self.news.push(news);
        }
    }
}

impl Trial<'_> {
    /// Reports the outcome of the call. `has_all_time`: the call had as long as the server's settings allow.
    pub(super) fn ended<T>(mut self, result: &Result<T, CallError>, has_all_time: bool) {
        let Some(breaker) = self.breaker else { return };
        match (result, is_alive(result, has_all_time)) {
            (_, Some(true)) => breaker.answered(self.tool),
            (Err(error), Some(false)) => breaker.failed(&self, &error.to_string()),
            _ => return,
        }
        self.tries = false;
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        if let Some(breaker) = self.breaker.filter(|_| self.tries) {
            breaker.untried(self.tool);
        }
    }
}

/// Returns whether the server answers, as far as a call's outcome shows it. A caller with a shorter timeout
/// than the settings' must not cut others off.
fn is_alive<T>(result: &Result<T, CallError>, has_all_time: bool) -> Option<bool> {
    match result {
        Ok(_) => Some(true),
        Err(error) => match error {
            CallError::Rpc(_) | CallError::NotAllowed { .. } | CallError::RateLimited { .. } => Some(true),
            CallError::Closed(_) | CallError::Upstream { is_answer: false, .. } => Some(false),
            CallError::TimedOut(_) if has_all_time => Some(false),
            // A server that is down has its own backoff, and each call makes it retry at once.
            CallError::TimedOut(_)
            | CallError::NotReady(_)
            | CallError::Cancelled
            | CallError::Busy(_)
            | CallError::Params(_)
            | CallError::NotSent(_)
            // The next call may be for something else.
            | CallError::Unreadable(_)
            | CallError::Upstream { .. }
            | CallError::Resting(_) => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn lost() -> Result<Value, CallError> {
        Err(CallError::Closed("it crashed".into()))
    }

    /// Makes a call with this outcome. Returns why it was refused, if it was.
    async fn call(breaker: &Breaker, tool: &str, result: Result<Value, CallError>) -> Option<BreakerRefusal> {
        tokio::time::advance(Duration::from_millis(1)).await;
        let trial = match breaker.admit(tool, true) {
            Ok(trial) => trial,
            Err(resting) => return Some(resting),
        };
        tokio::time::advance(Duration::from_millis(1)).await;
        trial.ended(&result, true);
        None
    }

    #[tokio::test(start_paused = true)]
    async fn a_tool_that_keeps_failing_rests_and_comes_back() {
        let breaker = Breaker::default();
        for _ in 0..FAILURES {
            assert_eq!(call(&breaker, "slow", lost()).await, None);
            assert_eq!(call(&breaker, "good", Ok(json!({}))).await, None);
        }
        let resting = call(&breaker, "slow", Ok(json!({}))).await.expect("it rests");
        assert!(!resting.is_server && resting.failures == FAILURES, "{resting:?}");
        assert!(resting.wait <= WAIT && resting.wait > WAIT / 2, "{resting:?}");
        assert_eq!(call(&breaker, "good", Ok(json!({}))).await, None, "others are called");
        assert_eq!(
            breaker.status().map(|status| (status.open, status.tools)),
            Some((BreakerScope::Tools, vec!["slow".into()]))
        );

        // One call probes, and the others wait for it.
        tokio::time::advance(WAIT).await;
        let trial = breaker.admit("slow", true).expect("one call may try");
        assert_eq!(breaker.admit("slow", true).err().map(|resting| resting.wait), Some(TRIED));
        trial.ended(&lost(), true);
        let resting = call(&breaker, "slow", lost()).await.expect("it rests again");
        assert!(resting.wait > WAIT, "the wait has doubled: {resting:?}");

        // A cancelled probe is inconclusive, and the next call probes.
        tokio::time::advance(WAIT * 2).await;
        drop(breaker.admit("slow", true).expect("one call may try"));
        assert_eq!(call(&breaker, "slow", Ok(json!({}))).await, None);
        assert_eq!(breaker.status(), None);
        assert!(!breaker.troubled.load(Ordering::Acquire));
        let told: Vec<bool> =
            breaker.news().iter().map(|news| matches!(news, BreakerNews::Rests(Some(_), _))).collect();
        assert_eq!(told, [true, true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_rests_when_several_tools_fail_in_a_row() {
        let breaker = Breaker::default();
        for tool in ["a", "b", "a", "b", "a"] {
            assert_eq!(call(&breaker, tool, lost()).await, None);
        }
        let resting = call(&breaker, "c", Ok(json!({}))).await.expect("no tool is called");
        assert!(resting.is_server, "{resting:?}");
        assert_eq!(breaker.status().map(|status| status.open), Some(BreakerScope::Server));
        tokio::time::advance(WAIT).await;
        assert_eq!(call(&breaker, "c", Ok(json!({}))).await, None);
        assert_eq!(call(&breaker, "a", Ok(json!({}))).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_fail_together_are_one_failure() {
        let breaker = Breaker::default();
        for _ in 0..FAILURES - 1 {
            let trials: Vec<_> = (0..50).map(|_| breaker.admit("a", true).expect("let through")).collect();
            tokio::time::advance(Duration::from_millis(1)).await;
            trials.into_iter().for_each(|trial| trial.ended(&lost(), true));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(call(&breaker, "a", lost()).await, None);
        assert!(call(&breaker, "a", lost()).await.is_some());
        breaker.reset();
        assert_eq!(call(&breaker, "a", lost()).await, None);
    }

    #[test]
    fn what_a_call_says_of_its_server() {
        let check = |error: CallError, expected: Option<bool>| {
            let shown = format!("{error:?}");
            assert_eq!(is_alive::<()>(&Err(error), true), expected, "{shown}");
        };
        check(CallError::Closed(String::new()), Some(false));
        check(CallError::TimedOut(Duration::ZERO), Some(false));
        let upstream =
            |is_answer| CallError::Upstream { error: String::new(), wait: None, is_open: false, is_answer };
        check(upstream(false), Some(false));
        check(upstream(true), None);
        check(CallError::Unreadable(String::new()), None);
        check(CallError::Params(String::new()), None);
        check(CallError::Cancelled, None);
        check(CallError::Busy(1), None);
        check(CallError::NotReady(super::super::ConnectionState::Starting), None);
        let refused = rmcp::model::ErrorData::internal_error("no", None);
        check(CallError::Rpc(refused), Some(true));
        assert_eq!(is_alive(&Ok(json!({ "isError": true })), true), Some(true));
        assert_eq!(is_alive::<()>(&Err(CallError::TimedOut(Duration::ZERO)), false), None);
    }
}
