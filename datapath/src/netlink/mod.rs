//! Rtnetlink, as much of it as Trunkline needs: blocking requests, dumps, and batches that are pipelined.
//!
//! The messages are those of `netlink-packet-route`, which `rtnetlink` uses too. `rtnetlink` itself is not here because an ADD is a handful of
//! messages per namespace, and the fast way is to put all of them into one `send` and to read the answers afterwards, which its
//! connection task, one request and one future at a time, does not do. A table of 100,000 routes is written from one reused buffer. Each
//! request is a typed function in [`objects`].
//!
//! **How a batch is answered.** Only its last message asks for an acknowledgement; the others are answered only when they fail.
//! The kernel handles them in order, so the last one's acknowledgement ends the batch. A reply buffer that overflows (ENOBUFS) would
//! hide failures: [`Connection::run`] then says so ([`NetlinkError::Lost`]), and the caller looks at what is there.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{
    Emitable, ErrorBuffer, NLM_F_ACK, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NetlinkHeader,
    parse_string,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

mod ipvlan;
mod links;
pub mod lookup;
pub mod message;
pub mod objects;
pub mod tc;
pub mod vxlan;

pub use message::{Batch, Message};

/// Why a conversation with the kernel failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The socket.
    #[error("netlink: {0}")]
    Io(#[from] io::Error),
    /// The kernel refused a request.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// Answers were lost, so that it is not known which requests failed.
    #[error("netlink: answers of the kernel were lost (its buffer overflowed)")]
    Lost,
    /// A dump was interrupted by changes again and again.
    #[error("netlink: what is there changes faster than it can be listed")]
    Unsteady,
}

/// The kernel's "no" to one request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel says {}{}", io::Error::from_raw_os_error(*errno), note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default())]
pub struct Refusal {
    /// Which message of the batch, from 0.
    pub index: usize,
    /// The error number.
    pub errno: i32,
    /// The kernel's own words, if it gave any.
    pub note: Option<String>,
}

/// What came of a batch.
#[derive(Debug, Default)]
pub struct BatchResult {
    /// Requests that failed, in order.
    pub refusals: Vec<Refusal>,
    /// Answers to requests that ask for something: index in the batch, kind, body.
    pub replies: Vec<(usize, u16, Vec<u8>)>,
}

impl BatchResult {
    /// The first refusal whose error number is not among these.
    pub fn check(self, tolerated: &[i32]) -> Result<Self, Refusal> {
        match self.refusals.iter().find(|refusal| !tolerated.contains(&refusal.errno)) {
            Some(refusal) => Err(refusal.clone()),
            None => Ok(self),
        }
    }

    /// The same, but for refusals of some of the messages with this error number.
    pub fn without(mut self, messages: Range<usize>, errno: i32) -> Self {
        self.refusals.retain(|refusal| refusal.errno != errno || !messages.contains(&refusal.index));
        self
    }

    /// The refusal of one message.
    pub fn refusal(&self, index: usize) -> Option<&Refusal> {
        self.refusals.iter().find(|refusal| refusal.index == index)
    }
}

/// A socket to the kernel's routing family in the network namespace that the thread was in when it was opened.
pub struct Connection {
    socket: Socket,
    port: u32,
    sequence: u32,
    receive: Vec<u8>,
}

impl Connection {
    /// Opens one.
    pub fn open() -> Result<Connection, NetlinkError> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        let port = socket.bind_auto()?.port_number();
        socket.connect(&SocketAddr::new(0, 0))?;
        socket.set_cap_ack(true)?;
        socket.set_ext_ack(true)?;
        // Dumps honour their filters, and requests with unknown attributes are refused instead of half done.
        socket.set_netlink_get_strict_chk(true)?;
        // Room for every message of a batch to fail. Without CAP_NET_ADMIN nothing here works anyway.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 4 << 20);
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, 1 << 20);
        Ok(Connection { socket, port, sequence: 0, receive: Vec::with_capacity(64 << 10) })
    }

    /// The number by which the kernel's notifications name who asked for a change.
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
                    continue; // an answer of an earlier batch that was given up
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

    /// Runs a dump request (one message in `batch`) and hands each object to `each`. Starts over when the kernel says that what it listed
    /// changed meanwhile; `restart` is called before each try.
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
                                // A table that has no route yet does not exist for a filtered dump.
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
        Err(NetlinkError::Unsteady)
    }

    /// Runs a dump request, and collects what `read` makes of each object.
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
    // The request's header follows (capped), then attributes; 1 is NLMSGERR_ATTR_MSG.
    let notes = answer.payload().get(NetlinkHeader::default().buffer_len()..).unwrap_or_default();
    let note = message::attributes(notes, &[1], |nla| parse_string(nla.value())).next();
    Some(Refusal { index, errno, note })
}

/// Again after a signal.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
