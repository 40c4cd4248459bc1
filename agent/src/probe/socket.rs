//! The sockets of one round: a packet socket for each uplink and family.
//!
//! A socket is open only while probes are under way: each packet of the uplink runs its filter. It is bound to all protocols, because only
//! such a socket receives a packet before the ingress hook, where the kernel drops probes. Closing it waits for the kernel's readers, so
//! that is done on a thread that may wait.

use std::io;
use std::net::IpAddr;

use socket2::{Domain, SockFilter, Socket, Type};
use tokio::net::UdpSocket;
use trunkline_bgp::types::Family;

use super::packet::{self, CONTENT_V4, CONTENT_V6, Mac, ProbeReply};
use crate::bpf;
use crate::kernel::netlink::lookup::read_neighbour_state;
use crate::kernel::netlink::{Batch, Connection};
use crate::link_check::bind_packet_socket;
use crate::plan::PROBE_MAGIC;

/// Octets that are read of a frame: what comes after the content is zeros.
const LONGEST: usize = 128;

/// One uplink and family.
pub(super) struct Uplink {
    /// None only while it is closed.
    socket: Option<UdpSocket>,
    mac: Mac,
}

impl Uplink {
    /// Opens it. Needs CAP_NET_RAW.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(super) fn open(ifindex: u32, family: Family, cookie: u32) -> io::Result<Uplink> {
        // Without a protocol it receives nothing until it is bound: never anything that has not passed the filter.
        let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
        socket.attach_filter(&filter(family, cookie))?;
        let mac = bind_packet_socket(&socket, ifindex, libc::ETH_P_ALL as u16)?;
        socket.set_nonblocking(true)?;
        Ok(Uplink { socket: Some(UdpSocket::from_std(socket.into())?), mac })
    }

    /// This node's MAC address there.
    pub(super) fn mac(&self) -> Mac {
        self.mac
    }

    /// Sends a frame.
    pub(super) async fn send(&self, frame: &[u8]) -> io::Result<()> {
        match &self.socket {
            Some(socket) => socket.send(frame).await.map(drop),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The next probe that comes back.
    pub(super) async fn receive(&self) -> io::Result<ProbeReply> {
        let Some(socket) = &self.socket else { return Err(io::ErrorKind::NotConnected.into()) };
        let mut buffer = [0; LONGEST];
        loop {
            let length = socket.recv(&mut buffer).await?;
            if let Some(returned) = packet::read(&buffer[..length]) {
                return Ok(returned);
            }
        }
    }
}

impl Drop for Uplink {
    fn drop(&mut self) {
        let Some(Ok(socket)) = self.socket.take().map(UdpSocket::into_std) else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(socket));
        }
    }
}

/// Probes of this run, by magic and cookie. The rest is looked at in [`packet::read`].
fn filter(family: Family, cookie: u32) -> Vec<SockFilter> {
    let content = match family {
        Family::Ipv4Unicast => CONTENT_V4,
        Family::Ipv6Unicast => CONTENT_V6,
    } as u32;
    vec![
        bpf::load_word(content),
        bpf::equal(PROBE_MAGIC, 1, 0),
        bpf::DROP,
        bpf::load_word(content + 4),
        bpf::equal(cookie, 1, 0),
        bpf::DROP,
        bpf::KEEP,
    ]
}

/// The MAC addresses of next hops, as the kernel knows them; of one that it does not know none.
pub(super) fn neighbours(hops: &[(u32, IpAddr)]) -> Vec<Option<Mac>> {
    let Ok(mut connection) = Connection::open() else { return vec![None; hops.len()] };
    let mut look_up = |(ifindex, address): &(u32, IpAddr)| {
        let mut batch = Batch::new();
        batch.get_neighbour(*ifindex, *address);
        let outcome = connection.run(&mut batch).ok()?;
        outcome.replies.iter().find_map(|(_, _, body)| read_neighbour_state(body)?.0)
    };
    hops.iter().map(&mut look_up).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use socket2::SockRef;

    use super::packet::{Kind, Packet};
    use super::*;

    #[test]
    fn only_probes_of_this_run_wake_the_agent() {
        for (family, source, destination) in [
            (Family::Ipv4Unicast, "10.0.0.1", "10.1.0.5"),
            (Family::Ipv6Unicast, "2001:db8::1", "2001:db8:1::5"),
        ] {
            let (from, to) = UnixDatagram::pair().unwrap();
            to.set_nonblocking(true).unwrap();
            SockRef::from(&to).attach_filter(&filter(family, 7)).unwrap();
            let passes = |cookie, change: Option<usize>| {
                let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
                let packet =
                    Packet { kind: Kind::Echo, source, destination, hops: 64, length: 0, cookie, number: 1 };
                let mut frame = packet.frame([0; 6], [0; 6]);
                change.iter().for_each(|at| frame[*at] ^= 1);
                from.send(&frame).unwrap();
                to.recv(&mut [0; 200]).is_ok()
            };
            let content = if family == Family::Ipv4Unicast { CONTENT_V4 } else { CONTENT_V6 };
            assert!(passes(7, None));
            assert!(!passes(8, None), "of another run");
            assert!(!passes(7, Some(content)), "another magic");
        }
    }
}
