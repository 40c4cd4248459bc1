//! Batches of messages in one buffer, and the parsing of a received buffer.
//!
//! `netlink-packet-route` has the messages and `netlink-packet-core` the frames. This module adds a
//! batch that grows in one reused buffer, and iterators that continue after an unreadable
//! attribute.

use netlink_packet_core::{
    DecodeError, NLM_F_REQUEST, NetlinkBuffer, NetlinkMessage, NlaBuffer, NlasIterator, parse_i32,
};
use netlink_packet_route::RouteNetlinkMessage;

/// Many requests in one buffer, sent by one system call and answered in order.
#[derive(Debug, Default)]
pub struct Batch {
    pub(super) buffer: Vec<u8>,
    /// Offset of each message.
    pub(super) starts: Vec<usize>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Number of messages.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether the batch has no message.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Length in octets.
    pub fn octets(&self) -> usize {
        self.buffer.len()
    }

    /// Removes all messages, and keeps the capacity.
    pub fn clear(&mut self) {
        self.buffer.clear();
        self.starts.clear();
    }

    /// Adds a request.
    pub(super) fn push(&mut self, flags: u16, request: RouteNetlinkMessage) {
        let mut message = NetlinkMessage::from(request);
        message.header.flags = flags | NLM_F_REQUEST;
        message.finalize();
        let start = self.buffer.len();
        self.starts.push(start);
        self.buffer.resize(start + message.header.length as usize, 0);
        message.serialize(&mut self.buffer[start..]);
    }
}

/// One received message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// `RTM_…`, `NLMSG_…`.
    pub kind: u16,
    /// `NLM_F_…`.
    pub flags: u16,
    /// Sequence number of the request.
    pub sequence: u32,
    /// The octets after the header.
    pub body: &'a [u8],
}

/// The messages of one datagram. A truncated message ends the iterator.
pub fn messages(mut datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let header = NetlinkBuffer::new_checked(datagram).ok()?;
        let (message, rest) = datagram.split_at(header.length() as usize);
        datagram = rest.get(message.len().next_multiple_of(4) - message.len()..).unwrap_or_default();
        let body = NetlinkBuffer::new(message).payload();
        Some(Message {
            kind: header.message_type(),
            flags: header.flags(),
            sequence: header.sequence_number(),
            body,
        })
    })
}

/// The attributes in `octets` of the `wanted` kinds, as `read` parses them. An attribute that
/// `read` cannot parse is skipped, because a newer kernel may have changed it; the others are still
/// returned.
pub fn attributes<'a, A>(
    octets: &'a [u8],
    wanted: &'static [u16],
    read: impl Fn(&NlaBuffer<&'a [u8]>) -> Result<A, DecodeError>,
) -> impl Iterator<Item = A> {
    NlasIterator::new(octets)
        .filter_map(Result::ok)
        .filter(|attribute| wanted.contains(&attribute.kind()))
        .filter_map(move |attribute| read(&attribute).ok())
}

/// All attributes in `octets`: kind without flags, and value. A truncated attribute ends the
/// iterator.
pub fn values(octets: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(octets).filter_map(Result::ok).filter_map(|nla| {
        let (kind, length) = (nla.kind(), usize::from(nla.length()));
        Some((kind, nla.into_inner().get(4..length)?))
    })
}

/// Reads an RTM_NEWNETCONF: a change of the sysctl settings of one link, or of all links (none).
/// Returns the link if the message is for IPv4 and contains `rp_filter`.
pub fn read_reverse_path(body: &[u8]) -> Option<Option<u32>> {
    const NETCONFA_IFINDEX: u16 = 1;
    const NETCONFA_RP_FILTER: u16 = 3;
    let (header, settings) = body.split_at_checked(4)?;
    let is_v4 = i32::from(*header.first()?) == libc::AF_INET;
    attributes(settings, &[NETCONFA_RP_FILTER], |nla| parse_i32(nla.value())).next().filter(|_| is_v4)?;
    let index = attributes(settings, &[NETCONFA_IFINDEX], |nla| parse_i32(nla.value())).next()?;
    // The indexes of `all` and `default` are negative.
    Some(u32::try_from(index).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::{Nla, Parseable};

    #[test]
    fn rp_filter_notification_returns_its_link() {
        let body = |family: i32, settings: &[(u16, i32)]| -> Vec<u8> {
            let setting = |(kind, value): &(u16, i32)| {
                [&8_u16.to_ne_bytes()[..], &kind.to_ne_bytes(), &value.to_ne_bytes()].concat()
            };
            let header = [family as u8, 0, 0, 0];
            [header.to_vec(), settings.iter().flat_map(setting).collect()].concat()
        };
        for (family, settings, link) in [
            (libc::AF_INET, &[(1, 7), (3, 2)][..], Some(Some(7))),
            (libc::AF_INET, &[(1, -1), (2, 0), (3, 1)], Some(None)),
            (libc::AF_INET, &[(1, 7), (2, 1)], None), // forwarding
            (libc::AF_INET6, &[(1, 7), (3, 2)], None),
            (libc::AF_INET, &[], None),
        ] {
            assert_eq!(read_reverse_path(&body(family, settings)), link, "{settings:?}");
        }
        let body = body(libc::AF_INET, &[(1, 7), (3, 2)]);
        for length in 0..body.len() {
            assert_eq!(read_reverse_path(&body[..length]), None, "{length}");
        }
    }

    #[test]
    fn truncated_datagram_ends_the_iterator() {
        let mut batch = Batch::new();
        batch.get_link_at(7);
        batch.get_link("tl0");
        let read: Vec<_> = messages(&batch.buffer).map(|message| (message.kind, message.flags)).collect();
        assert_eq!(read, [(libc::RTM_GETLINK, NLM_F_REQUEST); 2]);
        for length in 0..batch.starts[1] {
            assert_eq!(messages(&batch.buffer[..length]).count(), 0, "{length}");
        }
        // An attribute length below the header length must not cause an endless loop.
        let default = |octets| attributes(octets, &[0, 1], netlink_packet_core::DefaultNla::parse).count();
        assert_eq!(default(&[3, 0, 1, 0, 0, 0, 0, 0]), 0);
        assert_eq!(default(&[0; 8]), 0);
    }

    #[test]
    fn unknown_attribute_is_skipped() {
        use netlink_packet_route::rule::RuleAttribute;
        // A priority of three octets, followed by a table.
        let octets = [7, 0, 6, 0, 1, 2, 3, 0, 8, 0, 15, 0, 9, 0, 0, 0];
        let read: Vec<_> =
            attributes(&octets, &[6, 15], RuleAttribute::parse).map(|rule| rule.kind()).collect();
        assert_eq!(read, [15]);
    }
}
