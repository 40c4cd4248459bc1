//! The agent's memory with 10,000 Services, and the cost of one endpoint's change.
//!
//! The agent has `services.proxy.kind: none`, and advertises every address to two ToRs: kube-proxy
//! would keep both processors of a small machine busy. The reference is the same agent without a
//! Service, after the same start. The resident size has two maxima: while the Services are created,
//! and while an agent that starts lists all of them. The higher one counts.
//!
//! Ten Services change, in both measurements of the cost. The processor time of the idle agent in
//! the same time is subtracted.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use super::super::Bound;
use super::super::memory::megabytes;
use super::super::speakers::cpu_seconds;
use super::world::{ENDPOINTS, Number, PATIENCE, World, with};
use crate::client;
use crate::fabric::Place;
use crate::kube::assets::Assets;
use crate::progress::step;
use crate::routes::RouteMonitor;
use crate::stats::round;

const SERVICES: usize = 10_000;
/// Services whose endpoint changes. The others have externalTrafficPolicy Cluster, because each
/// Local Service of type LoadBalancer needs one of the 2,768 node ports.
const FEW: usize = 10;
const CHANGES: usize = 1_500;
const PACE: Duration = Duration::from_millis(20);
/// Rounds of the cost; the medians count.
const ROUNDS: usize = 3;
/// The allocator returns memory within this time.
const REST: Duration = Duration::from_secs(10);
const MOST_MB: f64 = 30.0;
const MOST_RATIO: f64 = 1.2;

#[derive(Debug, Clone, Serialize)]
pub(super) struct Figures {
    services: usize,
    endpoints: usize,
    /// The agent without Services, in megabytes of 1,000,000 octets: at rest, and the maximum since
    /// its start.
    rss_none_mb: f64,
    peak_rss_none_mb: f64,
    /// After the Services were created one by one.
    rss_created_mb: f64,
    peak_rss_created_mb: f64,
    /// After a restart with all Services.
    rss_restarted_mb: f64,
    peak_rss_restarted_mb: f64,
    /// Differences from the agent without Services; the higher one of the two.
    rss_more_mb: f64,
    peak_rss_more_mb: f64,
    /// Processor time of one endpoint's change in microseconds, with 10 and with all Services.
    change_few_us: f64,
    change_all_us: f64,
    change_ratio: f64,
}

pub(super) fn measure(place: &Place, assets: &Assets, product: &Path) -> Result<Figures> {
    let none = json!({ "kind": "none" });
    with(place, "bench-services-size", assets, product, &none, |world| {
        world.restart_agent()?;
        world.wait_advertised(0)?;
        let empty = Memory::at_rest(world)?;
        let monitor = RouteMonitor::start(&world.tor.ns)?;
        let prefixes = |count: usize| (0..count).map(|n| Number(n).prefix()).collect::<Vec<_>>();
        world.create(0..FEW, "Local")?;
        monitor.wait(&prefixes(FEW), true, PATIENCE)?;
        let few = step(&format!("endpoints change, {FEW} Services"), || cost(world))?;
        step(&format!("{SERVICES} Services with {} endpoints", SERVICES * ENDPOINTS), || {
            world.create(FEW..SERVICES, "Cluster")?;
            world.wait_advertised(SERVICES)?;
            monitor.wait(&prefixes(SERVICES), true, PATIENCE)
        })?;
        let created = Memory::at_rest(world)?;
        let all = step(&format!("endpoints change, {SERVICES} Services"), || cost(world))?;
        let restarted = step("the agent starts with all Services", || {
            world.restart_agent()?;
            world.wait_advertised(SERVICES)?;
            Memory::at_rest(world)
        })?;
        Ok(Figures {
            services: SERVICES,
            endpoints: SERVICES * ENDPOINTS,
            rss_none_mb: round(empty.rss),
            peak_rss_none_mb: round(empty.peak),
            rss_created_mb: round(created.rss),
            peak_rss_created_mb: round(created.peak),
            rss_restarted_mb: round(restarted.rss),
            peak_rss_restarted_mb: round(restarted.peak),
            rss_more_mb: round(created.rss.max(restarted.rss) - empty.rss),
            peak_rss_more_mb: round(created.peak.max(restarted.peak) - empty.peak),
            change_few_us: round(few),
            change_all_us: round(all),
            change_ratio: round(all / few),
        })
    })
}

/// Resident size in megabytes, now and at most.
struct Memory {
    rss: f64,
    peak: f64,
}

impl Memory {
    fn at_rest(world: &World<'_>) -> Result<Self> {
        std::thread::sleep(REST);
        let agent = client::agent(world.node)?;
        Ok(Self { rss: megabytes(agent, "status", "VmRSS")?, peak: megabytes(agent, "status", "VmHWM")? })
    }
}

/// The agent's processor time for one change, in microseconds.
fn cost(world: &World<'_>) -> Result<f64> {
    let agent = client::agent(world.node)?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let (before, began) = (cpu_seconds(agent)?, Instant::now());
        let mut next = began;
        for n in 0..CHANGES {
            // Each Service's endpoint is not ready in one turn, and ready in the next.
            world.set_ready(Number(n % FEW), (n / FEW) % 2 == 1)?;
            next += PACE;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        let (busy, took) = (cpu_seconds(agent)? - before, began.elapsed());
        let before = cpu_seconds(agent)?;
        std::thread::sleep(took / 4);
        let idle = 4.0 * (cpu_seconds(agent)? - before);
        rounds.push((busy - idle) * 1e6 / CHANGES as f64);
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[ROUNDS / 2])
}

impl Figures {
    pub(super) fn bounds(&self) -> Vec<Bound> {
        vec![
            Bound::at_most(
                "the agent's RSS with 10,000 Services, more than without, in MB",
                self.rss_more_mb,
                MOST_MB,
            ),
            Bound::at_most(
                "the agent's peak RSS with 10,000 Services, more than without, in MB",
                self.peak_rss_more_mb,
                MOST_MB,
            ),
            Bound::at_most(
                "processor time of one endpoint's change, 10,000 Services relative to 10",
                self.change_ratio,
                MOST_RATIO,
            ),
        ]
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "  {} Services with {} endpoints, services.proxy.kind: none: RSS {:.1} MB after their creation (peak {:.1}), \
             {:.1} MB after a restart (peak {:.1}); without Services {:.1} MB (peak {:.1})\n  one endpoint's change: \
             {:.0} µs with {FEW} Services, {:.0} µs with {} (ratio {:.2})",
            self.services,
            self.endpoints,
            self.rss_created_mb,
            self.peak_rss_created_mb,
            self.rss_restarted_mb,
            self.peak_rss_restarted_mb,
            self.rss_none_mb,
            self.peak_rss_none_mb,
            self.change_few_us,
            self.change_all_us,
            self.services,
            self.change_ratio
        )
    }
}
