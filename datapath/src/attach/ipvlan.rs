//! A pod's IPVLAN slave: created or found again, checked, deleted. Each slave has a veth pair to
//! the host, which identifies it.
//!
//! **Reason for the pair.** A slave and its parent device do not receive each other's packets. A
//! slave's packets go to the wire, even to an address of its own host. So the pair carries the
//! pod's packets to the host, to pods of the host with other attachments, and to Services. It also
//! carries packets of the host to the pod. The rest of the agent handles such a pod like any pod
//! with a pair. A route in table 39999 uses the pair, and the host interface leads to the pod
//! interface.
//!
//! **In the pod**: `eth0` is the slave, in L2 mode, with the VLAN device's MAC address. It has the
//! pod's address with the subnet's prefix length, and a default route through the real gateway. The
//! pod interface of the pair has the same name as on the host, and no address: packets leave by the
//! pod interface with the slave's address. The host's neighbour entry is permanent, because the pod
//! would not answer solicitations for an IPv6 address of another link. Both links have a loose
//! `rp_filter`. The slave accepts no router advertisement, because the Subnet defines addresses and
//! gateway.
//!
//! **Found by the pair.** A slave has no name on the host. DEL may come without a namespace. So DEL
//! reads the ID of the pod's namespace from the pair, and finds and deletes the slave in that
//! namespace. The mark in the pair's alias shows that there is a slave. The alias is set before the
//! slave is created. If the namespace was deleted, slave and pair were deleted with it.
//!
//! **Owner.** The slave has its own alias. Between its creation and its alias, the slave is down.
//! This state distinguishes it from a slave of another program.

use std::fs;
use std::os::fd::BorrowedFd;

use super::device::{DeviceError, DeviceSpec, Step};
use super::veth::{first_link, links};
use crate::naming::ALIAS_PREFIX;
use crate::netlink::objects::LinkInfo;
use crate::netlink::{Batch, Connection};
use crate::plan::Ipvlan;
use crate::sysctl;

/// Creates the slave, or finds the slave of an earlier attempt, which may still have its
/// [`first_name`]. `pair`: the host interface of the slave's veth pair.
pub(super) fn create(
    host: &mut Connection,
    netns: BorrowedFd<'_>,
    pair: &LinkInfo,
    spec: &DeviceSpec,
    ipvlan: &Ipvlan,
) -> Result<LinkInfo, DeviceError> {
    const STEP: &str = "create the IPVLAN slave";
    let taken = || DeviceError::Taken { ifname: spec.ifname.clone() };
    let netns_id = pair.peer_netns.ok_or_else(taken)?;
    let mut batch = Batch::new();
    for link in find(host, netns_id, &pair.name, &spec.ifname)? {
        match (is_own(&link), link.peer == Some(ipvlan.parent)) {
            (true, true) => return Ok(link),
            // a slave of the previous VLAN
            (true, false) => batch.delete_link_in(netns_id, link.index),
            (false, _) => return Err(taken()),
        }
    }
    host.run(&mut batch).step(STEP)?.check(&[libc::ENODEV]).step(STEP)?;

    let name = first_name(&pair.name);
    batch.clear();
    batch.create_ipvlan(&name, ipvlan.parent, spec.mtu, netns);
    batch.get_link_in(netns_id, &name);
    let outcome = host.run(&mut batch).step(STEP)?;
    match (outcome.refusal(0).map(|refusal| refusal.errno), first_link(&outcome)) {
        (None, Some(link)) => Ok(link),
        (Some(libc::EOPNOTSUPP), _) => Err(DeviceError::NoIpvlan { ifname: spec.ifname.clone() }),
        _ => {
            let parent = ipvlan.parent_name.clone();
            let error = outcome.check(&[]).err();
            Err(DeviceError::Parent { ifname: spec.ifname.clone(), parent, error })
        }
    }
}

/// The slave's name before it gets its name in the pod. Kernels before 6.14 check a new link's name
/// in the requesting namespace, where `eth0` probably exists.
fn first_name(pair: &str) -> String {
    format!("{pair}-")
}

/// The links in the pod with the slave's name or its first name.
fn find(
    host: &mut Connection,
    netns_id: i32,
    pair: &str,
    ifname: &str,
) -> Result<Vec<LinkInfo>, DeviceError> {
    const STEP: &str = "find the IPVLAN slave";
    let mut batch = Batch::new();
    batch.get_link_in(netns_id, ifname);
    batch.get_link_in(netns_id, &first_name(pair));
    // EINVAL: the namespace with this ID no longer exists.
    let outcome = host.run(&mut batch).step(STEP)?.check(&[libc::ENODEV, libc::EINVAL]).step(STEP)?;
    Ok(links(&outcome).collect())
}

/// Adds the requests that delete the slave of the veth pair `pair`, if it exists.
pub(super) fn delete(
    host: &mut Connection,
    pair: &LinkInfo,
    ifname: &str,
    batch: &mut Batch,
) -> Result<(), DeviceError> {
    let Some(netns_id) = pair.peer_netns else { return Ok(()) };
    for slave in find(host, netns_id, &pair.name, ifname)?.into_iter().filter(is_own) {
        batch.delete_link_in(netns_id, slave.index);
    }
    Ok(())
}

/// Whether a pod's interface is a slave of Trunkline.
pub(super) fn is_own(link: &LinkInfo) -> bool {
    let half_made = link.alias.is_none() && !link.is_up();
    let alias = link.alias.as_deref().unwrap_or_default();
    link.kind.as_deref() == Some("ipvlan") && (half_made || alias.starts_with(ALIAS_PREFIX))
}

/// Disables router advertisements: the VLAN's routers send them to all hosts, but the Subnet
/// defines the pod's addresses and routes. The calling thread is in the pod's namespace. Without
/// IPv6 the file does not exist.
pub(super) fn refuse_advertisements(slave: &LinkInfo) -> Result<(), DeviceError> {
    let path = sysctl::file(&format!("net/ipv6/conf/{}/accept_ra", slave.name));
    match fs::write(&path, "0") {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(DeviceError::Setting { path: path.display().to_string(), error })
        }
        _ => Ok(()),
    }
}
