//! Metrics of the webhook.

use std::time::Duration;

use prometheus::{HistogramVec, IntCounterVec, IntGauge, Registry};
use trunkline_api::metrics::of_controller as m;
use trunkline_daemon::metrics::{counter, histogram};

/// The webhook's metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    requests: IntCounterVec,
    seconds: HistogramVec,
    /// Expiry of the served certificate, in seconds since 1970; 0 for a certificate from files.
    pub(super) certificate_expires: IntGauge,
}

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReviewResult {
    Accepted,
    Refused,
    /// The webhook made no decision, and the API server applies its failure policy.
    Failed,
}

impl ReviewResult {
    pub(super) fn text(self) -> &'static str {
        match self {
            ReviewResult::Accepted => "accepted",
            ReviewResult::Refused => "refused",
            ReviewResult::Failed => "failed",
        }
    }
}

impl Metrics {
    /// Creates the metrics and registers them. Fails if they are registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Metrics> {
        let requests = counter(registry, &m::WEBHOOK_REQUESTS)?;
        let seconds = histogram(registry, &m::WEBHOOK_DURATION)?;
        let certificate_expires = IntGauge::new(m::WEBHOOK_CERTIFICATE.name, m::WEBHOOK_CERTIFICATE.help)?;
        registry.register(Box::new(certificate_expires.clone()))?;
        Ok(Metrics { requests, seconds, certificate_expires })
    }

    pub(super) fn count(
        &self,
        path: &'static str,
        kind: &'static str,
        outcome: ReviewResult,
        took: Duration,
    ) {
        self.requests.with_label_values(&[path, kind, outcome.text()]).inc();
        self.seconds.with_label_values(&[path, kind]).observe(took.as_secs_f64());
    }

    /// Creates every series, so that none is missing in the first scrape.
    #[cfg(test)]
    pub(crate) fn touch(&self) {
        self.count("/validate", "Network", ReviewResult::Accepted, Duration::ZERO);
    }
}
