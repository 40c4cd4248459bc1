//! The socket of one link and one family. All checks on the link share it.
//!
//! It is a packet socket ([`crate::sockets`]) on one interface, and its filter passes only one
//! protocol. The first check opens the socket, and the last check closes it. Each check registers
//! its addresses in the socket's filter ([`super::filter`]), and receives only the claims about
//! these addresses.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddrV6};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::frame::{AddressClaim, Mac};
use super::{arp, filter, nd};
use crate::family::IpFamily;
use crate::sockets::PacketSocket;

/// Length of the receive buffer in octets. ARP and Neighbour Discovery messages are shorter.
const BUFFER_OCTETS: usize = 1514;

/// Length of the queue of each check, in claims. If the queue is full, new claims are dropped, as a
/// network can drop frames.
const QUEUE_LENGTH: usize = 32;

/// A socket that listens to one protocol on one link.
pub(super) struct LinkSocket {
    shared: Arc<Shared>,
    reader: JoinHandle<()>,
}

/// State that the reader and the checks share.
struct Shared {
    family: IpFamily,
    socket: PacketSocket,
    watches: Mutex<ClaimSubscriptions>,
}

#[derive(Default)]
struct ClaimSubscriptions {
    next: u64,
    open: BTreeMap<u64, (Vec<IpAddr>, mpsc::Sender<io::Result<AddressClaim>>)>,
}

impl LinkSocket {
    /// Listens on an interface of the calling thread's network namespace. Needs CAP_NET_RAW.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(super) fn open(index: u32, family: IpFamily) -> io::Result<LinkSocket> {
        let socket = PacketSocket::open(index, &filter::program(family, &[]))?;
        let shared = Arc::new(Shared { family, socket, watches: Mutex::default() });
        let reader = tokio::spawn(read(Arc::clone(&shared)));
        Ok(LinkSocket { shared, reader })
    }

    /// The interface's MAC address.
    pub(super) fn mac(&self) -> Mac {
        self.shared.socket.mac()
    }

    /// Whether the socket has failed because the interface is down or deleted.
    pub(super) fn has_failed(&self) -> bool {
        self.reader.is_finished()
    }

    /// Subscribes to claims about these addresses.
    pub(super) fn watch(self: &Arc<LinkSocket>, addresses: Vec<IpAddr>) -> io::Result<ClaimSubscription> {
        let (sender, claims) = mpsc::channel(QUEUE_LENGTH);
        let mut watches = self.shared.watches();
        let number = watches.next;
        watches.next += 1;
        watches.open.insert(number, (addresses, sender));
        let filtered = self.shared.listen_for(&watches);
        drop(watches);
        let watch = ClaimSubscription { link: Arc::clone(self), number, claims };
        filtered.map(|()| watch)
    }

    /// Sends a frame.
    pub(super) async fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.shared.socket.send(frame).await
    }
}

impl Drop for LinkSocket {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// The subscription of one check. It ends when this value is dropped.
pub(super) struct ClaimSubscription {
    link: Arc<LinkSocket>,
    number: u64,
    claims: mpsc::Receiver<io::Result<AddressClaim>>,
}

impl ClaimSubscription {
    /// The next claim (ARP or ND message) about one of the addresses. An error: the interface is
    /// down or deleted.
    pub(super) async fn receive(&mut self) -> io::Result<AddressClaim> {
        self.claims.recv().await.unwrap_or_else(|| Err(io::Error::from_raw_os_error(libc::ENETDOWN)))
    }
}

impl Drop for ClaimSubscription {
    fn drop(&mut self) {
        let mut watches = self.link.shared.watches();
        watches.open.remove(&self.number);
        // If this fails, the filter passes too many frames, which is harmless.
        let _ = self.link.shared.listen_for(&watches);
    }
}

impl Shared {
    fn watches(&self) -> std::sync::MutexGuard<'_, ClaimSubscriptions> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen_for(&self, watches: &ClaimSubscriptions) -> io::Result<()> {
        let addresses: Vec<IpAddr> =
            watches.open.values().flat_map(|(addresses, _)| addresses).copied().collect();
        self.socket.set_filter(&filter::program(self.family, &addresses))
    }
}

/// Passes received claims to the checks, until the interface is down or deleted.
async fn read(shared: Arc<Shared>) {
    let mut buffer = [0; BUFFER_OCTETS];
    loop {
        let claim = match shared.socket.receive(&mut buffer).await {
            Ok(length) => match shared.family {
                IpFamily::V4 => arp::parse(&buffer[..length]),
                IpFamily::V6 => nd::parse(&buffer[..length]),
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
            Err(error) => {
                for (_, sender) in std::mem::take(&mut shared.watches().open).into_values() {
                    let _ = sender.try_send(Err(io::Error::new(error.kind(), error.to_string())));
                }
                return;
            }
        };
        let Some(claim) = claim else { continue };
        for (addresses, sender) in shared.watches().open.values() {
            if addresses.contains(&claim.address) {
                let _ = sender.try_send(Ok(claim));
            }
        }
    }
}

/// Joins the solicited-node multicast group of the address, as its owner must (RFC 4862 §5.4.2).
/// The kernel also sends an MLD report, so switches with MLD snooping forward the solicitations.
/// The membership lasts as long as the socket.
pub(super) fn join_solicited_node(index: u32, address: Ipv6Addr) -> io::Result<std::net::UdpSocket> {
    let socket = std::net::UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    socket.join_multicast_v6(&nd::solicited_node(address), index)?;
    Ok(socket)
}

/// The link-local address that the kernel would use as source of a solicitation. None if the
/// interface has no usable one. Nothing is sent.
pub(super) fn link_local(index: u32) -> Option<Ipv6Addr> {
    const NEIGHBOUR: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    let socket = std::net::UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect(SocketAddrV6::new(NEIGHBOUR, 9, 0, index)).ok()?;
    match socket.local_addr().ok()?.ip() {
        IpAddr::V6(address) if address.is_unicast_link_local() => Some(address),
        _ => None,
    }
}
