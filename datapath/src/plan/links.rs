//! Links and their neighbour entries, FDB entries and proxy entries, and the kinds of attachment.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

/// Name of the device that counts and drops packets from the fabric without a local pod.
pub const SINK_NAME: &str = "trunkline-drop";
/// Alias of the device.
pub const SINK_ALIAS: &str = "trunkline:drop";
/// Name of the loopback interface. It has the plan's addresses.
pub const LOOPBACK: &str = "lo";

/// One link of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Interface index.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// Link-layer address, if it has six octets.
    pub mac: Option<[u8; 6]>,
    /// Addresses of the link, each with the length of its connected prefix. The addresses of a plan
    /// are not among them: they identify no node, router or tunnel.
    pub addresses: Vec<IpNet>,
    /// Whether the link is administratively up.
    pub up: bool,
    /// Whether the link has carrier.
    pub running: bool,
    /// MTU in octets.
    pub mtu: u32,
    /// The kind, if it is one of the kinds in a plan.
    pub kind: Option<LinkKind>,
    /// Whether a plan of this or an earlier run created the link.
    pub own: bool,
}

/// A kind of link in the plan, with the properties that require a new link if they change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// An 802.1Q device.
    Vlan {
        /// Index of the lower link.
        parent: u32,
        /// The VLAN ID, 1 to 4094.
        id: u16,
    },
    /// A VXLAN device (RFC 7348) without learning and without a group: it sends only to the VTEPs
    /// of its [`FdbEntry`] entries.
    Vxlan {
        /// The VNI, 24 bits.
        vni: u32,
        /// The source address of tunnel packets.
        local: IpAddr,
        /// The UDP port of tunnel packets, in both directions.
        port: u16,
        /// The device's MAC address in the FDB entries of other nodes.
        mac: [u8; 6],
    },
    /// An `ifb` device that drops all packets. Its alias identifies it.
    Sink,
}

/// A wanted link; it is up.
///
/// One plan contains the link. The next plan finds it in
/// [`KernelHost::links`](super::KernelHost::links): only then is its index known, and routes can
/// use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkPlan {
    /// The kind of link.
    pub kind: LinkKind,
    /// The alias; it starts with [`ALIAS_PREFIX`](crate::naming::ALIAS_PREFIX). A link with this
    /// name and a foreign alias is not changed, and is reported as a fault.
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
    /// MAC address of the neighbour.
    pub mac: [u8; 6],
}

/// The VTEP for the frames to a MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FdbEntry {
    /// Index of the VXLAN device.
    pub ifindex: u32,
    /// MAC address of the VXLAN device of another node.
    pub mac: [u8; 6],
    /// The VTEP of the other node.
    pub vtep: IpAddr,
}

/// A proxy entry: the host answers ARP requests or Neighbour Solicitations for the address on a
/// link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Proxy {
    /// The link.
    pub ifindex: u32,
    /// The address.
    pub address: IpAddr,
}

/// A Subnet in a VLAN whose ARP requests have the address of a local pod as sender.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArpSubnet {
    /// Name of the VLAN's device.
    pub device: String,
    /// Index of the device.
    pub ifindex: u32,
    /// The Subnet's prefix.
    pub prefix: Ipv4Net,
}

/// The kind of a pod's attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Attachment {
    /// One veth pair: all packets pass the host.
    #[default]
    Veth,
    /// An IPVLAN slave on the VLAN device, and a veth pair to the host.
    Ipvlan(Ipvlan),
}

/// The parameters of an IPVLAN slave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipvlan {
    /// Index of the parent device.
    pub parent: u32,
    /// Name of the parent device.
    pub parent_name: String,
    /// The pod's addresses with the prefix length of their subnet, and their gateways.
    pub on_link: Vec<OnLink>,
    /// Prefixes that the pod reaches through the host.
    pub by_host: BTreeSet<IpNet>,
}

/// An address on a subnet with a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnLink {
    /// The address, with the prefix length of the subnet.
    pub address: IpNet,
    /// The gateway.
    pub gateway: IpAddr,
}
