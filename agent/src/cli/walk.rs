//! The walk of a packet, as one would draw it: each place with the rules that it goes through, the route and the next hop.

use std::fmt::Write;

use trunkline_api::control::{Stage, Walk, WalkHop};

use super::table::Columns;
use crate::kernel::netlink::lookup::table_name;

/// All of it.
pub fn walk(walk: &Walk) -> String {
    let from = walk.source.map_or_else(|| "no address".to_owned(), |source| source.to_string());
    let mut text = format!("from {from} to {}\n", walk.destination);
    for part in &walk.forth {
        stage(&mut text, "", part, true);
    }
    let _ = writeln!(text, "\n→ {}", walk.end);
    if walk.masqueraded {
        text.push_str("  from an address of the node (autoNatOutgoing)\n");
    }
    for part in &walk.back {
        stage(&mut text, "the way back, ", part, false);
    }
    if !walk.advertised_to.is_empty() {
        let _ = writeln!(text, "\n{from} is advertised to {}", walk.advertised_to.join(", "));
    }
    text
}

/// `forth`: of several next hops the one that is taken is marked.
fn stage(text: &mut String, lead: &str, stage: &Stage, forth: bool) {
    let place = match stage.place.as_str() {
        "pod" => "in the pod",
        _ => "on the node",
    };
    let came = stage.interface.as_ref().map(|name| format!(", in by {name}")).unwrap_or_default();
    let _ = writeln!(text, "\n{lead}{place}{came}");
    let mut columns = Columns::new(&["  PREF", "RULE", "STANDING"]);
    for rule in &stage.rules {
        columns.row([format!("  {}", rule.priority), rule.rule.clone(), rule.standing.clone()]);
    }
    text.push_str(&columns.render());
    if let Some(route) = &stage.route {
        let default =
            if route.prefix.prefix_len() == 0 { "default".to_owned() } else { route.prefix.to_string() };
        let kind = if route.kind == "unicast" { String::new() } else { format!("{} ", route.kind) };
        let _ = writeln!(text, "  route {kind}{default} in table {}", table_name(route.table));
        for next in &route.hops {
            let mark =
                if forth && next.taken && route.hops.len() > 1 { ", taken for these addresses" } else { "" };
            let _ = writeln!(text, "    {}{mark}", hop(next));
        }
    }
    if let Some(refused) = &stage.refused {
        let _ = writeln!(text, "  the kernel refuses it: {refused}");
    }
}

/// `by 10.1.0.1 on eth1, MTU 1500, at 02:00:00:00:00:01 (reachable)`.
fn hop(hop: &WalkHop) -> String {
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
