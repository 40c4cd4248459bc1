//! Attachment to a VLAN in both ways, compared with the `bridge` and `ipvlan` plugins with
//! `host-local`. Also the throughput of two pods on IPVLAN, compared with two plain hosts on the
//! same VLAN. Everything runs in one user-mode kernel, and the ADDs of the contenders alternate.
//!
//! Before a pod is ready, its gateway must have answered, and no other host may have claimed its
//! address. The reference plugins check neither. The check for another owner is a wait without
//! work, and is reported separately.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::{Value, json};

use super::attach::{Contender, sandboxes};
use super::traffic::iperf;
use super::{Bound, report, warn_if_busy};
use crate::cni::{self, Sandbox, plugin_path};
use crate::demo::ms;
use crate::fabric::{Fabric, Place};
use crate::host::Host;
use crate::progress::step;
use crate::stats::{percentile, round};
use crate::{client, packages, product, uml};

/// Namespaces of each contender.
const NAMESPACES: usize = 60;
/// Number of ADDs with the wait.
const WITH_WAIT: usize = 10;
/// Rounds of iperf3, once for each side.
const ROUNDS: usize = 3;
const SECONDS: u32 = 3;
/// Time limit for everything.
const BOUND: Duration = Duration::from_secs(900);

/// Milliseconds.
#[derive(Debug, Clone, Serialize)]
struct Side {
    name: &'static str,
    add_p50_ms: f64,
    add_p99_ms: f64,
    del_p50_ms: f64,
}

#[derive(Debug, Clone, Serialize)]
struct Figures {
    bench: &'static str,
    namespaces: usize,
    /// Trunkline's and the reference, by attachment.
    veth: Side,
    bridge: Side,
    ipvlan: Side,
    reference_ipvlan: Side,
    /// Trunkline's time divided by the reference's.
    ratio_veth: f64,
    ratio_ipvlan: f64,
    /// Time of an ADD by ipvlan with the check for another owner of the address. The other figures
    /// do not include this wait.
    ipvlan_with_wait_p50_ms: f64,
    /// One TCP connection, Mbit/s.
    pods_mbit: f64,
    hosts_mbit: f64,
    ratio_pods_to_hosts: f64,
    bounds: Vec<Bound>,
}

/// `cargo lab bench l2`: runs the part that needs a user-mode kernel in one.
pub(crate) fn bench(place: &Place, json: bool) -> Result<bool> {
    packages::need_root("cargo lab bench l2")?;
    packages::need(packages::ALWAYS.into_iter().chain(["iperf3", "containernetworking-plugins"]))?;
    product::build(place, product::Profile::Release)?;
    warn_if_busy();
    let lab = uml::own_program(place)?;
    let mut command =
        vec![lab.to_str().context("the lab's path is not text")?, "user-mode-kernel", "bench-l2"];
    command.extend(json.then_some("--json"));
    let ended = uml::run(place, "bench-l2", &command, BOUND)?;
    print!("{}", ended.stdout);
    Ok(ended.status == 0)
}

/// The part of `bench` inside the kernel.
pub(crate) fn inside(place: &Place, json: bool) -> Result<bool> {
    let product = product::folder(place);
    let fabric = step("starting the topology", || Fabric::up(place, "l2-bench", &product))?;
    let figures = fabric.watched(measure)?;
    let side = |s: &Side| {
        let add = format!("{:.2} / {:.2} ms", s.add_p50_ms, s.add_p99_ms);
        vec![s.name.to_owned(), add, format!("{:.2} ms", s.del_p50_ms)]
    };
    let head = ["", "ADD p50 / p99", "DEL p50"].map(str::to_owned).to_vec();
    let f = &figures;
    let mut words = crate::progress::table(&[
        head,
        side(&f.bridge),
        side(&f.veth),
        side(&f.reference_ipvlan),
        side(&f.ipvlan),
    ]);
    words.push_str(&format!(
        "\n  ratio of p50: veth {:.2}, ipvlan {:.2}; ipvlan with the wait for another owner of the address {:.0} ms\n  iperf3: pods on ipvlan {:.0} Mbit/s, plain hosts {:.0} Mbit/s: {:.2}\n",
        f.ratio_veth, f.ratio_ipvlan, f.ipvlan_with_wait_p50_ms, f.pods_mbit, f.hosts_mbit, f.ratio_pods_to_hosts
    ));
    report(json, f, &words, &f.bounds)
}

fn measure(fabric: &Fabric) -> Result<Figures> {
    let reference = fabric.host("reference")?;
    let ours = |node: &str| -> Result<Contender<'_>> {
        let host = fabric.host(node)?;
        client::wait_answering(host)?;
        Ok(Contender { host, conf: cni::trunkline(Some("pods")), path: plugin_path(host) })
    };
    let theirs = |conf: Value| Contender { host: reference, conf, path: plugin_path(reference) };
    let contenders = [
        ours("node1")?,
        theirs(plugin(
            reference,
            "10.250.0.0/16",
            json!({ "type": "bridge", "bridge": "cni0", "isGateway": true }),
        )),
        ours("node2")?,
        theirs(plugin(
            reference,
            "10.251.0.0/16",
            json!({ "type": "ipvlan", "master": "eth1.21", "mode": "l2" }),
        )),
    ];
    let pods: Vec<Vec<Sandbox>> = step(&format!("{NAMESPACES} namespaces for each"), || {
        let first = |i: usize| i * NAMESPACES;
        let nodes = ["node1", "reference", "node2", "reference"].into_iter().enumerate();
        nodes.map(|(i, node)| sandboxes(fabric, node, first(i), NAMESPACES)).collect()
    })?;
    let mut sides = ["trunkline veth", "bridge + host-local", "trunkline ipvlan", "ipvlan + host-local"]
        .map(|name| Side { name, add_p50_ms: 0.0, add_p99_ms: 0.0, del_p50_ms: 0.0 });
    for verb in ["ADD", "DEL"] {
        let times = step(&format!("{verb}, alternating"), || turns(&contenders, &pods, verb))?;
        for (side, times) in sides.iter_mut().zip(&times) {
            if verb == "ADD" {
                side.add_p50_ms = percentile(times, 50.0);
                side.add_p99_ms = percentile(times, 99.0);
            } else {
                side.del_p50_ms = percentile(times, 50.0);
            }
        }
    }
    let with_wait = step("ADD with the wait for another owner", || {
        let waiting = ours("node3")?;
        let pods = sandboxes(fabric, "node3", 0, WITH_WAIT)?;
        pods.iter()
            .map(|pod| Ok(ms(waiting.host.within(|| waiting.run("ADD", pod))?.took)))
            .collect::<Result<Vec<_>>>()
    })?;
    let (pods_mbit, hosts_mbit) = step("iperf3, alternating", || wire(fabric))?;
    let [veth, bridge, ipvlan, reference_ipvlan] = sides;
    let ratio_veth = round(veth.add_p50_ms / bridge.add_p50_ms);
    let ratio_ipvlan = round(ipvlan.add_p50_ms / reference_ipvlan.add_p50_ms);
    let ratio_pods_to_hosts = round(pods_mbit / hosts_mbit);
    Ok(Figures {
        bench: "l2",
        namespaces: NAMESPACES,
        veth,
        bridge,
        ipvlan,
        reference_ipvlan,
        ratio_veth,
        ratio_ipvlan,
        ipvlan_with_wait_p50_ms: percentile(&with_wait, 50.0),
        pods_mbit,
        hosts_mbit,
        ratio_pods_to_hosts,
        bounds: vec![
            Bound::at_most("ADD p50 by veth against bridge + host-local", ratio_veth, 0.5),
            Bound::at_most("ADD p50 by ipvlan against ipvlan + host-local", ratio_ipvlan, 0.5),
            Bound::at_most(
                "iperf3 between plain hosts against ipvlan pods (0.9 of the hosts' speed)",
                1.0 / ratio_pods_to_hosts,
                1.0 / 0.9,
            ),
        ],
    })
}

/// A reference plugin, with its records on the same disk as Trunkline's.
fn plugin(host: &Host, subnet: &str, mut conf: Value) -> Value {
    conf["cniVersion"] = json!("1.0.0");
    conf["name"] = json!(format!("reference-{}", conf["type"].as_str().unwrap_or_default()));
    conf["ipam"] = json!({
        "type": "host-local",
        "ranges": [[{ "subnet": subnet }]],
        "routes": [{ "dst": "0.0.0.0/0" }],
        "dataDir": host.folder.join("host-local"),
    });
    conf
}

/// Milliseconds of a command for each contender's pods. Each round begins with another contender.
fn turns(contenders: &[Contender<'_>], pods: &[Vec<Sandbox>], verb: &str) -> Result<Vec<Vec<f64>>> {
    let mut times = vec![Vec::new(); contenders.len()];
    for round in 0..NAMESPACES {
        crate::interrupt::check()?;
        for turn in 0..contenders.len() {
            let who = (round + turn) % contenders.len();
            let (contender, pod) = (&contenders[who], pods[who].get(round).context("a pod")?);
            let answer = contender.host.within(|| contender.run(verb, pod))?;
            times[who].push(ms(answer.took));
        }
    }
    Ok(times)
}

/// Mbit/s between two pods on two nodes, and between two hosts, on the same VLAN of the same
/// switch; medians.
fn wire(fabric: &Fabric) -> Result<(f64, f64)> {
    let conf = cni::trunkline(Some("pods"));
    let pod = |node: &str| -> Result<_> {
        let pod = Sandbox::create(fabric, node, "iperf")?;
        let attached = cni::add(fabric, &conf, &pod)?;
        Ok((pod.ns, attached.addresses.first().context("an address")?.to_string()))
    };
    let (from, (to, address)) = (pod("node2")?.0, pod("node3")?);
    let (host, other) = (fabric.host("host")?.ns.clone(), fabric.host("reference")?.ns.clone());
    let (mut pods, mut hosts) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        pods.push(iperf(&from, &to, &address, SECONDS)?);
        hosts.push(iperf(&host, &other, "10.21.0.201", SECONDS)?);
    }
    Ok((percentile(&pods, 50.0), percentile(&hosts, 50.0)))
}
