//! The sockets of one round: a packet socket for each uplink and family.
//!
//! A socket is open only during a round, because every packet of the uplink passes its filter. It
//! is bound to all protocols: only such a socket receives a packet before the ingress hook, where
//! the kernel drops probes. Closing it waits for the kernel's readers, so a blocking thread closes
//! it.

use std::io;
use std::net::IpAddr;

use socket2::SockFilter;
use trunkline_datapath::bpf;
use trunkline_datapath::family::IpFamily;
use trunkline_datapath::netlink::lookup::read_neighbour_state;
use trunkline_datapath::netlink::{Batch, Connection};
use trunkline_datapath::plan::PROBE_MAGIC;
use trunkline_datapath::sockets::PacketSocket;

use super::packet::{self, CONTENT_V4, CONTENT_V6, Mac, ProbeReply};

/// Number of octets that are read of a frame. The octets after the content are zeros.
const LONGEST: usize = 128;

/// The socket of one uplink and family.
pub(super) struct Uplink {
    socket: PacketSocket,
}

impl Uplink {
    /// Opens it. Needs CAP_NET_RAW.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(super) fn open(ifindex: u32, family: IpFamily, cookie: u32) -> io::Result<Uplink> {
        Ok(Uplink { socket: PacketSocket::open(ifindex, &filter(family, cookie))? })
    }

    /// This node's MAC address on the uplink.
    pub(super) fn mac(&self) -> Mac {
        self.socket.mac()
    }

    /// Sends a frame.
    pub(super) async fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.socket.send(frame).await
    }

    /// The next returned probe.
    pub(super) async fn receive(&self) -> io::Result<ProbeReply> {
        let mut buffer = [0; LONGEST];
        loop {
            let length = self.socket.receive(&mut buffer).await?;
            if let Some(returned) = packet::read(&buffer[..length]) {
                return Ok(returned);
            }
        }
    }
}

/// Accepts probes of this run, by magic and cookie. [`packet::read`] checks the rest.
fn filter(family: IpFamily, cookie: u32) -> Vec<SockFilter> {
    let content = match family {
        IpFamily::V4 => CONTENT_V4,
        IpFamily::V6 => CONTENT_V6,
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

/// The MAC addresses of next hops from the kernel's neighbour entries; `None` for a next hop
/// without an entry.
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
        for (family, source, destination) in
            [(IpFamily::V4, "10.0.0.1", "10.1.0.5"), (IpFamily::V6, "2001:db8::1", "2001:db8:1::5")]
        {
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
            let content = if family == IpFamily::V4 { CONTENT_V4 } else { CONTENT_V6 };
            assert!(passes(7, None));
            assert!(!passes(8, None), "of another run");
            assert!(!passes(7, Some(content)), "another magic");
        }
    }
}
