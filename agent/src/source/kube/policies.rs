//! Watches of NetworkPolicies, ClusterNetworkPolicies, Namespaces, pods and IPInstances for the policy
//! task ([`crate::netpolicy`]).
//!
//! They are a path of their own: each change goes to that task at once and never becomes part of a
//! [`Snapshot`](crate::plan::intent::Snapshot).
//!
//! **The policies define the watches.** Policies are always watched. Namespaces, and the pods and
//! IPInstances of all nodes, are watched only while the task wants them, because each node receives
//! every pod of the cluster. A page becomes compact rows before the next page is requested.
//!
//! **Rows keep the labels that policies name** ([`crate::netpolicy::keys`]). A policy with a new key makes
//! `relist` list the pods with this key, and the watch of Namespaces start again. Both happen at once
//! for the first such policy, and rarely while more of them follow. Neither happens while the watch
//! lists all objects (`listing`): users who write keys cannot keep a list from being complete.
//!
//! **The address of a pod is that of its IPInstance**, which the controller writes. A kubelet writes
//! `status.podIPs`, so a compromised node could give its pods any address.
//!
//! **Failures**: a node that cannot read policies cannot protect its pods, so the watches are
//! required ones ([`super::health`]). A refusal is no empty list: the task receives
//! [`PolicyInput::Failing`]. Only ClusterNetworkPolicies are optional: without their CRD, their list
//! is empty.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Api;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use trunkline_api::kube::{ClusterNetworkPolicyObject, NetworkPolicyObject};

use super::cluster::Cluster;
use super::watch::{Cached, Change, PAGE, Rows, Selector, Source, Versioned, run};
use crate::netpolicy::feed::{
    AddressInput, CLUSTER_POLICIES, POLICIES, PodInput, PolicyInput, PolicyObject, Wanted,
};
use crate::netpolicy::inbox::PolicyInputs;
use crate::netpolicy::input::{self, ClusterPolicy, Namespace, NetworkPolicy};
use crate::netpolicy::keys::{LabelKeys, Labelled};
use crate::netpolicy::objects::{InstanceManifest, Kept, NamespaceManifest, PodManifest};
use crate::netpolicy::pace::Pace;
use listing::{Listed, Listing};
use relist::ListedKeys;

mod listing;
mod relist;

/// The watch of Namespaces. Watches of service addresses have one of their own.
const NAMESPACES: &str = "namespaces of policies";
const PODS: &str = "pods";
/// The watch of the IPInstances of all nodes. The addresses of this node's pods have one of their own.
const ADDRESSES: &str = "ipinstances of policies";
/// Pods without a node have neither an address nor a rule.
const WITH_NODE: &str = "spec.nodeName!=";

/// The inputs of the watches.
pub struct PolicyWatches {
    /// This node.
    pub node: String,
    /// The cluster.
    pub cluster: Cluster,
    /// The policy task.
    pub inputs: PolicyInputs,
    /// What the policy task needs.
    pub wanted: watch::Receiver<Wanted>,
    /// The keys of labels that rows keep.
    pub keys: Arc<LabelKeys>,
}

/// The watches and lists that only a node with policies has.
struct Running {
    watches: BTreeMap<&'static str, JoinHandle<()>>,
    /// The list of pods with new keys.
    relist: Option<JoinHandle<()>>,
    pods: Lists,
    namespaces: Lists,
    /// The number of [`Wanted::restarts`] for which the watch of pods was started.
    restarts: u64,
    /// The number of [`Wanted::freed`] for which all pods were listed.
    freed: u64,
}

/// The lists of one kind. At most one runs.
struct Lists {
    pace: Pace,
    /// Whether the watch lists all objects.
    watch: Listing,
    changes: watch::Receiver<bool>,
    /// The registration of keys at the last start of the watch.
    keys: u64,
}

impl Running {
    fn new() -> Running {
        let (pods, namespaces) = (Lists::new(), Lists::new());
        Running { watches: BTreeMap::new(), relist: None, pods, namespaces, restarts: 0, freed: 0 }
    }
}

impl Lists {
    fn new() -> Lists {
        let watch = Listing::new();
        Lists { pace: relist::pace(), changes: watch.subscribe(), watch, keys: 0 }
    }

    /// The beginning or end of a list of the watch.
    async fn changed(&mut self) {
        // The sender is in `watch`.
        if self.changes.changed().await.is_ok() && !self.watch.is_running() {
            self.pace.end();
        }
    }
}

impl PolicyWatches {
    /// Watches until the policy task ends.
    pub async fn follow(mut self) {
        tracing::debug!(node = self.node, "network policies are watched");
        self.watch_policies();
        let mut running = Running::new();
        loop {
            let wanted = *self.wanted.borrow_and_update();
            if !wanted.pods && !running.watches.is_empty() {
                self.stop(&mut running).await;
                if self.inputs.send(PolicyInput::Stopped).await.is_err() {
                    return;
                }
            }
            let due = if wanted.pods { self.start(&mut running, wanted).await } else { None };
            tokio::select! {
                changed = self.wanted.changed() => if changed.is_err() { return },
                () = self.inputs.closed() => return,
                () = at(due) => {}
                // After a failure, the next attempt follows at its pace.
                () = finished(&mut running.relist) => running.pods.pace.end(),
                () = running.pods.changed() => {}
                () = running.namespaces.changed() => {}
            }
        }
    }

    /// Starts what is wanted. Returns the time at which more is due.
    async fn start(&self, running: &mut Running, wanted: Wanted) -> Option<Instant> {
        if running.watches.is_empty() {
            running.restarts = wanted.restarts;
            running.freed = self.keys.freed(Labelled::Pods);
            self.start_namespaces(running);
            self.start_pods(running);
            running.watches.insert(ADDRESSES, self.watch_addresses());
            return None;
        }
        let due = [self.list_namespaces(running, wanted).await, self.list_pods(running, wanted).await];
        due.into_iter().flatten().min()
    }

    /// Lists Namespaces again if policies have new keys.
    async fn list_namespaces(&self, running: &mut Running, wanted: Wanted) -> Option<Instant> {
        // A list that runs has keys that were registered before its first page.
        let there = wanted.namespace_keys?.max(running.namespaces.keys);
        if there >= self.keys.last(Labelled::Namespaces) || running.namespaces.watch.is_running() {
            return None;
        }
        if let Some(until) = running.namespaces.pace.wait() {
            return Some(until);
        }
        running.namespaces.pace.begin();
        self.end(running.watches.remove(NAMESPACES), NAMESPACES).await;
        self.start_namespaces(running);
        None
    }

    /// Lists the pods with new keys, or starts the watch of pods again. Never while the watch lists
    /// all pods: its list would lack labels that other rows have, and would not count.
    async fn list_pods(&self, running: &mut Running, wanted: Wanted) -> Option<Instant> {
        let there = wanted.pod_keys?.max(running.pods.keys);
        let restarts = running.restarts != wanted.restarts;
        let has_freed = running.freed < wanted.freed;
        let is_needed = restarts || has_freed || there < self.keys.last(Labelled::Pods);
        if !is_needed || running.relist.is_some() || running.pods.watch.is_running() {
            return None;
        }
        if let Some(until) = running.pods.pace.wait() {
            return Some(until);
        }
        let (new, number) = self.keys.after(Labelled::Pods, there);
        // A list that begins after this has the labels of these keys.
        if running.pods.watch.is_running() {
            return None;
        }
        running.pods.pace.begin();
        running.freed = self.keys.freed(Labelled::Pods);
        if restarts {
            running.restarts = wanted.restarts;
            self.end(running.watches.remove(PODS), PODS).await;
            self.start_pods(running);
        } else {
            let keys = if has_freed { ListedKeys::All } else { ListedKeys::of(new) };
            let relist = relist::relist(self.pods(), keys, number, self.inputs.clone());
            running.relist = Some(tokio::spawn(relist));
        }
        None
    }

    async fn stop(&self, running: &mut Running) {
        let Running { watches, relist, .. } = std::mem::replace(running, Running::new());
        if let Some(relist) = relist {
            relist.abort();
            let _ = relist.await;
        }
        for (name, watch) in watches {
            self.end(Some(watch), name).await;
        }
    }

    fn start_pods(&self, running: &mut Running) {
        running.pods.keys = self.keys.last(Labelled::Pods);
        running.pods.watch.begin();
        running.watches.insert(PODS, self.watch_pods(&running.pods.watch));
    }

    fn start_namespaces(&self, running: &mut Running) {
        running.namespaces.keys = self.keys.last(Labelled::Namespaces);
        running.namespaces.watch.begin();
        running.watches.insert(NAMESPACES, self.watch_namespaces(&running.namespaces.watch));
    }

    /// Ends a watch. Its last input precedes the list of the next one.
    async fn end(&self, watch: Option<JoinHandle<()>>, name: &str) {
        if let Some(watch) = watch {
            watch.abort();
            let _ = watch.await;
            self.cluster.health().stopped(name);
        }
    }

    fn watch_policies(&self) {
        let client = &self.cluster.connection().client;
        let policies: Api<NetworkPolicyObject> = Api::all(client.clone());
        let rows =
            Rows { api: policies, page: PAGE, by_page: false, convert: PolicyObject::<NetworkPolicy>::from };
        self.cluster.health().started(POLICIES);
        self.watch(POLICIES, POLICIES, unobserved(rows), Selector::default(), |change| {
            vec![PolicyInput::Network(keyed(change, |row| row.policy.key.clone()))]
        });
        let policies: Api<ClusterNetworkPolicyObject> = Api::all(client.clone());
        let rows =
            Rows { api: policies, page: PAGE, by_page: false, convert: PolicyObject::<ClusterPolicy>::from };
        self.cluster.health().started_optional(CLUSTER_POLICIES);
        self.watch(CLUSTER_POLICIES, CLUSTER_POLICIES, unobserved(rows), Selector::default(), |change| {
            vec![PolicyInput::Cluster(keyed(change, |row| Arc::clone(&row.policy.name)))]
        });
    }

    fn watch_namespaces(&self, listing: &Listing) -> JoinHandle<()> {
        let api: Api<NamespaceManifest> = Api::all(self.cluster.connection().client.clone());
        self.cluster.health().started(NAMESPACES);
        let keys = self.keys.clone();
        let convert = move |object| Namespace::read(object, &keys);
        let rows = Rows { api, page: PAGE, by_page: false, convert };
        let keys = self.keys.clone();
        let source = Listed { source: rows, listing: listing.clone() };
        self.watch(NAMESPACES, "namespaces", source, Selector::default(), move |change| {
            let (converted, change) = kept(change, Labelled::Namespaces, &keys, |row| row.name.clone());
            converted.into_iter().chain([PolicyInput::Namespaces(change)]).collect()
        })
    }

    fn watch_pods(&self, listing: &Listing) -> JoinHandle<()> {
        self.cluster.health().started(PODS);
        let selector = Selector { fields: Some(WITH_NODE.to_owned()), labels: None };
        let keys = self.keys.clone();
        let source = Listed { source: Cached(self.pods()), listing: listing.clone() };
        self.watch(PODS, PODS, source, selector, move |change| {
            let identity = |row: &PodInput| (row.pod.key.clone(), row.uid.clone());
            let (converted, change) = kept(change, Labelled::Pods, &keys, identity);
            converted.into_iter().chain([PolicyInput::Pods(change)]).collect()
        })
    }

    /// The pods of all nodes.
    fn pods(
        &self,
    ) -> Rows<PodManifest, impl Fn(PodManifest) -> Kept<PodInput> + Clone + Send + Sync + use<>> {
        let api: Api<PodManifest> = Api::all(self.cluster.connection().client.clone());
        let keys = self.keys.clone();
        Rows { api, page: PAGE, by_page: false, convert: move |object| PodInput::read(object, &keys) }
    }

    fn watch_addresses(&self) -> JoinHandle<()> {
        let instances: Api<InstanceManifest> = Api::all(self.cluster.connection().client.clone());
        self.cluster.health().started(ADDRESSES);
        let rows = Rows { api: instances, page: PAGE, by_page: false, convert: AddressInput::read };
        // An IPInstance that cannot be read changes nothing.
        self.watch(ADDRESSES, "ipinstances", unobserved(Cached(rows)), Selector::default(), |change| {
            let key = |row: AddressInput| (row.address, row.namespace);
            let change = match change {
                Observed::Listed(all) => {
                    Some(input::Change::Listed(all.into_iter().filter_map(|one| one.row).collect()))
                }
                Observed::Applied(one) => one.row.map(input::Change::Applied),
                Observed::Deleted(one) => one.row.map(|row| input::Change::Deleted(key(row))),
            };
            change.map(PolicyInput::Addresses).into_iter().collect()
        })
    }

    /// Starts a watch. `what` is the kind in [`PolicyInput::Failing`].
    fn watch<S: Source>(
        &self,
        name: &'static str,
        what: &'static str,
        source: Listed<S>,
        selector: Selector,
        into: impl Fn(Observed<S::Object>) -> Vec<PolicyInput> + Send + 'static,
    ) -> JoinHandle<()> {
        let inputs = self.inputs.clone();
        let listing = source.listing.clone();
        let report = move |change| {
            let is_list = matches!(change, Change::Listed(_));
            let changes = match change {
                Change::Listed(all) => into(Observed::Listed(all)),
                Change::Applied(one) => into(Observed::Applied(one)),
                Change::Deleted(one) => into(Observed::Deleted(one)),
                Change::Failing(error) => vec![PolicyInput::Failing { what, error }],
                // No list arrives by pages: the task needs each list whole.
                Change::Page { .. } => Vec::new(),
            };
            let (inputs, listing) = (inputs.clone(), listing.clone());
            async move {
                for change in changes {
                    if inputs.send(change).await.is_err() {
                        return false;
                    }
                }
                if is_list {
                    listing.end();
                }
                true
            }
        };
        let health = self.cluster.health().clone();
        tokio::spawn(run(source, selector, name.to_owned(), health, report))
    }
}

/// A change of a watch that does not fail.
enum Observed<T> {
    Listed(Vec<T>),
    Applied(T),
    Deleted(T),
}

/// A change of rows with labels, and before a list the keys of all its rows.
fn kept<K, T>(
    change: Observed<Versioned<Kept<T>>>,
    kind: Labelled,
    keys: &LabelKeys,
    key: impl Fn(&T) -> K,
) -> (Option<PolicyInput>, input::Change<K, T>) {
    match change {
        Observed::Listed(all) => {
            // A key can be registered between two pages.
            let oldest = all.iter().map(|one| one.row.keys).min().unwrap_or_else(|| keys.last(kind));
            let rows = all.into_iter().map(|one| one.row.row).collect();
            (Some(PolicyInput::Converted { kind, keys: oldest }), input::Change::Listed(rows))
        }
        Observed::Applied(one) => (None, input::Change::Applied(one.row.row)),
        Observed::Deleted(one) => (None, input::Change::Deleted(key(&one.row.row))),
    }
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// The end of a list of pods with new keys.
async fn finished(relist: &mut Option<JoinHandle<()>>) {
    let Some(running) = relist else { return std::future::pending().await };
    let _ = running.await;
    *relist = None;
}

/// A source for a watch of which nobody needs the lists.
fn unobserved<S>(source: S) -> Listed<S> {
    Listed { source, listing: Listing::new() }
}

/// A change of rows. Only the key of a deleted row is used.
fn keyed<K, T>(change: Observed<Versioned<T>>, key: impl Fn(&T) -> K) -> input::Change<K, T> {
    match change {
        Observed::Listed(all) => input::Change::Listed(all.into_iter().map(|one| one.row).collect()),
        Observed::Applied(one) => input::Change::Applied(one.row),
        Observed::Deleted(one) => input::Change::Deleted(key(&one.row)),
    }
}

#[cfg(test)]
mod listing_tests;
#[cfg(test)]
mod tests {
    use std::future::pending;

    use hyper::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;
    use tower::service_fn;

    use super::super::config::Connection;
    use super::super::parts;
    use super::*;
    use crate::netpolicy::inbox::{self, PolicyInbox};
    use crate::netpolicy::keys::NamedKeys;

    /// An API server without objects, whose watches stay silent.
    fn without_objects() -> Connection {
        let service = service_fn(|request: Request<Body>| async move {
            if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
                pending::<()>().await;
            }
            let list = json!({
                "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": [],
            });
            Ok::<_, kube::Error>(Response::new(Body::from(list.to_string().into_bytes())))
        });
        let client = Client::new(service, "default");
        Connection { client, server: "fake".to_owned(), host: String::new(), namespace: "default".to_owned() }
    }

    /// The next inputs, in any order.
    async fn receive(inputs: &mut PolicyInbox, expected: &[PolicyInput]) {
        let mut left = expected.to_vec();
        while !left.is_empty() {
            let input = inputs.recv().await.unwrap();
            let at = left.iter().position(|one| *one == input);
            left.remove(at.unwrap_or_else(|| panic!("{input:?} instead of {left:?}")));
        }
    }

    #[tokio::test]
    async fn the_end_of_the_watches_of_pods_is_an_input() {
        let cluster = parts("n1", without_objects(), Default::default()).cluster;
        let (sender, mut inputs) = inbox::channel();
        let (wanted, is_wanted) = watch::channel(Wanted::default());
        let keys = Arc::new(LabelKeys::default());
        let health = cluster.health().clone();
        let watches =
            PolicyWatches { node: "n1".to_owned(), cluster, inputs: sender, wanted: is_wanted, keys };
        let task = tokio::spawn(watches.follow());
        let policies = [
            PolicyInput::Network(input::Change::Listed(Vec::new())),
            PolicyInput::Cluster(input::Change::Listed(Vec::new())),
        ];
        receive(&mut inputs, &policies).await;
        let pods = [
            PolicyInput::Converted { kind: Labelled::Namespaces, keys: 0 },
            PolicyInput::Namespaces(input::Change::Listed(Vec::new())),
            PolicyInput::Converted { kind: Labelled::Pods, keys: 0 },
            PolicyInput::Pods(input::Change::Listed(Vec::new())),
            PolicyInput::Addresses(input::Change::Listed(Vec::new())),
        ];
        // The second lists follow the end of the first watches.
        for _ in 0..2 {
            wanted.send_replace(Wanted { pods: true, ..Wanted::default() });
            receive(&mut inputs, &pods).await;
            assert!(health.was_listed(NAMESPACES) && health.was_listed(PODS));
            wanted.send_replace(Wanted::default());
            receive(&mut inputs, &[PolicyInput::Stopped]).await;
            assert!(!health.was_listed(NAMESPACES) && !health.was_listed(PODS), "a watch goes on");
        }
        drop(inputs);
        task.await.unwrap();
    }

    /// An API server with a pod, whose label `role` is in the answer to a list of pods with this label.
    fn with_a_pod() -> Connection {
        let service = service_fn(|request: Request<Body>| async move {
            let query = request.uri().query().unwrap_or_default().to_owned();
            if query.contains("watch=true") {
                pending::<()>().await;
            }
            let is_pods = request.uri().path() == "/api/v1/pods" && query.contains("labelSelector=role");
            let pod = json!({
                "metadata": {"name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "7",
                    "labels": {"role": "db", "large": "x".repeat(1 << 20)}},
                "spec": {"nodeName": "n2", "containers": []},
            });
            let items = if is_pods { vec![pod] } else { Vec::new() };
            let list = json!({
                "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": items,
            });
            Ok::<_, kube::Error>(Response::new(Body::from(list.to_string().into_bytes())))
        });
        let client = Client::new(service, "default");
        Connection { client, server: "fake".to_owned(), host: String::new(), namespace: "default".to_owned() }
    }

    /// A policy that names this key.
    pub(super) fn named(key: &str) -> NamedKeys {
        let object = json!({
            "metadata": {"name": "p", "namespace": "shop"},
            "spec": {"podSelector": {"matchLabels": {key: "db"}}},
        });
        let object: NetworkPolicyObject = serde_json::from_value(object).unwrap();
        NamedKeys::of_network(&PolicyObject::<NetworkPolicy>::from(object).policy)
    }

    #[tokio::test]
    async fn a_new_key_lists_the_pods_with_it() {
        let cluster = parts("n1", with_a_pod(), Default::default()).cluster;
        let (sender, mut inputs) = inbox::channel();
        let (wanted, is_wanted) = watch::channel(Wanted { pods: true, ..Wanted::default() });
        let keys = Arc::new(LabelKeys::default());
        let task = PolicyWatches {
            node: "n1".to_owned(),
            cluster,
            inputs: sender,
            wanted: is_wanted,
            keys: Arc::clone(&keys),
        };
        let task = tokio::spawn(task.follow());
        for _ in 0..7 {
            inputs.recv().await.unwrap();
        }
        keys.add(&named("role"));
        let now = Wanted { pods: true, pod_keys: Some(0), registered: (1, 0), ..Wanted::default() };
        wanted.send_replace(now);
        let Some(PolicyInput::Relisted(pods)) = inputs.recv().await else { panic!() };
        let labels: Vec<String> = pods.iter().map(|input| format!("{:?}", input.pod.labels)).collect();
        assert_eq!((labels, pods[0].version), (vec![r#"{"role": "db"}"#.to_owned()], 7));
        assert_eq!(inputs.recv().await, Some(PolicyInput::Covered(1)));
        // More new keys than lists are worth: one list has all pods, and the watch goes on.
        (0..20).for_each(|number| keys.add(&named(&format!("key-{number}"))));
        wanted.send_replace(Wanted { pod_keys: Some(1), registered: (21, 0), ..now });
        assert_eq!(inputs.recv().await, Some(PolicyInput::Relisted(Vec::new())));
        assert_eq!(inputs.recv().await, Some(PolicyInput::Covered(21)));
        drop(inputs);
        task.await.unwrap();
    }
}
