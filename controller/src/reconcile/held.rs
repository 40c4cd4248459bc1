//! Addresses of sandboxes that are still attached after their pod has ended in the API server.
//!
//! `kubectl delete --force` removes a pod's object at once, and its containers run until the
//! kubelet has stopped them. So neither the pod's object nor its absence proves that an address is
//! free. The agent of the node writes the sandbox to the IPInstance's status after ADD, and clears
//! the status after DEL. Until then the address is held: it is neither released, nor retained, nor
//! bound to another pod.
//!
//! | the status has a sandbox, and | the address |
//! |---|---|
//! | the Node exists | is held |
//! | the Node is deleted | is free: no agent is left that could report the end |
//! | the Node has the taint `node.kubernetes.io/out-of-service` | is free: an administrator declares that no pod runs there |
//! | hybridnet's daemon wrote the status | is free: the daemon reports no end |
//!
//! The next pod of a StatefulSet, and the next pod of a virtual machine, wait for the held address.
//! In a live migration two sandboxes have the address, so the target does not wait. Any other pod
//! gets another address.

use std::net::IpAddr;
use std::sync::Arc;

use super::decide::{AssignDecision, Decision, leave};
use super::plan::AllocationRefusal;
use crate::cluster::{Cluster, InstanceRow, Key, PodLifecycle, PodRow};
use crate::state::{ControllerState, Term};

/// An address that its former sandbox still has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "address {address} is held: the former sandbox of {pod} (pod UID {uid}) is still attached on node {node}: the node's \
     agent reports its end. If the node does not come back, delete its Node, or taint it with \
     node.kubernetes.io/out-of-service"
)]
pub struct StillAttached {
    /// The address.
    pub address: IpAddr,
    /// The pod.
    pub pod: Arc<str>,
    /// The pod's UID.
    pub uid: Arc<str>,
    /// The node.
    pub node: Arc<str>,
}

impl Cluster {
    /// The node on which a sandbox has the address of an IPInstance, by the report of the node's
    /// agent.
    pub fn attached_node<'a>(&self, row: &'a InstanceRow) -> Option<&'a Arc<str>> {
        row.attached.as_ref().filter(|node| self.node(node).is_some_and(|node| !node.out_of_service))
    }
}

impl Term {
    /// Queues the work for addresses that a node held.
    pub(crate) fn retry_held(&mut self, cluster: &Cluster, node: &str) {
        let of_node = self.held.iter().filter(|(_, holder)| ***holder == *node);
        for (key, row) in of_node.filter_map(|(key, _)| Some((key, cluster.instance(key)?))) {
            if row.deleting {
                self.queues.instances.add(key.clone());
            }
            row.allocation_key(key).into_iter().for_each(|of| self.queues.pods.add(of));
        }
    }
}

impl ControllerState {
    /// Leaves held addresses out of a decision about an interface. `pod` is the pod of the
    /// decision, `instances` are the IPInstances of the interface, `of_vm`: they belong to a
    /// virtual machine.
    ///
    /// # Errors
    /// The pod must wait for a held address.
    pub(super) fn hold(
        term: &mut Term,
        cluster: &Cluster,
        decision: Decision,
        pod: Option<&PodRow>,
        instances: &[(&Key, &InstanceRow)],
        of_vm: bool,
    ) -> Result<Decision, AllocationRefusal> {
        for (key, _) in instances.iter().filter(|(_, row)| !row.deleting) {
            term.held.remove(*key);
        }
        let mut held = |keys: Vec<Key>| -> Vec<Key> {
            let node = |key: &Key| cluster.attached_node(cluster.instance(key)?);
            keys.into_iter()
                .filter(|key| match node(key) {
                    Some(node) => {
                        term.held.insert(key.clone(), Arc::clone(node));
                        false
                    }
                    None => true,
                })
                .collect()
        };
        Ok(match decision {
            Decision::Nothing => Decision::Nothing,
            Decision::Release(keys) => match held(keys) {
                free if !free.is_empty() => Decision::Release(free),
                _ => {
                    // A virtual machine that was created again gets no address before.
                    let waits = pod.filter(|pod| of_vm && pod.life == PodLifecycle::Alive);
                    waits.map_or(Ok(()), |pod| waiting(cluster, pod, instances))?;
                    Decision::Nothing
                }
            },
            Decision::Retain { keep, remove_finalizer } => {
                let wanted = keep.len();
                let free = held(keep);
                let is_whole = free.len() == wanted;
                leave(free, remove_finalizer && is_whole)
            }
            Decision::Assign(decision) => {
                if let Some(pod) = pod.filter(|_| decision.stateful || of_vm)
                    && let Err(refused) = waiting(cluster, pod, instances)
                {
                    held(instances.iter().map(|(key, _)| (*key).clone()).collect());
                    return Err(refused);
                }
                Decision::Assign(AssignDecision { release: held(decision.release), ..decision })
            }
        })
    }
}

/// Fails if another pod's sandbox has one of the addresses.
fn waiting(
    cluster: &Cluster,
    pod: &PodRow,
    instances: &[(&Key, &InstanceRow)],
) -> Result<(), AllocationRefusal> {
    for (_, row) in instances.iter().filter(|(_, row)| !row.deleting && row.pod_uid != pod.uid) {
        let is_target = row.target.as_ref().is_some_and(|target| *target.pod_uid == *pod.uid);
        if let Some(node) = cluster.attached_node(row).filter(|_| !is_target) {
            let (address, node) = (row.address, Arc::clone(node));
            let (pod, uid) = (row.pod.clone().unwrap_or_default(), Arc::clone(&row.pod_uid));
            return Err(StillAttached { address, pod, uid, node }.into());
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "held_tests.rs"]
mod tests;
