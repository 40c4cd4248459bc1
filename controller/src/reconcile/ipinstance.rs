//! IPInstances that were deleted: the finalizer goes once nobody uses the address, and the address is free once the object is gone.
//!
//! Whoever deletes an IPInstance (the garbage collector after the pod or the StatefulSet, a user), the address is not given to anybody
//! else before the pod that it is bound to has ended. hybridnet frees it at once, and a StatefulSet that is deleted with its pods still
//! running gives their addresses to others.

use kube::Api;
use trunkline_api::kube::IPInstanceObject;
use trunkline_api::names::finalizer::IP_ALLOCATED;

use super::Context;
use super::decide::is_held;
use super::finalizer::{self, Seen};
use crate::cluster::Key;
use crate::queue::Outcome;

/// Lets an IPInstance go that was deleted and that nobody uses.
pub async fn reconcile(context: Context, key: Key) -> Outcome {
    let (uid, place) = {
        let books = context.shared.lock();
        let Some(row) = books.cluster.instance(&key) else { return Outcome::Done };
        let Some(place) = row.finalizer else { return Outcome::Done };
        let pod = row.pod_key(&key).and_then(|pod| books.cluster.pod(&pod));
        // The end of the pod is an event that brings it here again.
        if !row.deleting || is_held(row, pod) {
            return Outcome::Done;
        }
        (row.uid.clone(), place.into())
    };
    let api: Api<IPInstanceObject> = Api::namespaced(context.client.clone(), &key.namespace);
    finalizer::take_off(&context, &api, &key.name, Seen { uid: &uid, finalizer: IP_ALLOCATED, place }).await
}
