//! Speakers on loopback addresses, for the tests of the shell.
//!
//! Each speaker listens on a port that the kernel chooses, so tests can run in parallel. Addresses
//! are 127.x.y.z, all of which Linux has without configuration. No test waits for a fixed time.
//! Tests wait for events, with a limit that only a failure reaches.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use trunkline_bgp::config::{PeerConfig, SpeakerConfig};
use trunkline_bgp::net::{self, Events, RouteChanges, ShellConfig, SpeakerHandle};
use trunkline_bgp::speaker::{Event, PeerStatus, State};
use trunkline_bgp::types::Asn;

/// Longer than any step here takes on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(40);

/// A running speaker.
pub struct Node {
    pub handle: SpeakerHandle,
    pub events: Events,
    pub changes: RouteChanges,
    pub address: IpAddr,
    pub asn: Asn,
}

/// The settings of a speaker that differ between tests.
pub struct Options {
    pub restarting: bool,
    pub complete: bool,
    pub listen: Option<SocketAddr>,
}

impl Default for Options {
    fn default() -> Self {
        Options { restarting: false, complete: true, listen: None }
    }
}

impl Node {
    /// A speaker that listens on `address` and has completed its originations.
    pub async fn new(address: &str, asn: u32) -> Node {
        Node::with(address, asn, Options::default()).await
    }

    pub async fn with(address: &str, asn: u32, options: Options) -> Node {
        let address: IpAddr = address.parse().unwrap();
        let shell = ShellConfig {
            listen: vec![options.listen.unwrap_or(SocketAddr::new(address, 0))],
            connect_timeout: Duration::from_millis(1500),
        };
        let config = SpeakerConfig {
            cluster_id: None,
            local_as: Asn(asn),
            router_id: [10, 0, (asn >> 8) as u8, asn as u8].into(),
            restarting: options.restarting,
            selection_deferral: Duration::from_secs(5),
            max_paths: 4,
            seed: u64::from(asn),
        };
        let (handle, events, changes) = net::spawn(config, &shell).unwrap();
        if options.complete {
            handle.originations_complete().await.unwrap();
        }
        Node { handle, events, changes, address, asn: Asn(asn) }
    }

    pub fn port(&self) -> u16 {
        self.handle.listening()[0].port()
    }

    /// This speaker's configuration for `other`.
    pub fn peer(&self, other: &Node) -> PeerConfig {
        let mut peer = PeerConfig::new(other.address, other.asn);
        peer.port = other.port();
        peer.local_address = Some(self.address);
        peer.connect_retry = Duration::from_secs(2);
        // Loopback addresses are invalid next hops.
        peer.next_hop_v4 = Some([192, 0, 2, self.asn.0 as u8].into());
        peer.next_hop_v6 = Some(format!("2001:db8::{}", self.asn).parse().unwrap());
        peer
    }

    pub async fn status(&self, address: IpAddr) -> PeerStatus {
        let peers = self.handle.peers().await.unwrap();
        peers.into_iter().find(|peer| peer.address == address).expect("no such peer")
    }

    /// Waits until the peer's status satisfies the condition.
    pub async fn until(
        &self,
        address: IpAddr,
        what: &str,
        wanted: impl Fn(&PeerStatus) -> bool,
    ) -> PeerStatus {
        let deadline = tokio::time::Instant::now() + LIMIT;
        loop {
            let status = self.status(address).await;
            if wanted(&status) {
                return status;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "{address}: expected {what}: \
                {status:#?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn established(&self, other: &Node) -> PeerStatus {
        self.until(other.address, "established", |peer| peer.state == State::Established).await
    }

    /// The next event that `pick` accepts.
    pub async fn event<T>(&mut self, pick: impl Fn(Event) -> Option<T>) -> T {
        let find = async {
            loop {
                let event = self.events.next().await.expect("the speaker ended");
                if let Some(picked) = pick(event) {
                    return picked;
                }
            }
        };
        tokio::time::timeout(LIMIT, find).await.expect("no such event")
    }
}

/// Makes two speakers peers of each other, with an edit on each side.
pub async fn join_with(
    a: &Node,
    b: &Node,
    edit_a: impl FnOnce(&mut PeerConfig),
    edit_b: impl FnOnce(&mut PeerConfig),
) {
    let mut to_b = a.peer(b);
    edit_a(&mut to_b);
    let mut to_a = b.peer(a);
    edit_b(&mut to_a);
    a.handle.add_peer(to_b).await.unwrap();
    b.handle.add_peer(to_a).await.unwrap();
}

/// Makes two speakers peers of each other, and waits until both are established.
pub async fn join(a: &Node, b: &Node) {
    join_with(a, b, |_| {}, |_| {}).await;
    a.established(b).await;
    b.established(a).await;
}

/// Waits for any future within the limit.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("nothing happened within the limit")
}
