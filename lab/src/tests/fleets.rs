//! Fabrics with a special shape: a route reflector among its clients, and more nodes than in the
//! other labs.

use anyhow::{Result, ensure};

use super::bed::{Bed, PATIENCE, lab};
use super::matrix::{Party, reachable};
use super::{Context, Test, Verdict, passed};
use crate::capture::Capture;
use crate::pinger::Flow;
use crate::{client, routers};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "fabric/reflector",
        about: "nodes and a router of one AS get each other's routes only from a reflector, and no \
                packet passes it",
        run: reflector,
    },
    Test {
        name: "fabric/twenty-nodes",
        about: "a pod on each of twenty nodes reaches the pods of all others, in both families",
        run: twenty_nodes,
    },
];

/// Waits until all sessions are up, and attaches a pod in this network on each node of role `node`.
fn pods(bed: &Bed<'_>, network: impl Fn(&str) -> String) -> Result<Vec<Party>> {
    let nodes: Vec<&str> = bed.fabric.topology.with_role("node").collect();
    for node in &nodes {
        client::wait_established(bed.host(node)?, PATIENCE)?;
    }
    for router in bed.fabric.topology.with_role("tor") {
        routers::wait_sessions(bed.fabric, router, PATIENCE)?;
    }
    nodes.iter().map(|node| Party::attach(bed, node, "pod", &network(node), None)).collect()
}

/// Flows from each party to every address of every other.
fn all_pairs(parties: &[Party]) -> Vec<Flow> {
    let others = |from: &Party, to: &Party| from.name != to.name;
    parties
        .iter()
        .flat_map(|from| parties.iter().filter(move |to| others(from, to)).map(move |to| (from, to)))
        .flat_map(|(from, to)| to.addresses.iter().map(|address| from.flow(*address)))
        .collect()
}

fn reflector(context: &Context) -> Result<Verdict> {
    lab(context, "reflector", |bed| {
        client::wait_established(bed.host("rr")?, PATIENCE)?;
        let mut parties = pods(bed, |_| "rack".to_owned())?;
        parties.push(Party::host(bed.host("outside")?, &["10.90.0.2", "fd00:90::2"])?);
        let passing = Capture::start(&bed.host("rr")?.ns, "eth1", "net 10.61.0.0/16 or net fd00:61::/112")?;
        let flows = all_pairs(&parties);
        let ways = flows.len();
        reachable(flows)?;
        let seen = passing.seen();
        ensure!(seen.is_empty(), "passed the reflector: {seen:?}");
        // A reflector does not change the next hop.
        let of_node2 = parties[1].address(true)?;
        let path = client::routes(bed.host("node1")?)?.into_iter().find(|p| p.prefix.addr() == of_node2);
        let next_hop = path.as_ref().and_then(|path| path.next_hop);
        ensure!(next_hop == Some("10.30.0.12".parse()?), "node1's path to {of_node2} is {path:?}");
        passed(format!("{ways} ways"))
    })
}

fn twenty_nodes(context: &Context) -> Result<Verdict> {
    lab(context, "twenty-nodes", |bed| {
        let rack = |node: &str| format!("rack{}", bed.fabric.topology.nodes[node].labels["rack"]);
        let pods = pods(bed, rack)?;
        let flows = all_pairs(&pods);
        let ways = flows.len();
        reachable(flows)?;
        passed(format!("{} pods, {ways} pairs of addresses", pods.len()))
    })
}
