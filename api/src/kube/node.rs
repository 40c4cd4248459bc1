//! The addresses of a Node, which its NodeInfo may claim.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Node;

use crate::names::annotation;

/// The addresses of a Node: InternalIP and ExternalIP of its status, and those that an
/// administrator lists in the annotation `networking.alibaba.com/extra-local-ips`. Invalid
/// addresses are ignored.
pub fn node_addresses(node: &Node) -> Vec<IpAddr> {
    let status = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let reported = status
        .filter(|address| ["InternalIP", "ExternalIP"].contains(&&*address.type_))
        .map(|address| address.address.as_str());
    let annotations = node.metadata.annotations.iter();
    let extra = annotations.filter_map(|all| all.get(annotation::EXTRA_LOCAL_IPS));
    let listed = extra.flat_map(|list| list.split(',')).map(str::trim);
    reported.chain(listed).filter_map(|text| text.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn status_and_annotation_are_the_addresses() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"annotations": {"networking.alibaba.com/extra-local-ips": "192.0.2.1, 2001:db8::1,nonsense"}},
            "status": {"addresses": [
                {"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "10.0.0.9"},
                {"type": "ExternalIP", "address": "198.51.100.1"}, {"type": "InternalIP", "address": "fd00::1"},
            ]},
        }))
        .unwrap();
        let texts: Vec<String> = node_addresses(&node).iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.0.0.1", "198.51.100.1", "fd00::1", "192.0.2.1", "2001:db8::1"]);
        assert_eq!(node_addresses(&Node::default()), Vec::<IpAddr>::new());
    }
}
