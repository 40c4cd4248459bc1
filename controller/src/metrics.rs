//! The counters of the catalogue ([`trunkline_api::metrics`]). They are incremented as things happen,
//! as in the agent; [`crate::exposition`] adds the gauges.

use std::time::Duration;

use prometheus::{HistogramVec, IntCounterVec, Registry};
use trunkline_api::metrics::of_controller as m;
use trunkline_daemon::connections::ConnectionMetrics;
use trunkline_daemon::metrics::{counter, histogram};

/// Counters, incremented as things happen.
pub struct Metrics {
    registry: Registry,
    allocations: HistogramVec,
    addresses: IntCounterVec,
    failures: IntCounterVec,
    reconcile_failures: IntCounterVec,
    service_failures: IntCounterVec,
    events_dropped: IntCounterVec,
    watch_failures: IntCounterVec,
    connections: ConnectionMetrics,
}

impl Metrics {
    /// The counters, all at zero.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        Ok(Metrics {
            allocations: histogram(&registry, &m::ALLOCATIONS)?,
            addresses: counter(&registry, &m::ADDRESSES)?,
            failures: counter(&registry, &m::ALLOCATION_FAILURES)?,
            reconcile_failures: counter(&registry, &m::RECONCILE_FAILURES)?,
            service_failures: counter(&registry, &m::SERVICE_ALLOCATION_FAILURES)?,
            events_dropped: counter(&registry, &m::EVENTS_DROPPED)?,
            watch_failures: counter(&registry, &m::WATCH_FAILURES)?,
            connections: ConnectionMetrics::register(&registry, &m::CONNECTIONS, &m::CONNECTIONS_DROPPED)?,
            registry,
        })
    }

    /// The registry, in which other modules register their metrics.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The metrics of the listeners' connections.
    pub fn connections(&self) -> &ConnectionMetrics {
        &self.connections
    }

    /// Counts a pod that got its addresses.
    pub fn allocated(&self, addresses: usize, took: Duration) {
        self.allocations.with_label_values::<&str>(&[]).observe(took.as_secs_f64());
        self.addresses.with_label_values(&["given"]).inc_by(addresses as u64);
    }

    /// Counts addresses retained for the next pod of a name.
    pub fn reserved(&self, addresses: usize) {
        self.addresses.with_label_values(&["kept"]).inc_by(addresses as u64);
    }

    /// Counts released addresses.
    pub fn released(&self, addresses: usize) {
        self.addresses.with_label_values(&["given_back"]).inc_by(addresses as u64);
    }

    /// Counts a pod that got no address.
    pub fn failed(&self, reason: &str) {
        self.failures.with_label_values(&[reason]).inc();
    }

    /// Counts a Service that does not have the addresses that it requests.
    pub fn service_failed(&self, reason: &str) {
        self.service_failures.with_label_values(&[reason]).inc();
    }

    /// Counts failed work on an object.
    pub fn reconcile_failed(&self, queue: &str, reason: &str) {
        self.reconcile_failures.with_label_values(&[queue, reason]).inc();
    }

    /// Counts a dropped event.
    pub fn event_dropped(&self) {
        self.events_dropped.with_label_values::<&str>(&[]).inc();
    }

    /// Counts a failed watch.
    pub fn watch_failed(&self, kind: &str) {
        self.watch_failures.with_label_values(&[kind]).inc();
    }
}
