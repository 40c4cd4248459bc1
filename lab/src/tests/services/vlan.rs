//! The matrix on VLANs. The machine's kernel may lack 802.1Q, so nodes, agents and kube-proxy are
//! in a user-mode kernel. etcd and the API server run on the machine, where they have their own
//! processor. A tap device connects both sides.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::advertised;
use super::cells::Policy;
use super::plan::{Kind, Node, Plan};
use super::world::{self, Matrix, Proxies};
use crate::daemons::vtysh;
use crate::kube::assets::Assets;
use crate::kube::doorway::Doorway;
use crate::kube::nodes;
use crate::kube::proxy::Mode;
use crate::shell::{Seen, wait_for};
use crate::tests::bed::{PATIENCE, lab};
use crate::tests::kube::cluster;
use crate::tests::{Context, Verdict, boot_for, passed};
use crate::uml::link::{self, Link};
use crate::{client, packages, uml};

pub(super) static PLAN: Plan = Plan {
    topology: "services-vlan",
    nodes: [
        Node { name: "node1", addresses: ["10.1.0.11", "fd00:1::11"] },
        Node { name: "node2", addresses: ["10.1.0.12", "fd00:1::12"] },
        Node { name: "node3", addresses: ["10.2.0.13", "fd00:2::13"] },
    ],
    kinds: &[
        Kind {
            name: "VLAN tagged",
            networks: ["rack1", "rack1", "rack2"],
            v4: ["10.11.0.", "10.11.0.", "10.21.0."],
            v6: ["fd00:11::", "fd00:11::", "fd00:21::"],
        },
        Kind {
            name: "VLAN untagged",
            networks: ["rack1", "rack1", "rack2"],
            v4: ["10.12.0.", "10.12.0.", "10.22.0."],
            v6: ["fd00:12::", "fd00:12::", "fd00:22::"],
        },
    ],
    router: "gw",
    edge: Some(Node { name: "node4", addresses: ["10.3.0.14", "fd00:3::14"] }),
    outside: ["10.90.0.2", "fd00:90::2"],
};

/// The Network of the edge node: BGP peers, and no Subnet.
const EDGE_NETWORK: &str = "
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: { name: edge }
spec:
  type: Underlay
  mode: BGP
  netID: 65103
  nodeSelector: { rack: '3' }
  config: { bgpPeers: [{ asn: 65000, address: 10.3.0.1 }] }
";

fn edge() -> Result<&'static Node> {
    PLAN.edge.as_ref().context("an edge node")
}

/// Data from the part outside for the part inside.
#[derive(Serialize, Deserialize)]
struct Handed {
    mode: Mode,
    program: PathBuf,
    kubeconfig: PathBuf,
    /// The administrator's, for the agent of the edge node.
    agent: PathBuf,
    /// Port of the API server, on the link's other end and on each node's loopback.
    port: u16,
}

/// The part on the machine: creates a cluster and its objects, and boots a user-mode kernel.
pub(super) fn outside(context: &Context, mode: Mode) -> Result<Verdict> {
    if let Some(why) = uml::missing(&context.place)? {
        return Ok(Verdict::Skipped(why));
    }
    let program = match Assets::proxy(&context.place)? {
        Ok(program) => program,
        Err(missing) => return Ok(Verdict::Skipped(missing)),
    };
    // No package can be installed in the user-mode kernel.
    packages::need(world::PACKAGES)?;
    let controller = context.controller()?;
    let name = format!("services-vlan-{}", mode.name());
    cluster(context, &name, |cluster| {
        let kubeconfig = world::prepare(cluster, &PLAN)?;
        for node in PLAN.all_nodes() {
            cluster.create(&node.object().to_string())?;
        }
        let _controller = advertised::allocate(cluster, &PLAN, &controller)?;
        cluster.apply(EDGE_NETWORK)?;
        cluster.kubectl(["label", "node", edge()?.name, "rack=3"])?;
        advertised::advertise(cluster, json!({}))?;
        let link = Link::create(&context.place)?;
        let at = (link::MACHINE, cluster.port()).into();
        let _doorway = cluster.doorway_at(link.namespace(), at)?;
        let handed = Handed {
            mode,
            program: program.clone(),
            kubeconfig,
            agent: cluster.kubeconfig(),
            port: cluster.port(),
        };
        let file = cluster.folder().join("handed.json");
        std::fs::write(&file, serde_json::to_string(&handed)?)?;
        boot_for(context, &name.replacen('-', "/", 1), Some((&link, &file)))
    })
}

/// The part in the user-mode kernel.
pub(super) fn inside(context: &Context) -> Result<Verdict> {
    let file = context.handed.as_ref().context("the data of the part outside")?;
    let handed: Handed = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    let folder = context.place.folder("services-proxies");
    std::fs::create_dir_all(&folder)?;
    lab(context, PLAN.topology, |bed| {
        let mut doorways = Vec::new();
        for node in PLAN.all_nodes() {
            let host = bed.host(node.name)?;
            let at = ([127, 0, 0, 1], handed.port).into();
            doorways.push(Doorway::open(&host.ns, at, (link::MACHINE, handed.port).into())?);
        }
        nodes::follow_cluster(bed.fabric, edge()?.name, &handed.agent)?;
        for node in &PLAN.nodes {
            let host = bed.host(node.name)?;
            wait_for(&format!("{} to be ready", node.name), PATIENCE, || {
                let status = client::status(host)?;
                Ok(Seen::when(status.ready, || format!("{:?}", status.not_ready)))
            })?;
        }
        let of = Proxies {
            folder: &folder,
            program: &handed.program,
            kubeconfig: &handed.kubeconfig,
            mode: handed.mode,
        };
        let mut matrix = Matrix::start(bed, &PLAN, &of, &|pod| world::attach(bed, &PLAN, pod), PATIENCE)?;
        let router = bed.host(PLAN.router)?;
        router.sh(&PLAN.routes("add"))?;
        let cells = matrix.check_cells()?;
        router.sh(&PLAN.routes("del"))?;
        vtysh(router, &["configure", "router bgp 65000", "no neighbor 10.3.0.14 shutdown"])?;
        // Only the edge node has BGP peers, and it has no endpoint.
        advertised::wait_routes(router, PLAN.external_addresses(|_, policy| policy == Policy::Cluster))?;
        let asks = PLAN.external_asks().into_iter().map(|ask| {
            let source = match ask.cell.policy {
                Some(Policy::Cluster) => Some(edge()?.addresses[usize::from(!ask.v4)].parse()?),
                _ => None,
            };
            Ok((ask, source))
        });
        let by_edge = matrix.check_outside(asks.collect::<Result<_>>()?)?;
        passed(format!("by static routes: {cells}; by BGP from an edge node: {by_edge}"))
    })
}
