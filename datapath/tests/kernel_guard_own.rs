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
use namespace::{inside, ip, isolated};
use policy::pods;
use tokio::runtime::Runtime;
use trunkline_datapath::kernel::{KernelConfig, KernelHandle};
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
        let socket = UdpSocket::bind((any, 0)).unwrap();
        socket.set_read_timeout(Some(WAIT)).unwrap();
        socket.send_to(b"x", to).unwrap();
        socket.recv(&mut buffer).unwrap_or_default()
    };
    match length {
        0 => "nobody".to_owned(),
        length => String::from_utf8_lossy(&buffer[..length]).into_owned(),
    }
}

/// How the guard knows the router.
#[derive(Clone, Copy)]
enum Known {
    /// As a peer, with the rules off.
    RulesOff,
    Peer,
    /// By a prefix of dynamic neighbours.
    Neighbour,
}

fn set(runtime: &Runtime, kernel: &KernelHandle, router: [IpAddr; 2], known: Known) {
    let overlay = GuardedOverlay { vni: 100, port: VXLAN };
    let neighbours: [IpNet; 2] = ["10.0.3.0/24".parse().unwrap(), "fd00:3::/64".parse().unwrap()];
    let is_neighbour = matches!(known, Known::Neighbour);
    let guard = GuardPlan {
        enabled: true,
        bgp_ports: [BGP].into(),
        peer_ports: [BGP].into(),
        tunnel: Some(GuardedTunnel { overlay, local: "10.0.3.1".parse().unwrap(), vteps: router.into() }),
        peers: if is_neighbour { BTreeSet::new() } else { router.into() },
        neighbours: if is_neighbour { neighbours.into() } else { BTreeSet::new() },
        keeps_own: !matches!(known, Known::RulesOff),
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
        for known in [Known::Peer, Known::Neighbour] {
            set(runtime, &kernel, router.addresses(), Known::RulesOff);
            assert_eq!(seen(), (all("thief"), all("thief")), "the attack works without the rules");
            set(runtime, &kernel, router.addresses(), known);
            assert_eq!(seen(), (all("router"), all("node")));
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
        for known in [Known::Peer, Known::Neighbour] {
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
