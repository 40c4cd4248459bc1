//! KubeVirt's virtual machines, as far as their addresses are concerned.
//!
//! ```text
//!   VirtualMachine web ──▶ VirtualMachineInstance web ──▶ pod virt-launcher-web-x7k2p
//!        the user's            while it runs                  one; two during a live migration
//! ```
//!
//! KubeVirt gives the VirtualMachineInstance the name of its VirtualMachine. A VirtualMachineInstance
//! without a VirtualMachine exists too: its pod is a pod like any other.
//!
//! **The allocation key.** Addresses are allocated, retained and released under a key. This key is
//! the pod's name in most cases, also for a stateful pod, because the name of such a pod recurs. The
//! name of a virtual machine's pod never recurs, so the key is that of its virtual machine
//! ([`key_of_vm`]). The work on a key is serial: two pods of one virtual machine never get its
//! addresses at the same time.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use kube::core::ObjectMeta;
use serde::Deserialize;
use trunkline_api::kube_resource;

use super::interner::Interner;
use super::row::{Key, Owner, PodRow};
use super::table::Table;

/// API group of KubeVirt.
const GROUP: &str = "kubevirt.io";
/// Kind of a virtual machine.
pub const VIRTUAL_MACHINE: &str = "VirtualMachine";
/// Kind of a running virtual machine.
const INSTANCE: &str = "VirtualMachineInstance";
/// Begins the name in an allocation key of a virtual machine. No name of an object has a slash.
const PREFIX: &str = "vm/";

/// The allocation key of a virtual machine.
pub fn key_of_vm(namespace: &Arc<str>, vm: &str) -> Key {
    Key::new(Arc::clone(namespace), format!("{PREFIX}{vm}"))
}

/// The virtual machine of an allocation key; `None` for a pod's.
pub fn vm_of_key(key: &Key) -> Option<Key> {
    Some(Key::new(Arc::clone(&key.namespace), key.name.strip_prefix(PREFIX)?))
}

/// Whether an owner is of a kind of KubeVirt.
fn is_of_kubevirt(owner: &Owner, kind: &str) -> bool {
    owner.api_version.split_once('/').is_some_and(|(group, _)| group == GROUP) && &*owner.kind == kind
}

/// Whether the owner of an IPInstance, or of a VirtualMachineInstance, is a virtual machine.
pub fn is_virtual_machine(owner: &Owner) -> bool {
    is_of_kubevirt(owner, VIRTUAL_MACHINE)
}

/// Whether the owner of a pod is a VirtualMachineInstance.
pub fn is_virtual_machine_instance(owner: &Owner) -> bool {
    is_of_kubevirt(owner, INSTANCE)
}

/// A VirtualMachine from the API server. Only its metadata matter.
#[derive(Clone, Debug, Deserialize)]
pub struct VirtualMachine {
    /// Name, deletion timestamp and so on.
    pub metadata: ObjectMeta,
}

/// A VirtualMachineInstance from the API server.
#[derive(Clone, Debug, Deserialize)]
pub struct VirtualMachineInstance {
    /// Name, owner and so on.
    pub metadata: ObjectMeta,
    /// The observed state.
    #[serde(default)]
    pub status: VirtualMachineInstanceStatus,
}

/// The observed state of a [`VirtualMachineInstance`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualMachineInstanceStatus {
    /// The node that runs it. At the end of a live migration KubeVirt writes the target's node.
    pub node_name: Option<String>,
}

kube_resource!(VirtualMachine, NamespaceResourceScope, GROUP, "v1", VIRTUAL_MACHINE, "virtualmachines");
kube_resource!(
    VirtualMachineInstance,
    NamespaceResourceScope,
    GROUP,
    "v1",
    INSTANCE,
    "virtualmachineinstances"
);

/// Row of a VirtualMachine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmRow {
    /// Its UID.
    pub uid: Arc<str>,
    /// Whether it has a deletion timestamp.
    pub deleting: bool,
}

impl VmRow {
    /// Row of a VirtualMachine from the API server.
    pub fn of(vm: &VirtualMachine) -> VmRow {
        VmRow {
            uid: vm.metadata.uid.as_deref().unwrap_or_default().into(),
            deleting: vm.metadata.deletion_timestamp.is_some(),
        }
    }
}

/// Row of a VirtualMachineInstance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmInstanceRow {
    /// Its VirtualMachine.
    pub vm: Option<Owner>,
    /// The node that runs it.
    pub node: Option<Arc<str>>,
}

impl VmInstanceRow {
    /// Row of a VirtualMachineInstance from the API server.
    pub fn of(instance: &VirtualMachineInstance, interner: &mut Interner) -> VmInstanceRow {
        let name = instance.metadata.name.as_deref().unwrap_or_default();
        let owner = Owner::controller(&instance.metadata.owner_references, interner);
        let node = instance.status.node_name.as_deref().filter(|node| !node.is_empty());
        VmInstanceRow {
            vm: owner.filter(|owner| is_virtual_machine(owner) && &*owner.name == name),
            node: node.map(|node| interner.get(node)),
        }
    }
}

/// The known state of a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmState {
    /// VirtualMachines were not listed, or the API server does not have them.
    Unknown,
    /// It exists, and has this UID.
    Exists(Arc<str>),
    /// It does not exist, or is being deleted.
    Gone,
}

/// The virtual machine of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmOfPod {
    /// It is not a virtual machine's pod.
    None,
    /// Its VirtualMachineInstance is unknown, so its virtual machine is unknown too.
    Unknown,
    /// The addresses belong to this virtual machine.
    Vm(Owner),
}

/// Virtual machines. Only the leader has rows.
#[derive(Default)]
pub struct VirtualMachines {
    /// Whether virtual machines keep their addresses: `--vm-ip-retain`.
    pub retain: bool,
    pub(crate) vms: Table<Key, VmRow>,
    pub(crate) instances: Table<Key, VmInstanceRow>,
    /// The API server has no VirtualMachineInstances.
    pub(crate) no_instances: bool,
    /// The pods of each VirtualMachineInstance.
    pods: HashMap<Key, BTreeSet<Key>>,
}

impl VirtualMachines {
    /// Removes all rows, at the end of a term.
    pub(crate) fn clear(&mut self) {
        *self = VirtualMachines { retain: self.retain, ..VirtualMachines::default() };
    }

    /// The key of the VirtualMachineInstance that owns a pod.
    fn instance_of(&self, key: &Key, pod: &PodRow) -> Option<Key> {
        let owner = pod.owner.as_ref().filter(|owner| self.retain && is_virtual_machine_instance(owner))?;
        Some(Key::new(Arc::clone(&key.namespace), Arc::clone(&owner.name)))
    }

    /// The allocation key of the virtual machine that a pod may belong to.
    pub(crate) fn key_of_pod(&self, key: &Key, pod: &PodRow) -> Option<Key> {
        self.instance_of(key, pod).map(|instance| key_of_vm(&instance.namespace, &instance.name))
    }

    /// The virtual machine of a pod.
    pub fn of_pod(&self, key: &Key, pod: &PodRow) -> VmOfPod {
        let Some(instance) = self.instance_of(key, pod) else { return VmOfPod::None };
        match self.instances.get(&instance) {
            Some(row) => row.vm.clone().map_or(VmOfPod::None, VmOfPod::Vm),
            None if self.no_instances => VmOfPod::None,
            None => VmOfPod::Unknown,
        }
    }

    /// The state of a virtual machine.
    pub fn state(&self, vm: &Key) -> VmState {
        match self.vms.get(vm) {
            Some(row) if !row.deleting => VmState::Exists(Arc::clone(&row.uid)),
            None if !self.vms.is_listed() => VmState::Unknown,
            _ => VmState::Gone,
        }
    }

    /// The node that runs a virtual machine.
    pub(crate) fn node_of(&self, vm: &Key) -> Option<&str> {
        self.instances.get(vm)?.node.as_deref()
    }

    /// The names of a virtual machine's pods.
    pub(crate) fn pods(&self, vm: &Key) -> impl Iterator<Item = &Key> {
        self.pods.get(vm).into_iter().flatten()
    }

    pub(super) fn index_pod(&mut self, key: &Key, pod: &PodRow) {
        if let Some(instance) = self.instance_of(key, pod) {
            self.pods.entry(instance).or_default().insert(key.clone());
        }
    }

    pub(super) fn unindex_pod(&mut self, key: &Key, pod: &PodRow) {
        let Some(instance) = self.instance_of(key, pod) else { return };
        if let Some(pods) = self.pods.get_mut(&instance) {
            pods.remove(key);
            if pods.is_empty() {
                self.pods.remove(&instance);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn owner(api_version: &str, kind: &str) -> Owner {
        Owner { api_version: api_version.into(), kind: kind.into(), name: "web".into(), uid: "u".into() }
    }

    #[test]
    fn only_kinds_of_kubevirt_are_virtual_machines() {
        for (api_version, kind, vm, instance) in [
            ("kubevirt.io/v1", "VirtualMachine", true, false),
            ("kubevirt.io/v1", "VirtualMachineInstance", false, true),
            ("kubevirt.io/v1alpha3", "VirtualMachineInstance", false, true),
            ("example.org/v1", "VirtualMachineInstance", false, false),
            ("kubevirt.io/v1", "VirtualMachineInstanceReplicaSet", false, false),
            ("apps/v1", "StatefulSet", false, false),
        ] {
            let owner = owner(api_version, kind);
            let found = (is_virtual_machine(&owner), is_virtual_machine_instance(&owner));
            assert_eq!(found, (vm, instance), "{api_version} {kind}");
        }
    }

    #[test]
    fn allocation_key_of_a_virtual_machine_is_no_pods() {
        let key = key_of_vm(&"default".into(), "web");
        assert_eq!(vm_of_key(&key), Some(Key::new("default", "web")));
        assert_eq!(key.to_string(), "default/vm/web");
        assert_eq!(vm_of_key(&Key::new("default", "web")), None);
    }

    #[test]
    fn an_instance_belongs_to_the_virtual_machine_of_its_name() {
        let row = |owner: serde_json::Value| {
            let instance = json!({"metadata": {"name": "web", "ownerReferences": [owner]}});
            VmInstanceRow::of(&serde_json::from_value(instance).unwrap(), &mut Interner::default()).vm
        };
        let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web", "uid": "u", "controller": true});
        assert_eq!(row(vm.clone()), Some(owner("kubevirt.io/v1", "VirtualMachine")));
        for (field, value) in [("name", json!("other")), ("kind", json!("Job")), ("controller", json!(false))]
        {
            let mut other = vm.clone();
            other[field] = value;
            assert_eq!(row(other), None, "{field}");
        }
    }
}
