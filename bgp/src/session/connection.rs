//! One TCP connection to a peer, or the attempt to make it: its own small state, buffers and timers.
//!
//! Input is kept only while a message is incomplete, and the header is refused as soon as it promises more than
//! the session's longest message, so the buffer is bounded by that. Output holds control messages only (OPEN,
//! KEEPALIVE, ROUTE-REFRESH); UPDATEs are made when the socket takes them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::State;
use super::negotiated::Negotiated;
use super::timers::{Kind, Timers};
use crate::io::ConnId;
use crate::io::cause::RefusedSegments;
use crate::wire::{self, Frame, HeaderError, MAX_MESSAGE, Open};

/// Control output beyond which no more KEEPALIVEs are queued: the peer does not read.
const OUTPUT_LIMIT: usize = 4096;

/// Who opened the connection.
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
    /// HoldTimer: nothing came.
    Hold,
    /// KeepaliveTimer: time to say that we are there.
    Keepalive,
    /// SendHoldTimer: nothing was taken (RFC 9687).
    SendHold,
}

impl Kind for Timer {
    const ALL: &'static [Self] = &[Timer::Hold, Timer::Keepalive, Timer::SendHold];

    fn index(self) -> usize {
        self as usize
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: ConnId,
    pub(crate) origin: Origin,
    /// Connect, OpenSent, OpenConfirm or Established.
    pub(crate) state: State,
    /// Known once TCP is there.
    pub(crate) local: Option<SocketAddr>,
    pub(crate) remote: SocketAddr,
    pub(crate) timers: Timers<Timer>,
    /// What was sent.
    pub(crate) our_open: Option<Open>,
    /// What came; kept for the operator's eyes.
    pub(crate) their_open: Option<Open>,
    /// From OpenConfirm on.
    pub(crate) negotiated: Option<Negotiated>,
    pub(crate) since: Instant,
    /// In Connect: segments that the kernel refused since the attempt began.
    pub(crate) refused: RefusedSegments,
    input: Vec<u8>,
    output: Vec<u8>,
    /// The shell knows that there is something to send.
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
            their_open: None,
            negotiated: None,
            since: now,
            refused: RefusedSegments::default(),
            input: Vec::new(),
            output: Vec::new(),
            announced: false,
        }
    }

    /// The longest message that is taken now.
    pub(crate) fn max_message(&self) -> usize {
        self.negotiated.as_ref().map_or(MAX_MESSAGE, Negotiated::max_message)
    }

    /// What came before and is not a whole message yet, taken out.
    pub(crate) fn take_input(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.input)
    }

    /// Gives back the beginning of a message.
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

    /// Queues a KEEPALIVE, unless so much is waiting that the peer is not reading. True if it was queued.
    pub(crate) fn queue_keepalive(&mut self) -> bool {
        let room = self.output.len() < OUTPUT_LIMIT;
        if room {
            wire::encode_keepalive(&mut self.output);
        }
        room
    }

    /// Moves what is queued to `out`.
    pub(crate) fn take_output(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.output);
    }

    /// Marks the connection as one with something to send; true if it was not marked.
    pub(crate) fn announce(&mut self) -> bool {
        !std::mem::replace(&mut self.announced, true)
    }

    /// Everything was sent.
    pub(crate) fn drained(&mut self) {
        self.announced = false;
        self.timers.stop(Timer::SendHold);
    }

    /// The HoldTimer starts again, for the Hold Time that was agreed.
    pub(crate) fn restart_hold(&mut self, now: Instant) {
        match self.negotiated.as_ref().map(|negotiated| negotiated.hold_time) {
            Some(hold) if !hold.is_zero() => self.timers.set(Timer::Hold, now + hold),
            _ => self.timers.stop(Timer::Hold),
        }
    }

    /// Both sides said that they know what a Hard Reset is (RFC 8538).
    pub(crate) fn knows_hard_reset(&self) -> bool {
        let restart = self.negotiated.as_ref().and_then(|negotiated| negotiated.graceful_restart);
        restart.is_some_and(|restart| restart.notification)
    }

    /// How long the peer may take nothing: 8 minutes, or twice the Hold Time (RFC 9687 §3.2).
    pub(crate) fn send_hold(&self) -> Duration {
        let hold = self.negotiated.as_ref().map_or(Duration::ZERO, |negotiated| negotiated.hold_time);
        Duration::from_secs(480).max(2 * hold)
    }
}
