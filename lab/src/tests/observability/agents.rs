//! Faults of an agent as a whole: it is stopped, it reaches no router, its manifests are refused,
//! its store is damaged, and Prometheus loses it as a target. The alerts for these faults must not
//! depend on series that disappear with the fault.

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use super::prometheus::Prometheus;
use crate::client;
use crate::tests::bed::{Bed, PATIENCE};

/// A firewall on the node that drops BGP.
const FIREWALL: &str = "nft 'table inet firewall { \
    chain in { type filter hook input priority 0; tcp sport 179 drop; tcp dport 179 drop; }; \
    chain out { type filter hook output priority 0; tcp sport 179 drop; tcp dport 179 drop; }; }'";

/// The agent is stopped, and then started while a firewall drops BGP. It has had no session since
/// its start.
pub(super) fn stopped(bed: &Bed<'_>, prometheus: &Prometheus) -> Result<()> {
    let node = bed.host("node1b")?;
    client::end_agent(node, Signal::TERM)?;
    prometheus.wait_firing("TrunklineAgentDown", "node1b")?;
    node.sh(FIREWALL)?;
    client::start_agent(node)?;
    prometheus.wait_cleared("TrunklineAgentDown")?;
    prometheus.wait_firing("TrunklineNodeIsolated", "node1b")?;
    prometheus.wait_firing("TrunklineAgentNotReady", "node1b")?;
    node.sh("nft delete table inet firewall")?;
    client::wait_established(node, PATIENCE)?;
    prometheus.wait_cleared("TrunklineNodeIsolated")?;
    prometheus.wait_cleared("TrunklineAgentNotReady")
}

/// A Network with a field that does not exist.
const REFUSED: &str = "
---
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: { name: refused }
spec: { noSuchField: 1 }
";

pub(super) fn refused(bed: &Bed<'_>, prometheus: &Prometheus) -> Result<()> {
    let manifest = bed.manifest_of("node1b", "networks.yaml");
    let good = manifest.read()?;
    manifest.write(&format!("{}{REFUSED}", good.trim_end()))?;
    prometheus.wait_firing("TrunklineManifestsRefused", "node1b")?;
    manifest.write(&good)?;
    prometheus.wait_cleared("TrunklineManifestsRefused")
}

/// The store's file is damaged while the agent is stopped, and restored later.
pub(super) fn store(bed: &Bed<'_>, prometheus: &Prometheus) -> Result<()> {
    let node = bed.host("node1b")?;
    client::end_agent(node, Signal::TERM)?;
    let store = node.folder.join("lib/store.redb");
    let kept = std::fs::read(&store).with_context(|| store.display().to_string())?;
    std::fs::write(&store, vec![0x5a; kept.len()])?;
    client::start_agent(node)?;
    prometheus.wait_firing("TrunklineStoreUnusable", "node1b")?;
    client::end_agent(node, Signal::TERM)?;
    std::fs::write(&store, kept)?;
    client::start_agent(node)?;
    client::wait_established(node, PATIENCE)?;
    prometheus.wait_cleared("TrunklineStoreUnusable")
}

/// Prometheus loses one target, then all of them.
pub(super) fn gone(_: &Bed<'_>, prometheus: &Prometheus) -> Result<()> {
    prometheus.scrape_agents(|name| name != "node1b")?;
    prometheus.wait_firing("TrunklineAgentAbsent", "node1b")?;
    ensure!(prometheus.firing("TrunklineAllAgentsAbsent")?.is_empty(), "the other nodes are targets");
    prometheus.scrape_agents(|_| false)?;
    prometheus.wait_firing("TrunklineAllAgentsAbsent", "")?;
    prometheus.scrape_agents(|_| true)?;
    prometheus.wait_cleared("TrunklineAllAgentsAbsent")?;
    prometheus.wait_cleared("TrunklineAgentAbsent")
}
