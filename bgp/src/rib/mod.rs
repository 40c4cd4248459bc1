//! The routing tables: Adj-RIB-In, the decision process, Loc-RIB, Adj-RIB-Out (RFC 4271 §3.2, §9).
//!
//! Paths come in by [`Rib::handle_update`] (learned) and [`Rib::originate`] (this speaker's own), and go out two
//! ways: [`Rib::write_updates`] puts what a peer has yet to be told into its socket's buffer, and
//! [`Rib::route_changes`] gives the FIB its next hops. Both are pulled: nothing is kept for a reader but one bit
//! a prefix, however slow it is, and what changed ten times meanwhile is told once.
//!
//! | module | what it holds |
//! |---|---|
//! | `table` | prefixes and their paths, one table a family; every change goes through it |
//! | `decision` | which of a prefix's paths are used |
//! | `attributes` | attribute sets, stored once |
//! | `transform` | import and export, remembered per attribute set |
//! | `adj_out` | what each peer was told, and has yet to be told |
//! | `peer` | peers, sessions, holds: what the tables share |
//! | `listing`, `explain` | the same for an operator's eyes, and why it is so |
//!
//! The tables have no clock: how long stale paths are kept and when a hold ends is the caller's to say
//! ([`Rib::sweep_stale`], [`Rib::release`]).
//!
//! Done: RFC 4271 §9 without aggregation and without an IGP (all interior costs are equal, next hops are taken
//! as reachable), ECMP over paths that are equal up to "external over internal", RFC 1997's well-known
//! communities and GRACEFUL_SHUTDOWN (RFC 8326), RFC 4724's stale paths and deferral, route reflection (RFC 4456),
//! ONLY_TO_CUSTOMER (RFC 9234), NO_PEER (RFC 3765), ADD-PATH both ways (RFC 7911), local-as (RFC 7705). Not done: confederations.
//!
//! Awkward: paths from before a restart that the peer does not announce again must go, and may not go before its
//! End-of-RIB. They are marked, not copied; a path announced again loses the mark. If the session is lost a
//! second time, what is still marked is removed (RFC 4724 §4.2).

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
use crate::types::{AddressFamily, Family, FamilySet, Ipv4, Ipv6, NextHop, PeerId, PeerKey};
use crate::wire::{Nlri, PathAttributes, Prefixes, Update};

/// Rows that one call of [`Rib::write_updates`] looks at, at most: a policy that passes little must not make one
/// call run through a whole table.
const ROWS_PER_WRITE: usize = 16 * 1024;

/// The routing tables of a speaker. See the module.
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
    /// Empty tables.
    pub fn new(config: RibConfig) -> Rib {
        Rib { shared: Shared::new(config), v4: Table::default(), v6: Table::default() }
    }

    /// Adds a peer, without a session. The caller gives out the ids: small numbers, below [`PeerId::LOCAL`], each
    /// to one peer at a time.
    pub fn add_peer(&mut self, peer: PeerId, facts: RibPeer) {
        self.shared.add_peer(peer, facts);
    }

    /// Removes a peer with all its paths, the stale ones included.
    pub fn remove_peer(&mut self, peer: PeerId) {
        self.peer_down(peer, FamilySet::EMPTY, FamilySet::EMPTY);
        self.shared.remove_peer(peer);
    }

    /// A session is established. Its whole Adj-RIB-Out is pending in every family that it carries, with
    /// End-of-RIB after it. Stale paths of the last session stay until they are announced again or swept.
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

    /// The session is gone, and what the peer was told with it. Its paths are removed, but for those of the
    /// families in `retain`, which stay in use and are marked stale (RFC 4724 §4.2). Those that were stale before go too,
    /// unless the family is in `long_lived` as well (RFC 9494 §4.2).
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

    /// Takes in an UPDATE: withdrawals, then announcements. One whose attributes are faulty withdraws all that it
    /// names (RFC 7606 §2). An End-of-RIB marker changes nothing here.
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

    /// Marks the paths of a peer stale while its session lasts, so that a later sweep removes what it has not
    /// announced again; or takes every mark back.
    pub fn mark_stale(&mut self, peer: PeerId, family: Family, stale: bool) {
        in_family!(self, family, |table, shared| table.mark_stale(shared, peer, stale));
    }

    /// Turns the stale paths of a peer into long-lived stale ones, least preferred and told only to peers that know them;
    /// those with NO_LLGR go (RFC 9494 §4.2). How many there are now, and how many went.
    pub fn mark_long_lived(&mut self, peer: PeerId, family: Family) -> (usize, usize) {
        let marked = in_family!(self, family, |table, shared| table.mark_long_lived(shared, peer));
        self.shared.collect();
        marked
    }

    /// Removes the stale paths of a peer; how many there were.
    pub fn sweep_stale(&mut self, peer: PeerId, family: Family) -> usize {
        let swept = in_family!(self, family, |table, shared| table.remove_paths(shared, peer, true));
        self.shared.collect();
        swept
    }

    /// Originates a prefix, or changes what travels with it.
    pub fn originate(&mut self, prefix: IpNet, origination: &Origination) {
        let attributes = PathAttributes {
            med: origination.med,
            communities: origination.communities.clone(),
            large_communities: origination.large_communities.clone(),
            ..PathAttributes::default()
        };
        let mut block = Vec::new();
        attributes.encode(&mut block);
        let id = self.shared.attributes.intern(None, &block);
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

    /// Originates a prefix no more; whether it was originated.
    pub fn withdraw(&mut self, prefix: IpNet) -> bool {
        let shared = &mut self.shared;
        let was_there = match prefix {
            IpNet::V4(prefix) => self.v4.withdraw(shared, PeerId::LOCAL, &prefix.trunc(), None),
            IpNet::V6(prefix) => self.v6.withdraw(shared, PeerId::LOCAL, &prefix.trunc(), None),
        };
        self.shared.collect();
        was_there
    }

    /// Puts other policies in place. Import runs again over what the peer sent, without a ROUTE-REFRESH; export
    /// over what it is told, and only what differs is sent.
    pub fn set_policy(&mut self, peer: PeerId, import: &Policy, export: &Policy) {
        let changed = self.shared.set_policy(peer, import, export);
        self.run_again(peer, changed);
    }

    /// Puts other rules for the peer's paths in place; only what differs is sent.
    pub fn set_rules(&mut self, peer: PeerId, rules: PathRules) {
        let client = |shared: &Shared| shared.peer(peer).is_some_and(|it| it.rules.route_reflector_client);
        let was_client = client(&self.shared);
        let changed = self.shared.set_rules(peer, rules);
        if client(&self.shared) != was_client {
            self.reflect_again();
        }
        self.run_again(peer, changed);
    }

    /// Runs import over what a peer sent, and export over what it is told.
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

    /// What goes from internal peers to internal peers is looked at again.
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

    /// This side announces other next hops as its own: paths that carry them are told again.
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
                    let told = peer.out[family.index()].advertised_rows().map(|(_, told)| told);
                    told.filter(|told| attributes.next_hop(*told).is_none()).collect()
                });
                if let Some(peer) = shared.peer_mut(peer) {
                    peer.out[family.index()].readvertise(|told| own.contains(&told));
                }
            });
        }
        self.shared.signal(peer);
    }

    /// The peer is told another number of paths of each prefix, where it is told several (RFC 7911).
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

    /// The peer asked for everything again (RFC 2918); `demarcated`: between BoRR and EoRR (RFC 7313), which come after
    /// End-of-RIB and, if it asked before, after the refresh that is going on.
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

    /// Nothing is decided, told or reported in these families until [`Self::release`] (RFC 4724 §4.1), or
    /// [`Self::advertise_originated`] for what this speaker originates.
    pub fn hold(&mut self, families: FamilySet) {
        self.shared.hold(families);
    }

    /// What this speaker originates is told in the held families from now on: it is chosen whatever the peers say,
    /// so it need not wait for them. Learned paths and End-of-RIB still wait for [`Self::release`].
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

    /// Ends a hold: every prefix is decided, and each peer's initial table goes out, with End-of-RIB after it.
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

    /// Whether [`Self::write_updates`] has something to look at for a peer.
    pub fn pending(&self, peer: PeerId) -> bool {
        self.shared.has_pending(peer)
    }

    /// The next peer that has something pending since it last had nothing; each is named once, until
    /// [`Self::write_updates`] has returned false for it.
    pub fn poll_writable(&mut self) -> Option<PeerId> {
        self.shared.poll_writable()
    }

    /// Appends whole messages with what a peer has yet to be told, and stops once it has written about `budget`
    /// octets. Whether more is pending; it may be although little or nothing was written, because one call
    /// looks at a bounded number of prefixes.
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

    /// Whether End-of-RIB has been written to a peer in this session.
    pub fn end_of_rib_sent(&self, peer: PeerId, family: Family) -> bool {
        self.shared.peer(peer).is_some_and(|peer| peer.out[family.index()].end_of_rib_sent)
    }

    /// At most `max` prefixes whose learned next hops changed since they were last reported.
    pub fn route_changes(&mut self, max: usize) -> Vec<RouteChange> {
        let mut changes = Vec::new();
        for family in Family::ALL {
            if !self.shared.is_held(family) {
                in_family!(self, family, |table, shared| table.route_changes(shared, max, &mut changes));
            }
        }
        changes
    }

    /// All that [`Self::route_changes`] reported of prefixes that have a path is reported again.
    pub fn resend_routes(&mut self) {
        self.v4.resend_routes();
        self.v6.resend_routes();
    }

    /// Whether [`Self::route_changes`] has something to look at.
    pub fn has_route_changes(&self) -> bool {
        !self.shared.is_held(Family::Ipv4Unicast) && self.v4.has_route_changes()
            || !self.shared.is_held(Family::Ipv6Unicast) && self.v6.has_route_changes()
    }

    /// Prefixes with a peer; costs nothing.
    pub fn counts(&self, peer: PeerId, family: Family) -> Counts {
        self.shared.counts(peer, family)
    }

    /// The next peer, with its address, that offers a usable default route of a family and did not when this was last called, or the
    /// other way round. Stale paths count. Each change costs the same however large the tables are.
    pub fn poll_default(&mut self) -> Option<(PeerId, PeerKey, Family, bool)> {
        self.shared.poll_default()
    }

    /// Prefixes in the table of a family.
    pub fn prefixes(&self, family: Family) -> usize {
        match family {
            Family::Ipv4Unicast => self.v4.len(),
            Family::Ipv6Unicast => self.v6.len(),
        }
    }

    /// Attribute sets that paths and peers' Adj-RIB-Outs share.
    pub fn attribute_sets(&self) -> usize {
        self.shared.attributes.len()
    }

    /// From now on [`Self::poll_written`] says when the prefix is announced to a peer. The peers that have been
    /// told already and not since been told of its withdrawal.
    pub fn watch(&mut self, prefix: IpNet) -> Vec<PeerId> {
        let prefix = prefix.trunc();
        self.shared.watched.insert(prefix);
        let row = match prefix {
            IpNet::V4(prefix) => self.v4.find(&prefix),
            IpNet::V6(prefix) => self.v6.find(&prefix),
        };
        let Some(row) = row else { return Vec::new() };
        let told = |peer: &PeerId| {
            let facts = self.shared.peer(*peer);
            facts.is_some_and(|peer| peer.out[Family::of(&prefix).index()].is_advertised(row))
        };
        self.shared.peers_up().iter().copied().filter(told).collect()
    }

    /// Ends [`Self::watch`].
    pub fn unwatch(&mut self, prefix: &IpNet) {
        let prefix = prefix.trunc();
        self.shared.watched.remove(&prefix);
        self.shared.written.retain(|(written, _)| *written != prefix);
    }

    /// A watched prefix, and a peer to whose messages its announcement has been appended.
    pub fn poll_written(&mut self) -> Option<(IpNet, PeerId)> {
        self.shared.written.pop_front()
    }
}

/// Takes in the announcements of one UPDATE.
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

/// Takes in the withdrawals of one UPDATE.
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

/// Puts a path into the table. `refusal` is why it is refused whatever the prefix.
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
