//! A real Prometheus with pods in VLANs, in the user-mode kernel, which has VLAN devices. The
//! checks on the wire have data: successes, and failures because a gateway does not answer. A policy
//! selects a running pod with an IPVLAN slave, and its alert fires and clears.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::labs::{self, Lab};
use super::prometheus::{Prometheus, Target, hastened};
use super::rules::RULES;
use crate::cni::{self, Sandbox};
use crate::shell::{Seen, wait_for};
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
const PATIENCE: Duration = Duration::from_secs(30);
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
        // `rate` does not count the first event of a series, because that event creates the series.
        for name in ["one", "two"] {
            let pod = Sandbox::create(bed.fabric, NODE, name)?;
            cni::add(bed.fabric, &conf, &pod)?;
            prometheus.wait_scrape()?;
        }
        set("down")?;
        // A pod's first failed check ends the check of the other family, and each family has its
        // own series. So several pods fail, until two have failed in the same family.
        for name in ["three", "four", "five", "six", "seven"] {
            let pod = Sandbox::create(bed.fabric, NODE, name)?;
            let refused = cni::run(bed.fabric, "ADD", &conf, &pod)?.error().context("the gateway is away")?;
            ensure!(refused.text.contains("gateway"), "{refused}");
            prometheus.wait_scrape()?;
            if is_shown(&prometheus, "no_answer")? {
                break;
            }
        }
        set("up")?;
        let series = labs::lint(&target.metrics()?)?;
        for outcome in ["ok", "no_answer"] {
            // The last step of a range query may be older than the last scrape.
            wait_for(&format!("the panel to have data for {outcome}"), PATIENCE, || {
                Ok(Seen::when(is_shown(&prometheus, outcome)?, || "no data".to_owned()))
            })?;
        }
        unenforced(bed, &prometheus)?;
        let evaluated = labs::evaluate(Lab::Vlans, &prometheus, &context.place)?;
        passed(format!("{series} series of a node, {evaluated}"))
    })
}

/// Whether the panel shows checks on the wire that ended like this.
fn is_shown(prometheus: &Prometheus, outcome: &str) -> Result<bool> {
    let count = format!("trunkline_wire_check_seconds_bucket{{outcome=\"{outcome}\"}}[30s]");
    let shown = format!("histogram_quantile(0.99, sum by (le) (rate({count})))");
    Ok(prometheus.series(&shown)? > 0)
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
