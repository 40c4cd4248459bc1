//! Statuses of claims: the nodes that advertise the address. NodeServices of deleted nodes.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use serde_json::json;
use trunkline_api::kube::{Lenient, ServiceAddressObject};
use trunkline_api::names::condition::ADVERTISED;
use trunkline_api::resources::{Condition, ConditionStatus, NodeServicesSpec, ServiceAddressStatus};

use super::ServiceState;
use super::reconcile::learn;
use super::rows::ClaimRow;
use crate::ipam::instance_name;
use crate::reconcile::{Context, ReconcileError, ReconcileResult, written};

/// Whether an address is advertised, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advertisement {
    /// At least one node advertises it.
    Advertised,
    /// No Service of the address has an endpoint that serves.
    NoEndpoint,
    /// An endpoint serves, and no node advertises it.
    NoNode,
    /// The lists of some nodes end before this address.
    NotListed,
}

impl ServiceState {
    /// Whether an address with a claim is advertised. None while this is not known, and for L2
    /// pools, whose addresses are not advertised.
    pub(super) fn advertisement(&self, address: IpAddr, claim: &ClaimRow) -> Option<Advertisement> {
        if !self.has_reports() || self.is_l2(claim) {
            return None;
        }
        let serves = |key| self.endpoints.has(key, address.is_ipv6());
        Some(if self.advertised.count(address) > 0 {
            Advertisement::Advertised
        } else if !claim.services.iter().any(|service| serves(&service.key)) {
            Advertisement::NoEndpoint
        } else if self.advertised.is_complete(address) {
            Advertisement::NoNode
        } else {
            Advertisement::NotListed
        })
    }

    /// Whether nodes and endpoints are known. Without any NodeServices the agents write none: they
    /// have an earlier version, or not the right.
    pub(super) fn has_reports(&self) -> bool {
        let listed = self.advertised.nodes.is_listed() && self.endpoints.slices.is_listed();
        listed && !self.advertised.nodes.is_empty()
    }

    fn is_l2(&self, claim: &ClaimRow) -> bool {
        self.rows.pools.get(&claim.pool).is_some_and(|pool| pool.settings.l2_network.is_some())
    }

    /// The status of a claim; none if it stays as it is.
    fn claim_status(
        &self,
        address: IpAddr,
        claim: &ClaimRow,
        now: Timestamp,
    ) -> Option<ServiceAddressStatus> {
        let advertisement = self.advertisement(address, claim)?;
        let services = || {
            let names: Vec<String> = claim.services.iter().map(|service| service.key.to_string()).collect();
            names.join(", ")
        };
        let (status, reason, message) = match advertisement {
            Advertisement::Advertised => (ConditionStatus::True, "NodesAdvertise", String::new()),
            Advertisement::NoEndpoint => (
                ConditionStatus::False,
                "NoEndpoint",
                format!("no endpoint of {} is ready: look at its selector and its pods", services()),
            ),
            Advertisement::NoNode => (
                ConditionStatus::False,
                "NoNode",
                format!(
                    "no node advertises the address: `trunkline services {}` on a node shows the reason",
                    claim.services.first().map(|service| service.key.to_string()).unwrap_or_default()
                ),
            ),
            Advertisement::NotListed => (
                ConditionStatus::Unknown,
                "NotListed",
                "a node advertises more addresses than its NodeServices lists: `trunkline services` on \
                 the node shows all"
                    .to_owned(),
            ),
        };
        let before = claim.status.iter().flat_map(|status| &status.conditions);
        let same = before.filter(|one| one.condition_type == ADVERTISED).find(|one| one.status == status);
        let condition = Condition {
            condition_type: ADVERTISED.to_owned(),
            status,
            reason: reason.to_owned(),
            message,
            last_transition_time: same.map_or_else(
                || now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
                |same| same.last_transition_time.clone(),
            ),
            observed_generation: None,
        };
        let status = ServiceAddressStatus {
            nodes: self.advertised.count(address).into(),
            conditions: vec![condition],
        };
        (claim.status.as_ref() != Some(&status)).then_some(status)
    }
}

/// Updates the status of a claim.
pub async fn reconcile(context: Context, address: IpAddr) -> ReconcileResult {
    let found = {
        let state = context.shared.lock();
        let services = &state.services;
        let claim = services.rows.claims.get(&address).filter(|claim| claim.readable);
        claim.and_then(|claim| {
            let status = services.claim_status(address, claim, Timestamp::now())?;
            Some((status, Arc::clone(&claim.uid)))
        })
    };
    let Some((status, uid)) = found else { return Ok(()) };
    let api: Api<ServiceAddressObject> = Api::all(context.client.clone());
    let name = instance_name(address);
    let patch = Patch::Merge(json!({ "metadata": { "uid": &*uid }, "status": status }));
    let answer = context.write(api.patch_status(&name, &PatchParams::default(), &patch)).await;
    if let Ok(object) = &answer {
        learn(&context, object);
    }
    written(answer, || format!("the status of ServiceAddress {name} was not written"))
}

/// Deletes the NodeServices of a node that is gone.
pub async fn remove_node_services(context: Context, name: Arc<str>) -> ReconcileResult {
    let found = {
        let state = context.shared.lock();
        let row = state.services.advertised.nodes.get(&name);
        row.filter(|_| state.cluster.node(&name).is_none()).map(|row| row.uid.to_string())
    };
    let Some(uid) = found else { return Ok(()) };
    let failed = |source| ReconcileError::Request {
        what: format!("the node {name} is gone, but its NodeServices was not deleted"),
        source,
    };
    // The agent of a new node may write before this replica's watch shows the Node.
    let nodes: Api<Node> = Api::all(context.client.clone());
    let only = ListParams::default().fields(&format!("metadata.name={name}")).limit(1);
    if !context.write(nodes.list_metadata(&only)).await.map_err(failed)?.items.is_empty() {
        return Ok(());
    }
    let api: Api<Lenient<NodeServicesSpec>> = Api::all(context.client.clone());
    let preconditions = Preconditions { uid: Some(uid), resource_version: None };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    let answer = context.write(api.delete(&name, &parameters)).await;
    if answer.is_ok() {
        tracing::info!(node = &*name, "the node is gone, and its NodeServices was deleted");
    }
    written(answer, || format!("the node {name} is gone, but its NodeServices was not deleted"))
}

#[cfg(test)]
#[path = "claim_tests.rs"]
mod tests;
