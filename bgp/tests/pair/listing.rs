//! Tables listed in pieces: with any piece size, every route is listed once if nothing changes.

use std::num::NonZeroU8;

use trunkline_bgp::config::AddPath;
use trunkline_bgp::policy::{Actions, Conditions, Policy, PolicyResult, PrefixMatch, Rule};
use trunkline_bgp::speaker::{Listed, Listing, Origination, Route, Speaker};

use crate::net::{Net, ip, net, secs};

fn listed(speaker: &Speaker, table: Listed, piece: usize) -> Vec<Route> {
    let (mut listing, mut routes, mut before) = (Listing::new(table), Vec::new(), 0);
    while speaker.list(&mut listing, piece, &mut routes) {
        // One path per row, or two with path identifiers.
        assert!(routes.len() - before <= piece.saturating_mul(2), "more than a piece at once");
        before = routes.len();
    }
    routes.sort_by_key(|route| (route.prefix, route.path_id));
    routes
}

/// Host 2 advertises 40 networks, of which host 1 rejects one; both originate an IPv6 prefix too.
fn fabric(add_path: AddPath) -> Net {
    let mut all = Net::pair();
    for number in 0..40u8 {
        let prefix = net(&format!("172.16.{number}.0/24"));
        all.nodes.get_mut(&2).unwrap().originated.insert(prefix, Origination::default());
    }
    for host in [1, 2] {
        let prefix = net(&format!("2001:db8:{host}::/48"));
        let node = all.nodes.get_mut(&host).unwrap();
        node.originated.insert(prefix, Origination::default());
        node.peers.values_mut().for_each(|peer| peer.add_path = add_path);
    }
    all.boot_all();
    all.run(secs(20));
    all.edit(1, 2, |peer| {
        let one = PrefixMatch { prefix: net("172.16.9.0/24"), ge: None, le: None };
        let when = Conditions { prefixes: vec![one].into(), ..Conditions::default() };
        let refuse = Rule { name: None, when, set: Actions::default(), verdict: Some(PolicyResult::Reject) };
        peer.import = Policy { rules: vec![refuse], ..Policy::accept_all() };
    });
    all
}

#[test]
fn listing_in_pieces_yields_the_whole_table() {
    for add_path in [AddPath::default(), AddPath { receive: true, send: NonZeroU8::new(2) }] {
        let all = fabric(add_path);
        let [one, two] = [1, 2].map(|host| all.nodes[&host].speaker.as_ref().unwrap());
        for (speaker, table, whole, least) in [
            (one, Listed::Used, one.routes(), 41),
            (one, Listed::Received(ip(2).into()), one.received(ip(2)).unwrap(), 41),
            (two, Listed::Advertised(ip(1).into()), two.advertised(ip(1)).unwrap(), 41),
        ] {
            let mut whole = whole;
            whole.sort_by_key(|route| (route.prefix, route.path_id));
            assert!(whole.len() >= least, "{table:?}: {}", whole.len());
            for piece in [1, 7, 1000] {
                assert_eq!(listed(speaker, table, piece), whole, "{table:?} in pieces of {piece}");
            }
        }
        let refused = listed(one, Listed::Received(ip(2).into()), 7);
        assert_eq!(refused.iter().filter(|route| route.filtered.is_some()).count(), 1);
    }
}

#[test]
fn an_unknown_peer_has_no_table() {
    let all = Net::pair();
    let mut all = all;
    all.boot_all();
    let speaker = all.nodes[&1].speaker.as_ref().unwrap();
    for table in [Listed::Received(ip(9).into()), Listed::Advertised(ip(9).into())] {
        assert!(!speaker.has_table(table));
        assert_eq!(listed(speaker, table, 10), []);
    }
    assert!(speaker.has_table(Listed::Received(ip(2).into())));
}
