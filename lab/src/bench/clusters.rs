//! `cargo lab bench clusters`: another cluster with 1,000 nodes and 10,000 overlay pods.
//!
//! There are two real API servers. The one of `west` has only objects, which the bench writes as agents and
//! controllers would: NodeInfos and IPInstances. The controller of `east` mirrors them, and the agent of
//! node1 (topology pair) routes to them.
//!
//! The reference of the memory is the same agent without a RemoteCluster, after the same start. A time of a
//! move begins with the request that changes an IPInstance's node in `west`, and ends with the changed route
//! in the kernel of node1. So it includes both API servers, etcd, the controller and the agent.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use ipnet::IpNet;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use rustix::process::Signal;
use serde::Serialize;
use serde_json::{Value, json};

use super::ipam::server::flood;
use super::memory::megabytes;
use super::{Bound, report, warn_if_busy};
use crate::demo::ms;
use crate::fabric::{Fabric, Place};
use crate::host::Host;
use crate::kube::assets::Assets;
use crate::kube::controller::Replicas;
use crate::kube::pods::Pretended;
use crate::kube::{Cluster, nodes, remote};
use crate::product::Profile;
use crate::progress::step;
use crate::routes::RouteMonitor;
use crate::shell::{Seen, wait_for};
use crate::stats::{percentile, round};
use crate::tests::kube::crds;
use crate::{client, packages, product};

const NODES: usize = 1_000;
const PODS: usize = 10_000;
const MOVES: usize = 200;
const PACE: Duration = Duration::from_millis(100);
/// The allocator returns memory within this time.
const REST: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(300);
const MOST_MB: f64 = 5.0;
const MOST_MS: f64 = 1_000.0;
const NAMESPACE: &str = "bench";
const NODE: &str = "node1";

#[derive(Debug, Clone, Serialize)]
struct Figures {
    bench: &'static str,
    nodes: usize,
    pods: usize,
    moves: usize,
    /// The agent without another cluster, in megabytes of 1,000,000 octets.
    pss_none_mb: f64,
    /// After the other cluster's objects arrived one by one.
    pss_mb: f64,
    /// After a restart with all of them.
    pss_restarted_mb: f64,
    /// Differences from the agent without another cluster; the higher one of the two.
    pss_more_mb: f64,
    /// Time until node1 has all routes: from the RemoteCluster's creation, in seconds.
    first_s: f64,
    move_p50_ms: f64,
    move_p99_ms: f64,
    move_max_ms: f64,
    /// The request alone, in milliseconds.
    write_p50_ms: f64,
    write_p99_ms: f64,
    bounds: Vec<Bound>,
}

/// `cargo lab bench clusters`.
pub(crate) fn bench(place: &Place, json: bool) -> Result<bool> {
    packages::need_root("cargo lab bench clusters")?;
    packages::need(packages::ALWAYS.into_iter().chain(["frr", "nftables"]))?;
    let assets = match Assets::find(place)? {
        Ok(assets) => assets,
        Err(missing) => bail!("{missing}"),
    };
    let (nodes, controller) =
        (product::build(place, Profile::Release)?, product::build_controller(place, Profile::Release)?);
    warn_if_busy();
    let figures = Cluster::with(place, "bench-east", &assets, |east| {
        Cluster::with(place, "bench-west", &assets, |west| {
            Fabric::up(place, "pair", &nodes)?.watched(|fabric| measure(east, west, fabric, &controller))
        })
    })?;
    let words = format!(
        "  another cluster with {} nodes and {} pods: PSS of the agent {:.1} MB, {:.1} MB after a restart, {:.1} MB without it\n  \
         all routes after {:.1} s; a pod's move until the route: p50 {:.1} ms, p99 {:.1} ms, most {:.1} ms (the request alone: p50 {:.1} ms, p99 {:.1} ms)\n",
        figures.nodes,
        figures.pods,
        figures.pss_mb,
        figures.pss_restarted_mb,
        figures.pss_none_mb,
        figures.first_s,
        figures.move_p50_ms,
        figures.move_p99_ms,
        figures.move_max_ms,
        figures.write_p50_ms,
        figures.write_p99_ms
    );
    report(json, &figures, &words, &figures.bounds)
}

fn measure(east: &Cluster, west: &Cluster, fabric: &Fabric, controller: &Path) -> Result<Figures> {
    let node = fabric.host(NODE)?;
    client::wait_answering(node)?;
    for (cluster, name) in [(east, "east"), (west, "west")] {
        crds::install(cluster)?;
        let manifests = std::fs::read_to_string(fabric.file(&format!("pair/{name}/local.yaml")))?;
        let wanted = manifests.split("---\n").filter(|text| !text.contains("kind: NodeInfo"));
        cluster.apply(&wanted.collect::<Vec<_>>().join("---\n"))?;
    }
    unlimited(fabric)?;
    let _doorways = nodes::join_some(east, fabric, [NODE], |_| Ok(east.kubeconfig()))?;
    client::wait_established(node, PATIENCE)?;
    let _replicas = Replicas::start(east, controller, 1)?;
    step(&format!("{NODES} nodes and {PODS} pods of west"), || populate(west))?;
    restart(node)?;
    let none = at_rest(node)?;

    let began = Instant::now();
    remote::join(east, "east", west, "west")?;
    step("the routes of node1", || wait_routes(node))?;
    let first = began.elapsed();
    let pss = at_rest(node)?;
    let (moves, writes) = step(&format!("{MOVES} pods move"), || moves(west, node))?;
    let restarted = step("the agent starts with all of them", || {
        restart(node)?;
        wait_routes(node)?;
        at_rest(node)
    })?;
    let more = round(pss.max(restarted) - none);
    let p99 = percentile(&moves, 99.0);
    Ok(Figures {
        bench: "clusters",
        nodes: NODES,
        pods: PODS,
        moves: MOVES,
        pss_none_mb: round(none),
        pss_mb: round(pss),
        pss_restarted_mb: round(restarted),
        pss_more_mb: more,
        first_s: round(first.as_secs_f64()),
        move_p50_ms: percentile(&moves, 50.0),
        move_p99_ms: p99,
        move_max_ms: percentile(&moves, 100.0),
        write_p50_ms: percentile(&writes, 50.0),
        write_p99_ms: percentile(&writes, 99.0),
        bounds: vec![
            Bound::at_most("the agent's PSS with another cluster, more than without, in MB", more, MOST_MB),
            Bound::at_most("a pod's move until the route in the other cluster, p99 in ms", p99, MOST_MS),
        ],
    })
}

/// Removes `remoteClusters` from agent.yaml, which limits the nodes' addresses to those of the topology.
fn unlimited(fabric: &Fabric) -> Result<()> {
    let file = fabric.file(&format!("pair/{NODE}/agent.yaml"));
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let mut config: BTreeMap<String, Value> =
        serde_saphyr::from_str(&text).with_context(|| file.display().to_string())?;
    config.remove("remoteClusters");
    // The file is overwritten in place, because the node has mounted this file.
    Ok(std::fs::write(&file, serde_json::to_string_pretty(&config)?)?)
}

fn restart(node: &Host) -> Result<()> {
    client::end_agent(node, Signal::TERM)?;
    client::start_agent(node)?;
    client::wait_established(node, PATIENCE)
}

fn at_rest(node: &Host) -> Result<f64> {
    std::thread::sleep(REST);
    megabytes(client::agent(node)?, "smaps_rollup", "Pss")
}

fn wait_routes(node: &Host) -> Result<()> {
    wait_for(&format!("routes to {PODS} pods"), PATIENCE, || {
        // Only the routes of pods: the route for the rest of the Subnet has no next hop.
        let routes = node.sh("ip -4 route show table 40000 | grep -c '^10[.]72[.][0-9.]* via ' || :")?;
        Ok(Seen::when(routes.trim() == PODS.to_string(), || routes.clone()))
    })
}

fn address(pod: usize) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 72, 1, 0)) + pod as u32)
}

fn instance_name(pod: usize) -> String {
    address(pod).to_string().replace('.', "-")
}

fn node_name(number: usize) -> String {
    format!("far-{number}")
}

fn api(cluster: &Cluster, kind: &str, plural: &str) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk("networking.alibaba.com", "v1", kind);
    let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
    match kind {
        "IPInstance" => Api::namespaced_with(cluster.client(), NAMESPACE, &resource),
        _ => Api::all_with(cluster.client(), &resource),
    }
}

/// Where a pod is: its label, and its binding.
fn place(node: &str) -> Value {
    json!({
        "metadata": {"labels": {"networking.alibaba.com/node": node}},
        "spec": {"binding": {"nodeName": node}},
    })
}

fn populate(west: &Cluster) -> Result<()> {
    west.wait(Pretended::new(west.client()).namespace(NAMESPACE))?;
    let infos = api(west, "NodeInfo", "nodeinfoes");
    flood(west, NODES, move |number| {
        let infos = infos.clone();
        async move {
            let ip = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 54, 0, 1)) + number as u32);
            let [a, b, c, d] = ip.octets();
            let info = json!({
                "apiVersion": "networking.alibaba.com/v1", "kind": "NodeInfo",
                "metadata": {"name": node_name(number)},
                "spec": {"vtepInfo": {
                    "ip": ip, "mac": format!("02:12:{a:02x}:{b:02x}:{c:02x}:{d:02x}"), "localIPs": [ip],
                }},
            });
            infos.create(&PostParams::default(), &serde_json::from_value(info)?).await?;
            Ok(())
        }
    })?;
    let instances = api(west, "IPInstance", "ipinstances");
    flood(west, PODS, move |pod| {
        let instances = instances.clone();
        async move {
            let (node, [_, _, high, low]) = (node_name(pod % NODES), address(pod).octets());
            let instance = json!({
                "apiVersion": "networking.alibaba.com/v1", "kind": "IPInstance",
                "metadata": {
                    "name": instance_name(pod), "namespace": NAMESPACE,
                    "labels": {"networking.alibaba.com/node": node, "networking.alibaba.com/network": "overlay"},
                },
                "spec": {
                    "network": "overlay", "subnet": "overlay-v4",
                    "address": {
                        "version": "4", "ip": format!("{}/16", address(pod)),
                        "mac": format!("02:00:00:00:{high:02x}:{low:02x}"),
                    },
                    "binding": {"nodeName": node, "podName": format!("pod-{pod}"), "podUID": format!("uid-{pod}")},
                },
            });
            instances.create(&PostParams::default(), &serde_json::from_value(instance)?).await?;
            Ok(())
        }
    })?;
    Ok(())
}

/// The times of all moves until the route, and those of the requests.
fn moves(west: &Cluster, node: &Host) -> Result<(Vec<f64>, Vec<f64>)> {
    let monitor = RouteMonitor::start(&node.ns)?;
    let instances = api(west, "IPInstance", "ipinstances");
    let (mut times, mut writes) = (Vec::new(), Vec::new());
    for turn in 0..MOVES {
        let pod = turn * (PODS / MOVES);
        let to = place(&node_name((pod + NODES / 2) % NODES));
        let began = Instant::now();
        west.wait(instances.patch(&instance_name(pod), &PatchParams::default(), &Patch::Merge(&to)))?;
        writes.push(ms(began.elapsed()));
        let changed = monitor.wait_after(IpNet::from(IpAddr::from(address(pod))), began, PATIENCE)?;
        times.push(ms(changed.duration_since(began)));
        std::thread::sleep(PACE);
    }
    Ok((times, writes))
}
