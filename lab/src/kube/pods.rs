//! Simulated parts of a cluster: nodes, namespaces, and pods as schedulers, controllers of
//! workloads and kubelets leave them. A pod is created with its node, so it is scheduled from the
//! beginning. A deletion takes effect at once, as if the kubelet had confirmed it.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Container, Namespace, Node, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use trunkline_api::names::annotation;

/// A pod to create.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub namespace: String,
    pub name: String,
    pub node: String,
    /// `IPv4`, `IPv6` or `DualStack`.
    pub family: &'static str,
    /// The StatefulSet that owns the pod; `None` for a pod without an owner.
    pub stateful_set: Option<&'static str>,
}

impl Plan {
    fn pod(&self) -> Pod {
        let owner = |name: &str| OwnerReference {
            api_version: "apps/v1".to_owned(),
            kind: "StatefulSet".to_owned(),
            name: name.to_owned(),
            // No code looks up the set. The UID distinguishes its pods from the pods of a set with
            // the same name in another namespace.
            uid: format!("uid-of-{}-{name}", self.namespace),
            controller: Some(true),
            block_owner_deletion: Some(true),
        };
        Pod {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(self.namespace.clone()),
                annotations: Some(BTreeMap::from([(
                    annotation::IP_FAMILY.to_owned(),
                    self.family.to_owned(),
                )])),
                owner_references: self.stateful_set.map(|set| vec![owner(set)]),
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec {
                containers: vec![Container {
                    name: "main".to_owned(),
                    image: Some("pretended".to_owned()),
                    ..Container::default()
                }],
                node_name: Some(self.node.clone()),
                ..PodSpec::default()
            }),
            status: None,
        }
    }
}

/// A client for the simulated parts.
#[derive(Clone)]
pub(crate) struct Pretended {
    client: Client,
}

impl Pretended {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// A node with labels, as its kubelet registers it.
    pub(crate) async fn node(&self, name: &str, labels: &[(&str, &str)]) -> Result<()> {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let metadata =
            ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..ObjectMeta::default() };
        let node = Node { metadata, ..Node::default() };
        Api::all(self.client.clone()).create(&PostParams::default(), &node).await?;
        Ok(())
    }

    /// Reports the addresses of a node, as its kubelet does.
    pub(crate) async fn addresses(&self, name: &str, addresses: &[std::net::IpAddr]) -> Result<()> {
        let all: Vec<_> =
            addresses.iter().map(|one| json!({ "type": "InternalIP", "address": one })).collect();
        let status = json!({ "status": { "addresses": all } });
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await?;
        Ok(())
    }

    pub(crate) async fn namespace(&self, name: &str) -> Result<()> {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        Api::all(self.client.clone()).create(&PostParams::default(), &namespace).await?;
        Ok(())
    }

    /// Creates a pod, and returns its UID.
    pub(crate) async fn create(&self, plan: &Plan) -> Result<String> {
        self.create_with(plan, &[]).await
    }

    /// Like [`Self::create`], with additional annotations.
    pub(crate) async fn create_with(&self, plan: &Plan, annotations: &[(&str, &str)]) -> Result<String> {
        let mut pod = plan.pod();
        let more = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        pod.metadata.annotations.get_or_insert_default().extend(more);
        let pod = self.pods(&plan.namespace).create(&PostParams::default(), &pod).await?;
        pod.metadata.uid.context("a pod without a UID")
    }

    /// Deletes a pod. The pod need not exist.
    pub(crate) async fn delete(&self, namespace: &str, name: &str) -> Result<()> {
        let at_once = DeleteParams::default().grace_period(0);
        match self.pods(namespace).delete(name, &at_once).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    /// Reports the status of a running pod, as a kubelet does.
    pub(crate) async fn report(
        &self,
        namespace: &str,
        name: &str,
        addresses: &[std::net::IpAddr],
    ) -> Result<()> {
        let ips: Vec<_> = addresses.iter().map(|ip| json!({ "ip": ip })).collect();
        let running = json!({ "status": {
            "phase": "Running", "podIP": addresses.first(), "podIPs": ips,
            "containerStatuses": [{ "name": "main", "image": "pretended", "imageID": "", "ready": true,
                "restartCount": 0, "state": { "running": {} } }],
        } });
        self.pods(namespace).patch_status(name, &PatchParams::default(), &Patch::Merge(&running)).await?;
        Ok(())
    }

    pub(crate) async fn all(&self) -> Result<Vec<Pod>> {
        Ok(Api::<Pod>::all(self.client.clone()).list(&kube::api::ListParams::default()).await?.items)
    }

    fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }
}
