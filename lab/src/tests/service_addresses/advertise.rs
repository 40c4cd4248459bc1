//! Service addresses in FRR and BIRD: which nodes advertise them, and with which attributes. The
//! test writes Services and EndpointSlices as the parts of Kubernetes do.
//!
//! The agents first have no service proxy (`kind: none`), so endpoints alone decide. Then the real
//! kube-proxy runs on each node, and clients outside the fabric connect.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Context, Test, Verdict};
use crate::client;
use crate::daemons::vtysh_json;
use crate::kube::Cluster;
use crate::kube::agents::configure_proxy;
use crate::kube::assets::Assets;
use crate::kube::controller::Replicas;
use crate::kube::daemon::Daemon;
use crate::kube::nodes::{self, Attached};
use crate::kube::pods::{Plan, Pretended};
use crate::kube::proxy::{self, Mode};
use crate::packages;
use crate::routes::RouteMonitor;
use crate::shell::{Seen, wait_for};
use crate::tests::bed::{Bed, PATIENCE, lab};
use crate::tests::greeter::{Greeter, greeted};
use crate::tests::kube::{cluster, crds};
use crate::tests::{hybrid, passed};

pub(super) const TEST: Test = Test {
    name: "service-addresses/advertise",
    about: "addresses of Services in FRR and BIRD: Cluster and Local, moves and death of endpoints, \
            aggregation, peers, communities, prepend, weights in FRR's kernel; clients outside of the fabric connect",
    run,
};

pub(super) const NODES: [&str; 3] = ["node1", "node2", "node3"];
pub(super) const NAMESPACE: &str = "shop";
/// The pods' port, and that of their Services.
pub(super) const PORT: u16 = 8080;
pub(super) const SERVICE_PORT: u16 = 80;

/// Each family's first octets of the pool.
pub(super) const POOL: [&str; 2] = ["203.0.113.", "2001:db8:113::"];

pub(super) const OBJECTS: &str = "
apiVersion: trunkline.io/v1alpha1
kind: ServicePool
metadata: { name: public }
spec: { addresses: [203.0.113.0/24, '2001:db8:113::/112'] }
";

/// Only rack 1's router receives `web`, with attributes.
const RACK1: &str = "
apiVersion: trunkline.io/v1alpha1
kind: ServiceAdvertisement
metadata: { name: a-rack1 }
spec:
  serviceSelector: { matchLabels: { app: web } }
  peers: [10.51.0.1]
  communities: ['65000:100']
  largeCommunities: ['65000:1:2']
  prepend: 2
";

/// Everything, to all routers, with another attribute.
const ALL: &str = "
apiVersion: trunkline.io/v1alpha1
kind: ServiceAdvertisement
metadata: { name: b-all }
spec: { communities: ['65000:200'], prepend: 1, gracefulShutdownSeconds: 0 }
";

/// Nodes of rack 1 advertise the block of the addresses.
const BLOCKS: &str = "
apiVersion: trunkline.io/v1alpha1
kind: ServiceAdvertisement
metadata: { name: c-blocks }
spec: { aggregationLength: { ipv4: 28, ipv6: 120 }, gracefulShutdownSeconds: 0 }
";

/// External addresses of this prefix only.
const EXTERNAL: &str = "
apiVersion: trunkline.io/v1alpha1
kind: ServiceAdvertisement
metadata: { name: d-external }
spec: { addresses: [External], externalCIDRs: [198.51.100.0/24], gracefulShutdownSeconds: 0 }
";

/// Traffic by the number of local endpoints.
const WEIGHTED: &str = "
apiVersion: trunkline.io/v1alpha1
kind: ServiceAdvertisement
metadata: { name: e-weighted }
spec: { weights: LocalEndpoints, gracefulShutdownSeconds: 0 }
";

/// A path of a router from a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct NodePath {
    pub as_path: Vec<u32>,
    /// `65000:100`, large communities too.
    pub communities: Vec<String>,
}

fn run(context: &Context) -> Result<Verdict> {
    let program = match Assets::proxy(&context.place)? {
        Ok(program) => program,
        Err(missing) => return Ok(Verdict::Skipped(missing)),
    };
    let controller = context.controller()?;
    cluster(context, "service-advertise", |cluster| {
        lab(context, "hybrid", |bed| {
            packages::need(["nftables"])?;
            write_objects(cluster, bed)?;
            let _controller = Replicas::start(cluster, &controller, 1)?;
            for node in NODES {
                configure(bed, node, &json!({ "kind": "none" }))?;
            }
            let _doorways = nodes::join(cluster, bed.fabric, |_| Ok(cluster.kubeconfig()))?;
            hybrid::ready(bed)?;
            let test = Advertise { cluster, bed };
            let pods = NODES.iter().map(|node| test.attach(node)).collect::<Result<Vec<_>>>()?;
            let _servers =
                pods.iter().map(|pod| Greeter::listen(&pod.sandbox.ns, PORT)).collect::<Result<Vec<_>>>()?;
            test.follow_endpoints(&pods)?;
            test.attributes(&pods)?;
            test.no_loops()?;
            test.external(&pods)?;
            test.weights(&pods)?;
            test.with_kube_proxy(&pods, &program)?;
            test.last_endpoint_dies(pods)?;
            passed("three nodes in FRR and BIRD, both families; outside clients reach Cluster and Local")
        })
    })
}

/// Creates Networks, Subnets, the pool, and the Namespace.
pub(super) fn write_objects(cluster: &Cluster, bed: &Bed<'_>) -> Result<()> {
    crds::install(cluster)?;
    for file in ["networks", "subnets"] {
        let file = bed.fabric.file(&format!("{}/manifests/{file}.yaml", bed.fabric.topology.name));
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        cluster.apply(&text)?;
    }
    cluster.apply(OBJECTS)?;
    cluster.wait(Pretended::new(cluster.client()).namespace(NAMESPACE))
}

/// Sets `services.proxy` in a node's agent.yaml.
pub(super) fn configure(bed: &Bed<'_>, node: &str, proxy: &Value) -> Result<()> {
    configure_proxy(bed.fabric, node, proxy)
}

pub(super) struct Advertise<'a> {
    pub cluster: &'a Cluster,
    pub bed: &'a Bed<'a>,
}

impl Advertise<'_> {
    pub(super) fn attach(&self, node: &str) -> Result<Attached> {
        let plan = Plan {
            namespace: NAMESPACE.to_owned(),
            name: format!("pod-{node}"),
            node: node.to_owned(),
            family: "DualStack",
            stateful_set: None,
        };
        nodes::attach(self.cluster, self.bed.fabric, plan, &[])
    }

    /// Creates a Service with its addresses.
    pub(super) fn service(&self, name: &str, number: u8, policy: &str) -> Result<()> {
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": name, "namespace": NAMESPACE, "labels": { "app": name },
                "annotations": { "trunkline.io/addresses": POOL.map(|pool| format!("{pool}{number}")).join(",") },
            },
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": "trunkline.io/load-balancer",
                "ipFamilyPolicy": "RequireDualStack", "externalTrafficPolicy": policy,
                "ports": [{ "port": SERVICE_PORT, "targetPort": PORT }],
            },
        });
        self.cluster.create(&service.to_string())?;
        let ingress = POOL.map(|pool| json!({ "ip": format!("{pool}{number}"), "ipMode": "VIP" }));
        let status = json!({ "status": { "loadBalancer": { "ingress": ingress } } }).to_string();
        let args = [
            "patch",
            "service",
            name,
            "-n",
            NAMESPACE,
            "--subresource=status",
            "--type=merge",
            "-p",
            &status,
        ];
        self.cluster.kubectl(args).map(drop)
    }

    /// Writes a Service's EndpointSlices: pods, and whether each is ready.
    pub(super) fn endpoints(&self, service: &str, pods: &[(&Attached, bool)]) -> Result<()> {
        for (index, family) in ["IPv4", "IPv6"].into_iter().enumerate() {
            let endpoints: Vec<Value> = pods
                .iter()
                .map(|(pod, ready)| {
                    json!({
                        "addresses": [pod.addresses[index]], "nodeName": pod.plan.node,
                        "conditions": { "ready": ready, "serving": ready, "terminating": false },
                    })
                })
                .collect();
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("{service}-{}", family.to_lowercase()), "namespace": NAMESPACE,
                    "labels": { "kubernetes.io/service-name": service },
                },
                "addressType": family, "endpoints": endpoints,
                "ports": [{ "name": "", "port": PORT, "protocol": "TCP" }],
            });
            self.cluster.apply(&slice.to_string())?;
        }
        Ok(())
    }

    /// The nodes whose routers have a path to a prefix from the node itself.
    pub(super) fn paths(&self, prefix: &IpNet) -> Result<BTreeMap<&'static str, NodePath>> {
        let mut found = BTreeMap::new();
        let family = if prefix.addr().is_ipv4() { "ipv4" } else { "ipv6" };
        let answer = vtysh_json(self.bed.host("tor1")?, &format!("show bgp {family} unicast {prefix} json"))?;
        // FRR answers with a less specific prefix if it does not have this one.
        let exact = answer["prefix"] == prefix.to_string();
        for path in answer["paths"].as_array().filter(|_| exact).into_iter().flatten() {
            let node = match path["peer"]["peerId"].as_str() {
                Some("10.51.0.11") => "node1",
                Some("10.51.0.12") => "node2",
                _ => continue,
            };
            let words = |field: &str| path[field]["string"].as_str().unwrap_or_default().split_whitespace();
            found.insert(
                node,
                NodePath {
                    as_path: words("aspath").filter_map(|asn| asn.parse().ok()).collect(),
                    communities: words("community")
                        .chain(words("largeCommunity"))
                        .map(str::to_owned)
                        .collect(),
                },
            );
        }
        // If there is no such path, birdc ends with status 1.
        let table =
            self.bed.host("tor2")?.sh(&format!("birdc show route {prefix} protocol node3 all || :"))?;
        if table.contains(&prefix.to_string()) {
            let mut path = NodePath::default();
            for line in table.lines().map(str::trim) {
                if let Some(asns) = line.strip_prefix("BGP.as_path: ") {
                    path.as_path = asns.split_whitespace().filter_map(|asn| asn.parse().ok()).collect();
                }
                let communities = line
                    .strip_prefix("BGP.community: ")
                    .or_else(|| line.strip_prefix("BGP.large_community: "));
                // (65000,100) (65000, 1, 2)
                let lists = communities.into_iter().flat_map(|text| text.split(')'));
                let numbers = lists.map(|list| list.replace(['(', ' '], "").replace(',', ":"));
                path.communities.extend(numbers.filter(|list| !list.is_empty()));
            }
            found.insert("node3", path);
        }
        Ok(found)
    }

    /// Waits until exactly these nodes advertise a Service's address, in both families.
    pub(super) fn from(&self, number: u8, nodes: &[&str]) -> Result<()> {
        self.prefixes_from(&POOL.map(|pool| host(pool, number)), nodes)
    }

    fn prefixes_from(&self, prefixes: &[IpNet], nodes: &[&str]) -> Result<()> {
        for prefix in prefixes {
            wait_for(&format!("{prefix} from {nodes:?}"), PATIENCE, || {
                let paths = self.paths(prefix)?;
                Ok(Seen::when(paths.keys().eq(nodes), || format!("{paths:?}")))
            })?;
        }
        Ok(())
    }

    /// Waits until a node's path of an address has this length of AS_PATH and these communities.
    fn has(&self, number: u8, node: &str, length: usize, communities: &[&str]) -> Result<()> {
        for pool in POOL {
            let prefix = host(pool, number);
            wait_for(&format!("{prefix} of {node} with {communities:?}"), PATIENCE, || {
                let paths = self.paths(&prefix)?;
                let good = paths.get(node).is_some_and(|path| {
                    path.as_path.len() == length
                        && path.communities.len() == communities.len()
                        && communities.iter().all(|one| path.communities.iter().any(|seen| seen == one))
                });
                Ok(Seen::when(good, || format!("{paths:?}")))
            })?;
        }
        Ok(())
    }

    /// Cluster and Local, with endpoints that move.
    fn follow_endpoints(&self, pods: &[Attached]) -> Result<()> {
        let [one, two, three] = pods else { anyhow::bail!("three pods") };
        self.service("web", 1, "Cluster")?;
        self.service("api", 2, "Local")?;
        self.endpoints("web", &[(one, true)])?;
        self.from(1, &NODES)?;
        self.from(2, &[])?;
        self.endpoints("api", &[(one, true)])?;
        self.from(2, &["node1"])?;
        self.endpoints("api", &[(one, false), (two, true)])?;
        self.from(2, &["node2"])?;
        self.endpoints("api", &[(one, true), (three, true)])?;
        self.from(2, &["node1", "node3"])?;
        self.endpoints("web", &[(three, false)])?;
        self.from(1, &[])?;
        self.endpoints("web", &[(three, true)])?;
        self.from(1, &NODES)?;

        // Plans, a new link and a drain that ends leave the addresses as they are.
        let kept = POOL.map(|pool| host(pool, 1));
        let monitor = RouteMonitor::start(&self.bed.host("tor1")?.ns)?;
        self.bed.node()?.sh("ip addr add 192.0.2.200/32 dev eth1 && ip addr del 192.0.2.200/32 dev eth1")?;
        self.cluster.apply(
            "{apiVersion: networking.alibaba.com/v1, kind: Subnet, metadata: {name: later}, \
             spec: {network: rack1, range: {version: '4', cidr: 10.64.0.0/24}}}",
        )?;
        wait_for("the new Subnet on node1", PATIENCE, || {
            let networks = client::status(self.bed.node()?)?.networks;
            let there = networks.iter().flat_map(|network| &network.subnets).any(|one| one.name == "later");
            Ok(Seen::when(there, || format!("{networks:?}")))
        })?;
        client::end_agent(self.bed.node()?, Signal::KILL)?;
        client::start_agent(self.bed.node()?)?;
        client::wait_established(self.bed.node()?, PATIENCE)?;
        self.from(1, &NODES)?;
        self.from(2, &["node1", "node3"])?;
        let removed = monitor.removed(&kept);
        ensure!(removed.is_empty(), "{removed:?} was withdrawn");
        Ok(())
    }

    /// ServiceAdvertisements: selection, peers, attributes, aggregation.
    fn attributes(&self, _pods: &[Attached]) -> Result<()> {
        self.has(1, "node1", 1, &[])?;
        self.cluster.apply(RACK1)?;
        self.from(1, &["node1", "node2"])?;
        // Without a ServiceAdvertisement that selects it, a Service is not advertised.
        self.from(2, &[])?;
        self.has(1, "node2", 3, &["65000:100", "65000:1:2"])?;

        self.cluster.apply(ALL)?;
        self.from(1, &NODES)?;
        self.from(2, &["node1", "node3"])?;
        // Equal prefixes are merged for each peer: the first one's number, all communities.
        self.has(1, "node1", 3, &["65000:100", "65000:1:2", "65000:200"])?;
        self.has(1, "node3", 2, &["65000:200"])?;
        self.has(2, "node1", 2, &["65000:200"])?;

        let blocks = ["203.0.113.0/28".parse()?, "2001:db8:113::/120".parse()?];
        self.prefixes_from(&blocks, &[])?;
        self.cluster.apply(BLOCKS)?;
        self.prefixes_from(&blocks, &NODES)?;
        self.from(1, &NODES)?;
        self.cluster.kubectl(["delete", "serviceadvertisements", "a-rack1", "b-all"])?;
        self.from(1, &[])?;
        self.prefixes_from(&blocks, &NODES)
    }

    /// Nothing translates the addresses here: a packet for one of them must not return to the
    /// router. The block has unused addresses, too.
    fn no_loops(&self) -> Result<()> {
        let exceeded = || -> Result<Vec<String>> {
            let count = "awk '/^Icmp:/ { if (n++) print $0 }' /proc/net/snmp | cut -d' ' -f 18; \
                         awk '/^Icmp6OutTimeExcds/ { print $2 }' /proc/net/snmp6";
            ["tor1", "tor2", "node1", "node2", "node3"]
                .map(|name| self.bed.host(name)?.sh(count))
                .into_iter()
                .collect()
        };
        let before = exceeded()?;
        for target in ["203.0.113.1", "203.0.113.9", "2001:db8:113::1", "2001:db8:113::9"] {
            let text = self
                .bed
                .host("outside")?
                .sh(&format!("ping -n -c 3 -i 0.2 -W 1 {target} || [ $? -lt 2 ]"))?;
            ensure!(!text.to_lowercase().contains("exceeded"), "a loop: {text}");
        }
        let after = exceeded()?;
        ensure!(before == after, "TTL exceeded: {before:?} and then {after:?}");
        self.cluster.kubectl(["delete", "serviceadvertisement", "c-blocks"])?;
        self.prefixes_from(&["203.0.113.0/28".parse()?, "2001:db8:113::/120".parse()?], &[])?;
        self.from(1, &NODES)
    }

    /// External addresses of any type of Service, but only in the allowed prefixes: the Service also
    /// names the address of a host in the fabric.
    fn external(&self, pods: &[Attached]) -> Result<()> {
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "old", "namespace": NAMESPACE },
            "spec": {
                "externalIPs": ["198.51.100.7", "10.90.0.2"], "ipFamilies": ["IPv4"],
                "ports": [{ "port": SERVICE_PORT, "targetPort": PORT }],
            },
        });
        self.cluster.create(&service.to_string())?;
        self.endpoints("old", &[(&pods[0], true)])?;
        let (allowed, host) = (["198.51.100.7/32".parse()?], ["10.90.0.2/32".parse()?]);
        self.cluster.apply(EXTERNAL)?;
        self.prefixes_from(&allowed, &NODES)?;
        self.prefixes_from(&host, &[])?;
        // LoadBalancer addresses are not in the list of the only ServiceAdvertisement.
        self.from(1, &[])?;
        self.cluster.kubectl(["delete", "serviceadvertisement", "d-external"])?;
        self.prefixes_from(&allowed, &[])?;
        self.from(1, &NODES)
    }

    /// Node 1 has two endpoints and node 2 has one: FRR's kernel has weights of two to one. They
    /// follow the endpoints.
    fn weights(&self, pods: &[Attached]) -> Result<()> {
        let plan = Plan {
            namespace: NAMESPACE.to_owned(),
            name: "second".to_owned(),
            node: "node1".to_owned(),
            family: "DualStack",
            stateful_set: None,
        };
        let second = nodes::attach(self.cluster, self.bed.fabric, plan, &[])?;
        self.cluster.apply(WEIGHTED)?;
        self.service("scaled", 3, "Local")?;
        self.endpoints("scaled", &[(&pods[0], true), (&second, true), (&pods[1], true)])?;
        self.from(3, &["node1", "node2"])?;
        self.wait_share_of_node1(3, 2.0 / 3.0)?;
        self.endpoints("scaled", &[(&pods[0], true), (&pods[1], true)])?;
        self.wait_share_of_node1(3, 0.5)?;
        self.cluster.kubectl(["delete", "service", "scaled", "-n", NAMESPACE])?;
        self.cluster.kubectl(["delete", "serviceadvertisement", "e-weighted"])?;
        self.from(3, &[])?;
        self.from(1, &NODES)?;
        second.take_away(self.cluster, self.bed.fabric)
    }

    /// Waits until this share of a Service's packets goes to node1, by the weights in the kernel of
    /// tor1, in both families.
    fn wait_share_of_node1(&self, number: u8, share: f64) -> Result<()> {
        let tor = self.bed.host("tor1")?;
        let gateways = self.gateways_of_node1()?;
        for pool in POOL {
            let prefix = host(pool, number);
            let family = if prefix.addr().is_ipv4() { "-4" } else { "-6" };
            wait_for(&format!("{share:.2} of {prefix} to node1"), PATIENCE, || {
                let text = tor.sh(&format!("ip {family} -j route show {prefix}"))?;
                let routes: Value = serde_json::from_str(&text)?;
                let hops = routes[0]["nexthops"].as_array().cloned().unwrap_or_default();
                let weight = |hop: &Value| hop["weight"].as_f64().unwrap_or_default();
                let all: f64 = hops.iter().map(weight).sum();
                let gateway = |hop: &Value| {
                    let via = hop["gateway"].as_str().or(hop["via"]["host"].as_str());
                    via.and_then(|via| via.parse::<IpAddr>().ok())
                };
                let own = hops.iter().filter(|hop| gateway(hop).is_some_and(|via| gateways.contains(&via)));
                let own: f64 = own.map(weight).sum();
                Ok(Seen::when(all > 0.0 && (own / all - share).abs() < 0.02, || text.clone()))
            })?;
        }
        Ok(())
    }

    /// The addresses of node1's uplink: routers use one of them as next hop.
    fn gateways_of_node1(&self) -> Result<Vec<IpAddr>> {
        let text = self.bed.node()?.sh("ip -j addr show dev eth1")?;
        let links: Value = serde_json::from_str(&text)?;
        let addresses = links[0]["addr_info"].as_array().cloned().unwrap_or_default();
        Ok(addresses.iter().filter_map(|one| one["local"].as_str()?.parse().ok()).collect())
    }

    /// The real service proxy on each node, and clients outside of the fabric.
    fn with_kube_proxy(&self, pods: &[Attached], program: &std::path::Path) -> Result<()> {
        let (namespace, account) = proxy::ACCOUNT;
        let kubeconfig = self.cluster.service_account(namespace, account)?;
        self.cluster.create(proxy::RIGHTS)?;
        let mut proxies: Vec<Daemon> = Vec::new();
        for node in NODES {
            let host = self.bed.host(node)?;
            // Without its service proxy, a node withdraws.
            configure(self.bed, node, &json!({ "kind": "auto" }))?;
            client::end_agent(host, Signal::TERM)?;
            client::start_agent(host)?;
        }
        hybrid::ready(self.bed)?;
        self.from(1, &[])?;
        for node in NODES {
            let host = self.bed.host(node)?;
            proxies.push(proxy::start(self.cluster.folder(), host, program, &kubeconfig, Mode::Nftables)?);
        }
        for (node, proxy) in NODES.into_iter().zip(&mut proxies) {
            let services = ["web".to_owned(), "api".to_owned()];
            proxy::wait_rules(proxy, self.bed.host(node)?, Mode::Nftables, NAMESPACE, &services)?;
        }
        self.from(1, &NODES)?;
        self.from(2, &["node1", "node3"])?;
        let outside = self.bed.host("outside")?;
        for (address, client) in [("203.0.113.", "10.90.0.2"), ("2001:db8:113::", "fd00:90::2")] {
            let service = |number: u8| -> Result<SocketAddr> {
                Ok((format!("{address}{number}").parse::<IpAddr>()?, SERVICE_PORT).into())
            };
            for _ in 0..6 {
                greeted(&outside.ns, service(1)?)?;
                let seen = greeted(&outside.ns, service(2)?)?;
                ensure!(seen == client.parse::<IpAddr>()?, "Local: the pod sees {seen}");
            }
        }
        // The endpoint moves, and clients follow.
        self.endpoints("api", &[(&pods[1], true)])?;
        self.from(2, &["node2"])?;
        for pool in POOL {
            let target = (format!("{pool}2").parse::<IpAddr>()?, SERVICE_PORT).into();
            greeted(&outside.ns, target)?;
        }
        proxies.iter_mut().try_for_each(Daemon::still_running)?;
        // The proxies end here, and their rules stay: so do the addresses.
        drop(proxies);
        std::thread::sleep(Duration::from_secs(2));
        self.from(1, &NODES)
    }

    /// The kernel's route decides, not only the EndpointSlice: the pod dies while the API server
    /// still names its endpoint.
    fn last_endpoint_dies(&self, pods: Vec<Attached>) -> Result<()> {
        self.from(2, &["node2"])?;
        for pod in pods {
            if pod.plan.node == "node2" {
                pod.take_away(self.cluster, self.bed.fabric)?;
            }
        }
        self.from(2, &[])
    }
}

/// The host prefix of an address in a pool.
pub(super) fn host(pool: &str, number: u8) -> IpNet {
    let address: IpAddr = format!("{pool}{number}").parse().unwrap_or(IpAddr::from([0, 0, 0, 0]));
    address.into()
}
