//! Graceful restart of Trunkline and of the router, after a NOTIFICATION, and long-lived.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::{Signal, kill_process};
use trunkline_bgp::speaker::{PeerStatus, State, Stop};
use trunkline_bgp::types::Community;

use super::sessions::two_connections;
use crate::interop::cell::{Cell, goodbye, prefix};
use crate::interop::router::{Path, Session, Way, kill};
use crate::interop::us::{PATIENCE, Us};
use crate::shell::{Seen, wait_for};

/// Number of collisions of a test.
const COLLISIONS: usize = 5;
/// The delay of this side's messages in each second collision.
const LATE: Duration = Duration::from_millis(500);

/// Checks that the router has Trunkline's prefixes, as stale or as fresh paths.
pub(super) fn all_of_us(cell: &Cell<'_>, session: &Session, stale: bool) -> Result<()> {
    if stale {
        cell.lost(session)?;
    }
    let what = if stale { "kept" } else { "fresh" };
    let is = |path: &Path| path.stale == stale || !cell.router.marks_stale();
    for place in session.families() {
        cell.has(&prefix(place, true), what, |paths| paths.iter().any(is))?;
    }
    Ok(())
}

pub(super) fn of_us(cell: &Cell<'_>) -> Result<()> {
    let session = Session::restarting();
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

/// Sends a signal to the router's processes.
fn signal(cell: &Cell<'_>, signal: Signal) -> Result<()> {
    cell.host.ns.pids().into_iter().try_for_each(|pid| Ok(kill_process(pid, signal)?))
}

/// The connections of both sides meet while the router retains this side's paths. The session may not end
/// again: the router would remove the paths.
pub(super) fn collision(cell: &Cell<'_>) -> Result<()> {
    let session = Session::restarting();
    let mut us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    for round in 0..COLLISIONS {
        us.stop(Stop::Silent);
        all_of_us(cell, &session, true)?;
        cell.hold("syn")?;
        wait_for("an attempt of the router", PATIENCE, || {
            let attempts = cell.host.run("ss", ["-Htn", "state", "syn-sent"])?;
            Ok(Seen::when(attempts.contains(":179"), || attempts.clone()))
        })?;
        // The router's kernel opens both connections, and the router gets all messages at once. In each
        // second round it gets only those of its own connection, as if it handled this side's OPEN late.
        let late = round % 2 == 1;
        signal(cell, Signal::STOP)?;
        cell.let_go()?;
        if late {
            cell.hold_ours("psh")?;
        }
        us = cell.speaker(&session, true)?;
        let opened = two_connections(cell);
        signal(cell, Signal::CONT)?;
        opened?;
        if late {
            sleep(LATE);
            cell.let_go()?;
        }
        cell.established(&us, &session)?;
        all_of_us(cell, &session, false)?;
        cell.exchanged(&us, &session)?;
        let peer = us.peer(session.way.router())?;
        ensure!(peer.flaps == 0, "the session ended again: {:?}", peer.last_error);
    }
    us.stop(goodbye());
    Ok(())
}

pub(super) fn stale_here(us: &Us, session: &Session, stale: bool) -> Result<()> {
    for place in session.families() {
        let what = if stale { "kept" } else { "fresh" };
        us.wait_route(session.way.router(), &prefix(place, false), what, |route| route.stale == stale)?;
        ensure!(!us.fib(&prefix(place, false)).is_empty(), "{} is not used", prefix(place, false));
    }
    Ok(())
}

/// The daemons that the test kills: only the BGP speaker of each router.
const DAEMONS: [&str; 3] = ["bgpd", "bird", "gobgpd"];

pub(super) fn crash(cell: &Cell<'_>) -> Result<()> {
    DAEMONS.iter().try_for_each(|daemon| kill(cell.host, Some(daemon)))
}

pub(super) fn of_router(cell: &Cell<'_>) -> Result<()> {
    let session = Session::restarting();
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    crash(cell)?;
    us.wait_peer(session.way.router(), "the loss", |peer| peer.state != State::Established)?;
    stale_here(&us, &session, true)?;
    cell.router.start(cell.host, &session, true)?;
    cell.established(&us, &session)?;
    stale_here(&us, &session, false)?;
    cell.exchanged(&us, &session)?;
    let stale = |peer: &PeerStatus| peer.families.iter().all(|family| family.stale == 0);
    us.wait_peer(session.way.router(), "nothing stale after End-of-RIB", stale)?;
    us.stop(goodbye());
    Ok(())
}

pub(super) fn after_notification(cell: &Cell<'_>) -> Result<()> {
    let session = Session { notification: true, hold_time: 6, ..Session::restarting() };
    let us = cell.both(&session)?;
    cell.exchanged(&us, &session)?;
    // A change that needs a new session sends a NOTIFICATION. Both sides then retain the paths. The
    // next session is delayed during this check.
    cell.hold("syn")?;
    let mut edited = cell.peer(&session);
    edited.hold_time = Duration::from_secs(9);
    us.update(edited)?;
    all_of_us(cell, &session, true)?;
    stale_here(&us, &session, true)?;
    cell.let_go()?;
    cell.established(&us, &session)?;
    stale_here(&us, &session, false)?;
    cell.exchanged(&us, &session)?;
    // The NOTIFICATION of an intended end is a Hard Reset: no path is retained.
    us.stop(Stop::Cease { communication: "for good".to_owned() });
    for place in session.families() {
        cell.has(&prefix(place, true), "gone after a Hard Reset", <[_]>::is_empty)?;
    }
    Ok(())
}

/// Both sides are silent until their Hold Timers end the session. Both sides retain the paths.
pub(super) fn after_hold_timer(cell: &Cell<'_>) -> Result<()> {
    let session = Session { notification: true, hold_time: 6, ..Session::restarting() };
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

pub(super) fn long_lived_of_us(cell: &Cell<'_>) -> Result<()> {
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

pub(super) fn long_lived_of_router(cell: &Cell<'_>) -> Result<()> {
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
    ensure!(!us.fib(&prefix(0, false)).is_empty(), "the path is not used");
    cell.router.start(cell.host, &session, true)?;
    cell.established(&us, &session)?;
    us.wait_route(router, &prefix(0, false), "fresh", |route| !route.stale && route.communities.is_empty())?;
    us.stop(goodbye());
    Ok(())
}
