//! The BPF filter of a link-check socket. It passes only frames about an address under check.
//!
//! A link can carry much IPv6 traffic, and a large VLAN always has ARP traffic. Without the filter,
//! each of these frames would wake the agent during a check. [`super::arp`] and [`super::nd`]
//! validate each passed frame, because the filter compares only the last 32 bits of an IPv6
//! address.

use std::net::IpAddr;

use socket2::SockFilter;

use super::frame::HEADER;
use super::{arp, nd};
use crate::bpf;
use crate::family::IpFamily;

/// The packet type (to this host, broadcast, to another host, or sent by this host). It is not in
/// the frame; it is ancillary data (`linux/filter.h`).
const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;

/// Ancillary data: whether the frame has a VLAN tag (`SKF_AD_VLAN_TAG_PRESENT`, which libc lacks).
/// A tagged frame is for a VLAN device and not for this interface.
const TAGGED: u32 = (libc::SKF_AD_OFF + 48) as u32;

/// Offset of the frame's type.
const ETHER_TYPE: u32 = (HEADER - 2) as u32;

/// Offsets of the sender and target addresses of ARP.
const ARP_SENDER: u32 = (HEADER + 14) as u32;
const ARP_TARGET: u32 = (HEADER + 24) as u32;

/// Offsets in IPv6: Next Header; the last word of the source, and of a solicitation's or
/// advertisement's target.
const NEXT_HEADER: u32 = (HEADER + 6) as u32;
const SOURCE: u32 = (HEADER + 8 + 12) as u32;
const MESSAGE_TYPE: u32 = (HEADER + nd::IPV6_HEADER) as u32;
const TARGET: u32 = (HEADER + nd::IPV6_HEADER + 8 + 12) as u32;

/// Maximum number of addresses in a filter: the kernel accepts 4096 BPF instructions, and each
/// address needs four.
const MAX_ADDRESSES: usize = 1000;

/// The filter for the frames of one family about these addresses.
pub(super) fn program(family: IpFamily, addresses: &[IpAddr]) -> Vec<SockFilter> {
    let ether_type = match family {
        IpFamily::V4 => arp::ETHER_TYPE,
        IpFamily::V6 => nd::ETHER_TYPE,
    };
    let mut program = vec![
        bpf::load_octet(PACKET_TYPE),
        bpf::at_least(u32::from(libc::PACKET_OTHERHOST), 0, 1), // to another host, or sent by this host
        bpf::DROP,
        bpf::load_octet(TAGGED),
        bpf::equal(0, 1, 0),
        bpf::DROP,
        bpf::load_half(ETHER_TYPE),
        bpf::equal(u32::from(ether_type), 1, 0),
        bpf::DROP,
    ];
    let words: Vec<u32> = addresses.iter().map(|address| last_word(*address)).collect();
    let any_of = |program: &mut Vec<SockFilter>, offset| {
        program.push(bpf::load_word(offset));
        for word in &words {
            program.extend([bpf::equal(*word, 0, 1), bpf::KEEP]);
        }
    };
    if family == IpFamily::V6 {
        program.extend([
            bpf::load_octet(NEXT_HEADER),
            bpf::equal(u32::from(nd::ICMPV6), 1, 0),
            bpf::DROP,
            bpf::load_octet(MESSAGE_TYPE),
            bpf::equal(u32::from(nd::SOLICITATION), 2, 0),
            bpf::equal(u32::from(nd::ADVERTISEMENT), 1, 0),
            bpf::DROP,
        ]);
    }
    if words.len() > MAX_ADDRESSES {
        program.push(bpf::KEEP);
        return program;
    }
    match family {
        IpFamily::V4 => {
            any_of(&mut program, ARP_SENDER);
            // The target address counts only in an ARP probe, where the sender address is 0.0.0.0
            // (RFC 5227).
            program.extend([bpf::equal(0, 1, 0), bpf::DROP]);
            any_of(&mut program, ARP_TARGET);
        }
        IpFamily::V6 => {
            any_of(&mut program, SOURCE);
            any_of(&mut program, TARGET);
        }
    }
    program.push(bpf::DROP);
    program
}

fn last_word(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => u128::from(address) as u32,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::os::unix::net::UnixDatagram;

    use socket2::SockRef;

    use super::*;
    use crate::link_check::frame::Mac;
    use crate::link_check::{arp, nd};

    const MAC: Mac = [2, 0, 0, 0, 0, 9];

    /// Runs the filter in the kernel, on a pair of sockets.
    fn passes(filter: &[SockFilter], frame: &[u8]) -> bool {
        let (from, to) = UnixDatagram::pair().unwrap();
        to.set_nonblocking(true).unwrap();
        SockRef::from(&to).attach_filter(filter).unwrap();
        from.send(frame).unwrap();
        to.recv(&mut [0; 100]).is_ok()
    }

    fn v4(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    fn v6(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    #[test]
    fn filter_passes_arp_about_an_address() {
        let addresses = ["10.10.0.7", "10.10.0.1"].map(|address| address.parse().unwrap());
        let filter = program(IpFamily::V4, &addresses);
        for (sender, target, expected) in [
            ("10.10.0.7", "10.10.0.9", true),
            ("10.10.0.1", "10.10.0.9", true),
            ("0.0.0.0", "10.10.0.7", true),
            ("10.10.0.9", "10.10.0.1", false), // normal traffic: an ARP request for the router's address
            ("0.0.0.0", "10.10.0.9", false),
            ("169.254.0.1", "10.10.0.7", false),
        ] {
            let frame = arp::request(MAC, v4(sender), v4(target));
            assert_eq!(passes(&filter, &frame), expected, "{sender} asks for {target}");
        }
        assert!(!passes(&filter, &[0; 20]), "too short");
    }

    #[test]
    fn filter_passes_nd_about_an_address_and_no_traffic() {
        let filter = program(IpFamily::V6, &["fd00:10::7".parse().unwrap()]);
        assert!(passes(&filter, &nd::solicitation(MAC, v6("::"), v6("fd00:10::7"))));
        assert!(passes(&filter, &nd::solicitation(MAC, v6("fd00:10::7"), v6("fd00:10::1"))));
        assert!(passes(&filter, &nd::announcement(MAC, v6("fd00:10::7"))));
        assert!(!passes(&filter, &nd::announcement(MAC, v6("fd00:10::8"))));
        assert!(!passes(&filter, &nd::solicitation(MAC, v6("fe80::8"), v6("fd00:10::1"))));
        let good = nd::announcement(MAC, v6("fd00:10::7"));
        for (place, value) in [(NEXT_HEADER, 17), (MESSAGE_TYPE, 128), (MESSAGE_TYPE, 134)] {
            let mut other = good.clone();
            other[place as usize] = value;
            assert!(!passes(&filter, &other), "octet {place} is {value}");
        }
    }

    #[test]
    fn filter_for_many_addresses_is_accepted_by_the_kernel() {
        for count in [0, 1, MAX_ADDRESSES, MAX_ADDRESSES + 1] {
            for family in IpFamily::ALL {
                let address = |number: usize| match family {
                    IpFamily::V4 => IpAddr::V4(Ipv4Addr::from(0x0a0a_0000 + number as u32)),
                    IpFamily::V6 => IpAddr::V6(Ipv6Addr::from(0xfd00_u128 << 112 | number as u128)),
                };
                let addresses: Vec<IpAddr> = (1..=count).map(address).collect();
                let filter = program(family, &addresses);
                let last = match address(count.max(1)) {
                    IpAddr::V4(address) => arp::request(MAC, address, v4("10.0.0.1")),
                    IpAddr::V6(address) => nd::announcement(MAC, address),
                };
                assert_eq!(passes(&filter, &last), count > 0, "{count} addresses");
                // With more than `MAX_ADDRESSES` addresses, the filter passes all frames of the
                // protocol and no other frame.
                let nobody = match family {
                    IpFamily::V4 => arp::request(MAC, v4("192.0.2.1"), v4("10.0.0.1")),
                    IpFamily::V6 => nd::announcement(MAC, v6("2001:db8::ffff:1")),
                };
                assert_eq!(passes(&filter, &nobody), count > MAX_ADDRESSES, "{count} addresses");
                let mut other = nobody;
                other[ETHER_TYPE as usize] = 0x90;
                assert!(!passes(&filter, &other), "another protocol");
            }
        }
    }
}
