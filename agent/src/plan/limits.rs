//! Limits of the kernel that a node with many pods, or in a large VLAN, reaches. Beyond its limit of
//! neighbours the kernel drops packets (`neighbour: arp_cache: neighbor table overflow!`).
//!
//! The host's own network namespace has the limits of neighbours, for all namespaces.

use trunkline_datapath::plan::{KernelPlan, Sysctl};

use super::KernelLimits;

pub(super) fn plan(limits: KernelLimits, kernel: &mut KernelPlan) {
    let mut at_least = |path: String, value: u32| {
        if value > 0 {
            kernel.sysctls.insert(path, Sysctl::AtLeast(value));
        }
    };
    let KernelLimits { neighbours, ipv6_routes } = limits;
    for family in ["ipv4", "ipv6"] {
        for (number, value) in [(1, neighbours / 4), (2, neighbours / 2), (3, neighbours)] {
            at_least(format!("net/{family}/neigh/default/gc_thresh{number}"), value);
        }
    }
    at_least("net/ipv6/route/max_size".to_owned(), ipv6_routes);
    at_least("net/ipv6/route/gc_thresh".to_owned(), ipv6_routes / 8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_of_hybridnet_by_default() {
        let mut kernel = KernelPlan::default();
        plan(crate::config::Config::default().kernel_limits(), &mut kernel);
        let value = |path: &str| match kernel.sysctls.get(path) {
            Some(Sysctl::AtLeast(value)) => *value,
            other => panic!("{path}: {other:?}"),
        };
        for family in ["ipv4", "ipv6"] {
            let thresholds = [1, 2, 3].map(|n| value(&format!("net/{family}/neigh/default/gc_thresh{n}")));
            assert_eq!(thresholds, [1024, 2048, 4096]);
        }
        assert_eq!((value("net/ipv6/route/max_size"), value("net/ipv6/route/gc_thresh")), (524_288, 65_536));
        let mut nothing = KernelPlan::default();
        plan(KernelLimits::default(), &mut nothing);
        assert_eq!(nothing, KernelPlan::default());
    }
}
