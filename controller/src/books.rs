//! The books: what is known of the cluster, and, on the leader, the addresses and what is to be looked at again.
//!
//! One lock around all of it. Everything that is done under it is a matter of microseconds and waits for nothing, so that the
//! watches, the reconcilers and the webhook can share it without telling each other anything: an event changes rows,
//! marks addresses, and adds the keys of what it may concern to the queues; a reconciler asks for a plan, which sets aside the
//! addresses that it names, and carries it out without the lock.
//!
//! A replica that is not the leader has the rows alone. With a term ([`Term`]) come the addresses, rebuilt from the rows, and the queues; with its
//! end they go, so that nothing of an old term can be written in a new one.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use trunkline_api::pool::PoolSpec;
use trunkline_api::resources::{Network, ObjectMeta, Subnet};

use crate::cluster::{Cluster, InstanceRow, Key, NodeRow, PodRow, Said};
use crate::ipam::{Allocation, Granted, Ipam, Seen, named_address};
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::webhook::View;

/// What all tasks share.
pub struct Shared {
    books: Mutex<Books>,
    metrics: Arc<Metrics>,
}

impl Shared {
    /// Empty books.
    pub fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Shared { books: Mutex::default(), metrics })
    }

    /// The books. Not to be held over an await.
    pub fn lock(&self) -> MutexGuard<'_, Books> {
        // A panic ends the process, so nobody sees half a change.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counters.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

impl View for Shared {
    fn look<T>(&self, look: impl FnOnce(&Cluster) -> T) -> T {
        look(&self.lock().cluster)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.lock().changed.subscribe()
    }
}

/// What is known, and on the leader what is to be done.
#[derive(Default)]
pub struct Books {
    /// What is known of the cluster.
    pub cluster: Cluster,
    /// While this replica is the leader.
    pub term: Option<Term>,
    /// What of a Network or Subnet cannot be read, by kind and name.
    pub faults: HashMap<(&'static str, Arc<str>), Unread>,
    /// Counts changes of networks, subnets and namespaces.
    changed: watch::Sender<u64>,
}

/// What of an object cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// The object's UID.
    pub uid: Arc<str>,
    /// The field or fields, and what is wrong.
    pub text: String,
}

/// What is to be looked at again, by kind.
pub struct Queues {
    /// Pods, by name; those that are gone too.
    pub pods: Queue<Key>,
    /// IPInstances that are being deleted.
    pub instances: Queue<Key>,
    /// Addresses that more than one IPInstance has.
    pub conflicts: Queue<IpAddr>,
    /// Networks, for their status.
    pub networks: Queue<Arc<str>>,
    /// Subnets, for their status.
    pub subnets: Queue<Arc<str>>,
    /// Nodes, for their labels and condition; those that are gone too.
    pub nodes: Queue<Arc<str>>,
}

impl Queues {
    /// Empty ones; a status is written at most once in the interval.
    pub fn new(status_interval: Duration) -> Arc<Self> {
        Arc::new(Queues {
            pods: Queue::new(Duration::ZERO),
            instances: Queue::new(Duration::ZERO),
            conflicts: Queue::new(Duration::ZERO),
            networks: Queue::new(status_interval),
            subnets: Queue::new(status_interval),
            nodes: Queue::new(status_interval),
        })
    }

    /// The API server answers again: what failed is tried now.
    pub fn retry(&self) {
        self.pods.retry();
        self.instances.retry();
        self.conflicts.retry();
        self.networks.retry();
        self.subnets.retry();
        self.nodes.retry();
    }

    /// A Network or Subnet has a fault that its events are to tell.
    fn tell_fault(&self, kind: &str, name: &Arc<str>) {
        let queue = if kind == "Network" { &self.networks } else { &self.subnets };
        queue.add(Arc::clone(name));
    }
}

/// What only the leader has.
pub struct Term {
    /// The addresses.
    pub ipam: Ipam,
    /// What is to be looked at again.
    pub queues: Arc<Queues>,
    /// Pods that got no address, whatever the reason: a change of networks, subnets, nodes or namespaces may be the cure.
    pub waiting: HashSet<Key>,
    /// Of these, by network, those for which no address was free: the next one that becomes free is for the first.
    pub(crate) starving: HashMap<Arc<str>, Line>,
    /// What was set aside for a pod, where it is not known whether the API server has it.
    pub unanswered: HashMap<Key, Unanswered>,
    /// Whether each network had an address left, by family, when nodes were told last.
    pub quotas: HashMap<Arc<str>, [bool; 3]>,
    /// The nodes of each network by name, as far as somebody has asked since they changed: to find them goes through all nodes.
    members: HashMap<Arc<str>, Arc<[String]>>,
    /// Subnets that give no addresses though they are there, and why: a change of another one may be the cure.
    pub silent: BTreeMap<Arc<str>, String>,
}

/// Pods that wait for one thing, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Line {
    order: VecDeque<Key>,
    all: HashSet<Key>,
}

impl Line {
    /// At the end, unless it is in it already.
    pub(crate) fn join(&mut self, key: &Key) {
        if self.all.insert(key.clone()) {
            self.order.push_back(key.clone());
        }
    }

    /// The first leaves.
    fn next(&mut self) -> Option<Key> {
        let key = self.order.pop_front()?;
        self.all.remove(&key);
        Some(key)
    }
}

/// Addresses whose creation was asked for without an answer.
#[derive(Clone, Debug)]
pub struct Unanswered {
    /// The pod that they are for.
    pub pod_uid: Arc<str>,
    /// Their network.
    pub network: Arc<Network>,
    /// What was granted.
    pub granted: Granted,
    /// What the pod is to have in all.
    pub family: trunkline_api::pod::IpFamily,
}

impl Term {
    fn retry_waiting(&mut self) {
        for key in std::mem::take(&mut self.waiting) {
            self.queues.pods.add(key);
        }
        self.starving.clear();
    }

    fn address_is_free(&mut self, network: &Arc<str>) {
        let Some(pods) = self.starving.get_mut(network) else { return };
        if let Some(key) = pods.next() {
            self.waiting.remove(&key);
            self.queues.pods.add(key);
        } else {
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
            // What it gave stays given; it gives nothing more.
            self.ipam.remove_subnet(name);
            Ok(())
        } else {
            pool_spec(subnet).and_then(|spec| {
                let last = subnet.status.as_ref().and_then(|status| status.last_allocated_ip.parse().ok());
                self.ipam.set_subnet(spec, last)
            })
        };
        if let Err(fault) = taken {
            if self.silent.get(name) != Some(&fault) {
                tracing::warn!(subnet = name, %fault, "a subnet gives no addresses");
                self.silent.insert(name.into(), fault);
            }
        } else {
            self.silent.remove(name);
        }
    }

    fn adopt(&mut self, key: &Key, address: IpAddr, mac: Option<[u8; 6]>, seen: Seen) {
        let mac = mac.unwrap_or_default();
        let allocation = Allocation { address, namespace: &key.namespace, mac, seen };
        if let Err(conflict) = self.ipam.adopt(&allocation) {
            tracing::error!(%conflict, "an address is given twice");
            self.queues.conflicts.add(address);
        }
    }

    fn adopt_row(&mut self, key: &Key, row: &InstanceRow) {
        let seen = match row {
            _ if row.deleting => Seen::Deleting,
            _ if row.is_reserved() => Seen::Kept,
            _ => Seen::Bound,
        };
        self.adopt(key, row.address, row.mac, seen);
    }
}

/// A subnet's addresses as the pool wants them said.
fn pool_spec(subnet: &Subnet) -> Result<PoolSpec, String> {
    let range = subnet.spec.range.parse().map_err(|error| format!("spec.range: {error}"))?;
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
    })
}

impl Books {
    /// This replica leads from now on. The rows are complete, IPInstances and pods as lists that began after the predecessor stopped.
    pub fn begin_term(&mut self, queues: Arc<Queues>) {
        let mut term = Term {
            ipam: Ipam::default(),
            queues: Arc::clone(&queues),
            waiting: HashSet::new(),
            starving: HashMap::new(),
            unanswered: HashMap::new(),
            quotas: HashMap::new(),
            members: HashMap::new(),
            silent: BTreeMap::new(),
        };
        for network in self.cluster.networks() {
            resume(&mut term.ipam, network);
            queues.networks.add(network.name().into());
        }
        // Of two that overlap the older one serves.
        for subnet in by_age(self.cluster.subnets()) {
            term.set_subnet(subnet);
            queues.subnets.add(subnet.name().into());
        }
        for (kind, name) in self.faults.keys() {
            queues.tell_fault(kind, name);
        }
        // Of two with one address the one that was written first has it.
        let mut instances: Vec<_> = self.cluster.instances().collect();
        instances.sort_by_key(|(_, row)| row.version);
        for (key, row) in instances {
            term.adopt_row(key, row);
            if row.deleting {
                queues.instances.add(key.clone());
            } else if let Some(pod) = row.pod_key(key) {
                queues.pods.add(pod);
            }
        }
        for (key, ()) in self.cluster.unreadable.iter() {
            if let Some(address) = named_address(&key.name) {
                term.adopt(key, address, None, Seen::Bound);
            }
        }
        for (key, _) in self.cluster.pods.iter() {
            queues.pods.add(key.clone());
        }
        for (name, _) in self.cluster.nodes() {
            queues.nodes.add(Arc::clone(name));
        }
        self.term = Some(term);
    }

    /// This replica does not lead any more.
    pub fn end_term(&mut self) {
        self.term = None;
        self.cluster.pods = Default::default();
    }

    /// A network is there, or changed.
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

    /// A network is gone.
    pub(crate) fn remove_network(&mut self, name: &Arc<str>) {
        self.changed.send_modify(|count| *count += 1);
        self.cluster.networks.remove(name);
        if let Some(term) = &mut self.term {
            term.ipam.remove_network(name);
            term.quotas.remove(name);
            self.memberships_changed();
        }
    }

    /// The nodes of a network, by name.
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

    /// Which node is in which network may have changed altogether.
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

    /// A subnet is there, or changed.
    pub(crate) fn set_subnet(&mut self, name: &Arc<str>, subnet: Subnet) {
        self.changed.send_modify(|count| *count += 1);
        let subnet = Arc::new(subnet);
        let old = self.cluster.set_subnet(name, Arc::clone(&subnet));
        let Some(term) = &mut self.term else { return };
        if old.is_some_and(|old| old.spec == subnet.spec && is_as_far(&old.metadata, &subnet.metadata)) {
            return;
        }
        term.set_subnet(&subnet);
        term.queues.subnets.add(Arc::clone(name));
        term.queues.networks.add(subnet.spec.network.as_str().into());
        self.retry_silent();
    }

    /// A subnet was changed or removed: what it kept from giving addresses may give them now, the older one first, and then so
    /// may what pods wait for.
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

    /// What of a Network or a Subnet cannot be read, if anything.
    pub(crate) fn set_fault(&mut self, kind: &'static str, name: &Arc<str>, fault: Option<Unread>) {
        let at = (kind, Arc::clone(name));
        match fault {
            Some(fault) => drop(self.faults.insert(at, fault)),
            None => drop(self.faults.remove(&at)),
        }
        if let Some(term) = &self.term {
            term.queues.tell_fault(kind, name);
        }
    }

    /// A subnet is gone.
    pub(crate) fn remove_subnet(&mut self, name: &Arc<str>) {
        self.changed.send_modify(|count| *count += 1);
        let Some(old) = self.cluster.remove_subnet(name) else { return };
        if let Some(term) = &mut self.term {
            term.ipam.remove_subnet(name);
            term.silent.remove(name);
            term.queues.networks.add(old.spec.network.as_str().into());
        }
        self.retry_silent();
    }

    /// A node is there, or changed.
    pub(crate) fn set_node(&mut self, name: &Arc<str>, node: NodeRow) {
        if self.cluster.nodes.get(name) == Some(&node) {
            self.cluster.nodes.note(name);
            return;
        }
        let old = self.cluster.nodes.set(Arc::clone(name), node);
        let Some(new) = self.cluster.nodes.get(name) else { return };
        let Some(term) = &mut self.term else { return };
        term.queues.nodes.add(Arc::clone(name));
        for network in self.cluster.networks() {
            let has = |node: &NodeRow| !node.deleting && self.cluster.has_node(network, node);
            if old.as_ref().is_some_and(has) != has(new) {
                term.members.remove(network.name());
                term.queues.networks.add(network.name().into());
            }
        }
        if old.is_none_or(|old| old.labels != new.labels) {
            term.retry_waiting();
        }
    }

    /// A node is gone.
    pub(crate) fn remove_node(&mut self, name: &Arc<str>) {
        let Some(old) = self.cluster.nodes.remove(name) else { return };
        let Some(term) = &mut self.term else { return };
        term.queues.nodes.add(Arc::clone(name));
        for network in self.cluster.networks() {
            if self.cluster.has_node(network, &old) {
                term.members.remove(network.name());
                term.queues.networks.add(network.name().into());
            }
        }
    }

    /// A namespace is there, or changed.
    pub(crate) fn set_namespace(&mut self, name: &Arc<str>, said: Said) {
        self.changed.send_modify(|count| *count += 1);
        let same = self.cluster.namespaces.get(name) == Some(&said);
        self.cluster.namespaces.set(Arc::clone(name), said);
        if let Some(term) = &mut self.term
            && !same
        {
            term.retry_waiting();
        }
    }

    /// A pod with a node is there, or changed.
    pub(crate) fn set_pod(&mut self, key: &Key, row: PodRow) {
        if self.cluster.pods.get(key) == Some(&row) {
            self.cluster.pods.note(key);
            return;
        }
        self.cluster.pods.set(key.clone(), row);
        self.pod_changed(key);
    }

    /// A pod is gone.
    pub(crate) fn remove_pod(&mut self, key: &Key) {
        self.cluster.pods.remove(key);
        self.pod_changed(key);
    }

    fn pod_changed(&mut self, key: &Key) {
        let Some(term) = &mut self.term else { return };
        term.queues.pods.add(key.clone());
        for (instance, row) in self.cluster.instances_of_pod(key) {
            if row.deleting {
                term.queues.instances.add(instance.clone());
            }
        }
    }

    /// An IPInstance is there, or changed: by the watch, or by the answer to a write of this process.
    pub(crate) fn set_instance(&mut self, key: &Key, row: InstanceRow) {
        self.cluster.unreadable.remove(key);
        let Ok(old) = self.cluster.set_instance(key, row) else { return };
        let Some(new) = self.cluster.instance(key) else { return };
        if old.as_ref() == Some(new) {
            return;
        }
        let Some(term) = &mut self.term else { return };
        if let Some(old) = old.as_ref().filter(|old| old.address != new.address) {
            term.ipam.gone(old.address, &key.namespace);
        }
        term.adopt_row(key, new);
        if old.is_none() {
            term.count_changed(new);
        }
        if new.deleting {
            term.queues.instances.add(key.clone());
        }
        for pod in [old.and_then(|old| old.pod_key(key)), new.pod_key(key)].into_iter().flatten() {
            term.queues.pods.add(pod);
        }
    }

    /// An IPInstance is there and cannot be read. Its name says which address it is for: that is not given to anybody.
    pub(crate) fn unreadable_instance(&mut self, key: &Key) {
        self.cluster.instances.note(key);
        self.cluster.unreadable.set(key.clone(), ());
        if let (Some(term), Some(address)) = (&mut self.term, named_address(&key.name)) {
            term.adopt(key, address, None, Seen::Bound);
        }
    }

    /// An IPInstance is gone, and its address free. `version` is the write that ended it.
    pub(crate) fn remove_instance(&mut self, key: &Key, version: u64) {
        if self.cluster.unreadable.remove(key).is_some()
            && let (Some(term), Some(address)) = (&mut self.term, named_address(&key.name))
        {
            term.ipam.gone(address, &key.namespace);
        }
        let Some(row) = self.cluster.remove_instance(key, version) else { return };
        let Some(term) = &mut self.term else { return };
        term.ipam.gone(row.address, &key.namespace);
        term.count_changed(&row);
        if let Some(pod) = row.pod_key(key) {
            term.queues.pods.add(pod);
        }
        term.address_is_free(&row.network);
    }
}

/// Whether two states of one object are equally far from its end.
fn is_as_far(one: &ObjectMeta, other: &ObjectMeta) -> bool {
    one.deletion_timestamp == other.deletion_timestamp && one.finalizers == other.finalizers
}

/// The oldest first.
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
