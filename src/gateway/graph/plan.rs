//! Which calls there are, and which wait for which.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{
    fault::{Code, Fault},
    template,
};

/// One call of a graph.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct Action {
    /// Its name in the graph; its position if absent.
    #[serde(default)]
    pub id: String,
    /// The tool, under any of its names.
    pub name: String,
    /// Its params, with templates.
    #[serde(default)]
    pub params: Value,
    /// Calls that must have ended before.
    #[serde(default)]
    pub after: Vec<String>,
    /// Its hard limit, instead of its server's.
    pub timeout_ms: Option<u64>,
    /// A jq filter on its result, for the report and for what other calls take from it.
    pub select: Option<String>,
    /// Whether its failure is no failure of what depends on it: they see `null`.
    #[serde(skip)]
    pub optional: bool,
}

/// A graph whose names all resolve and that has no cycle.
#[derive(Debug)]
pub struct Plan {
    pub(super) actions: Vec<Action>,
    /// The calls that each one waits for.
    pub(super) needs: Vec<BTreeSet<usize>>,
}

impl Plan {
    /// Checks a graph. `given` are names that templates may use beside the actions' ids.
    pub fn new(mut actions: Vec<Action>, given: &[&str]) -> Result<Self, Fault> {
        let bad = |message: String| Fault::new(Code::InvalidParams, message);
        for (at, action) in actions.iter_mut().enumerate() {
            if action.id.is_empty() {
                action.id = format!("{}", at + 1);
            }
        }
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        for (at, action) in actions.iter().enumerate() {
            if places.insert(&action.id, at).is_some() {
                return Err(bad(format!(
                    "Two actions have the id `{}`; give each its own. Nothing was run.",
                    action.id
                )));
            }
        }
        let known = || places.keys().copied().collect::<Vec<_>>().join(", ");
        let mut needs = Vec::new();
        for (at, action) in actions.iter().enumerate() {
            let used = template::names(&action.params);
            let used = used.into_iter().filter(|name| !given.contains(&name.as_str()));
            let mut mine = BTreeSet::new();
            for name in action.after.iter().cloned().chain(used) {
                match places.get(name.as_str()) {
                    Some(other) if *other != at => mine.insert(*other),
                    Some(_) => {
                        return Err(bad(format!("The action `{name}` waits for itself. Nothing was run.")));
                    }
                    None => {
                        return Err(bad(format!(
                            "The action `{}` refers to `{name}`, which is none of the actions ({}). Nothing was run.",
                            action.id,
                            known()
                        )));
                    }
                };
            }
            needs.push(mine);
        }
        let mut done: BTreeSet<usize> = BTreeSet::new();
        while done.len() < actions.len() {
            let ready: Vec<usize> =
                (0..actions.len()).filter(|at| !done.contains(at) && needs[*at].is_subset(&done)).collect();
            if ready.is_empty() {
                let stuck: Vec<&str> = (0..actions.len())
                    .filter(|at| !done.contains(at))
                    .map(|at| actions[at].id.as_str())
                    .collect();
                return Err(bad(format!(
                    "These actions wait for each other in a circle: {}. Nothing was run.",
                    stuck.join(", ")
                )));
            }
            done.extend(ready);
        }
        Ok(Self { actions, needs })
    }

    /// The calls whose results other calls take something from, by position.
    pub(super) fn used(&self) -> BTreeSet<usize> {
        let names: BTreeSet<String> =
            self.actions.iter().flat_map(|action| template::names(&action.params)).collect();
        (0..self.actions.len()).filter(|at| names.contains(&self.actions[*at].id)).collect()
    }

    /// The calls, in the order given.
    pub fn actions(&self) -> &[Action] {
        &self.actions
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plan(actions: Value) -> Result<Plan, Fault> {
        Plan::new(serde_json::from_value(actions).unwrap(), &["input"])
    }

    #[test]
    fn faulty_graphs_are_refused_before_anything_runs() {
        let check = |actions: Value, part: &str| {
            let fault = plan(actions).unwrap_err();
            assert!(fault.message.contains(part) && fault.message.contains("Nothing was run"), "{fault}");
        };
        check(json!([{"id": "a", "name": "x"}, {"id": "a", "name": "y"}]), "Two actions");
        check(json!([{"name": "x", "params": {"p": "{{9.y}}"}}]), "refers to `9`");
        check(json!([{"id": "a", "name": "x", "after": ["a"]}]), "waits for itself");
        check(
            json!([{"id": "a", "name": "x", "after": ["b"]}, {"id": "b", "name": "y", "params": {"p": "{{a.z}}"}}]),
            "circle: a, b",
        );
    }

    #[test]
    fn needs_come_from_after_and_from_templates() {
        let plan = plan(json!([
            {"name": "x"},
            {"id": "b", "name": "y", "params": {"p": "{{1.z}} {{input.q}} {{ref:r.s}}"}},
            {"name": "z", "after": ["b"]},
        ]))
        .unwrap();
        let needs: Vec<Vec<usize>> = plan.needs.iter().map(|need| need.iter().copied().collect()).collect();
        assert_eq!(needs, [vec![], vec![0], vec![1]]);
    }
}
