//! Kubernetes' object metadata, and code that the resources' serde implementations share.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::value::null_default;

/// Name, labels and other relevant parts of Kubernetes' metadata.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ObjectMeta {
    /// The object's name, unique in its kind (and namespace).
    pub name: String,
    /// The namespace of namespaced kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Key-value pairs for selection.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Key-value pairs for programs.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Finalizers, which delay the deletion of the object.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
    /// Unique over time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Changes with every write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// Changes with every update of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<String>,
    /// RFC 3339; the object is deleted once its last finalizer is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
    /// Seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_grace_period_seconds: Option<i64>,
    /// Not used.
    #[serde(default, skip_serializing)]
    pub generate_name: Ignored,
    /// Not used.
    #[serde(default, skip_serializing)]
    pub self_link: Ignored,
    /// Not used.
    #[serde(default, skip_serializing)]
    pub owner_references: Ignored,
    /// Not used.
    #[serde(default, skip_serializing)]
    pub managed_fields: Ignored,
}

/// Addresses of a network or subnet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Count {
    /// All addresses.
    #[serde(default)]
    pub total: i64,
    /// Allocated addresses.
    #[serde(default)]
    pub used: i64,
    /// Free addresses.
    #[serde(default)]
    pub available: i64,
}

/// A condition of an object, as Kubernetes has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Condition {
    /// The type, unique in the object.
    #[serde(rename = "type")]
    pub condition_type: String,
    /// Whether it is true.
    pub status: ConditionStatus,
    /// The reason, one word.
    pub reason: String,
    /// The reason as text, with the fix.
    #[serde(default, deserialize_with = "null_default")]
    pub message: String,
    /// Time of the last change of `status`, RFC 3339.
    pub last_transition_time: String,
    /// The generation of the spec that the condition describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Whether a [`Condition`] is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
pub enum ConditionStatus {
    /// It is.
    True,
    /// It is not.
    False,
    /// The program cannot decide.
    Unknown,
}

/// A field of Kubernetes' metadata that is accepted and ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ignored;

impl<'de> Deserialize<'de> for Ignored {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Ignored)
    }
}

impl Serialize for Ignored {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}
