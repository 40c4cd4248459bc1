//! Packets for no local pod: links and sessions on the left, routes to the counting device on the
//! right.

use super::*;

/// The host once the device of the first plan exists.
fn with_sink(intent: &Intent, mut host: Host) -> Host {
    let planned_link = plan(intent, &host).unwrap().kernel.links[SINK_NAME].clone();
    assert_eq!(
        (planned_link.kind, planned_link.alias.as_str(), planned_link.mtu),
        (LinkKind::Sink, SINK_ALIAS, 65_535)
    );
    host.kernel.links.push(Link { kind: Some(planned_link.kind), own: true, ..link(50, SINK_NAME, &[]) });
    host
}

/// The target of rule 1029 of a link for a Subnet: a gateway, or the device of this index.
fn ways(plan: &Plan, prefix: &str) -> Vec<String> {
    let family = IpFamily::of(&prefix.parse::<IpNet>().unwrap());
    let rules = plan.kernel.rules.iter().filter(|rule| rule.priority == 1029 && rule.family == family);
    let way = |hop: &Hop| match hop.gateway {
        Some(gateway) => gateway.to_string(),
        None => format!("device {}", hop.ifindex.unwrap_or_default()),
    };
    rules
        .map(|rule| {
            let hops = plan.kernel.routes.get(&key(rule.table, prefix)).map_or(&[][..], RouteTarget::hops);
            let ways: Vec<String> = hops.iter().map(way).collect();
            format!("{} {}: {}", rule.iif.as_deref().unwrap_or_default(), rule.table, ways.join(" "))
        })
        .collect()
}

#[test]
fn without_the_device_the_blackholes_drop() {
    let plan = plan(&usual(), &host(Vec::new())).unwrap();
    let subnets = ["10.1.0.0/16", "2001:db8:1::/64"].map(|prefix| prefix.parse().unwrap());
    assert_eq!(plan.kernel.unassigned.subnets, subnets.into());
    assert_eq!(ways(&plan, "10.1.0.0/16"), ["up1 2170002: ", "up2 2170003: "]);
}

#[test]
fn one_uplink_leads_all_subnets_to_the_device() {
    let one = serde_json::json!([{"asn": 65001, "address": "192.0.2.1"}]);
    let mut intent = usual();
    intent.networks = vec![bgp("rack", 65100, one)];
    let host = with_sink(&intent, host(vec![session("192.0.2.1", true, None)]));
    let plan = plan(&intent, &host).unwrap();
    for prefix in ["10.1.0.0/16", "2001:db8:1::/64"] {
        assert_eq!(ways(&plan, prefix), ["up1 39996: device 50"]);
        let hole = plan.kernel.routes.get(&key(39_998, prefix));
        assert_eq!(hole, Some(&RouteTarget::Blackhole), "the blackhole drops while the device is missing");
    }
}

#[test]
fn an_alternate_path_comes_first() {
    let intent = usual();
    let sessions = vec![session("192.0.2.1", true, None), session("192.0.2.3", false, None)];
    let plan = plan(&intent, &with_sink(&intent, host(sessions))).unwrap();
    assert_eq!(ways(&plan, "10.1.0.0/16"), ["up1 2170002: device 50", "up2 2170003: 192.0.2.1"]);
}

#[test]
fn a_foreign_device_is_not_used() {
    let intent = usual();
    let mut host = host(Vec::new());
    host.kernel.links.push(link(50, SINK_NAME, &[]));
    assert_eq!(ways(&plan(&intent, &host).unwrap(), "10.1.0.0/16"), ["up1 2170002: ", "up2 2170003: "]);
}
