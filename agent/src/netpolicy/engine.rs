//! The state of the policies task, without I/O: the compiler, the pods of this node, and which
//! inputs are complete.
//!
//! **Nothing is applied before every list is complete.** Until then the kernel has the rules of the
//! last run, and new pods wait. If the API server does not answer, the state of the last run
//! (`cache`) counts as complete.
//!
//! **Namespaces, pods and IPInstances are watched only while a policy exists.** Without a policy the lists of
//! policies alone are complete. The rows stay until the watches have ended
//! ([`PolicyInput::Stopped`]): the watches may not notice a short moment without a policy, and then
//! send no new lists.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use trunkline_datapath::plan::policy::{CounterId, LinkPolicies, PolicyChange, PolicyPart, PolicyTable};

use super::cache::PolicyWorld;
use super::compiler::Compiler;
use super::coverage::{AnyPolicy, Coverage};
use super::evaluate::{Decision, Packet, evaluate};
use super::feed::{
    AddressInput, CLUSTER_POLICIES, POLICIES, PodIdentity, PodInput, PolicyInput, PolicyObject, Wanted,
};
use super::input::{Change, Direction, Namespace, ObjectKey, Tier};
use super::kernel::{self, CounterKey, PolicyRef};
use super::keys::{LabelKeys, Labelled};
use super::labels::Labels;
use super::pods::{PodTable, PolicyLink, Row, pod_name};
use super::rules::{Chain, PodChains, RulesChange};
use super::stored::StoredPolicies;

mod admit;

/// The facts of a policy for views.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PolicyFacts {
    /// Entries that match nothing or that fail closed.
    pub(super) faults: Vec<String>,
    /// The tier; none for a NetworkPolicy.
    pub(super) tier: Option<(Tier, u16)>,
}

/// Why a link has no rules yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// For lists of the API server.
    Lists,
    /// For the object of the link's pod.
    Pod,
    /// For the Namespace of the link's pod.
    Namespace,
    /// For labels that this policy names, and no other did before.
    Labels(PolicyRef),
}

/// The complete lists since the start.
#[derive(Clone, Copy, Debug, Default)]
struct Lists {
    network: bool,
    cluster: bool,
    namespaces: bool,
    pods: bool,
    addresses: bool,
}

impl Lists {
    /// Whether the lists that only a node with policies needs are complete.
    fn has_pods(self) -> bool {
        self.namespaces && self.pods && self.addresses
    }
}

/// The state.
#[derive(Debug)]
pub(super) struct Engine {
    compiler: Compiler,
    lists: Lists,
    /// The errors of watches that fail, by kind.
    failing: BTreeMap<&'static str, String>,
    /// Whether the state of the last run counts: it was loaded, and the lists were not complete since.
    cached: bool,
    /// Whether the runtime, and no API server, has the pods' labels.
    standalone: bool,
    policies: BTreeMap<PolicyRef, PolicyFacts>,
    stored: StoredPolicies,
    /// The policies above a bound as written, and the markers.
    above_bound: BTreeSet<PolicyRef>,
    coverage: Coverage,
    /// The keys of the lists that follow, of pods and of Namespaces.
    converted: (Option<u64>, Option<u64>),
    pods: PodTable,
    /// The links that the kernel has.
    sent: BTreeMap<u32, LinkPolicies>,
    /// The addresses of links that the kernel has.
    sent_addresses: BTreeMap<u32, BTreeSet<IpAddr>>,
    /// Whether links came or went since the last difference.
    links_changed: bool,
    /// Pods whose links changed since the last difference.
    touched: BTreeSet<ObjectKey>,
    /// Links that are gone since the last difference.
    gone: BTreeSet<u32>,
}

impl Engine {
    /// `keys`: those that the watches keep. None: rows have all labels.
    pub(super) fn new(node: &str, keys: Option<Arc<LabelKeys>>) -> Engine {
        let node: Arc<str> = node.into();
        Engine {
            compiler: Compiler::new(&node),
            lists: Lists::default(),
            failing: BTreeMap::new(),
            cached: false,
            standalone: false,
            policies: BTreeMap::new(),
            stored: StoredPolicies::default(),
            above_bound: BTreeSet::new(),
            coverage: Coverage::new(keys),
            converted: (None, None),
            pods: PodTable::new(node),
            sent: BTreeMap::new(),
            sent_addresses: BTreeMap::new(),
            links_changed: false,
            touched: BTreeSet::new(),
            gone: BTreeSet::new(),
        }
    }

    // ---- inputs

    pub(super) fn handle_input(&mut self, input: PolicyInput) {
        self.apply_input(input);
        // Rows of complete lists replaced those of the last run.
        self.cached &= !self.is_current();
    }

    fn apply_input(&mut self, input: PolicyInput) {
        match input {
            PolicyInput::Network(change) => {
                if matches!(change, Change::Listed(_)) {
                    self.lists.network = true;
                    self.failing.remove(POLICIES);
                }
                self.handle_policies(change);
            }
            PolicyInput::Cluster(change) => {
                if matches!(change, Change::Listed(_)) {
                    self.lists.cluster = true;
                    self.failing.remove(CLUSTER_POLICIES);
                }
                self.handle_policies(change);
            }
            PolicyInput::Namespaces(change) => {
                if matches!(change, Change::Listed(_)) {
                    self.failing.remove("namespaces");
                    let number = self.converted.1.take();
                    if !self.coverage.list(Labelled::Namespaces, number) {
                        return;
                    }
                    self.lists.namespaces = true;
                }
                self.compiler.handle_namespaces(change);
                self.fill_namespaces();
                self.follow_coverage();
            }
            PolicyInput::Pods(change) => {
                let before = self.coverage.pod_keys();
                if matches!(change, Change::Listed(_)) {
                    self.failing.remove("pods");
                    let number = self.converted.0.take();
                    if !self.coverage.list(Labelled::Pods, number) {
                        return;
                    }
                    self.lists.pods = true;
                }
                self.handle_pods(change);
                self.follow_pod_keys(before);
            }
            PolicyInput::Converted { kind: Labelled::Pods, keys } => self.converted.0 = Some(keys),
            PolicyInput::Converted { kind: Labelled::Namespaces, keys } => self.converted.1 = Some(keys),
            PolicyInput::Relisted(pods) => {
                for input in pods {
                    let rows = self.pods.merge(input);
                    self.apply_rows(rows);
                }
            }
            PolicyInput::Covered(keys) => {
                let before = self.coverage.pod_keys();
                self.coverage.cover(Labelled::Pods, keys);
                self.follow_pod_keys(before);
            }
            PolicyInput::Addresses(change) => {
                if matches!(change, Change::Listed(_)) {
                    self.lists.addresses = true;
                    self.failing.remove("ipinstances");
                }
                self.handle_addresses(change);
            }
            PolicyInput::Failing { what, error } => {
                self.failing.insert(what, error);
            }
            PolicyInput::Stopped => self.forget_pods(),
        }
    }

    /// The state of the last run: it counts while the API server does not answer. It does not count
    /// if it lacks the pod of a link that continues: the kernel has the rules of this pod, and a
    /// table of this state would remove them.
    pub(super) fn handle_cached(&mut self, inputs: Vec<PolicyInput>) {
        for input in inputs {
            self.handle_input(input);
        }
        self.lists = Lists::default();
        let is_known = |link: &PolicyLink| self.pods.has_pod(&link.host_ifname);
        self.cached = !self.wants_pods() || self.pods.links().all(is_known);
    }

    /// The labels of more keys may be known: pending policies are in force.
    fn follow_coverage(&mut self) {
        for policy in self.coverage.poll_ready() {
            self.put_in_force(policy);
        }
    }

    /// The same for pods. Nobody has the labels with new keys of pods that were deleted.
    fn follow_pod_keys(&mut self, before: Option<u64>) {
        if before.is_some_and(|before| self.coverage.pod_keys() > Some(before)) {
            let rows = self.pods.forget_labels_of_deleted();
            self.apply_rows(rows);
        }
        self.follow_coverage();
    }

    fn put_in_force(&mut self, policy: AnyPolicy) {
        match policy {
            AnyPolicy::Network(policy) => self.compiler.handle_network_policies(Change::Applied(policy)),
            AnyPolicy::Cluster(policy) => self.compiler.handle_cluster_policies(Change::Applied(policy)),
        }
    }

    /// A policy is new or changed.
    fn offer(&mut self, name: &PolicyRef, policy: AnyPolicy) {
        let has_rows = self.cached || self.coverage.has_pods();
        if self.pods.has_surplus() {
            self.coverage.note_surplus();
        }
        if let Some(policy) = self.coverage.offer(name, policy, has_rows) {
            self.put_in_force(policy);
        }
    }

    /// The policies of the engine that are not in a list.
    fn not_listed(&self, listed: &BTreeSet<PolicyRef>, is_cluster: bool) -> Vec<PolicyRef> {
        let of_kind = |name: &&PolicyRef| matches!(name, PolicyRef::Cluster(_)) == is_cluster;
        let gone = self.policies.keys().filter(of_kind).filter(|name| !listed.contains(name));
        gone.cloned().collect()
    }

    fn remove_policy(&mut self, name: &PolicyRef) {
        self.policies.remove(name);
        self.above_bound.remove(name);
        self.coverage.withdraw(name);
        match name {
            PolicyRef::Network(key) => self.compiler.handle_network_policies(Change::Deleted(key.clone())),
            PolicyRef::Cluster(name) => self.compiler.handle_cluster_policies(Change::Deleted(name.clone())),
        }
    }

    /// Without a policy, rows of the last run are dropped, because no watch replaces them. A watch
    /// with a list drops its own rows at its end.
    fn follow_wish(&mut self) {
        let Lists { network, cluster, namespaces, pods, addresses } = self.lists;
        if !self.wants_pods() && network && cluster && !namespaces && !pods && !addresses {
            self.forget_pods();
        }
    }

    /// Drops the rows of Namespaces, pods and addresses.
    fn forget_pods(&mut self) {
        self.cached = false;
        self.lists = Lists { namespaces: false, pods: false, addresses: false, ..self.lists };
        self.failing.retain(|what, _| !matches!(*what, "namespaces" | "pods" | "ipinstances"));
        self.coverage.forget();
        self.compiler.handle_namespaces(Change::Listed(Vec::new()));
        self.handle_pods(Change::Listed(Vec::new()));
        self.handle_addresses(Change::Listed(Vec::new()));
        // Without a policy no rule accepted their connections.
        self.pods.poll_left();
    }

    fn handle_pods(&mut self, change: Change<PodIdentity, PodInput>) {
        match change {
            Change::Listed(all) => {
                for (pod, uid) in self.pods.not_listed(&all) {
                    let row = self.pods.delete(&pod, &uid);
                    self.apply_rows(row);
                }
                for input in all {
                    let rows = self.pods.apply(input);
                    self.apply_rows(rows);
                }
            }
            Change::Applied(mut input) => {
                if self.coverage.is_behind(input.keys) {
                    input.pod.labels = Labels::UNKNOWN;
                }
                let rows = self.pods.apply(input);
                self.apply_rows(rows);
            }
            Change::Deleted((pod, uid)) => {
                let row = self.pods.delete(&pod, &uid);
                self.apply_rows(row);
            }
        }
    }

    fn handle_addresses(&mut self, change: Change<(IpAddr, Arc<str>), AddressInput>) {
        let rows = match change {
            Change::Listed(all) => {
                let rows = self.pods.release_others(&all);
                self.apply_rows(rows);
                for input in all {
                    let rows = self.pods.hold(input);
                    self.apply_rows(rows);
                }
                return;
            }
            Change::Applied(input) => self.pods.hold(input),
            Change::Deleted((address, namespace)) => {
                self.pods.hold(AddressInput { namespace, address, holder: None })
            }
        };
        self.apply_rows(rows);
    }

    fn apply_rows(&mut self, rows: impl IntoIterator<Item = Row>) {
        for row in rows {
            match row {
                Row::Set(pod) => {
                    self.touch(&pod.key);
                    let key = pod.key.clone();
                    self.compiler.handle_pods(Change::Applied(Arc::unwrap_or_clone(pod)));
                    if let Some(shared) = self.compiler.pod(&key) {
                        self.pods.share(shared);
                    }
                }
                Row::Remove(key) => {
                    self.touch(&key);
                    self.compiler.handle_pods(Change::Deleted(key));
                }
            }
        }
    }

    /// The links of a pod of this node may have other rules.
    fn touch(&mut self, key: &ObjectKey) {
        if self.pods.is_local(key) {
            self.touched.insert(key.clone());
        }
    }

    pub(super) fn attach(&mut self, link: PolicyLink) {
        if let Some(old) = self.pods.link(&link.host_ifname) {
            self.gone.insert(old.ifindex);
        }
        self.standalone |= link.labels.is_some();
        self.links_changed = true;
        let rows = self.pods.attach(link);
        self.fill_namespaces();
        self.apply_rows(rows);
    }

    /// Without an API server a Namespace needs no manifest: its only label is its name.
    fn fill_namespaces(&mut self) {
        if !self.standalone {
            return;
        }
        let names: BTreeSet<Arc<str>> = self.pods.links().map(|link| link.pod.namespace.clone()).collect();
        for name in names {
            if !self.compiler.has_namespace(&name) {
                let namespace = Namespace::without_manifest(&name);
                self.compiler.handle_namespaces(Change::Applied(namespace));
            }
        }
    }

    pub(super) fn detach(&mut self, host_ifname: &str) {
        let Some(link) = self.pods.link(host_ifname) else { return };
        self.gone.insert(link.ifindex);
        self.links_changed = true;
        let row = self.pods.detach(host_ifname);
        self.apply_rows(row);
    }

    // ---- state

    /// Whether a policy exists.
    pub(super) fn wants_pods(&self) -> bool {
        !self.policies.is_empty()
    }

    /// Whether every needed list is complete, or the state of the last run replaces it.
    pub(super) fn is_known(&self) -> bool {
        self.is_current() || (self.cached && !self.failing.is_empty())
    }

    /// Whether the lists are those of the API server.
    pub(super) fn is_current(&self) -> bool {
        let Lists { network, cluster, .. } = self.lists;
        network && cluster && (!self.wants_pods() || (self.lists.has_pods() && self.coverage.is_complete()))
    }

    /// The errors of watches that fail.
    pub(super) fn failing(&self) -> &BTreeMap<&'static str, String> {
        &self.failing
    }

    /// Why a link has no rules yet; none: it has them, or needs none.
    pub(super) fn waits(&self, host_ifname: &str) -> Option<Waits> {
        if !self.is_known() {
            return Some(Waits::Lists);
        }
        if !self.wants_pods() {
            return None;
        }
        if !self.pods.has_pod(host_ifname) {
            return Some(Waits::Pod);
        }
        let link = self.pods.link(host_ifname)?;
        if !self.compiler.has_namespace(&link.pod.namespace) {
            return Some(Waits::Namespace);
        }
        let row = self.pods.row_of_link(host_ifname)?;
        let mut pending = self.coverage.pending_subjects(&link.pod.namespace);
        let selects = pending.find(|(_, subject)| self.compiler.may_contain(subject, row));
        selects.map(|(name, _)| Waits::Labels(name.clone()))
    }

    /// What the watches need.
    pub(super) fn wanted(&self) -> Wanted {
        self.coverage.wanted(self.wants_pods(), self.pods.over_bound() > 0)
    }

    /// The numbers of pending policies, and of pods with more labels than the bound.
    pub(super) fn label_faults(&self) -> (usize, usize) {
        (self.coverage.pending(), self.pods.over_bound())
    }

    /// The addresses that left their holders since the last call, if this node has rules.
    pub(super) fn poll_left(&mut self) -> BTreeSet<IpAddr> {
        let left = self.pods.poll_left();
        self.compiler.select_pending();
        if self.compiler.sizes().2 > 0 { left } else { BTreeSet::new() }
    }

    /// The policies that select the pod of a link, if the host cannot enforce them.
    pub(super) fn unenforced(&self, host_ifname: &str) -> Vec<PolicyRef> {
        let is_enforceable = self.pods.link(host_ifname).is_none_or(|link| link.enforceable);
        match self.pods.row_of_link(host_ifname) {
            Some(row) if !is_enforceable => self.policies_of(row),
            _ => Vec::new(),
        }
    }

    /// Links of pods with policies that the host cannot enforce.
    pub(super) fn unenforced_links(&self) -> usize {
        self.pods.links().filter(|link| !self.unenforced(&link.host_ifname).is_empty()).count()
    }

    pub(super) fn policies(&self) -> &BTreeMap<PolicyRef, PolicyFacts> {
        &self.policies
    }

    pub(super) fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// Why policies are refused, with the fix.
    pub(super) fn refusals(&self) -> BTreeMap<PolicyRef, String> {
        let all = self.compiler.refusals();
        all.map(|(policy, refusal)| (policy.clone(), refusal.to_string())).collect()
    }

    /// Whether an API server sends the objects. Otherwise a folder has them.
    pub(super) fn has_api_server(&self) -> bool {
        self.coverage.has_keys()
    }

    /// Number of policies above a bound, or refused by the kernel: their pods are isolated. The marker of
    /// a Namespace counts besides its policies.
    pub(super) fn failed_closed(&self) -> usize {
        let above = self.above_bound.iter().filter(|policy| !self.compiler.is_refused(policy));
        above.count() + self.compiler.refusals().count() + self.stored.not_kept()
    }

    /// Number of policies with a fault, or refused. A marker counts besides its policies.
    pub(super) fn faulty(&self) -> usize {
        let is_faulty = |(policy, facts): &(&PolicyRef, &PolicyFacts)| {
            !facts.faults.is_empty() || self.compiler.is_refused(policy)
        };
        self.policies.iter().filter(is_faulty).count() + self.stored.not_kept()
    }

    /// Refuses the policies of a part that the kernel refused: they fail closed, and the other
    /// policies come into force without them. None: there is no other policy to refuse.
    pub(super) fn refuse_part(&mut self, part: PolicyPart, reason: &str) -> Option<BTreeSet<PolicyRef>> {
        self.compiler.refuse_part(part, reason)
    }

    /// Tries the policies again that the kernel refused. Returns whether there is one.
    pub(super) fn retry_refused(&mut self) -> bool {
        self.compiler.retry_refused()
    }

    /// Finds the policies of changed pods.
    pub(super) fn select_pending(&mut self) {
        self.compiler.select_pending();
    }

    /// Compiles the rules of changed policies, for views.
    pub(super) fn compile_pending(&mut self) {
        self.compiler.compile_pending();
    }

    /// Whether no policy selects the pod of a link: the pod needs no rules.
    pub(super) fn is_free(&self, host_ifname: &str) -> bool {
        let row = self.pods.row_of_link(host_ifname);
        row.is_some_and(|row| !self.compiler.is_selected(row))
    }

    /// The pods of this node by policy.
    pub(super) fn selected(&self) -> BTreeMap<PolicyRef, BTreeSet<ObjectKey>> {
        let mut selected: BTreeMap<PolicyRef, BTreeSet<ObjectKey>> = BTreeMap::new();
        let rows: BTreeSet<&ObjectKey> =
            self.pods.links().filter_map(|link| self.pods.row_of_link(&link.host_ifname)).collect();
        for row in rows {
            for policy in self.policies_of(row) {
                selected.entry(policy).or_default().insert(pod_name(row));
            }
        }
        selected
    }

    fn policies_of(&self, row: &ObjectKey) -> Vec<PolicyRef> {
        let chains = self.compiler.chains_of(row);
        let entries = Direction::ALL.iter().filter_map(|direction| chains.of(*direction));
        let mut policies: Vec<PolicyRef> = entries
            .filter_map(|id| self.compiler.chain(id))
            .flat_map(|chain| kernel::policies_of(&chain.key))
            .collect();
        policies.sort();
        policies.dedup();
        policies
    }

    /// The meanings of the counters.
    pub(super) fn counters(&self) -> BTreeMap<CounterId, CounterKey> {
        let keys = self.compiler.chains().flat_map(|(_, chain)| {
            chain.rules.iter().filter_map(|rule| kernel::counter_of(&chain.key, rule))
        });
        keys.map(|key| (key.id(), key)).collect()
    }

    /// The name of the pod with an address.
    pub(super) fn pod_at(&self, address: IpAddr) -> Option<ObjectKey> {
        self.compiler.pods_at(address).next().map(pod_name)
    }

    /// The decision about a packet to or from a pod of this node with this address, and the
    /// policies that apply in this direction. None: no pod of this node has the address.
    pub(super) fn explain(
        &self,
        address: IpAddr,
        direction: Direction,
        packet: &Packet,
    ) -> Option<(Decision, Vec<PolicyRef>)> {
        let row = self.compiler.pods_at(address).find(|row| !self.pods.links_of(row).is_empty())?;
        let chain = self.compiler.chains_of(row).of(direction).and_then(|id| self.compiler.chain(id));
        let policies = chain.map(|chain| kernel::policies_of(&chain.key)).unwrap_or_default();
        Some((evaluate(&self.compiler.rules(), row, direction, packet), policies))
    }

    /// A link by its host interface.
    pub(super) fn link(&self, host_ifname: &str) -> Option<&PolicyLink> {
        self.pods.link(host_ifname)
    }

    /// All objects, for the next run.
    pub(super) fn world(&self) -> PolicyWorld {
        fn object<P: Clone>(policy: &P, facts: Option<&PolicyFacts>) -> PolicyObject<P> {
            let faults = facts.map(|facts| facts.faults.clone()).unwrap_or_default();
            PolicyObject {
                policy: policy.clone(),
                faults,
                above_bound: false,
                generation: 0,
                uid: Arc::from(""),
            }
        }
        let network = self.compiler.network_policies();
        let cluster = self.compiler.cluster_policies();
        PolicyWorld {
            network: network
                .map(|policy| object(policy, self.policies.get(&PolicyRef::Network(policy.key.clone()))))
                .collect(),
            cluster: cluster
                .map(|policy| object(policy, self.policies.get(&PolicyRef::Cluster(policy.name.clone()))))
                .collect(),
            namespaces: self.compiler.namespaces().collect(),
            pods: self.pods.objects().collect(),
            addresses: self.pods.held().collect(),
        }
    }

    // ---- output

    /// The whole table. The next difference begins here.
    pub(super) fn table(&mut self) -> PolicyTable {
        self.compiler.poll_changes();
        self.touched.clear();
        self.gone.clear();
        let rules = self.compiler.rules();
        let links = rules.pods.iter().flat_map(|(row, chains)| self.links(row, *chains));
        self.sent = links.collect();
        self.sent_addresses = self.addresses();
        self.links_changed = false;
        PolicyTable {
            sets: rules.sets.into_iter().map(|(id, set)| (id, kernel::set(set))).collect(),
            chains: rules.chains.iter().map(|(id, chain)| (*id, kernel::chain(chain))).collect(),
            links: self.sent.clone(),
            addresses: self.sent_addresses.clone(),
        }
    }

    /// The difference since the last call of this function or of [`Self::table`].
    pub(super) fn poll_change(&mut self) -> Option<PolicyChange> {
        let RulesChange { sets, chains, pods } = self.compiler.poll_changes().unwrap_or_default();
        let mut links = BTreeMap::new();
        self.touched.extend(pods.into_keys());
        for ifindex in std::mem::take(&mut self.gone) {
            if self.sent.remove(&ifindex).is_some() {
                links.insert(ifindex, None);
            }
        }
        for row in std::mem::take(&mut self.touched) {
            let wanted = self.links(&row, self.compiler.chains_of(&row));
            let own = self.pods.links_of(&row).iter().map(|link| link.ifindex).collect::<Vec<_>>();
            for ifindex in own {
                let new = wanted.get(&ifindex).cloned();
                let old = match &new {
                    Some(new) => self.sent.insert(ifindex, new.clone()),
                    None => self.sent.remove(&ifindex),
                };
                if old != new {
                    links.insert(ifindex, new);
                }
            }
        }
        let change = PolicyChange {
            sets: sets.into_iter().map(|(id, change)| (id, kernel::set_change(change))).collect(),
            chains: chains
                .into_iter()
                .map(|(id, chain): (_, Option<Arc<Chain>>)| (id, chain.as_deref().map(kernel::chain)))
                .collect(),
            links,
            addresses: self.poll_addresses(),
        };
        (!change.is_empty()).then_some(change)
    }

    /// The addresses of all links; none if no pod has a policy.
    fn addresses(&self) -> BTreeMap<u32, BTreeSet<IpAddr>> {
        if self.sent.is_empty() {
            return BTreeMap::new();
        }
        self.pods.links().map(|link| (link.ifindex, link.addresses.iter().copied().collect())).collect()
    }

    /// The addresses of links that changed since the last difference.
    fn poll_addresses(&mut self) -> BTreeMap<u32, Option<BTreeSet<IpAddr>>> {
        let is_wanted = !self.sent.is_empty();
        if !std::mem::take(&mut self.links_changed) && is_wanted != self.sent_addresses.is_empty() {
            return BTreeMap::new();
        }
        let wanted = self.addresses();
        let gone = self.sent_addresses.keys().filter(|ifindex| !wanted.contains_key(ifindex));
        let mut changes: BTreeMap<u32, Option<BTreeSet<IpAddr>>> =
            gone.map(|ifindex| (*ifindex, None)).collect();
        let is_new = |(ifindex, addresses): &(&u32, &BTreeSet<IpAddr>)| {
            self.sent_addresses.get(ifindex) != Some(addresses)
        };
        let new = wanted.iter().filter(is_new);
        changes.extend(new.map(|(ifindex, addresses)| (*ifindex, Some(addresses.clone()))));
        self.sent_addresses = wanted;
        changes
    }

    /// The links of a pod with its chains; none if no policy applies.
    fn links(&self, row: &ObjectKey, chains: PodChains) -> BTreeMap<u32, LinkPolicies> {
        if chains == PodChains::default() {
            return BTreeMap::new();
        }
        let links = self.pods.links_of(row).into_iter().filter(|link| link.enforceable);
        let siblings: BTreeSet<u32> = links.map(|link| link.ifindex).collect();
        let policies = |siblings: &BTreeSet<u32>| LinkPolicies {
            ingress: chains.ingress,
            egress: chains.egress,
            siblings: siblings.clone(),
        };
        siblings.iter().map(|ifindex| (*ifindex, policies(&siblings))).collect()
    }
}
