//! The cause of a missing session, as a type. Advice, counters and alerts use this type; the text
//! is in the [`Fault`].

use crate::types::{Asn, InterfaceName};
use crate::wire::{Cease, Notification, OpenError, WireError};

use super::fault::Fault;
use crate::bfd::Diagnostic;

/// The side that ended the session, or that noticed the failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This side.
    Local,
    /// The peer.
    Peer,
}

/// The cause of a lost session, or of a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The interface towards the peer had no carrier when the session was lost.
    Carrier {
        /// The interface.
        interface: InterfaceName,
    },
    /// BFD: packets do not arrive, or the peer reports that they do not.
    Bfd {
        /// The side that noticed it.
        by: Side,
    },
    /// No message was received for the Hold Time, or none was accepted for the Send Hold Time.
    HoldTimer {
        /// The side that noticed it.
        by: Side,
    },
    /// A side received more prefixes than its limit.
    PrefixLimit {
        /// The side with the limit.
        by: Side,
        /// The limit, if it is known.
        limit: Option<u32>,
    },
    /// The AS number in an OPEN differs from the AS number that the receiver has configured.
    WrongAs {
        /// The side that rejected the OPEN.
        by: Side,
        /// The configured AS number of the peer; known if this side rejected the OPEN.
        expected: Option<Asn>,
        /// The AS number in the peer's OPEN; known if this side rejected the OPEN.
        got: Option<Asn>,
    },
    /// The kernel dropped segments because of TCP-MD5 during the attempt.
    Passwords {
        /// The number of dropped segments by reason.
        refused: RefusedSegments,
    },
    /// An operator shut the session down.
    Shutdown {
        /// The operator's side.
        by: Side,
    },
    /// An operator reset the session.
    Reset {
        /// The operator's side.
        by: Side,
    },
    /// The peer was removed from the configuration.
    Deconfigured {
        /// The side with the changed configuration.
        by: Side,
    },
    /// The configuration changed.
    Configuration {
        /// The side with the changed configuration.
        by: Side,
    },
    /// TCP ended without a NOTIFICATION, or the peer opened a new connection: its process ended or
    /// was restarted.
    Closed,
    /// The peer's host answered the attempt by a TCP reset: no process listens.
    Refused,
    /// The peer closed the connection before the session was Established.
    Rejected,
    /// No answer to the attempt.
    NoAnswer,
    /// No answer to ARP or neighbour discovery, or a router reports the address as unreachable.
    Unreachable,
    /// This host has no route to the peer.
    NoRoute,
    /// No interface of this host has the configured source address.
    SourceAddress,
    /// A firewall rule of this host forbids the attempt.
    Firewall,
    /// A message that the receiver cannot accept.
    Protocol {
        /// The side that rejected the message.
        by: Side,
    },
    /// Any other cause; see the text.
    Other,
}

/// The kind of a [`Cause`]: a bounded set, usable as a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is the variant of Cause with the same name")]
pub enum CauseKind {
    Carrier,
    Bfd,
    HoldTimer,
    PrefixLimit,
    WrongAs,
    Passwords,
    Shutdown,
    Reset,
    Deconfigured,
    Configuration,
    Closed,
    Refused,
    Rejected,
    NoAnswer,
    Unreachable,
    NoRoute,
    SourceAddress,
    Firewall,
    Protocol,
    Other,
}

/// Segments that this host's kernel dropped because of TCP-MD5 (RFC 2385) during an attempt to
/// connect. The kernel counts per network namespace and without addresses, so segments of other
/// peers are included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedSegments {
    /// With a wrong signature: `TCPMD5Failure`.
    pub wrong: u64,
    /// Without a signature, though a password is set here: `TCPMD5NotFound`.
    pub unsigned: u64,
    /// With a signature, though no password is set here: `TCPMD5Unexpected`.
    pub unexpected: u64,
}

/// The reason of a failed TCP connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ConnectFailure {
    /// The kind, for decisions in code.
    pub kind: ConnectKind,
    /// The text, with advice.
    pub text: String,
}

/// The kind of a [`ConnectFailure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectKind {
    /// A TCP reset was received.
    Refused,
    /// No answer in time.
    NoAnswer(RefusedSegments),
    /// No answer to ARP or neighbour discovery, or a router reports the address as unreachable.
    Unreachable,
    /// No route covers the address.
    NoRoute,
    /// No interface of this host has the source address.
    SourceAddress,
    /// A firewall rule of this host forbids it.
    Firewall,
    /// Any other reason.
    Other,
}

impl ConnectFailure {
    /// A failure of this kind.
    pub fn new(kind: ConnectKind, text: impl Into<String>) -> Self {
        ConnectFailure { kind, text: text.into() }
    }
}

impl From<String> for ConnectFailure {
    fn from(text: String) -> Self {
        ConnectFailure::new(ConnectKind::Other, text)
    }
}

impl RefusedSegments {
    /// The number of segments that prove different passwords. If this side has a password, these
    /// are segments with a wrong signature or none; otherwise these are signed segments.
    pub fn mismatches(&self, signed: bool) -> u64 {
        if signed { self.wrong + self.unsigned } else { self.unexpected }
    }

    /// The dropped segments as text; none if they do not prove different passwords.
    pub(crate) fn words(&self, signed: bool) -> Option<String> {
        let segments =
            |count: u64| if count == 1 { "1 segment".to_owned() } else { format!("{count} segments") };
        let what = match (signed, self.wrong, self.unsigned, self.unexpected) {
            (true, 0, 0, _) | (false, _, _, 0) => return None,
            (true, 0, unsigned, _) => {
                format!("{} without a TCP-MD5 signature: the peer has no password", segments(unsigned))
            }
            (true, wrong, _, _) => format!("{} with a wrong TCP-MD5 signature", segments(wrong)),
            (false, _, _, signed) => {
                format!("{} with a TCP-MD5 signature: no password is set here", segments(signed))
            }
        };
        Some(format!("the passwords differ: the kernel refused {what}"))
    }

    /// The text for an attempt without an answer.
    pub(crate) fn no_answer(&self, seconds: f32, signed: bool) -> String {
        let guess = match signed {
            true => "or the passwords differ",
            false => "or it expects a password and none is set here",
        };
        self.words(signed)
            .unwrap_or_else(|| format!("no answer for {seconds} s: it is down or filtered, {guess}"))
    }
}

impl CauseKind {
    /// Every kind.
    pub const ALL: [CauseKind; 20] = [
        CauseKind::Carrier,
        CauseKind::Bfd,
        CauseKind::HoldTimer,
        CauseKind::PrefixLimit,
        CauseKind::WrongAs,
        CauseKind::Passwords,
        CauseKind::Shutdown,
        CauseKind::Reset,
        CauseKind::Deconfigured,
        CauseKind::Configuration,
        CauseKind::Closed,
        CauseKind::Refused,
        CauseKind::Rejected,
        CauseKind::NoAnswer,
        CauseKind::Unreachable,
        CauseKind::NoRoute,
        CauseKind::SourceAddress,
        CauseKind::Firewall,
        CauseKind::Protocol,
        CauseKind::Other,
    ];
}

impl Cause {
    /// The cause of a fault. `established`: the fault ended an Established session.
    pub(crate) fn of(fault: &Fault, established: bool) -> Cause {
        let by = Side::Local;
        match fault {
            Fault::Wire(WireError::Open(OpenError::PeerAs { expected, got })) => {
                Cause::WrongAs { by, expected: Some(*expected), got: Some(*got) }
            }
            Fault::Wire(_) | Fault::Unexpected { .. } => Cause::Protocol { by },
            Fault::HoldTimer { .. } | Fault::SendHoldTimer { .. } => Cause::HoldTimer { by },
            Fault::BfdDown { diagnostic } if *diagnostic == Diagnostic::NEIGHBOR_DOWN => {
                Cause::Bfd { by: Side::Peer }
            }
            Fault::BfdDown { .. } => Cause::Bfd { by },
            Fault::PrefixLimit { limit, .. } => Cause::PrefixLimit { by, limit: Some(*limit) },
            Fault::ConfigurationChange => Cause::Configuration { by },
            Fault::Deconfigured => Cause::Deconfigured { by },
            Fault::Shutdown { .. } | Fault::SilentStop => Cause::Shutdown { by },
            Fault::Reset { .. } => Cause::Reset { by },
            Fault::Notified(notification) => {
                Cause::of_notification(&notification.reason().unwrap_or_else(|| notification.clone()))
            }
            Fault::Superseded => Cause::Closed,
            Fault::Closed(_) if established => Cause::Closed,
            Fault::Closed(_) => Cause::Rejected,
            Fault::Connect(failure) => Cause::of_attempt(failure.kind),
            Fault::NoAnswer { signed, refused, .. } if refused.mismatches(*signed) > 0 => {
                Cause::Passwords { refused: *refused }
            }
            Fault::NoAnswer { .. } => Cause::NoAnswer,
            Fault::Collision | Fault::Replaced | Fault::Needless => Cause::Other,
        }
    }

    fn of_attempt(kind: ConnectKind) -> Cause {
        match kind {
            ConnectKind::Refused => Cause::Refused,
            ConnectKind::NoAnswer(refused) if refused != RefusedSegments::default() => {
                Cause::Passwords { refused }
            }
            ConnectKind::NoAnswer(_) => Cause::NoAnswer,
            ConnectKind::Unreachable => Cause::Unreachable,
            ConnectKind::NoRoute => Cause::NoRoute,
            ConnectKind::SourceAddress => Cause::SourceAddress,
            ConnectKind::Firewall => Cause::Firewall,
            ConnectKind::Other => Cause::Other,
        }
    }

    fn of_notification(notification: &Notification) -> Cause {
        let by = Side::Peer;
        let cease = |subcode: Cease| notification.subcode == subcode as u8;
        match (notification.code, notification.subcode) {
            (2, 2) => Cause::WrongAs { by, expected: None, got: None },
            (1 | 2 | 3 | 5 | 7, _) => Cause::Protocol { by },
            (4 | 8, _) => Cause::HoldTimer { by },
            (6, _) if cease(Cease::MaximumPrefixes) => {
                // AFI, SAFI and the limit (RFC 4486 §4), if the peer sends them.
                let limit = notification.data.get(3..7).and_then(|octets| octets.try_into().ok());
                Cause::PrefixLimit { by, limit: limit.map(u32::from_be_bytes) }
            }
            (6, _) if cease(Cease::AdministrativeShutdown) => Cause::Shutdown { by },
            (6, _) if cease(Cease::PeerDeconfigured) => Cause::Deconfigured { by },
            (6, _) if cease(Cease::AdministrativeReset) => Cause::Reset { by },
            (6, _) if cease(Cease::ConnectionRejected) => Cause::Rejected,
            (6, _) if cease(Cease::ConfigurationChange) => Cause::Configuration { by },
            (6, _) if cease(Cease::BfdDown) => Cause::Bfd { by },
            _ => Cause::Other,
        }
    }

    /// Whether an interface without carrier explains the failure.
    pub fn may_be_carrier(&self) -> bool {
        matches!(
            self,
            Cause::Bfd { .. }
                | Cause::HoldTimer { .. }
                | Cause::Closed
                | Cause::NoAnswer
                | Cause::Unreachable
                | Cause::NoRoute
                | Cause::SourceAddress
        )
    }

    /// The kind of the cause.
    pub fn kind(&self) -> CauseKind {
        match self {
            Cause::Carrier { .. } => CauseKind::Carrier,
            Cause::Bfd { .. } => CauseKind::Bfd,
            Cause::HoldTimer { .. } => CauseKind::HoldTimer,
            Cause::PrefixLimit { .. } => CauseKind::PrefixLimit,
            Cause::WrongAs { .. } => CauseKind::WrongAs,
            Cause::Passwords { .. } => CauseKind::Passwords,
            Cause::Shutdown { .. } => CauseKind::Shutdown,
            Cause::Reset { .. } => CauseKind::Reset,
            Cause::Deconfigured { .. } => CauseKind::Deconfigured,
            Cause::Configuration { .. } => CauseKind::Configuration,
            Cause::Closed => CauseKind::Closed,
            Cause::Refused => CauseKind::Refused,
            Cause::Rejected => CauseKind::Rejected,
            Cause::NoAnswer => CauseKind::NoAnswer,
            Cause::Unreachable => CauseKind::Unreachable,
            Cause::NoRoute => CauseKind::NoRoute,
            Cause::SourceAddress => CauseKind::SourceAddress,
            Cause::Firewall => CauseKind::Firewall,
            Cause::Protocol { .. } => CauseKind::Protocol,
            Cause::Other => CauseKind::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notified(code: u8, subcode: u8, data: &[u8]) -> Cause {
        Cause::of(&Fault::Notified(Notification::new(code, subcode, data)), true)
    }

    #[test]
    fn a_notification_is_the_peers_cause() {
        let by = Side::Peer;
        let limit = [0, 1, 1, 0, 0, 0, 9];
        assert_eq!(notified(6, 1, &limit), Cause::PrefixLimit { by, limit: Some(9) });
        assert_eq!(notified(6, 1, &[]), Cause::PrefixLimit { by, limit: None });
        assert_eq!(notified(6, 3, &[]), Cause::Deconfigured { by });
        assert_eq!(notified(6, 9, &[6, 2]), Cause::Shutdown { by }, "the reason inside a Hard Reset");
        assert_eq!(notified(2, 2, &[]), Cause::WrongAs { by, expected: None, got: None });
        assert_eq!(notified(4, 0, &[]), Cause::HoldTimer { by });
        assert_eq!(notified(6, 10, &[]), Cause::Bfd { by });
        assert_eq!(notified(3, 1, &[]), Cause::Protocol { by });
    }

    #[test]
    fn a_close_before_established_is_a_rejection() {
        let fault = Fault::Closed("the peer closed the TCP connection".to_owned());
        assert_eq!(Cause::of(&fault, true), Cause::Closed);
        assert_eq!(Cause::of(&fault, false), Cause::Rejected);
    }

    #[test]
    fn a_wrong_password_differs_from_silence() {
        let refused = RefusedSegments { wrong: 3, unsigned: 0, unexpected: 0 };
        let fault = |signed| Fault::NoAnswer { seconds: 10, signed, refused };
        assert_eq!(Cause::of(&fault(true), false), Cause::Passwords { refused });
        assert_eq!(
            fault(true).to_string(),
            "cannot connect: the passwords differ: the kernel refused 3 segments with a wrong TCP-MD5 signature"
        );
        assert_eq!(Cause::of(&fault(false), false), Cause::NoAnswer, "another peer's segments");
        let silent = Fault::NoAnswer { seconds: 10, signed: true, refused: RefusedSegments::default() };
        assert_eq!(Cause::of(&silent, false), Cause::NoAnswer);
        assert_eq!(
            silent.to_string(),
            "cannot connect: no answer for 10 s: it is down or filtered, or the passwords differ"
        );
        let unsigned = RefusedSegments { unsigned: 1, ..RefusedSegments::default() };
        assert_eq!(
            unsigned.words(true).unwrap(),
            "the passwords differ: the kernel refused 1 segment without a TCP-MD5 signature: the peer has no password"
        );
        let unexpected = RefusedSegments { unexpected: 2, ..RefusedSegments::default() };
        assert_eq!(
            unexpected.words(false).unwrap(),
            "the passwords differ: the kernel refused 2 segments with a TCP-MD5 signature: no password is set here"
        );
        assert_eq!(unexpected.words(true), None);
    }

    #[test]
    fn every_kind_has_its_place() {
        for (index, kind) in CauseKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, index);
        }
    }
}
