//! The router of a matrix cell: its configuration, and the queries that every router supports.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use ipnet::IpNet;
use rustix::process::{Pid, Signal, kill_process};
use trunkline_bgp::types::ExtendedCommunity;

use super::us::PATIENCE;
use crate::host::Host;
use crate::netns::has_ended;
use crate::shell::{Seen, run_with_input, wait_for};

/// The routers' addresses over one hop and over two hops, and then Trunkline's addresses.
pub(super) const ROUTER: [&str; 3] = ["10.1.0.1", "fd00:1::1", "10.3.0.1"];
pub(super) const US: [&str; 3] = ["10.1.0.2", "fd00:1::2", "10.2.0.2"];
/// The second speaker, as the router sees it, for rows about several paths.
pub(super) const SECOND: &str = "10.3.0.254";

/// Prefixes that a router advertises.
pub(super) const THEIRS: [&str; 2] = ["10.77.0.0/16", "fd00:77::/32"];
/// Prefixes that Trunkline advertises.
pub(super) const OURS: [&str; 2] = ["10.66.0.0/16", "fd00:66::/32"];

/// The path of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    V4,
    V6,
    /// IPv4 over a router in the middle.
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

/// Parses an address or prefix of this file.
pub(super) fn parse<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error:?}"))
}

/// A session, as configured on both sides.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub way: Way,
    pub v4: bool,
    pub v6: bool,
    pub router_as: u32,
    pub our_as: u32,
    pub hold_time: u16,
    /// The most prefixes that the router accepts from Trunkline; one more ends the session (RFC
    /// 4486).
    pub max_prefixes: Option<u32>,
    pub password: Option<&'static str>,
    pub ttl_security: bool,
    /// Whether the router only listens.
    pub passive: bool,
    /// The Restart Time of graceful restart, with RFC 8538.
    pub restart: Option<u16>,
    pub notification: bool,
    pub long_lived: Option<u32>,
    pub add_path: bool,
    pub extended_next_hop: bool,
    pub extended_messages: bool,
    pub bfd: bool,
    /// Whether the configuration names the peer only by its interface.
    pub unnumbered: bool,
    /// Whether the router also has a session with the second speaker.
    pub second: bool,
    /// The router's role (RFC 9234), in the RFC's spelling.
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

/// A path in a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    /// In the router's notation.
    pub next_hop: String,
    pub as_path: Vec<u32>,
    /// Whether the path is marked as stale.
    pub stale: bool,
    /// In the router's notation.
    pub communities: String,
    /// In the router's notation: see [`Router::link_bandwidth`].
    pub extended_communities: String,
    /// Whether the path has ORIGINATOR_ID and CLUSTER_LIST (RFC 4456).
    pub reflected: bool,
    /// ONLY_TO_CUSTOMER (RFC 9234).
    pub otc: Option<u32>,
}

/// A router's implementation.
pub(crate) trait Router: Sync {
    /// The router's node, which is also the column's name.
    fn node(&self) -> &'static str;
    fn name(&self) -> &'static str;
    /// The version, as the daemon reports it.
    fn version(&self) -> Result<String>;
    /// Starts the daemons. `again` means a start after a crash: the daemons must recover their
    /// tables.
    fn start(&self, host: &Host, session: &Session, again: bool) -> Result<()>;
    /// Whether the session with an address is established.
    fn is_established(&self, host: &Host, peer: IpAddr) -> Result<bool>;
    /// The paths of a prefix.
    fn paths(&self, host: &Host, prefix: &IpNet) -> Result<Vec<Path>>;
    /// A link bandwidth in the notation of [`Path::extended_communities`].
    fn link_bandwidth(&self, community: ExtendedCommunity) -> String;
    /// The number of IPv4 prefixes from a peer.
    fn received(&self, host: &Host, peer: IpAddr) -> Result<usize>;
    /// Advertises one more IPv4 prefix, derived from a number.
    fn advertise(&self, host: &Host, number: u8) -> Result<()>;
    /// Sends the peer a route refresh.
    fn ask_refresh(&self, host: &Host, peer: IpAddr) -> Result<()>;
    /// Shuts the session down, with a reason for the peer's operator.
    fn shut_down(&self, host: &Host, peer: IpAddr, reason: &str) -> Result<()>;
    /// The router's information on the last end of the session, and its log.
    fn last_end(&self, host: &Host, peer: IpAddr) -> Result<String>;
    /// Whether [`Path::stale`] is available. If not, a path of a lost session counts as retained.
    fn marks_stale(&self) -> bool {
        true
    }
    /// Whether the BFD session is up.
    fn bfd_is_up(&self, _host: &Host, _peer: IpAddr) -> Result<bool> {
        bail!("{} has no BFD", self.name())
    }
}

/// Writes a file on a node.
pub(crate) fn write(host: &Host, path: &str, text: &str) -> Result<()> {
    let script = format!("mkdir -p $(dirname {path}) && cat > {path}");
    run_with_input(&mut host.command("sh", ["-c", &script]), text).map(drop)
}

/// Kills the processes that the test started on a node, as a crash would.
pub(crate) fn kill(host: &Host, only: Option<&str>) -> Result<()> {
    let is_pause = |pid: &Pid| u32::try_from(pid.as_raw_nonzero().get()) == Ok(host.pause);
    let is_meant = |pid: &Pid| {
        let comm =
            std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero())).unwrap_or_default();
        only.is_none_or(|only| comm.trim() == only)
    };
    let pids: Vec<Pid> = host.ns.pids().into_iter().filter(|pid| !is_pause(pid) && is_meant(pid)).collect();
    for pid in &pids {
        // The process may have ended already.
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

/// Waits until a router's paths of a prefix meet a condition.
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
