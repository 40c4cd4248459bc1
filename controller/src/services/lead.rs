//! The watches and workers of a term, beside those of the pods.
//!
//! The claims are listed first, then the Services: so the Service of each listed claim is known, or
//! known to be gone. A kind that the API server does not have counts as an empty list
//! ([`follow_optional`]). No allocation waits for NodeServices or EndpointSlices: they are needed for
//! the claims' statuses and the metrics only.

use std::convert::Infallible;
use std::sync::Arc;

use kube::Api;
use kube::runtime::watcher;
use trunkline_api::kube::Lenient;
use trunkline_api::names::label;
use trunkline_api::resources::{NodeServicesSpec, ServiceAddressSpec, ServicePoolSpec};

use super::endpoints::EndpointSlice;
use super::object::Service;
use super::{ServiceQueues, claim, pool, reconcile};
use crate::reconcile::{Context, observed};
use crate::term::TermDependencies;
use crate::watch::{Relist, follow, follow_optional};

/// Number of Services that are worked on at the same time.
const SERVICE_WORKERS: usize = 32;
/// Number of pools whose status is written at the same time.
const POOL_WORKERS: usize = 4;
/// Number of claims whose status is written, and of NodeServices that are deleted, at the same time.
const STATUS_WORKERS: usize = 4;
/// NodeServices in a page of a list: each may have 2,000 addresses.
const NODES_PAGE: u32 = 50;
/// EndpointSlices in a page of a list: a slice usually has up to 100 endpoints.
const SLICES_PAGE: u32 = 100;

/// Allocates addresses until the future is dropped. Subnets, Nodes and Namespaces are listed.
pub(crate) async fn serve(lead: &TermDependencies, context: &Context) {
    let (claims, pools, services) = (Relist::default(), Relist::default(), Relist::default());
    let all = watcher::Config::default;
    let api: Api<Service> = Api::all(lead.client.clone());
    let following = follow(api, all(), Arc::clone(&lead.shared), services.clone());
    let api: Api<EndpointSlice> = Api::all(lead.client.clone());
    let config =
        all().page_size(SLICES_PAGE).labels(&format!("{},!{}", label::SERVICE_NAME, label::HEADLESS));
    let following_slices = follow(api, config, Arc::clone(&lead.shared), Relist::default());
    if !lead.service_addresses {
        // Only global Services need them.
        return tokio::select! {
            () = following => {}
            () = following_slices => {}
        };
    }
    let api: Api<Lenient<ServiceAddressSpec>> = Api::all(lead.client.clone());
    let following_claims = follow_optional(api, all(), Arc::clone(&lead.shared), claims.clone());
    let api: Api<Lenient<ServicePoolSpec>> = Api::all(lead.client.clone());
    let following_pools = follow_optional(api, all(), Arc::clone(&lead.shared), pools.clone());
    let api: Api<Lenient<NodeServicesSpec>> = Api::all(lead.client.clone());
    let config = all().page_size(NODES_PAGE);
    let following_nodes = follow_optional(api, config, Arc::clone(&lead.shared), Relist::default());
    let working = async {
        claims.listed().await;
        services.list().await;
        pools.listed().await;
        work(lead, context).await;
    };
    tokio::select! {
        () = following => {}
        () = following_claims => {}
        () = following_pools => {}
        () = following_nodes => {}
        () = following_slices => {}
        () = working => {}
    }
}

async fn work(lead: &TermDependencies, context: &Context) {
    let queues = ServiceQueues::new(lead.status_interval);
    {
        let mut state = context.shared.lock();
        let state = &mut *state;
        state.services.begin_term(&state.cluster, Arc::clone(&queues));
        let rows = &state.services.rows;
        tracing::info!(
            services = rows.services.len(),
            pools = rows.pools.len(),
            addresses = rows.claims.len(),
            "the service addresses are rebuilt, Services are served"
        );
    }
    let job = || context.clone();
    tokio::join!(
        queues.services.work(SERVICE_WORKERS, |key| observed("services", job(), key, reconcile::reconcile)),
        queues.pools.work(POOL_WORKERS, |name| observed("servicepools", job(), name, pool::reconcile)),
        queues.claims.work(STATUS_WORKERS, |address| {
            observed("serviceaddresses", job(), address, claim::reconcile)
        }),
        queues.nodes.work(STATUS_WORKERS, |name| {
            observed("nodeservices", job(), name, claim::remove_node_services)
        }),
        queues.retries.work(1, |()| queue_waiting(context.clone())),
    );
}

/// Queues the waiting Services that recent changes may help.
async fn queue_waiting(context: Context) -> Result<(), Infallible> {
    if let Some(term) = &mut context.shared.lock().services.term {
        term.queue_waiting();
    }
    Ok(())
}
