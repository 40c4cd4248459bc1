//! The tables as lists for an operator: lazy, borrowed, parsed on demand.

use std::iter;

use ipnet::IpNet;

use super::Rib;
use super::adj_out::{NotAdvertised, write};
use super::attributes::{AttrId, AttributeTable};
use super::peer::Shared;
use super::received::Filtered;
use super::table::{Path, Table};
use crate::types::{AddressFamily, Family, NextHop, PeerId};
use crate::wire::PathAttributes;

/// The attributes of a listed path.
#[derive(Clone, Copy, Debug)]
pub struct RouteAttributes<'a> {
    table: &'a AttributeTable,
    id: AttrId,
}

impl RouteAttributes<'_> {
    /// Equal sets have equal numbers as long as they are in use.
    pub(crate) fn number(&self) -> u32 {
        self.id.get()
    }

    /// The canonical block: all attributes except the next hop, in wire format with four-octet AS
    /// numbers.
    pub fn block(&self) -> &[u8] {
        self.table.block(self.id)
    }

    /// The next hop; none if it is this speaker itself.
    pub fn next_hop(&self) -> Option<NextHop> {
        self.table.next_hop(self.id)
    }

    /// All attributes except the next hop.
    pub fn parse(&self) -> PathAttributes {
        // The decoder has checked every interned set, or the encoder has written it. So parsing
        // never fails.
        PathAttributes::parse(self.table.block(self.id)).unwrap_or_default()
    }
}

/// A path in the tables.
#[derive(Clone, Copy, Debug)]
pub struct PathEntry<'a> {
    /// The destination.
    pub prefix: IpNet,
    /// The peer that sent the path; none if this speaker originates it.
    pub peer: Option<PeerId>,
    /// The path identifier that the peer sent (RFC 7911).
    pub path_id: Option<u32>,
    /// The attributes as received.
    pub received: RouteAttributes<'a>,
    /// The attributes after import policy; none if the path is rejected.
    pub used: Option<RouteAttributes<'a>>,
    /// The reason why the path is rejected.
    pub filtered: Option<Filtered>,
    /// The path is in use, alone or with other paths (ECMP).
    pub selected: bool,
    /// The best of the selected paths, which is advertised to peers.
    pub best: bool,
    /// The path is from before the peer's session was lost.
    pub stale: bool,
}

/// A prefix in a peer's Adj-RIB-Out.
#[derive(Clone, Copy, Debug)]
pub struct AdvertisedRoute<'a> {
    /// The destination.
    pub prefix: IpNet,
    /// The path identifier in the advertisement (RFC 7911).
    pub path_id: Option<u32>,
    /// The attributes as advertised.
    pub attributes: RouteAttributes<'a>,
    /// The next hop as advertised; none if neither session nor path has one.
    pub next_hop: Option<NextHop>,
}

impl Rib {
    /// The paths that a peer sent, including rejected and stale ones.
    pub fn received(&self, peer: PeerId, family: Family) -> impl Iterator<Item = PathEntry<'_>> {
        self.entries(family).filter(move |entry| entry.peer == Some(peer))
    }

    /// The routes advertised to a peer and not withdrawn since.
    pub fn advertised(&self, peer: PeerId, family: Family) -> impl Iterator<Item = AdvertisedRoute<'_>> {
        let facts = self.shared.peer(peer);
        let own = facts.and_then(|peer| peer.session.as_ref()?.next_hop(family));
        let paths = facts.into_iter().flat_map(move |peer| peer.out[family.index()].advertised_paths());
        paths.filter_map(move |(row, path_id, id)| {
            let prefix = self.prefix_of(family, row)?;
            let attributes = RouteAttributes { table: &self.shared.attributes, id };
            Some(AdvertisedRoute { prefix, path_id, attributes, next_hop: attributes.next_hop().or(own) })
        })
    }

    /// The paths that a peer sent, row by row from `first` on. Each item has all paths of the row,
    /// also those of other peers.
    pub(crate) fn received_from(
        &self,
        peer: PeerId,
        family: Family,
        first: u32,
    ) -> impl Iterator<Item = (u32, Vec<PathEntry<'_>>)> {
        let next = move |from: u32| self.shared.next_row(peer, family, from);
        let rows = iter::successors(next(first), move |row| next(row + 1));
        rows.map(move |row| (row, self.row_paths(family, row)))
    }

    /// The routes of one row that are advertised to a peer; see [`Self::advertised`].
    pub(crate) fn advertised_of(&self, peer: PeerId, family: Family, row: u32) -> Vec<AdvertisedRoute<'_>> {
        let Some(facts) = self.shared.peer(peer) else { return Vec::new() };
        let paths = facts.out[family.index()].advertised_paths_of(row);
        if paths.is_empty() {
            return Vec::new();
        }
        let own = facts.session.as_ref().and_then(|session| session.next_hop(family));
        let Some(prefix) = self.prefix_of(family, row) else { return Vec::new() };
        let route = |(path_id, id)| {
            let attributes = RouteAttributes { table: &self.shared.attributes, id };
            AdvertisedRoute { prefix, path_id, attributes, next_hop: attributes.next_hop().or(own) }
        };
        paths.into_iter().map(route).collect()
    }

    /// A bound above every row number.
    pub(crate) fn row_bound(&self, family: Family) -> u32 {
        match family {
            Family::Ipv4Unicast => self.v4.row_bound(),
            Family::Ipv6Unicast => self.v6.row_bound(),
        }
    }

    /// Whether `is` holds for any path of the row; paths in use are checked first.
    pub(crate) fn any_path(&self, family: Family, row: u32, is: impl FnMut(PathEntry<'_>) -> bool) -> bool {
        match family {
            Family::Ipv4Unicast => row_entries(&self.v4, &self.shared, row).any(is),
            Family::Ipv6Unicast => row_entries(&self.v6, &self.shared, row).any(is),
        }
    }

    /// The prefix of a row; none if the row is free.
    pub(crate) fn prefix_of(&self, family: Family, row: u32) -> Option<IpNet> {
        Some(match family {
            Family::Ipv4Unicast => self.v4.row(row)?.prefix.into(),
            Family::Ipv6Unicast => self.v6.row(row)?.prefix.into(),
        })
    }

    fn row_paths(&self, family: Family, row: u32) -> Vec<PathEntry<'_>> {
        match family {
            Family::Ipv4Unicast => row_entries(&self.v4, &self.shared, row).collect(),
            Family::Ipv6Unicast => row_entries(&self.v6, &self.shared, row).collect(),
        }
    }

    /// The paths in use; those of one prefix are adjacent, the best one first.
    pub fn best(&self, family: Family) -> impl Iterator<Item = PathEntry<'_>> {
        self.entries(family).filter(|entry| entry.selected)
    }

    /// The prefixes from a row on: row number, prefix, and all paths, those in use first. A row
    /// keeps its number as long as the prefix exists.
    pub(crate) fn rows_from(
        &self,
        family: Family,
        first: u32,
    ) -> Box<dyn Iterator<Item = (u32, IpNet, Vec<PathEntry<'_>>)> + '_> {
        match family {
            Family::Ipv4Unicast => Box::new(rows_from(&self.v4, &self.shared, first)),
            Family::Ipv6Unicast => Box::new(rows_from(&self.v6, &self.shared, first)),
        }
    }

    /// Every path of one prefix, those in use first.
    pub fn lookup(&self, prefix: &IpNet) -> Vec<PathEntry<'_>> {
        let shared = &self.shared;
        match prefix.trunc() {
            IpNet::V4(prefix) => self
                .v4
                .find(&prefix)
                .map_or_else(Vec::new, |row| row_entries(&self.v4, shared, row).collect()),
            IpNet::V6(prefix) => self
                .v6
                .find(&prefix)
                .map_or_else(Vec::new, |row| row_entries(&self.v6, shared, row).collect()),
        }
    }

    /// The reason why a prefix is not advertised to a peer; none if it is advertised or pending.
    pub fn not_advertised(&mut self, peer: PeerId, prefix: &IpNet) -> Option<NotAdvertised> {
        let family = Family::of(prefix);
        let session = self.shared.peer(peer).and_then(|peer| peer.session.as_ref());
        match session.map(|session| session.families.contains(family)) {
            None => return Some(NotAdvertised::NoSession),
            Some(false) => return Some(NotAdvertised::NoFamily),
            Some(true) => {}
        }
        if self.shared.is_silent(family) {
            return Some(NotAdvertised::Held);
        }
        let shared = &mut self.shared;
        let outcome = match prefix.trunc() {
            IpNet::V4(prefix) => write::explain(&self.v4, shared, peer, self.v4.find(&prefix)),
            IpNet::V6(prefix) => write::explain(&self.v6, shared, peer, self.v6.find(&prefix)),
        };
        self.shared.collect();
        match outcome {
            Some(NotAdvertised::NoPath) if self.is_held(family) => Some(NotAdvertised::Held),
            outcome => outcome,
        }
    }

    fn entries(&self, family: Family) -> Box<dyn Iterator<Item = PathEntry<'_>> + '_> {
        match family {
            Family::Ipv4Unicast => Box::new(table_entries(&self.v4, &self.shared)),
            Family::Ipv6Unicast => Box::new(table_entries(&self.v6, &self.shared)),
        }
    }
}

fn table_entries<'a, F: AddressFamily>(
    table: &'a Table<F>,
    shared: &'a Shared,
) -> impl Iterator<Item = PathEntry<'a>> {
    table.row_numbers().flat_map(move |row| row_entries(table, shared, row))
}

fn rows_from<'a, F: AddressFamily>(
    table: &'a Table<F>,
    shared: &'a Shared,
    first: u32,
) -> impl Iterator<Item = (u32, IpNet, Vec<PathEntry<'a>>)> {
    (first..table.row_bound()).filter_map(move |row| {
        let prefix = table.row(row)?.prefix.into();
        Some((row, prefix, row_entries(table, shared, row).collect()))
    })
}

fn row_entries<'a, F: AddressFamily>(
    table: &'a Table<F>,
    shared: &'a Shared,
    row: u32,
) -> impl Iterator<Item = PathEntry<'a>> {
    let prefix = table.row(row).map(|row| row.prefix.into());
    let places = iter::once(true).chain(iter::repeat(false));
    let paths = table.row(row).into_iter().flat_map(move |_| table.identified_paths(row));
    paths.zip(places).filter_map(move |((path_id, path), first)| entry(shared, prefix?, path_id, path, first))
}

pub(super) fn entry<'a>(
    shared: &'a Shared,
    prefix: IpNet,
    path_id: Option<u32>,
    path: &Path,
    first: bool,
) -> Option<PathEntry<'a>> {
    let attributes = |id| RouteAttributes { table: &shared.attributes, id };
    Some(PathEntry {
        prefix,
        peer: Some(path.peer()).filter(|peer| *peer != PeerId::LOCAL),
        path_id,
        received: attributes(path.received()?),
        used: path.used().map(attributes),
        filtered: path.filtered(),
        selected: path.is_selected(),
        best: first && path.is_selected(),
        stale: path.is_stale(),
    })
}
