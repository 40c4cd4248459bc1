//! The used fields of this Node. Its metadata is enough without the cordon, which is in its
//! specification. So the agent watches the whole Node (some 10 kB for each report of its kubelet)
//! only if it follows the cordon.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use trunkline_api::kept::{self, TooLarge};
use trunkline_api::names::label;

/// The used fields of this Node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ObservedNode {
    pub(super) uid: Option<String>,
    /// Its labels. Of labels above their bound, only the one that excludes the Node from load
    /// balancers is kept.
    pub(super) labels: BTreeMap<String, String>,
    /// The size of labels above their bound.
    pub(super) too_large: Option<TooLarge>,
    /// Whether the Node is cordoned, if the agent follows the cordon.
    pub(super) is_cordoned: Option<bool>,
}

impl ObservedNode {
    fn of(metadata: ObjectMeta) -> ObservedNode {
        let excluded = kept::keep(metadata.labels.as_ref(), &[label::EXCLUDE_BALANCERS]);
        let (labels, too_large) = match kept::bounded_labels(metadata.labels) {
            Ok(labels) => (labels, None),
            Err(error) => (excluded, Some(error)),
        };
        ObservedNode { uid: metadata.uid, labels, too_large, is_cordoned: None }
    }
}

impl From<PartialObjectMeta<Node>> for ObservedNode {
    fn from(node: PartialObjectMeta<Node>) -> ObservedNode {
        ObservedNode::of(node.metadata)
    }
}

impl From<Node> for ObservedNode {
    fn from(node: Node) -> ObservedNode {
        let is_cordoned = node.spec.and_then(|spec| spec.unschedulable).unwrap_or(false);
        ObservedNode { is_cordoned: Some(is_cordoned), ..ObservedNode::of(node.metadata) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_the_field_is_not_cordoned() {
        for (spec, expected) in
            [("{}", false), (r#"{"unschedulable": false}"#, false), (r#"{"unschedulable": true}"#, true)]
        {
            let text =
                format!(r#"{{"metadata": {{"uid": "u", "labels": {{"rack": "1"}}}}, "spec": {spec}}}"#);
            let node: Node = serde_json::from_str(&text).unwrap();
            let seen = ObservedNode::from(node);
            assert_eq!((seen.is_cordoned, seen.uid.as_deref()), (Some(expected), Some("u")), "{spec}");
            assert_eq!(seen.labels["rack"], "1");
        }
        let text = r#"{"metadata": {"uid": "u"}}"#;
        let metadata: PartialObjectMeta<Node> = serde_json::from_str(text).unwrap();
        assert_eq!(ObservedNode::from(metadata).is_cordoned, None, "the cordon was not read");
    }

    #[test]
    fn large_labels_are_not_kept() {
        let mut labels: BTreeMap<String, String> =
            (0..3000).map(|number| (format!("team/{number}"), "x".repeat(60))).collect();
        labels.insert(label::EXCLUDE_BALANCERS.to_owned(), String::new());
        let node: Node = serde_json::from_value(serde_json::json!({"metadata": {"labels": labels}})).unwrap();
        let seen = ObservedNode::from(node);
        assert_eq!(seen.labels.into_keys().collect::<Vec<_>>(), [label::EXCLUDE_BALANCERS]);
        assert_eq!(seen.too_large.map(|error| error.bound), Some(kept::MAX_LABELS));
    }
}
