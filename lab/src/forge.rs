//! Packets with any source address, sent through a raw socket like a pod with CAP_NET_RAW does.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use anyhow::{Context as _, Result, bail};
use socket2::{Domain, Protocol, Socket, Type};

use crate::netns::Namespace;

const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMP_V6: u8 = 58;
/// Raw IP: the packet has its own header (raw(7)).
const RAW: i32 = 255;

/// A packet with its IP header.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    octets: Vec<u8>,
    to: IpAddr,
}

impl Packet {
    /// A UDP datagram.
    pub(crate) fn udp(from: (IpAddr, u16), to: (IpAddr, u16), payload: &[u8]) -> Result<Packet> {
        let length = 8 + u16::try_from(payload.len())?;
        let ports = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
        let datagram = [&ports[..], &length.to_be_bytes(), &[0, 0], payload].concat();
        Packet::of(from.0, to.0, UDP, 64, datagram, 6)
    }

    /// An ICMP message; for ICMPv6 the type determines the rest.
    pub(crate) fn icmp(from: IpAddr, to: IpAddr, hop_limit: u8, kind: u8, rest: &[u8]) -> Result<Packet> {
        let protocol = if from.is_ipv4() { ICMP } else { ICMP_V6 };
        let message = [&[kind, 0, 0, 0][..], rest].concat();
        Packet::of(from, to, protocol, hop_limit, message, 2)
    }

    /// A router advertisement (RFC 4861 §4.2) that offers a default route for an hour.
    pub(crate) fn router_advertisement(from: Ipv6Addr) -> Result<Packet> {
        let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        let lifetime = 3600_u16.to_be_bytes();
        let rest = [&[64, 0][..], &lifetime, &[0; 8]].concat();
        Packet::icmp(from.into(), all_nodes.into(), 255, 134, &rest)
    }

    /// A router advertisement in a VXLAN packet (RFC 7348 §5), in an Ethernet frame for this MAC
    /// address.
    pub(crate) fn in_vxlan(&self, vni: u32, mac: [u8; 6], from: IpAddr, to: IpAddr) -> Result<Packet> {
        self.in_vxlan_to(vni, mac, from, (to, 8_472))
    }

    /// The same to another port, which a node translates.
    pub(crate) fn in_vxlan_to(
        &self,
        vni: u32,
        mac: [u8; 6],
        from: IpAddr,
        to: (IpAddr, u16),
    ) -> Result<Packet> {
        let [_, vni @ ..] = vni.to_be_bytes();
        let ether_type: [u8; 2] = if self.to.is_ipv4() { [0x08, 0x00] } else { [0x86, 0xdd] };
        let header = [&[8, 0, 0, 0][..], &vni, &[0]].concat();
        let frame = [&mac[..], &[2, 0, 0, 0, 0, 9], &ether_type, &self.octets].concat();
        Packet::udp((from, 4_000), to, &[header, frame].concat())
    }

    /// `checksum`: its offset in the payload.
    fn of(
        from: IpAddr,
        to: IpAddr,
        protocol: u8,
        hop_limit: u8,
        mut payload: Vec<u8>,
        checksum: usize,
    ) -> Result<Packet> {
        let length = u16::try_from(payload.len())?;
        let (pseudo, mut header) = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let pseudo =
                    [&from.octets()[..], &to.octets(), &[0, protocol], &length.to_be_bytes()].concat();
                (pseudo, v4_header(from, to, protocol, hop_limit, length))
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let addresses = [from.octets(), to.octets()].concat();
                let pseudo =
                    [&addresses[..], &u32::from(length).to_be_bytes(), &[0, 0, 0, protocol]].concat();
                let fixed = [&[0x60, 0, 0, 0][..], &length.to_be_bytes(), &[protocol, hop_limit]].concat();
                (pseudo, [fixed, addresses].concat())
            }
            _ => bail!("{from} to {to}: two families"),
        };
        let pseudo = if protocol == ICMP { Vec::new() } else { pseudo };
        let sum = sum(&[pseudo, payload.clone()].concat());
        payload[checksum..checksum + 2].copy_from_slice(&sum.to_be_bytes());
        header.extend(payload);
        Ok(Packet { octets: header, to })
    }

    /// Sends it from a namespace through one of its links.
    pub(crate) fn send(&self, from: &Namespace, link: &str) -> Result<()> {
        let index: u32 = from
            .ip(["-o", "link", "show", "dev", link])
            .with_context(|| format!("no link {link}"))?
            .trim()
            .split(':')
            .next()
            .unwrap_or_default()
            .parse()?;
        from.within(|| {
            let (domain, to): (_, SocketAddr) = match self.to {
                IpAddr::V4(to) => (Domain::IPV4, (to, 0).into()),
                IpAddr::V6(to) => (Domain::IPV6, SocketAddrV6::new(to, 0, 0, index).into()),
            };
            let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(RAW)))?;
            match self.to {
                IpAddr::V4(_) => {
                    socket.set_header_included_v4(true)?;
                    socket.set_broadcast(true)?;
                }
                IpAddr::V6(_) => socket.set_header_included_v6(true)?,
            }
            socket.bind_device(Some(link.as_bytes()))?;
            socket.send_to(&self.octets, &to.into()).with_context(|| format!("to {}", self.to))?;
            Ok(())
        })
    }
}

fn v4_header(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, ttl: u8, length: u16) -> Vec<u8> {
    let total = (20 + length).to_be_bytes();
    let fixed = [0x45, 0, total[0], total[1], 0, 1, 0, 0, ttl, protocol, 0, 0];
    let mut header = [&fixed[..], &from.octets(), &to.octets()].concat();
    let sum = sum(&header).to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    header
}

/// The Internet checksum (RFC 1071).
fn sum(octets: &[u8]) -> u16 {
    let words = octets.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    match !(sum as u16) {
        0 => 0xffff,
        sum => sum,
    }
}
