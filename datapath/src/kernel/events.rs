//! Notifications about changes of links, qdiscs, addresses, routes, rules and nftables by other
//! programs.
//!
//! A notification is a hint. It names one object, and the owner checks this object. If the kernel
//! dropped notifications (ENOBUFS), the owner scans. Filters prevent a busy host from waking the
//! agent. They are socket filters in the kernel, so dropped notifications do not fill the buffer.
//! They drop:
//!
//! - notifications caused by the owner's own requests: 100,000 learned routes cause 100,000
//!   notifications;
//! - routes of other programs (a routing daemon's full table), except replacements, which may
//!   replace a Trunkline route, and default routes, because the default route's link carries the
//!   VLANs;
//! - neighbour entries of other programs, except deletions, which may be of a Trunkline entry, and
//!   FDB entries.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};
use socket2::{SockFilter, SockRef};
use tokio::io::unix::AsyncFd;

use crate::bpf;
use crate::netlink::message::{self, Message};
use crate::netlink::objects::PROTOCOL;
use crate::sockets::{self, OwnsDescriptor};

/// A notification socket.
pub(super) struct Events {
    socket: Socket,
    buffer: Vec<u8>,
}

/// The result of a read.
pub(super) enum ReadResult {
    /// A datagram, in [`Events::messages`].
    Message,
    /// No notification is pending.
    WouldBlock,
    /// Notifications were lost.
    Overrun,
}

/// `NFNLGRP_NFTABLES`: all changes of the nftables ruleset.
const NFTABLES: u32 = 7;

const GROUPS: [u32; 10] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_NEIGH,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_ROUTE,
    libc::RTNLGRP_IPV4_RULE,
    libc::RTNLGRP_IPV6_RULE,
    libc::RTNLGRP_TC,
    libc::RTNLGRP_IPV4_NETCONF,
];

impl Events {
    /// Listens in the calling thread's network namespace. Notifications caused by `own_port` are
    /// dropped.
    pub(super) fn open(own_port: u32) -> io::Result<Events> {
        let socket = Socket::new(NETLINK_ROUTE)?;
        SockRef::from(&socket).attach_filter(&filter(own_port))?;
        Events::listen(socket, &GROUPS)
    }

    /// Listens for changes of the nftables ruleset. Notifications caused by `own_port` are dropped.
    pub(super) fn open_nftables(own_port: u32) -> io::Result<Events> {
        let socket = Socket::new(NETLINK_NETFILTER)?;
        let filter = [bpf::load_word(12), bpf::equal(own_port.to_be(), 1, 0), bpf::KEEP, bpf::DROP];
        SockRef::from(&socket).attach_filter(&filter)?;
        Events::listen(socket, &[NFTABLES])
    }

    fn listen(mut socket: Socket, groups: &[u32]) -> io::Result<Events> {
        socket.bind(&SocketAddr::new(0, 0))?;
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 8 << 20);
        for group in groups {
            socket.add_membership(*group)?;
        }
        socket.set_non_blocking(true)?;
        Ok(Events { socket, buffer: Vec::with_capacity(64 << 10) })
    }

    /// Registers the socket with the current runtime.
    pub(super) fn register(self) -> io::Result<AsyncFd<Events>> {
        sockets::register(self)
    }

    /// Reads one datagram.
    pub(super) fn read(&mut self) -> io::Result<ReadResult> {
        self.buffer.clear();
        match self.socket.recv(&mut self.buffer, 0) {
            Ok(_) => Ok(ReadResult::Message),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(ReadResult::Overrun),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(ReadResult::WouldBlock),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(ReadResult::WouldBlock),
            Err(error) => Err(error),
        }
    }

    /// The messages of the last datagram.
    pub(super) fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        message::messages(&self.buffer)
    }
}

// The socket is never replaced, as `OwnsDescriptor` requires.
impl OwnsDescriptor for Events {}

impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// The socket filter, in classic BPF. Offsets are in `nlmsghdr` (type 4, flags 6, port 12), in
/// `rtmsg` (destination length 16 + 1, protocol 16 + 5), and in `ndmsg` (family 16). BPF loads in
/// network byte order, so constants in host byte order are swapped here.
fn filter(own_port: u32) -> [SockFilter; 16] {
    let half = |value: u16| u32::from(value.to_be());
    [
        bpf::load_word(12),
        bpf::equal(own_port.to_be(), 13, 0), // own request: drop
        bpf::load_half(4),
        bpf::equal(half(libc::RTM_DELROUTE), 3, 0), // jump to the destination length
        bpf::equal(half(libc::RTM_NEWROUTE), 0, 6), // not a route: jump to the neighbours
        bpf::load_half(6),
        bpf::any_bit(half(libc::NLM_F_REPLACE as u16), 7, 0),
        bpf::load_octet(17),
        bpf::equal(0, 5, 0), // a default route: keep
        bpf::load_octet(21),
        bpf::equal(u32::from(PROTOCOL), 3, 4),
        bpf::equal(half(libc::RTM_NEWNEIGH), 0, 2), // not a new or changed neighbour: keep
        bpf::load_octet(16),
        bpf::equal(libc::AF_BRIDGE as u32, 0, 1),
        bpf::KEEP,
        bpf::DROP,
    ]
}
