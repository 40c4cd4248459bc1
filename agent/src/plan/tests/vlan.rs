//! Tables of the VLAN side: links and subnets on the left, devices, routes and rules on the right.

use super::*;

fn vlan(net_id: Option<u32>) -> Network {
    let spec = net_id.map_or(serde_json::json!({}), |id| serde_json::json!({"netID": id}));
    network("rack", "Underlay/VLAN", spec)
}

fn subnet_in(name: &str, cidr: &str, gateway: &str, net_id: Option<u32>) -> Subnet {
    let mut subnet = subnet(name, "rack", cidr, serde_json::json!({}));
    subnet.spec.net_id = net_id;
    subnet.spec.range.gateway = gateway.to_owned();
    subnet
}

/// VLAN 10 with both families, VLAN 20.
pub(super) fn three_subnets() -> Intent {
    intent(
        vec![vlan(None)],
        vec![
            subnet_in("a4", "10.10.0.0/24", "10.10.0.1", Some(10)),
            subnet_in("a6", "2001:db8:10::/64", "2001:db8:10::1", Some(10)),
            subnet_in("b4", "10.20.0.0/24", "10.20.0.1", Some(20)),
        ],
    )
}

pub(super) fn own_vlan(index: u32, name: &str, parent: u32, id: u16) -> Link {
    Link { kind: Some(LinkKind::Vlan { parent, id }), own: true, ..link(index, name, &[]) }
}

/// `up1` has the default route.
pub(super) fn with_default() -> Host {
    with_kernel(host(Vec::new()), |kernel| kernel.default_link = Some(2))
}

fn devices(plan: &Plan) -> Vec<String> {
    let of = |(name, subnet): (&String, &SubnetPlan)| {
        let device = subnet.device.as_ref().unwrap();
        format!("{name} {} {:?} {}", device.name, device.ifindex, device.fault.as_deref().unwrap_or("ok"))
    };
    plan.networks["rack"].subnets.iter().map(of).collect()
}

#[test]
fn a_device_is_planned_before_its_routes() {
    let first = plan(&three_subnets(), &with_default()).unwrap();
    let links: Vec<String> = first
        .kernel
        .links
        .iter()
        .map(|(name, link)| format!("{name} {:?} {} {}", link.kind, link.alias, link.mtu))
        .collect();
    assert_eq!(
        links,
        [
            "up1.10 Vlan { parent: 2, id: 10 } trunkline:vlan:rack 1502",
            "up1.20 Vlan { parent: 2, id: 20 } trunkline:vlan:rack 1502",
        ]
    );
    assert_eq!(
        devices(&first),
        [
            "a4 up1.10 None up1.10 does not exist yet",
            "a6 up1.10 None up1.10 does not exist yet",
            "b4 up1.20 None up1.20 does not exist yet",
        ]
    );
    let leads_out =
        |plan: &Plan| plan.kernel.routes.keys().any(|key| key.table >= 10_000 && key.table < 39_000);
    assert!(!leads_out(&first), "no index yet");
    assert_eq!(first.networks["rack"].mtu, Some(1502), "the parent's");

    let mut host = with_default();
    host.kernel.links.extend([own_vlan(7, "up1.10", 2, 10), own_vlan(8, "up1.20", 2, 20)]);
    let second = plan(&three_subnets(), &host).unwrap();
    assert_eq!(devices(&second), ["a4 up1.10 Some(7) ok", "a6 up1.10 Some(7) ok", "b4 up1.20 Some(8) ok"]);
    let by = |gateway: &str, index| Hop { onlink: true, ..Hop::by(gateway.parse().unwrap(), index) };
    for (table, prefix, hop) in [
        (10_000, "10.10.0.0/24", Hop::link(7)),
        (10_000, "0.0.0.0/0", by("10.10.0.1", 7)),
        (10_001, "2001:db8:10::/64", Hop::link(7)),
        (10_001, "::/0", by("2001:db8:10::1", 7)),
        (10_002, "10.20.0.0/24", Hop::link(8)),
        (10_002, "0.0.0.0/0", by("10.20.0.1", 8)),
    ] {
        assert_eq!(
            second.kernel.routes.get(&key(table, prefix)),
            Some(&RouteTarget::via(vec![hop])),
            "{prefix}"
        );
    }
    let rules: Vec<String> = second
        .kernel
        .rules
        .iter()
        .map(|rule| format!("{} {:?} {:?} {}", rule.priority, rule.from, rule.iif, rule.table))
        .collect();
    assert_eq!(
        rules,
        [
            "1000 None None 39999",
            "1024 None None 1170007",
            "1024 None None 1170008",
            "1025 None None 254",
            "1025 None None 254",
            "1025 None None 254",
            "1028 None None 10000",
            "1028 None None 10002",
            "1030 None Some(\"up1.10\") 39998",
            "1030 None Some(\"up1.20\") 39998",
            "1100 Some(10.10.0.0/24) None 10000",
            "1100 Some(10.20.0.0/24) None 10002",
            "1000 None None 39999",
            "1024 None None 1170007",
            "1024 None None 1170008",
            "1025 None None 254",
            "1025 None None 254",
            "1025 None None 254",
            "1028 None None 10001",
            "1030 None Some(\"up1.10\") 39998",
            "1100 Some(2001:db8:10::/64) None 10001",
        ]
    );
    for (path, value) in [
        ("net/ipv4/conf/up1.10/rp_filter", Sysctl::LooseReversePath),
        ("net/ipv4/conf/up1.10/arp_announce", Sysctl::Exactly("2")),
        ("net/ipv4/neigh/up1.20/proxy_delay", Sysctl::Exactly("0")),
        ("net/ipv6/conf/up1.10/proxy_ndp", Sysctl::Exactly("1")),
        ("net/ipv6/conf/all/proxy_ndp", Sysctl::Exactly("1")),
        ("net/ipv6/conf/up1.20/accept_ra", Sysctl::IfThere("0")),
        ("net/ipv6/conf/up1.10/accept_redirects", Sysctl::IfThere("0")),
        ("net/ipv4/conf/up1.10/accept_redirects", Sysctl::Exactly("0")),
        ("net/ipv4/conf/up1.20/send_redirects", Sysctl::Exactly("0")),
    ] {
        assert_eq!(second.kernel.sysctls.get(path), Some(&value), "{path}");
    }
    assert!(second.bgp.is_none());
}

#[test]
fn a_subnet_keeps_its_own_table() {
    let prefix = |text: &str| text.parse::<IpNet>().unwrap();
    let mut host = with_default();
    // Both subnets were in a BGP network before and shared a table. Only one of them can keep this
    // table.
    host.kernel.tables = [(prefix("10.10.0.0/24"), 10_005), (prefix("10.20.0.0/24"), 10_005)].into();
    host.kernel.used_tables = [10_000].into();
    let planned = plan(&three_subnets(), &host).unwrap();
    let tables: Vec<Option<u32>> =
        planned.networks["rack"].subnets.values().map(|subnet| subnet.table).collect();
    assert_eq!(tables, [Some(10_005), Some(10_001), Some(10_002)]);
}

#[test]
fn subnets_with_equal_prefixes_share_a_table_or_are_refused() {
    let mut same = intent(
        vec![vlan(None)],
        vec![
            subnet_in("a", "10.10.0.0/24", "10.10.0.1", Some(10)),
            subnet_in("b", "10.10.0.0/24", "10.10.0.1", Some(10)),
        ],
    );
    let planned = plan(&same, &with_default()).unwrap();
    let subnets = &planned.networks["rack"].subnets;
    assert_eq!(subnets["a"], subnets["b"]);
    same.subnets[1].spec.net_id = Some(11);
    let planned = plan(&same, &with_default()).unwrap();
    assert!(planned.networks["rack"].refused_subnets["b"].contains("another VLAN"), "{planned:?}");
    assert_eq!(planned.kernel.links.keys().collect::<Vec<_>>(), ["up1.10"]);
}

#[test]
fn vlans_use_the_first_named_link_or_their_existing_link() {
    let own = |name, parent| vec![own_vlan(7, name, parent, 10)];
    type Row = (&'static str, &'static [&'static str], Option<u32>, Vec<Link>, &'static str);
    let rows: &[Row] = &[
        ("default route", &[], Some(3), vec![], "up2.10 None up2.10 does not exist yet"),
        ("named", &["none", "up1", "up2"], Some(3), vec![], "up1.10 None up1.10 does not exist yet"),
        ("nothing", &[], None, vec![], " None no link for VLANs: the host has no default route"),
        (
            "the named link does not exist",
            &["a", "b"],
            Some(3),
            vec![],
            " None no link for VLANs: none of vlanInterfaces (a, b)",
        ),
        ("the default route moved", &[], Some(3), own("up1.10", 2), "up1.10 Some(7) ok"),
        ("the default route is gone", &[], None, own("up1.10", 2), "up1.10 Some(7) ok"),
        ("the parent was renamed", &["eth0"], None, own("eth0.10", 2), "eth0.10 Some(7) ok"),
        (
            "another link is named now",
            &["up2"],
            None,
            own("up1.10", 2),
            "up2.10 None up2.10 does not exist yet",
        ),
    ];
    for (case, named, default_link, devices_there, expected) in rows {
        let mut intent = three_subnets();
        intent.subnets.truncate(1);
        intent.vlan_interfaces = named.iter().map(|name| name.parse().unwrap()).collect();
        let mut host = with_kernel(host(Vec::new()), |kernel| kernel.default_link = *default_link);
        host.kernel.links.extend(devices_there.iter().cloned());
        let found = devices(&plan(&intent, &host).unwrap());
        assert!(found[0].starts_with(&format!("a4 {expected}")), "{case}: {found:?}");
    }
}

#[test]
fn an_untagged_subnet_is_on_the_parent_with_the_hosts_routes() {
    let intent = intent(vec![vlan(Some(0))], vec![subnet_in("a", "192.0.2.0/24", "192.0.2.254", None)]);
    let planned = plan(&intent, &with_default()).unwrap();
    assert_eq!(devices(&planned), ["a up1 Some(2) ok"]);
    assert_eq!(planned.kernel.links.keys().collect::<Vec<_>>(), [SINK_NAME]);
    let own: Vec<String> = planned
        .kernel
        .rules
        .iter()
        .filter(|rule| rule.priority == 1090)
        .map(|rule| format!("{} {}", rule.from.unwrap(), rule.table))
        .collect();
    assert_eq!(own, ["192.0.2.0/32 254", "192.0.2.2/32 254"], "the host's addresses in the subnet");
    assert!(
        !planned.kernel.sysctls.contains_key("net/ipv6/conf/up1/accept_ra"),
        "the host's other traffic is untouched"
    );
}

#[test]
fn a_device_fault_is_reported_and_its_pods_wait() {
    let pod = Pod {
        network: "rack".to_owned(),
        addresses: vec!["10.10.0.5".parse().unwrap(), "2001:db8:10::5".parse().unwrap()],
        host_ifname: "tl0123456789ab".to_owned(),
        host_ifindex: 9,
        mac: [2, 0, 0, 0, 0, 1],
        attachment: Default::default(),
        extra_prefixes: Default::default(),
        migration: Default::default(),
        target_addresses: Vec::new(),
        is_virtual_machine: true,
    };
    let fault = |edit: &dyn Fn(&mut Host)| {
        let mut host = with_default();
        host.kernel.links.push(own_vlan(7, "up1.10", 2, 10));
        edit(&mut host);
        let Pod { network, addresses, attachment, .. } = pod.clone();
        let plan = plan(&three_subnets(), &host).unwrap();
        let error = join(&plan, &AttachTarget { network, addresses, attachment }).err();
        error.map(|error| error.to_string())
    };
    assert_eq!(fault(&|_| {}), None);
    type Row = (&'static str, &'static dyn Fn(&mut Host));
    let rows: &[Row] = &[
        ("Subnet a4: up1 is down: `ip link set up1 up`", &|host| host.kernel.links[1].up = false),
        ("Subnet a4: up1 has no carrier", &|host| host.kernel.links[1].running = false),
        ("Subnet a4: up1.10 is down: `ip link set up1.10 up`", &|host| host.kernel.links[4].up = false),
        ("Subnet a4: up1.10 does not exist yet", &|host| drop(host.kernel.links.pop())),
        ("Subnet a4: it is somebody's", &|host| {
            host.kernel.links[4].own = false;
            host.kernel.link_faults.insert("up1.10".to_owned(), "it is somebody's".to_owned());
        }),
    ];
    for (expected, edit) in rows {
        assert_eq!(fault(edit).as_deref(), Some(*expected));
    }

    let mut host = with_default();
    host.kernel.links.push(own_vlan(7, "up1.10", 2, 10));
    let planned = plan_pod(&plan(&three_subnets(), &host).unwrap(), &pod).unwrap();
    let proxies: Vec<(u32, String)> =
        planned.kernel.proxies.iter().map(|proxy| (proxy.ifindex, proxy.address.to_string())).collect();
    assert_eq!(
        proxies,
        [
            (7, "10.10.0.5".to_owned()),
            (7, "2001:db8:10::5".to_owned()),
            (pod.host_ifindex, "169.254.1.1".to_owned()),
            (pod.host_ifindex, "fe80::ecee:eeff:feee:eeee".to_owned())
        ]
    );
    assert_eq!(
        (planned.kernel.routes.len(), planned.kernel.neighbours.len(), planned.originate.len()),
        (2, 2, 0)
    );
}

#[test]
fn a_long_parent_name_is_shortened_for_the_vlan_id() {
    let mut host = with_default();
    host.kernel.links[1].name = "enp129s0f0np0".to_owned();
    let planned = plan(&three_subnets(), &host).unwrap();
    assert_eq!(planned.kernel.links.keys().collect::<Vec<_>>(), ["vlan2.10", "vlan2.20"]);
}

#[test]
fn pods_send_arp_only_on_request_and_without_an_address_on_the_device() {
    let with = |intent: &Intent, addresses: &[&str]| {
        let mut host = with_default();
        host.kernel.links.push(Link {
            own: true,
            kind: Some(LinkKind::Vlan { parent: 2, id: 10 }),
            ..link(9, "up1.10", addresses)
        });
        let senders = plan(intent, &host).unwrap().kernel.arp_senders;
        senders.into_iter().map(|s| format!("{} {} {}", s.device, s.ifindex, s.prefix)).collect::<Vec<_>>()
    };
    let mut intent = intent(
        vec![vlan(Some(10))],
        vec![
            subnet_in("a4", "10.10.0.0/24", "10.10.0.1", None),
            subnet_in("a6", "2001:db8:10::/64", "2001:db8:10::1", None),
        ],
    );
    assert_eq!(with(&intent, &[]), [""; 0]);
    intent.pods_send_arp = true;
    assert_eq!(with(&intent, &[]), ["up1.10 9 10.10.0.0/24"]);
    assert_eq!(with(&intent, &["192.0.2.77/24"]), ["up1.10 9 10.10.0.0/24"]);
    assert_eq!(with(&intent, &["10.10.0.250/24"]), [""; 0], "the kernel takes this address");
}
