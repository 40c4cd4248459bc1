//! The budget of the policies that the agent stores, whether they select a pod of this node or not.
//!
//! The reader has replaced each policy above its own bound
//! ([`trunkline_api::network_policy::BOUND`]). Of a list, the largest policies of a Namespace above
//! its bound become stubs. Of changes, the changed policy does: those in force stay. If all policies
//! are above the bound of the node, the Namespace with the most pays.
//!
//! The agent does not keep the rules of a stub. The next change of the policy, or the next list,
//! tries it again.

use std::collections::{BTreeMap, HashMap};

use trunkline_api::network_policy::{Excess, PolicyWeight};

use super::budget::Tenant;
use super::kernel::PolicyRef;

/// The bound of the policies of one Namespace, and of all ClusterNetworkPolicies.
const TENANT: PolicyWeight = PolicyWeight { entries: 40_000, octets: 2 << 20 };
/// The bound of all policies.
const NODE: PolicyWeight = PolicyWeight { entries: 200_000, octets: 16 << 20 };

/// Why a policy becomes a stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Surplus {
    excess: Excess,
    of_node: bool,
}

/// The fault, and the fix.
impl std::fmt::Display for Surplus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let whose = if self.of_node {
            "of the cluster, and its Namespace has the most"
        } else {
            "of its Namespace, or of all ClusterNetworkPolicies"
        };
        write!(
            f,
            "over the budget {whose}: {}: use fewer policies, peers or ports, and apply this policy again",
            self.excess
        )
    }
}

/// The weights of the policies that are no stubs.
#[derive(Debug, Default)]
pub(super) struct StoredPolicies {
    weights: BTreeMap<PolicyRef, PolicyWeight>,
    tenants: HashMap<Tenant, PolicyWeight>,
    total: PolicyWeight,
}

impl StoredPolicies {
    /// These policies exist, and no others of their kind. Returns those that become stubs.
    pub(super) fn set_list(
        &mut self,
        is_of_kind: impl Fn(&PolicyRef) -> bool,
        listed: impl Iterator<Item = (PolicyRef, PolicyWeight)>,
    ) -> BTreeMap<PolicyRef, Surplus> {
        let gone: Vec<PolicyRef> = self.weights.keys().filter(|policy| is_of_kind(policy)).cloned().collect();
        gone.iter().for_each(|policy| self.remove(policy));
        listed.for_each(|(policy, weight)| self.insert(policy, weight));
        let mut surplus = BTreeMap::new();
        let above = self.tenants.iter().filter(|(_, weight)| weight.excess(TENANT).is_some());
        for tenant in above.map(|(tenant, _)| tenant.clone()).collect::<Vec<_>>() {
            let mut policies = self.policies_of(&tenant);
            while let Some(excess) = self.tenants.get(&tenant).and_then(|weight| weight.excess(TENANT)) {
                let Some(policy) = policies.pop() else { break };
                self.remove(&policy);
                surplus.insert(policy, Surplus { excess, of_node: false });
            }
        }
        self.reduce_node(&mut surplus);
        surplus
    }

    /// A policy is new or changed. Returns the policies that become stubs: it, or others.
    pub(super) fn set(&mut self, policy: &PolicyRef, weight: PolicyWeight) -> BTreeMap<PolicyRef, Surplus> {
        self.remove(policy);
        self.insert(policy.clone(), weight);
        let mut surplus = BTreeMap::new();
        let of_tenant = self.tenants.get(&Tenant::from(policy)).and_then(|weight| weight.excess(TENANT));
        if let Some(excess) = of_tenant {
            self.remove(policy);
            surplus.insert(policy.clone(), Surplus { excess, of_node: false });
        }
        self.reduce_node(&mut surplus);
        surplus
    }

    /// A policy is gone.
    pub(super) fn remove(&mut self, policy: &PolicyRef) {
        let Some(weight) = self.weights.remove(policy) else { return };
        let tenant = Tenant::from(policy);
        if let Some(sum) = self.tenants.get_mut(&tenant) {
            *sum -= weight;
            if *sum == PolicyWeight::default() {
                self.tenants.remove(&tenant);
            }
        }
        self.total -= weight;
    }

    fn insert(&mut self, policy: PolicyRef, weight: PolicyWeight) {
        *self.tenants.entry(Tenant::from(&policy)).or_default() += weight;
        self.total += weight;
        self.weights.insert(policy, weight);
    }

    /// The policies of a tenant, the largest last.
    fn policies_of(&self, tenant: &Tenant) -> Vec<PolicyRef> {
        let of_tenant = self.weights.iter().filter(|(policy, _)| Tenant::from(*policy) == *tenant);
        let mut policies: Vec<(PolicyWeight, &PolicyRef)> =
            of_tenant.map(|(policy, weight)| (*weight, policy)).collect();
        policies.sort();
        policies.into_iter().map(|(_, policy)| policy.clone()).collect()
    }

    fn reduce_node(&mut self, surplus: &mut BTreeMap<PolicyRef, Surplus>) {
        while let Some(excess) = self.total.excess(NODE) {
            let largest = self.tenants.iter().max_by_key(|(tenant, weight)| (**weight, *tenant));
            let Some(tenant) = largest.map(|(tenant, _)| tenant.clone()) else { return };
            let Some(policy) = self.policies_of(&tenant).pop() else { return };
            self.remove(&policy);
            surplus.insert(policy, Surplus { excess, of_node: true });
        }
    }
}

#[cfg(test)]
mod tests;
