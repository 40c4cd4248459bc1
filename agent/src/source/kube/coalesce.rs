//! Pending updates for the API server, by object: the last update counts, and objects take turns.
//! No I/O.
//!
//! A pod that restarts in a loop, or an outage of an hour, causes many updates for one object; only
//! the last one is written. An update that arrives during the write of an older one for the same
//! object is not lost: [`Coalesce::settle`] removes only the written value.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// The pending updates.
#[derive(Debug)]
pub struct Coalesce<K, V> {
    updates: HashMap<K, V>,
    order: VecDeque<K>,
}

impl<K, V> Default for Coalesce<K, V> {
    fn default() -> Self {
        Coalesce { updates: HashMap::new(), order: VecDeque::new() }
    }
}

impl<K: Clone + Eq + Hash, V: Clone + PartialEq> Coalesce<K, V> {
    /// Sets the pending update of an object, in place of an older one.
    pub fn put(&mut self, key: K, value: V) {
        if self.updates.insert(key.clone(), value).is_none() {
            self.order.push_back(key);
        }
    }

    /// The pending update of an object.
    pub fn pending(&self, key: &K) -> Option<&V> {
        self.updates.get(key)
    }

    /// Removes the pending updates that match.
    pub fn cancel(&mut self, which: impl Fn(&K, &V) -> bool) {
        self.updates.retain(|key, value| !which(key, value));
        let updates = &self.updates;
        self.order.retain(|key| updates.contains_key(key));
    }

    /// The next update.
    pub fn next(&self) -> Option<(K, V)> {
        let key = self.order.front()?;
        Some((key.clone(), self.updates.get(key)?.clone()))
    }

    /// The value was written. If the pending update is newer, it stays.
    pub fn settle(&mut self, key: &K, value: &V) {
        if self.updates.get(key) == Some(value) {
            self.updates.remove(key);
            self.order.retain(|known| known != key);
        }
    }

    /// The write failed: the update moves behind all others.
    pub fn postpone(&mut self, key: &K) {
        if self.updates.contains_key(key) {
            self.order.retain(|known| known != key);
            self.order.push_back(key.clone());
        }
    }

    /// Number of objects with a pending update.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether no update is pending.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_update_counts_and_each_object_has_its_turn() {
        let mut due = Coalesce::default();
        for (key, value) in [("a", 1), ("b", 1), ("a", 2), ("c", 1)] {
            due.put(key, value);
        }
        assert_eq!((due.len(), due.next()), (3, Some(("a", 2))));
        // A newer update arrives during the write of 2: it stays pending.
        due.put("a", 3);
        due.settle(&"a", &2);
        assert_eq!(due.next(), Some(("a", 3)));
        due.postpone(&"a");
        assert_eq!(due.next(), Some(("b", 1)), "a failed object does not delay the others");
        due.settle(&"b", &1);
        due.cancel(|key, _| *key == "c");
        assert_eq!(due.next(), Some(("a", 3)));
        due.settle(&"a", &3);
        assert!(due.is_empty() && due.next().is_none());
        due.postpone(&"a");
        assert!(due.is_empty(), "a written update does not return");
    }
}
