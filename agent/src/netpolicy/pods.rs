//! The pods of all nodes: each has the object of the API server, the addresses that the controller
//! gave it (IPInstances), and on this node the links of its attachments.
//!
//! These parts arrive separately and in any order. The identity of a pod is its UID: after the
//! replacement of a StatefulSet's pod, the links and addresses of the old pod and the object of the
//! new pod exist at the same time under one name.
//!
//! - **An address belongs to the pod to which its IPInstance is bound**, from before ADD until after
//!   DEL, whatever a kubelet reports. A link on this node adds its own addresses.
//! - **The last labels of a deleted pod stay in force** while it has an address or a link: the
//!   processes of a pod that was deleted by force still run. When a policy names a key that no policy
//!   named before, nobody has the label with this key of such a pod: its labels are unknown then.
//! - **A pod without an object has unknown labels** ([`Labels::UNKNOWN`]): its object has not arrived,
//!   or was deleted before this agent started.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::feed::{AddressInput, PodInput};
use super::input::{ObjectKey, Pod};
use super::keys::{MOST_OF_NAMESPACE, cost, joined, without_values};
use super::labels::{Interner, Labels};

/// A link of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyLink {
    /// Namespace and name of the pod.
    pub pod: ObjectKey,
    /// The pod's UID as the runtime passed it; empty if it passed none.
    pub uid: Arc<str>,
    /// The host interface.
    pub host_ifname: String,
    /// The index of the host interface.
    pub ifindex: u32,
    /// The addresses of the link.
    pub addresses: Vec<IpAddr>,
    /// Whether its packets pass the host's stack. Those of an IPVLAN slave do not.
    pub enforceable: bool,
    /// The pod's labels, if no API server has them.
    pub labels: Option<Labels>,
}

/// The object of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Object {
    /// It exists.
    Exists,
    /// It was deleted, or the pod ended.
    Gone,
    /// It is not known.
    Unknown,
}

/// One pod.
#[derive(Debug)]
struct Slot {
    /// The pod with its addresses. The compiler has the same one, if it has the pod.
    pod: Arc<Pod>,
    object: Object,
    /// The version of the object.
    version: u64,
    cost: LabelCost,
}

/// What kept labels cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LabelCost {
    /// The own labels of the pods.
    own: usize,
    /// Those that only policies of other Namespaces name.
    others: usize,
}

impl LabelCost {
    fn add(&mut self, other: LabelCost) {
        self.own += other.own;
        self.others += other.others;
    }

    fn remove(&mut self, other: LabelCost) {
        self.own -= other.own.min(self.own);
        self.others -= other.others.min(self.others);
    }
}

/// The parts of a pod that only this node has.
#[derive(Debug, Default)]
struct Local {
    /// The links by the host interface.
    links: BTreeSet<String>,
    /// The addresses of IPInstances.
    held: BTreeSet<IpAddr>,
}

/// The pods. Their keys are those of the compiler: the name is followed by the UID ([`row_key`]).
#[derive(Debug)]
pub(super) struct PodTable {
    node: Arc<str>,
    slots: HashMap<ObjectKey, Slot>,
    local: BTreeMap<ObjectKey, Local>,
    links: BTreeMap<String, (ObjectKey, PolicyLink)>,
    /// The UIDs of this node's objects by name.
    current: BTreeMap<ObjectKey, Arc<str>>,
    /// The pods of this node that have another UID for the runtime, by that UID.
    statics: BTreeMap<ObjectKey, ObjectKey>,
    /// The holders of addresses, by the address and the Namespace of its IPInstance.
    holders: BTreeMap<(IpAddr, Arc<str>), ObjectKey>,
    /// What the kept labels of each Namespace cost.
    costs: HashMap<Arc<str>, LabelCost>,
    /// Pods with an object of which labels or values of labels are not known, because there are too
    /// many.
    over_bound: BTreeSet<ObjectKey>,
    /// Whether a pod has had a label of which only the key is known.
    has_surplus: bool,
    /// The names of Namespaces and nodes, each once.
    names: Interner,
    /// Addresses that left their holder since the last call of [`PodTable::poll_left`].
    left: BTreeSet<IpAddr>,
}

/// A pod for the compiler, or its removal.
#[derive(Debug, PartialEq)]
pub(super) enum Row {
    Set(Arc<Pod>),
    Remove(ObjectKey),
}

/// The compiler's key of a pod. A pod's name has no slash.
fn row_key(pod: &ObjectKey, uid: &str) -> ObjectKey {
    ObjectKey { namespace: pod.namespace.clone(), name: format!("{}/{uid}", pod.name).into() }
}

/// The name of a pod by the compiler's key.
pub(super) fn pod_name(key: &ObjectKey) -> ObjectKey {
    match key.name.split_once('/') {
        Some((name, _)) => ObjectKey { namespace: key.namespace.clone(), name: name.into() },
        None => key.clone(),
    }
}

impl PodTable {
    pub(super) fn new(node: Arc<str>) -> PodTable {
        PodTable {
            node,
            slots: HashMap::new(),
            local: BTreeMap::new(),
            links: BTreeMap::new(),
            current: BTreeMap::new(),
            statics: BTreeMap::new(),
            holders: BTreeMap::new(),
            costs: HashMap::new(),
            over_bound: BTreeSet::new(),
            has_surplus: false,
            names: Interner::default(),
            left: BTreeSet::new(),
        }
    }

    // ---- objects

    /// Takes the object of a pod.
    pub(super) fn apply(&mut self, input: PodInput) -> Vec<Row> {
        let PodInput { pod, others, uid, static_uid, version, ended, .. } = input;
        let key = self.shared_key(row_key(&pod.key, &uid));
        // Pods with the node's network are in no group, and no policy selects them.
        if pod.host_network {
            return self.delete(&pod.key, &uid).into_iter().collect();
        }
        let mut rows = Vec::new();
        if pod.node == self.node {
            let former = self.current.insert(pod.key.clone(), uid.clone());
            if let Some(former) = former.filter(|former| *former != uid) {
                rows.extend(self.object_gone(&row_key(&pod.key, &former)));
            }
            self.local(&key);
            rows.extend(self.adopt(&row_key(&pod.key, ""), &key));
            if let Some(static_uid) = static_uid {
                let other = row_key(&pod.key, &static_uid);
                rows.extend(self.adopt(&other, &key));
                self.statics.insert(other, key.clone());
            }
        }
        let addresses = self.addresses(&key);
        let object = if ended { Object::Gone } else { Object::Exists };
        let (labels, cost) = self.account(&key, pod.labels, others);
        let pod = Arc::new(Pod { key: key.clone(), addresses, labels, ..pod });
        self.slots.insert(key.clone(), Slot { pod, object, version, cost });
        rows.extend(self.row(&key));
        rows
    }

    /// Takes a pod from a list that no watch follows. A newer row stays, and a pod that is not known is
    /// left out, because its deletion may have arrived already.
    pub(super) fn merge(&mut self, input: PodInput) -> Vec<Row> {
        let there = self.slots.get(&row_key(&input.pod.key, &input.uid));
        let is_older =
            there.is_some_and(|slot| slot.object == Object::Exists && slot.version <= input.version);
        if is_older { self.apply(input) } else { Vec::new() }
    }

    /// The labels that are kept for a pod: its Namespace must not have too many.
    fn account(&mut self, key: &ObjectKey, own: Labels, mut others: Labels) -> (Labels, LabelCost) {
        let former = self.slots.get(key).map(|slot| slot.cost).unwrap_or_default();
        let sum = self.costs.entry(key.namespace.clone()).or_default();
        sum.remove(former);
        let mut new = LabelCost { own: cost(&own), others: cost(&others) };
        let is_known = own.is_known() && sum.own + new.own <= MOST_OF_NAMESPACE;
        if !is_known {
            new = LabelCost::default();
        } else if sum.others + new.others > MOST_OF_NAMESPACE {
            others = without_values(&others);
            new.others = 0;
        }
        sum.add(new);
        let labels = if is_known { joined(own, &others) } else { Labels::UNKNOWN };
        let lacks_values = labels.iter().any(|(_, value)| **value == *Labels::UNKNOWN_VALUE);
        self.has_surplus |= lacks_values;
        if is_known && !lacks_values {
            self.over_bound.remove(key);
        } else {
            self.over_bound.insert(key.clone());
        }
        (labels, new)
    }

    /// A pod is gone, or its labels.
    fn settle(&mut self, key: &ObjectKey, cost: LabelCost) {
        self.over_bound.remove(key);
        if let Some(sum) = self.costs.get_mut(&key.namespace) {
            sum.remove(cost);
            if *sum == LabelCost::default() {
                self.costs.remove(&key.namespace);
            }
        }
    }

    /// The labels of deleted pods are not known any more: policies name keys that none named before.
    pub(super) fn forget_labels_of_deleted(&mut self) -> Vec<Row> {
        let deleted = self.slots.iter().filter(|(_, slot)| slot.object == Object::Gone);
        let deleted: Vec<ObjectKey> = deleted.map(|(key, _)| key.clone()).collect();
        deleted.iter().filter_map(|key| self.forget_labels(key)).collect()
    }

    fn forget_labels(&mut self, key: &ObjectKey) -> Option<Row> {
        let slot = self.slots.get_mut(key)?;
        slot.pod = Arc::new(Pod { labels: Labels::UNKNOWN, ..Pod::clone(&slot.pod) });
        let cost = std::mem::take(&mut slot.cost);
        self.settle(key, cost);
        self.row(key)
    }

    /// The number of pods with more labels than the bound.
    pub(super) fn over_bound(&self) -> usize {
        self.over_bound.len()
    }

    /// Whether a pod has had a label of which only the key is known.
    pub(super) fn has_surplus(&self) -> bool {
        self.has_surplus
    }

    /// The object is gone.
    pub(super) fn delete(&mut self, pod: &ObjectKey, uid: &Arc<str>) -> Option<Row> {
        if self.current.get(pod) == Some(uid) {
            self.current.remove(pod);
        }
        self.object_gone(&row_key(pod, uid))
    }

    fn object_gone(&mut self, key: &ObjectKey) -> Option<Row> {
        let slot = self.slots.get_mut(key).filter(|slot| slot.object != Object::Unknown)?;
        slot.object = Object::Gone;
        self.row(key)
    }

    /// The objects that exist and are not in a list, with their UIDs.
    pub(super) fn not_listed(&self, listed: &[PodInput]) -> Vec<(ObjectKey, Arc<str>)> {
        let listed: HashSet<ObjectKey> =
            listed.iter().map(|input| row_key(&input.pod.key, &input.uid)).collect();
        let gone =
            self.slots.iter().filter(|(key, slot)| slot.object == Object::Exists && !listed.contains(key));
        gone.filter_map(|(key, _)| Some((pod_name(key), key.name.split_once('/')?.1.into()))).collect()
    }

    /// The objects that exist, and those that are gone and have an address or a link. The addresses
    /// are in [`PodTable::held`].
    pub(super) fn objects(&self) -> impl Iterator<Item = PodInput> {
        let statics: HashMap<&ObjectKey, &ObjectKey> =
            self.statics.iter().map(|(other, key)| (key, other)).collect();
        let known = self.slots.iter().filter(|(_, slot)| slot.object != Object::Unknown);
        known.filter_map(move |(key, slot)| {
            let uid = key.name.split_once('/')?.1;
            let static_uid = statics.get(key).and_then(|other| other.name.split_once('/'));
            let pod = Pod { key: pod_name(key), addresses: Vec::new(), ..Pod::clone(&slot.pod) };
            Some(PodInput {
                pod,
                others: Labels::default(),
                keys: u64::MAX,
                uid: uid.into(),
                static_uid: static_uid.map(|(_, uid)| uid.into()),
                version: slot.version,
                ended: false,
            })
        })
    }

    /// The key with shared strings: that of the pod, if the pod is known.
    fn shared_key(&mut self, key: ObjectKey) -> ObjectKey {
        match self.slots.get_key_value(&key) {
            Some((there, _)) => there.clone(),
            None => ObjectKey { namespace: self.names.intern(&key.namespace), ..key },
        }
    }

    // ---- addresses

    /// Takes the state of an IPInstance.
    pub(super) fn hold(&mut self, input: AddressInput) -> Vec<Row> {
        let AddressInput { namespace, address, holder } = input;
        let namespace = self.names.intern(&namespace);
        let place = (address, namespace.clone());
        let holder = holder.map(|holder| {
            let name = ObjectKey { namespace, name: holder.pod };
            let key = row_key(&name, &holder.uid);
            let key = self.statics.get(&key).cloned().unwrap_or(key);
            (self.shared_key(key), self.names.intern(&holder.node))
        });
        let key = holder.as_ref().map(|(key, _)| key);
        if self.holders.get(&place) == key {
            return Vec::new();
        }
        let mut rows: Vec<Row> = self.release(&place).into_iter().collect();
        let Some((key, node)) = holder else { return rows };
        self.holders.insert(place, key.clone());
        let is_here = node == self.node;
        self.slots.entry(key.clone()).or_insert_with(|| unknown(key.clone(), node));
        if is_here || self.local.contains_key(&key) {
            self.local(&key).held.insert(address);
        } else if let Some(slot) = self.slots.get_mut(&key) {
            let mut addresses = Vec::with_capacity(slot.pod.addresses.len() + 1);
            addresses.extend(slot.pod.addresses.iter().copied().chain([address]));
            addresses.sort_unstable();
            slot.pod = Arc::new(Pod { addresses, ..Pod::clone(&slot.pod) });
        }
        rows.extend(self.row(&key));
        rows
    }

    /// The address leaves its holder.
    fn release(&mut self, place: &(IpAddr, Arc<str>)) -> Option<Row> {
        let key = self.holders.remove(place)?;
        self.left.insert(place.0);
        match self.local.get_mut(&key) {
            Some(local) => drop(local.held.remove(&place.0)),
            None => {
                let slot = self.slots.get_mut(&key)?;
                let mut pod = Pod::clone(&slot.pod);
                pod.addresses.retain(|address| *address != place.0);
                slot.pod = Arc::new(pod);
            }
        }
        self.row(&key)
    }

    /// Releases the addresses that are not in a list.
    pub(super) fn release_others(&mut self, listed: &[AddressInput]) -> Vec<Row> {
        let listed: HashSet<(IpAddr, &Arc<str>)> =
            listed.iter().map(|input| (input.address, &input.namespace)).collect();
        let others =
            self.holders.keys().filter(|(address, namespace)| !listed.contains(&(*address, namespace)));
        let others: Vec<_> = others.cloned().collect();
        others.iter().filter_map(|place| self.release(place)).collect()
    }

    /// The addresses with their holders.
    pub(super) fn held(&self) -> impl Iterator<Item = AddressInput> {
        self.holders.iter().filter_map(|((address, namespace), key)| {
            let (pod, uid) = key.name.split_once('/')?;
            let node = self.slots.get(key)?.pod.node.clone();
            let holder = super::feed::Holder { pod: pod.into(), uid: uid.into(), node };
            Some(AddressInput { namespace: namespace.clone(), address: *address, holder: Some(holder) })
        })
    }

    /// The addresses that left their holders since the last call.
    pub(super) fn poll_left(&mut self) -> BTreeSet<IpAddr> {
        std::mem::take(&mut self.left)
    }

    /// The addresses of a pod: those of its IPInstances and links.
    fn addresses(&self, key: &ObjectKey) -> Vec<IpAddr> {
        let Some(local) = self.local.get(key) else {
            return self.slots.get(key).map(|slot| slot.pod.addresses.clone()).unwrap_or_default();
        };
        let links = local.links.iter().filter_map(|name| self.link(name));
        let addresses = links.flat_map(|link| &link.addresses).chain(&local.held);
        addresses.copied().collect::<BTreeSet<IpAddr>>().into_iter().collect()
    }

    // ---- links

    /// Takes a link.
    pub(super) fn attach(&mut self, link: PolicyLink) -> Vec<Row> {
        let mut rows: Vec<Row> = self.detach(&link.host_ifname).into_iter().collect();
        let uid = match self.current.get(&link.pod) {
            Some(current) if link.uid.is_empty() => current.clone(),
            _ => link.uid.clone(),
        };
        let key = row_key(&link.pod, &uid);
        let key = self.statics.get(&key).cloned().unwrap_or(key);
        self.local(&key).links.insert(link.host_ifname.clone());
        let mut slot = unknown(key.clone(), self.node.clone());
        if let Some(labels) = &link.labels {
            let pod = Pod { labels: labels.clone(), ..Pod::clone(&slot.pod) };
            slot = Slot { pod: Arc::new(pod), object: Object::Gone, version: 0, cost: LabelCost::default() };
            self.slots.insert(key.clone(), slot);
        } else {
            self.slots.entry(key.clone()).or_insert(slot);
        }
        self.links.insert(link.host_ifname.clone(), (key.clone(), link));
        rows.extend(self.row(&key));
        rows
    }

    /// A link is gone.
    pub(super) fn detach(&mut self, host_ifname: &str) -> Option<Row> {
        let (key, _) = self.links.remove(host_ifname)?;
        self.local.get_mut(&key)?.links.remove(host_ifname);
        self.row(&key)
    }

    /// The object of a link's pod is known.
    pub(super) fn has_pod(&self, host_ifname: &str) -> bool {
        let slot = self.links.get(host_ifname).and_then(|(key, _)| self.slots.get(key));
        slot.is_some_and(|slot| slot.object != Object::Unknown)
    }

    /// A link by its host interface.
    pub(super) fn link(&self, host_ifname: &str) -> Option<&PolicyLink> {
        self.links.get(host_ifname).map(|(_, link)| link)
    }

    /// The compiler's key of a link's pod.
    pub(super) fn row_of_link(&self, host_ifname: &str) -> Option<&ObjectKey> {
        self.links.get(host_ifname).map(|(key, _)| key)
    }

    /// The links of a pod by the compiler's key.
    pub(super) fn links_of(&self, key: &ObjectKey) -> Vec<&PolicyLink> {
        let links = self.local.get(key).map(|local| &local.links);
        links.into_iter().flatten().filter_map(|name| self.link(name)).collect()
    }

    /// Whether the pod is one of this node, or was until now.
    pub(super) fn is_local(&self, key: &ObjectKey) -> bool {
        self.local.contains_key(key)
    }

    /// All links.
    pub(super) fn links(&self) -> impl Iterator<Item = &PolicyLink> {
        self.links.values().map(|(_, link)| link)
    }

    /// A pod gets the links of another identity without an object: the runtime passed no UID, or that
    /// of a static pod.
    fn adopt(&mut self, from: &ObjectKey, to: &ObjectKey) -> Option<Row> {
        let is_unknown = self.slots.get(from).is_some_and(|slot| slot.object == Object::Unknown);
        if from == to || !is_unknown {
            return None;
        }
        let Local { links, held } = self.local.remove(from)?;
        for holder in self.holders.values_mut().filter(|holder| !held.is_empty() && *holder == from) {
            *holder = to.clone();
        }
        for name in &links {
            if let Some((of, _)) = self.links.get_mut(name) {
                *of = to.clone();
            }
        }
        let local = self.local(to);
        local.links.extend(links);
        local.held.extend(held);
        self.slots.remove(from);
        Some(Row::Remove(from.clone()))
    }

    // ---- rows

    /// The parts of a pod of this node. The addresses of a pod that was one of another node are those
    /// of IPInstances.
    fn local(&mut self, key: &ObjectKey) -> &mut Local {
        let slot = self.slots.get(key);
        self.local.entry(key.clone()).or_insert_with(|| Local {
            links: BTreeSet::new(),
            held: slot.map(|slot| slot.pod.addresses.iter().copied().collect()).unwrap_or_default(),
        })
    }

    /// The row of a pod after a change.
    fn row(&mut self, key: &ObjectKey) -> Option<Row> {
        let addresses = self.addresses(key);
        let is_local = self.local.contains_key(key);
        let has_links = self.local.get(key).is_some_and(|local| !local.links.is_empty());
        let slot = self.slots.get_mut(key)?;
        if slot.object != Object::Exists && addresses.is_empty() && !has_links {
            if let Some(slot) = self.slots.remove(key) {
                self.settle(key, slot.cost);
            }
            if self.local.remove(key).is_some() {
                self.statics.retain(|_, to| to != key);
            }
            return Some(Row::Remove(key.clone()));
        }
        if slot.pod.addresses != addresses || (is_local && slot.pod.node != self.node) {
            let mut pod = Pod { addresses, ..Pod::clone(&slot.pod) };
            if is_local {
                pod.node = self.node.clone();
            }
            slot.pod = Arc::new(pod);
        }
        // A pod of another node without an address is in no set.
        if !is_local && slot.pod.addresses.is_empty() {
            return Some(Row::Remove(key.clone()));
        }
        Some(Row::Set(slot.pod.clone()))
    }

    /// Takes the compiler's copy of a pod: it shares strings with other pods.
    pub(super) fn share(&mut self, pod: &Arc<Pod>) {
        if let Some(slot) = self.slots.get_mut(&pod.key) {
            slot.pod = pod.clone();
        }
    }
}

/// A pod without an object.
fn unknown(key: ObjectKey, node: Arc<str>) -> Slot {
    let pod = Pod {
        key,
        node,
        host_network: false,
        labels: Labels::UNKNOWN,
        addresses: Vec::new(),
        ports: Vec::new(),
    };
    Slot { pod: Arc::new(pod), object: Object::Unknown, version: 0, cost: LabelCost::default() }
}

#[cfg(test)]
#[path = "pods_tests.rs"]
mod tests;
