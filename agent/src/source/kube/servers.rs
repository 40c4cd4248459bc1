//! The addresses of the API server: the endpoints of the Service `default/kubernetes`, and the server
//! in this agent's configuration. A remote cluster may not have them: without its API server an agent
//! would not read that the remote cluster's objects were deleted.
//!
//! They are watched only with remote clusters. An address in `server` of a kubeconfig can be a name:
//! it is resolved after each list, so also after an outage.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, ResourceExt};
use tokio::net::lookup_host;
use tokio::time::timeout;

use super::cluster::QUESTION;
use super::watch::{Change, FullObjects, Selector};

/// The watch of the endpoints.
pub(super) const SERVERS: &str = "endpointslices of the API server";

pub(super) fn source(client: kube::Client) -> (FullObjects<EndpointSlice>, Selector) {
    let selector = Selector::label("kubernetes.io/service-name", "kubernetes");
    (FullObjects(Api::namespaced(client, "default")), selector)
}

/// A change, with the configured server's addresses if they were looked up for it.
pub(super) struct ServersChange {
    slices: Change<EndpointSlice>,
    configured: Option<BTreeSet<IpAddr>>,
}

impl ServersChange {
    /// Looks up the configured server after a list.
    pub(super) async fn of(slices: Change<EndpointSlice>, host: &str) -> ServersChange {
        let configured = match slices {
            Change::Listed(_) => look_up(host).await,
            _ => None,
        };
        ServersChange { slices, configured }
    }

    /// Whether this ends a list.
    pub(super) fn is_list(&self) -> bool {
        self.slices.is_list()
    }
}

async fn look_up(host: &str) -> Option<BTreeSet<IpAddr>> {
    if let Ok(address) = host.parse() {
        return Some([address].into());
    }
    // The port has no meaning here.
    match timeout(QUESTION, lookup_host((host, 443))).await {
        Ok(Ok(found)) => Some(found.map(|address| address.ip()).collect()),
        Ok(Err(error)) => {
            tracing::warn!(host, %error, "the API server's name is not resolved: its known addresses stay");
            None
        }
        Err(_) => {
            tracing::warn!(host, "DNS does not answer for the API server's name: its known addresses stay");
            None
        }
    }
}

/// The known addresses.
#[derive(Default)]
pub(super) struct Servers {
    /// By EndpointSlice.
    slices: BTreeMap<String, BTreeSet<IpAddr>>,
    configured: BTreeSet<IpAddr>,
}

impl Servers {
    /// Applies a change. Returns whether a snapshot may differ.
    pub(super) fn take(&mut self, change: ServersChange) -> bool {
        let ServersChange { slices, configured } = change;
        if let Some(configured) = configured {
            self.configured = configured;
        }
        match slices {
            Change::Listed(listed) => {
                self.slices = listed.iter().map(|slice| (slice.name_any(), addresses(slice))).collect();
                // A list counts even without a change, because the snapshot may be waiting for it.
                true
            }
            Change::Applied(slice) => {
                let new = addresses(&slice);
                self.slices.insert(slice.name_any(), new.clone()) != Some(new)
            }
            Change::Deleted(slice) => self.slices.remove(&slice.name_any()).is_some(),
            Change::Page { .. } | Change::Failing(_) => false,
        }
    }

    pub(super) fn addresses(&self) -> BTreeSet<IpAddr> {
        self.slices.values().flatten().chain(&self.configured).copied().collect()
    }
}

fn addresses(slice: &EndpointSlice) -> BTreeSet<IpAddr> {
    let texts = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
    texts.filter_map(|text| text.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(name: &str, addresses: &[&str]) -> EndpointSlice {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": name},
            "addressType": "IPv4", "endpoints": [{"addresses": addresses}],
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn the_api_server_has_the_addresses_of_its_endpoints_and_of_the_configuration() {
        let mut servers = Servers::default();
        let texts = |servers: &Servers| -> Vec<String> {
            servers.addresses().iter().map(ToString::to_string).collect()
        };
        let listed = Change::Listed(vec![slice("kubernetes", &["192.0.2.1", "192.0.2.2"])]);
        assert!(servers.take(ServersChange::of(listed, "10.96.0.1").await));
        assert_eq!(texts(&servers), ["10.96.0.1", "192.0.2.1", "192.0.2.2"]);
        let same = Change::Applied(slice("kubernetes", &["192.0.2.1", "192.0.2.2"]));
        assert!(!servers.take(ServersChange::of(same, "2001:db8::1").await));
        let more = Change::Applied(slice("kubernetes-6", &["2001:db8::2"]));
        assert!(servers.take(ServersChange::of(more, "").await));
        assert_eq!(texts(&servers), ["10.96.0.1", "192.0.2.1", "192.0.2.2", "2001:db8::2"]);
        // A failing lookup keeps the known addresses.
        let listed = Change::Listed(vec![slice("kubernetes", &["192.0.2.2"])]);
        assert!(servers.take(ServersChange::of(listed, "name.invalid").await));
        assert_eq!(texts(&servers), ["10.96.0.1", "192.0.2.2"]);
        let listed = Change::Listed(vec![slice("kubernetes", &["192.0.2.2"])]);
        servers.take(ServersChange::of(listed, "localhost").await);
        assert!(texts(&servers).iter().any(|address| address == "127.0.0.1" || address == "::1"));
        assert!(!servers.addresses().iter().any(|address| address.to_string() == "10.96.0.1"));
    }
}
