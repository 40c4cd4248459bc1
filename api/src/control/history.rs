//! What happened lately: the agent's last session and route events.
//!
//! The agent keeps a bounded number of them in memory and on disk ([`super::Query::Events`]); each has a number, so that whoever reads on
//! says what he has, and is told how many he was too slow for. Texts that began at a peer are harmless: control
//! characters and direction marks come escaped.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::names::names;

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

names! {
    /// What kind of thing happened.
    pub enum EventKind {
        /// A session is Established.
        SessionUp = "sessionUp",
        /// A session has left Established.
        SessionDown = "sessionDown",
        /// An attempt at a session failed; once, until the reason is another.
        SessionError = "sessionError",
        /// The BFD session of a peer is Up.
        BfdUp = "bfdUp",
        /// The BFD session of a peer has left Up.
        BfdDown = "bfdDown",
        /// A peer has sent its whole table of a family.
        EndOfRib = "endOfRib",
        /// The first selection of a family after the start is done.
        Converged = "converged",
        /// A peer's paths are kept as the last to be used (RFC 9494).
        LongLivedStale = "longLivedStale",
        /// Paths that a peer did not announce again were removed.
        StaleSwept = "staleSwept",
        /// A malformed UPDATE was dealt with, and the session stays (RFC 7606).
        MalformedUpdate = "malformedUpdate",
        /// A dynamic neighbour was dropped.
        NeighbourGone = "neighbourGone",
        /// Dynamic neighbours are refused: there are as many as may be.
        RangeFull = "rangeFull",
        /// Incoming BGP connections are not accepted at an address; once, until the reason is another.
        ListenFailed = "listenFailed",
        /// Incoming BGP connections are accepted at that address again.
        Listening = "listening",
        /// The speaker does not run; once, until the reason is another.
        SpeakerFailed = "speakerFailed",
        /// This node tells of a prefix, or tells otherwise.
        Originated = "originated",
        /// This node tells of a prefix no more.
        Withdrawn = "withdrawn",
        /// What peers told changed the way of a prefix, or of several.
        Learned = "learned",
        /// An operator did something here.
        Operator = "operator",
        /// The agent has started.
        AgentStarted = "agentStarted",
        /// The agent stops.
        AgentStopped = "agentStopped",
        /// Others changed what the agent keeps in the kernel, and the agent put it back.
        Repaired = "repaired",
        /// A BGP network has no default route of a family any more, or no peer advertises one.
        DefaultLost = "defaultLost",
        /// A BGP network has a default route of a family again, or a peer advertises one.
        DefaultBack = "defaultBack",
        /// Pods' packets do not go by an established peer, because it advertises no default route and another one does.
        NextHopOut = "nextHopOut",
        /// Pods' packets go by that peer again.
        NextHopIn = "nextHopIn",
        /// Probes by a router show a fault.
        ProbeFailing = "probeFailing",
        /// A fault that probes had shown is gone.
        ProbeGood = "probeGood",
        /// Two routers have one BGP identifier.
        DuplicateIdentifier = "duplicateIdentifier",
        /// A BGP identifier belongs to one router again.
        IdentifierUnique = "identifierUnique",
    }
}

impl EventKind {
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

    /// The names are an interface, and those of events on disk.
    #[test]
    fn names_of_kinds_stay_as_they_are() {
        let names: Vec<&str> = EventKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(
            names,
            [
                "sessionUp",
                "sessionDown",
                "sessionError",
                "bfdUp",
                "bfdDown",
                "endOfRib",
                "converged",
                "longLivedStale",
                "staleSwept",
                "malformedUpdate",
                "neighbourGone",
                "rangeFull",
                "listenFailed",
                "listening",
                "speakerFailed",
                "originated",
                "withdrawn",
                "learned",
                "operator",
                "agentStarted",
                "agentStopped",
                "repaired",
                "defaultLost",
                "defaultBack",
                "nextHopOut",
                "nextHopIn",
                "probeFailing",
                "probeGood",
                "duplicateIdentifier",
                "identifierUnique",
            ]
        );
        for kind in EventKind::ALL {
            let written = serde_json::to_value(kind).unwrap();
            assert_eq!(written, kind.name());
            assert_eq!(serde_json::from_value::<EventKind>(written).unwrap(), *kind);
        }
        let later = serde_json::json!("ofALaterVersion");
        assert_eq!(serde_json::from_value::<EventKind>(later).unwrap(), EventKind::Unknown);
    }
}
