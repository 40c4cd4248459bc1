//! ARP (RFC 826) for IPv4 on Ethernet: the packets of the checks.
//!
//! One packet has three uses:
//!
//! - A *request* asks for the holder of an address.
//! - A *probe* is a request with the sender address 0.0.0.0. It changes no ARP entry (RFC 5227
//!   §1.1).
//! - An *announcement* is a request or a reply with the same sender and target address.
//!
//! This module implements RFC 5227's probes (§2.1.1) and announcements (§2.3). It does not
//! implement the RFC's times (see [`super::check`]) and the later defence of an address (§2.4),
//! which the kernel of the holder does.

use std::net::{IpAddr, Ipv4Addr};

use super::frame::{self, AddressClaim, BROADCAST, ClaimKind, Mac};

/// Ethernet type of ARP.
pub(super) const ETHER_TYPE: u16 = 0x0806;

/// Hardware type Ethernet, protocol type IPv4, and the lengths of their addresses.
const PREAMBLE: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// The operation of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Request,
    Reply,
}

/// A packet with its four addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) operation: Operation,
    pub(super) sender_mac: Mac,
    pub(super) sender: Ipv4Addr,
    pub(super) target_mac: Mac,
    pub(super) target: Ipv4Addr,
}

/// A broadcast request for `target`. With the sender 0.0.0.0 it is a probe.
pub(super) fn request(mac: Mac, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let packet =
        Packet { operation: Operation::Request, sender_mac: mac, sender, target_mac: [0; 6], target };
    frame::encode(BROADCAST, mac, ETHER_TYPE, &encode(&packet))
}

/// The frames that announce `address`: a request, as RFC 5227 §3 recommends, and a reply, because
/// some devices learn from only one of the two.
pub(super) fn announcements(mac: Mac, address: Ipv4Addr) -> [Vec<u8>; 2] {
    let reply = Packet {
        operation: Operation::Reply,
        sender_mac: mac,
        sender: address,
        target_mac: BROADCAST,
        target: address,
    };
    [request(mac, address, address), frame::encode(BROADCAST, mac, ETHER_TYPE, &encode(&reply))]
}

/// The claim of a frame about an address; `None` if the frame is not ARP for IPv4 on Ethernet, or
/// is a reply from 0.0.0.0.
pub(super) fn parse(frame: &[u8]) -> Option<AddressClaim> {
    let (destination, _, payload) = frame::decode(frame, ETHER_TYPE)?;
    let packet = decode(payload)?;
    let (address, kind) = match (packet.operation, packet.sender.is_unspecified()) {
        (Operation::Request, true) => (packet.target, ClaimKind::Probe),
        (Operation::Request, false) => (packet.sender, ClaimKind::Use),
        (Operation::Reply, false) => (packet.sender, ClaimKind::Reply),
        (Operation::Reply, true) => return None,
    };
    Some(AddressClaim { address: IpAddr::V4(address), mac: packet.sender_mac, kind, destination })
}

fn encode(packet: &Packet) -> [u8; 28] {
    let mut octets = [0; 28];
    octets[..6].copy_from_slice(&PREAMBLE);
    octets[7] = match packet.operation {
        Operation::Request => 1,
        Operation::Reply => 2,
    };
    octets[8..14].copy_from_slice(&packet.sender_mac);
    octets[14..18].copy_from_slice(&packet.sender.octets());
    octets[18..24].copy_from_slice(&packet.target_mac);
    octets[24..].copy_from_slice(&packet.target.octets());
    octets
}

/// Ethernet pads frames to 60 octets, so octets may follow the packet.
fn decode(payload: &[u8]) -> Option<Packet> {
    let octets: &[u8; 28] = payload.first_chunk()?;
    let operation = match (&octets[..6], &octets[6..8]) {
        (preamble, [0, 1]) if preamble == PREAMBLE => Operation::Request,
        (preamble, [0, 2]) if preamble == PREAMBLE => Operation::Reply,
        _ => return None,
    };
    let address = |from: usize| Ipv4Addr::from(std::array::from_fn(|index| octets[from + index]));
    Some(Packet {
        operation,
        sender_mac: frame::mac(&octets[8..]),
        sender: address(14),
        target_mac: frame::mac(&octets[18..]),
        target: address(24),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 7];
    const OTHER: Mac = [2, 0, 0, 0, 0, 9];

    fn ip(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    #[test]
    fn probe_has_the_octets_of_rfc_5227() {
        let probe = request(MAC, Ipv4Addr::UNSPECIFIED, ip("10.10.0.7"));
        #[rustfmt::skip]
        let octets = [
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 7, 0x08, 0x06,
            0, 1, 8, 0, 6, 4, 0, 1,
            2, 0, 0, 0, 0, 7, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 10, 10, 0, 7,
        ];
        assert_eq!(probe, octets);
    }

    #[test]
    fn each_packet_gives_its_claim() {
        let claim_of = |operation, sender: &str, target: &str| {
            let packet = Packet {
                operation,
                sender_mac: OTHER,
                sender: ip(sender),
                target_mac: MAC,
                target: ip(target),
            };
            parse(&frame::encode(MAC, OTHER, ETHER_TYPE, &encode(&packet)))
                .map(|claim| (claim.address.to_string(), claim.kind))
        };
        let is = |address: &str, kind| Some((address.to_owned(), kind));
        assert_eq!(claim_of(Operation::Reply, "10.10.0.1", "0.0.0.0"), is("10.10.0.1", ClaimKind::Reply));
        assert_eq!(claim_of(Operation::Request, "10.10.0.9", "10.10.0.1"), is("10.10.0.9", ClaimKind::Use));
        assert_eq!(claim_of(Operation::Request, "0.0.0.0", "10.10.0.9"), is("10.10.0.9", ClaimKind::Probe));
        assert_eq!(claim_of(Operation::Reply, "0.0.0.0", "10.10.0.9"), None);
        let whom: Vec<_> = announcements(MAC, ip("10.10.0.7"))
            .iter()
            .map(|frame| parse(frame).unwrap())
            .map(|claim| (claim.address.to_string(), claim.mac, claim.kind, claim.destination))
            .collect();
        let address = "10.10.0.7".to_owned();
        assert_eq!(
            whom,
            [(address.clone(), MAC, ClaimKind::Use, BROADCAST), (address, MAC, ClaimKind::Reply, BROADCAST)]
        );
    }

    #[test]
    fn frames_other_than_arp_for_ipv4_give_no_claim() {
        let good = request(OTHER, ip("10.10.0.9"), ip("10.10.0.1"));
        assert!(parse(&good).is_some());
        let padded = [good.as_slice(), &[0; 18]].concat();
        assert_eq!(parse(&padded), parse(&good));
        for length in 0..good.len() {
            assert_eq!(parse(&good[..length]), None, "{length} octets");
        }
        // The places of the Ethernet type, the hardware type, the protocol type, both lengths and
        // the operation.
        for place in [12, 13, 14, 15, 16, 17, 18, 19, 20, 21] {
            let mut bad = good.clone();
            bad[place] ^= 0x80;
            assert_eq!(parse(&bad), None, "octet {place}");
        }
    }

    proptest! {
        #[test]
        fn no_input_is_too_much(octets in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse(&octets);
            let _ = parse(&frame::encode(BROADCAST, OTHER, ETHER_TYPE, &octets));
        }

        #[test]
        fn encoded_packet_is_decoded_unchanged(
            reply: bool, sender_mac: Mac, sender: u32, target_mac: Mac, target: u32,
        ) {
            let packet = Packet {
                operation: if reply { Operation::Reply } else { Operation::Request },
                sender_mac,
                sender: Ipv4Addr::from(sender),
                target_mac,
                target: Ipv4Addr::from(target),
            };
            prop_assert_eq!(decode(&encode(&packet)), Some(packet));
        }
    }
}
