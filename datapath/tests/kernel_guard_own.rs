//! The guard's NAT chains and its chain at postrouting, in a real kernel: another program translates the
//! addresses of a router or of this node, as kube-proxy does for a tenant's Service.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "tests wait")]

mod namespace;
mod policy;

use std::collections::BTreeSet;
use std::io::Read as _;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use ipnet::IpNet;
use namespace::{eventually, inside, ip, isolated};
use policy::pods;
use tokio::runtime::Runtime;
use trunkline_datapath::kernel::{KernelConfig, KernelHandle};
use trunkline_datapath::plan::policy::{Direction, Verdict};
use trunkline_datapath::plan::{GuardPlan, GuardedOverlay, GuardedTunnel, KernelPlan};

const VXLAN: u16 = 8472;
const BFD: u16 = 3784;
const BGP: u16 = 179;
/// The time for which a test waits for an answer.
const WAIT: Duration = Duration::from_millis(500);

fn run_nft(rule: &str) {
    let output = std::process::Command::new("nft").arg(rule).output().unwrap();
    assert!(output.status.success(), "{rule}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Answers on the three ports of the namespace.
fn serve(namespace: &OwnedFd, name: &'static str) {
    for port in [VXLAN, BFD] {
        let socket = inside(namespace, || UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap());
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(name.as_bytes(), from);
            }
        });
    }
    let listener = inside(namespace, || TcpListener::bind((Ipv6Addr::UNSPECIFIED, BGP)).unwrap());
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = std::io::Write::write_all(&mut stream, name.as_bytes());
        }
    });
}

/// Who answers a new connection from the namespace of this thread.
fn answers(to: IpAddr, port: u16) -> String {
    let mut buffer = [0; 64];
    let to = SocketAddr::new(to, port);
    let length = if port == BGP {
        let Ok(mut stream) = TcpStream::connect_timeout(&to, WAIT) else { return "nobody".to_owned() };
        stream.set_read_timeout(Some(WAIT)).unwrap();
        stream.read(&mut buffer).unwrap_or_default()
    } else {
        let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        return answer(&UdpSocket::bind((any, 0)).unwrap(), to.ip(), port);
    };
    name(&buffer[..length])
}

/// Who answers a datagram of this socket.
fn answer(socket: &UdpSocket, to: IpAddr, port: u16) -> String {
    let mut buffer = [0; 64];
    socket.set_read_timeout(Some(WAIT)).unwrap();
    socket.send_to(b"x", (to, port)).unwrap();
    let length = socket.recv(&mut buffer).unwrap_or_default();
    name(&buffer[..length])
}

fn name(answer: &[u8]) -> String {
    if answer.is_empty() { "nobody".to_owned() } else { String::from_utf8_lossy(answer).into_owned() }
}

/// How the guard knows the router.
#[derive(Clone, Copy)]
enum Known {
    /// Not at all: the guard is off.
    RulesOff,
    Peer,
    /// As a peer of a host without Kubernetes.
    PeerOfHost,
    /// By a prefix of dynamic neighbours.
    Neighbour,
}

fn set(runtime: &Runtime, kernel: &KernelHandle, router: [IpAddr; 2], known: Known) {
    let overlay = GuardedOverlay { vni: 100, port: VXLAN };
    let neighbours: [IpNet; 2] = ["10.0.3.0/24".parse().unwrap(), "fd00:3::/64".parse().unwrap()];
    let is_neighbour = matches!(known, Known::Neighbour);
    let guard = GuardPlan {
        enabled: !matches!(known, Known::RulesOff),
        bgp_ports: [BGP].into(),
        peer_ports: [BGP].into(),
        tunnel: Some(GuardedTunnel { overlay, local: "10.0.3.1".parse().unwrap(), vteps: router.into() }),
        peers: if is_neighbour { BTreeSet::new() } else { router.into() },
        neighbours: if is_neighbour { neighbours.into() } else { BTreeSet::new() },
        keeps_own: !matches!(known, Known::PeerOfHost),
        own_servers: [([127, 0, 0, 1], BGP).into()].into(),
        ..GuardPlan::default()
    };
    let plan = KernelPlan { guard, ..KernelPlan::default() };
    assert_eq!(runtime.block_on(kernel.set_plan(plan)).unwrap().faults, [""; 0]);
}

#[test]
fn no_other_program_translates_the_nodes_own_packets() {
    isolated("no_other_program_translates_the_nodes_own_packets", |runtime| {
        let [thief, _, router] = pods();
        let node: [IpAddr; 2] = ["10.0.3.1".parse().unwrap(), "fd00:3::1".parse().unwrap()];
        let this = std::fs::File::open("/proc/thread-self/ns/net").unwrap().into();
        for (namespace, name) in [(&thief.namespace, "thief"), (&router.namespace, "router"), (&this, "node")]
        {
            serve(namespace, name);
        }
        // A Service with the addresses of router and node as `externalIPs`.
        let rules = [(router.v4, node[0], thief.v4, "ip"), (router.v6, node[1], thief.v6, "ip6")].map(
            |(router, node, thief, family)| {
                format!(
                    "add rule inet test pre {family} daddr {node} udp dport {{ {BFD}, {VXLAN} }} dnat {family} to {thief}
                     add rule inet test pre {family} daddr {node} tcp dport {BGP} dnat {family} to {thief}
                     add rule inet test out {family} daddr {router} udp dport {{ {BFD}, {VXLAN} }} dnat {family} to {thief}
                     add rule inet test out {family} daddr {router} tcp dport {BGP} dnat {family} to {thief}"
                )
            },
        );
        let chains = "add table inet test
            add chain inet test pre { type nat hook prerouting priority dstnat; }
            add chain inet test out { type nat hook output priority -100; }";
        chains
            .lines()
            .chain(rules.iter().flat_map(|rules| rules.lines()))
            .for_each(|rule| run_nft(rule.trim()));

        let (kernel, _events) = KernelHandle::spawn(KernelConfig::default()).unwrap();
        let ports = [BGP, BFD, VXLAN];
        let seen = || {
            let out = router.addresses().map(|to| ports.map(|port| answers(to, port)));
            let into = inside(&router.namespace, || node.map(|to| ports.map(|port| answers(to, port))));
            (out, into)
        };
        let all = |name: &str| [0; 2].map(|_| [0; 3].map(|_| name.to_owned()));
        // A pod with `hostPort: 179`, and `route_localnet`, as a CNI plugin for port mappings has it.
        run_nft(&format!(
            "add rule inet test out ip daddr 127.0.0.1 tcp dport {BGP} dnat ip to {}",
            thief.v4
        ));
        std::fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "1").unwrap();
        run_nft("add chain inet test post { type nat hook postrouting priority srcnat; }");
        run_nft("add rule inet test post ip saddr 127.0.0.1 masquerade");
        let of_node = || answers([127, 0, 0, 1].into(), BGP);
        for known in [Known::Peer, Known::Neighbour, Known::PeerOfHost] {
            set(runtime, &kernel, router.addresses(), Known::RulesOff);
            assert_eq!(seen(), (all("thief"), all("thief")), "the attack works without the rules");
            assert_eq!(of_node(), "thief");
            let tunnel = inside(&router.namespace, || UdpSocket::bind("10.0.3.2:0").unwrap());
            assert_eq!(answer(&tunnel, node[0], VXLAN), "thief");
            set(runtime, &kernel, router.addresses(), known);
            assert_eq!(answer(&tunnel, node[0], VXLAN), "node", "a connection from before the rules");
            assert_eq!(seen(), (all("router"), all("node")));
            assert_eq!(of_node(), "node", "a server on this node that the agent asks");
        }
        assert_eq!(runtime.block_on(kernel.resync()).unwrap(), 0, "the rules are as the kernel lists them");
    });
}

#[test]
fn a_translated_pod_does_not_reach_a_router() {
    isolated("a_translated_pod_does_not_reach_a_router", |runtime| {
        let [pod, fabric, router] = pods();
        serve(&router.namespace, "router");
        ip("link set pod1 group 116");
        // The rules of `autoNatOutgoing`, and a NodePort with the router as its endpoint.
        for rule in [
            "add table inet test",
            "add chain inet test pre { type nat hook prerouting priority dstnat; }",
            "add rule inet test pre ip daddr 10.0.2.1 tcp dport 30179 dnat ip to 10.0.3.2:179",
            "add chain inet test post { type nat hook postrouting priority srcnat; }",
            "add rule inet test post ip saddr 10.0.1.0/24 masquerade",
            "add rule inet test post ip6 saddr fd00:1::/64 masquerade",
            "add rule inet test post ct status dnat masquerade",
        ] {
            run_nft(rule);
        }
        let (kernel, _events) = KernelHandle::spawn(KernelConfig::default()).unwrap();
        let from_pod = || inside(&pod.namespace, || router.addresses().map(|to| answers(to, BGP)));
        let from_fabric = || {
            inside(&fabric.namespace, || {
                let to = SocketAddr::from(([10, 0, 2, 1], 30_179));
                TcpStream::connect_timeout(&to, WAIT).is_ok()
            })
        };
        for known in [Known::Peer, Known::Neighbour, Known::PeerOfHost] {
            set(runtime, &kernel, router.addresses(), Known::RulesOff);
            let seen = (from_pod(), from_fabric());
            assert_eq!(seen, (["router"; 2].map(str::to_owned), true), "the attack works");
            set(runtime, &kernel, router.addresses(), known);
            assert_eq!((from_pod(), from_fabric()), (["nobody"; 2].map(str::to_owned), false));
        }
        // A host without a translation has its own address.
        let direct = inside(&fabric.namespace, || router.addresses().map(|to| answers(to, BGP)));
        assert_eq!(direct, ["router"; 2].map(str::to_owned));
        // This node reaches its router.
        assert_eq!(router.addresses().map(|to| answers(to, BGP)), ["router"; 2].map(str::to_owned));
    });
}

/// Until the manifests are known, the tables of the last run are the guard, and the policies.
#[test]
fn before_the_first_plan_a_flush_removes_nothing() {
    isolated("before_the_first_plan_a_flush_removes_nothing", |runtime| {
        let [_, _, router] = pods();
        let config = || KernelConfig { guard: true, protects_policies: true, ..KernelConfig::default() };
        let (kernel, _events) = KernelHandle::spawn(config()).unwrap();
        set(runtime, &kernel, router.addresses(), Known::Peer);
        let chain = policy::chain(Direction::Ingress, &[policy::every(Verdict::Drop)]);
        let table =
            policy::table([], [(1, chain)], [(router.index, policy::link(router.index, Some(1), None))]);
        runtime.block_on(kernel.set_policies(table)).unwrap();
        drop(kernel);
        let tables = ["inet trunkline-guard", "arp trunkline-guard", "inet trunkline-policy"];
        let listed = || {
            tables.map(|table| {
                let nft = format!("--stateless list table {table}");
                let output = std::process::Command::new("nft").args(nft.split(' ')).output().unwrap();
                String::from_utf8_lossy(&output.stdout).into_owned()
            })
        };
        let before = listed();
        assert!(before.iter().all(|table| !table.is_empty()), "{before:?}");

        let (kernel, _events) = KernelHandle::spawn(config()).unwrap();
        let status = || kernel.status();
        eventually("the tables of the last run", || status().guard.in_force && status().policies.kept);
        run_nft("flush ruleset");
        eventually("a repair", || status().guard.repairs == 1);
        let rules = |tables: [String; 3]| tables.map(|table| rules_of(&table));
        assert_eq!(rules(listed()), rules(before));
    });
}

/// The owner of a table is part of the first lines of its listing.
fn rules_of(listing: &str) -> String {
    let rules = listing.lines().filter(|line| !line.starts_with("table ") && !line.starts_with("\tflags "));
    rules.collect()
}
