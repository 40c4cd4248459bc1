//! The sets that rules use, with the indexes that find the sets of a pod.
//!
//! The elements of a set are not stored. The pods with an address decide whether it is an element.

use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use super::budget::SetSize;
use super::counted::{Counted, find, find_from};
use super::group::{GroupIndex, PodGroup};
use super::input::{PORTS_OF_NAME, Pod};
use super::rules::{Element, PortName, Scope, SetId, SetKey, number_of};
use super::world::World;

/// With more groups than this, the pods of a set are found by one pass over all pods.
const FEW_GROUPS: usize = 8;

/// The key of a set, in use or not, with its hash. A user who writes policies can choose two keys
/// with one hash, so keys are compared.
#[derive(Clone, Debug, Eq)]
pub(super) struct HashedKey {
    hash: u64,
    key: Arc<SetKey>,
}

impl PartialEq for HashedKey {
    fn eq(&self, other: &HashedKey) -> bool {
        self.hash == other.hash && (Arc::ptr_eq(&self.key, &other.key) || self.key == other.key)
    }
}

impl Hash for HashedKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

/// The sets in use.
#[derive(Debug, Default)]
pub(super) struct Sets {
    rows: HashMap<SetId, Counted<Arc<SetKey>>>,
    /// The number of elements of each set.
    counts: HashMap<SetId, usize>,
    /// Elements that were added to existing sets since [`Sets::forget_added`].
    added: usize,
    /// The groups of sets: the set, and the position of the group in its key.
    groups: GroupIndex<(SetId, usize)>,
    /// The sets with a name of a port.
    names: HashMap<(Arc<str>, Scope), BTreeSet<SetId>>,
}

impl Sets {
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn key(&self, id: SetId) -> Option<&Arc<SetKey>> {
        self.rows.get(&id).map(|row| &row.value)
    }

    /// The key of a set with its hash. It shares the key of the set in use.
    pub(super) fn hashed(&self, key: &Arc<SetKey>) -> HashedKey {
        let hash = number_of(&**key);
        let id = self.id_of(hash, key);
        HashedKey { hash, key: id.and_then(|id| self.key(id)).unwrap_or(key).clone() }
    }

    fn id_of(&self, hash: u64, key: &Arc<SetKey>) -> Option<SetId> {
        let (number, exists) = find_from(&self.rows, hash, key, |there| there);
        exists.then(|| SetId::from(number))
    }

    fn count(&self, HashedKey { hash, key }: &HashedKey) -> Option<usize> {
        self.counts.get(&self.id_of(*hash, key)?).copied()
    }

    /// The size of a set; 0 for one that is not in use.
    pub(super) fn size(&self, set: &HashedKey) -> SetSize {
        size_of(&set.key, self.count(set).unwrap_or_default())
    }

    /// The size of a set, in use or not.
    pub(super) fn measure(&self, world: &World, set: &HashedKey) -> SetSize {
        size_of(&set.key, self.count(set).unwrap_or_else(|| elements(world, &set.key).len()))
    }

    /// Counts a new element of a set.
    pub(super) fn count_added(&mut self, id: SetId) {
        if let Some(count) = self.counts.get_mut(&id) {
            *count += 1;
            self.added += 1;
        }
    }

    /// Counts an element that is gone.
    pub(super) fn count_removed(&mut self, id: SetId) {
        if let Some(count) = self.counts.get_mut(&id) {
            *count = count.saturating_sub(1);
        }
    }

    /// The elements that were added to existing sets.
    pub(super) fn added(&self) -> usize {
        self.added
    }

    pub(super) fn forget_added(&mut self) {
        self.added = 0;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SetId, &Arc<SetKey>)> {
        self.rows.iter().map(|(id, row)| (*id, &row.value))
    }

    /// Adds a user of the set with this key. Returns whether the set is new.
    pub(super) fn acquire(&mut self, world: &World, key: Arc<SetKey>) -> (SetId, bool) {
        let (number, exists) = find(&self.rows, &*key, |there| &**there);
        let id = SetId::from(number);
        if exists {
            if let Some(row) = self.rows.get_mut(&id) {
                row.users += 1;
            }
            return (id, false);
        }
        match &*key {
            SetKey::Pods(groups) => {
                let groups = groups.iter().enumerate();
                groups.for_each(|(position, group)| self.groups.insert(group, (id, position)));
            }
            SetKey::NamedPorts { names, scope } => {
                for (name, _) in names {
                    self.names.entry((name.clone(), *scope)).or_default().insert(id);
                }
            }
            SetKey::Blocks(_) | SetKey::PortNumbers(_) => {}
        }
        self.counts.insert(id, elements(world, &key).len());
        self.rows.insert(id, Counted { value: key, users: 1 });
        (id, true)
    }

    /// Removes a user. Returns whether it was the last, and the set is gone.
    pub(super) fn release(&mut self, id: SetId) -> bool {
        let Some(row) = self.rows.get_mut(&id) else { return false };
        row.users -= 1;
        if row.users > 0 {
            return false;
        }
        let Some(row) = self.rows.remove(&id) else { return false };
        self.counts.remove(&id);
        match &*row.value {
            SetKey::Pods(groups) => {
                let groups = groups.iter().enumerate();
                groups.for_each(|(position, group)| self.groups.remove(group, (id, position)));
            }
            SetKey::NamedPorts { names, scope } => {
                for (name, _) in names {
                    super::labels::remove_from(&mut self.names, &(name.clone(), *scope), &id);
                }
            }
            SetKey::Blocks(_) | SetKey::PortNumbers(_) => {}
        }
        true
    }

    /// The elements that a pod adds to sets.
    pub(super) fn contributions(&self, world: &World, pod: &Pod) -> BTreeSet<(SetId, Element)> {
        if pod.host_network {
            return BTreeSet::new();
        }
        let of_pod = self.sets_with(world, pod).into_iter();
        let mut elements: BTreeSet<(SetId, Element)> = of_pod
            .flat_map(|id| pod.addresses.iter().map(move |address| (id, Element::Address(*address))))
            .collect();
        let names: BTreeSet<&Arc<str>> = pod.ports.iter().map(|port| &port.name).collect();
        let keys = names.into_iter().flat_map(|name| Scope::ALL.map(|scope| (name.clone(), scope)));
        let sets: BTreeSet<SetId> = keys.filter_map(|key| self.names.get(&key)).flatten().copied().collect();
        for id in sets {
            if let Some(SetKey::NamedPorts { names, scope }) = self.key(id).map(|key| &**key) {
                elements.extend(named_ports(world, names, *scope, pod).map(|element| (id, element)));
            }
        }
        elements
    }

    /// The sets of pods' addresses with this pod.
    fn sets_with(&self, world: &World, pod: &Pod) -> BTreeSet<SetId> {
        let candidates = self.groups.candidates(world.namespace(&pod.key.namespace), &pod.labels);
        let mut found = BTreeSet::new();
        for (id, position) in candidates {
            if found.contains(&id) {
                continue;
            }
            world.count_examined(1);
            let group = match self.key(id).map(|key| &**key) {
                Some(SetKey::Pods(groups)) => groups.get(position),
                _ => None,
            };
            if group.is_some_and(|group| world.contains(group, pod)) {
                found.insert(id);
            }
        }
        found
    }

    /// Whether an attached pod has the element.
    pub(super) fn is_element(&self, world: &World, set: SetId, element: Element) -> bool {
        let (Some(key), Some(address)) = (self.key(set), element.address()) else { return false };
        world.pods_at(address).any(|pod| match &**key {
            SetKey::Pods(_) => self.sets_with(world, pod).contains(&set),
            SetKey::NamedPorts { names, scope } => {
                named_ports(world, names, *scope, pod).any(|there| there == element)
            }
            SetKey::Blocks(_) | SetKey::PortNumbers(_) => false,
        })
    }
}

fn size_of(key: &SetKey, elements: usize) -> SetSize {
    let charged = match key {
        SetKey::NamedPorts { .. } => elements.div_ceil(PORTS_OF_NAME),
        SetKey::Pods(_) | SetKey::Blocks(_) | SetKey::PortNumbers(_) => elements,
    };
    SetSize { elements, charged }
}

/// All elements of a set.
pub(super) fn elements(world: &World, key: &SetKey) -> BTreeSet<Element> {
    match key {
        SetKey::Blocks(ranges) | SetKey::PortNumbers(ranges) => ranges.clone(),
        SetKey::Pods(groups) => addresses(world, groups).map(Element::Address).collect(),
        SetKey::NamedPorts { names, scope } => {
            let pods = names.iter().flat_map(|(name, _)| world.pods_with_port(name, *scope));
            // A pod can have several of the names.
            let pods: HashMap<_, &Arc<Pod>> = pods.map(|pod| (&pod.key, pod)).collect();
            pods.into_values().flat_map(|pod| named_ports(world, names, *scope, pod)).collect()
        }
    }
}

/// The addresses of the pods that are in one of these groups.
fn addresses<'a>(world: &'a World, groups: &'a [PodGroup]) -> Box<dyn Iterator<Item = IpAddr> + 'a> {
    if groups.len() <= FEW_GROUPS {
        let pods = groups.iter().flat_map(|group| world.members(group));
        return Box::new(pods.flat_map(|pod| pod.addresses.iter().copied()));
    }
    let mut index = GroupIndex::default();
    groups.iter().enumerate().for_each(|(position, group)| index.insert(group, position));
    let mut members = Vec::new();
    let mut of_namespaces: HashMap<&Arc<str>, _> = HashMap::new();
    for pod in world.all_pods().filter(|pod| !pod.host_network) {
        let namespace = world.namespace(&pod.key.namespace);
        let selectors =
            of_namespaces.entry(&pod.key.namespace).or_insert_with(|| index.of_namespace(namespace));
        let has = |position: usize| {
            world.count_examined(1);
            groups.get(position).is_some_and(|group| group.matches(namespace, &pod.labels))
        };
        let is_member = match world.has_labels(pod) {
            true => selectors.iter().flat_map(|pods| pods.candidates(&pod.labels)).any(has),
            false => index.candidates(namespace, &pod.labels).into_iter().any(has),
        };
        if is_member {
            members.extend_from_slice(&pod.addresses);
        }
    }
    Box::new(members.into_iter())
}

/// The elements of a pod in a set of named ports.
fn named_ports<'a>(
    world: &World,
    names: &'a BTreeSet<PortName>,
    scope: Scope,
    pod: &'a Pod,
) -> impl Iterator<Item = Element> + 'a {
    let in_scope = !pod.host_network && (scope == Scope::Cluster || world.is_local(pod));
    let is_named = move |name: &Arc<str>, protocol| {
        in_scope && (names.contains(&(name.clone(), None)) || names.contains(&(name.clone(), Some(protocol))))
    };
    let ports = pod.ports.iter().filter(move |port| is_named(&port.name, port.protocol));
    ports.flat_map(|port| {
        pod.addresses.iter().map(|address| Element::Port(*address, port.protocol, port.port))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netpolicy::budget::{Figures, evaluate};
    use crate::netpolicy::input::ObjectKey;
    use crate::netpolicy::kernel::PolicyRef;

    /// A user who writes policies can choose keys of sets with one hash.
    #[test]
    fn sets_with_one_hash_count_each() {
        let key = |port| Arc::new(SetKey::PortNumbers([Element::PortRange(port, port)].into()));
        let sets = (0..257).map(|port| HashedKey { hash: 7, key: key(port) });
        let figures = Figures { rules: 1, jumps: 0, sets: sets.collect() };
        let policy = PolicyRef::Network(ObjectKey::new("a", "p"));
        let evaluation = evaluate([(&policy, &figures)].into_iter(), |_| SetSize::default(), 10);
        let refusal = evaluation.refused[&policy].to_string();
        assert!(refusal.starts_with("over the budget: 257 sets, at most 256: "), "{refusal}");
        assert_eq!(HashedKey { hash: 7, key: key(1) }, HashedKey { hash: 7, key: key(1) });
    }
}
