//! EndpointSlices of a Service, as their controller writes them.

use std::net::IpAddr;

use serde_json::{Value, json};

/// A pod behind a Service.
pub(crate) struct Endpoint<'a> {
    /// Its IPv4 and its IPv6 address.
    pub addresses: &'a [IpAddr],
    pub node: &'a str,
    /// A pod that is not ready is terminating, and serves.
    pub is_ready: bool,
}

/// The slices of both families, as YAML documents.
pub(crate) fn slices(namespace: &str, service: &str, port: u16, endpoints: &[Endpoint<'_>]) -> String {
    let slice = |(index, family): (usize, &str)| {
        let endpoint = |it: &Endpoint<'_>| {
            json!({
                "addresses": [it.addresses.get(index)], "nodeName": it.node,
                "conditions": { "ready": it.is_ready, "serving": true, "terminating": !it.is_ready },
            })
        };
        let endpoints: Vec<Value> = endpoints.iter().map(endpoint).collect();
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{service}-{}", family.to_lowercase()), "namespace": namespace,
                "labels": { "kubernetes.io/service-name": service },
            },
            "addressType": family, "endpoints": endpoints,
            "ports": [{ "name": "", "port": port, "protocol": "TCP" }],
        });
        slice.to_string()
    };
    ["IPv4", "IPv6"].into_iter().enumerate().map(slice).collect::<Vec<_>>().join("\n---\n")
}
