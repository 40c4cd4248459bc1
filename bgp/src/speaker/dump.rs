//! Writes the tables as MRT, in pieces. [`crate::mrt`] defines the format.

use std::net::Ipv4Addr;
use std::time::Instant;

use super::Speaker;
use crate::mrt::{Entry, IndexEntry, TableDump, write_index};
use crate::types::{Family, PeerId};

impl Speaker {
    /// Appends about `budget` octets of the dump as whole records; returns whether more follow.
    pub fn dump_tables(&self, dump: &mut TableDump, out: &mut Vec<u8>, budget: usize, now: Instant) -> bool {
        let limit = out.len().saturating_add(budget);
        if dump.index.is_none() {
            self.dump_index(dump, out, now);
        }
        while let Some(family) = dump.family {
            if out.len() >= limit {
                return true;
            }
            if !self.dump_rows(dump, family, out, limit) {
                dump.row = 0;
                dump.family = Family::ALL.into_iter().find(|other| other.index() > family.index());
            }
        }
        false
    }

    fn dump_index(&self, dump: &mut TableDump, out: &mut Vec<u8>, now: Instant) {
        let own = IndexEntry {
            router_id: self.config.router_id,
            address: Ipv4Addr::UNSPECIFIED.into(),
            asn: self.config.local_as,
        };
        let mut entries = vec![own];
        let mut index = rustc_hash::FxHashMap::default();
        index.insert(PeerId::LOCAL, (0, dump.when));
        for peer in self.peers.iter().flatten() {
            let Ok(place) = u16::try_from(entries.len()) else { break };
            let status = peer.status(now);
            let session = status.session.as_ref();
            let up_for = u32::try_from(status.state_for.as_secs()).unwrap_or(u32::MAX);
            let since = session.map_or(dump.when, |_| dump.when.saturating_sub(up_for));
            index.insert(peer.id(), (place, since));
            entries.push(IndexEntry {
                router_id: session.map_or(Ipv4Addr::UNSPECIFIED, |session| session.remote_router_id),
                address: peer.config().address,
                asn: peer.config().remote_as,
            });
        }
        write_index(out, dump.when, self.config.router_id, &entries);
        dump.index = Some(index);
    }

    /// Writes rows of a family; returns whether the family has more.
    fn dump_rows(&self, dump: &mut TableDump, family: Family, out: &mut Vec<u8>, limit: usize) -> bool {
        for (row, prefix, paths) in self.hub.rib.rows_from(family, dump.row) {
            if out.len() >= limit {
                dump.row = row;
                return true;
            }
            let index = dump.index.as_ref();
            // A peer added after the index was written is not in this dump.
            let entries = paths.iter().filter_map(|path| {
                let (peer, since) = *index?.get(&path.peer.unwrap_or(PeerId::LOCAL))?;
                let used = path.used.as_ref()?;
                let (next_hop, block) = (used.next_hop(), used.block());
                Some(Entry { peer, since, path_id: path.path_id, next_hop, block })
            });
            let entries: Vec<Entry<'_>> = entries.collect();
            dump.write(out, prefix, entries);
        }
        false
    }
}
