//! The watches of a remote cluster. After each error, a watch starts again with a list.
//!
//! kube's watcher reports nothing when it resumes after an error, until an object changes. So a
//! short failure of a quiet watch would look like a failure without an end. The end of a new list
//! is the answer of the API server.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, SelectAll, Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::PartialObjectMeta;
use kube::runtime::utils::Backoff as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::time::{Instant, sleep};
use trunkline_api::kube::{Kind, Lenient};
use trunkline_api::names::{REMOTE_ENDPOINTS_MANAGER, label};
use trunkline_daemon::errors::chain;

use super::view::Change;
use crate::watch::delays::Delays;

/// The delays between lists start again after a watch without an error for this time.
const STEADY: Duration = Duration::from_secs(30);

/// Kinds for which the user of the RemoteCluster may lack the right.
pub(super) const SERVICE: &str = "Service";
pub(super) const ENDPOINT_SLICE: &str = "EndpointSlice";

/// An event of a watch, or its failure.
pub(super) type Watched = (&'static str, Result<Change, watcher::Error>);

/// The watches of all kinds.
pub(super) fn watch_all(client: &Client) -> SelectAll<BoxStream<'static, Watched>> {
    stream::select_all([
        watch(client, "Network", Change::Network),
        watch(client, "Subnet", Change::Subnet),
        watch(client, "NodeInfo", Change::Node),
        watch(client, "IPInstance", Change::Instance),
        watch_services(client),
        watch_slices(client),
    ])
}

fn watch<S: Kind>(
    client: &Client,
    kind: &'static str,
    change: fn(Event<Lenient<S>>) -> Change,
) -> BoxStream<'static, Watched>
where
    Lenient<S>: kube::Resource<DynamicType = ()>,
{
    let api: Api<Lenient<S>> = Api::all(client.clone());
    let start = move || watcher(api.clone(), watcher::Config::default());
    list_after_errors(start).map(move |event| (kind, event.map(change))).boxed()
}

fn watch_services(client: &Client) -> BoxStream<'static, Watched> {
    let api: Api<PartialObjectMeta<Service>> = Api::all(client.clone());
    let start = move || watcher(api.clone(), watcher::Config::default());
    list_after_errors(start).map(|event| (SERVICE, event.map(Change::Service))).boxed()
}

/// EndpointSlices, without those with endpoints of remote clusters: these are not mirrored back.
fn watch_slices(client: &Client) -> BoxStream<'static, Watched> {
    let ours = format!("{},{}!={REMOTE_ENDPOINTS_MANAGER}", label::SERVICE_NAME, label::MANAGED_BY);
    let config = watcher::Config::default().labels(&ours).page_size(100);
    let api: Api<EndpointSlice> = Api::all(client.clone());
    let start = move || watcher(api.clone(), config.clone());
    list_after_errors(start).map(|event| (ENDPOINT_SLICE, event.map(Change::Slice))).boxed()
}

/// A stream that is replaced by a new one after each error, with [`Delays`] between them.
///
/// The start of a list is no answer, so an event does not reset the delays. A stream without an
/// error for [`STEADY`] does.
fn list_after_errors<T, E, S>(start: impl Fn() -> S + Send + 'static) -> BoxStream<'static, Result<T, E>>
where
    T: Send + 'static,
    E: Send + 'static,
    S: Stream<Item = Result<T, E>> + Send + 'static,
{
    let first = (start().boxed(), Instant::now());
    let state = (start, first, Delays::default(), None);
    stream::unfold(state, |(start, (mut events, mut since), mut delays, pause)| async move {
        if let Some(pause) = pause {
            sleep(pause).await;
            (events, since) = (start().boxed(), Instant::now());
        }
        let event = events.next().await?;
        let pause = if event.is_err() {
            if since.elapsed() >= STEADY {
                delays.reset();
            }
            delays.next()
        } else {
            None
        };
        Some((event, (start, (events, since), delays, pause)))
    })
    .boxed()
}

pub(super) fn is_forbidden(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    let status = match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status)) => status,
        watcher::Error::WatchError(status) => status,
        _ => return false,
    };
    status.code == 403
}

/// The effect of an event on the failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// None.
    Unchanged,
    /// No watch fails any more.
    Recovered,
    /// The right for a kind is missing since this event.
    Forbidden,
    /// The watch of a kind failed.
    Failed,
}

/// The kinds whose watch failed after its last complete list.
#[derive(Debug, Default)]
pub(super) struct Failures {
    failing: BTreeMap<&'static str, String>,
    /// Kinds whose right is missing. Without the right there are no global Services.
    forbidden: BTreeMap<&'static str, String>,
}

impl Failures {
    /// Records the result of a watch.
    pub(super) fn record(&mut self, kind: &'static str, result: Result<&Change, &watcher::Error>) -> Effect {
        match result {
            Ok(change) if change.ends_list() => {
                self.forbidden.remove(kind);
                self.answered(kind)
            }
            Ok(_) => Effect::Unchanged,
            Err(error) if matches!(kind, SERVICE | ENDPOINT_SLICE) && is_forbidden(error) => {
                let is_new = self.forbidden.insert(kind, chain(error).to_string()).is_none();
                // A refusal is an answer.
                match self.answered(kind) {
                    Effect::Unchanged if is_new => Effect::Forbidden,
                    effect => effect,
                }
            }
            Err(error) => {
                self.failing.insert(kind, format!("{kind}: {}", chain(error)));
                Effect::Failed
            }
        }
    }

    fn answered(&mut self, kind: &str) -> Effect {
        if self.failing.remove(kind).is_some() && self.failing.is_empty() {
            Effect::Recovered
        } else {
            Effect::Unchanged
        }
    }

    /// The error of the first failing kind.
    pub(super) fn text(&self) -> &str {
        self.failing.values().next().map_or("", String::as_str)
    }

    /// The error of a kind whose right is missing.
    pub(super) fn forbidden(&self) -> Option<&str> {
        self.forbidden.values().next().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kube::core::Status;

    use super::*;

    fn error(code: u16) -> watcher::Error {
        let status = Status { code, ..Status::default() };
        watcher::Error::WatchError(Box::new(status))
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_lists_again_after_an_error() {
        let started = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&started);
        let mut events = list_after_errors(move || {
            let number = count.fetch_add(1, Ordering::Relaxed);
            // Like kube's watcher: a stream that resumes reports nothing.
            let events = [Ok(("list", number)), Err("broken")];
            stream::iter(events).chain(stream::pending())
        });
        let mut times = Vec::new();
        for number in 0..10 {
            assert_eq!(events.next().await, Some(Ok(("list", number))));
            assert_eq!(events.next().await, Some(Err("broken")));
            times.push(Instant::now());
        }
        assert_eq!(started.load(Ordering::Relaxed), 10);
        assert!(times[1] - times[0] < Duration::from_secs(1), "the first list follows soon");
        assert!(times[9] - times[8] >= Duration::from_secs(2), "later lists are spaced");
    }

    #[test]
    fn the_end_of_a_list_ends_a_failure() {
        let mut failures = Failures::default();
        assert_eq!(failures.record("Subnet", Err(&error(500))), Effect::Failed);
        assert_eq!(failures.record("Network", Err(&error(403))), Effect::Failed);
        assert_eq!(failures.record("Subnet", Ok(&Change::Subnet(Event::Init))), Effect::Unchanged);
        assert_eq!(failures.record("Subnet", Ok(&Change::Subnet(Event::InitDone))), Effect::Unchanged);
        assert!(failures.text().starts_with("Network"));
        assert_eq!(failures.record("Network", Ok(&Change::Network(Event::InitDone))), Effect::Recovered);
        assert_eq!(failures.record("Network", Ok(&Change::Network(Event::InitDone))), Effect::Unchanged);
    }

    #[test]
    fn a_missing_right_ends_an_outage() {
        let mut failures = Failures::default();
        assert_eq!(failures.record(SERVICE, Err(&error(403))), Effect::Forbidden);
        assert_eq!(failures.record(SERVICE, Err(&error(403))), Effect::Unchanged);
        assert_eq!(failures.record(SERVICE, Err(&error(500))), Effect::Failed);
        assert_eq!(failures.record(SERVICE, Err(&error(403))), Effect::Recovered);
        assert!(failures.forbidden().is_some());
        assert_eq!(failures.record(SERVICE, Ok(&Change::Service(Event::InitDone))), Effect::Unchanged);
        assert_eq!(failures.forbidden(), None);
    }
}
