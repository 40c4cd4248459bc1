//! Neighbour Discovery (RFC 4861) on Ethernet: the solicitations and advertisements of the checks,
//! with their IPv6 header.
//!
//! - A *probe* is a Neighbour Solicitation from :: (RFC 4862 §5.4.2). It changes no neighbour
//!   entry.
//! - A *request* is a Neighbour Solicitation from an address of this host.
//! - An *announcement* is an unsolicited Neighbour Advertisement with the Override flag (RFC 4861
//!   §7.2.6).
//!
//! Received messages are validated as RFC 4861 §7.1.1 and §7.1.2 require. So messages that passed a
//! router (Hop Limit) are rejected. Two extensions are not implemented. SEND (RFC 3971) is one. The
//! other is nonces (RFC 7527): a frame of this host that returns is recognized by this host's MAC
//! address.

use std::net::{IpAddr, Ipv6Addr};

use super::frame::{self, AddressClaim, ClaimKind, Mac};

/// Ethernet type of IPv6.
pub(super) const ETHER_TYPE: u16 = 0x86dd;
/// Next Header value of ICMPv6.
pub(super) const ICMPV6: u8 = 58;
/// ICMPv6 type of a Neighbour Solicitation.
pub(super) const SOLICITATION: u8 = 135;
/// ICMPv6 type of a Neighbour Advertisement.
pub(super) const ADVERTISEMENT: u8 = 136;
/// Octets of an IPv6 header.
pub(super) const IPV6_HEADER: usize = 40;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The required Hop Limit. A message with a lower value has passed a router.
const HOP_LIMIT: u8 = 255;

/// The Solicited and the Override flag of an advertisement.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// Option types: the link-layer address of the source or of the target.
const SOURCE_LINK_LAYER: u8 = 1;
const TARGET_LINK_LAYER: u8 = 2;

/// Octets of both messages without options: Type, Code, Checksum, Reserved or flags, Target Address.
const MESSAGE: usize = 24;

/// The multicast group that receives solicitations for an address (RFC 4291 §2.7.1).
pub(super) fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// A solicitation for `target`. With the source :: it is a probe.
pub(super) fn solicitation(mac: Mac, source: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    // RFC 4861 §4.3: a solicitation from :: has no source link-layer address.
    let option = (!source.is_unspecified()).then_some((SOURCE_LINK_LAYER, mac));
    encode(mac, source, solicited_node(target), &message(SOLICITATION, 0, target, option))
}

/// The frame that announces `address`.
pub(super) fn announcement(mac: Mac, address: Ipv6Addr) -> Vec<u8> {
    let message = message(ADVERTISEMENT, OVERRIDE, address, Some((TARGET_LINK_LAYER, mac)));
    encode(mac, address, ALL_NODES, &message)
}

/// The claim of a frame about an address; `None` if the frame is not a valid solicitation or
/// advertisement.
pub(super) fn parse(frame: &[u8]) -> Option<AddressClaim> {
    let (destination, from_mac, packet) = frame::decode(frame, ETHER_TYPE)?;
    let (header, rest) = packet.split_first_chunk::<IPV6_HEADER>()?;
    let address = |octets: &[u8]| Ipv6Addr::from(std::array::from_fn(|index| octets[index]));
    let (source, to) = (address(&header[8..]), address(&header[24..]));
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    // Ethernet pads frames to 60 octets, so octets may follow the message.
    let message = rest.get(..length)?;
    let valid = header[0] >> 4 == 6
        && header[6] == ICMPV6
        && header[7] == HOP_LIMIT
        && message.len() >= MESSAGE
        && message[1] == 0
        && checksum(source, to, message) == 0;
    if !valid {
        return None;
    }
    let target = address(&message[8..]);
    let options = Options::of(&message[MESSAGE..])?;
    if target.is_multicast() {
        return None;
    }
    let (about, kind, link_layer) = match message[0] {
        SOLICITATION if source.is_unspecified() => {
            let proper = to == solicited_node(target) && options.source.is_none();
            proper.then_some((target, ClaimKind::Probe, None))?
        }
        SOLICITATION => (source, ClaimKind::Use, options.source),
        ADVERTISEMENT if to.is_multicast() && message[4] & SOLICITED != 0 => return None,
        ADVERTISEMENT => (target, ClaimKind::Reply, options.target),
        _ => return None,
    };
    Some(AddressClaim { address: IpAddr::V6(about), mac: link_layer.unwrap_or(from_mac), kind, destination })
}

/// The two options that the checks use.
#[derive(Default)]
struct Options {
    source: Option<Mac>,
    target: Option<Mac>,
}

impl Options {
    /// `None`: an option has length 0 or is truncated (RFC 4861 §7.1.1).
    fn of(mut octets: &[u8]) -> Option<Options> {
        let mut options = Options::default();
        while let [kind, units, ..] = *octets {
            if units == 0 {
                return None;
            }
            let (option, rest) = octets.split_at_checked(8 * usize::from(units))?;
            match kind {
                SOURCE_LINK_LAYER => options.source = Some(frame::mac(&option[2..])),
                TARGET_LINK_LAYER => options.target = Some(frame::mac(&option[2..])),
                _ => {}
            }
            octets = rest;
        }
        octets.is_empty().then_some(options)
    }
}

fn message(kind: u8, flags: u8, target: Ipv6Addr, option: Option<(u8, Mac)>) -> Vec<u8> {
    let mut octets = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    octets.extend(target.octets());
    if let Some((kind, mac)) = option {
        octets.extend([kind, 1]); // one unit of eight octets
        octets.extend(mac);
    }
    octets
}

/// The complete frame of a message, with its checksum filled in.
fn encode(mac: Mac, source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((message.len() as u16).to_be_bytes());
    packet.extend([ICMPV6, HOP_LIMIT]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.extend(message);
    let sum = checksum(source, destination, message).to_be_bytes();
    packet[IPV6_HEADER + 2..IPV6_HEADER + 4].copy_from_slice(&sum);
    // RFC 2464 §7: the MAC address of a group is 33:33 and the last four octets of its address.
    let [.., a, b, c, d] = destination.octets();
    frame::encode([0x33, 0x33, a, b, c, d], mac, ETHER_TYPE, &packet)
}

/// The Internet checksum over pseudo-header and message (RFC 4443 §2.3); 0 if the message contains
/// a correct checksum.
fn checksum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> u16 {
    let words = |octets: &[u8]| -> u32 {
        let word = |pair: &[u8]| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        octets.chunks(2).map(word).sum()
    };
    // A message is shorter than 65,536 octets, so neither its length nor the sum of its words can
    // overflow.
    let mut sum = words(&source.octets())
        + words(&destination.octets())
        + message.len() as u32
        + u32::from(ICMPV6)
        + words(message);
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 7];
    const OTHER: Mac = [2, 0, 0, 0, 0, 9];

    fn ip(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    fn claim_of(frame: &[u8]) -> Option<(String, Mac, ClaimKind)> {
        parse(frame).map(|claim| (claim.address.to_string(), claim.mac, claim.kind))
    }

    #[test]
    fn probe_has_the_octets_of_rfc_4862() {
        let probe = solicitation(MAC, Ipv6Addr::UNSPECIFIED, ip("fd00:10::ab:cdef"));
        #[rustfmt::skip]
        let octets = [
            0x33, 0x33, 0xff, 0xab, 0xcd, 0xef, 2, 0, 0, 0, 0, 7, 0x86, 0xdd,
            0x60, 0, 0, 0, 0, 24, 58, 255,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xab, 0xcd, 0xef,
            135, 0, 0xe0, 0x61, 0, 0, 0, 0,
            0xfd, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xab, 0xcd, 0xef,
        ];
        assert_eq!(probe, octets);
    }

    #[test]
    fn each_message_gives_its_claim() {
        let address = || "fd00:10::7".to_owned();
        assert_eq!(
            claim_of(&solicitation(OTHER, Ipv6Addr::UNSPECIFIED, ip("fd00:10::7"))),
            Some((address(), OTHER, ClaimKind::Probe))
        );
        assert_eq!(
            claim_of(&solicitation(OTHER, ip("fd00:10::7"), ip("fd00:10::1"))),
            Some((address(), OTHER, ClaimKind::Use))
        );
        assert_eq!(
            claim_of(&announcement(OTHER, ip("fd00:10::7"))),
            Some((address(), OTHER, ClaimKind::Reply))
        );
        let answer = |flags, option, to| {
            encode(MAC, ip("fd00:10::1"), ip(to), &message(ADVERTISEMENT, flags, ip("fd00:10::7"), option))
        };
        // The link-layer address of the message counts, and not the frame's source.
        let option = Some((TARGET_LINK_LAYER, OTHER));
        assert_eq!(
            claim_of(&answer(SOLICITED, option, "fe80::7")),
            Some((address(), OTHER, ClaimKind::Reply))
        );
        assert_eq!(claim_of(&answer(SOLICITED, None, "fe80::7")), Some((address(), MAC, ClaimKind::Reply)));
        assert_eq!(claim_of(&answer(SOLICITED, option, "ff02::1")), None, "RFC 4861 §7.1.2");
        assert_eq!(claim_of(&answer(0, option, "ff02::1")), Some((address(), OTHER, ClaimKind::Reply)));
    }

    #[test]
    fn invalid_messages_give_no_claim() {
        let good = solicitation(OTHER, ip("fe80::9"), ip("fd00:10::7"));
        assert!(parse(&good).is_some());
        assert_eq!(parse(&[good.as_slice(), &[0; 9]].concat()), parse(&good), "padding");
        for length in 0..good.len() {
            assert_eq!(parse(&good[..length]), None, "{length} octets");
        }
        // All octets are covered by the checksum or validated, except MAC addresses, traffic class
        // and flow label.
        for place in (12..good.len()).filter(|place| !(15..18).contains(place)) {
            let mut bad = good.clone();
            bad[place] ^= 0x10;
            assert_eq!(parse(&bad), None, "octet {place}");
        }
        let parse_message = |message: &[u8]| parse(&encode(OTHER, ip("fe80::9"), ip("fe80::7"), message));
        let advertisement = |option| message(ADVERTISEMENT, 0, ip("fd00:10::7"), option);
        assert!(parse_message(&advertisement(None)).is_some());
        let mut forwarded = encode(OTHER, ip("fe80::9"), ip("fe80::7"), &advertisement(None));
        forwarded[frame::HEADER + 7] = 254;
        assert_eq!(parse(&forwarded), None, "Hop Limit");
        let mut endless = advertisement(Some((TARGET_LINK_LAYER, OTHER)));
        endless[MESSAGE + 1] = 0;
        assert_eq!(parse_message(&endless), None, "an option of length 0");
        endless[MESSAGE + 1] = 2;
        assert_eq!(parse_message(&endless), None, "an option that is cut off");
        assert_eq!(
            parse_message(&message(ADVERTISEMENT, 0, ip("ff02::1"), None)),
            None,
            "the target is a group"
        );
        assert_eq!(parse_message(&message(133, 0, ip("fd00:10::7"), None)), None, "another type");
        let probe = message(SOLICITATION, 0, ip("fd00:10::7"), Some((SOURCE_LINK_LAYER, OTHER)));
        let group = solicited_node(ip("fd00:10::7"));
        assert_eq!(
            parse(&encode(OTHER, Ipv6Addr::UNSPECIFIED, group, &probe)),
            None,
            "from :: with an option"
        );
        let probe = message(SOLICITATION, 0, ip("fd00:10::7"), None);
        assert_eq!(
            parse(&encode(OTHER, Ipv6Addr::UNSPECIFIED, ALL_NODES, &probe)),
            None,
            "the destination is another group"
        );
    }

    proptest! {
        #[test]
        fn no_input_is_too_much(octets in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = parse(&octets);
            let _ = parse(&frame::encode(MAC, OTHER, ETHER_TYPE, &octets));
            // With a correct header and checksum, the parser reads the octets as options.
            let _ = parse(&encode(OTHER, ip("fe80::9"), ip("fe80::7"), &[vec![0; 4], octets].concat()));
        }

        #[test]
        fn checksum_of_a_message_with_its_checksum_is_zero(octets in prop::collection::vec(any::<u8>(), 20..120), source: u128, to: u128) {
            let (source, to) = (Ipv6Addr::from(source), Ipv6Addr::from(to));
            let octets = [vec![ADVERTISEMENT, 0, 0, 0], octets].concat();
            let frame = encode(MAC, source, to, &octets);
            let (_, packet) = frame.split_at(frame::HEADER + IPV6_HEADER);
            prop_assert_eq!(checksum(source, to, packet), 0);
        }
    }
}
