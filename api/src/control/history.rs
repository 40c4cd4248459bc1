//! What happened lately: the agent's last session and route events.
//!
//! The agent keeps a bounded number of them in memory and on disk ([`super::Query::Events`]); each has a number, so that whoever reads on
//! says what he has, and is told how many he was too slow for. Texts that began at a peer are harmless: control
//! characters and direction marks come escaped.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Some events, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Events {
    /// Which run of the agent answers; another one counts its events anew.
    pub run: u64,
    /// Events newer than those that were asked from and not among these: others took their place.
    pub missed: u64,
    /// The events.
    pub events: Vec<Event>,
}

/// Something that happened to a session or a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Counted from 1 by the run that answers; the events that it has read from disk, of earlier runs, come first.
    pub number: u64,
    /// When, by the node's clock: RFC 3339, UTC, milliseconds.
    pub at: String,
    /// What kind of thing.
    pub kind: EventKind,
    /// Whether somebody should look.
    pub severity: Severity,
    /// The peer that it is about, if it is about one. See [`super::Peer::name`].
    pub peer: Option<String>,
    /// The prefix that it is about, if it is about one.
    pub prefix: Option<IpNet>,
    /// What happened, in words.
    pub text: String,
}

/// What kind of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EventKind {
    /// A session is Established.
    SessionUp,
    /// A session has left Established.
    SessionDown,
    /// An attempt at a session failed; once, until the reason is another.
    SessionError,
    /// The BFD session of a peer is Up.
    BfdUp,
    /// The BFD session of a peer has left Up.
    BfdDown,
    /// A peer has sent its whole table of a family.
    EndOfRib,
    /// The first selection of a family after the start is done.
    Converged,
    /// A peer's paths are kept as the last to be used (RFC 9494).
    LongLivedStale,
    /// Paths that a peer did not announce again were removed.
    StaleSwept,
    /// A malformed UPDATE was dealt with, and the session stays (RFC 7606).
    MalformedUpdate,
    /// A dynamic neighbour was dropped.
    NeighbourGone,
    /// Dynamic neighbours are refused: there are as many as may be.
    RangeFull,
    /// Incoming BGP connections are not accepted at an address; once, until the reason is another.
    ListenFailed,
    /// Incoming BGP connections are accepted at that address again.
    Listening,
    /// The speaker does not run; once, until the reason is another.
    SpeakerFailed,
    /// This node tells of a prefix, or tells otherwise.
    Originated,
    /// This node tells of a prefix no more.
    Withdrawn,
    /// What peers told changed the way of a prefix, or of several.
    Learned,
    /// An operator did something here.
    Operator,
    /// The agent has started.
    AgentStarted,
    /// The agent stops.
    AgentStopped,
    /// Others changed what the agent keeps in the kernel, and the agent put it back.
    Repaired,
    /// A BGP network has no default route of a family any more, or no peer advertises one.
    DefaultLost,
    /// A BGP network has a default route of a family again, or a peer advertises one.
    DefaultBack,
    /// Pods' packets do not go by an established peer, because it advertises no default route and another one does.
    NextHopOut,
    /// Pods' packets go by that peer again.
    NextHopIn,
    /// Probes by a router show a fault.
    ProbeFailing,
    /// A fault that probes had shown is gone.
    ProbeGood,
    /// Two routers have one BGP identifier.
    DuplicateIdentifier,
    /// A BGP identifier belongs to one router again.
    IdentifierUnique,
}

impl EventKind {
    /// As it is written.
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

    /// About routes, of which there may be very many; the others are about sessions.
    pub fn is_of_routes(self) -> bool {
        matches!(self, EventKind::Originated | EventKind::Withdrawn | EventKind::Learned)
    }

    /// Whether somebody should look.
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

/// Whether somebody should look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// Part of the day.
    Info,
    /// It may be an outage, or become one.
    Warning,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_written_as_it_is_named() {
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
