//! A pod's IPVLAN slave: made or found again, looked for, deleted; always by way of the pair that stands beside it.
//!
//! **Why a pair beside it.** A slave and the device that carries it do not hear each other: what a slave sends goes out to the wire, even
//! to an address of its own host. So what is for the host, for pods of the host that are joined otherwise, and for Services goes by
//! the pair, and so does what the host sends to the pod. For the rest of the agent such a pod is a pod with a pair like any other: a
//! route in table 39999 leads to it, its end tells of the pod's end.
//!
//! **In the pod**: `eth0` is the slave, in L2 mode, with the VLAN device's MAC, the address with the subnet's prefix length and a default
//! route through the real gateway. The pair's end has the same name as on the host, and no address: packets leave by it from the slave's,
//! and the host's neighbour entry is permanent, since IPv6 would not answer for an address of another link. Both links have a loose
//! `rp_filter`, and the slave accepts no router advertisement: addresses and gateway are the subnet's affair.
//!
//! **Found by the pair.** A slave has no name on the host, so DEL, which may come without a namespace, asks the pair for the number of
//! its other end's namespace, and looks and deletes there. The mark in the pair's alias says that there is something to look for. The
//! alias is set before the slave is made; and a namespace that is gone has taken slave and pair along.
//!
//! **Whose it is.** The slave's own alias. Between creation and alias it is down, which is how one is told from somebody else's.

use std::fs;
use std::os::fd::BorrowedFd;

use super::device::{DeviceError, DeviceSpec, Step};
use super::veth::{first_link, links};
use crate::naming::ALIAS_PREFIX;
use crate::netlink::objects::LinkInfo;
use crate::netlink::{Batch, Connection};
use crate::plan::Ipvlan;
use crate::sysctl;

/// Makes the slave, or finds what an earlier attempt left of it; it may still have its [`first_name`]. `pair`: the host's end of the
/// pair beside it.
pub(super) fn make(
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
            (true, false) => batch.delete_link_in(netns_id, link.index), // of another VLAN than now
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

/// What a slave is called until it gets its name in the pod. Kernels before 6.14 look for a new link's name in the namespace that asks for
/// it, and `eth0` is likely there.
fn first_name(pair: &str) -> String {
    format!("{pair}-")
}

/// What there is in the pod under the slave's name and under its first one.
fn find(
    host: &mut Connection,
    netns_id: i32,
    pair: &str,
    ifname: &str,
) -> Result<Vec<LinkInfo>, DeviceError> {
    const STEP: &str = "look for the IPVLAN slave";
    let mut batch = Batch::new();
    batch.get_link_in(netns_id, ifname);
    batch.get_link_in(netns_id, &first_name(pair));
    // EINVAL: no namespace has the number any more.
    let outcome = host.run(&mut batch).step(STEP)?.check(&[libc::ENODEV, libc::EINVAL]).step(STEP)?;
    Ok(links(&outcome).collect())
}

/// Adds the requests that delete the slave beside `pair`, if there is one.
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

/// Whether a pod's interface is a slave of ours.
pub(super) fn is_own(link: &LinkInfo) -> bool {
    let half_made = link.alias.is_none() && !link.is_up();
    let alias = link.alias.as_deref().unwrap_or_default();
    link.kind.as_deref() == Some("ipvlan") && (half_made || alias.starts_with(ALIAS_PREFIX))
}

/// The VLAN's routers advertise to every host there; a pod has what its subnet says. The calling thread is in the pod's namespace. Without
/// IPv6 there is nothing to write.
pub(super) fn refuse_advertisements(slave: &LinkInfo) -> Result<(), DeviceError> {
    let path = sysctl::file(&format!("net/ipv6/conf/{}/accept_ra", slave.name));
    match fs::write(&path, "0") {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(DeviceError::Setting { path: path.display().to_string(), error })
        }
        _ => Ok(()),
    }
}
