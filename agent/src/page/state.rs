//! The agent's state as the page shows it. This interface is only for the page's own script.
//!
//! Times are milliseconds since 1970 by this node's clock. The script compares them with `now` and
//! not with its own clock. While nothing happens, they do not change from one document to the next.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tokio::time::Instant;
use trunkline_api::control::{AgentStatus, BfdState, CauseKind, Peer, PeerCause, PeerState};
use trunkline_bgp::speaker::{self, PeerStatus, State};

use super::trend::{Sample, Trend, Trends};
use crate::causes;
use crate::observe::{Observer, bfd_state, peer_state};
use crate::reconcile::{SpeakerStatus, UndiscoveredPeer};

/// Maximum number of shown peers; `more` is the number of the others. Peers that are down come
/// first.
const PEERS: usize = 256;

/// The document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Document {
    now: u64,
    began: u64,
    /// None while the agent stops.
    agent: Option<AgentStatus>,
    peers: Vec<PeerRow>,
    more: usize,
    /// The agent's run and its newest event. A script that shows events requests the events after
    /// the last event that it has.
    run: u64,
    newest_event: u64,
}

/// A summary of a peer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PeerRow {
    name: String,
    remote_as: u32,
    state: PeerState,
    shutdown: bool,
    optional: bool,
    dynamic: bool,
    /// The time since which the session is Established or lost; none if it was never Established
    /// since the agent's start.
    since: Option<u64>,
    next_attempt: Option<u64>,
    received: usize,
    accepted: usize,
    advertised: usize,
    stale: usize,
    limit: Option<u32>,
    flaps: u64,
    bfd: Option<BfdState>,
    /// The reason for which it last left Established.
    down: Option<TimestampedText>,
    /// The last error.
    error: Option<TimestampedText>,
    /// The reason for which there is no Established session, and the remedy.
    cause: Option<LossCause>,
    /// The reason for which the last attempt failed.
    attempt: Option<TimestampedText>,
    trend: Trend,
}

/// A text and its time.
#[derive(Debug, Serialize)]
struct TimestampedText {
    text: String,
    at: u64,
}

/// The reason for a missing session, and the remedy.
#[derive(Debug, Serialize)]
struct LossCause {
    kind: CauseKind,
    text: String,
    advice: String,
}

impl From<PeerCause> for LossCause {
    fn from(PeerCause { kind, text, advice, .. }: PeerCause) -> LossCause {
        LossCause { kind, text, advice }
    }
}

/// Milliseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "only people read these times of day; no code decides by them")]
pub(super) fn unix_now() -> u64 {
    milliseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Records the current state of the peers for their trends.
pub(super) async fn note(
    observer: &Observer,
    trends: &mut Trends,
) -> Option<(Vec<PeerStatus>, SpeakerStatus)> {
    let sessions = observer.sessions().await;
    let statuses = sessions.iter().flat_map(|(statuses, _)| statuses);
    trends.note(Instant::now(), statuses.map(|status| (status.key().to_string(), sample(status))));
    sessions
}

/// Makes the document.
pub(super) async fn document(
    observer: &Observer,
    trends: &Trends,
    sessions: Option<(Vec<PeerStatus>, SpeakerStatus)>,
) -> Document {
    let (now, when) = (unix_now(), Instant::now());
    let mut peers = Vec::new();
    if let Some((statuses, bgp)) = &sessions {
        peers.extend(bgp.waiting.iter().map(|waiting| unfound(waiting, trends, now, when)));
        peers.extend(statuses.iter().map(|status| row(status, bgp, trends, now, when)));
    }
    if sessions.is_none() {
        // No speaker runs: the configured peers are down.
        let configured = observer.peers(None).await.unwrap_or_default();
        peers.extend(configured.iter().map(|peer| stopped(peer, trends, now, when)));
    }
    // A stable order, with peers that are down first.
    peers.sort_by_key(|peer| (peer.state == PeerState::Established, peer.optional));
    let more = peers.len().saturating_sub(PEERS);
    peers.truncate(PEERS);
    let (run, newest_event) = observer.history.newest();
    Document {
        now,
        began: now.saturating_sub(milliseconds(observer.began.elapsed())),
        agent: observer.agent().await.ok(),
        peers,
        more,
        run,
        newest_event,
    }
}

fn sample(status: &PeerStatus) -> Sample {
    let accepted: usize = status.families.iter().map(|family| family.accepted).sum();
    Sample {
        up: status.state == State::Established,
        flaps: status.flaps,
        prefixes: u32::try_from(accepted).unwrap_or(u32::MAX),
    }
}

fn row(status: &PeerStatus, bgp: &SpeakerStatus, trends: &Trends, now: u64, when: Instant) -> PeerRow {
    let name = status.key().to_string();
    let sum = |count: fn(&speaker::FamilyStatus) -> usize| status.families.iter().map(count).sum::<usize>();
    let ago = |duration: Duration| now.saturating_sub(milliseconds(duration));
    let timestamped = |failure: &Option<speaker::Failure>| {
        failure.as_ref().map(|failure| TimestampedText { text: failure.text.clone(), at: ago(failure.ago) })
    };
    // Between two attempts the state changes every few seconds. The shown time is the loss of the
    // session.
    let since = match status.state {
        State::Established => Some(status.state_for),
        // If the session was never Established, the speaker reports the time since the peer's
        // configuration, and the page must not show this time as a loss.
        _ => status.last_down.as_ref().map(|down| down.ago),
    };
    PeerRow {
        remote_as: status.remote_as.0,
        state: peer_state(status.state),
        shutdown: status.shutdown,
        optional: bgp.optional.contains(&status.key()),
        dynamic: status.range.is_some(),
        since: since.map(ago),
        next_attempt: status.next_attempt.map(|after| now + milliseconds(after)),
        received: sum(|family| family.received),
        accepted: sum(|family| family.accepted),
        advertised: sum(|family| family.advertised),
        stale: sum(|family| family.stale),
        limit: status.max_prefixes,
        flaps: status.flaps,
        bfd: status.bfd.as_ref().map(|bfd| bfd_state(bfd.status.state)),
        down: timestamped(&status.last_down),
        error: timestamped(&status.last_error),
        cause: causes::of(status).cause.map(LossCause::from),
        attempt: timestamped(&status.last_attempt),
        trend: trends.trend(&name, when),
        name,
    }
}

/// An unnumbered peer before its discovery.
fn unfound(waiting: &UndiscoveredPeer, trends: &Trends, now: u64, when: Instant) -> PeerRow {
    let row = idle(waiting.interface.to_string(), trends, when);
    PeerRow {
        remote_as: waiting.remote_as,
        optional: waiting.optional,
        error: Some(TimestampedText { text: waiting.reason.clone(), at: now }),
        cause: Some(causes::not_found(waiting).into()),
        ..row
    }
}

/// A peer while no speaker runs.
fn stopped(peer: &Peer, trends: &Trends, now: u64, when: Instant) -> PeerRow {
    let at = |seconds: u64| now.saturating_sub(seconds * 1000);
    PeerRow {
        remote_as: peer.remote_as,
        optional: peer.optional,
        error: peer
            .last_error
            .as_ref()
            .map(|error| TimestampedText { text: error.text.clone(), at: at(error.seconds_ago) }),
        cause: peer.cause.clone().map(LossCause::from),
        ..idle(peer.name(), trends, when)
    }
}

fn idle(name: String, trends: &Trends, when: Instant) -> PeerRow {
    PeerRow {
        remote_as: 0,
        state: PeerState::Idle,
        shutdown: false,
        optional: false,
        dynamic: false,
        since: None,
        next_attempt: None,
        received: 0,
        accepted: 0,
        advertised: 0,
        stale: 0,
        limit: None,
        flaps: 0,
        bfd: None,
        down: None,
        error: None,
        cause: None,
        attempt: None,
        trend: trends.trend(&name, when),
        name,
    }
}
