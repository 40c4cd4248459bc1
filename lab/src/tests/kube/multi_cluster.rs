//! Two clusters, each with its own API server, controllers and nodes, in two fabrics that exchange their
//! routes by BGP (lab/topologies/pair.clab.yml).

mod global;
pub(super) mod vlan;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use trunkline_api::control::RemoteClusterStatus;

use super::{Test, Verdict, cluster, crds, webhook};
use crate::client;
use crate::fabric::Fabric;
use crate::kube::Cluster;
use crate::kube::controller::Replicas;
use crate::kube::doorway::Doorway;
use crate::kube::nodes::{self, Attached};
use crate::kube::pods::{Plan, Pretended};
use crate::kube::remote;
use crate::kube::rights::{self, Accounts, WITHOUT_KEYS};
use crate::pinger::{Flow, Pinger};
use crate::progress::say;
use crate::shell::{Seen, cmd, run, wait_for};
use crate::tests::matrix::{Party, full_size, matrix};
use crate::tests::{Context as Lab, passed};
use crate::topology::Image;

pub(super) const TESTS: &[Test] = &[
    global::TEST,
    vlan::TEST,
    Test {
        name: "kube/multi-cluster",
        about: "two API servers, two controllers, four nodes: all pairs of BGP and overlay pods of both clusters without \
            NAT; an API server stops and starts again; a RemoteCluster is deleted; no packet is lost",
        run: multi_cluster,
    },
];

const PATIENCE: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "mixed";
/// The time without the API server of `west`: longer than the retries of all watches.
const AWAY: Duration = Duration::from_secs(60);
/// `--remote-retention` of `west`, in seconds.
const RETENTION: u64 = 15;
/// Annotations of a pod in the overlay.
const TUNNELLED: &[(&str, &str)] = &[("networking.alibaba.com/network-type", "Overlay")];
/// Number of RemoteSubnets of each cluster.
const SUBNETS: usize = 4;

/// Name, the other cluster's name, and nodes.
const CLUSTERS: [(&str, &str, [&str; 2]); 2] =
    [("east", "west", ["node1", "node2"]), ("west", "east", ["node3", "node4"])];

fn multi_cluster(context: &Lab) -> Result<Verdict> {
    pair(context, "pair", run_all)
}

/// Starts both clusters and the fabric.
fn pair(
    context: &Lab,
    name: &str,
    test: impl FnOnce(&Fabric, [Side<'_>; 2]) -> Result<Verdict>,
) -> Result<Verdict> {
    let (product, controller) = (context.product()?, context.controller()?);
    cluster(context, &format!("{name}-east"), |east| {
        cluster(context, &format!("{name}-west"), |west| {
            let fabric = Fabric::up(&context.place, "pair", &product)?;
            fabric.watched(|fabric| {
                for node in fabric.topology.with_image(Image::Node) {
                    client::wait_answering(fabric.host(node)?)?;
                }
                let sides =
                    [Side::start(east, fabric, &controller, 0)?, Side::start(west, fabric, &controller, 1)?];
                test(fabric, sides)
            })
        })
    })
}

/// A cluster, with its controllers and nodes.
struct Side<'a> {
    name: &'static str,
    other: &'static str,
    nodes: [&'static str; 2],
    cluster: &'a mut Cluster,
    replicas: Replicas,
    _doorways: Vec<Doorway>,
}

impl<'a> Side<'a> {
    fn start(cluster: &'a mut Cluster, fabric: &Fabric, controller: &Path, which: usize) -> Result<Self> {
        let (name, other, nodes) = CLUSTERS[which];
        crds::install(cluster)?;
        let accounts = Accounts::create(cluster, &[WITHOUT_KEYS])?;
        let manifests = std::fs::read_to_string(fabric.file(&format!("pair/{name}/local.yaml")))?;
        let wanted = manifests.split("---\n").filter(|text| !text.contains("kind: NodeInfo"));
        cluster.apply(&wanted.collect::<Vec<_>>().join("---\n"))?;
        cluster.wait(Pretended::new(cluster.client()).namespace(NAMESPACE))?;
        let retention = format!("--remote-retention={}", if name == "west" { RETENTION } else { 3600 });
        let mut replicas =
            Replicas::standing_by_as(cluster, &accounts.controller, controller, 2, &[&retention])?;
        replicas.wait_leader(cluster)?;
        let [one, two] = replicas.webhooks()[..] else { bail!("two replicas") };
        webhook::register(cluster, &mut replicas, one, two)?;
        let kubeconfig = |node: &str| rights::agent_on(cluster, WITHOUT_KEYS, node);
        let doorways = nodes::join_some(cluster, fabric, nodes, kubeconfig)?;
        for node in nodes {
            wait_for(&format!("NodeInfo {node} to have a VTEP"), PATIENCE, || {
                let info = json_of(cluster, &["nodeinfo", node])?;
                let is_there = info["spec"]["vtepInfo"]["ip"].as_str().is_some_and(|ip| !ip.is_empty());
                Ok(Seen::when(is_there, || info["spec"].to_string()))
            })?;
        }
        Ok(Self { name, other, nodes, cluster, replicas, _doorways: doorways })
    }

    fn attach(
        &self,
        fabric: &Fabric,
        name: &str,
        node: &str,
        stateful_set: Option<&'static str>,
    ) -> Result<Attached> {
        let plan = Plan {
            namespace: NAMESPACE.to_owned(),
            name: name.to_owned(),
            node: node.to_owned(),
            family: "DualStack",
            stateful_set,
        };
        let annotations = if name.starts_with("overlay") { TUNNELLED } else { &[] };
        nodes::attach(self.cluster, fabric, plan, annotations)
    }

    /// Creates the RemoteCluster for `from`, and its user, as in the documentation.
    fn read(&self, from: &Side<'_>) -> Result<()> {
        remote::join(self.cluster, self.name, from.cluster, from.name)
    }

    /// Waits for the state of the other cluster, and returns the conditions' messages.
    fn wait_state(&self, wanted: &str) -> Result<BTreeMap<String, String>> {
        let status = wait_for(&format!("{} to be {wanted} in {}", self.other, self.name), PATIENCE, || {
            let status = json_of(self.cluster, &["remotecluster", self.other])?["status"].take();
            let text = status.to_string();
            Ok(if status["state"] == wanted { Seen::Yes(status) } else { Seen::NotYet(text) })
        })?;
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(conditions.iter().map(|one| (text(&one["type"]), text(&one["message"]))).collect())
    }

    /// Waits for this number of RemoteSubnets and RemoteVteps.
    fn wait_mirrored(&self, subnets: usize, vteps: usize, patience: Duration) -> Result<()> {
        wait_for(
            &format!("{subnets} RemoteSubnets and {vteps} RemoteVteps in {}", self.name),
            patience,
            || {
                let count = |kind| {
                    Ok::<_, anyhow::Error>(
                        json_of(self.cluster, &[kind])?["items"].as_array().map_or(0, Vec::len),
                    )
                };
                let found = (count("remotesubnets")?, count("remotevteps")?);
                Ok(Seen::when(found == (subnets, vteps), || format!("{found:?}")))
            },
        )
    }

    fn wait_metric(&self, line: &str) -> Result<()> {
        let ports: Vec<u16> = self.replicas.metrics().map(|(_, port)| port).collect();
        wait_for(&format!("{line} in {}", self.name), PATIENCE, || {
            let mut seen = String::new();
            for port in &ports {
                let text = run(&mut cmd("curl", ["--silent", &format!("http://127.0.0.1:{port}/metrics")]))?;
                seen.extend(
                    text.lines().filter(|one| one.contains("remote_cluster")).map(|one| format!("{one}\n")),
                );
            }
            Ok(Seen::when(seen.lines().any(|one| one == line), || seen.clone()))
        })
    }

    /// The webhook denies a Subnet of this prefix, and names the object with the other prefix.
    fn refuses(&self, network: &str, cidr: &str, other: &str) -> Result<()> {
        let subnet = json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": "Subnet", "metadata": {"name": "overlapping"},
            "spec": {"network": network, "range": {"version": "4", "cidr": cidr}},
        });
        let error =
            self.cluster.apply(&subnet.to_string()).err().context("an overlapping Subnet was admitted")?;
        let text = format!("{error:#}");
        ensure!(text.contains(other), "the denial does not name {other}: {text}");
        Ok(())
    }

    /// Kills and restarts the controllers and the agents.
    fn kill_all(&mut self, fabric: &Fabric) -> Result<()> {
        for node in self.nodes {
            let host = fabric.host(node)?;
            client::end_agent(host, Signal::KILL)?;
            client::start_agent(host)?;
        }
        self.replicas.kill_all()?;
        self.replicas.start_all_again(self.cluster)
    }
}

fn json_of(cluster: &Cluster, what: &[&str]) -> Result<Value> {
    let args = [&["get"], what, &["-o", "json", "--ignore-not-found"]].concat();
    let text = run(&mut cluster.kubectl_command(&args))?;
    Ok(serde_json::from_str(&text).unwrap_or_default())
}

/// A pod with its cluster.
struct Pod {
    side: usize,
    attached: Attached,
}

impl Pod {
    fn is_overlay(&self) -> bool {
        self.attached.plan.name.starts_with("overlay")
    }

    fn party(&self) -> Party {
        Party::with(&self.attached.sandbox, &self.attached.addresses)
    }
}

/// Flows between all pods for which `wanted` holds.
fn flows(pods: &[Pod], wanted: impl Fn(&Pod, &Pod) -> bool) -> Vec<Flow> {
    let mut flows = Vec::new();
    for (n, from) in pods.iter().enumerate() {
        for (_, to) in pods.iter().enumerate().filter(|(m, to)| *m != n && wanted(from, to)) {
            flows.extend(to.attached.addresses.iter().map(|address| from.party().flow(*address)));
        }
    }
    flows
}

/// Flows that need no mirrored object.
fn without_tunnels(from: &Pod, to: &Pod) -> bool {
    from.side == to.side || !(from.is_overlay() || to.is_overlay())
}

/// Requests on flows. No request may be lost.
struct Kept(Pinger);

impl Kept {
    fn start(flows: Vec<Flow>) -> Result<Self> {
        let mut pinger = Pinger::start(flows, Duration::from_millis(100))?;
        pinger.settle(PATIENCE)?;
        Ok(Self(pinger))
    }

    /// Returns the number of requests.
    fn finish(self, during: &str) -> Result<usize> {
        self.0.wait_answers(10, PATIENCE)?;
        let mut sent = 0;
        for flow in self.0.finish()? {
            ensure!(
                flow.lost.is_empty(),
                "{during}: {}: {} of {} lost",
                flow.name,
                flow.lost.len(),
                flow.sent
            );
            sent += flow.sent;
        }
        Ok(sent)
    }
}

fn run_all(fabric: &Fabric, [mut east, mut west]: [Side<'_>; 2]) -> Result<Verdict> {
    let mut pods = Vec::new();
    for (side, of) in [&east, &west].into_iter().enumerate() {
        for node in of.nodes {
            for kind in ["bgp", "overlay"] {
                let attached = of.attach(fabric, &format!("{kind}-{node}"), node, None)?;
                pods.push(Pod { side, attached });
            }
        }
    }
    say("  the clusters are joined");
    east.read(&west)?;
    west.read(&east)?;
    for side in [&east, &west] {
        side.wait_mirrored(SUBNETS, 2, PATIENCE)?;
        side.wait_state("Ready")?;
    }
    for node in fabric.topology.with_image(Image::Node) {
        wait_for(&format!("the other cluster on {node}"), PATIENCE, || {
            let remote = client::status(fabric.host(node)?)?.remote_clusters.pop();
            let is_known =
                remote.as_ref().is_some_and(|r| (r.subnets.len(), r.vteps, r.endpoints) == (SUBNETS, 2, 8));
            Ok(Seen::when(is_known, || format!("{remote:?}")))
        })?;
    }
    let parties: Vec<Party> = pods.iter().map(Pod::party).collect();
    let ways = matrix(&parties)?;
    full_size(&parties)?;

    east.refuses("overlay", "10.72.4.0/24", "RemoteSubnet west.overlay-v4")?;
    west.refuses("rack", "10.61.0.0/20", "RemoteSubnet east.rack-v4")?;

    over_the_api_server(fabric, &east, &west)?;
    let mut sent = away(fabric, &mut east, &mut west, &pods)?;
    moves(fabric, &west, &pods)?;
    sent += retention(&mut east, &west, &pods)?;
    sent += deleted(fabric, &east, &pods)?;
    east.replicas.still_running()?;
    west.replicas.still_running()?;
    passed(format!(
        "{ways} pairs of addresses of {} pods in two clusters, sources unchanged; an API server was stopped for {AWAY:?} with \
         kills of all programs of the other cluster, and a RemoteCluster was deleted: {sent} requests, 0 lost",
        pods.len()
    ))
}

/// An API server of `east`, as its controllers would list it.
const SERVER: &str = "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, endpoints: [{addresses: [10.83.0.1]}],
 ports: [{name: https, port: 6443}], metadata: {name: kubernetes-lab, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}}";
/// A Subnet of `west` around it.
const OVER_IT: &str = "{apiVersion: networking.alibaba.com/v1, kind: Subnet, metadata: {name: over-it},
 spec: {network: overlay, range: {version: '4', cidr: 10.83.0.0/24}}}";

/// Packets for an overlay Subnet of `west` go through tunnels, also those of the nodes. So agents
/// ignore a Subnet with their API server.
fn over_the_api_server(fabric: &Fabric, east: &Side<'_>, west: &Side<'_>) -> Result<()> {
    say("  west has a Subnet over the API server of east");
    east.cluster.apply(SERVER)?;
    west.cluster.apply(OVER_IT)?;
    east.wait_mirrored(SUBNETS + 1, 2, PATIENCE)?;
    let ignored = |wanted: bool| {
        for node in east.nodes {
            let host = fabric.host(node)?;
            wait_for(&format!("{node} to ignore a Subnet with the API server: {wanted}"), PATIENCE, || {
                let remote = client::status(host)?.remote_clusters.pop();
                let routes = host.sh("ip route show table 40000")?;
                let is_named = |remote: &RemoteClusterStatus| {
                    let text = remote.faults.join("\n");
                    remote.ignored.subnets == 1 && text.contains("10.83.0.1/32 of the API server")
                };
                let is_ignored = remote.as_ref().is_some_and(is_named);
                let is_routed = routes.contains("10.83.");
                Ok(Seen::when(is_ignored == wanted && is_routed != wanted, || {
                    format!("{remote:?}\n{routes}")
                }))
            })?;
        }
        Ok::<_, anyhow::Error>(())
    };
    ignored(true)?;
    // Only the address is the reason.
    east.cluster.kubectl(["-n", "default", "delete", "endpointslice", "kubernetes-lab"])?;
    ignored(false)?;
    west.cluster.kubectl(["delete", "subnet", "over-it"])?;
    east.wait_mirrored(SUBNETS, 2, PATIENCE)
}

/// The API server of `west` is stopped; all programs of `east` are killed meanwhile.
fn away(fabric: &Fabric, east: &mut Side<'_>, west: &mut Side<'_>, pods: &[Pod]) -> Result<usize> {
    say("  the API server of west is stopped");
    let kept = Kept::start(flows(pods, |_, _| true))?;
    west.cluster.stop_api()?;
    let conditions = east.wait_state("Offline")?;
    let healthz = conditions.get("HealthProbe").context("a condition HealthProbe")?;
    ensure!(!healthz.is_empty(), "no reason in {conditions:?}");
    east.wait_metric("trunkline_controller_remote_cluster_connected{cluster=\"west\"} 0")?;
    east.kill_all(fabric)?;
    east.wait_metric("trunkline_controller_remote_cluster_connected{cluster=\"west\"} 0")?;
    std::thread::sleep(AWAY);
    east.wait_mirrored(SUBNETS, 2, Duration::ZERO)?;
    west.cluster.start_api()?;
    east.wait_state("Ready")?;
    east.wait_metric("trunkline_controller_remote_cluster_connected{cluster=\"west\"} 1")?;
    kept.finish("while the API server of west was stopped")
}

/// A pod of west moves to another node; pods of east reach it there.
fn moves(fabric: &Fabric, west: &Side<'_>, pods: &[Pod]) -> Result<()> {
    say("  a pod of west moves");
    let moving = west.attach(fabric, "overlay-db-0", "node3", Some("overlay-db"))?;
    let kept = moving.addresses.clone();
    let reach = |to: &Attached| {
        let all = pods.iter().flat_map(|from| to.addresses.iter().map(|address| from.party().flow(*address)));
        Pinger::start(all.collect(), Duration::from_millis(50))?.settle(PATIENCE)
    };
    reach(&moving)?;
    moving.take_away(west.cluster, fabric)?;
    let moved = west.attach(fabric, "overlay-db-0", "node4", Some("overlay-db"))?;
    ensure!(moved.addresses == kept, "{kept:?} became {:?}", moved.addresses);
    reach(&moved)?;
    moved.take_away(west.cluster, fabric)
}

/// The API server of `east` is stopped for longer than the retention of `west`.
fn retention(east: &mut Side<'_>, west: &Side<'_>, pods: &[Pod]) -> Result<usize> {
    say("  the API server of east is stopped for longer than the retention");
    let kept = Kept::start(flows(pods, without_tunnels))?;
    east.cluster.stop_api()?;
    west.wait_state("Offline")?;
    west.wait_mirrored(0, 0, PATIENCE)?;
    east.cluster.start_api()?;
    west.wait_state("Ready")?;
    west.wait_mirrored(SUBNETS, 2, PATIENCE)?;
    let sent = kept.finish("while the objects of east were deleted")?;
    Pinger::start(flows(pods, |_, _| true), Duration::from_millis(50))?.settle(PATIENCE)?;
    Ok(sent)
}

/// After the deletion of a RemoteCluster its objects and the agents' entries are deleted.
fn deleted(fabric: &Fabric, east: &Side<'_>, pods: &[Pod]) -> Result<usize> {
    say("  a RemoteCluster is deleted");
    let kept = Kept::start(flows(pods, without_tunnels))?;
    east.cluster.kubectl(["delete", "remotecluster", "west", "--wait=false"])?;
    east.wait_mirrored(0, 0, PATIENCE)?;
    for node in east.nodes {
        wait_for(&format!("{node} to have no entry of west"), PATIENCE, || {
            let host = fabric.host(node)?;
            let left = host.sh(
                "ip route show table 40000; ip route show table 40001; bridge fdb show dev eth1.vxlan70",
            )?;
            let is_left = ["10.72.", "10.62.", "10.52."].iter().any(|prefix| left.contains(prefix));
            Ok(Seen::when(!is_left, || left.clone()))
        })?;
    }
    kept.finish("after a RemoteCluster was deleted")
}
