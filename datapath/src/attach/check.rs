//! CHECK: looks for every part of an attachment, and reports all missing parts at once.

use std::net::IpAddr;

use ipnet::IpNet;

use super::device::{Device, DeviceError, DeviceSpec, HOST_MAC, Step};
use super::namespace::NamespaceConfig;
use super::second::Pair;
use super::{bandwidth, ipvlan, second, veth};
use crate::family::IpFamily;
use crate::naming::host_ifname;
use crate::netlink::objects::{self, LinkInfo, MAIN_TABLE, NeighbourEntry};
use crate::netlink::{Batch, Connection};
use crate::plan::{Attachment, Hop, Ipvlan, Neighbour, POD_TABLE, RouteTarget};

/// Checks both ends; the error lists all faults.
pub(super) fn check_device(
    host: &mut Connection,
    pod: &mut Connection,
    spec: &DeviceSpec,
) -> Result<Device, DeviceError> {
    let name = host_ifname(&spec.container_id, &spec.ifname);
    let Some(link) = veth::find(host, &name)? else {
        return Err(DeviceError::Check(vec![format!("the host interface {name} does not exist")]));
    };
    let absent = |name: &str| DeviceError::Check(vec![format!("{name} is not in the pod's namespace")]);
    let pair_name = spec.pair_name();
    let pair = veth::find(pod, &pair_name)?.ok_or_else(|| absent(&pair_name))?;
    let mut faults = Vec::new();
    let (inside, interface) = match &spec.attachment {
        Attachment::Veth => (NamespaceConfig::veth(spec, pair.index), pair.clone()),
        Attachment::Ipvlan(ipvlan) => {
            let slave = veth::find(pod, &spec.ifname)?.ok_or_else(|| absent(&spec.ifname))?;
            check_slave(&slave, ipvlan, &mut faults);
            (NamespaceConfig::ipvlan(ipvlan, slave.index, pair.index), slave)
        }
    };
    let inside = second::settle(
        pod,
        inside,
        Pair { index: pair.index, new: false },
        &spec.destinations,
        spec.several,
    )?;
    check_pair(&link, &pair, spec, inside.has_rules(), &mut faults);
    check_inside(pod, &spec.ifname, &inside, &mut faults)?;
    check_host(host, &link, pair.mac, spec, &mut faults)?;
    bandwidth::check(host, &link, &spec.bandwidth, &mut faults)?;
    match (faults.is_empty(), interface.mac, pair.mac) {
        (true, Some(mac), Some(pair_mac)) => Ok(Device {
            host_ifname: name,
            host_ifindex: link.index,
            host_mac: HOST_MAC,
            mac,
            pair_mac,
            mtu: interface.mtu,
            routes: inside.main(),
        }),
        _ => Err(DeviceError::Check(faults)),
    }
}

fn check_pair(link: &LinkInfo, end: &LinkInfo, spec: &DeviceSpec, second: bool, faults: &mut Vec<String>) {
    if !veth::are_pair(link, end) {
        faults.push(format!("{} is not the other end of {}", end.name, link.name));
    }
    for link in [link, end] {
        check_up(link, faults);
    }
    // The mark of a second interface stays even when no other interface has the default route any
    // more.
    if link.alias.as_deref() != Some(&spec.alias(second || veth::alias(link).second)) {
        faults.push(format!("{} has lost its alias", link.name));
    }
    if link.mac != Some(HOST_MAC) {
        faults.push(format!("{} has another MAC", link.name));
    }
    if end.mac.is_none() || spec.mac.is_some_and(|mac| Some(mac) != end.mac) {
        faults.push(format!("{} has another MAC", end.name));
    }
}

fn check_slave(slave: &LinkInfo, ipvlan: &Ipvlan, faults: &mut Vec<String>) {
    if !ipvlan::is_own(slave) || slave.peer != Some(ipvlan.parent) {
        faults.push(format!("{} is not an IPVLAN slave of {}", slave.name, ipvlan.parent_name));
    }
    check_up(slave, faults);
}

fn check_up(link: &LinkInfo, faults: &mut Vec<String>) {
    if !link.is_up() {
        faults.push(format!("{} is down", link.name));
    }
}

fn check_inside(
    pod: &mut Connection,
    ifname: &str,
    inside: &NamespaceConfig,
    faults: &mut Vec<String>,
) -> Result<(), DeviceError> {
    let there = addresses(pod)?;
    for (index, address) in &inside.addresses {
        if !there.contains(&(*index, *address)) {
            faults.push(format!("{ifname} has no {address}"));
        }
    }
    for Neighbour { ifindex, address, mac } in &inside.neighbours {
        if !has_neighbour(pod, *ifindex, *address, *mac)? {
            faults.push(format!("the pod has no permanent neighbour entry for {address}"));
        }
    }
    let mut there = Vec::new();
    for family in inside.families() {
        there.extend(routes(pod, family)?);
    }
    for route in &inside.routes {
        let hop = Hop { onlink: true, source: route.source, ..Hop::by(route.gateway, route.ifindex) };
        if !there.contains(&(route.table, route.destination, RouteTarget::via(vec![hop]))) {
            let table =
                if route.table == MAIN_TABLE { String::new() } else { format!(" in table {}", route.table) };
            faults.push(match route.destination.prefix_len() {
                0 => format!("the pod has no default route through {}{table}", route.gateway),
                _ => {
                    format!("the pod has no route to {} through {}{table}", route.destination, route.gateway)
                }
            });
        }
    }
    for rule in &inside.rules {
        if !second::rules(pod, rule.family, rule.table)?.contains(rule) {
            let from = rule.from.map_or_else(String::new, |from| from.to_string());
            faults.push(format!("the pod has no rule from {from} to table {}", rule.table));
        }
    }
    Ok(())
}

fn check_host(
    host: &mut Connection,
    link: &LinkInfo,
    mac: Option<[u8; 6]>,
    spec: &DeviceSpec,
    faults: &mut Vec<String>,
) -> Result<(), DeviceError> {
    let wanted = RouteTarget::via(vec![Hop::link(link.index)]);
    for address in &spec.addresses {
        if let Some(mac) = mac
            && !has_neighbour(host, link.index, *address, mac)?
        {
            faults.push(format!("the host has no permanent neighbour entry for {address}"));
        }
        if route(host, *address)?.is_none_or(|(table, target)| table != POD_TABLE || target != wanted) {
            faults.push(format!("table {POD_TABLE} has no route to {address} through {}", link.name));
        }
    }
    Ok(())
}

/// All addresses, with the index of their interface.
fn addresses(connection: &mut Connection) -> Result<Vec<(u32, IpNet)>, DeviceError> {
    let mut found = Vec::new();
    for family in IpFamily::ALL {
        let list = |batch: &mut Batch| batch.dump_addresses(family);
        let listed = connection.list(list, objects::read_address).step("list the addresses")?;
        found.extend(listed.into_iter().map(|address| (address.ifindex, address.prefix)));
    }
    Ok(found)
}

/// Table, destination and target of each route.
fn routes(
    connection: &mut Connection,
    family: IpFamily,
) -> Result<Vec<(u32, IpNet, RouteTarget)>, DeviceError> {
    let read = |body: &[u8]| {
        let route = objects::read_route(body)?;
        Some((route.key.table, route.key.prefix, route.target?))
    };
    connection.list(|batch| batch.dump_routes(family, false), read).step("list the routes")
}

fn has_neighbour(
    connection: &mut Connection,
    ifindex: u32,
    address: IpAddr,
    mac: [u8; 6],
) -> Result<bool, DeviceError> {
    let mut batch = Batch::new();
    batch.get_neighbour(ifindex, address);
    let outcome = connection.run(&mut batch).step("read a neighbour entry")?;
    let wanted = NeighbourEntry::Permanent(Neighbour { ifindex, address, mac });
    let mut found = outcome.replies.iter().filter_map(|(_, _, body)| objects::read_neighbour(body));
    Ok(found.any(|found| found.entry == wanted))
}

/// The table and the target of the route for a packet to `destination`.
fn route(
    connection: &mut Connection,
    destination: IpAddr,
) -> Result<Option<(u32, RouteTarget)>, DeviceError> {
    let mut batch = Batch::new();
    batch.get_route(destination);
    let outcome = connection.run(&mut batch).step("read a route")?;
    let route = outcome.replies.iter().find_map(|(_, _, body)| objects::read_route(body));
    Ok(route.and_then(|route| Some((route.key.table, route.target?))))
}
