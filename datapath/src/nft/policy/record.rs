//! The record of the kernel's table: names, counters and links, without elements and rules.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::family::IpFamily;
use crate::plan::policy::{
    ChainId, CounterId, LinkPolicies, PolicyChain, PolicySet, PolicySetKind, PolicyTable, SetId,
};

/// The properties of a set on which rules depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) kind: PolicySetKind,
    /// Whether the set can have elements of IPv4 and of IPv6.
    families: [bool; 2],
}

/// The shape of a set. A set of ranges never changes, so an empty family of it stays empty.
pub(super) fn shape(set: &PolicySet) -> Shape {
    let families = IpFamily::ALL.map(|family| {
        let is_v4 = family == IpFamily::V4;
        set.kind != PolicySetKind::Ranges || set.elements.iter().any(|element| element.is_ipv4() == is_v4)
    });
    Shape { kind: set.kind, families }
}

/// The shapes of all sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shapes(FxHashMap<SetId, Shape>);

impl Shapes {
    /// Whether a set can have elements of a family. The kernel refuses rules with an unknown set.
    pub(super) fn allow(&self, set: SetId, family: IpFamily) -> bool {
        let index = usize::from(family == IpFamily::V6);
        self.0.get(&set).is_none_or(|shape| shape.families[index])
    }

    pub(super) fn get(&self, set: SetId) -> Option<Shape> {
        self.0.get(&set).copied()
    }

    pub(super) fn insert(&mut self, set: SetId, shape: Shape) {
        self.0.insert(set, shape);
    }

    pub(super) fn remove(&mut self, set: SetId) {
        self.0.remove(&set);
    }
}

impl FromIterator<(SetId, Shape)> for Shapes {
    fn from_iter<I: IntoIterator<Item = (SetId, Shape)>>(shapes: I) -> Shapes {
        Shapes(shapes.into_iter().collect())
    }
}

/// The counters of a chain's rules.
pub(super) fn counters_of(chain: &PolicyChain) -> BTreeSet<CounterId> {
    chain.rules.iter().filter_map(|rule| rule.counter).collect()
}

/// The record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// Whether the kernel has the table. It has none while there is no set, chain or link.
    pub(super) exists: bool,
    pub(super) shapes: Shapes,
    pub(super) links: BTreeMap<u32, LinkPolicies>,
    /// The counters of each chain.
    chains: FxHashMap<ChainId, BTreeSet<CounterId>>,
    /// The number of chains with each counter.
    counters: FxHashMap<CounterId, usize>,
}

impl Record {
    pub(super) fn of(table: &PolicyTable) -> Record {
        let mut record = Record {
            exists: !table.is_empty(),
            shapes: table.sets.iter().map(|(id, set)| (*id, shape(set))).collect(),
            links: table.links.clone(),
            ..Record::default()
        };
        for (id, chain) in &table.chains {
            record.insert_chain(*id, chain);
        }
        record
    }

    pub(super) fn has_chain(&self, chain: ChainId) -> bool {
        self.chains.contains_key(&chain)
    }

    /// Whether a rule uses a counter.
    pub(super) fn has_counter(&self, counter: CounterId) -> bool {
        self.counters.contains_key(&counter)
    }

    /// The counters of a chain's rules; none of an unknown chain.
    pub(super) fn chain_counters(&self, chain: ChainId) -> impl Iterator<Item = CounterId> {
        self.chains.get(&chain).into_iter().flatten().copied()
    }

    /// Adds or replaces a chain.
    pub(super) fn insert_chain(&mut self, id: ChainId, chain: &PolicyChain) {
        let counters = counters_of(chain);
        for counter in &counters {
            *self.counters.entry(*counter).or_default() += 1;
        }
        if let Some(before) = self.chains.insert(id, counters) {
            self.release(&before);
        }
    }

    pub(super) fn remove_chain(&mut self, id: ChainId) {
        if let Some(counters) = self.chains.remove(&id) {
            self.release(&counters);
        }
    }

    fn release(&mut self, counters: &BTreeSet<CounterId>) {
        for counter in counters {
            if let Some(number) = self.counters.get_mut(counter) {
                *number -= 1;
                if *number == 0 {
                    self.counters.remove(counter);
                }
            }
        }
    }

    /// Whether there is no set, chain or link.
    pub(super) fn is_empty(&self) -> bool {
        self.shapes.0.is_empty() && self.chains.is_empty() && self.links.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::policy::{Direction, Element, PolicyRule, PortMatch, Verdict};

    fn chain(counters: &[u64]) -> PolicyChain {
        let rule = |counter: &u64| PolicyRule {
            peers: None,
            ports: PortMatch::Any,
            verdict: Verdict::Accept,
            counter: Some(CounterId::from(*counter)),
            logged: false,
        };
        PolicyChain { direction: Direction::Ingress, rules: counters.iter().map(rule).collect() }
    }

    #[test]
    fn a_counter_stays_while_a_chain_has_it() {
        let (one, two) = (ChainId::from(1), ChainId::from(2));
        let has = |record: &Record| [7, 8, 9].map(|counter| record.has_counter(CounterId::from(counter)));
        let mut record = Record::default();
        record.insert_chain(one, &chain(&[7, 7, 8]));
        record.insert_chain(two, &chain(&[8]));
        assert_eq!(has(&record), [true, true, false]);
        assert_eq!(record.chain_counters(one).count(), 2);
        record.insert_chain(one, &chain(&[9]));
        assert_eq!(has(&record), [false, true, true]);
        record.remove_chain(two);
        assert_eq!(has(&record), [false, false, true]);
        record.insert_chain(one, &chain(&[9]));
        assert_eq!(has(&record), [false, false, true]);
        record.remove_chain(one);
        assert!(record.is_empty() && record.counters.is_empty());
    }

    #[test]
    fn only_a_set_of_ranges_is_empty_for_ever() {
        let element = Element::Range("10.0.0.0".parse().unwrap(), "10.0.0.255".parse().unwrap());
        let ranges = PolicySet { kind: PolicySetKind::Ranges, elements: [element].into() };
        let addresses = PolicySet { kind: PolicySetKind::Addresses, elements: BTreeSet::new() };
        let shapes: Shapes =
            [(SetId::from(1), shape(&ranges)), (SetId::from(2), shape(&addresses))].into_iter().collect();
        let allowed = |set: u64| IpFamily::ALL.map(|family| shapes.allow(SetId::from(set), family));
        assert_eq!([allowed(1), allowed(2), allowed(3)], [[true, false], [true; 2], [true; 2]]);
    }
}
