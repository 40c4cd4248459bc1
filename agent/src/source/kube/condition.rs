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
use trunkline_api::names::condition::{NETWORK_UNAVAILABLE, NO_NETWORK};
use trunkline_api::resources::NodePeer;

/// No session is up for this long: the node cannot be reached.
const SILENCE: Duration = Duration::from_secs(60);

/// What is to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Pods of this node can be reached, as far as the agent knows.
    Available,
    /// There is no BGP session over which anybody learns of them.
    NoSession,
}

impl Verdict {
    /// The condition's status.
    pub fn status(self) -> &'static str {
        match self {
            Verdict::Available => "False",
            Verdict::NoSession => "True",
        }
    }

    /// The condition's reason.
    pub fn reason(self) -> &'static str {
        match self {
            Verdict::Available => "TrunklineServes",
            Verdict::NoSession => "NoBGPSession",
        }
    }

    /// The condition's message.
    pub fn message(self) -> &'static str {
        match self {
            Verdict::Available => "the agent serves this node's networks",
            Verdict::NoSession => {
                "no BGP session is up: nobody learns of this node's pods (trunkline peers says why)"
            }
        }
    }
}

/// What is to be done about the condition as the API server has it.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// It says so already, whoever wrote it.
    Nothing,
    /// The controller's word stands: it takes it back first.
    Wait,
    /// Write it.
    Write,
}

/// What follows from a verdict and the Node.
pub fn compare(verdict: Verdict, node: &Node) -> Next {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let is_it = |one: &&NodeCondition| one.type_ == NETWORK_UNAVAILABLE;
    match conditions.iter().find(is_it) {
        Some(one) if one.status == "True" && one.reason.as_deref() == Some(NO_NETWORK) => Next::Wait,
        Some(one) if one.status == verdict.status() => Next::Nothing,
        _ => Next::Write,
    }
}

/// Since when there is no session.
#[derive(Debug, Default)]
pub struct Silence {
    since: Option<Instant>,
}

impl Silence {
    /// What is to be said of a node that serves networks or does not and has these peers, and when that changes by itself. `None`
    /// while there is nothing to say.
    pub fn judge(
        &mut self,
        serves: bool,
        peers: &[NodePeer],
        now: Instant,
    ) -> (Option<Verdict>, Option<Instant>) {
        let silent = !peers.is_empty() && peers.iter().all(|peer| peer.state != "Established");
        if !serves || !silent {
            self.since = None;
            return (serves.then_some(Verdict::Available), None);
        }
        let until = *self.since.get_or_insert(now) + SILENCE;
        if now < until { (None, Some(until)) } else { (Some(Verdict::NoSession), None) }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::NodeStatus;

    use super::*;

    fn peers(states: &[&str]) -> Vec<NodePeer> {
        let peer = |state: &&str| NodePeer { state: (*state).to_owned(), ..NodePeer::default() };
        states.iter().map(peer).collect()
    }

    #[test]
    fn silence_is_told_after_a_while_and_ends_at_once() {
        let (mut silence, start) = (Silence::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let down = peers(&["Active", "Connect"]);
        assert_eq!(silence.judge(false, &down, start), (None, None), "no network, no opinion");
        assert_eq!(silence.judge(true, &down, after(1)), (None, Some(after(61))));
        assert_eq!(silence.judge(true, &down, after(60)), (None, Some(after(61))), "the first look counts");
        assert_eq!(silence.judge(true, &down, after(61)), (Some(Verdict::NoSession), None));
        let one = peers(&["Active", "Established"]);
        assert_eq!(silence.judge(true, &one, after(62)), (Some(Verdict::Available), None));
        assert_eq!(silence.judge(true, &down, after(70)), (None, Some(after(130))), "counted anew");
        assert_eq!(
            silence.judge(true, &[], after(71)),
            (Some(Verdict::Available), None),
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
            (Verdict::Available, None, Next::Write),
            (Verdict::Available, Some(("False", "NetworkAttached")), Next::Nothing),
            (Verdict::Available, Some(("True", "NoRouteCreated")), Next::Write),
            (Verdict::Available, Some(("True", "NoBGPSession")), Next::Write),
            (Verdict::Available, Some(("True", NO_NETWORK)), Next::Wait),
            (Verdict::NoSession, Some(("False", "TrunklineServes")), Next::Write),
            (Verdict::NoSession, Some(("True", "NoBGPSession")), Next::Nothing),
            (Verdict::NoSession, Some(("True", NO_NETWORK)), Next::Wait),
        ] {
            assert_eq!(compare(verdict, &node(there)), next, "{verdict:?} {there:?}");
        }
    }
}
