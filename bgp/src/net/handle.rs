//! The speaker as the rest of the process sees it: a handle to clone, whose methods are messages to the owner.
//!
//! A command is a closure that runs in the owner's task between two inputs. What it set off outside (keys on the
//! listeners, connections to close) is done before the answer comes, so that after `add_peer(…).await` the
//! peer can connect.

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

/// Prefixes that a search looks at in one turn: less than a millisecond of the speaker's time.
const SEARCHED: usize = 8192;

/// A running speaker. Cheap to clone; when the last clone is dropped the speaker stops silently.
///
/// Every method fails with [`Stopped`] once the speaker was stopped.
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

    /// Adds a peer and starts its session. Fails if it is there already or a field is out of range.
    pub async fn add_peer(&self, config: PeerConfig) -> Result<PeerId, CommandError> {
        self.call(move |owner, now| owner.speaker.add_peer(config, now)).await?.map_err(CommandError::from)
    }

    /// Changes the peer with `config`'s key; resets its session only where the protocol has to.
    pub async fn update_peer(&self, config: PeerConfig) -> Result<Change, CommandError> {
        self.call(move |owner, now| owner.speaker.update_peer(config, now)).await?.map_err(CommandError::from)
    }

    /// Removes a peer, with a Cease that says so, and everything learned from it.
    pub async fn remove_peer(&self, peer: impl Into<PeerKey>) -> Result<(), CommandError> {
        let key = peer.into();
        self.call(move |owner, now| owner.speaker.remove_peer(key, now)).await?.map_err(CommandError::from)
    }

    /// Makes the prefixes that peers may come from unconfigured be these. See [`Speaker::set_ranges`].
    ///
    /// [`Speaker::set_ranges`]: crate::speaker::Speaker::set_ranges
    pub async fn set_ranges(&self, ranges: Vec<PeerRange>) -> Result<(), CommandError> {
        self.call(move |owner, now| owner.speaker.set_ranges(ranges, now)).await?.map_err(CommandError::from)
    }

    /// The prefixes that peers may come from unconfigured, and how many are there.
    pub async fn ranges(&self) -> Result<Vec<RangeStatus>, Stopped> {
        self.call(|owner, _| owner.speaker.ranges()).await
    }

    /// Originates a prefix, or changes what it carries.
    pub async fn originate(&self, prefix: IpNet, origination: Origination) -> Result<(), Stopped> {
        self.call(move |owner, now| owner.speaker.originate(prefix, origination, now)).await
    }

    /// Originates many prefixes in one go.
    pub async fn originate_all(&self, prefixes: Vec<(IpNet, Origination)>) -> Result<(), Stopped> {
        self.call(move |owner, now| {
            for (prefix, origination) in prefixes {
                owner.speaker.originate(prefix, origination, now);
            }
        })
        .await
    }

    /// Takes an originated prefix back.
    pub async fn withdraw(&self, prefix: IpNet) -> Result<(), Stopped> {
        self.call(move |owner, now| owner.speaker.withdraw(prefix, now)).await
    }

    /// Says that every first peer and prefix is there. Before this no UPDATE and no End-of-RIB leaves.
    pub async fn originations_complete(&self) -> Result<(), Stopped> {
        self.call(|owner, now| owner.speaker.originations_complete(now)).await
    }

    /// Asks a peer for everything again (RFC 2918). False if its session can't.
    pub async fn request_refresh(&self, peer: impl Into<PeerKey>) -> Result<bool, CommandError> {
        let key = peer.into();
        self.call(move |owner, now| owner.speaker.request_refresh(key, now))
            .await?
            .map_err(CommandError::from)
    }

    /// Tells a peer everything again. False if it is not Established.
    pub async fn refresh_out(&self, peer: impl Into<PeerKey>) -> Result<bool, CommandError> {
        let key = peer.into();
        self.call(move |owner, now| owner.speaker.refresh_out(key, now)).await?.map_err(CommandError::from)
    }

    /// Ends a peer's session and begins a new one. See [`Speaker::reset_peer`].
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

    /// Waits until every Established peer has been written all that there is to tell it. There is no time limit: put one around
    /// it.
    pub async fn wait_all_advertised(&self) -> Result<(), Stopped> {
        let (sender, receiver) = oneshot::channel();
        self.call(move |owner, _| owner.watch_all_advertised(sender)).await?;
        receiver.await.map_err(|_| Stopped)
    }

    /// Waits until the prefix has been written to an Established peer, at once if it has been already; which one.
    /// There is no time limit: put one around it. Dropping the future ends the watch.
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

    /// Every configured peer, by address.
    pub async fn peers(&self) -> Result<Vec<PeerStatus>, Stopped> {
        self.call(|owner, now| owner.peers(now)).await
    }

    /// A table's routes in pieces, between which the speaker goes on with its work: each prefix as it is when its turn comes. See
    /// [`Listing`] for what that means while routes change.
    ///
    /// [`Listing`]: crate::speaker::Listing
    pub async fn list(&self, table: Listed) -> Result<RouteListing, CommandError> {
        RouteListing::new(self.clone(), table).await
    }

    /// What a peer told, refused paths included, by prefix; gathered as by [`Self::list`].
    pub async fn received(&self, peer: impl Into<PeerKey>) -> Result<Vec<Route>, CommandError> {
        Ok(self.list(Listed::Received(peer.into())).await?.collect().await?)
    }

    /// What a peer was told, by prefix; gathered as by [`Self::list`].
    pub async fn advertised(&self, peer: impl Into<PeerKey>) -> Result<Vec<Route>, CommandError> {
        Ok(self.list(Listed::Advertised(peer.into())).await?.collect().await?)
    }

    /// The paths in use, originated ones included, by prefix; gathered as by [`Self::list`].
    pub async fn routes(&self) -> Result<Vec<Route>, CommandError> {
        Ok(self.list(Listed::Used).await?.collect().await?)
    }

    /// Has [`RouteChanges`] tell every prefix again that it has told a path of: whoever listens has lost them.
    ///
    /// [`RouteChanges`]: super::RouteChanges
    pub async fn resend_routes(&self) -> Result<(), Stopped> {
        self.call(|owner, _| owner.speaker.resend_routes()).await
    }

    /// The paths of the first `limit` prefixes that have what is looked for. Between pieces of the search the speaker goes on with its work;
    /// after `within` the search ends where it is, and says so ([`SearchResult::complete`]). Dropping the future ends it too.
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

    /// Why a prefix is routed as it is: path by path, and peer by peer.
    pub async fn explain(&self, prefix: IpNet) -> Result<Explanation, Stopped> {
        self.call(move |owner, now| owner.speaker.explain(prefix, now)).await
    }

    /// Tells a BMP station everything, until what this returns is dropped or the speaker stops. It need not be there yet,
    /// and may go and come back. See [`crate::bmp`].
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

    /// Answers once everything that was asked before is answered, as far as it can be: a request for route changes
    /// that is still open then has none to get.
    pub async fn fence(&self) -> Result<(), Stopped> {
        self.call(|owner, _| owner.give_route_changes()).await
    }

    /// Ends every session as `stop` says, and the speaker. When this is done every connection was closed and the
    /// ports are free; it takes about two seconds at most, when a peer doesn't close its side. Stopping what is
    /// stopped is no error.
    pub async fn stop(&self, stop: Stop) {
        let (sender, receiver) = oneshot::channel();
        // Both fail only if the speaker has stopped, which is what is wanted.
        let _ = self.call(move |owner, now| owner.stop(stop, sender, now)).await;
        let _ = receiver.await;
    }

    /// The addresses that are listened on, with the ports that the kernel chose where 0 was asked for.
    pub fn listening(&self) -> Vec<SocketAddr> {
        let status = self.listeners.borrow();
        status.iter().filter(|status| status.fault.is_none()).map(|status| status.address).collect()
    }

    /// The configured addresses, bound or not, now and after each change. The sender is gone once the speaker has
    /// stopped.
    pub fn listeners(&self) -> watch::Receiver<Arc<[ListenStatus]>> {
        self.listeners.clone()
    }

    /// Connections that were closed at once, because their address is no configured peer's or the peer may not
    /// connect now.
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
            // The caller may have given up.
            let _ = sender.send(result);
        });
        self.commands.send(command).await.map_err(|_| Stopped)?;
        receiver.await.map_err(|_| Stopped)
    }
}
