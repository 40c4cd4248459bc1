//! The first sign of life of a virtual machine on a pod's interface.
//!
//! After a live migration the hypervisor and the guest announce the guest's addresses: QEMU sends a
//! RARP request with the guest's MAC address, and a virtio guest sends gratuitous ARP and
//! unsolicited Neighbour Advertisements. The agent of the target's node then knows that the guest
//! runs there, earlier than from any API server.
//!
//! | frame from the pod | counts if |
//! |---|---|
//! | ARP request or reply | its sender is one of the pod's IPv4 addresses |
//! | RARP request | its sender has the pod's MAC address |
//! | Neighbour Solicitation or Advertisement | it is valid (RFC 4861 §7.1), and about one of the pod's IPv6 addresses |
//!
//! A probe (RFC 5227, RFC 4862 §5.4.2) does not count: its sender does not use the address yet. Other
//! packets do not count, because programs beside the guest can send them.
//!
//! **The socket is on the pod's own host interface.** So no other pod and no host of the fabric can
//! send such a frame.

use std::io;
use std::net::IpAddr;

use socket2::SockFilter;

use super::frame::{self, ClaimKind, HEADER, Mac};
use super::{arp, nd};
use crate::bpf;
use crate::sockets::PacketSocket;

/// Ethernet type of RARP (RFC 903).
const RARP: u16 = 0x8035;
/// Octets of a RARP packet before the MAC address of its sender.
const RARP_SENDER: usize = 8;
/// The packet type, as in [`super::filter`].
const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
/// Offset of the frame's type.
const ETHER_TYPE: u32 = (HEADER - 2) as u32;
/// Offset of Next Header.
const NEXT_HEADER: u32 = (HEADER + 6) as u32;
/// Offset of the ICMPv6 type.
const MESSAGE_TYPE: u32 = (HEADER + nd::IPV6_HEADER) as u32;

/// A socket that receives announcements of a pod.
pub struct AnnouncementListener {
    socket: PacketSocket,
    mac: Mac,
    addresses: Vec<IpAddr>,
}

impl AnnouncementListener {
    /// Opens a socket on a pod's host interface. Needs CAP_NET_RAW.
    ///
    /// # Errors
    /// The kernel's error: the interface is gone.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open(host_ifindex: u32, mac: Mac, addresses: Vec<IpAddr>) -> io::Result<AnnouncementListener> {
        let socket = PacketSocket::open(host_ifindex, &program())?;
        Ok(AnnouncementListener { socket, mac, addresses })
    }

    /// Waits for an announcement. Returns its protocol.
    ///
    /// # Errors
    /// The kernel's error: the interface is down or deleted.
    pub async fn next(&self) -> io::Result<&'static str> {
        let mut buffer = [0; 256];
        loop {
            let length = self.socket.receive(&mut buffer).await?;
            if let Some(protocol) = announced(&buffer[..length], self.mac, &self.addresses) {
                return Ok(protocol);
            }
        }
    }
}

/// The protocol of a frame that announces the pod; `None` for any other frame.
fn announced(frame: &[u8], mac: Mac, addresses: &[IpAddr]) -> Option<&'static str> {
    if let Some((_, _, payload)) = frame::decode(frame, RARP) {
        let sender = payload.get(RARP_SENDER..RARP_SENDER + 6)?;
        return (sender == mac).then_some("RARP");
    }
    let (protocol, claim) = match arp::parse(frame) {
        Some(claim) => ("ARP", claim),
        None => ("ND", nd::parse(frame)?),
    };
    (claim.kind != ClaimKind::Probe && addresses.contains(&claim.address)).then_some(protocol)
}

/// Passes ARP, RARP and the two messages of ND that the pod sends.
fn program() -> Vec<SockFilter> {
    vec![
        bpf::load_octet(PACKET_TYPE),
        bpf::at_least(u32::from(libc::PACKET_OTHERHOST), 0, 1), // to another host, or sent by this host
        bpf::DROP,
        bpf::load_half(ETHER_TYPE),
        bpf::equal(u32::from(arp::ETHER_TYPE), 6, 0),
        bpf::equal(u32::from(RARP), 5, 0),
        bpf::equal(u32::from(nd::ETHER_TYPE), 1, 0),
        bpf::DROP,
        bpf::load_octet(NEXT_HEADER),
        bpf::equal(u32::from(nd::ICMPV6), 2, 0),
        bpf::DROP,
        bpf::KEEP,
        bpf::load_octet(MESSAGE_TYPE),
        bpf::equal(u32::from(nd::SOLICITATION), 2, 0),
        bpf::equal(u32::from(nd::ADVERTISEMENT), 1, 0),
        bpf::DROP,
        bpf::KEEP,
    ]
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::os::unix::net::UnixDatagram;

    use socket2::SockRef;

    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 7];
    const OTHER: Mac = [2, 0, 0, 0, 0, 9];

    fn rarp(mac: Mac) -> Vec<u8> {
        let packet = [&[0, 1, 8, 0, 6, 4, 0, 3][..], &mac, &[0; 4], &mac, &[0; 4], &[0; 18]].concat();
        frame::encode(frame::BROADCAST, mac, RARP, &packet)
    }

    fn passes(frame: &[u8]) -> bool {
        let (from, to) = UnixDatagram::pair().unwrap();
        to.set_nonblocking(true).unwrap();
        SockRef::from(&to).attach_filter(&program()).unwrap();
        from.send(frame).unwrap();
        to.recv(&mut [0; 256]).is_ok()
    }

    #[test]
    fn announcements_of_the_pod_count_and_other_frames_do_not() {
        let (v4, other_v4) = (Ipv4Addr::new(10, 0, 0, 7), Ipv4Addr::new(10, 0, 0, 8));
        let (v6, other_v6) =
            (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 7), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, 7));
        let addresses = [v4.into(), v6.into()];
        let [gratuitous, reply] = arp::announcements(MAC, v4);
        let mut echo = nd::announcement(MAC, v6);
        echo[MESSAGE_TYPE as usize] = 128;
        let mut tcp = nd::announcement(MAC, v6);
        tcp[NEXT_HEADER as usize] = 6;
        let mut forged = nd::announcement(MAC, v6);
        forged[HEADER + 7] = 64;
        for (case, frame, filter, expected) in [
            ("gratuitous ARP", gratuitous, true, Some("ARP")),
            ("ARP reply", reply, true, Some("ARP")),
            ("ARP request for the gateway", arp::request(MAC, v4, other_v4), true, Some("ARP")),
            ("ARP probe", arp::request(MAC, Ipv4Addr::UNSPECIFIED, v4), true, None),
            ("gratuitous ARP of another address", arp::request(MAC, other_v4, other_v4), true, None),
            ("RARP", rarp(MAC), true, Some("RARP")),
            ("RARP of another machine", rarp(OTHER), true, None),
            ("unsolicited NA", nd::announcement(MAC, v6), true, Some("ND")),
            ("NA of another address", nd::announcement(MAC, other_v6), true, None),
            ("DAD", nd::solicitation(MAC, Ipv6Addr::UNSPECIFIED, v6), true, None),
            ("NA over a router", forged, true, None),
            ("ICMPv6 echo", echo, false, None),
            ("TCP", tcp, false, None),
            ("truncated RARP", rarp(MAC)[..20].to_vec(), true, None),
            ("IPv4", frame::encode(MAC, MAC, 0x0800, &[0; 40]), false, None),
        ] {
            assert_eq!(passes(&frame), filter, "{case}");
            assert_eq!(announced(&frame, MAC, &addresses), expected, "{case}");
        }
    }
}
