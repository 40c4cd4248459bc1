//! What hybridnet leaves in a cluster with a stopped virtual machine and a global Service, and what a
//! migration must keep of it.

use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::vms;
use crate::kube::{Cluster, remote};

/// The virtual machine, its address and its MAC.
const VM: &str = "disk";
const ADDRESS: &str = "100.64.1.20";
const MAC: &str = "02:12:34:56:78:70";
const LAUNCHER: &str = "virt-launcher-disk-1";

/// The Service, an endpoint of the other cluster, and the EndpointSlice for it.
const SERVICE: &str = "shop";
const ENDPOINT: &str = "100.70.0.5";
const SLICE: &str = "shop-x7k2p";
/// The other cluster's API server does not answer during the migration.
const NOWHERE: &str = "https://127.0.0.1:1";

/// hybridnet's kinds about other clusters, without their schemas.
fn kinds() -> impl Iterator<Item = Value> {
    let kinds = [
        ("RemoteCluster", "remoteclusters"),
        ("RemoteSubnet", "remotesubnets"),
        ("RemoteVtep", "remotevteps"),
        ("RemoteEndpointSlice", "remoteendpointslice"),
    ];
    kinds.into_iter().map(|(kind, plural)| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.multicluster.alibaba.com")},
            "spec": {
                "group": "multicluster.alibaba.com", "scope": "Cluster",
                "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": kind.to_lowercase()},
                "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
            },
        })
    })
}

pub(super) fn uid(cluster: &Cluster, kind: &str, name: &str) -> Result<String> {
    cluster.kubectl(["get", kind, name, "-o", "jsonpath={.metadata.uid}"])
}

fn apply(cluster: &Cluster, objects: &[Value]) -> Result<()> {
    let texts: Vec<String> = objects.iter().map(Value::to_string).collect();
    cluster.apply(&texts.join("\n---\n")).map(drop)
}

/// Creates the objects.
pub(super) fn create(cluster: &Cluster) -> Result<()> {
    apply(cluster, &kinds().collect::<Vec<_>>())?;
    cluster.apply(vms::CRDS)?;
    cluster.kubectl(["wait", "crd", "--all", "--for=condition=Established", "--timeout=60s"])?;
    create_vm(cluster)?;
    create_service(cluster)
}

fn create_vm(cluster: &Cluster) -> Result<()> {
    let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": VM, "namespace": "default"}, "spec": {}});
    apply(cluster, &[vm])?;
    let uid = uid(cluster, "virtualmachine", VM)?;
    let instance = json!({
        "apiVersion": "networking.alibaba.com/v1", "kind": "IPInstance",
        "metadata": {
            "name": ADDRESS.replace('.', "-"), "namespace": "default",
            "ownerReferences": [vms::owner("VirtualMachine", VM, &uid)],
            "finalizers": ["networking.alibaba.com/ip-allocated"],
            "labels": {
                "networking.alibaba.com/vm": VM, "networking.alibaba.com/version": "v1.2",
                "networking.alibaba.com/network": "rack1", "networking.alibaba.com/subnet": "rack1-v4",
            },
        },
        "spec": {
            "network": "rack1", "subnet": "rack1-v4",
            "address": {"version": "4", "ip": format!("{ADDRESS}/24"), "mac": MAC},
            "binding": {"referredObject": {"kind": "VirtualMachine", "name": VM, "uid": uid}, "nodeName": ""},
        },
    });
    apply(cluster, &[instance])
}

fn create_service(cluster: &Cluster) -> Result<()> {
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": SERVICE, "namespace": "default", "annotations": {"networking.alibaba.com/global-service": "true"}},
        "spec": {"ports": [{"port": 80, "protocol": "TCP"}]},
    });
    apply(cluster, &[service, remote::object(cluster, "west", "east", NOWHERE)?])?;
    let (service, west) = (uid(cluster, "service", SERVICE)?, uid(cluster, "remotecluster", "west")?);
    let labels = json!({
        "kubernetes.io/service-name": SERVICE, "networking.alibaba.com/cluster": "west",
        "endpointslice.kubernetes.io/managed-by": "remote-endpointslice.hybridnet",
    });
    let of_west = json!([{"apiVersion": "multicluster.alibaba.com/v1", "kind": "RemoteCluster", "name": "west", "uid": west}]);
    let endpoints = json!([{"addresses": [ENDPOINT], "conditions": {"ready": true}}]);
    let ports = json!([{"name": "", "port": 80, "protocol": "TCP"}]);
    apply(
        cluster,
        &[
            json!({
                "apiVersion": "multicluster.alibaba.com/v1", "kind": "RemoteSubnet",
                "metadata": {"name": "west-overlay", "labels": {"networking.alibaba.com/cluster": "west"}, "ownerReferences": of_west},
                "spec": {"clusterName": "west", "networkType": "Overlay", "range": {"version": "4", "cidr": "100.70.0.0/16"}},
            }),
            json!({
                "apiVersion": "multicluster.alibaba.com/v1", "kind": "RemoteVtep",
                "metadata": {"name": "west-node1", "labels": {"networking.alibaba.com/cluster": "west"}, "ownerReferences": of_west},
                "spec": {"clusterName": "west", "nodeName": "node1", "ip": "10.3.0.11", "mac": "02:12:0a:03:00:0b",
                         "endpointIPList": [ENDPOINT]},
            }),
            json!({
                "apiVersion": "multicluster.alibaba.com/v1", "kind": "RemoteEndpointSlice",
                "metadata": {"name": SLICE, "labels": labels, "ownerReferences": of_west},
                "spec": {"remoteService": {"cluster": "west", "namespace": "default", "name": SERVICE},
                         "addressType": "IPv4", "endpoints": endpoints, "ports": ports},
            }),
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": SLICE, "namespace": "default", "labels": labels,
                    "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": SERVICE, "uid": service, "controller": true}]},
                "addressType": "IPv4", "endpoints": endpoints, "ports": ports,
            }),
        ],
    )
}

/// Starts the virtual machine as KubeVirt does. Returns the name of its pod.
pub(super) fn start_vm(cluster: &Cluster, node: &str) -> Result<&'static str> {
    let vm = uid(cluster, "virtualmachine", VM)?;
    let instance = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": VM, "namespace": "default", "ownerReferences": [vms::owner("VirtualMachine", VM, &vm)]},
        "spec": {},
    });
    apply(cluster, &[instance])?;
    let instance = uid(cluster, "virtualmachineinstance", VM)?;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            // The policies of the test deny all traffic with such pods.
            "name": LAUNCHER, "namespace": "default", "labels": {"app": "guard"},
            "ownerReferences": [vms::owner("VirtualMachineInstance", VM, &instance)],
        },
        "spec": {"nodeName": node, "containers": [{"name": "compute", "image": "registry.k8s.io/pause:3.10"}]},
    });
    apply(cluster, &[pod])?;
    Ok(LAUNCHER)
}

/// Checks the address of the started virtual machine.
pub(super) fn has_its_address(address: IpAddr) -> Result<()> {
    ensure!(address.to_string() == ADDRESS, "the virtual machine had {ADDRESS} and has {address}");
    Ok(())
}

/// Checks that the objects of the other cluster, which does not answer, are still there, and that its
/// endpoint still belongs to the Service.
pub(super) fn is_kept(cluster: &Cluster) -> Result<()> {
    for kind in ["remotesubnet/west-overlay", "remotevtep/west-node1"] {
        cluster.kubectl(["get", kind]).with_context(|| format!("{kind} is gone"))?;
    }
    let text = cluster.kubectl(["get", "endpointslice", SLICE, "-o", "json"])?;
    let slice: Value = serde_json::from_str(&text)?;
    ensure!(
        slice["endpoints"][0]["addresses"] == json!([ENDPOINT])
            && slice["endpoints"][0]["conditions"]["ready"] == true,
        "the EndpointSlice of the global Service is {slice}"
    );
    Ok(())
}
