//! Rows by key, and the effect of a new list on them.
//!
//! A watch that has lost its position lists again. Rows that are missing in the new list are
//! removed, although no event reported their deletion. Rows that this process wrote during the list
//! may also be missing in it, so a created row is marked as seen. A row that was there before the list,
//! and a row with a deletion timestamp, are not: their objects are missing because they are gone.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// Rows of one kind.
pub struct Table<K, V> {
    rows: HashMap<K, V>,
    /// Keys seen so far in the current list.
    seen: Option<HashSet<K>>,
    listed: bool,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Table { rows: HashMap::new(), seen: None, listed: false }
    }
}

impl<K: Clone + Eq + Hash, V> Table<K, V> {
    /// Begins a list.
    pub fn begin(&mut self) {
        self.seen = Some(HashSet::new());
    }

    /// Completes a list and returns the keys that it did not contain, for removal.
    #[must_use]
    pub fn end(&mut self) -> Vec<K> {
        self.listed = true;
        let Some(seen) = self.seen.take() else { return Vec::new() };
        self.rows.keys().filter(|key| !seen.contains(*key)).cloned().collect()
    }

    /// Whether a list was ever completed.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    /// Inserts a row and returns the replaced one.
    pub fn set(&mut self, key: K, row: V) -> Option<V> {
        if let Some(seen) = &mut self.seen {
            seen.insert(key.clone());
        }
        self.rows.insert(key, row)
    }

    /// Whether a known row is older than the current list. Such a row is replaced by the listed
    /// object, even if the object's version is earlier, as after a restore of etcd.
    pub fn is_before_list(&self, key: &K) -> bool {
        self.seen.as_ref().is_some_and(|seen| !seen.contains(key))
    }

    /// Marks a key as listed, although its row is newer or its object cannot be read.
    pub fn note(&mut self, key: &K) {
        if let Some(seen) = &mut self.seen {
            seen.insert(key.clone());
        }
    }

    /// Replaces a row, without a mark that the current list contained its key.
    pub fn replace(&mut self, key: &K, row: V) -> Option<V> {
        self.rows.insert(key.clone(), row)
    }

    /// Removes the mark that the current list contained a key.
    pub fn unmark(&mut self, key: &K) {
        if let Some(seen) = &mut self.seen {
            seen.remove(key);
        }
    }

    /// Removes a row and returns it.
    pub fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        if let Some(seen) = &mut self.seen {
            seen.remove(key);
        }
        self.rows.remove(key)
    }

    /// The row.
    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.rows.get(key)
    }

    /// All rows, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.rows.iter()
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_list_removes_missing_rows_except_own_writes() {
        let mut table: Table<&str, u32> = Table::default();
        table.begin();
        for key in ["a", "b", "c"] {
            table.set(key, 1);
        }
        assert!(!table.is_listed() && table.end().is_empty() && table.is_listed());
        table.begin();
        table.set("a", 2);
        table.set("written", 1);
        table.note(&"b");
        assert_eq!(table.end(), ["c"]);
        assert!(table.end().is_empty(), "only a list removes rows");
    }

    #[test]
    fn replaced_rows_are_removed_if_the_list_lacks_them() {
        let mut table: Table<&str, u32> = Table::default();
        table.set("old", 1);
        table.begin();
        table.replace(&"old", 2);
        table.set("created", 1);
        table.replace(&"created", 2);
        assert_eq!(table.end(), ["old"]);
        table.begin();
        table.set("created", 1);
        table.unmark(&"created");
        assert_eq!(table.end().len(), 2);
    }
}
