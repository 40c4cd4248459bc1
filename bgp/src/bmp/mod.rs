//! The BGP Monitoring Protocol (RFC 7854): what this speaker hears, told to a monitoring station as it comes.
//!
//! A station (pmacct, OpenBMP, GoBMP, a vendor's collector) learns of every session (Peer Up with both OPENs, Peer
//! Down with the reason), of every route that a peer announces or withdraws, before import policy (Route Monitoring
//! of Adj-RIB-In, pre-policy), and of the number of routes (Stats Reports).
//!
//! ```text
//!   sessions, UPDATEs ──► Station: queue of octets (bounded) ──pull──► shell's task ──► TCP
//!   tables ──walk, when the queue is empty──┘
//! ```
//!
//! A station that connects gets the tables first. They are walked a piece at a time, and only while nothing live is
//! waiting: what happens meanwhile goes out before. The order of the two does not matter to the outcome, since either one
//! says how things are at that moment; after the last row comes End-of-RIB for each peer and family (RFC 7854 §5).
//!
//! UPDATEs are written anew from what was decoded, with AS numbers of four octets whatever the peer speaks (the A flag is
//! never set), and with RFC 7606's outcome: what was treated as withdrawn is told as withdrawn.
//!
//! A station that reads slower than routes change would need a queue without end. Past [`QUEUE`] octets it is cut off
//! instead, and gets the tables again when it comes back.
//!
//! Stale paths of a lost session (RFC 4724) are not told: Peer Down has taken them back, and Peer Up begins anew.
//!
//! Done: Initiation, Termination, Peer Up, Peer Down, Route Monitoring (Adj-RIB-In before policy), Stats Reports. Not done:
//! Adj-RIB-In after policy (the L flag), Adj-RIB-Out (RFC 8671), Loc-RIB (RFC 9069), Route Mirroring, TLVs of BMPv4.

mod message;
mod station;

use std::time::Duration;

pub(crate) use message::{DownReason, PeerHeader};
pub(crate) use station::Station;
pub use station::StationId;
#[cfg(feature = "net")]
pub(crate) use station::goodbye;

/// Octets that wait for a station at most: some 100,000 routes.
pub const QUEUE: usize = 16 * 1024 * 1024;

/// What a station is told of this speaker, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StationConfig {
    /// sysName: which router this is.
    pub name: String,
    /// sysDescr: what it runs.
    pub description: String,
    /// Between Stats Reports; none: no reports.
    pub stats_interval: Option<Duration>,
}

/// What a station can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StationRead {
    /// All there is, for now.
    Idle,
    /// There is more.
    More,
    /// It has fallen behind by more than [`QUEUE`], or was never there: it has to connect again.
    Lost,
}
