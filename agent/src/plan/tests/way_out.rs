//! The default route of a BGP network, from sessions to the routes of table T.
//! [`crate::plan::selection`] has the table of the rule itself.

use trunkline_bgp::types::FamilySet;

use super::*;

const V4: Family = Family::Ipv4Unicast;
const V6: Family = Family::Ipv6Unicast;

/// An established peer that offers default routes of these families and has sent all its routes.
fn offering(peer: &str, v6: &str, families: &[Family]) -> Session {
    let now = families.iter().copied().collect();
    let offer = PeerDefaultRoutes { now, ever: now, withdrawn: FamilySet::EMPTY, complete: FamilySet::ALL };
    Session { offer, ..session(peer, true, Some(v6)) }
}

#[test]
fn each_family_follows_the_default_routes_of_its_own() {
    let sessions = vec![
        offering("192.0.2.1", "2001:db8:0:1::2", &[V4, V6]),
        offering("192.0.2.3", "2001:db8:0:2::2", &[V4]),
    ];
    let plan = plan(&usual(), &host(sessions)).unwrap();
    assert_eq!(gateways(&plan, "0.0.0.0/0"), ["192.0.2.1", "192.0.2.3"]);
    assert_eq!(gateways(&plan, "::/0"), ["2001:db8:0:1::2"]);
    assert_eq!(plan.ways_out[&V6].left_out[0].peer, "192.0.2.3");
    assert!(plan.ways_out[&V4].left_out.is_empty());
    assert_eq!(plan.kernel.way_out, Some(10_000));
}

#[test]
fn a_peer_without_traffic_offers_no_default_route() {
    let peers = serde_json::json!([
        {"asn": 65001, "address": "192.0.2.1", "doesNotRouteTraffic": true}, {"asn": 65001, "address": "192.0.2.3"},
    ]);
    let intent = intent(
        vec![bgp("rack", 65100, peers)],
        vec![subnet("v4", "rack", "10.1.0.0/16", serde_json::json!({}))],
    );
    let sessions =
        vec![offering("192.0.2.1", "2001:db8:0:1::2", &[V4]), offering("192.0.2.3", "2001:db8:0:2::2", &[])];
    let plan = plan(&intent, &host(sessions)).unwrap();
    assert_eq!(gateways(&plan, "0.0.0.0/0"), ["192.0.2.3"]);
}

#[test]
fn alternate_paths_keep_a_peer_that_withdrew_its_default_route() {
    let sessions = vec![
        offering("192.0.2.1", "2001:db8:0:1::2", &[V4, V6]),
        offering("192.0.2.3", "2001:db8:0:2::2", &[]),
    ];
    let plan = plan(&usual(), &host(sessions)).unwrap();
    let by_up1 = RouteKey { table: ALTERNATE_TABLE + 2, prefix: "10.1.0.0/16".parse().unwrap() };
    let hops = plan.kernel.routes[&by_up1].hops();
    assert_eq!(hops[0].gateway, "192.0.2.3".parse().ok(), "the peer still has the rack's pods");
}

#[test]
fn the_kernels_next_hops_stay_until_their_peer_is_back() {
    let hops = vec![Hop::by("192.0.2.1".parse().unwrap(), 2)];
    let former = [(key(10_000, "0.0.0.0/0"), RouteTarget::via(hops.clone()))].into();
    let back = vec![offering("192.0.2.3", "2001:db8:0:2::2", &[])];
    let tables = [("10.1.0.0/16".parse().unwrap(), 10_000)].into();
    let waiting = with_kernel(host(back), |kernel| (kernel.former, kernel.tables) = (former, tables));
    let plan_of = |host: &Host| plan(&usual(), host).unwrap();
    assert_eq!(plan_of(&waiting).kernel.routes[&key(10_000, "0.0.0.0/0")], RouteTarget::via(hops));
    let released = with_kernel(waiting, |kernel| kernel.former = BTreeMap::new());
    assert_eq!(gateways(&plan_of(&released), "0.0.0.0/0"), ["192.0.2.3"]);
}
