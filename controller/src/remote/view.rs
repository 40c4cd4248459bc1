//! The state of a remote cluster, from the events of its watches. No I/O.
//!
//! The remote API server may answer with any number of objects. So the view has at most [`Limits`] rows
//! of each kind. It leaves out further rows, and [`View::excess`] reports them.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
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

/// The maximum number of rows of each kind.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Of Networks.
    pub networks: usize,
    /// Of Subnets.
    pub subnets: usize,
    /// Of nodes with a tunnel endpoint.
    pub nodes: usize,
    /// Of IPInstances that pods use.
    pub instances: usize,
    /// Of global Services.
    pub services: usize,
    /// Of EndpointSlices of all Services.
    pub slices: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            networks: 2_000,
            subnets: 2_000,
            nodes: 10_000,
            instances: 500_000,
            services: 50_000,
            slices: 100_000,
        }
    }
}

/// The rows of one kind, up to a limit.
struct Rows<K, R> {
    table: Table<K, R>,
    limit: usize,
    /// Number of events since the last list about rows that were left out.
    left_out: usize,
}

impl<K: Clone + Eq + Hash, R> Rows<K, R> {
    fn new(limit: usize) -> Self {
        Rows { table: Table::default(), limit, left_out: 0 }
    }

    /// Whether a new list may bring a row that was left out.
    fn has_room(&self) -> bool {
        self.left_out > 0 && self.table.len() < self.limit
    }

    /// Applies an event. `changed` gets the former and the new row.
    fn apply<T>(
        &mut self,
        event: Event<T>,
        key: impl Fn(&T) -> K,
        row: impl Fn(T) -> Option<R>,
        mut changed: impl FnMut(Option<&R>, Option<&R>),
    ) {
        match event {
            Event::Init => {
                self.table.begin();
                self.left_out = 0;
            }
            Event::InitApply(object) | Event::Apply(object) => {
                let key = key(&object);
                let old = self.table.remove(&key);
                let is_full = self.table.len() >= self.limit;
                let mut new = row(object);
                if is_full && new.take().is_some() {
                    self.left_out += 1;
                }
                changed(old.as_ref(), new.as_ref());
                if let Some(new) = new {
                    self.table.set(key, new);
                }
            }
            Event::Delete(object) => {
                let old = self.table.remove(&key(&object));
                changed(old.as_ref(), None);
            }
            Event::InitDone => {
                for key in self.table.end() {
                    let old = self.table.remove(&key);
                    changed(old.as_ref(), None);
                }
            }
        }
    }
}

/// The rows of a remote cluster.
pub struct View {
    networks: Rows<String, NetworkRow>,
    subnets: Rows<String, (String, AddressRange)>,
    nodes: Rows<String, VtepInfo>,
    instances: Rows<(String, String), InstanceRow>,
    /// Global Services, by namespace and name.
    services: Rows<(String, String), ()>,
    /// The EndpointSlices of all Services, because a Service may become global.
    slices: Rows<(String, String), Slice>,
    /// The subnet of each address of a node.
    by_node: BTreeMap<String, BTreeMap<IpAddr, String>>,
}

impl Default for View {
    fn default() -> Self {
        View::new(Limits::default())
    }
}

impl View {
    /// An empty view.
    pub fn new(limits: Limits) -> View {
        View {
            networks: Rows::new(limits.networks),
            subnets: Rows::new(limits.subnets),
            nodes: Rows::new(limits.nodes),
            instances: Rows::new(limits.instances),
            services: Rows::new(limits.services),
            slices: Rows::new(limits.slices),
            by_node: BTreeMap::new(),
        }
    }

    /// Whether all kinds that determine routes were listed.
    pub fn is_complete(&self) -> bool {
        self.networks.table.is_listed()
            && self.subnets.table.is_listed()
            && self.nodes.table.is_listed()
            && self.instances.table.is_listed()
    }

    /// The kinds with more rows than their limit: name, limit, and the number of rows that were left
    /// out. A row counts once for each of its events.
    pub fn excess(&self) -> impl Iterator<Item = (&'static str, usize, usize)> {
        let all = [
            ("Networks", self.networks.limit, self.networks.left_out),
            ("Subnets", self.subnets.limit, self.subnets.left_out),
            ("NodeInfos", self.nodes.limit, self.nodes.left_out),
            ("IPInstances", self.instances.limit, self.instances.left_out),
            ("global Services", self.services.limit, self.services.left_out),
            ("EndpointSlices", self.slices.limit, self.slices.left_out),
        ];
        all.into_iter().filter(|(.., left_out)| *left_out > 0)
    }

    /// Whether a new list may bring a row that was left out.
    pub fn has_room(&self) -> bool {
        self.networks.has_room()
            || self.subnets.has_room()
            || self.nodes.has_room()
            || self.instances.has_room()
            || self.services.has_room()
            || self.slices.has_room()
    }

    /// Whether Services and their endpoints were listed. The user of the RemoteCluster may lack the
    /// right.
    pub fn has_services(&self) -> bool {
        self.services.table.is_listed() && self.slices.table.is_listed()
    }

    /// The EndpointSlices of global Services, by namespace and name.
    pub fn global_slices(&self) -> impl Iterator<Item = (&(String, String), &Slice)> {
        self.slices.table.iter().filter(|((namespace, _), slice)| {
            self.services.table.get(&(namespace.clone(), slice.service.clone())).is_some()
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
                self.networks.apply(event, |object| object.name_any(), row, |_, _| {});
            }
            Change::Subnet(event) => {
                let row = |object: Lenient<SubnetSpec>| {
                    let spec = object.0.ok()?.spec;
                    Some((spec.network, spec.range))
                };
                self.subnets.apply(event, |object| object.name_any(), row, |_, _| {});
            }
            Change::Node(event) => {
                let row = |object: Lenient<NodeInfoSpec>| object.0.ok()?.spec.vtep_info;
                self.nodes.apply(event, |object| object.name_any(), row, |_, _| {});
            }
            Change::Service(event) => {
                let row = |object: PartialObjectMeta<Service>| {
                    let annotations = object.metadata.annotations?;
                    is_global_service(&annotations).then_some(())
                };
                self.services.apply(event, named, row, |_, _| {});
            }
            Change::Slice(event) => self.slices.apply(event, named, Slice::of, |_, _| {}),
            Change::Instance(event) => {
                let by_node = &mut self.by_node;
                self.instances.apply(event, named, instance, |old, new| {
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
        let of_type =
            |network: &String| self.networks.table.get(network).map(|(network_type, _)| *network_type);
        let all = self.subnets.table.iter();
        all.filter_map(|(name, (network, range))| Some((name.as_str(), (of_type(network)?, range)))).collect()
    }

    /// The netID of the overlay.
    pub fn overlay_net_id(&self) -> Option<u32> {
        let overlay = self.networks.table.iter().find(|(_, (kind, _))| *kind == NetworkType::Overlay);
        overlay.and_then(|(_, (_, net_id))| *net_id)
    }

    /// The nodes with a tunnel endpoint.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &VtepInfo)> {
        self.nodes.table.iter().map(|(name, vtep)| (name.as_str(), vtep))
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str) -> Lenient<NodeInfoSpec> {
        let spec = json!({"vtepInfo": {"ip": "192.0.2.1", "mac": "", "localIPs": []}});
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    }

    fn names(view: &View) -> Vec<String> {
        let mut names: Vec<String> = view.nodes().map(|(name, _)| name.to_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn rows_above_the_limit_are_left_out_and_reported() {
        let mut view = View::new(Limits { nodes: 2, ..Limits::default() });
        let apply = |view: &mut View, name: &str| view.apply(Change::Node(Event::Apply(node(name))));
        for name in ["a", "b", "b", "c", "d"] {
            apply(&mut view, name);
        }
        assert_eq!(names(&view), ["a", "b"], "a known row is replaced");
        assert_eq!(view.excess().collect::<Vec<_>>(), [("NodeInfos", 2, 2)]);
        assert!(!view.has_room());
        view.apply(Change::Node(Event::Delete(node("a"))));
        assert!(view.has_room(), "a new list would bring c or d");

        view.apply(Change::Node(Event::Init));
        for name in ["b", "c"] {
            view.apply(Change::Node(Event::InitApply(node(name))));
        }
        view.apply(Change::Node(Event::InitDone));
        assert_eq!(
            (names(&view), view.excess().count(), view.has_room()),
            (vec!["b".into(), "c".into()], 0, false)
        );
    }
}
