//! The task that owns the states of live migrations.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use trunkline_api::resources::AttachmentKind;
use trunkline_datapath::link_check::LinkChecker;
use trunkline_datapath::link_check::announcement::AnnouncementListener;
use trunkline_datapath::naming::host_ifname;

use super::decide::{decide, target_node};
use crate::ipam::{AttachmentKey, Ipam, MigrationState, Record, TargetNode};
use crate::plan::{Mode, NetworkPlan};
use crate::reconcile::Reconcile;
use crate::source::kube::Cluster;

/// Announcements that may wait.
const ANNOUNCEMENTS: usize = 64;
/// Read Node objects that may wait.
const READ_NODES: usize = 16;
/// The pause before a Node object is read again.
const RETRY: Duration = Duration::from_secs(5);

/// The inputs of the task.
pub struct MigrationDependencies {
    /// The IPInstances.
    pub cluster: Cluster,
    /// The records.
    pub ipam: Ipam,
    /// Routes and advertisements.
    pub reconcile: Reconcile,
    /// Announcements in VLANs.
    pub link_checker: LinkChecker,
}

struct Task {
    start: MigrationDependencies,
    /// The states that the reconcile task has. None: the pod was not attached yet.
    applied: BTreeMap<AttachmentKey, Option<MigrationState>>,
    listeners: HashMap<AttachmentKey, AbortHandle>,
    announced: mpsc::Sender<(AttachmentKey, &'static str)>,
    /// The nodes of targets by name.
    target_nodes: HashMap<String, TargetAddresses>,
    read_nodes: mpsc::Sender<TargetNode>,
}

/// The addresses of a target's node.
enum TargetAddresses {
    /// The Node object is being read.
    Pending(AbortHandle),
    Known(Vec<IpAddr>),
}

/// Follows the live migrations of this node's pods until the agent stops.
pub async fn follow(start: MigrationDependencies) {
    let (announced, mut announcements) = mpsc::channel(ANNOUNCEMENTS);
    let mut changes = start.cluster.changes();
    let (read_nodes, mut nodes) = mpsc::channel(READ_NODES);
    let mut task = Task {
        start,
        applied: BTreeMap::new(),
        listeners: HashMap::new(),
        announced,
        target_nodes: HashMap::new(),
        read_nodes,
    };
    // Records of the last run may have a part in a live migration.
    let mut is_first = true;
    loop {
        changes.mark_unchanged();
        let known = task.start.cluster.has_migrations();
        if known.is_some_and(|some| some || is_first || !task.applied.is_empty()) {
            let Some(summary) = task.start.ipam.summary().await else { return };
            is_first = false;
            task.settle(summary.records).await;
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            Some(TargetNode { name, addresses }) = nodes.recv() => {
                task.target_nodes.insert(name, TargetAddresses::Known(addresses));
            }
            Some((key, protocol)) = announcements.recv() => task.announced(&key, protocol).await,
        }
    }
}

impl Task {
    /// Brings every attachment to its state.
    async fn settle(&mut self, records: Vec<Record>) {
        self.applied.retain(|key, _| records.iter().any(|record| record.key == *key));
        let mut used_nodes = BTreeSet::new();
        for record in records {
            let (own, departures) = self.start.cluster.migration_rows(&record);
            let state = decide(&record.pod, record.migration, &own, &departures);
            let target = target_node(self.start.cluster.node(), state, &departures);
            let target = target.and_then(|name| {
                used_nodes.insert(name.to_owned());
                self.read_target_node(name, &record)
            });
            let is_quiet = state.is_active() && record.migration.is_active();
            if is_quiet && self.applied.get(&record.key).is_none_or(|applied| *applied == Some(state)) {
                self.applied.remove(&record.key);
                self.stop_listening(&record.key);
                continue;
            }
            let link = self.apply(&record, state, target).await;
            let awaits = own.iter().any(|row| row.awaits);
            match link.filter(|_| state == MigrationState::Inactive && awaits) {
                Some(ifindex) => self.listen(&record, ifindex),
                None => self.stop_listening(&record.key),
            }
        }
        self.target_nodes.retain(|name, addresses| {
            let stays = used_nodes.contains(name);
            if let TargetAddresses::Pending(reading) = addresses
                && !stays
            {
                reading.abort();
            }
            stays
        });
        let applied = &self.applied;
        self.listeners.retain(|key, listener| {
            let stays = applied.contains_key(key);
            if !stays {
                listener.abort();
            }
            stays
        });
    }

    /// The addresses of the target's node, or those in the record. If they are not known, starts to
    /// read the Node object.
    fn read_target_node(&mut self, name: &str, record: &Record) -> Option<TargetNode> {
        if let Some(TargetAddresses::Known(addresses)) = self.target_nodes.get(name) {
            return Some(TargetNode { name: name.to_owned(), addresses: addresses.clone() });
        }
        self.target_nodes.entry(name.to_owned()).or_insert_with(|| {
            let (cluster, read, name) =
                (self.start.cluster.clone(), self.read_nodes.clone(), name.to_owned());
            let reading = tokio::spawn(async move {
                let addresses = loop {
                    match cluster.node_addresses(&name).await {
                        Some(addresses) => break addresses,
                        None => tokio::time::sleep(RETRY).await,
                    }
                };
                _ = read.send(TargetNode { name, addresses }).await;
            });
            TargetAddresses::Pending(reading.abort_handle())
        });
        record.target_node.clone().filter(|node| node.name == name)
    }

    /// Applies a state, first in kernel and speaker, then on disk. Returns the index of the pod's host
    /// interface, if the pod is attached.
    async fn apply(
        &mut self,
        record: &Record,
        state: MigrationState,
        target_node: Option<TargetNode>,
    ) -> Option<u32> {
        let host_ifname = host_ifname(&record.key.container_id, &record.key.ifname);
        let addresses = target_node.as_ref().map(|node| node.addresses.clone()).unwrap_or_default();
        let link = self.start.reconcile.migrate(host_ifname, state, addresses).await;
        self.applied.insert(record.key.clone(), link.map(|_| state));
        if record.migration == state && record.target_node == target_node {
            return link;
        }
        if record.migration == MigrationState::Inactive && state != record.migration {
            // The target's agent reports where the virtual machine runs.
            self.start.cluster.attached(&Record { migration: state, ..record.clone() });
            self.announce(record).await;
        }
        if let Err(error) = self.start.ipam.migrate(record.key.clone(), state, target_node).await {
            tracing::warn!(attachment = %record.key, %error, "the state of a live migration is not on disk");
        }
        link
    }

    /// Announces the addresses in their VLANs, if they are in any. Neighbours have the MAC address of
    /// the other node.
    async fn announce(&self, record: &Record) {
        let plan = self.start.reconcile.plan().borrow().clone();
        let network = plan.as_ref().and_then(|plan| plan.networks.get(&record.network));
        let in_vlan = |network: &&NetworkPlan| network.mode == Mode::Vlan;
        let Some(network) = network.filter(in_vlan).filter(|_| record.attachment == AttachmentKind::Veth)
        else {
            return;
        };
        for address in record.addresses.iter().map(|assigned| assigned.address) {
            let device = network.subnet_of(address).and_then(|(_, subnet)| subnet.device.as_ref());
            let Some(ifindex) = device.and_then(|device| device.ifindex) else { continue };
            if let Err(error) = self.start.link_checker.announce(ifindex, address).await {
                tracing::warn!(%address, %error, "the virtual machine is not announced in its VLAN");
            }
        }
    }

    /// A virtual machine has announced itself on the interface of its pod.
    async fn announced(&mut self, key: &AttachmentKey, protocol: &'static str) {
        self.stop_listening(key);
        let Some(record) = self.start.ipam.get(key.clone()).await else { return };
        let (own, _) = self.start.cluster.migration_rows(&record);
        let awaits = own.iter().any(|row| row.awaits);
        if record.migration == MigrationState::Inactive && awaits {
            tracing::info!(attachment = %key, protocol, "a virtual machine has arrived: its pod is advertised");
            self.apply(&record, MigrationState::Arrived, None).await;
        }
    }

    fn listen(&mut self, record: &Record, ifindex: u32) {
        if self.listeners.contains_key(&record.key) {
            return;
        }
        let addresses = record.addresses.iter().map(|assigned| assigned.address).collect();
        let listener = match AnnouncementListener::open(ifindex, record.mac, addresses) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::warn!(attachment = %record.key, %error, "no announcement is received: the switch waits for the API server");
                return;
            }
        };
        let (key, announced) = (record.key.clone(), self.announced.clone());
        let listening = tokio::spawn(async move {
            match listener.next().await {
                Ok(protocol) => drop(announced.send((key, protocol)).await),
                Err(error) => tracing::debug!(attachment = %key, %error, "the pod's interface is gone"),
            }
        });
        self.listeners.insert(record.key.clone(), listening.abort_handle());
    }

    fn stop_listening(&mut self, key: &AttachmentKey) {
        if let Some(listener) = self.listeners.remove(key) {
            listener.abort();
        }
    }
}
