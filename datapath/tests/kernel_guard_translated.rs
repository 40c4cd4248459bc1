//! The guard in a real kernel against packets that a Service leads to BGP, BFD or the overlay of a
//! node. The node that translates the packet may be another than that of the pod, so the packet
//! comes by an uplink.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "tests wait")]

mod namespace;
mod policy;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use namespace::{inside, ip, isolated};
use policy::{Pod, nft, pods};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::runtime::Runtime;
use trunkline_datapath::kernel::{KernelConfig, KernelHandle};
use trunkline_datapath::nft::guard::counters;
use trunkline_datapath::plan::{GuardPlan, GuardedOverlay, GuardedTunnel, KernelPlan};

const BGP: u16 = 179;
const BFD: u16 = 4_784;
const PORT: u16 = 8_472;
const VNI: u32 = 100;
/// The ports of Services on this node.
const NODE_PORT: u16 = 30_053;
const SILENCE: Duration = Duration::from_millis(300);

/// The guard of this node. Node 2 has a VTEP; this node has tunnels only if `tunnel` is true.
fn guard(enabled: bool, tunnel: bool) -> KernelPlan {
    let overlay = GuardedOverlay { vni: VNI, port: PORT };
    let node2: BTreeSet<IpAddr> = ["10.0.3.2", "fd00:3::2"].map(|address| address.parse().unwrap()).into();
    let own = GuardedTunnel { overlay, local: "10.0.3.1".parse().unwrap(), vteps: node2.clone() };
    let guard = GuardPlan {
        enabled,
        bgp_ports: [BGP].into(),
        vxlan_ports: [PORT].into(),
        overlay: tunnel.then_some(overlay),
        tunnel: tunnel.then_some(own),
        nodes: node2,
        ..GuardPlan::default()
    };
    KernelPlan { guard, ..KernelPlan::default() }
}

fn set(runtime: &Runtime, kernel: &KernelHandle, plan: KernelPlan) {
    assert_eq!(runtime.block_on(kernel.set_plan(plan)).unwrap().faults, [""; 0]);
}

fn counted() -> BTreeMap<String, u64> {
    counters().unwrap().into_iter().collect()
}

fn listen(pod: &Pod, address: IpAddr, port: u16) -> UdpSocket {
    let socket = inside(&pod.namespace, || UdpSocket::bind((address, port)).unwrap());
    socket.set_read_timeout(Some(SILENCE)).unwrap();
    socket
}

fn send(from: &Pod, to: SocketAddr, content: &[u8]) {
    let own = if to.is_ipv4() { from.v4 } else { from.v6 };
    let socket = inside(&from.namespace, || UdpSocket::bind((own, 0)).unwrap());
    socket.send_to(content, to).unwrap();
}

/// Whether the next datagrams of the socket contain this one.
fn receives(socket: &UdpSocket, content: &[u8]) -> bool {
    let mut buffer = [0; 4096];
    while let Ok(length) = socket.recv(&mut buffer) {
        if &buffer[..length] == content {
            return true;
        }
    }
    false
}

/// Sends an IPv4 packet from this node with any source, as IPVS does.
fn send_raw(source: IpAddr, to: IpAddr, protocol: i32, content: &[u8]) {
    let (IpAddr::V4(source), IpAddr::V4(to)) = (source, to) else { unreachable!() };
    let header = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol as u8, 0, 0];
    let packet = [&header[..], &source.octets(), &to.octets(), content].concat();
    let raw = Socket::new(Domain::IPV4, Type::RAW, Some(255.into())).unwrap();
    // The kernel reports a packet that an output rule drops.
    let sent = raw.send_to(&packet, &SocketAddr::from((to, 0)).into());
    assert!(sent.is_ok() || sent.is_err_and(|error| error.raw_os_error() == Some(libc::EPERM)));
}

/// Likewise over IPv6.
fn send_raw_v6(source: IpAddr, to: IpAddr, protocol: i32, content: &[u8]) {
    let (IpAddr::V6(source), IpAddr::V6(to)) = (source, to) else { unreachable!() };
    let length = (content.len() as u16).to_be_bytes();
    let header = [0x60, 0, 0, 0, length[0], length[1], protocol as u8, 64];
    let packet = [&header[..], &source.octets(), &to.octets(), content].concat();
    let raw = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW))).unwrap();
    let sent = raw.send_to(&packet, &SocketAddr::from((to, 0)).into());
    assert!(sent.is_ok() || sent.is_err_and(|error| error.raw_os_error() == Some(libc::EPERM)));
}

/// A UDP datagram without its IP header. IPv4 needs no checksum.
fn udp(source: u16, to: u16, content: &[u8]) -> Vec<u8> {
    let length = (8 + content.len()) as u16;
    [&[source, to, length, 0].map(u16::to_be_bytes).concat()[..], content].concat()
}

/// The rules of kube-proxy for Services with the endpoint node 2.
fn services() {
    let rules = format!(
        "add table inet test
         add chain inet test pre {{ type nat hook prerouting priority dstnat ; }}
         add rule inet test pre ip daddr 10.0.0.0/8 tcp dport {NODE_PORT} dnat ip to 10.0.3.2:{BGP}
         add rule inet test pre ip6 daddr fd00::/16 tcp dport {NODE_PORT} dnat ip6 to [fd00:3::2]:{BGP}
         add rule inet test pre ip daddr 10.0.0.0/8 udp dport {NODE_PORT} dnat ip to 10.0.3.2:{BFD}
         add rule inet test pre ip6 daddr fd00::/16 udp dport {NODE_PORT} dnat ip6 to [fd00:3::2]:{BFD}
         add chain inet test post {{ type nat hook postrouting priority srcnat ; }}
         add rule inet test post ct status dnat masquerade"
    );
    rules.lines().for_each(|rule| drop(nft(rule.trim())));
}

#[test]
fn a_service_leads_to_no_bgp_and_no_bfd_of_another_node() {
    isolated("a_service_leads_to_no_bgp_and_no_bfd_of_another_node", |runtime| {
        let [pod, uplink, node2] = pods();
        ip("link set pod1 group 116");
        services();
        node2.serve(BGP);
        let (kernel, _events) = KernelHandle::spawn(KernelConfig::default()).unwrap();
        let received = [node2.v4, node2.v6].map(|address| listen(&node2, address, BFD));
        for tunnel in [true, false] {
            // A pod of this node, and a pod of another node, whose packets come by an uplink.
            for (who, from, own) in [("a pod", &pod, 1), ("by an uplink", &uplink, 2)] {
                let services = [format!("10.0.{own}.1"), format!("fd00:{own}::1")];
                let services = services.map(|address| address.parse::<IpAddr>().unwrap());
                for enabled in [false, true] {
                    set(runtime, &kernel, guard(enabled, tunnel));
                    for (service, received) in services.into_iter().zip(&received) {
                        let seen = (from.reaches(service, NODE_PORT), {
                            send(from, (service, NODE_PORT).into(), b"x");
                            receives(received, b"x")
                        });
                        assert_eq!(seen, (!enabled, !enabled), "{who}, {service}, guard {enabled}");
                    }
                }
                let counted = counted();
                assert!(counted["bgp"] >= 2, "{who}: {counted:?}");
                assert_eq!(counted["bfd"], 2, "{who}: {counted:?}");
            }
            // This node is a router between routers and nodes: no translation, no drop.
            assert_eq!(uplink.reaches_pod(&node2, BGP), [true; 2]);
            for (address, received) in node2.addresses().into_iter().zip(&received) {
                send(&uplink, (address, BFD).into(), b"y");
                assert!(receives(received, b"y"), "BFD to {address}");
            }
        }
    });
}

/// IPVS sends a translated packet through the output hook, with the client's address as its source.
/// A raw socket of the node stands for IPVS.
#[test]
fn ipvs_leads_to_no_bgp_and_no_bfd_of_another_node() {
    isolated("ipvs_leads_to_no_bgp_and_no_bfd_of_another_node", |runtime| {
        let [pod, uplink, node2] = pods();
        ip("link set pod1 group 116");
        node2.serve(BGP);
        let (kernel, _events) = KernelHandle::spawn(KernelConfig::default()).unwrap();
        nft("add table inet test");
        nft("add chain inet test out { type filter hook postrouting priority 0 ; }");
        nft("add counter inet test segments");
        nft(&format!("add rule inet test out tcp dport {BGP} counter name segments"));
        let segments = || {
            let text = nft("list counter inet test segments");
            let mut words = text.split_whitespace().skip_while(|word| *word != "packets");
            words.nth(1).unwrap().parse::<u64>().unwrap()
        };
        let received = listen(&node2, node2.v4, BFD);
        let received_v6 = listen(&node2, node2.v6, BFD);
        // An offset of 5 words and the flag SYN (RFC 9293 §3.1).
        let syn = [&[40_000, BGP].map(u16::to_be_bytes).concat()[..], &[0; 8], &[0x50, 2, 1, 0, 0, 0, 0, 0]];
        let syn = syn.concat();
        let own: [IpAddr; 2] = ["10.0.3.1".parse().unwrap(), "10.0.1.1".parse().unwrap()];
        for tunnel in [true, false] {
            for enabled in [false, true] {
                set(runtime, &kernel, guard(enabled, tunnel));
                for (source, is_own) in [(pod.v4, false), (uplink.v4, false), (own[0], true), (own[1], true)]
                {
                    let what = format!("{source}, guard {enabled}, tunnel {tunnel}");
                    let before = segments();
                    send_raw(source, node2.v4, libc::IPPROTO_TCP, &syn);
                    assert_eq!(segments() - before, u64::from(is_own || !enabled), "BGP from {what}");
                    let content = what.as_bytes();
                    send_raw(source, node2.v4, libc::IPPROTO_UDP, &udp(49_152, BFD, content));
                    assert_eq!(receives(&received, content), is_own || !enabled, "BFD from {what}");
                }
                for (source, is_own) in [(pod.v6, false), ("fd00:3::1".parse().unwrap(), true)] {
                    let before = segments();
                    send_raw_v6(source, node2.v6, libc::IPPROTO_TCP, &syn);
                    assert_eq!(segments() - before, u64::from(is_own || !enabled), "BGP from {source}");
                }
            }
            let counted = counted();
            assert_eq!((counted["bgp"], counted["bfd"]), (3, 2), "{counted:?}");
            // Processes of this node are peers of other nodes: directly, from another address of the
            // node, and through a Service of a route reflector.
            for to in node2.addresses() {
                let to = SocketAddr::new(to, BGP);
                assert!(TcpStream::connect_timeout(&to, SILENCE * 3).is_ok(), "BGP of the node to {to}");
            }
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.bind(&SocketAddr::new(own[1], 0).into()).unwrap();
            socket.connect_timeout(&SocketAddr::new(node2.v4, BGP).into(), SILENCE * 3).unwrap();
            for (to, received) in node2.addresses().into_iter().zip([&received, &received_v6]) {
                let any = if to.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
                UdpSocket::bind((any, 0)).unwrap().send_to(b"own", (to, BFD)).unwrap();
                assert!(receives(received, b"own"), "BFD of the node to {to}");
            }
            if tunnel {
                nft("add chain inet test nat { type nat hook output priority -100 ; }");
                nft(&format!(
                    "add rule inet test nat ip daddr 10.96.0.1 tcp dport 80 dnat ip to 10.0.3.2:{BGP}"
                ));
                ip("route add 10.96.0.1 via 10.0.3.2");
            }
            let service = SocketAddr::from((Ipv4Addr::new(10, 96, 0, 1), 80));
            assert!(TcpStream::connect_timeout(&service, SILENCE * 3).is_ok(), "a peer behind a Service");
        }
    });
}

/// IPVS translates packets to a process of this node within the input hook. A rule at its priority
/// that writes the port stands for IPVS.
#[test]
fn ipvs_leads_to_no_guarded_port_of_the_node() {
    isolated("ipvs_leads_to_no_guarded_port_of_the_node", |runtime| {
        let [pod, uplink, node2] = pods();
        ip("link set pod1 group 116");
        let (kernel, _events) = KernelHandle::spawn(KernelConfig::default()).unwrap();
        let node = |port: u16| {
            let socket = UdpSocket::bind(("::", port)).unwrap();
            socket.set_read_timeout(Some(SILENCE)).unwrap();
            socket
        };
        let (bfd, overlay) = (node(BFD), node(PORT));
        let vxlan = |octet: u8| [&[8, 0, 0, 0][..], &(VNI << 8).to_be_bytes(), &[octet; 30]].concat();
        let ipvs = format!(
            "add table inet test
             add chain inet test raw {{ type filter hook prerouting priority -300 ; }}
             add rule inet test raw udp dport {} notrack
             add chain inet test ipvs {{ type filter hook input priority 99 ; }}
             add rule inet test ipvs udp dport {NODE_PORT} udp dport set {PORT}
             add rule inet test ipvs udp dport {} udp dport set {PORT}
             add rule inet test ipvs udp dport {} udp dport set {BFD}
             add chain inet test nat {{ type nat hook input priority 100 ; }}
             add rule inet test nat ip saddr 10.0.2.2 udp dport {PORT} snat ip to 10.0.3.2",
            NODE_PORT + 1,
            NODE_PORT + 1,
            NODE_PORT + 2
        );
        ipvs.lines().for_each(|rule| drop(nft(rule.trim())));
        for enabled in [false, true] {
            set(runtime, &kernel, guard(enabled, true));
            for own in ["10.0.1.1", "fd00:1::1"].map(|address| address.parse::<IpAddr>().unwrap()) {
                send(&pod, (own, NODE_PORT + 2).into(), b"bfd");
                assert_eq!(receives(&bfd, b"bfd"), !enabled, "BFD to {own}, guard {enabled}");
            }
            // A host in the fabric, whose source may be translated to that of a VTEP, and a pod that
            // another node gave the address of its VTEP.
            for (from, own) in
                [(&uplink, "10.0.2.1"), (&uplink, "fd00:2::1"), (&node2, "10.0.3.1"), (&node2, "fd00:3::1")]
            {
                let own: IpAddr = own.parse().unwrap();
                send(from, (own, NODE_PORT).into(), &vxlan(1));
                assert_eq!(receives(&overlay, &vxlan(1)), !enabled, "overlay to {own}, guard {enabled}");
            }
            // IPVS without connection tracking (`vs.conntrack` is 0).
            let own: IpAddr = "10.0.2.1".parse().unwrap();
            send(&uplink, (own, NODE_PORT + 1).into(), &vxlan(2));
            assert_eq!(receives(&overlay, &vxlan(2)), !enabled, "untracked to {own}, guard {enabled}");
            // The tunnel of node 2.
            for own in ["10.0.3.1", "fd00:3::1"].map(|address| address.parse::<IpAddr>().unwrap()) {
                send(&node2, (own, PORT).into(), &vxlan(3));
                assert!(receives(&overlay, &vxlan(3)), "from the VTEP to {own}, guard {enabled}");
            }
        }
        let before = counted();
        assert_eq!((before["bfd"], before["vtep"]), (2, 5), "{before:?}");
        // Tunnels that the administrator does not track.
        nft(&format!("add rule inet test raw udp dport {PORT} notrack"));
        send(&node2, ("10.0.3.1".parse::<IpAddr>().unwrap(), PORT).into(), &vxlan(4));
        assert!(receives(&overlay, &vxlan(4)), "an untracked packet of the VTEP");
        // A NAT rule at prerouting leads to the tunnel, from the address of a VTEP.
        nft("add chain inet test pre { type nat hook prerouting priority dstnat ; }");
        nft(&format!("add rule inet test pre udp dport {} redirect to :{PORT}", NODE_PORT + 3));
        send(&node2, ("10.0.3.1".parse::<IpAddr>().unwrap(), NODE_PORT + 3).into(), &vxlan(5));
        assert!(!receives(&overlay, &vxlan(5)), "a translated packet from the address of a VTEP");
        assert_eq!(counted()["vtep"], before["vtep"] + 1);
    });
}

/// The kernel reassembles IPv6 fragments after the input hook, unless connections are tracked.
#[test]
fn fragments_of_the_overlay_are_reassembled_before_the_rules() {
    isolated("fragments_of_the_overlay_are_reassembled_before_the_rules", |runtime| {
        let [fabric, node2] = pods();
        let (kernel, _events) = KernelHandle::spawn(KernelConfig::default()).unwrap();
        let own: IpAddr = "fd00:1::1".parse().unwrap();
        let received = UdpSocket::bind((own, PORT)).unwrap();
        received.set_read_timeout(Some(SILENCE)).unwrap();
        let content = [&[8, 0, 0, 0][..], &(VNI << 8).to_be_bytes(), &[7; 24]].concat();
        let datagram = checked_udp(fabric.v6, own, &content);
        // The first fragment has the UDP header and no VNI (RFC 8200 §4.5).
        let fragments = |number: u8| {
            let part = |offset: u16, more: u16, part: &[u8]| {
                let field = (offset | more).to_be_bytes();
                [&[17, 0, field[0], field[1], 0, 0, 0, number][..], part].concat()
            };
            [part(0, 1, &datagram[..8]), part(8, 0, &datagram[8..])]
        };
        for (number, enabled) in [(1, false), (2, true)] {
            // Nodes without other nodes: no rule but those of the tunnel refers to connections.
            let mut plan = guard(enabled, true);
            plan.guard.nodes = BTreeSet::new();
            plan.guard.tunnel.as_mut().unwrap().vteps = node2.addresses().into();
            set(runtime, &kernel, plan);
            inside(&fabric.namespace, || {
                for fragment in fragments(number) {
                    send_raw_v6(fabric.v6, own, 44, &fragment);
                }
            });
            assert_eq!(receives(&received, &content), !enabled, "guard {enabled}");
        }
        assert_eq!(counted()["vtep"], 1);
    });
}

/// A UDP datagram over IPv6 to the overlay's port, with its checksum (RFC 8200 §8.1).
fn checked_udp(source: IpAddr, to: IpAddr, content: &[u8]) -> Vec<u8> {
    let (IpAddr::V6(source), IpAddr::V6(to)) = (source, to) else { unreachable!() };
    let mut datagram = udp(49_152, PORT, content);
    let length = datagram.len() as u32;
    let pseudo = [&source.octets()[..], &to.octets(), &length.to_be_bytes(), &[0, 0, 0, 17]].concat();
    let words = pseudo.chunks(2).chain(datagram.chunks(2));
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    datagram
}
