//! The admission rules: pure functions of an object, the object that it replaces, and [`Facts`]
//! about the cluster.
//!
//! [`trunkline_api::validate`] has the rules for one object and for a set; the agent applies them
//! to files too. This module has the rules that only an API server needs: objects arrive one by
//! one, replace each other, and may still be in use when they are deleted. A rule treats the object
//! as the last one of its set. So if two objects exclude each other, the newer one is refused.
//!
//! An update is refused for faults that it introduces, never for faults that existed before. A user
//! who repairs one field of an old object, or removes its finalizer, need not repair other fields
//! first (as with the API server's own schemas).
//!
//! **Facts may be stale.** Facts about Networks, Subnets and IPInstances are read from the API
//! server for each request, so they are current at that moment. This costs little, because such
//! requests are rare. No webhook can see another request of the same moment: two Overlay networks,
//! or two overlapping Subnets, that are created together are both admitted. The controller limits
//! the harm: it uses the object that it saw first. Only the creation of an IPInstance allocates an
//! address.

pub mod agent_settings;
pub mod anycast;
pub mod ipinstance;
pub mod network;
pub mod nodeinfo;
mod overlaps;
pub mod pod;
pub mod remote_subnet;
pub mod service_advertisement;
pub mod service_pool;
pub mod subnet;

use std::collections::BTreeMap;
use std::net::IpAddr;

use trunkline_api::resources::{AgentSettings, IPInstance, Network, ServiceAddress, ServicePool, Subnet};
use trunkline_api::validate::Fault;

use self::remote_subnet::RemotePrefix;

/// Whether an object is admitted.
pub type RuleResult = Result<(), Vec<Fault>>;

/// Cluster data for a rule. Each rule documents what it needs; the rest is empty.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Networks.
    pub networks: Vec<Network>,
    /// Subnets.
    pub subnets: Vec<Subnet>,
    /// Nodes.
    pub nodes: Vec<Node>,
    /// IPInstances.
    pub instances: Vec<IPInstance>,
    /// ServicePools; none if the API server does not have the kind.
    pub service_pools: Vec<ServicePool>,
    /// AgentSettings.
    pub agent_settings: Vec<AgentSettings>,
    /// ServiceAddresses.
    pub claims: Vec<ServiceAddress>,
    /// The Nodes with their addresses.
    pub addressed_nodes: Vec<(String, Vec<IpAddr>)>,
    /// The addresses of one Node; none if the Node does not exist.
    pub node_addresses: Option<Vec<IpAddr>>,
    /// RemoteSubnets; none if the API server does not have the kind.
    pub remote_subnets: Vec<RemotePrefix>,
    /// Number of RemoteClusters (`multicluster.alibaba.com`).
    pub remote_clusters: usize,
}

/// The name and the labels of a node, for the node selectors of Networks.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

fn verdict(found: Vec<Fault>) -> RuleResult {
    if found.is_empty() { Ok(()) } else { Err(found) }
}

/// The faults of one object among those of a set.
fn of(kind: &str, name: &str, verdict: RuleResult) -> Vec<Fault> {
    let mut found = verdict.err().unwrap_or_default();
    found.retain(|fault| fault.kind == kind && fault.name == name);
    found
}

/// The faults that are new.
fn introduced(before: &[Fault], mut now: Vec<Fault>) -> Vec<Fault> {
    now.retain(|fault| !before.contains(fault));
    now
}

/// The fault of a refused deletion.
fn still_used(kind: &'static str, name: &str, message: String) -> Fault {
    Fault { kind, name: name.to_owned(), field: "deletion".to_owned(), message }
}

/// Joins the first few names.
fn some(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{shown} and more") } else { shown }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A Network with this `spec`.
    pub(crate) fn network(name: &str, spec: Value) -> Network {
        serde_json::from_value(json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": "Network", "metadata": {"name": name}, "spec": spec,
        }))
        .unwrap()
    }

    /// A Subnet with this `spec`.
    pub(crate) fn subnet(name: &str, spec: Value) -> Subnet {
        serde_json::from_value(json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": "Subnet", "metadata": {"name": name}, "spec": spec,
        }))
        .unwrap()
    }

    /// An IPInstance of a pod.
    pub(crate) fn instance(ip: &str, network: &str, subnet: &str, pod: &str, node: &str) -> IPInstance {
        let version = if ip.contains(':') { "6" } else { "4" };
        serde_json::from_value(json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": "IPInstance",
            "metadata": {"name": ip.split('/').next().unwrap().replace(['.', ':'], "-"), "namespace": "default"},
            "spec": {
                "network": network, "subnet": subnet,
                "address": {"version": version, "ip": ip, "mac": "02:12:34:00:00:01"},
                "binding": {"nodeName": node, "podName": pod},
            },
        }))
        .unwrap()
    }

    /// Asserts that the result is a refusal with this text, or an acceptance if the text is empty.
    #[track_caller]
    pub(crate) fn expect(case: &str, verdict: RuleResult, refusal: &str) {
        match (verdict, refusal) {
            (Ok(()), "") => {}
            (Ok(()), _) => panic!("{case}: admitted, but the text `{refusal}` was expected"),
            (Err(found), refusal) => {
                let text = found.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                assert!(!refusal.is_empty(), "{case}: refused: {text}");
                assert!(text.contains(refusal), "{case}: no `{refusal}` in: {text}");
            }
        }
    }
}
