//! Network policies for `trunkline policies` and for the path of a packet.

use trunkline_api::attach::{Code, Failure};
use trunkline_api::control::{PoliciesView, PolicyAnswer, PolicyQuestion};

use super::{Observer, stopping};
use crate::netpolicy::Policies;

impl Observer {
    /// All policies with the counters of their rules.
    ///
    /// # Errors
    /// This node enforces no policies.
    pub async fn policies(&self) -> Result<PoliciesView, Failure> {
        self.enforcing()?.view().await.ok_or_else(stopping)
    }

    /// The decisions about a packet.
    ///
    /// # Errors
    /// This node enforces no policies.
    pub async fn policy_decision(&self, question: PolicyQuestion) -> Result<PolicyAnswer, Failure> {
        self.enforcing()?.explain(question).await.ok_or_else(stopping)
    }

    fn enforcing(&self) -> Result<&Policies, Failure> {
        self.policies.as_ref().ok_or_else(|| {
            Failure::new(
                Code::NotAvailable,
                "this node enforces no network policies: set networkPolicies.enabled: true in agent.yaml",
            )
        })
    }
}
