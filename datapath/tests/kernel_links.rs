//! Links of the plan in a real kernel: created, kept, taken over, deleted. Foreign links are not
//! changed.
//!
//! Without the 802.1Q driver, only the error is tested. The other tests run in the lab's user-mode
//! kernel: `cargo lab uml -- <this test's program>`.
#![allow(clippy::disallowed_methods, reason = "tests measure")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod namespace;

use std::net::IpAddr;
use std::process::Command;

use namespace::{eventually, ip, ip_json, isolated};
use tokio::runtime::Runtime;
use trunkline_datapath::kernel::{KernelConfig, KernelEvent, KernelEvents, KernelHandle};
use trunkline_datapath::plan::{
    GuardPlan, GuardedOverlay, Hop, KernelHost, KernelPlan, Link, LinkKind, LinkPlan, Neighbour, PodPlan,
    Proxy, RouteKey, RouteTarget, Sysctl,
};

fn spawn() -> (KernelHandle, KernelEvents) {
    KernelHandle::spawn(KernelConfig::default()).unwrap()
}

/// Takes all events until none arrives for 300 ms.
fn until_quiet(runtime: &Runtime, events: &mut KernelEvents) {
    let mut is_quiet = || {
        let next = async { tokio::time::timeout(std::time::Duration::from_millis(300), events.next()).await };
        runtime.block_on(next).is_err()
    };
    while !is_quiet() {}
}

fn host(runtime: &Runtime, kernel: &KernelHandle) -> KernelHost {
    runtime.block_on(kernel.host()).unwrap()
}

fn named(host: &KernelHost, name: &str) -> Option<Link> {
    host.links.iter().find(|link| link.name == name).cloned()
}

fn wanting(links: &[(&str, u32, u16)]) -> KernelPlan {
    let link = |(name, parent, id): &(&str, u32, u16)| {
        let kind = LinkKind::Vlan { parent: *parent, id: *id };
        ((*name).to_owned(), LinkPlan { kind, alias: "trunkline:vlan:rack".to_owned(), mtu: 1400 })
    };
    KernelPlan { links: links.iter().map(link).collect(), ..KernelPlan::default() }
}

/// Creates a link with carrier and returns its index.
fn parent() -> u32 {
    ip("link add eth0 mtu 1400 type veth peer name far");
    ip("link set far up");
    ip("link set eth0 up");
    eventually("carrier", || ip("link show eth0").contains("LOWER_UP"));
    u32::try_from(ip_json("link show eth0")[0]["ifindex"].as_u64().unwrap()).unwrap()
}

/// Whether the kernel has the 802.1Q driver; `eth0` exists.
fn has_driver() -> bool {
    let make = "link add link eth0 name probe type vlan id 9";
    let made = Command::new("ip").args(make.split(' ')).output().unwrap().status.success();
    if made {
        ip("link del probe");
    }
    made
}

#[test]
fn a_missing_driver_is_named() {
    isolated("a_missing_driver_is_named", |runtime| {
        let parent = parent();
        if has_driver() {
            return println!("the driver exists");
        }
        let (kernel, _events) = spawn();
        runtime.block_on(kernel.set_plan(wanting(&[("eth0.10", parent, 10)]))).unwrap();
        let host = host(runtime, &kernel);
        let fault = &host.link_faults["eth0.10"];
        assert!(fault.contains("modprobe 8021q"), "{fault}");
        println!("{fault}");
        assert_eq!(named(&host, "eth0.10"), None);
        assert!(!ip("link").contains("trunkline-new"), "no incomplete link is left");
    });
}

#[test]
fn vlan_device_is_created_kept_taken_over_and_deleted() {
    isolated("vlan_device_is_created_kept_taken_over_and_deleted", |runtime| {
        let parent = parent();
        if !has_driver() {
            return println!("skipped, this kernel has no 8021q");
        }
        let (kernel, mut events) = spawn();
        runtime.block_on(kernel.set_plan(wanting(&[("eth0.10", parent, 10)]))).unwrap();
        assert_eq!(runtime.block_on(events.next()), Some(KernelEvent::HostChanged));
        let made = named(&host(runtime, &kernel), "eth0.10").unwrap();
        assert_eq!((made.kind, made.own), (Some(LinkKind::Vlan { parent, id: 10 }), true));
        assert_eq!((made.up, made.mtu), (true, 1400), "{:?}", host(runtime, &kernel).link_faults);
        assert_eq!(ip_json("link show eth0.10")[0]["ifalias"], "trunkline:vlan:rack");

        let mut plan = wanting(&[("eth0.10", parent, 10)]);
        let key = |prefix: &str| RouteKey { table: 10_000, prefix: prefix.parse().unwrap() };
        let gateway: IpAddr = "10.10.0.1".parse().unwrap();
        let hop = Hop { onlink: true, ..Hop::by(gateway, made.index) };
        plan.routes.insert(key("0.0.0.0/0"), RouteTarget::via(vec![hop]));
        plan.routes.insert(key("10.10.0.0/24"), RouteTarget::via(vec![Hop::link(made.index)]));
        plan.neighbours.insert(Neighbour { ifindex: made.index, address: gateway, mac: [2, 0, 0, 0, 0, 9] });
        eventually("carrier", || {
            runtime.block_on(kernel.set_plan(plan.clone())).unwrap();
            named(&host(runtime, &kernel), "eth0.10").unwrap().running
        });
        let address: IpAddr = "10.10.0.5".parse().unwrap();
        let pod = PodPlan {
            host_ifname: "tl0123456789ab".to_owned(),
            host_ifindex: 4711,
            proxies: [Proxy { ifindex: made.index, address }].into(),
            ..PodPlan::default()
        };
        runtime.block_on(kernel.set_pods(vec![pod.clone()])).unwrap();
        let whole = || {
            let routes = ip("route show table 10000");
            routes.contains("default via 10.10.0.1 dev eth0.10")
                && routes.contains("onlink")
                && routes.contains("10.10.0.0/24 dev eth0.10")
                && ip("neigh show dev eth0.10").contains("10.10.0.1 lladdr 02:00:00:00:00:09 PERMANENT")
                && ip("neigh show proxy").contains("10.10.0.5 dev eth0.10")
        };
        eventually("all entries are installed", whole);

        ip("link set eth0 down");
        eventually("the notification that the link is down", || {
            !named(&host(runtime, &kernel), "eth0.10").unwrap().up
        });
        assert!(host(runtime, &kernel).link_faults.is_empty(), "the device comes up with its parent");
        ip("link set eth0 up");
        eventually("all entries are installed again after the parent was down", whole);
        ip("link set eth0.10 down");
        eventually("all entries are installed again after the device was set down", whole);
        for change in ["alias other", "mtu 1300"] {
            ip(&format!("link set eth0.10 {change}"));
            eventually(change, || {
                let link = &ip_json("link show eth0.10")[0];
                link["ifalias"] == "trunkline:vlan:rack" && link["mtu"] == 1400
            });
        }

        // Another program deleted the link. The next plan gets the index of the new link.
        ip("link del eth0.10");
        eventually("the device with its new index", || {
            named(&host(runtime, &kernel), "eth0.10").is_some_and(|link| link.own && link.index != made.index)
        });

        // The next run finds the link.
        drop((kernel, events));
        let before = ip_json("link show eth0.10")[0]["ifindex"].clone();
        let (kernel, _events) = spawn();
        let found = named(&host(runtime, &kernel), "eth0.10").unwrap();
        assert!(found.own);
        runtime.block_on(kernel.set_plan(wanting(&[("eth0.10", parent, 10)]))).unwrap();
        assert_eq!(ip_json("link show eth0.10")[0]["ifindex"], before, "the device is unchanged");
        runtime.block_on(kernel.set_pods(Vec::new())).unwrap();
        assert!(
            !ip("neigh show proxy").contains("10.10.0.5"),
            "the proxy entry of the removed pod is deleted"
        );

        runtime.block_on(kernel.set_plan(KernelPlan::default())).unwrap();
        assert!(!ip("link").contains("eth0.10"));
    });
}

#[test]
fn foreign_device_is_unchanged_and_reported() {
    isolated("foreign_device_is_unchanged_and_reported", |runtime| {
        let parent = parent();
        if !has_driver() {
            return println!("skipped, this kernel has no 8021q");
        }
        ip("link add link eth0 name eth0.10 type vlan id 10");
        ip("link add link eth0 name storage type vlan id 20");
        let (kernel, _events) = spawn();
        let plan = wanting(&[("eth0.10", parent, 10), ("eth0.20", parent, 20), ("eth0.30", 4711, 30)]);
        runtime.block_on(kernel.set_plan(plan)).unwrap();
        let faults = host(runtime, &kernel).link_faults;
        assert!(faults["eth0.10"].contains("not Trunkline's"), "{faults:?}");
        assert!(faults["eth0.20"].contains("used by storage"), "{faults:?}");
        assert!(faults["eth0.30"].contains("its parent link does not exist"), "{faults:?}");
        assert!(!named(&host(runtime, &kernel), "eth0.10").unwrap().up, "not touched");
        assert!(!ip("link").contains("trunkline-new"), "no incomplete link is left");
        // After the foreign link is renamed, the wanted link is created.
        ip("link del eth0.10");
        ip("link del storage");
        eventually("both", || {
            let host = host(runtime, &kernel);
            ["eth0.10", "eth0.20"].iter().all(|name| named(&host, name).is_some_and(|link| link.own))
        });
        let faults = host(runtime, &kernel).link_faults;
        assert_eq!(faults.len(), 1, "{faults:?}");
    });
}

#[test]
fn default_link_is_kept_until_another_link_has_the_route() {
    isolated("default_link_is_kept_until_another_link_has_the_route", |runtime| {
        let eth0 = parent();
        ip("link add eth1 type veth peer name far1");
        ip("link set eth1 up");
        let (kernel, mut events) = spawn();
        assert_eq!(host(runtime, &kernel).default_link, None);
        ip("addr add 192.0.2.1/31 dev eth0");
        ip("route add default via 192.0.2.0");
        eventually("the default route", || host(runtime, &kernel).default_link == Some(eth0));
        // Read all events so far. So the event below comes from the notification about the new
        // default route.
        until_quiet(runtime, &mut events);
        ip("route del default");
        assert_eq!(host(runtime, &kernel).default_link, Some(eth0), "the last default link stays");
        ip("route add default dev eth1");
        assert_eq!(runtime.block_on(events.next()), Some(KernelEvent::HostChanged));
        assert_ne!(host(runtime, &kernel).default_link, Some(eth0));
    });
}

#[test]
fn the_link_of_an_address_follows_its_route() {
    isolated("the_link_of_an_address_follows_its_route", |runtime| {
        let eth0 = parent();
        ip("link add eth1 type veth peer name far1");
        ip("link set eth1 up");
        let [near, far]: [IpAddr; 2] = ["198.51.100.7", "203.0.113.7"].map(|text| text.parse().unwrap());
        let reach = [near, far].into();
        let (kernel, mut events) =
            KernelHandle::spawn(KernelConfig { reach, ..KernelConfig::default() }).unwrap();
        let reached = || host(runtime, &kernel).reached;
        assert!(reached().is_empty());
        ip("route add 198.51.100.0/24 dev eth0");
        eventually("the route", || reached() == [(near, eth0)].into());
        until_quiet(runtime, &mut events);
        ip("route add 198.51.100.7 dev eth1");
        assert_eq!(runtime.block_on(events.next()), Some(KernelEvent::HostChanged));
        let now = reached();
        assert!(now.len() == 1 && now[&near] != eth0, "{now:?}");
        ip("route del 198.51.100.7 dev eth1");
        assert_eq!(runtime.block_on(events.next()), Some(KernelEvent::HostChanged));
        assert_eq!(reached(), [(near, eth0)].into());
        ip("route del 198.51.100.0/24 dev eth0");
        assert_eq!(reached(), [(near, eth0)].into(), "the last link stays");
    });
}

#[test]
fn a_changed_list_of_addresses_has_its_links() {
    isolated("a_changed_list_of_addresses_has_its_links", |runtime| {
        let eth0 = parent();
        ip("link add eth1 type veth peer name far1");
        ip("link set eth1 up");
        ip("route add 198.51.100.0/24 dev eth0");
        let (kernel, mut events) = KernelHandle::spawn(KernelConfig::default()).unwrap();
        let near: IpAddr = "198.51.100.7".parse().unwrap();
        assert!(host(runtime, &kernel).reached.is_empty());
        runtime.block_on(kernel.set_reach([near].into())).unwrap();
        assert_eq!(host(runtime, &kernel).reached, [(near, eth0)].into());
        // Now a route of another program is an event.
        until_quiet(runtime, &mut events);
        ip("route add 198.51.100.7 dev eth1");
        assert_eq!(runtime.block_on(events.next()), Some(KernelEvent::HostChanged));
        assert_ne!(host(runtime, &kernel).reached[&near], eth0);
        runtime.block_on(kernel.set_reach([].into())).unwrap();
        assert!(host(runtime, &kernel).reached.is_empty());
    });
}

/// Such a device is like the device of an overlay: the reply to a received packet may leave by
/// another link.
#[test]
fn a_device_without_an_address_checks_no_sources() {
    isolated("a_device_without_an_address_checks_no_sources", |runtime| {
        for command in [
            "link add in0 type veth peer name in1",
            "link add out0 type veth peer name out1",
            "link set in0 up",
            "link set in1 up",
            "link set out0 up",
            "link set out1 up",
            "addr add 192.0.2.1/24 dev out0",
            "route add default via 192.0.2.2",
        ] {
            ip(command);
        }
        let conf = |link: &str, value: &str| {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{link}/rp_filter"), value).unwrap();
        };
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        conf("all", "0");
        // The main table sends the reply out by out0.
        let passes = || {
            let words = "route get 198.51.100.1 from 10.9.0.1 iif in0".split(' ');
            Command::new("ip").args(words).output().unwrap().status.success()
        };
        let (kernel, _events) = spawn();
        let mut plan = wanting(&[]);
        plan.sysctls.insert("net/ipv4/conf/in0/rp_filter".to_owned(), Sysctl::NoReversePath);
        for value in ["1", "2"] {
            conf("in0", value);
            assert!(!passes(), "with {value} the kernel drops all packets");
            assert_eq!(runtime.block_on(kernel.set_plan(plan.clone())).unwrap().faults, [""; 0]);
            assert!(passes(), "rp_filter stayed {value}");
        }
        conf("all", "1");
        let faults = runtime.block_on(kernel.set_plan(plan)).unwrap().faults;
        assert!(faults[0].contains("net.ipv4.conf.all.rp_filter is 1 and also applies to"), "{faults:?}");
        assert!(!passes());
    });
}

#[test]
fn a_tunnel_does_not_come_up_before_the_guard() {
    isolated("a_tunnel_does_not_come_up_before_the_guard", |runtime| {
        ip("addr add 10.0.0.1/32 dev lo");
        let kind = LinkKind::Vxlan {
            vni: 100,
            local: "10.0.0.1".parse().unwrap(),
            port: 8_472,
            mac: [2, 0, 0, 0, 0, 1],
        };
        // nftables refuses a VNI of more than 24 bits.
        let plan = |loads: bool| {
            let overlay = GuardedOverlay { vni: if loads { 100 } else { 1 << 24 }, port: 8_472 };
            let guard = GuardPlan { enabled: true, overlay: Some(overlay), ..GuardPlan::default() };
            let link = LinkPlan { kind, alias: "trunkline:vxlan:overlay".to_owned(), mtu: 1_400 };
            KernelPlan { guard, links: [("overlay".to_owned(), link)].into(), ..KernelPlan::default() }
        };
        let set = |kernel: &KernelHandle, loads: bool| {
            let applied = runtime.block_on(kernel.set_plan(plan(loads))).unwrap();
            assert_eq!(applied.unguarded, !loads, "{:?}", applied.faults);
            let host = host(runtime, kernel);
            (named(&host, "overlay").map(|link| link.up), host.link_faults.get("overlay").cloned())
        };
        let (kernel, events) = spawn();
        for _ in 0..2 {
            let (link, fault) = set(&kernel, false);
            let fault = fault.unwrap();
            if fault.contains("modprobe vxlan") {
                return println!("skipped, this kernel has no vxlan");
            }
            assert_eq!(link, None);
            assert!(fault.contains("overlay does not come up: the guard"), "{fault}");
        }
        assert!(!ip("link").contains("trunkline-new"));
        assert_eq!(set(&kernel, true), (Some(true), None), "the next try brings it up");
        drop((kernel, events));

        // The tunnel of the last run stays, and loses no packet.
        let before = ip_json("link show overlay")[0]["ifindex"].clone();
        let (kernel, _events) = spawn();
        assert_eq!(set(&kernel, false), (Some(true), None));
        assert_eq!(ip_json("link show overlay")[0]["ifindex"], before);
        ip("link set overlay down");
        eventually("the fault of the tunnel", || {
            host(runtime, &kernel).link_faults.get("overlay").is_some_and(|fault| fault.contains("the guard"))
        });
        assert!(!ip("link show overlay").contains(",UP"), "it stays down");
        assert_eq!(set(&kernel, true), (Some(true), None));
        assert_eq!(ip_json("link show overlay")[0]["ifindex"], before);
    });
}
