//! One check as a state machine without socket and clock. Inputs: claims and the time. Outputs:
//! frames and an outcome.
//!
//! ```text
//!  0                  wait/2               wait                                  timeout
//!  ├─ probe ──────────┼─ probe ────────────┤ the address is free
//!  ├─ router? (from no address) ───────────┼─ router? (from the pod's own) ─┬─ … ─┤ no answer
//! ```
//!
//! Two requests run at the same time. *Does another host have the address?* is sent twice, because
//! frames can be lost. If no answer arrives, no other host has the address. This part ends after
//! `wait`, but a claim of the address ends the check with a failure at any time. *Does the router
//! answer?* ends with the first answer, and is sent again every [`RETRY_INTERVAL`] until then.
//!
//! **No request may harm the holder of the address.** A neighbour learns from the sender of an ARP
//! request and from the source of a solicitation. So the check does not use the address as sender
//! or source before `wait` is over. Until then it sends ARP requests from 0.0.0.0, as RFC 5227
//! requires. Neighbour Discovery has no equivalent for the router's address: a solicitation from ::
//! would make a starting router give up its own address (RFC 4862 §5.4.3). So the source of this
//! solicitation is the device's link-local address. If there is none, the check waits until its own
//! address is free.
//!
//! **Two kinds of holders.** A host that has the address answers a probe from 0.0.0.0. A Linux host
//! that answers as a proxy (proxy ARP: for a pod on another node, of Trunkline or hybridnet) does
//! not answer it. It treats the probe as duplicate address detection and ignores it. So each probe
//! is followed by a request from [`NO_HOST`]. In Neighbour Discovery, both kinds of holders answer
//! the same probe.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use tokio::time::Instant;

use super::frame::{AddressClaim, ClaimKind, Mac};
use super::{CheckTimeouts, arp, nd};

/// A sender address that no host has: the first 256 link-local addresses are reserved (RFC 3927
/// §2.1). A host that answers may create an ARP entry for this address, which is harmless.
const NO_HOST: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 1);

/// Interval of requests to a router that does not answer. Half of RETRANS_TIMER (RFC 4861), because
/// a check has only a few seconds.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The parameters of a check.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddressQuery {
    /// The address that no other host may have.
    pub(super) address: IpAddr,
    /// The router that should answer.
    pub(super) gateway: IpAddr,
    /// The device's MAC address.
    pub(super) mac: Mac,
    /// The device's own address, a valid source for requests to a router at any time.
    pub(super) link_local: Option<Ipv6Addr>,
}

/// The result of a failed check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Another host has the address, or is about to use it.
    InUse(Mac),
    /// The router did not answer.
    NoAnswer,
}

/// The next action of the caller.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CheckStep {
    /// Send these frames. Call `poll` again at this time, or after a claim.
    Wait { send: Vec<Vec<u8>>, until: Instant },
    /// The check is complete.
    Done(Result<(), Fault>),
}

/// A running check.
pub(super) struct Check {
    query: AddressQuery,
    /// From this time on, the address is free if no claim was received.
    free_at: Instant,
    /// Time of the next requests.
    send_at: Instant,
    /// Time limit for the router.
    ends_at: Instant,
    half: Duration,
    router_answered: bool,
    owner: Option<Mac>,
}

impl Check {
    pub(super) fn new(query: AddressQuery, times: CheckTimeouts, now: Instant) -> Check {
        Check {
            free_at: now + times.duplicate_wait,
            send_at: now,
            ends_at: now + times.gateway_timeout,
            half: times.duplicate_wait / 2,
            router_answered: false,
            owner: None,
            query,
        }
    }

    /// Handles a claim. A frame of this host that a switch returned is ignored.
    pub(super) fn handle_claim(&mut self, claim: &AddressClaim) {
        if claim.mac == self.query.mac {
            return;
        }
        if claim.address == self.query.address {
            self.owner = Some(claim.mac);
        }
        // Only an answer to this host counts. An answer to another host does not prove that the
        // router receives this node's frames.
        if claim.address == self.query.gateway
            && claim.kind == ClaimKind::Reply
            && claim.destination == self.query.mac
        {
            self.router_answered = true;
        }
    }

    /// The next action at the time `now`.
    pub(super) fn poll(&mut self, now: Instant) -> CheckStep {
        let free = now >= self.free_at;
        if let Some(owner) = self.owner {
            return CheckStep::Done(Err(Fault::InUse(owner)));
        }
        if free && self.router_answered {
            return CheckStep::Done(Ok(()));
        }
        if !self.router_answered && now >= self.ends_at {
            return CheckStep::Done(Err(Fault::NoAnswer));
        }
        let mut send = Vec::new();
        if now >= self.send_at {
            if !free {
                send.extend(self.probes());
            }
            if !self.router_answered {
                send.extend(self.router_query(free));
            }
            self.send_at = if free { now + RETRY_INTERVAL } else { (now + self.half).min(self.free_at) };
        }
        // As long as `free_at` is in the future, the next probe is not later than `free_at`.
        let until = if self.router_answered { self.send_at } else { self.send_at.min(self.ends_at) };
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

    /// A time in milliseconds, and the frames that were sent then.
    type Sent = (u64, Vec<Vec<u8>>);

    /// Runs a check on virtual time, with claims at the given milliseconds. Returns the sent frames
    /// with their times, and the outcome with its time.
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
                    assert!(until > now, "the next time must be later than now");
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
        // Offset of the ARP sender: 28. Offset of the IPv6 source: 22.
        let sender = |frame: &Vec<u8>| match frame[12..14] {
            [8, 6] => Ipv4Addr::from(*frame[28..].first_chunk::<4>().unwrap()).to_string(),
            _ => Ipv6Addr::from(*frame[22..].first_chunk::<16>().unwrap()).to_string(),
        };
        frames.iter().map(sender).collect()
    }

    #[test]
    fn check_succeeds_if_only_the_router_answers() {
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
    fn requests_use_the_own_address_after_it_is_free() {
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
    fn ipv6_requests_use_no_unverified_source_address() {
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
    fn any_claim_of_the_address_ends_the_check() {
        for (at, kind) in
            [(1, ClaimKind::Reply), (150, ClaimKind::Use), (199, ClaimKind::Probe), (2000, ClaimKind::Reply)]
        {
            let claims = [(at, claim("10.10.0.7", OTHER, kind))];
            let (_, took, outcome) = run(query("10.10.0.7", "10.10.0.1"), TIMES, &claims);
            assert_eq!((took, outcome), (at, Err(Fault::InUse(OTHER))), "{kind:?}");
        }
    }

    #[test]
    fn irrelevant_claims_are_ignored() {
        let claims = [
            // a frame of this host that a switch returned
            (1, claim("10.10.0.7", OWN, ClaimKind::Probe)),
            (2, claim("10.10.0.8", OTHER, ClaimKind::Reply)),
            (3, claim("10.10.0.1", ROUTER, ClaimKind::Use)), // a message to another host
            (4, AddressClaim { destination: BROADCAST, ..claim("10.10.0.1", ROUTER, ClaimKind::Reply) }),
        ];
        let (_, took, outcome) = run(query("10.10.0.7", "10.10.0.1"), TIMES, &claims);
        assert_eq!((took, outcome), (3000, Err(Fault::NoAnswer)));
    }

    #[test]
    fn each_time_limit_works_alone() {
        let answer = [(1, claim("10.10.0.1", ROUTER, ClaimKind::Reply))];
        let asks = query("10.10.0.7", "10.10.0.1");
        let no_wait = CheckTimeouts { duplicate_wait: Duration::ZERO, ..TIMES };
        let (sent, took, outcome) = run(asks, no_wait, &answer);
        assert_eq!((took, outcome), (1, Ok(())));
        assert_eq!(senders(&sent[0].1), ["10.10.0.7"], "no probe is sent");
        let short = CheckTimeouts { gateway_timeout: Duration::from_millis(50), ..TIMES };
        assert_eq!(run(asks, short, &answer).1, 200, "the wait for a claim has its full length");
        let (_, took, outcome) = run(asks, short, &[]);
        assert_eq!((took, outcome), (50, Err(Fault::NoAnswer)));
    }
}
