//! Rules for NodeInfos: every VTEP is unique and reachable from all others, and no address belongs
//! to two nodes.

use std::net::IpAddr;

use ipnet::IpNet;

use super::subnet::{is_canonical, overlaps};
use crate::fault::{Fault, Faults};
use crate::resources::{Network, NetworkMode, NodeInfo, Subnet, Vtep, VtepInfo, parse_address, parse_mac};

pub(super) fn check_all(
    nodes: &[NodeInfo],
    networks: &[Network],
    subnets: &[Subnet],
    found: &mut Vec<Fault>,
) {
    let prefixes: Vec<(&Subnet, IpNet)> =
        subnets.iter().filter_map(|subnet| Some((subnet, subnet.spec.range.cidr().ok()?))).collect();
    let tunnelled = |subnet: &Subnet| {
        let network = networks.iter().find(|network| network.name() == subnet.spec.network);
        network.is_some_and(|network| network.mode() == NetworkMode::VXLAN)
    };
    let overlay: Vec<(&Subnet, IpNet)> =
        prefixes.iter().filter(|(subnet, _)| tunnelled(subnet)).copied().collect();
    let mut placed: Vec<(&NodeInfo, Option<Vtep>)> = Vec::new();
    let mut blocks: Vec<(&NodeInfo, IpNet)> = Vec::new();
    for node in nodes {
        let mut faults = Faults { kind: "NodeInfo", name: node.name(), found: &mut *found };
        check_vtep(node, &overlay, &mut faults);
        check_blocks(node, &prefixes, &blocks, &mut faults);
        let vtep = node.vtep().ok().flatten();
        if let Some(vtep) = &vtep {
            check_unique(vtep, &placed, &mut faults);
        }
        placed.push((node, vtep));
        blocks.extend(node.pod_cidrs().into_iter().flatten().map(|block| (node, block)));
    }
}

/// The rules that need no other resource.
pub(super) fn check(node: &NodeInfo, faults: &mut Faults<'_>) {
    check_vtep(node, &[], faults);
    for (index, text) in pod_cidrs(node).iter().enumerate() {
        if let Err(message) = read_block(text) {
            faults.add(format!("spec.config.podCIDRs[{index}]"), message);
        }
    }
}

fn pod_cidrs(node: &NodeInfo) -> &[String] {
    node.spec.config.as_ref().map_or(&[], |config| &config.pod_cidrs)
}

fn check_vtep(node: &NodeInfo, overlay: &[(&Subnet, IpNet)], faults: &mut Faults<'_>) {
    let Some(info) = &node.spec.vtep_info else { return };
    let mut address = |field: &str, text: &str| match parse_address(text) {
        Err(error) => faults.add(field, error.to_string()),
        Ok(address) if !is_of_one_node(address) => faults.add(
            field,
            format!(
                "{text} is not an address that other nodes can reach: write one of the node's \
                addresses"
            ),
        ),
        Ok(address) => {
            if let Some((subnet, prefix)) = overlay.iter().find(|(_, prefix)| prefix.contains(&address)) {
                faults.add(
                    field,
                    format!(
                        "{text} is in {prefix} of Subnet {}, which is inside the tunnels: write an address of the node's links",
                        subnet.name()
                    ),
                );
            }
        }
    };
    if info.ip.is_empty() {
        if !info.mac.is_empty() || !info.local_ips.is_empty() {
            address("spec.vtepInfo.ip", "");
        }
    } else {
        address("spec.vtepInfo.ip", &info.ip);
    }
    // Each other fault of a long list would have a text of its own.
    let (number, bound) = (info.local_ips.len(), VtepInfo::MAX_LOCAL_IPS);
    let allowed = if number > bound { 0 } else { number };
    for (index, text) in info.local_ips.iter().enumerate().take(allowed) {
        address(&format!("spec.vtepInfo.localIPs[{index}]"), text);
    }
    if number > bound {
        faults.add(
            "spec.vtepInfo.localIPs",
            format!(
                "{number} entries, at most {bound} are allowed: list only addresses that overlay pods need"
            ),
        );
    }
    if !info.mac.is_empty()
        && let Err(error) = parse_mac(&info.mac)
    {
        faults.add("spec.vtepInfo.mac", error.to_string());
    }
}

fn is_of_one_node(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(link_local || address.is_loopback() || address.is_multicast() || address.is_unspecified())
}

fn check_unique(vtep: &Vtep, placed: &[(&NodeInfo, Option<Vtep>)], faults: &mut Faults<'_>) {
    for (node, other) in placed {
        let Some(other) = other else { continue };
        let name = node.name();
        if let Some(address) = vtep.local.iter().find(|address| other.local.contains(address)) {
            faults.add(
                "spec.vtepInfo",
                format!(
                    "{address} is also an address of NodeInfo {name}: write this node's own \
                    address"
                ),
            );
        }
        if vtep.ip.is_ipv4() != other.ip.is_ipv4() {
            faults.add(
                "spec.vtepInfo.ip",
                format!(
                    "{} cannot be reached from {} of NodeInfo {name}: write addresses of one family for all nodes",
                    vtep.ip, other.ip
                ),
            );
        }
        if vtep.mac == other.mac {
            faults.add(
                "spec.vtepInfo.mac",
                format!(
                    "it is also the MAC address of NodeInfo {name}: write another one, or \
                    leave it out"
                ),
            );
        }
    }
}

/// A block, or the fault and the fix.
fn read_block(text: &str) -> Result<IpNet, String> {
    let block: IpNet =
        text.parse().map_err(|_| format!("`{text}` is not a prefix: write one such as 10.200.1.0/24"))?;
    if is_canonical(text) { Ok(block) } else { Err(format!("{text} has host bits: write {}", block.trunc())) }
}

fn check_blocks(
    node: &NodeInfo,
    subnets: &[(&Subnet, IpNet)],
    taken: &[(&NodeInfo, IpNet)],
    faults: &mut Faults<'_>,
) {
    let mut own: Vec<(usize, IpNet)> = Vec::new();
    for (index, text) in pod_cidrs(node).iter().enumerate() {
        let field = format!("spec.config.podCIDRs[{index}]");
        let block = match read_block(text) {
            Ok(block) => block,
            Err(message) => {
                faults.add(field, message);
                continue;
            }
        };
        let Some((subnet, prefix)) = subnets.iter().find(|(_, prefix)| prefix.contains(&block)) else {
            faults.add(field, format!("{block} is in no Subnet: write a block of one, or add the Subnet"));
            continue;
        };
        if let Some((other, theirs)) = taken.iter().find(|(_, theirs)| overlaps(theirs, &block)) {
            faults.add(
                &field,
                format!(
                    "{block} overlaps {theirs} of NodeInfo {}: write blocks that do not overlap",
                    other.name()
                ),
            );
        }
        if let Some((other, _)) = own.iter().find(|(_, other)| prefix.contains(other)) {
            faults.add(
                &field,
                format!(
                    "{block} is a second block of Subnet {}, next to podCIDRs[{other}]: write one \
                     block that contains both",
                    subnet.name()
                ),
            );
        }
        own.push((index, block));
    }
}
