//! Time from a change of an endpoint until the ToR has the route, or has lost it.
//!
//! Each Service has `externalTrafficPolicy: Local` and one endpoint on the node. The bench changes
//! this endpoint's readiness, one Service after the other. A time begins with the request to the
//! API server, and ends with the change in the kernel of the ToR. So it includes the API server,
//! etcd, kube-proxy, the agent, bgpd and zebra.
//!
//! Without a service proxy, the changes follow each other quickly. With kube-proxy there are several
//! measurements ([`BESIDE`]). Two things in kube-proxy need time: it has a token bucket (one
//! synchronisation for each `minSyncPeriod`, and a burst of two), and each synchronisation lists all
//! of its chains and rules. So the measurement also has the number and the duration of
//! synchronisations, from kube-proxy's log.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use serde::Serialize;
use serde_json::json;

use super::super::Bound;
use super::world::{Number, PATIENCE, World, with};
use crate::client;
use crate::fabric::Place;
use crate::host::Host;
use crate::kube::assets::Assets;
use crate::kube::daemon::Daemon;
use crate::kube::proxy::{self, Mode};
use crate::progress::{step, table};
use crate::routes::RouteMonitor;
use crate::shell::{Seen, wait_for};
use crate::stats::{percentile, round};

const SERVICES: usize = 1000;
/// Without a service proxy: Services whose endpoint changes, twice each, and the time between two
/// changes.
const CHANGED: usize = 100;
const PACE_ALONE: Duration = Duration::from_millis(50);

/// A measurement with kube-proxy.
struct Beside {
    services: usize,
    mode: Mode,
    min_sync_period: Duration,
    /// Time between two changes.
    pace: Duration,
    /// Services whose endpoint changes, twice each.
    changed: usize,
}

const DEFAULT: Beside = Beside {
    services: SERVICES,
    mode: Mode::Nftables,
    min_sync_period: proxy::MIN_SYNC_PERIOD,
    pace: Duration::from_secs(3),
    changed: 12,
};

/// The bounds are for the second one. The number of Services does not decrease.
const BESIDE: [Beside; 5] = [
    Beside { services: 100, ..DEFAULT },
    DEFAULT,
    Beside { pace: Duration::from_millis(1200), changed: 20, ..DEFAULT },
    Beside { min_sync_period: Duration::from_millis(100), ..DEFAULT },
    Beside { mode: Mode::Iptables, ..DEFAULT },
];
const BOUND: usize = 1;
const PROMISED_MS: f64 = 100.0;
/// `services.proxy.kind`.
const NONE: &str = "none";
/// The time after which kube-proxy has no work left.
const QUIET: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Serialize)]
pub(super) struct Figures {
    rows: Vec<Row>,
}

/// The times of one service proxy, in milliseconds.
#[derive(Debug, Clone, Serialize)]
struct Row {
    /// The service proxy on the node: `kube-proxy nftables`, or `none`.
    proxy: String,
    services: usize,
    changes: usize,
    /// The time between two changes.
    pace_ms: f64,
    /// kube-proxy's `minSyncPeriod`. Absent without kube-proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    min_sync_period_ms: Option<f64>,
    /// kube-proxy's synchronisations of IPv4, for each change.
    #[serde(skip_serializing_if = "Option::is_none")]
    syncs_per_change: Option<f64>,
    /// The duration of one of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    sync_p50_ms: Option<f64>,
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
    /// `trunkline_service_to_fabric_seconds`.
    agent_p50_at_most_ms: f64,
    agent_p99_at_most_ms: f64,
}

pub(super) fn measure(place: &Place, assets: &Assets, kube_proxy: &Path, product: &Path) -> Result<Figures> {
    let auto = json!({ "kind": "auto" });
    let rows = with(place, "bench-services", assets, product, &auto, |world| {
        let monitor = RouteMonitor::start(&world.tor.ns)?;
        let (namespace, account) = proxy::ACCOUNT;
        let kubeconfig = world.cluster.service_account(namespace, account)?;
        world.cluster.create(proxy::RIGHTS)?;
        let mut proxy: Option<(Daemon, (Mode, Duration))> = None;
        let mut rows = Vec::new();
        let mut existing = 0;
        for of in &BESIDE {
            let settings = (of.mode, of.min_sync_period);
            let mut running = match proxy.take().filter(|(_, former)| *former == settings) {
                Some((running, _)) => running,
                // The former one, if any, has ended.
                None => step(&format!("kube-proxy, mode {}", of.mode.name()), || {
                    let folder = world.cluster.folder();
                    let (mode, period) = settings;
                    let running =
                        proxy::start_paced(folder, world.node, kube_proxy, &kubeconfig, mode, period)?;
                    // The log also has the lines of the one before.
                    let began = log_length(&running)?;
                    wait_for("kube-proxy's rules", PATIENCE, || {
                        let done = !syncs(&running, began)?.is_empty() && proxy_is_up(world)?;
                        Ok(Seen::when(done, || "no synchronisation".to_owned()))
                    })?;
                    Ok(running)
                })?,
            };
            step(&format!("{} Services", of.services), || {
                world.create(existing..of.services, "Local")?;
                existing = of.services;
                world.wait_advertised(existing)?;
                monitor.wait(&prefixes(existing), true, PATIENCE)
            })?;
            // The synchronisations of the start are over, and their tokens are back.
            std::thread::sleep(QUIET);
            let before = log_length(&running)?;
            let text = format!("endpoints change, {} s apart", of.pace.as_secs_f64());
            let mut row = step(&text, || row(world, &monitor, existing, of.changed, of.pace))?;
            running.still_running()?;
            let durations = syncs(&running, before)?;
            row.proxy = format!("kube-proxy {}", of.mode.name());
            row.min_sync_period_ms = Some(milliseconds(of.min_sync_period));
            row.syncs_per_change = Some(round(durations.len() as f64 / row.changes as f64));
            row.sync_p50_ms = Some(round(percentile(&durations, 50.0)));
            rows.push(row);
            proxy = Some((running, settings));
        }
        drop(proxy);
        world.configure(&json!({ "kind": "none" }))?;
        world.restart_agent()?;
        world.wait_advertised(existing)?;
        monitor.wait(&prefixes(existing), true, PATIENCE)?;
        rows.push(step("endpoints change, without a service proxy", || {
            row(world, &monitor, existing, CHANGED, PACE_ALONE)
        })?);
        Ok(rows)
    })?;
    Ok(Figures { rows })
}

fn prefixes(services: usize) -> Vec<IpNet> {
    (0..services).map(|n| Number(n).prefix()).collect()
}

fn log_length(proxy: &Daemon) -> Result<usize> {
    Ok(std::fs::metadata(proxy.log())?.len() as usize)
}

/// kube-proxy's synchronisations of IPv4 after this length of its log: their durations in
/// milliseconds.
fn syncs(proxy: &Daemon, after: usize) -> Result<Vec<f64>> {
    let log = std::fs::read(proxy.log())?;
    let log = String::from_utf8_lossy(log.get(after..).unwrap_or_default());
    Ok(log.lines().filter(|line| line.contains("IPv4")).filter_map(sync_duration).collect())
}

/// The duration in a line of kube-proxy's log, in milliseconds.
fn sync_duration(line: &str) -> Option<f64> {
    let (_, rest) = line.split_once("\"SyncProxyRules complete\"")?;
    let text = rest.split_once("elapsed=\"")?.1.split('"').next()?;
    let unit = text.find(|c: char| c.is_ascii_alphabetic() || c == 'µ')?;
    let number: f64 = text[..unit].parse().ok()?;
    let factor = match &text[unit..] {
        "s" => 1e3,
        "ms" => 1.0,
        "µs" => 1e-3,
        _ => return None,
    };
    Some(number * factor)
}

/// Whether the agent knows that kube-proxy answers.
fn proxy_is_up(world: &World<'_>) -> Result<bool> {
    let text = client::metrics(world.node)?;
    Ok(text.lines().any(|line| line == "trunkline_service_proxy_up 1"))
}

/// Changes one endpoint after the other, and measures the ToR's table.
fn row(
    world: &World<'_>,
    monitor: &RouteMonitor,
    services: usize,
    changed: usize,
    pace: Duration,
) -> Result<Row> {
    let before = Histogram::read(world.node)?;
    let (mut ready, mut lost, mut writes) = (Vec::new(), Vec::new(), Vec::new());
    let mut next = Instant::now();
    for n in 0..changed {
        let number = Number(n * (services / changed));
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
    let agent = Histogram::read(world.node)?.since(&before);
    Ok(Row {
        services,
        proxy: NONE.to_owned(),
        changes: 2 * changed,
        pace_ms: milliseconds(pace),
        min_sync_period_ms: None,
        syncs_per_change: None,
        sync_p50_ms: None,
        ready_p50_ms: round(percentile(&ready, 50.0)),
        ready_p99_ms: round(percentile(&ready, 99.0)),
        lost_p50_ms: round(percentile(&lost, 50.0)),
        lost_p99_ms: round(percentile(&lost, 99.0)),
        write_p50_ms: round(percentile(&writes, 50.0)),
        write_p99_ms: round(percentile(&writes, 99.0)),
        agent_p50_at_most_ms: agent.percentile(0.5),
        agent_p99_at_most_ms: agent.percentile(0.99),
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
        let Some(row) = self.rows.get(BOUND) else { return Vec::new() };
        let ready = "endpoint ready → route in the ToR with kube-proxy, changes 3 s apart, p99 in ms";
        let lost = "readiness lost → withdrawn in the ToR with kube-proxy, changes 3 s apart, p99 in ms";
        vec![
            Bound::at_most(ready, row.ready_p99_ms, PROMISED_MS),
            Bound::at_most(lost, row.lost_p99_ms, PROMISED_MS),
        ]
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = [
            "service proxy",
            "Services",
            "minSyncPeriod ms",
            "pace ms",
            "changes",
            "syncs per change",
            "sync p50 ms",
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
            let mut line = vec![row.proxy.clone(), row.services.to_string()];
            line.push(row.min_sync_period_ms.map(|ms| ms.to_string()).unwrap_or_default());
            line.extend([row.pace_ms.to_string(), row.changes.to_string()]);
            line.push(row.syncs_per_change.map(|syncs| format!("{syncs:.2}")).unwrap_or_default());
            line.push(row.sync_p50_ms.map(|ms| format!("{ms:.0}")).unwrap_or_default());
            line.extend(times.map(|ms| format!("{ms:.1}")));
            line.extend([row.agent_p50_at_most_ms, row.agent_p99_at_most_ms].map(|ms| format!("≤ {ms}")));
            rows.push(line);
        }
        write!(f, "  one endpoint changes\n{}", table(&rows))
    }
}

#[cfg(test)]
mod tests {
    use super::{Histogram, sync_duration};

    #[test]
    fn the_duration_of_a_synchronisation_is_read_from_the_log() {
        let line = |elapsed: &str| {
            format!(
                "I1125 proxier.go:1196] \"SyncProxyRules complete\" ipFamily=\"IPv4\" elapsed=\"{elapsed}\""
            )
        };
        let found = ["1.25s", "944.5ms", "250µs", "1m2s"].map(|elapsed| sync_duration(&line(elapsed)));
        assert_eq!(found, [Some(1250.0), Some(944.5), Some(0.25), None]);
        assert_eq!(sync_duration("\"Syncing nftables rules\""), None);
    }

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
