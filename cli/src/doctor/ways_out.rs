//! The default routes of pods' packets: excluded peers, and differences between the kernel and the
//! agent.

use std::net::IpAddr;

use trunkline_agent::family::ip_family;
use trunkline_api::control::{AgentStatus, DefaultRouteStatus, ExclusionCause, next_hops_in_words};
use trunkline_bgp::types::Family;
use trunkline_datapath::netlink::{Connection, NetlinkError, objects};
use trunkline_datapath::plan::RouteTarget;

use super::Finding;

/// Compares each family's default route in the agent's answer and in the kernel.
pub(super) fn check(status: &AgentStatus) -> Vec<Finding> {
    let ways = status.bgp.iter().flat_map(|bgp| &bgp.ways_out);
    ways.flat_map(|way| {
        let mut findings = left_out(way);
        // Another check reports a kernel that does not answer.
        findings.extend(next_hops(way).ok().and_then(|there| differs(way, &there)));
        findings
    })
    .collect()
}

fn left_out(way: &DefaultRouteStatus) -> Vec<Finding> {
    let others = || next_hops_in_words(&way.wanted);
    let finding = |peer: &str, reason: &str| {
        Finding::warning(
            "way-out",
            format!(
                "pods' {} packets do not use peer {peer}: it {reason}; they use {}",
                way.family,
                others()
            ),
            format!(
                "check the uplinks of that router and its default route: `trunkline routes \
                 --received {peer}` lists its routes"
            ),
        )
    };
    // The check of probes reports the faults that probes found.
    let reported = |cause| matches!(cause, ExclusionCause::Withdrawn | ExclusionCause::NotOffered);
    let out = way.left_out.iter().filter(|out| reported(out.cause));
    out.map(|out| finding(&out.peer, &out.reason)).collect()
}

fn differs(way: &DefaultRouteStatus, there: &[IpAddr]) -> Option<Finding> {
    (way.wanted != there).then(|| {
        Finding::error(
            "way-out",
            format!(
                "the kernel's {} default route in table {} uses {}, the plan has {}",
                way.family,
                way.table,
                next_hops_in_words(there),
                next_hops_in_words(&way.wanted)
            ),
            "look for \"kernel\" in the agent's log; a restart of the agent installs the route again",
        )
    })
}

/// The gateways of the default route in the kernel.
fn next_hops(way: &DefaultRouteStatus) -> Result<Vec<IpAddr>, NetlinkError> {
    let Some(family) = Family::ALL.into_iter().find(|family| family.to_string() == way.family) else {
        return Ok(way.wanted.clone());
    };
    let routes = Connection::open()?.list(
        |batch| batch.dump_table(ip_family(family), way.table),
        |body| objects::read_route(body).filter(|route| route.key.prefix.prefix_len() == 0),
    )?;
    let hops = routes.iter().filter_map(|route| route.target.as_ref()).flat_map(RouteTarget::hops);
    let mut gateways: Vec<IpAddr> = hops.filter_map(|hop| hop.gateway).collect();
    gateways.sort_unstable();
    Ok(gateways)
}

#[cfg(test)]
mod tests {
    use trunkline_api::control::{DefaultRouteBasis, ExcludedPeer};

    use super::*;

    #[test]
    fn excluded_peer_and_different_kernel_route_are_findings() {
        let out = |cause| ExcludedPeer {
            peer: "10.12.0.1".to_owned(),
            cause,
            reason: "withdrew its default route".to_owned(),
        };
        let way = |cause| DefaultRouteStatus {
            family: "ipv4-unicast".to_owned(),
            table: 10_000,
            basis: DefaultRouteBasis::Advertised,
            peers: vec!["10.11.0.1".to_owned()],
            wanted: vec!["10.11.0.1".parse().unwrap()],
            installed: Vec::new(),
            left_out: vec![out(cause)],
        };
        assert_eq!(left_out(&way(ExclusionCause::Pending)), []);
        let found = left_out(&way(ExclusionCause::Withdrawn));
        assert_eq!(
            found[0].text,
            "pods' ipv4-unicast packets do not use peer 10.12.0.1: it withdrew its default route; \
             they use 10.11.0.1"
        );
        let way = way(ExclusionCause::Withdrawn);
        assert_eq!(differs(&way, &way.wanted), None);
        let both = ["10.11.0.1".parse().unwrap(), "10.12.0.1".parse().unwrap()];
        assert_eq!(
            differs(&way, &both).unwrap().text,
            "the kernel's ipv4-unicast default route in table 10000 uses 10.11.0.1, 10.12.0.1, the \
             plan has 10.11.0.1"
        );
    }
}
