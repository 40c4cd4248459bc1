//! The admission rules: pure functions of an object, the object that it replaces, and [`Facts`] about the cluster.
//!
//! What one object or a set of them must keep is [`trunkline_api::validate`]'s, which the agent applies to files too; here is what only an API
//! server has: objects that come one by one and replace each other, and others that still use what is to be deleted. An object is
//! judged as the last of the set that it joins, so that of two which exclude each other it is the newcomer that is refused.
//!
//! An update is refused for what it makes wrong, never for what was wrong before it: somebody who repairs one field of an old object, or takes
//! a finalizer off it, must not have to repair another first (the API server treats its own schemas so too).
//!
//! **Facts may be behind.** Those about Networks, Subnets and IPInstances are read from the API server for each request (rules of
//! resources are asked rarely), so they are as new as etcd. What no webhook can see is another request of the same
//! moment: two Overlay networks, or two overlapping Subnets, created together both pass. The controller keeps what that could
//! harm: it serves the one it saw first, and an address is given by creating its IPInstance.

pub mod ipinstance;
pub mod network;
pub mod nodeinfo;
pub mod pod;
pub mod subnet;

use std::collections::BTreeMap;
use std::net::IpAddr;

use trunkline_api::resources::{IPInstance, Network, Subnet};
use trunkline_api::validate::Fault;

/// Whether an object may be what it is about to be.
pub type Verdict = Result<(), Vec<Fault>>;

/// What a rule reads of the cluster; each rule says what it needs, and the rest is left empty.
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
    /// The addresses of one Node; none if there is no such Node.
    pub node_addresses: Option<Vec<IpAddr>>,
    /// How many RemoteClusters (`multicluster.alibaba.com`) there are.
    pub remote_clusters: usize,
}

/// A node as far as Networks select it.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

fn verdict(found: Vec<Fault>) -> Verdict {
    if found.is_empty() { Ok(()) } else { Err(found) }
}

/// The faults of one object among those of a set.
fn of(kind: &str, name: &str, verdict: Verdict) -> Vec<Fault> {
    let mut found = verdict.err().unwrap_or_default();
    found.retain(|fault| fault.kind == kind && fault.name == name);
    found
}

/// What is wrong now and was not before.
fn introduced(before: &[Fault], mut now: Vec<Fault>) -> Vec<Fault> {
    now.retain(|fault| !before.contains(fault));
    now
}

/// A fault of a deletion.
fn still_used(kind: &'static str, name: &str, message: String) -> Fault {
    Fault { kind, name: name.to_owned(), field: "deletion".to_owned(), message }
}

/// The first few of many names.
fn some(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{shown} and more") } else { shown }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A Network of its `spec`.
    pub(crate) fn network(name: &str, spec: Value) -> Network {
        serde_json::from_value(json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": "Network", "metadata": {"name": name}, "spec": spec,
        }))
        .unwrap()
    }

    /// A Subnet of its `spec`.
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

    /// Asserts that a verdict is a refusal whose text has this in it, or an acceptance where that is empty.
    #[track_caller]
    pub(crate) fn expect(case: &str, verdict: Verdict, refusal: &str) {
        match (verdict, refusal) {
            (Ok(()), "") => {}
            (Ok(()), _) => panic!("{case}: accepted, and should be refused for `{refusal}`"),
            (Err(found), refusal) => {
                let text = found.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                assert!(!refusal.is_empty(), "{case}: refused: {text}");
                assert!(text.contains(refusal), "{case}: `{refusal}` is not in: {text}");
            }
        }
    }
}
