//! Policies in a folder of manifests, without an API server. A selector matches a pod by its name
//! (the label `networking.alibaba.com/pod`), or by a label in the configuration of its ADD.

use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::table::{Cell, equal, wait_equal};
use super::traffic::{Port, Servers};
use super::world::{SOON, of_family};
use super::{Context, Test, Verdict};
use crate::cni::Sandbox;
use crate::netns::Namespace;
use crate::shell::{Seen, wait_for};
use crate::tests::bed::{Bed, lab};
use crate::tests::passed;
use crate::{client, cni};

pub(super) const TEST: Test = Test {
    name: "policies/standalone",
    about: "NetworkPolicies in a folder of manifests: pods selected by name and by label, SIGKILL, edits, a bad policy, removal",
    run,
};

fn policy(peer: &str, port: u16) -> String {
    labelled("networking.alibaba.com/pod", &format!("node1-{peer}"), port)
}

fn labelled(key: &str, value: &str, port: u16) -> String {
    format!(
        "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{ name: closed, namespace: lab }}
spec:
  podSelector: {{ matchLabels: {{ networking.alibaba.com/pod: node1-closed }} }}
  ingress:
    - from: [{{ podSelector: {{ matchLabels: {{ {key}: {value} }} }} }}]
      ports: [{{ port: {port} }}]
"
    )
}

fn run(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        crate::packages::need(["nftables"])?;
        let friend = bed.pod("friend")?;
        let mut conf = cni::trunkline(Some("rack1"));
        conf["args"] = json!({ "cni": { "labels": [{ "key": "app", "value": "web" }] } });
        cni::add(bed.fabric, &conf, &friend)?;
        let (far, _) = bed.attached("far", "rack1")?;
        let (closed, attached) = bed.attached("closed", "rack1")?;
        let outside = &bed.host("outside")?.ns;
        let _servers = Servers::start(&closed.ns)?;
        let clients: [(&str, &Namespace); 3] =
            [("friend", &friend.ns), ("far", &far.ns), ("outside", outside)];
        // The pairs of client and port that are open; every other pair is dropped.
        let cells = |is_open: &dyn Fn(&str, Port) -> bool| -> Result<Vec<Cell>> {
            let mut cells = Vec::new();
            for (name, from) in clients {
                for port in [Port::Tcp(80), Port::Tcp(8080), Port::Icmp] {
                    for v4 in [true, false] {
                        cells.push(Cell {
                            name: format!("{name} → closed"),
                            from: from.clone(),
                            to: of_family(&attached.addresses, v4)?,
                            port,
                            open: is_open(name, port),
                        });
                    }
                }
            }
            Ok(cells)
        };
        let all_open = cells(&|_, _| true)?;
        wait_equal(&all_open, SOON).context("without a policy")?;

        let manifest = bed.manifest("policies.yaml");
        manifest.write(&policy("friend", 80))?;
        let by_friend = cells(&|name, port| name == "friend" && port == Port::Tcp(80))?;
        wait_equal(&by_friend, SOON).context("with a policy")?;
        equal(&by_friend)?;

        manifest.write(&policy("far", 8080))?;
        let by_far = cells(&|name, port| name == "far" && port == Port::Tcp(8080))?;
        wait_equal(&by_far, SOON).context("after an edit")?;
        equal(&by_far)?;

        manifest.write(&labelled("app", "web", 80))?;
        wait_equal(&by_friend, SOON).context("by a label of the configuration")?;
        client::end_agent(bed.node()?, Signal::KILL)?;
        client::start_agent(bed.node()?)?;
        bed.established()?;
        equal(&by_friend).context("by a label, after SIGKILL of the agent")?;
        manifest.write(&policy("far", 8080))?;
        wait_equal(&by_far, SOON).context("by name again")?;

        manifest.write(&policy("friend", 80).replace("{ port: 80 }", "{ port: 80, endPort: 70 }"))?;
        let refusal = wait_for("the refusal of a bad policy", SOON, || {
            let status = bed.node()?.run("trunkline", ["status"])?;
            let line = status.lines().find(|line| line.contains("endPort")).map(str::to_owned);
            Ok(line.map_or_else(|| Seen::NotYet(status), Seen::Yes))
        })?;
        ensure!(refusal.contains("policies.yaml"), "{refusal}");
        equal(&by_far).context("after a bad policy")?;

        std::fs::remove_file(bed.fabric.file("one-rack/node1/manifests/policies.yaml"))?;
        wait_equal(&all_open, SOON).context("after the removal")?;
        let summary = client::status(bed.node()?)?.policies.context("the state of policies")?;
        ensure!(summary.policies == 0, "{summary:?}");
        connections_end(bed, &cni::trunkline(Some("rack1")), &closed, &all_open, &attached.addresses)?;
        passed(format!("{} connections; {}", 6 * all_open.len(), refusal.trim()))
    })
}

/// The tracked connections of a pod end with its DEL, also without a policy: the next pod with the
/// address may have one, and a translated connection (`hostPort`) would lead to it.
fn connections_end(
    bed: &Bed,
    conf: &Value,
    pod: &Sandbox,
    open: &[Cell],
    addresses: &[IpAddr],
) -> Result<()> {
    let node = bed.node()?;
    // A NAT chain switches connection tracking on.
    node.sh("nft 'add table inet lab; add chain inet lab nat { type nat hook prerouting priority 0; }'")?;
    let tracked = || {
        let all = node.sh("cat /proc/net/nf_conntrack")?;
        // IPv6 addresses have no short form there.
        let of_pod = addresses.iter().filter(|address| address.is_ipv4());
        let of_pod: Vec<String> = of_pod.map(|address| format!("dst={address} ")).collect();
        let lines = all.lines().filter(|line| of_pod.iter().any(|address| line.contains(address)));
        Ok::<_, anyhow::Error>(lines.map(str::to_owned).collect::<Vec<_>>())
    };
    wait_for("a tracked connection of the pod", SOON, || {
        wait_equal(open, SOON)?;
        let there = tracked()?;
        Ok(Seen::when(!there.is_empty(), || "none".to_owned()))
    })?;
    cni::del(bed.fabric, conf, pod)?;
    let left = tracked()?;
    node.sh("nft delete table inet lab")?;
    ensure!(left.is_empty(), "connections of a deleted pod are left: {left:?}");
    Ok(())
}
