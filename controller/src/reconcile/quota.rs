//! Quota labels on nodes: whether the Underlay network has a free address, by family. The scheduler
//! keeps pods away from nodes without free addresses.

use trunkline_api::names::{QUOTA_EMPTY, QUOTA_NONEMPTY, label};

use crate::ipam::NetworkUsage;

/// The labels, in the order of [`quota`].
pub const LABELS: [&str; 3] =
    [label::IPV4_ADDRESS_QUOTA, label::IPV6_ADDRESS_QUOTA, label::DUAL_STACK_ADDRESS_QUOTA];

/// Whether an address is free: IPv4, IPv6, a pair.
pub fn quota(usage: &NetworkUsage) -> [bool; 3] {
    [usage.v4.has_room(), usage.v6.has_room(), usage.dual_stack.has_room()]
}

/// The quota labels of a node with their values; `None` removes a label, for a node without an
/// Underlay network.
pub fn labels(quota: Option<[bool; 3]>) -> [(&'static str, Option<&'static str>); 3] {
    let value = |left: bool| if left { QUOTA_NONEMPTY } else { QUOTA_EMPTY };
    std::array::from_fn(|index| (LABELS[index], quota.map(|quota| value(quota[index]))))
}
