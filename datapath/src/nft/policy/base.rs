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
//! **No chain at output.** Packets of the node's processes to its pods are exempt.

use super::expressions::{Comparison, Expressions, Header, Meta, REGISTER};
use super::objects::{SAME_POD, map_name};
use super::rules::ChainRules;
use crate::plan::policy::{Direction, Verdict};

// NF_INET_LOCAL_IN, NF_INET_FORWARD
const INPUT: u32 = 1;
const FORWARD: u32 = 2;

/// A base chain. Its type is `filter` and its policy is accept.
#[derive(Debug)]
pub(super) struct BaseChain {
    pub(super) name: &'static str,
    /// `NF_INET_…`.
    pub(super) hook: u32,
    pub(super) priority: i32,
}

/// All base chains.
pub(super) const BASE_CHAINS: [BaseChain; 3] = [
    BaseChain { name: "egress", hook: FORWARD, priority: -20 },
    BaseChain { name: "ingress", hook: FORWARD, priority: -19 },
    BaseChain { name: "node", hook: INPUT, priority: -20 },
];

impl BaseChain {
    /// The rules of the chain.
    pub(super) fn rules(&self) -> ChainRules {
        let mut connected = Expressions::default();
        connected.connected();
        connected.verdict(Verdict::Accept);
        let mut rules = vec![connected];
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
        let mut links = Expressions::default();
        let direction = if self.name == "ingress" {
            links.meta(Meta::OutputLink, REGISTER);
            Direction::Ingress
        } else {
            links.meta(Meta::InputLink, REGISTER);
            Direction::Egress
        };
        links.map(map_name(direction));
        rules.push(links);
        ChainRules::from_rules(rules)
    }
}

/// Accepts a type of ICMPv6 messages.
fn accept_icmpv6(kind: u8) -> Expressions {
    let mut rule = Expressions::default();
    rule.meta(Meta::Family, REGISTER);
    rule.compare(Comparison::Equal, &[libc::NFPROTO_IPV6 as u8]);
    rule.meta(Meta::Protocol, REGISTER);
    rule.compare(Comparison::Equal, &[libc::IPPROTO_ICMPV6 as u8]);
    rule.payload(Header::Transport, 0, 1, REGISTER);
    rule.compare(Comparison::Equal, &[kind]);
    rule.verdict(Verdict::Accept);
    rule
}
