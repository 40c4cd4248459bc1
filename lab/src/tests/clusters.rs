//! Two clusters that are joined: lab/topologies/clusters.clab.yml shows their places.

use anyhow::{Result, ensure};
use trunkline_api::control::{IgnoredParts, RemoteClusterStatus};

use super::bed::{Bed, PATIENCE, lab};
use super::matrix::{Party, full_size, matrix};
use super::{Context, Test, Verdict, passed};
use crate::pinger::unreachable;
use crate::shell::{Seen, cmd, run, wait_for};
use crate::{client, routers};

pub(super) const TESTS: &[Test] = &[Test {
    name: "clusters/all-pairs",
    about: "BGP, VLAN and VXLAN pods of two clusters: all pairs in both directions, sources unchanged, \
            full-size packets; objects that claim addresses of others change nothing; a cluster leaves",
    run: all_pairs,
}];

/// Each node with the remote cluster that it knows.
const NODES: [(&str, &str); 4] = [("node1", "west"), ("node2", "west"), ("node3", "east"), ("node4", "east")];

/// The second octet of a node's VLAN; none on a node with BGP pods.
fn vlan_of(node: &str) -> Option<&'static str> {
    match node {
        "node2" => Some("41"),
        "node4" => Some("42"),
        _ => None,
    }
}

fn remote(bed: &Bed<'_>, node: &str) -> Result<Option<RemoteClusterStatus>> {
    Ok(client::status(bed.host(node)?)?.remote_clusters.pop())
}

fn wait_remote(
    bed: &Bed<'_>,
    node: &str,
    what: &str,
    good: impl Fn(&RemoteClusterStatus) -> bool,
) -> Result<()> {
    wait_for(&format!("{what} on {node}"), PATIENCE, || {
        let found = remote(bed, node)?;
        Ok(Seen::when(found.as_ref().is_some_and(&good), || format!("{found:?}")))
    })
}

/// Waits until all sessions are up, the overlay works and both clusters know each other.
fn ready(bed: &Bed<'_>) -> Result<()> {
    for (node, cluster) in NODES {
        if vlan_of(node).is_none() {
            client::wait_established(bed.host(node)?, PATIENCE)?;
        }
        wait_remote(bed, node, "the remote cluster", |remote| {
            (remote.name.as_str(), remote.subnets.len(), remote.vteps, remote.endpoints) == (cluster, 6, 2, 8)
                && remote.ignored == IgnoredParts::default()
        })?;
        wait_for(&format!("routes to the remote pods on {node}"), PATIENCE, || {
            let routes = bed.host(node)?.sh("ip route show table 40000 2>/dev/null || :")?;
            // Two pods, and a blackhole for the rest of the subnet.
            let prefix = if cluster == "west" { "10.72." } else { "10.71." };
            let found =
                routes.lines().filter(|line| line.trim_start_matches("blackhole ").starts_with(prefix));
            Ok(Seen::when(found.count() == 3, || routes.clone()))
        })?;
    }
    for tor in ["tor1", "tor2"] {
        routers::wait_sessions(bed.fabric, tor, PATIENCE)?;
    }
    Ok(())
}

/// A pod of its underlay and an overlay pod on each node, with the addresses in the manifests of the
/// other cluster.
fn pods(bed: &Bed<'_>) -> Result<Vec<Party>> {
    let mut pods = Vec::new();
    for (number, (node, remote)) in (1..).zip(NODES) {
        let cluster = if remote == "west" { 1 } else { 2 };
        let underlay = match vlan_of(node) {
            Some(vlan) => ("vlan", format!("10.{vlan}.0.69,fd00:{vlan}::{number}005")),
            None => ("rack", format!("10.6{cluster}.{number}.5,fd00:6{cluster}::{number}005")),
        };
        let overlay = ("overlay", format!("10.7{cluster}.{number}.5,fd00:7{cluster}::{number}005"));
        for (network, addresses) in [underlay, overlay] {
            pods.push(Party::attach(bed, node, &format!("{network}{number}"), network, Some(&addresses))?);
        }
    }
    Ok(pods)
}

fn all_pairs(context: &Context) -> Result<Verdict> {
    lab(context, "clusters", |bed| {
        ready(bed)?;
        let pods = pods(bed)?;
        let ways = matrix(&pods)?;
        full_size(&pods)?;
        attack(bed)?;
        matrix(&pods)?;
        leave(bed, &pods)?;
        passed(format!(
            "{ways} pairs of IPv4 and IPv6 addresses of {} pods in two clusters, sources unchanged, full-size packets",
            pods.len()
        ))
    })
}

/// The objects of the remote cluster claim addresses of this cluster: nothing changes in the kernel.
fn attack(bed: &Bed<'_>) -> Result<()> {
    let node = bed.node()?;
    let state = || {
        node.sh("ip route show table all | grep -v ' table local ' | sort; ip rule; bridge fdb show dev eth1.vxlan70; \
                 nft list set inet trunkline-guard vteps4")
    };
    let before = state()?;
    let file = bed.fabric.file("clusters/east/attack.yaml");
    std::fs::write(
        &file,
        "apiVersion: multicluster.alibaba.com/v1\n\
         kind: RemoteSubnet\n\
         metadata: {name: west.stolen}\n\
         spec: {clusterName: west, networkType: Overlay, range: {version: \"4\", cidr: 10.71.2.0/24}}\n\
         ---\n\
         apiVersion: multicluster.alibaba.com/v1\n\
         kind: RemoteVtep\n\
         metadata: {name: west.forged}\n\
         spec:\n  clusterName: west\n  nodeName: forged\n  ip: 10.51.0.12\n  mac: \"02:00:00:00:00:07\"\n  \
         endpointIPList: [10.71.2.5]\n",
    )?;
    wait_remote(bed, "node1", "the refusal of the attack", |remote| {
        (remote.ignored.subnets, remote.ignored.vteps, remote.vteps) == (1, 1, 2)
    })?;
    let after = state()?;
    ensure!(before == after, "the attack changed the kernel:\n{before}\nafter it:\n{after}");
    std::fs::remove_file(&file)?;
    wait_remote(bed, "node1", "the end of the attack", |remote| remote.ignored == IgnoredParts::default())
}

/// Without the objects of the remote cluster, node1 has no entry for it, and sends nothing to it
/// through the tunnel.
fn leave(bed: &Bed<'_>, pods: &[Party]) -> Result<()> {
    let node = bed.node()?;
    std::fs::remove_file(bed.fabric.file("clusters/east/remote.yaml"))?;
    wait_for("the removal of all entries of the remote cluster", PATIENCE, || {
        let left = node
            .sh("ip route show table 40000; ip route show table 40001; bridge fdb show dev eth1.vxlan70; \
             nft list set inet trunkline-guard vteps4")?;
        let is_left = ["10.72.", "10.62.", "10.42.", "10.52."].iter().any(|prefix| left.contains(prefix));
        Ok(Seen::when(!is_left, || left.clone()))
    })?;
    let find = |name: &str| pods.iter().find(|pod| pod.name == name);
    if let (Some(own), Some(other), Some(near)) = (find("overlay1"), find("overlay3"), find("overlay2")) {
        let without = unreachable(vec![own.flow(near.address(true)?)], PATIENCE)?;
        ensure!(without.is_empty(), "a pod of the own cluster: {without:?}");
        let ping = format!("ping -n -c 2 -W 1 {} 2>&1 || [ $? -lt 3 ]", other.address(true)?);
        let said = run(cmd("ip", ["netns", "exec", own.ns.name()]).args(["sh", "-c", &ping]))?;
        ensure!(said.contains(" 0 received"), "a pod of the cluster that left answers: {said}");
    }
    Ok(())
}
