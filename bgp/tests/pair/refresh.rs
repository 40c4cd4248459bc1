//! Enhanced route refresh (RFC 7313) in both directions.

use trunkline_bgp::speaker::{Event, State};
use trunkline_bgp::types::Family;
use trunkline_bgp::wire::{Capability, MessageKind, Notification, RouteRefresh};

use crate::net::{
    Net, announce, encoded, end_of_rib, end_of_rib_v6, ip, keepalive, message, net, open, secs,
};

fn refresh(message: RouteRefresh) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(&mut out);
    out
}

fn request() -> Vec<u8> {
    refresh(RouteRefresh::request(Family::Ipv4Unicast))
}

fn begin() -> Vec<u8> {
    refresh(RouteRefresh::begin(Family::Ipv4Unicast))
}

fn end() -> Vec<u8> {
    refresh(RouteRefresh::end(Family::Ipv4Unicast))
}

/// A session with a script that has every capability except those of `without`.
fn established(without: &[u8]) -> (Net, usize) {
    let mut all = Net::scripted(|_| {});
    all.boot(1);
    let pipe = all.script_accept();
    let mut open = open();
    open.capabilities.retain(|capability: &Capability| !without.contains(&capability.code()));
    all.script_send(pipe, &encoded(&open));
    all.script_send(pipe, &keepalive());
    assert_eq!(all.state(1, 2), State::Established);
    (all, pipe)
}

/// A session with every capability, in which two prefixes and End-of-RIB were received.
fn with_routes() -> (Net, usize) {
    let (mut all, pipe) = established(&[]);
    all.script_send(pipe, &announce(&[[10, 9, 1], [10, 9, 2]]));
    all.script_send(pipe, &end_of_rib());
    all.script_send(pipe, &end_of_rib_v6());
    (all, pipe)
}

fn counts(all: &Net) -> (usize, usize) {
    let family = all.status(1, 2).families[0];
    (family.received, family.stale)
}

fn swept(all: &Net) -> Vec<usize> {
    let paths = |event: &Event| match event {
        Event::StaleSwept { paths, .. } => Some(*paths),
        _ => None,
    };
    all.nodes[&1].events.iter().filter_map(paths).collect()
}

fn ignored(all: &Net) -> Vec<&str> {
    let fault = |event: &'_ Event| matches!(event, Event::MalformedUpdate { .. });
    let events = all.nodes[&1].events.iter().filter(|event| fault(event));
    events
        .map(|event| match event {
            Event::MalformedUpdate { fault, .. } => fault.as_str(),
            _ => "",
        })
        .collect()
}

#[test]
fn paths_not_repeated_between_markers_are_removed() {
    let (mut all, pipe) = with_routes();
    all.script_send(pipe, &begin());
    assert_eq!(counts(&all), (2, 2));
    assert_eq!(all.nodes[&1].fib.len(), 2, "stale paths are used");
    all.script_send(pipe, &announce(&[[10, 9, 2], [10, 9, 3]]));
    assert_eq!(counts(&all), (3, 1));
    all.script_send(pipe, &end());
    assert_eq!(counts(&all), (2, 0));
    assert_eq!(all.routes_from(1, 2), [net("10.9.2.0/24"), net("10.9.3.0/24")]);
    assert_eq!(all.nodes[&1].fib.len(), 2);
    assert_eq!(swept(&all), [1]);
    // The second EoRR has no BoRR.
    all.script_send(pipe, &announce(&[[10, 9, 4]]));
    all.script_send(pipe, &end());
    assert_eq!((counts(&all), swept(&all)), ((3, 0), vec![1]));
    assert_eq!(ignored(&all), ["EoRR of ipv4-unicast without a BoRR; ignored"]);
}

#[test]
fn a_second_begin_marks_again() {
    let (mut all, pipe) = with_routes();
    all.script_send(pipe, &begin());
    all.script_send(pipe, &announce(&[[10, 9, 1], [10, 9, 2]]));
    assert_eq!(counts(&all), (2, 0));
    all.script_send(pipe, &begin());
    assert_eq!(counts(&all), (2, 2));
    all.script_send(pipe, &announce(&[[10, 9, 1]]));
    all.script_send(pipe, &end());
    assert_eq!(counts(&all), (1, 0));
}

#[test]
fn an_endless_refresh_is_ended_by_its_timer() {
    let (mut all, pipe) = with_routes();
    all.script_send(pipe, &begin());
    all.script_send(pipe, &announce(&[[10, 9, 2]]));
    for _ in 0..11 {
        all.run(secs(30));
        all.script_send(pipe, &keepalive());
    }
    assert_eq!(counts(&all), (2, 1));
    all.run(secs(31));
    assert_eq!((counts(&all), swept(&all)), ((1, 0), vec![1]));
    assert_eq!(all.state(1, 2), State::Established);
}

#[test]
fn with_graceful_restart_borr_before_end_of_rib_is_ignored() {
    let (mut all, pipe) = established(&[]);
    all.script_send(pipe, &announce(&[[10, 9, 1], [10, 9, 2]]));
    all.script_send(pipe, &begin());
    assert_eq!(counts(&all), (2, 0));
    all.script_send(pipe, &end());
    assert_eq!(counts(&all), (2, 0));
    assert_eq!(ignored(&all)[0], "BoRR of ipv4-unicast before its End-of-RIB; ignored");
    // Without graceful restart there is no End-of-RIB to wait for.
    let (mut all, pipe) = established(&[64]);
    all.script_send(pipe, &announce(&[[10, 9, 1], [10, 9, 2]]));
    all.script_send(pipe, &begin());
    assert_eq!(counts(&all), (2, 2));
}

#[test]
fn a_session_lost_during_a_refresh_retains_all_paths() {
    let (mut all, pipe) = with_routes();
    all.script_send(pipe, &begin());
    all.script_send(pipe, &announce(&[[10, 9, 2]]));
    all.script_close(pipe);
    assert_ne!(all.state(1, 2), State::Established);
    assert_eq!(counts(&all), (2, 2), "both paths wait for the peer's restart");
    assert_eq!(all.nodes[&1].fib.len(), 2);
    // The refresh timer ended with the session: the Restart Time applies.
    all.scripts.clear();
    all.run(secs(119));
    assert_eq!(counts(&all), (2, 2));
    all.run(secs(2));
    assert_eq!(counts(&all), (0, 0));
}

#[test]
fn a_marker_of_wrong_length_ends_an_enhanced_session() {
    let (mut all, pipe) = with_routes();
    let long = message(5, &[0, 1, 1, 1, 0]);
    all.script_send(pipe, &long);
    assert_eq!(all.script_notification(pipe), Some(Notification::new(7, 1, long.as_slice())));

    let (mut all, pipe) = established(&[70]);
    all.script_send(pipe, &announce(&[[10, 9, 1]]));
    all.script_send(pipe, &end_of_rib());
    all.script_send(pipe, &long);
    all.script_send(pipe, &begin());
    assert_eq!((all.state(1, 2), counts(&all)), (State::Established, (1, 0)));
}

/// The script's input since `before`: markers (`B`, `E`), UPDATEs (`U`), End-of-RIB of IPv4 (`R`).
fn sent(all: &Net, pipe: usize, before: usize) -> Vec<String> {
    let got = all.script_got(pipe).into_iter().skip(before);
    got.filter_map(|(kind, body)| match kind {
        MessageKind::RouteRefresh => Some(["", "B", "E"][usize::from(body[2])].to_owned()),
        MessageKind::Update if body == [0; 4] => Some("R".to_owned()),
        MessageKind::Update if body.ends_with(&[3, 0, 2, 1]) => None,
        MessageKind::Update => Some("U".to_owned()),
        _ => None,
    })
    .collect()
}

#[test]
fn a_requested_refresh_is_sent_between_markers() {
    let (mut all, pipe) = established(&[]);
    all.with(1, |speaker, now| speaker.originate(net("10.1.0.0/16"), Default::default(), now));
    all.run(secs(1));
    let before = all.script_got(pipe).len();
    all.script_send(pipe, &request());
    assert_eq!(sent(&all, pipe, before), ["B", "U", "E"]);
    assert_eq!(all.status(1, 2).traffic.sent.route_refresh, 2);
    // A family without routes has its markers too.
    let before = all.script_got(pipe).len();
    all.script_send(pipe, &refresh(RouteRefresh::request(Family::Ipv6Unicast)));
    assert_eq!(sent(&all, pipe, before), ["B", "E"]);
    // Without the capability there are no markers.
    let (mut all, pipe) = established(&[70]);
    all.with(1, |speaker, now| speaker.originate(net("10.1.0.0/16"), Default::default(), now));
    all.run(secs(1));
    let before = all.script_got(pipe).len();
    all.script_send(pipe, &request());
    assert_eq!(sent(&all, pipe, before), ["U"]);
}

#[test]
fn a_request_waits_for_end_of_rib_and_an_earlier_refresh() {
    let mut all = Net::scripted(|_| {});
    all.add(1).originated.insert(net("10.1.0.0/16"), Default::default());
    all.boot(1);
    let pipe = all.script_accept();
    // All messages are in one segment: the initial table is not written yet when the requests are
    // read.
    let octets = [encoded(&open()), keepalive(), request(), request()].concat();
    all.script_send(pipe, &octets);
    all.run(secs(1));
    assert_eq!(
        sent(&all, pipe, 0),
        ["U", "R", "B", "U", "E"],
        "two requests at once have one \
        response"
    );
}

#[test]
fn a_refresh_between_two_speakers_changes_nothing() {
    let mut all = Net::pair();
    for index in 0..20_000u32 {
        let prefix = std::net::Ipv4Addr::from(0x1400_0000 + (index << 8));
        all.nodes.get_mut(&1).unwrap().originated.insert(net(&format!("{prefix}/24")), Default::default());
    }
    all.boot_all();
    all.run_until_up(2, 1);
    all.run(secs(5));
    all.must_hold.push((2, net("10.1.0.0/16")));
    // Two refreshes, with a change in between.
    for _ in 0..2 {
        assert!(all.with(2, |speaker, now| speaker.request_refresh(ip(1), now).unwrap()));
    }
    all.with(1, |speaker, now| {
        speaker.withdraw(net("20.0.0.0/24"), now);
        speaker.originate(net("10.1.0.9/32"), Default::default(), now);
    });
    all.run(secs(5));
    let family = all.status(2, 1).families[0];
    assert_eq!((family.received, family.stale), (20_001, 0));
    let swept = all.nodes[&2].events.iter().filter_map(|event| match event {
        Event::StaleSwept { family: Family::Ipv4Unicast, paths, .. } => Some(*paths),
        _ => None,
    });
    assert_eq!(
        swept.collect::<Vec<_>>(),
        [0, 0],
        "withdrawn routes are withdrawn, and not only \
        omitted"
    );
}
