//! Notifications: what somebody else did to links, their queues, addresses, routes and rules, and to nftables.
//!
//! They are hints. Each names one object, and the owner looks after that one; when the kernel had to drop some (ENOBUFS) the owner scans.
//! Two filters keep a busy host from waking the agent, both as a socket filter in the kernel, so that what is not wanted does not even fill the
//! buffer: what the owner's own requests cause (100,000 learned routes are 100,000 notifications), and other people's
//! routes (a routing daemon's full table), except where one replaces another, which might be ours, and default routes, of which the link is
//! the one that VLANs are expected on; and other people's neighbours, except where one goes, which might be ours, and where it is in a
//! forwarding database.

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

/// The listening socket.
pub(super) struct Events {
    socket: Socket,
    buffer: Vec<u8>,
}

/// What a read gave.
pub(super) enum ReadResult {
    /// A datagram, in [`Events::messages`].
    Message,
    /// Nothing more for now.
    WouldBlock,
    /// Some were lost.
    Overrun,
}

/// `NFNLGRP_NFTABLES`: every change of the nftables rule set.
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
    /// Listens in the calling thread's network namespace; what `own_port` asked for is left out.
    pub(super) fn open(own_port: u32) -> io::Result<Events> {
        let socket = Socket::new(NETLINK_ROUTE)?;
        SockRef::from(&socket).attach_filter(&filter(own_port))?;
        Events::listen(socket, &GROUPS)
    }

    /// Listens for changes of the nftables rule set; what `own_port` asked for is left out.
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

    /// Joins the runtime that is running.
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

    /// The messages of the datagram that was read last.
    pub(super) fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        message::messages(&self.buffer)
    }
}

// The socket is never replaced.
impl OwnsDescriptor for Events {}

impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// The socket filter, in classic BPF. Offsets are those of `nlmsghdr` (type 4, flags 6, port 12) and `rtmsg` (destination length 16 + 1, protocol 16 + 5),
/// and of `ndmsg` (family 16); BPF loads in network order, so that host-order constants are swapped here.
fn filter(own_port: u32) -> [SockFilter; 16] {
    let half = |value: u16| u32::from(value.to_be());
    [
        bpf::load_word(12),
        bpf::equal(own_port.to_be(), 13, 0), // own: drop
        bpf::load_half(4),
        bpf::equal(half(libc::RTM_DELROUTE), 3, 0), // to the length
        bpf::equal(half(libc::RTM_NEWROUTE), 0, 6), // no route: to the neighbours
        bpf::load_half(6),
        bpf::any_bit(half(libc::NLM_F_REPLACE as u16), 7, 0),
        bpf::load_octet(17),
        bpf::equal(0, 5, 0), // a default route: keep
        bpf::load_octet(21),
        bpf::equal(u32::from(PROTOCOL), 3, 4),
        bpf::equal(half(libc::RTM_NEWNEIGH), 0, 2), // no neighbour that came or changed: keep
        bpf::load_octet(16),
        bpf::equal(libc::AF_BRIDGE as u32, 0, 1),
        bpf::KEEP,
        bpf::DROP,
    ]
}
