//! Anycast addresses of three nodes, from files: node-local DNS, and the address of an API server
//! without a cluster. The test is the programs behind them.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ipnet::IpNet;
use rustix::process::Signal;
use trunkline_api::control::{AdvertisementState, AnycastAddressStatus, EventKind, Events};

use super::{Context, Test, Verdict};
use crate::client;
use crate::daemons::vtysh_json;
use crate::routers;
use crate::routes::RouteMonitor;
use crate::shell::{Seen, wait_for};
use crate::stillness;
use crate::tests::bed::{Bed, Manifest, PATIENCE, lab};
use crate::tests::greeter::{Greeter, greeted};
use crate::tests::{hybrid, passed};

pub(super) const TEST: Test = Test {
    name: "service-addresses/anycast",
    about: "addresses of nodes are in FRR and BIRD while their checks pass: a dead program is withdrawn, \
            a restart and a SIGKILL of the agent withdraw nothing, the last holder stays (keepLast)",
    run,
};

const NODES: [&str; 3] = ["node1", "node2", "node3"];
/// The addresses of nodes in rack 1, as tor1 knows them.
const RACK1: [(&str, &str); 2] = [("node1", "10.51.0.11"), ("node2", "10.51.0.12")];

/// They are below the nodes' addresses: the BGP identifier must not follow them.
const DNS: [&str; 2] = ["10.9.0.53", "2001:db8:9::53"];
const DNS_PORT: u16 = 53;
const API: &str = "10.9.0.1";
const API_PORT: u16 = 6443;
/// The community of GRACEFUL_SHUTDOWN (RFC 8326).
const SHUTDOWN: &str = "graceful-shutdown";
/// The interval of the checks. The test shows the time from the death of a program to the router's
/// table; `cargo lab bench services` measures it.
const CHECK: &str = "intervalMilliseconds: 50, timeoutMilliseconds: 50, rise: 2, fall: 3";

fn dns() -> String {
    format!(
        "apiVersion: trunkline.io/v1alpha1\nkind: AnycastAddress\nmetadata: {{name: dns}}\n\
         spec:\n  addresses: ['{}', '{}']\n  communities: ['65000:53']\n  \
         check: {{tcp: {{port: {DNS_PORT}}}, {CHECK}}}\n",
        DNS[0], DNS[1]
    )
}

fn api() -> String {
    format!(
        "---\napiVersion: trunkline.io/v1alpha1\nkind: AnycastAddress\nmetadata: {{name: api}}\n\
         spec:\n  addresses: ['{API}']\n  nodeSelector: {{matchLabels: {{rack: '1'}}}}\n  \
         keepLast: true\n  gracefulShutdownSeconds: 2\n  \
         check: {{tcp: {{port: {API_PORT}}}, {CHECK}}}\n"
    )
}

fn run(context: &Context) -> Result<Verdict> {
    lab(context, "hybrid", |bed| {
        hybrid::ready(bed)?;
        let file = Manifest::at(bed.fabric.file("hybrid/manifests/anycast.yaml"));
        let test = Anycast { bed };
        let identifiers = test.identifiers()?;
        file.write(&dns())?;
        let (within, still) = test.follows_the_program()?;
        test.survives_restarts()?;
        ensure!(test.identifiers()? == identifiers, "an anycast address became the BGP identifier");
        file.write(&(dns() + &api()))?;
        test.keeps_the_last_holder()?;
        test.leaves_gracefully(&file)?;
        passed(format!(
            "withdrawn {} ms after the program's end (the machine paused for {} ms), both families, \
             FRR and BIRD; restarts withdraw nothing; the last of two holders stays",
            within.as_millis(),
            still.as_millis()
        ))
    })
}

struct Anycast<'a> {
    bed: &'a Bed<'a>,
}

impl Anycast<'_> {
    fn identifiers(&self) -> Result<Vec<String>> {
        let of = |node: &&str| {
            let bgp = client::status(self.bed.host(node)?)?.bgp;
            Ok(bgp.map(|bgp| bgp.router_id.to_string()).unwrap_or_default())
        };
        NODES.iter().map(of).collect()
    }

    /// The nodes of rack 1 with a path of an address in FRR, each with its communities.
    fn paths(&self, prefix: &IpNet) -> Result<Vec<(&'static str, String)>> {
        let family = if prefix.addr().is_ipv4() { "ipv4" } else { "ipv6" };
        let answer = vtysh_json(self.bed.host("tor1")?, &format!("show bgp {family} unicast {prefix} json"))?;
        // FRR answers with a less specific prefix if it does not have this one.
        let exact = answer["prefix"] == prefix.to_string();
        let mut found = Vec::new();
        for path in answer["paths"].as_array().filter(|_| exact).into_iter().flatten() {
            let peer = path["peer"]["peerId"].as_str().unwrap_or_default();
            if let Some((node, _)) = RACK1.iter().find(|(_, address)| *address == peer) {
                let communities = path["community"]["string"].as_str().unwrap_or_default();
                found.push((*node, communities.to_owned()));
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Waits until exactly these nodes have a path in FRR. `shutdown`: whether each has
    /// GRACEFUL_SHUTDOWN.
    fn from(&self, address: &str, nodes: &[(&str, bool)]) -> Result<()> {
        let prefix = IpNet::from(address.parse::<IpAddr>()?);
        wait_for(&format!("{prefix} from {nodes:?}"), PATIENCE, || {
            let paths = self.paths(&prefix)?;
            let seen = paths.iter().map(|(node, communities)| (*node, communities.contains(SHUTDOWN)));
            let good = seen.eq(nodes.iter().copied());
            Ok(Seen::when(good, || format!("{paths:?}")))
        })
    }

    /// Waits until BIRD has a path from node3, or has none.
    fn bird(&self, address: &str, there: bool) -> Result<()> {
        let prefix = IpNet::from(address.parse::<IpAddr>()?);
        wait_for(&format!("{prefix} from node3: {there}"), PATIENCE, || {
            let table =
                self.bed.host("tor2")?.sh(&format!("birdc show route {prefix} protocol node3 || :"))?;
            Ok(Seen::when(table.contains(&prefix.to_string()) == there, || table.clone()))
        })
    }

    /// The state of an address in the operator's view.
    fn status(&self, node: &str, address: &str) -> Result<Option<AnycastAddressStatus>> {
        let address: IpAddr = address.parse()?;
        let status = client::status(self.bed.host(node)?)?.anycast;
        Ok(status.into_iter().flat_map(|object| object.addresses).find(|it| it.address == address))
    }

    fn serve(&self, node: &str, port: u16) -> Result<Greeter> {
        Greeter::listen(&self.bed.host(node)?.ns, port)
    }

    /// The address follows the program behind it. Returns the time from its end to the router's
    /// table, and the machine's longest pause.
    fn follows_the_program(&self) -> Result<(Duration, Duration)> {
        for node in NODES {
            wait_for(&format!("the addresses on {node}"), PATIENCE, || {
                let addresses = self.bed.host(node)?.sh("ip -o addr show dev lo")?;
                let there = DNS.iter().all(|address| addresses.contains(&format!(" {address}/")));
                Ok(Seen::when(there, || addresses.clone()))
            })?;
        }
        wait_for("a failed check", PATIENCE, || {
            let seen = self.status("node1", DNS[0])?;
            let fails = seen.as_ref().is_some_and(|it| it.check.contains("no connection to 10.9.0.53:53"));
            Ok(Seen::when(fails, || format!("{seen:?}")))
        })?;
        self.from(DNS[0], &[])?;

        let outside = self.bed.host("outside")?;
        let first = self.serve("node1", DNS_PORT)?;
        for address in DNS {
            self.from(address, &[("node1", false)])?;
            let to = SocketAddr::new(address.parse()?, DNS_PORT);
            wait_for(&format!("an answer of {address}"), PATIENCE, || {
                Ok(match greeted(&outside.ns, to) {
                    Ok(_) => Seen::Yes(()),
                    Err(error) => Seen::NotYet(format!("{error:#}")),
                })
            })?;
        }
        let paths = self.paths(&IpNet::from(DNS[0].parse::<IpAddr>()?))?;
        ensure!(paths == [("node1", "65000:53".to_owned())], "{paths:?}");

        let prefixes = DNS.map(|address| address.parse().map(|it: IpAddr| IpNet::from(it)));
        let prefixes = prefixes.into_iter().collect::<Result<Vec<IpNet>, _>>()?;
        let monitor = RouteMonitor::start(&self.bed.host("tor1")?.ns)?;
        let (within, still) = stillness::longest_while(|| {
            let begun = Instant::now();
            drop(first);
            let gone = monitor.wait(&prefixes, false, PATIENCE)?;
            let last = gone.into_iter().max().unwrap_or(begun);
            Ok(last.saturating_duration_since(begun))
        })?;
        let events: Events = client::ask(self.bed.node()?, &["events"])?;
        let kinds: Vec<EventKind> = events.events.iter().map(|event| event.kind).collect();
        for kind in [EventKind::AnycastHealthy, EventKind::AnycastUnhealthy] {
            ensure!(kinds.contains(&kind), "no event {kind}: {kinds:?}");
        }
        Ok((within, still))
    }

    /// A stop, a SIGKILL and a restart of the agent withdraw nothing.
    fn survives_restarts(&self) -> Result<()> {
        let servers = NODES.map(|node| self.serve(node, DNS_PORT));
        let _servers = servers.into_iter().collect::<Result<Vec<_>>>()?;
        for address in DNS {
            self.from(address, &[("node1", false), ("node2", false)])?;
            self.bird(address, true)?;
        }
        // Only node3 is behind tor2, so a withdrawal would be seen there.
        let prefixes = [IpNet::from(DNS[0].parse::<IpAddr>()?), IpNet::from(DNS[1].parse::<IpAddr>()?)];
        let monitor = RouteMonitor::start(&self.bed.host("tor1")?.ns)?;
        for signal in [Signal::KILL, Signal::TERM, Signal::KILL] {
            for node in ["node1", "node2"] {
                let host = self.bed.host(node)?;
                client::end_agent(host, signal)?;
                client::start_agent(host)?;
            }
            for node in ["node1", "node2"] {
                let host = self.bed.host(node)?;
                client::wait_answering(host)?;
                client::wait_established(host, PATIENCE)?;
                wait_for(&format!("the confirmed address of {node}"), PATIENCE, || {
                    let seen = self.status(node, DNS[0])?;
                    let confirmed =
                        seen.as_ref().is_some_and(|it| it.state == AdvertisementState::Advertised);
                    Ok(Seen::when(confirmed, || format!("{seen:?}")))
                })?;
                routers::wait_nothing_stale(
                    self.bed.host("tor1")?,
                    RACK1.iter().find(|(name, _)| *name == node).map_or("", |(_, address)| *address),
                    PATIENCE,
                )?;
            }
        }
        for address in DNS {
            self.from(address, &[("node1", false), ("node2", false)])?;
        }
        let removed = monitor.removed(&prefixes);
        ensure!(removed.is_empty(), "{removed:?} was withdrawn");
        // Another program deletes an address, and it returns.
        let node = self.bed.node()?;
        node.sh("ip addr del 10.9.0.53/32 dev lo")?;
        wait_for("the restored address", PATIENCE, || {
            let addresses = node.sh("ip -o addr show dev lo")?;
            Ok(Seen::when(addresses.contains(" 10.9.0.53/32"), || addresses.clone()))
        })
    }

    /// Two holders in one rack: both have the same AS.
    fn keeps_the_last_holder(&self) -> Result<()> {
        let (one, two) = (self.serve("node1", API_PORT)?, self.serve("node2", API_PORT)?);
        self.from(API, &[("node1", false), ("node2", false)])?;
        let prefix = IpNet::from(API.parse::<IpAddr>()?);
        let monitor = RouteMonitor::start(&self.bed.host("tor1")?.ns)?;
        drop(one);
        self.from(API, &[("node2", false)])?;
        drop(two);
        self.from(API, &[("node2", true)])?;
        wait_for("the last holder", PATIENCE, || {
            let seen = self.status("node2", API)?;
            let kept = seen.as_ref().is_some_and(|it| {
                it.state == AdvertisementState::Advertised && it.text.contains("no other node advertises it")
            });
            Ok(Seen::when(kept, || format!("{seen:?}")))
        })?;
        // Another holder is healthy: the last one withdraws.
        let one = self.serve("node1", API_PORT)?;
        self.from(API, &[("node1", false)])?;
        let two = self.serve("node2", API_PORT)?;
        self.from(API, &[("node1", false), ("node2", false)])?;
        // Both die in one moment. At least one stays, with GRACEFUL_SHUTDOWN.
        drop((one, two));
        wait_for("paths with GRACEFUL_SHUTDOWN", PATIENCE, || {
            let paths = self.paths(&prefix)?;
            let shut =
                !paths.is_empty() && paths.iter().all(|(_, communities)| communities.contains(SHUTDOWN));
            Ok(Seen::when(shut, || format!("{paths:?}")))
        })?;
        std::thread::sleep(Duration::from_secs(5)); // longer than twice gracefulShutdownSeconds
        ensure!(!self.paths(&prefix)?.is_empty(), "both holders withdrew");
        let removed = monitor.removed(&[prefix]);
        ensure!(removed.is_empty(), "{removed:?} was withdrawn");
        Ok(())
    }

    /// A deleted object is withdrawn after its graceful shutdown, and leaves the node last.
    fn leaves_gracefully(&self, file: &Manifest) -> Result<()> {
        let _server = self.serve("node1", API_PORT)?;
        self.from(API, &[("node1", false)])?;
        file.write(&dns())?;
        self.from(API, &[("node1", true)])?;
        let addresses = self.bed.node()?.sh("ip -o addr show dev lo")?;
        ensure!(addresses.contains(&format!(" {API}/")), "{API} left before its withdrawal: {addresses}");
        self.from(API, &[])?;
        wait_for("no address on the node", PATIENCE, || {
            let addresses = self.bed.node()?.sh("ip -o addr show dev lo")?;
            Ok(Seen::when(!addresses.contains(&format!(" {API}/")), || addresses.clone()))
        })
    }
}
