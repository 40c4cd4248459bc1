//! Upstream's tests that do not run on the lab's cluster, each with its reason. Every other test of
//! `[sig-network]` runs and must pass. A test is named by a part of its full name, with upstream's
//! own labels. A run fails if the suite has no test with such a name any more.

use crate::cli::Families;

/// Tests that are left out.
pub(super) struct Exclusion {
    /// A part of the tests' full names.
    pub part: &'static str,
    pub reason: &'static str,
    when: When,
}

/// The clusters without the tests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    SingleFamily,
    DualStack,
    Ipv6,
}

const fn always(part: &'static str, reason: &'static str) -> Exclusion {
    Exclusion { part, reason, when: When::Always }
}

const ALL: &[Exclusion] = &[
    always(
        "load balancer cleanup finalizer",
        "needs the finalizer of cloud controllers; Trunkline gives addresses back without a finalizer",
    ),
    always(
        "should target all nodes with endpoints",
        "the routers hash the addresses only, as session affinity needs: one client reaches one node",
    ),
    always(
        "should be able to switch session affinity for LoadBalancer service with Local traffic policy",
        "without affinity the client must reach two endpoints, and they are on different nodes: see above",
    ),
    always("[Feature:Networking-IPv4]", "needs the internet"),
    always("[Feature:Networking-IPv6]", "needs the internet"),
    always("[Feature:Networking-DNS]", "needs the internet"),
    always("DNS configMap nameserver Forward PTR lookup", "needs the internet"),
    always("[Provider:GCE]", "needs Google's cloud"),
    always("[Feature:SCTPConnectivity]", "needs the kernel's module sctp, which a machine may lack"),
    always("[Feature:Networking-Performance]", "measures throughput and has no bound"),
    always("[Feature:PerformanceDNS]", "measures CoreDNS with 10,000 Services"),
    always("[Disruptive]", "logs in to nodes by SSH, to restart parts of the cluster"),
    always("[Alpha]", "needs a feature that is off by default"),
    Exclusion {
        part: "[Feature:IPv6DualStack]",
        reason: "needs a cluster with both families (--family dual)",
        when: When::SingleFamily,
    },
    Exclusion {
        part: "should only target nodes with endpoints",
        reason: "upstream's test counts one address for each node, and nodes of two families have two",
        when: When::DualStack,
    },
    Exclusion { part: "NoSNAT", reason: "upstream's test reads the nodes' IPv4 addresses", when: When::Ipv6 },
    Exclusion {
        part: "ExternalTrafficPolicy: Local [Feature:LoadBalancer] [Slow] should work from pods",
        reason: "upstream's test compares the pod's address, without brackets, with `[address]:port`",
        when: When::Ipv6,
    },
    Exclusion {
        part: "should only allow access from service loadbalancer source ranges",
        reason: "upstream's test passes the address without brackets to wget",
        when: When::Ipv6,
    },
];

/// A case of cyclonus that may fail.
pub(super) struct Exception {
    /// A part of the cases' names, which end with their tags.
    pub part: &'static str,
    pub reason: &'static str,
}

/// Every other case must pass.
pub(super) const CYCLONUS: &[Exception] = &[];

/// The exception for a case of cyclonus.
pub(super) fn of_cyclonus(name: &str) -> Option<&'static Exception> {
    CYCLONUS.iter().find(|exception| name.contains(exception.part))
}

/// The exclusions for a cluster.
pub(super) fn of(families: Families) -> impl Iterator<Item = &'static Exclusion> {
    ALL.iter().filter(move |exclusion| match exclusion.when {
        When::Always => true,
        When::SingleFamily => families != Families::Dual,
        When::DualStack => families == Families::Dual,
        When::Ipv6 => families == Families::Ipv6,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exclusion_has_a_reason_and_appears_once() {
        for exclusion in ALL {
            assert!(exclusion.reason.len() > 10, "{}: {:?}", exclusion.part, exclusion.reason);
            assert_eq!(ALL.iter().filter(|other| other.part == exclusion.part).count(), 1);
        }
        assert!(of(Families::Dual).all(|exclusion| exclusion.part != "[Feature:IPv6DualStack]"));
    }
}
