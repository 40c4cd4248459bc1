//! The agent's recent session and route events.
//!
//! The agent stores a bounded number of events in memory and on disk ([`super::Query::Events`]).
//! Each event has a number. So a reader requests the events after a number, and learns how many it
//! missed. Texts from a peer are safe to print: control characters and direction marks are escaped.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::names::names;

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
    /// Its number. This run of the agent assigns it, from 1. The events of earlier runs, which are
    /// read from disk, have the lowest numbers.
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

names! {
    /// The kind of an event.
    pub enum EventKind {
        /// A session is Established.
        SessionUp = "sessionUp",
        /// The session left Established.
        SessionDown = "sessionDown",
        /// An attempt at a session failed; reported once until the reason changes.
        SessionError = "sessionError",
        /// The BFD session of a peer is Up.
        BfdUp = "bfdUp",
        /// The BFD session of a peer left Up.
        BfdDown = "bfdDown",
        /// A peer sent its whole table of a family.
        EndOfRib = "endOfRib",
        /// The first selection of a family after the start is done.
        Converged = "converged",
        /// A peer's paths are retained as long-lived stale paths, which are selected last (RFC 9494).
        LongLivedStale = "longLivedStale",
        /// Paths that a peer did not advertise again were removed.
        StaleSwept = "staleSwept",
        /// A malformed UPDATE was handled without a session reset (RFC 7606).
        MalformedUpdate = "malformedUpdate",
        /// A dynamic neighbour was removed.
        NeighbourGone = "neighbourGone",
        /// Dynamic neighbours are rejected: the limit is reached.
        RangeFull = "rangeFull",
        /// Incoming BGP connections are not accepted at an address; reported once until the reason
        /// changes.
        ListenFailed = "listenFailed",
        /// Incoming BGP connections are accepted at that address again.
        Listening = "listening",
        /// The speaker does not run; reported once until the reason changes.
        SpeakerFailed = "speakerFailed",
        /// This node advertises a prefix, or advertises it with other attributes.
        Originated = "originated",
        /// This node withdrew a prefix.
        Withdrawn = "withdrawn",
        /// Received routes changed the next hops of one or several prefixes.
        Learned = "learned",
        /// An operator ran a command here.
        Operator = "operator",
        /// The agent has started.
        AgentStarted = "agentStarted",
        /// The agent stops.
        AgentStopped = "agentStopped",
        /// Another program changed kernel objects of the agent, and the agent repaired them.
        Repaired = "repaired",
        /// A BGP network has no default route of a family any more, or no peer advertises one.
        DefaultLost = "defaultLost",
        /// A BGP network has a default route of a family again, or a peer advertises one.
        DefaultBack = "defaultBack",
        /// An established peer is no next hop of pods' packets: it advertises no default route, and
        /// another peer does.
        NextHopOut = "nextHopOut",
        /// That peer is a next hop again.
        NextHopIn = "nextHopIn",
        /// Probes through a router show a fault.
        ProbeFailing = "probeFailing",
        /// Probes no longer show the fault.
        ProbeGood = "probeGood",
        /// Two routers have the same BGP identifier.
        DuplicateIdentifier = "duplicateIdentifier",
        /// A BGP identifier belongs to one router only again.
        IdentifierUnique = "identifierUnique",
        /// This node advertises a service address.
        ServiceAdvertised = "serviceAdvertised",
        /// This node no longer advertises a service address, or will withdraw it.
        ServiceWithheld = "serviceWithheld",
        /// The service proxy does not answer, or is unhealthy.
        ProxyAway = "proxyAway",
        /// The service proxy is healthy again.
        ProxyBack = "proxyBack",
        /// The health check of an anycast address passes.
        AnycastHealthy = "anycastHealthy",
        /// The health check of an anycast address fails, or its effect changed.
        AnycastUnhealthy = "anycastUnhealthy",
    }
}

impl EventKind {
    /// Whether the event concerns routes (there may be very many such events) or sessions.
    pub fn is_of_routes(self) -> bool {
        matches!(
            self,
            EventKind::Originated
                | EventKind::Withdrawn
                | EventKind::Learned
                | EventKind::ServiceAdvertised
                | EventKind::ServiceWithheld
        )
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
            | EventKind::DuplicateIdentifier
            | EventKind::AnycastUnhealthy
            | EventKind::ProxyAway => Severity::Warning,
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

    /// Clients use these names, and so do the events on disk.
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
                "serviceAdvertised",
                "serviceWithheld",
                "proxyAway",
                "proxyBack",
                "anycastHealthy",
                "anycastUnhealthy",
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
