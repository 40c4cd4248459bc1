//! Network policies in a real kernel, on paths past the usual one: ICMP errors of third parties, and
//! packets between pods of a node that leave it and return.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "tests wait")]

mod namespace;
mod policy;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use namespace::{inside, ip, isolated};
use policy::icmp::unreachable;
use policy::{Pod, addresses, chain, every, link, nft, peers, pods, table};
use socket2::{Domain, Socket, Type};
use tokio::runtime::Runtime;
use trunkline_datapath::kernel::{KernelConfig, KernelEvents, KernelHandle};
use trunkline_datapath::plan::policy::{ChainId, Direction, PolicyChange, PolicyTable, Verdict};

use Direction::{Egress, Ingress};
use Verdict::{Accept, Drop};

const SILENCE: Duration = Duration::from_millis(300);

fn owner() -> (KernelHandle, KernelEvents) {
    KernelHandle::spawn(KernelConfig::default()).unwrap()
}

fn apply(runtime: &Runtime, kernel: &KernelHandle, table: &PolicyTable) -> usize {
    runtime.block_on(kernel.set_policies(table.clone())).unwrap()
}

/// The table with the addresses of these pods, whose links have the pods' group.
fn with_addresses(mut table: PolicyTable, pods: &[&Pod]) -> PolicyTable {
    table.addresses = pods.iter().map(|pod| (pod.index, pod.addresses().into())).collect();
    table
}

fn socket(pod: &Pod, address: IpAddr, port: u16) -> UdpSocket {
    let socket = inside(&pod.namespace, || UdpSocket::bind((address, port)).unwrap());
    socket.set_read_timeout(Some(SILENCE)).unwrap();
    socket
}

/// Whether a datagram between these ports arrives.
fn arrives(from: (&Pod, u16), to: (&Pod, u16), v4: bool) -> bool {
    let address = |pod: &Pod| if v4 { pod.v4 } else { pod.v6 };
    let receiver = socket(to.0, address(to.0), to.1);
    socket(from.0, address(from.0), from.1).send_to(b"x", (address(to.0), to.1)).unwrap();
    receiver.recv(&mut [0; 8]).is_ok()
}

/// Whether an error of `sender` about a datagram from `db` to `to` reaches the socket of `db`.
fn is_disturbed(db: &Pod, to: SocketAddr, sender: &Pod, seen_by_sender: SocketAddr) -> bool {
    let own = if to.is_ipv4() { db.v4 } else { db.v6 };
    let socket = socket(db, own, 0);
    socket.connect(to).unwrap();
    socket.send(b"x").unwrap();
    unreachable(sender, socket.local_addr().unwrap(), seen_by_sender);
    socket.recv(&mut [0; 8]).is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}

#[test]
fn an_icmp_error_of_a_third_pod_needs_a_policy() {
    isolated("an_icmp_error_of_a_third_pod_needs_a_policy", |runtime| {
        let [db, peer, third, router] = pods();
        (1..=3).for_each(|number| drop(ip(&format!("link set pod{number} group 116"))));
        // Nothing answers on port 5000, and no error of the kernel arrives.
        let _sockets = peer.addresses().map(|address| socket(&peer, address, 5000));
        nft("add table inet test");
        nft("add chain inet test pre { type nat hook prerouting priority dstnat ; }");
        nft("add rule inet test pre ip daddr 10.96.0.1 udp dport 53 dnat ip to 10.0.2.2:5000");
        let (kernel, _events) = owner();
        let wanted = table(
            [(1, addresses([]))],
            [(1, chain(Ingress, &[peers(1, Accept), every(Drop)]))],
            [(db.index, link(db.index, Some(1), None))],
        );
        let wanted = with_addresses(wanted, &[&db, &peer, &third]);
        apply(runtime, &kernel, &wanted);
        for to in peer.addresses().map(|address| SocketAddr::new(address, 5000)) {
            assert!(!is_disturbed(&db, to, &third, to), "{to}: an error of a third pod");
            assert!(is_disturbed(&db, to, &peer, to), "{to}: an error of the peer");
            assert!(is_disturbed(&db, to, &router, to), "{to}: an error of a router in the path");
        }
        // The peer is an end of a translated connection.
        let (service, backend) = (SocketAddr::from(([10, 96, 0, 1], 53)), SocketAddr::new(peer.v4, 5000));
        assert!(is_disturbed(&db, service, &peer, backend));
        assert!(!is_disturbed(&db, service, &third, backend));
        // A policy that allows the third pod allows its errors.
        let mut allowed = wanted.clone();
        allowed.sets.values_mut().for_each(|set| set.elements.extend(third.elements()));
        apply(runtime, &kernel, &allowed);
        for to in peer.addresses().map(|address| SocketAddr::new(address, 5000)) {
            assert!(is_disturbed(&db, to, &third, to), "{to}: an error of a pod that may send");
        }
        assert_eq!(apply(runtime, &kernel, &allowed), 0);
        // A change moves the addresses, and the last pod's removal leaves no table.
        let change = PolicyChange { addresses: [(peer.index, None)].into(), ..PolicyChange::default() };
        runtime.block_on(kernel.change_policies(change)).unwrap();
        let to = SocketAddr::new(peer.v4, 5000);
        assert!(!is_disturbed(&db, to, &peer, to), "without its address the peer is a third pod");
        assert_eq!(apply(runtime, &kernel, &allowed), 2, "its two addresses");
    });
}

/// Sends packets between pods 1 and 2 by pod 3, which is the switch.
fn hairpin(switch: &Pod) {
    for (family, via) in [("-4", "10.0.3.2"), ("-6", "fd00:3::2")] {
        for number in [1, 2] {
            ip(&format!("{family} rule add iif pod{number} lookup 100 priority 100"));
            ip(&format!("link set pod{number} group 116"));
        }
        ip(&format!("{family} route add default via {via} dev pod3 table 100"));
    }
    let write = |path: &str, value: &str| std::fs::write(format!("/proc/sys/net/{path}"), value).unwrap();
    ["all", "default", "pod1", "pod2", "pod3"]
        .iter()
        .for_each(|scope| write(&format!("ipv4/conf/{scope}/rp_filter"), "0"));
    inside(&switch.namespace, move || {
        for (path, value) in [
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv4/conf/all/send_redirects", "0"),
            ("ipv4/conf/eth0/send_redirects", "0"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/eth0/rp_filter", "0"),
        ] {
            write(path, value);
        }
    });
}

#[test]
fn a_denied_packet_of_hairpin_opens_no_connection() {
    isolated("a_denied_packet_of_hairpin_opens_no_connection", |runtime| {
        let [evil, db, switch] = pods();
        hairpin(&switch);
        let (kernel, _events) = owner();
        let forwards = |value: &str| {
            inside(&switch.namespace, || std::fs::write("/proc/sys/net/ipv4/ip_forward", value).unwrap());
        };
        forwards("0");
        assert!(!arrives((&evil, 999), (&db, 1999), true), "the packets pass the switch");
        forwards("1");
        let wanted = |peer: &[&Pod]| {
            let peers_of = peer.iter().flat_map(|pod| pod.elements());
            let rules = [peers(1, Accept), every(Drop)];
            let wanted = table(
                [(1, addresses(peers_of))],
                [(1, chain(Ingress, &rules)), (2, chain(Egress, &[every(Drop)]))],
                [(db.index, link(db.index, Some(1), Some(2)))],
            );
            with_addresses(wanted, &[&evil, &db])
        };
        for (v4, port) in [(true, 1_000), (false, 1_001)] {
            apply(runtime, &kernel, &PolicyTable::default());
            assert!(arrives((&evil, port + 100), (&db, 1_999), v4), "without policies");
            apply(runtime, &kernel, &wanted(&[]));
            assert!(!arrives((&evil, port), (&db, 2_000), v4), "ingress denies");
            assert!(!arrives((&db, 2_000), (&evil, port), v4), "no reply to a denied packet");
            assert!(!arrives((&evil, port), (&db, 2_000), v4), "ingress still denies");
            // An allowed packet opens a connection, and the reply passes.
            apply(runtime, &kernel, &wanted(&[&evil]));
            assert!(arrives((&evil, port + 200), (&db, 2_000), v4), "ingress allows");
            assert!(arrives((&db, 2_000), (&evil, port + 200), v4), "a reply");
            assert!(!arrives((&db, 2_001), (&evil, port + 201), v4), "egress denies");
        }
        // The same by changes: a link that loses and gets its policies.
        let of_link = |link| PolicyChange { links: [(db.index, link)].into(), ..PolicyChange::default() };
        let change = |change: PolicyChange| runtime.block_on(kernel.change_policies(change)).unwrap();
        change(of_link(None));
        assert!(arrives((&switch, 7), (&db, 2_002), true));
        change(of_link(Some(link(db.index, Some(1), Some(2)))));
        assert_eq!(apply(runtime, &kernel, &wanted(&[&evil])), 0, "the changes made the same table");
        change(PolicyChange {
            sets: [(
                1.into(),
                trunkline_datapath::plan::policy::PolicySetChange::Changed {
                    added: [].into(),
                    removed: evil.elements().into(),
                },
            )]
            .into(),
            ..PolicyChange::default()
        });
        assert!(!arrives((&evil, 1_500), (&db, 2_003), true));
        assert!(!arrives((&db, 2_003), (&evil, 1_500), true));
        // The chain of a link is deleted with its addresses.
        change(PolicyChange {
            links: [(db.index, None)].into(),
            addresses: [(db.index, None)].into(),
            chains: [(ChainId::from(1), None), (ChainId::from(2), None)].into(),
            sets: [(1.into(), trunkline_datapath::plan::policy::PolicySetChange::Removed)].into(),
        });
        assert!(!nft("list tables").contains("trunkline-policy"));
    });
}

/// IPVS sends a packet to a backend through the output hook, with the client's address as its
/// source. A raw socket of the node stands for IPVS.
#[test]
fn output_from_other_addresses_is_subject_to_ingress_policies() {
    isolated("output_from_other_addresses_is_subject_to_ingress_policies", |runtime| {
        let [db, client, allowed] = pods();
        let (kernel, _events) = owner();
        let wanted = table(
            [(1, addresses(allowed.elements()))],
            [(1, chain(Ingress, &[peers(1, Accept), every(Drop)]))],
            [(db.index, link(db.index, Some(1), None))],
        );
        let receiver = db.udp(2_000);
        let IpAddr::V4(to) = db.v4 else { unreachable!() };
        let arrives = |source: IpAddr| {
            let IpAddr::V4(source) = source else { unreachable!() };
            let header = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
            let udp = [1_000_u16, 2_000, 9, 0].map(u16::to_be_bytes).concat();
            let packet = [&header[..], &source.octets(), &to.octets(), &udp, b"x"].concat();
            let raw = Socket::new(Domain::IPV4, Type::RAW, Some(255.into())).unwrap();
            // The kernel reports a packet that an output rule drops.
            let sent = raw.send_to(&packet, &SocketAddr::from((to, 0)).into());
            assert!(sent.is_ok() || sent.is_err_and(|error| error.raw_os_error() == Some(libc::EPERM)));
            receiver.recv(&mut [0; 8]).is_ok()
        };
        assert!(arrives(client.v4), "without policies");
        apply(runtime, &kernel, &wanted);
        assert!(!arrives(client.v4), "a client that no policy allows");
        assert!(arrives(allowed.v4));
        for node in ["10.0.1.1", "10.0.2.1"] {
            assert!(arrives(node.parse().unwrap()), "the node from {node}");
        }
        let node = |address: IpAddr| UdpSocket::bind(SocketAddr::new(address, 0)).unwrap();
        let unspecified = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
        for (from, to) in unspecified.into_iter().zip(db.addresses()) {
            let receiver = socket(&db, to, 2_001);
            node(from).send_to(b"x", (to, 2_001)).unwrap();
            assert!(receiver.recv(&mut [0; 8]).is_ok(), "a process of the node to {to}");
        }
    });
}

#[test]
fn other_programs_cannot_remove_a_protected_table() {
    isolated("other_programs_cannot_remove_a_protected_table", |runtime| {
        let [db, client] = pods();
        db.serve(80);
        let wanted =
            table([], [(1, chain(Ingress, &[every(Drop)]))], [(db.index, link(db.index, Some(1), None))]);
        let protected = KernelConfig { protects_policies: true, ..KernelConfig::default() };
        let (kernel, events) = KernelHandle::spawn(protected.clone()).unwrap();
        assert!(apply(runtime, &kernel, &wanted) > 0);
        let refused = |command: &str| {
            let output = std::process::Command::new("nft").args(command.split(' ')).output().unwrap();
            !output.status.success()
        };
        let handles = || nft("-a list table inet trunkline-policy");
        let before = handles();
        if !before.contains("flags") {
            assert!(!kernel.status().policies.protected);
            return println!("skipped, this kernel cannot protect a table");
        }
        assert!(kernel.status().policies.protected);
        nft("flush ruleset");
        for command in ["delete table inet trunkline-policy", "flush chain inet trunkline-policy ingress"] {
            assert!(refused(command), "{command}");
        }
        assert_eq!((handles(), client.reaches_pod(&db, 80)), (before.clone(), [false; 2]));
        // The table stays without its owner, and the next run adopts it unchanged.
        drop((kernel, events));
        namespace::eventually("the table has no owner", || !handles().contains("owner"));
        assert_eq!(client.reaches_pod(&db, 80), [false; 2]);
        let (kernel, events) = KernelHandle::spawn(protected).unwrap();
        assert_eq!(apply(runtime, &kernel, &wanted), 0);
        nft("flush ruleset");
        assert_eq!((handles(), client.reaches_pod(&db, 80)), (before, [false; 2]));
        // Without the protection, and in an older version, the table is an ordinary one.
        drop((kernel, events));
        let (kernel, _events) = owner();
        namespace::eventually("the table is replaced", || {
            runtime.block_on(kernel.set_policies(wanted.clone())).is_ok()
        });
        assert_eq!((handles().contains("flags"), client.reaches_pod(&db, 80)), (false, [false; 2]));
        nft("delete table inet trunkline-policy");
    });
}
