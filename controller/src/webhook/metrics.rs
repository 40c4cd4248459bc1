//! What the webhook counts.

use std::time::Duration;

use prometheus::{HistogramVec, IntCounterVec, IntGauge, Registry};
use trunkline_api::metrics::of_controller as m;
use trunkline_daemon::metrics::{counter, histogram};

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
        let requests = counter(registry, &m::WEBHOOK_REQUESTS)?;
        let seconds = histogram(registry, &m::WEBHOOK_DURATION)?;
        let certificate_expires = IntGauge::new(m::WEBHOOK_CERTIFICATE.name, m::WEBHOOK_CERTIFICATE.help)?;
        registry.register(Box::new(certificate_expires.clone()))?;
        Ok(Metrics { requests, seconds, certificate_expires })
    }

    pub(super) fn count(&self, path: &'static str, kind: &'static str, outcome: Outcome, took: Duration) {
        self.requests.with_label_values(&[path, kind, outcome.text()]).inc();
        self.seconds.with_label_values(&[path, kind]).observe(took.as_secs_f64());
    }

    /// So that every series is there.
    #[cfg(test)]
    pub(crate) fn touch(&self) {
        self.count("/validate", "Network", Outcome::Accepted, Duration::ZERO);
    }
}
