//! What the gateway adds: each row measures the same work directly against a trivial server and through
//! Nonet, alternating within one run, so that the ratio holds on a busy machine too.
//!
//! ```sh
//! cargo bench --bench roundtrip -- [--calls N] [--rows stdio,http,...] [--cores N] [--under COMMAND] [--peers] [--json FILE] [--plot FILE.svg]
//! ```
//!
//! - `--calls`: calls per side in the rows of small calls (5,000); the other rows make fewer.
//! - `--rows`: `stdio`, `stdio-16`, `http`, `http-16`, `cluster`, `large`, `huge`, `handshake`, `memory`;
//!   default: all.
//! - `--cores`: all processes share the first N cores (Linux).
//! - `--under "COMMAND ..."`: a profiler that runs Nonet, such as `valgrind --tool=callgrind`.
//! - `--peers`: adds FastMCP's proxy to the rows on stdio, if `python3` has the package `fastmcp`.
//!
//! This program also acts as the servers: `--echo-server`, `--echo-http`, `--silent-server`.

#![expect(unreachable_pub, reason = "a program of measurements has no face")]

mod echo;
mod figures;
mod gateway;
mod http;
mod options;
mod plot;
mod rows;
mod stdio;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("--echo-server") => return echo::on_stdio(),
        Some("--echo-http") => return echo::over_http(),
        Some("--silent-server") => return echo::silent(),
        _ => {}
    }
    let options = options::Options::given();
    if let Some(cores) = options.cores {
        options::pin(cores);
    }
    println!("{}", figures::HEAD);
    let mut rows = Vec::new();
    for key in rows::KEYS.iter().filter(|key| options.wants(key)) {
        let Some(row) = rows::measure(key, &options) else { continue };
        println!("{}", row.lines());
        rows.push(row);
    }
    if let Some(file) = &options.json {
        figures::write_json(file, &options, &rows).expect("the JSON file can be written");
    }
    if let Some(file) = &options.plot {
        plot::draw(file, &rows).expect("the plot can be written");
    }
}
