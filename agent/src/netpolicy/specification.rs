//! The second evaluator: written from the texts of the APIs, without anything of the compiler.
//!
//! Sources: the types of `networking.k8s.io/v1` and `policy.networking.k8s.io/v1beta1`, and the
//! page "Network Policies" of the Kubernetes documentation.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use trunkline_api::resources::{LabelSelector, Operator};
use trunkline_api::service::Protocol;

use super::input::{
    Action, ClusterPeer, ClusterPods, ClusterPolicy, ClusterPort, ClusterRule, ClusterSubject, Direction,
    Namespace, NetworkPeer, NetworkPolicy, NetworkPort, Pod, PortSelector, Tier,
};
use super::labels::Labels;

/// A cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct Cluster {
    pub(super) namespaces: Vec<Namespace>,
    pub(super) pods: Vec<Pod>,
    pub(super) network_policies: Vec<NetworkPolicy>,
    pub(super) cluster_policies: Vec<ClusterPolicy>,
    /// The addresses of the nodes.
    pub(super) nodes: BTreeMap<Arc<str>, Vec<IpAddr>>,
}

/// Whether each side allows a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowed {
    /// The policies of the pod at the destination allow it.
    pub(super) ingress: bool,
    /// The policies of the pod at the source allow it.
    pub(super) egress: bool,
}

/// A connection, with the pods at its ends.
struct Connection<'a> {
    from: IpAddr,
    to: IpAddr,
    source: Option<&'a Pod>,
    destination: Option<&'a Pod>,
    /// None: ICMP.
    port: Option<(Protocol, u16)>,
}

/// Whether a connection between two addresses is allowed.
pub(super) fn allowed(cluster: &Cluster, from: IpAddr, to: IpAddr, port: Option<(Protocol, u16)>) -> Allowed {
    let connection =
        Connection { from, to, source: pod_at(cluster, from), destination: pod_at(cluster, to), port };
    let Connection { source, destination, .. } = connection;
    // "A pod cannot block access to itself."
    let itself = source.is_some() && source.map(|pod| &pod.key) == destination.map(|pod| &pod.key);
    // "… OR if the traffic source is the pod's local node."
    let from_own_node =
        destination.is_some_and(|pod| cluster.nodes.get(&pod.node).is_some_and(|own| own.contains(&from)));
    let decide = |pod: Option<&Pod>, direction| match pod {
        None => true,
        Some(pod) => itself || is_allowed(cluster, pod, direction, &connection),
    };
    Allowed {
        ingress: from_own_node || decide(destination, Direction::Ingress),
        egress: decide(source, Direction::Egress),
    }
}

/// Packets of a pod in an audited Namespace are only reported, unless the Admin tier denies them.
fn is_audited(cluster: &Cluster, pod: &Pod) -> bool {
    cluster.namespaces.iter().any(|namespace| namespace.name == pod.key.namespace && namespace.audit)
}

/// A pod with the node's network is seen as its node.
fn pod_at(cluster: &Cluster, address: IpAddr) -> Option<&Pod> {
    cluster.pods.iter().find(|pod| !pod.host_network && pod.addresses.contains(&address))
}

fn is_allowed(cluster: &Cluster, pod: &Pod, direction: Direction, connection: &Connection<'_>) -> bool {
    if is_closed(cluster, pod, direction) {
        return is_audited(cluster, pod) && !may_be_admins(cluster, pod, direction);
    }
    if let Some(decided) = tier_decides(cluster, Tier::Admin, pod, direction, connection) {
        return decided;
    }
    if is_audited(cluster, pod) {
        return true;
    }
    let mut isolated = false;
    for policy in &cluster.network_policies {
        let types = match &policy.policy_types {
            Some(types) if !types.is_empty() => types.contains(&direction),
            // "policies that contain an egress section are assumed to affect egress, and all
            // policies (whether or not they contain an ingress section) are assumed to affect
            // ingress"
            _ => direction == Direction::Ingress || !policy.egress.is_empty(),
        };
        let in_namespace = policy.key.namespace == pod.key.namespace;
        if !types || !in_namespace || selects(&policy.pod_selector, labels(pod)) != Some(true) {
            continue;
        }
        isolated = true;
        if network_policy_allows(cluster, policy, direction, connection) {
            return true;
        }
    }
    if isolated {
        return false;
    }
    tier_decides(cluster, Tier::Baseline, pod, direction, connection).unwrap_or(true)
}

/// Whether a policy of the Admin tier selects a pod, or may select it.
fn may_be_admins(cluster: &Cluster, pod: &Pod, direction: Direction) -> bool {
    cluster.cluster_policies.iter().any(|policy| {
        let rules = if direction == Direction::Ingress { &policy.ingress } else { &policy.egress };
        let selects = match &policy.subject {
            ClusterSubject::Pods(pods) => cluster_pods_match(cluster, pods, pod),
            ClusterSubject::Unknown => Some(false),
        };
        policy.tier == Tier::Admin && !rules.is_empty() && selects != Some(false)
    })
}

/// Whether it is not known which policies select a pod. No text of the APIs has this case.
fn is_closed(cluster: &Cluster, pod: &Pod, direction: Direction) -> bool {
    let of_tier = |tier| {
        cluster.cluster_policies.iter().any(|policy| {
            let rules = if direction == Direction::Ingress { &policy.ingress } else { &policy.egress };
            let selects = match &policy.subject {
                ClusterSubject::Pods(pods) => cluster_pods_match(cluster, pods, pod),
                ClusterSubject::Unknown => Some(false),
            };
            policy.tier == tier && !rules.is_empty() && selects.is_none()
        })
    };
    let network: Vec<Option<bool>> = cluster
        .network_policies
        .iter()
        .filter(|policy| {
            let types = match &policy.policy_types {
                Some(types) if !types.is_empty() => types.contains(&direction),
                _ => direction == Direction::Ingress || !policy.egress.is_empty(),
            };
            types && policy.key.namespace == pod.key.namespace
        })
        .map(|policy| selects(&policy.pod_selector, labels(pod)))
        .collect();
    let may_be_isolated = network.iter().any(|selects| *selects != Some(false));
    of_tier(Tier::Admin)
        || network.iter().any(Option::is_none)
        || (!may_be_isolated && of_tier(Tier::Baseline))
}

fn network_policy_allows(
    cluster: &Cluster,
    policy: &NetworkPolicy,
    direction: Direction,
    connection: &Connection<'_>,
) -> bool {
    let rules = if direction == Direction::Ingress { &policy.ingress } else { &policy.egress };
    let (address, pod) = other_end(direction, connection);
    rules.iter().any(|rule| {
        let peer = rule.peers.is_empty()
            || rule.peers.iter().any(|peer| match peer {
                NetworkPeer::Unknown => false,
                NetworkPeer::Block(block) => {
                    block.cidr.contains(&address) && !block.except.iter().any(|net| net.contains(&address))
                }
                NetworkPeer::Pods { namespaces, pods } => pod.is_some_and(|pod| {
                    let namespace = match namespaces {
                        Some(selector) => selects(selector, namespace_labels(cluster, &pod.key.namespace)),
                        None => Some(pod.key.namespace == policy.key.namespace),
                    };
                    let pod = pods.as_ref().map_or(Some(true), |selector| selects(selector, labels(pod)));
                    // A pod that only may be a peer is none.
                    both(namespace, pod) == Some(true)
                }),
            });
        let port =
            rule.ports.is_empty() || rule.ports.iter().any(|port| network_port_matches(port, connection));
        peer && port
    })
}

fn network_port_matches(port: &NetworkPort, connection: &Connection<'_>) -> bool {
    let Some((protocol, number)) = connection.port else { return false };
    protocol == port.protocol
        && match &port.port {
            PortSelector::Any => true,
            PortSelector::Range(first, last) => *first <= number && number <= *last,
            PortSelector::Named(name) => has_named_port(connection.destination, name, protocol, number),
            PortSelector::Invalid => false,
        }
}

fn has_named_port(pod: Option<&Pod>, name: &Arc<str>, protocol: Protocol, number: u16) -> bool {
    pod.is_some_and(|pod| {
        pod.ports.iter().any(|port| port.name == *name && port.protocol == protocol && port.port == number)
    })
}

/// None: no rule of the tier accepts or denies.
fn tier_decides(
    cluster: &Cluster,
    tier: Tier,
    pod: &Pod,
    direction: Direction,
    connection: &Connection<'_>,
) -> Option<bool> {
    let mut policies: Vec<&ClusterPolicy> = cluster
        .cluster_policies
        .iter()
        .filter(|policy| policy.tier == tier)
        .filter(|policy| match &policy.subject {
            ClusterSubject::Pods(pods) => cluster_pods_match(cluster, pods, pod) == Some(true),
            ClusterSubject::Unknown => false,
        })
        .collect();
    policies.sort_by(|a, b| (a.priority, &a.name).cmp(&(b.priority, &b.name)));
    let rules = policies
        .iter()
        .flat_map(|policy| if direction == Direction::Ingress { &policy.ingress } else { &policy.egress });
    for rule in rules {
        match cluster_rule_action(cluster, tier, rule, direction, connection) {
            Some(Action::Accept) => return Some(true),
            Some(Action::Deny) => return Some(false),
            Some(Action::Pass) => return None,
            None => {}
        }
    }
    None
}

/// The action of a rule that matches.
fn cluster_rule_action(
    cluster: &Cluster,
    tier: Tier,
    rule: &ClusterRule,
    direction: Direction,
    connection: &Connection<'_>,
) -> Option<Action> {
    let unknown_peer = rule.peers.is_empty()
        || rule.peers.iter().any(|peer| match peer {
            ClusterPeer::Unknown => true,
            // Peers of ingress have no field `networks`, and an empty list is no field.
            ClusterPeer::Networks(networks) => networks.is_empty() || direction == Direction::Ingress,
            ClusterPeer::Pods(_) => false,
        });
    let unknown_port = rule.ports.iter().any(|port| match port {
        ClusterPort::Unknown => true,
        ClusterPort::Numbered { range: Some((first, last)), .. } => last < first,
        ClusterPort::Numbered { range: None, .. } | ClusterPort::Named(_) => false,
    });
    if unknown_peer || unknown_port {
        // "For Accept rules, fail closed means: treat the rule as matching no traffic. For Deny and
        // Pass rules, fail closed means: treat the rule as a 'Deny all' rule."
        return (rule.action != Action::Accept).then_some(Action::Deny);
    }
    let (address, pod) = other_end(direction, connection);
    let peer = rule.peers.iter().any(|peer| match peer {
        ClusterPeer::Pods(pods) => pod.is_some_and(|pod| match rule.action {
            // A pod that may be a peer is one.
            Action::Deny => cluster_pods_match(cluster, pods, pod) != Some(false),
            Action::Accept | Action::Pass => cluster_pods_match(cluster, pods, pod) == Some(true),
        }),
        ClusterPeer::Networks(networks) => networks.iter().any(|network| network.contains(&address)),
        ClusterPeer::Unknown => false,
    });
    let port = rule.ports.is_empty()
        || connection.port.is_some_and(|(protocol, number)| {
            rule.ports.iter().any(|port| match port {
                ClusterPort::Numbered { protocol: wanted, range } => {
                    protocol == *wanted && range.is_none_or(|(first, last)| first <= number && number <= last)
                }
                ClusterPort::Named(name) => has_named_port(connection.destination, name, protocol, number),
                ClusterPort::Unknown => false,
            })
        });
    // Not known: the rule passes the packet to the NetworkPolicies, or a later rule of the tier decides.
    let may_pass = tier == Tier::Admin
        && rule.action == Action::Pass
        && rule.peers.iter().any(|peer| match peer {
            ClusterPeer::Pods(pods) => {
                pod.is_some_and(|pod| cluster_pods_match(cluster, pods, pod).is_none())
            }
            ClusterPeer::Networks(_) | ClusterPeer::Unknown => false,
        });
    match (peer, may_pass) {
        (true, _) => port.then_some(rule.action),
        (false, true) => port.then_some(Action::Deny),
        (false, false) => None,
    }
}

/// None: the labels are not known, and decide.
fn cluster_pods_match(cluster: &Cluster, pods: &ClusterPods, pod: &Pod) -> Option<bool> {
    let namespace = selects(&pods.namespaces, namespace_labels(cluster, &pod.key.namespace));
    both(namespace, selects(&pods.pods, labels(pod)))
}

fn both(one: Option<bool>, other: Option<bool>) -> Option<bool> {
    match (one, other) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}

fn other_end<'a>(direction: Direction, connection: &Connection<'a>) -> (IpAddr, Option<&'a Pod>) {
    match direction {
        Direction::Ingress => (connection.from, connection.source),
        Direction::Egress => (connection.to, connection.destination),
    }
}

fn namespace_labels<'a>(cluster: &'a Cluster, name: &Arc<str>) -> Option<&'a Labels> {
    cluster.namespaces.iter().find(|namespace| namespace.name == *name).map(|namespace| &namespace.labels)
}

fn labels(pod: &Pod) -> Option<&Labels> {
    pod.labels.is_known().then_some(&pod.labels)
}

/// None: the labels are not known, and decide.
fn selects(selector: &LabelSelector, labels: Option<&Labels>) -> Option<bool> {
    if selector.match_labels.is_empty() && selector.match_expressions.is_empty() {
        return Some(true);
    }
    let labels = labels?;
    let value = |key: &str| {
        labels.iter().find(|(there, _)| there.as_ref() == key).map(|(_, value)| value.as_ref().to_owned())
    };
    let labels_match = selector.match_labels.iter().all(|(key, wanted)| value(key).as_ref() == Some(wanted));
    let expressions_match = selector.match_expressions.iter().all(|expression| {
        let there = value(&expression.key);
        let listed = there.as_ref().is_some_and(|there| expression.values.contains(there));
        match expression.operator {
            Operator::In => listed,
            Operator::NotIn => !listed,
            Operator::Exists => there.is_some(),
            Operator::DoesNotExist => there.is_none(),
        }
    });
    Some(labels_match && expressions_match)
}
