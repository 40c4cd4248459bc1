//! The reader of `policy.networking.k8s.io/v1beta1` ClusterNetworkPolicies.

use std::sync::Arc;

use serde_json::Value;

use super::Read;
use super::field::{Field, Reader};
use super::types::{
    Action, ClusterPeer, ClusterPods, ClusterPolicy, ClusterPort, ClusterRule, ClusterSubject, Direction,
    Tier,
};
use crate::service::Protocol;

const NO_POLICY: &str = "the policy selects no pod";
const NO_RULE: &str = "this rule matches nothing";
const DENY: &str = "this rule denies everything";

/// The highest `priority`.
const MAX_PRIORITY: u16 = 1000;
/// Peers that this version does not support. Upstream has them in its experimental channel.
const UNSUPPORTED_PEERS: [&str; 2] = ["nodes", "domainNames"];

/// Reads the `spec` of a ClusterNetworkPolicy.
pub fn read_cluster_policy(name: Arc<str>, spec: &Value) -> Read<ClusterPolicy> {
    let mut reader = Reader::default();
    let spec = Field::root("spec", spec);
    let fields = reader.mapping(&spec, &["tier", "priority", "subject", "ingress", "egress"], NO_POLICY);
    let is_known = fields.is_some();
    // Each part is read, for the faults of all.
    let tier = if spec.value.is_object() { tier(&mut reader, &spec) } else { None };
    let priority = if spec.value.is_object() { priority(&mut reader, &spec) } else { None };
    let subject = if spec.value.is_object() { subject(&mut reader, &spec) } else { None };
    let policy = ClusterPolicy {
        name,
        // Without a place in the order of evaluation, the policy selects nothing.
        subject: match (is_known, tier, priority, subject) {
            (true, Some(_), Some(_), Some(pods)) => ClusterSubject::Pods(pods),
            _ => ClusterSubject::Unknown,
        },
        tier: tier.unwrap_or(Tier::Baseline),
        priority: priority.unwrap_or(MAX_PRIORITY),
        ingress: rules(&mut reader, &spec, Direction::Ingress),
        egress: rules(&mut reader, &spec, Direction::Egress),
    };
    Read { object: policy, faults: reader.into_faults(), above_bound: false }
}

fn tier(reader: &mut Reader, spec: &Field<'_>) -> Option<Tier> {
    let Some(tier) = spec.get("tier") else {
        reader.fault(spec, "has no tier: write Admin or Baseline", NO_POLICY);
        return None;
    };
    match tier.value.as_str() {
        Some("Admin") => Some(Tier::Admin),
        Some("Baseline") => Some(Tier::Baseline),
        _ => {
            reader.fault(&tier, format!("{tier} is no tier: write Admin or Baseline"), NO_POLICY);
            None
        }
    }
}

fn priority(reader: &mut Reader, spec: &Field<'_>) -> Option<u16> {
    let Some(priority) = spec.get("priority") else {
        reader.fault(spec, "has no priority: write 0 to 1000", NO_POLICY);
        return None;
    };
    let number = priority.value.as_u64().and_then(|number| u16::try_from(number).ok());
    let number = number.filter(|number| *number <= MAX_PRIORITY);
    if number.is_none() {
        reader.fault(&priority, format!("{priority} is no priority: write 0 to 1000"), NO_POLICY);
    }
    number
}

fn subject(reader: &mut Reader, spec: &Field<'_>) -> Option<ClusterPods> {
    let Some(subject) = spec.get("subject") else {
        reader.fault(spec, "has no subject: write namespaces or pods", NO_POLICY);
        return None;
    };
    match reader.only(&subject, &["namespaces", "pods"], NO_POLICY)? {
        ("namespaces", field) => namespaces(reader, &field, NO_POLICY),
        (_, field) => pods(reader, &field, NO_POLICY),
    }
}

fn namespaces(reader: &mut Reader, field: &Field<'_>, effect: &str) -> Option<ClusterPods> {
    let namespaces = reader.selector(field, effect)?;
    Some(ClusterPods { namespaces, ..ClusterPods::default() })
}

fn pods(reader: &mut Reader, field: &Field<'_>, effect: &str) -> Option<ClusterPods> {
    reader.mapping(field, &["namespaceSelector", "podSelector"], effect)?;
    let Some(pods) = field.get("podSelector") else {
        reader.fault(field, "has no podSelector: write {} for every pod", effect);
        return None;
    };
    let pods = reader.selector(&pods, effect);
    let namespaces = match field.get("namespaceSelector") {
        Some(namespaces) => reader.selector(&namespaces, effect)?,
        None => Default::default(),
    };
    Some(ClusterPods { namespaces, pods: pods? })
}

/// A rule with a fault stays in the list, because explanations name it by its index.
fn rules(reader: &mut Reader, spec: &Field<'_>, direction: Direction) -> Vec<ClusterRule> {
    let name = match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    };
    let Some(rules) = spec.get(name) else { return Vec::new() };
    match reader.list(&rules, DENY) {
        Some(rules) => rules.iter().map(|field| rule(reader, field, direction)).collect(),
        None => vec![unknown(Action::Deny)],
    }
}

/// A rule that fails closed.
fn unknown(action: Action) -> ClusterRule {
    ClusterRule { action, peers: vec![ClusterPeer::Unknown], ports: Vec::new() }
}

fn rule(reader: &mut Reader, field: &Field<'_>, direction: Direction) -> ClusterRule {
    let action = field.get("action");
    let action = match action.as_ref().and_then(|action| action.value.as_str()) {
        Some("Accept") => Action::Accept,
        Some("Deny") => Action::Deny,
        Some("Pass") => Action::Pass,
        _ => {
            match &action {
                Some(action) => {
                    reader.fault(action, format!("{action} is no action: write Accept, Deny or Pass"), DENY);
                }
                None => reader.fault(field, "has no action: write Accept, Deny or Pass", DENY),
            }
            return unknown(Action::Deny);
        }
    };
    let effect = if action == Action::Accept { NO_RULE } else { DENY };
    known_rule(reader, field, direction, action, effect).unwrap_or_else(|| unknown(action))
}

fn known_rule(
    reader: &mut Reader,
    field: &Field<'_>,
    direction: Direction,
    action: Action,
    effect: &str,
) -> Option<ClusterRule> {
    let peers = match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    let is_known = reader.mapping(field, &["name", "action", peers, "protocols"], effect).is_some();
    let mut rule = ClusterRule { action, peers: Vec::new(), ports: Vec::new() };
    if let Some(peers) = field.get(peers) {
        for entry in reader.list(&peers, effect)? {
            rule.peers.push(peer(reader, &entry, direction, effect).unwrap_or(ClusterPeer::Unknown));
        }
    }
    if rule.peers.is_empty() {
        reader.fault(field, format!("has no peer: write at least one into {peers}"), effect);
    }
    if let Some(protocols) = field.get("protocols") {
        for entry in reader.list(&protocols, effect)? {
            rule.ports.push(port(reader, &entry, effect).unwrap_or(ClusterPort::Unknown));
        }
    }
    is_known.then_some(rule)
}

fn peer(reader: &mut Reader, field: &Field<'_>, direction: Direction, effect: &str) -> Option<ClusterPeer> {
    if let Some(unsupported) = UNSUPPORTED_PEERS.iter().find_map(|key| field.get(key)) {
        let message =
            "this version does not support this peer: write namespaces, pods or, for egress, networks";
        reader.fault(&unsupported, message, effect);
        return None;
    }
    let known: &[&str] = match direction {
        Direction::Ingress => &["namespaces", "pods"],
        Direction::Egress => &["namespaces", "pods", "networks"],
    };
    match reader.only(field, known, effect)? {
        ("namespaces", field) => namespaces(reader, &field, effect).map(ClusterPeer::Pods),
        ("pods", field) => pods(reader, &field, effect).map(ClusterPeer::Pods),
        (_, field) => {
            let mut networks = Vec::new();
            for entry in reader.list(&field, effect)? {
                let prefix = reader.prefix(&entry, effect)?;
                if prefix != prefix.trunc() {
                    let message = format!("{entry} has bits after its length: write {}", prefix.trunc());
                    reader.fault(&entry, message, effect);
                    return None;
                }
                networks.push(prefix);
            }
            if networks.is_empty() {
                reader.fault(&field, "is empty: write a prefix, such as 10.0.0.0/8", effect);
                return None;
            }
            Some(ClusterPeer::Networks(networks))
        }
    }
}

fn port(reader: &mut Reader, field: &Field<'_>, effect: &str) -> Option<ClusterPort> {
    let (key, value) = reader.only(field, &["tcp", "udp", "sctp", "destinationNamedPort"], effect)?;
    let protocol = match key {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        _ => {
            let name = reader.text(&value, effect)?;
            if name.is_empty() {
                reader.fault(&value, "is empty: write the name of a port", effect);
                return None;
            }
            return Some(ClusterPort::Named(name.into()));
        }
    };
    // Upstream requires a field here: an empty mapping has lost one that this version does not know.
    let (_, port) = reader.only(&value, &["destinationPort"], effect)?;
    let range = match reader.only(&port, &["number", "range"], effect)? {
        ("number", number) => {
            let port = reader.port(&number, effect)?;
            (port, port)
        }
        (_, range) => port_range(reader, &range, effect)?,
    };
    Some(ClusterPort::Numbered { protocol, range: Some(range) })
}

fn port_range(reader: &mut Reader, field: &Field<'_>, effect: &str) -> Option<(u16, u16)> {
    reader.mapping(field, &["start", "end"], effect)?;
    let (Some(start), Some(end)) = (field.get("start"), field.get("end")) else {
        reader.fault(field, "is incomplete: write start and end", effect);
        return None;
    };
    let (first, last) = (reader.port(&start, effect), reader.port(&end, effect));
    let (first, last) = (first?, last?);
    if last < first {
        reader.fault(&end, format!("{end} is less than start: write {start} to 65535"), effect);
        return None;
    }
    Some((first, last))
}
