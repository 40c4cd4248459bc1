//! Status of Networks, and the quota of their nodes.

use std::sync::Arc;

use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use trunkline_api::kube::Lenient;
use trunkline_api::resources::{Count, NetworkSpec, NetworkStatus, NetworkType};

use super::{Context, ReconcileResult, finalizer, quota, record_fault, written};
use crate::ipam::{NetworkUsage, Usage};
use crate::state::ControllerState;

/// Updates a Network's status, and queues its nodes if its quota has changed.
pub async fn reconcile(context: Context, name: Arc<str>) -> ReconcileResult {
    record_fault::<NetworkSpec>(&context, &name);
    let (patch, network) = {
        let mut state = context.shared.lock();
        let Some(network) = state.cluster.network(&name).cloned() else { return Ok(()) };
        let Some(term) = &state.term else { return Ok(()) };
        let usage = term.ipam.network_usage(&name);
        let status = status(&mut state, &name, &usage);
        if network.network_type() == NetworkType::Underlay {
            label_nodes(&mut state, &name, &usage, &status.node_list);
        }
        ((network.status.as_ref() != Some(&status)).then(|| as_patch(&status)), network)
    };
    // The object in the answer may be unreadable.
    let api: Api<Lenient<NetworkSpec>> = Api::all(context.client.clone());
    if let Some(seen) = finalizer::of_metrics(&network.metadata) {
        return finalizer::take_off(&context, &api, &name, seen).await;
    }
    let Some(patch) = patch else { return Ok(()) };
    let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
    let answer = context.write(api.patch_status(&name, &parameters, &patch)).await;
    written(answer, || format!("the status of Network {name} was not written"))
}

/// Computes the status of a Network.
pub fn status(state: &mut ControllerState, name: &str, usage: &NetworkUsage) -> NetworkStatus {
    let node_list = state.members(name).to_vec();
    let cluster = &state.cluster;
    let there = |subnet: &&Arc<str>| {
        cluster.subnet(subnet).is_some_and(|subnet| subnet.metadata.deletion_timestamp.is_none())
    };
    let count = |usage: Usage| Count {
        total: usage.total.into(),
        used: usage.used.into(),
        available: usage.available.into(),
    };
    let text = |name: &Option<Arc<str>>| name.as_deref().unwrap_or_default().to_owned();
    NetworkStatus {
        last_allocated_subnet: text(&usage.last_v4_subnet),
        last_allocated_ipv6_subnet: text(&usage.last_v6_subnet),
        subnet_list: cluster.subnets_of(name).filter(there).map(ToString::to_string).collect(),
        node_list,
        statistics: Some(count(usage.v4)),
        ipv6_statistics: Some(count(usage.v6)),
        dual_stack_statistics: Some(count(usage.dual_stack)),
    }
}

/// A merge patch keeps fields that it does not name, so it must name the empty fields.
fn as_patch(status: &NetworkStatus) -> Value {
    let mut value = json!({ "status": status });
    if let Some(fields) = value.get_mut("status").and_then(Value::as_object_mut) {
        fields.entry("lastAllocatedIPv6Subnet").or_insert(Value::Null);
    }
    value
}

/// Queues the network's nodes if the values of their labels have changed.
fn label_nodes(state: &mut ControllerState, name: &Arc<str>, usage: &NetworkUsage, nodes: &[String]) {
    let now = quota::quota(usage);
    let Some(term) = &mut state.term else { return };
    if term.quotas.insert(Arc::clone(name), now) != Some(now) {
        for node in nodes {
            term.queues.nodes.add(node.as_str().into());
        }
    }
}
