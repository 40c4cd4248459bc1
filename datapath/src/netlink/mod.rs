//! Rtnetlink, limited to Trunkline's needs: blocking requests, dumps, and pipelined batches.
//!
//! The message types come from `netlink-packet-route`, which `rtnetlink` uses too. This module does
//! not use `rtnetlink`. An ADD needs a few messages per namespace. It is fastest to send all of
//! them with one `send` and then to read all answers, but the connection task of `rtnetlink` sends
//! one request at a time. A table of 100,000 routes is written from one reused buffer. Each request
//! is a typed function in [`objects`].
//!
//! **Answers to a batch.** Only the last message requests an acknowledgement. The kernel answers
//! the other messages only if they fail. It handles them in order, so the acknowledgement of the
//! last message ends the batch. If the receive buffer overflows (ENOBUFS), errors can be lost.
//! [`Connection::run`] then returns [`NetlinkError::Lost`], and the caller reads the kernel's state
//! again.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{
    Emitable, ErrorBuffer, NLM_F_ACK, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NetlinkHeader,
    parse_string,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

pub(crate) mod conntrack;
pub(crate) mod events;
mod ipvlan;
mod links;
pub mod lookup;
pub mod message;
pub(crate) mod netfilter;
pub mod objects;
pub mod tc;
pub mod vxlan;

pub use message::{Batch, Message};

/// The reason why a request to the kernel failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The socket failed.
    #[error("netlink: {0}")]
    Io(#[from] io::Error),
    /// The kernel refused a request.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// Answers were lost, so the failed requests are not known.
    #[error("netlink: answers of the kernel were lost: the receive buffer overflowed")]
    Lost,
    /// Changes interrupted a dump too many times.
    #[error("netlink: the kernel's objects change faster than a dump can list them")]
    DumpInterrupted,
}

/// The kernel's refusal of one request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel refused the request: {}{}", io::Error::from_raw_os_error(*errno), note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default())]
pub struct Refusal {
    /// Index of the message in the batch, from 0.
    pub index: usize,
    /// The error number.
    pub errno: i32,
    /// The kernel's message (extended acknowledgement), if there is one.
    pub note: Option<String>,
}

/// The result of a batch.
#[derive(Debug, Default)]
pub struct BatchResult {
    /// Requests that failed, in order.
    pub refusals: Vec<Refusal>,
    /// Answers to requests for objects: index in the batch, kind, body.
    pub replies: Vec<(usize, u16, Vec<u8>)>,
}

impl BatchResult {
    /// Returns the first refusal with an error number outside `tolerated`.
    pub fn check(self, tolerated: &[i32]) -> Result<Self, Refusal> {
        match self.refusals.iter().find(|refusal| !tolerated.contains(&refusal.errno)) {
            Some(refusal) => Err(refusal.clone()),
            None => Ok(self),
        }
    }

    /// Removes the refusals of these messages with this error number.
    pub fn without(mut self, messages: Range<usize>, errno: i32) -> Self {
        self.refusals.retain(|refusal| refusal.errno != errno || !messages.contains(&refusal.index));
        self
    }

    /// The refusal of one message.
    pub fn refusal(&self, index: usize) -> Option<&Refusal> {
        self.refusals.iter().find(|refusal| refusal.index == index)
    }
}

/// An rtnetlink socket in the network namespace of the thread that opened it.
pub struct Connection {
    socket: Socket,
    port: u32,
    sequence: u32,
    receive: Vec<u8>,
}

impl Connection {
    /// Opens a socket.
    pub fn open() -> Result<Connection, NetlinkError> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        let port = socket.bind_auto()?.port_number();
        socket.connect(&SocketAddr::new(0, 0))?;
        socket.set_cap_ack(true)?;
        socket.set_ext_ack(true)?;
        // With strict checking, dumps apply their filters, and the kernel refuses requests with
        // unknown attributes.
        socket.set_netlink_get_strict_chk(true)?;
        // The receive buffer has space for an error answer to every message of a batch. This size
        // needs CAP_NET_ADMIN, as all requests of the agent do.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 4 << 20);
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, 1 << 20);
        Ok(Connection { socket, port, sequence: 0, receive: Vec::with_capacity(64 << 10) })
    }

    /// The netlink port ID. A notification of the kernel contains the port ID of the socket that
    /// caused the change.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// Sends a batch and reads its answers.
    pub fn run(&mut self, batch: &mut Batch) -> Result<BatchResult, NetlinkError> {
        let mut outcome = BatchResult::default();
        let Some(last) = batch.starts.len().checked_sub(1) else { return Ok(outcome) };
        let first_sequence = self.sequence.wrapping_add(1);
        self.sequence = self.sequence.wrapping_add(batch.starts.len() as u32);
        for (index, start) in batch.starts.iter().enumerate() {
            let mut header = NetlinkBuffer::new(&mut batch.buffer[*start..]);
            header.set_sequence_number(first_sequence.wrapping_add(index as u32));
            if index == last {
                let flags = header.flags() | NLM_F_ACK;
                header.set_flags(flags);
            }
        }
        retry(|| self.socket.send(&batch.buffer, 0))?;
        loop {
            self.receive()?;
            for message in message::messages(&self.receive) {
                let index = message.sequence.wrapping_sub(first_sequence) as usize;
                if index > last {
                    continue; // an answer to an earlier, cancelled batch
                }
                if message.kind != NLMSG_ERROR {
                    outcome.replies.push((index, message.kind, message.body.to_vec()));
                    continue;
                }
                if let Some(refusal) = refusal(index, &message) {
                    outcome.refusals.push(refusal);
                }
                if index == last {
                    return Ok(outcome);
                }
            }
        }
    }

    /// Runs a dump request (one message in `batch`) and passes each object to `each`. Starts again
    /// if the kernel reports a change during the dump. Calls `restart` before each try.
    pub fn dump(
        &mut self,
        batch: &mut Batch,
        mut restart: impl FnMut(),
        mut each: impl FnMut(u16, &[u8]),
    ) -> Result<(), NetlinkError> {
        'tries: for _ in 0..16 {
            restart();
            let mut interrupted = false;
            self.sequence = self.sequence.wrapping_add(1);
            NetlinkBuffer::new(&mut batch.buffer[..]).set_sequence_number(self.sequence);
            retry(|| self.socket.send(&batch.buffer, 0))?;
            loop {
                self.receive()?;
                for message in message::messages(&self.receive) {
                    if message.sequence != self.sequence {
                        continue;
                    }
                    interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                    match message.kind {
                        NLMSG_DONE if interrupted => continue 'tries,
                        NLMSG_DONE => return Ok(()),
                        NLMSG_ERROR => {
                            return match refusal(0, &message) {
                                // If a dump is filtered by table, the kernel reports a table
                                // without routes as missing.
                                Some(refusal) if refusal.errno == libc::ENOENT => Ok(()),
                                Some(refusal) => Err(refusal.into()),
                                None => Ok(()),
                            };
                        }
                        _ => each(message.kind, message.body),
                    }
                }
            }
        }
        Err(NetlinkError::DumpInterrupted)
    }

    /// Runs a dump request, and collects the objects that `read` returns.
    pub fn list<T>(
        &mut self,
        request: impl FnOnce(&mut Batch),
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        let mut batch = Batch::new();
        request(&mut batch);
        let found = std::cell::RefCell::new(Vec::new());
        self.dump(
            &mut batch,
            || found.borrow_mut().clear(),
            |_, body| found.borrow_mut().extend(read(body)),
        )?;
        Ok(found.into_inner())
    }

    fn receive(&mut self) -> Result<(), NetlinkError> {
        self.receive.clear();
        match retry(|| self.socket.recv(&mut self.receive, 0)) {
            Ok(_) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Err(NetlinkError::Lost),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The error in an NLMSG_ERROR; none in an acknowledgement.
fn refusal(index: usize, message: &Message<'_>) -> Option<Refusal> {
    let answer = ErrorBuffer::new_checked(message.body).ok()?;
    let errno = answer.code()?.get().wrapping_neg();
    // The request's header follows (NETLINK_CAP_ACK), then attributes; 1 is NLMSGERR_ATTR_MSG.
    let notes = answer.payload().get(NetlinkHeader::default().buffer_len()..).unwrap_or_default();
    let note = message::attributes(notes, &[1], |nla| parse_string(nla.value())).next();
    Some(Refusal { index, errno, note })
}

/// Repeats a call that a signal interrupted.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
