//! IPInstances of virtual machines that leave this node in a live migration, or have left it.
//!
//! From its begin the labels of the IPInstance have the target's node, so this node's own watch loses
//! it. The label [`MIGRATION_SOURCE`](trunkline_api::names::label::MIGRATION_SOURCE) selects it for a
//! watch of its own. The label stays after the live migration, so an agent that was down during it
//! learns its end too.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use kube::ResourceExt;
use trunkline_api::kube::Lenient;
use trunkline_api::names::annotation;
use trunkline_api::resources::{IPInstance, IPInstanceSpec};

use super::cluster::Cluster;
use super::instances::{ObjectName, arrived_at, migration_target};
use super::watch::Change;
use crate::ipam::PodName;

/// The used fields of one IPInstance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The address.
    pub address: IpAddr,
    /// The pod in the binding.
    pub pod: PodName,
    /// Whether a live migration is under way.
    pub moves: bool,
    /// Whether the target's agent reports that the virtual machine runs there.
    pub arrived: bool,
    /// The node of the target; after the live migration, the node in the binding.
    pub target_node: Option<String>,
}

/// The IPInstances by namespace and name.
pub type Departures = BTreeMap<ObjectName, Departure>;

impl Departure {
    /// Reads an IPInstance; `None` during its deletion, or if it cannot be read.
    fn read(instance: &IPInstance) -> Option<Departure> {
        let binding = &instance.spec.binding;
        let prefix: IpNet = instance.spec.address.ip.parse().ok()?;
        let moves = instance.metadata.annotations.contains_key(annotation::MIGRATION_TARGET);
        let target_node = match moves {
            true => migration_target(instance).map(|target| target.node_name),
            false => Some(binding.node_name.clone()).filter(|node| !node.is_empty()),
        };
        instance.metadata.deletion_timestamp.is_none().then(|| Departure {
            address: prefix.addr(),
            pod: PodName {
                namespace: instance.metadata.namespace.clone().unwrap_or_default(),
                name: binding.pod_name.clone(),
                uid: binding.pod_uid.clone(),
            },
            moves,
            arrived: arrived_at(instance).is_some(),
            target_node,
        })
    }
}

/// Applies a change of the watch.
pub(super) fn take(cluster: &Cluster, change: Change<Lenient<IPInstanceSpec>>) {
    let read = |object: Lenient<IPInstanceSpec>| {
        let name = (object.namespace().unwrap_or_default(), object.name_any());
        (name, object.0.ok().and_then(|object| Departure::read(&IPInstance::from(object))))
    };
    match change {
        Change::Listed(objects) => {
            let listed = objects.into_iter().map(read);
            let listed: Departures = listed.filter_map(|(name, row)| Some((name, row?))).collect();
            cluster.update(|state| {
                state.departures = listed;
                state.listed.departures = true;
            });
        }
        Change::Applied(object) => {
            let (name, row) = read(object);
            cluster.update(|state| match row {
                Some(row) => drop(state.departures.insert(name, row)),
                None => drop(state.departures.remove(&name)),
            });
        }
        Change::Deleted(object) => cluster.update(|state| drop(state.departures.remove(&read(object).0))),
        Change::Page { .. } | Change::Failing(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn target_node_is_the_annotations_and_then_the_bindings() {
        let read = |annotations: serde_json::Value, label: &str, bound: &str| {
            let instance = json!({
                "apiVersion": "networking.alibaba.com/v1", "kind": "IPInstance",
                "metadata": {
                    "name": "a", "namespace": "shop", "annotations": annotations,
                    "labels": {"networking.alibaba.com/node": label},
                },
                "spec": {
                    "network": "rack1", "subnet": "s",
                    "address": {"version": "4", "ip": "10.0.0.7/24", "mac": "02:00:00:00:00:01"},
                    "binding": {"nodeName": bound, "podName": "p", "podUID": "u"},
                },
            });
            Departure::read(&serde_json::from_value(instance).unwrap()).unwrap().target_node
        };
        let target = r#"{"nodeName": "n2", "podName": "target", "podUID": "v"}"#;
        let moving = || json!({annotation::MIGRATION_TARGET: target});
        assert_eq!(read(moving(), "n2", "n1").as_deref(), Some("n2"));
        assert_eq!(read(moving(), "n3", "n1"), None, "the label has another node");
        assert_eq!(read(json!({}), "n2", "n2").as_deref(), Some("n2"), "the live migration has ended");
        assert_eq!(read(json!({}), "n2", ""), None, "the address is retained");
    }
}
