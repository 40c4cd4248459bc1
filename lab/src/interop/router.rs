//! The other side of a cell: what it is configured for, and what every router can be asked.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use ipnet::IpNet;
use rustix::process::{Pid, Signal, kill_process};

use super::us::PATIENCE;
use crate::host::Host;
use crate::netns::has_ended;
use crate::shell::{Seen, run_with_input, wait_for};

/// The routers' addresses, over one hop and over two, and this side's.
pub(super) const ROUTER: [&str; 3] = ["10.1.0.1", "fd00:1::1", "10.3.0.1"];
pub(super) const US: [&str; 3] = ["10.1.0.2", "fd00:1::2", "10.2.0.2"];
/// The second speaker, which rows need that are about several paths, as the router knows it.
pub(super) const SECOND: &str = "10.3.0.254";

/// What a router tells.
pub(super) const TOLD: [&str; 2] = ["10.77.0.0/16", "fd00:77::/32"];
/// What is told to it.
pub(super) const OURS: [&str; 2] = ["10.66.0.0/16", "fd00:66::/32"];

/// Which way the session goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    V4,
    V6,
    /// IPv4 over a router between.
    TwoHops,
}

impl Way {
    pub(super) fn router(self) -> IpAddr {
        parse(ROUTER[self as usize])
    }

    pub(super) fn us(self) -> IpAddr {
        parse(US[self as usize])
    }
}

/// An address or prefix of this file's.
pub(super) fn parse<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error:?}"))
}

/// A session as both sides are configured for it.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub way: Way,
    pub v4: bool,
    pub v6: bool,
    pub router_as: u32,
    pub our_as: u32,
    pub hold_time: u16,
    /// More of this side's prefixes end the session (RFC 4486).
    pub max_prefixes: Option<u32>,
    pub password: Option<&'static str>,
    pub ttl_security: bool,
    /// The router only listens.
    pub passive: bool,
    /// Restart Time, and RFC 8538.
    pub restart: Option<u16>,
    pub notification: bool,
    pub long_lived: Option<u32>,
    pub add_path: bool,
    pub extended_next_hop: bool,
    pub extended_messages: bool,
    pub bfd: bool,
    /// By the interface, whose other end is found.
    pub unnumbered: bool,
    /// A session with the second speaker too.
    pub second: bool,
    /// The router's role (RFC 9234), as the RFC writes it.
    pub role: Option<&'static str>,
}

impl Session {
    pub(super) fn new(way: Way) -> Session {
        Session {
            way,
            v4: true,
            v6: false,
            router_as: 65001,
            our_as: 65002,
            hold_time: 90,
            max_prefixes: None,
            password: None,
            ttl_security: false,
            passive: false,
            restart: None,
            notification: false,
            long_lived: None,
            add_path: false,
            extended_next_hop: false,
            extended_messages: false,
            bfd: false,
            unnumbered: false,
            second: false,
            role: None,
        }
    }

    /// Both families, with graceful restart.
    pub(super) fn restarting() -> Session {
        Session { v6: true, restart: Some(60), ..Session::new(Way::V4) }
    }

    pub(super) fn families(&self) -> impl Iterator<Item = usize> + use<> {
        [self.v4, self.v6].into_iter().enumerate().filter(|(_, carried)| *carried).map(|(place, _)| place)
    }
}

/// One path that a router has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    /// As the router writes it.
    pub next_hop: String,
    pub as_path: Vec<u32>,
    /// It is marked as stale.
    pub stale: bool,
    /// As the router writes them.
    pub communities: String,
    /// Who reflected it, and for whom, is said (RFC 4456).
    pub reflected: bool,
    /// ONLY_TO_CUSTOMER (RFC 9234).
    pub otc: Option<u32>,
}

/// A router's implementation.
pub(crate) trait Router: Sync {
    /// The node that it runs on, and the column's name.
    fn node(&self) -> &'static str;
    fn name(&self) -> &'static str;
    /// As the daemon says it.
    fn version(&self) -> Result<String>;
    /// Starts the daemons; `again`: after a crash, whose tables are to be taken up.
    fn start(&self, host: &Host, session: &Session, again: bool) -> Result<()>;
    /// Whether the session with an address is established.
    fn is_established(&self, host: &Host, peer: IpAddr) -> Result<bool>;
    /// The paths of a prefix.
    fn paths(&self, host: &Host, prefix: &IpNet) -> Result<Vec<Path>>;
    /// How many prefixes came from a peer, IPv4.
    fn received(&self, host: &Host, peer: IpAddr) -> Result<usize>;
    /// Tells one prefix more (IPv4), from a number.
    fn tell(&self, host: &Host, number: u8) -> Result<()>;
    /// Asks for the peer's routes again.
    fn ask_refresh(&self, host: &Host, peer: IpAddr) -> Result<()>;
    /// Shuts the session down, with a reason for the other operator.
    fn shut_down(&self, host: &Host, peer: IpAddr, reason: &str) -> Result<()>;
    /// What is known of the session's last end, and the log.
    fn last_end(&self, host: &Host, peer: IpAddr) -> Result<String>;
    /// Whether [`Path::stale`] is known; if not, a path of a session that is lost is one that is kept.
    fn marks_stale(&self) -> bool {
        true
    }
    /// Whether the BFD session is up.
    fn bfd_is_up(&self, _host: &Host, _peer: IpAddr) -> Result<bool> {
        bail!("{} has no BFD", self.name())
    }
}

/// Puts a file onto a node.
pub(crate) fn write(host: &Host, path: &str, text: &str) -> Result<()> {
    let script = format!("mkdir -p $(dirname {path}) && cat > {path}");
    run_with_input(&mut host.command("sh", ["-c", &script]), text).map(drop)
}

/// Kills the processes of a node that the test started there, as a crash would.
pub(crate) fn kill(host: &Host, only: Option<&str>) -> Result<()> {
    let is_pause = |pid: &Pid| u32::try_from(pid.as_raw_nonzero().get()) == Ok(host.pause);
    let is_meant = |pid: &Pid| {
        let comm =
            std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero())).unwrap_or_default();
        only.is_none_or(|only| comm.trim() == only)
    };
    let pids: Vec<Pid> = host.ns.pids().into_iter().filter(|pid| !is_pause(pid) && is_meant(pid)).collect();
    for pid in &pids {
        // It may have ended by itself.
        let _gone = kill_process(*pid, Signal::KILL);
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Some(pid) = pids.iter().find(|pid| !has_ended(pid.as_raw_nonzero().get())) {
        if Instant::now() > deadline {
            bail!("{pid:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Waits until a router has paths of a prefix that are as they should be.
pub(super) fn wait_paths(
    router: &dyn Router,
    host: &Host,
    prefix: &IpNet,
    what: &str,
    is: impl Fn(&[Path]) -> bool,
) -> Result<Vec<Path>> {
    wait_for(&format!("{prefix} in {}, {what}", router.name()), PATIENCE, || {
        let paths = router.paths(host, prefix)?;
        Ok(if is(&paths) { Seen::Yes(paths) } else { Seen::NotYet(format!("{paths:?}")) })
    })
}

pub(super) fn wait_established(router: &dyn Router, host: &Host, peer: IpAddr) -> Result<()> {
    wait_for(&format!("the session in {}", router.name()), PATIENCE, || {
        let up = router.is_established(host, peer)?;
        Ok(Seen::when(up, || router.last_end(host, peer).unwrap_or_default()))
    })
}

/// The words of a text that are numbers.
pub(super) fn numbers(text: &str) -> Vec<u32> {
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// The end of a daemon's log.
pub(super) fn log_of(host: &Host, file: &str) -> Result<String> {
    let path = host.folder.join("log").join(file);
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}
