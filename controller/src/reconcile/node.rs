//! Nodes: labels with their networks and the networks' quotas, and the condition of a node without
//! a network.
//!
//! A node without a network cannot allocate an address to any pod. Its condition NetworkUnavailable
//! becomes true. Kubernetes turns this into the taint `node.kubernetes.io/network-unavailable`,
//! which keeps pods away. Once the node is in a network, the controller clears the condition if its
//! reason is still the controller's. Everything else about the condition belongs to the agent,
//! which checks the node's network.
//!
//! A NodeInfo belongs to the agent of its node. When the node is gone, the leader deletes its
//! NodeInfo.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Map, Value, json};
use trunkline_api::kube::NodeInfoObject;
use trunkline_api::names::condition::{NETWORK_UNAVAILABLE, NO_NETWORK};
use trunkline_api::names::{ATTACHED, label};
use trunkline_api::resources::NetworkType;

use super::quota::{self, quota};
use super::{Context, ReconcileError, ReconcileResult, is_gone, reference, written};
use crate::cluster::NodeRow;
use crate::events::reason;
use crate::state::ControllerState;

/// Changes to write to a node.
#[derive(Debug, PartialEq)]
pub struct Changes {
    /// Labels with their new values; `null` removes one.
    pub labels: Map<String, Value>,
    /// The new condition, if it changes: whether the network is unavailable.
    pub unavailable: Option<bool>,
}

/// Updates a node's labels and condition.
pub async fn reconcile(context: Context, name: Arc<str>) -> ReconcileResult {
    let found = {
        let state = context.shared.lock();
        state.cluster.node(&name).map(|node| (changes(&state, node), Arc::clone(&node.uid)))
    };
    let Some((changes, uid)) = found else { return remove_node_info(&context, &name).await };
    let api: Api<Node> = Api::all(context.client.clone());
    let parameters = PatchParams::default();
    if !changes.labels.is_empty() {
        let patch = json!({"metadata": {"uid": &*uid, "labels": changes.labels}});
        match context.write(api.patch(&name, &parameters, &Patch::Merge(patch))).await {
            Ok(_) => {}
            Err(error) if is_gone(&error) => return Ok(()),
            Err(source) => {
                let what = format!("the labels of node {name} were not written");
                return Err(ReconcileError::Request { what, source });
            }
        }
    }
    let Some(unavailable) = changes.unavailable else { return Ok(()) };
    let text = if unavailable {
        "no Network selects this node: label it for an Underlay Network, or create an Overlay \
         Network"
    } else {
        "the node is in a Network"
    };
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = json!({
        "type": NETWORK_UNAVAILABLE,
        "status": if unavailable { "True" } else { "False" },
        "reason": if unavailable { NO_NETWORK } else { "NetworkAttached" },
        "message": text, "lastTransitionTime": now, "lastHeartbeatTime": now,
    });
    let patch = json!({"metadata": {"uid": &*uid}, "status": {"conditions": [condition]}});
    let answer = context.write(api.patch_status(&name, &parameters, &Patch::Strategic(patch))).await;
    if answer.is_ok() {
        // In an event on a node, the UID is the node's name, so that kubectl describe finds the
        // event.
        let about = reference("Node", "v1", None, &name, &name);
        match unavailable {
            true => context.events.warning(about, reason::NODE_NETWORK, text.to_owned()),
            false => context.events.normal(about, reason::NODE_NETWORK, text.to_owned()),
        }
    }
    written(answer, || format!("the condition of node {name} was not written"))
}

/// Computes the changes to a node.
pub fn changes(state: &ControllerState, node: &NodeRow) -> Changes {
    let cluster = &state.cluster;
    let underlay = cluster.underlay_of(node);
    let overlay = cluster.network_of_type(NetworkType::Overlay).is_some();
    let left =
        underlay.and_then(|network| Some(quota(&state.term.as_ref()?.ipam.network_usage(network.name()))));
    let attached = |attached: bool| attached.then_some(ATTACHED);
    let attachments = [
        (label::UNDERLAY_NETWORK_ATTACHMENT, attached(underlay.is_some())),
        (label::OVERLAY_NETWORK_ATTACHMENT, attached(overlay)),
        (label::BGP_NETWORK_ATTACHMENT, attached(cluster.is_bgp_attached(node))),
    ];
    let wanted = attachments.into_iter().chain(quota::labels(left));
    let labels = wanted
        .filter(|(name, value)| node.labels.get(*name).map(String::as_str) != *value)
        .map(|(name, value)| (name.to_owned(), value.map_or(Value::Null, Value::from)));
    let is_in_none = underlay.is_none() && !overlay;
    let unavailable = match &node.unavailable {
        Some((true, why)) if &**why == NO_NETWORK => (!is_in_none).then_some(false),
        Some((true, _)) => None,
        _ => is_in_none.then_some(true),
    };
    Changes { labels: labels.collect(), unavailable }
}

async fn remove_node_info(context: &Context, name: &str) -> ReconcileResult {
    let api: Api<NodeInfoObject> = Api::all(context.client.clone());
    let answer = context.write(api.delete(name, &DeleteParams::default())).await;
    if answer.is_ok() {
        tracing::info!(node = name, "the node is gone, and its NodeInfo was deleted");
    }
    written(answer, || format!("the node {name} is gone, but its NodeInfo was not deleted"))
}
