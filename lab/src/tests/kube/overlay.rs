//! The overlay with an API server: nodes publish their tunnel addresses in NodeInfos, and the
//! IPInstances show which pods are behind which node. No NodeInfo is written by hand and no block
//! is assigned to a node. So agents and controller have written everything that the pods'
//! connectivity needs.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use kube::Api;
use kube::api::{Patch, PatchParams};
use rustix::process::Signal;
use serde_json::{Value, json};
use trunkline_api::kube::NodeInfoObject;

use super::{Test, Verdict, cluster, crds, translations, webhook};
use crate::client;
use crate::fabric::Fabric;
use crate::kube::Cluster;
use crate::kube::controller::Replicas;
use crate::kube::nodes::{self, Attached};
use crate::kube::pods::{Plan, Pretended};
use crate::kube::rights::{self, Accounts, Unseen, WITHOUT_KEYS};
use crate::shell::{Seen, wait_for};
use crate::tests::{Context as Lab, passed};
use crate::topology::Image;

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/overlay",
    about: "overlay pods on three nodes, with only NodeInfos and IPInstances as source; one pod moves; no node claims foreign addresses, and no other program translates packets of BGP and VXLAN",
    run: overlay,
}];

const PATIENCE: Duration = Duration::from_secs(60);

const NAMESPACE: &str = "mixed";
/// Annotations of a pod in the overlay; other pods are in their rack's network.
const TUNNELLED: &[(&str, &str)] = &[("networking.alibaba.com/network-type", "Overlay")];

/// The agents' rights that this test does not use. The agents need the other rights for an overlay.
const UNSEEN: &[Unseen] = &[
    ("agent", "get", "pods", "addresses that hybridnet allocated: kube/agent"),
    ("agent", "list", "namespaces", "for a ServiceAdvertisement's namespaceSelector: kube/agent"),
    ("agent", "watch", "namespaces", "for a ServiceAdvertisement's namespaceSelector: kube/agent"),
    ("agent", "create", "events.events.k8s.io", "there is no fault: kube/agent"),
    ("agent", "list", "nodeservices.trunkline.io", "`trunkline services NAME`: observability/cluster"),
    ("agent", "patch", "events.events.k8s.io", "there is no fault: kube/agent"),
];

/// Each node's tunnel address.
const ENDS: [(&str, &str); 3] = [("node1", "10.51.0.11"), ("node2", "10.51.0.12"), ("node3", "10.52.0.13")];

fn overlay(context: &Lab) -> Result<Verdict> {
    let (product, controller) = (context.product()?, context.controller()?);
    cluster(context, "overlay", |cluster| {
        let fabric = Fabric::up(&context.place, "hybrid", &product)?;
        fabric.watched(|fabric| {
            for node in fabric.topology.with_image(Image::Node) {
                client::wait_answering(fabric.host(node)?)?;
            }
            tunnels(cluster, fabric, &controller)
        })
    })
}

fn tunnels(cluster: &Cluster, fabric: &Fabric, controller: &std::path::Path) -> Result<Verdict> {
    crds::install(cluster)?;
    let accounts = Accounts::create(cluster, &[WITHOUT_KEYS])?;
    for file in ["networks", "subnets"] {
        let file = fabric.file(&format!("hybrid/manifests/{file}.yaml"));
        cluster.apply(&std::fs::read_to_string(&file).with_context(|| file.display().to_string())?)?;
    }
    cluster.wait(Pretended::new(cluster.client()).namespace(NAMESPACE))?;
    let mut replicas = Replicas::standing_by_as(cluster, &accounts.controller, controller, 2, &[])?;
    replicas.wait_leader(cluster)?;
    let [one, other] = replicas.webhooks()[..] else { bail!("two replicas") };
    webhook::register(cluster, &mut replicas, one, other)?;
    let _doorways = nodes::join(cluster, fabric, |node| rights::agent_on(cluster, WITHOUT_KEYS, node))?;
    for (node, end) in ENDS {
        wait_for(&format!("NodeInfo {node} to have its end of the tunnels"), PATIENCE, || {
            let args = ["get", "nodeinfo", node, "-o", "json", "--ignore-not-found"];
            let info: Value = serde_json::from_str(&cluster.kubectl(args)?).unwrap_or_default();
            Ok(Seen::when(info["spec"]["vtepInfo"]["ip"] == end, || info["spec"].to_string()))
        })?;
    }

    translations::install(fabric, &ENDS.map(|(node, _)| node))?;

    let attach = |name: &str, node: &str, stateful_set, annotations| -> Result<Attached> {
        let plan = Plan {
            namespace: NAMESPACE.to_owned(),
            name: name.to_owned(),
            node: node.to_owned(),
            family: "DualStack",
            stateful_set,
        };
        nodes::attach(cluster, fabric, plan, annotations)
    };
    let mut pods = Vec::new();
    for (n, (node, _)) in ENDS.into_iter().enumerate() {
        let pod = attach(&format!("tunnelled-{n}"), node, None, TUNNELLED)?;
        let is_overlay = |address: &IpAddr| {
            let text = address.to_string();
            text.starts_with("10.70.") || text.starts_with("fd00:70::")
        };
        ensure!(
            pod.addresses.len() == 2 && pod.addresses.iter().all(is_overlay),
            "{}: {:?}",
            pod.plan.name,
            pod.addresses
        );
        pods.push(pod);
        pods.push(attach(&format!("routed-{n}"), node, None, &[])?);
    }
    let db = attach("db-0", "node1", Some("db"), TUNNELLED)?;
    let kept = db.addresses.clone();
    nodes::reach_each_other(&pods.iter().chain([&db]).collect::<Vec<_>>())?;

    let tunnelled = pods.first().context("a pod")?;
    translations::routers_are_closed(fabric, tunnelled)?;

    // The same addresses behind another node, in another rack.
    db.take_away(cluster, fabric)?;
    let db = attach("db-0", "node3", Some("db"), TUNNELLED)?;
    ensure!(db.addresses == kept, "db-0 had {kept:?} on node1 and has {:?} on node3", db.addresses);
    nodes::reach_each_other(&pods.iter().chain([&db]).collect::<Vec<_>>())?;
    for (node, _) in ENDS {
        nodes::tells_its_peers(cluster, node, 1)?;
        nodes::says(cluster, node, "False", "TrunklineServes")?;
    }
    let rights = accounts.check(cluster, &["agent"], &[UNSEEN, &rights::L2, &rights::POLICIES].concat())?;
    // From this point on, the test expects refusals.
    claims(cluster, fabric)?;
    replicas.still_running()?;
    passed(format!("{} pods on three nodes, all pairs of both families; {rights}", pods.len() + 1))
}

/// A node's own token cannot claim an address that the Node does not have. So such an address
/// appears in no other node's tables.
fn claims(cluster: &Cluster, fabric: &Fabric) -> Result<()> {
    let agent = cluster.client_of(&rights::agent_on(cluster, WITHOUT_KEYS, "node3")?)?;
    let infos: Api<NodeInfoObject> = Api::all(agent);
    let params = PatchParams::apply("trunkline-agent").force();
    let claim = |ip: &str, local: &str| {
        let object = json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": "NodeInfo", "metadata": { "name": "node3" },
            "spec": { "vtepInfo": { "ip": ip, "localIPs": [ip, local] } },
        });
        cluster.wait(infos.patch("node3", &params, &Patch::Apply(&object)))
    };
    let own = "10.52.0.13";
    for (ip, local, refused) in [
        (own, "8.8.8.8", "8.8.8.8"),
        (own, "10.52.0.1", "10.52.0.1"),
        (own, "10.51.0.11", "10.51.0.11"),
        (own, "10.70.0.77", "10.70.0.77"),
        (own, "10.96.0.1", "10.96.0.1"),
        ("10.51.0.11", own, "10.51.0.11"),
    ] {
        let Err(kube::Error::Api(status)) = claim(ip, local) else { bail!("node3 claimed {refused}") };
        let words = format!("{refused} is not an address of Node node3");
        ensure!(status.code == 403 && status.message.contains(&words), "{}", status.message);
        let table = fabric.host("node1")?.sh("ip route show table 40001")?;
        let is_there = table.lines().any(|route| route.split(' ').next() == Some(refused));
        ensure!(!is_there, "node1 sends to {refused} by a tunnel: {table}");
    }

    // The kubelet does not report this address of the host. The administrator lists the address,
    // and the agent claims it.
    let extra = "192.0.2.33";
    let link = "dev=$(ip -o addr | grep 10.52.0.13 | awk '{print $2; exit}')";
    fabric.host("node3")?.sh(&format!("{link}; ip addr add {extra}/32 dev $dev"))?;
    let annotation = format!("networking.alibaba.com/extra-local-ips={extra}");
    cluster.kubectl(["annotate", "node", "node3", &annotation])?;
    // Another node trusts no annotation of a Node beyond the prefixes of its own configuration.
    let node1 = fabric.host("node1")?;
    wait_for("node1 to ignore the listed address", PATIENCE, || {
        let claims = client::status(node1)?.ignored_claims;
        let is_ignored = claims
            .faults
            .iter()
            .any(|fault| fault.contains(&format!("{extra} is outside of nodeAddressCIDRs")));
        Ok(Seen::when(is_ignored, || format!("{claims:?}")))
    })?;
    let table = node1.sh("ip route show table 40001")?;
    ensure!(!table.contains(extra), "node1 sends to {extra} by a tunnel: {table}");
    // The administrator adds the prefix.
    let file = "/etc/trunkline/agent.yaml";
    let mut config: Value = serde_json::from_str(&node1.sh(&format!("cat {file}"))?)?;
    config["nodeAddressCIDRs"] =
        json!(["10.51.0.0/24", "10.52.0.0/24", "fd00:51::/64", "fd00:52::/64", format!("{extra}/32")]);
    node1.sh(&format!("echo '{config}' >{file}"))?;
    client::end_agent(node1, Signal::TERM)?;
    client::start_agent(node1)?;
    wait_for("node1 to send to the listed address by a tunnel", PATIENCE, || {
        let table = node1.sh("ip route show table 40001")?;
        Ok(Seen::when(table.contains(extra), || table))
    })?;
    let claims = client::status(node1)?.ignored_claims;
    ensure!(claims.addresses == 0, "with the prefixes of all nodes: {claims:?}");
    Ok(())
}
