//! Rules for fields that several of the own kinds have: selectors, peers, and the attributes of
//! advertised prefixes.

use std::net::IpAddr;

use ipnet::IpNet;

use super::peer::{is_interface_name, is_link_local_v6, not_a_host};
use super::subnet::{NOT_ROUTED, is_canonical};
use crate::fault::Faults;
use crate::policy::{parse_community, parse_large_community};
use crate::resources::{AddressBlock, Endpoint, LabelSelector, Operator, ValueError};

/// The highest number of communities of one kind.
const MAX_COMMUNITIES: usize = 32;
/// The highest number of named peers.
const MAX_PEERS: usize = 64;
/// The highest number of additional AS numbers.
const MAX_PREPEND: u8 = 16;
/// The longest time between graceful shutdown and withdrawal, in seconds.
const MAX_GRACEFUL_SHUTDOWN: u16 = 3600;

pub(super) fn check_selector(selector: &LabelSelector, path: &str, faults: &mut Faults<'_>) {
    for (index, requirement) in selector.match_expressions.iter().enumerate() {
        let path = format!("{path}.matchExpressions[{index}]");
        if requirement.key.is_empty() {
            faults.add(format!("{path}.key"), "missing: write the name of a label");
        }
        match (requirement.operator, requirement.values.is_empty()) {
            (Operator::In | Operator::NotIn, true) => faults.add(
                format!("{path}.values"),
                "missing: In and NotIn compare the label with values: write at least one",
            ),
            (Operator::Exists | Operator::DoesNotExist, false) => faults.add(
                format!("{path}.values"),
                "Exists and DoesNotExist have no values: leave them out, or write In or NotIn",
            ),
            _ => {}
        }
    }
}

pub(super) fn check_peers(peers: &[String], faults: &mut Faults<'_>) {
    check_number("spec.peers", "peers", peers.len(), MAX_PEERS, faults);
    for (index, text) in peers.iter().enumerate() {
        let mut fault = |message: String| faults.add(format!("spec.peers[{index}]"), message);
        match Endpoint::parse(text) {
            Err(error) => fault(error.to_string()),
            Ok(Endpoint::Prefix(prefix)) if !is_canonical(text) => {
                fault(format!("{text} has host bits: write {prefix}"));
            }
            Ok(Endpoint::Prefix(_)) => {}
            Ok(Endpoint::Interface(name)) if !is_interface_name(name) => {
                fault(format!(
                    "`{name}` is not an address, an interface or a prefix: write a peer as in bgpPeers of the Network"
                ));
            }
            Ok(Endpoint::Interface(_)) => {}
            Ok(Endpoint::Address(address, interface)) => {
                if let Some(wrong) = not_a_host(address) {
                    fault(format!("{text} is {wrong}: write the address of a router"));
                }
                match (is_link_local_v6(address), interface) {
                    (true, None) => {
                        fault(format!("{text} is link-local: append its interface, `{text}%eth0`"))
                    }
                    (false, Some(_)) => {
                        fault(format!("{text}: only a link-local address has an interface: write {address}"))
                    }
                    (true, Some(name)) if !is_interface_name(name) => {
                        fault(format!(
                            "`{name}` is not the name of an interface: write it as `ip link` shows it"
                        ));
                    }
                    _ => {}
                }
            }
        }
    }
}

pub(super) fn check_communities(standard: &[String], large: &[String], faults: &mut Faults<'_>) {
    check_each("spec.communities", standard, parse_community, faults);
    check_each("spec.largeCommunities", large, parse_large_community, faults);
}

/// Checks a list of communities of one kind.
pub(super) fn check_each<T>(
    path: &str,
    texts: &[String],
    parse: fn(&str) -> Result<T, ValueError>,
    faults: &mut Faults<'_>,
) {
    check_number(path, "communities", texts.len(), MAX_COMMUNITIES, faults);
    for (index, text) in texts.iter().enumerate() {
        if let Err(error) = parse(text) {
            faults.add(format!("{path}[{index}]"), error.to_string());
        }
    }
}

pub(super) fn check_prepend(prepend: u8, faults: &mut Faults<'_>) {
    if prepend > MAX_PREPEND {
        faults.add("spec.prepend", format!("{prepend} is too long an AS_PATH: write 0 to {MAX_PREPEND}"));
    }
}

pub(super) fn check_graceful_shutdown(seconds: Option<u16>, faults: &mut Faults<'_>) {
    if let Some(seconds) = seconds.filter(|seconds| *seconds > MAX_GRACEFUL_SHUTDOWN) {
        faults.add(
            "spec.gracefulShutdownSeconds",
            format!("{seconds} is more than an hour: write 0 to {MAX_GRACEFUL_SHUTDOWN}"),
        );
    }
}

/// Checks that a list is not longer than the API server accepts.
pub(super) fn check_number(path: &str, what: &str, number: usize, most: usize, faults: &mut Faults<'_>) {
    if number > most {
        faults.add(path, format!("there are {number} {what}: write at most {most}"));
    }
}

/// Checks that the fabric routes to every address of a block.
pub(super) fn check_routed(field: &str, block: &AddressBlock, faults: &mut Faults<'_>) {
    for (prefix, what) in NOT_ROUTED {
        if prefix.parse::<IpNet>().is_ok_and(|prefix| AddressBlock::from(prefix).overlaps(block)) {
            faults.add(
                field,
                format!("{block} overlaps {prefix}, which is {what}: write addresses that the fabric routes"),
            );
        }
    }
}

/// Checks a prefix that is written with its length and without host bits.
pub(super) fn check_prefix(field: &str, text: &str, faults: &mut Faults<'_>) -> Option<IpNet> {
    match text.parse::<IpNet>() {
        Err(_) => {
            faults.add(field, format!("`{text}` is not a prefix with its length, such as 192.0.2.0/24"));
            None
        }
        Ok(prefix) if prefix != prefix.trunc() => {
            faults.add(field, format!("{text} has host bits: write {}", prefix.trunc()));
            None
        }
        Ok(prefix) => Some(prefix),
    }
}

/// Checks one address without a length, to which the fabric routes.
pub(super) fn check_address(field: &str, text: &str, faults: &mut Faults<'_>) -> Option<IpAddr> {
    match text.parse::<IpAddr>() {
        Err(_) => {
            let expected = "an IP address without a length, such as 10.0.0.7 or fd00::7";
            faults.add(field, format!("`{text}` is not {expected}"));
            None
        }
        Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_some() => {
            faults.add(field, format!("{text} is an IPv4-mapped IPv6 address: write the IPv4 address"));
            None
        }
        Ok(address) => Some(address),
    }
}
