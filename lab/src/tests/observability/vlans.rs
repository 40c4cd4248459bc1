//! A real Prometheus with pods in VLANs, in the user-mode kernel, which has VLAN devices. The
//! checks on the wire have data: successes, and failures because a gateway does not answer. A policy
//! selects a running pod with an IPVLAN slave, and its alert fires and clears.

use anyhow::{Context as _, Result, ensure};

use super::labs::{self, Lab};
use super::prometheus::{Prometheus, Target, hastened};
use super::rules::RULES;
use crate::cni::{self, Sandbox};
use crate::tests::bed::{Bed, lab};
use crate::tests::l2::policies::policy;
use crate::tests::{Context, Test, Verdict, passed};

pub(super) const TEST: Test = Test {
    name: Lab::Vlans.test(),
    about: "every panel about checks on the wire has data of gateways that answer, and of a gateway that does not answer; \
            the alert about pods without enforced policies fires and clears",
    run: vlans,
};

const NODE: &str = "node1";
/// A node whose pods have IPVLAN slaves.
const BY_IPVLAN: &str = "node3";
/// The gateway's device on the node's VLAN.
const GATEWAY: [&str; 2] = ["gw", "eth1.11"];

fn vlans(context: &Context) -> Result<Verdict> {
    let rules = std::fs::read_to_string(context.place.repository.join(RULES))?;
    lab(context, "l2", |bed| {
        let target = Target::Agent(bed.host(NODE)?);
        let folder = bed.fabric.folder.join("prometheus");
        let targets = [target, Target::Agent(bed.host(BY_IPVLAN)?)];
        let prometheus = Prometheus::start(&folder, &targets, &hastened(&rules)?)?;
        let conf = cni::trunkline(Some("rack1"));
        let [gateway, device] = GATEWAY;
        let set = |state: &str| bed.host(gateway)?.run("ip", ["link", "set", device, state]).map(drop);
        // `rate` does not count the first event of a kind, because that event creates the series.
        for name in ["one", "two"] {
            let pod = Sandbox::create(bed.fabric, NODE, name)?;
            cni::add(bed.fabric, &conf, &pod)?;
            prometheus.wait_scrape()?;
        }
        set("down")?;
        // A pod's first failed check ends the check of the other family, and each family has its
        // own series. So of three pods, at least two fail in the same family.
        for name in ["three", "four", "five"] {
            let pod = Sandbox::create(bed.fabric, NODE, name)?;
            let refused = cni::run(bed.fabric, "ADD", &conf, &pod)?.error().context("the gateway is away")?;
            ensure!(refused.text.contains("gateway"), "{refused}");
            prometheus.wait_scrape()?;
        }
        set("up")?;
        let series = labs::lint(&target.metrics()?)?;
        for outcome in ["ok", "no_answer"] {
            let expr = format!("sum(trunkline_wire_check_seconds_count{{outcome=\"{outcome}\"}})");
            let count: f64 = prometheus.query(&expr)?.iter().sum();
            ensure!(count >= 2.0, "{count} checks on the wire ended with {outcome}");
            let shown = "histogram_quantile(0.99, sum by (le) (rate(trunkline_wire_check_seconds_bucket{outcome=\"OUTCOME\"}[30s])))";
            ensure!(
                prometheus.series(&shown.replace("OUTCOME", outcome))? > 0,
                "the panel has no data for {outcome}"
            );
        }
        unenforced(bed, &prometheus)?;
        let evaluated = labs::evaluate(Lab::Vlans, &prometheus, &context.place)?;
        passed(format!("{series} series of a node, {evaluated}"))
    })
}

/// A policy selects a running pod with an IPVLAN slave.
fn unenforced(bed: &Bed<'_>, prometheus: &Prometheus) -> Result<()> {
    let manifest = bed.manifest_of(BY_IPVLAN, "policies.yaml");
    let closed = Sandbox::create(bed.fabric, BY_IPVLAN, "closed")?;
    cni::add(bed.fabric, &cni::trunkline(Some("rack2")), &closed)?;
    manifest.write(&policy(BY_IPVLAN))?;
    prometheus.wait_firing("TrunklinePolicyUnenforced", BY_IPVLAN)?;
    manifest.write("# no policy\n")?;
    prometheus.wait_cleared("TrunklinePolicyUnenforced")
}
