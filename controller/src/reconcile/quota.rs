//! Quota labels: a node's labels say whether its Underlay network has an address left, by family, and the scheduler keeps pods away
//! from nodes where they would get none.

use trunkline_api::names::{QUOTA_EMPTY, QUOTA_NONEMPTY, label};

use crate::ipam::NetworkUsage;

/// The labels, with whether an address is left.
pub const LABELS: [&str; 3] =
    [label::IPV4_ADDRESS_QUOTA, label::IPV6_ADDRESS_QUOTA, label::DUAL_STACK_ADDRESS_QUOTA];

/// Whether an address is left: IPv4, IPv6, a pair.
pub fn quota(usage: &NetworkUsage) -> [bool; 3] {
    [usage.v4.has_room(), usage.v6.has_room(), usage.dual_stack.has_room()]
}

/// The labels of a node, with their values; `None` is no label, where the node has no Underlay network.
pub fn labels(quota: Option<[bool; 3]>) -> [(&'static str, Option<&'static str>); 3] {
    let value = |left: bool| if left { QUOTA_NONEMPTY } else { QUOTA_EMPTY };
    std::array::from_fn(|index| (LABELS[index], quota.map(|quota| value(quota[index]))))
}
