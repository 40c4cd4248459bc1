//! The agent's part of the Node's condition `NetworkUnavailable`. No I/O.
//!
//! From this condition Kubernetes makes the taint `node.kubernetes.io/network-unavailable`, which
//! keeps new pods away. The condition is false once the agent serves a network here. It is true if
//! a BGP network lost all of its sessions for `SILENCE`, because then no host can reach this node's
//! pods. A router that restarts returns in less time.
//!
//! The controller reports and clears the condition of a node that is in no network (reason
//! `NoNetwork`). The agent decides nothing for such a node, and does not write while the condition
//! has that reason. So the two never overwrite each other's condition.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeCondition};
use tokio::time::Instant;
use trunkline_api::control::PeerState;
use trunkline_api::names::condition::{NETWORK_UNAVAILABLE, NO_NETWORK};
use trunkline_api::resources::NodePeer;

/// Without any session for this time, the node counts as unreachable.
const SILENCE: Duration = Duration::from_secs(60);

/// The state of the node's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkCondition {
    /// Pods of this node are reachable, as far as the agent knows.
    Available,
    /// No BGP session is up that could advertise them.
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
                "no BGP session is up: no router has routes to this node's pods (`trunkline peers` shows the reason)"
            }
        }
    }
}

/// The result of a comparison with the API server's condition.
#[derive(Debug, PartialEq, Eq)]
pub enum ConditionAction {
    /// The condition already has this status.
    Nothing,
    /// The condition has the controller's reason: the controller clears it first.
    Wait,
    /// The agent writes it.
    Write,
}

/// Compares the wanted condition with the Node's.
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

/// The time since which no session is up.
#[derive(Debug, Default)]
pub struct SessionLossTimer {
    since: Option<Instant>,
}

impl SessionLossTimer {
    /// The condition of a node that does or does not serve networks and has these peers, and the
    /// time at which the condition changes by itself. `None` while the condition is unknown.
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
    fn session_loss_is_reported_late_and_cleared_at_once() {
        let (mut silence, start) = (SessionLossTimer::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let down = peers(&[PeerState::Active, PeerState::Connect]);
        assert_eq!(
            silence.evaluate(false, &down, start),
            (None, None),
            "without a network there is no verdict"
        );
        assert_eq!(silence.evaluate(true, &down, after(1)), (None, Some(after(61))));
        assert_eq!(
            silence.evaluate(true, &down, after(60)),
            (None, Some(after(61))),
            "the time begins with the first evaluation"
        );
        assert_eq!(silence.evaluate(true, &down, after(61)), (Some(NetworkCondition::NoSession), None));
        let one = peers(&[PeerState::Active, PeerState::Established]);
        assert_eq!(silence.evaluate(true, &one, after(62)), (Some(NetworkCondition::Available), None));
        assert_eq!(
            silence.evaluate(true, &down, after(70)),
            (None, Some(after(130))),
            "the time begins again"
        );
        assert_eq!(
            silence.evaluate(true, &[], after(71)),
            (Some(NetworkCondition::Available), None),
            "no peers are needed"
        );
    }

    #[test]
    fn only_the_controllers_condition_is_not_overwritten() {
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
