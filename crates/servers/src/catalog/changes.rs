//! Builds a catalogue in which few tools change: it shares every table with its predecessor, except for those
//! tools.
//!
//! Rare cases are left to a full build: clashing wire names, full names shared by several servers, renamed
//! tools, changed servers or rules, and a change of many tools.

use std::{
    collections::{BTreeMap, HashSet},
    ops::Index,
    sync::Arc,
};

use nonet_base::persistent::{SharedList, SharedMap};
use nonet_text::name::Namespaces;

use super::{Catalog, CatalogPart, Tool};

/// The share of the tools that may change, and the number that may always change.
const FEW: (usize, usize) = (8, 16);

/// Tools by full name, in that order.
#[derive(Clone, Debug, Default)]
pub(super) struct Tools {
    list: SharedList<Arc<Tool>>,
    by_name: SharedMap<Arc<str>, Arc<Tool>>,
}

impl Tools {
    pub(super) fn get(&self, full: &str) -> Option<&Arc<Tool>> {
        self.by_name.get(full)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Arc<Tool>> {
        self.list.iter()
    }

    fn insert(&mut self, tool: &Arc<Tool>) {
        self.list.insert(tool.clone(), |other| other.full.cmp(&tool.full));
        self.by_name.insert(tool.full.clone(), tool.clone());
    }

    fn remove(&mut self, full: &Arc<str>) {
        self.list.remove(|other| other.full.cmp(full));
        self.by_name.remove(full.clone());
    }
}

impl Index<&Arc<str>> for Tools {
    type Output = Arc<Tool>;

    fn index(&self, full: &Arc<str>) -> &Arc<Tool> {
        self.get(full).expect("every table names tools of the catalogue")
    }
}

/// Full names by another key, each list in order.
pub(super) type FullNames = SharedMap<Arc<str>, Arc<[Arc<str>]>>;

/// How many times each wire name is used, plain and hashed together.
pub(super) type Uses = SharedMap<Arc<str>, usize>;

/// Returns the names that a tool uses.
pub(super) fn used_by(tool: &Tool) -> impl Iterator<Item = &Arc<str>> {
    let hashed = Some(&tool.keys.hashed).filter(|hashed| **hashed != tool.keys.plain);
    std::iter::once(&tool.keys.plain).chain(hashed)
}

/// Returns the folded names that a tool is found by: with its server, and without.
fn folds(tool: &Tool) -> impl Iterator<Item = &Arc<str>> {
    let wire = Some(&tool.keys.wire).filter(|wire| **wire != tool.keys.full);
    std::iter::once(&tool.keys.full).chain(wire)
}

/// Returns the tools that only the old parts have, and the tools that only the new parts have.
fn differences<'a>(
    old: &'a BTreeMap<Arc<str>, Arc<CatalogPart>>,
    new: &'a BTreeMap<Arc<str>, Arc<CatalogPart>>,
) -> (Vec<&'a Arc<Tool>>, Vec<&'a Arc<Tool>>) {
    fn beside<'a>(one: &'a CatalogPart, other: &CatalogPart) -> Vec<&'a Arc<Tool>> {
        let others: HashSet<*const Tool> = other.tools.iter().map(Arc::as_ptr).collect();
        one.tools.iter().filter(|tool| !others.contains(&Arc::as_ptr(tool))).collect()
    }
    let pairs = || old.values().zip(new.values()).filter(|(old, new)| !Arc::ptr_eq(old, new));
    (
        pairs().flat_map(|(old, new)| beside(old, new)).collect(),
        pairs().flat_map(|(old, new)| beside(new, old)).collect(),
    )
}

impl Catalog {
    /// Returns the catalogue of these parts, derived from this one under the same policies, if the changes
    /// are few and none is rare.
    pub(super) fn changed(
        &self,
        parts: &BTreeMap<Arc<str>, Arc<CatalogPart>>,
        names: &Arc<Namespaces>,
    ) -> Option<Self> {
        if self.is_shadowed || *self.names != **names || !self.parts.keys().eq(parts.keys()) {
            return None;
        }
        let (removed, added) = differences(&self.parts, parts);
        let all: usize = parts.values().map(|part| part.tools.len()).sum();
        let is_renamed = removed.iter().chain(&added).any(|tool| tool.is_renamed());
        if is_renamed || removed.len() + added.len() > all / FEW.0 + FEW.1 {
            return None;
        }
        let mut next = Self { names: names.clone(), ..self.clone() };
        removed.iter().for_each(|tool| next.take_out(tool));
        for tool in &added {
            if next.tools.get(&tool.full).is_some() {
                return None;
            }
            next.put_in(tool);
        }
        // A clash that appears, disappears or stays may change which tools have hashed names.
        let is_alone =
            |name: &Arc<str>| [self, &next].iter().all(|one| one.uses.get(name).is_none_or(|&uses| uses < 2));
        if !removed.iter().chain(&added).flat_map(|tool| used_by(tool)).all(is_alone) {
            return None;
        }
        next.servers = parts.iter().map(|(server, part)| (server.clone(), part.entry.clone())).collect();
        next.passed = self.passed_of(parts, names);
        next.parts = parts.clone();
        next.give_own_names_near(&removed, &added);
        Some(next)
    }

    fn take_out(&mut self, tool: &Arc<Tool>) {
        self.tools.remove(&tool.full);
        self.by_wire.remove(tool.wire.clone());
        folds(tool).for_each(|fold| without(&mut self.by_fold, fold, &tool.full));
        without(&mut self.by_bare, &tool.keys.own, &tool.full);
        used_by(tool).for_each(|name| self.count(name, |uses| uses - 1));
    }

    /// Adds a tool to every table.
    pub(super) fn put_in(&mut self, tool: &Arc<Tool>) {
        self.tools.insert(tool);
        self.by_wire.insert(tool.wire.clone(), tool.clone());
        folds(tool).for_each(|fold| with(&mut self.by_fold, fold, &tool.full));
        with(&mut self.by_bare, &tool.keys.own, &tool.full);
        used_by(tool).for_each(|name| self.count(name, |uses| uses + 1));
    }

    fn count(&mut self, name: &Arc<str>, change: impl Fn(usize) -> usize) {
        match change(self.uses.get(name).copied().unwrap_or_default()) {
            0 => self.uses.remove(name.clone()),
            uses => self.uses.insert(name.clone(), uses),
        }
    }

    /// Gives own names where changed tools may matter: to those tools, and to tools whose own name spells one
    /// of them.
    fn give_own_names_near(&mut self, removed: &[&Arc<Tool>], added: &[&Arc<Tool>]) {
        let keys = removed.iter().chain(added).flat_map(|tool| folds(tool).chain([&tool.keys.own]));
        let near: HashSet<Arc<str>> =
            keys.filter_map(|key| self.by_bare.get(key)).flat_map(|names| names.iter().cloned()).collect();
        let near: Vec<Arc<Tool>> = near.iter().map(|full| self.tools[full].clone()).collect();
        for tool in removed.iter().copied().chain(&near) {
            self.clashes.remove(&tool.full);
            if self.by_own.get(&tool.name).is_some_and(|own| own.full == tool.full) {
                self.by_own.remove(tool.name.clone());
            }
        }
        near.iter().for_each(|tool| self.give_own_name(tool));
    }
}

/// Adds a full name to a list.
pub(super) fn with(names: &mut FullNames, key: &Arc<str>, full: &Arc<str>) {
    let mut list = names.get(key).map_or_else(Vec::new, |list| list.to_vec());
    let at = list.partition_point(|other| other < full);
    list.insert(at, full.clone());
    names.insert(key.clone(), list.into());
}

fn without(names: &mut FullNames, key: &Arc<str>, full: &Arc<str>) {
    let list: Arc<[Arc<str>]> = match names.get(key) {
        Some(list) => list.iter().filter(|other| *other != full).cloned().collect(),
        None => return,
    };
    if list.is_empty() { names.remove(key.clone()) } else { names.insert(key.clone(), list) }
}

#[cfg(test)]
mod tests;
