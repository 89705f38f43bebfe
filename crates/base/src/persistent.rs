//! A map and a sorted list whose copies share unchanged entries: a changed copy costs only its changes.

use std::{borrow::Borrow, cmp::Ordering, collections::HashMap, hash::Hash, sync::Arc};

/// The share of a map's entries that may be kept beside its shared part, and the number that always may be.
const BESIDE: (usize, usize) = (32, 64);
/// The most items of one part of a list.
const MOST_OF_PART: usize = 512;

/// A hash map. A copy shares the original's entries and keeps its differences beside them until there are too
/// many.
#[derive(Clone, Debug)]
pub struct SharedMap<K, V> {
    shared: Arc<HashMap<K, V>>,
    /// The differences; `None` marks a removed key.
    beside: HashMap<K, Option<V>>,
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self { shared: Arc::default(), beside: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash, V: Clone> SharedMap<K, V> {
    /// Returns the value of a key.
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        match self.beside.get(key) {
            Some(value) => value.as_ref(),
            None => self.shared.get(key),
        }
    }

    /// Sets the value of a key.
    pub fn insert(&mut self, key: K, value: V) {
        self.set(key, Some(value));
    }

    /// Removes a key.
    pub fn remove(&mut self, key: K) {
        self.set(key, None);
    }

    /// Returns the entries, unordered.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let shared = self.shared.iter().filter(|(key, _)| !self.beside.contains_key(*key));
        shared.chain(self.beside.iter().filter_map(|(key, value)| Some((key, value.as_ref()?))))
    }

    /// Whether two maps share their entries, differences aside.
    pub fn shares_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    fn set(&mut self, key: K, value: Option<V>) {
        let is_much = self.beside.len() > self.shared.len() / BESIDE.0 + BESIDE.1;
        if is_much || Arc::get_mut(&mut self.shared).is_some() {
            let all = Arc::make_mut(&mut self.shared);
            for (key, value) in self.beside.drain().chain([(key, value)]) {
                match value {
                    Some(value) => drop(all.insert(key, value)),
                    None => drop(all.remove(&key)),
                }
            }
        } else {
            self.beside.insert(key, value);
        }
    }
}

/// A sorted list. A copy shares all parts that it does not change.
#[derive(Clone, Debug)]
pub struct SharedList<T> {
    /// Each part is non-empty.
    parts: Vec<Arc<Vec<T>>>,
}

impl<T> Default for SharedList<T> {
    fn default() -> Self {
        Self { parts: Vec::new() }
    }
}

impl<T: Clone> SharedList<T> {
    /// Wraps sorted items.
    pub fn of_sorted(items: &[T]) -> Self {
        Self { parts: items.chunks(MOST_OF_PART / 2).map(|part| Arc::new(part.to_vec())).collect() }
    }

    /// Returns the items in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.parts.iter().flat_map(|part| part.iter())
    }

    /// Returns the items in order, after all those for which `is_before` is true.
    pub fn behind(&self, is_before: impl Fn(&T) -> bool) -> impl Iterator<Item = &T> {
        let (part, at) = self.place(is_before);
        let first = self.parts.get(part).map_or(&[][..], |part| &part[at..]);
        first.iter().chain(self.parts.iter().skip(part + 1).flat_map(|part| part.iter()))
    }

    /// Returns the item that `by` finds equal.
    pub fn get(&self, by: impl Fn(&T) -> Ordering) -> Option<&T> {
        let (part, at) = self.place(|item| by(item).is_lt());
        self.parts.get(part)?.get(at).filter(|item| by(item).is_eq())
    }

    /// Inserts an item; `by` compares other items with it.
    pub fn insert(&mut self, item: T, by: impl Fn(&T) -> Ordering) {
        let (mut at_part, mut at) = self.place(|other| by(other).is_lt());
        if at_part == self.parts.len() {
            match self.parts.last() {
                // After all other items.
                Some(last) => (at_part, at) = (at_part - 1, last.len()),
                None => self.parts.push(Arc::default()),
            }
        }
        let part = Arc::make_mut(&mut self.parts[at_part]);
        part.insert(at, item);
        if part.len() > MOST_OF_PART {
            let rest = part.split_off(MOST_OF_PART / 2);
            self.parts.insert(at_part + 1, Arc::new(rest));
        }
    }

    /// Removes an item that `by` finds equal, if any.
    pub fn remove(&mut self, by: impl Fn(&T) -> Ordering) {
        let (at_part, at) = self.place(|item| by(item).is_lt());
        let Some(part) = self.parts.get_mut(at_part) else { return };
        if part.get(at).is_some_and(|item| by(item).is_eq()) {
            Arc::make_mut(part).remove(at);
            if part.is_empty() {
                self.parts.remove(at_part);
            }
        }
    }

    /// Counts the parts that another list does not share, and all parts.
    pub fn parts_beside(&self, other: &Self) -> (usize, usize) {
        let own = self.parts.iter().filter(|part| !other.parts.iter().any(|known| Arc::ptr_eq(part, known)));
        (own.count(), self.parts.len())
    }

    /// Returns the part and the index in it of the first item that is not before.
    fn place(&self, is_before: impl Fn(&T) -> bool) -> (usize, usize) {
        let part = self.parts.partition_point(|part| part.last().is_some_and(&is_before));
        (part, self.parts.get(part).map_or(0, |part| part.partition_point(is_before)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Returns the numbers of a linear generator: reproducible.
    fn numbers() -> impl Iterator<Item = u32> {
        std::iter::successors(Some(7u32), |n| Some(n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)))
            .map(|n| n >> 16)
    }

    #[test]
    fn copies_differ_as_maps_do_and_share_the_rest() {
        let (mut map, mut plain) = (SharedMap::default(), BTreeMap::new());
        for n in numbers().take(3_000) {
            let before = map.clone();
            let was = plain.clone();
            if n % 3 == 0 {
                map.remove(n % 1_000);
                plain.remove(&(n % 1_000));
            } else {
                map.insert(n % 1_000, n);
                plain.insert(n % 1_000, n);
            }
            assert_eq!(map.get(&(n % 1_000)), plain.get(&(n % 1_000)));
            assert_eq!(before.get(&(n % 1_000)), was.get(&(n % 1_000)));
        }
        assert_eq!(map.iter().collect::<BTreeMap<_, _>>(), plain.iter().collect());
        let mut copy = map.clone();
        copy.insert(5_000, 1);
        assert!(copy.shares_with(&map) && map.get(&5_000).is_none());
    }

    #[test]
    fn a_list_stays_sorted_and_a_change_copies_one_part() {
        let mut list = SharedList::default();
        let mut plain: Vec<u32> = Vec::new();
        for n in numbers().take(5_000) {
            if n % 4 == 0 {
                list.remove(|other: &u32| other.cmp(&(n + 1)));
                plain.binary_search(&(n + 1)).map(|at| plain.remove(at)).ok();
            } else if let Err(at) = plain.binary_search(&n) {
                list.insert(n, |other| other.cmp(&n));
                plain.insert(at, n);
            }
        }
        assert!(list.iter().eq(&plain) && plain.len() > 2_000);
        assert!(list.behind(|&n| n < 9_000).eq(plain.iter().filter(|n| **n >= 9_000)));
        assert_eq!(list.get(|n| n.cmp(&plain[77])), Some(&plain[77]));
        assert!(SharedList::of_sorted(&plain).iter().eq(&plain));
        let mut rising = SharedList::default();
        (0..5_000u32).for_each(|n| rising.insert(n, |other| other.cmp(&n)));
        assert!(rising.iter().copied().eq(0..5_000) && rising.parts_beside(&list).1 < 40);
        let mut copy = list.clone();
        copy.insert(1 << 20, |other| other.cmp(&(1 << 20)));
        assert!(copy.parts_beside(&list).0 <= 2 && !list.iter().any(|&n| n == 1 << 20));
    }
}
