//! Plans the writes for a decision about a pod: sets addresses aside, under the lock and without
//! I/O.
//!
//! A plan names everything that its execution needs, since the state changes while the execution
//! waits for the API server. The addresses stay set aside for this pod until the API server has
//! answered. On success, the IPInstance is a row; on refusal, the address is returned. Without an
//! answer the plan is remembered ([`PendingCreate`]) and the same request is sent again: a second
//! create of the same name cannot allocate a second address.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use jiff::Timestamp;
use trunkline_api::interfaces::{InterfaceName, InterfaceSettings};
use trunkline_api::pod::{IpFamily, SubnetNames, extra_prefixes, retention};
use trunkline_api::resources::{Network, Retention};
use trunkline_api::validate::Fault;

use super::decide::{AddressSelector, AssignDecision, DecideError, Decision, decide, joined};
use super::held::StillAttached;
use super::interfaces::{PodInterfaces, RefusedInterfaces};
use super::recover::{self, NotRecovered, RefusedReport};
use super::retention::{Amendment, Expired};
use super::vm::{self, Orphans, Redirect, Subject};
use crate::cluster::vm::vm_of_key;
use crate::cluster::{Key, Owner, PodLifecycle, PodRow};
use crate::ipam::{AddressRequest, AllocateError, AllocatedAddresses};
use crate::selection::{PlaceError, Policy, Selection, TenancyError, check_tenancy, place, select};
use crate::state::{ControllerState, PendingCreate, PodCause, WaitsFor};

/// Writes for a pod.
#[derive(Debug)]
pub enum Plan {
    /// Nothing.
    Nothing,
    /// Delete these IPInstances.
    Release(Vec<Existing>),
    /// Retain these IPInstances for the next pod of the name, and remove the pod's finalizer.
    Retain {
        /// IPInstances bound to it.
        keep: Vec<Existing>,
        /// UID of the pod whose finalizer is removed.
        remove_finalizer: Option<Arc<str>>,
    },
    /// Create or bind these IPInstances.
    Assign(Box<AssignPlan>),
    /// Delete these IPInstances, whose retention is over.
    Expire(Vec<Expired>),
    /// Change these IPInstances as their retention requires.
    Amend(Vec<Amendment>),
    /// Change the pod in the labels of these IPInstances, for a live migration.
    Redirect(Vec<Redirect>),
    /// Delete these IPInstances, whose virtual machine is gone.
    ReleaseOrphans(Orphans),
    /// Report that these interfaces get no addresses.
    Refuse(RefusedInterfaces),
    /// Find out whether these IPInstances were created. Their pod no longer needs them.
    Settle(PendingCreate),
}

/// An existing IPInstance, identified by name and UID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Existing {
    /// Its name.
    pub key: Key,
    /// Its UID.
    pub uid: Arc<str>,
}

/// Addresses to allocate to a pod.
#[derive(Debug)]
pub struct AssignPlan {
    /// The pod's name.
    pub pod_key: Key,
    /// The pod.
    pub pod: PodRow,
    /// The virtual machine that keeps the addresses. They have no other workload then.
    pub vm: Option<Owner>,
    /// IPInstances to delete first.
    pub release: Vec<Existing>,
    /// Their network.
    pub network: Arc<Network>,
    /// The addresses.
    pub granted: AllocatedAddresses,
    /// The families of all addresses of the pod, including those that it already has.
    pub family: IpFamily,
    /// Whether its IPInstances belong to its workload.
    pub stateful: bool,
    /// The additional prefixes that the pod names. Its node's agent ignores prefixes that the
    /// Network does not allow.
    pub extra_prefixes: BTreeSet<IpNet>,
    /// How long its addresses are retained, by its annotation.
    pub retention: Option<Retention>,
    /// The interface of the addresses.
    pub interface: PlannedInterface,
}

/// The interface of an [`AssignPlan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlannedInterface {
    /// `eth0`, with the names of the pod's other interfaces.
    First(Vec<InterfaceName>),
    /// Another one.
    Other(InterfaceSettings),
}

impl PlannedInterface {
    /// The name of another interface than `eth0`.
    pub fn other(&self) -> Option<Arc<str>> {
        match self {
            PlannedInterface::First(_) => None,
            PlannedInterface::Other(settings) => Some(settings.name.as_str().into()),
        }
    }
}

/// The reason why a pod gets no address. Its text is the text of the pod's event, with the fault
/// and the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationRefusal {
    /// Annotations or labels of the pod or its namespace have faults.
    #[error("{}", joined(.0))]
    Annotations(Vec<Fault>),
    /// The pools of a stateful pod have a fault.
    #[error(transparent)]
    Pools(#[from] DecideError),
    /// The pod has no network on its node.
    #[error(transparent)]
    Network(#[from] PlaceError),
    /// The pod's Namespace does not allow the network.
    #[error(transparent)]
    Tenancy(#[from] TenancyError),
    /// The kubelet reports an address that the pod does not get.
    #[error(transparent)]
    Report(#[from] RefusedReport),
    /// The network has no address for the pod.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// The former sandbox has the address.
    #[error(transparent)]
    StillAttached(#[from] StillAttached),
    /// It is unknown whether a virtual machine keeps the pod's addresses.
    #[error(
        "VirtualMachineInstance {instance} is not known, or has another UID than the pod's owner reference, so it is not \
         known whether a VirtualMachine keeps the addresses: if this stays, delete a pod of an earlier \
         VirtualMachineInstance, or allow the controller to list and watch virtualmachineinstances.kubevirt.io"
    )]
    UnknownVm {
        /// The pod's VirtualMachineInstance.
        instance: String,
    },
    /// Another pod has the addresses of the pod's virtual machine.
    #[error("pod {pod} has the addresses of VirtualMachine {vm}: this pod gets them when that pod has ended")]
    VmInUse {
        /// The virtual machine.
        vm: String,
        /// The other pod.
        pod: String,
    },
}

impl AllocationRefusal {
    /// The label of the metric.
    pub fn reason(&self) -> &'static str {
        match self {
            AllocationRefusal::Annotations(_) | AllocationRefusal::Pools(_) => "annotation",
            AllocationRefusal::Network(_) | AllocationRefusal::Tenancy(_) => "network",
            AllocationRefusal::Allocate(AllocateError::Exhausted { .. }) => "exhausted",
            AllocationRefusal::StillAttached(_) => "attached",
            AllocationRefusal::UnknownVm { .. } | AllocationRefusal::VmInUse { .. } => "vm",
            AllocationRefusal::Report(_) | AllocationRefusal::Allocate(_) => "address",
        }
    }
}

impl ControllerState {
    /// Plans the writes for each interface of an allocation key's pod, `eth0` first, and sets the
    /// addresses aside. A MAC address takes 24 bits of `random`; `now` decides about retained addresses.
    pub fn plan_pod(
        &mut self,
        key: &Key,
        policy: &Policy,
        random: u32,
        now: Timestamp,
    ) -> Vec<Result<Plan, AllocationRefusal>> {
        self.resume_expired(key);
        let Some(term) = &mut self.term else { return Vec::new() };
        let woken = term.woken.remove(key);
        term.waiting.remove(key);
        let interfaces = self.interfaces_of(key);
        let mut plans: Vec<_> = interfaces
            .all
            .iter()
            .zip(0u32..)
            .map(|(interface, number)| {
                let random = random.wrapping_add(number);
                self.plan_interface(key, interface.clone(), &interfaces, policy, random, now)
            })
            .collect();
        if let Some(term) = &mut self.term
            && term.waiting.contains(key)
        {
            let definitions = interfaces.further.definitions.into_iter();
            term.waiting.insert(key, definitions.map(PodCause::Definition));
        }
        plans.extend(interfaces.refused.into_iter().map(|refused| Ok(Plan::Refuse(refused))));
        // The pod takes no address any more, for example because it was deleted: the next pod gets it.
        if let (Some((network, subnet)), Some(term)) = (woken, &mut self.term)
            && !plans.iter().any(|plan| matches!(plan, Ok(Plan::Assign(_))))
            && !term.is_starving(&network, key)
        {
            term.address_is_free(&network, &subnet);
        }
        plans
    }

    fn plan_interface(
        &mut self,
        key: &Key,
        interface: Option<Arc<str>>,
        interfaces: &PodInterfaces,
        policy: &Policy,
        random: u32,
        now: Timestamp,
    ) -> Result<Plan, AllocationRefusal> {
        let subject = vm::subject(&self.cluster, key).map(|subject| match &interface {
            None => subject,
            Some(name) => {
                let listed = interfaces.listed().iter().find(|listed| *listed.name == **name);
                Subject { pod: Cow::Owned(subject.pod.for_interface(name, listed)), ..subject }
            }
        });
        let vm = vm_of_key(key);
        if let Some(subject) = &subject
            && vm.is_none()
        {
            match vm::belongs_to_vm(&self.cluster, key, &subject.pod) {
                Ok(false) => {}
                Ok(true) => return Ok(Plan::Nothing),
                // The pod has one event, and not one for each interface.
                Err(_) if interface.is_some() => return Ok(Plan::Nothing),
                Err(refused) => return Err(self.wait(key, refused)),
            }
        }
        let Some(term) = &mut self.term else { return Ok(Plan::Nothing) };
        if let Some(unanswered) = term.take_pending(key, interface.as_ref()) {
            return Ok(match subject.map(own) {
                Some(subject)
                    if subject.pod.uid == unanswered.pod_uid && subject.pod.life == PodLifecycle::Alive =>
                {
                    Self::repeat(subject, unanswered, interfaces, policy)
                }
                _ => Plan::Settle(unanswered),
            });
        }
        let pod = subject.as_ref().map(|subject| (subject.key, &*subject.pod));
        let (decision, instances) = match &vm {
            Some(vm) => vm::decide_key(&self.cluster, key, vm, pod, interface.as_ref()),
            None => {
                let mut instances = self.cluster.instances_of(key);
                instances.retain(|(_, row)| row.interface == interface);
                (decide(key, pod.map(|(_, pod)| pod), &instances, policy)?, instances)
            }
        };
        let living = instances.iter().filter(|(_, row)| !row.deleting);
        let addresses: Vec<IpAddr> = living.map(|(_, row)| row.address).collect();
        let row = pod.map(|(_, pod)| pod);
        let decision = match Self::hold(term, &self.cluster, decision, row, &instances, vm.is_some()) {
            Ok(decision) => decision,
            Err(refused) => return Err(self.wait(key, refused)),
        };
        let existing = |keys: Vec<Key>| -> Vec<Existing> {
            let uid = |key: &Key| self.cluster.instance(key).map(|row| Arc::clone(&row.uid));
            keys.into_iter().filter_map(|key| Some(Existing { uid: uid(&key)?, key })).collect()
        };
        Ok(match (decision, vm) {
            (Decision::Nothing, Some(vm)) => {
                let pod = subject.as_ref().map(|subject| (subject.key, &*subject.pod));
                let redirects = pod.map(|pod| vm::redirect(&self.cluster, key, &vm, pod, interface.as_ref()));
                redirects.filter(|all| !all.is_empty()).map_or(Plan::Nothing, Plan::Redirect)
            }
            // The retention of all interfaces is planned at once.
            (Decision::Nothing, None) if interface.is_none() => self.plan_retention(key, policy, now),
            (Decision::Nothing, None) => Plan::Nothing,
            (Decision::Release(keys), Some(vm)) => Plan::ReleaseOrphans(Orphans::of(&self.cluster, vm, keys)),
            (Decision::Release(keys), None) => Plan::Release(existing(keys)),
            (Decision::Retain { keep, remove_finalizer }, _) => Plan::Retain {
                keep: existing(keep),
                remove_finalizer: subject
                    .filter(|_| remove_finalizer)
                    .map(|subject| Arc::clone(&subject.pod.uid)),
            },
            (Decision::Assign(decision), _) => {
                let Some(subject) = subject.map(own) else { return Ok(Plan::Nothing) };
                let release = existing(decision.release.clone());
                self.grant(key, subject, interfaces, decision, release, &addresses, policy, random)?
            }
        })
    }

    /// Repeats the requests that had no answer.
    fn repeat(
        subject: OwnSubject,
        unanswered: PendingCreate,
        interfaces: &PodInterfaces,
        policy: &Policy,
    ) -> Plan {
        let OwnSubject { key, pod, vm } = subject;
        let PendingCreate { network, granted, family, .. } = unanswered;
        let interface = interfaces.planned(&pod).unwrap_or_else(|_| {
            let name = pod.interface.as_deref().unwrap_or_default().to_owned();
            PlannedInterface::Other(InterfaceSettings { name, ..InterfaceSettings::default() })
        });
        let stateful = vm.is_none() && policy.is_stateful(pod.owner.as_ref());
        // An annotation that became unreadable later must not block addresses that were already
        // set aside.
        let extra_prefixes = named(&key, &pod).unwrap_or_default();
        let retention = retention_of(&key, &pod).unwrap_or_default();
        Plan::Assign(Box::new(AssignPlan {
            pod_key: key,
            pod,
            vm,
            release: Vec::new(),
            network,
            granted,
            family,
            stateful,
            extra_prefixes,
            retention,
            interface,
        }))
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the second half of plan_pod, which has looked all of these up"
    )]
    fn grant(
        &mut self,
        key: &Key,
        subject: OwnSubject,
        interfaces: &PodInterfaces,
        decision: AssignDecision,
        release: Vec<Existing>,
        own: &[IpAddr],
        policy: &Policy,
        random: u32,
    ) -> Result<Plan, AllocationRefusal> {
        let OwnSubject { key: pod_key, pod, vm } = subject;
        if let Some(fault) = pod.networking.size_fault("Pod", &pod_key.name) {
            return Err(AllocationRefusal::Annotations(vec![fault]));
        }
        let selection = match &decision.selector {
            AddressSelector::Kept { network, family, .. } | AddressSelector::Missing { network, family } => {
                let network_type =
                    self.cluster.network(network).map_or(policy.network_type, |known| known.network_type());
                let network = Some(network.to_string());
                let subnets = SubnetNames::default();
                Selection { network, subnets, network_type, family: *family, retained: true }
            }
            AddressSelector::Any | AddressSelector::Named(_) | AddressSelector::Recover(_) => {
                let metadata = &pod.networking;
                select(&self.cluster, &pod_key, &metadata.annotations, &metadata.labels, None, policy)
                    .map_err(AllocationRefusal::Annotations)?
            }
        };
        let extra_prefixes = named(&pod_key, &pod)?;
        let retention = retention_of(&pod_key, &pod)?;
        let interface = match interfaces.planned(&pod) {
            Ok(interface) => interface,
            Err(faults) => return Err(self.wait(key, AllocationRefusal::Annotations(faults))),
        };
        let network = match place(&self.cluster, &selection, &decision.node) {
            Ok(network) => network,
            Err(refused) => return Err(self.wait(key, refused.into())),
        };
        // The other address of a pair follows the first one.
        if !matches!(decision.selector, AddressSelector::Missing { .. })
            && let Err(refused) = check_tenancy(&self.cluster, &key.namespace, Some(network.name()), policy)
        {
            return Err(self.wait(key, refused.into()));
        }
        let (addresses, family, requested) = match &decision.selector {
            AddressSelector::Any => (&[][..], selection.family, selection.family),
            AddressSelector::Kept { addresses, family, .. } => (&addresses[..], *family, of(addresses)),
            AddressSelector::Named(addresses) | AddressSelector::Recover(addresses) => {
                (&addresses[..], of(addresses), of(addresses))
            }
            AddressSelector::Missing { family, .. } => (&[][..], IpFamily::DualStack, *family),
        };
        let recovered = matches!(decision.selector, AddressSelector::Recover(_));
        let subnets: Vec<String> = selection.subnets.iter().cloned().collect();
        let request = AddressRequest {
            namespace: &key.namespace,
            network: network.name(),
            family: requested,
            subnets: &subnets,
            addresses,
            own,
            mac: decision.mac,
            recovered,
        };
        let Some(term) = &mut self.term else { return Ok(Plan::Nothing) };
        if recovered {
            let known = |address| term.ipam.look_up(address);
            match recover::check(&key.namespace, &pod, &selection, network.name(), known) {
                Ok(()) => {}
                Err(NotRecovered::Foreign) => {
                    tracing::debug!(pod = %pod_key, ?addresses, "no Subnet has the addresses of this pod: it belongs to another plugin");
                    return Ok(Plan::Nothing);
                }
                Err(NotRecovered::Refused(report)) => return Err(self.wait(key, report.into())),
            }
        }
        let granted = match term.ipam.allocate(&request, random) {
            Ok(granted) => granted,
            Err(error) => {
                if let AllocateError::Exhausted { full, .. } = &error {
                    let waits_for = match requested {
                        IpFamily::DualStack => WaitsFor::Network,
                        _ => WaitsFor::Subnets(full.clone()),
                    };
                    term.starving.entry(network.name().into()).or_default().push(key, waits_for);
                }
                return Err(self.wait(key, error.into()));
            }
        };
        for assigned in &granted.addresses {
            term.queues.subnets.add(Arc::clone(&assigned.subnet));
        }
        term.queues.networks.add(network.name().into());
        let stateful = decision.stateful;
        Ok(Plan::Assign(Box::new(AssignPlan {
            pod_key,
            pod,
            vm,
            release,
            network,
            granted,
            family,
            stateful,
            extra_prefixes,
            retention,
            interface,
        })))
    }

    fn wait(&mut self, key: &Key, refused: AllocationRefusal) -> AllocationRefusal {
        if let Some(term) = &mut self.term {
            term.waiting.insert(key, [PodCause::Namespace(Arc::clone(&key.namespace))]);
        }
        refused
    }
}

/// A [`Subject`] without references.
struct OwnSubject {
    key: Key,
    pod: PodRow,
    vm: Option<Owner>,
}

fn own(subject: Subject<'_>) -> OwnSubject {
    OwnSubject { key: subject.key.clone(), pod: subject.pod.into_owned(), vm: subject.vm }
}

/// The additional prefixes that a pod names.
fn named(key: &Key, pod: &PodRow) -> Result<BTreeSet<IpNet>, AllocationRefusal> {
    extra_prefixes(&key.name, &pod.networking.annotations).map_err(AllocationRefusal::Annotations)
}

/// The retention that a pod names.
fn retention_of(key: &Key, pod: &PodRow) -> Result<Option<Retention>, AllocationRefusal> {
    retention(&key.name, &pod.networking.annotations).map_err(AllocationRefusal::Annotations)
}

/// The families of these addresses.
fn of(addresses: &[IpAddr]) -> IpFamily {
    match (addresses.iter().any(IpAddr::is_ipv4), addresses.iter().any(IpAddr::is_ipv6)) {
        (true, true) => IpFamily::DualStack,
        (false, true) => IpFamily::V6,
        _ => IpFamily::V4,
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
