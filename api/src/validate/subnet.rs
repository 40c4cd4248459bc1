//! Rules for a Subnet: a range within its prefix, and no overlap with other Subnets.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::values::MAX_VLAN;
use crate::fault::{Fault, Faults};
use crate::interfaces::{MAX_ROUTES, route_fault};
use crate::resources::{
    IpVersion, Network, NetworkMode, ParsedRange, Retention, Subnet, ValueError, parse_address,
};

/// Maximum number of addresses of a subnet, as in hybridnet.
const MAX_CAPACITY: u128 = 1 << 16;

/// Prefixes that no fabric routes to a pod. 169.254.1.1 and a link-local address are the pods'
/// gateways.
pub(super) const NOT_ROUTED: [(&str, &str); 8] = [
    ("0.0.0.0/8", "\"this network\" (RFC 1122)"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local, where the pods' gateway is"),
    ("224.0.0.0/3", "multicast or reserved"),
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("fe80::/10", "link-local, where the pods' gateway is"),
    ("ff00::/8", "multicast"),
];

pub(super) fn check_all(networks: &[Network], subnets: &[Subnet], found: &mut Vec<Fault>) {
    let mut placed: Vec<(&Subnet, ParsedRange)> = Vec::new();
    for subnet in subnets {
        let mut faults = Faults { kind: "Subnet", name: subnet.name(), found: &mut *found };
        check_network(networks, subnet, &mut faults);
        check_config(subnet, &mut faults);
        let before = faults.found.len();
        check_range(subnet, &mut faults);
        // A faulty range cannot be compared with others.
        if faults.found.len() == before
            && let Ok(range) = subnet.spec.range.parse()
        {
            for (other, other_range) in &placed {
                check_overlap((subnet, &range), (other, other_range), &mut faults);
            }
            placed.push((subnet, range));
        }
    }
}

fn check_network(networks: &[Network], subnet: &Subnet, faults: &mut Faults<'_>) {
    let spec = &subnet.spec;
    let Some(network) = networks.iter().find(|network| network.name() == spec.network) else {
        let message = if spec.network.is_empty() {
            "missing: write the name of a Network".to_owned()
        } else {
            format!("there is no Network `{}`: write the name of an existing one, or add it", spec.network)
        };
        return faults.add("spec.network", message);
    };
    let mode = network.mode();
    match (mode, spec.net_id, network.spec.net_id) {
        (NetworkMode::VLAN, None, None) => faults.add(
            "spec.netID",
            format!("missing here and in Network {}: write the VLAN id into one of them", network.name()),
        ),
        (NetworkMode::VLAN, Some(own), Some(theirs)) if own != theirs => faults.add(
            "spec.netID",
            format!(
                "{own} is not the VLAN id {theirs} of Network {}: write {theirs}, or leave it out",
                network.name()
            ),
        ),
        (NetworkMode::VLAN, Some(own), None) if own > MAX_VLAN => {
            faults.add("spec.netID", format!("{own} is not a VLAN id: write 0 (untagged) to {MAX_VLAN}"));
        }
        (NetworkMode::VLAN, _, _) | (_, None, _) => {}
        (mode, Some(own), _) => {
            faults.add("spec.netID", format!("{own}: a Subnet of mode {mode:?} has no netID: leave it out"));
        }
    }
    if mode == NetworkMode::VLAN {
        if spec.range.gateway.is_empty() {
            faults.add("spec.range.gateway", "missing: a VLAN subnet needs the router on its VLAN");
        }
        if spec.config.as_ref().is_some_and(|config| config.auto_nat_outgoing == Some(true)) {
            faults.add(
                "spec.config.autoNatOutgoing",
                "true: a VLAN's router sees the pods' own addresses: leave it out",
            );
        }
    }
}

fn check_config(subnet: &Subnet, faults: &mut Faults<'_>) {
    let Some(config) = &subnet.spec.config else { return };
    for (index, name) in config.allowed_namespaces.iter().enumerate() {
        if !is_namespace(name) {
            faults.add(
                format!("spec.config.allowedNamespaces[{index}]"),
                format!(
                    "`{name}` is not the name of a Namespace: write up to 63 of a-z, 0-9 and `-`, with a letter \
                     or digit at both ends"
                ),
            );
        }
    }
    for (index, route) in config.routes.iter().enumerate() {
        if let Some(message) = route_fault(route) {
            faults.add(format!("spec.config.routes[{index}]"), message);
        }
    }
    if config.routes.len() > MAX_ROUTES {
        faults.add(
            "spec.config.routes",
            format!("there are more than {MAX_ROUTES}: write fewer and shorter prefixes"),
        );
    }
    for (index, server) in config.dns.iter().flat_map(|dns| &dns.nameservers).enumerate() {
        if let Err(error) = parse_address(server) {
            faults.add(format!("spec.config.dns.nameservers[{index}]"), error.to_string());
        }
    }
    let retention: Result<Retention, ValueError> = config.retention.parse();
    if let Err(error) = retention
        && !config.retention.is_empty()
    {
        faults.add("spec.config.retention", error.to_string());
    }
}

/// Whether a text is a DNS-1123 label.
fn is_namespace(name: &str) -> bool {
    super::is_dns_subdomain(name) && name.len() <= 63 && !name.contains('.')
}

fn check_range(subnet: &Subnet, faults: &mut Faults<'_>) {
    let range = &subnet.spec.range;
    let cidr = match range.cidr() {
        Ok(cidr) => cidr,
        Err(error) => return faults.add("spec.range.cidr", error.to_string()),
    };
    let (version, other) = match cidr {
        IpNet::V4(_) => (IpVersion::V4, "\"4\""),
        IpNet::V6(_) => (IpVersion::V6, "\"6\""),
    };
    if range.version != version {
        faults.add("spec.range.version", format!("it does not match the prefix {cidr}: write {other}"));
    }
    if !is_canonical(&range.cidr) {
        faults.add("spec.range.cidr", format!("{} has host bits: write {cidr}", range.cidr));
    }
    if cidr.prefix_len() == cidr.max_prefix_len() {
        let message =
            format!("{cidr} is a single address: write a prefix shorter than /{}", cidr.max_prefix_len());
        return faults.add("spec.range.cidr", message);
    }
    for (prefix, what) in NOT_ROUTED {
        if prefix.parse::<IpNet>().is_ok_and(|prefix| overlaps(&prefix, &cidr)) {
            faults.add(
                "spec.range.cidr",
                format!("{cidr} overlaps {prefix}, which is {what}: write a prefix that the fabric routes"),
            );
        }
    }

    let mut all_inside = true;
    let mut inside = |field: &str, text: &str| match parse_address(text) {
        Err(error) => {
            faults.add(field, error.to_string());
            all_inside = false;
        }
        Ok(address) if !cidr.contains(&address) => {
            faults.add(field, format!("{text} is not in {cidr}: write an address of that prefix"));
            all_inside = false;
        }
        Ok(_) => {}
    };
    for (field, text) in [
        ("spec.range.start", &range.start),
        ("spec.range.end", &range.end),
        ("spec.range.gateway", &range.gateway),
    ] {
        if !text.is_empty() {
            inside(field, text);
        }
    }
    for (field, texts) in [("reservedIPs", &range.reserved_ips), ("excludeIPs", &range.exclude_ips)] {
        for (index, text) in texts.iter().enumerate() {
            inside(&format!("spec.range.{field}[{index}]"), text);
        }
    }
    if all_inside && let Ok(parsed) = range.parse() {
        check_capacity(&parsed, faults);
    }
}

fn check_capacity(range: &ParsedRange, faults: &mut Faults<'_>) {
    if range.first > range.last {
        let message = format!(
            "{} is after the end {}: write a start that is not after the end",
            range.first, range.last
        );
        return faults.add("spec.range.start", message);
    }
    let within = |address: &&IpAddr| (range.first..=range.last).contains(*address);
    let excluded: BTreeSet<&IpAddr> = range.excluded.iter().filter(within).collect();
    let capacity = span(range.first, range.last).saturating_sub(excluded.len() as u128);
    if capacity > MAX_CAPACITY {
        faults.add(
            "spec.range.cidr",
            format!(
                "{} has more than {MAX_CAPACITY} addresses: write start and end, or a longer prefix",
                range.cidr
            ),
        );
    }
    // Candidates that are never allocated.
    let mut never = excluded;
    never.extend(range.gateway.iter().filter(within));
    let (network, broadcast) = (range.cidr.network(), range.cidr.broadcast());
    if network.is_ipv4() && range.cidr.prefix_len() < 31 {
        never.extend([&network, &broadcast].into_iter().filter(within));
    }
    if span(range.first, range.last) == never.len() as u128 {
        faults.add(
            "spec.range",
            format!(
                "from {} to {} no address is left to allocate: write a wider range, or exclude \
                 fewer addresses",
                range.first, range.last
            ),
        );
    }
}

/// Prefixes are equal or disjoint; equal ones belong to one network, and their ranges are disjoint.
fn check_overlap(
    (subnet, range): (&Subnet, &ParsedRange),
    (other, other_range): (&Subnet, &ParsedRange),
    faults: &mut Faults<'_>,
) {
    if !overlaps(&range.cidr, &other_range.cidr) {
        return;
    }
    let name = other.name();
    if range.cidr != other_range.cidr {
        faults.add(
            "spec.range.cidr",
            format!(
                "{} overlaps {} of Subnet {name}: write prefixes that do not overlap",
                range.cidr, other_range.cidr
            ),
        );
    } else if subnet.spec.network != other.spec.network {
        faults.add(
            "spec.range.cidr",
            format!(
                "{} is also the prefix of Subnet {name} in Network {}: write another prefix, or the same network",
                range.cidr, other.spec.network
            ),
        );
    } else {
        let (first, last) = (range.first.max(other_range.first), range.last.min(other_range.last));
        if first > last {
            return;
        }
        let excluded: BTreeSet<&IpAddr> = range
            .excluded
            .iter()
            .chain(&other_range.excluded)
            .filter(|address| (first..=last).contains(*address))
            .collect();
        if span(first, last) > excluded.len() as u128 {
            faults.add(
                "spec.range",
                format!(
                    "Subnet {name} also allocates the addresses from {first} to {last}: write \
                    other start, end or excludeIPs"
                ),
            );
        }
    }
}

pub(super) fn check_change(old: &Subnet, new: &Subnet, networks: &[Network], found: &mut Vec<Fault>) {
    let mut faults = Faults { kind: "Subnet", name: new.name(), found };
    let mut immutable = |field: &str, old: String, new: String| {
        if old != new {
            let shown = |text: String| if text.is_empty() { "nothing".to_owned() } else { text };
            let (old, new) = (shown(old), shown(new));
            faults.add(
                field,
                format!("{new}: it was {old} and cannot change: put it back, or make a new Subnet"),
            );
        }
    };
    immutable("spec.network", old.spec.network.clone(), new.spec.network.clone());
    let is_vlan = networks
        .iter()
        .any(|network| network.name() == new.spec.network && network.mode() == NetworkMode::VLAN);
    if is_vlan {
        let shown = |subnet: &Subnet| subnet.spec.net_id.map(|id| id.to_string()).unwrap_or_default();
        immutable("spec.netID", shown(old), shown(new));
    }
    let (old, new) = (&old.spec.range, &new.spec.range);
    for (field, old, new) in [
        ("spec.range.cidr", &old.cidr, &new.cidr),
        ("spec.range.start", &old.start, &new.start),
        ("spec.range.end", &old.end, &new.end),
        ("spec.range.gateway", &old.gateway, &new.gateway),
    ] {
        immutable(field, old.clone(), new.clone());
    }
    let sorted =
        |texts: &[String]| texts.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>();
    immutable(
        "spec.range.excludeIPs",
        sorted(&old.exclude_ips).join(", "),
        sorted(&new.exclude_ips).join(", "),
    );
}

/// Whether a prefix has no bits set after its length.
pub(super) fn is_canonical(text: &str) -> bool {
    text.parse::<IpNet>().is_ok_and(|prefix| prefix.addr() == prefix.network())
}

/// Whether two prefixes have an address in common.
pub fn overlaps(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// Number of addresses from `first` to `last`, both of one family, both included.
fn span(first: IpAddr, last: IpAddr) -> u128 {
    let number = |address| match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    };
    number(last).saturating_sub(number(first)).saturating_add(1)
}
