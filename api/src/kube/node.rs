//! The addresses of a Node, which its NodeInfo may claim.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Node;

use crate::names::annotation;

/// Most addresses of the status of a Node that count. The kubelet writes them, and may be
/// compromised.
const MAX_REPORTED: usize = 16;
/// Most addresses of a Node that count, with those of its annotation.
const MAX_ADDRESSES: usize = 64;

/// The addresses of a Node: InternalIP and ExternalIP of its status, and those that an
/// administrator lists in the annotation `networking.alibaba.com/extra-local-ips`. Invalid
/// addresses are ignored, and so are those after the first 16 of the status, and after 64 in total.
pub fn node_addresses(node: &Node) -> Vec<IpAddr> {
    let status = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let reported = status
        .filter(|address| ["InternalIP", "ExternalIP"].contains(&&*address.type_))
        .map(|address| address.address.as_str());
    let annotations = node.metadata.annotations.iter();
    let extra = annotations.filter_map(|all| all.get(annotation::EXTRA_LOCAL_IPS));
    let listed = extra.flat_map(|list| list.split(',')).map(str::trim);
    let reported = reported.filter_map(|text| text.parse().ok()).take(MAX_REPORTED);
    reported.chain(listed.filter_map(|text| text.parse().ok())).take(MAX_ADDRESSES).collect()
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

    #[test]
    fn a_node_has_a_bounded_number_of_addresses() {
        let reported: Vec<_> = (0..5_000_u32)
            .map(|number| json!({"type": "InternalIP", "address": std::net::Ipv4Addr::from(number).to_string()}))
            .collect();
        let listed: Vec<String> = (0..5_000).map(|number| format!("2001:db8::{number:x}")).collect();
        let node: Node = serde_json::from_value(json!({
            "metadata": {"annotations": {"networking.alibaba.com/extra-local-ips": listed.join(",")}},
            "status": {"addresses": reported},
        }))
        .unwrap();
        let addresses = node_addresses(&node);
        let of_status = addresses.iter().filter(|address| address.is_ipv4()).count();
        assert_eq!((addresses.len(), of_status), (MAX_ADDRESSES, MAX_REPORTED));
    }
}
