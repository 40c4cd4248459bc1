//! Observability of a node and a cluster: metrics, alert rules, dashboards.
//!
//! ```text
//! rules       alert rules by promtool, with cases, runbook sections and existing metrics
//! dashboards  the files against Grafana's published schema, and the targets of their links
//! labs        for each panel and alert, the lab below that evaluates it or fires it
//! two_racks   nodes and routers
//! agents      faults of agents as a whole, in the same lab
//! cluster     an API server, controllers with their webhook, a node
//! services    Services in the same lab
//! policies    network policies in the same lab
//! vlans       pods on VLANs, in a user-mode kernel
//! otlp        a node and a real OpenTelemetry collector
//! ```

mod agents;
mod cluster;
pub(super) mod collector;
mod dashboards;
mod labs;
mod links;
mod otlp;
mod paths;
mod policies;
mod prometheus;
mod remote;
mod rules;
mod services;
mod two_racks;
mod vlans;

use super::Test;

#[cfg(test)]
pub(crate) use rules::{is_exported, named, names_series};

pub(super) const TESTS: &[Test] =
    &[rules::TEST, dashboards::TEST, two_racks::TEST, cluster::TEST, otlp::TEST];
pub(super) const VLAN_TESTS: &[Test] = &[vlans::TEST];

/// Debian packages of these tests.
pub(super) const PACKAGES: [&str; 1] = ["prometheus"];
