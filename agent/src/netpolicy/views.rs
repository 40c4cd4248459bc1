//! Views of the policies in force: lists, and the decision about one packet.

use std::collections::BTreeMap;
use std::net::IpAddr;

use trunkline_api::control::{
    PoliciesView, PolicyAnswer, PolicyDecision, PolicyDirection, PolicyQuestion, PolicyRuleView,
    PolicySummary, PolicyView,
};
use trunkline_datapath::nft::policy::PolicyCount;
use trunkline_datapath::plan::policy::CounterId;

use super::engine::Engine;
use super::evaluate::{Decision, Packet};
use super::input::{Direction, ObjectKey, Tier};
use super::kernel::PolicyRef;
use super::rules::Origin;

/// The direction in the form of the views.
pub fn direction(direction: Direction) -> PolicyDirection {
    match direction {
        Direction::Ingress => PolicyDirection::Ingress,
        Direction::Egress => PolicyDirection::Egress,
    }
}

/// All policies with their counters.
pub(super) fn view(
    engine: &Engine,
    summary: PolicySummary,
    counts: &BTreeMap<CounterId, PolicyCount>,
) -> PoliciesView {
    let mut rules: BTreeMap<PolicyRef, Vec<PolicyRuleView>> = BTreeMap::new();
    let mut keys: Vec<_> = engine.counters().into_iter().collect();
    keys.sort_by(|(_, a), (_, b)| {
        (a.direction, a.rule.is_none(), a.rule).cmp(&(b.direction, b.rule.is_none(), b.rule))
    });
    for (id, key) in keys {
        let count = counts.get(&id).copied().unwrap_or_default();
        rules.entry(key.policy).or_default().push(PolicyRuleView {
            direction: direction(key.direction),
            rule: key.rule,
            denied: key.denied,
            audit: key.audit,
            packets: count.packets,
            octets: count.octets,
        });
    }
    let mut selected = engine.selected();
    let mut refusals = engine.refusals();
    let mut policies: Vec<(u8, PolicyView)> = Vec::new();
    for (policy, facts) in engine.policies() {
        let (namespace, name) = match policy {
            PolicyRef::Network(key) => (Some(key.namespace.to_string()), key.name.to_string()),
            PolicyRef::Cluster(name) => (None, name.to_string()),
        };
        let (rank, tier) = match facts.tier {
            Some((Tier::Admin, _)) => (0, "admin"),
            None => (1, "network"),
            Some((Tier::Baseline, _)) => (2, "baseline"),
        };
        let pods = selected.remove(policy).unwrap_or_default();
        policies.push((
            rank,
            PolicyView {
                namespace,
                name,
                tier: tier.to_owned(),
                priority: facts.tier.map(|(_, priority)| priority),
                pods: pods.iter().map(ToString::to_string).collect(),
                rules: rules.remove(policy).unwrap_or_default(),
                faults: refusals.remove(policy).into_iter().chain(facts.faults.iter().cloned()).collect(),
            },
        ));
    }
    policies.sort_by(|(a, left), (b, right)| {
        let key = |view: &PolicyView| (view.priority, view.namespace.clone(), view.name.clone());
        a.cmp(b).then_with(|| key(left).cmp(&key(right)))
    });
    PoliciesView { summary, policies: policies.into_iter().map(|(_, view)| view).collect() }
}

/// The decisions about a packet in both directions. Only pods of this node have rules here.
pub(super) fn explain(engine: &Engine, question: &PolicyQuestion) -> PolicyAnswer {
    let PolicyQuestion { pod, peer, port } = question;
    PolicyAnswer {
        from_pod: decisions(engine, *pod, *peer, *port),
        to_pod: decisions(engine, *peer, *pod, *port),
    }
}

fn decisions(
    engine: &Engine,
    source: IpAddr,
    destination: IpAddr,
    port: Option<(trunkline_api::service::Protocol, u16)>,
) -> Vec<PolicyDecision> {
    let (from, to) = (engine.pod_at(source), engine.pod_at(destination));
    let packet = Packet {
        source,
        destination,
        protocol: port.map(|(protocol, _)| protocol),
        port: port.map(|(_, port)| port).unwrap_or_default(),
        established: false,
        from_node: false,
        same_pod: from.is_some() && from == to,
    };
    let ends = [(Direction::Egress, from, source), (Direction::Ingress, to, destination)];
    let decide = |(of, pod, address): (Direction, Option<ObjectKey>, IpAddr)| {
        let (decision, policies) = engine.explain(address, of, &packet)?;
        Some(PolicyDecision {
            pod: pod?.to_string(),
            direction: direction(of),
            allowed: decision.accepted,
            reason: words(&decision, &packet, of, &policies),
        })
    };
    ends.into_iter().filter_map(decide).collect()
}

/// The decision in words.
fn words(decision: &Decision, packet: &Packet, of: Direction, policies: &[PolicyRef]) -> String {
    let field = direction(of).name();
    let verb = if decision.accepted { "allows" } else { "denies" };
    match &decision.origin {
        None if packet.same_pod => "a pod reaches itself always".to_owned(),
        None if policies.is_empty() => format!("no policy selects the pod for {field}"),
        None => format!("no rule of {} decides, and the default is to accept", names(policies)),
        Some(Origin::Isolation) => {
            let mode =
                if decision.audit { " (the Namespace is in audit mode: the packet passes)" } else { "" };
            let isolates = |policy: &&PolicyRef| matches!(policy, PolicyRef::Network(_));
            let policies: Vec<PolicyRef> = policies.iter().filter(isolates).cloned().collect();
            format!("no {field} rule of {} allows the packet{mode}", names(&policies))
        }
        Some(_) if decision.audit => {
            format!(
                "{} denies the packet, and the Namespace is in audit mode: the packet passes",
                origin(decision, field)
            )
        }
        Some(_) => format!("{} {verb} the packet", origin(decision, field)),
    }
}

fn names(policies: &[PolicyRef]) -> String {
    policies.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn origin(decision: &Decision, field: &str) -> String {
    match &decision.origin {
        Some(Origin::Network { policy, rule }) => format!("spec.{field}[{rule}] of NetworkPolicy {policy}"),
        Some(Origin::Cluster { policy, rule }) => {
            format!("spec.{field}[{rule}] of ClusterNetworkPolicy {policy}")
        }
        Some(Origin::Isolation | Origin::Structure) | None => format!("the isolation for {field}"),
    }
}
