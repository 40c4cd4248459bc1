//! Which routing table a network or a subnet has.
//!
//! Numbers are not written down anywhere: a subnet's rule of the last life says which table it had, so that a restart moves nothing.

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

    /// One table for all of these prefixes: the first that a rule of one of them leads to, else a new one.
    pub(super) fn shared(&mut self, prefixes: impl IntoIterator<Item = IpNet>) -> u32 {
        let host = self.host;
        let may = |table: &u32| *table >= FIRST_TABLE && !self.given.contains(table);
        let there =
            prefixes.into_iter().find_map(|prefix| host.kernel.tables.get(&prefix).copied().filter(may));
        let table = there.unwrap_or_else(|| self.fresh());
        self.given.insert(table);
        table
    }

    /// One that nobody has or had.
    fn fresh(&self) -> u32 {
        let is_taken = |table: &u32| {
            self.given.contains(table)
                || self.host.kernel.used_tables.contains(table)
                || self.host.kernel.tables.values().any(|other| other == table)
        };
        (FIRST_TABLE..).find(|table| !is_taken(table)).unwrap_or(FIRST_TABLE)
    }
}
