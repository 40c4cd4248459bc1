//! BFD, alone and with graceful restart.

use anyhow::Result;
use trunkline_bgp::speaker::{State, Stop};

use super::restart::all_of_us;
use crate::interop::cell::{Cell, goodbye};
use crate::interop::router::{Session, Way};
use crate::interop::us::{PATIENCE, Us};
use crate::shell::{Seen, wait_for};

pub(super) fn is_up(cell: &Cell<'_>, us: &Us, session: &Session) -> Result<()> {
    us.wait_peer(session.way.router(), "BFD to be Up", |peer| {
        peer.bfd.as_ref().is_some_and(|bfd| bfd.status.state == trunkline_bgp::bfd::State::Up)
    })?;
    wait_for("BFD to be up in the router", PATIENCE, || {
        let up = cell.router.bfd_is_up(cell.host, session.way.us())?;
        Ok(Seen::when(up, || "BFD is not Up".to_owned()))
    })
}

pub(super) fn up_and_down(cell: &Cell<'_>) -> Result<()> {
    let session = Session { bfd: true, ..Session::new(Way::V4) };
    let us = cell.both(&session)?;
    is_up(cell, &us, &session)?;
    cell.exchanged(&us, &session)?;
    cell.host.silence()?;
    // The Hold Time is 90 s, so it cannot end the session earlier.
    us.wait_peer(session.way.router(), "BFD to end the session", |peer| {
        peer.state != State::Established
            && peer.notification_sent.as_ref().is_some_and(|it| it.text.contains("BFD Down"))
    })?;
    wait_for("the router's BFD to go down", PATIENCE, || {
        let up = cell.router.bfd_is_up(cell.host, session.way.us())?;
        Ok(Seen::when(!up, || "BFD is still up".to_owned()))
    })?;
    cell.host.end_silence()?;
    cell.established(&us, &session)?;
    is_up(cell, &us, &session)?;
    us.stop(goodbye());
    Ok(())
}

pub(super) fn restart(cell: &Cell<'_>) -> Result<()> {
    let session = Session { bfd: true, ..Session::restarting() };
    let us = cell.both(&session)?;
    is_up(cell, &us, &session)?;
    cell.exchanged(&us, &session)?;
    us.stop(Stop::Silent);
    wait_for("the router's BFD to go down", PATIENCE, || {
        let up = cell.router.bfd_is_up(cell.host, session.way.us())?;
        Ok(Seen::when(!up, || "BFD is still up".to_owned()))
    })?;
    all_of_us(cell, &session, true)?;
    let us = cell.speaker(&session, true)?;
    cell.established(&us, &session)?;
    is_up(cell, &us, &session)?;
    all_of_us(cell, &session, false)?;
    us.stop(goodbye());
    Ok(())
}
