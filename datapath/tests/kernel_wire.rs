//! Link checks against real kernels at the other end of a link: routers, holders of addresses, and
//! proxies for addresses.
#![allow(clippy::disallowed_methods, reason = "tests measure")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod namespace;

use std::fs;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use namespace::{eventually, inside, ip, ip_json, isolated, namespace};
use tokio::runtime::Runtime;
use trunkline_datapath::link_check::{CheckTimeouts, LinkCheck, LinkChecker, VerifiedAddress};

/// These times are long. Tests that do not wait for silence end much earlier.
const TIMES: CheckTimeouts =
    CheckTimeouts { duplicate_wait: Duration::from_millis(300), gateway_timeout: Duration::from_secs(3) };

const ROUTER: &str = "02:00:00:00:00:01";

/// A link `vlan10` without an address. At its other end is the rack: a router with 10.10.0.1 and
/// fd00:10::1.
fn rack() -> OwnedFd {
    let rack = namespace();
    let path = format!("/proc/{}/fd/{}", std::process::id(), rack.as_raw_fd());
    ip("link add vlan10 type veth peer name rack");
    ip(&format!("link set rack netns {path}"));
    ip("link set vlan10 up");
    inside(&rack, || {
        ip(&format!("link set rack address {ROUTER}"));
        ip("addr add 10.10.0.1/24 dev rack");
        ip("addr add fd00:10::1/64 dev rack nodad");
        ip("link set rack up");
    });
    // Duplicate address detection of the link-local addresses has ended.
    eventually("carrier and link-local addresses", || {
        let ready = || ip_json("-6 addr show scope link").iter().any(usable);
        ready() && inside(&rack, ready)
    });
    rack
}

fn usable(link: &serde_json::Value) -> bool {
    link["addr_info"].as_array().is_some_and(|addresses| {
        addresses.iter().any(|address| address["local"].is_string() && address["tentative"].is_null())
    })
}

fn check(address: &str) -> LinkCheck {
    let address: IpAddr = address.parse().unwrap();
    let gateway = if address.is_ipv4() { "10.10.0.1" } else { "fd00:10::1" };
    LinkCheck {
        address,
        subnet: "s10".to_owned(),
        gateway: gateway.parse().unwrap(),
        device: "vlan10".to_owned(),
        ifindex: ip_json("link show vlan10")[0]["ifindex"].as_u64().unwrap().try_into().unwrap(),
        vlan: 10,
    }
}

fn mac(device: &str) -> String {
    ip_json(&format!("link show {device}"))[0]["address"].as_str().unwrap().to_owned()
}

/// Runs a check; returns the error as text.
fn run_check(runtime: &Runtime, times: CheckTimeouts, check: &LinkCheck) -> Result<VerifiedAddress, String> {
    runtime.block_on(LinkChecker::new(times).check(check)).map_err(|error| error.to_string())
}

/// Runs a check and announces; returns the error as text.
fn check_and_announce(runtime: &Runtime, check: &LinkCheck) -> Result<(), String> {
    let free = run_check(runtime, TIMES, check)?;
    runtime.block_on(free.announce()).map_err(|error| error.to_string())
}

/// The MAC address in the rack's neighbour entry of an address.
fn learned_mac(rack: &OwnedFd, address: &str) -> Option<String> {
    let neighbours = inside(rack, || ip_json(&format!("neigh show {address} dev rack")));
    neighbours.first().and_then(|neighbour| Some(neighbour["lladdr"].as_str()?.to_owned()))
}

#[test]
fn free_address_and_answering_router_pass() {
    isolated("free", |runtime| {
        let _rack = rack();
        for address in ["10.10.0.7", "fd00:10::7"] {
            check_and_announce(runtime, &check(address)).unwrap();
        }
    });
}

#[test]
fn error_of_a_silent_router_has_link_and_vlan() {
    isolated("dead gateway", |runtime| {
        let rack = rack();
        inside(&rack, || {
            ip("addr del 10.10.0.1/24 dev rack");
            ip("addr del fd00:10::1/64 dev rack");
        });
        assert_eq!(
            check_and_announce(runtime, &check("10.10.0.7")).expect_err("without 10.10.0.1"),
            "gateway 10.10.0.1 of Subnet s10 did not answer ARP on vlan10 within 3 s: check that the switch's trunk to this node carries VLAN 10 and that the gateway is up"
        );
        let untagged = LinkCheck { vlan: 0, ..check("fd00:10::7") };
        assert_eq!(
            check_and_announce(runtime, &untagged).expect_err("without fd00:10::1"),
            "gateway fd00:10::1 of Subnet s10 did not answer Neighbour Solicitations on vlan10 within 3 s: check that vlan10 is in the untagged network of the Subnet and that the gateway is up"
        );
    });
}

#[test]
fn duplicate_address_error_has_the_holders_mac() {
    isolated("owner", |runtime| {
        let rack = rack();
        inside(&rack, || {
            ip("addr add 10.10.0.7/24 dev rack");
            ip("addr add fd00:10::7/64 dev rack nodad");
        });
        for address in ["10.10.0.7", "fd00:10::7"] {
            let error = check_and_announce(runtime, &check(address)).expect_err(address);
            assert_eq!(
                error,
                format!(
                    "{address} of Subnet s10 is already in use by {ROUTER} on vlan10: remove it there, or write it into spec.range.excludeIPs of the Subnet"
                )
            );
        }
    });
}

/// The node of a remote pod has a proxy entry for the pod's address. Linux does not answer a probe
/// from 0.0.0.0 for such an address.
#[test]
fn duplicate_address_behind_a_proxy_entry_is_found() {
    isolated("proxy", |runtime| {
        let rack = rack();
        inside(&rack, || {
            ip("link add pod type veth peer name inside");
            ip("link set pod up");
            ip("link set inside up");
            for family in ["ipv4", "ipv6"] {
                fs::write(format!("/proc/sys/net/{family}/conf/all/forwarding"), "1").unwrap();
                fs::write(format!("/proc/sys/net/{family}/neigh/rack/proxy_delay"), "0").unwrap();
            }
            fs::write("/proc/sys/net/ipv6/conf/rack/proxy_ndp", "1").unwrap();
            ip("route add 10.10.0.7/32 dev pod");
            ip("-6 route add fd00:10::7/128 dev pod");
            ip("neigh add proxy 10.10.0.7 dev rack");
            ip("neigh add proxy fd00:10::7 dev rack");
        });
        for address in ["10.10.0.7", "fd00:10::7"] {
            let error = check_and_announce(runtime, &check(address)).expect_err(address);
            assert!(error.contains(&format!("already in use by {ROUTER}")), "{address}: {error}");
        }
    });
}

#[test]
fn only_the_announcement_changes_neighbour_entries() {
    isolated("announcement", |runtime| {
        let rack = rack();
        let own = mac("vlan10");
        for address in ["10.10.0.7", "fd00:10::7"] {
            // Another host had the address before, and the rack has just talked to it.
            let previous = "02:00:00:00:00:99";
            inside(&rack, || {
                ip(&format!("neigh replace {address} dev rack lladdr {previous} nud reachable"))
            });
            let check = check(address);
            let free = run_check(runtime, TIMES, &check).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(
                learned_mac(&rack, address).as_deref(),
                Some(previous),
                "the entry before the announcement"
            );
            runtime.block_on(free.announce()).unwrap();
            eventually(&format!("the entry of the previous holder of {address} is replaced"), || {
                learned_mac(&rack, address).as_deref() == Some(own.as_str())
            });
        }
    });
}

#[test]
fn concurrent_checks_of_one_address_do_not_both_pass() {
    isolated("race", |runtime| {
        let rack = rack();
        // The wait is long enough for both checks to run at once. A check that receives the other's
        // probe ends at once.
        let times = CheckTimeouts { duplicate_wait: Duration::from_secs(2), ..TIMES };
        for address in ["10.10.0.7", "fd00:10::7"] {
            let here = check(address);
            let index = inside(&rack, || ip_json("link show rack")[0]["ifindex"].as_u64().unwrap());
            let there =
                LinkCheck { ifindex: index.try_into().unwrap(), device: "rack".to_owned(), ..here.clone() };
            let (ours, theirs) = std::thread::scope(|scope| {
                let theirs = scope.spawn(|| {
                    inside(&rack, || {
                        let runtime =
                            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                        // The device is its own router and does not answer itself.
                        run_check(&runtime, times, &there).map(drop)
                    })
                });
                // Neither check succeeds: one receives the other's probe.
                (run_check(runtime, times, &here).map(drop), theirs.join().unwrap())
            });
            let named = [(&ours, ROUTER.to_owned()), (&theirs, mac("vlan10"))].map(|(outcome, mac)| {
                outcome.as_ref().is_err_and(|error| error.contains(&format!("already in use by {mac}")))
            });
            assert!(named[0] || named[1], "{address}: {ours:?} {theirs:?}");
        }
    });
}

/// The lines of packet sockets in this namespace.
fn packet_sockets() -> usize {
    fs::read_to_string("/proc/thread-self/net/packet").unwrap().lines().count() - 1
}

/// Waits until a check has opened its socket.
async fn listening() {
    while packet_sockets() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(packet_sockets(), 1);
}

#[test]
fn fifty_checks_share_one_socket_until_the_last_ends() {
    isolated("fifty", |runtime| {
        let _rack = rack();
        let checks: Vec<LinkCheck> = (10..60).map(|number| check(&format!("10.10.0.{number}"))).collect();
        let wire = LinkChecker::new(TIMES);
        runtime.block_on(async {
            let tasks: Vec<_> = checks
                .into_iter()
                .map(|check| {
                    let wire = wire.clone();
                    tokio::spawn(async move { wire.check(&check).await.map(drop) })
                })
                .collect();
            listening().await;
            for task in tasks {
                task.await.unwrap().unwrap();
                assert!(packet_sockets() <= 1);
            }
        });
        runtime.block_on(async {
            while packet_sockets() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    });
}

#[test]
fn link_that_is_down_or_deleted_is_an_error() {
    isolated("down", |runtime| {
        let _rack = rack();
        let check = check("10.10.0.7");
        let wire = LinkChecker::new(TIMES);
        let error = runtime.block_on(async {
            let asking = wire.check(&check);
            let cut = async {
                listening().await;
                ip("link set vlan10 down");
            };
            tokio::join!(asking, cut).0.map(drop).unwrap_err().to_string()
        });
        assert_eq!(error, "link check of 10.10.0.7 on vlan10: Network is down (os error 100)");
        ip("link del vlan10");
        let error = runtime.block_on(wire.check(&check)).map(drop).unwrap_err().to_string();
        assert_eq!(error, "link check of 10.10.0.7 on vlan10: No such device (os error 19)");
    });
}
