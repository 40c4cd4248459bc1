//! What `/metrics` shows.
//!
//! As in the agent: what happened is counted as it happens; how things stand (queues, addresses) is read from the books at each
//! scrape and built into a registry that lives as long as the answer, so that a network that is gone has no series left.

use std::time::Duration;

use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

use crate::books::{Books, Queues, Shared};

/// Upper bounds of the allocations' buckets, in seconds.
const BUCKETS: [f64; 10] = [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// What is counted as it happens.
pub struct Metrics {
    registry: Registry,
    allocations: Histogram,
    addresses: IntCounterVec,
    failures: IntCounterVec,
    events_dropped: IntCounter,
    watch_failures: IntCounterVec,
}

impl Metrics {
    /// The counters, all at zero.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let allocations = Histogram::with_opts(
            HistogramOpts::new(
                "trunkline_controller_allocation_seconds",
                "Giving a pod its addresses, from the decision to the API server's answer.",
            )
            .buckets(BUCKETS.to_vec()),
        )?;
        let counters =
            |name: &str, help: &str, label: &str| IntCounterVec::new(Opts::new(name, help), &[label]);
        let addresses = counters(
            "trunkline_controller_addresses_total",
            "Addresses that were given, kept for the next pod of a name, or given back.",
            "what",
        )?;
        let failures = counters(
            "trunkline_controller_allocation_failures_total",
            "Pods that got no address, by reason.",
            "reason",
        )?;
        let watch_failures = counters(
            "trunkline_controller_watch_failures_total",
            "Watches of the API server that broke off or could not be begun, by kind.",
            "kind",
        )?;
        let events_dropped = IntCounter::new(
            "trunkline_controller_events_dropped_total",
            "Events that were not written, because there were too many or the API server refused them.",
        )?;
        registry.register(Box::new(allocations.clone()))?;
        registry.register(Box::new(addresses.clone()))?;
        registry.register(Box::new(failures.clone()))?;
        registry.register(Box::new(watch_failures.clone()))?;
        registry.register(Box::new(events_dropped.clone()))?;
        Ok(Metrics { registry, allocations, addresses, failures, events_dropped, watch_failures })
    }

    /// Where others register what they count.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// A pod has its addresses.
    pub fn allocated(&self, addresses: usize, took: Duration) {
        self.allocations.observe(took.as_secs_f64());
        self.addresses.with_label_values(&["given"]).inc_by(addresses as u64);
    }

    /// Addresses are kept for the next pod of a name.
    pub fn reserved(&self, addresses: usize) {
        self.addresses.with_label_values(&["kept"]).inc_by(addresses as u64);
    }

    /// Addresses were given back.
    pub fn released(&self, addresses: usize) {
        self.addresses.with_label_values(&["given_back"]).inc_by(addresses as u64);
    }

    /// A pod got no address.
    pub fn failed(&self, reason: &str) {
        self.failures.with_label_values(&[reason]).inc();
    }

    /// An event was not written.
    pub fn event_dropped(&self) {
        self.events_dropped.inc();
    }

    /// A watch broke off.
    pub fn watch_failed(&self, kind: &str) {
        self.watch_failures.with_label_values(&[kind]).inc();
    }
}

/// Everything in Prometheus' text format.
pub fn text(shared: &Shared) -> String {
    let mut families = shared.metrics().registry.gather();
    match standing(&shared.lock()) {
        Ok(registry) => families.extend(registry.gather()),
        Err(error) => tracing::warn!(%error, "metrics could not be built"),
    }
    let mut text = Vec::new();
    if let Err(error) = TextEncoder::new().encode(&families, &mut text) {
        tracing::warn!(%error, "metrics could not be written");
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn standing(books: &Books) -> prometheus::Result<Registry> {
    let registry = Registry::new();
    let gauge = |name: &str, help: &str, value: usize| -> prometheus::Result<()> {
        let gauge = IntGauge::new(name, help)?;
        gauge.set(value as i64);
        registry.register(Box::new(gauge))
    };
    let gauges = |name: &str, help: &str, labels: &[&str]| -> prometheus::Result<IntGaugeVec> {
        let gauges = IntGaugeVec::new(Opts::new(name, help), labels)?;
        registry.register(Box::new(gauges.clone()))?;
        Ok(gauges)
    };
    let term = books.term.as_ref();
    gauge("trunkline_controller_leader", "1 while this replica leads.", term.is_some().into())?;
    let version =
        gauges("trunkline_controller_build_info", "The version that runs; always 1.", &["version"])?;
    version.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    let cluster = &books.cluster;
    gauge("trunkline_controller_ipinstances", "IPInstances that are known.", cluster.instances.len())?;
    let Some(term) = term else { return Ok(registry) };
    gauge("trunkline_controller_pods", "Pods with a node that are known.", cluster.pods.len())?;
    gauge("trunkline_controller_pods_waiting", "Pods that got no address yet.", term.waiting.len())?;
    gauge(
        "trunkline_controller_address_conflicts",
        "IPInstances with an address that another one has.",
        term.ipam.conflicts().count(),
    )?;
    let depth = gauges("trunkline_controller_queue_depth", "Objects that wait to be looked at.", &["queue"])?;
    let failing =
        gauges("trunkline_controller_queue_failing", "Objects whose last look failed.", &["queue"])?;
    for (name, waiting, failed) in queues(&term.queues) {
        depth.with_label_values(&[name]).set(waiting as i64);
        failing.with_label_values(&[name]).set(failed as i64);
    }
    let addresses = gauges(
        "trunkline_controller_network_addresses",
        "Addresses of a network: that there are, that are given, that are left. Pairs: those that are left.",
        &["network", "family", "state"],
    )?;
    for network in cluster.networks() {
        let usage = term.ipam.network_usage(network.name());
        for (family, usage) in [("ipv4", usage.v4), ("ipv6", usage.v6)] {
            for (state, count) in
                [("total", usage.total), ("used", usage.used), ("available", usage.available)]
            {
                addresses.with_label_values(&[network.name(), family, state]).set(count.into());
            }
        }
        let pairs = usage.dual_stack.available;
        addresses.with_label_values(&[network.name(), "dualstack", "available"]).set(pairs.into());
    }
    Ok(registry)
}

fn queues(queues: &Queues) -> [(&'static str, usize, usize); 6] {
    [
        ("pods", queues.pods.depth(), queues.pods.failing()),
        ("ipinstances", queues.instances.depth(), queues.instances.failing()),
        ("conflicts", queues.conflicts.depth(), queues.conflicts.failing()),
        ("networks", queues.networks.depth(), queues.networks.failing()),
        ("subnets", queues.subnets.depth(), queues.subnets.failing()),
        ("nodes", queues.nodes.depth(), queues.nodes.failing()),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn every_metric_is_documented_and_every_documented_one_is_there() {
        let shared = Shared::new(Arc::new(Metrics::new().unwrap()));
        let network = serde_json::from_value(serde_json::json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": "Network", "metadata": {"name": "n"}, "spec": {},
        }));
        shared.lock().set_network(&"n".into(), network.unwrap());
        shared.lock().begin_term(Queues::new(Duration::ZERO));
        shared.metrics().failed("api");
        shared.metrics().reserved(1);
        shared.metrics().watch_failed("Pod");
        let text = text(&shared);
        let exported: BTreeSet<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "))
            .filter_map(|line| line.split(' ').next())
            .collect();
        let documented: BTreeSet<&str> = include_str!("../../docs/metrics.md")
            .split('`')
            .filter(|word| word.starts_with("trunkline_controller_"))
            .filter_map(|word| word.split('{').next())
            .collect();
        assert_eq!(exported, documented);
    }
}
