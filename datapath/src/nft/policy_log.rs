//! Packets that rules of network policies report: NFLOG (`linux/netfilter/nfnetlink_log.h`).

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;

use tokio::io::unix::AsyncFd;

use super::policy::LOG_GROUP;
use crate::netlink::events::{Events, ReadResult};
use crate::netlink::message::Message;
use crate::netlink::netfilter::{Connection, after_header, nested, number, number_of, octets, text_of};
use crate::plan::policy::CounterId;

const SUBSYSTEM: u16 = libc::NFNL_SUBSYS_ULOG as u16;
// NFULNL_MSG_…
const PACKET: u16 = SUBSYSTEM << 8;
const CONFIG: u16 = SUBSYSTEM << 8 | 1;
// NFULA_CFG_…
const CONFIG_COMMAND: u16 = 1;
const CONFIG_MODE: u16 = 2;
const CONFIG_TIMEOUT: u16 = 4;
const CONFIG_THRESHOLD: u16 = 5;
/// `NFULNL_CFG_CMD_BIND`.
const BIND: u8 = 1;
/// `NFULNL_COPY_PACKET`.
const COPY_PACKET: u8 = 2;
// NFULA_…
const INPUT: u16 = 4;
const OUTPUT: u16 = 5;
const PAYLOAD: u16 = 9;
const PREFIX: u16 = 10;

/// The kernel sends reports after this time, in hundredths of a second, or after this number.
const DELAY: u32 = 20;
const REPORTS: u32 = 20;
/// Size of the receive buffer in octets: some thousand reports. The rules limit their rate.
const RECEIVE_BUFFER: usize = 1 << 20;

/// A reported packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedPacket {
    /// The counter of the rule.
    pub counter: CounterId,
    /// The ifindex of the device that received the packet.
    pub input: Option<u32>,
    /// The ifindex of the device that sends the packet.
    pub output: Option<u32>,
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The protocol number (IANA). For IPv6: of the header after the extension headers.
    pub protocol: u8,
    /// Source and destination port of TCP, UDP or SCTP.
    pub ports: Option<(u16, u16)>,
    /// Length in octets, from the IP header on.
    pub length: usize,
}

/// The listener. A network namespace has at most one.
pub struct PolicyLog {
    events: AsyncFd<Events>,
    pending: VecDeque<LoggedPacket>,
}

impl PolicyLog {
    /// Opens the listener in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel's error; `EBUSY` if another program has the group.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open() -> io::Result<PolicyLog> {
        let mut connection = Connection::open()?;
        connection.request(LOG_GROUP, CONFIG, libc::AF_UNSPEC, |message| {
            octets(message, CONFIG_COMMAND, &[BIND]);
        })?;
        connection.request(LOG_GROUP, CONFIG, libc::AF_UNSPEC, |message| {
            // The rules limit the octets of a packet.
            let [a, b, c, d] = 0xffff_u32.to_be_bytes();
            octets(message, CONFIG_MODE, &[a, b, c, d, COPY_PACKET, 0]);
            number(message, CONFIG_TIMEOUT, DELAY);
            number(message, CONFIG_THRESHOLD, REPORTS);
        })?;
        let events = connection.into_events(RECEIVE_BUFFER)?.register()?;
        Ok(PolicyLog { events, pending: VecDeque::new() })
    }

    /// The next packet. A call that is cancelled loses no packet.
    ///
    /// # Errors
    /// The kernel's error.
    pub async fn next(&mut self) -> io::Result<LoggedPacket> {
        loop {
            if let Some(packet) = self.pending.pop_front() {
                return Ok(packet);
            }
            let mut ready = self.events.readable_mut().await?;
            match ready.get_inner_mut().read()? {
                ReadResult::Message => {
                    self.pending.extend(ready.get_inner().messages().filter_map(|message| read(&message)));
                }
                ReadResult::WouldBlock => ready.clear_ready(),
                // Reports were lost.
                ReadResult::Overrun => {}
            }
        }
    }
}

/// Reads a report. None if it is not from a rule of a policy, or is malformed.
fn read(message: &Message<'_>) -> Option<LoggedPacket> {
    if message.kind != PACKET {
        return None;
    }
    let body = after_header(message);
    let counter = u64::from_str_radix(text_of(body, PREFIX)?, 16).ok()?;
    let header = IpHeader::read(nested(body, PAYLOAD).next()?)?;
    Some(LoggedPacket {
        counter: CounterId::from(counter),
        input: number_of(body, INPUT),
        output: number_of(body, OUTPUT),
        source: header.source,
        destination: header.destination,
        protocol: header.protocol,
        ports: header.ports,
        length: header.length,
    })
}

/// The fields of a packet's IP header, and its ports.
#[derive(Debug, PartialEq, Eq)]
struct IpHeader {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    ports: Option<(u16, u16)>,
    length: usize,
}

impl IpHeader {
    /// Reads the first octets of a packet.
    fn read(packet: &[u8]) -> Option<IpHeader> {
        match packet.first()? >> 4 {
            4 => IpHeader::read_v4(packet),
            6 => IpHeader::read_v6(packet),
            _ => None,
        }
    }

    /// RFC 791 §3.1.
    fn read_v4(packet: &[u8]) -> Option<IpHeader> {
        let fixed: &[u8; 20] = packet.first_chunk()?;
        let options_end = usize::from(fixed[0] & 0xf) * 4;
        let is_first = half(packet, 6)? & 0x1fff == 0;
        let protocol = fixed[9];
        let transport = packet.get(options_end.max(20)..).filter(|_| is_first);
        Some(IpHeader {
            source: IpAddr::from(*fixed[12..].first_chunk::<4>()?),
            destination: IpAddr::from(*fixed[16..].first_chunk::<4>()?),
            protocol,
            ports: transport.and_then(|transport| ports(protocol, transport)),
            length: usize::from(half(packet, 2)?),
        })
    }

    /// RFC 8200 §3, §4.
    fn read_v6(packet: &[u8]) -> Option<IpHeader> {
        let fixed: &[u8; 40] = packet.first_chunk()?;
        let (mut protocol, mut rest, mut is_first) = (fixed[6], &packet[40..], true);
        // Each step removes octets from the rest, so the loop ends.
        while let Some((next, length)) = extension(protocol, rest) {
            if i32::from(protocol) == libc::IPPROTO_FRAGMENT {
                is_first &= half(rest, 2)? & !7 == 0;
            }
            (protocol, rest) = (next, rest.get(length..).unwrap_or_default());
        }
        Some(IpHeader {
            source: IpAddr::from(*fixed[8..].first_chunk::<16>()?),
            destination: IpAddr::from(*fixed[24..].first_chunk::<16>()?),
            protocol,
            ports: if is_first { ports(protocol, rest) } else { None },
            length: usize::from(half(packet, 4)?) + fixed.len(),
        })
    }
}

/// The next header and the length of an extension header. None for another header.
fn extension(kind: u8, header: &[u8]) -> Option<(u8, usize)> {
    let [next, length, ..] = header else { return None };
    let length = match i32::from(kind) {
        libc::IPPROTO_HOPOPTS | libc::IPPROTO_ROUTING | libc::IPPROTO_DSTOPTS => {
            (usize::from(*length) + 1) * 8
        }
        libc::IPPROTO_FRAGMENT => 8,
        libc::IPPROTO_AH => (usize::from(*length) + 2) * 4,
        _ => return None,
    };
    Some((*next, length))
}

/// Source and destination port: the first fields of TCP, UDP and SCTP.
fn ports(protocol: u8, transport: &[u8]) -> Option<(u16, u16)> {
    let has_ports = matches!(i32::from(protocol), libc::IPPROTO_TCP | libc::IPPROTO_UDP | libc::IPPROTO_SCTP);
    has_ports.then(|| Some((half(transport, 0)?, half(transport, 2)?)))?
}

fn half(octets: &[u8], offset: usize) -> Option<u16> {
    octets.get(offset..)?.first_chunk().map(|octets| u16::from_be_bytes(*octets))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(protocol: u8, fragment: u16, transport: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x46, 0, 0, 100, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet.extend([1; 4]);
        packet.extend(transport);
        packet
    }

    fn v6(next: u8, rest: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 60, next, 64];
        packet.extend("fd00::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
        packet.extend("fd00::2".parse::<std::net::Ipv6Addr>().unwrap().octets());
        packet.extend(rest);
        packet
    }

    /// The body of a report.
    fn report(prefix: &str, packet: &[u8]) -> Vec<u8> {
        let mut body = vec![2, 0, 0, 116];
        number(&mut body, INPUT, 7);
        crate::netlink::netfilter::text(&mut body, PREFIX, prefix);
        octets(&mut body, PAYLOAD, packet);
        body
    }

    fn parse(kind: u16, body: &[u8]) -> Option<LoggedPacket> {
        read(&Message { kind, flags: 0, sequence: 0, body })
    }

    const TCP: [u8; 4] = [0x30, 0x39, 0, 80];

    #[test]
    fn a_report_has_addresses_ports_and_links() {
        let packet = parse(PACKET, &report("00000000000000ff", &v4(6, 0, &TCP))).unwrap();
        let expected = LoggedPacket {
            counter: CounterId::from(255),
            input: Some(7),
            output: None,
            source: "10.0.0.1".parse().unwrap(),
            destination: "10.0.0.2".parse().unwrap(),
            protocol: 6,
            ports: Some((12345, 80)),
            length: 100,
        };
        assert_eq!(packet, expected);
        assert_eq!(parse(CONFIG, &report("ff", &v4(6, 0, &TCP))), None);
        assert_eq!(parse(PACKET, &report("another program", &v4(6, 0, &TCP))), None);
    }

    #[test]
    fn ports_come_after_options_and_extension_headers() {
        let ports = |packet: &[u8]| IpHeader::read(packet).map(|header| (header.protocol, header.ports));
        let found = Some((12345, 80));
        assert_eq!(ports(&v4(17, 0, &TCP)), Some((17, found)));
        assert_eq!(ports(&v4(1, 0, &TCP)), Some((1, None)), "ICMP");
        assert_eq!(ports(&v4(6, 5, &TCP)), Some((6, None)), "a later fragment");
        assert_eq!(ports(&v6(6, &TCP)), Some((6, found)));
        let routing = [6, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(ports(&v6(43, &[&routing[..], &TCP].concat())), Some((6, found)));
        let fragment = |offset| [17, 0, 0, offset, 0, 0, 0, 1];
        assert_eq!(ports(&v6(44, &[&fragment(1)[..], &TCP].concat())), Some((17, found)));
        assert_eq!(ports(&v6(44, &[&fragment(8)[..], &TCP].concat())), Some((17, None)));
        assert_eq!(ports(&[0x50; 40]), None);
        assert_eq!(ports(&[]), None);
    }

    #[test]
    fn a_truncated_report_is_ignored() {
        let routing = [6, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for packet in [v4(6, 0, &TCP), v6(43, &[&routing[..], &TCP].concat()), v6(44, &[44; 64])] {
            for length in 0..packet.len() {
                if let Some(header) = IpHeader::read(&packet[..length]) {
                    assert_eq!(header.ports, None, "{length}");
                }
            }
            let body = report("ff", &packet);
            // No length makes the reader panic.
            let read = (0..body.len()).filter_map(|length| parse(PACKET, &body[..length]));
            assert!(read.count() < body.len());
        }
        // An options length beyond the packet.
        let mut packet = v4(6, 0, &[]);
        packet[0] = 0x4f;
        assert_eq!(IpHeader::read(&packet).unwrap().ports, None);
    }
}
