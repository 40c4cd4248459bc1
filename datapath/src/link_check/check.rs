//! One check as a state machine, without a socket and without a clock: what is heard and the time go in, frames and an outcome come out.
//!
//! ```text
//!  0                  wait/2               wait                                  timeout
//!  ├─ who has it? ────┼─ who has it? ──────┤ it is free
//!  ├─ router? (asked from no address) ─────┼─ router? (from the pod's own) ─┬─ … ─┤ no answer
//! ```
//!
//! Two questions run at the same time. *Has anybody got the address?* is asked twice, because frames get lost, and silence is the answer that is
//! wanted; it is over after `wait`, and whoever claims the address until the check ends is heard all the same. *Is the router there?* is over
//! with its first answer, and is asked again every [`AGAIN`] until then.
//!
//! **No question may harm who has the address.** A neighbour learns from the sender of an ARP request and from the source of a solicitation, so
//! before the address is known to be free it is neither. ARP then asks from 0.0.0.0, as RFC 5227 has it. Neighbour Discovery has no
//! such thing for the router's address: a solicitation from :: would make a router that is just starting give up its own address (RFC 4862 §5.4.3),
//! so it is asked from the device's link-local address, or where there is none once the own address is free.
//!
//! **Two kinds of owner.** A host that has the address answers a probe from 0.0.0.0. A Linux host that only stands in for it (proxy
//! ARP: a pod on another node, of Trunkline or hybridnet) does not: it takes such a probe for somebody's own start and keeps silent. So each
//! probe is followed by the same question from [`NO_HOST`]. In Neighbour Discovery the one probe reaches both.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use tokio::time::Instant;

use super::frame::{AddressClaim, ClaimKind, Mac};
use super::{CheckTimeouts, arp, nd};

/// A sender address that no host has: the first 256 link-local addresses are given to nobody (RFC 3927 §2.1). Who answers it may remember it, which
/// harms no one.
const NO_HOST: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 1);

/// Between questions to a router that does not answer; half of RFC 4861's RETRANS_TIMER, as there are only some seconds in all.
const AGAIN: Duration = Duration::from_millis(500);

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddressQuery {
    /// The address that should be nobody's.
    pub(super) address: IpAddr,
    /// The router that should answer.
    pub(super) gateway: IpAddr,
    /// The device's MAC address.
    pub(super) mac: Mac,
    /// The device's own address that a router may be asked from at any time.
    pub(super) link_local: Option<Ipv6Addr>,
}

/// What came out, other than good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Somebody has the address, or is about to take it.
    InUse(Mac),
    /// The router did not answer.
    NoAnswer,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CheckStep {
    /// Send these, and come back at this time, or when something is heard.
    Wait { send: Vec<Vec<u8>>, until: Instant },
    /// It is over.
    Done(Result<(), Fault>),
}

/// A check that is under way.
pub(super) struct Check {
    query: AddressQuery,
    /// From here on, silence means that the address is free.
    free_at: Instant,
    /// The next questions go out then.
    send_at: Instant,
    /// The router has until then.
    ends_at: Instant,
    half: Duration,
    router_is_there: bool,
    owner: Option<Mac>,
}

impl Check {
    pub(super) fn new(query: AddressQuery, times: CheckTimeouts, now: Instant) -> Check {
        Check {
            free_at: now + times.duplicate_wait,
            send_at: now,
            ends_at: now + times.gateway_timeout,
            half: times.duplicate_wait / 2,
            router_is_there: false,
            owner: None,
            query,
        }
    }

    /// Handles a claim. A frame of our own that a switch sends back is not somebody else's.
    pub(super) fn handle_claim(&mut self, claim: &AddressClaim) {
        if claim.mac == self.query.mac {
            return;
        }
        if claim.address == self.query.address {
            self.owner = Some(claim.mac);
        }
        // An answer to us alone: that the router talks to others does not say that it hears this node.
        if claim.address == self.query.gateway
            && claim.kind == ClaimKind::Reply
            && claim.destination == self.query.mac
        {
            self.router_is_there = true;
        }
    }

    /// What to do now.
    pub(super) fn poll(&mut self, now: Instant) -> CheckStep {
        let free = now >= self.free_at;
        if let Some(owner) = self.owner {
            return CheckStep::Done(Err(Fault::InUse(owner)));
        }
        if free && self.router_is_there {
            return CheckStep::Done(Ok(()));
        }
        if !self.router_is_there && now >= self.ends_at {
            return CheckStep::Done(Err(Fault::NoAnswer));
        }
        let mut send = Vec::new();
        if now >= self.send_at {
            if !free {
                send.extend(self.probes());
            }
            if !self.router_is_there {
                send.extend(self.router_query(free));
            }
            self.send_at = if free { now + AGAIN } else { (now + self.half).min(self.free_at) };
        }
        // While the address is in question the next probe is never after `free_at`.
        let until = if self.router_is_there { self.send_at } else { self.send_at.min(self.ends_at) };
        CheckStep::Wait { send, until }
    }

    fn probes(&self) -> Vec<Vec<u8>> {
        let mac = self.query.mac;
        match self.query.address {
            IpAddr::V4(address) => {
                [Ipv4Addr::UNSPECIFIED, NO_HOST].map(|sender| arp::request(mac, sender, address)).into()
            }
            IpAddr::V6(address) => vec![nd::solicitation(mac, Ipv6Addr::UNSPECIFIED, address)],
        }
    }

    fn router_query(&self, free: bool) -> Option<Vec<u8>> {
        let AddressQuery { mac, link_local, .. } = self.query;
        match (self.query.gateway, self.query.address) {
            (IpAddr::V4(gateway), IpAddr::V4(own)) => {
                let sender = if free { own } else { Ipv4Addr::UNSPECIFIED };
                Some(arp::request(mac, sender, gateway))
            }
            (IpAddr::V6(gateway), IpAddr::V6(own)) => {
                let source = link_local.or(free.then_some(own))?;
                Some(nd::solicitation(mac, source, gateway))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link_check::frame::BROADCAST;

    const OWN: Mac = [2, 0, 0, 0, 0, 7];
    const ROUTER: Mac = [2, 0, 0, 0, 0, 1];
    const OTHER: Mac = [2, 0, 0, 0, 0, 9];

    const TIMES: CheckTimeouts =
        CheckTimeouts { duplicate_wait: Duration::from_millis(200), gateway_timeout: Duration::from_secs(3) };

    fn query(address: &str, gateway: &str) -> AddressQuery {
        AddressQuery {
            address: address.parse().unwrap(),
            gateway: gateway.parse().unwrap(),
            mac: OWN,
            link_local: None,
        }
    }

    fn claim(address: &str, mac: Mac, kind: ClaimKind) -> AddressClaim {
        let destination = if kind == ClaimKind::Reply { OWN } else { BROADCAST };
        AddressClaim { address: address.parse().unwrap(), mac, kind, destination }
    }

    /// A millisecond, and the frames that went out then.
    type Sent = (u64, Vec<Vec<u8>>);

    /// Runs a check on virtual time with what is heard at which millisecond; gives each millisecond with what was sent then, and the outcome
    /// with its time.
    fn run(
        query: AddressQuery,
        times: CheckTimeouts,
        claims: &[(u64, AddressClaim)],
    ) -> (Vec<Sent>, u64, Result<(), Fault>) {
        let start = Instant::now();
        let mut check = Check::new(query, times, start);
        let (mut sent, mut now, mut claims) = (Vec::new(), start, claims.iter().peekable());
        let since = |now: Instant| u64::try_from((now - start).as_millis()).unwrap();
        loop {
            match check.poll(now) {
                CheckStep::Done(outcome) => return (sent, since(now), outcome),
                CheckStep::Wait { send, until } => {
                    if !send.is_empty() {
                        sent.push((since(now), send));
                    }
                    assert!(until > now, "it would spin");
                    let at = |(at, _): &&(u64, AddressClaim)| start + Duration::from_millis(*at);
                    match claims.next_if(|next| at(next) <= until) {
                        Some(next) => {
                            now = at(&next);
                            check.handle_claim(&next.1);
                        }
                        None => now = until,
                    }
                }
            }
        }
    }

    fn senders(frames: &[Vec<u8>]) -> Vec<String> {
        // The sender of ARP at 28, the source of IPv6 at 22.
        let sender = |frame: &Vec<u8>| match frame[12..14] {
            [8, 6] => Ipv4Addr::from(*frame[28..].first_chunk::<4>().unwrap()).to_string(),
            _ => Ipv6Addr::from(*frame[22..].first_chunk::<16>().unwrap()).to_string(),
        };
        frames.iter().map(sender).collect()
    }

    #[test]
    fn nobody_answers_and_the_router_does() {
        let at_once = [(3, claim("10.10.0.1", ROUTER, ClaimKind::Reply))];
        let (sent, took, outcome) = run(query("10.10.0.7", "10.10.0.1"), TIMES, &at_once);
        assert_eq!((took, outcome), (200, Ok(())));
        let sent: Vec<_> = sent.iter().map(|(at, frames)| (*at, senders(frames))).collect();
        let both = ["0.0.0.0", "169.254.0.1"];
        let with_router = [both[0], both[1], "0.0.0.0"];
        assert_eq!(
            sent,
            [(0, with_router.map(str::to_owned).to_vec()), (100, both.map(str::to_owned).to_vec())]
        );
    }

    #[test]
    fn a_silent_router_is_asked_from_the_own_address_once_that_is_free() {
        let late = [(1500, claim("10.10.0.1", ROUTER, ClaimKind::Reply))];
        let (sent, took, outcome) = run(query("10.10.0.7", "10.10.0.1"), TIMES, &late);
        assert_eq!((took, outcome), (1500, Ok(())));
        let sent: Vec<_> = sent[2..].iter().map(|(at, frames)| (*at, senders(frames).join(" "))).collect();
        let own = || "10.10.0.7".to_owned();
        assert_eq!(sent, [(200, own()), (700, own()), (1200, own())]);

        let (_, took, outcome) = run(query("10.10.0.7", "10.10.0.1"), TIMES, &[]);
        assert_eq!((took, outcome), (3000, Err(Fault::NoAnswer)));
    }

    #[test]
    fn ipv6_asks_from_no_address_that_may_be_somebody_elses() {
        let probes = |query| {
            let (sent, _, _) = run(query, TIMES, &[]);
            sent.iter().map(|(at, frames)| (*at, senders(frames).join(" "))).take(4).collect::<Vec<_>>()
        };
        let is = |at: u64, senders: &str| (at, senders.to_owned());
        let plain = query("fd00:10::7", "fd00:10::1");
        assert_eq!(probes(plain), [is(0, "::"), is(100, "::"), is(200, "fd00:10::7"), is(700, "fd00:10::7")]);
        let with = AddressQuery { link_local: Some("fe80::7".parse().unwrap()), ..plain };
        assert_eq!(
            probes(with),
            [is(0, ":: fe80::7"), is(100, ":: fe80::7"), is(200, "fe80::7"), is(700, "fe80::7")]
        );
    }

    #[test]
    fn whoever_has_the_address_or_wants_it_ends_the_check() {
        for (at, kind) in
            [(1, ClaimKind::Reply), (150, ClaimKind::Use), (199, ClaimKind::Probe), (2000, ClaimKind::Reply)]
        {
            let claims = [(at, claim("10.10.0.7", OTHER, kind))];
            let (_, took, outcome) = run(query("10.10.0.7", "10.10.0.1"), TIMES, &claims);
            assert_eq!((took, outcome), (at, Err(Fault::InUse(OTHER))), "{kind:?}");
        }
    }

    #[test]
    fn what_means_nothing_changes_nothing() {
        let claims = [
            (1, claim("10.10.0.7", OWN, ClaimKind::Probe)), // sent back by a switch
            (2, claim("10.10.0.8", OTHER, ClaimKind::Reply)),
            (3, claim("10.10.0.1", ROUTER, ClaimKind::Use)), // to somebody else
            (4, AddressClaim { destination: BROADCAST, ..claim("10.10.0.1", ROUTER, ClaimKind::Reply) }),
        ];
        let (_, took, outcome) = run(query("10.10.0.7", "10.10.0.1"), TIMES, &claims);
        assert_eq!((took, outcome), (3000, Err(Fault::NoAnswer)));
    }

    #[test]
    fn times_of_their_own() {
        let answer = [(1, claim("10.10.0.1", ROUTER, ClaimKind::Reply))];
        let asks = query("10.10.0.7", "10.10.0.1");
        let no_wait = CheckTimeouts { duplicate_wait: Duration::ZERO, ..TIMES };
        let (sent, took, outcome) = run(asks, no_wait, &answer);
        assert_eq!((took, outcome), (1, Ok(())));
        assert_eq!(senders(&sent[0].1), ["10.10.0.7"], "nobody is asked who has it");
        let short = CheckTimeouts { gateway_timeout: Duration::from_millis(50), ..TIMES };
        assert_eq!(run(asks, short, &answer).1, 200, "the address has its whole wait");
        let (_, took, outcome) = run(asks, short, &[]);
        assert_eq!((took, outcome), (50, Err(Fault::NoAnswer)));
    }
}
