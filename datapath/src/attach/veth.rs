//! A pod's veth pair: made or found again, set up at the host's end, deleted.
//!
//! **In the pod**: `eth0` (or what the runtime calls it) with each address as /32 or /128, a default route through 169.254.1.1 and
//! fe80::ecee:eeff:feee:eeee, and permanent neighbour entries for both, so that the first packet waits for nobody. **On the host**: the
//! other end, its name derived from container and interface, with proxy ARP, MAC ee:ee:ee:ee:ee:ee and an alias that says whose it
//! is. The host's routes and neighbours come last and by another hand
//! ([`crate::kernel::KernelHandle::add_pod`]): a route in table 39999 is the mark that a device is complete.
//!
//! **No address on the host's end.** Neither gateway is an address of the host: both are only a name for the host's MAC, and neither
//! answers a ping. What the host itself says to a pod (a probe, "packet too big") comes from another address of the host. For
//! IPv6 that is a matter of cost: the same address on 1,000 links is one list of 1,000 addresses and another one of 1,000 routes, and the
//! kernel goes through both for each pod (0.4 ms of the ADD of the 1,000th one).
//!
//! **Idempotence.** The host's name is a function of container and interface. Whatever an earlier attempt left is either completed (every
//! request but the creation replaces) or, if its other end is not in this namespace, deleted and made anew.

use std::os::fd::BorrowedFd;

use trunkline_api::resources::AttachmentKind;

use super::device::{DeviceError, HOST_MAC, Step};
use super::ipvlan;
use crate::naming::{ALIAS_PREFIX, Alias, pair_name};
use crate::netlink::objects::{self, LinkInfo, Veth};
use crate::netlink::{Batch, BatchResult, Connection};

/// Makes the pair, or finds what an earlier attempt left of it. Answers the host's end, and whether it is new; both ends may be down.
pub(super) fn make(
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
        // No more than this before it is known whose link has the name.
        batch.create_veth(veth, netns);
        batch.get_link(veth.host_name);
        let outcome = host.run(&mut batch).step("create the veth pair")?;
        let link = first_link(&outcome);
        match (outcome.refusal(0), link) {
            (None, Some(link)) => {
                outcome.check(&[]).step("create the veth pair")?;
                return Ok((link, true));
            }
            // Something of an earlier attempt is there: good if its other end is the pod's interface.
            (Some(refusal), Some(link)) if refusal.errno == libc::EEXIST => {
                own(&link)?;
                let whole = |end: LinkInfo| {
                    belongs(&link, &end) && link.mac == Some(HOST_MAC) && end.mac == Some(veth.pod_mac)
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
                return Err(DeviceError::Check(vec![format!(
                    "{} was gone as soon as it was made",
                    veth.host_name
                )]));
            }
        }
    }
}

/// Deletes a pair, and the slave beside it. False: the pair was gone.
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

/// What a link's alias says.
pub(super) fn alias(link: &LinkInfo) -> Alias<'_> {
    Alias::read(link.alias.as_deref().unwrap_or_default())
}

/// Refuses a link that only has an own name by chance.
pub(super) fn own(link: &LinkInfo) -> Result<(), DeviceError> {
    let alias = link.alias.as_deref().unwrap_or_default();
    let foreign = || Err(DeviceError::Foreign { ifname: link.name.clone(), alias: alias.to_owned() });
    // Killed between the link's creation and its set-up it has no alias.
    let half_made = match link.kind.as_deref() {
        Some("veth") => link.mac == Some(HOST_MAC),
        Some("ifb") => pair_name(&link.name).is_some(),
        _ => return foreign(),
    };
    if alias.starts_with(ALIAS_PREFIX) || alias.is_empty() && half_made { Ok(()) } else { foreign() }
}

/// Whether these are the two ends of one pair.
pub(super) fn belongs(host: &LinkInfo, pod: &LinkInfo) -> bool {
    host.peer == Some(pod.index) && pod.peer == Some(host.index) && pod.kind.as_deref() == Some("veth")
}

/// The link with this name, if there is one.
pub(super) fn find(connection: &mut Connection, name: &str) -> Result<Option<LinkInfo>, DeviceError> {
    Ok(find_all(connection, &[name])?.pop())
}

/// The links of these names that are there.
pub(super) fn find_all(connection: &mut Connection, names: &[&str]) -> Result<Vec<LinkInfo>, DeviceError> {
    let mut batch = Batch::new();
    for name in names {
        batch.get_link(name);
    }
    let outcome = connection
        .run(&mut batch)
        .step("look for the link")?
        .check(&[libc::ENODEV])
        .step("look for the link")?;
    Ok(links(&outcome).collect())
}

pub(super) fn first_link(outcome: &BatchResult) -> Option<LinkInfo> {
    links(outcome).next()
}

/// The links that requests were answered with.
pub(super) fn links(outcome: &BatchResult) -> impl Iterator<Item = LinkInfo> {
    let replies = outcome.replies.iter().filter(|(_, kind, _)| *kind == libc::RTM_NEWLINK);
    replies.filter_map(|(_, _, body)| objects::read_link(body))
}
