//! Status of Subnets.

use std::sync::Arc;

use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use trunkline_api::kube::Lenient;
use trunkline_api::resources::{SubnetSpec, SubnetStatus};

use super::{Context, ReconcileResult, finalizer, record_fault, written};
use crate::state::ControllerState;

/// Updates a Subnet's status.
pub async fn reconcile(context: Context, name: Arc<str>) -> ReconcileResult {
    record_fault::<SubnetSpec>(&context, &name);
    let (status, subnet) = {
        let state = context.shared.lock();
        let Some(subnet) = state.cluster.subnet(&name) else { return Ok(()) };
        let status = status(&state, &name).filter(|status| subnet.status.as_ref() != Some(status));
        (status, Arc::clone(subnet))
    };
    // The object in the answer may be unreadable.
    let api: Api<Lenient<SubnetSpec>> = Api::all(context.client.clone());
    // Only hybridnet sets this finalizer. Trunkline removes it at once, because a deleted subnet
    // has no metrics here.
    if let Some(seen) = finalizer::of_metrics(&subnet.metadata) {
        return finalizer::take_off(&context, &api, &name, seen).await;
    }
    let Some(status) = status else { return Ok(()) };
    let patch = json!({ "status": status });
    let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
    let answer = context.write(api.patch_status(&name, &parameters, &patch)).await;
    written(answer, || format!("the status of Subnet {name} was not written"))
}

/// Computes the status; `None` for a subnet that is not served.
pub fn status(state: &ControllerState, name: &str) -> Option<SubnetStatus> {
    let ipam = &state.term.as_ref()?.ipam;
    let usage = ipam.usage(name)?;
    Some(SubnetStatus {
        total: usage.total.into(),
        used: usage.used.into(),
        available: usage.available.into(),
        last_allocated_ip: ipam.last_allocated(name).map(|address| address.to_string()).unwrap_or_default(),
    })
}
