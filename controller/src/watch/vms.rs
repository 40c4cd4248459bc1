//! Watches of KubeVirt's VirtualMachines, VirtualMachineInstances and live migrations.

use super::{Watched, key};
use crate::cluster::vm::{
    MigrationRow, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration, VmInstanceRow,
    VmRow,
};
use crate::state::ControllerState;

impl Watched for VirtualMachine {
    fn begin(state: &mut ControllerState) {
        state.cluster.vms.vms.begin();
    }

    fn apply(self, state: &mut ControllerState) {
        let key = key(&self.metadata, state);
        state.set_vm(&key, VmRow::of(&self));
    }

    fn remove(self, state: &mut ControllerState) {
        let key = key(&self.metadata, state);
        state.remove_vm(&key);
    }

    fn end(state: &mut ControllerState) {
        for key in state.cluster.vms.vms.end() {
            state.remove_vm(&key);
        }
        state.vms_listed();
    }

    // Without the kind it is unknown which virtual machines exist. An empty list would release all
    // addresses.
    fn missing(_: &mut ControllerState) {}
}

impl Watched for VirtualMachineInstance {
    fn begin(state: &mut ControllerState) {
        state.cluster.vms.no_instances = false;
        state.cluster.vms.instances.begin();
    }

    fn apply(self, state: &mut ControllerState) {
        let key = key(&self.metadata, state);
        let row = VmInstanceRow::of(&self, &mut state.cluster.interner);
        state.set_vm_instance(&key, row);
    }

    fn remove(self, state: &mut ControllerState) {
        let key = key(&self.metadata, state);
        state.remove_vm_instance(&key);
    }

    fn end(state: &mut ControllerState) {
        for key in state.cluster.vms.instances.end() {
            state.remove_vm_instance(&key);
        }
    }

    fn missing(state: &mut ControllerState) {
        state.cluster.vms.no_instances = true;
    }
}

impl Watched for VirtualMachineInstanceMigration {
    fn begin(state: &mut ControllerState) {
        state.cluster.vms.begin_migrations();
    }

    fn apply(self, state: &mut ControllerState) {
        let key = key(&self.metadata, state);
        state.set_vm_migration(&key, Some(MigrationRow::of(&self)));
    }

    fn remove(self, state: &mut ControllerState) {
        let key = key(&self.metadata, state);
        state.set_vm_migration(&key, None);
    }

    fn end(state: &mut ControllerState) {
        for key in state.cluster.vms.end_migrations() {
            state.set_vm_migration(&key, None);
        }
    }
}
