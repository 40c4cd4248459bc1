//! The budget of the policies of this node in the kernel: rules, jumps, sets and elements of sets.
//! The kernel searches sets by name, one after the other, so their number has the lowest bound.
//!
//! A policy above its own bound is refused. If the policies of a Namespace are above their bound
//! together, the largest are refused, until the others fit. If the NetworkPolicies of the node are,
//! the Namespace with the most pays: the policies of one tenant cannot push out those of another.
//! The ClusterNetworkPolicies count as one tenant with a share of its own: they never pay for those
//! of Namespaces.
//!
//! A set of named ports has the pods of all tenants. A pod can have several ports of one name, up to
//! [`PORTS_OF_NAME`](super::input::PORTS_OF_NAME), so this many elements of such a set are charged as
//! one: the pods of others cannot push a policy above its bound by further ports.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use trunkline_api::network_policy::Excess;

use super::kernel::PolicyRef;

/// The cost of policies in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// Rules, as the compiler counts them: the kernel has up to four for each. A policy without a
    /// rule in a direction counts one.
    pub(super) rules: usize,
    /// Jumps to the chains of policies, from the entry chains of pods.
    pub(super) jumps: usize,
    /// Sets. The kernel has two for each set of addresses.
    pub(super) sets: usize,
    /// Elements of the sets: one for each address of a pod, port or block.
    pub(super) elements: usize,
}

/// The bound of one policy.
pub(super) const POLICY: Cost = Cost { rules: 4000, jumps: 4000, sets: 256, elements: 100_000 };
/// The bound of the policies of one Namespace, and of all ClusterNetworkPolicies.
pub(super) const TENANT: Cost = Cost { rules: 8000, jumps: 64_000, sets: 512, elements: 200_000 };
/// The bound of all NetworkPolicies of a node.
pub(super) const NODE: Cost = Cost { rules: 32_000, jumps: 256_000, sets: 1280, elements: 1_000_000 };

impl Cost {
    /// The bound in a cluster with this number of pods' addresses. In a large cluster a set of all
    /// pods must fit.
    pub(super) fn in_cluster_of(self, addresses: usize) -> Cost {
        let sets_of_all = self.elements / (POLICY.elements / 2);
        Cost { elements: self.elements.max(sets_of_all * addresses), ..self }
    }

    fn get(self, figure: Figure) -> usize {
        match figure {
            Figure::Rules => self.rules,
            Figure::Jumps => self.jumps,
            Figure::Sets => self.sets,
            Figure::Elements => self.elements,
        }
    }

    /// The figure above its bound.
    fn excess(self, bound: Cost, figure: Figure) -> Option<Excess> {
        let (value, bound) = (self.get(figure), bound.get(figure));
        (value > bound).then_some(Excess { figure: value, bound, unit: figure.unit() })
    }
}

/// A figure of a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    Rules,
    /// It depends on the pods of this node.
    Jumps,
    Sets,
    /// It depends on pods.
    Elements,
}

impl Figure {
    const ALL: [Figure; 4] = [Figure::Rules, Figure::Jumps, Figure::Sets, Figure::Elements];

    fn unit(self) -> &'static str {
        match self {
            Figure::Rules => "rules",
            Figure::Jumps => "jumps from chains of pods",
            Figure::Sets => "sets",
            Figure::Elements => "elements of sets",
        }
    }
}

/// A group of policies with a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// One policy.
    Policy,
    /// The policies of a Namespace, or all ClusterNetworkPolicies.
    Tenant,
    /// All NetworkPolicies of the node.
    Node,
}

/// Why a policy is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The policies of this share are above their bound.
    Budget { share: Share, figure: Figure, excess: Excess },
    /// The kernel refused a chain or set of the policy.
    Kernel(String),
}

impl Refusal {
    /// Whether both have the same reason, whatever the figure is.
    pub(super) fn is_same(&self, other: &Refusal) -> bool {
        let key = |refusal: &Refusal| match refusal {
            Refusal::Budget { share, figure, .. } => Some((*share, *figure)),
            Refusal::Kernel(_) => None,
        };
        key(self).is_some() && key(self) == key(other)
    }
}

/// The fault, and the fix.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const FIX: &str = "use fewer policies, peers or ports";
        match self {
            Refusal::Budget { share: Share::Policy, excess, .. } => {
                write!(f, "over the budget: {excess}: split the policy, or use fewer peers and ports")
            }
            Refusal::Budget { share: Share::Tenant, excess, .. } => {
                write!(
                    f,
                    "over the budget of its Namespace, or of all ClusterNetworkPolicies: {excess}: {FIX}"
                )
            }
            Refusal::Budget { share: Share::Node, excess, .. } => {
                write!(f, "over the budget of the node, and its Namespace has the most: {excess}: {FIX}")
            }
            Refusal::Kernel(reason) => {
                write!(f, "refused by the kernel: {reason}: change the policy, or correct the cause")
            }
        }
    }
}

/// The policies that pay together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Tenant {
    Namespace(Arc<str>),
    Cluster,
}

impl From<&PolicyRef> for Tenant {
    fn from(policy: &PolicyRef) -> Tenant {
        match policy {
            PolicyRef::Network(key) => Tenant::Namespace(key.namespace.clone()),
            PolicyRef::Cluster(_) => Tenant::Cluster,
        }
    }
}

/// The number of elements of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SetSize {
    pub(super) elements: usize,
    /// The number that a policy and a tenant pay for.
    pub(super) charged: usize,
}

/// The rules, jumps and sets of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures<S> {
    pub(super) rules: usize,
    pub(super) jumps: usize,
    /// Each set once.
    pub(super) sets: Box<[S]>,
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Evaluation {
    /// The policies that are refused, with the reason.
    pub(super) refused: BTreeMap<PolicyRef, Refusal>,
    /// So many elements can be added anywhere before a share can be above its bound.
    pub(super) headroom: usize,
}

/// The cost of some policies. Common sets count once.
#[derive(Debug)]
struct Usage<'a, S> {
    cost: Cost,
    /// The elements that policies and tenants pay for.
    charged: usize,
    users: HashMap<&'a S, usize>,
}

impl<'a, S: Hash + Eq> Usage<'a, S> {
    fn new() -> Usage<'a, S> {
        Usage { cost: Cost::default(), charged: 0, users: HashMap::new() }
    }

    fn add(&mut self, figures: &'a Figures<S>, size: &impl Fn(&S) -> SetSize) {
        self.cost.rules += figures.rules;
        self.cost.jumps += figures.jumps;
        for set in &figures.sets {
            let users = self.users.entry(set).or_default();
            *users += 1;
            if *users == 1 {
                let SetSize { elements, charged } = size(set);
                self.cost.sets += 1;
                self.cost.elements += elements;
                self.charged += charged;
            }
        }
    }

    fn remove(&mut self, figures: &'a Figures<S>, size: &impl Fn(&S) -> SetSize) {
        self.cost.rules -= figures.rules;
        self.cost.jumps -= figures.jumps;
        for set in &figures.sets {
            if let Some(users) = self.users.get_mut(set) {
                *users -= 1;
                if *users == 0 {
                    let SetSize { elements, charged } = size(set);
                    self.users.remove(set);
                    self.cost.sets -= 1;
                    self.cost.elements -= elements;
                    self.charged -= charged;
                }
            }
        }
    }

    /// The cost that a policy or a tenant pays for.
    fn charge(&self) -> Cost {
        Cost { elements: self.charged, ..self.cost }
    }
}

/// A policy with its figures.
type Row<'a, S> = (&'a PolicyRef, &'a Figures<S>);

/// The policies of a tenant that are not refused, the largest last.
struct Account<'a, S> {
    usage: Usage<'a, S>,
    policies: Vec<(Row<'a, S>, Cost)>,
}

impl<'a, S: Hash + Eq> Account<'a, S> {
    fn sort_by(&mut self, figure: Figure) {
        let size = |cost: &Cost| cost.get(figure);
        self.policies.sort_by(|((a, _), of_a), ((b, _), of_b)| (size(of_a), *b).cmp(&(size(of_b), *a)));
    }

    fn pop(&mut self, size: &impl Fn(&S) -> SetSize) -> Option<Row<'a, S>> {
        let ((policy, figures), _) = self.policies.pop()?;
        self.usage.remove(figures, size);
        Some((policy, figures))
    }
}

/// Compares policies with the budget. `size`: the size of a set, 0 for one that is not there.
/// `addresses`: the number of all pods' addresses.
pub(super) fn evaluate<'a, S: Hash + Eq + 'a>(
    policies: impl Iterator<Item = Row<'a, S>>,
    size: impl Fn(&S) -> SetSize,
    addresses: usize,
) -> Evaluation {
    let [policy_bound, tenant_bound, node_bound] =
        [POLICY, TENANT, NODE].map(|bound| bound.in_cluster_of(addresses));
    let mut evaluation = Evaluation { headroom: usize::MAX, ..Evaluation::default() };
    let mut accounts: BTreeMap<Tenant, Account<'a, S>> = BTreeMap::new();
    // The NetworkPolicies.
    let mut node = Usage::new();
    for (policy, figures) in policies {
        let mut usage = Usage::new();
        usage.add(figures, &size);
        let excess = |figure: &Figure| Some((*figure, usage.charge().excess(policy_bound, *figure)?));
        if let Some((figure, excess)) = Figure::ALL.iter().find_map(excess) {
            evaluation.refuse(policy, Share::Policy, figure, excess);
            continue;
        }
        evaluation.note(usage.charge(), policy_bound);
        let tenant = Tenant::from(policy);
        if tenant != Tenant::Cluster {
            node.add(figures, &size);
        }
        let account =
            accounts.entry(tenant).or_insert_with(|| Account { usage: Usage::new(), policies: Vec::new() });
        account.usage.add(figures, &size);
        account.policies.push(((policy, figures), usage.cost));
    }
    for figure in Figure::ALL {
        for (tenant, account) in &mut accounts {
            if account.usage.charge().excess(tenant_bound, figure).is_none() {
                continue;
            }
            account.sort_by(figure);
            while let Some(excess) = account.usage.charge().excess(tenant_bound, figure) {
                let Some((policy, figures)) = account.pop(&size) else { break };
                if *tenant != Tenant::Cluster {
                    node.remove(figures, &size);
                }
                evaluation.refuse(policy, Share::Tenant, figure, excess);
            }
        }
        if node.cost.excess(node_bound, figure).is_some() {
            accounts.values_mut().for_each(|account| account.sort_by(figure));
        }
        while let Some(excess) = node.cost.excess(node_bound, figure) {
            let of_namespaces = accounts.iter_mut().filter(|(tenant, _)| **tenant != Tenant::Cluster);
            let largest = of_namespaces.max_by_key(|(_, account)| account.usage.cost.get(figure));
            let Some((policy, figures)) = largest.and_then(|(_, account)| account.pop(&size)) else { break };
            node.remove(figures, &size);
            evaluation.refuse(policy, Share::Node, figure, excess);
        }
    }
    accounts.values().for_each(|account| evaluation.note(account.usage.charge(), tenant_bound));
    evaluation.note(node.cost, node_bound);
    evaluation
}

impl Evaluation {
    fn refuse(&mut self, policy: &PolicyRef, share: Share, figure: Figure, excess: Excess) {
        self.refused.insert(policy.clone(), Refusal::Budget { share, figure, excess });
    }

    fn note(&mut self, cost: Cost, bound: Cost) {
        self.headroom = self.headroom.min(bound.elements.saturating_sub(cost.elements));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netpolicy::input::ObjectKey;

    fn policy(namespace: &str, name: usize) -> PolicyRef {
        PolicyRef::Network(ObjectKey::new(namespace, &format!("policy-{name:04}")))
    }

    /// Sets from this number on.
    fn figures(rules: usize, sets: std::ops::Range<u64>) -> Figures<u64> {
        Figures { rules, jumps: 0, sets: sets.collect() }
    }

    fn with_size(elements: impl Fn(u64) -> usize) -> impl Fn(&u64) -> SetSize {
        move |set| SetSize { elements: elements(*set), charged: elements(*set) }
    }

    fn refused(rows: &[(PolicyRef, Figures<u64>)], elements: impl Fn(u64) -> usize) -> Vec<(String, Share)> {
        let rows = rows.iter().map(|(policy, figures)| (policy, figures));
        let evaluation = evaluate(rows, with_size(elements), 1000);
        let share = |refusal: &Refusal| match refusal {
            Refusal::Budget { share, .. } => *share,
            Refusal::Kernel(reason) => panic!("{reason}"),
        };
        evaluation.refused.iter().map(|(policy, refusal)| (policy.to_string(), share(refusal))).collect()
    }

    #[test]
    fn a_policy_at_its_bound_is_allowed() {
        let at = |rules, sets| refused(&[(policy("a", 1), figures(rules, 0..sets))], |_| 0).len();
        assert_eq!((at(4000, 256), at(4001, 1), at(1, 257)), (0, 1, 1));
        let with = |elements| refused(&[(policy("a", 1), figures(1, 0..2))], |_| elements).len();
        assert_eq!((with(50_000), with(50_001)), (0, 1));
    }

    #[test]
    fn the_largest_policies_of_a_namespace_are_refused() {
        let mut rows: Vec<_> = (0..500).map(|n| (policy("a", n as usize), figures(1, n..n + 1))).collect();
        rows.push((policy("a", 900), figures(1, 1000..1100)));
        rows.push((policy("a", 901), figures(1, 1100..1110)));
        rows.push((policy("b", 902), figures(1, 1200..1400)));
        assert_eq!(refused(&rows, |_| 0), [("NetworkPolicy a/policy-0900".to_owned(), Share::Tenant)]);
        // Common sets count once.
        let same: Vec<_> = (0..600).map(|n| (policy("a", n), figures(1, 0..1))).collect();
        assert_eq!(refused(&same, |_| 0), []);
    }

    #[test]
    fn the_largest_tenant_pays_for_a_full_node() {
        // Three Namespaces with 456 sets each, and 300 with one.
        let large = (0..3).flat_map(|space| {
            (0..19).map(move |n| {
                let first = 10_000 * (space as u64 + 1) + 24 * n as u64;
                (policy(&format!("large-{space}"), n), figures(1, first..first + 24))
            })
        });
        let small = (0..300u64).map(|n| (policy(&format!("small-{n}"), 0), figures(1, n..n + 1)));
        let rows: Vec<_> = large.chain(small).collect();
        let refused = refused(&rows, |_| 0);
        assert!(!refused.is_empty() && refused.len() < 20, "{refused:?}");
        assert!(refused.iter().all(|(name, share)| name.contains(" large-") && *share == Share::Node));
    }

    #[test]
    fn jumps_are_bounded() {
        let with = |jumps| Figures { jumps, ..figures(1, 0..0) };
        let rows: Vec<_> = (0..17).map(|name| (policy("a", name), with(4000))).collect();
        assert_eq!(refused(&rows[..16], |_| 0), []);
        assert_eq!(refused(&rows, |_| 0), [("NetworkPolicy a/policy-0000".to_owned(), Share::Tenant)]);
        assert_eq!(refused(&[(policy("a", 1), with(4001))], |_| 0).len(), 1);
    }

    #[test]
    fn cluster_policies_never_pay_for_a_full_node() {
        // One policy more than the bound.
        let tenants = (0..4).flat_map(|space| {
            (0..if space == 0 { 17 } else { 16 }).map(move |n| {
                let first = 10_000 * (space as u64 + 1) + 20 * n as u64;
                (policy(&format!("n-{space}"), n), figures(1, first..first + 20))
            })
        });
        // The largest tenant of all.
        let cluster = (0..2u64)
            .map(|n| (PolicyRef::Cluster(format!("c{n}").into()), figures(1, 256 * n..256 * (n + 1))));
        let rows: Vec<_> = tenants.chain(cluster).collect();
        let refused = refused(&rows, |_| 0);
        assert_eq!(refused.len(), 1);
        assert!(refused.iter().all(|(name, _)| name.starts_with("NetworkPolicy ")), "{refused:?}");
    }

    #[test]
    fn headroom_is_the_distance_to_the_nearest_bound() {
        let rows = [(policy("a", 1), figures(1, 0..1)), (policy("b", 2), figures(1, 1..2))];
        let of = with_size(|set| if set == 0 { 99_000 } else { 10 });
        let evaluation = evaluate(rows.iter().map(|(policy, figures)| (policy, figures)), of, 1000);
        assert_eq!((evaluation.refused.len(), evaluation.headroom), (0, 1000));
        // In a large cluster a set of all pods fits.
        let all =
            |addresses| evaluate(rows[..1].iter().map(|(a, b)| (a, b)), with_size(|_| 180_000), addresses);
        assert_eq!((all(1000).refused.len(), all(180_000).refused.len()), (1, 0));
        let text = all(1000).refused[&rows[0].0].to_string();
        assert_eq!(
            text,
            "over the budget: 180,000 elements of sets, at most 100,000: \
             split the policy, or use fewer peers and ports"
        );
    }
}
