//! The socket options of a BGP session. Except for two calls in `heap`, this is the only unsafe
//! code of the crate.
//!
//! TCP-MD5 (RFC 2385) and the receiving side of GTSM (RFC 5082) have no safe wrapper. So
//! `setsockopt` sets `TCP_MD5SIG`, `IP_MINTTL` and `IPV6_MINHOPCOUNT` here, and `getsockopt` reads
//! `TCP_INFO`. The difficulties:
//!
//! - A TCP-MD5 key belongs to a remote *address*, not to a connection. It must be on the listening
//!   socket before the peer's SYN arrives. The kernel silently drops a signed SYN without a
//!   matching key, and an unsigned one with a matching key. The accepted socket inherits the key.
//!   An empty key deletes the address's key.
//! - Dynamic neighbours have a key for their prefix (`TCP_MD5SIG_EXT`); the longest prefix wins.
//! - A link-local address is matched without its scope: two links with the same link-local peer
//!   share a key.
//! - The kernel checks the minimum TTL for every packet of the socket. So it is set on connections
//!   only, not on the listener that all peers share. The listener *sends* TTL 255, so a SYN-ACK
//!   passes the GTSM check of a peer. The accepted connection then gets the peer's own TTL.
//! - `TCP_INFO` grows with the kernel: an older kernel fills less of the structure and returns the
//!   length.
//!
//! This module copies a key only into the structure that is passed to the kernel, and clears the
//! structure afterwards.

#![allow(unsafe_code)]

pub(super) mod datagram;

use std::io;
use std::mem::{offset_of, size_of, size_of_val};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use ipnet::IpNet;
use socket2::{SockAddr, SockRef};

use crate::config::Password;
use crate::types::InterfaceName;

/// `struct tcp_md5sig` of linux/tcp.h.
#[repr(C)]
struct TcpMd5Sig {
    address: libc::sockaddr_storage,
    flags: u8,
    prefix_length: u8,
    key_length: u16,
    interface: libc::c_int,
    key: [u8; Password::MAX_OCTETS],
}

/// `ICMPV6_FILTER` of linux/icmpv6.h.
const ICMP6_FILTER: libc::c_int = 1;
/// `TCP_MD5SIG_FLAG_PREFIX` of linux/tcp.h: the key is for the prefix of `prefix_length`.
const MD5_PREFIX: u8 = 1;

/// The precedence of routing protocols: DSCP CS6 (RFC 4594 §3.1), as the type-of-service octet.
const INTERNETWORK_CONTROL: u32 = 0xc0;

/// The limit of unsent octets in the kernel before the socket counts as full. It limits the age of
/// a route between encoding and sending, and the memory for a peer that does not read.
const UNSENT_LIMIT: u32 = 256 * 1024;

/// Sets the TCP-MD5 key for `remote`, or deletes it. Deleting a missing key is not an error.
pub(super) fn set_md5_key(socket: impl AsFd, remote: IpAddr, password: Option<&Password>) -> io::Result<()> {
    set_md5_prefix_key(socket, remote.into(), password)
}

/// Sets the TCP-MD5 key for every address of `remotes`, or deletes it. The key of a longer prefix
/// or of an address within it has precedence. Deleting a missing key is not an error.
pub(super) fn set_md5_prefix_key(
    socket: impl AsFd,
    remotes: IpNet,
    password: Option<&Password>,
) -> io::Result<()> {
    let address = SockAddr::from(SocketAddr::new(remotes.addr(), 0));
    // A single address uses the option that every kernel with TCP-MD5 supports.
    let (option, flags, prefix_length) = if remotes.prefix_len() == remotes.max_prefix_len() {
        (libc::TCP_MD5SIG, 0, 0)
    } else {
        (libc::TCP_MD5SIG_EXT, MD5_PREFIX, remotes.prefix_len())
    };
    let key = password.map_or(&[][..], Password::expose);
    let mut request = TcpMd5Sig {
        // A sockaddr_storage of all zeros is valid: its family is AF_UNSPEC.
        // SAFETY: every field of sockaddr_storage is an integer or an array of integers.
        address: unsafe { std::mem::zeroed() },
        flags,
        prefix_length,
        key_length: key.len() as u16,
        interface: 0,
        key: [0; Password::MAX_OCTETS],
    };
    // SAFETY: SockAddr contains a whole sockaddr_storage, which is the type that is read here.
    request.address = unsafe { std::ptr::read(address.as_ptr().cast::<libc::sockaddr_storage>()) };
    request.key[..key.len()].copy_from_slice(key);
    let result = set_option(socket.as_fd(), libc::IPPROTO_TCP, option, &request);
    for octet in &mut request.key {
        // SAFETY: the pointer comes from a reference to an octet of this array. The write is
        // volatile, or the compiler would remove it because the value is never read.
        unsafe { std::ptr::write_volatile(octet, 0) };
    }
    match result {
        Err(error) if password.is_none() && error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Err(io::Error::new(
            error.kind(),
            "the kernel has no TCP-MD5 (CONFIG_TCP_MD5SIG): remove the password, or boot a kernel \
             that has it",
        )),
        result => result,
    }
}

/// Sets the TTL or hop limit of sent packets; the kernel's default if none.
pub(super) fn set_ttl(socket: impl AsFd, remote: IpAddr, ttl: Option<u8>) -> io::Result<()> {
    let (level, name) = match remote {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TTL),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    };
    set_option(socket.as_fd(), level, name, &ttl.map_or(-1, libc::c_int::from))
}

/// Sets the smallest accepted TTL or hop limit (GTSM); 0 accepts any.
pub(super) fn set_min_ttl(socket: impl AsFd, remote: IpAddr, min_ttl: u8) -> io::Result<()> {
    let (level, name) = match remote {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MINTTL),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT),
    };
    set_option(socket.as_fd(), level, name, &libc::c_int::from(min_ttl))
}

/// Sets the common options of BGP connections: no delay for small messages, the precedence of
/// routing protocols, and a limit of unsent octets in the kernel.
pub(super) fn set_common(socket: impl AsFd, remote: IpAddr) -> io::Result<()> {
    let tcp = SockRef::from(&socket);
    tcp.set_tcp_nodelay(true)?;
    tcp.set_tcp_notsent_lowat(UNSENT_LIMIT)?;
    set_precedence(&socket, remote)
}

/// The smoothed round-trip time of a connection in the kernel (SRTT of RFC 6298); none before the
/// first measurement.
pub(super) fn round_trip(socket: impl AsFd) -> io::Result<Option<Duration>> {
    // SAFETY: every field of tcp_info is an integer, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the pointers are to `info` and its length, which outlive the call; the kernel writes
    // at most that many octets.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            std::ptr::from_mut(&mut info).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let known = length as usize >= offset_of!(libc::tcp_info, tcpi_rtt) + size_of::<u32>();
    Ok(Some(info.tcpi_rtt).filter(|rtt| known && *rtt > 0).map(|rtt| Duration::from_micros(rtt.into())))
}

/// Sets the precedence of routing protocols.
pub(super) fn set_precedence(socket: impl AsFd, remote: IpAddr) -> io::Result<()> {
    let socket = SockRef::from(&socket);
    match remote {
        IpAddr::V4(_) => socket.set_tos_v4(INTERNETWORK_CONTROL),
        IpAddr::V6(_) => socket.set_tclass_v6(INTERNETWORK_CONTROL),
    }
}

/// Restricts a raw ICMPv6 socket to messages of these types (RFC 3542 §3.2).
pub(super) fn receive_only(socket: impl AsFd, types: &[u8]) -> io::Result<()> {
    // `struct icmp6_filter`: one bit per type, set if it is blocked.
    let mut blocked = [u32::MAX; 8];
    for kind in types {
        blocked[usize::from(kind >> 5)] &= !(1 << (kind & 31));
    }
    set_option(socket.as_fd(), libc::IPPROTO_ICMPV6, ICMP6_FILTER, &blocked)
}

/// The index of an interface.
pub(super) fn interface_index(name: InterfaceName) -> Result<u32, NoInterface> {
    let mut octets = [0; InterfaceName::MAX_OCTETS + 1];
    octets[..name.as_str().len()].copy_from_slice(name.as_str().as_bytes());
    // SAFETY: the pointer is to a string that outlives the call and ends in NUL, because the array
    // is longer than any name.
    match unsafe { libc::if_nametoindex(octets.as_ptr().cast()) } {
        0 => Err(NoInterface(name)),
        index => Ok(index),
    }
}

/// An interface name that does not exist. Needs no heap, which the BFD thread must avoid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no interface {0} on this host")]
pub(super) struct NoInterface(InterfaceName);

impl From<NoInterface> for io::Error {
    fn from(error: NoInterface) -> Self {
        io::Error::new(io::ErrorKind::NotFound, error)
    }
}

fn set_option<T>(socket: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which outlives the call; the kernel only
    // reads it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of_val(value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

// The kernel's layout, on which the call above depends.
const _: () = assert!(size_of::<TcpMd5Sig>() == 216);

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    fn password(text: &str) -> Password {
        Password::new(text).unwrap()
    }

    fn client(remote: SocketAddr, local: IpAddr, key: Option<&Password>) -> io::Result<TcpStream> {
        let socket = socket2::Socket::new(
            if remote.is_ipv4() { socket2::Domain::IPV4 } else { socket2::Domain::IPV6 },
            socket2::Type::STREAM,
            None,
        )?;
        socket.bind(&SocketAddr::new(local, 0).into())?;
        if let Some(key) = key {
            set_md5_key(&socket, remote.ip(), Some(key))?;
        }
        socket.connect_timeout(&remote.into(), Duration::from_millis(300))?;
        Ok(socket.into())
    }

    #[test]
    fn a_key_on_the_listener_admits_matching_clients_only() {
        for (listen, peer) in [("127.0.0.1:0", "127.0.0.9"), ("[::1]:0", "::1")] {
            let listener = TcpListener::bind(listen).unwrap();
            let at = listener.local_addr().unwrap();
            let peer: IpAddr = peer.parse().unwrap();
            let (right, wrong) = (password("right"), password("wrong"));

            set_md5_key(&listener, peer, Some(&right)).unwrap();
            client(at, peer, Some(&right)).unwrap();
            assert_eq!(client(at, peer, Some(&wrong)).unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!(client(at, peer, None).unwrap_err().kind(), io::ErrorKind::TimedOut);

            set_md5_key(&listener, peer, Some(&wrong)).unwrap();
            client(at, peer, Some(&wrong)).unwrap();
            set_md5_key(&listener, peer, None).unwrap();
            client(at, peer, None).unwrap();
            set_md5_key(&listener, peer, None).unwrap();
        }
    }

    #[test]
    fn a_prefix_key_applies_to_addresses_without_their_own_key() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let [inside, own, outside]: [IpAddr; 3] =
            ["127.9.0.7", "127.9.0.8", "127.8.0.7"].map(|text| text.parse().unwrap());
        let prefix: IpNet = "127.9.0.0/16".parse().unwrap();
        let (everybodys, his) = (password("everybody's"), password("his"));
        set_md5_prefix_key(&listener, prefix, Some(&everybodys)).unwrap();
        set_md5_key(&listener, own, Some(&his)).unwrap();
        client(at, inside, Some(&everybodys)).unwrap();
        assert_eq!(client(at, inside, None).unwrap_err().kind(), io::ErrorKind::TimedOut);
        client(at, own, Some(&his)).unwrap();
        assert_eq!(client(at, own, Some(&everybodys)).unwrap_err().kind(), io::ErrorKind::TimedOut);
        client(at, outside, None).unwrap();
        set_md5_key(&listener, own, None).unwrap();
        client(at, own, Some(&everybodys)).unwrap();
        set_md5_prefix_key(&listener, prefix, None).unwrap();
        client(at, inside, None).unwrap();
        set_md5_prefix_key(&listener, prefix, None).unwrap();
    }

    #[test]
    fn both_families_accept_hop_limits() {
        for listen in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(listen).unwrap();
            let address = listener.local_addr().unwrap().ip();
            set_common(&listener, address).unwrap();
            for ttl in [Some(255), Some(1), None] {
                set_ttl(&listener, address, ttl).unwrap();
            }
            for min_ttl in [255, 1, 0] {
                set_min_ttl(&listener, address, min_ttl).unwrap();
            }
        }
    }

    #[test]
    fn a_packet_below_the_minimum_ttl_is_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        set_min_ttl(&listener, at.ip(), 255).unwrap();
        let error = client(at, "127.0.0.9".parse().unwrap(), None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "sent with the default TTL of 64");
        set_min_ttl(&listener, at.ip(), 64).unwrap();
        client(at, "127.0.0.9".parse().unwrap(), None).unwrap();
    }

    #[test]
    fn round_trip_time_is_known_after_the_handshake() {
        for listen in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(listen).unwrap();
            assert_eq!(round_trip(&listener).unwrap(), None, "no answer yet");
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let measured = round_trip(&stream).unwrap().expect("SYN and SYN-ACK are a round trip");
            assert!(measured < Duration::from_secs(5), "{measured:?} on one machine");
        }
        let no_tcp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        round_trip(&no_tcp).unwrap_err();
    }

    #[test]
    fn interfaces_are_found_by_name() {
        assert!(interface_index("lo".parse().unwrap()).unwrap() > 0);
        let longest = "tl-none-at-all-".parse().unwrap();
        let error = interface_index(longest).unwrap_err();
        assert!(error.to_string().contains("tl-none-at-all-"), "{error}");
    }
}
