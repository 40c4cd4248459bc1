//! The words of an attachment: what is to be made, and what was made.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use trunkline_api::bandwidth::Bandwidth;
use trunkline_api::resources::AttachmentKind;

use crate::naming::{Alias, default_mac, host_ifname};
use crate::netlink::{NetlinkError, Refusal};
use crate::plan::Attachment;

/// What pods send IPv4 to: on no interface, answered for by proxy ARP.
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// What pods send IPv6 to: on no interface either, the EUI-64 of [`HOST_MAC`].
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0xecee, 0xeeff, 0xfeee, 0xeeee);
/// MAC of every host end.
pub const HOST_MAC: [u8; 6] = [0xee; 6];

/// What to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// The container, as the runtime names it.
    pub container_id: String,
    /// The interface in the pod.
    pub ifname: String,
    /// The pod's addresses: at least one.
    pub addresses: Vec<IpAddr>,
    /// MAC of the pair's end in the pod; one derived from container and interface if none. (A slave has its parent's.)
    pub mac: Option<[u8; 6]>,
    /// MTU in octets; the kernel's default if none.
    pub mtu: Option<u32>,
    /// How fast it may be.
    pub bandwidth: Bandwidth,
    /// How it is joined.
    pub attachment: Attachment,
    /// The subnets of its Network: what a second interface of a pod is for.
    pub destinations: Vec<IpNet>,
}

impl DeviceSpec {
    /// Name of the pair's end in the pod: the interface itself, or beside a slave the same name as on the host.
    pub(super) fn pair_name(&self) -> String {
        match self.attachment {
            Attachment::Veth => self.ifname.clone(),
            Attachment::Ipvlan(_) => host_ifname(&self.container_id, &self.ifname),
        }
    }

    /// MAC of the pair's end in the pod.
    pub(super) fn pair_mac(&self) -> [u8; 6] {
        self.mac.unwrap_or_else(|| default_mac(&self.container_id, &self.ifname))
    }

    /// Alias of the links. `second`: of an interface that leaves a default route to another.
    pub(super) fn alias(&self, second: bool) -> String {
        let kind = match self.attachment {
            Attachment::Veth => AttachmentKind::Veth,
            Attachment::Ipvlan(_) => AttachmentKind::Ipvlan,
        };
        Alias::new(&self.container_id, &self.ifname, kind, second).to_string()
    }
}

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The host's end.
    pub host_ifname: String,
    /// Its index.
    pub host_ifindex: u32,
    /// Its MAC.
    pub host_mac: [u8; 6],
    /// MAC of the interface in the pod.
    pub mac: [u8; 6],
    /// MAC of the pair's end in the pod: that of the interface, or beside a slave another.
    pub pair_mac: [u8; 6],
    /// MTU of the interface in octets.
    pub mtu: u32,
    /// The pod's routes by it, each with its gateway.
    pub routes: Vec<(IpNet, IpAddr)>,
}

/// Why a device could not be made, deleted, or is not whole.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The pod's namespace cannot be entered.
    #[error("the pod's network namespace cannot be entered: {0}")]
    Namespace(#[source] io::Error),
    /// Somebody else's interface has the name.
    #[error(
        "interface {ifname} is already in the pod's network namespace and is not Trunkline's: choose another CNI_IFNAME or remove it"
    )]
    Taken {
        /// The name.
        ifname: String,
    },
    /// A link with an own name that does not look like one of ours.
    #[error(
        "interface {ifname} of the host has Trunkline's name but alias {alias:?}: it is left alone; rename or delete it"
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
        /// What was being done.
        step: &'static str,
        /// The reason.
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
    /// The slave cannot be made on its parent.
    #[error("{ifname} cannot be made on {parent}: {}", .error.as_ref().map_or("it was gone at once".to_owned(), ToString::to_string))]
    Parent {
        /// The interface.
        ifname: String,
        /// The device that would carry it.
        parent: String,
        /// The reason; none where it was made and not found.
        error: Option<Refusal>,
    },
    /// A setting of the pod's namespace cannot be made.
    #[error("{path} in the pod's namespace cannot be written: {error}")]
    Setting {
        /// The file.
        path: String,
        /// The reason.
        #[source]
        error: io::Error,
    },
    /// A check found things missing.
    #[error("the attachment is not whole: {}", .0.join("; "))]
    Check(Vec<String>),
    /// No thread could be had.
    #[error("no thread for the attachment: {0}")]
    Thread(#[source] io::Error),
}

/// A step's name for its error.
pub trait Step<T> {
    /// Names the step that failed.
    ///
    /// # Errors
    /// The error that it is called on, with the name.
    fn step(self, step: &'static str) -> Result<T, DeviceError>;
}

impl<T, E: Into<NetlinkError>> Step<T> for Result<T, E> {
    fn step(self, step: &'static str) -> Result<T, DeviceError> {
        self.map_err(|error| DeviceError::Step { step, error: error.into() })
    }
}

/// The gateways of the families that the pod has addresses in.
pub(super) fn gateways(addresses: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    let v4 = addresses.iter().any(IpAddr::is_ipv4).then_some(IpAddr::V4(GATEWAY_V4));
    let v6 = addresses.iter().any(IpAddr::is_ipv6).then_some(IpAddr::V6(GATEWAY_V6));
    v4.into_iter().chain(v6)
}
