//! The reasons why a connection ends, with their consequences.
//!
//! Every end of a connection is a [`Fault`]. This module defines its three consequences: the
//! NOTIFICATION (`Fault::notification`), whether the peer's paths are retained (`Fault::retains`,
//! RFC 4724 §4.2 and RFC 8538), and the time of the next attempt (`Fault::retry`).

use crate::bfd::Diagnostic;
use crate::wire::{Cease, MessageKind, Notification, WireError};

use super::cause::{ConnectFailure, RefusedSegments};
use super::status::State;

/// The reason why a connection ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The peer sent a malformed message, or an OPEN that does not match its configuration.
    #[error("{0}; sent NOTIFICATION {notification}", notification = .0.notification())]
    Wire(#[from] WireError),
    /// The peer sent a message that is not allowed in the state (RFC 6608).
    #[error("{kind:?} message in {state}")]
    Unexpected {
        /// The type of the message.
        kind: MessageKind,
        /// The state.
        state: State,
    },
    /// No message was received for the Hold Time.
    #[error("hold timer expired: no message from the peer for {seconds} s")]
    HoldTimer {
        /// The Hold Time in seconds.
        seconds: u64,
    },
    /// The peer accepted no message for the Send Hold Time (RFC 9687).
    #[error("send hold timer expired: the peer accepted no data for {seconds} s")]
    SendHoldTimer {
        /// The time in seconds.
        seconds: u64,
    },
    /// BFD reports the path to the peer as down (RFC 5882 §4.2).
    #[error("BFD session down: {diagnostic}")]
    BfdDown {
        /// BFD's diagnostic.
        diagnostic: Diagnostic,
    },
    /// The peer advertised more prefixes than its limit.
    #[error(
        "{received} prefixes received, the limit is {limit}: raise the limit, or filter at \
        the peer"
    )]
    PrefixLimit {
        /// The number of prefixes.
        received: usize,
        /// The limit.
        limit: u32,
    },
    /// The other connection to the same peer is kept (RFC 4271 §6.8).
    #[error("connection collision: the other connection is kept")]
    Collision,
    /// The peer opened a new connection: it was restarted, and the old connection is dead (RFC 4724
    /// §4.2).
    #[error("the peer was restarted and opened a new connection")]
    Superseded,
    /// The peer opened another connection before it sent OPEN on this one.
    #[error("the peer opened another connection instead")]
    Replaced,
    /// A change of the configuration that needs a new session.
    #[error("the peer's configuration changed")]
    ConfigurationChange,
    /// The peer was removed from the configuration.
    #[error("the peer was removed from the configuration")]
    Deconfigured,
    /// An operator shut the session down; the text is for the peer's operator (RFC 9003).
    #[error("shut down")]
    Shutdown {
        /// May be empty.
        communication: String,
    },
    /// An operator reset the session; the text is for the peer's operator (RFC 9003).
    #[error("reset by an operator here")]
    Reset {
        /// Neither side retains paths.
        hard: bool,
        /// May be empty.
        communication: String,
    },
    /// A silent stop, for a restart.
    #[error("the speaker stopped for a restart")]
    SilentStop,
    /// The peer ended the session.
    #[error("received NOTIFICATION {0}")]
    Notified(Notification),
    /// TCP ended; the text is the operating system's.
    #[error("connection lost: {0}")]
    Closed(String),
    /// TCP could not be opened.
    #[error("cannot connect: {0}")]
    Connect(ConnectFailure),
    /// The ConnectRetryTimer expired before TCP was open.
    #[error("cannot connect: {words}", words = refused.no_answer(*seconds as f32, *signed))]
    NoAnswer {
        /// The time in seconds.
        seconds: u64,
        /// The attempt was signed by TCP-MD5. The kernel drops segments with a wrong signature, so
        /// a wrong password looks like an absent peer.
        signed: bool,
        /// The segments that this host's kernel dropped meanwhile.
        refused: RefusedSegments,
    },
    /// The attempt is no longer needed.
    #[error("the attempt is no longer needed")]
    Needless,
}

/// The next step after the end of a peer's last connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// Idle until the IdleHoldTimer expires: an attempt at once would fail with the same error. The
    /// IdleHoldTime doubles with each error.
    Hold,
    /// Idle for the longest hold time: the peer has to change its state first.
    LongHold,
    /// Active at once, which lets a returning peer connect; an attempt of this side follows a
    /// little later.
    Soon,
    /// A new session at once.
    Now,
    /// Idle until an operator acts.
    Never,
}

impl Fault {
    /// The NOTIFICATION for the peer, if one is sent.
    pub(crate) fn notification(&self) -> Option<Notification> {
        let non_empty = |text: &&String| !text.is_empty();
        Some(match self {
            Fault::Wire(error) => error.notification(),
            Fault::Unexpected { state, .. } => Notification::fsm_error(match state {
                State::OpenSent => 1,
                State::OpenConfirm => 2,
                State::Established => 3,
                State::Idle | State::Connect | State::Active => 0,
            }),
            Fault::HoldTimer { .. } => Notification::hold_timer_expired(),
            Fault::SendHoldTimer { .. } => Notification::new(8, 0, []),
            // AFI and SAFI of RFC 4486 §4 are left out: the limit covers all families.
            Fault::PrefixLimit { .. } => Notification::cease(Cease::MaximumPrefixes, None),
            Fault::BfdDown { .. } => Notification::cease(Cease::BfdDown, None),
            Fault::Collision => Notification::cease(Cease::ConnectionCollision, None),
            Fault::ConfigurationChange => Notification::cease(Cease::ConfigurationChange, None),
            Fault::Deconfigured => Notification::cease(Cease::PeerDeconfigured, None),
            Fault::Shutdown { communication } => Notification::cease(
                Cease::AdministrativeShutdown,
                Some(communication).filter(non_empty).map(String::as_str),
            ),
            Fault::Reset { communication, .. } => Notification::cease(
                Cease::AdministrativeReset,
                Some(communication).filter(non_empty).map(String::as_str),
            ),
            Fault::Superseded
            | Fault::Replaced
            | Fault::SilentStop
            | Fault::Notified(_)
            | Fault::Closed(_)
            | Fault::Connect(_)
            | Fault::NoAnswer { .. }
            | Fault::Needless => return None,
        })
    }

    /// Whether neither side retains paths after this end of an Established session, even with
    /// graceful restart. If RFC 8538 is negotiated, the NOTIFICATION is sent inside a Hard Reset
    /// (§4, and the table in §5).
    pub(crate) fn is_hard(&self) -> bool {
        matches!(
            self,
            // BFD reports lost packets. A restart of the control plane alone loses no packets (RFC
            // 9384 §3).
            Fault::PrefixLimit { .. }
                | Fault::Deconfigured
                | Fault::Shutdown { .. }
                | Fault::Reset { hard: true, .. }
                | Fault::BfdDown { .. }
        )
    }

    /// Whether the peer's paths are retained if the peer supports that. They are retained if TCP
    /// ended without a NOTIFICATION in either direction (RFC 4724 §4.2). If both sides have RFC
    /// 8538's N bit (`notification`), they are retained unless the end is a Hard Reset.
    pub(crate) fn retains(&self, notification: bool) -> bool {
        match self {
            Fault::Closed(_) | Fault::Superseded => true,
            Fault::Notified(theirs) => notification && !theirs.is_hard_reset(),
            _ => notification && !self.is_hard(),
        }
    }

    /// The next step when no connection is left.
    pub(crate) fn retry(&self) -> Retry {
        match self {
            Fault::Wire(_)
            | Fault::Unexpected { .. }
            | Fault::HoldTimer { .. }
            | Fault::SendHoldTimer { .. } => Retry::Hold,
            Fault::PrefixLimit { .. } => Retry::LongHold,
            // An operator's reset or a lost collision is no error: the peer may be back at once.
            // Any other NOTIFICATION reports an error of this side.
            Fault::Notified(notification) if notification.code == 6 => Retry::Soon,
            Fault::Notified(_) => Retry::Hold,
            Fault::ConfigurationChange => Retry::Now,
            Fault::Deconfigured | Fault::Shutdown { .. } | Fault::SilentStop => Retry::Never,
            Fault::Closed(_)
            | Fault::Connect(_)
            | Fault::NoAnswer { .. }
            | Fault::BfdDown { .. }
            | Fault::Reset { .. }
            | Fault::Collision
            | Fault::Superseded
            | Fault::Replaced
            | Fault::Needless => Retry::Soon,
        }
    }

    /// Whether the fault is an error for an operator.
    pub(crate) fn is_error(&self) -> bool {
        if let Fault::Notified(notification) = self {
            return (notification.code, notification.subcode) != (6, Cease::ConnectionCollision as u8);
        }
        !matches!(
            self,
            Fault::Collision
                | Fault::Superseded
                | Fault::Replaced
                | Fault::SilentStop
                | Fault::Shutdown { .. }
                | Fault::Reset { .. }
                | Fault::Deconfigured
                | Fault::ConfigurationChange
                | Fault::Needless
        )
    }
}
