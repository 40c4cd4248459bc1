//! The cluster as this process sees it: rows with the fields that decisions need, and indexes over
//! them.
//!
//! Every replica has the rows, since the webhook answers from them; only the leader has pods. The
//! sources are the watches ([`crate::watch`]) and the answers to this process's own writes. An
//! event that is older than the row is ignored. No event causes a scan of all pods or all
//! IPInstances: every look-up has an index, which each change updates.

#[cfg(test)]
mod bounds_tests;
mod interner;
pub mod pod;
mod row;
mod table;
pub mod vm;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::watch;
use trunkline_api::resources::{Network, NetworkMode, NetworkType, RemoteSubnetSpec, Subnet};

use crate::multus::MultusNetwork;
use crate::remote::Mirrored;

pub use interner::Interner;
pub use row::{
    InstanceRow, Key, NamespaceRow, NetworkingMetadata, NodeRow, Owner, PodLifecycle, PodRow, all_labels,
    pod_label, version,
};
pub use table::Table;
pub use vm::VirtualMachines;

/// Rows and indexes of the cluster.
#[derive(Default)]
pub struct Cluster {
    /// Shared copies of texts.
    pub interner: Interner,
    pub(crate) networks: Table<Arc<str>, Arc<Network>>,
    pub(crate) subnets: Table<Arc<str>, Arc<Subnet>>,
    pub(crate) nodes: Table<Arc<str>, NodeRow>,
    pub(crate) namespaces: Table<Arc<str>, NamespaceRow>,
    pub(crate) pods: Table<Key, PodRow>,
    pub(crate) instances: Table<Key, InstanceRow>,
    /// Subnets of other clusters.
    pub(crate) remote_subnets: Table<Arc<str>, Mirrored<RemoteSubnetSpec>>,
    /// NetworkAttachmentDefinitions; `None` for those of other plugins.
    pub(crate) multus: Table<Key, Option<MultusNetwork>>,
    /// KubeVirt's virtual machines.
    pub vms: VirtualMachines,
    /// IPInstances that cannot be read.
    pub(crate) unreadable: Table<Key, ()>,
    subnets_of: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// The IPInstances of each allocation key.
    instances_of: HashMap<Key, Vec<Key>>,
}

/// Access to the rows of the watches.
pub trait ClusterReader: Send + Sync + 'static {
    /// Reads the rows. Hold the guard for a short time only: the watches wait meanwhile.
    fn with_cluster<T>(&self, look: impl FnOnce(&Cluster) -> T) -> T;
    /// A number that changes with each change of a Network, Subnet or namespace.
    fn changes(&self) -> watch::Receiver<u64>;
}

impl Cluster {
    /// Kinds without a complete list so far.
    pub fn unlisted(&self) -> Vec<&'static str> {
        let kinds = [
            ("Networks", self.networks.is_listed()),
            ("Subnets", self.subnets.is_listed()),
            ("Nodes", self.nodes.is_listed()),
            ("Namespaces", self.namespaces.is_listed()),
            ("IPInstances", self.instances.is_listed()),
        ];
        kinds.into_iter().filter(|(_, listed)| !listed).map(|(kind, _)| kind).collect()
    }

    /// A network.
    pub fn network(&self, name: &str) -> Option<&Arc<Network>> {
        self.networks.get(name)
    }

    /// All networks, in no order.
    pub fn networks(&self) -> impl Iterator<Item = &Arc<Network>> {
        self.networks.iter().map(|(_, network)| network)
    }

    /// A subnet.
    pub fn subnet(&self, name: &str) -> Option<&Arc<Subnet>> {
        self.subnets.get(name)
    }

    /// All subnets, in no order.
    pub fn subnets(&self) -> impl Iterator<Item = &Arc<Subnet>> {
        self.subnets.iter().map(|(_, subnet)| subnet)
    }

    /// Names of a network's subnets, in order, including those with a deletion timestamp.
    pub fn subnets_of(&self, network: &str) -> impl Iterator<Item = &Arc<str>> {
        self.subnets_of.get(network).into_iter().flatten()
    }

    /// The subnet of a network whose range contains an address.
    pub fn subnet_with(&self, network: &str, address: IpAddr) -> Option<&Arc<Subnet>> {
        self.subnets_of(network).filter_map(|name| self.subnet(name)).find(|subnet| {
            let range = subnet.spec.range.parse();
            range.is_ok_and(|range| (range.first..=range.last).contains(&address))
        })
    }

    /// A node.
    pub fn node(&self, name: &str) -> Option<&NodeRow> {
        self.nodes.get(name)
    }

    /// All nodes, in no order.
    pub fn nodes(&self) -> impl Iterator<Item = (&Arc<str>, &NodeRow)> {
        self.nodes.iter()
    }

    /// The networking annotations and labels of a namespace.
    pub fn namespace(&self, name: &str) -> Option<&NetworkingMetadata> {
        self.namespaces.get(name).map(|row| &row.networking)
    }

    /// All labels of a namespace; `Some(None)` if they exceed their bound.
    pub fn namespace_labels(&self, name: &str) -> Option<Option<&BTreeMap<String, String>>> {
        self.namespaces.get(name).map(|row| row.labels.as_ref())
    }

    /// A pod. Only the leader has pods.
    pub fn pod(&self, key: &Key) -> Option<&PodRow> {
        self.pods.get(key)
    }

    /// An IPInstance.
    pub fn instance(&self, key: &Key) -> Option<&InstanceRow> {
        self.instances.get(key)
    }

    /// All IPInstances, in no order. Use at the start of a term, not for an event.
    pub fn instances(&self) -> impl Iterator<Item = (&Key, &InstanceRow)> {
        self.instances.iter()
    }

    /// The IPInstances of an allocation key: bound to, or retained for, a pod of this name or a pod of
    /// this virtual machine ([`vm::key_of_vm`]). IPv4 first, including those with a deletion timestamp.
    pub fn instances_of(&self, key: &Key) -> Vec<(&Key, &InstanceRow)> {
        let keys = self.instances_of.get(key).into_iter().flatten();
        let mut rows: Vec<_> = keys.filter_map(|key| Some((key, self.instances.get(key)?))).collect();
        rows.sort_by_key(|(key, row)| (row.address.is_ipv6(), *key));
        rows
    }

    /// The Underlay network of a node with these labels.
    pub fn underlay_of(&self, node: &NodeRow) -> Option<&Arc<Network>> {
        self.oldest(|network| {
            network.network_type() == NetworkType::Underlay && network.selects(&node.labels)
        })
    }

    /// The network of a type that selects every node: Overlay or GlobalBGP.
    pub fn network_of_type(&self, wanted: NetworkType) -> Option<&Arc<Network>> {
        self.oldest(|network| network.network_type() == wanted)
    }

    /// The oldest match. Admission allows only one; if there are two, the older one is served, as
    /// on the nodes.
    fn oldest(&self, wanted: impl Fn(&Network) -> bool) -> Option<&Arc<Network>> {
        let all = self.networks().filter(|network| wanted(network));
        all.min_by(|a, b| {
            let (one, other) = (&a.metadata.creation_timestamp, &b.metadata.creation_timestamp);
            one.cmp(other).then_with(|| a.name().cmp(b.name()))
        })
    }

    /// Whether pods of a node can have addresses of the GlobalBGP network: the network exists, and
    /// the node speaks BGP.
    pub fn is_bgp_attached(&self, node: &NodeRow) -> bool {
        self.network_of_type(NetworkType::GlobalBGP).is_some()
            && self.underlay_of(node).is_some_and(|network| network.mode() == NetworkMode::BGP)
    }

    /// Whether a node belongs to a network, by the rule for the network's status.
    pub fn has_node(&self, network: &Network, node: &NodeRow) -> bool {
        match network.network_type() {
            NetworkType::GlobalBGP => self.is_bgp_attached(node),
            NetworkType::Underlay | NetworkType::Overlay => network.selects(&node.labels),
        }
    }

    /// Inserts a pod.
    pub(crate) fn set_pod(&mut self, key: &Key, row: PodRow) {
        if let Some(old) = self.pods.get(key) {
            self.vms.unindex_pod(key, old);
        }
        self.vms.index_pod(key, &row);
        self.pods.set(key.clone(), row);
    }

    /// Removes a pod and returns its row.
    pub(crate) fn remove_pod(&mut self, key: &Key) -> Option<PodRow> {
        let old = self.pods.remove(key)?;
        self.vms.unindex_pod(key, &old);
        Some(old)
    }

    /// Inserts an IPInstance unless its row is newer. `Ok` returns the replaced row.
    pub(crate) fn set_instance(&mut self, key: &Key, row: InstanceRow) -> Result<Option<InstanceRow>, Stale> {
        let before = self.instances.is_before_list(key);
        self.instances.note(key);
        if !before && self.instances.get(key).is_some_and(|known| known.version > row.version) {
            return Err(Stale);
        }
        self.index(key, &row);
        Ok(self.instances.set(key.clone(), row))
    }

    /// Inserts the answer of a write of this process, and returns the replaced row. The watch may have
    /// reported a later state, or the object's end, before the answer arrived: then nothing changes.
    /// Only the answer of a creation inserts a new row.
    pub(crate) fn learn_instance(
        &mut self,
        key: &Key,
        row: InstanceRow,
        answer: Answer,
    ) -> Result<Option<InstanceRow>, Stale> {
        let known = self.instances.get(key);
        let is_same = known.is_some_and(|known| known.uid == row.uid);
        if known.is_some_and(|known| known.version > row.version) || !is_same && answer == Answer::Changed {
            return Err(Stale);
        }
        self.index(key, &row);
        let deleting = row.deleting;
        let old =
            if is_same { self.instances.replace(key, row) } else { self.instances.set(key.clone(), row) };
        if deleting {
            // If the current list lacks the object, the object is gone.
            self.instances.unmark(key);
        }
        Ok(old)
    }

    /// Indexes a row that replaces the known one.
    fn index(&mut self, key: &Key, row: &InstanceRow) {
        if let Some(known) = self.instances.get(key) {
            let known = known.clone();
            self.unindex(key, &known);
        }
        if let Some(of) = row.allocation_key(key) {
            self.instances_of.entry(of).or_default().push(key.clone());
        }
    }

    /// Removes an IPInstance. If its row is newer than the deletion, the object was created again,
    /// and the row stays.
    pub(crate) fn remove_instance(&mut self, key: &Key, version: u64) -> Option<InstanceRow> {
        if self.instances.get(key)?.version > version {
            return None;
        }
        let row = self.instances.remove(key)?;
        self.unindex(key, &row);
        Some(row)
    }

    fn unindex(&mut self, key: &Key, row: &InstanceRow) {
        let Some(of) = row.allocation_key(key) else { return };
        if let Some(keys) = self.instances_of.get_mut(&of) {
            keys.retain(|known| known != key);
            if keys.is_empty() {
                self.instances_of.remove(&of);
            }
        }
    }

    /// Inserts a subnet and returns the replaced one.
    pub(crate) fn set_subnet(&mut self, name: &Arc<str>, subnet: Arc<Subnet>) -> Option<Arc<Subnet>> {
        let network = self.interner.get(&subnet.spec.network);
        let old = self.subnets.set(Arc::clone(name), subnet);
        if let Some(old) = &old
            && *old.spec.network != *network
        {
            self.forget_subnet(name, &old.spec.network.clone());
        }
        self.subnets_of.entry(network).or_default().insert(Arc::clone(name));
        old
    }

    pub(crate) fn remove_subnet(&mut self, name: &str) -> Option<Arc<Subnet>> {
        let old = self.subnets.remove(name)?;
        self.forget_subnet(name, &old.spec.network.clone());
        Some(old)
    }

    fn forget_subnet(&mut self, name: &str, network: &str) {
        if let Some(names) = self.subnets_of.get_mut(network) {
            names.remove(name);
            if names.is_empty() {
                self.subnets_of.remove(network);
            }
        }
    }
}

/// The event is older than the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stale;

/// The write of this process whose answer contains an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A creation, or a read because the object exists already.
    Created,
    /// A change or a deletion.
    Changed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_of_two_conflicting_networks_is_served() {
        let mut cluster = Cluster::default();
        for (name, spec, created) in [
            ("a-over", r#"{"type": "Overlay", "netID": 1}"#, "2026-01-02T00:00:00Z"),
            ("b-over", r#"{"type": "Overlay", "netID": 2}"#, "2026-01-01T00:00:00Z"),
            ("a-rack", r#"{"type": "Underlay", "nodeSelector": {"rack": "1"}}"#, "2026-01-02T00:00:00Z"),
            ("b-rack", r#"{"type": "Underlay", "nodeSelector": {"rack": "1"}}"#, "2026-01-02T00:00:00Z"),
        ] {
            let network: Network = serde_json::from_str(&format!(
                r#"{{"apiVersion": "networking.alibaba.com/v1", "kind": "Network",
                    "metadata": {{"name": "{name}", "creationTimestamp": "{created}"}}, "spec": {spec}}}"#
            ))
            .unwrap();
            cluster.networks.set(name.into(), Arc::new(network));
        }
        let node = NodeRow { labels: [("rack".to_owned(), "1".to_owned())].into(), ..NodeRow::default() };
        let name = |network: Option<&Arc<Network>>| network.map(|network| network.name().to_owned());
        assert_eq!(name(cluster.network_of_type(NetworkType::Overlay)).as_deref(), Some("b-over"));
        assert_eq!(
            name(cluster.underlay_of(&node)).as_deref(),
            Some("a-rack"),
            "of the same age: \
            the first by name"
        );
        assert_eq!(cluster.network_of_type(NetworkType::GlobalBGP), None);
    }
}
