//! Subnet: a range of addresses of a Network.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::meta::ObjectMeta;
use super::network::NetworkMode;
use super::retention::Retention;
use crate::value::{ValueError, is_default, null_default, parse_address};

/// A range of addresses of a Network: cluster-scoped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Subnet {
    /// `networking.alibaba.com/v1`.
    pub api_version: String,
    /// `Subnet`.
    pub kind: String,
    /// Name and labels.
    pub metadata: ObjectMeta,
    /// The desired state.
    pub spec: SubnetSpec,
    /// The observed state. Only the controller writes it; ignored in manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<SubnetStatus>,
}

/// The desired state of a [`Subnet`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubnetSpec {
    /// The addresses.
    pub range: AddressRange,
    /// The VLAN ID, if the network has none.
    #[serde(default, rename = "netID", skip_serializing_if = "Option::is_none")]
    pub net_id: Option<u32>,
    /// Name of the network.
    pub network: String,
    /// Further settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<SubnetConfig>,
}

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
pub enum IpVersion {
    /// IPv4.
    #[serde(rename = "4")]
    V4,
    /// IPv6.
    #[serde(rename = "6")]
    V6,
}

/// The addresses of a subnet as text; [`AddressRange::parse`] parses them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddressRange {
    /// `"4"` or `"6"`.
    pub version: IpVersion,
    /// First address to allocate; default: the one after the network address.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub start: String,
    /// Last address to allocate; default: the last of the CIDR.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub end: String,
    /// The prefix, without host bits.
    pub cidr: String,
    /// The router on the subnet's VLAN. Never allocated.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub gateway: String,
    /// Allocated only by name.
    #[serde(
        default,
        rename = "reservedIPs",
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub reserved_ips: Vec<String>,
    /// Never allocated.
    #[serde(
        default,
        rename = "excludeIPs",
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub exclude_ips: Vec<String>,
}

/// Further settings of a [`Subnet`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubnetConfig {
    /// Reserved by hybridnet, not supported.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub gateway_type: String,
    /// Reserved by hybridnet, not supported.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub gateway_node: String,
    /// Packets of pods to addresses outside all subnets get the node's address; see
    /// [`Subnet::nat_outgoing`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_nat_outgoing: Option<bool>,
    /// Addresses only for pods that name the subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private: Option<bool>,
    /// Reserved by hybridnet, not supported.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub allow_subnets: Vec<String>,
    /// No pod gets a new address. Pods keep the addresses that they have, and retained addresses go
    /// to their next pods. Trunkline's own.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub disabled: bool,
    /// Only pods of these Namespaces get new addresses; default: pods of all Namespaces. Trunkline's
    /// own.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub allowed_namespaces: Vec<String>,
    /// How long the address of a stateful pod is retained after the pod has ended, whether or not
    /// its workload still exists: a time such as `72h` (units s, m, h, d), or `never` (it is never
    /// released). The pod's annotation `trunkline.io/ip-retention` has precedence. Default: as long
    /// as its workload exists. Trunkline's own.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub retention: String,
    /// Destinations that a pod with several interfaces reaches through its interface in this subnet,
    /// besides the subnets of the Network. If the interface has the pod's default route, they have no
    /// effect. Trunkline's own.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<String>,
    /// DNS settings for pods with an address of this subnet, in the result of the CNI plugin. Kubelets
    /// write a pod's resolv.conf themselves and ignore them; Podman and Multus report them. Trunkline's
    /// own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<SubnetDns>,
}

/// DNS settings of a [`Subnet`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubnetDns {
    /// Addresses of name servers, in order of preference.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Domains for the look-up of short names.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Options of the resolver, such as `ndots:2`.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl SubnetDns {
    /// Whether it sets nothing.
    pub fn is_empty(&self) -> bool {
        *self == SubnetDns::default()
    }
}

/// The pods that get new addresses of a [`Subnet`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubnetAccess {
    /// None.
    pub disabled: bool,
    /// Only those of these Namespaces; empty: those of all.
    pub namespaces: Vec<String>,
}

/// The reason why a pod gets no new address of a subnet, although one may be free.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubnetRefusal {
    /// It is disabled.
    #[error("is disabled")]
    Disabled,
    /// It is for other Namespaces than the pod's.
    #[error("is only for Namespaces {allowed}, and not for {}", shown(namespace))]
    OtherNamespaces {
        /// The pod's Namespace; empty for a container without one.
        namespace: String,
        /// The first few of its Namespaces.
        allowed: String,
    },
}

fn shown(namespace: &str) -> &str {
    if namespace.is_empty() { "containers without a Namespace" } else { namespace }
}

impl SubnetAccess {
    /// Checks whether pods of a Namespace get new addresses.
    ///
    /// # Errors
    /// They do not.
    pub fn check(&self, namespace: &str) -> Result<(), SubnetRefusal> {
        if self.disabled {
            return Err(SubnetRefusal::Disabled);
        }
        self.check_namespace(namespace)
    }

    /// Checks the Namespace, and not whether the subnet is disabled.
    ///
    /// # Errors
    /// The subnet is for other Namespaces.
    pub fn check_namespace(&self, namespace: &str) -> Result<(), SubnetRefusal> {
        const SHOWN: usize = 4;
        if self.namespaces.is_empty() || self.namespaces.iter().any(|allowed| allowed == namespace) {
            return Ok(());
        }
        let mut allowed = self.namespaces.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
        if self.namespaces.len() > SHOWN {
            allowed.push_str(" and others");
        }
        Err(SubnetRefusal::OtherNamespaces { namespace: namespace.to_owned(), allowed })
    }
}

/// The observed state of a [`Subnet`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubnetStatus {
    /// All addresses.
    #[serde(default)]
    pub total: i64,
    /// Allocated addresses.
    #[serde(default)]
    pub used: i64,
    /// Free addresses.
    #[serde(default)]
    pub available: i64,
    /// Last address allocated by round robin.
    #[serde(default, rename = "lastAllocatedIP", deserialize_with = "null_default")]
    pub last_allocated_ip: String,
}

/// The addresses of a subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedRange {
    /// The prefix, host bits cleared.
    pub cidr: IpNet,
    /// First address of the range. For IPv4 it is never the network address.
    pub first: IpAddr,
    /// Last address of the range; by default, for IPv4, the one before the broadcast address.
    pub last: IpAddr,
    /// The subnet's router.
    pub gateway: Option<IpAddr>,
    /// Allocated only by name.
    pub reserved: Vec<IpAddr>,
    /// Never allocated.
    pub excluded: Vec<IpAddr>,
}

impl Subnet {
    /// `metadata.name`.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// Whether its addresses are allocated only if the subnet is named.
    pub fn is_private(&self) -> bool {
        self.spec.config.as_ref().and_then(|config| config.private).unwrap_or(false)
    }

    /// The pods that get new addresses of it.
    pub fn access(&self) -> SubnetAccess {
        let config = self.spec.config.as_ref();
        config.map_or_else(SubnetAccess::default, |config| SubnetAccess {
            disabled: config.disabled,
            namespaces: config.allowed_namespaces.clone(),
        })
    }

    /// Destinations that a pod with several interfaces reaches through its interface in this subnet.
    pub fn routes(&self) -> Vec<IpNet> {
        let routes = self.spec.config.iter().flat_map(|config| &config.routes);
        routes.filter_map(|route| route.parse().ok()).collect()
    }

    /// The DNS settings of its pods.
    pub fn dns(&self) -> SubnetDns {
        self.spec.config.as_ref().and_then(|config| config.dns.clone()).unwrap_or_default()
    }

    /// How long the addresses of its stateful pods are retained. Validation refuses an invalid value;
    /// without validation it counts as absent.
    pub fn retention(&self) -> Option<Retention> {
        self.spec.config.as_ref()?.retention.parse().ok()
    }

    /// Whether the source of its pods' packets becomes the node's address when they leave the
    /// cluster, in a network of this mode. By default only for an overlay.
    pub fn nat_outgoing(&self, mode: NetworkMode) -> bool {
        let configured = self.spec.config.as_ref().and_then(|config| config.auto_nat_outgoing);
        configured.unwrap_or(mode == NetworkMode::VXLAN)
    }
}

impl AddressRange {
    /// Parses the addresses. It only checks each text; validation checks their relations.
    pub fn parse(&self) -> Result<ParsedRange, ValueError> {
        let cidr = self.cidr()?;
        let optional = |text: &str| if text.is_empty() { Ok(None) } else { parse_address(text).map(Some) };
        let all = |texts: &[String]| -> Result<Vec<IpAddr>, ValueError> {
            texts.iter().map(|text| parse_address(text)).collect()
        };
        Ok(ParsedRange {
            cidr,
            first: optional(&self.start)?.unwrap_or_else(|| first_host(&cidr)),
            last: optional(&self.end)?.unwrap_or_else(|| last_host(&cidr)),
            gateway: optional(&self.gateway)?,
            reserved: all(&self.reserved_ips)?,
            excluded: all(&self.exclude_ips)?,
        })
    }

    /// The prefix, host bits cleared.
    pub fn cidr(&self) -> Result<IpNet, ValueError> {
        match self.cidr.parse::<IpNet>() {
            Ok(cidr) => Ok(cidr.trunc()),
            Err(_) => Err(ValueError {
                value: self.cidr.clone(),
                expected: "a prefix with its length, such as 10.14.0.0/24 or 2001:db8:14::/112",
            }),
        }
    }
}

/// The address after the network address.
fn first_host(cidr: &IpNet) -> IpAddr {
    match cidr.network() {
        IpAddr::V4(address) => IpAddr::V4(u32::from(address).saturating_add(1).into()),
        IpAddr::V6(address) => IpAddr::V6(u128::from(address).saturating_add(1).into()),
    }
}

/// The last address; for IPv4 the one before the broadcast address, except in a /31 (RFC 3021).
fn last_host(cidr: &IpNet) -> IpAddr {
    match cidr.broadcast() {
        IpAddr::V4(address) if cidr.prefix_len() < 31 => {
            IpAddr::V4(u32::from(address).saturating_sub(1).into())
        }
        address => address,
    }
}
