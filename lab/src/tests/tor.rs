//! The ToR configurations in docs/tor.md for the lab's routers. Each test takes the configurations
//! of router and nodes from the page and checks the page's claims about them.

use std::net::IpAddr;

use anyhow::{Context as _, Result, bail, ensure};
use ipnet::IpNet;
use rustix::process::Signal;
use trunkline_api::control::PeerState;

use super::bed::{Bed, PATIENCE, lab, lost_nothing};
use super::{Context, Test, Verdict, passed};
use crate::client;
use crate::cni::Attached;
use crate::daemons::{start_frr, start_gobgp};
use crate::host::Host;
use crate::interop::ROUTERS;
use crate::interop::router::{self, Path, Router};
use crate::shell::{Seen, wait_for};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "tor/frr",
        about: "FRR with the page's configuration: MD5, BFD, prefix lists, ECMP, restart, maximum-prefix",
        run: |context| run(context, &FRR),
    },
    Test {
        name: "tor/bird",
        about: "BIRD with the page's configuration: MD5, BFD, prefix lists, ECMP, restart, maximum-prefix",
        run: |context| run(context, &BIRD),
    },
    Test {
        name: "tor/gobgp",
        about: "GoBGP with the page's configuration: MD5, prefix lists, restart, maximum-prefix",
        run: |context| run(context, &GOBGP),
    },
];

const PAGE: &str = include_str!("../../../docs/tor.md");
/// The page's key.
const KEY: &str = "change-this-key";
/// The ToR's addresses in the nodes' configuration.
const TOR: [&str; 2] = ["10.1.0.1", "fd00:1::1"];
const NODE1: [&str; 2] = ["10.1.0.11", "fd00:1::11"];
const NODES: [&str; 4] = ["10.1.0.11", "fd00:1::11", "10.1.0.12", "fd00:1::12"];
/// The Subnets of the page, the default routes, and Subnets that no prefix list permits.
const SUBNETS: [&str; 2] = ["10.201.0.0/24", "fd00:201::/112"];
const DEFAULTS: [&str; 2] = ["0.0.0.0/0", "::/0"];
const FOREIGN: [&str; 2] = ["10.202.0.0/24", "fd00:202::/112"];

/// A section of the page, and its settings in the lab.
struct Section {
    heading: &'static str,
    /// [`Router::node`] of its implementation.
    router: &'static str,
    file: &'static str,
    /// The page's prefix limit, and a lower limit that a node with three pods exceeds. FRR ends the
    /// session at the second prefix beyond it.
    limit: (&'static str, &'static str),
    /// Whether the router has BFD, and routes in the kernel.
    forwards: bool,
}

const FRR: Section = Section {
    heading: "FRR",
    router: "frr",
    file: "/etc/frr/frr.conf",
    limit: ("maximum-prefix 1000", "maximum-prefix 1"),
    forwards: true,
};

const BIRD: Section = Section {
    heading: "BIRD",
    router: "bird",
    file: "/etc/bird/bird.conf",
    limit: ("receive limit 1000", "receive limit 1"),
    forwards: true,
};

const GOBGP: Section = Section {
    heading: "GoBGP",
    router: "gobgp",
    file: "/etc/gobgp/gobgpd.toml",
    limit: ("max-prefixes = 1000", "max-prefixes = 1"),
    forwards: false,
};

impl Section {
    fn configuration(&self) -> Result<&'static str> {
        block(PAGE, self.heading, 0)
    }

    fn implementation(&self) -> Result<&'static dyn Router> {
        let found = ROUTERS.iter().find(|router| router.node() == self.router);
        found.copied().with_context(|| format!("no router {}", self.router))
    }

    /// The page's manifest, adapted for this router's nodes.
    fn manifest(&self) -> Result<String> {
        let text = block(PAGE, "The nodes", 0)?;
        let kept = text.lines().filter(|line| self.forwards || !line.trim_start().starts_with("bfd:"));
        Ok(kept.map(|line| line.to_owned() + "\n").collect())
    }

    /// Kills earlier daemons, and starts the daemons with a configuration.
    fn start(&self, tor: &Host, configuration: &str) -> Result<()> {
        router::kill(tor, None)?;
        router::write(tor, self.file, configuration)?;
        match self.router {
            "frr" => start_frr(tor),
            "bird" => tor.run("bird", ["-c", self.file]).map(drop),
            _ => {
                start_gobgp(tor, &[])?;
                // The page's commands for the default route.
                block(PAGE, self.heading, 1)?.lines().try_for_each(|line| tor.sh(line).map(drop))
            }
        }
    }
}

/// The text of a fenced block below a heading of the second level.
fn block<'a>(page: &'a str, heading: &str, number: usize) -> Result<&'a str> {
    let start = format!("\n## {heading}\n");
    let (_, section) = page.split_once(&start).with_context(|| format!("no section {heading}"))?;
    let section = section.split("\n## ").next().unwrap_or(section);
    let inside = section.split("\n```").skip(1).step_by(2).nth(number);
    let inside = inside.with_context(|| format!("{heading} has no block {number}"))?;
    // The first line has the fence's language.
    let (_, text) = inside.split_once('\n').context("an empty block")?;
    Ok(text)
}

/// Node2's copy has the other half of the Subnets.
fn of_second_host(manifest: &str) -> Result<String> {
    let halves = [
        ("start: 10.201.0.10, end: 10.201.0.127", "start: 10.201.0.128, end: 10.201.0.254"),
        (r#"start: "fd00:201::10", end: "fd00:201::7f""#, r#"start: "fd00:201::80", end: "fd00:201::ff""#),
    ];
    halves.into_iter().try_fold(manifest.to_owned(), |text, (first, second)| {
        ensure!(text.contains(first), "the manifest has no {first:?}");
        Ok(text.replace(first, second))
    })
}

/// Subnets that the router's lists do not permit; no pod gets an address of them by default.
fn foreign() -> String {
    let subnet = |(version, cidr): (&str, &str)| {
        format!(
            "---\napiVersion: networking.alibaba.com/v1\nkind: Subnet\nmetadata: {{ name: foreign-v{version} }}\n\
             spec:\n  network: rack1\n  range: {{ version: \"{version}\", cidr: \"{cidr}\" }}\n  config: {{ private: true }}\n"
        )
    };
    ["4", "6"].into_iter().zip(FOREIGN).map(subnet).collect()
}

fn run(context: &Context, section: &Section) -> Result<Verdict> {
    let configuration = section.configuration()?;
    let manifest = section.manifest()?;
    ensure!(configuration.contains(KEY) && manifest.contains("passwordFile"), "a session without TCP-MD5");
    lab(context, "tor", |bed| {
        let tor = bed.host("tor1")?;
        section.start(tor, configuration)?;
        for (node, manifest) in [("node1", manifest.clone()), ("node2", of_second_host(&manifest)?)] {
            bed.host(node)?.sh(&format!("umask 077; printf %s {KEY} >/etc/trunkline/tor.key"))?;
            bed.manifest_of(node, "rack.yaml").write(&manifest)?;
        }
        let rack = Rack { bed, tor, section, router: section.implementation()? };
        rack.ready()?;
        rack.defaults_are_received()?;
        let (_first, first) = bed.attached("first", "rack1")?;
        rack.has(&first)?;
        rack.refuses_foreign_subnets()?;
        let pings = if section.forwards {
            rack.spreads_the_subnet()?;
            rack.restart_loses_nothing(&first)?
        } else {
            rack.restart_keeps_the_paths(&first)?;
            0
        };
        rack.limit_ends_the_session(configuration)?;
        passed(if section.forwards {
            format!("{pings} pings through a restart, none lost")
        } else {
            String::new()
        })
    })
}

/// The running rack.
struct Rack<'a> {
    bed: &'a Bed<'a>,
    tor: &'a Host,
    section: &'a Section,
    router: &'static dyn Router,
}

impl Rack<'_> {
    /// Waits until every session of both nodes is established at both ends, and BFD is up if the
    /// router has it.
    fn ready(&self) -> Result<()> {
        self.bed.established()?;
        client::wait_established(self.bed.host("node2")?, PATIENCE)?;
        for node in NODES {
            self.wait_session(node, true)?;
        }
        if !self.section.forwards {
            return Ok(());
        }
        client::wait_bfd(self.bed.node()?, PATIENCE)?;
        for node in NODES {
            self.wait_bfd(node, true)?;
        }
        for peer in client::peers(self.bed.node()?)? {
            let bfd = peer.bfd.with_context(|| format!("{} has no BFD session", peer.address))?;
            let times = (bfd.transmit_milliseconds, bfd.detection_milliseconds);
            ensure!(times == (50, Some(150)), "{}: {times:?}", peer.address);
        }
        Ok(())
    }

    fn wait_session(&self, node: &str, established: bool) -> Result<()> {
        let address: IpAddr = node.parse()?;
        let what = if established { "to be established" } else { "to be lost" };
        wait_for(&format!("the router's session with {node} {what}"), PATIENCE, || {
            let is = self.router.is_established(self.tor, address)?;
            Ok(Seen::when(is == established, || format!("established: {is}")))
        })
    }

    fn wait_bfd(&self, node: &str, up: bool) -> Result<()> {
        let address: IpAddr = node.parse()?;
        wait_for(&format!("the router's BFD session with {node}, up: {up}"), PATIENCE, || {
            let is = self.router.bfd_is_up(self.tor, address)?;
            Ok(Seen::when(is == up, || format!("up: {is}")))
        })
    }

    fn paths(&self, prefix: &str) -> Result<Vec<Path>> {
        self.router.paths(self.tor, &prefix.parse()?)
    }

    /// The node receives a default route of each family.
    fn defaults_are_received(&self) -> Result<()> {
        for (tor, default) in TOR.into_iter().zip(DEFAULTS) {
            let (tor, default): (IpAddr, IpNet) = (tor.parse()?, default.parse()?);
            wait_for(&format!("{default} of {tor}"), PATIENCE, || {
                let routes = client::received(self.bed.node()?, tor)?;
                let prefixes: Vec<IpNet> = routes.iter().map(|route| route.prefix).collect();
                // The router's list permits nothing else.
                Ok(Seen::when(prefixes == [default], || format!("{prefixes:?}")))
            })?;
        }
        Ok(())
    }

    /// Waits until the router has a pod's host routes and the Subnets, none of them stale.
    fn has(&self, pod: &Attached) -> Result<()> {
        let families = [true, false].map(|v4| pod.addresses.iter().any(|a| a.is_ipv4() == v4));
        ensure!(families == [true, true], "the pod has {:?}", pod.addresses);
        let hosts = pod.addresses.iter().map(|address| IpNet::from(*address).to_string());
        for prefix in hosts.chain(SUBNETS.map(str::to_owned)) {
            wait_for(&format!("{prefix} in the router's table"), PATIENCE, || {
                let paths = self.paths(&prefix)?;
                let good = !paths.is_empty() && paths.iter().all(|path| !path.stale);
                Ok(Seen::when(good, || format!("{paths:?}")))
            })?;
        }
        Ok(())
    }

    /// Checks that the router rejects the foreign Subnets. A pod that was attached later is in the
    /// table, so the router has already received these Subnets.
    fn refuses_foreign_subnets(&self) -> Result<()> {
        self.bed.manifest("foreign.yaml").write(&foreign())?;
        for (tor, foreign) in TOR.into_iter().zip(FOREIGN) {
            let (tor, foreign): (IpAddr, IpNet) = (tor.parse()?, foreign.parse()?);
            wait_for(&format!("{foreign} to be advertised"), PATIENCE, || {
                let routes = client::advertised(self.bed.node()?, tor)?;
                Ok(Seen::when(routes.iter().any(|route| route.prefix == foreign), || format!("{routes:?}")))
            })?;
        }
        for pod in ["second", "third"] {
            let (_pod, attached) = self.bed.attached(pod, "rack1")?;
            self.has(&attached)?;
        }
        for foreign in FOREIGN {
            let paths = self.paths(foreign)?;
            ensure!(paths.is_empty(), "the router accepted {foreign}: {paths:?}");
        }
        Ok(())
    }

    /// The kernel has both nodes as next hops of the Subnet.
    fn spreads_the_subnet(&self) -> Result<()> {
        wait_for("two next hops of the Subnet", PATIENCE, || {
            let route = self.tor.run("ip", ["-4", "route", "show", SUBNETS[0]])?;
            let both = [NODES[0], NODES[2]].iter().all(|node| route.contains(&format!("via {node} ")));
            Ok(Seen::when(both, || route))
        })
    }

    /// The agent is killed and restarted under traffic from behind the router.
    fn restart_loses_nothing(&self, pod: &Attached) -> Result<usize> {
        let node = self.bed.node()?;
        let pinger = self.bed.pings("outside", &pod.addresses)?;
        client::end_agent(node, Signal::KILL)?;
        for address in NODE1 {
            self.wait_session(address, false)?;
            self.wait_bfd(address, false)?;
        }
        // During this second the router retains the paths although BFD is down.
        pinger.wait_sent(200, PATIENCE)?;
        client::start_agent(node)?;
        self.ready()?;
        self.has(pod)?;
        lost_nothing(pinger)
    }

    /// For a router that does not forward, checks that its table keeps the pod's routes over a
    /// restart of the agent.
    fn restart_keeps_the_paths(&self, pod: &Attached) -> Result<()> {
        let node = self.bed.node()?;
        client::end_agent(node, Signal::KILL)?;
        for address in NODE1 {
            self.wait_session(address, false)?;
        }
        for address in &pod.addresses {
            let prefix = IpNet::from(*address).to_string();
            let paths = self.paths(&prefix)?;
            ensure!(paths.iter().any(|path| path.stale), "{prefix} is not retained: {paths:?}");
        }
        client::start_agent(node)?;
        self.ready()?;
        self.has(pod)
    }

    /// With a limit below the number of the node's prefixes, the router ends the sessions and
    /// reports the cause.
    fn limit_ends_the_session(&self, configuration: &str) -> Result<()> {
        let (limit, lower) = self.section.limit;
        if configuration.matches(limit).count() != 2 {
            bail!("the configuration lacks {limit:?} for a family");
        }
        self.section.start(self.tor, &configuration.replace(limit, lower))?;
        // FRR resets the connection after the NOTIFICATION. The reset may arrive first, and then a
        // session does not report the cause.
        wait_for("the router to end the sessions by its limit", PATIENCE, || {
            let peers = TOR.iter().map(|tor| self.bed.peer(tor)).collect::<Result<Vec<_>>>()?;
            let states: Vec<PeerState> = peers.iter().map(|peer| peer.state).collect();
            let said: Vec<String> =
                peers.into_iter().filter_map(|peer| Some(peer.notification_received?.text)).collect();
            let named = said.iter().any(|text| text.contains("Maximum Number of Prefixes"));
            let ended = states.iter().all(|state| *state != PeerState::Established);
            Ok(Seen::when(named && ended, || format!("{states:?} {said:?}")))
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_below_their_heading() -> Result<()> {
        let page = "# P\n\n## A\n\n```text\na\n```\n\nwords\n\n```toml\nb\nc\n```\n\n## B\n\n```\nd\n```\n";
        assert_eq!(block(page, "A", 0)?, "a");
        assert_eq!(block(page, "A", 1)?, "b\nc");
        assert_eq!(block(page, "B", 0)?, "d");
        assert!(block(page, "A", 2).is_err());
        assert!(block(page, "C", 0).is_err());
        Ok(())
    }

    #[test]
    fn the_page_has_what_the_labs_load() -> Result<()> {
        for section in [FRR, BIRD, GOBGP] {
            let text = section.configuration()?;
            assert!(NODES.iter().all(|node| text.contains(node)), "{}", section.heading);
            assert!(SUBNETS.iter().all(|subnet| text.contains(subnet)), "{}", section.heading);
            assert!(text.contains(KEY), "{}", section.heading);
            assert_eq!(text.matches(section.limit.0).count(), 2, "{}", section.heading);
            assert_eq!(section.manifest()?.contains("bfd:"), section.forwards);
            section.implementation()?;
        }
        of_second_host(&FRR.manifest()?)?;
        assert_eq!(block(PAGE, "GoBGP", 1)?.lines().count(), 2);
        Ok(())
    }

    #[test]
    fn every_router_of_the_page_has_the_whole_rack() -> Result<()> {
        for heading in ["Arista EOS", "Junos", "Cisco NX-OS"] {
            let text = block(PAGE, heading, 0)?;
            let wanted = NODES.iter().chain(&SUBNETS).chain(&TOR).chain(&[KEY, "65001", "65101"]);
            for part in wanted {
                assert!(text.contains(part), "{heading} lacks {part}");
            }
        }
        assert!(block(PAGE, "SONiC", 0)?.contains("docker_routing_config_mode"));
        Ok(())
    }
}
