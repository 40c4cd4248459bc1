//! The chart's optional policy about `spec.externalIPs` on a real API server.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use super::{TENANT, Test, Verdict, cluster, crds};
use crate::kube::Cluster;
use crate::shell::{Seen, wait_for};
use crate::tests::{Context as Lab, passed};

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/external-ips",
    about: "with the chart's policy no Service gets an external address inside a ServicePool, at creation and at update; earlier ones stay",
    run: external_ips,
}];

const PATIENCE: Duration = Duration::from_secs(60);

const POOLS: &str = "
{apiVersion: trunkline.io/v1alpha1, kind: ServicePool, metadata: {name: one}, spec: {addresses: [10.90.0.0/24, 10.91.0.7]}}
---
{apiVersion: trunkline.io/v1alpha1, kind: ServicePool, metadata: {name: two}, spec: {addresses: [10.92.0.250-10.92.1.5, 'fd00:90::/112', 'fd00:91::10-fd00:91::1f']}}
";

/// External addresses of a Service, and whether the policy admits them.
const ADDRESSES: &[(&[&str], bool)] = &[
    (&[], true),
    (&["198.51.100.7"], true),
    (&["10.90.0.9"], false),
    (&["198.51.100.7", "10.90.0.255"], false),
    (&["10.90.1.0"], true),
    (&["10.91.0.7"], false),
    (&["10.91.0.8"], true),
    (&["10.92.0.249"], true),
    (&["10.92.0.250"], false),
    (&["10.92.1.5"], false),
    (&["10.92.1.6"], true),
    (&["fd00:90::1"], false),
    (&["fd00:90:0:0:0:0:0:1"], false),
    (&["fd00:90::1:0"], true),
    (&["fd00:91::15"], false),
    (&["fd00:91::1:15"], true),
];

fn service(name: &str, addresses: &[&str]) -> Result<Service> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"ports": [{"port": 80}], "externalIPs": addresses},
    }))?)
}

/// The API server's answer to such a Service in a dry run.
fn attempt(cluster: &Cluster, addresses: &[&str]) -> Result<Option<String>> {
    let services: Api<Service> = Api::namespaced(cluster.client(), "default");
    let params = PostParams { dry_run: true, ..PostParams::default() };
    refusal(cluster.wait(services.create(&params, &service("attempt", addresses)?)))
}

fn refusal(answer: kube::Result<Service>) -> Result<Option<String>> {
    match answer {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(Some(status.message)),
        Err(error) => bail!("{error}"),
    }
}

fn external_ips(context: &Lab) -> Result<Verdict> {
    cluster(context, "external-ips", |cluster| {
        crds::install(cluster)?;
        cluster.apply(POOLS)?;
        for (addresses, _) in ADDRESSES {
            let refused = attempt(cluster, addresses)?;
            ensure!(refused.is_none(), "refused without the policy: {refused:?}");
        }
        let services: Api<Service> = Api::namespaced(cluster.client(), "default");
        let change = |addresses: &[&str]| {
            let patch = json!({"spec": {"externalIPs": addresses}});
            refusal(cluster.wait(services.patch("there", &PatchParams::default(), &Patch::Merge(&patch))))
        };
        cluster.wait(services.create(&PostParams::default(), &service("there", &["10.90.0.9"])?))?;

        let file = cluster.repository().join("deploy/helm/trunkline/files/external-ips.yaml");
        cluster.apply(&std::fs::read_to_string(file)?)?;
        wait_for("the policy to be in force", PATIENCE, || {
            let refused = [attempt(cluster, &["10.90.0.9"])?, attempt(cluster, &["10.91.0.7"])?];
            Ok(Seen::when(refused.iter().all(Option::is_some), || "admitted".to_owned()))
        })?;
        for (addresses, is_allowed) in ADDRESSES {
            match attempt(cluster, addresses)? {
                None => ensure!(*is_allowed, "{addresses:?} was admitted"),
                Some(text) => {
                    ensure!(!is_allowed, "{addresses:?}: {text}");
                    ensure!(
                        text.contains("spec.externalIPs, or status.loadBalancer: an address"),
                        "{addresses:?}: {text}"
                    );
                }
            }
        }
        // An earlier Service keeps its address, and gets no further one.
        ensure!(change(&["10.90.0.9", "198.51.100.7"])?.is_none(), "an earlier address was refused");
        ensure!(change(&["10.90.0.9", "10.92.1.5"])?.is_some(), "an address was added");
        statuses(cluster)?;
        cluster.kubectl(["delete", "servicepools", "--all"])?;
        wait_for("Services without a ServicePool to be admitted", PATIENCE, || {
            Ok(Seen::when(attempt(cluster, &["10.90.0.9"])?.is_none(), || "refused".to_owned()))
        })?;
        passed(format!("{} Services", ADDRESSES.len()))
    })
}

/// kube-proxy also takes the addresses in the status of a Service: only who controls the load balancers
/// of the cluster writes those of a ServicePool.
fn statuses(cluster: &Cluster) -> Result<()> {
    cluster.apply(TENANT)?;
    let tenant = cluster.client_of(&cluster.service_account("default", "tenant")?)?;
    let balanced = json!({
        "metadata": {"name": "balanced"},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "example.com/none", "ports": [{"port": 443}]},
    });
    let create = serde_json::from_value(balanced)?;
    let services: Api<Service> = Api::namespaced(cluster.client(), "default");
    cluster.wait(services.create(&PostParams::default(), &create))?;
    let write = |client: kube::Client, address: &str| {
        let services: Api<Service> = Api::namespaced(client, "default");
        let patch = json!({"status": {"loadBalancer": {"ingress": [{"ip": address}]}}});
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        refusal(cluster.wait(services.patch_status("balanced", &params, &Patch::Merge(&patch))))
    };
    wait_for("the tenant's right to write a status", PATIENCE, || {
        let refused = write(tenant.clone(), "198.51.100.7")?;
        Ok(Seen::when(refused.is_none(), || format!("{refused:?}")))
    })?;
    let refused = write(tenant.clone(), "10.90.0.9")?.unwrap_or_default();
    ensure!(refused.contains("status.loadBalancer: an address"), "a tenant's status: {refused:?}");
    let refused = write(cluster.client(), "10.90.0.9")?;
    ensure!(refused.is_none(), "an administrator's status: {refused:?}");
    Ok(())
}
