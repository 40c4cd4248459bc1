//! Every transition of RFC 4271 §8.2.2 that applies (DelayOpen does not), against a scripted peer.

use std::time::Duration;

use trunkline_bgp::config::PeerConfig;
use trunkline_bgp::speaker::{Event, State};
use trunkline_bgp::wire::{Cease, MessageKind, Notification, RouteRefresh};

use crate::net::{Net, announce, encoded, end_of_rib, ip, keepalive, message, open, secs};

/// Node 1 with its scripted peer in this state. From OpenSent on there is a connection, opened by
/// node 1 or by the script.
fn reach(state: State, passive: bool) -> (Net, usize) {
    let mut all = Net::scripted(|peer| peer.passive = passive);
    match (state, passive) {
        (State::Connect, _) => all.cut = true,
        (State::Active, false) => {
            all.scripts.clear();
        }
        _ => {}
    }
    all.boot(1);
    let mut pipe = usize::MAX;
    match (state, passive) {
        (State::Idle, _) => unreachable!(),
        (State::Connect | State::Active, _) => all.run(Duration::from_millis(100)),
        (_, false) => pipe = all.script_accept(),
        (_, true) => pipe = all.script_connect(),
    }
    if state >= State::OpenConfirm {
        all.script_send(pipe, &encoded(&open()));
    }
    if state == State::Established {
        all.script_send(pipe, &keepalive());
    }
    assert_eq!(all.state(1, 2), state);
    (all, pipe)
}

const CONNECTED: [State; 3] = [State::OpenSent, State::OpenConfirm, State::Established];

#[test]
fn a_peer_starts_in_connect_or_passive_in_active() {
    reach(State::Connect, false);
    let (all, _) = reach(State::Active, true);
    assert_eq!(all.status(1, 2).next_attempt, None, "a passive peer never connects");
}

#[test]
fn failed_attempts_slow_down_to_connect_retry_time() {
    let mut all = Net::scripted(|peer| peer.connect_retry = secs(16));
    all.scripts.clear();
    all.boot(1);
    let mut waits = Vec::new();
    for _ in 0..8 {
        all.run_while_not("Active", secs(60), |all| all.state(1, 2) == State::Active);
        waits.push(all.run_while_not("Connect", secs(60), |all| all.state(1, 2) == State::Connect));
    }
    for (wait, full) in waits.into_iter().zip([1, 2, 4, 8, 16, 16, 16, 16]) {
        assert!(wait <= secs(full) && wait >= secs(full).mul_f64(0.75), "{wait:?} of {full} s");
    }
    let error = all.status(1, 2).last_error.unwrap().text;
    assert_eq!(error, "cannot connect: connection refused");
    let reported = all.nodes[&1].events.iter().filter(|event| matches!(event, Event::PeerError { .. }));
    assert_eq!(reported.count(), 1, "the same failure is reported once");
}

#[test]
fn an_attempt_without_answer_is_repeated() {
    let (mut all, _) = reach(State::Connect, false);
    all.run(secs(15));
    assert_eq!(all.state(1, 2), State::Connect);
    assert_eq!(
        all.status(1, 2).last_error.unwrap().text,
        "cannot connect: no answer for 10 s: it is down or filtered, or it expects a password and none is set here"
    );
    all.cut = false;
    all.script_accept();
    assert_eq!(all.state(1, 2), State::OpenSent);
}

#[test]
fn active_accepts_an_incoming_connection() {
    let (mut all, _) = reach(State::Active, false);
    let pipe = all.script_connect();
    assert_eq!(all.state(1, 2), State::OpenSent);
    assert_eq!(all.script_got(pipe)[0].0, MessageKind::Open);
    // Until the peer sends OPEN, this side's attempts continue; then they end.
    assert!(all.status(1, 2).next_attempt.is_some());
    all.script_send(pipe, &encoded(&open()));
    assert_eq!((all.state(1, 2), all.status(1, 2).next_attempt), (State::OpenConfirm, None));
}

#[test]
fn open_and_keepalive_lead_to_established() {
    for passive in [false, true] {
        let (mut all, pipe) = reach(State::Established, passive);
        all.run(secs(1));
        let kinds: Vec<MessageKind> = all.script_got(pipe).into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(kinds[..2], [MessageKind::Open, MessageKind::Keepalive]);
        assert_eq!(kinds.iter().filter(|kind| **kind == MessageKind::Update).count(), 2, "End-of-RIB twice");
    }
}

#[test]
fn unexpected_messages_get_the_subcode_of_the_state() {
    let refresh = message(5, &[0, 1, 0, 1]);
    for passive in [false, true] {
        for (state, messages, subcode) in [
            (State::OpenSent, vec![keepalive(), announce(&[]), refresh.clone()], 1),
            (State::OpenConfirm, vec![encoded(&open()), announce(&[]), refresh.clone()], 2),
            (State::Established, vec![encoded(&open())], 3),
        ] {
            for bytes in messages {
                let (mut all, pipe) = reach(state, passive);
                all.script_send(pipe, &bytes);
                assert_eq!(all.script_notification(pipe), Some(Notification::fsm_error(subcode)), "{state}");
                assert!(all.is_closed(pipe));
                assert_eq!(all.state(1, 2), State::Idle);
            }
        }
    }
}

#[test]
fn a_notification_ends_the_session_and_is_not_answered() {
    for state in CONNECTED {
        for (notification, after) in [
            (Notification::new(2, 2, []), State::Idle),
            (Notification::cease(Cease::AdministrativeReset, Some("back soon")), State::Active),
        ] {
            let (mut all, pipe) = reach(state, false);
            let before = all.script_got(pipe).len();
            let mut bytes = Vec::new();
            notification.encode(&mut bytes);
            all.script_send(pipe, &bytes);
            assert_eq!(all.state(1, 2), after, "{state}");
            assert_eq!(all.script_notification(pipe), None);
            assert!(all.is_closed(pipe) && all.script_got(pipe).len() <= before + 2);
            let status = all.status(1, 2);
            let received = status.notification_received.unwrap();
            assert_eq!(received.text, notification.to_string());
            assert_eq!((received.code, received.subcode), (notification.code, notification.subcode));
            assert_eq!(status.last_error.unwrap().text, format!("received NOTIFICATION {notification}"));
        }
    }
}

#[test]
fn the_peer_may_reconnect_at_once_after_tcp_ends() {
    for state in CONNECTED {
        let (mut all, pipe) = reach(state, false);
        all.script_close(pipe);
        assert_eq!(all.state(1, 2), State::Active, "{state}");
        assert_eq!(all.status(1, 2).last_error.unwrap().text, "connection lost: closed by the peer");
        all.script_connect();
        assert_eq!(all.state(1, 2), State::OpenSent);
    }
}

#[test]
fn the_hold_timer_ends_each_state() {
    for (state, after) in [(State::OpenSent, 240), (State::OpenConfirm, 90), (State::Established, 90)] {
        let (mut all, pipe) = reach(state, false);
        all.run(secs(after - 1));
        assert_eq!(all.state(1, 2), state);
        all.run(secs(1));
        assert_eq!(all.script_notification(pipe), Some(Notification::hold_timer_expired()));
        assert_eq!(all.state(1, 2), State::Idle);
        let error = all.status(1, 2).last_error.unwrap().text;
        assert_eq!(error, format!("hold timer expired: no message from the peer for {after} s"));
    }
}

#[test]
fn keepalives_and_updates_keep_a_session_and_are_sent_in_time() {
    for bytes in [keepalive(), end_of_rib()] {
        let (mut all, pipe) = reach(State::Established, false);
        for _ in 0..20 {
            all.run(secs(80));
            all.script_send(pipe, &bytes);
        }
        assert_eq!(all.state(1, 2), State::Established);
        let sent = all.script_got(pipe).iter().filter(|(kind, _)| *kind == MessageKind::Keepalive).count();
        // In 1600 s, node 1 sends a KEEPALIVE every 22.5 to 30 s.
        assert!((53..=72).contains(&sent), "{sent} KEEPALIVEs");
    }
}

#[test]
fn hold_time_zero_disables_both_timers() {
    let mut all = Net::scripted(|peer| peer.hold_time = secs(0));
    all.boot(1);
    let pipe = all.script_accept();
    all.script_send(pipe, &encoded(&open()));
    all.script_send(pipe, &keepalive());
    all.run(secs(1));
    let before = all.script_got(pipe).len();
    all.run(secs(100_000));
    assert_eq!(all.state(1, 2), State::Established);
    assert_eq!(all.script_got(pipe).len(), before);
}

#[test]
fn an_operators_stop_ends_every_state() {
    let shut = |peer: &mut PeerConfig| peer.shutdown = true;
    for state in [State::Connect, State::Active, State::OpenSent, State::OpenConfirm, State::Established] {
        let (mut all, pipe) = reach(state, false);
        all.edit(1, 2, shut);
        all.run(secs(1));
        assert_eq!(all.state(1, 2), State::Idle, "{state}");
        if state >= State::OpenSent {
            let expected = Notification::cease(Cease::AdministrativeShutdown, None);
            assert_eq!(all.script_notification(pipe), Some(expected));
        }
        all.run(secs(1000));
        assert_eq!(all.state(1, 2), State::Idle);
        all.cut = false;
        let refused = all.script_connect();
        assert!(all.is_closed(refused));
        // Without `shutdown`, the peer starts again.
        all.scripts.insert(2);
        all.edit(1, 2, |peer| peer.shutdown = false);
        all.script_accept();

        let (mut all, pipe) = reach(state, false);
        all.with(1, |speaker, now| speaker.remove_peer(ip(2), now).unwrap());
        all.run(secs(1));
        if state >= State::OpenSent {
            assert_eq!(
                all.script_notification(pipe),
                Some(Notification::cease(Cease::PeerDeconfigured, None))
            );
        }
        assert!(all.nodes[&1].speaker.as_ref().unwrap().peers(all.now).is_empty());
    }
}

#[test]
fn errors_hold_the_peer_in_idle_with_growing_delay() {
    let mut all = Net::scripted(|_| {});
    all.boot(1);
    let mut wrong = open();
    wrong.my_as = trunkline_bgp::types::Asn(65003);
    wrong.as_field = 65003;
    wrong.capabilities.retain(|capability| capability.code() != 65);
    for full in [1, 2, 4, 8, 16, 32, 60, 60] {
        let pipe = all.script_accept();
        all.script_send(pipe, &encoded(&wrong));
        assert_eq!(all.script_notification(pipe), Some(Notification::new(2, 2, [])));
        assert_eq!(all.state(1, 2), State::Idle);
        let refused = all.script_connect();
        assert!(all.is_closed(refused), "an incoming connection in Idle");
        let wait = all.status(1, 2).next_attempt.unwrap() + secs(1).mul_f64(0.02);
        assert!(wait <= secs(full + 1) && wait >= secs(full).mul_f64(0.75), "{wait:?} of {full} s");
    }
    let error = all.status(1, 2).last_error.unwrap().text;
    assert!(error.contains("the peer is in AS 65003, the configuration says 65002"), "{error}");
    assert!(error.contains("OPEN Message Error/Bad Peer AS"), "{error}");
}

#[test]
fn a_stable_session_resets_the_delays() {
    let mut all = Net::scripted(|_| {});
    all.boot(1);
    for round in 0..6 {
        let pipe = all.script_accept();
        all.script_send(pipe, &encoded(&open()));
        all.script_send(pipe, &keepalive());
        all.run(secs(60));
        all.script_send(pipe, &message(9, &[]));
        assert_eq!(all.script_notification(pipe), Some(Notification::new(1, 3, [9])), "round {round}");
        assert!(all.status(1, 2).next_attempt.unwrap() <= secs(1));
    }
    assert_eq!(all.status(1, 2).flaps, 6);
    for _ in 0..6 {
        let pipe = all.script_accept();
        all.script_send(pipe, &encoded(&open()));
        all.script_send(pipe, &keepalive());
        all.run(secs(60));
        all.script_close(pipe);
        assert!(all.status(1, 2).next_attempt.unwrap() <= secs(1));
    }
}

#[test]
fn a_peer_that_does_not_read_is_given_up() {
    let (mut all, pipe) = reach(State::Established, false);
    all.script_block(pipe);
    for _ in 0..9 {
        all.run(secs(60));
        all.script_send(pipe, &keepalive());
    }
    assert_eq!(all.status(1, 2).flaps, 1);
    assert_eq!(all.script_notification(pipe), Some(Notification::new(8, 0, [])));
    let error = all.status(1, 2).last_error.unwrap().text;
    assert_eq!(error, "send hold timer expired: the peer accepted no data for 480 s");
}

#[test]
fn route_refresh_sends_the_table_again() {
    let (mut all, pipe) = reach(State::Established, false);
    let prefix = crate::net::net("10.1.0.0/16");
    all.with(1, |speaker, now| speaker.originate(prefix, Default::default(), now));
    all.run(secs(1));
    let updates = |all: &Net| {
        all.script_got(pipe)
            .iter()
            .filter(|(kind, body)| *kind == MessageKind::Update && body.len() > 15)
            .count()
    };
    assert_eq!(updates(&all), 1);
    let mut refresh = Vec::new();
    RouteRefresh::request(trunkline_bgp::types::Family::Ipv4Unicast).encode(&mut refresh);
    all.script_send(pipe, &refresh);
    assert_eq!(updates(&all), 2);
    // A family that was not negotiated and an unknown subtype are ignored.
    all.script_send(pipe, &message(5, &[0, 25, 0, 70]));
    all.script_send(pipe, &message(5, &[0, 1, 3, 1]));
    assert_eq!((updates(&all), all.state(1, 2)), (2, State::Established));
    // In the other direction, node 1 requests a refresh.
    assert!(all.with(1, |speaker, now| speaker.request_refresh(ip(2), now).unwrap()));
    all.run(secs(1));
    let request = |(kind, body): &(MessageKind, Vec<u8>)| *kind == MessageKind::RouteRefresh && body[2] == 0;
    let requests = all.script_got(pipe).iter().filter(|message| request(message)).count();
    assert_eq!(requests, 2, "one request per family");
}

#[test]
fn a_silent_connection_does_not_stop_own_attempts() {
    let (mut all, _) = reach(State::Active, false);
    let mute = all.script_connect();
    all.scripts.insert(2);
    let own = all.script_accept();
    assert!(!all.is_closed(mute));
    all.script_send(own, &encoded(&open()));
    all.script_send(own, &keepalive());
    // The peer's identifier is higher, so an OPEN on its connection would end this one.
    all.run(trunkline_bgp::session::OPEN_DELAY);
    assert_eq!(all.state(1, 2), State::Established);
    assert!(all.is_closed(mute));
}

#[test]
fn no_answer_to_signed_segments_names_the_password() {
    let password = trunkline_bgp::config::Password::new("correct horse").unwrap();
    let mut all = Net::scripted(|peer| peer.password = Some(password));
    all.cut = true;
    all.boot(1);
    all.run(secs(12));
    let shown = format!("{:?}", all.status(1, 2));
    assert!(shown.contains("or the passwords differ"), "{shown}");
    assert!(
        !format!("{shown}{:?}{:?}", all.nodes[&1].events, all.nodes[&1].options).contains("correct horse")
    );
}
