//! How a pod is joined to its network: what its links need to know beyond its addresses.
//!
//! By `veth`, nothing: everything goes to the host, which has the plan's tables. An IPVLAN slave decides in the pod itself what goes into the
//! VLAN and what to the host, so the pod is told when it is attached:
//!
//! - **by the slave**: its subnet, and everything else through the subnet's router;
//! - **by the host**: the host's own addresses, which a slave cannot reach on the wire; the subnets of the other networks that are here,
//!   whose pods the host knows the way to; and the prefixes of Services, which are translated here.
//!
//! What the host sends to the pod comes by the pair, and its answer has to go back the same way, since connection tracking on the host would
//! else see half of it. That is why the list is not only of what could not be reached otherwise.
//!
//! What comes later, a subnet or an address of the host, is told to the pods that are attached from then on. CHECK names it where it is
//! missing, and a second ADD puts it in place.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use trunkline_api::resources::AttachmentKind;

use super::{Host, Intent, NetworkPlan, Plan};
use crate::link_check::LinkCheck;

/// A pod's place, before it has links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachTarget {
    /// The network's name.
    pub network: String,
    /// The pod's addresses.
    pub addresses: Vec<IpAddr>,
    /// How it is joined.
    pub attachment: AttachmentKind,
}

/// What a pod's links need to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkParameters {
    /// MTU in octets; the kernel's default if none.
    pub mtu: Option<u32>,
    /// How it is joined.
    pub attachment: Attachment,
    /// What is looked at on the wire before it may have its addresses.
    pub link_checks: Vec<LinkCheck>,
    /// The network's subnets: what the interface is for where another has the pod's default route.
    pub destinations: Vec<IpNet>,
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

/// Reason for which a pod's links cannot be made now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// An address is outside of the network's subnets.
    #[error("{address} is in no subnet of Network {network}")]
    NoSubnet {
        /// The address.
        address: IpAddr,
        /// The network.
        network: String,
    },
    /// An IPVLAN slave needs a VLAN.
    #[error("Subnet {subnet}: it is in no VLAN, which `attachment: ipvlan` needs")]
    NoVlan {
        /// The subnet.
        subnet: String,
    },
    /// An IPVLAN slave is on one device only.
    #[error(
        "Subnet {subnet} is on {device}, and the pod's other address on {other}: with `attachment: ipvlan` both are in \
         one VLAN"
    )]
    TwoVlans {
        /// The subnet.
        subnet: String,
        /// Its device.
        device: String,
        /// The device of the pod's other address.
        other: String,
    },
    /// The device of a subnet carries nothing.
    #[error("Subnet {subnet}: {fault}")]
    Device {
        /// The subnet.
        subnet: String,
        /// The fault of its device, with the fix.
        fault: String,
    },
}

/// The parameters of a pod's links. Of a network that is not there, none: the addition of the pod
/// is refused.
///
/// # Errors
/// The links cannot be made now.
pub fn join(plan: &Plan, target: &AttachTarget) -> Result<LinkParameters, JoinError> {
    let Some(network) = plan.networks.get(&target.network) else { return Ok(LinkParameters::default()) };
    let link_checks = link_checks(network, &target.addresses)?;
    let attachment = match target.attachment {
        AttachmentKind::Veth => Attachment::Veth,
        AttachmentKind::Ipvlan => slave(network, target, &link_checks)?,
    };
    let destinations = network.subnets.values().map(|subnet| subnet.prefix).collect();
    Ok(LinkParameters { mtu: network.mtu, attachment, link_checks, destinations })
}

/// How a pod with these addresses is a slave of their one device.
fn slave(
    network: &NetworkPlan,
    target: &AttachTarget,
    link_checks: &[LinkCheck],
) -> Result<Attachment, JoinError> {
    let mut slave: Option<Ipvlan> = None;
    for address in &target.addresses {
        let Some((name, subnet)) = network.subnet_of(*address) else {
            return Err(JoinError::NoSubnet { address: *address, network: target.network.clone() });
        };
        let Some(LinkCheck { device, ifindex, gateway, .. }) =
            link_checks.iter().find(|check| check.address == *address)
        else {
            return Err(JoinError::NoVlan { subnet: name.to_owned() });
        };
        let slave = slave.get_or_insert_with(|| Ipvlan {
            parent: *ifindex,
            parent_name: device.clone(),
            on_link: Vec::new(),
            by_host: network.by_host.clone(),
        });
        if slave.parent != *ifindex {
            let (subnet, device) = (name.to_owned(), device.clone());
            return Err(JoinError::TwoVlans { subnet, device, other: slave.parent_name.clone() });
        }
        // The subnet's prefix has the family of its addresses.
        let address = IpNet::new(*address, subnet.prefix.prefix_len()).unwrap_or((*address).into());
        slave.on_link.push(OnLink { address, gateway: *gateway });
    }
    Ok(slave.map(Attachment::Ipvlan).unwrap_or_default())
}

/// What of a pod's addresses is in a VLAN, or why nothing can be sent or asked there now.
fn link_checks(network: &NetworkPlan, addresses: &[IpAddr]) -> Result<Vec<LinkCheck>, JoinError> {
    let mut checks = Vec::new();
    for address in addresses {
        let Some((subnet, planned)) = network.subnet_of(*address) else { continue };
        let Some(device) = &planned.device else { continue };
        let (Some(ifindex), None) = (device.ifindex, &device.fault) else {
            let fault = device.fault.as_deref().unwrap_or("its device is not there");
            return Err(JoinError::Device { subnet: subnet.to_owned(), fault: fault.to_owned() });
        };
        // Behind a tunnel there is nobody to ask.
        let (Some(gateway), Some(vlan)) = (planned.gateway, planned.vlan) else { continue };
        checks.push(LinkCheck {
            address: *address,
            subnet: subnet.to_owned(),
            gateway,
            device: device.name.clone(),
            ifindex,
            vlan,
        });
    }
    Ok(checks)
}

/// Says for each network whose pods have slaves what these reach by the host.
pub(super) fn plan_by_host(intent: &Intent, host: &Host, plan: &mut Plan) {
    // Links that are down are such as `kube-ipvs0`, whose thousands of addresses are Services'.
    let own = host.links.iter().filter(|link| link.up).flat_map(|link| &link.addresses).map(IpNet::addr);
    let own: BTreeSet<IpNet> = own.filter(is_reachable).map(IpNet::from).collect();
    let served: Vec<(String, IpNet)> = plan
        .networks
        .iter()
        .filter(|(_, network)| network.refused.is_none())
        .flat_map(|(name, network)| network.subnets.values().map(|subnet| (name.clone(), subnet.prefix)))
        .collect();
    for (name, network) in &mut plan.networks {
        if network.attachment != AttachmentKind::Ipvlan || network.refused.is_some() {
            continue;
        }
        let others = served.iter().filter(|(other, _)| other != name).map(|(_, prefix)| *prefix);
        network.by_host =
            own.iter().copied().chain(others).chain(intent.service_cidrs.iter().copied()).collect();
        if !intent.service_cidrs.is_empty() {
            plan.kernel.nat.slaves.extend(network.subnets.values().map(|subnet| subnet.prefix));
        }
    }
}

/// Whether an address of the host means the host to somebody else, too.
fn is_reachable(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_loopback(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    }
}
