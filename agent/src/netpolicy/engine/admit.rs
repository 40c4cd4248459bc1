//! Policies above the budget of all stored policies become stubs, or a part of the marker of their
//! Namespace, before the compiler stores them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use trunkline_api::network_policy::PolicyWeight;

use super::{Engine, PolicyFacts};
use crate::netpolicy::coverage::AnyPolicy;
use crate::netpolicy::feed::{PolicyInput, PolicyObject};
use crate::netpolicy::input::{Change, ClusterPolicy, Direction, NetworkPolicy, ObjectKey, Tier};
use crate::netpolicy::kernel::PolicyRef;
use crate::netpolicy::stored::{Kept, PolicySize, Surplus};

/// The least cost of a change of a policy, in entries.
const LEAST_COST: usize = 20;

/// A kind of policies.
pub(super) trait Kind: Sized {
    type Key;
    const IS_CLUSTER: bool;

    fn name(&self) -> PolicyRef;
    fn name_of(key: Self::Key) -> PolicyRef;
    fn weight(&self) -> PolicyWeight;
    fn stub(&self) -> Self;
    fn isolates(&self, direction: Direction) -> bool;
    fn tier(&self) -> Option<(Tier, u16)>;
    fn into_any(self) -> AnyPolicy;

    fn size(&self) -> PolicySize {
        PolicySize {
            whole: self.weight(),
            stub: self.stub().weight(),
            isolates: Direction::ALL.map(|direction| self.isolates(direction)),
        }
    }
}

impl Kind for NetworkPolicy {
    type Key = ObjectKey;
    const IS_CLUSTER: bool = false;

    fn name(&self) -> PolicyRef {
        PolicyRef::Network(self.key.clone())
    }

    fn name_of(key: ObjectKey) -> PolicyRef {
        PolicyRef::Network(key)
    }

    fn weight(&self) -> PolicyWeight {
        NetworkPolicy::weight(self)
    }

    fn stub(&self) -> NetworkPolicy {
        NetworkPolicy::stub(self)
    }

    fn isolates(&self, direction: Direction) -> bool {
        self.applies_to(direction)
    }

    fn tier(&self) -> Option<(Tier, u16)> {
        None
    }

    fn into_any(self) -> AnyPolicy {
        AnyPolicy::Network(self)
    }
}

impl Kind for ClusterPolicy {
    type Key = Arc<str>;
    const IS_CLUSTER: bool = true;

    fn name(&self) -> PolicyRef {
        PolicyRef::Cluster(self.name.clone())
    }

    fn name_of(name: Arc<str>) -> PolicyRef {
        PolicyRef::Cluster(name)
    }

    fn weight(&self) -> PolicyWeight {
        ClusterPolicy::weight(self)
    }

    fn stub(&self) -> ClusterPolicy {
        ClusterPolicy::stub(self)
    }

    fn isolates(&self, direction: Direction) -> bool {
        !self.rules(direction).is_empty()
    }

    fn tier(&self) -> Option<(Tier, u16)> {
        Some((self.tier, self.priority))
    }

    fn into_any(self) -> AnyPolicy {
        AnyPolicy::Cluster(self)
    }
}

/// The policy of a change. None: it is a list.
fn name_of<P: Kind>(change: &Change<P::Key, PolicyObject<P>>) -> Option<PolicyRef>
where
    P::Key: Clone,
{
    match change {
        Change::Listed(_) => None,
        Change::Applied(object) => Some(object.policy.name()),
        Change::Deleted(key) => Some(P::name_of(key.clone())),
    }
}

impl Engine {
    /// Handles a change of policies. Returns what it costs: the entries that it adds, changes or removes.
    /// A policy above a bound costs little.
    pub(in crate::netpolicy) fn handle_costly(&mut self, input: PolicyInput) -> usize {
        let name = match &input {
            PolicyInput::Network(change) => name_of(change),
            PolicyInput::Cluster(change) => name_of(change),
            _ => None,
        };
        let Some(name) = name else {
            self.handle_input(input);
            return usize::MAX;
        };
        let before = self.stored.entries(&name);
        self.handle_input(input);
        before + self.stored.entries(&name) + LEAST_COST
    }

    pub(super) fn handle_policies<P: Kind>(&mut self, change: Change<P::Key, PolicyObject<P>>) {
        match change {
            Change::Listed(all) => {
                let rows = all.iter().map(|object| (object.policy.name(), object.policy.size()));
                let mut surplus = self.stored.set_list(P::IS_CLUSTER, rows);
                let listed: BTreeSet<PolicyRef> = all.iter().map(|object| object.policy.name()).collect();
                for name in self.not_listed(&listed, P::IS_CLUSTER) {
                    self.remove_policy(&name);
                }
                for object in all {
                    let own = surplus.remove(&object.policy.name());
                    self.apply_policy(object, own);
                }
                self.reduce_stored(surplus);
            }
            Change::Applied(object) => {
                let name = object.policy.name();
                let mut surplus = self.stored.set(&name, object.policy.size());
                let own = surplus.remove(&name);
                self.apply_policy(object, own);
                self.reduce_stored(surplus);
            }
            Change::Deleted(key) => {
                let name = P::name_of(key);
                self.stored.remove(&name);
                self.remove_policy(&name);
            }
        }
        self.follow_markers();
        self.follow_wish();
    }

    /// A policy is new or changed.
    fn apply_policy<P: Kind>(&mut self, object: PolicyObject<P>, surplus: Option<Surplus>) {
        let PolicyObject { mut policy, mut faults, mut above_bound, .. } = object;
        let name = policy.name();
        if let Some(reason) = surplus {
            if reason.kept == Kept::Marker {
                return self.remove_policy(&name);
            }
            policy = policy.stub();
            faults.insert(0, reason.to_string());
            above_bound = true;
        }
        match above_bound {
            true => drop(self.above_bound.insert(name.clone())),
            false => drop(self.above_bound.remove(&name)),
        }
        self.policies.insert(name.clone(), PolicyFacts { faults, tier: policy.tier() });
        self.offer(&name, policy.into_any());
    }

    /// Keeps less of policies that are there.
    fn reduce_stored(&mut self, surplus: BTreeMap<PolicyRef, Surplus>) {
        for (policy, reason) in surplus {
            if reason.kept == Kept::Marker {
                self.remove_policy(&policy);
                continue;
            }
            self.coverage.stub_pending(&policy);
            self.compiler.stub_policy(&policy);
            if let Some(facts) = self.policies.get_mut(&policy) {
                facts.faults.insert(0, reason.to_string());
                self.above_bound.insert(policy);
            }
        }
    }

    /// Puts the changed markers of Namespaces in force.
    fn follow_markers(&mut self) {
        for (name, marker) in self.stored.poll_markers() {
            match marker {
                Some((policy, fault)) => {
                    self.policies.insert(name.clone(), PolicyFacts { faults: vec![fault], tier: None });
                    self.above_bound.insert(name.clone());
                    self.offer(&name, AnyPolicy::Network(policy));
                }
                None => self.remove_policy(&name),
            }
        }
    }
}
