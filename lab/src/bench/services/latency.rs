//! Time from a change of an endpoint until the ToR has the route, or has lost it.
//!
//! Each Service has `externalTrafficPolicy: Local` and one endpoint on the node. The bench changes
//! this endpoint's readiness, one Service after the other. A time begins with the request to the
//! API server, and ends with the change in the kernel of the ToR. So it includes the API server,
//! etcd, kube-proxy, the agent, bgpd and zebra.
//!
//! kube-proxy has its default `minSyncPeriod` of 1 s: after a change it waits up to one second for
//! more changes, unless the last second had none. The changes here are slower, so kube-proxy writes
//! its rules at once.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::json;

use super::super::Bound;
use super::world::{Number, PATIENCE, World, with};
use crate::client;
use crate::fabric::Place;
use crate::host::Host;
use crate::kube::assets::Assets;
use crate::kube::proxy::{self, Mode};
use crate::progress::{step, table};
use crate::routes::RouteMonitor;
use crate::stats::{percentile, round};

const SERVICES: usize = 1000;
/// Services whose endpoint changes, twice each.
const CHANGED: usize = 100;
/// Time between two changes: longer than kube-proxy's `minSyncPeriod`, and short without kube-proxy.
const PACE_PROXY: Duration = Duration::from_millis(1200);
const PACE_ALONE: Duration = Duration::from_millis(50);
const PROMISED_MS: f64 = 100.0;
/// `services.proxy.kind`.
const NONE: &str = "none";
const TRUNKLINE: &str = "Trunkline";

#[derive(Debug, Clone, Serialize)]
pub(super) struct Figures {
    services: usize,
    /// kube-proxy's `minSyncPeriod` in seconds: its default.
    min_sync_period_s: f64,
    rows: Vec<Row>,
}

/// The times of one service proxy, in milliseconds.
#[derive(Debug, Clone, Serialize)]
struct Row {
    /// `Trunkline`, or the program that it is compared with.
    speaker: &'static str,
    /// The service proxy on the node: `kube-proxy nftables`, or `none`.
    proxy: &'static str,
    changes: usize,
    pace_ms: f64,
    /// From the request until the route is in the ToR.
    ready_p50_ms: f64,
    ready_p99_ms: f64,
    /// From the request until the route has left the ToR.
    lost_p50_ms: f64,
    lost_p99_ms: f64,
    /// The request alone.
    write_p50_ms: f64,
    write_p99_ms: f64,
    /// The agent's own share of `ready`: from the last event that was needed (the endpoint, or the
    /// rules of the service proxy) until the UPDATE was written. Upper bounds of the buckets of
    /// `trunkline_service_to_fabric_seconds`. Absent for other programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_p50_at_most_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_p99_at_most_ms: Option<f64>,
}

pub(super) fn measure(place: &Place, assets: &Assets, kube_proxy: &Path, product: &Path) -> Result<Figures> {
    let none = json!({ "kind": "none" });
    let rows = with(place, "bench-services", assets, product, &none, |world| {
        let monitor = RouteMonitor::start(&world.tor.ns)?;
        let all: Vec<_> = (0..SERVICES).map(|n| Number(n).prefix()).collect();
        step(&format!("{SERVICES} Services"), || {
            world.create(0..SERVICES, "Local")?;
            monitor.wait(&all, true, PATIENCE)
        })?;
        let alone = step("endpoints change, without a service proxy", || {
            row(world, &monitor, TRUNKLINE, NONE, PACE_ALONE)
        })?;

        world.configure(&json!({ "kind": "auto" }))?;
        let (namespace, account) = proxy::ACCOUNT;
        let kubeconfig = world.cluster.service_account(namespace, account)?;
        world.cluster.create(proxy::RIGHTS)?;
        let mut proxy = step("kube-proxy with its rules", || {
            let folder = world.cluster.folder();
            let proxy = proxy::start(folder, world.node, kube_proxy, &kubeconfig, Mode::Nftables)?;
            world.restart_agent()?;
            world.wait_advertised(SERVICES)?;
            monitor.wait(&all, true, PATIENCE)?;
            Ok(proxy)
        })?;
        let beside = step("endpoints change, with kube-proxy", || {
            row(world, &monitor, TRUNKLINE, "kube-proxy nftables", PACE_PROXY)
        })?;
        proxy.still_running()?;
        Ok(vec![beside, alone])
    })?;
    Ok(Figures { services: SERVICES, min_sync_period_s: 1.0, rows })
}

/// Changes one endpoint after the other, and measures the ToR's table.
fn row(
    world: &World<'_>,
    monitor: &RouteMonitor,
    speaker: &'static str,
    proxy: &'static str,
    pace: Duration,
) -> Result<Row> {
    let histogram = || if speaker == TRUNKLINE { Histogram::read(world.node).map(Some) } else { Ok(None) };
    let before = histogram()?;
    let (mut ready, mut lost, mut writes) = (Vec::new(), Vec::new(), Vec::new());
    let mut next = Instant::now();
    for n in 0..CHANGED {
        let number = Number(n * (SERVICES / CHANGED));
        for (is_ready, times) in [(false, &mut lost), (true, &mut ready)] {
            next = next.max(Instant::now()) + pace;
            let (began, took) = world.set_ready(number, is_ready)?;
            let changed = monitor.wait(&[number.prefix()], is_ready, PATIENCE)?;
            let at = changed.first().context("a time")?;
            times.push(milliseconds(at.saturating_duration_since(began)));
            writes.push(milliseconds(took));
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }
    let agent = histogram()?.zip(before).map(|(now, before)| now.since(&before));
    Ok(Row {
        speaker,
        proxy,
        changes: 2 * CHANGED,
        pace_ms: milliseconds(pace),
        ready_p50_ms: round(percentile(&ready, 50.0)),
        ready_p99_ms: round(percentile(&ready, 99.0)),
        lost_p50_ms: round(percentile(&lost, 50.0)),
        lost_p99_ms: round(percentile(&lost, 99.0)),
        write_p50_ms: round(percentile(&writes, 50.0)),
        write_p99_ms: round(percentile(&writes, 99.0)),
        agent_p50_at_most_ms: agent.as_ref().map(|times| times.percentile(0.5)),
        agent_p99_at_most_ms: agent.as_ref().map(|times| times.percentile(0.99)),
    })
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The agent's histogram of its own share: upper bounds in seconds, and cumulated counts.
#[derive(Debug, Clone, Default, PartialEq)]
struct Histogram(Vec<(f64, f64)>);

impl Histogram {
    fn read(node: &Host) -> Result<Self> {
        Ok(Self::parse(&client::metrics(node)?))
    }

    fn parse(text: &str) -> Self {
        let start = "trunkline_service_to_fabric_seconds_bucket{le=\"";
        let bucket = |line: &str| {
            let (bound, count) = line.strip_prefix(start)?.split_once("\"} ")?;
            // `+Inf` is a number for Rust too.
            Some((bound.parse().ok()?, count.parse().ok()?))
        };
        Self(text.lines().filter_map(bucket).collect())
    }

    fn since(&self, before: &Self) -> Self {
        let count = |bound: f64| before.0.iter().find(|of| of.0 == bound).map_or(0.0, |of| of.1);
        Self(self.0.iter().map(|(bound, now)| (*bound, now - count(*bound))).collect())
    }

    /// The upper bound of the bucket with this share, in milliseconds; 0 without a value.
    fn percentile(&self, share: f64) -> f64 {
        let all = self.0.last().map_or(0.0, |of| of.1);
        let found = self.0.iter().find(|(_, count)| all > 0.0 && *count >= share * all);
        found.map_or(0.0, |(bound, _)| round(bound * 1e3))
    }
}

impl Figures {
    pub(super) fn bounds(&self) -> Vec<Bound> {
        let mut bounds = Vec::new();
        for row in self.rows.iter().filter(|row| row.proxy != NONE) {
            let ready = "endpoint ready → route in the ToR with kube-proxy, p99 in ms";
            let lost = "readiness lost → withdrawn in the ToR with kube-proxy, p99 in ms";
            bounds.push(Bound::at_most(ready, row.ready_p99_ms, PROMISED_MS));
            bounds.push(Bound::at_most(lost, row.lost_p99_ms, PROMISED_MS));
        }
        bounds
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = [
            "speaker",
            "service proxy",
            "ready → ToR p50 ms",
            "p99",
            "lost → withdrawn p50",
            "p99",
            "the write p50",
            "p99",
            "agent p50",
            "p99",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for row in &self.rows {
            let times = [
                row.ready_p50_ms,
                row.ready_p99_ms,
                row.lost_p50_ms,
                row.lost_p99_ms,
                row.write_p50_ms,
                row.write_p99_ms,
            ];
            let bounds = [row.agent_p50_at_most_ms, row.agent_p99_at_most_ms];
            let mut line = vec![row.speaker.to_owned(), row.proxy.to_owned()];
            line.extend(times.map(|ms| format!("{ms:.1}")));
            line.extend(bounds.map(|ms| ms.map(|ms| format!("≤ {ms}")).unwrap_or_default()));
            rows.push(line);
        }
        write!(
            f,
            "  {} Services, {} changes of an endpoint; kube-proxy's minSyncPeriod is {} s, and changes beside it are \
             {} s apart\n{}",
            self.services,
            2 * CHANGED,
            self.min_sync_period_s,
            PACE_PROXY.as_secs_f64(),
            table(&rows)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::Histogram;

    #[test]
    fn the_bucket_of_a_percentile_counts_new_values_only() {
        let line = |le: &str, count: u32| {
            format!("trunkline_service_to_fabric_seconds_bucket{{le=\"{le}\"}} {count}\n")
        };
        let text = |counts: [u32; 3]| {
            [line("0.001", counts[0]), line("0.005", counts[1]), line("+Inf", counts[2])].concat()
        };
        let new = Histogram::parse(&text([10, 109, 111])).since(&Histogram::parse(&text([10, 11, 11])));
        assert_eq!(new.percentile(0.5), 5.0);
        assert_eq!(new.percentile(0.99), f64::INFINITY);
        assert_eq!(Histogram::default().percentile(0.5), 0.0);
    }
}
