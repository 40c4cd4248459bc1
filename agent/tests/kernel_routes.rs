//! Rules, routes, learned tables and NAT in a real kernel: restarts, repairs, large tables, and
//! foreign objects.
#![allow(clippy::disallowed_methods, reason = "tests measure")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../datapath/tests/namespace/mod.rs"]
mod namespace;

use std::collections::BTreeSet;
use std::io::Write;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use namespace::{eventually, inside, ip, ip_json, isolated, namespace};
use tokio::runtime::Runtime;
use trunkline_agent::plan::Learned;
use trunkline_bgp::rib::{FibPath, RouteChange};
use trunkline_bgp::types::NextHop;
use trunkline_datapath::family::IpFamily;
use trunkline_datapath::kernel::{Applied, KernelConfig, KernelEvent, KernelEvents, KernelHandle};
use trunkline_datapath::plan::{
    Hop, KernelPlan, LearnedRoute, Link, NatRules, RouteKey, RouteTarget, Rule, TranslatedRules,
};

const TABLE: u32 = 10_000;

/// Two uplinks, up1 and up2, to two routers: 192.0.2.0/31 and .2/31, 2001:db8:0:1::/64 and 2::/64.
/// The host has the lower address.
fn uplinks() -> OwnedFd {
    use std::os::fd::AsRawFd;
    let routers = namespace();
    let path = format!("/proc/{}/fd/{}", std::process::id(), routers.as_raw_fd());
    for number in 1..=2 {
        ip(&format!("link add up{number} type veth peer name r{number}"));
        ip(&format!("link set r{number} netns {path}"));
        ip(&format!("addr add 192.0.2.{}/31 dev up{number}", (number - 1) * 2));
        ip(&format!("addr add 2001:db8:0:{number}::1/64 dev up{number} nodad"));
        ip(&format!("link set up{number} up"));
        inside(&routers, || {
            ip(&format!("addr add 192.0.2.{}/31 dev r{number}", (number - 1) * 2 + 1));
            ip(&format!("addr add 2001:db8:0:{number}::2/64 dev r{number} nodad"));
            ip(&format!("link set r{number} up"));
        });
    }
    eventually("carrier", || ip("link").matches("LOWER_UP").count() >= 3);
    routers
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn via(gateways: &[&str]) -> RouteTarget {
    RouteTarget::via(gateways.iter().map(|gateway| Hop::to(address(gateway))).collect())
}

fn route(table: u32, prefix: &str) -> RouteKey {
    RouteKey { table, prefix: prefix.parse().unwrap() }
}

/// The plan of a node with two routers and a subnet of each family.
fn plan() -> KernelPlan {
    let mut plan = KernelPlan::default();
    for (family, subnet) in [(IpFamily::V4, "10.1.0.0/16"), (IpFamily::V6, "2001:db8:1::/64")] {
        let rule = |priority, from: Option<IpNet>, iif: Option<&str>, table| Rule {
            from,
            iif: iif.map(str::to_owned),
            ..Rule::always(family, priority, table)
        };
        plan.rules.insert(rule(1000, None, None, 39_999));
        plan.rules.insert(rule(1030, None, Some("up1"), 39_998));
        plan.rules.insert(rule(1030, None, Some("up2"), 39_998));
        plan.rules.insert(rule(1100, Some(subnet.parse().unwrap()), None, TABLE));
        plan.routes.insert(route(39_998, subnet), RouteTarget::Blackhole);
    }
    plan.routes.insert(route(TABLE, "0.0.0.0/0"), via(&["192.0.2.1", "192.0.2.3"]));
    plan.routes.insert(route(TABLE, "::/0"), via(&["2001:db8:0:1::2", "2001:db8:0:2::2"]));
    plan
}

fn importing() -> KernelPlan {
    KernelPlan { learned: Some(TABLE), ..plan() }
}

/// The changes as routes of the two imported peers.
fn learned(changes: Vec<RouteChange>) -> Vec<LearnedRoute> {
    let peers = [(address("192.0.2.1").into(), None), (address("192.0.2.3").into(), None)];
    let imported = Learned { table: TABLE, peers: peers.into(), left_out: BTreeSet::new() };
    changes.iter().map(|change| imported.route(change)).collect()
}

fn spawn<const N: usize>(hold: [IpFamily; N]) -> (KernelHandle, KernelEvents) {
    KernelHandle::spawn(KernelConfig { hold: hold.into(), ..KernelConfig::default() }).unwrap()
}

fn set(runtime: &Runtime, kernel: &KernelHandle, plan: KernelPlan) -> Applied {
    let applied = runtime.block_on(kernel.set_plan(plan)).unwrap();
    assert_eq!(applied.faults, [""; 0]);
    applied
}

fn change(prefix: IpNet, paths: &[(&str, &str)]) -> RouteChange {
    let paths = paths.iter().map(|(next_hop, peer)| FibPath {
        next_hop: match address(next_hop) {
            IpAddr::V4(address) => NextHop::V4(address),
            IpAddr::V6(address) => NextHop::V6(address),
        },
        peer: address(peer).into(),
    });
    RouteChange { prefix, paths: paths.collect() }
}

/// `ip route show` of a table, one route per line, Trunkline's and foreign routes.
fn table(family: u8, table: u32) -> Vec<String> {
    let output = Command::new("ip")
        .args([&format!("-{family}"), "route", "show", "table", &table.to_string()])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        match line.trim().strip_prefix("nexthop") {
            Some(_) if !lines.is_empty() => lines.last_mut().unwrap().push_str(line.trim()),
            _ => lines.push(line.trim().to_owned()),
        }
    }
    lines
}

#[test]
fn a_plan_is_installed_and_a_restart_changes_nothing() {
    isolated("a_plan_is_installed_and_a_restart_changes_nothing", |runtime| {
        let _routers = uplinks();
        let learn = |kernel: &KernelHandle| {
            let changes = vec![
                change("198.51.100.0/24".parse().unwrap(), &[("192.0.2.1", "192.0.2.1")]),
                change("2001:db8:f::/48".parse().unwrap(), &[("2001:db8:0:1::2", "192.0.2.1")]),
            ];
            runtime.block_on(kernel.learned(learned(changes))).unwrap();
        };
        {
            let (kernel, _events) = spawn([]);
            assert!(set(runtime, &kernel, importing()).relearn);
            learn(&kernel);
        }
        let state = || [table(4, TABLE), table(6, TABLE), table(4, 39_998), table(6, 39_998)].concat();
        let before = state();
        assert_eq!(before.len(), 6, "{before:#?}");
        assert!(
            before.iter().any(|line| line.starts_with("default")
                && line.contains("192.0.2.1")
                && line.contains("192.0.2.3")),
            "{before:#?}"
        );
        let rules = ip("rule") + &ip("-6 rule");

        // A monitor observes the whole run of a second agent.
        let mut monitor = Command::new("ip").args(["monitor", "all"]).stdout(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let (kernel, _events) = spawn(IpFamily::ALL);
        let host = runtime.block_on(kernel.host()).unwrap();
        assert_eq!(host.tables.get(&"10.1.0.0/16".parse::<IpNet>().unwrap()), Some(&TABLE));
        assert!(!host.used_tables.contains(&TABLE), "the agent's tables do not count as foreign");
        // No session is established yet, so the plan has no default routes, and the old ones stay.
        let mut without = importing();
        without.routes.retain(|key, _| key.prefix.prefix_len() != 0);
        assert_eq!(set(runtime, &kernel, without).changed, 0);
        assert!(runtime.block_on(kernel.set_pods(Vec::new())).unwrap().is_empty());
        assert_eq!(kernel.status().stale_routes, 4, "two default routes and two learned routes");
        assert_eq!(set(runtime, &kernel, importing()).changed, 0);
        learn(&kernel);
        for family in IpFamily::ALL {
            runtime.block_on(kernel.release(family)).unwrap();
        }
        assert_eq!(runtime.block_on(kernel.resync()).unwrap(), 0);
        assert_eq!(state(), before);
        assert_eq!(ip("rule") + &ip("-6 rule"), rules);
        std::thread::sleep(Duration::from_millis(100));
        monitor.kill().unwrap();
        let changes = String::from_utf8(monitor.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(changes, "", "the restart changed routes");
    });
}

#[test]
fn only_own_stale_routes_are_removed_by_family() {
    isolated("only_own_stale_routes_are_removed_by_family", |runtime| {
        let _routers = uplinks();
        {
            let (kernel, _events) = spawn([]);
            set(runtime, &kernel, plan());
        }
        for foreign in [
            "route add 203.0.113.0/24 via 192.0.2.1 table 10000",
            "route add 203.0.113.0/24 via 192.0.2.1 proto 117",
            "-6 route add 2001:db8:aaaa::/48 via 2001:db8:0:1::2 table 10000",
            "rule add from 10.9.0.0/16 lookup 12345 pref 1100",
            "route add 203.0.113.0/24 via 192.0.2.1 table 39998",
        ] {
            ip(foreign);
        }
        let (kernel, _events) = spawn(IpFamily::ALL);
        let host = runtime.block_on(kernel.host()).unwrap();
        assert!(host.used_tables.contains(&12_345));
        let names: Vec<&str> = host.links.iter().map(|link: &Link| link.name.as_str()).collect();
        assert_eq!(names, ["lo", "up1", "up2"]);

        set(runtime, &kernel, KernelPlan::default());
        assert!(table(4, 39_998) == ["203.0.113.0/24 via 192.0.2.1 dev up1"], "{:?}", table(4, 39_998));
        assert!(table(4, TABLE).concat().contains("default"), "held");
        runtime.block_on(kernel.release(IpFamily::V4)).unwrap();
        assert_eq!(table(4, TABLE), ["203.0.113.0/24 via 192.0.2.1 dev up1"]);
        assert!(!ip("rule").contains("lookup 10000"));
        assert!(
            table(6, TABLE).concat().contains("default"),
            "the routes of the other family are still retained"
        );
        assert!(ip("-6 rule").contains("lookup 10000"));
        runtime.block_on(kernel.release(IpFamily::V6)).unwrap();
        assert_eq!(table(6, TABLE).len(), 1);
        assert!(table(6, TABLE)[0].starts_with("2001:db8:aaaa::/48"));
        assert!(ip("rule").contains("from 10.9.0.0/16 lookup 12345"));
        assert!(ip("route").contains("203.0.113.0/24"));
        assert_eq!(kernel.status().stale_routes, 0);
    });
}

#[test]
fn deleted_routes_and_rules_are_restored_without_a_scan() {
    isolated("deleted_routes_and_rules_are_restored_without_a_scan", |runtime| {
        let _routers = uplinks();
        let (kernel, _events) = spawn([]);
        set(runtime, &kernel, plan());
        // The kernel orders rules of one preference by their creation.
        let rules =
            |family: &str| ip(&format!("{family} rule")).lines().map(str::to_owned).collect::<BTreeSet<_>>();
        let state = || {
            let routes = [table(4, TABLE), table(6, TABLE), table(4, 39_998), table(6, 39_998)].concat();
            (routes, rules("-4"), rules("-6"))
        };
        let before = state();
        for (number, command) in [
            "route del default table 10000",
            "-6 route del default table 10000",
            "-6 route del default via 2001:db8:0:1::2 table 10000",
            "route del blackhole 10.1.0.0/16 table 39998",
            "route flush table 10000",
            "route replace default via 192.0.2.1 table 10000",
            "rule del pref 1100",
            "-6 rule del iif up1 pref 1030",
        ]
        .into_iter()
        .enumerate()
        {
            ip(command);
            eventually(command, || state() == before && kernel.status().repairs > number as u64);
        }
        let repairs = kernel.status().repairs;
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(kernel.status().repairs, repairs, "repairs do not cause repairs");
        assert_eq!(kernel.status().rescans, 0);
        assert_eq!(kernel.status().last_error, None);
    });
}

#[test]
fn a_lost_link_is_excluded_at_once_and_included_again() {
    isolated("a_lost_link_is_excluded_at_once_and_included_again", |runtime| {
        let routers = uplinks();
        let (kernel, mut events) = spawn([]);
        set(runtime, &kernel, plan());
        let before = [table(4, TABLE), table(6, TABLE)].concat();
        let only_two = || {
            let now = [table(4, TABLE), table(6, TABLE)].concat();
            now.len() == 2 && now.iter().all(|line| line.contains("dev up2") && !line.contains("up1"))
        };
        // The other end of the cable goes down.
        inside(&routers, || ip("link set r1 down"));
        eventually("no carrier", only_two);
        inside(&routers, || ip("link set r1 up"));
        eventually("carrier again", || [table(4, TABLE), table(6, TABLE)].concat() == before);
        // This end is set down. The kernel deletes the IPv6 addresses, and the test adds them
        // again.
        ip("link set up1 down");
        eventually("down", only_two);
        let event = runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(5), events.next()).await.unwrap() });
        assert_eq!(event, Some(KernelEvent::HostChanged));
        ip("link set up1 up");
        ip("addr replace 2001:db8:0:1::1/64 dev up1 nodad");
        eventually("up again", || [table(4, TABLE), table(6, TABLE)].concat() == before);
        // Both paths are gone, so there is no default route, instead of a default route without
        // effect.
        ip("addr del 192.0.2.0/31 dev up1");
        ip("addr del 192.0.2.2/31 dev up2");
        eventually("no way", || table(4, TABLE).is_empty());
        ip("addr add 192.0.2.2/31 dev up2");
        eventually("one way", || table(4, TABLE).concat().contains("192.0.2.3 dev up2"));
        assert_eq!(kernel.status().rescans, 0);
    });
}

#[test]
fn a_next_hop_behind_a_router_is_reached_by_that_router() {
    isolated("a_next_hop_behind_a_router_is_reached_by_that_router", |runtime| {
        let _routers = uplinks();
        ip("route add 198.51.100.0/24 via 192.0.2.3");
        ip("-6 route add 2001:db8:f::/48 via 2001:db8:0:2::2");
        let (kernel, _events) = spawn([]);
        let mut plan = plan();
        plan.routes.insert(route(TABLE, "0.0.0.0/0"), via(&["198.51.100.1"]));
        plan.routes.insert(route(TABLE, "::/0"), via(&["2001:db8:f::1"]));
        set(runtime, &kernel, plan);
        assert!(table(4, TABLE)[0].contains("default via 192.0.2.3 dev up2"), "{:?}", table(4, TABLE));
        assert!(table(6, TABLE)[0].contains("default via 2001:db8:0:2::2 dev up2"), "{:?}", table(6, TABLE));
    });
}

#[test]
fn a_former_speakers_routes_stay_until_the_next_has_converged() {
    isolated("a_former_speakers_routes_stay_until_the_next_has_converged", |runtime| {
        let _routers = uplinks();
        let (kernel, _events) = spawn([]);
        let mut plan = importing();
        plan.routes.retain(|key, _| key.prefix.prefix_len() != 0);
        set(runtime, &kernel, plan);
        let again: IpNet = "198.51.100.0/24".parse().unwrap();
        let gone: IpNet = "203.0.113.0/24".parse().unwrap();
        let learn = |prefix| {
            let changes = vec![change(prefix, &[("192.0.2.1", "192.0.2.1")])];
            runtime.block_on(kernel.learned(learned(changes))).unwrap();
        };
        learn(again);
        learn(gone);
        runtime.block_on(kernel.retain_learned()).unwrap();
        learn(again);
        runtime.block_on(kernel.release(IpFamily::V6)).unwrap();
        assert_eq!(table(4, TABLE).len(), 2, "{:?}", table(4, TABLE));
        runtime.block_on(kernel.release(IpFamily::V4)).unwrap();
        assert_eq!(table(4, TABLE), ["198.51.100.0/24 via 192.0.2.1 dev up1 proto 116"]);
    });
}

#[test]
fn learned_routes_are_those_of_imported_peers() {
    isolated("learned_routes_are_those_of_imported_peers", |runtime| {
        let _routers = uplinks();
        let (kernel, _events) = spawn([]);
        let prefix: IpNet = "198.51.100.0/24".parse().unwrap();
        let both = [("192.0.2.1", "192.0.2.1"), ("192.0.2.3", "192.0.2.3")];
        let learn = |change: RouteChange| runtime.block_on(kernel.learned(learned(vec![change]))).unwrap();
        learn(change(prefix, &both));
        assert!(table(4, TABLE).is_empty(), "no plan imports");

        let mut plan = importing();
        plan.routes.retain(|key, _| key.prefix.prefix_len() != 0);
        set(runtime, &kernel, plan.clone());
        learn(change(prefix, &both));
        assert_eq!(table(4, TABLE).concat().matches("192.0.2.").count(), 2);
        // An IPv4 prefix has an IPv6 router as next hop (RFC 8950).
        learn(change(prefix, &[("2001:db8:0:1::2", "192.0.2.1")]));
        assert!(table(4, TABLE)[0].contains("via inet6 2001:db8:0:1::2 dev up1"), "{:?}", table(4, TABLE));
        learn(change(prefix, &[("192.0.2.9", "192.0.2.9")]));
        assert!(table(4, TABLE).is_empty(), "not imported from that peer");
        learn(change(prefix, &both));

        plan.learned = None;
        set(runtime, &kernel, plan);
        assert!(table(4, TABLE).is_empty(), "without import, no learned route is left");
    });
}

#[test]
fn a_large_table_takes_no_longer_than_ip_does() {
    isolated("a_large_table_takes_no_longer_than_ip_does", |runtime| {
        let _routers = uplinks();
        let count: u32 =
            std::env::var("TRUNKLINE_TEST_ROUTES").map_or(20_000, |count| count.parse().unwrap());
        let prefix = |number: u32| -> IpNet {
            let [_, high, middle, low] = number.to_be_bytes();
            format!("{}.{middle}.{low}.0/24", 20 + high).parse().unwrap()
        };

        let mut script = tempfile::NamedTempFile::new().unwrap();
        for number in 0..count {
            writeln!(script, "route add {} via 192.0.2.1 dev up1 table 20000 proto 117", prefix(number))
                .unwrap();
        }
        script.flush().unwrap();
        let started = Instant::now();
        ip(&format!("-batch {}", script.path().display()));
        let by_ip = started.elapsed();

        let (kernel, _events) = spawn([]);
        set(runtime, &kernel, importing());
        let changes: Vec<RouteChange> =
            (0..count).map(|number| change(prefix(number), &[("192.0.2.1", "192.0.2.1")])).collect();
        let started = Instant::now();
        runtime.block_on(kernel.learned(learned(changes))).unwrap();
        let by_agent = started.elapsed();
        assert_eq!(table(4, TABLE).len(), count as usize + 1);
        println!(
            "{count} routes: {by_agent:?}, ip -batch {by_ip:?}, ratio {:.2}",
            by_agent.as_secs_f64() / by_ip.as_secs_f64()
        );

        // One deleted route of many is restored, without a dump of the table.
        ip(&format!("route del {} table {TABLE}", prefix(7)));
        eventually("one of many", || {
            ip(&format!("route show {} table {TABLE}", prefix(7))).contains("192.0.2.1")
        });
        assert_eq!(kernel.status().rescans, 0);

        let started = Instant::now();
        assert_eq!(runtime.block_on(kernel.resync()).unwrap(), 0);
        println!("resync with {count} routes: {:?}", started.elapsed());
        let gone = (0..count).map(|number| change(prefix(number), &[])).collect();
        runtime.block_on(kernel.learned(learned(gone))).unwrap();
        assert_eq!(table(4, TABLE).len(), 1);
        assert!(by_agent < by_ip * 2, "{by_agent:?} {by_ip:?}");
    });
}

#[test]
fn nat_is_replaced_as_a_whole_and_only_if_it_differs() {
    isolated("nat_is_replaced_as_a_whole_and_only_if_it_differs", |runtime| {
        if Command::new("nft").arg("--version").output().is_err() {
            println!("skipped, nft is not installed");
            return;
        }
        let rules = || {
            let output = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let prefixes = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let nat = |sources: &[&str]| KernelPlan {
            nat: NatRules {
                sources: prefixes(sources),
                inside: prefixes(&[
                    "10.1.0.0/16",
                    "10.2.0.0/24",
                    "10.3.0.0/25",
                    "10.9.9.9/32",
                    "2001:db8:1::/64",
                ]),
                slaves: prefixes(sources),
            },
            translated: TranslatedRules {
                always: true,
                pods: prefixes(sources),
                links: [("eth0".to_owned(), 1), ("eth1.20".to_owned(), 2)].into(),
                hairpin: !sources.is_empty(),
            },
            ..KernelPlan::default()
        };
        let generation = || {
            let output = Command::new("nft").args(["-j", "list", "ruleset"]).output().unwrap();
            // the listing contains handles, which change with every replacement
            String::from_utf8(output.stdout).unwrap()
        };
        let (kernel, _events) = spawn([]);
        set(runtime, &kernel, nat(&["10.1.0.0/16", "2001:db8:1::/64"]));
        assert!(rules().contains("ip saddr @sources4 ip daddr != @inside4 masquerade"), "{}", rules());
        let before = generation();
        let (second, _events) = spawn([]);
        assert_eq!(set(runtime, &second, nat(&["10.1.0.0/16", "2001:db8:1::/64"])).changed, 0);
        assert_eq!(generation(), before);
        drop(kernel);
        set(runtime, &second, nat(&["10.2.0.0/24"]));
        assert!(rules().contains("10.2.0.0/24"));
        // Another program's change is reverted, with one repair for each.
        let before = rules();
        for (number, command) in
            ["delete table inet trunkline", "flush ruleset", "flush set inet trunkline inside4"]
                .into_iter()
                .enumerate()
        {
            let done = Command::new("nft").args(command.split(' ')).status().unwrap();
            assert!(done.success(), "{command}");
            eventually(command, || rules() == before && second.status().repairs == number as u64 + 1);
        }
        // A foreign table does not change.
        assert!(Command::new("nft").args(["add", "table", "inet", "theirs"]).status().unwrap().success());
        let (handles, repairs) = (generation(), second.status().repairs);
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!((generation(), second.status().repairs), (handles, repairs));
        assert!(Command::new("nft").args(["delete", "table", "inet", "theirs"]).status().unwrap().success());
        assert_eq!(second.status().last_error, None);
        set(runtime, &second, nat(&[]));
        assert!(!rules().contains("trunkline"));
        assert!(ip_json("rule").len() == 3, "nothing else changed");
    });
}

#[test]
fn the_first_foreign_nat_chain_enables_marks() {
    isolated("the_first_foreign_nat_chain_enables_marks", |runtime| {
        let nft = |command: &str| {
            let output = Command::new("nft").args(command.split(' ')).output();
            output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        };
        if nft("--version").is_err() {
            println!("skipped, nft is not installed");
            return;
        }
        let plan = || KernelPlan {
            translated: TranslatedRules {
                always: false,
                pods: ["10.1.0.0/16".parse().unwrap()].into(),
                links: [("eth0".to_owned(), 1)].into(),
                hairpin: false,
            },
            ..KernelPlan::default()
        };
        let marked = || nft("list ruleset").unwrap().contains("ct status dnat");
        let (kernel, _events) = spawn([]);
        set(runtime, &kernel, plan());
        nft("add table inet theirs").unwrap();
        nft("add chain inet theirs input { type filter hook input priority filter ; }").unwrap();
        std::thread::sleep(Duration::from_millis(200));
        assert!(!marked(), "nothing is translated");
        nft("add chain inet theirs pre { type nat hook prerouting priority dstnat ; }").unwrap();
        eventually("marks with the NAT chain", marked);
        assert_eq!(kernel.status().repairs, 0, "no table of the agent was changed");
        drop(kernel);
        nft("delete table inet trunkline").unwrap();
        let (second, _events) = spawn([]);
        set(runtime, &second, plan());
        assert!(marked(), "the chain was there at the start");
    });
}
