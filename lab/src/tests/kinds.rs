//! One cluster with all three kinds of underlay and an overlay, in a user-mode kernel;
//! lab/topologies/kinds.clab.yml shows the places.
//!
//! A node has one underlay, so a BGP pod and a VLAN pod are always on two nodes. Every other pair
//! of kinds occurs on one node and on two. NAT is not tested here. `hybrid/nat` tests NAT in the
//! machine's kernel.

use anyhow::{Result, ensure};

use super::bed::{Bed, PATIENCE, lab};
use super::matrix::{Party, flows, full_size, matrix, reachable};
use super::{Context, Test, Verdict, passed};
use crate::capture::Senders;
use crate::shell::{Seen, wait_for};
use crate::{client, routers};

pub(super) const TESTS: &[Test] = &[Test {
    name: "hybrid/kinds",
    about: "BGP, GlobalBGP, VLAN (veth, ipvlan) and VXLAN pods on six nodes: all pairs, sources unchanged, full-size packets",
    run: kinds,
}];

/// Pods: node, name, network, and the addresses of a pod if its node has no block of the subnet.
const PODS: [(&str, &str, &str, Option<&str>); 19] = [
    ("node1", "bgp", "rack1", None),
    ("node1", "bgp2", "rack1", None),
    ("node1", "global", "global", None),
    ("node1", "global2", "global", None),
    ("node1", "overlay", "overlay", None),
    ("node1", "overlay2", "overlay", None),
    ("node2", "bgp", "rack1", None),
    ("node2", "global", "global", None),
    ("node2", "overlay", "overlay", None),
    ("node3", "veth", "rack2", None),
    ("node3", "veth2", "rack2", None),
    ("node3", "overlay", "overlay", None),
    ("node4", "veth", "rack2", None),
    ("node4", "overlay", "overlay", None),
    ("node5", "ipvlan", "rack3", Some("10.31.0.50,fd00:31::50")),
    ("node5", "ipvlan2", "rack3", Some("10.31.0.51,fd00:31::51")),
    ("node5", "overlay", "overlay", None),
    ("node6", "ipvlan", "rack3", Some("10.31.0.60,fd00:31::60")),
    ("node6", "overlay", "overlay", None),
];

/// Waits until pods of all kinds have their routes.
fn ready(bed: &Bed<'_>) -> Result<()> {
    routers::wait_sessions(bed.fabric, "gw", PATIENCE)?;
    for node in (1..=6).map(|number| format!("node{number}")) {
        wait_for(&format!("{node}'s devices"), PATIENCE, || {
            let status = client::status(bed.host(&node)?)?;
            let served = status.networks.iter().filter(|network| network.refused.is_none());
            let faults: Vec<&str> = served
                .flat_map(|network| &network.subnets)
                .filter_map(|subnet| subnet.device_fault.as_deref())
                .chain(status.not_ready.iter().map(String::as_str))
                .collect();
            Ok(Seen::when(faults.is_empty(), || format!("{faults:?}")))
        })?;
    }
    Ok(())
}

fn kinds(context: &Context) -> Result<Verdict> {
    lab(context, "kinds", |bed| {
        ready(bed)?;
        let pods = PODS
            .into_iter()
            .map(|(node, name, network, addresses)| Party::attach(bed, node, name, network, addresses))
            .collect::<Result<Vec<_>>>()?;
        for pod in &pods {
            ensure!(pod.addresses.len() == 2, "{} has {:?}, not one of each family", pod.name, pod.addresses);
            let device = pod.ns.ip(["-d", "-o", "link", "show", "eth0"])?;
            let by_ipvlan = pod.name.contains("ipvlan");
            ensure!(device.contains(" ipvlan ") == by_ipvlan, "{}'s device: {device}", pod.name);
        }
        let ways = matrix(&pods)?;
        let sizes = full_size(&pods)?;

        // The external host sees the underlays' pods by their own addresses, and no packets of the
        // overlay.
        let outside = bed.host("outside")?;
        let seen = Senders::of_requests(&outside.ns)?;
        let underlay = || pods.iter().filter(|pod| !pod.name.contains("overlay"));
        for v4 in [true, false] {
            let host = if v4 { "10.90.0.2" } else { "fd00:90::2" }.parse()?;
            reachable(underlay().map(|pod| pod.flow(host)).collect())?;
            let wanted = underlay().map(|pod| pod.address(v4)).collect::<Result<_>>()?;
            seen.wait(host, &wanted, PATIENCE)?;
            let to: Vec<String> = wanted.iter().map(ToString::to_string).collect();
            reachable(flows(outside, &to)?)?;
        }
        passed(format!(
            "{ways} pairs of IPv4 and IPv6 addresses of {} pods, sources unchanged; {sizes} sizes",
            pods.len()
        ))
    })
}
