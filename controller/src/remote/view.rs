//! The state of a remote cluster, from the events of its watches. No I/O.
//!
//! The remote API server may answer with any number of objects of any size. So the view has at most
//! [`Limits`] rows of each kind. It leaves out further rows, and [`View::excess`] reports them. It also
//! leaves out an object above a bound of [`super::bounds`], and [`View::faults`] reports it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt as _};
use trunkline_api::kept;
use trunkline_api::kube::Lenient;
use trunkline_api::names::label;
use trunkline_api::pod::is_global_service;
use trunkline_api::resources::{
    AddressRange, IPInstanceSpec, NetworkSpec, NetworkType, NodeInfoSpec, SubnetSpec, VtepInfo,
};

use super::bounds::{self, AboveBound, MAX_VIEW};
use super::slices::Slice;
use crate::cluster::Table;

/// Most objects of a kind whose faults are reported.
const REPORTED: usize = 20;

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
    /// Octets of the rows of all kinds.
    pub octets: usize,
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
            octets: MAX_VIEW,
        }
    }
}

/// The octets of the rows of all kinds.
struct Octets {
    used: usize,
    limit: usize,
    /// Number of events since the last list about rows that were left out for their octets.
    left_out: usize,
}

impl Octets {
    /// Whether a new list may bring a row that was left out.
    fn has_room(&self) -> bool {
        self.left_out > 0 && self.used < self.limit / 8 * 7
    }
}

/// The name of an object.
trait Named {
    /// The texts of the name.
    fn texts(&self) -> Vec<&String>;
}

impl Named for String {
    fn texts(&self) -> Vec<&String> {
        vec![self]
    }
}

impl Named for (String, String) {
    fn texts(&self) -> Vec<&String> {
        vec![&self.0, &self.1]
    }
}

/// The rows of one kind, up to a limit.
struct Rows<K, R> {
    /// The rows with their octets.
    table: Table<K, (R, usize)>,
    limit: usize,
    /// Number of events since the last list about rows that were left out.
    left_out: usize,
    /// The objects above a bound, up to [`REPORTED`] of them.
    faults: BTreeMap<String, AboveBound>,
    /// Number of events since the last list about further objects above a bound.
    unreported: usize,
}

impl<K: Clone + Eq + Hash + Named, R> Rows<K, R> {
    fn new(limit: usize) -> Self {
        Rows { table: Table::default(), limit, left_out: 0, faults: BTreeMap::new(), unreported: 0 }
    }

    fn get(&self, key: &K) -> Option<&R> {
        self.table.get(key).map(|(row, _)| row)
    }

    fn iter(&self) -> impl Iterator<Item = (&K, &R)> {
        self.table.iter().map(|(key, (row, _))| (key, row))
    }

    /// Whether a new list may bring a row that was left out, or a fault that is not reported.
    fn has_room(&self) -> bool {
        (self.left_out > 0 && self.table.len() < self.limit)
            || (self.unreported > 0 && self.faults.len() < REPORTED)
    }

    /// Removes a row, and its octets from those of all kinds.
    fn remove(&mut self, key: &K, all: &mut Octets) -> Option<R> {
        let (row, octets) = self.table.remove(key)?;
        all.used = all.used.saturating_sub(octets);
        Some(row)
    }

    /// Records or clears the fault of an object.
    fn set_fault(&mut self, key: &K, fault: Option<AboveBound>) {
        // Usually there is none.
        if fault.is_none() && self.faults.is_empty() {
            return;
        }
        let name: Vec<&str> = key.texts().into_iter().map(|text| kept::cut(text, kept::MAX_NAME)).collect();
        let name = name.join("/");
        match fault {
            None => drop(self.faults.remove(&name)),
            Some(fault) if self.faults.len() < REPORTED || self.faults.contains_key(&name) => {
                self.faults.insert(name, fault);
            }
            Some(_) => self.unreported += 1,
        }
    }

    /// Applies an event. `row` also gets the octets of the row. `changed` gets the former and the new row.
    fn apply<T>(
        &mut self,
        event: Event<T>,
        all: &mut Octets,
        key: impl Fn(&T) -> K,
        row: impl Fn(T) -> Option<R>,
        size: impl Fn(&R) -> Result<usize, AboveBound>,
        mut changed: impl FnMut(Option<&R>, Option<&R>),
    ) {
        match event {
            Event::Init => {
                self.table.begin();
                (self.left_out, self.unreported) = (0, 0);
                self.faults.clear();
                all.left_out = 0;
            }
            Event::InitApply(object) | Event::Apply(object) => {
                let key = key(&object);
                let old = self.remove(&key, all);
                let checked = row(object).map(|row| -> Result<(R, usize), AboveBound> {
                    let octets = bounds::names("metadata.name", key.texts())? + size(&row)?;
                    Ok((row, octets))
                });
                let (mut new, fault) = match checked {
                    None => (None, None),
                    Some(Ok(new)) => (Some(new), None),
                    Some(Err(fault)) => (None, Some(fault)),
                };
                self.set_fault(&key, fault);
                let is_full = self.table.len() >= self.limit;
                if new.take_if(|_| is_full).is_some() {
                    self.left_out += 1;
                }
                if new.take_if(|(_, octets)| all.used + *octets > all.limit).is_some() {
                    all.left_out += 1;
                }
                changed(old.as_ref(), new.as_ref().map(|(row, _)| row));
                if let Some((row, octets)) = new {
                    all.used += octets;
                    self.table.set(key, (row, octets));
                }
            }
            Event::Delete(object) => {
                let key = key(&object);
                self.set_fault(&key, None);
                let old = self.remove(&key, all);
                changed(old.as_ref(), None);
            }
            Event::InitDone => {
                for key in self.table.end() {
                    let old = self.remove(&key, all);
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
    octets: Octets,
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
            octets: Octets { used: 0, limit: limits.octets, left_out: 0 },
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

    /// The objects above a bound, as texts. Of each kind at most 20 are named.
    pub fn faults(&self) -> Vec<String> {
        let mut texts = Vec::new();
        if self.octets.left_out > 0 {
            let limit = self.octets.limit >> 20;
            texts.push(format!("all objects together have more than {limit} MiB: delete unused ones"));
        }
        let all = [
            ("Network", &self.networks.faults, self.networks.unreported),
            ("Subnet", &self.subnets.faults, self.subnets.unreported),
            ("NodeInfo", &self.nodes.faults, self.nodes.unreported),
            ("IPInstance", &self.instances.faults, self.instances.unreported),
            ("Service", &self.services.faults, self.services.unreported),
            ("EndpointSlice", &self.slices.faults, self.slices.unreported),
        ];
        for (kind, faults, unreported) in all {
            texts.extend(faults.iter().map(|(name, fault)| format!("{kind} {name} is left out: {fault}")));
            if unreported > 0 {
                texts.push(format!("further {kind}s are left out for such reasons"));
            }
        }
        texts
    }

    /// Number of objects that were left out, as far as it is known: an object above the limits counts
    /// once for each of its events.
    pub fn left_out(&self) -> usize {
        let faults = self.faults().len();
        self.excess().map(|(.., left_out)| left_out).sum::<usize>() + self.octets.left_out + faults
    }

    /// Whether a new list may bring a row that was left out.
    pub fn has_room(&self) -> bool {
        self.octets.has_room()
            || self.networks.has_room()
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
        self.slices.iter().filter(|((namespace, _), slice)| {
            self.services.get(&(namespace.clone(), slice.service.clone())).is_some()
        })
    }

    /// Applies a change.
    pub fn apply(&mut self, change: Change) {
        let all = &mut self.octets;
        match change {
            Change::Network(event) => {
                let row = |object: Lenient<NetworkSpec>| {
                    let spec = object.0.ok()?.spec;
                    Some((spec.network_type.unwrap_or(NetworkType::Underlay), spec.net_id))
                };
                self.networks.apply(event, all, |object| object.name_any(), row, |_| Ok(0), |_, _| {});
            }
            Change::Subnet(event) => {
                let row = |object: Lenient<SubnetSpec>| {
                    let spec = object.0.ok()?.spec;
                    Some((spec.network, spec.range))
                };
                let size = |(network, range): &(String, AddressRange)| -> Result<usize, AboveBound> {
                    Ok(bounds::names("spec.network", [network])? + bounds::range(range)?)
                };
                self.subnets.apply(event, all, |object| object.name_any(), row, size, |_, _| {});
            }
            Change::Node(event) => {
                let row = |object: Lenient<NodeInfoSpec>| object.0.ok()?.spec.vtep_info;
                self.nodes.apply(event, all, |object| object.name_any(), row, bounds::vtep, |_, _| {});
            }
            Change::Service(event) => {
                let row = |object: PartialObjectMeta<Service>| {
                    let annotations = object.metadata.annotations?;
                    is_global_service(&annotations).then_some(())
                };
                self.services.apply(event, all, named, row, |()| Ok(0), |_, _| {});
            }
            Change::Slice(event) => {
                self.slices.apply(event, all, named, Slice::of, bounds::slice, |_, _| {});
            }
            Change::Instance(event) => {
                let by_node = &mut self.by_node;
                let size =
                    |row: &InstanceRow| bounds::names("the Subnet or the node", [&row.subnet, &row.node]);
                self.instances.apply(event, all, named, instance, size, |old, new| {
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

    fn node_with(name: &str, addresses: usize) -> Lenient<NodeInfoSpec> {
        let addresses: Vec<String> = (0..addresses).map(|number| format!("192.0.2.{number}")).collect();
        let spec = json!({"vtepInfo": {"ip": "192.0.2.1", "mac": "", "localIPs": addresses}});
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    }

    fn slice_with(name: &str, endpoints: usize, octets: usize) -> EndpointSlice {
        let endpoint = json!({"addresses": ["10.1.0.5"], "zone": "z".repeat(octets)});
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4", "endpoints": vec![endpoint; endpoints],
        }))
        .unwrap()
    }

    #[test]
    fn an_object_above_a_bound_is_left_out_alone() {
        let mut view = View::default();
        let apply = |view: &mut View, node| view.apply(Change::Node(Event::Apply(node)));
        for (name, addresses) in [("a", 64), ("b", 65), ("c", 2)] {
            apply(&mut view, node_with(name, addresses));
        }
        apply(&mut view, node(&"n".repeat(254)));
        assert_eq!(names(&view), ["a", "c"]);
        let faults = view.faults();
        let words = "NodeInfo b is left out: spec.vtepInfo.localIPs has 65 entries, and at most 64 are allowed: write ";
        assert!(faults.len() == 2 && faults[0].starts_with(words), "{faults:?}");
        assert!(faults[1].contains("metadata.name has 254 octets, and at most 253"), "{faults:?}");

        // The correction of an object, and a fault of an object that was there.
        apply(&mut view, node_with("b", 3));
        apply(&mut view, node_with("a", 1_000));
        assert_eq!(names(&view), ["b", "c"]);
        assert!(view.faults()[0].starts_with("NodeInfo a is left out"), "{:?}", view.faults());
        view.apply(Change::Node(Event::Delete(node("a"))));
        assert_eq!(view.faults().len(), 1);

        let text = "t".repeat(254);
        for (endpoints, octets, fault) in [
            (1_000, 63, None),
            (1_001, 0, Some("endpoints has 1001 entries")),
            (1, 254, Some("endpoints has 254 octets")),
            (1_000, 253, None),
        ] {
            let name = format!("s{endpoints}-{octets}");
            view.apply(Change::Slice(Event::Apply(slice_with(&name, endpoints, octets))));
            let found = view.faults().into_iter().find(|text| text.contains(&name));
            assert_eq!(found.is_some(), fault.is_some(), "{found:?}");
            assert!(fault.is_none_or(|fault| found.unwrap().contains(fault)), "{name}");
        }
        let spec = json!({"network": text, "range": {"version": "4", "cidr": "10.0.0.0/24"}});
        let subnet = serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": spec})).unwrap();
        view.apply(Change::Subnet(Event::Apply(subnet)));
        assert!(view.faults().iter().any(|text| text.contains("Subnet s is left out: spec.network has 254")));
    }

    #[test]
    fn faults_of_many_objects_are_bounded() {
        let mut view = View::default();
        for number in 0..5_000 {
            let node = node_with(&format!("n{number:04}"), 100);
            view.apply(Change::Node(Event::Apply(node)));
        }
        let faults = view.faults();
        assert_eq!((faults.len(), names(&view).len()), (REPORTED + 1, 0));
        assert_eq!(faults.last().unwrap(), "further NodeInfos are left out for such reasons");
        assert!(!view.has_room());
        view.apply(Change::Node(Event::Delete(node("n0003"))));
        assert!(view.has_room(), "a new list would report another one");
    }

    #[test]
    fn the_octets_of_all_rows_are_bounded() {
        let mut view = View::new(Limits { octets: 1 << 20, ..Limits::default() });
        for number in 0..100 {
            view.apply(Change::Slice(Event::Apply(slice_with(&format!("s{number}"), 1_000, 200))));
        }
        let (rows, used) = (view.slices.table.len(), view.octets.used);
        assert!(rows > 1 && rows < 10 && used <= 1 << 20, "{rows} rows, {used} octets");
        assert_eq!((view.octets.left_out, view.excess().count()), (100 - rows, 0));
        assert_eq!(view.faults(), ["all objects together have more than 1 MiB: delete unused ones"]);
        for number in 0..100 {
            view.apply(Change::Slice(Event::Delete(slice_with(&format!("s{number}"), 0, 0))));
        }
        assert_eq!((view.octets.used, view.has_room()), (0, true));
    }
}
