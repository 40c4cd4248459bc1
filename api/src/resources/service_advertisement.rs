//! ServiceAdvertisement: the Services, addresses, nodes, peers and attributes of an advertisement.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::meta::{Condition, ObjectMeta};
use super::selector::LabelSelector;
use crate::service::AddressKind;
use crate::value::{ValueError, is_default, null_default};

/// The advertisement of service addresses: cluster-scoped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceAdvertisement {
    /// `trunkline.io/v1alpha1`.
    pub api_version: String,
    /// `ServiceAdvertisement`.
    pub kind: String,
    /// Name and labels.
    pub metadata: ObjectMeta,
    /// The desired state.
    #[serde(default)]
    pub spec: ServiceAdvertisementSpec,
    /// The observed state. Only the controller writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ServiceAdvertisementStatus>,
}

/// The desired state of a [`ServiceAdvertisement`].
///
/// The default is also in force in a cluster without any ServiceAdvertisement: LoadBalancer
/// addresses of the pools, to all peers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceAdvertisementSpec {
    /// The Services. Empty: all.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub service_selector: LabelSelector,
    /// The namespaces of the Services. Empty: all.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub namespace_selector: LabelSelector,
    /// The ServicePools of the LoadBalancer addresses. Empty: all.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<String>,
    /// The kinds of addresses. Empty: LoadBalancer. See
    /// [`ServiceAdvertisementSpec::address_kinds`].
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<AddressKind>,
    /// The prefixes that hold the External addresses; required for them. A user who may create a
    /// Service can write any address into its `externalIPs`.
    #[serde(
        default,
        rename = "externalCIDRs",
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub external_cidrs: Vec<String>,
    /// The nodes that advertise. Empty: all.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub node_selector: LabelSelector,
    /// The action of cordoned nodes. See [`ServiceAdvertisementSpec::on_cordoned_nodes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cordoned_nodes: Option<NodeAction>,
    /// The action of nodes with the label `node.kubernetes.io/exclude-from-external-load-balancers`.
    /// kubeadm sets the label on nodes of the control plane. See
    /// [`ServiceAdvertisementSpec::on_excluded_nodes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excluded_nodes: Option<NodeAction>,
    /// The BGP peers, written as in `bgpPeers` of a Network: an address (`fe80::1%eth1` if it is
    /// link-local), an interface, or the prefix of dynamic neighbours. Empty: all.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
    /// Communities (RFC 1997): `65000:100`, or a name such as `no-export`.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub communities: Vec<String>,
    /// Large communities (RFC 8092): `65000:1:2`.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub large_communities: Vec<String>,
    /// Extended communities (RFC 4360): `rt:65000:100`.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub extended_communities: Vec<String>,
    /// LOCAL_PREF, for internal peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_preference: Option<u32>,
    /// Additional occurrences of the node's AS number in AS_PATH.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub prepend: u8,
    /// The lengths of the advertised prefixes. A shorter one combines the addresses of a pool.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub aggregation_length: AggregationLength,
    /// Whether the traffic of a node depends on its endpoints: the link bandwidth extended community
    /// (RFC 10005).
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub weights: Weights,
    /// The time between the graceful shutdown (RFC 8326) of a prefix and its withdrawal, if the
    /// node still delivers its packets. 0: none. See
    /// [`ServiceAdvertisementSpec::graceful_shutdown`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graceful_shutdown_seconds: Option<u16>,
}

/// The action of a node in a special state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
pub enum NodeAction {
    /// It advertises them like any other node.
    Advertise,
    /// It withdraws them, after a graceful shutdown.
    Withdraw,
}

/// The lengths of advertised prefixes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AggregationLength {
    /// For IPv4, 8 to 32. See [`AggregationLength::of`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<u8>,
    /// For IPv6, 16 to 128. See [`AggregationLength::of`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<u8>,
}

/// The basis of the link bandwidth that a node advertises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
pub enum Weights {
    /// No link bandwidth.
    #[default]
    None,
    /// 1 Gbit/s for each ready endpoint on the node.
    LocalEndpoints,
}

/// The observed state of a [`ServiceAdvertisement`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceAdvertisementStatus {
    /// `Ready`: the object is in force, and every peer and pool that it names exists.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

impl ServiceAdvertisement {
    /// `metadata.name`.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }
}

impl ServiceAdvertisementSpec {
    /// The default of `gracefulShutdownSeconds`.
    pub const DEFAULT_GRACEFUL_SHUTDOWN: u16 = 5;

    /// The kinds of addresses; LoadBalancer if none is listed.
    pub fn address_kinds(&self) -> BTreeSet<AddressKind> {
        if self.addresses.is_empty() {
            return BTreeSet::from([AddressKind::LoadBalancer]);
        }
        self.addresses.iter().copied().collect()
    }

    /// The action of cordoned nodes; by default they advertise.
    pub fn on_cordoned_nodes(&self) -> NodeAction {
        self.cordoned_nodes.unwrap_or(NodeAction::Advertise)
    }

    /// The action of nodes with the exclude label; by default they withdraw.
    pub fn on_excluded_nodes(&self) -> NodeAction {
        self.excluded_nodes.unwrap_or(NodeAction::Withdraw)
    }

    /// The time between graceful shutdown and withdrawal.
    pub fn graceful_shutdown(&self) -> Duration {
        let seconds = self.graceful_shutdown_seconds.unwrap_or(Self::DEFAULT_GRACEFUL_SHUTDOWN);
        Duration::from_secs(seconds.into())
    }

    /// The prefixes of `externalCIDRs`, host bits cleared.
    ///
    /// # Errors
    /// The first text that is not a prefix.
    pub fn external_prefixes(&self) -> Result<Vec<IpNet>, ValueError> {
        let parse = |text: &String| {
            text.parse::<IpNet>().map(|prefix| prefix.trunc()).map_err(|_| ValueError {
                value: text.clone(),
                expected: "a prefix with its length, such as 192.0.2.0/24",
            })
        };
        self.external_cidrs.iter().map(parse).collect()
    }
}

impl AggregationLength {
    /// The length of the prefix that is advertised for an address; by default that of the address.
    pub fn of(&self, address: IpAddr) -> u8 {
        match address {
            IpAddr::V4(_) => self.ipv4.unwrap_or(32),
            IpAddr::V6(_) => self.ipv6.unwrap_or(128),
        }
    }

    /// The prefix that is advertised for an address.
    pub fn prefix(&self, address: IpAddr) -> IpNet {
        IpNet::new(address, self.of(address)).map_or_else(|_| address.into(), |prefix| prefix.trunc())
    }

    /// Whether a prefix has more than one address.
    pub fn aggregates(&self) -> bool {
        self.ipv4.is_some_and(|length| length < 32) || self.ipv6.is_some_and(|length| length < 128)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_of_an_advertisement() {
        let spec: ServiceAdvertisementSpec = serde_json::from_str("{}").unwrap();
        assert_eq!(spec, ServiceAdvertisementSpec::default());
        assert_eq!(spec.address_kinds(), BTreeSet::from([AddressKind::LoadBalancer]));
        assert_eq!(spec.on_cordoned_nodes(), NodeAction::Advertise);
        assert_eq!(spec.on_excluded_nodes(), NodeAction::Withdraw);
        assert_eq!(spec.graceful_shutdown(), Duration::from_secs(5));
        assert_eq!(serde_json::to_string(&spec).unwrap(), "{}");
    }

    #[test]
    fn prefixes_have_the_aggregation_length() {
        let (v4, v6) = ("10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap());
        let whole = AggregationLength::default();
        assert_eq!(whole.prefix(v4).to_string(), "10.0.0.7/32");
        assert_eq!(whole.prefix(v6).to_string(), "fd00::7/128");
        let shorter = AggregationLength { ipv4: Some(24), ipv6: Some(64) };
        assert_eq!(shorter.prefix(v4).to_string(), "10.0.0.0/24");
        assert_eq!(shorter.prefix(v6).to_string(), "fd00::/64");
        assert!(shorter.aggregates() && !whole.aggregates());
        assert!(!AggregationLength { ipv4: Some(32), ipv6: Some(128) }.aggregates());
    }
}
