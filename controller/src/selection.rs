//! Selection of the network, the subnets and the family of a pod's addresses.
//!
//! There are four sources. All values come from the first source that has any: a retained address,
//! the pod, its namespace, the controller's defaults (hybridnet's precedence). The webhook selects
//! before a pod is scheduled ([`select`]) and writes the result on the pod. The pod reconciler
//! selects again after scheduling ([`place`]), since pods are admitted while the webhook is down.

use std::collections::BTreeMap;
use std::sync::Arc;

use trunkline_api::names::annotation::{SPECIFIED_NETWORK, SPECIFIED_SUBNET};
use trunkline_api::names::label;
use trunkline_api::pod::{AddressPreferences, IpFamily, SubnetNames, annotation_field};
use trunkline_api::resources::{IpVersion, LabelSelector, Network, NetworkType};
use trunkline_api::tenancy::{NetworkBinding, NetworkNotAllowed};
use trunkline_api::validate::Fault;

use crate::cluster::{Cluster, Key, Owner};

/// Defaults for pods and namespaces without annotations.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The address family: `DEFAULT_IP_FAMILY`.
    pub family: IpFamily,
    /// The network's type: `DEFAULT_NETWORK_TYPE`.
    pub network_type: NetworkType,
    /// Whether stateful pods keep their addresses: `--default-ip-retain`.
    pub retain: bool,
    /// Kinds whose pods have recurring names: `--stateful-workload-kinds`.
    pub stateful_kinds: Vec<String>,
    /// The pods that get addresses: `--pod-label-selector`.
    pub pod_selector: LabelSelector,
    /// Whether a Namespace binds its pods to its Networks: `--tenancy`.
    pub tenancy: bool,
}

impl Policy {
    /// Whether pods of this owner are stateful.
    pub fn is_stateful(&self, owner: Option<&Owner>) -> bool {
        owner.is_some_and(|owner| self.is_stateful_kind(&owner.kind))
    }

    /// Whether pods of an owner of this kind are stateful.
    pub fn is_stateful_kind(&self, kind: &str) -> bool {
        self.stateful_kinds.iter().any(|known| known == kind)
    }
}

/// The selection for a pod, before its node is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The network, if it is named or follows from a retained address.
    pub network: Option<String>,
    /// The named subnets. Empty: any subnet of the network.
    pub subnets: SubnetNames,
    /// The network's type.
    pub network_type: NetworkType,
    /// The family.
    pub family: IpFamily,
    /// Whether it follows from addresses that are retained for the pod.
    pub retained: bool,
}

/// Selects network, subnets and family for a pod of this name with these annotations and labels.
/// `holder` is the allocation key whose retained addresses have precedence.
pub fn select(
    cluster: &Cluster,
    pod: &Key,
    annotations: &BTreeMap<String, String>,
    labels: &BTreeMap<String, String>,
    holder: Option<&Key>,
    policy: &Policy,
) -> Result<Selection, Vec<Fault>> {
    if let Some(kept) = holder.and_then(|holder| kept(cluster, holder)) {
        return Ok(kept);
    }
    let own = AddressPreferences::read("Pod", &pod.name, annotations, labels)?;
    if !own.is_empty() {
        return resolve(cluster, "Pod", &pod.name, own, policy);
    }
    let preferences = match cluster.namespace(&pod.namespace) {
        Some(found) => {
            if let Some(fault) = found.size_fault("Namespace", &pod.namespace) {
                return Err(vec![fault]);
            }
            AddressPreferences::read("Namespace", &pod.namespace, &found.annotations, &found.labels)?
        }
        None => AddressPreferences::default(),
    };
    resolve(cluster, "Namespace", &pod.namespace, preferences, policy)
}

/// The reason why a pod gets no address of a Network. Its text is the text of the pod's event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TenancyError {
    /// The Namespace was not listed yet.
    #[error("Namespace {namespace} is not known yet: the Networks of its pods follow from it")]
    UnknownNamespace {
        /// The Namespace.
        namespace: String,
    },
    /// Annotations of the Namespace have a fault.
    #[error(transparent)]
    Namespace(#[from] Fault),
    /// The Namespace does not allow the Network.
    #[error(transparent)]
    NotAllowed(#[from] NetworkNotAllowed),
}

/// Whether the pods of a namespace may have addresses of this Network. `None` means that the Network
/// is not known yet.
///
/// # Errors
/// They may not.
pub fn check_tenancy(
    cluster: &Cluster,
    namespace: &str,
    network: Option<&str>,
    policy: &Policy,
) -> Result<(), TenancyError> {
    if !policy.tenancy {
        return Ok(());
    }
    let Some(found) = cluster.namespace(namespace) else {
        return Err(TenancyError::UnknownNamespace { namespace: namespace.to_owned() });
    };
    if let Some(fault) = found.size_fault("Namespace", namespace) {
        return Err(fault.into());
    }
    match NetworkBinding::read(&found.annotations, &found.labels) {
        Some(binding) => Ok(binding.check(namespace, network)?),
        None => Ok(()),
    }
}

/// The selection by the retained addresses of an allocation key.
fn kept(cluster: &Cluster, holder: &Key) -> Option<Selection> {
    let mut rows = cluster.instances_of(holder);
    rows.retain(|(_, row)| !row.deleting && row.interface.is_none());
    let (_, first) = rows.first()?;
    let has = |v6: bool| rows.iter().any(|(_, row)| row.address.is_ipv6() == v6);
    Some(Selection {
        network: Some(first.network.to_string()),
        subnets: SubnetNames::default(),
        network_type: cluster.network(&first.network)?.network_type(),
        family: match (has(false), has(true)) {
            (true, true) => IpFamily::DualStack,
            (false, true) => IpFamily::V6,
            _ => IpFamily::V4,
        },
        retained: true,
    })
}

fn resolve(
    cluster: &Cluster,
    kind: &'static str,
    name: &str,
    preferences: AddressPreferences,
    policy: &Policy,
) -> Result<Selection, Vec<Fault>> {
    let fault = |field: &str, message: String| {
        vec![Fault { kind, name: name.to_owned(), field: annotation_field(field), message }]
    };
    let mut network = preferences.network;
    for subnet_name in preferences.subnets.iter() {
        let Some(subnet) = cluster.subnet(subnet_name) else {
            let message = format!("there is no Subnet {subnet_name}: name an existing one, or create it");
            return Err(fault(SPECIFIED_SUBNET, message));
        };
        let expected = preferences
            .subnets
            .by_family()
            .map(|[v4, _]| if v4.contains(subnet_name) { IpVersion::V4 } else { IpVersion::V6 });
        if expected.is_some_and(|expected| subnet.spec.range.version != expected) {
            let message = format!(
                "the Subnets before `/` must be IPv4 Subnets and those after it IPv6 Subnets, and \
                 {subnet_name} is of the other family: write `v4-subnet/v6-subnet`"
            );
            return Err(fault(SPECIFIED_SUBNET, message));
        }
        let of = &subnet.spec.network;
        match &network {
            None => network = Some(of.clone()),
            Some(network) if network == of => {}
            Some(network) => {
                let message = format!(
                    "Subnet {subnet_name} belongs to Network {of} and not to {network}: name subnets of one network"
                );
                return Err(fault(SPECIFIED_SUBNET, message));
            }
        }
    }
    let mut network_type = preferences.network_type.unwrap_or(policy.network_type);
    if let Some(network_name) = &network {
        let Some(network) = cluster.network(network_name) else {
            let message = format!("there is no Network {network_name}: name an existing one, or create it");
            return Err(fault(SPECIFIED_NETWORK, message));
        };
        let is = network.network_type();
        if preferences.network_type.is_some_and(|wanted| wanted != is) {
            let message = format!(
                "Network {network_name} is of type {is:?}, and the pod requests {network_type:?}: \
                 leave out one of the two annotations"
            );
            return Err(fault(SPECIFIED_NETWORK, message));
        }
        network_type = is;
    }
    Ok(Selection {
        network,
        subnets: preferences.subnets,
        network_type,
        family: preferences.family.unwrap_or(policy.family),
        retained: false,
    })
}

/// The reason why a pod has no network on its node. Its text is the text of the pod's event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The node was not listed yet.
    #[error("node {node} is not known yet: its networks follow from its labels")]
    UnknownNode {
        /// The node.
        node: String,
    },
    /// No Underlay Network selects the node.
    #[error(
        "no Underlay Network selects node {node}: label the node for one, or request another type with the \
         annotation network-type"
    )]
    NoUnderlay {
        /// The node.
        node: String,
    },
    /// There is no Network of the requested type.
    #[error("there is no Network of type {network_type:?}")]
    NoNetworkOfType {
        /// The type.
        network_type: NetworkType,
    },
    /// The named Network does not exist.
    #[error("there is no Network {network} any more")]
    NoNetwork {
        /// The Network.
        network: String,
    },
    /// No router receives addresses of a GlobalBGP Network from this node.
    #[error(
        "node {node} is in no Network of mode BGP, so no router would receive a {network} address there: the pod \
         needs a node with the label {}",
        label::BGP_NETWORK_ATTACHMENT
    )]
    NotAttached {
        /// The node.
        node: String,
        /// The Network.
        network: String,
    },
    /// The Network does not select the node.
    #[error(
        "node {node} does not belong to Network {network}: the pod needs a node that has the network's nodeSelector \
         ({selector})"
    )]
    NotSelected {
        /// The node.
        node: String,
        /// The Network.
        network: String,
        /// Its nodeSelector.
        selector: String,
    },
}

/// The network of a pod on this node.
///
/// # Errors
/// The pod has no network there.
pub fn place(cluster: &Cluster, selection: &Selection, node_name: &str) -> Result<Arc<Network>, PlaceError> {
    let name_of_node = || node_name.to_owned();
    let Some(node) = cluster.node(node_name) else {
        return Err(PlaceError::UnknownNode { node: name_of_node() });
    };
    let Some(name) = &selection.network else {
        return match selection.network_type {
            NetworkType::Underlay => {
                let network = cluster.underlay_of(node).cloned();
                network.ok_or_else(|| PlaceError::NoUnderlay { node: name_of_node() })
            }
            network_type => {
                let network = cluster.network_of_type(network_type).cloned();
                let network = network.ok_or(PlaceError::NoNetworkOfType { network_type })?;
                check_node(cluster, &network, node_name)?;
                Ok(network)
            }
        };
    };
    let network = cluster.network(name).cloned();
    let network = network.ok_or_else(|| PlaceError::NoNetwork { network: name.clone() })?;
    check_node(cluster, &network, node_name)?;
    Ok(network)
}

/// Whether the node belongs to the network.
fn check_node(cluster: &Cluster, network: &Network, node_name: &str) -> Result<(), PlaceError> {
    let belongs = cluster.node(node_name).is_some_and(|node| cluster.has_node(network, node));
    if belongs {
        return Ok(());
    }
    let (node, name) = (node_name.to_owned(), network.name().to_owned());
    Err(match network.network_type() {
        NetworkType::GlobalBGP => PlaceError::NotAttached { node, network: name },
        _ => {
            let selector = network.spec.node_selector.iter().map(|(key, value)| format!("{key}={value}"));
            let selector = selector.collect::<Vec<_>>().join(",");
            PlaceError::NotSelected { node, network: name, selector }
        }
    })
}
