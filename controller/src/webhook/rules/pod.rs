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
use crate::cluster::{Cluster, InstanceRow, Interner, Key, Owner, vm};
use crate::selection::{Policy, Selection, select};

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
    let interfaces = interfaces::read(&pod.name, pod.annotations())?;
    let mut found = validate_one(pod, None, cluster, policy).err().unwrap_or_default();
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
mod tests {
    use trunkline_api::kube::IPInstanceObject;
    use trunkline_api::names::annotation as a;
    use trunkline_api::resources::LabelSelector;

    use super::super::tests::{expect, instance, network, subnet};
    use super::*;
    use crate::cluster::{InstanceRow, NetworkingMetadata};

    fn policy() -> Policy {
        Policy {
            family: IpFamily::V4,
            network_type: NetworkType::Underlay,
            retain: true,
            stateful_kinds: vec!["StatefulSet".to_owned()],
            pod_selector: LabelSelector::default(),
        }
    }

    fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// rack1 (VLAN, subnets v4 and v6, team for Namespace named, and the disabled off and off6), bgp, overlay (IPv4 left, no IPv6), no GlobalBGP; namespace
    /// `plain` has no annotations, `named` names rack1.
    fn cluster() -> Cluster {
        let mut cluster = Cluster::default();
        let mut overlay = network("overlay", json!({"type": "Overlay", "netID": 4}));
        overlay.status = Some(
            serde_json::from_value(json!({"statistics": {"total": 9, "used": 1, "available": 8}})).unwrap(),
        );
        let networks = [
            network(
                "rack1",
                json!({"nodeSelector": {"network": "rack1"}, "netID": 10,
                       "config": {"extraPrefixes": ["10.9.0.0/16", "fd00:9::/48"]}}),
            ),
            network("bgp", json!({"nodeSelector": {"network": "rack2"}, "netID": 65001, "mode": "BGP"})),
            overlay,
        ];
        for network in networks {
            cluster.networks.set(network.name().into(), Arc::new(network));
        }
        for (name, of, version, cidr) in [
            ("v4", "rack1", "4", "10.1.0.0/24"),
            ("v6", "rack1", "6", "2001:db8:1::/112"),
            ("bgp4", "bgp", "4", "10.2.0.0/24"),
            ("team", "rack1", "4", "10.4.0.0/24"),
            ("off", "rack1", "4", "10.5.0.0/24"),
            ("off6", "rack1", "6", "2001:db8:5::/112"),
        ] {
            let config = match name {
                "team" => json!({"private": true, "allowedNamespaces": ["named"]}),
                "off" | "off6" => json!({"disabled": true}),
                _ => json!({}),
            };
            let range = json!({"version": version, "cidr": cidr});
            let subnet = subnet(name, json!({"network": of, "range": range, "config": config}));
            cluster.set_subnet(&name.into(), Arc::new(subnet));
        }
        for (name, annotations) in
            [("plain", texts(&[])), ("named", texts(&[(a::SPECIFIED_NETWORK, "rack1")]))]
        {
            cluster
                .namespaces
                .set(name.into(), NetworkingMetadata { annotations, ..NetworkingMetadata::default() }.into());
        }
        cluster
    }

    fn give(cluster: &mut Cluster, ip: &str, network: &str, subnet: &str, pod: &str) {
        let mut given = instance(ip, network, subnet, pod, "");
        given.metadata.namespace = Some("plain".to_owned());
        let row = InstanceRow::of(&given.clone().into(), cluster.vms.retain, &mut cluster.interner).unwrap();
        assert!(cluster.set_instance(&Key::new("plain", given.metadata.name.as_str()), row).is_ok());
    }

    fn pod(annotations: &[(&str, &str)]) -> NewPod {
        let annotations = (!annotations.is_empty()).then(|| texts(annotations));
        NewPod { namespace: "plain".to_owned(), name: "web-0".to_owned(), annotations, ..NewPod::default() }
    }

    fn stateful(annotations: &[(&str, &str)]) -> NewPod {
        NewPod { owner_kind: Some("StatefulSet".to_owned()), ..pod(annotations) }
    }

    /// The pod's annotations and node selector after the patch, by a separate implementation of RFC
    /// 6902.
    fn stamped(pod: &NewPod, cluster: &Cluster) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
        let mut object = json!({"metadata": {}, "spec": {}});
        let mut put =
            |path: &str, value: Value| {
                object.pointer_mut(path).unwrap().as_object_mut().unwrap().insert(
                    if path == "/metadata" { "annotations" } else { "nodeSelector" }.to_owned(),
                    value,
                )
            };
        if let Some(annotations) = &pod.annotations {
            put("/metadata", json!(annotations));
        }
        if let Some(selector) = &pod.node_selector {
            put("/spec", json!(selector));
        }
        for operation in mutate(pod, cluster, &policy()).unwrap().patch {
            assert_eq!(operation["op"], "add");
            let (parent, key) = operation["path"].as_str().unwrap().rsplit_once('/').unwrap();
            let key = key.replace("~1", "/").replace("~0", "~");
            object
                .pointer_mut(parent)
                .unwrap()
                .as_object_mut()
                .unwrap()
                .insert(key, operation["value"].clone());
        }
        let read = |value: &Value| serde_json::from_value(value.clone()).unwrap_or_default();
        (read(&object["metadata"]["annotations"]), read(&object["spec"]["nodeSelector"]))
    }

    #[test]
    fn selection_is_written_on_the_pod() {
        let mut cluster = cluster();
        give(&mut cluster, "10.2.0.7/24", "bgp", "bgp4", "kept-0");
        let kept = |pod: NewPod| NewPod { name: "kept-0".to_owned(), ..pod };
        let in_named = |pod: NewPod| NewPod { namespace: "named".to_owned(), ..pod };
        let quota = (label::IPV4_ADDRESS_QUOTA, QUOTA_NONEMPTY);
        let underlay = (UNDERLAY_NETWORK_ATTACHMENT, "true");
        for (case, pod, annotations, selector) in [
            (
                "no annotations",
                pod(&[]),
                vec![(a::NETWORK_TYPE, "Underlay"), (a::IP_FAMILY, "IPv4")],
                vec![underlay, quota],
            ),
            (
                "a network",
                pod(&[(a::SPECIFIED_NETWORK, "rack1")]),
                vec![(a::SPECIFIED_NETWORK, "rack1"), (a::NETWORK_TYPE, "Underlay"), (a::IP_FAMILY, "IPv4")],
                vec![("network", "rack1"), quota],
            ),
            (
                "subnets",
                pod(&[(a::SPECIFIED_SUBNET, "v4/v6"), (a::IP_FAMILY, "DualStack")]),
                vec![
                    (a::SPECIFIED_NETWORK, "rack1"),
                    (a::SPECIFIED_SUBNET, "v4/v6"),
                    (a::NETWORK_TYPE, "Underlay"),
                    (a::IP_FAMILY, "DualStack"),
                ],
                vec![("network", "rack1"), (label::DUAL_STACK_ADDRESS_QUOTA, QUOTA_NONEMPTY)],
            ),
            (
                "IPv6",
                pod(&[(a::IP_FAMILY, "ipv6only")]),
                vec![(a::NETWORK_TYPE, "Underlay"), (a::IP_FAMILY, "IPv6")],
                vec![underlay, (label::IPV6_ADDRESS_QUOTA, QUOTA_NONEMPTY)],
            ),
            (
                "overlay",
                pod(&[(a::NETWORK_TYPE, "overlay")]),
                vec![(a::NETWORK_TYPE, "Overlay"), (a::IP_FAMILY, "IPv4")],
                vec![(OVERLAY_NETWORK_ATTACHMENT, "true")],
            ),
            (
                "global",
                pod(&[(a::NETWORK_TYPE, "GlobalBGP")]),
                vec![(a::NETWORK_TYPE, "GlobalBGP"), (a::IP_FAMILY, "IPv4")],
                vec![(BGP_NETWORK_ATTACHMENT, "true")],
            ),
            (
                "the namespace's",
                in_named(pod(&[])),
                vec![(a::SPECIFIED_NETWORK, "rack1"), (a::NETWORK_TYPE, "Underlay"), (a::IP_FAMILY, "IPv4")],
                vec![("network", "rack1"), quota],
            ),
            (
                "the pod before the namespace",
                in_named(pod(&[(a::SPECIFIED_NETWORK, "bgp")])),
                vec![(a::SPECIFIED_NETWORK, "bgp"), (a::NETWORK_TYPE, "Underlay"), (a::IP_FAMILY, "IPv4")],
                vec![("network", "rack2"), quota],
            ),
            (
                "the retained address before the pod, and no quota",
                kept(stateful(&[(a::SPECIFIED_NETWORK, "rack1")])),
                vec![(a::SPECIFIED_NETWORK, "bgp"), (a::NETWORK_TYPE, "Underlay"), (a::IP_FAMILY, "IPv4")],
                vec![("network", "rack2")],
            ),
            (
                "ip-retain false",
                kept(stateful(&[(a::SPECIFIED_NETWORK, "rack1"), (a::IP_RETAIN, "false")])),
                vec![
                    (a::SPECIFIED_NETWORK, "rack1"),
                    (a::NETWORK_TYPE, "Underlay"),
                    (a::IP_FAMILY, "IPv4"),
                    (a::IP_RETAIN, "false"),
                ],
                vec![("network", "rack1"), quota],
            ),
            (
                "no stateful pod",
                kept(pod(&[])),
                vec![(a::NETWORK_TYPE, "Underlay"), (a::IP_FAMILY, "IPv4")],
                vec![underlay, quota],
            ),
        ] {
            let mut annotations = texts(&annotations);
            annotations.insert(a::HANDLED_BY_WEBHOOK.to_owned(), "true".to_owned());
            let (got, selected) = stamped(&pod, &cluster);
            assert_eq!(got, annotations, "{case}");
            assert_eq!(selected, texts(&selector), "{case}");
        }
    }

    #[test]
    fn mutation_keeps_other_values() {
        let cluster = cluster();
        let mut own = pod(&[("note", "mine"), (a::SPECIFIED_NETWORK, "rack1")]);
        own.node_selector = Some(texts(&[("disk", "ssd"), ("network", "rack9")]));
        let (annotations, selector) = stamped(&own, &cluster);
        assert_eq!(annotations["note"], "mine");
        assert_eq!(selector["disk"], "ssd");
        assert_eq!(selector["network"], "rack1");
        let warnings = mutate(&own, &cluster, &policy()).unwrap().warnings;
        assert!(warnings[0].contains("nodeSelector[network]: rack9 is replaced by rack1"), "{warnings:?}");

        // The second run, on the result of the first, changes nothing.
        own.annotations = Some(annotations);
        own.node_selector = Some(selector);
        assert_eq!(mutate(&own, &cluster, &policy()).unwrap(), Mutation::default());
    }

    #[test]
    fn host_network_pods_only_get_a_toleration() {
        let cluster = cluster();
        let host = NewPod { host_network: true, ..pod(&[(a::SPECIFIED_NETWORK, "nowhere")]) };
        let patch = mutate(&host, &cluster, &policy()).unwrap().patch;
        let wanted = json!({"key": NETWORK_UNAVAILABLE, "operator": "Exists", "effect": "NoSchedule"});
        assert_eq!(patch, [json!({"op": "add", "path": "/spec/tolerations", "value": [wanted]})]);
        let other: Toleration = serde_json::from_value(json!({"operator": "Exists", "key": "x"})).unwrap();
        let patch = mutate(&NewPod { tolerations: Some(vec![other]), ..host.clone() }, &cluster, &policy())
            .unwrap()
            .patch;
        assert_eq!(patch, [json!({"op": "add", "path": "/spec/tolerations/-", "value": wanted})]);
        let same =
            NewPod { tolerations: Some(vec![serde_json::from_value(wanted).unwrap()]), ..host.clone() };
        assert_eq!(mutate(&same, &cluster, &policy()).unwrap(), Mutation::default());
        expect("host network", validate(&host, &cluster, &policy()), "");
    }

    #[test]
    fn requests_are_checked_against_the_cluster() {
        let mut cluster = cluster();
        give(&mut cluster, "10.1.0.7/24", "rack1", "v4", "kept-0");
        let rack1 = (a::SPECIFIED_NETWORK, "rack1");
        for (case, annotations, refusal) in [
            ("nothing", &[][..], ""),
            ("a network", &[rack1], ""),
            ("no such network", &[(a::SPECIFIED_NETWORK, "rack9")], "there is no Network rack9"),
            ("its type", &[rack1, (a::NETWORK_TYPE, "Underlay")], ""),
            (
                "another type",
                &[rack1, (a::NETWORK_TYPE, "Overlay")],
                "is of type Underlay, and the pod requests Overlay",
            ),
            ("a subnet", &[(a::SPECIFIED_SUBNET, "v4")], ""),
            ("two subnets", &[(a::SPECIFIED_SUBNET, "v4/v6"), (a::IP_FAMILY, "DualStack")], ""),
            ("v6 before v4", &[(a::SPECIFIED_SUBNET, "v6/v4")], "write `v4-subnet/v6-subnet`"),
            (
                "three subnets",
                &[(a::SPECIFIED_SUBNET, "v4/v6/bgp4")],
                "specified-subnet]: `v4/v6/bgp4` does not name Subnets",
            ),
            ("subnets in order of preference", &[(a::SPECIFIED_SUBNET, "off,v4")], ""),
            (
                "subnets of both families in order",
                &[(a::SPECIFIED_SUBNET, "team,v4/off6,v6"), (a::IP_FAMILY, "DualStack")],
                "",
            ),
            ("an unknown one in a list", &[(a::SPECIFIED_SUBNET, "v4,v9")], "there is no Subnet v9"),
            (
                "only disabled and restricted subnets",
                &[(a::SPECIFIED_SUBNET, "off,team")],
                "specified-subnet]: no named Subnet gives the pod an IPv4 address: Subnet off is disabled, Subnet team is \
                 only for Namespaces named, and not for plain",
            ),
            (
                "a disabled subnet of one family",
                &[(a::SPECIFIED_SUBNET, "v4/off6"), (a::IP_FAMILY, "DualStack")],
                "no named Subnet gives the pod an IPv6 address: Subnet off6 is disabled",
            ),
            (
                "further interfaces",
                &[(
                    a::INTERFACES,
                    r#"[{"name": "net1", "network": "overlay"}, {"name": "net2", "subnet": "v6", "ipFamily": "IPv6"}]"#,
                )],
                "",
            ),
            (
                "interfaces without a common node",
                &[(
                    a::INTERFACES,
                    r#"[{"name": "net1", "network": "bgp"}, {"name": "net2", "network": "rack1"}]"#,
                )],
                "interface net2: Network rack1 has nodes with network=rack1, and another interface needs",
            ),
            ("an unreadable list", &[(a::INTERFACES, "net1")], "alibaba.com/interfaces]: expected"),
            (
                "an interface in an unknown network",
                &[(a::INTERFACES, r#"[{"name": "net1", "network": "rack9"}]"#)],
                "interfaces]: interface net1: there is no Network rack9",
            ),
            (
                "an interface in a disabled subnet",
                &[(a::INTERFACES, r#"[{"name": "net1", "subnet": "off"}]"#)],
                "interface net1: no named Subnet gives the pod an IPv4 address: Subnet off is disabled",
            ),
            (
                "an interface with an address of another subnet",
                &[(a::INTERFACES, r#"[{"name": "net1", "network": "rack1", "addresses": ["10.5.0.7"]}]"#)],
                "interface net1: 10.5.0.7: Subnet off is disabled",
            ),
            ("a retention", &[(a::IP_RETENTION, "72h")], ""),
            ("no retention", &[(a::IP_RETENTION, "3 days")], "ip-retention]: `3 days` is not a retention"),
            ("no such subnet", &[(a::SPECIFIED_SUBNET, "v9")], "there is no Subnet v9"),
            ("subnets of two networks", &[(a::SPECIFIED_SUBNET, "bgp4/v6")], "name subnets of one network"),
            (
                "another network's subnet",
                &[rack1, (a::SPECIFIED_SUBNET, "bgp4")],
                "belongs to Network bgp and not to rack1",
            ),
            ("pool", &[rack1, (a::IP_POOL, "10.1.0.8,10.1.0.9")], ""),
            (
                "pool of pairs",
                &[rack1, (a::IP_FAMILY, "DualStack"), (a::IP_POOL, "10.1.0.8/2001:db8:1::8")],
                "",
            ),
            ("pool without network", &[(a::IP_POOL, "10.1.0.8")], "the network of the addresses"),
            (
                "pool with an empty entry",
                &[rack1, (a::IP_POOL, "10.1.0.8,")],
                "ip-pool][1]: `` is not an IP address",
            ),
            (
                "pool of a wrong address",
                &[rack1, (a::IP_POOL, "10.1.0.800")],
                "ip-pool][0]: `10.1.0.800` is not",
            ),
            (
                "pool of the other family",
                &[rack1, (a::IP_POOL, "2001:db8:1::8")],
                "does not match the pod's family IPv4",
            ),
            (
                "half a pair",
                &[rack1, (a::IP_FAMILY, "DualStack"), (a::IP_POOL, "10.1.0.8")],
                "the pod's family DualStack",
            ),
            ("MAC pool", &[(a::MAC_POOL, "02:12:34:00:00:01,02:12:34:00:00:02")], ""),
            ("wrong MAC pool", &[(a::MAC_POOL, "02:12:34:00:00:01,x")], "mac-pool][1]: `x` is not"),
            ("wrong type", &[(a::NETWORK_TYPE, "Underlie")], "`Underlie` is no type of a Network"),
            ("wrong family", &[(a::IP_FAMILY, "IPv5")], "`IPv5` is no family"),
            ("extra prefixes", &[rack1, (a::EXTRA_PREFIXES, "10.9.0.0/16,10.9.3.0/24,fd00:9::/64")], ""),
            (
                "extra prefixes of the Subnet's Network",
                &[(a::SPECIFIED_SUBNET, "v4"), (a::EXTRA_PREFIXES, "10.9.0.7/32")],
                "",
            ),
            (
                "an extra prefix outside the Network's prefixes",
                &[rack1, (a::EXTRA_PREFIXES, "10.9.0.0/16,10.10.0.0/16")],
                "extra-prefixes]: 10.10.0.0/16: spec.config.extraPrefixes of Network rack1 allows 10.9.0.0/16, fd00:9::/48",
            ),
            (
                "a wider prefix than the Network's",
                &[rack1, (a::EXTRA_PREFIXES, "10.8.0.0/15")],
                "extra-prefixes]: 10.8.0.0/15: spec.config.extraPrefixes of Network rack1",
            ),
            (
                "a Network that allows none",
                &[(a::SPECIFIED_NETWORK, "bgp"), (a::EXTRA_PREFIXES, "10.9.0.0/16")],
                "spec.config.extraPrefixes of Network bgp allows nothing",
            ),
            (
                "the Overlay allows none",
                &[(a::NETWORK_TYPE, "Overlay"), (a::EXTRA_PREFIXES, "10.9.0.0/16")],
                "spec.config.extraPrefixes of Network overlay allows nothing",
            ),
            (
                "extra prefixes without a Network",
                &[(a::EXTRA_PREFIXES, "10.9.0.0/16")],
                "the allowed prefixes depend on the Network: also write",
            ),
            (
                "no prefix",
                &[rack1, (a::EXTRA_PREFIXES, "10.9.0.0/16,10.9.0.1")],
                "extra-prefixes][1]: `10.9.0.1` has no length: write 10.9.0.1/32",
            ),
            (
                "host bits",
                &[rack1, (a::EXTRA_PREFIXES, "10.9.0.1/16")],
                "extra-prefixes][0]: 10.9.0.1/16 has host bits: write 10.9.0.0/16",
            ),
            ("overlay has IPv4", &[(a::NETWORK_TYPE, "Overlay")], ""),
            (
                "overlay has no IPv6",
                &[(a::NETWORK_TYPE, "Overlay"), (a::IP_FAMILY, "IPv6")],
                "Network overlay has no IPv6 address left",
            ),
            (
                "nor pairs",
                &[(a::SPECIFIED_NETWORK, "overlay"), (a::IP_FAMILY, "DualStack")],
                "no DualStack address left",
            ),
            ("no GlobalBGP", &[(a::NETWORK_TYPE, "GlobalBGP")], "there is no Network of type GlobalBGP"),
        ] {
            expect(case, validate(&pod(annotations), &cluster, &policy()), refusal);
        }
        for (case, annotations, refusal) in [
            ("in the Network of its address", &[rack1][..], ""),
            (
                "another network",
                &[(a::SPECIFIED_NETWORK, "bgp")],
                "bgp: the pod already has 10.1.0.7 of Network rack1",
            ),
            ("its subnet", &[(a::SPECIFIED_SUBNET, "v4/v6")], ""),
            (
                "another subnet",
                &[(a::SPECIFIED_SUBNET, "v6"), (a::IP_FAMILY, "IPv6")],
                "v6: the pod already has 10.1.0.7 of Subnet v4",
            ),
        ] {
            let pod = NewPod { name: "kept-0".to_owned(), ..pod(annotations) };
            expect(case, validate(&pod, &cluster, &policy()), refusal);
        }
        // A namespace cannot set prefixes: its annotation for prefixes is not read, but its Network
        // is used.
        let in_named = |annotations| NewPod { namespace: "named".to_owned(), ..pod(annotations) };
        let mut annotations_of =
            texts(&[(a::SPECIFIED_NETWORK, "rack1"), (a::EXTRA_PREFIXES, "10.10.0.0/16")]);
        cluster.namespaces.set(
            "named".into(),
            NetworkingMetadata { annotations: annotations_of.clone(), ..NetworkingMetadata::default() }
                .into(),
        );
        expect("the namespace's prefixes", validate(&in_named(&[]), &cluster, &policy()), "");
        let own = [(a::EXTRA_PREFIXES, "10.9.0.0/16")];
        expect("the namespace's Network", validate(&in_named(&own), &cluster, &policy()), "");
        annotations_of.insert(a::SPECIFIED_NETWORK.to_owned(), "bgp".to_owned());
        cluster.namespaces.set(
            "named".into(),
            NetworkingMetadata { annotations: annotations_of, ..NetworkingMetadata::default() }.into(),
        );
        expect("another", validate(&in_named(&own), &cluster, &policy()), "Network bgp allows nothing");
        // A pod with retained addresses is admitted even if the network is full.
        give(&mut cluster, "10.5.0.7/24", "overlay", "o4", "kept-1");
        let full = network("overlay", json!({"type": "Overlay", "netID": 4}));
        cluster.networks.set("overlay".into(), Arc::new(full));
        let kept = NewPod { name: "kept-1".to_owned(), ..pod(&[(a::SPECIFIED_NETWORK, "overlay")]) };
        expect("kept", validate(&kept, &cluster, &policy()), "");
        expect(
            "new",
            validate(&NewPod { name: "new".to_owned(), ..kept.clone() }, &cluster, &policy()),
            "no IPv4 address left",
        );
        // The status does not count the addresses of this subnet yet.
        let new =
            subnet("o4", json!({"network": "overlay", "range": {"version": "4", "cidr": "10.5.0.0/24"}}));
        cluster.set_subnet(&"o4".into(), Arc::new(new));
        expect("new subnet", validate(&NewPod { name: "new".to_owned(), ..kept }, &cluster, &policy()), "");
    }

    /// The pod of a virtual machine goes to the nodes of its retained addresses, also if the Network is
    /// full.
    #[test]
    fn pod_of_a_virtual_machine_follows_its_retained_addresses() {
        let mut cluster = cluster();
        let full = network("overlay", json!({"type": "Overlay", "netID": 4}));
        cluster.networks.set("overlay".into(), Arc::new(full));
        let new = NewPod { vm_instance: Some("web".to_owned()), ..pod(&[]) };
        for retain in [false, true] {
            cluster.vms.retain = retain;
            let kept = instance("10.5.0.7/24", "overlay", "o4", "", "");
            let key = Key::new("plain", kept.metadata.name.as_str());
            let mut kept: IPInstanceObject = kept.into();
            let owner = json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web", "uid": "v", "controller": true,
            });
            kept.metadata.owner_references = Some(vec![serde_json::from_value(owner).unwrap()]);
            let row = InstanceRow::of(&kept, retain, &mut cluster.interner).unwrap();
            assert!(cluster.set_instance(&key, row).is_ok());
            let (annotations, _) = stamped(&new, &cluster);
            let network = annotations.get(a::SPECIFIED_NETWORK).map(String::as_str);
            assert_eq!(network, retain.then_some("overlay"), "{annotations:?}");
        }
        let named = NewPod { annotations: Some(texts(&[(a::SPECIFIED_NETWORK, "overlay")])), ..new };
        expect("its own address", validate(&named, &cluster, &policy()), "");
        let other = NewPod { vm_instance: Some("other".to_owned()), ..named };
        expect("a new virtual machine", validate(&other, &cluster, &policy()), "no IPv4 address left");
    }

    #[test]
    fn pods_of_another_plugin_are_not_selected() {
        let policy = Policy { pod_selector: "cni=trunkline".parse().unwrap(), ..policy() };
        let labelled = |value| NewPod { labels: texts(&[("cni", value)]), ..pod(&[]) };
        assert!(is_selected(&labelled("trunkline"), &policy));
        assert!(!is_selected(&labelled("other"), &policy) && !is_selected(&pod(&[]), &policy));
        assert!(is_selected(&pod(&[]), &Policy { pod_selector: LabelSelector::default(), ..policy }));
    }

    #[test]
    fn subnets_are_only_for_their_namespaces() {
        let mut cluster = cluster();
        let rack1 = (a::SPECIFIED_NETWORK, "rack1");
        let in_named = |pod: NewPod| NewPod { namespace: "named".to_owned(), ..pod };
        let check = |case: &str, cluster: &Cluster, pod: &NewPod, refusal: &str| {
            expect(case, validate(pod, cluster, &policy()), refusal);
        };
        let team = [(a::SPECIFIED_SUBNET, "team")];
        check("its namespace", &cluster, &in_named(pod(&team)), "");
        check("another namespace", &cluster, &pod(&team), "and not for plain");
        let pool = [rack1, (a::IP_POOL, "10.4.0.8")];
        let refusal = "ip-pool]: 10.4.0.8: Subnet team is only for Namespaces named, and not for plain";
        check("a named address", &cluster, &stateful(&pool), refusal);
        check("a named address in its namespace", &cluster, &in_named(stateful(&pool)), "");
        check("a pool that the controller ignores", &cluster, &pod(&pool), "");
        let pool = [rack1, (a::IP_POOL, "10.5.0.7,10.5.0.8")];
        check(
            "an address of a disabled subnet",
            &cluster,
            &stateful(&pool),
            "10.5.0.7: Subnet off is disabled",
        );
        give(&mut cluster, "10.5.0.7/24", "rack1", "off", "web-0");
        check("its own address", &cluster, &stateful(&pool), "");
        let off = [(a::SPECIFIED_SUBNET, "off")];
        check("its retained address", &cluster, &stateful(&off), "");
        let other = NewPod { name: "web-1".to_owned(), ..stateful(&off) };
        check("a new address", &cluster, &other, "Subnet off is disabled");
    }

    #[test]
    fn unknown_names_are_reported_as_missing() {
        let cluster = cluster();
        for (pod, wanted) in [
            (pod(&[]), None),
            (pod(&[(a::SPECIFIED_NETWORK, "rack9")]), Some(Missing::Network("rack9".to_owned()))),
            (pod(&[(a::SPECIFIED_SUBNET, "v4/v9")]), Some(Missing::Subnet("v9".to_owned()))),
            (NewPod { namespace: "new".to_owned(), ..pod(&[]) }, Some(Missing::Namespace)),
            (NewPod { namespace: "new".to_owned(), ..pod(&[(a::SPECIFIED_NETWORK, "rack1")]) }, None),
            (NewPod { host_network: true, ..pod(&[(a::SPECIFIED_NETWORK, "rack9")]) }, None),
        ] {
            assert_eq!(missing(&pod, &cluster), wanted, "{pod:?}");
        }
    }
}
