//! The checks on the link before a VLAN pod is ready, and the announcement of its address
//! afterwards.
//!
//! ```text
//!  attach flow ──check──► Check (a state machine) ◄─claim── LinkSocket (a packet socket) ◄── ARP, ND
//!     ◄─VerifiedAddress─             │ frames ─────────────►         │ filter: these addresses only
//!              ──announce───────────────────────────────────────────►│
//! ```
//!
//! A VLAN has no session that shows whether packets arrive. So before the node answers for an
//! address, it checks two things on the VLAN:
//!
//! - **The subnet's router answers.** Otherwise the trunk does not carry the VLAN or the router is
//!   down, and the pod would start without a network.
//! - **No other host has the address.** Otherwise two hosts would use it, and the first one would
//!   lose its connections.
//!
//! When the pod's routes are installed, the node **announces the address**. Switches and neighbours
//! then replace the entry of the previous holder at once.
//!
//! The order matters: the kernel answers for the address as soon as it has the pod's route and
//! proxy entry. So the check comes before both. The check takes only the time of its wait, and the
//! pod's device is created during this wait.
//!
//! - `check`: when requests are sent, and the meaning of the answers.
//! - `arp`, `nd`: the packets (RFC 826 with RFC 5227, RFC 4861 with RFC 4862).
//! - [`announcement`]: the announcement of a virtual machine on its pod's interface.
//! - `link`, `filter`: the socket and its filter. All checks of a link and a family share one
//!   socket.
//!
//! **Times.** RFC 5227 waits four to seven seconds for a conflicting claim, and RFC 4862 waits one
//! second, because these RFCs apply to any kind of link. In a data centre's VLAN, the kernel of a
//! holder answers within a millisecond. So [`CheckTimeouts::duplicate_wait`] is short, and it is a
//! setting. The node sends an announcement once, in every form, and does not repeat it after 2 s
//! (RFC 5227 §2.3). After 2 s the pod may be gone, and a second announcement would take the address
//! from its next holder.

pub mod announcement;
mod arp;
mod check;
mod filter;
mod frame;
mod link;
mod nd;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use check::{AddressQuery, Check, CheckStep, Fault};
use link::LinkSocket;

use crate::family::IpFamily;
use crate::mac::show_mac;

/// The parameters of a check of one address of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkCheck {
    /// The address.
    pub address: IpAddr,
    /// Name of the Subnet.
    pub subnet: String,
    /// The router of the subnet.
    pub gateway: IpAddr,
    /// Name of the link.
    pub device: String,
    /// Index of the link.
    pub ifindex: u32,
    /// The VLAN of the link; 0 for untagged.
    pub vlan: u16,
}

/// The time limits of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckTimeouts {
    /// The wait for a claim of another host. Zero: no duplicate address detection.
    pub duplicate_wait: Duration,
    /// The wait for an answer of the router.
    pub gateway_timeout: Duration,
}

/// The reason why a pod cannot use its address on the link.
#[derive(Debug, thiserror::Error)]
pub enum LinkCheckError {
    /// The router does not answer.
    #[error(
        "gateway {} of Subnet {} did not answer {} on {} within {} s: check that {} and that the gateway is up",
        .0.gateway, .0.subnet, subject(.0), .0.device, .1.as_secs_f64(), carries(.0)
    )]
    NoAnswer(LinkCheck, Duration),
    /// Another host has the address.
    #[error(
        "{} of Subnet {} is already in use by {} on {}: remove it there, or write it into spec.range.excludeIPs of the Subnet",
        .0.address, .0.subnet, show_mac(.1), .0.device
    )]
    InUse(LinkCheck, [u8; 6]),
    /// The check cannot send or receive on the link.
    #[error("link check of {address} on {device}: {error}")]
    Link {
        /// Name of the link.
        device: String,
        /// The address.
        address: IpAddr,
        /// The system's error.
        #[source]
        error: io::Error,
    },
}

fn subject(check: &LinkCheck) -> &'static str {
    if check.gateway.is_ipv4() { "ARP" } else { "Neighbour Solicitations" }
}

fn carries(check: &LinkCheck) -> String {
    match check.vlan {
        0 => format!("{} is in the untagged network of the Subnet", check.device),
        id => format!("the switch's trunk to this node carries VLAN {id}"),
    }
}

impl LinkCheckError {
    /// The label value for the metrics.
    pub fn outcome(&self) -> &'static str {
        match self {
            LinkCheckError::NoAnswer(..) => "no_answer",
            LinkCheckError::InUse(..) => "in_use",
            LinkCheckError::Link { .. } => "error",
        }
    }
}

/// Runs checks on links. Cheap to clone.
#[derive(Clone)]
pub struct LinkChecker {
    times: CheckTimeouts,
    links: Arc<Mutex<Links>>,
}

/// The sockets by interface index and family. A socket lives as long as a check or a verified
/// address uses it.
type Links = HashMap<(u32, IpFamily), Weak<LinkSocket>>;

/// An address that no other host on the link has, and whose router answered.
pub struct VerifiedAddress {
    check: LinkCheck,
    link: Arc<LinkSocket>,
}

impl LinkChecker {
    /// Creates a checker. The first check opens the first socket.
    pub fn new(times: CheckTimeouts) -> LinkChecker {
        LinkChecker { times, links: Arc::default() }
    }

    /// Checks that the router of the address answers, and that no other host has the address.
    pub async fn check(&self, check: &LinkCheck) -> Result<VerifiedAddress, LinkCheckError> {
        let failed =
            |error| LinkCheckError::Link { device: check.device.clone(), address: check.address, error };
        let link = self.link(check.ifindex, IpFamily::of(&check.address.into())).map_err(failed)?;
        match self.run_check(&link, check).await.map_err(failed)? {
            Ok(()) => Ok(VerifiedAddress { check: check.clone(), link }),
            Err(Fault::InUse(mac)) => Err(LinkCheckError::InUse(check.clone(), mac)),
            Err(Fault::NoAnswer) => Err(LinkCheckError::NoAnswer(check.clone(), self.times.gateway_timeout)),
        }
    }

    async fn run_check(&self, link: &Arc<LinkSocket>, of: &LinkCheck) -> io::Result<Result<(), Fault>> {
        let mut watch = link.watch(vec![of.address, of.gateway])?;
        let (_membership, link_local) = match of.address {
            IpAddr::V4(_) => (None, None),
            IpAddr::V6(address) => {
                (Some(link::join_solicited_node(of.ifindex, address)?), link::link_local(of.ifindex))
            }
        };
        let query = AddressQuery { address: of.address, gateway: of.gateway, mac: link.mac(), link_local };
        let mut check = Check::new(query, self.times, Instant::now());
        loop {
            let (send, until) = match check.poll(Instant::now()) {
                CheckStep::Done(outcome) => return Ok(outcome),
                CheckStep::Wait { send, until } => (send, until),
            };
            for frame in send {
                link.send(&frame).await?;
            }
            tokio::select! {
                claim = watch.receive() => check.handle_claim(&claim?),
                () = sleep_until(until) => {}
            }
        }
    }

    /// Announces on a link that this node has an address. Neighbours replace the entry of the
    /// former holder.
    ///
    /// # Errors
    /// The kernel's: the link does not exist, or is down.
    pub async fn announce(&self, ifindex: u32, address: IpAddr) -> io::Result<()> {
        announce(&*self.link(ifindex, IpFamily::of(&address.into()))?, address).await
    }

    fn link(&self, index: u32, family: IpFamily) -> io::Result<Arc<LinkSocket>> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|_, link| link.strong_count() > 0);
        let there = links.get(&(index, family)).and_then(Weak::upgrade).filter(|link| !link.has_failed());
        match there {
            Some(link) => Ok(link),
            None => {
                let link = Arc::new(LinkSocket::open(index, family)?);
                links.insert((index, family), Arc::downgrade(&link));
                Ok(link)
            }
        }
    }
}

impl VerifiedAddress {
    /// Announces on the link that this node has the address.
    pub async fn announce(&self) -> Result<(), LinkCheckError> {
        announce(&self.link, self.check.address).await.map_err(|error| LinkCheckError::Link {
            device: self.check.device.clone(),
            address: self.check.address,
            error,
        })
    }
}

async fn announce(link: &LinkSocket, address: IpAddr) -> io::Result<()> {
    let frames = match address {
        IpAddr::V4(address) => arp::announcements(link.mac(), address).into(),
        IpAddr::V6(address) => vec![nd::announcement(link.mac(), address)],
    };
    for frame in frames {
        link.send(&frame).await?;
    }
    Ok(())
}
