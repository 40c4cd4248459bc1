//! The channel of the policy task. Policies have a channel of their own, so that a pod waits for one large
//! policy and not for all that have arrived.
//!
//! The kernel gets one difference for each round of the task, and new rules take it some 0.1 ms each. A
//! round has all other inputs that wait, and policies up to a bound (`ROUND`). The watches of
//! different kinds have no common order, so this is as if the policies had arrived later.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use super::feed::{CLUSTER_POLICIES, POLICIES, PolicyInput, PolicyObject};
use super::input::Change;

/// Inputs that wait, of each channel.
const INPUTS: usize = 1024;
/// The entries of all policies that wait: their watches wait for room.
const ROOM: u32 = 40_000;

/// The task has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended;

/// The inputs of a policy task.
#[must_use]
pub fn channel() -> (PolicyInputs, PolicyInbox) {
    let (others, other_inbox) = mpsc::channel(INPUTS);
    let (policies, policy_inbox) = mpsc::channel(INPUTS);
    let room = Arc::new(Semaphore::new(ROOM as usize));
    let inbox = PolicyInbox { others: other_inbox, policies: policy_inbox, room: Arc::clone(&room) };
    (PolicyInputs { others, policies, room }, inbox)
}

/// The sending end. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PolicyInputs {
    others: mpsc::Sender<PolicyInput>,
    policies: mpsc::Sender<SentPolicies>,
    room: Arc<Semaphore>,
}

impl PolicyInputs {
    /// Sends an input. Those of one kind keep their order.
    pub async fn send(&self, input: PolicyInput) -> Result<(), Ended> {
        let Some(entries) = entries(&input) else {
            return self.others.send(input).await.map_err(|_| Ended);
        };
        let entries = u32::try_from(entries).unwrap_or(ROOM).min(ROOM);
        let sent = Instant::now();
        let room = Arc::clone(&self.room).acquire_many_owned(entries).await.map_err(|_| Ended)?;
        self.policies.send(SentPolicies { input, sent, _room: room }).await.map_err(|_| Ended)
    }

    /// Waits for the end of the task.
    pub async fn closed(&self) {
        self.others.closed().await;
    }
}

/// The receiving end.
#[derive(Debug)]
pub struct PolicyInbox {
    others: mpsc::Receiver<PolicyInput>,
    policies: mpsc::Receiver<SentPolicies>,
    room: Arc<Semaphore>,
}

/// An input.
#[derive(Debug)]
pub(super) enum Next {
    /// No change of policies.
    Other(PolicyInput),
    Policies(SentPolicies),
}

/// A change of policies.
#[derive(Debug)]
pub(super) struct SentPolicies {
    pub(super) input: PolicyInput,
    pub(super) sent: Instant,
    /// Its room in the channel.
    _room: OwnedSemaphorePermit,
}

impl PolicyInbox {
    /// The next input. Policies come last. None: there is no sender.
    pub(super) async fn next(&mut self) -> Option<Next> {
        tokio::select! {
            biased;
            Some(input) = self.others.recv() => Some(Next::Other(input)),
            Some(policies) = self.policies.recv() => Some(Next::Policies(policies)),
            else => None,
        }
    }

    /// The same, without the difference.
    #[cfg(test)]
    pub(crate) async fn recv(&mut self) -> Option<PolicyInput> {
        Some(match self.next().await? {
            Next::Other(input) => input,
            Next::Policies(policies) => policies.input,
        })
    }

    /// The next input that is no change of policies, if one waits.
    pub(super) fn try_other(&mut self) -> Option<PolicyInput> {
        self.others.try_recv().ok()
    }

    /// The next change of policies, if one waits.
    pub(super) fn try_policies(&mut self) -> Option<SentPolicies> {
        self.policies.try_recv().ok()
    }
}

impl Drop for PolicyInbox {
    fn drop(&mut self) {
        self.room.close();
    }
}

/// The entries of a change of policies. None: it is another input.
fn entries(input: &PolicyInput) -> Option<usize> {
    match input {
        PolicyInput::Network(change) => Some(entries_of(change, |policy| policy.weight().entries)),
        PolicyInput::Cluster(change) => Some(entries_of(change, |policy| policy.weight().entries)),
        // A failure of their watches keeps its place.
        PolicyInput::Failing { what, .. } => [POLICIES, CLUSTER_POLICIES].contains(what).then_some(0),
        _ => None,
    }
}

fn entries_of<K, P>(change: &Change<K, PolicyObject<P>>, of: impl Fn(&P) -> usize) -> usize {
    match change {
        Change::Listed(all) => all.iter().map(|object| of(&object.policy)).sum(),
        Change::Applied(object) => of(&object.policy),
        Change::Deleted(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;
    use trunkline_api::resources::LabelSelector;

    use super::*;
    use crate::netpolicy::input::{NetworkPolicy, NetworkRule, ObjectKey};

    fn policy(name: &str, rules: usize) -> PolicyInput {
        let policy = NetworkPolicy {
            key: ObjectKey::new("a", name),
            pod_selector: LabelSelector::default(),
            policy_types: None,
            ingress: vec![NetworkRule::default(); rules],
            egress: Vec::new(),
        };
        let object = PolicyObject {
            policy,
            faults: Vec::new(),
            above_bound: false,
            generation: 1,
            uid: Arc::from("u"),
        };
        PolicyInput::Network(Change::Applied(object))
    }

    #[tokio::test]
    async fn changes_of_pods_overtake_policies_and_failures_keep_their_place() {
        let (inputs, mut inbox) = channel();
        let failing = |what| PolicyInput::Failing { what, error: "refused".to_owned() };
        let sent = [policy("a", 1), failing("networkpolicies"), failing("pods"), PolicyInput::Stopped];
        for input in &sent {
            inputs.send(input.clone()).await.unwrap();
        }
        for index in [2, 3, 0, 1] {
            assert_eq!(inbox.recv().await.as_ref(), Some(&sent[index]));
        }
        drop(inputs);
        assert_eq!(inbox.recv().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn large_policies_wait_for_room_and_other_inputs_do_not() {
        let (inputs, mut inbox) = channel();
        let second = Duration::from_secs(1);
        for name in ["a", "b"] {
            inputs.send(policy(name, 19_000)).await.unwrap();
        }
        let third = inputs.send(policy("c", 19_000));
        assert!(timeout(second, third).await.is_err());
        inputs.send(PolicyInput::Stopped).await.unwrap();
        assert!(inbox.try_other().is_some() && inbox.try_policies().is_some());
        timeout(second, inputs.send(policy("c", 19_000))).await.unwrap().unwrap();
        // A policy larger than the room waits until it is alone.
        let largest = tokio::spawn({
            let inputs = inputs.clone();
            async move { inputs.send(policy("d", 2 * ROOM as usize)).await }
        });
        while inbox.try_policies().is_some() {}
        assert_eq!(largest.await.unwrap(), Ok(()));
        // The end of the task ends the wait.
        let waiting = tokio::spawn(async move { inputs.send(policy("e", 1)).await });
        tokio::time::sleep(second).await;
        drop(inbox);
        assert_eq!(waiting.await.unwrap(), Err(Ended));
    }
}
