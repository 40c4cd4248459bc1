//! Datagrams with the kernel's metadata: destination, interface, TTL and time of arrival.
//!
//! BFD needs all four. The TTL distinguishes a packet of a neighbour from a forwarded packet (RFC
//! 5881 §5). Address and interface identify the session. With the time of arrival, a late wake-up
//! does not count as the peer's silence.

use std::io;
use std::mem::{MaybeUninit, size_of, size_of_val};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use socket2::SockAddr;

use super::set_option;
use crate::types::InterfaceName;

/// `SK_MEMINFO_DROPS` of linux/sock_diag.h.
const MEMINFO_DROPS: usize = 8;

/// A datagram with its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::net) struct Datagram {
    pub(in crate::net) length: usize,
    pub(in crate::net) from: SocketAddr,
    pub(in crate::net) to: Option<IpAddr>,
    /// Index of the interface.
    pub(in crate::net) interface: Option<u32>,
    pub(in crate::net) ttl: Option<u8>,
    /// The time of arrival by the wall clock, since 1970.
    pub(in crate::net) stamp: Option<Duration>,
}

/// Enables the metadata on a socket.
pub(in crate::net) fn enable_control_messages(socket: impl AsFd, ipv6: bool) -> io::Result<()> {
    let on: libc::c_int = 1;
    let fd = socket.as_fd();
    set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &on)?;
    if ipv6 {
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &on)?;
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, &on)
    } else {
        set_option(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, &on)?;
        set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTTL, &on)
    }
}

/// Buffer for the control messages, with the kernel's alignment.
#[repr(align(8))]
struct Control([u8; 256]);

/// Receives the next datagram; octets beyond `buffer` are cut off. `WouldBlock` if there is none.
pub(in crate::net) fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Datagram> {
    let mut control = Control([0; 256]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: every field of msghdr is an integer or a pointer, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    let mut length = 0;
    // SAFETY: try_init passes a storage and its length; recvmsg writes at most that many octets of
    // an address into it and sets the length to the octets written. `part` and `control` describe
    // memory that outlives the call.
    let (_, from) = unsafe {
        SockAddr::try_init(|storage, storage_length| {
            message.msg_name = storage.cast();
            message.msg_namelen = *storage_length;
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = control.0.len() as _;
            let received = libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT);
            length = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
            *storage_length = message.msg_namelen;
            Ok(())
        })
    }?;
    let from = from.as_socket().ok_or(io::ErrorKind::InvalidData)?;
    let mut datagram = Datagram { length, from, to: None, interface: None, ttl: None, stamp: None };
    // SAFETY: `message` was filled in by recvmsg and `control`, which it points to, is still there.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !next.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return pointers to whole, aligned headers within
        // the control messages.
        let (header, data) = unsafe { (&*next, libc::CMSG_DATA(next)) };
        // SAFETY: CMSG_LEN only computes a number.
        let octets = header.cmsg_len.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
        // SAFETY: the kernel put `octets` octets behind the header.
        let data = unsafe { std::slice::from_raw_parts(data, octets) };
        match (header.cmsg_level, header.cmsg_type) {
            (libc::IPPROTO_IP, libc::IP_TTL) => datagram.ttl = read::<libc::c_int>(data).map(|ttl| ttl as u8),
            (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                datagram.ttl = read::<libc::c_int>(data).map(|ttl| ttl as u8);
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                if let Some(info) = read::<libc::in_pktinfo>(data) {
                    datagram.to = Some(Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes()).into());
                    datagram.interface = u32::try_from(info.ipi_ifindex).ok();
                }
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                if let Some(info) = read::<libc::in6_pktinfo>(data) {
                    datagram.to = Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                    datagram.interface = Some(info.ipi6_ifindex);
                }
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                datagram.stamp = read::<libc::timespec>(data).and_then(|at| {
                    Some(Duration::new(u64::try_from(at.tv_sec).ok()?, u32::try_from(at.tv_nsec).ok()?))
                });
            }
            _ => {}
        }
        // SAFETY: as for CMSG_FIRSTHDR.
        next = unsafe { libc::CMSG_NXTHDR(&raw const message, next) };
    }
    Ok(datagram)
}

/// Reads a value of plain integers from a control message; none if the message is shorter.
fn read<T: Copy>(data: &[u8]) -> Option<T> {
    let octets = data.get(..size_of::<T>())?;
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: this copies size_of::<T>() octets into a T. The callers' types are C structures of
    // integers, which have no invalid values.
    unsafe {
        std::ptr::copy_nonoverlapping(octets.as_ptr(), value.as_mut_ptr().cast::<u8>(), octets.len());
        Some(value.assume_init())
    }
}

/// The socket's drops since it was opened: by its filter, or because its buffer was full. The
/// counter wraps around.
pub(in crate::net) fn drops(socket: impl AsFd) -> io::Result<u32> {
    let mut info = [0_u32; MEMINFO_DROPS + 1];
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the pointers are to `info` and its length, which outlive the call; the kernel writes
    // at most that many octets.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(info[MEMINFO_DROPS]) } else { Err(io::Error::last_os_error()) }
}

/// Gives the calling thread precedence over all threads that are not real-time (SCHED_FIFO, lowest
/// priority). If that fails, raises it as far as `nice` allows.
pub(in crate::net) fn raise_priority() -> io::Result<()> {
    // Child processes start with the default policy.
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the pointer is to a sched_param that outlives the call; 0 means the calling thread.
    if unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } == 0 {
        return Ok(());
    }
    // SAFETY: takes integers only; on Linux 0 means the calling thread.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The name of an interface.
pub(in crate::net) fn interface_name(index: u32) -> Option<InterfaceName> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer has IF_NAMESIZE octets, as the call requires, and ends in NUL if it
    // succeeds.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    if found.is_null() {
        return None;
    }
    let end = name.iter().position(|octet| *octet == 0)?;
    std::str::from_utf8(&name[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn a_datagram_has_all_its_metadata() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(socket) = UdpSocket::bind(address) else { continue };
            let at = socket.local_addr().unwrap();
            enable_control_messages(&socket, at.is_ipv6()).unwrap();
            let empty = receive(&socket, &mut [0; 64]).unwrap_err();
            assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
            let sender = UdpSocket::bind(address).unwrap();
            super::super::set_ttl(&sender, at.ip(), Some(255)).unwrap();
            sender.send_to(b"hello", at).unwrap();
            let mut buffer = [0; 64];
            let got = receive(&socket, &mut buffer).unwrap();
            assert_eq!(&buffer[..got.length], b"hello");
            assert_eq!(got.from, sender.local_addr().unwrap());
            assert_eq!((got.to, got.ttl), (Some(at.ip()), Some(255)));
            assert_eq!(interface_name(got.interface.unwrap()), "lo".parse().ok());
            assert!(got.stamp.unwrap() > Duration::from_secs(1_000_000_000));
        }
    }
}
