//! The whole: two racks of real routers, an agent on each node that knows nothing but its name and the API server, one controller,
//! and pods that are made in the API server and attached as a kubelet does it.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use serde_json::Value;

use super::{Test, Verdict, cluster, crds};
use crate::cni::{self, Sandbox};
use crate::fabric::Fabric;
use crate::kube::controller::Replicas;
use crate::kube::pods::{Plan, Pretended};
use crate::kube::{Cluster, nodes};
use crate::pinger::{Flow, Pinger};
use crate::shell::{Seen, wait_for};
use crate::tests::{Context as Lab, passed};
use crate::topology::Image;
use crate::{client, evidence, routers};

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/racks",
    about: "pods of the API server across two racks; a StatefulSet's pod moves with its addresses; a node is drained",
    run: racks,
}];

const PATIENCE: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "shop";

/// The Secret that both racks' Networks name for their sessions.
const SECRETS: &str = "
{apiVersion: v1, kind: Secret, metadata: {name: rack1, namespace: kube-system}, stringData: {password: rack1-lab-secret}}
---
{apiVersion: v1, kind: Secret, metadata: {name: rack2, namespace: kube-system}, stringData: {password: rack2-lab-secret}}
";

const SUBNETS: &str = "
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack1-v4 }
spec: { network: rack1, range: { version: '4', cidr: 10.201.0.0/16 } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack1-v6 }
spec: { network: rack1, range: { version: '6', cidr: 'fd00:201::/112' } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack2-v4 }
spec: { network: rack2, range: { version: '4', cidr: 10.202.0.0/16 } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack2-v6 }
spec: { network: rack2, range: { version: '6', cidr: 'fd00:202::/112' } }
";

fn racks(context: &Lab) -> Result<Verdict> {
    let (product, controller) = (context.product()?, context.controller()?);
    cluster(context, "racks", |cluster| {
        let fabric = Fabric::up(&context.place, "two-racks", &product)?;
        fabric.watched(|fabric| {
            evidence::capture(fabric)?;
            for node in fabric.topology.with_image(Image::Node) {
                client::wait_answering(fabric.host(node)?)?;
            }
            Racks { cluster, fabric }.test(&controller)
        })
    })
}

/// A pod that is attached.
struct Attached {
    plan: Plan,
    sandbox: Sandbox,
    addresses: Vec<IpAddr>,
}

struct Racks<'a> {
    cluster: &'a Cluster,
    fabric: &'a Fabric,
}

impl Racks<'_> {
    fn test(&self, controller: &std::path::Path) -> Result<Verdict> {
        let cluster = self.cluster;
        crds::install(cluster)?;
        cluster.apply(SECRETS)?;
        cluster.apply(&self.network("node1a")?)?;
        cluster.apply(&self.network("node2a")?)?;
        cluster.apply(SUBNETS)?;
        cluster.wait(Pretended::new(cluster.client()).namespace(NAMESPACE))?;
        let _doorways = nodes::join(cluster, self.fabric)?;
        let mut replicas = Replicas::start(cluster, controller, 1)?;
        for node in self.fabric.topology.with_image(Image::Node) {
            client::wait_established(self.fabric.host(node)?, PATIENCE)?;
        }
        self.peers_are_told("node2b")?;

        let mut pods = Vec::new();
        for (n, node) in ["node1a", "node1b", "node2a", "node2b"].into_iter().enumerate() {
            pods.push(self.attach(&format!("web-{n}"), node, None)?);
        }
        let db = self.attach("db-0", "node1a", Some("db"))?;
        let kept = db.addresses.clone();
        self.reach_each_other(&pods.iter().chain([&db]).collect::<Vec<_>>())?;
        self.agent_told(&db)?;

        // Moved: away from node1a, and made anew on the other node of its rack.
        self.take_away(db)?;
        let db = self.attach("db-0", "node1b", Some("db"))?;
        ensure!(db.addresses == kept, "db-0 had {kept:?} on node1a and has {:?} on node1b", db.addresses);
        self.reach_each_other(&pods.iter().chain([&db]).collect::<Vec<_>>())?;

        // Drained: the StatefulSet's pod goes back, the other of the node is made anew elsewhere.
        cluster.kubectl(["cordon", "node1b"])?;
        let web = pods.remove(1);
        let freed = web.addresses.clone();
        self.take_away(web)?;
        self.take_away(db)?;
        let db = self.attach("db-0", "node1a", Some("db"))?;
        ensure!(db.addresses == kept, "db-0 had {kept:?} and has {:?} after the drain", db.addresses);
        pods.push(self.attach("web-4", "node2a", None)?);
        pods.push(db);
        self.is_empty("node1b", &freed)?;
        self.reach_each_other(&pods.iter().collect::<Vec<_>>())?;
        replicas.still_running()?;
        passed(format!("{} pods on three nodes in the end, all pairs of both families", pods.len()))
    }

    /// The rack's Network as the topology has it, but with its password in a Secret.
    fn network(&self, node: &str) -> Result<String> {
        let file = self.fabric.file(&format!("two-racks/{node}/manifests/networks.yaml"));
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let text = text.split("---").next().unwrap_or_default();
        let rack = format!("rack{}", &node[4..5]);
        let (plain, secret) = (
            format!("password: {rack}-lab-secret"),
            format!("passwordSecretRef: {{name: {rack}, key: password}}"),
        );
        ensure!(text.contains(&plain), "{}: no {plain}", file.display());
        Ok(text.replace(&plain, &secret))
    }

    fn attach(&self, name: &str, node: &str, stateful_set: Option<&'static str>) -> Result<Attached> {
        let plan = Plan {
            namespace: NAMESPACE.to_owned(),
            name: name.to_owned(),
            node: node.to_owned(),
            family: "DualStack",
            stateful_set,
        };
        // The kubelet does not wait for addresses: ADD does.
        let sandbox = nodes::pod(self.cluster, self.fabric, &plan)?;
        let addresses = cni::add(self.fabric, &cni::trunkline(None), &sandbox)?.addresses;
        ensure!(addresses.len() == 2, "{name} on {node}: {addresses:?}");
        self.cluster.wait(Pretended::new(self.cluster.client()).report(NAMESPACE, name, &addresses))?;
        Ok(Attached { plan, sandbox, addresses })
    }

    /// As a kubelet does when its pod was deleted: DEL, then the pod goes.
    fn take_away(&self, pod: Attached) -> Result<()> {
        cni::del(self.fabric, &cni::trunkline(None), &pod.sandbox)?;
        pod.sandbox.ns.delete()?;
        self.cluster.wait(Pretended::new(self.cluster.client()).delete(NAMESPACE, &pod.plan.name))
    }

    fn reach_each_other(&self, pods: &[&Attached]) -> Result<()> {
        let mut flows = Vec::new();
        for from in pods {
            for to in pods.iter().filter(|to| to.plan.name != from.plan.name) {
                for address in &to.addresses {
                    let name = format!("{} to {} {address}", from.plan.name, to.plan.name);
                    flows.push(Flow { name, from: from.sandbox.ns.clone(), to: *address });
                }
            }
        }
        Pinger::start(flows, Duration::from_millis(20))?.settle(PATIENCE)
    }

    /// The agent writes which sandbox has the address.
    fn agent_told(&self, pod: &Attached) -> Result<()> {
        wait_for("the IPInstance's status to name the sandbox", PATIENCE, || {
            let name = pod.addresses[0].to_string().replace('.', "-");
            let text = self.cluster.kubectl(["get", "ipinstance", &name, "-n", NAMESPACE, "-o", "json"])?;
            let status = serde_json::from_str::<Value>(&text)?["status"].take();
            let told =
                status["sandboxID"] == *pod.sandbox.container_id && status["nodeName"] == *pod.plan.node;
            Ok(Seen::when(told, || status.to_string()))
        })
    }

    /// The node's sessions are in its NodeInfo.
    fn peers_are_told(&self, node: &str) -> Result<()> {
        wait_for(&format!("the peers in NodeInfo {node}"), PATIENCE, || {
            let text = self.cluster.kubectl(["get", "nodeinfoes", node, "-o", "json"])?;
            let peers = serde_json::from_str::<Value>(&text)?["status"]["peers"].take();
            let up = peers
                .as_array()
                .is_some_and(|p| p.len() == 2 && p.iter().all(|p| p["state"] == "Established"));
            Ok(Seen::when(up, || peers.to_string()))
        })
    }

    /// Nothing is left of a drained node's pods: on the node, in the API server, in the ToRs.
    fn is_empty(&self, node: &str, freed: &[IpAddr]) -> Result<()> {
        let host = self.fabric.host(node)?;
        wait_for(&format!("{node} to have no pod"), PATIENCE, || {
            let pods = client::pods(host)?;
            let label = format!("networking.alibaba.com/node={node}");
            let instances = self.cluster.kubectl(["get", "ipinstances", "-A", "-l", &label, "-o", "name"])?;
            Ok(Seen::when(pods.is_empty() && instances.is_empty(), || format!("{pods:?} {instances}")))
        })?;
        for tor in ["tor1a", "tor1b"] {
            wait_for(&format!("{tor} to have no route to {freed:?}"), PATIENCE, || {
                let table = routers::kernel_routes(self.fabric.host(tor)?)?;
                let left: Vec<&IpNet> = table
                    .iter()
                    .filter(|p| p.prefix_len() == p.max_prefix_len() && freed.contains(&p.addr()))
                    .collect();
                Ok(Seen::when(left.is_empty(), || format!("{left:?}")))
            })?;
        }
        Ok(())
    }
}
