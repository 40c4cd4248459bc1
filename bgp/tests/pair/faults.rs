//! Peers that misbehave: the NOTIFICATIONs that they receive, and the status for an operator.

use trunkline_bgp::config::{ConfigError, PeerConfig};
use trunkline_bgp::speaker::{Event, Speaker, State};
use trunkline_bgp::types::{Asn, FamilySet};
use trunkline_bgp::wire::{Cease, Notification, Open};

use crate::net::{Net, announce, encoded, ip, keepalive, message, net, open, peer, secs};

type Edit = fn(&mut PeerConfig);

fn established(edit: impl FnOnce(&mut PeerConfig)) -> (Net, usize) {
    let mut all = Net::scripted(edit);
    all.boot(1);
    let pipe = all.script_accept();
    all.script_send(pipe, &encoded(&open()));
    all.script_send(pipe, &keepalive());
    assert_eq!(all.state(1, 2), State::Established);
    (all, pipe)
}

#[test]
fn malformed_input_causes_the_matching_notification() {
    let with = |at: usize, octets: &[u8]| {
        let mut message = keepalive();
        message[at..at + octets.len()].copy_from_slice(octets);
        message
    };
    for (bytes, code, subcode, data) in [
        (b"GET / HTTP/1.1\r\nHost: tor\r\n".to_vec(), 1, 1, vec![]),
        (with(3, &[0]), 1, 1, vec![]),
        (with(16, &[0, 5]), 1, 2, vec![0, 5]),
        (with(16, &[0xff, 0xff]), 1, 2, vec![0xff, 0xff]),
        (with(16, &[0, 20]), 1, 2, vec![0, 20]),
        (with(18, &[7]), 1, 3, vec![7]),
        (message(2, &[0, 9, 0, 0]), 3, 1, vec![]),
        (message(2, &[0, 0, 0, 0, 33, 1, 2, 3, 4, 5]), 3, 10, vec![]),
    ] {
        let (mut all, pipe) = established(|_| {});
        all.script_send(pipe, &bytes);
        let notification =
            all.script_notification(pipe).unwrap_or_else(|| panic!("{bytes:02x?}: no NOTIFICATION"));
        assert_eq!(
            (notification.code, notification.subcode),
            (code, subcode),
            "{bytes:02x?}: {notification}"
        );
        assert_eq!(notification.data, data, "{bytes:02x?}");
        let status = all.status(1, 2);
        assert_eq!(status.state, State::Idle);
        assert_eq!(status.notification_sent.unwrap().text, notification.to_string());
        assert!(status.last_error.unwrap().text.ends_with(&format!("sent NOTIFICATION {notification}")));
    }
}

#[test]
fn an_unexpected_open_is_rejected() {
    let edited = |edit: fn(&mut Open)| {
        let mut open = open();
        edit(&mut open);
        encoded(&open)
    };
    let version = {
        let mut bytes = encoded(&open());
        bytes[19] = 3;
        bytes
    };
    for (bytes, code, subcode) in [
        (version, 2, 1),
        (edited(|open| open.capabilities.retain(|capability| capability.code() != 65)), 0, 0),
        (edited(|open| open.hold_time = 2), 2, 6),
        (edited(|open| open.router_id = [0, 0, 0, 0].into()), 2, 3),
        (edited(|open| open.router_id = [10, 0, 0, 1].into()), 0, 0), // another AS: RFC 6286
        (
            edited(|open| {
                open.capabilities.retain(|capability| capability.code() != 1);
                let vpn = trunkline_bgp::wire::AfiSafi { afi: 25, safi: 70 };
                open.capabilities.push(trunkline_bgp::wire::Capability::Multiprotocol(vpn));
            }),
            2,
            7,
        ),
    ] {
        let mut all = Net::scripted(|_| {});
        all.boot(1);
        let pipe = all.script_accept();
        all.script_send(pipe, &bytes);
        let notification =
            all.script_notification(pipe).map(|notification| (notification.code, notification.subcode));
        match code {
            0 => assert_eq!((notification, all.state(1, 2)), (None, State::OpenConfirm)),
            _ => assert_eq!((notification, all.state(1, 2)), (Some((code, subcode)), State::Idle)),
        }
    }
}

#[test]
fn exceeding_the_prefix_limit_causes_a_cease() {
    let (mut all, pipe) = established(|peer| peer.max_prefixes = Some(3));
    all.script_send(pipe, &announce(&[[10, 2, 0], [10, 2, 1], [10, 2, 2]]));
    all.script_send(pipe, &announce(&[[10, 2, 0], [10, 2, 1]]));
    assert_eq!((all.state(1, 2), all.nodes[&1].fib.len()), (State::Established, 3));
    all.script_send(pipe, &announce(&[[10, 2, 3]]));
    assert_eq!(all.script_notification(pipe), Some(Notification::cease(Cease::MaximumPrefixes, None)));
    let status = all.status(1, 2);
    assert_eq!(status.state, State::Idle);
    assert!(status.next_attempt.unwrap() >= secs(45), "the peer must change its configuration first");
    assert_eq!(
        status.last_error.unwrap().text,
        "4 prefixes received, the limit is 3: raise the limit, or filter at the peer"
    );
    assert_eq!(all.nodes[&1].fib.len(), 0);

    // The limit is lowered below the current number.
    let (mut all, pipe) = established(|_| {});
    all.script_send(pipe, &announce(&[[10, 2, 0], [10, 2, 1], [10, 2, 2]]));
    all.edit(1, 2, |peer| peer.max_prefixes = Some(2));
    all.run(secs(1));
    assert_eq!(all.script_notification(pipe), Some(Notification::cease(Cease::MaximumPrefixes, None)));
}

#[test]
fn a_malformed_attribute_withdraws_routes_only() {
    let (mut all, pipe) = established(|_| {});
    all.script_send(pipe, &announce(&[[10, 2, 0], [10, 2, 1]]));
    // An UPDATE with ORIGIN 9 repeats one of the two routes, which leads to treat-as-withdraw.
    let mut bad = announce(&[[10, 2, 0]]);
    bad[19 + 4 + 3] = 9;
    for _ in 0..100 {
        all.script_send(pipe, &bad);
    }
    assert_eq!(all.state(1, 2), State::Established);
    assert_eq!(all.routes_from(1, 2), [net("10.2.1.0/24")]);
    let reports: Vec<&Event> =
        all.nodes[&1].events.iter().filter(|event| matches!(event, Event::MalformedUpdate { .. })).collect();
    assert_eq!(reports.len(), 1, "{reports:?}");
}

#[test]
fn messages_may_be_split_and_joined_anywhere() {
    let (mut all, pipe) = established(|_| {});
    let mut stream = Vec::new();
    for third in 0..200 {
        stream.extend(announce(&[[10, 2, third]]));
        stream.extend(keepalive());
    }
    for size in [1, 2, 18, 19, 20, 1000] {
        all.script_send(pipe, &announce(&[[10, 3, size as u8]]));
        for part in stream.chunks(size).take(if size == 1 { 2000 } else { usize::MAX }) {
            all.script_send(pipe, part);
        }
        if size == 1 {
            all.script_send(pipe, &stream[2000..]);
        }
    }
    assert_eq!(all.state(1, 2), State::Established);
    assert_eq!(all.routes_from(1, 2).len(), 206);
}

#[test]
fn connections_of_unconfigured_peers_are_rejected() {
    let (mut all, _) = established(|peer| peer.local_address = Some(ip(1)));
    let stranger = "10.0.0.77:1234".parse().unwrap();
    let refused = all.with(1, |speaker, now| {
        speaker.handle_accepted("10.0.0.1:179".parse().unwrap(), stranger, None, now)
    });
    assert_eq!(refused.unwrap_err().to_string(), "no peer 10.0.0.77 is configured");
    let to_elsewhere = all.with(1, |speaker, now| {
        speaker.handle_accepted("10.0.0.9:179".parse().unwrap(), "10.0.0.2:5".parse().unwrap(), None, now)
    });
    assert_eq!(
        to_elsewhere.unwrap_err().to_string(),
        "peer 10.0.0.2 connected to 10.0.0.9, its session is configured for 10.0.0.1"
    );
}

#[test]
fn invalid_configuration_is_rejected_with_field_and_fix() {
    let (mut all, _) = established(|_| {});
    let edits: [(&str, Edit); 12] = [
        ("address", |peer| peer.address = "224.0.0.1".parse().unwrap()),
        ("interface", |peer| peer.address = "fe80::1".parse().unwrap()),
        ("port", |peer| peer.port = 0),
        ("remote_as", |peer| peer.remote_as = Asn(0)),
        ("local_address", |peer| peer.local_address = Some("2001:db8::1".parse().unwrap())),
        ("hold_time", |peer| peer.hold_time = secs(2)),
        ("keepalive", |peer| peer.keepalive = Some(secs(90))),
        ("connect_retry", |peer| peer.connect_retry = secs(0)),
        ("ebgp_multihop", |peer| peer.ebgp_multihop = Some(0)),
        ("ttl_security", |peer| (peer.ttl_security, peer.ebgp_multihop) = (Some(1), Some(2))),
        ("families", |peer| peer.families = FamilySet::EMPTY),
        ("max_prefixes", |peer| peer.max_prefixes = Some(0)),
    ];
    for (field, edit) in edits {
        let mut config = peer(2);
        edit(&mut config);
        let error = all.with(1, |speaker, now| speaker.update_peer(config, now)).unwrap_err();
        assert!(
            matches!(error, ConfigError::Peer { field: named, .. } if named == field),
            "{field}: {error}"
        );
    }
    assert_eq!(
        (all.state(1, 2), all.status(1, 2).flaps),
        (State::Established, 0),
        "the running session continues"
    );

    let good = all.nodes[&1].config.clone();
    for edit in [
        (|config| config.local_as = Asn(0)) as fn(&mut trunkline_bgp::config::SpeakerConfig),
        |config| config.router_id = [0, 0, 0, 0].into(),
        |config| config.max_paths = 0,
    ] {
        let mut config = good.clone();
        edit(&mut config);
        Speaker::new(config, all.now).unwrap_err();
    }
}
