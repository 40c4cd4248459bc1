//! Watches: from the API server to the shared state.
//!
//! There is one task for each kind: a list in pages, then a watch with bookmarks from the version
//! of the list. After a gap, or while the API server does not answer, it starts again with jittered
//! backoff. (kube's watcher does all this, with our [`delays`].) When the API server answers again,
//! failed work is retried at once. Each object becomes a row as it arrives, and the rest of it is
//! dropped. An unreadable object is logged by name, and the others are served.
//!
//! Every replica watches Networks, Subnets, Nodes, Namespaces and IPInstances, since the webhook
//! answers from them. Pods are watched only during a term of leadership, and only those with a
//! node: the controller handles no others. Services, ServicePools, ServiceAddresses, NodeServices and
//! EndpointSlices are also watched only during a term, NetworkPolicies and ClusterNetworkPolicies
//! for the reports of their faults, NetworkAttachmentDefinitions for the interfaces that Multus adds, and
//! KubeVirt's VirtualMachines and VirtualMachineInstances if these keep their addresses.
//!
//! When etcd is restored from an older snapshot, its resourceVersions go back as well. A watch that
//! continues from a later version would then wait silently. So each time a watch has broken off,
//! the current version is requested from the API server. If it is older than the last one seen,
//! everything is listed again. In such a list, objects that are older than their rows are applied
//! too.
//!
//! A new leader lists IPInstances again before it serves: the last writes of its predecessor may
//! not have arrived yet ([`Relist`]).

pub mod delays;
mod multus;
mod node_services;
mod policies;
mod services;
mod vms;

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

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
use trunkline_daemon::versions;

use crate::cluster::pod::Pod;
use crate::cluster::vm::is_virtual_machine_instance;
use crate::cluster::{InstanceRow, Key, NamespaceRow, NodeRow, PodRow, version};
use crate::state::{ControllerState, ParseFault, SharedState};
use crate::unsupported::Feature;
use delays::Delays;

/// The interval between two lists of a kind that the API server does not have.
const MISSING: Duration = Duration::from_secs(30);

/// A watched kind, and the effect of its events on the shared state.
pub trait Watched: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static {
    /// A list begins.
    fn begin(state: &mut ControllerState);
    /// The object was added or changed.
    fn apply(self, state: &mut ControllerState);
    /// The object was deleted.
    fn remove(self, state: &mut ControllerState);
    /// The list is complete.
    fn end(state: &mut ControllerState);
    /// The API server does not have the kind ([`follow_optional`]). By default, this is an empty list.
    fn missing(state: &mut ControllerState) {
        Self::begin(state);
        Self::end(state);
    }
}

/// Requests a new list from a watch, and waits for it.
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

    /// Waits until a list is complete, without a request for a new one.
    pub async fn listed(&self) {
        let wanted = *self.wanted.borrow();
        // The sender is in `self`, so it cannot be dropped.
        let _ = self.done.subscribe().wait_for(|done| *done > wanted).await;
    }
}

/// Watches a kind for as long as it is polled.
pub async fn follow<K: Watched>(
    api: Api<K>,
    config: watcher::Config,
    shared: Arc<SharedState>,
    relist: Relist,
) {
    let mut wanted = relist.wanted.subscribe();
    // The latest version seen of this kind.
    let mut latest = 0;
    loop {
        let serving = *wanted.borrow_and_update();
        let mut events = pin!(watcher(api.clone(), config.clone()).backoff(Delays::default()));
        // The latest version seen when the watch broke off; `None` unless the API server's version
        // is being requested.
        let mut before = None;
        let mut asking = pin!(OptionFuture::from(None));
        loop {
            let event = tokio::select! {
                biased;
                changed = wanted.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                Some(current) = &mut asking, if before.is_some() => {
                    let current: Option<String> = current;
                    asking.set(OptionFuture::from(None));
                    let seen = before.take().unwrap_or(0);
                    tracing::info!(kind = %K::kind(&()), "the API server answers again");
                    shared.lock().retry();
                    if versions::is_behind(current.as_deref(), seen) {
                        tracing::warn!(
                            kind = %K::kind(&()), current, seen,
                            "the API server is behind its earlier state (etcd was restored): listing all objects again"
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
                        // The value is the request number at the beginning of the list, plus one.
                        // So 0 means that there was no list.
                        relist.done.send_replace(serving + 1);
                    }
                }
                Some(Err(error)) => {
                    shared.metrics().watch_failed(&K::kind(&()));
                    if before.is_none() {
                        before = Some(latest);
                        tracing::warn!(kind = %K::kind(&()), %error, "a watch ended: retrying, \
                            and the known state stays in use");
                        asking.set(OptionFuture::from(Some(position(api.clone()))));
                    }
                }
                None => return,
            }
        }
    }
}

/// Watches a kind like [`follow`]. While the API server does not have the kind, its list counts as
/// empty; every 30 s the list is tried again.
pub async fn follow_optional<K: Watched>(
    api: Api<K>,
    config: watcher::Config,
    shared: Arc<SharedState>,
    relist: Relist,
) {
    let mut wanted = relist.wanted.subscribe();
    let mut reported = false;
    loop {
        let serving = *wanted.borrow_and_update();
        match api.list(&ListParams::default().limit(1)).await {
            // Without a reason if the API server does not have the kind's group.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            _ => break,
        }
        if !reported {
            reported = true;
            tracing::info!(kind = %K::kind(&()), "the API server does not have this kind: install the \
                CustomResourceDefinitions of this version to use it");
        }
        K::missing(&mut shared.lock());
        relist.done.send_replace(serving + 1);
        tokio::select! {
            () = sleep(MISSING) => {}
            changed = wanted.changed() => if changed.is_err() { return },
        }
    }
    follow(api, config, shared, relist).await;
}

/// The API server's current version, from a list of one object; retries until it answers.
async fn position<K: Watched>(api: Api<K>) -> Option<String> {
    let parameters = ListParams::default().limit(1);
    for delay in Delays::default() {
        if let Ok(page) = api.list(&parameters).await {
            return page.metadata.resource_version;
        }
        sleep(delay).await;
    }
    None
}

fn take<K: Watched>(event: Event<K>, shared: &SharedState) {
    let mut state = shared.lock();
    match event {
        Event::Init => K::begin(&mut state),
        Event::InitApply(object) | Event::Apply(object) => object.apply(&mut state),
        Event::Delete(object) => object.remove(&mut state),
        Event::InitDone => K::end(&mut state),
    }
}

/// Does the same as [`name_faults`], and records the faults for the object's events.
fn note_faults<S: Kind>(object: &Lenient<S>, state: &mut ControllerState) -> Arc<str>
where
    Lenient<S>: Resource<DynamicType = ()>,
{
    name_faults(object);
    let name = name(object.meta(), state);
    let texts: Vec<String> = object.faults().iter().map(ToString::to_string).collect();
    let unread =
        ParseFault { uid: object.meta().uid.as_deref().unwrap_or_default().into(), text: texts.join("; ") };
    state.set_fault(S::KIND, &name, (!texts.is_empty()).then_some(unread));
    name
}

/// Logs the unreadable fields of an object, once for each write of it.
fn name_faults<S: Kind>(object: &Lenient<S>) {
    for fault in object.faults() {
        tracing::warn!(%fault, "an object has unreadable fields");
    }
}

fn name(metadata: &kube::core::ObjectMeta, state: &mut ControllerState) -> Arc<str> {
    state.cluster.interner.get(metadata.name.as_deref().unwrap_or_default())
}

fn key(metadata: &kube::core::ObjectMeta, state: &mut ControllerState) -> Key {
    let namespace = state.cluster.interner.get(metadata.namespace.as_deref().unwrap_or_default());
    Key { namespace, name: metadata.name.as_deref().unwrap_or_default().into() }
}

impl Watched for Lenient<NetworkSpec> {
    fn begin(state: &mut ControllerState) {
        state.cluster.networks.begin();
        state.faults.retain(|(kind, _), _| *kind != <NetworkSpec as Kind>::KIND);
    }

    fn apply(self, state: &mut ControllerState) {
        let name = note_faults(&self, state);
        match self.0 {
            Ok(object) => state.set_network(&name, object.into()),
            // The Network's previous row stays in force.
            Err(_) => state.cluster.networks.note(&name),
        }
    }

    fn remove(self, state: &mut ControllerState) {
        let name = name(self.meta(), state);
        state.set_fault(<NetworkSpec as Kind>::KIND, &name, None);
        state.remove_network(&name);
    }

    fn end(state: &mut ControllerState) {
        for name in state.cluster.networks.end() {
            state.remove_network(&name);
        }
    }
}

impl Watched for Lenient<SubnetSpec> {
    fn begin(state: &mut ControllerState) {
        state.cluster.subnets.begin();
        state.faults.retain(|(kind, _), _| *kind != <SubnetSpec as Kind>::KIND);
    }

    fn apply(self, state: &mut ControllerState) {
        let name = note_faults(&self, state);
        match self.0 {
            Ok(object) => state.set_subnet(&name, object.into()),
            Err(_) => state.cluster.subnets.note(&name),
        }
    }

    fn remove(self, state: &mut ControllerState) {
        let name = name(self.meta(), state);
        state.set_fault(<SubnetSpec as Kind>::KIND, &name, None);
        state.remove_subnet(&name);
    }

    fn end(state: &mut ControllerState) {
        for name in state.cluster.subnets.end() {
            state.remove_subnet(&name);
        }
    }
}

impl Watched for Lenient<IPInstanceSpec> {
    fn begin(state: &mut ControllerState) {
        state.cluster.instances.begin();
        state.cluster.unreadable.begin();
    }

    fn apply(self, state: &mut ControllerState) {
        name_faults(&self);
        let key = key(self.meta(), state);
        let row = match &self.0 {
            Ok(object) => InstanceRow::of(object, state.cluster.vms.retain, &mut state.cluster.interner)
                .map_err(|error| error.to_string()),
            Err(unreadable) => Err(Unreadable::to_string(unreadable)),
        };
        match row {
            Ok(row) => state.set_instance(&key, row),
            Err(fault) => {
                tracing::warn!(ipinstance = %key, %fault, "an IPInstance cannot be read");
                state.unreadable_instance(&key);
            }
        }
    }

    fn remove(self, state: &mut ControllerState) {
        let key = key(self.meta(), state);
        state.remove_instance(&key, version(self.meta()));
    }

    fn end(state: &mut ControllerState) {
        let mut gone = state.cluster.instances.end();
        gone.extend(state.cluster.unreadable.end());
        for key in gone {
            state.remove_instance(&key, u64::MAX);
        }
    }
}

impl Watched for Node {
    fn begin(state: &mut ControllerState) {
        state.cluster.nodes.begin();
    }

    fn apply(self, state: &mut ControllerState) {
        let name = name(&self.metadata, state);
        state.set_node(&name, NodeRow::of(&self));
    }

    fn remove(self, state: &mut ControllerState) {
        let name = name(&self.metadata, state);
        state.remove_node(&name);
    }

    fn end(state: &mut ControllerState) {
        for name in state.cluster.nodes.end() {
            state.remove_node(&name);
        }
    }
}

impl Watched for Namespace {
    fn begin(state: &mut ControllerState) {
        state.cluster.namespaces.begin();
    }

    fn apply(self, state: &mut ControllerState) {
        let name = name(&self.metadata, state);
        state.set_namespace(&name, NamespaceRow::of(&self.metadata));
    }

    fn remove(self, state: &mut ControllerState) {
        let name = name(&self.metadata, state);
        state.remove_namespace(&name, version(&self.metadata));
    }

    fn end(state: &mut ControllerState) {
        for name in state.cluster.namespaces.end() {
            state.remove_namespace(&name, u64::MAX);
        }
    }
}

impl Watched for Pod {
    fn begin(state: &mut ControllerState) {
        state.cluster.pods.begin();
        state.unsupported.begin(Feature::VirtualMachine);
    }

    fn apply(self, state: &mut ControllerState) {
        let key = key(&self.metadata, state);
        let row = PodRow::of(&self, &state.pod_selector, &mut state.cluster.interner);
        let of_vm = row.owner.as_ref().is_some_and(is_virtual_machine_instance);
        if of_vm && row.selected && !state.cluster.vms.retain {
            state.unsupported.set(Feature::VirtualMachine, &key, &row.uid);
        }
        state.set_pod(&key, row);
    }

    fn remove(self, state: &mut ControllerState) {
        let key = key(&self.metadata, state);
        state.unsupported.remove(Feature::VirtualMachine, &key);
        state.remove_pod(&key);
    }

    fn end(state: &mut ControllerState) {
        for key in state.cluster.pods.end() {
            state.remove_pod(&key);
        }
        state.unsupported.end(Feature::VirtualMachine);
    }
}
