//! From the attributes of one path to those that a policy makes of it, remembered per attribute set.
//!
//! Import turns what a peer sent into what is used, export turns what is used into what a peer is told:
//! the policy's rules, and for export what RFC 4271 asks for towards an external or an internal peer. Peers of
//! the same kind with the same policy share one [`Transform`], and with it the outcome for each set.
//!
//! The memory of outcomes holds no count of the sets it names, neither of those that go in nor of those that come
//! out: it would keep sets alive that nobody uses, and two transforms that undo each other would keep each
//! other's for ever. Instead both are remembered with their generation, and an entry whose sets are gone is
//! computed again.

use ipnet::IpNet;
use rustc_hash::FxHashMap;

use super::attributes::{AttrId, AttributeTable};
use crate::policy::{Policy, RuleMask, Verdict};
use crate::types::Asn;
use crate::wire::PathAttributes;

/// Which way, and to or from whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From a neighbour of this AS.
    Import { neighbour_as: Asn },
    /// To an external peer, from this AS.
    ExportExternal { local_as: Asn },
    /// To an internal peer, from this AS.
    ExportInternal { local_as: Asn },
}

/// The rule masks that outcomes are remembered under; past that all is forgotten and begun again.
const CLASSES: usize = 64;

#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    /// Generation of the set that went in.
    input: u32,
    /// What came out: [`Outcome::UNKNOWN`], [`Outcome::REJECTED`] or a set.
    output: u32,
    /// Generation of the set that came out.
    generation: u32,
}

impl Outcome {
    const UNKNOWN: u32 = 0;
    const REJECTED: u32 = u32::MAX;
}

/// A policy at work.
#[derive(Debug)]
pub(super) struct Transform {
    direction: Direction,
    policy: Policy,
    looks_at_prefix: bool,
    /// Peers that use it.
    users: usize,
    /// Outcomes by rule mask, then by the number of the set that went in.
    classes: FxHashMap<RuleMask, Vec<Outcome>>,
    /// The only mask of a policy that does not look at prefixes.
    every_prefix: RuleMask,
}

impl Transform {
    fn new(direction: Direction, policy: Policy) -> Self {
        let looks_at_prefix = policy.looks_at_prefix();
        // Any prefix satisfies rules without prefix lists.
        let every_prefix = policy.rule_mask(&IpNet::default());
        Transform {
            direction,
            policy,
            looks_at_prefix,
            users: 0,
            classes: FxHashMap::default(),
            every_prefix,
        }
    }

    /// The set that comes out, counted for the caller; none if the policy rejects the path.
    pub(super) fn apply(
        &mut self,
        table: &mut AttributeTable,
        prefix: impl Into<IpNet>,
        input: AttrId,
        originated: bool,
    ) -> Option<AttrId> {
        if self.is_identity() {
            return Some(table.acquire(input));
        }
        let mask = if self.looks_at_prefix {
            self.policy.rule_mask(&prefix.into())
        } else {
            self.every_prefix.clone()
        };
        let place = input.get() as usize - 1;
        let generation = table.generation(input);
        if let Some(outcome) = self.classes.get(&mask).and_then(|class| class.get(place))
            && outcome.input == generation
        {
            match outcome.output {
                Outcome::UNKNOWN => {}
                Outcome::REJECTED => return None,
                number => {
                    if let Some(output) = table.recall(number, outcome.generation) {
                        return Some(table.acquire(output));
                    }
                }
            }
        }
        let output = self.compute(table, &mask, input, originated);
        if self.classes.len() >= CLASSES && !self.classes.contains_key(&mask) {
            self.classes.clear();
        }
        let class = self.classes.entry(mask).or_default();
        if class.len() <= place {
            class.resize(place + 1, Outcome::default());
        }
        class[place] = match output {
            Some(output) => {
                Outcome { input: generation, output: output.get(), generation: table.generation(output) }
            }
            None => Outcome { input: generation, output: Outcome::REJECTED, generation: 0 },
        };
        output
    }

    /// Nothing to do, nothing to remember: import without rules.
    fn is_identity(&self) -> bool {
        matches!(self.direction, Direction::Import { .. })
            && self.policy.rules.is_empty()
            && self.policy.default == Verdict::Accept
    }

    fn compute(
        &self,
        table: &mut AttributeTable,
        mask: &RuleMask,
        input: AttrId,
        originated: bool,
    ) -> Option<AttrId> {
        let parsed = PathAttributes::parse(table.block(input));
        debug_assert!(parsed.is_ok(), "what is interned was checked by the decoder: {parsed:?}");
        let mut attributes = parsed.ok()?;
        let mut next_hop = table.next_hop(input);
        let learned_med = attributes.med;
        let prepended = match self.direction {
            Direction::Import { neighbour_as } => neighbour_as,
            Direction::ExportExternal { local_as } | Direction::ExportInternal { local_as } => local_as,
        };
        if let Direction::ExportExternal { .. } = self.direction {
            // A MED is a matter between two neighbours, not passed on to a third (RFC 4271 §5.1.4); taken out
            // before the policy runs, so that the policy can set one.
            attributes.med = learned_med.filter(|_| originated);
        }
        if self.policy.apply(mask, &mut attributes, originated, prepended) == Verdict::Reject {
            return None;
        }
        match self.direction {
            Direction::Import { .. } => {}
            Direction::ExportExternal { local_as } => {
                attributes.as_path.prepend(local_as, 1);
                attributes.local_pref = None; // RFC 4271 §5.1.5
                attributes.originator_id = None; // reflection ends at the AS's edge (RFC 4456 §8)
                attributes.cluster_list.clear();
                next_hop = None; // this speaker itself (RFC 4271 §5.1.3)
            }
            Direction::ExportInternal { .. } => {
                attributes.local_pref.get_or_insert(100);
            }
        }
        let mut block = Vec::new();
        attributes.encode(&mut block);
        Some(table.intern(next_hop.as_ref(), &block))
    }
}

/// The number of a [`Transform`] that peers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TransformId(usize);

/// The transforms in use.
#[derive(Debug, Default)]
pub(super) struct Transforms(Vec<Option<Transform>>);

impl Transforms {
    /// The transform of a direction and policy, with one user more.
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

    /// One user less; the last one takes the transform with it.
    pub(super) fn leave(&mut self, id: TransformId) {
        let slot = &mut self.0[id.0];
        if let Some(transform) = slot {
            transform.users -= 1;
            if transform.users == 0 {
                *slot = None;
            }
        }
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
