//! CHECK: every part of an attachment is looked for, and all that is missing is named at once.

use std::net::IpAddr;

use ipnet::IpNet;
use trunkline_bgp::types::Family;

use super::{
    ALIAS_PREFIX, Device, DeviceError, DeviceSpec, HOST_MAC, Step, belongs, first_link, gateways,
    host_ifname, pod_end,
};
use crate::kernel::netlink::objects::{self, LinkInfo};
use crate::kernel::netlink::{Batch, Connection};
use crate::plan::{Hop, Neighbour, POD_TABLE, RouteTarget};

/// Looks at both ends; the error lists what is not as it should be.
pub(super) fn check_device(
    host: &mut Connection,
    pod: &mut Connection,
    spec: &DeviceSpec,
) -> Result<Device, DeviceError> {
    let name = host_ifname(&spec.container_id, &spec.ifname);
    let mut batch = Batch::new();
    batch.get_link(&name);
    let outcome =
        host.run(&mut batch).step("look for the link")?.check(&[libc::ENODEV]).step("look for the link")?;
    let Some(link) = first_link(&outcome) else {
        return Err(DeviceError::Check(vec![format!("the host's end {name} is gone")]));
    };
    let Some(end) = pod_end(pod, &spec.ifname)? else {
        return Err(DeviceError::Check(vec![format!("{} is not in the pod's namespace", spec.ifname)]));
    };
    let mut faults = Vec::new();
    check_links(&link, &end, spec, &mut faults);
    check_pod(pod, end.index, spec, &mut faults)?;
    check_host(host, &link, end.mac, spec, &mut faults)?;
    match (faults.is_empty(), end.mac) {
        (true, Some(mac)) => {
            Ok(Device { host_ifname: name, host_ifindex: link.index, host_mac: HOST_MAC, mac, mtu: link.mtu })
        }
        _ => Err(DeviceError::Check(faults)),
    }
}

fn check_links(link: &LinkInfo, end: &LinkInfo, spec: &DeviceSpec, faults: &mut Vec<String>) {
    if !belongs(link, end) {
        faults.push(format!("{} is not the other end of {}", spec.ifname, link.name));
    }
    for link in [link, end] {
        if !link.is_up() {
            faults.push(format!("{} is down", link.name));
        }
    }
    if !link.alias.as_deref().unwrap_or_default().starts_with(ALIAS_PREFIX) {
        faults.push(format!("{} has lost its alias", link.name));
    }
    if link.mac != Some(HOST_MAC) {
        faults.push(format!("{} has another MAC", link.name));
    }
    if end.mac.is_none() || spec.mac.is_some_and(|mac| Some(mac) != end.mac) {
        faults.push(format!("{} has another MAC", end.name));
    }
}

fn check_pod(
    pod: &mut Connection,
    index: u32,
    spec: &DeviceSpec,
    faults: &mut Vec<String>,
) -> Result<(), DeviceError> {
    let addresses = addresses(pod, index)?;
    for address in &spec.addresses {
        if !addresses.contains(&IpNet::from(*address)) {
            faults.push(format!("{} has no {address}", spec.ifname));
        }
    }
    for gateway in gateways(&spec.addresses) {
        if !has_neighbour(pod, index, gateway, HOST_MAC)? {
            faults.push(format!("the pod has no permanent neighbour entry for {gateway}"));
        }
        let wanted = RouteTarget::via(vec![Hop { gateway: Some(gateway), ifindex: Some(index) }]);
        if !default_routes(pod, Family::of(&gateway.into()))?.contains(&wanted) {
            faults.push(format!("the pod has no default route by {gateway}"));
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
    let wanted = RouteTarget::via(vec![Hop { gateway: None, ifindex: Some(link.index) }]);
    for address in &spec.addresses {
        if let Some(mac) = mac
            && !has_neighbour(host, link.index, *address, mac)?
        {
            faults.push(format!("the host has no permanent neighbour entry for {address}"));
        }
        if route(host, *address)?.is_none_or(|(table, target)| table != POD_TABLE || target != wanted) {
            faults.push(format!("table {POD_TABLE} has no route to {address} by {}", link.name));
        }
    }
    Ok(())
}

fn addresses(connection: &mut Connection, index: u32) -> Result<Vec<IpNet>, DeviceError> {
    let found = std::cell::RefCell::new(Vec::new());
    for family in Family::ALL {
        let mut batch = Batch::new();
        batch.dump_addresses(family, index);
        connection
            .dump(
                &mut batch,
                || (),
                |_, body| {
                    if let Some((at, address)) = objects::read_address(body)
                        && at == index
                    {
                        found.borrow_mut().push(address);
                    }
                },
            )
            .step("list the addresses")?;
    }
    Ok(found.into_inner())
}

/// Where the pod's default routes lead.
fn default_routes(connection: &mut Connection, family: Family) -> Result<Vec<RouteTarget>, DeviceError> {
    let found = std::cell::RefCell::new(Vec::new());
    let mut batch = Batch::new();
    batch.dump_routes(family, false);
    connection
        .dump(
            &mut batch,
            || found.borrow_mut().clear(),
            |_, body| {
                if let Some(route) = objects::read_route(body)
                    && route.key.prefix.prefix_len() == 0
                    && route.key.table == u32::from(libc::RT_TABLE_MAIN)
                {
                    found.borrow_mut().extend(route.target);
                }
            },
        )
        .step("list the routes")?;
    Ok(found.into_inner())
}

fn has_neighbour(
    connection: &mut Connection,
    ifindex: u32,
    address: IpAddr,
    mac: [u8; 6],
) -> Result<bool, DeviceError> {
    let mut batch = Batch::new();
    batch.get_neighbour(ifindex, address);
    let outcome = connection.run(&mut batch).step("look for a neighbour")?;
    let wanted = Neighbour { ifindex, address, mac };
    Ok(outcome.replies.iter().any(|(_, _, body)| objects::read_neighbour(body) == Some(wanted)))
}

/// The route that a packet to `destination` takes: its table, and where it leads.
fn route(
    connection: &mut Connection,
    destination: IpAddr,
) -> Result<Option<(u32, RouteTarget)>, DeviceError> {
    let mut batch = Batch::new();
    batch.get_route(destination);
    let outcome = connection.run(&mut batch).step("look for a route")?;
    let route = outcome.replies.iter().find_map(|(_, _, body)| objects::read_route(body));
    Ok(route.and_then(|route| Some((route.key.table, route.target?))))
}
