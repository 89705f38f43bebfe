//! The command line.

use std::path::PathBuf;

use crate::rows;

/// What to measure, and where the figures go.
pub struct Options {
    /// Calls per side in the rows of small calls.
    pub calls: usize,
    /// The wanted rows; empty: all.
    rows: Vec<String>,
    /// How many cores all processes share; `None` for all.
    pub cores: Option<usize>,
    /// Whether to measure FastMCP's proxy too.
    pub peers: bool,
    /// The program that runs Nonet, such as a profiler, and its arguments; empty for none.
    pub under: Vec<String>,
    /// The file for figures as JSON.
    pub json: Option<PathBuf>,
    /// The file for the plot, as SVG.
    pub plot: Option<PathBuf>,
}

impl Options {
    /// Reads the command line.
    pub fn given() -> Self {
        let mut options = Self {
            calls: 5_000,
            rows: Vec::new(),
            cores: None,
            peers: false,
            under: Vec::new(),
            json: None,
            plot: None,
        };
        let mut given = std::env::args().skip(1);
        while let Some(argument) = given.next() {
            let mut value = || given.next().unwrap_or_else(|| panic!("{argument} needs a value"));
            match argument.as_str() {
                "--calls" => options.calls = value().parse().expect("a number after --calls"),
                "--cores" => options.cores = Some(value().parse().expect("a number after --cores")),
                "--rows" => options.rows = value().split(',').map(str::to_owned).collect(),
                "--json" => options.json = Some(value().into()),
                "--plot" => options.plot = Some(value().into()),
                "--under" => options.under = value().split_whitespace().map(str::to_owned).collect(),
                "--peers" => options.peers = true,
                // Cargo passes this flag to benches.
                "--bench" => {}
                other => panic!("unknown argument {other}"),
            }
        }
        for row in &options.rows {
            assert!(rows::KEYS.contains(&row.as_str()), "no row {row}; rows: {}", rows::KEYS.join(", "));
        }
        options
    }

    /// Whether to measure the row.
    pub fn wants(&self, row: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|wanted| wanted == row)
    }
}

/// Keeps this process and its children on the first cores.
#[cfg(target_os = "linux")]
pub fn pin(cores: usize) {
    let mut set = nix::sched::CpuSet::new();
    (0..cores).for_each(|core| set.set(core).expect("so many cores can be named"));
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set).expect("the cores are there");
}

/// Reports that cores can be chosen only on Linux.
#[cfg(not(target_os = "linux"))]
pub fn pin(_cores: usize) {
    eprintln!("--cores works on Linux only");
}
