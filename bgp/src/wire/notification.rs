//! NOTIFICATION (RFC 4271 §4.5, §6) with its text form and the shutdown communication of RFC 9003.

use std::fmt;

use super::{HEADER, HeaderError, MessageKind, begin_message, finish_message};

/// The reason for the end of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// Error code.
    pub code: u8,
    /// Error subcode; 0 is unspecific.
    pub subcode: u8,
    /// Data for diagnosis; its meaning depends on code and subcode.
    pub data: Vec<u8>,
}

/// The subcodes of Cease (RFC 4486, RFC 8538, RFC 9384).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cease {
    /// The number of prefixes exceeds the limit.
    MaximumPrefixes = 1,
    /// Shut down by an operator.
    AdministrativeShutdown = 2,
    /// The peer was removed from the configuration.
    PeerDeconfigured = 3,
    /// Reset by an operator.
    AdministrativeReset = 4,
    /// The connection is rejected.
    ConnectionRejected = 5,
    /// The configuration changed.
    ConfigurationChange = 6,
    /// The other connection is kept (RFC 4271 §6.8).
    ConnectionCollision = 7,
    /// A resource is exhausted.
    OutOfResources = 8,
    /// Reset without graceful restart (RFC 8538).
    HardReset = 9,
    /// BFD detected a failure of the path (RFC 9384).
    BfdDown = 10,
}

impl Notification {
    /// The longest shutdown communication, in octets of UTF-8 (RFC 9003).
    pub const MAX_COMMUNICATION: usize = 255;

    /// A notification with its data.
    pub fn new(code: u8, subcode: u8, data: impl Into<Vec<u8>>) -> Notification {
        Notification { code, subcode, data: data.into() }
    }

    /// Hold Timer Expired.
    pub fn hold_timer_expired() -> Notification {
        Notification::new(4, 0, [])
    }

    /// Finite State Machine Error (RFC 6608): 0 unspecified, 1 unexpected message in OpenSent, 2 in
    /// OpenConfirm, 3 in Established.
    pub fn fsm_error(subcode: u8) -> Notification {
        Notification::new(5, subcode, [])
    }

    /// Cease. Only the two administrative subcodes carry a communication, cut off at
    /// [`Self::MAX_COMMUNICATION`] octets.
    pub fn cease(subcode: Cease, communication: Option<&str>) -> Notification {
        let mut data = Vec::new();
        if let (Cease::AdministrativeShutdown | Cease::AdministrativeReset, Some(text)) =
            (subcode, communication)
        {
            let text = cut(text, Self::MAX_COMMUNICATION);
            data.push(text.len() as u8);
            data.extend_from_slice(text.as_bytes());
        }
        Notification::new(6, subcode as u8, data)
    }

    /// A Hard Reset for the given reason (RFC 8538 §3): no routes are retained.
    pub fn hard_reset(reason: &Notification) -> Notification {
        let mut data = vec![reason.code, reason.subcode];
        data.extend_from_slice(&reason.data);
        Notification::new(6, Cease::HardReset as u8, data)
    }

    /// Whether the session ends without graceful restart (RFC 8538).
    pub fn is_hard_reset(&self) -> bool {
        (self.code, self.subcode) == (6, Cease::HardReset as u8)
    }

    /// The reason that a Hard Reset carries.
    pub fn reason(&self) -> Option<Notification> {
        match self.data[..] {
            [code, subcode, ref data @ ..] if self.is_hard_reset() => {
                Some(Notification::new(code, subcode, data))
            }
            _ => None,
        }
    }

    /// Decodes the octets after the header.
    ///
    /// # Errors
    /// If the code or the subcode is missing.
    pub fn decode(body: &[u8]) -> Result<Notification, HeaderError> {
        match body {
            [code, subcode, data @ ..] => Ok(Notification::new(*code, *subcode, data)),
            _ => Err(HeaderError::Length {
                kind: Some(MessageKind::Notification),
                length: (HEADER + body.len()) as u16,
            }),
        }
    }

    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = begin_message(out, MessageKind::Notification);
        out.extend_from_slice(&[self.code, self.subcode]);
        let room = super::MAX_MESSAGE - HEADER - 2;
        out.extend_from_slice(&self.data[..self.data.len().min(room)]);
        finish_message(out, start);
    }

    /// The text of the peer's operator (RFC 9003). Control characters are escaped, so they can
    /// affect neither a log nor a terminal. None if there is no text or if it exceeds its length.
    pub fn communication(&self) -> Option<String> {
        if self.code != 6 || ![2, 4].contains(&self.subcode) {
            return None;
        }
        let (length, text) = self.data.split_first()?;
        let text = text.get(..usize::from(*length)).filter(|text| !text.is_empty())?;
        let mut clean = String::with_capacity(text.len());
        for character in String::from_utf8_lossy(text).chars() {
            if changes_what_is_shown(character) {
                clean.extend(character.escape_default());
            } else {
                clean.push(character);
            }
        }
        Some(clean)
    }

    fn names(&self) -> (&'static str, &'static [&'static str]) {
        match self.code {
            1 => (
                "Message Header Error",
                &["", "Connection Not Synchronized", "Bad Message Length", "Bad Message Type"],
            ),
            2 => (
                "OPEN Message Error",
                &[
                    "",
                    "Unsupported Version Number",
                    "Bad Peer AS",
                    "Bad BGP Identifier",
                    "Unsupported Optional Parameter",
                    "",
                    "Unacceptable Hold Time",
                    "Unsupported Capability",
                    "",
                    "",
                    "",
                    "Role Mismatch",
                ],
            ),
            3 => (
                "UPDATE Message Error",
                &[
                    "",
                    "Malformed Attribute List",
                    "Unrecognized Well-known Attribute",
                    "Missing Well-known Attribute",
                    "Attribute Flags Error",
                    "Attribute Length Error",
                    "Invalid ORIGIN Attribute",
                    "",
                    "Invalid NEXT_HOP Attribute",
                    "Optional Attribute Error",
                    "Invalid Network Field",
                    "Malformed AS_PATH",
                ],
            ),
            4 => ("Hold Timer Expired", &[]),
            5 => (
                "Finite State Machine Error",
                &[
                    "",
                    "Unexpected Message in OpenSent",
                    "Unexpected Message in OpenConfirm",
                    "Unexpected Message in Established",
                ],
            ),
            6 => (
                "Cease",
                &[
                    "",
                    "Maximum Number of Prefixes Reached",
                    "Administrative Shutdown",
                    "Peer De-configured",
                    "Administrative Reset",
                    "Connection Rejected",
                    "Other Configuration Change",
                    "Connection Collision Resolution",
                    "Out of Resources",
                    "Hard Reset",
                    "BFD Down",
                ],
            ),
            7 => ("ROUTE-REFRESH Message Error", &["", "Invalid Message Length"]),
            8 => ("Send Hold Timer Expired", &[]),
            _ => ("", &[]),
        }
    }
}

/// The longest prefix of `text` that has at most `octets` octets and ends between two characters.
pub(super) fn cut(text: &str, octets: usize) -> &str {
    let mut end = text.len().min(octets);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Whether a character affects a terminal, a log line, or the direction of the surrounding text.
pub(super) fn changes_what_is_shown(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

impl fmt::Display for Notification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (code, subcodes) = self.names();
        match code {
            "" => write!(f, "error {}", self.code)?,
            name => f.write_str(name)?,
        }
        match subcodes.get(usize::from(self.subcode)) {
            Some(name) if !name.is_empty() => write!(f, "/{name}")?,
            _ if self.subcode != 0 => write!(f, "/{}", self.subcode)?,
            _ => {}
        }
        // A nested Hard Reset is not shown. It does not occur in practice, and only the length of
        // the message limits the depth.
        if let Some(reason) = self.reason().filter(|reason| !reason.is_hard_reset()) {
            return write!(f, " for {reason}");
        }
        match self.communication() {
            Some(text) => write!(f, ": \"{text}\""),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_have_a_text_form() {
        for (notification, text) in [
            (Notification::new(2, 2, []), "OPEN Message Error/Bad Peer AS"),
            (Notification::new(3, 7, []), "UPDATE Message Error/7"),
            (Notification::hold_timer_expired(), "Hold Timer Expired"),
            (Notification::new(99, 0, []), "error 99"),
            (Notification::new(99, 3, []), "error 99/3"),
            (
                Notification::cease(Cease::AdministrativeShutdown, Some("back at 3")),
                "Cease/Administrative Shutdown: \"back at 3\"",
            ),
            (Notification::cease(Cease::PeerDeconfigured, Some("no text here")), "Cease/Peer De-configured"),
            (
                Notification::new(6, 4, *b"\x05a\n\x1bb\xff"),
                "Cease/Administrative Reset: \"a\\n\\u{1b}b\u{fffd}\"",
            ),
            (
                Notification::hard_reset(&Notification::cease(Cease::AdministrativeShutdown, Some("bye"))),
                "Cease/Hard Reset for Cease/Administrative Shutdown: \"bye\"",
            ),
            (Notification::new(6, 9, []), "Cease/Hard Reset"),
            (Notification::new(6, 9, [6]), "Cease/Hard Reset"),
            (Notification::new(6, 9, [6, 9, 6, 9]), "Cease/Hard Reset"),
            (Notification::new(6, 2, *b"\x09abc"), "Cease/Administrative Shutdown"),
            (Notification::new(6, 2, [0]), "Cease/Administrative Shutdown"),
        ] {
            assert_eq!(notification.to_string(), text);
        }
    }

    #[test]
    fn a_communication_is_cut_between_characters() {
        let notification = Notification::cease(Cease::AdministrativeReset, Some(&"ä".repeat(200)));
        assert_eq!(notification.data[0], 254);
        assert_eq!(notification.communication().unwrap(), "ä".repeat(127));
    }

    #[test]
    fn encoding_round_trips() {
        let notification = Notification::new(3, 9, [1, 2, 3]);
        let mut out = Vec::new();
        notification.encode(&mut out);
        let frame = super::super::frame(&out, super::super::MAX_MESSAGE).unwrap().unwrap();
        assert_eq!(frame.kind, MessageKind::Notification);
        assert_eq!(Notification::decode(frame.body), Ok(notification));
        Notification::decode(&[6]).unwrap_err();
    }
}
