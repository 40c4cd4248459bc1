//! Decoder of kube-proxy's maps in mode nftables: tables, maps and elements.
//!
//! The key of both maps is `address . protocol . port`. nf_tables pads each part to four octets, so
//! a key has 12 or 24 octets. The value of an element does not matter: `service-ips` leads to the
//! chain of a Service, `no-endpoint-services` to a drop or a reject.

use std::net::IpAddr;

use super::AddressPort;
use super::state::{Map, ProxyMessage};
use crate::family::IpFamily;
use crate::netlink::message::values;
use trunkline_api::service::Protocol;

/// kube-proxy's table.
pub(super) const TABLE: &str = "kube-proxy";

// NFTA_TABLE_NAME, NFTA_SET_…, NFTA_SET_ELEM_LIST_…, NFTA_LIST_ELEM, NFTA_SET_ELEM_KEY,
// NFTA_DATA_VALUE
const TABLE_NAME: u16 = 1;
const SET_TABLE: u16 = 1;
const SET_NAME: u16 = 2;
const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
const ELEMENT: u16 = 1;
const KEY: u16 = 1;
const VALUE: u16 = 1;

impl Map {
    pub(super) const ALL: [Map; 2] = [Map::Services, Map::NoEndpoints];

    /// The name of the map in nf_tables.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Map::Services => "service-ips",
            Map::NoEndpoints => "no-endpoint-services",
        }
    }

    fn of(name: &str) -> Option<Map> {
        Map::ALL.into_iter().find(|map| map.name() == name)
    }
}

/// A text attribute without its trailing zero; empty if it is no text.
pub(super) fn text(value: &[u8]) -> &str {
    let octets = value.split(|octet| *octet == 0).next().unwrap_or_default();
    str::from_utf8(octets).unwrap_or_default()
}

/// The value of the first attribute of a kind.
pub(super) fn value(octets: &[u8], kind: u16) -> Option<&[u8]> {
    values(octets).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// A text attribute of a kind.
pub(super) fn text_of(octets: &[u8], kind: u16) -> Option<&str> {
    value(octets, kind).map(text)
}

/// kube-proxy's table is new or deleted.
pub(super) fn table(family: IpFamily, attributes: &[u8], exists: bool) -> Option<ProxyMessage> {
    let name = text_of(attributes, TABLE_NAME)?;
    (name == TABLE).then_some(ProxyMessage::Table { family, exists })
}

/// A map is new or deleted. A deleted map takes its elements along: the kernel does not report them.
pub(super) fn map(family: IpFamily, attributes: &[u8], exists: bool) -> Option<ProxyMessage> {
    let table = text_of(attributes, SET_TABLE)?;
    let map = Map::of(text_of(attributes, SET_NAME)?)?;
    (table == TABLE).then_some(ProxyMessage::Map { family, map, exists })
}

/// Elements of a map are new or deleted. A notification has one element, a dump has many.
pub(super) fn elements(
    family: IpFamily,
    attributes: &[u8],
    exists: bool,
    mut each: impl FnMut(ProxyMessage),
) {
    if text_of(attributes, LIST_TABLE) != Some(TABLE) {
        return;
    }
    let Some(map) = text_of(attributes, LIST_SET).and_then(Map::of) else { return };
    let lists = values(attributes).filter(|(kind, _)| *kind == LIST_ELEMENTS);
    for (_, element) in lists.flat_map(|(_, list)| values(list)).filter(|(kind, _)| *kind == ELEMENT) {
        let key = value(element, KEY).and_then(|data| value(data, VALUE));
        if let Some(port) = key.and_then(|key| port(family, key)) {
            each(ProxyMessage::Element { map, port, exists });
        }
    }
}

/// The port in a key.
fn port(family: IpFamily, key: &[u8]) -> Option<AddressPort> {
    let (address, rest) = split_address(family, key)?;
    let &[protocol, _, _, _, high, low, _, _] = rest else { return None };
    Some(AddressPort {
        address,
        protocol: Protocol::from_number(protocol)?,
        port: u16::from_be_bytes([high, low]),
    })
}

/// The address at the start of `octets`, and the octets after it.
pub(super) fn split_address(family: IpFamily, octets: &[u8]) -> Option<(IpAddr, &[u8])> {
    match family {
        IpFamily::V4 => octets.split_first_chunk::<4>().map(|(first, rest)| ((*first).into(), rest)),
        IpFamily::V6 => octets.split_first_chunk::<16>().map(|(first, rest)| ((*first).into(), rest)),
    }
}
