//! Service addresses on this node: their state, and the reason of the state.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::names::names;
use crate::names::full_name;
use crate::service::{AddressKind, TrafficPolicy};

names! {
    /// State of a service address on this node.
    pub enum AdvertisementState {
        /// Not advertised.
        Withheld = "withheld",
        /// Advertised.
        Advertised = "advertised",
        /// Advertised with GRACEFUL_SHUTDOWN (RFC 8326) before its withdrawal.
        ShuttingDown = "shuttingDown",
        /// Advertised since before the agent's restart; the Services are not known yet.
        Retained = "retained",
    }
}

names! {
    /// The reason why this node does not advertise a service address, or will withdraw it.
    pub enum WithheldReason {
        /// The Services and EndpointSlices were not listed yet.
        NotKnown = "notKnown",
        /// The node is drained.
        NodeDrained = "nodeDrained",
        /// The node has no Network with BGP peers.
        NoBgp = "noBgp",
        /// The node has the label `node.kubernetes.io/exclude-from-external-load-balancers`.
        NodeExcluded = "nodeExcluded",
        /// The node is cordoned.
        NodeCordoned = "nodeCordoned",
        /// No nodeSelector of the ServiceAdvertisements selects the node.
        NodeNotSelected = "nodeNotSelected",
        /// No ServiceAdvertisement selects the Service.
        NotSelected = "notSelected",
        /// The node has no device of the L2 pool's Network.
        NoVlan = "noVlan",
        /// The address is in no ServicePool.
        NotInPool = "notInPool",
        /// The External address is outside of `externalCIDRs`.
        NotAllowed = "notAllowed",
        /// The Service exceeds a bound.
        TooLarge = "tooLarge",
        /// The Service has no ready endpoint.
        NoEndpoint = "noEndpoint",
        /// The Service has policy Local, and no ready endpoint on this node.
        NoLocalEndpoint = "noLocalEndpoint",
        /// No host route leads to the endpoint on this node.
        NoHostRoute = "noHostRoute",
        /// The last endpoint on this node terminates.
        Terminating = "terminating",
        /// The service proxy does not answer, or is unhealthy.
        ProxyDown = "proxyDown",
        /// The service proxy reports that the node gets no traffic.
        ProxyNotEligible = "proxyNotEligible",
        /// The service proxy has no rules for the address yet.
        NoRules = "noRules",
        /// The rules of the service proxy drop or reject packets to the address.
        RulesBlock = "rulesBlock",
        /// The rules of the service proxy miss a new port.
        RulesLag = "rulesLag",
        /// Another node answers for the address (L2).
        OtherHolder = "otherHolder",
        /// The health check of the anycast address fails.
        Unhealthy = "unhealthy",
    }
}

names! {
    /// State of the node's service proxy.
    pub enum ServiceProxyState {
        /// It is healthy.
        Up = "up",
        /// It does not answer.
        Away = "away",
        /// It reports that its rules are out of date.
        Unhealthy = "unhealthy",
        /// It reports that the node gets no traffic.
        NotEligible = "notEligible",
        /// The configuration has no service proxy to check.
        NotChecked = "notChecked",
    }
}

names! {
    /// The rules of the service proxy that the agent reads.
    pub enum ProxyRulesState {
        /// The tables of kube-proxy in mode nftables.
        Nftables = "nftables",
        /// The chains of kube-proxy in mode iptables, in nf_tables.
        Iptables = "iptables",
        /// The service proxy has other rules, which the agent cannot read.
        NotVisible = "notVisible",
        /// There are no rules.
        Absent = "absent",
    }
}

/// A service address on this node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceView {
    /// The Service's namespace.
    pub namespace: String,
    /// The Service's name.
    pub name: String,
    /// The address.
    pub address: IpAddr,
    /// The kind of the address.
    pub kind: AddressKind,
    /// `externalTrafficPolicy`; for a Cluster address `internalTrafficPolicy`.
    pub policy: TrafficPolicy,
    /// The ServicePool of the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The state on this node.
    pub state: AdvertisementState,
    /// The reason why it is not advertised, or will be withdrawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<WithheldReason>,
    /// State and reason as text, with the fix.
    pub text: String,
    /// The prefixes that this node advertises for it.
    #[serde(default)]
    pub prefixes: Vec<AdvertisedPrefix>,
    /// Ready endpoints on this node.
    pub local_ready: u32,
    /// Ready endpoints on all nodes.
    pub ready: u32,
    /// Time since the last change of `state`.
    pub since_seconds: u64,
    /// The nodes that advertise it; none if the query does not need them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<String>>,
}

impl ServiceView {
    /// `namespace/name` of the Service.
    pub fn title(&self) -> String {
        full_name(&self.namespace, &self.name)
    }
}

/// A prefix that this node advertises for a service address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdvertisedPrefix {
    /// The prefix: the address, or one that covers several.
    pub prefix: IpNet,
    /// The ServiceAdvertisements; empty if the default is in force.
    #[serde(default)]
    pub advertisements: Vec<String>,
    /// The peers that the ServiceAdvertisements name; none: all peers. See
    /// [`super::Peer::name`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<Vec<String>>,
    /// The link bandwidth (RFC 10005), in octets per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_bandwidth: Option<f32>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    #[test]
    fn every_reason_has_a_name_of_its_own() {
        let names: BTreeSet<&str> = WithheldReason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!((WithheldReason::ALL.len(), names.len()), (22, 22));
        let later = serde_json::from_value::<WithheldReason>(json!("ofALaterVersion"));
        assert_eq!(later.unwrap(), WithheldReason::Unknown);
    }

    #[test]
    fn a_view_reads_back_as_written() {
        let view = ServiceView {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            address: "10.0.0.7".parse().unwrap(),
            kind: AddressKind::LoadBalancer,
            policy: TrafficPolicy::Local,
            pool: Some("p1".to_owned()),
            state: AdvertisementState::ShuttingDown,
            reason: Some(WithheldReason::Terminating),
            text: "the last endpoint on this node terminates".to_owned(),
            prefixes: vec![AdvertisedPrefix {
                prefix: "10.0.0.7/32".parse().unwrap(),
                advertisements: vec!["a1".to_owned()],
                peers: None,
                link_bandwidth: Some(125_000_000.0),
            }],
            local_ready: 0,
            ready: 3,
            since_seconds: 2,
            nodes: None,
        };
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!((&json["state"], &json["policy"]), (&json!("shuttingDown"), &json!("Local")));
        assert_eq!(json["prefixes"][0]["linkBandwidth"], json!(125_000_000.0));
        assert_eq!(serde_json::from_value::<ServiceView>(json).unwrap(), view);
        assert_eq!(view.title(), "default/web");
    }
}
