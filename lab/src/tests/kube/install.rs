//! Runs `docs/install.md`: [`super::walk`] describes how, [`crate::kube::workloads`] runs the
//! chart's workloads. The topology `rack` has the page's ToRs.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::walk::Walk;
use super::{Test, Verdict, cluster};
use crate::fabric::Fabric;
use crate::host::Host;
use crate::kube::Cluster;
use crate::kube::assets::Assets;
use crate::kube::kubelet::Image;
use crate::kube::workloads::{Nodes, with_nodes};
use crate::pinger::{Flow, Pinger};
use crate::shell::{Seen, wait_for};
use crate::tests::{Context as Lab, passed};
use crate::{client, evidence, packages, podman, product, routers};

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/install",
    about: "docs/install.md followed on a real API server: helm, the chart's containers, a reachable pod, and the removal",
    run: install,
}];

const PATIENCE: Duration = Duration::from_secs(60);
pub(in crate::tests) const NODES: [&str; 2] = ["node1a", "node1b"];
/// The image's name on the page, with the chart's own version.
pub(super) const IMAGE: &str = "registry.example/trunkline:0.1.0";

/// Runs a test on a cluster with the nodes of the topology `rack`, with a page to walk.
pub(in crate::tests) fn with_page(
    context: &Lab,
    name: &str,
    page: &'static str,
    test: impl FnOnce(&Cluster, &Fabric, &Nodes<'_>, Walk) -> Result<Verdict>,
) -> Result<Verdict> {
    let helm = match Assets::helm(&context.place)? {
        Ok(helm) => helm,
        Err(missing) => return Ok(Verdict::Skipped(missing)),
    };
    // The image has its reference plugins.
    packages::need(podman::PACKAGES.into_iter().chain(["containernetworking-plugins"]))?;
    let (product, _) = (context.product()?, context.controller()?);
    cluster(context, name, |cluster| {
        let root = product::image_root(&context.place, &product, &cluster.folder().join("image"))?;
        let image = Image { name: IMAGE.to_owned(), root };
        let fabric = Fabric::up(&context.place, "rack", &product)?;
        fabric.watched(|fabric| {
            evidence::capture(fabric)?;
            let cluster: &Cluster = cluster;
            let walk = Walk::open(&context.place, cluster, page, &helm)?;
            with_nodes(cluster, fabric, &NODES, &image, |nodes| {
                nodes.write_programs(&walk.programs, cluster.kubectl_program())?;
                test(cluster, fabric, nodes, walk)
            })
        })
    })
}

fn install(context: &Lab) -> Result<Verdict> {
    with_page(context, "install", "docs/install.md", |cluster, fabric, nodes, mut page| {
        page.section("1. The image")?;

        page.section("2. The CRDs")?;
        for kind in ["networks", "subnets", "ipinstances", "nodeinfoes"] {
            established(cluster, kind)?;
        }
        // A mistake is refused with the fix, before any controller runs.
        let refused = cluster.apply(
            "{apiVersion: networking.alibaba.com/v1, kind: Network, metadata: {name: bad}, spec: {type: Underlay, mode: BGP, netID: 0}}",
        );
        ensure!(refused.is_err(), "a Network with netID 0 was accepted");

        page.section("3. The chart")?;
        for (what, name) in [("deployment", "trunkline-controller"), ("daemonset", "trunkline-agent")] {
            rolled_out(cluster, &format!("{what}/{name}"))?;
        }
        for node in NODES {
            let host = fabric.host(node)?;
            ensure!(
                host.sh("ls -A /opt/cni/bin /etc/cni/net.d")?.split_whitespace().eq([
                    "/etc/cni/net.d:",
                    "05-trunkline.conflist",
                    "/opt/cni/bin:",
                    "loopback",
                    "portmap",
                    "trunkline-cni"
                ]),
                "{node} has other files in its runtime's folders"
            );
            host.sh("echo '{}' | CNI_COMMAND=VERSION /opt/cni/bin/trunkline-cni")?;
            client::wait_answering(host)?;
        }
        webhook_answers(cluster)?;

        page.section("4. Networks")?;
        for node in NODES {
            client::wait_established(fabric.host(node)?, PATIENCE)?;
        }
        wait_text(
            cluster,
            &["get", "nodeinfoes", "-o", "jsonpath={..peers[*].state}"],
            "four sessions in the NodeInfos",
            |text| text.split_whitespace().eq(["Established"; 4]),
        )?;

        let said = page.section("5. Check")?;
        for words in ["rack1", "rack1-v4", "100.64.1.0/24", "node1a", "Established", "10.1.0.1", "10.2.0.1"] {
            ensure!(said.contains(words), "the output of the page's commands lacks {words:?}: {said}");
        }
        ensure!(!said.contains("the-racks-key"), "the key is shown: {said}");

        page.section("6. A pod")?;
        let (node, address) = address_of(cluster, "first")?;
        let pod = nodes.attached(&node, "first")?;
        let inside = pod.ns.ip(["-4", "addr", "show", "eth0"])?;
        ensure!(inside.contains(&format!("inet {address}/32")), "the pod lacks {address}: {inside}");
        let flow = Flow {
            name: "outside to first".to_owned(),
            from: fabric.host("outside")?.ns.clone(),
            to: address,
        };
        let mut pings = Pinger::start(vec![flow], Duration::from_millis(20))?;
        pings.settle(PATIENCE)?;
        let sent = crate::tests::bed::lost_nothing(pings)?;
        kept_address(cluster, nodes)?;

        for section in ["Keys: one rack or several", "What an agent may write", "Several tenants"] {
            page.section(section)?;
        }

        // The test restores no etcd here. The commands stop the controllers and start them again.
        page.section("After etcd was restored")?;
        rolled_out(cluster, "deployment/trunkline-controller")?;

        page.section("Uninstalling")?;
        nothing_left(cluster, fabric)?;
        passed(format!("{}; the first pod has {address}, {sent} pings", page.finish()?))
    })
}

pub(super) fn established(cluster: &Cluster, kind: &str) -> Result<()> {
    let crd = format!("crd/{kind}.networking.alibaba.com");
    cluster.kubectl(["wait", "--for=condition=Established", "--timeout=30s", &crd]).map(drop)
}

pub(in crate::tests) fn rolled_out(cluster: &Cluster, what: &str) -> Result<()> {
    cluster.kubectl(["-n", "trunkline-system", "rollout", "status", what, "--timeout=120s"]).map(drop)
}

/// Waits until kubectl prints the expected text.
pub(in crate::tests) fn wait_text(
    cluster: &Cluster,
    args: &[&str],
    what: &str,
    is: impl Fn(&str) -> bool,
) -> Result<String> {
    wait_for(what, PATIENCE, || {
        let text = crate::shell::run(&mut cluster.kubectl_command(args))?;
        Ok(if is(&text) { Seen::Yes(text) } else { Seen::NotYet(text) })
    })
}

/// The API server finds the webhook by its Service and trusts its certificate. The webhook refuses
/// a Subnet by a rule that is not in the CRDs, so the refusal comes from the webhook.
fn webhook_answers(cluster: &Cluster) -> Result<()> {
    let subnet = "{apiVersion: networking.alibaba.com/v1, kind: Subnet, metadata: {name: lost}, spec: {network: nowhere, range: {version: '4', cidr: 10.9.0.0/24}}}";
    wait_for("the webhook to refuse a Subnet of no Network", PATIENCE, || {
        let refused = cluster.apply(subnet).err().context("the Subnet was accepted")?;
        let text = format!("{refused:#}");
        let spoke = text.contains("denied the request") && text.contains("nowhere");
        Ok(Seen::when(spoke, || text))
    })
}

/// A pod's node and address, in the API server.
pub(super) fn address_of(cluster: &Cluster, pod: &str) -> Result<(String, IpAddr)> {
    let object: Value = serde_json::from_str(&cluster.kubectl(["get", "pod", pod, "-o", "json"])?)?;
    let node = object["spec"]["nodeName"].as_str().context("a pod without a node")?.to_owned();
    let address = object["status"]["podIP"].as_str().with_context(|| format!("{pod} has no address"))?;
    Ok((node, address.parse()?))
}

/// Creates and deletes a StatefulSet with a retained address. The address would block the deletion
/// of the CRDs.
fn kept_address(cluster: &Cluster, nodes: &Nodes<'_>) -> Result<()> {
    cluster.apply(STATEFUL_SET)?;
    wait_text(
        cluster,
        &["get", "pod", "db-0", "--ignore-not-found", "-o", "jsonpath={.status.podIP}"],
        "db-0's address",
        |text| !text.is_empty(),
    )?;
    let (node, _) = address_of(cluster, "db-0")?;
    nodes.attached(&node, "db-0")?;
    cluster.kubectl(["scale", "statefulset", "db", "--replicas=0"])?;
    cluster.kubectl(["delete", "pod", "db-0"])?;
    wait_text(
        cluster,
        &[
            "get",
            "ipinstances",
            "-o",
            "jsonpath={.items[*].spec.binding.nodeName}/{.items[*].spec.binding.podName}",
        ],
        "db-0's address to be kept",
        |text| {
            text.contains("db-0")
                && text.split('/').next().is_some_and(|nodes| nodes.split_whitespace().count() == 1)
        },
    )?;
    Ok(())
}

/// One pod, with an address that it keeps.
pub(super) const STATEFUL_SET: &str = "
apiVersion: apps/v1
kind: StatefulSet
metadata: { name: db, namespace: default }
spec:
  replicas: 1
  serviceName: db
  selector: { matchLabels: { app: db } }
  template:
    metadata: { labels: { app: db } }
    spec: { containers: [{ name: main, image: registry.k8s.io/pause:3.10 }] }
";

/// Checks the page's list of leftovers. Only Secrets, the Lease and the reference plugins are left:
/// no other object of the chart, no plugin of Trunkline, no CRDs.
fn nothing_left(cluster: &Cluster, fabric: &Fabric) -> Result<()> {
    let left = cluster.kubectl([
        "get",
        "clusterroles,clusterrolebindings,validatingwebhookconfigurations,mutatingwebhookconfigurations,validatingadmissionpolicies,\
         validatingadmissionpolicybindings,crds",
        "-o",
        "name",
    ])?;
    let ours: Vec<&str> =
        left.lines().filter(|name| name.contains("trunkline") || name.contains("alibaba")).collect();
    ensure!(ours.is_empty(), "left in the cluster: {ours:?}");
    let kinds = "deployments,daemonsets,services,configmaps,serviceaccounts,roles,rolebindings,poddisruptionbudgets,secrets,leases";
    let left = cluster.kubectl(["-n", "trunkline-system", "get", kinds, "-o", "name"])?;
    let mut left: Vec<&str> = left.lines().filter(|name| !name.contains("kube-root-ca.crt")).collect();
    left.sort_unstable();
    let said =
        ["lease.coordination.k8s.io/trunkline-controller", "secret/tor-keys", "secret/trunkline-webhook"];
    ensure!(left == said, "left in the namespace: {left:?}");
    for node in NODES {
        let host = fabric.host(node)?;
        wait_for(&format!("{node}'s containers to end"), PATIENCE, || {
            Ok(Seen::when(client::agents(host).is_empty(), || "an agent runs".to_owned()))
        })?;
        let files = host.sh("ls -A /opt/cni/bin /etc/cni/net.d")?;
        ensure!(
            files.split_whitespace().eq(["/etc/cni/net.d:", "/opt/cni/bin:", "loopback", "portmap"]),
            "{node} still has {files}"
        );
        no_routes(host)?;
    }
    for tor in ["tor1", "tor2"] {
        let routes = routers::kernel_routes(fabric.host(tor)?)?;
        ensure!(
            !routes.iter().any(|route| route.to_string().starts_with("100.64.1.")),
            "{tor} has {routes:?}"
        );
    }
    Ok(())
}

/// Checks that no pod's link or route is left.
fn no_routes(host: &Host) -> Result<()> {
    let left = host.sh("ip -o link | grep ': tl' || :; ip route show table 39999 2>/dev/null || :")?;
    ensure!(left.trim().is_empty(), "{}: {left}", host.name);
    Ok(())
}
