//! The whole system: two racks with real routers, and an agent on each node. An agent's
//! configuration has only the node's name and the API server. One controller also serves admission,
//! and pods are created in the API server and attached as by a kubelet. Agents and controller have
//! the accounts of the Helm chart; each of their rights is used here or listed in `UNSEEN`.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use ipnet::IpNet;
use serde_json::Value;

use super::{Test, Verdict, crds, two_racks, webhook};
use crate::fabric::Fabric;
use crate::kube::Cluster;
use crate::kube::controller::Replicas;
use crate::kube::nodes::{self, Attached};
use crate::kube::pods::{Plan, Pretended};
use crate::kube::rights::{self, Accounts, Rack, Unseen, agent_on};
use crate::shell::{Seen, wait_for};
use crate::tests::{Context as Lab, passed};
use crate::topology::Image;
use crate::{client, routers};

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/racks",
    about: "pods of the API server across two racks; a StatefulSet's pod moves with its addresses; \
            a node is drained; the rights are minimal",
    run: racks,
}];

const PATIENCE: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "shop";

const SERVICE_ADDRESSES: &str = "Services of type LoadBalancer: service-addresses/pools";

/// The reason for unused rights of network policies.
const POLICIES: &str = "there is no network policy, and no CRD of ClusterNetworkPolicies";

/// The reason for unused rights of remote clusters.
const REMOTE: &str = "there is no RemoteCluster: kube/multi-cluster, kube/global-service";

/// Rights that this test does not use.
const UNSEEN: &[Unseen] = &[
    ("agent", "list", "nodeinfoes.networking.alibaba.com", "in an Overlay only: kube/agent"),
    ("agent", "watch", "nodeinfoes.networking.alibaba.com", "in an Overlay only: kube/agent"),
    ("agent", "get", "pods", "addresses that hybridnet allocated: kube/agent"),
    ("agent", "list", "namespaces", "for a ServiceAdvertisement's namespaceSelector: kube/agent"),
    ("agent", "watch", "namespaces", "for a ServiceAdvertisement's namespaceSelector: kube/agent"),
    ("agent", "create", "events.events.k8s.io", "faults, which the webhook prevents here: kube/agent"),
    ("agent", "patch", "events.events.k8s.io", "faults, which the webhook prevents here: kube/agent"),
    ("agent", "list", "nodeservices.trunkline.io", "`trunkline services NAME`: observability/cluster"),
    ("controller", "watch", "clusternetworkpolicies.policy.networking.k8s.io", POLICIES),
    (
        "controller",
        "watch",
        "network-attachment-definitions.k8s.cni.cncf.io",
        "there is no CRD of Multus: kube/interfaces",
    ),
    ("agent", "list", "remotevteps.multicluster.alibaba.com", "in an Overlay only: kube/overlay"),
    ("agent", "watch", "remotevteps.multicluster.alibaba.com", "in an Overlay only: kube/overlay"),
    ("controller", "create", "endpointslices.discovery.k8s.io", REMOTE),
    ("controller", "patch", "endpointslices.discovery.k8s.io", REMOTE),
    ("controller", "delete", "endpointslices.discovery.k8s.io", REMOTE),
    ("controller", "patch", "remoteclusters.multicluster.alibaba.com/status", REMOTE),
    ("controller", "create", "remotesubnets.multicluster.alibaba.com", REMOTE),
    ("controller", "patch", "remotesubnets.multicluster.alibaba.com", REMOTE),
    ("controller", "delete", "remotesubnets.multicluster.alibaba.com", REMOTE),
    ("controller", "create", "remotevteps.multicluster.alibaba.com", REMOTE),
    ("controller", "patch", "remotevteps.multicluster.alibaba.com", REMOTE),
    ("controller", "delete", "remotevteps.multicluster.alibaba.com", REMOTE),
    ("controller", "create", "remoteendpointslice.multicluster.alibaba.com", REMOTE),
    ("controller", "patch", "remoteendpointslice.multicluster.alibaba.com", REMOTE),
    ("controller", "delete", "remoteendpointslice.multicluster.alibaba.com", REMOTE),
    ("controller", "get", "ipinstances.networking.alibaba.com", "after a lost answer: kube/leader-kill"),
    ("controller", "patch", "services/status", SERVICE_ADDRESSES),
    ("controller", "patch", "servicepools.trunkline.io/status", SERVICE_ADDRESSES),
    ("controller", "get", "serviceaddresses.trunkline.io", SERVICE_ADDRESSES),
    ("controller", "create", "serviceaddresses.trunkline.io", SERVICE_ADDRESSES),
    ("controller", "patch", "serviceaddresses.trunkline.io", SERVICE_ADDRESSES),
    ("controller", "delete", "serviceaddresses.trunkline.io", SERVICE_ADDRESSES),
    (
        "controller",
        "patch",
        "serviceaddresses.trunkline.io/status",
        "with NodeServices: observability/cluster",
    ),
];

/// The webhook compares it with the other AgentSettings. The value is the default.
const SETTINGS: &str = "
apiVersion: trunkline.io/v1alpha1
kind: AgentSettings
metadata: { name: patient }
spec: { config: { readiness: { timeoutSeconds: 30 } } }
";

/// Additional objects: some with hybridnet's finalizer, and a node in no Network.
const FRINGE: &str = "
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: { name: spare, finalizers: [networking.alibaba.com/metrics-registered] }
spec: { netID: 9, nodeSelector: { rack: none } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: spare, finalizers: [networking.alibaba.com/metrics-registered] }
spec: { network: spare, range: { version: '4', cidr: 10.209.0.0/24, gateway: 10.209.0.1 } }
---
apiVersion: v1
kind: Node
metadata: { name: nowhere }
---
apiVersion: networking.alibaba.com/v1
kind: NodeInfo
metadata: { name: nowhere }
spec: {}
---
apiVersion: trunkline.io/v1alpha1
kind: NodeServices
metadata: { name: nowhere }
";

const OVERLAY: &str = "
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: { name: tunnels }
spec: { type: Overlay, netID: 4 }
";

/// Each rack's agents may only read the key of their own rack.
const RACKS: [Rack; 2] = [("trunkline-agent-rack1", &["rack1"]), ("trunkline-agent-rack2", &["rack2"])];

/// The Secrets that the racks' Networks name for their sessions.
const SECRETS: &str = "
{apiVersion: v1, kind: Secret, metadata: {name: rack1, namespace: kube-system}, stringData: {password: rack1-lab-secret}}
---
{apiVersion: v1, kind: Secret, metadata: {name: rack2, namespace: kube-system}, stringData: {password: rack2-lab-secret}}
";

fn racks(context: &Lab) -> Result<Verdict> {
    two_racks::run(context, "racks", |cluster, fabric, controller| Racks { cluster, fabric }.test(controller))
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
        cluster.apply(two_racks::SUBNETS)?;
        cluster.wait(Pretended::new(cluster.client()).namespace(NAMESPACE))?;
        let accounts = Accounts::create(cluster, &RACKS)?;
        let _doorways = nodes::join(cluster, self.fabric, |node| {
            agent_on(cluster, RACKS[usize::from(node.starts_with("node2"))], node)
        })?;
        let flags = ["--patch-calico-pod-ips-annotation"];
        // There are two replicas. The leader may have acquired the Lease before the follower's
        // watch began.
        let mut replicas = Replicas::standing_by_as(cluster, &accounts.controller, controller, 2, &flags)?;
        replicas.wait_leader(cluster)?;
        let [one, other] = replicas.webhooks()[..] else { bail!("two replicas") };
        webhook::register(cluster, &mut replicas, one, other)?;
        cluster.apply(SETTINGS)?;
        for node in self.fabric.topology.with_image(Image::Node) {
            client::wait_established(self.fabric.host(node)?, PATIENCE)?;
        }
        nodes::tells_its_peers(cluster, "node2b", 2)?;
        nodes::says(cluster, "node2b", "False", "TrunklineServes")?;
        wait_for("the NodeServices of each node", PATIENCE, || {
            let names = cluster.kubectl(["get", "nodeservices", "-o", "jsonpath={.items[*].status}"])?;
            Ok(Seen::when(names.matches("\"proxy\"").count() == 4, || names))
        })?;

        let mut pods = Vec::new();
        for (n, node) in ["node1a", "node1b", "node2a", "node2b"].into_iter().enumerate() {
            pods.push(self.attach(&format!("web-{n}"), node, None)?);
        }
        let db = self.attach("db-0", "node1a", Some("db"))?;
        let kept = db.addresses.clone();
        nodes::reach_each_other(&pods.iter().chain([&db]).collect::<Vec<_>>())?;
        self.agent_told(&db)?;

        // The StatefulSet's pod is removed from node1a, and created again on the other node of its
        // rack.
        db.take_away(cluster, self.fabric)?;
        let db = self.attach("db-0", "node1b", Some("db"))?;
        ensure!(db.addresses == kept, "db-0 had {kept:?} on node1a and has {:?} on node1b", db.addresses);
        nodes::reach_each_other(&pods.iter().chain([&db]).collect::<Vec<_>>())?;

        // node1b is drained. The StatefulSet's pod moves back, and the node's other pod is created
        // again elsewhere.
        cluster.kubectl(["cordon", "node1b"])?;
        let web = pods.remove(1);
        let freed = web.addresses.clone();
        web.take_away(cluster, self.fabric)?;
        db.take_away(cluster, self.fabric)?;
        let db = self.attach("db-0", "node1a", Some("db"))?;
        ensure!(db.addresses == kept, "db-0 had {kept:?} and has {:?} after the drain", db.addresses);
        pods.push(self.attach("web-4", "node2a", None)?);
        pods.push(db);
        self.is_empty("node1b", &freed)?;
        nodes::reach_each_other(&pods.iter().collect::<Vec<_>>())?;
        self.fringe(&pods[0])?;
        replicas.still_running()?;
        let rights = accounts.check(
            cluster,
            &["agent", "controller"],
            &[UNSEEN, &rights::L2, &rights::POLICIES, &rights::VMS].concat(),
        )?;
        passed(format!("{} pods on three nodes in the end, all pairs of both families; {rights}", pods.len()))
    }

    /// Further actions of the programs, each of which needs a right.
    fn fringe(&self, pod: &Attached) -> Result<()> {
        let cluster = self.cluster;
        let name = &pod.plan.name;
        let jsonpath = "jsonpath={.metadata.annotations.cni\\.projectcalico\\.org/podIPs}";
        let shown = cluster.kubectl(["get", "pod", name, "-n", NAMESPACE, "-o", jsonpath])?;
        ensure!(shown.contains(&pod.addresses[0].to_string()), "Calico sees {shown:?} of {name}");

        cluster.apply(FRINGE)?;
        nodes::says(cluster, "nowhere", "True", "NoNetwork")?;
        cluster.kubectl(["delete", "node", "nowhere"])?;
        wait_for("the removal of the objects of a deleted node", PATIENCE, || {
            let kinds = "nodeinfoes,nodeservices";
            let left = cluster.kubectl(["get", kinds, "-o", "name"])?;
            Ok(Seen::when(!left.contains("nowhere"), || left))
        })?;
        // These deletions wait for the finalizers.
        cluster.kubectl(["delete", "subnet", "spare", "--timeout=60s"])?;
        cluster.kubectl(["delete", "network", "spare", "--timeout=60s"])?;

        // When the Overlay is deleted, the webhook lists hybridnet's remote clusters.
        cluster.apply(OVERLAY)?;
        cluster.kubectl(["delete", "network", "tunnels", "--timeout=60s"])?;

        for (annotation, words) in
            [("specified-network", "Network nowhere"), ("specified-subnet", "Subnet nowhere")]
        {
            let pod = serde_json::json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "name": "lost", "namespace": NAMESPACE,
                    "annotations": { format!("networking.alibaba.com/{annotation}"): "nowhere" },
                },
                "spec": { "containers": [{ "name": "main", "image": "pretended" }] },
            });
            let refused =
                cluster.apply(&pod.to_string()).err().context("a pod without a network was admitted")?;
            ensure!(format!("{refused:#}").contains(words), "{refused:#}");
        }

        let spoil = r#"{"data":{"tls.crt":""}}"#;
        cluster.kubectl(["patch", "secret", "trunkline-webhook", "-n", "kube-system", "-p", spoil])?;
        wait_for("the webhook's Secret to be restored", PATIENCE, || {
            let certificate = webhook::serving(cluster)?;
            Ok(Seen::when(!certificate.is_empty(), || "empty".to_owned()))
        })
    }

    /// The rack's Network from the topology, but with its password in a Secret.
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
        let pod = nodes::attach(self.cluster, self.fabric, plan, &[])?;
        ensure!(pod.addresses.len() == 2, "{name} on {node}: {:?}", pod.addresses);
        Ok(pod)
    }

    /// Waits until the agent has written the sandbox to the IPInstance's status.
    fn agent_told(&self, pod: &Attached) -> Result<()> {
        wait_for("the IPInstance's status to name the sandbox", PATIENCE, || {
            let name = pod.addresses[0].to_string().replace('.', "-");
            let text = self.cluster.kubectl(["get", "ipinstance", &name, "-n", NAMESPACE, "-o", "json"])?;
            let status = serde_json::from_str::<Value>(&text)?["status"].take();
            let shown =
                status["sandboxID"] == *pod.sandbox.container_id && status["nodeName"] == *pod.plan.node;
            Ok(Seen::when(shown, || status.to_string()))
        })
    }

    /// Checks that nothing is left of a drained node's pods: on the node, in the API server, in the
    /// ToRs.
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
