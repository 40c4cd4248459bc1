//! Connection collision (RFC 4271 §6.8, RFC 6286 §2.3).

use std::net::Ipv4Addr;

use trunkline_bgp::session::{CONFIRM_DELAY, CONFIRM_MARGIN, OPEN_DELAY};
use trunkline_bgp::speaker::State;
use trunkline_bgp::wire::{Cease, MessageKind, Notification, Open};

use crate::net::{Net, encoded, keepalive, message, open, secs};

/// Two connections: the first opened by node 1, the second by the script. Node 1 delays OPEN on the second
/// one.
fn two_connections() -> (Net, usize, usize) {
    let mut all = Net::scripted(|_| {});
    all.boot(1);
    let outgoing = all.script_accept();
    let incoming = all.script_connect();
    assert!(!all.is_closed(outgoing) && !all.is_closed(incoming));
    assert_eq!((kinds(&all, outgoing), kinds(&all, incoming)), (vec![MessageKind::Open], vec![]));
    (all, outgoing, incoming)
}

/// The same, after the longest delay: both connections are in OpenSent.
fn two_opens() -> (Net, usize, usize) {
    let (mut all, outgoing, incoming) = two_connections();
    all.run(OPEN_DELAY);
    assert_eq!(
        (kinds(&all, outgoing), kinds(&all, incoming)),
        (vec![MessageKind::Open], vec![MessageKind::Open])
    );
    (all, outgoing, incoming)
}

fn kinds(all: &Net, pipe: usize) -> Vec<MessageKind> {
    all.script_got(pipe).into_iter().map(|(kind, _)| kind).collect()
}

fn with_identifier(last: u8) -> Open {
    Open { router_id: Ipv4Addr::new(10, 0, 0, last), ..open() }
}

#[test]
fn the_higher_identifier_keeps_the_connection_it_opened() {
    // Node 1 has 10.0.0.1; the order of the OPENs does not matter.
    for (identifier, keeps_outgoing) in [(0, true), (2, false)] {
        for outgoing_first in [true, false] {
            let (mut all, outgoing, incoming) = two_opens();
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
            all.run(CONFIRM_MARGIN);
            assert_eq!(all.state(1, 2), State::Established);
            assert_eq!(all.status(1, 2).last_error, None, "a collision is no error");
        }
    }
}

#[test]
fn the_first_open_of_the_peer_decides_while_one_open_is_delayed() {
    for (identifier, keeps_outgoing) in [(0, true), (2, false)] {
        for outgoing_first in [true, false] {
            let (mut all, outgoing, incoming) = two_connections();
            let open = encoded(&with_identifier(identifier));
            let (first, second) = if outgoing_first { (outgoing, incoming) } else { (incoming, outgoing) };
            let (kept, lost) = if keeps_outgoing { (outgoing, incoming) } else { (incoming, outgoing) };
            all.script_send(first, &open);
            // A connection without an OPEN stays for the peer to close it.
            assert_eq!((all.is_closed(lost), all.is_closed(kept)), (lost == outgoing, false));
            if kept == second {
                all.script_send(second, &open);
            }
            all.script_send(kept, &keepalive());
            if lost == incoming {
                assert_eq!(
                    (kinds(&all, kept), all.state(1, 2)),
                    (vec![MessageKind::Open], State::OpenConfirm)
                );
                // A peer may close the other connection before its KEEPALIVE or after it.
                if !outgoing_first {
                    all.script_close(lost);
                }
                all.run(CONFIRM_MARGIN);
            }
            assert_eq!(kinds(&all, kept)[..2], [MessageKind::Open, MessageKind::Keepalive]);
            assert_eq!(all.state(1, 2), State::Established);
            all.run(OPEN_DELAY);
            assert!(all.is_closed(lost) || !outgoing_first, "{identifier}");
            assert!(!all.is_closed(kept), "{identifier} {outgoing_first}");
            let collision = Notification::cease(Cease::ConnectionCollision, None);
            let expected = (lost == outgoing).then_some(collision);
            assert_eq!(all.script_notification(lost), expected, "{identifier} {outgoing_first}");
            let status = all.status(1, 2);
            assert_eq!((status.state, status.flaps), (State::Established, 0));
            assert_eq!(status.last_error, None, "a collision is no error");
        }
    }
}

#[test]
fn a_second_connection_waits_while_the_first_may_be_established_at_the_peer() {
    // The identifier of the peer is higher, so without the delay the second connection would stay.
    let start = || {
        let mut all = Net::scripted(|_| {});
        all.boot(1);
        let outgoing = all.script_accept();
        all.script_send(outgoing, &encoded(&open()));
        let incoming = all.script_connect();
        all.script_send(incoming, &encoded(&open()));
        assert!(!all.is_closed(outgoing) && !all.is_closed(incoming));
        assert_eq!((all.state(1, 2), kinds(&all, incoming)), (State::OpenConfirm, vec![]));
        (all, outgoing, incoming)
    };
    let (mut all, outgoing, incoming) = start();
    all.script_send(outgoing, &keepalive());
    assert_eq!(all.state(1, 2), State::Established);
    assert!(!all.is_closed(outgoing) && !all.is_closed(incoming));
    all.run(OPEN_DELAY);
    assert!(!all.is_closed(outgoing) && all.is_closed(incoming) && kinds(&all, incoming).is_empty());
    // The peer keeps the second connection.
    let (mut all, outgoing, incoming) = start();
    all.script_close(outgoing);
    assert_eq!(kinds(&all, incoming), [MessageKind::Open, MessageKind::Keepalive]);
    all.script_send(incoming, &keepalive());
    assert_eq!(all.state(1, 2), State::Established);
    // The peer does not decide.
    let (mut all, outgoing, incoming) = start();
    all.run(OPEN_DELAY);
    assert!(all.is_closed(outgoing));
    assert_eq!(kinds(&all, incoming), [MessageKind::Open, MessageKind::Keepalive]);
    // More than an OPEN cannot wait.
    let (mut all, _, incoming) = start();
    for _ in 0..300 {
        if !all.is_closed(incoming) {
            all.script_send(incoming, &keepalive());
        }
    }
    assert!(all.is_closed(incoming) && kinds(&all, incoming).is_empty());
}

#[test]
fn an_unsuitable_open_on_the_second_connection_leaves_the_first() {
    let (mut all, outgoing, incoming) = two_connections();
    // The identifier is higher, so a suitable OPEN would end the first connection.
    all.script_send(incoming, &encoded(&Open { as_field: 65_099, capabilities: Vec::new(), ..open() }));
    assert!(all.is_closed(incoming) && !all.is_closed(outgoing) && kinds(&all, incoming).is_empty());
    all.script_send(outgoing, &encoded(&open()));
    all.script_send(outgoing, &keepalive());
    assert_eq!(all.state(1, 2), State::Established);
}

#[test]
fn the_first_keepalive_waits_until_the_peer_has_handled_the_open() {
    let start = |identifier| {
        let mut all = Net::scripted(|_| {});
        all.boot(1);
        let outgoing = all.script_accept();
        all.script_send(outgoing, &encoded(&with_identifier(identifier)));
        (all, outgoing)
    };
    let (open, both) = ([MessageKind::Open], [MessageKind::Open, MessageKind::Keepalive]);
    let first_two = |all: &Net, pipe| kinds(all, pipe).into_iter().take(2).collect::<Vec<_>>();
    let half = CONFIRM_MARGIN / 2;
    // This connection would not stay, so the peer closes no other one.
    let (all, outgoing) = start(2);
    assert_eq!(kinds(&all, outgoing), both);
    // The peer's KEEPALIVE says that it has handled the OPEN.
    let (mut all, outgoing) = start(0);
    all.run(CONFIRM_DELAY - 2 * CONFIRM_MARGIN);
    assert_eq!(kinds(&all, outgoing), open);
    all.script_send(outgoing, &keepalive());
    all.run(half);
    assert_eq!((kinds(&all, outgoing), all.state(1, 2)), (open.to_vec(), State::OpenConfirm));
    // A second one does not prolong the delay.
    all.script_send(outgoing, &keepalive());
    all.run(half);
    assert_eq!((first_two(&all, outgoing), all.state(1, 2)), (both.to_vec(), State::Established));
    // The end of another connection says nothing: FRR gives up an attempt when it begins the next one.
    let (mut all, outgoing) = start(0);
    let other = all.script_connect();
    all.script_close(other);
    all.run(CONFIRM_DELAY - 2 * CONFIRM_MARGIN);
    assert_eq!(kinds(&all, outgoing), open);
    // A peer that waits for this side's KEEPALIVE gets it in the end.
    let (mut all, outgoing) = start(0);
    all.run(CONFIRM_DELAY - half);
    assert_eq!(kinds(&all, outgoing), open);
    all.run(half);
    assert_eq!(kinds(&all, outgoing), both);
    all.script_send(outgoing, &keepalive());
    assert_eq!(all.state(1, 2), State::Established);
    // The peer rejects this side's OPEN meanwhile.
    let (mut all, outgoing) = start(0);
    all.script_send(outgoing, &message(3, &[2, 2]));
    let received = all.status(1, 2).notification_received.unwrap();
    assert!(all.is_closed(outgoing) && received.text.contains("Bad Peer AS"), "{received:?}");
}

#[test]
fn the_end_of_the_session_ends_a_connection_without_an_open() {
    let mut all = Net::scripted(|_| {});
    all.boot(1);
    let outgoing = all.script_accept();
    all.script_send(outgoing, &encoded(&open()));
    let incoming = all.script_connect();
    all.script_send(outgoing, &keepalive());
    assert_eq!(all.state(1, 2), State::Established);
    // An error: node 1 waits before the next attempt.
    all.script_send(outgoing, &[0; 19]);
    assert!(all.is_closed(outgoing) && all.is_closed(incoming) && kinds(&all, incoming).is_empty());
    assert_eq!(all.state(1, 2), State::Idle);
}

#[test]
fn the_end_of_one_connection_ends_the_delay_on_the_other() {
    let (mut all, outgoing, incoming) = two_connections();
    all.script_close(outgoing);
    assert_eq!(kinds(&all, incoming), [MessageKind::Open]);
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
    all.run(OPEN_DELAY);
    assert!(all.is_closed(second) && kinds(&all, second).is_empty());
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
    all.run(secs(5));
    assert!(all.is_closed(early) && kinds(&all, early).is_empty());
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
