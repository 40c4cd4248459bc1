//! Steps of the tour on one link between a node and a ToR: the cable is cut, the link falls silent,
//! the ToR rejects the pods' routes.

use anyhow::Result;

use super::{PATIENCE, Tour};
use crate::link_faults::{CABLE_CUT, FaultImpact, Loss, PODS_REFUSED, PodEndpoint, SILENT, settled, suffer};
use crate::progress::step_with;

impl Tour<'_> {
    /// Faults of node1a's link to tor1b, one after the other. The faults need pods of the rack's
    /// own network, because only the rack's ToRs have a route to each of these pods.
    pub(super) fn link_faults(&mut self) -> Result<()> {
        let work = || {
            let rack = |node| PodEndpoint::attach(self.fabric, node, "rack", "rack");
            Ok((rack("node1a")?, [rack("node1b")?, rack("node2a")?]))
        };
        let (inside, elsewhere) =
            step_with("a pod of the rack's own network on three nodes", work, |_| String::new())?;
        let inside = [vec![inside], self.ends("node1a")].concat();
        let others = [elsewhere.to_vec(), self.ends("node2b")].concat();
        settled(self.fabric, PATIENCE)?;
        for fault in [&CABLE_CUT, &SILENT, &PODS_REFUSED] {
            let title = format!("node1a and tor1b: {}", fault.name);
            let work = || suffer(self.fabric, fault, &inside, &others, PATIENCE);
            let words = |it: &FaultImpact| {
                let (lost, gap, end) = (it.lost(), it.gap_ms(), it.end_lost_packets);
                format!("{lost} packets lost, answered after {gap:.0} ms at most, {end} lost when it ended")
            };
            let suffered = step_with(&title, work, words)?;
            self.summary.link_faults.push(suffered);
        }
        Ok(())
    }

    /// The first two of a node's global pods.
    fn ends(&self, node: &str) -> Vec<PodEndpoint> {
        let pods = self.pods.iter().filter(|pod| pod.sandbox.node == node).take(2);
        pods.map(|pod| PodEndpoint {
            kind: "global",
            name: pod.sandbox.name.clone(),
            ns: pod.sandbox.ns.clone(),
            addresses: pod.addresses.clone(),
        })
        .collect()
    }
}

/// Rows of the table at the end.
pub(super) fn rows(suffered: &[FaultImpact]) -> Vec<[String; 2]> {
    let row = |fault: &str, flow: &Loss| {
        let what = format!("{fault}: {} {} pods", flow.direction, flow.pods);
        let lost = format!(
            "{} of {} packets lost, answered after {:.0} ms at most",
            flow.lost_packets, flow.sent_packets, flow.longest_gap_ms
        );
        [what, lost]
    };
    suffered.iter().flat_map(|it| it.flows.iter().map(move |flow| row(it.fault, flow))).collect()
}
