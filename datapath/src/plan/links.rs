//! Links and what is on them: neighbours, forwarding entries, proxy entries, and how pods are attached.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

/// The name of the device that counts and drops what came from the fabric for no local pod.
pub const SINK_NAME: &str = "trunkline-drop";
/// Its alias.
pub const SINK_ALIAS: &str = "trunkline:drop";

/// One link of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Interface index.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// Link-layer address, if it has one of six octets.
    pub mac: Option<[u8; 6]>,
    /// Its addresses, each with the length of its connected prefix.
    pub addresses: Vec<IpNet>,
    /// Administratively up.
    pub up: bool,
    /// With carrier.
    pub running: bool,
    /// MTU in octets.
    pub mtu: u32,
    /// What it is, if it is of a kind that a plan may ask for.
    pub kind: Option<LinkKind>,
    /// A plan of this or an earlier life asked for it.
    pub own: bool,
}

/// A kind of link that the plan asks the kernel for, with what cannot be changed without making it anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// An 802.1Q device.
    Vlan {
        /// Index of the link that carries it.
        parent: u32,
        /// The VLAN id, 1 to 4094.
        id: u16,
    },
    /// A VXLAN device (RFC 7348). It learns nothing and has no group: it sends only what an [`FdbEntry`] has a way for.
    Vxlan {
        /// The VNI, 24 bits.
        vni: u32,
        /// The address that tunnelled packets come from.
        local: IpAddr,
        /// The UDP port that they are sent to and expected at.
        port: u16,
        /// The device's MAC, by which other nodes know it.
        mac: [u8; 6],
    },
    /// An `ifb` device that drops all it gets; it is known by its alias.
    Sink,
}

/// A link that the kernel should have, up.
///
/// A plan names it, and the one after finds it in [`KernelHost::links`](super::KernelHost::links): only then is its index known, and routes can lead to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkPlan {
    /// What it is.
    pub kind: LinkKind,
    /// Whose it is, from [`ALIAS_PREFIX`](crate::naming::ALIAS_PREFIX) on. A link of this name with a foreign alias is left
    /// alone, and is a fault.
    pub alias: String,
    /// MTU in octets.
    pub mtu: u32,
}

/// A permanent neighbour entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Neighbour {
    /// The link.
    pub ifindex: u32,
    /// The neighbour's address.
    pub address: IpAddr,
    /// Its MAC.
    pub mac: [u8; 6],
}

/// Where a VXLAN device sends what is for a MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FdbEntry {
    /// The device.
    pub ifindex: u32,
    /// The MAC of a device on another node.
    pub mac: [u8; 6],
    /// The VTEP of that node.
    pub vtep: IpAddr,
}

/// An address that the host answers ARP or neighbour solicitations for on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Proxy {
    /// The link.
    pub ifindex: u32,
    /// The address.
    pub address: IpAddr,
}

/// How a pod is joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Attachment {
    /// One veth pair, and everything goes to the host.
    #[default]
    Veth,
    /// A slave on the VLAN's device, and a veth pair beside it.
    Ipvlan(Ipvlan),
}

/// What an IPVLAN slave needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipvlan {
    /// Index of the device that carries it.
    pub parent: u32,
    /// Its name.
    pub parent_name: String,
    /// The pod's addresses with the length of their subnet's prefix, and the gateway that is there.
    pub on_link: Vec<OnLink>,
    /// What is reached by the host all the same.
    pub by_host: BTreeSet<IpNet>,
}

/// An address on a network with a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnLink {
    /// The address, with the length of the subnet's prefix.
    pub address: IpNet,
    /// The gateway.
    pub gateway: IpAddr,
}
