//! Networks with pods directly in a VLAN that the switch carries to this node.
//!
//! ```text
//!  pod ──tl…──► rule 1000: local pods ─► rule 1100: from 10.10.0.0/24 ─► T: 10.10.0.0/24 dev eth0.10
//!                                                                           default via 10.10.0.1 dev eth0.10
//! ```
//!
//! Each subnet has its own VLAN device and its own table T. Neighbours in the subnet are on the
//! link; all other packets go to the subnet's router. The device has no address. The host answers
//! ARP requests and neighbour solicitations there only for its own pods
//! ([`trunkline_datapath::plan::Proxy`]; not `proxy_arp`, which answers for every address that the
//! host can route). Packets from the VLAN for an address that no local pod has are dropped, as on
//! BGP uplinks.
//!
//! **The link of the VLANs** is the first existing link of `vlanInterfaces`. Without this setting,
//! or while none of these links exists, it is the link that already carries the agent's VLAN
//! devices. So a moved default route, or a renamed link, does not move running pods. If no link
//! carries such devices, it is the link of the default route. The agent identifies a device by its
//! parent and VLAN ID; its name is only the name at its creation.

use std::net::IpAddr;

use ipnet::IpNet;
use trunkline_api::resources::{Network, Subnet, ValueError};
use trunkline_datapath::family::IpFamily;
use trunkline_datapath::naming::ALIAS_PREFIX;
use trunkline_datapath::plan::{
    ArpSubnet, DROP_TABLE, Hop, Link, LinkKind, LinkPlan, MAIN_TABLE, RouteKey, RouteTarget, Rule, Sysctl,
};
use trunkline_datapath::sysctl::PROXY_V6;

use super::tables::Tables;
use super::{Host, Intent, Plan, SubnetDevice, SubnetPlan, link_choice};

/// The longest name of an interface (IFNAMSIZ, without the zero).
const MAX_NAME: usize = 15;

/// Adds the parts of a VLAN network's subnets to the plan.
pub(super) fn plan(
    network: &Network,
    intent: &Intent,
    host: &Host,
    tables: &mut Tables<'_>,
    plan: &mut Plan,
) {
    let parent = parent(intent, host);
    let Some(planned) = plan.networks.get_mut(network.name()) else { return };
    planned.mtu = parent.as_ref().ok().map(|parent| parent.mtu);
    let mut done: Vec<SubnetPlan> = Vec::new();
    let subnets = intent.subnets.iter().filter(|subnet| subnet.spec.network == network.name());
    for subnet in subnets {
        let Some(entry) = planned.subnets.get_mut(subnet.name()) else { continue };
        match read(network, subnet) {
            Ok((vlan, gateway)) => (entry.vlan, entry.gateway) = (Some(vlan), Some(gateway)),
            Err(error) => {
                planned.subnets.remove(subnet.name());
                planned.refused_subnets.insert(subnet.name().to_owned(), error.to_string());
                continue;
            }
        }
        // Rules match prefixes, so subnets with equal prefixes share their device, table and
        // routes.
        if let Some(same) = done.iter().find(|same| same.prefix == entry.prefix) {
            if (same.vlan, same.gateway) == (entry.vlan, entry.gateway) {
                entry.clone_from(same);
            } else {
                let reason = format!(
                    "{} is the prefix of another subnet with another VLAN or gateway: give both \
                     subnets the same VLAN and gateway",
                    entry.prefix
                );
                planned.subnets.remove(subnet.name());
                planned.refused_subnets.insert(subnet.name().to_owned(), reason);
            }
            continue;
        }
        entry.table = Some(tables.shared([entry.prefix]));
        entry.device = Some(device(entry.vlan.unwrap_or(0), &parent, host));
        done.push(entry.clone());
    }
    for subnet in &done {
        if let (Ok(parent), Some(device), Some(vlan)) = (&parent, &subnet.device, subnet.vlan) {
            if vlan > 0 {
                let kind = LinkKind::Vlan { parent: parent.index, id: vlan };
                let alias = alias(network.name());
                plan.kernel.links.insert(device.name.clone(), LinkPlan { kind, alias, mtu: parent.mtu });
            }
            if let Some(ifindex) = device.ifindex {
                plan_device(plan, host, subnet, &device.name, ifindex);
                if intent.pods_send_arp {
                    plan_arp_sender(plan, host, subnet, &device.name, ifindex);
                }
            }
        }
    }
}

/// The reason for which a VLAN subnet is refused. Validation checks the same fields. These errors
/// are for resources that were not validated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum SubnetError {
    #[error(transparent)]
    Range(#[from] ValueError),
    #[error("spec.netID: missing: write the VLAN id, 0 (untagged) to 4094")]
    NoVlan,
    #[error("spec.range.gateway: missing: a VLAN subnet needs the router on its VLAN")]
    NoGateway,
}

/// A subnet's VLAN and router.
fn read(network: &Network, subnet: &Subnet) -> Result<(u16, IpAddr), SubnetError> {
    let id = subnet.spec.net_id.or(network.spec.net_id).and_then(|id| u16::try_from(id).ok());
    let gateway = subnet.spec.range.parse()?.gateway;
    Ok((id.ok_or(SubnetError::NoVlan)?, gateway.ok_or(SubnetError::NoGateway)?))
}

fn alias(network: &str) -> String {
    let short: String = network.chars().take(200).collect(); // the kernel accepts 255
    format!("{ALIAS_PREFIX}vlan:{short}")
}

/// The reason for which no link carries the VLANs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum ParentError {
    #[error("no link for VLANs: the host has no default route: write vlanInterfaces into agent.yaml")]
    NoDefaultRoute,
    #[error("no link for VLANs: none of vlanInterfaces ({0}) in agent.yaml is on this host")]
    NoInterface(String),
}

/// The link that carries the VLANs, or the reason for its absence.
fn parent<'a>(intent: &Intent, host: &'a Host) -> Result<&'a Link, ParentError> {
    if let Some(link) = link_choice::first(&intent.vlan_interfaces, host) {
        return Ok(link);
    }
    let at = |index: u32| host.kernel.links.iter().find(|link| link.index == index);
    let carrier = |link: &Link| match link.kind {
        Some(LinkKind::Vlan { parent, .. }) if link.own => at(parent),
        _ => None,
    };
    if let Some(link) = host.kernel.links.iter().find_map(carrier) {
        return Ok(link);
    }
    if intent.vlan_interfaces.is_empty() {
        host.kernel.default_link.and_then(at).ok_or(ParentError::NoDefaultRoute)
    } else {
        Err(ParentError::NoInterface(link_choice::joined(&intent.vlan_interfaces)))
    }
}

/// The device of a VLAN, with its fault if it has one.
fn device(vlan: u16, parent: &Result<&Link, ParentError>, host: &Host) -> SubnetDevice {
    let parent = match parent {
        Ok(parent) => *parent,
        Err(error) => {
            return SubnetDevice { fault: Some(error.to_string()), ..SubnetDevice::default() };
        }
    };
    let kind = Some(LinkKind::Vlan { parent: parent.index, id: vlan });
    let there = match vlan {
        0 => Some(parent),
        _ => host.kernel.links.iter().find(|link| link.own && link.kind == kind),
    };
    let name = there.map_or_else(|| name(parent, vlan), |link| link.name.clone());
    let down = |link: &Link| {
        let name = &link.name;
        match (link.up, link.running) {
            (false, _) => Some(format!("{name} is down: `ip link set {name} up`")),
            (true, false) => Some(format!("{name} has no carrier")),
            (true, true) => None,
        }
    };
    let fault = match (host.kernel.link_faults.get(&name), there) {
        (Some(fault), _) => Some(fault.clone()),
        (None, None) => Some(format!("{name} does not exist yet")),
        (None, Some(link)) => down(parent).or_else(|| down(link)),
    };
    SubnetDevice { name, parent: parent.name.clone(), ifindex: there.map(|link| link.index), fault }
}

/// Lets a pod be the sender of ARP requests to the subnet, unless the device has an address of it.
fn plan_arp_sender(plan: &mut Plan, host: &Host, subnet: &SubnetPlan, name: &str, ifindex: u32) {
    let IpNet::V4(prefix) = subnet.prefix else { return };
    let device = host.kernel.links.iter().find(|link| link.index == ifindex);
    let mut addresses = device.into_iter().flat_map(|link| &link.addresses).map(IpNet::addr);
    if !addresses.any(|address| subnet.prefix.contains(&address)) {
        plan.kernel.arp_senders.insert(ArpSubnet { device: name.to_owned(), ifindex, prefix });
    }
}

/// `<parent>.<id>`, if this is a valid interface name.
fn name(parent: &Link, vlan: u16) -> String {
    let name = format!("{}.{vlan}", parent.name);
    if name.len() <= MAX_NAME { name } else { format!("vlan{}.{vlan}", parent.index) }
}

/// Routes, rules and settings of one subnet with an existing device.
fn plan_device(plan: &mut Plan, host: &Host, subnet: &SubnetPlan, name: &str, ifindex: u32) {
    let kernel = &mut plan.kernel;
    let family = IpFamily::of(&subnet.prefix);
    let (Some(table), Some(gateway)) = (subnet.table, subnet.gateway) else { return };
    let key = RouteKey { table, prefix: subnet.prefix };
    kernel.routes.insert(key, RouteTarget::via(vec![Hop::link(ifindex)]));
    // The device has no address in the router's network, so the next hop is onlink.
    let hop = Hop { onlink: true, ..Hop::by(gateway, ifindex) };
    kernel.routes.insert(RouteKey::default_route(table, family), RouteTarget::via(vec![hop]));
    if name != subnet.device.as_ref().map_or("", |device| &device.parent) {
        plan.routers.insert((family, hop));
    }
    kernel.rules.insert(Rule::from_link(family, name, DROP_TABLE));
    // An untagged subnet can be the subnet of the host itself: the host's own traffic keeps its
    // routes.
    let own = host.kernel.links.iter().flat_map(|link| &link.addresses).map(IpNet::addr);
    for address in own.filter(|address| subnet.prefix.contains(address)) {
        kernel.rules.insert(Rule::from_prefix(1090, address.into(), MAIN_TABLE));
    }

    let mut set = |path: String, value| {
        kernel.sysctls.insert(path, Sysctl::Exactly(value));
    };
    match family {
        IpFamily::V4 => {
            // A proxy answer for a pod has no delay.
            set(format!("net/ipv4/neigh/{name}/proxy_delay"), "0");
            // The source of an ARP request is an address of the host. If the device has an address
            // of the subnet, this address is used. The source of the waiting packet does not
            // matter.
            set(format!("net/ipv4/conf/{name}/arp_announce"), "2");
            let reverse_path = format!("net/ipv4/conf/{name}/rp_filter");
            kernel.sysctls.insert(reverse_path, Sysctl::LooseReversePath);
        }
        IpFamily::V6 => {
            set(format!("net/ipv6/neigh/{name}/proxy_delay"), "0");
            set(format!("net/ipv6/conf/{name}/proxy_ndp"), "1");
            // Without this, the kernel answers only multicast requests.
            set(PROXY_V6.to_owned(), "1");
        }
    }
    if subnet.vlan != Some(0) {
        // Only pods use the VLAN, so the host ignores the advertisements of its routers.
        kernel.add_device_sysctls(name);
    }
}
