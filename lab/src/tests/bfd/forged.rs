//! Forged BFD packets: a raw socket, another host's source address, TTL 255.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result};
use socket2::{Domain, Protocol, Socket, Type};
use trunkline_bgp::bfd::Packet;

/// `IPPROTO_RAW`: the sender supplies the IP header.
const RAW: i32 = 255;

/// One packet, with its IP header.
pub(super) struct Forged {
    to: SocketAddr,
    octets: Vec<u8>,
}

impl Forged {
    /// A BFD packet that claims to be from `from`.
    pub(super) fn new(from: IpAddr, to: SocketAddr, packet: &Packet) -> Result<Forged> {
        let mut udp = Vec::new();
        let payload = packet.encode();
        let length = u16::try_from(8 + payload.len())?;
        for half in [49_152, to.port(), length, 0] {
            udp.extend(half.to_be_bytes());
        }
        udp.extend(payload);
        let octets = match (from, to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                // The kernel fills in the length, the identification and the checksum; UDP needs
                // none over IPv4.
                let mut header = vec![0x45, 0xc0, 0, 0, 0, 0, 0, 0, 255, 17, 0, 0];
                header.extend(from.octets());
                header.extend(to.octets());
                [header, udp].concat()
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let mut header = vec![0x6c, 0, 0, 0];
                header.extend(length.to_be_bytes());
                header.extend([17, 255]);
                header.extend(from.octets());
                header.extend(to.octets());
                let pseudo = [&header[8..], &[0, 0], &length.to_be_bytes(), &[0, 0, 0, 17], &udp].concat();
                udp[6..8].copy_from_slice(&checksum(&pseudo).to_be_bytes());
                [header, udp].concat()
            }
            (from, to) => anyhow::bail!("{from} and {to} are of different families"),
        };
        Ok(Forged { to, octets })
    }
}

fn checksum(octets: &[u8]) -> u16 {
    let sum: u32 = octets
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low)))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// Sends each packet this number of times from the calling thread's network namespace. Returns the
/// number of packets sent.
pub(super) fn send(packets: &[Forged], times: usize) -> Result<usize> {
    let v4 = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(RAW)))?;
    v4.set_header_included_v4(true)?;
    let v6 = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::from(RAW)))?;
    let mut sent = 0;
    for _ in 0..times {
        for Forged { to, octets } in packets {
            let socket = if to.is_ipv4() { &v4 } else { &v6 };
            // A raw socket of IPv6 has no ports.
            let to = SocketAddr::new(to.ip(), 0);
            socket.send_to(octets, &to.into()).with_context(|| format!("to {to}"))?;
            sent += 1;
        }
    }
    Ok(sent)
}
