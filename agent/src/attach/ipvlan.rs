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

use super::device::{ALIAS_PREFIX, DeviceError, DeviceSpec, Step};
use super::veth::first_link;
use crate::kernel::netlink::objects::LinkInfo;
use crate::kernel::netlink::{Batch, Connection};
use crate::plan::Ipvlan;

/// Makes the slave, or finds what an earlier attempt left of it. `pair`: the host's end of the pair beside it.
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
    for again in [false, true] {
        batch.clear();
        batch.create_ipvlan(&spec.ifname, ipvlan.parent, spec.mtu, netns);
        batch.get_link_in(netns_id, &spec.ifname);
        let outcome = host.run(&mut batch).step(STEP)?;
        let link = first_link(&outcome);
        match (outcome.refusal(0).map(|refusal| refusal.errno), link) {
            (None, Some(link)) => {
                outcome.check(&[]).step(STEP)?;
                return Ok(link);
            }
            (Some(libc::EEXIST), Some(link)) if is_own(&link) => {
                if link.peer == Some(ipvlan.parent) {
                    return Ok(link);
                }
                if again {
                    return Err(taken());
                }
                // Of another VLAN than now.
                batch.clear();
                batch.delete_link_in(netns_id, link.index);
                host.run(&mut batch).step(STEP)?.check(&[libc::ENODEV]).step(STEP)?;
            }
            (Some(libc::EEXIST), _) => return Err(taken()),
            (Some(libc::EOPNOTSUPP), _) => return Err(DeviceError::NoIpvlan { ifname: spec.ifname.clone() }),
            _ => {
                let parent = ipvlan.parent_name.clone();
                let error = outcome.check(&[]).err();
                return Err(DeviceError::Parent { ifname: spec.ifname.clone(), parent, error });
            }
        }
    }
    Err(taken())
}

/// Adds the requests that delete the slave beside `pair`, if there is one.
pub(super) fn delete(
    host: &mut Connection,
    pair: &LinkInfo,
    ifname: &str,
    batch: &mut Batch,
) -> Result<(), DeviceError> {
    const STEP: &str = "look for the IPVLAN slave";
    let Some(netns_id) = pair.peer_netns else { return Ok(()) };
    let mut look = Batch::new();
    look.get_link_in(netns_id, ifname);
    // EINVAL: no namespace has the number any more.
    let outcome = host.run(&mut look).step(STEP)?.check(&[libc::ENODEV, libc::EINVAL]).step(STEP)?;
    if let Some(slave) = first_link(&outcome).filter(is_own) {
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
pub(super) fn refuse_advertisements(ifname: &str) -> Result<(), DeviceError> {
    let path = format!("/proc/sys/net/ipv6/conf/{ifname}/accept_ra");
    match fs::write(&path, "0") {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(DeviceError::Setting { path, error })
        }
        _ => Ok(()),
    }
}
