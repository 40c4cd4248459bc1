//! Encodes the messages of RFC 7854 §4.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::types::{Asn, Family};
use crate::wire::{Notification, Open};

const VERSION: u8 = 3;

/// Message types (§4.1).
const ROUTE_MONITORING: u8 = 0;
const STATISTICS_REPORT: u8 = 1;
const PEER_DOWN: u8 = 2;
const PEER_UP: u8 = 3;
const INITIATION: u8 = 4;
#[cfg(feature = "net")]
const TERMINATION: u8 = 5;

/// The per-peer header (§4.2), without the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerHeader {
    pub(crate) address: IpAddr,
    pub(crate) asn: Asn,
    pub(crate) router_id: Ipv4Addr,
}

/// The reason why a session is down (§4.9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DownReason {
    /// 1: this side sent a NOTIFICATION.
    Notified(Notification),
    /// 2: this side closed without a NOTIFICATION.
    Closed,
    /// 3: the peer sent a NOTIFICATION.
    NotifiedByPeer(Notification),
    /// 4: the peer closed without a NOTIFICATION, or TCP failed.
    ClosedByPeer,
}

/// Appends a message with its common header; the length is filled in at the end.
fn message(out: &mut Vec<u8>, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[VERSION, 0, 0, 0, 0, kind]);
    body(out);
    // The body is a BGP message or a few names, so its length fits into 32 bits.
    let length = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    out[start + 1..start + 5].copy_from_slice(&length.to_be_bytes());
}

/// Appends the per-peer header. `time`: since 1970.
fn peer_header(out: &mut Vec<u8>, peer: &PeerHeader, time: Duration) {
    const GLOBAL_INSTANCE: u8 = 0;
    const IPV6: u8 = 0x80;
    out.push(GLOBAL_INSTANCE);
    out.push(if peer.address.is_ipv6() { IPV6 } else { 0 });
    out.extend_from_slice(&[0; 8]); // no distinguisher
    address(out, peer.address);
    out.extend_from_slice(&peer.asn.0.to_be_bytes());
    out.extend_from_slice(&peer.router_id.octets());
    // 32 bits are sufficient until 2106.
    out.extend_from_slice(&(time.as_secs() as u32).to_be_bytes());
    out.extend_from_slice(&time.subsec_micros().to_be_bytes());
}

/// Appends an address in 16 octets; IPv4 uses the last four.
fn address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            out.extend_from_slice(&[0; 12]);
            out.extend_from_slice(&address.octets());
        }
        IpAddr::V6(address) => out.extend_from_slice(&address.octets()),
    }
}

fn text(out: &mut Vec<u8>, kind: u16, text: &str) {
    let mut length = text.len().min(4096);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(length as u16).to_be_bytes());
    out.extend_from_slice(&text.as_bytes()[..length]);
}

/// Initiation (§4.3).
pub(super) fn initiation(out: &mut Vec<u8>, name: &str, description: &str) {
    const SYS_DESCR: u16 = 1;
    const SYS_NAME: u16 = 2;
    message(out, INITIATION, |out| {
        text(out, SYS_DESCR, description);
        text(out, SYS_NAME, name);
    });
}

/// Termination, Session administratively closed (§4.5).
#[cfg(feature = "net")]
pub(super) fn termination(out: &mut Vec<u8>) {
    const REASON: u16 = 1;
    const ADMINISTRATIVELY_CLOSED: u16 = 0;
    message(out, TERMINATION, |out| {
        out.extend_from_slice(&REASON.to_be_bytes());
        out.extend_from_slice(&2u16.to_be_bytes());
        out.extend_from_slice(&ADMINISTRATIVELY_CLOSED.to_be_bytes());
    });
}

/// Peer Up (§4.10).
pub(super) fn peer_up(
    out: &mut Vec<u8>,
    peer: &PeerHeader,
    time: Duration,
    (local, remote): (SocketAddr, SocketAddr),
    (sent, received): (&Open, &Open),
) {
    message(out, PEER_UP, |out| {
        peer_header(out, peer, time);
        address(out, local.ip().to_canonical());
        out.extend_from_slice(&local.port().to_be_bytes());
        out.extend_from_slice(&remote.port().to_be_bytes());
        sent.encode(out);
        received.encode(out);
    });
}

/// Peer Down (§4.9).
pub(super) fn peer_down(out: &mut Vec<u8>, peer: &PeerHeader, time: Duration, reason: &DownReason) {
    message(out, PEER_DOWN, |out| {
        peer_header(out, peer, time);
        match reason {
            DownReason::Notified(notification) => {
                out.push(1);
                notification.encode(out);
            }
            // The FSM event: RFC 4271 §8.1 has no event for this.
            DownReason::Closed => out.extend_from_slice(&[2, 0, 0]),
            DownReason::NotifiedByPeer(notification) => {
                out.push(3);
                notification.encode(out);
            }
            DownReason::ClosedByPeer => out.push(4),
        }
    });
}

/// Route Monitoring (§4.6): one message for each UPDATE in `updates`, which contains complete
/// messages.
pub(super) fn route_monitoring(out: &mut Vec<u8>, peer: &PeerHeader, time: Duration, mut updates: &[u8]) {
    const LENGTH: std::ops::Range<usize> = 16..18;
    while let Some(length) = updates.get(LENGTH) {
        let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
        let Some((update, rest)) = updates.split_at_checked(length) else { return };
        updates = rest;
        message(out, ROUTE_MONITORING, |out| {
            peer_header(out, peer, time);
            out.extend_from_slice(update);
        });
    }
}

/// Stats Report (§4.8): routes in Adj-RIB-In, all of them and by family.
pub(super) fn stats_report(out: &mut Vec<u8>, peer: &PeerHeader, time: Duration, routes: &[(Family, u64)]) {
    const ADJ_RIB_IN: u16 = 7;
    const ADJ_RIB_IN_OF_FAMILY: u16 = 9;
    message(out, STATISTICS_REPORT, |out| {
        peer_header(out, peer, time);
        out.extend_from_slice(&(routes.len() as u32 + 1).to_be_bytes());
        out.extend_from_slice(&ADJ_RIB_IN.to_be_bytes());
        out.extend_from_slice(&8u16.to_be_bytes());
        out.extend_from_slice(&routes.iter().map(|(_, count)| count).sum::<u64>().to_be_bytes());
        for (family, count) in routes {
            out.extend_from_slice(&ADJ_RIB_IN_OF_FAMILY.to_be_bytes());
            out.extend_from_slice(&11u16.to_be_bytes());
            out.extend_from_slice(&family.afi().to_be_bytes());
            out.push(family.safi());
            out.extend_from_slice(&count.to_be_bytes());
        }
    });
}
