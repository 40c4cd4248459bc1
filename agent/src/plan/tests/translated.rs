//! Translated connections: links and routers on the left, marks, return tables and rules on the right.

use super::vlan::{own_vlan, three_subnets, with_default};
use super::*;

/// Rules that match marks: preference, destination, value and mask, table.
fn marked(plan: &Plan, family: IpFamily) -> Vec<String> {
    let shown = |rule: &Rule| {
        let Mark { value, mask } = rule.mark?;
        let to = rule.to.map_or("-".to_owned(), |to| to.to_string());
        Some(format!("{} {to} {value:x}/{mask:x} {}", rule.priority, rule.table))
    };
    plan.kernel.rules.iter().filter(|rule| rule.family == family).filter_map(shown).collect()
}

fn gateway(family: IpFamily, gateway: &str, ifindex: u32) -> (IpFamily, Hop) {
    (family, Hop::by(gateway.parse().unwrap(), ifindex))
}

/// Two uplinks with sessions, and a management link with the default route of the host.
fn three_links() -> Host {
    let sessions =
        vec![session("192.0.2.1", true, Some("2001:db8:0:1::ff")), session("192.0.2.3", true, None)];
    with_kernel(host(sessions), |kernel| kernel.gateways = [gateway(IpFamily::V4, "10.255.0.1", 4)].into())
}

#[test]
fn each_link_with_a_router_has_a_number_and_a_table() {
    let plan = plan(&usual(), &three_links()).unwrap();
    let links: Vec<(&str, u32)> =
        plan.kernel.translated.links.iter().map(|(name, number)| (name.as_str(), *number)).collect();
    assert_eq!(links, [("mgmt", 3), ("up1", 1), ("up2", 2)]);
    assert_eq!(
        marked(&plan, IpFamily::V4),
        [
            "1024 - 20000/1e0000 1170002",
            "1024 - 40000/1e0000 1170003",
            "1024 - 60000/1e0000 1170004",
            "1025 - 20000/1e0000 254",
            "1025 - 40000/1e0000 254",
            "1025 - 60000/1e0000 254",
            "1025 - 1e0000/1e0000 254",
            "1028 - 200000/200000 10000",
        ]
    );
    let way = |table, prefix| match &plan.kernel.routes.get(&key(table, prefix)) {
        Some(RouteTarget::Via(hops)) => format!("{:?} {:?}", hops[0].gateway, hops[0].ifindex),
        other => format!("{other:?}"),
    };
    assert_eq!(way(1_170_002, "0.0.0.0/0"), "Some(192.0.2.1) Some(2)");
    assert_eq!(way(1_170_002, "192.0.2.0/31"), "None Some(2)", "on the link itself");
    assert_eq!(way(1_170_002, "::/0"), "Some(2001:db8:0:1::ff) Some(2)", "as the peer announces");
    assert_eq!(way(1_170_003, "0.0.0.0/0"), "Some(192.0.2.3) Some(3)");
    assert_eq!(way(1_170_004, "0.0.0.0/0"), "Some(10.255.0.1) Some(4)");
    assert_eq!(way(1_170_002, "fe80::/64"), "None", "this node has no route to hosts there");
}

#[test]
fn a_number_stays_with_its_link() {
    let mut host = three_links();
    host.kernel.link_numbers = [(4, 1), (2, 9), (77, 2)].into();
    let plan = plan(&usual(), &host).unwrap();
    assert_eq!(
        plan.kernel.translated.links,
        [("mgmt".to_owned(), 1), ("up1".to_owned(), 9), ("up2".to_owned(), 2)].into(),
        "read from the rules; 77 is gone"
    );
}

#[test]
fn links_beyond_the_last_number_share_one() {
    let mut host = three_links();
    for index in 10..30 {
        host.kernel.links.push(link(index, &format!("eth{index}"), &[&format!("10.200.{index}.2/24")]));
        host.kernel.gateways.insert(gateway(IpFamily::V4, &format!("10.200.{index}.1"), index));
    }
    let plan = plan(&usual(), &host).unwrap();
    assert_eq!(plan.kernel.translated.links.len(), 14);
    assert!(plan.kernel.translated.links.values().all(|number| (1..15).contains(number)));
}

#[test]
fn in_a_vlan_network_each_subnet_has_its_own_table() {
    let mut host = with_default();
    host.kernel.links.extend([own_vlan(7, "up1.10", 2, 10), own_vlan(8, "up1.20", 2, 20)]);
    let plan = plan(&three_subnets(), &host).unwrap();
    let transit: Vec<String> =
        marked(&plan, IpFamily::V4).into_iter().filter(|rule| rule.starts_with("1028")).collect();
    assert_eq!(transit, ["1028 10.10.0.0/24 200000/200000 10000", "1028 10.20.0.0/24 200000/200000 10002"]);
    let router = Hop { onlink: true, ..Hop::by("10.10.0.1".parse().unwrap(), 7) };
    let back = &plan.kernel.routes[&key(1_170_007, "0.0.0.0/0")];
    assert_eq!(*back, RouteTarget::via(vec![router]), "by the router of the VLAN");
}
