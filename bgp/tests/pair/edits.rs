//! Edits of a live peer's configuration, field by field: the session is reset if and only if the
//! protocol requires it.

use std::time::Duration;

use trunkline_bgp::bfd::BfdConfig;
use trunkline_bgp::config::{Password, PeerConfig};
use trunkline_bgp::policy::{Policy, PolicyResult};
use trunkline_bgp::speaker::{Change, ConfigError, Event, ExportStanding, PathStanding, State};
use trunkline_bgp::types::{Asn, Family, FamilySet, NextHop, Role};
use trunkline_bgp::wire::{Cease, Notification};

use crate::local_as::local_as;
use crate::net::{Net, encoded, ip, keepalive, net, open, peer, secs};

type Edit = fn(&mut PeerConfig);

/// Every field of [`PeerConfig`] except the address, with an edit of it.
fn edits() -> Vec<(&'static str, Edit)> {
    // The pattern has no `..`, so a new field cannot be forgotten here.
    let PeerConfig {
        address: _,
        interface: _,
        port: _,
        remote_as: _,
        local_address: _,
        password: _,
        hold_time: _,
        keepalive: _,
        connect_retry: _,
        passive: _,
        ebgp_multihop: _,
        ttl_security: _,
        families: _,
        extended_messages: _,
        add_path: _,
        graceful_restart: _,
        long_lived: _,
        restart_notification: _,
        max_prefixes: _,
        import: _,
        export: _,
        paths: _,
        next_hop_v4: _,
        next_hop_v6: _,
        bfd: _,
        shutdown: _,
        shutdown_communication: _,
    } = peer(2);
    vec![
        ("interface", |peer| peer.interface = Some("eth0".parse().unwrap())),
        ("port", |peer| peer.port = 1790),
        ("remote_as", |peer| peer.remote_as = Asn(65009)),
        ("local_address", |peer| peer.local_address = Some(ip(1))),
        ("password", |peer| peer.password = Some(Password::new("secret").unwrap())),
        ("hold_time", |peer| peer.hold_time = secs(30)),
        ("keepalive", |peer| peer.keepalive = Some(secs(5))),
        ("connect_retry", |peer| peer.connect_retry = secs(7)),
        ("passive", |peer| peer.passive = true),
        ("ebgp_multihop", |peer| peer.ebgp_multihop = Some(3)),
        ("ttl_security", |peer| peer.ttl_security = Some(1)),
        ("families", |peer| peer.families = FamilySet::from_iter([Family::Ipv4Unicast])),
        ("extended_messages", |peer| peer.extended_messages = false),
        ("add_path", |peer| peer.add_path.receive = true),
        ("graceful_restart", |peer| peer.graceful_restart = None),
        ("long_lived", |peer| peer.long_lived[0] = Some(3600)),
        ("restart_notification", |peer| peer.restart_notification = true),
        ("max_prefixes", |peer| peer.max_prefixes = Some(10)),
        ("import", |peer| peer.import = Policy::reject_all()),
        ("export", |peer| peer.export = Policy::reject_all()),
        ("graceful_shutdown", |peer| peer.paths.graceful_shutdown = true),
        ("local_as", |peer| peer.paths.local_as = Some(local_as(64999))),
        ("local_role", |peer| peer.paths.local_role = Some(Role::Peer)),
        ("next_hop_v4", |peer| peer.next_hop_v4 = Some("10.0.0.99".parse().unwrap())),
        ("next_hop_v6", |peer| peer.next_hop_v6 = Some("2001:db8::1".parse().unwrap())),
        ("bfd", |peer| peer.bfd = Some(BfdConfig::new(Duration::from_millis(300)))),
        ("shutdown", |peer| peer.shutdown = true),
        ("shutdown_communication", |peer| peer.shutdown_communication = "new disk".to_owned()),
    ]
}

fn established() -> (Net, usize) {
    let mut all = Net::scripted(|_| {});
    all.nodes.get_mut(&1).unwrap().originated.insert(net("10.1.0.0/16"), Default::default());
    all.boot(1);
    let pipe = all.script_accept();
    all.script_send(pipe, &encoded(&open()));
    all.script_send(pipe, &keepalive());
    all.script_send(pipe, &crate::net::announce(&[[10, 2, 0]]));
    all.run(secs(5));
    assert_eq!(all.state(1, 2), State::Established);
    (all, pipe)
}

#[test]
fn an_edit_resets_the_session_only_if_necessary() {
    let resets = [
        "interface",
        "port",
        "remote_as",
        "local_address",
        "password",
        "hold_time",
        "families",
        "extended_messages",
        "add_path",
        "graceful_restart",
        "long_lived",
        "restart_notification",
        "local_as",
        "local_role",
        "shutdown",
    ];
    for (field, edit) in edits() {
        let (mut all, pipe) = established();
        let change = all.edit(1, 2, edit);
        all.run(Duration::from_millis(100));
        if resets.contains(&field) {
            assert_eq!(change, Change::Reset, "{field}");
            assert!(all.is_closed(pipe), "{field}");
            let cause =
                if field == "shutdown" { Cease::AdministrativeShutdown } else { Cease::ConfigurationChange };
            assert_eq!(all.script_notification(pipe), Some(Notification::cease(cause, None)), "{field}");
            // The next attempt starts at once, unless the peer is shut down.
            let state = if field == "shutdown" { State::Idle } else { State::OpenSent };
            assert_eq!(all.state(1, 2), state, "{field}");
        } else {
            assert_eq!(change, Change::Applied, "{field}");
            assert!(!all.is_closed(pipe), "{field}");
            assert_eq!((all.state(1, 2), all.status(1, 2).flaps), (State::Established, 0), "{field}");
        }
        assert_eq!(all.edit(1, 2, edit), Change::Unchanged, "{field}");
    }
}

#[test]
fn an_edit_applies_to_the_live_session() {
    let (mut all, pipe) = established();
    all.edit(1, 2, |peer| peer.keepalive = Some(secs(5)));
    let before = all.script_got(pipe).len();
    all.run(secs(50));
    assert!((10..=14).contains(&(all.script_got(pipe).len() - before)));

    all.script_send(pipe, &keepalive());
    let conn = *all.nodes[&1].options.keys().last().unwrap();
    assert_eq!((all.nodes[&1].options[&conn].ttl, all.nodes[&1].options[&conn].min_ttl), (Some(1), None));
    all.edit(1, 2, |peer| peer.ebgp_multihop = Some(3));
    assert_eq!(all.nodes[&1].options[&conn].ttl, Some(3));
    all.edit(1, 2, |peer| (peer.ebgp_multihop, peer.ttl_security) = (None, Some(2)));
    assert_eq!(
        (all.nodes[&1].options[&conn].ttl, all.nodes[&1].options[&conn].min_ttl),
        (Some(255), Some(254))
    );

    assert_eq!(all.nodes[&1].fib.len(), 1);
    all.edit(1, 2, |peer| peer.import.default = PolicyResult::Reject);
    assert_eq!(all.nodes[&1].fib.len(), 0);
    all.edit(1, 2, |peer| peer.import.default = PolicyResult::Accept);
    assert_eq!(all.nodes[&1].fib.len(), 1);

    let advertised = |all: &Net| {
        all.nodes[&1].speaker.as_ref().unwrap().advertised(ip(2)).unwrap().first().map(|r| r.next_hop)
    };
    assert_eq!(advertised(&all), Some(Some(NextHop::V4("10.0.0.1".parse().unwrap()))));
    let before = all.script_got(pipe).len();
    all.edit(1, 2, |peer| peer.next_hop_v4 = Some("10.0.0.99".parse().unwrap()));
    all.run(secs(1));
    assert_eq!(advertised(&all), Some(Some(NextHop::V4("10.0.0.99".parse().unwrap()))));
    assert!(all.script_got(pipe).len() > before, "the change is advertised");
    all.edit(1, 2, |peer| peer.export.default = PolicyResult::Reject);
    all.run(secs(1));
    assert_eq!(advertised(&all), None);

    let change = all.edit(1, 2, |peer| peer.max_prefixes = Some(1));
    assert_eq!((change, all.state(1, 2)), (Change::Applied, State::Established));
    assert_eq!(all.status(1, 2).flaps, 0);
}

#[test]
fn passive_turned_off_connects_and_turned_on_waits() {
    let mut all = Net::scripted(|peer| peer.passive = true);
    all.boot(1);
    all.run(secs(500));
    assert_eq!((all.state(1, 2), all.accepted.len()), (State::Active, 0));
    assert_eq!(all.edit(1, 2, |peer| peer.passive = false), Change::Applied);
    assert_eq!(all.state(1, 2), State::Connect);
    assert_eq!(all.edit(1, 2, |peer| peer.passive = true), Change::Applied);
    assert_eq!(all.state(1, 2), State::Active);
    all.run(secs(500));
    assert_eq!(all.state(1, 2), State::Active);
}

#[test]
fn an_edit_ends_the_idle_hold_after_an_error() {
    let mut all = Net::scripted(|peer| peer.remote_as = Asn(65009));
    all.boot(1);
    for _ in 0..6 {
        let pipe = all.script_accept();
        all.script_send(pipe, &encoded(&open()));
    }
    assert!(all.status(1, 2).next_attempt.unwrap() > secs(20));
    all.edit(1, 2, |peer| peer.remote_as = Asn(65002));
    let pipe = all.script_accept();
    all.script_send(pipe, &encoded(&open()));
    all.script_send(pipe, &keepalive());
    assert_eq!(all.state(1, 2), State::Established);
}

#[test]
fn adding_and_removing_peers_leaves_others_alone() {
    let mut all = Net::pair();
    all.add(3);
    let (three, one) = (peer(3), peer(1));
    all.nodes.get_mut(&3).unwrap().peers.insert(one.address, one);
    all.boot_all();
    all.run(secs(5));
    all.with(1, |speaker, now| speaker.add_peer(three.clone(), now).unwrap());
    assert_eq!(
        all.with(1, |speaker, now| speaker.add_peer(three.clone(), now)),
        Err(ConfigError::DuplicatePeer(ip(3).into()))
    );
    all.run(secs(130));
    assert_eq!(all.state(3, 1), State::Established);
    assert_eq!(
        all.routes_from(3, 1).len(),
        2,
        "node 1's own route, and the route received from \
        node 2"
    );
    all.with(1, |speaker, now| speaker.remove_peer(ip(2), now).unwrap());
    all.run(secs(1));
    assert_eq!(all.routes_from(3, 1), [net("10.1.0.0/16")]);
    assert_eq!(all.status(3, 1).flaps, 0);
    let gone = all.nodes[&2].events.iter().any(|event| match event {
        Event::PeerDown { reason, .. } => reason == "received NOTIFICATION Cease/Peer De-configured",
        _ => false,
    });
    assert!(gone);
    assert_eq!(
        all.with(1, |speaker, now| speaker.remove_peer(ip(2), now)),
        Err(ConfigError::UnknownPeer(ip(2).into()))
    );
}

#[test]
fn policies_are_edited_and_explained_on_the_live_session() {
    use trunkline_bgp::policy::{AsPathMatch, Conditions, Rule};

    let (mut all, pipe) = established();
    let explain = |all: &mut Net, prefix: &str| all.with(1, |speaker, now| speaker.explain(net(prefix), now));
    let received = explain(&mut all, "10.2.0.0/24");
    assert_eq!(
        (received.paths[0].standing, received.peers[0].standing),
        (PathStanding::Best, ExportStanding::Withheld)
    );
    assert_eq!(received.peers[0].reason, "the path came from this peer");
    assert_eq!(explain(&mut all, "10.1.0.0/16").peers[0].standing, ExportStanding::Advertised);
    let unknown = explain(&mut all, "10.2.0.7/32");
    assert_eq!((unknown.paths.len(), unknown.covered_by), (0, Some(net("10.2.0.0/24"))));

    let short = Conditions {
        as_path: AsPathMatch { length: 0..=9, ..AsPathMatch::default() },
        ..Conditions::default()
    };
    let named = Rule { name: Some("short".to_owned()), ..Rule::reject(short) };
    let policy = Policy { rules: vec![named], default: PolicyResult::Accept };
    assert_eq!(all.edit(1, 2, |peer| peer.import = policy.clone()), Change::Applied);
    assert_eq!(all.edit(1, 2, |peer| peer.export = policy), Change::Applied);
    all.run(secs(1));
    let refused = explain(&mut all, "10.2.0.0/24");
    assert_eq!(refused.paths[0].reason, "rejected by import policy, rule 1 (short)");
    let withdrawn = explain(&mut all, "10.1.0.0/16");
    assert_eq!(
        (withdrawn.paths[0].standing, withdrawn.peers[0].standing),
        (PathStanding::Best, ExportStanding::Withheld)
    );
    assert_eq!(withdrawn.peers[0].reason, "rejected by export policy, rule 1 (short)");
    assert!(!all.is_closed(pipe) && all.status(1, 2).flaps == 0);

    all.edit(1, 2, |peer| peer.shutdown = true);
    all.run(secs(1));
    let down = explain(&mut all, "10.1.0.0/16");
    assert_eq!(
        (down.peers[0].standing, down.peers[0].reason.as_str()),
        (ExportStanding::Withheld, "administratively down")
    );
}
