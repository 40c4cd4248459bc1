//! The state of a remote cluster, from the events of its watches. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt as _};
use trunkline_api::kube::Lenient;
use trunkline_api::names::label;
use trunkline_api::pod::is_global_service;
use trunkline_api::resources::{
    AddressRange, IPInstanceSpec, NetworkSpec, NetworkType, NodeInfoSpec, SubnetSpec, VtepInfo,
};

use super::slices::Slice;
use crate::cluster::Table;

/// A change of one of the watched kinds.
#[derive(Debug)]
pub enum Change {
    /// Of a Network.
    Network(Event<Lenient<NetworkSpec>>),
    /// Of a Subnet.
    Subnet(Event<Lenient<SubnetSpec>>),
    /// Of a NodeInfo.
    Node(Event<Lenient<NodeInfoSpec>>),
    /// Of an IPInstance.
    Instance(Event<Lenient<IPInstanceSpec>>),
    /// Of a Service.
    Service(Event<PartialObjectMeta<Service>>),
    /// Of an EndpointSlice.
    Slice(Event<EndpointSlice>),
}

impl Change {
    /// Whether the change is the end of a list.
    pub fn ends_list(&self) -> bool {
        match self {
            Change::Network(event) => matches!(event, Event::InitDone),
            Change::Subnet(event) => matches!(event, Event::InitDone),
            Change::Node(event) => matches!(event, Event::InitDone),
            Change::Instance(event) => matches!(event, Event::InitDone),
            Change::Service(event) => matches!(event, Event::InitDone),
            Change::Slice(event) => matches!(event, Event::InitDone),
        }
    }
}

/// A Network: its type, and its netID.
type NetworkRow = (NetworkType, Option<u32>);

/// An IPInstance that a pod uses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InstanceRow {
    address: IpAddr,
    subnet: String,
    node: String,
}

/// The rows of a remote cluster.
#[derive(Default)]
pub struct View {
    networks: Table<String, NetworkRow>,
    subnets: Table<String, (String, AddressRange)>,
    nodes: Table<String, VtepInfo>,
    instances: Table<(String, String), InstanceRow>,
    /// Global Services, by namespace and name.
    services: Table<(String, String), ()>,
    /// The EndpointSlices of all Services, because a Service may become global.
    slices: Table<(String, String), Slice>,
    /// The subnet of each address of a node.
    by_node: BTreeMap<String, BTreeMap<IpAddr, String>>,
}

impl View {
    /// Whether all kinds that determine routes were listed.
    pub fn is_complete(&self) -> bool {
        self.networks.is_listed()
            && self.subnets.is_listed()
            && self.nodes.is_listed()
            && self.instances.is_listed()
    }

    /// Whether Services and their endpoints were listed. The user of the RemoteCluster may lack the
    /// right.
    pub fn has_services(&self) -> bool {
        self.services.is_listed() && self.slices.is_listed()
    }

    /// The EndpointSlices of global Services, by namespace and name.
    pub fn global_slices(&self) -> impl Iterator<Item = (&(String, String), &Slice)> {
        self.slices.iter().filter(|((namespace, _), slice)| {
            self.services.get(&(namespace.clone(), slice.service.clone())).is_some()
        })
    }

    /// Applies a change.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Network(event) => {
                let row = |object: Lenient<NetworkSpec>| {
                    let spec = object.0.ok()?.spec;
                    Some((spec.network_type.unwrap_or(NetworkType::Underlay), spec.net_id))
                };
                apply(&mut self.networks, event, |object| object.name_any(), row, |_, _, _| {});
            }
            Change::Subnet(event) => {
                let row = |object: Lenient<SubnetSpec>| {
                    let spec = object.0.ok()?.spec;
                    Some((spec.network, spec.range))
                };
                apply(&mut self.subnets, event, |object| object.name_any(), row, |_, _, _| {});
            }
            Change::Node(event) => {
                let row = |object: Lenient<NodeInfoSpec>| object.0.ok()?.spec.vtep_info;
                apply(&mut self.nodes, event, |object| object.name_any(), row, |_, _, _| {});
            }
            Change::Service(event) => {
                let row = |object: PartialObjectMeta<Service>| {
                    let annotations = object.metadata.annotations?;
                    is_global_service(&annotations).then_some(())
                };
                apply(&mut self.services, event, named, row, |_, _, _| {});
            }
            Change::Slice(event) => apply(&mut self.slices, event, named, Slice::of, |_, _, _| {}),
            Change::Instance(event) => {
                let name = named;
                let by_node = &mut self.by_node;
                apply(&mut self.instances, event, name, instance, |_, old, new| {
                    if let Some(old) = old {
                        let all = by_node.entry(old.node.clone()).or_default();
                        all.remove(&old.address);
                        if all.is_empty() {
                            by_node.remove(&old.node);
                        }
                    }
                    if let Some(new) = new {
                        let all = by_node.entry(new.node.clone()).or_default();
                        all.insert(new.address, new.subnet.clone());
                    }
                });
            }
        }
    }

    /// The subnets with a known Network: name, type of the Network, and range.
    pub fn subnets(&self) -> BTreeMap<&str, (NetworkType, &AddressRange)> {
        let of_type = |network: &String| self.networks.get(network).map(|(network_type, _)| *network_type);
        let all = self.subnets.iter();
        all.filter_map(|(name, (network, range))| Some((name.as_str(), (of_type(network)?, range)))).collect()
    }

    /// The netID of the overlay.
    pub fn overlay_net_id(&self) -> Option<u32> {
        let overlay = self.networks.iter().find(|(_, (kind, _))| *kind == NetworkType::Overlay);
        overlay.and_then(|(_, (_, net_id))| *net_id)
    }

    /// The nodes with a tunnel endpoint.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &VtepInfo)> {
        self.nodes.iter().map(|(name, vtep)| (name.as_str(), vtep))
    }

    /// The addresses of a node's pods in these subnets, in order.
    pub fn endpoints(&self, node: &str, subnets: &BTreeSet<&str>) -> Vec<IpAddr> {
        let all = self.by_node.get(node).into_iter().flatten();
        all.filter(|(_, subnet)| subnets.contains(subnet.as_str())).map(|(address, _)| *address).collect()
    }
}

/// Namespace and name.
fn named<T: Resource>(object: &T) -> (String, String) {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// The row of an IPInstance that a pod uses.
fn instance(object: Lenient<IPInstanceSpec>) -> Option<InstanceRow> {
    if object.meta().deletion_timestamp.is_some() {
        return None;
    }
    let node = object.labels().get(label::NODE).cloned().unwrap_or_default();
    let spec = object.0.ok()?.spec;
    let node = if spec.binding.node_name.is_empty() { node } else { spec.binding.node_name };
    let address = spec.address.ip.split('/').next()?.parse().ok()?;
    (!node.is_empty()).then_some(InstanceRow { address, subnet: spec.subnet, node })
}

/// Applies an event to a table. `changed` gets the key, the former and the new row.
fn apply<K, R, T>(
    table: &mut Table<K, R>,
    event: Event<T>,
    key: impl Fn(&T) -> K,
    row: impl Fn(T) -> Option<R>,
    mut changed: impl FnMut(&K, Option<&R>, Option<&R>),
) where
    K: Clone + Eq + std::hash::Hash,
{
    match event {
        Event::Init => table.begin(),
        Event::InitApply(object) | Event::Apply(object) => {
            let key = key(&object);
            let new = row(object);
            let old = table.remove(&key);
            changed(&key, old.as_ref(), new.as_ref());
            if let Some(new) = new {
                table.set(key, new);
            }
        }
        Event::Delete(object) => {
            let key = key(&object);
            let old = table.remove(&key);
            changed(&key, old.as_ref(), None);
        }
        Event::InitDone => {
            for key in table.end() {
                let old = table.remove(&key);
                changed(&key, old.as_ref(), None);
            }
        }
    }
}
