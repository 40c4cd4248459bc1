//! Environment of a matrix cell, and the steps that every row shares: matching configurations, a
//! session, routes in both directions.

use std::net::Ipv4Addr;
use std::num::NonZeroU8;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use trunkline_bgp::bfd::BfdConfig;
use trunkline_bgp::config::{AddPath, Password, PeerConfig};
use trunkline_bgp::rib::Origination;
use trunkline_bgp::speaker::Stop;
use trunkline_bgp::types::{Asn, Family};

use super::router::{OURS, Path, Router, Session, THEIRS, Way, parse, wait_established, wait_paths};
use super::us::{PATIENCE, Us, speaker};
use crate::host::Host;
use crate::shell::{Seen, wait_for};

/// The environment of a cell.
pub(super) struct Cell<'a> {
    pub router: &'a dyn Router,
    /// The router's node, Trunkline's node, and the node between them.
    pub host: &'a Host,
    pub us: &'a Host,
    pub hop: &'a Host,
}

pub(super) fn prefix(place: usize, ours: bool) -> IpNet {
    parse(if ours { OURS[place] } else { THEIRS[place] })
}

impl Cell<'_> {
    /// This side's configuration of the peer.
    pub(super) fn peer(&self, session: &Session) -> PeerConfig {
        let mut peer = PeerConfig::new(session.way.router(), Asn(session.router_as));
        peer.local_address = Some(session.way.us());
        peer.hold_time = Duration::from_secs(session.hold_time.into());
        peer.connect_retry = Duration::from_secs(1);
        let families = session.families().map(|place| Family::ALL[place]);
        peer.families = families.collect();
        peer.extended_messages = session.extended_messages;
        peer.graceful_restart = session.restart;
        peer.restart_notification = session.notification;
        peer.long_lived = [session.long_lived; 2];
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
    pub(super) fn speaker(&self, session: &Session, restarting: bool) -> Result<Us> {
        let us = Us::start(self.us, speaker(session.our_as, Ipv4Addr::new(10, 0, 0, 2), restarting))?;
        us.add(self.peer(session))?;
        self.originate(&us, session)?;
        Ok(us)
    }

    /// Originates this side's prefixes, and marks them as complete.
    pub(super) fn originate(&self, us: &Us, session: &Session) -> Result<()> {
        let ours = session.families().map(|place| (prefix(place, true), Origination::default()));
        us.originate(ours.collect())?;
        us.complete()
    }

    /// Starts both sides, and waits until the session is Established.
    pub(super) fn both(&self, session: &Session) -> Result<Us> {
        self.router.start(self.host, session, false)?;
        let us = self.speaker(session, false)?;
        self.established(&us, session)?;
        Ok(us)
    }

    /// Checks that the router's OPEN does not have a capability.
    pub(super) fn is_without(&self, capability: &str) -> Result<()> {
        let session = Session { notification: true, extended_messages: true, ..Session::restarting() };
        let us = self.both(&session)?;
        let status = us.peer(session.way.router())?.session.context("no session")?;
        let found = status.capabilities_received.iter().find(|it| it.contains(capability));
        ensure!(found.is_none(), "the router has a feature that the row declares missing: {found:?}");
        us.stop(goodbye());
        Ok(())
    }

    /// Drops packets with these TCP flags between this side's node and the router, until
    /// [`Cell::let_go`].
    pub(super) fn hold(&self, flags: &str) -> Result<()> {
        self.hold_hooks(flags, &["input", "output"])
    }

    /// The same for packets of this side only.
    pub(super) fn hold_ours(&self, flags: &str) -> Result<()> {
        self.hold_hooks(flags, &["output"])
    }

    fn hold_hooks(&self, flags: &str, hooks: &[&str]) -> Result<()> {
        let chains = hooks.iter().map(|hook| {
            format!(
                "add chain inet held {hook} {{ type filter hook {hook} priority 0; }}; \
                 add rule inet held {hook} tcp flags {flags} drop; "
            )
        });
        let rules = format!("add table inet held; {}", chains.collect::<String>());
        self.us.run("nft", [rules]).map(drop)
    }

    pub(super) fn let_go(&self) -> Result<()> {
        self.us.run("nft", ["delete table inet held"]).map(drop)
    }

    /// Waits until the router has detected the end of the session.
    pub(super) fn lost(&self, session: &Session) -> Result<()> {
        wait_for("the router to lose the session", PATIENCE, || {
            let up = self.router.is_established(self.host, session.way.us())?;
            Ok(Seen::when(!up, || "the session is established".to_owned()))
        })
    }

    /// Removes anything that a failed cell may have left.
    pub(super) fn clear(&self) {
        // This call fails if there is nothing to remove, which is the usual case.
        let _ = self.host.end_silence();
        let _ = self.let_go();
    }

    pub(super) fn established(&self, us: &Us, session: &Session) -> Result<()> {
        us.wait_established(session.way.router())?;
        wait_established(self.router, self.host, session.way.us())
    }

    /// Checks that each side has the other's prefixes, with their next hops.
    pub(super) fn exchanged(&self, us: &Us, session: &Session) -> Result<()> {
        for place in session.families() {
            let received =
                us.wait_route(session.way.router(), &prefix(place, false), "received", |route| !route.stale)?;
            ensure!(received.as_path == session.router_as.to_string(), "{received:?}");
            wait_for("the router's route to be used", PATIENCE, || {
                let used = us.fib(&prefix(place, false));
                Ok(Seen::when(!used.is_empty(), || format!("{received:?}")))
            })?;
            self.has(&prefix(place, true), "advertised by this side", |paths| {
                paths.iter().any(|path| path.as_path == [session.our_as] && !path.stale)
            })?;
        }
        Ok(())
    }

    pub(super) fn has(&self, prefix: &IpNet, what: &str, is: impl Fn(&[Path]) -> bool) -> Result<Vec<Path>> {
        wait_paths(self.router, self.host, prefix, what, is)
    }
}

pub(super) fn goodbye() -> Stop {
    Stop::Cease { communication: String::new() }
}
