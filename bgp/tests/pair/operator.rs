//! Operator actions on a session: resets, refreshes, an administrative shutdown with a text.

use trunkline_bgp::speaker::{Event, PeerConfig, State, Stop};
use trunkline_bgp::wire::{Capability, Cease, MessageKind, Notification};

use crate::net::{Net, announce, encoded, end_of_rib, end_of_rib_v6, ip, keepalive, net, open, secs};

/// A session in Established, with a script that has sent one route. Both sides have RFC 8538's N
/// bit if `notification`.
fn established(notification: bool, edit: impl FnOnce(&mut PeerConfig)) -> (Net, usize) {
    let mut all = Net::scripted(|peer| {
        peer.restart_notification = notification;
        edit(peer);
    });
    all.add(1).originated.insert(net("10.1.0.0/16"), Default::default());
    all.boot(1);
    let pipe = accept(&mut all, notification);
    (all, pipe)
}

fn accept(all: &mut Net, notification: bool) -> usize {
    let pipe = all.script_accept();
    let mut offer = open();
    for capability in &mut offer.capabilities {
        if let Capability::GracefulRestart { notification: n, .. } = capability {
            *n = notification;
        }
    }
    all.script_send(pipe, &encoded(&offer));
    for octets in [keepalive(), announce(&[[10, 2, 0]]), end_of_rib(), end_of_rib_v6()] {
        all.script_send(pipe, &octets);
    }
    assert_eq!(all.state(1, 2), State::Established);
    pipe
}

fn reset(all: &mut Net, hard: bool, text: &str) -> bool {
    all.with(1, |speaker, now| speaker.reset_peer(ip(2), hard, text.to_owned(), now).unwrap())
}

#[test]
fn a_reset_sends_its_text_and_starts_a_new_session() {
    let (mut all, pipe) = established(false, |_| {});
    assert!(reset(&mut all, false, "new optics"));
    let again = accept(&mut all, false);
    let notification = all.script_notification(pipe).unwrap();
    assert_eq!(notification, Notification::cease(Cease::AdministrativeReset, Some("new optics")));
    assert_ne!(pipe, again);
    assert!(all.is_closed(pipe));
    let status = all.status(1, 2);
    assert_eq!(status.notification_sent.unwrap().text, notification.to_string());
    assert!(status.last_error.is_none(), "an operator action is no error");
}

#[test]
fn a_reset_retains_paths_with_the_n_bit_unless_it_is_hard() {
    for (notification, hard) in [(false, false), (true, false), (true, true)] {
        let (mut all, pipe) = established(notification, |_| {});
        assert!(reset(&mut all, hard, ""));
        assert_eq!(all.nodes[&1].fib.contains_key(&net("10.2.0.0/24")), notification && !hard);
        accept(&mut all, notification);
        let plain = Notification::cease(Cease::AdministrativeReset, None);
        let notification = if hard { Notification::hard_reset(&plain) } else { plain };
        assert_eq!(all.script_notification(pipe), Some(notification));
        assert!(all.nodes[&1].fib.contains_key(&net("10.2.0.0/24")));
    }
}

#[test]
fn a_reset_ends_the_idle_hold_but_not_a_shutdown() {
    let (mut all, pipe) = established(false, |peer| peer.max_prefixes = Some(1));
    all.script_send(pipe, &announce(&[[10, 3, 0], [10, 4, 0]]));
    assert_eq!(all.state(1, 2), State::Idle);
    all.run(secs(2));
    assert_eq!(all.state(1, 2), State::Idle, "the peer must change its configuration first");
    assert!(reset(&mut all, false, ""));
    accept(&mut all, false);

    all.edit(1, 2, |peer| peer.shutdown = true);
    assert!(!reset(&mut all, false, ""));
    all.run(secs(30));
    assert_eq!(all.state(1, 2), State::Idle);
    all.stop(1, Stop::Silent);
}

#[test]
fn an_outbound_refresh_sends_all_routes_again() {
    let (mut all, pipe) = established(false, |_| {});
    all.run(secs(1));
    let before = all.script_got(pipe).len();
    assert!(all.with(1, |speaker, now| speaker.refresh_out(ip(2), now).unwrap()));
    all.run(secs(1));
    let again = all.script_got(pipe).into_iter().skip(before);
    let updates = again.filter(|(kind, body)| *kind == MessageKind::Update && body.ends_with(&[16, 10, 1]));
    assert_eq!(updates.count(), 1);
    all.edit(1, 2, |peer| peer.shutdown = true);
    assert!(!all.with(1, |speaker, now| speaker.refresh_out(ip(2), now).unwrap()));
}

#[test]
fn a_shutdown_sends_its_configured_text() {
    let (mut all, pipe) = established(false, |_| {});
    all.edit(1, 2, |peer| {
        peer.shutdown = true;
        peer.shutdown_communication = "drained: new disk".to_owned();
    });
    all.run(secs(1));
    let notification = Notification::cease(Cease::AdministrativeShutdown, Some("drained: new disk"));
    assert_eq!(all.script_notification(pipe), Some(notification));
    // A changed text needs no new session.
    all.edit(1, 2, |peer| peer.shutdown = false);
    let again = accept(&mut all, false);
    all.edit(1, 2, |peer| peer.shutdown_communication = "other".to_owned());
    assert!(!all.is_closed(again));
}

#[test]
fn all_is_advertised_without_pending_routes() {
    let (mut all, pipe) = established(false, |_| {});
    all.run(secs(1));
    let all_sent = |all: &mut Net| all.with(1, |speaker, _| speaker.has_advertised_all());
    assert!(all_sent(&mut all));
    let before_it_is_written = all.with(1, |speaker, now| {
        speaker.originate(net("10.1.9.0/24"), Default::default(), now);
        speaker.has_advertised_all()
    });
    assert!(!before_it_is_written);
    all.run(secs(1));
    assert!(all_sent(&mut all));
    all.script_close(pipe);
    all.with(1, |speaker, now| speaker.withdraw(net("10.1.9.0/24"), now));
    assert!(all_sent(&mut all), "no peer is Established");
}

#[test]
fn control_characters_of_a_peer_are_escaped() {
    let (mut all, pipe) = established(false, |_| {});
    let hostile = "\u{1b}[2J\u{7}bye\r\nForged: line\u{202e}";
    let mut octets = Vec::new();
    Notification::cease(Cease::AdministrativeShutdown, Some(hostile)).encode(&mut octets);
    all.script_send(pipe, &octets);
    let status = all.status(1, 2);
    let down = all.nodes[&1].events.iter().find_map(|event| match event {
        Event::PeerDown { reason, .. } => Some(reason.clone()),
        _ => None,
    });
    for shown in [status.notification_received.unwrap().text, status.last_error.unwrap().text, down.unwrap()]
    {
        assert!(shown.contains("bye") && shown.contains("Forged"), "{shown:?}");
        assert!(!shown.chars().any(|c| c.is_control() || c == '\u{202e}'), "{shown:?}");
    }
}

#[test]
fn a_host_name_with_control_characters_is_shown_in_hex() {
    for (host, plain) in [("tor1", true), ("tor\u{202e}1", false), ("tor\u{1b}[2J", false)] {
        let mut all = Net::scripted(|_| {});
        all.boot(1);
        let pipe = all.script_accept();
        let mut offer = open();
        offer.capabilities.push(Capability::Hostname { host: host.to_owned(), domain: String::new() });
        all.script_send(pipe, &encoded(&offer));
        all.script_send(pipe, &keepalive());
        let shown = all.status(1, 2).session.unwrap().capabilities_received.join(", ");
        assert_eq!(shown.contains("host name tor"), plain, "{shown:?}");
        assert!(!shown.chars().any(|c| c.is_control() || c == '\u{202e}'), "{shown:?}");
    }
}
