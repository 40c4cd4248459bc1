//! Namespaces and pods, with the indexes that find the pods of a group and the pods of an address.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::group::{NamespaceMatch, NamespaceRef, PodGroup};
use super::input::{NamedPort, Namespace, ObjectKey, Pod};
use super::labels::{Interner, Labels, remove_from};
use super::rules::Scope;

/// The number of a pod while the pod exists.
pub(super) type PodId = u32;

/// The objects that policies select.
#[derive(Debug)]
pub(super) struct World {
    /// The name of this node.
    node: Arc<str>,
    strings: Interner,
    namespaces: HashMap<Arc<str>, NamespaceRow>,
    pods: Vec<Option<Arc<Pod>>>,
    free: Vec<PodId>,
    ids: HashMap<ObjectKey, PodId>,
    by_label: HashMap<(Arc<str>, Arc<str>), BTreeSet<PodId>>,
    by_key: HashMap<Arc<str>, BTreeSet<PodId>>,
    by_address: HashMap<IpAddr, PodIds>,
    by_port_name: HashMap<Arc<str>, BTreeSet<PodId>>,
    /// Pods of unknown labels.
    unknown: BTreeSet<PodId>,
    /// Pods of this node, without those that have the node's network.
    local: BTreeSet<PodId>,
    /// Pods and selectors examined since the start.
    examined: Cell<u64>,
    /// Addresses and named ports of pods that were removed or changed since the start.
    departed: usize,
}

/// A Namespace that is known, or that pods have.
#[derive(Debug, Default)]
struct NamespaceRow {
    /// None: the Namespace is not known.
    labels: Option<Labels>,
    /// Whether packets that the policies of its pods drop are only reported.
    audit: bool,
    pods: BTreeSet<PodId>,
}

/// The pods with an address: one of them, except for a moment.
#[derive(Debug)]
enum PodIds {
    One(PodId),
    Several(BTreeSet<PodId>),
}

impl PodIds {
    fn as_set(&self) -> BTreeSet<PodId> {
        match self {
            PodIds::One(id) => [*id].into(),
            PodIds::Several(ids) => ids.clone(),
        }
    }

    fn iter(&self) -> impl Iterator<Item = PodId> + '_ {
        let (one, several) = match self {
            PodIds::One(id) => (Some(*id), None),
            PodIds::Several(ids) => (None, Some(ids)),
        };
        one.into_iter().chain(several.into_iter().flatten().copied())
    }
}

/// The labels of an unknown Namespace.
const UNKNOWN: &Labels = &Labels::UNKNOWN;

impl World {
    pub(super) fn new(node: Arc<str>) -> World {
        World {
            node,
            strings: Interner::default(),
            namespaces: HashMap::new(),
            pods: Vec::new(),
            free: Vec::new(),
            ids: HashMap::new(),
            by_label: HashMap::new(),
            by_key: HashMap::new(),
            by_address: HashMap::new(),
            by_port_name: HashMap::new(),
            unknown: BTreeSet::new(),
            local: BTreeSet::new(),
            examined: Cell::new(0),
            departed: 0,
        }
    }

    pub(super) fn count_examined(&self, number: usize) {
        self.examined.set(self.examined.get() + number as u64);
    }

    pub(super) fn examined(&self) -> u64 {
        self.examined.get()
    }

    pub(super) fn namespace_names(&self) -> Vec<Arc<str>> {
        let known = self.namespaces.iter().filter(|(_, row)| row.labels.is_some());
        known.map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn known_namespaces(&self) -> impl Iterator<Item = Namespace> {
        self.namespaces.iter().filter_map(|(name, row)| {
            Some(Namespace { name: name.clone(), labels: row.labels.clone()?, audit: row.audit })
        })
    }

    /// The number of addresses of attached pods.
    pub(super) fn address_count(&self) -> usize {
        self.by_address.len()
    }

    pub(super) fn all_pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.iter().flatten()
    }

    pub(super) fn labels_of(&self, namespace: &Arc<str>) -> Option<&Labels> {
        self.namespaces.get(namespace)?.labels.as_ref()
    }

    /// Whether packets that the policies of its pods drop are only reported.
    pub(super) fn is_audited(&self, namespace: &Arc<str>) -> bool {
        self.namespaces.get(namespace).is_some_and(|row| row.audit)
    }

    pub(super) fn pods_of(&self, namespace: &Arc<str>) -> Vec<PodId> {
        self.namespaces.get(namespace).map(|row| row.pods.iter().copied().collect()).unwrap_or_default()
    }

    /// Changes the labels of a Namespace; none removes it. The pods of the Namespace are not
    /// attached meanwhile.
    pub(super) fn set_namespace(&mut self, name: &Arc<str>, labels: Option<&Labels>, audit: bool) {
        let name = self.strings.intern(name);
        let labels = labels.map(|labels| self.strings.intern_labels(labels));
        let row = self.namespaces.entry(name.clone()).or_default();
        (row.labels, row.audit) = (labels, audit);
        if row.labels.is_none() && row.pods.is_empty() {
            self.namespaces.remove(&name);
        }
    }

    pub(super) fn namespace<'a>(&'a self, name: &'a Arc<str>) -> NamespaceRef<'a> {
        NamespaceRef { name, labels: self.labels_of(name).unwrap_or(UNKNOWN) }
    }

    pub(super) fn pod_keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.ids.keys()
    }

    pub(super) fn pod_id(&self, key: &ObjectKey) -> Option<PodId> {
        self.ids.get(key).copied()
    }

    pub(super) fn pod(&self, id: PodId) -> Option<&Arc<Pod>> {
        self.pods.get(id as usize)?.as_ref()
    }

    pub(super) fn is_local(&self, pod: &Pod) -> bool {
        pod.node == self.node && !pod.host_network
    }

    pub(super) fn local(&self) -> impl Iterator<Item = PodId> {
        self.local.iter().copied()
    }

    /// The pods of this node in a Namespace. Examines those of the node or of the Namespace,
    /// whichever are fewer.
    pub(super) fn local_of(&self, namespace: &Arc<str>) -> Vec<PodId> {
        let Some(row) = self.namespaces.get(namespace) else { return Vec::new() };
        let (few, many) = match row.pods.len() < self.local.len() {
            true => (&row.pods, &self.local),
            false => (&self.local, &row.pods),
        };
        few.iter().filter(|id| many.contains(id)).copied().collect()
    }

    /// Adds a pod. No pod with its key is there.
    pub(super) fn insert(&mut self, pod: &Pod) -> (PodId, Arc<Pod>) {
        let pod = Arc::new(self.shared(pod));
        let id = self.free.pop().unwrap_or_else(|| {
            self.pods.push(None);
            // 2^32 pods do not fit into memory.
            PodId::try_from(self.pods.len() - 1).unwrap_or(PodId::MAX)
        });
        if let Some(row) = self.pods.get_mut(id as usize) {
            *row = Some(pod.clone());
        }
        self.ids.insert(pod.key.clone(), id);
        self.namespaces.entry(pod.key.namespace.clone()).or_default().pods.insert(id);
        // A pod with the node's network is in no group.
        if !pod.host_network {
            for label in pod.labels.iter() {
                self.by_label.entry(label.clone()).or_default().insert(id);
                self.by_key.entry(label.0.clone()).or_default().insert(id);
            }
            for port in &pod.ports {
                self.by_port_name.entry(port.name.clone()).or_default().insert(id);
            }
            if !pod.labels.is_known() {
                self.unknown.insert(id);
            }
            if self.is_local(&pod) {
                self.local.insert(id);
            }
        }
        (id, pod)
    }

    /// Removes a pod that is not attached.
    pub(super) fn remove(&mut self, id: PodId) {
        let Some(pod) = self.pods.get_mut(id as usize).and_then(Option::take) else { return };
        self.free.push(id);
        self.ids.remove(&pod.key);
        if let Some(row) = self.namespaces.get_mut(&pod.key.namespace) {
            row.pods.remove(&id);
            if row.labels.is_none() && row.pods.is_empty() {
                self.namespaces.remove(&pod.key.namespace);
            }
        }
        for label in pod.labels.iter() {
            remove_from(&mut self.by_label, label, &id);
            remove_from(&mut self.by_key, &label.0, &id);
        }
        for port in &pod.ports {
            remove_from(&mut self.by_port_name, &port.name, &id);
        }
        self.unknown.remove(&id);
        self.local.remove(&id);
    }

    fn shared(&mut self, pod: &Pod) -> Pod {
        let strings = &mut self.strings;
        let port = |port: &NamedPort| NamedPort { name: strings.intern(&port.name), ..port.clone() };
        let ports = pod.ports.iter().map(port).collect();
        Pod {
            key: ObjectKey { namespace: strings.intern(&pod.key.namespace), name: pod.key.name.clone() },
            node: strings.intern(&pod.node),
            host_network: pod.host_network,
            labels: strings.intern_labels(&pod.labels),
            addresses: pod.addresses.clone(),
            ports,
        }
    }

    /// Adds the addresses of a pod to the index: the pod is attached.
    pub(super) fn insert_addresses(&mut self, id: PodId, pod: &Pod) {
        for address in &pod.addresses {
            let ids = match self.by_address.get(address) {
                None => PodIds::One(id),
                Some(there) => PodIds::Several(there.as_set().into_iter().chain([id]).collect()),
            };
            self.by_address.insert(*address, ids);
        }
    }

    /// The most elements that left one set since the start.
    pub(super) fn departed(&self) -> usize {
        self.departed
    }

    pub(super) fn remove_addresses(&mut self, id: PodId, pod: &Pod) {
        self.departed += pod.addresses.len() * pod.ports.len().max(1);
        for address in &pod.addresses {
            let mut ids = self.by_address.remove(address).map(|there| there.as_set()).unwrap_or_default();
            ids.remove(&id);
            let others = match (ids.len(), ids.first()) {
                (1, Some(one)) => PodIds::One(*one),
                (0, _) => continue,
                _ => PodIds::Several(ids),
            };
            self.by_address.insert(*address, others);
        }
    }

    /// The attached pods with an address. Two pods have one only for a moment: the address of a pod
    /// that ended was allocated again before its deletion arrived.
    pub(super) fn pods_at(&self, address: IpAddr) -> impl Iterator<Item = &Arc<Pod>> {
        self.by_address.get(&address).into_iter().flat_map(PodIds::iter).filter_map(|id| self.pod(id))
    }

    /// The pods with a named port.
    pub(super) fn pods_with_port(&self, name: &Arc<str>, scope: Scope) -> impl Iterator<Item = &Arc<Pod>> {
        let ids = self.by_port_name.get(name).into_iter().flatten();
        ids.filter(move |id| scope == Scope::Cluster || self.local.contains(id))
            .filter_map(|id| self.pod(*id))
    }

    pub(super) fn contains(&self, group: &PodGroup, pod: &Pod) -> bool {
        !pod.host_network && group.matches(self.namespace(&pod.key.namespace), &pod.labels)
    }

    /// Whether a pod is in a group, or could be in it with labels that are not known.
    pub(super) fn may_contain(&self, group: &PodGroup, pod: &Pod) -> bool {
        !pod.host_network && group.may_match(self.namespace(&pod.key.namespace), &pod.labels)
    }

    /// Whether the labels of a pod and of its Namespace are known.
    pub(super) fn has_labels(&self, pod: &Pod) -> bool {
        pod.labels.is_known() && self.labels_of(&pod.key.namespace).is_some()
    }

    /// The pods of a group. Examines the pods of its Namespaces, or those with a required label or
    /// key, whichever are fewer.
    pub(super) fn members(&self, group: &PodGroup) -> Vec<&Arc<Pod>> {
        let namespaces: Vec<&NamespaceRow> = match &group.namespaces {
            NamespaceMatch::Named(name) => self.namespaces.get(name).into_iter().collect(),
            NamespaceMatch::Selected(selector) => {
                let is_selected = |row: &&NamespaceRow| {
                    let labels = row.labels.as_ref().unwrap_or(UNKNOWN);
                    if group.unknown { selector.may_match(labels) } else { selector.matches(labels) }
                };
                self.namespaces.values().filter(is_selected).collect()
            }
        };
        let in_namespaces: usize = namespaces.iter().map(|row| row.pods.len()).sum();
        let labelled: Option<Vec<&BTreeSet<PodId>>> = group
            .pods
            .required()
            .map(|labels| labels.iter().filter_map(|label| self.by_label.get(label)).collect())
            .or_else(|| Some(self.by_key.get(group.pods.required_key()?).into_iter().collect()));
        let candidates: Vec<PodId> = match labelled {
            Some(sets) if sets.iter().map(|set| set.len()).sum::<usize>() < in_namespaces => {
                let unknown = self.unknown.iter().filter(|_| group.unknown);
                sets.into_iter().flatten().chain(unknown).copied().collect()
            }
            _ => namespaces.iter().flat_map(|row| &row.pods).copied().collect(),
        };
        self.count_examined(candidates.len());
        let pods = candidates.into_iter().filter_map(|id| self.pod(id));
        pods.filter(|pod| self.contains(group, pod)).collect()
    }
}
