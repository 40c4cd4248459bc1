//! The export to the collector, which is the same for each signal. A batch is sent until the
//! collector accepts or rejects it. Then the next batch is made.
//!
//! OTLP/HTTP's rules for a client: after 429, 502, 503, 504 or no answer the client retries, with
//! exponential delays and jitter or after the collector's Retry-After. Any other rejection is
//! final, and the batch is dropped and counted. One log line reports that a signal is not accepted,
//! and one that it is accepted again.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use hyper::{StatusCode, Uri};
use prost::Message as _;
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use trunkline_daemon::errors::chain;
use trunkline_daemon::outbound::{HttpResponse, OutboundClient};

use super::config::Otlp;
use super::proto::ExportServiceResponse;
use crate::metrics::Metrics;

/// Delays of the export.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExportTiming {
    /// Time for collecting a batch.
    linger: Duration,
    /// The delay after a first failure.
    first: Duration,
    /// The longest delay.
    longest: Duration,
}

impl Default for ExportTiming {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        ExportTiming { linger: seconds(1), first: seconds(1), longest: seconds(60) }
    }
}

/// Upper limit of the collector's Retry-After.
const PATIENCE: Duration = Duration::from_secs(300);
/// The User-Agent header, as the protocol requires.
const AGENT: &str = concat!("OTel-OTLP-Exporter-Trunkline/", env!("CARGO_PKG_VERSION"));

/// The content of one request to the collector.
pub(super) struct Batch {
    /// Number of records or spans.
    pub(super) records: u64,
    /// Number of records that were dropped before this batch.
    pub(super) missed: u64,
    pub(super) body: Bytes,
}

/// A source of batches of one signal.
pub(super) trait Source: Send + 'static {
    /// Its name, as in the metrics.
    const SIGNAL: &'static str;
    /// Its path at the collector.
    const PATH: &'static str;

    /// Waits for a first record, and then collects more for a short time. After `stop` it does not
    /// wait. None when all records were returned and no more can arrive.
    fn next(
        &mut self,
        linger: Duration,
        stop: &CancellationToken,
    ) -> impl Future<Output = Option<Batch>> + Send;
}

/// The collector.
#[derive(Clone)]
pub(super) struct Collector {
    otlp: Arc<Otlp>,
    client: Arc<OnceCell<OutboundClient>>,
}

/// The reason for which a batch was not accepted.
#[derive(Debug, PartialEq)]
enum ExportError {
    /// Retry after this time at the earliest.
    Later(String, Duration),
    /// A final rejection.
    Never(String),
}

impl Collector {
    pub(super) fn new(otlp: Otlp) -> Self {
        Self { otlp: Arc::new(otlp), client: Arc::default() }
    }

    /// Sends one batch; returns the number of rejected records.
    async fn post(&self, to: &Uri, body: Bytes) -> Result<u64, ExportError> {
        let later = |words: String| ExportError::Later(words, Duration::ZERO);
        let otlp = Arc::clone(&self.otlp);
        // Headers can be in files, and reading a file can block.
        let mut headers = match otlp.headers.is_empty() {
            true => HeaderMap::new(),
            false => {
                let headers = tokio::task::spawn_blocking(move || otlp.read_headers()).await;
                headers.map_err(|error| later(error.to_string()))?.map_err(|error| later(chain(&error)))?
            }
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(AGENT));
        let client = || async { OutboundClient::new(to, self.otlp.ca_file.as_deref()) };
        let client = self.client.get_or_try_init(client).await.map_err(|error| later(chain(&*error)))?;
        match timeout(self.otlp.timeout(), client.post(to.clone(), headers, body)).await {
            Ok(Ok(answer)) => evaluate_answer(&answer),
            Ok(Err(error)) => Err(later(chain(&*error))),
            Err(_) => Err(later(format!("no answer within {} s", self.otlp.timeout_seconds))),
        }
    }
}

/// Evaluates an answer. Its text is not repeated: it is for the collector's log, and may contain
/// the sent data.
fn evaluate_answer(answer: &HttpResponse) -> Result<u64, ExportError> {
    let words = format!("the collector answers HTTP {}", answer.status);
    match answer.status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => {
            Err(ExportError::Later(words, answer.retry_after.unwrap_or_default().min(PATIENCE)))
        }
        status if status.is_success() => {
            let response = ExportServiceResponse::decode(answer.body.clone()).unwrap_or_default();
            let rejected = response.partial_success.map_or(0, |partial| partial.rejected);
            Ok(u64::try_from(rejected).unwrap_or_default())
        }
        _ => Err(ExportError::Never(words)),
    }
}

/// Exports all records of one signal, until there are no more.
pub(super) async fn run<S: Source>(
    mut source: S,
    collector: Collector,
    pace: ExportTiming,
    metrics: Metrics,
    stop: CancellationToken,
) {
    // The configuration check has already parsed it.
    let Ok(to) = collector.otlp.uri(S::PATH) else { return };
    let mut health = Health { signal: S::SIGNAL, endpoint: to.to_string(), troubled: false };
    while let Some(batch) = source.next(pace.linger, &stop).await {
        metrics.otlp_dropped(S::SIGNAL, "queue", batch.missed);
        deliver::<S>(&batch, &to, &collector, pace, &metrics, &stop, &mut health).await;
    }
}

/// Sends one batch until the collector accepts or rejects it. After the agent's stop there is only
/// one more attempt.
async fn deliver<S: Source>(
    batch: &Batch,
    to: &Uri,
    collector: &Collector,
    pace: ExportTiming,
    metrics: &Metrics,
    stop: &CancellationToken,
    health: &mut Health,
) {
    let policy = ExponentialBuilder::default().with_min_delay(pace.first).with_max_delay(pace.longest);
    let mut waits = policy.with_jitter().without_max_times().build();
    loop {
        let last = stop.is_cancelled();
        match collector.post(to, batch.body.clone()).await {
            Ok(rejected) => {
                let rejected = rejected.min(batch.records);
                metrics.otlp_request(S::SIGNAL, "ok");
                metrics.otlp_exported(S::SIGNAL, batch.records - rejected);
                metrics.otlp_dropped(S::SIGNAL, "refused", rejected);
                return match rejected {
                    0 => health.good(),
                    rejected => health.bad(&format!("{rejected} of {} were refused", batch.records)),
                };
            }
            Err(ExportError::Never(words)) => {
                metrics.otlp_request(S::SIGNAL, "refused");
                metrics.otlp_dropped(S::SIGNAL, "refused", batch.records);
                return health.bad(&words);
            }
            Err(ExportError::Later(words, patience)) => {
                metrics.otlp_request(S::SIGNAL, "unavailable");
                health.bad(&words);
                if last {
                    return metrics.otlp_dropped(S::SIGNAL, "stop", batch.records);
                }
                let wait = waits.next().unwrap_or(pace.longest).max(patience);
                tokio::select! {
                    () = sleep(wait) => {}
                    () = stop.cancelled() => {}
                }
            }
        }
    }
}

/// Logs when the collector starts or stops accepting a signal.
struct Health {
    signal: &'static str,
    endpoint: String,
    troubled: bool,
}

impl Health {
    fn good(&mut self) {
        if std::mem::take(&mut self.troubled) {
            tracing::info!(signal = self.signal, endpoint = self.endpoint, "OpenTelemetry is exported again");
        }
    }

    fn bad(&mut self, words: &str) {
        if !std::mem::replace(&mut self.troubled, true) {
            tracing::warn!(
                signal = self.signal,
                endpoint = self.endpoint,
                error = words,
                "the collector does not accept the OpenTelemetry export; the agent continues"
            );
        }
    }
}

#[cfg(test)]
#[path = "export_tests.rs"]
mod tests;
