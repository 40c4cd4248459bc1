//! A set of row numbers. Rows are taken from it in row order, cyclically.
//!
//! Each Adj-RIB-Out has a set of the rows to examine, and so does the FIB. Each peer has a set of
//! the rows in which it has paths. So the cost of an operation on a peer grows with its paths, not
//! with the table. A row is in the set once, even if it changes often. This coalesces changes and
//! limits the memory to one bit per row. Each take continues in row order after the last one, so no
//! row waits for ever. Row order is mostly the order in which the prefixes arrived. Adjacent rows
//! often share their attributes, so a message holds many prefixes.

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct RowSet {
    /// One bit per row.
    words: Vec<u64>,
    /// One bit per nonzero word; it makes skipping through an almost empty set fast.
    summary: Vec<u64>,
    len: usize,
    cursor: u32,
}

impl RowSet {
    #[cfg(test)]
    fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn contains(&self, row: u32) -> bool {
        self.words.get(row as usize / 64).is_some_and(|bits| bits & (1 << (row % 64)) != 0)
    }

    /// Adds a row; returns whether it was absent.
    pub(super) fn insert(&mut self, row: u32) -> bool {
        let word = row as usize / 64;
        if word >= self.words.len() {
            self.grow(word + 1);
        }
        let bit = 1 << (row % 64);
        let bits = &mut self.words[word];
        if *bits & bit != 0 {
            return false;
        }
        if *bits == 0 {
            self.summary[word / 64] |= 1 << (word % 64);
        }
        *bits |= bit;
        self.len += 1;
        true
    }

    /// Grows to this many words, rounded up to full summary words.
    #[cold]
    fn grow(&mut self, words: usize) {
        self.words.resize(words.next_multiple_of(64), 0);
        self.summary.resize(self.words.len() / 64, 0);
    }

    /// Adds every row before `bound`.
    pub(super) fn insert_all(&mut self, bound: u32) {
        let words = bound.div_ceil(64) as usize;
        if words > self.words.len() {
            self.grow(words);
        }
        for (place, word) in self.words[..words].iter_mut().enumerate() {
            let left = bound - (place * 64) as u32;
            let all = if left < 64 { (1 << left) - 1 } else { u64::MAX };
            self.len += (all & !*word).count_ones() as usize;
            *word |= all;
            self.summary[place / 64] |= 1 << (place % 64);
        }
    }

    /// Removes a row; returns whether it was present.
    pub(super) fn remove(&mut self, row: u32) -> bool {
        let word = row as usize / 64;
        let bit = 1 << (row % 64);
        match self.words.get_mut(word) {
            Some(bits) if *bits & bit != 0 => {
                *bits &= !bit;
                if *bits == 0 {
                    self.summary[word / 64] &= !(1 << (word % 64));
                }
                self.len -= 1;
                true
            }
            _ => false,
        }
    }

    /// The first row at or after the cursor, without wrapping.
    pub(super) fn peek(&self) -> Option<u32> {
        self.next_from(self.cursor)
    }

    /// The first row at or after `from`.
    pub(super) fn next_from(&self, from: u32) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let word = from as usize / 64;
        let rest = self.words.get(word)? & (u64::MAX << (from % 64));
        if rest != 0 {
            return Some((word * 64) as u32 + rest.trailing_zeros());
        }
        let after = word + 1;
        let first = *self.summary.get(after / 64)? & (u64::MAX << (after % 64));
        let later = self.summary.iter().copied().enumerate().skip(after / 64 + 1);
        let (chunk, bits) = [(after / 64, first)].into_iter().chain(later).find(|(_, bits)| *bits != 0)?;
        let word = chunk * 64 + bits.trailing_zeros() as usize;
        Some((word * 64) as u32 + self.words[word].trailing_zeros())
    }

    /// Takes the next row at or after the cursor and moves the cursor to the place after it. Wraps
    /// to the first row if there is none.
    pub(super) fn take(&mut self) -> Option<u32> {
        let row = match self.peek() {
            Some(row) => row,
            None => {
                self.cursor = 0;
                self.peek()?
            }
        };
        self.remove(row);
        self.cursor = row + 1;
        Some(row)
    }

    /// Moves the cursor to a row.
    pub(super) fn set_cursor(&mut self, row: u32) {
        self.cursor = row;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn rows_are_taken_in_cyclic_order() {
        let mut set = RowSet::default();
        for row in [5, 70_000, 4096, 63, 64, 5] {
            set.insert(row);
        }
        assert_eq!(set.len(), 5);
        assert_eq!(set.take(), Some(5));
        assert_eq!(set.take(), Some(63));
        set.insert(1); // behind the cursor: taken after all others
        set.insert(65); // ahead of the cursor
        let rest: Vec<u32> = std::iter::from_fn(|| set.take()).collect();
        assert_eq!(rest, [64, 65, 4096, 70_000, 1]);
        assert!(set.is_empty() && set.take().is_none());
        for row in [7, 0] {
            set.insert(row);
        }
        set.set_cursor(1);
        assert_eq!(set.take(), Some(7));
        assert_eq!(set.peek(), None, "peek does not wrap");
        assert_eq!(set.take(), Some(0));
    }

    proptest::proptest! {
        #[test]
        fn behaves_as_a_set(steps in proptest::collection::vec((0u8..5, 0u32..20_000), 1..300)) {
            let (mut set, mut model, mut cursor) = (RowSet::default(), BTreeSet::new(), 0u32);
            for (kind, row) in steps {
                match kind {
                    0 => assert_eq!(set.insert(row), model.insert(row)),
                    1 => {
                        assert_eq!(set.contains(row), model.contains(&row));
                        assert_eq!(set.remove(row), model.remove(&row));
                    }
                    2 => assert_eq!(set.next_from(row), model.range(row..).next().copied()),
                    3 if row < 500 => {
                        set.insert_all(row);
                        model.extend(0..row);
                    }
                    _ => {
                        let expected = model.range(cursor..).next().or(model.iter().next()).copied();
                        assert_eq!(set.take(), expected);
                        if let Some(row) = expected {
                            model.remove(&row);
                            cursor = row + 1;
                        } else {
                            cursor = 0;
                        }
                    }
                }
                assert_eq!(set.len(), model.len());
            }
        }
    }
}
