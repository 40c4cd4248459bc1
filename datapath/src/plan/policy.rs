//! The rules of network policies, in the form that nftables has and without its syntax.
//!
//! ```text
//!  link of a pod ─┬─ from the pod ─► entry chain ─┐   jump ─► further chains
//!                 └─ to the pod ───► entry chain ─┴─► accept, drop; the end of the entry chain accepts
//! ```
//!
//! The agent computes them, and [`crate::kernel`] keeps the table `inet trunkline-policy` equal to
//! them. A set or chain has a number that depends on its content's identity, so the next run of the
//! agent finds the objects of this run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

pub use trunkline_api::network_policy::Direction;
use trunkline_api::service::Protocol;

/// Declares a number that is shown as 16 hexadecimal digits.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl From<u64> for $name {
            fn from(number: u64) -> $name {
                $name(number)
            }
        }

        impl From<$name> for u64 {
            fn from(number: $name) -> u64 {
                number.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }
    };
}

number!(
    /// The number of a set.
    SetId
);
number!(
    /// The number of a chain.
    ChainId
);
number!(
    /// The number of a counter. Several rules can have one counter.
    CounterId
);

/// A part of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyPart {
    /// A set, or its elements.
    Set(SetId),
    /// A chain, or one of its rules.
    Chain(ChainId),
}

/// The table of all policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyTable {
    /// The sets that a rule uses.
    pub sets: BTreeMap<SetId, PolicySet>,
    /// The chains that a link or another chain uses.
    pub chains: BTreeMap<ChainId, Arc<PolicyChain>>,
    /// The links of pods with a policy, by ifindex.
    pub links: BTreeMap<u32, LinkPolicies>,
    /// The addresses of all pods' links, by ifindex, if a pod has a policy. Addresses alone need no
    /// table.
    pub addresses: BTreeMap<u32, BTreeSet<IpAddr>>,
}

impl PolicyTable {
    /// Whether no policy applies to a pod of this node.
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.chains.is_empty() && self.links.is_empty()
    }
}

/// The difference between two states of the table. The kernel applies it in one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyChange {
    /// Sets that are new, changed or removed.
    pub sets: BTreeMap<SetId, PolicySetChange>,
    /// Chains with their new rules. None: the chain is removed.
    pub chains: BTreeMap<ChainId, Option<Arc<PolicyChain>>>,
    /// Links with their new chains. None: no policy applies any more.
    pub links: BTreeMap<u32, Option<LinkPolicies>>,
    /// The new addresses of links. None: the link is gone, or no pod has a policy any more.
    pub addresses: BTreeMap<u32, Option<BTreeSet<IpAddr>>>,
}

impl PolicyChange {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        let PolicyChange { sets, chains, links, addresses } = self;
        sets.is_empty() && chains.is_empty() && links.is_empty() && addresses.is_empty()
    }
}

/// A set. The kernel has one of addresses for each IP family, and one of port numbers for both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySet {
    /// The kind of all elements.
    pub kind: PolicySetKind,
    /// The elements of both IP families.
    pub elements: BTreeSet<Element>,
}

/// The kind of the elements of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicySetKind {
    /// [`Element::Address`].
    Addresses,
    /// [`Element::Range`]. The ranges do not overlap or touch, and such a set never changes.
    Ranges,
    /// [`Element::Port`].
    Ports,
    /// [`Element::PortRange`]. The ranges do not overlap or touch, and such a set never changes.
    PortRanges,
}

impl PolicySetKind {
    /// Whether the elements of a set never change. Sets of the other kinds have elements of pods.
    pub fn is_constant(self) -> bool {
        match self {
            PolicySetKind::Ranges | PolicySetKind::PortRanges => true,
            PolicySetKind::Addresses | PolicySetKind::Ports => false,
        }
    }
}

/// An element of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Element {
    /// An address, in a set of pods.
    Address(IpAddr),
    /// The first and the last address of one IP family, in a set of blocks.
    Range(IpAddr, IpAddr),
    /// Destination address, protocol and destination port, in a set of named ports.
    Port(IpAddr, Protocol, u16),
    /// The first and the last port, in a set of port numbers.
    PortRange(u16, u16),
}

impl Element {
    /// The address, or the first address of a range. None: the element has port numbers only.
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Element::Address(address) | Element::Range(address, _) | Element::Port(address, _, _) => {
                Some(*address)
            }
            Element::PortRange(_, _) => None,
        }
    }
}

/// The change of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicySetChange {
    /// The set has these elements and no others. A set of this number may exist.
    Replaced(PolicySet),
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

/// A chain: its rules are evaluated in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyChain {
    /// The direction. For [`Direction::Ingress`] the peer is the packet's source, for
    /// [`Direction::Egress`] its destination.
    pub direction: Direction,
    /// The rules.
    pub rules: Vec<PolicyRule>,
}

/// A rule of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRule {
    /// The peer's address is in this set. None: every packet.
    pub peers: Option<SetId>,
    /// The protocol and port of the packet.
    pub ports: PortMatch,
    /// The verdict for packets that match both.
    pub verdict: Verdict,
    /// The counter of these packets.
    pub counter: Option<CounterId>,
    /// Whether some of these packets are reported ([`crate::nft::policy_log`]).
    pub logged: bool,
}

/// A condition on protocol and destination port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortMatch {
    /// Every protocol, also ICMP.
    Any,
    /// A port of a protocol.
    Numbered {
        /// The protocol.
        protocol: Protocol,
        /// The ports.
        ports: PortNumbers,
    },
    /// Destination address, protocol and port are an element of this set of named ports.
    Named(SetId),
}

impl PortMatch {
    /// The set of the condition, if it has one.
    pub fn set(&self) -> Option<SetId> {
        match self {
            PortMatch::Named(set) | PortMatch::Numbered { ports: PortNumbers::Set(set), .. } => Some(*set),
            PortMatch::Any | PortMatch::Numbered { .. } => None,
        }
    }
}

/// A condition on the number of the destination port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortNumbers {
    /// Every port.
    Every,
    /// The first and the last port of one range.
    Range(u16, u16),
    /// The port is in a range of this set.
    Set(SetId),
}

/// The verdict of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet passes this direction.
    Accept,
    /// The packet is dropped.
    Drop,
    /// Continue after the jump to this chain: the Pass of a tier.
    Return,
    /// Evaluate another chain. If it ends, continue with the next rule.
    Jump(ChainId),
}

/// The policies of one link of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkPolicies {
    /// The entry chain for packets to the pod.
    pub ingress: Option<ChainId>,
    /// The entry chain for packets from the pod.
    pub egress: Option<ChainId>,
    /// All links of the pod, this one included. Packets between them are accepted: a pod reaches
    /// itself always.
    pub siblings: BTreeSet<u32>,
}
