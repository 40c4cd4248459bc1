//! The agent with an API server as its source: one node between two ToRs. The test takes the
//! controller's place and creates the IPInstances for its pods. The agent has the Helm chart's
//! rights, and uses each of them.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use trunkline_api::control::ClusterStatus;

use super::{Test, Verdict, cluster};
use crate::client;
use crate::cni::{self, Sandbox};
use crate::kube::Cluster;
use crate::kube::doorway::Doorway;
use crate::kube::pods::{Plan, Pretended};
use crate::kube::rights::{self, Accounts, Rack, agent_on};
use crate::shell::{Seen, wait_for};
use crate::tests::bed::{Bed, Manifest, lab, lost_nothing};
use crate::tests::{Context, passed};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "kube/agent",
        about: "pods get the addresses of their IPInstances, also late ones; a bad object does not \
                affect good ones; a key in a Secret changes live",
        run: addresses,
    },
    Test {
        name: "kube/agent-outage",
        about: "without the API server, pods are attached and detached, the agent is killed and \
                started, and no ping is lost",
        run: outage,
    },
];

pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// The key of the topology's ToRs.
pub(super) const KEY: &str = "one-rack-lab-secret";

/// The agents that read the Secret with the ToRs' key.
const AGENTS: Rack = ("trunkline-agent", &["tor"]);

const OBJECTS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: { name: lab }
---
apiVersion: v1
kind: Node
metadata: { name: node1, labels: { rack: "1" } }
---
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: { name: rack1 }
spec:
  type: Underlay
  mode: BGP
  netID: 65101
  nodeSelector: { rack: "1" }
  config:
    bgpPeers:
      - { asn: 65001, address: 10.1.0.1, passwordSecretRef: { name: tor, key: md5 } }
      - { asn: 65002, address: 10.2.0.1, passwordSecretRef: { name: tor, key: md5 } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack1-v4 }
spec: { network: rack1, range: { version: "4", cidr: 10.201.0.0/16 } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack1-v6 }
spec: { network: rack1, range: { version: "6", cidr: "fd00:201::/112" } }
"#;

const BY_NAMESPACE: &str = "
apiVersion: trunkline.io/v1alpha1
kind: ServiceAdvertisement
metadata: { name: by-namespace }
spec: { namespaceSelector: { matchLabels: { public: 'yes' } } }
";

const OVERLAY: &str = "
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: { name: tunnels }
spec: { type: Overlay, netID: 4 }
";

const BAD_SUBNET: &str = "
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: bad }
spec: { network: nowhere, range: { version: '4', cidr: 10.202.0.0/24 } }
";

const GOOD_SUBNET: &str = "
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: good }
spec: { network: rack1, range: { version: '4', cidr: 10.203.0.0/24 } }
";

fn secret(key: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tor", "namespace": "kube-system"}, "stringData": {"md5": key}})
        .to_string()
}

/// The topology with its node's agent on the cluster.
pub(super) struct Node<'a> {
    pub(super) bed: &'a Bed<'a>,
    pub(super) cluster: &'a mut Cluster,
    accounts: Accounts,
    _doorway: Doorway,
}

/// Runs a test on a cluster and a fabric. The Secret's key is `key` at first; the agent has these
/// additional settings.
pub(super) fn on_a_node(
    context: &Context,
    name: &str,
    key: &str,
    settings: &str,
    test: impl FnOnce(Node<'_>) -> Result<Verdict>,
) -> Result<Verdict> {
    cluster(context, name, |cluster| {
        lab(context, "one-rack", |bed| {
            let crds = trunkline_api::kube::crds();
            for crd in &crds {
                cluster.apply(&serde_json::to_string(crd)?)?;
            }
            for crd in crds.iter().filter_map(|crd| crd.metadata.name.as_deref()) {
                cluster.kubectl([
                    "wait",
                    "--for=condition=Established",
                    "--timeout=60s",
                    &format!("crd/{crd}"),
                ])?;
            }
            let accounts = Accounts::create(cluster, &[AGENTS])?;
            cluster.apply(OBJECTS)?;
            cluster.apply(&secret(key))?;
            let doorway = cluster.doorway(&bed.node()?.ns)?;
            let config = Manifest::at(bed.fabric.file("one-rack/node1/agent.yaml"));
            config.overwrite(&format!(
                "nodeName: node1\nsource: kube\nkube: {{kubeconfig: {}, namespace: kube-system}}\nrouterID: 10.0.1.11\n\
                 readiness: {{timeoutSeconds: 10}}\n{settings}\n",
                agent_on(cluster, AGENTS, "node1")?.display()
            ))?;
            client::end_agent(bed.node()?, Signal::TERM)?;
            client::start_agent(bed.node()?)?;
            test(Node { bed, cluster, accounts, _doorway: doorway })
        })
    })
}

impl Node<'_> {
    /// Creates an IPInstance as the controller does. hybridnet's IPInstances do not contain the
    /// families.
    pub(super) fn give(&self, pod: &Sandbox, address: &str, family: &str, node: &str) -> Result<()> {
        let v6 = address.contains(':');
        let annotations = match family {
            "" => json!({}),
            family => json!({"networking.alibaba.com/ip-family": family}),
        };
        let object = json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": "IPInstance",
            "metadata": {
                "name": address.replace(['.', ':'], "-"), "namespace": "lab",
                "labels": {"networking.alibaba.com/node": node, "networking.alibaba.com/network": "rack1"},
                "annotations": annotations,
            },
            "spec": {
                "network": "rack1", "subnet": if v6 { "rack1-v6" } else { "rack1-v4" },
                "address": {
                    "version": if v6 { "6" } else { "4" },
                    "ip": format!("{address}/{}", if v6 { 112 } else { 16 }),
                    "mac": "02:12:34:56:78:9a",
                },
                "binding": {"nodeName": node, "podName": pod.name, "podUID": pod.identity.uid},
            },
        });
        self.cluster.apply(&object.to_string()).map(drop)
    }

    pub(super) fn add(&self, pod: &Sandbox) -> Result<Vec<IpAddr>> {
        Ok(cni::add(self.bed.fabric, &cni::trunkline(None), pod)?.addresses)
    }

    fn source(&self) -> Result<ClusterStatus> {
        client::status(self.bed.node()?)?.cluster.context("trunkline status does not mention an API server")
    }

    pub(super) fn wait_source(
        &self,
        what: &str,
        is: impl Fn(&ClusterStatus) -> bool,
    ) -> Result<ClusterStatus> {
        wait_for(what, PATIENCE, || {
            let source = self.source()?;
            Ok(if is(&source) { Seen::Yes(source) } else { Seen::NotYet(format!("{source:?}")) })
        })
    }

    /// Waits until an object of the cluster meets a condition.
    fn wait_object(&self, object: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
        wait_for(&format!("{object} to meet the condition"), PATIENCE, || {
            let text =
                self.cluster.kubectl(["-n", "lab", "get", object, "-o", "json", "--ignore-not-found"])?;
            let value: Value = serde_json::from_str(&text).unwrap_or_default();
            Ok(if is(&value) { Seen::Yes(value) } else { Seen::NotYet(text) })
        })
    }

    /// Waits until an IPInstance's status names this sandbox.
    fn seen_by(&self, address: &str, pod: &Sandbox) -> Result<()> {
        let name = format!("ipinstance/{}", address.replace(['.', ':'], "-"));
        let status =
            self.wait_object(&name, |object| object["status"]["sandboxID"] == json!(pod.container_id))?;
        let status = &status["status"];
        ensure!(
            status["nodeName"] == "node1"
                && status["podName"] == json!(pod.name)
                && status["podNamespace"] == "lab",
            "{status}"
        );
        ensure!(status["updateTimestamp"].is_string(), "{status}");
        Ok(())
    }
}

fn words(addresses: &[IpAddr]) -> Vec<String> {
    addresses.iter().map(ToString::to_string).collect()
}

fn addresses(context: &Context) -> Result<Verdict> {
    on_a_node(context, "agent", "not-the-key", "", |node| {
        let bed = node.bed;
        // The wrong key: the kernel drops the ToRs' segments.
        let error = bed.wait_peer_error("10.1.0.1", &["password", "md5", "timed out"])?;
        ensure!(!error.contains("not-the-key"), "the key is in the error: {error}");
        node.cluster.apply(&secret(KEY))?;
        bed.established()?;
        let peers = node.wait_object("nodeinfo/node1", |object| {
            let peers = object["status"]["peers"].as_array();
            peers.is_some_and(|peers| {
                peers.len() == 2 && peers.iter().all(|peer| peer["state"] == "Established")
            })
        })?;
        ensure!(peers["metadata"]["ownerReferences"][0]["name"] == "node1", "{peers}");
        ensure!(!peers.to_string().contains(KEY), "the key is in the NodeInfo");
        node.wait_object("node/node1", |object| {
            let is = |one: &Value| one["type"] == "NetworkUnavailable" && one["status"] == "False";
            object["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(is))
        })?;

        let first = bed.pod("first")?;
        node.give(&first, "10.201.7.1", "DualStack", "node1")?;
        node.give(&first, "fd00:201::71", "DualStack", "node1")?;
        let got = node.add(&first)?;
        ensure!(words(&got) == ["10.201.7.1", "fd00:201::71"], "{got:?}");
        node.seen_by("10.201.7.1", &first)?;
        node.seen_by("fd00:201::71", &first)?;
        let link =
            first.ns.within(|| crate::shell::run(&mut crate::shell::cmd("ip", ["link", "show", "eth0"])))?;
        ensure!(link.contains("02:12:34:56:78:9a"), "the pod's MAC is not its IPInstance's: {link}");
        let pings = bed.pings("outside", &got)?;

        // The IPInstances of the two families arrive during the ADD. The ADD waits for both.
        let late = bed.pod("late")?;
        let events = node.source()?;
        let (got, _) = std::thread::scope(|scope| -> Result<_> {
            let adding = scope.spawn(|| node.add(&late));
            node.give(&late, "10.201.7.2", "DualStack", "node1")?;
            let of = |source: &ClusterStatus| {
                source
                    .watches
                    .iter()
                    .find(|watch| watch.name == "ipinstances")
                    .map_or(0, |watch| watch.events)
            };
            let before = of(&events);
            node.wait_source("the first IPInstance to arrive", |source| of(source) > before)?;
            ensure!(!adding.is_finished(), "an ADD did not wait for the second address");
            node.give(&late, "fd00:201::72", "DualStack", "node1")?;
            let got = adding.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok((got, ()))
        })?;
        ensure!(words(&got) == ["10.201.7.2", "fd00:201::72"], "{got:?}");

        // The agent receives no events of another node's objects. It refuses a pod without an
        // IPInstance, with the reason.
        let without = bed.pod("without")?;
        let events_of = |source: ClusterStatus| {
            source.watches.into_iter().find(|watch| watch.name == "ipinstances").map(|watch| watch.events)
        };
        let before = events_of(node.source()?);
        for number in 1..=20 {
            node.give(&without, &format!("10.201.9.{number}"), "IPv4", "node2")?;
        }
        let error = cni::run(bed.fabric, "ADD", &cni::trunkline(None), &without)?.error()?;
        ensure!(error.text.contains("pod lab/node1-without has no IPInstance on this node yet"), "{error}");
        ensure!(error.text.contains("is the controller running"), "{error}");
        let after = events_of(node.source()?);
        // Meanwhile the agent has received bookmarks, and the statuses of the late pod's addresses.
        ensure!(
            after.zip(before).is_some_and(|(after, before)| after <= before + 10),
            "{before:?} then {after:?}"
        );

        // A bad object among good ones.
        node.cluster.apply(&format!("{BAD_SUBNET}---{GOOD_SUBNET}"))?;
        let source = node.wait_source("the bad Subnet to be named", |source| !source.faults.is_empty())?;
        ensure!(
            source.faults.len() == 1 && source.faults[0].starts_with("Subnet bad: spec.network"),
            "{source:?}"
        );
        wait_for("the good Subnet to be served", PATIENCE, || {
            let status = client::status(bed.node()?)?;
            let names: Vec<String> = status
                .networks
                .iter()
                .flat_map(|network| &network.subnets)
                .map(|subnet| subnet.name.clone())
                .collect();
            Ok(Seen::when(names.iter().any(|name| name == "good") && status.ready, || format!("{names:?}")))
        })?;
        let event = wait_for("an event on the Node", PATIENCE, || {
            let events =
                node.cluster.kubectl(["get", "events", "-A", "-o", "jsonpath={.items[*].message}"])?;
            Ok(if events.contains("Subnet bad") { Seen::Yes(events) } else { Seen::NotYet(events) })
        })?;
        ensure!(!event.contains(KEY), "the key is in an event");
        node.cluster.kubectl(["delete", "subnet", "bad"])?;
        node.wait_source("the fault to be gone", |source| source.faults.is_empty())?;
        // A repeated fault increments the count of the same event.
        node.cluster.apply(BAD_SUBNET)?;
        wait_for("a higher count of the event", PATIENCE, || {
            let counts = node.cluster.kubectl([
                "get",
                "events.v1.events.k8s.io",
                "-A",
                "-o",
                "jsonpath={.items[*].series.count}",
            ])?;
            Ok(Seen::when(counts.contains('2'), || counts))
        })?;
        node.cluster.kubectl(["delete", "subnet", "bad"])?;

        // An IPInstance of hybridnet does not contain the pod's families. The pod's annotation
        // does.
        let older = bed.pod("older")?;
        let plan = Plan {
            namespace: "lab".to_owned(),
            name: older.name.clone(),
            node: "node1".to_owned(),
            family: "IPv4",
            stateful_set: None,
        };
        node.cluster.wait(Pretended::new(node.cluster.client()).create(&plan))?;
        node.give(&older, "10.201.7.9", "", "node1")?;
        let got = node.add(&older)?;
        ensure!(words(&got) == ["10.201.7.9"], "{got:?}");
        cni::del(bed.fabric, &cni::trunkline(None), &older)?;

        // The agent watches other nodes' NodeInfos only while an Overlay exists.
        let follows = |source: &ClusterStatus| {
            source.watches.iter().any(|watch| watch.name == "nodeinfoes" && watch.live)
        };
        node.cluster.apply(OVERLAY)?;
        node.wait_source("the other nodes to be watched", follows)?;
        node.cluster.kubectl(["delete", "network", "tunnels"])?;
        node.wait_source("the end of the watch of other nodes", |source| !follows(source))?;

        // The agent watches Namespaces only while a ServiceAdvertisement selects them.
        let follows = |source: &ClusterStatus| {
            source.watches.iter().any(|watch| watch.name == "namespaces" && watch.live && watch.optional)
        };
        node.cluster.apply(BY_NAMESPACE)?;
        node.wait_source("the Namespaces to be watched", follows)?;
        node.cluster.kubectl(["delete", "serviceadvertisement", "by-namespace"])?;
        node.wait_source("the end of the watch of Namespaces", |source| !follows(source))?;

        // The next sandbox of the same pod starts before the DEL of the first one, and replaces it.
        let again = Sandbox { container_id: format!("{}-again", late.container_id), ..late.clone() };
        let got = node.add(&again)?;
        ensure!(words(&got) == ["10.201.7.2", "fd00:201::72"], "{got:?}");
        node.seen_by("10.201.7.2", &again)?;
        cni::del(bed.fabric, &cni::trunkline(None), &late)?;
        cni::del(bed.fabric, &cni::trunkline(None), &again)?;

        let check =
            bed.node()?.run("trunkline", ["agent", "--config", "/etc/trunkline/agent.yaml", "--check"])?;
        ensure!(check.contains("answers: Kubernetes v"), "{check}");
        let pings = lost_nothing(pings)?;
        cni::del(bed.fabric, &cni::trunkline(None), &first)?;
        bed.nothing_but(&[], &[])?;
        let services = (
            "agent",
            "list",
            "nodeservices.trunkline.io",
            "`trunkline services NAME`: observability/cluster",
        );
        let unseen = [&[services][..], &rights::L2, &rights::POLICIES].concat();
        let rights = node.accounts.check(node.cluster, &["agent"], &unseen)?;
        passed(format!(
            "allocated, late, refused, a bad Subnet named, a key changed live; {pings} pings, none lost; {rights}"
        ))
    })
}

fn outage(context: &Context) -> Result<Verdict> {
    on_a_node(context, "agent-outage", KEY, "", |node| {
        let bed = node.bed;
        bed.established()?;
        let (witness, known, leaving) = (bed.pod("witness")?, bed.pod("known")?, bed.pod("leaving")?);
        node.give(&witness, "10.201.7.1", "IPv4", "node1")?;
        node.give(&known, "10.201.7.2", "IPv4", "node1")?;
        node.give(&leaving, "10.201.7.3", "IPv4", "node1")?;
        let steady = node.add(&witness)?;
        node.add(&leaving)?;
        // The state is written to disk a moment after it was received.
        let cache = bed.node()?.folder.join("lib/cluster.json");
        wait_for("the cache to contain the pod's address", PATIENCE, || {
            let text = std::fs::read_to_string(&cache).unwrap_or_default();
            Ok(Seen::when(text.contains("10.201.7.2"), || format!("{} octets", text.len())))
        })?;
        let pings = bed.pings("outside", &steady)?;

        node.cluster.stop_api()?;
        node.wait_source("the outage to show", |source| source.outage_seconds.is_some())?;
        client::end_agent(bed.node()?, Signal::KILL)?;
        client::start_agent(bed.node()?)?;
        // The ToRs' key is in a Secret: the sessions are re-established only if the cache has it.
        bed.established()?;
        let got = node.add(&known)?;
        ensure!(words(&got) == ["10.201.7.2"], "{got:?}");
        cni::del(bed.fabric, &cni::trunkline(None), &leaving)?;
        let stranger = bed.pod("stranger")?;
        let error = cni::run(bed.fabric, "ADD", &cni::trunkline(None), &stranger)?.error()?;
        ensure!(
            error.text.contains("no IPInstance")
                && error.text.contains("the API server has not answered for"),
            "{error}"
        );
        let status = client::status(bed.node()?)?;
        ensure!(status.ready, "not ready: {:?}", status.not_ready);
        bed.tor_has_only("tor1", &[steady[0], got[0]])?;

        node.cluster.start_api()?;
        node.wait_source("the API server to answer again", |source| {
            source.connected && source.unwritten == 0
        })?;
        node.seen_by("10.201.7.2", &known)?;
        node.give(&stranger, "10.201.7.4", "IPv4", "node1")?;
        node.add(&stranger)?;
        let pings = lost_nothing(pings)?;
        for pod in [&witness, &known, &stranger] {
            cni::del(bed.fabric, &cni::trunkline(None), pod)?;
        }
        bed.nothing_but(&[], &[])?;
        passed(format!("ADD, DEL, SIGKILL and start without the API server; {pings} pings, none lost"))
    })
}
