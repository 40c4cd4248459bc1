//! One link, router or node at a time fails, with traffic on every path: the pods stay reachable
//! during the fault.
//!
//! The rack's ToRs have no session between them, and only they have routes to pods of the rack's
//! own Subnet. So these tests check [alternate paths and
//! disaggregation](../../../docs/data-path.md). [`crate::link_faults`] has the faults.

use anyhow::{Result, ensure};

use super::bed::{Bed, PATIENCE, lab};
use super::{Context, Test, Verdict, passed};
use crate::link_faults::{
    self, CROSSED, Fault, FaultImpact, LINK_FAULTS, NODE_FAULTS, PODS_REFUSED, PodEndpoint, ROUTER_FAULTS,
    forwarded,
};
use crate::progress::say;
use crate::{client, routers};

mod uplinks;

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "failover/one-link",
        about: "each fault between one node and one ToR: pods of both kinds stay reachable, from the rack and from elsewhere, in both directions",
        run: |context| each(context, &LINK_FAULTS),
    },
    Test {
        name: "failover/one-router",
        about: "a ToR's daemons are suspended, killed or restarted: pods of both kinds stay reachable, in both directions",
        run: |context| each(context, &ROUTER_FAULTS),
    },
    Test {
        name: "failover/one-node",
        about: "faults on the node itself: the loss of pods of both kinds, in both directions, and the findings of `trunkline doctor`",
        run: |context| each(context, &NODE_FAULTS),
    },
    Test {
        name: "failover/two-links",
        about: "two nodes lose their sessions at different ToRs at once: pods of both kinds stay reachable",
        run: two_links,
    },
    Test {
        name: "failover/uplinks",
        about: "a ToR loses both uplinks and withdraws its default route: the nodes stop using it, \
                in both families, also over a SIGKILL of the agent; when the last ToR loses its \
                uplinks too, the configured next hops stay",
        run: uplinks::uplinks,
    },
];

fn attach(bed: &Bed<'_>, placed: &[(&str, &'static str)]) -> Result<Vec<PodEndpoint>> {
    let pods = placed.iter().enumerate();
    pods.map(|(index, (node, kind))| PodEndpoint::attach(bed.fabric, node, kind, &format!("{kind}{index}")))
        .collect()
}

fn suffer(bed: &Bed<'_>, fault: &Fault, inside: &[PodEndpoint], others: &[PodEndpoint]) -> Result<String> {
    let suffered = link_faults::suffer(bed.fabric, fault, inside, others, PATIENCE)?;
    let FaultImpact { fault, doctor, .. } = &suffered;
    let line = format!("{fault}: {}", suffered.words());
    say(&format!("      {line}"));
    for finding in doctor.lines() {
        say(&format!("        | {finding}"));
    }
    Ok(line)
}

fn ready(bed: &Bed<'_>) -> Result<()> {
    for node in bed.fabric.topology.with_role("node") {
        client::wait_established(bed.host(node)?, PATIENCE)?;
    }
    for tor in ["tor1a", "tor1b"] {
        routers::wait_bfd(bed.fabric, tor, PATIENCE)?;
    }
    Ok(())
}

const HERE: [(&str, &str); 3] = [("node1a", "rack"), ("node1a", "rack"), ("node1a", "global")];
const ELSEWHERE: [(&str, &str); 4] =
    [("node1b", "rack"), ("node2a", "rack"), ("node2a", "global"), ("node2b", "rack")];

fn each(context: &Context, faults: &[Fault]) -> Result<Verdict> {
    lab(context, "two-racks", |bed| {
        ready(bed)?;
        let (inside, others) = (attach(bed, &HERE)?, attach(bed, &ELSEWHERE)?);
        let mut lines = Vec::new();
        for fault in faults {
            let before = forwarded(bed.fabric)?;
            lines.push(suffer(bed, fault, &inside, &others)?);
            // The session is up, so the ToR has no other path to the pods.
            let helped = forwarded(bed.fabric)? > before;
            ensure!(
                helped || fault.name != PODS_REFUSED.name,
                "no packet used an alternate path: {}",
                fault.name
            );
        }
        passed(lines.join(" "))
    })
}

fn two_links(context: &Context) -> Result<Verdict> {
    lab(context, "two-racks", |bed| {
        ready(bed)?;
        let here = [("node1a", "rack"), ("node1b", "rack"), ("node1a", "global")];
        let elsewhere = [("node2a", "rack"), ("node2a", "global"), ("node2b", "rack")];
        let (inside, others) = (attach(bed, &here)?, attach(bed, &elsewhere)?);
        passed(suffer(bed, &CROSSED, &inside, &others)?)
    })
}
