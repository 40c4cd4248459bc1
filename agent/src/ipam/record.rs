//! The record of an attached pod.
//!
//! A record is written to disk before any change in the kernel. So at every moment the store
//! contains at least the attachments in the kernel. A record is first *attaching*, and becomes
//! *attached* once the device is complete. The next start of the agent uses the existing records.
//! An attaching record without a complete device comes from a crash, and is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use trunkline_api::bandwidth::Bandwidth;
use trunkline_api::resources::AttachmentKind;

/// The key of an attachment: the container and the interface in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttachmentKey {
    /// The runtime's container ID.
    pub container_id: String,
    /// The interface's name in the container.
    pub ifname: String,
}

impl fmt::Display for AttachmentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.container_id, self.ifname)
    }
}

/// An address and its subnet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assigned {
    /// The subnet's name.
    pub subnet: String,
    /// The address.
    pub address: IpAddr,
    /// The subnet's gateway, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

/// The progress of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Addresses are allocated; the device may or may not exist.
    Attaching,
    /// The device was complete.
    Attached,
}

/// A pod's part in the live migration of a virtual machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MigrationState {
    /// The addresses are the pod's alone. Every pod without a live migration is active.
    #[default]
    Active,
    /// The pod runs the virtual machine, which moves to another node.
    Departing,
    /// The pod of another node runs the virtual machine: the target before the switch, and the
    /// source after it.
    Inactive,
    /// The target after the virtual machine's own announcement, before the API server has the end of
    /// the live migration.
    Arrived,
}

impl MigrationState {
    /// Whether there is no live migration.
    pub fn is_active(&self) -> bool {
        *self == MigrationState::Active
    }
}

/// The node to which a virtual machine moves in a live migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetNode {
    /// Its name.
    pub name: String,
    /// The addresses of its Node object.
    pub addresses: Vec<IpAddr>,
}

/// The pod, if the runtime passes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodName {
    /// Its namespace.
    #[serde(default)]
    pub namespace: String,
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// Its UID.
    #[serde(default)]
    pub uid: String,
}

/// One attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its key.
    pub key: AttachmentKey,
    /// Its progress.
    pub phase: Phase,
    /// `name` of the CNI configuration of its ADD. GC uses this name.
    pub conf_name: String,
    /// The network's name.
    pub network: String,
    /// At most one of each family, IPv4 first.
    pub addresses: Vec<Assigned>,
    /// How the pod is attached. Later changes of the network do not change this kind.
    #[serde(default)]
    pub attachment: AttachmentKind,
    /// MAC address of the pod interface of the veth pair, even if the pod has an IPVLAN slave.
    pub mac: [u8; 6],
    /// MTU of the interface, after its creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Its bandwidth limits.
    #[serde(default, skip_serializing_if = "Bandwidth::is_empty")]
    pub bandwidth: Bandwidth,
    /// Prefixes that the pod may use as source besides its addresses, if the network allows them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub extra_prefixes: BTreeSet<IpNet>,
    /// Its labels as the runtime passed them, for network policies without an API server.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Path of the network namespace as the runtime passed it. For display only, never opened.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub netns: String,
    /// The pod.
    #[serde(default)]
    pub pod: PodName,
    /// The interface whose ADD attached this one, and whose DEL detaches it. None: its own ADD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached_with: Option<String>,
    /// Whether the pod has further interfaces of Trunkline.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub several: bool,
    /// Whether the pod's default route uses this interface, although it is not the pod's first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default_route: bool,
    /// Destinations that the pod reaches through this interface, if another one has its default route.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub routes: BTreeSet<IpNet>,
    /// The names of the interfaces that the ADD of this one attaches too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<String>,
    /// Its part in a live migration.
    #[serde(default, skip_serializing_if = "MigrationState::is_active")]
    pub migration: MigrationState,
    /// The node to which its virtual machine moves, if this node is the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_node: Option<TargetNode>,
}

impl Record {
    /// Whether KubeVirt created the pod for a virtual machine: it gives these pods this name.
    pub fn is_virtual_machine(&self) -> bool {
        self.pod.name.starts_with("virt-launcher-")
    }

    /// The addresses of the node to which its virtual machine moves.
    pub fn target_addresses(&self) -> Vec<IpAddr> {
        self.target_node.iter().flat_map(|node| node.addresses.iter().copied()).collect()
    }
}
