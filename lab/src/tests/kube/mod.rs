//! Tests on a real API server (see [`crate::kube`]), one file for each topic. Each has its own
//! cluster.

mod agent;
mod api_server;
mod chart;
mod controller;
mod cordon;
pub(crate) mod crds;
mod disturbed;
mod external_ips;
mod finalizers;
mod flows;
mod hostile;
mod hybridnet;
pub(super) mod install;
mod interfaces;
mod leader;
mod left;
mod migrate;
mod migrate_vlan;
mod multi_cluster;
mod overlay;
mod own_node;
mod racks;
mod restored;
mod settings;
mod storm;
mod tenancy;
mod translations;
mod twice;
mod two_racks;
mod unsupported;
mod vm_migration;
pub(super) mod vms;
pub(super) mod walk;
pub(super) mod webhook;

use anyhow::Result;
use kube::Api;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use trunkline_api::names::{OWN_GROUP, OWN_VERSION};

use super::{Context, Test, Verdict};
use crate::kube::Cluster;
use crate::kube::assets::Assets;

/// A ServiceAccount `tenant` with all rights in the Namespace `default`.
const TENANT: &str = "
{apiVersion: v1, kind: ServiceAccount, metadata: {name: tenant, namespace: default}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: tenant, namespace: default}, rules: [{apiGroups: ['*'], resources: ['*'], verbs: ['*']}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: tenant, namespace: default},
 roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: tenant}, subjects: [{kind: ServiceAccount, name: tenant, namespace: default}]}
";

pub(super) const TESTS: &[&[Test]] = &[
    agent::TESTS,
    api_server::TESTS,
    chart::TESTS,
    controller::TESTS,
    cordon::TESTS,
    crds::TESTS,
    disturbed::TESTS,
    external_ips::TESTS,
    finalizers::TESTS,
    hostile::TESTS,
    leader::TESTS,
    install::TESTS,
    interfaces::TESTS,
    migrate::TESTS,
    migrate_vlan::TESTS,
    multi_cluster::TESTS,
    overlay::TESTS,
    own_node::TESTS,
    racks::TESTS,
    restored::TESTS,
    settings::TESTS,
    tenancy::TESTS,
    twice::TESTS,
    unsupported::TESTS,
    vm_migration::TESTS,
    vms::TESTS,
    webhook::TESTS,
];

/// The parts of tests that run in a user-mode kernel.
pub(super) const INSIDE: &[Test] = &[multi_cluster::vlan::INSIDE, migrate_vlan::INSIDE];

/// Runs a test on a cluster of this name, or skips it if no cluster is possible.
pub(super) fn cluster(
    context: &Context,
    name: &str,
    test: impl FnOnce(&mut Cluster) -> Result<Verdict>,
) -> Result<Verdict> {
    match Assets::find(&context.place)? {
        Ok(assets) => Cluster::with(&context.place, name, &assets, test),
        Err(missing) => Ok(Verdict::Skipped(missing)),
    }
}

/// Objects of any kind, without its schema, in `default` or the given namespace.
fn api(cluster: &Cluster, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
    let (group, version) = match kind {
        "Pod" | "Node" | "Namespace" | "Service" => ("", "v1"),
        "EndpointSlice" => ("discovery.k8s.io", "v1"),
        "RemoteCluster" | "RemoteSubnet" => ("multicluster.alibaba.com", "v1"),
        "ServicePool"
        | "ServiceAddress"
        | "ServiceAdvertisement"
        | "AnycastAddress"
        | "NodeServices"
        | "AgentSettings" => (OWN_GROUP, OWN_VERSION),
        _ => ("networking.alibaba.com", "v1"),
    };
    let gvk = GroupVersionKind::gvk(group, version, kind);
    let resource = match kind {
        "NodeInfo" => ApiResource::from_gvk_with_plural(&gvk, "nodeinfoes"),
        "NodeServices" => ApiResource::from_gvk_with_plural(&gvk, "nodeservices"),
        "AgentSettings" => ApiResource::from_gvk_with_plural(&gvk, "agentsettings"),
        _ => ApiResource::from_gvk(&gvk),
    };
    match kind {
        "Pod" | "IPInstance" | "Service" | "EndpointSlice" => {
            Api::namespaced_with(cluster.client(), namespace.unwrap_or("default"), &resource)
        }
        _ => Api::all_with(cluster.client(), &resource),
    }
}
