//! `hairpin`: networks on the left, rules and routes on the right.

use super::vlan::{own_vlan, three_subnets, with_default};
use super::*;

fn hairpin(mut intent: Intent) -> Intent {
    intent.networks[0].spec.config.get_or_insert_default().hairpin = true;
    intent
}

/// The rules before the one to local pods.
fn early(plan: &Plan) -> Vec<String> {
    let shown = |rule: &Rule| {
        let prefix = |prefix: Option<IpNet>| prefix.map_or("-".to_owned(), |prefix| prefix.to_string());
        let (from, to, iif) = (prefix(rule.from), prefix(rule.to), rule.iif.as_deref().unwrap_or("-"));
        format!(
            "{} {from} {to} {iif} {:x} {}",
            rule.priority,
            rule.mark.map_or(0, |mark| mark.value),
            rule.table
        )
    };
    plan.kernel.rules.iter().filter(|rule| rule.priority < 1000).map(shown).collect()
}

#[test]
fn in_a_vlan_the_own_subnet_uses_its_router() {
    let mut host = with_default();
    host.kernel.links.extend([own_vlan(7, "up1.10", 2, 10), own_vlan(8, "up1.20", 2, 20)]);
    let plan = plan(&hairpin(three_subnets()), &host).unwrap();
    assert_eq!(
        early(&plan),
        [
            "960 - - - 10000 39999",
            "970 - - lo 0 39999",
            "970 - - up1.10 0 39999",
            "970 - - up1.20 0 39999",
            "980 10.10.0.0/24 10.10.0.0/24 - 0 39997",
            "980 10.10.0.0/24 10.20.0.0/24 - 0 10000",
            "980 10.20.0.0/24 10.10.0.0/24 - 0 10002",
            "980 10.20.0.0/24 10.20.0.0/24 - 0 39997",
            "960 - - - 10000 39999",
            "970 - - lo 0 39999",
            "970 - - up1.10 0 39999",
            "970 - - up1.20 0 39999",
            "980 2001:db8:10::/64 2001:db8:10::/64 - 0 39997",
        ]
    );
    let router = Hop { onlink: true, ..Hop::by("10.20.0.1".parse().unwrap(), 8) };
    assert_eq!(plan.kernel.routes[&key(39_997, "10.20.0.0/24")], RouteTarget::via(vec![router]));
    assert!(plan.kernel.translated.hairpin);
}

#[test]
fn in_bgp_hairpin_uses_the_networks_table() {
    let plan = plan(&hairpin(usual()), &host(Vec::new())).unwrap();
    let between = early(&plan).into_iter().filter(|rule| rule.starts_with("980"));
    assert_eq!(
        between.collect::<Vec<_>>(),
        ["980 10.1.0.0/16 10.1.0.0/16 - 0 10000", "980 2001:db8:1::/64 2001:db8:1::/64 - 0 10000"]
    );
    assert!(plan.kernel.routes.keys().all(|key| key.table != 39_997));
    assert!(
        early(&super::plan(&usual(), &host(Vec::new())).unwrap()).is_empty(),
        "without `hairpin` there are no such rules"
    );
}
