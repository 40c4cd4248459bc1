//! The agent's memory with 250 pods and two peers: its proportional set size from the kernel. For a
//! shared page, this size contains only the process's share.

use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::Pid;
use serde::Serialize;

use super::attach::sandboxes;
use super::{Bound, report, warn_if_busy};
use crate::fabric::{Fabric, Place};
use crate::progress::step;
use crate::stats::round;
use crate::{client, cni, packages, product};

const PODS: usize = 250;
const MOST_MB: f64 = 25.0;

#[derive(Debug, Clone, Serialize)]
struct Figures {
    bench: &'static str,
    pods: usize,
    peers: usize,
    /// Megabytes of 1,000,000 octets.
    pss_empty_mb: f64,
    pss_mb: f64,
    rss_mb: f64,
    /// The maximum resident size.
    peak_rss_mb: f64,
    /// The reference for the bound: the promise of 25 MB.
    reference_mb: f64,
    ratio: f64,
    bounds: Vec<Bound>,
}

/// `cargo lab bench memory`.
pub(crate) fn bench(place: &Place, json: bool) -> Result<bool> {
    packages::need_root("cargo lab bench memory")?;
    packages::need(packages::ALWAYS.into_iter().chain(["frr"]))?;
    let product = product::build(place, product::Profile::Release)?;
    warn_if_busy();
    let fabric = step("bringing one-rack up", || Fabric::up(place, "one-rack", &product))?;
    let figures = fabric.watched(measure)?;
    let words = format!(
        "  the agent with {} pods and {} peers: PSS {:.1} MB (RSS {:.1} MB, at most {:.1} MB); without pods {:.1} MB\n",
        figures.pods,
        figures.peers,
        figures.pss_mb,
        figures.rss_mb,
        figures.peak_rss_mb,
        figures.pss_empty_mb
    );
    report(json, &figures, &words, &figures.bounds)
}

fn measure(fabric: &Fabric) -> Result<Figures> {
    let node = fabric.host("node1")?;
    step("BGP sessions", || {
        client::wait_answering(node)?;
        client::wait_established(node, Duration::from_secs(60))
    })?;
    let agent = client::agent(node)?;
    let empty = megabytes(agent, "smaps_rollup", "Pss")?;
    let conf = cni::trunkline(Some("rack1"));
    step(&format!("{PODS} dual-stack pods"), || {
        sandboxes(fabric, "node1", 0, PODS)?.iter().try_for_each(|pod| cni::add(fabric, &conf, pod).map(drop))
    })?;
    let pss = megabytes(agent, "smaps_rollup", "Pss")?;
    Ok(Figures {
        bench: "memory",
        pods: client::pods(node)?.len(),
        peers: client::peers(node)?.len(),
        pss_empty_mb: round(empty),
        pss_mb: round(pss),
        rss_mb: round(megabytes(agent, "smaps_rollup", "Rss")?),
        peak_rss_mb: round(megabytes(agent, "status", "VmHWM")?),
        reference_mb: MOST_MB,
        ratio: round(pss / MOST_MB),
        bounds: vec![Bound::at_most("the agent's PSS with 250 pods and two peers, in MB", pss, MOST_MB)],
    })
}

/// A line such as `Pss:   12345 kB` of a process's file.
pub(crate) fn megabytes(pid: Pid, file: &str, field: &str) -> Result<f64> {
    let path = format!("/proc/{}/{file}", pid.as_raw_nonzero());
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    parse_kilobytes(&text, field).map(|kb| kb * 1024.0 / 1e6).with_context(|| format!("no {field} in {path}"))
}

fn parse_kilobytes(text: &str, field: &str) -> Option<f64> {
    let line = text.lines().find(|l| l.strip_prefix(field).is_some_and(|rest| rest.starts_with(':')))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::parse_kilobytes;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "Rss:  100 kB\nPss_Dirty:  5 kB\nPss:   42 kB\n";
        assert_eq!(parse_kilobytes(text, "Pss"), Some(42.0));
        assert_eq!(parse_kilobytes(text, "Swap"), None);
    }
}
