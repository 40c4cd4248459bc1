//! What the webhook counts.

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry};

/// The webhook's metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    requests: IntCounterVec,
    seconds: HistogramVec,
    /// When the certificate that is served expires, in seconds since 1970; 0 where it came as a file.
    pub(super) certificate_expires: IntGauge,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Accepted,
    Refused,
    /// No verdict: the API server does what its failure policy says.
    Failed,
}

impl Outcome {
    pub(super) fn text(self) -> &'static str {
        match self {
            Outcome::Accepted => "accepted",
            Outcome::Refused => "refused",
            Outcome::Failed => "failed",
        }
    }
}

impl Metrics {
    /// Makes them and puts them into a registry. An error if they are there already.
    pub fn register(registry: &Registry) -> prometheus::Result<Metrics> {
        let requests = IntCounterVec::new(
            Opts::new("trunkline_webhook_requests_total", "Admission requests by path, kind and verdict"),
            &["path", "kind", "verdict"],
        )?;
        let seconds = HistogramVec::new(
            HistogramOpts::new(
                "trunkline_webhook_request_duration_seconds",
                "Time to a verdict, by path and kind",
            )
            .buckets(vec![0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0]),
            &["path", "kind"],
        )?;
        let certificate_expires = IntGauge::new(
            "trunkline_webhook_certificate_expires_timestamp_seconds",
            "When the webhook's own certificate expires; 0 where it came as a file",
        )?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(seconds.clone()))?;
        registry.register(Box::new(certificate_expires.clone()))?;
        Ok(Metrics { requests, seconds, certificate_expires })
    }

    pub(super) fn count(&self, path: &'static str, kind: &'static str, outcome: Outcome, took: Duration) {
        self.requests.with_label_values(&[path, kind, outcome.text()]).inc();
        self.seconds.with_label_values(&[path, kind]).observe(took.as_secs_f64());
    }
}
