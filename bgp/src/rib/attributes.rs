//! Path attributes. Equal sets are stored once, even if many paths carry them.
//!
//! A million prefixes of a peer share far fewer attribute sets, and comparing sets is most of the
//! tables' work. So sets are interned. The canonical bytes, with the next hop in front, are stored
//! once under an [`AttrId`]. Paths hold the number, and equal numbers mean equal sets. A [`Digest`]
//! next to the bytes has the values that the decision process and the export rules read. All other
//! values are parsed from the bytes when a policy or an operator needs it. A set takes its bytes
//! and 48 octets.
//!
//! An originated set has no next hop. Its origination tags take that place, so the result of an
//! export policy that matches tags is cached by the number of the set, like any other. The set that
//! a peer receives is interned without tags: only [`AttributeTable::tags`] reads them.
//!
//! References are counted by hand ([`AttributeTable::acquire`], [`AttributeTable::release`]): the
//! table has one owner, and a number of 4 octets is half a pointer. A set without references stays
//! readable until [`AttributeTable::collect`], so no number changes its meaning within an
//! operation. Numbers are reused. Code that keeps a number without a reference (the caches of
//! `transform`) keeps the set's generation too.

use std::hash::Hasher;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;

use hashbrown::HashTable;
use rustc_hash::FxHasher;

use crate::types::{Asn, Community, NextHop, Tag, Tags};
use crate::wire::PathAttributes;
use crate::wire::attributes::{as_path, table as codes};

/// The number of an interned attribute set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct AttrId(NonZeroU32);

impl AttrId {
    pub(super) fn get(self) -> u32 {
        self.0.get()
    }

    /// The id of a stored number; 0 means none.
    pub(super) fn from_stored(number: u32) -> Option<AttrId> {
        NonZeroU32::new(number).map(AttrId)
    }

    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The values of a set that the decision and the export rules read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Digest {
    local_pref: u32,
    /// MULTI_EXIT_DISC, 0 if absent.
    pub(super) med: u32,
    /// The first AS of a leading AS_SEQUENCE, 0 if absent.
    pub(super) neighbour_as: u32,
    /// AS_PATH's length as the decision counts it.
    pub(super) path_len: u16,
    flags: u16,
    /// ORIGIN's value.
    pub(super) origin: u8,
    /// CLUSTER_LIST's length, at most 255.
    pub(super) cluster_len: u8,
}

impl Digest {
    const LOCAL_PREF: u16 = 1;
    const MED: u16 = 1 << 1;
    const AS_LOOP: u16 = 1 << 2;
    const NO_EXPORT: u16 = 1 << 3;
    const NO_ADVERTISE: u16 = 1 << 4;
    const NO_EXPORT_SUBCONFED: u16 = 1 << 5;
    const ORIGINATOR: u16 = 1 << 6;
    const LLGR_STALE: u16 = 1 << 7;
    const NO_LLGR: u16 = 1 << 8;
    const GRACEFUL_SHUTDOWN: u16 = 1 << 9;
    const ONLY_TO_CUSTOMER: u16 = 1 << 10;
    const NO_PEER: u16 = 1 << 11;

    /// LOCAL_PREF, 100 if absent.
    pub(super) fn local_pref(&self) -> u32 {
        if self.has_local_pref() { self.local_pref } else { 100 }
    }

    pub(super) fn has_local_pref(&self) -> bool {
        self.flags & Self::LOCAL_PREF != 0
    }

    #[cfg(test)]
    pub(super) fn has_med(&self) -> bool {
        self.flags & Self::MED != 0
    }

    /// This speaker's AS is in AS_PATH.
    pub(super) fn has_as_loop(&self) -> bool {
        self.flags & Self::AS_LOOP != 0
    }

    /// NO_EXPORT or NO_EXPORT_SUBCONFED; without confederations both mean "not to external peers".
    pub(super) fn has_no_export(&self) -> bool {
        self.flags & (Self::NO_EXPORT | Self::NO_EXPORT_SUBCONFED) != 0
    }

    /// NO_PEER (RFC 3765).
    pub(super) fn has_no_peer(&self) -> bool {
        self.flags & Self::NO_PEER != 0
    }

    pub(super) fn has_no_advertise(&self) -> bool {
        self.flags & Self::NO_ADVERTISE != 0
    }

    /// LLGR_STALE: least preferred, and advertised only to peers that support it (RFC 9494 §4.3).
    pub(super) fn is_long_lived_stale(&self) -> bool {
        self.flags & Self::LLGR_STALE != 0
    }

    /// GRACEFUL_SHUTDOWN (RFC 8326).
    pub(super) fn has_graceful_shutdown(&self) -> bool {
        self.flags & Self::GRACEFUL_SHUTDOWN != 0
    }

    /// ONLY_TO_CUSTOMER (RFC 9234).
    pub(super) fn is_only_to_customer(&self) -> bool {
        self.flags & Self::ONLY_TO_CUSTOMER != 0
    }

    pub(super) fn has_no_llgr(&self) -> bool {
        self.flags & Self::NO_LLGR != 0
    }

    pub(super) fn has_originator(&self) -> bool {
        self.flags & Self::ORIGINATOR != 0
    }

    fn of(attributes: &[u8], local_as: Asn) -> Digest {
        let mut digest = Digest::default();
        for (code, value) in values(attributes) {
            match code {
                1 => digest.origin = value.first().copied().unwrap_or(2),
                2 => digest.read_as_path(value, local_as),
                4 => {
                    digest.flags |= Self::MED;
                    digest.med = number(value);
                }
                5 => {
                    digest.flags |= Self::LOCAL_PREF;
                    digest.local_pref = number(value);
                }
                8 => {
                    for community in value.chunks_exact(4).map(number).map(Community) {
                        digest.flags |= match community {
                            Community::NO_EXPORT => Self::NO_EXPORT,
                            Community::NO_ADVERTISE => Self::NO_ADVERTISE,
                            Community::LLGR_STALE => Self::LLGR_STALE,
                            Community::NO_LLGR => Self::NO_LLGR,
                            Community::GRACEFUL_SHUTDOWN => Self::GRACEFUL_SHUTDOWN,
                            Community::NO_EXPORT_SUBCONFED => Self::NO_EXPORT_SUBCONFED,
                            Community::NO_PEER => Self::NO_PEER,
                            _ => 0,
                        };
                    }
                }
                9 => digest.flags |= Self::ORIGINATOR,
                35 => digest.flags |= Self::ONLY_TO_CUSTOMER,
                10 => digest.cluster_len = u8::try_from(value.len() / 4).unwrap_or(u8::MAX),
                _ => {}
            }
        }
        digest
    }

    fn read_as_path(&mut self, mut path: &[u8], local_as: Asn) {
        const AS_SET: u8 = 1;
        const AS_SEQUENCE: u8 = 2;
        let mut first = true;
        while let [kind, count, rest @ ..] = path {
            let Some((members, rest)) = rest.split_at_checked(usize::from(*count) * 4) else { break };
            path = rest;
            self.path_len = self.path_len.saturating_add(match *kind {
                AS_SEQUENCE => u16::from(*count),
                AS_SET => 1,
                _ => 0, // confederation segments are not counted (RFC 5065 §5.3)
            });
            if first && *kind == AS_SEQUENCE {
                self.neighbour_as = members.get(..4).map_or(0, number);
            }
            first = false;
            if members.chunks_exact(4).any(|member| number(member) == local_as.0) {
                self.flags |= Self::AS_LOOP;
            }
        }
    }
}

/// Decodes a number of up to four octets in network order.
fn number(octets: &[u8]) -> u32 {
    octets.iter().take(4).fold(0, |value, octet| value << 8 | u32::from(*octet))
}

/// Type codes and values of a canonical block; the decoder has checked the lengths.
pub(super) fn values(mut block: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    const EXTENDED_LENGTH: u8 = 0x10;
    std::iter::from_fn(move || {
        let (code, length, rest) = match block {
            [flags, code, high, low, rest @ ..] if flags & EXTENDED_LENGTH != 0 => {
                (*code, usize::from(u16::from_be_bytes([*high, *low])), rest)
            }
            [flags, code, length, rest @ ..] if flags & EXTENDED_LENGTH == 0 => {
                (*code, usize::from(*length), rest)
            }
            _ => return None,
        };
        let (value, rest) = rest.split_at_checked(length)?;
        block = rest;
        Some((code, value))
    })
}

#[derive(Debug)]
struct Entry {
    /// The header's length, the header, the attributes. The header is the next hop (no octets: this
    /// speaker itself) or, if its length is odd, a zero and the origination tags.
    bytes: Box<[u8]>,
    /// The reference count in the low 31 bits, [`Entry::DYING`] above.
    references: u32,
    generation: u32,
    /// Hash of `bytes`. With it the index grows and sets are removed without reading the bytes.
    hash: u32,
    digest: Digest,
}

impl Entry {
    /// The entry is in `dead`.
    const DYING: u32 = 1 << 31;

    fn holders(&self) -> u32 {
        self.references & !Self::DYING
    }
}

const _: () = assert!(size_of::<Entry>() == 48);

/// The interned sets.
#[derive(Debug)]
pub(super) struct AttributeTable {
    local_as: Asn,
    entries: Vec<Entry>,
    index: HashTable<u32>,
    free: Vec<u32>,
    /// Generation of the next new set.
    generation: u32,
    /// Sets with a count that fell to zero since the last collection.
    dead: Vec<AttrId>,
    scratch: Vec<u8>,
}

impl AttributeTable {
    pub(super) fn new(local_as: Asn) -> Self {
        AttributeTable {
            local_as,
            entries: Vec::new(),
            index: HashTable::new(),
            free: Vec::new(),
            generation: 0,
            dead: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Returns the number of a set with one more community. The caller releases the reference.
    pub(super) fn with_community(&mut self, id: AttrId, community: Community) -> AttrId {
        let parsed = PathAttributes::parse(self.block(id));
        debug_assert!(parsed.is_ok(), "the decoder accepted a malformed block: {parsed:?}");
        let Ok(mut attributes) = parsed else { return self.acquire(id) };
        attributes.communities.push(community);
        let mut block = Vec::new();
        attributes.encode(&mut block);
        let next_hop = self.next_hop(id);
        self.intern(next_hop.as_ref(), &block)
    }

    /// The number of sets in use.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Interns a set and adds a reference, which the caller releases. No next hop means this
    /// speaker itself.
    pub(super) fn intern(&mut self, next_hop: Option<&NextHop>, attributes: &[u8]) -> AttrId {
        self.intern_with(|out| put_next_hop(next_hop, out), attributes)
    }

    /// Interns the set of an originated prefix with its tags, and counts one reference for the
    /// caller.
    pub(super) fn intern_own(&mut self, tags: &Tags, attributes: &[u8]) -> AttrId {
        self.intern_with(|out| put_tags(tags, out), attributes)
    }

    fn intern_with(&mut self, put_header: impl FnOnce(&mut Vec<u8>), attributes: &[u8]) -> AttrId {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        put_header(&mut scratch);
        scratch.extend_from_slice(attributes);
        let hash = hash(&scratch);
        let same = |number: &u32| {
            let entry = &self.entries[*number as usize];
            entry.hash == hash && *entry.bytes == *scratch
        };
        let found = self.index.find(spread(hash), same).copied();
        let number = found.unwrap_or_else(|| self.insert(hash, &scratch, attributes));
        self.scratch = scratch;
        self.entries[number as usize].references += 1;
        #[expect(clippy::unwrap_used, reason = "the smallest number plus one is one")]
        AttrId(NonZeroU32::new(number + 1).unwrap())
    }

    fn insert(&mut self, hash: u32, bytes: &[u8], attributes: &[u8]) -> u32 {
        let digest = Digest::of(attributes, self.local_as);
        let generation = self.generation;
        self.generation = generation.wrapping_add(1);
        let number = match self.free.pop() {
            Some(number) => {
                let entry = &mut self.entries[number as usize];
                entry.bytes = bytes.into();
                entry.digest = digest;
                entry.generation = generation;
                entry.hash = hash;
                number
            }
            None => {
                let bytes = bytes.into();
                self.entries.push(Entry { bytes, references: 0, generation, hash, digest });
                (self.entries.len() - 1) as u32
            }
        };
        let entries = &self.entries;
        self.index.insert_unique(spread(hash), number, |number| spread(entries[*number as usize].hash));
        number
    }

    /// Adds a reference.
    pub(super) fn acquire(&mut self, id: AttrId) -> AttrId {
        self.entries[id.index()].references += 1;
        id
    }

    /// Removes a reference; a set without references stays until [`Self::collect`].
    pub(super) fn release(&mut self, id: AttrId) {
        let entry = &mut self.entries[id.index()];
        debug_assert!(entry.holders() > 0, "a set is released as often as it was acquired");
        entry.references -= 1;
        if entry.references == 0 {
            entry.references = Entry::DYING;
            self.dead.push(id);
        }
    }

    /// Removes the sets without references. Returns true if a large table became empty; caches can
    /// then release their memory too. Invalidates every [`AttrId`] without a reference.
    pub(super) fn collect(&mut self) -> bool {
        while let Some(id) = self.dead.pop() {
            let entry = &mut self.entries[id.index()];
            entry.references = entry.holders();
            if entry.references > 0 {
                continue; // interned again meanwhile
            }
            entry.bytes = Box::default();
            let (hash, number) = (entry.hash, id.index() as u32);
            if let Ok(found) = self.index.find_entry(spread(hash), |other| *other == number) {
                found.remove();
            }
            self.free.push(number);
        }
        let emptied = self.index.is_empty() && self.index.capacity() > 1024;
        if emptied {
            // A large table is gone: release its memory. Generations continue.
            self.index = HashTable::new();
            self.entries = Vec::new();
            self.free = Vec::new();
            self.dead = Vec::new();
        }
        emptied
    }

    /// The generation, which distinguishes a set from a later one with the same number.
    pub(super) fn generation(&self, id: AttrId) -> u32 {
        self.entries[id.index()].generation
    }

    /// The set of a cached number if it is still the same set.
    pub(super) fn recall(&self, number: u32, generation: u32) -> Option<AttrId> {
        let id = AttrId::from_stored(number)?;
        let entry = self.entries.get(id.index())?;
        (entry.generation == generation && !entry.bytes.is_empty()).then_some(id)
    }

    pub(super) fn digest(&self, id: AttrId) -> &Digest {
        &self.entries[id.index()].digest
    }

    /// The canonical block, without the next hop and the tags.
    pub(super) fn block(&self, id: AttrId) -> &[u8] {
        let bytes = &self.entries[id.index()].bytes;
        &bytes[1 + usize::from(bytes[0])..]
    }

    fn header(&self, id: AttrId) -> &[u8] {
        let bytes = &self.entries[id.index()].bytes;
        &bytes[1..1 + usize::from(bytes[0])]
    }

    /// The next hop; none if it is this speaker itself.
    pub(super) fn next_hop(&self, id: AttrId) -> Option<NextHop> {
        get_next_hop(self.header(id))
    }

    /// The origination tags; none if a peer advertised the set or receives it.
    pub(super) fn tags(&self, id: AttrId) -> Tags {
        get_tags(self.header(id))
    }

    /// Whether two sets have the same next hop.
    pub(super) fn same_next_hop(&self, one: AttrId, other: AttrId) -> bool {
        let next_hop = |id| Some(self.header(id)).filter(|header| !has_tags(header)).unwrap_or_default();
        one == other || next_hop(one) == next_hop(other)
    }

    /// Whether a cluster is in CLUSTER_LIST.
    pub(super) fn has_cluster(&self, id: AttrId, cluster: Ipv4Addr) -> bool {
        self.digest(id).cluster_len > 0
            && values(self.block(id)).any(|(code, value)| {
                code == codes::CLUSTER_LIST && value.chunks_exact(4).any(|member| *member == cluster.octets())
            })
    }

    /// The number of occurrences of an AS in AS_PATH.
    pub(super) fn occurrences(&self, id: AttrId, asn: Asn) -> usize {
        let path = values(self.block(id)).find(|(code, _)| *code == codes::AS_PATH);
        let segments = path.into_iter().flat_map(|(_, path)| as_path::segments(path, as_path::Width::Four));
        segments.flat_map(|(_, members)| members.chunks_exact(4)).filter(|it| number(it) == asn.0).count()
    }

    /// ONLY_TO_CUSTOMER, if there is one.
    pub(super) fn only_to_customer(&self, id: AttrId) -> Option<Asn> {
        if !self.digest(id).is_only_to_customer() {
            return None;
        }
        values(self.block(id))
            .find(|(code, _)| *code == codes::ONLY_TO_CUSTOMER)
            .map(|(_, value)| Asn(number(value)))
    }

    /// ORIGINATOR_ID, if there is one.
    pub(super) fn originator_id(&self, id: AttrId) -> Option<Ipv4Addr> {
        if !self.digest(id).has_originator() {
            return None;
        }
        values(self.block(id)).find(|(code, _)| *code == 9).map(|(_, value)| Ipv4Addr::from(number(value)))
    }
}

fn hash(bytes: &[u8]) -> u32 {
    let mut hasher = FxHasher::default();
    hasher.write(bytes);
    let hash = hasher.finish();
    (hash ^ hash >> 32) as u32
}

/// Widens a hash for the index, which uses the highest and the lowest bits.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

fn put_next_hop(next_hop: Option<&NextHop>, out: &mut Vec<u8>) {
    match next_hop {
        None => out.push(0),
        Some(NextHop::V4(address)) => {
            out.push(4);
            out.extend_from_slice(&address.octets());
        }
        Some(NextHop::V6(address)) => {
            out.push(16);
            out.extend_from_slice(&address.octets());
        }
        Some(NextHop::V6WithLinkLocal(global, link_local)) => {
            out.push(32);
            out.extend_from_slice(&global.octets());
            out.extend_from_slice(&link_local.octets());
        }
    }
}

fn get_next_hop(header: &[u8]) -> Option<NextHop> {
    let v6 = |octets: &[u8; 16]| Ipv6Addr::from(*octets);
    match header.len() {
        4 => header.first_chunk::<4>().map(|octets| NextHop::V4(Ipv4Addr::from(*octets))),
        16 => header.first_chunk().map(|octets| NextHop::V6(v6(octets))),
        32 => {
            let (global, rest) = header.split_first_chunk()?;
            Some(NextHop::V6WithLinkLocal(v6(global), v6(rest.first_chunk()?)))
        }
        _ => None,
    }
}

// The length of the header has one octet.
const _: () = assert!(2 * Tags::MAX < u8::MAX as usize);

/// No tags have the header of a set without next hop.
fn put_tags(tags: &Tags, out: &mut Vec<u8>) {
    let tags = tags.as_slice();
    if tags.is_empty() {
        return out.push(0);
    }
    out.extend_from_slice(&[1 + 2 * tags.len() as u8, 0]);
    out.extend(tags.iter().flat_map(|tag| tag.0.to_be_bytes()));
}

/// The lengths of next hops are even.
fn has_tags(header: &[u8]) -> bool {
    !header.len().is_multiple_of(2)
}

fn get_tags(header: &[u8]) -> Tags {
    let octets = header.get(1..).filter(|_| has_tags(header)).unwrap_or_default();
    let tags = octets.as_chunks::<2>().0.iter().map(|octets| Tag(u16::from_be_bytes(*octets)));
    // The number of tags was checked when they were put here.
    Tags::new(tags).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN_EGP: &[u8] = &[0x40, 1, 1, 1];

    #[test]
    fn equal_sets_have_one_number_and_one_count() {
        let mut table = AttributeTable::new(Asn(1));
        let hops = [
            None,
            Some(NextHop::V4(Ipv4Addr::new(10, 0, 0, 1))),
            Some(NextHop::V6("2001:db8::1".parse().unwrap())),
            Some(NextHop::V6WithLinkLocal("2001:db8::1".parse().unwrap(), "fe80::1".parse().unwrap())),
        ];
        let ids = hops.map(|hop| table.intern(hop.as_ref(), ORIGIN_EGP));
        assert_eq!(table.len(), 4);
        for (id, hop) in ids.into_iter().zip(hops) {
            assert_eq!(table.intern(hop.as_ref(), ORIGIN_EGP), id);
            assert_eq!(table.next_hop(id), hop);
            assert_eq!(table.block(id), ORIGIN_EGP);
            table.release(id);
            table.collect();
            assert_eq!(table.block(id), ORIGIN_EGP, "one holder is left");
            table.release(id);
        }
        table.collect();
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn equal_tags_have_one_number_and_are_in_no_block() {
        let mut table = AttributeTable::new(Asn(1));
        let lists = [vec![], vec![7], vec![7, 65535], (0..Tags::MAX as u16).collect()];
        let lists = lists.map(|list: Vec<u16>| Tags::new(list.into_iter().map(Tag)).unwrap());
        let ids = lists.each_ref().map(|tags| table.intern_own(tags, ORIGIN_EGP));
        assert_eq!(table.len(), 4);
        assert_eq!(table.intern(None, ORIGIN_EGP), ids[0], "no tags");
        let hop = NextHop::V4(Ipv4Addr::new(10, 0, 0, 1));
        let received = table.intern(Some(&hop), ORIGIN_EGP);
        assert_eq!(table.tags(received), Tags::default());
        for (id, tags) in ids.into_iter().zip(&lists) {
            assert_eq!(table.intern_own(tags, ORIGIN_EGP), id);
            assert_eq!((table.tags(id), table.next_hop(id)), (tags.clone(), None));
            assert_eq!((table.block(id), table.digest(id).origin), (ORIGIN_EGP, 1));
            assert!(table.same_next_hop(id, ids[0]) && !table.same_next_hop(id, received));
        }
    }

    #[test]
    fn a_reused_number_has_a_new_generation() {
        let mut table = AttributeTable::new(Asn(1));
        let first = table.intern(None, ORIGIN_EGP);
        let generation = table.generation(first);
        table.release(first);
        assert_eq!(
            table.recall(first.get(), generation),
            Some(first),
            "the set stays until the \
            collection"
        );
        let again = table.intern(None, ORIGIN_EGP);
        assert_eq!(again, first);
        table.collect();
        assert_eq!(
            table.recall(first.get(), generation),
            Some(first),
            "the set was interned \
            again"
        );
        table.release(again);
        table.collect();
        assert_eq!(table.recall(first.get(), generation), None);
        let other = table.intern(None, &[0x40, 1, 1, 0]);
        assert_eq!(other.get(), first.get());
        assert_eq!(table.recall(first.get(), generation), None);
    }

    #[test]
    fn the_digest_reads_what_the_decision_needs() {
        let block: &[&[u8]] = &[
            &[0x40, 1, 1, 2],
            // AS_SEQUENCE 65001 1, then an AS_SET of two; extended length.
            &[0x50, 2, 0, 20, 2, 2, 0, 0, 0xfd, 0xe9, 0, 0, 0, 1, 1, 2, 0, 0, 0, 7, 0, 0, 0, 8],
            &[0x80, 4, 4, 0, 0, 0, 50],
            &[0x40, 5, 4, 0, 0, 1, 0],
            &[0xc0, 8, 8, 0xff, 0xff, 0xff, 0x01, 0, 1, 0, 2],
            &[0x80, 9, 4, 10, 0, 0, 9],
            &[0x80, 10, 8, 0, 0, 0, 1, 0, 0, 0, 2],
        ];
        let mut table = AttributeTable::new(Asn(1));
        let id = table.intern(None, &block.concat());
        let digest = table.digest(id);
        assert_eq!((digest.origin, digest.path_len, digest.neighbour_as), (2, 3, 65001));
        assert_eq!((digest.med, digest.has_med(), digest.local_pref()), (50, true, 256));
        assert!(digest.has_as_loop() && digest.has_no_export() && !digest.has_no_advertise());
        assert_eq!((digest.cluster_len, table.originator_id(id)), (2, Some(Ipv4Addr::new(10, 0, 0, 9))));
        let empty = table.intern(None, &[0x40, 1, 1, 0, 0x40, 2, 0]);
        let digest = table.digest(empty);
        assert_eq!((digest.path_len, digest.neighbour_as, digest.local_pref()), (0, 0, 100));
        assert!(!digest.has_med() && !digest.has_as_loop() && table.originator_id(empty).is_none());
    }
}
