//! The budget of the policies that the agent stores, whether they select a pod of this node or not.
//!
//! The reader has replaced each policy above its own bound
//! ([`trunkline_api::network_policy::BOUND`]). Of a list, the largest policies of a Namespace above
//! its bound become stubs. Of changes, the changed policy does: those in force stay. If all
//! NetworkPolicies are above the bound of the node, the Namespaces with the most pay.
//! ClusterNetworkPolicies have a bound of their own and never pay for those of Namespaces.
//!
//! A stub counts with the selector of its pods. If a stub does not fit either, the agent does not
//! keep the policy: the **marker** of the Namespace, one policy for all of them, isolates all pods
//! of the Namespace in their directions. Administrators write ClusterNetworkPolicies, so their stubs
//! always fit.
//!
//! The agent does not keep the rules of a stub. The next change of the policy, or the next list,
//! tries it again.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasher;
use std::sync::Arc;

use trunkline_api::network_policy::{Excess, PolicyWeight};
use trunkline_api::resources::LabelSelector;

use super::budget::Tenant;
use super::input::{Direction, NetworkPolicy, ObjectKey};
use super::kernel::PolicyRef;

/// The bound of the policies of one Namespace, and of all ClusterNetworkPolicies. The number of
/// ClusterNetworkPolicies has no bound.
const TENANT: Charge = Charge { policies: 2000, entries: 40_000, octets: 2 << 20 };
/// The bound of all NetworkPolicies.
const NODE: Charge = Charge { policies: 50_000, entries: 100_000, octets: 16 << 20 };
/// The name of a marker. No object of Kubernetes can have it.
const MARKER: &str = "(above the budget)";

/// What policies cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Charge {
    policies: usize,
    entries: usize,
    octets: usize,
}

/// A figure of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    Policies,
    Entries,
    Octets,
}

impl Figure {
    const ALL: [Figure; 3] = [Figure::Policies, Figure::Entries, Figure::Octets];

    fn unit(self) -> &'static str {
        match self {
            Figure::Policies => "policies",
            Figure::Entries => "entries",
            Figure::Octets => "octets of text",
        }
    }
}

impl Charge {
    fn get(self, figure: Figure) -> usize {
        match figure {
            Figure::Policies => self.policies,
            Figure::Entries => self.entries,
            Figure::Octets => self.octets,
        }
    }

    fn excess(self, bound: Charge, figure: Figure) -> Option<Excess> {
        let (figure, bound, unit) = (self.get(figure), bound.get(figure), figure.unit());
        (figure > bound).then_some(Excess { figure, bound, unit })
    }

    fn any_excess(self, bound: Charge) -> Option<Excess> {
        Figure::ALL.into_iter().find_map(|figure| self.excess(bound, figure))
    }
}

impl std::ops::Add for Charge {
    type Output = Charge;

    fn add(self, other: Charge) -> Charge {
        Charge {
            policies: self.policies + other.policies,
            entries: self.entries + other.entries,
            octets: self.octets + other.octets,
        }
    }
}

impl std::ops::Sub for Charge {
    type Output = Charge;

    fn sub(self, other: Charge) -> Charge {
        Charge {
            policies: self.policies.saturating_sub(other.policies),
            entries: self.entries.saturating_sub(other.entries),
            octets: self.octets.saturating_sub(other.octets),
        }
    }
}

/// The size of a policy, and of what remains of it above a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PolicySize {
    pub(super) whole: PolicyWeight,
    pub(super) stub: PolicyWeight,
    /// Whether the policy isolates its pods for ingress, and for egress.
    pub(super) isolates: [bool; 2],
}

/// What the agent keeps of a policy above a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// A policy that isolates the same pods.
    Stub,
    /// The marker of the Namespace.
    Marker,
}

/// Why the agent does not keep a policy as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Surplus {
    pub(super) kept: Kept,
    excess: Excess,
    of_node: bool,
}

/// The fault, and the fix.
impl std::fmt::Display for Surplus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let whose = if self.of_node {
            "of the cluster, and its Namespace has the most"
        } else {
            "of its Namespace, or of all ClusterNetworkPolicies"
        };
        write!(
            f,
            "over the budget {whose}: {}: use fewer policies, peers or ports, and apply this policy again",
            self.excess
        )
    }
}

/// The one policy of a Namespace for all that are not kept, and its fault.
pub(super) type Marker = (NetworkPolicy, String);

/// A policy that is kept.
#[derive(Clone, Copy, Debug)]
struct Row {
    size: PolicySize,
    is_stub: bool,
}

impl Row {
    fn charge(self) -> Charge {
        let PolicyWeight { entries, octets } = if self.is_stub { self.size.stub } else { self.size.whole };
        Charge { policies: 1, entries, octets }
    }

    fn stub(self) -> Row {
        Row { is_stub: true, ..self }
    }
}

/// The policies that pay together.
#[derive(Debug, Default)]
struct Account {
    rows: BTreeMap<PolicyRef, Row>,
    sum: Charge,
    /// The policies that are not kept, by the hash of their names, and whether they isolate pods for
    /// ingress, and for egress.
    surplus: HashMap<u64, [bool; 2]>,
    /// The reason of the last one.
    reason: Option<Surplus>,
}

/// The sizes of all policies.
#[derive(Debug, Default)]
pub(super) struct StoredPolicies {
    accounts: BTreeMap<Tenant, Account>,
    /// Of all NetworkPolicies.
    total: Charge,
    /// Nobody can choose names with equal hashes.
    names: RandomState,
    /// The policies that are not kept.
    not_kept: usize,
    /// Namespaces with a changed marker.
    changed: BTreeSet<Arc<str>>,
}

impl StoredPolicies {
    /// These policies exist, and no others of their kind. Returns those that are not kept as written.
    pub(super) fn set_list(
        &mut self,
        is_cluster: bool,
        listed: impl Iterator<Item = (PolicyRef, PolicySize)>,
    ) -> BTreeMap<PolicyRef, Surplus> {
        self.clear(is_cluster);
        let mut surplus = BTreeMap::new();
        let mut tenants = BTreeSet::new();
        for (policy, size) in listed {
            if is_marker(&policy) {
                self.add_to_marker(&policy, size, None);
                continue;
            }
            tenants.insert(Tenant::from(&policy));
            self.insert(&policy, Row { size, is_stub: false });
        }
        for tenant in tenants {
            for figure in Figure::ALL {
                self.reduce(&tenant, figure, None, &mut surplus);
            }
        }
        self.reduce_node(&mut surplus);
        surplus
    }

    /// A policy is new or changed. Returns the policies that are not kept as written: it, or others.
    pub(super) fn set(&mut self, policy: &PolicyRef, size: PolicySize) -> BTreeMap<PolicyRef, Surplus> {
        self.remove(policy);
        let whole = Row { size, is_stub: false };
        let mut surplus = BTreeMap::new();
        if let Some(excess) = self.excess_with(policy, whole) {
            let reason = Surplus { kept: Kept::Stub, excess, of_node: false };
            if self.excess_with(policy, whole.stub()).is_none() || is_cluster(policy) {
                self.insert(policy, whole.stub());
                surplus.insert(policy.clone(), reason);
            } else {
                surplus.extend(self.add_to_marker(policy, size, Some(reason)));
            }
        } else {
            self.insert(policy, whole);
        }
        self.reduce_node(&mut surplus);
        surplus
    }

    /// The entries of a policy as it is kept.
    pub(super) fn entries(&self, policy: &PolicyRef) -> usize {
        let account = self.accounts.get(&Tenant::from(policy));
        account.and_then(|account| account.rows.get(policy)).map_or(0, |row| row.charge().entries)
    }

    /// A policy is gone.
    pub(super) fn remove(&mut self, policy: &PolicyRef) {
        let (tenant, name) = (Tenant::from(policy), self.names.hash_one(policy));
        let Some(account) = self.accounts.get_mut(&tenant) else { return };
        if let Some(row) = account.rows.remove(policy) {
            account.sum = account.sum - row.charge();
            if !is_cluster(policy) {
                self.total = self.total - row.charge();
            }
        }
        if account.surplus.remove(&name).is_some() {
            self.not_kept -= 1;
            self.changed.extend(namespace(&tenant));
        }
        if account.rows.is_empty() && account.surplus.is_empty() {
            self.accounts.remove(&tenant);
        }
    }

    /// The number of policies that are not kept.
    pub(super) fn not_kept(&self) -> usize {
        self.not_kept
    }

    /// Markers that changed since the last call. None: the Namespace needs none.
    pub(super) fn poll_markers(&mut self) -> Vec<(PolicyRef, Option<Marker>)> {
        let changed = std::mem::take(&mut self.changed).into_iter();
        changed
            .map(|namespace| {
                let key = ObjectKey { namespace: namespace.clone(), name: MARKER.into() };
                let account = self.accounts.get(&Tenant::Namespace(namespace));
                (PolicyRef::Network(key.clone()), account.and_then(|account| account.marker(key)))
            })
            .collect()
    }

    /// No policy of this kind exists.
    fn clear(&mut self, is_cluster: bool) {
        if is_cluster {
            self.accounts.remove(&Tenant::Cluster);
            return;
        }
        let cluster = self.accounts.remove_entry(&Tenant::Cluster);
        for (tenant, account) in std::mem::take(&mut self.accounts) {
            if !account.surplus.is_empty() {
                self.changed.extend(namespace(&tenant));
            }
        }
        self.accounts.extend(cluster);
        (self.total, self.not_kept) = (Charge::default(), 0);
    }

    fn insert(&mut self, policy: &PolicyRef, row: Row) {
        let account = self.accounts.entry(Tenant::from(policy)).or_default();
        account.sum = account.sum + row.charge();
        account.rows.insert(policy.clone(), row);
        if !is_cluster(policy) {
            self.total = self.total + row.charge();
        }
    }

    /// The figure above the bound of the policy's tenant with this policy.
    fn excess_with(&self, policy: &PolicyRef, row: Row) -> Option<Excess> {
        let tenant = Tenant::from(policy);
        let sum = self.accounts.get(&tenant).map(|account| account.sum).unwrap_or_default();
        (sum + row.charge()).any_excess(bound_of(&tenant))
    }

    /// The marker counts for a policy that is not kept. Without a reason the policy is the marker of
    /// the last run itself: it replaces itself.
    fn add_to_marker(
        &mut self,
        policy: &PolicyRef,
        size: PolicySize,
        reason: Option<Surplus>,
    ) -> Option<(PolicyRef, Surplus)> {
        let (tenant, name) = (Tenant::from(policy), self.names.hash_one(policy));
        self.changed.extend(namespace(&tenant));
        let account = self.accounts.entry(tenant).or_default();
        if account.surplus.insert(name, size.isolates).is_none() {
            self.not_kept += 1;
        }
        let reason = reason.map(|reason| Surplus { kept: Kept::Marker, ..reason });
        account.reason = reason.or(account.reason);
        reason.map(|reason| (policy.clone(), reason))
    }

    /// Reduces a tenant's largest policies until its sum is at the bound. `level`: until it is at this
    /// level, or all policies are at the bound of the node.
    fn reduce(
        &mut self,
        tenant: &Tenant,
        figure: Figure,
        level: Option<usize>,
        surplus: &mut BTreeMap<PolicyRef, Surplus>,
    ) {
        let bound = bound_of(tenant);
        let Some(account) = self.accounts.get(tenant) else { return };
        if account.sum.get(figure) <= level.unwrap_or(bound.get(figure)) {
            return;
        }
        let size = |row: &Row| row.charge().get(figure);
        let mut victims: Vec<(usize, PolicyRef)> =
            account.rows.iter().map(|(policy, row)| (size(row), policy.clone())).collect();
        victims.sort_unstable_by(|a, b| b.cmp(a));
        for kept in [Kept::Stub, Kept::Marker] {
            for (_, policy) in &victims {
                let sum = self.accounts.get(tenant).map(|account| account.sum).unwrap_or_default();
                let excess = match level {
                    Some(level) if sum.get(figure) <= level => None,
                    Some(_) => self.total.excess(NODE, figure),
                    None => sum.excess(bound, figure),
                };
                let Some(excess) = excess else { return };
                let reason = Surplus { kept, excess, of_node: level.is_some() };
                if self.reduce_policy(policy, figure, reason) {
                    surplus.insert(policy.clone(), reason);
                }
            }
        }
    }

    /// Keeps less of a policy. Returns whether this makes the figure smaller.
    fn reduce_policy(&mut self, policy: &PolicyRef, figure: Figure, reason: Surplus) -> bool {
        let account = self.accounts.get(&Tenant::from(policy));
        let Some(row) = account.and_then(|account| account.rows.get(policy)).copied() else { return false };
        match reason.kept {
            Kept::Stub if row.stub().charge().get(figure) < row.charge().get(figure) => {
                self.remove(policy);
                self.insert(policy, row.stub());
                true
            }
            Kept::Marker if !is_cluster(policy) => {
                self.remove(policy);
                self.add_to_marker(policy, row.size, Some(reason));
                true
            }
            Kept::Stub | Kept::Marker => false,
        }
    }

    /// The Namespaces with the most pay until all NetworkPolicies are at the bound.
    fn reduce_node(&mut self, surplus: &mut BTreeMap<PolicyRef, Surplus>) {
        for figure in Figure::ALL {
            if self.total.excess(NODE, figure).is_none() {
                continue;
            }
            let of_namespaces = self.accounts.iter().filter(|(tenant, _)| **tenant != Tenant::Cluster);
            let mut sums: Vec<(usize, Tenant)> =
                of_namespaces.map(|(tenant, account)| (account.sum.get(figure), tenant.clone())).collect();
            sums.sort_unstable_by(|a, b| b.cmp(a));
            let level = level(&sums, NODE.get(figure));
            for (_, tenant) in sums.iter().take_while(|(sum, _)| *sum > level) {
                self.reduce(tenant, figure, Some(level), surplus);
            }
        }
    }
}

impl Account {
    fn marker(&self, key: ObjectKey) -> Option<Marker> {
        let isolates = |index: usize| self.surplus.values().any(|directions| directions[index]);
        let types = Direction::ALL.into_iter().enumerate().filter(|(index, _)| isolates(*index));
        let types: BTreeSet<Direction> = types.map(|(_, direction)| direction).collect();
        if types.is_empty() {
            return None;
        }
        let number = self.surplus.len();
        let why = match self.reason {
            Some(reason) => reason.to_string(),
            None => "over the budget in the last run of the agent".to_owned(),
        };
        let fault = format!("isolates all pods of the Namespace, instead of {number} policies: {why}");
        let policy = NetworkPolicy {
            key,
            pod_selector: LabelSelector::default(),
            policy_types: Some(types),
            ingress: Vec::new(),
            egress: Vec::new(),
        };
        Some((policy, fault))
    }
}

/// The level to which the largest of these sums, the largest first, must fall for the bound.
fn level(sums: &[(usize, Tenant)], bound: usize) -> usize {
    let mut rest: usize = sums.iter().map(|(sum, _)| *sum).sum();
    for (index, (sum, _)) in sums.iter().enumerate() {
        rest -= sum;
        let level = bound.saturating_sub(rest) / (index + 1);
        let next = sums.get(index + 1).map(|(next, _)| *next).unwrap_or_default();
        if level >= next {
            return level;
        }
    }
    bound
}

fn is_cluster(policy: &PolicyRef) -> bool {
    matches!(policy, PolicyRef::Cluster(_))
}

/// Whether a policy is a marker: of the last run.
fn is_marker(policy: &PolicyRef) -> bool {
    matches!(policy, PolicyRef::Network(key) if *key.name == *MARKER)
}

fn bound_of(tenant: &Tenant) -> Charge {
    match tenant {
        Tenant::Namespace(_) => TENANT,
        Tenant::Cluster => Charge { policies: usize::MAX, ..TENANT },
    }
}

fn namespace(tenant: &Tenant) -> Option<Arc<str>> {
    match tenant {
        Tenant::Namespace(name) => Some(name.clone()),
        Tenant::Cluster => None,
    }
}

#[cfg(test)]
mod tests;
