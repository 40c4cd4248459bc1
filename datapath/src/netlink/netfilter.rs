//! The netfilter subsystems of netlink: connection, transactions, lists, and the writing and
//! reading of attributes.
//!
//! nf_tables applies the messages between two batch messages as one transaction. The kernel
//! handles a transaction inside `send`, so all its answers are in the receive buffer afterwards.
//! Only the last message requests an acknowledgement. The kernel answers the other messages only
//! if it refuses them.

use std::io;
use std::ops::Range;

use netlink_packet_core::{
    ErrorBuffer, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR,
    NetlinkHeader, parse_string,
};
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};

use super::events::Events;
use super::message::{self, Message};

const NFTABLES: u16 = libc::NFNL_SUBSYS_NFTABLES as u16;
const BATCH_BEGIN: u16 = libc::NLMSG_MIN_TYPE as u16;
const BATCH_END: u16 = BATCH_BEGIN + 1;
const GET_GENERATION: u16 = NFTABLES << 8 | libc::NFT_MSG_GETGEN as u16;
/// `NFTA_GEN_ID`.
const GENERATION: u16 = 1;
/// `NLMSGERR_ATTR_MSG`.
const NOTE: u16 = 1;

/// Flag of an attribute that contains attributes.
pub(crate) const NESTED: u16 = 1 << 15;

/// The reason why a transaction changed nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransactionError {
    /// The socket failed.
    #[error("{0}")]
    Socket(#[source] io::Error),
    /// The kernel refused a message.
    #[error("{error}{}", note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default())]
    Refused {
        /// Index of the message in the batch. None: the transaction as a whole.
        index: Option<usize>,
        /// The kernel's error.
        #[source]
        error: io::Error,
        /// The kernel's text (extended acknowledgement), if there is one.
        note: Option<String>,
    },
}

impl From<TransactionError> for io::Error {
    fn from(error: TransactionError) -> io::Error {
        match error {
            TransactionError::Socket(error) | TransactionError::Refused { error, .. } => error,
        }
    }
}

/// A sequence of messages, each with its `nlmsghdr` and `nfgenmsg`.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    octets: Vec<u8>,
    /// Offset of each message.
    starts: Vec<usize>,
}

impl Messages {
    /// Number of messages.
    pub(crate) fn len(&self) -> usize {
        self.starts.len()
    }

    /// Adds a message. `content` writes its attributes.
    pub(crate) fn push(&mut self, kind: u16, flags: u16, family: i32, content: impl FnOnce(&mut Vec<u8>)) {
        let resource = if kind < 0x100 { NFTABLES } else { 0 };
        self.push_to(resource, kind, flags, family, content);
    }

    /// Adds a message about a numbered resource: the group of a log.
    pub(crate) fn push_to(
        &mut self,
        resource: u16,
        kind: u16,
        flags: u16,
        family: i32,
        content: impl FnOnce(&mut Vec<u8>),
    ) {
        let start = self.octets.len();
        self.starts.push(start);
        self.octets.extend_from_slice(&[0; 4]);
        self.octets.extend_from_slice(&kind.to_ne_bytes());
        self.octets.extend_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        self.octets.extend_from_slice(&[0; 8]);
        let [high, low] = resource.to_be_bytes();
        self.octets.extend_from_slice(&[family as u8, 0, high, low]);
        content(&mut self.octets);
        let length = (self.octets.len() - start) as u32;
        self.octets[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// Adds messages of another sequence.
    pub(crate) fn append(&mut self, other: &Messages, range: Range<usize>) {
        let offset = |index: usize| other.starts.get(index).copied().unwrap_or(other.octets.len());
        let (first, end) = (offset(range.start), offset(range.end));
        let here = self.octets.len();
        self.starts.extend(other.starts[range].iter().map(|start| start - first + here));
        self.octets.extend_from_slice(&other.octets[first..end]);
    }

    fn set_sequence(&mut self, index: usize, sequence: u32) {
        let field = self.starts[index] + 8;
        self.octets[field..field + 4].copy_from_slice(&sequence.to_ne_bytes());
    }

    fn request_acknowledgement(&mut self, index: usize) {
        let field = self.starts[index] + 6;
        let flags = u16::from_ne_bytes([self.octets[field], self.octets[field + 1]]) | NLM_F_ACK;
        self.octets[field..field + 2].copy_from_slice(&flags.to_ne_bytes());
    }
}

/// A netfilter socket in the network namespace of the thread that opened it.
pub(crate) struct Connection {
    socket: Socket,
    port: u32,
    sequence: u32,
    receive: Vec<u8>,
    /// Size of the send buffer in octets, as far as it is known.
    send_buffer: usize,
    /// Whether the ifindex in a set of intervals is in network byte order; none until it is known.
    pub(crate) network_order: Option<bool>,
}

impl Connection {
    pub(crate) fn open() -> io::Result<Connection> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        let port = socket.bind_auto()?.port_number();
        socket.connect(&SocketAddr::new(0, 0))?;
        socket.set_cap_ack(true)?;
        socket.set_ext_ack(true)?;
        let receive = Vec::with_capacity(64 << 10);
        Ok(Connection { socket, port, sequence: 0, receive, send_buffer: 0, network_order: None })
    }

    /// The netlink port ID of this socket in notifications.
    pub(crate) fn port(&self) -> u32 {
        self.port
    }

    /// Continues as a socket for notifications.
    pub(crate) fn into_events(self, receive_buffer: usize) -> io::Result<Events> {
        Events::new(self.socket, receive_buffer)
    }

    /// Runs a transaction of nf_tables. If the kernel refuses one message, nothing changes.
    pub(crate) fn transact(&mut self, messages: &Messages) -> Result<(), TransactionError> {
        if messages.len() == 0 {
            return Ok(());
        }
        let mut batch = Messages::default();
        batch.octets.reserve(messages.octets.len() + 64);
        batch.push(BATCH_BEGIN, 0, libc::AF_UNSPEC, |_| {});
        batch.append(messages, 0..messages.len());
        let last = batch.len() - 1;
        batch.request_acknowledgement(last);
        batch.push(BATCH_END, 0, libc::AF_UNSPEC, |_| {});
        self.run(&mut batch, last)
    }

    /// Sends messages and reads their answers. `last`: the index of the message that requests an
    /// acknowledgement.
    fn run(&mut self, batch: &mut Messages, last: usize) -> Result<(), TransactionError> {
        let first = self.send(batch).map_err(TransactionError::Socket)?;
        let (mut refused, mut acknowledged, mut lost) = (None, false, false);
        loop {
            match self.read(libc::MSG_DONTWAIT) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // More errors than the receive buffer can contain; the first ones are in it.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => lost = true,
                Err(error) => return Err(TransactionError::Socket(error)),
            }
            for message in message::messages(&self.receive).filter(|message| message.kind == NLMSG_ERROR) {
                let index = message.sequence.wrapping_sub(first) as usize;
                if index > last {
                    continue; // an answer to an earlier request
                }
                match error_of(&message) {
                    Some(error) if refused.is_none() => {
                        // An error of the whole transaction has the sequence number of its first
                        // message.
                        let (index, note) = (index.checked_sub(1), note_of(&message));
                        refused = Some(TransactionError::Refused { index, error, note });
                    }
                    Some(_) => {}
                    None => acknowledged |= index == last,
                }
            }
        }
        match refused {
            Some(refused) => Err(refused),
            None if acknowledged && !lost => Ok(()),
            None => Err(TransactionError::Socket(io::Error::other("the kernel's answer was lost"))),
        }
    }

    /// Sends a request with an acknowledgement, outside of a transaction.
    pub(crate) fn request(
        &mut self,
        resource: u16,
        kind: u16,
        family: i32,
        content: impl FnOnce(&mut Vec<u8>),
    ) -> io::Result<()> {
        let mut messages = Messages::default();
        messages.push_to(resource, kind, NLM_F_ACK, family, content);
        Ok(self.run(&mut messages, 0)?)
    }

    /// Numbers the messages and sends them. Returns the sequence number of the first message.
    fn send(&mut self, batch: &mut Messages) -> io::Result<u32> {
        let first = self.sequence.wrapping_add(1);
        for index in 0..batch.len() {
            self.sequence = self.sequence.wrapping_add(1);
            batch.set_sequence(index, self.sequence);
        }
        let length = batch.octets.len();
        // The kernel refuses a message that is longer than the buffer. This size needs
        // CAP_NET_ADMIN, as all requests of the agent do.
        if length > 64 << 10 && length > self.send_buffer {
            rustix::net::sockopt::set_socket_send_buffer_size_force(&self.socket, length + 64)?;
            self.send_buffer = length;
        }
        self.socket.send(&batch.octets, 0)?;
        Ok(first)
    }

    /// The generation of the ruleset. Each commit increases it.
    pub(crate) fn generation(&mut self) -> io::Result<u32> {
        let mut batch = Messages::default();
        batch.push(GET_GENERATION, 0, libc::AF_UNSPEC, |_| {});
        let sequence = self.send(&mut batch)?;
        loop {
            self.read(0)?;
            let mut answers = message::messages(&self.receive);
            let Some(answer) = answers.find(|message| message.sequence == sequence) else {
                continue; // an answer to an earlier request
            };
            if answer.kind == NLMSG_ERROR {
                return Err(error_of(&answer).unwrap_or_else(|| io::ErrorKind::InvalidData.into()));
            }
            let number = nested(after_header(&answer), GENERATION).find_map(|id| id.try_into().ok());
            return number.map(u32::from_be_bytes).ok_or_else(|| io::ErrorKind::InvalidData.into());
        }
    }

    /// Runs a dump request of a family and passes each object's message to `each`. Returns whether
    /// the list is whole: no object changed meanwhile.
    pub(crate) fn dump(
        &mut self,
        kind: u16,
        family: i32,
        request: impl FnOnce(&mut Vec<u8>),
        mut each: impl FnMut(&Message<'_>),
    ) -> io::Result<bool> {
        let mut whole = true;
        let mut batch = Messages::default();
        batch.push(kind, NLM_F_DUMP, family, request);
        let sequence = self.send(&mut batch)?;
        loop {
            self.read(0)?;
            for message in message::messages(&self.receive).filter(|message| message.sequence == sequence) {
                whole &= message.flags & NLM_F_DUMP_INTR == 0;
                match message.kind {
                    NLMSG_DONE => return Ok(whole),
                    NLMSG_ERROR => return error_of(&message).map_or(Ok(whole), Err),
                    _ => each(&message),
                }
            }
        }
    }

    fn read(&mut self, flags: i32) -> io::Result<()> {
        loop {
            self.receive.clear();
            match self.socket.recv(&mut self.receive, flags) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(drop),
            }
        }
    }
}

/// The error in an `NLMSG_ERROR`; none in an acknowledgement.
fn error_of(message: &Message<'_>) -> Option<io::Error> {
    let code = i32::from_ne_bytes(*message.body.first_chunk()?);
    (code != 0).then(|| io::Error::from_raw_os_error(code.wrapping_neg()))
}

/// The kernel's text in an `NLMSG_ERROR`.
fn note_of(message: &Message<'_>) -> Option<String> {
    let answer = ErrorBuffer::new_checked(message.body).ok()?;
    // The request's header comes before the attributes (NETLINK_CAP_ACK).
    let notes = answer.payload().get(size_of::<NetlinkHeader>()..)?;
    message::attributes(notes, &[NOTE], |nla| parse_string(nla.value())).next()
}

/// The attributes of a message: the octets after `nfgenmsg`.
pub(crate) fn after_header<'a>(message: &Message<'a>) -> &'a [u8] {
    message.body.get(4..).unwrap_or_default()
}

/// The values of the attributes of one kind.
pub(crate) fn nested(octets: &[u8], kind: u16) -> impl Iterator<Item = &[u8]> {
    message::values(octets).filter(move |(found, _)| *found == kind).map(|(_, value)| value)
}

/// The first attribute of one kind, as text.
pub(crate) fn text_of(octets: &[u8], kind: u16) -> Option<&str> {
    let value = nested(octets, kind).next()?;
    std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok()
}

/// The first attribute of one kind, as a number in network byte order.
pub(crate) fn number_of(octets: &[u8], kind: u16) -> Option<u32> {
    Some(u32::from_be_bytes(nested(octets, kind).next()?.try_into().ok()?))
}

/// Writes an attribute.
pub(crate) fn attribute(message: &mut Vec<u8>, kind: u16, content: impl FnOnce(&mut Vec<u8>)) {
    let start = message.len();
    message.extend_from_slice(&[0; 4]);
    content(message);
    let length = (message.len() - start) as u16;
    message[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    message[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
    message.resize(message.len().next_multiple_of(4), 0);
}

/// Writes an attribute of octets.
pub(crate) fn octets(message: &mut Vec<u8>, kind: u16, octets: &[u8]) {
    attribute(message, kind, |value| value.extend_from_slice(octets));
}

/// Writes an attribute of text.
pub(crate) fn text(message: &mut Vec<u8>, kind: u16, text: &str) {
    attribute(message, kind, |value| {
        value.extend_from_slice(text.as_bytes());
        value.push(0);
    });
}

/// Writes an attribute with a number in network byte order.
pub(crate) fn number(message: &mut Vec<u8>, kind: u16, number: u32) {
    octets(message, kind, &number.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_lengths_and_consecutive_sequences() {
        let mut messages = Messages::default();
        messages.push(NFTABLES << 8, 0, libc::NFPROTO_INET, |message| text(message, 1, "t"));
        messages.push_to(116, 4 << 8 | 1, NLM_F_ACK, 0, |message| number(message, 2, 7));
        let mut all = Messages::default();
        all.push(BATCH_BEGIN, 0, 0, |_| {});
        all.append(&messages, 0..1);
        all.append(&messages, 1..2);
        (0..all.len()).for_each(|index| all.set_sequence(index, 10 + index as u32));
        all.request_acknowledgement(1);
        let read: Vec<_> = message::messages(&all.octets).collect();
        let heads: Vec<_> = read.iter().map(|read| (read.kind, read.flags, read.sequence)).collect();
        let acknowledged = NLM_F_REQUEST | NLM_F_ACK;
        assert_eq!(heads, [(16, NLM_F_REQUEST, 10), (0xa00, acknowledged, 11), (0x401, acknowledged, 12)]);
        assert_eq!(read[0].body, [0, 0, 0, 10], "the batch names its subsystem");
        assert_eq!(text_of(after_header(&read[1]), 1), Some("t"));
        assert_eq!(read[2].body[..4], [0, 0, 0, 116]);
        assert_eq!(number_of(after_header(&read[2]), 2), Some(7));
        assert_eq!(number_of(after_header(&read[2]), 1), None);
    }
}
