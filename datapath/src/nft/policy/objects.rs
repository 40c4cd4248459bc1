//! Names and layouts of sets, and the encoding of their elements.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::expressions::{read_jump, write_jump};
use crate::family::IpFamily;
use crate::netlink::netfilter::{NESTED, attribute, nested, number, number_of, octets};
use crate::plan::policy::{ChainId, CounterId, Direction, Element, PolicySetKind, SetId};

/// The limit of reported packets.
pub(super) const LIMIT_NAME: &str = "logged";
/// Pairs of links of one pod.
pub(super) const SAME_POD: &str = "same_pod";

// NFT_SET_INTERVAL, NFT_SET_MAP
const INTERVAL: u32 = 4;
const MAP: u32 = 8;
// Types of `nft`: enum datatypes in its source. A concatenation has six bits for each type.
const IPV4_ADDRESS: u32 = 7;
const IPV6_ADDRESS: u32 = 8;
const PROTOCOL: u32 = 12;
const PORT: u32 = 13;
const LINK: u32 = 20;
// Byte orders of `nft`: enum byteorder.
const MIXED_ORDER: u32 = 0;
const HOST_ORDER: u32 = 1;
const NETWORK_ORDER: u32 = 2;

// NFTA_LIST_ELEM, NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_FLAGS, NFTA_DATA_VALUE
const ELEMENT: u16 = 1;
const KEY: u16 = 1;
const DATA: u16 = 2;
const FLAGS: u16 = 3;
const VALUE: u16 = 1;
/// `NFT_SET_ELEM_INTERVAL_END`.
const INTERVAL_END: u32 = 1;

/// The kernel's sets of a set of policies: one for each family, or one for both.
pub(super) fn families(kind: PolicySetKind) -> &'static [Option<IpFamily>] {
    match kind {
        PolicySetKind::Addresses | PolicySetKind::Ranges | PolicySetKind::Ports => {
            &[Some(IpFamily::V4), Some(IpFamily::V6)]
        }
        PolicySetKind::PortRanges => &[None],
    }
}

/// The name of a set of policies. None: the set is for both families.
pub(super) fn set_name(set: SetId, family: Option<IpFamily>) -> String {
    let end = match family {
        Some(IpFamily::V4) => '4',
        Some(IpFamily::V6) => '6',
        None => 'p',
    };
    format!("s{set}{end}")
}

/// The set of the plan to which a set of the kernel belongs.
pub(super) fn read_set_name(name: &str) -> Option<SetId> {
    let digits = name.strip_prefix('s')?.strip_suffix(['4', '6', 'p'])?;
    read_number(digits).map(SetId::from)
}

/// The number of a chain of policies.
pub(super) fn read_chain_name(name: &str) -> Option<ChainId> {
    read_number(name.strip_prefix('c')?).map(ChainId::from)
}

fn read_number(digits: &str) -> Option<u64> {
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok())?
}

/// The name of a counter. The syntax of `nft` does not accept a name that begins with a digit.
pub(super) fn counter_name(counter: CounterId) -> String {
    format!("p{counter}")
}

/// The number of a counter.
pub(super) fn read_counter_name(name: &str) -> Option<CounterId> {
    read_number(name.strip_prefix('p')?).map(CounterId::from)
}

/// The map with the links of a direction.
pub(super) fn map_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Egress => "from_pods",
        Direction::Ingress => "to_pods",
    }
}

/// The chain of a link in a direction.
pub(super) fn link_chain(ifindex: u32, direction: Direction) -> String {
    match direction {
        Direction::Egress => format!("from_{ifindex}"),
        Direction::Ingress => format!("to_{ifindex}"),
    }
}

/// The properties of a set that never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) flags: u32,
    pub(super) key_type: u32,
    pub(super) key_length: u32,
    /// For the listing of `nft` only.
    pub(super) byte_order: u32,
}

impl Layout {
    /// The set `same_pod`.
    pub(super) const PAIRS: Layout =
        Layout { flags: 0, key_type: LINK << 6 | LINK, key_length: 8, byte_order: MIXED_ORDER };
    /// The maps of links.
    pub(super) const LINKS: Layout =
        Layout { flags: MAP, key_type: LINK, key_length: 4, byte_order: HOST_ORDER };

    /// Links with an address of a family.
    pub(super) const fn on_link(family: IpFamily) -> Layout {
        let (address, length) = address_of(family);
        Layout { flags: 0, key_type: LINK << 6 | address, key_length: 4 + length, byte_order: MIXED_ORDER }
    }

    /// The map of addresses of a family.
    pub(super) const fn destinations(family: IpFamily) -> Layout {
        let (key_type, key_length) = address_of(family);
        Layout { flags: MAP, key_type, key_length, byte_order: NETWORK_ORDER }
    }

    /// A set of policies.
    pub(super) fn of(kind: PolicySetKind, family: Option<IpFamily>) -> Layout {
        let (address, length) = address_of(family.unwrap_or(IpFamily::V4));
        let addresses = Layout { flags: 0, key_type: address, key_length: length, byte_order: NETWORK_ORDER };
        match kind {
            PolicySetKind::Addresses => addresses,
            PolicySetKind::Ranges => Layout { flags: INTERVAL, ..addresses },
            PolicySetKind::Ports => Layout {
                flags: 0,
                key_type: (address << 6 | PROTOCOL) << 6 | PORT,
                key_length: length + 8,
                byte_order: MIXED_ORDER,
            },
            PolicySetKind::PortRanges => {
                Layout { flags: INTERVAL, key_type: PORT, key_length: 2, byte_order: NETWORK_ORDER }
            }
        }
    }

    pub(super) fn is_map(&self) -> bool {
        self.flags & MAP != 0
    }

    pub(super) fn is_interval(&self) -> bool {
        self.flags & INTERVAL != 0
    }
}

/// Type and length of an address.
const fn address_of(family: IpFamily) -> (u32, u32) {
    match family {
        IpFamily::V4 => (IPV4_ADDRESS, 4),
        IpFamily::V6 => (IPV6_ADDRESS, 16),
    }
}

/// The longest key: IPv6 address, protocol and port.
const LONGEST: usize = 24;

/// The key of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Key {
    octets: [u8; LONGEST],
    length: u8,
}

impl Key {
    fn new(parts: &[&[u8]]) -> Key {
        let mut key = Key { octets: [0; LONGEST], length: 0 };
        for part in parts {
            let start = usize::from(key.length);
            key.octets[start..start + part.len()].copy_from_slice(part);
            // Each part of a concatenation begins at a register.
            let length = if parts.len() > 1 { part.len().next_multiple_of(4) } else { part.len() };
            key.length += length as u8;
        }
        key
    }

    fn octets(&self) -> &[u8] {
        &self.octets[..usize::from(self.length)]
    }
}

/// An element of a set in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Entry {
    key: Key,
    /// The range that begins at the entry before ends before this key.
    ends: bool,
    /// In a map: the chain of the jump.
    chain: Option<String>,
}

impl Entry {
    /// A link in a map.
    pub(super) fn link(ifindex: u32, direction: Direction) -> Entry {
        let chain = Some(link_chain(ifindex, direction));
        Entry { key: Key::new(&[&ifindex.to_ne_bytes()]), ends: false, chain }
    }

    /// A pair of links of one pod.
    pub(super) fn pair(input: u32, output: u32) -> Entry {
        Entry::with_key(&[&input.to_ne_bytes(), &output.to_ne_bytes()])
    }

    /// A link with one of its addresses.
    pub(super) fn on_link(ifindex: u32, address: IpAddr) -> Entry {
        match address {
            IpAddr::V4(address) => Entry::with_key(&[&ifindex.to_ne_bytes(), &address.octets()]),
            IpAddr::V6(address) => Entry::with_key(&[&ifindex.to_ne_bytes(), &address.octets()]),
        }
    }

    /// An address in a map: it leads to the chain for packets to a link.
    pub(super) fn destination(address: IpAddr, ifindex: u32) -> Entry {
        let entry = match address {
            IpAddr::V4(address) => Entry::with_key(&[&address.octets()]),
            IpAddr::V6(address) => Entry::with_key(&[&address.octets()]),
        };
        Entry { chain: Some(link_chain(ifindex, Direction::Ingress)), ..entry }
    }

    fn with_key(parts: &[&[u8]]) -> Entry {
        Entry { key: Key::new(parts), ends: false, chain: None }
    }

    /// The end of a range: the key after its last.
    fn end(key: &[u8]) -> Entry {
        Entry { ends: true, ..Entry::with_key(&[key]) }
    }

    pub(super) fn write(&self, list: &mut Vec<u8>) {
        attribute(list, ELEMENT | NESTED, |element| {
            if self.ends {
                number(element, FLAGS, INTERVAL_END);
            }
            attribute(element, KEY | NESTED, |key| octets(key, VALUE, self.key.octets()));
            if let Some(chain) = &self.chain {
                attribute(element, DATA | NESTED, |data| write_jump(data, chain));
            }
        });
    }

    /// The entries of a list (`NFTA_SET_ELEM_LIST_ELEMENTS`).
    pub(super) fn read_list(list: &[u8]) -> impl Iterator<Item = Entry> {
        nested(list, ELEMENT).filter_map(|element| {
            let key = nested(element, KEY).flat_map(|key| nested(key, VALUE)).next()?;
            let key = (key.len() <= LONGEST).then(|| Key::new(&[key]))?;
            let ends = number_of(element, FLAGS).is_some_and(|flags| flags & INTERVAL_END != 0);
            // An element with another verdict than a jump is never equal to a wanted one.
            let chain = |data| read_jump(data).unwrap_or_default().to_owned();
            Some(Entry { key, ends, chain: nested(element, DATA).next().map(chain) })
        })
    }
}

/// The kernel's elements of a set, by [family](families). Each range comes before the next.
pub(super) fn entries<'a>(
    elements: impl IntoIterator<Item = &'a Element>,
) -> BTreeMap<Option<IpFamily>, Vec<Entry>> {
    let mut entries: BTreeMap<Option<IpFamily>, Vec<Entry>> = BTreeMap::new();
    for element in elements {
        let family = element.address().map(|address| match address {
            IpAddr::V4(_) => IpFamily::V4,
            IpAddr::V6(_) => IpFamily::V6,
        });
        let of_family = entries.entry(family).or_default();
        match element {
            Element::Address(address) => {
                with_octets(*address, |octets| of_family.push(Entry::with_key(&[octets])));
            }
            Element::Port(address, protocol, port) => with_octets(*address, |octets| {
                of_family.push(Entry::with_key(&[octets, &[protocol.number()], &port.to_be_bytes()]));
            }),
            Element::Range(first, last) => {
                with_octets(*first, |octets| of_family.push(Entry::with_key(&[octets])));
                // A range to the last address of the family has no end.
                if let Some(after) = next(*last) {
                    with_octets(after, |octets| of_family.push(Entry::end(octets)));
                }
            }
            Element::PortRange(first, last) => {
                of_family.push(Entry::with_key(&[&first.to_be_bytes()]));
                if let Some(after) = last.checked_add(1) {
                    of_family.push(Entry::end(&after.to_be_bytes()));
                }
            }
        }
    }
    entries
}

/// The entries that are only in `wanted`, and those that are only in `found`.
pub(super) fn differences(wanted: &[Entry], found: &[Entry]) -> (Vec<Entry>, Vec<Entry>) {
    let of = |entries: &[Entry], others: &[Entry]| -> Vec<Entry> {
        let others: BTreeSet<&Entry> = others.iter().collect();
        entries.iter().filter(|entry| !others.contains(entry)).cloned().collect()
    };
    (of(wanted, found), of(found, wanted))
}

fn with_octets(address: IpAddr, each: impl FnOnce(&[u8])) {
    match address {
        IpAddr::V4(address) => each(&address.octets()),
        IpAddr::V6(address) => each(&address.octets()),
    }
}

/// The address after this one. None after the last address.
fn next(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => Some(IpAddr::V4(u32::from(address).checked_add(1)?.into())),
        IpAddr::V6(address) => Some(IpAddr::V6(u128::from(address).checked_add(1)?.into())),
    }
}

#[cfg(test)]
mod tests {
    use trunkline_api::service::Protocol;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn keys_have_the_layout_of_nft() {
        let port = |text| Element::Port(address(text), Protocol::Tcp, 80);
        let found = entries(&[port("10.0.0.1"), port("fd00::1")]);
        assert_eq!(found[&Some(IpFamily::V4)][0].key.octets(), [10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0]);
        let v6 = found[&Some(IpFamily::V6)][0].key;
        assert_eq!((v6.octets().len(), &v6.octets()[15..]), (24, &[1, 6, 0, 0, 0, 0, 80, 0, 0][..]));
        assert_eq!(Layout::of(PolicySetKind::Ports, Some(IpFamily::V4)).key_type, 0x730d);
        assert_eq!(Layout::of(PolicySetKind::Ports, Some(IpFamily::V6)).key_type, 0x830d);
        assert_eq!(Layout::PAIRS.key_type, 0x514);
    }

    #[test]
    fn a_range_to_the_last_address_has_no_end() {
        let range = |first, last| Element::Range(address(first), address(last));
        let ends = |elements: &[Element], family| -> Vec<bool> {
            entries(elements)
                .remove(&Some(family))
                .unwrap_or_default()
                .iter()
                .map(|entry| entry.ends)
                .collect()
        };
        let ports = |last| entries(&[Element::PortRange(80, last)])[&None].len();
        assert_eq!((ports(81), ports(u16::MAX)), (2, 1));
        let ranges = [range("10.0.0.0", "10.0.0.255"), range("250.0.0.0", "255.255.255.255")];
        assert_eq!(ends(&ranges, IpFamily::V4), [false, true, false]);
        let all =
            [range("0.0.0.0", "255.255.255.255"), range("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")];
        assert_eq!(ends(&all, IpFamily::V4), [false]);
        assert_eq!(ends(&all, IpFamily::V6), [false]);
        assert_eq!(ends(&ranges, IpFamily::V6), [false; 0]);
    }

    #[test]
    fn written_entries_are_read_back() {
        let range = Element::Range(address("10.0.0.0"), address("10.0.0.255"));
        let mut all = entries(&[range]).remove(&Some(IpFamily::V4)).unwrap();
        all.extend([Entry::link(7, Direction::Egress), Entry::pair(7, 9)]);
        all.extend(entries(&[Element::PortRange(80, 90)]).remove(&None).unwrap());
        let mut list = Vec::new();
        all.iter().for_each(|entry| entry.write(&mut list));
        assert_eq!(Entry::read_list(&list).collect::<Vec<_>>(), all);
        for length in 0..list.len() {
            assert!(Entry::read_list(&list[..length]).count() <= all.len(), "{length}");
        }
        let (missing, surplus) = differences(&all[..2], &all[1..]);
        assert_eq!((missing.as_slice(), surplus.as_slice()), (&all[..1], &all[2..]));
    }

    #[test]
    fn names_of_sets_and_chains_are_read_back() {
        let set = SetId::from(0x1234);
        for family in [Some(IpFamily::V4), Some(IpFamily::V6), None] {
            assert_eq!(read_set_name(&set_name(set, family)), Some(set));
        }
        let chain = ChainId::from(0x1234);
        assert_eq!(read_chain_name(&super::super::expressions::chain_name(chain)), Some(chain));
        for foreign in ["from_7", "s0000000000012344", "same_pod", "c12", "s", ""] {
            assert_eq!((read_set_name(foreign), read_chain_name(foreign)), (None, None), "{foreign}");
        }
    }

    #[test]
    fn only_sixteen_digits_are_a_counter() {
        let id = CounterId::from(0x1234);
        assert_eq!(read_counter_name(&counter_name(id)), Some(id));
        for foreign in ["p12", "0000000000001234", "p000000000000123g", ""] {
            assert_eq!(read_counter_name(foreign), None, "{foreign}");
        }
    }
}
