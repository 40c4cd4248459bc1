//! Start and end of a session, and its messages.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ipnet::{IpNet, Ipv4Net};
use trunkline_bgp::config::{Password, PeerRange};
use trunkline_bgp::rib::Origination;
use trunkline_bgp::speaker::{State, Stop};
use trunkline_bgp::types::{Community, InterfaceName};

use crate::interop::cell::{Cell, goodbye, prefix};
use crate::interop::router::{Session, Way, parse};
use crate::interop::us::{PATIENCE, Us, speaker};
use crate::shell::{Seen, wait_for};

pub(super) fn routes(cell: &Cell<'_>, way: Way, place: usize) -> Result<()> {
    let session = Session { v4: place == 0, v6: place == 1, ..Session::new(way) };
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    // A prefix that is no longer originated is withdrawn.
    let other: IpNet = parse(["10.67.0.0/16", "fd00:67::/32"][place]);
    us.originate(vec![(other, Origination::default())])?;
    cell.has(&other, "one more", |paths| !paths.is_empty())?;
    us.stop(goodbye());
    cell.has(&other, "withdrawn with the session", <[_]>::is_empty).map(drop)
}

pub(super) fn extended_next_hop(cell: &Cell<'_>) -> Result<()> {
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

/// Neither side's configuration has an address. Each side discovers the link-local address of the
/// other side.
pub(super) fn unnumbered(cell: &Cell<'_>) -> Result<()> {
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
    cell.originate(&us, &session)?;
    us.wait_established(key)?;
    for place in session.families() {
        us.wait_route(key, &prefix(place, false), "received", |route| route.as_path == "65001")?;
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

pub(super) fn password(cell: &Cell<'_>) -> Result<()> {
    let session = Session { password: Some("interop-secret"), ..Session::new(Way::V4) };
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    // A wrong key prevents the session.
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

pub(super) fn ttl_security(cell: &Cell<'_>) -> Result<()> {
    let session = Session { ttl_security: true, ..Session::new(Way::V4) };
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    // The router ignores packets with the TTL of an ordinary session. So OPEN is not answered, and
    // the shortest Hold Time ends the attempt.
    let mut ordinary = cell.peer(&session);
    (ordinary.ttl_security, ordinary.hold_time) = (None, Duration::from_secs(3));
    let start = Instant::now();
    us.update(ordinary)?;
    us.wait_peer(session.way.router(), "the router to ignore TTL 1", |peer| {
        let sent = peer.notification_sent.as_ref().filter(|it| it.ago < start.elapsed());
        sent.is_some_and(|it| it.text.contains("Hold Timer Expired")) && peer.state != State::Established
    })?;
    us.stop(goodbye());
    Ok(())
}

pub(super) fn four_octets(cell: &Cell<'_>) -> Result<()> {
    let session = Session { router_as: 4_200_000_001, our_as: 4_200_000_002, ..Session::new(Way::V4) };
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    us.stop(goodbye());
    Ok(())
}

/// FRR answers a request after its End-of-RIB, which it sends only if graceful restart is
/// negotiated.
pub(super) fn refreshable(cell: &Cell<'_>) -> Result<(Session, Us)> {
    let session = Session { restart: Some(60), ..Session::new(Way::V4) };
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    us.wait_peer(session.way.router(), "End-of-RIB", |peer| {
        peer.families.iter().all(|family| family.end_of_rib_received)
    })?;
    Ok((session, us))
}

pub(super) fn refresh(cell: &Cell<'_>, by_router: bool) -> Result<()> {
    let (session, us) = refreshable(cell)?;
    let (router, ours) = (session.way.router(), session.way.us());
    let before = us.peer(router)?.traffic;
    if by_router {
        cell.router.ask_refresh(cell.host, ours)?;
        us.wait_peer(router, "the router to request this side's routes again", |peer| {
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

pub(super) fn enhanced_refresh(cell: &Cell<'_>) -> Result<()> {
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

/// 4,096 octets hold 1,000 prefixes, but not 1,500 communities.
pub(super) fn long_messages(cell: &Cell<'_>, extended: bool) -> Result<()> {
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
        // The prefixes have 12,000 octets: three messages and a remainder. The number may differ by
        // one, because it depends on the arrival of the prefixes.
        false => ensure!((3..=5).contains(&messages), "{messages} messages with {octets} octets"),
    }
    us.stop(goodbye());
    Ok(())
}

pub(super) fn shutdown(cell: &Cell<'_>) -> Result<()> {
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

pub(super) fn prefix_limit(cell: &Cell<'_>) -> Result<()> {
    let session = Session::new(Way::V4);
    cell.router.start(cell.host, &session, false)?;
    let us = Us::start(cell.us, speaker(session.our_as, Ipv4Addr::new(10, 0, 0, 2), false))?;
    let mut peer = cell.peer(&session);
    peer.max_prefixes = Some(2);
    us.add(peer)?;
    us.complete()?;
    cell.established(&us, &session)?;
    for number in 0..3 {
        cell.router.advertise(cell.host, number)?;
    }
    us.wait_peer(session.way.router(), "the limit to end the session", |peer| {
        peer.state == State::Idle
            && peer
                .notification_sent
                .as_ref()
                .is_some_and(|it| it.text.contains("Maximum Number of Prefixes"))
    })?;
    cell.lost(&session)?;
    us.stop(goodbye());
    Ok(())
}

pub(super) fn routers_prefix_limit(cell: &Cell<'_>) -> Result<()> {
    let session = Session { max_prefixes: Some(2), ..Session::new(Way::V4) };
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    let more = (0..3).map(|number| (parse(&format!("10.67.{number}.0/24")), Origination::default()));
    us.originate(more.collect())?;
    us.wait_peer(session.way.router(), "the router's limit to end the session", |peer| {
        let said = peer.notification_received.as_ref();
        said.is_some_and(|it| it.text.contains("Maximum Number of Prefixes"))
    })?;
    cell.lost(&session)?;
    us.stop(goodbye());
    Ok(())
}

/// Trunkline's configuration has only the prefix of the router's address, and the key.
pub(super) fn dynamic(cell: &Cell<'_>) -> Result<()> {
    let session = Session { password: Some("everybody-of-the-prefix"), ..Session::new(Way::V4) };
    let us = Us::start(cell.us, speaker(session.our_as, Ipv4Addr::new(10, 0, 0, 2), false))?;
    us.take(PeerRange::new(parse("10.1.0.0/24"), 1, cell.peer(&session)))?;
    cell.originate(&us, &session)?;
    cell.router.start(cell.host, &session, false)?;
    cell.established(&us, &session)?;
    cell.exchanged(&us, &session)?;
    cell.router.shut_down(cell.host, session.way.us(), "moves")?;
    wait_for("the router to be forgotten", PATIENCE, || {
        let there = us.find(session.way.router().into())?;
        Ok(Seen::when(there.is_none(), || format!("{there:?}")))
    })?;
    us.stop(goodbye());
    Ok(())
}

/// Waits until there is a connection of each side.
pub(super) fn two_connections(cell: &Cell<'_>) -> Result<()> {
    wait_for("two connections", PATIENCE, || {
        let sockets = cell.us.run("ss", ["-Htn", "state", "established"])?;
        let of = |place: usize| {
            let mut lines = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            lines.any(|words| words.get(place).is_some_and(|it| it.ends_with(":179")))
        };
        Ok(Seen::when(of(2) && of(3), || sockets.clone()))
    })
}

/// All packets are held until there are two connections. So both sides have two connections when
/// the OPENs arrive.
pub(super) fn collision(cell: &Cell<'_>) -> Result<()> {
    let session = Session::new(Way::V4);
    let router = session.way.router();
    for _ in 0..3 {
        cell.hold("psh")?;
        cell.router.start(cell.host, &session, false)?;
        let us = cell.speaker(&session, false)?;
        two_connections(cell)?;
        cell.let_go()?;
        cell.established(&us, &session)?;
        cell.exchanged(&us, &session)?;
        let peer = us.peer(router)?;
        us.stop(goodbye());
        // TCP retransmits the held segments at different times.
        ensure!(peer.flaps == 0, "the session ended again: {:?}", peer.last_error);
    }
    Ok(())
}
