//! The Trunkline side of an interop session: the library's own speaker. It runs in this process, in
//! the namespace of a node. The test reads its state.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use trunkline_bgp::config::{PeerConfig, PeerRange, SpeakerConfig};
use trunkline_bgp::net::discovery::{Discovery, Neighbours};
use trunkline_bgp::net::{ShellConfig, SpeakerHandle, spawn};
use trunkline_bgp::rib::{FibPath, Origination};
use trunkline_bgp::speaker::{Change, PeerStatus, Route, State, Stop};
use trunkline_bgp::types::{Asn, InterfaceName, PeerKey};

use crate::host::Host;
use crate::shell::{Seen, wait_for};

/// Time limit of a wait in the matrix, even on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);

/// A running speaker.
pub(super) struct Us {
    runtime: Runtime,
    handle: SpeakerHandle,
    fib: Arc<Mutex<BTreeMap<IpNet, Vec<FibPath>>>>,
}

impl Us {
    /// Starts a speaker on a node.
    pub(super) fn start(host: &Host, config: SpeakerConfig) -> Result<Us> {
        host.ns.within(|| {
            // A thread is in the namespace of the thread that created it.
            let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
            let listen = [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()];
            let listen = listen.map(|address| SocketAddr::new(address, 179)).to_vec();
            let shell = ShellConfig { listen, connect_timeout: Duration::from_secs(2) };
            // A child process that another thread has just forked holds every socket until it
            // executes its program. The previous listening socket may be one of these sockets.
            let (handle, mut events, mut changes) = wait_for("the BGP port to be free", PATIENCE, || {
                Ok(Seen::Yes(runtime.block_on(async { spawn(config.clone(), &shell) })?))
            })?;
            let fib = Arc::new(Mutex::new(BTreeMap::new()));
            let kept = Arc::clone(&fib);
            runtime.spawn(async move {
                while let Ok(changed) = changes.next(1000).await {
                    let mut fib = kept.lock().unwrap_or_else(PoisonError::into_inner);
                    for change in changed {
                        match change.paths.is_empty() {
                            true => fib.remove(&change.prefix),
                            false => fib.insert(change.prefix, change.paths),
                        };
                    }
                }
            });
            runtime.spawn(async move { while events.next().await.is_some() {} });
            Ok(Us { runtime, handle, fib })
        })
    }

    pub(super) fn add(&self, peer: PeerConfig) -> Result<()> {
        Ok(self.runtime.block_on(self.handle.add_peer(peer)).map(drop)?)
    }

    /// Accepts peers from this range.
    pub(super) fn take(&self, range: PeerRange) -> Result<()> {
        Ok(self.runtime.block_on(self.handle.set_ranges(vec![range]))?)
    }

    pub(super) fn update(&self, peer: PeerConfig) -> Result<Change> {
        Ok(self.runtime.block_on(self.handle.update_peer(peer))?)
    }

    pub(super) fn originate(&self, prefixes: Vec<(IpNet, Origination)>) -> Result<()> {
        Ok(self.runtime.block_on(self.handle.originate_all(prefixes))?)
    }

    /// Marks the originated prefixes as complete.
    pub(super) fn complete(&self) -> Result<()> {
        Ok(self.runtime.block_on(self.handle.originations_complete())?)
    }

    pub(super) fn refresh(&self, address: IpAddr) -> Result<bool> {
        Ok(self.runtime.block_on(self.handle.request_refresh(address))?)
    }

    /// Discovers the neighbour on an interface of the node by router advertisements. The discovery
    /// continues until the returned value is dropped.
    pub(super) fn discover(&self, host: &Host, interface: InterfaceName) -> Result<(Discovery, Ipv6Addr)> {
        let (found, mut neighbours) = watch::channel(Neighbours::new());
        let discovery = host.ns.within(|| {
            let _runtime = self.runtime.enter();
            Ok(Discovery::start(interface, &found)?)
        })?;
        let address = self.runtime.block_on(async {
            let found = neighbours.wait_for(|found| found.contains_key(&interface));
            let found = tokio::time::timeout(PATIENCE, found).await;
            found.ok().and_then(Result::ok).and_then(|found| found.get(&interface).copied())
        });
        Ok((discovery, address.context("no router advertisement from the router")?))
    }

    pub(super) fn stop(self, stop: Stop) {
        self.runtime.block_on(self.handle.stop(stop));
        // The remaining tasks have nothing left to do.
        self.runtime.shutdown_background();
    }

    pub(super) fn peer(&self, key: impl Into<PeerKey>) -> Result<PeerStatus> {
        self.find(key.into())?.context("no such peer")
    }

    /// A peer, if it exists: a dynamic peer exists only during its session.
    pub(super) fn find(&self, key: PeerKey) -> Result<Option<PeerStatus>> {
        let peers = self.runtime.block_on(self.handle.peers())?;
        Ok(peers.into_iter().find(|peer| peer.key() == key))
    }

    pub(super) fn received(&self, key: impl Into<PeerKey>) -> Result<Vec<Route>> {
        Ok(self.runtime.block_on(self.handle.received(key))?)
    }

    pub(super) fn fib(&self, prefix: &IpNet) -> Vec<FibPath> {
        let fib = self.fib.lock().unwrap_or_else(PoisonError::into_inner);
        fib.get(prefix).cloned().unwrap_or_default()
    }

    /// Waits until a peer's status meets a condition.
    pub(super) fn wait_peer(
        &self,
        key: impl Into<PeerKey>,
        what: &str,
        is: impl Fn(&PeerStatus) -> bool,
    ) -> Result<PeerStatus> {
        let key = key.into();
        wait_for(&format!("{what} (this side)"), PATIENCE, || {
            let Some(peer) = self.find(key)? else { return Ok(Seen::NotYet("no such peer".to_owned())) };
            let seen = format!(
                "{}, last error {:?}, sent {:?}, received {:?}",
                peer.state, peer.last_error, peer.notification_sent, peer.notification_received
            );
            Ok(if is(&peer) { Seen::Yes(peer) } else { Seen::NotYet(seen) })
        })
    }

    pub(super) fn wait_established(&self, key: impl Into<PeerKey>) -> Result<PeerStatus> {
        self.wait_peer(key, "an Established session", |peer| peer.state == State::Established)
    }

    /// Waits until a peer's route meets a condition.
    pub(super) fn wait_route(
        &self,
        key: impl Into<PeerKey>,
        prefix: &IpNet,
        what: &str,
        is: impl Fn(&Route) -> bool,
    ) -> Result<Route> {
        let key = key.into();
        wait_for(&format!("the peer's route {prefix}, {what}"), PATIENCE, || {
            let routes = self.received(key)?;
            let of: Vec<&Route> = routes.iter().filter(|route| route.prefix == *prefix).collect();
            Ok(match of.iter().find(|route| is(route)) {
                Some(route) => Seen::Yes((*route).clone()),
                None => Seen::NotYet(format!("{of:?}")),
            })
        })
    }
}

/// A speaker of this AS with an identifier.
pub(super) fn speaker(asn: u32, identifier: Ipv4Addr, restarting: bool) -> SpeakerConfig {
    SpeakerConfig {
        restarting,
        selection_deferral: Duration::from_secs(20),
        ..SpeakerConfig::new(Asn(asn), identifier)
    }
}
