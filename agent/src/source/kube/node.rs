//! What matters of this Node. Its metadata is enough, but for the cordon, which stands in its specification: only where that is followed is the
//! whole of it watched, some 10 kB whenever its kubelet reports.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;

/// This Node, as far as it matters.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ObservedNode {
    pub(super) uid: Option<String>,
    pub(super) labels: BTreeMap<String, String>,
    /// Whether no pods may be scheduled there, if that is looked at.
    pub(super) is_cordoned: Option<bool>,
}

impl ObservedNode {
    fn of(metadata: ObjectMeta) -> ObservedNode {
        ObservedNode { uid: metadata.uid, labels: metadata.labels.unwrap_or_default(), is_cordoned: None }
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
    fn a_node_that_does_not_say_so_is_not_cordoned() {
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
        assert_eq!(ObservedNode::from(metadata).is_cordoned, None, "nobody has looked");
    }
}
