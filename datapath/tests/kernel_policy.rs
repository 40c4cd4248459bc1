//! The table of network policies in a real kernel: packets between pods through their router.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "tests wait")]

mod namespace;
mod policy;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use namespace::{inside, ip, isolated};
use policy::{
    addresses, chain, counted, echoes, every, jump, link, listed, nft, numbered, peers, pods, ports, range,
    set, table, tcp, tcp_set,
};
use tokio::runtime::Runtime;
use trunkline_api::service::Protocol;
use trunkline_datapath::kernel::{KernelConfig, KernelError, KernelEvents, KernelHandle};
use trunkline_datapath::nft::policy::counters;
use trunkline_datapath::nft::policy_log::PolicyLog;
use trunkline_datapath::plan::policy::{
    ChainId, CounterId, Direction, Element, PolicyChange, PolicyPart, PolicyRule, PolicySetChange,
    PolicySetKind, PolicyTable, PortMatch, PortNumbers, SetId, Verdict,
};

use Direction::{Egress, Ingress};
use Verdict::{Accept, Drop, Return};

fn owner() -> (KernelHandle, KernelEvents) {
    KernelHandle::spawn(KernelConfig::default()).unwrap()
}

fn apply(runtime: &Runtime, kernel: &KernelHandle, table: &PolicyTable) -> usize {
    runtime.block_on(kernel.set_policies(table.clone())).unwrap()
}

fn change(runtime: &Runtime, kernel: &KernelHandle, change: PolicyChange) {
    runtime.block_on(kernel.change_policies(change)).unwrap();
}

fn changed_set(id: u64, added: &[Element], removed: &[Element]) -> PolicyChange {
    let elements = |elements: &[Element]| elements.iter().copied().collect();
    let change = PolicySetChange::Changed { added: elements(added), removed: elements(removed) };
    PolicyChange { sets: [(SetId::from(id), change)].into(), ..PolicyChange::default() }
}

fn named(set: u64) -> PolicyRule {
    PolicyRule { ports: PortMatch::Named(SetId::from(set)), ..every(Accept) }
}

#[test]
fn nft_lists_the_table_readably() {
    isolated("nft_lists_the_table_readably", |runtime| {
        let [pod] = pods();
        let (kernel, _events) = owner();
        let port = Element::Port(pod.v4, Protocol::Tcp, 8080);
        let port6 = Element::Port(pod.v6, Protocol::Udp, 53);
        let block = PolicyRule { logged: true, ..counted(0x11, peers(3, Drop)) };
        let wanted = table(
            [
                (1, addresses(pod.elements())),
                (2, set(PolicySetKind::Ports, [port, port6])),
                (
                    3,
                    set(
                        PolicySetKind::Ranges,
                        [range("10.0.0.0", "10.255.255.255"), range("240.0.0.0", "255.255.255.255")],
                    ),
                ),
                (4, ports(&[(80, 80), (90, 99), (65000, 65535)])),
            ],
            [
                (0xa, chain(Ingress, &[every(jump(0xb)), counted(0x10, every(Drop))])),
                (
                    0xb,
                    chain(
                        Ingress,
                        &[
                            PolicyRule { ports: tcp_set(4, Accept).ports, ..peers(1, Accept) },
                            PolicyRule { ports: tcp(90, 99, Accept).ports, ..peers(1, Accept) },
                            tcp_set(4, Accept),
                        ],
                    ),
                ),
                (0xc, chain(Egress, &[named(2), block, every(Return)])),
            ],
            [(pod.index, link(pod.index, Some(0xa), Some(0xc)))],
        );
        assert!(apply(runtime, &kernel, &wanted) > 20);
        let text = listed();
        let has = |line: &str| {
            assert!(
                text.iter().any(|found| found.split(" comment").next() == Some(line)),
                "{line}\n{}",
                text.join("\n")
            )
        };
        for line in [
            "rate 10/second burst 20 packets",
            "counter p0000000000000010 {",
            "set s00000000000000014 {",
            "elements = { 10.0.1.2 }",
            "elements = { fd00:1::2 }",
            "type ipv4_addr . inet_proto . inet_service",
            "elements = { 10.0.1.2 . tcp . 8080 }",
            "elements = { fd00:1::2 . udp . 53 }",
            "flags interval",
            "elements = { 10.0.0.0/8, 240.0.0.0/4 }",
            "type iface_index . iface_index",
            "elements = { \"pod1\" . \"pod1\" }",
            "type iface_index : verdict",
            &format!("elements = {{ \"pod1\" : jump from_{} }}", pod.index),
            "type filter hook forward priority -20; policy accept;",
            "type filter hook forward priority -19; policy accept;",
            "type filter hook input priority -20; policy accept;",
            "type filter hook output priority -20; policy accept;",
            "fib saddr type local accept",
            "ct state established accept",
            "ct state related jump related",
            "iifgroup != 116 accept",
            "meta nfproto ipv4 iif . ct original ip saddr @own4 accept",
            "meta nfproto ipv6 iif . ct reply ip6 saddr @own6 accept",
            "type iface_index . ipv4_addr",
            "type ipv6_addr : verdict",
            "oifgroup != 116 ip daddr vmap @to_addresses4",
            "iif . oif @same_pod accept",
            "icmpv6 type nd-neighbor-solicit accept",
            "icmpv6 type nd-neighbor-advert accept",
            "iif vmap @from_pods",
            "oif vmap @to_pods",
            "jump c000000000000000a",
            "type inet_service",
            "elements = { 80, 90-99, 65000-65535 }",
            "ip saddr @s00000000000000014 tcp dport @s0000000000000004p accept",
            "tcp dport @s0000000000000004p accept",
            "ip6 saddr @s00000000000000016 tcp dport 90-99 accept",
            "ip daddr . meta l4proto . th dport @s00000000000000024 accept",
            "ip6 daddr . meta l4proto . th dport @s00000000000000026 accept",
            "ip daddr @s00000000000000034 limit name \"logged\" log prefix \"0000000000000011\" group 116 snaplen 128",
            "ip daddr @s00000000000000034 counter name \"p0000000000000011\" drop",
            "counter name \"p0000000000000010\" drop",
            "return",
        ] {
            has(line);
        }
        assert!(!text.iter().any(|line| line.contains("ip6 daddr @s0000000000000003")), "no IPv6 ranges");
        assert_eq!(apply(runtime, &kernel, &wanted), 0);
        assert_eq!(apply(runtime, &kernel, &PolicyTable::default()), 1);
        assert!(!nft("list tables").contains("trunkline-policy"));
        assert_eq!(apply(runtime, &kernel, &PolicyTable::default()), 0);
    });
}

#[test]
fn peers_are_allowed_in_both_directions_and_families() {
    isolated("peers_are_allowed_in_both_directions_and_families", |runtime| {
        let [a, b, c] = pods();
        [&a, &b, &c].iter().for_each(|pod| pod.serve(80));
        let (kernel, _events) = owner();
        // Ingress of `b` from `a` only; egress of `c` to `a` only.
        let wanted = table(
            [(1, addresses(a.elements()))],
            [
                (1, chain(Ingress, &[peers(1, Accept), counted(7, every(Drop))])),
                (2, chain(Egress, &[peers(1, Accept), counted(8, every(Drop))])),
            ],
            [(b.index, link(b.index, Some(1), None)), (c.index, link(c.index, None, Some(2)))],
        );
        assert_eq!(a.reaches_pod(&b, 80), [true; 2]);
        apply(runtime, &kernel, &wanted);
        for (from, to, reaches) in
            [(&a, &b, true), (&c, &b, false), (&c, &a, true), (&b, &c, true), (&a, &c, true)]
        {
            assert_eq!(from.reaches_pod(to, 80), [reaches; 2]);
            assert_eq!(to.addresses().map(|address| from.ping(address)), [reaches; 2]);
        }
        let counts = counters().unwrap();
        let of = |id: u64| counts.iter().find(|(found, _)| *found == CounterId::from(id)).unwrap().1;
        // From `c` to `b`: the egress policies of `c` drop the packets before the ingress of `b`.
        assert!(of(8).packets >= 4 && of(8).octets > 4 * 60, "{counts:?}");
        assert_eq!(of(7).packets, 0);

        // The node's own packets to a pod are exempt.
        assert!(std::net::TcpStream::connect_timeout(&(b.v4, 80).into(), Duration::from_secs(1)).is_ok());
        // An element less, then one more.
        change(runtime, &kernel, changed_set(1, &[], &a.elements()));
        assert_eq!(a.reaches_pod(&b, 80), [false; 2]);
        change(runtime, &kernel, changed_set(1, &c.elements(), &[]));
        assert_eq!((c.reaches_pod(&b, 80), c.reaches_pod(&a, 80)), ([false; 2], [false; 2]));
        // Without its egress policies, `c` reaches `b`.
        let links = [(c.index, None)].into();
        change(runtime, &kernel, PolicyChange { links, ..PolicyChange::default() });
        assert_eq!((c.reaches_pod(&b, 80), c.reaches_pod(&a, 80)), ([true; 2], [true; 2]));
        assert!(kernel.status().policies.loaded);
    });
}

#[test]
fn ranges_reach_the_first_and_last_address() {
    isolated("ranges_reach_the_first_and_last_address", |runtime| {
        let [a, b] = pods();
        b.serve(80);
        let (kernel, _events) = owner();
        let with = |ranges: &[Element]| {
            table(
                [(1, set(PolicySetKind::Ranges, ranges.iter().copied()))],
                [(1, chain(Ingress, &[peers(1, Accept), every(Drop)]))],
                [(b.index, link(b.index, Some(1), None))],
            )
        };
        let last = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        for (ranges, reaches) in [
            (vec![range("0.0.0.0", "255.255.255.255")], [true, false]),
            (vec![range("::", last)], [false, true]),
            (vec![range("0.0.0.0", "255.255.255.255"), range("::", last)], [true, true]),
            (vec![range("10.0.1.3", "255.255.255.255"), range("fd00:1::2", last)], [false, true]),
            (vec![range("0.0.0.0", "10.0.1.1"), range("::", "fd00:1::1")], [false, false]),
            (vec![range("0.0.0.0", "10.0.1.1"), range("10.0.1.3", "10.0.1.9")], [false, false]),
            (vec![range("10.0.1.2", "10.0.1.2"), range("fd00:1::2", "fd00:1::2")], [true, true]),
            (vec![], [false, false]),
        ] {
            apply(runtime, &kernel, &with(&ranges));
            assert_eq!(a.reaches_pod(&b, 80), reaches, "{ranges:?}");
            assert_eq!(apply(runtime, &kernel, &with(&ranges)), 0, "{ranges:?}");
        }
    });
}

#[test]
fn ports_jumps_and_returns_are_evaluated_in_order() {
    isolated("ports_jumps_and_returns_are_evaluated_in_order", |runtime| {
        let [a, b] = pods();
        [80, 81, 82, 85, 90, 99, 100, 200, 201, 8080, 8081, 59999, 60000, 65535]
            .iter()
            .for_each(|port| b.serve(*port));
        let (kernel, _events) = owner();
        let http = b.addresses().map(|address| Element::Port(address, Protocol::Tcp, 8080));
        let wanted = table(
            [
                (1, addresses(a.elements())),
                (2, set(PolicySetKind::Ports, http)),
                (3, ports(&[(80, 81), (100, 200), (60000, 65535)])),
            ],
            [
                // The Admin tier: it denies 80, passes 85, and accepts 90.
                (1, chain(Ingress, &[every(jump(2)), every(jump(3)), every(Drop)])),
                (2, chain(Ingress, &[tcp(80, 80, Drop), tcp(85, 85, Return), tcp(85, 90, Accept)])),
                (
                    3,
                    chain(
                        Ingress,
                        &[PolicyRule { ports: tcp_set(3, Accept).ports, ..peers(1, Accept) }, named(2)],
                    ),
                ),
            ],
            [(b.index, link(b.index, Some(1), None))],
        );
        apply(runtime, &kernel, &wanted);
        for (port, reaches) in [
            (80, false),
            (81, true),
            (82, false),
            (85, false),
            (90, true),
            (99, false),
            (100, true),
            (200, true),
            (201, false),
            (8080, true),
            (8081, false),
            (59999, false),
            (60000, true),
            (65535, true),
        ] {
            assert_eq!(a.reaches_pod(&b, port), [reaches; 2], "{port}");
        }
        assert!(!a.ping(b.v4), "a rule with ports does not match ICMP");
        // UDP to the number of a named port of TCP.
        let (sender, receiver) = (a.udp(0), b.udp(8080));
        sender.send_to(b"x", (b.v4, 8080)).unwrap();
        assert!(receiver.recv(&mut [0; 8]).is_err());
        let rules = chain(Ingress, &[named(2)]);
        let chains = [(ChainId::from(3), Some(rules))].into();
        change(runtime, &kernel, PolicyChange { chains, ..PolicyChange::default() });
        change(runtime, &kernel, changed_set(2, &[Element::Port(b.v4, Protocol::Udp, 8080)], &[]));
        sender.send_to(b"x", (b.v4, 8080)).unwrap();
        assert!(receiver.recv(&mut [0; 8]).is_ok());
        assert_eq!(a.reaches_pod(&b, 81), [false; 2], "the old rules are gone");
    });
}

#[test]
fn links_of_one_pod_reach_each_other() {
    isolated("links_of_one_pod_reach_each_other", |runtime| {
        let [a, b, c] = pods();
        b.serve(80);
        let (kernel, _events) = owner();
        // `a` and `b` stand for two links of one pod.
        let deny = |pod: u32, siblings: &[u32]| {
            let mut link = link(pod, Some(1), Some(2));
            link.siblings = siblings.iter().copied().collect::<BTreeSet<_>>();
            (pod, link)
        };
        let pair = [a.index, b.index];
        let wanted = table(
            [],
            [(1, chain(Ingress, &[every(Drop)])), (2, chain(Egress, &[every(Drop)]))],
            pair.map(|index| deny(index, &pair)),
        );
        apply(runtime, &kernel, &wanted);
        assert_eq!((a.reaches_pod(&b, 80), c.reaches_pod(&b, 80)), ([true; 2], [false; 2]));
        let links = pair.map(|index| (index, Some(deny(index, &[index]).1))).into();
        change(runtime, &kernel, PolicyChange { links, ..PolicyChange::default() });
        assert_eq!(a.reaches_pod(&b, 80), [false; 2]);
        let separate = table(
            [],
            wanted.chains.iter().map(|(id, chain)| (u64::from(*id), chain.clone())),
            pair.map(|index| deny(index, &[index])),
        );
        assert_eq!(apply(runtime, &kernel, &separate), 0);
    });
}

#[test]
fn a_denied_pod_still_resolves_its_node() {
    isolated("a_denied_pod_still_resolves_its_node", |runtime| {
        let [a, b] = pods();
        b.serve(80);
        let (kernel, _events) = owner();
        let node = |port: u16| std::net::TcpListener::bind(("::", port)).unwrap();
        let _listeners = [node(80), node(81)];
        let wanted = table(
            [],
            [(1, chain(Egress, &[tcp(80, 80, Accept), every(Drop)]))],
            [(a.index, link(a.index, None, Some(1)))],
        );
        apply(runtime, &kernel, &wanted);
        let gateways: [IpAddr; 2] = ["10.0.1.1".parse().unwrap(), "fd00:1::1".parse().unwrap()];
        let flush = || inside(&a.namespace, || ip("-6 neigh flush dev eth0"));
        flush();
        ip("-6 neigh flush dev pod1");
        assert_eq!(gateways.map(|node| a.reaches(node, 80)), [true; 2]);
        assert_eq!(gateways.map(|node| a.reaches(node, 81)), [false; 2]);
        assert_eq!(gateways.map(|node| a.ping(node)), [false; 2]);
        flush();
        assert_eq!(a.reaches_pod(&b, 80), [true; 2]);
        let entry = inside(&a.namespace, || ip("-6 neigh show fd00:1::1"));
        assert!(entry.contains("lladdr"), "{entry}");
    });
}

#[test]
fn an_established_connection_survives_a_deny() {
    isolated("an_established_connection_survives_a_deny", |runtime| {
        let [a, b] = pods();
        b.serve(80);
        let (kernel, _events) = owner();
        let open =
            table([], [(1, chain(Ingress, &[every(Accept)]))], [(b.index, link(b.index, Some(1), None))]);
        apply(runtime, &kernel, &open);
        let mut streams = b.addresses().map(|address| a.connect(address, 80).unwrap());
        assert!(streams.iter_mut().all(echoes));
        let chains = [(ChainId::from(1), Some(chain(Ingress, &[every(Drop)])))].into();
        change(runtime, &kernel, PolicyChange { chains, ..PolicyChange::default() });
        assert_eq!(a.reaches_pod(&b, 80), [false; 2]);
        assert!(streams.iter_mut().all(echoes));

        // Until the connections of the address are forgotten.
        // Several addresses are one list of the whole table.
        let addresses = vec![b.v4, "192.0.2.1".parse().unwrap()];
        let forgotten = runtime.block_on(kernel.forget_connections(addresses)).unwrap();
        assert!(forgotten >= 1, "{forgotten}");
        assert_eq!([0, 1].map(|family| echoes(&mut streams[family])), [false, true]);
        assert!(runtime.block_on(kernel.forget_connections(b.addresses().to_vec())).unwrap() >= 1);
        assert!(!echoes(&mut streams[1]));
        let strange = vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        assert_eq!(runtime.block_on(kernel.forget_connections(strange)).unwrap(), 0);
    });
}

/// Sends numbered datagrams without a pause until `done`. Returns the number of sent ones, and
/// the received ones.
fn stream(sender: &policy::Pod, receiver: &policy::Pod, port: u16, done: &AtomicBool) -> (usize, usize) {
    let (out, inp) = (sender.udp(0), receiver.udp(port));
    socket2::SockRef::from(&inp).set_recv_buffer_size(64 << 20).unwrap();
    let (mut sent, mut received) = (0, 0);
    inp.set_nonblocking(true).unwrap();
    // A packet of an established connection needs no policy, so each datagram has another source.
    while !done.load(Ordering::Relaxed) {
        let out = if sent % 8 == 0 { sender.udp(0) } else { out.try_clone().unwrap() };
        out.send_to(b"x", (receiver.v4, port)).unwrap();
        sent += 1;
        while inp.recv(&mut [0; 8]).is_ok() {
            received += 1;
        }
    }
    std::thread::sleep(Duration::from_millis(50));
    while inp.recv(&mut [0; 8]).is_ok() {
        received += 1;
    }
    (sent, received)
}

#[test]
fn replaced_rules_leak_and_lose_no_packet() {
    isolated("replaced_rules_leak_and_lose_no_packet", |runtime| {
        let [a, b] = pods();
        let (kernel, _events) = owner();
        let udp = |port, verdict| numbered(Protocol::Udp, PortNumbers::Range(port, port), verdict);
        // Each of these chains allows 1000 and denies 2000.
        let entry = |filler: u16| {
            let mut rules: Vec<_> = (0..filler).map(|port| tcp(port, port, Accept)).collect();
            rules.extend([udp(1000, Accept), every(Drop)]);
            chain(Ingress, &rules)
        };
        let wanted = table([], [(1, entry(5)), (2, entry(50))], [(b.index, link(b.index, Some(1), None))]);
        apply(runtime, &kernel, &wanted);
        let done = AtomicBool::new(false);
        let streams = std::thread::scope(|scope| {
            let allowed = scope.spawn(|| stream(&a, &b, 1000, &done));
            let denied = scope.spawn(|| stream(&a, &b, 2000, &done));
            let until = Instant::now() + Duration::from_secs(2);
            let mut round = 0_u64;
            while Instant::now() < until {
                round += 1;
                // The rules of the entry chain, then a new entry chain, and another link chain.
                let id = 10 + round;
                let mut chains = [
                    (ChainId::from(1), Some(entry((round % 7) as u16))),
                    (ChainId::from(id), Some(entry(20))),
                ]
                .into_iter()
                .collect::<std::collections::BTreeMap<_, _>>();
                if round > 1 {
                    chains.insert(ChainId::from(id - 1), None);
                }
                let links = [(b.index, Some(link(b.index, Some(id), None)))].into();
                change(runtime, &kernel, PolicyChange { chains, links, ..PolicyChange::default() });
            }
            done.store(true, Ordering::Relaxed);
            println!("{round} replacements");
            [allowed.join().unwrap(), denied.join().unwrap()]
        });
        let [(sent, received), (denied, leaked)] = streams;
        println!("{sent} allowed, {denied} denied");
        assert!(sent > 1000 && denied > 1000);
        assert_eq!((sent - received, leaked), (0, 0), "lost and leaked of {sent} and {denied}");
    });
}

#[test]
fn rules_exist_for_the_families_of_pods() {
    isolated("rules_exist_for_the_families_of_pods", |runtime| {
        let [a, b] = pods();
        b.serve(80);
        let (kernel, _events) = owner();
        let v4 = Element::Address(a.v4);
        let v6 = Element::Address(a.v6);
        let with = |elements: &[Element]| {
            table(
                [(1, addresses(elements.iter().copied()))],
                [(1, chain(Ingress, &[peers(1, Accept), every(Drop)]))],
                [(b.index, link(b.index, Some(1), None))],
            )
        };
        let has_v6 = || listed().iter().any(|line| line.starts_with("ip6 saddr"));
        apply(runtime, &kernel, &with(&[v4]));
        assert_eq!((a.reaches_pod(&b, 80), has_v6()), ([true, false], false));
        // The first pod with an IPv6 address needs the whole table, and this is no fault.
        let refused = runtime.block_on(kernel.change_policies(changed_set(1, &[v6], &[])));
        assert!(refused.unwrap_err().to_string().contains("another IP family"));
        assert_eq!(kernel.status().policies.fault, None);
        assert_eq!(a.reaches_pod(&b, 80), [true, false]);
        apply(runtime, &kernel, &with(&[v4, v6]));
        assert_eq!((a.reaches_pod(&b, 80), has_v6()), ([true; 2], true));
        // The rules stay with the last IPv6 address gone, and one more needs no new rule.
        change(runtime, &kernel, changed_set(1, &[], &[v6]));
        assert_eq!((a.reaches_pod(&b, 80), has_v6()), ([true, false], true));
        change(runtime, &kernel, changed_set(1, &[v6], &[]));
        assert_eq!(a.reaches_pod(&b, 80), [true; 2]);
        // A table that a change creates has the families of its elements.
        apply(runtime, &kernel, &PolicyTable::default());
        let wanted = with(&[v6]);
        let sets = wanted.sets.into_iter().map(|(id, set)| (id, PolicySetChange::Replaced(set))).collect();
        let chains = wanted.chains.into_iter().map(|(id, chain)| (id, Some(chain))).collect();
        let links = wanted.links.into_iter().map(|(index, link)| (index, Some(link))).collect();
        change(runtime, &kernel, PolicyChange { sets, chains, links, ..PolicyChange::default() });
        assert_eq!((a.reaches_pod(&b, 80), has_v6()), ([false, true], true));
        assert!(!listed().iter().any(|line| line.starts_with("ip saddr")));
    });
}

#[test]
fn a_restart_changes_nothing() {
    isolated("a_restart_changes_nothing", |runtime| {
        let [a, b] = pods();
        let wanted = table(
            [
                (1, addresses(a.elements().into_iter().chain(b.elements()))),
                (2, set(PolicySetKind::Ranges, [range("10.0.0.0", "10.0.0.255")])),
            ],
            [(1, chain(Ingress, &[counted(5, peers(1, Accept)), peers(2, Drop), every(Drop)]))],
            [(b.index, link(b.index, Some(1), None))],
        );
        let (kernel, _events) = owner();
        apply(runtime, &kernel, &wanted);
        a.ping(b.v4);
        let counts = counters().unwrap();
        assert_eq!(counts[0].1.packets, 1);
        drop(kernel);
        let (kernel, _events) = owner();
        let refused = runtime.block_on(kernel.change_policies(changed_set(1, &[], &[])));
        assert!(refused.unwrap_err().to_string().starts_with("network policies: the table is not loaded"));
        assert_eq!(apply(runtime, &kernel, &wanted), 0);
        assert_eq!(counters().unwrap(), counts);
        // Another table of the last run: only the difference is written.
        let mut other = wanted;
        other.sets.get_mut(&SetId::from(1)).unwrap().elements.remove(&Element::Address(a.v4));
        drop(kernel);
        let (kernel, _events) = owner();
        assert_eq!(apply(runtime, &kernel, &other), 1);
        assert_eq!(kernel.status().policies.repairs, 0);
    });
}

#[test]
fn foreign_changes_are_noticed_and_repaired() {
    isolated("foreign_changes_are_noticed_and_repaired", |runtime| {
        let [a, b] = pods();
        let (kernel, mut events) = owner();
        let mut touched = events.take_policies().unwrap();
        let wanted = table(
            [
                (1, addresses(a.elements())),
                (2, set(PolicySetKind::Ranges, [range("10.9.0.0", "10.9.0.255")])),
            ],
            [(1, chain(Ingress, &[counted(5, peers(1, Accept)), peers(2, Accept), every(Drop)]))],
            [(b.index, link(b.index, Some(1), None))],
        );
        apply(runtime, &kernel, &wanted);
        let before = listed();
        let c = "c0000000000000001";
        let mut repairs = 0;
        for script in [
            format!("delete rule inet trunkline-policy {c} handle {}", handle(c, "drop")),
            "flush ruleset".to_owned(),
            "add element inet trunkline-policy s00000000000000014 { 10.0.9.9 }".to_owned(),
            "add element inet trunkline-policy s00000000000000024 { 10.8.0.0/16 }".to_owned(),
            "delete element inet trunkline-policy to_pods { \"pod2\" }".to_owned(),
            format!("insert rule inet trunkline-policy {c} accept"),
            "insert rule inet trunkline-policy ingress accept".to_owned(),
            "add chain inet trunkline-policy foreign".to_owned(),
            format!("add rule inet trunkline-policy {c} ip saddr 10.0.0.0/8 accept"),
            "add table inet trunkline-policy { flags dormant; }".to_owned(),
            "add chain inet trunkline-policy ingress { policy drop; }".to_owned(),
            "add counter inet trunkline-policy another".to_owned(),
        ] {
            nft(&script);
            let wait = async { tokio::time::timeout(Duration::from_secs(5), touched.changed()).await };
            runtime.block_on(wait).unwrap_or_else(|_| panic!("no event: {script}")).unwrap();
            assert!(!kernel.status().policies.loaded);
            let refused = runtime.block_on(kernel.change_policies(changed_set(1, &[], &[])));
            assert!(refused.is_err());
            assert!(apply(runtime, &kernel, &wanted) > 0, "{script}");
            repairs += 1;
            let status = kernel.status();
            assert_eq!((status.policies.repairs, status.policies.loaded), (repairs, true));
            assert_eq!(sorted(listed()), sorted(before.clone()), "{script}");
            assert_eq!(apply(runtime, &kernel, &wanted), 0, "{script}");
        }
        let text = kernel.repairs().borrow().since(&Default::default()).unwrap();
        assert!(text.contains("nftables tables (last inet trunkline-policy)"), "{text}");
        // Own changes are no event.
        for _ in 0..20 {
            change(runtime, &kernel, changed_set(1, &[Element::Address("10.0.9.1".parse().unwrap())], &[]));
            change(runtime, &kernel, changed_set(1, &[], &[Element::Address("10.0.9.1".parse().unwrap())]));
        }
        nft("add table inet another");
        std::thread::sleep(Duration::from_millis(200));
        assert!(!touched.has_changed().unwrap());
        assert!(kernel.status().policies.loaded);
    });
}

/// The lines of a listing without the order of objects and without counts.
fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.retain(|line| !line.starts_with("packets "));
    lines.sort();
    lines
}

/// The handle of the rule of a chain that contains a text.
fn handle(chain: &str, text: &str) -> String {
    let listed = nft(&format!("-a list chain inet trunkline-policy {chain}"));
    let line = listed.lines().find(|line| line.contains(text)).unwrap();
    line.rsplit(' ').next().unwrap().to_owned()
}

#[test]
fn a_refused_change_keeps_the_old_rules() {
    isolated("a_refused_change_keeps_the_old_rules", |runtime| {
        let [a, b] = pods();
        b.serve(80);
        let (kernel, _events) = owner();
        let wanted = table(
            [(1, addresses(a.elements()))],
            [(1, chain(Ingress, &[peers(1, Accept), every(Drop)]))],
            [(b.index, link(b.index, Some(1), None))],
        );
        apply(runtime, &kernel, &wanted);
        let before = listed();
        let chains = |id: u64, rules: &[PolicyRule]| PolicyChange {
            chains: [(ChainId::from(id), Some(chain(Ingress, rules)))].into(),
            ..PolicyChange::default()
        };
        let links = [(b.index, Some(link(b.index, Some(99), None)))].into();
        for (what, object) in [
            (chains(1, &[every(Accept), every(jump(99))]), "chain c0000000000000001: kernel rule 1: "),
            (chains(1, &[peers(77, Accept)]), "chain c0000000000000001: kernel rule 0: "),
            (changed_set(77, &a.elements(), &[]), "elements of set s000000000000004d4: "),
            (changed_set(1, &[], &b.elements()), "elements of set s00000000000000014: "),
            (
                PolicyChange { links, ..PolicyChange::default() },
                &format!("chain to_{}: kernel rule 0: ", b.index),
            ),
            (
                PolicyChange {
                    sets: [(SetId::from(1), PolicySetChange::Removed)].into(),
                    ..PolicyChange::default()
                },
                "set s00000000000000014: ",
            ),
            (
                PolicyChange { chains: [(ChainId::from(1), None)].into(), ..PolicyChange::default() },
                "chain c0000000000000001: ",
            ),
        ] {
            let error = runtime.block_on(kernel.change_policies(what)).unwrap_err();
            let KernelError::Policies { text, part } = &error else { panic!("{error}") };
            assert!(text.starts_with(object), "{error}");
            let expected = match object.as_bytes() {
                text if text.starts_with(b"chain c") => Some(PolicyPart::Chain(ChainId::from(1))),
                text if text.starts_with(b"chain to_") => None,
                text if text.ends_with(b"774: ") || text.ends_with(b"4d4: ") => {
                    Some(PolicyPart::Set(SetId::from(77)))
                }
                _ => Some(PolicyPart::Set(SetId::from(1))),
            };
            assert_eq!(*part, expected, "{error}");
            let status = kernel.status().policies;
            assert!(!status.loaded && status.fault.is_some());
            assert_eq!(listed(), before);
            assert_eq!(apply(runtime, &kernel, &wanted), 0);
            assert!(kernel.status().policies.fault.is_none());
        }
        // A whole table that the kernel refuses.
        let mut bad = wanted.clone();
        bad.chains.insert(ChainId::from(2), chain(Ingress, &[every(jump(99))]));
        let error = runtime.block_on(kernel.set_policies(bad)).unwrap_err().to_string();
        assert!(error.contains("chain c0000000000000002: kernel rule 0"), "{error}");
        assert_eq!(listed(), before);
        assert_eq!(a.reaches_pod(&b, 80), [true; 2]);
    });
}

#[test]
fn large_sets_are_written_and_compared() {
    isolated("large_sets_are_written_and_compared", |runtime| {
        let [a, b] = pods();
        b.serve(80);
        let (kernel, _events) = owner();
        let many = |number: u32| {
            (0..number).map(|n| Element::Address(IpAddr::from((0x0b00_0000 + n).to_be_bytes())))
        };
        let many6 = |number: u32| {
            (0..number)
                .map(|n| Element::Address(IpAddr::from((0xfd99_u128 << 112 | u128::from(n)).to_be_bytes())))
        };
        let rules = chain(Ingress, &[peers(1, Accept), every(Drop)]);
        let links = [(b.index, link(b.index, Some(1), None))];
        let wanted = table(
            [(1, addresses(many(20_000).chain(many6(20_000)).chain(a.elements())))],
            [(1, rules)],
            links,
        );
        let time = |what: &str, work: &dyn Fn()| {
            let start = Instant::now();
            work();
            println!("{what}: {:?}", start.elapsed());
        };
        time("40,002 elements from nothing", &|| assert!(apply(runtime, &kernel, &wanted) > 40_000));
        time("comparison", &|| assert_eq!(apply(runtime, &kernel, &wanted), 0));
        assert_eq!(a.reaches_pod(&b, 80), [true; 2]);
        let one = Element::Address("10.9.9.9".parse().unwrap());
        time("100 changes of one element", &|| {
            for _ in 0..50 {
                change(runtime, &kernel, changed_set(1, &[one], &[]));
                change(runtime, &kernel, changed_set(1, &[], &[one]));
            }
        });
        let all: Vec<Element> = many(20_000).collect();
        time("20,000 elements removed", &|| change(runtime, &kernel, changed_set(1, &[], &all)));
        time("20,000 elements added", &|| change(runtime, &kernel, changed_set(1, &all, &[])));
        // A known set with almost equal elements: only the difference is written.
        let mut elements = wanted.sets[&SetId::from(1)].clone();
        elements.elements.insert(one);
        let sets =
            std::collections::BTreeMap::from([(SetId::from(1), PolicySetChange::Replaced(elements.clone()))]);
        time("replaced by an almost equal set", &|| {
            change(runtime, &kernel, PolicyChange { sets: sets.clone(), ..PolicyChange::default() });
        });
        let mut other = wanted;
        other.sets.insert(SetId::from(1), elements);
        assert_eq!(apply(runtime, &kernel, &other), 0);
        // 1,000 chains in one transaction, and their removal.
        let chains = |exist: bool| {
            let chain = |id: u64| {
                (
                    ChainId::from(id),
                    exist.then(|| {
                        chain(Ingress, &[counted(id, every(Accept)), tcp(1, 2, Drop), tcp(4, 5, Drop)])
                    }),
                )
            };
            PolicyChange { chains: (100..1100).map(chain).collect(), ..PolicyChange::default() }
        };
        time("1,000 chains added", &|| change(runtime, &kernel, chains(true)));
        assert_eq!(counters().unwrap().len(), 1000);
        time("1,000 chains removed", &|| change(runtime, &kernel, chains(false)));
        assert_eq!(counters().unwrap().len(), 0);
        assert_eq!(apply(runtime, &kernel, &other), 0);
    });
}

#[test]
fn denied_packets_are_counted_and_reported() {
    isolated("denied_packets_are_counted_and_reported", |runtime| {
        let [a, b] = pods();
        let (kernel, _events) = owner();
        let deny = PolicyRule { logged: true, ..counted(0xabc, every(Drop)) };
        let wanted = table([], [(1, chain(Ingress, &[deny]))], [(b.index, link(b.index, Some(1), None))]);
        apply(runtime, &kernel, &wanted);
        runtime.block_on(async {
            let mut log = PolicyLog::open().unwrap();
            assert!(PolicyLog::open().is_err(), "one listener");
            for address in b.addresses() {
                assert!(!a.reaches(address, 443));
                let next = tokio::time::timeout(Duration::from_secs(5), log.next());
                let packet = next.await.unwrap().unwrap();
                assert_eq!(packet.counter, CounterId::from(0xabc));
                assert_eq!((packet.input, packet.output), (Some(a.index), Some(b.index)));
                assert_eq!((packet.destination, packet.protocol), (address, 6));
                assert_eq!(packet.ports.unwrap().1, 443);
                assert!(packet.length >= 60, "{}", packet.length);
            }
        });
        let count = counters().unwrap()[0];
        assert_eq!((count.0, count.1.packets), (CounterId::from(0xabc), 2));
        // The counter stays with the rule, also in another chain.
        let chains = [
            (ChainId::from(1), None),
            (ChainId::from(2), Some(chain(Ingress, &[counted(0xabc, every(Drop))]))),
        ];
        let links = [(b.index, Some(link(b.index, Some(2), None)))].into();
        change(runtime, &kernel, PolicyChange { chains: chains.into(), links, ..PolicyChange::default() });
        assert_eq!(counters().unwrap(), [count]);
        // The last link and chain delete the table.
        let chains = [(ChainId::from(2), None)].into();
        let links = [(b.index, None)].into();
        change(runtime, &kernel, PolicyChange { chains, links, ..PolicyChange::default() });
        assert!(!nft("list tables").contains("trunkline-policy"));
        assert_eq!(counters().unwrap(), []);
        // A change creates it again.
        let chains = [(ChainId::from(2), Some(chain(Ingress, &[every(Drop)])))].into();
        let links = [(b.index, Some(link(b.index, Some(2), None)))].into();
        change(runtime, &kernel, PolicyChange { chains, links, ..PolicyChange::default() });
        assert!(!a.ping(b.v4));
    });
}
