//! The codec: octets of a TCP stream to messages, and back (RFC 4271 §4).
//!
//! [`frame`] returns the first message of a buffer. Each message type has its own module. Its
//! `decode` reads the body (the octets after the 19-octet header), and its `encode` writes the
//! whole message. OPEN, NOTIFICATION and ROUTE-REFRESH are rare and small, so they are plain owned
//! values. UPDATE has most of the octets, so it is read in place. [`decode_update`] validates the
//! whole message once. Its result borrows from the message and from the caller's [`Scratch`]. A
//! valid UPDATE allocates nothing.
//!
//! The attributes of a path are stored as one *canonical block* of octets. It has path attributes
//! in ascending order of type code, four-octet AS numbers, and the flags of each attribute's
//! specification. It has no NEXT_HOP, MP_REACH_NLRI or MP_UNREACH_NLRI. Two UPDATEs with equal
//! attributes have equal blocks. So the block (with the next hop) is the key under which attributes
//! are interned, and [`Announcement`] copies it into messages without parsing it.
//! [`PathAttributes`] is the same block in parsed form, for decisions and policy.
//!
//! The type of an error names the message part at fault ([`WireError`]). Only
//! [`WireError::notification`] converts an error to a NOTIFICATION. The milder outcomes of RFC 7606
//! (attribute discard, treat-as-withdraw) are not errors but part of [`Update`].
//!
//! Supported: RFC 4271, 4760 (IPv4 and IPv6 unicast), 2545, 2918, 4486, 4724, 5492, 6286, 6793,
//! 7313, 7606, 7607, 7911, 8092, 8654, 8950, 9003, 9072. Not supported: confederations (5065; their
//! segments count as malformed, as that RFC requires outside a confederation), deprecation of
//! AS_SET (9774; some routers still aggregate with AS_SET).

pub mod attributes;
pub mod capability;
pub mod context;
pub mod error;
pub mod nlri;
pub mod notification;
pub mod open;
pub mod refresh;
pub mod update;
pub mod writer;

pub use attributes::{AsPath, Origin, PathAttributes, Segment, SegmentKind, UnknownAttribute};
pub use capability::{AddPathFamily, AfiSafi, Capability, LongLivedFamily, RestartFamily};
pub use context::DecodeContext;
pub use error::{
    AttributeFault, AttributeFaultKind, ErrorHandling, HeaderError, OpenError, RefreshError, UpdateError,
    WireError,
};
pub use nlri::{Nlri, Prefixes};
pub use notification::{Cease, Notification};
pub use open::Open;
pub use refresh::RouteRefresh;
pub use update::{Reach, Scratch, Update, decode_update};
pub use writer::{Announcement, EncodeContext, EncodeError, UpdateWriter, Withdrawal};

/// Octets of the header: marker, length, type.
pub const HEADER: usize = 19;
/// The longest message, header included (RFC 4271 §4.1).
pub const MAX_MESSAGE: usize = 4096;
/// The longest message if both sides have the Extended Message capability (RFC 8654).
pub const MAX_EXTENDED: usize = 65535;

const MARKER: [u8; 16] = [0xff; 16];

/// The type of a message, with its code in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageKind {
    /// OPEN.
    Open = 1,
    /// UPDATE.
    Update = 2,
    /// NOTIFICATION.
    Notification = 3,
    /// KEEPALIVE.
    Keepalive = 4,
    /// ROUTE-REFRESH (RFC 2918).
    RouteRefresh = 5,
}

impl MessageKind {
    const fn from_code(code: u8) -> Option<MessageKind> {
        Some(match code {
            1 => MessageKind::Open,
            2 => MessageKind::Update,
            3 => MessageKind::Notification,
            4 => MessageKind::Keepalive,
            5 => MessageKind::RouteRefresh,
            _ => return None,
        })
    }

    /// The minimum and maximum length of the message, header included; `max` is the session's
    /// maximum. OPEN and KEEPALIVE are never extended (RFC 8654 §4).
    fn lengths(self, max: usize) -> (usize, usize) {
        match self {
            MessageKind::Open => (29, MAX_MESSAGE),
            MessageKind::Update => (23, max),
            MessageKind::Notification => (21, max),
            MessageKind::Keepalive => (HEADER, HEADER),
            MessageKind::RouteRefresh => (23, max),
        }
    }
}

/// One message at the front of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The message type.
    pub kind: MessageKind,
    /// The octets after the header.
    pub body: &'a [u8],
    /// Octets of the message in the buffer, header included.
    pub len: usize,
}

/// Returns the message at the front of `buf`, or `None` if more octets are needed. `max` is
/// [`MAX_MESSAGE`] or [`MAX_EXTENDED`]. A header with a longer length, or one too short for its
/// type, is rejected before the body arrives (RFC 4271 §6.1). So a buffer of `max` octets is always
/// sufficient.
///
/// # Errors
/// If the marker, the length or the type of the header is invalid.
pub fn frame(buf: &[u8], max: usize) -> Result<Option<Frame<'_>>, HeaderError> {
    let Some((header, _)) = buf.split_first_chunk::<HEADER>() else {
        return Ok(None);
    };
    if header[..16] != MARKER {
        return Err(HeaderError::Marker);
    }
    let length = u16::from_be_bytes([header[16], header[17]]);
    let len = usize::from(length);
    if len < HEADER || len > max {
        return Err(HeaderError::Length { kind: None, length });
    }
    let kind = MessageKind::from_code(header[18]).ok_or(HeaderError::Kind { kind: header[18] })?;
    let (least, greatest) = kind.lengths(max);
    if len < least || len > greatest {
        return Err(HeaderError::Length { kind: Some(kind), length });
    }
    Ok(buf.get(HEADER..len).map(|body| Frame { kind, body, len }))
}

/// Appends a KEEPALIVE.
pub fn encode_keepalive(out: &mut Vec<u8>) {
    let start = begin_message(out, MessageKind::Keepalive);
    finish_message(out, start);
}

/// Appends a header with a length that [`finish_message`] fills in; returns the start of the
/// message.
fn begin_message(out: &mut Vec<u8>, kind: MessageKind) -> usize {
    let start = out.len();
    out.extend_from_slice(&MARKER);
    out.extend_from_slice(&[0, 0, kind as u8]);
    start
}

/// Writes the length of the message from `start` to the end of `out`; it is at most
/// [`MAX_EXTENDED`].
fn finish_message(out: &mut [u8], start: usize) {
    let length = out.len() - start;
    debug_assert!(length <= MAX_EXTENDED, "a message of {length} octets");
    put_u16(out, start + 16, length);
}

/// Writes `value`, which must fit, at `at`.
fn put_u16(out: &mut [u8], at: usize, value: usize) {
    out[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(length: u16, kind: u8, body: usize) -> Vec<u8> {
        let mut message = MARKER.to_vec();
        message.extend_from_slice(&length.to_be_bytes());
        message.push(kind);
        message.resize(message.len() + body, 0);
        message
    }

    #[test]
    fn a_message_is_returned_once_it_is_complete() {
        let mut buf = Vec::new();
        encode_keepalive(&mut buf);
        buf.extend(message(23, 2, 4));
        let first = frame(&buf, MAX_MESSAGE).unwrap().unwrap();
        assert_eq!((first.kind, first.len, first.body), (MessageKind::Keepalive, 19, &[][..]));
        let second = frame(&buf[first.len..], MAX_MESSAGE).unwrap().unwrap();
        assert_eq!((second.kind, second.len, second.body), (MessageKind::Update, 23, &[0; 4][..]));
        for len in 0..23 {
            assert_eq!(frame(&buf[19..19 + len], MAX_MESSAGE), Ok(None));
        }
    }

    #[test]
    fn a_bad_header_is_rejected_before_its_body_arrives() {
        let mut marker = message(19, 4, 0);
        marker[7] = 0;
        assert_eq!(frame(&marker, MAX_MESSAGE), Err(HeaderError::Marker));
        assert_eq!(frame(&message(19, 6, 0), MAX_MESSAGE), Err(HeaderError::Kind { kind: 6 }));
        for (length, kind, max) in [
            (5, 2, MAX_MESSAGE),
            (18, 4, MAX_MESSAGE),
            (20, 4, MAX_MESSAGE),
            (20, 4, MAX_EXTENDED),
            (28, 1, MAX_MESSAGE),
            (4097, 1, MAX_EXTENDED),
            (22, 2, MAX_MESSAGE),
            (4097, 2, MAX_MESSAGE),
            (65535, 2, MAX_MESSAGE),
            (20, 3, MAX_MESSAGE),
            (22, 5, MAX_MESSAGE),
        ] {
            let error = frame(&message(length, kind, 0), max).unwrap_err();
            assert!(
                matches!(error, HeaderError::Length { length: l, .. } if l == length),
                "{length} {kind}: {error}"
            );
        }
        assert_eq!(frame(&message(65535, 2, 10), MAX_EXTENDED), Ok(None));
    }
}
