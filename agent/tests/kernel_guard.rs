//! The guard's exceptions in a real kernel: a pod that routes for others, or uses VRRP, sends from
//! prefixes besides its addresses.
//!
//! A marker proves that a datagram was dropped: an allowed datagram, sent later on the same path,
//! arrives.
#![allow(clippy::disallowed_methods, reason = "tests measure")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../datapath/tests/namespace/mod.rs"]
mod namespace;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::Duration;

use namespace::{eventually, inside, ip, isolated, namespace};
use tokio::runtime::Runtime;
use trunkline_agent::plan::{Mode, NetworkPlan, Plan, Pod, plan_pod};
use trunkline_api::bandwidth::Bandwidth;
use trunkline_api::resources::AttachmentKind;
use trunkline_datapath::attach::device::DeviceSpec;
use trunkline_datapath::attach::workers::DeviceWorkers;
use trunkline_datapath::family::IpFamily;
use trunkline_datapath::kernel::{KernelConfig, KernelEvents, KernelHandle};
use trunkline_datapath::plan::{Attachment, GuardPlan, KernelPlan, PodPlan, Rule, Sysctl};

const HOST_V4: &str = "192.0.2.1";
const HOST_V6: &str = "2001:db8:ffff::1";
const EXTRA: [&str; 2] = ["10.9.0.0/16", "fd00:9::/64"];

/// Local pods first, forwarding on, the guard active.
fn kernel_plan() -> KernelPlan {
    let mut plan =
        KernelPlan { guard: GuardPlan { enabled: true, ..GuardPlan::default() }, ..KernelPlan::default() };
    for family in IpFamily::ALL {
        plan.rules.insert(Rule::always(family, 1000, 39_999));
    }
    plan.sysctls.insert("net/ipv4/ip_forward".to_owned(), Sysctl::Exactly("1"));
    plan.sysctls.insert("net/ipv6/conf/all/forwarding".to_owned(), Sysctl::Exactly("1"));
    plan
}

fn spawn(runtime: &Runtime) -> (KernelHandle, KernelEvents) {
    let (kernel, events) = KernelHandle::spawn(KernelConfig::default()).unwrap();
    assert_eq!(runtime.block_on(kernel.set_plan(kernel_plan())).unwrap().faults, [""; 0]);
    (kernel, events)
}

/// A host with a default route, and two pods on it.
struct Scene {
    kernel: KernelHandle,
    events: KernelEvents,
    _workers: DeviceWorkers,
    router: Attached,
    plain: Attached,
    sockets: [UdpSocket; 2],
}

struct Attached {
    netns: OwnedFd,
    pod: Pod,
    own: [IpAddr; 2],
}

impl Attached {
    /// The agent's plan in a Network with these `extraPrefixes`.
    fn plan(&self, asks: &[&str], allowed: &[&str]) -> PodPlan {
        let network = NetworkPlan {
            mode: Mode::Bgp,
            attachment: AttachmentKind::Veth,
            hairpin: false,
            extra_prefixes: allowed.iter().map(|prefix| prefix.parse().unwrap()).collect(),
            by_host: Default::default(),
            subnets: Default::default(),
            refused_subnets: Default::default(),
            mtu: None,
            refused: None,
        };
        let plan = Plan { networks: [("net".to_owned(), network)].into(), ..Plan::default() };
        let extra_prefixes = asks.iter().map(|prefix| prefix.parse().unwrap()).collect();
        plan_pod(&plan, &Pod { extra_prefixes, ..self.pod.clone() }).unwrap().kernel
    }

    fn reverse_path(&self) -> String {
        let path = format!("/proc/sys/net/ipv4/conf/{}/rp_filter", self.pod.host_ifname);
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    }
}

fn scene(runtime: &Runtime) -> Scene {
    for (scope, value) in [("all", "0"), ("default", "1")] {
        std::fs::write(format!("/proc/sys/net/ipv4/conf/{scope}/rp_filter"), value).unwrap();
    }
    ip(&format!("addr add {HOST_V4}/32 dev lo"));
    ip(&format!("addr add {HOST_V6}/128 dev lo nodad"));
    ip("link add out0 type veth peer name out1");
    ip("link set out1 up");
    ip("link set out0 up");
    ip("route add default dev out0");
    ip("-6 route add default dev out0");
    let sockets = [HOST_V4, HOST_V6].map(|address| {
        let address: IpAddr = address.parse().unwrap();
        let socket = UdpSocket::bind((address, 4_444)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket
    });
    let (kernel, events) = spawn(runtime);
    assert!(runtime.block_on(kernel.set_pods(Vec::new())).unwrap().is_empty());
    let workers = DeviceWorkers::spawn(2).unwrap();
    let [router, plain] = [("router", ["10.1.0.4", "2001:db8::4"]), ("plain", ["10.1.0.5", "2001:db8::5"])]
        .map(|(container, own)| {
            let netns = namespace();
            let own = own.map(|address| address.parse().unwrap());
            let spec = DeviceSpec {
                container_id: container.to_owned(),
                ifname: "eth0".to_owned(),
                addresses: own.to_vec(),
                mac: None,
                mtu: Some(1400),
                bandwidth: Bandwidth::default(),
                attachment: Attachment::Veth,
                destinations: Vec::new(),
                several: false,
            };
            let made = workers.attach(netns.try_clone().unwrap(), spec, |_| ());
            let device = runtime.block_on(made).unwrap();
            // The pod gets additional addresses that are not its own in the plan.
            inside(&netns, || {
                for address in ["10.9.1.1", "10.9.2.1", "10.10.1.1"] {
                    ip(&format!("addr add {address}/32 dev eth0"));
                }
                for address in ["fd00:9::1", "fd00:a::1"] {
                    ip(&format!("addr add {address}/128 dev eth0 nodad"));
                }
            });
            let pod = Pod {
                network: "net".to_owned(),
                addresses: own.to_vec(),
                host_ifname: device.host_ifname.clone(),
                host_ifindex: device.host_ifindex,
                mac: device.pair_mac,
                attachment: AttachmentKind::Veth,
                extra_prefixes: Default::default(),
                migration: Default::default(),
                target_addresses: Vec::new(),
                is_virtual_machine: false,
            };
            Attached { netns, pod, own }
        });
    let scene = Scene { kernel, events, _workers: workers, router, plain, sockets };
    scene.add(runtime, scene.router.plan(&EXTRA, &EXTRA));
    scene.add(runtime, scene.plain.plan(&[], &EXTRA));
    scene
}

impl Scene {
    fn add(&self, runtime: &Runtime, plan: PodPlan) {
        runtime.block_on(self.kernel.add_pod(plan)).unwrap();
    }

    /// Whether a datagram from this source arrives at the host.
    fn arrives(&self, from: &Attached, source: &str) -> bool {
        let source: IpAddr = source.parse().unwrap();
        let v6 = usize::from(source.is_ipv6());
        let socket = &self.sockets[v6];
        let to = socket.local_addr().unwrap();
        inside(&from.netns, || {
            for (source, what) in [(source, "foreign"), (from.own[v6], "marker")] {
                let socket = UdpSocket::bind(SocketAddr::from((source, 0))).unwrap();
                socket.send_to(what.as_bytes(), to).unwrap();
            }
        });
        let mut arrived = false;
        loop {
            let mut buffer = [0; 16];
            let (length, sender) = socket.recv_from(&mut buffer).unwrap();
            match &buffer[..length] {
                b"foreign" => {
                    assert_eq!(sender.ip(), source);
                    arrived = true;
                }
                _ => return arrived,
            }
        }
    }

    /// Checks which sources of both pods arrive, and that all other packets were counted.
    fn check(&self, when: &str, passes: &[&str]) {
        let before = counters();
        let mut dropped = 0;
        for source in ["10.9.1.1", "10.9.2.1", "10.10.1.1", "fd00:9::1", "fd00:a::1"] {
            let expected = passes.contains(&source);
            assert_eq!(self.arrives(&self.router, source), expected, "{when}: {source} from the router");
            assert!(!self.arrives(&self.plain, source), "{when}: {source} from the plain pod");
            dropped += 1 + u64::from(!expected);
        }
        assert_eq!(counters()["source"] - before["source"], dropped, "{when}: dropped packets are counted");
    }
}

/// The packets of the guard's counters.
fn counters() -> BTreeMap<String, u64> {
    let listed: serde_json::Value = serde_json::from_str(&nft(&["-j", "list", "counters"])).unwrap();
    let entries = listed["nftables"].as_array().unwrap().iter().map(|entry| &entry["counter"]);
    entries
        .filter(|counter| counter["table"] == "trunkline-guard")
        .map(|counter| (counter["name"].as_str().unwrap().to_owned(), counter["packets"].as_u64().unwrap()))
        .collect()
}

fn nft(arguments: &[&str]) -> String {
    let output = Command::new("nft").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The guard's tables with the handles of their rules and the elements of their sets; without counters.
fn tables() -> String {
    ["inet", "arp"].map(|family| nft(&["-s", "-a", "list", "table", family, "trunkline-guard"])).concat()
}

#[test]
fn a_router_pod_sends_from_its_extra_prefixes_only() {
    isolated("a_router_pod_sends_from_its_extra_prefixes_only", |runtime| {
        let scene = scene(runtime);
        let all = ["10.9.1.1", "10.9.2.1", "fd00:9::1"];
        scene.check("at first", &all);
        assert_eq!((scene.router.reverse_path().as_str(), scene.plain.reverse_path().as_str()), ("0", "1"));

        // The Network now allows less: the pod's traffic continues.
        let handle = scene.router.pod.host_ifname.clone();
        let route = ip(&format!("route show table 39999 dev {handle}"));
        scene.add(runtime, scene.router.plan(&EXTRA, &["10.9.0.0/16"]));
        scene.check("without IPv6", &all[..2]);
        scene.add(runtime, scene.router.plan(&["10.9.1.0/24", "10.9.1.1/32"], &EXTRA));
        scene.check("with a part, and a part of that", &all[..1]);
        scene.add(runtime, scene.router.plan(&["0.0.0.0/0", "10.9.2.0/24"], &EXTRA));
        scene.check("with more than is allowed", &["10.9.2.1"]);
        scene.add(runtime, scene.router.plan(&EXTRA, &[]));
        scene.check("with nothing", &[]);
        assert_eq!(scene.router.reverse_path(), "1");
        scene.add(runtime, scene.router.plan(&EXTRA, &EXTRA));
        scene.check("once more", &all);
        assert_eq!(ip(&format!("route show table 39999 dev {handle}")), route);
        assert_eq!(scene.kernel.status().last_error, None);

        // If the host checks sources on all links, an exception is impossible and a fault is
        // reported.
        std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "1").unwrap();
        scene.add(runtime, scene.router.plan(&EXTRA[..1], &EXTRA));
        let error = scene.kernel.status().last_error.unwrap();
        assert!(error.contains("net.ipv4.conf.all.rp_filter is 1 and also applies to"), "{error}");
        assert!(!scene.arrives(&scene.router, "10.9.1.1"));
        std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "0").unwrap();
        assert!(scene.arrives(&scene.router, "10.9.1.1"));
        // udev does this for each new link.
        for (pod, back) in [(&scene.router, "0"), (&scene.plain, "2")] {
            let path = format!("/proc/sys/net/ipv4/conf/{}/rp_filter", pod.pod.host_ifname);
            std::fs::write(path, "2").unwrap();
            eventually("the changes by others are reverted", || pod.reverse_path() == back);
        }
        assert!(scene.arrives(&scene.router, "10.9.1.1"));
    });
}

#[test]
fn only_translated_packets_reach_the_loopback_addresses() {
    isolated("only_translated_packets_reach_the_loopback_addresses", |runtime| {
        let scene = scene(runtime);
        let pod = &scene.plain;
        let socket = UdpSocket::bind(("127.0.0.1", 4_445)).unwrap();
        nft(&["add table ip test; add chain ip test pre { type nat hook prerouting priority -100; }; \
             add rule ip test pre ip daddr 192.0.2.99 udp dport 53 dnat to 127.0.0.1:4445"]);
        // A privileged pod can send to a loopback address of the node.
        inside(&pod.netns, || {
            ip("route del local 127.0.0.0/8 dev lo table local");
            ip("route del local 127.0.0.1 dev lo table local");
            ip("route add 127.0.0.1 via 169.254.1.1 dev eth0 onlink");
        });
        let arrives = |to: (&str, u16)| {
            inside(&pod.netns, || {
                let socket = UdpSocket::bind((pod.own[0], 0)).unwrap();
                socket.send_to(b"x", to).unwrap();
            });
            socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            socket.recv(&mut [0; 8]).is_ok()
        };
        let (translated, direct) = (("192.0.2.99", 53), ("127.0.0.1", 4_445));
        let localnet = || {
            let path = format!("/proc/sys/net/ipv4/conf/{}/route_localnet", pod.pod.host_ifname);
            std::fs::read_to_string(path).unwrap().trim().to_owned()
        };
        let set = |route_localnet: bool, closes_loopback: bool| {
            let plan = kernel_plan();
            let guard = GuardPlan { closes_loopback, ..plan.guard.clone() };
            let plan = KernelPlan { route_localnet, guard, ..plan };
            assert_eq!(runtime.block_on(scene.kernel.set_plan(plan)).unwrap().faults, [""; 0]);
        };
        assert_eq!((localnet().as_str(), arrives(translated), arrives(direct)), ("0", false, false));
        set(true, true);
        assert_eq!((localnet().as_str(), arrives(translated), arrives(direct)), ("1", true, false));
        set(true, false);
        assert!(arrives(direct), "the rule of the guard drops the packets of the pod");
        // A pod that is added later has the setting too.
        std::fs::write(format!("/proc/sys/net/ipv4/conf/{}/route_localnet", pod.pod.host_ifname), "0")
            .unwrap();
        runtime.block_on(scene.kernel.remove_pod(&pod.pod.host_ifname)).unwrap();
        scene.add(runtime, pod.plan(&[], &[]));
        assert_eq!(localnet(), "1");
    });
}

#[test]
fn arp_from_extra_prefixes_is_accepted() {
    isolated("arp_from_extra_prefixes_is_accepted", |runtime| {
        let scene = scene(runtime);
        // The pod's own kernel sends an ARP request for its gateway, with the source of the waiting
        // packet.
        let asks = |from: &Attached, source: &str| {
            inside(&from.netns, || {
                ip("neigh del 169.254.1.1 dev eth0");
                let socket = UdpSocket::bind((source.parse::<IpAddr>().unwrap(), 0)).unwrap();
                socket.send_to(b"x", (HOST_V4, 4_444)).unwrap();
            });
        };
        let knows = |of: &Attached, address: &str| {
            ip(&format!("neigh show dev {}", of.pod.host_ifname)).contains(address)
        };
        asks(&scene.router, "10.9.1.1");
        eventually("10.9.1.1 is a neighbour", || knows(&scene.router, "10.9.1.1 "));
        assert_eq!(counters()["arp_sender"], 0);
        for (pod, source) in [(&scene.router, "10.10.1.1"), (&scene.plain, "10.9.1.1")] {
            let before = counters()["arp_sender"];
            if pod.pod.host_ifname == scene.router.pod.host_ifname {
                inside(&pod.netns, || {
                    ip("neigh replace 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev eth0 nud permanent")
                });
            }
            asks(pod, source);
            eventually("the request is counted", || counters()["arp_sender"] > before);
            assert!(!knows(pod, &format!("{source} ")), "{source}");
        }
    });
}

#[test]
fn extra_prefixes_survive_a_restart() {
    isolated("extra_prefixes_survive_a_restart", |runtime| {
        let mut scene = scene(runtime);
        let passes = ["10.9.1.1", "10.9.2.1", "fd00:9::1"];
        scene.check("at first", &passes);
        let before = tables();
        for prefix in ["10.9.0.0", "fd00:9::"] {
            assert!(before.contains(prefix), "{before}");
        }
        let (kernel, events) = spawn(runtime);
        drop((std::mem::replace(&mut scene.kernel, kernel), std::mem::replace(&mut scene.events, events)));
        scene.check("before the pods are known", &passes);
        let pods = vec![scene.router.plan(&EXTRA, &EXTRA), scene.plain.plan(&[], &EXTRA)];
        assert!(runtime.block_on(scene.kernel.set_pods(pods)).unwrap().is_empty());
        scene.check("after the restart", &passes);
        assert_eq!(tables(), before, "no rule was loaded again");
        // Deleted rules are restored.
        nft(&["flush", "ruleset"]);
        eventually("the guard is back", || scene.kernel.status().guard.repairs > 0);
        scene.check("after a flush", &passes);
        // The pod loses its exception while the agent is down.
        let (kernel, events) = spawn(runtime);
        drop((std::mem::replace(&mut scene.kernel, kernel), std::mem::replace(&mut scene.events, events)));
        let pods = vec![scene.router.plan(&EXTRA, &[]), scene.plain.plan(&[], &EXTRA)];
        assert!(runtime.block_on(scene.kernel.set_pods(pods)).unwrap().is_empty());
        scene.check("without its exception", &[]);
    });
}
