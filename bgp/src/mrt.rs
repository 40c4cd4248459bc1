//! The tables as an MRT file, TABLE_DUMP_V2 (RFC 6396 §4.3, RFC 8050), for existing tools such as
//! bgpdump and bgpkit.
//!
//! A dump is one PEER_INDEX_TABLE followed by one record per prefix. A record has the paths that
//! import policy accepted, with the attributes after import. Paths rejected by policy or a loop
//! check are left out, because MRT cannot mark them.
//!
//! A table of a million prefixes takes some 80 MB. So it is written in pieces ([`TableDump`] keeps
//! the position), and the speaker continues between two pieces. A dump is therefore not a snapshot
//! of one instant. Each prefix has its state when it was written, as is usual for dumps of running
//! routers.
//!
//! The format requires the arrival time of a path, which the tables do not store. A peer's paths
//! carry the time when its session was established, the earliest possible time. Originated prefixes
//! and stale paths of a peer without a session carry the time of the dump.
//!
//! Supported: PEER_INDEX_TABLE, RIB_IPV4_UNICAST, RIB_IPV6_UNICAST, and their ADD-PATH forms. Not
//! supported: BGP4MP (for live messages see [BMP](https://www.rfc-editor.org/rfc/rfc7854)),
//! RIB_GENERIC, TABLE_DUMP.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use rustc_hash::FxHashMap;

use crate::types::{Asn, Family, NextHop, PeerId};

/// MRT type TABLE_DUMP_V2.
const TABLE_DUMP_V2: u16 = 13;
/// Subtypes of TABLE_DUMP_V2.
const PEER_INDEX_TABLE: u16 = 1;
const RIB_IPV4_UNICAST: u16 = 2;
const RIB_IPV6_UNICAST: u16 = 4;
const RIB_IPV4_UNICAST_ADDPATH: u16 = 8;
const RIB_IPV6_UNICAST_ADDPATH: u16 = 10;

/// The position of a dump. The caller passes it to
/// [`Speaker::dump_tables`](crate::speaker::Speaker::dump_tables) until the dump is complete.
#[derive(Clone, Debug)]
pub struct TableDump {
    /// Seconds since 1970 (UTC): the time of the dump.
    pub(crate) when: u32,
    /// Each peer's number in the index, and the time for its paths; none before the index is
    /// written.
    pub(crate) index: Option<FxHashMap<PeerId, (u16, u32)>>,
    pub(crate) family: Option<Family>,
    /// The next row.
    pub(crate) row: u32,
    prefixes: u32,
    paths: u64,
}

impl TableDump {
    /// A dump with this time, in seconds since 1970 (UTC).
    pub fn new(when: u32) -> Self {
        TableDump { when, index: None, family: Some(Family::Ipv4Unicast), row: 0, prefixes: 0, paths: 0 }
    }

    /// Peers in the index so far, without this speaker.
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

/// Writes PEER_INDEX_TABLE; a peer's index in `peers` is its number in later records. Peers beyond
/// 65,535 are left out.
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
    /// The number of its peer in the index.
    pub(crate) peer: u16,
    /// The arrival time, in seconds since 1970.
    pub(crate) since: u32,
    /// The peer's identifier of the path (RFC 7911).
    pub(crate) path_id: Option<u32>,
    /// The next hop; none if it is this speaker itself.
    pub(crate) next_hop: Option<NextHop>,
    /// The canonical block: all attributes except the next hop.
    pub(crate) block: &'a [u8],
}

impl Entry<'_> {
    /// Whether the attributes fit the format. The attributes of an extended message may leave no
    /// room for the next hop.
    fn fits(&self) -> bool {
        self.block.len() <= usize::from(u16::MAX) - 64
    }
}

impl TableDump {
    /// Writes the record of a prefix; nothing if it has no path.
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
                // Entry::fits has checked the length.
                let length = u16::try_from(out.len() - start - 2).unwrap_or(u16::MAX);
                out[start..start + 2].copy_from_slice(&length.to_be_bytes());
            }
        });
        self.prefixes = self.prefixes.wrapping_add(1);
        self.paths += entries.len() as u64;
    }
}

/// Writes NEXT_HOP for an IPv4 next hop, else MP_REACH_NLRI with only the next hop (RFC 6396
/// §4.3.4).
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

/// Writes a record with its header; the length is filled in at the end.
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
