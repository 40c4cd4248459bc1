//! What is remembered of an attached pod.
//!
//! A record is written, and on disk, before anything is done in the kernel: at every moment the store knows at
//! least what the kernel has. It begins as *attaching* and becomes *attached* once the device is complete; the
//! next start takes up the records it finds. An attaching one without a complete device is what a crash left, and
//! goes.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use trunkline_api::bandwidth::Bandwidth;
use trunkline_api::resources::AttachmentKind;

/// One attachment's name: the container and the interface in it.
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

/// An address with where it came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assigned {
    /// The subnet's name.
    pub subnet: String,
    /// The address.
    pub address: IpAddr,
    /// The subnet's gateway, where it says one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

/// How far an attachment has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Addresses are taken; the device may or may not be there.
    Attaching,
    /// The device was complete.
    Attached,
}

/// The pod, where the runtime says which it is.
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
    /// Whose.
    pub key: AttachmentKey,
    /// How far it has come.
    pub phase: Phase,
    /// `name` of the CNI configuration that it was made through: GC is by this name.
    pub conf_name: String,
    /// The network's name.
    pub network: String,
    /// At most one of each family, IPv4 first.
    pub addresses: Vec<Assigned>,
    /// How it is joined: stays as it began, whatever the network says later.
    #[serde(default)]
    pub attachment: AttachmentKind,
    /// MAC address of the veth pair's end in the container: of the interface, unless that is an IPVLAN slave.
    pub mac: [u8; 6],
    /// MTU of the interface, once it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Its bandwidth limits.
    #[serde(default, skip_serializing_if = "Bandwidth::is_empty")]
    pub bandwidth: Bandwidth,
    /// Prefixes that it may send from besides its addresses, as far as the network allows them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub extra_prefixes: BTreeSet<IpNet>,
    /// Path of the network namespace, where the runtime sees it: for people, never opened.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub netns: String,
    /// The pod.
    #[serde(default)]
    pub pod: PodName,
}
