//! RemoteClusters: one cluster reads another, with the rights in `docs/multi-cluster.md`.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::Cluster;
use crate::shell::{cmd, run};

/// The page with the rights.
const PAGE: &str = "docs/multi-cluster.md";
/// The reader in the page's example.
const EXAMPLE: &str = "trunkline:remote:east";

/// A RemoteCluster of this name, with a certificate that `from` has signed for this reader.
pub(crate) fn object(from: &Cluster, name: &str, reader: &str, endpoint: &str) -> Result<Value> {
    let (certificate, key) = from.client_certificate("remote", &user(reader))?;
    let base64 = |file: &Path| run(&mut cmd("base64", ["-w0", &file.display().to_string()]));
    Ok(json!({
        "apiVersion": "multicluster.alibaba.com/v1", "kind": "RemoteCluster", "metadata": {"name": name},
        "spec": {
            "apiEndpoint": endpoint, "caData": base64(&from.authority())?,
            "certData": base64(&certificate)?, "keyData": base64(&key)?,
        },
    }))
}

fn user(reader: &str) -> String {
    format!("trunkline:remote:{reader}")
}

/// Lets `to`, whose name is `reader`, read the cluster `from`, whose name is `name`.
pub(crate) fn join(to: &Cluster, reader: &str, from: &Cluster, name: &str) -> Result<()> {
    let page = std::fs::read_to_string(from.repository().join(PAGE))?;
    let block = page.split("```").find(|block| block.contains("kind: ClusterRoleBinding"));
    let role = block.and_then(|block| block.strip_prefix("yaml")).context("the ClusterRole in the page")?;
    from.apply(&role.replace(EXAMPLE, &user(reader)))?;
    let endpoint = format!("https://127.0.0.1:{}", from.port());
    to.apply(&object(from, name, reader, &endpoint)?.to_string()).map(drop)
}
