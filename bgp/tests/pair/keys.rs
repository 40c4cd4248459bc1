//! Peers with the same link-local address on two links.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use trunkline_bgp::session::CONFIRM_MARGIN;
use trunkline_bgp::speaker::{
    Action, ConnId, Origination, PeerConfig, Refusal, Speaker, SpeakerConfig, State,
};
use trunkline_bgp::types::{Asn, InterfaceName, PeerKey};

use crate::net::net;

fn name(text: &str) -> InterfaceName {
    text.parse().unwrap()
}

fn speaker(asn: u32, now: Instant) -> Speaker {
    let mut speaker = Speaker::new(SpeakerConfig::new(Asn(asn), [10, 0, 0, asn as u8].into()), now).unwrap();
    speaker.originations_complete(now);
    speaker
}

/// Exchanges octets until neither side has octets to send.
fn exchange(ends: [(&mut Speaker, ConnId); 2], now: Instant) {
    let [(one, one_conn), (other, other_conn)] = ends;
    let mut quiet = 0;
    while quiet < 2 {
        let mut octets = Vec::new();
        while one.poll_transmit(one_conn, &mut octets, 1 << 16, now) {}
        other.handle_bytes(other_conn, &octets, now);
        quiet = if octets.is_empty() { quiet + 1 } else { 0 };
        let mut octets = Vec::new();
        while other.poll_transmit(other_conn, &mut octets, 1 << 16, now) {}
        one.handle_bytes(one_conn, &octets, now);
        quiet = if octets.is_empty() { quiet } else { 0 };
    }
}

#[test]
fn one_link_local_address_on_two_links_is_two_peers() {
    #[expect(clippy::disallowed_methods, reason = "any instant will do as the origin of virtual time")]
    let now = Instant::now();
    let there: IpAddr = "fe80::1".parse().unwrap();
    let here: IpAddr = "fe80::2".parse().unwrap();
    let mut node = speaker(1, now);
    let key = |interface: &str| PeerKey::new(there, Some(name(interface)));
    for (interface, asn) in [("eth0", 2), ("eth1", 3)] {
        let config = PeerConfig {
            interface: Some(name(interface)),
            passive: true,
            ..PeerConfig::new(there, Asn(asn))
        };
        node.add_peer(config, now).unwrap();
    }
    let (local, remote) = (SocketAddr::new(here, 179), SocketAddr::new(there, 40000));
    for interface in [None, Some(name("eth2"))] {
        let refusal = node.handle_accepted(local, remote, interface, now).unwrap_err();
        assert_eq!(refusal, Refusal::UnknownPeer(PeerKey::new(there, interface)));
    }

    let mut routers = BTreeMap::new();
    for (interface, asn) in [("eth0", 2), ("eth1", 3)] {
        let mut router = speaker(asn, now);
        router.originate(net(&format!("10.{asn}.0.0/16")), Origination::default(), now);
        let config = PeerConfig { interface: Some(name("up")), ..PeerConfig::new(here, Asn(1)) };
        router.add_peer(config, now).unwrap();
        let out = loop {
            match router.poll_action().expect("the router connects") {
                Action::Connect { conn, options, .. } => {
                    assert_eq!(options.interface, Some(name("up")));
                    break conn;
                }
                _ => continue,
            }
        };
        router.handle_connected(out, remote, local, now);
        let conn = node.handle_accepted(local, remote, Some(name(interface)), now).unwrap();
        exchange([(&mut router, out), (&mut node, conn)], now);
        // The router's identifier is higher: it delays its first KEEPALIVE.
        let later = now + CONFIRM_MARGIN;
        router.handle_timeout(later);
        exchange([(&mut router, out), (&mut node, conn)], later);
        routers.insert(interface, router);
    }

    let peers = node.peers(now);
    let shown: Vec<_> =
        peers.iter().map(|peer| (peer.key().to_string(), peer.remote_as.0, peer.state)).collect();
    let up = State::Established;
    assert_eq!(shown, [("fe80::1%eth0".to_owned(), 2, up), ("fe80::1%eth1".to_owned(), 3, up)]);
    for (interface, prefix) in [("eth0", "10.2.0.0/16"), ("eth1", "10.3.0.0/16")] {
        let received = node.received(key(interface)).unwrap();
        assert_eq!(received.iter().map(|route| route.prefix).collect::<Vec<_>>(), [net(prefix)]);
    }
    let changes = node.route_changes(9);
    let from = |prefix: &str| {
        let change = changes.iter().find(|change| change.prefix == net(prefix)).unwrap();
        change.paths.iter().map(|path| path.peer).collect::<Vec<_>>()
    };
    assert_eq!((from("10.2.0.0/16"), from("10.3.0.0/16")), (vec![key("eth0")], vec![key("eth1")]));

    node.remove_peer(key("eth0"), now).unwrap();
    assert_eq!(node.peers(now).iter().map(|peer| peer.key()).collect::<Vec<_>>(), [key("eth1")]);
    assert_eq!(node.peers(now)[0].state, up, "the other session is not affected");
    assert!(node.remove_peer(there, now).is_err(), "its address alone identifies no peer");
}
