//! IPInstances that were deleted: the finalizer goes once nobody uses the address, and the address is free once the object is gone.
//!
//! Whoever deletes an IPInstance (the garbage collector after the pod or the StatefulSet, a user), the address is not given to anybody
//! else before the pod that it is bound to has ended. hybridnet frees it at once, and a StatefulSet that is deleted with its pods still
//! running gives their addresses to others.

use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use trunkline_api::kube::IPInstanceObject;

use super::decide::is_held;
use super::{Context, is_gone};
use crate::cluster::Key;
use crate::queue::Outcome;

/// Lets an IPInstance go that was deleted and that nobody uses.
pub async fn reconcile(context: Context, key: Key) -> Outcome {
    let uid = {
        let books = context.shared.lock();
        let Some(row) = books.cluster.instance(&key) else { return Outcome::Done };
        let pod = row.pod_key(&key).and_then(|pod| books.cluster.pod(&pod));
        // The end of the pod is an event that brings it here again.
        if !row.deleting || !row.finalizer || is_held(row, pod) {
            return Outcome::Done;
        }
        row.uid.clone()
    };
    let api: Api<IPInstanceObject> = Api::namespaced(context.client.clone(), &key.namespace);
    let patch = json!({"metadata": {"uid": &*uid, "finalizers": null}});
    match context.write(api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch))).await {
        // That it is gone is for the watch to say: the answer to this is its last state, not its end.
        Ok(_) => Outcome::Done,
        Err(error) if is_gone(&error) => Outcome::Done,
        Err(error) => {
            tracing::warn!(ipinstance = %key, %error, "the finalizer was not taken off");
            Outcome::Failed
        }
    }
}
