//! `trunkline services`: service addresses on this node.

use std::fmt::Write;
use std::path::Path;

use ipnet::IpNet;
use trunkline_api::control::{AdvertisedPrefix, AdvertisementState, Explanation, Query, ServiceView};
use trunkline_api::service::AddressKind;

use crate::client;
use crate::table::{Columns, duration};

/// All service addresses.
pub fn table(views: &[ServiceView]) -> String {
    let mut columns =
        Columns::new(&["NAMESPACE", "NAME", "ADDRESS", "POLICY", "ENDPOINTS", "STATE", "REASON"]);
    for view in views {
        columns.row([
            view.namespace.clone(),
            view.name.clone(),
            view.address.to_string(),
            view.policy.to_string(),
            format!("{}/{}", view.local_ready, view.ready),
            view.state.to_string(),
            reason(view).to_owned(),
        ]);
    }
    columns.render()
}

/// The text of a view without the state, which has its own column.
pub(crate) fn reason(view: &ServiceView) -> &str {
    let text = view.text.as_str();
    let rest = text.strip_prefix("withheld: ").or_else(|| text.strip_prefix("advertised; "));
    rest.unwrap_or(if text == "advertised" { "" } else { text })
}

/// Requests the results of export for the advertised prefixes of these addresses.
pub fn explain(socket: &Path, views: &[ServiceView]) -> anyhow::Result<Vec<Explanation>> {
    let mut prefixes: Vec<IpNet> =
        views.iter().flat_map(|view| &view.prefixes).map(|advertised| advertised.prefix).collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    prefixes.into_iter().map(|prefix| client::query(socket, Query::Explain { prefix })).collect()
}

/// Service addresses in detail: state, reason, prefixes, and the result for each peer.
pub fn details(views: &[ServiceView], explanations: &[Explanation]) -> String {
    let blocks: Vec<String> = views.iter().map(|view| detail(view, explanations)).collect();
    blocks.join("\n")
}

fn detail(view: &ServiceView, explanations: &[Explanation]) -> String {
    let mut text = format!("{} {}\n", view.title(), view.address);
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "  {name:<10} {value}");
    };
    let pool = view.pool.as_ref().map(|pool| format!(" of ServicePool {pool}")).unwrap_or_default();
    line("kind", &format!("{}{pool}", view.kind.name()));
    let policy = match view.kind {
        AddressKind::Cluster => "internalTrafficPolicy",
        AddressKind::LoadBalancer | AddressKind::External => "externalTrafficPolicy",
    };
    line("policy", &format!("{policy} {}", view.policy));
    line("endpoints", &format!("{} ready on this node, {} on all nodes", view.local_ready, view.ready));
    line("state", &format!("{} for {}", view.state, duration(view.since_seconds)));
    if view.state != AdvertisementState::Advertised || !reason(view).is_empty() {
        line("reason", reason(view));
    }
    for advertised in &view.prefixes {
        line("prefix", &prefix(advertised));
    }
    let nodes = match view.nodes.as_deref() {
        None => "not known: the agent cannot list the NodeServices, and its log has the reason".to_owned(),
        Some([]) => "none".to_owned(),
        Some(nodes) => nodes.join(", "),
    };
    line("nodes", &nodes);
    for advertised in &view.prefixes {
        let Some(explanation) = explanations.iter().find(|of| of.prefix == advertised.prefix) else {
            continue;
        };
        if explanation.peers.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n  {}", advertised.prefix);
        let mut columns = Columns::new(&["  PEER", "STATE", "REASON"]);
        for peer in &explanation.peers {
            columns.row([format!("  {}", peer.peer), peer.standing.to_string(), peer.reason.clone()]);
        }
        text.push_str(&columns.render());
    }
    text
}

/// `10.9.0.1/32 by ServiceAdvertisement a, b to 10.0.0.1, link bandwidth 3 Gbit/s`
fn prefix(advertised: &AdvertisedPrefix) -> String {
    let by = match advertised.advertisements.as_slice() {
        [] => "by default".to_owned(),
        names => format!("by ServiceAdvertisement {}", names.join(", ")),
    };
    let peers = advertised.peers.as_ref().map_or_else(|| "all peers".to_owned(), |peers| peers.join(", "));
    let megabits = |octets: f32| (f64::from(octets) * 8.0 / 1e6).round();
    let bandwidth =
        advertised.link_bandwidth.map(|octets| format!(", link bandwidth {} Gbit/s", megabits(octets) / 1e3));
    format!("{} {by} to {peers}{}", advertised.prefix, bandwidth.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use trunkline_api::control::{ExplainedPeer, ExportStanding, WithheldReason};
    use trunkline_api::service::TrafficPolicy;

    use super::*;

    fn view(state: AdvertisementState, reason: Option<WithheldReason>, text: &str) -> ServiceView {
        ServiceView {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            address: "10.9.0.1".parse().unwrap(),
            kind: AddressKind::LoadBalancer,
            policy: TrafficPolicy::Local,
            pool: Some("p1".to_owned()),
            state,
            reason,
            text: text.to_owned(),
            prefixes: Vec::new(),
            local_ready: 0,
            ready: 3,
            since_seconds: 185,
            nodes: None,
        }
    }

    #[test]
    fn the_table_has_state_and_reason_once() {
        let withheld = view(
            AdvertisementState::Withheld,
            Some(WithheldReason::NoLocalEndpoint),
            "withheld: no endpoint on this node is ready",
        );
        let advertised = view(AdvertisementState::Advertised, None, "advertised");
        assert_eq!(
            table(&[withheld, advertised]),
            "NAMESPACE  NAME  ADDRESS   POLICY  ENDPOINTS  STATE       REASON\n\
             default    web   10.9.0.1  Local   0/3        withheld    no endpoint on this node is ready\n\
             default    web   10.9.0.1  Local   0/3        advertised  -\n"
        );
    }

    #[test]
    fn details_show_prefixes_and_peers() {
        let prefix: IpNet = "10.9.0.1/32".parse().unwrap();
        let advertised = AdvertisedPrefix {
            prefix,
            advertisements: vec!["a".to_owned()],
            peers: Some(vec!["10.0.0.1".to_owned()]),
            link_bandwidth: Some(375_000_000.0),
        };
        let text = "advertised; kube-proxy has no rules for TCP port 443 of default/web yet";
        let view = ServiceView {
            prefixes: vec![advertised],
            nodes: Some(vec!["n1".to_owned(), "n2".to_owned()]),
            ..view(AdvertisementState::Advertised, None, text)
        };
        let peer = ExplainedPeer {
            peer: "10.0.0.1".to_owned(),
            from: None,
            standing: ExportStanding::Advertised,
            reason: String::new(),
            export: None,
        };
        let explanation =
            Explanation { prefix, covered_by: None, paths: Vec::new(), peers: vec![peer], way_out: None };
        assert_eq!(
            details(&[view], &[explanation]),
            "default/web 10.9.0.1\n\
             \x20 kind       LoadBalancer of ServicePool p1\n\
             \x20 policy     externalTrafficPolicy Local\n\
             \x20 endpoints  0 ready on this node, 3 on all nodes\n\
             \x20 state      advertised for 3m05s\n\
             \x20 reason     kube-proxy has no rules for TCP port 443 of default/web yet\n\
             \x20 prefix     10.9.0.1/32 by ServiceAdvertisement a to 10.0.0.1, link bandwidth 3 Gbit/s\n\
             \x20 nodes      n1, n2\n\
             \n\
             \x20 10.9.0.1/32\n\
             \x20 PEER      STATE       REASON\n\
             \x20 10.0.0.1  advertised  -\n"
        );
    }
}
