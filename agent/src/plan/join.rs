//! Parameters of a pod's links beyond its addresses.
//!
//! `veth` needs none: all packets go to the host, which has the plan's tables. With an IPVLAN
//! slave, the pod itself selects between the VLAN and the host. So ADD installs these routes in the
//! pod:
//!
//! - **through the slave**: its subnet, and everything else through the subnet's router;
//! - **through the host**: the host's own addresses, which a slave cannot reach on the wire; the
//!   subnets of the other networks on this node, because the host has routes to their pods; and the
//!   prefixes of Services, which the host translates.
//!
//! Packets from the host to the pod arrive on the veth pair. The reply must use the same pair,
//! because otherwise connection tracking on the host sees only one direction. So the list also
//! contains prefixes that the slave could reach without the host.
//!
//! A later subnet or address of the host reaches only pods that are attached afterwards. CHECK
//! reports a missing route, and a second ADD adds it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use trunkline_api::resources::{AttachmentKind, SubnetDns};
use trunkline_datapath::link_check::LinkCheck;
use trunkline_datapath::plan::{Attachment, Ipvlan, OnLink};

use super::{Host, Intent, NetworkPlan, Plan};

/// A pod before it has links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachTarget {
    /// The network's name.
    pub network: String,
    /// The pod's addresses.
    pub addresses: Vec<IpAddr>,
    /// How it is attached.
    pub attachment: AttachmentKind,
}

/// Parameters of a pod's links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkParameters {
    /// MTU in octets; the kernel's default if none.
    pub mtu: Option<u32>,
    /// How it is attached.
    pub attachment: Attachment,
    /// Checks on the wire before the pod may use its addresses.
    pub link_checks: Vec<LinkCheck>,
    /// The network's subnets: the destinations of this interface if another interface has the pod's
    /// default route.
    pub destinations: Vec<IpNet>,
    /// The DNS settings of the pod: those of the first of its subnets that has some.
    pub dns: SubnetDns,
}

/// The reason for which a pod's links cannot be made now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// No subnet of the network contains the address.
    #[error("{address} is in no subnet of Network {network}")]
    NoSubnet {
        /// The address.
        address: IpAddr,
        /// The network.
        network: String,
    },
    /// An IPVLAN slave needs a VLAN.
    #[error("Subnet {subnet}: no VLAN: `attachment: ipvlan` needs one")]
    NoVlan {
        /// The subnet.
        subnet: String,
    },
    /// All addresses of an IPVLAN slave need the same device.
    #[error(
        "Subnet {subnet} is on {device}, and the pod's other address on {other}: with `attachment: \
         ipvlan` both must be in one VLAN"
    )]
    TwoVlans {
        /// The subnet.
        subnet: String,
        /// Its device.
        device: String,
        /// The device of the pod's other address.
        other: String,
    },
    /// The device of a subnet is unusable.
    #[error("Subnet {subnet}: {fault}")]
    Device {
        /// The subnet.
        subnet: String,
        /// The fault of its device, with the fix.
        fault: String,
    },
}

/// Parameters of a pod's links. For an unknown network the result is empty, because the caller that
/// adds the pod reports the error.
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
    let own = target.addresses.iter().filter_map(|address| Some(network.subnet_of(*address)?.1));
    let own: Vec<_> = own.collect();
    let routes = own.iter().flat_map(|subnet| &subnet.routes).copied();
    let destinations: BTreeSet<IpNet> =
        network.subnets.values().map(|subnet| subnet.prefix).chain(routes).collect();
    let dns = own.iter().map(|subnet| &subnet.dns).find(|dns| !dns.is_empty()).cloned().unwrap_or_default();
    let destinations = destinations.into_iter().collect();
    Ok(LinkParameters { mtu: network.mtu, attachment, link_checks, destinations, dns })
}

/// Parameters of an IPVLAN slave: all addresses must have one device.
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
        // The subnet's prefix and the address have the same family.
        let address = IpNet::new(*address, subnet.prefix.prefix_len()).unwrap_or((*address).into());
        slave.on_link.push(OnLink { address, gateway: *gateway });
    }
    Ok(slave.map(Attachment::Ipvlan).unwrap_or_default())
}

/// The link checks for the pod's addresses in VLANs, or the reason for which the VLAN is unusable
/// now.
fn link_checks(network: &NetworkPlan, addresses: &[IpAddr]) -> Result<Vec<LinkCheck>, JoinError> {
    let mut checks = Vec::new();
    for address in addresses {
        let Some((subnet, planned)) = network.subnet_of(*address) else { continue };
        let Some(device) = &planned.device else { continue };
        let (Some(ifindex), None) = (device.ifindex, &device.fault) else {
            let fault = device.fault.as_deref().unwrap_or("its device does not exist");
            return Err(JoinError::Device { subnet: subnet.to_owned(), fault: fault.to_owned() });
        };
        // A tunnel has no gateway that could answer.
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

/// Computes, for each network with IPVLAN slaves, the prefixes that its pods reach through the
/// host.
pub(super) fn plan_by_host(intent: &Intent, host: &Host, plan: &mut Plan) {
    // Skips links that are down. Example: `kube-ipvs0`, which has thousands of addresses of
    // Services.
    let own =
        host.kernel.links.iter().filter(|link| link.up).flat_map(|link| &link.addresses).map(IpNet::addr);
    let anycast = plan.kernel.addresses.iter().flatten().copied();
    let own: BTreeSet<IpNet> = own.filter(is_reachable).chain(anycast).map(IpNet::from).collect();
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

/// Whether other hosts and pods can use this address to reach the host.
fn is_reachable(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_loopback(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    }
}
