//! Traces as OTLP's spans.

use std::sync::atomic::Ordering;
use std::time::Duration;

use prost::Message as _;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::export::{Batch, Source};
use super::proto::{self, ExportTraceServiceRequest, ResourceSpans, ScopeSpans, attribute};
use super::resource::ServiceResource;
use super::trace::{Finished, Span, Trace};

/// OpenTelemetry's span kinds: an internal step, and a request from a client.
const INTERNAL: i32 = 1;
const SERVER: i32 = 2;
/// OpenTelemetry's status code of an error.
const ERROR: i32 = 2;

/// The traces of the attach flow.
pub(super) struct Traces {
    pub(super) finished: Finished,
    pub(super) about: ServiceResource,
}

impl Source for Traces {
    const SIGNAL: &'static str = "traces";
    const PATH: &'static str = "/v1/traces";

    async fn next(&mut self, linger: Duration, stop: &CancellationToken) -> Option<Batch> {
        let queue = &mut self.finished.queue;
        let first = tokio::select! {
            biased;
            trace = queue.recv() => trace?,
            // No more requests arrive.
            () = stop.cancelled() => return None,
        };
        tokio::select! {
            () = sleep(linger) => {}
            () = stop.cancelled() => {}
        }
        let mut traces = vec![first];
        while let Ok(trace) = queue.try_recv() {
            traces.push(trace);
        }
        let spans: Vec<proto::Span> =
            traces.into_iter().flat_map(|trace| spans(trace, &self.about)).collect();
        let records = spans.len() as u64;
        let scope_spans = vec![ScopeSpans { scope: Some(self.about.scope()), spans }];
        let resource_spans = vec![ResourceSpans { resource: Some(self.about.resource()), scope_spans }];
        Some(Batch {
            records,
            missed: self.finished.missed.swap(0, Ordering::Relaxed),
            body: ExportTraceServiceRequest { resource_spans }.encode_to_vec().into(),
        })
    }
}

fn spans(trace: Trace, about: &ServiceResource) -> impl Iterator<Item = proto::Span> {
    let Trace { id, parent, mut root, steps } = trace;
    root.attributes.push(attribute("trunkline.node", about.node.as_str()));
    let above = root.id.to_vec();
    let root = span(&id, parent, SERVER, root);
    let steps = steps.into_iter().map(move |step| span(&id, above.clone(), INTERNAL, step));
    [root].into_iter().chain(steps)
}

fn span(trace: &[u8; 16], parent: Vec<u8>, kind: i32, span: Span) -> proto::Span {
    let Span { id, name, start, end, error, attributes } = span;
    proto::Span {
        trace_id: trace.to_vec(),
        span_id: id.to_vec(),
        parent_span_id: parent,
        name: name.to_owned(),
        kind,
        start_time_unix_nano: start,
        end_time_unix_nano: end,
        attributes,
        status: error.map(|message| proto::Status { message, code: ERROR }),
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest as Theirs;
    use opentelemetry_proto::tonic::trace::v1::{span::SpanKind, status::StatusCode};
    use tokio::time::Instant;
    use trunkline_api::attach::{Code, Failure, Origin};

    use super::super::trace::Tracer;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_trace_is_decoded_by_opentelemetry() {
        let (tracer, finished) = Tracer::new();
        let about = ServiceResource { service: "s".to_owned(), node: "n1".to_owned(), kubernetes: false };
        let mut traces = Traces { finished, about };
        let began = Instant::now();
        let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned();
        let mut steps = tracer.begin("attach", began, Some(&Origin { started_unix_nano: 0, traceparent }));
        steps.of_request("trunkline.addresses", || vec!["10.1.0.7".to_owned()]);
        let failure = Failure::new(Code::PoolExhausted, "subnet pods is full");
        steps.step("addresses", began, Duration::from_millis(2), Some(&failure));
        steps.end(began, Duration::from_millis(3), Some(&failure));
        tracer.begin("detach", began, None).end(began, Duration::from_millis(1), None);
        let stop = CancellationToken::new();
        let batch = traces.next(Duration::from_secs(1), &stop).await.unwrap();
        assert_eq!((batch.records, batch.missed), (3, 0));

        let theirs = Theirs::decode(batch.body).unwrap();
        let [root, step, detach] = theirs.resource_spans[0].scope_spans[0].spans.as_slice() else {
            panic!("{theirs:?}")
        };
        assert_eq!(root.trace_id[..2], [0x4b, 0xf9]);
        assert_eq!(root.parent_span_id[6..], [0x02, 0xb7]);
        assert_eq!((root.name.as_str(), root.kind()), ("attach", SpanKind::Server));
        assert_eq!(root.end_time_unix_nano - root.start_time_unix_nano, 3_000_000);
        let status = root.status.as_ref().unwrap();
        assert_eq!((status.code(), status.message.as_str()), (StatusCode::Error, "subnet pods is full"));
        let keys: Vec<&str> = root.attributes.iter().map(|attribute| attribute.key.as_str()).collect();
        assert_eq!(keys, ["trunkline.addresses", "error.type", "trunkline.node"]);
        assert_eq!((&step.trace_id, &step.parent_span_id), (&root.trace_id, &root.span_id));
        assert_eq!((step.name.as_str(), step.kind()), ("addresses", SpanKind::Internal));
        assert_eq!(step.end_time_unix_nano - step.start_time_unix_nano, 2_000_000);
        assert_ne!(detach.trace_id, root.trace_id);
        assert!(detach.parent_span_id.is_empty() && detach.status.is_none(), "{detach:?}");

        // When the agent stops, existing traces are exported, and later traces are not.
        tracer.begin("detach", began, None).end(began, Duration::ZERO, None);
        stop.cancel();
        assert_eq!(traces.next(Duration::from_secs(1), &stop).await.unwrap().records, 1);
        assert!(traces.next(Duration::from_secs(1), &stop).await.is_none());
    }
}
