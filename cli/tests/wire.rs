//! An agent with a VLAN network: the requirements on the VLAN before a pod is ready, and the
//! neighbours' entries afterwards. The network is untagged, so the kernel needs no driver; only the
//! name of the device differs from that of a tagged network.
#![allow(clippy::disallowed_methods, reason = "tests measure")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod host;
#[path = "../../datapath/tests/namespace/mod.rs"]
mod namespace;

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;

use host::{Host, OPTIONAL, address, link_exists, pod_routes};
use namespace::{eventually, inside, ip, ip_json, isolated, namespace, ping};
use trunkline_api::attach::Code;

/// The router's MAC address. The rack answers with it for all its addresses.
const ROUTER: &str = "02:00:00:00:00:01";

/// A host with the uplink `up1` in a VLAN of both families. At the other end is the rack with the
/// VLAN's router.
fn rack() -> (Host, OwnedFd) {
    let rack = namespace();
    // As in many distributions, sources are checked strictly on every interface without its own
    // setting.
    for scope in ["all", "default"] {
        fs::write(format!("/proc/sys/net/ipv4/conf/{scope}/rp_filter"), "1").unwrap();
    }
    let path = format!("/proc/{}/fd/{}", std::process::id(), rack.as_raw_fd());
    ip("link add up1 type veth peer name rack");
    ip(&format!("link set rack netns {path}"));
    ip("link set up1 up");
    inside(&rack, || {
        ip(&format!("link set rack address {ROUTER}"));
        ip("addr add 10.10.0.1/24 dev rack");
        ip("addr add fd00:10::1/64 dev rack nodad");
        ip("link set rack up");
    });
    // A device without a link-local address would send solicitations to the router from the pod's
    // address. The router would learn the pod before its announcement.
    eventually("carrier and a link-local address", || {
        ip("link show up1").contains("LOWER_UP")
            && ip("-6 addr show up1 scope link -tentative").contains("fe80::")
    });
    let mut host = Host::new(OPTIONAL);
    let config = fs::read_to_string(host.path("agent.yaml")).unwrap();
    let more =
        "vlanInterfaces: [up1]\nvlanCheck: {timeoutSeconds: 1, duplicateAddressWaitMilliseconds: 300}\n";
    let config = config.replace("timeoutSeconds: 1}", "timeoutSeconds: 10}");
    fs::write(host.path("agent.yaml"), config + more).unwrap();
    host.manifests(
        "apiVersion: networking.alibaba.com/v1\nkind: Network\nmetadata: {name: rack1}\nspec: {netID: 0, type: Underlay, mode: VLAN, nodeSelector: {kubernetes.io/hostname: n1}}\n---\n\
         apiVersion: networking.alibaba.com/v1\nkind: Subnet\nmetadata: {name: s4}\n\
         spec: {network: rack1, range: {version: \"4\", cidr: 10.10.0.0/24, gateway: 10.10.0.1, start: 10.10.0.10}}\n---\n\
         apiVersion: networking.alibaba.com/v1\nkind: Subnet\nmetadata: {name: s6}\n\
         spec: {network: rack1, range: {version: \"6\", cidr: \"fd00:10::/64\", gateway: \"fd00:10::1\", start: \"fd00:10::10\", end: \"fd00:10::ff\"}}\n",
    );
    host.start();
    (host, rack)
}

/// No link, route or record of the container exists.
fn nothing_is_left(host: &Host, container: &str) {
    assert!(!link_exists(container));
    assert!(host.pods().iter().all(|(there, _)| there != container));
}

#[test]
fn pod_is_reachable_at_once_despite_old_neighbour_entries() {
    isolated("a_pod_is_in_its_vlan_at_once", |_| {
        let (host, rack) = rack();
        let addresses = ["10.10.0.10", "fd00:10::10"];
        for before in addresses {
            inside(&rack, || {
                ip(&format!("neigh replace {before} dev rack lladdr 02:00:00:00:00:99 nud reachable"))
            });
        }
        let netns = namespace();
        let pod = host.add("c1", &netns).unwrap();
        let given: Vec<String> = pod.addresses.iter().map(|given| given.address.addr().to_string()).collect();
        assert_eq!(given, addresses);
        let up1 = ip_json("link show up1")[0]["address"].as_str().unwrap().to_owned();
        for address in addresses {
            eventually(&format!("the rack has removed the entry for {address}"), || {
                let neighbours = inside(&rack, || ip_json(&format!("neigh show {address} dev rack")));
                neighbours.first().is_some_and(|neighbour| neighbour["lladdr"] == up1.as_str())
            });
            // The link is new, and its link-local address must be usable before it can send
            // solicitations to the rack.
            eventually("the pod answers", || inside(&rack, || ping(address)));
        }
        assert_eq!(
            host.add("c1", &netns).unwrap(),
            pod,
            "a repeated ADD does not fail because of the pod itself"
        );
    });
}

#[test]
fn pod_without_its_router_is_not_ready_and_is_removed() {
    isolated("without_its_router", |_| {
        let (host, rack) = rack();
        inside(&rack, || ip("addr del 10.10.0.1/24 dev rack"));
        let failure = host.add("c1", &namespace()).unwrap_err();
        assert_eq!(failure.code, Code::TryAgainLater);
        assert!(
            failure
                .to_string()
                .contains("gateway 10.10.0.1 of Subnet s4 did not answer ARP on up1 within 1 s: "),
            "{failure}"
        );
        nothing_is_left(&host, "c1");
        assert_eq!(pod_routes(), 0);
        inside(&rack, || ip("addr add 10.10.0.1/24 dev rack"));
        host.add("c1", &namespace()).unwrap();
    });
}

#[test]
fn duplicate_address_is_not_assigned() {
    isolated("an_address_that_somebody_has", |_| {
        let (host, rack) = rack();
        inside(&rack, || {
            ip("addr add 10.10.0.10/24 dev rack");
            ip("addr add fd00:10::12/64 dev rack nodad");
        });
        for taken in ["10.10.0.10 of Subnet s4", "fd00:10::12 of Subnet s6"] {
            // The checks of both families run in parallel. If neither finds another host, the
            // addresses are released and the next ones are tried.
            let failure = (0..3).find_map(|_| match host.add("c1", &namespace()) {
                Ok(_) => host.del("c1").map(|_| None).unwrap(),
                Err(failure) => Some(failure),
            });
            let failure = failure.expect("no request was sent");
            assert_eq!(failure.code, Code::AddressNotAvailable);
            let said = format!("{taken} is already in use by {ROUTER} on up1: ");
            assert!(failure.to_string().contains(&said), "{failure}");
            nothing_is_left(&host, "c1");
        }
        assert_eq!(pod_routes(), 0);
        // The address never belonged to this host. This host does not answer for it, and its owner
        // still has it.
        assert!(!ip("neigh show proxy").contains("10.10.0.10"));
        let next = host.add("c1", &namespace()).unwrap();
        assert_eq!(address(&next), "10.10.0.13", "the next address after the tried addresses");
    });
}

/// A neighbour stores the sender of a request. The sender is the node's address in the subnet, for
/// the packets of all sources.
#[test]
fn requests_use_the_nodes_address_of_the_subnet() {
    isolated("the_node_asks_by_its_address_of_the_subnet", |_| {
        let (host, rack) = rack();
        ip("addr add 10.10.0.5/24 dev up1");
        ip("addr add 192.0.2.1/32 dev lo");
        let netns = namespace();
        let pod = host.add("c1", &netns).unwrap();
        assert_eq!(address(&pod), "10.10.0.10");
        let askers = || -> Vec<String> {
            let known = inside(&rack, || ip_json("-4 neigh show dev rack"));
            known.iter().filter_map(|neighbour| Some(neighbour["dst"].as_str()?.to_owned())).collect()
        };
        let forget = || {
            ip("neigh flush dev up1");
            // No entry is permanent.
            inside(&rack, || ip("neigh flush dev rack"));
            assert_eq!(askers(), [""; 0]);
        };
        // The destination has no return path, so the rack itself sends no request.
        inside(&rack, || ip("route add blackhole 10.10.0.10/32"));
        for from in ["the pod", "192.0.2.1"] {
            forget();
            match from {
                "the pod" => drop(inside(&netns, || ping("10.10.0.1"))),
                _ => {
                    drop(Command::new("ping").args(["-c1", "-W1", "-I", from, "10.10.0.1"]).output().unwrap())
                }
            }
            assert_eq!(askers(), ["10.10.0.5"], "asked for {from}");
        }
    });
}
