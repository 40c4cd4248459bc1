//! Upstream's end-to-end tests on a real cluster ([`crate::cluster`]): some twenty in the suite, all
//! of them in a soak, in both modes of kube-proxy. The suite never builds the cluster's programs,
//! because that takes longer than all other tests together.

use std::time::Duration;

use anyhow::{Result, bail};

use super::{Context, Test, Verdict, passed};
use crate::cli::Families;
use crate::cluster::build::Programs;
use crate::cluster::e2e::{self, EVERY, OWN, Report};
use crate::cluster::layout::Layout;
use crate::cluster::{RealCluster, Settings, disturb};
use crate::kube::proxy::Mode;

pub(super) const TESTS: &[Test] = &[Test {
    name: "e2e/smoke",
    about: "upstream's own tests of Services, NodePorts, HostPorts, DNS, conntrack on a real cluster with Trunkline; a soak runs all",
    run: smoke,
}];

/// Tests of the suite, by parts of their names.
const SMOKE: [&str; 20] = [
    "Services should serve a basic endpoint from pods ",
    "Services should be able to change the type from ExternalName to NodePort",
    "Services should be able to create a functioning NodePort service",
    "Services should support externalTrafficPolicy=Local for type=NodePort",
    "Services should have session affinity work for service with type clusterIP",
    "Services should have session affinity work for NodePort service",
    "Services should be rejected when no endpoints exist",
    "Services should respect internalTrafficPolicy=Local Pod to Pod",
    "Services should fallback to local terminating endpoints when there are no ready endpoints with externalTrafficPolicy=Local",
    "HostPort validates that there is no conflict between pods with same hostPort but different hostIP and protocol",
    "DNS should provide DNS for the cluster ",
    "DNS should provide DNS for services ",
    "DNS should provide DNS for pods for Hostname",
    "Conntrack should be able to preserve UDP traffic when server pod cycles for a NodePort service",
    "Conntrack should be able to preserve UDP traffic when initial unready endpoints get ready",
    "Granular Checks: Pods should function for intra-pod communication: http",
    "Granular Checks: Pods should function for node-pod communication: udp",
    "should be able to reach pod on ipv4 and ipv6 ip",
    "should create service with ipv6,v4 cluster ip",
    "EndpointSlice should create Endpoints and EndpointSlices for Pods matching a Service",
];

/// A cluster of a soak: nodes, racks, families, mode.
/// Some tests need three nodes.
const WHOLE: [(u8, u8, Families, Mode); 6] = [
    (3, 1, Families::Dual, Mode::Iptables),
    (3, 1, Families::Dual, Mode::Nftables),
    (4, 2, Families::Dual, Mode::Iptables),
    (4, 2, Families::Dual, Mode::Nftables),
    (3, 1, Families::Ipv6, Mode::Iptables),
    (3, 1, Families::Ipv6, Mode::Nftables),
];

/// The tests that run while parts of the cluster are disturbed, and the time between disturbances.
const CONFORMANCE: &str = r"\[sig-network\].*\[Conformance\]";
const INTERVAL: Duration = Duration::from_secs(20);

/// Number of tests at the same time, on a machine with two processors.
const PROCESSES: u8 = 6;

fn smoke(context: &Context) -> Result<Verdict> {
    let built = if context.long { Programs::build(&context.place)? } else { Programs::find(&context.place)? };
    let programs = match built {
        Ok(programs) => programs,
        Err(missing) => return Ok(Verdict::Skipped(missing)),
    };
    context.controller()?;
    if !context.long {
        let layout = Layout::new(2, 1, Families::Dual)?;
        let settings = Settings { layout, proxy: Mode::Iptables };
        let report = on_cluster(context, &programs, settings, &e2e::any_of(&SMOKE))?;
        let ran = report.passed + report.failures.len();
        if ran != SMOKE.len() {
            bail!("{ran} tests ran, and {} names are wanted: upstream has renamed a test", SMOKE.len());
        }
        return passed(report.summary());
    }
    let mut words = Vec::new();
    for (nodes, racks, families, proxy) in WHOLE {
        let layout = Layout::new(nodes, racks, families)?;
        let report = on_cluster(context, &programs, Settings { layout, proxy }, EVERY)?;
        words.push(format!("{} {}: {}", families.name(), proxy.name(), report.summary()));
    }
    words.push(disturbed(context, &programs)?);
    passed(words.join("; "))
}

/// The Conformance tests, while agents, controllers and kube-proxies are restarted and killed.
fn disturbed(context: &Context, programs: &Programs) -> Result<String> {
    let layout = Layout::new(3, 1, Families::Dual)?;
    let settings = Settings { layout, proxy: Mode::Nftables };
    let cluster = RealCluster::up(&context.place, OWN, settings, programs, &context.product()?)?;
    let run = || e2e::run(&cluster, &context.place, CONFORMANCE, PROCESSES);
    let (report, turns) = disturb::during(&cluster, INTERVAL, run)?;
    Ok(format!("{turns} disturbances: {}", judge(context, &cluster, report)?.summary()))
}

/// Runs tests on a new cluster.
fn on_cluster(context: &Context, programs: &Programs, settings: Settings, focus: &str) -> Result<Report> {
    let product = context.product()?;
    let cluster = RealCluster::up(&context.place, OWN, settings, programs, &product)?;
    let report = e2e::run(&cluster, &context.place, focus, PROCESSES)?;
    judge(context, &cluster, report)
}

/// A failed test is an error with the table of failures.
fn judge(context: &Context, cluster: &RealCluster, report: Report) -> Result<Report> {
    if report.failures.is_empty() {
        return Ok(report);
    }
    let folder = cluster.gather(&report.table())?;
    bail!(
        "{}\n{}\n  logs of the tests: {}; of the cluster: {}",
        report.summary(),
        report.table(),
        e2e::results(&context.place).display(),
        folder.display()
    )
}
