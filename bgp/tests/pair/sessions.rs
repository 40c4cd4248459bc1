//! Two speakers without special conditions.

use trunkline_bgp::speaker::{Event, State};
use trunkline_bgp::wire::Origin;

use crate::net::{Net, net, secs};

#[test]
fn two_speakers_exchange_their_routes() {
    let mut all = Net::pair();
    all.boot_all();
    all.run(secs(3));
    for (host, other) in [(1, 2), (2, 1)] {
        let status = all.status(host, other);
        assert_eq!(status.state, State::Established);
        assert_eq!(status.established_count, 1);
        assert!(status.families.iter().all(|family| family.end_of_rib_sent && family.end_of_rib_received));
        assert_eq!(all.routes_from(host, other), [net(&format!("10.{other}.0.0/16"))]);
        assert_eq!(all.nodes[&host].fib.len(), 1);
        let ups = all.nodes[&host].events.iter().filter(|event| matches!(event, Event::PeerUp { .. }));
        assert_eq!(ups.count(), 1);
    }
}

#[test]
fn the_hold_timer_detects_a_cut_cable_and_recovery_works() {
    let mut all = Net::pair();
    all.boot_all();
    all.run(secs(20));
    all.cut();
    // The last received message is at most a KEEPALIVE interval old.
    let took = all.run_while_not("both down", secs(91), |all| {
        [(1, 2), (2, 1)].iter().all(|(host, other)| all.state(*host, *other) != State::Established)
    });
    assert!(took > secs(59), "{took:?}");
    all.run(secs(300));
    assert!(all.nodes[&1].fib.is_empty());
    all.cut = false;
    // No attempt waits longer than 10 s for an answer.
    assert!(all.run_until_up(1, 2) < secs(12));
    all.run(secs(1));
    assert_eq!(all.nodes[&1].fib.len(), 1);
}

#[test]
fn a_watched_prefix_is_reported_once_it_is_written_to_a_peer() {
    let advertised = |all: &Net, prefix: &str| {
        let written =
            |event: &&Event| matches!(event, Event::Advertised { prefix: p, .. } if *p == net(prefix));
        all.nodes[&1].events.iter().filter(written).count()
    };
    let mut all = Net::pair();
    all.boot(1);
    all.with(1, |speaker, now| {
        speaker.watch(net("10.1.0.0/16"));
        speaker.watch(net("10.1.0.7/32"));
        speaker.originate(net("10.1.0.7/32"), Default::default(), now);
    });
    all.run(secs(30));
    assert_eq!(advertised(&all, "10.1.0.7/32"), 0, "no Established peer");
    all.boot(2);
    all.run_until_up(2, 1);
    all.run(secs(1));
    assert_eq!(advertised(&all, "10.1.0.7/32"), 1);
    // In an Established session the watch completes at once. It also completes at once for an
    // advertised prefix.
    all.with(1, |speaker, now| {
        speaker.watch(net("10.1.0.8/32"));
        speaker.originate(net("10.1.0.8/32"), Default::default(), now);
    });
    assert_eq!(advertised(&all, "10.1.0.8/32"), 1);
    all.with(1, |speaker, _| {
        speaker.unwatch(net("10.1.0.7/32"));
        speaker.watch(net("10.1.0.7/32"));
    });
    assert_eq!(advertised(&all, "10.1.0.7/32"), 2);
    all.with(1, |speaker, now| {
        speaker.unwatch(net("10.1.0.9/32"));
        speaker.originate(net("10.1.0.9/32"), Default::default(), now);
    });
    assert_eq!(advertised(&all, "10.1.0.9/32"), 0);
}

#[test]
fn an_operator_sees_the_session_and_its_routes() {
    let mut all = Net::pair();
    let community = "65001:7".parse().unwrap();
    let origination =
        trunkline_bgp::speaker::Origination { communities: vec![community], ..Default::default() };
    all.nodes.get_mut(&1).unwrap().originated.insert(net("10.1.0.0/16"), origination);
    // Only one side connects, so no message is lost on a second connection.
    all.nodes.get_mut(&2).unwrap().peers.values_mut().for_each(|peer| peer.passive = true);
    all.boot_all();
    all.run(secs(100));
    let status = all.status(2, 1);
    let session = status.session.unwrap();
    assert_eq!((session.hold_time, session.keepalive), (secs(90), secs(30)));
    assert_eq!(session.remote_router_id.to_string(), "10.0.0.1");
    assert!(session.capabilities_received.contains(&"multiprotocol ipv6-unicast".to_owned()));
    assert_eq!(session.peer_restart_time, Some(120));
    assert!(status.families.iter().all(|family| family.restartable && family.stale_expires.is_none()));
    let (here, there) = (status.traffic, all.status(1, 2).traffic);
    assert_eq!((here.received.open, here.sent.open), (there.sent.open, there.received.open));
    assert_eq!((here.received.update, there.received.update), (there.sent.update, here.sent.update));
    assert_eq!((here.received.keepalive, there.received.octets), (there.sent.keepalive, here.sent.octets));
    assert!(here.received.keepalive >= 4 && here.received.update == 3, "{here:?}");

    let speaker = all.nodes[&2].speaker.as_ref().unwrap();
    let received = speaker.received(crate::net::ip(1)).unwrap();
    let route = &received[0];
    assert_eq!((route.as_path.as_str(), route.origin, route.best), ("65001", Origin::Igp, true));
    assert_eq!(route.communities, [community]);
    assert_eq!(route.next_hop.unwrap().to_string(), "10.0.0.1");
    let advertised = all.nodes[&1].speaker.as_ref().unwrap().advertised(crate::net::ip(2)).unwrap();
    assert_eq!(advertised.iter().map(|route| route.prefix).collect::<Vec<_>>(), [net("10.1.0.0/16")]);
    let routes = speaker.routes();
    let peers: Vec<_> = routes.iter().map(|route| (route.prefix, route.peer)).collect();
    assert_eq!(peers, [(net("10.1.0.0/16"), Some(crate::net::ip(1).into())), (net("10.2.0.0/16"), None)]);
}

#[test]
fn a_large_table_is_sent_in_pieces_and_arrives_complete() {
    let mut all = Net::pair();
    for index in 0..20_000u32 {
        let prefix = std::net::Ipv4Addr::from(0x1400_0000 + (index << 8));
        all.nodes.get_mut(&1).unwrap().originated.insert(net(&format!("{prefix}/24")), Default::default());
    }
    all.boot_all();
    all.run_until_up(2, 1);
    all.run(secs(5));
    assert_eq!(all.nodes[&2].fib.len(), 20_001);
    let status = all.status(2, 1);
    assert!(status.traffic.received.update < 60, "{} UPDATEs", status.traffic.received.update);
    assert_eq!((status.families[0].received, status.families[0].accepted), (20_001, 20_001));
}
