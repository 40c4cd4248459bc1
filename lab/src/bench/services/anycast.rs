//! Time from the end of a program until its anycast address has left the ToR.
//!
//! The check is a TCP connection each 50 ms. The address is withdrawn after two failures in a row,
//! and in a second measurement after three, which is the default. The program ends at another point
//! of the check's interval in each round. The time ends with the change in the kernel of the ToR,
//! so it includes bgpd and zebra.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use serde::Serialize;
use serde_json::json;

use super::super::Bound;
use super::world::{PATIENCE, World, with};
use crate::fabric::Place;
use crate::greeter::Greeter;
use crate::kube::assets::Assets;
use crate::progress::{step, table};
use crate::routes::RouteMonitor;
use crate::stats::{percentile, round};

const ROUNDS: u32 = 100;
const ADDRESS: &str = "198.19.0.53";
const PORT: u16 = 5353;
const INTERVAL: Duration = Duration::from_millis(50);
/// Failures in a row; the bound is for the first.
const FALLS: [u32; 2] = [2, 3];
const PROMISED_MS: f64 = 200.0;

#[derive(Debug, Clone, Serialize)]
pub(super) struct Figures {
    interval_ms: f64,
    rounds: u32,
    rows: Vec<Row>,
}

/// Times from the end of the program, in milliseconds.
#[derive(Debug, Clone, Serialize)]
struct Row {
    /// `check.fall`.
    fall: u32,
    withdrawn_p50_ms: f64,
    withdrawn_p99_ms: f64,
    withdrawn_max_ms: f64,
}

pub(super) fn measure(place: &Place, assets: &Assets, product: &Path) -> Result<Figures> {
    let none = json!({ "kind": "none" });
    let rows = with(place, "bench-services-anycast", assets, product, &none, |world| {
        let monitor = RouteMonitor::start(&world.tor.ns)?;
        FALLS.into_iter().map(|fall| row(world, &monitor, fall)).collect::<Result<Vec<_>>>()
    })?;
    Ok(Figures { interval_ms: INTERVAL.as_secs_f64() * 1e3, rounds: ROUNDS, rows })
}

fn row(world: &World<'_>, monitor: &RouteMonitor, fall: u32) -> Result<Row> {
    let interval = INTERVAL.as_millis();
    let check = json!({
        "tcp": { "port": PORT }, "intervalMilliseconds": interval, "timeoutMilliseconds": interval,
        "rise": 2, "fall": fall,
    });
    let object = json!({
        "apiVersion": "trunkline.io/v1alpha1", "kind": "AnycastAddress",
        "metadata": { "name": "bench" }, "spec": { "addresses": [ADDRESS], "check": check },
    });
    world.cluster.apply(&object.to_string())?;
    let prefix = [IpNet::from(ADDRESS.parse::<IpAddr>()?)];
    let mut times = Vec::new();
    step(&format!("the program of an anycast address ends {ROUNDS} times, fall: {fall}"), || {
        for n in 0..ROUNDS {
            let program = Greeter::listen(&world.node.ns, PORT)?;
            monitor.wait(&prefix, true, PATIENCE)?;
            // The route appears a fixed time after a check. So this spreads the ends over the
            // interval of the checks.
            std::thread::sleep(2 * INTERVAL + INTERVAL * n / ROUNDS);
            let began = Instant::now();
            drop(program);
            let gone = monitor.wait(&prefix, false, PATIENCE)?;
            let at = gone.first().context("a time")?;
            times.push(at.saturating_duration_since(began).as_secs_f64() * 1e3);
        }
        Ok(())
    })?;
    Ok(Row {
        fall,
        withdrawn_p50_ms: round(percentile(&times, 50.0)),
        withdrawn_p99_ms: round(percentile(&times, 99.0)),
        withdrawn_max_ms: round(percentile(&times, 100.0)),
    })
}

impl Figures {
    pub(super) fn bounds(&self) -> Vec<Bound> {
        let what = "the program of an anycast address ends → withdrawn in the ToR (fall: 2), p99 in ms";
        let bound = |row: &Row| Bound::at_most(what, row.withdrawn_p99_ms, PROMISED_MS);
        self.rows.iter().filter(|row| row.fall == FALLS[0]).map(bound).collect()
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["fall", "program ends → withdrawn p50 ms", "p99", "max"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for row in &self.rows {
            let times = [row.withdrawn_p50_ms, row.withdrawn_p99_ms, row.withdrawn_max_ms];
            let mut line = vec![row.fall.to_string()];
            line.extend(times.map(|ms| format!("{ms:.1}")));
            rows.push(line);
        }
        write!(
            f,
            "  an anycast address with a check each {} ms, {} rounds\n{}",
            self.interval_ms,
            self.rounds,
            table(&rows)
        )
    }
}
