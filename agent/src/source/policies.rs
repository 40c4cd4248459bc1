//! The objects of a folder of manifests for the policy task.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use trunkline_api::names::{POLICY_MODE_AUDIT, annotation, label};
use trunkline_api::network_policy::Read;
use trunkline_api::resources::ObjectMeta;

use crate::netpolicy::Labels;
use crate::netpolicy::PolicyRef;
use crate::netpolicy::feed::{PolicyInput, PolicyObject};
use crate::netpolicy::inbox::PolicyInputs;
use crate::netpolicy::input::{Change, ClusterPolicy, Namespace, NetworkPolicy};

/// The policies and Namespaces of a folder. They have no faults: a fault refuses the folder. Only a
/// policy above its bound does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyObjects {
    /// The NetworkPolicies.
    pub network: Vec<NetworkPolicy>,
    /// The ClusterNetworkPolicies.
    pub cluster: Vec<ClusterPolicy>,
    /// The Namespaces with a manifest, by name.
    pub namespaces: BTreeMap<Arc<str>, Namespace>,
}

impl PolicyObjects {
    /// Adds a Namespace with a manifest.
    pub fn add_namespace(&mut self, metadata: ObjectMeta) {
        let ObjectMeta { name, mut labels, annotations, .. } = metadata;
        // The API server adds this label.
        labels.insert(label::NAMESPACE_NAME.to_owned(), name.clone());
        let name: Arc<str> = name.into();
        let audit = annotations.get(annotation::POLICY_MODE).is_some_and(|mode| mode == POLICY_MODE_AUDIT);
        let namespace = Namespace { name: Arc::clone(&name), labels: Labels::from_iter(labels), audit };
        self.namespaces.insert(name, namespace);
    }

    /// The policies above their bound, with the effect and the fix.
    pub fn above_bound(&self) -> Vec<String> {
        fn faults<T>(name: &PolicyRef, read: Read<T>) -> Option<String> {
            read.above_bound.then(|| format!("{name}: {}", read.fault_texts().join("; ")))
        }
        let network = self.network.iter().filter_map(|policy| {
            faults(&PolicyRef::Network(policy.key.clone()), without_faults(policy.clone()).limit())
        });
        let cluster = self.cluster.iter().filter_map(|policy| {
            faults(&PolicyRef::Cluster(Arc::clone(&policy.name)), without_faults(policy.clone()).limit())
        });
        network.chain(cluster).collect()
    }

    /// The inputs of the policy task: one list of each kind. The Namespaces are those with a
    /// manifest and those of NetworkPolicies; for the Namespace of any other pod the task uses
    /// [`Namespace::without_manifest`]. Pods and their addresses come with attachments, so the
    /// other lists are empty.
    pub fn inputs(self) -> [PolicyInput; 5] {
        let PolicyObjects { network, cluster, mut namespaces } = self;
        let used: BTreeSet<Arc<str>> =
            network.iter().map(|policy| Arc::clone(&policy.key.namespace)).collect();
        for name in used {
            let without = Namespace::without_manifest(&name);
            namespaces.entry(name).or_insert(without);
        }
        [
            PolicyInput::Network(Change::Listed(
                network.into_iter().map(|policy| of_manifest(without_faults(policy).limit())).collect(),
            )),
            PolicyInput::Cluster(Change::Listed(
                cluster.into_iter().map(|policy| of_manifest(without_faults(policy).limit())).collect(),
            )),
            PolicyInput::Namespaces(Change::Listed(namespaces.into_values().collect())),
            PolicyInput::Pods(Change::Listed(Vec::new())),
            PolicyInput::Addresses(Change::Listed(Vec::new())),
        ]
    }

    /// Sends the inputs to the policy task. False: the task ended.
    pub async fn send(self, inputs: &PolicyInputs) -> bool {
        for input in self.inputs() {
            if inputs.send(input).await.is_err() {
                return false;
            }
        }
        true
    }
}

fn of_manifest<T>(read: Read<T>) -> PolicyObject<T> {
    PolicyObject {
        faults: read.fault_texts(),
        above_bound: read.above_bound,
        policy: read.object,
        generation: 0,
        uid: "".into(),
    }
}

fn without_faults<T>(object: T) -> Read<T> {
    Read { object, faults: Vec::new(), above_bound: false }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use trunkline_api::network_policy::{ObjectKey, read_network_policy};

    use super::*;

    #[test]
    fn a_manifest_above_the_bound_is_named_before_the_agent_runs() {
        let ports = |number: u16| {
            let ports: Vec<_> = (1..=number).map(|port| json!({"port": port})).collect();
            let name = ObjectKey::new("shop", &format!("ports-{number}"));
            read_network_policy(name, &json!({"podSelector": {}, "ingress": [{"ports": ports}]})).object
        };
        let policies = PolicyObjects { network: vec![ports(100), ports(20_001)], ..PolicyObjects::default() };
        let [text] = &policies.above_bound()[..] else { panic!() };
        assert!(text.starts_with("NetworkPolicy shop/ports-20001: spec: over the budget: "), "{text}");
        let [PolicyInput::Network(Change::Listed(listed)), ..] = &policies.inputs() else { panic!() };
        assert_eq!(listed.iter().map(|one| one.above_bound).collect::<Vec<_>>(), [false, true]);
    }
}
