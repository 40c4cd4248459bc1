//! Graceful restart after a NOTIFICATION (RFC 8538): which ends of a session retain the routes, and
//! which are a Hard Reset.

use trunkline_bgp::config::PeerConfig;
use trunkline_bgp::speaker::{Event, State, Stop};
use trunkline_bgp::types::FamilySet;
use trunkline_bgp::wire::{Capability, Cease, Notification, Open};

use crate::net::{
    LATENCY, Net, announce, encoded, end_of_rib, end_of_rib_v6, keepalive, message, net, open,
    restart_capability, secs,
};

/// The script's OPEN with or without the N bit.
fn offer(notification: bool) -> Open {
    let mut open = open();
    for capability in &mut open.capabilities {
        if let Capability::GracefulRestart { notification: n, .. } = capability {
            *n = notification;
        }
    }
    open
}

/// A session in Established, with a script that has sent one route.
fn established(ours: bool, theirs: bool) -> (Net, usize) {
    let mut all = Net::scripted(|peer| peer.restart_notification = ours);
    all.boot(1);
    let pipe = all.script_accept();
    all.script_send(pipe, &encoded(&offer(theirs)));
    for octets in [keepalive(), announce(&[[10, 2, 0]]), end_of_rib(), end_of_rib_v6()] {
        all.script_send(pipe, &octets);
    }
    (all, pipe)
}

fn notification(notification: &Notification) -> Vec<u8> {
    let mut out = Vec::new();
    notification.encode(&mut out);
    out
}

fn is_kept(all: &Net) -> bool {
    all.nodes[&1].fib.contains_key(&net("10.2.0.0/24"))
}

#[test]
fn the_n_bit_is_offered_as_configured() {
    for offered in [false, true] {
        let (all, pipe) = established(offered, true);
        let (_, body) = all.script_got(pipe).remove(0);
        let ours = Open::decode(&body).unwrap();
        let n = |capability: &Capability| match capability {
            Capability::GracefulRestart { notification, .. } => Some(*notification),
            _ => None,
        };
        assert_eq!(ours.capabilities.iter().find_map(n), Some(offered));
    }
}

#[test]
fn a_notification_retains_routes_if_both_sent_the_n_bit() {
    let shutdown = Notification::cease(Cease::AdministrativeShutdown, Some("bye"));
    for (sent, soft) in [
        (Notification::hold_timer_expired(), true),
        (Notification::new(3, 1, []), true),
        (shutdown.clone(), true),
        (Notification::hard_reset(&shutdown), false),
    ] {
        for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
            let (mut all, pipe) = established(ours, theirs);
            all.script_send(pipe, &notification(&sent));
            assert_eq!(is_kept(&all), ours && theirs && soft, "{sent}, N bits {ours} and {theirs}");
            assert_eq!(all.status(1, 2).notification_received.unwrap().text, sent.to_string());
        }
    }
}

#[test]
fn hold_timer_expiry_and_errors_retain_routes() {
    for ours in [false, true] {
        let (mut all, pipe) = established(ours, true);
        all.run(secs(91));
        assert_eq!(all.script_notification(pipe), Some(Notification::hold_timer_expired()));
        assert_eq!(is_kept(&all), ours);
        // The script's listener does not answer: the Restart Time of 120 s runs from the loss.
        all.run(secs(118));
        assert_eq!(is_kept(&all), ours);
        all.run(secs(3));
        assert!(!is_kept(&all));

        let (mut all, pipe) = established(ours, true);
        all.script_send(pipe, &message(1, &[]));
        assert!(all.is_closed(pipe));
        assert_eq!(is_kept(&all), ours, "an OPEN in Established is an FSM error");
    }
}

#[test]
fn retained_routes_end_at_end_of_rib_or_the_second_loss() {
    for comes_back in [true, false] {
        let (mut all, pipe) = established(true, true);
        all.script_send(pipe, &notification(&Notification::hold_timer_expired()));
        let again = all.script_accept();
        let mut open = offer(true);
        open.capabilities.retain(|capability| capability.code() != 64);
        let mut capability = restart_capability(false, true);
        if let Capability::GracefulRestart { notification, .. } = &mut capability {
            *notification = true;
        }
        open.capabilities.push(capability);
        all.script_send(again, &encoded(&open));
        all.script_send(again, &keepalive());
        assert_eq!(all.state(1, 2), State::Established);
        assert!(is_kept(&all));
        match comes_back {
            true => all.script_send(again, &end_of_rib()),
            false => all.script_send(again, &notification(&Notification::hold_timer_expired())),
        }
        assert!(!is_kept(&all), "the path was stale twice, or was not announced again");
    }
}

#[test]
fn a_permanent_end_is_sent_as_a_hard_reset_if_supported() {
    let limit = |peer: &mut PeerConfig| peer.max_prefixes = Some(1);
    type Act = fn(&mut Net);
    let acts: [(Act, Notification); 3] = [
        (
            |all| {
                all.with(1, |speaker, now| speaker.remove_peer(crate::net::ip(2), now)).unwrap();
            },
            Notification::cease(Cease::PeerDeconfigured, None),
        ),
        (
            |all| all.stop(1, Stop::Cease { communication: "moves".to_owned() }),
            Notification::cease(Cease::AdministrativeShutdown, Some("moves")),
        ),
        (
            |all| {
                let pipe = *all.accepted.last().unwrap();
                all.script_send(pipe, &announce(&[[10, 2, 1], [10, 2, 2]]));
            },
            Notification::cease(Cease::MaximumPrefixes, None),
        ),
    ];
    for (act, reason) in acts {
        for theirs in [false, true] {
            let mut all = Net::scripted(|peer| {
                peer.restart_notification = true;
                limit(peer);
            });
            all.boot(1);
            let pipe = all.script_accept();
            all.script_send(pipe, &encoded(&offer(theirs)));
            all.script_send(pipe, &keepalive());
            all.script_send(pipe, &announce(&[[10, 2, 0]]));
            act(&mut all);
            all.run(3 * LATENCY);
            let expected = if theirs { Notification::hard_reset(&reason) } else { reason.clone() };
            assert_eq!(all.script_notification(pipe), Some(expected));
            let retained = all.nodes[&1].events.iter().find_map(|event| match event {
                Event::PeerDown { retained, .. } => Some(*retained),
                _ => None,
            });
            assert_eq!(retained, Some(FamilySet::EMPTY));
        }
    }
}

/// The peer sends a reason and is then unreachable: the NOTIFICATION is kept in addition to the
/// last error.
#[test]
fn later_errors_do_not_hide_a_notification() {
    let (mut all, pipe) = established(false, false);
    all.scripts.clear();
    all.script_send(pipe, &notification(&Notification::new(6, 4, [])));
    all.run(secs(30));
    let status = all.status(1, 2);
    assert_eq!(status.last_error.unwrap().text, "cannot connect: connection refused");
    let sent = status.notification_received.unwrap();
    assert_eq!((sent.code, sent.subcode, sent.text.as_str()), (6, 4, "Cease/Administrative Reset"));
    assert_eq!(status.notification_sent, None);
    // A NOTIFICATION that this side sends is kept in the same way.
    let (mut all, pipe) = established(false, false);
    all.scripts.clear();
    all.script_send(pipe, &message(1, &[]));
    all.run(secs(30));
    let status = all.status(1, 2);
    assert_eq!(status.last_error.unwrap().text, "cannot connect: connection refused");
    let sent = status.notification_sent.unwrap();
    assert_eq!((sent.code, sent.subcode), (1, 2));
    assert_eq!(status.notification_received, None);
}

/// One of two speakers gets an edit that needs a new session. No route is lost on either side.
#[test]
fn an_edit_that_resets_the_session_loses_no_route() {
    for notification in [false, true] {
        let mut all = Net::pair();
        for node in all.nodes.values_mut() {
            node.peers.values_mut().for_each(|peer| peer.restart_notification = notification);
        }
        all.boot_all();
        all.run(secs(20));
        if notification {
            all.must_hold = vec![(1, net("10.2.0.0/16")), (2, net("10.1.0.0/16"))];
        }
        all.edit(1, 2, |peer| peer.hold_time = secs(30));
        let lost = !all.nodes[&1].fib.contains_key(&net("10.2.0.0/16"));
        assert_eq!(lost, !notification);
        all.run(secs(60));
        assert_eq!(all.status(1, 2).session.unwrap().hold_time, secs(30));
        assert_eq!(all.status(1, 2).families.iter().map(|family| family.stale).sum::<usize>(), 0);
    }
}
