//! The rows of the matrix: what is configured, what is done, and what both sides must then say. A cell asks the router and
//! this side; neither is believed alone.

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU8;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ipnet::{IpNet, Ipv4Net};
use trunkline_bgp::bfd::BfdConfig;
use trunkline_bgp::config::{AddPath, Password, PeerConfig};
use trunkline_bgp::rib::Origination;
use trunkline_bgp::speaker::{State, Stop};
use trunkline_bgp::types::{Asn, Community, Family, InterfaceName, Role};

use super::router::{
    OURS, Path, Router, SECOND, Session, TOLD, Way, kill, parse, wait_established, wait_paths,
};
use super::us::{PATIENCE, Us, speaker};
use crate::host::Host;
use crate::shell::{Seen, wait_for};

/// Where a cell is run.
pub(super) struct Cell<'a> {
    pub router: &'a dyn Router,
    /// The router's node, this side's, and the one between them.
    pub host: &'a Host,
    pub us: &'a Host,
    pub hop: &'a Host,
}

/// A row.
pub(super) struct Row {
    pub name: &'static str,
    pub rfc: &'static str,
    /// Routers that do not have it.
    pub lacks: &'static [Lack],
    pub run: fn(&Cell<'_>) -> Result<()>,
}

/// What a router does not have.
pub(super) struct Lack {
    /// The router's node.
    pub node: &'static str,
    pub why: &'static str,
    /// Words that would be in its OPEN if it had it; then that is looked at.
    pub capability: Option<&'static str>,
}

const fn lack(node: &'static str, why: &'static str) -> Lack {
    Lack { node, why, capability: None }
}

const fn no_capability(node: &'static str, why: &'static str, capability: &'static str) -> Lack {
    Lack { node, why, capability: Some(capability) }
}

pub(super) const ROWS: &[Row] = &[
    Row { name: "IPv4 routes, IPv4 session", rfc: "4271", lacks: &[], run: |cell| routes(cell, Way::V4, 0) },
    Row { name: "IPv6 routes, IPv4 session", rfc: "4760", lacks: &[], run: |cell| routes(cell, Way::V4, 1) },
    Row { name: "IPv4 routes, IPv6 session", rfc: "4760", lacks: &[], run: |cell| routes(cell, Way::V6, 0) },
    Row { name: "extended next hop", rfc: "8950", lacks: &[], run: extended_next_hop },
    Row {
        name: "unnumbered",
        rfc: "4861, 8950",
        lacks: &[lack("gobgp", "it sends no router advertisements to be found by")],
        run: unnumbered,
    },
    Row { name: "IPv6 routes, IPv6 session", rfc: "4760", lacks: &[], run: |cell| routes(cell, Way::V6, 1) },
    Row { name: "TCP-MD5", rfc: "2385", lacks: &[], run: password },
    Row { name: "GTSM", rfc: "5082", lacks: &[], run: ttl_security },
    Row { name: "eBGP multihop", rfc: "4271", lacks: &[], run: |cell| routes(cell, Way::TwoHops, 0) },
    Row { name: "AS numbers of four octets", rfc: "6793", lacks: &[], run: four_octets },
    Row {
        name: "route refresh, asked of the router",
        rfc: "2918",
        lacks: &[],
        run: |cell| refresh(cell, false),
    },
    Row {
        name: "route refresh, asked by the router",
        rfc: "2918",
        lacks: &[lack("gobgp", "it keeps what it heard and never asks")],
        run: |cell| refresh(cell, true),
    },
    Row {
        name: "enhanced route refresh",
        rfc: "7313",
        lacks: &[no_capability("gobgp", "no such capability", "enhanced route refresh")],
        run: enhanced_refresh,
    },
    Row { name: "messages of 4,096 octets", rfc: "4271", lacks: &[], run: |cell| long_messages(cell, false) },
    Row {
        name: "extended messages",
        rfc: "8654",
        lacks: &[no_capability("gobgp", "no such capability", "extended message")],
        run: |cell| long_messages(cell, true),
    },
    Row { name: "shutdown communication", rfc: "9003", lacks: &[], run: shutdown },
    Row { name: "prefix limit", rfc: "4486", lacks: &[], run: prefix_limit },
    Row {
        name: "connection collision",
        rfc: "4271 §6.8",
        lacks: &[lack("gobgp", "it has one connection at a time, and makes none while one is accepted")],
        run: collision,
    },
    Row { name: "ADD-PATH, received", rfc: "7911", lacks: &[], run: |cell| add_path(cell, false) },
    Row { name: "ADD-PATH, sent", rfc: "7911", lacks: &[], run: |cell| add_path(cell, true) },
    Row { name: "reflected routes", rfc: "4456", lacks: &[], run: reflection },
    Row { name: "graceful shutdown", rfc: "8326", lacks: &[], run: graceful_shutdown },
    Row {
        name: "roles and ONLY_TO_CUSTOMER",
        rfc: "9234",
        lacks: &[no_capability("gobgp", "no such capability", "role")],
        run: roles,
    },
    Row { name: "graceful restart of this side", rfc: "4724", lacks: &[], run: restart_of_us },
    Row { name: "graceful restart of the router", rfc: "4724", lacks: &[], run: restart_of_router },
    Row {
        name: "graceful restart after a NOTIFICATION",
        rfc: "8538",
        lacks: &[no_capability("bird", "no N bit in its capability", ", notification")],
        run: restart_after_notification,
    },
    Row {
        name: "graceful restart after the Hold Timer",
        rfc: "8538",
        lacks: &[
            no_capability("bird", "no N bit in its capability", ", notification"),
            lack("gobgp", "at its own Hold Timer it drops what a NOTIFICATION would let it keep"),
        ],
        run: restart_after_hold_timer,
    },
    Row { name: "long-lived graceful restart of this side", rfc: "9494", lacks: &[], run: long_lived_of_us },
    Row {
        name: "long-lived graceful restart of the router",
        rfc: "9494",
        lacks: &[],
        run: long_lived_of_router,
    },
    Row { name: "BFD up and down", rfc: "5880", lacks: &[lack("gobgp", "no BFD")], run: bfd },
    Row {
        name: "BFD in a graceful restart",
        rfc: "5882 §4.3",
        lacks: &[lack("gobgp", "no BFD")],
        run: bfd_restart,
    },
];

fn prefix(place: usize, ours: bool) -> IpNet {
    parse(if ours { OURS[place] } else { TOLD[place] })
}

impl Cell<'_> {
    /// This side's configuration of the peer.
    fn peer(&self, session: &Session) -> PeerConfig {
        let mut peer = PeerConfig::new(session.way.router(), Asn(session.router_as));
        peer.local_address = Some(session.way.us());
        peer.hold_time = Duration::from_secs(session.hold_time.into());
        peer.connect_retry = Duration::from_secs(1);
        let families = session.families().map(|place| Family::ALL[place]);
        peer.families = families.collect();
        peer.extended_messages = session.extended_messages;
        peer.graceful_restart = session.restart;
        peer.restart_notification = session.notification;
        peer.long_lived = session.long_lived;
        peer.password = session.password.and_then(|password| Password::new(password).ok());
        peer.ttl_security = session.ttl_security.then_some(1);
        peer.ebgp_multihop = (session.way == Way::TwoHops).then_some(3);
        peer.bfd = session.bfd.then(|| BfdConfig::new(Duration::from_millis(50)));
        if session.add_path {
            peer.add_path = AddPath { receive: true, send: NonZeroU8::new(4) };
        }
        match session.way {
            Way::V4 | Way::TwoHops => peer.next_hop_v6 = Some(parse("fd00:1::2")),
            Way::V6 if !session.extended_next_hop => peer.next_hop_v4 = Some(parse("10.1.0.2")),
            Way::V6 => {}
        }
        peer
    }

    /// A speaker with the session's prefixes, and the peer.
    fn speaker(&self, session: &Session, restarting: bool) -> Result<Us> {
        let us = Us::start(self.us, speaker(session.our_as, Ipv4Addr::new(10, 0, 0, 2), restarting))?;
        us.add(self.peer(session))?;
        let ours = session.families().map(|place| (prefix(place, true), Origination::default()));
        us.originate(ours.collect())?;
        us.complete()?;
        Ok(us)
    }

    /// Both sides, with an Established session.
    fn both(&self, session: &Session) -> Result<Us> {
        self.router.start(self.host, session, false)?;
        let us = self.speaker(session, false)?;
        self.established(&us, session)?;
        Ok(us)
    }

    /// Sees in its OPEN that the router does not have a capability.
    pub(super) fn is_without(&self, capability: &str) -> Result<()> {
        let session = Session { notification: true, extended_messages: true, ..restarting(Way::V4) };
        let us = self.both(&session)?;
        let status = us.peer(session.way.router())?.session.context("no session")?;
        let found = status.capabilities_received.iter().find(|it| it.contains(capability));
        ensure!(found.is_none(), "it has what it is said to lack: {found:?}");
        us.stop(goodbye());
        Ok(())
    }

    /// Takes away what a cell that failed may have left.
    pub(super) fn clear(&self) {
        // It fails if there is nothing, which is the usual case.
        let _ = self.host.end_silence();
        let _ = self.us.run("nft", ["delete table inet held"]);
    }

    fn established(&self, us: &Us, session: &Session) -> Result<()> {
        us.wait_established(session.way.router())?;
        wait_established(self.router, self.host, session.way.us())
    }

    /// What each side told is at the other, and where it leads.
    fn exchanged(&self, us: &Us, session: &Session) -> Result<()> {
        for place in session.families() {
            let told =
                us.wait_route(session.way.router(), &prefix(place, false), "told", |route| !route.stale)?;
            ensure!(told.as_path == session.router_as.to_string(), "{told:?}");
            wait_for("the router's route to be used", PATIENCE, || {
                let used = us.fib(&prefix(place, false));
                Ok(Seen::when(!used.is_empty(), || format!("{told:?}")))
            })?;
            self.has(&prefix(place, true), "told by this side", |paths| {
                paths.iter().any(|path| path.as_path == [session.our_as] && !path.stale)
            })?;
        }
        Ok(())
    }

    fn has(&self, prefix: &IpNet, what: &str, is: impl Fn(&[Path]) -> bool) -> Result<Vec<Path>> {
        wait_paths(self.router, self.host, prefix, what, is)
    }
}

fn goodbye() -> Stop {
    Stop::Cease { communication: String::new() }
}

fn routes(cell: &Cell<'_>, way: Way, place: usize) -> Result<()> {
    let session = Session { v4: place == 0, v6: place == 1, ..Session::new(way) };
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    // What is not told any more goes.
    let other: IpNet = parse(["10.67.0.0/16", "fd00:67::/32"][place]);
    us.originate(vec![(other, Origination::default())])?;
    cell.has(&other, "one more", |paths| !paths.is_empty())?;
    us.stop(goodbye());
    cell.has(&other, "withdrawn with the session", <[_]>::is_empty).map(drop)
}

fn extended_next_hop(cell: &Cell<'_>) -> Result<()> {
    let session = Session { extended_next_hop: true, ..Session::new(Way::V6) };
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    let used = us.fib(&prefix(0, false));
    ensure!(used[0].next_hop.address().is_ipv6(), "{used:?}");
    let seen =
        cell.has(&prefix(0, true), "over IPv6", |paths| paths.iter().any(|it| it.next_hop.contains(':')));
    us.stop(goodbye());
    seen.map(drop)
}

/// Neither side knows an address: each finds the other's link-local one.
fn unnumbered(cell: &Cell<'_>) -> Result<()> {
    let session = Session { unnumbered: true, extended_next_hop: true, v6: true, ..Session::new(Way::V6) };
    cell.router.start(cell.host, &session, false)?;
    let us = Us::start(cell.us, speaker(session.our_as, Ipv4Addr::new(10, 0, 0, 2), false))?;
    let interface: InterfaceName = parse("eth1");
    let (_discovery, address) = us.discover(cell.us, interface)?;
    ensure!(address.is_unicast_link_local(), "{address}");
    let mut peer = cell.peer(&session);
    (peer.address, peer.interface, peer.local_address) = (address.into(), Some(interface), None);
    let key = peer.key();
    us.add(peer)?;
    us.originate(session.families().map(|place| (prefix(place, true), Origination::default())).collect())?;
    us.complete()?;
    us.wait_established(key)?;
    for place in session.families() {
        us.wait_route(key, &prefix(place, false), "told", |route| route.as_path == "65001")?;
        wait_for("the router's route to be used over the link", PATIENCE, || {
            let used = us.fib(&prefix(place, false));
            let of = used.first().map(|path| (path.next_hop, path.peer));
            Ok(Seen::when(of.is_some(), || format!("{of:?}")))
        })?;
        cell.has(&prefix(place, true), "over the link", |paths| {
            paths.iter().any(|path| path.as_path == [session.our_as] && path.next_hop.contains("fe80"))
        })?;
    }
    us.stop(goodbye());
    Ok(())
}

fn password(cell: &Cell<'_>) -> Result<()> {
    let session = Session { password: Some("interop-secret"), ..Session::new(Way::V4) };
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    // Another one is none.
    let mut wrong = cell.peer(&session);
    wrong.password = Password::new("another").ok();
    us.update(wrong)?;
    us.wait_peer(session.way.router(), "a wrong password to be noticed", |peer| {
        peer.state != State::Established
            && peer.last_error.as_ref().is_some_and(|error| error.text.contains("passwords differ"))
    })?;
    us.update(cell.peer(&session))?;
    cell.established(&us, &session)?;
    us.stop(goodbye());
    Ok(())
}

fn ttl_security(cell: &Cell<'_>) -> Result<()> {
    let session = Session { ttl_security: true, ..Session::new(Way::V4) };
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    // The router takes nothing with the TTL of an ordinary session: OPEN is not answered, and the shortest Hold Time ends that.
    let mut ordinary = cell.peer(&session);
    (ordinary.ttl_security, ordinary.hold_time) = (None, Duration::from_secs(3));
    let start = Instant::now();
    us.update(ordinary)?;
    us.wait_peer(session.way.router(), "the router not to hear TTL 1", |peer| {
        let sent = peer.notification_sent.as_ref().filter(|it| it.ago < start.elapsed());
        sent.is_some_and(|it| it.text.contains("Hold Timer Expired")) && peer.state != State::Established
    })?;
    us.stop(goodbye());
    Ok(())
}

fn four_octets(cell: &Cell<'_>) -> Result<()> {
    let session = Session { router_as: 4_200_000_001, our_as: 4_200_000_002, ..Session::new(Way::V4) };
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    us.stop(goodbye());
    Ok(())
}

/// FRR answers a request after it has sent End-of-RIB, and sends that only where graceful restart is agreed on.
fn refreshable(cell: &Cell<'_>) -> Result<(Session, Us)> {
    let session = Session { restart: Some(60), ..Session::new(Way::V4) };
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    us.wait_peer(session.way.router(), "End-of-RIB", |peer| {
        peer.families.iter().all(|family| family.end_of_rib_received)
    })?;
    Ok((session, us))
}

fn refresh(cell: &Cell<'_>, by_router: bool) -> Result<()> {
    let (session, us) = refreshable(cell)?;
    let (router, ours) = (session.way.router(), session.way.us());
    let before = us.peer(router)?.traffic;
    if by_router {
        cell.router.ask_refresh(cell.host, ours)?;
        us.wait_peer(router, "the router to ask for this side's again", |peer| {
            peer.traffic.received.route_refresh > before.received.route_refresh
                && peer.traffic.sent.update > before.sent.update
        })?;
    } else {
        ensure!(us.refresh(router)?, "the router has no such capability");
        us.wait_peer(router, "the router's routes again", |peer| {
            peer.traffic.received.update > before.received.update
        })?;
    }
    cell.exchanged(&us, &session)?;
    ensure!(us.peer(router)?.flaps == 0, "the session was lost");
    us.stop(goodbye());
    Ok(())
}

fn enhanced_refresh(cell: &Cell<'_>) -> Result<()> {
    let (session, us) = refreshable(cell)?;
    let router = session.way.router();
    let status = us.peer(router)?;
    let agreed = status.session.context("no session")?.capabilities_received;
    ensure!(agreed.iter().any(|it| it == "enhanced route refresh"), "{agreed:?}");
    let before = us.peer(router)?.traffic.received.route_refresh;
    us.refresh(router)?;
    us.wait_peer(router, "BoRR and EoRR", |peer| peer.traffic.received.route_refresh >= before + 2)?;
    let before = us.peer(router)?.traffic.sent.route_refresh;
    cell.router.ask_refresh(cell.host, session.way.us())?;
    us.wait_peer(router, "BoRR and EoRR to be sent", |peer| peer.traffic.sent.route_refresh >= before + 2)?;
    cell.exchanged(&us, &session)?;
    ensure!(us.peer(router)?.flaps == 0, "the session was lost");
    us.stop(goodbye());
    Ok(())
}

/// 4,096 octets hold 1,000 prefixes; 1,500 communities do not fit into them.
fn long_messages(cell: &Cell<'_>, extended: bool) -> Result<()> {
    let session = Session { extended_messages: extended, ..Session::new(Way::V4) };
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    let count = if extended { 1 } else { 3000 };
    let communities: Vec<Community> = (0..if extended { 1500 } else { 1 }).map(Community).collect();
    let route = |number: u32| {
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(60, 0, 0, 0)) + (number << 8));
        let origination = Origination { communities: communities.clone(), ..Origination::default() };
        (IpNet::V4(Ipv4Net::new_assert(address, 24)), origination)
    };
    let before = us.peer(session.way.router())?.traffic.sent;
    us.originate((0..count).map(route).collect())?;
    wait_for("all prefixes in the router", PATIENCE, || {
        let received = cell.router.received(cell.host, session.way.us())?;
        Ok(Seen::when(received == 1 + count as usize, || received.to_string()))
    })?;
    let peer = us.peer(session.way.router())?;
    let (messages, octets) =
        (peer.traffic.sent.update - before.update, peer.traffic.sent.octets - before.octets);
    match extended {
        true => ensure!(octets > 4096 + 1900 && messages == 1, "{messages} messages with {octets} octets"),
        // 12,000 octets of prefixes: three messages and what did not fit, give or take one for how they came.
        false => ensure!((3..=5).contains(&messages), "{messages} messages with {octets} octets"),
    }
    us.stop(goodbye());
    Ok(())
}

fn shutdown(cell: &Cell<'_>) -> Result<()> {
    let session = Session::new(Way::V4);
    let us = cell.both(&session)?;
    cell.router.shut_down(cell.host, session.way.us(), "maintenance-4711")?;
    us.wait_peer(session.way.router(), "the router's reason", |peer| {
        peer.notification_received.as_ref().is_some_and(|said| said.text.contains("maintenance-4711"))
    })?;
    us.stop(goodbye());
    let us = cell.both(&session)?;
    us.stop(Stop::Cease { communication: "rack-moves-0815".to_owned() });
    wait_for("this side's reason in the router", PATIENCE, || {
        let said = cell.router.last_end(cell.host, session.way.us())?;
        Ok(Seen::when(said.contains("rack-moves-0815"), || said))
    })
}

fn prefix_limit(cell: &Cell<'_>) -> Result<()> {
    let session = Session::new(Way::V4);
    cell.router.start(cell.host, &session, false)?;
    let us = Us::start(cell.us, speaker(session.our_as, Ipv4Addr::new(10, 0, 0, 2), false))?;
    let mut peer = cell.peer(&session);
    peer.max_prefixes = Some(2);
    us.add(peer)?;
    us.complete()?;
    cell.established(&us, &session)?;
    for number in 0..3 {
        cell.router.tell(cell.host, number)?;
    }
    us.wait_peer(session.way.router(), "the limit to end the session", |peer| {
        peer.state == State::Idle
            && peer
                .notification_sent
                .as_ref()
                .is_some_and(|it| it.text.contains("Maximum Number of Prefixes"))
    })?;
    wait_for("the router to lose the session", PATIENCE, || {
        let up = cell.router.is_established(cell.host, session.way.us())?;
        Ok(Seen::when(!up, || "it is established".to_owned()))
    })?;
    us.stop(goodbye());
    Ok(())
}

/// Whatever is said is held back until there are two connections, so that both sides find two when OPENs come.
fn collision(cell: &Cell<'_>) -> Result<()> {
    let session = Session::new(Way::V4);
    let router = session.way.router();
    for _ in 0..10 {
        cell.us.run(
            "nft",
            ["add table inet held; \
              add chain inet held in { type filter hook input priority 0; }; \
              add rule inet held in tcp flags psh drop; \
              add chain inet held out { type filter hook output priority 0; }; \
              add rule inet held out tcp flags psh drop"],
        )?;
        cell.router.start(cell.host, &session, false)?;
        let us = cell.speaker(&session, false)?;
        wait_for("two connections", PATIENCE, || {
            let sockets = cell.us.run("ss", ["-Htn", "state", "established"])?;
            let of = |place: usize| {
                let mut lines = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
                lines.any(|words| words.get(place).is_some_and(|it| it.ends_with(":179")))
            };
            Ok(Seen::when(of(2) && of(3), || sockets.clone()))
        })?;
        cell.us.run("nft", ["delete table inet held"])?;
        cell.established(&us, &session)?;
        cell.exchanged(&us, &session)?;
        let peer = us.peer(router)?;
        let said = [&peer.notification_sent, &peer.notification_received];
        let collided = said.into_iter().flatten().any(|it| it.text.contains("Collision"));
        us.stop(goodbye());
        // What was held back comes again when TCP sends it again: one connection may be Established here, and not yet there,
        // when the router decides for the other.
        if collided && peer.flaps == 0 {
            return Ok(());
        }
    }
    bail!("ten attempts, and no collision that was resolved before Established")
}

/// The second speaker, between the two, tells the router what the router tells, or this side what this side tells.
fn add_path(cell: &Cell<'_>, sent: bool) -> Result<()> {
    let session = Session { add_path: true, second: !sent, ..Session::new(Way::V4) };
    let second = Us::start(cell.hop, speaker(65003, Ipv4Addr::new(10, 0, 0, 3), false))?;
    let mut neighbour = match sent {
        false => PeerConfig::new(parse("10.3.0.1"), Asn(session.router_as)),
        true => PeerConfig::new(parse("10.2.0.2"), Asn(session.our_as)),
    };
    neighbour.connect_retry = Duration::from_secs(1);
    second.add(neighbour.clone())?;
    second.originate(vec![(prefix(0, sent), Origination::default())])?;
    second.complete()?;
    let us = cell.both(&session)?;
    if sent {
        let mut back = PeerConfig::new(parse("10.2.0.254"), Asn(65003));
        back.connect_retry = Duration::from_secs(1);
        us.add(back)?;
        let own_and_learned: [&[u32]; 2] = [&[session.our_as], &[session.our_as, 65003]];
        cell.has(&prefix(0, true), "two paths", |paths| {
            own_and_learned.iter().all(|wanted| paths.iter().any(|path| path.as_path == **wanted))
        })?;
        second.stop(goodbye());
        cell.has(&prefix(0, true), "one path again", |paths| paths.len() == 1)?;
    } else {
        second.wait_established(neighbour.address)?;
        wait_established(cell.router, cell.host, parse(SECOND))?;
        let two = format!("{} 65003", session.router_as);
        let route =
            us.wait_route(session.way.router(), &prefix(0, false), "of the second speaker", |route| {
                route.as_path == two && route.path_id.is_some()
            })?;
        let own = us.wait_route(session.way.router(), &prefix(0, false), "of the router", |route| {
            route.as_path == session.router_as.to_string()
        })?;
        ensure!(own.path_id != route.path_id, "{own:?} {route:?}");
        second.stop(goodbye());
        wait_for("the second path to go", PATIENCE, || {
            let left = us.received(session.way.router())?;
            let of = left.iter().filter(|route| route.prefix == prefix(0, false)).count();
            Ok(Seen::when(of == 1, || format!("{left:?}")))
        })?;
    }
    us.stop(goodbye());
    Ok(())
}

/// An internal session: what the second speaker, this side's client, tells is reflected to the router.
fn reflection(cell: &Cell<'_>) -> Result<()> {
    let session = Session { router_as: 65002, ..Session::new(Way::V4) };
    let second = Us::start(cell.hop, speaker(session.our_as, Ipv4Addr::new(10, 0, 0, 3), false))?;
    let internal = |address: &str| {
        let mut peer = PeerConfig::new(parse(address), Asn(session.our_as));
        peer.connect_retry = Duration::from_secs(1);
        peer
    };
    second.add(internal("10.2.0.2"))?;
    let told: IpNet = parse("10.68.0.0/16");
    second.originate(vec![(told, Origination::default())])?;
    second.complete()?;
    let us = cell.both(&session)?;
    let mut client = internal("10.2.0.254");
    client.paths.route_reflector_client = true;
    us.add(client)?;
    second.wait_established(parse::<IpAddr>("10.2.0.2"))?;
    let seen = cell.has(&told, "reflected", |paths| paths.iter().any(|path| path.reflected))?;
    // Reflection changes nothing else.
    ensure!(seen[0].as_path.is_empty() && seen[0].next_hop.starts_with("10.2.0.254"), "{seen:?}");
    second.wait_route(
        parse::<IpAddr>("10.2.0.2"),
        &prefix(0, false),
        "the router's, reflected",
        |route| route.as_path.is_empty(),
    )?;
    second.stop(goodbye());
    cell.has(&told, "gone with the client", <[_]>::is_empty)?;
    us.stop(goodbye());
    Ok(())
}

fn graceful_shutdown(cell: &Cell<'_>) -> Result<()> {
    let session = Session::new(Way::V4);
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    let mut edited = cell.peer(&session);
    edited.paths.graceful_shutdown = true;
    us.update(edited)?;
    let marked = |path: &Path| {
        let communities = path.communities.replace(['(', ')', ' '], "").replace(',', ":");
        communities.contains("65535:0") || communities.contains("graceful-shutdown")
    };
    cell.has(&prefix(0, true), "about to go", |paths| paths.iter().any(marked))?;
    us.update(cell.peer(&session))?;
    cell.has(&prefix(0, true), "to stay", |paths| paths.iter().any(|path| !marked(path)))?;
    ensure!(us.peer(session.way.router())?.flaps == 0, "the session was lost");
    us.stop(goodbye());
    Ok(())
}

fn roles(cell: &Cell<'_>) -> Result<()> {
    let session = Session { role: Some("customer"), ..Session::new(Way::V4) };
    cell.router.start(cell.host, &session, false)?;
    let us = Us::start(cell.us, speaker(session.our_as, Ipv4Addr::new(10, 0, 0, 2), false))?;
    let mut peer = cell.peer(&session);
    (peer.paths.local_role, peer.paths.local_role_strict) = (Some(Role::Provider), true);
    us.add(peer.clone())?;
    us.originate(vec![(prefix(0, true), Origination::default())])?;
    us.complete()?;
    cell.established(&us, &session)?;
    cell.exchanged(&us, &session)?;
    // A provider marks what its customer may not tell its other providers.
    cell.has(&prefix(0, true), "only to customers", |paths| {
        paths.iter().any(|path| path.otc == Some(session.our_as))
    })?;
    peer.paths.local_role = Some(Role::Customer);
    us.update(peer.clone())?;
    us.wait_peer(session.way.router(), "two customers not to be a pair", |peer| {
        let said = [&peer.notification_sent, &peer.notification_received];
        let mismatch = said.into_iter().flatten().any(|it| it.text.contains("Role Mismatch"));
        mismatch && peer.state != State::Established
    })?;
    us.stop(goodbye());
    Ok(())
}

fn restarting(way: Way) -> Session {
    Session { v6: true, restart: Some(60), ..Session::new(way) }
}

/// What this side told is in the router: kept from a session that is lost, or fresh.
fn all_of_us(cell: &Cell<'_>, session: &Session, stale: bool) -> Result<()> {
    if stale {
        wait_for("the router to lose the session", PATIENCE, || {
            let up = cell.router.is_established(cell.host, session.way.us())?;
            Ok(Seen::when(!up, || "it is established".to_owned()))
        })?;
    }
    let what = if stale { "kept" } else { "fresh" };
    let is = |path: &Path| path.stale == stale || !cell.router.marks_stale();
    for place in session.families() {
        cell.has(&prefix(place, true), what, |paths| paths.iter().any(is))?;
    }
    Ok(())
}

fn restart_of_us(cell: &Cell<'_>) -> Result<()> {
    let session = restarting(Way::V4);
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    us.stop(Stop::Silent);
    all_of_us(cell, &session, true)?;
    let us = cell.speaker(&session, true)?;
    cell.established(&us, &session)?;
    all_of_us(cell, &session, false)?;
    cell.exchanged(&us, &session)?;
    us.stop(goodbye());
    Ok(())
}

fn stale_here(us: &Us, session: &Session, stale: bool) -> Result<()> {
    for place in session.families() {
        let what = if stale { "kept" } else { "fresh" };
        us.wait_route(session.way.router(), &prefix(place, false), what, |route| route.stale == stale)?;
        ensure!(!us.fib(&prefix(place, false)).is_empty(), "{} is not used", prefix(place, false));
    }
    Ok(())
}

/// What crashes: the daemon that speaks BGP, and nothing else.
const DAEMONS: [&str; 3] = ["bgpd", "bird", "gobgpd"];

fn crash(cell: &Cell<'_>) -> Result<()> {
    DAEMONS.iter().try_for_each(|daemon| kill(cell.host, Some(daemon)))
}

fn restart_of_router(cell: &Cell<'_>) -> Result<()> {
    let session = restarting(Way::V4);
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    crash(cell)?;
    us.wait_peer(session.way.router(), "the loss", |peer| peer.state != State::Established)?;
    stale_here(&us, &session, true)?;
    cell.router.start(cell.host, &session, true)?;
    cell.established(&us, &session)?;
    stale_here(&us, &session, false)?;
    cell.exchanged(&us, &session)?;
    let stale =
        |peer: &trunkline_bgp::speaker::PeerStatus| peer.families.iter().all(|family| family.stale == 0);
    us.wait_peer(session.way.router(), "nothing stale after End-of-RIB", stale)?;
    us.stop(goodbye());
    Ok(())
}

fn restart_after_notification(cell: &Cell<'_>) -> Result<()> {
    let session = Session { notification: true, hold_time: 6, ..restarting(Way::V4) };
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    // An edit that needs a new session is a NOTIFICATION that neither side takes for the end. The next session is held back
    // for as long as that is looked at.
    cell.us.run(
        "nft",
        ["add table inet held; \
          add chain inet held in { type filter hook input priority 0; }; \
          add rule inet held in tcp flags syn drop; \
          add chain inet held out { type filter hook output priority 0; }; \
          add rule inet held out tcp flags syn drop"],
    )?;
    let mut edited = cell.peer(&session);
    edited.hold_time = Duration::from_secs(9);
    us.update(edited)?;
    all_of_us(cell, &session, true)?;
    stale_here(&us, &session, true)?;
    cell.us.run("nft", ["delete table inet held"])?;
    cell.established(&us, &session)?;
    stale_here(&us, &session, false)?;
    cell.exchanged(&us, &session)?;
    // A goodbye is a Hard Reset: nothing is kept.
    us.stop(Stop::Cease { communication: "for good".to_owned() });
    for place in session.families() {
        cell.has(&prefix(place, true), "gone after a Hard Reset", <[_]>::is_empty)?;
    }
    Ok(())
}

/// Silence ends the session by both sides' Hold Timers, and both keep what they have.
fn restart_after_hold_timer(cell: &Cell<'_>) -> Result<()> {
    let session = Session { notification: true, hold_time: 6, ..restarting(Way::V4) };
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    cell.host.silence()?;
    us.wait_peer(session.way.router(), "the Hold Timer", |peer| peer.state != State::Established)?;
    stale_here(&us, &session, true)?;
    all_of_us(cell, &session, true)?;
    cell.host.end_silence()?;
    cell.established(&us, &session)?;
    stale_here(&us, &session, false)?;
    cell.exchanged(&us, &session)?;
    us.stop(goodbye());
    Ok(())
}

fn long_lived_of_us(cell: &Cell<'_>) -> Result<()> {
    let session = Session { restart: Some(2), long_lived: Some(600), ..Session::new(Way::V4) };
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    us.stop(Stop::Silent);
    cell.has(&prefix(0, true), "long-lived stale", |paths| {
        let communities = |path: &Path| path.communities.replace(['(', ')', ' '], "").replace(',', ":");
        paths
            .iter()
            .any(|path| communities(path).contains("65535:6") || path.communities.contains("llgr-stale"))
    })?;
    let us = cell.speaker(&session, true)?;
    cell.established(&us, &session)?;
    cell.has(&prefix(0, true), "fresh again", |paths| {
        paths.iter().any(|path| !path.stale && path.communities.is_empty())
    })?;
    us.stop(goodbye());
    Ok(())
}

fn long_lived_of_router(cell: &Cell<'_>) -> Result<()> {
    let session = Session { restart: Some(2), long_lived: Some(600), ..Session::new(Way::V4) };
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    crash(cell)?;
    let router = session.way.router();
    us.wait_peer(router, "long-lived stale paths", |peer| {
        peer.families.iter().any(|family| family.long_lived_stale > 0)
    })?;
    us.wait_route(router, &prefix(0, false), "marked", |route| {
        route.communities.contains(&Community::LLGR_STALE)
    })?;
    ensure!(!us.fib(&prefix(0, false)).is_empty(), "it is not used");
    cell.router.start(cell.host, &session, true)?;
    cell.established(&us, &session)?;
    us.wait_route(router, &prefix(0, false), "fresh", |route| !route.stale && route.communities.is_empty())?;
    us.stop(goodbye());
    Ok(())
}

fn bfd_up(cell: &Cell<'_>, us: &Us, session: &Session) -> Result<()> {
    us.wait_peer(session.way.router(), "BFD to be Up", |peer| {
        peer.bfd.as_ref().is_some_and(|bfd| bfd.status.state == trunkline_bgp::bfd::State::Up)
    })?;
    wait_for("BFD to be up in the router", PATIENCE, || {
        let up = cell.router.bfd_is_up(cell.host, session.way.us())?;
        Ok(Seen::when(up, || "it is not".to_owned()))
    })
}

fn bfd(cell: &Cell<'_>) -> Result<()> {
    let session = Session { bfd: true, ..Session::new(Way::V4) };
    let us = cell.both(&session)?;
    bfd_up(cell, &us, &session)?;
    cell.exchanged(&us, &session)?;
    cell.host.silence()?;
    // The Hold Time is 90 s.
    us.wait_peer(session.way.router(), "BFD to end the session", |peer| {
        peer.state != State::Established
            && peer.notification_sent.as_ref().is_some_and(|it| it.text.contains("BFD Down"))
    })?;
    wait_for("the router's BFD to go down", PATIENCE, || {
        let up = cell.router.bfd_is_up(cell.host, session.way.us())?;
        Ok(Seen::when(!up, || "it is up".to_owned()))
    })?;
    cell.host.end_silence()?;
    cell.established(&us, &session)?;
    bfd_up(cell, &us, &session)?;
    us.stop(goodbye());
    Ok(())
}

fn bfd_restart(cell: &Cell<'_>) -> Result<()> {
    let session = Session { bfd: true, ..restarting(Way::V4) };
    let us = cell.both(&session)?;
    bfd_up(cell, &us, &session)?;
    cell.exchanged(&us, &session)?;
    us.stop(Stop::Silent);
    wait_for("the router's BFD to go down", PATIENCE, || {
        let up = cell.router.bfd_is_up(cell.host, session.way.us())?;
        Ok(Seen::when(!up, || "it is up".to_owned()))
    })?;
    all_of_us(cell, &session, true)?;
    let us = cell.speaker(&session, true)?;
    cell.established(&us, &session)?;
    bfd_up(cell, &us, &session)?;
    all_of_us(cell, &session, false)?;
    us.stop(goodbye());
    Ok(())
}
