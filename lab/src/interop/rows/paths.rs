//! Several paths of a prefix, reflected paths, local AS, stale marks, link bandwidth and roles.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Result, ensure};
use ipnet::IpNet;
use trunkline_bgp::config::{LocalAs, PeerConfig};
use trunkline_bgp::rib::Origination;
use trunkline_bgp::speaker::State;
use trunkline_bgp::types::{Asn, ExtendedCommunity, LinkBandwidth, Role};

use crate::interop::cell::{Cell, goodbye, prefix};
use crate::interop::router::{Path, SECOND, Session, Way, parse, wait_established};
use crate::interop::us::{PATIENCE, Us, speaker};
use crate::shell::{Seen, wait_for};

/// The second speaker is between the two sides. It also advertises the router's prefix to the
/// router, or with `sent` Trunkline's prefix to Trunkline. So that side has two paths to advertise.
pub(super) fn add_path(cell: &Cell<'_>, sent: bool) -> Result<()> {
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
        wait_for("the end of the second path", PATIENCE, || {
            let left = us.received(session.way.router())?;
            let of = left.iter().filter(|route| route.prefix == prefix(0, false)).count();
            Ok(Seen::when(of == 1, || format!("{left:?}")))
        })?;
    }
    us.stop(goodbye());
    Ok(())
}

/// The session is internal, and the second speaker is a client of Trunkline. Trunkline reflects the
/// client's paths to the router.
pub(super) fn reflection(cell: &Cell<'_>) -> Result<()> {
    let session = Session { router_as: 65002, ..Session::new(Way::V4) };
    let second = Us::start(cell.hop, speaker(session.our_as, Ipv4Addr::new(10, 0, 0, 3), false))?;
    let internal = |address: &str| {
        let mut peer = PeerConfig::new(parse(address), Asn(session.our_as));
        peer.connect_retry = Duration::from_secs(1);
        peer
    };
    second.add(internal("10.2.0.2"))?;
    let prefix_of_client: IpNet = parse("10.68.0.0/16");
    second.originate(vec![(prefix_of_client, Origination::default())])?;
    second.complete()?;
    let us = cell.both(&session)?;
    let mut client = internal("10.2.0.254");
    client.paths.route_reflector_client = true;
    us.add(client)?;
    second.wait_established(parse::<IpAddr>("10.2.0.2"))?;
    let seen = cell.has(&prefix_of_client, "reflected", |paths| paths.iter().any(|path| path.reflected))?;
    // Reflection changes no other attribute.
    ensure!(seen[0].as_path.is_empty() && seen[0].next_hop.starts_with("10.2.0.254"), "{seen:?}");
    second.wait_route(
        parse::<IpAddr>("10.2.0.2"),
        &prefix(0, false),
        "the router's, reflected",
        |route| route.as_path.is_empty(),
    )?;
    second.stop(goodbye());
    cell.has(&prefix_of_client, "gone with the client", <[_]>::is_empty)?;
    us.stop(goodbye());
    Ok(())
}

/// Trunkline has another AS number towards the router.
pub(super) fn local_as(cell: &Cell<'_>) -> Result<()> {
    const OWN: u32 = 4_200_000_007;
    let session = Session::new(Way::V4);
    cell.router.start(cell.host, &session, false)?;
    let us = Us::start(cell.us, speaker(OWN, Ipv4Addr::new(10, 0, 0, 2), false))?;
    let peer = |hidden: bool| {
        let mut peer = cell.peer(&session);
        let asn = Asn(session.our_as);
        peer.paths.local_as = Some(LocalAs { asn, no_prepend: hidden, replace_as: hidden });
        peer
    };
    us.add(peer(false))?;
    cell.originate(&us, &session)?;
    cell.established(&us, &session)?;
    let received = |what: &str, as_path: String| {
        us.wait_route(session.way.router(), &prefix(0, false), what, |route| route.as_path == as_path)
    };
    cell.has(&prefix(0, true), "of both ASes", |paths| {
        paths.iter().any(|path| path.as_path == [session.our_as, OWN])
    })?;
    received("behind the local AS", format!("{} {}", session.our_as, session.router_as))?;
    us.update(peer(true))?;
    cell.exchanged(&us, &session)?;
    received("unchanged", session.router_as.to_string())?;
    ensure!(us.peer(session.way.router())?.flaps == 0, "the session was lost");
    us.stop(goodbye());
    Ok(())
}

pub(super) fn graceful_shutdown(cell: &Cell<'_>) -> Result<()> {
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
    cell.has(&prefix(0, true), "marked as GRACEFUL_SHUTDOWN", |paths| paths.iter().any(marked))?;
    us.update(cell.peer(&session))?;
    cell.has(&prefix(0, true), "to stay", |paths| paths.iter().any(|path| !marked(path)))?;
    ensure!(us.peer(session.way.router())?.flaps == 0, "the session was lost");
    us.stop(goodbye());
    Ok(())
}

/// External routers receive the transitive form, internal ones the non-transitive one.
pub(super) fn link_bandwidth(cell: &Cell<'_>) -> Result<()> {
    for (router_as, kind) in [(65001, 0), (65002, 0x40)] {
        let session = Session { router_as, ..Session::new(Way::V4) };
        let us = cell.both(&session)?;
        // 1 Gbit/s and 10 Gbit/s in octets per second, as IEEE 754 numbers.
        let rows: [(u64, [u8; 4]); 2] =
            [(125_000_000, [0x4c, 0xee, 0x6b, 0x28]), (1_250_000_000, [0x4e, 0x95, 0x02, 0xf9])];
        for (octets, [a, b, c, d]) in rows {
            let link_bandwidth = Some(LinkBandwidth(octets));
            us.originate(vec![(prefix(0, true), Origination { link_bandwidth, ..Origination::default() })])?;
            // AS 65002.
            let community = ExtendedCommunity([kind, 4, 0xfd, 0xea, a, b, c, d]);
            let shown = cell.router.link_bandwidth(community);
            cell.has(&prefix(0, true), &format!("with {shown}"), |paths| {
                paths.iter().any(|path| path.extended_communities == shown)
            })?;
        }
        cell.originate(&us, &session)?;
        cell.has(&prefix(0, true), "without a link bandwidth", |paths| {
            paths.iter().any(|path| path.extended_communities.is_empty())
        })?;
        ensure!(us.peer(session.way.router())?.flaps == 0, "the session was lost");
        us.stop(goodbye());
    }
    Ok(())
}

pub(super) fn roles(cell: &Cell<'_>) -> Result<()> {
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
    // A provider marks paths that its customer may not advertise to other providers.
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
