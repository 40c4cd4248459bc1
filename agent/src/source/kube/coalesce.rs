//! Pending updates of the API server, by object: the last update counts, and each object has its turn. No I/O.
//!
//! A pod that is restarted in a loop, or an outage of an hour, makes many updates for one object; what is written is the last one. An update that
//! comes while an older one for the same object is being written is not lost: [`Coalesce::settle`] takes out only what it was told.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// See the module.
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
    /// This is to be written, whatever was to be before.
    pub fn put(&mut self, key: K, value: V) {
        if self.updates.insert(key.clone(), value).is_none() {
            self.order.push_back(key);
        }
    }

    /// Nothing is to be written any more where this holds.
    pub fn cancel(&mut self, which: impl Fn(&K, &V) -> bool) {
        self.updates.retain(|key, value| !which(key, value));
        let updates = &self.updates;
        self.order.retain(|key| updates.contains_key(key));
    }

    /// Whose turn it is.
    pub fn next(&self) -> Option<(K, V)> {
        let key = self.order.front()?;
        Some((key.clone(), self.updates.get(key)?.clone()))
    }

    /// This was written. An update that came meanwhile is next.
    pub fn settle(&mut self, key: &K, value: &V) {
        if self.updates.get(key) == Some(value) {
            self.updates.remove(key);
            self.order.retain(|known| known != key);
        }
    }

    /// This could not be written: it has its turn again after the others.
    pub fn postpone(&mut self, key: &K) {
        if self.updates.contains_key(key) {
            self.order.retain(|known| known != key);
            self.order.push_back(key.clone());
        }
    }

    /// How many objects are to be written.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether nothing is to be written.
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
        // While 2 is written a newer one comes: that is still to be written.
        due.put("a", 3);
        due.settle(&"a", &2);
        assert_eq!(due.next(), Some(("a", 3)));
        due.postpone(&"a");
        assert_eq!(due.next(), Some(("b", 1)), "a failure holds up nobody else");
        due.settle(&"b", &1);
        due.cancel(|key, _| *key == "c");
        assert_eq!(due.next(), Some(("a", 3)));
        due.settle(&"a", &3);
        assert!(due.is_empty() && due.next().is_none());
        due.postpone(&"a");
        assert!(due.is_empty(), "what is settled does not come back");
    }
}
