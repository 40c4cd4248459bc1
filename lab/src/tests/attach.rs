//! Tests of the plugin's commands with a running agent, in normal and difficult cases.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::bed::{PATIENCE, lab};
use super::greeter::{Greeter, greeted};
use super::{Context, Test, Verdict, passed};
use crate::cni::Sandbox;
use crate::pinger::{Flow, unreachable};
use crate::shell::{Seen, wait_for};
use crate::{client, cni};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "attach/add-twice",
        about: "ADD for a container that is attached gives the same result",
        run: add_twice,
    },
    Test {
        name: "attach/del",
        about: "DEL twice, without netns, without record: success, and nothing is left",
        run: del,
    },
    Test {
        name: "attach/pool-exhausted",
        about: "an empty pool is an error with subnet and counts",
        run: pool_exhausted,
    },
    Test {
        name: "attach/named-address",
        about: "a named address is allocated, and to one container only",
        run: named_address,
    },
    Test {
        name: "attach/check-gc-status",
        about: "CHECK, GC and STATUS follow the specification",
        run: check_gc_status,
    },
    Test {
        name: "attach/versions",
        about: "results have the form of each version of the specification",
        run: versions,
    },
    Test {
        name: "attach/chain",
        about: "the plugin works in a chain before portmap and tuning, and after another plugin",
        run: chain,
    },
    Test {
        name: "attach/no-agent",
        about: "without an agent, ADD has a clear error and DEL can be repeated",
        run: no_agent,
    },
    Test {
        name: "attach/second-agent",
        about: "a second agent on the host refuses with a message",
        run: second_agent,
    },
    Test {
        name: "attach/not-ready",
        about: "a pod without an advertised route is not ready, and the error has the reason",
        run: not_ready,
    },
    Test { name: "attach/nat", about: "outgoing NAT, if the subnet has outgoing NAT", run: nat },
];

fn add_twice(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let (pod, first) = bed.attached("twice", "rack1")?;
        let again = cni::add(bed.fabric, &cni::trunkline(Some("rack1")), &pod)?;
        ensure!(first.result == again.result, "{} became {}", first.result, again.result);
        bed.nothing_but(&[&pod], &first.addresses)?;
        passed(format!("{:?}", first.addresses))
    })
}

fn del(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let conf = cni::trunkline(Some("rack1"));
        let (twice, _) = bed.attached("twice", "rack1")?;
        cni::del(bed.fabric, &conf, &twice)?;
        cni::del(bed.fabric, &conf, &twice).context("a second time")?;

        let (unnamed, _) = bed.attached("unnamed", "rack1")?;
        cni::run_with_netns(bed.fabric, "DEL", &conf, &unnamed, "")?.result().context("without CNI_NETNS")?;

        let (gone, _) = bed.attached("gone", "rack1")?;
        gone.ns.delete()?;
        cni::del(bed.fabric, &conf, &gone).context("its namespace is gone")?;

        let unknown = bed.pod("unknown")?;
        cni::del(bed.fabric, &conf, &unknown).context("never attached")?;
        bed.nothing_but(&[], &[])?;
        passed("")
    })
}

fn pool_exhausted(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        // A subnet's CIDR cannot be changed under a running agent.
        client::end_agent(bed.node()?, Signal::TERM)?;
        bed.manifest("subnets.yaml").edit("10.200.0.0/16", "10.200.0.0/29")?;
        client::start_agent(bed.node()?)?;
        bed.established()?;
        let subnet = || -> Result<_> {
            let status = client::status(bed.node()?)?;
            let subnets = status.networks.into_iter().flat_map(|n| n.subnets);
            subnets.into_iter().find(|s| s.name == "global-v4").context("no subnet global-v4")
        };
        let total = wait_for("the small pool", PATIENCE, || {
            let total = subnet()?.total;
            Ok(if total < 10 { Seen::Yes(total) } else { Seen::NotYet(format!("{total} addresses")) })
        })?;
        let mut pods = Vec::new();
        for i in 0..total {
            pods.push(bed.attached(&format!("fits{i}"), "global")?.0);
        }
        ensure!(subnet()?.free == 0, "{:?}", subnet()?);
        let one_more = bed.pod("one-more")?;
        let conf = cni::trunkline(Some("global"));
        let error = cni::run(bed.fabric, "ADD", &conf, &one_more)?.error()?;
        for word in ["global-v4".to_owned(), total.to_string()] {
            ensure!(error.text.contains(&word), "the error lacks {word}: {error}");
        }
        cni::del(bed.fabric, &conf, &pods[0])?;
        cni::add(bed.fabric, &conf, &one_more).context("after an address came back")?;
        passed(error.to_string())
    })
}

fn named_address(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let conf = cni::trunkline(Some("rack1"));
        let mut pod = bed.pod("named")?;
        pod.args = "IP=10.201.0.77".to_owned();
        let attached = cni::add(bed.fabric, &conf, &pod)?;
        let wanted: IpAddr = "10.201.0.77".parse()?;
        ensure!(attached.addresses.contains(&wanted), "{:?}", attached.addresses);
        let mut other = bed.pod("other")?;
        other.args = pod.args.clone();
        let error = cni::run(bed.fabric, "ADD", &conf, &other)?.error()?;
        ensure!(error.text.contains("10.201.0.77"), "{error}");
        let mut outside = bed.pod("outside")?;
        outside.args = "IP=10.99.0.1".to_owned();
        let refused = cni::run(bed.fabric, "ADD", &conf, &outside)?.error()?;
        ensure!(refused.text.contains("10.99.0.1"), "{refused}");
        bed.nothing_but(&[&pod], &attached.addresses)?;
        passed(error.to_string())
    })
}

fn check_gc_status(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let mut conf = cni::trunkline(Some("rack1"));
        conf["cniVersion"] = json!("1.1.0");
        let (kept, attached) = bed.attached("kept", "rack1")?;
        let (_left, _) = bed.attached("left", "rack1")?;

        let mut check = conf.clone();
        check["prevResult"] = attached.result.clone();
        check["prevResult"]["cniVersion"] = json!("1.1.0");
        cni::run(bed.fabric, "CHECK", &check, &kept)?.result().context("CHECK of a complete pod")?;
        kept.ns.ip(["route", "flush", "default"])?;
        let error = cni::run(bed.fabric, "CHECK", &check, &kept)?
            .error()
            .context("CHECK without the default route")?;

        let mut gc = conf.clone();
        gc["cni.dev/valid-attachments"] =
            json!([{ "containerID": kept.container_id, "ifname": kept.ifname }]);
        cni::run(bed.fabric, "GC", &gc, &kept)?.result()?;
        bed.nothing_but(&[&kept], &attached.addresses)?;

        cni::run(bed.fabric, "STATUS", &conf, &kept)?.result()?;
        client::end_agent(bed.node()?, Signal::TERM)?;
        let status =
            cni::run(bed.fabric, "STATUS", &conf, &kept)?.error().context("STATUS without an agent")?;
        ensure!(status.code == 50, "STATUS without an agent is {status}, 50 is expected");
        passed(error.to_string())
    })
}

fn versions(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let probe = bed.pod("probe")?;
        let versions = cni::run(bed.fabric, "VERSION", &cni::trunkline(None), &probe)?.result()?;
        let supported = versions["supportedVersions"].as_array().cloned().unwrap_or_default();
        for version in ["0.4.0", "1.0.0", "1.1.0"] {
            ensure!(supported.contains(&json!(version)), "VERSION returns {versions}");
            let mut conf = cni::trunkline(Some("rack1"));
            conf["cniVersion"] = json!(version);
            let pod = bed.pod(&format!("v{}", version.replace('.', "")))?;
            let result = cni::add(bed.fabric, &conf, &pod)?.result;
            ensure!(result["cniVersion"] == version, "requested {version}: {result}");
            // Version 0.4.0 of the specification has a version in each address; later versions do
            // not.
            let has = result["ips"][0].get("version").is_some();
            ensure!(has == (version == "0.4.0"), "requested {version}: {result}");
            cni::del(bed.fabric, &conf, &pod)?;
        }
        let mut conf = cni::trunkline(None);
        conf["cniVersion"] = json!("9.9.9");
        let error = cni::run(bed.fabric, "ADD", &conf, &probe)?.error()?;
        ensure!(error.code == 1, "an unknown version is {error}; 1 is expected");
        passed("0.4.0, 1.0.0, 1.1.0")
    })
}

fn chain(context: &Context) -> Result<Verdict> {
    crate::packages::need(["containernetworking-plugins", "iptables"])?;
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let ours = cni::trunkline(Some("global"));
        let portmap = json!({
            "cniVersion": "1.0.0", "name": "lab", "type": "portmap", "capabilities": { "portMappings": true },
            "runtimeConfig": { "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }] },
        });
        let tuning = json!({
            "cniVersion": "1.0.0", "name": "lab", "type": "tuning", "sysctl": { "net.ipv4.tcp_keepalive_time": "123" },
        });
        let pod = bed.pod("chained")?;
        let chain = [ours.clone(), portmap, tuning];
        let result = cni::run_chain(bed.fabric, "ADD", &chain, &pod)?;
        ensure!(cni::addresses(&result)?.len() == 1, "the chain's result: {result}");
        let set = crate::shell::run(&mut crate::shell::cmd(
            "ip",
            ["netns", "exec", pod.ns.name(), "cat", "/proc/sys/net/ipv4/tcp_keepalive_time"],
        ))?;
        ensure!(set.trim() == "123", "tuning did not set its sysctl: {set}");
        // The ToR connects through the node's port.
        let _server = Greeter::listen(&pod.ns, 80)?;
        let seen = greeted(&bed.host("tor1")?.ns, "10.1.0.11:8080".parse()?).context("the mapped port")?;
        ensure!(seen == "10.1.0.1".parse::<IpAddr>()?, "the pod saw {seen}");
        cni::run_chain(bed.fabric, "DEL", &chain, &pod)?;

        // The plugin runs after another plugin, and keeps that plugin's result.
        let second = bed.pod("behind")?;
        let mut behind = ours;
        behind["prevResult"] = json!({
            "cniVersion": "1.0.0",
            "interfaces": [{ "name": "lo", "mac": "00:00:00:00:00:00", "sandbox": second.ns.path() }],
            "ips": [{ "address": "127.0.0.1/8", "interface": 0 }],
        });
        let merged = cni::run(bed.fabric, "ADD", &behind, &second)?.result()?;
        let names: Vec<&Value> =
            merged["interfaces"].as_array().into_iter().flatten().map(|i| &i["name"]).collect();
        ensure!(
            names.contains(&&json!("lo")) && names.contains(&&json!("eth0")),
            "prevResult was lost: {merged}"
        );
        ensure!(cni::addresses(&merged)?.len() == 2, "prevResult's address was lost: {merged}");
        passed("portmap reached from the ToR, tuning applied, prevResult kept")
    })
}

fn no_agent(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let conf = cni::trunkline(Some("rack1"));
        let (pod, attached) = bed.attached("before", "rack1")?;
        client::end_agent(bed.node()?, Signal::TERM)?;
        let other = bed.pod("meanwhile")?;
        let error = cni::run(bed.fabric, "ADD", &conf, &other)?.error()?;
        for word in ["agent", "/run/trunkline/agent.sock"] {
            ensure!(error.text.contains(word), "the error lacks {word:?}: {error}");
        }
        let flows = attached.addresses.iter().map(|a| Flow {
            name: format!("outside to {a}"),
            from: bed.fabric.host("outside").map(|h| h.ns.clone()).unwrap_or_else(|_| pod.ns.clone()),
            to: *a,
        });
        let lost = unreachable(flows.collect(), Duration::from_secs(5))?;
        ensure!(lost.is_empty(), "not reached while no agent runs: {lost:?}");
        client::start_agent(bed.node()?)?;
        bed.established()?;
        cni::add(bed.fabric, &conf, &other)?;
        cni::del(bed.fabric, &conf, &pod)?;
        passed(error.to_string())
    })
}

fn second_agent(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let node = bed.node()?;
        let first = client::agent(node)?;
        let args = ["10", "trunkline", "agent", "--config", "/etc/trunkline/agent.yaml"];
        let second = node.command("timeout", args).output()?;
        let said = [&second.stdout[..], &second.stderr[..]].concat();
        let said = String::from_utf8_lossy(&said).trim().to_owned();
        ensure!(
            !second.status.success() && second.status.code() != Some(124),
            "the second agent ran: {said}"
        );
        ensure!(said.contains("already") || said.contains("another"), "the message has no reason: {said}");
        ensure!(client::agent(node)? == first, "the first agent was replaced");
        let peers = client::peers(node)?;
        ensure!(peers.iter().all(|p| p.is_established() && p.flaps == 0), "{peers:?}");
        passed(said.lines().last().unwrap_or_default())
    })
}

fn not_ready(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        for tor in ["tor1", "tor2"] {
            crate::daemons::vtysh(
                bed.host(tor)?,
                &["configure terminal", "router bgp", "neighbor 10.1.0.11 shutdown"],
            )
            .or_else(|_| {
                crate::daemons::vtysh(
                    bed.host(tor)?,
                    &["configure terminal", "router bgp", "neighbor 10.2.0.11 shutdown"],
                )
            })?;
        }
        wait_for("both sessions to be down", PATIENCE, || {
            let peers = client::peers(bed.node()?)?;
            let down = peers.iter().all(|p| !p.is_established());
            Ok(Seen::when(down, || format!("{:?}", peers.iter().map(|p| p.state).collect::<Vec<_>>())))
        })?;
        let pod = bed.pod("early")?;
        let conf = cni::trunkline(Some("rack1"));
        let answer = cni::run(bed.fabric, "ADD", &conf, &pod)?;
        let took = answer.took;
        let error = answer.error()?;
        for word in ["10.1.0.1", "10.2.0.1"] {
            ensure!(error.text.contains(word), "the error does not name {word}: {error}");
        }
        cni::del(bed.fabric, &conf, &pod)?;
        bed.nothing_but(&[], &[])?;
        passed(format!("{error}; after {:.1} s of 10", took.as_secs_f64()))
    })
}

fn nat(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let outside = bed.host("outside")?;
        outside.sh(
            "nft add table inet seen; nft 'add chain inet seen in { type filter hook input priority 0; }'; \
             nft add rule inet seen in ip saddr 10.200.0.0/16 icmp type echo-request counter; \
             nft add rule inet seen in ip saddr { 10.1.0.11, 10.2.0.11 } icmp type echo-request counter",
        )?;
        let counters = || -> Result<Vec<u64>> {
            let text = outside.run("nft", ["list", "table", "inet", "seen"])?;
            let count = |l: &str| l.split("packets ").nth(1)?.split_whitespace().next()?.parse().ok();
            Ok(text.lines().filter_map(count).collect())
        };
        // The test needs two pods: a connection's first packet decides about NAT, and a ping's
        // connection lasts half a minute.
        let ((before, _), (after, _)) = (bed.attached("before", "global")?, bed.attached("after", "global")?);
        let ping = |pod: &Sandbox, what: &str| -> Result<()> {
            let flow = Flow { name: what.to_owned(), from: pod.ns.clone(), to: "192.0.2.10".parse()? };
            let lost = unreachable(vec![flow], Duration::from_secs(5))?;
            if !lost.is_empty() {
                bail!("no answer from 192.0.2.10 {what}")
            }
            Ok(())
        };
        ping(&before, "without NAT")?;
        let plain = counters()?;
        ensure!(
            plain.len() == 2 && plain[0] > 0 && plain[1] == 0,
            "without NAT the host outside counted {plain:?}"
        );
        bed.manifest("subnets.yaml").edit(
            "    cidr: 10.200.0.0/16\n",
            "    cidr: 10.200.0.0/16\n  config:\n    autoNatOutgoing: true\n",
        )?;
        wait_for("the masquerading", PATIENCE, || {
            let rules = bed.node()?.sh("nft list ruleset")?;
            Ok(Seen::when(rules.contains("masquerade"), || rules))
        })?;
        ping(&after, "with NAT")?;
        let with = counters()?;
        ensure!(with[1] > 0, "with NAT the host outside counted {with:?}");
        passed("")
    })
}
