//! The state of one address on this node.

use smallvec::SmallVec;
use tokio::time::Instant;
use trunkline_api::control::WithheldReason;
use trunkline_api::service::{PortKey, TrafficPolicy};

use super::{Collected, Counted};
use crate::services::advertisements::Names;
use crate::services::decide::{Before, Decision, MemberRules};

/// An address on this node.
#[derive(Debug)]
pub(in crate::services) struct AddressRow {
    pub(in crate::services) state: State,
    /// The start of the state.
    pub(in crate::services) since: Instant,
    pub(super) deadline: Option<Instant>,
    /// The advertisements that apply, or those that the address is advertised for.
    pub(in crate::services) names: Names,
    /// Ports with rules since the address is advertised, ascending.
    pub(super) forwarded: SmallVec<[PortKey; 2]>,
    /// Whether the address is advertised by the policy Cluster without an endpoint on this node.
    pub(super) is_remote: bool,
    /// Whether the address is of an L2 pool.
    pub(in crate::services) is_l2: bool,
    /// Whether this node could serve the address of an L2 pool, and does not answer for it.
    pub(super) is_standby: bool,
    pub(super) weight: u32,
    pub(super) weight_at: Instant,
    /// The time since which every port can be delivered, as far as endpoints matter.
    pub(super) deliverable_since: Option<Instant>,
    /// The start of a difference between rules and endpoints, and whether it was reported.
    pub(super) late: Option<(Instant, bool)>,
    /// What the counts have of it.
    pub(super) counted: Option<Counted>,
    /// The hash of its state in the cache; none if the cache does not have it.
    pub(super) cached: Option<u64>,
}

/// The state of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::services) enum State {
    /// Not advertised.
    Withheld(WithheldReason),
    /// Advertised.
    Advertised,
    /// Advertised with GRACEFUL_SHUTDOWN.
    ShuttingDown {
        /// The reason.
        reason: WithheldReason,
        /// The time of its withdrawal.
        withdraw_at: Instant,
    },
}

impl State {
    pub(in crate::services) fn is_active(self) -> bool {
        !matches!(self, State::Withheld(_))
    }

    /// The reason for which it is not advertised, or will not be.
    pub(in crate::services) fn reason(self) -> Option<WithheldReason> {
        match self {
            State::Advertised => None,
            State::Withheld(reason) | State::ShuttingDown { reason, .. } => Some(reason),
        }
    }

    pub(super) fn before(self) -> Before {
        match self {
            State::Withheld(_) => Before::Withheld,
            State::Advertised => Before::Advertised,
            State::ShuttingDown { withdraw_at, .. } => Before::ShuttingDown { withdraw_at },
        }
    }
}

impl AddressRow {
    pub(super) fn new(now: Instant) -> AddressRow {
        AddressRow {
            state: State::Withheld(WithheldReason::NotKnown),
            since: now,
            deadline: None,
            names: Names::new(),
            forwarded: SmallVec::new(),
            is_remote: false,
            is_l2: false,
            is_standby: false,
            weight: 0,
            weight_at: now,
            deliverable_since: None,
            late: None,
            counted: None,
            cached: None,
        }
    }

    /// The state in which this node is for its neighbours.
    pub(in crate::services) fn shown(&self) -> State {
        if self.is_standby { State::Withheld(WithheldReason::OtherHolder) } else { self.state }
    }

    /// Takes over a decision.
    pub(super) fn take(&mut self, decision: Decision, collected: &Collected, now: Instant) {
        let (state, names) = match decision {
            Decision::Keep => return,
            Decision::Advertise => (State::Advertised, &collected.applied.names),
            Decision::Withhold(reason) => (State::Withheld(reason), &collected.applied.names),
            // The prefixes stay those of the advertisements that applied.
            Decision::ShutDown { reason, withdraw_at } => {
                let applied = collected.applied.barrier.is_none();
                let names = if applied { collected.applied.names.clone() } else { self.names.clone() };
                self.names = names;
                return self.enter(State::ShuttingDown { reason, withdraw_at }, collected, now);
            }
        };
        self.names.clone_from(names);
        self.enter(state, collected, now);
    }

    fn enter(&mut self, state: State, collected: &Collected, now: Instant) {
        if std::mem::discriminant(&self.state) != std::mem::discriminant(&state) {
            self.since = now;
        }
        self.state = state;
        let members = || collected.members.iter().map(|member| (member.port, &member.facts));
        match state {
            State::Advertised => {
                self.is_remote =
                    members().any(|(_, of)| of.policy == TrafficPolicy::Cluster && of.local_ready == 0);
            }
            State::ShuttingDown { .. } => {}
            State::Withheld(_) => {
                self.is_remote = false;
                self.forwarded.clear();
                return;
            }
        }
        // A port without any endpoint counts as new when it has one again.
        let served = members().filter(|(_, facts)| facts.is_served());
        let forwarded = served.filter(|(port, facts)| {
            facts.rules == MemberRules::Forwarded || self.forwarded.binary_search(port).is_ok()
        });
        let mut forwarded: SmallVec<[PortKey; 2]> = forwarded.map(|(port, _)| port).collect();
        forwarded.sort_unstable();
        forwarded.dedup();
        self.forwarded = forwarded;
    }
}
