//! The agent's recent session and route events.
//!
//! The agent stores a bounded number of events in memory and on disk ([`super::Query::Events`]).
//! Each event has a number. So a reader requests the events after a number, and learns how many it
//! missed. Texts from a peer are safe to print: control characters and direction marks are escaped.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Some events, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Events {
    /// The run of the agent that answers; each run counts its events from 1.
    pub run: u64,
    /// The number of events after the requested number that are no longer stored.
    pub missed: u64,
    /// The events.
    pub events: Vec<Event>,
}

/// A change of a session or a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Counted from 1 by the run that answers; events of earlier runs, read from disk, come first.
    pub number: u64,
    /// The time by the node's clock: RFC 3339, UTC, milliseconds.
    pub at: String,
    /// The kind.
    pub kind: EventKind,
    /// Whether the event needs attention.
    pub severity: Severity,
    /// The peer, if the event concerns one. See [`super::Peer::name`].
    pub peer: Option<String>,
    /// The prefix, if the event concerns one.
    pub prefix: Option<IpNet>,
    /// The event as text.
    pub text: String,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EventKind {
    /// A session is Established.
    SessionUp,
    /// The session left Established.
    SessionDown,
    /// An attempt at a session failed; reported once until the reason changes.
    SessionError,
    /// The BFD session of a peer is Up.
    BfdUp,
    /// The BFD session of a peer left Up.
    BfdDown,
    /// A peer sent its whole table of a family.
    EndOfRib,
    /// The first selection of a family after the start is done.
    Converged,
    /// A peer's paths are retained as long-lived stale paths, which are selected last (RFC 9494).
    LongLivedStale,
    /// Paths that a peer did not advertise again were removed.
    StaleSwept,
    /// A malformed UPDATE was handled without a session reset (RFC 7606).
    MalformedUpdate,
    /// A dynamic neighbour was removed.
    NeighbourGone,
    /// Dynamic neighbours are rejected: the limit is reached.
    RangeFull,
    /// Incoming BGP connections are not accepted at an address; reported once until the reason
    /// changes.
    ListenFailed,
    /// Incoming BGP connections are accepted at that address again.
    Listening,
    /// The speaker does not run; reported once until the reason changes.
    SpeakerFailed,
    /// This node advertises a prefix, or advertises it with other attributes.
    Originated,
    /// This node withdrew a prefix.
    Withdrawn,
    /// Received routes changed the next hops of one or several prefixes.
    Learned,
    /// An operator ran a command here.
    Operator,
    /// The agent has started.
    AgentStarted,
    /// The agent stops.
    AgentStopped,
    /// Another program changed kernel objects of the agent, and the agent repaired them.
    Repaired,
    /// A BGP network has no default route of a family any more, or no peer advertises one.
    DefaultLost,
    /// A BGP network has a default route of a family again, or a peer advertises one.
    DefaultBack,
    /// An established peer is no next hop of pods' packets: it advertises no default route, and
    /// another peer does.
    NextHopOut,
    /// That peer is a next hop again.
    NextHopIn,
    /// Probes through a router show a fault.
    ProbeFailing,
    /// Probes no longer show the fault.
    ProbeGood,
    /// Two routers have the same BGP identifier.
    DuplicateIdentifier,
    /// A BGP identifier belongs to one router only again.
    IdentifierUnique,
}

impl EventKind {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            EventKind::SessionUp => "sessionUp",
            EventKind::SessionDown => "sessionDown",
            EventKind::SessionError => "sessionError",
            EventKind::BfdUp => "bfdUp",
            EventKind::BfdDown => "bfdDown",
            EventKind::EndOfRib => "endOfRib",
            EventKind::Converged => "converged",
            EventKind::LongLivedStale => "longLivedStale",
            EventKind::StaleSwept => "staleSwept",
            EventKind::MalformedUpdate => "malformedUpdate",
            EventKind::NeighbourGone => "neighbourGone",
            EventKind::RangeFull => "rangeFull",
            EventKind::ListenFailed => "listenFailed",
            EventKind::Listening => "listening",
            EventKind::SpeakerFailed => "speakerFailed",
            EventKind::Originated => "originated",
            EventKind::Withdrawn => "withdrawn",
            EventKind::Learned => "learned",
            EventKind::Operator => "operator",
            EventKind::AgentStarted => "agentStarted",
            EventKind::AgentStopped => "agentStopped",
            EventKind::Repaired => "repaired",
            EventKind::DefaultLost => "defaultLost",
            EventKind::DefaultBack => "defaultBack",
            EventKind::NextHopOut => "nextHopOut",
            EventKind::NextHopIn => "nextHopIn",
            EventKind::ProbeFailing => "probeFailing",
            EventKind::ProbeGood => "probeGood",
            EventKind::DuplicateIdentifier => "duplicateIdentifier",
            EventKind::IdentifierUnique => "identifierUnique",
        }
    }

    /// Whether the event concerns routes, of which there may be very many; the others concern
    /// sessions.
    pub fn is_of_routes(self) -> bool {
        matches!(self, EventKind::Originated | EventKind::Withdrawn | EventKind::Learned)
    }

    /// Whether the event needs attention.
    pub fn severity(self) -> Severity {
        match self {
            EventKind::SessionDown
            | EventKind::SessionError
            | EventKind::BfdDown
            | EventKind::LongLivedStale
            | EventKind::MalformedUpdate
            | EventKind::RangeFull
            | EventKind::ListenFailed
            | EventKind::SpeakerFailed
            | EventKind::Repaired
            | EventKind::DefaultLost
            | EventKind::NextHopOut
            | EventKind::ProbeFailing
            | EventKind::DuplicateIdentifier => Severity::Warning,
            _ => Severity::Info,
        }
    }
}

/// Whether an event needs attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// Normal operation.
    Info,
    /// It may be an outage, or become one.
    Warning,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_name_of_a_kind_agree() {
        for kind in [
            EventKind::SessionUp,
            EventKind::EndOfRib,
            EventKind::LongLivedStale,
            EventKind::ListenFailed,
            EventKind::Operator,
        ] {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
