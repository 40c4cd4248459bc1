//! The path of a packet as text: each stage with its rules, its route and its next hop.

use std::fmt::Write;

use trunkline_api::control::{PacketPath, PathHop, Place, RouteKind, RouteLookup};
use trunkline_datapath::netlink::lookup::table_name;

use crate::table::Columns;

/// The whole path.
pub fn show(path: &PacketPath) -> String {
    let from = path.source.map_or_else(|| "no address".to_owned(), |source| source.to_string());
    let mut text = format!("from {from} to {}\n", path.destination);
    for part in &path.forth {
        let lead = match part.destination == path.destination {
            true => String::new(),
            false => format!("in a tunnel to {}, ", part.destination),
        };
        stage(&mut text, &lead, part, true);
    }
    let _ = writeln!(text, "\n→ {}", path.end);
    if path.masqueraded {
        text.push_str("  from an address of the node (autoNatOutgoing)\n");
    }
    for part in &path.back {
        stage(&mut text, "the return path, ", part, false);
    }
    if !path.advertised_to.is_empty() {
        let _ = writeln!(text, "\n{from} is advertised to {}", path.advertised_to.join(", "));
    }
    text
}

/// `forth`: marks the selected next hop if there are several.
fn stage(text: &mut String, lead: &str, stage: &RouteLookup, forth: bool) {
    let place = match stage.place {
        Place::Pod => "in the pod",
        Place::Node | Place::Unknown => "on the node",
    };
    let came = stage.interface.as_ref().map(|name| format!(", in by {name}")).unwrap_or_default();
    let _ = writeln!(text, "\n{lead}{place}{came}");
    let mut columns = Columns::new(&["  PREF", "RULE", "STANDING"]);
    for rule in &stage.rules {
        columns.row([format!("  {}", rule.priority), rule.rule.clone(), rule.standing.clone()]);
    }
    if !stage.rules.is_empty() {
        text.push_str(&columns.render());
    }
    if let Some(route) = &stage.route {
        let default =
            if route.prefix.prefix_len() == 0 { "default".to_owned() } else { route.prefix.to_string() };
        let kind = if route.kind == RouteKind::Unicast { String::new() } else { format!("{} ", route.kind) };
        let _ = writeln!(text, "  route {kind}{default} in table {}", table_name(route.table));
        for next in &route.hops {
            let mark = if forth && next.taken && route.hops.len() > 1 {
                ", selected for these addresses"
            } else {
                ""
            };
            let _ = writeln!(text, "    {}{mark}", hop(next));
        }
    }
    if let Some(refused) = &stage.refused {
        let _ = writeln!(text, "  the kernel rejects the packet: {refused}");
    }
}

/// `by 10.1.0.1 on eth1, MTU 1500, at 02:00:00:00:00:01 (reachable)`.
fn hop(hop: &PathHop) -> String {
    let by = hop.gateway.map(|gateway| format!("by {gateway} ")).unwrap_or_default();
    let link = hop.link.as_ref().map(|link| format!(" ({link})")).unwrap_or_default();
    let neighbour = match (&hop.mac, &hop.neighbour) {
        (Some(mac), Some(state)) => format!("at {mac} ({state})"),
        (None, Some(state)) => format!("no link-layer address ({state})"),
        (_, None) => "no neighbour entry yet".to_owned(),
    };
    let pod = hop.pod.as_ref().map(|pod| format!(", pod {pod}")).unwrap_or_default();
    format!("{by}on {}{link}, MTU {}, {neighbour}{pod}", hop.interface, hop.mtu)
}

#[cfg(test)]
mod tests {
    use trunkline_api::control::{PathRoute, PathRule};

    use super::*;

    fn hop(gateway: Option<&str>, interface: &str, neighbour: Option<(&str, &str)>, taken: bool) -> PathHop {
        PathHop {
            gateway: gateway.map(|gateway| gateway.parse().unwrap()),
            interface: interface.to_owned(),
            link: None,
            pod: None,
            mtu: 1500,
            mac: neighbour.map(|(mac, _)| mac.to_owned()),
            neighbour: neighbour.map(|(_, state)| state.to_owned()),
            taken,
        }
    }

    fn rule(priority: u32, rule: &str, standing: &str) -> PathRule {
        PathRule { priority, rule: rule.to_owned(), standing: standing.to_owned() }
    }

    #[test]
    fn packet_path_is_shown_as_text() {
        let walked = PacketPath {
            source: Some("10.201.0.2".parse().unwrap()),
            destination: "192.0.2.10".parse().unwrap(),
            forth: vec![
                RouteLookup {
                    place: Place::Pod,
                    interface: None,
                    source: Some("10.201.0.2".parse().unwrap()),
                    destination: "192.0.2.10".parse().unwrap(),
                    rules: vec![rule(32_766, "from all lookup main", "decides")],
                    route: Some(PathRoute {
                        prefix: "0.0.0.0/0".parse().unwrap(),
                        table: 254,
                        kind: RouteKind::Unicast,
                        hops: vec![hop(
                            Some("169.254.1.1"),
                            "eth0",
                            Some(("ee:ee:ee:ee:ee:ee", "permanent")),
                            true,
                        )],
                    }),
                    refused: None,
                },
                RouteLookup {
                    place: Place::Node,
                    interface: Some("tl0123456789ab".to_owned()),
                    source: Some("10.201.0.2".parse().unwrap()),
                    destination: "192.0.2.10".parse().unwrap(),
                    rules: vec![
                        rule(1000, "from all lookup 39999", "no route"),
                        rule(1100, "from 10.201.0.0/24 lookup 10000", "decides"),
                    ],
                    route: Some(PathRoute {
                        prefix: "0.0.0.0/0".parse().unwrap(),
                        table: 10_000,
                        kind: RouteKind::Unicast,
                        hops: vec![
                            hop(Some("10.1.0.1"), "eth1", Some(("02:00:00:00:00:01", "reachable")), true),
                            hop(Some("10.2.0.1"), "eth2", None, false),
                        ],
                    }),
                    refused: None,
                },
            ],
            end: "out by eth1 to 10.1.0.1".to_owned(),
            masqueraded: true,
            back: vec![RouteLookup {
                place: Place::Node,
                interface: Some("eth1".to_owned()),
                source: Some("192.0.2.10".parse().unwrap()),
                destination: "10.201.0.2".parse().unwrap(),
                rules: Vec::new(),
                route: None,
                refused: Some("there is no route".to_owned()),
            }],
            advertised_to: vec!["10.1.0.1".to_owned(), "10.2.0.1".to_owned()],
        };
        let expected = "\
from 10.201.0.2 to 192.0.2.10

in the pod
  PREF   RULE                  STANDING
  32766  from all lookup main  decides
  route default in table main
    by 169.254.1.1 on eth0, MTU 1500, at ee:ee:ee:ee:ee:ee (permanent)

on the node, in by tl0123456789ab
  PREF  RULE                             STANDING
  1000  from all lookup 39999            no route
  1100  from 10.201.0.0/24 lookup 10000  decides
  route default in table 10000
    by 10.1.0.1 on eth1, MTU 1500, at 02:00:00:00:00:01 (reachable), selected for these addresses
    by 10.2.0.1 on eth2, MTU 1500, no neighbour entry yet

→ out by eth1 to 10.1.0.1
  from an address of the node (autoNatOutgoing)

the return path, on the node, in by eth1
  the kernel rejects the packet: there is no route

10.201.0.2 is advertised to 10.1.0.1, 10.2.0.1
";
        assert_eq!(show(&walked), expected);
    }
}
