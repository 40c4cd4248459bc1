//! The output of the compiler: sets, chains and the chains of each pod, in the form that nftables
//! has and without its syntax.
//!
//! ```text
//!  device of a pod ─┬─ from the pod ─► egress entry chain ─┐    jump ─► Admin tier chain
//!                   └─ to the pod ───► ingress entry chain ─┴─► jump ─► chain of each NetworkPolicy
//!                                                               drop, or jump ─► Baseline tier chain
//! ```
//!
//! - An entry chain is common to all pods of the node that the same policies select.
//! - A packet that no rule of an entry chain drops or accepts is accepted.
//! - Accept ends one direction only. The kernel evaluates egress and ingress in two base chains.
//! - Before its entry chain a packet meets the [exemptions](Exemption) of its direction.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

pub use trunkline_datapath::plan::policy::{ChainId, Element, PortMatch, PortNumbers, SetId, Verdict};

use trunkline_api::service::Protocol;

use super::group::PodGroup;
use super::input::{Direction, ObjectKey, Tier};

/// The identity of a set. Rules with equal peers or ports share a set. A rule has at most one set of
/// each variant: the kernel searches sets by name, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetKey {
    /// The addresses of the pods that are in one of these groups. The groups are sorted, and no two
    /// are equal.
    Pods(Box<[PodGroup]>),
    /// The addresses of blocks, as ranges that do not overlap or touch.
    Blocks(BTreeSet<Element>),
    /// Address, protocol and port of each port with one of these names.
    NamedPorts {
        /// The names of ports.
        names: BTreeSet<PortName>,
        /// The pods.
        scope: Scope,
    },
    /// Port numbers, as ranges that do not overlap or touch.
    PortNumbers(BTreeSet<Element>),
}

/// The name of a port, and its protocol. None: every protocol.
pub type PortName = (Arc<str>, Option<Protocol>);

impl SetKey {
    /// The elements of a set that follow from its key. None: the pods decide.
    pub fn constant_elements(&self) -> Option<&BTreeSet<Element>> {
        match self {
            SetKey::Blocks(ranges) | SetKey::PortNumbers(ranges) => Some(ranges),
            SetKey::Pods(_) | SetKey::NamedPorts { .. } => None,
        }
    }
}

/// The pods of a set of named ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// The pods of this node: for ingress.
    Node,
    /// All pods: for egress.
    Cluster,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Scope; 2] = [Scope::Node, Scope::Cluster];
}

/// A set. The kernel has one of addresses for each IP family, and one of port numbers for both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressSet {
    /// The identity of the set, for explanations.
    pub key: Arc<SetKey>,
    /// The elements of both IP families.
    pub elements: BTreeSet<Element>,
}

/// The identity of a chain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainKey {
    /// The rules of a NetworkPolicy in one direction.
    Policy {
        /// The direction.
        direction: Direction,
        /// The NetworkPolicy.
        policy: ObjectKey,
    },
    /// The rules of several ClusterNetworkPolicies of a tier in one direction.
    Tier {
        /// The direction.
        direction: Direction,
        /// The tier.
        tier: Tier,
        /// The names of the policies in the order of evaluation.
        policies: Vec<Arc<str>>,
        /// Whether the chain reports packets instead of dropping them.
        audit: bool,
    },
    /// The first chain of a pod in one direction.
    Entry {
        /// The direction.
        direction: Direction,
        /// The policies that select the pod.
        policies: AppliedPolicies,
        /// Whether the chain reports packets instead of dropping them.
        audit: bool,
    },
}

impl ChainKey {
    /// The direction of the packets.
    pub fn direction(&self) -> Direction {
        match self {
            ChainKey::Policy { direction, .. }
            | ChainKey::Tier { direction, .. }
            | ChainKey::Entry { direction, .. } => *direction,
        }
    }
}

/// The policies that apply to a pod in one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppliedPolicies {
    /// Policies of the Admin tier in the order of evaluation.
    pub admin: Vec<Arc<str>>,
    /// NetworkPolicies. With at least one, the pod is isolated.
    pub network: Vec<ObjectKey>,
    /// Policies of the Baseline tier in the order of evaluation. Empty for an isolated pod.
    pub baseline: Vec<Arc<str>>,
    /// Whether the policies may select the pod, because its labels or those of its Namespace are not
    /// known. Then no packet passes.
    pub unknown: bool,
}

impl AppliedPolicies {
    /// Whether no policy applies.
    pub fn is_empty(&self) -> bool {
        self.admin.is_empty() && self.network.is_empty() && self.baseline.is_empty()
    }
}

/// A chain: its rules are evaluated in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The identity of the chain.
    pub key: ChainKey,
    /// The rules.
    pub rules: Vec<Rule>,
}

impl Chain {
    /// Whether no rule jumps to the chain: it has no rule, and it is not the first one of a pod.
    pub(super) fn is_unused(&self) -> bool {
        self.rules.is_empty() && !matches!(self.key, ChainKey::Entry { .. })
    }
}

/// A rule of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The packet's other end is in this set: its source for ingress, its destination for egress.
    /// None: every packet.
    pub peers: Option<SetId>,
    /// The protocol and port of the packet.
    pub ports: PortMatch,
    /// The verdict for packets that match both.
    pub verdict: Verdict,
    /// The reason for the rule, for counters and explanations.
    pub origin: Origin,
    /// Whether the rule reports packets that it would drop, because of the Namespace's mode.
    pub audit: bool,
}

impl Rule {
    /// The sets of the rule.
    pub fn sets(&self) -> impl Iterator<Item = SetId> {
        self.peers.into_iter().chain(self.ports.set())
    }
}

/// The reason for a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A rule of a NetworkPolicy.
    Network {
        /// The policy.
        policy: ObjectKey,
        /// The position in `ingress` or `egress`, from 0.
        rule: usize,
    },
    /// A rule of a ClusterNetworkPolicy.
    Cluster {
        /// The policy's name.
        policy: Arc<str>,
        /// The position in `ingress` or `egress`, from 0.
        rule: usize,
    },
    /// NetworkPolicies isolate the pod, and none allows the packet.
    Isolation,
    /// The structure of the chains: a jump.
    Structure,
}

/// The entry chains of a pod. None: no policy applies in this direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodChains {
    /// For packets to the pod.
    pub ingress: Option<ChainId>,
    /// For packets from the pod.
    pub egress: Option<ChainId>,
}

impl PodChains {
    /// The entry chain of a direction.
    pub fn of(&self, direction: Direction) -> Option<ChainId> {
        match direction {
            Direction::Ingress => self.ingress,
            Direction::Egress => self.egress,
        }
    }
}

/// Packets that meet no policy. They are accepted before the entry chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exemption {
    /// The packet belongs to a connection that policies allowed, or is an error about one
    /// (connection tracking: established, related).
    Established,
    /// The source is an address of this node: probes of the kubelet, and pods with the node's
    /// network. For ingress only.
    FromNode,
    /// Source and destination are the same pod, for example by a Service.
    SamePod,
}

/// The exemptions of a direction.
pub fn exemptions(direction: Direction) -> &'static [Exemption] {
    match direction {
        Direction::Ingress => &[Exemption::Established, Exemption::FromNode, Exemption::SamePod],
        Direction::Egress => &[Exemption::Established, Exemption::SamePod],
    }
}

/// All rules of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The sets that a rule uses.
    pub sets: BTreeMap<SetId, AddressSet>,
    /// The chains that a pod or another chain uses.
    pub chains: BTreeMap<ChainId, Arc<Chain>>,
    /// The pods of this node to which a policy applies.
    pub pods: BTreeMap<ObjectKey, PodChains>,
}

/// The difference between two states of the rules. The kernel applies it in one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RulesChange {
    /// Sets that are new, changed or removed.
    pub sets: BTreeMap<SetId, SetChange>,
    /// Chains with their new rules. None: the chain is removed.
    pub chains: BTreeMap<ChainId, Option<Arc<Chain>>>,
    /// Pods with their new entry chains. Without a chain: no policy applies any more.
    pub pods: BTreeMap<ObjectKey, PodChains>,
}

/// The change of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetChange {
    /// The set has these elements and no others. A set of this number may exist.
    Replaced(AddressSet),
    /// Elements that are new or gone.
    Changed {
        /// Elements that were not in the set.
        added: BTreeSet<Element>,
        /// Elements that were in the set.
        removed: BTreeSet<Element>,
    },
    /// No rule uses the set any more.
    Removed,
}

impl RulesChange {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.chains.is_empty() && self.pods.is_empty()
    }
}

impl Rules {
    /// Applies a change.
    pub fn apply(&mut self, change: RulesChange) {
        for (id, change) in change.sets {
            match change {
                SetChange::Replaced(set) => {
                    self.sets.insert(id, set);
                }
                SetChange::Changed { added, removed } => {
                    if let Some(set) = self.sets.get_mut(&id) {
                        set.elements.retain(|element| !removed.contains(element));
                        set.elements.extend(added);
                    }
                }
                SetChange::Removed => {
                    self.sets.remove(&id);
                }
            }
        }
        for (id, chain) in change.chains {
            match chain {
                Some(chain) => self.chains.insert(id, chain),
                None => self.chains.remove(&id),
            };
        }
        for (key, chains) in change.pods {
            if chains == PodChains::default() {
                self.pods.remove(&key);
            } else {
                self.pods.insert(key, chains);
            }
        }
    }
}

/// The number of a key: FNV-1a. Two keys with one number are possible, so the compiler compares
/// keys.
pub(super) fn number_of(key: &impl Hash) -> u64 {
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    key.hash(&mut hasher);
    hasher.finish()
}

struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
