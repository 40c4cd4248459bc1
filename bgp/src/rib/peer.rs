//! The state that the tables of both families share: attribute sets, policies, peers, and pending
//! output.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::adj_out::AdjOut;
use super::attributes::{AttrId, AttributeTable};
use super::facts::{Counts, RibConfig, RibPeer, SessionFacts};
use super::received::{Filtered, ReceivedPath};
use super::row_set::RowSet;
use super::transform::{Direction, TransformId, Transforms};
use crate::config::{LocalAs, PathRules};
use crate::policy::Policy;
use crate::types::{Asn, Family, FamilySet, PeerId, PeerKey, Role};

/// A configured peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) address: PeerKey,
    /// The peer is in another AS.
    pub(super) external: bool,
    remote_as: Asn,
    pub(super) rules: PathRules,
    pub(super) import: TransformId,
    pub(super) export: TransformId,
    /// The transform of paths from this internal peer to other internal peers (RFC 4456); none
    /// before its first session.
    pub(super) reflect: Option<TransformId>,
    /// The BGP identifier of the last session; the decision also uses it for stale paths.
    pub(super) router_id: Ipv4Addr,
    /// The local addresses of the last session.
    own_addresses: SmallVec<[IpAddr; 3]>,
    /// The current session.
    pub(super) session: Option<SessionFacts>,
    pub(super) counts: [Counts; 2],
    defaults: [Defaults; 2],
    /// The rows with paths of the peer.
    pub(super) rows: [RowSet; 2],
    pub(super) out: [AdjOut; 2],
    /// The peer is in the queue of peers with pending output, or was taken from it and still has
    /// pending output.
    signalled: bool,
    /// The family that is written first next time, so neither family waits for ever.
    first: Family,
}

/// A peer's default routes in one family.
#[derive(Clone, Copy, Debug, Default)]
struct Defaults {
    /// The number of usable paths of the default route: at most one, unless the peer sends several
    /// (RFC 7911).
    paths: u32,
    /// The last result of [`Shared::poll_default`].
    reported: bool,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: RibConfig,
    pub(super) attributes: AttributeTable,
    pub(super) transforms: Transforms,
    peers: Vec<Option<Peer>>,
    /// Peers with a session.
    up: Vec<PeerId>,
    writable: VecDeque<PeerId>,
    /// The number of sessions that receive several paths per prefix, by family.
    path_sessions: [usize; 2],
    held: FamilySet,
    /// Held families with selected and advertised originated paths.
    originated_released: FamilySet,
    pub(super) watched: FxHashSet<IpNet>,
    pub(super) written: VecDeque<(IpNet, PeerId)>,
    /// Peers with changed default routes since [`Shared::poll_default`] examined them.
    changed_defaults: VecDeque<(PeerId, PeerKey, Family)>,
}

impl Shared {
    pub(super) fn new(config: RibConfig) -> Self {
        Shared {
            attributes: AttributeTable::new(config.local_as),
            config,
            transforms: Transforms::default(),
            peers: Vec::new(),
            up: Vec::new(),
            writable: VecDeque::new(),
            path_sessions: [0; 2],
            held: FamilySet::EMPTY,
            originated_released: FamilySet::EMPTY,
            watched: FxHashSet::default(),
            written: VecDeque::new(),
            changed_defaults: VecDeque::new(),
        }
    }

    pub(super) fn peer(&self, peer: PeerId) -> Option<&Peer> {
        self.peers.get(peer.0 as usize)?.as_ref()
    }

    pub(super) fn peer_mut(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.peers.get_mut(peer.0 as usize)?.as_mut()
    }

    pub(super) fn peers_up(&self) -> &[PeerId] {
        &self.up
    }

    pub(super) fn add_peer(&mut self, id: PeerId, facts: RibPeer) {
        debug_assert!(id < PeerId::LOCAL, "{id:?} is larger than any peer");
        debug_assert!(self.peer(id).is_none(), "{id:?} exists already");
        let (import, export) = self.directions(facts.remote_as, facts.rules);
        let external = facts.remote_as != self.config.local_as;
        let peer = Peer {
            address: facts.address,
            external,
            remote_as: facts.remote_as,
            rules: facts.rules,
            import: self.transforms.join(import, &facts.import),
            export: self.transforms.join(export, &facts.export),
            reflect: None,
            router_id: Ipv4Addr::UNSPECIFIED,
            own_addresses: SmallVec::new(),
            session: None,
            counts: Default::default(),
            defaults: Default::default(),
            rows: Default::default(),
            out: Default::default(),
            signalled: false,
            first: Family::Ipv4Unicast,
        };
        let place = id.0 as usize;
        if place >= self.peers.len() {
            self.peers.resize_with(place + 1, || None);
        }
        self.peers[place] = Some(peer);
    }

    /// The directions of import and export with a peer of this AS.
    fn directions(&self, remote_as: Asn, rules: PathRules) -> (Direction, Direction) {
        let local_as = self.config.local_as;
        let external = remote_as != local_as;
        let old_as = rules.local_as;
        // The transforms do not depend on reflection and loop checks: peers that differ only in
        // these share them.
        let rules = PathRules { route_reflector_client: false, allow_as_in: 0, local_as: None, ..rules };
        let kept = rules.remove_private_as.map(|_| remote_as).filter(|asn| asn.is_private());
        let in_front = old_as.filter(|old| !old.no_prepend).map(|old| old.asn);
        let import = Direction::Import { neighbour_as: remote_as, in_front, external, rules };
        let (own, in_front) = match old_as {
            None => (local_as, None),
            Some(LocalAs { asn, replace_as: true, .. }) => (asn, None),
            Some(LocalAs { asn, .. }) => (local_as, Some(asn)),
        };
        match external {
            true => (import, Direction::ExportExternal { local_as: own, in_front, kept, rules }),
            false => (import, Direction::ExportInternal { local_as, rules }),
        }
    }

    /// Removes a peer that has neither session nor paths.
    pub(super) fn remove_peer(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.get_mut(id.0 as usize).and_then(Option::take) {
            self.transforms.leave(peer.import);
            self.transforms.leave(peer.export);
            peer.reflect.into_iter().for_each(|reflect| self.transforms.leave(reflect));
        }
        self.written.retain(|(_, to)| *to != id);
    }

    /// Replaces the policies; returns whether import and export changed.
    pub(super) fn set_policy(&mut self, id: PeerId, import: &Policy, export: &Policy) -> (bool, bool) {
        let Some(peer) = self.peer(id) else { return (false, false) };
        let (old_import, old_export) = (peer.import, peer.export);
        let directions = self.directions(peer.remote_as, peer.rules);
        let new_import = self.transforms.join(directions.0, import);
        let new_export = self.transforms.join(directions.1, export);
        self.transforms.leave(old_import);
        self.transforms.leave(old_export);
        if let Some(peer) = self.peer_mut(id) {
            peer.import = new_import;
            peer.export = new_export;
        }
        (old_import != new_import, old_export != new_export)
    }

    /// Replaces the rules; returns whether import and export changed.
    pub(super) fn set_rules(&mut self, id: PeerId, rules: PathRules) -> (bool, bool) {
        let Some(peer) = self.peer(id) else { return (false, false) };
        let old = (peer.import, peer.export);
        let loops = (peer.rules.allow_as_in, peer.rules.local_as) != (rules.allow_as_in, rules.local_as);
        let directions = self.directions(peer.remote_as, rules);
        let new = (self.transforms.turn(old.0, directions.0), self.transforms.turn(old.1, directions.1));
        if let Some(peer) = self.peer_mut(id) {
            (peer.rules, peer.import, peer.export) = (rules, new.0, new.1);
        }
        (loops || old.0 != new.0, old.1 != new.1)
    }

    /// Sets the transform for reflected paths of the peer; returns whether it differs from the one
    /// of the last session.
    fn reflect_from(&mut self, id: PeerId, originator: Ipv4Addr) -> bool {
        let cluster = self.config.cluster_id;
        let Some(peer) = self.peer(id).filter(|peer| !peer.external) else { return false };
        let old = peer.reflect;
        let new = self.transforms.join(Direction::Reflect { originator, cluster }, &Policy::accept_all());
        old.into_iter().for_each(|old| self.transforms.leave(old));
        if let Some(peer) = self.peer_mut(id) {
            peer.reflect = Some(new);
        }
        old.is_some_and(|old| old != new)
    }

    /// Starts a session; returns whether retained paths of the last session are now reflected
    /// differently.
    pub(super) fn session_up(&mut self, id: PeerId, facts: SessionFacts) -> bool {
        let reflected_anew = self.reflect_from(id, facts.router_id);
        let Some(peer) = self.peers.get_mut(id.0 as usize).and_then(Option::as_mut) else { return false };
        for family in facts.add_path.iter() {
            self.path_sessions[family.index()] += 1;
            peer.out[family.index()].enable_add_path();
        }
        peer.router_id = facts.router_id;
        peer.session = Some(facts);
        peer.remember_own_addresses();
        if !self.up.contains(&id) {
            self.up.push(id);
        }
        reflected_anew
    }

    pub(super) fn session_down(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.get_mut(id.0 as usize).and_then(Option::as_mut) {
            let session = peer.session.take();
            for family in session.map_or(FamilySet::EMPTY, |session| session.add_path).iter() {
                self.path_sessions[family.index()] -= 1;
            }
            peer.signalled = false;
            peer.first = Family::Ipv4Unicast;
        }
        self.up.retain(|up| *up != id);
        self.writable.retain(|writable| *writable != id);
        self.written.retain(|(_, to)| *to != id);
    }

    pub(super) fn is_held(&self, family: Family) -> bool {
        self.held.contains(family)
    }

    pub(super) fn hold(&mut self, families: FamilySet) {
        self.held = self.held.union(families);
    }

    /// Whether no path of the family may be advertised.
    pub(super) fn is_silent(&self, family: Family) -> bool {
        self.silent().contains(family)
    }

    fn silent(&self) -> FamilySet {
        self.held.difference(self.originated_released)
    }

    /// Lets originated paths of a held family be advertised; returns whether that is new.
    pub(super) fn advertise_originated(&mut self, family: Family) -> bool {
        let new = self.is_silent(family);
        if new {
            self.originated_released.insert(family);
        }
        new
    }

    pub(super) fn release_hold(&mut self, family: Family) {
        self.held.remove(family);
        self.originated_released.remove(family);
    }

    pub(super) fn counts(&self, peer: PeerId, family: Family) -> Counts {
        self.peer(peer).map_or_else(Counts::default, |peer| peer.counts[family.index()])
    }

    /// Changes a peer's counts; originated paths are not counted.
    pub(super) fn count(&mut self, peer: PeerId, family: Family, change: impl FnOnce(&mut Counts)) {
        if let Some(peer) = self.peer_mut(peer) {
            change(&mut peer.counts[family.index()]);
        }
    }

    /// Counts a path of a peer's default route that became usable or unusable; originated paths are
    /// not counted.
    pub(super) fn count_default(&mut self, id: PeerId, family: Family, usable: bool) {
        let Some(peer) = self.peer_mut(id) else { return };
        let (address, paths) = (peer.address, &mut peer.defaults[family.index()].paths);
        *paths = if usable { *paths + 1 } else { paths.saturating_sub(1) };
        if *paths <= 1 {
            self.changed_defaults.push_back((id, address, family));
        }
    }

    /// The next peer that started or stopped advertising a default route since the last call.
    pub(super) fn poll_default(&mut self) -> Option<(PeerId, PeerKey, Family, bool)> {
        while let Some((id, address, family)) = self.changed_defaults.pop_front() {
            // Another peer may have the number now.
            let Some(peer) = self.peer_mut(id).filter(|peer| peer.address == address) else {
                return Some((id, address, family, false));
            };
            let defaults = &mut peer.defaults[family.index()];
            let offered = defaults.paths > 0;
            if std::mem::replace(&mut defaults.reported, offered) != offered {
                return Some((id, address, family, offered));
            }
        }
        None
    }

    /// The first row at or after `from` with paths of a peer; none for originated paths.
    pub(super) fn next_row(&self, peer: PeerId, family: Family, from: u32) -> Option<u32> {
        self.peer(peer)?.rows[family.index()].next_from(from)
    }

    /// Releases memory after the removal of a peer's paths.
    pub(super) fn shrink_rows(&mut self, peer: PeerId, family: Family) {
        if let Some(peer) = self.peer_mut(peer)
            && peer.rows[family.index()].is_empty()
        {
            peer.rows[family.index()] = RowSet::default();
        }
    }

    pub(super) fn release(&mut self, id: Option<AttrId>) {
        if let Some(id) = id {
            self.attributes.release(id);
        }
    }

    /// Removes attribute sets without references. Invalidates every [`AttrId`] without a reference.
    pub(super) fn collect(&mut self) {
        if self.attributes.collect() {
            self.transforms.forget();
        }
    }

    /// The reason why a peer's path is rejected for every prefix.
    pub(super) fn refusal(&self, peer: PeerId, received: AttrId) -> Option<Filtered> {
        let peer = self.peer(peer)?;
        let own = self.config.local_as;
        let own = Some(own).filter(|_| self.attributes.digest(received).has_as_loop());
        for own in own.into_iter().chain(peer.rules.local_as.map(|local_as| local_as.asn)) {
            if self.attributes.occurrences(received, own) > usize::from(peer.rules.allow_as_in) {
                return Some(Filtered::AsLoop);
            }
        }
        if self.attributes.originator_id(received) == Some(self.config.router_id) {
            return Some(Filtered::OriginatorLoop);
        }
        if self.attributes.has_cluster(received, self.config.cluster_id) {
            return Some(Filtered::ClusterLoop);
        }
        if let (Some(role), Some(marked)) =
            (peer.rules.local_role, self.attributes.only_to_customer(received))
        {
            // RFC 9234 §5: a customer may not send a path with ONLY_TO_CUSTOMER. A peer may send
            // one only if the attribute has the peer's AS number.
            let from_below = matches!(role, Role::Provider | Role::RouteServer);
            if from_below || role == Role::Peer && marked != peer.remote_as {
                return Some(Filtered::RouteLeak);
            }
        }
        let next_hop = self.attributes.next_hop(received)?.address();
        peer.own_addresses.contains(&next_hop).then_some(Filtered::OwnNextHop)
    }

    /// Runs import over a received path.
    pub(super) fn take(
        &mut self,
        peer: PeerId,
        prefix: impl Into<IpNet>,
        received: AttrId,
        refusal: Option<Filtered>,
    ) -> ReceivedPath {
        let used = match (refusal, self.peer(peer).map(|peer| peer.import)) {
            (Some(refusal), _) => Err(refusal),
            (None, None) => Ok(self.attributes.acquire(received)),
            (None, Some(import)) => self
                .transforms
                .apply(import, &mut self.attributes, prefix, received, false)
                .ok_or(Filtered::Policy),
        };
        ReceivedPath { received: self.attributes.acquire(received), used }
    }

    /// The best path of a row changed; `best` is its peer.
    pub(super) fn best_changed(&mut self, family: Family, row: u32, best: Option<PeerId>) {
        for place in 0..self.up.len() {
            let id = self.up[place];
            let Some(peer) = self.peer_mut(id) else { continue };
            if !peer.session.as_ref().is_some_and(|session| session.families.contains(family)) {
                continue;
            }
            let out = &mut peer.out[family.index()];
            if out.has_add_path() {
                continue; // `row_changed` makes the row pending
            }
            if out.is_advertised(row) || best.is_some_and(|best| best != id) {
                out.pending.insert(row);
                if !peer.signalled {
                    self.signal(id);
                }
            } else {
                out.pending.remove(row); // neither advertised nor wanted
            }
        }
    }

    /// The usable paths of a row changed: makes the row pending for peers that receive several
    /// paths per prefix.
    #[inline]
    pub(super) fn row_changed(&mut self, family: Family, row: u32) {
        if self.path_sessions[family.index()] > 0 {
            self.advertise_row(family, row);
        }
    }

    fn advertise_row(&mut self, family: Family, row: u32) {
        for place in 0..self.up.len() {
            let id = self.up[place];
            if let Some(peer) = self.peer_mut(id)
                && peer.out[family.index()].has_add_path()
            {
                peer.out[family.index()].pending.insert(row);
                self.signal(id);
            }
        }
    }

    /// Queues a peer that has pending output.
    pub(super) fn signal(&mut self, id: PeerId) {
        let (held, silent) = (self.held, self.silent());
        if let Some(peer) = self.peer_mut(id)
            && !peer.signalled
            && peer.has_pending(held, silent)
        {
            peer.signalled = true;
            self.writable.push_back(id);
        }
    }

    pub(super) fn has_pending(&self, id: PeerId) -> bool {
        self.peer(id).is_some_and(|peer| peer.has_pending(self.held, self.silent()))
    }

    /// The order of the families in the next write.
    pub(super) fn family_turn(&mut self, id: PeerId) -> [Family; 2] {
        let [v4, v6] = Family::ALL;
        let Some(peer) = self.peer_mut(id) else { return Family::ALL };
        let order = if peer.first == v4 { [v4, v6] } else { [v6, v4] };
        peer.first = order[1];
        order
    }

    /// All pending output was written: the next change queues the peer again.
    pub(super) fn written_empty(&mut self, id: PeerId) {
        if let Some(peer) = self.peer_mut(id) {
            peer.signalled = false;
        }
    }

    pub(super) fn poll_writable(&mut self) -> Option<PeerId> {
        while let Some(id) = self.writable.pop_front() {
            if self.has_pending(id) {
                return Some(id);
            }
            self.written_empty(id);
        }
        None
    }
}

impl Peer {
    pub(super) fn remember_own_addresses(&mut self) {
        if let Some(session) = &self.session {
            let next_hops = [session.next_hop_v4, session.next_hop_v6].into_iter().flatten();
            self.own_addresses = next_hops.map(|next_hop| next_hop.address()).collect();
            self.own_addresses.push(session.local_address);
        }
    }

    fn has_pending(&self, held: FamilySet, silent: FamilySet) -> bool {
        self.session.as_ref().is_some_and(|session| {
            session.families.difference(silent).iter().any(|family| {
                let out = &self.out[family.index()];
                // A held family does not send End-of-RIB.
                if held.contains(family) { !out.pending.is_empty() } else { out.has_pending() }
            })
        })
    }
}
