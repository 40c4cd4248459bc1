//! The decision: whether this node advertises a service address now.
//!
//! A node advertises an address only while it can deliver the packets: the address is wanted, an
//! endpoint exists, the service proxy has rules for it, and the node takes part. [`decide`] is a
//! pure function of these facts, so a test compares every combination with a second evaluator.
//!
//! ```text
//!           all checks pass              soft reason                deadline, or hard reason
//! Withheld ────────────────► Advertised ────────────► ShuttingDown ──────────────────────────► Withheld
//!                             │      ▲                     │
//!           ◄── hard reason ──┘      └──── reason ends ────┘
//! ```
//!
//! **Hard** reasons: packets would be lost, or the address is not wanted. The node withdraws at
//! once.
//! **Soft** reasons: the node still delivers, and other nodes should do it. The node advertises
//! GRACEFUL_SHUTDOWN (RFC 8326) first, and withdraws later.
//!
//! The checks have an order, and the reason shown is the first one that fails.

use std::time::Duration;

use tokio::time::Instant;
use trunkline_api::control::WithheldReason;

use super::{NodeStage, ProxyHealth, TrafficPolicy};

/// The facts of one address on this node.
#[derive(Clone, Copy, Debug)]
pub struct AddressFacts<'a> {
    /// Whether Services, EndpointSlices, the plan and the Node are known. Before that, the other
    /// facts are those of the last run, as far as the node itself confirms them.
    pub known: bool,
    /// The decision before this one.
    pub before: Before,
    /// The node.
    pub node: NodeFacts,
    /// Whether an advertisement selects the address; if not, the reason.
    pub selection: Result<(), WithheldReason>,
    /// The ports of the selected Services that have the address.
    pub members: &'a [MemberFacts],
    /// The service proxy.
    pub proxy: ProxyFacts,
    /// The time between GRACEFUL_SHUTDOWN and withdrawal.
    pub graceful_shutdown: Duration,
}

/// The decision before this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// The address is not advertised.
    Withheld,
    /// The address is advertised, also by the last run.
    Advertised,
    /// The address is advertised with GRACEFUL_SHUTDOWN.
    ShuttingDown {
        /// The time of its withdrawal.
        withdraw_at: Instant,
    },
}

/// The node's part of the facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// The stage of a drain.
    pub stage: NodeStage,
    /// Whether a BGP network is on this node, or the address needs none.
    pub has_bgp: bool,
    /// The reason for which no advertisement of the address applies to this node.
    pub barrier: Option<NodeBarrier>,
}

/// A reason for which an advertisement does not apply to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeBarrier {
    /// The node has the label `node.kubernetes.io/exclude-from-external-load-balancers`.
    Excluded,
    /// The node is cordoned.
    Cordoned,
    /// `nodeSelector` does not select the node.
    NotSelected,
}

impl NodeBarrier {
    /// The reason to show.
    pub fn reason(self) -> WithheldReason {
        match self {
            NodeBarrier::Excluded => WithheldReason::NodeExcluded,
            NodeBarrier::Cordoned => WithheldReason::NodeCordoned,
            NodeBarrier::NotSelected => WithheldReason::NodeNotSelected,
        }
    }
}

/// One port of one Service with the address. Its endpoints are those of the address's family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberFacts {
    /// The traffic policy that applies to the address.
    pub policy: TrafficPolicy,
    /// Whether the policy was Cluster when the address was advertised without a local endpoint.
    pub was_cluster: bool,
    /// Whether any node has a ready endpoint. Local ones count only with a host route.
    pub any_ready: bool,
    /// Whether any node has an endpoint that is serving and terminating, counted alike.
    pub any_terminating: bool,
    /// Ready endpoints on this node with a host route.
    pub local_ready: u32,
    /// Endpoints on this node with a host route that are serving and terminating.
    pub local_terminating: u32,
    /// Endpoints on this node that are ready, or serving and terminating, without a host route.
    pub local_unrouted: u32,
    /// The service proxy's rules for the port.
    pub rules: MemberRules,
}

impl MemberFacts {
    /// Whether any node can serve the port.
    pub fn is_served(&self) -> bool {
        self.any_ready || self.any_terminating
    }

    /// Whether a packet that arrives here has an endpoint.
    pub fn is_deliverable(&self) -> bool {
        match self.policy {
            TrafficPolicy::Cluster => self.is_served(),
            TrafficPolicy::Local => self.local_ready + self.local_terminating > 0,
        }
    }
}

/// The service proxy's rules for a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberRules {
    /// A rule forwards its packets.
    Forwarded,
    /// No rule forwards its packets, and none did since the address is advertised: a new port.
    Lagging,
    /// A rule drops or rejects its packets.
    Blocked,
    /// No rule matches its packets.
    Missing,
    /// Rules cannot be seen.
    NotVisible {
        /// They count as current from this time on.
        settles_at: Instant,
    },
}

/// The service proxy's part of the facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyFacts {
    /// Its health.
    pub health: ProxyHealth,
    /// Whether endpoints changed while it was away.
    pub stale: Stale,
    /// The time for which the rules of an absent proxy count as current.
    pub restart: Duration,
}

/// How far the rules of an absent service proxy are out of date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stale {
    /// No endpoint changed.
    No,
    /// Endpoints changed.
    Changed,
    /// The policy is Local, and no endpoint is left that the rules know.
    Gone,
}

/// The decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Advertise the address.
    Advertise,
    /// Advertise it with GRACEFUL_SHUTDOWN.
    ShutDown {
        /// The reason.
        reason: WithheldReason,
        /// The time of its withdrawal.
        withdraw_at: Instant,
    },
    /// Do not advertise it.
    Withhold(WithheldReason),
    /// Leave it as the last run left it: not everything is known yet.
    Keep,
}

/// A check that fails.
#[derive(Clone, Copy, Debug)]
struct Failure {
    reason: WithheldReason,
    hard: bool,
}

impl AddressFacts<'_> {
    fn is_active(&self) -> bool {
        self.before != Before::Withheld
    }
}

/// Decides. With equal facts, the result changes only at [`wakes_at`].
pub fn decide(facts: &AddressFacts<'_>, now: Instant) -> Decision {
    if !facts.known && !facts.is_active() {
        let drained = facts.node.stage == NodeStage::Withdrawn;
        return Decision::Withhold(if drained {
            WithheldReason::NodeDrained
        } else {
            WithheldReason::NotKnown
        });
    }
    let checks = [
        check_node(facts),
        check_selection(facts),
        check_endpoints(facts),
        check_rules(facts, now),
        check_health(facts, now),
    ];
    let failures = || checks.iter().flatten();
    let Some(&Failure { reason, .. }) = failures().next() else {
        return if facts.known { Decision::Advertise } else { Decision::Keep };
    };
    if !facts.is_active() || failures().any(|failure| failure.hard) {
        return Decision::Withhold(reason);
    }
    let withdraw_at = match facts.before {
        Before::ShuttingDown { withdraw_at } => withdraw_at,
        Before::Advertised | Before::Withheld => now + facts.graceful_shutdown,
    };
    if withdraw_at <= now { Decision::Withhold(reason) } else { Decision::ShutDown { reason, withdraw_at } }
}

/// The next time at which the decision can change although the facts do not.
pub fn wakes_at(facts: &AddressFacts<'_>, decision: Decision, now: Instant) -> Option<Instant> {
    let withdrawal = match decision {
        Decision::ShutDown { withdraw_at, .. } => Some(withdraw_at),
        _ => None,
    };
    let expiry = match facts.proxy.health {
        ProxyHealth::Away { since } if facts.is_active() => Some(since + facts.proxy.restart),
        _ => None,
    };
    let settled =
        facts.members.iter().filter(|_| !facts.is_active()).filter_map(|member| match member.rules {
            MemberRules::NotVisible { settles_at } => Some(settles_at),
            _ => None,
        });
    settled.chain(withdrawal).chain(expiry).filter(|at| *at > now).min()
}

fn hard(reason: WithheldReason) -> Option<Failure> {
    Some(Failure { reason, hard: true })
}

fn soft(reason: WithheldReason) -> Option<Failure> {
    Some(Failure { reason, hard: false })
}

fn check_node(facts: &AddressFacts<'_>) -> Option<Failure> {
    let NodeFacts { stage, has_bgp, barrier } = facts.node;
    if stage == NodeStage::Withdrawn {
        return hard(WithheldReason::NodeDrained);
    }
    // The other facts come from the API server.
    if !facts.known {
        return None;
    }
    if !has_bgp {
        return hard(WithheldReason::NoBgp);
    }
    barrier.and_then(|barrier| soft(barrier.reason()))
}

fn check_selection(facts: &AddressFacts<'_>) -> Option<Failure> {
    facts.selection.err().filter(|_| facts.known).and_then(hard)
}

/// A port that no node can serve is left out, unless no port can be served.
fn check_endpoints(facts: &AddressFacts<'_>) -> Option<Failure> {
    let mut served = facts.members.iter().filter(|member| member.is_served()).peekable();
    if served.peek().is_none() {
        let unrouted = facts.members.iter().any(|member| member.local_unrouted > 0);
        return hard(if unrouted { WithheldReason::NoHostRoute } else { WithheldReason::NoEndpoint });
    }
    let failures = served.filter_map(|member| match member.policy {
        TrafficPolicy::Cluster => None,
        TrafficPolicy::Local if member.local_ready > 0 => None,
        TrafficPolicy::Local if member.local_terminating > 0 => soft(WithheldReason::Terminating),
        TrafficPolicy::Local if member.local_unrouted > 0 => hard(WithheldReason::NoHostRoute),
        // The rules of the former policy still reach other nodes: they deliver until they are gone.
        TrafficPolicy::Local if member.was_cluster => soft(WithheldReason::NoLocalEndpoint),
        TrafficPolicy::Local => hard(WithheldReason::NoLocalEndpoint),
    });
    // Of several failures, a hard one decides and is shown.
    failures.reduce(|shown, next| if next.hard && !shown.hard { next } else { shown })
}

/// [`check_health`] withholds a new address while the proxy is away.
fn check_rules(facts: &AddressFacts<'_>, now: Instant) -> Option<Failure> {
    let mut rules = facts.members.iter().filter(|member| member.is_served()).map(|member| member.rules);
    if facts.is_active() {
        // An advertised address stays while the proxy adds rules for a new port.
        let lost = rules.any(|rules| matches!(rules, MemberRules::Blocked | MemberRules::Missing));
        return lost.then_some(WithheldReason::RulesBlock).and_then(hard);
    }
    // The absence of the proxy explains that its rules are missing.
    if matches!(facts.proxy.health, ProxyHealth::Unknown | ProxyHealth::Away { .. }) {
        return None;
    }
    rules.find_map(|rules| match rules {
        MemberRules::Forwarded => None,
        MemberRules::NotVisible { settles_at } if settles_at <= now => None,
        MemberRules::NotVisible { .. } => hard(WithheldReason::RulesLag),
        MemberRules::Lagging | MemberRules::Blocked | MemberRules::Missing => hard(WithheldReason::NoRules),
    })
}

fn check_health(facts: &AddressFacts<'_>, now: Instant) -> Option<Failure> {
    let ProxyFacts { health, stale, restart } = facts.proxy;
    match health {
        ProxyHealth::Up | ProxyHealth::NotChecked => None,
        ProxyHealth::Unhealthy => soft(WithheldReason::ProxyDown),
        ProxyHealth::NotEligible => soft(WithheldReason::ProxyNotEligible),
        // A new address needs a proxy that is up.
        ProxyHealth::Unknown | ProxyHealth::Away { .. } if !facts.is_active() => {
            hard(WithheldReason::ProxyDown)
        }
        ProxyHealth::Unknown => None,
        // The rules stay in the kernel when the proxy ends.
        ProxyHealth::Away { since } => match stale {
            Stale::Gone => hard(WithheldReason::ProxyDown),
            Stale::Changed => soft(WithheldReason::ProxyDown),
            Stale::No if since + restart <= now => soft(WithheldReason::ProxyDown),
            Stale::No => None,
        },
    }
}
