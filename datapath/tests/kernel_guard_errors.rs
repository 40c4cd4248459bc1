//! The guard in a real kernel: ICMP errors that a pod sends about connections of others, and about
//! its own. The receiver is behind an uplink, so its node would accept errors from the fabric.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "tests wait")]

mod namespace;
mod policy;

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use namespace::{inside, ip, ip_json, isolated};
use policy::icmp::unreachable;
use policy::{Pod, nft, pods};
use tokio::runtime::Runtime;
use trunkline_datapath::kernel::{KernelConfig, KernelHandle};
use trunkline_datapath::nft::guard::counters;
use trunkline_datapath::plan::{GuardPlan, GuardedOverlay, GuardedTunnel, KernelPlan, Neighbour, PodPlan};

const SILENCE: Duration = Duration::from_millis(300);

fn set(runtime: &Runtime, kernel: &KernelHandle, checks_errors: bool) {
    let guard = GuardPlan { enabled: true, checks_errors, ..GuardPlan::default() };
    let plan = KernelPlan { guard, ..KernelPlan::default() };
    assert_eq!(runtime.block_on(kernel.set_plan(plan)).unwrap().faults, [""; 0]);
}

/// The plan of a pod with its addresses.
fn plan(pod: &Pod, number: usize) -> PodPlan {
    let shown = inside(&pod.namespace, || ip_json("link show eth0"));
    let octets: Vec<u8> = shown[0]["address"]
        .as_str()
        .unwrap()
        .split(':')
        .map(|octet| u8::from_str_radix(octet, 16).unwrap())
        .collect();
    let mac = octets.try_into().unwrap();
    let neighbour = |address| Neighbour { ifindex: pod.index, address, mac };
    PodPlan {
        host_ifname: format!("pod{number}"),
        host_ifindex: pod.index,
        neighbours: pod.addresses().map(neighbour).into(),
        ..PodPlan::default()
    }
}

/// A socket of a host with a connection to `to`, which has sent a datagram.
fn connection(from: &Pod, to: SocketAddr) -> UdpSocket {
    let own = if to.is_ipv4() { from.v4 } else { from.v6 };
    let socket = inside(&from.namespace, || UdpSocket::bind((own, 0)).unwrap());
    socket.set_read_timeout(Some(SILENCE)).unwrap();
    socket.connect(to).unwrap();
    socket.send(b"x").unwrap();
    socket
}

fn is_refused(socket: &UdpSocket) -> bool {
    socket.recv(&mut [0; 8]).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Whether an error of `sender` ends a connection of `from`. `seen`: the destination in the error.
fn is_disturbed(from: &Pod, to: SocketAddr, sender: &Pod, seen: SocketAddr) -> bool {
    let socket = connection(from, to);
    unreachable(sender, socket.local_addr().unwrap(), seen);
    is_refused(&socket)
}

fn dropped() -> u64 {
    counters().unwrap().into_iter().find(|(reason, _)| reason == "icmp_error").unwrap().1
}

#[test]
fn a_pod_sends_icmp_errors_about_its_own_connections_only() {
    isolated("a_pod_sends_icmp_errors_about_its_own_connections_only", |runtime| {
        let [third, peer, db] = pods();
        for number in [1, 2] {
            ip(&format!("link set pod{number} group 116"));
        }
        // Destinations of `db` that this node does not see.
        inside(&db.namespace, || {
            ip("link add other type veth peer name far");
            ip("link set far up");
            ip("link set other up");
            ip("route add 192.0.2.0/24 dev other");
            ip("neigh add 192.0.2.1 lladdr 02:00:00:00:00:09 dev other");
            ip("-6 route add 2001:db8::/64 dev other");
            ip("neigh add 2001:db8::1 lladdr 02:00:00:00:00:09 dev other");
        });
        nft("add table inet test");
        nft("add chain inet test pre { type nat hook prerouting priority dstnat ; }");
        nft("add rule inet test pre ip daddr 10.96.0.1 udp dport 53 dnat ip to 10.0.2.2:5000");
        let _silent = peer
            .addresses()
            .map(|address| inside(&peer.namespace, || UdpSocket::bind((address, 5_000)).unwrap()));
        let (kernel, _events) = KernelHandle::spawn(KernelConfig::default()).unwrap();
        set(runtime, &kernel, false);
        let own = [plan(&third, 1), plan(&peer, 2)];
        assert!(runtime.block_on(kernel.set_pods(own.to_vec())).unwrap().is_empty());
        let unseen = ["192.0.2.1:53", "[2001:db8::1]:53"].map(|to| to.parse::<SocketAddr>().unwrap());
        let to_peer = peer.addresses().map(|address| SocketAddr::new(address, 5_000));
        let (service, backend) = (SocketAddr::from(([10, 96, 0, 1], 53)), to_peer[0]);
        for checks in [false, true] {
            set(runtime, &kernel, checks);
            for to in unseen {
                assert_eq!(is_disturbed(&db, to, &third, to), !checks, "{to}: a connection elsewhere");
            }
            for to in to_peer {
                assert_eq!(is_disturbed(&db, to, &third, to), !checks, "{to}: a connection of another pod");
                assert!(is_disturbed(&db, to, &peer, to), "{to}: an error of the pod that it is about");
            }
            assert!(is_disturbed(&db, service, &peer, backend), "a translated connection");
            assert_eq!(is_disturbed(&db, service, &third, backend), !checks);
            // Errors of the pod's own kernel: about a closed port, and as a client.
            for address in peer.addresses() {
                assert!(is_refused(&connection(&db, SocketAddr::new(address, 5_001))), "{address}");
            }
            for (address, own) in db.addresses().into_iter().zip(peer.addresses()) {
                let server = inside(&db.namespace, || UdpSocket::bind((address, 6_000)).unwrap());
                server.set_read_timeout(Some(SILENCE)).unwrap();
                let client = connection(&peer, server.local_addr().unwrap());
                let (_, from) = server.recv_from(&mut [0; 8]).unwrap();
                drop(client);
                server.connect(from).unwrap();
                server.send(b"late").unwrap();
                assert!(is_refused(&server), "{own}: an answer to a closed socket");
            }
        }
        assert_eq!(dropped(), 5);
        assert!(third.ping(db.v4) && third.ping(db.v6), "other ICMP passes");

        // A pod that routes for others reports about the connections of its prefixes.
        std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "0").unwrap();
        ip("route add 10.9.0.0/16 via 10.0.2.2");
        ip("-6 route add fd00:9::/64 via fd00:2::2");
        let behind = ["10.9.1.1:53", "[fd00:9::1]:53"].map(|to| to.parse::<SocketAddr>().unwrap());
        for (index, to) in behind.into_iter().enumerate() {
            assert!(!is_disturbed(&db, to, &peer, to), "{index}: without the prefix");
        }
        let [_, router] = own;
        let prefixes = ["10.9.0.0/16", "fd00:9::/64"].map(|prefix| prefix.parse().unwrap());
        runtime.block_on(kernel.add_pod(PodPlan { sources: prefixes.into(), ..router })).unwrap();
        for to in behind {
            assert!(is_disturbed(&db, to, &peer, to), "{to}: a router of the path");
            assert!(!is_disturbed(&db, to, &third, to), "{to}: a third pod");
        }
    });
}

/// The text of the rules is that of `nft list`. Otherwise each restart would load them again.
#[test]
fn a_restart_keeps_all_rules_of_the_guard() {
    isolated("a_restart_keeps_all_rules_of_the_guard", |runtime| {
        for (local, other) in [("10.0.3.1", "10.0.3.2"), ("fd00:3::1", "fd00:3::2")] {
            let (local, other) = (local.parse().unwrap(), other.parse().unwrap());
            let overlay = GuardedOverlay { vni: 100, port: 8_472 };
            let guard = GuardPlan {
                enabled: true,
                bgp_ports: [179, 1_790].into(),
                vxlan_ports: [4_789, 8_472].into(),
                overlay: Some(overlay),
                tunnel: Some(GuardedTunnel { overlay, local, vteps: [other].into() }),
                nodes: [other].into(),
                peers: [other].into(),
                neighbours: ["172.16.0.0/12", "10.0.9.9/32", "2001:db8::/33", "2001:db8:9::9/128"]
                    .map(|prefix| prefix.parse().unwrap())
                    .into(),
                own_servers: ["127.0.0.1:10256", "[::1]:10256"].map(|server| server.parse().unwrap()).into(),
                peer_ports: [179, 1_791].into(),
                keeps_own: true,
                checks_errors: true,
                closes_loopback: true,
            };
            let run = || {
                let (kernel, _events) = KernelHandle::spawn(KernelConfig::default()).unwrap();
                let plan = KernelPlan { guard: guard.clone(), ..KernelPlan::default() };
                assert_eq!(runtime.block_on(kernel.set_plan(plan)).unwrap().faults, [""; 0]);
                nft("-a list table inet trunkline-guard")
            };
            let first = run();
            assert_eq!(run(), first, "with the handles of its rules");
        }
    });
}
