//! AgentSettings: fields of the agents' configuration for the nodes that a selector selects.
//!
//! The fields have the names and the values of agent.yaml. The kind has only fields that make sense
//! for a group of nodes: no paths, sockets, credentials or access to the API server, nothing that is
//! equal on every node, and no switch of the guard or of network policies.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::meta::ObjectMeta;
use super::selector::LabelSelector;
use crate::value::{is_default, null_default};

/// Settings of the agents of several nodes: cluster-scoped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentSettings {
    /// `trunkline.io/v1alpha1`.
    pub api_version: String,
    /// `AgentSettings`.
    pub kind: String,
    /// Name and labels.
    pub metadata: ObjectMeta,
    /// The desired state.
    pub spec: AgentSettingsSpec,
}

/// The desired state of an [`AgentSettings`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentSettingsSpec {
    /// The nodes. Empty: all.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub node_selector: LabelSelector,
    /// The order of objects that set the same field on a node: the highest number has effect, of
    /// equal ones the first by name. See [`AgentSettingsSpec::priority`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// Fields of agent.yaml. They replace the fields of the file; a list replaces the whole list.
    pub config: AgentConfig,
}

/// The fields of agent.yaml that an [`AgentSettings`] can set. docs/agent-settings.md lists the
/// fields that apply only at the next start of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentConfig {
    /// The largest MTU of new pods, in octets. It only lowers the MTU that follows from the links.
    #[serde(rename = "podMTU", default, skip_serializing_if = "Option::is_none")]
    pub pod_mtu: Option<u16>,
    /// Links that may carry the VLANs of VLAN networks: the first existing link is used. An entry is
    /// a name, a regular expression such as `/^eth[0-9]+$/`, or `can-reach=ADDRESS`. Empty: the link
    /// of the default route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan_interfaces: Option<Vec<String>>,
    /// The sender of the node's ARP requests on VLAN devices.
    #[serde(rename = "vlanARPSender", default, skip_serializing_if = "Option::is_none")]
    pub vlan_arp_sender: Option<VlanArpSender>,
    /// Prefixes of Services, for pods with an IPVLAN slave.
    #[serde(rename = "serviceCIDRs", default, skip_serializing_if = "Option::is_none")]
    pub service_cidrs: Option<Vec<String>>,
    /// Links of the tunnels of mode VXLAN, written like `vlanInterfaces`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vxlan_interfaces: Option<Vec<String>>,
    /// Prefixes for the VTEP of the node. The VTEP is the first address of the tunnels' link in one of
    /// these prefixes.
    #[serde(rename = "vtepAddressCIDRs", default, skip_serializing_if = "Option::is_none")]
    pub vtep_address_cidrs: Option<Vec<String>>,
    /// Prefixes of the node's addresses on other links than the tunnels'. Overlay pods reach these
    /// addresses through the tunnel.
    #[serde(rename = "vtepLocalAddressCIDRs", default, skip_serializing_if = "Option::is_none")]
    pub vtep_local_address_cidrs: Option<Vec<String>>,
    /// What happens to packets to an address of an overlay Subnet that no pod has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_overlay_addresses: Option<UnknownOverlayAddresses>,
    /// Limits of the kernel. The agent only raises them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_limits: Option<AgentKernelLimits>,
    /// Settings of the kernel that the agent writes only on request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sysctls: Option<AgentSysctls>,
    /// Probes of the routers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<AgentProbes>,
    /// Maximum number of next hops of one route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_paths: Option<u8>,
    /// Maximum time for which the first route selection after a restart of the agent waits for the
    /// peers' End-of-RIB, in seconds (RFC 4724 §4.1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection_deferral_seconds: Option<u16>,
    /// Advertisement of Services' addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<AgentServices>,
    /// The readiness of pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness: Option<AgentReadiness>,
    /// The drain of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<AgentDrain>,
    /// Checks on a VLAN before a pod uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan_check: Option<AgentVlanCheck>,
}

/// The sender of ARP requests that a node sends on VLAN devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum VlanArpSender {
    /// An address of the node.
    #[default]
    Node,
    /// The address of a pod of this node in the Subnet, if there is one.
    Pod,
}

/// What happens to packets to an address of an overlay Subnet that no pod has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum UnknownOverlayAddresses {
    /// The node drops them.
    #[default]
    Drop,
    /// The node answers with an ICMP error (host unreachable).
    Reject,
}

/// The service proxy of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ServiceProxyKind {
    /// kube-proxy, or a program with its health check: the agent follows its health and, where the
    /// kernel shows them, its rules.
    #[default]
    Auto,
    /// Another program: the agent follows endpoints only.
    None,
}

/// Limits of the kernel, for both IP families and all network namespaces of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentKernelLimits {
    /// Neighbour entries (ARP, ND) of the host. 0: the agent writes none of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neighbours: Option<u32>,
    /// IPv6 routes and exceptions. 0: the agent writes none of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6_routes: Option<u32>,
}

/// Settings of the kernel that the agent writes only on request. False changes nothing: an existing
/// value stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentSysctls {
    /// `net.ipv4.conf.INTERFACE.route_localnet` 1 on each pod's host interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route_localnet: Option<bool>,
    /// `net.ipv4.conf.all.arp_filter` 0.
    #[serde(rename = "disableARPFilter", default, skip_serializing_if = "Option::is_none")]
    pub disable_arp_filter: Option<bool>,
}

/// Probes of the routers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentProbes {
    /// Addresses of other nodes that answer an echo request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<Vec<String>>,
    /// Time between two rounds of probes, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_seconds: Option<u16>,
    /// Octets of a large probe, from the IP header on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u16>,
}

/// Advertisement of Services' addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentServices {
    /// The service proxy of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<AgentServiceProxy>,
}

/// The service proxy of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentServiceProxy {
    /// The service proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ServiceProxyKind>,
    /// Time for which addresses stay advertised while the service proxy does not answer, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_seconds: Option<u16>,
    /// Time from a change to its rules, in milliseconds, if the agent cannot see the rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settle_milliseconds: Option<u16>,
}

/// The readiness of pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentReadiness {
    /// Maximum time for which an ADD waits until an established peer has received the pod's
    /// addresses, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u16>,
}

/// The drain of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentDrain {
    /// Time for the fabric to use other paths in `trunkline drain`, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settle_seconds: Option<u16>,
}

/// Checks on a VLAN before a pod uses it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentVlanCheck {
    /// Time limit for the subnet's gateway to answer ARP or Neighbour Discovery, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u16>,
    /// Time for another host with the pod's address to answer, in milliseconds; 0: no duplicate
    /// address check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplicate_address_wait_milliseconds: Option<u16>,
}

impl AgentSettings {
    /// `metadata.name`.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }
}

impl AgentSettingsSpec {
    /// The priority of an object without one.
    pub const DEFAULT_PRIORITY: u32 = 100;

    /// The priority, or its default. The highest has effect.
    pub fn priority(&self) -> u32 {
        self.priority.unwrap_or(Self::DEFAULT_PRIORITY)
    }
}

impl AgentConfig {
    /// The set fields by path (`kernelLimits.neighbours`), each with its value.
    pub fn fields(&self) -> BTreeMap<String, Value> {
        let mut fields = BTreeMap::new();
        // The type has only texts as keys, so this cannot fail.
        collect("", &serde_json::to_value(self).unwrap_or_default(), &mut fields);
        fields
    }
}

/// Adds the values of a section that are no sections themselves.
fn collect(path: &str, value: &Value, fields: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(section) => {
            for (name, value) in section {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                collect(&path, value, fields);
            }
        }
        value => drop(fields.insert(path.to_owned(), value.clone())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_set_fields_are_listed() {
        let config: AgentConfig = serde_json::from_value(json!({
            "podMTU": 1400, "vlanInterfaces": [], "kernelLimits": {"neighbours": 8192}, "sysctls": {},
            "services": {"proxy": {"kind": "none"}}, "maxPaths": null,
        }))
        .unwrap();
        let fields: Vec<(String, Value)> = config.fields().into_iter().collect();
        let expected = [
            ("kernelLimits.neighbours", json!(8192)),
            ("podMTU", json!(1400)),
            ("services.proxy.kind", json!("none")),
            ("vlanInterfaces", json!([])),
        ];
        assert_eq!(fields, expected.map(|(field, value)| (field.to_owned(), value)));
    }
}
