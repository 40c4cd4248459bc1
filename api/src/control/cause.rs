//! Causes of missing BGP sessions.

use serde::{Deserialize, Serialize};

/// The cause of a lost session or a failed attempt, with advice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerCause {
    /// The kind, for decisions of programs.
    pub kind: CauseKind,
    /// The side that ended or rejected the session, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub side: Option<CauseSide>,
    /// The cause, as text.
    pub text: String,
    /// The advice.
    pub advice: String,
    /// Time since the failure.
    pub seconds_ago: u64,
}

/// The number of lost sessions for one kind of cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LossCount {
    /// The kind of cause.
    pub kind: CauseKind,
    /// The number since the peer was configured in this run of the agent.
    pub count: u64,
}

/// A side of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CauseSide {
    /// This node.
    Local,
    /// The peer.
    Peer,
}

/// The kinds of causes. Readers treat a kind of a later version as [`CauseKind::Other`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CauseKind {
    /// The interface towards the peer has no carrier.
    Carrier,
    /// BFD: packets do not pass between the two sides.
    Bfd,
    /// No message was received for the Hold Time, or none was accepted for the Send Hold Time.
    HoldTimer,
    /// `side` received more prefixes than its limit.
    PrefixLimit,
    /// `side` rejected the other side's AS number.
    WrongAs,
    /// The kernel dropped segments because of TCP-MD5.
    Passwords,
    /// An operator shut the session down on `side`.
    Shutdown,
    /// An operator reset the session on `side`.
    Reset,
    /// The peer was removed from the configuration of `side`.
    Deconfigured,
    /// The configuration of `side` changed.
    Configuration,
    /// TCP ended without a NOTIFICATION.
    Closed,
    /// No process listens at the peer's address.
    Refused,
    /// The peer closed the connection before the session was Established.
    Rejected,
    /// The peer does not answer.
    NoAnswer,
    /// The peer's address does not answer ARP or neighbour discovery.
    Unreachable,
    /// This host has no route to the peer.
    NoRoute,
    /// No interface of this host has the configured source address.
    SourceAddress,
    /// A firewall rule of this host forbids the connection.
    Firewall,
    /// `side` received a message that it cannot accept.
    Protocol,
    /// No router was found on the interface of an unnumbered peer.
    Discovery,
    /// The BGP speaker of this node does not run.
    Speaker,
    /// Any other cause.
    #[serde(other)]
    Other,
}

impl CauseKind {
    /// Every kind.
    pub const ALL: [CauseKind; 22] = [
        CauseKind::Carrier,
        CauseKind::Bfd,
        CauseKind::HoldTimer,
        CauseKind::PrefixLimit,
        CauseKind::WrongAs,
        CauseKind::Passwords,
        CauseKind::Shutdown,
        CauseKind::Reset,
        CauseKind::Deconfigured,
        CauseKind::Configuration,
        CauseKind::Closed,
        CauseKind::Refused,
        CauseKind::Rejected,
        CauseKind::NoAnswer,
        CauseKind::Unreachable,
        CauseKind::NoRoute,
        CauseKind::SourceAddress,
        CauseKind::Firewall,
        CauseKind::Protocol,
        CauseKind::Discovery,
        CauseKind::Speaker,
        CauseKind::Other,
    ];

    /// The label in metrics.
    pub fn label(self) -> &'static str {
        match self {
            CauseKind::Carrier => "carrier",
            CauseKind::Bfd => "bfd",
            CauseKind::HoldTimer => "hold_timer",
            CauseKind::PrefixLimit => "prefix_limit",
            CauseKind::WrongAs => "wrong_as",
            CauseKind::Passwords => "passwords",
            CauseKind::Shutdown => "shutdown",
            CauseKind::Reset => "reset",
            CauseKind::Deconfigured => "deconfigured",
            CauseKind::Configuration => "configuration",
            CauseKind::Closed => "closed",
            CauseKind::Refused => "refused",
            CauseKind::Rejected => "rejected",
            CauseKind::NoAnswer => "no_answer",
            CauseKind::Unreachable => "unreachable",
            CauseKind::NoRoute => "no_route",
            CauseKind::SourceAddress => "source_address",
            CauseKind::Firewall => "firewall",
            CauseKind::Protocol => "protocol",
            CauseKind::Discovery => "discovery",
            CauseKind::Speaker => "speaker",
            CauseKind::Other => "other",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_json_form_of_a_cause_is_stable() {
        let cause = PeerCause {
            kind: CauseKind::PrefixLimit,
            side: Some(CauseSide::Peer),
            text: "received NOTIFICATION Cease/Maximum Number of Prefixes Reached".to_owned(),
            advice: "raise the limit".to_owned(),
            seconds_ago: 13,
        };
        let written = json!({
            "kind": "prefixLimit",
            "side": "peer",
            "text": "received NOTIFICATION Cease/Maximum Number of Prefixes Reached",
            "advice": "raise the limit",
            "secondsAgo": 13,
        });
        assert_eq!(serde_json::to_value(&cause).unwrap(), written);
        assert_eq!(serde_json::from_value::<PeerCause>(written).unwrap(), cause);
    }

    /// The names in JSON and the labels of metrics are interfaces.
    #[test]
    fn the_names_of_kinds_are_stable() {
        let names = CauseKind::ALL.map(|kind| {
            let name = serde_json::to_value(kind).unwrap();
            format!("{} {}", name.as_str().unwrap(), kind.label())
        });
        assert_eq!(
            names,
            [
                "carrier carrier",
                "bfd bfd",
                "holdTimer hold_timer",
                "prefixLimit prefix_limit",
                "wrongAs wrong_as",
                "passwords passwords",
                "shutdown shutdown",
                "reset reset",
                "deconfigured deconfigured",
                "configuration configuration",
                "closed closed",
                "refused refused",
                "rejected rejected",
                "noAnswer no_answer",
                "unreachable unreachable",
                "noRoute no_route",
                "sourceAddress source_address",
                "firewall firewall",
                "protocol protocol",
                "discovery discovery",
                "speaker speaker",
                "other other",
            ]
        );
        for kind in CauseKind::ALL {
            let written = serde_json::to_value(kind).unwrap();
            assert_eq!(serde_json::from_value::<CauseKind>(written).unwrap(), kind);
        }
    }

    #[test]
    fn a_kind_of_a_later_version_is_other() {
        assert_eq!(serde_json::from_value::<CauseKind>(json!("moonPhase")).unwrap(), CauseKind::Other);
    }
}
