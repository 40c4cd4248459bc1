//! The API server as the source: watches of the objects that this node needs. Without a network
//! policy, their number does not grow with the cluster's pods.
//!
//! ```text
//!  API server ── networks, subnets, this Node, peers' Secrets ──► task ── Snapshot ──► reconcile
//!      │ ▲      pools and advertisements (with an overlay:         │
//!      │ │              its IPInstances, NodeInfos)              cache on disk (restart without the API server)
//!      │ │
//!      │ │   Services, EndpointSlices, Namespaces ──► services ── rows ──► services task
//!      │ │   NetworkPolicies, Namespaces, pods ──► policies ── rows ──► policy task
//!      │ ├── writer ◄── updates: IPInstance status, NodeInfo, peers ◄── ADD, plan, sessions
//!      │ └── node_services ◄── advertised service addresses, anycast addresses
//!      └── IPInstances of this node ──► index ──► ADD waits for its pod's addresses
//! ```
//!
//! - [`watch`]: one watch, through outages and gaps.
//! - [`task`]: the set of watches, and the snapshots.
//! - [`assemble`]: separates valid from invalid objects.
//! - [`services`]: Services and EndpointSlices.
//! - [`policies`]: NetworkPolicies, ClusterNetworkPolicies, and their Namespaces and pods.
//! - `node`: the used fields of this Node.
//! - `cordon`: whether the Node is cordoned, and empty.
//! - [`instances`]: addresses by pod.
//! - [`departures`]: addresses of virtual machines that leave this node.
//! - `sandboxes`: this node's sandboxes in the statuses of IPInstances.
//! - [`l2`]: the node that answers for a service address in a VLAN.
//! - [`cluster`]: the interface to the rest of the agent.
//! - `remote`: RemoteSubnets and RemoteVteps of remote clusters.
//! - `servers`: the addresses of the API server, with remote clusters.
//! - [`writer`]: the agent's writes, with [`coalesce`].
//! - [`node_services`]: this node's NodeServices, and the nodes that advertise an address.
//! - [`cache`]: the last good state.
//! - [`health`]: the state of the API server.
//! - [`config`]: `kube` in agent.yaml.
//!
//! **Outage**: watches fail and retry, and nothing else changes. The applied snapshot stays in
//! force, pods with known IPInstances are attached, and DEL needs no request. A restart reads the
//! last state from the cache.
//!
//! **Load of a node on the API server**: watches of networks and subnets, of one Node, of the
//! node's own IPInstances (two watches, the second for live migrations), and of each Secret. The watches of networks and subnets include their
//! statuses, which the controller rarely writes. Each node also watches all Services of type
//! LoadBalancer and all EndpointSlices, as every kube-proxy does. It watches all network policies,
//! and all Namespaces, pods and IPInstances while there is a policy. At a start, the lists of pods and
//! IPInstances come from the API server's cache. When sessions change, there is an apply of the
//! NodeInfo's status, and when advertised service addresses change, of the NodeServices' status.

mod alone;
pub mod assemble;
pub mod cache;
pub mod cluster;
pub mod coalesce;
pub mod condition;
pub mod config;
pub mod cordon;
pub mod departures;
pub mod health;
pub mod instances;
pub mod l2;
mod list;
mod node;
pub mod node_services;
pub mod policies;
mod remote;
pub mod request;
mod sandboxes;
mod servers;
pub mod services;
pub mod task;
pub mod watch;
pub mod writer;

pub use cluster::Cluster;
pub use config::{KubeConfig, SourceKind};
pub use node_services::ReportedServices;

use std::path::PathBuf;

use ::kube::Api;
use ::kube::api::ListParams;
use k8s_openapi::api::core::v1::Node;
use tokio::sync::{mpsc, watch as latest};
use trunkline_api::kube::Lenient;
use trunkline_api::names::label;
use trunkline_api::resources::{IPInstanceSpec, LabelSelector, NetworkSpec, SubnetSpec};
use trunkline_daemon::apiserver::list_all;
use trunkline_daemon::errors::chain;

use crate::drain::Drain;
use crate::ipam::Ipam;
use crate::metrics::Metrics;
use crate::reconcile::Reconcile;
use crate::services::ServicesInput;
use config::Connection;
use request::RequestError;
use writer::{InstanceUpdate, NodePeers};

/// The cluster, and the channel ends of its tasks.
pub struct Parts {
    /// The cluster.
    pub cluster: Cluster,
    updates: mpsc::UnboundedReceiver<InstanceUpdate>,
    unwritten: latest::Sender<usize>,
}

/// The inputs of the cluster's tasks.
pub struct ClusterDependencies<P> {
    /// This node.
    pub node: String,
    /// The path of the last good state.
    pub cache: PathBuf,
    /// The reconcile task, which receives snapshots.
    pub reconcile: Reconcile,
    /// The owner of the records.
    pub ipam: Ipam,
    /// The counters.
    pub metrics: Metrics,
    /// This node's peers, for its NodeInfo.
    pub node_peers: P,
    /// Whether the agent writes the statuses of its pods' IPInstances.
    pub writes_instances: bool,
    /// The drain, if the agent follows the Node's cordon.
    pub drain: Option<Drain>,
    /// The services task; none if this node advertises no service addresses.
    pub services: Option<mpsc::Sender<ServicesInput>>,
    /// The contents of this node's NodeServices; none if it writes none.
    pub reported: Option<ReportedServices>,
    /// The parts for service addresses in VLANs; none if this node serves none.
    pub l2: Option<l2::L2Parts>,
}

/// The cluster before the first answer of the API server. The selector selects the pods that get
/// addresses.
pub fn parts(node: &str, connection: Connection, selector: LabelSelector) -> Parts {
    let (update, updates) = mpsc::unbounded_channel();
    let (unwritten, count) = latest::channel(0);
    Parts { cluster: Cluster::new(node, connection, selector, update, count), updates, unwritten }
}

impl Parts {
    /// Follows the API server and writes to it, until the agent ends.
    pub async fn follow(self, dependencies: ClusterDependencies<impl NodePeers>) {
        let Parts { cluster, updates, unwritten } = self;
        let ClusterDependencies {
            node,
            cache,
            reconcile,
            ipam,
            metrics,
            node_peers,
            writes_instances,
            drain,
            services,
            reported,
            l2,
        } = dependencies;
        let (uid, known_uid) = latest::channel(None);
        let (info_lost, lost_info) = latest::channel(0);
        let (addresses, known_addresses) = latest::channel(None);
        let (members, known_members) = latest::channel(None);
        let dependencies = writer::WriterDependencies {
            updates,
            writes_instances,
            unwritten,
            plan: reconcile.plan(),
            sessions: reconcile.sessions(),
            uid: known_uid,
            info_lost: lost_info,
            addresses: known_addresses,
        };
        let report = reported.map(|reported| {
            node_services::follow(node_services::NodeServicesDependencies {
                node: node.clone(),
                cluster: cluster.clone(),
                reported,
                metrics: metrics.clone(),
                uid: uid.subscribe(),
            })
        });
        let l2 = l2.zip(services.clone()).map(|(parts, services)| {
            l2::follow(l2::L2Dependencies {
                node: node.clone(),
                cluster: cluster.clone(),
                reconcile: reconcile.clone(),
                services,
                uid: uid.subscribe(),
                members: known_members,
                parts,
            })
        });
        let cordon = drain.map(|drain| cordon::follow(cluster.clone(), ipam.clone(), drain));
        let service_watches = services.clone().map(|inputs| {
            services::follow(services::ServiceWatches {
                node: node.clone(),
                cluster: cluster.clone(),
                plan: reconcile.service_facts().plan,
                inputs,
            })
        });
        let start = task::TaskDependencies {
            node: node.clone(),
            follow_cordon: cordon.is_some(),
            cache,
            cluster: cluster.clone(),
            reconcile,
            ipam,
            metrics: metrics.clone(),
            services,
            uid,
            info_lost,
            addresses,
            members,
        };
        let cordon = async {
            match cordon {
                Some(cordon) => cordon.await,
                None => std::future::pending().await,
            }
        };
        let service_watches = async {
            match service_watches {
                Some(watches) => watches.await,
                None => std::future::pending().await,
            }
        };
        let l2 = async {
            match l2 {
                Some(l2) => l2.await,
                None => std::future::pending().await,
            }
        };
        let report = async {
            match report {
                Some(report) => report.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = task::follow(start) => {}
            () = service_watches => {}
            () = report => {}
            () = l2 => {}
            () = writer::run(cluster, node, node_peers, metrics, dependencies) => {}
            () = cordon => {}
        }
    }
}

/// Whether the API server answers and allows this node the needed reads; the result is a text about
/// its objects.
pub async fn check(connection: &Connection, node: &str) -> anyhow::Result<String> {
    let all = ListParams::default();
    let client = || connection.client.clone();
    let failed =
        |what: &str, error: ::kube::Error| anyhow::anyhow!("{what}: {}", chain(&RequestError::from(error)));
    let version = client().apiserver_version().await.map_err(|error| failed("its version", error))?;
    let networks: Api<Lenient<NetworkSpec>> = Api::all(client());
    let networks = list_all(&networks, all.clone()).await.map_err(|error| failed("networks", error))?;
    let subnets: Api<Lenient<SubnetSpec>> = Api::all(client());
    let subnets = list_all(&subnets, all).await.map_err(|error| failed("subnets", error))?;
    let instances: Api<Lenient<IPInstanceSpec>> = Api::all(client());
    let own = ListParams::default().labels(&format!("{}={node}", label::NODE));
    let instances = list_all(&instances, own).await.map_err(|error| failed("ipinstances", error))?;
    let nodes: Api<Node> = Api::all(client());
    nodes.get_metadata(node).await.map_err(|error| failed(&format!("Node {node}"), error))?;
    let mut words = format!(
        "Kubernetes {}, {} networks, {} subnets, {} addresses on Node {node}",
        version.git_version,
        networks.len(),
        subnets.len(),
        instances.len()
    );
    let faults = networks.iter().flat_map(Lenient::faults).chain(subnets.iter().flat_map(Lenient::faults));
    for fault in faults {
        words.push_str(&format!("\nnot served in its current form: {fault}"));
    }
    Ok(words)
}
