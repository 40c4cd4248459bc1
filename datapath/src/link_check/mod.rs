//! What is looked at on the link before a pod straight in a VLAN is ready, and what the link is told when it is.
//!
//! ```text
//!  attach flow ──check──► Check (a state machine) ◄─claim── LinkSocket (a packet socket) ◄── ARP, ND
//!     ◄─VerifiedAddress─             │ frames ─────────────►         │ filter: these addresses only
//!              ──announce───────────────────────────────────────────►│
//! ```
//!
//! A VLAN has no session whose state would say that packets arrive. So before the node stands in for an address, it asks on the VLAN whether
//! **the subnet's router answers** (else the trunk does not carry the VLAN, or the router is down: the pod would start without a network) and
//! whether **somebody else has the address** (else two machines would fight for it, and the one that was there would lose its
//! connections). When the pod's routes are in place it **announces the address**, so that switches and neighbours forget at once whoever had
//! it before.
//!
//! The order matters: from the moment when the kernel has the pod's route and proxy entry, it answers for the address. Therefore a check
//! comes before these, and costs no more than its wait, during which the pod's device is made.
//!
//! - `check`: what is asked when, and what an answer means. - `arp`, `nd`: the packets, RFC 826 with RFC 5227 and RFC 4861 with
//!   RFC 4862. - `link`, `filter`: the socket, one for each link and family however many pods come at once, and what may wake it.
//!
//! **Times.** RFC 5227 waits four to seven seconds for somebody to claim an address and RFC 4862 one, since they cannot know the link. Here
//! it is a data centre's VLAN, where an owner answers from its kernel within a millisecond: [`CheckTimeouts::duplicate_wait`] is short, and a
//! setting. An announcement goes out once, in every form that there is, and not again after 2 s (RFC 5227 §2.3): by then the pod may be
//! gone, and the announcement would take the address from who has it next.

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

/// What to look at for one address of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkCheck {
    /// The address.
    pub address: IpAddr,
    /// Its subnet's name.
    pub subnet: String,
    /// The subnet's router.
    pub gateway: IpAddr,
    /// The link's name.
    pub device: String,
    /// Its index.
    pub ifindex: u32,
    /// The VLAN that the switch has to carry, 0 for untagged.
    pub vlan: u16,
}

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckTimeouts {
    /// How long somebody who has an address has to say so; zero: nobody is asked.
    pub duplicate_wait: Duration,
    /// How long a router has to answer.
    pub gateway_timeout: Duration,
}

/// Why a pod cannot have its address on the link.
#[derive(Debug, thiserror::Error)]
pub enum LinkCheckError {
    /// The router does not answer.
    #[error(
        "gateway {} of Subnet {} did not answer {} on {} within {} s: check that {} and that the gateway is up",
        .0.gateway, .0.subnet, subject(.0), .0.device, .1.as_secs_f64(), carries(.0)
    )]
    NoAnswer(LinkCheck, Duration),
    /// Somebody else has the address.
    #[error(
        "{} of Subnet {} is already in use by {} on {}: remove it there, or write it into spec.range.excludeIPs of the Subnet",
        .0.address, .0.subnet, show_mac(.1), .0.device
    )]
    InUse(LinkCheck, [u8; 6]),
    /// The link cannot be asked.
    #[error("{device} cannot be asked about {address}: {error}")]
    Link {
        /// Its name.
        device: String,
        /// The address.
        address: IpAddr,
        /// The system's reason.
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
    /// One word, for the metrics.
    pub fn outcome(&self) -> &'static str {
        match self {
            LinkCheckError::NoAnswer(..) => "no_answer",
            LinkCheckError::InUse(..) => "in_use",
            LinkCheckError::Link { .. } => "error",
        }
    }
}

/// Asks on links. Cheap to clone.
#[derive(Clone)]
pub struct LinkChecker {
    times: CheckTimeouts,
    links: Arc<Mutex<Links>>,
}

/// By interface index and family; each lives as long as a check needs it.
type Links = HashMap<(u32, IpFamily), Weak<LinkSocket>>;

/// An address that nobody else has on its link, with its router there.
pub struct VerifiedAddress {
    check: LinkCheck,
    link: Arc<LinkSocket>,
}

impl LinkChecker {
    /// No socket is opened before the first check.
    pub fn new(times: CheckTimeouts) -> LinkChecker {
        LinkChecker { times, links: Arc::default() }
    }

    /// Whether the router of an address answers and nobody else has the address.
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

    fn link(&self, index: u32, family: IpFamily) -> io::Result<Arc<LinkSocket>> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|_, link| link.strong_count() > 0);
        let there = links.get(&(index, family)).and_then(Weak::upgrade).filter(|link| !link.is_over());
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
    /// Tells the link that this node has the address now.
    pub async fn announce(&self) -> Result<(), LinkCheckError> {
        let mac = self.link.mac();
        let frames = match self.check.address {
            IpAddr::V4(address) => arp::announcements(mac, address).into(),
            IpAddr::V6(address) => vec![nd::announcement(mac, address)],
        };
        for frame in frames {
            self.link.send(&frame).await.map_err(|error| LinkCheckError::Link {
                device: self.check.device.clone(),
                address: self.check.address,
                error,
            })?;
        }
        Ok(())
    }
}
