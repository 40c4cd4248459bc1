//! The routing tables: Adj-RIB-In, the decision process, Loc-RIB, Adj-RIB-Out (RFC 4271 §3.2, §9).
//!
//! [`Rib::handle_update`] adds received paths, and [`Rib::originate`] adds this speaker's own.
//! There are two kinds of output: [`Rib::write_updates`] appends pending routes to a peer's output
//! buffer, and [`Rib::route_changes`] returns changed next hops for the FIB. Readers pull both. So
//! a slow reader costs one bit per prefix, and a prefix that changed ten times in between is
//! reported once.
//!
//! | module | content |
//! |---|---|
//! | `table` | prefixes and their paths, one table per family; every change goes through it |
//! | `decision` | selects the paths of a prefix that are used |
//! | `attributes` | attribute sets, stored once |
//! | `transform` | import and export, cached by attribute set |
//! | `adj_out` | advertised and pending routes of each peer |
//! | `peer` | peers, sessions, holds: the state that the tables share |
//! | `listing`, `explain` | the tables and their decisions for the operator |
//!
//! The tables have no clock. The caller removes stale paths ([`Rib::sweep_stale`]) and ends a hold
//! ([`Rib::release`]).
//!
//! Supported:
//! - RFC 4271 §9 without aggregation and without an IGP: all interior costs are equal, and next
//!   hops count as reachable
//! - ECMP over paths that are equal up to "external over internal"
//! - RFC 1997's well-known communities, GRACEFUL_SHUTDOWN (RFC 8326), NO_PEER (RFC 3765)
//! - stale paths and deferral (RFC 4724), long-lived stale paths (RFC 9494)
//! - route reflection (RFC 4456), ONLY_TO_CUSTOMER (RFC 9234), ADD-PATH in both directions (RFC
//!   7911), local-as (RFC 7705)
//! - Link Bandwidth of originated prefixes (RFC 10005); that of received paths is passed on
//!
//! Not supported: confederations.
//!
//! Paths from before a peer's restart need care. Paths that the peer does not advertise again must
//! be removed, but not before its End-of-RIB. The paths are marked and not copied; a path that is
//! advertised again loses the mark. If the session is lost a second time, paths with the mark are
//! removed (RFC 4724 §4.2).

mod adj_out;
mod attributes;
mod decision;
mod explain;
mod facts;
mod listing;
mod peer;
mod received;
mod row_set;
mod table;
mod transform;

use ipnet::IpNet;
use rustc_hash::FxHashSet;

pub use adj_out::NotAdvertised;
pub use decision::Step;
pub use explain::{Comparison, ExplainedExport, ExplainedPath, PolicyMatch, SelectionResult};
pub use facts::{Counts, FibPath, Origination, RibConfig, RibPeer, RouteChange, SessionFacts, UpdateResult};
pub use listing::{AdvertisedRoute, PathEntry, RouteAttributes};
pub use received::Filtered;

use adj_out::AdjOut;
use attributes::AttrId;
use peer::Shared;
use received::ReceivedPath;
use table::Table;

use crate::config::PathRules;
use crate::policy::Policy;
use crate::types::{
    AddressFamily, ExtendedCommunity, Family, FamilySet, Ipv4, Ipv6, NextHop, PeerId, PeerKey,
};
use crate::wire::{Nlri, PathAttributes, Prefixes, Update};

/// The highest number of rows that one call of [`Rib::write_updates`] examines. Without a limit, a
/// policy that rejects most paths would make one call examine a whole table.
const ROWS_PER_WRITE: usize = 16 * 1024;

/// The routing tables of a speaker. See the module documentation.
#[derive(Debug)]
pub struct Rib {
    shared: Shared,
    v4: Table<Ipv4>,
    v6: Table<Ipv6>,
}

/// Runs the same code on the table of a family.
macro_rules! in_family {
    ($rib:expr, $family:expr, |$table:ident, $shared:ident| $run:expr) => {{
        let $shared = &mut $rib.shared;
        match $family {
            Family::Ipv4Unicast => {
                let $table = &mut $rib.v4;
                $run
            }
            Family::Ipv6Unicast => {
                let $table = &mut $rib.v6;
                $run
            }
        }
    }};
}

impl Rib {
    /// Creates empty tables.
    pub fn new(config: RibConfig) -> Rib {
        Rib { shared: Shared::new(config), v4: Table::default(), v6: Table::default() }
    }

    /// Adds a peer without a session. The caller assigns the ids: small numbers below
    /// [`PeerId::LOCAL`], each to one peer at a time.
    pub fn add_peer(&mut self, peer: PeerId, facts: RibPeer) {
        self.shared.add_peer(peer, facts);
    }

    /// Removes a peer with all its paths, including stale ones.
    pub fn remove_peer(&mut self, peer: PeerId) {
        self.peer_down(peer, FamilySet::EMPTY, FamilySet::EMPTY);
        self.shared.remove_peer(peer);
    }

    /// Starts a session. Its whole Adj-RIB-Out is pending in every family that it carries, followed
    /// by End-of-RIB. Stale paths of the last session stay until they are advertised again or
    /// swept.
    pub fn peer_up(&mut self, peer: PeerId, facts: SessionFacts) {
        if self.shared.peer(peer).is_none_or(|peer| peer.session.is_some()) {
            debug_assert!(false, "{peer:?} is unknown, or up already");
            return;
        }
        let families = facts.families;
        let reflected_anew = self.shared.session_up(peer, facts);
        if reflected_anew {
            self.reflect_again();
        }
        for family in families.iter() {
            in_family!(self, family, |table, shared| begin(table, shared, peer));
        }
        self.shared.signal(peer);
    }

    /// Ends a session and clears its Adj-RIB-Out. The peer's paths are removed, except in the
    /// families in `retain`, where they stay in use and are marked stale (RFC 4724 §4.2). Paths
    /// that were stale before are removed too, unless the family is also in `long_lived` (RFC 9494
    /// §4.2).
    pub fn peer_down(&mut self, peer: PeerId, retain: FamilySet, long_lived: FamilySet) {
        self.shared.session_down(peer);
        for family in Family::ALL {
            in_family!(self, family, |table, shared| {
                AdjOut::forget(table, shared, peer);
                if !retain.intersection(long_lived).contains(family) {
                    table.remove_paths(shared, peer, retain.contains(family));
                }
                table.mark_stale(shared, peer, true);
            });
        }
        self.shared.collect();
    }

    /// Applies an UPDATE: first its withdrawn routes, then its NLRI. An UPDATE with malformed
    /// attributes withdraws all its prefixes (RFC 7606 §2). An End-of-RIB marker changes nothing
    /// here.
    pub fn handle_update(&mut self, peer: PeerId, update: &Update<'_>) -> UpdateResult {
        let mut outcome = UpdateResult::default();
        for prefixes in update.withdrawn() {
            outcome.withdrawn += prefixes.len();
            match prefixes {
                Prefixes::V4(prefixes) => withdraw_all(&mut self.v4, &mut self.shared, peer, prefixes),
                Prefixes::V6(prefixes) => withdraw_all(&mut self.v6, &mut self.shared, peer, prefixes),
            }
        }
        if let Some(attributes) = update.attributes {
            for reach in update.announced() {
                outcome.announced += reach.prefixes.len();
                let received = self.shared.attributes.intern(Some(&reach.next_hop), attributes);
                match reach.prefixes {
                    Prefixes::V4(prefixes) => {
                        announce_all(&mut self.v4, &mut self.shared, peer, prefixes, received)
                    }
                    Prefixes::V6(prefixes) => {
                        announce_all(&mut self.v6, &mut self.shared, peer, prefixes, received)
                    }
                }
                self.shared.attributes.release(received);
            }
        }
        self.shared.collect();
        outcome
    }

    /// Marks the paths of a peer stale while its session lasts: a later sweep removes those that
    /// the peer has not advertised again. With `stale` false, removes all marks.
    pub fn mark_stale(&mut self, peer: PeerId, family: Family, stale: bool) {
        in_family!(self, family, |table, shared| table.mark_stale(shared, peer, stale));
    }

    /// Turns the stale paths of a peer into long-lived stale paths. These are least preferred and
    /// advertised only to peers that support them. Paths with NO_LLGR are removed (RFC 9494 §4.2).
    /// Returns the number of long-lived stale paths and of removed paths.
    pub fn mark_long_lived(&mut self, peer: PeerId, family: Family) -> (usize, usize) {
        let marked = in_family!(self, family, |table, shared| table.mark_long_lived(shared, peer));
        self.shared.collect();
        marked
    }

    /// Removes the stale paths of a peer; returns their number.
    pub fn sweep_stale(&mut self, peer: PeerId, family: Family) -> usize {
        let swept = in_family!(self, family, |table, shared| table.remove_paths(shared, peer, true));
        self.shared.collect();
        swept
    }

    /// Originates a prefix, or changes its attributes or tags. Peers receive an UPDATE only if
    /// their attributes change.
    pub fn originate(&mut self, prefix: IpNet, origination: &Origination) {
        let own_as = self.shared.config.local_as;
        let bandwidth = origination.link_bandwidth.map(|it| ExtendedCommunity::link_bandwidth(own_as, it));
        let attributes = PathAttributes {
            origin: origination.origin,
            local_pref: origination.local_pref,
            med: origination.med,
            communities: origination.communities.clone(),
            large_communities: origination.large_communities.clone(),
            extended_communities: origination.extended_communities.iter().copied().chain(bandwidth).collect(),
            ..PathAttributes::default()
        };
        let mut block = Vec::new();
        attributes.encode(&mut block);
        let id = self.shared.attributes.intern_own(&origination.tags, &block);
        match prefix {
            IpNet::V4(prefix) => {
                announce(&mut self.v4, &mut self.shared, PeerId::LOCAL, (None, prefix.trunc()), id, None)
            }
            IpNet::V6(prefix) => {
                announce(&mut self.v6, &mut self.shared, PeerId::LOCAL, (None, prefix.trunc()), id, None)
            }
        }
        self.shared.attributes.release(id);
        self.shared.collect();
    }

    /// Ends the origination of a prefix; returns whether it was originated.
    pub fn withdraw(&mut self, prefix: IpNet) -> bool {
        let shared = &mut self.shared;
        let was_there = match prefix {
            IpNet::V4(prefix) => self.v4.withdraw(shared, PeerId::LOCAL, &prefix.trunc(), None),
            IpNet::V6(prefix) => self.v6.withdraw(shared, PeerId::LOCAL, &prefix.trunc(), None),
        };
        self.shared.collect();
        was_there
    }

    /// Replaces the policies. Import runs again over the peer's Adj-RIB-In, without a
    /// ROUTE-REFRESH. Export runs again over its Adj-RIB-Out, and only differences are sent.
    pub fn set_policy(&mut self, peer: PeerId, import: &Policy, export: &Policy) {
        let changed = self.shared.set_policy(peer, import, export);
        self.run_again(peer, changed);
    }

    /// Replaces the rules for the peer's paths; only differences are sent.
    pub fn set_rules(&mut self, peer: PeerId, rules: PathRules) {
        let client = |shared: &Shared| shared.peer(peer).is_some_and(|it| it.rules.route_reflector_client);
        let was_client = client(&self.shared);
        let changed = self.shared.set_rules(peer, rules);
        if client(&self.shared) != was_client {
            self.reflect_again();
        }
        self.run_again(peer, changed);
    }

    /// Runs import over a peer's Adj-RIB-In, and export over its Adj-RIB-Out.
    fn run_again(&mut self, peer: PeerId, (import, export): (bool, bool)) {
        for family in Family::ALL {
            in_family!(self, family, |table, shared| {
                if import {
                    table.import_again(shared, peer);
                }
                if export {
                    mark_all_pending(table, shared, peer);
                }
            });
        }
        self.shared.signal(peer);
        self.shared.collect();
    }

    /// Examines all routes between internal peers again.
    fn reflect_again(&mut self) {
        for peer in self.shared.peers_up().to_vec() {
            if self.shared.peer(peer).is_none_or(|peer| peer.external) {
                continue;
            }
            for family in Family::ALL {
                in_family!(self, family, |table, shared| mark_all_pending(table, shared, peer));
            }
            self.shared.signal(peer);
        }
    }

    /// Changes the local next hops; paths that carry one are advertised again.
    pub fn set_next_hops(&mut self, peer: PeerId, v4: Option<NextHop>, v6: Option<NextHop>) {
        let Some(facts) = self.shared.peer_mut(peer) else { return };
        let Some(session) = &mut facts.session else { return };
        let changed = [session.next_hop_v4 != v4, session.next_hop_v6 != v6];
        (session.next_hop_v4, session.next_hop_v6) = (v4, v6);
        facts.remember_own_addresses();
        for family in Family::ALL.into_iter().filter(|family| changed[family.index()]) {
            in_family!(self, family, |table, shared| {
                mark_all_pending(table, shared, peer);
                let Shared { attributes, .. } = &*shared;
                let own: FxHashSet<AttrId> = shared.peer(peer).map_or_else(FxHashSet::default, |peer| {
                    let ids = peer.out[family.index()].advertised_rows().map(|(_, id)| id);
                    ids.filter(|id| attributes.next_hop(*id).is_none()).collect()
                });
                if let Some(peer) = shared.peer_mut(peer) {
                    peer.out[family.index()].readvertise(|id| own.contains(&id));
                }
            });
        }
        self.shared.signal(peer);
    }

    /// Changes the number of paths per prefix for a peer that receives several (RFC 7911).
    pub fn set_paths(&mut self, peer: PeerId, paths: u8) {
        let Some(session) = self.shared.peer_mut(peer).and_then(|peer| peer.session.as_mut()) else { return };
        if std::mem::replace(&mut session.paths, paths) == paths {
            return;
        }
        for family in session.add_path.iter() {
            in_family!(self, family, |table, shared| mark_all_pending(table, shared, peer));
        }
        self.shared.signal(peer);
    }

    /// The peer requested all routes again (RFC 2918). With `demarcated` they are sent between BoRR
    /// and EoRR (RFC 7313), after End-of-RIB and after a refresh in progress.
    pub fn refresh_out(&mut self, peer: PeerId, family: Family, demarcated: bool) {
        if let Some(facts) = self.shared.peer_mut(peer) {
            let out = &mut facts.out[family.index()];
            match demarcated {
                true => out.request_refresh(),
                false => out.readvertise(|_| true),
            }
        }
        self.shared.signal(peer);
    }

    /// Starts a hold: no path of these families is selected, advertised or reported before
    /// [`Self::release`] (RFC 4724 §4.1). [`Self::advertise_originated`] makes an exception for
    /// originated prefixes.
    pub fn hold(&mut self, families: FamilySet) {
        self.shared.hold(families);
    }

    /// Advertises originated prefixes of the held families. No received path is preferred to them,
    /// so they need not wait for the peers. Received paths and End-of-RIB still wait for
    /// [`Self::release`].
    pub fn advertise_originated(&mut self) {
        for family in Family::ALL {
            if self.shared.advertise_originated(family) {
                in_family!(self, family, |table, shared| table.decide_originated(shared));
            }
        }
        for peer in self.shared.peers_up().to_vec() {
            self.shared.signal(peer);
        }
        self.shared.collect();
    }

    /// Ends a hold: selects the paths of every prefix, and schedules each peer's initial table,
    /// followed by End-of-RIB.
    pub fn release(&mut self, family: Family) {
        if !self.shared.is_held(family) {
            return;
        }
        self.shared.release_hold(family);
        in_family!(self, family, |table, shared| {
            table.decide_all(shared);
            for peer in shared.peers_up().to_vec() {
                let waits = shared.peer(peer).is_some_and(|peer| {
                    let carries = peer.session.as_ref().is_some_and(|it| it.families.contains(family));
                    carries && !peer.out[family.index()].end_of_rib_sent
                });
                if waits {
                    begin(table, shared, peer);
                }
                shared.signal(peer);
            }
        });
        self.shared.collect();
    }

    /// Whether a family is held.
    pub fn is_held(&self, family: Family) -> bool {
        self.shared.is_held(family)
    }

    /// Whether [`Self::write_updates`] has rows to examine for a peer.
    pub fn pending(&self, peer: PeerId) -> bool {
        self.shared.has_pending(peer)
    }

    /// The next peer that has pending output. Each is returned once, until [`Self::write_updates`]
    /// returns false for it.
    pub fn poll_writable(&mut self) -> Option<PeerId> {
        self.shared.poll_writable()
    }

    /// Appends whole messages with a peer's pending routes, and stops after about `budget` octets.
    /// Returns whether more is pending. It may return true with little or no output, because one
    /// call examines a limited number of rows.
    pub fn write_updates(&mut self, peer: PeerId, out: &mut Vec<u8>, budget: usize) -> bool {
        let limit = out.len().saturating_add(budget);
        let mut rows = ROWS_PER_WRITE;
        for family in self.shared.family_turn(peer) {
            if !self.shared.is_silent(family) {
                in_family!(self, family, |table, shared| {
                    adj_out::write::write(table, shared, peer, out, limit, &mut rows)
                });
            }
        }
        self.shared.collect();
        let more = self.pending(peer);
        if !more {
            self.shared.written_empty(peer);
        }
        more
    }

    /// Whether End-of-RIB was written to a peer in this session.
    pub fn end_of_rib_sent(&self, peer: PeerId, family: Family) -> bool {
        self.shared.peer(peer).is_some_and(|peer| peer.out[family.index()].end_of_rib_sent)
    }

    /// Returns at most `max` prefixes with changed next hops of received paths. A prefix is
    /// returned once for all changes since the call that last returned it.
    pub fn route_changes(&mut self, max: usize) -> Vec<RouteChange> {
        let mut changes = Vec::new();
        for family in Family::ALL {
            if !self.shared.is_held(family) {
                in_family!(self, family, |table, shared| table.route_changes(shared, max, &mut changes));
            }
        }
        changes
    }

    /// Reports all prefixes with a path again by [`Self::route_changes`].
    pub fn resend_routes(&mut self) {
        self.v4.resend_routes();
        self.v6.resend_routes();
    }

    /// Whether [`Self::route_changes`] has rows to examine.
    pub fn has_route_changes(&self) -> bool {
        !self.shared.is_held(Family::Ipv4Unicast) && self.v4.has_route_changes()
            || !self.shared.is_held(Family::Ipv6Unicast) && self.v6.has_route_changes()
    }

    /// The counts of a peer, without a walk through the tables.
    pub fn counts(&self, peer: PeerId, family: Family) -> Counts {
        self.shared.counts(peer, family)
    }

    /// The next peer, with its address, that started or stopped advertising a usable default route
    /// of a family since the last call. Stale paths count. The cost of a change does not depend on
    /// the size of the tables.
    pub fn poll_default(&mut self) -> Option<(PeerId, PeerKey, Family, bool)> {
        self.shared.poll_default()
    }

    /// The number of prefixes in the table of a family.
    pub fn prefixes(&self, family: Family) -> usize {
        match family {
            Family::Ipv4Unicast => self.v4.len(),
            Family::Ipv6Unicast => self.v6.len(),
        }
    }

    /// The number of attribute sets of all paths and Adj-RIB-Outs.
    pub fn attribute_sets(&self) -> usize {
        self.shared.attributes.len()
    }

    /// Starts [`Self::poll_written`] for a prefix. Returns the peers that it is advertised to
    /// already.
    pub fn watch(&mut self, prefix: IpNet) -> Vec<PeerId> {
        let prefix = prefix.trunc();
        self.shared.watched.insert(prefix);
        let row = match prefix {
            IpNet::V4(prefix) => self.v4.find(&prefix),
            IpNet::V6(prefix) => self.v6.find(&prefix),
        };
        let Some(row) = row else { return Vec::new() };
        let has_prefix = |peer: &PeerId| {
            let facts = self.shared.peer(*peer);
            facts.is_some_and(|peer| peer.out[Family::of(&prefix).index()].is_advertised(row))
        };
        self.shared.peers_up().iter().copied().filter(has_prefix).collect()
    }

    /// Ends [`Self::watch`].
    pub fn unwatch(&mut self, prefix: &IpNet) {
        let prefix = prefix.trunc();
        self.shared.watched.remove(&prefix);
        self.shared.written.retain(|(written, _)| *written != prefix);
    }

    /// A watched prefix, with a peer. The output to this peer now contains the advertisement.
    pub fn poll_written(&mut self) -> Option<(IpNet, PeerId)> {
        self.shared.written.pop_front()
    }
}

/// Applies the advertised prefixes of one UPDATE.
fn announce_all<F: AddressFamily>(
    table: &mut Table<F>,
    shared: &mut Shared,
    peer: PeerId,
    prefixes: Nlri<'_, F>,
    received: AttrId,
) {
    let refusal = shared.refusal(peer, received);
    for path in prefixes.paths() {
        announce(table, shared, peer, path, received, refusal);
    }
}

/// Applies the withdrawn prefixes of one UPDATE.
fn withdraw_all<F: AddressFamily>(
    table: &mut Table<F>,
    shared: &mut Shared,
    peer: PeerId,
    prefixes: Nlri<'_, F>,
) {
    for (identifier, prefix) in prefixes.paths() {
        table.withdraw(shared, peer, &prefix, identifier);
    }
}

/// Adds a path to the table. `refusal`: the reason why the path is rejected for every prefix.
fn announce<F: AddressFamily>(
    table: &mut Table<F>,
    shared: &mut Shared,
    peer: PeerId,
    (identifier, prefix): (Option<u32>, F::Prefix),
    received: AttrId,
    refusal: Option<Filtered>,
) {
    let received_path: ReceivedPath = shared.take(peer, prefix, received, refusal);
    table.announce(shared, peer, prefix, identifier, received_path);
}

fn begin<F: AddressFamily>(table: &mut Table<F>, shared: &mut Shared, peer: PeerId) {
    if let Some(peer) = shared.peer_mut(peer) {
        peer.out[F::FAMILY.index()].begin(table.row_bound());
    }
}

fn mark_all_pending<F: AddressFamily>(table: &Table<F>, shared: &mut Shared, peer: PeerId) {
    if let Some(peer) = shared.peer_mut(peer)
        && peer.session.is_some()
    {
        peer.out[F::FAMILY.index()].mark_all_pending(table.row_bound());
    }
}
