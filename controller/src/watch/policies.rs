//! Watches of NetworkPolicies and ClusterNetworkPolicies, whose faults [`crate::policy_faults`]
//! reports.

use kube::core::ObjectMeta;
use trunkline_api::kube::{ClusterNetworkPolicyObject, NetworkPolicyObject};

use super::{Watched, key};
use crate::policy_faults::PolicyKind;
use crate::state::ControllerState;

impl Watched for NetworkPolicyObject {
    fn begin(state: &mut ControllerState) {
        state.policy_faults.begin(PolicyKind::Network);
    }

    fn apply(self, state: &mut ControllerState) {
        apply(PolicyKind::Network, &self.metadata, &self.read().fault_texts(), state);
    }

    fn remove(self, state: &mut ControllerState) {
        let key = key(&self.metadata, state);
        state.policy_faults.remove(PolicyKind::Network, &key);
    }

    fn end(state: &mut ControllerState) {
        state.policy_faults.end(PolicyKind::Network);
    }
}

impl Watched for ClusterNetworkPolicyObject {
    fn begin(state: &mut ControllerState) {
        state.policy_faults.begin(PolicyKind::Cluster);
    }

    fn apply(self, state: &mut ControllerState) {
        apply(PolicyKind::Cluster, &self.metadata, &self.read().fault_texts(), state);
    }

    fn remove(self, state: &mut ControllerState) {
        let key = key(&self.metadata, state);
        state.policy_faults.remove(PolicyKind::Cluster, &key);
    }

    fn end(state: &mut ControllerState) {
        state.policy_faults.end(PolicyKind::Cluster);
    }
}

fn apply(kind: PolicyKind, metadata: &ObjectMeta, faults: &[String], state: &mut ControllerState) {
    let key = key(metadata, state);
    state.policy_faults.set(kind, &key, metadata.uid.as_deref().unwrap_or_default(), faults);
}
