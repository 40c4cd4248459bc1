//! A BFD endpoint without I/O: RFC 5880 in asynchronous mode, over one hop (RFC 5881) and over several (RFC 5883).
//!
//! ```text
//!  datagram ──► Packet::decode ──► Endpoint::handle_packet ──► Session ──► poll_event      (Up, Down and why)
//!  the clock ─► poll_timeout ────► Endpoint::handle_timeout ──► Session ──► poll_transmit   (24 octets to send)
//! ```
//!
//! An [`Endpoint`] has any number of sessions, each named by its owner with a [`SessionId`]. The owner has the sockets and
//! the clock; it gives every datagram with *the time at which it arrived* and where it came from ([`Source`]), and sends
//! what it is given. The order of calls:
//!
//! 1. Everything that has arrived by [`Endpoint::handle_packet`]. This comes before the timers: an owner that was
//!    woken late finds the peer's packets in its sockets, and they say that the peer was not silent.
//! 2. [`Endpoint::handle_timeout`] with the time of now.
//! 3. [`Endpoint::poll_transmit`] and [`Endpoint::poll_event`] until they give none.
//! 4. Sleep until [`Endpoint::poll_timeout`] or the next datagram.
//!
//! The detection time runs from the arrival of the last packet and not from when it was looked at, so that a late owner
//! neither shortens nor lengthens it.
//!
//! # What is done, and what is not
//! - RFC 5880: every check of reception (§6.8.6, each failure a [`Rejection`]), the state machine (§6.2), Poll and Final
//!   (§6.5, §6.8.3), timers and jitter (§6.8.2, §6.8.7), AdminDown (§6.8.16), diagnostics (§4.1). A peer in demand mode is
//!   obeyed (§6.6); this side never asks for it. Authentication (§6.7) and the echo function (§6.4) are not done: a packet
//!   with the A bit is refused by name, and Required Min Echo RX Interval is 0.
//! - RFC 5881: TTL 255 on both ways (§5); a session accepts packets from the peer's links only
//!   ([`Links`], set by the owner). RFC 5883: multihop sessions are told apart by their addresses.
//! - RFC 5882: [`Down`] says what a client has to know for §4.2 and §4.3: why, and whether the peer's C bit was set.
//!
//! Departures: a change of timers is polled for while the session is Up only (before, each packet carries the values and
//! nothing depends on the peer's having seen them).

mod endpoint;
mod links;
mod packet;
mod session;

pub use endpoint::{Endpoint, Event, Reason, Rejection, SessionId, Source, Transmit};
pub use links::{HostLink, Links};
pub use packet::{Diagnostic, Packet, PacketError, State};
pub use session::{BfdConfig, Cause, ConfigError, Down, Status, Target};

/// UDP port of a single-hop session (RFC 5881 §4).
pub const SINGLE_HOP_PORT: u16 = 3784;
/// UDP port of a multihop session (RFC 5883 §5).
pub const MULTIHOP_PORT: u16 = 4784;
/// The smallest source port (RFC 5881 §4).
pub const FIRST_SOURCE_PORT: u16 = 49152;
