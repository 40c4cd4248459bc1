//! The interface between the speaker and its shell: connections, actions, events.
//!
//! The shell owns the sockets and the clock. It reports input to the speaker and carries out the
//! speaker's [`Action`]s. On both sides, a [`ConnId`] names one TCP connection, or one attempt to
//! open it.

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

/// One TCP connection, or one attempt to open it. A number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conn#{}", self.0)
    }
}

/// An action that the shell carries out for the speaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Open a TCP connection. The shell answers by `handle_connected` or `handle_connect_failed`.
    Connect {
        /// The name of the connection.
        conn: ConnId,
        /// The peer.
        peer: PeerId,
        /// The address to bind to; the kernel chooses if none.
        local: Option<IpAddr>,
        /// The destination. The scope of a link-local address is `options.interface`.
        remote: SocketAddr,
        /// Options to set before connecting.
        options: SocketOptions,
    },
    /// Set these options on an open connection: it was accepted, or the configuration changed. The
    /// password is in the listener's key table already and is not set again.
    Configure {
        /// The connection.
        conn: ConnId,
        /// The new options.
        options: SocketOptions,
    },
    /// End the connection, or the attempt. The speaker ignores later input for it.
    Close {
        /// The connection.
        conn: ConnId,
        /// Octets to write before the FIN, after the octets of `poll_transmit`, for a short linger
        /// time at most. They hold a NOTIFICATION. The OPEN precedes it, if the shell has not taken
        /// the OPEN yet. They are empty if nothing is sent, for example at a silent stop.
        last_words: Vec<u8>,
    },
    /// Start the BFD session of a peer, or change it. The shell reports its state by `handle_bfd`.
    SetBfd {
        /// The peer.
        peer: PeerId,
        /// The peer's address and the parameters of the session.
        target: bfd::Target,
    },
    /// End the BFD session of a peer, with AdminDown (RFC 5880 §6.8.16) after
    /// [`LEAVING_TIME`](crate::bfd::LEAVING_TIME).
    RemoveBfd {
        /// The peer.
        peer: PeerId,
    },
    /// The complete key table of the listening sockets; replaces the previous one.
    Listen(Vec<ListenKey>),
    /// The complete list of prefixes that dynamic neighbours connect from; replaces the previous
    /// one.
    ListenRanges(Vec<ListenRange>),
}

/// Options of a peer's socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// TCP-MD5 key for the peer's address.
    pub password: Option<Password>,
    /// TTL (hop limit) to send with; the kernel's default if none.
    pub ttl: Option<u8>,
    /// The kernel drops packets that arrive with a lower TTL (GTSM, RFC 5082).
    pub min_ttl: Option<u8>,
    /// The interface of a link-local peer: scope of the address, and SO_BINDTODEVICE.
    pub interface: Option<InterfaceName>,
}

/// The entry of a configured peer in the key table of the listening sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenKey {
    /// The peer's address.
    pub remote: IpAddr,
    /// The interface of a link-local address.
    pub interface: Option<InterfaceName>,
    /// TCP-MD5 key: the kernel drops unsigned segments from the address.
    pub password: Option<Password>,
    /// GTSM: checked on the accepted socket, by [`Action::Configure`].
    pub min_ttl: Option<u8>,
}

/// The entry of a range of peers for the listening sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenRange {
    /// The prefix of the peers' addresses.
    pub prefix: IpNet,
    /// TCP-MD5 key: the kernel drops unsigned segments from the prefix.
    pub password: Option<Password>,
}

/// The reason why a connection is rejected. The shell closes it at once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No peer has this address.
    #[error("no peer {0} is configured")]
    UnknownPeer(PeerKey),
    /// The peer is configured and administratively down.
    #[error("peer {0} is administratively shut down")]
    Shutdown(PeerKey),
    /// The peer connected to another address than the configured local one.
    #[error("peer {peer} connected to {local}, its session is configured for {expected}")]
    LocalAddress {
        /// The peer.
        peer: PeerKey,
        /// The address that the peer connected to.
        local: IpAddr,
        /// The configured local address.
        expected: IpAddr,
    },
    /// The peer is in Idle after an error, until its IdleHoldTimer expires (RFC 4271 §8.2.2, Idle).
    #[error("peer {peer} is held idle for another {left:?} after an error")]
    IdleHold {
        /// The peer.
        peer: PeerKey,
        /// The remaining time.
        left: Duration,
    },
    /// The range has reached its limit of peers.
    #[error("{prefix} has reached its limit of {limit} peers, and {peer} would be one more")]
    RangeFull {
        /// The peer that connected.
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

/// The way in which the speaker stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// TCP closes without a NOTIFICATION: peers retain the routes for the Restart Time (RFC 4724).
    Silent,
    /// A Cease, Administrative Shutdown, with a text for the peers' operators (RFC 9003), at most
    /// 255 octets.
    Cease {
        /// The text; may be empty.
        communication: String,
    },
}

/// The effect of a changed peer configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The configuration is equal.
    Unchanged,
    /// Applied to the running session.
    Applied,
    /// A new session: the change affects OPEN or the options of the TCP connection.
    Reset,
}

/// An event for logs and metrics, and for callers that wait for it.
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
        /// The local address of the connection.
        local: SocketAddr,
        /// The negotiated families.
        families: FamilySet,
    },
    /// The session has left Established.
    PeerDown {
        /// The peer.
        peer: PeerId,
        /// Its address, with the interface of a link-local one.
        address: PeerKey,
        /// The reason as text.
        reason: String,
        /// The reason.
        cause: Cause,
        /// The families whose paths are retained as stale for the peer's Restart Time (RFC 4724
        /// §4.2).
        retained: FamilySet,
    },
    /// An attempt at a session failed before Established. There is one event per reason until the
    /// reason changes, so an absent peer does not repeat it.
    PeerError {
        /// The peer.
        peer: PeerId,
        /// Its address, with the interface of a link-local one.
        address: PeerKey,
        /// The reason as text.
        error: String,
        /// The reason.
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
        /// The reason, if it left Up.
        down: Option<bfd::Down>,
    },
    /// A malformed attribute was handled by RFC 7606, or a misplaced marker of a refresh (RFC 7313)
    /// was ignored. The session stays. There is at most one event per wording while the session
    /// lasts.
    MalformedUpdate {
        /// The peer.
        peer: PeerId,
        /// Its address, with the interface of a link-local one.
        address: PeerKey,
        /// The attribute or the marker, the fault and its outcome, as text.
        fault: String,
    },
    /// The peer sent End-of-RIB: its initial table is complete.
    EndOfRib {
        /// The peer.
        peer: PeerId,
        /// Its address, with the interface of a link-local one.
        address: PeerKey,
        /// The family.
        family: Family,
    },
    /// A peer advertises a usable default route of a family, or no longer does. A route is usable
    /// if it is in the Adj-RIB-In and neither import policy nor a loop check rejects it. A path
    /// that is retained over the peer's restart counts. The event precedes the [`Event::EndOfRib`]
    /// of the same UPDATE, and follows the [`Event::PeerDown`] of a session that ended.
    DefaultRoute {
        /// The peer.
        peer: PeerId,
        /// Its address, with the interface of a link-local one.
        address: PeerKey,
        /// The family.
        family: Family,
        /// Whether the peer advertises one now.
        offered: bool,
    },
    /// The Restart Time is over without a new session. The peer's paths of a family are retained as
    /// long-lived stale paths, which are selected last (RFC 9494).
    LongLivedStale {
        /// The peer.
        peer: PeerId,
        /// Its address, with the interface of a link-local one.
        address: PeerKey,
        /// The family.
        family: Family,
        /// The number of retained paths.
        paths: usize,
        /// The number of paths removed because they carry NO_LLGR.
        removed: usize,
        /// The time after which the retained paths are removed, unless the peer comes back.
        time: Duration,
    },
    /// The retention of a family's paths is over, or a refresh of the family (RFC 7313) is over.
    /// The paths that were still stale were removed.
    StaleSwept {
        /// The peer.
        peer: PeerId,
        /// Its address, with the interface of a link-local one.
        address: PeerKey,
        /// The family.
        family: Family,
        /// The number of removed paths; 0 if the peer advertised all of them again.
        paths: usize,
    },
    /// A dynamic neighbour was removed: its session ended, and no path of it is retained.
    PeerGone {
        /// The peer. The index may be used again.
        peer: PeerId,
        /// Its address.
        address: PeerKey,
    },
    /// A dynamic neighbour was rejected because its range has reached its limit. There is one event
    /// until the range has room again.
    RangeFull {
        /// The range.
        prefix: IpNet,
        /// Its limit.
        limit: u32,
        /// The first rejected peer.
        refused: PeerKey,
    },
    /// A watched prefix was written to an Established peer.
    Advertised {
        /// The prefix.
        prefix: IpNet,
        /// The peer.
        peer: PeerId,
    },
    /// The initial selection of the family is done: all awaited peers sent End-of-RIB, or the
    /// Selection_Deferral_Timer expired. Routes in the FIB from before the restart that
    /// `route_changes` did not return may be removed now. The event occurs once per family and run
    /// of the speaker, after [`Speaker::originations_complete`].
    ///
    /// [`Speaker::originations_complete`]: crate::speaker::Speaker::originations_complete
    Converged {
        /// The family.
        family: Family,
    },
}
