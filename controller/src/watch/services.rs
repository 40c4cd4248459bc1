//! Watches of Services, pools and claims, which only the leader has.

use trunkline_api::kube::Lenient;
use trunkline_api::resources::{ServiceAddressSpec, ServicePoolSpec};

use tokio::time::Instant;

use super::{Watched, key, name, name_faults};
use crate::cluster::version;
use crate::ipam::named_address;
use crate::remote::global::GlobalRow;
use crate::services::object::Service;
use crate::services::rows::{ClaimRow, PoolRow, ServiceRow};
use crate::state::ControllerState;

impl Watched for Service {
    fn begin(state: &mut ControllerState) {
        state.services.rows.services.begin();
        state.remote.global.begin();
        state.remote.cluster_ips.begin();
    }

    fn apply(self, state: &mut ControllerState) {
        let key = key(&self.metadata, state);
        state.remote.set_global(&key, GlobalRow::of(&self.metadata));
        let cluster_ips = self.spec.cluster_ips.iter().filter_map(|address| address.parse().ok()).collect();
        state.remote.set_cluster_ips(&key, cluster_ips);
        let row = ServiceRow::of(&self, &mut state.cluster.interner);
        state.services.set_service(&key, row);
    }

    fn remove(self, state: &mut ControllerState) {
        let key = key(&self.metadata, state);
        state.remote.set_global(&key, None);
        state.remote.set_cluster_ips(&key, Vec::new());
        state.services.remove_service(&key);
    }

    fn end(state: &mut ControllerState) {
        for key in state.services.rows.services.end() {
            state.services.remove_service(&key);
        }
        for key in state.remote.global.end() {
            state.remote.set_global(&key, None);
        }
        for key in state.remote.cluster_ips.end() {
            state.remote.set_cluster_ips(&key, Vec::new());
        }
        state.remote.global_has_changed();
        // The mirrored endpoints depend on the list of ClusterIPs.
        state.remote.has_changed();
    }
}

impl Watched for Lenient<ServicePoolSpec> {
    fn begin(state: &mut ControllerState) {
        state.services.rows.pools.begin();
    }

    fn apply(self, state: &mut ControllerState) {
        name_faults(&self);
        let name = name(kube::Resource::meta(&self), state);
        let row = PoolRow::of(&self, state.services.rows.pools.get(&name));
        state.services.set_pool(&name, row);
    }

    fn remove(self, state: &mut ControllerState) {
        let name = name(kube::Resource::meta(&self), state);
        state.services.remove_pool(&name);
    }

    fn end(state: &mut ControllerState) {
        for name in state.services.rows.pools.end() {
            state.services.remove_pool(&name);
        }
    }
}

impl Watched for Lenient<ServiceAddressSpec> {
    fn begin(state: &mut ControllerState) {
        state.services.rows.claims.begin();
    }

    fn apply(self, state: &mut ControllerState) {
        name_faults(&self);
        match ClaimRow::of(&self) {
            Some((address, row)) => {
                if !row.readable {
                    tracing::warn!(%address, "a ServiceAddress cannot be read: its address is allocated \
                        to no Service until the object is deleted");
                }
                state.services.set_claim(address, row);
            }
            None => {
                let name = kube::Resource::meta(&self).name.as_deref().unwrap_or_default();
                tracing::warn!(name, "the name of a ServiceAddress is not that of an address: delete it");
            }
        }
    }

    fn remove(self, state: &mut ControllerState) {
        let metadata = kube::Resource::meta(&self);
        let address = metadata.name.as_deref().and_then(named_address);
        if let Some(address) = address {
            state.services.remove_claim(address, version(metadata), Instant::now());
        }
    }

    fn end(state: &mut ControllerState) {
        for address in state.services.rows.claims.end() {
            state.services.remove_claim(address, u64::MAX, Instant::now());
        }
    }
}
