//! Network: a set of nodes, the attachment of their pods to the fabric, and their BGP peers.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::meta::{Count, ObjectMeta};
use crate::policy::{Policy, PrefixMatch};
use crate::value::{LongLivedStale, Secret, ValueError, parse_address};
use crate::value::{is_default, null_default};

/// A set of nodes that share one path into the fabric: cluster-scoped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Network {
    /// `networking.alibaba.com/v1`.
    pub api_version: String,
    /// `Network`.
    pub kind: String,
    /// Name and labels.
    pub metadata: ObjectMeta,
    /// The desired state.
    #[serde(default)]
    pub spec: NetworkSpec,
    /// The observed state. Only the controller writes it; ignored in manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<NetworkStatus>,
}

/// The desired state of a [`Network`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkSpec {
    /// Labels that select the network's nodes; required for Underlay, not allowed otherwise.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// VLAN: the VLAN ID (0: untagged). VXLAN: the VNI. BGP: the AS number of the nodes.
    #[serde(default, rename = "netID", skip_serializing_if = "Option::is_none")]
    pub net_id: Option<u32>,
    /// Default: Underlay; see [`Network::network_type`].
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub network_type: Option<NetworkType>,
    /// The default depends on the type; see [`Network::mode`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<NetworkMode>,
    /// Further settings; required in mode BGP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<NetworkConfig>,
}

/// The location of a network's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
pub enum NetworkType {
    /// In the fabric, at the selected nodes.
    Underlay,
    /// Inside tunnels, on every node.
    Overlay,
    /// In the fabric, at every node of an Underlay network with mode BGP.
    GlobalBGP,
}

/// The connection of a network's pods to the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
pub enum NetworkMode {
    /// A VLAN on the node's link. For Underlay, and its default.
    VLAN,
    /// A VXLAN tunnel. For Overlay, and its default.
    VXLAN,
    /// BGP advertises the subnet and every pod. For Underlay.
    BGP,
    /// BGP advertises the pods only. For GlobalBGP, and its default.
    GlobalBGP,
}

/// Further settings of a [`Network`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkConfig {
    /// The routers that are BGP peers of the nodes; at least one in mode BGP.
    #[serde(
        default,
        rename = "bgpPeers",
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub bgp_peers: Vec<BgpPeer>,
    /// VLAN: how pods are attached; default `veth`. Trunkline's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachment: Option<AttachmentKind>,
    /// VLAN and BGP: packets between pods of one node also go through the switch. Trunkline's own.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub hairpin: bool,
    /// BGP: while a peer of a node is down, the node advertises its pods without NO_EXPORT. So
    /// routers that no longer receive the pods from the node receive them from other routers.
    /// Default: true. Trunkline's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disaggregate: Option<bool>,
    /// Prefixes for the annotation `trunkline.io/extra-prefixes`. A pod of the network may list
    /// them, or parts of them, in the annotation. It may then send from them besides its addresses.
    /// Not with attachment `ipvlan`. Trunkline's own.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub extra_prefixes: Vec<String>,
    /// Lists of prefixes by name, for `prefixSets` in the peers' policies. Trunkline's own.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub prefix_sets: BTreeMap<String, Vec<PrefixMatch>>,
    /// Nodes before a shutdown (RFC 8326): `gracefulShutdown` towards every peer, whatever the
    /// peers' own settings are. Trunkline's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graceful_shutdown: Option<GracefulShutdown>,
}

/// The nodes of a [`Network`] before a shutdown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GracefulShutdown {
    /// Labels that select the nodes; default: every node of the network.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
}

/// The attachment of pods to a VLAN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum AttachmentKind {
    /// Through the host: a veth pair and policy routing.
    #[default]
    Veth,
    /// An IPVLAN slave (L2 mode) on the VLAN's device, with an additional veth pair for packets of
    /// the host.
    Ipvlan,
}

/// A router that is a BGP peer of the nodes. From `port` on, the fields are Trunkline's own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BgpPeer {
    /// The peer's AS number, 1 to 4294967295.
    pub asn: u32,
    /// The peer's address; a link-local one with its interface, `fe80::1%eth1`. Without it,
    /// `interface` or `prefix` is required. See [`BgpPeer::endpoint`].
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub address: String,
    /// The advertised Restart Time (RFC 4724), at most 4095 s; 0 or absent: 300 s.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub graceful_restart_seconds: u32,
    /// TCP-MD5 key, 1 to 80 octets. `passwordFile` and `passwordSecretRef` keep the key out of the
    /// resource. See [`BgpPeer::password`].
    #[serde(default, skip_serializing)]
    pub password: Option<Secret>,
    /// The session exchanges routes (as with a route server), but the router is no next hop.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub does_not_route_traffic: bool,
    /// Pods may start while this session is down.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub allow_not_established: bool,

    /// Unnumbered: the interface of this node to a link with only this peer. The node finds the
    /// peer's address by IPv6 router advertisements (RFC 4861). The address is also the next hop
    /// for IPv4 (RFC 8950).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Dynamic neighbours: every router that connects from this prefix is a peer with these
    /// settings. The prefix must not overlap a Subnet: a pod could connect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// With `prefix`: the highest number of peers at a time, at least 1; default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The peer's TCP port; default 179.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The local address of the session; default: the source address of the route to the peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_address: Option<String>,
    /// A file on the node with the TCP-MD5 key (a final newline is ignored).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<String>,
    /// A Secret of the cluster with the TCP-MD5 key; only with the API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_secret_ref: Option<SecretKeyRef>,
    /// The advertised hold time: 0 (never expires) or 3 to 65535 s; default 90 (RFC 4271 §4.2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_time_seconds: Option<u32>,
    /// Time between KEEPALIVEs, at most a third of the hold time; default: a third of the
    /// negotiated one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keepalive_seconds: Option<u32>,
    /// Time between attempts to connect, 1 to 65535 s; default 120.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_retry_seconds: Option<u32>,
    /// For external peers that are not on a connected network: the TTL of sent packets, 1 to 255.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ebgp_multihop: Option<u32>,
    /// GTSM (RFC 5082): the highest number of hops to the peer, 1 to 254; excludes `ebgpMultihop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_security: Option<u32>,
    /// Never connect; wait for the peer to connect.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub passive: bool,
    /// The prefix limit over both families, at least 1; more prefixes end the session (RFC 4486).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_prefixes: Option<u32>,
    /// Whether graceful restart also covers a session that ends by a NOTIFICATION or by the Hold
    /// Timer (RFC 8538). Default: true with `bfd`, otherwise false, because a dead router's paths
    /// would stay in use for its Restart Time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_notification: Option<bool>,
    /// Long-lived graceful restart (RFC 9494): the time for which the peer retains this node's
    /// paths as least preferred after the Restart Time, 1 to 16777215 s. One value for both
    /// families, or one value for each. Without it: not advertised.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub long_lived_stale_seconds: LongLivedStale,
    /// Messages of more than 4,096 octets (RFC 8654), if the peer supports them; `false` for a peer
    /// that advertises support but rejects them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extended_messages: Option<bool>,
    /// Shut the session down gracefully (RFC 8326): advertised paths carry GRACEFUL_SHUTDOWN, and
    /// received paths are least preferred. Traffic then moves to other paths first.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub graceful_shutdown: bool,
    /// A peer of the network's own AS, and a client of this node's route reflector (RFC 4456).
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub route_reflector_client: bool,
    /// This node's role towards the router (RFC 9234); the router must have the counterpart. Paths
    /// from a provider, a peer or a route server are then advertised to customers only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_role: Option<Role>,
    /// Reject a router that advertises no role.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub local_role_strict: bool,
    /// How often the network's own AS may occur in the AS_PATH of received paths, 1 to 10; default:
    /// not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_as_in: Option<u32>,
    /// Another AS number than the network's own towards this router (RFC 7705); external peers
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_as: Option<LocalAs>,
    /// Remove private AS numbers (RFC 6996) from paths to an external peer; `{}`: only from paths
    /// without public ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remove_private_as: Option<RemovePrivateAs>,
    /// Advertise this node as next hop of external paths to an internal peer.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub next_hop_self: bool,
    /// Advertise the received next hop unchanged to an external peer, as a route server does.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub next_hop_unchanged: bool,
    /// Several paths of a prefix, received or advertised (RFC 7911).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add_path: Option<AddPath>,
    /// BFD (RFC 5880) monitors the path to the peer, and a failure ends the session; `{}` uses the
    /// defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bfd: Option<Bfd>,
    /// The import policy: accepted paths become routes of the network's table. Without it: a
    /// default route to this peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub import: Option<Policy>,
    /// The export policy. Without it: prefixes that this node originates, and no received paths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<Policy>,
}

/// One value of a Secret. A final newline is ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretKeyRef {
    /// The Secret's name.
    pub name: String,
    /// The Secret's namespace; default: Trunkline's own namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The key of the value in the Secret.
    pub key: String,
}

/// Another AS number than the network's own towards one router, as after a merger of two ASes (RFC
/// 7705 §3). It is prepended in front of the network's own in advertised paths, and in front of
/// received paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LocalAs {
    /// 1 to 4294967295; neither the network's own nor the router's.
    pub asn: u32,
    /// Do not prepend it to received paths.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub no_prepend: bool,
    /// Use it in place of the network's own in advertised paths.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub replace_as: bool,
}

/// The private AS numbers to remove for an external peer. The peer's own number stays, because the
/// peer detects its loops by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemovePrivateAs {
    /// Also remove private ones from paths with public ones; otherwise such a path stays unchanged.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub all: bool,
    /// Replace them with the network's own number.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub replace: bool,
}

/// The role of one side of an external session towards the other (RFC 9234 §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The other side buys transit from this one.
    Provider,
    /// A route server.
    Rs,
    /// A client of a route server.
    RsClient,
    /// This side buys transit from the other one.
    Customer,
    /// The two sides exchange their own and their customers' routes.
    Peer,
}

/// The location of a [`BgpPeer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint<'a> {
    /// At an address; a link-local one with its interface.
    Address(IpAddr, Option<&'a str>),
    /// On an interface, at the address discovered there.
    Interface(&'a str),
    /// In a prefix: any router that connects from there (a dynamic neighbour).
    Prefix(IpNet),
}

/// Several paths of a prefix, in both families (RFC 7911); each direction only if the peer supports
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddPath {
    /// Accept several paths from the peer.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub receive: bool,
    /// Advertise at most this many best paths to the peer, 1 to 255. Without it: one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send: Option<u32>,
}

/// Settings of the BFD session of a [`BgpPeer`]. The peer's settings decide whether it is a
/// multihop session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bfd {
    /// Interval between packets in both directions: 10 to 60000 ms; default 300. The slower side
    /// decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_milliseconds: Option<u32>,
    /// The number of consecutive lost packets after which the path has failed: 1 to 255; default 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multiplier: Option<u32>,
}

impl Bfd {
    /// Default of `intervalMilliseconds`.
    pub const DEFAULT_INTERVAL: u32 = 300;
    /// Default of `multiplier`.
    pub const DEFAULT_MULTIPLIER: u32 = 3;
}

/// The observed state of a [`Network`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkStatus {
    /// The subnet of the last allocated IPv4 address.
    #[serde(default, deserialize_with = "null_default")]
    pub last_allocated_subnet: String,
    /// The subnet of the last allocated IPv6 address.
    #[serde(
        default,
        rename = "lastAllocatedIPv6Subnet",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub last_allocated_ipv6_subnet: String,
    /// Names of its subnets.
    #[serde(default, deserialize_with = "null_default")]
    pub subnet_list: Vec<String>,
    /// Names of its nodes.
    #[serde(default, deserialize_with = "null_default")]
    pub node_list: Vec<String>,
    /// IPv4 addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<Count>,
    /// IPv6 addresses.
    #[serde(default, rename = "ipv6Statistics", skip_serializing_if = "Option::is_none")]
    pub ipv6_statistics: Option<Count>,
    /// Pairs of IPv4 and IPv6 addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dual_stack_statistics: Option<Count>,
}

impl Network {
    /// `metadata.name`.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// The type; Underlay by default.
    pub fn network_type(&self) -> NetworkType {
        self.spec.network_type.unwrap_or(NetworkType::Underlay)
    }

    /// The mode; its default depends on the type: VLAN, VXLAN, GlobalBGP.
    pub fn mode(&self) -> NetworkMode {
        self.spec.mode.unwrap_or(match self.network_type() {
            NetworkType::Underlay => NetworkMode::VLAN,
            NetworkType::Overlay => NetworkMode::VXLAN,
            NetworkType::GlobalBGP => NetworkMode::GlobalBGP,
        })
    }

    /// The peers; none without `config`.
    pub fn peers(&self) -> &[BgpPeer] {
        self.spec.config.as_ref().map_or(&[], |config| &config.bgp_peers)
    }

    /// The attachment of its pods.
    pub fn attachment(&self) -> AttachmentKind {
        self.spec.config.as_ref().and_then(|config| config.attachment).unwrap_or_default()
    }

    /// Whether traffic between its pods always goes through the switch.
    pub fn is_hairpin(&self) -> bool {
        self.spec.config.as_ref().is_some_and(|config| config.hairpin)
    }

    /// Whether the node's pods are advertised beyond the rack while a peer of the node is down.
    pub fn disaggregates(&self) -> bool {
        self.spec.config.as_ref().and_then(|config| config.disaggregate).unwrap_or(true)
    }

    /// Prefixes from which its pods may send in addition to their addresses. Invalid texts are
    /// ignored.
    pub fn extra_prefixes(&self) -> impl Iterator<Item = IpNet> {
        let config = self.spec.config.as_ref();
        let texts = config.into_iter().flat_map(|config| &config.extra_prefixes);
        texts.filter_map(|text| text.parse::<IpNet>().ok()).map(|prefix| prefix.trunc())
    }

    /// Whether a node with these labels belongs to the network. Overlay and GlobalBGP select every
    /// node.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        match self.network_type() {
            NetworkType::Underlay => {
                !self.spec.node_selector.is_empty() && has_all(labels, &self.spec.node_selector)
            }
            NetworkType::Overlay | NetworkType::GlobalBGP => true,
        }
    }

    /// Whether a node of the network with these labels is about to be shut down (RFC 8326).
    pub fn is_shutting_down(&self, labels: &BTreeMap<String, String>) -> bool {
        let config = self.spec.config.as_ref();
        config
            .and_then(|config| config.graceful_shutdown.as_ref())
            .is_some_and(|shutdown| has_all(labels, &shutdown.node_selector))
    }
}

fn has_all(labels: &BTreeMap<String, String>, selector: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

impl<'a> Endpoint<'a> {
    /// Parses the location of a peer from one text: an address, an interface or a prefix. Equal to
    /// [`BgpPeer::endpoint`] of the peer that is meant.
    ///
    /// # Errors
    /// The text is none of them.
    pub fn parse(text: &'a str) -> Result<Endpoint<'a>, ValueError> {
        if text.contains('/') {
            Endpoint::in_prefix(text)
        } else if text.contains([':', '%']) || text.parse::<IpAddr>().is_ok() {
            Endpoint::at_address(text)
        } else {
            Ok(Endpoint::Interface(text))
        }
    }

    fn in_prefix(text: &str) -> Result<Endpoint<'a>, ValueError> {
        match text.parse::<IpNet>() {
            Ok(prefix) => Ok(Endpoint::Prefix(prefix.trunc())),
            Err(_) => Err(ValueError {
                value: text.to_owned(),
                expected: "a prefix, such as 10.1.0.0/24 or 2001:db8:1::/64",
            }),
        }
    }

    fn at_address(text: &'a str) -> Result<Endpoint<'a>, ValueError> {
        let (address, interface) = match text.split_once('%') {
            Some((address, interface)) => (address, Some(interface)),
            None => (text, None),
        };
        if interface == Some("") {
            return Err(ValueError {
                value: text.to_owned(),
                expected: "an address with an interface after `%`, such as fe80::1%eth1",
            });
        }
        match parse_address(address) {
            Ok(address) => Ok(Endpoint::Address(address, interface)),
            Err(error) => Err(ValueError { value: text.to_owned(), ..error }),
        }
    }
}

impl BgpPeer {
    /// Restart Time if `gracefulRestartSeconds` is 0 or missing.
    pub const DEFAULT_GRACEFUL_RESTART: u16 = 300;
    /// The longest Restart Time: the field has 12 bits (RFC 4724 §3).
    pub const MAX_GRACEFUL_RESTART: u16 = 4095;
    /// The longest Long-lived Stale Time: the field has 24 bits (RFC 9494 §3.1).
    pub const MAX_LONG_LIVED_STALE: u32 = 0x00ff_ffff;
    /// The longest TCP-MD5 key that the kernel accepts, in octets.
    pub const MAX_PASSWORD: usize = 80;

    /// Default of `limit` for a `prefix`.
    pub const DEFAULT_LIMIT: u32 = 100;

    /// Its location: `interface` or `prefix` if there is no `address`.
    pub fn endpoint(&self) -> Result<Endpoint<'_>, ValueError> {
        match (&self.interface, &self.prefix) {
            _ if !self.address.is_empty() => Endpoint::at_address(&self.address),
            (Some(interface), _) => Ok(Endpoint::Interface(interface)),
            (None, Some(prefix)) => Endpoint::in_prefix(prefix),
            (None, None) => Endpoint::at_address(&self.address),
        }
    }

    /// The local address of the session.
    pub fn source(&self) -> Result<Option<IpAddr>, ValueError> {
        self.source_address.as_deref().filter(|text| !text.is_empty()).map(parse_address).transpose()
    }

    /// The TCP-MD5 key in the resource itself; `""` is none. (The alternatives are `passwordFile`
    /// and `passwordSecretRef`.)
    pub fn password(&self) -> Option<&Secret> {
        self.password.as_ref().filter(|password| !password.expose().is_empty())
    }

    /// Whether RFC 8538 is offered.
    pub fn restart_notification(&self) -> bool {
        self.restart_notification.unwrap_or(self.bfd.is_some())
    }

    /// The Restart Time to offer, in seconds.
    pub fn graceful_restart(&self) -> u16 {
        match self.graceful_restart_seconds {
            0 => Self::DEFAULT_GRACEFUL_RESTART,
            seconds => u16::try_from(seconds).unwrap_or(u16::MAX).min(Self::MAX_GRACEFUL_RESTART),
        }
    }
}
