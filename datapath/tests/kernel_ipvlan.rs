//! Tests of IPVLAN slaves in a real kernel, each with its veth pair to the host. They need the
//! drivers `ipvlan` and `8021q`. `cargo lab test l2` runs them in a kernel with these drivers;
//! otherwise they are skipped.
#![allow(clippy::disallowed_methods, reason = "tests measure")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod namespace;

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::time::Duration;

use ipnet::IpNet;
use namespace::{eventually, inside, ip, ip_json, isolated, namespace, ping};
use tokio::runtime::Runtime;
use trunkline_api::bandwidth::Bandwidth;
use trunkline_datapath::attach::device::{Device, DeviceError, DeviceSpec};
use trunkline_datapath::attach::workers::DeviceWorkers;
use trunkline_datapath::family::IpFamily;
use trunkline_datapath::kernel::{KernelConfig, KernelHandle};
use trunkline_datapath::link_check::{CheckTimeouts, LinkCheck, LinkChecker};
use trunkline_datapath::naming::host_ifname;
use trunkline_datapath::plan::{
    Attachment, Hop, Ipvlan, KernelPlan, Neighbour, OnLink, POD_TABLE, PodPlan, RouteKey, RouteTarget, Rule,
    Sysctl,
};

/// A node with a VLAN on its uplink, and the VLAN's gateway at the other end.
struct Node {
    workers: DeviceWorkers,
    kernel: KernelHandle,
    gateway: OwnedFd,
    parent: u32,
}

fn ip_in(namespace: &OwnedFd, arguments: &str) {
    inside(namespace, || drop(ip(arguments)));
}

/// Runs a test on a node, or reports that it is skipped.
fn on_node(name: &str, test: impl FnOnce(&Runtime, &Node) + Send) {
    isolated(name, |runtime| {
        let gateway = namespace();
        let path = format!("/proc/{}/fd/{}", std::process::id(), gateway.as_raw_fd());
        ip(&format!("link add eth0 type veth peer name sw netns {path}"));
        let vlan =
            Command::new("ip").args("link add link eth0 name eth0.10 type vlan id 10".split(' ')).output();
        let slave = Command::new("ip").args("link add link eth0 name probe type ipvlan".split(' ')).output();
        if !vlan.unwrap().status.success() || !slave.unwrap().status.success() {
            println!("{name}: skipped, this kernel has no 8021q or no ipvlan");
            return;
        }
        ip("link del probe");
        ip("link set eth0 up");
        ip("link set eth0.10 up");
        ip("addr add 192.0.2.1/32 dev lo");
        ip("addr add 2001:db8:ffff::1/128 dev lo");
        for command in [
            "link set sw up",
            "link add link sw name sw.10 type vlan id 10",
            "addr add 10.10.0.1/24 dev sw.10",
            "addr add fd10::1/64 dev sw.10 nodad",
            "link set sw.10 up",
        ] {
            ip_in(&gateway, command);
        }
        let (kernel, _events) = KernelHandle::spawn(KernelConfig::default()).unwrap();
        let mut plan = KernelPlan::default();
        for family in IpFamily::ALL {
            plan.rules.insert(Rule::always(family, 1000, POD_TABLE));
        }
        plan.sysctls.insert("net/ipv4/ip_forward".to_owned(), Sysctl::Exactly("1"));
        plan.sysctls.insert("net/ipv6/conf/all/forwarding".to_owned(), Sysctl::Exactly("1"));
        runtime.block_on(async {
            assert_eq!(kernel.set_plan(plan).await.unwrap().faults, [""; 0]);
            assert!(kernel.set_pods(Vec::new()).await.unwrap().is_empty());
        });
        let parent = ip_json("link show eth0.10")[0]["ifindex"].as_u64().unwrap() as u32;
        test(runtime, &Node { workers: DeviceWorkers::spawn(4).unwrap(), kernel, gateway, parent });
    });
}

impl Node {
    /// A pod of VLAN 10 with 10.10.0.`host` and fd10::`host`. The pod reaches the node's addresses
    /// and the prefixes of the veth pods through the host.
    fn slave(&self, container: &str, host: u8) -> DeviceSpec {
        let on_link = |address: String, gateway: &str| OnLink {
            address: address.parse().unwrap(),
            gateway: gateway.parse().unwrap(),
        };
        let on_link = vec![
            on_link(format!("10.10.0.{host}/24"), "10.10.0.1"),
            on_link(format!("fd10::{host}/64"), "fd10::1"),
        ];
        let by_host = ["192.0.2.1/32", "2001:db8:ffff::1/128", "10.1.0.0/24", "2001:db8:1::/64"];
        DeviceSpec {
            container_id: container.to_owned(),
            ifname: "eth0".to_owned(),
            addresses: on_link.iter().map(|there| there.address.addr()).collect(),
            mac: None,
            mtu: None,
            bandwidth: Bandwidth::default(),
            attachment: Attachment::Ipvlan(Ipvlan {
                parent: self.parent,
                parent_name: "eth0.10".to_owned(),
                on_link,
                by_host: by_host.map(|prefix| prefix.parse().unwrap()).into(),
            }),
            destinations: Vec::new(),
            several: false,
        }
    }

    fn attach(&self, runtime: &Runtime, netns: &OwnedFd, spec: &DeviceSpec) -> Device {
        runtime.block_on(async {
            let device = self.workers.attach(netns.try_clone().unwrap(), spec.clone(), |_| ()).await.unwrap();
            self.kernel.add_pod(pod_plan(spec, &device)).await.unwrap();
            device
        })
    }

    fn check(&self, runtime: &Runtime, netns: &OwnedFd, spec: &DeviceSpec) -> Result<Device, String> {
        runtime
            .block_on(self.workers.check(netns.try_clone().unwrap(), spec.clone()))
            .map_err(|error| error.to_string())
    }

    fn detach(&self, runtime: &Runtime, spec: &DeviceSpec) -> bool {
        let name = host_ifname(&spec.container_id, &spec.ifname);
        runtime.block_on(async {
            self.kernel.remove_pod(&name).await.unwrap();
            self.workers.detach(name, None).await.unwrap()
        })
    }
}

fn pod_plan(spec: &DeviceSpec, device: &Device) -> PodPlan {
    let mut plan = PodPlan {
        host_ifname: device.host_ifname.clone(),
        host_ifindex: device.host_ifindex,
        ..PodPlan::default()
    };
    for address in &spec.addresses {
        let prefix = IpNet::from(*address);
        plan.routes.insert(
            RouteKey { table: POD_TABLE, prefix },
            RouteTarget::via(vec![Hop::link(device.host_ifindex)]),
        );
        let (ifindex, mac) = (device.host_ifindex, device.pair_mac);
        plan.neighbours.insert(Neighbour { ifindex, address: *address, mac });
    }
    plan
}

/// The interface of the route to `address`.
fn outgoing_interface(address: &str) -> String {
    ip_json(&format!("route get {address}"))[0]["dev"].as_str().unwrap().to_owned()
}

#[test]
fn slave_uses_its_vlan_directly_and_the_pair_to_the_host() {
    on_node("slave_uses_its_vlan_directly_and_the_pair_to_the_host", |runtime, node| {
        let (one, two, beside) = (namespace(), namespace(), namespace());
        let spec = node.slave("one", 5);
        let device = node.attach(runtime, &one, &spec);
        node.attach(runtime, &two, &node.slave("two", 6));
        let veth = DeviceSpec {
            addresses: vec!["10.1.0.4".parse().unwrap(), "2001:db8:1::4".parse().unwrap()],
            attachment: Attachment::Veth,
            ..node.slave("veth", 0)
        };
        node.attach(runtime, &beside, &veth);

        for (to, leaves_by) in [
            ("10.10.0.1", "eth0"),
            ("fd10::1", "eth0"),
            ("10.10.0.6", "eth0"),
            ("fd10::6", "eth0"),
            ("198.51.100.1", "eth0"),
            ("192.0.2.1", device.host_ifname.as_str()),
            ("2001:db8:ffff::1", device.host_ifname.as_str()),
            ("10.1.0.4", device.host_ifname.as_str()),
            ("2001:db8:1::4", device.host_ifname.as_str()),
        ] {
            assert_eq!(inside(&one, || outgoing_interface(to)), leaves_by, "to {to}");
            assert!(to == "198.51.100.1" || inside(&one, || ping(to)), "{to} from the pod");
        }
        for address in ["10.10.0.5", "fd10::5"] {
            assert!(ping(address), "{address} from the host");
            assert!(inside(&node.gateway, || ping(address)), "{address} from the gateway");
            assert!(inside(&beside, || ping(address)), "{address} from a veth pod");
        }
        // The slave has the MAC address of the VLAN device, and the gateway learned this address.
        let parent = ip_json("link show eth0.10")[0]["address"].as_str().unwrap().to_owned();
        let learned = inside(&node.gateway, || ip_json("neigh show 10.10.0.5"));
        assert_eq!(learned[0]["lladdr"], parent.as_str());
        assert_eq!(device.mac.map(|octet| format!("{octet:02x}")).join(":"), parent);
        assert_eq!(node.check(runtime, &one, &spec).as_ref(), Ok(&device));
        // A repeated ADD returns the same device, and the device still works.
        assert_eq!(node.attach(runtime, &one, &spec), device);
        assert!(inside(&one, || ping("10.10.0.1") && ping("192.0.2.1")));
        assert_eq!(node.kernel.status().last_error, None);
    });
}

/// In a repeated ADD, the slave already has the address, so the gateway's answers to the check go
/// to the slave.
#[test]
fn link_check_receives_answers_to_a_slave() {
    on_node("link_check_receives_answers_to_a_slave", |runtime, node| {
        let netns = namespace();
        node.attach(runtime, &netns, &node.slave("c", 5));
        for (address, gateway) in [("10.10.0.5", "10.10.0.1"), ("fd10::5", "fd10::1")] {
            let check = LinkCheck {
                address: address.parse().unwrap(),
                subnet: "s".to_owned(),
                gateway: gateway.parse().unwrap(),
                device: "eth0.10".to_owned(),
                ifindex: node.parent,
                vlan: 10,
            };
            // The gateway already has a neighbour entry for the pod, so it sends no ARP or ND
            // request.
            assert!(inside(&netns, || ping(gateway)));
            let (duplicate_wait, gateway_timeout) = (Duration::from_millis(200), Duration::from_secs(3));
            let outcome = runtime.block_on(async {
                let wire = LinkChecker::new(CheckTimeouts { duplicate_wait, gateway_timeout });
                wire.check(&check).await.map(drop).map_err(|error| error.to_string())
            });
            assert_eq!(outcome, Ok(()), "{address}");
        }
    });
}

/// A pod must ignore router advertisements. They would give it an unassigned address and a second
/// default route.
#[test]
fn slave_ignores_router_advertisements() {
    on_node("slave_ignores_router_advertisements", |runtime, node| {
        let netns = namespace();
        node.attach(runtime, &netns, &node.slave("c", 5));
        let read = |path: &str| {
            let (path, mut text) = (path.to_owned(), String::new());
            inside(&netns, || text = std::fs::read_to_string(path).unwrap());
            text.trim().to_owned()
        };
        assert_eq!(read("/proc/sys/net/ipv6/conf/eth0/accept_ra"), "0");
        assert_eq!(read("/proc/sys/net/ipv4/conf/eth0/rp_filter"), "2");
    });
}

#[test]
fn check_reports_missing_parts_and_add_restores_them() {
    on_node("check_reports_missing_parts_and_add_restores_them", |runtime, node| {
        let netns = namespace();
        let spec = node.slave("c", 5);
        let device = node.attach(runtime, &netns, &spec);
        let pair = device.host_ifname.clone();
        inside(&netns, || {
            ip("route del default");
            ip("route del 10.1.0.0/24");
            ip(&format!("-6 neigh del fe80::ecee:eeff:feee:eeee dev {pair}"));
        });
        let error = node.check(runtime, &netns, &spec).unwrap_err();
        for part in [
            "no default route through 10.10.0.1",
            "no route to 10.1.0.0/24 through 169.254.1.1",
            "neighbour entry for fe80::",
        ] {
            assert!(error.contains(part), "{part} in {error}");
        }
        node.attach(runtime, &netns, &spec);
        assert_eq!(node.check(runtime, &netns, &spec).as_ref(), Ok(&device));

        ip_in(&netns, "link del eth0");
        assert!(node.check(runtime, &netns, &spec).unwrap_err().contains("eth0 is not in the pod"));
        node.attach(runtime, &netns, &spec);
        assert_eq!(node.check(runtime, &netns, &spec).as_ref(), Ok(&device));

        // Only the veth pair is gone: the slave stays, and ADD uses it again.
        ip(&format!("link del {pair}"));
        let device = node.attach(runtime, &netns, &spec);
        assert_eq!(node.check(runtime, &netns, &spec).as_ref(), Ok(&device));
        assert!(inside(&netns, || ping("10.10.0.1") && ping("192.0.2.1")));
    });
}

#[test]
fn del_deletes_slave_and_pair_but_no_foreign_link() {
    on_node("del_deletes_slave_and_pair_but_no_foreign_link", |runtime, node| {
        let (netns, spec) = (namespace(), node.slave("c", 5));
        let links = |netns: &OwnedFd| inside(netns, || ip_json("link show").len());
        node.attach(runtime, &netns, &spec);
        assert_eq!(links(&netns), 3, "loopback, slave, pair");
        assert!(node.detach(runtime, &spec));
        assert_eq!(links(&netns), 1, "loopback");
        assert!(!node.detach(runtime, &spec), "no link is left");

        // The device is incomplete: only the slave, or only the pair, is already deleted.
        node.attach(runtime, &netns, &spec);
        ip_in(&netns, "link del eth0");
        assert!(node.detach(runtime, &spec));
        // The whole namespace is deleted.
        let short = namespace();
        node.attach(runtime, &short, &spec);
        drop(short);
        eventually("the namespace is gone", || ip_json("link show type veth").len() == 1);
        assert!(!node.detach(runtime, &spec));

        // Another program's interface has the name.
        ip_in(&netns, "link add eth0 type veth peer name other");
        let attach = node.workers.attach(netns.try_clone().unwrap(), spec.clone(), |_| ());
        let error = runtime.block_on(attach).unwrap_err();
        assert!(matches!(error, DeviceError::Taken { .. }), "{error}");
        node.detach(runtime, &spec);
        assert_eq!(links(&netns), 3, "loopback and the foreign link");
    });
}

#[test]
fn add_completes_an_earlier_attempt() {
    on_node("add_completes_an_earlier_attempt", |runtime, node| {
        let (netns, spec) = (namespace(), node.slave("c", 5));
        // The agent was killed after it created the slave and before it renamed it.
        let path = format!("/proc/{}/fd/{}", std::process::id(), netns.as_raw_fd());
        let first = format!("{}-", host_ifname("c", "eth0"));
        ip(&format!("link add link eth0.10 name {first} netns {path} type ipvlan mode l2"));
        node.attach(runtime, &netns, &spec);
        assert_eq!(inside(&netns, || ip_json("link show").len()), 3, "loopback, slave, pair");
        // The attachment changes to veth and back to IPVLAN: ADD creates the device again each
        // time.
        let veth = DeviceSpec { attachment: Attachment::Veth, ..spec.clone() };
        for spec in [&veth, &spec] {
            let device = node.attach(runtime, &netns, spec);
            assert_eq!(node.check(runtime, &netns, spec).as_ref(), Ok(&device));
        }
        // The attachment moves to another VLAN.
        ip("link add link eth0 name eth0.20 type vlan id 20");
        let parent = ip_json("link show eth0.20")[0]["ifindex"].as_u64().unwrap() as u32;
        let Attachment::Ipvlan(ipvlan) = spec.attachment.clone() else { unreachable!() };
        let moved = DeviceSpec { attachment: Attachment::Ipvlan(Ipvlan { parent, ..ipvlan }), ..spec };
        let error = node.check(runtime, &netns, &moved).unwrap_err();
        assert!(error.contains("eth0 is not an IPVLAN slave of eth0.10"), "{error}");
        node.attach(runtime, &netns, &moved);
        assert!(node.check(runtime, &netns, &moved).is_ok());
        // The VLAN device was deleted, and its slaves with it.
        ip("link del eth0.20");
        let attach = node.workers.attach(netns.try_clone().unwrap(), moved, |_| ());
        let error = runtime.block_on(attach).unwrap_err().to_string();
        assert!(
            error.contains(
                "eth0 cannot be created on eth0.10: the kernel refused the request: No such device"
            ),
            "{error}"
        );
    });
}
