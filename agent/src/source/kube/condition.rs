//! What the agent says of its node's network: the Node's condition `NetworkUnavailable`. No I/O.
//!
//! Kubernetes makes the taint `node.kubernetes.io/network-unavailable` of it, which keeps new pods away. It is false once the agent serves
//! a network here, and true where a BGP network has lost all of its sessions for `SILENCE`: pods of this node can be reached by nobody then.
//! A router that restarts is back before that.
//!
//! A node that is in no network at all is the controller's to tell (reason `NoNetwork`), and its to take back: the agent
//! has no opinion of such a node, and does not write while that reason stands, so that the two never undo each other's word.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeCondition};
use tokio::time::Instant;
use trunkline_api::control::PeerState;
use trunkline_api::names::condition::{NETWORK_UNAVAILABLE, NO_NETWORK};
use trunkline_api::resources::NodePeer;

/// No session is up for this long: the node cannot be reached.
const SILENCE: Duration = Duration::from_secs(60);

/// What is to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkCondition {
    /// Pods of this node can be reached, as far as the agent knows.
    Available,
    /// There is no BGP session over which anybody learns of them.
    NoSession,
}

impl NetworkCondition {
    /// The condition's status.
    pub fn status(self) -> &'static str {
        match self {
            NetworkCondition::Available => "False",
            NetworkCondition::NoSession => "True",
        }
    }

    /// The condition's reason.
    pub fn reason(self) -> &'static str {
        match self {
            NetworkCondition::Available => "TrunklineServes",
            NetworkCondition::NoSession => "NoBGPSession",
        }
    }

    /// The condition's message.
    pub fn message(self) -> &'static str {
        match self {
            NetworkCondition::Available => "the agent serves this node's networks",
            NetworkCondition::NoSession => {
                "no BGP session is up: nobody learns of this node's pods (trunkline peers says why)"
            }
        }
    }
}

/// What is to be done about the condition as the API server has it.
#[derive(Debug, PartialEq, Eq)]
pub enum ConditionAction {
    /// It says so already, whoever wrote it.
    Nothing,
    /// The controller's word stands: it takes it back first.
    Wait,
    /// Write it.
    Write,
}

/// What follows from a verdict and the Node.
pub fn compare(verdict: NetworkCondition, node: &Node) -> ConditionAction {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let is_it = |one: &&NodeCondition| one.type_ == NETWORK_UNAVAILABLE;
    match conditions.iter().find(is_it) {
        Some(one) if one.status == "True" && one.reason.as_deref() == Some(NO_NETWORK) => {
            ConditionAction::Wait
        }
        Some(one) if one.status == verdict.status() => ConditionAction::Nothing,
        _ => ConditionAction::Write,
    }
}

/// Since when there is no session.
#[derive(Debug, Default)]
pub struct SessionLossTimer {
    since: Option<Instant>,
}

impl SessionLossTimer {
    /// What is to be said of a node that serves networks or does not and has these peers, and when that changes by itself. `None`
    /// while there is nothing to say.
    pub fn evaluate(
        &mut self,
        serves: bool,
        peers: &[NodePeer],
        now: Instant,
    ) -> (Option<NetworkCondition>, Option<Instant>) {
        let silent = !peers.is_empty() && peers.iter().all(|peer| peer.state != PeerState::Established);
        if !serves || !silent {
            self.since = None;
            return (serves.then_some(NetworkCondition::Available), None);
        }
        let until = *self.since.get_or_insert(now) + SILENCE;
        if now < until { (None, Some(until)) } else { (Some(NetworkCondition::NoSession), None) }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::NodeStatus;

    use super::*;

    fn peers(states: &[PeerState]) -> Vec<NodePeer> {
        states.iter().map(|state| NodePeer { state: *state, ..NodePeer::default() }).collect()
    }

    #[test]
    fn silence_is_told_after_a_while_and_ends_at_once() {
        let (mut silence, start) = (SessionLossTimer::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let down = peers(&[PeerState::Active, PeerState::Connect]);
        assert_eq!(silence.evaluate(false, &down, start), (None, None), "no network, no opinion");
        assert_eq!(silence.evaluate(true, &down, after(1)), (None, Some(after(61))));
        assert_eq!(
            silence.evaluate(true, &down, after(60)),
            (None, Some(after(61))),
            "the first look counts"
        );
        assert_eq!(silence.evaluate(true, &down, after(61)), (Some(NetworkCondition::NoSession), None));
        let one = peers(&[PeerState::Active, PeerState::Established]);
        assert_eq!(silence.evaluate(true, &one, after(62)), (Some(NetworkCondition::Available), None));
        assert_eq!(silence.evaluate(true, &down, after(70)), (None, Some(after(130))), "counted anew");
        assert_eq!(
            silence.evaluate(true, &[], after(71)),
            (Some(NetworkCondition::Available), None),
            "no peers are needed"
        );
    }

    #[test]
    fn the_controllers_word_is_waited_for_and_nobody_elses() {
        let node = |condition: Option<(&str, &str)>| {
            let condition = condition.map(|(status, reason)| NodeCondition {
                type_: NETWORK_UNAVAILABLE.to_owned(),
                status: status.to_owned(),
                reason: Some(reason.to_owned()),
                ..NodeCondition::default()
            });
            let conditions = condition.into_iter().collect();
            Node {
                status: Some(NodeStatus { conditions: Some(conditions), ..NodeStatus::default() }),
                ..Node::default()
            }
        };
        for (verdict, there, next) in [
            (NetworkCondition::Available, None, ConditionAction::Write),
            (NetworkCondition::Available, Some(("False", "NetworkAttached")), ConditionAction::Nothing),
            (NetworkCondition::Available, Some(("True", "NoRouteCreated")), ConditionAction::Write),
            (NetworkCondition::Available, Some(("True", "NoBGPSession")), ConditionAction::Write),
            (NetworkCondition::Available, Some(("True", NO_NETWORK)), ConditionAction::Wait),
            (NetworkCondition::NoSession, Some(("False", "TrunklineServes")), ConditionAction::Write),
            (NetworkCondition::NoSession, Some(("True", "NoBGPSession")), ConditionAction::Nothing),
            (NetworkCondition::NoSession, Some(("True", NO_NETWORK)), ConditionAction::Wait),
        ] {
            assert_eq!(compare(verdict, &node(there)), next, "{verdict:?} {there:?}");
        }
    }
}
