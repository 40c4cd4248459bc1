//! Sysctls that the agent writes only if the configuration requests them.

use trunkline_datapath::plan::{KernelPlan, Sysctl};

use super::RequestedSysctls;

pub(super) fn plan(requested: RequestedSysctls, kernel: &mut KernelPlan) {
    let RequestedSysctls { route_localnet, disable_arp_filter } = requested;
    kernel.route_localnet = route_localnet;
    // A pod can send to 127.0.0.0/8 itself, if it has routes for that. Only packets that this node
    // translates may arrive there.
    kernel.guard.closes_loopback = route_localnet;
    if disable_arp_filter {
        kernel.sysctls.insert("net/ipv4/conf/all/arp_filter".to_owned(), Sysctl::Exactly("0"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_request_nothing_is_written() {
        let mut kernel = KernelPlan::default();
        plan(RequestedSysctls::default(), &mut kernel);
        assert_eq!(kernel, KernelPlan::default());
        plan(RequestedSysctls { route_localnet: true, disable_arp_filter: true }, &mut kernel);
        assert!(kernel.route_localnet && kernel.guard.closes_loopback);
        assert_eq!(kernel.sysctls["net/ipv4/conf/all/arp_filter"], Sysctl::Exactly("0"));
    }
}
