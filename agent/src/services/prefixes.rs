//! Prefixes of service addresses: addresses and their advertisements become originations.
//!
//! Each advertisement of an address gives a prefix: the address itself, or a shorter one that
//! several addresses share. [`PrefixTable`] counts what its members contribute, so a change of one
//! address costs the same however many share its prefix. [`originations`] computes everything anew;
//! a test compares both.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use smallvec::SmallVec;
use trunkline_bgp::rib::Origination;
use trunkline_bgp::types::{Community, LinkBandwidth, Tag, Tags};

/// Octets per second for each local endpoint: 1 Gbit/s. The wire has 24 significant bits, so the
/// ratio of two nodes is exact up to 0.00001 %.
const ENDPOINT: u64 = 125_000_000;
/// Octets per second of a node that has no local endpoint and still forwards: 1 % of an endpoint.
/// Without any link bandwidth, routers would ignore that of the other nodes.
const NO_ENDPOINT: u64 = ENDPOINT / 100;

/// The link bandwidth of a node with this number of ready endpoints.
pub(super) fn link_bandwidth(local_ready: u32) -> LinkBandwidth {
    LinkBandwidth(match local_ready {
        0 => NO_ENDPOINT,
        endpoints => u64::from(endpoints) * ENDPOINT,
    })
}

/// An advertised address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AddressState {
    /// The prefixes of its advertisements.
    pub(super) prefixes: SmallVec<[AddressPrefix; 1]>,
    /// Whether it will be withdrawn, and has GRACEFUL_SHUTDOWN (RFC 8326).
    pub(super) shutting_down: bool,
}

/// The prefix of an address in one advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressPrefix {
    /// The prefix.
    pub(super) prefix: IpNet,
    /// The advertisement's tag; none for the default advertisement.
    pub(super) tag: Option<Tag>,
    /// Ready endpoints on this node, if the advertisement has weights.
    pub(super) weight: Option<u32>,
}

/// The originations of these addresses.
#[cfg(test)]
pub(super) fn originations(addresses: &BTreeMap<IpAddr, AddressState>) -> BTreeMap<IpNet, Origination> {
    let mut members: BTreeMap<IpNet, Vec<(&AddressState, AddressPrefix)>> = BTreeMap::new();
    for state in addresses.values() {
        for of in &state.prefixes {
            members.entry(of.prefix).or_default().push((state, *of));
        }
    }
    let origination = |members: Vec<(&AddressState, AddressPrefix)>| {
        let shutting_down = members.iter().all(|(state, _)| state.shutting_down);
        let bandwidth = members.iter().filter_map(|(_, of)| of.weight).max().map(link_bandwidth);
        Origination {
            communities: shutting_down.then_some(Community::GRACEFUL_SHUTDOWN).into_iter().collect(),
            link_bandwidth: bandwidth,
            tags: tags(members.iter().filter_map(|(_, of)| of.tag)),
            ..Origination::default()
        }
    };
    members.into_iter().map(|(prefix, members)| (prefix, origination(members))).collect()
}

/// Tags in any order. A prefix has at most [`Tags::MAX`]; more advertisements have no effect.
fn tags(tags: impl Iterator<Item = Tag>) -> Tags {
    let distinct: std::collections::BTreeSet<Tag> = tags.collect();
    Tags::new(distinct.into_iter().take(Tags::MAX)).unwrap_or_default()
}

/// The prefixes and what their addresses contribute.
#[derive(Debug, Default)]
pub(super) struct PrefixTable {
    addresses: BTreeMap<IpAddr, AddressState>,
    prefixes: BTreeMap<IpNet, Prefix>,
}

/// The sums of a prefix over its addresses.
#[derive(Debug, Default)]
struct Prefix {
    members: u32,
    shutting_down: u32,
    /// Addresses by tag.
    tags: SmallVec<[(Tag, u32); 2]>,
    /// Addresses by weight.
    weights: SmallVec<[(u32, u32); 1]>,
}

/// A change of a prefix: its new origination, or none.
pub(super) type PrefixChange = (IpNet, Option<Origination>);

impl PrefixTable {
    /// Sets or removes an address. Returns the prefixes that change.
    pub(super) fn set(&mut self, address: IpAddr, state: Option<AddressState>) -> Vec<PrefixChange> {
        let before = match &state {
            Some(state) => self.addresses.insert(address, state.clone()),
            None => self.addresses.remove(&address),
        };
        if before == state {
            return Vec::new();
        }
        let of_states = [&before, &state].into_iter().flatten().flat_map(|state| &state.prefixes);
        let mut touched: SmallVec<[IpNet; 2]> = of_states.map(|of| of.prefix).collect();
        touched.sort_unstable();
        touched.dedup();
        // The sums define the origination, so no prefix keeps it.
        let originations: SmallVec<[Option<Origination>; 2]> =
            touched.iter().map(|prefix| self.origination(prefix)).collect();
        for (state, add) in [(before, false), (state, true)] {
            let Some(state) = state else { continue };
            for of in &state.prefixes {
                self.prefixes.entry(of.prefix).or_default().count(&state, of, add);
            }
        }
        let changes = touched.into_iter().zip(originations).filter_map(|(prefix, before)| {
            let now = self.origination(&prefix);
            if now.is_none() {
                self.prefixes.remove(&prefix);
            }
            (now != before).then_some((prefix, now))
        });
        changes.collect()
    }

    /// Gives the tables full nodes: half of the memory of nodes that have grown.
    pub(super) fn compact(&mut self) {
        self.addresses = std::mem::take(&mut self.addresses).into_iter().collect();
        self.prefixes = std::mem::take(&mut self.prefixes).into_iter().collect();
    }

    /// The advertised state of an address.
    pub(super) fn get(&self, address: &IpAddr) -> Option<&AddressState> {
        self.addresses.get(address)
    }

    /// The origination of a prefix.
    pub(super) fn origination(&self, prefix: &IpNet) -> Option<Origination> {
        self.prefixes.get(prefix).filter(|of| of.members > 0).map(Prefix::originate)
    }

    /// All originations.
    #[cfg(test)]
    pub(super) fn all(&self) -> BTreeMap<IpNet, Origination> {
        let all = self.prefixes.iter();
        all.map(|(prefix, of)| (*prefix, of.originate())).collect()
    }
}

impl Prefix {
    /// Adds or removes what an address contributes.
    fn count(&mut self, state: &AddressState, of: &AddressPrefix, add: bool) {
        let step = |number: &mut u32| *number = if add { *number + 1 } else { number.saturating_sub(1) };
        step(&mut self.members);
        if state.shutting_down {
            step(&mut self.shutting_down);
        }
        if let Some(tag) = of.tag {
            count(&mut self.tags, tag, add);
        }
        if let Some(weight) = of.weight {
            count(&mut self.weights, weight, add);
        }
    }

    fn originate(&self) -> Origination {
        let shutting_down = self.shutting_down == self.members;
        Origination {
            communities: shutting_down.then_some(Community::GRACEFUL_SHUTDOWN).into_iter().collect(),
            link_bandwidth: self.weights.iter().map(|(weight, _)| *weight).max().map(link_bandwidth),
            tags: tags(self.tags.iter().map(|(tag, _)| *tag)),
            ..Origination::default()
        }
    }
}

/// Counts a key. A key with the count 0 is removed.
fn count<K: PartialEq, A>(counts: &mut SmallVec<A>, key: K, add: bool)
where
    A: smallvec::Array<Item = (K, u32)>,
{
    match (counts.iter().position(|(of, _)| *of == key), add) {
        (Some(index), true) => counts[index].1 += 1,
        (Some(index), false) if counts[index].1 > 1 => counts[index].1 -= 1,
        (Some(index), false) => drop(counts.remove(index)),
        (None, true) => counts.push((key, 1)),
        (None, false) => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefix(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn state(prefixes: &[(&str, Option<u16>, Option<u32>)], shutting_down: bool) -> AddressState {
        let prefixes = prefixes.iter().map(|(text, tag, weight)| AddressPrefix {
            prefix: prefix(text),
            tag: tag.map(Tag),
            weight: *weight,
        });
        AddressState { prefixes: prefixes.collect(), shutting_down }
    }

    #[test]
    fn an_aggregate_stays_until_its_last_address_leaves() {
        let mut table = PrefixTable::default();
        let member = |shutting| Some(state(&[("10.9.0.0/24", Some(1), None)], shutting));
        let (one, two) = ("10.9.0.1".parse().unwrap(), "10.9.0.2".parse().unwrap());
        assert_eq!(table.set(one, member(false)).len(), 1);
        assert_eq!(table.set(two, member(false)), [], "the prefix exists");
        assert_eq!(table.set(one, member(true)), [], "the other address still needs the packets");
        let changes = table.set(two, member(true));
        let community = |change: &PrefixChange| change.1.clone().map(|origination| origination.communities);
        assert_eq!(community(&changes[0]), Some(vec![Community::GRACEFUL_SHUTDOWN]));
        assert_eq!(table.set(one, None), []);
        assert_eq!(table.set(two, None), [(prefix("10.9.0.0/24"), None)]);
        assert_eq!(table.set(two, None), []);
    }

    #[test]
    fn equal_prefixes_of_several_advertisements_merge() {
        let mut table = PrefixTable::default();
        let address = "10.9.0.1".parse().unwrap();
        let both =
            [("10.9.0.1/32", Some(2), Some(3)), ("10.9.0.1/32", Some(1), None), ("10.9.0.0/24", None, None)];
        let changes = table.set(address, Some(state(&both, false)));
        assert_eq!(changes.len(), 2);
        let host = table.origination(&prefix("10.9.0.1/32")).unwrap();
        assert_eq!(host.tags.as_slice(), [Tag(1), Tag(2)]);
        assert_eq!(host.link_bandwidth, Some(LinkBandwidth(375_000_000)));
        assert_eq!(table.origination(&prefix("10.9.0.0/24")), Some(Origination::default()));
        assert_eq!(table.set(address, Some(state(&both, false))), []);
        assert_eq!(table.set(address, Some(state(&both[..2], false))), [(prefix("10.9.0.0/24"), None)]);
    }

    #[test]
    fn bandwidths_are_proportional_and_never_zero() {
        let on_the_wire = |endpoints| f64::from(link_bandwidth(endpoints).0 as f32);
        for endpoints in [1, 3, 110, 1 << 20] {
            let ratio = on_the_wire(endpoints) / on_the_wire(1) / f64::from(endpoints);
            assert!((ratio - 1.0).abs() < 1e-7, "{endpoints}: {ratio}");
        }
        assert_eq!(link_bandwidth(0), LinkBandwidth(1_250_000));
    }

    #[test]
    fn more_tags_than_possible_are_left_out() {
        let many: Vec<_> = (0..70).map(|tag| ("10.9.0.1/32", Some(tag), None)).collect();
        let address = "10.9.0.1".parse().unwrap();
        let mut table = PrefixTable::default();
        table.set(address, Some(state(&many, false)));
        assert_eq!(table.all(), originations(&[(address, state(&many, false))].into()));
        assert_eq!(table.origination(&prefix("10.9.0.1/32")).unwrap().tags.as_slice().len(), Tags::MAX);
    }

    fn arbitrary_state(address: u8) -> impl Strategy<Value = Option<AddressState>> {
        let of = (
            prop_oneof![Just(32u8), Just(30), Just(24)],
            prop::option::of(1..4u16),
            prop::option::of(0..3u32),
        );
        let state =
            (prop::collection::vec(of, 1..3), any::<bool>()).prop_map(move |(prefixes, shutting_down)| {
                let prefixes = prefixes.into_iter().map(|(length, tag, weight)| AddressPrefix {
                    prefix: IpNet::new([10, 9, 0, address].into(), length).unwrap().trunc(),
                    tag: tag.map(Tag),
                    weight,
                });
                AddressState { prefixes: prefixes.collect(), shutting_down }
            });
        prop::option::weighted(0.7, state)
    }

    proptest! {
        #[test]
        fn increments_equal_a_full_computation(
            steps in prop::collection::vec((0..8u8).prop_flat_map(|n| (Just(n), arbitrary_state(n))), 1..60)
        ) {
            let mut table = PrefixTable::default();
            let mut addresses = BTreeMap::new();
            let mut speaker = BTreeMap::new();
            for (number, state) in steps {
                let address = IpAddr::from([10, 9, 0, number]);
                match state.clone() {
                    Some(state) => drop(addresses.insert(address, state)),
                    None => drop(addresses.remove(&address)),
                }
                for (prefix, origination) in table.set(address, state) {
                    let before = match origination.clone() {
                        Some(origination) => speaker.insert(prefix, origination),
                        None => speaker.remove(&prefix),
                    };
                    prop_assert_ne!(before, origination, "a change without effect");
                }
                prop_assert_eq!(&speaker, &originations(&addresses));
                prop_assert_eq!(&table.all(), &speaker);
            }
        }
    }
}
