//! The reason for which a peer has no session: the cause before the symptom.
//!
//! ```text
//!  interface without carrier ──┐
//!  loss of the last session ───┼─► the cause ──► advice ──► `peers`, `doctor`, `watch`, page, metrics
//!  failure of the last attempt ┘
//! ```
//!
//! After a cut cable every attempt ends with "no answer", which is a symptom. So the loss of the
//! session stays the cause until an attempt proves another one. Such proofs are a refused
//! connection, a wrong AS, or segments with a wrong TCP-MD5 signature.

pub mod advice;

use std::time::Duration;

use trunkline_api::control::{CauseKind, CauseSide, LossCount, PeerCause};
use trunkline_bgp::speaker::{self, Cause, Failure, PeerStatus, Side, State};

use crate::reconcile::UndiscoveredPeer;
use advice::{AdviceSubject, advice};

/// A peer's failures for operators.
#[derive(Debug, Default)]
pub struct Causes {
    /// The reason for which there is no Established session.
    pub cause: Option<PeerCause>,
    /// The reason for which the session last left Established.
    pub last_loss: Option<PeerCause>,
    /// The reason for which the last attempt failed.
    pub last_attempt: Option<PeerCause>,
    /// Number of lost sessions, by kind.
    pub losses: Vec<LossCount>,
}

/// The causes of a peer of the speaker.
pub fn of(status: &PeerStatus) -> Causes {
    let about = AdviceSubject::of(status);
    let word = |failure: &Failure| describe(failure, &about);
    Causes {
        cause: first(status).as_ref().map(word),
        last_loss: status.last_down.as_ref().map(word),
        last_attempt: status.last_attempt.as_ref().map(word),
        losses: status
            .losses
            .iter()
            .map(|(kind, count)| LossCount { kind: kind_of(*kind), count: *count })
            .collect(),
    }
}

/// The text of the reason for a missing session; none while the session is Established, and before
/// a first attempt has failed.
pub fn why(status: &PeerStatus) -> Option<String> {
    first(status).map(|failure| failure.text)
}

/// The cause of an unnumbered peer before its discovery.
pub fn not_found(waiting: &UndiscoveredPeer) -> PeerCause {
    PeerCause {
        kind: CauseKind::Discovery,
        side: None,
        text: waiting.reason.clone(),
        advice: advice::discovery(waiting.interface.as_str()),
        seconds_ago: 0,
    }
}

/// The cause of a peer while no speaker runs.
pub fn no_speaker(fault: &str, since: Duration) -> PeerCause {
    PeerCause {
        kind: CauseKind::Speaker,
        side: Some(CauseSide::Local),
        text: fault.to_owned(),
        advice: advice::SPEAKER.to_owned(),
        seconds_ago: since.as_secs(),
    }
}

/// The failure to show first.
fn first(status: &PeerStatus) -> Option<Failure> {
    if status.state == State::Established {
        return None;
    }
    let since = status.down_for.unwrap_or_default();
    if status.shutdown {
        let cause = Cause::Shutdown { by: Side::Local };
        return Some(Failure { cause, text: "administratively down".to_owned(), ago: since });
    }
    if let Some(interface) = status.no_carrier {
        let text = format!("{interface} has no carrier");
        return Some(Failure { cause: Cause::Carrier { interface }, text, ago: since });
    }
    match (&status.last_down, &status.last_attempt) {
        (Some(loss), Some(attempt)) if !proves_more(&attempt.cause, &loss.cause) => Some(loss.clone()),
        (_, Some(attempt)) => Some(attempt.clone()),
        (loss, None) => loss.clone(),
    }
}

/// Whether a failed attempt explains the missing session better than the loss of the last session.
fn proves_more(attempt: &Cause, loss: &Cause) -> bool {
    match attempt {
        // These causes are certain: both sides have exchanged messages, or only this host is at
        // fault.
        Cause::WrongAs { .. }
        | Cause::Refused
        | Cause::NoRoute
        | Cause::SourceAddress
        | Cause::Firewall
        | Cause::PrefixLimit { .. }
        | Cause::Protocol { .. } => true,
        // The segments may be from another peer, and a closed connection may be a consequence of
        // the loss.
        Cause::Passwords { .. } | Cause::Rejected => matches!(
            loss,
            Cause::Closed
                | Cause::HoldTimer { .. }
                | Cause::Configuration { .. }
                | Cause::Reset { .. }
                | Cause::Other
        ),
        _ => false,
    }
}

fn describe(failure: &Failure, about: &AdviceSubject) -> PeerCause {
    PeerCause {
        kind: kind_of(failure.cause.kind()),
        side: side_of(&failure.cause),
        text: failure.text.clone(),
        advice: advice(&failure.cause, about),
        seconds_ago: failure.ago.as_secs(),
    }
}

fn kind_of(kind: speaker::CauseKind) -> CauseKind {
    use speaker::CauseKind as Of;
    match kind {
        Of::Carrier => CauseKind::Carrier,
        Of::Bfd => CauseKind::Bfd,
        Of::HoldTimer => CauseKind::HoldTimer,
        Of::PrefixLimit => CauseKind::PrefixLimit,
        Of::WrongAs => CauseKind::WrongAs,
        Of::Passwords => CauseKind::Passwords,
        Of::Shutdown => CauseKind::Shutdown,
        Of::Reset => CauseKind::Reset,
        Of::Deconfigured => CauseKind::Deconfigured,
        Of::Configuration => CauseKind::Configuration,
        Of::Closed => CauseKind::Closed,
        Of::Refused => CauseKind::Refused,
        Of::Rejected => CauseKind::Rejected,
        Of::NoAnswer => CauseKind::NoAnswer,
        Of::Unreachable => CauseKind::Unreachable,
        Of::NoRoute => CauseKind::NoRoute,
        Of::SourceAddress => CauseKind::SourceAddress,
        Of::Firewall => CauseKind::Firewall,
        Of::Protocol => CauseKind::Protocol,
        Of::Other => CauseKind::Other,
    }
}

fn side_of(cause: &Cause) -> Option<CauseSide> {
    match cause {
        Cause::Bfd { by }
        | Cause::HoldTimer { by }
        | Cause::PrefixLimit { by, .. }
        | Cause::WrongAs { by, .. }
        | Cause::Shutdown { by }
        | Cause::Reset { by }
        | Cause::Deconfigured { by }
        | Cause::Configuration { by }
        | Cause::Protocol { by } => Some(match by {
            Side::Local => CauseSide::Local,
            Side::Peer => CauseSide::Peer,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use trunkline_bgp::speaker::RefusedSegments;

    use super::*;

    fn passwords() -> Cause {
        Cause::Passwords { refused: RefusedSegments { wrong: 3, ..RefusedSegments::default() } }
    }

    #[test]
    fn a_symptom_does_not_replace_the_cause() {
        let by = Side::Peer;
        for loss in [
            Cause::Bfd { by },
            Cause::PrefixLimit { by, limit: None },
            Cause::Deconfigured { by },
            Cause::Shutdown { by },
        ] {
            for attempt in [Cause::NoAnswer, Cause::Unreachable, Cause::Rejected, passwords()] {
                assert!(!proves_more(&attempt, &loss), "{attempt:?} after {loss:?}");
            }
            assert!(proves_more(&Cause::Refused, &loss));
        }
    }

    #[test]
    fn a_proof_replaces_an_unspecific_loss() {
        let by = Side::Peer;
        for loss in [Cause::Closed, Cause::HoldTimer { by }, Cause::Configuration { by }] {
            for attempt in [passwords(), Cause::Rejected, Cause::Refused] {
                assert!(proves_more(&attempt, &loss), "{attempt:?} after {loss:?}");
            }
            assert!(!proves_more(&Cause::NoAnswer, &loss));
        }
    }
}
