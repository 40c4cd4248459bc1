//! Pods on the racks' own VLANs, in a user-mode kernel: see lab/topologies/l2.clab.yml for who is where.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::bed::{Bed, PATIENCE, lab};
use super::{Context, Test, Verdict, passed};
use crate::pinger::{Flow, unreachable};

pub(super) const TESTS: &[Test] = &[Test {
    name: "l2/switch",
    about: "tagged hosts of two racks reach each other, and not by a port that lacks their VLAN",
    run: switch,
}];

/// Echo requests from a host of the topology.
fn flows(bed: &Bed<'_>, from: &str, to: &[&str]) -> Result<Vec<Flow>> {
    let ns = bed.host(from)?.ns.clone();
    let flow = |to: &&str| -> Result<Flow> {
        let to: IpAddr = to.parse()?;
        Ok(Flow { name: format!("{from} to {to}"), from: ns.clone(), to })
    };
    to.iter().map(flow).collect()
}

/// That the lab itself is what it pretends to be.
fn switch(context: &Context) -> Result<Verdict> {
    lab(context, "l2", |bed| {
        let far = ["10.11.0.1", "10.21.0.200", "10.90.0.2", "fd00:11::1", "fd00:21::c8", "fd00:90::2"];
        let without = unreachable(flows(bed, "host1", &far)?, PATIENCE)?;
        ensure!(without.is_empty(), "no answer: {without:?}");
        let silence = Duration::from_secs(1);
        for port in ["eth3", "eth9"] {
            let switch = bed.host("sw1")?;
            switch.sh(&format!("bridge vlan del dev {port} vid 11"))?;
            let without = unreachable(flows(bed, "host1", &far)?, silence)?;
            ensure!(without.len() == far.len(), "{port} lacks VLAN 11, and only {without:?} had no answer");
            let untagged = unreachable(flows(bed, "node1", &["10.1.0.1", "10.2.0.13"])?, PATIENCE)?;
            ensure!(untagged.is_empty(), "the nodes' own network has no answer: {untagged:?}");
            switch.sh(&format!("bridge vlan add dev {port} vid 11"))?;
            let without = unreachable(flows(bed, "host1", &far)?, PATIENCE)?;
            ensure!(without.is_empty(), "VLAN 11 is back on {port}; no answer: {without:?}");
        }
        passed("two racks, IPv4 and IPv6, both ends of the trunk")
    })
}
