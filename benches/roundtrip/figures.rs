//! Figures of rows: as lines of a table and as JSON.

use std::{path::Path, time::Duration};

use serde_json::{Value, json};

use crate::options::Options;

/// The head of the table.
pub const HEAD: &str = "| row | side | p50 | p99 | calls/s | ratio |\n|---|---|---:|---:|---:|---:|";

/// One kind of work, and its cost on each side. The first side is the direct one.
pub struct Row {
    pub key: &'static str,
    pub what: String,
    /// Whether the ratio compares calls per second instead of p50.
    pub by_rate: bool,
    pub sides: Vec<Side>,
    /// Other figures, with their units.
    pub notes: Vec<(String, f64)>,
}

/// The cost of the work on one side.
pub struct Side {
    pub name: &'static str,
    pub p50: Duration,
    pub p99: Duration,
    pub per_second: f64,
}

impl Side {
    /// Computes the figures of single times, which took `busy` in total.
    pub fn new(name: &'static str, took: &mut [Duration], busy: Duration) -> Self {
        took.sort_unstable();
        let at = |percent: usize| took[(took.len() - 1) * percent / 100];
        Self { name, p50: at(50), p99: at(99), per_second: took.len() as f64 / busy.as_secs_f64() }
    }
}

impl Row {
    /// Returns how many times longer the side takes than the direct one.
    pub fn ratio(&self, side: &Side) -> f64 {
        let direct = &self.sides[0];
        if self.by_rate {
            direct.per_second / side.per_second
        } else {
            side.p50.as_secs_f64() / direct.p50.as_secs_f64()
        }
    }

    /// Returns the lines of the table.
    pub fn lines(&self) -> String {
        let mut lines: Vec<String> = self
            .sides
            .iter()
            .map(|side| {
                let rate = if self.by_rate { format!("{:.0}", side.per_second) } else { String::new() };
                let (p50, p99, ratio) = (time(side.p50), time(side.p99), self.ratio(side));
                format!("| {} | {} | {p50} | {p99} | {rate} | {ratio:.2} |", self.what, side.name)
            })
            .collect();
        lines.extend(
            self.notes.iter().map(|(name, value)| format!("| {}: {name} | | | | | {value:.1} |", self.what)),
        );
        lines.join("\n")
    }

    fn json(&self) -> Value {
        let sides = self.sides.iter().map(|side| {
            json!({
                "side": side.name,
                "p50_us": side.p50.as_secs_f64() * 1e6,
                "p99_us": side.p99.as_secs_f64() * 1e6,
                "calls_per_second": side.per_second,
                "ratio": self.ratio(side),
            })
        });
        let notes: serde_json::Map<String, Value> =
            self.notes.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        json!({ "row": self.key, "what": self.what, "sides": sides.collect::<Vec<_>>(), "notes": notes })
    }
}

/// Formats a time with three digits and its unit.
pub fn time(time: Duration) -> String {
    let us = time.as_secs_f64() * 1e6;
    match us {
        ..9.995 => format!("{us:.2} us"),
        ..99.95 => format!("{us:.1} us"),
        ..999.5 => format!("{us:.0} us"),
        ..9_995.0 => format!("{:.2} ms", us / 1e3),
        ..99_950.0 => format!("{:.1} ms", us / 1e3),
        ..999_500.0 => format!("{:.0} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    }
}

/// Writes all figures to a file.
pub fn write_json(file: &Path, options: &Options, rows: &[Row]) -> std::io::Result<()> {
    let cores = options.cores.or(std::thread::available_parallelism().ok().map(usize::from));
    let all = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "calls": options.calls,
        "cores": cores,
        "rows": rows.iter().map(Row::json).collect::<Vec<_>>(),
    });
    std::fs::write(file, format!("{all:#}\n"))
}
