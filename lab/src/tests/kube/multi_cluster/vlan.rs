//! BGP, VLAN and overlay pods of two clusters. VLANs need a user-mode kernel: the nodes are inside, and
//! both API servers with their controllers are on the machine (lab/topologies/clusters.clab.yml).

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::{CLUSTERS, NAMESPACE, PATIENCE, TUNNELLED};
use crate::client;
use crate::cni::{self, Identity, Sandbox};
use crate::kube::Cluster;
use crate::kube::controller::Replicas;
use crate::kube::doorway::Doorway;
use crate::kube::pods::{Plan, Pretended};
use crate::kube::rights::{self, Accounts, WITHOUT_KEYS};
use crate::kube::{nodes, remote};
use crate::shell::{Seen, wait_for};
use crate::tests::bed::lab;
use crate::tests::kube::{Verdict, cluster, crds};
use crate::tests::matrix::{Party, full_size, matrix};
use crate::tests::{Context as Lab, Test, boot_for, passed};
use crate::uml;
use crate::uml::link::{self, Link};

const NAME: &str = "kube/multi-cluster-vlan";

pub(super) const TEST: Test = Test {
    name: NAME,
    about: "two API servers, two controllers, four nodes: all pairs of BGP, VLAN and overlay pods of both clusters \
            without NAT, full-size packets",
    run: outside,
};

/// The part in the user-mode kernel.
pub(in crate::tests) const INSIDE: Test =
    Test { name: NAME, about: "the part inside the kernel", run: inside };

const TOPOLOGY: &str = "clusters";
/// Number of RemoteSubnets of each cluster.
const SUBNETS: usize = 6;

/// The addresses of a node.
const ADDRESSES: [(&str, [&str; 2]); 4] = [
    ("node1", ["10.51.0.11", "fd00:51::11"]),
    ("node2", ["10.51.0.12", "fd00:51::12"]),
    ("node3", ["10.52.0.13", "fd00:52::13"]),
    ("node4", ["10.52.0.14", "fd00:52::14"]),
];

/// Data of the part on the machine for the part in the user-mode kernel.
#[derive(Default, Serialize, Deserialize)]
struct Handed {
    nodes: Vec<HandedNode>,
    pods: Vec<HandedPod>,
}

#[derive(Serialize, Deserialize)]
struct HandedNode {
    name: String,
    kubeconfig: PathBuf,
    /// Port of its API server, on the machine's end of the link and on the node's loopback.
    port: u16,
}

#[derive(Serialize, Deserialize)]
struct HandedPod {
    node: String,
    name: String,
    uid: String,
}

/// The part on the machine: two clusters with their objects, and the boot of a user-mode kernel.
fn outside(context: &Lab) -> Result<Verdict> {
    if let Some(why) = uml::missing(&context.place)? {
        return Ok(Verdict::Skipped(why));
    }
    let controller = context.controller()?;
    cluster(context, "vlan-east", |east| {
        cluster(context, "vlan-west", |west| {
            let mut handed = Handed::default();
            let mut replicas = Vec::new();
            for (cluster, (name, _, nodes)) in [&*east, &*west].into_iter().zip(CLUSTERS) {
                let accounts = populate(cluster, name, nodes, &mut handed)?;
                let mut one = Replicas::standing_by_as(
                    cluster,
                    &accounts.controller,
                    &controller,
                    1,
                    &["--webhook=false"],
                )?;
                one.wait_leader(cluster)?;
                replicas.push(one);
            }
            remote::join(east, "east", west, "west")?;
            remote::join(west, "west", east, "east")?;
            let link = Link::create(&context.place)?;
            let mut doorways = Vec::new();
            for cluster in [&*east, &*west] {
                let at = (link::MACHINE, cluster.port()).into();
                doorways.push(cluster.doorway_at(link.namespace(), at)?);
            }
            let file = east.folder().join("handed.json");
            std::fs::write(&file, serde_json::to_string(&handed)?)?;
            let verdict = boot_for(context, NAME, Some((&link, &file)))?;
            for one in &mut replicas {
                one.still_running()?;
            }
            Ok(verdict)
        })
    })
}

/// Creates everything that a cluster needs before its agents start.
fn populate(cluster: &Cluster, name: &str, nodes: [&str; 2], handed: &mut Handed) -> Result<Accounts> {
    crds::install(cluster)?;
    let accounts = Accounts::create(cluster, &[WITHOUT_KEYS])?;
    let file = cluster.repository().join(format!("lab/topologies/{TOPOLOGY}/{name}/local.yaml"));
    let manifests = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let wanted = manifests.split("---\n").filter(|text| !text.contains("kind: NodeInfo"));
    cluster.apply(&wanted.collect::<Vec<_>>().join("---\n"))?;
    let pretended = Pretended::new(cluster.client());
    cluster.wait(pretended.namespace(NAMESPACE))?;
    for (node, underlay) in nodes.into_iter().zip(["bgp", "vlan"]) {
        cluster.wait(pretended.node(node, &[("cluster", name), ("rack", underlay)]))?;
        let addresses = ADDRESSES.iter().find(|(of, _)| *of == node).context("a node's addresses")?.1;
        let addresses = [addresses[0].parse()?, addresses[1].parse()?];
        cluster.wait(pretended.addresses(node, &addresses))?;
        let kubeconfig = rights::agent_on(cluster, WITHOUT_KEYS, node)?;
        handed.nodes.push(HandedNode { name: node.to_owned(), kubeconfig, port: cluster.port() });
        for (kind, annotations) in [(underlay, &[][..]), ("overlay", TUNNELLED)] {
            let plan = Plan {
                namespace: NAMESPACE.to_owned(),
                name: format!("{kind}-{node}"),
                node: node.to_owned(),
                family: "DualStack",
                stateful_set: None,
            };
            let uid = cluster.wait(pretended.create_with(&plan, annotations))?;
            handed.pods.push(HandedPod { node: plan.node, name: plan.name, uid });
        }
    }
    Ok(accounts)
}

/// The part in the user-mode kernel.
fn inside(context: &Lab) -> Result<Verdict> {
    let file = context.handed.as_ref().context("the data of the part outside")?;
    let handed: Handed = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    lab(context, TOPOLOGY, |bed| {
        let mut doorways = Vec::new();
        for node in &handed.nodes {
            let host = bed.host(&node.name)?;
            let at = ([127, 0, 0, 1], node.port).into();
            doorways.push(Doorway::open(&host.ns, at, (link::MACHINE, node.port).into())?);
            nodes::follow_cluster(bed.fabric, &node.name, &node.kubeconfig)?;
        }
        let mut parties = Vec::new();
        for pod in &handed.pods {
            let mut sandbox = Sandbox::create(bed.fabric, &pod.node, &pod.name)?;
            sandbox.identity =
                Identity { namespace: NAMESPACE.to_owned(), name: pod.name.clone(), uid: pod.uid.clone() };
            let attached = cni::add(bed.fabric, &cni::trunkline(None), &sandbox)?;
            parties.push(Party::pod(&sandbox, &attached));
        }
        for node in &handed.nodes {
            wait_for(&format!("the other cluster on {}", node.name), PATIENCE, || {
                let remote = client::status(bed.host(&node.name)?)?.remote_clusters.pop();
                let is_known = remote.as_ref().is_some_and(|remote| {
                    (remote.subnets.len(), remote.vteps, remote.endpoints) == (SUBNETS, 2, 8)
                });
                Ok(Seen::when(is_known, || format!("{remote:?}")))
            })?;
        }
        let ways = matrix(&parties)?;
        full_size(&parties)?;
        passed(format!(
            "{ways} pairs of addresses of {} pods in two clusters, sources unchanged, full-size packets",
            parties.len()
        ))
    })
}
