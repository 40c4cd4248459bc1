//! Network, Subnet and IPInstance as hybridnet v0.8.9 writes them, plus what Trunkline adds to a BGP peer.
//!
//! A manifest that hybridnet's API server takes, or gives back (`kubectl get -o yaml`), loads unchanged: names and
//! defaults are the same, `null` and `""` stand for "not said" wherever its Go structs write them. Any other
//! field is refused, so that a typing error is seen at once.
//!
//! Addresses are kept as text, and are parsed by the methods here: a text that is no address is a fault of its
//! field ([`crate::validate`]), not of the file. After validation those methods cannot fail, and
//! their errors are passed on with `?`.
//!
//! Different from hybridnet: AS numbers are unsigned 32-bit, and secrets are neither printed nor serialized.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::policy::Policy;

/// A set of nodes that share one way into the network: cluster-scoped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Network {
    /// `networking.alibaba.com/v1`.
    pub api_version: String,
    /// `Network`.
    pub kind: String,
    /// Its name and labels.
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(default)]
    pub spec: NetworkSpec,
    /// What was seen. Written by the controller only, and ignored in manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<NetworkStatus>,
}

/// What is wanted of a [`Network`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkSpec {
    /// Labels that a node has when it belongs to the network; for Underlay only, and needed there.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// VLAN: the VLAN id (0: untagged). VXLAN: the VNI. BGP: the AS number of the nodes.
    #[serde(default, rename = "netID", skip_serializing_if = "Option::is_none")]
    pub net_id: Option<u32>,
    /// Underlay unless said; see [`Network::network_type`].
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub network_type: Option<NetworkType>,
    /// Follows from the type unless said; see [`Network::mode`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<NetworkMode>,
    /// Needed in mode BGP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<NetworkConfig>,
}

/// Where the addresses of a network live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NetworkType {
    /// On the real network, at the selected nodes.
    Underlay,
    /// Inside tunnels, on every node.
    Overlay,
    /// On the real network, at every node that is in an Underlay network of mode BGP.
    GlobalBGP,
}

/// How pods of a network are joined to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NetworkMode {
    /// A VLAN of the node's link. Goes with Underlay, and is its default.
    VLAN,
    /// A VXLAN tunnel. Goes with Overlay, and is its default.
    VXLAN,
    /// Routes told by BGP, the subnet and every pod. Goes with Underlay.
    BGP,
    /// Routes told by BGP, pods only. Goes with GlobalBGP, and is its default.
    GlobalBGP,
}

/// Further settings of a [`Network`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkConfig {
    /// The routers that the nodes peer with; at least one in mode BGP.
    #[serde(
        default,
        rename = "bgpPeers",
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub bgp_peers: Vec<BgpPeer>,
}

/// A router that the nodes of a network peer with. From `port` on, the fields are Trunkline's own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BgpPeer {
    /// Its AS number, 1 to 4294967295.
    pub asn: u32,
    /// Its address; a link-local one with its interface, `fe80::1%eth1`. See [`BgpPeer::endpoint`].
    pub address: String,
    /// The Restart Time offered (RFC 4724), at most 4095 s; 0 or nothing is 300 s.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub graceful_restart_seconds: u32,
    /// TCP-MD5 key, 1 to 80 octets. See [`BgpPeer::password`].
    #[serde(default, skip_serializing)]
    pub password: Option<Secret>,
    /// The session tells routes (as to a route server), but no traffic is sent to this router.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub does_not_route_traffic: bool,
    /// Pods may start while this session is down.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub allow_not_established: bool,

    /// Its TCP port; 179 unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The address of this node that the session runs from; by default what the route to the peer says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_address: Option<String>,
    /// A file on the node that holds the TCP-MD5 key (a newline at its end is not part of it).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<String>,
    /// Hold Time offered: 0 (never expires) or 3 to 65535 s; 90 unless said (RFC 4271 §4.2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_time_seconds: Option<u32>,
    /// Between KEEPALIVEs, at most a third of the Hold Time; a third of the negotiated one unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keepalive_seconds: Option<u32>,
    /// Between attempts to connect, 1 to 65535 s; 120 unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_retry_seconds: Option<u32>,
    /// External peers that are not on a connected network: the TTL to send with, 1 to 255.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ebgp_multihop: Option<u32>,
    /// GTSM (RFC 5082): the most hops that the peer is away, 1 to 254; excludes `ebgpMultihop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_security: Option<u32>,
    /// Wait for the peer to connect.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub passive: bool,
    /// More prefixes than this, over both families, end the session (RFC 4486); at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_prefixes: Option<u32>,
    /// Given: what the peer advertises and this policy accepts is routed. Not given: a default route to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub import: Option<Policy>,
}

/// A range of addresses of a [`Network`]: cluster-scoped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Subnet {
    /// `networking.alibaba.com/v1`.
    pub api_version: String,
    /// `Subnet`.
    pub kind: String,
    /// Its name and labels.
    pub metadata: ObjectMeta,
    /// What is wanted.
    pub spec: SubnetSpec,
    /// What was seen. Written by the controller only, and ignored in manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<SubnetStatus>,
}

/// What is wanted of a [`Subnet`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubnetSpec {
    /// The addresses.
    pub range: AddressRange,
    /// The VLAN id, where the network leaves it to its subnets.
    #[serde(default, rename = "netID", skip_serializing_if = "Option::is_none")]
    pub net_id: Option<u32>,
    /// Name of the network.
    pub network: String,
    /// Further settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<SubnetConfig>,
}

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum IpVersion {
    /// IPv4.
    #[serde(rename = "4")]
    V4,
    /// IPv6.
    #[serde(rename = "6")]
    V6,
}

/// The addresses of a subnet as they were written; [`AddressRange::parse`] makes addresses of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddressRange {
    /// `"4"` or `"6"`.
    pub version: IpVersion,
    /// First address given out; the one after the network address unless said.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub start: String,
    /// Last address given out; the last of the CIDR unless said.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub end: String,
    /// The prefix, without host bits.
    pub cidr: String,
    /// The router on the subnet's VLAN. Never given out.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub gateway: String,
    /// Given out only to who names them.
    #[serde(
        default,
        rename = "reservedIPs",
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub reserved_ips: Vec<String>,
    /// Never given out.
    #[serde(
        default,
        rename = "excludeIPs",
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub exclude_ips: Vec<String>,
}

/// Further settings of a [`Subnet`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubnetConfig {
    /// Reserved by hybridnet, not supported.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub gateway_type: String,
    /// Reserved by hybridnet, not supported.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub gateway_node: String,
    /// Pods reach addresses outside all subnets with the node's address; see [`Subnet::nat_outgoing`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_nat_outgoing: Option<bool>,
    /// Addresses only for who names the subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private: Option<bool>,
    /// Reserved by hybridnet, not supported.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub allow_subnets: Vec<String>,
}

/// One address that was given to a pod: in the pod's namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IPInstance {
    /// `networking.alibaba.com/v1`.
    pub api_version: String,
    /// `IPInstance`.
    pub kind: String,
    /// Its name, namespace and labels.
    pub metadata: ObjectMeta,
    /// What was given.
    pub spec: IPInstanceSpec,
    /// Who uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<IPInstanceStatus>,
}

/// What was given with an [`IPInstance`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IPInstanceSpec {
    /// Name of the network.
    pub network: String,
    /// Name of the subnet.
    pub subnet: String,
    /// The address.
    pub address: Address,
    /// The pod it is for.
    #[serde(default, deserialize_with = "null_default")]
    pub binding: Binding,
}

/// The address of an [`IPInstance`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Address {
    /// `"4"` or `"6"`.
    pub version: IpVersion,
    /// The address with the subnet's length, `10.0.0.7/24`.
    pub ip: String,
    /// The subnet's gateway.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub gateway: String,
    /// The VLAN id or VNI.
    #[serde(default, rename = "netID", skip_serializing_if = "Option::is_none")]
    pub net_id: Option<u32>,
    /// The pod's MAC address.
    pub mac: String,
}

/// The pod that an [`IPInstance`] is for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Binding {
    /// The object that owns the pod.
    #[serde(default, deserialize_with = "null_default")]
    pub referred_object: ReferredObject,
    /// The pod's node; empty while the address is only kept for it.
    #[serde(default, deserialize_with = "null_default")]
    pub node_name: String,
    /// The pod's UID; empty while the address is only kept for it.
    #[serde(
        default,
        rename = "podUID",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub pod_uid: String,
    /// The pod's name.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub pod_name: String,
    /// Of a stateful pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stateful: Option<Stateful>,
}

/// The owner of a pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReferredObject {
    /// Its kind, such as `StatefulSet`.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Its name.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its UID.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// The place of a stateful pod in its set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Stateful {
    /// Its ordinal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
}

/// Name, labels and the rest of Kubernetes' metadata that matters here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ObjectMeta {
    /// The object's name, unique in its kind (and namespace).
    pub name: String,
    /// The namespace of namespaced kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// For selection.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// For programs.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Who holds the object back from deletion.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
    /// Unique over time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Changes with every write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// Changes with every change of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<String>,
    /// RFC 3339; the object goes away once it has no finalizer left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
    /// Seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_grace_period_seconds: Option<i64>,
    /// Not used.
    #[serde(default, skip_serializing)]
    pub generate_name: Ignored,
    /// Not used.
    #[serde(default, skip_serializing)]
    pub self_link: Ignored,
    /// Not used.
    #[serde(default, skip_serializing)]
    pub owner_references: Ignored,
    /// Not used.
    #[serde(default, skip_serializing)]
    pub managed_fields: Ignored,
}

/// What was seen of a [`Network`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkStatus {
    /// The subnet that the last address (IPv4) came from.
    #[serde(default, deserialize_with = "null_default")]
    pub last_allocated_subnet: String,
    /// The subnet that the last IPv6 address came from.
    #[serde(
        default,
        rename = "lastAllocatedIPv6Subnet",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub last_allocated_ipv6_subnet: String,
    /// Its subnets.
    #[serde(default, deserialize_with = "null_default")]
    pub subnet_list: Vec<String>,
    /// Its nodes.
    #[serde(default, deserialize_with = "null_default")]
    pub node_list: Vec<String>,
    /// IPv4 addresses.
    #[serde(default)]
    pub statistics: Option<Count>,
    /// IPv6 addresses.
    #[serde(default, rename = "ipv6Statistics", skip_serializing_if = "Option::is_none")]
    pub ipv6_statistics: Option<Count>,
    /// Pairs of both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dual_stack_statistics: Option<Count>,
}

/// Addresses of a network or subnet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Count {
    /// That there are.
    #[serde(default)]
    pub total: i64,
    /// That pods have.
    #[serde(default)]
    pub used: i64,
    /// That are left.
    #[serde(default)]
    pub available: i64,
}

/// What was seen of a [`Subnet`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubnetStatus {
    /// Addresses that there are.
    #[serde(default)]
    pub total: i64,
    /// Addresses that pods have.
    #[serde(default)]
    pub used: i64,
    /// Addresses that are left.
    #[serde(default)]
    pub available: i64,
    /// Where round robin goes on.
    #[serde(default, rename = "lastAllocatedIP", deserialize_with = "null_default")]
    pub last_allocated_ip: String,
}

/// Who uses the address of an [`IPInstance`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IPInstanceStatus {
    /// The node.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// The pod.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub pod_name: String,
    /// The pod's namespace.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub pod_namespace: String,
    /// The pod's sandbox.
    #[serde(
        default,
        rename = "sandboxID",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub sandbox_id: String,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_timestamp: Option<String>,
}

/// A text in a resource that is not what its field needs. The message never holds a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{value}` is not {expected}")]
pub struct ValueError {
    /// What was written.
    pub value: String,
    /// What was expected, with an example.
    pub expected: &'static str,
}

/// The addresses of a subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedRange {
    /// The prefix, host bits cleared.
    pub cidr: IpNet,
    /// First address given out. For IPv4 the network address is never among them.
    pub first: IpAddr,
    /// Last address given out; where it was not said, before the broadcast address (IPv4).
    pub last: IpAddr,
    /// The subnet's router.
    pub gateway: Option<IpAddr>,
    /// Given out only to who names them.
    pub reserved: Vec<IpAddr>,
    /// Never given out.
    pub excluded: Vec<IpAddr>,
}

impl Network {
    /// `metadata.name`.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// The type, Underlay if it was not said.
    pub fn network_type(&self) -> NetworkType {
        self.spec.network_type.unwrap_or(NetworkType::Underlay)
    }

    /// The mode, by type if it was not said: VLAN, VXLAN, GlobalBGP.
    pub fn mode(&self) -> NetworkMode {
        self.spec.mode.unwrap_or(match self.network_type() {
            NetworkType::Underlay => NetworkMode::VLAN,
            NetworkType::Overlay => NetworkMode::VXLAN,
            NetworkType::GlobalBGP => NetworkMode::GlobalBGP,
        })
    }

    /// The peers, none where there is no `config`.
    pub fn peers(&self) -> &[BgpPeer] {
        self.spec.config.as_ref().map_or(&[], |config| &config.bgp_peers)
    }

    /// Whether a node with these labels belongs to the network. Overlay and GlobalBGP take every node.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        match self.network_type() {
            NetworkType::Underlay => {
                !self.spec.node_selector.is_empty()
                    && self.spec.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
            }
            NetworkType::Overlay | NetworkType::GlobalBGP => true,
        }
    }
}

impl BgpPeer {
    /// Restart Time where `gracefulRestartSeconds` is 0 or missing.
    pub const DEFAULT_GRACEFUL_RESTART: u16 = 300;
    /// The longest Restart Time: the field has 12 bits (RFC 4724 §3).
    pub const MAX_GRACEFUL_RESTART: u16 = 4095;
    /// The longest TCP-MD5 key that the kernel takes, in octets.
    pub const MAX_PASSWORD: usize = 80;

    /// The address, and the interface of a link-local one.
    pub fn endpoint(&self) -> Result<(IpAddr, Option<&str>), ValueError> {
        let (address, interface) = match self.address.split_once('%') {
            Some((address, interface)) => (address, Some(interface)),
            None => (self.address.as_str(), None),
        };
        if interface == Some("") {
            return Err(ValueError {
                value: self.address.clone(),
                expected: "an address with an interface after `%`, such as fe80::1%eth1",
            });
        }
        match parse_address(address) {
            Ok(address) => Ok((address, interface)),
            Err(error) => Err(ValueError { value: self.address.clone(), ..error }),
        }
    }

    /// The address of this node that the session runs from.
    pub fn source(&self) -> Result<Option<IpAddr>, ValueError> {
        self.source_address.as_deref().filter(|text| !text.is_empty()).map(parse_address).transpose()
    }

    /// The TCP-MD5 key in the resource itself; `""` is none. (The other place is `passwordFile`.)
    pub fn password(&self) -> Option<&Secret> {
        self.password.as_ref().filter(|password| !password.expose().is_empty())
    }

    /// The Restart Time to offer, in seconds.
    pub fn graceful_restart(&self) -> u16 {
        match self.graceful_restart_seconds {
            0 => Self::DEFAULT_GRACEFUL_RESTART,
            seconds => u16::try_from(seconds).unwrap_or(u16::MAX).min(Self::MAX_GRACEFUL_RESTART),
        }
    }
}

impl Subnet {
    /// `metadata.name`.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// Whether its addresses are only for who names it.
    pub fn is_private(&self) -> bool {
        self.spec.config.as_ref().and_then(|config| config.private).unwrap_or(false)
    }

    /// Whether its pods leave the cluster with the node's address, in a network of this mode. If it was not
    /// said: an overlay's do, others do not.
    pub fn nat_outgoing(&self, mode: NetworkMode) -> bool {
        let said = self.spec.config.as_ref().and_then(|config| config.auto_nat_outgoing);
        said.unwrap_or(mode == NetworkMode::VXLAN)
    }
}

impl AddressRange {
    /// The addresses. Only the texts are looked at; how they must lie to each other is validation's matter.
    pub fn parse(&self) -> Result<ParsedRange, ValueError> {
        let cidr = self.cidr()?;
        let optional = |text: &str| if text.is_empty() { Ok(None) } else { parse_address(text).map(Some) };
        let all = |texts: &[String]| -> Result<Vec<IpAddr>, ValueError> {
            texts.iter().map(|text| parse_address(text)).collect()
        };
        Ok(ParsedRange {
            cidr,
            first: optional(&self.start)?.unwrap_or_else(|| first_host(&cidr)),
            last: optional(&self.end)?.unwrap_or_else(|| last_host(&cidr)),
            gateway: optional(&self.gateway)?,
            reserved: all(&self.reserved_ips)?,
            excluded: all(&self.exclude_ips)?,
        })
    }

    /// The prefix, host bits cleared.
    pub fn cidr(&self) -> Result<IpNet, ValueError> {
        match self.cidr.parse::<IpNet>() {
            Ok(cidr) => Ok(cidr.trunc()),
            Err(_) => Err(ValueError {
                value: self.cidr.clone(),
                expected: "a prefix with its length, such as 10.14.0.0/24 or 2001:db8:14::/112",
            }),
        }
    }
}

/// An address without a length.
pub fn parse_address(text: &str) -> Result<IpAddr, ValueError> {
    text.parse().map_err(|_| ValueError {
        value: text.to_owned(),
        expected: "an IP address, such as 10.14.0.1 or 2001:db8:14::1",
    })
}

/// The address after the network address.
fn first_host(cidr: &IpNet) -> IpAddr {
    match cidr.network() {
        IpAddr::V4(address) => IpAddr::V4(u32::from(address).saturating_add(1).into()),
        IpAddr::V6(address) => IpAddr::V6(u128::from(address).saturating_add(1).into()),
    }
}

/// The last address; for IPv4 the one before the broadcast address, except in a /31 (RFC 3021).
fn last_host(cidr: &IpNet) -> IpAddr {
    match cidr.broadcast() {
        IpAddr::V4(address) if cidr.prefix_len() < 31 => {
            IpAddr::V4(u32::from(address).saturating_sub(1).into())
        }
        address => address,
    }
}

/// A secret text: Debug shows `***`, and it has no Display.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The secret itself, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // serde's own message would quote a number that was meant as the secret.
        match String::deserialize(deserializer) {
            Ok(text) => Ok(Secret(text)),
            Err(_) => Err(serde::de::Error::custom("expected a text in quotes (its value is not shown)")),
        }
    }
}

/// A field of Kubernetes' metadata that is allowed and not used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ignored;

impl<'de> Deserialize<'de> for Ignored {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Ignored)
    }
}

impl Serialize for Ignored {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

/// `null` stands for the default: Go writes it for empty lists and maps.
pub(crate) fn null_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
