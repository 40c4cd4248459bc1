//! The tables as an MRT file: TABLE_DUMP_V2 (RFC 6396 §4.3, RFC 8050), for tools that exist: bgpdump, bgpkit, routinator's kin.
//!
//! A dump is one PEER_INDEX_TABLE and then one record a prefix, with the paths that import policy let through, as
//! it left them. What policy or a loop check refused is not in it: MRT has no word for that.
//!
//! A table of a million prefixes is some 80 MB, so it is written in pieces ([`TableDump`] keeps the place), and between two
//! pieces the speaker does its work. A dump is therefore no snapshot of one instant: a prefix is in it as it was when its
//! turn came, as is usual for dumps of running routers.
//!
//! Awkward: the format wants the time when a path came, which the tables don't keep; a peer's paths carry the time when
//! its session came up, which is the earliest that they can be from. This speaker's own prefixes and stale paths
//! of a peer without a session carry the time of the dump.
//!
//! Done: PEER_INDEX_TABLE, RIB_IPV4_UNICAST, RIB_IPV6_UNICAST, and their ADD-PATH forms. Not done: BGP4MP (messages as
//! they pass: see [BMP](https://www.rfc-editor.org/rfc/rfc7854) for that), RIB_GENERIC, TABLE_DUMP.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use rustc_hash::FxHashMap;

use crate::types::{Asn, Family, NextHop, PeerId};

/// MRT type TABLE_DUMP_V2.
const TABLE_DUMP_V2: u16 = 13;
/// Its subtypes.
const PEER_INDEX_TABLE: u16 = 1;
const RIB_IPV4_UNICAST: u16 = 2;
const RIB_IPV6_UNICAST: u16 = 4;
const RIB_IPV4_UNICAST_ADDPATH: u16 = 8;
const RIB_IPV6_UNICAST_ADDPATH: u16 = 10;

/// How far a dump has come. Made once, given to [`Speaker::dump_tables`](crate::speaker::Speaker::dump_tables) until
/// there is no more.
#[derive(Clone, Debug)]
pub struct TableDump {
    /// Seconds since 1970 (UTC): the time of the dump.
    pub(crate) when: u32,
    /// Where each peer stands in the index, and since when its paths can be from; none before the index is written.
    pub(crate) index: Option<FxHashMap<PeerId, (u16, u32)>>,
    pub(crate) family: Option<Family>,
    /// The next row.
    pub(crate) row: u32,
    prefixes: u32,
    paths: u64,
}

impl TableDump {
    /// A dump at this time, in seconds since 1970 (UTC).
    pub fn new(when: u32) -> Self {
        TableDump { when, index: None, family: Some(Family::Ipv4Unicast), row: 0, prefixes: 0, paths: 0 }
    }

    /// Peers in the index so far, this speaker itself not counted.
    pub fn peers(&self) -> usize {
        self.index.as_ref().map_or(0, |index| index.len().saturating_sub(1))
    }

    /// Prefixes written so far.
    pub fn prefixes(&self) -> u32 {
        self.prefixes
    }

    /// Paths written so far.
    pub fn paths(&self) -> u64 {
        self.paths
    }
}

/// A peer in PEER_INDEX_TABLE.
#[derive(Clone, Debug)]
pub(crate) struct IndexEntry {
    pub(crate) router_id: Ipv4Addr,
    pub(crate) address: IpAddr,
    pub(crate) asn: Asn,
}

/// Writes PEER_INDEX_TABLE; a peer's place in `peers` is its number in the records that follow. More than 65,535 are
/// cut off.
pub(crate) fn write_index(out: &mut Vec<u8>, when: u32, collector: Ipv4Addr, peers: &[IndexEntry]) {
    record(out, when, PEER_INDEX_TABLE, |out| {
        out.extend_from_slice(&collector.octets());
        out.extend_from_slice(&[0, 0]); // no view name
        let count = u16::try_from(peers.len()).unwrap_or(u16::MAX);
        out.extend_from_slice(&count.to_be_bytes());
        for peer in peers.iter().take(usize::from(count)) {
            const IPV6: u8 = 1;
            const FOUR_OCTET_AS: u8 = 1 << 1;
            out.push(FOUR_OCTET_AS | if peer.address.is_ipv6() { IPV6 } else { 0 });
            out.extend_from_slice(&peer.router_id.octets());
            match peer.address {
                IpAddr::V4(address) => out.extend_from_slice(&address.octets()),
                IpAddr::V6(address) => out.extend_from_slice(&address.octets()),
            }
            out.extend_from_slice(&peer.asn.0.to_be_bytes());
        }
    });
}

/// One path of a prefix.
pub(crate) struct Entry<'a> {
    /// Its peer's place in the index.
    pub(crate) peer: u16,
    /// When it came, in seconds since 1970.
    pub(crate) since: u32,
    /// The peer's identifier of the path (RFC 7911).
    pub(crate) path_id: Option<u32>,
    /// None where it is this speaker itself.
    pub(crate) next_hop: Option<NextHop>,
    /// The canonical block: all attributes but the next hop.
    pub(crate) block: &'a [u8],
}

impl Entry<'_> {
    /// Whether the format has room for its attributes: those of an extended message may have none for the next hop.
    fn fits(&self) -> bool {
        self.block.len() <= usize::from(u16::MAX) - 64
    }
}

impl TableDump {
    /// Writes the record of a prefix. Nothing if there is no path of it.
    pub(crate) fn write(&mut self, out: &mut Vec<u8>, prefix: IpNet, mut entries: Vec<Entry<'_>>) {
        entries.retain(Entry::fits);
        entries.truncate(usize::from(u16::MAX));
        if entries.is_empty() {
            return;
        }
        let add_path = entries.iter().any(|entry| entry.path_id.is_some());
        let subtype = match (prefix, add_path) {
            (IpNet::V4(_), false) => RIB_IPV4_UNICAST,
            (IpNet::V4(_), true) => RIB_IPV4_UNICAST_ADDPATH,
            (IpNet::V6(_), false) => RIB_IPV6_UNICAST,
            (IpNet::V6(_), true) => RIB_IPV6_UNICAST_ADDPATH,
        };
        record(out, self.when, subtype, |out| {
            out.extend_from_slice(&self.prefixes.to_be_bytes());
            let octets = usize::from(prefix.prefix_len().div_ceil(8));
            out.push(prefix.prefix_len());
            match prefix.network() {
                IpAddr::V4(network) => out.extend_from_slice(&network.octets()[..octets]),
                IpAddr::V6(network) => out.extend_from_slice(&network.octets()[..octets]),
            }
            let count = u16::try_from(entries.len()).unwrap_or(u16::MAX);
            out.extend_from_slice(&count.to_be_bytes());
            for entry in &entries {
                out.extend_from_slice(&entry.peer.to_be_bytes());
                out.extend_from_slice(&entry.since.to_be_bytes());
                if add_path {
                    out.extend_from_slice(&entry.path_id.unwrap_or(0).to_be_bytes());
                }
                let start = out.len();
                out.extend_from_slice(&[0, 0]);
                out.extend_from_slice(entry.block);
                write_next_hop(out, prefix, entry.next_hop);
                // Entry::fits has seen to it.
                let length = u16::try_from(out.len() - start - 2).unwrap_or(u16::MAX);
                out[start..start + 2].copy_from_slice(&length.to_be_bytes());
            }
        });
        self.prefixes = self.prefixes.wrapping_add(1);
        self.paths += entries.len() as u64;
    }
}

/// NEXT_HOP for IPv4 by IPv4; else MP_REACH_NLRI with nothing but the next hop, as RFC 6396 §4.3.4 wants it.
fn write_next_hop(out: &mut Vec<u8>, prefix: IpNet, next_hop: Option<NextHop>) {
    const NEXT_HOP: [u8; 3] = [0x40, 3, 4];
    const MP_REACH_NLRI: [u8; 2] = [0x80, 14];
    let unspecified = match prefix {
        IpNet::V4(_) => NextHop::V4(Ipv4Addr::UNSPECIFIED),
        IpNet::V6(_) => NextHop::V6(std::net::Ipv6Addr::UNSPECIFIED),
    };
    let mut reach = |addresses: &[std::net::Ipv6Addr]| {
        let length = (addresses.len() * 16) as u8;
        out.extend_from_slice(&MP_REACH_NLRI);
        out.extend_from_slice(&[length + 1, length]);
        addresses.iter().for_each(|address| out.extend_from_slice(&address.octets()));
    };
    match next_hop.unwrap_or(unspecified) {
        NextHop::V4(address) => {
            out.extend_from_slice(&NEXT_HOP);
            out.extend_from_slice(&address.octets());
        }
        NextHop::V6(address) => reach(&[address]),
        NextHop::V6WithLinkLocal(global, link_local) => reach(&[global, link_local]),
    }
}

/// A record with its header; the length is filled in afterwards.
fn record(out: &mut Vec<u8>, when: u32, subtype: u16, body: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&when.to_be_bytes());
    out.extend_from_slice(&TABLE_DUMP_V2.to_be_bytes());
    out.extend_from_slice(&subtype.to_be_bytes());
    let length = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    // A record has at most 65,535 entries of at most 65,535 octets each.
    let octets = u32::try_from(out.len() - length - 4).unwrap_or(u32::MAX);
    out[length..length + 4].copy_from_slice(&octets.to_be_bytes());
}
