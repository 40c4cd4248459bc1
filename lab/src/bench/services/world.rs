//! A node in a cluster with many Services, and the writers of these Services.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::super::ipam::server::flood;
use crate::client;
use crate::fabric::{Fabric, Place};
use crate::host::Host;
use crate::kube::assets::Assets;
use crate::kube::pods::Pretended;
use crate::kube::{Cluster, nodes};
use crate::shell::{Seen, wait_for};
use crate::tests::kube::crds;

/// A time limit for thousands of objects on a slow machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);

const NAMESPACE: &str = "bench";
/// The address of node1, which local endpoints have.
const NODE: &str = "10.1.0.11";
/// Endpoints of each Service.
pub(super) const ENDPOINTS: usize = 5;

const POOL: &str = "
apiVersion: trunkline.io/v1alpha1
kind: ServicePool
metadata: { name: bench }
spec: { addresses: [198.18.0.0/16] }
";

/// The cluster and the node of a measurement.
pub(super) struct World<'a> {
    pub cluster: &'a Cluster,
    pub fabric: &'a Fabric,
    pub node: &'a Host,
    pub tor: &'a Host,
}

/// The number of a Service. Even without Kubernetes' controllers it has its address.
#[derive(Clone, Copy)]
pub(super) struct Number(pub usize);

impl Number {
    fn name(self) -> String {
        format!("service-{}", self.0)
    }

    fn address(self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 1)) + self.0 as u32)
    }

    pub(super) fn prefix(self) -> IpNet {
        IpNet::from(std::net::IpAddr::from(self.address()))
    }

    fn service(self, policy: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": self.name(), "namespace": NAMESPACE },
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": "trunkline.io/load-balancer",
                "allocateLoadBalancerNodePorts": false, "externalTrafficPolicy": policy,
                "ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"],
                "ports": [{ "port": 80, "targetPort": 8080 }],
            },
        })
    }

    /// The endpoints: the first is on the node, the others are on nodes elsewhere.
    fn endpoints(self, local_is_ready: bool) -> Value {
        let endpoint = |n: usize| {
            let address =
                Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 64, 0, 0)) + (self.0 * ENDPOINTS + n) as u32);
            let (address, node) = match n {
                0 => (NODE.to_owned(), "node1".to_owned()),
                n => (address.to_string(), format!("elsewhere{n}")),
            };
            let ready = n > 0 || local_is_ready;
            json!({
                "addresses": [address], "nodeName": node,
                "conditions": { "ready": ready, "serving": ready, "terminating": false },
            })
        };
        (0..ENDPOINTS).map(endpoint).collect()
    }

    fn slice(self) -> Value {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": self.name(), "namespace": NAMESPACE,
                "labels": { "kubernetes.io/service-name": self.name() },
            },
            "addressType": "IPv4", "endpoints": self.endpoints(true),
            "ports": [{ "name": "", "port": 8080, "protocol": "TCP" }],
        })
    }
}

/// Starts an API server and one-rack, whose agent joins with this service proxy.
pub(super) fn with<T>(
    place: &Place,
    name: &str,
    assets: &Assets,
    product: &Path,
    proxy: &Value,
    work: impl FnOnce(&World<'_>) -> Result<T>,
) -> Result<T> {
    Cluster::with(place, name, assets, |cluster| {
        crds::install(cluster)?;
        let fabric = Fabric::up(place, "one-rack", product)?;
        fabric.watched(|fabric| {
            let world = World { cluster, fabric, node: fabric.host("node1")?, tor: fabric.host("tor1")? };
            let networks = fabric.file("one-rack/node1/manifests/networks.yaml");
            let networks =
                std::fs::read_to_string(&networks).with_context(|| networks.display().to_string())?;
            cluster.apply(&format!("{networks}\n---\n{POOL}"))?;
            cluster.wait(Pretended::new(cluster.client()).namespace(NAMESPACE))?;
            client::wait_answering(world.node)?;
            world.configure(proxy)?;
            let _doorways = nodes::join(cluster, fabric, |_| Ok(cluster.kubeconfig()))?;
            client::wait_established(world.node, PATIENCE)?;
            work(&world)
        })
    })
}

impl World<'_> {
    /// Sets `services.proxy` in agent.yaml, for the agent's next start.
    pub(super) fn configure(&self, proxy: &Value) -> Result<()> {
        let file = self.fabric.file("one-rack/node1/agent.yaml");
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let mut config: BTreeMap<String, Value> =
            serde_saphyr::from_str(&text).with_context(|| file.display().to_string())?;
        config.insert("services".to_owned(), json!({ "proxy": proxy }));
        // The file is overwritten in place, because the node has mounted this file.
        Ok(std::fs::write(&file, serde_json::to_string_pretty(&config)?)?)
    }

    pub(super) fn restart_agent(&self) -> Result<()> {
        client::end_agent(self.node, Signal::TERM)?;
        client::start_agent(self.node)?;
        client::wait_established(self.node, PATIENCE)
    }

    /// Creates these Services with their addresses and ready endpoints.
    pub(super) fn create(&self, numbers: std::ops::Range<usize>, policy: &'static str) -> Result<()> {
        let services: Api<Service> = Api::namespaced(self.cluster.client(), NAMESPACE);
        let slices: Api<EndpointSlice> = Api::namespaced(self.cluster.client(), NAMESPACE);
        let first = numbers.start;
        flood(self.cluster, numbers.len(), move |n| {
            let (services, slices, number) = (services.clone(), slices.clone(), Number(first + n));
            async move {
                let post = PostParams::default();
                services.create(&post, &serde_json::from_value(number.service(policy))?).await?;
                let ingress = json!([{ "ip": number.address(), "ipMode": "VIP" }]);
                let status = json!({ "status": { "loadBalancer": { "ingress": ingress } } });
                services
                    .patch_status(&number.name(), &PatchParams::default(), &Patch::Merge(&status))
                    .await?;
                slices.create(&post, &serde_json::from_value(number.slice())?).await?;
                Ok(())
            }
        })
        .map(drop)
    }

    /// Changes the readiness of a Service's local endpoint. Returns the start of the request, and
    /// the time that it took.
    pub(super) fn set_ready(&self, number: Number, ready: bool) -> Result<(Instant, Duration)> {
        let slices: Api<EndpointSlice> = Api::namespaced(self.cluster.client(), NAMESPACE);
        let change = Patch::Merge(json!({ "endpoints": number.endpoints(ready) }));
        let began = Instant::now();
        self.cluster.wait(slices.patch(&number.name(), &PatchParams::default(), &change))?;
        Ok((began, began.elapsed()))
    }

    /// Waits until the agent advertises this number of addresses.
    pub(super) fn wait_advertised(&self, count: usize) -> Result<()> {
        wait_for(&format!("{count} advertised addresses"), PATIENCE, || {
            let text = client::metrics(self.node)?;
            let lines = text.lines().filter(|line| line.starts_with("trunkline_service_addresses{"));
            let known = text.lines().any(|line| line == "trunkline_service_known 1");
            let advertised: f64 = lines
                .clone()
                .filter(|line| line.contains("state=\"advertised\""))
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum();
            let there = known && advertised == count as f64;
            Ok(Seen::when(there, || lines.collect::<Vec<_>>().join("; ")))
        })
    }
}
