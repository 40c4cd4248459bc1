//! The record of the kernel's table: names, counters and links, without elements and rules.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use rustc_hash::FxHashMap;

use crate::family::IpFamily;
use crate::plan::policy::{
    ChainId, CounterId, Element, LinkPolicies, PolicyChain, PolicySet, PolicySetKind, PolicyTable, SetId,
};

/// The IP families of addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Families {
    v4: bool,
    v6: bool,
}

impl Families {
    /// The families of elements.
    pub(super) fn of<'a>(elements: impl IntoIterator<Item = &'a Element>) -> Families {
        let mut families = Families::default();
        for address in elements.into_iter().filter_map(Element::address) {
            match address.is_ipv4() {
                true => families.v4 = true,
                false => families.v6 = true,
            }
        }
        families
    }

    fn has(self, family: IpFamily) -> bool {
        match family {
            IpFamily::V4 => self.v4,
            IpFamily::V6 => self.v6,
        }
    }

    fn and(self, other: Families) -> Families {
        Families { v4: self.v4 || other.v4, v6: self.v6 || other.v6 }
    }
}

/// The properties of a set on which rules depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) kind: PolicySetKind,
    families: Families,
}

/// The shape of a set.
pub(super) fn shape(set: &PolicySet) -> Shape {
    Shape { kind: set.kind, families: Families::of(&set.elements) }
}

/// The shapes of all sets.
///
/// A rule has no kernel rule for a family in which its sets have no elements. A constant set never
/// changes, so an empty family of it stays empty. Sets of pods change, and all of them together
/// have the families of the cluster's pods: one, in most clusters. Half of the kernel rules are
/// half of the work for the first packet of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shapes {
    sets: FxHashMap<SetId, Shape>,
    /// The families of all elements that sets of pods have had.
    pods: Families,
}

impl Shapes {
    /// Whether a set can have elements of a family. The kernel refuses rules with an unknown set.
    pub(super) fn allow(&self, set: SetId, family: IpFamily) -> bool {
        self.sets.get(&set).is_none_or(|shape| {
            let families = if shape.kind.is_constant() { shape.families } else { self.pods };
            families.has(family)
        })
    }

    /// Whether rules for these families of pods exist.
    pub(super) fn have(&self, families: Families) -> bool {
        self.pods.and(families) == self.pods
    }

    /// Notes new elements of sets of pods.
    pub(super) fn note(&mut self, families: Families) {
        self.pods = self.pods.and(families);
    }

    pub(super) fn get(&self, set: SetId) -> Option<Shape> {
        self.sets.get(&set).copied()
    }

    pub(super) fn insert(&mut self, set: SetId, shape: Shape) {
        if !shape.kind.is_constant() {
            self.note(shape.families);
        }
        self.sets.insert(set, shape);
    }

    pub(super) fn remove(&mut self, set: SetId) -> Option<Shape> {
        self.sets.remove(&set)
    }
}

impl FromIterator<(SetId, Shape)> for Shapes {
    fn from_iter<I: IntoIterator<Item = (SetId, Shape)>>(shapes: I) -> Shapes {
        let mut all = Shapes::default();
        shapes.into_iter().for_each(|(set, shape)| all.insert(set, shape));
        all
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
    pub(super) addresses: BTreeMap<u32, BTreeSet<IpAddr>>,
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
            addresses: table.addresses.clone(),
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

    pub(super) fn has_chains(&self) -> bool {
        !self.chains.is_empty()
    }

    /// Whether there is no set, chain or link.
    pub(super) fn is_empty(&self) -> bool {
        self.shapes.sets.is_empty() && self.chains.is_empty() && self.links.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::policy::{Direction, PolicyRule, PortMatch, Verdict};

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
    fn sets_of_pods_have_the_families_of_all_pods() {
        let address = |text: &str| Element::Address(text.parse().unwrap());
        let set = |kind, elements: &[Element]| {
            shape(&PolicySet { kind, elements: elements.iter().copied().collect() })
        };
        let ranges = Element::Range("fd00::".parse().unwrap(), "fd00::ff".parse().unwrap());
        let mut shapes: Shapes = [
            (SetId::from(1), set(PolicySetKind::Ranges, &[ranges])),
            (SetId::from(2), set(PolicySetKind::Addresses, &[address("10.0.0.1")])),
            (SetId::from(3), set(PolicySetKind::Ports, &[])),
        ]
        .into_iter()
        .collect();
        let allowed =
            |shapes: &Shapes, set: u64| IpFamily::ALL.map(|family| shapes.allow(SetId::from(set), family));
        let all = |shapes: &Shapes| [1, 2, 3, 4].map(|set| allowed(shapes, set));
        assert_eq!(all(&shapes), [[false, true], [true, false], [true, false], [true; 2]]);
        let both = Families::of(&[address("10.0.0.1"), address("fd00::1")]);
        assert!(!shapes.have(both) && shapes.have(Families::default()));
        shapes.insert(SetId::from(5), set(PolicySetKind::Addresses, &[address("fd00::1")]));
        shapes.remove(SetId::from(5));
        assert_eq!(all(&shapes), [[false, true], [true; 2], [true; 2], [true; 2]]);
        assert!(shapes.have(both));
    }
}
