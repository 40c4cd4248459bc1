//! The service addresses as the page shows them: the answer to `trunkline services`, and the service
//! proxy. The anycast addresses are part of the live document, because they are part of the agent's
//! status.

use serde::Serialize;
use trunkline_api::control::{ProxyRulesState, ServiceProxyState, ServiceView};

use super::state::unix_now;
use crate::services::{ProxyHealth, Services};

/// Maximum number of shown addresses.
const ADDRESSES: usize = 2000;

/// The document.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ServicesDocument {
    /// The time of the document: ages in it count from this moment.
    at: u64,
    /// Whether this node advertises service addresses at all.
    available: bool,
    /// Whether all Services and EndpointSlices are known.
    known: bool,
    /// Number of all addresses.
    count: usize,
    services: Vec<ServiceView>,
    proxy: Option<ProxyRow>,
}

/// The service proxy of this node.
#[derive(Debug, PartialEq, Serialize)]
struct ProxyRow {
    /// None before its first answer.
    state: Option<ServiceProxyState>,
    /// None if they are not known yet.
    rules: Option<ProxyRulesState>,
    /// Whether its rules are later than the endpoints.
    late: bool,
}

/// Makes the document.
pub(super) async fn document(services: Option<&Services>) -> ServicesDocument {
    let Some(services) = services else {
        return ServicesDocument { at: unix_now(), ..ServicesDocument::default() };
    };
    let mut views = services.view(None).await;
    let summary = services.summary();
    let count = views.len();
    views.truncate(ADDRESSES);
    ServicesDocument {
        at: unix_now(),
        available: true,
        known: summary.known,
        count,
        services: views,
        proxy: Some(ProxyRow {
            state: state(summary.proxy.health),
            rules: summary.proxy.rules,
            late: summary.late_since.is_some(),
        }),
    }
}

fn state(health: ProxyHealth) -> Option<ServiceProxyState> {
    match health {
        ProxyHealth::Up => Some(ServiceProxyState::Up),
        ProxyHealth::Away { .. } => Some(ServiceProxyState::Away),
        ProxyHealth::Unhealthy => Some(ServiceProxyState::Unhealthy),
        ProxyHealth::NotEligible => Some(ServiceProxyState::NotEligible),
        ProxyHealth::NotChecked => Some(ServiceProxyState::NotChecked),
        ProxyHealth::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_node_without_service_addresses_has_an_empty_document() {
        let document = serde_json::to_value(document(None).await).unwrap();
        assert_eq!(
            (&document["available"], &document["services"], &document["proxy"]),
            (&json!(false), &json!([]), &json!(null))
        );
    }

    #[test]
    fn the_service_proxy_has_the_names_of_the_api() {
        for (health, name) in [
            (ProxyHealth::Up, json!("up")),
            (ProxyHealth::Away { since: Instant::now() }, json!("away")),
            (ProxyHealth::NotEligible, json!("notEligible")),
            (ProxyHealth::Unknown, json!(null)),
        ] {
            let row = ProxyRow { state: state(health), rules: Some(ProxyRulesState::Nftables), late: false };
            let row = serde_json::to_value(row).unwrap();
            assert_eq!((&row["state"], &row["rules"]), (&name, &json!("nftables")));
        }
    }
}
