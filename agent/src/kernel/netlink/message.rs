//! Writing and reading netlink's frames: headers, attributes, nests (RFC 3549, and the kernel's `netlink.h`).
//!
//! All numbers are in host order except where the protocol says otherwise; attributes start at multiples of four octets. Writing goes into
//! one growing buffer that holds many messages, so that 100,000 routes cost no allocation each; reading borrows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Octets of `struct nlmsghdr`.
pub(super) const HEADER: usize = 16;

/// Many requests in one buffer, sent by one system call and answered in order.
#[derive(Debug, Default)]
pub struct Batch {
    pub(super) buffer: Vec<u8>,
    /// Where each message starts.
    pub(super) starts: Vec<usize>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Messages in it.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Octets in it.
    pub fn octets(&self) -> usize {
        self.buffer.len()
    }

    /// Takes everything out, and keeps the room.
    pub fn clear(&mut self) {
        self.buffer.clear();
        self.starts.clear();
    }

    /// Starts a request; its fixed header (`ifinfomsg`, `rtmsg`, …) follows by [`Batch::raw`], then attributes.
    pub(super) fn begin(&mut self, kind: u16, flags: u16) {
        self.starts.push(self.buffer.len());
        self.buffer.extend_from_slice(&[0; 4]);
        self.buffer.extend_from_slice(&kind.to_ne_bytes());
        self.buffer.extend_from_slice(&(flags | libc::NLM_F_REQUEST as u16).to_ne_bytes());
        self.buffer.extend_from_slice(&[0; 8]);
    }

    /// Ends the request that was begun last: its length is known now.
    pub(super) fn end(&mut self) {
        self.pad();
        if let Some(start) = self.starts.last() {
            let length = (self.buffer.len() - start) as u32;
            self.buffer[*start..start + 4].copy_from_slice(&length.to_ne_bytes());
        }
    }

    /// Octets as they are.
    pub(super) fn raw(&mut self, octets: &[u8]) {
        self.buffer.extend_from_slice(octets);
    }

    /// One attribute.
    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.pad();
        self.buffer.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
        self.buffer.extend_from_slice(&kind.to_ne_bytes());
        self.buffer.extend_from_slice(value);
    }

    /// One attribute of 32 bits.
    pub(super) fn attribute_u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// A text with the zero octet that the kernel wants at its end.
    pub(super) fn attribute_text(&mut self, kind: u16, value: &str) {
        self.pad();
        self.buffer.extend_from_slice(&((5 + value.len()) as u16).to_ne_bytes());
        self.buffer.extend_from_slice(&kind.to_ne_bytes());
        self.buffer.extend_from_slice(value.as_bytes());
        self.buffer.push(0);
    }

    /// An address in its own octets.
    pub(super) fn attribute_address(&mut self, kind: u16, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.attribute(kind, &address.octets()),
            IpAddr::V6(address) => self.attribute(kind, &address.octets()),
        }
    }

    /// Opens a nest; what is written until [`Batch::close`] is inside.
    pub(super) fn open(&mut self, kind: u16) -> usize {
        self.pad();
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[0; 2]);
        self.buffer.extend_from_slice(&kind.to_ne_bytes());
        start
    }

    /// Closes the nest that [`Batch::open`] gave this number for.
    pub(super) fn close(&mut self, start: usize) {
        self.pad();
        let length = (self.buffer.len() - start) as u16;
        self.buffer[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    pub(super) fn pad(&mut self) {
        self.buffer.resize(self.buffer.len().next_multiple_of(4), 0);
    }
}

/// One message that was received.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// `RTM_…`, `NLMSG_…`.
    pub kind: u16,
    /// `NLM_F_…`.
    pub flags: u16,
    /// The request that it answers.
    pub sequence: u32,
    /// What follows the header.
    pub body: &'a [u8],
}

/// The messages of one datagram. A message that is cut off ends the walk.
pub fn messages(mut datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(datagram, 0)? as usize;
        if length < HEADER || length > datagram.len() {
            return None;
        }
        let message = Message {
            kind: u16_at(datagram, 4)?,
            flags: u16_at(datagram, 6)?,
            sequence: u32_at(datagram, 8)?,
            body: &datagram[HEADER..length],
        };
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// The attributes in `octets`, without their nest and byte-order flags.
pub fn attributes(mut octets: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(octets, 0)?);
        let kind = u16_at(octets, 2)? & 0x3fff;
        let value = octets.get(4..length)?;
        octets = octets.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Two octets at an offset.
pub fn u16_at(octets: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(octets.get(offset..offset + 2)?.try_into().ok()?))
}

/// Four octets at an offset.
pub fn u32_at(octets: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(octets.get(offset..offset + 4)?.try_into().ok()?))
}

/// An address of either family, by its length.
pub fn address(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => Some(IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(octets).ok()?))),
        16 => Some(IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(octets).ok()?))),
        _ => None,
    }
}

/// A text up to its zero octet.
pub fn text(octets: &[u8]) -> String {
    let end = octets.iter().position(|octet| *octet == 0).unwrap_or(octets.len());
    String::from_utf8_lossy(&octets[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let mut batch = Batch::new();
        batch.begin(16, 0x400);
        batch.raw(&[0; 16]);
        batch.attribute_text(3, "tl0");
        let outer = batch.open(18);
        batch.attribute(1, b"veth");
        batch.attribute_u32(2, 7);
        batch.close(outer);
        batch.end();
        batch.begin(24, 0);
        batch.raw(&[1, 2, 3]);
        batch.end();

        let read: Vec<_> = messages(&batch.buffer).collect();
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].kind, read[0].flags), (16, 0x401));
        let inside: Vec<_> = attributes(&read[0].body[16..]).collect();
        assert_eq!(inside[0], (3, &b"tl0\0"[..]));
        assert_eq!(text(inside[0].1), "tl0");
        assert_eq!(inside[1].0, 18);
        assert_eq!(
            attributes(inside[1].1).collect::<Vec<_>>(),
            [(1, &b"veth"[..]), (2, &7u32.to_ne_bytes()[..])]
        );
        assert_eq!(read[1].body, [1, 2, 3, 0]);
    }

    #[test]
    fn a_datagram_that_is_cut_off_ends_the_walk() {
        let mut batch = Batch::new();
        batch.begin(16, 0);
        batch.attribute_u32(1, 2);
        batch.end();
        for length in 0..batch.buffer.len() {
            assert_eq!(messages(&batch.buffer[..length]).count(), 0, "{length}");
        }
        // An attribute that claims less than its own header must not loop for ever.
        assert_eq!(attributes(&[3, 0, 1, 0, 0, 0, 0, 0]).count(), 0);
        assert_eq!(attributes(&[0; 8]).count(), 0);
    }
}
