//! The types of an attachment: the specification of a device, and the created device.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use trunkline_api::bandwidth::Bandwidth;
use trunkline_api::resources::AttachmentKind;

use crate::naming::{Alias, default_mac, host_ifname};
use crate::netlink::{NetlinkError, Refusal};
use crate::plan::Attachment;

/// The pods' IPv4 gateway. No interface has this address; proxy ARP answers for it.
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// The pods' IPv6 gateway. No interface has this address; it is the EUI-64 of [`HOST_MAC`].
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0xecee, 0xeeff, 0xfeee, 0xeeee);
/// MAC address of every host interface.
pub const HOST_MAC: [u8; 6] = [0xee; 6];

/// The specification of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// The container ID.
    pub container_id: String,
    /// Name of the interface in the pod.
    pub ifname: String,
    /// The pod's addresses: at least one.
    pub addresses: Vec<IpAddr>,
    /// MAC address of the pair's pod interface; derived from container ID and interface name if
    /// none. (A slave has its parent's MAC address.)
    pub mac: Option<[u8; 6]>,
    /// MTU in octets; the kernel's default if none.
    pub mtu: Option<u32>,
    /// The bandwidth limits.
    pub bandwidth: Bandwidth,
    /// The kind of attachment.
    pub attachment: Attachment,
    /// The subnets of its Network: the destinations of a second interface.
    pub destinations: Vec<IpNet>,
    /// Whether the pod has further interfaces of Trunkline. Then the first one has rules too, because
    /// other interfaces have routes to the subnets of their Networks.
    pub several: bool,
}

impl DeviceSpec {
    /// Name of the pair's pod interface: the pod's interface name; with an IPVLAN slave, the host
    /// interface's name.
    pub(super) fn pair_name(&self) -> String {
        match self.attachment {
            Attachment::Veth => self.ifname.clone(),
            Attachment::Ipvlan(_) => host_ifname(&self.container_id, &self.ifname),
        }
    }

    /// MAC address of the pair's pod interface.
    pub(super) fn pair_mac(&self) -> [u8; 6] {
        self.mac.unwrap_or_else(|| default_mac(&self.container_id, &self.ifname))
    }

    /// Alias of the links. `second`: another interface of the pod has a default route.
    pub(super) fn alias(&self, second: bool) -> String {
        let kind = match self.attachment {
            Attachment::Veth => AttachmentKind::Veth,
            Attachment::Ipvlan(_) => AttachmentKind::Ipvlan,
        };
        Alias::new(&self.container_id, &self.ifname, kind, second).to_string()
    }
}

/// A created device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Name of the host interface.
    pub host_ifname: String,
    /// Index of the host interface.
    pub host_ifindex: u32,
    /// MAC address of the host interface.
    pub host_mac: [u8; 6],
    /// MAC address of the interface in the pod.
    pub mac: [u8; 6],
    /// MAC address of the pair's pod interface. It equals `mac`, except for an IPVLAN slave.
    pub pair_mac: [u8; 6],
    /// MTU of the interface in octets.
    pub mtu: u32,
    /// The pod's routes through the device, with their gateways.
    pub routes: Vec<(IpNet, IpAddr)>,
}

/// The reason why a device cannot be created or deleted, or is not complete.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The pod's namespace cannot be entered.
    #[error("the pod's network namespace cannot be entered: {0}")]
    Namespace(#[source] io::Error),
    /// The name belongs to an interface of another program.
    #[error(
        "interface {ifname} is already in the pod's network namespace and is not Trunkline's: choose another CNI_IFNAME or remove it"
    )]
    Taken {
        /// The name.
        ifname: String,
    },
    /// A link that has a Trunkline name and that another program created.
    #[error(
        "interface {ifname} of the host has Trunkline's name but alias {alias:?}: Trunkline does \
         not change it: rename or delete it"
    )]
    Foreign {
        /// The name.
        ifname: String,
        /// Its alias.
        alias: String,
    },
    /// The kernel refused a step.
    #[error("{step}: {error}")]
    Step {
        /// The step that failed.
        step: &'static str,
        /// The kernel's error.
        #[source]
        error: NetlinkError,
    },
    /// The kernel has no IPVLAN.
    #[error(
        "the kernel has no driver for {ifname}, an IPVLAN slave: `modprobe ipvlan` on the node, or `attachment: veth` in the network's `config`"
    )]
    NoIpvlan {
        /// The interface.
        ifname: String,
    },
    /// The slave cannot be created on its parent.
    #[error("{ifname} cannot be created on {parent}: {}", .error.as_ref().map_or("the slave disappeared at once".to_owned(), ToString::to_string))]
    Parent {
        /// The interface.
        ifname: String,
        /// Name of the parent device.
        parent: String,
        /// The kernel's refusal; none if the slave was created and then not found.
        error: Option<Refusal>,
    },
    /// A setting of the pod's namespace cannot be written.
    #[error("{path} in the pod's namespace cannot be written: {error}")]
    Setting {
        /// The file.
        path: String,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// A check found faults.
    #[error("the attachment is incomplete: {}", .0.join("; "))]
    Check(Vec<String>),
    /// No thread could be started.
    #[error("the thread for the attachment cannot be started: {0}")]
    Thread(#[source] io::Error),
}

/// Adds a step's name to an error.
pub trait Step<T> {
    /// Names the step that failed.
    ///
    /// # Errors
    /// The original error, with the step's name.
    fn step(self, step: &'static str) -> Result<T, DeviceError>;
}

impl<T, E: Into<NetlinkError>> Step<T> for Result<T, E> {
    fn step(self, step: &'static str) -> Result<T, DeviceError> {
        self.map_err(|error| DeviceError::Step { step, error: error.into() })
    }
}

/// The gateways of the pod's IP families.
pub(super) fn gateways(addresses: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    let v4 = addresses.iter().any(IpAddr::is_ipv4).then_some(IpAddr::V4(GATEWAY_V4));
    let v6 = addresses.iter().any(IpAddr::is_ipv6).then_some(IpAddr::V6(GATEWAY_V6));
    v4.into_iter().chain(v6)
}
