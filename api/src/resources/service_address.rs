//! ServiceAddress: one address that is allocated to a Service, or to several that share it.
//!
//! It is called a *claim*. Its name follows from the address, so the API server refuses a second
//! claim of an address.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::meta::{Condition, ObjectMeta};
use crate::value::null_default;
use crate::value::{ValueError, parse_address};

/// One address that is allocated to Services: cluster-scoped, named after the address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceAddress {
    /// `trunkline.io/v1alpha1`.
    pub api_version: String,
    /// `ServiceAddress`.
    pub kind: String,
    /// The name follows from the address: `10-0-0-7`.
    pub metadata: ObjectMeta,
    /// The allocation.
    pub spec: ServiceAddressSpec,
    /// The observed state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ServiceAddressStatus>,
}

/// The allocation of a [`ServiceAddress`]. Only the controller writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceAddressSpec {
    /// The address. It cannot change.
    pub address: String,
    /// The ServicePool of the address.
    pub pool: String,
    /// Services with this key share the address. Empty: the address has one Service.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub sharing_key: String,
    /// The Services of the address, sorted.
    pub services: Vec<ServiceRef>,
}

/// A Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID. A Service that is created again under the same name has another one.
    pub uid: String,
}

/// The observed state of a [`ServiceAddress`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceAddressStatus {
    /// The number of nodes that advertise the address.
    #[serde(default)]
    pub nodes: i64,
    /// `Advertised`: at least one node advertises the address. If none does, the reason is
    /// `NoEndpoint` or `NoNode`.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl ServiceAddress {
    /// `metadata.name`.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }
}

impl ServiceAddressSpec {
    /// The address.
    ///
    /// # Errors
    /// The text is not an address.
    pub fn address(&self) -> Result<IpAddr, ValueError> {
        parse_address(&self.address)
    }
}

impl fmt::Display for ServiceRef {
    /// `namespace/name`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
