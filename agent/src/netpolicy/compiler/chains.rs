//! The chains in use and their rules.
//!
//! **Rules are compiled when a difference is made**, after all changes. The budget decides before:
//! the rules and sets of a policy are counted first, and the elements of its sets next. A set gets
//! its elements in the difference only, so the sets of a refused policy never have any.
//!
//! **A refused policy fails closed, alone.** The chain of a NetworkPolicy has no rules, so its pods
//! are isolated. A ClusterNetworkPolicy denies everything in the directions where it has rules.
//!
//! **When a refused policy is tried again.** Rules and sets follow from policies, and are counted
//! again with each change of chains. The number of elements depends on pods: so that a policy at its
//! bound is not in force now and then, it is tried again only after a change of the policies that
//! pay with it, when an eighth of all addresses is gone, or when its own number is an eighth below
//! the bound, or below its number at the refusal.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use trunkline_datapath::plan::policy::PolicyPart;

use super::{Compiler, Policy};
use crate::netpolicy::budget::{self, Figure, Figures, Refusal, Share, Tenant, evaluate};
use crate::netpolicy::counted::{Counted, find};
use crate::netpolicy::input::{Direction, Tier};
use crate::netpolicy::kernel::PolicyRef;
use crate::netpolicy::labels::remove_from;
use crate::netpolicy::rules::{
    AppliedPolicies, Chain, ChainId, ChainKey, Origin, PortMatch, PortNumbers, Rule, SetId, SetKey, Verdict,
};
use crate::netpolicy::sets::HashedKey;
use crate::netpolicy::translate::{self, Draft, NumbersDraft, PortDraft};

/// The work until the next difference.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// Chains whose rules are not those of their policies.
    stale: BTreeSet<ChainId>,
    /// Sets of rules that are gone. New rules can have the same sets, so these are released last.
    released: Vec<SetId>,
    /// The rules, jumps and sets of the policies in use.
    figures: HashMap<PolicyRef, InUse>,
    /// The elements that can be added until the budget is evaluated again.
    headroom: usize,
}

/// The figures of a policy in use.
#[derive(Debug)]
struct InUse {
    figures: Figures<HashedKey>,
    /// Whether it has a rule for ingress, and for egress.
    has_rules: [bool; 2],
}

/// A refused policy.
#[derive(Debug)]
pub(in crate::netpolicy) struct Refused {
    refusal: Refusal,
    /// The number of all addresses at the refusal.
    addresses: usize,
    /// The policy is tried again with at most this many elements.
    few: usize,
    /// The policy is counted again when so many elements left sets since the start.
    count_at: usize,
}

impl Refused {
    /// Whether the number of elements is the reason.
    fn has_elements(&self) -> bool {
        matches!(self.refusal, Refusal::Budget { figure: Figure::Elements, .. })
    }

    /// Whether pods decide, or the kernel does: the policy is not counted again with each change.
    fn stays(&self) -> bool {
        match self.refusal {
            Refusal::Budget { figure, .. } => figure == Figure::Elements,
            Refusal::Kernel(_) => true,
        }
    }
}

impl Compiler {
    /// The refused policies.
    pub(in crate::netpolicy) fn refusals(&self) -> impl Iterator<Item = (&PolicyRef, &Refusal)> {
        self.refused.iter().map(|(policy, refused)| (policy, &refused.refusal))
    }

    /// Whether the budget or the kernel refuses a policy.
    pub(in crate::netpolicy) fn is_refused(&self, policy: &PolicyRef) -> bool {
        self.refused.contains_key(policy)
    }

    /// The policies with rules in a part of the kernel's table.
    pub(in crate::netpolicy) fn policies_of(&self, part: PolicyPart) -> BTreeSet<PolicyRef> {
        let origin = |rule: &Rule| match &rule.origin {
            Origin::Network { policy, .. } => Some(PolicyRef::Network(policy.clone())),
            Origin::Cluster { policy, .. } => Some(PolicyRef::Cluster(policy.clone())),
            Origin::Isolation | Origin::Structure => None,
        };
        match part {
            PolicyPart::Chain(id) => {
                self.chain(id).map(|chain| policies_with_rules(&chain.key)).into_iter().flatten().collect()
            }
            PolicyPart::Set(set) => {
                let rules = self.chains.values().flat_map(|row| &row.value.rules);
                rules.filter(|rule| rule.sets().any(|there| there == set)).filter_map(origin).collect()
            }
        }
    }

    /// Refuses the policies of a part that the kernel refused. None: all of them are refused
    /// already, or no policy has the part.
    pub(in crate::netpolicy) fn refuse_part(
        &mut self,
        part: PolicyPart,
        reason: &str,
    ) -> Option<BTreeSet<PolicyRef>> {
        let mut policies = self.policies_of(part);
        policies.retain(|policy| !self.refused.contains_key(policy));
        for policy in &policies {
            self.refuse(policy.clone(), Refusal::Kernel(reason.to_owned()));
        }
        (!policies.is_empty()).then_some(policies)
    }

    /// Tries the policies again that the kernel refused. Returns whether there is one.
    pub(in crate::netpolicy) fn retry_refused(&mut self) -> bool {
        let is_of_kernel = |refused: &Refused| matches!(refused.refusal, Refusal::Kernel(_));
        let exists = self.refused.values().any(is_of_kernel);
        self.retry(|_, refused| is_of_kernel(refused));
        exists
    }

    /// Compiles the rules of new and changed policies within the budget.
    pub(in crate::netpolicy) fn compile_pending(&mut self) {
        self.select_pending();
        let addresses = self.world.address_count();
        self.retry(|_, refused| refused.has_elements() && 8 * addresses <= 7 * refused.addresses);
        self.retry_small();
        let mut is_first = true;
        let mut is_pending = !self.work.stale.is_empty() || self.sets.added() > self.work.headroom;
        while is_pending {
            self.evaluate_budget(is_first);
            // The elements of new sets are known then.
            is_pending = self.compile_stale();
            is_first = false;
        }
        for set in std::mem::take(&mut self.work.released) {
            self.release_set(set);
        }
    }

    /// Tries policies again with an eighth fewer elements. Each is counted only when so many elements
    /// may have left its sets.
    fn retry_small(&mut self) {
        let departed = self.world.departed();
        let is_due = |refused: &Refused| refused.has_elements() && refused.count_at <= departed;
        let due = self.refused.iter().filter(|(_, refused)| is_due(refused));
        for policy in due.map(|(policy, _)| policy.clone()).collect::<Vec<_>>() {
            let (elements, sets) = self.elements(&policy);
            let Some(refused) = self.refused.get_mut(&policy) else { continue };
            refused.count_at = departed + pause(elements, refused.few, sets);
            if elements <= refused.few {
                self.retry(|other, _| *other == policy);
            }
        }
    }

    /// The elements that a policy pays for, and its sets.
    fn elements(&self, policy: &PolicyRef) -> (usize, usize) {
        let sets = self.work.figures.get(policy).map(|row| &*row.figures.sets).unwrap_or_default();
        let elements = sets.iter().map(|set| self.sets.measure(&self.world, set).charged);
        (elements.sum(), sets.len())
    }

    /// Refuses the policies above the budget. `may_admit`: others are no longer refused.
    fn evaluate_budget(&mut self, may_admit: bool) {
        let unknown: Vec<PolicyRef> = self
            .chains_of
            .keys()
            .filter(|policy| !self.work.figures.contains_key(*policy))
            .cloned()
            .collect();
        for policy in unknown {
            let figures = self.figures(&policy);
            self.work.figures.insert(policy, figures);
        }
        let in_use = self.work.figures.iter();
        let jumps: Vec<usize> = in_use.map(|(policy, row)| self.jumps(policy, row.has_rules)).collect();
        for (row, jumps) in self.work.figures.values_mut().zip(jumps) {
            row.figures.jumps = jumps;
        }
        let addresses = self.world.address_count();
        let counted = self
            .work
            .figures
            .iter()
            .filter(|(policy, _)| !self.refused.get(*policy).is_some_and(Refused::stays))
            .map(|(policy, row)| (policy, &row.figures));
        let evaluation = evaluate(counted, |set| self.sets.size(set), addresses);
        self.work.headroom = evaluation.headroom;
        self.sets.forget_added();
        if may_admit {
            self.retry(|policy, refused| !refused.stays() && !evaluation.refused.contains_key(policy));
        }
        for (policy, refusal) in evaluation.refused {
            let is_same = |there: &Refused| there.refusal.is_same(&refusal);
            if !self.refused.get(&policy).is_some_and(is_same) {
                self.refuse(policy, refusal);
            }
        }
    }

    fn figures(&self, policy: &PolicyRef) -> InUse {
        let isolates = |direction| match self.policies.get(policy).map(|row| &row.policy) {
            Some(Policy::Network(policy)) => policy.applies_to(direction),
            Some(Policy::Cluster(_)) | None => false,
        };
        let drafts = Direction::ALL.map(|direction| self.drafts(policy, direction));
        let rules = Direction::ALL.iter().zip(&drafts);
        let rules = rules.map(|(direction, drafts)| drafts.len().max(usize::from(isolates(*direction))));
        let sets: HashSet<HashedKey> =
            drafts.iter().flatten().flat_map(Draft::sets).map(|key| self.sets.hashed(key)).collect();
        InUse {
            figures: Figures { rules: rules.sum(), jumps: 0, sets: sets.into_iter().collect() },
            has_rules: [&drafts[0], &drafts[1]].map(|drafts| !drafts.is_empty()),
        }
    }

    /// The jumps to the chains of a NetworkPolicy. ClusterNetworkPolicies share those of their tier.
    fn jumps(&self, policy: &PolicyRef, has_rules: [bool; 2]) -> usize {
        if matches!(policy, PolicyRef::Cluster(_)) {
            return 0;
        }
        let chains = self.chains_of.get(policy).into_iter().flatten();
        let has_rules = |chain: &&ChainId| {
            self.chain(**chain).is_some_and(|chain| has_rules[chain.key.direction() as usize])
        };
        chains.filter(has_rules).map(|chain| self.jumps.sources(*chain).len()).sum()
    }

    fn drafts(&self, policy: &PolicyRef, direction: Direction) -> Vec<Draft> {
        match self.policies.get(policy).map(|row| &row.policy) {
            Some(Policy::Network(policy)) if policy.applies_to(direction) => {
                translate::network_rules(policy, direction)
            }
            Some(Policy::Cluster(policy)) => translate::cluster_rules(policy, direction),
            Some(Policy::Network(_)) | None => Vec::new(),
        }
    }

    fn refuse(&mut self, policy: PolicyRef, refusal: Refusal) {
        self.mark_stale(&policy);
        let (elements, sets) = match refusal {
            Refusal::Budget { figure: Figure::Elements, .. } => self.elements(&policy),
            Refusal::Budget { .. } | Refusal::Kernel(_) => (0, 0),
        };
        let addresses = self.world.address_count();
        let few = elements.min(budget::POLICY.in_cluster_of(addresses).elements) / 8 * 7;
        let count_at = self.world.departed() + pause(elements, few, sets);
        self.refused.insert(policy, Refused { refusal, addresses, few, count_at });
    }

    /// Tries these refused policies again.
    fn retry(&mut self, which: impl Fn(&PolicyRef, &Refused) -> bool) {
        let all = self.refused.iter().filter(|(policy, refused)| which(policy, refused));
        for policy in all.map(|(policy, _)| policy.clone()).collect::<Vec<_>>() {
            self.refused.remove(&policy);
            self.mark_stale(&policy);
        }
    }

    fn mark_stale(&mut self, policy: &PolicyRef) {
        self.work.stale.extend(self.chains_of.get(policy).into_iter().flatten());
    }

    /// A policy is new, changed or gone.
    pub(super) fn handle_changed_policy(&mut self, policy: &PolicyRef) {
        self.work.figures.remove(policy);
        self.mark_stale(policy);
        let tenant = Tenant::from(policy);
        self.retry(|other, refused| {
            other == policy
                || match refused.refusal {
                    Refusal::Budget { share: Share::Node, .. } => true,
                    Refusal::Budget { share: Share::Tenant, .. } => Tenant::from(other) == tenant,
                    Refusal::Budget { share: Share::Policy, .. } | Refusal::Kernel(_) => false,
                }
        });
    }

    /// Returns whether a chain was stale.
    fn compile_stale(&mut self) -> bool {
        let stale = std::mem::take(&mut self.work.stale);
        let is_pending = !stale.is_empty();
        let is_entry = |id: &ChainId| self.jumps.is_source(*id);
        let (mut entries, chains): (BTreeSet<ChainId>, BTreeSet<ChainId>) =
            stale.into_iter().partition(is_entry);
        for id in chains {
            let was_empty = self.is_empty_chain(id);
            self.compile(id);
            if self.is_empty_chain(id) != was_empty {
                entries.extend(self.jumps.sources(id));
            }
        }
        for id in entries {
            self.compile(id);
        }
        is_pending
    }

    fn compile(&mut self, id: ChainId) {
        let Some(there) = self.chains.get(&id).map(|row| row.value.clone()) else { return };
        let rules = self.compile_chain(id, &there.key);
        if rules == there.rules {
            self.work.released.extend(rules.iter().flat_map(Rule::sets));
            return;
        }
        self.pending.touch_chain(id, Some(&there));
        self.work.released.extend(there.rules.iter().flat_map(Rule::sets));
        let chain = Arc::new(Chain { key: there.key.clone(), rules });
        if let Some(row) = self.chains.get_mut(&id) {
            row.value = chain;
        }
    }

    fn is_empty_chain(&self, id: ChainId) -> bool {
        self.chain(id).is_none_or(|chain| chain.rules.is_empty())
    }

    pub(super) fn acquire_chain(&mut self, key: ChainKey) -> ChainId {
        let (mut number, exists) = find(&self.chains, &key, |chain| &chain.key);
        if !exists {
            let targets: Vec<ChainId> =
                targets(&key).into_iter().map(|target| self.acquire_chain(target)).collect();
            // A target can have taken the number.
            number = find(&self.chains, &key, |chain| &chain.key).0;
            let id = ChainId::from(number);
            if matches!(key, ChainKey::Entry { .. }) {
                self.jumps.insert(id, targets);
            }
            self.work.stale.insert(id);
            for policy in policies_with_rules(&key) {
                self.chains_of.entry(policy).or_default().insert(id);
            }
            self.pending.touch_chain(id, None);
            self.chains.insert(id, Counted { value: Arc::new(Chain { key, rules: Vec::new() }), users: 0 });
        }
        let id = ChainId::from(number);
        if let Some(row) = self.chains.get_mut(&id) {
            row.users += 1;
        }
        id
    }

    pub(super) fn release_chain(&mut self, id: ChainId) {
        let Some(row) = self.chains.get_mut(&id) else { return };
        row.users -= 1;
        if row.users > 0 {
            return;
        }
        let Some(row) = self.chains.remove(&id) else { return };
        self.pending.touch_chain(id, Some(&row.value));
        self.work.stale.remove(&id);
        for policy in policies_with_rules(&row.value.key) {
            remove_from(&mut self.chains_of, &policy, &id);
            if !self.chains_of.contains_key(&policy) {
                self.work.figures.remove(&policy);
                self.refused.remove(&policy);
            }
        }
        self.work.released.extend(row.value.rules.iter().flat_map(Rule::sets));
        for target in self.jumps.remove(id) {
            self.release_chain(target);
        }
    }

    /// The rules of a chain of policies. Acquires their sets.
    fn compile_chain(&mut self, id: ChainId, key: &ChainKey) -> Vec<Rule> {
        match key {
            ChainKey::Policy { direction, policy } => {
                let policy = PolicyRef::Network(policy.clone());
                let drafts = if self.refused.contains_key(&policy) {
                    Vec::new()
                } else {
                    self.drafts(&policy, *direction)
                };
                drafts.into_iter().map(|draft| self.finish(draft)).collect()
            }
            ChainKey::Tier { direction, policies, audit, .. } => {
                let mut drafts: Vec<Draft> = Vec::new();
                for name in policies {
                    let policy = PolicyRef::Cluster(name.clone());
                    match self.policies.get(&policy).map(|row| &row.policy) {
                        Some(Policy::Cluster(there)) if self.refused.contains_key(&policy) => {
                            drafts.extend(translate::cluster_rules(&there.stub(), *direction));
                        }
                        _ => drafts.extend(self.drafts(&policy, *direction)),
                    }
                }
                let rules = drafts.into_iter().map(|draft| self.finish(draft));
                if *audit { rules.map(audited).collect() } else { rules.collect() }
            }
            ChainKey::Entry { policies, audit, .. } => self.compile_entry(id, policies, *audit),
        }
    }

    /// The rules of an entry chain. A chain without rules decides nothing, and needs no jump.
    fn compile_entry(&self, id: ChainId, policies: &AppliedPolicies, audit: bool) -> Vec<Rule> {
        let always =
            |verdict, origin| Rule { peers: None, ports: PortMatch::Any, verdict, origin, audit: false };
        let targets = self.jumps.targets(id).iter().filter(|target| !self.is_empty_chain(**target));
        let mut rules: Vec<Rule> =
            targets.map(|target| always(Verdict::Jump(*target), Origin::Structure)).collect();
        if policies.unknown || !policies.network.is_empty() {
            let rule = always(Verdict::Drop, Origin::Isolation);
            // A policy of the Admin tier may select the pod.
            let is_admins = policies.unknown && !policies.admin.is_empty();
            rules.push(if audit && !is_admins { audited(rule) } else { rule });
        }
        rules
    }

    fn finish(&mut self, draft: Draft) -> Rule {
        let ports = match draft.ports {
            PortDraft::Any => PortMatch::Any,
            PortDraft::Numbered { protocol, ports } => {
                let ports = match ports {
                    NumbersDraft::Every => PortNumbers::Every,
                    NumbersDraft::Range(first, last) => PortNumbers::Range(first, last),
                    NumbersDraft::Set(key) => PortNumbers::Set(self.acquire_set(key)),
                };
                PortMatch::Numbered { protocol, ports }
            }
            PortDraft::Named(key) => PortMatch::Named(self.acquire_set(key)),
        };
        let peers = draft.peers.map(|key| self.acquire_set(key));
        Rule { peers, ports, verdict: draft.verdict, origin: draft.origin, audit: false }
    }

    fn acquire_set(&mut self, key: Arc<SetKey>) -> SetId {
        let (id, is_new) = self.sets.acquire(&self.world, key);
        if is_new {
            self.pending.create_set(id);
        }
        id
    }

    fn release_set(&mut self, id: SetId) {
        if self.sets.release(id) {
            self.pending.remove_set(id);
        }
    }
}

/// The chains of the policies of an entry chain, in the order of evaluation. Other chains have none.
fn targets(key: &ChainKey) -> Vec<ChainKey> {
    let ChainKey::Entry { direction, policies, audit } = key else { return Vec::new() };
    let (direction, audit) = (*direction, *audit);
    if policies.unknown {
        return Vec::new();
    }
    let tier = |tier, policies: &[Arc<str>]| {
        // Who may change a Namespace must not lift the Admin tier for it.
        let audit = audit && tier != Tier::Admin;
        let key = ChainKey::Tier { direction, tier, policies: policies.to_vec(), audit };
        (!policies.is_empty()).then_some(key)
    };
    let network =
        policies.network.iter().map(|policy| ChainKey::Policy { direction, policy: policy.clone() });
    let (admin, baseline) = (tier(Tier::Admin, &policies.admin), tier(Tier::Baseline, &policies.baseline));
    admin.into_iter().chain(network).chain(baseline).collect()
}

/// The elements that leave sets until a refused policy is counted again: with this many elements,
/// fewer cannot make it small.
fn pause(elements: usize, few: usize, sets: usize) -> usize {
    (elements.saturating_sub(few).max(few / 8) / sets.max(1)).max(1)
}

/// The policies whose rules a chain has. An entry chain has none.
fn policies_with_rules(key: &ChainKey) -> Vec<PolicyRef> {
    match key {
        ChainKey::Policy { policy, .. } => vec![PolicyRef::Network(policy.clone())],
        ChainKey::Tier { policies, .. } => policies.iter().cloned().map(PolicyRef::Cluster).collect(),
        ChainKey::Entry { .. } => Vec::new(),
    }
}

/// The rule of an audited Namespace: it reports a packet instead of dropping it. The Admin tier has none.
fn audited(rule: Rule) -> Rule {
    match rule.verdict {
        Verdict::Drop => Rule { verdict: Verdict::Accept, audit: true, ..rule },
        _ => rule,
    }
}
