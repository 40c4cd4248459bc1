//! The cause of a lost session stays known, whatever happens to later attempts.

use std::time::Duration;

use trunkline_bgp::bfd::HostLink;
use trunkline_bgp::speaker::{Cause, CauseKind, Event, PeerStatus, RefusedSegments, Side, State};
use trunkline_bgp::types::Asn;
use trunkline_bgp::wire::{Capability, Notification};

use crate::net::{Net, encoded, ip, keepalive, message, open, secs};

fn established() -> (Net, usize) {
    let mut all = Net::scripted(|_| {});
    all.boot(1);
    let pipe = establish(&mut all);
    (all, pipe)
}

fn establish(all: &mut Net) -> usize {
    let pipe = all.script_accept();
    all.script_send(pipe, &encoded(&open()));
    all.script_send(pipe, &keepalive());
    assert_eq!(all.state(1, 2), State::Established);
    pipe
}

fn notify(all: &mut Net, pipe: usize, notification: &Notification) {
    let mut body = vec![notification.code, notification.subcode];
    body.extend_from_slice(&notification.data);
    all.script_send(pipe, &message(3, &body));
}

fn loss(status: &PeerStatus) -> &Cause {
    &status.last_down.as_ref().unwrap().cause
}

fn attempt(status: &PeerStatus) -> &Cause {
    &status.last_attempt.as_ref().unwrap().cause
}

#[test]
fn later_failures_do_not_replace_the_loss() {
    let (mut all, _) = established();
    all.cut();
    all.run_while_not("the end of the session", secs(200), |all| all.state(1, 2) != State::Established);
    let lost = all.now;
    for _ in 0..6 {
        all.run(secs(15));
        let status = all.status(1, 2);
        assert_eq!(*loss(&status), Cause::HoldTimer { by: Side::Local });
        assert_eq!(status.last_down.as_ref().unwrap().ago, all.now - lost);
        assert_eq!(
            status.down_for,
            Some(all.now - lost),
            "the time is not the time in state {}",
            status.state
        );
        assert_eq!(*attempt(&status), Cause::NoAnswer);
        assert_eq!(status.losses, [(CauseKind::HoldTimer, 1)]);
    }
}

#[test]
fn an_ended_process_is_closed_then_refused() {
    let mut all = Net::pair();
    all.boot_all();
    all.run_until_up(1, 2);
    all.run(secs(20));
    all.kill(2);
    all.run(secs(30));
    let status = all.status(1, 2);
    assert_eq!(*loss(&status), Cause::Closed);
    assert_eq!(*attempt(&status), Cause::Refused);
}

#[test]
fn a_notification_defines_the_cause() {
    let by = Side::Peer;
    for (notification, cause) in [
        (Notification::new(6, 1, [0, 1, 1, 0, 0, 0, 9]), Cause::PrefixLimit { by, limit: Some(9) }),
        (Notification::new(6, 2, []), Cause::Shutdown { by }),
        (Notification::new(6, 3, []), Cause::Deconfigured { by }),
        (Notification::new(6, 6, []), Cause::Configuration { by }),
        (Notification::new(6, 10, []), Cause::Bfd { by }),
    ] {
        let (mut all, pipe) = established();
        all.scripts.clear();
        notify(&mut all, pipe, &notification);
        all.run(secs(60));
        let status = all.status(1, 2);
        assert_eq!(*loss(&status), cause);
        assert_eq!(*attempt(&status), Cause::Refused);
        let reported = all.nodes[&1].events.iter().find_map(|event| match event {
            Event::PeerDown { cause, .. } => Some(cause.clone()),
            _ => None,
        });
        assert_eq!(reported, Some(cause));
    }
}

#[test]
fn the_first_session_clears_earlier_failures() {
    let mut all = Net::scripted(|_| {});
    all.scripts.clear();
    all.boot(1);
    all.run(secs(9));
    let status = all.status(1, 2);
    assert_eq!(*attempt(&status), Cause::Refused);
    assert_eq!(status.down_for, Some(secs(9)), "since the start");
    assert!(status.last_error.is_some());
    all.scripts.insert(2);
    let pipe = establish(&mut all);
    let status = all.status(1, 2);
    assert_eq!(
        (status.flaps, status.last_error, status.last_attempt, status.down_for),
        (0, None, None, None)
    );
    // The new session does not clear the cause of the loss.
    all.script_close(pipe);
    establish(&mut all);
    let status = all.status(1, 2);
    assert_eq!(*loss(&status), Cause::Closed);
    assert_eq!((status.flaps, status.last_attempt, status.down_for), (1, None, None));
}

#[test]
fn a_wrong_as_names_both_numbers() {
    let mut all = Net::scripted(|_| {});
    all.boot(1);
    let pipe = all.script_accept();
    let mut other = open();
    other.my_as = Asn(65009);
    other.capabilities.retain(|capability| !matches!(capability, Capability::FourOctetAs(_)));
    other.capabilities.push(Capability::FourOctetAs(Asn(65009)));
    all.script_send(pipe, &encoded(&other));
    let wrong = Cause::WrongAs { by: Side::Local, expected: Some(Asn(65002)), got: Some(Asn(65009)) };
    assert_eq!(*attempt(&all.status(1, 2)), wrong);

    // An Established session does not hide why another connection failed.
    let mut all = Net::scripted(|_| {});
    all.boot(1);
    let pipe = all.script_accept();
    notify(&mut all, pipe, &Notification::new(2, 2, []));
    let refused = Cause::WrongAs { by: Side::Peer, expected: None, got: None };
    assert_eq!(*attempt(&all.status(1, 2)), refused);
}

#[test]
fn a_connection_that_ends_before_open_is_a_rejection() {
    let mut all = Net::scripted(|_| {});
    all.boot(1);
    let pipe = all.script_accept();
    all.script_close(pipe);
    all.run(Duration::from_millis(500));
    assert_eq!(*attempt(&all.status(1, 2)), Cause::Rejected);
}

/// The links of node 1; its address is in the peer's subnet.
fn links(carrier: bool) -> Vec<HostLink> {
    vec![HostLink {
        name: "eth2".parse().unwrap(),
        index: 3,
        addresses: vec![format!("{}/24", ip(1)).parse().unwrap()],
        carrier,
        uplink: true,
    }]
}

#[test]
fn missing_carrier_is_the_cause_of_a_loss() {
    let (mut all, _) = established();
    all.with(1, |speaker, _| speaker.set_links(&links(true)));
    assert_eq!(all.status(1, 2).no_carrier, None);
    all.with(1, |speaker, _| speaker.set_links(&links(false)));
    all.cut();
    all.run(secs(120));
    let interface = "eth2".parse().unwrap();
    let status = all.status(1, 2);
    assert_eq!(status.no_carrier, Some(interface));
    assert_eq!(*loss(&status), Cause::Carrier { interface });
    assert!(status.last_down.unwrap().text.starts_with("eth2 has no carrier: hold timer expired"));
    assert_eq!(status.losses, [(CauseKind::Carrier, 1)]);
    // The carrier is back, but the router is not.
    all.with(1, |speaker, _| speaker.set_links(&links(true)));
    all.run(secs(60));
    let status = all.status(1, 2);
    assert_eq!((status.no_carrier, loss(&status)), (None, &Cause::Carrier { interface }));
    assert_eq!(*attempt(&status), Cause::NoAnswer);
}

#[test]
fn a_notification_overrides_lost_carrier() {
    let (mut all, pipe) = established();
    all.with(1, |speaker, _| speaker.set_links(&links(false)));
    notify(&mut all, pipe, &Notification::new(6, 2, []));
    assert_eq!(*loss(&all.status(1, 2)), Cause::Shutdown { by: Side::Peer });
}

#[test]
fn refused_segments_identify_a_wrong_password() {
    for (refused, expected) in [
        (RefusedSegments { wrong: 3, ..RefusedSegments::default() }, true),
        (RefusedSegments { unsigned: 1, ..RefusedSegments::default() }, true),
        (RefusedSegments { unexpected: 1, ..RefusedSegments::default() }, false),
        (RefusedSegments::default(), false),
    ] {
        let mut all = Net::scripted(|peer| {
            peer.password = Some(trunkline_bgp::config::Password::new("lab-secret").unwrap());
        });
        all.cut = true;
        all.boot(1);
        all.run(secs(5));
        assert_eq!(all.state(1, 2), State::Connect);
        let conn = *all.nodes[&1].options.keys().last().unwrap();
        let now = all.now;
        let due = all.with(1, |speaker, _| speaker.attempt_due(conn));
        assert!(due.is_some_and(|due| due > now));
        all.with(1, |speaker, _| speaker.handle_refused_segments(conn, refused));
        all.run(secs(6));
        assert_eq!(
            all.with(1, |speaker, _| speaker.attempt_due(conn)),
            None,
            "the attempt was \
            given up"
        );
        let cause = if expected { Cause::Passwords { refused } } else { Cause::NoAnswer };
        assert_eq!(*attempt(&all.status(1, 2)), cause);
    }
}

#[test]
fn evidence_of_a_wrong_password_outlives_silent_attempts() {
    let mut all = Net::scripted(|peer| {
        peer.password = Some(trunkline_bgp::config::Password::new("lab-secret").unwrap());
    });
    all.cut = true;
    all.boot(1);
    for round in 0..6 {
        all.run(secs(5));
        let conn = *all.nodes[&1].options.keys().last().unwrap();
        // A SYN of the router arrives during every other attempt.
        let refused = RefusedSegments { wrong: round % 2 * (round + 1), ..RefusedSegments::default() };
        all.with(1, |speaker, _| speaker.handle_refused_segments(conn, refused));
        all.run(secs(5));
    }
    let status = all.status(1, 2);
    assert!(matches!(attempt(&status), Cause::Passwords { .. }), "{:?}", status.last_attempt);
    let reported = all.nodes[&1].events.iter().filter(|event| matches!(event, Event::PeerError { .. }));
    assert_eq!(reported.count(), 2, "each of two failures once: no answer, then the passwords");
    all.run(secs(240));
    assert_eq!(*attempt(&all.status(1, 2)), Cause::NoAnswer, "evidence ages");
}
