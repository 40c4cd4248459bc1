//! Events as log records.
//!
//! The history is the queue: the exporter is one more reader of its ring. So a slow exporter holds
//! only the batch in transit, and the ring returns the number of events that it missed.

use std::time::Duration;

use futures_util::FutureExt as _;
use k8s_openapi::jiff::Timestamp;
use prost::Message as _;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use trunkline_api::control::{Event, Severity};

use super::export::{Batch, Source};
use super::proto::{ExportLogsServiceRequest, LogRecord, ResourceLogs, ScopeLogs, attribute};
use super::resource::ServiceResource;
use crate::history::Subscription;

/// The events of the history.
pub(super) struct Events {
    pub(super) history: Subscription,
    pub(super) about: ServiceResource,
}

impl Source for Events {
    const SIGNAL: &'static str = "logs";
    const PATH: &'static str = "/v1/logs";

    async fn next(&mut self, linger: Duration, stop: &CancellationToken) -> Option<Batch> {
        let mut read = self.history.next().await?;
        tokio::select! {
            () = sleep(linger) => {}
            () = stop.cancelled() => {}
        }
        if let Some(Some(more)) = self.history.next().now_or_never() {
            read.missed += more.missed;
            read.events.extend(more.events);
        }
        let records: Vec<LogRecord> = read.events.iter().map(|event| record(event, &self.about)).collect();
        let scope_logs = vec![ScopeLogs { scope: Some(self.about.scope()), log_records: records }];
        let resource_logs = vec![ResourceLogs { resource: Some(self.about.resource()), scope_logs }];
        Some(Batch {
            records: read.events.len() as u64,
            missed: read.missed,
            body: ExportLogsServiceRequest { resource_logs }.encode_to_vec().into(),
        })
    }
}

fn record(event: &Event, about: &ServiceResource) -> LogRecord {
    let now = Timestamp::now();
    let nanoseconds = |at: Timestamp| u64::try_from(at.as_nanosecond()).unwrap_or_default();
    // OpenTelemetry's numbers of INFO and WARN.
    let (severity_number, severity_text) = match event.severity {
        Severity::Info => (9, "INFO"),
        Severity::Warning => (13, "WARN"),
    };
    let mut attributes = vec![
        attribute("trunkline.node", about.node.as_str()),
        attribute("trunkline.event.kind", event.kind.name()),
        attribute("trunkline.event.number", event.number),
    ];
    attributes.extend(event.peer.iter().map(|peer| attribute("trunkline.peer", peer.as_str())));
    attributes.extend(event.prefix.iter().map(|prefix| attribute("trunkline.prefix", prefix.to_string())));
    LogRecord {
        time_unix_nano: nanoseconds(event.at.parse().unwrap_or(now)),
        severity_number,
        severity_text: severity_text.to_owned(),
        body: Some(event.text.as_str().into()),
        attributes,
        observed_time_unix_nano: nanoseconds(now),
        event_name: format!("trunkline.{}", event.kind.name()),
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest as Theirs;
    use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
    use trunkline_api::control::EventKind;

    use super::*;
    use crate::history::History;

    fn text(attributes: &[KeyValue], key: &str) -> String {
        let found = attributes.iter().find(|attribute| attribute.key == key);
        match found.and_then(|found| found.value.as_ref()?.value.as_ref()) {
            Some(Value::StringValue(text)) => text.clone(),
            Some(Value::IntValue(number)) => number.to_string(),
            other => format!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_decoded_by_opentelemetry() {
        let history = History::default();
        let about = ServiceResource { service: "rack".to_owned(), node: "n1".to_owned(), kubernetes: true };
        let mut events = Events { history: history.subscribe(0), about };
        let stop = CancellationToken::new();
        let peer = Some("10.0.0.1".to_owned());
        history.record(EventKind::SessionDown, peer, None, "session down: Hold Timer Expired".to_owned());
        history.originated([("10.1.0.7/32").parse().unwrap()].into_iter());
        let batch = events.next(Duration::from_secs(1), &stop).await.unwrap();
        assert_eq!((batch.records, batch.missed), (2, 0));

        let theirs = Theirs::decode(batch.body).unwrap();
        let logs = &theirs.resource_logs[0];
        let resource = &logs.resource.as_ref().unwrap().attributes;
        assert_eq!(text(resource, "service.name"), "rack");
        assert_eq!(text(resource, "service.version"), env!("CARGO_PKG_VERSION"));
        assert_eq!(text(resource, "k8s.node.name"), "n1");
        assert!(!text(resource, "host.name").is_empty());
        let [down, route] = logs.scope_logs[0].log_records.as_slice() else { panic!("{logs:?}") };
        assert_eq!(logs.scope_logs[0].scope.as_ref().unwrap().name, "trunkline");
        assert_eq!((down.severity_number, down.severity_text.as_str()), (13, "WARN"));
        assert_eq!((route.severity_number, route.severity_text.as_str()), (9, "INFO"));
        assert_eq!(down.event_name, "trunkline.sessionDown");
        let body = down.body.as_ref().unwrap().value.as_ref();
        assert_eq!(body, Some(&Value::StringValue("session down: Hold Timer Expired".to_owned())));
        assert_eq!(text(&down.attributes, "trunkline.peer"), "10.0.0.1");
        assert_eq!(text(&down.attributes, "trunkline.event.kind"), "sessionDown");
        assert_eq!(text(&route.attributes, "trunkline.prefix"), "10.1.0.7/32");
        assert_eq!(text(&route.attributes, "trunkline.event.number"), "2");
        let now = u64::try_from(Timestamp::now().as_nanosecond()).unwrap();
        assert!((now - 60_000_000_000..=now).contains(&down.time_unix_nano), "{down:?}");
        assert!(down.time_unix_nano / 1_000_000 <= down.observed_time_unix_nano / 1_000_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_gets_the_number_of_lost_events() {
        let history = History::default();
        let about = ServiceResource { service: "s".to_owned(), node: "n".to_owned(), kubernetes: false };
        let mut events = Events { history: history.subscribe(0), about };
        (0..1500).for_each(|number| history.record(EventKind::Operator, None, None, number.to_string()));
        let stop = CancellationToken::new();
        let batch = events.next(Duration::from_secs(1), &stop).await.unwrap();
        assert_eq!((batch.records, batch.missed), (1000, 500));
        history.record(EventKind::Operator, None, None, "last".to_owned());
        history.close();
        assert_eq!(events.next(Duration::from_secs(1), &stop).await.unwrap().records, 1);
        assert!(events.next(Duration::from_secs(1), &stop).await.is_none());
    }
}
