//! Finds the neighbour on a point-to-point link by IPv6 router advertisements, for "unnumbered"
//! peering.
//!
//! A link between a node and its router needs no configured addresses. Both ends have a link-local
//! address, and each finds the other's as the source of its router advertisements (RFC 4861 §4.2).
//! This side listens for them and requests one with a Router Solicitation (§4.1). It also
//! advertises itself, because the other side finds its peer in the same way. Its advertisement only
//! announces its presence. It has Router Lifetime 0, so no host installs a default route (§6.2.3),
//! and no prefixes or parameters.
//!
//! A Hop Limit of 255 proves that a message was not forwarded, and routers advertise from
//! link-local addresses only (§6.1.2). One link has one neighbour. When an advertisement arrives
//! from another address, this side solicits the known neighbour. If the neighbour does not answer
//! within 5 s, the new address replaces it. So discovery finds the new address of a router within
//! seconds. Two routers on one link cause a warning, not flapping. A silent neighbour stays: BGP
//! and BFD detect whether it is alive. The lifetime in an advertisement is for default routers, and
//! the neighbour need not be a default router.
//!
//! Supported: the parts of RFC 4861 that this discovery needs. Not supported: Router Lifetime and
//! everything else that a host takes from an advertisement (§6.3.4), random delays before an answer
//! (§6.2.6; with one neighbour no other host answers), redirects.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{info, warn};

use super::sockopt::{self, datagram};
use crate::types::InterfaceName;

/// The neighbours found, by interface.
pub type Neighbours = BTreeMap<InterfaceName, Ipv6Addr>;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// The first interval between rounds, because the other side may still be starting. It doubles
/// after each round.
const FIRST_ROUND: Duration = Duration::from_secs(1);

/// The maximum interval between advertisements (MaxRtrAdvInterval, RFC 4861 §6.2.1: at least 4 s).
const INTERVAL: Duration = Duration::from_secs(10);

/// The time in which the known neighbour must answer a solicitation after another address
/// advertised. It is MIN_DELAY_BETWEEN_RAS (3 s) and MAX_RA_DELAY_TIME (0.5 s) of RFC 4861 §10 plus
/// a margin.
const CONTEST: Duration = Duration::from_secs(5);

const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;

/// Type, Code, Checksum (set by the kernel), Reserved.
const SOLICITATION: [u8; 8] = [ROUTER_SOLICITATION, 0, 0, 0, 0, 0, 0, 0];

/// Type, Code, Checksum (set by the kernel), Cur Hop Limit, flags, Router Lifetime, Reachable Time,
/// Retrans Timer: all unspecified or 0.
const ADVERTISEMENT: [u8; 16] = [ROUTER_ADVERTISEMENT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Discovers the neighbour on one interface until it is dropped.
#[derive(Debug)]
pub struct Discovery {
    interface: InterfaceName,
    neighbours: watch::Sender<Neighbours>,
    task: JoinHandle<()>,
}

impl Discovery {
    /// Starts to listen and to advertise on an interface, and writes the neighbour into
    /// `neighbours`. The interface must exist and be up. If it is removed or recreated, discovery
    /// ends without notice and must be started again: the caller watches the host's links. Needs
    /// CAP_NET_RAW, like `ping`.
    ///
    /// # Errors
    /// If the interface does not exist or the socket cannot be set up.
    ///
    /// # Panics
    /// If called outside a tokio runtime.
    pub fn start(interface: InterfaceName, neighbours: &watch::Sender<Neighbours>) -> io::Result<Self> {
        let index = sockopt::interface_index(interface)?;
        let link = Link { interface, index, socket: open(interface, index)?, complained: false };
        let task = tokio::spawn(run(link, neighbours.clone()));
        Ok(Discovery { interface, neighbours: neighbours.clone(), task })
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        self.task.abort();
        self.neighbours.send_if_modified(|neighbours| neighbours.remove(&self.interface).is_some());
    }
}

/// A raw socket for router messages on one link. Its type is `UdpSocket`, which tokio can use for
/// any datagram socket.
fn open(interface: InterfaceName, index: u32) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6))?;
    sockopt::receive_only(&socket, &[ROUTER_SOLICITATION, ROUTER_ADVERTISEMENT])?;
    socket.bind_device(Some(interface.as_str().as_bytes()))?;
    datagram::enable_control_messages(&socket, true)?;
    socket.set_multicast_hops_v6(255)?;
    socket.set_multicast_loop_v6(false)?;
    socket.set_multicast_if_v6(index)?;
    socket.join_multicast_v6(&ALL_ROUTERS, index)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket.into())
}

struct Link {
    interface: InterfaceName,
    index: u32,
    socket: UdpSocket,
    complained: bool,
}

impl Link {
    /// Ignores errors: an unsent message is like a lost one, and the next round repeats it. Sending
    /// fails while the interface goes down, or before its link-local address is usable.
    async fn send(&self, message: &[u8], to: Ipv6Addr) {
        let to: SocketAddr = SocketAddrV6::new(to, 0, 0, self.index).into();
        let _ = self.socket.send_to(message, to).await;
    }

    async fn solicit(&self) {
        self.send(&SOLICITATION, ALL_ROUTERS).await;
    }

    async fn advertise(&self) {
        self.send(&ADVERTISEMENT, ALL_NODES).await;
    }

    async fn receive(&self) -> io::Result<Option<NdMessage>> {
        let mut buffer = [0; 1500];
        let receive = || datagram::receive(&self.socket, &mut buffer);
        let got = self.socket.async_io(Interest::READABLE, receive).await?;
        let IpAddr::V6(from) = got.from.ip() else { return Ok(None) };
        Ok(parse(from, got.ttl, &buffer[..got.length.min(buffer.len())]))
    }
}

/// A message from a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NdMessage {
    Solicitation,
    Advertisement(Ipv6Addr),
}

/// Checks of RFC 4861 §6.1.1 and §6.1.2; the kernel has checked the checksum.
fn parse(from: Ipv6Addr, hop_limit: Option<u8>, message: &[u8]) -> Option<NdMessage> {
    let (&[kind, code, ..], Some(255)) = (message, hop_limit) else { return None };
    match (kind, code) {
        (ROUTER_SOLICITATION, 0) if message.len() >= SOLICITATION.len() => Some(NdMessage::Solicitation),
        (ROUTER_ADVERTISEMENT, 0) if message.len() >= ADVERTISEMENT.len() && from.is_unicast_link_local() => {
            Some(NdMessage::Advertisement(from))
        }
        _ => None,
    }
}

/// The selection of the neighbour.
#[derive(Debug, Default)]
struct Choice {
    known: Option<Ipv6Addr>,
    challenger: Option<(Ipv6Addr, Instant)>,
}

/// The result of an advertisement.
#[derive(Debug, PartialEq, Eq)]
enum AdvertisementResult {
    /// No change.
    Same,
    /// This address is the neighbour now.
    Found(Ipv6Addr),
    /// Another address advertised: solicit the known address.
    Contested,
    /// Both addresses are present.
    Two(Ipv6Addr),
}

impl Choice {
    fn handle_advertisement(&mut self, from: Ipv6Addr, now: Instant) -> AdvertisementResult {
        match (self.known, self.challenger) {
            (None, _) => self.elect(from),
            (Some(known), Some((other, _))) if known == from => {
                self.challenger = None;
                AdvertisementResult::Two(other)
            }
            (Some(known), None) if known != from => {
                self.challenger = Some((from, now + CONTEST));
                AdvertisementResult::Contested
            }
            _ => AdvertisementResult::Same,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.challenger.map(|(_, deadline)| deadline)
    }

    /// Replaces the known neighbour, which has not answered.
    fn overdue(&mut self) -> AdvertisementResult {
        self.challenger.map_or(AdvertisementResult::Same, |(other, _)| self.elect(other))
    }

    fn elect(&mut self, neighbour: Ipv6Addr) -> AdvertisementResult {
        *self = Choice { known: Some(neighbour), challenger: None };
        AdvertisementResult::Found(neighbour)
    }
}

async fn run(mut link: Link, neighbours: watch::Sender<Neighbours>) {
    let mut choice = Choice::default();
    let mut wait = FIRST_ROUND;
    let mut round = tick();
    let mut advertised = None;
    loop {
        let contest = async {
            match choice.deadline() {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let outcome = tokio::select! {
            () = tokio::time::sleep_until(round) => {
                link.advertise().await;
                advertised = Some(tick());
                if choice.known.is_none() {
                    link.solicit().await;
                }
                round = tick() + wait;
                wait = (wait * 2).min(INTERVAL);
                AdvertisementResult::Same
            }
            () = contest => choice.overdue(),
            message = link.receive() => match message {
                Ok(Some(NdMessage::Advertisement(from))) => choice.handle_advertisement(from, tick()),
                Ok(Some(NdMessage::Solicitation)) => {
                    // The answer is sent at once, except to repeated solicitations.
                    round = round.min(advertised.map_or_else(tick, |last| last + FIRST_ROUND));
                    AdvertisementResult::Same
                }
                Ok(None) => AdvertisementResult::Same,
                Err(error) => {
                    warn!(interface = %link.interface, %error, "router advertisements are no longer received");
                    return;
                }
            },
        };
        match outcome {
            AdvertisementResult::Same => {}
            AdvertisementResult::Contested => link.solicit().await,
            AdvertisementResult::Two(other) if !link.complained => {
                link.complained = true;
                let (interface, known) = (link.interface, choice.known.unwrap_or(Ipv6Addr::UNSPECIFIED));
                warn!(%interface, neighbour = %known, %other, "two routers are on one link: the first stays the peer");
            }
            AdvertisementResult::Two(_) => {}
            AdvertisementResult::Found(neighbour) => {
                info!(interface = %link.interface, %neighbour, "neighbour found by its router advertisement");
                neighbours.send_modify(|neighbours| {
                    neighbours.insert(link.interface, neighbour);
                });
                // The neighbour finds this side without waiting for the next round.
                (round, wait) = (tick(), FIRST_ROUND);
            }
        }
    }
}

fn tick() -> Instant {
    super::now().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u16) -> Ipv6Addr {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last)
    }

    #[test]
    fn only_messages_of_a_neighbour_are_accepted() {
        let from = address(1);
        assert_eq!(parse(from, Some(255), &ADVERTISEMENT), Some(NdMessage::Advertisement(from)));
        assert_eq!(parse(from, Some(255), &SOLICITATION), Some(NdMessage::Solicitation));
        assert_eq!(parse(Ipv6Addr::UNSPECIFIED, Some(255), &SOLICITATION), Some(NdMessage::Solicitation));
        let longer = [&ADVERTISEMENT[..], &[1, 1, 2, 3, 4, 5, 6, 7]].concat();
        assert_eq!(parse(from, Some(255), &longer), Some(NdMessage::Advertisement(from)), "with options");
        let global = "2001:db8::1".parse().unwrap();
        let mut code = ADVERTISEMENT;
        code[1] = 1;
        for (from, hop_limit, message) in [
            (from, Some(254), &ADVERTISEMENT[..]),
            (from, None, &ADVERTISEMENT),
            (global, Some(255), &ADVERTISEMENT),
            (from, Some(255), &ADVERTISEMENT[..15]),
            (from, Some(255), &code),
            (from, Some(255), &SOLICITATION[..7]),
            (from, Some(255), &[135; 24]),
            (from, Some(255), &[]),
        ] {
            assert_eq!(parse(from, hop_limit, message), None, "{from} {hop_limit:?} {message:?}");
        }
    }

    #[test]
    fn a_neighbour_is_replaced_only_if_it_is_silent() {
        let now = tick();
        let (first, second) = (address(1), address(2));
        let mut choice = Choice::default();
        assert_eq!(choice.handle_advertisement(first, now), AdvertisementResult::Found(first));
        assert_eq!(
            (choice.handle_advertisement(first, now), choice.deadline()),
            (AdvertisementResult::Same, None)
        );
        assert_eq!(choice.handle_advertisement(second, now), AdvertisementResult::Contested);
        assert_eq!(choice.handle_advertisement(second, now), AdvertisementResult::Same, "one solicitation");
        assert_eq!(
            choice.handle_advertisement(first, now),
            AdvertisementResult::Two(second),
            "the first one is present"
        );
        assert_eq!((choice.known, choice.deadline()), (Some(first), None));
        assert_eq!(choice.handle_advertisement(second, now), AdvertisementResult::Contested);
        assert_eq!(choice.deadline(), Some(now + CONTEST));
        assert_eq!(choice.overdue(), AdvertisementResult::Found(second));
        assert_eq!(
            (choice.handle_advertisement(second, now), choice.deadline()),
            (AdvertisementResult::Same, None)
        );
    }
}
