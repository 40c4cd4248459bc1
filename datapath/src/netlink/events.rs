//! Notification sockets: netlink multicast groups, in the network namespace of the thread that
//! opened the socket.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use netlink_sys::{Socket, SocketAddr};
use socket2::{SockFilter, SockRef};
use tokio::io::unix::AsyncFd;

use super::message::{self, Message};
use crate::sockets::{self, OwnsDescriptor};

/// `NFNLGRP_NFTABLES`: all changes of the nftables ruleset.
pub(crate) const NFTABLES: u32 = 7;

/// A notification socket.
pub(crate) struct Events {
    socket: Socket,
    buffer: Vec<u8>,
}

/// The result of a read.
pub(crate) enum ReadResult {
    /// A datagram, in [`Events::messages`].
    Message,
    /// No notification is pending.
    WouldBlock,
    /// Notifications were lost.
    Overrun,
}

impl Events {
    /// Listens to these groups. `receive_buffer` has a unit of octets and needs CAP_NET_ADMIN; the
    /// kernel doubles it, because it counts its own structures, too.
    pub(crate) fn listen(mut socket: Socket, groups: &[u32], receive_buffer: usize) -> io::Result<Events> {
        socket.bind(&SocketAddr::new(0, 0))?;
        let events = Events::new(socket, receive_buffer)?;
        for group in groups {
            events.socket.add_membership(*group)?;
        }
        Ok(events)
    }

    /// Receives from a bound socket, with a receive buffer as for [`Events::listen`].
    pub(crate) fn new(socket: Socket, receive_buffer: usize) -> io::Result<Events> {
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, receive_buffer);
        socket.set_non_blocking(true)?;
        Ok(Events { socket, buffer: Vec::with_capacity(64 << 10) })
    }

    /// Replaces the socket's filter.
    pub(crate) fn attach(&self, filter: &[SockFilter]) -> io::Result<()> {
        SockRef::from(&self.socket).attach_filter(filter)
    }

    /// Registers the socket with the current runtime.
    pub(crate) fn register(self) -> io::Result<AsyncFd<Events>> {
        sockets::register(self)
    }

    /// Reads one datagram.
    pub(crate) fn read(&mut self) -> io::Result<ReadResult> {
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
    pub(crate) fn messages(&self) -> impl Iterator<Item = Message<'_>> {
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
