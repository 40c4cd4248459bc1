//! `hairpin` in a real kernel: a node in an untagged VLAN, its router, and two pods.
#![allow(clippy::disallowed_methods, reason = "tests measure")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../datapath/tests/namespace/mod.rs"]
mod namespace;

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;

use namespace::{inside, ip, isolated, namespace, ping};
use serde_json::json;
use trunkline_agent::plan::{Host, Intent, LinkChoice, NodeIdentity, Plan, Pod, plan, plan_pod};
use trunkline_api::bandwidth::Bandwidth;
use trunkline_api::resources::{AttachmentKind, Network, Subnet};
use trunkline_datapath::attach::device::DeviceSpec;
use trunkline_datapath::attach::workers::DeviceWorkers;
use trunkline_datapath::kernel::{KernelConfig, KernelHandle};
use trunkline_datapath::plan::Attachment;

fn intent(hairpin: bool) -> Intent {
    let network: Network = serde_json::from_value(json!({
        "apiVersion": "networking.alibaba.com/v1", "kind": "Network", "metadata": {"name": "n"},
        "spec": {"type": "Underlay", "mode": "VLAN", "netID": 0, "nodeSelector": {"rack": "1"}, "config": {"hairpin": hairpin}},
    }))
    .unwrap();
    let subnet = |version: &str, cidr: &str, gateway: &str| -> Subnet {
        serde_json::from_value(json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": "Subnet", "metadata": {"name": format!("s{version}")},
            "spec": {"network": "n", "range": {"version": version, "cidr": cidr, "gateway": gateway}},
        }))
        .unwrap()
    };
    Intent {
        node: NodeIdentity { name: "node1".to_owned(), labels: [("rack".to_owned(), "1".to_owned())].into() },
        networks: vec![network],
        subnets: vec![subnet("4", "10.10.0.0/24", "10.10.0.1"), subnet("6", "fd10::/112", "fd10::1")],
        vlan_interfaces: vec![LinkChoice::Name("up0".to_owned())],
        ..Intent::default()
    }
}

fn attach(
    runtime: &tokio::runtime::Runtime,
    (workers, kernel, plan): (&DeviceWorkers, &KernelHandle, &Plan),
    netns: &OwnedFd,
    host: u8,
) {
    let spec = DeviceSpec {
        container_id: format!("c{host}"),
        ifname: "eth0".to_owned(),
        addresses: vec![format!("10.10.0.{host}").parse().unwrap(), format!("fd10::{host}").parse().unwrap()],
        mac: None,
        mtu: None,
        bandwidth: Bandwidth::default(),
        destinations: Vec::new(),
        several: false,
        attachment: Attachment::Veth,
    };
    runtime.block_on(async {
        let device = workers.attach(netns.try_clone().unwrap(), spec.clone(), |_| ()).await.unwrap();
        let pod = Pod {
            network: "n".to_owned(),
            addresses: spec.addresses,
            host_ifname: device.host_ifname,
            host_ifindex: device.host_ifindex,
            mac: device.pair_mac,
            attachment: AttachmentKind::Veth,
            extra_prefixes: Default::default(),
            migration: Default::default(),
            target_addresses: Vec::new(),
            is_virtual_machine: false,
        };
        kernel.add_pod(plan_pod(plan, &pod).unwrap().kernel).await.unwrap();
    });
}

fn nft(command: &str) {
    assert!(Command::new("nft").arg(command).status().unwrap().success(), "{command}");
}

#[test]
fn pods_of_one_node_reach_each_other_only_by_the_router() {
    isolated("pods_of_one_node_reach_each_other_only_by_the_router", |runtime| {
        if Command::new("nft").arg("--version").output().is_err() {
            println!("skipped, nft is not installed");
            return;
        }
        // As in many distributions, sources are checked strictly on every interface without its own
        // setting.
        for scope in ["all", "default"] {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{scope}/rp_filter"), "1").unwrap();
        }
        let (gateway, one, two) = (namespace(), namespace(), namespace());
        let path = format!("/proc/{}/fd/{}", std::process::id(), gateway.as_raw_fd());
        ip(&format!("link add up0 type veth peer name sw netns {path}"));
        for command in
            ["link set up0 up", "addr add 10.10.0.9/24 dev up0", "addr add fd10::9/112 dev up0 nodad"]
        {
            ip(command);
        }
        inside(&gateway, || {
            for command in
                ["link set sw up", "addr add 10.10.0.1/24 dev sw", "addr add fd10::1/112 dev sw nodad"]
            {
                ip(command);
            }
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
            std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
        });
        let (kernel, _events) = KernelHandle::spawn(KernelConfig::default()).unwrap();
        let workers = DeviceWorkers::spawn(2).unwrap();
        let put = |hairpin| {
            runtime.block_on(async {
                let host = Host { kernel: kernel.host().await.unwrap(), ..Host::default() };
                let planned = plan(&intent(hairpin), &host).unwrap();
                assert_eq!(kernel.set_plan(planned.kernel.clone()).await.unwrap().faults, [""; 0]);
                planned
            })
        };
        let planned = put(false);
        runtime.block_on(kernel.set_pods(Vec::new())).unwrap();
        attach(runtime, (&workers, &kernel, &planned), &one, 4);
        attach(runtime, (&workers, &kernel, &planned), &two, 5);
        // The router drops the pods' packets, so a packet that still arrives did not pass the
        // router.
        let wall = |up: bool| {
            inside(&gateway, || {
                nft(
                    "add table inet wall; flush table inet wall; add chain inet wall f { type filter hook forward priority 0; }",
                );
                if up {
                    nft("add rule inet wall f counter drop");
                }
            });
        };
        let pods = || inside(&one, || ["10.10.0.5", "fd10::5"].map(ping));
        wall(true);
        assert_eq!(pods(), [true, true], "without hairpin, packets go directly to the pod");

        put(true);
        assert_eq!(pods(), [false, false], "packets pass the router");
        // The node pings the pods, and the pods ping the node.
        assert!(["10.10.0.4", "fd10::4"].into_iter().all(ping));
        assert!(inside(&one, || ["10.10.0.9", "fd10::9"].into_iter().all(ping)));
        // One Service has the other pod as backend, and another Service has the client itself as
        // backend.
        nft("add table ip services");
        nft("add chain ip services pre { type nat hook prerouting priority dstnat; }");
        nft("add chain ip services post { type nat hook postrouting priority srcnat; }");
        nft("add rule ip services pre ip daddr 10.96.0.5 dnat to 10.10.0.5");
        nft("add rule ip services pre ip daddr 10.96.0.4 dnat to 10.10.0.4");
        nft("add rule ip services post ip saddr 10.10.0.4 ip daddr 10.10.0.4 masquerade");
        assert!(
            inside(&one, || ping("10.96.0.5")),
            "requests and replies of a Service are translated on this node"
        );
        assert!(inside(&one, || ping("10.96.0.4")), "a Service with the client itself as backend");

        wall(false);
        assert_eq!(pods(), [true, true], "out and back");
        put(false);
        wall(true);
        assert_eq!(pods(), [true, true], "directly again");
        assert_eq!(kernel.status().last_error, None);
    });
}
