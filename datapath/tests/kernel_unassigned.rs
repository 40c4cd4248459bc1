//! Packets from the fabric to unassigned addresses, in a real kernel: they are counted by Subnet
//! and dropped without an answer. Without the rules or the device they are dropped too.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod namespace;

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::process::Command;

use ipnet::IpNet;
use namespace::{eventually, inside, ip, isolated, namespace};
use trunkline_datapath::family::IpFamily;
use trunkline_datapath::kernel::{KernelConfig, KernelHandle};
use trunkline_datapath::plan::{
    Hop, KernelPlan, LinkKind, LinkPlan, RouteKey, RouteTarget, Rule, SINK_ALIAS, SINK_NAME, Sysctl,
    UNASSIGNED_TABLE,
};

const SUBNETS: [&str; 2] = ["10.1.0.0/16", "2001:db8:1::/64"];

/// An uplink to a router that routes the Subnets to this node.
fn uplink() -> OwnedFd {
    let router = namespace();
    ip("link add up1 type veth peer name r1");
    ip(&format!("link set r1 netns /proc/{}/fd/{}", std::process::id(), router.as_raw_fd()));
    ip("addr add 192.0.2.0/31 dev up1");
    ip("addr add 2001:db8:0:1::1/64 dev up1 nodad");
    ip("link set up1 up");
    inside(&router, || {
        ip("addr add 192.0.2.1/31 dev r1");
        ip("addr add 2001:db8:0:1::2/64 dev r1 nodad");
        ip("link set r1 up");
        ip("route add 10.0.0.0/8 via 192.0.2.0");
        ip("route add 2001:db8::/32 via 2001:db8:0:1::1");
    });
    eventually("carrier", || ip("link show up1").contains("LOWER_UP"));
    router
}

/// The plan of a node with one router; `sink` is the index of the device.
fn plan(sink: Option<u32>) -> KernelPlan {
    let mut plan = KernelPlan::default();
    plan.sysctls.insert("net/ipv4/ip_forward".to_owned(), Sysctl::Exactly("1"));
    plan.sysctls.insert("net/ipv6/conf/all/forwarding".to_owned(), Sysctl::Exactly("1"));
    let device = LinkPlan { kind: LinkKind::Sink, alias: SINK_ALIAS.to_owned(), mtu: 65_535 };
    plan.links.insert(SINK_NAME.to_owned(), device);
    for prefix in SUBNETS.map(|subnet| subnet.parse::<IpNet>().unwrap()) {
        let rule = |priority, table| Rule {
            iif: Some("up1".to_owned()),
            ..Rule::always(IpFamily::of(&prefix), priority, table)
        };
        plan.rules.insert(rule(1030, 39_998));
        plan.routes.insert(RouteKey { table: 39_998, prefix }, RouteTarget::Blackhole);
        plan.unassigned.subnets.insert(prefix);
        if let Some(index) = sink {
            plan.rules.insert(rule(1029, UNASSIGNED_TABLE));
            let target = RouteTarget::via(vec![Hop::link(index)]);
            plan.routes.insert(RouteKey { table: UNASSIGNED_TABLE, prefix }, target);
        }
    }
    plan
}

/// The output lines of a ping with three requests.
fn ping(router: &OwnedFd, address: &str) -> String {
    inside(router, || {
        let output = Command::new("ping").args(["-c3", "-i0.05", "-W0.3", address]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    })
}

fn counter(name: &str) -> String {
    let output = Command::new("nft").args(["list", "counter", "inet", "trunkline", name]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split("packets ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default().to_owned()
}

#[test]
fn several_new_links_are_each_created_once() {
    isolated("several_new_links_are_each_created_once", |runtime| {
        let (kernel, _events) = KernelHandle::spawn(KernelConfig::default()).unwrap();
        let mut plan = KernelPlan::default();
        for name in ["sink-a", "sink-b", "sink-c"] {
            let device = LinkPlan { kind: LinkKind::Sink, alias: SINK_ALIAS.to_owned(), mtu: 1_500 };
            plan.links.insert(name.to_owned(), device);
        }
        runtime.block_on(kernel.set_plan(plan)).unwrap();
        let host = runtime.block_on(kernel.host()).unwrap();
        assert_eq!(host.link_faults, Default::default());
        assert_eq!(host.links.iter().filter(|link| link.own && link.up).count(), 3);
        let status = kernel.status();
        assert_eq!((status.errors, status.last_error), (Default::default(), None));
    });
}

#[test]
fn packets_to_unassigned_addresses_are_counted_and_dropped() {
    isolated("packets_to_unassigned_addresses_are_counted_and_dropped", |runtime| {
        if Command::new("nft").arg("--version").output().is_err() {
            println!("skipped, nft is not installed");
            return;
        }
        let router = uplink();
        let set = |kernel: &KernelHandle, sink| {
            let applied = runtime.block_on(kernel.set_plan(plan(sink))).unwrap();
            assert_eq!(applied.faults, [""; 0]);
            applied
        };
        let silent = |what: &str| {
            for address in ["10.1.0.9", "2001:db8:1::9"] {
                let lines = ping(&router, address);
                assert!(lines.contains("3 packets transmitted, 0 received"), "{what}: {lines}");
                assert!(!lines.contains("Unreachable") && !lines.contains("errors"), "{what}: {lines}");
            }
        };
        let (kernel, _events) = KernelHandle::spawn(KernelConfig::default()).unwrap();
        set(&kernel, None);
        silent("the device is not used yet");
        let shown = ip(&format!("-o link show {SINK_NAME}"));
        let index: u32 = shown.split(':').next().unwrap().trim().parse().unwrap();
        set(&kernel, Some(index));
        silent("by the device");
        assert_eq!(counter("unassigned_10_1_0_0_16"), "3");
        assert_eq!(counter("unassigned_2001_db8_1___64"), "3");

        // A restart neither loads the table again nor creates the device again.
        drop(kernel);
        let (kernel, _events) = KernelHandle::spawn(KernelConfig::default()).unwrap();
        assert_eq!(set(&kernel, Some(index)).changed, 0);
        assert_eq!(counter("unassigned_10_1_0_0_16"), "3");

        // No agent runs, so nothing repairs the following deletions.
        drop(kernel);
        assert!(Command::new("nft").args(["flush", "ruleset"]).status().unwrap().success());
        silent("without the rules");
        ip(&format!("link del {SINK_NAME}"));
        silent("without the device");
    });
}
