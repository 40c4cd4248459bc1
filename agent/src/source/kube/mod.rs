//! The API server as the source: watches of what this node needs, and nothing that grows with the cluster's pods.
//!
//! ```text
//!  API server ── networks, subnets, this Node, peers' Secrets ──► task ── Snapshot ──► reconcile
//!      │ ▲             (with an overlay: its IPInstances,          │
//!      │ │                          NodeInfos)                   cache on disk (restart without the API server)
//!      │ │
//!      │ └── writer ◄── updates: IPInstance status, NodeInfo, peers ◄── ADD, plan, sessions
//!      └── IPInstances of this node ──► index ──► ADD waits for its pod's addresses
//! ```
//!
//! - [`watch`]: one watch, through outages and gaps. - [`task`]: which watches, and snapshots of what they tell. - [`assemble`]: what is right
//!   in it and what is not. - `node`: what matters of this Node. - `cordon`: whether it is cordoned, and empty. - [`instances`]: addresses by
//!   pod. - [`cluster`]: what the rest of the agent sees. - [`writer`]: what the agent writes, with [`coalesce`]. - [`cache`]: the last good
//!   state. - [`health`]: how the API server is doing. - [`config`]: `kube` in agent.yaml.
//!
//! **Outage**: watches fail and wait, nothing else happens: what is in force stays in force, pods whose IPInstances are known are attached, DEL
//! asks nobody. A restart finds the last state in the cache.
//!
//! **What a node costs the API server**: the watches of networks and subnets (whose statuses cannot be left out; the controller writes them
//! rarely), of one Node, of its own IPInstances, one for each Secret, and an apply of the NodeInfo's status when sessions change.

pub mod assemble;
pub mod cache;
pub mod cluster;
pub mod coalesce;
pub mod condition;
pub mod config;
pub mod cordon;
pub mod health;
pub mod instances;
mod node;
pub mod task;
pub mod watch;
pub mod writer;

pub use cluster::Cluster;
pub use config::{KubeConfig, SourceKind};

use std::path::PathBuf;

use ::kube::Api;
use ::kube::api::ListParams;
use k8s_openapi::api::core::v1::Node;
use tokio::sync::{mpsc, watch as latest};
use trunkline_api::kube::Lenient;
use trunkline_api::names::label;
use trunkline_api::resources::{IPInstanceSpec, NetworkSpec, SubnetSpec};

use crate::drain::Drain;
use crate::ipam::Ipam;
use crate::metrics::Metrics;
use crate::reconcile::Reconcile;
use config::Connection;
use writer::{InstanceUpdate, NodePeers};

/// The cluster, and the ends of its channels that its tasks hold.
pub struct Parts {
    /// The cluster.
    pub cluster: Cluster,
    updates: mpsc::UnboundedReceiver<InstanceUpdate>,
    unwritten: latest::Sender<usize>,
}

/// What the cluster's tasks work with.
pub struct ClusterDependencies<P> {
    /// This node.
    pub node: String,
    /// Where the last good state is kept.
    pub cache: PathBuf,
    /// Who takes snapshots.
    pub reconcile: Reconcile,
    /// Who has the records.
    pub ipam: Ipam,
    /// What is counted.
    pub metrics: Metrics,
    /// This node's peers, for its NodeInfo.
    pub node_peers: P,
    /// Who follows the Node's cordon, if it is followed.
    pub drain: Option<Drain>,
}

/// The cluster as it is before anything was heard.
pub fn parts(node: &str, connection: Connection) -> Parts {
    let (update, updates) = mpsc::unbounded_channel();
    let (unwritten, count) = latest::channel(0);
    Parts { cluster: Cluster::new(node, connection, update, count), updates, unwritten }
}

impl Parts {
    /// Follows the API server and writes to it, until the agent ends.
    pub async fn follow(self, dependencies: ClusterDependencies<impl NodePeers>) {
        let Parts { cluster, updates, unwritten } = self;
        let ClusterDependencies { node, cache, reconcile, ipam, metrics, node_peers, drain } = dependencies;
        let (uid, known_uid) = latest::channel(None);
        let (addresses, known_addresses) = latest::channel(None);
        let dependencies = writer::WriterDependencies {
            updates,
            unwritten,
            plan: reconcile.plan(),
            sessions: reconcile.sessions(),
            uid: known_uid,
            addresses: known_addresses,
        };
        let cordon = drain.map(|drain| cordon::follow(cluster.clone(), ipam.clone(), drain));
        let start = task::TaskDependencies {
            node: node.clone(),
            follow_cordon: cordon.is_some(),
            cache,
            cluster: cluster.clone(),
            reconcile,
            ipam,
            metrics: metrics.clone(),
            uid,
            addresses,
        };
        let cordon = async {
            match cordon {
                Some(cordon) => cordon.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = task::follow(start) => {}
            () = writer::run(cluster, node, node_peers, metrics, dependencies) => {}
            () = cordon => {}
        }
    }
}

/// Whether the API server answers and lets this node read what it needs; what it has, in words.
pub async fn check(connection: &Connection, node: &str) -> anyhow::Result<String> {
    let all = ListParams::default();
    let client = || connection.client.clone();
    let told = |what: &str, error: ::kube::Error| anyhow::anyhow!("{what}: {}", watch::words(&error));
    let version = client().apiserver_version().await.map_err(|error| told("its version", error))?;
    let networks: Api<Lenient<NetworkSpec>> = Api::all(client());
    let networks = networks.list(&all).await.map_err(|error| told("networks", error))?.items;
    let subnets: Api<Lenient<SubnetSpec>> = Api::all(client());
    let subnets = subnets.list(&all).await.map_err(|error| told("subnets", error))?.items;
    let instances: Api<Lenient<IPInstanceSpec>> = Api::all(client());
    let own = ListParams::default().labels(&format!("{}={node}", label::NODE));
    let instances = instances.list(&own).await.map_err(|error| told("ipinstances", error))?.items;
    let nodes: Api<Node> = Api::all(client());
    nodes.get_metadata(node).await.map_err(|error| told(&format!("Node {node}"), error))?;
    let mut words = format!(
        "Kubernetes {}, {} networks, {} subnets, {} addresses on Node {node}",
        version.git_version,
        networks.len(),
        subnets.len(),
        instances.len()
    );
    let faults = networks.iter().flat_map(Lenient::faults).chain(subnets.iter().flat_map(Lenient::faults));
    for fault in faults {
        words.push_str(&format!("\nnot served as it is: {fault}"));
    }
    Ok(words)
}
