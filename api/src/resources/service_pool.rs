//! ServicePool: addresses from which the controller allocates to Services.

use serde::{Deserialize, Serialize};

use super::addresses::{AddressBlock, AddressBlockError};
use super::meta::{Condition, Count, ObjectMeta};
use super::selector::LabelSelector;
use crate::value::{is_default, null_default};

/// Addresses for Services: cluster-scoped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServicePool {
    /// `trunkline.io/v1alpha1`.
    pub api_version: String,
    /// `ServicePool`.
    pub kind: String,
    /// Name and labels.
    pub metadata: ObjectMeta,
    /// The desired state.
    pub spec: ServicePoolSpec,
    /// The observed state. Only the controller writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ServicePoolStatus>,
}

/// The desired state of a [`ServicePool`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServicePoolSpec {
    /// The addresses: prefixes without host bits (`10.0.0.0/24`), ranges (`10.0.0.5-10.0.0.9`) and
    /// single addresses. Of a longer IPv6 block only the first 1,048,576 addresses are allocated.
    pub addresses: Vec<String>,
    /// Addresses that are never allocated, written like `addresses`.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Allocate IPv4 addresses that end in .0 or .255 only by request.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub exclude_zero_and_255: bool,
    /// Whether Services without a request get addresses of this pool. If `false`, a Service must
    /// request the pool, or an address of it. See [`ServicePoolSpec::is_automatic`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_assign: Option<bool>,
    /// The order of the pools: the lowest number first, equal ones by name. See
    /// [`ServicePoolSpec::rank`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// One of these must select the Service. Empty: every Service. Also for requested addresses.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub service_selectors: Vec<LabelSelector>,
    /// One of these must select the Service's namespace. Empty: every namespace. Also for requested
    /// addresses.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub namespace_selectors: Vec<LabelSelector>,
    /// The protocol for the addresses: BGP, or ARP and ND on a VLAN (L2). It cannot change.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub mode: PoolMode,
    /// Settings for mode L2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l2: Option<L2Settings>,
}

/// The protocol for the addresses of a [`ServicePool`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
pub enum PoolMode {
    /// Nodes advertise the addresses to their BGP peers.
    #[default]
    BGP,
    /// One node answers ARP and ND requests for an address.
    L2,
}

/// Settings of a [`ServicePool`] of mode L2.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct L2Settings {
    /// The Network of mode VLAN on whose nodes and VLAN the addresses are.
    pub network: String,
}

/// The observed state of a [`ServicePool`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServicePoolStatus {
    /// All addresses that can be allocated.
    #[serde(default)]
    pub total: i64,
    /// Allocated addresses.
    #[serde(default)]
    pub allocated: i64,
    /// Free addresses for Services without a request.
    #[serde(default)]
    pub available: i64,
    /// The IPv4 addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Count>,
    /// The IPv6 addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Count>,
    /// `Ready`: the pool is in force. `Full`: no address is free.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

impl ServicePool {
    /// `metadata.name`.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }
}

impl ServicePoolSpec {
    /// The priority of a pool without one.
    pub const DEFAULT_PRIORITY: u32 = 100;

    /// Whether Services without a request get addresses of this pool; by default they do.
    pub fn is_automatic(&self) -> bool {
        self.auto_assign.unwrap_or(true)
    }

    /// The priority, or its default. The lowest comes first.
    pub fn rank(&self) -> u32 {
        self.priority.unwrap_or(Self::DEFAULT_PRIORITY)
    }

    /// The blocks of `addresses`.
    ///
    /// # Errors
    /// The first text that is not a block.
    pub fn blocks(&self) -> Result<Vec<AddressBlock>, AddressBlockError> {
        self.addresses.iter().map(|text| text.parse()).collect()
    }

    /// The blocks of `exclude`.
    ///
    /// # Errors
    /// The first text that is not a block.
    pub fn excluded(&self) -> Result<Vec<AddressBlock>, AddressBlockError> {
        self.exclude.iter().map(|text| text.parse()).collect()
    }
}
