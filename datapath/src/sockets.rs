//! Sockets that tokio polls: packet sockets and netlink notification sockets. This module contains
//! all unsafe code of the crate.
//!
//! The crate uses only tokio's reactor (`AsyncFd`). No code in this crate uses `tokio::net` to
//! reach another host.
#![expect(
    unsafe_code,
    reason = "no safe crate has sockaddr_ll, and tokio requires a guarantee about a descriptor"
)]

use std::io::{self, Read as _};
use std::os::fd::AsRawFd;

use socket2::{Domain, SockAddr, SockAddrStorage, SockFilter, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A value that owns its descriptor: the descriptor stays open and does not change before the value
/// is dropped.
pub(crate) trait OwnsDescriptor: AsRawFd {}

impl OwnsDescriptor for Socket {}

/// Registers a descriptor with the current runtime.
pub(crate) fn register<T: OwnsDescriptor>(inner: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: `OwnsDescriptor` guarantees that the descriptor is open and does not change before
    // `inner` is dropped.
    unsafe { AsyncFd::register(inner) }.map_err(io::Error::from)
}

/// A packet socket on one interface with a filter.
///
/// close() waits for the kernel's `synchronize_net` (some milliseconds). So a blocking thread
/// closes the socket.
pub struct PacketSocket {
    /// None only during `drop`.
    socket: Option<AsyncFd<Socket>>,
    mac: [u8; 6],
}

impl PacketSocket {
    /// Opens a socket on an interface of the calling thread's network namespace. Needs CAP_NET_RAW.
    ///
    /// # Errors
    /// The kernel's error, or `Unsupported` if the interface is not an Ethernet device.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open(index: u32, filter: &[SockFilter]) -> io::Result<PacketSocket> {
        // The socket has no protocol, so it receives nothing before `bind`. So every received frame
        // has passed the filter.
        let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
        socket.attach_filter(filter)?;
        // The socket is bound to all protocols, and the filter selects one. Only such a socket gets
        // a frame before the interface's other receivers, such as IPVLAN. An answer to a request
        // from an IPVLAN slave's address is delivered to the slave, and a socket that is bound to
        // one protocol does not receive this answer.
        let mac = bind(&socket, index, libc::ETH_P_ALL as u16)?;
        socket.set_nonblocking(true)?;
        Ok(PacketSocket { socket: Some(register(socket)?), mac })
    }

    /// The interface's MAC address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Replaces the filter.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_filter(&self, filter: &[SockFilter]) -> io::Result<()> {
        self.socket()?.get_ref().attach_filter(filter)
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The kernel's error: the interface is down or deleted.
    pub async fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.socket()?.async_io(Interest::WRITABLE, |socket| socket.send(frame)).await.map(drop)
    }

    /// Receives a frame and returns its length.
    ///
    /// # Errors
    /// The kernel's error: the interface is down or deleted.
    pub async fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket()?.async_io(Interest::READABLE, |mut socket| socket.read(buffer)).await
    }

    fn socket(&self) -> io::Result<&AsyncFd<Socket>> {
        self.socket.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for PacketSocket {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take().map(AsyncFd::into_inner) else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(socket));
        }
    }
}

/// Binds a packet socket to an interface and a protocol of `linux/if_ether.h`. Returns the
/// interface's MAC address.
fn bind(socket: &Socket, index: u32, protocol: u16) -> io::Result<[u8; 6]> {
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: a sockaddr_ll is shorter than a sockaddr_storage, its alignment is not stricter, and
    // any octets are a valid value.
    let address = unsafe { storage.view_as::<libc::sockaddr_ll>() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = i32::try_from(index).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
    // SAFETY: `sll_family` matches the type of the structure, and the length is the structure's
    // length.
    let address = unsafe { SockAddr::new(storage, size_of::<libc::sockaddr_ll>() as libc::socklen_t) };
    socket.bind(&address)?;
    let mut bound = socket.local_addr()?.as_storage();
    // SAFETY: as above. The kernel filled the structure in for a socket of this family.
    let bound = unsafe { bound.view_as::<libc::sockaddr_ll>() };
    match bound.sll_halen {
        6 => Ok(std::array::from_fn(|octet| bound.sll_addr[octet])),
        _ => Err(io::Error::new(io::ErrorKind::Unsupported, "the interface is no Ethernet device")),
    }
}
