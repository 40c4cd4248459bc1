//! Additional features of a pod, and the operator's queries about it.

use std::net::IpAddr;
use std::process::Child;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::bed::{Bed, PATIENCE, lab};
use super::{Context, Test, Verdict, passed};
use crate::cni::{self, Sandbox};
use crate::pinger::{Flow, unreachable};
use crate::shell::{Seen, cmd, wait_for};
use crate::{client, packages};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "attach/bandwidth",
        about: "bandwidth limits apply in both directions, also after a restart of the agent, and \
                end with the pod",
        run: bandwidth,
    },
    Test {
        name: "attach/path",
        about: "trunkline pods POD --path DST shows the path of packets: out, to another pod, and back",
        run: path,
    },
    Test {
        name: "attach/two-interfaces",
        about: "a pod with interfaces in two Networks: each is reachable at its address, and is listed, checked and deleted separately",
        run: two_interfaces,
    },
];

/// iperf3's server in a pod, until the value is dropped.
struct Server(Child);

impl Server {
    fn start(pod: &Sandbox) -> Result<Self> {
        let mut server = cmd("ip", ["netns", "exec", pod.ns.name(), "iperf3", "--server"]);
        Ok(Server(server.stdout(std::process::Stdio::null()).spawn().context("iperf3")?))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Throughput in bits per second between the external host and a pod, in the chosen direction.
fn rate(bed: &Bed<'_>, pod: IpAddr, from_pod: bool) -> Result<f64> {
    let outside = bed.host("outside")?;
    let pod = pod.to_string();
    let mut args = vec!["--client", &pod, "--time", "3", "--omit", "1", "--json"];
    args.extend(from_pod.then_some("--reverse"));
    let report = wait_for(&format!("iperf3 in {pod} to answer"), PATIENCE, || {
        let output = outside.command("iperf3", &args).output()?;
        let report: Value = serde_json::from_slice(&output.stdout).context("iperf3's report")?;
        match report["error"].as_str() {
            Some(error) => Ok(Seen::NotYet(error.to_owned())),
            None => Ok(Seen::Yes(report)),
        }
    })?;
    report["end"]["sum_received"]["bits_per_second"].as_f64().context("iperf3's report without a rate")
}

fn bandwidth(context: &Context) -> Result<Verdict> {
    packages::need(["iperf3"])?;
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let (free, attached) = bed.attached("free", "rack1")?;
        let server = Server::start(&free)?;
        let unlimited = [rate(bed, attached.addresses[0], false)?, rate(bed, attached.addresses[0], true)?];
        drop(server);

        let (ingress, egress) = (20_000_000, 8_000_000);
        let mut conf = cni::trunkline(Some("rack1"));
        conf["runtimeConfig"]["bandwidth"] = json!({
            "ingressRate": ingress, "ingressBurst": 400_000, "egressRate": egress, "egressBurst": u32::MAX,
        });
        let pod = bed.pod("limited")?;
        let attached = cni::add(bed.fabric, &conf, &pod)?;
        let address = attached.addresses[0];
        let server = Server::start(&pod)?;
        let holds = |when: &str| -> Result<[f64; 2]> {
            let seen = [rate(bed, address, false)?, rate(bed, address, true)?];
            for (seen, limit, free) in [(seen[0], ingress, unlimited[0]), (seen[1], egress, unlimited[1])] {
                // The throughput must be much less than without the limit, and not far below the
                // limit.
                let limit = f64::from(limit);
                ensure!(
                    free > 4.0 * limit,
                    "without a limit only {free} bit/s pass: this is too slow for a test of limits"
                );
                ensure!(
                    seen < 1.5 * limit && seen > 0.3 * limit,
                    "{when}: {seen} bit/s where the limit is {limit}"
                );
            }
            Ok(seen)
        };
        let seen = holds("attached")?;
        let shown = bed.pods()?;
        let shown = shown.iter().find(|shown| shown.container_id == pod.container_id);
        let limit = shown.context("the pod is not listed")?.bandwidth;
        ensure!(
            limit.ingress.is_some_and(|limit| limit.rate == ingress as u64 && limit.burst == Some(400_000))
                && limit.egress.is_some_and(|limit| limit.rate == egress as u64 && limit.burst.is_none()),
            "{limit:?}"
        );

        // If another program removes the limits, the agent restores them. If no agent runs at that
        // time, the next start restores them.
        let mut check = conf.clone();
        check["prevResult"] = attached.result.clone();
        cni::run(bed.fabric, "CHECK", &check, &pod)?.result()?;
        let link = attached.result["interfaces"][0]["name"].as_str().context("no link")?;
        let taken = format!("tc qdisc del dev {link} root; tc qdisc del dev {link} clsact");
        bed.node()?.sh(&taken)?;
        wait_for("the limits to be restored", PATIENCE, || {
            let said = cni::run(bed.fabric, "CHECK", &check, &pod)?.outcome;
            Ok(Seen::when(said.is_ok(), || format!("{said:?}")))
        })?;
        holds("removed and restored")?;
        client::end_agent(bed.node()?, Signal::KILL)?;
        bed.node()?.sh(&taken)?;
        client::start_agent(bed.node()?)?;
        bed.established()?;
        cni::run(bed.fabric, "CHECK", &check, &pod)?.result().context("CHECK after the restart")?;
        holds("after a restart")?;
        drop(server);

        cni::del(bed.fabric, &conf, &pod)?;
        cni::del(bed.fabric, &conf, &free)?;
        bed.nothing_but(&[], &[])?;
        let left = bed.node()?.run("ip", ["-o", "link", "show", "type", "ifb"])?;
        // The agent's own `ifb` device drops packets for addresses that no pod here has.
        let left: Vec<&str> = left.lines().filter(|line| !line.contains("trunkline-drop")).collect();
        ensure!(left.is_empty(), "not removed: {left:?}");
        let mbit = |rates: [f64; 2]| format!("{:.1} in, {:.1} out", rates[0] / 1e6, rates[1] / 1e6);
        passed(format!("limits 20 in, 8 out: {} Mbit/s; without: {}", mbit(seen), mbit(unlimited)))
    })
}

fn path(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let (pod, attached) = bed.attached("asks", "rack1")?;
        let (_other, other) = bed.attached("asked", "global")?;
        // A name of the pod, a container ID and an address all identify it.
        let source = attached.addresses[0];
        for name in ["lab/node1-asks", "node1-asks", &pod.container_id, &source.to_string()] {
            let walk = client::path(bed.node()?, name, "192.0.2.10".parse()?)?;
            ensure!(walk.source == Some(source) && walk.end.starts_with("out by "), "{walk:?}");
            let [_, node] = &walk.forth[..] else { bail!("{walk:?}") };
            let route = node.route.as_ref().context("no route out")?;
            ensure!(route.hops.len() == 2 && route.table >= 10_000, "not by both ToRs: {route:?}");
            ensure!(route.hops.iter().filter(|hop| hop.taken).count() == 1, "{route:?}");
            let [back] = &walk.back[..] else { bail!("{walk:?}") };
            let back = back.route.as_ref().context("no route back")?;
            ensure!(back.hops[0].pod.as_deref() == Some("lab/node1-asks"), "{back:?}");
            ensure!(walk.advertised_to.len() == 2, "{:?}", walk.advertised_to);
        }
        let inside = client::path(bed.node()?, "lab/node1-asks", other.addresses[0])?;
        ensure!(inside.end.starts_with("into pod lab/node1-asked by tl"), "{inside:?}");
        let text = bed.node()?.run("trunkline", ["pods", "node1-asks", "--path", "192.0.2.10"])?;
        for words in
            ["in the pod", "lookup 39999", "no route", "decides", "the return path", "is advertised to"]
        {
            ensure!(text.contains(words), "the output lacks {words:?}: {text}");
        }
        let unknown = bed.node()?.run("trunkline", ["pods", "nobody", "--path", "192.0.2.10"]);
        let error = format!("{:#}", unknown.err().context("a missing pod has a path")?);
        ensure!(error.contains("no pod nobody"), "{error}");
        passed(inside.end)
    })
}

fn two_interfaces(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let (eth0, first) = bed.attached("twofold", "rack1")?;
        let mut net1 = eth0.clone();
        net1.ifname = "net1".to_owned();
        let conf_of = |network: &str| {
            let mut conf = cni::trunkline(Some(network));
            conf["cniVersion"] = json!("1.1.0");
            conf
        };
        let mut conf = conf_of("global");
        conf["name"] = json!("lab-global");
        let second = cni::add(bed.fabric, &conf, &net1)?;
        let again = cni::add(bed.fabric, &conf, &net1)?;
        ensure!(second.result == again.result, "{} became {}", second.result, again.result);
        let routes = |result: &Value| result["routes"].as_array().cloned().unwrap_or_default();
        let is_default = |route: &Value| matches!(route["dst"].as_str(), Some("0.0.0.0/0" | "::/0"));
        ensure!(routes(&first.result).iter().any(is_default), "{}", first.result);
        ensure!(
            !routes(&second.result).iter().any(is_default) && !routes(&second.result).is_empty(),
            "the second interface has a default route, or no routes at all: {}",
            second.result
        );

        // Reachable from outside at both addresses, and from a pod of each network through the
        // right interface.
        let outside = bed.host("outside")?.ns.clone();
        let reached = |addresses: &[IpAddr]| -> Result<()> {
            let flow =
                |to: &IpAddr| Flow { name: format!("outside to {to}"), from: outside.clone(), to: *to };
            let lost = unreachable(addresses.iter().map(flow).collect(), PATIENCE)?;
            ensure!(lost.is_empty(), "not reached: {lost:?}");
            Ok(())
        };
        let all = [&first.addresses[..], &second.addresses].concat();
        reached(&all)?;
        let (_other, other) = bed.attached("other", "global")?;
        for (to, from) in
            [(other.addresses[0], second.addresses[0]), ("192.0.2.10".parse()?, first.addresses[0])]
        {
            let walk = client::path(bed.node()?, "node1-twofold", to)?;
            ensure!(walk.source == Some(from), "to {to} from {:?} instead of {from}", walk.source);
        }
        let listed: Vec<String> = bed
            .pods()?
            .into_iter()
            .filter(|pod| pod.container_id == eth0.container_id)
            .map(|pod| format!("{} {} {}", pod.ifname, pod.network, pod.state))
            .collect();
        ensure!(listed == ["eth0 rack1 attached", "net1 global attached"], "{listed:?}");

        let check = |conf: &Value, pod: &Sandbox, result: &Value| -> Result<Value> {
            let mut check = conf.clone();
            check["prevResult"] = result.clone();
            check["prevResult"]["cniVersion"] = json!("1.1.0");
            cni::run(bed.fabric, "CHECK", &check, pod)?.result()
        };
        let conf0 = conf_of("rack1");
        check(&conf0, &eth0, &first.result)?;
        check(&conf, &net1, &second.result)?;
        // The same checks pass after a restart.
        client::end_agent(bed.node()?, Signal::KILL)?;
        client::start_agent(bed.node()?)?;
        bed.established()?;
        check(&conf0, &eth0, &first.result)?;
        check(&conf, &net1, &second.result)?;
        reached(&all)?;

        // GC of one configuration keeps the other's interface, and DEL of one interface keeps the
        // other.
        let mut gc = conf0.clone();
        gc["cni.dev/valid-attachments"] = json!([{ "containerID": eth0.container_id, "ifname": "eth0" }]);
        cni::run(bed.fabric, "GC", &gc, &eth0)?.result()?;
        check(&conf, &net1, &second.result).context("after a GC of the other configuration")?;
        cni::del(bed.fabric, &conf, &net1)?;
        check(&conf0, &eth0, &first.result).context("after the DEL of the second interface")?;
        reached(&first.addresses)?;
        let rules = eth0.ns.ip(["rule", "show"])?;
        ensure!(!rules.contains("1100"), "the second interface's rule was not removed: {rules}");
        let third = cni::add(bed.fabric, &conf, &net1)?;
        cni::del(bed.fabric, &conf0, &eth0)?;
        check(&conf, &net1, &third.result).context("after the DEL of the first interface")?;
        reached(&third.addresses)?;
        passed(format!("{:?} and {:?}", first.addresses, second.addresses))
    })
}
