//! Addresses of the plan on the loopback interface of a real kernel: added, kept, repaired and
//! deleted. Addresses of other programs are not changed.
#![allow(clippy::disallowed_methods, reason = "tests measure")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod namespace;

use std::collections::BTreeSet;
use std::net::{IpAddr, TcpListener};

use namespace::{eventually, ip, ip_json, isolated};
use tokio::runtime::Runtime;
use trunkline_datapath::kernel::{Applied, KernelConfig, KernelEvents, KernelHandle};
use trunkline_datapath::plan::KernelPlan;

const V4: &str = "192.0.2.53";
const V6: &str = "2001:db8::53";

fn addresses(texts: &[&str]) -> BTreeSet<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn wanting(texts: &[&str]) -> KernelPlan {
    KernelPlan { addresses: Some(addresses(texts)), ..KernelPlan::default() }
}

fn spawn(last: &[&str]) -> (KernelHandle, KernelEvents) {
    KernelHandle::spawn(KernelConfig { addresses: addresses(last), ..KernelConfig::default() }).unwrap()
}

fn set(runtime: &Runtime, kernel: &KernelHandle, plan: KernelPlan) -> Applied {
    let applied = runtime.block_on(kernel.set_plan(plan)).unwrap();
    assert_eq!(applied.faults, [""; 0]);
    applied
}

/// The addresses of the loopback interface except the kernel's own.
fn on_loopback() -> BTreeSet<IpAddr> {
    let links = ip_json("addr show dev lo");
    let listed = links[0]["addr_info"].as_array().unwrap().iter();
    listed
        .map(|it| it["local"].as_str().unwrap().parse::<IpAddr>().unwrap())
        .filter(|it| !it.is_loopback())
        .collect()
}

#[test]
fn programs_bind_the_plans_addresses() {
    isolated("programs_bind_the_plans_addresses", |runtime| {
        let (kernel, _events) = spawn(&[]);
        assert_eq!(set(runtime, &kernel, wanting(&[V4, V6])).changed, 2);
        assert_eq!(on_loopback(), addresses(&[V4, V6]));
        for address in addresses(&[V4, V6]) {
            drop(TcpListener::bind((address, 0)).unwrap());
        }
        let host = runtime.block_on(kernel.host()).unwrap();
        let known: Vec<_> = host.links.iter().flat_map(|link| &link.addresses).map(|it| it.addr()).collect();
        assert!(known.iter().all(IpAddr::is_loopback), "the planner uses no such address: {known:?}");
        assert_eq!(set(runtime, &kernel, wanting(&[V4, V6])).changed, 0, "nothing differs");
    });
}

#[test]
fn the_kernel_selects_no_such_address_as_a_source() {
    isolated("the_kernel_selects_no_such_address_as_a_source", |runtime| {
        ip("link add eth0 type veth peer name far");
        ip("link set far up");
        ip("link set eth0 up");
        let (kernel, _events) = spawn(&[]);
        set(runtime, &kernel, wanting(&[V4, V6]));
        // The host's own addresses are younger, and only on the loopback interface.
        ip("addr add 198.51.100.1/32 dev lo");
        ip("addr add 2001:db8:1::1/128 dev lo");
        ip("route add default dev eth0");
        ip("-6 route add default dev eth0");
        for (destination, own) in [("192.0.2.1", "198.51.100.1"), ("2001:db8::1", "2001:db8:1::1")] {
            eventually("the source", || {
                let route = &ip_json(&format!("route get {destination}"))[0];
                route["prefsrc"] == own
            });
        }
    });
}

#[test]
fn a_deleted_address_is_restored_and_a_restart_changes_nothing() {
    isolated("a_deleted_address_is_restored_and_a_restart_changes_nothing", |runtime| {
        let (kernel, _events) = spawn(&[]);
        set(runtime, &kernel, wanting(&[V4, V6]));
        for (repairs, address) in [(1, V4), (2, V6)] {
            let prefix = if address == V4 { 32 } else { 128 };
            ip(&format!("addr del {address}/{prefix} dev lo"));
            eventually("restored", || on_loopback() == addresses(&[V4, V6]));
            eventually("counted", || kernel.status().repairs == repairs);
        }
        ip("link set lo down");
        ip("link set lo up");
        eventually("back with the link", || on_loopback() == addresses(&[V4, V6]));
        drop(kernel);

        let (kernel, _events) = spawn(&[]);
        set(runtime, &kernel, KernelPlan::default());
        assert_eq!(on_loopback(), addresses(&[V4, V6]), "the plan's addresses are not known yet");
        assert_eq!(set(runtime, &kernel, wanting(&[V4])).changed, 1);
        assert_eq!(on_loopback(), addresses(&[V4]));
        set(runtime, &kernel, wanting(&[]));
        assert_eq!(on_loopback(), addresses(&[]));
    });
}

#[test]
fn addresses_of_other_programs_stay() {
    isolated("addresses_of_other_programs_stay", |runtime| {
        ip(&format!("addr add {V4}/32 dev lo"));
        ip("addr add 198.51.100.1/32 dev lo");
        let (kernel, _events) = spawn(&[]);
        assert_eq!(set(runtime, &kernel, wanting(&[V4])).changed, 0, "it exists");
        set(runtime, &kernel, wanting(&[]));
        assert_eq!(on_loopback(), addresses(&[V4, "198.51.100.1"]));
        set(runtime, &kernel, wanting(&[V4]));
        ip(&format!("addr del {V4}/32 dev lo"));
        eventually("now of the plan", || on_loopback() == addresses(&[V4, "198.51.100.1"]));
        set(runtime, &kernel, wanting(&[]));
        assert_eq!(on_loopback(), addresses(&["198.51.100.1"]));
    });
}

/// As with a kernel before 5.18, which records no protocol of an address.
#[test]
fn addresses_without_a_protocol_are_known_from_the_last_run() {
    isolated("addresses_without_a_protocol_are_known_from_the_last_run", |runtime| {
        ip(&format!("addr add {V4}/32 dev lo"));
        ip(&format!("addr add {V6}/128 dev lo"));
        let (kernel, _events) = spawn(&[V4, V6]);
        set(runtime, &kernel, wanting(&[V6]));
        assert_eq!(on_loopback(), addresses(&[V6]));
        runtime.block_on(kernel.resync()).unwrap();
        assert_eq!((on_loopback(), kernel.status().repairs), (addresses(&[V6]), 0));
    });
}
