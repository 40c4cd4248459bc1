//! OpenTelemetry: events as log records, attached and detached pods as traces, told to a collector by OTLP/HTTP where one is configured.
//!
//! ```text
//!   history ──ring──► Events ─┐
//!                             ├─ batch ──► deliver ──► POST /v1/… ──► collector
//!   attach flow ──► Traces  ──┘   1 s       again until taken or refused
//! ```
//!
//! Each signal is one task with at most one batch on its way, so that a collector which takes one and not the other stalls only that one. The queues
//! are bounded and nobody waits for them: while no collector answers, the newest is kept for the ring's length and the rest is counted as
//! dropped. Without `telemetry.otlp` there is no task, no queue and no reader.
//!
//! **Why not OpenTelemetry's SDK**: its exporter comes with reqwest or tonic, a second HTTP stack and another copy of rand beside those that are
//! here, and its batch processors with a thread each; what is exported here is two kinds of records that the agent has in its own shape
//! already. So the messages are structs of our own (`proto`) and the way out is [`trunkline_daemon::outbound`].
//!
//! **Stop**: what is there is told at once, in at most `FLUSH`.

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

/// At the agent's stop the collector has this long to take what is left.
const FLUSH: Duration = Duration::from_secs(2);

/// What tells.
pub struct Telemetry {
    tracer: Tracer,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Of which agent.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Whether it is a Kubernetes Node.
    pub kubernetes: bool,
}

impl Telemetry {
    /// Starts what is configured.
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
            // The collector was told of earlier runs by these.
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

    /// Where traces begin.
    pub fn tracer(&self) -> Tracer {
        self.tracer.clone()
    }

    /// Tells what is left, after the sources were closed, as far as that can be done soon.
    pub async fn stop(self) {
        self.stop.cancel();
        if timeout(FLUSH, self.tasks.wait()).await.is_err() {
            tracing::warn!("OpenTelemetry: the collector did not take the last records in time");
        }
    }
}
