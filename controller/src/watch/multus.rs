//! The watch of Multus' NetworkAttachmentDefinitions.

use super::{Watched, key};
use crate::multus::{MultusNetwork, NetworkAttachmentDefinition};
use crate::state::ControllerState;

impl Watched for NetworkAttachmentDefinition {
    fn begin(state: &mut ControllerState) {
        state.cluster.multus.begin();
    }

    fn apply(self, state: &mut ControllerState) {
        let key = key(&self.metadata, state);
        state.set_multus(&key, MultusNetwork::read(&self.spec.config));
    }

    fn remove(self, state: &mut ControllerState) {
        let key = key(&self.metadata, state);
        state.cluster.multus.remove(&key);
    }

    fn end(state: &mut ControllerState) {
        for key in state.cluster.multus.end() {
            state.cluster.multus.remove(&key);
        }
    }
}
