//! Rows of the table: what is sent, and how it must end.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use serde_json::Value;

use crate::{
    attackers::Attack,
    beside::{self, Beside, Door},
    setup::Setup,
};

/// The maximum peak memory use of a gateway.
const MOST_MEMORY: usize = 400 << 20;

/// How the call of a hostile tool must end.
#[derive(Clone, Copy)]
pub enum Expect {
    /// With its result.
    Fine,
    /// With a fault that has one of these codes.
    Fault(&'static [&'static str]),
    /// With a result or a fault.
    Ends,
}

/// The faults of an unreachable server.
pub const OUT_OF_REACH: Expect = Expect::Fault(&["server_down", "server_starting"]);
/// The fault of an unresponsive server.
pub const TIMEOUT: Expect = Expect::Fault(&["timeout"]);
/// The fault of an unusable answer.
pub const UNUSABLE: Expect = Expect::Fault(&["upstream_error"]);

/// Checks the answer of a tool, by its full name, and the gateway after it. Returns what is wrong.
pub type Check = fn(&mut Beside, &str, &Value) -> Result<(), String>;

/// One row.
#[derive(Clone)]
pub struct Row {
    pub family: &'static str,
    pub name: &'static str,
    pub sent: &'static str,
    pub act: Act,
    pub check: Option<Check>,
}

/// What a row does.
#[derive(Clone)]
pub enum Act {
    /// Calls a tool of a hostile server.
    Call { server: String, tool: String, expect: Expect },
    /// Attacks the gateway as a client.
    Attack(Attack),
}

/// Adds the hostile parts to a gateway, once its folder is known.
pub type Arrange = Box<dyn Fn(Setup) -> Setup + Send + Sync>;

/// Rows that share a gateway.
pub struct Batch {
    /// The position in the table.
    pub at: usize,
    pub door: Door,
    pub arrange: Arrange,
    pub rows: Vec<Row>,
}

/// How a row ended.
pub struct RowOutcome {
    pub family: &'static str,
    pub name: &'static str,
    pub sent: &'static str,
    pub door: Door,
    /// The outcome, or what failed.
    pub what: Result<String, String>,
    /// How long the good server's calls took meanwhile.
    pub times: Vec<Duration>,
    /// The gateway's peak memory use.
    pub peak: usize,
}

impl RowOutcome {
    pub fn failed(row: &Row, door: Door, why: String) -> Self {
        let Row { family, name, sent, .. } = *row;
        Self { family, name, sent, door, what: Err(why), times: Vec::new(), peak: 0 }
    }
}

impl Batch {
    /// Keeps only the wanted rows; none if there are none.
    pub fn only(mut self, wanted: &impl Fn(&str) -> bool) -> Option<Self> {
        self.rows.retain(|row| wanted(row.family) || wanted(row.name));
        (!self.rows.is_empty()).then_some(self)
    }

    /// Runs the rows against their own gateway.
    pub fn run(&self) -> Vec<RowOutcome> {
        let mut beside = Beside::start(self.door, |setup, _| (self.arrange)(setup));
        let mut all: Vec<RowOutcome> = self.rows.iter().map(|row| self.row(row, &mut beside)).collect();
        let peak = beside.peak();
        // A server's escape codes would reach the terminal of whoever reads the log.
        let escapes = beside.log().contains('\u{1b}');
        let left = beside.end();
        for held in &mut all {
            held.peak = peak;
            if peak > MOST_MEMORY {
                held.what = Err(format!("the gateway took {} MiB", peak >> 20));
            }
            if escapes && held.what.is_ok() {
                held.what = Err("escape codes are in the log".into());
            }
            if let (Some(left), Ok(_)) = (&left, &held.what) {
                held.what = Err(format!("left behind: {left}"));
            }
        }
        all
    }

    fn row(&self, row: &Row, beside: &mut Beside) -> RowOutcome {
        let what =
            catch_unwind(AssertUnwindSafe(|| row.run(beside))).unwrap_or_else(|panic| Err(said(&*panic)));
        let Row { family, name, sent, .. } = *row;
        RowOutcome {
            family,
            name,
            sent,
            door: self.door,
            what,
            times: std::mem::take(&mut beside.times),
            peak: 0,
        }
    }
}

impl Row {
    /// Runs the attack, calling the good server until the attack has ended.
    fn run(&self, beside: &mut Beside) -> Result<String, String> {
        let held = match &self.act {
            Act::Call { server, tool, expect } => self.call(beside, server, tool, *expect)?,
            Act::Attack(attack) => beside.attacked(*attack)?,
        };
        for _ in 0..10 {
            beside.good();
        }
        Ok(held)
    }

    fn call(&self, beside: &mut Beside, server: &str, tool: &str, expect: Expect) -> Result<String, String> {
        beside.until_settled(server)?;
        let result = beside.strike(&format!("{server}.{tool}"))?;
        let code = beside::code_of(&result);
        let shown = || format!("{result:.300}");
        let held = match (expect, &code) {
            (Expect::Fine, None) if result["isError"] != true => "its result".to_string(),
            (Expect::Fault(codes), Some(code)) if codes.contains(&code.as_str()) => format!("`{code}`"),
            (Expect::Ends, Some(code)) => format!("`{code}`"),
            (Expect::Ends, None) => "its result".to_string(),
            (Expect::Fine, _) => return Err(format!("no result: {}", shown())),
            (Expect::Fault(codes), _) => return Err(format!("not one of {codes:?}: {}", shown())),
        };
        if let Some(check) = self.check {
            check(beside, &format!("{server}.{tool}"), &result)?;
        }
        Ok(held)
    }
}

/// Returns the message of a panic.
pub fn said(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic").chars().take(400).collect()
}
