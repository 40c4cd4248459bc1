//! The Namespace of a pod without addresses, at least as new as the pod.
//!
//! Pods and Namespaces arrive by two watches, so a pod can arrive before an earlier change of its
//! Namespace. The Networks of a pod follow from its Namespace, and its addresses never change. So the
//! Namespace is read from the API server before the first plan for a new pod. One read serves all pods
//! that arrived before it began.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::ListParams;
use tokio::sync::Mutex;

use super::vm::subject;
use super::{Context, ReconcileError, ReconcileResult};
use crate::cluster::{Key, NamespaceRow, PodLifecycle};
use crate::state::ControllerState;

/// Which Namespaces have pods that are newer than the last read.
#[derive(Debug, Default)]
pub struct NamespaceReads {
    reads: HashMap<Arc<str>, NamespaceRead>,
}

#[derive(Debug, Default)]
struct NamespaceRead {
    /// The number of pods that have arrived.
    arrived: u64,
    /// This number when the last complete read began.
    read: u64,
    /// Held during a read.
    turn: Arc<Mutex<()>>,
}

impl NamespaceReads {
    /// Records that a new pod of this Namespace has arrived.
    pub fn pod_arrived(&mut self, namespace: &Arc<str>) {
        self.reads.entry(Arc::clone(namespace)).or_default().arrived += 1;
    }

    /// Forgets a deleted Namespace.
    pub fn remove(&mut self, namespace: &str) {
        self.reads.remove(namespace);
    }

    /// The lock that a read holds.
    fn turn(&self, namespace: &str) -> Option<Arc<Mutex<()>>> {
        Some(Arc::clone(&self.reads.get(namespace)?.turn))
    }

    /// The number of pods that have arrived, if one has since the last complete read began.
    fn due(&self, namespace: &str) -> Option<u64> {
        self.reads.get(namespace).filter(|read| read.arrived > read.read).map(|read| read.arrived)
    }

    /// Records a complete read that began when this number of pods had arrived. A read that fails or is
    /// cancelled stays due. A Namespace that was created again meanwhile has another `turn`, and needs a
    /// read of its own.
    fn complete(&mut self, namespace: &str, turn: &Arc<Mutex<()>>, arrived: u64) {
        if let Some(read) = self.reads.get_mut(namespace).filter(|read| Arc::ptr_eq(&read.turn, turn)) {
            read.read = arrived;
        }
    }
}

/// Waits until the Namespace of an allocation key's pod is known as it was when the pod arrived, if the
/// pod has no addresses yet.
pub(super) async fn make_current(context: &Context, key: &Key) -> ReconcileResult {
    let Some(turn) = turn(&context.shared.lock(), key) else { return Ok(()) };
    let _held = turn.lock().await;
    let namespace = &key.namespace;
    let Some(arrived) = context.shared.lock().namespace_reads.due(namespace) else { return Ok(()) };
    // The controller has the right to list Namespaces, for its watch, but not the right to get one.
    let api: Api<Namespace> = Api::all(context.client.clone());
    let named = ListParams::default().fields(&format!("metadata.name={namespace}")).limit(1);
    let page = context.write(api.list_metadata(&named)).await.map_err(|source| ReconcileError::Request {
        what: format!("Namespace {namespace} was not read"),
        source,
    })?;
    let mut state = context.shared.lock();
    for object in page.items {
        state.set_namespace(namespace, NamespaceRow::of(&object.metadata));
    }
    state.namespace_reads.complete(namespace, &turn, arrived);
    Ok(())
}

/// The lock of the Namespace's reads, if the key has a pod that waits for its first addresses.
fn turn(state: &ControllerState, key: &Key) -> Option<Arc<Mutex<()>>> {
    let subject = subject(&state.cluster, key)?;
    let pod = &subject.pod;
    let needs_addresses =
        pod.life == PodLifecycle::Alive && pod.selected && !pod.host_network && pod.node.is_some();
    let has_addresses = || state.cluster.instances_of(key).iter().any(|(_, row)| row.pod_uid == pod.uid);
    if !needs_addresses || has_addresses() {
        return None;
    }
    state.namespace_reads.turn(&key.namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_covers_the_pods_that_arrived_before_it_began() {
        let mut reads = NamespaceReads::default();
        let namespace: Arc<str> = "default".into();
        assert_eq!(reads.due("default"), None, "no pod");
        reads.pod_arrived(&namespace);
        let (turn, began) = (reads.turn("default").unwrap(), reads.due("default").unwrap());
        // Another pod arrives during the read. A cancelled read completes nothing.
        reads.pod_arrived(&namespace);
        assert_eq!(reads.due("default"), Some(2));
        reads.complete("default", &turn, began);
        assert_eq!(reads.due("default"), Some(2), "the second pod is newer than the read");
        reads.complete("default", &turn, 2);
        assert_eq!(reads.due("default"), None);
    }

    #[test]
    fn a_read_of_a_deleted_namespace_is_none_of_the_next_one() {
        let mut reads = NamespaceReads::default();
        let namespace: Arc<str> = "default".into();
        reads.pod_arrived(&namespace);
        let (turn, began) = (reads.turn("default").unwrap(), reads.due("default").unwrap());
        reads.remove("default");
        reads.pod_arrived(&namespace);
        reads.complete("default", &turn, began);
        assert_eq!(reads.due("default"), Some(1));
    }
}
