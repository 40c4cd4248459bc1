//! Services with Trunkline: real kube-proxy with a real API server, and one connection for each
//! cell of the matrix. The backend answers with the source address that it sees, which must match
//! [`cells::Cell::promise`].
//!
//! ```text
//! cells   the cells and their promises, which `docs/services.md` shows
//! plan    the places of nodes, networks, pods and Services
//! vlan    the same matrix in a user-mode kernel, with the API server on the machine
//! advertised  the Services' addresses from a ServicePool, over BGP
//! world   a topology with the pods, kube-proxy on each node, and the connections
//! proxy_rules  the agent's reader of kube-proxy's rules and health
//! return_path  nodes with several links: the link by which an answer leaves
//! ```
//!
//! The test simulates the rest of the cluster: it writes Nodes, Services and EndpointSlices itself.

mod advertised;
pub(crate) mod cells;
mod plan;
mod proxy_rules;
mod return_path;
mod vlan;
mod world;

use anyhow::Result;

use self::advertised::Advertised;
use self::cells::Policy;
use self::plan::{Kind, Node, Plan, Pod};
use self::world::Matrix;
use super::bed::{PATIENCE, lab};
use super::kube::cluster;
use super::{Context, Test, Verdict, hybrid, passed};
use crate::kube::assets::Assets;
use crate::kube::proxy::Mode;

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "services/iptables",
        about: "BGP, GlobalBGP and VXLAN with kube-proxy in iptables mode, and addresses of a ServicePool over BGP: \
                each frontend, policy, backend and client gives the promised source",
        run: |context| routed(context, Mode::Iptables),
    },
    Test {
        name: "services/nftables",
        about: "BGP, GlobalBGP and VXLAN with kube-proxy in nftables mode, and addresses of a ServicePool over BGP: \
                each frontend, policy, backend and client gives the promised source",
        run: |context| routed(context, Mode::Nftables),
    },
    Test {
        name: "services/vlan-iptables",
        about: "tagged and untagged VLANs with kube-proxy in iptables mode: the same matrix, in a \
                user-mode kernel",
        run: |context| vlan::outside(context, Mode::Iptables),
    },
    Test {
        name: "services/vlan-nftables",
        about: "tagged and untagged VLANs with kube-proxy in nftables mode: the same matrix, in a \
                user-mode kernel",
        run: |context| vlan::outside(context, Mode::Nftables),
    },
    Test {
        name: "services/return-path",
        about: "two uplinks and a management network: with every translator, an answer leaves by the link of its request",
        run: return_path::run,
    },
    Test {
        name: "services/proxy-rules",
        about: "the agent's reader follows kube-proxy's rules and health in both modes: endpoints, \
                policies, SIGKILL, SIGSTOP, restart, flush",
        run: proxy_rules::run,
    },
];

/// The parts of tests that run in a user-mode kernel.
pub(super) const INSIDE: &[Test] = &[
    Test { name: "services/vlan-iptables", about: "the part inside the kernel", run: vlan::inside },
    Test { name: "services/vlan-nftables", about: "the part inside the kernel", run: vlan::inside },
];

/// Networks, and the tests of their matrix with kube-proxy in modes iptables and nftables.
pub(crate) fn coverage() -> impl Iterator<Item = (&'static str, [&'static str; 2])> {
    let routed = ROUTED.kinds.iter().map(|kind| (kind.name, ["services/iptables", "services/nftables"]));
    let vlan =
        vlan::PLAN.kinds.iter().map(|kind| (kind.name, ["services/vlan-iptables", "services/vlan-nftables"]));
    routed.chain(vlan)
}

/// The plan for the machine's kernel.
static ROUTED: Plan = Plan {
    topology: "hybrid",
    nodes: [
        Node { name: "node1", addresses: ["10.51.0.11", "fd00:51::11"] },
        Node { name: "node2", addresses: ["10.51.0.12", "fd00:51::12"] },
        Node { name: "node3", addresses: ["10.52.0.13", "fd00:52::13"] },
    ],
    kinds: &[
        Kind {
            name: "BGP",
            networks: ["rack1", "rack1", "rack2"],
            v4: ["10.61.1.", "10.61.2.", "10.62.0."],
            v6: ["fd00:61::10", "fd00:61::20", "fd00:62::"],
        },
        Kind {
            name: "GlobalBGP",
            networks: ["global", "global", "global"],
            v4: ["10.63.1.", "10.63.2.", "10.63.3."],
            v6: ["fd00:63::10", "fd00:63::20", "fd00:63::30"],
        },
        Kind {
            name: "VXLAN",
            networks: ["overlay", "overlay", "overlay"],
            v4: ["10.70.1.", "10.70.2.", "10.70.3."],
            v6: ["fd00:70::10", "fd00:70::20", "fd00:70::30"],
        },
    ],
    router: "tor1",
    edge: None,
    outside: ["10.90.0.2", "fd00:90::2"],
};

/// The matrix in the machine's kernel.
fn routed(context: &Context, mode: Mode) -> Result<Verdict> {
    let program = match Assets::proxy(&context.place)? {
        Ok(program) => program,
        Err(missing) => return Ok(Verdict::Skipped(missing)),
    };
    let controller = context.controller()?;
    cluster(context, &format!("services-{}", mode.name()), |cluster| {
        let kubeconfig = world::prepare(cluster, &ROUTED)?;
        lab(context, ROUTED.topology, |bed| {
            let advertised = Advertised::start(cluster, bed, &ROUTED, &controller)?;
            hybrid::ready(bed)?;
            let of =
                world::Proxies { folder: cluster.folder(), program: &program, kubeconfig: &kubeconfig, mode };
            let attach = |pod: &Pod| advertised.attach(bed, &ROUTED, pod);
            let mut matrix = Matrix::start(bed, &ROUTED, &of, &attach, PATIENCE)?;
            advertised.by_target(bed, &ROUTED)?;
            let cells = matrix.check_cells()?;
            advertised.by_all(bed, &ROUTED)?;
            let asks = ROUTED.external_asks().into_iter();
            let asks = asks.filter(|ask| ask.cell.policy == Some(Policy::Local)).map(|ask| {
                let source = ROUTED.outside[usize::from(!ask.v4)].parse()?;
                Ok((ask, Some(source)))
            });
            let local = matrix.check_outside(asks.collect::<Result<_>>()?)?;
            passed(format!("one node advertises: {cells}; all do, policy Local: {local}"))
        })
    })
}
