//! Frames of probes.
//!
//! There are two kinds, each for IPv4 and IPv6. Above IP, both have a header of 8 octets and then
//! the same content:
//!
//! | octets | |
//! |---|---|
//! | 0–3 | [`PROBE_MAGIC`], a constant: the kernel's rule drops returned packets with it |
//! | 4–7 | the cookie of this run of the agent: the socket's filter accepts only this cookie |
//! | 8–15 | a unique number of this packet, which identifies the result |
//! | 16– | zeros, up to the length |

use std::net::IpAddr;

use trunkline_datapath::plan::{PROBE_ECHO, PROBE_MAGIC, PROBE_PORT};

pub(super) type Mac = [u8; 6];

/// Octets of an Ethernet header.
const ETHERNET: usize = 14;
/// Octets of an ICMP echo's or UDP's header.
const UPPER: usize = 8;
/// Octets of the content without zeros.
const CONTENT: usize = 16;
/// The content's place in a frame.
pub(super) const CONTENT_V4: usize = ETHERNET + 20 + UPPER;
pub(super) const CONTENT_V6: usize = ETHERNET + 40 + UPPER;

const ICMP: u8 = 1;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// How a probe returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Its destination answers with an echo reply.
    Echo,
    /// The destination is this node, and the router forwards the packet back. Routers select among
    /// equal paths by the UDP source port.
    Loop {
        /// The UDP source port.
        port: u16,
    },
}

/// One probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) kind: Kind,
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    /// TTL or hop limit.
    pub(super) hops: u8,
    /// Octets from the IP header on; at least the length of the headers and the content.
    pub(super) length: usize,
    pub(super) cookie: u32,
    pub(super) number: u64,
}

/// A returned packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbeReply {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) hops: u8,
    /// Whether it is an echo reply. Otherwise it is a packet that the router forwarded back.
    pub(super) reply: bool,
    pub(super) cookie: u32,
    pub(super) number: u64,
}

impl Packet {
    /// Whether this packet is the correct return of the probe: an echo reply from its destination,
    /// or the same packet after exactly one router.
    pub(super) fn is_answered_by(&self, returned: &ProbeReply) -> bool {
        let matches = match self.kind {
            Kind::Echo => {
                returned.reply && (returned.source, returned.destination) == (self.destination, self.source)
            }
            Kind::Loop { .. } => {
                !returned.reply
                    && (returned.source, returned.destination) == (self.source, self.destination)
                    && returned.hops + 1 == self.hops
            }
        };
        matches && (returned.cookie, returned.number) == (self.cookie, self.number)
    }

    /// The frame. Don't Fragment is set.
    pub(super) fn frame(&self, from: Mac, to: Mac) -> Vec<u8> {
        let (v4, header) = (self.source.is_ipv4(), if self.source.is_ipv4() { 20 } else { 40 });
        let length = self.length.clamp(header + UPPER + CONTENT, usize::from(u16::MAX));
        let mut frame = vec![0; ETHERNET + length];
        frame[..6].copy_from_slice(&to);
        frame[6..12].copy_from_slice(&from);
        let (network, upper) = frame.split_at_mut(ETHERNET + header);
        let protocol = match self.kind {
            Kind::Loop { .. } => UDP,
            Kind::Echo if v4 => ICMP,
            Kind::Echo => ICMPV6,
        };
        let upper_length = (length - header) as u16;
        upper[UPPER..UPPER + 4].copy_from_slice(&PROBE_MAGIC.to_be_bytes());
        upper[UPPER + 4..UPPER + 8].copy_from_slice(&self.cookie.to_be_bytes());
        upper[UPPER + 8..UPPER + CONTENT].copy_from_slice(&self.number.to_be_bytes());
        let checksum_at = match self.kind {
            Kind::Loop { port } => {
                upper[..2].copy_from_slice(&port.to_be_bytes());
                upper[2..4].copy_from_slice(&PROBE_PORT.to_be_bytes());
                upper[4..6].copy_from_slice(&upper_length.to_be_bytes());
                6
            }
            Kind::Echo => {
                upper[0] = if v4 { 8 } else { 128 };
                upper[4..6].copy_from_slice(&PROBE_ECHO.to_be_bytes());
                upper[6..8].copy_from_slice(&self.number.to_be_bytes()[6..]);
                2
            }
        };
        let pseudo = match (protocol, self.source, self.destination) {
            (ICMP, ..) => 0,
            (_, source, destination) => {
                add(octets(source).as_slice())
                    + add(octets(destination).as_slice())
                    + u64::from(protocol)
                    + u64::from(upper_length)
            }
        };
        let checksum = match fold(pseudo + add(upper)) {
            // In UDP, 0 means "no checksum".
            0 if protocol == UDP => u16::MAX,
            checksum => checksum,
        };
        upper[checksum_at..checksum_at + 2].copy_from_slice(&checksum.to_be_bytes());
        let ip = &mut network[ETHERNET..];
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ip[0] = 0x45;
                ip[2..4].copy_from_slice(&(length as u16).to_be_bytes());
                ip[6] = 0x40;
                (ip[8], ip[9]) = (self.hops, protocol);
                ip[12..16].copy_from_slice(&source.octets());
                ip[16..20].copy_from_slice(&destination.octets());
                let checksum = fold(add(ip));
                ip[10..12].copy_from_slice(&checksum.to_be_bytes());
                network[12..14].copy_from_slice(&(libc::ETH_P_IP as u16).to_be_bytes());
            }
            (source, destination) => {
                ip[0] = 0x60;
                ip[4..6].copy_from_slice(&upper_length.to_be_bytes());
                (ip[6], ip[7]) = (protocol, self.hops);
                ip[8..24].copy_from_slice(octets(source).as_slice());
                ip[24..40].copy_from_slice(octets(destination).as_slice());
                network[12..14].copy_from_slice(&(libc::ETH_P_IPV6 as u16).to_be_bytes());
            }
        }
        frame
    }
}

/// Parses a frame that may be a returned probe. The kernel and the network cards check checksums;
/// only the number matters here.
pub(super) fn read(frame: &[u8]) -> Option<ProbeReply> {
    let word = |at: usize| Some(u32::from_be_bytes(frame.get(at..at + 4)?.try_into().ok()?));
    let ip = frame.get(ETHERNET..)?;
    let (source, destination, hops, protocol, content) = match ip.first()? {
        // The header must have no options, and the packet must not be a later fragment.
        0x45 if ip.get(6)? & 0x1f == 0 && *ip.get(7)? == 0 => {
            let address = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?));
            (address(12)?, address(16)?, ip[8], ip[9], CONTENT_V4)
        }
        first if first >> 4 == 6 => {
            let address = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(ip.get(at..at + 16)?).ok()?));
            (address(8)?, address(24)?, ip[7], ip[6], CONTENT_V6)
        }
        _ => return None,
    };
    let upper = frame.get(content - UPPER..content)?;
    let id = u16::from_be_bytes([upper[4], upper[5]]);
    let port = u16::from_be_bytes([upper[2], upper[3]]);
    let reply = match protocol {
        ICMP if upper[0] == 0 && id == PROBE_ECHO && source.is_ipv4() => true,
        ICMPV6 if upper[0] == 129 && id == PROBE_ECHO => true,
        UDP if port == PROBE_PORT => false,
        _ => return None,
    };
    if word(content)? != PROBE_MAGIC {
        return None;
    }
    let number = u64::from(word(content + 8)?) << 32 | u64::from(word(content + 12)?);
    Some(ProbeReply { source, destination, hops, reply, cookie: word(content + 4)?, number })
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The sum of 16-bit words (RFC 1071).
fn add(octets: &[u8]) -> u64 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
    octets.chunks(2).map(word).sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(kind: Kind, source: &str, destination: &str, length: usize) -> Packet {
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        Packet { kind, source, destination, hops: 2, length, cookie: 0xc0ffee, number: 0x0102_0304_0506_0708 }
    }

    const LOOP: Kind = Kind::Loop { port: 50_000 };

    #[test]
    fn a_returned_probe_answers_it_only_after_one_router() {
        for (source, destination) in [("10.0.0.1", "10.1.0.5"), ("2001:db8::1", "2001:db8:1::5")] {
            let sent = packet(LOOP, source, destination, 1500);
            let mut frame = sent.frame([1; 6], [2; 6]);
            assert_eq!(frame.len(), ETHERNET + 1500);
            assert!(!sent.is_answered_by(&read(&frame).unwrap()), "its own frame");
            let hops = ETHERNET + if sent.source.is_ipv4() { 8 } else { 7 };
            frame[hops] = 1;
            assert!(sent.is_answered_by(&read(&frame).unwrap()));
            for other in [
                Packet { number: 9, ..sent },
                Packet { cookie: 9, ..sent },
                Packet { source: sent.destination, ..sent },
                Packet { kind: Kind::Echo, ..sent },
            ] {
                assert!(!other.is_answered_by(&read(&frame).unwrap()), "{other:?}");
            }
        }
    }

    #[test]
    fn a_reply_answers_an_echo_only_from_its_destination() {
        for (source, destination, request, reply) in
            [("10.0.0.1", "10.0.0.2", 8, 0), ("2001:db8::1", "2001:db8::2", 128, 129)]
        {
            let sent = packet(Kind::Echo, source, destination, 0);
            let back = packet(Kind::Echo, destination, source, 0);
            let mut frame = back.frame([1; 6], [2; 6]);
            let kind = if sent.source.is_ipv4() { CONTENT_V4 } else { CONTENT_V6 } - UPPER;
            assert_eq!((frame[kind], read(&frame)), (request, None), "a request is no answer");
            frame[kind] = reply;
            assert!(sent.is_answered_by(&read(&frame).unwrap()));
            assert!(!back.is_answered_by(&read(&frame).unwrap()), "from itself");
        }
    }

    #[test]
    fn checksums_add_up() {
        for (kind, source, destination) in [
            (LOOP, "10.0.0.1", "10.1.0.5"),
            (Kind::Echo, "10.0.0.1", "10.1.0.5"),
            (LOOP, "2001:db8::1", "2001:db8:1::5"),
            (Kind::Echo, "2001:db8::1", "2001:db8:1::5"),
        ] {
            for length in [0, 99, 1500] {
                let packet = packet(kind, source, destination, length);
                let frame = packet.frame([0; 6], [0; 6]);
                let v4 = packet.source.is_ipv4();
                let (ip, upper) = frame[ETHERNET..].split_at(if v4 { 20 } else { 40 });
                assert!(!v4 || fold(add(ip)) == 0);
                let protocol = if v4 { ip[9] } else { ip[6] };
                let addresses = [octets(packet.source), octets(packet.destination)].concat();
                let pseudo = add(&addresses) + u64::from(protocol) + upper.len() as u64;
                let pseudo = if protocol == ICMP { 0 } else { pseudo };
                assert_eq!(fold(pseudo + add(upper)), 0, "{packet:?}");
            }
        }
    }

    #[test]
    fn no_prefix_of_a_frame_and_no_other_content_is_read() {
        let frame = packet(LOOP, "10.0.0.1", "10.1.0.5", 0).frame([0; 6], [0; 6]);
        assert!(read(&frame).is_some());
        (0..frame.len()).for_each(|length| assert_eq!(read(&frame[..length]), None, "{length} octets"));
        for (at, value) in [(CONTENT_V4, 0), (ETHERNET, 0x46), (ETHERNET + 7, 1), (ETHERNET + 9, 6)] {
            let mut other = frame.clone();
            other[at] = value;
            assert_eq!(read(&other), None, "octet {at}");
        }
    }
}
