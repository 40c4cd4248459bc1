//! The outgoing link of an answer. A node has two uplinks, and a management network with the
//! default route; a remote client uses each of them. The answer leaves by the link of the request,
//! no matter which program translated the connection. On another link, the router may have no route
//! to the client, or may drop a foreign source.
//!
//! The client counts the packets on each of its links.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::world;
use crate::cni::{self, Sandbox};
use crate::host::Host;
use crate::kube::Cluster;
use crate::kube::assets::Assets;
use crate::kube::proxy::{self, Mode};
use crate::netns::Namespace;
use crate::shell::{Seen, wait_for};
use crate::tests::bed::{Bed, PATIENCE, lab};
use crate::tests::greeter::{Greeter, greeted};
use crate::tests::kube::cluster;
use crate::tests::{Context, Verdict, passed};
use crate::{client, packages};

/// The client's links. Behind each link is a router, and behind the router is the node's link with
/// the same name.
const LINKS: [&str; 3] = ["eth1", "eth2", "eth3"];

/// Connections on each link, to each frontend, in each family. Each connection has its own port,
/// because the nodes distribute flows by ports.
const CONNECTIONS: usize = 20;

/// Addresses of the backend on the first node.
const NEAR: [&str; 2] = ["10.201.0.50", "fd00:201::50"];
/// Addresses of the backend on the second node.
const FAR: [&str; 2] = ["10.201.0.60", "fd00:201::60"];
const PORT: u16 = 8080;
const HOST_PORT: u16 = 20_000;
const RULE_PORT: u16 = 8081;
const CLIENT: [&str; 2] = ["192.0.2.10", "2001:db8:9::10"];

/// A translation, with the addresses to connect to.
#[derive(Clone, Copy)]
struct Frontend {
    name: &'static str,
    port: u16,
    /// An address of each family that every router routes to the node. `None` means the node's own
    /// address on the link.
    addresses: Option<[&'static str; 2]>,
    keeps_client: bool,
}

const FRONTENDS: [Frontend; 6] = [
    Frontend { name: "NodePort Local", port: 30_001, addresses: None, keeps_client: true },
    Frontend {
        name: "NodePort Cluster, backend on another node",
        port: 30_002,
        addresses: None,
        keeps_client: false,
    },
    Frontend {
        name: "LoadBalancer Local",
        port: 80,
        addresses: Some(["203.0.113.1", "2001:db8:113::1"]),
        keeps_client: true,
    },
    Frontend {
        name: "LoadBalancer Cluster, backend on another node",
        port: 80,
        addresses: Some(["203.0.113.2", "2001:db8:113::2"]),
        keeps_client: false,
    },
    Frontend { name: "hostPort", port: HOST_PORT, addresses: None, keeps_client: true },
    Frontend { name: "a DNAT rule of nftables", port: RULE_PORT, addresses: None, keeps_client: true },
];

pub(super) fn run(context: &Context) -> Result<Verdict> {
    let program = match Assets::proxy(&context.place)? {
        Ok(program) => program,
        Err(missing) => return Ok(Verdict::Skipped(missing)),
    };
    packages::need(world::PACKAGES)?;
    cluster(context, "services-links", |cluster| {
        lab(context, "services-links", |bed| work(bed, cluster, &program))
    })
}

fn work(bed: &Bed<'_>, cluster: &Cluster, program: &Path) -> Result<Verdict> {
    for node in ["node1", "node2"] {
        client::wait_established(bed.host(node)?, PATIENCE)?;
    }
    let near = attach(bed, "node1", "near", NEAR)?;
    let far = attach(bed, "node2", "far", FAR)?;
    let _servers = [Greeter::listen(&near, PORT)?, Greeter::listen(&far, PORT)?];
    let node = bed.node()?;
    administrators_rule(node)?;
    services(cluster)?;
    let (namespace, account) = proxy::ACCOUNT;
    let kubeconfig = cluster.service_account(namespace, account)?;
    let _doorway = cluster.doorway(&node.ns)?;
    let mut daemon = proxy::start(cluster.folder(), node, program, &kubeconfig, Mode::Iptables)?;
    proxy::wait_rules(&mut daemon, node, Mode::Iptables, "default", &["near".to_owned(), "far".to_owned()])?;

    let outside = bed.host("outside")?;
    for address in FAR {
        let to = SocketAddr::new(address.parse()?, PORT);
        wait_for("the backend on the other node", PATIENCE, || greeted(&near, to).map(Seen::Yes))?;
    }
    count(outside)?;
    let mut asked = 0;
    for link in LINKS {
        lead(outside, link)?;
        for frontend in FRONTENDS {
            for v4 in [true, false] {
                ask(outside, link, frontend, v4)
                    .with_context(|| format!("{}, requested through {link}", frontend.name))?;
                asked += CONNECTIONS;
            }
        }
    }
    passed(format!(
        "{asked} connections through three links, IPv4 and IPv6: each is answered through its own link"
    ))
}

fn attach(bed: &Bed<'_>, node: &str, name: &str, addresses: [&str; 2]) -> Result<Namespace> {
    let mut sandbox = Sandbox::create(bed.fabric, node, name)?;
    sandbox.args = format!("IP={}", addresses.join(","));
    let portmap = json!({
        "cniVersion": "1.0.0", "name": "lab", "type": "portmap", "capabilities": { "portMappings": true },
        "runtimeConfig": {
            "portMappings": [{ "hostPort": HOST_PORT, "containerPort": PORT, "protocol": "tcp" }],
        },
    });
    cni::run_chain(bed.fabric, "ADD", &[cni::trunkline(Some("rack1")), portmap], &sandbox)?;
    Ok(sandbox.ns)
}

/// A rule of an administrator, not of Kubernetes.
fn administrators_rule(node: &Host) -> Result<()> {
    let [v4, v6] = NEAR;
    let table = format!(
        "table inet administrator {{ chain prerouting {{ type nat hook prerouting priority dstnat; \
           fib daddr type local tcp dport {RULE_PORT} meta nfproto ipv4 dnat ip to {v4}:{PORT}; \
           fib daddr type local tcp dport {RULE_PORT} meta nfproto ipv6 dnat ip6 to [{v6}]:{PORT}; }}; }}"
    );
    node.run("nft", [&table]).map(drop)
}

/// Two Services, for kube-proxy on the first node.
fn services(cluster: &Cluster) -> Result<()> {
    let mut objects = vec![json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node1" },
        "status": { "addresses": [
            { "type": "InternalIP", "address": "10.3.0.11" }, { "type": "InternalIP", "address": "fd00:3::11" },
        ] },
    })];
    for (number, name, policy, node, backends) in
        [(1, "near", "Local", "node1", NEAR), (2, "far", "Cluster", "node2", FAR)]
    {
        objects.push(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
            "spec": {
                "type": "LoadBalancer", "ipFamilyPolicy": "RequireDualStack", "externalTrafficPolicy": policy,
                "ports": [{ "port": 80, "targetPort": PORT, "nodePort": 30_000 + number }],
            },
        }));
        for (family, backend) in ["IPv4", "IPv6"].into_iter().zip(backends) {
            objects.push(world::endpoints(name, family, backend, PORT, node));
        }
    }
    let text: String = objects.iter().map(|object| format!("{object}\n---\n")).collect();
    cluster.create(proxy::RIGHTS)?;
    cluster.create(&text)?;
    let statuses = [(1, "near"), (2, "far")].map(|(number, name)| {
        let ingress: [Value; 2] = [format!("203.0.113.{number}"), format!("2001:db8:113::{number}")]
            .map(|ip| json!({ "ip": ip, "ipMode": "VIP" }));
        (name.to_owned(), json!({ "status": { "loadBalancer": { "ingress": ingress } } }))
    });
    world::write_statuses(cluster, statuses)
}

/// Counters on the client's links for packets from the node's Services.
fn count(outside: &Host) -> Result<()> {
    let ports: Vec<String> = FRONTENDS.iter().map(|frontend| frontend.port.to_string()).collect();
    let rules: String = LINKS
        .iter()
        .map(|link| format!("iifname {link} tcp sport {{ {} }} counter name {link}; ", ports.join(", ")))
        .collect();
    let counters: String = LINKS.iter().map(|link| format!("counter {link} {{ }}; ")).collect();
    let table = format!(
        "table inet answers {{ {counters} chain in {{ type filter hook prerouting priority raw; {rules} }}; }}"
    );
    outside.run("nft", [&table]).map(drop)
}

/// The packets on each link since the last call.
fn counted(outside: &Host) -> Result<Vec<(String, u64)>> {
    let text = outside.run("nft", ["-j", "reset", "counters", "table", "inet", "answers"])?;
    let said: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
    let objects = said["nftables"].as_array().into_iter().flatten();
    Ok(objects
        .filter_map(|object| {
            let counter = &object["counter"];
            Some((counter["name"].as_str()?.to_owned(), counter["packets"].as_u64()?))
        })
        .collect())
}

/// Routes the client's packets to load balancers' addresses through this link.
fn lead(outside: &Host, link: &str) -> Result<()> {
    let number = link.trim_start_matches("eth");
    outside
        .sh(&format!(
            "ip route replace 203.0.113.0/24 via 10.9{number}.0.1 src {}; \
             ip -6 route replace 2001:db8:113::/64 via fd00:9{number}::1 src {}",
            CLIENT[0], CLIENT[1]
        ))
        .map(drop)
}

/// Makes [`CONNECTIONS`] connections through a link. Every answer must return on the same link.
fn ask(outside: &Host, link: &str, frontend: Frontend, v4: bool) -> Result<()> {
    let number = link.trim_start_matches("eth");
    let own = [format!("10.{number}.0.11"), format!("fd00:{number}::11")];
    let family = usize::from(!v4);
    let address = frontend.addresses.map_or(own[family].as_str(), |addresses| addresses[family]);
    let to = SocketAddr::new(address.parse()?, frontend.port);
    let client: IpAddr = CLIENT[family].parse()?;
    counted(outside)?;
    let mut failed = Vec::new();
    for _ in 0..CONNECTIONS {
        match greeted(&outside.ns, to) {
            Ok(seen) if (seen == client) != frontend.keeps_client => failed.push(format!("seen as {seen}")),
            Ok(_) => {}
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    let by_link = counted(outside)?;
    let others: u64 = by_link.iter().filter(|(name, _)| name != link).map(|(_, packets)| packets).sum();
    let own = by_link.iter().find(|(name, _)| name == link).map_or(0, |(_, packets)| *packets);
    ensure!(
        failed.is_empty() && others == 0 && own >= 2 * CONNECTIONS as u64,
        "{to}: packets of answers {by_link:?}; {} of {CONNECTIONS} connections failed, such as {:?}",
        failed.len(),
        failed.first()
    );
    Ok(())
}
