//! A term of leadership: from complete lists to its end.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Api, Client};
use trunkline_api::kube::{ClusterNetworkPolicyObject, NetworkPolicyObject, NodeInfoObject};

use crate::cluster::ClusterReader as _;
use crate::cluster::pod::Pod;
use crate::cluster::vm::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration};
use crate::events::Events;
use crate::leader::Fence;
use crate::multus::NetworkAttachmentDefinition;
use crate::policy_faults::PolicyFaults;
use crate::reconcile::{Context, conflict, ipinstance, network, node, observed, pod, subnet};
use crate::selection::Policy;
use crate::services;
use crate::state::{Queues, SharedState};
use crate::unsupported::Unsupported;
use crate::watch::{Relist, Watched, follow, follow_optional};

/// Number of IPInstances whose finalizers are removed at the same time.
const INSTANCE_WORKERS: usize = 32;
/// Number of statuses and nodes that are written at the same time, of each kind.
const OTHER_WORKERS: usize = 4;
/// Number of NodeInfos on a page.
const PAGE: u32 = 500;
/// VirtualMachines on a page: their statuses may be large.
const VMS_PAGE: u32 = 100;

/// Inputs of a term.
#[derive(Clone)]
pub struct TermDependencies {
    /// Client of the API server.
    pub client: Client,
    /// The shared state.
    pub shared: Arc<SharedState>,
    /// The defaults for pods without annotations.
    pub policy: Arc<Policy>,
    /// Queue of events to write.
    pub events: Events,
    /// Whether pods get the annotation for a policy-only Calico.
    pub calico: bool,
    /// The watch of IPInstances, which must list again.
    pub instances: Relist,
    /// The other watches, whose lists must be complete.
    pub others: Vec<Relist>,
    /// The watch of RemoteSubnets.
    pub remote_subnets: Relist,
    /// How long the objects of a RemoteCluster stay while its API server does not answer; none: no
    /// limit.
    pub remote_retention: Option<Duration>,
    /// Whether Services get addresses.
    pub service_addresses: bool,
    /// Number of pods that are worked on at the same time.
    pub pod_workers: usize,
    /// The shortest interval between two writes of one status.
    pub status_interval: Duration,
}

/// How long the first list of NetworkAttachmentDefinitions, and that of VirtualMachineInstances, may
/// delay the work: a missing right must not stop all other pods.
const OPTIONAL_PATIENCE: Duration = Duration::from_secs(5);

/// Leads while the fence is valid.
pub async fn lead(lead: TermDependencies, fence: Fence) {
    tokio::select! {
        // Wait for the answers, so that every write is settled before the next leader lists.
        () = fence.ended() => {}
        () = serve(&lead, &fence) => {}
    }
    lead.shared.lock().end_term();
}

async fn serve(lead: &TermDependencies, fence: &Fence) {
    for relist in &lead.others {
        relist.listed().await;
    }
    lead.instances.list().await;
    {
        let mut state = lead.shared.lock();
        state.unsupported = Unsupported::new(lead.events.clone());
        state.policy_faults = PolicyFaults::new(lead.events.clone());
    }
    // List pods after the IPInstances. Then each pod of a bound IPInstance is known, or known to be
    // gone.
    let pods = Relist::default();
    let config = watcher::Config::default().fields("spec.nodeName!=");
    let following = watch::<Pod>(lead, config, pods.clone());
    // Only reports depend on these watches, so no work waits for their lists.
    let policies = watch::<NetworkPolicyObject>(lead, watcher::Config::default(), Relist::default());
    let api: Api<ClusterNetworkPolicyObject> = Api::all(lead.client.clone());
    let shared = Arc::clone(&lead.shared);
    let cluster_policies = follow_optional(api, watcher::Config::default(), shared, Relist::default());
    let api: Api<NetworkAttachmentDefinition> = Api::all(lead.client.clone());
    let (shared, multus) = (Arc::clone(&lead.shared), Relist::default());
    let following_multus = follow_optional(api, watcher::Config::default(), shared, multus.clone());
    let vm_instances = Relist::default();
    let following_vms = follow_vms(lead, &vm_instances);
    let context = &Context {
        client: lead.client.clone(),
        shared: Arc::clone(&lead.shared),
        policy: Arc::clone(&lead.policy),
        events: lead.events.clone(),
        calico: lead.calico,
        fence: fence.clone(),
    };
    // Services have watches and workers of their own, which no pod waits for.
    let services = services::lead::serve(lead, context);
    let remote = crate::remote::serve(lead, context);
    let working = async {
        pods.listed().await;
        // Without the definitions, a pod of Multus would get addresses for its first interface only.
        tokio::select! {
            () = multus.listed() => {}
            () = tokio::time::sleep(OPTIONAL_PATIENCE) => {
                tracing::warn!("NetworkAttachmentDefinitions cannot be listed: interfaces of Multus get no \
                    addresses; update the controller's ClusterRole");
            }
        }
        // A pod of a virtual machine waits until its VirtualMachineInstance is known.
        if lead.shared.with_cluster(|cluster| cluster.vms.retain) {
            tokio::select! {
                () = vm_instances.listed() => {}
                () = tokio::time::sleep(OPTIONAL_PATIENCE) => {
                    tracing::warn!("VirtualMachineInstances cannot be listed: pods of virtual machines get no \
                        addresses; update the controller's ClusterRole");
                }
            }
        }
        work(lead, context).await;
    };
    tokio::select! {
        () = following => {}
        () = policies => {}
        () = cluster_policies => {}
        () = following_multus => {}
        () = following_vms => {}
        () = services => {}
        () = remote => {}
        () = working => {}
    }
}

/// Watches virtual machines, if these keep their addresses and the API server has them.
async fn follow_vms(lead: &TermDependencies, instances: &Relist) {
    if !lead.shared.with_cluster(|cluster| cluster.vms.retain) {
        return std::future::pending().await;
    }
    let (vms, vm_instances) = (Api::all(lead.client.clone()), Api::all(lead.client.clone()));
    let page = watcher::Config::default().page_size(VMS_PAGE);
    let following =
        follow_optional::<VirtualMachine>(vms, page.clone(), Arc::clone(&lead.shared), Relist::default());
    let following_instances = follow_optional::<VirtualMachineInstance>(
        vm_instances,
        page.clone(),
        Arc::clone(&lead.shared),
        instances.clone(),
    );
    // Without the right to list them, no pod is the target of a live migration.
    let migrations = follow_optional::<VirtualMachineInstanceMigration>(
        Api::all(lead.client.clone()),
        page.clone(),
        Arc::clone(&lead.shared),
        Relist::default(),
    );
    tokio::join!(following, following_instances, migrations);
}

async fn watch<K: Watched>(lead: &TermDependencies, config: watcher::Config, relist: Relist) {
    let api: Api<K> = Api::all(lead.client.clone());
    follow(api, config, Arc::clone(&lead.shared), relist).await;
}

async fn work(lead: &TermDependencies, context: &Context) {
    let queues = Queues::new(lead.status_interval);
    {
        let mut state = context.shared.lock();
        state.begin_term(Arc::clone(&queues));
        let cluster = &state.cluster;
        tracing::info!(
            ipinstances = cluster.instances().count(),
            networks = cluster.networks().count(),
            nodes = cluster.nodes().count(),
            "the addresses are rebuilt, pods are served"
        );
    }
    let job = || context.clone();
    tokio::join!(
        queues.pods.work(lead.pod_workers, |key| observed("pods", job(), key, pod::reconcile)),
        queues
            .instances
            .work(INSTANCE_WORKERS, |key| { observed("ipinstances", job(), key, ipinstance::reconcile) }),
        queues.conflicts.work(1, |address| observed("conflicts", job(), address, conflict::reconcile)),
        queues.networks.work(OTHER_WORKERS, |name| observed("networks", job(), name, network::reconcile)),
        queues.subnets.work(OTHER_WORKERS, |name| observed("subnets", job(), name, subnet::reconcile)),
        queues.nodes.work(OTHER_WORKERS, |name| observed("nodes", job(), name, node::reconcile)),
        queues.retries.work(1, |()| queue_waiting(context.clone())),
        find_orphans(context, &queues),
    );
}

/// Queues the waiting pods that recent changes may help.
async fn queue_waiting(context: Context) -> Result<(), Infallible> {
    if let Some(term) = &mut context.shared.lock().term {
        term.queue_waiting();
    }
    Ok(())
}

/// Queues the names of NodeInfos whose nodes were deleted while there was no leader. This runs once
/// per term; later deletions come from the watch of nodes.
async fn find_orphans(context: &Context, queues: &Queues) {
    let api: Api<PartialObjectMeta<NodeInfoObject>> = Api::all(context.client.clone());
    let mut parameters = ListParams::default().limit(PAGE);
    loop {
        let page = match api.list(&parameters).await {
            Ok(page) => page,
            Err(error) => {
                tracing::warn!(%error, "NodeInfos were not listed: NodeInfos of deleted nodes \
                    stay until the next term");
                return;
            }
        };
        for info in &page.items {
            let Some(name) = info.metadata.name.as_deref() else { continue };
            if context.shared.with_cluster(|cluster| cluster.node(name).is_none()) {
                queues.nodes.add(name.into());
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters.continue_token = Some(token),
            None => return,
        }
    }
}
