//! Holders of addresses: rows of twelve octets in pages, with namespaces as numbers.
//!
//! The name of an IPInstance follows from its address, so its namespace identifies it. The row of
//! an address has the address's index in the subnet. Pages have 256 rows and exist only while
//! needed: round robin fills them one after the other, and a look-up takes two steps without a
//! hash.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::mac::Mac;
use super::state::State;

/// The holder of one address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    /// The namespace of its IPInstance, in [`Names`].
    pub(super) namespace: u32,
    pub(super) mac: Mac,
    pub(super) state: State,
}

const PAGE: usize = 256;

#[derive(Debug)]
struct Page {
    rows: [Row; PAGE],
    taken: u16,
}

/// The rows of a subnet, by index in its range.
#[derive(Debug)]
pub(super) struct Rows(Box<[Option<Box<Page>>]>);

impl Rows {
    pub(super) fn new(span: u32) -> Rows {
        Rows((0..(span as usize).div_ceil(PAGE)).map(|_| None).collect())
    }

    pub(super) fn get(&self, index: u32) -> Row {
        self.0[index as usize / PAGE]
            .as_ref()
            .map(|page| page.rows[index as usize % PAGE])
            .unwrap_or_default()
    }

    pub(super) fn set(&mut self, index: u32, row: Row) {
        let slot = &mut self.0[index as usize / PAGE];
        if row.state == State::Free && slot.is_none() {
            return;
        }
        let page = slot.get_or_insert_with(|| Box::new(Page { rows: [Row::default(); PAGE], taken: 0 }));
        let place = &mut page.rows[index as usize % PAGE];
        page.taken += u16::from(row.state != State::Free);
        page.taken -= u16::from(place.state != State::Free);
        *place = row;
        if page.taken == 0 {
            *slot = None;
        }
    }

    /// Rows that are not free.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Row)> {
        self.0.iter().enumerate().filter_map(|(number, page)| Some((number, page.as_ref()?))).flat_map(
            |(number, page)| {
                let rows = page.rows.iter().enumerate().filter(|(_, row)| row.state != State::Free);
                rows.map(move |(place, row)| ((number * PAGE + place) as u32, *row))
            },
        )
    }
}

/// Reference-counted numbers for names.
#[derive(Debug, Default)]
pub(super) struct Names {
    numbers: FxHashMap<Arc<str>, u32>,
    names: Vec<(Arc<str>, u32)>,
    unused: Vec<u32>,
}

impl Names {
    /// The number of a name, if any.
    pub(super) fn number(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// Returns the number of a name, creating it if needed. The next [`Names::drop_one`] frees it
    /// unless a reference is counted before.
    pub(super) fn intern(&mut self, name: &str) -> u32 {
        if let Some(number) = self.number(name) {
            return number;
        }
        let name: Arc<str> = name.into();
        let entry = (Arc::clone(&name), 0);
        let number = match self.unused.pop() {
            Some(number) => {
                self.names[number as usize] = entry;
                number
            }
            None => {
                self.names.push(entry);
                (self.names.len() - 1) as u32
            }
        };
        self.numbers.insert(name, number);
        number
    }

    pub(super) fn name(&self, number: u32) -> &Arc<str> {
        &self.names[number as usize].0
    }

    pub(super) fn count_one(&mut self, number: u32) {
        self.names[number as usize].1 += 1;
    }

    pub(super) fn drop_one(&mut self, number: u32) {
        let (name, count) = &mut self.names[number as usize];
        *count -= 1;
        if *count == 0 {
            self.numbers.remove(name);
            *name = "".into();
            self.unused.push(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_twelve_octets() {
        assert_eq!(size_of::<Row>(), 12);
    }

    #[test]
    fn pages_exist_only_while_needed() {
        let mut rows = Rows::new(1000);
        let row = Row { namespace: 7, mac: [2; 6], state: State::InUse };
        for index in [0, 255, 256, 999] {
            rows.set(index, row);
        }
        assert_eq!(rows.iter().collect::<Vec<_>>(), [(0, row), (255, row), (256, row), (999, row)]);
        rows.set(256, Row::default());
        assert!(rows.0[1].is_none());
        assert_eq!(rows.get(256), Row::default());
        rows.set(255, Row::default());
        assert_eq!(rows.get(0), row);
    }

    #[test]
    fn names_without_rows_are_forgotten() {
        let mut names = Names::default();
        let a = names.intern("a");
        names.count_one(a);
        names.count_one(a);
        let b = names.intern("b");
        names.count_one(b);
        names.drop_one(a);
        assert_eq!(names.number("a"), Some(a));
        names.drop_one(a);
        assert_eq!(names.number("a"), None);
        assert_eq!(names.intern("c"), a, "its number is used again");
        assert_eq!(&**names.name(b), "b");
    }
}
