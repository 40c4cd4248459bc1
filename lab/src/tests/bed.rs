//! Common base of lab tests: a fabric for one test, its node's agent, manifests that can be edited,
//! pods, and queries of the state.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use trunkline_api::control::{Peer, PodStatus};

use super::{Context, Verdict};
use crate::cni::{self, Attached, Sandbox};
use crate::fabric::Fabric;
use crate::host::Host;
use crate::pinger::{Flow, Pinger};
use crate::shell::{Seen, wait_for};
use crate::topology::Image;
use crate::{client, evidence, routers};

/// A busy machine may need this time. Otherwise only a failing test waits for so long.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);
pub(super) const INTERVAL: Duration = Duration::from_millis(5);

/// Creates a topology for one test, waits until its agents answer, and removes it afterwards. If
/// the test fails, the error names the folder of the evidence.
pub(super) fn lab(
    context: &Context,
    topology: &str,
    test: impl FnOnce(&Bed<'_>) -> Result<Verdict>,
) -> Result<Verdict> {
    let product = context.product()?;
    let fabric = Fabric::up(&context.place, topology, &product)?;
    fabric.watched(|fabric| {
        evidence::capture(fabric)?;
        for node in fabric.topology.with_image(Image::Node) {
            client::wait_answering(fabric.host(node)?)?;
        }
        test(&Bed { fabric })
    })
}

/// A fabric whose only Trunkline node is `node1`.
pub(super) struct Bed<'a> {
    pub fabric: &'a Fabric,
}

impl Bed<'_> {
    pub(super) fn host(&self, name: &str) -> Result<&Host> {
        self.fabric.host(name)
    }

    pub(super) fn node(&self) -> Result<&Host> {
        self.fabric.host("node1")
    }

    /// Waits until node1's sessions are up and each peer has sent its End-of-RIB. Before that, a
    /// pod does not have its routes.
    pub(super) fn established(&self) -> Result<()> {
        client::wait_established(self.node()?, PATIENCE)?;
        wait_for("End-of-RIB of every peer", PATIENCE, || {
            let peers = client::peers(self.node()?)?;
            let open = |p: &&Peer| p.families.iter().any(|f| f.negotiated && !f.end_of_rib_received);
            let missing: Vec<String> = peers.iter().filter(open).map(|p| p.address.to_string()).collect();
            Ok(Seen::when(missing.is_empty(), || format!("not from {missing:?}")))
        })
    }

    /// A pod on node1.
    pub(super) fn pod(&self, name: &str) -> Result<Sandbox> {
        Sandbox::create(self.fabric, "node1", name)
    }

    /// A pod on node1 attached to a network.
    pub(super) fn attached(&self, name: &str, network: &str) -> Result<(Sandbox, Attached)> {
        let pod = self.pod(name)?;
        let attached = cni::add(self.fabric, &cni::trunkline(Some(network)), &pod)?;
        Ok((pod, attached))
    }

    /// A manifest of node1 for edits; the folder has the topology's name.
    pub(super) fn manifest(&self, file: &str) -> Manifest {
        self.manifest_of("node1", file)
    }

    /// A manifest of another node for edits.
    pub(super) fn manifest_of(&self, node: &str, file: &str) -> Manifest {
        Manifest::at(self.fabric.file(&format!("{}/{node}/manifests/{file}", self.fabric.topology.name)))
    }

    /// The peer with this address, in the operator's view.
    pub(super) fn peer(&self, address: &str) -> Result<Peer> {
        let address: IpAddr = address.parse()?;
        let peers = client::peers(self.node()?)?;
        peers.into_iter().find(|p| p.address == address).with_context(|| format!("no peer {address}"))
    }

    /// Waits until a peer's last error contains one of these words, in upper or lower case. Returns
    /// the error.
    pub(super) fn wait_peer_error(&self, address: &str, words: &[&str]) -> Result<String> {
        wait_for(&format!("{address}'s last error to contain {words:?}"), PATIENCE, || {
            let peer = self.peer(address)?;
            let text = peer.last_error.map(|e| e.text).unwrap_or_default();
            let says = words.iter().any(|w| text.to_lowercase().contains(&w.to_lowercase()));
            Ok(if says { Seen::Yes(text) } else { Seen::NotYet(format!("{} {text:?}", peer.state)) })
        })
    }

    pub(super) fn pods(&self) -> Result<Vec<PodStatus>> {
        client::pods(self.node()?)
    }

    /// The host interfaces of pods.
    pub(super) fn links(&self) -> Result<Vec<String>> {
        let text = self.node()?.run("ip", ["-o", "link", "show", "type", "veth"])?;
        let name = |l: &str| Some(l.split(": ").nth(1)?.split('@').next()?.to_owned());
        Ok(text.lines().filter_map(name).filter(|n| n.starts_with("tl")).collect())
    }

    /// Routes of the table of local pods.
    pub(super) fn pod_routes(&self) -> Result<Vec<String>> {
        // `ip` reports an unused table as an error, not as an empty one.
        let text = self.node()?.sh(
            "ip -4 route show table 39999 2>/dev/null || :; ip -6 route show table 39999 2>/dev/null || :",
        )?;
        Ok(text.lines().filter(|l| !l.trim().is_empty()).map(|l| l.trim().to_owned()).collect())
    }

    /// Fails if anything is left of a pod that is not in `kept`: a record, a link or a route on the
    /// node, or a route in the ToRs.
    pub(super) fn nothing_but(&self, kept: &[&Sandbox], addresses: &[IpAddr]) -> Result<()> {
        wait_for("the removal of all leftovers of detached pods", PATIENCE, || {
            let pods = self.pods()?;
            let strangers: Vec<&PodStatus> =
                pods.iter().filter(|p| !kept.iter().any(|k| k.container_id == p.container_id)).collect();
            let (links, routes) = (self.links()?, self.pod_routes()?);
            let expected: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            let stray = routes.iter().filter(|r| {
                let destination = r.split_whitespace().next().unwrap_or_default();
                !expected.iter().any(|e| e == destination)
            });
            let stray: Vec<&String> = stray.collect();
            let good = strangers.is_empty()
                && links.len() == kept.len()
                && stray.is_empty()
                && routes.len() == expected.len();
            Ok(Seen::when(good, || format!("pods {strangers:?}, links {links:?}, routes {routes:?}")))
        })?;
        for tor in self.fabric.topology.with_role("tor") {
            self.tor_has_only(tor, addresses)?;
        }
        Ok(())
    }

    /// Waits until a node has no leftovers of pods.
    pub(super) fn nothing_left(&self, node: &str) -> Result<()> {
        let host = self.host(node)?;
        wait_for(&format!("the removal of all leftovers of pods on {node}"), PATIENCE, || {
            let pods = client::pods(host)?;
            let left = host
                .sh("ip -o link | grep ': t[lb]' || :; ip route show table 39999 2>/dev/null || :; \
                 ip -6 route show table 39999 2>/dev/null || :")?;
            Ok(Seen::when(pods.is_empty() && left.trim().is_empty(), || format!("{pods:?} {left}")))
        })
    }

    /// Waits until a ToR's host routes are exactly these addresses.
    pub(super) fn tor_has_only(&self, tor: &str, addresses: &[IpAddr]) -> Result<()> {
        let host = self.host(tor)?;
        if self.fabric.topology.nodes[tor].image != Image::Frr {
            return Ok(());
        }
        wait_for(&format!("{tor}'s host routes to equal the pods' addresses"), PATIENCE, || {
            let table = routers::kernel_routes(host)?;
            let full = |p: &&IpNet| p.prefix_len() == p.max_prefix_len();
            let there: Vec<IpAddr> = table.iter().filter(full).map(IpNet::addr).collect();
            let good = there.len() == addresses.len() && addresses.iter().all(|a| there.contains(a));
            Ok(Seen::when(good, || format!("{there:?}, wanted {addresses:?}")))
        })
    }

    /// Starts pings from an external host to addresses of pods. They continue until
    /// [`Pinger::finish`].
    pub(super) fn pings(&self, from: &str, to: &[IpAddr]) -> Result<Pinger> {
        let ns = self.host(from)?.ns.clone();
        let flow = |to: &IpAddr| Flow { name: format!("{from} to {to}"), from: ns.clone(), to: *to };
        let mut pinger = Pinger::start(to.iter().map(flow).collect(), INTERVAL)?;
        pinger.settle(PATIENCE)?;
        Ok(pinger)
    }
}

/// Fails if a pinger has lost any request.
pub(super) fn lost_nothing(pinger: Pinger) -> Result<usize> {
    pinger.wait_sent(20, PATIENCE)?;
    let outcomes = pinger.finish()?;
    for outcome in &outcomes {
        ensure!(outcome.lost.is_empty(), "{}: {} of {} lost", outcome.name, outcome.lost.len(), outcome.sent);
    }
    Ok(outcomes.iter().map(|o| o.sent).sum())
}

/// A file of the running lab that a test edits; its original text can be restored.
pub(super) struct Manifest {
    path: PathBuf,
}

impl Manifest {
    pub(super) fn at(path: PathBuf) -> Manifest {
        Manifest { path }
    }

    pub(super) fn read(&self) -> Result<String> {
        std::fs::read_to_string(&self.path).with_context(|| self.path.display().to_string())
    }

    /// Replaces the file atomically, as editors do: no reader sees half of the text.
    pub(super) fn write(&self, text: &str) -> Result<()> {
        // The name does not end in .yaml, so the half-written file is no manifest.
        let next = self.path.with_extension("new");
        std::fs::write(&next, text)?;
        std::fs::rename(&next, &self.path).with_context(|| self.path.display().to_string())
    }

    /// Writes into the file itself, for a file that is mounted separately and cannot be replaced by
    /// a rename.
    pub(super) fn overwrite(&self, text: &str) -> Result<()> {
        std::fs::write(&self.path, text).with_context(|| self.path.display().to_string())
    }

    /// Replaces a part of the text. This part must exist.
    pub(super) fn edit(&self, from: &str, to: &str) -> Result<()> {
        let text = self.read()?;
        ensure!(text.contains(from), "{} has no {from:?}", self.path.display());
        self.write(&text.replacen(from, to, 1))
    }
}
