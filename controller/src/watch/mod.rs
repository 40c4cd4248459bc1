//! From the API server's watches to the books.
//!
//! One task a kind: a list in pages, then a watch with bookmarks from where the list was, again after a gap, with jittered backoff
//! while the API server does not answer (kube's watcher does all that, with our [`delays`]). When it answers again, work that failed
//! meanwhile is done at once. Each object is made a row as it arrives and the rest of it is
//! forgotten. An object that cannot be read is that object's fault: it is named in the log, and the others are served.
//!
//! Networks, subnets, nodes, namespaces and IPInstances are watched on every replica, since the webhook answers from them; pods in a term of
//! leadership alone, and only those with a node, as the others are not the controller's business yet.
//!
//! When etcd is put back to an older snapshot its resourceVersions go back as well, and a watch that goes on from a later one would wait
//! for it without a word. So after each time that a watch broke off the API server is asked where it is, and what is
//! behind what was seen already means a list from anew. In a list what is older than what is known counts too.
//!
//! A new leader lists IPInstances from anew before it serves: what its predecessor wrote last may not have arrived yet
//! ([`Relist`]).

pub mod delays;
pub mod pod;

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::OptionFuture;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::api::ListParams;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::sleep;
use trunkline_api::kube::{Kind, Lenient, Unreadable};
use trunkline_api::resources::{IPInstanceSpec, NetworkSpec, SubnetSpec};

use crate::books::{Books, Shared, Unread};
use crate::cluster::{InstanceRow, Key, NodeRow, PodRow, Said, version};
use delays::Delays;
use pod::Pod;

/// A kind that is watched, and what its events do to the books.
pub trait Watched: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static {
    /// A list begins.
    fn begin(books: &mut Books);
    /// It is there, or changed.
    fn apply(self, books: &mut Books);
    /// It is gone.
    fn remove(self, books: &mut Books);
    /// The list is complete.
    fn end(books: &mut Books);
}

/// Asks a watch to list from anew, and tells when it has.
#[derive(Clone)]
pub struct Relist {
    wanted: watch::Sender<u64>,
    done: watch::Sender<u64>,
}

impl Default for Relist {
    fn default() -> Self {
        Relist { wanted: watch::Sender::new(0), done: watch::Sender::new(0) }
    }
}

impl Relist {
    /// Waits until a list that begins after this call is complete.
    pub async fn list(&self) {
        self.wanted.send_modify(|count| *count += 1);
        self.listed().await;
    }

    /// Waits until a list is complete that nobody has asked to be made anew.
    pub async fn listed(&self) {
        let wanted = *self.wanted.borrow();
        // The sender is in `self`, so it cannot be gone.
        let _ = self.done.subscribe().wait_for(|done| *done > wanted).await;
    }
}

/// Follows a kind for as long as it is polled.
pub async fn follow<K: Watched>(api: Api<K>, config: watcher::Config, shared: Arc<Shared>, relist: Relist) {
    let mut wanted = relist.wanted.subscribe();
    // The latest write of the kind that was seen.
    let mut latest = 0;
    loop {
        let serving = *wanted.borrow_and_update();
        let mut events = pin!(watcher(api.clone(), config.clone()).backoff(Delays::default()));
        // While it is asked where the API server is: the latest write that had been seen when the watch broke off.
        let mut before = None;
        let mut asking = pin!(OptionFuture::from(None));
        loop {
            let event = tokio::select! {
                biased;
                changed = wanted.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                Some(now) = &mut asking, if before.is_some() => {
                    asking.set(OptionFuture::from(None));
                    let seen = before.take().unwrap_or(0);
                    tracing::info!(kind = %K::kind(&()), "the API server answers again");
                    if let Some(term) = &shared.lock().term {
                        term.queues.retry();
                    }
                    if now < seen {
                        tracing::warn!(
                            kind = %K::kind(&()), now, seen,
                            "the API server is behind what was seen of it (etcd was restored): everything is listed anew"
                        );
                        latest = 0;
                        break;
                    }
                    continue;
                }
                event = events.next() => event,
            };
            match event {
                Some(Ok(event)) => {
                    let done = matches!(event, Event::InitDone);
                    if let Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) = &event {
                        latest = latest.max(version(object.meta()));
                    }
                    take(event, &shared);
                    if done {
                        // One more than what was wanted when it began: 0 stands for no list at all.
                        relist.done.send_replace(serving + 1);
                    }
                }
                Some(Err(error)) => {
                    shared.metrics().watch_failed(&K::kind(&()));
                    if before.is_none() {
                        before = Some(latest);
                        tracing::warn!(kind = %K::kind(&()), %error, "a watch broke off: what is known stays, and it is tried again");
                        asking.set(OptionFuture::from(Some(position(api.clone()))));
                    }
                }
                None => return,
            }
        }
    }
}

/// Where the API server is: the version of a list of this moment, as soon as it gives one.
async fn position<K: Watched>(api: Api<K>) -> u64 {
    let parameters = ListParams::default().limit(1);
    for delay in Delays::default() {
        if let Ok(page) = api.list(&parameters).await {
            return page.metadata.resource_version.and_then(|text| text.parse().ok()).unwrap_or(u64::MAX);
        }
        sleep(delay).await;
    }
    u64::MAX
}

fn take<K: Watched>(event: Event<K>, shared: &Shared) {
    let mut books = shared.lock();
    match event {
        Event::Init => K::begin(&mut books),
        Event::InitApply(object) | Event::Apply(object) => object.apply(&mut books),
        Event::Delete(object) => object.remove(&mut books),
        Event::InitDone => K::end(&mut books),
    }
}

/// As [`name_faults`], and remembers it for the object's events.
fn note_faults<S: Kind>(object: &Lenient<S>, books: &mut Books) -> Arc<str>
where
    Lenient<S>: Resource<DynamicType = ()>,
{
    name_faults(object);
    let name = name(object.meta(), books);
    let texts: Vec<String> = object.faults().iter().map(ToString::to_string).collect();
    let unread =
        Unread { uid: object.meta().uid.as_deref().unwrap_or_default().into(), text: texts.join("; ") };
    books.set_fault(S::KIND, &name, (!texts.is_empty()).then_some(unread));
    name
}

/// Says once a write of the object what of it cannot be read.
fn name_faults<S: Kind>(object: &Lenient<S>) {
    for fault in object.faults() {
        tracing::warn!(%fault, "an object is not read as a whole");
    }
}

fn name(metadata: &kube::core::ObjectMeta, books: &mut Books) -> Arc<str> {
    books.cluster.interner.get(metadata.name.as_deref().unwrap_or_default())
}

fn key(metadata: &kube::core::ObjectMeta, books: &mut Books) -> Key {
    let namespace = books.cluster.interner.get(metadata.namespace.as_deref().unwrap_or_default());
    Key { namespace, name: metadata.name.as_deref().unwrap_or_default().into() }
}

impl Watched for Lenient<NetworkSpec> {
    fn begin(books: &mut Books) {
        books.cluster.networks.begin();
        books.faults.retain(|(kind, _), _| *kind != <NetworkSpec as Kind>::KIND);
    }

    fn apply(self, books: &mut Books) {
        let name = note_faults(&self, books);
        match self.0 {
            Ok(object) => books.set_network(&name, object.into()),
            // What was known of it before stays in force.
            Err(_) => books.cluster.networks.note(&name),
        }
    }

    fn remove(self, books: &mut Books) {
        let name = name(self.meta(), books);
        books.set_fault(<NetworkSpec as Kind>::KIND, &name, None);
        books.remove_network(&name);
    }

    fn end(books: &mut Books) {
        for name in books.cluster.networks.end() {
            books.remove_network(&name);
        }
    }
}

impl Watched for Lenient<SubnetSpec> {
    fn begin(books: &mut Books) {
        books.cluster.subnets.begin();
        books.faults.retain(|(kind, _), _| *kind != <SubnetSpec as Kind>::KIND);
    }

    fn apply(self, books: &mut Books) {
        let name = note_faults(&self, books);
        match self.0 {
            Ok(object) => books.set_subnet(&name, object.into()),
            Err(_) => books.cluster.subnets.note(&name),
        }
    }

    fn remove(self, books: &mut Books) {
        let name = name(self.meta(), books);
        books.set_fault(<SubnetSpec as Kind>::KIND, &name, None);
        books.remove_subnet(&name);
    }

    fn end(books: &mut Books) {
        for name in books.cluster.subnets.end() {
            books.remove_subnet(&name);
        }
    }
}

impl Watched for Lenient<IPInstanceSpec> {
    fn begin(books: &mut Books) {
        books.cluster.instances.begin();
        books.cluster.unreadable.begin();
    }

    fn apply(self, books: &mut Books) {
        name_faults(&self);
        let key = key(self.meta(), books);
        let row = match &self.0 {
            Ok(object) => InstanceRow::of(object, &mut books.cluster.interner),
            Err(unreadable) => Err(Unreadable::to_string(unreadable)),
        };
        match row {
            Ok(row) => books.set_instance(&key, row),
            Err(fault) => {
                tracing::warn!(ipinstance = %key, %fault, "an IPInstance cannot be read");
                books.unreadable_instance(&key);
            }
        }
    }

    fn remove(self, books: &mut Books) {
        let key = key(self.meta(), books);
        books.remove_instance(&key, version(self.meta()));
    }

    fn end(books: &mut Books) {
        let mut gone = books.cluster.instances.end();
        gone.extend(books.cluster.unreadable.end());
        for key in gone {
            books.remove_instance(&key, u64::MAX);
        }
    }
}

impl Watched for Node {
    fn begin(books: &mut Books) {
        books.cluster.nodes.begin();
    }

    fn apply(self, books: &mut Books) {
        let name = name(&self.metadata, books);
        books.set_node(&name, NodeRow::of(&self));
    }

    fn remove(self, books: &mut Books) {
        let name = name(&self.metadata, books);
        books.remove_node(&name);
    }

    fn end(books: &mut Books) {
        for name in books.cluster.nodes.end() {
            books.remove_node(&name);
        }
    }
}

impl Watched for Namespace {
    fn begin(books: &mut Books) {
        books.cluster.namespaces.begin();
    }

    fn apply(self, books: &mut Books) {
        let name = name(&self.metadata, books);
        books.set_namespace(&name, Said::of(&self.metadata));
    }

    fn remove(self, books: &mut Books) {
        let name = name(&self.metadata, books);
        books.cluster.namespaces.remove(&name);
    }

    fn end(books: &mut Books) {
        for name in books.cluster.namespaces.end() {
            books.cluster.namespaces.remove(&name);
        }
    }
}

impl Watched for Pod {
    fn begin(books: &mut Books) {
        books.cluster.pods.begin();
    }

    fn apply(self, books: &mut Books) {
        let key = key(&self.metadata, books);
        let row = PodRow::of(&self, &mut books.cluster.interner);
        books.set_pod(&key, row);
    }

    fn remove(self, books: &mut Books) {
        let key = key(&self.metadata, books);
        books.remove_pod(&key);
    }

    fn end(books: &mut Books) {
        for key in books.cluster.pods.end() {
            books.remove_pod(&key);
        }
    }
}
