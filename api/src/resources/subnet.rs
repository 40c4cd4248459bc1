//! Subnet: a range of addresses of a Network.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::meta::ObjectMeta;
use super::network::NetworkMode;
use crate::value::null_default;
use crate::value::{ValueError, parse_address};

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
