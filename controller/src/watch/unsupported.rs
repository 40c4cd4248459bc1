//! Watches of kinds without an implementation: their metadata, which [`crate::unsupported`] reports.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::core::PartialObjectMeta;
use trunkline_api::pod::is_global_service;

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

impl Watched for PartialObjectMeta<Service> {
    fn begin(state: &mut ControllerState) {
        state.unsupported.begin(Feature::GlobalService);
    }

    fn apply(self, state: &mut ControllerState) {
        let key = key(&self.metadata, state);
        if self.metadata.annotations.as_ref().is_some_and(is_global_service) {
            let uid = self.metadata.uid.as_deref().unwrap_or_default();
            state.unsupported.set(Feature::GlobalService, &key, uid);
        } else {
            state.unsupported.remove(Feature::GlobalService, &key);
        }
    }

    fn remove(self, state: &mut ControllerState) {
        let key = key(&self.metadata, state);
        state.unsupported.remove(Feature::GlobalService, &key);
    }

    fn end(state: &mut ControllerState) {
        state.unsupported.end(Feature::GlobalService);
    }
}
