//! Alternate paths: sessions on the left, rules and routes on the right.

use super::*;

fn both_up() -> Vec<Session> {
    vec![
        session("192.0.2.1", true, Some("2001:db8:0:1::2")),
        session("192.0.2.3", true, Some("2001:db8:0:2::2")),
    ]
}

/// Alternate rules of IPv4: the link, and the next hops in its table.
fn paths(plan: &Plan, prefix: &str) -> Vec<(String, Vec<String>)> {
    let family = IpFamily::of(&prefix.parse::<IpNet>().unwrap());
    let rules = plan.kernel.rules.iter().filter(|rule| rule.priority == 1029 && rule.family == family);
    let of = |rule: &Rule| {
        let hops = plan.kernel.routes.get(&key(rule.table, prefix)).map_or(&[][..], RouteTarget::hops);
        let gateways = hops.iter().map(|hop| hop.gateway.unwrap().to_string()).collect();
        (rule.iif.clone().unwrap(), gateways)
    };
    rules.map(of).collect()
}

fn expected(paths: &[(&str, &[&str])]) -> Vec<(String, Vec<String>)> {
    let owned = |gateways: &[&str]| gateways.iter().map(|&gateway| gateway.to_owned()).collect();
    paths.iter().map(|(link, gateways)| ((*link).to_owned(), owned(gateways))).collect()
}

#[test]
fn packets_for_a_remote_pod_leave_by_the_other_router() {
    let plan = plan(&usual(), &host(both_up())).unwrap();
    assert_eq!(paths(&plan, "10.1.0.0/16"), expected(&[("up1", &["192.0.2.3"]), ("up2", &["192.0.2.1"])]));
    assert_eq!(
        paths(&plan, "2001:db8:1::/64"),
        expected(&[("up1", &["2001:db8:0:2::2"]), ("up2", &["2001:db8:0:1::2"])])
    );
    let rules = &plan.kernel.alternate;
    assert_eq!(rules.uplinks, ["up1", "up2"].map(str::to_owned).into());
    let subnets = ["10.1.0.0/16", "2001:db8:1::/64"].map(|prefix| prefix.parse().unwrap());
    assert_eq!(rules.attracted, subnets.into());
}

#[test]
fn sessions_change_routes_and_no_rules() {
    let before = plan(&usual(), &host(both_up())).unwrap();
    let after = plan(&usual(), &host(vec![session("192.0.2.3", true, None)])).unwrap();
    assert_eq!(paths(&after, "10.1.0.0/16"), expected(&[("up1", &["192.0.2.3"]), ("up2", &[])]));
    assert_eq!(after.kernel.alternate, before.kernel.alternate);
    let links = |plan| paths(plan, "10.1.0.0/16").into_iter().map(|(link, _)| link).collect::<Vec<_>>();
    assert_eq!(links(&after), links(&before));
}

#[test]
fn one_uplink_has_no_alternate_path() {
    let one = serde_json::json!([
        {"asn": 65001, "address": "192.0.2.1"}, {"asn": 65001, "address": "2001:db8:0:1::2"},
    ]);
    let mut intent = usual();
    intent.networks = vec![bgp("rack", 65100, one)];
    let sessions = vec![session("192.0.2.1", true, None), session("2001:db8:0:1::2", true, None)];
    let plan = plan(&intent, &host(sessions)).unwrap();
    assert_eq!(paths(&plan, "10.1.0.0/16"), []);
    assert!(plan.kernel.alternate.is_empty());
}

#[test]
fn distant_routers_and_routers_without_traffic_are_not_used() {
    let peers = serde_json::json!([
        {"asn": 65001, "address": "192.0.2.1"},
        {"asn": 65001, "address": "192.0.2.3", "doesNotRouteTraffic": true},
        {"asn": 65001, "address": "198.51.100.1", "ebgpMultihop": 3, "sourceAddress": "192.0.2.2"},
    ]);
    let mut intent = usual();
    intent.networks = vec![bgp("rack", 65100, peers)];
    let sessions = ["192.0.2.1", "192.0.2.3", "198.51.100.1"].map(|peer| session(peer, true, None));
    let plan = plan(&intent, &host(sessions.to_vec())).unwrap();
    assert_eq!(paths(&plan, "10.1.0.0/16"), []);
}

#[test]
fn only_shared_subnets_have_alternate_paths() {
    let mut intent = usual();
    intent.networks.push(network("global", "GlobalBGP/GlobalBGP", serde_json::json!({})));
    intent.subnets.push(subnet("global", "global", "10.7.0.0/16", serde_json::json!({})));
    let plan = plan(&intent, &host(both_up())).unwrap();
    assert_eq!(plan.networks["global"].subnets["global"].table, Some(10_000), "the network is served");
    assert_eq!(paths(&plan, "10.7.0.0/16"), expected(&[("up1", &[]), ("up2", &[])]));
    assert_eq!(plan.kernel.alternate.attracted.len(), 2);
}
