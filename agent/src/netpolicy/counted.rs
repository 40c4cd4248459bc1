//! Rows that several users share: sets and chains.

use std::collections::HashMap;
use std::hash::Hash;

use super::rules::number_of;

/// A value with the number of its users.
#[derive(Debug)]
pub(super) struct Counted<T> {
    pub(super) value: T,
    pub(super) users: usize,
}

/// The number of a key among these rows, and whether a row has the key. A number that another key
/// has is skipped.
pub(super) fn find<I, T, K>(rows: &HashMap<I, Counted<T>>, key: &K, key_of: impl Fn(&T) -> &K) -> (u64, bool)
where
    I: From<u64> + Eq + Hash,
    K: Hash + Eq,
{
    find_from(rows, number_of(key), key, key_of)
}

/// The same for a key of this hash.
pub(super) fn find_from<I, T, K: Eq>(
    rows: &HashMap<I, Counted<T>>,
    hash: u64,
    key: &K,
    key_of: impl Fn(&T) -> &K,
) -> (u64, bool)
where
    I: From<u64> + Eq + Hash,
{
    let mut number = hash;
    while let Some(row) = rows.get(&I::from(number)) {
        if key_of(&row.value) == key {
            return (number, true);
        }
        number = number.wrapping_add(1);
    }
    (number, false)
}
