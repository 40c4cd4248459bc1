//! Deleted IPInstances: their finalizer is removed once no pod uses the address. The address is
//! free once the object is gone.
//!
//! The garbage collector (after the pod or the StatefulSet) or a user may delete an IPInstance. In
//! each case its address is not allocated again before the bound pod has ended. hybridnet frees it
//! at once: if a StatefulSet is deleted while its pods run, other pods get their addresses.

use kube::Api;
use trunkline_api::kube::IPInstanceObject;
use trunkline_api::names::finalizer::IP_ALLOCATED;

use super::decide::is_held;
use super::finalizer::{self, FinalizerRef};
use super::{Context, ReconcileResult};
use crate::cluster::Key;

/// Removes the finalizer of a deleted IPInstance that no pod uses.
pub async fn reconcile(context: Context, key: Key) -> ReconcileResult {
    let (uid, place) = {
        let state = context.shared.lock();
        let Some(row) = state.cluster.instance(&key) else { return Ok(()) };
        let Some(place) = row.finalizer else { return Ok(()) };
        let pod = row.pod_key(&key).and_then(|pod| state.cluster.pod(&pod));
        // The end of the pod is an event that queues this key again.
        if !row.deleting || is_held(row, pod) {
            return Ok(());
        }
        (row.uid.clone(), place.into())
    };
    let api: Api<IPInstanceObject> = Api::namespaced(context.client.clone(), &key.namespace);
    finalizer::take_off(&context, &api, &key.name, FinalizerRef { uid: &uid, finalizer: IP_ALLOCATED, place })
        .await
}
