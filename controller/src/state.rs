//! Shared state: the cluster's rows, and on the leader also the addresses and the work queues.
//!
//! One lock protects all of it. Each operation under the lock takes microseconds and waits for
//! nothing, so the watches, the reconcilers and the webhook can share the state directly. An event
//! changes rows, marks addresses, and adds the affected keys to the queues. A reconciler requests a
//! plan, which sets addresses aside, and carries the plan out without the lock.
//!
//! A replica that is not the leader has only the rows. A term ([`Term`]) adds the addresses,
//! rebuilt from the rows, and the queues. Both are dropped at the end of the term, so no state of
//! an old term can be written in a new one.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use trunkline_api::pool::PoolSpec;
use trunkline_api::resources::{LabelSelector, Network, ObjectMeta, Subnet, ValueError};

use crate::cluster::ClusterReader;
use crate::cluster::vm::{MigrationRow, VmInstanceRow, VmRow, key_of_vm};
use crate::cluster::{Answer, Cluster, InstanceRow, Key, NamespaceRow, NodeRow, PodRow};
use crate::ipam::{
    AllocatedAddresses, Allocation, InstanceState, Ipam, SubnetError, instance_name, named_address,
};
use crate::metrics::Metrics;
use crate::multus::MultusNetwork;
use crate::policy_faults::PolicyFaults;
use crate::queue::Queue;
use crate::reconcile::namespace::NamespaceReads;
use crate::remote::RemoteState;
use crate::services::ServiceState;
use crate::unsupported::Unsupported;
use crate::waiting::{RETRY_INTERVAL, Waiting};

/// State shared by all tasks.
pub struct SharedState {
    state: Mutex<ControllerState>,
    metrics: Arc<Metrics>,
}

impl SharedState {
    /// Creates empty state.
    pub fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(SharedState { state: Mutex::default(), metrics })
    }

    /// Locks the state. Do not hold the guard over an await.
    pub fn lock(&self) -> MutexGuard<'_, ControllerState> {
        // A panic ends the process, so no task sees a partial change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counters.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

impl ClusterReader for SharedState {
    fn with_cluster<T>(&self, look: impl FnOnce(&Cluster) -> T) -> T {
        look(&self.lock().cluster)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.lock().changed.subscribe()
    }
}

/// Rows of the cluster, and on the leader the state of its term.
#[derive(Default)]
pub struct ControllerState {
    /// Rows of the cluster.
    pub cluster: Cluster,
    /// State of the term, while this replica is the leader.
    pub term: Option<Term>,
    /// Rows and addresses of Services. Only the leader has them, and no pod waits for them.
    pub services: ServiceState,
    /// Rows about other clusters.
    pub remote: RemoteState,
    /// The pods that get addresses.
    pub pod_selector: LabelSelector,
    /// Unreadable fields of Networks and Subnets, by kind and name.
    pub faults: HashMap<(&'static str, Arc<str>), ParseFault>,
    /// Objects that request an unsupported feature. Only the leader has them.
    pub unsupported: Unsupported,
    /// Network policies with faults. Only the leader has them.
    pub policy_faults: PolicyFaults,
    /// Reads of the Namespaces of new pods.
    pub namespace_reads: NamespaceReads,
    /// Counts changes of networks, subnets and namespaces.
    changed: watch::Sender<u64>,
}

/// The unreadable part of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseFault {
    /// The object's UID.
    pub uid: Arc<str>,
    /// The fields, and what is wrong with them.
    pub text: String,
}

/// Work queues, one for each kind.
pub struct Queues {
    /// Pods by allocation key: by name, including deleted ones, or by virtual machine.
    pub pods: Queue<Key>,
    /// IPInstances with a deletion timestamp.
    pub instances: Queue<Key>,
    /// Addresses with more than one IPInstance.
    pub conflicts: Queue<IpAddr>,
    /// Networks, for their status.
    pub networks: Queue<Arc<str>>,
    /// Subnets, for their status.
    pub subnets: Queue<Arc<str>>,
    /// Nodes, for their labels and condition, including deleted ones.
    pub nodes: Queue<Arc<str>>,
    /// The retry of waiting pods, at most once in [`RETRY_INTERVAL`].
    pub retries: Queue<()>,
}

impl Queues {
    /// Creates empty queues. A status is written at most once per `status_interval`.
    pub fn new(status_interval: Duration) -> Arc<Self> {
        Arc::new(Queues {
            pods: Queue::new(Duration::ZERO),
            instances: Queue::new(Duration::ZERO),
            conflicts: Queue::new(Duration::ZERO),
            networks: Queue::new(status_interval),
            subnets: Queue::new(status_interval),
            nodes: Queue::new(status_interval),
            retries: Queue::new(RETRY_INTERVAL),
        })
    }

    /// Ends the backoff of all failed work, when the API server answers again.
    pub fn retry(&self) {
        self.pods.retry();
        self.instances.retry();
        self.conflicts.retry();
        self.networks.retry();
        self.subnets.retry();
        self.nodes.retry();
    }

    /// Queues a Network or Subnet, so that its fault is reported in an event.
    fn queue_fault(&self, kind: &str, name: &Arc<str>) {
        let queue = if kind == "Network" { &self.networks } else { &self.subnets };
        queue.add(Arc::clone(name));
    }
}

/// State that only the leader has.
pub struct Term {
    /// The addresses.
    pub ipam: Ipam,
    /// The work queues.
    pub queues: Arc<Queues>,
    /// Pods without an address, whatever the reason. A change of networks, subnets or nodes may help
    /// all of them, other changes those with the cause.
    pub waiting: Waiting<PodCause>,
    /// The pods in `waiting` for which no address was free, by network. The first one that can use the
    /// subnet of the next free address gets it.
    pub(crate) starving: HashMap<Arc<str>, WaitQueue>,
    /// The pods that were queued for a free address and are not planned yet, with the network and the
    /// subnet of the address.
    pub(crate) woken: HashMap<Key, (Arc<str>, Arc<str>)>,
    /// IPInstances whose pod has ended while its sandbox is attached, with the sandbox's node.
    pub(crate) held: HashMap<Key, Arc<str>>,
    /// Addresses set aside for a pod while it is unknown whether the API server has their
    /// IPInstances.
    pub pending_creates: HashMap<Key, Vec<PendingCreate>>,
    /// Whether each network had a free address at the last update of the node labels, by family.
    pub quotas: HashMap<Arc<str>, [bool; 3]>,
    /// Cache of each network's node names, cleared when they change. The computation of one entry
    /// scans all nodes.
    members: HashMap<Arc<str>, Arc<[String]>>,
    /// Subnets that exist but are not served, with the reason. A change of another subnet may
    /// remove the reason.
    pub silent: BTreeMap<Arc<str>, SubnetError>,
}

/// An object whose change may help a pod without an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PodCause {
    /// Its Namespace.
    Namespace(Arc<str>),
    /// A NetworkAttachmentDefinition that its annotation names.
    Definition(Key),
}

/// Pods that wait for a free address, in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    order: VecDeque<Key>,
    all: HashMap<Key, WaitsFor>,
}

/// The subnets of which an address helps a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WaitsFor {
    /// One of these.
    Subnets(Vec<Arc<str>>),
    /// Any of the network: a pod with both families needs an address of each, and only the first
    /// missing one is known.
    Network,
}

impl WaitQueue {
    /// Appends a pod. A pod that is in the queue already keeps its place.
    pub(crate) fn push(&mut self, key: &Key, waits_for: WaitsFor) {
        if self.all.insert(key.clone(), waits_for).is_none() {
            self.order.push_back(key.clone());
        }
    }

    /// Takes the first pod that an address of this subnet helps.
    fn take(&mut self, subnet: &Arc<str>) -> Option<Key> {
        let helps = |key: &Key| match self.all.get(key) {
            Some(WaitsFor::Subnets(subnets)) => subnets.contains(subnet),
            Some(WaitsFor::Network) | None => true,
        };
        let key = self.order.remove(self.order.iter().position(helps)?)?;
        self.all.remove(&key);
        Some(key)
    }
}

/// Addresses whose create or bind request had no answer.
#[derive(Clone, Debug)]
pub struct PendingCreate {
    /// UID of the pod that the addresses are for.
    pub pod_uid: Arc<str>,
    /// The pod's interface, if this is not `eth0`.
    pub interface: Option<Arc<str>>,
    /// Their network.
    pub network: Arc<Network>,
    /// The allocated addresses.
    pub granted: AllocatedAddresses,
    /// The families of all addresses of the pod, including those that it already has.
    pub family: trunkline_api::pod::IpFamily,
}

impl Term {
    /// Retries all waiting pods soon.
    fn retry_waiting(&mut self) {
        if self.waiting.change_all() {
            self.queues.retries.add(());
        }
    }

    /// Retries the pods soon that wait for this change.
    fn retry_waiting_for(&mut self, cause: &PodCause) {
        if self.waiting.change(cause) {
            self.queues.retries.add(());
        }
    }

    /// Queues the waiting pods that the changes since the last call may help.
    pub(crate) fn queue_waiting(&mut self) {
        if self.waiting.has_all_changed() {
            self.starving.clear();
        }
        for key in self.waiting.take_changed() {
            self.queues.pods.add(key);
        }
    }

    /// Takes the pending addresses of an interface of a pod.
    pub(crate) fn take_pending(&mut self, key: &Key, interface: Option<&Arc<str>>) -> Option<PendingCreate> {
        let all = self.pending_creates.get_mut(key)?;
        let position = all.iter().position(|pending| pending.interface.as_ref() == interface)?;
        let pending = all.swap_remove(position);
        if all.is_empty() {
            self.pending_creates.remove(key);
        }
        Some(pending)
    }

    /// Remembers addresses whose requests had no answer.
    pub(crate) fn add_pending(&mut self, key: &Key, pending: PendingCreate) {
        self.pending_creates.entry(key.clone()).or_default().push(pending);
    }

    /// Whether a pod waits for a free address of a network.
    pub(crate) fn is_starving(&self, network: &str, key: &Key) -> bool {
        self.starving.get(network).is_some_and(|pods| pods.all.contains_key(key))
    }

    pub(crate) fn address_is_free(&mut self, network: &Arc<str>, subnet: &Arc<str>) {
        let Some(pods) = self.starving.get_mut(network) else { return };
        while let Some(key) = pods.take(subnet) {
            // A pod that has its addresses since is still in the queue.
            if self.waiting.remove(&key) {
                self.woken.insert(key.clone(), (Arc::clone(network), Arc::clone(subnet)));
                self.queues.pods.add(key);
                return;
            }
        }
        if pods.order.is_empty() {
            self.starving.remove(network);
        }
    }

    fn count_changed(&self, row: &InstanceRow) {
        self.queues.networks.add(Arc::clone(&row.network));
        self.queues.subnets.add(Arc::clone(&row.subnet));
    }

    fn set_subnet(&mut self, subnet: &Subnet) {
        let name = subnet.name();
        let taken = if subnet.metadata.deletion_timestamp.is_some() {
            // Allocated addresses stay allocated; the subnet allocates no more.
            self.ipam.remove_subnet(name);
            Ok(())
        } else {
            pool_spec(subnet).map_err(SubnetError::from).and_then(|spec| {
                let last = subnet.status.as_ref().and_then(|status| status.last_allocated_ip.parse().ok());
                self.ipam.set_subnet(spec, last)
            })
        };
        if let Err(fault) = taken {
            if self.silent.get(name) != Some(&fault) {
                tracing::warn!(subnet = name, %fault, "a subnet allocates no addresses");
                self.silent.insert(name.into(), fault);
            }
        } else {
            self.silent.remove(name);
        }
    }

    fn adopt(&mut self, key: &Key, address: IpAddr, mac: Option<[u8; 6]>, seen: InstanceState) {
        let mac = mac.unwrap_or_default();
        let allocation = Allocation { address, namespace: &key.namespace, mac, seen };
        if let Err(conflict) = self.ipam.adopt(&allocation) {
            tracing::error!(%conflict, "two IPInstances have one address");
            self.queues.conflicts.add(address);
        }
    }

    fn adopt_row(&mut self, key: &Key, row: &InstanceRow) {
        let seen = match row {
            _ if row.deleting => InstanceState::Deleting,
            _ if row.is_reserved() => InstanceState::Kept,
            _ => InstanceState::Bound,
        };
        self.adopt(key, row.address, row.mac, seen);
    }
}

/// Converts a Subnet to the pool's specification.
fn pool_spec(subnet: &Subnet) -> Result<PoolSpec, ValueError> {
    let range = subnet.spec.range.parse()?;
    Ok(PoolSpec {
        subnet: subnet.name().to_owned(),
        network: subnet.spec.network.clone(),
        cidr: range.cidr,
        start: Some(range.first),
        end: Some(range.last),
        gateway: range.gateway,
        reserved: range.reserved,
        excluded: range.excluded,
        private: subnet.is_private(),
        access: subnet.access(),
    })
}

impl ControllerState {
    /// Starts a term as the leader. The rows are complete: IPInstances and pods come from lists
    /// that began after the predecessor stopped.
    pub fn begin_term(&mut self, queues: Arc<Queues>) {
        let mut term = Term {
            ipam: Ipam::default(),
            queues: Arc::clone(&queues),
            waiting: Waiting::default(),
            starving: HashMap::new(),
            woken: HashMap::new(),
            held: HashMap::new(),
            pending_creates: HashMap::new(),
            quotas: HashMap::new(),
            members: HashMap::new(),
            silent: BTreeMap::new(),
        };
        for network in self.cluster.networks() {
            resume(&mut term.ipam, network);
            queues.networks.add(network.name().into());
        }
        // Of two overlapping subnets the older one is served.
        for subnet in by_age(self.cluster.subnets()) {
            term.set_subnet(subnet);
            queues.subnets.add(subnet.name().into());
        }
        for (kind, name) in self.faults.keys() {
            queues.queue_fault(kind, name);
        }
        // Of two IPInstances with one address, the one written first holds the address.
        let mut instances: Vec<_> = self.cluster.instances().collect();
        instances.sort_by_key(|(_, row)| row.version);
        for (key, row) in instances {
            term.adopt_row(key, row);
            if row.deleting {
                queues.instances.add(key.clone());
            } else if let Some(of) = row.allocation_key(key) {
                queues.pods.add(of);
            }
        }
        for (key, ()) in self.cluster.unreadable.iter() {
            if let Some(address) = named_address(&key.name) {
                term.adopt(key, address, None, InstanceState::Bound);
            }
        }
        for (key, row) in self.cluster.pods.iter() {
            queues.pods.add(key.clone());
            self.cluster.vms.key_of_pod(key, row).into_iter().for_each(|of| queues.pods.add(of));
        }
        for (name, _) in self.cluster.nodes() {
            queues.nodes.add(Arc::clone(name));
        }
        self.term = Some(term);
    }

    /// Ends the backoff of all failed work, when the API server answers again.
    pub fn retry(&self) {
        if let Some(term) = &self.term {
            term.queues.retry();
        }
        if let Some(term) = &self.services.term {
            term.queues.retry();
        }
    }

    /// Ends the term.
    pub fn end_term(&mut self) {
        self.term = None;
        self.services.end_term();
        self.remote.end_term();
        self.cluster.pods = Default::default();
        self.cluster.vms.clear();
        self.unsupported = Unsupported::default();
        self.policy_faults = PolicyFaults::default();
    }

    /// Handles an added or changed Network.
    pub(crate) fn set_network(&mut self, name: &Arc<str>, network: Network) {
        self.changed.send_modify(|count| *count += 1);
        let network = Arc::new(network);
        let old = self.cluster.networks.set(Arc::clone(name), Arc::clone(&network));
        let Some(term) = &mut self.term else { return };
        if old.is_some_and(|old| old.spec == network.spec && is_as_far(&old.metadata, &network.metadata)) {
            return;
        }
        resume(&mut term.ipam, &network);
        self.memberships_changed();
    }

    /// Handles a deleted Network.
    pub(crate) fn remove_network(&mut self, name: &Arc<str>) {
        self.changed.send_modify(|count| *count += 1);
        self.cluster.networks.remove(name);
        if let Some(term) = &mut self.term {
            term.ipam.remove_network(name);
            term.quotas.remove(name);
            self.memberships_changed();
        }
    }

    pub(crate) fn members(&mut self, name: &str) -> Arc<[String]> {
        if let Some(known) = self.term.as_ref().and_then(|term| term.members.get(name)) {
            return Arc::clone(known);
        }
        let cluster = &self.cluster;
        let mut members: Vec<String> = Vec::new();
        if let Some(network) = cluster.network(name) {
            let nodes = cluster.nodes().filter(|(_, node)| !node.deleting && cluster.has_node(network, node));
            members.extend(nodes.map(|(name, _)| name.to_string()));
        }
        members.sort_unstable();
        let members: Arc<[String]> = members.into();
        if let Some(term) = &mut self.term {
            term.members.insert(name.into(), Arc::clone(&members));
        }
        members
    }

    /// Handles a change that may affect the membership of any node in any network.
    fn memberships_changed(&mut self) {
        let Some(term) = &mut self.term else { return };
        term.members.clear();
        for network in self.cluster.networks() {
            term.queues.networks.add(network.name().into());
        }
        for (name, _) in self.cluster.nodes() {
            term.queues.nodes.add(Arc::clone(name));
        }
        term.retry_waiting();
    }

    /// Handles an added or changed Subnet.
    pub(crate) fn set_subnet(&mut self, name: &Arc<str>, subnet: Subnet) {
        self.changed.send_modify(|count| *count += 1);
        let subnet = Arc::new(subnet);
        let old = self.cluster.set_subnet(name, Arc::clone(&subnet));
        let same_spec = old.as_ref().is_some_and(|old| old.spec == subnet.spec);
        let old_retention = old.as_ref().and_then(|old| old.retention());
        if !same_spec {
            self.services.pools_changed();
        }
        let Some(term) = &mut self.term else { return };
        if old.is_some_and(|old| same_spec && is_as_far(&old.metadata, &subnet.metadata)) {
            return;
        }
        term.set_subnet(&subnet);
        if old_retention != subnet.retention() {
            self.retention_changed(name);
        }
        let Some(term) = &mut self.term else { return };
        term.queues.subnets.add(Arc::clone(name));
        term.queues.networks.add(subnet.spec.network.as_str().into());
        self.retry_silent();
    }

    /// Queues the pods' names of a subnet's addresses, because their retention may have changed.
    fn retention_changed(&self, subnet: &str) {
        let Some(term) = &self.term else { return };
        for (address, namespace) in term.ipam.holders(subnet) {
            let key = Key::new(Arc::clone(namespace), instance_name(address));
            if let Some(of) = self.cluster.instance(&key).and_then(|row| row.allocation_key(&key)) {
                term.queues.pods.add(of);
            }
        }
    }

    /// Retries subnets that are not served, the oldest first, after another subnet was changed or
    /// removed. Then retries the waiting pods.
    fn retry_silent(&mut self) {
        let Some(term) = &mut self.term else { return };
        let silent: Vec<_> = term.silent.keys().filter_map(|name| self.cluster.subnet(name)).collect();
        for subnet in by_age(silent.into_iter()) {
            term.set_subnet(subnet);
            term.queues.subnets.add(subnet.name().into());
            term.queues.networks.add(subnet.spec.network.as_str().into());
        }
        term.retry_waiting();
    }

    /// Records or clears the fault of a Network or Subnet.
    pub(crate) fn set_fault(&mut self, kind: &'static str, name: &Arc<str>, fault: Option<ParseFault>) {
        let at = (kind, Arc::clone(name));
        match fault {
            Some(fault) => drop(self.faults.insert(at, fault)),
            None => drop(self.faults.remove(&at)),
        }
        if let Some(term) = &self.term {
            term.queues.queue_fault(kind, name);
        }
    }

    /// Handles an added or changed NetworkAttachmentDefinition.
    pub(crate) fn set_multus(&mut self, key: &Key, network: Option<MultusNetwork>) {
        let old = self.cluster.multus.set(key.clone(), network);
        if let Some(term) = &mut self.term
            && old.as_ref() != self.cluster.multus.get(key)
        {
            term.retry_waiting_for(&PodCause::Definition(key.clone()));
        }
    }

    /// Handles a deleted Subnet.
    pub(crate) fn remove_subnet(&mut self, name: &Arc<str>) {
        self.changed.send_modify(|count| *count += 1);
        let Some(old) = self.cluster.remove_subnet(name) else { return };
        self.services.pools_changed();
        if let Some(term) = &mut self.term {
            term.ipam.remove_subnet(name);
            term.silent.remove(name);
            term.queues.networks.add(old.spec.network.as_str().into());
        }
        self.retry_silent();
    }

    /// Handles an added or changed Node.
    pub(crate) fn set_node(&mut self, name: &Arc<str>, node: NodeRow) {
        if self.cluster.nodes.get(name) == Some(&node) {
            self.cluster.nodes.note(name);
            return;
        }
        let old = self.cluster.nodes.set(Arc::clone(name), node);
        let Some(new) = self.cluster.nodes.get(name) else { return };
        let addresses = old.as_ref().map(|old| old.addresses.as_slice()).unwrap_or_default();
        if old.as_ref().is_some_and(|old| old.created != new.created) {
            // Another Node of this name: its age decides, too.
            self.services.node_addresses_changed(addresses, &[]);
            self.services.node_addresses_changed(&[], &new.addresses);
        } else {
            self.services.node_addresses_changed(addresses, &new.addresses);
        }
        let Some(term) = &mut self.term else { return };
        term.queues.nodes.add(Arc::clone(name));
        for network in self.cluster.networks() {
            let has = |node: &NodeRow| !node.deleting && self.cluster.has_node(network, node);
            if old.as_ref().is_some_and(has) != has(new) {
                term.members.remove(network.name());
                term.queues.networks.add(network.name().into());
            }
        }
        if old.as_ref().is_some_and(|old| old.out_of_service != new.out_of_service) {
            term.retry_held(&self.cluster, name);
        }
        if old.is_none_or(|old| old.labels != new.labels) {
            term.retry_waiting();
        }
    }

    /// Handles a deleted Node.
    pub(crate) fn remove_node(&mut self, name: &Arc<str>) {
        let Some(old) = self.cluster.nodes.remove(name) else { return };
        self.services.node_addresses_changed(&old.addresses, &[]);
        self.services.node_removed(name);
        let Some(term) = &mut self.term else { return };
        term.queues.nodes.add(Arc::clone(name));
        term.retry_held(&self.cluster, name);
        for network in self.cluster.networks() {
            if self.cluster.has_node(network, &old) {
                term.members.remove(network.name());
                term.queues.networks.add(network.name().into());
            }
        }
    }

    /// Handles an added or changed Namespace. An event that is older than the row is ignored.
    pub(crate) fn set_namespace(&mut self, name: &Arc<str>, row: NamespaceRow) {
        let namespaces = &mut self.cluster.namespaces;
        let is_old = namespaces.get(name).is_some_and(|known| row.version < known.version);
        if is_old && !namespaces.is_before_list(name) {
            namespaces.note(name);
            return;
        }
        self.changed.send_modify(|count| *count += 1);
        let old = self.cluster.namespaces.set(Arc::clone(name), row);
        let Some(new) = self.cluster.namespaces.get(name) else { return };
        // Labels change often in some clusters, and most of them concern no pod.
        let networking = old.as_ref().is_some_and(|old| old.networking == new.networking);
        let labels = old.as_ref().is_some_and(|old| old.labels == new.labels);
        if let Some(term) = &mut self.term
            && !networking
        {
            term.retry_waiting_for(&PodCause::Namespace(Arc::clone(name)));
        }
        if !labels {
            self.services.namespace_changed(name);
        }
    }

    /// Handles a deleted Namespace, of this version or before.
    pub(crate) fn remove_namespace(&mut self, name: &str, version: u64) {
        if self.cluster.namespaces.get(name).is_some_and(|known| known.version <= version) {
            self.cluster.namespaces.remove(name);
            self.namespace_reads.remove(name);
        }
    }

    /// Handles an added or changed pod with a node.
    pub(crate) fn set_pod(&mut self, key: &Key, row: PodRow) {
        if self.cluster.pods.get(key).is_none_or(|known| known.uid != row.uid) {
            self.namespace_reads.pod_arrived(&key.namespace);
        }
        if self.cluster.pods.get(key) == Some(&row) {
            self.cluster.pods.note(key);
            return;
        }
        let vm = self.cluster.vms.key_of_pod(key, &row);
        self.cluster.set_pod(key, row);
        self.pod_changed(key, vm);
    }

    /// Handles a deleted pod.
    pub(crate) fn remove_pod(&mut self, key: &Key) {
        let old = self.cluster.remove_pod(key);
        let vm = old.and_then(|old| self.cluster.vms.key_of_pod(key, &old));
        self.pod_changed(key, vm);
    }

    /// Queues a pod, and the key of its virtual machine.
    fn pod_changed(&mut self, key: &Key, vm: Option<Key>) {
        let Some(term) = &mut self.term else { return };
        for key in [Some(key.clone()), vm].into_iter().flatten() {
            for (instance, row) in self.cluster.instances_of(&key) {
                if row.deleting {
                    term.queues.instances.add(instance.clone());
                }
            }
            term.queues.pods.add(key);
        }
    }

    /// Handles an added or changed VirtualMachine.
    pub(crate) fn set_vm(&mut self, key: &Key, row: VmRow) {
        let changed = self.cluster.vms.vms.get(key) != Some(&row);
        self.cluster.vms.vms.set(key.clone(), row);
        if changed {
            self.vm_changed(key);
        }
    }

    /// Handles a deleted VirtualMachine.
    pub(crate) fn remove_vm(&mut self, key: &Key) {
        self.cluster.vms.vms.remove(key);
        self.vm_changed(key);
    }

    /// Handles a complete list of VirtualMachines: those with addresses that are not in it are gone.
    pub(crate) fn vms_listed(&mut self) {
        let Some(term) = &self.term else { return };
        for (key, row) in self.cluster.instances().filter(|(_, row)| row.of_vm) {
            row.allocation_key(key).into_iter().for_each(|of| term.queues.pods.add(of));
        }
    }

    /// Handles an added or changed VirtualMachineInstance.
    pub(crate) fn set_vm_instance(&mut self, key: &Key, row: VmInstanceRow) {
        let changed = self.cluster.vms.instances.get(key) != Some(&row);
        self.cluster.vms.instances.set(key.clone(), row);
        if changed {
            self.vm_changed(key);
        }
    }

    /// Handles a deleted VirtualMachineInstance.
    pub(crate) fn remove_vm_instance(&mut self, key: &Key) {
        self.cluster.vms.instances.remove(key);
        self.vm_changed(key);
    }

    /// Handles an added, changed or deleted live migration.
    pub(crate) fn set_vm_migration(&mut self, key: &Key, row: Option<MigrationRow>) {
        for vm in self.cluster.vms.set_migration(key, row) {
            self.vm_changed(&vm);
        }
    }

    /// Queues a virtual machine and its pods.
    fn vm_changed(&self, vm: &Key) {
        let Some(term) = &self.term else { return };
        term.queues.pods.add(key_of_vm(&vm.namespace, &vm.name));
        self.cluster.vms.pods(vm).for_each(|pod| term.queues.pods.add(pod.clone()));
    }

    /// Handles an added or changed IPInstance from the watch.
    pub(crate) fn set_instance(&mut self, key: &Key, row: InstanceRow) {
        self.cluster.unreadable.remove(key);
        if let Ok(old) = self.cluster.set_instance(key, row) {
            self.instance_changed(key, old);
        }
    }

    /// Handles an IPInstance in the answer to a write of this process.
    pub(crate) fn learn_instance(&mut self, key: &Key, row: InstanceRow, answer: Answer) {
        if let Ok(old) = self.cluster.learn_instance(key, row, answer) {
            self.cluster.unreadable.remove(key);
            self.instance_changed(key, old);
        }
    }

    fn instance_changed(&mut self, key: &Key, old: Option<InstanceRow>) {
        let Some(new) = self.cluster.instance(key) else { return };
        if old.as_ref() == Some(new) {
            return;
        }
        let Some(term) = &mut self.term else { return };
        if let Some(old) = old.as_ref().filter(|old| old.address != new.address) {
            term.ipam.gone(old.address, &key.namespace);
        }
        term.adopt_row(key, new);
        term.held.remove(key);
        if old.is_none() {
            term.count_changed(new);
        }
        if new.deleting {
            term.queues.instances.add(key.clone());
        }
        let before = old.and_then(|old| old.allocation_key(key));
        for of in [before, new.allocation_key(key)].into_iter().flatten() {
            term.queues.pods.add(of);
        }
    }

    /// Handles an IPInstance that cannot be read. Its name contains its address, so the address is
    /// allocated to no pod.
    pub(crate) fn unreadable_instance(&mut self, key: &Key) {
        self.cluster.instances.note(key);
        self.cluster.unreadable.set(key.clone(), ());
        if let (Some(term), Some(address)) = (&mut self.term, named_address(&key.name)) {
            term.adopt(key, address, None, InstanceState::Bound);
        }
    }

    /// Handles a deleted IPInstance: its address becomes free. `version` is the version of the
    /// deletion.
    pub(crate) fn remove_instance(&mut self, key: &Key, version: u64) {
        if self.cluster.unreadable.remove(key).is_some()
            && let (Some(term), Some(address)) = (&mut self.term, named_address(&key.name))
        {
            term.ipam.gone(address, &key.namespace);
        }
        let Some(row) = self.cluster.remove_instance(key, version) else { return };
        let Some(term) = &mut self.term else { return };
        term.held.remove(key);
        term.ipam.gone(row.address, &key.namespace);
        term.count_changed(&row);
        if let Some(of) = row.allocation_key(key) {
            term.queues.pods.add(of);
        }
        term.address_is_free(&row.network, &row.subnet);
    }
}

/// Whether two versions of an object have the same deletion timestamp and finalizers.
fn is_as_far(one: &ObjectMeta, other: &ObjectMeta) -> bool {
    one.deletion_timestamp == other.deletion_timestamp && one.finalizers == other.finalizers
}

fn by_age<'a>(subnets: impl Iterator<Item = &'a Arc<Subnet>>) -> Vec<&'a Arc<Subnet>> {
    let mut subnets: Vec<_> = subnets.collect();
    subnets.sort_by_key(|subnet| (&subnet.metadata.creation_timestamp, subnet.name()));
    subnets
}

fn resume(ipam: &mut Ipam, network: &Network) {
    let Some(status) = &network.status else { return };
    let (v4, v6) = (status.last_allocated_subnet.as_str(), status.last_allocated_ipv6_subnet.as_str());
    ipam.resume_network(network.name(), Some(v4), Some(v6));
}
