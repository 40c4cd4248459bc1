//! The Services' addresses from a ServicePool, and over BGP. The router has no other route to them.
//!
//! In a fabric with BGP on each node, first only the target node advertises, so the cells' "asked
//! node" is known. Then every node with an endpoint advertises the Services with
//! `externalTrafficPolicy: Local`: a client outside of the fabric reaches each backend, and the
//! backend sees the client.
//!
//! A node with VLANs has no BGP peers. There an edge node without pods advertises the Services with
//! policy Cluster, and forwards to the VLANs.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use serde_json::{Value, json};
use trunkline_api::names::annotation;

use super::cells::{Backend, Policy};
use super::plan::{Plan, Pod};
use super::world;
use crate::cni::{Identity, Sandbox};
use crate::host::Host;
use crate::kube::Cluster;
use crate::kube::controller::Replicas;
use crate::kube::doorway::Doorway;
use crate::kube::nodes;
use crate::kube::pods::{self, Pretended};
use crate::netns::Namespace;
use crate::shell::{Seen, wait_for};
use crate::tests::bed::{Bed, PATIENCE};
use crate::tests::kube::crds;

/// The prefixes of LoadBalancer addresses, and those of external ones.
pub(super) const POOL: [&str; 2] = ["203.0.113.0/24", "2001:db8:113::/64"];
pub(super) const EXTERNAL: [&str; 2] = ["198.51.100.0/24", "2001:db8:100::/64"];

/// The label of the target node.
const ASKED: (&str, &str) = ("asked", "yes");

/// The namespace of the pods, and the StatefulSet that owns them. Only pods of a StatefulSet name
/// their addresses.
const NAMESPACE: &str = "default";
const STATEFUL_SET: &str = "matrix";

/// Creates the ServicePool, starts the controller, and waits until it has allocated the Services'
/// addresses.
pub(super) fn allocate(cluster: &Cluster, plan: &Plan, controller: &Path) -> Result<Replicas> {
    crds::install(cluster)?;
    let pool = json!({
        "apiVersion": "trunkline.io/v1alpha1", "kind": "ServicePool", "metadata": { "name": "public" },
        "spec": { "addresses": POOL },
    });
    cluster.apply(&pool.to_string())?;
    let controller = Replicas::start(cluster, controller, 1)?;
    for (name, addresses) in plan.load_balancers() {
        wait_for(&format!("the addresses of Service {name}"), PATIENCE, || {
            let text = cluster.kubectl(["get", "service", &name, "-o", "json"])?;
            let status = serde_json::from_str::<Value>(&text)?["status"]["loadBalancer"].take();
            let ingress = status["ingress"].as_array().into_iter().flatten();
            let ips: Vec<&str> = ingress.filter_map(|point| point["ip"].as_str()).collect();
            Ok(Seen::when(ips == addresses, || status.to_string()))
        })?;
    }
    Ok(controller)
}

/// Writes the ServiceAdvertisement.
pub(super) fn advertise(cluster: &Cluster, mut spec: Value) -> Result<()> {
    spec["addresses"] = json!(["LoadBalancer", "External"]);
    spec["externalCIDRs"] = json!(EXTERNAL);
    let object = json!({
        "apiVersion": "trunkline.io/v1alpha1", "kind": "ServiceAdvertisement",
        "metadata": { "name": "all" }, "spec": spec,
    });
    cluster.apply(&object.to_string()).map(drop)
}

/// A cluster with the controller, which the agents have joined.
pub(super) struct Advertised<'a> {
    cluster: &'a Cluster,
    _controller: Replicas,
    _doorways: Vec<Doorway>,
}

impl<'a> Advertised<'a> {
    /// Starts the controller. The agents join the cluster.
    pub(super) fn start(cluster: &'a Cluster, bed: &Bed<'_>, plan: &Plan, controller: &Path) -> Result<Self> {
        let controller = allocate(cluster, plan, controller)?;
        for file in ["networks", "subnets"] {
            let file = bed.fabric.file(&format!("{}/manifests/{file}.yaml", plan.topology));
            let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            cluster.apply(&text)?;
        }
        let doorways = nodes::join(cluster, bed.fabric, |_| Ok(cluster.kubeconfig()))?;
        let (name, value) = ASKED;
        cluster.kubectl(["label", "node", plan.nodes[0].name, &format!("{name}={value}")])?;
        Ok(Self { cluster, _controller: controller, _doorways: doorways })
    }

    /// Attaches a pod as a kubelet does.
    pub(super) fn attach(&self, bed: &Bed<'_>, plan: &Plan, pod: &Pod) -> Result<Namespace> {
        let node = plan.nodes[pod.node].name;
        let of = pods::Plan {
            namespace: NAMESPACE.to_owned(),
            name: format!("{}-0", pod.name),
            node: node.to_owned(),
            family: "DualStack",
            stateful_set: Some(STATEFUL_SET),
        };
        let network = plan.kinds[pod.kind].networks[pod.node];
        let pool = pod.addresses.map(|address| address.to_string()).join("/");
        let annotations = [(annotation::SPECIFIED_NETWORK, network), (annotation::IP_POOL, &pool)];
        let pretended = Pretended::new(self.cluster.client());
        let uid = self.cluster.wait(pretended.create_with(&of, &annotations))?;
        let mut sandbox = Sandbox::create(bed.fabric, node, &pod.name)?;
        sandbox.identity = Identity { namespace: of.namespace, name: of.name, uid };
        world::add(bed, None, pod, sandbox)
    }

    /// The target node advertises all addresses that it can deliver.
    pub(super) fn by_target(&self, bed: &Bed<'_>, plan: &Plan) -> Result<()> {
        let (name, value) = ASKED;
        advertise(self.cluster, json!({ "nodeSelector": { "matchLabels": { name: value } } }))?;
        let delivers = |backend, policy| policy == Policy::Cluster || backend == Backend::SameNode;
        wait_routes(bed.host(plan.router)?, plan.external_addresses(delivers))
    }

    /// All nodes advertise.
    pub(super) fn by_all(&self, bed: &Bed<'_>, plan: &Plan) -> Result<()> {
        advertise(self.cluster, json!({}))?;
        wait_routes(bed.host(plan.router)?, plan.external_addresses(|_, _| true))
    }
}

/// Waits until a router has BGP routes to exactly these addresses among those of Services.
pub(super) fn wait_routes(router: &Host, addresses: BTreeSet<IpAddr>) -> Result<()> {
    let wanted: BTreeSet<IpNet> = addresses.into_iter().map(IpNet::from).collect();
    let prefixes = [POOL, EXTERNAL].concat().into_iter().map(str::parse::<IpNet>);
    let prefixes = prefixes.collect::<std::result::Result<Vec<_>, _>>()?;
    wait_for(&format!("{} service addresses by BGP in {}", wanted.len(), router.name), PATIENCE, || {
        let mut seen = BTreeSet::new();
        for family in ["-4", "-6"] {
            let args = ["-j", family, "route", "show", "table", "main", "proto", "bgp"];
            let routes: Value = serde_json::from_str(&router.run("ip", args)?)?;
            let routes = routes.as_array().into_iter().flatten();
            let host = routes.filter_map(|route| route["dst"].as_str()?.parse::<IpAddr>().ok());
            seen.extend(host.map(IpNet::from));
        }
        seen.retain(|route| prefixes.iter().any(|prefix| prefix.contains(route)));
        let differences: Vec<&IpNet> = seen.symmetric_difference(&wanted).collect();
        Ok(Seen::when(differences.is_empty(), || format!("differences: {differences:?}")))
    })
}
