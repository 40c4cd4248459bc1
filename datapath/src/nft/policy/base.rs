//! The base chains: the rules before those of the policies.
//!
//! **Hooks.** kube-proxy translates destinations at prerouting, and sources at postrouting. So at
//! forward both addresses of a packet between pods are those of the pods.
//!
//! **Priorities.** The chains come before the guard's chain at input (-10) and before the chains of
//! firewalls and of kube-proxy in mode iptables (0). So an accept of these does not matter, and the
//! counters have each packet that a policy denies. kube-proxy in mode nftables has chains at
//! -110, which reject packets to Services without endpoints before a policy sees them.
//!
//! **Two chains at forward.** An accept ends one base chain. A packet from a pod to another pod of
//! the node must pass the egress policies of one and the ingress policies of the other.
//!
//! **Related packets.** An ICMP error from outside of the pods passes, because routers of the path
//! send it. The guard of another node drops such errors of its pods. From a pod's link it passes if the pod is an end of the connection; otherwise the
//! policies decide. So a pod cannot disturb connections between others.
//!
//! **Packets that return.** With `hairpin`, a packet to a pod of this node leaves by an uplink and
//! returns. The first crossing confirms its connection, and then replies pass the policies. So the
//! ingress policies of its destination decide already at the first crossing, by its address.
//!
//! **Output.** Packets of the node's processes to its pods are exempt: their source is an address of
//! the node. Other packets at this hook are those that IPVS sends to the backend of a Service.

use super::addresses::{own, to_addresses};
use super::expressions::{
    Comparison, ConnectionDirection, ConnectionState, Expressions, Header, Meta, REGISTER,
};
use super::objects::{SAME_POD, map_name};
use super::rules::ChainRules;
use crate::family::IpFamily;
use crate::netlink::objects::GROUP;
use crate::plan::policy::{Direction, Verdict};

// NF_INET_LOCAL_IN, NF_INET_FORWARD, NF_INET_LOCAL_OUT
const INPUT: u32 = 1;
const FORWARD: u32 = 2;
const OUTPUT: u32 = 3;

/// The chain for related packets.
pub(super) const RELATED: &str = "related";

/// A base chain. Its type is `filter` and its policy is accept.
#[derive(Debug)]
pub(super) struct BaseChain {
    pub(super) name: &'static str,
    /// `NF_INET_…`.
    pub(super) hook: u32,
    pub(super) priority: i32,
}

/// All base chains.
pub(super) const BASE_CHAINS: [BaseChain; 4] = [
    BaseChain { name: "egress", hook: FORWARD, priority: -20 },
    BaseChain { name: "ingress", hook: FORWARD, priority: -19 },
    BaseChain { name: "node", hook: INPUT, priority: -20 },
    BaseChain { name: "output", hook: OUTPUT, priority: -20 },
];

impl BaseChain {
    /// The rules of the chain.
    pub(super) fn rules(&self) -> ChainRules {
        let mut established = Expressions::default();
        established.state(ConnectionState::Established);
        established.verdict(Verdict::Accept);
        let mut related = Expressions::default();
        related.state(ConnectionState::Related);
        related.jump(RELATED);
        let mut rules = vec![established, related];
        if self.hook == FORWARD {
            let mut same_pod = Expressions::default();
            same_pod.meta(Meta::InputLink, REGISTER);
            same_pod.meta(Meta::OutputLink, REGISTER + 1);
            same_pod.lookup(SAME_POD);
            same_pod.verdict(Verdict::Accept);
            rules.push(same_pod);
        } else {
            // Neighbor Solicitations and Advertisements (RFC 4861 §4.3, §4.4): connection tracking
            // does not track them.
            rules.extend([135, 136].map(accept_icmpv6));
        }
        if self.hook == OUTPUT {
            let mut from_node = Expressions::default();
            from_node.source_is_local();
            from_node.verdict(Verdict::Accept);
            rules.push(from_node);
        }
        let mut links = Expressions::default();
        let direction = if self.name == "ingress" || self.hook == OUTPUT {
            links.meta(Meta::OutputLink, REGISTER);
            Direction::Ingress
        } else {
            links.meta(Meta::InputLink, REGISTER);
            Direction::Egress
        };
        links.map(map_name(direction));
        rules.push(links);
        if self.name == "ingress" {
            rules.extend(IpFamily::ALL.map(evaluate_destination));
        }
        ChainRules::from_rules(rules)
    }
}

/// The rules of the chain for related packets. Its end leads to the policies.
pub(super) fn related_rules() -> ChainRules {
    let mut others = Expressions::default();
    others.meta(Meta::InputGroup, REGISTER);
    others.compare(Comparison::NotEqual, &GROUP.to_ne_bytes());
    others.verdict(Verdict::Accept);
    let ends = IpFamily::ALL.into_iter().flat_map(|family| {
        [ConnectionDirection::Original, ConnectionDirection::Reply]
            .map(|direction| accept_end(family, direction))
    });
    ChainRules::from_rules([others].into_iter().chain(ends).collect())
}

/// Accepts a packet from the link of a pod with the source address of a direction. A pod is an end
/// of a connection if it sends the packets of one of the directions.
fn accept_end(family: IpFamily, direction: ConnectionDirection) -> Expressions {
    let mut rule = of_family(family);
    rule.meta(Meta::InputLink, REGISTER);
    rule.source_of(direction, family, REGISTER + 1);
    rule.lookup(own(family));
    rule.verdict(Verdict::Accept);
    rule
}

/// Evaluates the ingress policies of a pod if a packet to it leaves by a link of no pod.
fn evaluate_destination(family: IpFamily) -> Expressions {
    let (offset, length) = match family {
        IpFamily::V4 => (16, 4),
        IpFamily::V6 => (24, 16),
    };
    let mut rule = Expressions::default();
    rule.meta(Meta::OutputGroup, REGISTER);
    rule.compare(Comparison::NotEqual, &GROUP.to_ne_bytes());
    rule.and_family(family);
    rule.payload(Header::Network, offset, length, REGISTER);
    rule.map(to_addresses(family));
    rule
}

fn of_family(family: IpFamily) -> Expressions {
    let mut rule = Expressions::default();
    rule.and_family(family);
    rule
}

/// Accepts a type of ICMPv6 messages.
fn accept_icmpv6(kind: u8) -> Expressions {
    let mut rule = of_family(IpFamily::V6);
    rule.meta(Meta::Protocol, REGISTER);
    rule.compare(Comparison::Equal, &[libc::IPPROTO_ICMPV6 as u8]);
    rule.payload(Header::Transport, 0, 1, REGISTER);
    rule.compare(Comparison::Equal, &[kind]);
    rule.verdict(Verdict::Accept);
    rule
}
