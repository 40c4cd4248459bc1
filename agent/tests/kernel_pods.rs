//! Pods in a real kernel: attachment, its check, its repair, and the cleaning of incomplete work.
#![allow(clippy::disallowed_methods, reason = "tests measure")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../datapath/tests/namespace/mod.rs"]
mod namespace;

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use namespace::{eventually, inside, ip, ip_json, isolated, namespace, ping};
use tokio::runtime::Runtime;
use trunkline_agent::packet_path::{PathQuery, packet_path};
use trunkline_agent::plan::{Mode, NetworkPlan, Plan, Pod, plan_pod};
use trunkline_api::bandwidth::{Bandwidth, RateLimit};
use trunkline_api::control::{PacketPath, Place, RouteKind, RouteLookup};
use trunkline_api::resources::AttachmentKind;
use trunkline_datapath::attach::device::{Device, DeviceError, DeviceSpec};
use trunkline_datapath::attach::workers::DeviceWorkers;
use trunkline_datapath::family::IpFamily;
use trunkline_datapath::kernel::{KernelConfig, KernelEvent, KernelEvents, KernelHandle};
use trunkline_datapath::naming::host_ifname;
use trunkline_datapath::plan::{
    Attachment, KernelPlan, NatRules, PodPlan, RouteKey, RouteTarget, Rule, Sysctl,
};

fn spec(container: &str, addresses: &[&str]) -> DeviceSpec {
    DeviceSpec {
        container_id: container.to_owned(),
        ifname: "eth0".to_owned(),
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        mac: None,
        mtu: Some(1400),
        bandwidth: Bandwidth::default(),
        attachment: Attachment::Veth,
        destinations: Vec::new(),
        several: false,
    }
}

fn pod_plan(spec: &DeviceSpec, device: &Device) -> PodPlan {
    let network = NetworkPlan {
        mode: Mode::Bgp,
        attachment: AttachmentKind::Veth,
        hairpin: false,
        extra_prefixes: Default::default(),
        by_host: Default::default(),
        subnets: Default::default(),
        refused_subnets: Default::default(),
        mtu: None,
        refused: None,
    };
    let plan = Plan { networks: [("net".to_owned(), network)].into(), ..Plan::default() };
    let pod = Pod {
        network: "net".to_owned(),
        addresses: spec.addresses.clone(),
        host_ifname: device.host_ifname.clone(),
        host_ifindex: device.host_ifindex,
        mac: device.pair_mac,
        attachment: AttachmentKind::Veth,
        extra_prefixes: Default::default(),
        migration: Default::default(),
        target_addresses: Vec::new(),
        is_virtual_machine: spec.container_id == "vm",
    };
    plan_pod(&plan, &pod).unwrap().kernel
}

/// Local pods first, forwarding on.
fn base() -> KernelPlan {
    let mut plan = KernelPlan::default();
    for family in IpFamily::ALL {
        plan.rules.insert(Rule::always(family, 1000, 39_999));
    }
    plan.sysctls.insert("net/ipv4/ip_forward".to_owned(), Sysctl::Exactly("1"));
    plan.sysctls.insert("net/ipv6/conf/all/forwarding".to_owned(), Sysctl::Exactly("1"));
    plan
}

struct Node {
    workers: DeviceWorkers,
    kernel: KernelHandle,
    events: KernelEvents,
}

fn node(runtime: &Runtime) -> Node {
    ip("addr add 192.0.2.1/32 dev lo");
    ip("addr add 2001:db8:ffff::1/128 dev lo");
    let (kernel, events) = KernelHandle::spawn(KernelConfig::default()).unwrap();
    runtime.block_on(async {
        let applied = kernel.set_plan(base()).await.unwrap();
        assert_eq!(applied.faults, [""; 0]);
        assert!(kernel.set_pods(Vec::new()).await.unwrap().is_empty());
    });
    Node { workers: DeviceWorkers::spawn(4).unwrap(), kernel, events }
}

fn attach(runtime: &Runtime, node: &Node, netns: &OwnedFd, spec: &DeviceSpec) -> Device {
    runtime.block_on(async {
        let device = node.workers.attach(netns.try_clone().unwrap(), spec.clone(), |_| ()).await.unwrap();
        node.kernel.add_pod(pod_plan(spec, &device)).await.unwrap();
        device
    })
}

fn check(runtime: &Runtime, node: &Node, netns: &OwnedFd, spec: &DeviceSpec) -> Result<Device, String> {
    runtime
        .block_on(node.workers.check(netns.try_clone().unwrap(), spec.clone()))
        .map_err(|error| error.to_string())
}

#[test]
fn a_pod_reaches_the_host_and_the_host_the_pod() {
    isolated("a_pod_reaches_the_host_and_the_host_the_pod", |runtime| {
        let node = node(runtime);
        for (container, addresses) in
            [("four", &["10.1.0.4"][..]), ("six", &["2001:db8::6"]), ("dual", &["10.1.0.46", "2001:db8::46"])]
        {
            let netns = namespace();
            let spec = spec(container, addresses);
            let device = attach(runtime, &node, &netns, &spec);
            for address in addresses {
                let host = if address.contains(':') { "2001:db8:ffff::1" } else { "192.0.2.1" };
                assert!(inside(&netns, || ping(host)), "{container}: {host} from the pod");
                assert!(ping(address), "{container}: {address} from the host");
            }
            assert_eq!(check(runtime, &node, &netns, &spec).as_ref(), Ok(&device));
            assert_eq!(device.mtu, 1400);
            let link = ip(&format!("-d link show {}", device.host_ifname));
            for part in
                ["ee:ee:ee:ee:ee:ee", "addrgenmode none", &format!("alias trunkline:{container}:eth0")]
            {
                assert!(link.contains(part), "{part} in {link}");
            }
            // The proxy setting that helps a pod without its neighbour entry.
            let proxy = format!("/proc/sys/net/ipv4/conf/{}/proxy_arp", device.host_ifname);
            assert_eq!(std::fs::read_to_string(proxy).unwrap().trim(), "1");
            // After a repeated ADD, the device is the same and still works.
            assert_eq!(attach(runtime, &node, &netns, &spec), device);
            assert!(ping(addresses[0]), "{container} after the second ADD");
        }
        // Pods reach each other.
        let (one, two) = (namespace(), namespace());
        attach(runtime, &node, &one, &spec("one", &["10.1.0.1", "2001:db8::1"]));
        attach(runtime, &node, &two, &spec("two", &["10.1.0.2", "2001:db8::2"]));
        assert!(inside(&one, || ping("10.1.0.2") && ping("2001:db8::2")));
        assert_eq!(node.kernel.status().repairs, 0);
        assert_eq!(node.kernel.status().last_error, None);
    });
}

/// The guest of a virtual machine has no permanent neighbour entries, and KubeVirt sets the pod's
/// interface down before it connects the guest.
#[test]
fn routers_are_resolved_without_permanent_neighbours() {
    isolated("routers_are_resolved_without_permanent_neighbours", |runtime| {
        let node = node(runtime);
        // The kernel answers only for addresses that it can route.
        ip("route add default dev lo");
        let netns = namespace();
        let device = attach(runtime, &node, &netns, &spec("vm", &["10.1.0.4", "2001:db8::4"]));
        let proxies = || ip(&format!("-6 neigh show proxy dev {}", device.host_ifname));
        let gateway = "fe80::ecee:eeff:feee:eeee";
        assert!(proxies().contains(gateway), "{}", proxies());
        inside(&netns, || {
            ip("link set eth0 down");
            ip("link set eth0 up");
            ip("addr add 2001:db8::4/128 dev eth0 nodad");
            ip("route add 169.254.1.1 dev eth0");
            ip("route add default via 169.254.1.1 dev eth0");
            ip(&format!("-6 route add default via {gateway} dev eth0"));
            let known = ip("neigh show nud permanent");
            assert!(known.is_empty(), "{known}");
        });
        eventually("the proxy entry is installed again", || proxies().contains(gateway));
        for router in ["192.0.2.1", "2001:db8:ffff::1"] {
            let state =
                || inside(&netns, || [ip("addr"), ip("-6 route"), ip("neigh"), ip("-6 neigh")].concat());
            assert!(inside(&netns, || ping(router)), "{router}: {}", state());
        }
        assert_eq!(node.kernel.status().last_error, None);
    });
}

/// A translated Service's backend would reply directly to a slave, so the request uses an address
/// of the host as source. The backend here has no route to the pod's subnet, so it can reply only
/// to the host.
#[test]
fn packets_to_an_unreachable_route_are_rejected() {
    isolated("packets_to_an_unreachable_route_are_rejected", |runtime| {
        let node = node(runtime);
        let netns = namespace();
        attach(runtime, &node, &netns, &spec("pod", &["10.1.0.4", "2001:db8::4"]));
        // The error for the first SYN can arrive while connect() still has the socket: the error for
        // the second one, a second later, ends the attempt.
        let connect = |address: &str, limit: Duration| {
            let address = SocketAddr::new(address.parse().unwrap(), 80);
            inside(&netns, || TcpStream::connect_timeout(&address, limit).unwrap_err())
        };
        for (target, is_rejected) in [(RouteTarget::Blackhole, false), (RouteTarget::Unreachable, true)] {
            let mut plan = base();
            for (family, prefix) in [(IpFamily::V4, "10.200.0.0/16"), (IpFamily::V6, "2001:db8:200::/64")] {
                plan.rules.insert(Rule::always(family, 1010, 40_000));
                let key = RouteKey { table: 40_000, prefix: prefix.parse().unwrap() };
                plan.routes.insert(key, target.clone());
            }
            assert_eq!(runtime.block_on(node.kernel.set_plan(plan)).unwrap().faults, [""; 0]);
            assert_eq!(runtime.block_on(node.kernel.resync()).unwrap(), 0, "the kernel has {target:?}");
            for address in ["10.200.9.9", "2001:db8:200::9"] {
                let limit = Duration::from_millis(if is_rejected { 5_000 } else { 300 });
                let error = connect(address, limit);
                let unreachable = [ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable];
                assert_eq!(unreachable.contains(&error.kind()), is_rejected, "{address}: {error}");
                assert_eq!(error.kind() == ErrorKind::TimedOut, !is_rejected, "{address}: {error}");
            }
        }
    });
}

#[test]
fn a_translated_service_is_reached_from_the_host() {
    isolated("a_translated_service_is_reached_from_the_host", |runtime| {
        let nft = |command: &str| Command::new("nft").arg(command).status();
        if nft("add table ip services").is_err() {
            println!("skipped, nft is not installed");
            return;
        }
        let node = node(runtime);
        let (netns, backend) = (namespace(), namespace());
        let path = format!("/proc/{}/fd/{}", std::process::id(), backend.as_raw_fd());
        ip(&format!("link add out type veth peer name in netns {path}"));
        ip("addr add 203.0.113.1/24 dev out");
        ip("link set out up");
        inside(&backend, || {
            ip("addr add 203.0.113.9/24 dev in");
            ip("link set in up");
        });
        attach(runtime, &node, &netns, &spec("c", &["10.1.0.4"]));
        for command in [
            "add chain ip services pre { type nat hook prerouting priority dstnat; }",
            "add rule ip services pre ip daddr 10.96.0.1 dnat to 203.0.113.9",
        ] {
            assert!(nft(command).unwrap().success(), "{command}");
        }
        let reached = || inside(&netns, || ping("10.96.0.1"));
        assert!(!reached(), "a request from the pod's own address gets no reply");
        let nat = NatRules { slaves: ["10.1.0.0/24".parse().unwrap()].into(), ..NatRules::default() };
        let applied = runtime.block_on(node.kernel.set_plan(KernelPlan { nat, ..base() })).unwrap();
        assert_eq!(applied.faults, [""; 0]);
        assert!(reached(), "a request from an address of the host gets a reply");
        assert!(!inside(&netns, || ping("203.0.113.9")), "an untranslated packet keeps its source");
    });
}

#[test]
fn check_reports_everything_that_is_missing() {
    isolated("check_reports_everything_that_is_missing", |runtime| {
        let node = node(runtime);
        let netns = namespace();
        let spec = spec("c", &["10.1.0.4", "2001:db8::4"]);
        let device = attach(runtime, &node, &netns, &spec);
        let host = &device.host_ifname;
        inside(&netns, || {
            ip("neigh del 169.254.1.1 dev eth0");
            ip("-6 route del default");
            ip("addr del 10.1.0.4/32 dev eth0");
        });
        let error = check(runtime, &node, &netns, &spec).unwrap_err();
        for part in
            ["eth0 has no 10.1.0.4", "neighbour entry for 169.254.1.1", "no default route through fe80::"]
        {
            assert!(error.contains(part), "{part} in {error}");
        }
        // A second ADD repairs the pod's side.
        attach(runtime, &node, &netns, &spec);
        assert_eq!(check(runtime, &node, &netns, &spec).as_ref(), Ok(&device));

        runtime.block_on(node.kernel.remove_pod(host)).unwrap();
        let error = check(runtime, &node, &netns, &spec).unwrap_err();
        assert!(error.contains("table 39999 has no route to 10.1.0.4"), "{error}");
        assert!(error.contains("the host has no permanent neighbour entry for 2001:db8::4"), "{error}");
        ip(&format!("link del {host}"));
        assert!(check(runtime, &node, &netns, &spec).unwrap_err().contains("does not exist"));
    });
}

#[test]
fn foreign_changes_of_a_pod_are_repaired() {
    isolated("foreign_changes_of_a_pod_are_repaired", |runtime| {
        let mut node = node(runtime);
        let netns = namespace();
        let spec = spec("c", &["10.1.0.4", "2001:db8::4"]);
        let device = attach(runtime, &node, &netns, &spec);
        let host = &device.host_ifname;
        let whole = |runtime: &Runtime, node: &Node| check(runtime, node, &netns, &spec).is_ok();
        check(runtime, &node, &netns, &spec).unwrap();
        for (number, command) in [
            "route del 10.1.0.4 table 39999".to_owned(),
            "-6 route del 2001:db8::4 table 39999".to_owned(),
            "rule del pref 1000".to_owned(),
            "-6 rule del pref 1000".to_owned(),
            format!("neigh del 10.1.0.4 dev {host}"),
            format!("link set {host} down"),
            "route replace blackhole 10.1.0.4 table 39999".to_owned(),
        ]
        .into_iter()
        .enumerate()
        {
            ip(&command);
            eventually(&command, || {
                whole(runtime, &node)
                    && ip("rule").contains("39999")
                    && ip("-6 rule").contains("39999")
                    && ping("10.1.0.4")
                    && ping("2001:db8::4")
            });
            eventually("the repair is counted", || node.kernel.status().repairs > number as u64);
            assert_eq!(node.kernel.status().last_error, None, "{command}");
        }
        let repairs = node.kernel.status().repairs;
        assert_eq!(node.kernel.status().rescans, 0, "no repair needed a scan");
        // Repairs cause no further repairs.
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(node.kernel.status().repairs, repairs);

        // A scan removes own routes that no plan contains.
        ip("route add 10.1.0.99 dev lo table 39999 proto 116");
        assert_eq!(runtime.block_on(node.kernel.resync()).unwrap(), 0);
        assert!(whole(runtime, &node));
        assert!(!ip("route show table 39999").contains("10.1.0.99"));

        // A link cannot be restored without its pod: the fault is reported.
        ip(&format!("link del {host}"));
        let event = runtime.block_on(async {
            tokio::time::timeout(Duration::from_secs(5), node.events.next()).await.unwrap()
        });
        assert_eq!(event, Some(KernelEvent::DeviceGone { host_ifname: host.clone() }));
        eventually("the pod is forgotten", || node.kernel.status().pods == 0);
        // A repeated ADD creates the link again.
        attach(runtime, &node, &netns, &spec);
        assert!(ping("10.1.0.4"));
    });
}

#[test]
fn del_ignores_missing_and_foreign_devices() {
    isolated("del_ignores_missing_and_foreign_devices", |runtime| {
        let node = node(runtime);
        let netns = namespace();
        let spec = spec("c", &["10.1.0.4"]);
        let name = attach(runtime, &node, &netns, &spec).host_ifname;
        let delete = || {
            runtime.block_on(async {
                node.kernel.remove_pod(&name).await.unwrap();
                node.workers.detach(name.clone(), None).await
            })
        };
        assert!(delete().unwrap());
        assert!(ip_json("route show table 39999").is_empty());
        assert!(!inside(&netns, || ip("link").contains("eth0")));
        assert!(!delete().unwrap(), "the second DEL finds no device");

        let netns_that_goes = namespace();
        attach(runtime, &node, &netns_that_goes, &spec);
        drop(netns_that_goes);
        eventually("the kernel deleted the pair", || !ip("link").contains(&name));
        assert!(!delete().unwrap(), "the namespace is gone");

        // DEL and ADD do not change foreign links, even if the link is a veth or has no alias.
        for (kind, alias) in [("bridge", ""), ("veth", ""), ("veth", "theirs")] {
            ip(&format!("link add {name} type {kind}"));
            if !alias.is_empty() {
                ip(&format!("link set {name} alias {alias}"));
            }
            let before = ip(&format!("-d link show {name}"));
            let error = delete().unwrap_err();
            assert!(matches!(error, DeviceError::Foreign { .. }), "{error}");
            let netns = namespace();
            let error = runtime
                .block_on(node.workers.attach(netns.try_clone().unwrap(), spec.clone(), |_| ()))
                .unwrap_err();
            assert!(matches!(error, DeviceError::Foreign { .. }), "{error}");
            assert_eq!(ip(&format!("-d link show {name}")), before);
            let proxy = format!("/proc/sys/net/ipv4/conf/{name}/proxy_arp");
            assert_eq!(std::fs::read_to_string(proxy).unwrap().trim(), "0");
            assert!(!inside(&netns, || ip("link").contains("eth0")));
            ip(&format!("link del {name}"));
        }
    });
}

#[test]
fn incomplete_work_is_completed_or_repeated() {
    isolated("incomplete_work_is_completed_or_repeated", |runtime| {
        let node = node(runtime);
        let spec = spec("c", &["10.1.0.4", "2001:db8::4"]);
        let name = host_ifname("c", "eth0");

        // An ADD was killed after the creation of the pair, which has no alias and no addresses and
        // is down.
        let netns = namespace();
        let mac = "02:12:34:ad:15:37"; // of container c, interface eth0
        ip(&format!("link add {name} address ee:ee:ee:ee:ee:ee type veth peer name eth0 address {mac}"));
        let index = ip_json(&format!("link show {name}"))[0]["ifindex"].clone();
        move_link("eth0", &netns);
        let device = attach(runtime, &node, &netns, &spec);
        assert_eq!(index, device.host_ifindex, "the device is completed, and not created again");
        assert!(ping("10.1.0.4") && ping("2001:db8::4"));
        check(runtime, &node, &netns, &spec).unwrap();

        // The same container in a new namespace: the old pair conflicts.
        let other = namespace();
        attach(runtime, &node, &other, &spec);
        assert!(ping("10.1.0.4"));
        check(runtime, &node, &other, &spec).unwrap();
        assert!(!inside(&netns, || ip("link").contains("eth0")));

        // A foreign eth0 is not adopted.
        let occupied = namespace();
        inside(&occupied, || ip("link add eth0 type bridge"));
        let error = runtime
            .block_on(node.workers.attach(
                occupied.try_clone().unwrap(),
                self::spec("d", &["10.1.0.5"]),
                |_| (),
            ))
            .unwrap_err();
        assert!(error.to_string().contains("choose another CNI_IFNAME"), "{error}");
        assert!(!ip("link").contains(&host_ifname("d", "eth0")), "nothing is left of the attempt");
    });
}

#[test]
fn bandwidth_limits_are_set_checked_and_removed_with_the_pair() {
    isolated("bandwidth_limits_are_set_checked_and_removed_with_the_pair", |runtime| {
        let node = node(runtime);
        let netns = namespace();
        let mut spec = spec("c", &["10.1.0.4"]);
        spec.bandwidth = Bandwidth {
            ingress: Some(RateLimit { rate: 20_000_000, burst: None }),
            egress: Some(RateLimit { rate: 5_000_000_000, burst: Some(8_000_000) }),
        };
        let device = attach(runtime, &node, &netns, &spec);
        let host = device.host_ifname.as_str();
        let ifb = format!("tb{}", &host[2..]);
        for (dev, rate) in [(host, "rate 20Mbit burst 128Kb"), (ifb.as_str(), "rate 5Gbit")] {
            let shown = tc(&format!("qdisc show dev {dev} root"));
            assert!(shown.starts_with("qdisc tbf 1:") && shown.contains(rate), "{shown}");
        }
        assert!(ip(&format!("link show {ifb}")).contains("alias trunkline:c:eth0"));
        assert!(inside(&netns, || ping("192.0.2.1")) && ping("10.1.0.4"), "through the limits");
        check(runtime, &node, &netns, &spec).unwrap();

        // A repeated ADD changes nothing, and repairs damage; CHECK reports each fault.
        let filters = || tc(&format!("filter show dev {host} ingress")).matches("Redirect to device").count();
        let before = tc("qdisc show");
        assert_eq!(attach(runtime, &node, &netns, &spec), device);
        assert_eq!((tc("qdisc show"), filters()), (before, 1));
        for (command, fault) in [
            (format!("qdisc del dev {host} root"), "does not limit packets to the pod"),
            (format!("qdisc replace dev {host} root tbf rate 1mbit burst 9kb latency 1ms"), "to the pod"),
            (format!("qdisc del dev {ifb} root"), "does not limit packets from the pod"),
            (format!("qdisc del dev {host} clsact"), "does not redirect packets from the pod to"),
        ] {
            tc(&command);
            let error = check(runtime, &node, &netns, &spec).unwrap_err();
            assert!(error.contains(fault), "{command}: {error}");
            // The next start makes the same request.
            let repaired =
                runtime.block_on(node.workers.repair_limits(host.to_owned(), spec.bandwidth)).unwrap();
            assert_eq!(repaired.len(), 1, "{command}: {repaired:?}");
            check(runtime, &node, &netns, &spec).unwrap();
        }
        ip(&format!("link set {ifb} down"));
        assert!(check(runtime, &node, &netns, &spec).unwrap_err().contains("is down"));
        ip(&format!("link del {ifb}"));
        assert!(check(runtime, &node, &netns, &spec).unwrap_err().contains("does not exist"));
        attach(runtime, &node, &netns, &spec);
        check(runtime, &node, &netns, &spec).unwrap();
        assert!(inside(&netns, || ping("192.0.2.1")));

        // The pair is deleted with its namespace. The other device stays until DEL.
        drop(netns);
        eventually("the kernel deleted the pair", || !ip("link").contains(host));
        assert!(ip("link").contains(&ifb));
        assert!(runtime.block_on(node.workers.detach(host.to_owned(), None)).unwrap());
        assert!(!ip("link").contains(&ifb));
    });
}

#[test]
fn the_first_of_several_interfaces_sends_from_its_own_address() {
    isolated("the_first_of_several_interfaces_sends_from_its_own_address", |runtime| {
        let node = node(runtime);
        let netns = namespace();
        let first = DeviceSpec { several: true, ..spec("c", &["10.1.0.4"]) };
        let second = DeviceSpec {
            ifname: "net1".to_owned(),
            addresses: vec!["10.2.0.4".parse().unwrap()],
            destinations: vec!["10.2.0.0/16".parse().unwrap()],
            ..first.clone()
        };
        let way = |to: &str| inside(&netns, || ip(&format!("route get {to}")));
        for _ in 0..2 {
            attach(runtime, &node, &netns, &first);
            attach(runtime, &node, &netns, &second);
            // A new connection to the second network uses the second interface, and an answer from the
            // first address the first one.
            assert!(way("10.2.0.9").contains("dev net1 src 10.2.0.4"), "{}", way("10.2.0.9"));
            assert!(way("10.2.0.9 from 10.1.0.4").contains("dev eth0"), "{}", way("10.2.0.9 from 10.1.0.4"));
            assert!(way("192.0.2.1").contains("dev eth0 src 10.1.0.4"), "{}", way("192.0.2.1"));
            assert!(way("192.0.2.1 from 10.2.0.4").contains("dev net1"));
            check(runtime, &node, &netns, &first).unwrap();
            check(runtime, &node, &netns, &second).unwrap();
        }
    });
}

#[test]
fn a_second_interface_does_not_change_the_first() {
    isolated("a_second_interface_does_not_change_the_first", |runtime| {
        let node = node(runtime);
        let netns = namespace();
        let first = spec("c", &["10.1.0.4"]);
        let second = DeviceSpec {
            ifname: "net1".to_owned(),
            addresses: vec!["10.2.0.4".parse().unwrap(), "2001:db8:2::4".parse().unwrap()],
            destinations: vec!["10.2.0.0/16".parse().unwrap(), "2001:db8:2::/64".parse().unwrap()],
            several: false,
            ..first.clone()
        };
        attach(runtime, &node, &netns, &first);
        let device = attach(runtime, &node, &netns, &second);
        let other = namespace();
        attach(runtime, &node, &other, &spec("other", &["10.2.0.9"]));
        let way = |to: &str| inside(&netns, || ip(&format!("route get {to}")));
        let both_whole = || {
            check(runtime, &node, &netns, &first).unwrap();
            check(runtime, &node, &netns, &second).unwrap();
        };
        both_whole();
        // The alias records whether the interface has rules in the pod, for DEL. A repeated ADD
        // keeps it.
        let alias = |ifname: &str| {
            let link = ip_json(&format!("link show {}", host_ifname("c", ifname)));
            link[0]["ifalias"].as_str().unwrap().to_owned()
        };
        assert_eq!(
            (alias("eth0"), alias("net1")),
            ("trunkline:c:eth0".into(), "trunkline:c:net1:second".into())
        );
        // The IPv4 default route uses the first interface. The first interface has no IPv6 address,
        // so the IPv6 default route uses the second one.
        assert!(way("192.0.2.1").contains("dev eth0 src 10.1.0.4"), "{}", way("192.0.2.1"));
        assert!(way("2001:db8:ffff::1").contains("dev net1"), "{}", way("2001:db8:ffff::1"));
        // The subnets of its network use the second interface, and packets from its address use it
        // too.
        assert!(way("10.2.0.9").contains("dev net1 src 10.2.0.4"), "{}", way("10.2.0.9"));
        assert!(way("192.0.2.1 from 10.2.0.4").contains("dev net1"), "{}", way("192.0.2.1 from 10.2.0.4"));
        let gateways = device.routes.iter().map(|(to, by)| format!("{to} {by}")).collect::<Vec<_>>();
        assert_eq!(gateways, ["10.2.0.0/16 169.254.1.1", "::/0 fe80::ecee:eeff:feee:eeee"]);
        // Each interface answers at its own address, also under a strict source check.
        inside(&netns, || {
            for name in ["all", "eth0", "net1"] {
                std::fs::write(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"), "1").unwrap();
            }
        });
        assert!(ping("10.1.0.4") && ping("10.2.0.4") && ping("2001:db8:2::4"));
        assert!(inside(&netns, || ping("10.2.0.9") && ping("192.0.2.1") && ping("2001:db8:ffff::1")));

        // Repeated ADDs change nothing; faults are reported and repaired.
        let shown =
            || inside(&netns, || [ip("rule"), ip("route show table all"), ip("-6 route show table all")]);
        let before = shown();
        assert_eq!(attach(runtime, &node, &netns, &second), device);
        attach(runtime, &node, &netns, &first);
        assert_eq!(shown(), before);
        assert_eq!(alias("net1"), "trunkline:c:net1:second");
        both_whole();
        ip(&format!("link set {} alias trunkline:c:net1", device.host_ifname));
        let error = check(runtime, &node, &netns, &second).unwrap_err();
        assert!(error.contains("has lost its alias"), "{error}");
        inside(&netns, || {
            ip("rule del pref 1100");
            ip("route del 10.2.0.0/16");
        });
        let error = check(runtime, &node, &netns, &second).unwrap_err();
        for part in ["no rule from 10.2.0.4/32", "no route to 10.2.0.0/16"] {
            assert!(error.contains(part), "{part} in {error}");
        }
        attach(runtime, &node, &netns, &second);
        both_whole();

        // The second interface is removed without leftovers, and the first does not change.
        let detach = |device: &str, netns: &OwnedFd| {
            runtime.block_on(async {
                node.kernel.remove_pod(device).await.unwrap();
                node.workers.detach(device.to_owned(), Some(netns.try_clone().unwrap())).await.unwrap()
            })
        };
        assert!(detach(&device.host_ifname, &netns));
        check(runtime, &node, &netns, &first).unwrap();
        assert!(!inside(&netns, || ip("rule")).contains("1100"));
        assert!(inside(&netns, || ping("192.0.2.1")) && ping("10.1.0.4"));

        // The first interface is removed: the second does not change, also in CHECK.
        attach(runtime, &node, &netns, &second);
        detach(&host_ifname("c", "eth0"), &netns);
        check(runtime, &node, &netns, &second).unwrap();
        assert!(ping("10.2.0.4") && inside(&netns, || ping("10.2.0.9")));

        // A foreign default route also does not change.
        let netns = namespace();
        inside(&netns, || {
            ip("link add theirs0 type veth peer name theirs1");
            ip("addr add 203.0.113.2/24 dev theirs0");
            ip("link set theirs0 up");
            ip("route add default via 203.0.113.1 metric 100");
        });
        attach(runtime, &node, &netns, &spec("theirs", &["10.1.0.5"]));
        let default = inside(&netns, || ip("route show default"));
        assert!(default.starts_with("default via 203.0.113.1 dev theirs0"), "{default}");
        assert_eq!(default.lines().count(), 1, "{default}");
        assert!(ping("10.1.0.5"));
    });
}

/// The rules that a packet passes, each with its effect on the packet.
fn rule_effects(stage: &RouteLookup) -> Vec<String> {
    stage.rules.iter().map(|rule| format!("{} {}", rule.priority, rule.standing)).collect()
}

#[test]
fn packet_path_equals_the_kernels_forwarding() {
    isolated("packet_path_equals_the_kernels_forwarding", |runtime| {
        let node = node(runtime);
        let router = namespace();
        ip("link add up0 address 02:00:00:00:00:01 type veth peer name r0 address 02:00:00:00:00:02");
        move_link("r0", &router);
        for command in
            ["addr add 192.0.3.2/24 dev up0", "addr add 2001:db8:3::2/64 dev up0", "link set up0 up"]
        {
            ip(command);
        }
        inside(&router, || {
            ip("addr add 192.0.3.1/24 dev r0");
            ip("link set r0 up");
            ip("route add 10.1.0.0/16 via 192.0.3.2");
            ip("addr add 198.51.100.1/32 dev lo");
        });
        ip("rule add pref 1030 iif up0 lookup 39998");
        ip("rule add pref 1100 from 10.1.0.0/16 lookup 10000");
        ip("route add default via 192.0.3.1 table 10000");
        let (one, two) = (namespace(), namespace());
        let spec_one = spec("one", &["10.1.0.1", "2001:db8::1"]);
        let first = attach(runtime, &node, &one, &spec_one);
        let second = attach(runtime, &node, &two, &spec("two", &["10.1.0.2", "2001:db8::2"]));
        let path_to = |destination: &str| {
            let query = PathQuery {
                destination: destination.parse().unwrap(),
                source: None,
                interfaces: [("eth0".to_owned(), first.host_ifname.clone())].into(),
                pods: [(second.host_ifname.clone(), "lab/two".to_owned())].into(),
            };
            let look = move |host: &mut _, pod: &mut _| packet_path(host, pod, &query);
            runtime.block_on(node.workers.inspect(one.try_clone().unwrap(), look)).unwrap()
        };

        // The path leads through the router. The router answers a ping first, so its MAC address is
        // known.
        assert!(inside(&one, || ping("198.51.100.1")));
        let out = path_to("198.51.100.1");
        assert_eq!(out.source, Some("10.1.0.1".parse().unwrap()));
        assert_eq!(out.end, "out by up0 to 192.0.3.1");
        let [pod, host] = &out.forth[..] else { panic!("{out:?}") };
        assert_eq!((pod.place, host.place), (Place::Pod, Place::Node));
        let hop = &pod.route.as_ref().unwrap().hops[0];
        assert_eq!(hop.gateway, Some("169.254.1.1".parse().unwrap()));
        assert_eq!(
            (hop.interface.as_str(), hop.mtu, hop.mac.as_deref(), hop.neighbour.as_deref()),
            ("eth0", 1400, Some("ee:ee:ee:ee:ee:ee"), Some("permanent"))
        );
        assert_eq!(host.interface.as_ref(), Some(&first.host_ifname));
        assert_eq!(rule_effects(host), ["0 no route", "1000 no route", "1030 not for it", "1100 decides"]);
        assert_eq!(host.rules[3].rule, "from 10.1.0.0/16 lookup 10000");
        let route = host.route.as_ref().unwrap();
        assert_eq!((route.table, route.prefix.prefix_len(), route.kind), (10_000, 0, RouteKind::Unicast));
        let hop = &route.hops[0];
        assert!(hop.taken && hop.mac.as_deref() == Some("02:00:00:00:00:02"), "{hop:?}");
        let [back] = &out.back[..] else { panic!("{out:?}") };
        assert_eq!(
            (back.interface.as_deref(), rule_effects(back)),
            (Some("up0"), vec!["0 no route".to_owned(), "1000 decides".to_owned()])
        );
        assert_eq!(back.route.as_ref().unwrap().hops[0].interface, first.host_ifname);

        // Packets go to the other pod, in both families.
        for (destination, route) in [("10.1.0.2", "10.1.0.2/32"), ("2001:db8::2", "2001:db8::2/128")] {
            let local = path_to(destination);
            assert_eq!(local.end, format!("into pod lab/two by {}", second.host_ifname));
            let host = &local.forth[1];
            assert_eq!(rule_effects(host), ["0 no route", "1000 decides"]);
            let met = host.route.as_ref().unwrap();
            assert_eq!((met.table, met.prefix), (39_999, route.parse().unwrap()));
            assert_eq!(met.hops[0].pod.as_deref(), Some("lab/two"));
            assert_eq!(met.hops[0].neighbour.as_deref(), Some("permanent"));
            assert_eq!(local.back[0].route.as_ref().unwrap().hops[0].interface, first.host_ifname);
        }
        // Packets go to the node, and to the pod itself.
        let own = path_to("192.0.2.1");
        assert_eq!((own.end.as_str(), own.back[0].interface.as_ref()), ("the node itself", None));
        assert_eq!(path_to("10.1.0.1").end, "the pod itself: a local route");

        // Of two next hops, both are shown and one is selected.
        ip("route replace default table 10000 nexthop via 192.0.3.1 nexthop via 192.0.3.9");
        let hops = path_to("198.51.100.1").forth[1].route.clone().unwrap().hops;
        assert_eq!((hops.len(), hops.iter().filter(|hop| hop.taken).count()), (2, 1), "{hops:?}");
        assert!(
            hops.iter().any(|hop| hop.neighbour.is_none()),
            "no packet was sent to 192.0.3.9 yet: {hops:?}"
        );

        // The path leads through a tunnel. The FDB entry contains the other VTEP, and the result
        // contains the path of the tunnel's own packet.
        ip("link add vx9 address 02:00:00:00:00:09 type vxlan id 9 local 192.0.3.2 dstport 8472 nolearning");
        ip("link set vx9 up");
        ip("route add 10.9.0.0/16 via 10.9.0.1 dev vx9 onlink table 10000");
        ip("neigh add 10.9.0.1 lladdr 02:00:00:00:00:0a dev vx9 nud permanent");
        let lost = path_to("10.9.0.7");
        let link = |path: &PacketPath| path.forth[1].route.as_ref().unwrap().hops[0].link.clone();
        assert_eq!((link(&lost).as_deref(), lost.forth.len()), (Some("VXLAN 9, no forwarding entry"), 2));
        run("bridge", "fdb add 02:00:00:00:00:0a dev vx9 dst 192.0.3.1");
        let tunnelled = path_to("10.9.0.7");
        assert_eq!(link(&tunnelled).as_deref(), Some("VXLAN 9 to 192.0.3.1"));
        let [.., outer] = &tunnelled.forth[..] else { panic!("{tunnelled:?}") };
        assert_eq!(outer.source, Some("192.0.3.2".parse().unwrap()));
        assert_eq!(outer.destination, "192.0.3.1".parse::<IpAddr>().unwrap());
        assert_eq!(outer.route.as_ref().unwrap().hops[0].interface, "up0");
        assert_eq!(tunnelled.end, "out by vx9 to 10.9.0.1");

        // The result shows the reason for the end of the path.
        ip("route add blackhole 203.0.113.0/24 table 10000");
        let dropped = path_to("203.0.113.1");
        assert_eq!(dropped.end, "the node drops the packet");
        assert!(dropped.forth[1].refused.as_ref().unwrap().contains("blackhole"), "{dropped:?}");
        inside(&one, || ip("route del default"));
        let lost = path_to("198.51.100.1");
        assert_eq!(lost.end, "the packet does not leave the pod");
        assert!(lost.forth[0].refused.as_ref().unwrap().contains("there is no route"), "{lost:?}");
        assert_eq!(node.kernel.status().last_error, None);
    });
}

fn tc(arguments: &str) -> String {
    run("tc", arguments)
}

fn run(program: &str, arguments: &str) -> String {
    let output = Command::new(program).args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Moves a link of this namespace into another namespace, by its descriptor.
fn move_link(name: &str, netns: &OwnedFd) {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/{}/fd/{}", std::process::id(), netns.as_raw_fd());
    ip(&format!("link set {name} netns {path}"));
}

#[test]
fn an_attach_lists_no_other_pods() {
    isolated("an_attach_lists_no_other_pods", |runtime| {
        let node = node(runtime);
        let mut namespaces = Vec::new();
        let mut measure = |from: u32, count: u32| {
            let mut times: Vec<Duration> = (from..from + count)
                .map(|number| {
                    let netns = namespace();
                    let [_, _, high, low] = number.to_be_bytes();
                    let addresses = [format!("10.1.{high}.{low}"), format!("2001:db8::{number:x}")];
                    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
                    let spec = spec(&format!("c{number}"), &addresses);
                    let started = Instant::now();
                    attach(runtime, &node, &netns, &spec);
                    let took = started.elapsed();
                    namespaces.push(netns);
                    took
                })
                .collect();
            times.sort_unstable();
            (times[times.len() / 2], times[times.len() * 99 / 100])
        };
        let few = measure(1, 60);
        let rescans = node.kernel.status().rescans;
        let pods: u32 = std::env::var("TRUNKLINE_TEST_PODS").map_or(200, |pods| pods.parse().unwrap());
        measure(100, pods);
        let many = measure(60_000, 60);
        println!(
            "attach, dual stack: p50 {:?} p99 {:?}; with {pods} more pods: p50 {:?} p99 {:?}",
            few.0, few.1, many.0, many.1
        );
        // Durations are only for information. An ADD must not list existing objects.
        assert_eq!(node.kernel.status().rescans, rescans, "an attach listed existing objects");
        let address: IpAddr = "10.1.234.96".parse().unwrap();
        assert!(ping(&address.to_string()), "60000 is 234.96");
    });
}
