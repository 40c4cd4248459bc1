//! Connection tracking (`linux/netfilter/nfnetlink_conntrack.h`): deletion of the connections of
//! addresses.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use super::message;
use super::netfilter::{Connection, NESTED, after_header, attribute, nested, octets};

const SUBSYSTEM: u16 = libc::NFNL_SUBSYS_CTNETLINK as u16;
// IPCTNL_MSG_CT_…
const GET: u16 = SUBSYSTEM << 8 | 1;
const DELETE: u16 = SUBSYSTEM << 8 | 2;

// CTA_…
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const STATUS: u16 = 3;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
/// `CTA_TUPLE_IP`.
const TUPLE_ADDRESSES: u16 = 1;
/// `CTA_TUPLE_PROTO`.
const TUPLE_PROTOCOL: u16 = 2;
/// `CTA_PROTO_NUM`.
const PROTOCOL: u16 = 1;
/// `CTA_PROTO_DST_PORT`.
const DESTINATION_PORT: u16 = 3;
/// `IPS_DST_NAT`: the destination is translated.
const TRANSLATED: u32 = 1 << 5;
// CTA_IP_V4_SRC, CTA_IP_V4_DST
const SOURCE: u16 = 1;
const DESTINATION: u16 = 2;
/// Exists if the kernel tracks connections in this network namespace.
const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";

/// A tracked connection: the attributes that identify it in a deletion.
struct Tracked {
    family: i32,
    original: Vec<u8>,
    id: Option<Vec<u8>>,
    zone: Option<Vec<u8>>,
}

impl Tracked {
    fn of(family: i32, body: &[u8], original: &[u8]) -> Tracked {
        Tracked {
            family,
            original: original.to_vec(),
            id: nested(body, ID).next().map(<[u8]>::to_vec),
            zone: nested(body, ZONE).next().map(<[u8]>::to_vec),
        }
    }
}

/// Deletes the connections with one of the addresses in either direction, in the network namespace
/// of the calling thread. Returns their number; 0 if the kernel tracks no connections.
pub(crate) fn forget(addresses: &[IpAddr]) -> io::Result<usize> {
    if !Path::new(COUNT).exists() {
        return Ok(0);
    }
    let mut connection = Connection::open()?;
    let mut found = Vec::new();
    let all: HashSet<IpAddr> = addresses.iter().copied().collect();
    let v4: Vec<Ipv4Addr> = all.iter().filter_map(as_v4).collect();
    match v4[..] {
        [] => {}
        [address] => {
            for direction in [ORIGINAL, REPLY] {
                for end in [SOURCE, DESTINATION] {
                    let only = |message: &mut Vec<u8>| filter(message, direction, end, address);
                    list(&mut connection, libc::AF_INET, &all, only, &mut found)?;
                }
            }
        }
        // The kernel reads its whole table for each filter.
        _ => list(&mut connection, libc::AF_INET, &all, |_| {}, &mut found)?,
    }
    // Linux 6.18 returns no connection for a filter with its IPv6 address, so none is used.
    if all.iter().any(IpAddr::is_ipv6) {
        list(&mut connection, libc::AF_INET6, &all, |_| {}, &mut found)?;
    }
    let mut deleted = 0;
    for tracked in found {
        deleted += usize::from(delete(&mut connection, &tracked)?);
    }
    Ok(deleted)
}

/// Deletes the connections with a translated destination of which the first packet had this protocol and
/// destination port, and one of its addresses. Returns their number.
pub(crate) fn forget_translated(
    has_port: impl Fn(u8, u16) -> bool,
    has_address: impl Fn(IpAddr) -> bool,
) -> io::Result<usize> {
    if !Path::new(COUNT).exists() {
        return Ok(0);
    }
    let mut connection = Connection::open()?;
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        connection.dump(
            GET,
            family,
            |_| {},
            |message| {
                let body = after_header(message);
                let status = nested(body, STATUS).next().and_then(|octets| octets.try_into().ok());
                if status.map_or(0, u32::from_be_bytes) & TRANSLATED == 0 {
                    return;
                }
                let Some(original) = nested(body, ORIGINAL).next() else { return };
                let protocol = nested(original, TUPLE_PROTOCOL).next().unwrap_or_default();
                let number = nested(protocol, PROTOCOL).next().and_then(|octets| octets.first().copied());
                let port =
                    nested(protocol, DESTINATION_PORT).next().and_then(|octets| octets.try_into().ok());
                let has_port =
                    number.zip(port.map(u16::from_be_bytes)).is_some_and(|(of, port)| has_port(of, port));
                let mut ends = nested(original, TUPLE_ADDRESSES).flat_map(message::values);
                if has_port && ends.any(|(_, end)| read_address(end).is_some_and(&has_address)) {
                    found.push(Tracked::of(family, body, original));
                }
            },
        )?;
    }
    let mut deleted = 0;
    for tracked in found {
        deleted += usize::from(delete(&mut connection, &tracked)?);
    }
    Ok(deleted)
}

/// Writes a filter: this address at one end of a direction. Kernels before Linux 5.8 ignore it.
fn filter(message: &mut Vec<u8>, direction: u16, end: u16, address: Ipv4Addr) {
    attribute(message, direction | NESTED, |tuple| {
        attribute(tuple, TUPLE_ADDRESSES | NESTED, |addresses| octets(addresses, end, &address.octets()));
    });
    attribute(message, FILTER | NESTED, |filter| {
        // CTA_FILTER_ORIG_FLAGS and CTA_FILTER_REPLY_FLAGS have the numbers of the directions. Bit 0
        // is the source, bit 1 the destination.
        for of in [ORIGINAL, REPLY] {
            let flags = if of == direction { 1_u32 << (end - SOURCE) } else { 0 };
            octets(filter, of, &flags.to_ne_bytes());
        }
    });
}

/// Lists the connections of a family with one of the addresses.
fn list(
    connection: &mut Connection,
    family: i32,
    addresses: &HashSet<IpAddr>,
    request: impl FnOnce(&mut Vec<u8>),
    found: &mut Vec<Tracked>,
) -> io::Result<()> {
    connection.dump(GET, family, request, |message| {
        let body = after_header(message);
        let ends = [ORIGINAL, REPLY].into_iter().flat_map(|direction| nested(body, direction));
        let mut ends = ends.flat_map(|tuple| nested(tuple, TUPLE_ADDRESSES)).flat_map(message::values);
        let has_address =
            ends.any(|(_, end)| read_address(end).is_some_and(|address| addresses.contains(&address)));
        if has_address && let Some(original) = nested(body, ORIGINAL).next() {
            found.push(Tracked::of(family, body, original));
        }
    })?;
    Ok(())
}

fn as_v4(address: &IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    }
}

fn read_address(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()
}

/// Deletes a connection. Returns false if it no longer exists.
fn delete(connection: &mut Connection, tracked: &Tracked) -> io::Result<bool> {
    let result = connection.request(0, DELETE, tracked.family, |message| {
        octets(message, ORIGINAL | NESTED, &tracked.original);
        for (kind, value) in [(ID, &tracked.id), (ZONE, &tracked.zone)] {
            if let Some(value) = value {
                octets(message, kind, value);
            }
        }
    });
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
