//! Attachment of pods: a network and a host on the left, the parameters of a pod's links on the
//! right.

use trunkline_api::resources::AttachmentKind;
use trunkline_datapath::link_check::LinkCheck;

use super::vlan::{own_vlan, three_subnets, with_default};
use super::*;
use crate::plan::join::plan_by_host;

fn slaves() -> Intent {
    let mut intent = three_subnets();
    let config = serde_json::json!({"attachment": "ipvlan"});
    intent.networks[0].spec.config = serde_json::from_value(config).unwrap();
    intent.service_cidrs = [prefix("10.96.0.0/12")].into();
    intent
}

fn prefix(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn target(addresses: &[&str], attachment: AttachmentKind) -> AttachTarget {
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    AttachTarget { network: "rack".to_owned(), addresses, attachment }
}

fn with_devices() -> Host {
    let mut host = with_default();
    host.kernel.links.extend([own_vlan(7, "up1.10", 2, 10), own_vlan(8, "up1.20", 2, 20)]);
    host
}

#[test]
fn a_slave_gets_its_gateways_and_the_hosts_prefixes() {
    let plan = plan(&slaves(), &with_devices()).unwrap();
    let parameters = join(&plan, &target(&["10.10.0.5", "2001:db8:10::5"], AttachmentKind::Ipvlan)).unwrap();
    assert_eq!(parameters.mtu, Some(1502));
    let Attachment::Ipvlan(slave) = parameters.attachment else { panic!("no slave") };
    assert_eq!((slave.parent, slave.parent_name.as_str()), (7, "up1.10"));
    let on_link: Vec<String> =
        slave.on_link.iter().map(|there| format!("{} {}", there.address, there.gateway)).collect();
    assert_eq!(on_link, ["10.10.0.5/24 10.10.0.1", "2001:db8:10::5/64 2001:db8:10::1"]);
    let by_host: Vec<String> = slave.by_host.iter().map(IpNet::to_string).collect();
    assert_eq!(
        by_host,
        [
            "10.96.0.0/12",
            "10.255.0.9/32",
            "192.0.2.0/32",
            "192.0.2.2/32",
            "2001:db8:0:1::1/128",
            "2001:db8:0:2::1/128"
        ],
        "no loopback, no link-local address"
    );
    assert_eq!(
        plan.kernel.nat.slaves,
        ["10.10.0.0/24", "10.20.0.0/24", "2001:db8:10::/64"].map(prefix).into()
    );

    // A pod that was attached as `veth` stays attached as `veth`.
    let veth = join(&plan, &target(&["10.10.0.5"], AttachmentKind::Veth)).unwrap();
    assert_eq!(veth, LinkParameters { attachment: Attachment::Veth, ..parameters_of("10.10.0.5") });
}

/// The parameters of an IPVLAN pod with this one address.
fn parameters_of(address: &str) -> LinkParameters {
    join(&plan(&slaves(), &with_devices()).unwrap(), &target(&[address], AttachmentKind::Ipvlan)).unwrap()
}

#[test]
fn every_address_in_a_vlan_is_checked_on_its_device() {
    let check = |address: &str, subnet: &str, gateway: &str| LinkCheck {
        address: address.parse().unwrap(),
        subnet: subnet.to_owned(),
        gateway: gateway.parse().unwrap(),
        device: "up1.10".to_owned(),
        ifindex: 7,
        vlan: 10,
    };
    let both = ["10.10.0.5", "2001:db8:10::5"];
    for attachment in [AttachmentKind::Veth, AttachmentKind::Ipvlan] {
        let of = |host: &Host| join(&plan(&slaves(), host).unwrap(), &target(&both, attachment));
        assert_eq!(
            of(&with_devices()).unwrap().link_checks,
            [check(both[0], "a4", "10.10.0.1"), check(both[1], "a6", "2001:db8:10::1")]
        );
        assert_eq!(of(&with_default()).unwrap_err().to_string(), "Subnet a4: up1.10 does not exist yet");
        let mut unplugged = with_devices();
        unplugged.kernel.links[1].running = false;
        assert_eq!(of(&unplugged).unwrap_err().to_string(), "Subnet a4: up1 has no carrier");
    }
    let bgp = plan(&usual(), &host(Vec::new())).unwrap();
    let target = AttachTarget { network: "rack1".to_owned(), ..target(&["10.1.0.5"], AttachmentKind::Veth) };
    assert_eq!(join(&bgp, &target).unwrap().link_checks, [], "a subnet behind a router needs no link check");
}

#[test]
fn other_networks_use_the_host_and_down_links_are_excluded() {
    let mut host = with_devices();
    host.kernel.links.push(Link { up: false, ..link(9, "kube-ipvs0", &["10.96.0.1/32"]) });
    let mut intent = slaves();
    intent.service_cidrs.clear();
    let mut plan = plan(&intent, &host).unwrap();
    assert!(plan.kernel.nat.slaves.is_empty(), "without Services, no prefix is translated");
    let rack = plan.networks["rack"].clone();
    let overlay = BTreeMap::from([("o".to_owned(), SubnetPlan::of(prefix("10.30.0.0/16")))]);
    let refused = Some("for a reason".to_owned());
    plan.networks.extend([
        (
            "overlay".to_owned(),
            NetworkPlan { subnets: overlay.clone(), attachment: AttachmentKind::Veth, ..rack.clone() },
        ),
        ("other".to_owned(), NetworkPlan { refused, ..rack }),
    ]);
    plan_by_host(&intent, &host, &mut plan);
    let by_host = &plan.networks["rack"].by_host;
    assert!(by_host.contains(&prefix("10.30.0.0/16")));
    for absent in ["10.10.0.0/24", "10.20.0.0/24", "10.96.0.1/32"] {
        assert!(!by_host.contains(&prefix(absent)), "{absent}");
    }
}

#[test]
fn a_slave_waits_for_its_device_and_has_only_one() {
    let waiting = plan(&slaves(), &with_default()).unwrap();
    let error = join(&waiting, &target(&["10.10.0.5"], AttachmentKind::Ipvlan)).unwrap_err();
    assert_eq!(error.to_string(), "Subnet a4: up1.10 does not exist yet");
    let mut apart = slaves();
    apart.subnets[1].spec.net_id = Some(20);
    let apart = plan(&apart, &with_devices()).unwrap();
    let error = join(&apart, &target(&["10.10.0.5", "2001:db8:10::5"], AttachmentKind::Ipvlan)).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("Subnet a6 is on up1.20, and the pod's other address on up1.10"), "{error}");
}

#[test]
fn a_slave_needs_no_proxy_and_excludes_veth_pods() {
    let pod = |attachment| Pod {
        network: "rack".to_owned(),
        addresses: vec!["10.10.0.5".parse().unwrap()],
        host_ifname: "tl0123456789ab".to_owned(),
        host_ifindex: 9,
        mac: [2, 0, 0, 0, 0, 1],
        attachment,
        extra_prefixes: Default::default(),
        migration: Default::default(),
        target_addresses: Vec::new(),
        is_virtual_machine: false,
    };
    let (veth, ipvlan) = (three_subnets(), slaves());
    for (intent, kind, proxies) in [(&veth, AttachmentKind::Veth, 1), (&ipvlan, AttachmentKind::Ipvlan, 0)] {
        let plan = plan(intent, &with_devices()).unwrap();
        assert_eq!(plan_pod(&plan, &pod(kind)).unwrap().kernel.proxies.len(), proxies);
    }
    let error = plan_pod(&plan(&ipvlan, &with_devices()).unwrap(), &pod(AttachmentKind::Veth)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Network rack: spec.config.attachment: ipvlan does not reach pods of this node that are attached as veth"
    );
}
