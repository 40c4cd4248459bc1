//! Rules for a ServiceAdvertisement that need no other object.

use std::collections::BTreeSet;

use super::attributes::{
    check_communities, check_each, check_graceful_shutdown, check_number, check_peers, check_prefix,
    check_prepend, check_routed, check_selector,
};
use crate::fault::Faults;
use crate::policy::parse_extended_community;
use crate::resources::{AddressBlock, AddressKind, ServiceAdvertisementSpec, Weights};

/// The highest number of named pools, and of prefixes for External addresses.
const MAX_NAMED: usize = 64;

pub(super) fn check(spec: &ServiceAdvertisementSpec, faults: &mut Faults<'_>) {
    for (path, selector) in [
        ("spec.serviceSelector", &spec.service_selector),
        ("spec.namespaceSelector", &spec.namespace_selector),
        ("spec.nodeSelector", &spec.node_selector),
    ] {
        check_selector(selector, path, faults);
    }
    check_number("spec.pools", "pools", spec.pools.len(), MAX_NAMED, faults);
    for (index, pool) in spec.pools.iter().enumerate() {
        if pool.is_empty() {
            faults.add(format!("spec.pools[{index}]"), "missing: write the name of a ServicePool");
        }
    }
    check_kinds(spec, faults);
    check_peers(&spec.peers, faults);
    check_communities(&spec.communities, &spec.large_communities, faults);
    check_each("spec.extendedCommunities", &spec.extended_communities, parse_extended_community, faults);
    check_prepend(spec.prepend, faults);
    for (field, length, least, most) in
        [("ipv4", spec.aggregation_length.ipv4, 8, 32), ("ipv6", spec.aggregation_length.ipv6, 16, 128)]
    {
        if let Some(length) = length.filter(|length| !(least..=most).contains(length)) {
            faults.add(
                format!("spec.aggregationLength.{field}"),
                format!("{length} is not a length of an advertised prefix: write {least} to {most}"),
            );
        }
    }
    if spec.weights != Weights::None && spec.aggregation_length.aggregates() {
        faults.add(
            "spec.weights",
            "the endpoints of one Service are no weight of a prefix with several addresses: write None, or leave \
             aggregationLength out",
        );
    }
    check_graceful_shutdown(spec.graceful_shutdown_seconds, faults);
}

/// The kinds of addresses, and the prefixes that External addresses need.
fn check_kinds(spec: &ServiceAdvertisementSpec, faults: &mut Faults<'_>) {
    let mut seen = BTreeSet::new();
    for (index, kind) in spec.addresses.iter().enumerate() {
        if !seen.insert(kind) {
            faults.add(
                format!("spec.addresses[{index}]"),
                format!("{} occurs twice: delete one of the two", kind.name()),
            );
        }
    }
    match (seen.contains(&AddressKind::External), spec.external_cidrs.is_empty()) {
        (true, true) => faults.add(
            "spec.externalCIDRs",
            "missing: without it, any user who may create a Service could attract the traffic of any address: \
             write the prefixes that hold the External addresses",
        ),
        (false, false) => faults.add(
            "spec.externalCIDRs",
            "addresses does not list External: write External there, or leave the prefixes out",
        ),
        _ => {}
    }
    check_number("spec.externalCIDRs", "prefixes", spec.external_cidrs.len(), MAX_NAMED, faults);
    for (index, text) in spec.external_cidrs.iter().enumerate() {
        let field = format!("spec.externalCIDRs[{index}]");
        if let Some(prefix) = check_prefix(&field, text, faults) {
            check_routed(&field, &AddressBlock::from(prefix), faults);
        }
    }
}
