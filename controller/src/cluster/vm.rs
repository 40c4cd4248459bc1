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
//! An owner reference counts only with the UID of the VirtualMachineInstance: every user who may create
//! pods can write a reference with a name.
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
use trunkline_api::kept;
use trunkline_api::kube_resource;
use trunkline_api::names::label;

use super::interner::Interner;
use super::row::{Key, Owner, PodRow};
use super::table::Table;

/// API group of KubeVirt.
const GROUP: &str = "kubevirt.io";
/// Kind of a virtual machine.
pub const VIRTUAL_MACHINE: &str = "VirtualMachine";
/// Kind of a running virtual machine.
const INSTANCE: &str = "VirtualMachineInstance";
/// Kind of a live migration.
const MIGRATION: &str = "VirtualMachineInstanceMigration";
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
    /// The last live migration, from the moment on at which the target's pod is ready.
    pub migration_state: Option<MigrationState>,
}

/// The last live migration of a [`VirtualMachineInstance`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationState {
    /// The UID of its VirtualMachineInstanceMigration.
    pub migration_uid: String,
    /// The target's pod.
    pub target_pod: String,
    /// Whether it has failed.
    pub failed: bool,
}

/// A live migration from the API server.
#[derive(Clone, Debug, Deserialize)]
pub struct VirtualMachineInstanceMigration {
    /// Name, UID and so on.
    pub metadata: ObjectMeta,
    /// The desired state.
    #[serde(default)]
    pub spec: MigrationSpec,
    /// The observed state.
    #[serde(default)]
    pub status: MigrationStatus,
}

/// The desired state of a [`VirtualMachineInstanceMigration`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationSpec {
    /// The VirtualMachineInstance.
    pub vmi_name: String,
}

/// The observed state of a [`VirtualMachineInstanceMigration`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct MigrationStatus {
    /// `Pending`, `Scheduling`, and so on until `Succeeded` or `Failed`.
    pub phase: String,
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
kube_resource!(
    VirtualMachineInstanceMigration,
    NamespaceResourceScope,
    GROUP,
    "v1",
    MIGRATION,
    "virtualmachineinstancemigrations"
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
    /// Its UID.
    pub uid: Arc<str>,
    /// Its VirtualMachine.
    pub vm: Option<Owner>,
    /// The node that runs it.
    pub node: Option<Arc<str>>,
    /// The last live migration, unless it has failed.
    pub migration: Option<HandedOver>,
}

/// A live migration whose target's pod is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandedOver {
    /// The UID of its VirtualMachineInstanceMigration.
    pub job: Arc<str>,
    /// The name of the target's pod.
    pub target: Arc<str>,
}

/// Row of a live migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationRow {
    /// Its UID.
    pub uid: Arc<str>,
    /// The name of the VirtualMachineInstance.
    pub instance: Arc<str>,
    /// Whether it has neither succeeded nor failed.
    pub is_running: bool,
}

impl MigrationRow {
    /// Row of a live migration from the API server.
    pub fn of(migration: &VirtualMachineInstanceMigration) -> MigrationRow {
        MigrationRow {
            uid: migration.metadata.uid.as_deref().unwrap_or_default().into(),
            instance: kept::cut(&migration.spec.vmi_name, kept::MAX_NAME).into(),
            is_running: !matches!(migration.status.phase.as_str(), "Succeeded" | "Failed"),
        }
    }
}

impl VmInstanceRow {
    /// Row of a VirtualMachineInstance from the API server.
    pub fn of(instance: &VirtualMachineInstance, interner: &mut Interner) -> VmInstanceRow {
        let name = instance.metadata.name.as_deref().unwrap_or_default();
        let owner = Owner::controller(&instance.metadata.owner_references, interner);
        let short = |text: &&str| !text.is_empty() && text.len() <= kept::MAX_NAME;
        let node = instance.status.node_name.as_deref().filter(short);
        let migration = instance.status.migration_state.as_ref().filter(|state| !state.failed);
        let migration = migration.and_then(|state| {
            let job = Some(state.migration_uid.as_str()).filter(short)?;
            let target = Some(state.target_pod.as_str()).filter(short)?;
            Some(HandedOver { job: job.into(), target: target.into() })
        });
        VmInstanceRow {
            uid: instance.metadata.uid.as_deref().unwrap_or_default().into(),
            migration,
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
    /// Its VirtualMachineInstance is unknown, so its virtual machine is unknown too. A
    /// VirtualMachineInstance with another UID than the pod's owner is another one.
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
    migrations: Table<Key, MigrationRow>,
    /// The running live migrations: VirtualMachineInstance and UID.
    running: HashMap<Key, BTreeSet<Arc<str>>>,
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
        let is_owner = |row: &&VmInstanceRow| pod.owner.as_ref().is_some_and(|owner| owner.uid == row.uid);
        match self.instances.get(&instance).filter(is_owner) {
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

    /// The target's pod of a virtual machine's last live migration, from the moment on at which the pod
    /// is ready; none if the live migration has failed.
    pub(crate) fn target_of(&self, vm: &Key) -> Option<&str> {
        Some(&*self.instances.get(vm)?.migration.as_ref()?.target)
    }

    /// Whether KubeVirt created a pod of a virtual machine as the target of a live migration.
    ///
    /// The label names the live migration, but every user who may create pods can write a label.
    /// KubeVirt writes the target's pod into the status of the VirtualMachineInstance when the pod is
    /// ready. The pod needs its addresses earlier. Until then its live migration must exist, be of this
    /// VirtualMachineInstance, and not be over.
    pub(crate) fn is_target(&self, vm: &Key, name: &Key, pod: &PodRow) -> bool {
        let Some(job) = pod.networking.labels.get(label::MIGRATION_JOB) else { return false };
        let state = self.instances.get(vm).and_then(|row| row.migration.as_ref());
        match state.filter(|state| *state.job == **job) {
            Some(state) => state.target == name.name,
            None => self.running.get(vm).is_some_and(|jobs| jobs.contains(job.as_str())),
        }
    }

    /// A list of live migrations begins.
    pub(crate) fn begin_migrations(&mut self) {
        self.migrations.begin();
    }

    /// A list of live migrations is complete. Returns those that it does not have.
    pub(crate) fn end_migrations(&mut self) -> Vec<Key> {
        self.migrations.end()
    }

    /// Sets or removes a live migration. Returns the VirtualMachineInstances for which something has
    /// changed.
    #[must_use]
    pub(crate) fn set_migration(&mut self, key: &Key, row: Option<MigrationRow>) -> Vec<Key> {
        let old = match row.clone() {
            Some(row) => self.migrations.set(key.clone(), row),
            None => self.migrations.remove(key),
        };
        if old == row {
            return Vec::new();
        }
        let vm = |row: &MigrationRow| Key::new(Arc::clone(&key.namespace), Arc::clone(&row.instance));
        for row in old.iter().filter(|row| row.is_running) {
            if let Some(jobs) = self.running.get_mut(&vm(row)) {
                jobs.remove(&row.uid);
                if jobs.is_empty() {
                    self.running.remove(&vm(row));
                }
            }
        }
        for row in row.iter().filter(|row| row.is_running) {
            self.running.entry(vm(row)).or_default().insert(Arc::clone(&row.uid));
        }
        old.iter().chain(&row).map(vm).collect()
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
    fn live_migrations_are_indexed_by_instance() {
        let mut vms = VirtualMachines::default();
        let (vm, one) = (Key::new("default", "web"), Key::new("default", "m1"));
        let row = |phase: &str| {
            let object = json!({"metadata": {"name": "m1", "uid": "job"}, "spec": {"vmiName": "web"}, "status": {"phase": phase}});
            Some(MigrationRow::of(&serde_json::from_value(object).unwrap()))
        };
        let has = |vms: &VirtualMachines| vms.running.get(&vm).is_some_and(|jobs| jobs.contains("job"));
        assert_eq!(vms.set_migration(&one, row("")), std::slice::from_ref(&vm));
        assert!(has(&vms));
        assert_eq!(vms.set_migration(&one, row("Running")), [], "only the end matters");
        assert_eq!(vms.set_migration(&one, row("Succeeded")), [vm.clone(), vm.clone()]);
        assert!(!has(&vms) && vms.running.is_empty());
        assert_eq!(vms.set_migration(&one, row("Scheduling")).len(), 2);
        assert_eq!(vms.set_migration(&one, None), std::slice::from_ref(&vm));
        assert!(vms.running.is_empty());
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
