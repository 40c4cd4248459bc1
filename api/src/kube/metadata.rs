//! The used part of an object's metadata.

use std::collections::BTreeMap;

use kube::core::ObjectMeta;
use serde::{Deserialize, Deserializer};

/// Reads the used parts of an object's metadata. `managedFields` alone would need more memory than
/// everything else: each of its entries is a tree.
///
/// # Errors
/// The deserializer's error.
pub fn used_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Used {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<BTreeMap<String, String>>,
        resource_version: Option<String>,
    }
    let Used { name, namespace, uid, labels, annotations, resource_version } =
        Used::deserialize(deserializer)?;
    Ok(ObjectMeta { name, namespace, uid, labels, annotations, resource_version, ..ObjectMeta::default() })
}
