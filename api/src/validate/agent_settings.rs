//! Rules for an AgentSettings that need no other object. They are the agent's own rules for agent.yaml,
//! for the fields that the kind has.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::attributes::{check_number, check_prefix, check_selector};
use super::peer::is_interface_name;
use crate::fault::Faults;
use crate::resources::{AgentConfig, AgentSettingsSpec};

/// The highest priority.
const MAX_PRIORITY: u32 = 1000;
/// The highest number of links in a list.
const MAX_LINKS: usize = 32;
/// The most octets of an entry of a list of links.
const MAX_LINK: usize = 256;
/// The highest number of prefixes or addresses in a list.
const MAX_PREFIXES: usize = 64;
/// The highest limit of the kernel.
const MAX_LIMIT: u32 = 1 << 24;
/// The beginning of a link with an address.
const REACHES: &str = "can-reach=";

pub(super) fn check(spec: &AgentSettingsSpec, faults: &mut Faults<'_>) {
    check_selector(&spec.node_selector, "spec.nodeSelector", faults);
    check_range("spec.priority", spec.priority, 0..=MAX_PRIORITY, faults);
    let AgentConfig {
        pod_mtu,
        vlan_interfaces,
        vlan_arp_sender: _,
        service_cidrs,
        vxlan_interfaces,
        vtep_address_cidrs,
        vtep_local_address_cidrs,
        unknown_overlay_addresses: _,
        kernel_limits,
        sysctls: _,
        probes,
        max_paths,
        selection_deferral_seconds,
        services,
        readiness,
        drain,
        vlan_check,
    } = &spec.config;
    check_range("spec.config.podMTU", *pod_mtu, 1280..=u16::MAX, faults);
    check_links("spec.config.vlanInterfaces", vlan_interfaces.as_deref(), faults);
    check_links("spec.config.vxlanInterfaces", vxlan_interfaces.as_deref(), faults);
    check_prefixes("spec.config.serviceCIDRs", service_cidrs.as_deref(), faults);
    for (index, text) in service_cidrs.iter().flatten().enumerate() {
        if text.ends_with("/0") {
            faults.add(
                format!("spec.config.serviceCIDRs[{index}]"),
                format!(
                    "{text} contains every address: write the prefixes of Services, such as 10.96.0.0/12"
                ),
            );
        }
    }
    check_prefixes("spec.config.vtepAddressCIDRs", vtep_address_cidrs.as_deref(), faults);
    if vtep_address_cidrs.as_ref().is_some_and(Vec::is_empty) {
        faults.add(
            "spec.config.vtepAddressCIDRs",
            "is empty: write a prefix of the nodes' addresses, or leave the field out",
        );
    }
    check_prefixes("spec.config.vtepLocalAddressCIDRs", vtep_local_address_cidrs.as_deref(), faults);
    if let Some(limits) = kernel_limits {
        check_range("spec.config.kernelLimits.neighbours", limits.neighbours, 0..=MAX_LIMIT, faults);
        check_range("spec.config.kernelLimits.ipv6Routes", limits.ipv6_routes, 0..=MAX_LIMIT, faults);
    }
    if let Some(probes) = probes {
        check_targets(probes.targets.as_deref(), faults);
        check_range("spec.config.probes.intervalSeconds", probes.interval_seconds, 1..=300, faults);
        check_range("spec.config.probes.size", probes.size, 576..=u16::MAX, faults);
    }
    check_range("spec.config.maxPaths", *max_paths, 1..=64, faults);
    check_range("spec.config.selectionDeferralSeconds", *selection_deferral_seconds, 1..=3600, faults);
    if let Some(proxy) = services.as_ref().and_then(|services| services.proxy.as_ref()) {
        check_range("spec.config.services.proxy.restartSeconds", proxy.restart_seconds, 0..=3600, faults);
        let settle = proxy.settle_milliseconds;
        check_range("spec.config.services.proxy.settleMilliseconds", settle, 0..=60_000, faults);
    }
    let timeout = readiness.as_ref().and_then(|readiness| readiness.timeout_seconds);
    check_range("spec.config.readiness.timeoutSeconds", timeout, 1..=300, faults);
    let settle = drain.as_ref().and_then(|drain| drain.settle_seconds);
    check_range("spec.config.drain.settleSeconds", settle, 0..=3600, faults);
    if let Some(check) = vlan_check {
        check_range("spec.config.vlanCheck.timeoutSeconds", check.timeout_seconds, 1..=60, faults);
        let wait = check.duplicate_address_wait_milliseconds;
        check_range("spec.config.vlanCheck.duplicateAddressWaitMilliseconds", wait, 0..=10_000, faults);
    }
}

fn check_range<T: PartialOrd + std::fmt::Display>(
    field: &str,
    value: Option<T>,
    range: RangeInclusive<T>,
    faults: &mut Faults<'_>,
) {
    if let Some(value) = value.filter(|value| !range.contains(value)) {
        let (low, high) = (range.start(), range.end());
        faults.add(field, format!("{value} is out of range: write {low} to {high}"));
    }
}

fn check_prefixes(path: &str, texts: Option<&[String]>, faults: &mut Faults<'_>) {
    let texts = texts.unwrap_or_default();
    check_number(path, "prefixes", texts.len(), MAX_PREFIXES, faults);
    let mut seen = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let field = format!("{path}[{index}]");
        let Some(prefix) = check_prefix(&field, text, faults) else { continue };
        if seen.contains(&prefix) {
            faults.add(field, format!("{text} is listed twice: remove one"));
        }
        seen.push(prefix);
    }
}

fn check_targets(texts: Option<&[String]>, faults: &mut Faults<'_>) {
    const PATH: &str = "spec.config.probes.targets";
    let texts = texts.unwrap_or_default();
    check_number(PATH, "addresses", texts.len(), MAX_PREFIXES, faults);
    for (index, text) in texts.iter().enumerate() {
        let address = text.parse::<IpAddr>().ok();
        let is_host = |address: &IpAddr| match address {
            IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_broadcast(),
            IpAddr::V6(v6) => !v6.is_unicast_link_local() && v6.to_ipv4_mapped().is_none(),
        };
        let is_local =
            |address: &IpAddr| address.is_unspecified() || address.is_loopback() || address.is_multicast();
        if !address.is_some_and(|address| !is_local(&address) && is_host(&address)) {
            faults.add(
                format!("{PATH}[{index}]"),
                format!(
                    "`{text}` cannot be the address of another node: write an address that routers reach, \
                     such as 10.0.0.12"
                ),
            );
        }
    }
}

fn check_links(path: &str, entries: Option<&[String]>, faults: &mut Faults<'_>) {
    let entries = entries.unwrap_or_default();
    check_number(path, "links", entries.len(), MAX_LINKS, faults);
    for (index, entry) in entries.iter().enumerate() {
        let field = format!("{path}[{index}]");
        if let Err(reason) = check_link(entry) {
            faults.add(field.as_str(), reason);
        }
        if entries[..index].contains(entry) {
            faults.add(field, format!("{entry} is listed twice: remove one"));
        }
    }
}

/// Checks a name, a regular expression or `can-reach=ADDRESS`. The error has the fix.
fn check_link(entry: &str) -> Result<(), String> {
    if entry.len() > MAX_LINK {
        return Err(format!("it has {} octets: write at most {MAX_LINK}", entry.len()));
    }
    if let Some(address) = entry.strip_prefix(REACHES) {
        let address = address.parse::<IpAddr>().ok().filter(|address| !address.is_unspecified());
        return match address {
            Some(_) => Ok(()),
            None => Err(format!(
                "{entry} has no address behind {REACHES}: write an address such as {REACHES}10.0.0.1"
            )),
        };
    }
    let Some(pattern) = entry.strip_prefix('/') else {
        return match is_interface_name(entry) {
            true => Ok(()),
            false => Err(format!(
                "`{entry}` is not the name of an interface: write it as `ip link` shows it; for a regular \
                 expression write /EXPRESSION/, for the link of a route {REACHES}ADDRESS"
            )),
        };
    };
    const EXAMPLE: &str = "write one such as /^eth[0-9]+$/";
    let Some(pattern) = pattern.strip_suffix('/').filter(|pattern| !pattern.is_empty()) else {
        return Err(format!("{entry} has no expression between two slashes: {EXAMPLE}"));
    };
    check_pattern(pattern).map_err(|reason| format!("{entry} is no regular expression: {reason}: {EXAMPLE}"))
}

/// Checks the syntax of a regular expression, as the agent reads it.
#[cfg(feature = "kube")]
fn check_pattern(pattern: &str) -> Result<(), String> {
    match regex::bytes::RegexBuilder::new(pattern).unicode(false).build() {
        Ok(_) => Ok(()),
        Err(error) => {
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default().trim();
            Err(reason.trim_start_matches("error: ").to_owned())
        }
    }
}

/// The CNI plugin reads no settings, and has no regular expressions.
#[cfg(not(feature = "kube"))]
fn check_pattern(_: &str) -> Result<(), String> {
    Ok(())
}
