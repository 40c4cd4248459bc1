//! The compiler: takes changes of policies, Namespaces and pods, and gives the difference of the
//! rules of this node.
//!
//! - A policy has sets and chains only while it selects a pod of this node.
//! - A change of a pod removes the pod and adds it again. Elements and chains that come back
//!   cancel, so the difference has only what changed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::counted::Counted;
use super::group::{GroupIndex, NamespaceMatch, PodGroup};
use super::input::{Change, ClusterPolicy, Direction, Namespace, NetworkPolicy, ObjectKey, Pod, Tier};
use super::kernel::PolicyRef;
use super::labels::Labels;
use super::pending::Pending;
use super::rules::{
    AddressSet, AppliedPolicies, Chain, ChainId, ChainKey, PodChains, Rules, RulesChange, SetKey,
};
use super::sets::{Sets, elements};
use super::translate;
use super::world::{PodId, World};

use chains::Refused;

mod chains;
mod jumps;

/// The rules of one node, kept current with the changes of policies, Namespaces and pods.
///
/// `handle_*` takes a change, [`poll_changes`](Compiler::poll_changes) gives the difference.
/// The cost of a change depends on the objects that it concerns: for a pod, on the groups with one
/// of its labels; for a Namespace, on its pods; for a policy, on the pods that it selects.
#[derive(Debug)]
pub struct Compiler {
    world: World,
    policies: HashMap<PolicyRef, Arc<PolicyRow>>,
    subjects: GroupIndex<u32>,
    /// The names of the policies in `subjects`.
    numbers: HashMap<u32, PolicyRef>,
    next_number: u32,
    sets: Sets,
    chains: HashMap<ChainId, Counted<Arc<Chain>>>,
    jumps: jumps::Jumps,
    /// The chains with rules of a policy. A policy without one selects no pod of this node.
    chains_of: HashMap<PolicyRef, BTreeSet<ChainId>>,
    /// The state of [`Compiler::compile_pending`].
    work: chains::Work,
    /// The policies in use that are refused: their chains allow nothing.
    refused: BTreeMap<PolicyRef, Refused>,
    /// The pods of this node with a chain.
    pods: BTreeMap<ObjectKey, PodChains>,
    /// Pods of which the chains may not be those of their policies. One change can concern many
    /// pods, and one pod many changes.
    unselected: BTreeSet<PodId>,
    pending: Pending,
}

#[derive(Debug)]
struct PolicyRow {
    policy: Policy,
    /// None: the policy selects nothing.
    subject: Option<PodGroup>,
    number: u32,
}

#[derive(Clone, Debug, PartialEq)]
enum Policy {
    Network(NetworkPolicy),
    Cluster(ClusterPolicy),
}

impl Compiler {
    /// A compiler for the pods of this node, without objects.
    pub fn new(node: &str) -> Compiler {
        Compiler {
            world: World::new(node.into()),
            policies: HashMap::new(),
            subjects: GroupIndex::default(),
            numbers: HashMap::new(),
            next_number: 0,
            sets: Sets::default(),
            chains: HashMap::new(),
            jumps: jumps::Jumps::default(),
            chains_of: HashMap::new(),
            work: chains::Work::default(),
            refused: BTreeMap::new(),
            pods: BTreeMap::new(),
            unselected: BTreeSet::new(),
            pending: Pending::default(),
        }
    }

    /// Takes a change of NetworkPolicies.
    pub fn handle_network_policies(&mut self, change: Change<ObjectKey, NetworkPolicy>) {
        let apply = |this: &mut Compiler, policy: NetworkPolicy| {
            let name = PolicyRef::Network(policy.key.clone());
            this.set_policy(&name, Some(Policy::Network(policy)));
        };
        match change {
            Change::Listed(policies) => {
                let listed: HashSet<ObjectKey> = policies.iter().map(|policy| policy.key.clone()).collect();
                let gone = self.policies.keys().filter(|name| match name {
                    PolicyRef::Network(key) => !listed.contains(key),
                    PolicyRef::Cluster(_) => false,
                });
                for name in gone.cloned().collect::<Vec<_>>() {
                    self.set_policy(&name, None);
                }
                policies.into_iter().for_each(|policy| apply(self, policy));
            }
            Change::Applied(policy) => apply(self, policy),
            Change::Deleted(key) => self.set_policy(&PolicyRef::Network(key), None),
        }
    }

    /// Takes a change of ClusterNetworkPolicies.
    pub fn handle_cluster_policies(&mut self, change: Change<Arc<str>, ClusterPolicy>) {
        let apply = |this: &mut Compiler, policy: ClusterPolicy| {
            let name = PolicyRef::Cluster(policy.name.clone());
            this.set_policy(&name, Some(Policy::Cluster(policy)));
        };
        match change {
            Change::Listed(policies) => {
                let listed: HashSet<Arc<str>> = policies.iter().map(|policy| policy.name.clone()).collect();
                let gone = self.policies.keys().filter(|name| match name {
                    PolicyRef::Cluster(name) => !listed.contains(name),
                    PolicyRef::Network(_) => false,
                });
                for name in gone.cloned().collect::<Vec<_>>() {
                    self.set_policy(&name, None);
                }
                policies.into_iter().for_each(|policy| apply(self, policy));
            }
            Change::Applied(policy) => apply(self, policy),
            Change::Deleted(name) => self.set_policy(&PolicyRef::Cluster(name), None),
        }
    }

    /// Takes a change of Namespaces. The labels of a Namespace that is not known are not known either.
    pub fn handle_namespaces(&mut self, change: Change<Arc<str>, Namespace>) {
        match change {
            Change::Listed(namespaces) => {
                let listed: HashSet<&Arc<str>> = namespaces.iter().map(|namespace| &namespace.name).collect();
                let mut gone = self.world.namespace_names();
                gone.retain(|name| !listed.contains(name));
                gone.iter().for_each(|name| self.set_namespace(name, None, false));
                for Namespace { name, labels, audit } in &namespaces {
                    self.set_namespace(name, Some(labels), *audit);
                }
            }
            Change::Applied(Namespace { name, labels, audit }) => {
                self.set_namespace(&name, Some(&labels), audit);
            }
            Change::Deleted(name) => self.set_namespace(&name, None, false),
        }
    }

    /// Takes a change of pods, of this node and of others.
    pub fn handle_pods(&mut self, change: Change<ObjectKey, Pod>) {
        match change {
            Change::Listed(pods) => {
                let listed: HashSet<&ObjectKey> = pods.iter().map(|pod| &pod.key).collect();
                let gone = self.world.pod_keys().filter(|key| !listed.contains(key));
                for key in gone.cloned().collect::<Vec<_>>() {
                    self.remove_pod(&key);
                }
                pods.iter().for_each(|pod| self.set_pod(pod));
            }
            Change::Applied(pod) => self.set_pod(&pod),
            Change::Deleted(key) => self.remove_pod(&key),
        }
    }

    /// Keeps only the stub of a policy.
    pub(super) fn stub_policy(&mut self, name: &PolicyRef) {
        let stub = match self.policies.get(name).map(|row| &row.policy) {
            Some(Policy::Network(policy)) => Policy::Network(policy.stub()),
            Some(Policy::Cluster(policy)) => Policy::Cluster(policy.stub()),
            None => return,
        };
        self.set_policy(name, Some(stub));
    }

    /// The difference since the last call. None: nothing changed.
    pub fn poll_changes(&mut self) -> Option<RulesChange> {
        self.compile_pending();
        let pending = std::mem::take(&mut self.pending);
        let change = pending.into_change(
            |id| self.sets.key(id).cloned(),
            |key| elements(&self.world, key),
            |id| self.chain(id).filter(|chain| !chain.is_unused()).cloned(),
            |key| self.pods.get(key).copied().unwrap_or_default(),
        );
        (!change.is_empty()).then_some(change)
    }

    /// All rules, to compare with the kernel after a start or after a change by another program. The
    /// rules of new policies are there after [`Self::poll_changes`].
    pub fn rules(&self) -> Rules {
        let set = |key: &Arc<SetKey>| AddressSet { key: key.clone(), elements: elements(&self.world, key) };
        Rules {
            sets: self.sets.iter().map(|(id, key)| (id, set(key))).collect(),
            chains: self.used_chains().map(|(id, chain)| (id, chain.clone())).collect(),
            pods: self.pods.clone(),
        }
    }

    /// All NetworkPolicies.
    pub fn network_policies(&self) -> impl Iterator<Item = &NetworkPolicy> {
        self.policies.values().filter_map(|row| match &row.policy {
            Policy::Network(policy) => Some(policy),
            Policy::Cluster(_) => None,
        })
    }

    /// All ClusterNetworkPolicies.
    pub fn cluster_policies(&self) -> impl Iterator<Item = &ClusterPolicy> {
        self.policies.values().filter_map(|row| match &row.policy {
            Policy::Cluster(policy) => Some(policy),
            Policy::Network(_) => None,
        })
    }

    /// All Namespaces whose labels are known.
    pub fn namespaces(&self) -> impl Iterator<Item = Namespace> {
        self.world.known_namespaces()
    }

    /// All pods.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.world.all_pods()
    }

    /// Whether the labels of a Namespace are known.
    pub fn has_namespace(&self, name: &Arc<str>) -> bool {
        self.world.labels_of(name).is_some()
    }

    /// The chains with their numbers.
    pub fn chains(&self) -> impl Iterator<Item = (ChainId, &Arc<Chain>)> {
        self.chains.iter().map(|(id, row)| (*id, &row.value))
    }

    fn used_chains(&self) -> impl Iterator<Item = (ChainId, &Arc<Chain>)> {
        self.chains().filter(|(_, chain)| !chain.is_unused())
    }

    /// A chain by its number.
    pub fn chain(&self, id: ChainId) -> Option<&Arc<Chain>> {
        self.chains.get(&id).map(|row| &row.value)
    }

    /// Whether a policy selects a pod of this node, or may select it.
    pub(super) fn is_selected(&self, key: &ObjectKey) -> bool {
        let unselected = self.world.pod_id(key).filter(|id| self.unselected.contains(id));
        match unselected.and_then(|id| self.world.pod(id)) {
            Some(pod) => self.entry_keys(pod).iter().any(Option::is_some),
            None => self.chains_of(key) != PodChains::default(),
        }
    }

    /// The chains of a pod of this node, as of the last [`Self::poll_changes`].
    pub fn chains_of(&self, pod: &ObjectKey) -> PodChains {
        self.pods.get(pod).copied().unwrap_or_default()
    }

    /// The numbers of sets, chains and pods with rules.
    pub fn sizes(&self) -> (usize, usize, usize) {
        (self.sets.len(), self.chains.len(), self.pods.len())
    }

    /// A pod.
    pub fn pod(&self, key: &ObjectKey) -> Option<&Arc<Pod>> {
        self.world.pod_id(key).and_then(|id| self.world.pod(id))
    }

    /// Whether a pod is in a group, or could be in it with labels that are not known.
    pub(super) fn may_contain(&self, group: &PodGroup, pod: &ObjectKey) -> bool {
        self.pod(pod).is_some_and(|pod| self.world.may_contain(group, pod))
    }

    /// The names of the pods with an address, of all nodes.
    pub fn pods_at(&self, address: std::net::IpAddr) -> impl Iterator<Item = &ObjectKey> {
        self.world.pods_at(address).map(|pod| &pod.key)
    }

    /// Pods and selectors that were examined since the start: the measure of cost for tests and
    /// benches.
    pub fn examined(&self) -> u64 {
        self.world.examined()
    }

    // ---- Namespaces and pods

    fn set_namespace(&mut self, name: &Arc<str>, labels: Option<&Labels>, audit: bool) {
        if self.world.labels_of(name) == labels && self.world.is_audited(name) == audit {
            return;
        }
        let pods = self.world.pods_of(name);
        for id in &pods {
            self.detach(*id);
        }
        self.world.set_namespace(name, labels, audit);
        for id in &pods {
            self.attach(*id);
        }
        self.unselected.extend(pods);
    }

    fn set_pod(&mut self, pod: &Pod) {
        if let Some(id) = self.world.pod_id(&pod.key) {
            match self.world.pod(id).cloned() {
                Some(there) if *there == *pod => return,
                // The pod keeps its chains until it has others.
                Some(there) if self.world.is_local(&there) && !self.world.is_local(pod) => {
                    self.remove_pod(&pod.key);
                }
                _ => {
                    self.detach(id);
                    self.world.remove(id);
                }
            }
        }
        let (id, _) = self.world.insert(pod);
        self.attach(id);
        self.unselected.insert(id);
    }

    fn remove_pod(&mut self, key: &ObjectKey) {
        let Some(id) = self.world.pod_id(key) else { return };
        self.detach(id);
        self.world.remove(id);
        self.set_chains(key, [None, None]);
    }

    /// Adds the elements of a pod.
    fn attach(&mut self, id: PodId) {
        let Some(pod) = self.world.pod(id).cloned() else { return };
        for (set, element) in self.sets.contributions(&self.world, &pod) {
            if !self.sets.is_element(&self.world, set, element) {
                self.pending.add(set, element);
                self.sets.count_added(set);
            }
        }
        self.world.insert_addresses(id, &pod);
    }

    /// Removes the elements of a pod, except those that another pod with its address has.
    fn detach(&mut self, id: PodId) {
        let Some(pod) = self.world.pod(id).cloned() else { return };
        self.world.remove_addresses(id, &pod);
        for (set, element) in self.sets.contributions(&self.world, &pod) {
            if !self.sets.is_element(&self.world, set, element) {
                self.pending.remove(set, element);
                self.sets.count_removed(set);
            }
        }
    }

    // ---- policies and chains

    fn set_policy(&mut self, name: &PolicyRef, policy: Option<Policy>) {
        let before = self.policies.get(name).cloned();
        if before.as_ref().map(|row| &row.policy) == policy.as_ref() {
            return;
        }
        if let Some(PolicyRow { subject: Some(subject), number, .. }) = before.as_deref() {
            self.subjects.remove(subject, *number);
            self.numbers.remove(number);
            self.unselected.extend(self.selected(subject));
        }
        match policy {
            Some(policy) => {
                let subject = match &policy {
                    Policy::Network(policy) => Some(translate::network_subject(policy)),
                    Policy::Cluster(policy) => translate::cluster_subject(policy),
                };
                self.next_number += 1;
                let number = self.next_number;
                if let Some(subject) = &subject {
                    self.subjects.insert(subject, number);
                    self.numbers.insert(number, name.clone());
                    self.unselected.extend(self.selected(subject));
                }
                self.policies.insert(name.clone(), Arc::new(PolicyRow { policy, subject, number }));
            }
            None => drop(self.policies.remove(name)),
        }
        self.handle_changed_policy(name);
    }

    /// The pods of this node that are, or may be, in a group.
    fn selected(&self, group: &PodGroup) -> Vec<PodId> {
        let local = match &group.namespaces {
            NamespaceMatch::Named(name) => self.world.local_of(name),
            NamespaceMatch::Selected(_) => self.world.local().collect(),
        };
        self.world.count_examined(local.len());
        let is_member =
            |id: &PodId| self.world.pod(*id).is_some_and(|pod| self.world.may_contain(group, pod));
        local.into_iter().filter(is_member).collect()
    }

    /// Gives pods the chains of the policies that select them.
    pub(super) fn select_pending(&mut self) {
        for id in std::mem::take(&mut self.unselected) {
            let Some(pod) = self.world.pod(id).cloned() else { continue };
            if self.world.is_local(&pod) {
                let keys = self.entry_keys(&pod);
                self.set_chains(&pod.key, keys);
            }
        }
    }

    /// The chains of the policies that select a pod of this node.
    fn entry_keys(&self, pod: &Pod) -> [Option<ChainKey>; 2] {
        let (selected, possible) = self.selecting_policies(pod);
        let audit = self.world.is_audited(&pod.key.namespace);
        Direction::ALL.map(|direction| {
            let mut policies = applied(&selected, direction);
            if let Some(possible) = &possible {
                let certain = std::mem::replace(&mut policies, applied(possible, direction));
                policies.unknown = policies != certain;
            }
            (!policies.is_empty()).then_some(ChainKey::Entry { direction, policies, audit })
        })
    }

    /// The policies that select a pod. If its labels or those of its Namespace are not known, also
    /// those that select it or may select it.
    fn selecting_policies(&self, pod: &Pod) -> (Vec<Arc<PolicyRow>>, Option<Vec<Arc<PolicyRow>>>) {
        let namespace = self.world.namespace(&pod.key.namespace);
        let rows_of = |candidates: Vec<u32>| {
            self.world.count_examined(candidates.len());
            candidates.into_iter().filter_map(|number| self.policies.get(self.numbers.get(&number)?))
        };
        let rows = rows_of(self.subjects.candidates(namespace, &pod.labels));
        let of = |row: &Arc<PolicyRow>, is_subject: fn(&World, &PodGroup, &Pod) -> bool| {
            row.subject.as_ref().is_some_and(|subject| is_subject(&self.world, subject, pod))
        };
        let selected = rows.filter(|row| of(row, World::contains)).cloned().collect();
        if self.world.has_labels(pod) {
            return (selected, None);
        }
        let possible = rows_of(self.subjects.possible(namespace));
        let possible = possible.filter(|row| of(row, World::may_contain));
        (selected, Some(possible.cloned().collect()))
    }

    /// Acquires the new entry chains of a pod before it releases the old ones. Common sets and
    /// chains then remain.
    fn set_chains(&mut self, pod: &ObjectKey, keys: [Option<ChainKey>; 2]) {
        let before = self.pods.get(pod).copied().unwrap_or_default();
        let [ingress, egress] = keys.map(|key| key.map(|key| self.acquire_chain(key)));
        let chains = PodChains { ingress, egress };
        for direction in Direction::ALL {
            if let Some(old) = before.of(direction) {
                self.release_chain(old);
            }
        }
        if chains == before {
            return;
        }
        self.pending.touch_pod(pod, before);
        if chains == PodChains::default() {
            self.pods.remove(pod);
        } else {
            self.pods.insert(pod.clone(), chains);
        }
    }
}

/// The rules of a node for a whole world at once.
pub fn compile(
    node: &str,
    namespaces: &[Namespace],
    pods: &[Pod],
    network_policies: &[NetworkPolicy],
    cluster_policies: &[ClusterPolicy],
) -> Rules {
    let mut compiler = Compiler::new(node);
    compiler.handle_namespaces(Change::Listed(namespaces.to_vec()));
    compiler.handle_pods(Change::Listed(pods.to_vec()));
    compiler.handle_network_policies(Change::Listed(network_policies.to_vec()));
    compiler.handle_cluster_policies(Change::Listed(cluster_policies.to_vec()));
    compiler.compile_pending();
    compiler.rules()
}

/// The policies of a direction among those that select a pod.
fn applied(rows: &[Arc<PolicyRow>], direction: Direction) -> AppliedPolicies {
    let mut network: Vec<ObjectKey> = Vec::new();
    let mut tiers: BTreeSet<(Tier, u16, Arc<str>)> = BTreeSet::new();
    for row in rows {
        match &row.policy {
            Policy::Network(policy) if policy.applies_to(direction) => network.push(policy.key.clone()),
            Policy::Cluster(policy) if !policy.rules(direction).is_empty() => {
                tiers.insert((policy.tier, policy.priority, policy.name.clone()));
            }
            Policy::Network(_) | Policy::Cluster(_) => {}
        }
    }
    network.sort_unstable();
    let of_tier = |tier| -> Vec<Arc<str>> {
        tiers.iter().filter(|(other, _, _)| *other == tier).map(|(_, _, name)| name.clone()).collect()
    };
    let baseline = if network.is_empty() { of_tier(Tier::Baseline) } else { Vec::new() };
    AppliedPolicies { admin: of_tier(Tier::Admin), network, baseline, unknown: false }
}
