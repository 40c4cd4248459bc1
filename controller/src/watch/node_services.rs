//! Watches of NodeServices and EndpointSlices, which only the leader has.

use trunkline_api::kube::Lenient;
use trunkline_api::resources::NodeServicesSpec;

use super::{Watched, key, name, name_faults};
use crate::cluster::Key;
use crate::services::advertised::NodeServicesRow;
use crate::services::endpoints::{EndpointSlice, SliceRow};
use crate::state::ControllerState;

impl Watched for Lenient<NodeServicesSpec> {
    fn begin(state: &mut ControllerState) {
        state.services.advertised.nodes.begin();
    }

    fn apply(self, state: &mut ControllerState) {
        name_faults(&self);
        let name = name(kube::Resource::meta(&self), state);
        match &self.0 {
            Ok(object) => {
                let exists = state.cluster.node(&name).is_some();
                state.services.set_node_services(&name, Some(NodeServicesRow::of(object)), exists);
            }
            // The previous row stays in force.
            Err(_) => state.services.advertised.nodes.note(&name),
        }
    }

    fn remove(self, state: &mut ControllerState) {
        let name = name(kube::Resource::meta(&self), state);
        state.services.set_node_services(&name, None, true);
    }

    fn end(state: &mut ControllerState) {
        for name in state.services.advertised.nodes.end() {
            state.services.set_node_services(&name, None, true);
        }
        state.services.reports_changed();
    }
}

impl Watched for EndpointSlice {
    fn begin(state: &mut ControllerState) {
        state.services.endpoints.slices.begin();
    }

    fn apply(self, state: &mut ControllerState) {
        let key = key(&self.metadata, state);
        let row = SliceRow::of(&self, &key.namespace);
        set_slice(state, &key, row);
    }

    fn remove(self, state: &mut ControllerState) {
        let key = key(&self.metadata, state);
        set_slice(state, &key, None);
    }

    fn end(state: &mut ControllerState) {
        for key in state.services.endpoints.slices.end() {
            set_slice(state, &key, None);
        }
        state.services.reports_changed();
        state.remote.global_has_changed();
    }
}

fn set_slice(state: &mut ControllerState, key: &Key, row: Option<SliceRow>) {
    let services = state.services.set_slice(key, row);
    for service in &services {
        if state.remote.global.get(service).is_some() {
            state.remote.global_service_changed(service);
        }
    }
}
