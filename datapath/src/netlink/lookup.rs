//! Asking the kernel what becomes of a packet: its own look-up, the rules that it goes through, neighbours in any state.
//!
//! Unlike what [`super::objects`] reads, nothing here is compared with a plan: it is read as completely as people need it to follow a
//! packet, others' rules and routes included.

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

/// A packet, as far as routing looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Where it goes.
    pub destination: IpAddr,
    /// Where it is from; of one that begins here the kernel chooses if none.
    pub source: Option<IpAddr>,
    /// Index of the interface that it came in by; none if it begins here.
    pub iif: Option<u32>,
}

/// A route that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRoute {
    /// The table it is in.
    pub table: u32,
    /// What it covers.
    pub prefix: IpNet,
    /// `unicast`, `local`, `blackhole`, …
    pub kind: RouteType,
    /// Where it leads.
    pub hops: Vec<Hop>,
    /// The source address that a packet which begins here gets.
    pub source: Option<IpAddr>,
}

/// A rule with all that it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnyRule {
    /// Preference.
    pub priority: u32,
    /// In the words of `ip rule`.
    pub text: String,
    /// The table that it leads to, if that is what it does.
    pub table: Option<u32>,
    from: Option<IpNet>,
    to: Option<IpNet>,
    iif: Option<String>,
    mark: Option<(u32, u32)>,
    invert: bool,
    /// It asks for what a packet's addresses do not say, such as ports; or it is a VRF's.
    more: bool,
}

/// Whether a rule is for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// It asks for more than is known of the packet.
    Unknown,
}

impl AnyRule {
    /// Whether it is for a packet without a mark, which came in by the interface of this name.
    pub fn matches(&self, packet: &Packet, iif: Option<&str>) -> Match {
        let covers = |prefix: &Option<IpNet>, address: Option<IpAddr>| {
            prefix.is_none_or(|prefix| address.is_some_and(|address| prefix.contains(&address)))
        };
        let known = covers(&self.from, packet.source)
            && covers(&self.to, Some(packet.destination))
            // A packet that begins here counts as one that came in by lo.
            && self.iif.as_deref().is_none_or(|name| name == iif.unwrap_or("lo"))
            && self.mark.is_none_or(|(mark, mask)| mark & mask == 0);
        match (known, self.more, self.invert) {
            (true, true, _) | (false, true, true) => Match::Unknown,
            (known, _, invert) if known != invert => Match::Yes,
            _ => Match::No,
        }
    }
}

impl Batch {
    /// Asks what becomes of a packet. `matched`: the route that it meets, with all hops, instead of the one hop that it takes.
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
        // IPv6 always names the table, and refuses to be asked for it.
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

/// Reads an RTM_NEWRULE of IPv4 or IPv6 with all that it says.
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
        more: header.tos != 0,
    };
    let (mut table, mut mark, mut mask, mut rest) = (u32::from(header.table), None, u32::MAX, Vec::new());
    for nla in NlasIterator::new(body.get(header.buffer_len()..)?).filter_map(Result::ok) {
        let Ok(attribute) = RuleAttribute::parse(&nla) else {
            rule.more = true;
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
            // It says which of the routes found do not count, not which packets it is for.
            RuleAttribute::SuppressPrefixLen(length) => rest.push(format!("suppress_prefixlength {length}")),
            RuleAttribute::SuppressIfGroup(group) => rest.push(format!("suppress_ifgroup {group}")),
            RuleAttribute::Goto(priority) => {
                rule.more = true;
                rest.push(format!("goto {priority}"));
            }
            RuleAttribute::L3MDev(_) => {
                rule.more = true;
                rest.push("l3mdev".to_owned());
            }
            RuleAttribute::Oifname(name) => {
                rule.more = true;
                rest.push(format!("oif {name}"));
            }
            other => {
                rule.more = true;
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

/// A kind of route as `ip` names it.
pub fn kind_name(kind: RouteType) -> String {
    format!("{kind:?}").to_lowercase()
}

/// A table as `ip` names it where nobody has named it otherwise.
pub fn table_name(table: u32) -> String {
    match table {
        253 => "default".to_owned(),
        254 => "main".to_owned(),
        255 => "local".to_owned(),
        table => table.to_string(),
    }
}

/// Reads an RTM_NEWNEIGH: the link-layer address, if it is known, and the state in `ip`'s words.
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
    fn rules_are_matched_as_the_kernel_does() {
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
        assert_eq!(changed(|rule| rule.more = true), (Match::Unknown, Match::No));
    }
}
