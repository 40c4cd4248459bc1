//! Elements of sets in the agent's nftables tables, and the values of named counters, over netlink.
//!
//! This module only adds, deletes and lists elements, and reads counters.
//! `linux/netfilter/nf_tables.h` defines the layouts.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::NLM_F_CREATE;

use crate::netlink::netfilter::{
    Connection, Messages, NESTED, after_header, attribute, nested, octets, text, text_of,
};

const SUBSYSTEM: u16 = libc::NFNL_SUBSYS_NFTABLES as u16;
const NEW_ELEMENTS: u16 = SUBSYSTEM << 8 | libc::NFT_MSG_NEWSETELEM as u16;
const GET_ELEMENTS: u16 = SUBSYSTEM << 8 | libc::NFT_MSG_GETSETELEM as u16;
const DELETE_ELEMENTS: u16 = SUBSYSTEM << 8 | libc::NFT_MSG_DELSETELEM as u16;
const GET_OBJECTS: u16 = SUBSYSTEM << 8 | 19; // NFT_MSG_GETOBJ

// NFTA_SET_ELEM_LIST_…, NFTA_LIST_ELEM, NFTA_SET_ELEM_…, NFTA_DATA_VALUE
const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
const ELEMENT: u16 = 1;
const KEY: u16 = 1;
const KEY_END: u16 = 10;
const VALUE: u16 = 1;
// NFTA_OBJ_…, NFTA_COUNTER_…
const OBJECT_TABLE: u16 = 1;
const OBJECT_NAME: u16 = 2;
const OBJECT_DATA: u16 = 4;
const COUNTER_OCTETS: u16 = 1;
const COUNTER_PACKETS: u16 = 2;

/// Maximum number of elements in one message: an attribute's length has 16 bits.
const ELEMENTS_PER_MESSAGE: usize = 512;

/// A set of one of the agent's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SetName {
    /// `NFPROTO_…` of the table.
    pub(crate) family: i32,
    /// The table.
    pub(crate) table: &'static str,
    /// The set.
    pub(crate) name: &'static str,
}

/// An element: its key, and the last key of its range in a set of intervals. The ifindex is in host
/// byte order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Element {
    key: Vec<u8>,
    end: Option<Vec<u8>>,
}

impl Element {
    /// An element of type `ipv4_addr` or `ipv6_addr`.
    pub(crate) fn address(address: IpAddr) -> Element {
        Element { key: address_octets(address), end: None }
    }

    /// An element of type `iface_index . ipv4_addr` or `iface_index . ipv6_addr`.
    pub(crate) fn on_link(ifindex: u32, address: IpAddr) -> Element {
        Element { key: concatenated(ifindex, address), end: None }
    }

    /// An element of these types, with `flags interval`.
    pub(crate) fn prefix_on_link(ifindex: u32, prefix: IpNet) -> Element {
        let end = concatenated(ifindex, prefix.broadcast());
        Element { key: concatenated(ifindex, prefix.network()), end: Some(end) }
    }
}

/// A named counter.
#[derive(Debug)]
pub(crate) struct Counter {
    pub(crate) name: String,
    pub(crate) packets: u64,
    pub(crate) octets: u64,
}

/// The element in the format of `nft`.
impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ifindex, first) = split(&self.key);
        if let Some(ifindex) = ifindex {
            write!(f, "{ifindex} . ")?;
        }
        write!(f, "{first}")?;
        match self.end.as_deref().map(split) {
            Some((_, last)) if last != first => write!(f, "-{last}"),
            _ => Ok(()),
        }
    }
}

/// The ifindex of a key, if it has one, and its address.
fn split(key: &[u8]) -> (Option<u32>, IpAddr) {
    let (link, address) = match key.len() {
        8 | 20 => key.split_at(4),
        _ => (&[][..], key),
    };
    let address = match (<[u8; 4]>::try_from(address), <[u8; 16]>::try_from(address)) {
        (Ok(octets), _) => IpAddr::from(octets),
        (_, Ok(octets)) => IpAddr::from(octets),
        _ => IpAddr::from([0; 4]), // this module creates no other type of key
    };
    (link.try_into().ok().map(u32::from_ne_bytes), address)
}

fn address_octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn concatenated(ifindex: u32, address: IpAddr) -> Vec<u8> {
    [ifindex.to_ne_bytes().to_vec(), address_octets(address)].concat()
}

impl Connection {
    /// Adds elements. Existing elements stay.
    pub(crate) fn add<'a>(
        &mut self,
        elements: impl IntoIterator<Item = (SetName, &'a Element)>,
    ) -> io::Result<()> {
        self.change_elements(NEW_ELEMENTS, NLM_F_CREATE, elements)
    }

    /// Deletes elements. If one does not exist, the whole transaction fails with `NotFound`.
    pub(crate) fn delete<'a>(
        &mut self,
        elements: impl IntoIterator<Item = (SetName, &'a Element)>,
    ) -> io::Result<()> {
        self.change_elements(DELETE_ELEMENTS, 0, elements)
    }

    fn change_elements<'a>(
        &mut self,
        kind: u16,
        flags: u16,
        elements: impl IntoIterator<Item = (SetName, &'a Element)>,
    ) -> io::Result<()> {
        let mut elements: Vec<(SetName, &Element)> = elements.into_iter().collect();
        if elements.is_empty() {
            return Ok(());
        }
        elements.sort();
        let swaps = match elements.iter().any(|(_, element)| element.end.is_some()) {
            true => self.swaps()?,
            false => false,
        };
        let mut messages = Messages::default();
        for of_set in elements.chunk_by(|a, b| a.0 == b.0) {
            for part in of_set.chunks(ELEMENTS_PER_MESSAGE) {
                let set = part[0].0;
                messages.push(kind, flags, set.family, |message| {
                    list(message, set, part.iter().map(|(_, element)| *element), swaps);
                });
            }
        }
        Ok(self.transact(&messages)?)
    }

    /// Whether the ifindex in a set of intervals must be swapped from host byte order. The kernel
    /// does not interpret these octets. The rule with the look-up determines the order, and it
    /// depends on the version of `nft` that loaded the rule. So this function adds an element with
    /// `nft` and reads it.
    fn swaps(&mut self) -> io::Result<bool> {
        if let Some(known) = self.network_order {
            return Ok(known && cfg!(target_endian = "little"));
        }
        let (family, table, name) = ("inet", "trunkline-order", "links");
        super::run(&format!(
            "add table {family} {table}\n\
             add set {family} {table} {name} {{ type iface_index . ipv4_addr; flags interval; }}\n\
             add element {family} {table} {name} {{ 1 . 192.0.2.1 }}\n"
        ))
        .map_err(io::Error::other)?;
        let found = self.raw_elements(SetName { family: libc::NFPROTO_INET, table, name });
        super::run(&format!("delete table {family} {table}\n")).map_err(io::Error::other)?;
        let key = found?.into_iter().find_map(|element| element.key.first_chunk::<4>().copied());
        let key = key.ok_or_else(|| io::Error::other("nft has added no element"))?;
        self.network_order = Some(key == 1_u32.to_be_bytes());
        self.swaps()
    }

    /// The elements of a set, with the ifindex in host byte order.
    pub(crate) fn elements(&mut self, set: SetName) -> io::Result<BTreeSet<Element>> {
        let found = self.raw_elements(set)?;
        let swaps = found.iter().any(|element| element.end.is_some()) && self.swaps()?;
        let ordered = |Element { key, end }| Element {
            key: on_wire(&key, swaps).into_owned(),
            end: end.map(|end: Vec<u8>| on_wire(&end, swaps).into_owned()),
        };
        Ok(found.into_iter().map(ordered).collect())
    }

    /// The elements of a set, with unchanged octets.
    fn raw_elements(&mut self, set: SetName) -> io::Result<Vec<Element>> {
        let mut found = Vec::new();
        self.dump(
            GET_ELEMENTS,
            set.family,
            |message| list(message, set, std::iter::empty(), false),
            |message| {
                for list in nested(after_header(message), LIST_ELEMENTS) {
                    for element in nested(list, ELEMENT) {
                        let value = |kind| nested(element, kind).flat_map(|data| nested(data, VALUE)).next();
                        if let Some(key) = value(KEY) {
                            found
                                .push(Element { key: key.to_vec(), end: value(KEY_END).map(<[u8]>::to_vec) });
                        }
                    }
                }
            },
        )?;
        Ok(found)
    }

    /// The named counters of a table.
    pub(crate) fn counters(&mut self, family: i32, table: &str) -> io::Result<Vec<Counter>> {
        let mut found = Vec::new();
        self.dump(
            GET_OBJECTS,
            family,
            |message| text(message, OBJECT_TABLE, table),
            |message| {
                let body = after_header(message);
                let data = nested(body, OBJECT_DATA).next().unwrap_or_default();
                let value = |kind| Some(u64::from_be_bytes(nested(data, kind).next()?.try_into().ok()?));
                if let (Some(name), Some(packets), Some(octets)) =
                    (text_of(body, OBJECT_NAME), value(COUNTER_PACKETS), value(COUNTER_OCTETS))
                    && text_of(body, OBJECT_TABLE) == Some(table)
                {
                    found.push(Counter { name: name.to_owned(), packets, octets });
                }
            },
        )?;
        Ok(found)
    }
}

/// A key whose ifindex, if it has one, is in the byte order of the kernel's set.
fn on_wire(key: &[u8], swaps: bool) -> Cow<'_, [u8]> {
    let mut key = Cow::Borrowed(key);
    if swaps && matches!(key.len(), 8 | 20) {
        key.to_mut()[..4].reverse();
    }
    key
}

/// Writes a set and its elements, if there are any. `swaps`: the ifindex of elements with a range
/// is swapped.
fn list<'a>(message: &mut Vec<u8>, set: SetName, elements: impl Iterator<Item = &'a Element>, swaps: bool) {
    text(message, LIST_TABLE, set.table);
    text(message, LIST_SET, set.name);
    let mut elements = elements.peekable();
    if elements.peek().is_none() {
        return;
    }
    attribute(message, LIST_ELEMENTS | NESTED, |list| {
        for element in elements {
            attribute(list, ELEMENT | NESTED, |nested| {
                let mut data = |kind, key: &[u8]| {
                    attribute(nested, kind | NESTED, |data| octets(data, VALUE, key));
                };
                let swaps = swaps && element.end.is_some();
                data(KEY, &on_wire(&element.key, swaps));
                if let Some(end) = &element.end {
                    data(KEY_END, &on_wire(end, swaps));
                }
            });
        }
    });
}
