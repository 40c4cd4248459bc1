//! A cluster as hybridnet v0.8.9 leaves it. It has the kinds of hybridnet's chart, the objects of
//! its manager and daemons with their labels, finalizers and statuses, and its workloads.
//! [`crate::kube::hybridnet`] has stand-ins for its programs, and Felix. This test plays its manager,
//! which allocated the addresses before Trunkline is installed.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::flows::POLICIES;
use super::install::{NODES, STATEFUL_SET, established, wait_text};
use crate::kube::Cluster;
use crate::kube::hybridnet::Felix;
use crate::shell::run;

/// A pod: the last octet of its address, namespace and name. 100.64.1.5 is reserved for db-2.
type Pod = (u8, &'static str, &'static str);

const PODS: [Pod; 8] = [
    (1, "default", "db-0"),
    (2, "default", "db-1"),
    (3, "default", "web-node1a-1"),
    (4, "default", "web-node1b-1"),
    (6, "default", "guard-node1a-1"),
    (7, "default", "guard-node1b-1"),
    (8, "open", "open-node1a-1"),
    (9, "open", "open-node1b-1"),
];

/// The Network of a cluster that hybridnet leaves.
pub(super) struct Left {
    network: &'static str,
    subnet: &'static str,
    manifest: &'static str,
    /// hybridnet's labels of each node.
    labels: &'static [&'static str],
    /// The nodes. Their addresses are 10.1.0.11 and 10.1.0.12.
    nodes: [&'static str; 2],
    pods: &'static [Pod],
}

/// Pods of a BGP network.
pub(super) const RACK: Left = Left {
    network: "rack1",
    subnet: "rack1-v4",
    manifest: NETWORK,
    labels: &["network=rack1", "networking.alibaba.com/bgp-network-attachment=true"],
    nodes: NODES,
    pods: &PODS,
};

/// Pods of an overlay: the default of hybridnet's chart.
pub(super) const OVERLAY: Left = Left {
    network: "init",
    subnet: "init",
    manifest: OVERLAY_NETWORK,
    labels: &["networking.alibaba.com/overlay-network-attachment=true"],
    nodes: NODES,
    pods: &PODS,
};

/// Pods of a VLAN.
pub(super) const VLAN: Left = Left {
    network: "rack1",
    subnet: "rack1-v4",
    manifest: VLAN_NETWORK,
    labels: &["network=rack1", "networking.alibaba.com/underlay-network-attachment=true"],
    nodes: ["node1", "node2"],
    pods: &[PODS[0], PODS[1]],
};

/// Prepares the API server for Felix: its kinds, and a datastore that is ready.
pub(super) fn prepare_felix(cluster: &Cluster, felix: &Felix) -> Result<()> {
    cluster.kubectl(["apply", "--server-side", "-f", &felix.crds.display().to_string()])?;
    cluster.kubectl(["wait", "crd", "--all", "--for=condition=Established", "--timeout=60s"])?;
    let ready = json!({ "apiVersion": "crd.projectcalico.org/v1", "kind": "ClusterInformation",
        "metadata": { "name": "default" }, "spec": { "datastoreReady": true } });
    cluster.apply(&ready.to_string()).map(drop)
}

/// Creates the objects of [`create`] and the pods' workloads. Returns once the daemons are ready.
pub(super) fn install(cluster: &Cluster, left: &Left) -> Result<()> {
    create(cluster, left)?;
    cluster.kubectl([
        "-n",
        "kube-system",
        "rollout",
        "status",
        "daemonset/hybridnet-daemon",
        "--timeout=120s",
    ])?;
    cluster.apply(POLICIES)?;
    cluster.apply(STATEFUL_SET)?;
    cluster.apply(PODS_OF_NODES)?;
    cluster.kubectl(["scale", "statefulset", "db", "--replicas=2"])?;
    Ok(())
}

/// Creates the kinds, the webhooks and workloads of hybridnet, the Network with its key in clear text,
/// and the NodeInfos.
pub(super) fn create(cluster: &Cluster, left: &Left) -> Result<()> {
    for kind in kinds() {
        cluster.apply(&kind.to_string())?;
    }
    for kind in ["networks", "subnets", "ipinstances", "nodeinfoes"] {
        established(cluster, kind)?;
    }
    cluster.apply(WORKLOADS)?;
    cluster.apply(left.manifest)?;
    for (kind, name, status) in [
        (
            "network",
            left.network,
            json!({ "lastAllocatedSubnet": left.subnet, "nodeList": left.nodes, "subnetList": [left.subnet],
            "statistics": { "total": 253, "used": 9, "available": 244 }, "ipv6Statistics": { "total": 0, "used": 0, "available": 0 },
            "dualStackStatistics": { "total": 0, "used": 0, "available": 0 } }),
        ),
        (
            "subnet",
            left.subnet,
            json!({ "total": 253, "used": 9, "available": 244, "lastAllocatedIP": "100.64.1.9" }),
        ),
    ] {
        patch_status(cluster, kind, name, &status)?;
    }
    for (number, node) in left.nodes.into_iter().enumerate() {
        let info = json!({ "apiVersion": "networking.alibaba.com/v1", "kind": "NodeInfo", "metadata": { "name": node },
            "spec": { "vtepInfo": { "ip": format!("10.1.0.{}", 11 + number), "mac": format!("02:00:00:00:00:{:02x}", 17 + number),
                "localIPs": [format!("10.1.0.{}", 11 + number)] } } });
        cluster.apply(&info.to_string())?;
        patch_status(cluster, "nodeinfo", node, &json!({ "updateTimestamp": "2026-01-01T00:00:00Z" }))?;
        run(&mut cluster.kubectl_command(&[&["label", "node", node][..], left.labels].concat()))?;
    }
    Ok(())
}

fn patch_status(cluster: &Cluster, kind: &str, name: &str, status: &Value) -> Result<()> {
    let patch = json!({ "status": status }).to_string();
    cluster.kubectl(["patch", kind, name, "--subresource=status", "--type=merge", "-p", &patch]).map(drop)
}

/// Acts as hybridnet's manager. Returns once the pods run.
pub(super) fn give_addresses(cluster: &Cluster, left: &Left) -> Result<()> {
    allocate(cluster, left)?;
    for (_, namespace, name) in left.pods {
        cluster.kubectl(["-n", namespace, "wait", "pod", name, "--for=condition=Ready", "--timeout=60s"])?;
    }
    report_pods(cluster, left)
}

fn pod(cluster: &Cluster, namespace: &str, name: &str) -> Result<Value> {
    Ok(serde_json::from_str(&cluster.kubectl(["-n", namespace, "get", "pod", name, "-o", "json"])?)?)
}

/// Acts as hybridnet's manager: creates an IPInstance for each pod, and adds hybridnet's finalizer
/// to the pods of StatefulSets. One more IPInstance is retained for db-2, which was scaled away.
pub(super) fn allocate(cluster: &Cluster, left: &Left) -> Result<()> {
    for &(last, namespace, name) in left.pods {
        wait_text(
            cluster,
            &["-n", namespace, "get", "pod", name, "--ignore-not-found", "-o", "jsonpath={.spec.nodeName}"],
            &format!("pod {name}"),
            |node| !node.is_empty(),
        )?;
        let pod = pod(cluster, namespace, name)?;
        let owner = &pod["metadata"]["ownerReferences"][0];
        cluster.apply(&instance(left, last, (namespace, name), owner, Some(&pod)).to_string())?;
        if owner["kind"] == "StatefulSet" {
            let finalizer = r#"{"metadata":{"finalizers":["networking.alibaba.com/ip-allocated"]}}"#;
            cluster.kubectl(["patch", "pod", name, "--type=merge", "-p", finalizer])?;
        }
    }
    let set: Value = serde_json::from_str(&cluster.kubectl(["get", "statefulset", "db", "-o", "json"])?)?;
    let owner = json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": set["metadata"]["uid"], "controller": true });
    cluster.apply(&instance(left, 5, ("default", "db-2"), &owner, None).to_string()).map(drop)
}

/// Acts as hybridnet's daemons: writes the statuses of the IPInstances of running pods.
pub(super) fn report_pods(cluster: &Cluster, left: &Left) -> Result<()> {
    for &(last, namespace, name) in left.pods {
        let pod = pod(cluster, namespace, name)?;
        let status = json!({ "status": { "podName": name, "podNamespace": namespace, "nodeName": pod["spec"]["nodeName"],
            "sandboxID": format!("sandbox-{last}"), "updateTimestamp": "2026-01-01T00:00:00Z" } });
        let instance = format!("100-64-1-{last}");
        let patch = status.to_string();
        cluster.kubectl([
            "-n",
            namespace,
            "patch",
            "ipinstance",
            &instance,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ])?;
    }
    Ok(())
}

/// An IPInstance that is bound to a pod, or reserved for the next pod of its name. A reserved
/// IPInstance has no node and no UID, and no labels of these.
fn instance(
    left: &Left,
    last: u8,
    (namespace, name): (&str, &str),
    owner: &Value,
    pod: Option<&Value>,
) -> Value {
    let address = format!("100.64.1.{last}");
    let mut labels = BTreeMap::from([
        ("networking.alibaba.com/version", json!("v1.2")),
        ("networking.alibaba.com/subnet", json!(left.subnet)),
        ("networking.alibaba.com/network", json!(left.network)),
        ("networking.alibaba.com/pod", json!(name)),
    ]);
    let mut binding = json!({
        "referredObject": { "kind": owner["kind"], "name": owner["name"], "uid": owner["uid"] },
        "podName": name, "nodeName": "", "podUID": "",
    });
    if let Some(pod) = pod {
        let (node, uid) = (pod["spec"]["nodeName"].clone(), pod["metadata"]["uid"].clone());
        labels.insert("networking.alibaba.com/node", node.clone());
        labels.insert("networking.alibaba.com/pod-uid", uid.clone());
        binding["nodeName"] = node;
        binding["podUID"] = uid;
    }
    if let (true, Some((_, index))) = (owner["kind"] == "StatefulSet", name.rsplit_once('-')) {
        binding["stateful"] = json!({ "index": index.parse::<u32>().unwrap_or_default() });
    }
    json!({
        "apiVersion": "networking.alibaba.com/v1", "kind": "IPInstance",
        "metadata": {
            "name": address.replace('.', "-"), "namespace": namespace, "labels": labels,
            "finalizers": ["networking.alibaba.com/ip-allocated"],
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": owner["kind"], "name": owner["name"], "uid": owner["uid"],
                "controller": true, "blockOwnerDeletion": false }],
        },
        "spec": {
            "network": left.network, "subnet": left.subnet, "binding": binding,
            "address": { "version": "4", "ip": format!("{address}/24"), "mac": format!("02:12:34:56:78:{:02x}", last + 0xf) },
        },
    })
}

/// The allocated addresses: name to address, MAC, and pod.
pub(super) fn addresses(cluster: &Cluster) -> Result<BTreeMap<String, (String, String, String)>> {
    let list: Value = serde_json::from_str(&cluster.kubectl(["get", "ipinstances", "-A", "-o", "json"])?)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let row = |item: &Value| {
        let spec = &item["spec"];
        let what =
            (text(&spec["address"]["ip"]), text(&spec["address"]["mac"]), text(&spec["binding"]["podName"]));
        (text(&item["metadata"]["name"]), what)
    };
    Ok(list["items"].as_array().context("items")?.iter().map(row).collect())
}

/// The kinds as its chart installs them: only the name and type of each field.
pub(super) fn kinds() -> Vec<Value> {
    let (text, number, flag) = (
        json!({ "type": "string" }),
        json!({ "type": "integer", "format": "int32" }),
        json!({ "type": "boolean" }),
    );
    let time = json!({ "type": "string", "format": "date-time" });
    let list = |of: &Value| json!({ "type": "array", "items": of });
    let object = |required: &[&str], fields: &[(&str, &Value)]| {
        let properties: BTreeMap<_, _> = fields.iter().copied().collect();
        if required.is_empty() {
            json!({ "type": "object", "properties": properties })
        } else {
            json!({ "type": "object", "properties": properties, "required": required })
        }
    };
    let peer = object(
        &["address", "asn"],
        &[
            ("address", &text),
            ("asn", &number),
            ("gracefulRestartSeconds", &number),
            ("password", &text),
            ("doesNotRouteTraffic", &flag),
            ("allowNotEstablished", &flag),
        ],
    );
    let count = object(&[], &[("total", &number), ("used", &number), ("available", &number)]);
    let labels = json!({ "type": "object", "additionalProperties": { "type": "string" } });
    let network = object(
        &[],
        &[
            ("netID", &number),
            ("type", &text),
            ("mode", &text),
            ("nodeSelector", &labels),
            ("config", &object(&[], &[("bgpPeers", &list(&peer))])),
        ],
    );
    let network_status = object(
        &[],
        &[
            ("lastAllocatedSubnet", &text),
            ("lastAllocatedIPv6Subnet", &text),
            ("nodeList", &list(&text)),
            ("subnetList", &list(&text)),
            ("statistics", &count),
            ("ipv6Statistics", &count),
            ("dualStackStatistics", &count),
        ],
    );
    let range = object(
        &["cidr", "version"],
        &[
            ("version", &text),
            ("cidr", &text),
            ("start", &text),
            ("end", &text),
            ("gateway", &text),
            ("reservedIPs", &list(&text)),
            ("excludeIPs", &list(&text)),
        ],
    );
    let subnet_config = object(
        &[],
        &[
            ("gatewayType", &text),
            ("gatewayNode", &text),
            ("autoNatOutgoing", &flag),
            ("private", &flag),
            ("allowSubnets", &list(&text)),
        ],
    );
    let subnet = object(
        &["network", "range"],
        &[("network", &text), ("netID", &number), ("range", &range), ("config", &subnet_config)],
    );
    let subnet_status = object(
        &[],
        &[("total", &number), ("used", &number), ("available", &number), ("lastAllocatedIP", &text)],
    );
    let referred = object(&[], &[("kind", &text), ("name", &text), ("uid", &text)]);
    let binding = object(
        &[],
        &[
            ("referredObject", &referred),
            ("nodeName", &text),
            ("podUID", &text),
            ("podName", &text),
            ("stateful", &object(&[], &[("index", &number)])),
        ],
    );
    let address = object(
        &["ip", "mac", "version"],
        &[("version", &text), ("ip", &text), ("gateway", &text), ("netID", &number), ("mac", &text)],
    );
    let instance = object(
        &["address", "network", "subnet"],
        &[("network", &text), ("subnet", &text), ("address", &address), ("binding", &binding)],
    );
    let instance_status = object(
        &[],
        &[
            ("nodeName", &text),
            ("podName", &text),
            ("podNamespace", &text),
            ("sandboxID", &text),
            ("updateTimestamp", &time),
        ],
    );
    let vtep = object(&[], &[("ip", &text), ("mac", &text), ("localIPs", &list(&text))]);
    let info = object(&[], &[("vtepInfo", &vtep)]);
    let info_status = object(&[], &[("updateTimestamp", &time)]);

    let kind = |kind: &str, plural: &str, scope: &str, spec: &Value, status: &Value| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.networking.alibaba.com"), "annotations": { "controller-gen.kubebuilder.io/version": "v0.4.1" } },
            "spec": {
                "group": "networking.alibaba.com", "scope": scope,
                "names": { "kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": kind.to_lowercase() },
                "versions": [{ "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                    "schema": { "openAPIV3Schema": { "type": "object", "properties": {
                        "apiVersion": text, "kind": text, "metadata": { "type": "object" }, "spec": spec, "status": status } } } }],
            },
        })
    };
    vec![
        kind("Network", "networks", "Cluster", &network, &network_status),
        kind("Subnet", "subnets", "Cluster", &subnet, &subnet_status),
        kind("IPInstance", "ipinstances", "Namespaced", &instance, &instance_status),
        kind("NodeInfo", "nodeinfoes", "Cluster", &info, &info_status),
    ]
}

/// A Network with hybridnet's fields and the finalizers of its manager.
const NETWORK: &str = r#"
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: { name: rack1, finalizers: [networking.alibaba.com/metrics-registered] }
spec:
  type: Underlay
  mode: BGP
  netID: 65101
  nodeSelector: { network: rack1 }
  config:
    bgpPeers:
      - { asn: 65001, address: 10.1.0.1, gracefulRestartSeconds: 300, password: the-racks-key }
      - { asn: 65002, address: 10.2.0.1, gracefulRestartSeconds: 300, password: the-racks-key }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack1-v4, finalizers: [networking.alibaba.com/metrics-registered] }
spec: { network: rack1, range: { version: "4", cidr: 100.64.1.0/24 } }
"#;

/// A VLAN, as the page's administrator created it for hybridnet.
const VLAN_NETWORK: &str = r#"
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: { name: rack1, finalizers: [networking.alibaba.com/metrics-registered] }
spec: { type: Underlay, mode: VLAN, netID: 11, nodeSelector: { network: rack1 } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack1-v4, finalizers: [networking.alibaba.com/metrics-registered] }
spec: { network: rack1, range: { version: "4", cidr: 100.64.1.0/24, gateway: 100.64.1.254 } }
"#;

/// The Network and Subnet that hybridnet's chart creates.
const OVERLAY_NETWORK: &str = r#"
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: { name: init, finalizers: [networking.alibaba.com/metrics-registered] }
spec: { type: Overlay, netID: 4 }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: init, finalizers: [networking.alibaba.com/metrics-registered] }
spec: { network: init, range: { version: "4", cidr: 100.64.1.0/24 }, config: { autoNatOutgoing: true } }
"#;

/// The objects of its chart that matter to the page and to Trunkline. Its webhooks have no server
/// here, so they fail open.
const WORKLOADS: &str = r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: { name: hybridnet-daemon, namespace: kube-system, labels: { app: hybridnet, component: daemon } }
spec:
  selector: { matchLabels: { app: hybridnet, component: daemon } }
  template:
    metadata: { labels: { app: hybridnet, component: daemon } }
    spec:
      hostNetwork: true
      nodeSelector: { kubernetes.io/os: linux }
      containers: [{ name: cni-daemon, image: "docker.io/hybridnetdev/hybridnet:v0.8.9" }]
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: hybridnet-manager, namespace: kube-system, labels: { app: hybridnet, component: manager } }
spec:
  replicas: 2
  selector: { matchLabels: { app: hybridnet, component: manager } }
  template:
    metadata: { labels: { app: hybridnet, component: manager } }
    spec: { hostNetwork: true, containers: [{ name: hybridnet-manager, image: "docker.io/hybridnetdev/hybridnet:v0.8.9" }] }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: hybridnet-webhook, namespace: kube-system, labels: { app: hybridnet, component: webhook } }
spec:
  replicas: 1
  selector: { matchLabels: { app: hybridnet, component: webhook } }
  template:
    metadata: { labels: { app: hybridnet, component: webhook } }
    spec: { hostNetwork: true, containers: [{ name: hybridnet-webhook, image: "docker.io/hybridnetdev/hybridnet:v0.8.9" }] }
---
apiVersion: v1
kind: Service
metadata: { name: hybridnet-webhook, namespace: kube-system }
spec: { selector: { app: hybridnet, component: webhook }, ports: [{ port: 443, targetPort: 9898 }] }
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: { name: hybridnet-validating-webhook }
webhooks:
  - name: hybridnet-v1.validating.hybridnet
    admissionReviewVersions: [v1]
    sideEffects: None
    failurePolicy: Ignore
    clientConfig: { service: { name: hybridnet-webhook, namespace: kube-system, path: /validate } }
    rules: [{ apiGroups: [networking.alibaba.com], apiVersions: [v1], operations: [CREATE, UPDATE, DELETE], resources: [networks, subnets] }]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: { name: hybridnet-mutating-webhook }
webhooks:
  - name: core-v1.mutating.hybridnet
    admissionReviewVersions: [v1]
    sideEffects: None
    failurePolicy: Ignore
    clientConfig: { service: { name: hybridnet-webhook, namespace: kube-system, path: /mutate } }
    rules: [{ apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods] }]
"#;

/// Pods of the nodes: those of the Deployment keep no address, and those of the DaemonSets stay when
/// a node is drained.
const PODS_OF_NODES: &str = "
apiVersion: v1
kind: Namespace
metadata: { name: open }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: web, namespace: default }
spec:
  replicas: 2
  selector: { matchLabels: { app: web } }
  template:
    metadata: { labels: { app: web } }
    spec: { containers: [{ name: main, image: registry.k8s.io/pause:3.10 }] }
---
apiVersion: apps/v1
kind: DaemonSet
metadata: { name: guard, namespace: default }
spec:
  selector: { matchLabels: { app: guard } }
  template:
    metadata: { labels: { app: guard } }
    spec: { containers: [{ name: main, image: registry.k8s.io/pause:3.10 }] }
---
apiVersion: apps/v1
kind: DaemonSet
metadata: { name: open, namespace: open }
spec:
  selector: { matchLabels: { app: open } }
  template:
    metadata: { labels: { app: open } }
    spec: { containers: [{ name: main, image: registry.k8s.io/pause:3.10 }] }
";
