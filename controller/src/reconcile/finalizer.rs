//! Taking one finalizer off an object, and leaving those of others.
//!
//! A stranger's finalizer (a backup's, an operator's) is a promise to that stranger: the object is not to go before it has seen it. A custom resource
//! has no patch that takes a value out of a list, and to write the list anew needs the whole of it. So the patch names the place where
//! the finalizer was seen, and the API server tests first that it still is there, in the same object. If not, the list is another one by now,
//! which is an event of its own.

use std::fmt::Debug;

use kube::api::{Patch, PatchParams};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;
use trunkline_api::names::finalizer::METRICS_REGISTERED;
use trunkline_api::resources::ObjectMeta as Metadata;

use super::{Context, WriteError, is_gone};
use crate::queue::Outcome;

/// A finalizer where it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen<'a> {
    /// The object's UID.
    pub uid: &'a str,
    /// The finalizer.
    pub finalizer: &'a str,
    /// Its place in the object's list.
    pub place: usize,
}

/// hybridnet's finalizer of Networks and Subnets, on one that is being deleted: Trunkline sets none there.
pub fn of_metrics(metadata: &Metadata) -> Option<Seen<'_>> {
    let place = metadata.finalizers.iter().position(|name| name == METRICS_REGISTERED)?;
    let going = metadata.deletion_timestamp.is_some();
    let uid = metadata.uid.as_deref()?;
    going.then_some(Seen { uid, finalizer: METRICS_REGISTERED, place })
}

/// Takes the finalizer off the object of this name.
pub(super) async fn take_off<K>(context: &Context, api: &Api<K>, name: &str, seen: Seen<'_>) -> Outcome
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let request = async { api.patch(name, &PatchParams::default(), &patch(seen)?).await };
    match context.write(request).await {
        // That the object is gone is for the watch to say: the answer to this is its last state, not its end.
        Ok(_) => Outcome::Done,
        Err(error) if is_gone(&error) || is_elsewhere(&error) => Outcome::Done,
        Err(error) => {
            tracing::warn!(kind = %K::kind(&()), name, %error, "the finalizer {} was not taken off", seen.finalizer);
            Outcome::Failed
        }
    }
}

fn patch(seen: Seen<'_>) -> kube::Result<Patch<()>> {
    let at = format!("/metadata/finalizers/{}", seen.place);
    let steps = json!([
        {"op": "test", "path": "/metadata/uid", "value": seen.uid},
        {"op": "test", "path": at, "value": seen.finalizer},
        {"op": "remove", "path": at},
    ]);
    serde_json::from_value(steps).map(Patch::Json).map_err(kube::Error::SerdeError)
}

/// Whether a test of the patch failed: the object was written since it was seen, and what was written is looked at as such.
fn is_elsewhere(error: &WriteError) -> bool {
    matches!(error, WriteError::Refused(status) if status.code == 422)
}
