//! Everything that hostile servers have been seen to do, one row each, against the `nonet` program: over
//! stdio and over HTTP, with a good server beside it.
//!
//! Each row asserts that the good server's calls are answered, that the hostile call ends as the row says
//! (with a result or a fault with a code, never by waiting), that the gateway survives and its memory use
//! stays low, and that no process is left after its end. A table at the end shows the outcomes.
//! `cargo test --test hostile TEXT` runs the rows whose family or name contains the text.
//!
//! Runs without libtest, so that the table is always printed, and because this program is also the hostile
//! server.

#![expect(unreachable_pub, reason = "a program of tests has no face")]
#![expect(clippy::disallowed_methods, reason = "a queue of a test ends with it")]
#![allow(clippy::unwrap_used)] // A test may panic.

mod answers;
mod attackers;
mod beside;
#[allow(dead_code, reason = "the tests of the gateway use more of it")]
#[path = "../gateway/client.rs"]
mod client;
mod rows;
mod schemas;
mod server;
#[allow(dead_code, reason = "the tests of the gateway use more of it")]
#[path = "../gateway/setup.rs"]
mod setup;
mod sites;
mod stdio;
#[allow(dead_code, reason = "the tests of the gateway use more of it")]
#[path = "../gateway/web.rs"]
mod web;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use beside::{Beside, Door};
use rows::{Batch, RowOutcome};

/// How many gateways are attacked concurrently: most rows wait for a timeout.
const AT_ONCE: usize = 4;
/// The maximum slowdown of the good server's calls during an attack. Both are measured at the same time on
/// the same machine, but the attacker uses some of the machine too.
const SLOWER: u32 = 30;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [be, play, ..] = &arguments[..]
        && be == server::BE_SERVER
    {
        return server::run(play);
    }
    if arguments.iter().any(|argument| argument == "--list") {
        // A test runner's first request. There are no ignored tests.
        if !arguments.iter().any(|argument| argument == "--ignored") {
            println!("every_row_holds: test");
        }
        return;
    }
    if !cfg!(target_os = "linux") {
        return println!("hostile: skipped, since what is left of a gateway is looked for in /proc");
    }
    let filter = filter(&arguments);
    let wanted = |text: &str| filter.is_none_or(|filter| text.contains(filter));
    let batches: Vec<Batch> =
        [stdio::batches(), answers::batches(), schemas::batches(), sites::batches(), attackers::batches()]
            .into_iter()
            .flatten()
            .filter_map(|batch| batch.only(&wanted))
            .collect();
    if batches.is_empty() {
        return println!("hostile: no row matches");
    }
    // A panic is a failed row; the table reports it.
    std::panic::set_hook(Box::new(|_| {}));
    let began = Instant::now();
    let (held, calm) = run_all(batches);
    if !is_told(held, calm, began.elapsed()) {
        std::process::exit(1);
    }
}

/// Returns the text among the arguments that chooses rows. Test runners pass further arguments.
fn filter(arguments: &[String]) -> Option<&str> {
    const WITH_VALUE: [&str; 5] = ["--skip", "--test-threads", "--format", "--color", "--logfile"];
    let mut before = "";
    let mut texts = arguments.iter().map(String::as_str).filter(|argument| {
        let is_value = WITH_VALUE.contains(&std::mem::replace(&mut before, argument));
        !is_value && !argument.starts_with('-') && *argument != "every_row_holds"
    });
    texts.next()
}

/// Runs the rows, and gateways without attacks. Returns how each row ended, and the times of undisturbed
/// calls.
fn run_all(batches: Vec<Batch>) -> (Vec<RowOutcome>, [Vec<Duration>; 2]) {
    let (next, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let held = Mutex::new(Vec::new());
    let calm = [Door::Stdio, Door::Http].map(|door| (door, Mutex::new(Vec::new())));
    thread::scope(|scope| {
        for (door, times) in &calm {
            let over = &over;
            scope.spawn(move || {
                let mut calm = Beside::start(*door, |setup, _| setup);
                while !over.load(SeqCst) {
                    calm.good();
                    thread::sleep(Duration::from_millis(20));
                }
                times.lock().unwrap().append(&mut calm.times);
            });
        }
        let workers: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                scope.spawn(|| {
                    while let Some(batch) = batches.get(next.fetch_add(1, SeqCst)) {
                        let ended = run(batch);
                        held.lock().unwrap().push((batch.at, ended));
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().expect("a row that fails does not end its worker");
        }
        over.store(true, SeqCst);
    });
    let mut held = held.into_inner().unwrap();
    held.sort_by_key(|(at, _)| *at);
    let calm = calm.map(|(_, times)| times.into_inner().unwrap());
    (held.into_iter().flat_map(|(_, held)| held).collect(), calm)
}

/// Runs the rows of one gateway. A failure outside a row fails them all.
fn run(batch: &Batch) -> Vec<RowOutcome> {
    let ended = catch_unwind(AssertUnwindSafe(|| batch.run()));
    ended.unwrap_or_else(|panic| {
        let why = rows::said(&*panic);
        batch.rows.iter().map(|row| RowOutcome::failed(row, batch.door, why.clone())).collect()
    })
}

/// Prints the table. Returns whether all rows held.
fn is_told(mut held: Vec<RowOutcome>, calm: [Vec<Duration>; 2], took: Duration) -> bool {
    let wide = held.iter().map(|held| held.name.len()).max().unwrap_or_default();
    let mut family = "";
    for held in &held {
        if family != held.family {
            family = held.family;
            println!("\n{family}");
        }
        let (mark, what) = match &held.what {
            Ok(what) => ("ok  ", what),
            Err(why) => ("FAIL", why),
        };
        let peak = held.peak >> 20;
        println!(
            "  {mark} {:wide$}  {:5} {peak:4} MiB  {} -> {what}",
            held.name,
            held.door.name(),
            held.sent
        );
    }
    let failed = held.iter().filter(|held| held.what.is_err()).count();
    let peak = held.iter().map(|held| held.peak).max().unwrap_or_default();
    println!(
        "\n{} rows in {:.0?}, {failed} failed; the largest gateway took {} MiB",
        held.len(),
        took,
        peak >> 20
    );
    let mut well = failed == 0;
    for (door, mut calm) in [Door::Stdio, Door::Http].into_iter().zip(calm) {
        let of_door = held.iter_mut().filter(|held| held.door == door);
        let mut times: Vec<Duration> = of_door.flat_map(|held| std::mem::take(&mut held.times)).collect();
        if times.is_empty() {
            continue;
        }
        let (attacked, calm) = (percentiles(&mut times), percentiles(&mut calm));
        println!(
            "calls of the good server over {}: p50 {:.1?}, p99 {:.1?} ({} calls); in calm p50 {:.1?}, p99 {:.1?}",
            door.name(),
            attacked.0,
            attacked.1,
            times.len(),
            calm.0,
            calm.1,
        );
        if attacked.0 > calm.0 * SLOWER {
            println!("FAIL the good server answers {SLOWER} times slower beside an attacker");
            well = false;
        }
    }
    well
}

/// Returns the median and the 99th percentile.
fn percentiles(times: &mut [Duration]) -> (Duration, Duration) {
    times.sort_unstable();
    let at =
        |share: usize| times.get(times.len().saturating_sub(1) * share / 100).copied().unwrap_or_default();
    (at(50), at(99))
}
