//! Applies a policy and the protocol's rules to the attributes of a path. Results are cached per
//! attribute set.
//!
//! Import turns received attributes into used ones. Export turns used attributes into those that a
//! peer receives: the policy's rules, then RFC 4271's rules towards an external or an internal
//! peer. Peers of the same kind with the same policy share one [`Transform`], and with it the
//! cached results.
//!
//! The cache holds no reference to its input and output sets. References would keep unused sets
//! alive, and two transforms that undo each other would keep each other's sets for ever. Instead
//! the cache records the generation of both, and an entry is computed again if one of its sets is
//! gone.

use std::net::Ipv4Addr;

use ipnet::IpNet;
use rustc_hash::FxHashMap;

use super::attributes::{AttrId, AttributeTable};
use crate::config::{NextHopRule, PathRules, RemovePrivateAs};
use crate::policy::{Policy, PolicyDecision, PolicyResult, RuleMask};
use crate::types::{Asn, Community, ExtendedCommunity, NextHop, Role};
use crate::wire::PathAttributes;
use crate::wire::attributes::{Attributes, begin_attribute, finish_attribute, table as codes};

/// The direction, with the facts of the peer that it depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From an external or internal peer. `in_front`: the AS that is inserted in front of the
    /// neighbour's (RFC 7705 §3.3).
    Import { neighbour_as: Asn, in_front: Option<Asn>, external: bool, rules: PathRules },
    /// To an external peer, from this AS. `in_front`: the AS that is prepended in front of this one
    /// (RFC 7705 §3.3). `kept`: the peer's own AS, which private AS removal keeps.
    ExportExternal { local_as: Asn, in_front: Option<Asn>, kept: Option<Asn>, rules: PathRules },
    /// To an internal peer, from this AS.
    ExportInternal { local_as: Asn, rules: PathRules },
    /// From an internal peer with this BGP identifier to other internal peers. It runs before the
    /// export to each of them (RFC 4456 §8).
    Reflect { originator: Ipv4Addr, cluster: Ipv4Addr },
}

/// The limit of cached rule masks; one more clears the cache.
const CLASSES: usize = 64;

#[derive(Clone, Copy, Debug, Default)]
struct CachedResult {
    /// Generation of the input set.
    input: u32,
    /// The result: [`CachedResult::UNKNOWN`], [`CachedResult::REJECTED`] or the number of a set.
    output: u32,
    /// Generation of the output set.
    generation: u32,
}

impl CachedResult {
    const UNKNOWN: u32 = 0;
    const REJECTED: u32 = u32::MAX;
}

/// A policy and a direction, with the cached results.
#[derive(Debug)]
pub(super) struct Transform {
    direction: Direction,
    policy: Policy,
    looks_at_prefix: bool,
    /// The number of peers that use it.
    users: usize,
    /// Results by rule mask, then by the number of the input set.
    classes: FxHashMap<RuleMask, Vec<CachedResult>>,
    /// The only mask of a policy without prefix conditions.
    every_prefix: RuleMask,
    /// The results of such a policy.
    every_result: Vec<CachedResult>,
    /// Buffer of [`Transform::shortcut`].
    scratch: Vec<u8>,
}

impl Transform {
    fn new(direction: Direction, policy: Policy) -> Self {
        let looks_at_prefix = policy.looks_at_prefix();
        // Rules without prefix conditions match any prefix.
        let every_prefix = policy.rule_mask(&IpNet::default());
        Transform {
            direction,
            policy,
            looks_at_prefix,
            users: 0,
            classes: FxHashMap::default(),
            every_prefix,
            every_result: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Returns the output set; none if the policy rejects the path. The caller releases the
    /// reference.
    pub(super) fn apply(
        &mut self,
        table: &mut AttributeTable,
        prefix: impl Into<IpNet>,
        input: AttrId,
        originated: bool,
    ) -> Option<AttrId> {
        if self.is_identity(table, input) {
            return Some(table.acquire(input));
        }
        let mask = self.looks_at_prefix.then(|| self.policy.rule_mask(&prefix.into()));
        let class = match &mask {
            None => Some(&self.every_result),
            Some(mask) => self.classes.get(mask),
        };
        let place = input.get() as usize - 1;
        let generation = table.generation(input);
        if let Some(outcome) = class.and_then(|class| class.get(place))
            && outcome.input == generation
        {
            match outcome.output {
                CachedResult::UNKNOWN => {}
                CachedResult::REJECTED => return None,
                number => {
                    if let Some(output) = table.recall(number, outcome.generation) {
                        return Some(table.acquire(output));
                    }
                }
            }
        }
        let output = self.compute(table, mask.as_ref(), input, originated);
        let class = match mask {
            None => &mut self.every_result,
            Some(mask) => {
                if self.classes.len() >= CLASSES && !self.classes.contains_key(&mask) {
                    self.classes.clear();
                }
                self.classes.entry(mask).or_default()
            }
        };
        if class.len() <= place {
            class.resize(place + 1, CachedResult::default());
        }
        class[place] = match output {
            Some(output) => {
                CachedResult { input: generation, output: output.get(), generation: table.generation(output) }
            }
            None => CachedResult { input: generation, output: CachedResult::REJECTED, generation: 0 },
        };
        output
    }

    /// Whether this is an import without rules, which changes nothing and needs no cache.
    fn is_identity(&self, table: &AttributeTable, input: AttrId) -> bool {
        let Direction::Import { in_front, external, rules, .. } = self.direction else { return false };
        self.policy.rules.is_empty()
            && in_front.is_none()
            && self.policy.default == PolicyResult::Accept
            && !rules.local_role.is_some_and(Role::adds_otc_on_ingress)
            && !(external && (rules.graceful_shutdown || table.digest(input).has_graceful_shutdown()))
    }

    fn compute(
        &mut self,
        table: &mut AttributeTable,
        mask: Option<&RuleMask>,
        input: AttrId,
        originated: bool,
    ) -> Option<AttrId> {
        let mut block = std::mem::take(&mut self.scratch);
        let short = self.shortcut(table.block(input), originated, &mut block);
        let mask = mask.unwrap_or(&self.every_prefix);
        if short.is_some() {
            debug_assert_eq!(Some((None, block.clone())), self.rewrite(table, mask, input, originated));
            let output = table.intern(None, &block);
            self.scratch = block;
            return Some(output);
        }
        let (next_hop, block) = self.rewrite(table, mask, input, originated)?;
        Some(table.intern(next_hop.as_ref(), &block))
    }

    /// The fast path of an export to an external peer without rules; it does not parse the set. It
    /// prepends the AS, leaves out attributes that stay within the AS, and writes to `out`. None if
    /// the set has an attribute that this code does not support.
    fn shortcut(&self, block: &[u8], originated: bool, out: &mut Vec<u8>) -> Option<()> {
        const AS_SEQUENCE: u8 = 2;
        let Direction::ExportExternal { local_as, in_front, rules, .. } = self.direction else { return None };
        if rules != PathRules::default()
            || in_front.is_some()
            || !self.policy.rules.is_empty()
            || self.policy.default == PolicyResult::Reject
        {
            return None;
        }
        out.clear();
        let mut seen = [false; 2];
        for attribute in Attributes::new(block) {
            match (attribute.code, attribute.value) {
                (codes::AS_PATH, path) => {
                    let (count, members) = match path {
                        [] => (0, path),
                        [AS_SEQUENCE, count, members @ ..] if members.len() == usize::from(*count) * 4 => {
                            (*count, members)
                        }
                        _ => return None,
                    };
                    let start = begin_attribute(out, attribute.flags, codes::AS_PATH);
                    out.extend_from_slice(&[AS_SEQUENCE, count.checked_add(1)?]);
                    out.extend_from_slice(&local_as.0.to_be_bytes());
                    out.extend_from_slice(members);
                    finish_attribute(out, start);
                    seen[1] = true;
                }
                (_, []) => return None,
                (codes::MED, _) if !originated => {}
                (codes::LOCAL_PREF | codes::ORIGINATOR_ID | codes::CLUSTER_LIST, _) => {}
                (codes::ORIGIN, _) => {
                    out.extend_from_slice(attribute.whole);
                    seen[0] = true;
                }
                (codes::MED | codes::COMMUNITIES | codes::LARGE_COMMUNITIES | codes::ONLY_TO_CUSTOMER, _) => {
                    out.extend_from_slice(attribute.whole);
                }
                _ => return None,
            }
        }
        (seen == [true; 2]).then_some(())
    }

    /// The result of the policy for a path, with the rule; nothing is cached.
    fn decision(
        &self,
        table: &AttributeTable,
        prefix: IpNet,
        input: AttrId,
        originated: bool,
    ) -> PolicyDecision {
        let mask = self.policy.rule_mask(&prefix);
        let mut decision = self.by_default();
        self.rewrite_by(table, &mask, input, originated, &mut decision);
        decision
    }

    fn by_default(&self) -> PolicyDecision {
        PolicyDecision { verdict: self.policy.default, rule: None }
    }

    fn rewrite(
        &self,
        table: &AttributeTable,
        mask: &RuleMask,
        input: AttrId,
        originated: bool,
    ) -> Option<(Option<NextHop>, Vec<u8>)> {
        self.rewrite_by(table, mask, input, originated, &mut self.by_default())
    }

    /// Like [`Self::rewrite`]; also writes the policy's result to `decision`.
    fn rewrite_by(
        &self,
        table: &AttributeTable,
        mask: &RuleMask,
        input: AttrId,
        originated: bool,
        decision: &mut PolicyDecision,
    ) -> Option<(Option<NextHop>, Vec<u8>)> {
        let parsed = PathAttributes::parse(table.block(input));
        debug_assert!(parsed.is_ok(), "the decoder accepted a malformed block: {parsed:?}");
        let mut attributes = parsed.ok()?;
        let mut next_hop = table.next_hop(input);
        let learned_med = attributes.med;
        let prepended = match self.direction {
            Direction::Import { neighbour_as, .. } => neighbour_as,
            Direction::ExportExternal { local_as, .. } | Direction::ExportInternal { local_as, .. } => {
                local_as
            }
            Direction::Reflect { originator, cluster } => {
                attributes.originator_id.get_or_insert(originator);
                attributes.cluster_list.insert(0, cluster);
                let mut block = Vec::new();
                attributes.encode(&mut block);
                return Some((next_hop, block));
            }
        };
        if let Direction::ExportExternal { local_as, kept, rules, .. } = self.direction {
            // This runs before the policy, so AS numbers that the policy prepends stay.
            if let Some(RemovePrivateAs { all, replace }) = rules.remove_private_as {
                attributes.as_path.remove_private(all, replace.then_some(local_as), kept);
            }
            // MED is for the neighbouring AS and is not passed on to a third one (RFC 4271 §5.1.4).
            // It is removed before the policy runs, because the policy may set one.
            attributes.med = learned_med.filter(|_| originated);
            if originated {
                // The speaker chooses the form of its own link bandwidth (RFC 10005 §3.1).
                for community in &mut attributes.extended_communities {
                    *community = community.with_transitive_link_bandwidth();
                }
            }
            // Non-transitive communities do not leave the AS either (RFC 4360 §6).
            attributes.extended_communities.retain(ExtendedCommunity::is_transitive);
        }
        let source = (originated, &table.tags(input));
        *decision = self.policy.apply(mask, &mut attributes, next_hop, source, prepended);
        if decision.verdict == PolicyResult::Reject {
            return None;
        }
        match self.direction {
            Direction::Import { external, rules, neighbour_as, in_front } => {
                if rules.local_role.is_some_and(Role::adds_otc_on_ingress) {
                    attributes.only_to_customer.get_or_insert(neighbour_as);
                }
                // This runs after the policy, because the policy sees the path as received.
                in_front.into_iter().for_each(|asn| attributes.as_path.prepend(asn, 1));
                if external && rules.graceful_shutdown {
                    add_community(&mut attributes, Community::GRACEFUL_SHUTDOWN);
                }
                // This runs after the policy: otherwise the policy's LOCAL_PREF would keep traffic
                // on a path that will soon be withdrawn (RFC 8326 §4.1). A policy opts out by
                // removing the community.
                if external && attributes.communities.contains(&Community::GRACEFUL_SHUTDOWN) {
                    attributes.local_pref = Some(0);
                }
            }
            Direction::ExportExternal { local_as, in_front, rules, .. } => {
                if rules.graceful_shutdown {
                    add_community(&mut attributes, Community::GRACEFUL_SHUTDOWN);
                }
                if rules.local_role.is_some_and(Role::adds_otc_on_egress) {
                    // The AS that the peer knows and compares (RFC 9234 §5).
                    attributes.only_to_customer.get_or_insert(in_front.unwrap_or(local_as));
                }
                attributes.as_path.prepend(local_as, 1);
                in_front.into_iter().for_each(|asn| attributes.as_path.prepend(asn, 1));
                attributes.local_pref = None; // RFC 4271 §5.1.5
                attributes.originator_id = None; // reflection ends at the AS's edge (RFC 4456 §8)
                attributes.cluster_list.clear();
                if rules.next_hop != NextHopRule::Unchanged {
                    next_hop = None; // this speaker itself (RFC 4271 §5.1.3)
                }
            }
            Direction::ExportInternal { rules, .. } => {
                attributes.local_pref.get_or_insert(100);
                // Reflected paths keep their next hop (RFC 4456 §10).
                if rules.next_hop == NextHopRule::Own && attributes.originator_id.is_none() {
                    next_hop = None;
                }
                if rules.graceful_shutdown {
                    add_community(&mut attributes, Community::GRACEFUL_SHUTDOWN);
                    attributes.local_pref = Some(0);
                }
            }
            Direction::Reflect { .. } => {}
        }
        let mut block = Vec::new();
        attributes.encode(&mut block);
        Some((next_hop, block))
    }
}

fn add_community(attributes: &mut PathAttributes, community: Community) {
    if !attributes.communities.contains(&community) {
        attributes.communities.push(community);
    }
}

/// The number of a [`Transform`] that peers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TransformId(usize);

/// The transforms in use.
#[derive(Debug, Default)]
pub(super) struct Transforms(Vec<Option<Transform>>);

impl Transforms {
    /// The transform of a direction and policy; adds a user.
    pub(super) fn join(&mut self, direction: Direction, policy: &Policy) -> TransformId {
        let known = self.0.iter().position(|slot| {
            slot.as_ref().is_some_and(|it| it.direction == direction && it.policy == *policy)
        });
        let place = known.or_else(|| self.0.iter().position(Option::is_none)).unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[place].get_or_insert_with(|| Transform::new(direction, policy.clone())).users += 1;
        TransformId(place)
    }

    /// The transform of another direction with the policy of `id`; moves one user to it.
    pub(super) fn turn(&mut self, id: TransformId, direction: Direction) -> TransformId {
        let policy = self.0[id.0].as_ref().map_or_else(Policy::accept_all, |it| it.policy.clone());
        let turned = self.join(direction, &policy);
        self.leave(id);
        turned
    }

    /// Removes a user, and with the last one the transform.
    pub(super) fn leave(&mut self, id: TransformId) {
        let slot = &mut self.0[id.0];
        if let Some(transform) = slot {
            transform.users -= 1;
            if transform.users == 0 {
                *slot = None;
            }
        }
    }

    /// Clears the cached results, because their sets are gone.
    pub(super) fn forget(&mut self) {
        for transform in self.0.iter_mut().flatten() {
            transform.classes.clear();
            transform.every_result = Vec::new();
        }
    }

    /// See [`Transform::decision`]; adds the name of the rule.
    pub(super) fn decision(
        &self,
        id: TransformId,
        table: &AttributeTable,
        prefix: IpNet,
        input: AttrId,
        originated: bool,
    ) -> Option<(PolicyDecision, Option<&str>)> {
        let transform = self.0[id.0].as_ref()?;
        let decision = transform.decision(table, prefix, input, originated);
        let rule = decision.rule.and_then(|rule| transform.policy.rules.get(rule));
        Some((decision, rule.and_then(|rule| rule.name.as_deref())))
    }

    /// See [`Transform::apply`].
    pub(super) fn apply(
        &mut self,
        id: TransformId,
        table: &mut AttributeTable,
        prefix: impl Into<IpNet>,
        input: AttrId,
        originated: bool,
    ) -> Option<AttrId> {
        self.0[id.0].as_mut()?.apply(table, prefix, input, originated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: &[u8] = &[0x40, 1, 1, 0];
    const PATH: &[u8] = &[0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xe9];
    const MED: &[u8] = &[0x80, 4, 4, 0, 0, 0, 9];
    const LOCAL_PREF: &[u8] = &[0x40, 5, 4, 0, 0, 0, 200];
    const COMMUNITIES: &[u8] = &[0xe0, 8, 4, 0xfd, 0xe9, 0, 1]; // partial
    const ORIGINATOR: &[u8] = &[0x80, 9, 4, 10, 0, 0, 9];
    const CLUSTERS: &[u8] = &[0x80, 10, 4, 0, 0, 0, 1];
    const ONLY_TO_CUSTOMER: &[u8] = &[0xc0, 35, 4, 0, 0, 0xfd, 0xe9];
    const LARGE: &[u8] = &[0xc0, 32, 12, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3];

    fn export() -> Transform {
        Transform::new(
            Direction::ExportExternal {
                local_as: Asn(65000),
                in_front: None,
                kept: None,
                rules: PathRules::default(),
            },
            Policy::accept_all(),
        )
    }

    /// A block with a path of `count` members in one sequence.
    fn sequence(count: u8) -> Vec<u8> {
        let mut block = ORIGIN.to_vec();
        let start = begin_attribute(&mut block, 0x40, codes::AS_PATH);
        block.extend_from_slice(&[2, count]);
        block.extend((0..count).flat_map(|member| [0, 0, 1, member]));
        finish_attribute(&mut block, start);
        block
    }

    #[test]
    fn the_fast_path_equals_the_slow_path() {
        let parts = [MED, LOCAL_PREF, COMMUNITIES, ORIGINATOR, CLUSTERS, LARGE, ONLY_TO_CUSTOMER];
        let all = (0..1 << parts.len()).map(|chosen: u32| {
            let parts = parts.iter().enumerate().filter(|(place, _)| chosen >> place & 1 == 1);
            [ORIGIN, PATH].into_iter().chain(parts.map(|(_, part)| *part)).collect::<Vec<_>>().concat()
        });
        let paths = [[ORIGIN, &[0x40, 2, 0]].concat(), sequence(63), sequence(64), sequence(254)];
        for block in all.chain(paths) {
            let mut table = AttributeTable::new(Asn(65000));
            let input = table.intern(None, &block);
            for originated in [false, true] {
                let export = export();
                let mut short = Vec::new();
                export.shortcut(&block, originated, &mut short).expect(
                    "the fast path supports \
                    this block",
                );
                let long = export.rewrite(&table, &export.every_prefix, input, originated);
                assert_eq!(Some((None, short)), long, "{block:x?}");
            }
        }
    }

    #[test]
    fn unusual_attributes_take_the_slow_path() {
        let unusual: [(&str, Vec<u8>); 6] = [
            ("a full segment", sequence(255)),
            ("a set in front", [ORIGIN, &[0x40, 2, 6, 1, 1, 0, 0, 0, 7]].concat()),
            ("two segments", [ORIGIN, &[0x40, 2, 12, 2, 1, 0, 0, 0, 7, 1, 1, 0, 0, 0, 8]].concat()),
            ("ATOMIC_AGGREGATE", [ORIGIN, PATH, &[0x40, 6, 0]].concat()),
            ("an unknown attribute", [ORIGIN, PATH, &[0xe0, 99, 1, 1]].concat()),
            ("no AS_PATH", ORIGIN.to_vec()),
        ];
        for (what, block) in unusual {
            assert_eq!(export().shortcut(&block, false, &mut Vec::new()), None, "{what}");
        }
        let block = [ORIGIN, PATH].concat();
        let reject = Transform::new(export().direction, Policy::reject_all());
        let internal = Transform::new(
            Direction::ExportInternal { local_as: Asn(65000), rules: PathRules::default() },
            Policy::accept_all(),
        );
        assert_eq!(reject.shortcut(&block, false, &mut Vec::new()), None);
        assert_eq!(internal.shortcut(&block, false, &mut Vec::new()), None);
    }
}
