//! One cluster with all kinds of networks, in a user-mode kernel: see lab/topologies/hybrid-vlan.clab.yml for who is where.

use anyhow::{Result, ensure};

use super::bed::{Bed, PATIENCE, lab};
use super::matrix::{Party, matrix};
use super::{Context, Test, Verdict, passed};
use crate::client;
use crate::cni::{self, Sandbox};

pub(super) const TESTS: &[Test] = &[Test {
    name: "hybrid/vlan",
    about: "pods of all kinds, and what is outside, reach each other by their own addresses, IPv4 and IPv6",
    run: pairs,
}];

const BGP_NODES: [&str; 2] = ["node1", "node2"];

fn pod(bed: &Bed<'_>, node: &str, name: &str, network: &str) -> Result<Party> {
    let sandbox = Sandbox::create(bed.fabric, node, name)?;
    let attached = cni::add(bed.fabric, &cni::trunkline(Some(network)), &sandbox)?;
    ensure!(attached.addresses.len() == 2, "{name} has {:?}, not one of each family", attached.addresses);
    Ok(Party::pod(&sandbox, &attached))
}

fn pairs(context: &Context) -> Result<Verdict> {
    lab(context, "hybrid-vlan", |bed| {
        for node in BGP_NODES {
            client::wait_established(bed.host(node)?, PATIENCE)?;
        }
        let mut parties = Vec::new();
        for node in ["node1", "node2", "node3", "node4"] {
            parties.push(pod(bed, node, "u", "underlay")?);
        }
        parties.push(Party::host(bed.host("outside")?, &["10.90.0.2", "fd00:90::2"])?);
        let pairs = matrix(&parties)?;
        passed(format!("{pairs} pairs of addresses"))
    })
}
