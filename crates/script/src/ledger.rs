//! Which answers of an earlier run a repeated script gets, and when.
//!
//! A script that is repeated asks for the same things again, as long as it gets the same answers in the same
//! order. A request is known by its place: what it asks for, and how many equal ones came before it. So a
//! corrected script still finds the answers of the requests that it has not changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The answers that a script got, in the order in which it got them.
#[derive(Debug, Default)]
pub struct Ledger {
    /// The places of the answers of earlier runs that this run did not get yet.
    due: BTreeSet<(u64, String)>,
    order_of: HashMap<String, u64>,
    /// How many equal requests there were so far.
    counts: HashMap<String, usize>,
    /// The requests that wait for an answer of an earlier run.
    asked: BTreeMap<(u64, String), u64>,
    next_order: u64,
}

impl Ledger {
    /// Creates the ledger of a run from the places of earlier answers, each with its number.
    pub fn new(before: impl IntoIterator<Item = (String, u64)>) -> Self {
        let order_of: HashMap<String, u64> = before.into_iter().collect();
        let due = order_of.iter().map(|(place, order)| (*order, place.clone())).collect();
        let next_order = order_of.values().max().map_or(0, |last| last.saturating_add(1));
        Self { due, order_of, next_order, ..Self::default() }
    }

    /// Returns the place of a request: the same for every run of the script.
    pub fn place(&mut self, request: &str) -> String {
        let count = self.counts.entry(request.into()).or_default();
        *count += 1;
        match *count {
            1 => request.into(),
            count => format!("{request} #{count}"),
        }
    }

    /// Notes that a request waits for the answer at its place. Returns whether there is one of an earlier
    /// run.
    pub fn ask(&mut self, id: u64, place: &str) -> bool {
        let Some(order) = self.order_of.get(place) else { return false };
        self.asked.insert((*order, place.into()), id);
        true
    }

    /// Returns the request that gets its answer next, with its place: the one that got it first in the earlier
    /// run. While the script still runs, an answer that it has not asked for holds back the later ones; an
    /// idle script will not ask for it.
    pub fn next(&mut self, is_idle: bool) -> Option<(u64, String)> {
        let first = self.asked.first_key_value().map(|(key, _)| key.clone())?;
        if self.due.first() != Some(&first) && !is_idle {
            return None;
        }
        self.due.remove(&first);
        self.asked.remove(&first).map(|id| (id, first.1))
    }

    /// Returns the number of a new answer.
    pub fn number(&mut self) -> u64 {
        let number = self.next_order;
        self.next_order += 1;
        number
    }

    /// Returns how many answers of earlier runs this run did not ask for.
    pub fn unused(&self) -> usize {
        self.due.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(places: &[&str]) -> Ledger {
        Ledger::new(places.iter().zip(0..).map(|(place, order)| (place.to_string(), order)))
    }

    #[test]
    fn equal_requests_have_different_places() {
        let mut ledger = Ledger::default();
        assert_eq!(["a", "b", "a"].map(|request| ledger.place(request)), ["a", "b", "a #2"]);
    }

    #[test]
    fn answers_come_in_the_order_of_the_earlier_run() {
        let mut of_run = ledger(&["b", "a"]);
        assert!(of_run.ask(1, "a"));
        assert_eq!(of_run.next(false), None, "`b` was answered first");
        assert!(of_run.ask(2, "b"));
        assert_eq!(of_run.next(false), Some((2, "b".into())));
        assert_eq!(of_run.next(false), Some((1, "a".into())));
        assert_eq!((of_run.next(true), of_run.unused()), (None, 0));
        assert!(!of_run.ask(3, "a #2"));
        assert_eq!(of_run.number(), 2);
    }

    #[test]
    fn a_changed_script_is_not_held_back() {
        let mut of_run = ledger(&["gone", "a"]);
        assert!(of_run.ask(1, "a"));
        assert_eq!(of_run.next(false), None);
        assert_eq!(of_run.next(true), Some((1, "a".into())));
        assert_eq!(of_run.unused(), 1);
    }
}
