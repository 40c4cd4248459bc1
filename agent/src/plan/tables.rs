//! The routing table of a network or of a subnet.
//!
//! The numbers are not stored. The subnet's rule from the last run contains its table, so a restart
//! keeps all tables.

use std::collections::BTreeSet;

use ipnet::IpNet;
use trunkline_datapath::plan::FIRST_TABLE;

use super::Host;

/// The tables of one plan.
pub(super) struct Tables<'a> {
    host: &'a Host,
    given: BTreeSet<u32>,
}

impl<'a> Tables<'a> {
    pub(super) fn of(host: &'a Host) -> Tables<'a> {
        Tables { host, given: BTreeSet::new() }
    }

    /// One table for all of these prefixes: the first table of an existing rule of one of them,
    /// otherwise a new table.
    pub(super) fn shared(&mut self, prefixes: impl IntoIterator<Item = IpNet>) -> u32 {
        let host = self.host;
        let may = |table: &u32| *table >= FIRST_TABLE && !self.given.contains(table);
        let there =
            prefixes.into_iter().find_map(|prefix| host.kernel.tables.get(&prefix).copied().filter(may));
        let table = there.unwrap_or_else(|| self.fresh());
        self.given.insert(table);
        table
    }

    /// A table that no rule uses or used.
    fn fresh(&self) -> u32 {
        let is_taken = |table: &u32| {
            self.given.contains(table)
                || self.host.kernel.used_tables.contains(table)
                || self.host.kernel.tables.values().any(|other| other == table)
        };
        (FIRST_TABLE..).find(|table| !is_taken(table)).unwrap_or(FIRST_TABLE)
    }
}
