//! Both attachments with a real runtime.

use super::{RACKS, ready};
use crate::tests::bed::lab;
use crate::tests::podman::meet;
use crate::tests::{Context, Test, Verdict, passed};

pub(in crate::tests) const TESTS: &[Test] = &[Test {
    name: "l2/podman",
    about: "containers that podman runs and removes, attached by veth and by ipvlan, reach each other",
    run: podman,
}];

fn podman(context: &Context) -> anyhow::Result<Verdict> {
    lab(context, "l2", |bed| {
        for node in RACKS.iter().flat_map(|rack| rack.nodes) {
            ready(bed, node)?;
        }
        let mut seen = Vec::new();
        let [veth, ipvlan] = &RACKS;
        for (from, to) in [(veth, veth), (ipvlan, ipvlan), (veth, ipvlan)] {
            let networks = [[from.network], [to.network]];
            let pairs = meet(bed, [(from.nodes[0], &networks[0]), (to.nodes[1], &networks[1])])?;
            seen.push(format!("{} and {}: {pairs}", from.attachment, to.attachment));
        }
        passed(format!("pairs of addresses: {}", seen.join(", ")))
    })
}
