//! OpenTelemetry: exports events as log records, and attached and detached pods as traces, over
//! OTLP/HTTP if a collector is configured.
//!
//! ```text
//!   history ──ring──► Events ─┐
//!                             ├─ batch ──► deliver ──► POST /v1/… ──► collector
//!   attach flow ──► Traces  ──┘   1 s       again until accepted or rejected
//! ```
//!
//! Each signal is one task with at most one batch in transit, so a collector that accepts only one
//! signal stalls only the other. The queues are bounded and no task waits for them. Without an
//! answer of the collector, the ring keeps the newest events, and the others are counted as
//! dropped. Without `telemetry.otlp` there is no task, no queue and no reader.
//!
//! **Why not OpenTelemetry's SDK**: its exporter depends on reqwest or tonic, a second HTTP stack
//! and another copy of rand, and its batch processors need a thread each. This module exports only
//! two kinds of records, which the agent already has in its own form. So the messages are structs
//! of this module (`proto`), and the HTTP client is [`trunkline_daemon::outbound`].
//!
//! **Stop**: pending records are exported at once, in at most `FLUSH`.

pub mod config;
mod export;
mod logs;
mod proto;
mod resource;
pub mod trace;
mod traces;

use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::history::History;
use crate::metrics::Metrics;
use config::TelemetryConfig;
use export::{Collector, ExportTiming, run};
use logs::Events;
use resource::ServiceResource;
use trace::Tracer;
use traces::Traces;

/// Time limit of the export when the agent stops.
const FLUSH: Duration = Duration::from_secs(2);

/// The export tasks.
pub struct Telemetry {
    tracer: Tracer,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// The node of the agent.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Whether it is a Kubernetes Node.
    pub kubernetes: bool,
}

impl Telemetry {
    /// Starts the configured exports.
    pub fn start(config: &TelemetryConfig, node: Node, history: &History, metrics: &Metrics) -> Self {
        let mut telemetry = Telemetry {
            tracer: Tracer::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        };
        if let Some(otlp) = &config.otlp {
            let about = ServiceResource {
                service: otlp.service_name.clone(),
                node: node.name,
                kubernetes: node.kubernetes,
            };
            let collector = Collector::new(otlp.clone());
            // The earlier runs exported the restored events.
            let events = Events { history: history.subscribe(history.restored()), about: about.clone() };
            let (tracer, finished) = Tracer::new();
            telemetry.tracer = tracer;
            let traces = Traces { finished, about };
            let (pace, stop) = (ExportTiming::default(), &telemetry.stop);
            telemetry.tasks.spawn(run(events, collector.clone(), pace, metrics.clone(), stop.clone()));
            telemetry.tasks.spawn(run(traces, collector, pace, metrics.clone(), stop.clone()));
        }
        telemetry.tasks.close();
        telemetry
    }

    /// The start of traces.
    pub fn tracer(&self) -> Tracer {
        self.tracer.clone()
    }

    /// Exports the remaining records after the sources were closed, within a time limit.
    pub async fn stop(self) {
        self.stop.cancel();
        if timeout(FLUSH, self.tasks.wait()).await.is_err() {
            tracing::warn!("OpenTelemetry: the collector did not accept the last records in time");
        }
    }
}
