//! Evaluates a packet against compiled rules, as the kernel does.

use std::net::IpAddr;

use trunkline_api::service::Protocol;

use super::input::{Direction, ObjectKey};
use super::rules::{
    ChainId, Element, Exemption, Origin, PortMatch, PortNumbers, Rule, Rules, SetId, Verdict, exemptions,
};

/// The first packet of a connection, or a packet without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The source address.
    pub source: IpAddr,
    /// The destination address, after DNAT.
    pub destination: IpAddr,
    /// The protocol. None: a protocol without ports, for example ICMP.
    pub protocol: Option<Protocol>,
    /// The destination port, after DNAT. Without effect if `protocol` is none.
    pub port: u16,
    /// Whether connection tracking knows the connection, or the packet is an error about one.
    pub established: bool,
    /// Whether the source is an address of this node.
    pub from_node: bool,
    /// Whether source and destination are the same pod.
    pub same_pod: bool,
}

/// The result for one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the packet passes.
    pub accepted: bool,
    /// The rule that decided. None: an exemption, or no rule matched.
    pub origin: Option<Origin>,
    /// Whether the rule only reports the packet, because of the Namespace's mode.
    pub audit: bool,
}

impl Decision {
    const DEFAULT: Decision = Decision { accepted: true, origin: None, audit: false };
}

/// The decision for a packet to or from a pod of this node.
pub fn evaluate(rules: &Rules, pod: &ObjectKey, direction: Direction, packet: &Packet) -> Decision {
    let is_exempt = |exemption: &Exemption| match exemption {
        Exemption::Established => packet.established,
        Exemption::FromNode => packet.from_node,
        Exemption::SamePod => packet.same_pod,
    };
    if exemptions(direction).iter().any(is_exempt) {
        return Decision::DEFAULT;
    }
    let entry = rules.pods.get(pod).and_then(|chains| chains.of(direction));
    entry.and_then(|entry| evaluate_chain(rules, entry, direction, packet)).unwrap_or(Decision::DEFAULT)
}

/// The decision of a chain; none if it ends without one. Jumps form no cycle, because an entry chain
/// jumps only to chains without jumps.
fn evaluate_chain(rules: &Rules, chain: ChainId, direction: Direction, packet: &Packet) -> Option<Decision> {
    for rule in rules.chains.get(&chain).into_iter().flat_map(|chain| &chain.rules) {
        if !matches(rules, rule, direction, packet) {
            continue;
        }
        let decided =
            |accepted| Some(Decision { accepted, origin: Some(rule.origin.clone()), audit: rule.audit });
        match rule.verdict {
            Verdict::Accept => return decided(true),
            Verdict::Drop => return decided(false),
            Verdict::Return => return None,
            Verdict::Jump(next) => {
                if let Some(decision) = evaluate_chain(rules, next, direction, packet) {
                    return Some(decision);
                }
            }
        }
    }
    None
}

fn matches(rules: &Rules, rule: &Rule, direction: Direction, packet: &Packet) -> bool {
    let peer = match direction {
        Direction::Ingress => packet.source,
        Direction::Egress => packet.destination,
    };
    rule.peers.is_none_or(|set| has_address(rules, set, peer)) && match_ports(rules, &rule.ports, packet)
}

fn has_address(rules: &Rules, set: SetId, address: IpAddr) -> bool {
    let Some(set) = rules.sets.get(&set) else { return false };
    // The last element that begins at the address or before it.
    let range = set.elements.range(..=Element::Range(address, last_of(address))).next_back();
    let in_range = matches!(range, Some(Element::Range(first, last))
        if first.is_ipv4() == address.is_ipv4() && *first <= address && address <= *last);
    in_range || set.elements.contains(&Element::Address(address))
}

fn last_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => IpAddr::from([0xff; 4]),
        IpAddr::V6(_) => IpAddr::from([0xff; 16]),
    }
}

fn match_ports(rules: &Rules, ports: &PortMatch, packet: &Packet) -> bool {
    match (ports, packet.protocol) {
        (PortMatch::Any, _) => true,
        (PortMatch::Numbered { .. } | PortMatch::Named(_), None) => false,
        (PortMatch::Numbered { protocol, ports }, Some(there)) => {
            *protocol == there && has_number(rules, *ports, packet.port)
        }
        (PortMatch::Named(set), Some(there)) => {
            let element = Element::Port(packet.destination, there, packet.port);
            rules.sets.get(set).is_some_and(|set| set.elements.contains(&element))
        }
    }
}

fn has_number(rules: &Rules, ports: PortNumbers, port: u16) -> bool {
    match ports {
        PortNumbers::Every => true,
        PortNumbers::Range(first, last) => (first..=last).contains(&port),
        PortNumbers::Set(set) => {
            let Some(set) = rules.sets.get(&set) else { return false };
            // The last range that begins at the port or before it.
            let range = set.elements.range(..=Element::PortRange(port, u16::MAX)).next_back();
            matches!(range, Some(Element::PortRange(first, last)) if (*first..=*last).contains(&port))
        }
    }
}
