//! A pod's veth pair: created or found again, configured at the host interface, deleted.
//!
//! **In the pod**: `eth0` (or another name from the runtime) with each address as /32 or /128, a
//! default route through 169.254.1.1 and fe80::ecee:eeff:feee:eeee, and permanent neighbour entries
//! for both. So the first packet needs no ARP or ND. **On the host**: the host interface with a
//! name derived from container ID and interface name, with proxy ARP, MAC address ee:ee:ee:ee:ee:ee
//! and an alias that contains the owner. The kernel owner adds the host's routes and neighbour
//! entries last ([`crate::kernel::KernelHandle::add_pod`]): a route in table 39999 shows that a
//! device is complete.
//!
//! **No address on the host interface.** Neither gateway is an address of the host. Both only
//! resolve to the host's MAC address, and neither answers a ping. Packets of the host to a pod (a
//! probe, "packet too big") have another address of the host as source. For the guests
//! of virtual machines the host answers requests for both by proxy. For IPv6 an address is not possible
//! because of the cost: the same address on 1,000 links creates one list of 1,000 addresses and one list of 1,000
//! routes. The kernel searches both lists for each pod. In the 1,000th ADD, this takes 0.4 ms.
//!
//! **Idempotence.** The host interface's name is a function of container ID and interface name. ADD
//! completes the links of an earlier attempt: each later request replaces an existing object. If
//! the other end is not in this namespace, ADD deletes the pair and creates it again.

use std::os::fd::BorrowedFd;

use trunkline_api::resources::AttachmentKind;

use super::device::{DeviceError, HOST_MAC, Step};
use super::ipvlan;
use crate::naming::{ALIAS_PREFIX, Alias, pair_name};
use crate::netlink::objects::{self, LinkInfo, Veth};
use crate::netlink::{Batch, BatchResult, Connection};

/// Creates the pair, or finds the pair of an earlier attempt. Returns the host interface, and
/// whether it is new. Both ends may be down.
pub(super) fn create(
    host: &mut Connection,
    pod: &mut Connection,
    netns: BorrowedFd<'_>,
    veth: &Veth<'_>,
) -> Result<(LinkInfo, bool), DeviceError> {
    let mut batch = Batch::new();
    let mut attempt = 0;
    loop {
        attempt += 1;
        batch.clear();
        // The batch has no other request: the owner of an existing link with this name is not known
        // yet.
        batch.create_veth(veth, netns);
        batch.get_link(veth.host_name);
        let outcome = host.run(&mut batch).step("create the veth pair")?;
        let link = first_link(&outcome);
        match (outcome.refusal(0), link) {
            (None, Some(link)) => {
                outcome.check(&[]).step("create the veth pair")?;
                return Ok((link, true));
            }
            // A link of an earlier attempt exists. It can be used if its other end is the pod's
            // interface.
            (Some(refusal), Some(link)) if refusal.errno == libc::EEXIST => {
                check_owner(&link)?;
                let whole = |end: LinkInfo| {
                    are_pair(&link, &end) && link.mac == Some(HOST_MAC) && end.mac == Some(veth.pod_mac)
                };
                if find(pod, veth.pod_name)?.is_some_and(whole) {
                    return Ok((link, false));
                }
                if attempt > 1 {
                    return Err(DeviceError::Taken { ifname: veth.pod_name.to_owned() });
                }
                delete(host, &link)?;
            }
            (Some(refusal), None) if refusal.errno == libc::EEXIST => {
                return Err(DeviceError::Taken { ifname: veth.pod_name.to_owned() });
            }
            _ => {
                outcome.check(&[]).step("create the veth pair")?;
                return Err(DeviceError::Check(vec![format!("{} disappeared at once", veth.host_name)]));
            }
        }
    }
}

/// Deletes a pair, and its IPVLAN slave if it has one. Returns false if the pair did not exist.
pub(super) fn delete(host: &mut Connection, link: &LinkInfo) -> Result<bool, DeviceError> {
    let mut batch = Batch::new();
    let Alias { ifname, kind, .. } = alias(link);
    if kind == AttachmentKind::Ipvlan {
        ipvlan::delete(host, link, ifname, &mut batch)?;
    }
    let last = batch.len();
    batch.delete_link(link.index);
    let outcome =
        host.run(&mut batch).step("delete the link")?.check(&[libc::ENODEV]).step("delete the link")?;
    Ok(outcome.refusal(last).is_none())
}

/// The parsed alias of a link.
pub(super) fn alias(link: &LinkInfo) -> Alias<'_> {
    Alias::read(link.alias.as_deref().unwrap_or_default())
}

/// Refuses a link that has a Trunkline name and that another program created.
pub(super) fn check_owner(link: &LinkInfo) -> Result<(), DeviceError> {
    let alias = link.alias.as_deref().unwrap_or_default();
    let foreign = || Err(DeviceError::Foreign { ifname: link.name.clone(), alias: alias.to_owned() });
    // The alias is missing if the agent was killed between creation and configuration of the link.
    let half_made = match link.kind.as_deref() {
        Some("veth") => link.mac == Some(HOST_MAC),
        Some("ifb") => pair_name(&link.name).is_some(),
        _ => return foreign(),
    };
    if alias.starts_with(ALIAS_PREFIX) || alias.is_empty() && half_made { Ok(()) } else { foreign() }
}

/// Whether these are the two ends of one pair.
pub(super) fn are_pair(host: &LinkInfo, pod: &LinkInfo) -> bool {
    host.peer == Some(pod.index) && pod.peer == Some(host.index) && pod.kind.as_deref() == Some("veth")
}

/// The link with this name, if there is one.
pub(super) fn find(connection: &mut Connection, name: &str) -> Result<Option<LinkInfo>, DeviceError> {
    Ok(find_all(connection, &[name])?.pop())
}

/// The existing links with these names.
pub(super) fn find_all(connection: &mut Connection, names: &[&str]) -> Result<Vec<LinkInfo>, DeviceError> {
    let mut batch = Batch::new();
    for name in names {
        batch.get_link(name);
    }
    let outcome =
        connection.run(&mut batch).step("find the link")?.check(&[libc::ENODEV]).step("find the link")?;
    Ok(links(&outcome).collect())
}

pub(super) fn first_link(outcome: &BatchResult) -> Option<LinkInfo> {
    links(outcome).next()
}

/// The links in the replies of a batch.
pub(super) fn links(outcome: &BatchResult) -> impl Iterator<Item = LinkInfo> {
    let replies = outcome.replies.iter().filter(|(_, kind, _)| *kind == libc::RTM_NEWLINK);
    replies.filter_map(|(_, _, body)| objects::read_link(body))
}
