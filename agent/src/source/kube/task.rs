//! The task that builds snapshots from the watches' objects.
//!
//! It stores the objects as in the API server. It evaluates all of them once nothing has changed
//! for `SETTLE` (or `PATIENCE` after the first change), and when every needed watch has received
//! its list. So no consumer sees a network without its subnets. A snapshot that equals the applied
//! one goes no further, so another writer's status costs only a comparison.
//!
//! ServicePools, ServiceAdvertisements, AnycastAddresses and the objects of remote clusters are part
//! of the snapshot, but no snapshot waits for them: their kinds may be missing on an upgrade. Services and EndpointSlices
//! are not part of it ([`super::services`]).
//!
//! The objects define which watches exist. Four are only for nodes in an overlay (every node is in
//! it): NodeInfos, the overlay's IPInstances, the addresses of this Node, and RemoteVteps. The Secrets of the
//! peers of this node's networks are watched one by one, because a right to list Secrets would be a
//! right to read all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Secret};
use kube::core::ClusterResourceScope;
use kube::{Api, Client, ResourceExt};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use trunkline_api::kept;
use trunkline_api::kube::{Kind, Lenient, Object, node_addresses};
use trunkline_api::names::label;
use trunkline_api::resources::{
    AgentSettings, AgentSettingsSpec, AnycastAddress, AnycastAddressSpec, IPInstance, IPInstanceSpec,
    Network, NetworkMode, NetworkSpec, NetworkType, NodeAction, NodeInfo, NodeInfoSpec, ServiceAdvertisement,
    ServiceAdvertisementSpec, ServicePool, ServicePoolSpec, Subnet, SubnetSpec,
};

use super::assemble::{Assembled, ObjectFaults, ObjectRef, Objects, SecretState, assemble, secrets};
use super::cache::{self, Remembered};
use super::cluster::{Cluster, INSTANCES};
use super::departures;
use super::instances::{Row, placed};
use super::node::ObservedNode;
use super::remote;
use super::sandboxes::{Origin, attached, has_device};
use super::servers::{self, SERVERS, Servers, ServersChange};
use super::watch::{Cached, Change, FullObjects, Metadata, PAGE, Rows, Selector, Source, Versioned, run};
use crate::fault_log::FaultLog;
use crate::ipam::{Counts, Ipam, Phase};
use crate::metrics::Metrics;
use crate::plan::intent::{OverlayPods, Snapshot, SnapshotRefusal};
use crate::reconcile::Reconcile;
use crate::services::l2::Members;
use crate::services::{NodeInput, ServicesInput};

/// Quiet time before an evaluation.
const SETTLE: Duration = Duration::from_millis(50);
/// Maximum time to an evaluation during continuous changes.
const PATIENCE: Duration = Duration::from_secs(1);
/// Capacity of the queue of changes from the watches. The watches wait when it is full.
const NEWS: usize = 256;

const NETWORKS: &str = "networks";
const SUBNETS: &str = "subnets";
pub(super) const NODE: &str = "node";
const NODES: &str = "nodeinfoes";
const OVERLAY: &str = "ipinstances of the overlay";
/// The watch of this Node's addresses, which its NodeInfo may contain. Needed only in an overlay.
const ADDRESSES: &str = "node's addresses";

/// The watch of IPInstances of virtual machines that leave this node.
const DEPARTURES: &str = "ipinstances that leave this node";

const POOLS: &str = "servicepools";
const ADVERTISEMENTS: &str = "serviceadvertisements";
const ANYCAST: &str = "anycastaddresses";
const SETTINGS: &str = "agentsettings";

/// Octets of a report about one object, as in an event.
const FAULT_TEXT: usize = 1_000;

/// A change from one of the watches.
enum ObjectChange {
    Networks(Change<Lenient<NetworkSpec>>),
    Subnets(Change<Lenient<SubnetSpec>>),
    Nodes(Change<Lenient<NodeInfoSpec>>),
    Node(Change<ObservedNode>),
    Addresses(Change<Vec<IpAddr>>),
    Overlay(Change<Versioned<OverlayRow>>),
    Pools(Change<Lenient<ServicePoolSpec>>),
    Advertisements(Change<Lenient<ServiceAdvertisementSpec>>),
    Anycast(Change<Lenient<AnycastAddressSpec>>),
    Settings(Change<Lenient<AgentSettingsSpec>>),
    RemoteSubnets(remote::SubnetChange),
    RemoteVteps(remote::VtepChange),
    Servers(ServersChange),
    /// The index of this node's IPInstances has changed. True: after a new list.
    Instances(bool),
    /// A status has a sandbox of this node that no earlier status had.
    Sandboxes,
    Secret((String, String), Change<Secret>),
}

impl ObjectChange {
    /// The watch whose list this is.
    fn list(&self) -> Option<&'static str> {
        let (name, is_list) = match self {
            ObjectChange::Networks(change) => (NETWORKS, change.is_list()),
            ObjectChange::Subnets(change) => (SUBNETS, change.is_list()),
            ObjectChange::Nodes(change) => (NODES, change.is_list()),
            ObjectChange::Node(change) => (NODE, change.is_list()),
            ObjectChange::Addresses(change) => (ADDRESSES, change.is_list()),
            ObjectChange::Overlay(change) => (OVERLAY, change.is_list()),
            ObjectChange::Pools(change) => (POOLS, change.is_list()),
            ObjectChange::Advertisements(change) => (ADVERTISEMENTS, change.is_list()),
            ObjectChange::Anycast(change) => (ANYCAST, change.is_list()),
            ObjectChange::Settings(change) => (SETTINGS, change.is_list()),
            ObjectChange::RemoteSubnets(change) => (remote::SUBNETS, change.is_list()),
            ObjectChange::RemoteVteps(change) => (remote::VTEPS, change.is_list()),
            ObjectChange::Servers(change) => (SERVERS, change.is_list()),
            ObjectChange::Instances(is_list) => (INSTANCES, *is_list),
            ObjectChange::Sandboxes | ObjectChange::Secret(..) => return None,
        };
        is_list.then_some(name)
    }
}

/// The action that a change needs.
#[derive(PartialEq)]
enum FollowUp {
    /// Evaluate the objects: the snapshot may differ.
    Objects,
    /// Write only the cache for a restart.
    Cache,
}

/// The inputs of the task.
pub struct TaskDependencies {
    /// This node.
    pub node: String,
    /// Whether the agent follows the Node's cordon.
    pub follow_cordon: bool,
    /// The path of the last good state.
    pub cache: PathBuf,
    /// The cluster.
    pub cluster: Cluster,
    /// The reconcile task, which receives snapshots.
    pub reconcile: Reconcile,
    /// The owner of the records.
    pub ipam: Ipam,
    /// The counters.
    pub metrics: Metrics,
    /// The services task; none if this node advertises no service addresses.
    pub services: Option<mpsc::Sender<ServicesInput>>,
    /// Receives this node's UID.
    pub uid: watch::Sender<Option<String>>,
    /// Changes when this node's NodeInfo lacks a VTEP, or does not exist: it is written again.
    pub info_lost: watch::Sender<u64>,
    /// Receives the addresses of this Node; none while they are unknown.
    pub addresses: watch::Sender<Option<Vec<IpAddr>>>,
    /// Receives the nodes of this node's VLAN Network; none while the controller has not listed
    /// them.
    pub members: watch::Sender<Option<Members>>,
}

struct Task {
    start: TaskDependencies,
    changes: mpsc::Sender<ObjectChange>,
    objects: Objects,
    /// Unknown fields of each object.
    ignored: BTreeMap<(&'static str, String), Vec<String>>,
    /// Whether the Node exists.
    node_known: bool,
    /// Whether the watch of the Node has whole objects, and not only metadata.
    node_full: Option<bool>,
    /// Whether AgentSettings were listed, or their watch failed.
    settings_answered: bool,
    /// The last input of the services task about the Node.
    node_input: Option<NodeInput>,
    /// Overlay: address and node of each IPInstance, by namespace and name.
    overlay: BTreeMap<(String, String), (IpAddr, String)>,
    servers: Servers,
    /// The watches whose list is in `objects`. The health of a watch knows earlier that the list arrived.
    listed: BTreeSet<&'static str>,
    running: Option<Arc<Snapshot>>,
    /// The reasons why the last snapshot was refused as a whole.
    refused: Vec<String>,
    faults: ObjectFaults,
    fault_log: FaultLog<ObjectRef>,
    /// Watches that are started and stopped with the objects.
    watches: BTreeMap<String, AbortHandle>,
    /// The content of the cache file.
    remembered: Option<Remembered>,
}

/// Follows the cluster until the agent stops.
pub async fn follow(start: TaskDependencies) {
    let (changes, mut inbox) = mpsc::channel(NEWS);
    let mut task = Task {
        start,
        changes,
        objects: Objects::default(),
        ignored: BTreeMap::new(),
        node_known: false,
        node_full: None,
        settings_answered: false,
        node_input: None,
        overlay: BTreeMap::new(),
        servers: Servers::default(),
        listed: BTreeSet::new(),
        running: None,
        refused: Vec::new(),
        faults: ObjectFaults::default(),
        fault_log: FaultLog::default(),
        watches: BTreeMap::new(),
        remembered: None,
    };
    if !task.remember().await {
        return;
    }
    task.watch_always();
    let mut first: Option<Instant> = None;
    let mut last = Instant::now();
    let mut objects = false;
    loop {
        let due = first.map(|first| (last + SETTLE).min(first + PATIENCE));
        let report = task.fault_log.due();
        tokio::select! {
            object_change = inbox.recv() => {
                let Some(object_change) = object_change else { return };
                if let Some(matters) = task.take(object_change).await {
                    objects |= matters == FollowUp::Objects;
                    last = Instant::now();
                    first.get_or_insert(last);
                }
            }
            () = async { tokio::time::sleep_until(due.unwrap_or(last)).await }, if due.is_some() => {
                first = None;
                if !std::mem::take(&mut objects) {
                    task.save().await;
                } else if !task.look().await {
                    return;
                }
            }
            () = async { tokio::time::sleep_until(report.unwrap_or(last)).await }, if report.is_some() => {
                task.report_faults();
            }
        }
    }
}

impl Task {
    /// Starts with the state of the last run. False: the agent stops.
    async fn remember(&mut self) -> bool {
        let (path, node) = (self.start.cache.clone(), self.start.node.clone());
        let read = tokio::task::spawn_blocking(move || cache::read(&path, &node)).await;
        let remembered = match read {
            Ok(Ok(Some(remembered))) => remembered,
            Ok(Ok(None)) => return true,
            Ok(Err(error)) => {
                tracing::warn!(
                    %error,
                    "the cached state of the cluster is lost: the agent waits for the API server"
                );
                return true;
            }
            Err(error) => {
                tracing::warn!(%error, "the cached state of the cluster was not read");
                return true;
            }
        };
        self.start.cluster.change(|index| index.replace(remembered.instances.iter().cloned()));
        match self.start.reconcile.snapshot(remembered.snapshot.clone()).await {
            None => return false,
            Some(Ok(running)) => {
                tracing::info!("the cluster's cached state is in force until the API server answers");
                self.running = Some(running);
            }
            Some(Err(refused)) => {
                tracing::warn!(error = %refused, "the cached state of the cluster is refused");
            }
        }
        self.report_node(remembered.snapshot.labels.clone(), false).await;
        self.remembered = Some(remembered);
        true
    }

    /// Reports this Node to the services task, if it changed.
    async fn report_node(&mut self, labels: BTreeMap<String, String>, cordoned: bool) {
        let Some(services) = &self.start.services else { return };
        let input = NodeInput { labels, cordoned };
        if self.node_input.as_ref() != Some(&input) {
            self.node_input = Some(input.clone());
            // The agent ends if the task has ended.
            let _ = services.send(ServicesInput::Node(input)).await;
        }
    }

    fn watch_always(&mut self) {
        let client = self.start.cluster.connection().client.clone();
        let node = self.start.node.clone();
        self.watch(
            NETWORKS,
            FullObjects(Api::all(client.clone())),
            Selector::default(),
            ObjectChange::Networks,
        );
        self.watch(
            SUBNETS,
            FullObjects(Api::all(client.clone())),
            Selector::default(),
            ObjectChange::Subnets,
        );
        self.follow_node();
        self.start.cluster.health().started_optional(remote::SUBNETS);
        self.watch(
            remote::SUBNETS,
            remote::subnets(client.clone()),
            Selector::default(),
            ObjectChange::RemoteSubnets,
        );
        self.watch_optional(SETTINGS, ObjectChange::Settings);
        if self.start.services.is_some() {
            self.watch_optional(POOLS, ObjectChange::Pools);
            self.watch_optional(ADVERTISEMENTS, ObjectChange::Advertisements);
            self.watch_optional(ANYCAST, ObjectChange::Anycast);
        }
        let (cluster, changes) = (self.start.cluster.clone(), self.changes.clone());
        let report = move |change: Change<Lenient<IPInstanceSpec>>| {
            // The index is updated here and not in the task, because a waiting ADD must not wait
            // for other work.
            let is_new = take_sandboxes(&cluster, Origin::Own, &change);
            let object_change = take_instances(&cluster, change).map(ObjectChange::Instances);
            let changes = changes.clone();
            async move {
                if is_new && changes.send(ObjectChange::Sandboxes).await.is_err() {
                    return false;
                }
                match object_change {
                    Some(object_change) => changes.send(object_change).await.is_ok(),
                    None => !changes.is_closed(),
                }
            }
        };
        let health = self.start.cluster.health().clone();
        let selector = Selector::label(label::NODE, &node);
        health.started(INSTANCES);
        let instances = Cached(FullObjects(Api::all(client.clone())));
        tokio::spawn(run(instances, selector, INSTANCES.to_owned(), health.clone(), report));
        let (cluster, changes) = (self.start.cluster.clone(), self.changes.clone());
        let report = move |change| {
            let is_new = take_sandboxes(&cluster, Origin::Departures, &change);
            departures::take(&cluster, change);
            let changes = changes.clone();
            async move {
                match is_new {
                    true => changes.send(ObjectChange::Sandboxes).await.is_ok(),
                    false => !changes.is_closed(),
                }
            }
        };
        let selector = Selector::label(label::MIGRATION_SOURCE, &node);
        health.started(DEPARTURES);
        let departures = Cached(FullObjects(Api::all(client)));
        tokio::spawn(run(departures, selector, DEPARTURES.to_owned(), health, report));
    }

    /// Reports the nodes of this node's VLAN Network for the election of holders of service
    /// addresses.
    fn report_members(&self) {
        let members = vlan_members(self.objects.networks.values(), &self.objects.labels);
        self.start.members.send_if_modified(|known| {
            let is_new = *known != members;
            *known = members;
            is_new
        });
    }

    /// Watches the whole Node only if its cordon matters.
    fn follow_node(&mut self) {
        let withdraws = |one: &ServiceAdvertisement| one.spec.on_cordoned_nodes() == NodeAction::Withdraw;
        let full = self.start.follow_cordon || self.objects.advertisements.values().any(withdraws);
        if self.node_full.replace(full) == Some(full) {
            return;
        }
        self.unwatch(NODE);
        let nodes: Api<Node> = Api::all(self.start.cluster.connection().client.clone());
        let selector = Selector::name(&self.start.node);
        match full {
            true => self.watch(NODE, FullObjects(nodes), selector, |change| {
                ObjectChange::Node(change.map(ObservedNode::from))
            }),
            false => self.watch(NODE, Metadata(nodes), selector, |change| {
                ObjectChange::Node(change.map(ObservedNode::from))
            }),
        }
    }

    /// Watches a kind on which pods do not depend.
    fn watch_optional<S: Kind<Scope = ClusterResourceScope>>(
        &mut self,
        name: &str,
        into: fn(Change<Lenient<S>>) -> ObjectChange,
    ) {
        let objects: Api<Lenient<S>> = Api::all(self.start.cluster.connection().client.clone());
        self.start.cluster.health().started_optional(name);
        self.watch(name, FullObjects(objects), Selector::default(), into);
    }

    fn watch<S: Source>(
        &mut self,
        name: &str,
        source: S,
        selector: Selector,
        into: impl Fn(Change<S::Object>) -> ObjectChange + Send + 'static,
    ) {
        let changes = self.changes.clone();
        let report = move |change| {
            let (changes, object_change) = (changes.clone(), into(change));
            async move { changes.send(object_change).await.is_ok() }
        };
        let health = self.start.cluster.health().clone();
        health.started(name);
        let running = tokio::spawn(run(source, selector, name.to_owned(), health, report));
        self.watches.insert(name.to_owned(), running.abort_handle());
    }

    fn unwatch(&mut self, name: &str) {
        if let Some(running) = self.watches.remove(name) {
            running.abort();
            self.listed.remove(name);
            self.start.cluster.health().stopped(name);
        }
    }

    /// Applies a watch's change. Returns the needed action, if any.
    async fn take(&mut self, object_change: ObjectChange) -> Option<FollowUp> {
        let list = object_change.list();
        // A list that was sent before its watch ended does not count.
        self.listed.extend(list.filter(|name| *name == INSTANCES || self.watches.contains_key(*name)));
        let (objects, ignored) = (&mut self.objects, &mut self.ignored);
        let changed = match object_change {
            ObjectChange::Networks(change) => {
                let same = |one: &Network, other: &Network| one.spec == other.spec;
                let changed = take(change, &mut objects.networks, &mut objects.unreadable, ignored, same);
                self.report_members();
                if changed {
                    self.follow_networks();
                }
                changed
            }
            ObjectChange::Subnets(change) => {
                let same = |one: &Subnet, other: &Subnet| one.spec == other.spec;
                let changed = take(change, &mut objects.subnets, &mut objects.unreadable, ignored, same);
                self.start.cluster.state().counts = counts(&self.objects.subnets);
                changed
            }
            ObjectChange::Nodes(change) => {
                if lacks_vtep(&change, &self.start.node) {
                    self.start.info_lost.send_modify(|number| *number += 1);
                }
                let same = |one: &NodeInfo, other: &NodeInfo| one.spec == other.spec;
                let changed = take(change, &mut objects.nodes, &mut objects.unreadable, ignored, same);
                // This node's own NodeInfo is no input: the node knows its own state.
                objects.nodes.remove(&self.start.node);
                changed
            }
            ObjectChange::Node(change) => {
                let (node, known) = match change {
                    Change::Listed(mut nodes) => (nodes.pop(), true),
                    Change::Applied(node) => (Some(node), true),
                    Change::Deleted(_) => (None, true),
                    Change::Page { .. } | Change::Failing(_) => (None, false),
                };
                if !known {
                    return None;
                }
                self.node_known = node.is_some();
                self.start.cluster.set_cordoned(node.as_ref().and_then(|node| node.is_cordoned));
                // Without the Node, the last known state stays.
                let Some(node) = node else { return Some(FollowUp::Objects) };
                self.start.uid.send_if_modified(|uid| {
                    let new = node.uid.clone();
                    std::mem::replace(uid, new.clone()) != new
                });
                let mut labels = node.labels;
                labels.entry("kubernetes.io/hostname".to_owned()).or_insert_with(|| self.start.node.clone());
                let changed = std::mem::replace(&mut objects.labels, labels.clone()) != labels;
                let fault = node
                    .too_large
                    .map(|error| format!("metadata.labels: {error}. Until then this node has no labels"));
                let which = ("Node", self.start.node.clone());
                let is_reported = objects.unreadable.get(&which) == fault.as_ref();
                match fault {
                    Some(fault) => drop(objects.unreadable.insert(which, fault)),
                    None => drop(objects.unreadable.remove(&which)),
                }
                self.report_members();
                if changed {
                    self.follow_networks();
                }
                self.report_node(labels, node.is_cordoned.unwrap_or(false)).await;
                changed || !is_reported
            }
            ObjectChange::Pools(change) => {
                // The controller writes a pool's status after each allocation.
                let same = |one: &ServicePool, other: &ServicePool| one.spec == other.spec;
                take(change, &mut objects.service_pools, &mut objects.unreadable, ignored, same)
            }
            ObjectChange::Advertisements(change) => {
                let same = |one: &ServiceAdvertisement, other: &ServiceAdvertisement| one.spec == other.spec;
                let changed =
                    take(change, &mut objects.advertisements, &mut objects.unreadable, ignored, same);
                if changed {
                    self.follow_node();
                }
                changed
            }
            ObjectChange::Anycast(change) => {
                let same = |one: &AnycastAddress, other: &AnycastAddress| one.spec == other.spec;
                take(change, &mut objects.anycast, &mut objects.unreadable, ignored, same)
            }
            ObjectChange::Settings(change) => {
                // The first snapshot of a node without a cache waits for this answer.
                let is_first = !std::mem::replace(&mut self.settings_answered, true);
                let same = |one: &AgentSettings, other: &AgentSettings| one.spec == other.spec;
                take(change, &mut objects.agent_settings, &mut objects.unreadable, ignored, same) || is_first
            }
            ObjectChange::RemoteSubnets(change) => {
                let changed = remote::take_subnets(change, &mut objects.remote, &mut objects.unreadable);
                self.follow_servers();
                changed
            }
            // A change that was sent before the watch ended does not count.
            ObjectChange::RemoteVteps(_) if !self.watches.contains_key(remote::VTEPS) => false,
            ObjectChange::RemoteVteps(change) => {
                let changed = remote::take_vteps(change, &mut objects.remote, &mut objects.unreadable);
                self.follow_servers();
                changed
            }
            ObjectChange::Servers(change) => self.servers.take(change),
            ObjectChange::Addresses(change) => {
                let addresses = match change {
                    Change::Listed(mut nodes) => nodes.pop(),
                    Change::Applied(addresses) => Some(addresses),
                    Change::Deleted(_) => None,
                    Change::Page { .. } | Change::Failing(_) => return None,
                };
                let known = &self.start.addresses;
                known.send_if_modified(|known| std::mem::replace(known, addresses.clone()) != addresses);
                return None;
            }
            ObjectChange::Overlay(change) => take_overlay(change, &mut self.overlay, &self.start.node),
            ObjectChange::Sandboxes => {
                self.clear_ended().await;
                return None;
            }
            ObjectChange::Instances(listed) => {
                if listed {
                    self.resend_instances().await;
                }
                // An object that was deleted while pods use it is removed with the last of these
                // pods.
                if !listed && !self.keeps_deleted() {
                    return Some(FollowUp::Cache);
                }
                true
            }
            ObjectChange::Secret(place, change) => {
                let values = |secret: Secret| {
                    let data = secret.data.unwrap_or_default();
                    SecretState::Values(data.into_iter().map(|(key, value)| (key, value.0)).collect())
                };
                let gone = || SecretState::Missing("does not exist: create it".to_owned());
                let known = objects.secrets.get_mut(&place)?;
                let new = match change {
                    Change::Listed(mut found) => found.pop().map_or_else(gone, values),
                    Change::Applied(secret) => values(secret),
                    Change::Deleted(_) => gone(),
                    // Known values stay; an unknown Secret counts as missing.
                    Change::Failing(reason) if *known == SecretState::Unknown => {
                        SecretState::Missing(format!(
                            "cannot be read: {reason}: name it in the chart's agent.keySecrets, or in keySecrets of this node's rack"
                        ))
                    }
                    Change::Page { .. } | Change::Failing(_) => return None,
                };
                std::mem::replace(known, new.clone()) != new
            }
        };
        changed.then_some(FollowUp::Objects)
    }

    /// Watches the API server's addresses, once there are remote clusters.
    fn follow_servers(&mut self) {
        if self.objects.remote.is_empty() || self.watches.contains_key(SERVERS) {
            return;
        }
        let connection = self.start.cluster.connection();
        let (source, selector) = servers::source(connection.client.clone());
        let (changes, host) = (self.changes.clone(), connection.host.clone());
        let report = move |change| {
            let (changes, host) = (changes.clone(), host.clone());
            async move {
                let change = ServersChange::of(change, &host).await;
                changes.send(ObjectChange::Servers(change)).await.is_ok()
            }
        };
        let health = self.start.cluster.health().clone();
        health.started_optional(SERVERS);
        let running = tokio::spawn(run(source, selector, SERVERS.to_owned(), health, report));
        self.watches.insert(SERVERS.to_owned(), running.abort_handle());
    }

    /// Whether remote objects can be checked: they and the addresses that they may not have are known.
    fn remote_listed(&self) -> bool {
        let mut needed = vec![remote::SUBNETS];
        if self.watches.contains_key(remote::VTEPS) {
            needed.push(remote::VTEPS);
        }
        if !self.objects.remote.is_empty() {
            needed.push(SERVERS);
            if self.start.services.is_some() {
                needed.extend([POOLS, ANYCAST]);
            }
        }
        needed.into_iter().all(|name| self.listed.contains(name))
    }

    /// Whether the agent serves an object that the API server no longer has.
    fn keeps_deleted(&self) -> bool {
        let Some(running) = &self.running else { return false };
        !running.networks.iter().all(|network| self.objects.networks.contains_key(network.name()))
            || !running.subnets.iter().all(|subnet| self.objects.subnets.contains_key(subnet.name()))
    }

    /// Starts the watches that the networks need, and stops all others.
    fn follow_networks(&mut self) {
        let client = self.start.cluster.connection().client.clone();
        let overlay =
            self.objects.networks.values().find(|network| network.network_type() == NetworkType::Overlay);
        match overlay.map(|network| network.name().to_owned()) {
            Some(network) if !self.watches.contains_key(OVERLAY) => {
                self.watch(
                    NODES,
                    FullObjects(Api::all(client.clone())),
                    Selector::default(),
                    ObjectChange::Nodes,
                );
                let selector = Selector::label(label::NETWORK, &network);
                self.watch(OVERLAY, Cached(overlay_rows(client.clone())), selector, ObjectChange::Overlay);
                self.start.cluster.health().started_optional(remote::VTEPS);
                self.watch(
                    remote::VTEPS,
                    remote::vteps(client.clone()),
                    Selector::default(),
                    ObjectChange::RemoteVteps,
                );
                let own = Selector::name(&self.start.node);
                self.watch(ADDRESSES, FullObjects(Api::all(client.clone())), own, |change| {
                    ObjectChange::Addresses(change.map(|node: Node| node_addresses(&node)))
                });
            }
            Some(_) => {}
            None => {
                self.unwatch(OVERLAY);
                self.unwatch(NODES);
                self.unwatch(ADDRESSES);
                self.unwatch(remote::VTEPS);
                remote::forget_vteps(&mut self.objects.remote, &mut self.objects.unreadable);
                self.start.addresses.send_replace(None);
                self.overlay.clear();
                self.objects.nodes.clear();
            }
        }
        let namespace = &self.start.cluster.connection().namespace;
        let wanted = secrets(self.objects.networks.values(), &self.objects.labels, namespace);
        let gone: Vec<_> =
            self.objects.secrets.keys().filter(|place| !wanted.contains(*place)).cloned().collect();
        for place in gone {
            self.objects.secrets.remove(&place);
            self.unwatch(&secret_watch(&place));
        }
        for place in wanted {
            if self.objects.secrets.contains_key(&place) {
                continue;
            }
            let (secrets, selector) = (Api::namespaced(client.clone(), &place.0), Selector::name(&place.1));
            let name = secret_watch(&place);
            self.objects.secrets.insert(place.clone(), SecretState::Unknown);
            self.watch(&name, FullObjects(secrets), selector, move |change| {
                ObjectChange::Secret(place.clone(), change)
            });
        }
    }

    /// Whether all inputs of a snapshot are known. The objects for service addresses are not needed.
    /// AgentSettings are needed only for the first snapshot, and only if their watch does not fail:
    /// otherwise a new node would use agent.yaml's links for a moment.
    fn is_whole(&self) -> bool {
        let mut needed = vec![NETWORKS, SUBNETS, INSTANCES];
        if self.watches.contains_key(OVERLAY) {
            needed.extend([NODES, OVERLAY]);
        }
        self.node_known
            && (self.settings_answered || self.running.is_some())
            && needed.iter().all(|name| self.listed.contains(name))
            && self.objects.secrets.values().all(|known| *known != SecretState::Unknown)
    }

    /// Builds a snapshot and applies it. False: the agent stops.
    async fn look(&mut self) -> bool {
        if !self.is_whole() {
            if !self.node_known && self.listed.contains(NODE) {
                let node = &self.start.node;
                let fault = format!(
                    "Node {node}: is not in the API server: write nodeName into the agent's configuration, or NODE_NAME into its environment"
                );
                self.record_faults([(("Node", node.clone()), [fault].into())].into());
            }
            return true;
        }
        self.objects.overlay_pods = self.watches.contains_key(OVERLAY).then(|| {
            let mut by_node = OverlayPods::new();
            for (address, node) in self.overlay.values() {
                by_node.entry(node.clone()).or_default().insert(*address);
            }
            Arc::new(by_node)
        });
        let listed = &self.listed;
        self.objects.services_listed = listed.contains(POOLS) && listed.contains(ADVERTISEMENTS);
        self.objects.anycast_listed = listed.contains(ANYCAST);
        self.objects.settings_listed = listed.contains(SETTINGS);
        self.objects.remote_listed = self.remote_listed();
        self.objects.api_servers = self.servers.addresses();
        let Assembled { snapshot, mut faults } = {
            let state = self.start.cluster.state();
            let in_use = |kind: &str, name: &str| state.index.uses(kind, name);
            let namespace = &self.start.cluster.connection().namespace;
            assemble(&self.objects, self.running.as_deref(), namespace, &in_use)
        };
        if self.running.as_deref() != Some(&snapshot) || !self.refused.is_empty() {
            match self.start.reconcile.snapshot(snapshot).await {
                None => return false,
                Some(Ok(running)) => {
                    // After a restart, the list equals the rows of the cache file: one copy is enough.
                    if let Some(remote) = running.remote.as_ref().filter(|it| ***it == *self.objects.remote) {
                        self.objects.remote = Arc::clone(remote);
                    }
                    self.running = Some(running);
                    self.refused.clear();
                }
                Some(Err(SnapshotRefusal { faults })) => self.refused = faults,
            }
        }
        if !self.refused.is_empty() {
            faults.insert(("Snapshot", String::new()), self.refused.iter().cloned().collect());
        }
        for (which, texts) in &self.ignored {
            faults.entry(which.clone()).or_default().extend(texts.iter().cloned());
        }
        self.record_faults(faults);
        self.save().await;
        true
    }

    /// Reports each object with faults once while they last, and at a bounded rate.
    fn record_faults(&mut self, faults: ObjectFaults) {
        self.faults = faults;
        self.report_faults();
        self.start.cluster.state().faults = self.faults.values().flatten().cloned().collect();
    }

    fn report_faults(&mut self) {
        let joined =
            |texts: &BTreeSet<String>| kept::join(&texts.iter().cloned().collect::<Vec<_>>(), FAULT_TEXT);
        let texts = self.faults.iter().map(|(which, texts)| (which.clone(), joined(texts))).collect();
        let new = self.fault_log.select(Instant::now(), texts);
        if !new.is_empty() {
            self.start.metrics.manifests_refused();
        }
        for fault in new {
            tracing::error!(%fault, "an object of the API server is not served in its current form");
            self.start.cluster.warn("NotServed", fault);
        }
    }

    /// Writes the applied state to the cache file, if it changed.
    async fn save(&mut self) {
        let Some(running) = &self.running else { return };
        let instances = self.start.cluster.instances();
        let saved = self.remembered.as_ref();
        if saved.is_some_and(|saved| saved.snapshot == **running && saved.instances == instances) {
            return;
        }
        let remembered = Remembered { snapshot: Snapshot::clone(running), instances };
        let (path, node, contents) = (self.start.cache.clone(), self.start.node.clone(), remembered.clone());
        let written = tokio::task::spawn_blocking(move || cache::write(&path, &node, contents)).await;
        let error = match written {
            Ok(Ok(())) => {
                self.remembered = Some(remembered);
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        tracing::error!(
            error,
            "kube.cache: a restart without the API server could not use the current state"
        );
    }

    /// A restart loses pending writes. The records define what the statuses must contain.
    async fn resend_instances(&self) {
        let (Some(summary), Some(view)) =
            (self.start.ipam.summary().await, self.start.reconcile.view().await)
        else {
            return;
        };
        let attached = summary.records.iter().filter(|record| record.phase == Phase::Attached);
        for record in attached.filter(|record| has_device(record, &view.broken)) {
            self.start.cluster.attached(record);
        }
    }

    /// Reports the end of sandboxes that a status has, and this node does not. This includes
    /// records without a device: the node started again.
    async fn clear_ended(&self) {
        let (Some(summary), Some(view)) =
            (self.start.ipam.summary().await, self.start.reconcile.view().await)
        else {
            return;
        };
        let attached = attached(&summary.records, &view.broken, &view.unrecorded);
        self.start.cluster.clear_ended(attached);
    }
}

/// Whether this node's NodeInfo has no VTEP after a change, or does not exist: another program deleted or
/// emptied it.
fn lacks_vtep(change: &Change<Lenient<NodeInfoSpec>>, node: &str) -> bool {
    let has_vtep = |info: &Lenient<NodeInfoSpec>| {
        let spec = info.0.as_ref().map(|object| &object.spec);
        spec.is_ok_and(|spec| spec.vtep_info.as_ref().is_some_and(|vtep| !vtep.ip.is_empty()))
    };
    match change {
        Change::Listed(all) => !all.iter().any(|info| info.name_any() == node && has_vtep(info)),
        Change::Applied(info) => info.name_any() == node && !has_vtep(info),
        Change::Deleted(info) => info.name_any() == node,
        Change::Page { .. } | Change::Failing(_) => false,
    }
}

/// The nodes of the VLAN Network that selects these labels, by the status that the controller
/// writes.
fn vlan_members<'a>(
    networks: impl Iterator<Item = &'a Network>,
    labels: &BTreeMap<String, String>,
) -> Option<Members> {
    let mut own = networks.filter(|one| one.mode() == NetworkMode::VLAN && one.selects(labels));
    let nodes = &own.next()?.status.as_ref()?.node_list;
    (!nodes.is_empty()).then(|| Arc::new(nodes.iter().map(|node| Arc::from(node.as_str())).collect()))
}

/// Applies a change to the index of sandboxes. Returns whether a sandbox is new.
fn take_sandboxes(cluster: &Cluster, origin: Origin, change: &Change<Lenient<IPInstanceSpec>>) -> bool {
    cluster.state().sandboxes.take(cluster.node(), origin, change)
}

fn secret_watch((namespace, name): &(String, String)) -> String {
    format!("secret {namespace}/{name}")
}

/// Applies a change of a kind that manifests also have. Returns whether anything but a status
/// changed.
fn take<S: Kind, R: From<Object<S>>>(
    change: Change<Lenient<S>>,
    known: &mut BTreeMap<String, R>,
    unreadable: &mut BTreeMap<(&'static str, String), String>,
    ignored: &mut BTreeMap<(&'static str, String), Vec<String>>,
    same: impl Fn(&R, &R) -> bool,
) -> bool {
    let mut apply = |object: Lenient<S>| {
        let name = object.name_any();
        let which = (S::KIND, name.clone());
        match object.0 {
            Ok(object) => {
                let left_out: Vec<String> = object.ignored.iter().map(ToString::to_string).collect();
                let previous = if left_out.is_empty() {
                    ignored.remove(&which)
                } else {
                    ignored.insert(which.clone(), left_out.clone())
                };
                let fields_changed = previous.unwrap_or_default() != left_out;
                let readable_again = unreadable.remove(&which).is_some();
                let object = R::from(object);
                let before = known.get(&name);
                let changed =
                    fields_changed || readable_again || before.is_none_or(|before| !same(before, &object));
                known.insert(name, object);
                changed
            }
            Err(bad) => {
                let words = format!("{}: {}", bad.fault.field, bad.fault.message);
                unreadable.insert(which, words.clone()) != Some(words)
            }
        }
    };
    match change {
        Change::Applied(object) => apply(object),
        Change::Listed(objects) => {
            let names: BTreeSet<String> = objects.iter().map(ResourceExt::name_any).collect();
            for object in objects {
                apply(object);
            }
            known.retain(|name, _| names.contains(name));
            unreadable.retain(|(kind, name), _| *kind != S::KIND || names.contains(name));
            ignored.retain(|(kind, name), _| *kind != S::KIND || names.contains(name));
            // A list counts even without a change, because a snapshot may be waiting for it.
            true
        }
        Change::Deleted(object) => {
            let name = object.name_any();
            let which = (S::KIND, name.clone());
            ignored.remove(&which);
            unreadable.remove(&which).is_some() | known.remove(&name).is_some()
        }
        Change::Page { .. } | Change::Failing(_) => false,
    }
}

/// Applies a change of this node's IPInstances to the index. `None`: no change. Otherwise: whether
/// it was a list.
fn take_instances(cluster: &Cluster, change: Change<Lenient<IPInstanceSpec>>) -> Option<bool> {
    let name = |object: &Lenient<IPInstanceSpec>| (object.namespace().unwrap_or_default(), object.name_any());
    let row = |object: Lenient<IPInstanceSpec>| {
        let (namespace, name) = name(&object);
        let read = match object.0 {
            Ok(object) => Row::read(&IPInstance::from(object)).map_err(|error| error.to_string()),
            Err(bad) => Err(format!("{}: {}", bad.fault.field, bad.fault.message)),
        };
        read.unwrap_or_else(|error| {
            let fault = format!("IPInstance {namespace}/{name}: {error}");
            tracing::error!(%fault, "an object of the API server is not served in its current form");
            cluster.warn("NotServed", fault);
            None
        })
    };
    match change {
        Change::Listed(objects) => {
            let rows: Vec<_> =
                objects.into_iter().filter_map(|object| Some((name(&object), row(object)?))).collect();
            cluster.update(|state| {
                state.index.replace(rows);
                state.listed.instances = true;
            });
            Some(true)
        }
        Change::Applied(object) => {
            let (name, row) = (name(&object), row(object));
            cluster.change(|index| index.set(name, row)).then_some(false)
        }
        Change::Deleted(object) => {
            let name = name(&object);
            cluster.change(|index| index.set(name, None)).then_some(false)
        }
        Change::Page { .. } | Change::Failing(_) => None,
    }
}

/// An IPInstance of the overlay: its namespace and name, its address and its node. None: it is deleted, or
/// cannot be read.
type OverlayRow = ((String, String), Option<(IpAddr, String)>);

/// The IPInstances of the overlay.
fn overlay_rows(client: Client) -> impl Source<Object = Versioned<OverlayRow>> {
    let convert = |object: Lenient<IPInstanceSpec>| {
        let name = (object.namespace().unwrap_or_default(), object.name_any());
        (name, object.0.ok().and_then(|object| placed(&IPInstance::from(object))))
    };
    Rows { api: Api::all(client), page: PAGE, by_page: false, convert }
}

/// Applies a change of the overlay's IPInstances. Returns whether a pod of another node was added,
/// removed or moved.
fn take_overlay(
    change: Change<Versioned<OverlayRow>>,
    known: &mut BTreeMap<(String, String), (IpAddr, String)>,
    own: &str,
) -> bool {
    let set = |known: &mut BTreeMap<_, _>, (name, place): OverlayRow| match place {
        Some(place) if place.1 != own => known.insert(name, place.clone()) != Some(place),
        _ => known.remove(&name).is_some(),
    };
    match change {
        Change::Listed(rows) => {
            known.clear();
            for one in rows {
                set(known, one.row);
            }
            true
        }
        Change::Applied(one) => set(known, one.row),
        Change::Deleted(one) => known.remove(&one.row.0).is_some(),
        Change::Page { .. } | Change::Failing(_) => false,
    }
}

fn counts(subnets: &BTreeMap<String, Subnet>) -> BTreeMap<String, Counts> {
    let number = |count: i64| u32::try_from(count.max(0)).unwrap_or(u32::MAX);
    let of = |subnet: &Subnet| {
        let status = subnet.status.as_ref()?;
        let counts = Counts {
            total: number(status.total),
            used: number(status.used),
            free: number(status.available),
            ..Counts::default()
        };
        Some((subnet.name().to_owned(), counts))
    };
    subnets.values().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_controllers_list_names_the_nodes_of_the_vlan() {
        let network = |name: &str, mode: &str, rack: &str, nodes: &[&str]| -> Network {
            serde_json::from_value(json!({
                "apiVersion": "networking.alibaba.com/v1", "kind": "Network", "metadata": {"name": name},
                "spec": {"type": "Underlay", "mode": mode, "nodeSelector": {"rack": rack}},
                "status": {"nodeList": nodes},
            }))
            .unwrap()
        };
        let labels = [("rack".to_owned(), "r1".to_owned())].into();
        let members = |networks: &[Network]| {
            let found = vlan_members(networks.iter(), &labels)?;
            Some(found.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let listed = [network("a", "VLAN", "r2", &["n9"]), network("b", "VLAN", "r1", &["n1", "n2"])];
        assert_eq!(members(&listed), Some(vec!["n1".to_owned(), "n2".to_owned()]));
        assert_eq!(members(&[network("b", "VLAN", "r1", &[])]), None, "the controller has not written it");
        assert_eq!(members(&[network("b", "BGP", "r1", &["n1"])]), None);
    }
}
