//! containerlab with Docker deploys the same topology from the same file as the runner, with the
//! same behaviour.

use anyhow::{Result, bail, ensure};

use super::{Context, Test, Verdict, passed};
use crate::topology::Topology;
use crate::{containerlab, demo};

pub(super) const TESTS: &[Test] = &[Test {
    name: "containerlab/two-racks",
    about: "two-racks deployed by containerlab, its file unchanged: every promise of the demo holds among containers, and nothing is left",
    run: two_racks,
}];

fn two_racks(context: &Context) -> Result<Verdict> {
    if let Some(why) = containerlab::missing() {
        return Ok(Verdict::Skipped(why));
    }
    crate::progress::say("");
    let topology = Topology::load(&context.place.topology_file(demo::TOPOLOGY)?)?;
    containerlab::images::build(&context.place, [&topology], &context.product()?)?;
    let summary = demo::tour(|| containerlab::deploy(&context.place, demo::TOPOLOGY))?;
    let faults = summary.faults();
    if !faults.is_empty() {
        bail!("{}", faults.join("; "));
    }
    let left = containerlab::containers(&context.place, &topology)?;
    ensure!(left.is_empty(), "left: {left:?}");
    passed(format!(
        "{}/{} pairs, {} routes, 0 of {} and 0 of {} packets lost",
        summary.pairs_ok,
        summary.pairs_total,
        summary.spine_pod_routes,
        summary.restart_sent_packets,
        summary.kill_sent_packets
    ))
}
