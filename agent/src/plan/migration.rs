//! Live migration of a virtual machine in networks of mode BGP and GlobalBGP.
//!
//! Two pods have the addresses, and one of them runs the virtual machine. Only the node of that pod
//! delivers packets to its own pod:
//!
//! | pod | route to the pod | advertisement |
//! |---|---|---|
//! | [`Active`](MigrationState::Active) | yes | as usual |
//! | [`Arrived`](MigrationState::Arrived) | yes | as usual |
//! | [`Departing`](MigrationState::Departing) | yes | worse than any other path |
//! | [`Inactive`](MigrationState::Inactive) | no: its node sends the packets to the fabric | none |
//!
//! **The worse path** has ORIGIN INCOMPLETE, GRACEFUL_SHUTDOWN (RFC 8326), and towards internal peers
//! LOCAL_PREF 0. A router compares ORIGIN before it selects paths for ECMP. So it uses the target's
//! path alone, from the moment when the path arrives, even if it does not know the community. AS_PATH
//! does not change: routers often accept only an AS_PATH of one AS from a rack.
//!
//! **Packets for an inactive pod's addresses** have a rule after the local pods (preference
//! [`MIGRATION_RULE`]) to the table of the subnet, which leads to the fabric. So pods of the target's
//! node reach the source before the switch. And packets that still arrive at the source after the
//! switch continue to the target. The rule exists before the switch, so the switch changes only the
//! route to the pod. Between two uplinks in a network of mode BGP such a packet is on an alternate
//! path ([`super::alternate`]), so it cannot loop. In GlobalBGP its TTL ends a loop.
//!
//! An overlay needs no such rule: its table has the route to the node of the other pod.

use trunkline_bgp::rib::Origination;
use trunkline_bgp::types::Community;
use trunkline_bgp::wire::Origin;
use trunkline_datapath::family::IpFamily;
use trunkline_datapath::plan::{MIGRATION_RULE, Rule};

use super::{Host, Mode, Plan};
use crate::ipam::MigrationState;

/// Adds the rules of addresses in live migration to the plan.
pub(super) fn plan(plan: &mut Plan, host: &Host) {
    let rule = |(network, address): &(String, std::net::IpAddr)| {
        let network = plan.networks.get(network)?;
        let is_bgp = matches!(network.mode, Mode::Bgp | Mode::GlobalBgp) && network.refused.is_none();
        let (_, subnet) = network.subnet_of(*address).filter(|_| is_bgp)?;
        let prefix = (*address).into();
        let all = Rule::always(IpFamily::of(&prefix), MIGRATION_RULE, subnet.table?);
        Some(Rule { to: Some(prefix), ..all })
    };
    let rules: Vec<Rule> = host.migrating.iter().filter_map(rule).collect();
    plan.kernel.rules.extend(rules);
}

/// The origination of a pod's address, with these communities.
pub(super) fn origination(state: MigrationState, mut communities: Vec<Community>) -> Origination {
    match state {
        MigrationState::Active | MigrationState::Arrived | MigrationState::Inactive => {
            Origination { communities, ..Origination::default() }
        }
        MigrationState::Departing => {
            communities.push(Community::GRACEFUL_SHUTDOWN);
            let (origin, local_pref) = (Origin::Incomplete, Some(0));
            Origination { origin, local_pref, communities, ..Origination::default() }
        }
    }
}
