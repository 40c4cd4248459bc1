//! Policies above the budget of all stored policies become stubs before the compiler stores them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Engine;
use crate::netpolicy::feed::PolicyObject;
use crate::netpolicy::input::{Change, ClusterPolicy, NetworkPolicy, ObjectKey};
use crate::netpolicy::kernel::PolicyRef;
use crate::netpolicy::stored::Surplus;

impl Engine {
    pub(super) fn admit_network(
        &mut self,
        change: Change<ObjectKey, PolicyObject<NetworkPolicy>>,
    ) -> Change<ObjectKey, PolicyObject<NetworkPolicy>> {
        let name = |object: &PolicyObject<NetworkPolicy>| PolicyRef::Network(object.policy.key.clone());
        match change {
            Change::Listed(mut all) => {
                let rows = all.iter().map(|object| (name(object), object.policy.weight()));
                let is_network = |policy: &PolicyRef| matches!(policy, PolicyRef::Network(_));
                let mut surplus = self.stored.set_list(is_network, rows);
                for object in &mut all {
                    if let Some(reason) = surplus.remove(&name(object)) {
                        object.policy = object.policy.stub();
                        object.faults.insert(0, reason.to_string());
                    }
                }
                self.stub_stored(surplus);
                Change::Listed(all)
            }
            Change::Applied(mut object) => {
                let policy = name(&object);
                let mut surplus = self.stored.set(&policy, object.policy.weight());
                if let Some(reason) = surplus.remove(&policy) {
                    object.policy = object.policy.stub();
                    object.faults.insert(0, reason.to_string());
                }
                self.stub_stored(surplus);
                Change::Applied(object)
            }
            Change::Deleted(key) => {
                self.stored.remove(&PolicyRef::Network(key.clone()));
                Change::Deleted(key)
            }
        }
    }

    pub(super) fn admit_cluster(
        &mut self,
        change: Change<Arc<str>, PolicyObject<ClusterPolicy>>,
    ) -> Change<Arc<str>, PolicyObject<ClusterPolicy>> {
        let name = |object: &PolicyObject<ClusterPolicy>| PolicyRef::Cluster(object.policy.name.clone());
        match change {
            Change::Listed(mut all) => {
                let rows = all.iter().map(|object| (name(object), object.policy.weight()));
                let is_cluster = |policy: &PolicyRef| matches!(policy, PolicyRef::Cluster(_));
                let mut surplus = self.stored.set_list(is_cluster, rows);
                for object in &mut all {
                    if let Some(reason) = surplus.remove(&name(object)) {
                        object.policy = object.policy.stub();
                        object.faults.insert(0, reason.to_string());
                    }
                }
                self.stub_stored(surplus);
                Change::Listed(all)
            }
            Change::Applied(mut object) => {
                let policy = name(&object);
                let mut surplus = self.stored.set(&policy, object.policy.weight());
                if let Some(reason) = surplus.remove(&policy) {
                    object.policy = object.policy.stub();
                    object.faults.insert(0, reason.to_string());
                }
                self.stub_stored(surplus);
                Change::Applied(object)
            }
            Change::Deleted(key) => {
                self.stored.remove(&PolicyRef::Cluster(key.clone()));
                Change::Deleted(key)
            }
        }
    }

    /// Replaces policies of the compiler by their stubs.
    fn stub_stored(&mut self, surplus: BTreeMap<PolicyRef, Surplus>) {
        for (policy, reason) in surplus {
            self.coverage.stub_pending(&policy);
            match &policy {
                PolicyRef::Network(key) => {
                    let there = self.compiler.network_policies().find(|there| there.key == *key);
                    if let Some(stub) = there.map(NetworkPolicy::stub) {
                        self.compiler.handle_network_policies(Change::Applied(stub));
                    }
                }
                PolicyRef::Cluster(name) => {
                    let there = self.compiler.cluster_policies().find(|there| there.name == *name);
                    if let Some(stub) = there.map(ClusterPolicy::stub) {
                        self.compiler.handle_cluster_policies(Change::Applied(stub));
                    }
                }
            }
            if let Some(facts) = self.policies.get_mut(&policy) {
                facts.faults.insert(0, reason.to_string());
            }
        }
    }
}
