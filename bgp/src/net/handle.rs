//! The interface of the running speaker: a handle that can be cloned, with messages to the owner as
//! methods.
//!
//! A command is a closure that runs in the owner's task between two inputs. Its effects outside the
//! engine (keys on the listeners, connections to close) are complete before its result returns. So
//! after `add_peer(…).await` the peer can connect.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use tokio::sync::{mpsc, oneshot, watch};

use super::bmp::Monitor;
use super::dump::Dump;
use super::error::{CommandError, Stopped};
use super::listener::ListenStatus;
use super::listing::RouteListing;
use super::owner::{Command, Owner};
use crate::bfd::HostLink;
use crate::bmp::StationConfig;
use crate::config::{PeerConfig, PeerRange};
use crate::rib::Origination;
use crate::speaker::{
    Change, Explanation, Listed, PeerStatus, RangeStatus, Route, RouteFilter, Search, SearchResult, Stop,
};
use crate::types::{PeerId, PeerKey};

/// Prefixes that a search examines at once. They take less than a millisecond of the speaker's
/// time.
const SEARCHED: usize = 8192;

/// A running speaker. Cheap to clone; the speaker stops silently when the last clone is dropped.
///
/// # Errors
/// Every method fails with [`Stopped`] after the speaker has stopped.
#[derive(Clone, Debug)]
pub struct SpeakerHandle {
    commands: mpsc::Sender<Command>,
    listeners: watch::Receiver<Arc<[ListenStatus]>>,
    refused: Arc<AtomicU64>,
}

impl SpeakerHandle {
    pub(super) fn new(
        commands: mpsc::Sender<Command>,
        listeners: watch::Receiver<Arc<[ListenStatus]>>,
        refused: Arc<AtomicU64>,
    ) -> Self {
        SpeakerHandle { commands, listeners, refused }
    }

    /// Adds a peer and starts its session. Fails if the peer exists or a field is out of range.
    pub async fn add_peer(&self, config: PeerConfig) -> Result<PeerId, CommandError> {
        self.call(move |owner, now| owner.speaker.add_peer(config, now)).await?.map_err(CommandError::from)
    }

    /// Changes the peer with `config`'s key; resets its session only if the change needs it.
    pub async fn update_peer(&self, config: PeerConfig) -> Result<Change, CommandError> {
        self.call(move |owner, now| owner.speaker.update_peer(config, now)).await?.map_err(CommandError::from)
    }

    /// Removes a peer with a Cease, Peer De-configured, and removes its paths.
    pub async fn remove_peer(&self, peer: impl Into<PeerKey>) -> Result<(), CommandError> {
        let key = peer.into();
        self.call(move |owner, now| owner.speaker.remove_peer(key, now)).await?.map_err(CommandError::from)
    }

    /// Replaces the prefixes of dynamic neighbours. See [`Speaker::set_ranges`].
    ///
    /// [`Speaker::set_ranges`]: crate::speaker::Speaker::set_ranges
    pub async fn set_ranges(&self, ranges: Vec<PeerRange>) -> Result<(), CommandError> {
        self.call(move |owner, now| owner.speaker.set_ranges(ranges, now)).await?.map_err(CommandError::from)
    }

    /// The prefixes of dynamic neighbours, with their numbers of peers.
    pub async fn ranges(&self) -> Result<Vec<RangeStatus>, Stopped> {
        self.call(|owner, _| owner.speaker.ranges()).await
    }

    /// Originates a prefix, or changes its attributes.
    pub async fn originate(&self, prefix: IpNet, origination: Origination) -> Result<(), Stopped> {
        self.call(move |owner, now| owner.speaker.originate(prefix, origination, now)).await
    }

    /// Originates many prefixes in one command.
    pub async fn originate_all(&self, prefixes: Vec<(IpNet, Origination)>) -> Result<(), Stopped> {
        self.call(move |owner, now| {
            for (prefix, origination) in prefixes {
                owner.speaker.originate(prefix, origination, now);
            }
        })
        .await
    }

    /// Ends the origination of a prefix. A prefix that is not originated is ignored.
    pub async fn withdraw(&self, prefix: IpNet) -> Result<(), Stopped> {
        self.call(move |owner, now| owner.speaker.withdraw(prefix, now)).await
    }

    /// Ends the origination of many prefixes in one command. Prefixes that are not originated are
    /// ignored.
    pub async fn withdraw_all(&self, prefixes: Vec<IpNet>) -> Result<(), Stopped> {
        self.call(move |owner, now| {
            for prefix in prefixes {
                owner.speaker.withdraw(prefix, now);
            }
        })
        .await
    }

    /// Declares that all initial peers and prefixes are added. No UPDATE and no End-of-RIB is sent
    /// before this call.
    pub async fn originations_complete(&self) -> Result<(), Stopped> {
        self.call(|owner, now| owner.speaker.originations_complete(now)).await
    }

    /// Requests all routes of a peer again (RFC 2918). Returns false if its session does not
    /// support it.
    pub async fn request_refresh(&self, peer: impl Into<PeerKey>) -> Result<bool, CommandError> {
        let key = peer.into();
        self.call(move |owner, now| owner.speaker.request_refresh(key, now))
            .await?
            .map_err(CommandError::from)
    }

    /// Advertises all routes to a peer again. Returns false if it is not Established.
    pub async fn refresh_out(&self, peer: impl Into<PeerKey>) -> Result<bool, CommandError> {
        let key = peer.into();
        self.call(move |owner, now| owner.speaker.refresh_out(key, now)).await?.map_err(CommandError::from)
    }

    /// Resets a peer's session. See [`Speaker::reset_peer`].
    ///
    /// [`Speaker::reset_peer`]: crate::speaker::Speaker::reset_peer
    pub async fn reset_peer(
        &self,
        peer: impl Into<PeerKey>,
        hard: bool,
        communication: String,
    ) -> Result<bool, CommandError> {
        let key = peer.into();
        self.call(move |owner, now| owner.speaker.reset_peer(key, hard, communication, now))
            .await?
            .map_err(CommandError::from)
    }

    /// Waits until every Established peer was sent all pending routes. There is no time limit; the
    /// caller sets one.
    pub async fn wait_all_advertised(&self) -> Result<(), Stopped> {
        let (sender, receiver) = oneshot::channel();
        self.call(move |owner, _| owner.watch_all_advertised(sender)).await?;
        receiver.await.map_err(|_| Stopped)
    }

    /// Waits until the prefix is written to an Established peer, or returns at once if it was
    /// written before; returns the peer. There is no time limit; the caller sets one. Dropping the
    /// future ends the watch.
    pub async fn watch(&self, prefix: IpNet) -> Result<PeerKey, Stopped> {
        let (sender, receiver) = oneshot::channel();
        self.call(move |owner, _| owner.watch(prefix, sender)).await?;
        receiver.await.map_err(|_| Stopped)
    }

    /// Sets the links of the host. A BFD session accepts packets from the peer's links only
    /// ([`Links::of`]). Call this before the first peer is added, and whenever links or addresses
    /// change. Before the first call a session accepts packets from every link. Listening addresses
    /// that are not bound are tried again.
    ///
    /// [`Links::of`]: crate::bfd::Links::of
    pub async fn set_links(&self, links: Vec<HostLink>) -> Result<(), Stopped> {
        self.call(|owner, now| {
            owner.speaker.set_links(&links);
            owner.bfd.set_links(links);
            owner.listeners.retry(now);
        })
        .await
    }

    /// Refused BFD packets since the speaker started, by [`Reason::label`]. The kernel's drops at
    /// the receiving sockets (by the filter, or because a buffer was full) are `socket`.
    ///
    /// [`Reason::label`]: crate::bfd::Reason::label
    pub async fn bfd_refused(&self) -> Result<Vec<(&'static str, u64)>, Stopped> {
        self.call(|owner, _| owner.bfd.refused()).await
    }

    /// All peers, configured and dynamic, by address.
    pub async fn peers(&self) -> Result<Vec<PeerStatus>, Stopped> {
        self.call(|owner, now| owner.peers(now)).await
    }

    /// Lists the routes of a table in pieces. The speaker continues between two pieces, and each
    /// prefix is listed with its state at that moment. See [`Listing`] for the effect of changes
    /// meanwhile.
    ///
    /// [`Listing`]: crate::speaker::Listing
    pub async fn list(&self, table: Listed) -> Result<RouteListing, CommandError> {
        RouteListing::new(self.clone(), table).await
    }

    /// Adj-RIB-In of a peer by prefix, including rejected paths; collected as by [`Self::list`].
    pub async fn received(&self, peer: impl Into<PeerKey>) -> Result<Vec<Route>, CommandError> {
        Ok(self.list(Listed::Received(peer.into())).await?.collect().await?)
    }

    /// Adj-RIB-Out of a peer by prefix; collected as by [`Self::list`].
    pub async fn advertised(&self, peer: impl Into<PeerKey>) -> Result<Vec<Route>, CommandError> {
        Ok(self.list(Listed::Advertised(peer.into())).await?.collect().await?)
    }

    /// The paths in use by prefix, including originated ones; collected as by [`Self::list`].
    pub async fn routes(&self) -> Result<Vec<Route>, CommandError> {
        Ok(self.list(Listed::Used).await?.collect().await?)
    }

    /// Reports all prefixes with a path again by [`RouteChanges`], for a consumer that has lost its
    /// FIB.
    ///
    /// [`RouteChanges`]: super::RouteChanges
    pub async fn resend_routes(&self) -> Result<(), Stopped> {
        self.call(|owner, _| owner.speaker.resend_routes()).await
    }

    /// Searches the tables; lists the first `limit` matching prefixes. The speaker continues
    /// between pieces of the search. After the time `within`, the search ends incomplete
    /// ([`SearchResult::complete`] is false). Dropping the future also ends it.
    pub async fn search(
        &self,
        filter: RouteFilter,
        limit: usize,
        within: Duration,
    ) -> Result<SearchResult, Stopped> {
        let mut search = Search::new(filter, limit);
        let ends = tokio::time::Instant::now() + within;
        loop {
            let (back, found) = self
                .call(move |owner, _| {
                    let more =
                        owner.speaker.search(&mut search, SEARCHED) && tokio::time::Instant::now() < ends;
                    let found = (!more).then(|| owner.speaker.found(&search));
                    (search, found)
                })
                .await?;
            match found {
                Some(found) => return Ok(found),
                None => search = back,
            }
        }
    }

    /// Explains the routing of a prefix: path by path, then peer by peer.
    pub async fn explain(&self, prefix: IpNet) -> Result<Explanation, Stopped> {
        self.call(move |owner, now| owner.speaker.explain(prefix, now)).await
    }

    /// Connects to a BMP station and sends it all routes, until the returned object is dropped or
    /// the speaker stops. The station need not run yet, and may restart. See [`crate::bmp`].
    ///
    /// # Panics
    /// If called outside a tokio runtime.
    pub fn monitor(&self, address: SocketAddr, config: StationConfig) -> Monitor {
        Monitor::start(self.downgrade(), address, config)
    }

    /// The tables in MRT's TABLE_DUMP_V2, as of `when` (seconds since 1970, UTC): see [`crate::mrt`].
    pub fn dump_tables(&self, when: u32) -> Dump {
        Dump::new(self.clone(), when)
    }

    /// Returns after all earlier requests were answered as far as possible. If an earlier request
    /// for route changes is still open then, there are no route changes.
    pub async fn fence(&self) -> Result<(), Stopped> {
        self.call(|owner, _| owner.give_route_changes()).await
    }

    /// Ends every session as `stop` defines, and stops the speaker. On return every connection is
    /// closed and the ports are free. This takes about two seconds at most, if a peer does not
    /// close its side. A second stop does nothing.
    pub async fn stop(&self, stop: Stop) {
        let (sender, receiver) = oneshot::channel();
        // Both fail only if the speaker has stopped already.
        let _ = self.call(move |owner, now| owner.stop(stop, sender, now)).await;
        let _ = receiver.await;
    }

    /// The addresses of the listening sockets; for port 0 with the port that the kernel chose.
    pub fn listening(&self) -> Vec<SocketAddr> {
        let status = self.listeners.borrow();
        status.iter().filter(|status| status.fault.is_none()).map(|status| status.address).collect()
    }

    /// The configured addresses, bound or not, with notification of changes. The sender is gone
    /// after the speaker has stopped.
    pub fn listeners(&self) -> watch::Receiver<Arc<[ListenStatus]>> {
        self.listeners.clone()
    }

    /// The number of connections that were closed at once: no peer has the address, or the peer may
    /// not connect now.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(super) fn downgrade(&self) -> mpsc::WeakSender<Command> {
        self.commands.downgrade()
    }

    pub(super) async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Owner, Instant) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        let (sender, receiver) = oneshot::channel();
        let command: Command = Box::new(move |owner, now| {
            let result = work(owner, now);
            owner.act();
            // The caller may be gone.
            let _ = sender.send(result);
        });
        self.commands.send(command).await.map_err(|_| Stopped)?;
        receiver.await.map_err(|_| Stopped)
    }
}
