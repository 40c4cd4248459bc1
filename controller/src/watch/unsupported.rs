//! The watch of NetworkPolicies: their metadata, which [`crate::unsupported`] reports.

use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::core::PartialObjectMeta;

use super::{Watched, key};
use crate::state::ControllerState;
use crate::unsupported::Feature;

impl Watched for PartialObjectMeta<NetworkPolicy> {
    fn begin(state: &mut ControllerState) {
        state.unsupported.begin(Feature::NetworkPolicy);
    }

    fn apply(self, state: &mut ControllerState) {
        let key = key(&self.metadata, state);
        let uid = self.metadata.uid.as_deref().unwrap_or_default();
        state.unsupported.set(Feature::NetworkPolicy, &key, uid);
    }

    fn remove(self, state: &mut ControllerState) {
        let key = key(&self.metadata, state);
        state.unsupported.remove(Feature::NetworkPolicy, &key);
    }

    fn end(state: &mut ControllerState) {
        state.unsupported.end(Feature::NetworkPolicy);
    }
}
