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
use trunkline_datapath::link_check::LinkCheck;
use trunkline_datapath::plan::{Attachment, Ipvlan, OnLink};

use super::{Host, Intent, NetworkPlan, Plan};

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

/// What a pod's links need to know, or why they cannot be made now, in words. Of a network that is not there, nothing: whoever
/// adds the pod says so.
pub fn join(plan: &Plan, target: &AttachTarget) -> Result<LinkParameters, String> {
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
) -> Result<Attachment, String> {
    let mut slave: Option<Ipvlan> = None;
    for address in &target.addresses {
        let Some((name, subnet)) = network.subnet_of(*address) else {
            return Err(format!("{address} is in no subnet of Network {}", target.network));
        };
        let Some(LinkCheck { device, ifindex, gateway, .. }) =
            link_checks.iter().find(|check| check.address == *address)
        else {
            return Err(format!("Subnet {name}: it is in no VLAN, which `attachment: ipvlan` needs"));
        };
        let slave = slave.get_or_insert_with(|| Ipvlan {
            parent: *ifindex,
            parent_name: device.clone(),
            on_link: Vec::new(),
            by_host: network.by_host.clone(),
        });
        if slave.parent != *ifindex {
            return Err(format!(
                "Subnet {name} is on {device}, and the pod's other address on {}: with `attachment: ipvlan` both are in one VLAN",
                slave.parent_name
            ));
        }
        // The subnet's prefix has the family of its addresses.
        let address = IpNet::new(*address, subnet.prefix.prefix_len()).unwrap_or((*address).into());
        slave.on_link.push(OnLink { address, gateway: *gateway });
    }
    Ok(slave.map(Attachment::Ipvlan).unwrap_or_default())
}

/// What of a pod's addresses is in a VLAN, or why nothing can be sent or asked there now.
fn link_checks(network: &NetworkPlan, addresses: &[IpAddr]) -> Result<Vec<LinkCheck>, String> {
    let mut checks = Vec::new();
    for address in addresses {
        let Some((subnet, planned)) = network.subnet_of(*address) else { continue };
        let Some(device) = &planned.device else { continue };
        let (Some(ifindex), None) = (device.ifindex, &device.fault) else {
            let fault = device.fault.as_deref().unwrap_or("its device is not there");
            return Err(format!("Subnet {subnet}: {fault}"));
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
    let own =
        host.kernel.links.iter().filter(|link| link.up).flat_map(|link| &link.addresses).map(IpNet::addr);
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
