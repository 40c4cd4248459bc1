//! Remote clusters: the controller mirrors their subnets and nodes, and the agents route to their
//! pods.
//!
//! ```text
//! RemoteCluster ─▶ client of the remote API server ─▶ View (its Networks, Subnets, NodeInfos, IPInstances)
//!                                                      │ plan: the objects to mirror
//!                  RemoteSubnet, RemoteVtep ◀──────────┘ only differences are written
//!                  RemoteEndpointSlice ─▶ EndpointSlice of a global Service ([`global`])
//! ```
//!
//! The leader runs one task for each RemoteCluster ([`mirror`]). All replicas have the rows of
//! RemoteSubnets, because the webhook compares new Subnets with them. The leader deletes the
//! objects of a deleted RemoteCluster. Objects without a RemoteCluster as owner belong to another
//! client, and stay.
//!
//! **A remote cluster** can only add prefixes that overlap neither a Subnet of this cluster nor one
//! of a third cluster ([`plan`]). It gets no right in this cluster. Its objects have bounds
//! ([`bounds`]), and the writes for it have a pace ([`pace`]).

mod affinity;
pub mod bounds;
mod client;
mod due;
pub mod global;
pub mod mirror;
pub mod pace;
pub mod plan;
mod report;
mod rows;
pub mod slices;
mod status;
pub mod view;
mod watches;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher;
use kube::{Api, Resource};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use trunkline_api::kube::Lenient;
use trunkline_api::names::{REMOTE_ENDPOINTS_MANAGER, label};
use trunkline_api::resources::{RemoteClusterSpec, RemoteEndpointSliceSpec, RemoteVtepSpec};

pub use due::{Due, DueSlices};
pub use rows::{Mirrored, RemoteClusterRow};

use self::global::{BoundRow, GlobalRow};
use crate::cluster::{Key, Table};
use crate::reconcile::Context;
use crate::term::TermDependencies;
use crate::watch::{Relist, follow, follow_optional};

/// Rows about remote clusters.
pub struct RemoteState {
    /// The RemoteClusters; only the leader has them.
    pub clusters: Table<Arc<str>, Arc<RemoteClusterRow>>,
    /// The RemoteVteps; only the leader has them.
    pub vteps: Table<Arc<str>, Mirrored<RemoteVtepSpec>>,
    /// The RemoteEndpointSlices; only the leader has them.
    pub slices: Table<Arc<str>, Mirrored<RemoteEndpointSliceSpec>>,
    /// The global Services; only the leader has them.
    pub global: Table<Key, GlobalRow>,
    /// The ClusterIPs of all Services; only the leader has them.
    pub cluster_ips: Table<Key, Vec<IpAddr>>,
    /// The EndpointSlices with endpoints of remote clusters; only the leader has them.
    pub bound: Table<Key, BoundRow>,
    /// The EndpointSlices of global Services to compare; only the leader has them.
    pub due: DueSlices,
    /// Changes with each change that concerns a global Service.
    pub global_changed: watch::Sender<u64>,
    /// The health of each cluster, for metrics; only the leader has it.
    pub health: HashMap<Arc<str>, Health>,
    /// Changes with each change of a row.
    pub changed: watch::Sender<u64>,
}

impl Default for RemoteState {
    fn default() -> Self {
        RemoteState {
            clusters: Table::default(),
            vteps: Table::default(),
            slices: Table::default(),
            global: Table::default(),
            cluster_ips: Table::default(),
            bound: Table::default(),
            due: DueSlices::default(),
            global_changed: watch::Sender::new(0),
            health: HashMap::new(),
            changed: watch::Sender::new(0),
        }
    }
}

impl RemoteState {
    /// Removes the rows that only the leader has. The next term waits for its own lists.
    pub(crate) fn end_term(&mut self) {
        self.clusters = Table::default();
        self.vteps = Table::default();
        self.slices = Table::default();
        self.global = Table::default();
        self.cluster_ips = Table::default();
        self.bound = Table::default();
        self.due = DueSlices::default();
        self.health.clear();
    }

    pub(crate) fn has_changed(&self) {
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// All EndpointSlices of global Services are compared again.
    pub(crate) fn global_has_changed(&mut self) {
        self.due.add_all();
        self.wake_global();
    }

    /// The EndpointSlices of one Service are compared again.
    pub(crate) fn global_service_changed(&mut self, service: &Key) {
        self.due.add_service(service);
        self.wake_global();
    }

    /// One EndpointSlice is compared again.
    pub(crate) fn bound_changed(&mut self, slice: &Key) {
        self.due.add(slice.clone());
        self.wake_global();
    }

    /// Handles a changed or removed RemoteEndpointSlice.
    fn slice_changed(&mut self, name: &Arc<str>, old: Option<&Mirrored<RemoteEndpointSliceSpec>>) {
        self.due.slice_changed(name, old, self.slices.get(name));
        self.wake_global();
    }

    fn wake_global(&self) {
        self.global_changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Sets or removes the ClusterIPs of a Service.
    pub(crate) fn set_cluster_ips(&mut self, service: &Key, addresses: Vec<IpAddr>) {
        let has_any = !addresses.is_empty();
        let old = if has_any {
            self.cluster_ips.set(service.clone(), addresses)
        } else {
            self.cluster_ips.remove(service)
        };
        if old.as_ref() != self.cluster_ips.get(service) {
            self.has_changed();
        }
    }

    /// Sets or removes the row of a global Service.
    pub(crate) fn set_global(&mut self, service: &Key, row: Option<GlobalRow>) {
        let old = match row {
            Some(row) => self.global.set(service.clone(), row),
            None => self.global.remove(service),
        };
        if old.as_ref() != self.global.get(service) {
            self.global_service_changed(service);
        }
    }
}

/// The health of a remote cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The time of the first failed request since the last answer; none while its API server
    /// answers.
    pub away_since: Option<Instant>,
    /// Whether its credentials are unusable, or its UUID is refused.
    pub is_refused: bool,
    /// Number of its mirrored subnets.
    pub subnets: usize,
    /// Number of its refused subnets.
    pub refused: usize,
    /// Number of its mirrored nodes.
    pub vteps: usize,
    /// Number of the addresses of pods on these nodes.
    pub endpoints: usize,
    /// Number of its mirrored EndpointSlices.
    pub slices: usize,
    /// Number of refused endpoints of its Services.
    pub refused_endpoints: usize,
    /// Number of its objects above the limits, or of their events.
    pub left_out: usize,
    /// Number of its mirrored objects that wait for the pace of writes.
    pub delayed: usize,
}

/// A task that is aborted with its handle.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Mirrors all remote clusters while it is polled.
pub async fn serve(lead: &TermDependencies, context: &Context) {
    let (clusters, vteps, slices) = (Relist::default(), Relist::default(), Relist::default());
    let config = watcher::Config::default;
    let api: Api<Lenient<RemoteClusterSpec>> = Api::all(lead.client.clone());
    let following_clusters = follow_optional(api, config(), Arc::clone(&lead.shared), clusters.clone());
    let api: Api<Lenient<RemoteVtepSpec>> = Api::all(lead.client.clone());
    let following_vteps =
        follow_optional(api, config().page_size(100), Arc::clone(&lead.shared), vteps.clone());
    let api: Api<Lenient<RemoteEndpointSliceSpec>> = Api::all(lead.client.clone());
    let following_slices =
        follow_optional(api, config().page_size(100), Arc::clone(&lead.shared), slices.clone());
    let api: Api<EndpointSlice> = Api::all(lead.client.clone());
    let ours = config().labels(&format!("{}={REMOTE_ENDPOINTS_MANAGER}", label::MANAGED_BY));
    let following_bound = follow(api, ours, Arc::clone(&lead.shared), Relist::default());
    let working = async {
        clusters.listed().await;
        vteps.listed().await;
        slices.listed().await;
        lead.remote_subnets.list().await;
        supervise(lead, context).await;
    };
    tokio::select! {
        () = following_clusters => {}
        () = following_vteps => {}
        () = following_slices => {}
        () = following_bound => {}
        () = global::serve(context) => {}
        () = working => {}
    }
}

/// Runs a task for each RemoteCluster, and removes the objects of deleted ones.
async fn supervise(lead: &TermDependencies, context: &Context) {
    let mut tasks: HashMap<Arc<str>, (Arc<RemoteClusterRow>, Task)> = HashMap::new();
    let mut changed = context.shared.lock().remote.changed.subscribe();
    loop {
        changed.mark_unchanged();
        let orphans = {
            let mut state = context.shared.lock();
            let state = &mut *state;
            let remote = &mut state.remote;
            tasks.retain(|name, (row, _)| remote.clusters.get(name).is_some_and(|now| now.is_same(row)));
            remote.health.retain(|name, _| remote.clusters.get(name).is_some());
            for (name, row) in remote.clusters.iter() {
                if !tasks.contains_key(name) {
                    let mirror = mirror::run(
                        Arc::clone(name),
                        Arc::clone(row),
                        context.clone(),
                        lead.remote_retention,
                    );
                    tasks.insert(Arc::clone(name), (Arc::clone(row), Task(tokio::spawn(mirror))));
                }
            }
            mirror::orphans(state)
        };
        let done = orphans.is_empty() || mirror::delete(context, orphans).await;
        tokio::select! {
            changed = changed.changed() => if changed.is_err() { return },
            () = sleep(mirror::RETRY), if !done => {}
        }
        // Each round looks at all mirrored objects.
        sleep(mirror::COALESCE).await;
    }
}

/// The owner reference of mirrored objects.
fn owner(name: &str, row: &RemoteClusterRow) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": trunkline_api::names::MULTICLUSTER_API_VERSION,
        "kind": Lenient::<RemoteClusterSpec>::kind(&()),
        "name": name, "uid": &*row.uid,
    })
}
