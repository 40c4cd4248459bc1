//! The next hops of pods' default routes as text for people.

use std::fmt::Write;

use trunkline_api::control::{DefaultRouteBasis, DefaultRouteStatus, next_hops_in_words};

/// Lines of `status`, each with its heading.
pub(crate) fn lines(way: &DefaultRouteStatus) -> Vec<(&'static str, String)> {
    let mut lines = vec![(
        "next hops",
        format!("{} by {}: {}", way.family, next_hops_in_words(&way.installed), basis(way.basis)),
    )];
    lines.extend(differs(way).map(|text| ("", text)));
    lines.extend(left_out(way).map(|text| ("", text)));
    lines
}

/// The part of `routes --explain` about the kernel's default route.
pub(crate) fn explanation(way: &DefaultRouteStatus) -> String {
    let mut text = format!(
        "next hops of pods' packets in the kernel (table {}): {}\n{}\n",
        way.table,
        next_hops_in_words(&way.installed),
        basis(way.basis)
    );
    for line in differs(way).into_iter().chain(left_out(way)) {
        let _ = writeln!(text, "{line}");
    }
    text
}

fn basis(basis: DefaultRouteBasis) -> &'static str {
    match basis {
        DefaultRouteBasis::Advertised => "the peers that advertise a default route",
        DefaultRouteBasis::Configured => {
            "all configured peers that are established, because no peer advertises a default route"
        }
        DefaultRouteBasis::Retained => {
            "the next hops from before the agent's restart, until the peers have sent their routes"
        }
        DefaultRouteBasis::Imported => "the best paths of the peers with `import`",
    }
}

fn differs(way: &DefaultRouteStatus) -> Option<String> {
    let wanted = || format!("DIFFERENT FROM THE PLAN: the plan has {}", next_hops_in_words(&way.wanted));
    (way.wanted != way.installed).then(wanted)
}

fn left_out(way: &DefaultRouteStatus) -> impl Iterator<Item = String> {
    way.left_out.iter().map(|out| format!("not through {}: it {}", out.peer, out.reason))
}

#[cfg(test)]
mod tests {
    use trunkline_api::control::{ExcludedPeer, ExclusionCause};

    use super::*;

    #[test]
    fn excluded_peer_is_shown_with_its_cause() {
        let way = DefaultRouteStatus {
            family: "ipv4-unicast".to_owned(),
            table: 10_000,
            basis: DefaultRouteBasis::Advertised,
            peers: vec!["10.11.0.1".to_owned()],
            wanted: vec!["10.11.0.1".parse().unwrap()],
            installed: vec!["10.11.0.1".parse().unwrap()],
            left_out: vec![ExcludedPeer {
                peer: "10.12.0.1".to_owned(),
                cause: ExclusionCause::Withdrawn,
                reason: "withdrew its default route".to_owned(),
            }],
        };
        let text: Vec<String> =
            lines(&way).into_iter().map(|(name, text)| format!("{name}|{text}")).collect();
        assert_eq!(
            text,
            [
                "next hops|ipv4-unicast by 10.11.0.1: the peers that advertise a default route",
                "|not through 10.12.0.1: it withdrew its default route"
            ]
        );
        let both = DefaultRouteStatus { installed: Vec::new(), left_out: Vec::new(), ..way };
        assert_eq!(
            explanation(&both),
            "next hops of pods' packets in the kernel (table 10000): no next hop\nthe peers that \
             advertise a default route\nDIFFERENT FROM THE PLAN: the plan has 10.11.0.1\n"
        );
    }
}
