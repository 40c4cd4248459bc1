//! The section `kube` of the agent's configuration, and the client that it describes.

use std::path::PathBuf;

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use trunkline_daemon::apiserver;

use crate::text_kinds::FilePath;

/// Where Networks, Subnets and pods' addresses come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SourceKind {
    /// A folder of manifests; addresses from this node's own pools.
    #[default]
    Manifests,
    /// The API server of a Kubernetes cluster; addresses from IPInstances.
    Kube,
}

/// How the API server is reached, with `source: kube`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KubeConfig {
    /// A kubeconfig file, whose current context counts. Unless said, the service account of the pod that the agent runs in.
    #[schemars(with = "Option<FilePath>")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of Secrets for which `passwordSecretRef` names none; `POD_NAMESPACE` from the environment unless said, else the client's.
    pub namespace: Option<String>,
    /// What is known of the cluster, for a restart while the API server does not answer. It holds the peers' keys, readable by root alone.
    #[schemars(with = "FilePath")]
    pub cache: PathBuf,
}

impl Default for KubeConfig {
    fn default() -> Self {
        KubeConfig {
            kubeconfig: None,
            namespace: None,
            cache: PathBuf::from("/var/lib/trunkline/cluster.json"),
        }
    }
}

/// A client, and what goes with it.
#[derive(Clone)]
pub struct Connection {
    /// The client. Nothing was asked yet.
    pub client: kube::Client,
    /// The server's address, for people.
    pub server: String,
    /// Where Secrets are that say no namespace.
    pub namespace: String,
}

impl KubeConfig {
    /// Makes a client. That needs no answer of the API server.
    pub async fn connect(&self) -> anyhow::Result<Connection> {
        let config = match &self.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path)
                    .with_context(|| format!("kube.kubeconfig: {} cannot be used", path.display()))?;
                kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                    .await
                    .with_context(|| format!("kube.kubeconfig: {} cannot be used", path.display()))?
            }
            None => kube::Config::incluster().context(
                "kube.kubeconfig is not set, and this is no pod with a service account: write the path of a kubeconfig file",
            )?,
        };
        let server = config.cluster_url.to_string();
        let environment = std::env::var("POD_NAMESPACE").ok().filter(|namespace| !namespace.is_empty());
        let namespace =
            self.namespace.clone().or(environment).unwrap_or_else(|| config.default_namespace.clone());
        let client = apiserver::client(config).context("the client of the API server")?;
        Ok(Connection { client, server, namespace })
    }
}
