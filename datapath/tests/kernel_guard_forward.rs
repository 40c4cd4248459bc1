//! The guard at forward and output, in a real kernel: packets that a translation sends to another
//! node with this node's address as their source.
//!
//! A marker proves that a packet was dropped: a packet of another overlay, sent later on the same
//! path, arrives.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "tests wait")]

mod namespace;
mod policy;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use namespace::{inside, ip, isolated};
use policy::{Pod, pods};
use tokio::runtime::Runtime;
use trunkline_datapath::kernel::{KernelConfig, KernelHandle};
use trunkline_datapath::nft::guard::counters;
use trunkline_datapath::plan::{GuardPlan, GuardedOverlay, GuardedTunnel, KernelPlan};

const PORT: u16 = 8472;
const VNI: u32 = 100;
const OTHER_VNI: u32 = 101;
/// An address of node 2 that is no address of its VTEP.
const SECOND: [&str; 2] = ["192.0.2.12", "2001:db8:12::12"];
/// A port of this node that a Service leads to node 2.
const NODE_PORT: u16 = 30_053;

/// This thread's namespace is the node.
struct Scene {
    pod: Pod,
    fabric: Pod,
    node2: Pod,
    received: UdpSocket,
}

fn scene() -> Scene {
    let [pod, fabric, node2] = pods();
    ip("link set pod1 group 116");
    for (family, [second, via]) in
        ["-4", "-6"].into_iter().zip([[SECOND[0], "10.0.3.2"], [SECOND[1], "fd00:3::2"]])
    {
        inside(&node2.namespace, || ip(&format!("addr add {second} dev lo")));
        ip(&format!("{family} route add {second} via {via}"));
    }
    // The rules of `autoNatOutgoing`, and those of kube-proxy for a Service with endpoint node 2.
    let rules = format!(
        "add table inet test
         add chain inet test pre {{ type nat hook prerouting priority dstnat; }}
         add rule inet test pre ip daddr 10.0.0.0/8 udp dport {NODE_PORT} dnat ip to 10.0.3.2:{PORT}
         add rule inet test pre ip6 daddr fd00::/16 udp dport {NODE_PORT} dnat ip6 to [fd00:3::2]:{PORT}
         add chain inet test post {{ type nat hook postrouting priority srcnat; }}
         add rule inet test post ip saddr 10.0.1.0/24 ip daddr != 10.0.3.2 masquerade
         add rule inet test post ip6 saddr fd00:1::/64 ip6 daddr != fd00:3::2 masquerade
         add rule inet test post ct status dnat masquerade"
    );
    rules.lines().for_each(|rule| run_nft(rule.trim()));
    let received = inside(&node2.namespace, || UdpSocket::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap());
    received.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    Scene { pod, fabric, node2, received }
}

fn run_nft(rule: &str) {
    let output = std::process::Command::new("nft").arg(rule).output().unwrap();
    assert!(output.status.success(), "{rule}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The guard of a node with an overlay. Node 2 has a VTEP.
fn guard(enabled: bool) -> KernelPlan {
    let overlay = GuardedOverlay { vni: VNI, port: PORT };
    let node2: BTreeSet<IpAddr> = ["10.0.3.2", "fd00:3::2"].map(|address| address.parse().unwrap()).into();
    let guard = GuardPlan {
        enabled,
        bgp_ports: [179].into(),
        vxlan_ports: [PORT].into(),
        overlay: Some(overlay),
        tunnel: Some(GuardedTunnel { overlay, local: "10.0.3.1".parse().unwrap(), vteps: node2.clone() }),
        nodes: node2,
        ..GuardPlan::default()
    };
    KernelPlan { guard, ..KernelPlan::default() }
}

fn set(runtime: &Runtime, kernel: &KernelHandle, plan: KernelPlan) {
    assert_eq!(runtime.block_on(kernel.set_plan(plan)).unwrap().faults, [""; 0]);
}

/// A VXLAN packet. `octets`: the length of its content.
fn vxlan(vni: u32, octets: usize) -> Vec<u8> {
    [&[8, 0, 0, 0][..], &(vni << 8).to_be_bytes(), &vec![0; octets]].concat()
}

impl Scene {
    /// Whether a packet of the overlay reaches node 2, alone and within a connection.
    fn arrives(&self, from: &Pod, to: SocketAddr, octets: usize) -> bool {
        inside(&from.namespace, || {
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
            let to = match to.ip() {
                IpAddr::V4(address) => SocketAddr::from((address.to_ipv6_mapped(), to.port())),
                IpAddr::V6(_) => to,
            };
            for packet in [vxlan(VNI, octets), vxlan(OTHER_VNI, 1), vxlan(VNI, octets), vxlan(OTHER_VNI, 2)] {
                socket.send_to(&packet, to).unwrap();
            }
        });
        self.until_marker(2)
    }

    /// Whether a packet of the overlay arrives before the marker of this length.
    fn until_marker(&self, octets: usize) -> bool {
        let mut arrived = false;
        let mut buffer = [0; 4096];
        loop {
            let (length, _) = self.received.recv_from(&mut buffer).unwrap();
            match &buffer[..length] {
                packet if packet[4..7] == VNI.to_be_bytes()[1..] => arrived = true,
                packet if *packet == vxlan(OTHER_VNI, octets)[..] => return arrived,
                _ => {}
            }
        }
    }
}

fn counted() -> BTreeMap<String, u64> {
    counters().unwrap().into_iter().collect()
}

#[test]
fn packets_of_the_overlay_are_not_forwarded() {
    isolated("packets_of_the_overlay_are_not_forwarded", |runtime| {
        let scene = scene();
        let (kernel, _events) = KernelHandle::spawn(KernelConfig::default()).unwrap();
        let at = |address: &str, port: u16| SocketAddr::new(address.parse().unwrap(), port);
        let attacks = [
            ("a pod to another address of the node", &scene.pod, at(SECOND[0], PORT)),
            ("a pod to another IPv6 address of the node", &scene.pod, at(SECOND[1], PORT)),
            ("a pod by a Service", &scene.pod, at("10.0.1.1", NODE_PORT)),
            ("a pod by a Service over IPv6", &scene.pod, at("fd00:1::1", NODE_PORT)),
            ("a host in the fabric by a Service", &scene.fabric, at("10.0.2.1", NODE_PORT)),
            ("a host in the fabric by a Service over IPv6", &scene.fabric, at("fd00:2::1", NODE_PORT)),
            ("a pod to the VTEP", &scene.pod, at("10.0.3.2", PORT)),
            ("a host in the fabric to the VTEP", &scene.fabric, at("fd00:3::2", PORT)),
        ];
        for (attack, from, to) in attacks {
            for octets in [50, 3_000] {
                set(runtime, &kernel, guard(false));
                assert!(scene.arrives(from, to, octets), "without the guard: {attack}, {octets} octets");
                set(runtime, &kernel, guard(true));
                assert!(!scene.arrives(from, to, octets), "{attack}, {octets} octets");
                assert_eq!(counted()["vxlan_forwarded"], 2, "{attack}, {octets} octets");
            }
        }
        // A node without tunnels forwards no packets of its overlay either.
        let mut plan = guard(true);
        (plan.guard.tunnel, plan.guard.nodes) = (None, BTreeSet::new());
        set(runtime, &kernel, plan.clone());
        assert!(!scene.arrives(&scene.pod, at(SECOND[0], PORT), 50));
        // A node without an overlay is a router for the overlays of others.
        plan.guard.overlay = None;
        set(runtime, &kernel, plan);
        assert!(scene.arrives(&scene.fabric, at("10.0.3.2", PORT), 50));
    });
}

#[test]
fn pods_reach_no_bgp_and_no_bfd_of_other_nodes() {
    isolated("pods_reach_no_bgp_and_no_bfd_of_other_nodes", |runtime| {
        let Scene { pod, fabric, node2, received: _ } = scene();
        let (kernel, _events) = KernelHandle::spawn(KernelConfig::default()).unwrap();
        [179, 1179].iter().for_each(|port| node2.serve(*port));
        set(runtime, &kernel, guard(false));
        assert_eq!(pod.reaches_pod(&node2, 179), [true; 2], "without the guard");
        set(runtime, &kernel, guard(true));
        assert_eq!(pod.reaches_pod(&node2, 179), [false; 2]);
        assert!(counted()["bgp"] >= 2);
        assert_eq!(pod.reaches_pod(&node2, 1179), [true; 2]);
        assert_eq!(fabric.reaches_pod(&node2, 179), [true; 2]);
        assert!(pod.reaches(SECOND[0].parse().unwrap(), 179), "a pod may have peers outside of the nodes");
        // After translation, too.
        run_nft("add rule inet test pre ip daddr 192.0.2.99 tcp dport 80 dnat ip to 10.0.3.2:179");
        assert!(!pod.reaches(Ipv4Addr::new(192, 0, 2, 99).into(), 80));

        for port in [3_784, 3_785, 4_784] {
            let socket = node2.udp(port);
            fabric.udp(0).send_to(b"x", (node2.v4, port)).unwrap();
            assert!(socket.recv(&mut [0; 8]).is_ok(), "{port} from the fabric");
            let before = counted()["bfd"];
            pod.udp(0).send_to(b"x", (node2.v4, port)).unwrap();
            assert!(socket.recv(&mut [0; 8]).is_err(), "{port} from a pod");
            assert_eq!(counted()["bfd"] - before, 1);
        }
    });
}

/// IPVS sends a translated packet through the output hook, with the client's address as its source.
#[test]
fn output_of_the_overlay_has_an_address_of_the_node() {
    isolated("output_of_the_overlay_has_an_address_of_the_node", |runtime| {
        let scene = scene();
        let (kernel, _events) = KernelHandle::spawn(KernelConfig::default()).unwrap();
        let raw = |source: &str, vni: u32, octets: usize| {
            let content = vxlan(vni, octets);
            let length = (8 + content.len()) as u16;
            let source: Ipv4Addr = source.parse().unwrap();
            let udp = [4_789_u16, PORT, length, 0].map(u16::to_be_bytes).concat();
            let ip = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
            let packet = [&ip[..], &source.octets(), &[10, 0, 3, 2], &udp, &content].concat();
            let socket =
                socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::RAW, Some(255.into())).unwrap();
            let to = SocketAddr::from(([10, 0, 3, 2], 0)).into();
            // The kernel reports a packet that an output rule drops.
            let sent = socket.send_to(&packet, &to);
            assert!(sent.is_ok() || sent.is_err_and(|error| error.raw_os_error() == Some(libc::EPERM)));
        };
        for (enabled, source, arrives) in [
            (false, "10.0.1.2", true),
            (true, "10.0.1.2", false),
            (true, "10.0.2.2", false),
            (true, "10.0.3.1", true),
            (true, "10.0.1.1", true),
        ] {
            set(runtime, &kernel, guard(enabled));
            raw(source, VNI, 10);
            raw(source, OTHER_VNI, 3);
            assert_eq!(scene.until_marker(3), arrives, "{enabled}, {source}");
        }
        assert_eq!(counted()["vxlan_forwarded"], 2);
    });
}
