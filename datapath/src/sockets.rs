//! Sockets that tokio waits for: packet sockets, and the kernel's notifications. All of this crate's unsafe code.
//!
//! Of tokio only the reactor is used (`AsyncFd`); nothing in this crate talks to another host over `tokio::net`.
#![expect(
    unsafe_code,
    reason = "no safe crate has sockaddr_ll, and tokio wants a promise about a descriptor"
)]

use std::io::{self, Read as _};
use std::os::fd::AsRawFd;

use socket2::{Domain, SockAddr, SockAddrStorage, SockFilter, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A value that owns its descriptor: it is open, and the same, until the value is dropped.
pub(crate) trait OwnsDescriptor: AsRawFd {}

impl OwnsDescriptor for Socket {}

/// Joins the runtime that is running.
pub(crate) fn register<T: OwnsDescriptor>(inner: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: the descriptor is open, and the same, until `inner` is dropped: `OwnsDescriptor`.
    unsafe { AsyncFd::register(inner) }.map_err(io::Error::from)
}

/// A packet socket of one interface, behind a filter.
///
/// Closing it waits until the kernel's readers have left (`synchronize_net`, some milliseconds): a thread that may wait does that.
pub struct PacketSocket {
    /// None only while it is closed.
    socket: Option<AsyncFd<Socket>>,
    mac: [u8; 6],
}

impl PacketSocket {
    /// Opens a socket on an interface of the calling thread's network namespace. Needs CAP_NET_RAW.
    ///
    /// # Errors
    /// The kernel's, and one for an interface that is no Ethernet device.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open(index: u32, filter: &[SockFilter]) -> io::Result<PacketSocket> {
        // Without a protocol it receives nothing until it is bound: never anything that has not passed the filter.
        let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
        socket.attach_filter(filter)?;
        // To every protocol, and the filter picks one: only such a socket hears a frame before the interface's other users have it. What
        // answers a question for an IPVLAN slave's address is the slave's, and does not come to a socket for its protocol alone.
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
    /// The kernel's.
    pub fn set_filter(&self, filter: &[SockFilter]) -> io::Result<()> {
        self.socket()?.get_ref().attach_filter(filter)
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The kernel's: the interface went down or away.
    pub async fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.socket()?.async_io(Interest::WRITABLE, |socket| socket.send(frame)).await.map(drop)
    }

    /// Receives a frame; its length.
    ///
    /// # Errors
    /// The kernel's: the interface went down or away.
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

/// Binds a packet socket to an interface and a protocol of `linux/if_ether.h`; the interface's MAC address is returned.
fn bind(socket: &Socket, index: u32, protocol: u16) -> io::Result<[u8; 6]> {
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: a sockaddr_ll is shorter than a sockaddr_storage, is aligned as it, and is valid for any octets.
    let address = unsafe { storage.view_as::<libc::sockaddr_ll>() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = i32::try_from(index).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
    // SAFETY: the family says what it is, and the length is that of the structure.
    let address = unsafe { SockAddr::new(storage, size_of::<libc::sockaddr_ll>() as libc::socklen_t) };
    socket.bind(&address)?;
    let mut bound = socket.local_addr()?.as_storage();
    // SAFETY: as above; the kernel has filled it in for a socket of this family.
    let bound = unsafe { bound.view_as::<libc::sockaddr_ll>() };
    match bound.sll_halen {
        6 => Ok(std::array::from_fn(|octet| bound.sll_addr[octet])),
        _ => Err(io::Error::new(io::ErrorKind::Unsupported, "it is no Ethernet device")),
    }
}
