//! A BFD endpoint without I/O: RFC 5880 in asynchronous mode, over one hop (RFC 5881)
//! and over several (RFC 5883).
//!
//! ```text
//! datagram ─► Packet::decode ─► Endpoint::handle_packet ──► Session ─► poll_event (Up, Down)
//! clock ────► poll_timeout ───► Endpoint::handle_timeout ─► Session ─► poll_transmit (24 octets)
//! ```
//!
//! An [`Endpoint`] has any number of sessions; its owner gives each one a [`SessionId`]. The owner
//! has the sockets and the clock. It passes in every datagram with *its arrival time* and its
//! origin ([`Source`]), and sends the datagrams that it gets. The order of calls:
//!
//! 1. [`Endpoint::handle_packet`] for every datagram that has arrived. This comes before the
//!    timers: after a late wake-up the peer's packets are in the sockets, and they prove that the
//!    peer was not silent.
//! 2. [`Endpoint::handle_timeout`] with the current time.
//! 3. [`Endpoint::poll_transmit`] and [`Endpoint::poll_event`] until they return none.
//! 4. Sleep until [`Endpoint::poll_timeout`] or the next datagram.
//!
//! The detection time runs from the arrival of the last packet, not from its processing. So a late
//! owner neither shortens nor lengthens it.
//!
//! # Supported and unsupported parts
//! - RFC 5880: every check of reception (§6.8.6, each failure a [`Rejection`]), the state machine
//!   (§6.2), Poll and Final (§6.5, §6.8.3), timers and jitter (§6.8.2, §6.8.7), AdminDown
//!   (§6.8.16), diagnostics (§4.1). Demand mode of the peer is supported (§6.6); this side never
//!   requests it. Authentication (§6.7) and the echo function (§6.4) are not supported. A packet
//!   with the A bit has a rejection of its own, and Required Min Echo RX Interval is 0.
//! - RFC 5881: TTL 255 in both directions (§5); a session accepts packets from the peer's links
//!   only ([`Links`], set by the owner). RFC 5883: addresses identify multihop sessions.
//! - RFC 5882: [`Down`] contains the reason and the peer's C bit. A client needs both for §4.2 and
//!   §4.3.
//!
//! Deviation: a change of timers uses a Poll only while the session is Up. Before that, each packet
//! carries the values, and no timer depends on their arrival at the peer.

mod endpoint;
mod links;
mod packet;
mod session;

pub use endpoint::{Endpoint, Event, Reason, Rejection, SessionId, Source, Transmit};
pub use links::{HostLink, Links};
pub use packet::{Diagnostic, Packet, PacketError, State};
pub use session::{BfdConfig, Cause, ConfigError, Down, LEAVING_TIME, Status, Target};

/// UDP port of a single-hop session (RFC 5881 §4).
pub const SINGLE_HOP_PORT: u16 = 3784;
/// UDP port of a multihop session (RFC 5883 §5).
pub const MULTIHOP_PORT: u16 = 4784;
/// The smallest source port (RFC 5881 §4).
pub const FIRST_SOURCE_PORT: u16 = 49152;
