//! Connection collision (RFC 4271 §6.8, RFC 6286 §2.3).

use std::net::Ipv4Addr;

use trunkline_bgp::speaker::State;
use trunkline_bgp::wire::{Cease, MessageKind, Notification, Open};

use crate::net::{Net, encoded, keepalive, open, secs};

/// Two connections, both in OpenSent: the first opened by node 1, the second by the script.
fn two_connections() -> (Net, usize, usize) {
    let mut all = Net::scripted(|_| {});
    all.boot(1);
    let outgoing = all.script_accept();
    let incoming = all.script_connect();
    assert!(!all.is_closed(outgoing) && !all.is_closed(incoming));
    (all, outgoing, incoming)
}

fn with_identifier(last: u8) -> Open {
    Open { router_id: Ipv4Addr::new(10, 0, 0, last), ..open() }
}

#[test]
fn the_higher_identifier_keeps_the_connection_it_opened() {
    // Node 1 has 10.0.0.1; the order of the OPENs does not matter.
    for (identifier, keeps_outgoing) in [(0, true), (2, false)] {
        for outgoing_first in [true, false] {
            let (mut all, outgoing, incoming) = two_connections();
            let open = encoded(&with_identifier(identifier));
            let (first, second) = if outgoing_first { (outgoing, incoming) } else { (incoming, outgoing) };
            all.script_send(first, &open);
            assert_eq!(all.state(1, 2), State::OpenConfirm);
            all.script_send(second, &open);
            let (kept, lost) = if keeps_outgoing { (outgoing, incoming) } else { (incoming, outgoing) };
            let collision = Notification::cease(Cease::ConnectionCollision, None);
            assert_eq!(all.script_notification(lost), Some(collision), "{identifier} {outgoing_first}");
            assert!(all.is_closed(lost) && !all.is_closed(kept));
            all.script_send(kept, &keepalive());
            assert_eq!(all.state(1, 2), State::Established);
            assert_eq!(all.status(1, 2).last_error, None, "a collision is no error");
        }
    }
}

#[test]
fn with_equal_identifiers_the_higher_as_keeps_its_connection() {
    let (mut all, outgoing, incoming) = two_connections();
    let open = encoded(&Open { router_id: Ipv4Addr::new(10, 0, 0, 1), ..open() });
    all.script_send(outgoing, &open);
    all.script_send(incoming, &open);
    // AS 65002 is higher than AS 65001, so the connection of the script stays.
    assert!(all.is_closed(outgoing) && !all.is_closed(incoming));
}

#[test]
fn establishing_one_connection_closes_the_other_in_open_sent() {
    let (mut all, outgoing, incoming) = two_connections();
    all.script_send(incoming, &encoded(&open()));
    all.script_send(incoming, &keepalive());
    assert_eq!(all.state(1, 2), State::Established);
    assert!(all.is_closed(outgoing));
    let collision = Notification::cease(Cease::ConnectionCollision, None);
    assert_eq!(all.script_notification(outgoing), Some(collision));
}

#[test]
fn without_graceful_restart_an_established_session_wins() {
    let mut plain = open();
    plain.capabilities.retain(|capability| capability.code() != 64);
    let mut all = Net::scripted(|_| {});
    all.boot(1);
    let first = all.script_accept();
    all.script_send(first, &encoded(&plain));
    all.script_send(first, &keepalive());
    let second = all.script_connect();
    assert!(
        !all.is_closed(second),
        "before its OPEN, the connection may be a collision or a \
        restart"
    );
    all.script_send(second, &encoded(&plain));
    let collision = Notification::cease(Cease::ConnectionCollision, None);
    assert_eq!(all.script_notification(second), Some(collision));
    assert_eq!(all.status(1, 2).flaps, 0);
    assert_eq!(all.state(1, 2), State::Established);
}

#[test]
fn with_graceful_restart_a_new_open_means_a_restarted_peer() {
    let mut all = Net::scripted(|_| {});
    all.boot(1);
    let first = all.script_accept();
    all.script_send(first, &encoded(&open()));
    all.script_send(first, &keepalive());
    all.script_send(first, &crate::net::announce(&[[10, 2, 0]]));
    all.must_hold.push((1, crate::net::net("10.2.0.0/24")));
    // In the first seconds the second connection may still be a collision.
    let early = all.script_connect();
    all.script_send(early, &encoded(&open()));
    let collision = Notification::cease(Cease::ConnectionCollision, None);
    assert_eq!(all.script_notification(early), Some(collision));
    all.run(secs(5));
    let second = all.script_connect();
    assert!(!all.is_closed(first), "a connection without an OPEN has no effect");
    all.script_send(second, &encoded(&open()));
    assert!(all.is_closed(first));
    assert_eq!(all.script_got(first).last().unwrap().0, MessageKind::Update, "no NOTIFICATION");
    all.script_send(second, &keepalive());
    let status = all.status(1, 2);
    assert_eq!((status.state, status.flaps, status.established_count), (State::Established, 1, 2));
    assert_eq!(status.families[0].stale, 1);
    all.script_send(second, &crate::net::announce(&[[10, 2, 0]]));
    all.script_send(second, &crate::net::end_of_rib());
    assert_eq!(all.status(1, 2).families[0].stale, 0);
}

#[test]
fn a_peer_that_connects_again_and_again_holds_one_connection() {
    let mut all = Net::scripted(|peer| peer.passive = true);
    all.boot(1);
    let mut pipes = Vec::new();
    for _ in 0..10 {
        pipes.push(all.script_connect());
        all.run(secs(1));
    }
    let (last, dead) = pipes.split_last().unwrap();
    assert!(dead.iter().all(|pipe| all.is_closed(*pipe)));
    all.script_send(*last, &encoded(&open()));
    assert_eq!(all.state(1, 2), State::OpenConfirm);
}

#[test]
fn two_speakers_that_start_at_once_settle_on_one_connection() {
    // The loops cover all orders of identifiers and many jitters.
    for (one, two) in [(1, 2), (2, 1), (1, 1)] {
        for head_start in 0..8 {
            let mut all = Net::pair();
            all.nodes.get_mut(&1).unwrap().config.router_id = Ipv4Addr::new(10, 9, 9, one);
            all.nodes.get_mut(&2).unwrap().config.router_id = Ipv4Addr::new(10, 9, 9, two);
            all.boot(1);
            all.run(std::time::Duration::from_millis(head_start));
            all.boot(2);
            all.run(secs(20));
            for (host, other) in [(1, 2), (2, 1)] {
                let status = all.status(host, other);
                assert_eq!(status.state, State::Established, "{one} {two} {head_start}");
                assert_eq!((status.established_count, status.flaps), (1, 0), "{one} {two} {head_start}");
            }
        }
    }
}
