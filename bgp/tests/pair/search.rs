//! Searches of the tables. The number of rows in a piece does not change the result of a filter. A
//! limited result still counts all matches.

use std::net::IpAddr;

use trunkline_bgp::policy::{Actions, Conditions, Policy, PolicyResult, PrefixMatch, Rule};
use trunkline_bgp::speaker::{Origination, PathStatus, RouteFilter, Search, SearchResult, Source};
use trunkline_bgp::types::Asn;

use crate::net::{Net, ip, net, secs};

fn found(all: &Net, filter: &RouteFilter, limit: usize, piece: usize) -> SearchResult {
    let speaker = all.nodes[&1].speaker.as_ref().unwrap();
    let mut search = Search::new(filter.clone(), limit);
    while speaker.search(&mut search, piece) {}
    speaker.found(&search)
}

fn prefixes(found: &SearchResult) -> Vec<String> {
    found.routes.iter().map(|route| route.prefix.to_string()).collect()
}

/// Host 2 advertises 200 networks, of which host 1 rejects one.
fn fabric() -> Net {
    let mut all = Net::pair();
    for number in 0..200u8 {
        let communities = if number < 3 { vec!["65002:7".parse().unwrap()] } else { Vec::new() };
        let origination = Origination { communities, ..Origination::default() };
        all.nodes.get_mut(&2).unwrap().originated.insert(net(&format!("172.16.{number}.0/24")), origination);
    }
    all.nodes.get_mut(&1).unwrap().originated.insert(net("2001:db8:7::/48"), Origination::default());
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
fn each_filter_condition_works_whatever_the_piece_size() {
    let all = fabric();
    let of = |text: &str| RouteFilter { prefix: Some(net(text)), ..RouteFilter::default() };
    let any = RouteFilter::default;
    let own = all.nodes[&1].originated.len();
    let rows = [
        (any(), 201 + own, None),
        (of("172.16.4.0/24"), 1, Some(vec!["172.16.4.0/24"])),
        (of("172.16.4.0/23"), 2, Some(vec!["172.16.4.0/24", "172.16.5.0/24"])),
        (of("172.16.4.128/25"), 1, Some(vec!["172.16.4.0/24"])),
        (of("172.16.4.9/32"), 1, Some(vec!["172.16.4.0/24"])),
        (of("2001:db8:7::1/128"), 1, Some(vec!["2001:db8:7::/48"])),
        (of("192.0.2.1/32"), 0, Some(vec![])),
        (RouteFilter { asn: Some(Asn(65002)), ..any() }, 201, None),
        (RouteFilter { asn: Some(Asn(65003)), ..any() }, 0, None),
        (
            RouteFilter { community: Some("65002:7".to_owned()), ..any() },
            3,
            Some(vec!["172.16.0.0/24", "172.16.1.0/24", "172.16.2.0/24"]),
        ),
        (RouteFilter { community: Some("65002:7".to_owned()), ..of("172.16.1.1/32") }, 1, None),
        (RouteFilter { from: Some(Source::Own), ..any() }, own, None),
        (RouteFilter { from: Some(Source::Peer(ip(2).into())), ..any() }, 201, None),
        (RouteFilter { from: Some(Source::Peer(IpAddr::from([192, 0, 2, 9]).into())), ..any() }, 0, None),
        (RouteFilter { status: Some(PathStatus::Refused), ..any() }, 1, Some(vec!["172.16.9.0/24"])),
        (RouteFilter { status: Some(PathStatus::Used), ..any() }, 200 + own, None),
        (RouteFilter { status: Some(PathStatus::Unused), ..any() }, 0, None),
        (RouteFilter { status: Some(PathStatus::Stale), ..any() }, 0, None),
    ];
    for (filter, matched, shown) in rows {
        let whole = found(&all, &filter, 1000, usize::MAX);
        assert_eq!((whole.matched, whole.shown), (matched, matched), "{filter:?}");
        assert!(whole.complete);
        if let Some(shown) = shown {
            assert_eq!(prefixes(&whole), shown, "{filter:?}");
        }
        for piece in [1, 7] {
            assert_eq!(found(&all, &filter, 1000, piece), whole, "in pieces of {piece}: {filter:?}");
        }
    }
}

#[test]
fn the_first_matches_are_shown_and_all_are_counted() {
    let all = fabric();
    let few =
        found(&all, &RouteFilter { from: Some(Source::Peer(ip(2).into())), ..RouteFilter::default() }, 2, 16);
    assert_eq!(prefixes(&few), ["10.2.0.0/16", "172.16.0.0/24"]);
    assert_eq!((few.shown, few.matched, few.complete), (2, 201, true));
    assert_eq!(
        (few.looked_at, few.prefixes),
        (few.prefixes, few.looked_at),
        "all prefixes are \
        examined"
    );

    let speaker = all.nodes[&1].speaker.as_ref().unwrap();
    let mut search = Search::new(RouteFilter::default(), 1000);
    assert!(speaker.search(&mut search, 10));
    let part = speaker.found(&search);
    assert!(!part.complete, "the result is marked as incomplete");
    assert_eq!((part.looked_at, part.matched), (10, 10));
}
