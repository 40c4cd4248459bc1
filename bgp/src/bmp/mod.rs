//! The BGP Monitoring Protocol (RFC 7854): forwards received routes to a monitoring station as they
//! arrive.
//!
//! A station (pmacct, OpenBMP, GoBMP, a vendor's collector) receives every session (Peer Up with
//! both OPENs, Peer Down with the reason). It receives every route that a peer advertises or
//! withdraws, before import policy (Route Monitoring of Adj-RIB-In, pre-policy). It also receives
//! the number of routes (Stats Reports).
//!
//! ```text
//!   sessions, UPDATEs ──► Station: queue of octets (bounded) ──pull──► shell's task ──► TCP
//!   tables ──walk, when the queue is empty──┘
//! ```
//!
//! A station that connects receives the tables first. The tables are walked in pieces, and only
//! while no live message is queued, so live messages go out first. Table rows and live messages
//! both show the current state, so their order does not change the result. After the last row
//! End-of-RIB follows for each peer and family (RFC 7854 §5).
//!
//! UPDATEs are encoded again from the decoded form, always with four-octet AS numbers (the A flag
//! is never set). They include RFC 7606's outcome: a route that was treated as withdrawn is sent as
//! withdrawn.
//!
//! A station that reads more slowly than routes change would need an unlimited queue. Instead the
//! speaker closes the connection if the queue exceeds [`QUEUE`] octets. The station gets the tables
//! again when it reconnects.
//!
//! Stale paths of a lost session (RFC 4724) are not sent: Peer Down has withdrawn them, and Peer Up
//! starts again.
//!
//! Supported: Initiation, Termination, Peer Up, Peer Down, Route Monitoring (Adj-RIB-In before
//! policy), Stats Reports. Not supported: Adj-RIB-In after policy (the L flag), Adj-RIB-Out (RFC
//! 8671), Loc-RIB (RFC 9069), Route Mirroring, TLVs of BMPv4.

mod message;
mod station;

use std::time::Duration;

pub(crate) use message::{DownReason, PeerHeader};
pub(crate) use station::Station;
pub use station::StationId;
#[cfg(feature = "net")]
pub(crate) use station::termination;

/// The maximum number of queued octets for a station: some 100,000 routes.
pub const QUEUE: usize = 16 * 1024 * 1024;

/// The description of this speaker for a station, and the report interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StationConfig {
    /// sysName: the name of this router.
    pub name: String,
    /// sysDescr: its software.
    pub description: String,
    /// The interval between Stats Reports; none: no reports.
    pub stats_interval: Option<Duration>,
}

/// The result of reading for a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StationRead {
    /// All queued octets were read.
    Idle,
    /// More octets follow.
    More,
    /// The station fell behind by more than [`QUEUE`] or is unknown: it must connect again.
    Lost,
}
