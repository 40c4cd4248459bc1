//! Removal of one finalizer from an object, without the finalizers of others.
//!
//! Another client's finalizer (a backup's, an operator's) is a promise to that client: the object
//! must exist until the client has seen the deletion. A custom resource has no patch that removes a
//! value from a list, and a rewrite needs the whole list. So the patch names the position at which
//! the finalizer was seen. The API server first tests that the same object still has the finalizer
//! at this position. If not, the list has changed, and that change causes its own event.

use std::fmt::Debug;

use kube::api::{Patch, PatchParams};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;
use trunkline_api::names::finalizer::METRICS_REGISTERED;
use trunkline_api::resources::ObjectMeta as Metadata;

use super::{Context, ReconcileResult, WriteError, written};

/// A finalizer and its observed position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinalizerRef<'a> {
    /// The object's UID.
    pub uid: &'a str,
    /// The finalizer.
    pub finalizer: &'a str,
    /// Its position in the object's list.
    pub place: usize,
}

/// hybridnet's finalizer on a Network or Subnet with a deletion timestamp. Trunkline sets none
/// there.
pub fn of_metrics(metadata: &Metadata) -> Option<FinalizerRef<'_>> {
    let place = metadata.finalizers.iter().position(|name| name == METRICS_REGISTERED)?;
    let going = metadata.deletion_timestamp.is_some();
    let uid = metadata.uid.as_deref()?;
    going.then_some(FinalizerRef { uid, finalizer: METRICS_REGISTERED, place })
}

/// Removes the finalizer from the object of this name.
pub(super) async fn take_off<K>(
    context: &Context,
    api: &Api<K>,
    name: &str,
    seen: FinalizerRef<'_>,
) -> ReconcileResult
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let request = async { api.patch(name, &PatchParams::default(), &patch(seen)?).await };
    match context.write(request).await {
        Err(error) if is_elsewhere(&error) => Ok(()),
        // The answer contains the object's last state. Only the watch reports the deletion.
        answer => written(answer, || {
            format!("the finalizer {} of {} {name} was not removed", seen.finalizer, K::kind(&()))
        }),
    }
}

fn patch(seen: FinalizerRef<'_>) -> kube::Result<Patch<()>> {
    let at = format!("/metadata/finalizers/{}", seen.place);
    let steps = json!([
        {"op": "test", "path": "/metadata/uid", "value": seen.uid},
        {"op": "test", "path": at, "value": seen.finalizer},
        {"op": "remove", "path": at},
    ]);
    serde_json::from_value(steps).map(Patch::Json).map_err(kube::Error::SerdeError)
}

/// Whether a test in the patch failed: the object was changed meanwhile, and the change causes its
/// own event.
fn is_elsewhere(error: &WriteError) -> bool {
    matches!(error, WriteError::Refused(status) if status.code == 422)
}
