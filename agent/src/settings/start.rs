//! The settings at the start of the agent, from the last known AgentSettings: the folder of manifests,
//! or the cache of the cluster's objects. Only a node without a cache asks the API server.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;
use tokio::time::timeout;
use trunkline_api::kube::Lenient;
use trunkline_api::resources::{AgentSettings, AgentSettingsSpec};
use trunkline_api::validate::validate_agent_settings;
use trunkline_daemon::apiserver::list_all;

use super::{resolve, settings};
use crate::config::Config;
use crate::source::folder::{self, Context};
use crate::source::kube::{SourceKind, cache};

/// Time limit of the API server's answers on a node without a cache.
const FIRST_ANSWER: Duration = Duration::from_secs(5);

/// AgentSettings, and the labels of this node.
type Known = (Vec<AgentSettings>, BTreeMap<String, String>);

/// agent.yaml with the AgentSettings that this node had last. If they are unknown or wrong, agent.yaml
/// alone: the source reports the fault.
pub async fn config(file: &Config) -> Config {
    let Some((objects, labels)) = last_known(file).await else { return file.clone() };
    match resolve(file, &settings(&objects, &labels)) {
        Ok(config) => config,
        Err(error) => {
            tracing::error!(%error, "the agent starts with agent.yaml alone");
            file.clone()
        }
    }
}

async fn last_known(file: &Config) -> Option<Known> {
    let snapshot = match file.source {
        SourceKind::Manifests => {
            let context = Context { labels: file.node_labels(), running: None };
            folder::read(&file.manifests, &context).ok()?.snapshot
        }
        SourceKind::Kube => match cache::read(&file.kube.cache, &file.node_name()) {
            Ok(Some(remembered)) => remembered.snapshot,
            _ => return timeout(FIRST_ANSWER, from_server(file)).await.ok()?,
        },
    };
    Some((snapshot.agent_settings, snapshot.labels))
}

/// The valid objects of the API server. The reason for a missing answer is in the log of the watches,
/// which send the same requests.
async fn from_server(file: &Config) -> Option<Known> {
    let client = file.kube.connect().await.ok()?.client;
    let nodes: Api<Node> = Api::all(client.clone());
    let labels = nodes.get_metadata(&file.node_name()).await.ok()?.metadata.labels.unwrap_or_default();
    let objects: Api<Lenient<AgentSettingsSpec>> = Api::all(client);
    let listed = list_all(&objects, ListParams::default()).await.ok()?;
    let readable = listed.into_iter().filter_map(|object| object.0.ok().map(AgentSettings::from));
    Some((readable.filter(|object| validate_agent_settings(object).is_ok()).collect(), labels))
}
