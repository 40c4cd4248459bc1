//! ARP requests of the node in a real kernel: behind a gateway that answers only senders of its own
//! subnet.
#![allow(clippy::disallowed_methods, reason = "tests measure")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../datapath/tests/namespace/mod.rs"]
mod namespace;

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;

use namespace::{eventually, inside, ip, isolated, namespace, ping};
use serde_json::json;
use trunkline_agent::plan::{Host, Intent, LinkChoice, NodeIdentity, Plan, Pod, plan, plan_pod};
use trunkline_api::bandwidth::Bandwidth;
use trunkline_api::resources::{AttachmentKind, Network, Subnet};
use trunkline_datapath::attach::device::DeviceSpec;
use trunkline_datapath::attach::workers::DeviceWorkers;
use trunkline_datapath::kernel::{KernelConfig, KernelHandle};
use trunkline_datapath::plan::Attachment;

fn intent(pods_send_arp: bool) -> Intent {
    let network: Network = serde_json::from_value(json!({
        "apiVersion": "networking.alibaba.com/v1", "kind": "Network", "metadata": {"name": "n"},
        "spec": {"type": "Underlay", "mode": "VLAN", "netID": 0, "nodeSelector": {"rack": "1"}},
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
        pods_send_arp,
        vlan_interfaces: vec![LinkChoice::Name("up0".to_owned())],
        ..Intent::default()
    }
}

fn attach(
    runtime: &tokio::runtime::Runtime,
    (workers, kernel, plan): (&DeviceWorkers, &KernelHandle, &Plan),
    netns: &OwnedFd,
    host: u8,
) -> String {
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
            host_ifname: device.host_ifname.clone(),
            host_ifindex: device.host_ifindex,
            mac: device.pair_mac,
            attachment: AttachmentKind::Veth,
            extra_prefixes: Default::default(),
            migration: Default::default(),
            target_addresses: Vec::new(),
            is_virtual_machine: false,
        };
        kernel.add_pod(plan_pod(plan, &pod).unwrap().kernel).await.unwrap();
        device.host_ifname
    })
}

fn nft(command: &str) -> String {
    let output = Command::new("nft").arg(command).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The sender that the table writes; none without a table.
fn sender() -> Option<String> {
    nft("list tables").contains("trunkline-sender").then(|| {
        let table = nft("list table arp trunkline-sender");
        table.split("saddr ip set ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned()
    })
}

/// A neighbour that has an entry checks it by unicast requests. Without an answer it gives up after 3 s.
#[test]
fn requests_to_the_nodes_own_mac_are_answered() {
    isolated("requests_to_the_nodes_own_mac_are_answered", |runtime| {
        let (gateway, pod) = (namespace(), namespace());
        let path = format!("/proc/{}/fd/{}", std::process::id(), gateway.as_raw_fd());
        ip(&format!("link add up0 type veth peer name sw netns {path}"));
        ip("link set up0 up");
        inside(&gateway, || {
            ip("link set sw up");
            ip("addr add 10.10.0.1/24 dev sw");
            ip("addr add fd10::1/112 dev sw nodad");
        });
        let (kernel, _events) = KernelHandle::spawn(KernelConfig::default()).unwrap();
        let workers = DeviceWorkers::spawn(2).unwrap();
        let planned = runtime.block_on(async {
            let host = Host { kernel: kernel.host().await.unwrap(), ..Host::default() };
            let planned = plan(&intent(false), &host).unwrap();
            assert_eq!(kernel.set_plan(planned.kernel.clone()).await.unwrap().faults, [""; 0]);
            planned
        });
        runtime.block_on(kernel.set_pods(Vec::new())).unwrap();
        attach(runtime, (&workers, &kernel, &planned), &pod, 5);
        let link = ip("-o link show up0");
        let mac = link.split("link/ether ").nth(1).unwrap().split_whitespace().next().unwrap();
        for address in ["10.10.0.5", "fd10::5"] {
            inside(&gateway, || ip(&format!("neigh replace {address} lladdr {mac} dev sw nud probe")));
            eventually(&format!("{address} is confirmed"), || {
                inside(&gateway, || ip(&format!("neigh show {address} dev sw"))).contains("REACHABLE")
            });
        }
    });
}

#[test]
fn arp_requests_have_the_address_of_a_local_pod_as_sender() {
    isolated("arp_requests_have_the_address_of_a_local_pod_as_sender", |runtime| {
        let (gateway, one, two) = (namespace(), namespace(), namespace());
        let path = format!("/proc/{}/fd/{}", std::process::id(), gateway.as_raw_fd());
        ip("addr add 192.0.2.9/32 dev lo");
        ip(&format!("link add up0 type veth peer name sw netns {path}"));
        ip("link set up0 up");
        inside(&gateway, || {
            ip("link set sw up");
            ip("addr add 10.10.0.1/24 dev sw");
            nft("add table arp strict; add chain arp strict i { type filter hook input priority 0; }; \
                 add rule arp strict i arp operation request arp saddr ip != 10.10.0.0/24 drop");
        });
        let start = || KernelHandle::spawn(KernelConfig::default()).unwrap();
        let workers = DeviceWorkers::spawn(2).unwrap();
        let put = |kernel: &KernelHandle, pods_send_arp| {
            runtime.block_on(async {
                let host = Host { kernel: kernel.host().await.unwrap(), ..Host::default() };
                let planned = plan(&intent(pods_send_arp), &host).unwrap();
                assert_eq!(kernel.set_plan(planned.kernel.clone()).await.unwrap().faults, [""; 0]);
                planned
            })
        };
        let (kernel, events) = start();
        let planned = put(&kernel, false);
        runtime.block_on(kernel.set_pods(Vec::new())).unwrap();
        let first = attach(runtime, (&workers, &kernel, &planned), &one, 5);
        let reaches = |netns: &OwnedFd| {
            ip("neigh flush dev up0");
            inside(netns, || ping("10.10.0.1"))
        };
        assert!(!reaches(&one), "the gateway drops the requests of 192.0.2.9");
        assert_eq!(sender(), None);

        let planned = put(&kernel, true);
        assert_eq!(sender().as_deref(), Some("10.10.0.5"));
        assert!(reaches(&one));
        // A second pod changes nothing. The sender is replaced when its pod is removed.
        let second = attach(runtime, (&workers, &kernel, &planned), &two, 4);
        assert_eq!(sender().as_deref(), Some("10.10.0.5"));
        assert!(reaches(&two));
        runtime.block_on(kernel.remove_pod(&first)).unwrap();
        assert_eq!(sender().as_deref(), Some("10.10.0.4"));
        assert!(reaches(&two));

        // Another program deletes the table.
        nft("delete table arp trunkline-sender");
        eventually("the table is restored", || sender().as_deref() == Some("10.10.0.4"));

        // The table stays until the next run of the agent knows all pods.
        drop((kernel, events));
        let (kernel, _events) = start();
        put(&kernel, true);
        assert_eq!(sender().as_deref(), Some("10.10.0.4"));
        runtime.block_on(kernel.set_pods(Vec::new())).unwrap();
        assert_eq!(sender(), None, "without a pod no address may be the sender: {second}");
        attach(runtime, (&workers, &kernel, &planned), &two, 4);
        assert_eq!(sender().as_deref(), Some("10.10.0.4"));
        put(&kernel, false);
        assert_eq!(sender(), None);
    });
}
