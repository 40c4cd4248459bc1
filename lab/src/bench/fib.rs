//! Time to install 100,000 routes from a peer in the kernel. BIRD advertises them to the agent,
//! whose Network has `import`; the reference is `ip -batch` with the same routes. A route monitor
//! listens in both namespaces, so both sides have the cost of its notifications. The agent
//! additionally runs BGP; the reference only reads a file.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use super::{Bound, report, warn_if_busy};
use crate::demo::ms;
use crate::fabric::{Fabric, Place};
use crate::host::Host;
use crate::progress::{say, step};
use crate::routes::RouteMonitor;
use crate::stats::{percentile, round};
use crate::{client, packages, product};

const ROUTES: u32 = 100_000;
const ROUNDS: usize = 5;
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Serialize)]
struct Figures {
    bench: &'static str,
    routes: u32,
    rounds: usize,
    /// All figures are medians.
    ip_batch_ms: f64,
    trunkline_ms: f64,
    ratio: f64,
    /// From the peer's withdrawal until the last route is removed from the kernel.
    trunkline_withdraw_ms: f64,
    bounds: Vec<Bound>,
}

/// `cargo lab bench fib`.
pub(crate) fn bench(place: &Place, json: bool) -> Result<bool> {
    packages::need_root("cargo lab bench fib")?;
    packages::need(packages::ALWAYS.into_iter().chain(["bird2"]))?;
    let product = product::build(place, product::Profile::Release)?;
    warn_if_busy();
    let fabric = step("bringing fib up", || Fabric::up(place, "fib", &product))?;
    let figures = fabric.watched(measure)?;
    let words = format!(
        "  {} routes into the kernel, median of {}: ip -batch {:.0} ms, from a peer {:.0} ms, ratio {:.2}; withdrawn in {:.0} ms\n",
        figures.routes,
        figures.rounds,
        figures.ip_batch_ms,
        figures.trunkline_ms,
        figures.ratio,
        figures.trunkline_withdraw_ms
    );
    report(json, &figures, &words, &figures.bounds)
}

/// The i-th /24 from 20.0.0.0 on.
fn prefix(i: u32) -> String {
    let address = std::net::Ipv4Addr::from(u32::from(std::net::Ipv4Addr::new(20, 0, 0, 0)) + (i << 8));
    format!("{address}/24")
}

fn measure(fabric: &Fabric) -> Result<Figures> {
    let (feeder, node, batch) = (fabric.host("feeder")?, fabric.host("node1")?, fabric.host("batch")?);
    step("BGP session", || {
        client::wait_answering(node)?;
        client::wait_established(node, PATIENCE)
    })?;
    let lines = fabric.folder.join("routes.batch");
    step(&format!("{ROUTES} routes into the feeder, not advertised yet"), || {
        let (mut bird, mut ip) = (String::new(), String::new());
        for i in 0..ROUTES {
            writeln!(bird, "route {} blackhole;", prefix(i))?;
            writeln!(ip, "route add {} via 10.2.0.1 dev eth1 table 10000 proto 116", prefix(i))?;
        }
        std::fs::write(fabric.file("fib/feeder/routes.conf"), bird)?;
        std::fs::write(&lines, ip)?;
        let said = feeder.run("birdc", ["configure"])?;
        ensure!(said.contains("Reconfigur"), "birdc configure: {said}");
        Ok(())
    })?;
    let (mut theirs, mut ours, mut withdrawn) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        let title = format!("round {round} of {ROUNDS}");
        let (them, (us, gone)) = step(&title, || Ok((ip_batch(batch, &lines)?, from_peer(feeder, node)?)))?;
        say(&format!("    ip -batch {them:.0} ms, from the peer {us:.0} ms, withdrawn {gone:.0} ms"));
        theirs.push(them);
        ours.push(us);
        withdrawn.push(gone);
    }
    let (ip_batch_ms, trunkline_ms) = (percentile(&theirs, 50.0), percentile(&ours, 50.0));
    let ratio = round(trunkline_ms / ip_batch_ms);
    Ok(Figures {
        bench: "fib",
        routes: ROUTES,
        rounds: ROUNDS,
        ip_batch_ms,
        trunkline_ms,
        ratio,
        trunkline_withdraw_ms: percentile(&withdrawn, 50.0),
        bounds: vec![Bound::at_most("100,000 routes from a peer against ip -batch", ratio, 1.3)],
    })
}

fn ip_batch(batch: &Host, lines: &std::path::Path) -> Result<f64> {
    let monitor = RouteMonitor::start(&batch.ns)?;
    let start = Instant::now();
    batch.run("ip", ["-batch", lines.to_str().context("a path in UTF-8")?])?;
    let took = start.elapsed();
    monitor.wait_count(u64::from(ROUTES), PATIENCE)?;
    drop(monitor);
    batch.run("ip", ["route", "flush", "table", "10000"])?;
    Ok(ms(took))
}

fn from_peer(feeder: &Host, node: &Host) -> Result<(f64, f64)> {
    let monitor = RouteMonitor::start(&node.ns)?;
    let start = Instant::now();
    feeder.run("birdc", ["enable", "feed"])?;
    let there = monitor.wait_count(u64::from(ROUTES), PATIENCE)?;
    let installed = node.sh("ip route show table all proto 116 | grep -c '^20\\.\\|^21\\.'")?;
    ensure!(
        installed.trim() == ROUTES.to_string(),
        "{} of {ROUTES} routes are in the kernel",
        installed.trim()
    );
    let start_of_withdrawal = Instant::now();
    feeder.run("birdc", ["disable", "feed"])?;
    let gone = monitor.wait_removed(u64::from(ROUTES), PATIENCE)?;
    Ok((ms(there.duration_since(start)), ms(gone.duration_since(start_of_withdrawal))))
}

#[cfg(test)]
mod tests {
    #[test]
    fn prefixes_follow_each_other() {
        assert_eq!(super::prefix(0), "20.0.0.0/24");
        assert_eq!(super::prefix(256), "20.1.0.0/24");
        assert_eq!(super::prefix(99_999), "21.134.159.0/24");
    }
}
