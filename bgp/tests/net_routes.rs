//! Routes over real sockets: watches, and the cost of many routes and slow peers.
#![allow(clippy::unwrap_used, reason = "tests")]

mod net_support;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use net_support::{Node, join, join_with, soon};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use trunkline_bgp::rib::Origination;
use trunkline_bgp::types::{Community, LargeCommunity};

const ROUTES: u32 = 50_000;

fn prefix(index: u32) -> IpNet {
    Ipv4Net::new((0x0b00_0000 + (index << 8)).into(), 24).unwrap().into()
}

fn own_attributes(index: u32) -> Origination {
    let large = |local2| LargeCommunity { global: 65_000, local1: index, local2 };
    Origination {
        communities: vec![Community(index)],
        large_communities: (0..4).map(large).collect(),
        ..Origination::default()
    }
}

#[tokio::test]
async fn a_watch_resolves_when_a_route_was_advertised() {
    let (a, b) = (Node::new("127.8.1.1", 1).await, Node::new("127.8.1.2", 2).await);
    let early = tokio::spawn({
        let handle = a.handle.clone();
        async move { handle.watch(prefix(1)).await }
    });
    let never = tokio::time::timeout(Duration::from_millis(50), a.handle.watch(prefix(2))).await;
    assert!(never.is_err(), "no peer received it");
    a.handle.originate(prefix(1), Origination::default()).await.unwrap();
    assert!(!early.is_finished(), "no peer exists");

    join(&a, &b).await;
    assert_eq!(soon(early).await.unwrap(), Ok(b.address.into()));
    assert_eq!(
        soon(a.handle.watch(prefix(1))).await,
        Ok(b.address.into()),
        "a second watch, for a prefix that is advertised already"
    );
    let pods = (10..60).map(|index| {
        let handle = a.handle.clone();
        tokio::spawn(async move {
            handle.originate(prefix(index), Origination::default()).await.unwrap();
            handle.watch(prefix(index)).await
        })
    });
    for pod in pods.collect::<Vec<_>>() {
        assert_eq!(soon(pod).await.unwrap(), Ok(b.address.into()));
    }
    b.until(a.address, "all routes received", |peer| peer.families[0].received == 51).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_thousand_routes_are_advertised_and_withdrawn() {
    let (a, mut b) = (Node::new("127.8.2.1", 1).await, Node::new("127.8.2.2", 2).await);
    join(&a, &b).await;
    let routes = (0..ROUTES).map(|index| (prefix(index), own_attributes(index / 5)));
    a.handle.originate_all(routes.collect()).await.unwrap();

    let mut seen = BTreeSet::new();
    while seen.len() < ROUTES as usize {
        // A slow FIB takes small batches. The engine keeps the other changes, one entry per prefix.
        let changes = soon(b.changes.next(1000)).await.unwrap();
        assert!(!changes.is_empty() && changes.len() <= 1000);
        for change in changes {
            assert_eq!(change.paths.len(), 1);
            seen.insert(change.prefix);
        }
    }
    for index in 0..ROUTES {
        a.handle.withdraw(prefix(index)).await.unwrap();
    }
    while !seen.is_empty() {
        for change in soon(b.changes.next(10_000)).await.unwrap() {
            assert!(change.paths.is_empty());
            seen.remove(&change.prefix);
        }
    }
    assert_eq!(b.status(a.address).await.families[0].received, 0);
}

#[tokio::test]
async fn many_prefixes_are_withdrawn_by_one_command() {
    let (a, b) = (Node::new("127.8.4.1", 1).await, Node::new("127.8.4.2", 2).await);
    join(&a, &b).await;
    let routes = (0..1000).map(|index| (prefix(index), Origination::default()));
    a.handle.originate_all(routes.collect()).await.unwrap();
    b.until(a.address, "all routes received", |peer| peer.families[0].received == 1000).await;
    // Half of them, and as many that are not originated.
    a.handle.withdraw_all((500..1500).map(prefix).collect()).await.unwrap();
    b.until(a.address, "the withdrawals received", |peer| peer.families[0].received == 500).await;
    let left: Vec<IpNet> = b.handle.received(a.address).await.unwrap().iter().map(|it| it.prefix).collect();
    assert_eq!(left, (0..500).map(prefix).collect::<Vec<_>>());
    a.handle.withdraw_all(Vec::new()).await.unwrap();
    assert_eq!(a.status(b.address).await.families[0].advertised, 500);
}

/// A peer with a session made by hand, which reads only on demand.
struct SlowPeer {
    stream: TcpStream,
}

impl SlowPeer {
    async fn connect(local: &Node, to: SocketAddr) -> SlowPeer {
        let socket = TcpSocket::new_v4().unwrap();
        // The size of the kernel's receive buffer on this side.
        socket.set_recv_buffer_size(64 * 1024).unwrap();
        socket.bind(SocketAddr::new(local.address, 0)).unwrap();
        let mut stream = soon(socket.connect(to)).await.unwrap();
        let mut open = vec![0xff; 16];
        // This OPEN has AS 2, no Hold Time, BGP identifier 10.0.0.2 and no optional parameters.
        open.extend([0, 29, 1, 4, 0, 2, 0, 0, 10, 0, 0, 2, 0]);
        open.extend([0xff; 16]);
        open.extend([0, 19, 4]);
        stream.write_all(&open).await.unwrap();
        SlowPeer { stream }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_does_not_read_costs_only_its_buffer() {
    let a = Node::new("127.8.3.1", 1).await;
    let b = Node::new("127.8.3.2", 2).await;
    let slow = Node::new("127.8.3.3", 2).await;
    join_with(&a, &b, |_| {}, |_| {}).await;
    let mut to_slow = a.peer(&slow);
    to_slow.passive = true;
    a.handle.add_peer(to_slow).await.unwrap();
    let mut peer = SlowPeer::connect(&slow, a.handle.listening()[0]).await;
    a.established(&slow).await;
    a.established(&b).await;

    // Each route takes about 90 octets, all routes about four megabytes.
    let routes = (0..ROUTES).map(|index| (prefix(index), own_attributes(index)));
    a.handle.originate_all(routes.collect()).await.unwrap();
    b.until(a.address, "all routes received", |peer| peer.families[0].received == ROUTES as usize).await;

    let written = a.status(slow.address).await.traffic.sent.octets;
    assert!(written < 1_500_000, "{written} octets were encoded for a peer that does not read");

    // While the peer does not read, most of its pending routes are withdrawn again. The peer never
    // receives these routes.
    for index in 100..ROUTES {
        a.handle.withdraw(prefix(index)).await.unwrap();
    }
    let read = async {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let length = peer.stream.read(&mut buffer).await.unwrap();
            assert_ne!(length, 0, "the session ended");
            if a.status(slow.address).await.families[0].advertised == 100 {
                return;
            }
        }
    };
    soon(read).await;
    let written = a.status(slow.address).await.traffic.sent.octets;
    assert!(written < 2_500_000, "{written} octets for routes that were withdrawn meanwhile");
    b.until(a.address, "the withdrawals received", |peer| peer.families[0].received == 100).await;
}
