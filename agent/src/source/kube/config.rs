//! The section `kube` of the agent's configuration, and the client that it describes.

use std::path::PathBuf;

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use trunkline_daemon::apiserver;

use crate::text_kinds::FilePath;

/// The source of Networks, Subnets and pods' addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SourceKind {
    /// A folder of manifests; addresses from this node's own pools.
    #[default]
    Manifests,
    /// The API server of a Kubernetes cluster; addresses from IPInstances.
    Kube,
}

/// Access to the API server, with `source: kube`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KubeConfig {
    /// A kubeconfig file; its current context is used. Default: the service account of the agent's
    /// pod.
    #[schemars(with = "Option<FilePath>")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of Secrets for a `passwordSecretRef` without a namespace. Default: `POD_NAMESPACE`
    /// from the environment, otherwise the client's.
    pub namespace: Option<String>,
    /// The cache file for a restart while the API server does not answer. It contains the peers'
    /// keys, so only root can read it.
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

/// A client and its parameters.
#[derive(Clone)]
pub struct Connection {
    /// The client. It has sent no request yet.
    pub client: kube::Client,
    /// The server's address, for people.
    pub server: String,
    /// The server's host: an address or a name.
    pub host: String,
    /// Namespace of Secrets without a namespace in their reference.
    pub namespace: String,
}

impl KubeConfig {
    /// Makes a client, without a request to the API server.
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
        let host = config.cluster_url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let environment = std::env::var("POD_NAMESPACE").ok().filter(|namespace| !namespace.is_empty());
        let namespace =
            self.namespace.clone().or(environment).unwrap_or_else(|| config.default_namespace.clone());
        let client = apiserver::client(config).context("the client of the API server")?;
        Ok(Connection { client, server, host, namespace })
    }
}
