//! One watch: a list, then every change after it, as long as a receiver exists.
//!
//! kube's own `watcher` has the same purpose, but it reports only changes and errors. The agent
//! also needs two other facts. One fact is that a quiet watch is connected again after an outage
//! (for `trunkline status`, and for the error of a waiting ADD). The other is that a connection
//! without any data, not even a bookmark, is dead. So this module has its own loop over the same
//! client:
//!
//! - **List** in pages. The end of the list is passed on ([`Change::Listed`]), so the receiver
//!   notices objects that were deleted during a gap. Kinds with an object for each pod are listed
//!   whole from the API server's cache ([`Cached`]): the API server reads pages from etcd, and decodes
//!   all objects of the kind for a list of those with a label.
//! - **Watch** from the list's version, with bookmarks. The server ends a watch after some minutes,
//!   and the next watch continues from the same version.
//! - **A gap** (410, or a version that the server does not know) is closed by a new list. After an
//!   outage the server's current version is requested once: etcd may have been restored from an
//!   older snapshot ([`trunkline_daemon::versions`]).
//! - **Silence**: the client's sockets detect a missing peer in half a minute
//!   ([`trunkline_daemon::apiserver`]). A peer may exist and send nothing, not even the bookmarks
//!   of about once a minute: the watch closes this connection after `SILENCE`.
//! - **Failures**: the watch waits longer after each one, up to `MAX_DELAY`, with jitter. So the
//!   nodes of a cluster do not reconnect at the same moment.
//! - **A missing kind** (404) of an optional watch is an empty list: on an upgrade, the new version
//!   can start before its CRDs exist. The watch lists again after `ABSENT`.
//! - **Many objects**: a source can convert each page of a list to smaller rows ([`Rows`]), and pass
//!   on each page ([`Change::Page`]). So a list of 20,000 objects never holds all of them at once.

use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures_util::{AsyncBufReadExt, Stream, StreamExt};
use kube::Resource;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::core::params::VersionMatch;
use kube::core::{ObjectList, PartialObjectMeta, Request};
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use trunkline_daemon::errors::chain;
use trunkline_daemon::list_limit::InPieces;
use trunkline_daemon::versions::{is_behind, number};

use super::health::Health;
use super::list::Splitter;
use super::request::{RequestError, within};

/// Objects in a page of a list, unless the source needs smaller pages.
pub(super) const PAGE: u32 = 500;
/// The first wait after a failure.
const MIN_DELAY: Duration = Duration::from_millis(250);
/// The longest wait after a failure.
const MAX_DELAY: Duration = Duration::from_secs(15);
/// Range of a watch's time limit, in seconds; the nodes' watches end at different times.
const LIFE: (u32, u32) = (240, 290);
/// A connection without any event for this time is dead.
pub(super) const SILENCE: Duration = Duration::from_secs(150);
/// Time limit of a page and of the answer to a watch.
const ANSWER: Duration = Duration::from_secs(30);
/// Time limit of a whole list, as in the API server (`--request-timeout`).
const WHOLE_ANSWER: Duration = Duration::from_secs(60);
/// The version of a list that the API server's cache may answer.
const ANY_VERSION: &str = "0";
/// After this number of refusals for one version, the server does not know the version.
const REFUSALS: u32 = 3;

/// HTTP status: the server no longer has the changes after the version.
const GONE: u16 = 410;
/// HTTP status: the server does not have the kind.
const NOT_FOUND: u16 = 404;
/// Time to the next list of a kind that the server does not have.
pub(super) const ABSENT: Duration = Duration::from_secs(30);

/// A watch received no data.
#[derive(Debug, thiserror::Error)]
#[error("no data received for {} s", SILENCE.as_secs())]
struct Silent;

/// A change that a watch reports.
#[derive(Clone, Debug, PartialEq)]
pub enum Change<T> {
    /// A page of a list. [`Change::Listed`] follows, or the first page of another attempt. Only
    /// sources with [`Source::reports_pages`] have pages.
    Page {
        /// Whether this page begins a list.
        is_first: bool,
        /// The page's objects.
        objects: Vec<T>,
    },
    /// These objects exist, with those of the pages before, and no others.
    Listed(Vec<T>),
    /// This object is new or changed.
    Applied(T),
    /// This object was deleted.
    Deleted(T),
    /// The API server stopped answering; the reason.
    Failing(String),
}

impl<T> Change<T> {
    /// Whether this ends a list.
    pub fn is_list(&self) -> bool {
        matches!(self, Change::Listed(_))
    }

    /// Converts the objects.
    pub fn map<U>(self, of: impl Fn(T) -> U) -> Change<U> {
        match self {
            Change::Page { is_first, objects } => {
                Change::Page { is_first, objects: objects.into_iter().map(of).collect() }
            }
            Change::Listed(objects) => Change::Listed(objects.into_iter().map(of).collect()),
            Change::Applied(object) => Change::Applied(of(object)),
            Change::Deleted(object) => Change::Deleted(of(object)),
            Change::Failing(reason) => Change::Failing(reason),
        }
    }
}

/// The origin of a watch's objects.
pub trait Source: Send + Sync + 'static {
    /// The type of its objects.
    type Object: Clone + Send + 'static;

    /// Maximum number of objects in a page.
    fn page(&self) -> u32 {
        PAGE
    }

    /// Whether each page of a list is passed on, instead of the whole list.
    fn reports_pages(&self) -> bool {
        false
    }

    /// Whether a list has all objects in one answer from the API server's cache.
    fn lists_from_cache(&self) -> bool {
        false
    }

    /// A list of all objects begins, or begins again. Its end is [`Change::Listed`].
    fn begins_list(&self) {}

    /// The version of a changed object; none if it has none.
    fn version(&self, object: &Self::Object) -> Option<String>;

    /// A page.
    fn list(
        &self,
        params: &ListParams,
    ) -> impl Future<Output = kube::Result<ObjectList<Self::Object>>> + Send;

    /// The changes after a version.
    fn watch(
        &self,
        params: &WatchParams,
        version: &str,
    ) -> impl Future<Output = kube::Result<Changes<Self::Object>>> + Send;
}

/// The events of one connection.
pub type Changes<T> = Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<T>>> + Send>>;

/// Whole objects.
pub struct FullObjects<K>(pub Api<K>);

/// Only the objects' metadata.
pub struct Metadata<K>(pub Api<K>);

/// A source with an object for each pod: it lists from the API server's cache, as the controllers of
/// Kubernetes do. The cache is as new as the events that a watch receives.
pub struct Cached<S>(pub S);

/// Rows: the used parts of each object. Each object is converted as soon as it arrives.
pub struct Rows<K, F> {
    /// The objects.
    pub api: Api<K>,
    /// Maximum number of objects in a page.
    pub page: u32,
    /// Whether each page is passed on as soon as it arrives, instead of the whole list.
    pub by_page: bool,
    /// Converts an object.
    pub convert: F,
}

/// The row of an object, with the object's version if a watch reported it.
#[derive(Clone, Debug, PartialEq)]
pub struct Versioned<R> {
    version: Option<String>,
    /// The row.
    pub row: R,
}

impl<K> Source for FullObjects<K>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    type Object = K;

    fn version(&self, object: &K) -> Option<String> {
        object.meta().resource_version.clone()
    }

    async fn list(&self, params: &ListParams) -> kube::Result<ObjectList<K>> {
        self.0.list(params).await
    }

    async fn watch(&self, params: &WatchParams, version: &str) -> kube::Result<Changes<K>> {
        Ok(Box::pin(self.0.watch(params, version).await?))
    }
}

impl<K> Source for Metadata<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    type Object = PartialObjectMeta<K>;

    fn version(&self, object: &PartialObjectMeta<K>) -> Option<String> {
        object.metadata.resource_version.clone()
    }

    async fn list(&self, params: &ListParams) -> kube::Result<ObjectList<PartialObjectMeta<K>>> {
        self.0.list_metadata(params).await
    }

    async fn watch(
        &self,
        params: &WatchParams,
        version: &str,
    ) -> kube::Result<Changes<PartialObjectMeta<K>>> {
        Ok(Box::pin(self.0.watch_metadata(params, version).await?))
    }
}

impl<S: Source> Source for Cached<S> {
    type Object = S::Object;

    fn page(&self) -> u32 {
        self.0.page()
    }

    fn reports_pages(&self) -> bool {
        self.0.reports_pages()
    }

    fn lists_from_cache(&self) -> bool {
        true
    }

    fn begins_list(&self) {
        self.0.begins_list();
    }

    fn version(&self, object: &S::Object) -> Option<String> {
        self.0.version(object)
    }

    async fn list(&self, params: &ListParams) -> kube::Result<ObjectList<S::Object>> {
        self.0.list(params).await
    }

    async fn watch(&self, params: &WatchParams, version: &str) -> kube::Result<Changes<S::Object>> {
        self.0.watch(params, version).await
    }
}

#[cfg(test)]
impl<R> Versioned<R> {
    /// A row of a changed object.
    pub(super) fn of(version: &str, row: R) -> Versioned<R> {
        Versioned { version: Some(version.to_owned()), row }
    }
}

impl<K, R, F> Source for Rows<K, F>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
    R: Clone + Send + 'static,
    F: Fn(K) -> R + Clone + Send + Sync + 'static,
{
    type Object = Versioned<R>;

    fn page(&self) -> u32 {
        self.page
    }

    fn reports_pages(&self) -> bool {
        self.by_page
    }

    fn version(&self, object: &Versioned<R>) -> Option<String> {
        object.version.clone()
    }

    async fn list(&self, params: &ListParams) -> kube::Result<ObjectList<Versioned<R>>> {
        let request = Request::new(self.api.resource_url()).list(params);
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        // Pages are bounded by their octets, whole lists by the octets of an object.
        if params.limit.is_none() {
            request.extensions_mut().insert(InPieces);
        }
        let mut answer = pin!(self.api.clone().into_client().request_stream(request).await?);
        let (mut splitter, mut items) = (Splitter::default(), Vec::new());
        loop {
            let piece = answer.fill_buf().await.map_err(kube::Error::ReadEvents)?;
            if piece.is_empty() {
                break;
            }
            let length = piece.len();
            let taken = splitter.push(piece, |object| -> std::io::Result<()> {
                // The list has a version of its own.
                let row = (self.convert)(serde_json::from_slice(object)?);
                items.push(Versioned { version: None, row });
                Ok(())
            });
            taken.map_err(kube::Error::ReadEvents)?;
            answer.consume_unpin(length);
        }
        let frame = serde_json::from_slice::<ObjectList<serde_json::Value>>(splitter.frame());
        let ObjectList { types, metadata, .. } = frame.map_err(kube::Error::SerdeError)?;
        Ok(ObjectList { types, metadata, items })
    }

    async fn watch(&self, params: &WatchParams, version: &str) -> kube::Result<Changes<Versioned<R>>> {
        let convert = self.convert.clone();
        let row = move |object: K| {
            let version = object.meta().resource_version.clone();
            Versioned { version, row: convert(object) }
        };
        let changes = self.api.watch(params, version).await?.map(move |event| {
            Ok(match event? {
                WatchEvent::Added(object) => WatchEvent::Added(row(object)),
                WatchEvent::Modified(object) => WatchEvent::Modified(row(object)),
                WatchEvent::Deleted(object) => WatchEvent::Deleted(row(object)),
                WatchEvent::Bookmark(bookmark) => WatchEvent::Bookmark(bookmark),
                WatchEvent::Error(status) => WatchEvent::Error(status),
            })
        });
        Ok(Box::pin(changes))
    }
}

/// Selects the objects of a watch.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    /// A selection by fields.
    pub fields: Option<String>,
    /// A selection by labels.
    pub labels: Option<String>,
}

impl Selector {
    /// The object with this name.
    pub fn name(name: &str) -> Selector {
        Selector { fields: Some(format!("metadata.name={name}")), labels: None }
    }

    /// The objects with this label.
    pub fn label(label: &str, value: &str) -> Selector {
        Selector { fields: None, labels: Some(format!("{label}={value}")) }
    }
}

/// Delays between failures.
struct Delays(Option<ExponentialBackoff>);

impl Delays {
    /// Resets the delay after a success.
    fn reset(&mut self) {
        self.0 = None;
    }

    async fn wait(&mut self) {
        let delays = self.0.get_or_insert_with(|| {
            let delays = ExponentialBuilder::default().with_min_delay(MIN_DELAY).with_max_delay(MAX_DELAY);
            delays.with_factor(2.0).with_jitter().without_max_times().build()
        });
        tokio::time::sleep(delays.next().unwrap_or(MAX_DELAY)).await;
    }
}

/// Watches until `report` reports that no receiver exists. The caller has called [`Health::started`].
pub async fn run<S, F>(
    source: S,
    selector: Selector,
    name: String,
    health: Health,
    mut report: impl FnMut(Change<S::Object>) -> F,
) where
    S: Source,
    F: Future<Output = bool>,
{
    let name = name.as_str();
    let recovered = || tracing::info!(watch = name, "the API server answers again");
    // Whether this failure is new, and a receiver still exists.
    macro_rules! failed {
        ($error:expr) => {{
            let reason = chain(&$error);
            if health.failed(name, reason.clone()) {
                tracing::warn!(watch = name, error = reason, "the API server does not answer");
                if !report(Change::Failing(reason)).await {
                    return;
                }
            }
        }};
    }
    let mut delays = Delays(None);
    // Whether the server does not have the kind, and the receiver knows it.
    let mut absent = false;
    let mut version = String::new();
    'list: loop {
        let objects = match list(&source, &selector, &version, &mut report).await {
            Ok(Some((objects, of_list))) => {
                version = of_list;
                objects
            }
            Ok(None) => return,
            Err(error) if error.code() == Some(NOT_FOUND) && health.is_optional(name) => {
                if health.listed(name) {
                    recovered();
                }
                if !std::mem::replace(&mut absent, true) {
                    tracing::info!(watch = name, "the API server does not have this kind");
                    if !report(Change::Listed(Vec::new())).await {
                        return;
                    }
                }
                // The nodes of a cluster do not list at the same moment.
                tokio::time::sleep(ABSENT.mul_f64(0.75 + fastrand::f64() / 4.0)).await;
                continue;
            }
            Err(error) => {
                failed!(error);
                delays.wait().await;
                continue;
            }
        };
        if health.listed(name) {
            recovered();
        }
        absent = false;
        delays.reset();
        if !report(Change::Listed(objects)).await {
            return;
        }
        let mut refusals = 0;
        // Whether the watch broke off, so etcd may have been restored since.
        let mut interrupted = false;
        loop {
            let params = WatchParams {
                label_selector: selector.labels.clone(),
                field_selector: selector.fields.clone(),
                timeout: Some(life()),
                bookmarks: true,
                send_initial_events: false,
            };
            let mut changes = match within(ANSWER, source.watch(&params, &version)).await {
                Ok(changes) => changes,
                Err(error) => {
                    refusals += u32::from(error.code().is_some());
                    interrupted = true;
                    failed!(error);
                    delays.wait().await;
                    if error.code() == Some(GONE) || refusals >= REFUSALS {
                        continue 'list;
                    }
                    continue;
                }
            };
            if std::mem::take(&mut interrupted) {
                match current_version(&source, &selector).await {
                    Ok(current) if is_behind(current.as_deref(), number(Some(&version))) => {
                        tracing::warn!(
                            watch = name,
                            current,
                            seen = version,
                            "the API server is behind its earlier state (etcd was restored): listing all objects again"
                        );
                        continue 'list;
                    }
                    Ok(_) => {}
                    Err(error) => {
                        interrupted = true;
                        failed!(error);
                        delays.wait().await;
                        continue;
                    }
                }
            }
            if health.listed(name) {
                recovered();
            }
            loop {
                let change = match timeout(SILENCE, changes.next()).await {
                    Ok(Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)))) => {
                        Some((Change::Applied as fn(_) -> _, object))
                    }
                    Ok(Some(Ok(WatchEvent::Deleted(object)))) => {
                        Some((Change::Deleted as fn(_) -> _, object))
                    }
                    Ok(Some(Ok(WatchEvent::Bookmark(bookmark)))) => {
                        version = bookmark.metadata.resource_version;
                        None
                    }
                    Ok(Some(Ok(WatchEvent::Error(status)))) if status.code == GONE => continue 'list,
                    Ok(Some(Ok(WatchEvent::Error(status)))) => {
                        refusals += 1;
                        interrupted = true;
                        failed!(RequestError::Refused(status));
                        delays.wait().await;
                        if refusals >= REFUSALS {
                            continue 'list;
                        }
                        break;
                    }
                    Ok(Some(Err(error))) => {
                        interrupted = true;
                        failed!(RequestError::from(error));
                        delays.wait().await;
                        break;
                    }
                    // The watch reached its time limit, or the server stops: the next watch shows
                    // which. (The delay also applies if a server ends every watch at once.)
                    Ok(None) => {
                        tokio::time::sleep(MIN_DELAY).await;
                        break;
                    }
                    Err(_) => {
                        interrupted = true;
                        failed!(Silent);
                        break;
                    }
                };
                refusals = 0;
                delays.reset();
                if health.event(name) {
                    recovered();
                }
                if let Some((change, object)) = change {
                    if let Some(newer) = source.version(&object).filter(|newer| !newer.is_empty()) {
                        version = newer;
                    }
                    if !report(change(object)).await {
                        return;
                    }
                }
            }
        }
    }
}

/// The API server's current version, from a list of one object.
async fn current_version<S: Source>(source: &S, selector: &Selector) -> Result<Option<String>, RequestError> {
    let params = ListParams {
        label_selector: selector.labels.clone(),
        field_selector: selector.fields.clone(),
        limit: Some(1),
        ..ListParams::default()
    };
    Ok(within(ANSWER, source.list(&params)).await?.metadata.resource_version)
}

/// Lists all objects. Returns those that were not reported in pages, and the list's version. None if
/// no receiver exists. `seen`: the version of the watch so far.
async fn list<S, F>(
    source: &S,
    selector: &Selector,
    seen: &str,
    report: &mut impl FnMut(Change<S::Object>) -> F,
) -> Result<Option<(Vec<S::Object>, String)>, RequestError>
where
    S: Source,
    F: Future<Output = bool>,
{
    source.begins_list();
    let mut params = ListParams {
        label_selector: selector.labels.clone(),
        field_selector: selector.fields.clone(),
        ..ListParams::default()
    };
    if source.lists_from_cache() {
        let params = params.clone().at(ANY_VERSION).matching(VersionMatch::NotOlderThan);
        match within(WHOLE_ANSWER, source.list(&params)).await {
            Ok(all) => {
                let version = all.metadata.resource_version.unwrap_or_default();
                // Another API server can be older than the watch, also after etcd was restored.
                if !is_behind(Some(&version), number(Some(seen))) {
                    return Ok(Some((all.items, version)));
                }
                tracing::debug!(seen, version, "the API server's cache is too old for a list");
            }
            // The cache is not ready, or the list is too large.
            Err(error) => tracing::debug!(error = chain(&error), "no list from the API server's cache"),
        }
    }
    let mut objects = Vec::new();
    params.limit = Some(source.page());
    loop {
        let page = within(ANSWER, source.list(&params)).await?;
        if source.reports_pages() {
            let is_first = params.continue_token.is_none();
            if !report(Change::Page { is_first, objects: page.items }).await {
                return Ok(None);
            }
        } else {
            objects.extend(page.items);
        }
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            let version = page.metadata.resource_version.unwrap_or_default();
            return Ok(Some((objects, version)));
        }
    }
}

fn life() -> u32 {
    fastrand::u32(LIFE.0..LIFE.1)
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
