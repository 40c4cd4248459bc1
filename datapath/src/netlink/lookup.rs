//! Requests to the kernel about the path of a packet: the route look-up, the policy rules, and the
//! neighbour entries in every state.
//!
//! [`super::objects`] reads objects to compare them with the plan. This module reads everything
//! that an operator needs to follow a packet, including the rules and routes of other programs.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{Emitable, NlasIterator, Parseable, ParseableParametrized};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourHeader, NeighbourState};
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteHeader, RouteLwEnCapType, RouteMessage, RouteType,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleHeader};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::message::{Batch, attributes};
use super::objects::{family_of, ip};
use crate::plan::Hop;

/// The fields of a packet that routing uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The destination address.
    pub destination: IpAddr,
    /// The source address. None: the kernel chooses it (only for a packet that this host sends).
    pub source: Option<IpAddr>,
    /// Index of the incoming interface. None for a locally generated packet.
    pub iif: Option<u32>,
}

/// The route that the kernel found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRoute {
    /// The table of the route.
    pub table: u32,
    /// The destination prefix.
    pub prefix: IpNet,
    /// `unicast`, `local`, `blackhole`, …
    pub kind: RouteType,
    /// The next hops.
    pub hops: Vec<Hop>,
    /// The source address that the kernel selects for a locally generated packet.
    pub source: Option<IpAddr>,
}

/// A policy rule with all its match conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnyRule {
    /// Preference.
    pub priority: u32,
    /// The rule in the format of `ip rule`.
    pub text: String,
    /// The table, if the rule's action is a look-up in a table.
    pub table: Option<u32>,
    from: Option<IpNet>,
    to: Option<IpNet>,
    iif: Option<String>,
    mark: Option<(u32, u32)>,
    invert: bool,
    /// The rule has conditions on other fields, such as ports, or it is an l3mdev (VRF) rule.
    has_other_conditions: bool,
}

/// Whether a rule matches a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// The rule matches.
    Yes,
    /// The rule does not match.
    No,
    /// The rule has conditions on fields that are not known.
    Unknown,
}

impl AnyRule {
    /// Whether the rule matches this packet, if the packet has no mark and arrived on the interface
    /// `iif`.
    pub fn matches(&self, packet: &Packet, iif: Option<&str>) -> Match {
        let covers = |prefix: &Option<IpNet>, address: Option<IpAddr>| {
            prefix.is_none_or(|prefix| address.is_some_and(|address| prefix.contains(&address)))
        };
        let known = covers(&self.from, packet.source)
            && covers(&self.to, Some(packet.destination))
            // The kernel uses lo as the incoming interface of a locally generated packet.
            && self.iif.as_deref().is_none_or(|name| name == iif.unwrap_or("lo"))
            && self.mark.is_none_or(|(mark, mask)| mark & mask == 0);
        match (known, self.has_other_conditions, self.invert) {
            (true, true, _) | (false, true, true) => Match::Unknown,
            (known, _, invert) if known != invert => Match::Yes,
            _ => Match::No,
        }
    }
}

impl Batch {
    /// Requests the route of a packet. `matched`: asks for the matching route with all its next
    /// hops, instead of only the selected next hop.
    pub fn look_up(&mut self, packet: &Packet, matched: bool) {
        let mut message = RouteMessage::default();
        let full = if packet.destination.is_ipv4() { 32 } else { 128 };
        message.header.address_family = family_of(packet.destination);
        message.header.destination_prefix_length = full;
        message.attributes.push(RouteAttribute::Destination(packet.destination.into()));
        if let Some(source) = packet.source {
            message.header.source_prefix_length = full;
            message.attributes.push(RouteAttribute::Source(source.into()));
        }
        message.attributes.extend(packet.iif.map(RouteAttribute::Iif));
        // For IPv6, the kernel always returns the table, and it refuses the flag
        // RTM_F_LOOKUP_TABLE.
        message.header.flags.set(RouteFlags::LookupTable, packet.destination.is_ipv4());
        message.header.flags.set(RouteFlags::FibMatch, matched);
        self.push(0, RouteNetlinkMessage::GetRoute(message));
    }
}

/// Reads the answer to [`Batch::look_up`].
pub fn read_found(body: &[u8]) -> Option<FoundRoute> {
    let header = RouteHeader::parse(body).ok()?;
    let unspecified = match header.address_family {
        AddressFamily::Inet => IpAddr::from([0; 4]),
        AddressFamily::Inet6 => IpAddr::from([0; 16]),
        _ => return None,
    };
    let (mut table, mut destination, mut source) = (u32::from(header.table), unspecified, None);
    let (mut hop, mut hops) = (Hop { gateway: None, ifindex: None, onlink: false, source: None }, Vec::new());
    const WANTED: &[u16] = &[
        libc::RTA_TABLE,
        libc::RTA_DST,
        libc::RTA_OIF,
        libc::RTA_GATEWAY,
        libc::RTA_VIA,
        libc::RTA_MULTIPATH,
        libc::RTA_PREFSRC,
    ];
    let param = (header.address_family, header.kind, RouteLwEnCapType::None);
    let read = |nla: &_| RouteAttribute::parse_with_param(nla, param);
    for attribute in attributes(&body[header.buffer_len()..], WANTED, read) {
        match attribute {
            RouteAttribute::Table(number) => table = number,
            RouteAttribute::Destination(address) => destination = ip(&address)?,
            RouteAttribute::PrefSource(address) => source = ip(&address),
            RouteAttribute::MultiPath(paths) => hops.extend(paths.iter().map(|path| {
                let mut hop = Hop::link(path.interface_index);
                path.attributes.iter().for_each(|attribute| hop.take(attribute));
                hop
            })),
            attribute => hop.take(&attribute),
        }
    }
    if hops.is_empty() {
        hops.push(hop);
    }
    let prefix = IpNet::new(destination, header.destination_prefix_length).ok()?;
    Some(FoundRoute { table, prefix, kind: header.kind, hops, source })
}

/// Reads an RTM_NEWRULE of IPv4 or IPv6 with all its conditions.
pub fn read_any_rule(body: &[u8]) -> Option<AnyRule> {
    let header = RuleHeader::parse(body).ok()?;
    if !matches!(header.family, AddressFamily::Inet | AddressFamily::Inet6) {
        return None;
    }
    let mut rule = AnyRule {
        priority: 0,
        text: String::new(),
        table: None,
        from: None,
        to: None,
        iif: None,
        mark: None,
        invert: header.flags.contains(RuleFlags::Invert),
        has_other_conditions: header.tos != 0,
    };
    let (mut table, mut mark, mut mask, mut rest) = (u32::from(header.table), None, u32::MAX, Vec::new());
    for nla in NlasIterator::new(body.get(header.buffer_len()..)?).filter_map(Result::ok) {
        let Ok(attribute) = RuleAttribute::parse(&nla) else {
            rule.has_other_conditions = true;
            continue;
        };
        match attribute {
            RuleAttribute::Priority(priority) => rule.priority = priority,
            RuleAttribute::Table(number) => table = number,
            RuleAttribute::Source(address) => rule.from = IpNet::new(address, header.src_len).ok(),
            RuleAttribute::Destination(address) => rule.to = IpNet::new(address, header.dst_len).ok(),
            RuleAttribute::Iifname(name) => rule.iif = Some(name),
            RuleAttribute::FwMark(value) => mark = Some(value),
            RuleAttribute::FwMask(value) => mask = value,
            RuleAttribute::Protocol(_) | RuleAttribute::SuppressIfGroup(u32::MAX) => {}
            RuleAttribute::SuppressPrefixLen(u32::MAX) => {}
            // This attribute excludes some of the found routes. It is not a condition on packets.
            RuleAttribute::SuppressPrefixLen(length) => rest.push(format!("suppress_prefixlength {length}")),
            RuleAttribute::SuppressIfGroup(group) => rest.push(format!("suppress_ifgroup {group}")),
            RuleAttribute::Goto(priority) => {
                rule.has_other_conditions = true;
                rest.push(format!("goto {priority}"));
            }
            RuleAttribute::L3MDev(_) => {
                rule.has_other_conditions = true;
                rest.push("l3mdev".to_owned());
            }
            RuleAttribute::Oifname(name) => {
                rule.has_other_conditions = true;
                rest.push(format!("oif {name}"));
            }
            other => {
                rule.has_other_conditions = true;
                rest.push(format!("{other:?}"));
            }
        }
    }
    rule.mark = mark.map(|mark| (mark, mask));
    let mut words = vec![format!("from {}", rule.from.map_or("all".to_owned(), |from| from.to_string()))];
    words.extend(rule.to.map(|to| format!("to {to}")));
    words.extend(rule.iif.as_ref().map(|name| format!("iif {name}")));
    words.extend(rule.mark.map(|(mark, mask)| match mask {
        u32::MAX => format!("fwmark {mark:#x}"),
        mask => format!("fwmark {mark:#x}/{mask:#x}"),
    }));
    match header.action {
        RuleAction::ToTable => {
            rule.table = Some(table);
            words.push(format!("lookup {}", table_name(table)));
        }
        RuleAction::Goto => {}
        action => words.push(format!("{action:?}").to_lowercase()),
    }
    words.extend(rest);
    if rule.invert {
        words.insert(0, "not".to_owned());
    }
    rule.text = words.join(" ");
    Some(rule)
}

/// The route type as `ip` prints it.
pub fn kind_name(kind: RouteType) -> String {
    format!("{kind:?}").to_lowercase()
}

/// The name of a table as `ip` prints it by default.
pub fn table_name(table: u32) -> String {
    match table {
        253 => "default".to_owned(),
        254 => "main".to_owned(),
        255 => "local".to_owned(),
        table => table.to_string(),
    }
}

/// Reads an RTM_NEWNEIGH: the link-layer address, if it is known, and the state as `ip` prints it.
pub fn read_neighbour_state(body: &[u8]) -> Option<(Option<[u8; 6]>, &'static str)> {
    let header = NeighbourHeader::parse(body).ok()?;
    let read = |nla: &_| NeighbourAttribute::parse_with_param(nla, header.family);
    let mac = attributes(&body[header.buffer_len()..], &[libc::NDA_LLADDR], read).find_map(|attribute| {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(address) => address.try_into().ok(),
            _ => None,
        }
    });
    let state = match header.state {
        NeighbourState::Incomplete => "incomplete",
        NeighbourState::Reachable => "reachable",
        NeighbourState::Stale => "stale",
        NeighbourState::Delay => "delay",
        NeighbourState::Probe => "probe",
        NeighbourState::Failed => "failed",
        NeighbourState::Noarp => "noarp",
        NeighbourState::Permanent => "permanent",
        _ => "none",
    };
    Some((mac, state))
}

#[cfg(test)]
mod tests {
    use crate::family::IpFamily;

    use super::*;
    use crate::netlink::message::messages;
    use crate::plan::Rule;

    fn rule(priority: u32, from: Option<&str>, iif: Option<&str>) -> AnyRule {
        let rule = Rule {
            from: from.map(|from| from.parse().unwrap()),
            iif: iif.map(str::to_owned),
            ..Rule::always(IpFamily::V4, priority, 10_000)
        };
        let mut batch = Batch::new();
        batch.add_rule(&rule);
        read_any_rule(messages(&batch.buffer).next().unwrap().body).unwrap()
    }

    #[test]
    fn rules_match_as_in_the_kernel() {
        let packet = |source: &str| Packet {
            destination: "192.0.2.1".parse().unwrap(),
            source: Some(source.parse().unwrap()),
            iif: Some(7),
        };
        let subnet = rule(1100, Some("10.1.0.0/16"), None);
        assert_eq!((subnet.priority, subnet.table), (1100, Some(10_000)));
        assert_eq!(subnet.text, "from 10.1.0.0/16 lookup 10000");
        assert_eq!(subnet.matches(&packet("10.1.2.3"), Some("tl0")), Match::Yes);
        assert_eq!(subnet.matches(&packet("10.2.2.3"), Some("tl0")), Match::No);
        let uplink = rule(1030, None, Some("eth1"));
        assert_eq!(uplink.text, "from all iif eth1 lookup 10000");
        assert_eq!(uplink.matches(&packet("10.1.2.3"), Some("tl0")), Match::No);
        assert_eq!(uplink.matches(&packet("10.1.2.3"), Some("eth1")), Match::Yes);
        let own = Packet { iif: None, ..packet("10.1.2.3") };
        assert_eq!(rule(1, None, Some("lo")).matches(&own, None), Match::Yes);
        let changed = |change: fn(&mut AnyRule)| {
            let mut rule = subnet.clone();
            change(&mut rule);
            (rule.matches(&packet("10.1.2.3"), None), rule.matches(&packet("10.2.2.3"), None))
        };
        assert_eq!(changed(|rule| rule.invert = true), (Match::No, Match::Yes));
        assert_eq!(changed(|rule| rule.mark = Some((0x20, 0xff))), (Match::No, Match::No));
        assert_eq!(changed(|rule| rule.mark = Some((0, 0xff))), (Match::Yes, Match::No));
        assert_eq!(changed(|rule| rule.has_other_conditions = true), (Match::Unknown, Match::No));
    }
}
