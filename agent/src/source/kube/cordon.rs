//! Follows the Node's cordon: reports to [`Drain`] whether the Node is cordoned, and how many of
//! its pods must leave before the Node is empty.
//!
//! The agent does not wait for the pods that `kubectl drain` leaves on a node: pods of DaemonSets,
//! and static pods. It identifies them by the pods' metadata: one request for each pod, and only
//! while the node is cordoned. A pod must leave if the API server no longer has it while it is
//! still attached, or if the request fails.
//!
//! **Without an answer of the API server the agent decides nothing**: the cordon may be gone.
//! Earlier decisions stay. After an outage, the Node's changes arrive a moment later. A replaced
//! pod leaves the node empty for a moment, too. So an empty node counts as empty only after
//! `SETTLE`. When pods are on the node again, the agent does not wait.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::core::PartialObjectMeta;
use trunkline_daemon::errors::chain;

use super::cluster::{Cluster, INSTANCES, QUESTION};
use super::request::{RequestError, within};
use crate::drain::{Cordon, Drain};
use crate::ipam::{Ipam, PodName};

/// An empty node must stay empty for this time.
const SETTLE: Duration = Duration::from_secs(1);
/// Time between retries of a failed request or write.
const RETRY: Duration = Duration::from_secs(15);

/// An annotation of static pods' objects in the API server.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Namespace, name and UID of a pod.
type PodId = (String, String, String);

/// Follows the cordon for as long as the agent runs.
pub async fn follow(cluster: Cluster, ipam: Ipam, drain: Drain) {
    let mut changed = cluster.changes();
    let mut turns = cluster.health().turns();
    let mut kinds = Kinds::default();
    let mut reported: Option<Option<Cordon>> = None;
    let mut seen_empty = false;
    loop {
        changed.mark_unchanged();
        turns.mark_unchanged();
        let mut again: Option<Duration> = None;
        if cluster.health().is_live(super::task::NODE) && cluster.health().is_live(INSTANCES) {
            let cordon = match cluster.is_cordoned() {
                None => None,
                Some(false) => Some(Cordon::No),
                Some(true) => {
                    let left = kinds.left(&cluster, &ipam).await;
                    again = (left.is_none()).then_some(RETRY);
                    Some(Cordon::Yes { left: left.unwrap_or(kinds.pods.max(1)) })
                }
            };
            let empty = cordon == Some(Cordon::Yes { left: 0 });
            if empty && !seen_empty && reported != Some(cordon) {
                again = Some(SETTLE);
            } else if reported != Some(cordon) {
                match drain.cordon(cordon).await {
                    Ok(_) => reported = Some(cordon),
                    Err(error) => {
                        tracing::warn!(%error, "the Node's cordon could not be followed");
                        again = Some(RETRY);
                    }
                }
            }
            seen_empty = empty;
        }
        let wait = async {
            match again {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The cluster owns the sender, and this task holds the cluster, so the channel stays
            // open.
            _ = changed.changed() => seen_empty = false,
            _ = turns.changed() => seen_empty = false,
            () = wait => {}
        }
    }
}

/// The kinds of the requested pods: whether they may stay.
#[derive(Default)]
struct Kinds {
    stays: BTreeMap<PodId, bool>,
    /// Number of pods at the last check.
    pods: usize,
}

impl Kinds {
    /// Number of pods that must leave; `None` if a request failed.
    async fn left(&mut self, cluster: &Cluster, ipam: &Ipam) -> Option<usize> {
        let records = ipam.summary().await?.records;
        let mut pods: BTreeSet<PodId> = records.into_iter().map(|record| id(record.pod)).collect();
        let bound: Vec<PodName> = cluster.state().index.bound().collect();
        pods.extend(bound.into_iter().map(id));
        self.stays.retain(|pod, _| pods.contains(pod));
        self.pods = pods.len();
        let mut left = 0;
        for pod in pods {
            let stays = match self.stays.get(&pod) {
                Some(stays) => *stays,
                None => match stays_on_node(cluster, &pod).await {
                    Ok(Some(stays)) => *self.stays.entry(pod).or_insert(stays),
                    Ok(None) => false,
                    Err(error) => {
                        let error = chain(&error);
                        tracing::debug!(pod = pod.1, error, "a pod of the cordoned node was not read");
                        return None;
                    }
                },
            };
            left += usize::from(!stays);
        }
        Some(left)
    }
}

fn id(pod: PodName) -> PodId {
    (pod.namespace, pod.name, pod.uid)
}

/// Whether a pod stays on a node that is drained in Kubernetes; `None` if no pod has this UID.
async fn stays_on_node(
    cluster: &Cluster,
    (namespace, name, uid): &PodId,
) -> Result<Option<bool>, RequestError> {
    if namespace.is_empty() || name.is_empty() {
        return Ok(None);
    }
    let pods: Api<Pod> = Api::namespaced(cluster.connection().client.clone(), namespace);
    match within(QUESTION, pods.get_metadata(name)).await {
        Ok(pod) => {
            let same = uid.is_empty() || pod.metadata.uid.as_ref() == Some(uid);
            Ok(same.then(|| stays(&pod)))
        }
        Err(error) if error.code() == Some(404) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether `kubectl drain` leaves this pod on the node.
fn stays(pod: &PartialObjectMeta<Pod>) -> bool {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.controller == Some(true) && owner.kind == "DaemonSet")
        || pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MIRROR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubernetes_drain_leaves_daemonset_and_static_pods() {
        let owner = |kind: &str, is_controller: bool| {
            serde_json::json!({"ownerReferences": [{
                "apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "u", "controller": is_controller,
            }]})
        };
        for (metadata, expected) in [
            (serde_json::json!({}), false),
            (owner("DaemonSet", true), true),
            (owner("DaemonSet", false), false),
            (owner("ReplicaSet", true), false),
            (owner("StatefulSet", true), false),
            (serde_json::json!({"annotations": {MIRROR: "hash"}}), true),
            (serde_json::json!({"annotations": {"other": ""}}), false),
        ] {
            let text = metadata.to_string();
            let metadata = serde_json::from_value(metadata).unwrap();
            let pod = PartialObjectMeta { metadata, ..PartialObjectMeta::default() };
            assert_eq!(stays(&pod), expected, "{text}");
        }
    }
}
