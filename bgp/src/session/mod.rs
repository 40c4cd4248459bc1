//! One configured peer: the state machine of RFC 4271 §8, its connections and its timers.
//!
//! A [`Peer`] has at most two connections, one that it opened and one that the peer
//! opened, each with its own OpenSent, OpenConfirm or Established; the RFC's state of the peer is that of the more
//! advanced one. The peer itself is stopped (Idle until an operator acts), held (Idle until the IdleHoldTimer
//! expires) or running (Connect, Active and further). Where both connections get as far as OpenConfirm, §6.8 says
//! which one stays.
//!
//! Everything that a peer does to the world goes through the [`Sink`] that each call is given: actions for the
//! shell, events for the operator, UPDATEs and the life of the session for the tables. Calls to the sink are in the
//! order of what happened, so that an UPDATE in the same octets as the KEEPALIVE before it finds the session up.
//!
//! Where this departs from the letter of §8.2.2, as most speakers do:
//! - DelayOpen is not done: OPEN is sent as soon as TCP is there.
//! - When TCP ends without an error (the peer was restarted, the path broke) the peer goes through Idle to Active at
//!   once instead of waiting in Idle, so that it is not refused when it connects again within the second.
//!   After errors it stays in Idle, from 1 s doubled to 60 s (DampPeerOscillations, IdleHoldTimer), and refuses.
//! - The first attempts to connect come 1, 2, 4, … s after the one before, up to ConnectRetryTime, or up to 10 s while
//!   stale paths wait for the peer; an attempt that is not answered within 10 s is made anew, because the kernel's
//!   own SYN retransmission waits ever longer. A peer that only listens would otherwise be found after its
//!   Restart Time is over.
//! - A NOTIFICATION is never answered by another.
//!
//! Graceful restart (RFC 4724). *Helper*: when TCP ends and no NOTIFICATION went either way, or whatever ended the session
//! unless it was a Hard Reset if both sides have the N bit (RFC 8538), the families of the peer's capability are retained: their paths turn stale, and go at End-of-RIB, when the new OPEN lacks the family or its F
//! bit, when the Restart Time is over, or [`STALE_PATH_TIME`] after the session is back. Paths that are stale when
//! the session is lost once more go at once. A connection that the peer opens while another has been Established for
//! [`COLLISION_TIME`], and that goes as far as OPEN, is taken for its restart. *Restarting*: R and F bits in OPEN; the deferral is the
//! speaker's. An edit of this side's that needs a new session is such an end too: what stays agreed upon is kept. RFC 9494's long-lived stale paths
//! follow on these, by `peer/retention.rs`.

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

/// How long stale paths may wait for End-of-RIB after the session is back.
pub const STALE_PATH_TIME: Duration = Duration::from_secs(360);
/// How long the routes of a refresh may take from BoRR to EoRR (RFC 7313 §4).
pub const REFRESH_TIME: Duration = Duration::from_secs(360);
/// HoldTimer until the Hold Time is agreed (RFC 4271 §8.2.2 suggests 4 minutes).
pub const OPEN_HOLD_TIME: Duration = Duration::from_secs(240);
/// An attempt to connect is made anew after this, or after ConnectRetryTime if that is shorter.
pub const CONNECT_TIME: Duration = Duration::from_secs(10);
/// How long after Established a second connection of the peer's is a collision rather than its restart.
pub const COLLISION_TIME: Duration = Duration::from_secs(5);
/// The shortest IdleHoldTime, and the first wait before connecting again.
pub const MIN_IDLE_HOLD: Duration = Duration::from_secs(1);
/// The longest IdleHoldTime.
pub const LONGEST_IDLE_HOLD: Duration = Duration::from_secs(60);
/// So long after Established a Down that the peer signals by BFD is its new BFD session and no failure of the path: FRR
/// replaces its session when BGP is Established.
pub const BFD_SETTLE_TIME: Duration = Duration::from_secs(1);
/// In that case BFD has to be Up again after this; a session that is not Up sends one packet a second (RFC 5880 §6.8.3).
pub const BFD_RETURN_TIME: Duration = Duration::from_secs(6);
/// A session that was Established this long sets both waits back to the shortest.
pub const STABLE_AFTER: Duration = Duration::from_secs(10);

/// An Established session, as the tables see it.
#[derive(Clone, Copy, Debug)]
pub struct Session<'a> {
    /// What was agreed.
    pub negotiated: &'a Negotiated,
    /// The peer's configuration.
    pub config: &'a PeerConfig,
    /// This side of the connection.
    pub local: SocketAddr,
    /// The other side.
    pub remote: SocketAddr,
    /// The OPEN that was sent.
    pub our_open: &'a Open,
    /// The OPEN that came.
    pub their_open: &'a Open,
}

/// Where everything that a peer does goes to.
pub trait Sink {
    /// A name for a new connection of the peer.
    fn open_conn(&mut self, peer: PeerId) -> ConnId;
    /// Something for the shell to do.
    fn action(&mut self, action: Action);
    /// Something that happened.
    fn event(&mut self, event: Event);
    /// The connection has something to send.
    fn writable(&mut self, conn: ConnId);
    /// The session is Established. Stale paths of families in `kept` wait for End-of-RIB.
    fn established(&mut self, peer: PeerId, session: Session<'_>, kept: FamilySet);
    /// The session is over, by `fault`, of which the peer was told `notification`; paths of families in `retained` turn
    /// stale, all others go, as do those that were stale before, but for the families in `long_lived`.
    fn down(
        &mut self,
        peer: PeerId,
        retained: FamilySet,
        long_lived: FamilySet,
        fault: &Fault,
        notification: Option<&Notification>,
    );
    /// Stale paths of the family turn long-lived stale. How many there are now, and how many went.
    fn mark_long_lived(&mut self, peer: PeerId, family: Family) -> (usize, usize);
    /// An UPDATE of the Established session. The answer is how many prefixes there are from the peer now.
    fn update(&mut self, peer: PeerId, update: &Update<'_>) -> usize;
    /// How many prefixes there are from the peer.
    fn received(&self, peer: PeerId) -> usize;
    /// The peer wants the family's table again; `demarcated`: between BoRR and EoRR.
    fn refresh(&mut self, peer: PeerId, family: Family, demarcated: bool);
    /// The peer's paths of the family turn stale (`true`): it announces them again. Or they do not after all.
    fn mark_stale(&mut self, peer: PeerId, family: Family, stale: bool);
    /// Stale paths of the family go; the answer is how many went.
    fn sweep(&mut self, peer: PeerId, family: Family) -> usize;
    /// UPDATEs for the peer, as [`Speaker::poll_transmit`](crate::speaker::Speaker::poll_transmit) says.
    fn write_updates(&mut self, peer: PeerId, out: &mut Vec<u8>, budget: usize) -> bool;
}
