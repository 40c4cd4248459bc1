//! One configured peer: the state machine of RFC 4271 §8, its connections and its timers.
//!
//! A [`Peer`] has at most two connections: one that it opened and one that the peer opened. Each
//! has its own OpenSent, OpenConfirm or Established. The RFC's state of the peer is the state of
//! the more advanced connection. The peer itself is stopped (Idle until an operator acts), held
//! (Idle until the IdleHoldTimer expires) or running (Connect, Active and further). With two
//! connections, §6.8 decides which one stays: at the peer's first OPEN if this side's OPEN was sent on
//! one of them only, otherwise when both have the peer's OPEN.
//!
//! All output of a peer goes to the [`Sink`] of each call: actions for the shell, events for the
//! operator, UPDATEs and changes of the session for the tables. The calls are in the order of the
//! input. So the tables know the new session before its first UPDATE.
//!
//! Differences from §8.2.2, which most speakers share:
//! - DelayOpen only in a collision: OPEN is sent as soon as TCP is open, but not on a second connection
//!   that opens within [`COLLISION_TIME`] after the OPEN of the first one. That OPEN is sent when the
//!   second connection is the one to keep, when the first one has ended, or after [`OPEN_DELAY`]. If the
//!   first one is Established then, the second one is closed without a message.
//! - On a connection that this side opened and that would stay in a collision, the first KEEPALIVE waits
//!   for [`CONFIRM_MARGIN`] after the peer's KEEPALIVE, at most for [`CONFIRM_DELAY`]. The peer's KEEPALIVE
//!   shows that it has handled this side's OPEN, and has closed its own connection, which may still be
//!   unknown here. The end of that connection shows less: it may have another reason. FRR 8.4 closes both
//!   connections if it finds a KEEPALIVE when it has just handled the OPEN and closed its own one, and then
//!   it removes the routes that it has retained for a restart.
//! - If TCP ends without an error (the peer was restarted, the path broke), the peer goes from Idle
//!   to Active at once. So it is not rejected if it connects within the next second. After an error
//!   the peer stays in Idle for 1 s, doubled up to 60 s (DampPeerOscillations, IdleHoldTimer), and
//!   its connections are rejected.
//! - The delays between the first attempts to connect are 1, 2, 4, … s, up to ConnectRetryTime.
//!   While the peer has stale paths here, the longest delay is 10 s. An attempt without an answer
//!   is repeated after 10 s, because the kernel retransmits its SYN at growing intervals. Without
//!   these two limits, a restarted peer that only listens would be reached after its Restart Time,
//!   which is too late.
//! - A NOTIFICATION is never answered by another one.
//!
//! Graceful restart (RFC 4724):
//! - *Helper.* The families of the peer's capability are retained if TCP ends without a
//!   NOTIFICATION in either direction. If both sides have the N bit (RFC 8538), they are retained
//!   after every end except a Hard Reset. Their paths become stale. Stale paths are removed at the
//!   first of these events: End-of-RIB; a new OPEN without the family or its F bit; the end of the
//!   Restart Time; [`STALE_PATH_TIME`] after the session is back. If the session is lost while
//!   paths are stale, the stale paths are removed at once.
//! - *Detecting a restart.* The peer opens a second connection and sends OPEN on it. If the first
//!   one has been Established for [`COLLISION_TIME`], the speaker assumes a restart of the peer.
//! - *Restarting speaker.* OPEN has the R and F bits; the speaker implements the deferral.
//! - *Changed configuration.* After an edit that needs a new session, paths are retained too, in
//!   the families of both configurations.
//! - *Long-lived stale paths* (RFC 9494) follow stale paths; see `peer/retention.rs`.

pub(crate) mod connection;
pub mod negotiated;
pub mod peer;
mod timers;

use std::net::SocketAddr;
use std::time::Duration;

pub use crate::io::cause::{Cause, CauseKind, ConnectFailure, ConnectKind, RefusedSegments, Side};
pub use crate::io::fault::Fault;
pub use negotiated::{Local, Negotiated, PeerRestart};
pub use peer::Peer;

use crate::config::PeerConfig;
pub use crate::io::status::State;
pub use crate::io::{Action, ConnId, Event};
use crate::types::{Family, FamilySet, PeerId};
use crate::wire::{Notification, Open, Update};

/// Longest time that stale paths wait for End-of-RIB after the session is back.
pub const STALE_PATH_TIME: Duration = Duration::from_secs(360);
/// Longest time of a refresh, from BoRR to EoRR (RFC 7313 §4).
pub const REFRESH_TIME: Duration = Duration::from_secs(360);
/// HoldTimer until the Hold Time is negotiated (RFC 4271 §8.2.2 suggests 4 minutes).
pub const OPEN_HOLD_TIME: Duration = Duration::from_secs(240);
/// An attempt to connect is repeated after this time, or after ConnectRetryTime if that is shorter.
pub const CONNECT_TIME: Duration = Duration::from_secs(10);
/// For this time after Established, a second connection of the peer is a collision; later it is a
/// restart.
pub const COLLISION_TIME: Duration = Duration::from_secs(5);
/// The longest delay of OPEN on the second connection of a collision.
pub const OPEN_DELAY: Duration = Duration::from_secs(2);
/// The delay of the first KEEPALIVE after the sign that the peer has resolved a collision. A router's
/// process may not run for some milliseconds between two steps of its work.
pub const CONFIRM_MARGIN: Duration = Duration::from_millis(50);
/// The longest delay of the first KEEPALIVE while the peer may have to close another connection.
pub const CONFIRM_DELAY: Duration = Duration::from_secs(2);
/// The shortest IdleHoldTime, and the first delay before an attempt to connect.
pub const MIN_IDLE_HOLD: Duration = Duration::from_secs(1);
/// The longest IdleHoldTime.
pub const LONGEST_IDLE_HOLD: Duration = Duration::from_secs(60);
/// If the peer signals BFD Down within this time after Established, the path has not failed. FRR
/// replaces its BFD session when BGP is Established, and the new session begins in Down.
pub const BFD_SETTLE_TIME: Duration = Duration::from_secs(1);
/// After such a Down, BFD must be Up again within this time. A BFD session that is not Up sends one
/// packet per second (RFC 5880 §6.8.3).
pub const BFD_RETURN_TIME: Duration = Duration::from_secs(6);
/// After a session was Established for this time, IdleHoldTime and the delay between attempts start
/// again with the shortest value.
pub const STABLE_AFTER: Duration = Duration::from_secs(10);

/// An Established session, for the tables.
#[derive(Clone, Copy, Debug)]
pub struct Session<'a> {
    /// The result of the negotiation.
    pub negotiated: &'a Negotiated,
    /// The peer's configuration.
    pub config: &'a PeerConfig,
    /// The local address of the connection.
    pub local: SocketAddr,
    /// The remote address of the connection.
    pub remote: SocketAddr,
    /// The OPEN that was sent.
    pub our_open: &'a Open,
    /// The OPEN that was received.
    pub their_open: &'a Open,
}

/// The receiver of all output of a peer.
pub trait Sink {
    /// A name for a new connection of the peer.
    fn open_conn(&mut self, peer: PeerId) -> ConnId;
    /// An action for the shell.
    fn action(&mut self, action: Action);
    /// An event.
    fn event(&mut self, event: Event);
    /// The connection has octets to send.
    fn writable(&mut self, conn: ConnId);
    /// The session is Established. Stale paths of families in `kept` wait for End-of-RIB.
    fn established(&mut self, peer: PeerId, session: Session<'_>, kept: FamilySet);
    /// The session ended by `fault`; `notification` was sent to the peer. Paths of families in
    /// `retained` become stale. All other paths are removed, and so are paths that were stale
    /// before, except in the families in `long_lived`.
    fn down(
        &mut self,
        peer: PeerId,
        retained: FamilySet,
        long_lived: FamilySet,
        fault: &Fault,
        notification: Option<&Notification>,
    );
    /// Stale paths of the family become long-lived stale. Returns their number and the number of
    /// removed paths.
    fn mark_long_lived(&mut self, peer: PeerId, family: Family) -> (usize, usize);
    /// An UPDATE of the Established session. Returns the peer's number of prefixes.
    fn update(&mut self, peer: PeerId, update: &Update<'_>) -> usize;
    /// The peer's number of prefixes.
    fn received(&self, peer: PeerId) -> usize;
    /// The peer requests the family again; `demarcated`: between BoRR and EoRR.
    fn refresh(&mut self, peer: PeerId, family: Family, demarcated: bool);
    /// Marks the peer's paths of the family as stale until the peer advertises them again, or
    /// removes the marks (`stale` is false).
    fn mark_stale(&mut self, peer: PeerId, family: Family, stale: bool);
    /// Removes stale paths of the family; returns their number.
    fn sweep(&mut self, peer: PeerId, family: Family) -> usize;
    /// Appends UPDATEs for the peer; see
    /// [`Speaker::poll_transmit`](crate::speaker::Speaker::poll_transmit).
    fn write_updates(&mut self, peer: PeerId, out: &mut Vec<u8>, budget: usize) -> bool;
}
