//! Addresses of KubeVirt's virtual machines (`--vm-ip-retain`, hybridnet's `VMIPRetain`).
//!
//! The addresses belong to the VirtualMachine, not to its pod. Its IPInstances are hybridnet's: the
//! VirtualMachine is their owner and is in their binding, the label `networking.alibaba.com/vm` has its
//! name, and without a pod the binding has no pod's name. So each controller continues with the
//! IPInstances of the other.
//!
//! | virtual machine | its pods | its addresses |
//! |---|---|---|
//! | exists | one that needs addresses | bound to this pod; new ones if it has none |
//! | exists | none, or all have ended | retained |
//! | exists | the bound one is terminating and runs | unchanged: the next pod waits for its end |
//! | exists | two, the bound one is alive | unchanged: the other pod waits for its end, except in a live migration |
//! | deleted, or being deleted | the bound one is alive or runs | unchanged |
//! | deleted, or being deleted | no pod uses them | released |
//! | created again with the name | no pod uses them | those of the former one are released |
//!
//! The pod's `ip-pool`, `mac-pool`, `ip-retain` and retention have no effect, as in hybridnet: a
//! virtual machine keeps its addresses as long as it exists.
//!
//! **Live migration.** KubeVirt creates the target's pod, waits until it runs, copies the memory, and
//! then writes the target's node to the VirtualMachineInstance's status. A pod is a target only if its live
//! migration exists, and if the status names it from the time on at which the pod is ready. So both pods need the same
//! addresses for a while, and an address has one IPInstance:
//!
//! | time | `spec.binding` | labels, and the annotation `trunkline.io/migration-target` |
//! |---|---|---|
//! | the target's pod has a node | the source's pod | the target's pod: its agent sees the IPInstance, and its ADD gets the address |
//! | the status has the target's node, or the source's pod has ended | the target's pod | the target's pod, no annotation |
//! | the target's pod has ended before | the source's pod | the source's pod, no annotation |
//!
//! Nodes of an overlay send packets to the node in the binding, or to the target's from the report of
//! its agent on. The label `trunkline.io/migration-source` has the source's node from the first row on,
//! for the agent of that node. A failed live migration removes it, a completed one does not.
//!
//! The garbage collector deletes the IPInstances of a deleted virtual machine too. It stops while any
//! aggregated API of the cluster is down, and KubeVirt brings one; the release does not depend on it.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use kube::Api;
use trunkline_api::pod::IpFamily;
use trunkline_api::resources::MigrationTarget;

use super::decide::{AddressSelector, AssignDecision, Decision, kept_for, leave};
use super::plan::{AllocationRefusal, Existing};
use super::pod::delete;
use super::{Context, ReconcileError};
use crate::cluster::vm::{VirtualMachine, VmOfPod, VmState, vm_of_key};
use crate::cluster::{Cluster, InstanceRow, Key, Owner, PodLifecycle, PodRow};

/// The pod for which the addresses of an allocation key are planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject<'a> {
    /// Its name.
    pub key: &'a Key,
    /// The pod.
    pub pod: Cow<'a, PodRow>,
    /// The virtual machine that keeps the addresses.
    pub vm: Option<Owner>,
}

/// The pod of an allocation key: the pod of this name, or the pod that has or gets the addresses of
/// this virtual machine.
pub fn subject<'a>(cluster: &'a Cluster, key: &'a Key) -> Option<Subject<'a>> {
    let Some(vm) = vm_of_key(key) else {
        return Some(Subject { key, pod: Cow::Borrowed(cluster.pod(key)?), vm: None });
    };
    let pods = pods_of(cluster, key, &vm);
    let bound: BTreeSet<&str> = cluster.instances_of(key).iter().map(|(_, row)| &*row.pod_uid).collect();
    let rows: Vec<(&Key, &PodRow)> = pods.iter().map(|(key, pod, _)| (*key, *pod)).collect();
    let chosen = choose(&rows, &bound, cluster.vms.node_of(&vm), cluster.vms.target_of(&vm))?;
    let (key, pod, owner) = pods.into_iter().find(|(key, ..)| *key == chosen)?;
    Some(Subject { key, pod: Cow::Borrowed(pod), vm: Some(owner) })
}

/// The pods of a virtual machine, with the virtual machine. A pod without an existing
/// VirtualMachineInstance is one of them while it has addresses.
fn pods_of<'a>(cluster: &'a Cluster, key: &Key, vm: &Key) -> Vec<(&'a Key, &'a PodRow, Owner)> {
    let rows = cluster.instances_of(key);
    let pods = cluster.vms.pods(vm).filter_map(|name| {
        let pod = cluster.pod(name)?;
        let owner = match cluster.vms.of_pod(name, pod) {
            VmOfPod::Vm(owner) => Some(owner),
            VmOfPod::None | VmOfPod::Unknown => {
                let bound = rows.iter().find(|(_, row)| row.pod_uid == pod.uid);
                bound.and_then(|(_, row)| row.owner.clone())
            }
        };
        Some((name, pod, owner?))
    });
    pods.collect()
}

/// Whether a pod may use addresses that are bound to it.
fn uses(pod: &PodRow) -> bool {
    !pod.host_network && !pod.failed && (pod.life == PodLifecycle::Alive || pod.running)
}

/// Whether a pod needs addresses now.
fn is_ready(pod: &PodRow) -> bool {
    pod.life == PodLifecycle::Alive && !pod.failed && !pod.host_network && pod.node.is_some()
}

/// The pod of a virtual machine that has or gets its addresses. `bound` has the UIDs in the
/// bindings of its IPInstances, `node` and `target` are the node and the target's pod of a live migration
/// in the status of its VirtualMachineInstance.
pub fn choose<'a>(
    pods: &[(&'a Key, &PodRow)],
    bound: &BTreeSet<&str>,
    node: Option<&str>,
    target: Option<&str>,
) -> Option<&'a Key> {
    let is_named = |key: &Key| target == Some(&*key.name);
    let is_bound = |pod: &PodRow| bound.contains(&*pod.uid);
    let is_there = |pod: &PodRow| node.is_some() && pod.node.as_deref() == node;
    let ready = pods.iter().filter(|(_, pod)| is_ready(pod) && pod.selected);
    let next = ready.min_by_key(|(key, pod)| (!is_there(pod), !is_named(key), *key));
    match pods.iter().find(|(_, pod)| is_bound(pod) && uses(pod)) {
        // The live migration is complete.
        Some((_, pod))
            if !is_there(pod) && next.is_some_and(|(key, next)| is_there(next) && is_named(key)) => {}
        Some((key, pod)) => return is_ready(pod).then_some(*key),
        None => {}
    }
    next.map(|(key, _)| *key)
}

/// An IPInstance whose labels and annotation follow a live migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The IPInstance.
    pub instance: Existing,
    /// The pod in the labels.
    pub pod: MigrationTarget,
    /// The node and the UID of the pod from which the virtual machine moves, if the pod is the target
    /// of a live migration and not the one in the binding.
    pub source: Option<(Arc<str>, Arc<str>)>,
}

/// The changes of IPInstances that are bound to `pod`, at the start and at the end of a live migration.
pub(super) fn redirect(
    cluster: &Cluster,
    key: &Key,
    vm: &Key,
    (name, pod): (&Key, &PodRow),
    interface: Option<&Arc<str>>,
) -> Vec<Redirect> {
    let reference = |name: &Key, pod: &PodRow| MigrationTarget {
        node_name: pod.node.as_deref().unwrap_or_default().to_owned(),
        pod_name: name.name.to_string(),
        pod_uid: pod.uid.to_string(),
    };
    let pods = pods_of(cluster, key, vm);
    let rows = cluster.instances_of(key);
    // The source of the last live migration may have been the target of an earlier one.
    let was_source = |pod: &PodRow| rows.iter().any(|(_, row)| row.source_pod.as_ref() == Some(&pod.uid));
    let is_target = |name: &Key, pod: &PodRow| is_target(cluster, vm, name, pod);
    let target =
        pods.iter().find(|(other, pod, _)| *other != name && is_target(other, pod) && !was_source(pod));
    let target = target.map(|(name, pod, _)| reference(name, pod));
    let rows = rows.iter().filter(|(_, row)| {
        let of_interface = row.interface.as_ref() == interface && !row.deleting;
        of_interface && row.pod_uid == pod.uid && row.target.as_deref() != target.as_ref()
    });
    let redirect = |(key, row): &(&Key, &InstanceRow)| Redirect {
        instance: Existing { key: (*key).clone(), uid: Arc::clone(&row.uid) },
        pod: target.clone().unwrap_or_else(|| reference(name, pod)),
        source: target.as_ref().and(pod.node.clone()).map(|node| (node, Arc::clone(&pod.uid))),
    };
    rows.map(redirect).collect()
}

/// Whether a pod is the target of a live migration, and needs addresses now.
fn is_target(cluster: &Cluster, vm: &Key, name: &Key, pod: &PodRow) -> bool {
    is_ready(pod) && pod.selected && cluster.vms.is_target(vm, name, pod)
}

/// Decides for an interface of a virtual machine. `pods` are its pods, `pod` the row of the interface
/// of the chosen one, and `instances` the IPInstances of the interface, including those with a
/// deletion timestamp.
///
/// [`Decision::Release`] means that the virtual machine of these IPInstances is gone.
pub fn decide(
    vm: &VmState,
    pods: &[&PodRow],
    pod: Option<&PodRow>,
    instances: &[(&Key, &InstanceRow)],
) -> Decision {
    let all = |wanted: &dyn Fn(&InstanceRow) -> bool| -> Vec<Key> {
        let rows = instances.iter().filter(|(_, row)| !row.deleting && wanted(row));
        rows.map(|(key, _)| (*key).clone()).collect()
    };
    let in_use = |row: &InstanceRow| pods.iter().any(|pod| pod.uid == row.pod_uid && uses(pod));
    let is_of_another = |row: &InstanceRow| match vm {
        VmState::Unknown => false,
        VmState::Exists(uid) => row.owner.as_ref().is_some_and(|owner| owner.uid != *uid),
        VmState::Gone => true,
    };
    let to_release = all(&|row| row.of_vm && is_of_another(row) && !in_use(row));
    if !to_release.is_empty() {
        return Decision::Release(to_release);
    }
    let Some(pod) = pod else {
        return leave(all(&|row| !row.is_reserved() && !in_use(row)), false);
    };
    let Some(node) = &pod.node else { return Decision::Nothing };
    let mine: Vec<&(&Key, &InstanceRow)> =
        instances.iter().filter(|(_, row)| row.pod_uid == pod.uid && row.node == pod.node).collect();
    let (rows, surplus) = one_of_each_family(instances, pod);
    let kept = kept_for(&rows);
    let (selector, mac) = match mine.as_slice() {
        [] if kept.is_some() => (kept, None),
        [] if pod.addresses.is_empty() => (Some(AddressSelector::Any), None),
        [] => (Some(AddressSelector::Recover(pod.addresses.clone())), None),
        [(_, first)] if first.family == Some(IpFamily::DualStack) && !first.deleting => {
            let family = if first.address.is_ipv6() { IpFamily::V4 } else { IpFamily::V6 };
            let missing = AddressSelector::Missing { family, network: Arc::clone(&first.network) };
            (kept.filter(AddressSelector::is_pair).or(Some(missing)), first.mac)
        }
        // The IPInstances are older than `--vm-ip-retain`.
        mine if mine.iter().any(|(_, row)| !row.of_vm && !row.deleting) => (kept, None),
        _ => (None, None),
    };
    match selector {
        None => Decision::Nothing,
        Some(selector) => Decision::Assign(AssignDecision {
            node: Arc::clone(node),
            release: surplus,
            selector,
            mac,
            stateful: false,
        }),
    }
}

/// The IPInstances of a virtual machine that its pod gets, and those to release. There can be two
/// of one family if the virtual machine ran without `--vm-ip-retain`: the pod's own ones stay.
fn one_of_each_family<'a>(
    instances: &[(&'a Key, &'a InstanceRow)],
    pod: &PodRow,
) -> (Vec<(&'a Key, &'a InstanceRow)>, Vec<Key>) {
    let mut rows: Vec<_> = instances.iter().filter(|(_, row)| !row.deleting).copied().collect();
    rows.sort_by_key(|(_, row)| (row.address.is_ipv6(), row.pod_uid != pod.uid));
    let mut surplus = Vec::new();
    let mut before = None;
    rows.retain(|(key, row)| {
        let first = before.replace(row.address.is_ipv6()) != Some(row.address.is_ipv6());
        if !first {
            surplus.push((*key).clone());
        }
        first
    });
    (rows, surplus)
}

/// The decision for a virtual machine, whose allocation key is `key`, and one interface, with the
/// interface's IPInstances.
pub(super) fn decide_key<'a>(
    cluster: &'a Cluster,
    key: &Key,
    vm: &Key,
    subject: Option<(&Key, &PodRow)>,
    interface: Option<&Arc<str>>,
) -> (Decision, Vec<(&'a Key, &'a InstanceRow)>) {
    let pods = pods_of(cluster, key, vm);
    let pods: Vec<&PodRow> = pods.iter().map(|(_, pod, _)| *pod).collect();
    let mut instances = cluster.instances_of(key);
    if let Some((name, pod)) = subject {
        let own = cluster.instances_of(name).into_iter();
        instances.extend(own.filter(|(_, row)| row.pod_uid == pod.uid));
    }
    instances.retain(|(_, row)| row.interface.as_ref() == interface);
    (decide(&cluster.vms.state(vm), &pods, subject.map(|(_, pod)| pod), &instances), instances)
}

/// Whether the allocation key of its virtual machine has the addresses of a pod.
///
/// # Errors
/// The pod must wait.
pub(super) fn belongs_to_vm(cluster: &Cluster, key: &Key, pod: &PodRow) -> Result<bool, AllocationRefusal> {
    let Some(of) = cluster.vms.key_of_pod(key, pod).filter(|_| pod.life == PodLifecycle::Alive) else {
        return Ok(false);
    };
    let is_bound = cluster.instances_of(&of).iter().any(|(_, row)| row.pod_uid == pod.uid);
    let vm = || pod.owner.as_ref().map(|owner| owner.name.to_string()).unwrap_or_default();
    match cluster.vms.of_pod(key, pod) {
        _ if is_bound || !is_ready(pod) => Ok(true),
        VmOfPod::None => Ok(false),
        VmOfPod::Unknown if pod.selected => Err(AllocationRefusal::UnknownVm { instance: vm() }),
        VmOfPod::Unknown => Ok(true),
        // The source of a live migration that is complete.
        VmOfPod::Vm(_) if !pod.addresses.is_empty() => Ok(true),
        VmOfPod::Vm(_) => match subject(cluster, &of) {
            Some(chosen)
                if chosen.key != key
                    && pod.selected
                    && !vm_of_key(&of).is_some_and(|vm| is_target(cluster, &vm, key, pod)) =>
            {
                Err(AllocationRefusal::VmInUse { vm: vm(), pod: chosen.key.name.to_string() })
            }
            _ => Ok(true),
        },
    }
}

/// IPInstances of a virtual machine that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphans {
    /// The virtual machine.
    pub vm: Key,
    /// The IPInstances, each with the UID of its virtual machine.
    pub instances: Vec<(Existing, Arc<str>)>,
}

impl Orphans {
    /// The orphans among the rows of `vm`.
    pub(super) fn of(cluster: &Cluster, vm: Key, keys: Vec<Key>) -> Orphans {
        let orphan = |key: Key| {
            let row = cluster.instance(&key)?;
            let owner = row.owner.as_ref().map(|owner| Arc::clone(&owner.uid)).unwrap_or_default();
            Some((Existing { uid: Arc::clone(&row.uid), key }, owner))
        };
        Orphans { vm, instances: keys.into_iter().filter_map(orphan).collect() }
    }
}

/// Releases the IPInstances of a virtual machine that is gone. The watch of VirtualMachines may be
/// behind that of IPInstances, so a request to the API server confirms the deletion first.
pub(super) async fn release(context: &Context, orphans: &Orphans) -> Result<usize, ReconcileError> {
    let Orphans { vm, instances } = orphans;
    let api: Api<VirtualMachine> = Api::namespaced(context.client.clone(), &vm.namespace);
    let found = context.write(api.get_opt(&vm.name)).await.map_err(|source| {
        let what = format!("VirtualMachine {vm} was not read, so its addresses stay retained");
        ReconcileError::Request { what, source }
    })?;
    let living = found.filter(|found| found.metadata.deletion_timestamp.is_none());
    let living = living.and_then(|found| found.metadata.uid);
    let gone: Vec<Existing> = instances
        .iter()
        .filter(|(_, uid)| living.as_deref() != Some(&**uid))
        .map(|(instance, _)| instance.clone())
        .collect();
    if gone.len() < instances.len() {
        return Err(ReconcileError::LateWatch(vm.clone()));
    }
    delete(context, &gone).await?;
    Ok(gone.len())
}

#[cfg(test)]
#[path = "vm_tests.rs"]
mod tests;
