//! Why a connection ends, what the peer is told of it, and when the next one is tried.
//!
//! Every end of a connection, quiet or not, is a [`Fault`]. Its three consequences stand side by side here: the
//! NOTIFICATION (`Fault::notification`), whether the peer's paths may outlive the session
//! (`Fault::retains`, RFC 4724 §4.2 and RFC 8538), and the wait (`Fault::retry`).

use crate::bfd::Diagnostic;
use crate::wire::{Cease, MessageKind, Notification, WireError};

use super::cause::{ConnectFailure, RefusedSegments};
use super::status::State;

/// Why a connection ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The peer sent what cannot be read, or an OPEN that is not the configured peer's.
    #[error("{0}; sent NOTIFICATION {notification}", notification = .0.notification())]
    Wire(#[from] WireError),
    /// The peer sent a message that has no place in the state (RFC 6608).
    #[error("{kind:?} message in {state}")]
    Unexpected {
        /// What came.
        kind: MessageKind,
        /// When.
        state: State,
    },
    /// Nothing came for the Hold Time.
    #[error("hold timer expired: nothing came from the peer for {seconds} s")]
    HoldTimer {
        /// The Hold Time in seconds.
        seconds: u64,
    },
    /// The peer took nothing for too long (RFC 9687).
    #[error("send hold timer expired: the peer took nothing for {seconds} s")]
    SendHoldTimer {
        /// The time in seconds.
        seconds: u64,
    },
    /// BFD says that the path to the peer is down (RFC 5882 §4.2).
    #[error("BFD session down: {diagnostic}")]
    BfdDown {
        /// What BFD has to say of it.
        diagnostic: Diagnostic,
    },
    /// More prefixes than the limit.
    #[error("{received} prefixes received, the limit is {limit}: raise the limit or have the peer filter")]
    PrefixLimit {
        /// How many there are.
        received: usize,
        /// The limit.
        limit: u32,
    },
    /// The other connection to the same peer is kept (RFC 4271 §6.8).
    #[error("connection collision: the other connection is kept")]
    Collision,
    /// The peer opened a new connection: it was restarted and the old one is dead (RFC 4724 §4.2).
    #[error("the peer was restarted and opened a new connection")]
    Superseded,
    /// The peer connected once more before it had sent OPEN on the connection before.
    #[error("the peer opened another connection instead")]
    Replaced,
    /// An edit of the configuration that needs a new session.
    #[error("the peer's configuration changed")]
    ConfigurationChange,
    /// Taken out of the configuration.
    #[error("the peer was removed from the configuration")]
    Deconfigured,
    /// Shut down by an operator; the text is for the peer's (RFC 9003).
    #[error("shut down")]
    Shutdown {
        /// May be empty.
        communication: String,
    },
    /// Reset by an operator; the text is for the peer's (RFC 9003).
    #[error("reset by an operator here")]
    Reset {
        /// Nothing is kept over it on either side.
        hard: bool,
        /// May be empty.
        communication: String,
    },
    /// Silent stop, for a restart.
    #[error("the speaker stopped for a restart")]
    SilentStop,
    /// The peer ended the session.
    #[error("received NOTIFICATION {0}")]
    Notified(Notification),
    /// TCP ended; in the operating system's words.
    #[error("connection lost: {0}")]
    Closed(String),
    /// TCP never came to be.
    #[error("cannot connect: {0}")]
    Connect(ConnectFailure),
    /// The ConnectRetryTimer expired before TCP came to be.
    #[error("cannot connect: {words}", words = refused.no_answer(*seconds as f32, *signed))]
    NoAnswer {
        /// How long, in seconds.
        seconds: u64,
        /// The attempt was signed by TCP-MD5: the kernel drops what is signed wrongly, so that a wrong password
        /// looks like a peer that isn't there.
        signed: bool,
        /// What this host's kernel refused meanwhile.
        refused: RefusedSegments,
    },
    /// An attempt that is not needed any more.
    #[error("the attempt is not needed any more")]
    Needless,
}

/// What comes after the last connection of a peer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// Idle until the IdleHoldTimer expires, doubled each time: somebody made an error that will come again.
    Hold,
    /// Idle for the longest hold: the peer has to change something first.
    LongHold,
    /// Active at once, so that a peer that is back can connect; an own attempt a little later.
    Soon,
    /// A new session at once.
    Now,
    /// Idle until an operator says otherwise.
    Never,
}

impl Fault {
    /// What the peer is told; none where there is nothing to say or nobody to hear.
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
            // AFI and SAFI of RFC 4486 §4 are left out: the limit is over all families.
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

    /// Whether the end of an Established session is to last: nothing is kept over it on either side, graceful restart or
    /// not. Where RFC 8538 is agreed upon, its NOTIFICATION travels inside a Hard Reset (§4, and the table of its §5).
    pub(crate) fn is_hard(&self) -> bool {
        matches!(
            self,
            // BFD says that packets do not arrive, which no restart of a control plane explains (RFC 9384 §3).
            Fault::PrefixLimit { .. }
                | Fault::Deconfigured
                | Fault::Shutdown { .. }
                | Fault::Reset { hard: true, .. }
                | Fault::BfdDown { .. }
        )
    }

    /// Whether the peer's paths are kept if it offers that: where TCP ended and no NOTIFICATION went either way (RFC
    /// 4724 §4.2), and with `notification` (both sides have RFC 8538's N bit) after any other end but a hard one.
    pub(crate) fn retains(&self, notification: bool) -> bool {
        match self {
            Fault::Closed(_) | Fault::Superseded => true,
            Fault::Notified(theirs) => notification && !theirs.is_hard_reset(),
            _ => notification && !self.is_hard(),
        }
    }

    /// What follows when no connection is left.
    pub(crate) fn retry(&self) -> Retry {
        match self {
            Fault::Wire(_)
            | Fault::Unexpected { .. }
            | Fault::HoldTimer { .. }
            | Fault::SendHoldTimer { .. } => Retry::Hold,
            Fault::PrefixLimit { .. } => Retry::LongHold,
            // An operator's reset or a lost collision is no error: the peer may be back in an instant. What the
            // peer calls our error is one.
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

    /// Whether an operator would call it an error.
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
