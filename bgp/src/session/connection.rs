//! One TCP connection to a peer, or an attempt to open it: its state, buffers and timers.
//!
//! The input buffer holds only an incomplete message. A header with a longer length than the
//! session allows is rejected at once, so the buffer is bounded by the longest message. The same bound
//! holds while received messages wait for this side's OPEN or KEEPALIVE. The output
//! buffer holds only control messages (OPEN, KEEPALIVE, ROUTE-REFRESH). UPDATEs are encoded when
//! the socket accepts them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::State;
use super::negotiated::Negotiated;
use super::timers::{Kind, Timers};
use crate::io::ConnId;
use crate::io::cause::RefusedSegments;
use crate::wire::{self, Frame, HeaderError, MAX_MESSAGE, Open};

/// Limit of queued control messages, in octets. A longer queue shows that the peer does not
/// read, so no KEEPALIVE is queued.
const OUTPUT_LIMIT: usize = 4096;

/// The side that opened the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// This side.
    Outgoing,
    /// The peer.
    Incoming,
}

/// Timers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// HoldTimer: expires if no message is received.
    Hold,
    /// KeepaliveTimer: the next KEEPALIVE is due.
    Keepalive,
    /// SendHoldTimer: expires if the peer accepts no message (RFC 9687).
    SendHold,
    /// DelayOpenTimer: OPEN is due.
    DelayOpen,
    /// The first KEEPALIVE is due.
    DelayConfirm,
}

impl Kind for Timer {
    const ALL: &'static [Self] =
        &[Timer::Hold, Timer::Keepalive, Timer::SendHold, Timer::DelayOpen, Timer::DelayConfirm];

    fn index(self) -> usize {
        self as usize
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: ConnId,
    pub(crate) origin: Origin,
    /// Connect, Active (OPEN is delayed), OpenSent, OpenConfirm or Established.
    pub(crate) state: State,
    /// Known once TCP is open.
    pub(crate) local: Option<SocketAddr>,
    pub(crate) remote: SocketAddr,
    pub(crate) timers: Timers<Timer>,
    /// The OPEN that was sent.
    pub(crate) our_open: Option<Open>,
    /// The time at which it was sent.
    pub(crate) opened: Option<Instant>,
    /// In OpenConfirm: the first KEEPALIVE is delayed.
    pub(crate) confirm_due: bool,
    /// The OPEN that was received; kept for the operator. While this side's OPEN is delayed, it waits here.
    pub(crate) their_open: Option<Open>,
    /// From OpenConfirm on.
    pub(crate) negotiated: Option<Negotiated>,
    pub(crate) since: Instant,
    /// In Connect: segments that the kernel dropped since the attempt began.
    pub(crate) refused: RefusedSegments,
    input: Vec<u8>,
    output: Vec<u8>,
    /// The owner of the socket has the event that this connection has output.
    announced: bool,
}

impl Connection {
    pub(crate) fn new(
        id: ConnId,
        origin: Origin,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        now: Instant,
    ) -> Self {
        Connection {
            id,
            origin,
            state: State::Connect,
            local,
            remote,
            timers: Timers::default(),
            our_open: None,
            opened: None,
            confirm_due: false,
            their_open: None,
            negotiated: None,
            since: now,
            refused: RefusedSegments::default(),
            input: Vec::new(),
            output: Vec::new(),
            announced: false,
        }
    }

    /// The longest message that is accepted now.
    pub(crate) fn max_message(&self) -> usize {
        self.negotiated.as_ref().map_or(MAX_MESSAGE, Negotiated::max_message)
    }

    /// Takes out the received octets of an incomplete message.
    pub(crate) fn take_input(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.input)
    }

    /// Stores the octets of an incomplete message, or of messages that wait for this side's OPEN
    /// or KEEPALIVE.
    pub(crate) fn keep_input(&mut self, rest: Vec<u8>) {
        self.input = rest;
    }

    /// The next whole message in `octets`.
    pub(crate) fn frame<'a>(&self, octets: &'a [u8]) -> Result<Option<Frame<'a>>, HeaderError> {
        wire::frame(octets, self.max_message())
    }

    /// Queues a control message.
    pub(crate) fn queue(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        encode(&mut self.output);
    }

    /// Queues a KEEPALIVE, unless the queue shows that the peer does not read. Returns true if it
    /// was queued.
    pub(crate) fn queue_keepalive(&mut self) -> bool {
        let room = self.output.len() < OUTPUT_LIMIT;
        if room {
            wire::encode_keepalive(&mut self.output);
        }
        room
    }

    /// Moves the queued octets to `out`.
    pub(crate) fn take_output(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.output);
    }

    /// Marks the connection as one with output; returns true if it was not marked.
    pub(crate) fn announce(&mut self) -> bool {
        !std::mem::replace(&mut self.announced, true)
    }

    /// Removes the mark: all output was sent.
    pub(crate) fn drained(&mut self) {
        self.announced = false;
        self.timers.stop(Timer::SendHold);
    }

    /// Restarts the HoldTimer with the negotiated Hold Time.
    pub(crate) fn restart_hold(&mut self, now: Instant) {
        match self.negotiated.as_ref().map(|negotiated| negotiated.hold_time) {
            Some(hold) if !hold.is_zero() => self.timers.set(Timer::Hold, now + hold),
            _ => self.timers.stop(Timer::Hold),
        }
    }

    /// Whether both sides support Hard Reset (RFC 8538).
    pub(crate) fn knows_hard_reset(&self) -> bool {
        let restart = self.negotiated.as_ref().and_then(|negotiated| negotiated.graceful_restart);
        restart.is_some_and(|restart| restart.notification)
    }

    /// The Send Hold Time: 8 minutes, or twice the Hold Time (RFC 9687 §3.2).
    pub(crate) fn send_hold(&self) -> Duration {
        let hold = self.negotiated.as_ref().map_or(Duration::ZERO, |negotiated| negotiated.hold_time);
        Duration::from_secs(480).max(2 * hold)
    }
}
