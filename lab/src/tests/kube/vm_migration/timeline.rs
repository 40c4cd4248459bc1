//! The steps of a switch, from the announcement on: the changes of the route in each FIB, and the states in
//! the agents' logs.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use k8s_openapi::jiff::Timestamp;

use crate::fabric::Fabric;
use crate::routes::RouteMonitor;

/// The message of an agent that changes a pod's part in a live migration.
const STATE: &str = "live migration";

/// Monitors of all nodes and routers.
pub(super) struct Timeline<'a> {
    fabric: &'a Fabric,
    monitors: Vec<(&'a str, RouteMonitor)>,
}

impl<'a> Timeline<'a> {
    pub(super) fn start(fabric: &'a Fabric) -> Result<Timeline<'a>> {
        let names = fabric.topology.nodes.keys().map(String::as_str);
        let monitors = names.map(|name| Ok((name, RouteMonitor::start(&fabric.host(name)?.ns)?)));
        Ok(Timeline { fabric, monitors: monitors.collect::<Result<_>>()? })
    }

    /// The steps after a time, in milliseconds.
    pub(super) fn since(&self, start: Instant, addresses: &[IpAddr]) -> Result<String> {
        let wall = SystemTime::now().checked_sub(start.elapsed()).context("the time of the start")?;
        let mut steps = Vec::new();
        for (name, monitor) in &self.monitors {
            for address in addresses {
                let family = if address.is_ipv4() { "v4" } else { "v6" };
                let changes = monitor.times(&(*address).into()).into_iter();
                let after = changes.filter_map(|at| at.checked_duration_since(start));
                steps.extend(after.map(|at| (at, format!("{name} {family}"))));
            }
            let log = self.fabric.host(name)?.logs().join("agent.log");
            let log = std::fs::read_to_string(log).unwrap_or_default();
            steps.extend(log.lines().filter_map(|line| {
                let after = written(line)?.duration_since(wall).ok()?;
                let state = line.split_once("state=")?.1.split_whitespace().next()?;
                Some((after, format!("{name}'s agent {state}")))
            }));
        }
        steps.sort();
        let mut text = String::new();
        for (at, step) in steps.iter().filter(|(at, _)| *at < Duration::from_secs(1)) {
            let separator = if text.is_empty() { "" } else { ", " };
            write!(text, "{separator}{step} {:.0}", super::ms(*at))?;
        }
        Ok(text)
    }
}

/// The time of a line about a live migration.
fn written(line: &str) -> Option<SystemTime> {
    let (time, _) = line.split_once(' ').filter(|_| line.contains(STATE))?;
    time.parse::<Timestamp>().ok().map(SystemTime::from)
}
