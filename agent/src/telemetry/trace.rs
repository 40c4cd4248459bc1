//! One request of the plugin as a trace: the start, the duration and the result of each of its
//! steps.
//!
//! The flow's metrics have the same times; no step is measured twice. Without a collector [`Steps`]
//! is empty, and a step costs only the check for this.
//!
//! A trace starts at the plugin's start time, if the plugin sends one: both use this node's clock.
//! If the caller of the plugin passes W3C's `traceparent`, the trace is a child of it. If that
//! parent is not sampled, the trace is not exported.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::time::Instant;
use trunkline_api::attach::{Failure, Interface, Origin};

use super::proto::{AnyValue, KeyValue, attribute};
use crate::ipam::Record;

/// Capacity of the queue to the collector. Further traces are dropped and counted.
const QUEUE: usize = 256;
/// Maximum age of a plugin's start time. An older time is ignored.
const OLDEST: Duration = Duration::from_secs(3600);

/// Starts traces. Cheap to clone; empty without a configured collector.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    queue: mpsc::Sender<Trace>,
    /// Number of spans that the full queue dropped.
    missed: Arc<AtomicU64>,
}

/// The exported data of a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Trace {
    pub(super) id: [u8; 16],
    /// The span of the plugin's caller.
    pub(super) parent: Vec<u8>,
    /// The request.
    pub(super) root: Span,
    /// Its steps, in order.
    pub(super) steps: Vec<Span>,
}

/// A piece of time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Span {
    pub(super) id: [u8; 8],
    pub(super) name: &'static str,
    /// Nanoseconds since 1970.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) error: Option<String>,
    pub(super) attributes: Vec<KeyValue>,
}

/// The receiving end of [`Tracer`].
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) queue: mpsc::Receiver<Trace>,
    pub(super) missed: Arc<AtomicU64>,
}

impl Tracer {
    /// A tracer and its receiving end.
    pub(super) fn new() -> (Tracer, Finished) {
        let (queue, finished) = mpsc::channel(QUEUE);
        let missed = Arc::<AtomicU64>::default();
        let shared = Shared { queue, missed: Arc::clone(&missed) };
        (Tracer(Some(Arc::new(shared))), Finished { queue: finished, missed })
    }

    /// A request with its first octet at `began`.
    pub fn begin(&self, name: &'static str, began: Instant, origin: Option<&Origin>) -> Steps {
        let Some(shared) = &self.0 else { return Steps(None) };
        let parent = origin.and_then(|origin| Parent::parse(&origin.traceparent));
        if parent.as_ref().is_some_and(|parent| !parent.sampled) {
            return Steps(None);
        }
        let clock = Clock { wall: now(), at: Instant::now() };
        let arrived = clock.wall_of(began);
        let oldest = arrived.saturating_sub(OLDEST.as_nanos() as u64);
        let started = origin.map(|origin| origin.started_unix_nano);
        let start = started.filter(|started| (oldest..=arrived).contains(started));
        let root = Span {
            id: id(),
            name,
            start: start.unwrap_or(arrived),
            end: arrived,
            error: None,
            attributes: Vec::new(),
        };
        let id = match &parent {
            Some(parent) => parent.trace,
            None => {
                let mut trace = [0; 16];
                trace[..8].copy_from_slice(&id());
                trace[8..].copy_from_slice(&id());
                trace
            }
        };
        let parent = parent.map(|parent| parent.span.to_vec()).unwrap_or_default();
        let mut steps = Steps(Some(Box::new(Open {
            shared: Arc::clone(shared),
            clock,
            trace: Trace { id, parent, root, steps: Vec::new() },
        })));
        if let (Some(open), Some(start)) = (&mut steps.0, start) {
            open.push("plugin", start, arrived, None, Vec::new());
        }
        steps
    }
}

/// A random ID of a span, or half of a trace ID. 0 is not a valid ID.
fn id() -> [u8; 8] {
    fastrand::u64(1..).to_be_bytes()
}

/// The completed steps of a request.
#[derive(Debug)]
pub struct Steps(Option<Box<Open>>);

#[derive(Debug)]
struct Open {
    shared: Arc<Shared>,
    clock: Clock,
    trace: Trace,
}

impl Open {
    fn push(
        &mut self,
        name: &'static str,
        start: u64,
        end: u64,
        error: Option<String>,
        attributes: Vec<KeyValue>,
    ) {
        let id = id();
        self.trace.steps.push(Span { id, name, start, end, error, attributes });
    }
}

/// Converts the monotonic clock with one reading of both clocks: steps keep their order even if the
/// time of day is changed.
#[derive(Clone, Copy, Debug)]
struct Clock {
    wall: u64,
    at: Instant,
}

impl Clock {
    fn wall_of(&self, moment: Instant) -> u64 {
        let after = moment.saturating_duration_since(self.at).as_nanos() as u64;
        let before = self.at.saturating_duration_since(moment).as_nanos() as u64;
        (self.wall + after).saturating_sub(before)
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    u64::try_from(Timestamp::now().as_nanosecond()).unwrap_or_default()
}

impl Steps {
    /// No trace, for an action that is part of another request or of no request.
    pub fn none() -> Steps {
        Steps(None)
    }

    /// Runs a step and records it.
    pub async fn time<T, E: Display>(
        &mut self,
        name: &'static str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        if self.0.is_none() {
            return work.await;
        }
        let began = Instant::now();
        let outcome = work.await;
        self.step(name, began, began.elapsed(), outcome.as_ref().err());
        outcome
    }

    /// Records a measured step.
    pub fn step(&mut self, name: &'static str, began: Instant, took: Duration, error: Option<&impl Display>) {
        let Some(open) = &mut self.0 else { return };
        let start = open.clock.wall_of(began);
        let error = error.map(ToString::to_string);
        open.push(name, start, start + took.as_nanos() as u64, error, Vec::new());
    }

    /// Adds an attribute to the last step.
    pub fn of_step(&mut self, key: &'static str, value: impl FnOnce() -> Vec<String>) {
        if let Some(step) = self.0.as_mut().and_then(|open| open.trace.steps.last_mut()) {
            step.attributes.push(attribute(key, value()));
        }
    }

    /// Adds an attribute to the request.
    pub(super) fn of_request<V: Into<AnyValue>>(&mut self, key: &'static str, value: impl FnOnce() -> V) {
        if let Some(open) = &mut self.0 {
            open.trace.root.attributes.push(attribute(key, value()));
        }
    }

    /// Adds the interface of the request.
    pub fn of_interface(&mut self, interface: &Interface) {
        self.of_request("container.id", || interface.container_id.as_str());
        self.of_request("trunkline.interface", || interface.ifname.as_str());
    }

    /// Adds the pod, if it is known.
    pub fn of_pod(&mut self, namespace: &str, name: &str, uid: &str) {
        for (key, value) in [("k8s.namespace.name", namespace), ("k8s.pod.name", name), ("k8s.pod.uid", uid)]
        {
            if !value.is_empty() {
                self.of_request(key, || value);
            }
        }
    }

    /// Adds the network and the addresses.
    pub fn of_record(&mut self, record: &Record) {
        self.of_request("trunkline.network", || record.network.as_str());
        let addresses = record.addresses.iter().map(|assigned| assigned.address.to_string());
        self.of_request("trunkline.addresses", || addresses.collect::<Vec<_>>());
    }

    /// Ends the request, which began at `began`.
    pub fn end(self, began: Instant, took: Duration, failure: Option<&Failure>) {
        let Some(open) = self.0 else { return };
        let Open { shared, clock, mut trace } = *open;
        trace.root.end = clock.wall_of(began) + took.as_nanos() as u64;
        trace.root.error = failure.map(ToString::to_string);
        let code = failure.map(|failure| attribute("error.type", u32::from(failure.code).to_string()));
        trace.root.attributes.extend(code);
        let spans = trace.steps.len() as u64 + 1;
        if shared.queue.try_send(trace).is_err() {
            shared.missed.fetch_add(spans, Ordering::Relaxed);
        }
    }
}

/// The parent of a trace: W3C Trace Context, `traceparent`.
#[derive(Debug, PartialEq)]
struct Parent {
    trace: [u8; 16],
    span: [u8; 8],
    sampled: bool,
}

impl Parent {
    fn parse(text: &str) -> Option<Parent> {
        let mut parts = text.split('-');
        let [version] = octets(parts.next()?)?;
        let parent = Parent {
            trace: octets(parts.next()?)?,
            span: octets(parts.next()?)?,
            sampled: octets::<1>(parts.next()?)?[0] & 1 == 1,
        };
        // Later versions may append fields; version 0 must not. 255 is not a version, and zeros are
        // not valid IDs.
        let good = version != 255 && (version > 0 || parts.next().is_none());
        (good && parent.trace != [0; 16] && parent.span != [0; 8]).then_some(parent)
    }
}

/// Parses `N` octets in lower-case hexadecimal.
fn octets<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N || !digits.iter().all(|d| d.is_ascii_digit() || (b'a'..=b'f').contains(d)) {
        return None;
    }
    let mut octets = [0; N];
    for (octet, pair) in octets.iter_mut().zip(digits.chunks(2)) {
        *octet = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(octets)
}

#[cfg(test)]
mod tests {
    use trunkline_api::attach::Code;

    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn origin(started_unix_nano: u64, traceparent: &str) -> Origin {
        Origin { started_unix_nano, traceparent: traceparent.to_owned() }
    }

    #[test]
    fn traceparent_is_parsed_as_w3c_defines() {
        let parent = Parent::parse(PARENT).unwrap();
        assert_eq!((parent.trace[0], parent.span[7], parent.sampled), (0x4b, 0xb7, true));
        assert!(!Parent::parse(&PARENT.replace("-01", "-00")).unwrap().sampled);
        assert!(Parent::parse(&format!("{}-more", PARENT.replace("00-4", "01-4"))).is_some());
        for bad in [
            "",
            "00",
            &PARENT.replace("00-4", "ff-4"),
            &PARENT.to_uppercase(),
            &format!("{PARENT}-more"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b-01",
            "00-éé92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(Parent::parse(bad), None, "{bad}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn steps_follow_each_other_from_the_plugins_start() {
        let (tracer, mut finished) = Tracer::new();
        let began = Instant::now();
        let started = now() - 5_000_000;
        let mut steps = tracer.begin("attach", began, Some(&origin(started, PARENT)));
        let wait = |ms| tokio::time::sleep(Duration::from_millis(ms));
        let done: Result<(), Failure> = steps
            .time("link", async {
                wait(10).await;
                Ok(())
            })
            .await;
        assert!(done.is_ok());
        let failure = Failure::new(Code::TryAgainLater, "no peer received it");
        let said: Result<(), Failure> = steps
            .time("advertisement", async {
                wait(20).await;
                Err(failure.clone())
            })
            .await;
        steps.of_step("trunkline.peers", || vec!["10.0.0.1".to_owned()]);
        steps.of_request("k8s.pod.name", || "web-0".to_owned());
        steps.end(began, began.elapsed(), said.as_ref().err());

        let trace = finished.queue.try_recv().unwrap();
        assert_eq!((trace.id[0], trace.parent[7]), (0x4b, 0xb7));
        assert_eq!(trace.root.start, started);
        assert_eq!(trace.root.error.as_deref(), Some("no peer received it"));
        assert_eq!(trace.root.attributes.len(), 2);
        let [plugin, link, last_step] = trace.steps.as_slice() else { panic!("{trace:?}") };
        assert_eq!((plugin.name, plugin.start, plugin.end), ("plugin", started, link.start));
        assert_eq!((link.name, link.end - link.start, &link.error), ("link", 10_000_000, &None));
        assert_eq!((last_step.start, last_step.end), (link.end, trace.root.end));
        assert_eq!(
            (last_step.error.as_deref(), last_step.attributes.len()),
            (Some("no peer received it"), 1)
        );
        let ids = [trace.root.id, plugin.id, link.id, last_step.id];
        assert!((0..4).all(|one| !ids[one + 1..].contains(&ids[one])), "{ids:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_impossible_start_time_is_ignored() {
        let (tracer, mut finished) = Tracer::new();
        let now = now();
        for started in [0, now + 60_000_000_000, now - 7_200_000_000_000] {
            let began = Instant::now();
            tracer.begin("attach", began, Some(&origin(started, ""))).end(began, Duration::ZERO, None);
            let trace = finished.queue.try_recv().unwrap();
            assert!(trace.steps.is_empty() && trace.root.start == trace.root.end, "{trace:?}");
            assert!(trace.parent.is_empty() && trace.root.start >= now, "{trace:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn unsampled_and_excess_traces_are_dropped() {
        let began = Instant::now();
        assert!(Tracer::default().begin("attach", began, None).0.is_none());
        let (tracer, mut finished) = Tracer::new();
        let unsampled = origin(1, &PARENT.replace("-01", "-00"));
        assert!(tracer.begin("attach", began, Some(&unsampled)).0.is_none());
        for _ in 0..QUEUE + 3 {
            let mut steps = tracer.begin("attach", began, None);
            steps.step("link", began, Duration::ZERO, None::<&Failure>);
            steps.end(began, Duration::ZERO, None);
        }
        assert_eq!(finished.missed.load(Ordering::Relaxed), 6);
        let mut kept = 0;
        while finished.queue.try_recv().is_ok() {
            kept += 1;
        }
        assert_eq!(kept, QUEUE);
    }
}
