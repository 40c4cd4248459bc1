//! NodeInfo: the tunnel endpoint of a node (VTEP, RFC 7348), and the pods' addresses behind it.
//!
//! With the API server, hybridnet's agent writes its own NodeInfo, and the IPInstances show each
//! address's node. In files there are no IPInstances. There `config.podCIDRs`, Trunkline's own
//! field, lists the blocks of the subnets from which each node allocates. So the addresses of a
//! node's pods follow from manifests alone, without any query.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::meta::ObjectMeta;
use crate::control::PeerState;
use crate::value::null_default;
use crate::value::{ValueError, parse_address, parse_mac};

/// A node in the overlay: cluster-scoped, named as the node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeInfo {
    /// `networking.alibaba.com/v1`.
    pub api_version: String,
    /// `NodeInfo`.
    pub kind: String,
    /// The name is the node's.
    pub metadata: ObjectMeta,
    /// The node's tunnel endpoint and settings.
    #[serde(default)]
    pub spec: NodeInfoSpec,
    /// The observed state. Ignored in manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<NodeInfoStatus>,
}

/// Tunnel endpoint and settings of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeInfoSpec {
    /// The node's tunnel endpoint; none on a node without overlay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vtep_info: Option<VtepInfo>,
    /// Further settings. Trunkline's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<NodeInfoConfig>,
}

/// A tunnel endpoint as text; [`VtepInfo::parse`] parses it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VtepInfo {
    /// Destination of tunnelled packets: an address of the node.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub ip: String,
    /// MAC of the node's VXLAN device; default: derived from `ip`.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// Addresses of the node that overlay pods reach through the tunnel, besides `ip`.
    #[serde(
        default,
        rename = "localIPs",
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub local_ips: Vec<String>,
}

/// Trunkline's own settings of a [`NodeInfo`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeInfoConfig {
    /// Blocks of the subnets from which only this node allocates. Other nodes send to these
    /// addresses through the tunnel. This node allocates no other address of these subnets.
    #[serde(
        default,
        rename = "podCIDRs",
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub pod_cidrs: Vec<String>,
}

/// The observed state of a [`NodeInfo`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeInfoStatus {
    /// When it was last written, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_timestamp: Option<String>,
    /// The node's BGP peers as its agent sees them: the first 512 by name. Trunkline's own.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<NodePeer>,
}

/// A BGP peer of a node, in the [`NodeInfoStatus`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodePeer {
    /// The peer's address; a link-local one with its interface (`fe80::1%eth1`). For an unnumbered
    /// peer that was not found yet: the interface.
    pub name: String,
    /// The Network with this peer in `bgpPeers`.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// The peer's AS number.
    pub asn: u32,
    /// Idle, Connect, Active, OpenSent, OpenConfirm or Established (RFC 4271 §8.2.2).
    #[cfg_attr(feature = "kube", schemars(with = "String"))]
    pub state: PeerState,
    /// Time of the last change of the state, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Prefixes received from the peer, over both families.
    #[serde(default, deserialize_with = "null_default")]
    pub prefixes_received: u64,
    /// Prefixes advertised to the peer, over both families.
    #[serde(default, deserialize_with = "null_default")]
    pub prefixes_advertised: u64,
    /// The reason why the last session ended, or the last attempt failed; cut after 512 characters.
    /// Never a secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

impl NodePeer {
    /// Maximum number of peers in a status.
    pub const MAX_PEERS: usize = 512;
    /// Maximum number of characters of an error.
    pub const MAX_TEXT: usize = 512;
}

/// A tunnel endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vtep {
    /// Destination of tunnelled packets.
    pub ip: IpAddr,
    /// MAC of the node's VXLAN device.
    pub mac: [u8; 6],
    /// Addresses of the node that overlay pods reach through the tunnel, `ip` first.
    pub local: Vec<IpAddr>,
}

impl NodeInfo {
    /// `metadata.name`, which is the node's name.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// The node's tunnel endpoint, if any.
    pub fn vtep(&self) -> Result<Option<Vtep>, ValueError> {
        self.spec.vtep_info.as_ref().filter(|info| !info.ip.is_empty()).map(VtepInfo::parse).transpose()
    }

    /// Blocks of the subnets from which this node allocates.
    pub fn pod_cidrs(&self) -> Result<Vec<IpNet>, ValueError> {
        let texts = self.spec.config.iter().flat_map(|config| &config.pod_cidrs);
        texts.map(|text| parse_prefix(text)).collect()
    }
}

impl VtepInfo {
    /// Maximum number of entries of `localIPs`. A node writes its own NodeInfo, and each other agent
    /// checks each entry.
    pub const MAX_LOCAL_IPS: usize = 64;

    /// Parses the addresses.
    pub fn parse(&self) -> Result<Vtep, ValueError> {
        let ip = parse_address(&self.ip)?;
        let mac = if self.mac.is_empty() { Vtep::default_mac(ip) } else { parse_mac(&self.mac)? };
        if self.local_ips.len() > VtepInfo::MAX_LOCAL_IPS {
            return Err(ValueError {
                value: format!("{} entries of localIPs", self.local_ips.len()),
                expected: "a list of at most 64 addresses: list only those that overlay pods need",
            });
        }
        let (mut local, mut known) = (vec![ip], BTreeSet::from([ip]));
        for text in &self.local_ips {
            let address = parse_address(text)?;
            if known.insert(address) {
                local.push(address);
            }
        }
        Ok(Vtep { ip, mac, local })
    }
}

impl Vtep {
    /// The default MAC of a VTEP. Every node computes it from the address, which all nodes know.
    /// For IPv4 it is unique; for IPv6 it is a hash of 40 bits.
    pub fn default_mac(ip: IpAddr) -> [u8; 6] {
        match ip {
            IpAddr::V4(ip) => {
                let [a, b, c, d] = ip.octets();
                [0x02, 0x12, a, b, c, d]
            }
            IpAddr::V6(ip) => {
                // FNV-1a, 64 bits, folded.
                let hash = ip.octets().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, octet| {
                    (hash ^ u64::from(*octet)).wrapping_mul(0x0100_0000_01b3)
                });
                let [.., a, b, c, d, e] = (hash ^ (hash >> 40)).to_be_bytes();
                [0x06, a, b, c, d, e]
            }
        }
    }

    /// The link-local address derived from its MAC (EUI-64, RFC 4291 appendix A).
    pub fn link_local(&self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.mac;
        let group = |high, low| u16::from_be_bytes([high, low]);
        Ipv6Addr::new(0xfe80, 0, 0, 0, group(a ^ 2, b), group(c, 0xff), group(0xfe, d), group(e, f))
    }
}

fn parse_prefix(text: &str) -> Result<IpNet, ValueError> {
    text.parse().map_err(|_| ValueError {
        value: text.to_owned(),
        expected: "a prefix with its length, such as 10.200.1.0/24 or 2001:db8:200:1::/112",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_of_a_vtep_follow_from_its_address() {
        let info = VtepInfo { ip: "10.1.2.3".to_owned(), ..VtepInfo::default() };
        let vtep = info.parse().unwrap();
        assert_eq!(vtep.mac, [2, 0x12, 10, 1, 2, 3]);
        assert_eq!(vtep.local, [vtep.ip]);
        assert_eq!(vtep.link_local().to_string(), "fe80::12:aff:fe01:203");
        let v6 = |text: &str| Vtep::default_mac(text.parse().unwrap());
        assert_ne!(v6("2001:db8::1"), v6("2001:db8::2"));
        assert_eq!(v6("2001:db8::1")[0], 6, "a locally administered unicast address");

        let mac = "02:00:5e:00:00:01".to_owned();
        let explicit = VtepInfo { mac, local_ips: vec!["10.1.2.3".into(), "2001:db8::7".into()], ..info };
        let vtep = explicit.parse().unwrap();
        assert_eq!(vtep.mac, [2, 0, 0x5e, 0, 0, 1]);
        assert_eq!(vtep.local.len(), 2);
    }

    #[test]
    fn a_vtep_has_at_most_64_local_addresses() {
        let info = |number: usize| VtepInfo {
            ip: "10.1.2.3".to_owned(),
            local_ips: (0..number).map(|index| format!("2001:db8::{index:x}")).collect(),
            ..VtepInfo::default()
        };
        assert_eq!(info(64).parse().unwrap().local.len(), 65, "`ip` comes first");
        let error = info(65).parse().unwrap_err().to_string();
        assert!(error.contains("65 entries of localIPs") && error.contains("at most 64"), "{error}");
        assert_eq!(VtepInfo::MAX_LOCAL_IPS, 64, "the text of the error has the number");
    }
}
