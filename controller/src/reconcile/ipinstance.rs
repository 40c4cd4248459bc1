//! Deleted IPInstances: their finalizer is removed once no pod uses the address. The address is
//! free once the object is gone.
//!
//! The garbage collector (after the pod or the StatefulSet) or a user may delete an IPInstance. In
//! each case its address is not allocated again before the bound pod has ended, and its sandbox
//! ([`super::held`]). hybridnet frees it
//! at once: if a StatefulSet is deleted while its pods run, other pods get their addresses.

use std::sync::Arc;

use kube::Api;
use trunkline_api::kube::IPInstanceObject;
use trunkline_api::names::finalizer::IP_ALLOCATED;

use super::decide::is_held;
use super::finalizer::{self, FinalizerRef};
use super::{Context, ReconcileResult};
use crate::cluster::Key;
use crate::state::ControllerState;

/// Removes the finalizer of a deleted IPInstance that no pod uses.
pub async fn reconcile(context: Context, key: Key) -> ReconcileResult {
    let (uid, place) = {
        let mut state = context.shared.lock();
        let ControllerState { cluster, term, .. } = &mut *state;
        let Some(row) = cluster.instance(&key) else { return Ok(()) };
        let Some(place) = row.finalizer else { return Ok(()) };
        let pod = row.pod_key(&key).and_then(|pod| cluster.pod(&pod));
        // The end of the pod is an event that queues this key again.
        if !row.deleting || is_held(row, pod) {
            return Ok(());
        }
        if let Some(node) = cluster.attached_node(row) {
            // The agent's report, or the end of the Node, queues this key again.
            term.iter_mut().for_each(|term| drop(term.held.insert(key.clone(), Arc::clone(node))));
            return Ok(());
        }
        (row.uid.clone(), place.into())
    };
    let api: Api<IPInstanceObject> = Api::namespaced(context.client.clone(), &key.namespace);
    finalizer::take_off(&context, &api, &key.name, FinalizerRef { uid: &uid, finalizer: IP_ALLOCATED, place })
        .await
}
