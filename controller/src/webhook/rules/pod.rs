//! Creation of a pod: its network selection is written on it, and its request is checked.
//!
//! ```text
//! annotations, labels ─► selection::select ─► network, subnets, type, family ─┬─ mutate: stamped on the pod, and a nodeSelector
//! namespace, kept IPInstances ─►                                              └─ validate: existing, matching, with free addresses
//! ```
//!
//! The annotations make the selection visible and final: a later change of the namespace does not
//! affect existing pods. The nodeSelector directs the pod to a node of its network and, by the
//! quota label (Underlay), to a node with a free address in its network. A pod that gets a retained
//! address back needs no free address.
//!
//! **The data may be stale**: the rows come from the watches, and the controller writes a Network's
//! `available` about once a second. A pod may be admitted although the last address was just
//! allocated. Then the pod waits for an address, because only the controller allocates addresses,
//! and it allocates none twice. A pod may be refused although an address has just become free; its
//! owner creates it again. A name or namespace that is not known *yet* is a separate case
//! ([`missing`]): otherwise users would look for a mistake in their manifests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Pod, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use trunkline_api::interfaces::{self, Interface};
use trunkline_api::names::{
    ATTACHED, QUOTA_NONEMPTY, annotation,
    label::{self, BGP_NETWORK_ATTACHMENT, OVERLAY_NETWORK_ATTACHMENT, UNDERLAY_NETWORK_ATTACHMENT},
};
use trunkline_api::pod::{
    AddressPreferences, IpFamily, Pools, annotation_field, extra_prefixes, ordinal, refused_prefix, retains,
    retention,
};
use trunkline_api::resources::{IpVersion, Network, NetworkType, Subnet, instance_name};
use trunkline_api::validate::Fault;

use super::{RuleResult, verdict};
use crate::cluster::{Cluster, InstanceRow, Interner, Key, NetworkingMetadata, Owner, vm};
use crate::multus::{self, InterfacesError};
use crate::selection::{Policy, Selection, TenancyError, check_tenancy, select};

/// The taint of a node without a network.
const NETWORK_UNAVAILABLE: &str = "node.kubernetes.io/network-unavailable";

/// The fields of a pod that the rules read.
#[derive(Clone, Debug, Default)]
pub struct NewPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name; empty if the API server will generate it.
    pub name: String,
    /// Its annotations, if the field is there.
    pub annotations: Option<BTreeMap<String, String>>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Kind of its controller.
    pub owner_kind: Option<String>,
    /// The VirtualMachineInstance that owns it.
    pub vm_instance: Option<String>,
    /// Whether it uses the node's network.
    pub host_network: bool,
    /// Its node selector, if the field is there.
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Its tolerations, if the field is there.
    pub tolerations: Option<Vec<Toleration>>,
}

impl NewPod {
    /// The fields of a pod that is about to be created in a namespace.
    pub fn of(pod: Pod, namespace: &str) -> NewPod {
        let spec = pod.spec.unwrap_or_default();
        let owner = Owner::controller(&pod.metadata.owner_references, &mut Interner::default());
        let owner_kind = owner.as_ref().map(|owner| owner.kind.to_string());
        NewPod {
            namespace: namespace.to_owned(),
            name: pod.metadata.name.unwrap_or_default(),
            annotations: pod.metadata.annotations,
            labels: pod.metadata.labels.unwrap_or_default(),
            vm_instance: owner.filter(vm::is_virtual_machine_instance).map(|owner| owner.name.to_string()),
            owner_kind,
            host_network: spec.host_network.unwrap_or(false),
            node_selector: spec.node_selector,
            tolerations: spec.tolerations,
        }
    }

    fn key(&self) -> Key {
        Key::new(self.namespace.as_str(), self.name.as_str())
    }

    /// Its allocation key: its own, or that of its virtual machine, whose name is that of the
    /// VirtualMachineInstance.
    fn allocation_key(&self, cluster: &Cluster) -> Key {
        match self.vm_instance.as_deref().filter(|_| cluster.vms.retain) {
            Some(vm) => vm::key_of_vm(&self.namespace.as_str().into(), vm),
            None => self.key(),
        }
    }

    /// The allocation key of the addresses that are retained for it, if it is a pod that gets such.
    fn kept_key(&self, cluster: &Cluster, policy: &Policy) -> Option<Key> {
        let of_vm = self.vm_instance.is_some() && cluster.vms.retain;
        let keeps = of_vm || self.is_stateful(policy) && retains(self.annotations(), policy.retain);
        keeps.then(|| self.allocation_key(cluster))
    }

    fn annotations(&self) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.annotations.as_ref().unwrap_or(&NONE)
    }

    fn preferences(&self) -> Result<AddressPreferences, Vec<Fault>> {
        AddressPreferences::read("Pod", &self.name, self.annotations(), &self.labels)
    }

    fn fault(&self, annotation: &str, message: String) -> Fault {
        Fault { kind: "Pod", name: self.name.clone(), field: annotation_field(annotation), message }
    }

    /// Whether its annotations and labels about networks are within their bound. The controller gives
    /// no address to another pod.
    fn check_size(&self) -> RuleResult {
        let metadata = ObjectMeta {
            annotations: self.annotations.clone(),
            labels: Some(self.labels.clone()),
            ..ObjectMeta::default()
        };
        verdict(NetworkingMetadata::of_pod(&metadata).size_fault("Pod", &self.name).into_iter().collect())
    }

    fn is_stateful(&self, policy: &Policy) -> bool {
        self.owner_kind.as_deref().is_some_and(|kind| policy.is_stateful_kind(kind))
    }

    /// The pod, as if it requested the addresses of an interface for `eth0`.
    fn for_interface(&self, interface: &Interface) -> NewPod {
        NewPod {
            annotations: Some(interface.annotations(self.annotations())),
            labels: BTreeMap::new(),
            ..self.clone()
        }
    }

    /// The faults of [`NewPod::for_interface`], as faults of the pod's list.
    fn of_interface(&self, interface: &Interface, faults: Vec<Fault>) -> Vec<Fault> {
        let text = |fault: Fault| format!("interface {}: {}", interface.name, fault.message);
        faults.into_iter().map(|fault| self.fault(annotation::INTERFACES, text(fault))).collect()
    }

    fn select(
        &self,
        cluster: &Cluster,
        holder: Option<&Key>,
        policy: &Policy,
    ) -> Result<Selection, Vec<Fault>> {
        select(cluster, &self.key(), self.annotations(), &self.labels, holder, policy)
    }
}

/// Changes to a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mutation {
    /// A JSON patch (RFC 6902).
    pub patch: Vec<Value>,
    /// Warnings for the client that creates the pod.
    pub warnings: Vec<String>,
}

/// Whether a pod gets addresses. All others are admitted as they are.
pub fn is_selected(pod: &NewPod, policy: &Policy) -> bool {
    policy.pod_selector.selects(&pod.labels)
}

/// The annotations and node selector of a pod. A pod with the host's network only gets a toleration
/// for nodes without a network.
pub fn mutate(pod: &NewPod, cluster: &Cluster, policy: &Policy) -> Result<Mutation, Vec<Fault>> {
    let mut mutation = Mutation::default();
    if pod.host_network {
        mutation.patch.extend(tolerate(pod.tolerations.as_deref()));
        return Ok(mutation);
    }
    let selection = pod.select(cluster, pod.kept_key(cluster, policy).as_ref(), policy)?;
    let mut stamps = BTreeMap::from([
        (annotation::NETWORK_TYPE.to_owned(), format!("{:?}", selection.network_type)),
        (annotation::IP_FAMILY.to_owned(), selection.family.to_string()),
        (annotation::HANDLED_BY_WEBHOOK.to_owned(), "true".to_owned()),
    ]);
    if let Some(network) = &selection.network {
        stamps.insert(annotation::SPECIFIED_NETWORK.to_owned(), network.clone());
    }
    if !selection.subnets.is_empty() {
        stamps.insert(annotation::SPECIFIED_SUBNET.to_owned(), selection.subnets.to_string());
    }
    merge("/metadata/annotations", pod.annotations.as_ref(), &stamps, &mut mutation.patch);

    let mut selector = node_selector(cluster, &selection);
    for interface in interfaces::read(&pod.name, pod.annotations())? {
        let own = pod.for_interface(&interface);
        let selection =
            own.select(cluster, None, policy).map_err(|faults| pod.of_interface(&interface, faults))?;
        selector.extend(node_selector(cluster, &selection));
    }
    for (key, value) in &selector {
        let own = pod.node_selector.as_ref().and_then(|own| own.get(key)).filter(|own| *own != value);
        if let Some(own) = own {
            mutation.warnings.push(format!(
                "Pod {}: spec.nodeSelector[{key}]: {own} is replaced by {value}, the label of its \
                 network's nodes",
                pod.name
            ));
        }
    }
    merge("/spec/nodeSelector", pod.node_selector.as_ref(), &selector, &mut mutation.patch);
    Ok(mutation)
}

/// Whether a pod's request can be satisfied, for each of its interfaces.
pub fn validate(pod: &NewPod, cluster: &Cluster, policy: &Policy) -> RuleResult {
    if pod.host_network {
        return Ok(());
    }
    pod.check_size()?;
    let interfaces = interfaces::read(&pod.name, pod.annotations())?;
    let mut found = validate_one(pod, None, cluster, policy).err().unwrap_or_default();
    found.extend(multus_faults(pod, cluster, policy));
    let mut selector = BTreeMap::new();
    for interface in &interfaces {
        let own = pod.for_interface(interface);
        let faults = validate_one(&own, Some(&interface.name), cluster, policy).err().unwrap_or_default();
        found.extend(pod.of_interface(interface, faults));
        let network = own.select(cluster, None, policy).ok().and_then(|selection| selection.network);
        let Some(network) = network.and_then(|name| cluster.network(&name)) else { continue };
        for (key, value) in &network.spec.node_selector {
            match selector.insert(key, value) {
                Some(other) if other != value => found.push(pod.fault(
                    annotation::INTERFACES,
                    format!(
                        "interface {}: Network {} has nodes with {key}={value}, and another interface needs \
                         {key}={other}: choose Networks that share a node",
                        interface.name,
                        network.name()
                    ),
                )),
                _ => {}
            }
        }
    }
    verdict(found)
}

/// Whether the request for one interface can be satisfied. `interface` is `None` for `eth0`.
fn validate_one(pod: &NewPod, interface: Option<&str>, cluster: &Cluster, policy: &Policy) -> RuleResult {
    // Ignore its retained addresses: the check looks for annotations that contradict them.
    let selection = pod.select(cluster, None, policy)?;
    let mut found = Vec::new();
    let holder = pod.allocation_key(cluster);
    let held = cluster.instances_of(&holder);
    let of_interface = |row: &&InstanceRow| !row.deleting && row.interface.as_deref() == interface;
    let held: Vec<_> = held.into_iter().map(|(_, row)| row).filter(of_interface).collect();
    if !pod.preferences()?.is_empty() {
        for row in &held {
            let named = |name: &str| selection.subnets.is_empty() || selection.subnets.contains(name);
            let (field, has, wants) =
                if selection.network.as_deref().is_some_and(|network| *network != *row.network) {
                    (
                        annotation::SPECIFIED_NETWORK,
                        ("Network", &row.network),
                        selection.network.iter().cloned().collect(),
                    )
                } else if !named(&row.subnet) {
                    (annotation::SPECIFIED_SUBNET, ("Subnet", &row.subnet), selection.subnets.to_string())
                } else {
                    continue;
                };
            let message = format!(
                "{wants}: the pod already has {} of {} {}: write the same, or delete its \
                 IPInstance first",
                row.address, has.0, has.1
            );
            found.push(pod.fault(field, message));
        }
    }
    found.extend(tenancy_fault(pod, interface, &selection, cluster, policy));
    match Pools::read(&pod.name, pod.annotations()) {
        Err(mut faults) => found.append(&mut faults),
        Ok(pools) => {
            found.extend(pool_faults(pod, &pools, &selection));
            let is_used = pod.is_stateful(policy) || interface.is_some();
            let own = is_used.then(|| pools.addresses(ordinal(&pod.name))).flatten();
            match own {
                Some(addresses) => found.extend(address_faults(pod, addresses, cluster, &selection)),
                None if held.is_empty() => found.extend(subnet_faults(pod, cluster, &selection)),
                None => {}
            }
        }
    }
    found.extend(retention(&pod.name, pod.annotations()).err().unwrap_or_default());
    match extra_prefixes(&pod.name, pod.annotations()) {
        Err(mut faults) => found.append(&mut faults),
        Ok(prefixes) => found.extend(prefix_fault(pod, &prefixes, &selection, cluster)),
    }
    if held.is_empty() {
        found.extend(capacity(pod, cluster, &selection));
    }
    verdict(found)
}

/// The fault if the pod's Namespace does not allow the Network of an interface. The Namespace's own
/// Network needs no check. An Underlay Network that follows from the node is not known yet: the
/// controller checks it.
fn tenancy_fault(
    pod: &NewPod,
    interface: Option<&str>,
    selection: &Selection,
    cluster: &Cluster,
    policy: &Policy,
) -> Option<Fault> {
    if interface.is_none() && pod.preferences().ok()?.is_empty() {
        return None;
    }
    let of_type = || match selection.network_type {
        NetworkType::Underlay => None,
        only => cluster.network_of_type(only).map(|network| network.name()),
    };
    let network = selection.network.as_deref().or_else(of_type);
    match check_tenancy(cluster, &pod.namespace, network, policy) {
        // The controller waits for the Namespace.
        Ok(()) | Err(TenancyError::UnknownNamespace { .. }) => None,
        Err(refused) => Some(pod.fault(annotation::SPECIFIED_NETWORK, refused.to_string())),
    }
}

/// The faults of Multus' annotation, and of its interfaces whose Networks are not allowed. Only the
/// leader knows the NetworkAttachmentDefinitions; the controller decides again. A pod waits for a
/// missing definition.
fn multus_faults(pod: &NewPod, cluster: &Cluster, policy: &Policy) -> Vec<Fault> {
    let all = match multus::interfaces(cluster, &pod.key(), pod.annotations()).listed {
        Ok(all) => all,
        Err(InterfacesError::Missing(_)) => return Vec::new(),
        Err(InterfacesError::Faults(faults)) => return faults,
    };
    let refused = all.iter().filter(|interface| interface.by_multus).filter_map(|interface| {
        let own = pod.for_interface(interface);
        let selection = own.select(cluster, None, policy).ok()?;
        let fault = tenancy_fault(&own, Some(&interface.name), &selection, cluster, policy)?;
        let message = format!("interface {}: {}", interface.name, fault.message);
        Some(pod.fault(annotation::MULTUS_NETWORKS, message))
    });
    refused.collect()
}

/// An unknown object on which the decision about a pod depends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// A Network, by name.
    Network(String),
    /// A Subnet, by name.
    Subnet(String),
    /// The pod's namespace. It must exist, since the pod is created in it.
    Namespace,
}

/// The first object that the pod names and the watches have not shown.
pub fn missing(pod: &NewPod, cluster: &Cluster) -> Option<Missing> {
    if pod.host_network {
        return None;
    }
    let interfaces = interfaces::read(&pod.name, pod.annotations()).unwrap_or_default();
    let own = interfaces.iter().filter_map(|interface| pod.for_interface(interface).preferences().ok());
    if let Some(missing) = own.filter_map(|preferences| unknown(preferences, cluster)).next() {
        return Some(missing);
    }
    let mut preferences = pod.preferences().ok()?;
    if preferences.is_empty() {
        let Some(found) = cluster.namespace(&pod.namespace) else { return Some(Missing::Namespace) };
        preferences =
            AddressPreferences::read("Namespace", &pod.namespace, &found.annotations, &found.labels).ok()?;
    }
    unknown(preferences, cluster)
}

/// The first Subnet or Network of these that the watches have not shown.
fn unknown(preferences: AddressPreferences, cluster: &Cluster) -> Option<Missing> {
    let subnets = preferences.subnets.iter().find(|name| cluster.subnet(name).is_none()).cloned();
    let network = || preferences.network.filter(|name| cluster.network(name).is_none()).map(Missing::Network);
    subnets.map(Missing::Subnet).or_else(network)
}

/// Labels of the nodes on which the pod can run.
fn node_selector(cluster: &Cluster, selection: &Selection) -> BTreeMap<String, String> {
    let attached = |label: &str| BTreeMap::from([(label.to_owned(), ATTACHED.to_owned())]);
    match selection.network_type {
        NetworkType::Overlay => attached(OVERLAY_NETWORK_ATTACHMENT),
        NetworkType::GlobalBGP => attached(BGP_NETWORK_ATTACHMENT),
        NetworkType::Underlay => {
            let named = selection.network.as_deref().and_then(|name| cluster.network(name));
            let mut selector = match named {
                Some(network) => network.spec.node_selector.clone(),
                None => attached(UNDERLAY_NETWORK_ATTACHMENT),
            };
            if !selection.retained {
                let quota = match selection.family {
                    IpFamily::V4 => label::IPV4_ADDRESS_QUOTA,
                    IpFamily::V6 => label::IPV6_ADDRESS_QUOTA,
                    IpFamily::DualStack => label::DUAL_STACK_ADDRESS_QUOTA,
                };
                selector.insert(quota.to_owned(), QUOTA_NONEMPTY.to_owned());
            }
            selector
        }
    }
}

fn pool_faults(pod: &NewPod, pools: &Pools, selection: &Selection) -> Vec<Fault> {
    if pools.addresses.is_empty() {
        return Vec::new();
    }
    if selection.network.is_none() {
        let message = format!(
            "the network of the addresses is not known: also write {} or {}",
            annotation::SPECIFIED_NETWORK,
            annotation::SPECIFIED_SUBNET
        );
        return vec![pod.fault(annotation::IP_POOL, message)];
    }
    let family = selection.family;
    let fits = |entry: &[IpAddr]| {
        entry.iter().any(|address| address.is_ipv4()) == family.has_v4()
            && entry.iter().any(|address| address.is_ipv6()) == family.has_v6()
    };
    let unfit = pools.addresses.iter().enumerate().filter(|(_, entry)| !fits(entry));
    unfit
        .map(|(index, entry)| Fault {
            field: format!("{}[{index}]", annotation_field(annotation::IP_POOL)),
            ..pod.fault(
                annotation::IP_POOL,
                format!(
                    "{entry:?} does not match the pod's family {family}: write one address of \
                     each family, or another {}",
                    annotation::IP_FAMILY
                ),
            )
        })
        .collect()
}

/// The faults of families for which the pod names Subnets and none of them gives it an address. A
/// full Subnet is no fault, because an address of it may become free.
fn subnet_faults(pod: &NewPod, cluster: &Cluster, selection: &Selection) -> Vec<Fault> {
    let mut found = Vec::new();
    for (family, version, wanted) in [
        (IpFamily::V4, IpVersion::V4, selection.family.has_v4()),
        (IpFamily::V6, IpVersion::V6, selection.family.has_v6()),
    ] {
        let named = selection.subnets.iter().filter_map(|name| cluster.subnet(name));
        let named: Vec<_> = named.filter(|subnet| subnet.spec.range.version == version).collect();
        let refusals: Vec<String> = named
            .iter()
            .filter_map(|subnet| {
                let refusal = subnet.access().check(&pod.namespace).err()?;
                Some(format!("Subnet {} {refusal}", subnet.name()))
            })
            .collect();
        if wanted && !named.is_empty() && refusals.len() == named.len() {
            let message = format!(
                "no named Subnet gives the pod an {family} address: {}: name another Subnet, or change spec.config \
                 of one of them",
                refusals.join(", ")
            );
            found.push(pod.fault(annotation::SPECIFIED_SUBNET, message));
        }
    }
    found
}

/// The faults of addresses that the pod names and that their Subnets do not give it. An address with
/// an IPInstance in the pod's namespace is not new: the controller decides about it.
fn address_faults(
    pod: &NewPod,
    addresses: &[IpAddr],
    cluster: &Cluster,
    selection: &Selection,
) -> Vec<Fault> {
    let Some(network) = &selection.network else { return Vec::new() };
    let is_new = |address: &&IpAddr| {
        cluster.instance(&Key::new(pod.namespace.as_str(), instance_name(**address))).is_none()
    };
    let refusal = |address: &IpAddr| {
        let subnet = cluster.subnet_with(network, *address)?;
        let refusal = subnet.access().check(&pod.namespace).err()?;
        let message = format!(
            "{address}: Subnet {} {refusal}: name another address, or change spec.config of the Subnet",
            subnet.name()
        );
        Some(pod.fault(annotation::IP_POOL, message))
    };
    addresses.iter().filter(is_new).filter_map(refusal).collect()
}

/// The fault if the pod names additional source prefixes that its Network does not allow.
fn prefix_fault(
    pod: &NewPod,
    prefixes: &BTreeSet<IpNet>,
    selection: &Selection,
    cluster: &Cluster,
) -> Option<Fault> {
    if prefixes.is_empty() {
        return None;
    }
    let network = match (&selection.network, selection.network_type) {
        (Some(name), _) => cluster.network(name),
        // The network follows from the node, which is not known yet.
        (None, NetworkType::Underlay) => {
            let message = format!(
                "the allowed prefixes depend on the Network: also write {} or {}",
                annotation::SPECIFIED_NETWORK,
                annotation::SPECIFIED_SUBNET
            );
            return Some(pod.fault(annotation::EXTRA_PREFIXES, message));
        }
        // Another rule reports a missing network.
        (None, only) => cluster.network_of_type(only),
    };
    let (_, message) = refused_prefix(prefixes, network?)?;
    Some(pod.fault(annotation::EXTRA_PREFIXES, message))
}

/// The fault if no address is free. Quota labels already keep Underlay pods away from full nodes;
/// networks of every node have no such labels.
fn capacity(pod: &NewPod, cluster: &Cluster, selection: &Selection) -> Option<Fault> {
    let wanted = selection.network_type;
    if wanted == NetworkType::Underlay {
        return None;
    }
    let named = selection.network.as_deref().and_then(|name| cluster.network(name));
    let Some(network) = named.or_else(|| cluster.network_of_type(wanted)) else {
        let message = format!("there is no Network of type {wanted:?}: create one, or write another type");
        return Some(pod.fault(annotation::NETWORK_TYPE, message));
    };
    if !is_counted(network, cluster) {
        // The status does not count a new Subnet yet. Until then the pod is admitted, and waits if
        // there is no address.
        return None;
    }
    (available(network, selection.family) <= 0).then(|| {
        let message = format!(
            "Network {} has no {} address left: add a Subnet, or delete some of its pods",
            network.name(),
            selection.family
        );
        pod.fault(annotation::IP_FAMILY, message)
    })
}

/// Whether the network's status counts all of its subnets.
fn is_counted(network: &Network, cluster: &Cluster) -> bool {
    let counted = network.status.as_ref().map_or(&[][..], |status| &status.subnet_list);
    cluster.subnets_of(network.name()).all(|name| {
        let going = |subnet: &Subnet| subnet.metadata.deletion_timestamp.is_some();
        counted.iter().any(|counted| **counted == **name)
            || cluster.subnet(name).is_none_or(|subnet| going(subnet))
    })
}

/// The number of pods of a family for which the network has addresses, by its status.
fn available(network: &Arc<Network>, family: IpFamily) -> i64 {
    let Some(status) = &network.status else { return 0 };
    let count = match family {
        IpFamily::V4 => &status.statistics,
        IpFamily::V6 => &status.ipv6_statistics,
        IpFamily::DualStack => &status.dual_stack_statistics,
    };
    count.as_ref().map_or(0, |count| count.available)
}

/// Adds missing or different entries to a map of the pod.
fn merge(
    path: &str,
    own: Option<&BTreeMap<String, String>>,
    wanted: &BTreeMap<String, String>,
    patch: &mut Vec<Value>,
) {
    match own {
        None if wanted.is_empty() => {}
        None => patch.push(json!({"op": "add", "path": path, "value": wanted})),
        Some(own) => {
            let different = wanted.iter().filter(|(key, value)| own.get(*key) != Some(value));
            patch.extend(different.map(|(key, value)| {
                // RFC 6901 §3.
                let key = key.replace('~', "~0").replace('/', "~1");
                json!({"op": "add", "path": format!("{path}/{key}"), "value": value})
            }));
        }
    }
}

fn tolerate(own: Option<&[Toleration]>) -> Option<Value> {
    let wanted = Toleration {
        key: Some(NETWORK_UNAVAILABLE.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoSchedule".to_owned()),
        ..Toleration::default()
    };
    match own {
        None => Some(json!({"op": "add", "path": "/spec/tolerations", "value": [wanted]})),
        Some(own) if own.contains(&wanted) => None,
        Some(_) => Some(json!({"op": "add", "path": "/spec/tolerations/-", "value": wanted})),
    }
}

#[cfg(test)]
#[path = "pod_tests.rs"]
mod tests;
