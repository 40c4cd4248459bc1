//! One policy in one direction as rules, before its sets and chains have numbers.
//!
//! A rule of a policy becomes at most eight: the peers are at most two sets, and the ports at most
//! one condition for each protocol and one for all names. A rule that passes has four more: they drop
//! the packets of peers that it may match.

use std::collections::BTreeSet;
use std::sync::Arc;

use trunkline_api::resources::LabelSelector;
use trunkline_api::service::Protocol;

use super::blocks;
use super::group::{NamespaceMatch, PodGroup};
use super::input::{
    Action, ClusterPeer, ClusterPods, ClusterPolicy, ClusterPort, ClusterRule, ClusterSubject, Direction,
    IpBlock, NetworkPeer, NetworkPolicy, NetworkRule, PortSelector, Tier,
};
use super::labels::Selector;
use super::rules::{Element, Origin, PortName, Scope, SetKey, Verdict};

/// A rule with the keys of its sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Draft {
    pub(super) peers: Option<Arc<SetKey>>,
    pub(super) ports: PortDraft,
    pub(super) verdict: Verdict,
    pub(super) origin: Origin,
}

impl Draft {
    /// The keys of the rule's sets.
    pub(super) fn sets(&self) -> impl Iterator<Item = &Arc<SetKey>> {
        let ports = match &self.ports {
            PortDraft::Named(set) | PortDraft::Numbered { ports: NumbersDraft::Set(set), .. } => Some(set),
            PortDraft::Any | PortDraft::Numbered { .. } => None,
        };
        self.peers.iter().chain(ports)
    }
}

/// A condition on ports with the key of its set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PortDraft {
    Any,
    Numbered { protocol: Protocol, ports: NumbersDraft },
    Named(Arc<SetKey>),
}

/// A condition on port numbers with the key of its set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NumbersDraft {
    Every,
    Range(u16, u16),
    Set(Arc<SetKey>),
}

/// The pods to which a NetworkPolicy applies.
pub(super) fn network_subject(policy: &NetworkPolicy) -> PodGroup {
    PodGroup {
        namespaces: NamespaceMatch::Named(policy.key.namespace.clone()),
        pods: Selector::from(&policy.pod_selector),
        unknown: false,
        only_unknown: false,
    }
}

/// The pods to which a ClusterNetworkPolicy applies.
pub(super) fn cluster_subject(policy: &ClusterPolicy) -> Option<PodGroup> {
    match &policy.subject {
        ClusterSubject::Pods(pods) => Some(cluster_pods(pods, false)),
        ClusterSubject::Unknown => None,
    }
}

/// The rules of a NetworkPolicy: each allows packets.
pub(super) fn network_rules(policy: &NetworkPolicy, direction: Direction) -> Vec<Draft> {
    let drafts = policy.rules(direction).iter().enumerate().flat_map(|(index, rule)| {
        let origin = Origin::Network { policy: policy.key.clone(), rule: index };
        let peers = network_peers(policy, rule);
        product(&peers, &network_ports(rule, scope(direction)), Verdict::Accept, &origin)
    });
    drafts.collect()
}

/// The rules of a ClusterNetworkPolicy in the order of evaluation.
pub(super) fn cluster_rules(policy: &ClusterPolicy, direction: Direction) -> Vec<Draft> {
    let drafts = policy.rules(direction).iter().enumerate().flat_map(|(index, rule)| {
        let origin = Origin::Cluster { policy: policy.name.clone(), rule: index };
        if rule.is_unknown(direction) {
            return fail_closed(rule.action, origin);
        }
        let verdict = match rule.action {
            Action::Accept => Verdict::Accept,
            Action::Deny => Verdict::Drop,
            Action::Pass => Verdict::Return,
        };
        let ports = cluster_ports(rule, scope(direction));
        let mut drafts = product(&cluster_peers(rule), &ports, verdict, &origin);
        // A pod that may be a peer must not reach the rules that follow: one of them could accept it,
        // and then no NetworkPolicy would decide.
        if rule.action == Action::Pass && policy.tier == Tier::Admin {
            drafts.extend(product(&possible_peers(rule), &ports, Verdict::Drop, &origin));
        }
        drafts
    });
    drafts.collect()
}

fn fail_closed(action: Action, origin: Origin) -> Vec<Draft> {
    match action {
        Action::Accept => Vec::new(),
        Action::Deny | Action::Pass => {
            vec![Draft { peers: None, ports: PortDraft::Any, verdict: Verdict::Drop, origin }]
        }
    }
}

/// The selected pod is the destination of ingress, and any pod that of egress.
fn scope(direction: Direction) -> Scope {
    match direction {
        Direction::Ingress => Scope::Node,
        Direction::Egress => Scope::Cluster,
    }
}

/// One draft for each pair of a set of peers and a condition on ports.
fn product(
    peers: &[Option<Arc<SetKey>>],
    ports: &[PortDraft],
    verdict: Verdict,
    origin: &Origin,
) -> Vec<Draft> {
    let pairs = peers.iter().flat_map(|peers| ports.iter().map(move |ports| (peers, ports)));
    let draft = |(peers, ports): (&Option<Arc<SetKey>>, &PortDraft)| Draft {
        peers: peers.clone(),
        ports: ports.clone(),
        verdict,
        origin: origin.clone(),
    };
    pairs.map(draft).collect()
}

fn network_peers(policy: &NetworkPolicy, rule: &NetworkRule) -> Vec<Option<Arc<SetKey>>> {
    if rule.peers.is_empty() {
        return vec![None];
    }
    let selector =
        |selector: &Option<LabelSelector>| selector.as_ref().map(Selector::from).unwrap_or_default();
    let groups = rule.peers.iter().filter_map(|peer| match peer {
        NetworkPeer::Pods { namespaces, pods } => {
            let namespaces = match namespaces {
                Some(namespaces) => NamespaceMatch::Selected(Selector::from(namespaces)),
                None => NamespaceMatch::Named(policy.key.namespace.clone()),
            };
            Some(PodGroup { namespaces, pods: selector(pods), unknown: false, only_unknown: false })
        }
        NetworkPeer::Block(_) | NetworkPeer::Unknown => None,
    });
    let blocks = rule.peers.iter().filter_map(|peer| match peer {
        NetworkPeer::Block(block) => Some(block),
        NetworkPeer::Pods { .. } | NetworkPeer::Unknown => None,
    });
    peer_sets(groups, blocks)
}

fn cluster_peers(rule: &ClusterRule) -> Vec<Option<Arc<SetKey>>> {
    let groups = rule.peers.iter().filter_map(|peer| match peer {
        ClusterPeer::Pods(pods) => Some(cluster_pods(pods, rule.action == Action::Deny)),
        ClusterPeer::Networks(_) | ClusterPeer::Unknown => None,
    });
    let networks = rule.peers.iter().filter_map(|peer| match peer {
        ClusterPeer::Networks(networks) => Some(networks),
        ClusterPeer::Pods(_) | ClusterPeer::Unknown => None,
    });
    let blocks: Vec<IpBlock> =
        networks.flatten().map(|network| IpBlock { cidr: *network, except: Vec::new() }).collect();
    peer_sets(groups, blocks.iter())
}

/// The pods that may be peers of a rule, without those that certainly are. None has known labels.
fn possible_peers(rule: &ClusterRule) -> Vec<Option<Arc<SetKey>>> {
    let groups = rule.peers.iter().filter_map(|peer| match peer {
        ClusterPeer::Pods(pods) => {
            let group = PodGroup { only_unknown: true, ..cluster_pods(pods, true) };
            (!group.has_all_pods()).then_some(group)
        }
        ClusterPeer::Networks(_) | ClusterPeer::Unknown => None,
    });
    peer_sets(groups, std::iter::empty())
}

/// One set for all groups, and one for all blocks.
fn peer_sets<'a>(
    groups: impl Iterator<Item = PodGroup>,
    blocks: impl Iterator<Item = &'a IpBlock>,
) -> Vec<Option<Arc<SetKey>>> {
    let mut groups: Vec<PodGroup> = groups.collect();
    groups.sort_unstable();
    groups.dedup();
    let ranges = blocks::ranges(blocks);
    let pods = (!groups.is_empty()).then(|| SetKey::Pods(groups.into()));
    let blocks = (!ranges.is_empty()).then_some(SetKey::Blocks(ranges));
    pods.into_iter().chain(blocks).map(|key| Some(Arc::new(key))).collect()
}

fn cluster_pods(pods: &ClusterPods, unknown: bool) -> PodGroup {
    PodGroup {
        namespaces: NamespaceMatch::Selected(Selector::from(&pods.namespaces)),
        pods: Selector::from(&pods.pods),
        unknown,
        only_unknown: false,
    }
}

fn network_ports(rule: &NetworkRule, scope: Scope) -> Vec<PortDraft> {
    if rule.ports.is_empty() {
        return vec![PortDraft::Any];
    }
    let mut groups = PortGroups::default();
    for port in &rule.ports {
        match &port.port {
            PortSelector::Any => groups.add_range(port.protocol, ALL_PORTS),
            PortSelector::Range(first, last) => groups.add_range(port.protocol, (*first, *last)),
            PortSelector::Named(name) => groups.add_name(name, Some(port.protocol)),
            PortSelector::Invalid => {}
        }
    }
    groups.into_drafts(scope)
}

fn cluster_ports(rule: &ClusterRule, scope: Scope) -> Vec<PortDraft> {
    if rule.ports.is_empty() {
        return vec![PortDraft::Any];
    }
    let mut groups = PortGroups::default();
    for port in &rule.ports {
        match port {
            ClusterPort::Numbered { protocol, range } => {
                groups.add_range(*protocol, range.unwrap_or(ALL_PORTS));
            }
            ClusterPort::Named(name) => groups.add_name(name, None),
            ClusterPort::Unknown => {}
        }
    }
    groups.into_drafts(scope)
}

const ALL_PORTS: (u16, u16) = (0, u16::MAX);
const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// The ports of one rule: one group for each protocol, and one for all names.
#[derive(Default)]
struct PortGroups {
    ranges: Vec<(Protocol, (u16, u16))>,
    names: BTreeSet<PortName>,
}

impl PortGroups {
    /// A range whose last port is below its first matches nothing.
    fn add_range(&mut self, protocol: Protocol, range: (u16, u16)) {
        if range.0 <= range.1 {
            self.ranges.push((protocol, range));
        }
    }

    fn add_name(&mut self, name: &Arc<str>, protocol: Option<Protocol>) {
        self.names.insert((name.clone(), protocol));
    }

    fn into_drafts(mut self, scope: Scope) -> Vec<PortDraft> {
        self.ranges.sort_unstable();
        let numbered = PROTOCOLS.into_iter().filter_map(|protocol| {
            let of_protocol = self.ranges.iter().filter(|(other, _)| *other == protocol);
            let ports = numbers(of_protocol.map(|(_, range)| *range))?;
            Some(PortDraft::Numbered { protocol, ports })
        });
        let mut drafts: Vec<PortDraft> = numbered.collect();
        if !self.names.is_empty() {
            drafts.push(PortDraft::Named(Arc::new(SetKey::NamedPorts { names: self.names, scope })));
        }
        drafts
    }
}

/// The condition for sorted ranges; none without a range.
fn numbers(sorted: impl Iterator<Item = (u16, u16)>) -> Option<NumbersDraft> {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for (first, last) in sorted {
        match ranges.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => ranges.push((first, last)),
        }
    }
    match ranges[..] {
        [] => None,
        [ALL_PORTS] => Some(NumbersDraft::Every),
        [(first, last)] => Some(NumbersDraft::Range(first, last)),
        _ => {
            let ranges = ranges.into_iter().map(|(first, last)| Element::PortRange(first, last));
            Some(NumbersDraft::Set(Arc::new(SetKey::PortNumbers(ranges.collect()))))
        }
    }
}
