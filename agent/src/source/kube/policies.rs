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
//! **The address of a pod is that of its IPInstance**, which the controller writes. A kubelet writes
//! `status.podIPs`, so a compromised node could give its pods any address.
//!
//! **Failures**: a node that cannot read policies cannot protect its pods, so the watches are
//! required ones ([`super::health`]). A refusal is no empty list: the task receives
//! [`PolicyInput::Failing`]. Only ClusterNetworkPolicies are optional: without their CRD, their list
//! is empty.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;

use futures_util::future::Either;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::core::PartialObjectMeta;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use trunkline_api::kube::{ClusterNetworkPolicyObject, Lenient, NetworkPolicyObject};
use trunkline_api::resources::{IPInstance, IPInstanceSpec};

use super::cluster::Cluster;
use super::watch::{Change, Metadata, Rows, Selector, Source, Versioned, run};
use crate::netpolicy::feed::{AddressInput, PodInput, PolicyInput, PolicyObject};
use crate::netpolicy::input::{self, ClusterPolicy, NetworkPolicy};
use crate::netpolicy::objects::{PodManifest, namespace};

const POLICIES: &str = "networkpolicies";
const CLUSTER_POLICIES: &str = "clusternetworkpolicies";
/// The watch of Namespaces. Watches of service addresses have one of their own.
const NAMESPACES: &str = "namespaces of policies";
const PODS: &str = "pods";
/// The watch of the IPInstances of all nodes. The addresses of this node's pods have one of their own.
const ADDRESSES: &str = "ipinstances of policies";
/// Objects in a page of a list.
const PAGE: u32 = 500;

/// The inputs of the watches.
pub struct PolicyWatches {
    /// This node.
    pub node: String,
    /// The cluster.
    pub cluster: Cluster,
    /// The policy task.
    pub inputs: mpsc::Sender<PolicyInput>,
    /// Whether the policy task needs Namespaces, pods and IPInstances: there is a policy.
    pub wanted: watch::Receiver<bool>,
}

impl PolicyWatches {
    /// Watches until the policy task ends.
    pub async fn follow(mut self) {
        tracing::debug!(node = self.node, "network policies are watched");
        self.watch_policies();
        let mut running: BTreeMap<&'static str, JoinHandle<()>> = BTreeMap::new();
        loop {
            let wanted = *self.wanted.borrow_and_update();
            if wanted && running.is_empty() {
                running.insert(NAMESPACES, self.watch_namespaces());
                running.insert(PODS, self.watch_pods());
                running.insert(ADDRESSES, self.watch_addresses());
            } else if !wanted && !running.is_empty() {
                for (name, watch) in std::mem::take(&mut running) {
                    watch.abort();
                    // The last input of this watch precedes the list of the next one.
                    let _ = watch.await;
                    self.cluster.health().stopped(name);
                }
                if self.inputs.send(PolicyInput::Stopped).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                changed = self.wanted.changed() => if changed.is_err() { return },
                () = self.inputs.closed() => return,
            }
        }
    }

    fn watch_policies(&self) {
        let client = &self.cluster.connection().client;
        let policies: Api<NetworkPolicyObject> = Api::all(client.clone());
        let rows =
            Rows { api: policies, page: PAGE, by_page: false, convert: PolicyObject::<NetworkPolicy>::from };
        self.cluster.health().started(POLICIES);
        self.watch(POLICIES, POLICIES, rows, Selector::default(), |change| {
            Some(PolicyInput::Network(keyed(change, |row| row.policy.key.clone())))
        });
        let policies: Api<ClusterNetworkPolicyObject> = Api::all(client.clone());
        let rows =
            Rows { api: policies, page: PAGE, by_page: false, convert: PolicyObject::<ClusterPolicy>::from };
        self.cluster.health().started_optional(CLUSTER_POLICIES);
        self.watch(CLUSTER_POLICIES, CLUSTER_POLICIES, rows, Selector::default(), |change| {
            Some(PolicyInput::Cluster(keyed(change, |row| Arc::clone(&row.policy.name))))
        });
    }

    fn watch_namespaces(&self) -> JoinHandle<()> {
        let namespaces: Api<Namespace> = Api::all(self.cluster.connection().client.clone());
        self.cluster.health().started(NAMESPACES);
        let source = Metadata(namespaces);
        self.watch(NAMESPACES, "namespaces", source, Selector::default(), |change| {
            let row = |object: PartialObjectMeta<Namespace>| namespace(object.metadata);
            Some(PolicyInput::Namespaces(match change {
                Observed::Listed(all) => input::Change::Listed(all.into_iter().map(row).collect()),
                Observed::Applied(one) => input::Change::Applied(row(one)),
                Observed::Deleted(one) => input::Change::Deleted(row(one).name),
            }))
        })
    }

    fn watch_pods(&self) -> JoinHandle<()> {
        let pods: Api<PodManifest> = Api::all(self.cluster.connection().client.clone());
        self.cluster.health().started(PODS);
        let rows = Rows { api: pods, page: PAGE, by_page: false, convert: PodInput::from };
        // Pods without a node have neither an address nor a rule.
        let selector = Selector { fields: Some("spec.nodeName!=".to_owned()), labels: None };
        self.watch(PODS, PODS, rows, selector, |change| {
            Some(PolicyInput::Pods(keyed(change, |row| (row.pod.key.clone(), row.uid.clone()))))
        })
    }

    fn watch_addresses(&self) -> JoinHandle<()> {
        let instances: Api<Lenient<IPInstanceSpec>> = Api::all(self.cluster.connection().client.clone());
        self.cluster.health().started(ADDRESSES);
        let rows = Rows { api: instances, page: PAGE, by_page: false, convert: address };
        // An IPInstance that cannot be read changes nothing.
        self.watch(ADDRESSES, "ipinstances", rows, Selector::default(), |change| {
            let key = |row: AddressInput| (row.address, row.namespace);
            Some(PolicyInput::Addresses(match change {
                Observed::Listed(all) => {
                    input::Change::Listed(all.into_iter().filter_map(|one| one.row).collect())
                }
                Observed::Applied(one) => input::Change::Applied(one.row?),
                Observed::Deleted(one) => input::Change::Deleted(key(one.row?)),
            }))
        })
    }

    /// Starts a watch. `what` is the kind in [`PolicyInput::Failing`].
    fn watch<S: Source>(
        &self,
        name: &'static str,
        what: &'static str,
        source: S,
        selector: Selector,
        into: impl Fn(Observed<S::Object>) -> Option<PolicyInput> + Send + 'static,
    ) -> JoinHandle<()> {
        let inputs = self.inputs.clone();
        let report = move |change| {
            let input = match change {
                Change::Listed(all) => into(Observed::Listed(all)),
                Change::Applied(one) => into(Observed::Applied(one)),
                Change::Deleted(one) => into(Observed::Deleted(one)),
                Change::Failing(error) => Some(PolicyInput::Failing { what, error }),
                // No list arrives by pages: the task needs each list whole.
                Change::Page { .. } => None,
            };
            let Some(input) = input else { return Either::Left(ready(true)) };
            let inputs = inputs.clone();
            Either::Right(async move { inputs.send(input).await.is_ok() })
        };
        let health = self.cluster.health().clone();
        tokio::spawn(run(source, selector, name.to_owned(), health, report))
    }
}

/// The holder of an address. None: the address cannot be read.
fn address(object: Lenient<IPInstanceSpec>) -> Option<AddressInput> {
    AddressInput::read(&IPInstance::from(object.0.ok()?))
}

/// A change of a watch that does not fail.
enum Observed<T> {
    Listed(Vec<T>),
    Applied(T),
    Deleted(T),
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
        Connection { client, server: "fake".to_owned(), namespace: "default".to_owned() }
    }

    /// The next inputs, in any order.
    async fn receive(inputs: &mut mpsc::Receiver<PolicyInput>, expected: &[PolicyInput]) {
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
        let (sender, mut inputs) = mpsc::channel(8);
        let (wanted, is_wanted) = watch::channel(false);
        let health = cluster.health().clone();
        let watches = PolicyWatches { node: "n1".to_owned(), cluster, inputs: sender, wanted: is_wanted };
        let task = tokio::spawn(watches.follow());
        let policies = [
            PolicyInput::Network(input::Change::Listed(Vec::new())),
            PolicyInput::Cluster(input::Change::Listed(Vec::new())),
        ];
        receive(&mut inputs, &policies).await;
        let pods = [
            PolicyInput::Namespaces(input::Change::Listed(Vec::new())),
            PolicyInput::Pods(input::Change::Listed(Vec::new())),
            PolicyInput::Addresses(input::Change::Listed(Vec::new())),
        ];
        // The second lists follow the end of the first watches.
        for _ in 0..2 {
            wanted.send_replace(true);
            receive(&mut inputs, &pods).await;
            assert!(health.was_listed(NAMESPACES) && health.was_listed(PODS));
            wanted.send_replace(false);
            receive(&mut inputs, &[PolicyInput::Stopped]).await;
            assert!(!health.was_listed(NAMESPACES) && !health.was_listed(PODS), "a watch goes on");
        }
        drop(inputs);
        task.await.unwrap();
    }
}
