//! Sessions over real sockets: passwords, both families, edits of a live peer, the two ways to
//! stop, unknown sources.
#![allow(clippy::unwrap_used, reason = "tests")]

mod net_support;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use net_support::{Node, Options, join, join_with, soon};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use trunkline_bgp::config::{Password, PeerConfig, PeerRange};
use trunkline_bgp::net::{CommandError, Stopped};
use trunkline_bgp::rib::Origination;
use trunkline_bgp::speaker::{Cause, Change, Event, State, Stop};
use trunkline_bgp::types::{Asn, FamilySet};

fn password(text: &str) -> Option<Password> {
    Some(Password::new(text).unwrap())
}

#[tokio::test]
async fn equal_passwords_establish_the_session() {
    let (a, b) = (Node::new("127.7.1.1", 1).await, Node::new("127.7.1.2", 2).await);
    join_with(&a, &b, |peer| peer.password = password("k"), |peer| peer.password = password("k")).await;
    let status = a.established(&b).await;
    let session = status.session.expect("an Established session has facts");
    assert_eq!(session.local.ip(), a.address);
    assert_eq!(session.remote.ip(), b.address);
    let round_trip = session.round_trip.expect("the kernel has measured the handshake");
    assert!(round_trip < Duration::from_secs(20), "{round_trip:?} on one machine");
    b.established(&a).await;
}

#[tokio::test]
async fn ipv6_with_a_password() {
    let (a, b) = (Node::new("::1", 1).await, Node::new("::1", 2).await);
    join_with(&a, &b, |peer| peer.password = password("six"), |peer| peer.password = password("six")).await;
    a.established(&b).await;
    b.established(&a).await;
}

#[tokio::test]
async fn a_wrong_password_is_reported_and_an_edit_repairs_it() {
    let (a, b) = (Node::new("127.7.2.1", 1).await, Node::new("127.7.2.2", 2).await);
    join_with(&a, &b, |peer| peer.password = password("right"), |peer| peer.password = password("wrong"))
        .await;
    for (node, other) in [(&a, &b), (&b, &a)] {
        let status = node.until(other.address, "in error", |peer| peer.last_error.is_some()).await;
        assert_ne!(status.state, State::Established);
        let failure = status.last_attempt.unwrap();
        let error = failure.text;
        assert!(error.contains("the passwords differ: the kernel refused"), "{error}");
        assert!(
            matches!(failure.cause, Cause::Passwords { refused } if refused.wrong > 0),
            "{:?}",
            failure.cause
        );
        assert!(
            !error.contains("right") && !error.contains("wrong\""),
            "the error contains a \
            secret: {error}"
        );
    }
    let mut peer = b.peer(&a);
    peer.password = password("right");
    assert_eq!(b.handle.update_peer(peer).await, Ok(Change::Reset));
    a.established(&b).await;
    b.established(&a).await;
}

#[tokio::test]
async fn a_short_connect_retry_does_not_hide_a_wrong_password() {
    let (a, b) = (Node::new("127.7.13.1", 1).await, Node::new("127.7.13.2", 2).await);
    let retry = Duration::from_secs(1);
    let edit = |peer: &mut PeerConfig, key| {
        peer.password = password(key);
        peer.connect_retry = retry;
    };
    join_with(&a, &b, |peer| edit(peer, "right"), |peer| edit(peer, "other")).await;
    let error =
        a.until(b.address, "in error", |peer| peer.last_error.is_some()).await.last_error.unwrap().text;
    assert!(error.contains("password"), "{error}");
}

#[tokio::test]
async fn a_password_is_changed_removed_and_set_again() {
    let (a, b) = (Node::new("127.7.3.1", 1).await, Node::new("127.7.3.2", 2).await);
    join(&a, &b).await;
    for (count, key) in [(2, password("first")), (3, password("second")), (4, None)] {
        for (node, other) in [(&a, &b), (&b, &a)] {
            let mut peer = node.peer(other);
            peer.password = key.clone();
            assert_eq!(node.handle.update_peer(peer).await, Ok(Change::Reset));
        }
        for (node, other) in [(&a, &b), (&b, &a)] {
            node.until(other.address, "up again", |peer| {
                peer.state == State::Established && peer.established_count >= count
            })
            .await;
        }
    }
}

#[tokio::test]
async fn the_listener_drops_a_peer_without_the_password() {
    let a = Node::new("127.7.4.1", 1).await;
    let b = Node::new("127.7.4.2", 2).await;
    join_with(&a, &b, |peer| peer.password = password("k"), |peer| peer.shutdown = true).await;
    let to = a.handle.listening()[0];
    let attempt = tokio::time::timeout(Duration::from_millis(800), connect_from(b.address, to)).await;
    assert!(attempt.is_err(), "the kernel answered an unsigned SYN");
    a.handle.remove_peer(b.address).await.unwrap();
    // The key is removed with the peer: the connection opens, and is closed because no peer is
    // configured.
    let mut stream = soon(connect_from(b.address, to)).await.unwrap();
    assert_eq!(soon(stream.read(&mut [0; 64])).await.unwrap_or(0), 0);
    assert_eq!(a.handle.refused(), 1);
}

#[tokio::test]
async fn timers_and_ttl_change_on_the_live_session() {
    let (a, b) = (Node::new("127.7.5.1", 1).await, Node::new("127.7.5.2", 2).await);
    let hold = Duration::from_secs(6);
    join_with(&a, &b, |peer| peer.hold_time = hold, |peer| peer.hold_time = hold).await;
    a.established(&b).await;
    b.established(&a).await;

    let mut to_b = a.peer(&b);
    to_b.hold_time = hold;
    to_b.keepalive = Some(Duration::from_secs(1));
    assert_eq!(a.handle.update_peer(to_b.clone()).await, Ok(Change::Applied));
    let pace = a.status(b.address).await.session.expect("an Established session has facts").keepalive;
    assert_eq!(pace, Duration::from_secs(1));

    let mut to_a = b.peer(&a);
    to_a.hold_time = hold;
    for hops in [Some(5), None, Some(64)] {
        to_b.ebgp_multihop = hops;
        assert_eq!(a.handle.update_peer(to_b.clone()).await, Ok(Change::Applied));
    }
    // Both sides send with TTL 255 and accept no lower TTL.
    to_b.ebgp_multihop = None;
    to_b.ttl_security = Some(1);
    to_a.ttl_security = Some(1);
    assert_eq!(a.handle.update_peer(to_b).await, Ok(Change::Applied));
    assert_eq!(b.handle.update_peer(to_a.clone()).await, Ok(Change::Applied));
    let before = a.status(b.address).await.traffic.received.keepalive;
    let status = a.until(b.address, "kept alive", |peer| peer.traffic.received.keepalive >= before + 4).await;
    assert_eq!((status.established_count, status.flaps), (1, 0));

    // One side no longer sends with TTL 255. The other side drops these packets, and its Hold Timer
    // expires.
    to_a.ttl_security = None;
    assert_eq!(b.handle.update_peer(to_a.clone()).await, Ok(Change::Applied));
    a.until(b.address, "down", |peer| peer.flaps == 1).await;
    to_a.ttl_security = Some(1);
    b.handle.update_peer(to_a).await.unwrap();
    a.established(&b).await;
}

#[tokio::test]
async fn a_silent_stop_retains_routes_and_a_cease_has_a_reason() {
    let mut a = Node::new("127.7.6.1", 1).await;
    for (count, stop) in [
        (1, Stop::Silent),
        (2, Stop::Cease { communication: "rack 7 is moved".to_owned() }),
        (3, Stop::Silent),
    ] {
        let b = Node::new("127.7.6.2", 2).await;
        let silent = stop == Stop::Silent;
        if count == 1 {
            join(&a, &b).await;
        } else {
            let mut peer = a.peer(&b);
            peer.connect_retry = Duration::from_secs(1);
            a.handle.update_peer(peer).await.unwrap();
            b.handle.add_peer(b.peer(&a)).await.unwrap();
            a.established(&b).await;
            b.established(&a).await;
        }
        let prefix = "10.1.0.0/24".parse().unwrap();
        b.handle.originate(prefix, Origination::default()).await.unwrap();
        a.until(b.address, "a route received", |peer| {
            peer.families.iter().any(|family| family.received == 1)
        })
        .await;
        soon(b.handle.stop(stop)).await;
        let (reason, retained) = a
            .event(|event| match event {
                Event::PeerDown { reason, retained, .. } => Some((reason, retained)),
                _ => None,
            })
            .await;
        let status = a.status(b.address).await;
        let stale: usize = status.families.iter().map(|family| family.stale).sum();
        if silent {
            assert_eq!(retained, FamilySet::ALL, "{reason}");
            assert_eq!(stale, 1);
        } else {
            assert!(reason.contains("rack 7 is moved"), "{reason}");
            assert_eq!(retained, FamilySet::EMPTY);
            assert_eq!(stale, 0);
            assert!(status.notification_received.unwrap().text.contains("rack 7 is moved"));
        }
        assert_eq!(b.handle.peers().await, Err(Stopped));
        assert_eq!(b.handle.remove_peer(a.address).await, Err(CommandError::Stopped(Stopped)));
        // The port of the stopped speaker is free again.
        drop(std::net::TcpListener::bind(b.handle.listening()[0]).unwrap());
        soon(b.handle.stop(Stop::Silent)).await;
    }
}

#[tokio::test]
async fn dropping_every_handle_is_a_silent_stop() {
    let mut a = Node::new("127.7.7.1", 1).await;
    let Node { handle, mut events, mut changes, .. } = {
        let b = Node::new("127.7.7.2", 2).await;
        join(&a, &b).await;
        b
    };
    drop(handle);
    let retained = a
        .event(|event| match event {
            Event::PeerDown { retained, .. } => Some(retained),
            _ => None,
        })
        .await;
    assert_eq!(retained, FamilySet::ALL);
    soon(async { while events.next().await.is_some() {} }).await;
    assert_eq!(soon(changes.next(1)).await, Err(Stopped));
}

#[tokio::test]
async fn a_restart_comes_back_without_losing_a_route() {
    let mut a = Node::new("127.7.8.1", 1).await;
    let b = Node::new("127.7.8.2", 2).await;
    join(&a, &b).await;
    let prefix = "10.1.0.0/24".parse().unwrap();
    b.handle.originate(prefix, Origination::default()).await.unwrap();
    let changes = soon(a.changes.next(10)).await.unwrap();
    assert_eq!(changes[0].prefix, prefix);
    let listen = b.handle.listening()[0];
    soon(b.handle.stop(Stop::Silent)).await;

    let options = Options { restarting: true, complete: false, listen: Some(listen) };
    let b = Node::with("127.7.8.2", 2, options).await;
    b.handle.add_peer(b.peer(&a)).await.unwrap();
    b.handle.originate(prefix, Origination::default()).await.unwrap();
    b.handle.originations_complete().await.unwrap();
    a.until(b.address, "the routes received again", |peer| {
        peer.established_count == 2 && peer.families.iter().all(|family| family.end_of_rib_received)
    })
    .await;
    let status = a.status(b.address).await;
    assert_eq!(status.families.iter().map(|family| family.stale).sum::<usize>(), 0);
    assert_eq!(status.families.iter().map(|family| family.received).sum::<usize>(), 1);
    // The FIB received no change meanwhile.
    let change = tokio::time::timeout(Duration::from_millis(100), a.changes.next(10)).await;
    assert!(change.is_err(), "{change:?}");
}

#[tokio::test]
async fn an_unknown_source_is_closed_at_once_and_counted() {
    let (a, b) = (Node::new("127.7.9.1", 1).await, Node::new("127.7.9.2", 2).await);
    join(&a, &b).await;
    for count in 1..=5 {
        let mut stream =
            soon(connect_from("127.7.9.99".parse().unwrap(), a.handle.listening()[0])).await.unwrap();
        assert_eq!(
            soon(stream.read(&mut [0; 64])).await.unwrap_or(0),
            0,
            "an unknown source \
            receives nothing"
        );
        assert_eq!(a.handle.refused(), count);
    }
    assert_eq!(a.status(b.address).await.flaps, 0);
}

#[tokio::test]
async fn garbage_from_a_configured_address_gets_a_notification() {
    let a = Node::new("127.7.10.1", 1).await;
    let b = Node::new("127.7.10.2", 2).await;
    join_with(&a, &b, |peer| peer.passive = true, |peer| peer.shutdown = true).await;
    let mut stream = soon(connect_from(b.address, a.handle.listening()[0])).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: tor1\r\n\r\n").await.unwrap();
    let mut received = Vec::new();
    soon(stream.read_to_end(&mut received)).await.expect("a FIN, no RST");
    // The last message is NOTIFICATION 1/1, Connection Not Synchronized (RFC 4271 §6.1).
    let last = received.len().checked_sub(21).expect("a NOTIFICATION");
    assert_eq!(&received[last..last + 16], &[0xff; 16]);
    assert_eq!(&received[last + 16..], &[0, 21, 3, 1, 1]);
    let error = a.until(b.address, "in error", |peer| peer.last_error.is_some()).await.last_error.unwrap();
    assert!(!error.text.is_empty());
}

#[tokio::test]
async fn a_refused_connection_names_the_address() {
    let a = Node::new("127.7.11.1", 1).await;
    let b = Node::new("127.7.11.2", 2).await;
    let mut peer = a.peer(&b);
    drop(std::net::TcpListener::bind("127.7.11.3:0").map(|free| {
        peer.port = free.local_addr().unwrap().port();
        peer.address = "127.7.11.3".parse().unwrap();
    }));
    a.handle.add_peer(peer.clone()).await.unwrap();
    let status = a.until(peer.address, "in error", |peer| peer.last_error.is_some()).await;
    let error = status.last_error.unwrap().text;
    assert!(error.contains("127.7.11.3") && error.contains("refused"), "{error}");
    assert_eq!(status.last_attempt.unwrap().cause, Cause::Refused);
}

#[tokio::test]
async fn a_taken_port_stops_no_outgoing_session_and_is_bound_when_free() {
    let (a, c) = (Node::new("127.7.12.1", 1).await, Node::new("127.7.12.3", 3).await);
    let owner = std::net::TcpListener::bind("127.7.12.2:0").unwrap();
    let taken = owner.local_addr().unwrap();
    let b = Node::with("127.7.12.2", 2, Options { listen: Some(taken), ..Options::default() }).await;
    let fault = b.handle.listeners().borrow()[0].fault.clone().unwrap();
    assert!(fault.in_use && fault.fix.contains(&format!("port {}", taken.port())), "{fault:?}");
    assert!(b.handle.listening().is_empty());

    let to_b = |node: &Node, key: &str| {
        let mut peer = PeerConfig::new(b.address, b.asn);
        (peer.port, peer.local_address) = (taken.port(), Some(node.address));
        (peer.connect_retry, peer.password) = (Duration::from_secs(1), password(key));
        peer
    };
    a.handle.add_peer(PeerConfig { passive: true, ..to_b(&a, "a") }).await.unwrap();
    b.handle.add_peer(PeerConfig { password: password("a"), ..b.peer(&a) }).await.unwrap();
    let passive = PeerConfig { passive: true, password: password("c"), ..b.peer(&c) };
    b.handle.add_peer(passive).await.unwrap();
    b.established(&a).await;

    // The socket that was bound late has the keys too, so the session of the passive peer is
    // established.
    drop(owner);
    let mut listeners = b.handle.listeners();
    soon(listeners.wait_for(|status| status.iter().all(|status| status.fault.is_none()))).await.unwrap();
    assert_eq!(b.handle.listening(), [taken]);
    c.handle.add_peer(to_b(&c, "c")).await.unwrap();
    b.established(&c).await;
    let status = b.established(&a).await;
    assert_eq!(status.flaps, 0, "binding the port resets no session");
}

async fn connect_from(local: IpAddr, remote: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(local, 0))?;
    socket.connect(remote).await
}

#[tokio::test]
async fn dynamic_neighbours_need_the_prefix_and_its_key() {
    let waiting = Node::new("127.7.40.1", 1).await;
    let (inside, outside) = (Node::new("127.7.41.2", 2).await, Node::new("127.7.42.2", 2).await);
    let mut template = PeerConfig::new(waiting.address, Asn(2));
    template.password = password("everybody's");
    template.next_hop_v4 = Some([192, 0, 2, 1].into());
    let range = PeerRange::new("127.7.41.0/24".parse().unwrap(), 1, template);
    waiting.handle.set_ranges(vec![range.clone()]).await.unwrap();
    let mut to_waiting = inside.peer(&waiting);
    to_waiting.password = password("everybody's");
    inside.handle.add_peer(to_waiting).await.unwrap();
    outside.handle.add_peer(outside.peer(&waiting)).await.unwrap();
    inside.established(&waiting).await;
    let status = waiting.established(&inside).await;
    assert_eq!((status.range, status.state), (Some(range.prefix), State::Established));
    outside.until(waiting.address, "refused", |peer| peer.last_error.is_some()).await;
    assert_eq!(waiting.handle.peers().await.unwrap().len(), 1);
    assert!(waiting.handle.refused() > 0);
    assert_eq!(waiting.handle.ranges().await.unwrap()[0].peers, 1);
    waiting.handle.set_ranges(Vec::new()).await.unwrap();
    assert!(waiting.handle.peers().await.unwrap().is_empty());
}
