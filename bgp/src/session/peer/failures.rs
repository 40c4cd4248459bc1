//! The failures of a peer: the loss of the last session, and separately the last failed attempt.
//!
//! A failed attempt shows the current problem, but seldom the cause of the loss. For example, if
//! the cable is cut, every attempt ends with "no answer".

use std::time::{Duration, Instant};

use super::Peer;
use crate::bfd::{BfdConfig, HostLink, Links, Target};
use crate::io::ConnId;
use crate::io::status::Failure;
use crate::session::{Cause, CauseKind, Fault, RefusedSegments, State};
use crate::types::InterfaceName;

/// The time for which segments with a wrong signature count as evidence. A router repeats its SYN
/// after 1, 2, 4, … 64 s, so no SYN arrives during most attempts.
const EVIDENCE: Duration = Duration::from_secs(180);

/// A cause with its text and time.
type Entry = (Cause, String, Instant);

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Failures {
    began: Instant,
    loss: Option<Entry>,
    /// The loss was an error, not an operator's action.
    loss_is_error: bool,
    attempt: Option<Entry>,
    /// The last failure that became an event since the last session.
    reported: Option<(CauseKind, String)>,
    losses: [u64; CauseKind::ALL.len()],
    no_carrier: Option<InterfaceName>,
}

impl Failures {
    pub(super) fn new(now: Instant) -> Failures {
        Failures {
            began: now,
            loss: None,
            loss_is_error: false,
            attempt: None,
            reported: None,
            losses: [0; CauseKind::ALL.len()],
            no_carrier: None,
        }
    }

    /// The cause and the text of a fault.
    pub(super) fn word(&self, fault: &Fault, established: bool) -> (Cause, String) {
        let cause = Cause::of(fault, established);
        match self.no_carrier.filter(|_| cause.may_be_carrier()) {
            Some(interface) => (Cause::Carrier { interface }, format!("{interface} has no carrier: {fault}")),
            None => (cause, fault.to_string()),
        }
    }

    /// The session has left Established.
    pub(super) fn lost(&mut self, (cause, text): (Cause, String), is_error: bool, now: Instant) {
        self.losses[cause.kind() as usize] += 1;
        self.loss = Some((cause, text, now));
        self.loss_is_error = is_error;
        self.attempt = None;
    }

    /// An attempt failed. An attempt without an answer does not replace the evidence of earlier
    /// ones.
    pub(super) fn attempted(&mut self, (cause, text): (Cause, String), now: Instant) {
        let proven = self.attempt.as_ref().is_some_and(|(proven, _, when)| {
            proven.kind() == CauseKind::Passwords && now.saturating_duration_since(*when) < EVIDENCE
        });
        if cause != Cause::NoAnswer || !proven {
            self.attempt = Some((cause, text, now));
        }
    }

    /// Whether the failure of an attempt differs from the last reported one. The number of dropped
    /// segments differs each time and is ignored.
    pub(super) fn is_news(&mut self, cause: &Cause, text: &str) -> bool {
        let kind = cause.kind();
        let known = match &self.reported {
            Some((CauseKind::Passwords, _)) => matches!(kind, CauseKind::Passwords | CauseKind::NoAnswer),
            Some((_, reported)) => reported == text,
            None => false,
        };
        if !known {
            self.reported = Some((kind, text.to_owned()));
        }
        !known
    }

    /// A session is Established: forgets earlier failures of attempts.
    pub(super) fn established(&mut self) {
        self.attempt = None;
        self.reported = None;
    }

    /// The configuration has changed: forgets the failure of the last attempt.
    pub(super) fn forget_attempt(&mut self) {
        self.attempt = None;
    }

    pub(super) fn down_since(&self) -> Instant {
        self.loss.as_ref().map_or(self.began, |(_, _, when)| *when)
    }

    pub(super) fn no_carrier(&self) -> Option<InterfaceName> {
        self.no_carrier
    }

    pub(super) fn last_loss(&self, now: Instant) -> Option<Failure> {
        self.loss.as_ref().map(|entry| failure(entry, now))
    }

    pub(super) fn last_attempt(&self, now: Instant) -> Option<Failure> {
        self.attempt.as_ref().map(|entry| failure(entry, now))
    }

    pub(super) fn last_error(&self, now: Instant) -> Option<Failure> {
        self.last_attempt(now).or_else(|| self.last_loss(now).filter(|_| self.loss_is_error))
    }

    pub(super) fn losses(&self) -> Vec<(CauseKind, u64)> {
        CauseKind::ALL.into_iter().zip(self.losses).filter(|(_, count)| *count > 0).collect()
    }
}

impl Peer {
    /// The time at which an attempt to connect is given up; none if `conn` is no attempt.
    pub fn attempt_due(&self, conn: ConnId) -> Option<Instant> {
        let slot = self.slot_of(conn)?;
        let attempt = self.connections[slot].as_ref()?;
        (attempt.state == State::Connect).then(|| self.timers.get(super::Timer::ConnectRetry))?
    }

    /// The kernel dropped these segments since the attempt began.
    pub fn handle_refused_segments(&mut self, conn: ConnId, refused: RefusedSegments) {
        let Some(slot) = self.slot_of(conn) else { return };
        if let Some(attempt) = &mut self.connections[slot] {
            attempt.refused = refused;
        }
    }

    /// The host's links.
    pub fn set_links(&mut self, host: &[HostLink]) {
        let target = Target {
            remote: self.config.address,
            local: self.config.local_address,
            interface: self.config.interface,
            config: self.config.bfd.clone().unwrap_or_else(|| BfdConfig::new(super::MIN_IDLE_HOLD)),
        };
        let Links::Only(indices) = Links::of(&target, host) else { return };
        let mut links = host.iter().filter(|link| indices.contains(&link.index));
        // If several links lead to the peer, one link without carrier does not prevent the session.
        self.failures.no_carrier = match (links.next(), links.next()) {
            (Some(link), None) if !link.carrier => Some(link.name),
            _ => None,
        };
    }
}

fn failure((cause, text, when): &Entry, now: Instant) -> Failure {
    Failure { cause: cause.clone(), text: text.clone(), ago: now.saturating_duration_since(*when) }
}
