//! What passes between the speaker and its shell: connections, actions, events.
//!
//! The shell owns sockets and the clock. It gives the speaker what happened and does what the speaker's
//! [`Action`]s say; a [`ConnId`] names one TCP connection, or one attempt to make it, on both sides.

pub mod cause;
pub mod fault;
pub mod status;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

use crate::bfd;
use crate::config::Password;
use crate::types::{Asn, Family, FamilySet, InterfaceName, PeerId, PeerKey};
use cause::Cause;

/// One TCP connection, or one attempt to make it. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conn#{}", self.0)
    }
}

/// What the shell does for the speaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start a TCP connection. Answered by `handle_connected` or `handle_connect_failed`.
    Connect {
        /// Its name from now on.
        conn: ConnId,
        /// For which peer.
        peer: PeerId,
        /// The address to bind to, the kernel's choice if none.
        local: Option<IpAddr>,
        /// Where to. The scope of a link-local address is `options.interface`.
        remote: SocketAddr,
        /// Set before connecting.
        options: SocketOptions,
    },
    /// Set these on a connection that is there: after accepting it, or because the configuration changed.
    /// The password is already in the listener's key table and need not be set again.
    Configure {
        /// The connection.
        conn: ConnId,
        /// Its options from now on.
        options: SocketOptions,
    },
    /// End the connection, or the attempt. The speaker has forgotten it: what the shell still says of it is
    /// ignored.
    Close {
        /// The connection.
        conn: ConnId,
        /// Written after what `poll_transmit` gave before, and before the FIN, for at most a short time of
        /// lingering: a NOTIFICATION, with the OPEN before it if that was not taken yet. Empty when there is
        /// nothing to say (a silent stop above all).
        last_words: Vec<u8>,
    },
    /// Start the BFD session of a peer, or change the one that is there. What becomes of it is told by `handle_bfd`.
    SetBfd {
        /// The peer.
        peer: PeerId,
        /// With whom, and how.
        target: bfd::Target,
    },
    /// End the BFD session of a peer, with AdminDown (RFC 5880 §6.8.16).
    RemoveBfd {
        /// The peer.
        peer: PeerId,
    },
    /// The complete key table of the listening sockets, in place of the one before.
    Listen(Vec<ListenKey>),
    /// The complete list of prefixes that peers may come from unconfigured, in place of the one before.
    ListenRanges(Vec<ListenRange>),
}

/// Options of a peer's socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// TCP-MD5 key for the peer's address.
    pub password: Option<Password>,
    /// TTL (hop limit) to send with; the kernel's default if none.
    pub ttl: Option<u8>,
    /// Packets that arrive with less are dropped by the kernel (GTSM, RFC 5082).
    pub min_ttl: Option<u8>,
    /// The interface of a link-local peer: scope of the address, and SO_BINDTODEVICE.
    pub interface: Option<InterfaceName>,
}

/// What a listening socket has to know of a peer before it accepts from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenKey {
    /// The peer's address.
    pub remote: IpAddr,
    /// The interface of a link-local address.
    pub interface: Option<InterfaceName>,
    /// TCP-MD5 key: unsigned segments from the address are dropped by the kernel.
    pub password: Option<Password>,
    /// GTSM: checked on the accepted socket, by [`Action::Configure`].
    pub min_ttl: Option<u8>,
}

/// What a listening socket has to know of a range of peers before it accepts from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenRange {
    /// Where the peers come from.
    pub prefix: IpNet,
    /// TCP-MD5 key: unsigned segments from the prefix are dropped by the kernel.
    pub password: Option<Password>,
}

/// Why a connection is not accepted. The shell closes it at once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nobody configured this address.
    #[error("no peer {0} is configured")]
    UnknownPeer(PeerKey),
    /// The peer is configured and administratively down.
    #[error("peer {0} is administratively shut down")]
    Shutdown(PeerKey),
    /// The peer has to come to its configured local address.
    #[error("peer {peer} connected to {local}, its session is configured for {expected}")]
    LocalAddress {
        /// The peer.
        peer: PeerKey,
        /// Where it came to.
        local: IpAddr,
        /// Where it should come to.
        expected: IpAddr,
    },
    /// The peer is in Idle after an error, until its IdleHoldTimer expires (RFC 4271 §8.2.2, Idle).
    #[error("peer {peer} is held idle for another {left:?} after an error")]
    IdleHold {
        /// The peer.
        peer: PeerKey,
        /// Until it may try again.
        left: Duration,
    },
    /// As many peers of the range are there as may be.
    #[error("{limit} peers of {prefix} are there, and {peer} would be one more")]
    RangeFull {
        /// Who came.
        peer: PeerKey,
        /// The range.
        prefix: IpNet,
        /// Its limit.
        limit: u32,
    },
    /// The speaker is stopping.
    #[error("the speaker has stopped")]
    Stopped,
}

/// How the speaker ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// TCP is closed and nothing is said, so that peers keep the routes for the Restart Time (RFC 4724).
    Silent,
    /// A Cease, Administrative Shutdown, with a text for the peers' operators (RFC 9003), at most 255 octets.
    Cease {
        /// The text; may be empty.
        communication: String,
    },
}

/// What became of an edit of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing differs.
    Unchanged,
    /// Applied to the session as it is.
    Applied,
    /// What was agreed in OPEN, or what the TCP connection was made with, differs: a new session.
    Reset,
}

/// What happened, for logs, metrics and whoever waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The session is Established.
    PeerUp {
        /// The peer.
        peer: PeerId,
        /// Its address, with the interface of a link-local one.
        address: PeerKey,
        /// Its AS number.
        remote_as: Asn,
        /// This side of the connection.
        local: SocketAddr,
        /// The families that both sides have.
        families: FamilySet,
    },
    /// The session has left Established.
    PeerDown {
        /// The peer.
        peer: PeerId,
        /// Its address, with the interface of a link-local one.
        address: PeerKey,
        /// Why, in words.
        reason: String,
        /// Why.
        cause: Cause,
        /// The families whose paths are kept as stale for the peer's Restart Time (RFC 4724 §4.2).
        retained: FamilySet,
    },
    /// An attempt at a session failed before Established. One event when the reason differs from the last one's,
    /// so that a peer that stays away is not told of again and again.
    PeerError {
        /// The peer.
        peer: PeerId,
        /// Its address, with the interface of a link-local one.
        address: PeerKey,
        /// What went wrong, in words.
        error: String,
        /// What went wrong.
        cause: Cause,
    },
    /// The BFD session of a peer has become Up, or has left Up.
    Bfd {
        /// The peer.
        peer: PeerId,
        /// Its address, with the interface of a link-local one.
        address: PeerKey,
        /// Its state now.
        state: bfd::State,
        /// Why, if it has left Up.
        down: Option<bfd::Down>,
    },
    /// A malformed attribute was met and dealt with by RFC 7606, or a marker of a refresh that was out of place (RFC 7313)
    /// was ignored; the session stays. One event per peer and wording at most while the session lasts.
    MalformedUpdate {
        /// The peer.
        peer: PeerId,
        /// Its address, with the interface of a link-local one.
        address: PeerKey,
        /// The attribute or the marker, the fault and its outcome, in words.
        fault: String,
    },
    /// The peer has sent End-of-RIB: its initial table is here.
    EndOfRib {
        /// The peer.
        peer: PeerId,
        /// Its address, with the interface of a link-local one.
        address: PeerKey,
        /// Of which family.
        family: Family,
    },
    /// A peer offers a usable default route of a family, or no longer does: it is in the Adj-RIB-In, and neither import policy nor
    /// a loop check refuses it. A path that is retained over the peer's restart counts. Of an UPDATE the event comes before its
    /// [`Event::EndOfRib`], of a session that ends after [`Event::PeerDown`].
    DefaultRoute {
        /// The peer.
        peer: PeerId,
        /// Its address, with the interface of a link-local one.
        address: PeerKey,
        /// Of which family.
        family: Family,
        /// It offers one.
        offered: bool,
    },
    /// The Restart Time is over, the peer is not back, and its paths of a family are kept as the last to be used (RFC 9494).
    LongLivedStale {
        /// The peer.
        peer: PeerId,
        /// Its address, with the interface of a link-local one.
        address: PeerKey,
        /// Of which family.
        family: Family,
        /// How many paths are kept.
        paths: usize,
        /// How many went, because they carry NO_LLGR.
        removed: usize,
        /// For how long, unless the peer comes back.
        time: Duration,
    },
    /// The retention of a family is over, or a refresh of it (RFC 7313), and the paths that were still stale were removed.
    StaleSwept {
        /// The peer.
        peer: PeerId,
        /// Its address, with the interface of a link-local one.
        address: PeerKey,
        /// Of which family.
        family: Family,
        /// How many paths; 0 if all had come again.
        paths: usize,
    },
    /// A peer of a range was dropped: its session has ended, and nothing of it is kept.
    PeerGone {
        /// The peer. Another may get the index.
        peer: PeerId,
        /// Its address.
        address: PeerKey,
    },
    /// A peer of a range was refused because its limit is reached. Once, until there was room again.
    RangeFull {
        /// The range.
        prefix: IpNet,
        /// Its limit.
        limit: u32,
        /// Who was refused first.
        refused: PeerKey,
    },
    /// A watched prefix has been written to an Established peer.
    Advertised {
        /// The prefix.
        prefix: IpNet,
        /// The peer.
        peer: PeerId,
    },
    /// The initial selection of the family is done (the peers that were waited for have sent End-of-RIB, or the
    /// Selection_Deferral_Timer expired): what the FIB still holds from before and `route_changes` did not name
    /// may be swept. Once per family and life of the speaker, after [`Speaker::originations_complete`].
    ///
    /// [`Speaker::originations_complete`]: crate::speaker::Speaker::originations_complete
    Converged {
        /// The family.
        family: Family,
    },
}
