//! The pods' default routes follow the default routes of the peers. There are two routers, each
//! behind its own link, and a pod that pings addresses behind them. A router without uplinks drops
//! packets for these addresses.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "tests wait")]

mod host;
#[path = "../../datapath/tests/namespace/mod.rs"]
mod namespace;

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Command as Process, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use trunkline_api::control::{DefaultRouteBasis, DefaultRouteStatus, EventKind, Events, Peer, Query};
use trunkline_bgp::config::{PeerConfig, SpeakerConfig};
use trunkline_bgp::net::{self, ShellConfig};
use trunkline_bgp::rib::Origination;
use trunkline_bgp::types::Asn;

use host::{Host, manifests};
use namespace::{inside, ip, isolated, namespace};

const SUBNET: &str = "10.14.0.0/24";
/// Addresses behind the routers; packets to different addresses use different next hops.
const OUTSIDE: &str = "198.51.100.0/28";
const TARGETS: u8 = 16;
const NO_BGP: &str =
    "table inet hold { chain input { type filter hook input priority 0; tcp dport 179 drop; }; }";

/// A router 10.255.N.1 beyond the link `upN` with a default route that the test adds and removes.
struct Tor {
    number: u8,
    netns: OwnedFd,
    default: UnboundedSender<bool>,
}

impl Tor {
    fn new(number: u8) -> Tor {
        let netns = namespace();
        let path = format!("/proc/{}/fd/{}", std::process::id(), netns.as_raw_fd());
        ip(&format!("link add up{number} type veth peer name r{number}"));
        ip(&format!("link set r{number} netns {path}"));
        ip(&format!("addr add 10.255.{number}.254/24 dev up{number}"));
        ip(&format!("link set up{number} up"));
        inside(&netns, || {
            ip(&format!("addr add 10.255.{number}.1/24 dev r{number}"));
            ip(&format!("link set r{number} up"));
            ip(&format!("route add {SUBNET} via 10.255.{number}.254"));
            ip(&format!("route add local {OUTSIDE} dev lo"));
        });
        let (default, mut defaults) = unbounded_channel();
        let (ready, running) = mpsc::channel();
        let there = netns.try_clone().unwrap();
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            move_into_link_name_space(there.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let speaker = speaker(number);
                let handle = &speaker.0;
                let mut peer = PeerConfig::new(Ipv4Addr::new(10, 255, number, 254).into(), Asn(65001));
                peer.passive = true;
                handle.add_peer(peer).await.unwrap();
                handle.originate("0.0.0.0/0".parse().unwrap(), Origination::default()).await.unwrap();
                handle.originations_complete().await.unwrap();
                ready.send(()).unwrap();
                while let Some(offered) = defaults.recv().await {
                    let prefix = "0.0.0.0/0".parse().unwrap();
                    match offered {
                        true => handle.originate(prefix, Origination::default()).await.unwrap(),
                        false => handle.withdraw(prefix).await.unwrap(),
                    }
                }
            });
        });
        running.recv_timeout(Duration::from_secs(10)).unwrap();
        Tor { number, netns, default }
    }

    fn address(&self) -> String {
        format!("10.255.{}.1", self.number)
    }

    /// Adds or removes the router's uplinks: first its forwarding, then its advertisement.
    fn uplinks(&self, there: bool) {
        let verb = if there { "add" } else { "del" };
        inside(&self.netns, || ip(&format!("route {verb} local {OUTSIDE} dev lo")));
        self.default.send(there).unwrap();
    }

    /// Whether BGP connections to the router are possible.
    fn reachable(&self, reachable: bool) {
        let arguments = if reachable { "delete table inet hold" } else { NO_BGP };
        let status = inside(&self.netns, || Process::new("nft").arg(arguments).status().unwrap());
        assert!(status.success());
    }
}

fn speaker(number: u8) -> (net::SpeakerHandle, net::Events, net::RouteChanges) {
    let address = Ipv4Addr::new(10, 255, number, 1);
    let config = SpeakerConfig {
        cluster_id: None,
        local_as: Asn(65000 + u32::from(number) * 100),
        router_id: address,
        restarting: false,
        selection_deferral: Duration::from_secs(5),
        max_paths: 1,
        seed: u64::from(number),
    };
    let shell = ShellConfig { listen: vec![SocketAddr::from((address, 179))], ..ShellConfig::default() };
    net::spawn(config, &shell).unwrap()
}

/// One `ping` to each outside address, until this value is dropped.
struct Pings(Vec<Child>);

impl Pings {
    fn start(pod: &OwnedFd) -> Pings {
        let ping = |target: u8| {
            let mut ping = Process::new("ping");
            ping.args(["-i", "0.02", "-q", &format!("198.51.100.{target}")]);
            ping.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
        };
        Pings(inside(pod, || (0..TARGETS).map(ping).collect()))
    }

    /// Ends them. Returns the number of lost requests. The last request of each `ping` may be on
    /// its way.
    fn lost(self) -> u32 {
        let lost = self.0.into_iter().map(|process| {
            let pid = process.id().to_string();
            assert!(Process::new("kill").args(["-INT", &pid]).status().unwrap().success());
            let said = String::from_utf8(process.wait_with_output().unwrap().stdout).unwrap();
            let line = said.lines().find(|line| line.contains("packets transmitted")).unwrap().to_owned();
            let number = |word: &str| -> u32 {
                let before = line.split(word).next().unwrap().trim_end();
                before.rsplit([' ', ',']).next().unwrap().parse().unwrap()
            };
            let (sent, received) = (number("packets transmitted"), number("received"));
            assert!(sent > 5, "{line}");
            sent.saturating_sub(received).saturating_sub(1)
        });
        lost.sum()
    }
}

/// Checks that all requests of a short time are answered.
fn all_answered(pod: &OwnedFd) {
    let pings = Pings::start(pod);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(pings.lost(), 0);
}

fn default_route() -> String {
    // The list has all tables, because a request for an empty table fails.
    let routes = ip("route show table all");
    let mut lines =
        routes.lines().skip_while(|line| !(line.starts_with("default") && line.contains("table 10000")));
    let first = lines.next().unwrap_or_default();
    // With ECMP, each next hop has its own line.
    let hops = lines.take_while(|line| line.starts_with('\t'));
    hops.fold(first.to_owned(), |route, hop| format!("{route} {hop}"))
}

/// Waits until the kernel uses exactly these routers.
fn leaves_by(all: &[&Tor], tors: &[&Tor]) {
    within(&format!("{} next hops", tors.len()), || {
        let route = default_route();
        all.iter().all(|tor| {
            let is_used = tors.iter().any(|used| used.number == tor.number);
            route.contains(&format!("via {} ", tor.address())) == is_used
        })
    });
}

fn within(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < until, "not within 30 s: {what}; {}", default_route());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn way_out(host: &Host) -> DefaultRouteStatus {
    host.status().bgp.unwrap().ways_out.into_iter().find(|way| way.family == "ipv4-unicast").unwrap()
}

fn texts(host: &Host, kind: EventKind) -> Vec<String> {
    let events: Events = host.ask(Query::Events { after: 0, run: None, wait: false }).unwrap();
    events.events.into_iter().filter(|event| event.kind == kind).map(|event| event.text).collect()
}

fn has_routes_of(host: &Host, tor: &Tor) -> bool {
    let peers = host.ask::<Vec<Peer>>(Query::Peers { address: None }).unwrap_or_default();
    peers.iter().filter(|peer| peer.address.to_string() == tor.address()).any(|peer| {
        peer.is_established()
            && peer.families.iter().all(|family| !family.negotiated || family.end_of_rib_received)
    })
}

#[test]
fn default_route_follows_the_routers_default_routes() {
    isolated("default_route_follows_the_routers_default_routes", |_| {
        let tors = [Tor::new(1), Tor::new(2)];
        let [one, two] = &tors;
        let both = [one, two];
        let mut host = Host::new("");
        let peer = |tor: &Tor| {
            let (asn, address) = (65000 + u32::from(tor.number) * 100, tor.address());
            format!("{{asn: {asn}, address: {address}, connectRetrySeconds: 1}}")
        };
        host.manifests(&manifests(&format!("{}\n{}", peer(one), peer(two)), SUBNET));
        host.start();
        let pod = namespace();
        leaves_by(&both, &both);
        host.add("c1", &pod).unwrap();
        all_answered(&pod);
        assert_eq!(way_out(&host).basis, DefaultRouteBasis::Advertised);

        let pings = Pings::start(&pod);
        std::thread::sleep(Duration::from_millis(300));
        two.uplinks(false);
        leaves_by(&both, &[one]);
        println!("{} requests were lost until the router was excluded", pings.lost());
        all_answered(&pod);
        let way = way_out(&host);
        assert_eq!(
            (way.peers.len(), way.left_out.len(), way.wanted == way.installed),
            (1, 1, true),
            "{way:?}"
        );
        assert_eq!(way.left_out[0].cause, trunkline_api::control::ExclusionCause::Withdrawn);
        within("an event", || !texts(&host, EventKind::NextHopOut).is_empty());
        let out = texts(&host, EventKind::NextHopOut);
        assert_eq!(
            out,
            ["withdrew its default route: pods' ipv4-unicast packets use 10.255.1.1 and not this peer"]
        );
        assert!(host.prints("routes --explain 0.0.0.0/0").contains("not through 10.255.2.1: it withdrew"));

        // The router without uplinks returns first, and gets no packet.
        let pings = Pings::start(&pod);
        std::thread::sleep(Duration::from_millis(100));
        one.reachable(false);
        host.kill();
        host.start();
        within("the second router's routes", || has_routes_of(&host, two));
        std::thread::sleep(Duration::from_millis(300));
        leaves_by(&both, &[one]);
        assert_eq!(way_out(&host).basis, DefaultRouteBasis::Retained);
        one.reachable(true);
        within("the first router's routes", || has_routes_of(&host, one));
        within("the selection", || way_out(&host).basis == DefaultRouteBasis::Advertised);
        leaves_by(&both, &[one]);
        assert_eq!(pings.lost(), 0, "a restart of the agent loses nothing");

        // The last router withdraws its default route too. Then the next hops are the configured
        // peers.
        one.default.send(false).unwrap();
        leaves_by(&both, &both);
        // The event follows the kernel's change.
        within("an event", || !texts(&host, EventKind::DefaultLost).is_empty());
        let lost = texts(&host, EventKind::DefaultLost);
        assert_eq!(lost.len(), 1, "{lost:?}");
        assert!(
            lost[0].starts_with("no peer advertises a default route of ipv4-unicast any more"),
            "{lost:?}"
        );
        assert_eq!(way_out(&host).basis, DefaultRouteBasis::Configured);
        two.uplinks(true);
        leaves_by(&both, &[two]);
        all_answered(&pod);
        one.default.send(true).unwrap();
        leaves_by(&both, &both);
        all_answered(&pod);
    });
}
