//! The reader of `networking.k8s.io/v1` NetworkPolicies.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::Read;
use super::field::{Field, Reader};
use super::types::{
    Direction, IpBlock, NetworkPeer, NetworkPolicy, NetworkPort, NetworkRule, ObjectKey, PortSelector,
};
use crate::service::Protocol;

const NO_EFFECT: &str = "the field has no effect";
const NO_LIST: &str = "no rule of this direction matches";
const NO_RULE: &str = "this rule matches nothing";
const NO_PEER: &str = "this peer matches nothing";
const NO_PORT: &str = "this entry matches nothing";
const NO_SUBJECT: &str = "the other conditions select the isolated pods, and no rule matches";
const NO_TYPE: &str = "this entry has no effect";

/// Maximum length of the name of a port.
const MAX_PORT_NAME: usize = 15;

/// Reads the `spec` of a NetworkPolicy. An absent spec is an empty one.
pub fn read_network_policy(key: ObjectKey, spec: &Value) -> Read<NetworkPolicy> {
    let mut reader = Reader::default();
    let empty = Value::Object(serde_json::Map::new());
    let spec = Field::root("spec", if spec.is_null() { &empty } else { spec });
    reader.mapping(&spec, &["podSelector", "policyTypes", "ingress", "egress"], NO_EFFECT);

    let (pod_selector, is_complete) = match spec.get("podSelector") {
        Some(selector) => reader.readable_selector(&selector, NO_SUBJECT),
        None => (Default::default(), true),
    };
    let mut policy = NetworkPolicy {
        key,
        pod_selector,
        policy_types: policy_types(&mut reader, &spec),
        ingress: rules(&mut reader, &spec, Direction::Ingress),
        egress: rules(&mut reader, &spec, Direction::Egress),
    };
    if !is_complete {
        policy.ingress.fill(NetworkRule { peers: vec![NetworkPeer::Unknown], ports: Vec::new() });
        policy.egress.fill(NetworkRule { peers: vec![NetworkPeer::Unknown], ports: Vec::new() });
    }
    Read { object: policy, faults: reader.into_faults(), above_bound: false }
}

fn policy_types(reader: &mut Reader, spec: &Field<'_>) -> Option<BTreeSet<Direction>> {
    let types = spec.get("policyTypes")?;
    let entries = reader.list(&types, NO_EFFECT)?;
    let directions = entries.iter().filter_map(|entry| match entry.value.as_str() {
        Some("Ingress") => Some(Direction::Ingress),
        Some("Egress") => Some(Direction::Egress),
        _ => {
            reader.fault(entry, format!("{entry} is no policy type: write Ingress or Egress"), NO_TYPE);
            None
        }
    });
    Some(directions.collect())
}

/// A rule with a fault stays in the list: the number of rules decides on the default of
/// `policyTypes`, and explanations name the rule by its index.
fn rules(reader: &mut Reader, spec: &Field<'_>, direction: Direction) -> Vec<NetworkRule> {
    let unknown = || NetworkRule { peers: vec![NetworkPeer::Unknown], ports: Vec::new() };
    let name = match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    };
    let Some(rules) = spec.get(name) else { return Vec::new() };
    match reader.list(&rules, NO_LIST) {
        Some(rules) => {
            rules.iter().map(|field| rule(reader, field, direction).unwrap_or_else(unknown)).collect()
        }
        None => vec![unknown()],
    }
}

fn rule(reader: &mut Reader, field: &Field<'_>, direction: Direction) -> Option<NetworkRule> {
    let peers = match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    let is_known = reader.mapping(field, &[peers, "ports"], NO_RULE).is_some();
    let mut rule = NetworkRule::default();
    if let Some(peers) = field.get(peers) {
        for entry in reader.list(&peers, NO_RULE)? {
            rule.peers.push(peer(reader, &entry).unwrap_or(NetworkPeer::Unknown));
        }
    }
    if let Some(ports) = field.get("ports") {
        for entry in reader.list(&ports, NO_RULE)? {
            let invalid = NetworkPort { protocol: Protocol::Tcp, port: PortSelector::Invalid };
            rule.ports.push(port(reader, &entry).unwrap_or(invalid));
        }
    }
    is_known.then_some(rule)
}

fn peer(reader: &mut Reader, field: &Field<'_>) -> Option<NetworkPeer> {
    reader.mapping(field, &["podSelector", "namespaceSelector", "ipBlock"], NO_PEER)?;
    match (field.get("namespaceSelector"), field.get("podSelector"), field.get("ipBlock")) {
        (None, None, Some(block)) => ip_block(reader, &block).map(NetworkPeer::Block),
        (None, None, None) => {
            reader.fault(field, "is empty: write podSelector, namespaceSelector or ipBlock", NO_PEER);
            None
        }
        (namespaces, pods, None) => {
            // Both are read, for the faults of both.
            let namespaces = namespaces.map(|field| reader.selector(&field, NO_PEER));
            let pods = pods.map(|field| reader.selector(&field, NO_PEER));
            let namespaces = match namespaces {
                Some(selector) => Some(selector?),
                None => None,
            };
            let pods = match pods {
                Some(selector) => Some(selector?),
                None => None,
            };
            Some(NetworkPeer::Pods { namespaces, pods })
        }
        (_, _, Some(_)) => {
            reader.fault(field, "has an ipBlock and a selector: write two peers", NO_PEER);
            None
        }
    }
}

fn ip_block(reader: &mut Reader, field: &Field<'_>) -> Option<IpBlock> {
    reader.mapping(field, &["cidr", "except"], NO_PEER)?;
    let Some(cidr) = field.get("cidr") else {
        reader.fault(field, "has no cidr: write a prefix, such as 10.0.0.0/8", NO_PEER);
        return None;
    };
    let cidr = reader.prefix(&cidr, NO_PEER)?;
    let mut except = Vec::new();
    if let Some(list) = field.get("except") {
        for entry in reader.list(&list, NO_PEER)? {
            let exception = reader.prefix(&entry, NO_PEER)?;
            if !cidr.trunc().contains(&exception) {
                reader.fault(
                    &entry,
                    format!("{entry} is not within {}: write a part of it", cidr.trunc()),
                    NO_PEER,
                );
                return None;
            }
            except.push(exception);
        }
    }
    Some(IpBlock { cidr, except })
}

fn port(reader: &mut Reader, field: &Field<'_>) -> Option<NetworkPort> {
    reader.mapping(field, &["protocol", "port", "endPort"], NO_PORT)?;
    let protocol = match field.get("protocol") {
        None => Protocol::Tcp,
        Some(text) => match text.value.as_str() {
            Some("TCP") => Protocol::Tcp,
            Some("UDP") => Protocol::Udp,
            Some("SCTP") => Protocol::Sctp,
            _ => {
                reader.fault(&text, format!("{text} is no protocol: write TCP, UDP or SCTP"), NO_PORT);
                return None;
            }
        },
    };
    let port = match (field.get("port"), field.get("endPort")) {
        (None, None) => PortSelector::Any,
        (None, Some(last)) => {
            reader.fault(&last, "needs port: write the first port of the range", NO_PORT);
            return None;
        }
        (Some(name), last) if name.value.is_string() => {
            let selector = PortSelector::Named(port_name(reader, &name)?);
            if let Some(last) = last {
                reader.fault(&last, "needs port as a number: remove it, or write a number", NO_PORT);
                return None;
            }
            selector
        }
        (Some(first), None) => {
            let port = reader.port(&first, NO_PORT)?;
            PortSelector::Range(port, port)
        }
        (Some(first), Some(last)) => {
            let (first_port, last_port) = (reader.port(&first, NO_PORT), reader.port(&last, NO_PORT));
            let (first_port, last_port) = (first_port?, last_port?);
            if last_port < first_port {
                let message = format!("{last} is less than port: write {first} to 65535");
                reader.fault(&last, message, NO_PORT);
                return None;
            }
            PortSelector::Range(first_port, last_port)
        }
    };
    Some(NetworkPort { protocol, port })
}

/// The name of a port, as Kubernetes defines it (IANA_SVC_NAME).
fn port_name(reader: &mut Reader, field: &Field<'_>) -> Option<Arc<str>> {
    let name = field.value.as_str()?;
    if name.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() {
        reader.fault(field, format!("{field} is a text: write {name} without quotes"), NO_PORT);
        return None;
    }
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_name = name.len() <= MAX_PORT_NAME
        && name.bytes().all(allowed)
        && name.bytes().any(|byte| byte.is_ascii_lowercase())
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--");
    if !is_name {
        let message =
            format!("{field} is no name of a port: write at most 15 of a-z, 0-9 and -, such as http");
        reader.fault(field, message, NO_PORT);
        return None;
    }
    Some(name.into())
}
