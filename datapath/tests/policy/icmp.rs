//! ICMP errors that a pod writes itself.

use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

use super::Pod;
use crate::namespace::inside;

/// Sends the error "port unreachable" about a datagram, from a pod's own address.
pub(crate) fn unreachable(from: &Pod, datagram_from: SocketAddr, datagram_to: SocketAddr) {
    let ports = [datagram_from.port(), datagram_to.port(), 9, 0].map(u16::to_be_bytes).concat();
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let ends = [octets(datagram_from.ip()), octets(datagram_to.ip())].concat();
    let (domain, protocol, packet) = if datagram_from.is_ipv4() {
        let header = [0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0];
        let mut packet = [&[3, 3, 0, 0, 0, 0, 0, 0][..], &header, &ends, &ports, b"x\0"].concat();
        let sum: u32 = packet.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
        (Domain::IPV4, Protocol::ICMPV4, packet)
    } else {
        // The kernel writes the checksum.
        let header = [0x60, 0, 0, 0, 0, 9, 17, 64];
        let packet = [&[1, 4, 0, 0, 0, 0, 0, 0][..], &header, &ends, &ports, b"x"].concat();
        (Domain::IPV6, Protocol::ICMPV6, packet)
    };
    inside(&from.namespace, || {
        let raw = Socket::new(domain, Type::RAW, Some(protocol)).unwrap();
        raw.send_to(&packet, &SocketAddr::new(datagram_from.ip(), 0).into()).unwrap();
    });
}
