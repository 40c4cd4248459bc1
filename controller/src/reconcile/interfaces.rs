//! The interfaces of a pod for which addresses are planned.
//!
//! A user may change the annotations of a running pod, but the pod has one set of interfaces. The
//! IPInstances of its `eth0` record the names of the others, so a name that the annotation gets later
//! gets no address. Before `eth0` has an address, and for Multus, the number of the pod's interfaces is
//! bounded.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use trunkline_api::fault::Fault;
use trunkline_api::interfaces::{Interface, InterfaceSettings, MAX_INTERFACES};
use trunkline_api::names::annotation;

use super::plan::PlannedInterface;
use super::vm;
use crate::cluster::{InstanceRow, Key, PodLifecycle, PodRow};
use crate::multus::{self, FurtherInterfaces};
use crate::state::ControllerState;

/// Most further interfaces with addresses of one pod's name, or of one virtual machine, those that are
/// retained included. A StatefulSet that renames its interfaces leaves the former ones retained.
pub const MAX_RETAINED_INTERFACES: usize = 4 * MAX_INTERFACES;

/// Listed interfaces that get no addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedInterfaces {
    /// The annotation lists them since the pod has addresses.
    #[error(
        "interfaces {} get no addresses: a later change of the annotation {} has no effect on a pod with addresses: \
         create the pod again",
        .names.join(", "),
        annotation::INTERFACES
    )]
    Late {
        /// Their names.
        names: Vec<String>,
    },
    /// The pod has addresses for interfaces that it lists no longer.
    #[error(
        "interfaces {} get no addresses: with them the pod has {count} further interfaces, and at most {most} \
         are allowed: create the pod again",
        .names.join(", "),
        most = MAX_INTERFACES
    )]
    TooMany {
        /// Their names.
        names: Vec<String>,
        /// The number of interfaces with them.
        count: usize,
    },
    /// Too many interfaces have retained addresses.
    #[error(
        "interfaces {} get no addresses: with them {count} further interfaces of this name have addresses, and at most \
         {most} are allowed: delete the IPInstances of interfaces that no pod lists",
        .names.join(", "),
        most = MAX_RETAINED_INTERFACES
    )]
    TooManyRetained {
        /// Their names.
        names: Vec<String>,
        /// The number of interfaces with them.
        count: usize,
    },
}

/// The interfaces of an allocation key.
pub(super) struct PodInterfaces {
    /// Those to plan: `None` is `eth0`, which is the first.
    pub all: Vec<Option<Arc<str>>>,
    /// Those that the pod lists, without the refused ones.
    pub further: FurtherInterfaces,
    /// The refused ones.
    pub refused: Vec<RefusedInterfaces>,
}

impl PodInterfaces {
    /// The listed interfaces; none if the list has a fault.
    pub(super) fn listed(&self) -> &[Interface] {
        self.further.listed.as_deref().unwrap_or_default()
    }

    /// The interface of an assignment for `row`, the row of the interface.
    ///
    /// # Errors
    /// The list of interfaces has a fault.
    pub(super) fn planned(&self, row: &PodRow) -> Result<PlannedInterface, Vec<Fault>> {
        let all = self.further.listed.as_ref().map_err(|error| error.clone().into_faults())?;
        Ok(match &row.interface {
            None => PlannedInterface::First(all.iter().map(Interface::listed_name).collect()),
            Some(name) => {
                let found = all.iter().find(|listed| *listed.name == **name);
                let unlisted =
                    || InterfaceSettings { name: name.to_string(), ..InterfaceSettings::default() };
                PlannedInterface::Other(found.map_or_else(unlisted, Interface::settings))
            }
        })
    }
}

impl ControllerState {
    /// The interfaces of an allocation key.
    pub(super) fn interfaces_of(&self, key: &Key) -> PodInterfaces {
        let none = || FurtherInterfaces { listed: Ok(Vec::new()), definitions: Vec::new() };
        let subject = vm::subject(&self.cluster, key);
        let pod = subject.as_ref().map(|subject| &*subject.pod);
        let further = subject.as_ref().map_or_else(none, |subject| {
            multus::interfaces(&self.cluster, subject.key, &subject.pod.networking.annotations)
        });
        let mut interfaces = PodInterfaces { all: vec![None], further, refused: Vec::new() };
        let rows = self.cluster.instances_of(key);
        let own: Vec<&InstanceRow> = rows
            .iter()
            .map(|(_, row)| *row)
            .filter(|row| pod.is_some_and(|pod| pod.uid == row.pod_uid))
            .collect();
        let pending = self.term.iter().filter_map(|term| term.pending_creates.get(key)).flatten();
        let pending: Vec<_> = pending.collect();
        let known: Vec<Arc<str>> = rows
            .iter()
            .filter_map(|(_, row)| row.interface.clone())
            .chain(pending.iter().filter_map(|pending| pending.interface.clone()))
            .collect();
        if let (Some(pod), Ok(listed)) = (pod, &mut interfaces.further.listed) {
            let of_pod = pending.iter().filter(|pending| pending.pod_uid == pod.uid);
            let used: BTreeSet<Arc<str>> = own
                .iter()
                .filter_map(|row| row.interface.clone())
                .chain(of_pod.filter_map(|pending| pending.interface.clone()))
                .collect();
            let eth0 = own.iter().find(|row| row.interface.is_none());
            let recorded = eth0.map(|row| &*row.other_interfaces);
            interfaces.refused = refuse(listed, recorded, &used, known.iter().cloned().collect());
            if pod.life != PodLifecycle::Alive || pod.host_network || !pod.selected {
                interfaces.refused.clear();
            }
        }
        let listed: Vec<Arc<str>> = interfaces.listed().iter().map(|one| one.name.as_str().into()).collect();
        let mut seen = HashSet::new();
        for name in listed.into_iter().chain(known) {
            if seen.insert(Arc::clone(&name)) {
                interfaces.all.push(Some(name));
            }
        }
        interfaces
    }
}

/// Removes the refused interfaces from the list. `recorded` are the names that `eth0` records, once it
/// has an address. `used` are those with an address for this pod, `known` those with any address.
fn refuse(
    listed: &mut Vec<Interface>,
    recorded: Option<&[Arc<str>]>,
    used: &BTreeSet<Arc<str>>,
    known: BTreeSet<Arc<str>>,
) -> Vec<RefusedInterfaces> {
    let mut refused = Vec::new();
    if let Some(recorded) = recorded {
        // Multus' definitions may have been listed after the pod got its first address.
        let is_late = |one: &Interface| {
            !one.by_multus && !used.contains(&*one.name) && !recorded.iter().any(|name| **name == *one.name)
        };
        let names = remove(listed, is_late);
        refused.extend((!names.is_empty()).then_some(RefusedInterfaces::Late { names }));
    }
    let count_with = |listed: &[Interface], names: &BTreeSet<Arc<str>>| {
        names.len() + listed.iter().filter(|one| !names.contains(&*one.name)).count()
    };
    let count = count_with(listed, used);
    if count > MAX_INTERFACES {
        let names = remove(listed, |one| !used.contains(&*one.name));
        refused.extend((!names.is_empty()).then_some(RefusedInterfaces::TooMany { names, count }));
    }
    let count = count_with(listed, &known);
    if count > MAX_RETAINED_INTERFACES {
        let names = remove(listed, |one| !known.contains(&*one.name));
        refused.extend((!names.is_empty()).then_some(RefusedInterfaces::TooManyRetained { names, count }));
    }
    refused
}

/// Removes the interfaces of a list that match, and returns their names.
fn remove(listed: &mut Vec<Interface>, matches: impl Fn(&Interface) -> bool) -> Vec<String> {
    let (gone, stays) = std::mem::take(listed).into_iter().partition::<Vec<_>, _>(|one| matches(one));
    *listed = stays;
    gone.into_iter().map(|one| one.name).collect()
}
