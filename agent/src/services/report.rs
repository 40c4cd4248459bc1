//! The advertised addresses of this node in the form of its NodeServices.

use trunkline_api::control::ServiceProxyState;
use trunkline_api::kept;
use trunkline_api::resources::{NodeServiceAddress, NodeServiceProxy, NodeServicesStatus};

use super::engine::{Engine, State};
use super::{ProxyHealth, ProxyState};

impl Engine {
    /// The advertised addresses and the service proxy.
    pub(super) fn node_services(&self) -> NodeServicesStatus {
        let active = || self.addresses.iter().filter(|(_, row)| row.shown().is_active());
        let services = active().take(NodeServicesStatus::MAX_SERVICES).map(|(address, row)| {
            let names = row.names.iter().filter(|name| !name.is_empty());
            let names = names.take(NodeServicesStatus::MAX_ADVERTISEMENTS);
            NodeServiceAddress {
                address: address.to_string(),
                state: self.shown(row.state),
                reason: match row.state {
                    State::ShuttingDown { reason, .. } => Some(reason),
                    State::Advertised | State::Withheld(_) => None,
                },
                advertisements: names.map(ToString::to_string).collect(),
            }
        });
        NodeServicesStatus {
            services: services.collect(),
            truncated: active().nth(NodeServicesStatus::MAX_SERVICES).is_some(),
            anycast: Vec::new(),
            proxy: proxy(self.proxy, &self.settings.proxy_address),
        }
    }
}

/// The service proxy; none before its first answer. The text has no duration: it would change with
/// every second.
fn proxy(proxy: ProxyState, address: &str) -> Option<NodeServiceProxy> {
    let (state, message) = match proxy.health {
        ProxyHealth::Unknown => return None,
        ProxyHealth::Up => (ServiceProxyState::Up, String::new()),
        ProxyHealth::NotChecked => (ServiceProxyState::NotChecked, String::new()),
        ProxyHealth::Away { .. } => (
            ServiceProxyState::Away,
            format!(
                "kube-proxy does not answer at {address}: start it, or set services.proxy.healthAddress \
                 in agent.yaml"
            ),
        ),
        ProxyHealth::Unhealthy => {
            (ServiceProxyState::Unhealthy, format!("kube-proxy is unhealthy at {address}: look at its log"))
        }
        ProxyHealth::NotEligible => (
            ServiceProxyState::NotEligible,
            format!(
                "kube-proxy at {address} reports nodeEligible: false: the cluster autoscaler deletes \
                 this node"
            ),
        ),
    };
    let message = kept::cut(&message, NodeServicesStatus::MAX_TEXT).to_owned();
    Some(NodeServiceProxy { state, rules: proxy.rules?, message })
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;
    use trunkline_api::control::ProxyRulesState;

    use super::*;

    #[test]
    fn a_proxy_without_an_answer_is_not_reported() {
        let rules = Some(ProxyRulesState::Iptables);
        let of = |health, rules| proxy(ProxyState { health, rules }, "127.0.0.1:10256");
        assert_eq!(of(ProxyHealth::Unknown, rules), None);
        assert_eq!(of(ProxyHealth::Up, None), None);
        let up = of(ProxyHealth::Up, rules).unwrap();
        assert_eq!(
            (up.state, up.rules, up.message.as_str()),
            (ServiceProxyState::Up, ProxyRulesState::Iptables, "")
        );
        let away = of(ProxyHealth::Away { since: Instant::now() }, rules).unwrap();
        assert!(away.message.starts_with("kube-proxy does not answer at 127.0.0.1:10256: "), "{away:?}");
    }
}
