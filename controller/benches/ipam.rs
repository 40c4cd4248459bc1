//! Cost of address allocation: time per address in a /12 that is 90 % full, and memory. `cargo lab
//! bench ipam` runs this bench and reads the lines that begin with `ipam`.
//!
//! The free addresses are scattered over the range, as after years of service: each round allocates
//! addresses in order and releases others at scattered places. The bench also prints the memory of
//! the controller's rows and indexes for an IPInstance. It times [`Ipam::allocate`] alone: network,
//! subnet, next address, MAC address, holder.
#![allow(missing_docs, reason = "criterion's macros")]
#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "a bench measures")]

#[path = "../../bgp/tests/counting/mod.rs"]
mod counting;

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use serde_json::json;
use trunkline_api::kube::Lenient;
use trunkline_api::pool::PoolSpec;
use trunkline_api::resources::{IPInstanceSpec, SubnetAccess};
use trunkline_controller::ipam::{AddressRequest, Allocation, InstanceState, Ipam, instance_name};
use trunkline_controller::state::ControllerState;
use trunkline_controller::watch::Watched as _;

/// Size of the /12, without its first and last address.
const SPAN: u32 = (1 << 20) - 2;
const BATCH: u64 = 10_000;

fn subnet(name: &str, cidr: &str, first: Ipv4Addr, last: Ipv4Addr) -> PoolSpec {
    PoolSpec {
        subnet: name.to_owned(),
        network: "network".to_owned(),
        cidr: cidr.parse().unwrap(),
        start: Some(first.into()),
        end: Some(last.into()),
        gateway: None,
        reserved: Vec::new(),
        excluded: Vec::new(),
        private: false,
        access: SubnetAccess::default(),
    }
}

/// Cycles through all numbers below a bound in a scattered order. (The factor is a prime that
/// divides no bound used here.)
fn scattered(bound: u32) -> impl Iterator<Item = u32> {
    let bound = u64::from(bound);
    (0..).map(move |n: u64| (n % bound * 2_654_435_761 % bound) as u32)
}

fn address(base: Ipv4Addr, index: u32) -> IpAddr {
    Ipv4Addr::from(u32::from(base) + index).into()
}

/// Random-looking bits for MAC addresses. Ascending MAC addresses would be adjacent in the hash
/// map, and random ones are not. (The finalizer of SplitMix64.)
fn random(number: u32) -> u32 {
    let mut bits = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (bits >> 40) as u32
}

fn adopt(ipam: &mut Ipam, number: u32, address: IpAddr, namespaces: &[String]) {
    let [_, a, b, c] = random(number).to_be_bytes();
    let namespace = &namespaces[number as usize % namespaces.len()];
    ipam.adopt(&Allocation { address, namespace, mac: [2, 0x12, 0x34, a, b, c], seen: InstanceState::Bound })
        .unwrap();
}

/// Octets per pod for 10,000 nodes and 300,000 pods in sixteen /16 subnets.
fn cluster(namespaces: &[String]) -> usize {
    let mut ipam = Ipam::default();
    counting::held(|| {
        for number in 0..16u8 {
            let (first, last) = (Ipv4Addr::new(10, number, 0, 1), Ipv4Addr::new(10, number, 255, 254));
            ipam.set_subnet(subnet(&format!("s{number}"), &format!("10.{number}.0.0/16"), first, last), None)
                .unwrap();
        }
        // Round robin fills the subnets one after the other.
        for number in 0..300_000 {
            let place = address(Ipv4Addr::new(10, (number / 65_534) as u8, 0, 1), number % 65_534);
            adopt(&mut ipam, number, place, namespaces);
        }
    })
    .unsigned_abs()
}

/// Octets per IPInstance in rows and indexes, for 100,000 IPInstances from a watch, each with a pod
/// of its own.
fn rows(namespaces: &[String]) -> f64 {
    const COUNT: u32 = 100_000;
    let mut state = ControllerState::default();
    let held = counting::held(|| {
        Lenient::<IPInstanceSpec>::begin(&mut state);
        for number in 0..COUNT {
            let address = address(Ipv4Addr::new(10, 0, 0, 1), number);
            let namespace = &namespaces[number as usize % namespaces.len()];
            let name = format!("deployment-6f7c9d8b5c-{number:05}");
            let uid = |kind: u8| format!("{number:08x}-0000-4000-8000-{kind:012x}");
            let object = json!({
                "apiVersion": "networking.alibaba.com/v1", "kind": "IPInstance",
                "metadata": {
                    "name": instance_name(address), "namespace": namespace, "uid": uid(1), "resourceVersion": "1",
                    "annotations": {"networking.alibaba.com/ip-family": "IPv4"},
                    "finalizers": ["networking.alibaba.com/ip-allocated"],
                    "ownerReferences": [
                        {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid(2), "controller": true},
                    ],
                },
                "spec": {
                    "network": "network", "subnet": format!("s{}", number % 16),
                    "address": {"version": "4", "ip": format!("{address}/16"), "mac": "02:12:34:56:78:9a"},
                    "binding": {
                        "podName": name, "podUID": uid(2), "nodeName": format!("node-{}", number % 10_000),
                        "referredObject": {"kind": "Pod", "name": name, "uid": uid(2)},
                    },
                },
            });
            let object: Lenient<IPInstanceSpec> = serde_json::from_value(object).unwrap();
            object.apply(&mut state);
        }
        Lenient::<IPInstanceSpec>::end(&mut state);
    });
    assert_eq!(state.cluster.instances().count(), COUNT as usize);
    held as f64 / f64::from(COUNT)
}

fn main() {
    let namespaces: Vec<String> = (0..1000).map(|number| format!("namespace-{number}")).collect();
    let total = cluster(&namespaces);
    println!("ipam bytes_per_pod {:.1} of 300000", total as f64 / 300_000.0);
    println!("ipam bytes_per_row {:.0} of 100000 IPInstances", rows(&namespaces));

    let mut ipam = Ipam::default();
    let (first, last) = (Ipv4Addr::new(10, 16, 0, 1), Ipv4Addr::new(10, 31, 255, 254));
    let empty = counting::held(|| ipam.set_subnet(subnet("s", "10.16.0.0/12", first, last), None).unwrap());
    println!("ipam bytes_per_address_free {:.2}", empty as f64 / f64::from(SPAN));
    let given = SPAN / 10 * 9;
    let full = counting::held(|| {
        for (number, index) in scattered(SPAN).take(given as usize).enumerate() {
            adopt(&mut ipam, number as u32, address(first, index), &namespaces);
        }
    });
    println!("ipam bytes_per_address_given {:.1}", full as f64 / f64::from(given));

    let mut leaving = scattered(SPAN);
    let mut spent = Duration::ZERO;
    let mut count = 0;
    // Criterion repeats the rounds. No round may use a number of an earlier round, because the pods
    // of that round still exist.
    let mut drawn = given;
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("ipam-12-bits-90-percent");
    group.throughput(Throughput::Elements(BATCH));
    group.bench_function("allocate", |bencher| {
        bencher.iter_custom(|rounds| {
            let mut elapsed = Duration::ZERO;
            let mut granted = Vec::with_capacity(BATCH as usize);
            for _ in 0..rounds {
                let start = Instant::now();
                for number in 0..BATCH {
                    let namespace = &namespaces[number as usize % namespaces.len()];
                    let request =
                        AddressRequest { namespace, network: "network", ..AddressRequest::default() };
                    drawn += 1;
                    granted.push(black_box(ipam.allocate(black_box(&request), random(drawn))).unwrap());
                }
                elapsed += start.elapsed();
                // Release the same number of addresses, at scattered places.
                for (number, granted) in granted.drain(..).enumerate() {
                    let namespace = &namespaces[number % namespaces.len()];
                    let (address, mac) = (granted.addresses[0].address.addr(), granted.mac);
                    ipam.adopt(&Allocation { address, namespace, mac, seen: InstanceState::Bound }).unwrap();
                }
                let mut left = 0;
                while left < BATCH {
                    let out = address(first, leaving.next().unwrap());
                    if let Some(namespace) = ipam.holder(out).map(|(namespace, _)| namespace.to_owned()) {
                        ipam.gone(out, &namespace);
                        left += 1;
                    }
                }
            }
            spent += elapsed;
            count += rounds * BATCH;
            elapsed
        });
    });
    group.finish();
    println!("ipam allocations_per_second {:.0}", count as f64 / spent.as_secs_f64());
}
