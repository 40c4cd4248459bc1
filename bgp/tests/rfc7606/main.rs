//! RFC 7606 from a peer's view: each row of the [`table`] is sent to a whole speaker. It goes first
//! to the engine, then over TCP to the shell. (`wire_rfc7606` tests the codec alone.)
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod table;

#[path = "../net_support/mod.rs"]
mod net_support;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Instant;

use net_support::{LIMIT, Node, soon};
use table::{ExpectedHandling, NEXT_HOP, ORIGIN, Row, Session, as_path, rows};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use trunkline_bgp::config::{PeerConfig, SpeakerConfig};
use trunkline_bgp::speaker::{Action, Event, Route, Speaker, State};
use trunkline_bgp::types::{Asn, Family};
use trunkline_bgp::wire::{
    Capability, MAX_MESSAGE, MessageKind, Notification, Open, encode_keepalive, frame,
};

const US: u32 = 65001;

fn peer_as(session: Session) -> u32 {
    if session == Session::Internal { US } else { 65002 }
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).unwrap() as u8).collect();
    assert!(digits.len().is_multiple_of(2), "{text}");
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn update(attributes: &str, nlri: &[u8]) -> Vec<u8> {
    let attributes = hex(attributes);
    let mut message = vec![0xff; 16];
    message.extend_from_slice(&((23 + attributes.len() + nlri.len()) as u16).to_be_bytes());
    message.extend_from_slice(&[2, 0, 0]);
    message.extend_from_slice(&(attributes.len() as u16).to_be_bytes());
    message.extend_from_slice(&attributes);
    message.extend_from_slice(nlri);
    message
}

/// OPEN and KEEPALIVE, then the route in its initial state.
fn opening(row: &Row) -> Vec<u8> {
    let asn = Asn(peer_as(row.session));
    let mut capabilities: Vec<_> =
        Family::ALL.map(|family| Capability::Multiprotocol(family.into())).to_vec();
    if row.session != Session::TwoOctet {
        capabilities.push(Capability::FourOctetAs(asn));
    }
    let mut octets = Vec::new();
    Open::new(asn, 90, Ipv4Addr::new(10, 0, 0, 9), capabilities).encode(&mut octets);
    encode_keepalive(&mut octets);
    let before = format!("{ORIGIN}{}", as_path(row.session, 1));
    octets.extend(update(&format!("{before}{NEXT_HOP}"), &[16, 10, 9]));
    octets.extend(update(
        &format!("800e1c 0002 01 10 20010db8000000000000000000000009 00 30 20010db80009{before}"),
        &[],
    ));
    octets
}

/// The UPDATE of a row.
fn faulty(row: &Row) -> Vec<u8> {
    update(&row.attributes, if row.v6 { &[] } else { &[16, 10, 9] })
}

/// The AS_PATH of the row's route, if it exists.
fn path(routes: &[Route], row: &Row) -> Option<String> {
    let prefix = if row.v6 { "2001:db8:9::/48" } else { "10.9.0.0/16" };
    routes.iter().find(|route| route.prefix.to_string() == prefix).map(|route| route.as_path.clone())
}

fn notification(octets: &[u8]) -> Option<Notification> {
    let mut rest = octets;
    while let Ok(Some(message)) = frame(rest, MAX_MESSAGE) {
        if message.kind == MessageKind::Notification {
            return Notification::decode(message.body).ok();
        }
        rest = &rest[message.len..];
    }
    None
}

fn assert_fault(row: &Row, faults: &[String], name: &str, done: &str) {
    let reported = faults.iter().any(|fault| fault.starts_with(name) && fault.ends_with(done));
    assert!(reported, "{}: no report of {name} {done}: {faults:?}", row.what);
}

#[test]
fn the_engine_implements_rfc_7606() {
    for row in &rows() {
        #[expect(clippy::disallowed_methods, reason = "any instant will do as the origin of virtual time")]
        let now = Instant::now();
        let (us, them) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 9]));
        let mut speaker = Speaker::new(SpeakerConfig::new(Asn(US), Ipv4Addr::new(10, 0, 0, 1)), now).unwrap();
        let config = PeerConfig { passive: true, ..PeerConfig::new(them, Asn(peer_as(row.session))) };
        speaker.add_peer(config, now).unwrap();
        speaker.originations_complete(now);
        let conn = speaker
            .handle_accepted(SocketAddr::new(us, 179), SocketAddr::new(them, 40000), None, now)
            .unwrap();
        speaker.handle_bytes(conn, &opening(row), now);
        assert!(path(&speaker.received(them).unwrap(), row).unwrap().ends_with(" 1"), "{}", row.what);
        while speaker.poll_event().is_some() || speaker.poll_action().is_some() {}

        speaker.handle_bytes(conn, &faulty(row), now);
        let faults: Vec<String> = std::iter::from_fn(|| speaker.poll_event())
            .filter_map(|event| match event {
                Event::MalformedUpdate { fault, .. } => Some(fault),
                _ => None,
            })
            .collect();
        let last_words = std::iter::from_fn(|| speaker.poll_action()).find_map(|action| match action {
            Action::Close { last_words, .. } => Some(last_words),
            _ => None,
        });
        let after = path(&speaker.received(them).unwrap(), row);
        let established = speaker.peers(now)[0].state == State::Established;
        match row.outcome {
            ExpectedHandling::Reset(subcode) => {
                let sent = notification(&last_words.expect(&row.what)).expect(&row.what);
                assert_eq!((sent.code, sent.subcode), (3, subcode), "{}", row.what);
                assert!(!established && after.is_none(), "{}", row.what);
            }
            ExpectedHandling::Withdraw(name) => {
                assert!(established && after.is_none(), "{}: {after:?}", row.what);
                assert_fault(row, &faults, name, "its routes are withdrawn");
            }
            ExpectedHandling::Discard(name) => {
                assert!(established, "{}", row.what);
                assert!(after.clone().is_some_and(|path| path.ends_with(" 2")), "{}: {after:?}", row.what);
                assert_fault(row, &faults, name, "ignored");
            }
        }
    }
}

/// The speaker's octets until it closes the connection.
async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut octets = Vec::new();
    // A TCP reset after the NOTIFICATION also ends the connection.
    _ = soon(stream.read_to_end(&mut octets)).await;
    octets
}

#[tokio::test]
async fn the_shell_implements_rfc_7606_over_tcp() {
    let them: IpAddr = "127.76.6.9".parse().unwrap();
    for row in &rows() {
        let mut node = Node::new("127.76.6.1", US).await;
        let config = PeerConfig { passive: true, ..PeerConfig::new(them, Asn(peer_as(row.session))) };
        node.handle.add_peer(config).await.unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(them, 0)).unwrap();
        let mut stream = soon(socket.connect(node.handle.listening()[0])).await.unwrap();
        stream.write_all(&opening(row)).await.unwrap();
        until(&node, row, "the earlier route", |path| path.is_some_and(|path| path.ends_with(" 1"))).await;

        stream.write_all(&faulty(row)).await.unwrap();
        match row.outcome {
            ExpectedHandling::Reset(subcode) => {
                let sent = notification(&read_to_end(&mut stream).await).expect(&row.what);
                assert_eq!((sent.code, sent.subcode), (3, subcode), "{}", row.what);
                until(&node, row, "no route", |path| path.is_none()).await;
                continue;
            }
            ExpectedHandling::Withdraw(_) => until(&node, row, "no route", |path| path.is_none()).await,
            ExpectedHandling::Discard(_) => {
                until(&node, row, "the new route", |path| path.is_some_and(|path| path.ends_with(" 2")))
                    .await;
            }
        }
        let (name, done) = match row.outcome {
            ExpectedHandling::Withdraw(name) => (name, "its routes are withdrawn"),
            ExpectedHandling::Discard(name) => (name, "ignored"),
            ExpectedHandling::Reset(_) => continue,
        };
        let fault = node
            .event(|event| match event {
                Event::MalformedUpdate { fault, .. } => Some(fault),
                _ => None,
            })
            .await;
        assert_fault(row, &[fault], name, done);
        assert_eq!(node.status(them).await.state, State::Established, "{}", row.what);
    }
}

/// Waits until the row's route satisfies the condition.
async fn until(node: &Node, row: &Row, what: &str, wanted: impl Fn(Option<String>) -> bool) {
    let them: IpAddr = "127.76.6.9".parse().unwrap();
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        let path = path(&node.handle.received(them).await.unwrap(), row);
        if wanted(path.clone()) {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{}: expected {what}: {path:?}", row.what);
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}
