//! Keys that wait for a change of other objects: pods and Services without an address.
//!
//! Each key has the causes whose change may help it, such as a Namespace or a ServicePool. A change
//! concerns only the keys with its cause. Tenants write some of these objects, so the keys are queued
//! again at most once in [`RETRY_INTERVAL`], whatever the number of changes: the owner adds a key to a
//! queue with this gap when a method here returns true, and the queue's job takes the keys.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::time::Duration;

use crate::cluster::Key;

/// The shortest time between two retries of waiting keys.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Waiting keys, by the causes for which they wait.
#[derive(Debug)]
pub struct Waiting<C> {
    keys: HashMap<Key, Vec<C>>,
    by_cause: HashMap<C, HashSet<Key>>,
    /// The causes that have changed since the last retry. Each has a waiting key at that time.
    changed: HashSet<C>,
    all_changed: bool,
}

impl<C> Default for Waiting<C> {
    fn default() -> Self {
        Waiting {
            keys: HashMap::new(),
            by_cause: HashMap::new(),
            changed: HashSet::new(),
            all_changed: false,
        }
    }
}

impl<C: Clone + Eq + Hash> Waiting<C> {
    /// Adds a key, or further causes of a key.
    pub fn insert(&mut self, key: &Key, causes: impl IntoIterator<Item = C>) {
        let known = self.keys.entry(key.clone()).or_default();
        for cause in causes {
            if self.by_cause.entry(cause.clone()).or_default().insert(key.clone()) {
                known.push(cause);
            }
        }
    }

    /// Removes a key. Returns whether it waited.
    pub fn remove(&mut self, key: &Key) -> bool {
        let Some(causes) = self.keys.remove(key) else { return false };
        for cause in causes {
            if let Some(keys) = self.by_cause.get_mut(&cause) {
                keys.remove(key);
                if keys.is_empty() {
                    self.by_cause.remove(&cause);
                }
            }
        }
        true
    }

    /// Whether a key waits.
    pub fn contains(&self, key: &Key) -> bool {
        self.keys.contains_key(key)
    }

    /// The number of waiting keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether no key waits.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The waiting keys, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Key> {
        self.keys.keys()
    }

    /// Records a change that may help the keys with this cause. Returns whether there are any.
    #[must_use]
    pub fn change(&mut self, cause: &C) -> bool {
        let waits = self.by_cause.contains_key(cause);
        if waits {
            self.changed.insert(cause.clone());
        }
        waits
    }

    /// Records a change that may help all keys. Returns whether there are any.
    #[must_use]
    pub fn change_all(&mut self) -> bool {
        self.all_changed |= !self.is_empty();
        !self.is_empty()
    }

    /// Whether the next retry is one of all keys.
    pub fn has_all_changed(&self) -> bool {
        self.all_changed
    }

    /// Takes the keys that a change since the last retry may help.
    pub fn take_changed(&mut self) -> Vec<Key> {
        if std::mem::take(&mut self.all_changed) {
            let all = std::mem::take(self);
            return all.keys.into_keys().collect();
        }
        let mut taken = Vec::new();
        for cause in std::mem::take(&mut self.changed) {
            let keys: Vec<Key> = self.by_cause.get(&cause).into_iter().flatten().cloned().collect();
            for key in keys {
                self.remove(&key);
                taken.push(key);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key::new("shop", format!("web-{number}"))
    }

    #[test]
    fn a_change_retries_the_keys_that_wait_for_it() {
        let mut waiting = Waiting::default();
        for number in 0..1000 {
            waiting.insert(&key(number), [number % 10, 10]);
        }
        waiting.insert(&key(3), [11]);
        assert!(!waiting.change(&12), "no key waits for it");
        assert!(waiting.take_changed().is_empty());
        for _ in 0..100 {
            assert!(waiting.change(&3));
        }
        assert!(waiting.change(&11));
        assert_eq!((waiting.take_changed().len(), waiting.len()), (100, 900));
        assert!(!waiting.change(&3) && !waiting.contains(&key(3)));
        assert!(waiting.change_all() && waiting.has_all_changed());
        assert_eq!(waiting.take_changed().len(), 900);
        assert!(!waiting.change_all() && waiting.is_empty() && !waiting.has_all_changed());
    }

    #[test]
    fn removed_keys_leave_nothing() {
        let mut waiting = Waiting::default();
        waiting.insert(&key(1), ["a", "b"]);
        waiting.insert(&key(1), ["b", "c"]);
        assert!(waiting.change(&"a"));
        assert!(waiting.remove(&key(1)) && !waiting.remove(&key(1)));
        assert!(waiting.take_changed().is_empty());
        assert!(waiting.by_cause.is_empty() && waiting.changed.is_empty());
    }
}
